"""The PostgreSQL store by itself: opening, other processes' locks, a server that goes away, a commit whose
answer is lost, the server's clock. What every store promises is in `tests/conformance`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from enum import Enum, auto
from functools import partial
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from sendonce.core.errors import CommitUnknown, ConfigError, StoreMismatch, StoreUnavailable
from sendonce.core.lifecycle import Event
from sendonce.pipeline.care import care
from sendonce.ports.store import Tx
from sendonce.runtime.clock import SystemClock
from sendonce.store import postgres
from sendonce.store import writer as writer_module
from sendonce.store.migrate import migrations
from sendonce.store.postgres import PostgresStore, open_store
from sendonce.testing.conformance.store import add, along, new
from sendonce.testing.postgres_server import PostgresServer
from tests.integration.pooler import Pooler
from tests.postgres_schemas import bare

WITHIN_S = 30.0
"""Far more than any of these needs, also on a machine that is busy with something else."""


def opened(url: str, *, inline: bool = True) -> PostgresStore:
    return open_store(url, SystemClock(), inline=inline)


@contextmanager
def raw(url: str) -> Iterator[psycopg.Connection]:
    """A connection beside the program, in the store's schema."""
    dsn, schema = bare(url)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        yield connection


def count(tx: Tx) -> int:
    """A unit that must happen exactly once for each answer it gives."""
    number = int(tx.meta("count") or 0) + 1
    tx.set_meta("count", str(number))
    return number


def counted(store: PostgresStore) -> int:
    return int(store.read(lambda tx: tx.meta("count")) or 0)


# Beside each other


def test_what_is_written_beside_the_rest_waits_for_none_of_it(postgres_url: str) -> None:
    store = opened(postgres_url, inline=False)
    let_go = threading.Event()
    slow = store.write(lambda tx: let_go.wait(WITHIN_S))
    first, second = (store.write(count, beside=True) for _ in range(2))
    assert (first.result(WITHIN_S), second.result(WITHIN_S)) == (1, 2), "in their own order"
    assert not slow.done()
    let_go.set()
    assert slow.result(WITHIN_S)
    store.close()


def test_a_process_that_writes_nothing_beside_has_one_writing_connection(postgres_url: str) -> None:
    store = opened(postgres_url, inline=False)
    with raw(postgres_url) as connection:
        writers = b"SELECT count(*) FROM writer"
        store.write(count).result(WITHIN_S)
        assert connection.execute(writers).fetchone() == (1,)
        store.write(count, beside=True).result(WITHIN_S)
        assert connection.execute(writers).fetchone() == (2,)
        store.close()
        assert connection.execute(writers).fetchone() == (0,)


# Opening


