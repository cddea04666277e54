"""What goes wrong, and when: drawn from a seed, so that a run can be had again.

The same seed gives the same faults at the same times against the same processes. What they meet there is
the machine's business: threads, sockets and disks are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final


class Act(StrEnum):
    KILL = "kill"
    PAUSE = "pause"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them.

    after_s  since the one before
    act      SIGKILL, SIGSTOP and later SIGCONT, or an immediate stop of the database server and its start
    role     of the process that it is about; "" for the server
    which    in [0, 1): which of those that have this role
    lasts_s  how long a process stays stopped, or the server down
    """

    after_s: float
    act: Act
    role: str
    which: float
    lasts_s: float


WEIGHTS: Final[dict[tuple[Act, str], int]] = {
    (Act.KILL, "worker"): 46,
    (Act.KILL, "scheduler"): 14,
    (Act.KILL, "intake"): 6,
    (Act.KILL, "api"): 6,
    (Act.PAUSE, "worker"): 14,
    (Act.PAUSE, "scheduler"): 5,
    (Act.PAUSE, "intake"): 2,
    (Act.PAUSE, "api"): 3,
    (Act.RESTART, ""): 8,
}


def faults(seed: int, *, every_s: float, lease_s: float, restarts: bool) -> Iterator[Fault]:
    """Without end. `every_s`: the mean time between two; `restarts`: whether there is a server.

    A pause is longer than the lease, and more than half of them twice as long or longer (`is_long`). Most
    restarts are short; one in five outlasts the lease.
    """
    chance = Random(seed)
    kinds = [kind for kind in WEIGHTS if restarts or kind[0] is not Act.RESTART]
    weights = [WEIGHTS[kind] for kind in kinds]
    while True:
        after_s = min(chance.expovariate(1 / every_s), 3 * every_s)
        ((act, role),) = chance.choices(kinds, weights)
        which = chance.random()
        if act is Act.RESTART and chance.random() < 0.8:
            lasts_s = chance.uniform(0.0, 2.0)
        else:
            lasts_s = lease_s * (
                chance.uniform(1.2, 2.0) if chance.random() < 0.4 else chance.uniform(2.0, 2.4)
            )
        yield Fault(after_s, act, role, which, lasts_s)


def is_long(fault: Fault, lease_s: float) -> bool:
    """Whether a pause lasts for two leases: whoever wakes from it has long been given up."""
    return fault.act is Act.PAUSE and fault.lasts_s >= 2 * lease_s
