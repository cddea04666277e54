"""Group what comes while the last group is being written.

The first item starts a flush at once; those that come while it runs wait together for the next. No
timer, no idle latency, and the busier it is the larger the groups. `add` waits while `pending_max`
items are unwritten: that is the back-pressure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Batcher(Generic[T]):
    """`flush` writes a group and returns when it is durable. It must not raise: what it cannot write
    it has to keep trying, since nobody else knows these items."""

    def __init__(
        self, flush: Callable[[list[T]], Awaitable[None]], *, size_max: int, pending_max: int
    ) -> None:
        self._flush = flush
        self._size_max = size_max
        self._pending: list[T] = []
        self._room = asyncio.Semaphore(pending_max)
        self._running: asyncio.Task[None] | None = None

    async def add(self, item: T) -> None:
        """Hand one over; returns as soon as there is room, not when it is written."""
        await self._room.acquire()
        self._pending.append(item)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="batcher")

    async def drain(self) -> None:
        """Wait until everything handed over is written."""
        while self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        try:
            while self._pending:
                group, self._pending = self._pending[: self._size_max], self._pending[self._size_max :]
                await self._flush(group)
                for _ in group:
                    self._room.release()
        finally:
            self._running = None
