"""A disk that remembers in which order it was written to, and can say what a power cut would have left.

SQLite asks its operating system for everything through a table of functions (its VFS). Here the functions
that open, write, shorten, flush and delete files do what they do, and note it in one list; in the same list
stands whatever the product has answered to anybody. So each place in the list is a moment at which the power
might have failed, and what was answered before it must be found on each disk that could have been left:

- what was flushed is there;
- of what was written since a file's last flush, any part may be there, down to a sector, and the rest not;
- a file's name is there when its folder was flushed, which SQLite does with the first flush of a journal.

Everything above the VFS is as shipped, the shared memory of several connections included. It needs no
compiler: the functions are exchanged through `ctypes`, for files of one folder of this process.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, assert_never

import apsw

SECTOR: Final = 512
"""The least that a disk writes whole."""

_POINTER: Final = ctypes.c_void_p
_INT: Final = ctypes.c_int
_LONG: Final = ctypes.c_int64
_OPEN: Final = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER)
_DELETE: Final = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT)
_WRITE: Final = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _LONG)
_TRUNCATE: Final = ctypes.CFUNCTYPE(_INT, _POINTER, _LONG)
_SYNC: Final = ctypes.CFUNCTYPE(_INT, _POINTER, _INT)

_JOURNALS: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class _Vfs(ctypes.Structure):
    """The head of `sqlite3_vfs`."""

    _fields_ = (
        ("version", _INT),
        ("file_size", _INT),
        ("path_max", _INT),
        ("next", _POINTER),
        ("name", ctypes.c_char_p),
        ("data", _POINTER),
        ("open", _POINTER),
        ("delete", _POINTER),
    )


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`, of version 3."""

    _fields_ = (
        ("version", _INT),
        ("close", _POINTER),
        ("read", _POINTER),
        ("write", _POINTER),
        ("truncate", _POINTER),
        ("sync", _POINTER),
        ("others", _POINTER * 13),
    )


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """`folder`: with the names of all files that are in it."""

    file: int
    folder: bool


