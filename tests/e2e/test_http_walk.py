"""The walk in `docs/http.md`, run as it stands: each command, and what the page says that it answers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from typing import Any

from tests.e2e.command_line import BIN, ROOT, Folder, ended, wait_for
from tests.e2e.test_cli_api import asked

WALK = (ROOT / "docs/http.md").read_text(encoding="utf-8").partition("## A walk\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```(sh|json)\n(.*?)^```$", WALK, re.MULTILINE | re.DOTALL)
MARK = "--- next ---"


def test_each_command_answers_what_the_page_says(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = [text for kind, text in BLOCKS if kind == "sh"]
    script = f"\necho; echo '{MARK}'\n".join(commands).replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    with ended(folder.process("api", "--listen", str(port))):
        wait_for(lambda: asked(port, "/readyz") == 200)
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=folder.path,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    outputs = done.stdout.split(MARK)
    shown = [(number, text) for number, text in enumerate(_answers()) if text]
    assert len(shown) >= 8
    for number, text in shown:
        answer = json.loads(outputs[number])
        assert holds(answer, json.loads(text)), (commands[number], answer, text)


def _answers() -> list[str]:
    """What is shown below each command; "" where nothing is."""
    answers: list[str] = []
    for kind, text in BLOCKS:
        if kind == "sh":
            answers.append("")
        else:
            answers[-1] = text
    return answers


def holds(answer: Any, shown: Any) -> bool:
    """Whether an answer holds what is shown of it."""
    if isinstance(shown, dict):
        return isinstance(answer, dict) and all(
            name in answer and holds(answer[name], value) for name, value in shown.items()
        )
    if isinstance(shown, list):
        return len(answer) == len(shown) and all(map(holds, answer, shown))
    return bool(answer == shown)
