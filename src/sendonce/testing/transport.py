"""A queue transport that does what brokers do on a bad day: repeats, reorders, loses acknowledgements.

Everything is in memory and decided by a seeded generator, so that a run can be had again. It never
loses a hint that it confirmed, unless told to: losing hints is `lose`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sendonce.ports.queue import Depth, Hint


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances per hint, 0 to 1. `redeliver_s`: when an unacknowledged hint is handed out again."""

    repeat: float = 0.0
    lose: float = 0.0
    lose_ack: float = 0.0
    reorder: bool = False
    redeliver_s: float = 30.0


@dataclass(slots=True)
class _Held:
    hint: Hint
    visible_at: float


class UnreliableQueue:
    """`ports.queue.Queue` for tests. Time is what `tick` says, in seconds."""

    def __init__(self, faults: Faults, *, seed: int) -> None:
        self._faults = faults
        self._random = random.Random(seed)  # noqa: S311 (a seeded fault, not a secret)
        self._held: dict[str, _Held] = {}
        self._numbers = itertools.count(1)
        self._now = 0.0
        self.published = 0
        self.delivered = 0

    def tick(self, seconds: float) -> None:
        self._now += seconds

    @property
    def left(self) -> int:
        return len(self._held)

    def repeat(self, hints: Sequence[Hint]) -> None:
        """Hand these out once more, as if their acknowledgement had been lost."""
        for hint in hints:
            self._keep(replace(hint, receipt=""), hint.message_id)

    async def publish(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            self.published += 1
            message_id = f"msg-{next(self._numbers)}"
            if self._random.random() < self._faults.lose:
                continue
            self._keep(hint, message_id)
            if self._random.random() < self._faults.repeat:
                self._keep(hint, message_id)

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        ready = [held for held in self._held.values() if held.visible_at <= self._now]
        some = self._random.sample(ready, min(limit, len(ready))) if self._faults.reorder else ready[:limit]
        for held in some:
            held.visible_at = self._now + self._faults.redeliver_s
        self.delivered += len(some)
        return [held.hint for held in some]

    async def ack(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            if self._random.random() >= self._faults.lose_ack:
                self._held.pop(hint.receipt, None)

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        for hint in hints:
            if hint.receipt in self._held:
                self._held[hint.receipt].visible_at = self._now + delay_s

    async def extend(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            if hint.receipt in self._held:
                self._held[hint.receipt].visible_at = self._now + self._faults.redeliver_s

    async def depth(self) -> Depth:
        waiting = sum(held.visible_at <= self._now for held in self._held.values())
        return Depth(waiting, len(self._held) - waiting)

    async def close(self) -> None:
        self._held.clear()

    def _keep(self, hint: Hint, message_id: str) -> None:
        receipt = f"receipt-{next(self._numbers)}"
        self._held[receipt] = _Held(replace(hint, message_id=message_id, receipt=receipt), self._now)
