"""The clock of a database server, as one process knows it.

Many machines share one PostgreSQL, so its clock is the only one that all of them can compare with. It tells
the calendar and nothing else. The steady clock is made from it:

    steady = calendar of the server + correction

The correction is kept in the store, is 0 at first (or what a move brought along, see `moving`), and only ever
grows. Each answer of the server is held
against this process's own boot clock, which nobody steps. Where the server's calendar was set back, by an
administrator or because another server took over, the steady clock would go back with it, and a provider's
key would look younger than it is. Whoever sees that first adds the step to the correction, and for all
others the steady clock goes on as if nothing had been.

A calendar set *forward* is let through. From outside it cannot be told from a machine that stood still for
as long, and believing it is the safe side: leases end early and keys look older.

Between two answers the boot clock carries on. An answer bounds the server's clock from both sides: it was
read after the question left and before the answer came. What is held is moved as little as fits, and a first
answer is read late, never early: a slot may start late, never before its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

STEP_US: Final = 100_000
"""Less than this is drift, or a clock that is slewed; time services step from 128 ms on."""


class ServerClock:
    """See the module text. Any thread may observe, and any may ask."""

    def __init__(self, boot: Callable[[], int]) -> None:
        self.boot = boot
        self._lock = threading.Lock()
        self._held: tuple[int, int] | None = None  # (steady - boot, correction)

    def remember(self, steady: int) -> None:
        """The steady clock had come this far when somebody last looked; it never goes back behind that."""
        if self._held is None:
            self._held = steady - self.boot(), 0

    def observe(self, calendar: int, correction: int, asked_at: int) -> int:
        """Take in what the server answered to a question that left at `asked_at` (boot clock).

        Returns by how much the correction must grow before this answer may be believed; 0: it is taken in.
        """
        answered_at = self.boot()
        least = calendar + correction - answered_at
        most = calendar + correction - asked_at
        with self._lock:
            held = least if self._held is None else self._held[0]
            if held - most > STEP_US:
                return held - most
            self._held = min(max(held, least), most), correction
        return 0

    def now(self) -> int:
        """The calendar of the server."""
        offset, correction = self._known()
        return self.boot() + offset - correction

    def steady(self) -> int:
        offset, _ = self._known()
        return self.boot() + offset

    def _known(self) -> tuple[int, int]:
        assert self._held is not None, "nothing was asked yet"
        return self._held
