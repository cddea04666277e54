"""The store conformance suite on each store there is. Only this file names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sendonce.ports.store import Store
from sendonce.store.sqlite import open_store
from sendonce.testing.clock import VirtualClock
from sendonce.testing.conformance.store import StoreSuite, broken_chains

Open = Callable[[Path, VirtualClock], Store]

STORES: dict[str, Open] = {
    "sqlite-memory": lambda folder, clock: open_store("sqlite://:memory:", clock, inline=True),
    "sqlite-file": lambda folder, clock: open_store(f"sqlite:///{folder}/s.db", clock, inline=True),
    "sqlite-thread": lambda folder, clock: open_store(f"sqlite:///{folder}/s.db", clock),
}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    store = STORES[request.param](tmp_path, clock)
    try:
        yield store
        if request.function.__name__ != "test_closing_twice_is_closing_once":
            assert broken_chains(store) == []
    finally:
        store.close()


class TestStore(StoreSuite):
    """Every promise of the port."""
