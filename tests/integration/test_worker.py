"""The worker on the real clock: real loops, a real file, a provider that does as it is told.

Times are short and bounds generous: what is judged is what was sent and what was written down, and at the
provider's door the limits, which hold on a slow machine too.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.core.outcome import (
    Absent,
    Accepted,
    Failed,
    Finding,
    Found,
    NoAnswer,
    NotStarted,
    Outcome,
    Reason,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.policy import AccountPolicy, Policy
from sendonce.core.promise import Promise
from sendonce.core.retry import RetryPolicy
from sendonce.pipeline import claimer, reaper, reconciler, sender, settler, worker
from sendonce.pipeline.attempt import Attempted, Settled
from sendonce.pipeline.record import lines_of
from sendonce.pipeline.relay import relay
from sendonce.pipeline.worker import Worker, WorkerSettings
from sendonce.ports.provider import Message, Start, TooLate
from sendonce.ports.queue import Depth, Hint, Queue
from sendonce.ports.store import Delivery, Listening, Outgoing, Store, Tx
from sendonce.runtime import poller
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.poller import OnError
from sendonce.testing.transport import Faults, UnreliableQueue
from tests.integration import world as small
from tests.integration.world import SECOND, World, account_of, policy_of

T = TypeVar("T")

WITHIN_S = 20.0
"""Far more than any of these needs, also on a machine that is busy with something else."""
VALID_S = 50 * 365 * 86_400.0
LEASE_S = 0.8
"""Where a lease has to end. Elsewhere it is so long that no busy machine loses it."""


@dataclass
class Door:
    """What the provider counts for itself: starts, open calls, effects by what they say."""

    starts: list[float] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    effects: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)

    def most_within(self, seconds: float) -> int:
        return max(
            (sum(at <= other < at + seconds for other in self.starts) for at in self.starts), default=0
        )


Script = Callable[[Message, int], Outcome | Exception]


def accepts(message: Message, number: int) -> Outcome:
    return Accepted(f"receipt-{number}")


@dataclass
class Scripted:
    """`ports.provider.Provider` that asks `script(message, number of the call)` what becomes of a call.

    It honours keys, as class K does: a known one has no second effect. What the script calls unknown took
    effect; what it raises did too. `takes_s` is how long a call takes; `hang`: these calls never end.
    """

    promise: Promise
    door: Door = field(default_factory=Door)
    script: Script = accepts
    takes_s: float = 0.0
    connects_s: float = 0.0
    hang: Callable[[int], bool] = lambda number: False
    deaf: bool = False
    look: Callable[[Message], Finding] = lambda message: NoAnswer("unsupported")
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    calls: int = 0

    async def send(self, message: Message, *, start: Start) -> Outcome:
        self.asked += 1
        await asyncio.sleep(self.connects_s)
        try:
            await start()
        except TooLate as late:
            return NotStarted(late.why)
        door = self.door
        door.starts.append(time.monotonic())
        door.open += 1
        door.most_open = max(door.most_open, door.open)
        self.calls += 1
        number = self.calls
        try:
            return await self._answer(message, number)
        finally:
            door.open -= 1

    async def _answer(self, message: Message, number: int) -> Outcome:
        if self.hang(number):
            while True:
                await self.closed.wait()
                if not self.deaf:
                    return Unknown("shutdown")
                await asyncio.sleep(3600)
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        outcome = self.script(message, number)
        if isinstance(outcome, Accepted | Unknown | Exception):
            if message.send_key not in self.door.keys:
                self.door.effects[message.delivery_key] += 1
            self.door.keys.add(message.send_key)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def look_up(self, message: Message) -> Finding:
        return self.look(message)

    async def check(self) -> str:
        return "well"

    async def close(self) -> None:
        self.closed.set()


class Flaky:
    """A store whose writes fail while `down`, as with a locked or full disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.down = False
        self.refused = 0

    @property
    def secret(self) -> bytes:
        return self._store.secret

    @property
    def one_writer(self) -> bool:
        return self._store.one_writer

    def write(self, unit: Callable[[Tx], T], *, beside: bool = False) -> Future[T]:
        if self.down:
            self.refused += 1
            future: Future[T] = Future()
            future.set_exception(StoreUnavailable("the disk is full"))
            return future
        return self._store.write(unit, beside=beside)

    def read(self, query: Callable[[Tx], T]) -> T:
        return self._store.read(query)

    def listen(self, hear: Callable[[str], None]) -> Listening:
        return self._store.listen(hear)

    def steady(self) -> int:
        return self._store.steady()

    def close(self) -> None:
        self._store.close()


