"""The heartbeat: one row per process, on which everything that it claimed hangs.

A process renews its lease every third of it. One that stops answering loses its claims when the lease
is over, also if it answers again later: what it claimed before is no longer its own. One that ends well
signs off. People see from the same row who is at work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from sendonce.core import pacing
from sendonce.ports.store import Process, Store, Tx

BEAT_AGAIN_S: Final = 2.0
"""How often a store that is away is tried at the least: without a lease nothing can go on once it is back."""


@dataclass(frozen=True, slots=True)
class Name:
    """Who beats. `process` is unique for ever; `channel` is what it works for, "" for all or none."""

    process: str
    role: str
    host: str
    pid: int
    channel: str = ""


class Heartbeat:
    """Beats for one process.

    lease_until     (steady) 0 until the first beat is durable
    unbroken_since  (steady) when the lease began that has been renewed in time ever since
    failed          the last beat could not be written
    """

    def __init__(self, store: Store, name: Name, *, lease_s: float) -> None:
        self._store = store
        self._name = name
        self._lease_s = lease_s
        self._started_at = 0
        self.lease_until = 0
        self.unbroken_since = 0
        self.failed = False

    @property
    def age_s(self) -> float | None:
        """How long ago the last durable beat began; None: there was none."""
        if not self.lease_until:
            return None
        return self._lease_s - (self.lease_until - self._store.steady()) / pacing.SECOND

    async def beat(self) -> float:
        """Renew the lease; how long until the next beat. Raises `StoreUnavailable`, and then the lease
        that we had runs on."""
        asked_at = self._store.steady()
        until = asked_at + int(self._lease_s * pacing.SECOND)
        try:
            self._started_at, renewed_at = await self._write(until, stopped=False)
        except Exception:
            self.failed = True
            raise
        self.failed = False
        if renewed_at >= self.lease_until:
            self.unbroken_since = renewed_at
        self.lease_until = until
        # From when it was asked: a store that hung must not cost another third after it has come back.
        return max(0.0, self._lease_s / 3 - (self._store.steady() - asked_at) / pacing.SECOND)

    async def sign_off(self) -> None:
        """Say that this process has ended and holds nothing any more."""
        await self._write(self._store.steady(), stopped=True)

    async def _write(self, until: int, *, stopped: bool) -> tuple[int, int]:
        name = self._name
        process = Process(
            id=name.process,
            role=name.role,
            channel=name.channel,
            host=name.host,
            pid=name.pid,
            started_at=self._started_at,
            beat_at=0,
            lease_until=until,
            stopped=stopped,
        )
        return await asyncio.wrap_future(self._store.write(lambda tx: _renew(tx, process)))


def _renew(tx: Tx, process: Process) -> tuple[int, int]:
    """Since when it runs (calendar), and the steady instant of the renewal."""
    started_at = process.started_at or tx.now
    tx.processes.beat(replace(process, beat_at=tx.now, started_at=started_at))
    tx.set_meta("steady_seen", str(tx.steady))
    return started_at, tx.steady
