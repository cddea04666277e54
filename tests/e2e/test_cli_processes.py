"""Processes and terminals: signals, bounds, pipes, colours. The real command, as the system starts it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from sendonce.testing.sandbox import SandboxClient
from tests.e2e.command_line import BIN, ESCAPE, Folder, ended, wait_for

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
GIVEN = ["--template", "shipped", "--set", "name=Ann", "--set", "parcel=1", "--customer", "c-1"]
BOTH = ["--email", "ann@example.com", "--phone", "+12025550101"]


@pytest.fixture
def folder(folder: Folder) -> Folder:
    folder.add_template()
    return folder


def test_up_tells_each_change_and_stops_when_asked(folder: Folder, sandbox: SandboxClient) -> None:
    folder.run("schedule", "r-1", "--due", "now", *GIVEN, *BOTH)
    with ended(folder.process("up", "--json")) as process:
        wait_for(lambda: len(sandbox.effects()) == 2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=15)
    assert process.returncode == 0
    assert "stopping: nothing new is claimed" in err
    looks = [json.loads(line) for line in out.splitlines()]
    assert looks
    assert all(set(look) == {"at", "channels"} for look in looks)
    assert not ESCAPE.search(out + err)
    assert set(folder.states("r-1").values()) == {"ACCEPTED"}


def test_a_scheduler_and_a_worker_for_one_channel_are_processes_of_their_own(
    folder: Folder, sandbox: SandboxClient
) -> None:
    folder.run("schedule", "r-1", "--due", "now", *GIVEN, *BOTH)
    with (
        ended(folder.process("scheduler")) as planner,
        ended(folder.process("worker", "--channel", "sms")) as sender,
    ):
        wait_for(lambda: len(sandbox.effects()) == 1)
        for process in (planner, sender):
            process.send_signal(signal.SIGINT)
        for process in (planner, sender):
            process.communicate(timeout=15)
            assert process.returncode == 0
    assert folder.states("r-1") == {"r-1:c-1:email": "QUEUED", "r-1:c-1:sms": "ACCEPTED"}


def test_a_stop_keeps_its_bound_and_settles_what_hangs(folder: Folder, sandbox: SandboxClient) -> None:
    sandbox.change(sms={"hung": {"next": 1}})
    folder.run("schedule", "r-1", "--due", "now", *GIVEN, "--phone", "+12025550101")
    with ended(folder.process("up", "--stop-after", "2s")) as process:
        wait_for(lambda: sandbox.report()["channels"]["sms"]["in_flight"] == 1)
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
        assert time.monotonic() - asked < 3.5
    assert process.returncode == 0
    assert folder.states("r-1") == {"r-1:c-1:sms": "UNCERTAIN"}


def test_a_second_ctrl_c_ends_at_once_and_says_what_that_means(
    folder: Folder, sandbox: SandboxClient
) -> None:
    sandbox.change(sms={"hung": {"next": 1}})
    folder.run("schedule", "r-1", "--due", "now", *GIVEN, "--phone", "+12025550101")
    with ended(folder.process("up")) as process:
        wait_for(lambda: sandbox.report()["channels"]["sms"]["in_flight"] == 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        wait_for(lambda: "stopping" in (process.stderr.readline() if process.stderr else ""))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=5)
    assert process.returncode == 130
    assert "nothing is lost" in err
    assert folder.states("r-1") == {"r-1:c-1:sms": "SENDING"}  # until its lease is over


def test_ctrl_c_in_an_import_keeps_what_was_done(folder: Folder) -> None:
    process = subprocess.Popen(
        [str(BIN / "sendonce"), "import", "-"],
        cwd=folder.path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ended(process):
        assert process.stdin is not None
        rows = [f"i-{number},c-1,in 1h,shipped,ann@example.com,Ann,1\n" for number in range(300)]
        process.stdin.write("id,customer,due,template,email,name,parcel\n" + "".join(rows))
        process.stdin.flush()
        wait_for(lambda: folder.json("db", "info")["deliveries"] >= 200)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1].startswith("stopped")
    assert folder.run("verify").out


def test_who_stops_reading_gets_no_traceback(folder: Folder) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [str(BIN / "sendonce"), "template", "list"],
        cwd=folder.path,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_sees_the_channels_move_in_colour(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    folder.run("schedule", "r-1", "--due", "now", *GIVEN, *BOTH)
    seen = on_a_terminal(folder, "drain")
    assert "queued" in seen
    assert "nothing that is due is left" in seen
    assert COLOUR.search(seen)


def test_a_terminal_that_wants_no_colour_gets_tables_without(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    seen = on_a_terminal(folder, "overview")
    assert "─" in seen
    assert not COLOUR.search(seen)
    assert not ESCAPE.search(folder.run("overview").out)


def on_a_terminal(folder: Folder, *arguments: str) -> str:
    """What a person sees of a command."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [str(BIN / "sendonce"), *arguments], cwd=folder.path, stdin=other, stdout=other, stderr=other
    )
    os.close(other)
    seen = b""
    until = time.monotonic() + 20
    with suppress(OSError):  # the other end is closed when the process has ended
        while time.monotonic() < until and (chunk := _read(main)) is not None:
            seen += chunk
    os.close(main)
    assert process.wait(5) == 0
    return seen.decode("utf-8", errors="replace")


def _read(descriptor: int) -> bytes | None:
    """What is there; b"" where nothing came for a moment; None at the end."""
    ready, _, _ = select.select([descriptor], [], [], 0.5)
    return (os.read(descriptor, 65_536) or None) if ready else b""
