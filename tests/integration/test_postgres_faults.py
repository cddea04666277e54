"""What goes wrong around PostgreSQL while everything runs: the server goes, comes back, refuses writes or
connections, is full, is newer; clocks and configurations differ.

Each time the same: nothing is lost, nothing comes twice, whoever asks is told what to do, and once it is over
all goes on by itself. The service is a real process, the provider counts for itself.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sendonce.app import App
from sendonce.cli.main import main
from sendonce.client import Client
from sendonce.config import load
from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.pipeline.record import lines_of
from sendonce.pipeline.verify import verify
from sendonce.runtime.clock import SystemClock
from sendonce.service import serve
from sendonce.store.migrate import migrations
from sendonce.store.postgres import PostgresStore, open_store
from sendonce.testing.postgres_server import PostgresServer
from sendonce.testing.sandbox import ChannelRules, SandboxClient, SandboxSettings, sandbox_in_thread
from sendonce.testing.tally import tally
from tests.integration.service import (
    WITHIN_S,
    add_template,
    configure,
    process,
    reminders,
    schedule,
    states,
    told,
    wait_for,
)
from tests.postgres_schemas import bare

COUNT = 120
BEGUN = 15
HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Of these tests alone: they do to it what no other test would survive."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SandboxClient]:
    rules = ChannelRules(latency_s=(0.05, 0.15))
    with sandbox_in_thread(SandboxSettings(sms=rules)) as client:
        yield client


class Running:
    """`sendonce up` in the middle of its work."""

    def __init__(self, app: App, log: Path, sandbox: SandboxClient) -> None:
        self.app = app
        self.log = log
        self._sandbox = sandbox

    def refused(self) -> StoreUnavailable:
        """What somebody hears who schedules now."""
        with pytest.raises(StoreUnavailable) as error:
            Client.of(self.app).schedule(reminders(1, first=COUNT))
        return error.value

    def says(self, code: str) -> None:
        """Wait until the service has told of it."""
        wait_for(lambda: told(self.log, "store_unavailable", "error")[f"StoreUnavailable:{code}"])

    def finish(self) -> None:
        """Everything arrives, once."""
        wait_for(lambda: states(self.app) == {State.ACCEPTED: COUNT})
        effects = self._sandbox.effects()
        counted = self.app.store.read(lambda tx: tally(tx.rows("view_demo_states"), effects))
        assert list(counted.problems()) == []
        assert len(counted.taken) == COUNT
        assert verify(self.app.store).faults == []
        assert told(self.log, "stage_failed", "stage") == Counter()


@contextmanager
def in_the_middle(url: str, folder: Path, sandbox: SandboxClient) -> Iterator[Running]:
    """Some of the deliveries have been taken, most have not."""
    sandbox.reset()
    config = configure(folder / "sendonce.toml", url, sandbox.http_port)
    with App(load(config, environ={})) as app, process(config, "up") as log:
        schedule(app, COUNT)
        wait_for(lambda: len(sandbox.effects()) >= BEGUN)
        assert states(app)[State.ACCEPTED] < COUNT / 2
        yield Running(app, log, sandbox)


@pytest.fixture
def running(server: PostgresServer, sandbox: SandboxClient, tmp_path: Path) -> Iterator[Running]:
    url = server.create_database("faults")
    with in_the_middle(url, tmp_path, sandbox) as it:
        yield it
    server.drop_database("faults")


# The server


@pytest.mark.parametrize("immediate", [False, True], ids=["shut down", "crashed"])
def test_a_server_that_goes_and_comes_back(running: Running, server: PostgresServer, immediate: bool) -> None:
    server.stop(immediate=immediate)
    try:
        assert "cannot be reached" in str(running.refused())
        running.says("store_unreachable")
    finally:
        server.start()
    running.finish()


def test_a_server_that_may_only_be_read_for_a_while(running: Running, server: PostgresServer) -> None:
    """As one that was demoted, before anybody changed the URL; its connections stay open."""
    with server.setting("default_transaction_read_only", "on"):
        refused = running.refused()
        assert refused.code == "store_read_only"
        assert "name the primary in the URL" in str(refused)
        running.says("store_read_only")
        assert states(running.app).total() == COUNT, "who only reads still can"
    running.finish()


def test_of_several_hosts_the_one_that_can_be_written_is_found(server: PostgresServer) -> None:
    """A planned change of servers: the old one lives on and refuses writes, the new one has all that was
    committed before. Nobody restarts the processes."""
    server.create_database("moved")
    open_store(server.url("moved"), SystemClock(), inline=True).close()
    with PostgresServer() as other:
        other.stop()
        server.stop()
        for folder in (server.folder / "data", other.folder / "data"):
            (folder / "postmaster.pid").unlink(missing_ok=True)
        shutil.rmtree(other.folder / "data")
        subprocess.run(["cp", "-a", server.folder / "data", other.folder / "data"], check=True)
        server.start()
        other.start()
        hosts = f"{server.folder},{other.folder}"
        store = open_store(f"postgresql://postgres@/moved?host={hosts}", SystemClock())
        store.write(lambda tx: tx.set_meta("written", "before")).result(WITHIN_S)
        with server.setting("default_transaction_read_only", "on"):
            store.write(lambda tx: tx.set_meta("written", "after")).result(WITHIN_S)
        store.close()
        written = "SELECT value FROM sendonce.meta WHERE name = 'written'"
        for place, value in ((server, "before"), (other, "after")):
            with psycopg.connect(place.url("moved")) as connection:
                assert connection.execute(written.encode()).fetchall() == [(value,)]
    server.drop_database("moved")


def test_a_server_without_a_free_connection(running: Running, server: PostgresServer) -> None:
    """STOR-05: `max_connections` is reached, and then the service loses its own."""
    with ExitStack() as others:
        administrator = others.enter_context(psycopg.connect(server.url(), autocommit=True))
        fill(server, others)
        while ours(administrator):
            administrator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sendonce'"
            )
            fill(server, others)
        refused = running.refused()
        assert refused.code == "store_crowded"
        assert "raise max_connections, or use PgBouncer" in str(refused)
        running.says("store_crowded")
        config = str(running.log.with_name("sendonce.toml"))
        assert main(["--config", config, "worker"]) == 3, "one that starts now ends, and says why"
    running.finish()
    lines = running.app.store.read(
        lambda tx: [line for id_ in range(1, COUNT + 1) for line in lines_of(tx, id_)]
    )
    assert "failed" not in {line.event for line in lines}, "no call was blamed for it"


def fill(server: PostgresServer, others: ExitStack) -> None:
    """Take every connection that is left."""
    with suppress(psycopg.OperationalError):
        while True:
            others.enter_context(psycopg.connect(server.url(), application_name="others"))


def ours(administrator: psycopg.Connection) -> int:
    rows = administrator.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sendonce'"
    ).fetchall()
    return int(rows[0][0])


def test_a_server_whose_disk_is_full(running: Running, server: PostgresServer) -> None:
    """Its answer, word for word, wherever the ledger would grow: the disk itself is nobody's to fill."""
    server.execute(
        "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
        "'could not extend file \"base/16384/2619\": No space left on device' USING ERRCODE = 'disk_full'; "
        "END $$; CREATE TRIGGER no_space BEFORE INSERT ON sendonce.ledger EXECUTE FUNCTION no_space()",
        "faults",
    )
    refused = running.refused()
    assert refused.code == "store_full"
    assert "free space; nothing was half written" in str(refused)
    running.says("store_full")
    server.execute("DROP FUNCTION no_space() CASCADE", "faults")
    running.finish()