class Late(Flaky):
    """A store whose answers take a while, the writes do not."""

    def __init__(self, store: Store, late_s: float) -> None:
        super().__init__(store)
        self._late_s = late_s

    def write(self, unit: Callable[[Tx], T], *, beside: bool = False) -> Future[T]:
        late: Future[T] = Future()
        answer = super().write(unit, beside=beside).result()
        threading.Timer(self._late_s, late.set_result, [answer]).start()
        return late


class Bench:
    """A store with published deliveries, and workers on it."""

    def __init__(self, path: Path, policy: Policy) -> None:
        self.path = path
        self.policy = policy
        self.store: Store = small.place.another(str(path), SystemClock())
        self._opened: list[Store] = []
        self._numbers = iter(range(1, 100))

    def another(self) -> Store:
        """The same store, as another process has it."""
        store = small.place.another(str(self.path), SystemClock())
        self._opened.append(store)
        return store

    def worker(
        self,
        *providers: Scripted,
        store: Store | None = None,
        stop_s: float = 5.0,
        idle_s: float = worker.IDLE_S,
        queues: Mapping[str, Queue] | None = None,
        on_error: OnError = worker.tell_of,
    ) -> Worker:
        named = dict(zip(self.policy.accounts, providers, strict=True))
        settings = WorkerSettings(f"w-{next(self._numbers)}", "worker", "host", 1, stop_s, idle_s)
        return Worker(
            store or self.store,
            self.policy,
            named,
            settings,
            queues=queues,
            chance=lambda: 0.2,
            on_error=on_error,
        )

    def rows(self) -> list[Delivery]:
        return self.store.read(lambda tx: tx.deliveries.by_ids(range(1, 1_000)))

    def states(self) -> Counter[State]:
        return Counter(row.standing.state for row in self.rows())

    def open_calls(self) -> int:
        return self.store.read(lambda tx: sum(tx.calls.count(name) for name in self.policy.accounts))

    def close(self) -> None:
        for store in (*self._opened, self.store):
            store.close()


@contextmanager
def bench(
    tmp_path: Path, count: int, *accounts: AccountPolicy, hints: bool = False, lease_s: float = WITHIN_S
) -> Iterator[tuple[Bench, list[str]]]:
    """A bench with `count` published deliveries of each account, and their keys."""
    policy = replace(policy_of(*accounts), lease_s=lease_s, hints=hints)
    path = tmp_path / "s.db"
    world = World(policy=policy, path=str(path))
    keys = [
        world.schedule(f"{account.name}-{number}", account=account.name, valid_s=VALID_S)
        for account in accounts
        for number in range(count)
    ]
    world.pass_()
    world.store.close()
    made = Bench(path, policy)
    try:
        yield made, keys
    finally:
        made.close()


def account(
    kind: str = "K", *, rate: int = 10_000, lanes: int = 50, jitter_us: int = 10_000, **promise: float | bool
) -> AccountPolicy:
    """An account whose calls take at most a second, which retries at once and often."""
    limits = GateLimits((Limit(rate, SECOND),), lanes=lanes, jitter_us=jitter_us)
    retry = RetryPolicy(attempts_max=20, base_s=0.05, floor_s=0.02, cap_s=0.2)
    made = account_of(kind, limits=limits, retry=retry)
    short: dict[str, float | bool] = {"timeout_s": 1.0, **promise}
    return replace(made, promise=replace(made.promise, **short))  # type: ignore[arg-type]


