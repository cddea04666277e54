"""The system under test: sendonce in a folder of its own, driven the way its users drive it.

    with sendonce(Account(door.url)) as subject:
        subject.fill(20_000)                    # import a file, publish it; due now
        with subject.workers(2) as pids:        # `sendonce worker`, real processes
            ...

Rows come in through the importer and a pass publishes them, so what a worker meets is what it meets in
service. Another system, or another store, is measured by a subject with the same three verbs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from bench import machine
from sendonce import config
from sendonce.app import App
from sendonce.core.lifecycle import State
from sendonce.core.reminder import COLUMNS
from sendonce.pipeline import importer, templates
from sendonce.pipeline.importer import Report
from sendonce.runtime.crew import idle_cores
from sendonce.table_file import TableFile
from sendonce.testing.postgres_server import PostgresServer

STOP_S: Final = 30.0
SERVER_MB: Final = 512
TEMPLATE: Final = "Hello {{ name }}, your parcel {{ parcel }} arrives today. [ref:{{ delivery_key }}]"


@dataclass(frozen=True, slots=True)
class Account:
    """The account that everything goes through. The limit is out of the way unless it is measured.

    keyed    the provider honours idempotency keys; else what may have been sent is held for a person
    timeout  of one call, and `lease` of what a worker has claimed
    event_secret  what the provider signs its events with; "": it calls nobody
    """

    url: str
    limit: str = "100000/s"
    lanes: int = 512
    jitter: str = "100ms"
    keyed: bool = True
    timeout: str = "30s"
    lease: str = "30s"
    event_secret: str = ""


@contextmanager
def sendonce(account: Account, store: str = "sqlite") -> Iterator[Subject]:
    """A fresh store of this kind with one account and one template, removed in the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sendonce-bench-"))
        if store == "sqlite":
            yield Subject(Path(folder), account)
        else:
            server = stack.enter_context(PostgresServer(durable=True, memory_mb=SERVER_MB))
            yield Subject(Path(folder), account, server)


@dataclass(frozen=True, slots=True)
class Wrote:
    """What a database server wrote: its log, changes of rows of `delivery` and those among them that no index
    heard of (HOT), and the size of the database."""

    wal_bytes: int
    wal_records: int
    changed: int
    hot: int
    size: int


