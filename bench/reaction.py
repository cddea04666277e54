"""reaction: how long after a 429 another call of the same account can still start.

Two workers send at a steady pace; the door answers one call with 429 and `Retry-After: 1`. Counted is
the time from that answer to the last call that arrives before the pause, from either process. Some are
bound to come: slots are given out up to 50 ms ahead.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Final

from bench.door import Call, SandboxDoor, sandbox_door
from bench.drain import wait_for
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, sendonce

RATE: Final = 100
TURNS: Final = 6
TURN_S: Final = 4.0
WORKERS: Final = 2
PAUSE_US: Final = 950_000
"""Of the second that the door asks for; a start after it is the next one, not a late one."""

FIGURES: Final = (
    Figure("worst_ms", "ms", "from the 429 to the last start, worst", at_most=200, worst=True),
    Figure("median_ms", "ms", "from the 429 to the last start, median"),
    Figure("starts", "", "starts after the 429, most", worst=True),
    Figure("throttled", "", "answers of 429 that were seen"),
)


def run(scale: Scale) -> Mapping[str, float]:
    with (
        sandbox_door() as door,
        sendonce(Account(door.url, limit=f"{RATE}/s", lanes=32, jitter="10ms"), scale.store) as subject,
    ):
        subject.fill(round(RATE * TURNS * TURN_S) + RATE)
        with subject.workers(WORKERS):
            wait_for(door, RATE)
            for _ in range(TURNS):
                _one(door)
        calls = door.calls()
    late = [_after(calls, call) for call in calls if call.throttled]
    waits = [max([0, *times]) / 1_000 for times in late]
    return {
        "worst_ms": max(waits),
        "median_ms": statistics.median(waits),
        "starts": max(map(len, late)),
        "throttled": len(late),
    }


def _one(door: SandboxDoor) -> None:
    door.throttle_next()
    time.sleep(TURN_S)


def _after(calls: list[Call], throttled: Call) -> list[int]:
    """When others started after it was answered, within the pause; microseconds."""
    since = (call.arrived_at - throttled.answered_at for call in calls)
    return [us for us in since if 0 < us < PAUSE_US]


MEASUREMENT: Final = Measurement(
    "reaction", f"one 429 among {RATE} calls a second from {WORKERS} worker processes", FIGURES, run
)
