"""What holds for every test: properties are judged by what they find, not by how busy the machine is; and a
test that needs PostgreSQL gets a server of this run alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from sendonce.testing.postgres_server import PostgresServer
from tests.postgres_schemas import OpenStores, Schemas

# A clean clone builds Hypothesis' tables in its first example, and other work may share the cores:
# with the default limits on time, such a run is red though nothing is wrong.
settings.register_profile("sendonce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sendonce")


def pytest_xdist_auto_num_workers() -> int:
    """Two for each core: most of the time a test waits, for processes, servers, brokers and clocks."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Started when a test first asks for it, once per worker process. Nothing here skips: without a
    PostgreSQL to start, the tests that need one are red."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_schemas(postgres_server: PostgresServer) -> Iterator[Schemas]:
    schemas = Schemas(postgres_server)
    yield schemas
    schemas.close()


@pytest.fixture(scope="session")
def postgres_stores(postgres_schemas: Schemas) -> Iterator[OpenStores]:
    stores = OpenStores(postgres_schemas)
    yield stores
    stores.close()


@pytest.fixture
def postgres_url(postgres_schemas: Schemas) -> Iterator[str]:
    """An empty store of one's own."""
    url = postgres_schemas.take()
    yield url
    postgres_schemas.give_back(url)