class Subject:
    """sendonce, in a folder."""

    name: Final = "sendonce"

    def __init__(self, folder: Path, account: Account, server: PostgresServer | None = None) -> None:
        self.folder = folder
        self.server = server
        self.path = folder / "sendonce.toml"
        url = "sqlite:///bench.db" if server is None else server.url()
        self.path.write_text(_configuration(account, url), "utf-8")
        (folder / "event-secret").write_text(account.event_secret, "utf-8")
        with self.open() as app:
            (folder / "templates").mkdir()
            (folder / "templates" / "parcel.sms.txt").write_text(TEMPLATE, "utf-8")
            templates.add(app.store, folder / "templates", "parcel", actor="bench")

    def open(self) -> App:
        """The same configuration in this process; close it before workers are timed."""
        return App(config.load(self.path, environ={}))

    def fill(self, count: int, *, due: str = "now") -> None:
        """Import `count` reminders and publish what is due."""
        with self.open() as app:
            report = self.take_in(app, self.rows_file(count, due=due))
            assert report.deliveries == count, report.problems[:3]
            publish(app)
        self.analyze()

    def analyze(self) -> None:
        """As a server does by itself, but not within the first minute."""
        if self.server is not None:
            self.server.execute("ANALYZE")

    def rows_file(self, count: int, *, due: str = "now", first: int = 0) -> Path:
        """A CSV file of `count` rows, numbered from `first`, for one channel, each to its own customer."""
        path = self.folder / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write("reminder,customer,phone,due,template,name,parcel\n")
            for n in range(first, first + count):
                # A number each, as in service; they reach nobody but the door on this machine.
                file.write(f"parcel-{n},customer-{n},+1202{2_000_000 + n},{due},parcel,Ada Example,{n:08}\n")
        return path

    def take_in(self, app: App, path: Path) -> Report:
        """Import a file: every row validated and rendered."""
        with path.open("rb") as lines:
            return importer.import_rows(
                app.store,
                app.policy,
                TableFile(lines, COLUMNS),
                actor="bench",
                file=path.name,
                book=app.book,
                hands=idle_cores(),
            )

    def server_cpu_s(self) -> float:
        """What the database server has used so far; 0 where the store is part of the worker."""
        return 0.0 if self.server is None else machine.tree_cpu_s(self.server.pid)

    def server_wrote(self) -> Wrote | None:
        """What the database server has written so far; None where there is none. Sessions tell what they did
        within a second, and when they end."""
        if self.server is None:
            return None
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            row = connection.execute(
                b"SELECT wal_bytes, wal_records, n_tup_upd, n_tup_hot_upd, "
                b"pg_database_size(current_database()) "
                b"FROM pg_stat_wal, pg_stat_user_tables WHERE relname = 'delivery'"
            ).fetchone()
        assert row is not None
        return Wrote(*map(int, row))

    def accepted(self) -> int:
        """How many deliveries the store says were accepted."""
        return self.count_in(State.ACCEPTED)

    def count_in(self, *states: State) -> int:
        """How many deliveries the store has in these states."""
        with self.open() as app:
            rows = app.store.read(lambda tx: tx.rows("view_report", start=0, end=2**62, tenant=""))
            return sum(int(row["count"]) for row in rows if row["state"] in states)

    def count_entries(self, event: str) -> int:
        """How many ledger entries tell of this event."""
        with self.open() as app:
            last = app.store.read(lambda tx: tx.rows("view_progress_last_entry"))[0]["id"]
            rows = app.store.read(lambda tx: tx.rows("view_progress_since", after=0, last=last))
            return sum(int(row["n"]) for row in rows if row["event"] == event)

    def command(self, role: str) -> list[str]:
        """How a process of this role is started."""
        return [sys.executable, "-m", "sendonce", "--config", str(self.path), role]

    @contextmanager
    def workers(self, count: int) -> Iterator[list[int]]:
        """`sendonce worker` processes; yields their ids, stops them gracefully in the end."""
        with ExitStack() as stack:
            yield [stack.enter_context(self._worker(number)) for number in range(count)]

    @contextmanager
    def _worker(self, number: int) -> Iterator[int]:
        command = self.command("worker")
        with (
            (self.folder / f"worker-{number}.log").open("wb") as log,
            subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=environment()) as process,
        ):
            try:
                yield process.pid
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def publish(app: App) -> None:
    """Passes until everything that is due is queued."""
    scheduler = app.scheduler()
    while not (report := scheduler.run(trigger="bench")) or not report.complete:
        pass


def environment() -> dict[str, str]:
    """Nothing of the caller's settings reaches the processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_")}


def _configuration(account: Account, store_url: str) -> str:
    key = 'key_header = "Idempotency-Key"\nkey_window = "24h"' if account.keyed else ""
    events = _EVENTS if account.event_secret else ""
    return f"""
[store]
url = "{store_url}"

[worker]
lease = "{account.lease}"

[tenant.default]
zone = "Europe/London"

[channel.sms]
account = "text"
expiry = "24h"
alert_after = "1h"
uncertain = "hold"

[account.text]
provider = "http"
channel = "sms"
from = "+12025550100"
url = "{account.url}"
allow_plain_http = true
body_json = '{{"to": "{{{{ to }}}}", "from": "{{{{ sender }}}}", "text": "{{{{ text }}}}"}}'
{key}
timeout = "{account.timeout}"
receipt_path = "id"
throttle_scope = "rate"
limits = ["{account.limit}"]
lanes = {account.lanes}
connections_max = {account.lanes}
jitter = "{account.jitter}"
{events}
[intake]
category = "parcel"

[category.parcel]
no_consent = "allow"
"""


_EVENTS: Final = """
[account.text.events]
secrets = ["file:event-secret"]
signed = "hmac"
signature_header = "X-Signature"
timestamp_header = "X-Timestamp"
kind_path = "event"
receipt_path = "id"
address_path = "to"
kinds = { delivered = "delivered" }
"""
