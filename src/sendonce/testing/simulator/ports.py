"""The ports of a simulated process: the real store, a queue and the clocks, with faults at every call.

A port call passes a gate before and after it: there the process may die or freeze. In between, a store
may refuse, or commit and lose the word of it; a queue may repeat, lose and reorder. What the process
asked for is done by the real thing, inline, so that the order of everything is the seed's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sendonce.core.errors import SendonceError, StoreUnavailable
from sendonce.pipeline.heartbeat import Heartbeat
from sendonce.ports.queue import Depth, Hint
from sendonce.ports.store import Listening, Tx
from sendonce.store.sqlite import SqliteStore
from sendonce.testing.simulator.checks import Checker
from sendonce.testing.simulator.faults import Dice, Fault
from sendonce.testing.simulator.loop import VirtualLoop
from sendonce.testing.simulator.process import Process
from sendonce.testing.transport import UnreliableQueue

T = TypeVar("T")

SECOND: Final = 1_000_000
BOOTED_US: Final = 1_000 * SECOND
IDLE_WEIGHT: Final = 0.05
"""How much rarer a fault is at a call that changes nothing: most calls of a poller do not."""
READS_WITH_OTHERS: Final = 0.4
"""The share of a synchronous stage's reads before which others may act, and which may fail."""
NEWS_LOST: Final = 0.5
"""The share of news that nobody hears: the rest must be found by looking."""


class SimulatedClock:
    """`ports.clock.Clock` on the loop's time; the calendar may be stepped, the boot clock never is."""

    def __init__(self, loop: VirtualLoop, start_at: int) -> None:
        self._loop = loop
        self._calendar = start_at
        self.forward_s = -1e9
        """When it was last set forward, by the loop."""

    def now(self) -> int:
        return self._calendar + self._loop.now_us

    def boot(self) -> int:
        return BOOTED_US + self._loop.now_us

    def boot_id(self) -> str:
        return "simulated"

    def step(self, seconds: float) -> None:
        """Set the calendar forward, or back."""
        self._calendar += round(seconds * SECOND)
        if seconds > 0:
            self.forward_s = self._loop.time()


@dataclass(frozen=True, slots=True)
class Ground:
    """What everything in a run stands on. `crash` kills a process and sees to its successor."""

    loop: VirtualLoop
    clock: SimulatedClock
    dice: Dice
    store: SqliteStore
    checker: Checker
    lease_s: float
    crash: Callable[[Process], None]

    async def gate(self, process: Process, place: str, *, weight: float = 1.0) -> None:
        """Where a process may die or freeze. Raises `CancelledError` where it is dead."""
        process.check()
        if self.dice.strikes(Fault.CRASH, place, f"{process.id} dies at {place}", weight=weight):
            self.crash(process)
            await asyncio.sleep(0)
        elif self.dice.strikes(Fault.PAUSE, place, f"{process.id} freezes at {place}", weight=weight):
            process.freeze(self.dice.between(f"{place} pause", 0.1, 4.0 * self.lease_s))
            await asyncio.sleep(0)
        process.check()


