"""The carrier: which transport carries hints now, and what happens while it is away.

One process may know several transports: the one that its configuration names, and a standby. Which of them
is in force stands in the store, so that all processes change together while they run (`sendonce transport
switch`). Until somebody switched it is what the configuration says, and again when that changes afterwards.
A process that does not know the one in force claims from the store's own queue, which is always right.

A broker that does not answer is asked again with growing waits, by one probe rather than by everybody.
After `take_over_s` the store's own queue takes over: workers claim ready rows directly, in fair order, with
all else as it is. When the broker is back, hints that it kept find their deliveries gone, and are done by a
look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from sendonce import telemetry
from sendonce.core.delivery import Channel
from sendonce.core.errors import StoreUnavailable
from sendonce.ports.queue import Depth, Hint, Queue, QueueUnavailable, Transport
from sendonce.ports.store import Tx
from sendonce.telemetry import fault, tell

T = TypeVar("T")

STORE: Final = "store"
"""The store's own queue, where a transport would be named."""
META: Final = "transport"
"""In `meta`: CONFIGURED TAB IN FORCE, the first as it was configured when somebody switched to the second."""
AGAIN_S: Final = 0.5
AGAIN_MAX_S: Final = 15.0
CALL_S: Final = 15.0
"""What a call to a broker may take: clients were seen to wait for ever for a connection that had died."""


def in_force(tx: Tx, configured: str) -> str:
    """The kind of transport that carries hints now."""
    was, _, switched = (tx.meta(META) or "").partition("\t")
    return switched if switched and was == configured else configured


def put_in_force(tx: Tx, configured: str, kind: str) -> None:
    tx.set_meta(META, f"{configured}\t{kind}")


class Breaker:
    """What is known of a broker's health, by the calls that were made. Seconds of the loop's clock."""

    def __init__(self, kind: str, *, chance: Callable[[], float]) -> None:
        self._kind = kind
        self._chance = chance
        self._failures = 0
        self._since = 0.0
        self._again_at = 0.0

    @property
    def away(self) -> bool:
        return self._failures > 0

    def away_for(self) -> float:
        return _now() - self._since if self._failures else 0.0

    def waits_s(self) -> float:
        """Until it may be asked again."""
        return max(0.0, self._again_at - _now()) if self._failures else 0.0

    def answered(self) -> None:
        if self._failures:
            tell(telemetry.TRANSPORT_BACK, transport=self._kind, away_s=round(self.away_for(), 1))
        self._failures = 0

    def failed(self, error: Exception) -> None:
        if not self._failures:
            self._since = _now()
            tell(telemetry.TRANSPORT_AWAY, transport=self._kind, **fault(error))
        elif self.waits_s() > 0:
            return  # several calls were under way when it went
        self._failures += 1
        span = min(AGAIN_MAX_S, AGAIN_S * 2.0 ** min(self._failures - 1, 10))
        self._again_at = _now() + span * (0.5 + self._chance() / 2)


class Guarded:
    """A `Queue` behind the breaker of its broker. While that is open, nothing is asked; a call that hangs is
    given up. Raises `QueueUnavailable` and nothing else."""

    def __init__(self, queue: Queue, breaker: Breaker) -> None:
        self._queue = queue
        self.breaker = breaker

    async def publish(self, hints: Sequence[Hint]) -> None:
        await self._call(lambda: self._queue.publish(hints))

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        return await self._call(lambda: self._queue.pull(limit, wait_s), wait_s)

    async def ack(self, hints: Sequence[Hint]) -> None:
        await self._call(lambda: self._queue.ack(hints))

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        await self._call(lambda: self._queue.nack(hints, delay_s))

    async def extend(self, hints: Sequence[Hint]) -> None:
        await self._call(lambda: self._queue.extend(hints))

    async def depth(self) -> Depth:
        return await self._call(lambda: self._queue.depth())

    async def close(self) -> None:
        await self._queue.close()

    async def _call(self, call: Callable[[], Awaitable[T]], wait_s: float = 0.0) -> T:
        if self.breaker.waits_s() > 0:
            raise QueueUnavailable("the broker is away: it is asked again in a while")
        try:
            async with asyncio.timeout(CALL_S + wait_s):
                answer = await call()
        except TimeoutError:
            error = QueueUnavailable(f"no answer within {CALL_S + wait_s:g} s")
            self.breaker.failed(error)
            raise error from None
        except StoreUnavailable as unavailable:
            self.breaker.failed(unavailable)
            raise QueueUnavailable(str(unavailable)) from unavailable
        self.breaker.answered()
        return answer


