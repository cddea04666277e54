"""Whether a process can do its work, judged by its vital signs.

A process says so to whoever asks it (`runtime.health`). One that cannot is not at fault for that: while the
store is away nobody can, and it goes on by itself when the store is back. So nothing here asks for a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a process is about."""

    STARTING = "starting"
    WORKING = "working"
    STANDING_BY = "standing_by"  # it only schedules, and another process leads
    DRAINING = "draining"  # asked to stop: nothing new is begun, what is open is ended


class Lack(StrEnum):
    """What keeps a process from its work."""

    STOPPING = "stopping"
    STARTING = "starting"  # no heartbeat is durable yet, or a scheduler has not looked yet
    STORE_AWAY = "store_away"  # the last heartbeat could not be written
    LEASE_OVER = "lease_over"  # the last one that was written is older than the lease
    NO_LOOK = "no_look"  # a scheduler has neither passed nor asked for the lead for too long


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The vital signs of one that schedules.

    leads       as it was last told; False where another process does, or nothing was asked yet
    look_age_s  since it last ended a pass or stood by; None: it never has
    look_max_s  the age from which on it hangs
    """

    leads: bool
    look_age_s: float | None
    look_max_s: float


@dataclass(frozen=True, slots=True)
class Vitals:
    """The vital signs of a process.

    beat_age_s   since the last durable heartbeat; None: there was none
    beat_failed  the last one could not be written
    open_calls   claims in hand: calls that are open, or about to start
    scheduling   None: it does not schedule
    """

    works: bool
    stopping: bool
    beat_age_s: float | None
    beat_failed: bool
    lease_s: float
    open_calls: int
    scheduling: Scheduling | None

    @property
    def lease_left_s(self) -> float:
        return 0.0 if self.beat_age_s is None else max(0.0, self.lease_s - self.beat_age_s)

    @property
    def started(self) -> bool:
        looked = self.scheduling is None or self.scheduling.look_age_s is not None
        return looked and self.beat_age_s is not None


def phase_of(vitals: Vitals) -> Phase:
    if vitals.stopping:
        return Phase.DRAINING
    if not vitals.started:
        return Phase.STARTING
    stands_by = vitals.scheduling is not None and not vitals.scheduling.leads
    return Phase.STANDING_BY if stands_by and not vitals.works else Phase.WORKING


def lacks_of(vitals: Vitals) -> tuple[Lack, ...]:
    """All that keeps it from its work; none: it is ready."""
    scheduling, begun = vitals.scheduling, vitals.beat_age_s is not None
    look_age_s = None if scheduling is None else scheduling.look_age_s
    found = {
        Lack.STOPPING: vitals.stopping,
        Lack.STARTING: not vitals.started,
        Lack.STORE_AWAY: vitals.beat_failed,
        Lack.LEASE_OVER: begun and not vitals.lease_left_s,
        Lack.NO_LOOK: scheduling is not None and (look_age_s or 0.0) > scheduling.look_max_s,
    }
    return tuple(lack for lack, is_so in found.items() if is_so)