class StorePort:
    """`ports.store.Store` of one process."""

    def __init__(self, process: Process, ground: Ground) -> None:
        self._process = process
        self._ground = ground
        self.secret = ground.store.secret
        self.one_writer = ground.store.one_writer
        self._away_until = 0.0
        self._beats_lost_until = 0.0

    def write(self, unit: Callable[[Tx], T], *, beside: bool = False) -> Future[T]:
        self._process.check()
        future: Future[T] = Future()
        if self._process.side.here:
            try:
                future.set_result(self._process.side.ask(self._write(unit)))
            except Exception as error:
                future.set_exception(error)
        else:
            self._process.spawn(self._answer(future, unit))
        return future

    def read(self, query: Callable[[Tx], T]) -> T:
        """On the side, others come in between now and then; each time would cost two turns of threads."""
        self._process.check()
        process = self._process
        if process.side.here and self._ground.dice.chance(f"{process.name} reads") < READS_WITH_OTHERS:
            return process.side.ask(self._read(query))
        return self._read_now(query)

    def listen(self, hear: Callable[[str], None]) -> Listening:
        """The news of all processes, as on PostgreSQL."""
        dice, process = self._ground.dice, self._process

        def told(topic: str) -> None:
            if dice.chance(f"{process.name} news") >= NEWS_LOST:
                process.call(hear, topic)

        return self._ground.store.listen(told)

    def steady(self) -> int:
        return self._ground.store.steady()

    def close(self) -> None:
        pass

    async def _answer(self, future: Future[T], unit: Callable[[Tx], T]) -> None:
        try:
            answer = await self._write(unit)
        except Exception as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(answer)

    async def _write(self, unit: Callable[[Tx], T]) -> T:
        ground, place = self._ground, f"{self._process.name} write"
        dice, process = ground.dice, self._process
        await ground.gate(process, f"{place} before", weight=IDLE_WEIGHT)
        latency_s = dice.between(f"{place} latency", 0.0002, 0.003)
        if dice.strikes(Fault.SLOW_COMMIT, place, f"{process.id} waits long for the store"):
            latency_s = dice.between(f"{place} slow", 0.05, 2.0)
        await asyncio.sleep(latency_s)
        if dice.strikes(Fault.STORE_AWAY, place, f"{process.id} cannot reach the store", weight=IDLE_WEIGHT):
            self._away_until = ground.loop.time() + dice.between(f"{place} away", 0.2, 1.2 * ground.lease_s)
        if dice.strikes(Fault.STORE_ERROR, place, f"the store refuses {process.id}") or self._is_away:
            raise StoreUnavailable("simulated: locked")
        if _is_beat(unit) and self._loses_beats():
            raise StoreUnavailable("simulated: the heartbeat's own connection is gone")
        process.check()
        try:
            answer, news = ground.store.write(lambda tx: (unit(tx), ground.checker.news(tx))).result()
        except SendonceError:
            raise
        except Exception as error:
            ground.checker.broke(f"a unit of {process.id} raised {type(error).__name__}: {error}")
            raise
        ground.checker.committed(news)
        weight = 1.0 if news else IDLE_WEIGHT
        await asyncio.sleep(latency_s / 4)
        if dice.strikes(
            Fault.LOST_COMMIT_ACK, place, f"{process.id} is not told of its commit", weight=weight
        ):
            raise StoreUnavailable("simulated: the connection was lost at the commit")
        await ground.gate(process, f"{place} after", weight=weight)
        return answer

    def _loses_beats(self) -> bool:
        """Its lease runs out in the midst of the work: the last claims under it must not be started."""
        ground, process = self._ground, self._process
        if ground.dice.strikes(Fault.BEATS_LOST, f"{process.name} beat", f"{process.id} is not heard of"):
            self._beats_lost_until = ground.loop.time() + 2.0 * ground.lease_s
        return ground.loop.time() < self._beats_lost_until and ground.dice.striking

    @property
    def _is_away(self) -> bool:
        return self._ground.loop.time() < self._away_until and self._ground.dice.striking

    async def _read(self, query: Callable[[Tx], T]) -> T:
        ground, place = self._ground, f"{self._process.name} read"
        await ground.gate(self._process, place, weight=IDLE_WEIGHT)
        await asyncio.sleep(ground.dice.between(place, 0.0001, 0.001))
        if ground.dice.strikes(Fault.STORE_ERROR, place, f"the store refuses {self._process.id}"):
            raise StoreUnavailable("simulated: locked")
        return self._read_now(query)

    def _read_now(self, query: Callable[[Tx], T]) -> T:
        self._process.check()
        return self._ground.store.read(query)


def _is_beat(unit: Callable[[Tx], object]) -> bool:
    return getattr(unit, "__qualname__", "").startswith(Heartbeat.__name__)


class QueuePort:
    """`ports.queue.Queue` of one process, over a transport that all of them share."""

    def __init__(self, process: Process, ground: Ground, transport: Transport) -> None:
        self._process = process
        self._ground = ground
        self._transport = transport

    async def publish(self, hints: Sequence[Hint]) -> None:
        await self._call("publish", lambda queue: queue.publish(hints))

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        hints = await self._call("pull", lambda queue: queue.pull(limit, wait_s), weight=IDLE_WEIGHT)
        if not hints:
            await asyncio.sleep(wait_s)
        return hints

    async def ack(self, hints: Sequence[Hint]) -> None:
        await self._call("ack", lambda queue: queue.ack(hints))

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        await self._call("nack", lambda queue: queue.nack(hints, delay_s))

    async def extend(self, hints: Sequence[Hint]) -> None:
        await self._call("extend", lambda queue: queue.extend(hints))

    async def depth(self) -> Depth:
        return await self._call("depth", lambda queue: queue.depth(), weight=IDLE_WEIGHT)

    async def close(self) -> None:
        pass

    async def _call(
        self, name: str, call: Callable[[UnreliableQueue], Coroutine[Any, Any, T]], *, weight: float = 1.0
    ) -> T:
        ground, place = self._ground, f"{self._process.name} queue {name}"
        await ground.gate(self._process, f"{place} before", weight=weight)
        await asyncio.sleep(ground.dice.between(place, 0.0005, 0.005))
        if ground.dice.strikes(
            Fault.QUEUE_ERROR, place, f"the queue refuses {self._process.id}", weight=weight
        ):
            raise StoreUnavailable("simulated: the broker is away")
        answer = await call(self._transport.now())
        await ground.gate(self._process, f"{place} after", weight=weight)
        return answer


class Transport:
    """One channel's transport, brought up to the loop's time before each call."""

    def __init__(self, queue: UnreliableQueue, loop: VirtualLoop) -> None:
        self._queue = queue
        self._loop = loop
        self._at_us = loop.now_us

    def now(self) -> UnreliableQueue:
        self._queue.tick((self._loop.now_us - self._at_us) / SECOND)
        self._at_us = self._loop.now_us
        return self._queue
