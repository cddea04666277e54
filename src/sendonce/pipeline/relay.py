"""The relay: carries hints from the outbox to a queue transport, after commit.

Publication leaves an outbox row in its own transaction; the relay publishes in batches, in the fair order
of the account, and takes the rows out only when the transport has confirmed. Killed in between, it publishes
them again: a doubled hint costs a look. What is no longer QUEUED under that epoch is taken out and not
published.

It keeps the queue short: no more is published ahead than workers need for a few seconds (`Ahead`). What waits
longer waits in the store, where an urgent reminder still comes before a hundred thousand others; in a broker
it would stand behind them.

The sweep hints again. Retries are hinted when their time has come. What has been ready for a while without
being claimed is hinted once more, with growing waits: a lost hint costs latency and nothing else. It leaves
alone what merely waits for its turn in the queue: hints leave in fair order, so whatever was passed over by
the virtual time of the account has lost its hint, and what has not still has one in front of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from sendonce.core import pacing
from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.core.pacing import GateLimits
from sendonce.ports.queue import Hint, Queue
from sendonce.ports.store import Delivery, Outgoing, Store, Tx

BATCH: Final = 200
SWEEP_AFTER_US: Final = 15 * pacing.SECOND
SWEEP_AGAIN_MAX_US: Final = 600 * pacing.SECOND
AHEAD_S: Final = 5.0
AHEAD_MIN: Final = 4
AHEAD_MAX: Final = 4_000

Known = tuple[int, int]
"""(delivery id, epoch)."""


def ahead_of(limits: GateLimits) -> int:
    """How many hints of an account may wait in a broker: what its limits let out in `AHEAD_S`."""
    rates = [limit for limit in limits.limits if not limit.is_quota]
    if not rates:
        return AHEAD_MAX
    slowest = min(limit.count * pacing.SECOND / limit.interval_us for limit in rates)
    return max(AHEAD_MIN, min(AHEAD_MAX, round(slowest * AHEAD_S)))


class Ahead:
    """How much room is left in each queue. The broker is asked when what it said last is used up.

    `most`: how many hints of an account may wait there.
    """

    def __init__(self, most: Callable[[str], int]) -> None:
        self._most = most
        self._left: dict[str, int] = {}

    async def room(self, account: str, queue: Queue) -> int:
        if self._left.get(account, 0) <= 0:
            waiting = (await queue.depth()).waiting
            self._left[account] = max(0, self._most(account) - waiting)
        return self._left[account]

    def used(self, account: str, number: int) -> None:
        self._left[account] = self._left.get(account, 0) - number

    def forget(self) -> None:
        """Ask anew: these are other queues now."""
        self._left.clear()


async def relay(store: Store, queues: Mapping[str, Queue], ahead: Ahead | None = None) -> int:
    """Publish one batch of each account (`queues` by its name); how many rows it took out.

    Raises `StoreUnavailable` where a transport is away: its rows stay, the other accounts' are done.
    """
    relayed = 0
    away: StoreUnavailable | None = None
    for account, queue in queues.items():
        page = store.read(partial(_page, account))
        if not page:
            continue
        try:
            room = BATCH if ahead is None else await ahead.room(account, queue)
            true = store.read(partial(_hints, page))
            if true[:room]:
                await queue.publish(true[:room])
        except StoreUnavailable as error:
            away = error
            continue
        if ahead is not None:
            ahead.used(account, len(true[:room]))
        stay = {(hint.delivery_id, hint.epoch) for hint in true[room:]}
        done = [known for row in page if (known := (row.delivery_id, row.epoch)) not in stay]
        if done:
            await asyncio.wrap_future(store.write(partial(_take_out, done)))
        relayed += len(done)
    if away is not None:
        raise away
    return relayed


async def discard(store: Store) -> int:
    """Take out a batch that nobody will carry, since the store's own queue is in force; how many."""
    page = store.read(lambda tx: tx.hints(BATCH))
    if page:
        done = [(row.delivery_id, row.epoch) for row in page]
        await asyncio.wrap_future(store.write(partial(_take_out, done)))
    return len(page)


def refill(tx: Tx, account: str) -> int:
    """One unit: hint what is ready, for a transport that has none of another's hints; how many."""
    return tx.hint_ready(account, AHEAD_MAX)


class Swept:
    """What was hinted again, and when it may be once more; of one process, since to forget costs a hint."""

    def __init__(self) -> None:
        self._again: dict[Known, tuple[int, int]] = {}

    def takes(self, row: Delivery, now: int) -> bool:
        """Whether it is to be hinted again now; then the next time takes twice as long."""
        known = (row.id, row.standing.epoch)
        at, wait = self._again.get(known, (0, SWEEP_AFTER_US))
        if now < at:
            return False
        self._again[known] = (now + wait, min(2 * wait, SWEEP_AGAIN_MAX_US))
        return True

    def tidy(self, now: int) -> None:
        """Forget what was not seen again for long."""
        old = [known for known, (at, _) in self._again.items() if at + SWEEP_AGAIN_MAX_US < now]
        for known in old:
            del self._again[known]


def sweep(tx: Tx, account: str, *, waiting: int | None = None, swept: Swept | None = None) -> int:
    """One unit: put an account's rows into the outbox whose time has come, and those that wait for longer
    than they should. How many.

    `waiting`: hints in its queue; None: nobody knows, then whatever is late is hinted again.

    Not while the gate is closed: then they wait for it, and not for a hint.
    """
    gate = tx.gates.lock(account)
    if gate is None or max(gate.closed_until, gate.paused_until) > tx.steady:
        return 0
    woken = tx.deliveries.wake_some(account, tx.now, BATCH)
    late: list[Delivery] = []
    for retries in (True, False):
        rows = tx.deliveries.ready(account, retries=retries, limit=BATCH)
        late += [
            row
            for row in rows
            if row.course.next_at <= tx.now - SWEEP_AFTER_US
            and (not waiting or row.course.tag < gate.vtime)
            and (swept is None or swept.takes(row, tx.now))
        ]
    if swept is not None:
        swept.tidy(tx.now)
    hinted = {row.id: row for row in (*woken, *late)}
    tx.hint([_outgoing(row) for row in hinted.values()])
    return len(hinted)


def _outgoing(row: Delivery) -> Outgoing:
    return Outgoing(row.id, row.standing.epoch, row.course.account, row.course.tag)


def _page(account: str, tx: Tx) -> list[Outgoing]:
    return tx.hints(BATCH, account)


def _hints(page: list[Outgoing], tx: Tx) -> list[Hint]:
    """Of those that are still true."""
    found = {row.id: row for row in tx.deliveries.by_ids([each.delivery_id for each in page])}
    return [
        Hint(row.id, row.key, each.epoch, row.standing.version, row.channel.value)
        for each in page
        if (row := found.get(each.delivery_id)) is not None
        and row.standing.state is State.QUEUED
        and row.standing.epoch == each.epoch
    ]


def _take_out(done: list[Known], tx: Tx) -> None:
    tx.hinted(done)
