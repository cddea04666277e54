"""The embedded store: one SQLite file, shared by the processes of one machine.

WAL with `synchronous=FULL`: a commit that was answered survives a power cut, which the durable
intent to send stands on. Write transactions begin IMMEDIATE, since a read that later turns into a
write fails at once, whatever the busy timeout. Each process has one writing connection on a thread
of its own, and reading connections apart.

SQLite itself comes with `apsw`: up to 3.51.2 two connections that write and checkpoint at the same
moment could corrupt the file (sqlite.org/wal.html, "the WAL-reset bug"), so an older one is refused.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import apsw

from sendonce.core.errors import ConfigError, StoreError, StoreMismatch, StoreUnavailable
from sendonce.ports.clock import Clock
from sendonce.ports.store import Tx
from sendonce.runtime.handles import none_left
from sendonce.store import deliveries, events, reminders
from sendonce.store.listeners import Listener, Listeners
from sendonce.store.migrate import migrate, version_of
from sendonce.store.moved import MARKS, refuse_moved
from sendonce.store.origin import anchor, secret_of
from sendonce.store.session import Parameters, Tuple
from sendonce.store.statements import by_place, expand
from sendonce.store.transaction import SqlTx
from sendonce.store.writer import InlineWriter, ThreadWriter, TransactionLost, Writer

T = TypeVar("T")

SQLITE_MIN: Final = (3, 51, 3)
BUSY_S: Final = 10.0
_MADE: Final = "RETURNING id"
_MAKING: Final = re.compile(rf"INSERT INTO \w+ \([^)]*\)\s+VALUES \([^)]*\)\s+{_MADE}")
"""Makes one row and gives its id. For what RETURNING gives, SQLite opens a table anew, 20 us each time and as
much as the row takes; it says the id without that: INTEGER PRIMARY KEY is the rowid of the last insertion."""

TOKENS: Final = {
    "delivery": deliveries.COLUMNS,
    "reminder": reminders.COLUMNS,
    "event": events.COLUMNS,
    "look_of_state": deliveries.LOOK_OF_STATE,
    "last_entry": "(SELECT coalesce(max(id), 0) FROM ledger)",
    "ledger_given": "(SELECT coalesce(max(id), 0) FROM ledger)",
    "ledger_writers": "(SELECT '' AS who WHERE 1 = 0)",  # whoever reads sees all that was written before
    "facet_given": "(SELECT coalesce(max(number), 0) FROM facet)",
    "facet_writers": "(SELECT '' AS who WHERE 1 = 0)",
    "audit_given": "(SELECT coalesce(max(id), 0) FROM audit)",
    "audit_writers": "(SELECT '' AS who WHERE 1 = 0)",
    # A file is nobody's server: what was changed is tidied up by who writes next.
    "server_tables": (
        "(SELECT '' AS name, 0 AS alive, 0 AS dead, 0 AS changed, 0 AS hot, 0 AS bytes, 0 AS tidied_at, "
        "0 AS analysed_at WHERE 1 = 0)"
    ),
    "server_holders": "(SELECT 0 AS pid, '' AS program, 0 AS since WHERE 1 = 0)",
    "for_update": "",
    "skip_locked": "",
    "lock_each": "delivery",
    "skip_each": "delivery",
    "waiting_unlocked": "",
    "id": "INTEGER PRIMARY KEY",
    "number": "INTEGER PRIMARY KEY",
    "key": "INTEGER PRIMARY KEY",
    "clustered": " WITHOUT ROWID",
}


def open_store(url: str, clock: Clock, *, inline: bool = False, busy_s: float = BUSY_S) -> SqliteStore:
    """Open or create the store behind `sqlite:///relative.db`, `sqlite:////absolute.db` or
    `sqlite://:memory:` (inline only).

    `inline`: units run in the caller's thread. `busy_s`: how long to wait for another process's
    transaction. Raises `StoreMismatch` (corrupt, newer, unsafe library), `StoreUnavailable`
    (locked, not writable) and `ConfigError` (not such a URL).
    """
    check_library(apsw.sqlite_lib_version())
    path = path_of(url)
    if path == ":memory:" and not inline:
        raise ConfigError(f"{url}: a store in memory has one connection only; name a file")
    return SqliteStore(path, clock, inline=inline, busy_s=busy_s)


def path_of(url: str) -> str:
    """The file behind a store URL."""
    prefix = "sqlite://"
    if not url.startswith(prefix):
        raise ConfigError(f"store url {url!r} is not an SQLite one: write sqlite:///file.db")
    rest = url[len(prefix) :]
    if rest == ":memory:":
        return rest
    if not rest.startswith("/") or len(rest) < 2:
        raise ConfigError(
            f"store url {url!r} names no file: write sqlite:///file.db (relative) or sqlite:////path/file.db"
        )
    return rest[1:]


def check_library(version: str) -> None:
    """Refuse an SQLite that may corrupt a file shared by two writers."""
    if tuple(int(part) for part in version.split(".")[:3]) < SQLITE_MIN:
        needed = ".".join(map(str, SQLITE_MIN))
        raise StoreMismatch(
            f"SQLite {version} can corrupt a database that two connections write (WAL-reset bug): "
            f"{needed} or later is needed; install the apsw wheel, which carries its own"
        )


class SqliteStore:
    """`ports.store.Store` on one SQLite file."""

    one_writer: Final = True

    def __init__(self, path: str, clock: Clock, *, inline: bool, busy_s: float) -> None:
        self._path = path
        self._clock = clock
        self._busy_s = busy_s
        self._readers = threading.local()
        self._all_readers: list[apsw.Connection] = []
        self._readers_lock = threading.Lock()
        self._offset = 0
        self._listeners = Listeners()
        self._inline: _Connection | None = None
        self._writer: Writer
        if inline:
            self._inline = self._connect_writer()
            self._writer = InlineWriter(self._inline)
        else:
            self._writer = ThreadWriter(self._connect_writer)
        self.secret = self.write(secret_of).result()
        self._offset = self.write(lambda tx: anchor(tx, clock)).result()

    def write(self, unit: Callable[[Tx], T], *, beside: bool = False) -> Future[T]:
        return self._writer.submit(unit)

    def read(self, query: Callable[[Tx], T]) -> T:
        if self._inline is not None:
            return self._inline.read(query)
        connection: _Connection | None = getattr(self._readers, "connection", None)
        if connection is None:
            connection = self._connect_reader()
            self._readers.connection = connection
        return connection.read(query)

    def listen(self, hear: Callable[[str], None]) -> Listener:
        return self._listeners.add(hear)

    def steady(self) -> int:
        return self._clock.boot() + self._offset

    def close(self) -> None:
        self._writer.close()
        self._listeners.close()
        with self._readers_lock:
            for reader in self._all_readers:
                reader.close()
            self._all_readers.clear()
        if self._inline is not None:
            self._inline.close()

    def _connect_writer(self) -> _Connection:
        with translated(self._path):
            _create_private(self._path)
            raw = apsw.Connection(self._path)
            raw.set_busy_handler(_waiter(self._busy_s))
            if version_of(raw):  # refuses what is not ours, before the journal mode would change the file
                refuse_moved(marks_of(raw), self._path)
            _to_wal(raw, _waiter(self._busy_s))
            for pragma in (
                "synchronous = FULL",
                "fullfsync = ON",  # macOS: fsync alone does not reach the disk there
                "temp_store = MEMORY",
                "secure_delete = ON",  # what is deleted is overwritten: see docs/privacy.md
                "cache_size = -16384",
            ):
                raw.execute(f"PRAGMA {pragma}").fetchall()
            migrate(raw, TOKENS)
            return _Connection(raw, self._path, self._clock, lambda: self._offset, self._listeners)

    def _connect_reader(self) -> _Connection:
        with translated(self._path):
            raw = apsw.Connection(self._path)
            raw.set_busy_handler(_waiter(self._busy_s))
            raw.execute("PRAGMA query_only = ON").fetchall()
        with self._readers_lock:
            self._all_readers.append(raw)
        return _Connection(raw, self._path, self._clock, lambda: self._offset, self._listeners)


class _Connection:
    """A connection as a `Session`, and as the writer's `Transactions`."""

    def __init__(
        self,
        raw: apsw.Connection,
        path: str,
        clock: Clock,
        offset: Callable[[], int],
        listeners: Listeners,
    ) -> None:
        self._raw = raw
        self._listeners = listeners
        self._announced: dict[str, None] = {}
        self._path = path
        self._clock = clock
        self._offset = offset
        self._execute = raw.execute
        self._sql = expand(TOKENS)
        self._bound = {name: by_place(text, "?") for name, text in self._sql.items()}
        self._making = {
            name: by_place(text.removesuffix(_MADE), "?")
            for name, text in self._sql.items()
            if _MAKING.fullmatch(text)
        }

    # Session

    def rows(self, name: str, parameters: Parameters) -> list[Tuple]:
        text, placed = self._bound[name]
        return list(self._execute(text, placed(parameters)))

    def run(self, name: str, parameters: Parameters) -> int:
        text, placed = self._bound[name]
        self._execute(text, placed(parameters))
        return self._raw.changes()

    def rows_each(self, name: str, parameters: Sequence[Parameters]) -> list[list[Tuple]]:
        execute = self._execute
        if name in self._making:
            text, placed = self._making[name]
            made: list[list[Tuple]] = []
            for one in parameters:
                execute(text, placed(one))
                made.append([(self._raw.last_insert_rowid(),)])
            return made
        text, placed = self._bound[name]
        return [list(execute(text, placed(one))) for one in parameters]

    def run_each(self, name: str, parameters: Sequence[Parameters]) -> list[int]:
        text, placed = self._bound[name]
        execute, changes = self._execute, self._raw.changes
        done: list[int] = []
        for one in parameters:
            execute(text, placed(one))
            done.append(changes())
        return done

    def many(self, name: str, parameters: Iterable[Parameters]) -> None:
        text, placed = self._bound[name]
        self._raw.executemany(text, map(placed, parameters))

    def mappings(self, name: str, parameters: Parameters) -> list[Mapping[str, int | str]]:
        text, placed = self._bound[name]
        cursor = self._execute(text, placed(parameters))
        names: list[str] | None = None
        found: list[Mapping[str, int | str]] = []
        for row in cursor:
            if names is None:
                names = [column[0] for column in cursor.get_description()]
            found.append(dict(zip(names, row, strict=True)))
        return found

    # Transactions

    def begin(self) -> None:
        self._announced = {}
        with translated(self._path):
            self._execute("BEGIN IMMEDIATE")

    def run_unit(self, unit: Callable[[Tx], T]) -> T:
        with translated(self._path):
            self._execute("SAVEPOINT unit")
            tx = self._tx()
            try:
                answer = unit(tx)
            except BaseException as error:
                if not self._raw.in_transaction:
                    lost = _ours(error, self._path) if isinstance(error, apsw.Error) else error
                    raise TransactionLost from lost
                self._execute("ROLLBACK TO unit")
                self._execute("RELEASE unit")
                raise
            self._execute("RELEASE unit")
            self._announced |= tx.announced
            return answer

    def commit(self) -> None:
        with translated(self._path):
            self._execute("COMMIT")

    def announce(self) -> None:
        self._listeners.hear(self._announced)

    def rollback(self) -> None:
        if self._raw.in_transaction:
            self._execute("ROLLBACK")

    def read(self, query: Callable[[Tx], T]) -> T:
        with translated(self._path):
            if self._raw.in_transaction:
                return query(self._tx())
            self._execute("BEGIN")
            try:
                return query(self._tx())
            finally:
                self._execute("ROLLBACK")

    def close(self) -> None:
        self._raw.close()

    def _tx(self) -> SqlTx:
        return SqlTx(self, now=self._clock.now(), steady=self._clock.boot() + self._offset())


