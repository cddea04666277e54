"""The relay: carries hints from the outbox to a queue transport, after commit.

Publication leaves an outbox row in its own transaction; the relay publishes in batches and takes the
rows out only when the transport has confirmed. Killed in between, it publishes them again: a doubled
hint costs a look. The sweep hints again whatever has been ready for a while, so that a lost hint costs
latency and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from sendonce.core import pacing
from sendonce.core.delivery import Channel
from sendonce.core.errors import StoreUnavailable
from sendonce.ports.queue import Hint, Queue
from sendonce.ports.store import Delivery, Store, Tx

BATCH: Final = 100
SWEEP_AFTER_US: Final = 15 * pacing.SECOND


async def relay(store: Store, queues: Mapping[Channel, Queue]) -> int:
    """Publish one batch of each channel; how many rows it took out.

    Raises `StoreUnavailable` where a transport is away: its rows stay, the other channels' are done.
    """
    relayed = 0
    away: StoreUnavailable | None = None
    for channel, queue in queues.items():
        hints = store.read(partial(_page, channel))
        if not hints:
            continue
        try:
            await queue.publish(hints)
        except StoreUnavailable as error:
            away = error
            continue
        done = [(hint.delivery_id, hint.epoch) for hint in hints]
        await asyncio.wrap_future(store.write(partial(_take_out, done)))
        relayed += len(done)
    if away is not None:
        raise away
    return relayed


def sweep(tx: Tx, account: str) -> int:
    """One unit: put the account's ready rows into the outbox again that wait for longer than they should.

    Not while the gate is closed: then they wait for it, and not for a hint.
    """
    gate = tx.gates.lock(account)
    if gate is None or max(gate.closed_until, gate.paused_until) > tx.steady:
        return 0
    tx.deliveries.wake(account, tx.now)
    late: list[Delivery] = []
    for retries in (True, False):
        rows = tx.deliveries.ready(account, retries=retries, limit=BATCH)
        late += [row for row in rows if row.course.next_at <= tx.now - SWEEP_AFTER_US]
    tx.hint([(row.id, row.standing.epoch, row.channel.value) for row in late])
    return len(late)


def _page(channel: Channel, tx: Tx) -> list[Hint]:
    rows = tx.hints(BATCH, channel.value)
    found = {row.id: row for row in tx.deliveries.by_ids([id_ for id_, _, _ in rows])}
    return [Hint(id_, found[id_].key, epoch, found[id_].standing.version, name) for id_, epoch, name in rows]


def _take_out(done: list[tuple[int, int]], tx: Tx) -> None:
    tx.hinted(done)
