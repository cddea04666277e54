"""News between processes on PostgreSQL: who hears it, and what happens where nobody can. What every store
promises of it is in `tests/conformance`."""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from sendonce.core import news
from sendonce.ports.store import Tx
from sendonce.runtime.clock import SystemClock
from sendonce.store import postgres, postgres_news
from sendonce.store.postgres import PostgresStore, open_store
from sendonce.store.postgres_news import channel_of
from sendonce.testing.conformance.store import Ear
from sendonce.testing.postgres_server import PostgresServer
from tests.integration.pooler import Pooler
from tests.postgres_schemas import bare

WITHIN_S = 30.0


def opened(url: str, *, inline: bool = False) -> PostgresStore:
    return open_store(url, SystemClock(), inline=inline)


@pytest.fixture
def pair(postgres_url: str) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """One store, as two processes have it."""
    with closing(opened(postgres_url)) as one, closing(opened(postgres_url)) as other:
        yield one, other


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """One that may be stopped, and set up badly."""
    with PostgresServer(durable=True) as server:
        yield server


def test_news_comes_from_another_process_and_from_this_one(pair: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = pair
    ear = Ear(one)
    ear.tune_in(other)
    other.write(lambda tx: tx.announce(news.queued("acc"))).result()
    one.write(lambda tx: tx.announce(news.gate("acc"))).result()
    assert sorted(ear.until(2)) == ["gate:acc", "queued:acc"]


def test_schemas_of_one_database_hear_nothing_of_each_other(
    pair: tuple[PostgresStore, PostgresStore], postgres_url: str
) -> None:
    one, other = pair
    with closing(opened(bare(postgres_url)[0] + "&schema=beside_it")) as beside:
        ear, ear_beside = Ear(one), Ear(beside)
        ear.tune_in(other)
        ear_beside.tune_in(beside)
        beside.write(lambda tx: tx.announce("from beside")).result()
        assert ear_beside.until(1) == ["from beside"]
        other.write(lambda tx: tx.announce("own")).result()
        assert ear.until(1) == ["own"]


@pytest.mark.parametrize("schema", ["a", "sendonce", "s" * 58, "s" * 59, "s" * 63, "s" * 62 + "t"])
def test_each_schema_has_a_channel_of_its_own_that_the_server_takes(schema: str) -> None:
    channel = channel_of(schema)
    assert len(channel.encode()) <= 63
    others = ["a", "sendonce", "s" * 58, "s" * 59, "s" * 63, "s" * 62 + "t"]
    assert sum(channel_of(other) == channel for other in others) == 1


def test_the_longest_name_of_a_schema_is_heard(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database("long_name")
    with closing(opened(f"{url}&schema={'s' * 63}")) as store:
        ear = Ear(store)
        ear.tune_in(store)
        store.write(lambda tx: tx.announce("heard")).result()
        assert ear.until(1) == ["heard"]


def test_who_never_listens_has_no_connection_for_it(postgres_url: str) -> None:
    before = set(threading.enumerate())
    with closing(opened(postgres_url, inline=True)) as store:
        store.write(lambda tx: tx.announce("into the void")).result()
        assert set(threading.enumerate()) == before
        Ear(store)
        Ear(store)
        (thread,) = set(threading.enumerate()) - before
    thread.join(WITHIN_S)
    assert not thread.is_alive()


def test_it_sleeps_until_there_is_news(
    pair: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: between two news nothing of it runs."""
    one, other = pair
    turns: list[float] = []
    select = selectors.DefaultSelector.select

    def counted(self: object, timeout: float | None = None) -> object:
        turns.append(time.monotonic())
        return select(self, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(selectors.DefaultSelector, "select", counted)
    ear = Ear(one)
    ear.tune_in(other)
    for number in range(5):
        other.write(lambda tx, topic=f"news {number}": tx.announce(topic)).result()  # type: ignore[misc]
        ear.until(1)
        time.sleep(0.01)
    assert len(turns) <= 2 * (5 + ear.tries + 1)


# A connection that is lost


def test_a_connection_that_was_ended_is_made_again(
    pair: tuple[PostgresStore, PostgresStore], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(postgres_news, "tell", lambda event, **fields: told.append(fields["why"]))
    one, other = pair
    ear = Ear(one)
    ear.tune_in(other)
    with psycopg.connect(bare(postgres_url)[0], autocommit=True) as connection:
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
        ).fetchall()
    assert ended == [(1,)]
    ear.tune_in(other)
    assert told == ["lost"]


def test_a_restart_of_the_server_is_survived(own_server: PostgresServer) -> None:
    url = own_server.create_database("restarted")
    with closing(opened(url)) as one, closing(opened(url)) as other:
        ear = Ear(one)
        ear.tune_in(other)
        own_server.stop(immediate=True)
        assert other.write(lambda tx: tx.announce("lost")).exception(WITHIN_S) is not None
        own_server.start()
        ear.tune_in(other)
        other.write(lambda tx: tx.announce("back")).result(WITHIN_S)
        assert ear.until(1) == ["back"]


def test_closing_waits_for_no_server(own_server: PostgresServer) -> None:
    """Neither while it sleeps nor while it tries to connect."""
    store = opened(own_server.create_database("closing"))
    ear = Ear(store)
    ear.tune_in(store)
    own_server.stop(immediate=True)
    try:
        begun = time.monotonic()
        store._news.close()
        assert time.monotonic() - begun < WITHIN_S / 3
        assert store._news._thread is not None
        store._news._thread.join(WITHIN_S)
        assert not store._news._thread.is_alive()
    finally:
        own_server.start()
        store.close()


# What stands in the way


def test_a_transaction_that_hangs_with_the_lock_of_notify_holds_up_nobody(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's NOTIFY waits at its commit, for a standby that is not there, with the lock that each
    NOTIFY needs. What is announced meanwhile is committed all the same, and from then on not even tried."""
    url = own_server.create_database("hanging")
    store = opened(f"{url}&options=-csynchronous_commit%3Dlocal")
    tries: list[str] = []
    announce = postgres_news.announce

    def counted(*given: object) -> None:
        tries.append("")
        announce(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(postgres, "announce", counted)
    with psycopg.connect(url, autocommit=True) as hangs:
        stuck = threading.Thread(target=_notify_and_hang, args=(hangs,), daemon=True)
        with own_server.setting("synchronous_standby_names", "nobody"):
            stuck.start()
            _wait_for(own_server, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            for number in range(20):
                assert store.write(lambda tx, n=str(number): _set_and_announce(tx, n)).exception(5.0) is None  # type: ignore[misc]
            assert store.read(lambda tx: tx.meta("n")) == "19"
            assert len(tries) == 1
        stuck.join(WITHIN_S)
    store._writing._mute_until = 0.0
    ear = Ear(store)
    ear.tune_in(store)
    store.close()


def _notify_and_hang(connection: psycopg.Connection) -> None:
    connection.execute(b"BEGIN; CREATE TABLE anything (); NOTIFY something; COMMIT")


def _set_and_announce(tx: Tx, number: str) -> None:
    tx.set_meta("n", number)
    tx.announce(news.DUE)


def _wait_for(server: PostgresServer, query: str) -> None:
    until = time.monotonic() + WITHIN_S
    with psycopg.connect(server.url(), autocommit=True) as connection:
        while not connection.execute(query.encode()).fetchall():
            assert time.monotonic() < until, query
            time.sleep(0.01)


def test_behind_a_pooler_nobody_listens_and_nobody_is_harmed(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection of the pool is left listening, for whoever has it next."""
    told: list[str] = []
    monkeypatch.setattr(postgres_news, "tell", lambda event, **fields: told.append(fields["why"]))
    dsn, schema = bare(postgres_url)
    database = dsn.partition("?")[0].rpartition("/")[2]
    pooler = Pooler(postgres_server.folder / ".s.PGSQL.5432", size=2)
    url = f"postgresql://postgres@127.0.0.1:{pooler.port}/{database}?sslmode=disable"
    pooled, direct = opened(f"{url}&schema={schema}"), opened(postgres_url)
    try:
        listening = Ear(direct)
        Ear(pooled)
        assert pooled._news._thread is not None
        pooled._news._thread.join(WITHIN_S)
        assert not pooled._news._thread.is_alive()
        assert told == ["pooler"]
        with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as two:
            for connection in (one, two):  # each holds one of the two while the other asks
                connection.execute("BEGIN")
                assert connection.execute("SELECT pg_listening_channels()").fetchall() == []
        # What it announces is heard by those who have a line of their own.
        listening.tune_in(pooled)
        pooled.write(lambda tx: tx.announce("from behind")).result(WITHIN_S)
        assert listening.until(1) == ["from behind"]
    finally:
        pooled.close()
        direct.close()
        pooler.close()


def test_what_others_listen_to_over_the_same_pool_is_not_kept(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    dsn, schema = bare(postgres_url)
    database = dsn.partition("?")[0].rpartition("/")[2]
    pooler = Pooler(postgres_server.folder / ".s.PGSQL.5432", size=1)
    url = f"postgresql://postgres@127.0.0.1:{pooler.port}/{database}?sslmode=disable"
    store = opened(f"{url}&schema={schema}", inline=True)
    try:
        with psycopg.connect(url, autocommit=True) as careless:
            careless.execute("LISTEN something")
        for _ in range(3):
            store.write(lambda tx: tx.announce("x")).result(WITHIN_S)
            postgres_server.execute("NOTIFY something", database)
            store.write(lambda tx: tx.meta("x")).result(WITHIN_S)
        assert not store._writing._connection._notifies_backlog
        with psycopg.connect(url, autocommit=True) as careless:
            careless.execute("UNLISTEN *")
    finally:
        store.close()
        pooler.close()
