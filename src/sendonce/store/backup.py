"""An online backup: a sound copy of the embedded store in one file, taken while everything runs.

The copy is of one instant: a read transaction holds it while the pages are copied, so writers go on and the
copy ends. It is written beside its name and gets the name only when SQLite has found it sound, so what bears
the name is whole. It is as private as the store: the owner's alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from sendonce.core.errors import InvalidInput, StoreMismatch
from sendonce.store.sqlite import translated

STEP_PAGES: Final = 1_000
"""4 MB at a time, so that progress is told."""
PARTIAL: Final = ".partial"


def back_up(
    source: str,
    target: Path,
    *,
    finish: Callable[[Path], None] = lambda copy: None,
    progress: Callable[[int, int], None] = lambda pages, of: None,
) -> int:
    """Copy the store in file `source` to `target`; how many bytes the copy has.

    finish    changes the copy before it gets its name
    progress  hears how many pages are copied, of how many

    Raises `InvalidInput` where `target` exists, `StoreUnavailable` where it cannot be written or the disk is
    full, `StoreMismatch` where either file is not sound. Then there is no file of that name.
    """
    _refuse_existing(target)
    partial = target.with_name(f"{target.name}{PARTIAL}")
    _remove(partial)  # of a backup that was killed
    try:
        with translated(str(partial)):
            os.close(_create(partial))
            _copy(source, partial, progress)
        finish(partial)
        with translated(str(partial)):
            size = _check(partial)
        _refuse_existing(target)
        partial.rename(target)
    except BaseException:
        _remove(partial)
        raise
    return size


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise InvalidInput(f"{target} is there already and stays as it is: name another file", field="file")


def _create(partial: Path) -> int:
    try:
        return os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError as error:
        raise InvalidInput(
            f"{partial.parent} cannot be written to: {error.strerror}; name another folder", field="file"
        ) from None


def _copy(source: str, partial: Path, progress: Callable[[int, int], None]) -> None:
    with translated(source):
        reader = apsw.Connection(source, flags=apsw.SQLITE_OPEN_READONLY)
    writer = apsw.Connection(str(partial))
    try:
        with translated(source):
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchall()  # the instant of the copy
        with writer.backup("main", reader, "main") as copying:
            while not copying.done:
                copying.step(STEP_PAGES)
                progress(copying.page_count - copying.remaining, copying.page_count)
    finally:
        reader.close()
        writer.close()


def _check(partial: Path) -> int:
    """Whether SQLite finds the copy sound; its size. Its log is empty afterwards, and gone."""
    copy = apsw.Connection(str(partial))
    try:
        said = str(copy.execute("PRAGMA quick_check(1)").fetchall()[0][0])
        if said != "ok":
            raise StoreMismatch(
                f"the copy is not sound ({said}), so the store is not either: stop its processes, keep its "
                "file, and restore the backup before"
            )
        copy.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        copy.close()
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    return partial.stat().st_size


def _remove(partial: Path) -> None:
    for name in (partial, Path(f"{partial}-wal"), Path(f"{partial}-shm"), Path(f"{partial}-journal")):
        with suppress(FileNotFoundError):
            name.unlink()
