"""The queue port: how hints travel from publication to workers.

A hint says "this delivery may be ready" and nothing more: the row in the store is the truth. Hints
may be lost, doubled, reordered or late by days; each of these costs latency, never a send. So a
queue needs no promise beyond at-least-once, and any broker will do.

The built-in queue is the store itself: workers claim ready rows directly and no hint is made. A transport
(`Transport`) is a broker that carries hints instead; it has one queue for each account, since an account is
what has a pace, and what waits for a slow one must hold up no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sendonce.core.delivery import Channel
from sendonce.core.errors import StoreUnavailable
from sendonce.core.value import value


class QueueUnavailable(StoreUnavailable):
    """The broker is away, or refuses. What was asked for may have happened, as far as anybody knows."""

    code = "queue_unavailable"


@value
class Hint:
    """Below 1 KB on the wire.

    epoch        the delivery's epoch at publication; `delivery:epoch` names the hint to a broker, so
                 that its dedupe window never swallows a redrive
    message_id   the transport's own id, for the ledger entry of the claim; "" before it is sent
    receipt      whatever the transport needs to acknowledge; never leaves its adapter and the worker
    """

    delivery_id: int
    key: str
    epoch: int
    version: int
    channel: str
    message_id: str = ""
    receipt: str = ""

    @property
    def name(self) -> str:
        """What a broker may tell repeated publications apart by."""
        return f"{self.delivery_id}:{self.epoch}"


@value
class Features:
    """What a transport can do, as far as anybody must know it. None of it is needed to be right.

    redeliver_s  what was pulled and not acknowledged comes again after so long; 0: when the connection ends
    extends      a worker can keep what it pulled for longer (`extend`)
    delays       the broker itself waits before it hands out what was given back; else the adapter does
    dedupes      a hint that is published twice within its window arrives once
    tells_age    how long the oldest hint waits can be asked for
    wait_s       how long a pull should wait where each costs money; a worker waits at least as it idles
    """

    redeliver_s: float
    extends: bool = False
    delays: bool = False
    dedupes: bool = False
    tells_age: bool = False
    wait_s: float = 0.0


@value
class Depth:
    """What a queue holds, as the broker tells it: some tell it late, and none is believed to the unit.

    waiting       hints that nobody has pulled
    held          pulled and not acknowledged; None where the broker does not tell
    oldest_age_s  since the oldest one that waits was published; None where the broker does not tell
    """

    waiting: int
    held: int | None
    oldest_age_s: float | None = None


class Queue(Protocol):
    """One account's queue. All methods may raise `QueueUnavailable`; then nothing is known."""

    async def publish(self, hints: Sequence[Hint]) -> None:
        """Returns when the transport has confirmed all of them; on an exception, any may be there."""
        ...

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        """Up to `limit` hints, waiting up to `wait_s` for the first; they stay ours until acknowledged
        or until the transport's own time-out hands them out again.

        What is no hint is not among them: it is parked beside the queue, with a reason, and told.
        """
        ...

    async def ack(self, hints: Sequence[Hint]) -> None:
        """Done with them. After the outcome is committed, never before. What is not held any more is not
        missed."""
        ...

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        """Hand them out again, not before `delay_s` where the transport can wait."""
        ...

    async def extend(self, hints: Sequence[Hint]) -> None:
        """Keep them for another `redeliver_s`, where `Features.extends`; else nothing happens."""
        ...

    async def depth(self) -> Depth:
        """What is in it."""
        ...

    async def close(self) -> None:
        """Let go of what it holds. Idempotent."""
        ...


class Transport(Protocol):
    """A broker, as one configuration names it. It belongs to the event loop that first uses it."""

    kind: str
    features: Features

    def queue(self, account: str, channel: Channel) -> Queue:
        """The queue of an account; the same one each time. It is declared when it is first used."""
        ...

    async def check(self) -> str:
        """Log in, and say what was found: the server and its version. Leaves nothing behind.

        Raises `ConfigError` that names what is wrong and the fix: not reachable, login refused, a right that
        is missing, a queue of another type, a server that is too old.
        """
        ...

    async def close(self) -> None:
        """Idempotent. What was pulled and not acknowledged comes again."""
        ...
