"""The forecast against the simulator: what it says of a steady provider is what then happens.

A scheduler and two workers run the product's own stages on the simulator's store and provider, without
faults, on virtual time. The forecast is asked before the burst, and again in the midst of it, when it has
seen calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.pacing import SECOND, GateLimits, Limit
from sendonce.core.retry import RetryPolicy
from sendonce.pipeline.forecast import AccountForecast, forecast
from sendonce.pipeline.scheduler import TIMER, Scheduler
from sendonce.pipeline.worker import Worker, WorkerSettings
from sendonce.ports.clock import Clock
from sendonce.ports.store import Store
from sendonce.store.sqlite import SqliteStore, open_store
from sendonce.template_book import TemplateBook, from_store
from sendonce.testing.clock import VirtualClock
from sendonce.testing.simulator.checks import Checker
from sendonce.testing.simulator.faults import PROFILES, Dice, Fault, Profile
from sendonce.testing.simulator.loop import VirtualLoop
from sendonce.testing.simulator.ports import Ground, SimulatedClock, StorePort
from sendonce.testing.simulator.process import Process
from sendonce.testing.simulator.provider import ProviderPort, SimulatedAccount, classes_of
from sendonce.testing.simulator.world import START_AT
from tests.integration import world as small
from tests.integration.places import SqlitePlace
from tests.integration.world import World

BURST_AT_S = 3.0
COUNT = 300
ENDS_S = 6_000.0
WITHIN = 0.05


class LoopPlace(SqlitePlace):
    """A store on the loop's time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def open(self, path: str, clock: VirtualClock, holder: object) -> Store:
        return open_store("sqlite://:memory:", self._clock, inline=True)


class Steady:
    """One account that does what it always does, on a loop of its own."""

    def __init__(self, seed: int, limits: GateLimits, profile: Profile = PROFILES["calm"]) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]  # what it has not got, nobody here asks for
        self.clock = SimulatedClock(self.loop, START_AT)
        small.place = LoopPlace(self.clock)
        self.world = World("K", limits=limits, retry=RetryPolicy(attempts_max=9, base_s=2.0))
        self.world.template("t", Channel.SMS, "[ref:{{ delivery_key }}]", version=2)
        store = self.world.store
        assert isinstance(store, SqliteStore)
        self.policy = self.world.policy
        accounts = list(self.policy.accounts.values())
        dice = Dice(seed, profile, frozenset(), self.loop.time)
        self.checker = Checker(store, classes_of(accounts), self.loop.time)
        self.ground = Ground(
            self.loop,
            self.clock,
            dice,
            store,
            self.checker,
            self.policy.lease_s,
            lambda process: process.kill(),
        )
        self.account = SimulatedAccount(accounts[0], self.ground, lambda *told: None)

    def run(self, at_s: float, look: Callable[[], None]) -> float:
        """Send everything; when the last one was taken, in seconds. `look` at `at_s`."""
        main = self.loop.create_task(self._main(at_s, look))
        self.loop.run_until_complete(main)
        assert not self.checker.broken, self.checker.broken[0]
        return main.result()

    def look(self) -> AccountForecast:
        (one,) = self.world.read(lambda tx: forecast(tx, self.policy)).accounts
        return one

    def seconds(self, at: int | None) -> float:
        assert at is not None
        return (at - START_AT) / SECOND

    async def _main(self, at_s: float, look: Callable[[], None]) -> float:
        self.loop.call_later(at_s, look)
        processes = [Process(self.loop, name, 1) for name in ("scheduler", "worker-1", "worker-2")]
        running = [processes[0].spawn(self._schedules(processes[0]))]
        workers = [self._worker(process) for process in processes[1:]]
        running += [p.spawn(w.run()) for p, w in zip(processes[1:], workers, strict=True)]
        asked = self.asked
        while len(self.account.taken) < asked and self.loop.time() < ENDS_S:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        for process in processes:
            process.kill()
        await asyncio.gather(*running, return_exceptions=True)
        assert len(self.account.taken) == asked
        return self.account.taken[-1].at_us / SECOND

    asked = 0

    def schedule(self, count: int, due_in_s: float = BURST_AT_S) -> None:
        self.world.schedule_many(count, customer=f"c-{self.asked}", due_in_s=due_in_s)
        self.asked += count

    async def _schedules(self, process: Process) -> None:
        port = StorePort(process, self.ground)
        scheduler = Scheduler(port, self.policy, TemplateBook(from_store(port)), process=process.id)
        while True:
            await process.side.run(partial(scheduler.run, trigger=TIMER))
            await asyncio.sleep(1.0)

    def _worker(self, process: Process) -> Worker:
        port = ProviderPort(process, self.account, self.ground, freeze_max_s=1.0)
        return Worker(
            StorePort(process, self.ground),
            self.policy,
            {self.account.name: port},
            WorkerSettings(process.id, "worker", "simulated", 1),
            chance=lambda: 0.5,
        )


