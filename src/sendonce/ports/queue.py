"""The queue port: how hints travel from publication to workers.

A hint says "this delivery may be ready" and nothing more: the row in the store is the truth. Hints
may be lost, doubled, reordered or late by days; each of these costs latency, never a send. So a
queue needs no promise beyond at-least-once, and any broker will do.

The built-in queue is the store itself: workers claim ready rows directly and no hint is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sendonce.core.value import value


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


class Queue(Protocol):
    """One channel's queue. All methods may raise `StoreUnavailable`; then nothing is known."""

    async def publish(self, hints: Sequence[Hint]) -> None:
        """Returns when the transport has confirmed all of them; on an exception, any may be there."""
        ...

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        """Up to `limit` hints, waiting up to `wait_s` for the first; they stay ours until acknowledged
        or until the transport's own time-out hands them out again."""
        ...

    async def ack(self, hints: Sequence[Hint]) -> None:
        """Done with them. After the outcome is committed, never before."""
        ...

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        """Hand them out again, not before `delay_s` where the transport can wait."""
        ...

    async def close(self) -> None: ...
