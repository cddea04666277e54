"""A store inside an application's database, for the tests of the outbox.

The store is the one of the fixture `postgres_url`; the application's own table `orders` lies beside it, in a
schema of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from sendonce.core.delivery import Channel
from sendonce.pipeline.collector import Collected, Collector
from sendonce.ports.store import Delivery, Row, StoredTemplate
from sendonce.runtime.clock import SystemClock
from sendonce.store.postgres import PostgresStore, open_store
from sendonce.template_book import TemplateBook, from_store
from tests.postgres_schemas import bare
from tests.way_in import policy

FAR: Final = "2100-02-01T09:00+01:00"


def reminder(id_: str = "r-1", **fields: Any) -> dict[str, Any]:
    """A valid one, with other fields where given; None leaves a field out."""
    given = {
        "reminder": id_,
        "customer": "c-1",
        "due": FAR,
        "template": "pay",
        "email": "ann@example.com",
        "data": {"name": "Ann"},
        **fields,
    }
    return {name: value for name, value in given.items() if value is not None}


class OutboxWorld:
    """See the module text. `dsn` and `schema` are what an application knows of the store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.dsn, self.schema = bare(url)
        self.store = self.another_store()
        self.policy = policy()
        self.add_template("pay")
        with self.connect() as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS shop")
            connection.execute("CREATE TABLE IF NOT EXISTS shop.orders (id text PRIMARY KEY)")
            connection.execute("DELETE FROM shop.orders")

    def another_store(self) -> PostgresStore:
        """The store as another process has it. Close it."""
        return open_store(self.url, SystemClock(), inline=True)

    def add_template(self, name: str, text: str = "Dear {{ name }}") -> None:
        part = StoredTemplate("default", name, 1, Channel.EMAIL, "Due", text, "", name, 0)
        self.store.write(lambda tx: tx.templates.put([part])).result()

    @contextmanager
    def connect(self, **options: Any) -> Iterator[psycopg.Connection[Any]]:
        """The application's connection."""
        with psycopg.connect(self.dsn, **options) as connection:
            yield connection

    def collector(self, store: PostgresStore | None = None) -> Collector:
        of = store or self.store
        return Collector(of, self.policy, TemplateBook(from_store(of)))

    def collect(self) -> Collected:
        return self.collector().run()

    def taken(self) -> dict[str, Delivery]:
        """All deliveries, by key."""
        found = self.store.read(lambda tx: tx.deliveries.matching("pending", {}, 1_000, 0))
        return {delivery.key: delivery for delivery in found}

    def waiting(self) -> int:
        return len(self.store.read(lambda tx: tx.intake.waiting(10_000)))

    def parked(self) -> list[Row]:
        return self.store.read(lambda tx: tx.rows("view_intake_parked", after=0, limit=1_000))

    def orders(self) -> list[str]:
        with self.connect() as connection:
            return [row[0] for row in connection.execute("SELECT id FROM shop.orders ORDER BY id")]

    def close(self) -> None:
        self.store.close()
