"""The store conformance suite on each store there is. Only this file names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sendonce.ports.store import Store
from sendonce.store import postgres, sqlite
from sendonce.testing.clock import VirtualClock
from sendonce.testing.conformance.store import StoreSuite, broken_chains

Open = Callable[[str, VirtualClock], Store]

STORES: dict[str, Open] = {
    "sqlite-memory": lambda url, clock: sqlite.open_store("sqlite://:memory:", clock, inline=True),
    "sqlite-file": lambda url, clock: sqlite.open_store(url, clock, inline=True),
    "sqlite-thread": lambda url, clock: sqlite.open_store(url, clock),
    "postgres": lambda url, clock: postgres.open_store(url, clock, inline=True, server_clock=False),
    "postgres-thread": lambda url, clock: postgres.open_store(url, clock, server_clock=False),
}

CLOSING = ("test_closing_twice_is_closing_once", "test_a_closed_store_has_no_news")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    on_postgres = request.param.startswith("postgres")
    url = request.getfixturevalue("postgres_url") if on_postgres else f"sqlite:///{tmp_path}/s.db"
    store = STORES[request.param](url, clock)
    try:
        yield store
        if request.function.__name__ not in CLOSING:
            assert broken_chains(store) == []
    finally:
        store.close()


class TestStore(StoreSuite):
    """Every promise of the port."""
