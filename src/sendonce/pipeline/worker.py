"""The worker: claims, sends, settles, for the accounts of a channel, in one process.

One loop per account claims what may start now and hands each claim to a task of its own; outcomes
flow into one batcher that settles them in groups. A loop looks for work by itself; news of some (`core.news`)
only lets it look earlier. Beside them run the heartbeat, on which everything
that this process claimed hangs, the reaper and the reconciler, which any number of processes may run
at once.

A stop is graceful within `stop_s`: nothing new is claimed, what has not started is released, open
calls may finish, what is still open then is given up as unknown, everything is settled, and the
process signs off. A kill leaves the same to the reaper, one lease later.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, assert_never

from sendonce import metrics, telemetry
from sendonce.core import news, pacing
from sendonce.core.errors import StoreUnavailable
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    Finding,
    Found,
    NoAnswer,
    NotStarted,
    Outcome,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
    as_receipt,
)
from sendonce.core.policy import AccountPolicy, Policy
from sendonce.pipeline import failover, reaper, reconciler
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.pipeline.carrier import STORE, Carrier
from sendonce.pipeline.claimer import Claimed, claim
from sendonce.pipeline.heartbeat import BEAT_AGAIN_S, Heartbeat, Name
from sendonce.pipeline.relay import Ahead, Swept, ahead_of, discard, refill, relay, sweep
from sendonce.pipeline.sender import Conditions, send
from sendonce.pipeline.settler import settle
from sendonce.pipeline.tally import tally
from sendonce.ports.provider import Provider
from sendonce.ports.queue import Hint, Queue, QueueUnavailable
from sendonce.ports.store import Store, Tx
from sendonce.runtime.batcher import Batcher
from sendonce.runtime.poller import OnError, Poller, Step
from sendonce.runtime.waker import Waker
from sendonce.telemetry import fault, tell

T = TypeVar("T")

IDLE_S: Final = 0.25
"""How often an empty queue is looked at."""
BUSY_S: Final = 0.02
REAP_S: Final = 1.0
RECONCILE_S: Final = 1.0
RELIEVE_S: Final = 5.0
REST_S: Final = 2.0
"""How long a process that can open no connection leaves an account to others."""
NO_HANDLES: Final = NotStarted("no_handles")
SETTLE_MAX: Final = 64
"""Outcomes in one unit, as many as a claim takes: a claim must not wait long for what stands before it."""
GIVE_UP_S: Final = 1.0
"""What an adapter may take to give up its calls when it is closed."""
LOOK_SLACK_S: Final = 5.0
"""What a look-up may take beyond the adapter's own time-out before it counts as unanswered."""
HINTS_MAX: Final = 64
"""Hints that one loop pulls at once, and claims for at once."""
SWEEP_S: Final = 1.0
FOLLOW_S: Final = 1.0
"""How often it is asked which transport is in force."""
RELAY_LEASE_S: Final = 10.0
"""How long hints stay in the outbox when the process that relays them is killed."""
TAKE_OVER_S: Final = 10.0
REFILL_S: Final = pacing.AHEAD_US / 2 / pacing.SECOND
"""A paced account is claimed for again when half of what may be given out ahead is used: at 200 a second
that is five slots a commit rather than one, and 25 ms are left for a claim that comes late."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker process.

    process  its id, unique for ever
    stop_s   how long a graceful stop may take before open calls are given up
    idle_s   how often an empty queue, and what others left behind, is looked at
    """

    process: str
    role: str
    host: str
    pid: int
    stop_s: float = 20.0
    idle_s: float = IDLE_S


def tell_of(stage: str, error: Exception) -> None:
    """What a worker does about a stage that failed: say so; the stage is tried again."""
    if isinstance(error, StoreUnavailable):
        tell(telemetry.STORE_UNAVAILABLE, stage=stage, **fault(error))
    else:
        tell(telemetry.STAGE_FAILED, stage=stage, **fault(error))


