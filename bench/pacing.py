"""pacing: a limit of 200 a second, shared by two worker processes, seen from the provider.

The sandbox stands at the door and limits by the same number: at most 200 starts in any sliding second,
else 429. What counts is its own list of arrivals. The share of the limit that was used is taken over the
whole seconds between the first start and the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench import machine
from bench.door import rate_per_s, sandbox_door
from bench.drain import wait_for
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, sendonce
from sendonce.testing.sandbox.door import most_in_window

LIMIT: Final = 200
SECONDS: Final = 20
COUNT: Final = LIMIT * SECONDS
WORKERS: Final = 2

FIGURES: Final = (
    Figure("worst_second", "", "most starts in any sliding second", at_most=LIMIT, worst=True),
    Figure("worst_100ms", "", "most starts in any 100 ms", worst=True),
    Figure("used", "%", "of the limit used", digits=1, at_least=95),
    Figure("throttled", "", "answers of 429", at_most=0, worst=True),
    Figure("released", "", "slots given up as late, of 1,000", digits=1),
    Figure("cpu", "s", "worker CPU per 1,000", digits=3),
    Figure("others", "cores", "used by others meanwhile", digits=2, worst=True),
)


def run(scale: Scale) -> Mapping[str, float]:
    with (
        sandbox_door(rate_limit=LIMIT) as door,
        sendonce(Account(door.url, limit=f"{LIMIT}/s", lanes=32, jitter="10ms"), scale.store) as subject,
    ):
        subject.fill(COUNT)
        with subject.workers(WORKERS) as workers:
            wait_for(door, 1)
            span = machine.Span(workers)
            wait_for(door, COUNT)
            span.end()
        calls = door.calls()
        released = subject.count_entries("released")
    arrivals = [call.arrived_at for call in calls]
    return {
        "worst_second": most_in_window(arrivals, 1_000_000),
        "worst_100ms": most_in_window(arrivals, 100_000),
        "used": rate_per_s(arrivals) / LIMIT * 100,
        "throttled": sum(call.throttled for call in calls),
        "released": released / COUNT * 1_000,
        "cpu": sum(span.used_s.values()) / len(calls) * 1_000,
        "others": span.others_cores,
    }


MEASUREMENT: Final = Measurement(
    "pacing", f"{LIMIT} a second from {WORKERS} worker processes, for {SECONDS} s", FIGURES, run
)
