"""Places in the fair order of an account, for whoever puts deliveries into its line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from sendonce.core import pacing
from sendonce.core.pacing import GateLimits
from sendonce.core.policy import AccountPolicy
from sendonce.ports.store import Delivery, Tx

TAG_UNIT: Final = 1_000_000


class Tags:
    """Places in the fair order, for the rows of one unit.

    Start-time fair queuing: a flow (tenant, group, priority) gets its next place one step after its
    last, or at the account's virtual time where it was idle; a step is shorter the higher its
    priority. A flow that floods lines up behind itself, not before the others.

    The gates are read and not locked: rows are locked already, and gates come before rows in the order of
    locks. A virtual time that a claim moves on meanwhile costs a place, not the order.
    """

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._last: dict[str, dict[str, int]] = {}
        self._gates = {gate.account: gate for gate in tx.gates.all()}

    def next(self, account: str, row: Delivery) -> int:
        flow = json.dumps([row.tenant, row.group, row.priority], separators=(",", ":"))
        last = self._last.setdefault(account, {})
        if flow not in last:
            last.update(self._tx.gates.flows(account, [flow]))
        start = max(last.get(flow, 0), self._vtime(account))
        last[flow] = start + TAG_UNIT // (1 + row.priority)
        return last[flow]

    def limits(self, account: AccountPolicy) -> GateLimits:
        """The limits in force: those of the gate, which an operator may have changed."""
        gate = self._gates.get(account.name)
        return account.limits if gate is None else gate.limits

    def wellness(self, accounts: Sequence[str]) -> dict[str, float]:
        """How well these accounts are, as their gates say; who has no gate sends nothing."""
        return {
            name: pacing.wellness(self._gates[name], self._tx.steady)
            if name in self._gates
            else pacing.PROBE_PART
            for name in accounts
        }

    def save(self) -> None:
        # In one order, so that two passes at once never wait for each other in a circle.
        for account, tags in sorted(self._last.items()):
            self._tx.gates.save_flows(account, dict(sorted(tags.items())), below=self._vtime(account))

    def _vtime(self, account: str) -> int:
        gate = self._gates.get(account)
        return 0 if gate is None else gate.vtime
