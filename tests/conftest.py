"""What holds for every test: properties are judged by what they find, not by how busy the machine is; and a
test that needs PostgreSQL gets a server of this run alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from sendonce.testing.postgres_server import PostgresServer

# A clean clone builds Hypothesis' tables in its first example, and other work may share the cores:
# with the default limits on time, such a run is red though nothing is wrong.
settings.register_profile("sendonce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sendonce")

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Started when a test first asks for it, once per worker process. Nothing here skips: without a
    PostgreSQL to start, the tests that need one are red."""
    with PostgresServer() as server:
        server.create_database("tests")
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A store of one's own: a schema that nobody else uses."""
    schema = f"test_{next(_numbers)}"
    yield f"{postgres_server.url('tests')}&schema={schema}"
    postgres_server.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE", "tests")
