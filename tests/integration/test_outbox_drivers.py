"""`sendonce.schedule` over every kind of connection that it takes, each for real: what committed is in, what
was rolled back is not, what is wrong is refused or parked, and the caller's own settings are in nobody's
way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from psycopg.rows import class_row, dict_row, namedtuple_row
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

import sendonce
from sendonce.core.errors import InvalidInput
from sendonce.testing.postgres_server import PostgresServer
from tests.integration.outbox_world import OutboxWorld, reminder

INSERT = "INSERT INTO shop.orders (id) VALUES ('o-1')"


@pytest.fixture
def shop(postgres_url: str) -> Iterator[OutboxWorld]:
    made = OutboxWorld(postgres_url)
    yield made
    made.close()


class Undo(Exception):
    """The application changes its mind."""


# One transaction each: it writes an order, and schedules with it


@contextmanager
def psycopg_sync(shop: OutboxWorld, **options: Any) -> Iterator[Any]:
    with psycopg.connect(shop.dsn, **options) as connection:
        connection.execute(INSERT)
        yield connection


@contextmanager
def psycopg_autocommit(shop: OutboxWorld) -> Iterator[Any]:
    with psycopg.connect(shop.dsn, autocommit=True) as connection, connection.transaction():
        connection.execute(INSERT)
        yield connection


@contextmanager
def psycopg_pipeline(shop: OutboxWorld) -> Iterator[Any]:
    with psycopg.connect(shop.dsn) as connection, connection.pipeline():
        connection.execute(INSERT)
        yield connection


def engine_of(shop: OutboxWorld) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(shop.dsn), poolclass=NullPool
    )


@contextmanager
def sqlalchemy_connection(shop: OutboxWorld) -> Iterator[Any]:
    with engine_of(shop).begin() as connection:
        connection.execute(sqlalchemy.text(INSERT))
        yield connection


@contextmanager
def sqlalchemy_session(shop: OutboxWorld) -> Iterator[Any]:
    with Session(engine_of(shop)) as session, session.begin():
        session.execute(sqlalchemy.text(INSERT))
        yield session


@contextmanager
def sqlalchemy_scoped_session(shop: OutboxWorld) -> Iterator[Any]:
    scoped = scoped_session(sessionmaker(engine_of(shop)))
    with scoped.begin():
        scoped.execute(sqlalchemy.text(INSERT))
        yield scoped
    scoped.remove()


@contextmanager
def django_connection(shop: OutboxWorld) -> Iterator[Any]:
    configure_django(shop)
    with transaction.atomic():
        with connections["default"].cursor() as cursor:
            cursor.execute(INSERT)
        yield connections["default"]


@contextmanager
def django_default(shop: OutboxWorld) -> Iterator[Any]:
    """As applications import it."""
    from django.db import connection

    with django_connection(shop):
        yield connection


def configure_django(shop: OutboxWorld) -> None:
    """Once in a process: the server, the user and the database are the same for all these tests."""
    if settings.configured:
        return
    known = psycopg.conninfo.conninfo_to_dict(shop.dsn)
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": known["dbname"],
                "USER": known["user"],
                "HOST": known["host"],
            },
            "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        }
    )
    django.setup()


@pytest.fixture(autouse=True)
def django_connections() -> Iterator[None]:
    yield
    if settings.configured:
        connections.close_all()


Sync = Callable[[OutboxWorld], Any]
SYNC: dict[str, Sync] = {
    "psycopg": psycopg_sync,
    "psycopg with rows as mappings": lambda shop: psycopg_sync(shop, row_factory=dict_row),
    "psycopg with rows with names": lambda shop: psycopg_sync(shop, row_factory=namedtuple_row),
    "psycopg with rows as objects": lambda shop: psycopg_sync(shop, row_factory=class_row(dict)),
    "psycopg with raw cursors": lambda shop: psycopg_sync(shop, cursor_factory=psycopg.RawCursor),
    "psycopg with client cursors": lambda shop: psycopg_sync(shop, cursor_factory=psycopg.ClientCursor),
    "psycopg, committing by itself": psycopg_autocommit,
    "psycopg in a pipeline": psycopg_pipeline,
    "SQLAlchemy": sqlalchemy_connection,
    "SQLAlchemy, a session": sqlalchemy_session,
    "SQLAlchemy, a scoped session": sqlalchemy_scoped_session,
    "Django": django_connection,
    "Django, the default connection": django_default,
}


@pytest.mark.parametrize("driver", SYNC)
def test_what_committed_is_in(shop: OutboxWorld, driver: str) -> None:
    with SYNC[driver](shop) as connection:
        assert sendonce.schedule(connection, [reminder("r-1"), reminder("r-2")], schema=shop.schema) == 2
        assert shop.waiting() == 0
    check_is_in(shop)


@pytest.mark.parametrize("driver", SYNC)
def test_what_was_rolled_back_is_not(shop: OutboxWorld, driver: str) -> None:
    with pytest.raises(Undo), SYNC[driver](shop) as connection:
        undone(sendonce.schedule(connection, [reminder()], schema=shop.schema))
    check_never_was(shop)


@pytest.mark.parametrize("driver", SYNC)
def test_what_is_wrong_is_refused_or_parked(shop: OutboxWorld, driver: str) -> None:
    with SYNC[driver](shop) as connection:
        with pytest.raises(InvalidInput, match="reminder 1 of those given: template is empty"):
            sendonce.schedule(connection, [reminder(template=None)], schema=shop.schema)
        both = [reminder(template=None), reminder()]
        assert sendonce.schedule(connection, both, schema=shop.schema, on_error="park") == 1
    check_one_is_parked(shop)


# The same, asynchronous


@asynccontextmanager
async def psycopg_async(shop: OutboxWorld, **options: Any) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(shop.dsn, **options) as connection:
        await connection.execute(INSERT)
        yield connection


@asynccontextmanager
async def asyncpg_connection(shop: OutboxWorld) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(shop.dsn)
    try:
        async with connection.transaction():
            await connection.execute(INSERT)
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_with_json(shop: OutboxWorld) -> AsyncIterator[Any]:
    """Taught to write JSON by itself, as many applications do."""
    async with asyncpg_connection(shop) as connection:
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        yield connection


@asynccontextmanager
async def asyncpg_pooled(shop: OutboxWorld) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(shop.dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        await connection.execute(INSERT)
        yield connection


def psycopg_engine(shop: OutboxWorld) -> Any:
    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(shop.dsn)

    return create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool)


def asyncpg_engine(shop: OutboxWorld) -> Any:
    async def connect() -> Any:
        return await asyncpg.connect(shop.dsn)

    return create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)


@asynccontextmanager
async def sqlalchemy_async(engine: Any) -> AsyncIterator[AsyncConnection]:
    async with engine.begin() as connection:
        await connection.execute(sqlalchemy.text(INSERT))
        yield connection


@asynccontextmanager
async def sqlalchemy_async_session(engine: Any) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(sqlalchemy.text(INSERT))
        yield session


@asynccontextmanager
async def sqlalchemy_async_scoped_session(engine: Any) -> AsyncIterator[Any]:
    scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    async with scoped.begin():
        await scoped.execute(sqlalchemy.text(INSERT))
        yield scoped
    await scoped.remove()


ASYNC: dict[str, Callable[[OutboxWorld], Any]] = {
    "psycopg": psycopg_async,
    "psycopg with rows as mappings": lambda shop: psycopg_async(shop, row_factory=dict_row),
    "psycopg with raw cursors": lambda shop: psycopg_async(shop, cursor_factory=psycopg.AsyncRawCursor),
    "asyncpg": asyncpg_connection,
    "asyncpg with JSON of its own": asyncpg_with_json,
    "asyncpg from a pool": asyncpg_pooled,
    "SQLAlchemy over psycopg": lambda shop: sqlalchemy_async(psycopg_engine(shop)),
    "SQLAlchemy over asyncpg": lambda shop: sqlalchemy_async(asyncpg_engine(shop)),
    "SQLAlchemy over asyncpg, a session": lambda shop: sqlalchemy_async_session(asyncpg_engine(shop)),
    "SQLAlchemy, a scoped session": lambda shop: sqlalchemy_async_scoped_session(asyncpg_engine(shop)),
}


@pytest.mark.parametrize("driver", ASYNC)
def test_what_committed_is_in_async(shop: OutboxWorld, driver: str) -> None:
    async def application() -> None:
        async with ASYNC[driver](shop) as connection:
            given = [reminder("r-1"), reminder("r-2")]
            assert await sendonce.schedule(connection, given, schema=shop.schema) == 2
            assert shop.waiting() == 0

    asyncio.run(application())
    check_is_in(shop)


@pytest.mark.parametrize("driver", ASYNC)
def test_what_was_rolled_back_is_not_async(shop: OutboxWorld, driver: str) -> None:
    async def application() -> None:
        async with ASYNC[driver](shop) as connection:
            undone(await sendonce.schedule(connection, [reminder()], schema=shop.schema))

    with pytest.raises(Undo):
        asyncio.run(application())
    check_never_was(shop)


@pytest.mark.parametrize("driver", ASYNC)
def test_what_is_wrong_is_refused_or_parked_async(shop: OutboxWorld, driver: str) -> None:
    async def application() -> None:
        async with ASYNC[driver](shop) as connection:
            with pytest.raises(InvalidInput, match="reminder 1 of those given: template is empty"):
                await sendonce.schedule(connection, [reminder(template=None)], schema=shop.schema)
            both = [reminder(template=None), reminder()]
            assert await sendonce.schedule(connection, both, schema=shop.schema, on_error="park") == 1

    asyncio.run(application())
    check_one_is_parked(shop)


def undone(scheduled: int) -> None:
    assert scheduled == 1
    raise Undo


def check_is_in(shop: OutboxWorld) -> None:
    assert shop.collect().taken == 2
    assert set(shop.taken()) == {"r-1:c-1:email", "r-2:c-1:email"}
    assert shop.orders() == ["o-1"]


def check_never_was(shop: OutboxWorld) -> None:
    assert (shop.orders(), shop.waiting(), shop.parked(), shop.collect().taken) == ([], 0, [], 0)


def check_one_is_parked(shop: OutboxWorld) -> None:
    """And the order is there: neither way ended the transaction."""
    assert (shop.orders(), shop.waiting()) == (["o-1"], 1)
    assert [row["field"] for row in shop.parked()] == ["template"]


# What is no connection to PostgreSQL


@contextmanager
def sqlite_engine(shop: OutboxWorld) -> Iterator[Any]:
    engine = sqlalchemy.create_engine("sqlite://", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


@contextmanager
def sqlite_django(shop: OutboxWorld) -> Iterator[Any]:
    configure_django(shop)
    yield connections["lite"]


@contextmanager
def sqlite_itself(shop: OutboxWorld) -> Iterator[Any]:
    import sqlite3

    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


@contextmanager
def an_engine(shop: OutboxWorld) -> Iterator[Any]:
    yield engine_of(shop)


@contextmanager
def a_cursor(shop: OutboxWorld) -> Iterator[Any]:
    with psycopg.connect(shop.dsn) as connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def a_url(shop: OutboxWorld) -> Iterator[Any]:
    yield shop.dsn


@pytest.mark.parametrize("what", [sqlite_engine, sqlite_django])
def test_another_database_is_refused(shop: OutboxWorld, what: Any) -> None:
    with what(shop) as connection, pytest.raises(InvalidInput, match=r"to sqlite: .*Client") as refused:
        sendonce.schedule(connection, [reminder()])
    assert refused.value.field == "connection"


@pytest.mark.parametrize("what", [sqlite_itself, an_engine, a_cursor, a_url])
def test_what_is_no_connection_is_refused(shop: OutboxWorld, what: Any) -> None:
    with (
        what(shop) as connection,
        pytest.raises(InvalidInput, match=r"is no connection of .*sendonce\.schedule\(jsonb\)") as refused,
    ):
        sendonce.schedule(connection, [reminder()])
    assert refused.value.field == "connection"


def test_a_pool_is_refused(shop: OutboxWorld) -> None:
    """It would schedule in a transaction of its own."""

    async def application() -> None:
        async with asyncpg.create_pool(shop.dsn, min_size=1, max_size=1) as pool:
            with pytest.raises(InvalidInput, match="Pool is no connection"):
                await sendonce.schedule(pool, [reminder()])

    asyncio.run(application())


@pytest.mark.parametrize("schema", ["", "Sendonce", 'x"; DROP TABLE orders; --', "a.b"])
def test_a_schema_that_cannot_be_one_is_refused(shop: OutboxWorld, schema: str) -> None:
    with psycopg.connect(shop.dsn) as connection, pytest.raises(InvalidInput, match="lower-case"):
        sendonce.schedule(connection, [reminder()], schema=schema)


def test_a_store_that_is_not_there_is_told_by_the_driver(
    shop: OutboxWorld, postgres_server: PostgresServer
) -> None:
    with (
        psycopg.connect(postgres_server.url("tests")) as connection,
        pytest.raises(psycopg.errors.InvalidSchemaName, match="nowhere"),
    ):
        sendonce.schedule(connection, [reminder()], schema="nowhere")


def test_the_types_say_which_answer_is_awaited(shop: OutboxWorld) -> None:
    """Checked by mypy: this function is typed."""

    def now(connection: psycopg.Connection, other: sqlalchemy.Connection, session: Session) -> list[int]:
        return [sendonce.schedule(one, [], schema=shop.schema) for one in (connection, other, session)]

    async def later(
        connection: psycopg.AsyncConnection, other: AsyncConnection, session: AsyncSession
    ) -> list[int]:
        answers: list[Awaitable[int]] = [
            sendonce.schedule(one, [], schema=shop.schema) for one in (connection, other, session)
        ]
        return [await answer for answer in answers]

    async def application() -> list[int]:
        async with (
            await psycopg.AsyncConnection.connect(shop.dsn) as connection,
            asyncpg_engine(shop).connect() as other,
            AsyncSession(psycopg_engine(shop)) as session,
        ):
            return await later(connection, other, session)

    engine = engine_of(shop)
    with psycopg.connect(shop.dsn) as connection, engine.connect() as other, Session(engine) as session:
        assert now(connection, other, session) == [0, 0, 0]
    assert asyncio.run(application()) == [0, 0, 0]