async def work(
    *workers: Worker, until: Callable[[], bool], meanwhile: Callable[[], Awaitable[None]] | None = None
) -> float:
    """Run the workers until something is true, then stop them; how long the stop took."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    deadline = time.monotonic() + WITHIN_S
    try:
        while not until():
            assert time.monotonic() < deadline, "it takes too long"
            for task in tasks:
                assert not task.done(), "a worker ended by itself"
            if meanwhile is not None:
                await meanwhile()
            await asyncio.sleep(0.01)
    finally:
        asked = time.monotonic()
        for worker in workers:
            worker.stop()
        await asyncio.wait_for(asyncio.gather(*tasks), WITHIN_S)
    return time.monotonic() - asked


async def _true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        await asyncio.sleep(0.005)


# Sending


def test_what_was_given_back_is_claimed_again_without_waiting_for_the_next_look(tmp_path: Path) -> None:
    """It missed its slot while the queue behind it was found empty: nobody but the worker knows of it."""

    class MissesOnce(Scripted):
        async def send(self, message: Message, *, start: Start) -> Outcome:
            if self.asked:
                return await super().send(message, start=start)
            self.asked += 1
            await _true(lambda: working._accounts[0]._waits_for_work)
            return NotStarted("slot_missed")

    with bench(tmp_path, 1, account()) as (it, _):
        provider = MissesOnce(it.policy.accounts["sms-K"].promise)
        working = it.worker(provider, idle_s=10 * WITHIN_S)
        asyncio.run(work(working, until=lambda: provider.calls == 1))
        assert it.states() == {State.ACCEPTED: 1}


def test_dup_07_workers_that_overlap_send_everything_once(tmp_path: Path) -> None:
    """Four at once, and a fifth in the middle, on one file."""
    with bench(tmp_path, 200, account()) as (it, keys):
        provider = Scripted(it.policy.accounts["sms-K"].promise, takes_s=0.02)
        workers = [it.worker(provider, store=it.another()) for _ in range(4)]

        async def run() -> None:
            first = asyncio.create_task(work(*workers, until=lambda: provider.calls >= 200))
            await _true(lambda: provider.calls >= 50)
            await work(it.worker(provider), until=lambda: provider.calls >= 200)
            await first

        asyncio.run(run())
        assert it.states() == {State.ACCEPTED: 200}
        assert provider.calls == 200
        assert provider.door.effects == Counter(keys)
        assert provider.door.most_open <= 50
        assert it.open_calls() == 0


def test_rate_09_limits_hold_at_the_providers_door_over_processes(tmp_path: Path) -> None:
    """40 in any second and 4 at once, from two workers with a file between them."""
    with bench(tmp_path, 70, account(rate=40, lanes=4, jitter_us=50_000)) as (it, keys):
        door = Door()
        promise = it.policy.accounts["sms-K"].promise
        providers = [Scripted(promise, door, takes_s=0.08) for _ in range(2)]
        workers = [it.worker(provider, store=it.another()) for provider in providers]
        asyncio.run(work(*workers, until=lambda: len(door.effects) == 70))
        assert door.effects == Counter(keys)
        assert door.most_within(1.0) <= 40
        assert door.most_open <= 4
        assert min(provider.calls for provider in providers) > 0, "both of them sent"


def test_accounts_do_not_hold_up_each_other(tmp_path: Path) -> None:
    slow, fast = account("N"), account("K")
    with bench(tmp_path, 20, slow, fast) as (it, keys):
        hanging = Scripted(slow.promise, hang=lambda number: True)
        quick = Scripted(fast.promise)
        worker = it.worker(hanging, quick, stop_s=0.2)
        asyncio.run(work(worker, until=lambda: quick.calls == 20 and hanging.calls == 20))
        assert quick.door.effects == Counter(key for key in keys if key.endswith(":sms"))
        assert it.states() == {State.ACCEPTED: 20, State.UNCERTAIN: 20}


def test_failures_and_lost_answers_are_tried_again_under_the_same_key(tmp_path: Path) -> None:
    def script(message: Message, number: int) -> Outcome:
        match number % 4:
            case 0:
                return Failed(Reason.UNAVAILABLE, "503")
            case 1:
                return Unknown("reset")
            case _:
                return Accepted("r")

    with bench(tmp_path, 40, account()) as (it, keys):
        provider = Scripted(it.policy.accounts["sms-K"].promise, script=script)
        asyncio.run(work(it.worker(provider), until=lambda: it.states()[State.ACCEPTED] == 40))
        assert provider.calls > 40
        assert provider.door.effects == Counter(keys)


def test_a_429_closes_the_gate_for_every_process(tmp_path: Path) -> None:
    """The tenth call is told to wait for a second. Nobody claims until then; what was claimed before may
    still start within its slot."""
    refused_at: list[float] = []
    door = Door()

    def script(message: Message, number: int) -> Outcome:
        if len(door.starts) >= 10 and not refused_at:
            refused_at.append(time.monotonic())
            return Throttled(ThrottleScope.RATE, "429", 1.0)
        return Accepted("r")

    with bench(tmp_path, 60, account(rate=40)) as (it, keys):
        promise = it.policy.accounts["sms-K"].promise
        workers = [it.worker(Scripted(promise, door, script=script), store=it.another()) for _ in range(2)]
        asyncio.run(work(*workers, until=lambda: len(door.effects) == 60))
        (refused,) = refused_at
        assert door.effects == Counter(keys)
        in_the_pause = [at for at in door.starts if refused + 0.4 < at < refused + 0.98]
        assert in_the_pause == []
        assert any(at > refused + 0.98 for at in door.starts)
        assert all(row.course.failures == 0 for row in it.rows())


# Adapters that break the contract


def test_an_adapter_that_raises_leaves_doubt_and_the_worker_goes_on(tmp_path: Path) -> None:
    def script(message: Message, number: int) -> Outcome | Exception:
        return ZeroDivisionError("a bug") if number <= 5 else Accepted("r")

    with bench(tmp_path, 20, account()) as (it, keys):
        provider = Scripted(it.policy.accounts["sms-K"].promise, script=script)
        asyncio.run(work(it.worker(provider), until=lambda: it.states()[State.ACCEPTED] == 20))
        assert provider.door.effects == Counter(keys)
        assert provider.calls == 25


@pytest.mark.parametrize("kind", ["K", "N"])
def test_an_adapter_that_hangs_past_its_deadline_gives_its_lane_back(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lane, and the first call never ends: the reaper calls it unknown, the others still go."""
    monkeypatch.setattr(claimer, "DEADLINE_SLACK_S", 0.1)
    with bench(tmp_path, 3, account(kind, lanes=1, timeout_s=0.3)) as (it, keys):
        (name,) = it.policy.accounts
        provider = Scripted(it.policy.accounts[name].promise, hang=lambda number: number == 1, deaf=True)
        done = {"K": {State.ACCEPTED: 3}, "N": {State.ACCEPTED: 2, State.UNCERTAIN: 1}}[kind]
        asyncio.run(work(it.worker(provider), until=lambda: it.states() == done))
        assert provider.door.most_open == 1
        assert sum(provider.door.effects.values()) == done[State.ACCEPTED]
        assert set(provider.door.effects) <= set(keys)


