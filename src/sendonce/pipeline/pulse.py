"""The pulse: where the vital signs of this process are read while it runs.

Whoever puts a process together hangs its parts in here. Reading asks nobody, neither the store nor the
network, so it answers also while those do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sendonce.core.health import Scheduling, Vitals
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.pipeline.heartbeat import Heartbeat
from sendonce.runtime.poller import Step


class Pulse:
    """Of one process; read on its loop. `boot` is the clock that looks are timed by.

    works, schedules  what it is there for
    stopping          it was asked to stop, or a part of it ended by itself
    heart             None until there is one
    open_calls        how many a worker has
    """

    def __init__(self, policy: Policy, *, pass_every_s: float, boot: Callable[[], int]) -> None:
        self.works = False
        self.schedules = False
        self.stopping = False
        self.heart: Heartbeat | None = None
        self.open_calls: Callable[[], int] = lambda: 0
        self._leads: Callable[[], bool] = lambda: False
        self._lease_s = policy.lease_s
        # The longest that a look may rightly be away: the wait, a pass up to its bound, and a slow store.
        self._look_max_s: Final = pass_every_s + policy.pass_time_max_s + policy.lease_s
        self._boot = boot
        self._looked_at: int | None = None

    def looking(self, step: Step, *, leads: Callable[[], bool]) -> Step:
        """The step of a scheduler, with each time that it ends well remembered."""
        self._leads = leads

        async def looked() -> float:
            wait_s = await step()
            self._looked_at = self._boot()
            return wait_s

        return looked

    def vitals(self) -> Vitals:
        heart = self.heart
        return Vitals(
            works=self.works,
            stopping=self.stopping,
            beat_age_s=None if heart is None else heart.age_s,
            beat_failed=heart is not None and heart.failed,
            lease_s=self._lease_s,
            open_calls=self.open_calls(),
            scheduling=self._scheduling() if self.schedules else None,
        )

    def _scheduling(self) -> Scheduling:
        age_s = None if self._looked_at is None else (self._boot() - self._looked_at) / SECOND
        return Scheduling(self._leads(), age_s, self._look_max_s)
