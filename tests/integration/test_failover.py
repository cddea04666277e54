"""A failover and a restore that lost commits: real servers, real processes, and the count of the sandbox.

Workers send over an account of class K and one of class N while their PostgreSQL falls behind its own
standby, or its backup, and is lost. What they had sent since looks as if it waited still. Nothing leaves
until somebody releases the store; then K is complete and nobody got anything twice, and of N nothing leaves
by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sendonce.app import App
from sendonce.client import Client
from sendonce.config import load
from sendonce.core.lifecycle import ENDED, Event, State
from sendonce.held import FAILOVER, hold_of
from sendonce.pipeline.record import lines_of
from sendonce.pipeline.restore import Reconciled, released
from sendonce.pipeline.templates import add_sources
from sendonce.pipeline.verify import verify
from sendonce.render import TemplateSource
from sendonce.testing.postgres_server import PostgresServer
from sendonce.testing.sandbox import ChannelRules, SandboxClient, SandboxSettings, sandbox_in_process
from tests.integration.processes import pid_of, process
from tests.integration.service import wait_for

EACH = 320
"""Reminders, each of them by SMS (class K) and by email (class N)."""
LOST = 40
"""So many of each channel at least are sent after the last commit that is there afterwards."""
NAME = "reminders"
ANN = "operator:ann"

CONFIG = """
[store]
url = "{url}"

[tenant.default]
zone = "Europe/London"

[channel.sms]
account = "text"
expiry = "2h"
alert_after = "2m"
uncertain = "hold"

[channel.email]
account = "mail"
expiry = "2h"
alert_after = "2m"
uncertain = "hold"

[account.text]
provider = "http"
channel = "sms"
from = "+447700900001"
url = "http://127.0.0.1:{http}/v1/messages"
allow_plain_http = true
body_json = '{{"to": "{{{{ to }}}}", "from": "{{{{ sender }}}}", "text": "{{{{ text }}}}"}}'
key_header = "Idempotency-Key"
key_window = "24h"
receipt_path = "id"
throttle_scope = "rate"
limits = ["40/s"]
lanes = 10
jitter = "60ms"
timeout = "2s"

[account.mail]
provider = "smtp"
channel = "email"
from = "Shop <shop@example.com>"
host = "127.0.0.1"
port = {smtp}
security = "none"
limits = ["40/s"]
lanes = 10
jitter = "60ms"
transaction_timeout = "2s"
reply_timeout = "2s"

[intake]
category = "shipment"

[category.shipment]
no_consent = "allow"

