"""One delivery through the full path, and no other: published, claimed under the account's gate, sent in its
slot, settled. For `send-test`, which may run beside real traffic and must not touch any of it.

It takes the steps of a worker one by one, each for this delivery alone: no pass that publishes whatever else
is due, no reaper, no look-up of what others left in doubt. The gate, the lease and the ledger are those of
every send. A worker that is faster may take the delivery as well; then this one only watches.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from typing import Final

from sendonce.app import App
from sendonce.cli.run import tell_of
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Unknown
from sendonce.core.pacing import SECOND
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.pipeline.claimer import Claimed, claim
from sendonce.pipeline.heartbeat import Heartbeat, Name
from sendonce.pipeline.scheduler import Scheduler
from sendonce.pipeline.sender import Conditions, send
from sendonce.pipeline.settler import settle
from sendonce.ports.queue import Hint
from sendonce.ports.store import Delivery, Tx
from sendonce.runtime.poller import Poller

LOOK_S: Final = 0.1
WAIT_MAX_S: Final = 1.0
LEAD_US: Final = 100_000
"""One message has time: its slot lies beyond any commit, so that it is never late for it."""
MOVING: Final = frozenset({State.QUEUED, State.SENDING})


async def send_one(app: App, tenant: str, key: str, *, wait_s: float) -> Delivery:
    """Publish and send the delivery; returns it as it stands when nothing more moves it, or `wait_s` is over.

    A call that is open when the time is over is waited for: its adapter ends it.
    """
    delivery = _read(app, tenant, key)
    scheduler = Scheduler(app.store, app.policy, app.book, process=app.process)
    await asyncio.to_thread(scheduler.publish, delivery.id)
    delivery = _read(app, tenant, key)
    if delivery.standing.state is not State.QUEUED:
        return delivery
    alone = _Alone(app, delivery.course.account)
    until = app.store.steady() + int(wait_s * SECOND)
    async with alone:
        while delivery.standing.state in MOVING and app.store.steady() < until:
            again_s = await alone.attempt(delivery) if delivery.standing.state is State.QUEUED else LOOK_S
            await asyncio.sleep(again_s)
            delivery = _read(app, tenant, key)
    return delivery


class _Alone:
    """A worker for single deliveries of one account, with a lease of its own while it is entered."""

    def __init__(self, app: App, account: str) -> None:
        self._app = app
        self._account = app.policy.accounts[account]
        self._provider = app.provider(account)
        name = Name(app.process, "send-test", socket.gethostname(), os.getpid())
        self._heart = Heartbeat(app.store, name, lease_s=app.policy.lease_s)
        self._beats = Poller("heartbeat", self._heart.beat, on_error=tell_of)

    async def __aenter__(self) -> None:
        await self._heart.beat()
        self._beating = asyncio.create_task(self._beats.run(), name="heartbeat")

    async def __aexit__(self, *_: object) -> None:
        self._beats.stop()
        await self._beating
        await self._provider.close()
        await self._heart.sign_off()

    async def attempt(self, delivery: Delivery) -> float:
        """One attempt, if it may start now; in how many seconds another look may bring something."""
        claimed = await asyncio.wrap_future(self._app.store.write(lambda tx: self._claim(tx, delivery)))
        for made in claimed.claims:
            await self._settle(await self._send(made))
        if claimed.claims or not claimed.again_at:
            return LOOK_S
        wait_s = (claimed.again_at - self._app.store.steady()) / SECOND
        return min(max(wait_s, LOOK_S), WAIT_MAX_S)

    def _claim(self, tx: Tx, delivery: Delivery) -> Claimed:
        standing = delivery.standing
        hint = Hint(delivery.id, delivery.key, standing.epoch, standing.version, delivery.channel.value)
        return claim(
            tx,
            self._account,
            self._app.policy,
            process=self._app.process,
            secret=self._app.store.secret,
            lead_us=LEAD_US,
            hints=[hint],
            lease_until=self._heart.lease_until,
        )

    async def _send(self, made: Claim) -> Attempted:
        steady = self._app.store.steady
        conditions = Conditions(
            steady=steady,
            lease_until=lambda: self._heart.lease_until,
            stopping=lambda: False,
            since=lambda: self._heart.unbroken_since,
        )
        try:
            return await send(made, self._provider, conditions)
        except asyncio.CancelledError:
            # Ctrl-C: what is known of the call is settled, not left to the reaper.
            await self._settle(Attempted(made, Unknown("shutdown"), 0, steady()))
            raise

    async def _settle(self, attempted: Attempted) -> None:
        process, policy = self._app.process, self._app.policy
        done = self._app.store.write(
            lambda tx: settle(tx, [attempted], policy, process=process, chance=random.random)
        )
        await asyncio.wrap_future(done)


def _read(app: App, tenant: str, key: str) -> Delivery:
    def query(tx: Tx) -> Delivery:
        return tx.deliveries.by_keys([(tenant, key)])[0]

    return app.store.read(query)