def test_many_processes_open_an_empty_database_at_once(postgres_url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        stores = [opening.result() for opening in [pool.submit(opened, postgres_url) for _ in range(6)]]
    try:
        assert len({store.secret for store in stores}) == 1
        for store in stores:
            store.write(count).result()
        assert counted(stores[0]) == 6
    finally:
        for store in stores:
            store.close()


def test_a_newer_schema_is_refused_untouched(postgres_url: str) -> None:
    opened(postgres_url).close()
    with raw(postgres_url) as connection:
        connection.execute("UPDATE meta SET value = '9999' WHERE name = 'schema_version'")
        with pytest.raises(StoreMismatch, match=r"schema version 9999.*nothing was changed"):
            opened(postgres_url)
        known = migrations("postgresql")[-1][0]
        connection.execute(f"UPDATE meta SET value = '{known}' WHERE name = 'schema_version'".encode())


def test_a_schema_of_something_else_is_refused_untouched(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database("foreign")
    postgres_server.execute("CREATE SCHEMA sendonce; CREATE TABLE sendonce.orders ()", "foreign")
    with pytest.raises(StoreMismatch, match=r"schema sendonce .*table orders.*\?schema=NAME"):
        opened(url)
    with raw(f"{url}&schema=sendonce") as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'sendonce'"
        ).fetchall()
    assert tables == [("orders",)]
    other = opened(f"{url}&schema=elsewhere")  # beside it, in the same database
    assert other.write(count).result() == 1
    other.close()


def test_a_migration_that_fails_leaves_nothing_behind(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(postgres_url).close()
    known = migrations("postgresql")
    broken = [*known, (len(known) + 1, "CREATE TABLE half (id {id}); INSERT INTO nowhere VALUES (1);")]
    monkeypatch.setattr("sendonce.store.postgres_schema.migrations", lambda database: broken)
    with pytest.raises(StoreMismatch, match="nowhere"):
        opened(postgres_url)
    with raw(postgres_url) as connection:
        assert connection.execute("SELECT to_regclass('half')").fetchall() == [(None,)]
    monkeypatch.undo()
    opened(postgres_url).close()


def test_text_is_ordered_by_its_bytes_as_in_sqlite(postgres_url: str) -> None:
    opened(postgres_url).close()
    with raw(postgres_url) as connection:
        other = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = current_schema AND data_type = 'text' "
            "AND collation_name IS DISTINCT FROM 'C'"
        ).fetchall()
    assert other == []


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("postgresql://me@localhost/db?schema=No%20Such", "must be lower-case letters"),
        ("postgresql://me:s3cr%zzet@localhost/db", "percent-encode"),
        ("postgresql://me:s3cret@localhost/db?pasword=s3cret", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as refused:
        opened(url)
    assert "s3cr" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_server_that_is_not_there_is_told_without_the_password(tmp_path: Path) -> None:
    folder = quote(str(tmp_path), safe="")
    with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
        opened(f"postgresql://me:s3cret@/db?host={folder}")
    assert "s3cret" not in str(refused.value)


def test_a_database_that_is_not_there_is_told(postgres_server: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        opened(postgres_server.url("nowhere"))


# What a transaction brings along


def test_every_transaction_has_its_limits_and_is_durable(postgres_url: str) -> None:
    """Whatever the server, the database or a pooler's connection says."""
    store = opened(postgres_url)
    connection = store._writing._connection
    connection.execute("SET synchronous_commit = off")
    connection.execute("SET statement_timeout = 0")
    shown: list[str] = []

    def show(name: str) -> str:
        return str(connection.execute(f"SHOW {name}".encode()).fetchall()[0][0])

    def unit(tx: Tx) -> None:
        shown.extend(map(show, ("synchronous_commit", "transaction_isolation", "search_path")))
        for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
            assert show(name) not in ("0", "")

    store.write(unit).result()
    assert shown == ["on", "read committed", bare(postgres_url)[1]]
    assert connection.execute("SHOW synchronous_commit").fetchall() == [("off",)]
    store.close()


def test_nothing_to_write_is_nothing_to_flush(postgres_url: str) -> None:
    store = opened(postgres_url)
    store.write(count).result()
    with raw(postgres_url) as connection:
        at = connection.execute("SELECT number FROM writer").fetchall()
        store.write(lambda tx: tx.meta("count")).result()
        assert connection.execute("SELECT number FROM writer").fetchall() == at
    store.close()


def test_prepared_statements_have_names_that_no_other_connection_uses(postgres_url: str) -> None:
    """Behind a pooler, a name of ours must not find what another process prepared under it."""
    stores = [opened(postgres_url), opened(postgres_url)]
    names: list[set[str]] = []
    for store in stores:
        for _ in range(10):
            store.write(count).result()
        connection = store._writing._connection
        names.append({row[0] for row in connection.execute("SELECT name FROM pg_prepared_statements")})
        store.close()
    assert all(names)
    assert names[0].isdisjoint(names[1])


# Other processes


@contextmanager
def lock_held(store: PostgresStore, id_: int) -> Iterator[Future[None]]:
    """Another process's unit that holds a delivery until the block ends."""
    entered, go = threading.Event(), threading.Event()

    def unit(tx: Tx) -> None:
        tx.deliveries.by_ids([id_])
        entered.set()
        assert go.wait(WITHIN_S)

    future = store.write(unit)
    assert entered.wait(WITHIN_S)
    try:
        yield future
    finally:
        go.set()


def test_a_deadlock_is_run_again_and_both_happen(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """STOR-03."""
    told: list[object] = []
    monkeypatch.setattr(writer_module, "tell", lambda event, **fields: told.append(fields["reason"]))
    one, other = opened(postgres_url, inline=False), opened(postgres_url, inline=False)
    a, b = (row.id for row in add(one, new("a"), new("b")))
    both = threading.Barrier(2)
    runs: list[str] = []

    def crossing(name: str, first: int, second: int) -> Callable[[Tx], None]:
        def unit(tx: Tx) -> None:
            runs.append(name)
            tx.deliveries.by_ids([first])
            if runs.count(name) == 1:
                both.wait(WITHIN_S)
            tx.deliveries.by_ids([second])
            tx.set_meta(name, "done")

        return unit

    futures = [one.write(crossing("one", a, b)), other.write(crossing("other", b, a))]
    for future in futures:
        future.result(WITHIN_S)
    assert sorted(runs) in (["one", "one", "other"], ["one", "other", "other"])
    assert one.read(lambda tx: (tx.meta("one"), tx.meta("other"))) == ("done", "done")
    assert told == ["store_deadlock"], "and an operator can count it"
    one.close()
    other.close()


def test_a_later_unit_that_meets_a_lock_holds_up_nobody(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units of one group take locks in an order of chance: none but the first may wait."""
    monkeypatch.setattr(writer_module, "HOLD_S", 5.0)
    one, other = opened(postgres_url, inline=False), opened(postgres_url, inline=False)
    (row,) = add(one, new("a"))
    with lock_held(other, row.id) as holder:
        go = threading.Event()

        def unit(tx: Tx) -> None:
            tx.set_meta("first", "yes")
            assert go.wait(WITHIN_S)

        first = one.write(unit)
        waits = one.write(lambda tx: len(tx.deliveries.by_ids([row.id])))
        go.set()
        first.result(WITHIN_S)
        assert one.read(lambda tx: tx.meta("first")) == "yes"
        assert not waits.done()
    assert waits.result(WITHIN_S) == 1
    holder.result(WITHIN_S)
    one.close()
    other.close()


def test_waking_leaves_alone_what_somebody_holds(postgres_url: str) -> None:
    """Its place on the agenda changes, which waits for nobody; who claims passes over it until it is free."""
    one, other = opened(postgres_url), opened(postgres_url, inline=False)
    held, free = add(one, new("a"), new("b"))
    for row in (held, free):
        one.write(partial(wait, id_=row.id)).result()
    with lock_held(other, held.id) as holder:
        one.write(lambda tx: tx.deliveries.wake("acc", 2**60)).result()
        ready = one.write(lambda tx: tx.deliveries.ready("acc", retries=False, limit=9)).result()
        assert [row.id for row in ready] == [free.id]
    holder.result(WITHIN_S)
    assert len(one.write(lambda tx: tx.deliveries.ready("acc", retries=False, limit=9)).result()) == 2
    one.close()
    other.close()


def wait(tx: Tx, id_: int) -> None:
    """Publish it for later."""
    (row,) = tx.deliveries.by_ids([id_])
    assert tx.deliveries.move([along(row, Event.PUBLISHED, account="acc", next_at=tx.now + 60_000_000)])


def test_a_lock_that_is_held_for_long_is_told(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "LOCK_S", 0.05)
    one, other = opened(postgres_url), opened(postgres_url, inline=False)
    (row,) = add(one, new("a"))
    with lock_held(other, row.id):
        refused = one.write(lambda tx: tx.deliveries.by_ids([row.id])).exception()
    assert isinstance(refused, StoreUnavailable)
    assert "holds a lock" in str(refused)
    assert one.write(count).result() == 1
    one.close()
    other.close()


# Care


def test_the_server_says_how_its_tables_are_and_who_holds_it_back(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STOR-07."""
    monkeypatch.setattr("sendonce.pipeline.care.HOLDS_BACK_US", 0)
    store = opened(postgres_url)
    try:
        store.write(count).result()
        with raw(postgres_url) as other:
            other.execute(b"ANALYZE meta; BEGIN; SELECT 1")
            found = store.read(care)
            other.execute(b"ROLLBACK; SELECT pg_stat_clear_snapshot()")
        tables = {table.name: table for table in found.tables}
        assert {"delivery", "agenda", "ledger", "meta"} <= tables.keys()
        assert tables["meta"].analysed_at > 0
        assert tables["delivery"].bytes > 0
        assert any("has had a transaction open" in each for each in found.findings)
    finally:
        store.close()


# A server that goes away


def test_a_connection_lost_while_idle_is_not_noticed(postgres_url: str) -> None:
    store = opened(postgres_url)
    store.write(count).result()
    assert counted(store) == 1
    with raw(postgres_url) as connection:
        for _ in range(2):
            terminate_all(connection)
            assert counted(store) == store.write(count).result() - 1
    store.close()


def test_a_connection_lost_inside_a_unit_is_run_again(postgres_url: str) -> None:
    store = opened(postgres_url)
    runs: list[int] = []
    with raw(postgres_url) as connection:

        def unit(tx: Tx) -> int:
            number = count(tx)
            runs.append(number)
            if len(runs) == 1:
                terminate_all(connection)
            tx.meta("count")
            return number

        assert store.write(unit).result() == 1
    assert runs == [1, 1]
    assert counted(store) == 1
    store.close()


def stuck(url: str, connection: psycopg.Connection) -> None:
    """Ended by the server, and left between two messages, as the client library leaves one that ends inside a
    batch: open, and good for nothing."""
    connection.pgconn.enter_pipeline_mode()
    connection.pgconn.send_query_params(b"SELECT 1", None)
    with raw(url) as other:
        other.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)".encode())
    assert not connection.closed


def test_a_connection_that_is_stuck_is_made_again(postgres_url: str) -> None:
    store = opened(postgres_url)
    try:
        stuck(postgres_url, store._writing._connection)
        assert store.write(count).result() == 1
        tries: list[int] = []

        def unit(tx: Tx) -> int:
            tries.append(1)
            if len(tries) == 1:
                stuck(postgres_url, store._writing._connection)
            return count(tx)

        assert store.write(unit).result() == 2
        assert len(tries) == 2
        assert counted(store) == 2
        (reading,) = store._readers._free
        stuck(postgres_url, reading)
        assert counted(store) == 2
    finally:
        store.close()


def test_a_commit_on_a_connection_that_is_stuck_is_asked_about(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(postgres_url)
    commit_text = store._writing._commit_text
    tries: list[int] = []

    def once(number: int) -> str:
        tries.append(number)
        if len(tries) == 1:
            stuck(postgres_url, store._writing._connection)
        return commit_text(number)

    monkeypatch.setattr(store._writing, "_commit_text", once)
    try:
        assert store.write(count).result() == 1
        assert len(tries) == 2
    finally:
        store.close()


def terminate_all(connection: psycopg.Connection) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'sendonce'"
    )


def test_a_server_that_is_restarted_is_found_again() -> None:
    """Stopped as by a crash: what was answered is there, and the store goes on by itself."""
    with PostgresServer(durable=True) as server:
        store = opened(server.create_database("mine"), inline=False)
        assert [store.write(count).result() for _ in range(20)] == list(range(1, 21))
        server.stop(immediate=True)
        down = store.write(count).exception(WITHIN_S)
        assert isinstance(down, StoreUnavailable)
        assert "be reached" in str(down)
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            counted(store)
        server.start()
        assert counted(store) == 20
        assert store.write(count).result(WITHIN_S) == 21
        store.close()


def test_a_server_that_is_away_is_not_tried_for_each_unit_that_waits(
    line: Line, over_the_line: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where packets vanish, each try takes many seconds; those who wait must hear of it before."""
    monkeypatch.setattr(postgres, "AWAY_S", 60.0)
    line.refusing = True
    over_the_line._writing._connection.close()
    assert isinstance(over_the_line.write(count).exception(WITHIN_S), StoreUnavailable)
    tries = line.tries
    for _ in range(20):
        refused = over_the_line.write(count).exception(WITHIN_S)
        assert isinstance(refused, StoreUnavailable)
        assert "a moment ago" in str(refused)
    assert line.tries == tries
    line.refusing = False
    over_the_line._writing._away_until = 0.0
    assert over_the_line.write(count).result(WITHIN_S) == 2


# A commit whose answer is lost


class Cut(Enum):
    """What the line does with the next commit."""

    NOTHING = auto()
    ANSWER = auto()  # the server commits, and its answer is lost
    QUESTION = auto()  # the server never hears of it
    LATE = auto()  # the server hears of it after the client has given up


class Line:
    """A line to the server that can be cut around a commit, once each time `cut` is set."""

    def __init__(self, server: PostgresServer) -> None:
        self._socket = str(server.folder / ".s.PGSQL.5432")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = Cut.NOTHING
        self.refusing = False
        self.tries = 0
        self._late: list[tuple[socket.socket, bytes]] = []
        self._said = bytearray()  # by the server, after a cut
        self._heard = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the waiting for another client
        self._listener.close()
        for server, _ in self._late:
            server.close()

    def deliver_late(self) -> None:
        """Let the commit arrive that was on its way."""
        ((server, commit),) = self._late
        server.sendall(commit)

    def server_says(self, text: bytes) -> bool:
        """Wait until the server said this to nobody."""
        with self._heard:
            return self._heard.wait_for(lambda: text in self._said, WITHIN_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.tries += 1
            if self.refusing:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._socket)
            gone = threading.Event()
            for target in (self._to_server, self._to_client):
                threading.Thread(target=target, args=(client, server, gone), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, gone: threading.Event) -> None:
        try:
            while data := client.recv(65_536):
                if b"WITH mark AS" in data and self.cut is not Cut.NOTHING:
                    how, self.cut = self.cut, Cut.NOTHING
                    gone.set()
                    if how is Cut.ANSWER:
                        server.sendall(data)
                        assert self.server_says(b"COMMIT")
                    if how is Cut.LATE:
                        self._late.append((server, data))
                    client.shutdown(socket.SHUT_RDWR)
                    return
                server.sendall(data)
        except OSError:
            pass
        finally:
            client.close()
            if all(server is not kept for kept, _ in self._late):
                server.shutdown(socket.SHUT_RDWR)
                server.close()

    def _to_client(self, client: socket.socket, server: socket.socket, gone: threading.Event) -> None:
        try:
            while data := server.recv(65_536):
                if gone.is_set():
                    with self._heard:
                        self._said += data
                        self._heard.notify_all()
                else:
                    client.sendall(data)
        except OSError:
            pass


@pytest.fixture
def line(postgres_server: PostgresServer) -> Iterator[Line]:
    made = Line(postgres_server)
    yield made
    made.close()


@pytest.fixture
def over_the_line(line: Line, postgres_url: str) -> Iterator[PostgresStore]:
    dsn, schema = bare(postgres_url)
    database = dsn.partition("?")[0].rpartition("/")[2]
    url = f"postgresql://postgres@127.0.0.1:{line.port}/{database}?sslmode=disable&gssencmode=disable"
    with closing(opened(f"{url}&schema={schema}", inline=False)) as store:
        store.write(count).result()
        yield store


@pytest.mark.parametrize("cut", [Cut.ANSWER, Cut.QUESTION, Cut.LATE])
def test_a_commit_whose_answer_is_lost_happens_once(
    cut: Cut, line: Line, over_the_line: PostgresStore
) -> None:
    line.cut = cut
    assert over_the_line.write(count).result(WITHIN_S) == 2
    assert over_the_line.write(count).result(WITHIN_S) == 3
    assert counted(over_the_line) == 3


def test_a_commit_that_arrives_too_late_cannot_happen_any_more(
    line: Line, over_the_line: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is still open at the server when the client asks; nothing may commit it afterwards."""
    line.cut = Cut.LATE
    monkeypatch.setattr(postgres._Writing, "_end_backend", lambda self, pid, since: None)
    monkeypatch.setattr(writer_module, "RUNS_MAX", 1)  # so that the answer "it did not happen" is seen
    add_only = over_the_line.write(lambda tx: tx.set_meta("late", "yes"))
    assert isinstance(add_only.exception(WITHIN_S), StoreUnavailable)
    assert not isinstance(add_only.exception(), CommitUnknown)
    line.deliver_late()
    assert line.server_says(b"division by zero")
    assert over_the_line.read(lambda tx: tx.meta("late")) is None
    assert over_the_line.write(count).result(WITHIN_S) == 2


def test_a_commit_that_nobody_can_be_asked_about_is_unknown(
    line: Line, over_the_line: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "ASK_S", 0.1)
    monkeypatch.setattr(postgres, "AWAY_S", 0.0)
    line.cut = Cut.ANSWER
    line.refusing = True
    unknown = over_the_line.write(count).exception(WITHIN_S)
    assert isinstance(unknown, CommitUnknown)
    assert "happened, or none" in str(unknown)
    assert isinstance(over_the_line.write(count).exception(WITHIN_S), StoreUnavailable)
    line.refusing = False
    # It had happened; and the store goes on counting its commits from there.
    assert over_the_line.write(count).result(WITHIN_S) == 3
    line.cut = Cut.QUESTION
    assert over_the_line.write(count).result(WITHIN_S) == 4


def test_asking_writes_also_where_the_commit_happened(postgres_url: str) -> None:
    """Where a standby has to have each commit, the question waits for it, and so for the commit before it."""
    store = opened(postgres_url)
    store.write(count).result()
    with raw(postgres_url) as connection:
        before = connection.execute("SELECT xmin::text, number FROM writer").fetchall()
        assert store._writing._ask(before[0][1])
        after = connection.execute("SELECT xmin::text, number FROM writer").fetchall()
    assert after[0][0] != before[0][0]
    assert after[0][1] == before[0][1]
    assert store.write(count).result() == 2
    store.close()


def test_a_writer_whose_row_is_gone_takes_a_new_one(postgres_url: str) -> None:
    store = opened(postgres_url)
    store.write(count).result()
    with raw(postgres_url) as connection:
        connection.execute("DELETE FROM writer")
    assert store.write(count).result() == 2
    assert counted(store) == 2
    store.close()


def test_closing_takes_the_writers_row_away(postgres_url: str) -> None:
    opened(postgres_url).close()
    with raw(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM writer").fetchall() == [(0,)]


def test_two_processes_that_make_the_same_row_make_it_once(postgres_url: str) -> None:
    """Both look, both find nothing, both insert; on SQLite they would have come one after the other."""
    one, other = opened(postgres_url, inline=False), opened(postgres_url, inline=False)
    both = threading.Barrier(2)
    runs: list[str] = []

    def making(name: str) -> Callable[[Tx], str]:
        def unit(tx: Tx) -> str:
            runs.append(name)
            if tx.deliveries.by_keys([("t", "a:c:email")]):
                return "unchanged"
            if runs.count(name) == 1:
                both.wait(WITHIN_S)
            tx.deliveries.insert([new("a")])
            return "made"

        return unit

    answers = [store.write(making(name)) for store, name in ((one, "one"), (other, "other"))]
    assert sorted(answer.result(WITHIN_S) for answer in answers) == ["made", "unchanged"]
    one.close()
    other.close()


# A pooler in between


def test_behind_a_pooler_in_transaction_mode(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Eight connections share two; each transaction may have another one, and what others prepared in it."""
    dsn, schema = bare(postgres_url)
    database = dsn.partition("?")[0].rpartition("/")[2]
    pooler = Pooler(postgres_server.folder / ".s.PGSQL.5432", size=2)
    url = f"postgresql://postgres@127.0.0.1:{pooler.port}/{database}?sslmode=disable&schema={schema}"
    stores = [opened(url, inline=False) for _ in range(4)]
    each = 25

    def unit(tx: Tx) -> int:
        tx.set_meta("lock", "")  # one after the other, so that none is lost
        tx.deliveries.by_ids(list(range(1, 20)))
        return count(tx)

    def work(number: int) -> None:
        for turn in range(each):
            # Each process meets the statements in an order of its own.
            if turn % 4 == number:
                stores[number].read(lambda tx: tx.deliveries.by_keys([("t", "a"), ("t", "b")]))
            stores[number].write(unit).result(WITHIN_S)
            assert counted(stores[number]) > 0

    with ThreadPoolExecutor(len(stores)) as pool:
        for done in [pool.submit(work, number) for number in range(len(stores))]:
            done.result(2 * WITHIN_S)
    assert counted(stores[0]) == each * len(stores)
    for store in stores:
        store.close()
    with raw(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM writer").fetchall() == [(0,)]
    pooler.close()


# The clock


def test_the_clock_is_the_servers(postgres_url: str) -> None:
    store = opened(postgres_url)

    def both(tx: Tx) -> tuple[int, int]:
        ((at,),) = store._writing._connection.execute(f"SELECT {postgres._SERVER_NOW}".encode()).fetchall()
        return tx.now, int(at)

    now, at = store.write(both).result()
    assert 0 <= at - now < 1_000_000
    assert store.read(lambda tx: tx.now) >= now
    store.close()


def test_a_server_clock_set_back_moves_no_lease(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock is a table here, so that it can be set; two processes share it."""
    opened(postgres_url).close()
    hour = 3_600_000_000
    table = f'"{bare(postgres_url)[1]}".hands'
    shown = f"(SELECT moved + (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM {table})"
    with raw(postgres_url) as connection:
        connection.execute("CREATE TABLE hands AS SELECT 0::bigint AS moved")
        monkeypatch.setattr(postgres, "_SERVER_NOW", shown)
        one, other = opened(postgres_url), opened(postgres_url)
        before = one.write(lambda tx: (tx.now, tx.steady)).result()
        one.write(lambda tx: tx.set_meta("steady_seen", str(tx.steady))).result()
        connection.execute(f"UPDATE hands SET moved = {-hour}".encode())
        with ThreadPoolExecutor(2) as pool:
            times = list(pool.map(lambda s: s.write(lambda tx: (tx.now, tx.steady)).result(), (one, other)))
        for now, steady in times:
            assert before[0] - hour <= now < before[0] - hour + 60_000_000
            assert before[1] <= steady < before[1] + 60_000_000
        corrections = connection.execute("SELECT value FROM meta WHERE name = 'steady_correction'").fetchall()
        assert abs(int(corrections[0][0]) - hour) < 1_000_000, "once, not once for each"
        # Everything is restarted on a server that is another hour behind: the store remembers.
        one.close()
        other.close()
        connection.execute(f"UPDATE hands SET moved = {-2 * hour}".encode())
        late = opened(postgres_url)
        assert late.steady() >= before[1]
        late.close()
        connection.execute("DROP TABLE hands")


def test_the_steady_clock_goes_on_while_the_server_is_away(postgres_url: str) -> None:
    store = opened(postgres_url)
    before = store.steady()
    time.sleep(0.002)
    assert store.steady() > before
    store.close()
