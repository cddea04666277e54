"""Stores on PostgreSQL for tests: empty, one's own, made once and cleared after use.

To make a schema takes a tenth of a second and to open a connection with cold caches some hundredths; to
delete what a test left in small tables, one or two thousandths. So both are kept.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import psycopg

from sendonce.store.postgres import PostgresStore, open_store
from sendonce.testing.clock import VirtualClock
from sendonce.testing.postgres_server import PostgresServer

_CLEAR: Final = """
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' LOOP
        EXECUTE format('DELETE FROM {schema}.%I WHERE ', name)
            || CASE name WHEN 'meta' THEN 'name <> ALL (string_to_array(''{keep}'', '',''))'
                         WHEN 'writer' THEN '{writers}' ELSE 'true' END;
    END LOOP;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = '{schema}' LOOP
        PERFORM setval(format('{schema}.%I', name)::regclass, 1, false);
    END LOOP;
END $$
"""
_BORN_WITH: Final = ("schema_version", "secret", "epoch", "boot_id", "steady_offset", "lineage")


class Schemas:
    """Each store is a schema of one database of the server."""

    def __init__(self, server: PostgresServer) -> None:
        server.create_database("tests")
        self._url = server.url("tests")
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        self._administrator = psycopg.connect(self._url, autocommit=True)

    def take(self) -> str:
        """The URL of an empty store."""
        schema = self._free.pop() if self._free else f"test_{next(self._numbers)}"
        return f"{self._url}&schema={schema}"

    def give_back(self, url: str) -> None:
        """After every store on it was closed."""
        self.clear(url, keep=("schema_version",), writers="true")
        self._free.append(bare(url)[1])

    def clear(self, url: str, *, keep: tuple[str, ...] = _BORN_WITH, writers: str = "false") -> None:
        """Empty it; without more, a store that is open on it does not notice."""
        text = _CLEAR.replace("{schema}", bare(url)[1]).replace("{writers}", writers)
        self._administrator.execute(text.replace("{keep}", ",".join(keep)).encode())

    def close(self) -> None:
        self._administrator.close()


class Taken(NamedTuple):
    url: str
    store: PostgresStore
    clock: BorrowedClock


class OpenStores:
    """Inline stores that stay open from one world to the next, each with the clock of its world."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._free: list[Taken] = []

    def take(self, clock: VirtualClock) -> Taken:
        if self._free:
            taken = self._free.pop()
            self._schemas.clear(taken.url)
            taken.clock.clock = clock
            return taken
        url, borrowed = self._schemas.take(), BorrowedClock(clock)
        return Taken(url, open_store(url, borrowed, inline=True, server_clock=False), borrowed)

    def give_back(self, taken: Taken) -> None:
        """Cleared when it is next taken. One that its world closed is not used again."""
        if not taken.store.closed:
            self._free.append(taken)

    def close(self) -> None:
        for taken in self._free:
            taken.store.close()


class BorrowedClock:
    """The clock of whichever world has the store. All of them begin at one instant of one machine start."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def now(self) -> int:
        return self.clock.now()

    def boot(self) -> int:
        return self.clock.boot()

    def boot_id(self) -> str:
        return self.clock.boot_id()


def bare(url: str) -> tuple[str, str]:
    """The URL that libpq takes, and the schema."""
    dsn, _, schema = url.partition("&schema=")
    return dsn, schema
