"""How long it takes until a fault is over: until nothing hangs any more on the process that it met."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sendonce.ports.store import Tx

ALL: Final = 1_000
FOREVER: Final = 2**62

Over = Callable[[Tx], bool]


@dataclass(slots=True)
class Recovery:
    """One fault, and the question whether it is over, asked of the store again and again.

    pid       of the process that it is about, 0 for the server
    role      whose work it is that goes on when it is over
    at        (monotonic) when it struck, or when a stopped process was continued
    took_s    set when it is over
    nobody_s  of it, how long the server was down or nobody of that role up
    """

    label: str
    pid: int
    role: str
    over: Over
    at: float = field(default_factory=time.monotonic)
    took_s: float = 0.0
    nobody_s: float = 0.0


class Held:
    """The calls that a process had open when it was killed or stopped: over, when none of them is open."""

    def __init__(self, pid: int) -> None:
        self._mark = f"-{pid}-"
        self._calls: set[tuple[int, int]] | None = None
        self.by_account: Counter[str] = Counter()

    def __call__(self, tx: Tx) -> bool:
        mine = [lost.call for lost in tx.calls.overdue(FOREVER, ALL) if self._mark in lost.call.process]
        names = {(call.delivery_id, call.epoch) for call in mine}
        if self._calls is None:
            self._calls = names
            self.by_account.update(call.account for call in mine)
        return self._calls.isdisjoint(names)


class Beats:
    """Over, when the process has a lease again."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __call__(self, tx: Tx) -> bool:
        return self._pid in leased(tx)


def leased(tx: Tx) -> set[int]:
    """The processes that have a lease."""
    rows = tx.rows("view_processes", steady=tx.steady, since=0, limit=ALL)
    return {int(row["pid"]) for row in rows if int(row["lease_until"]) > tx.steady}


class Passes:
    """Over, when a pass has begun since."""

    def __init__(self) -> None:
        self._since = time.time_ns() // 1000

    def __call__(self, tx: Tx) -> bool:
        rows = tx.rows("view_passes", limit=1)
        return bool(rows) and int(rows[0]["started_at"]) > self._since


class Moves:
    """Over, when the ledger has grown."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, tx: Tx) -> bool:
        last = int(tx.rows("view_progress_last_entry")[0]["id"])
        if self._last < 0:
            self._last = last
        return last > self._last