# The schema


def test_a_newer_schema_that_comes_while_older_processes_run(
    running: Running, server: PostgresServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """They go on: a migration takes nothing from them. A process that starts must know the schema."""
    newest = migrations("postgresql")[-1][0]
    version = "UPDATE sendonce.meta SET value = '{}' WHERE name = 'schema_version'"
    server.execute(version.format(newest + 1), "faults")
    capfd.readouterr()
    assert main(["--config", str(running.log.with_name("sendonce.toml")), "overview"]) == 3
    said = capfd.readouterr().err
    assert f"schema version {newest + 1}, this program knows {newest}" in said
    assert "nothing was changed" in said
    running.finish()
    assert told(running.log, "store_unavailable", "error") == Counter()


def test_an_older_schema_is_brought_up_to_date_beside_older_processes(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is in it, once, by whichever of the new processes comes first."""
    older = open_store(postgres_url, SystemClock())
    older.write(lambda tx: tx.set_meta("kept", "yes")).result(WITHIN_S)
    known = migrations("postgresql")
    more = (known[-1][0] + 1, "CREATE TABLE more (id {id}, word TEXT NOT NULL DEFAULT '');")
    monkeypatch.setattr("sendonce.store.postgres_schema.migrations", lambda database: [*known, more])
    newer = both_at_once(postgres_url)
    assert {store.read(lambda tx: tx.meta("kept")) for store in newer} == {"yes"}
    assert newer[0].read(lambda tx: tx.meta("schema_version")) == str(more[0])
    older.write(lambda tx: tx.set_meta("kept", "still")).result(WITHIN_S)
    assert newer[1].read(lambda tx: tx.meta("kept")) == "still"
    for store in (older, *newer):
        store.close()
    with psycopg.connect(bare(postgres_url)[0], autocommit=True) as connection:
        connection.execute(f'DROP TABLE "{bare(postgres_url)[1]}".more'.encode())
        connection.execute(
            f'UPDATE "{bare(postgres_url)[1]}".meta SET value = $1 '.replace(
                "$1", f"'{known[-1][0]}'"
            ).encode()
            + b"WHERE name = 'schema_version'"
        )


def both_at_once(url: str) -> list[PostgresStore]:
    opened: list[Future[PostgresStore]] = [Future(), Future()]

    def opening(future: Future[PostgresStore]) -> None:
        try:
            future.set_result(open_store(url, SystemClock()))
        except BaseException as error:
            future.set_exception(error)

    for future in opened:
        threading.Thread(target=opening, args=(future,)).start()
    return [future.result(WITHIN_S) for future in opened]


# Clocks and configurations that differ


class Off(SystemClock):
    """The clock of another machine, some hours off, started at another time."""

    def __init__(self, hours: int) -> None:
        self._off_us = hours * HOUR_US

    def now(self) -> int:
        return super().now() + self._off_us

    def boot(self) -> int:
        return super().boot() + 17 * abs(self._off_us)


@contextmanager
def at_work(app: App) -> Iterator[None]:
    """Schedules and sends on a thread of its own, as `up` does."""
    loops: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    failures: list[tuple[str, Exception]] = []

    async def run() -> None:
        stopping = asyncio.Event()
        loops.set_result((asyncio.get_running_loop(), stopping))
        await serve(
            app,
            work=True,
            schedule=True,
            stopping=stopping,
            role="up",
            on_error=lambda stage, error: failures.append((stage, error)),
        )

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    loop, stopping = loops.result(WITHIN_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(WITHIN_S)
    assert failures == []


def test_clients_whose_clocks_are_hours_off(
    postgres_url: str, sandbox: SandboxClient, tmp_path: Path
) -> None:
    """STOR-09: ahead, behind, started at other times: due and every lease are the server's word."""
    sandbox.reset()
    config = configure(tmp_path / "sendonce.toml", postgres_url, sandbox.http_port)
    with ExitStack() as opened:
        apps = [opened.enter_context(App(load(config, environ={}), clock=Off(hours))) for hours in (-7, 5, 0)]
        add_template(apps[0])
        for app in apps:
            opened.enter_context(at_work(app))
        soon = datetime.now(UTC) + timedelta(seconds=1.5)
        for place, app in enumerate(apps):
            client = Client.of(app)
            some = reminders(10, first=10 * place)
            results = client.schedule(
                [{**each, "due": due} for each, due in zip(some, ["now"] * 5 + [soon] * 5, strict=True)]
            )
            assert all(result.ok for result in results), results[0]
        wait_for(lambda: states(apps[2]) == {State.ACCEPTED: 30})
        effects = sandbox.effects()
        counted = apps[2].store.read(lambda tx: tally(tx.rows("view_demo_states"), effects))
        assert list(counted.problems()) == []
        early = [each for each in effects if each["at"] < soon.timestamp() * 1e6]
        assert len(early) <= 15, "what was due later came before its time"
        assert verify(apps[2].store).faults == []
        assert apps[2].store.read(lambda tx: tx.calls.overdue(2**62, 99)) == []


@pytest.mark.parametrize("hours", [-7, 5])
def test_a_command_on_a_machine_whose_clock_is_hours_off(
    postgres_url: str, sandbox: SandboxClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """An opt-out from there is as old as it is: it must win against what was recorded before it."""
    config = configure(tmp_path / "sendonce.toml", postgres_url, sandbox.http_port)

    def sendonce(*words: str, code: int = 0) -> None:
        assert main(["--config", str(config), *words]) == code

    with App(load(config, environ={})) as app:
        add_template(app)
        later: dict[str, Any] = {**reminders(1)[0], "due": datetime.now(UTC) + timedelta(hours=1)}
        assert Client.of(app).schedule([later])[0].ok
        phone = str(later["phone"])
        sendonce("suppress", "add", phone, "--kind", "opt_in")
        true_now = SystemClock.now
        monkeypatch.setattr(SystemClock, "now", lambda self: true_now(self) + hours * HOUR_US)
        sendonce("suppress", "add", phone, "--kind", "opt_out")
        assert states(app) == {State.SUPPRESSED: 1}
        # "In two hours" is counted from the server's time too.
        sendonce("pause", "account", "text", "--reason", "clock", "--until", "in 2h")
        now, until = app.store.read(lambda tx: (tx.now, tx.runs.pauses()[0].until))
        assert 0 <= now + 2 * HOUR_US - until < 60_000_000


def test_two_workers_with_other_limits_for_one_account(
    postgres_url: str, sandbox: SandboxClient, tmp_path: Path
) -> None:
    """The file of the one that was started last holds for both, and it says so."""
    sandbox.reset()
    loose = configure(tmp_path / "loose.toml", postgres_url, sandbox.http_port, rate=40, lanes=10)
    tight = configure(tmp_path / "tight.toml", postgres_url, sandbox.http_port, rate=10, lanes=2)
    with ExitStack() as opened:
        app = opened.enter_context(App(load(loose, environ={})))
        first = opened.enter_context(process(loose, "up"))
        wait_for(lambda: told(first, "process_started", "role"))
        log = opened.enter_context(process(tight, "worker"))
        wait_for(lambda: told(log, "limits_changed", "limits"))
        assert told(log, "limits_changed", "limits") == {"10/1s; 2 lanes; headroom 0": 1}
        assert told(log, "limits_changed", "source") == {"configuration": 1}
        schedule(app, 15)
        wait_for(lambda: states(app) == {State.ACCEPTED: 15})
        report = sandbox.report()["channels"]["sms"]
        assert (report["effects"], report["markers"]) == (15, 15)
        assert report["worst_window"]["calls"] <= 10
        assert report["most_in_flight"] <= 2
        # Who only looks, with whatever file, changes nothing.
        assert main(["--config", str(loose), "overview"]) == 0
        (gate,) = app.store.read(lambda tx: tx.gates.all())
        assert gate.limits.lanes == 2
