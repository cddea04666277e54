"""`sendonce import` of a long file: processes that help it, and that nobody sees and nobody leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from sendonce.pipeline.preparer import CHUNK_ROWS, INLINE_ROWS
from sendonce.runtime import crew
from tests.e2e.command_line import BIN, Folder, ended, environment, wait_for

HEADER = "id,customer,email,due,template,name,parcel\n"
ROWS = INLINE_ROWS + 5 * CHUNK_ROWS


@pytest.fixture
def folder(folder: Folder) -> Folder:
    folder.add_template()
    return folder


def row(n: int) -> str:
    return f"r-{n},c-{n},ann{n}@example.com,+2h,shipped,Ann,{n}\n"


def importing(folder: Folder) -> subprocess.Popen[str]:
    """`sendonce import -` as a terminal starts it: in a process group of its own."""
    return subprocess.Popen(
        [str(BIN / "sendonce"), "import", "-"],
        cwd=folder.path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env=environment(folder.path),
    )


def processes() -> dict[int, tuple[int, str]]:
    """Process -> (parent, state), but for those that have ended and that nobody has asked for yet."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    lines = (line.split() for line in listed.stdout.splitlines())
    return {int(pid): (int(parent), state) for pid, parent, state in lines if not state.startswith("Z")}


def children(pid: int) -> set[int]:
    return {child for child, (parent, _) in processes().items() if parent == pid}


def all_gone(pids: set[int]) -> None:
    wait_for(lambda: pids.isdisjoint(processes()))


def feed(process: subprocess.Popen[str], rows: int) -> None:
    """Give it rows and then let it wait for more; it has helpers from then on, where there are cores."""
    assert process.stdin is not None
    process.stdin.write(HEADER + "".join(map(row, range(rows))))
    process.stdin.flush()
    wait_for(lambda: len(children(process.pid)) == crew.idle_cores(), seconds=60)


def test_ctrl_c_ends_it_at_once_and_quietly_with_its_helpers(folder: Folder) -> None:
    with ended(importing(folder)) as process:
        feed(process, ROWS)
        helpers = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "stopped; what was reported as done is done" in err
    all_gone(helpers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_helpers_do_not_outlive_it(folder: Folder, number: signal.Signals) -> None:
    with ended(importing(folder)) as process:
        feed(process, ROWS)
        helpers = children(process.pid)
        process.send_signal(number)
        process.communicate(timeout=10)
    all_gone(helpers)


def test_helpers_that_are_killed_are_not_missed(folder: Folder) -> None:
    with ended(importing(folder)) as process:
        feed(process, ROWS)
        for helper in children(process.pid):
            os.kill(helper, signal.SIGKILL)
        out, err = process.communicate("".join(map(row, range(ROWS, ROWS + 400))), timeout=60)
    assert (process.returncode, err) == (0, "")
    assert f"{ROWS + 400:,}" in out, out
