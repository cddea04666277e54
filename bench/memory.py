"""memory: whether a worker's memory stays flat while it drains.

Read ten times a second, from the first call to the last. Flat is the mean of the last quarter against
the mean of the first: what a leak moves, and a peak in the middle does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Final

from bench import machine
from bench.door import cheap_door
from bench.drain import wait_for
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, sendonce

COUNT: Final = 40_000
COUNT_FULL: Final = 200_000

FIGURES: Final = (
    Figure("deliveries", "", "deliveries drained"),
    Figure("peak_rss", "MB", "worker memory at its peak", at_most=200, worst=True),
    Figure("growth", "x", "last quarter against the first", digits=3, at_most=1.05, worst=True),
)


def run(scale: Scale) -> Mapping[str, float]:
    count = COUNT_FULL if scale.full else COUNT
    with cheap_door() as door, sendonce(Account(door.url), scale.store) as subject:
        subject.fill(count)
        with subject.workers(1) as (worker,):
            wait_for(door, 1)
            sampler = machine.MemorySampler(worker)
            wait_for(door, count)
            samples = sampler.stop()
            peak = machine.rss_mb(worker, peak=True)
    quarter = len(samples) // 4
    growth = statistics.mean(samples[-quarter:]) / statistics.mean(samples[:quarter])
    return {"deliveries": count, "peak_rss": peak, "growth": growth}


MEASUREMENT: Final = Measurement(
    "memory", "a worker that drains many (40,000; with --full 200,000)", FIGURES, run
)
