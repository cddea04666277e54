"""What applications scheduled in their own transactions, at a glance: what waits, and what is parked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sendonce.core.pacing import SECOND
from sendonce.ports.store import Tx

WAITS_S: Final = 300.0
"""A scheduler takes in within seconds; but what a long transaction asked for is as old as its asking."""


@dataclass(frozen=True, slots=True)
class OutboxView:
    """waiting  to be taken in, the first one for `waits_s`
    parked   cannot be taken in: somebody must look
    alert    it waits as if no scheduler ran
    """

    waiting: int
    waits_s: float
    parked: int

    @property
    def alert(self) -> bool:
        return self.waits_s > WAITS_S


def outbox(tx: Tx) -> OutboxView:
    (waiting,) = tx.rows("view_intake_waiting")
    (parked,) = tx.rows("view_intake_parked_total")
    since = int(waiting["since"])
    waits_s = max(0, tx.now - since) / SECOND if since else 0.0
    return OutboxView(int(waiting["waiting"]), waits_s, int(parked["parked"]))
