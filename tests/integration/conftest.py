"""Every test that uses the small world runs on both stores; only this file chooses which."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration import world
from tests.integration.places import PostgresPlace
from tests.postgres_schemas import OpenStores, Schemas

FILES = {"path", "schema"}
"""Fixtures that are a file of SQLite."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    uses_world = getattr(metafunc.module, "World", None) is world.World
    marked = metafunc.definition.get_closest_marker("sqlite_only") is not None
    if uses_world and not marked and FILES.isdisjoint(metafunc.fixturenames):
        metafunc.parametrize("place", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the worlds of this test keep their stores."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield
        return
    made = PostgresPlace(
        request.getfixturevalue("postgres_schemas"), request.getfixturevalue("postgres_stores")
    )
    monkeypatch.setattr(world, "place", made)
    yield
    made.close()


@pytest.fixture
def stores(
    postgres_schemas: Schemas, postgres_stores: OpenStores, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresPlace]:
    """For a test that is about PostgreSQL alone: its worlds are there, and so are further connections."""
    made = PostgresPlace(postgres_schemas, postgres_stores)
    monkeypatch.setattr(world, "place", made)
    yield made
    made.close()