def marks_of(raw: apsw.Connection) -> dict[str, str]:
    """The marks of `store.moved` in a file that has a store."""
    rows = raw.execute("SELECT name, value FROM meta WHERE name IN (?, ?, ?)", MARKS)
    return {str(name): str(value) for name, value in rows}


def _to_wal(raw: apsw.Connection, wait: Callable[[int], bool]) -> None:
    """Two processes may create the file at once, and SQLite does not ask the busy handler here."""
    times = 0
    while True:
        try:
            raw.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if not wait(times):
                raise
            times += 1


def _create_private(path: str) -> None:
    """A new file holds customers' addresses and the store's secret: it is its owner's alone.

    SQLite gives the files beside it (-wal, -shm) the same permissions. A file that exists keeps its own.
    """
    if path != ":memory:":
        with suppress(OSError):  # SQLite says better what is wrong with the path
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _waiter(busy_s: float) -> Callable[[int], bool]:
    """A busy handler with short, uneven waits: another process's transaction is over in milliseconds."""
    started = 0.0

    def wait(times: int) -> bool:
        nonlocal started
        if times == 0:
            started = time.monotonic()
        elif time.monotonic() - started > busy_s:
            return False
        time.sleep(min(0.0002 * (times + 1), 0.002) * (0.5 + random.random()))  # noqa: S311 (not a secret)
        return True

    return wait


