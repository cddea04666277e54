"""Whoever found nothing to do looks again at once when there is news. Here nobody would look by itself for
longer than any of these tests may take, so that what happens, happened by news."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sendonce.app import App
from sendonce.client import Client
from sendonce.config import load
from sendonce.core.lifecycle import State
from sendonce.core.pacing import GateLimits, Limit
from sendonce.pipeline import claimer, pause, worker
from sendonce.pipeline.pause import Scope, Target
from sendonce.pipeline.scheduler import Scheduler
from sendonce.pipeline.templates import add_sources
from sendonce.ports.store import Delivery, Tx
from sendonce.render import TemplateSource
from sendonce.service import serve
from sendonce.store import writer
from sendonce.testing.conformance.store import Ear

NEVER_S = 600.0
WITHIN_S = 60.0

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

[account.text]
provider = "file"
channel = "sms"
from = "+447700900001"
path = "{folder}/sent"
limits = ["1000/s"]
lanes = 10

[intake]
category = "shipment"

[category.shipment]
no_consent = "allow"

[scheduler]
interval = "10m"
"""


class Looks:
    """Counts how often work was looked for, in any process of the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._change = threading.Condition()
        self.claims: list[str] = []
        self.passes = 0
        claim, run = claimer.claim, Scheduler.run

        def claiming(*given: Any, **named: Any) -> Any:
            claimed = claim(*given, **named)
            self._count(lambda: self.claims.append(claimed.why))
            return claimed

        def running(*given: Any, **named: Any) -> Any:
            report = run(*given, **named)
            self._count(lambda: setattr(self, "passes", self.passes + 1))
            return report

        patch.setattr(worker, "claim", claiming)
        patch.setattr(Scheduler, "run", running)
        wait_s = worker._AccountLoop._wait_s
        patch.setattr(
            worker._AccountLoop,
            "_wait_s",
            lambda loop, claimed: NEVER_S if claimed.why in ("empty", "paused") else wait_s(loop, claimed),
        )

    async def until(self, true: Callable[[], bool]) -> None:
        assert await asyncio.to_thread(self._wait, true), (self.claims, self.passes)

    def _wait(self, true: Callable[[], bool]) -> bool:
        with self._change:
            return self._change.wait_for(true, WITHIN_S)

    def _count(self, count: Callable[[], None]) -> None:
        with self._change:
            count()
            self._change.notify_all()


class Place:
    """A scheduler, a worker and somebody at a desk: on PostgreSQL in processes of their own, as far as their
    stores tell; on SQLite in one."""

    def __init__(self, config: Path, *, apart: bool, opened: ExitStack) -> None:
        apps = [opened.enter_context(App(load(config, environ={}))) for _ in range(3 if apart else 1)]
        self.scheduler, self.worker, self.desk = (apps * 3)[:3]
        sources = {"sms": TemplateSource("sms", "", "Your parcel is on its way.", "")}
        add_sources(self.desk.store, "shipment", sources, actor="test")
        self.sent = config.parent / "sent"
        self._numbers = iter(range(1, 100))

    @asynccontextmanager
    async def at_work(self) -> Any:
        """Both run, and what is announced is heard by them."""
        stopping = asyncio.Event()
        apart = self.scheduler is not self.worker
        parts = [(self.scheduler, {"schedule"}), (self.worker, {"work"})] if apart else []
        running = [
            asyncio.create_task(
                serve(
                    app,
                    work="work" in does,
                    schedule="schedule" in does,
                    stopping=stopping,
                    role="test",
                    on_error=_fails,
                )
            )
            for app, does in parts or [(self.worker, {"work", "schedule"})]
        ]
        try:
            for app in (self.scheduler, self.worker):
                ear = Ear(app.store)
                with closing(ear):
                    await asyncio.to_thread(ear.tune_in, self.desk.store)
            yield
        finally:
            stopping.set()
            await asyncio.wait_for(asyncio.gather(*running), WITHIN_S)

    def schedule(self) -> None:
        number = next(self._numbers)
        (result,) = Client.of(self.desk).schedule(
            [
                {
                    "reminder": f"shipment-{number}",
                    "customer": "customer-1",
                    "due": datetime.now(UTC),
                    "template": "shipment",
                    "phone": "+12025551000",
                }
            ]
        )
        assert result.ok, result

    def pause(self, target: Target) -> None:
        pause.pause(self.desk.store, target, self.desk.policy, reason="a test", actor="me")

    def resume(self, target: Target) -> None:
        pause.resume(self.desk.store, target, self.desk.policy, reason="a test", actor="me")

    async def accepted(self, count: int) -> None:
        await self.rows(lambda rows: sum(row.standing.state is State.ACCEPTED for row in rows) >= count)

    async def rows(self, are: Callable[[list[Delivery]], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not are(await asyncio.to_thread(self.desk.store.read, _rows)):  # noqa: ASYNC110 (another's)
                await asyncio.sleep(0.01)


def _fails(stage: str, error: Exception) -> None:
    raise AssertionError(f"{stage} failed") from error


def _rows(tx: Tx) -> list[Delivery]:
    return tx.deliveries.by_ids(range(1, 100))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    apart = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if apart else f"sqlite:///{tmp_path}/s.db"
    config = tmp_path / "sendonce.toml"
    config.write_text(CONFIG.format(url=url, folder=tmp_path))
    with ExitStack() as opened:
        yield Place(config, apart=apart, opened=opened)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def test_what_is_due_now_is_published_and_sent_without_anybodys_turn_to_look(
    place: Place, looks: Looks
) -> None:
    async def run() -> None:
        async with place.at_work():
            await looks.until(lambda: looks.passes >= 1 and looks.claims[-1:] == ["empty"])
            for number in range(1, 4):
                await asyncio.to_thread(place.schedule)
                await place.accepted(number)

    asyncio.run(run())
    assert len(place.sent.read_text("utf-8").splitlines()) == 3


def test_a_resumed_account_goes_on_at_once(place: Place, looks: Looks) -> None:
    async def run() -> None:
        account = Target(Scope.ACCOUNT, "text")
        place.pause(account)
        async with place.at_work():
            await looks.until(lambda: looks.passes >= 1 and looks.claims[-1:] == ["paused"])
            await asyncio.to_thread(place.schedule)
            await looks.until(lambda: looks.passes >= 2)
            await asyncio.to_thread(place.resume, account)
            await place.accepted(1)

    asyncio.run(run())


def test_a_resumed_scheduler_and_a_resumed_channel_go_on_at_once(place: Place, looks: Looks) -> None:
    async def run() -> None:
        for target in (Target(Scope.SCHEDULER), Target(Scope.CHANNEL, "sms")):
            place.pause(target)
        async with place.at_work():
            await looks.until(lambda: looks.passes >= 1 and looks.claims[-1:] == ["empty"])
            await asyncio.to_thread(place.schedule)
            await asyncio.to_thread(place.resume, Target(Scope.SCHEDULER))
            await place.rows(lambda rows: rows[0].course.reason == "paused:channel")
            await asyncio.to_thread(place.resume, Target(Scope.CHANNEL, "sms"))
            await place.accepted(1)

    asyncio.run(run())


def test_other_limits_are_looked_at_at_once(place: Place, looks: Looks) -> None:
    async def run() -> None:
        async with place.at_work():
            await looks.until(lambda: looks.claims[-1:] == ["empty"])
            before = len(looks.claims)
            limits = GateLimits((Limit(2_000, 1_000_000),), lanes=10)
            await asyncio.to_thread(
                lambda: pause.change_limits(place.desk.store, "text", limits, reason="a test", actor="me")
            )
            await looks.until(lambda: len(looks.claims) > before)

    asyncio.run(run())


def test_what_units_of_one_commit_announce_is_all_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "HOLD_S", WITHIN_S)  # whoever waits together commits together
    store, ear, go = place.desk.store, Ear(place.worker.store), threading.Event()
    ear.tune_in(store)
    first = store.write(lambda tx: go.wait(WITHIN_S))

    def announcing(topics: Sequence[str], tx: Tx) -> None:
        for topic in topics:
            tx.announce(topic)

    units = [store.write(partial(announcing, topics)) for topics in (["a", "b"], ["b", "c"], ["a"], [])]
    go.set()
    first.result(WITHIN_S)
    for future in units:
        future.result(WITHIN_S)
    assert sorted(ear.until(3)) == ["a", "b", "c"]
    ear.tune_in(store)
    assert ear.silent


def test_a_burst_of_announcements_is_no_burst_of_claims(place: Place, looks: Looks) -> None:
    async def run() -> None:
        async with place.at_work():
            await looks.until(lambda: looks.claims[-1:] == ["empty"])
            before = len(looks.claims)
            begun = asyncio.get_running_loop().time()
            for _ in range(20):
                units = [place.desk.store.write(lambda tx: tx.announce("queued:text")) for _ in range(50)]
                await asyncio.gather(*map(asyncio.wrap_future, units))
            spans = (asyncio.get_running_loop().time() - begun) / 0.02
            await looks.until(lambda: len(looks.claims) > before)
            assert len(looks.claims) - before <= spans + 2

    asyncio.run(run())
