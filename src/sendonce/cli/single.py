"""One delivery through the full path, and no other: published by a pass, claimed under the account's gate,
sent in its slot, settled. For `send-test`, which may run beside real traffic and must not start any.

A worker on the store's own queue takes whatever is ready. This one hears of a single delivery, through a
queue that knows no other, so the gate, the leases and the ledger are those of every send.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sendonce.app import App
from sendonce.core.lifecycle import State
from sendonce.pipeline.worker import Worker, WorkerSettings
from sendonce.ports.queue import Hint
from sendonce.ports.store import Delivery, Tx

LOOK_S: Final = 0.1
MOVING: Final = frozenset({State.SCHEDULED, State.QUEUED, State.SENDING, State.RECONCILING})


async def send_one(app: App, tenant: str, key: str, *, wait_s: float) -> Delivery:
    """Publish and send the delivery; returns it as it stands when it has ended, or `wait_s` is over.

    The pass publishes whatever else is due, as any pass does; nothing else is claimed.
    """
    await asyncio.to_thread(app.scheduler().run, trigger="send-test")
    delivery = _read(app, tenant, key)
    account = delivery.course.account
    if delivery.standing.state is not State.QUEUED or not account:
        return delivery
    queue = _QueueOfOne()
    worker = Worker(
        app.store,
        app.policy,
        {account: app.provider(account)},
        WorkerSettings(app.process, "send-test", socket.gethostname(), os.getpid(), stop_s=wait_s),
        queues={delivery.channel: queue},
    )
    running = asyncio.create_task(worker.run(), name="send-test")
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while delivery.standing.state in MOVING and not running.done():
                if delivery.standing.state is State.QUEUED:
                    queue.offer(_hint(delivery))
                await asyncio.sleep(LOOK_S)
                delivery = _read(app, tenant, key)
    worker.stop()
    await running
    return _read(app, tenant, key)


class _QueueOfOne:
    """`ports.queue.Queue` with one hint, given out again only when it was offered again."""

    def __init__(self) -> None:
        self._hints: asyncio.Queue[Hint] = asyncio.Queue(maxsize=1)

    def offer(self, hint: Hint) -> None:
        if self._hints.empty():
            self._hints.put_nowait(hint)

    async def publish(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            self.offer(hint)

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                return [await self._hints.get()]
        return []

    async def ack(self, hints: Sequence[Hint]) -> None:
        pass

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        pass  # offered again as long as it is queued

    async def close(self) -> None:
        pass


def _hint(delivery: Delivery) -> Hint:
    standing = delivery.standing
    return Hint(delivery.id, delivery.key, standing.epoch, standing.version, delivery.channel.value)


def _read(app: App, tenant: str, key: str) -> Delivery:
    def query(tx: Tx) -> Delivery:
        return tx.deliveries.by_keys([(tenant, key)])[0]

    return app.store.read(query)