[scheduler]
interval = "200ms"
"""


class Site:
    """Two servers, of which one takes over, and the processes that work on them."""

    def __init__(self, opened: ExitStack, folder: Path) -> None:
        self.opened = opened
        rules = ChannelRules(latency_s=(0.05, 0.15))
        self.sandbox: SandboxClient = opened.enter_context(
            sandbox_in_process(SandboxSettings(sms=rules, email=rules))
        )
        self.primary = opened.enter_context(PostgresServer())
        self.primary.create_database(NAME)
        self._config = folder / "sendonce.toml"
        self.use(self.primary)
        self.app = self._open()

    def use(self, *servers: PostgresServer) -> None:
        """Let new processes work on whichever of these takes writes."""
        folders = ",".join(quote(str(server.folder), safe="") for server in servers)
        url = f"postgresql://postgres@/{NAME}?host={folders}"
        text = CONFIG.format(url=url, http=self.sandbox.http_port, smtp=self.sandbox.smtp_port)
        self._config.write_text(text, encoding="utf-8")

    def open_anew(self) -> None:
        self.app.close()
        self.app = self._open()

    def start(self, role: str) -> Any:
        return self.opened.enter_context(process(self._config, role))

    def sent(self, channel: str) -> dict[str, Any]:
        report: dict[str, Any] = self.sandbox.report()["channels"][channel]
        return report

    def wait_for_effects(self, more: int) -> None:
        """Until so many more have left on each channel, or all of it."""
        least = {channel: min(EACH, self.sent(channel)["effects"] + more) for channel in ("sms", "email")}
        wait_for(lambda: all(self.sent(channel)["effects"] >= number for channel, number in least.items()))

    def wait_until_quiet(self) -> None:
        wait_for(lambda: all(self.sent(channel)["in_flight"] == 0 for channel in ("sms", "email")))

    def states(self, channel: str) -> Counter[State]:
        rows = self.app.store.read(lambda tx: tx.deliveries.by_ids(range(1, 2 * EACH + 1)))
        return Counter(row.standing.state for row in rows if row.channel == channel)

    def beats(self, pid: int) -> int:
        """When this process last beat, by the store; 0: it is not known there."""
        rows = self.app.store.read(lambda tx: tx.rows("view_processes", since=0, steady=0, limit=100))
        return max((int(row["beat_at"]) for row in rows if row["pid"] == pid), default=0)

    def wait_for_beats(self, *pids: int) -> None:
        """Until each of these has beaten twice from now on: it has begun transactions in between."""
        for _ in range(2):
            before = {pid: self.beats(pid) for pid in pids}
            wait_for(lambda before=before: all(self.beats(pid) > at for pid, at in before.items()))  # type: ignore[misc]

    def _open(self) -> App:
        return self.opened.enter_context(App(load(self._config, environ={})))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as opened:
        made = Site(opened, tmp_path)
        schedule(made.app)
        yield made


def schedule(app: App) -> None:
    sources = {
        "sms": TemplateSource("sms", "", "Your parcel. [ref:{{ delivery_key }}]", ""),
        "email": TemplateSource("email", "Your parcel", "It is on its way. [ref:{{ delivery_key }}]", ""),
    }
    add_sources(app.store, "shipment", sources, actor="test")
    results = Client.of(app).schedule(
        {
            "reminder": f"shipment-{number}",
            "customer": f"customer-{number}",
            "due": datetime.now(UTC),
            "template": "shipment",
            "phone": f"+1202555{1000 + number}",
            "email": f"customer-{number}@example.com",
        }
        for number in range(EACH)
    )
    assert all(result.ok for result in results), results[0]


def test_a_standby_that_lost_commits_is_promoted_under_running_workers(site: Site) -> None:
    standby = site.opened.enter_context(site.primary.copy(follows=True))
    site.use(site.primary, standby)
    site.open_anew()
    site.start("scheduler")
    killed, living = site.start("worker"), site.start("worker")
    site.wait_for_effects(20)
    standby.cut_off()
    site.wait_for_effects(LOST)
    site.primary.stop(immediate=True)
    killed.kill()
    standby.promote()

    site.wait_for_beats(pid_of(living))
    site.wait_until_quiet()
    fresh = site.start("worker")
    wait_for(lambda: site.beats(pid_of(fresh)) > 0)
    assert_released_without_a_second_copy(site, pid_of(living), pid_of(fresh))


def test_a_backup_is_restored_that_lost_commits(site: Site) -> None:
    site.start("scheduler")
    worker = site.start("worker")
    site.wait_for_effects(20)
    backup = site.primary.copy(recovers=True)
    site.opened.callback(backup.close)
    site.wait_for_effects(LOST)
    worker.kill()
    site.primary.stop(immediate=True)
    site.wait_until_quiet()

    backup.start()
    site.use(backup)
    site.open_anew()
    site.start("scheduler")
    fresh = site.start("worker")
    wait_for(lambda: site.beats(pid_of(fresh)) > 0)
    assert_released_without_a_second_copy(site, pid_of(fresh))


def assert_released_without_a_second_copy(site: Site, *workers: int) -> None:
    """The store is held, with less in it than was sent; then it is released."""
    standing = site.app.store.read(hold_of)
    assert standing is not None
    assert standing.why == FAILOVER
    before = {channel: site.sent(channel) for channel in ("sms", "email")}
    for channel, report in before.items():
        assert report["effects"] > site.states(channel)[State.ACCEPTED] + LOST / 2, "nothing was lost"

    site.wait_for_beats(*workers)
    for channel, report in before.items():
        assert site.sent(channel)["calls"] == report["calls"], "it sends while the store is held"
    assert let_go(site, preview=True).counts[("QUEUED", "N", "uncertain")] > 0

    done = let_go(site)
    assert done.counts[("QUEUED", "K", "key")] > 0
    wait_for(lambda: site.states("sms") == {State.ACCEPTED: EACH})
    wait_for(lambda: not set(site.states("email")) - ENDED - {State.UNCERTAIN})
    site.wait_for_beats(*workers)
    site.wait_until_quiet()

    sms, email = site.sent("sms"), site.sent("email")
    assert (sms["effects"], sms["markers"], sms["duplicates"]) == (EACH, EACH, 0)
    assert sms["replays"] >= LOST / 2, "the provider has recognised what was sent twice"
    assert (email["effects"], email["duplicates"]) == (before["email"]["effects"], 0)
    states = site.states("email")
    assert set(states) == {State.ACCEPTED, State.UNCERTAIN}
    assert states[State.ACCEPTED] <= email["effects"] < EACH
    assert verify(site.app.store).ok
    assert all(doubted_once(site, id_) for id_ in range(1, 2 * EACH + 1))
    (release, held) = site.app.store.read(lambda tx: tx.rows("view_audit", before=2**62, limit=2))
    assert (release["action"], release["actor"], release["reason"]) == ("release", ANN, "incident 12")
    assert (held["action"], held["actor"]) == ("hold", "store")


def let_go(site: Site, *, preview: bool = False) -> Reconciled:
    app = site.app
    return released(app.store, app.policy, reason="incident 12", actor=ANN, preview=preview)


def doubted_once(site: Site, delivery_id: int) -> bool:
    lines = site.app.store.read(lambda tx: lines_of(tx, delivery_id))
    return sum(line.event == Event.DOUBTED for line in lines) <= 1
