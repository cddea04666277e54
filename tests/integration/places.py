"""Where worlds keep their stores: files of SQLite, or schemas of the run's PostgreSQL server."""

from __future__ import annotations

import weakref
from typing import Protocol

import apsw
import psycopg

from sendonce.ports.clock import Clock
from sendonce.ports.store import Store
from sendonce.store import postgres, sqlite
from sendonce.testing.clock import VirtualClock
from tests.postgres_schemas import OpenStores, Schemas, bare


class Place(Protocol):
    """One kind of database. A path names a store; without one, it is the holder's own."""

    def open(self, path: str, clock: VirtualClock, holder: object) -> Store:
        """Inline, with a clock that a test moves."""
        ...

    def another(self, path: str, clock: Clock) -> Store:
        """The same store as another process has it: with a writer of its own, in real time where the clock
        is a real one. Whoever opens it closes it."""
        ...

    def tamper(self, path: str, statement: str) -> int:
        """Change rows behind the program's back; how many."""
        ...


class SqlitePlace:
    def open(self, path: str, clock: VirtualClock, holder: object) -> Store:
        return sqlite.open_store(f"sqlite:///{path}" if path else "sqlite://:memory:", clock, inline=True)

    def another(self, path: str, clock: Clock) -> Store:
        return sqlite.open_store(f"sqlite:///{path}", clock)

    def tamper(self, path: str, statement: str) -> int:
        raw = apsw.Connection(path)
        raw.execute(statement)
        changed = raw.total_changes()
        raw.close()
        return changed


class PostgresPlace:
    """A store without a path goes back, to be used again, when nobody holds its holder any more."""

    def __init__(self, schemas: Schemas, stores: OpenStores) -> None:
        self._schemas = schemas
        self._stores = stores
        self._urls: dict[str, str] = {}
        self._opened: list[Store] = []
        self._ends: list[weakref.finalize[..., object]] = []

    def open(self, path: str, clock: VirtualClock, holder: object) -> Store:
        if not path:
            taken = self._stores.take(clock)
            self._ends.append(weakref.finalize(holder, self._stores.give_back, taken))
            return taken.store
        self._opened.append(postgres.open_store(self._url(path), clock, inline=True, server_clock=False))
        return self._opened[-1]

    def another(self, path: str, clock: Clock) -> Store:
        real = not isinstance(clock, VirtualClock)
        return postgres.open_store(self._url(path), clock, server_clock=real)

    def tamper(self, path: str, statement: str) -> int:
        url, schema = bare(self._url(path))
        with psycopg.connect(url) as raw:
            raw.execute(f"SET search_path = {schema}".encode())
            return raw.execute(statement.encode()).rowcount

    def close(self) -> None:
        for end in self._ends:
            end()
        for store in self._opened:
            store.close()
        for url in self._urls.values():
            self._schemas.give_back(url)

    def _url(self, path: str) -> str:
        if path not in self._urls:
            self._urls[path] = self._schemas.take()
        return self._urls[path]


class OneStorePlace:
    """Every world is on the one store behind a PostgreSQL URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[Store] = []

    def open(self, path: str, clock: VirtualClock, holder: object) -> Store:
        self._opened.append(postgres.open_store(self._url, clock, inline=True, server_clock=False))
        return self._opened[-1]

    def another(self, path: str, clock: Clock) -> Store:
        raise NotImplementedError

    def tamper(self, path: str, statement: str) -> int:
        raise NotImplementedError

    def close(self) -> None:
        for store in self._opened:
            store.close()