def test_a_process_that_stood_still_past_its_deadlines_blames_no_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped and continued, or on a machine that slept: what has arrived meanwhile still counts."""
    monkeypatch.setattr(claimer, "DEADLINE_SLACK_S", 0.0)
    told: list[str] = []
    monkeypatch.setattr(sender, "tell", lambda event, **fields: told.append(event.name))
    with bench(tmp_path, 8, account("N", rate=40, timeout_s=0.25)) as (it, keys):
        provider = Scripted(it.policy.accounts["email-N"].promise, takes_s=0.2)
        still = iter([True])

        async def stand_still_once() -> None:
            if provider.door.open >= 2 and next(still, False):
                time.sleep(0.6)  # noqa: ASYNC251 (all of the process stands still)

        asyncio.run(
            work(
                it.worker(provider),
                until=lambda: it.states()[State.ACCEPTED] == 8,
                meanwhile=stand_still_once,
            )
        )
        assert next(still, None) is None, "it never stood still"
        assert provider.door.effects == Counter(keys)
        assert "adapter_bug" not in told


@pytest.mark.parametrize("said", ["r\0-1", "r\ud800-1", "r\n-1", "r-1" + "x" * 1_000])
def test_a_receipt_is_kept_as_far_as_it_can_be(tmp_path: Path, said: str) -> None:
    """CONT-15: PostgreSQL keeps no NUL, no store a lone surrogate."""

    def script(message: Message, number: int) -> Outcome:
        return Accepted(said)

    with bench(tmp_path, 1, account(lanes=1)) as (it, _):
        provider = Scripted(it.policy.accounts["sms-K"].promise, script=script)
        asyncio.run(work(it.worker(provider), until=lambda: it.states() == {State.ACCEPTED: 1}))
        plain = {"receipt": "r-1" + "x" * 197 if "x" in said else "r-1"}
        assert len(it.store.read(lambda tx: tx.deliveries.matching("receipt", plain, 9, 0))) == 1


def test_an_outcome_that_cannot_be_written_costs_no_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lanes, and two answers that cannot be settled; the deliveries end in doubt, not for ever open."""

    def script(message: Message, number: int) -> Outcome:
        return Accepted("poison") if number <= 2 else Accepted("r")

    def poisoned(tx: Tx, attempts: Sequence[Attempted], *more: Any, **named: Any) -> list[Settled]:
        if any(attempt.outcome == Accepted("poison") for attempt in attempts):
            raise ValueError("a bug in settling")
        return settler.settle(tx, attempts, *more, **named)

    monkeypatch.setattr(worker, "settle", poisoned)
    monkeypatch.setattr(claimer, "DEADLINE_SLACK_S", 0.1)
    with bench(tmp_path, 6, account(lanes=2, timeout_s=0.3)) as (it, keys):
        provider = Scripted(it.policy.accounts["sms-K"].promise, script=script)
        asyncio.run(work(it.worker(provider), until=lambda: it.states() == {State.ACCEPTED: 6}))
        assert provider.door.effects == Counter(keys)
        assert it.open_calls() == 0