class translated:  # noqa: N801 (reads as a clause)
    """Turn SQLite's errors into ours, with the fix."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, apsw.Error):
            raise _ours(error, self._path) from error
        if isinstance(error, UnicodeDecodeError):  # SQLite hands out any bytes as a text
            raise StoreMismatch(
                f"{self._path} holds a text that is not UTF-8 ({error.reason}): restore the last backup; "
                "the file was not changed"
            ) from error


def _ours(error: apsw.Error, path: str) -> StoreError:
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(
                f"{path} is locked by another process for longer than allowed: end the long transaction "
                "(a shell, a backup by copying) and try again",
                code="store_locked",
            )
        case apsw.ConstraintError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_CONSTRAINT_TRIGGER:
            return StoreMismatch(
                f"{path}: {error}", code="store_moved"
            )  # see `moving`: no other has triggers
        case apsw.FullError():
            return StoreUnavailable(
                f"the disk of {path} is full: free space; nothing was half written", code="store_full"
            )
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreMismatch(
                f"{path} is not a sound SQLite database ({error}): restore the last backup; "
                "the file was not changed"
            )
        case apsw.CantOpenError():
            folder = Path(path).absolute().parent
            if none_left():
                return StoreUnavailable(
                    f"{path} cannot be opened: this process may open no more files; raise its limit "
                    "(ulimit -n, LimitNOFILE=)",
                    code="store_unreachable",
                )
            why = "its folder does not exist" if not folder.is_dir() else "check the path and its permissions"
            return StoreUnavailable(f"{path} cannot be opened: {why}", code="store_unreachable")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(
                f"{path} is not writable for user {os.getuid()}: check its permissions",
                code="store_read_only",
            )
        case apsw.IOError():
            return StoreUnavailable(
                f"{path}: input/output error ({error}): check the disk", code="store_disk_error"
            )
        case _:
            return StoreError(f"{path}: {error}")
