"""What makes a copy of a store safe to start: it sends nothing until somebody says so.

Whoever restores a backup brings back a past in which deliveries still wait that were sent since. So a copy
is made with everything paused and with the next store epoch: its scheduler and every account wait for
somebody who knows what was sent meanwhile, and who resumes them one by one.
"""

from __future__ import annotations

from dataclasses import replace

from sendonce.core.pacing import FOREVER
from sendonce.ports.store import Pause, Tx

ACTOR = "backup"


def hold_everything(tx: Tx) -> None:
    """One unit, in the copy: pause the scheduler and every account, and raise the store epoch."""
    reason = "a backup was restored: see Restore in docs/operating.md"
    for gate in tx.gates.all():
        locked = tx.gates.lock(gate.account)
        assert locked is not None, "a gate that was listed is there"
        tx.gates.save(replace(locked, paused_until=FOREVER))
        tx.runs.pause(Pause("account", gate.account, FOREVER, reason, ACTOR, tx.now))
    tx.runs.pause(Pause("scheduler", "", FOREVER, reason, ACTOR, tx.now))
    epoch = int(tx.meta("epoch") or 0) + 1
    tx.set_meta("epoch", str(epoch))
    tx.runs.audit(ACTOR, "back_up", "store", reason, {"epoch": epoch})
