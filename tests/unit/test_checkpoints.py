"""Checkpoints: appended and never anything else, handed to a program, read again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sendonce import checkpoints
from sendonce.checkpoints import exporter, lines_of
from sendonce.core.errors import InvalidInput


def test_nobody_wants_any() -> None:
    assert exporter(None, ()) is None


def test_lines_are_added_in_order(tmp_path: Path) -> None:
    file = tmp_path / "points"
    export = exporter(file, ())
    assert export is not None
    export("one")
    export("two")
    assert file.read_bytes() == b"one\ntwo\n"
    assert list(lines_of(file)) == ["one", "two"]


def test_the_last_line_is_not_added_twice(tmp_path: Path) -> None:
    file = tmp_path / "points"
    for line in ("one", "one", "two", "one", "one"):
        checkpoints.add_to(file, line)
    assert list(lines_of(file)) == ["one", "two", "one"]


def test_a_line_that_a_crash_tore_off_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "points"
    file.write_bytes(b"one\ntw")
    checkpoints.add_to(file, "three")
    assert list(lines_of(file)) == ["one", "tw", "three"]


def test_a_line_may_hold_what_only_some_call_a_line_end(tmp_path: Path) -> None:
    file = tmp_path / "points"
    file.write_bytes("a\u2028b\x85c\rd\ne\xff\n".encode("latin-1", errors="replace"))
    assert len(list(lines_of(file))) == 2


def test_a_program_gets_the_line_and_no_shell_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "got $(id) 'x'"
    program = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    export = exporter(None, (sys.executable, "-c", program, str(file)))
    assert export is not None
    export("line")
    assert file.read_text() == "line\n"


def test_a_program_that_fails_is_told_with_its_code() -> None:
    export = exporter(None, (sys.executable, "-c", "raise SystemExit(3)"))
    assert export is not None
    with pytest.raises(ChildProcessError, match="ended with code 3"):
        export("line")


def test_a_program_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "COMMAND_S", 0.05)
    hangs = (sys.executable, "-c", "import time; time.sleep(60)")
    with pytest.raises(TimeoutError, match="did not end"):
        checkpoints.hand_to(hangs, "line")


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        checkpoints.hand_to(("no-such-program-anywhere",), "line")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        checkpoints.add_to(tmp_path, "line")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        list(lines_of(tmp_path / "none"))


def test_nothing_but_the_end_of_the_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file needs it that the system keeps append-only."""
    asked: list[int] = []
    real = os.open

    def watched(path: Path, flags: int, mode: int) -> int:
        asked.append(flags)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    checkpoints.add_to(tmp_path / "points", "line")
    assert all(flags & os.O_APPEND and not flags & os.O_TRUNC for flags in asked)
