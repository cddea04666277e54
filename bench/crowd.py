"""A crowd: many deliveries made by the database from one, in a minute instead of an hour of imports.

They are what a store is full of after a year: finished ones, and ones that are due some day. Each has its
reminder, its text, its entries and its place on the agenda, under every index. Their hashes are the ones of
the delivery that they were made from: `sendonce verify` would not have it, nothing else asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import apsw
import psycopg

from bench.subject import Subject

AT_ONCE: Final = 50_000
_NUMBER: Final = "{first} + n"
_NAME: Final = f"'crowd-' || ({_NUMBER})"
_LATER: Final = "+ n * 7919 % {spread} * {step}"  # in no order
_MADE: Final[Mapping[str, Mapping[str, str]]] = {
    "reminder": {
        "id": _NUMBER,
        "reminder": _NAME,
        "customer": _NAME,
        "due_at": f"due_at {_LATER}",
        "expires_at": f"expires_at {_LATER}",
    },
    "delivery": {
        "id": _NUMBER,
        "key": f"{_NAME} || ':' || {_NAME} || ':' || channel",
        "reminder_id": _NUMBER,
        "customer": _NAME,
        "address_tag": "((n * 7919) % 1000003) || '-' || n",
        "due_at": f"due_at {_LATER}",
        "next_at": f"next_at {_LATER}",
        "expires_at": f"expires_at {_LATER}",
    },
    "agenda": {"delivery_id": _NUMBER, "at": f"at {_LATER}", "until": f"until {_LATER}"},
    "content": {"delivery_id": _NUMBER},
    "ledger": {"delivery_id": _NUMBER, "receipt": f"CASE receipt WHEN '' THEN '' ELSE {_NAME} END"},
}
"""What differs from one to the next, by table; every other column is the same."""
_OF: Final = {"reminder": "id = (SELECT reminder_id FROM delivery WHERE id = {of})", "delivery": "id = {of}"}
_NUMBERED: Final = ("reminder", "delivery", "ledger")


class Database(Protocol):
    """A connection to the store, beside the program. To make a crowd nobody else may write meanwhile."""

    def run(self, text: str) -> None: ...
    def rows(self, text: str) -> list[tuple[Any, ...]]: ...
    def columns(self, table: str) -> list[str]: ...
    def done(self) -> None:
        """Leave behind what an import that took its time would have: statistics, a checkpoint."""
        ...

    def close(self) -> None: ...


class Sqlite:
    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path)
        self._connection.execute("PRAGMA synchronous = OFF")

    def run(self, text: str) -> None:
        self._connection.execute(text)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(text))

    def columns(self, table: str) -> list[str]:
        return [str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({table})")]

    def done(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._connection.close()


class Postgres:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(b"SET search_path = sendonce")
        self._connection.execute(b"SET synchronous_commit = off")

    def run(self, text: str) -> None:
        self._connection.execute(text.encode())

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(text.encode()).fetchall()

    def columns(self, table: str) -> list[str]:
        found = self._connection.execute(
            b"SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            b"AND NOT attisdropped ORDER BY attnum",
            (table,),
        )
        return [str(row[0]) for row in found]

    def done(self) -> None:
        for table in _NUMBERED:
            self.run(f"SELECT setval('{table}_id_seq', (SELECT max(id) FROM {table}))")
        self.run("VACUUM ANALYZE")
        self.run("CHECKPOINT")

    def close(self) -> None:
        self._connection.close()


def beside(subject: Subject) -> Database:
    """A connection to the store of `subject`."""
    if subject.server is None:
        return Sqlite(str(subject.folder / "bench.db"))
    return Postgres(subject.server.url())


def make_crowd(database: Database, of: int, count: int, *, first: int, spread_s: int = 1) -> None:
    """`count` more deliveries like the one with id `of`, with ids above `first`, each due within `spread_s`
    after it; before it where that is negative."""
    step = 1_000_000 if spread_s > 0 else -1_000_000
    words = {"first": str(first), "spread": str(abs(spread_s)), "step": str(step), "of": str(of)}
    for table, made in _MADE.items():
        columns = [name for name in database.columns(table) if (table, name) != ("ledger", "id")]
        values = ", ".join(made.get(name, name) for name in columns)
        rows = _OF.get(table, "delivery_id = {of}")
        insert = (
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM crowd, {table} WHERE {rows}"
        )
        for start in range(0, count, AT_ONCE):
            numbers = (
                f"WITH RECURSIVE crowd (n) AS (SELECT CAST({start + 1} AS BIGINT) "
                f"UNION ALL SELECT n + 1 FROM crowd WHERE n < {min(start + AT_ONCE, count)}) "
            )
            database.run(numbers + insert.format_map(words))