class Worker:
    """Runs the accounts given. `providers` has one adapter per account name; `carrier` is there where hints
    travel outside the store (or `queues`, one per account: a transport for good). `chance` is every draw
    from [0, 1) in here; `on_error(stage, error)` hears of what failed and will be tried again."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        providers: Mapping[str, Provider],
        settings: WorkerSettings,
        *,
        carrier: Carrier | None = None,
        queues: Mapping[str, Queue] | None = None,
        chance: Callable[[], float] = random.random,
        on_error: OnError = tell_of,
    ) -> None:
        self._store = store
        self._policy = policy
        self._providers = providers
        self._settings = settings
        if queues is not None:
            carrier = Carrier.of(queues, take_over_s=TAKE_OVER_S, chance=chance)
        self._carrier = carrier
        self._ahead = Ahead(lambda name: ahead_of(policy.accounts[name].limits))
        self._swept = Swept()
        self._relays_until = 0
        self._refilled = carrier.in_force if carrier is not None else STORE
        self._came_from: dict[tuple[int, int], Queue] = {}
        self._chance = chance
        self._on_error = on_error
        self._stopping = False
        self._sending: dict[asyncio.Task[None], None] = {}  # a set would have no order
        self._held: set[tuple[int, int]] = set()
        self._settled: Batcher[Attempted] = Batcher(
            self._settle, size_max=SETTLE_MAX, pending_max=8 * SETTLE_MAX
        )
        self._accounts = [_AccountLoop(self, policy.accounts[name], providers[name]) for name in providers]
        self._claiming = [self._poller(f"claim {loop.name}", loop.step) for loop in self._accounts]
        for loop, poller in zip(self._accounts, self._claiming, strict=True):
            loop.poller = poller
        self._running: list[asyncio.Task[None]] = []
        channels = ",".join(sorted({loop.account.channel.value for loop in self._accounts}))
        called = Name(settings.process, settings.role, settings.host, settings.pid, channels)
        self.heart: Final = Heartbeat(store, called, lease_s=policy.lease_s)
        self._beating = self._poller("heartbeat", self._beat, again_max_s=BEAT_AGAIN_S)
        self._beside = [
            self._beating,
            # What a dead process held waits for these, and an outage may be over before a beat meets it.
            self._poller("reaper", self._reap, again_max_s=BEAT_AGAIN_S),
            self._poller("reconciler", self._reconcile, again_max_s=BEAT_AGAIN_S),
        ]
        self._shared = sorted({name for route in policy.routes if route.shares for name in route.accounts})
        if self._shared:
            self._beside.append(self._poller("failover", self._relieve))
        self._hears: dict[str, Callable[[], None]] = {}
        for loop in self._accounts:
            self._hears[news.queued(loop.name)] = loop.more
            self._hears[news.gate(loop.name)] = loop.look
        if carrier is not None:
            relaying = self._poller("relay", self._relay)
            self._beside.append(relaying)
            self._beside.append(self._poller("sweep", self._sweep))
            self._beside.append(self._poller("transport", self._follow))
            # Whoever relays does it for all accounts, and not only for those that it works for.
            for name in policy.accounts:
                more = [loop.more for loop in self._accounts if loop.name == name]
                self._hears[news.queued(name)] = partial(_each, (relaying.wake, *more))

    @property
    def idle_s(self) -> float:
        return self._settings.idle_s

    @property
    def draining(self) -> bool:
        return self._stopping

    def open_calls(self) -> int:
        """Claims in hand: calls that are open, or about to start."""
        return len(self._sending)

    async def run(self) -> None:
        """Work until `stop`; then finish what is open, within the stop bound."""
        await self._first_beat()
        self._running = [asyncio.create_task(poller.run()) for poller in self._claiming]
        listening = self._store.listen(Waker(self._hears).hear)
        try:
            await asyncio.gather(*self._running, *(poller.run() for poller in self._beside))
        finally:
            listening.close()
            await self._sign_off()

    def stop(self) -> None:
        """Begin a graceful stop. Idempotent; safe to call from a signal handler of the loop."""
        if not self._stopping:
            self._stopping = True
            asyncio.get_running_loop().create_task(self._drain(), name="drain")

    async def _first_beat(self) -> None:
        """Nothing may be claimed in the name of a process that the store does not know yet."""
        while not self._stopping:
            try:
                await self.heart.beat()
                return
            except StoreUnavailable as error:
                self._on_error("heartbeat", error)
                await asyncio.sleep(IDLE_S)

    async def idle(self) -> bool:
        """Whether nothing is in flight here."""
        return not self._sending

    async def _drain(self) -> None:
        for poller in self._claiming:
            poller.stop()
        if self._running:
            # A claim that is being made is still handed out, and given back.
            await asyncio.wait(self._running)
        for loop in self._accounts:
            await loop.change_hands()
        await self._end_calls()
        await self._settled.drain()
        for poller in self._beside:
            poller.stop()

    async def _end_calls(self) -> None:
        """Open calls may finish; then adapters are asked to give them up; then they are given up."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=self._settings.stop_s)
        closing = [asyncio.create_task(provider.close()) for provider in self._providers.values()]
        await asyncio.wait([*closing, *self._sending], timeout=GIVE_UP_S)
        left = [task for task in (*closing, *self._sending) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _sign_off(self) -> None:
        await self._settled.drain()
        if self._carrier is not None:
            await self._leave_relay()
            await self._carrier.close()
        await self.heart.sign_off()
        tell(telemetry.PROCESS_STOPPED, role=self._settings.role, why="asked")

    # Sending

    def launch(self, claims: Sequence[Claim], loop: _AccountLoop, came_from: Queue | None = None) -> None:
        """Start a task for each claim. `came_from`: the queue that gave their hints."""
        if not claims:
            return
        conditions = Conditions(
            steady=self._store.steady,
            lease_until=lambda: self.heart.lease_until,
            stopping=lambda: self._stopping,
            closed_at=lambda: loop.closed_at,
            since=lambda: self.heart.unbroken_since,
        )
        for made in claims:
            self._held.add(_name(made))
            if made.hint is not None and came_from is not None:
                self._came_from[_name(made)] = came_from
            task = asyncio.create_task(self._send(made, loop, conditions))
            self._sending[task] = None
            task.add_done_callback(self._sending.pop)

    async def _send(self, made: Claim, loop: _AccountLoop, conditions: Conditions) -> None:
        try:
            attempted = await send(made, loop.provider, conditions)
        except asyncio.CancelledError:
            # Given up by the stop: what is known of the call is settled, not left to the reaper.
            attempted = Attempted(made, Unknown("shutdown"), 0, self._store.steady())
        if _closes_gate(attempted.outcome):
            loop.closed_at = attempted.ended_at
        if attempted.outcome == NO_HANDLES:
            loop.rest()
        await self._settled.add(attempted)

    async def _settle(self, attempts: list[Attempted]) -> None:
        """Write outcomes until they are written: nobody else knows them. A lost lease or a reaped row
        changes what they do, not that they are kept."""
        wait_s = 0.05
        while True:
            try:
                settled = await _done(
                    self._store.write(
                        lambda tx: settle(
                            tx, attempts, self._policy, process=self._settings.process, chance=self._chance
                        ),
                        beside=True,  # a claim takes as long, and neither needs the other
                    )
                )
                break
            except StoreUnavailable as error:
                tell(telemetry.STORE_UNAVAILABLE, stage="settle", wait_s=wait_s, **fault(error))
                await asyncio.sleep(wait_s)
                wait_s = min(5.0, wait_s * 2)
            except Exception as error:
                if len(attempts) == 1:
                    # A poison outcome: the reaper will call it unknown, and free its lane.
                    tell(telemetry.SETTLE_FAILED, delivery=attempts[0].claim.key, **fault(error))
                    self._held.discard(_name(attempts[0].claim))
                    return
                half = len(attempts) // 2
                await self._settle(attempts[:half])
                await self._settle(attempts[half:])
                return
        self._held.difference_update(_name(attempt.claim) for attempt in attempts)
        tally(attempts, settled, self._policy)
        try:
            await self._acknowledge(attempts)
        except StoreUnavailable as error:
            # The outcomes are durable. What is not acknowledged comes again, and costs a look.
            tell(telemetry.STORE_UNAVAILABLE, stage="acknowledge", **fault(error))
        given_back = {each.claim.account for each in attempts if isinstance(each.outcome, NotStarted)}
        for loop in self._accounts:
            if loop.waits_for_lane:
                loop.look()
            if loop.name in given_back:  # it is ready again, and nobody tells of it
                loop.more()

    async def _acknowledge(self, attempts: Sequence[Attempted]) -> None:
        begun: dict[Queue, list[Hint]] = {}
        given_up: dict[Queue, list[Hint]] = {}
        for attempt in attempts:
            queue, hint = self._came_from.pop(_name(attempt.claim), None), attempt.claim.hint
            if queue is not None and hint is not None:
                to = given_up if isinstance(attempt.outcome, NotStarted) else begun
                to.setdefault(queue, []).append(hint)
        for queue, hints in begun.items():
            await queue.ack(hints)
        for queue, hints in given_up.items():
            await queue.nack(hints, 0.0)

    # Beside the sending

    async def _reap(self) -> float:
        process, held = self._settings.process, frozenset(self._held)
        lost = await _done(
            self._store.write(
                lambda tx: reaper.reap(tx, self._policy, chance=self._chance, process=process, held=held)
            )
        )
        expired = await _done(self._store.write(lambda tx: reaper.expire(tx, self._policy)))
        if expired:
            metrics.DISPOSITIONS.add(("any", "expired"), expired)
        return 0.0 if expired >= reaper.PAGE else max(REAP_S, self.idle_s) if not lost else REAP_S / 2

    async def _relieve(self) -> float:
        """For all accounts, whoever works for them: the one that is held may have no worker that lives."""
        for name in self._shared:
            await _done(self._store.write(partial(_relieve, self._policy, name)))
        return max(RELIEVE_S, self.idle_s)

    async def _reconcile(self) -> float:
        await _done(self._store.write(lambda tx: reconciler.apply_policy(tx, self._policy)))
        doubts = await _done(
            self._store.write(
                lambda tx: reconciler.doubts(
                    tx, self._policy, accounts=self._providers, secret=self._store.secret
                )
            )
        )
        if doubts:
            findings = await asyncio.gather(*(self._ask(doubt) for doubt in doubts))
            found = list(zip(doubts, findings, strict=True))
            await _done(self._store.write(lambda tx: reconciler.resolve(tx, found, self._policy)))
        return max(RECONCILE_S, self.idle_s)

    async def _ask(self, doubt: reconciler.Doubt) -> Finding:
        """Look one up. An adapter that raises or hangs has not answered, and holds up no other."""
        try:
            async with asyncio.timeout(self._policy.accounts[doubt.account].promise.timeout_s + LOOK_SLACK_S):
                finding = await self._providers[doubt.account].look_up(doubt.message)
            return Found(as_receipt(finding.receipt)) if isinstance(finding, Found) else finding
        except Exception as error:
            tell(telemetry.ADAPTER_BUG, delivery=doubt.key, account=doubt.account, **fault(error))
            return NoAnswer("adapter_bug")

    async def _beat(self) -> float:
        """The first beat after an outage says that it is over, to those whose waits have grown meanwhile."""
        was_away = self.heart.failed
        wait_s = await self.heart.beat()
        if was_away:
            for poller in (*self._claiming, *self._beside):
                if poller is not self._beating:
                    poller.wake()
        return wait_s

    def _poller(self, name: str, step: Step, *, again_max_s: float | None = None) -> Poller:
        return Poller(name, step, on_error=self._on_error, chance=self._chance, again_max_s=again_max_s)

    async def _relay(self) -> float:
        """Hints of any process's publications. One process does it, else each would be published by all; two
        at once, after a long stop of the first, publish some twice."""
        assert self._carrier is not None
        if not await self._leads_relay():
            return self.idle_s
        if not self._carrier.queues:
            return self.idle_s if await discard(self._store) == 0 else 0.0
        if wait_s := self._carrier.waits_s():
            return min(wait_s, RELAY_LEASE_S / 2)
        try:
            return 0.0 if await relay(self._store, self._carrier.queues, self._ahead) else self.idle_s
        except QueueUnavailable:
            return max(self.idle_s, self._carrier.waits_s())

    async def _leads_relay(self) -> bool:
        """Whether this process relays, for as long as its lease; renewed when half of it is over."""
        steady, span = self._store.steady(), int(RELAY_LEASE_S * pacing.SECOND)
        if self._relays_until - steady > span // 2:
            return True
        leads = await _done(self._store.write(partial(_lead_relay, self._settings.process, span)))
        self._relays_until = steady + span if leads else 0
        return leads

    async def _leave_relay(self) -> None:
        if self._relays_until:
            self._relays_until = 0
            try:
                await _done(self._store.write(partial(_resign_relay, self._settings.process)))
            except StoreUnavailable as error:
                self._on_error("relay", error)  # its lease ends by itself

    async def _sweep(self) -> float:
        assert self._carrier is not None
        if self._relays_until and not self._stopping:
            for name, queue in self._carrier.queues.items():
                try:
                    waiting: int | None = (await queue.depth()).waiting
                except QueueUnavailable:
                    waiting = None
                await _done(self._store.write(partial(_sweep_account, name, waiting, self._swept)))
        return SWEEP_S

    async def _follow(self) -> float:
        """See which transport is in force, and whether one that was away is back."""
        carrier = self._carrier
        assert carrier is not None
        if carrier.turn_to(self._store.read(carrier.follow)):
            self._ahead.forget()
            for loop in self._accounts:
                await loop.change_hands()
        if self._relays_until and self._refilled != carrier.in_force:
            for name in carrier.queues:
                await _done(self._store.write(partial(_refill, name)))
            self._refilled = carrier.in_force
        await carrier.let_go(set(self._came_from.values()))
        with suppress(QueueUnavailable):  # told, and asked again in a while
            await carrier.probe()
        return FOLLOW_S

    # For the account loops

    async def claim(self, account: AccountPolicy, lead_us: int, hints: Sequence[Hint] | None) -> Claimed:
        lease_until = self.heart.lease_until
        return await _done(
            self._store.write(
                lambda tx: claim(
                    tx,
                    account,
                    self._policy,
                    process=self._settings.process,
                    secret=self._store.secret,
                    lead_us=lead_us,
                    hints=hints,
                    lease_until=lease_until,
                )
            )
        )

    def steady(self) -> int:
        return self._store.steady()

    @property
    def carrier(self) -> Carrier | None:
        return self._carrier


class _AccountLoop:
    """Claims for one account, as fast as its gate allows and no faster."""

    def __init__(self, worker: Worker, account: AccountPolicy, provider: Provider) -> None:
        self.name = account.name
        self.account = account
        self.provider = provider
        self.poller: Poller | None = None
        self.waits_for_lane = False
        self.closed_at = 0
        self._waits_for_work = False
        self._more = False
        self._worker = worker
        self._commits_us: deque[int] = deque(maxlen=100)
        self._told = ""
        self._rests_until = 0
        self._hand: dict[str, tuple[Hint, int]] = {}
        self._hand_of: Queue | None = None
        self._takes = max(1, min(HINTS_MAX, ahead_of(account.limits)))

    def more(self) -> None:
        """There is news of work. Of use to a loop that found none; another one looks by itself, in time."""
        self._more = True
        if self._waits_for_work:
            self.look()

    def look(self) -> None:
        """Look now, whatever it waits for."""
        if self.poller is not None:
            self.poller.wake()

    def rest(self) -> None:
        """Claim nothing for a while: this process can open no connection, and others may be able to."""
        now = self._worker.steady()
        if now >= self._rests_until:
            self._rests_until = now + int(REST_S * pacing.SECOND)
            tell(telemetry.NO_HANDLES, account=self.name, wait_s=REST_S)

    async def step(self) -> float:
        worker = self._worker
        self._waits_for_work = self._more = False
        if worker.draining:
            return self._worker.idle_s
        if (rests_us := self._rests_until - worker.steady()) > 0:
            return rests_us / pacing.SECOND
        queue = worker.carrier.queue_of(self.name) if worker.carrier is not None else None
        hints = await self._hints(queue) if queue is not None else None
        if hints is not None and not hints:
            return max(0.0, worker.carrier.waits_s()) if worker.carrier is not None else 0.0
        asked = worker.steady()
        lead_us = pacing.lead_of(self._commits_us, self.account.limits)
        claimed = await worker.claim(self.account, lead_us, hints)
        self._commits_us.append(worker.steady() - asked)
        worker.launch(claimed.claims, self, queue)
        if queue is not None and hints is not None:
            await self._look_through(queue, hints, claimed)
        self.waits_for_lane = claimed.why in ("lanes", "probing")
        self._waits_for_work = claimed.why == "empty"
        self._tell(claimed)
        if hints is not None and claimed.why == "empty" and not self._hand:
            return 0.0  # the queue is asked, and waits by itself
        return 0.0 if self._waits_for_work and self._more else self._wait_s(claimed)

    async def _hints(self, queue: Queue) -> list[Hint]:
        """What is in hand, and as much more as one claim may take; it waits for some where there is none."""
        worker = self._worker
        if self._hand_of is not queue:
            await self.change_hands()
            self._hand_of = queue
        try:
            await self._keep(queue)
            room = HINTS_MAX - len(self._hand)
            if room > 0 and (not self._hand or len(self._hand) < self._takes):
                wait_s = (
                    0.0 if self._hand or worker.carrier is None else worker.carrier.polls_s(worker.idle_s)
                )
                pulled = await queue.pull(min(room, self._takes), wait_s)
                since = worker.steady()
                self._hand.update((hint.receipt, (hint, since)) for hint in pulled)
        except QueueUnavailable:
            self._hand.clear()  # the broker hands them out again, or the sweep does
        return [hint for hint, _ in self._hand.values()]

    async def _keep(self, queue: Queue) -> None:
        """Hints wait in hand for their slot. Before the broker hands them out again, it is asked not to."""
        carrier = self._worker.carrier
        span = int((carrier.keeps_s() if carrier is not None else 0.0) * pacing.SECOND)
        if not span:
            return
        now = self._worker.steady()
        old = [hint for hint, since in self._hand.values() if now - since >= span]
        if old:
            await queue.extend(old)
            self._hand.update((hint.receipt, (hint, now)) for hint in old)

    async def _look_through(self, queue: Queue, hints: Sequence[Hint], claimed: Claimed) -> None:
        """What was claimed or is done leaves the hand; the rest waits in it for the next claim."""
        for made in claimed.claims:
            if made.hint is not None:
                self._hand.pop(made.hint.receipt, None)
        for hint in claimed.done:
            self._hand.pop(hint.receipt, None)
        if claimed.done:
            with suppress(QueueUnavailable):  # they come again, and cost another look
                await queue.ack(claimed.done)

    async def change_hands(self) -> None:
        """Give back what is in hand."""
        queue, given = self._hand_of, [hint for hint, _ in self._hand.values()]
        self._hand.clear()
        self._hand_of = None
        if queue is not None and given:
            with suppress(QueueUnavailable):  # then the broker hands them out again by itself
                await queue.nack(given, 0.0)

    def _wait_s(self, claimed: Claimed) -> float:
        if claimed.claims and not claimed.why:
            return 0.0
        if claimed.ended:
            return 0.0
        if claimed.why == "empty":
            return self._worker.idle_s
        if claimed.why in ("lanes", "probing", "lease_lost"):
            return BUSY_S
        if claimed.again_at:
            wait = (claimed.again_at - self._worker.steady()) / pacing.SECOND
            if claimed.why == "rate":
                return min(max(wait + REFILL_S, BUSY_S / 2), 1.0)
            return min(max(wait, BUSY_S / 2), 5.0)
        return self._worker.idle_s

    def _tell(self, claimed: Claimed) -> None:
        """Once per change: why nothing leaves is told when it begins, not each time it is asked."""
        why = "" if claimed.claims or claimed.why in ("rate", "empty", "lanes") else claimed.why
        if why != self._told:
            self._told = why
            tell(telemetry.GATE_CLOSED if why else telemetry.GATE_OPENED, account=self.name, why=why)


def _closes_gate(outcome: Outcome) -> bool:
    """Whether the account as a whole may not be called any more: what `core.pacing` closes the gate for."""
    match outcome:
        case Throttled(scope):
            return scope not in (ThrottleScope.RECIPIENT, ThrottleScope.CONCURRENCY)
        case AccountError():
            return True
        case Accepted() | Rejected() | Failed() | Unknown() | NotStarted():
            return False
        case _:
            assert_never(outcome)


def _name(claim: Claim) -> tuple[int, int]:
    """As the store names an open call."""
    return claim.delivery_id, claim.epoch


def _sweep_account(account: str, waiting: int | None, swept: Swept, tx: Tx) -> int:
    return sweep(tx, account, waiting=waiting, swept=swept)


def _refill(account: str, tx: Tx) -> int:
    return refill(tx, account)


def _relieve(policy: Policy, account: str, tx: Tx) -> int:
    return failover.relieve(tx, policy, account)


def _lead_relay(process: str, span: int, tx: Tx) -> bool:
    return tx.processes.lead("relay", process, tx.steady + span)


def _resign_relay(process: str, tx: Tx) -> None:
    tx.processes.resign("relay", process)


def _each(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


async def _done(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)
