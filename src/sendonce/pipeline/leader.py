"""The lead: of several processes of a role, one works and the others stand by.

Two schedulers at once publish nothing twice; they only look at the same rows. So the lead is a lease like any
other and no lock: whoever holds it renews it before each turn, and when it stops doing so, or ends, the next
one that asks has it. A leader that was stopped for longer than its lease may finish its turn beside the next.
"""

from __future__ import annotations

from sendonce import telemetry
from sendonce.core.pacing import SECOND
from sendonce.ports.store import Store
from sendonce.telemetry import tell


class Leader:
    """One process's part in what `role` does. Blocking: each question is a commit."""

    def __init__(self, store: Store, role: str, process: str, *, lease_s: float) -> None:
        self._store = store
        self.role = role
        self._process = process
        self._lease_s = lease_s
        self._leads: bool | None = None

    @property
    def led(self) -> bool:
        """What the last question was answered with."""
        return bool(self._leads)

    def leads(self) -> bool:
        """Whether this process leads until its lease is over; asking renews it. Raises `StoreUnavailable`."""
        span = int(self._lease_s * SECOND)
        leads = self._store.write(
            lambda tx: tx.processes.lead(self.role, self._process, tx.steady + span)
        ).result()
        if leads is not self._leads:
            self._leads = leads
            tell(telemetry.LEADS if leads else telemetry.STANDS_BY, role=self.role)
        return leads

    def resign(self) -> None:
        """Let the next one have it at once."""
        if self._leads:
            self._store.write(lambda tx: tx.processes.resign(self.role, self._process)).result()
            self._leads = None
