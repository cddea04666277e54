"""The pruner: forgets processes and passes of long ago, answers of the HTTP API whose time is over, what
people started in the console, and what providers told that belongs to no delivery. They would else grow for
ever.

A cron that drains once a minute leaves half a million processes a year, and a busy scheduler a pass a
second. Nothing stands on either: the mark is kept apart, what became of a delivery is in the ledger. A
process that may still have a call open is kept, since its lease says how long its lane is held.
"""

from __future__ import annotations

from typing import Final

from sendonce.core import pacing
from sendonce.ports.store import Tx

KEEP_US: Final = 14 * 86_400 * pacing.SECOND
"""Where the configuration says nothing else."""
EVENTS_US: Final = 90 * 86_400 * pacing.SECOND
PAGE: Final = 500
"""Rows of each kind in one unit: a few milliseconds of the write lock."""
LOOK_S: Final = 3_600.0


def prune(tx: Tx, keep_us: int = KEEP_US, events_us: int = EVENTS_US) -> int:
    """One unit: forget up to `PAGE` of each; how many. Fewer than `PAGE`: there are no more."""
    before = tx.now - keep_us
    return max(
        tx.processes.forget(before, PAGE),
        tx.runs.forget_passes(before, PAGE),
        tx.answers.forget(tx.now, PAGE),
        tx.batches.forget(before, PAGE),
        tx.events.forget(tx.now - events_us, PAGE),
    )