def test_a_look_up_that_raises_holds_up_no_other(tmp_path: Path) -> None:
    def look(message: Message) -> Finding:
        if message.delivery_key.startswith("sms-L-0"):
            raise ZeroDivisionError("a bug")
        return Found("looked-up") if message.delivery_key.startswith("sms-L-1:") else Absent(believable=True)

    at_once = account("L", timeout_s=0.1, arrival_max_s=0.0, index_lag_s=0.0)
    with bench(tmp_path, 3, at_once, lease_s=LEASE_S) as (it, _):
        provider = Scripted(
            it.policy.accounts["sms-L"].promise,
            script=lambda message, number: Unknown("timeout") if number <= 3 else Accepted("r"),
            look=look,
        )
        asyncio.run(work(it.worker(provider), until=lambda: it.states()[State.ACCEPTED] == 2))
        assert it.states() == {State.ACCEPTED: 2, State.RECONCILING: 1}
        assert provider.calls == 4


# The store is away


def test_stor_03_an_outcome_is_kept_until_it_is_written(tmp_path: Path) -> None:
    """The store goes away while calls are open, for longer than they take: nothing is sent again."""
    with bench(tmp_path, 20, account()) as (it, keys):
        store = Flaky(it.another())
        provider = Scripted(it.policy.accounts["sms-K"].promise, takes_s=0.1)

        async def outage() -> None:
            if provider.calls and not store.refused:
                store.down = True
                await asyncio.sleep(0.5)
                store.down = False

        asyncio.run(
            work(
                it.worker(provider, store=store),
                until=lambda: it.states()[State.ACCEPTED] == 20,
                meanwhile=outage,
            )
        )
        assert store.refused >= 2
        assert provider.door.effects == Counter(keys)
        assert provider.calls == 20
        assert all(row.course.attempts == 1 for row in it.rows())