class Carrier:
    """For one process. `accounts`: the channel of each account that it works for, by name.

    `configured`: the kind that the configuration names, or `STORE`. `chance` draws from [0, 1).
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        accounts: Mapping[str, Channel],
        *,
        configured: str,
        take_over_s: float,
        chance: Callable[[], float],
    ) -> None:
        self.configured = configured
        self.in_force = configured
        self._take_over_s = take_over_s
        self._used = {configured}
        self._transports = transports
        self._breakers = {kind: Breaker(kind, chance=chance) for kind in transports}
        self._queues: dict[str, dict[str, Queue]] = {
            kind: {
                name: Guarded(transport.queue(name, channel), self._breakers[kind])
                for name, channel in accounts.items()
            }
            for kind, transport in transports.items()
        }

    @classmethod
    def of(cls, queues: Mapping[str, Queue], *, take_over_s: float, chance: Callable[[], float]) -> Carrier:
        """One transport that is there already, as its queues by account."""
        carrier = cls({}, {}, configured="given", take_over_s=take_over_s, chance=chance)
        carrier._breakers["given"] = Breaker("given", chance=chance)
        carrier._queues["given"] = {
            name: Guarded(queue, carrier._breakers["given"]) for name, queue in queues.items()
        }
        return carrier

    def follow(self, tx: Tx) -> str:
        """Read which one is in force."""
        return in_force(tx, self.configured)

    def turn_to(self, kind: str) -> bool:
        """From now on this one is in force; whether that is news."""
        news = kind != self.in_force
        if news:
            tell(telemetry.TRANSPORT_SWITCHED, before=self.in_force, transport=kind)
            self.in_force = kind
            self._used.add(kind)
        return news

    @property
    def queues(self) -> Mapping[str, Queue]:
        """Those of the one in force, by account; none where it is the store's own queue, or unknown."""
        return self._queues.get(self.in_force, {})

    def queue_of(self, account: str) -> Queue | None:
        """Where to pull hints from now; None: claim from the store's own queue."""
        breaker = self._breakers.get(self.in_force)
        if breaker is None or breaker.away_for() >= self._take_over_s:
            return None
        return self.queues.get(account)

    def waits_s(self) -> float:
        """Until the broker may be asked again; 0 where it answers."""
        breaker = self._breakers.get(self.in_force)
        return breaker.waits_s() if breaker is not None else 0.0

    def polls_s(self, idle_s: float) -> float:
        """How long a pull may wait."""
        transport = self._transports.get(self.in_force)
        return max(idle_s, transport.features.wait_s) if transport is not None else idle_s

    def keeps_s(self) -> float:
        """How long what was pulled may be kept without a word: half of its time; 0: as long as one likes."""
        transport = self._transports.get(self.in_force)
        return transport.features.redeliver_s / 2 if transport is not None else 0.0

    async def probe(self) -> None:
        """Ask a broker that was away whether it is back."""
        breaker = self._breakers.get(self.in_force)
        if breaker is not None and breaker.away and breaker.waits_s() == 0:
            for queue in self.queues.values():
                await queue.depth()
                return

    async def let_go(self, needed: Collection[Queue]) -> None:
        """Give back what is held of transports that are not in force any more, but for the queues that
        somebody still has to acknowledge to."""
        for kind, queues in self._queues.items():
            if kind == self.in_force or kind not in self._used:
                continue
            if not any(queue in needed for queue in queues.values()):
                self._used.discard(kind)
                for queue in queues.values():
                    await queue.close()

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
