"""A file as one side of a move: see `moving`.

As the target it is written beside its name, and gets the name when it is open: nobody comes upon a part of
it. Each table of a closed file has triggers that refuse; the row of `meta` that tells of the move is let
through.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from sendonce.core.errors import InvalidInput
from sendonce.ports.clock import Clock
from sendonce.store.migrate import migrate, version_of
from sendonce.store.moved import MOVED
from sendonce.store.moving import Row
from sendonce.store.origin import offset_of
from sendonce.store.sqlite import TOKENS, translated
from sendonce.store.tables import META, Table, tables

UNFINISHED: Final = ".moving"
BUSY_MS: Final = 10_000


class SqliteSide:
    """`moving.Side` on a file. `target`: it is not there before all of it is."""

    numbers_go_on_from_rows = True

    def __init__(self, path: str, clock: Clock, *, target: bool) -> None:
        self.where = f"sqlite:///{path}"
        self._path = Path(path)
        self._unfinished = Path(f"{path}{UNFINISHED}") if target else None
        self._clock = clock
        self._connection: apsw.Connection | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        with suppress(OSError):
            stat = self._path.stat()
            return "file", stat.st_dev, stat.st_ino
        return "file", str(self._path.resolve())

    def version(self) -> int:
        if self._unfinished is not None and not (self._unfinished.exists() or self._path.exists()):
            return 0
        with translated(str(self._path)):
            return version_of(self._raw)

    def columns(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for table, column in self.run(
            "SELECT m.name, c.name FROM sqlite_master m CROSS JOIN pragma_table_info(m.name) c "
            "WHERE m.type = 'table' AND substr(m.name, 1, 7) <> 'sqlite_' ORDER BY m.name, c.cid"
        ):
            found[table] = (*found.get(table, ()), column)
        return found

    @contextmanager
    def alone(self) -> Iterator[None]:
        with translated(str(self._path)):
            self._raw.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._raw.execute("COMMIT")
            except BaseException:
                if self._raw.in_transaction:
                    self._raw.execute("ROLLBACK")
                raise

    def run(self, text: str, *parameters: int | str) -> list[Row]:
        with translated(str(self._path)):
            return list(self._raw.execute(text, parameters))

    def now(self) -> int:
        return self._clock.now()

    def steady(self) -> int:
        meta = {str(name): str(text) for name, text in self.run("SELECT name, value FROM meta")}
        return self._clock.boot() + offset_of(meta.get, self._clock)

    def rows(self, table: Table) -> Iterator[Row]:
        with translated(str(self._path)):
            yield from self._raw.execute(table.in_order)

    def given(self, table: Table) -> int:
        return 0  # none that its rows do not show

    def close_tables(self, words: str) -> None:
        if self._unfinished is not None:
            return  # it is closed by the name that it does not have
        self.open_tables()
        quoted = words.replace("'", "''")
        for table in tables():
            for change, row in (("INSERT", "new"), ("UPDATE", "old"), ("DELETE", "old")):
                unless = f"WHEN {row}.name <> '{MOVED}'" if table.name == META else ""
                self.run(
                    f"CREATE TRIGGER closed_{table.name}_{change} BEFORE {change} ON {table.name} "
                    f"{unless} BEGIN SELECT RAISE(ABORT, '{quoted}'); END"
                )

    def open_tables(self) -> None:
        names = self.run("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in names:
            self.run(f'DROP TRIGGER "{name}"')

    def make(self) -> None:
        assert self._unfinished is not None, "only a target is made"
        if self._path.exists():
            raise InvalidInput(
                f"{self._path} is there already and stays as it is: name another file", field="target"
            )
        if self._connection is None and not self._unfinished.exists():
            try:
                os.close(os.open(self._unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except OSError as error:
                raise InvalidInput(
                    f"{self._path.parent} cannot be written to: {error.strerror}; name another folder",
                    field="target",
                ) from None
        with translated(str(self._unfinished)):
            version_of(self._raw)  # refuses what is not ours
            self._raw.execute("PRAGMA journal_mode = WAL").fetchall()
            self._raw.execute("PRAGMA synchronous = NORMAL").fetchall()  # until `flush`
            migrate(self._raw, TOKENS)

    def clear(self) -> None:
        for table in tables():
            keep = " WHERE name <> 'schema_version'" if table.name == META else ""
            self.run(f"DELETE FROM {table.name}{keep}")

    def fill(self, table: Table, rows: list[Row]) -> None:
        columns, places = ", ".join(table.columns), ", ".join("?" * len(table.columns))
        with self.alone():
            self._raw.executemany(f"INSERT INTO {table.name} ({columns}) VALUES ({places})", rows)

    def number_from(self, table: Table, given: int) -> None:
        """It goes on from its rows."""

    def go_on_at(self, steady: int) -> None:
        for name, text in (
            ("boot_id", self._clock.boot_id()),
            ("steady_offset", str(steady - self._clock.boot())),
            ("steady_seen", str(steady)),
        ):
            self.run("INSERT INTO meta (name, value) VALUES (?, ?)", name, text)

    def flush(self) -> None:
        self.run("PRAGMA wal_checkpoint(TRUNCATE)")
        name = Path(self._raw.filename)
        for each, flags in ((name, os.O_RDWR), (name.parent, os.O_RDONLY)):
            opened = os.open(each, flags)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    def move_in(self) -> None:
        if self._unfinished is None or not self._unfinished.exists():
            return
        self.close()
        if self._path.exists():
            raise InvalidInput(f"{self._path} is there already: name another file", field="target")
        self._unfinished.rename(self._path)
        opened = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _raw(self) -> apsw.Connection:
        if self._connection is None:
            unfinished = self._unfinished is not None and self._unfinished.exists()
            path = self._unfinished if unfinished else self._path
            with translated(str(self._path)):
                self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
                self._connection.set_busy_timeout(BUSY_MS)
                for pragma in ("synchronous = FULL", "fullfsync = ON", "temp_store = FILE"):
                    self._connection.execute(f"PRAGMA {pragma}").fetchall()
        return self._connection