@dataclass(frozen=True, slots=True)
class Name:
    """From now on the name is that of this file; 0: of none."""

    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The product answered somebody: nothing of it may be lost."""

    what: str
    value: Any


Step = Write | Truncate | Sync | Name | Answer


@dataclass(slots=True)
class Disk:
    """What happened to the files of a folder, and what was answered, in order."""

    folder: Path
    steps: list[Step] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def answered(self, what: str, value: Any) -> None:
        with self.lock:
            self.steps.append(Answer(what, value))


@contextmanager
def recorded(folder: Path) -> Iterator[Disk]:
    """Note whatever SQLite does in this process to the files of an empty folder."""
    disk = Disk(folder.resolve())
    recorder = _Recorder(disk, _default_vfs())
    _KEPT.append(recorder)
    recorder.begin()
    try:
        yield disk
    finally:
        recorder.end()
    if recorder.problems:
        raise AssertionError(recorder.problems[0])


_KEPT: Final[list[_Recorder]] = []
"""For good: a connection that was not closed still calls its functions."""


def _default_vfs() -> _Vfs:
    pointer = ctypes.c_void_p()
    with apsw.Connection("") as asked:  # a file without a name, so that there is one to ask about
        assert asked.file_control("main", apsw.SQLITE_FCNTL_VFS_POINTER, ctypes.addressof(pointer))
    return ctypes.cast(pointer, ctypes.POINTER(_Vfs)).contents


@dataclass(slots=True)
class _Opened:
    """names_folder: its first flush writes the folder too, as SQLite has it for a journal that may be new."""

    file: int
    methods: _Methods
    names_folder: bool


class _Recorder:
    """In the place of the functions, one lock around each with its note: what stands in the list happened in
    that order. A flush is noted and not done, since it is the list that says what it was good for."""

    def __init__(self, disk: Disk, vfs: _Vfs) -> None:
        self.problems: list[str] = []
        self._disk = disk
        self._vfs = vfs
        self._as_it_was = (vfs.open, vfs.delete)
        self._really_open, self._really_delete = _OPEN(vfs.open), _DELETE(vfs.delete)
        self._files: dict[str, int] = {}
        self._opened: dict[int, _Opened] = {}
        self._methods: dict[int, tuple[_Methods, _Methods]] = {}
        self._last = 0
        self._functions = {
            "open": _OPEN(self._guarded(self._open)),
            "delete": _DELETE(self._guarded(self._delete)),
            "write": _WRITE(self._guarded(self._write)),
            "truncate": _TRUNCATE(self._guarded(self._truncate)),
            "sync": _SYNC(self._guarded(self._sync)),
        }

    def begin(self) -> None:
        self._put(self._vfs, "open", "delete")

    def end(self) -> None:
        self._vfs.open, self._vfs.delete = self._as_it_was

    def _put(self, table: ctypes.Structure, *names: str) -> None:
        for name in names:
            setattr(table, name, ctypes.cast(self._functions[name], _POINTER))

    def _guarded(self, function: Callable[..., int]) -> Callable[..., int]:
        """C cannot be told of an exception."""

        def call(*arguments: Any) -> int:
            try:
                with self._disk.lock:
                    return function(*arguments)
            except Exception as error:
                self.problems.append(f"{function.__name__}: {error!r}")
                return apsw.SQLITE_IOERR

        return call

    def _name_of(self, path: int | None) -> str:
        """The name of a file in the folder; "" for any other."""
        if not path:
            return ""
        found = Path(os.fsdecode(ctypes.string_at(path)))
        return found.name if found.parent == self._disk.folder else ""

    def _open(self, vfs: int, path: int | None, file: int, flags: int, given: int | None) -> int:
        answer: int = self._really_open(vfs, path, file, flags, given)
        name = self._name_of(path)
        if answer != apsw.SQLITE_OK or not name:
            return answer
        if name not in self._files:
            self._last += 1
            self._files[name] = self._last
            self._disk.steps.append(Name(name, self._last))
        place = ctypes.c_void_p.from_address(file)
        assert place.value is not None
        really, ours = self._exchanged(place.value)
        new = bool(flags & apsw.SQLITE_OPEN_CREATE and flags & _JOURNALS)
        self._opened[file] = _Opened(self._files[name], really, new)
        place.value = ctypes.addressof(ours)
        return answer

    def _exchanged(self, address: int) -> tuple[_Methods, _Methods]:
        if address not in self._methods:
            really = _Methods.from_address(address)
            assert really.version == 3, really.version
            ours = _Methods.from_buffer_copy(really)
            self._put(ours, "write", "truncate", "sync")
            self._methods[address] = (really, ours)
        return self._methods[address]

    def _delete(self, vfs: int, path: int | None, folder_too: int) -> int:
        name = self._name_of(path)
        answer: int = self._really_delete(vfs, path, folder_too)
        if name in self._files and answer == apsw.SQLITE_OK:
            del self._files[name]
            self._disk.steps.append(Name(name, 0))
            if folder_too:
                self._disk.steps.append(Sync(0, folder=True))
        return answer

    def _write(self, file: int, content: int, size: int, offset: int) -> int:
        opened = self._opened[file]
        self._disk.steps.append(Write(opened.file, offset, ctypes.string_at(content, size)))
        return int(_WRITE(opened.methods.write)(file, content, size, offset))

    def _truncate(self, file: int, size: int) -> int:
        opened = self._opened[file]
        self._disk.steps.append(Truncate(opened.file, size))
        return int(_TRUNCATE(opened.methods.truncate)(file, size))

    def _sync(self, file: int, flags: int) -> int:
        opened = self._opened[file]
        self._disk.steps.append(Sync(opened.file, opened.names_folder))
        opened.names_folder = False
        return apsw.SQLITE_OK


@dataclass(frozen=True, slots=True)
class Left:
    """What a power cut left.

    at       how many steps had been done
    files    what is in the folder
    """

    at: int
    files: Mapping[str, bytes]

    def put(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def cuts(steps: Sequence[Step], places: Iterable[int], chance: Random) -> Iterator[Left]:
    """What a cut after so many steps would have left, for each of these places, in order."""
    platter = _Platter()
    done = 0
    for at in sorted(places):
        for step in steps[done:at]:
            platter.do(step)
        done = at
        yield Left(at, platter.left(chance))


def in_the_end(steps: Sequence[Step]) -> Mapping[str, bytes]:
    """The files as whoever reads them sees them after all steps: to hold against those that are there."""
    platter = _Platter()
    for step in steps:
        platter.do(step)
    return platter.files(lambda change: (change,), names=len(steps))


class _Platter:
    """What is flushed, and what is not yet."""

    def __init__(self) -> None:
        self._contents: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._pending: defaultdict[int, list[Write | Truncate]] = defaultdict(list)
        self._names: dict[str, int] = {}
        self._pending_names: list[Name] = []

    def do(self, step: Step) -> None:
        match step:
            case Write() | Truncate():
                self._pending[step.file].append(step)
            case Sync():
                for change in self._pending.pop(step.file, ()):
                    _change(self._contents[step.file], change)
                if step.folder:
                    self._names = self._named(len(self._pending_names))
                    self._pending_names.clear()
            case Name():
                self._pending_names.append(step)
            case Answer():
                pass
            case _:
                assert_never(step)

    def left(self, chance: Random) -> dict[str, bytes]:
        """Draws how much of what was not flushed arrived: nothing, all, or any part, whole or torn."""
        share = chance.choice((0.0, 0.0, 0.1, 0.5, 0.9, 1.0))
        parts = _torn if chance.random() < 0.5 else _whole
        return self.files(
            lambda change: (part for part in parts(change) if chance.random() < share),
            names=chance.randint(0, len(self._pending_names)),
        )

    def files(
        self, arrived: Callable[[Write | Truncate], Iterable[Write | Truncate]], *, names: int
    ) -> dict[str, bytes]:
        """With what arrived of each change that was not flushed, and the first of such names."""
        files = {}
        for name, file in self._named(names).items():
            content = bytearray(self._contents[file])
            for change in self._pending[file]:
                for part in arrived(change):
                    _change(content, part)
            files[name] = bytes(content)
        return files

    def _named(self, pending: int) -> dict[str, int]:
        named = self._names | {step.name: step.file for step in self._pending_names[:pending]}
        return {name: file for name, file in named.items() if file}


def _whole(change: Write | Truncate) -> Iterator[Write | Truncate]:
    yield change


def _torn(change: Write | Truncate) -> Iterator[Write | Truncate]:
    """Into what falls into one sector each."""
    if isinstance(change, Truncate):
        yield change
        return
    begin, end = change.offset, change.offset + len(change.content)
    while begin < end:
        until = min(end, (begin // SECTOR + 1) * SECTOR)
        yield Write(change.file, begin, change.content[begin - change.offset : until - change.offset])
        begin = until


def _change(content: bytearray, change: Write | Truncate) -> None:
    size = change.size if isinstance(change, Truncate) else change.offset + len(change.content)
    if isinstance(change, Truncate):
        del content[size:]
    content.extend(bytes(max(0, size - len(content))))
    if isinstance(change, Write):
        content[change.offset : size] = change.content
