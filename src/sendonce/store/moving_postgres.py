"""A schema of PostgreSQL as one side of a move: see `moving`.

Each table of a closed store has a trigger that refuses whatever writes, an application's `schedule()` as
well; to make it waits for every transaction that has written there. What the move itself writes says so in
its transaction. All of this takes the owner of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Final

import psycopg

from sendonce.store.moving import Row
from sendonce.store.postgres import Connection, Target, durable
from sendonce.store.postgres_errors import CLOSED, translated
from sendonce.store.postgres_schema import ensure_schema, version_of
from sendonce.store.tables import META, OF_CONNECTIONS, Table, tables

LOCK_S: Final = 30.0
_LET_THROUGH: Final = "sendonce.moving"
_FUNCTION: Final = "closed"
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_CORRECTION: Final = "(SELECT value::bigint FROM meta WHERE name = 'steady_correction')"


class PostgresSide:
    """`moving.Side` on a schema."""

    numbers_go_on_from_rows = False

    def __init__(self, url: str) -> None:
        self._target = Target(url)
        self.where = f"{self._target.where}, schema {self._target.schema}"
        self._connected: Connection | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        with translated(self.where):
            row = self._connection.execute(
                b"SELECT (SELECT system_identifier FROM pg_control_system()), oid FROM pg_database "
                b"WHERE datname = current_database()"
            ).fetchone()
        return "schema", *(row or ()), self._target.schema

    def version(self) -> int:
        with translated(self.where):
            return version_of(self._connection, self._target.schema, self.where)

    def columns(self) -> Mapping[str, tuple[str, ...]]:
        rows = self.run(
            "SELECT c.relname::text, a.attname::text FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE n.nspname = ? AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1, a.attnum",
            self._target.schema,
        )
        found: dict[str, tuple[str, ...]] = {}
        for table, column in rows:
            if table != OF_CONNECTIONS:
                found[table] = (*found.get(table, ()), column)
        return found

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._transaction():
            names = ", ".join((*(table.name for table in tables()), OF_CONNECTIONS))
            self._connection.execute(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE".encode())
            yield

    def run(self, text: str, *parameters: int | str) -> list[Row]:
        with translated(self.where):
            if self._connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
                with self._transaction():
                    return self._run(text, parameters)
            return self._run(text, parameters)

    def now(self) -> int:
        return int(self.run(f"SELECT {_NOW}")[0][0])

    def steady(self) -> int:
        return int(self.run(f"SELECT {_NOW} + coalesce({_CORRECTION}, 0)")[0][0])

    def rows(self, table: Table) -> Iterator[Row]:
        with self._transaction():
            yield from self._connection.cursor().stream(table.in_order.encode())

    def given(self, table: Table) -> int:
        sequence = self._sequence(table)
        if not sequence:
            return 0
        text = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}"
        return int(self.run(text)[0][0])

    def close_tables(self, words: str) -> None:
        quoted = words.replace("'", "''")
        self.open_tables()
        self._run(
            f"CREATE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $closed$ BEGIN "
            f"IF current_setting('{_LET_THROUGH}', true) IS DISTINCT FROM 'on' THEN "
            f"RAISE EXCEPTION USING ERRCODE = '{CLOSED}', MESSAGE = '{quoted}'; END IF; "
            "RETURN NULL; END $closed$"
        )
        for name in (*(table.name for table in tables()), OF_CONNECTIONS):
            self._run(
                f"CREATE TRIGGER {_FUNCTION} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {name} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()"
            )

    def open_tables(self) -> None:
        self._run(f"DROP FUNCTION IF EXISTS {_FUNCTION}() CASCADE")

    def make(self) -> None:
        with translated(self.where):
            ensure_schema(self._connection, self._target.schema, self.where)

    def clear(self) -> None:
        names = [table.name for table in tables() if table.name != META]
        self._run(f"TRUNCATE {', '.join((*names, OF_CONNECTIONS))} RESTART IDENTITY")
        self._run("DELETE FROM meta WHERE name <> 'schema_version'")

    def fill(self, table: Table, rows: list[Row]) -> None:
        text = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN"
        with self._transaction(), self._connection.cursor().copy(text.encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def number_from(self, table: Table, given: int) -> None:
        """And let the planner know the table."""
        sequence = self._sequence(table)
        with self._transaction():
            if sequence:
                self._run(
                    f"SELECT setval('{sequence}', greatest(1, top), top > 0) FROM "
                    f"(SELECT greatest(coalesce(max(id), 0), {given}) AS top FROM {table.name}) AS numbers"
                )
            self._run(f"ANALYZE {table.name}")

    def go_on_at(self, steady: int) -> None:
        """The correction may begin below 0; from there on it only grows."""
        self._run(
            f"INSERT INTO meta (name, value) VALUES ('steady_seen', '{steady}'), "
            f"('steady_correction', ({steady} - {_NOW})::text)"
        )

    def flush(self) -> None:
        """Each commit was durable."""

    def move_in(self) -> None:
        """It has its name."""

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        settings = self._target.settings(lock_s=LOCK_S, statement_s=0, idle_s=0)
        with translated(self.where):
            self._connection.execute(
                f"BEGIN; SELECT {settings}, {durable()}, set_config('{_LET_THROUGH}', 'on', true)".encode(),
                prepare=False,
            )
            try:
                yield
                self._connection.execute(b"COMMIT", prepare=False)
            except BaseException:
                # Also what was streamed and not read to its end.
                self.close()
                raise

    def _run(self, text: str, parameters: tuple[int | str, ...] = ()) -> list[Row]:
        cursor = self._connection.execute(_numbered(text).encode(), parameters)
        return cursor.fetchall() if cursor.description is not None else []

    def _sequence(self, table: Table) -> str:
        if table.columns[0] != "id":
            return ""
        name = self.run(
            "SELECT coalesce(pg_get_serial_sequence(?, 'id'), '')", self._target.table(table.name)
        )
        return str(name[0][0])

    @property
    def _connection(self) -> Connection:
        if self._connected is None:
            self._connected = self._target.connect(prepare=False)
        return self._connected


def _numbered(text: str) -> str:
    """`?` as PostgreSQL has it: $1, $2, ..."""
    numbers = count(1)
    return "".join(f"${next(numbers)}" if each == "?" else each for each in text)
