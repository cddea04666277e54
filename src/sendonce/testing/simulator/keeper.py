"""What becomes of the record beside the work: sealed in blocks, emptied and removed by policy, and erased
where a person asks for it.

It does what `sendonce scheduler` does beside its passes, with spans of seconds in place of months.
Checkpoints are exported as an operator would keep them, out of the store's reach.

At the end every seal and checkpoint must hold, what is not there any more must be there as a tombstone, and
of whom was erased nothing may be left but the "no" that keeps the address from ever being written to again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sendonce.core.errors import StoreUnavailable
from sendonce.core.policy import Policy
from sendonce.core.retention import Keep
from sendonce.pipeline.retention import ROUND, Retention
from sendonce.pipeline.sealed import check_seals
from sendonce.pipeline.sealer import Sealer, refuse_unsealed
from sendonce.ports.store import Tx
from sendonce.store.sqlite import SqliteStore
from sendonce.testing.simulator.checks import Checker
from sendonce.testing.simulator.faults import Fault
from sendonce.testing.simulator.ports import Ground, StorePort
from sendonce.testing.simulator.process import Process

LOOK_S: Final = 4.0
SEAL_EVERY_S: Final = 3.0
KEEPS: Final = (Keep(10.0, 25.0), Keep(5.0, None), Keep(None, 20.0))
"""What is kept for so many seconds after its end: texts, deliveries."""
KEPT_FOR_GOOD: Final = Keep()
GONE_AT_MOST: Final = frozenset(
    {"ACCEPTED", "CANCELLED", "SUPPRESSED", "EXPIRED", "NOT_SENT", "ASSUMED_SENT"}
)
"""What may ever be removed: it has ended, and nobody can still want it tried again."""


@dataclass(slots=True)
class Keeper:
    """Of one world. `erased` are the delivery keys whose customer was told so; `again`, of them, those that a
    caller has handed in once more since, with an address."""

    ground: Ground
    policy: Policy
    erased: dict[str, None] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    checkpoints: list[str] = field(default_factory=list)
    failovers: int = 0
    _keep: Keep = KEPT_FOR_GOOD

    def __post_init__(self) -> None:
        if self.ground.dice.takes(Fault.REMOVAL):
            self._keep = self.ground.dice.pick("keep", KEEPS)

    @property
    def open(self) -> bool:
        """Whether somebody waits to be erased."""
        return bool(self.ground.store.read(lambda tx: tx.removals.asked(1)))

    async def main(self, process: Process) -> None:
        """Seals what may be sealed, goes on with erasures, and removes by policy."""
        port, dice = StorePort(process, self.ground), self.ground.dice
        sealer = Sealer(
            port, None, every_s=SEAL_EVERY_S, export=self.checkpoints.append, export_every_s=SEAL_EVERY_S
        )
        retention = Retention(port, self.policy, self._keep, bury=refuse_unsealed)

        def work() -> None:
            sealer.step()
            if dice.strikes(Fault.REMOVAL, process.name):
                port.write(_is_time).result()
            while not retention.step():
                pass

        while True:
            await asyncio.sleep(dice.between(process.name, 0.5, 1.5) * LOOK_S)
            with suppress(StoreUnavailable):
                await process.side.run(work)

    # What people were told

    def was_erased(self, key: str, since: int) -> None:
        """Answered; `since` is `failovers` of when it was asked."""
        if since != self.failovers:
            return  # the store may have lost it meanwhile
        self.erased[key] = None
        self.again.discard(key)
        self.ground.checker.erased(key)

    def handed_in(self, key: str) -> None:
        if key in self.erased:
            self.again.add(key)

    def set_back(self) -> None:
        """The store has lost what was written last. Its end was cut off, a checkpoint would show it, and an
        operator begins another file."""
        self.failovers += 1
        self.checkpoints.clear()
        self.erased.clear()
        self.again.clear()

    # At the end

    def check(self, store: SqliteStore, checker: Checker) -> None:
        sealed = check_seals(store, None, self.checkpoints)
        for fault in sealed.faults:
            checker.broke(f"{fault.key}: {fault.what}", kind="seal")
        if sealed.entries and sealed.checkpoints:
            checker.coverage.kept("sealed")
        self._check_removed(store, checker)
        for row in store.read(lambda tx: tx.rows("view_simulator_kept")) if self.erased else ():
            key = str(row["key"])
            if key not in self.erased:
                continue
            if key not in self.again and (row["recipients"] != "{}" or row["texts"]):
                checker.broke(f"{key} was erased, and its text is there", kind="not erased", key=key)
            if not row["texts"] and row["suppressed"]:
                checker.coverage.kept("erased")
            if not row["suppressed"]:
                checker.broke(f"{key} was erased, and may be written to", kind="not erased", key=key)

    def _check_removed(self, store: SqliteStore, checker: Checker) -> None:
        there = {str(row["key"]) for row in store.read(lambda tx: tx.rows("view_simulator_kept"))}
        gone = [shadow for key, shadow in checker.shadows.items() if key not in there]
        counted = sum(int(row["removed"]) for row in store.read(lambda tx: tx.rows("view_simulator_removed")))
        if counted != len(gone):
            checker.broke(f"{len(gone)} deliveries are gone, tombstones tell of {counted}", kind="removed")
        for shadow in gone:
            checker.coverage.kept("removed")
            if shadow.standing.state.value not in GONE_AT_MOST:
                checker.broke(
                    f"{shadow.key} was {shadow.standing.state}, and was removed",
                    kind="removed",
                    key=shadow.key,
                )


def _is_time(tx: Tx) -> None:
    """Another round: its six hours are no part of a run of minutes."""
    tx.set_meta(ROUND, "0")
