"""The command line as tests use it: in a folder of its own, in this process or as one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from sendonce.cli.main import main
from sendonce.testing.sandbox import SandboxClient

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ESCAPE = re.compile(r"\x1b")


@dataclass(frozen=True)
class Ran:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its answer, which must be one JSON document and nothing else."""
        return json.loads(self.out)


class Folder:
    """A folder with a configuration, and commands run in it."""

    def __init__(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.path = path
        self._capfd = capfd
        monkeypatch.chdir(path)
        for name in (
            "SENDONCE_CONFIG",
            "SENDONCE_STORE_URL",
            "SENDONCE_LOG_LEVEL",
            "SENDONCE_HEALTH",
            "NO_COLOR",
            "FORCE_COLOR",
        ):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("COLUMNS", "120")

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def configure(self, sandbox: SandboxClient) -> None:
        """As `sendonce init --sandbox` writes it, on the ports of this sandbox."""
        text = files("sendonce.cli").joinpath("sandbox.toml").read_text(encoding="utf-8")
        self.write("sendonce.toml", on_ports(text, sandbox))
        self.write("sandbox-token", "anything\n")

    def add_template(self, name: str = "shipped") -> None:
        self.write(f"templates/{name}.subject.txt", "Parcel {{ parcel }}\n")
        self.write(
            f"templates/{name}.txt", "Hello {{ name }}, parcel {{ parcel }}. [ref:{{ delivery_key }}]\n"
        )
        self.write(
            f"templates/{name}.sms.txt", "Parcel {{ parcel }} for {{ name }}. [ref:{{ delivery_key }}]\n"
        )
        self.run("template", "add", name)

    def run(self, *arguments: str, code: int = 0) -> Ran:
        """Run a command in this process; its exit code must be `code`."""
        ran = self.answer(*arguments)
        assert ran.code == code, (arguments, ran.out, ran.err)
        return ran

    def answer(self, *arguments: str) -> Ran:
        """Run a command in this process, whatever comes of it."""
        self._capfd.readouterr()
        exit_code = main(list(arguments))
        return Ran(exit_code, *self._capfd.readouterr())

    def json(self, *arguments: str, code: int = 0) -> Any:
        return self.run(*arguments, "--json", code=code).document

    def process(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command as a process of its own."""
        return subprocess.Popen(
            [str(BIN / "sendonce"), *arguments],
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def states(self, reminder: str) -> dict[str, str]:
        """State by delivery key."""
        deliveries = self.json("status", reminder)["deliveries"]
        return {each["key"]: each["state"] for each in deliveries}


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process is gone when the block is over, whatever happened in it."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


def wait_for(what: Callable[[], object], *, seconds: float = 15.0) -> None:
    """Look until it is so."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


def on_ports(text: str, sandbox: SandboxClient) -> str:
    """A text with the usual ports of the sandbox replaced by those of this one."""
    return text.replace("2525", str(sandbox.smtp_port)).replace("8025", str(sandbox.http_port))


def environment(home: Path, **more: str) -> dict[str, str]:
    """What a process needs, and nothing of the person's who runs the tests."""
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", **more}
