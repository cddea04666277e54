"""Where checkpoints go: a file that is only ever added to, a program of the user's choice, or both.

A checkpoint is one line. It is worth what its place is: on a machine, in a bucket with a retention lock, or
in a mailbox that whoever can write the store cannot write.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from sendonce.core.errors import InvalidInput

COMMAND_S: Final = 60.0
"""How long the program may take."""


def exporter(file: Path | None, command: Sequence[str]) -> Callable[[str], None] | None:
    """What hands a checkpoint over; None where nobody wants any. It raises `OSError` where it could not."""
    if file is None and not command:
        return None

    def export(line: str) -> None:
        if file is not None:
            add_to(file, line)
        if command:
            hand_to(command, line)

    return export


def add_to(file: Path, line: str) -> None:
    """Append, and wait until it is on the disk. What a crash tore off stands in a line of its own."""
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(handle).st_size
        written = f"{line}\n".encode()
        if os.pread(handle, len(written), max(0, size - len(written))) == written:
            return  # by a process before this one
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        text = b"\n" * torn + written
        if os.write(handle, text) != len(text):
            raise OSError("the checkpoint was written in part: the disk is full")
        os.fsync(handle)
    finally:
        os.close(handle)


def hand_to(command: Sequence[str], line: str) -> None:
    """Run a program, without a shell, with the line on its standard input."""
    try:
        done = subprocess.run(  # noqa: S603 (it is what the configuration names)
            list(command),
            input=f"{line}\n".encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{command[0]} did not end within {COMMAND_S:g} s") from None
    if done.returncode:
        raise ChildProcessError(f"{command[0]} ended with code {done.returncode}")


def lines_of(file: Path) -> Iterator[str]:
    """The checkpoints of a file, in order. Raises `InvalidInput` where it cannot be read."""
    try:
        with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                yield line.removesuffix("\n")
    except OSError as error:
        raise InvalidInput(
            f"the checkpoints {file} cannot be read ({error.strerror}): name the file with --checkpoints"
        ) from None