@contextmanager
def steady(seed: int, limits: GateLimits, profile: Profile = PROFILES["calm"]) -> Iterator[Steady]:
    before = small.place
    try:
        yield Steady(seed, limits, profile)
    finally:
        small.place = before


PACED = GateLimits((Limit(10, SECOND),), lanes=50)
HEADROOM = GateLimits((Limit(720, 60 * SECOND),), lanes=50, headroom=0.25)
FEW_LANES = GateLimits((Limit(500, SECOND),), lanes=3)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("limits", [PACED, HEADROOM], ids=["rate", "headroom"])
def test_the_drain_of_a_burst_is_foretold_within_a_twentieth(seed: int, limits: GateLimits) -> None:
    with steady(seed, limits) as it:
        it.schedule(COUNT)
        before = it.look()
        again, took_s = in_the_midst(it, 5.0)
        for foretold in (before, again):
            assert it.seconds(foretold.drained_at) - BURST_AT_S == pytest.approx(took_s, rel=WITHIN)
            assert foretold.bound == "rate"
        assert before.calls == 1.0
        assert again.waiting == pytest.approx(COUNT - 5 * before.per_s, rel=WITHIN)


def in_the_midst(it: Steady, after_s: float) -> tuple[AccountForecast, float]:
    """What is foretold so long after the burst began, and how long that then took."""
    again: list[AccountForecast] = []
    took_s = it.run(BURST_AT_S + after_s, lambda: again.append(it.look())) - BURST_AT_S
    (foretold,) = again
    return foretold, took_s


def test_where_lanes_set_the_pace_the_calls_so_far_tell_it() -> None:
    """Of one short burst the calls scatter by more than a twentieth: three of them together do not."""
    foretold_s = took_s = 0.0
    for seed in (1, 2, 3):
        with steady(seed, FEW_LANES) as it:
            it.schedule(COUNT)
            foretold, own_s = in_the_midst(it, 6.0)
            assert foretold.bound == "lanes"
            foretold_own_s = it.seconds(foretold.drained_at) - BURST_AT_S
            assert foretold_own_s == pytest.approx(own_s, rel=2 * WITHIN)
            foretold_s, took_s = foretold_s + foretold_own_s, took_s + own_s
    assert foretold_s == pytest.approx(took_s, rel=WITHIN)


@pytest.mark.parametrize(("seed", "failing"), [(1, 0.2), (2, 0.2), (1, 0.05)])
def test_what_is_tried_again_is_counted_in(seed: int, failing: float) -> None:
    """One call in five, or in twenty, is refused for a while, and then taken. Two hundred calls tell it: what
    they leave uncertain of the share is a thirtieth, and of what is still to come that is less."""
    with steady(seed, PACED, Profile("flaky", {Fault.UNAVAILABLE: failing}, share=1.0)) as it:
        it.schedule(600)
        foretold, took_s = in_the_midst(it, 20.0)
        assert foretold.calls > 1.0
        assert it.seconds(foretold.drained_at) - BURST_AT_S == pytest.approx(took_s, rel=WITHIN)