def test_the_first_beat_after_an_outage_ends_the_waits_that_have_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage waits longer after each failure: here, from the first on, for longer than the test."""
    monkeypatch.setattr(poller, "ERROR_WAIT_S", 1_000.0)
    monkeypatch.setattr(poller, "ERROR_WAIT_MAX_S", 10_000.0)
    monkeypatch.setattr(worker, "BEAT_AGAIN_S", 0.05)
    failed: list[str] = []
    with bench(tmp_path, 4, account(rate=20), lease_s=LEASE_S) as (it, keys):
        store = Flaky(it.another())
        provider = Scripted(it.policy.accounts["sms-K"].promise)
        working = it.worker(provider, store=store, on_error=lambda stage, error: failed.append(stage))

        async def outage() -> None:
            if provider.calls and not failed:
                store.down = True
            if store.down and {"claim sms-K", "reaper", "heartbeat"} <= set(failed):
                store.down = False

        asyncio.run(work(working, until=lambda: it.states()[State.ACCEPTED] == 4, meanwhile=outage))
        assert "claim sms-K" in failed, "there was no outage"
        assert provider.door.effects == Counter(keys)


def test_an_outage_between_two_beats_holds_up_no_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No beat meets it, so nobody says that it is over; what a dead process held must not wait for long."""
    monkeypatch.setattr(poller, "ERROR_WAIT_S", 1_000.0)
    monkeypatch.setattr(poller, "ERROR_WAIT_MAX_S", 10_000.0)
    monkeypatch.setattr(worker, "BEAT_AGAIN_S", 0.05)
    failed: list[str] = []
    again: set[str] = set()

    def noted(stage: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if {"reaper", "reconciler"} <= set(failed):
                again.add(stage)
            return step(*given, **named)

        return run

    monkeypatch.setattr(reaper, "reap", noted("reaper", reaper.reap))
    monkeypatch.setattr(reconciler, "doubts", noted("reconciler", reconciler.doubts))
    with bench(tmp_path, 1, account()) as (it, _):
        store = Flaky(it.another())
        working = it.worker(
            Scripted(it.policy.accounts["sms-K"].promise),
            store=store,
            on_error=lambda stage, error: failed.append(stage),
        )

        async def outage() -> None:
            if working.heart.lease_until and not failed:
                store.down = True
            if {"reaper", "reconciler"} <= set(failed):
                store.down = False

        asyncio.run(work(working, until=lambda: again == {"reaper", "reconciler"}, meanwhile=outage))
        assert "heartbeat" not in failed, "a beat met the outage"


def test_a_process_that_cannot_renew_its_lease_starts_nothing_more(tmp_path: Path) -> None:
    """Claimed, then the store goes away while the connection is made, until the lease is over: by now
    another process may have been given the delivery, so nothing leaves."""
    patient = account(lanes=1, jitter_us=4_000_000)  # a slot is not what stops it
    with bench(tmp_path, 2, patient, lease_s=LEASE_S) as (it, keys):
        store = Flaky(it.another())
        provider = Scripted(patient.promise, connects_s=1.5 * LEASE_S)

        async def outage() -> None:
            if provider.asked and not store.refused:
                store.down = True
                await asyncio.sleep(2 * LEASE_S)
                store.down = False
                assert provider.door.starts == []
                provider.connects_s = 0.0

        asyncio.run(
            work(
                it.worker(provider, store=store),
                until=lambda: it.states()[State.ACCEPTED] == 2,
                meanwhile=outage,
            )
        )
        assert provider.door.effects == Counter(keys)
        assert provider.calls == 2
        lines = it.store.read(lambda tx: [line for row in it.rows() for line in lines_of(tx, row.id)])
        assert "lease_lost" in {line.word("reason") or line.word("evidence") for line in lines}


# Stopping


def test_a_stop_lets_open_calls_finish_and_gives_back_the_rest(tmp_path: Path) -> None:
    with bench(tmp_path, 30, account(lanes=5)) as (it, _):
        provider = Scripted(it.policy.accounts["sms-K"].promise, takes_s=0.3)
        took_s = asyncio.run(work(it.worker(provider), until=lambda: provider.door.open == 5))
        assert took_s < 5.0
        states = it.states()
        assert states[State.ACCEPTED] == provider.calls
        assert states == {State.ACCEPTED: provider.calls, State.QUEUED: 30 - provider.calls}
        assert it.open_calls() == 0
        for row in it.rows():
            assert not row.standing.maybe
            assert row.course.attempts == (row.standing.state is State.ACCEPTED)
        assert it.store.read(lambda tx: tx.processes.dead(2**62)) == [], "it has signed off"


@pytest.mark.parametrize("deaf", [False, True])
def test_a_stop_gives_up_what_does_not_end_within_its_bound(tmp_path: Path, deaf: bool) -> None:
    """`deaf`: the adapter does not even hear `close`."""
    with bench(tmp_path, 3, account("N", timeout_s=60.0)) as (it, _):
        provider = Scripted(it.policy.accounts["email-N"].promise, hang=lambda number: True, deaf=deaf)
        took_s = asyncio.run(work(it.worker(provider, stop_s=0.3), until=lambda: provider.door.open == 3))
        assert 0.3 <= took_s < 8.0
        assert it.states() == {State.UNCERTAIN: 3}, "settled, not left to the reaper"
        assert it.open_calls() == 0


def test_a_stop_while_slots_are_waited_for_costs_nothing(tmp_path: Path) -> None:
    with bench(tmp_path, 5, account(rate=1)) as (it, _):
        provider = Scripted(it.policy.accounts["sms-K"].promise)
        asyncio.run(work(it.worker(provider), until=lambda: provider.calls == 1))
        assert it.states() == {State.ACCEPTED: 1, State.QUEUED: 4}
        assert Counter(row.course.attempts for row in it.rows()) == {1: 1, 0: 4}


def test_a_stop_while_a_claim_is_made_gives_it_back(tmp_path: Path) -> None:
    """The claim is committed and its answer is on the way when the stop comes; then it is handed out."""
    with bench(tmp_path, 4, account("N", lanes=2)) as (it, _):
        provider = Scripted(it.policy.accounts["email-N"].promise, connects_s=0.6)
        worker = it.worker(provider, store=Late(it.another(), 0.2))
        asyncio.run(work(worker, until=lambda: it.open_calls() > 0))
        assert provider.calls == 0
        assert it.states() == {State.QUEUED: 4}
        assert not any(row.standing.maybe or row.course.attempts for row in it.rows())
        assert it.open_calls() == 0


def test_a_stop_at_the_very_start_is_heard(tmp_path: Path) -> None:
    """SIGTERM may come before the first heartbeat is written."""
    with bench(tmp_path, 1, account()) as (it, _):
        provider = Scripted(it.policy.accounts["sms-K"].promise)
        took_s = asyncio.run(work(it.worker(provider), until=lambda: True))
        assert took_s < 5.0
        assert it.states() == {State.QUEUED: 1}


def test_stopping_twice_is_stopping(tmp_path: Path) -> None:
    with bench(tmp_path, 1, account()) as (it, _):
        worker = it.worker(Scripted(it.policy.accounts["sms-K"].promise))

        async def twice() -> None:
            running = asyncio.create_task(worker.run())
            await _true(lambda: it.states()[State.ACCEPTED] == 1)
            worker.stop()
            worker.stop()
            await asyncio.wait_for(running, WITHIN_S)

        asyncio.run(twice())


# Hints over a transport


class RealTime(UnreliableQueue):
    """The unreliable transport, with time that passes by itself; `ack_fails`: so many times."""

    def __init__(self, faults: Faults, *, seed: int, ack_fails: int = 0) -> None:
        super().__init__(faults, seed=seed)
        self._began = time.monotonic()
        self.ack_fails = ack_fails

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        until = time.monotonic() + wait_s
        while True:
            self.tick(-self._began + (began := time.monotonic()))
            self._began = began
            if (hints := await super().pull(limit, 0.0)) or began >= until:
                return hints
            await asyncio.sleep(0.01)

    async def ack(self, hints: Sequence[Hint]) -> None:
        if self.ack_fails > 0:
            self.ack_fails -= 1
            raise StoreUnavailable("the broker does not answer")
        await super().ack(hints)


@pytest.mark.parametrize("seed", [1, 2])
def test_hints_that_repeat_reorder_and_lose_acknowledgements(tmp_path: Path, seed: int) -> None:
    faults = Faults(repeat=0.4, lose_ack=0.5, reorder=True, redeliver_s=0.3)
    queue = RealTime(faults, seed=seed)
    with bench(tmp_path, 40, account(), hints=True) as (it, keys):
        provider = Scripted(
            it.policy.accounts["sms-K"].promise,
            script=lambda message, number: Unknown("reset") if number % 9 == 0 else Accepted("r"),
        )
        queues: dict[str, Queue] = {"sms-K": queue}
        workers = [it.worker(provider, store=it.another(), queues=queues) for _ in range(2)]

        async def hinting() -> None:
            await relay(it.store, queues)
            it.store.write(_hint_what_is_ready).result()

        asyncio.run(work(*workers, until=lambda: it.states()[State.ACCEPTED] == 40, meanwhile=hinting))
        assert provider.door.effects == Counter(keys)
        assert queue.delivered > 40


def _hint_what_is_ready(tx: Tx) -> None:
    """The sweep, without its patience."""
    tx.deliveries.wake("sms-K", tx.now)
    rows = tx.deliveries.ready("sms-K", retries=True, limit=100)
    tx.hint([Outgoing(row.id, row.standing.epoch, "sms-K", row.course.tag) for row in rows])


def test_a_transport_that_refuses_acknowledgements_stops_nothing(tmp_path: Path) -> None:
    queue = RealTime(Faults(redeliver_s=0.2), seed=1, ack_fails=8)
    with bench(tmp_path, 30, account(lanes=3), hints=True) as (it, keys):
        provider = Scripted(it.policy.accounts["sms-K"].promise, takes_s=0.01)
        queues: dict[str, Queue] = {"sms-K": queue}

        async def hinting() -> None:
            await relay(it.store, queues)

        worker = it.worker(provider, queues=queues)
        asyncio.run(
            work(
                worker,
                until=lambda: it.states()[State.ACCEPTED] == 30 and queue.left == 0,
                meanwhile=hinting,
            )
        )
        assert queue.ack_fails == 0
        assert provider.door.effects == Counter(keys)
        assert provider.calls == 30


class Gone(RealTime):
    """A broker that is away, until it is back."""

    away = True

    async def publish(self, hints: Sequence[Hint]) -> None:
        self._check()
        await super().publish(hints)

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        self._check()
        return await super().pull(limit, wait_s)

    async def depth(self) -> Depth:
        self._check()
        return await super().depth()

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("the broker does not answer")


def test_while_the_broker_is_away_the_store_s_own_queue_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when it is back hints travel again, of which nobody needs those from before."""
    monkeypatch.setattr(worker, "TAKE_OVER_S", 0.2)
    queue = Gone(Faults(), seed=1)
    with bench(tmp_path, 30, account(), hints=True) as (it, keys):
        provider = Scripted(it.policy.accounts["sms-K"].promise)
        it.store.write(lambda tx: tx.hint_ready("sms-K", 100)).result()

        async def until_back() -> None:
            queue.away = it.states()[State.ACCEPTED] < 30

        asyncio.run(
            work(
                it.worker(provider, queues={"sms-K": queue}),
                until=lambda: not queue.away and not it.store.read(lambda tx: tx.hints(9)),
                meanwhile=until_back,
            )
        )
        assert provider.door.effects == Counter(keys)
        assert provider.calls == 30
        assert queue.published == 0, "what was sent meanwhile needs no hint"
