"""drain: how fast one worker process sends what is due, to a provider that takes 20 ms.

The rate is counted at the door, from the first arrival to the last, and over the middle 80 % of them.
CPU is the worker's own and the database server's, from the first call on, so that starting Python is not in
it; the provider's is shown apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from bench import machine
from bench.door import Door, cheap_door, middle, rate_per_s
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, sendonce

COUNT: Final = 20_000
LOOK_S: Final = 0.02
PATIENCE_S: Final = 120.0
"""How long nothing may arrive before the run is given up."""

RATE: Final = Figure("rate", "/s", "deliveries a second, first to last", at_least=1_500)
CPU: Final = Figure("cpu", "s", "CPU per 1,000, worker and database", digits=3, at_most=0.5)
FIGURES: Final = (
    RATE,
    Figure("middle_rate", "/s", "deliveries a second, middle 80 %"),
    CPU,
    Figure("server_cpu", "s", "of it, the database server", digits=3),
    Figure("peak_rss", "MB", "worker memory at its peak"),
    Figure("door_cpu", "s", "provider CPU per 1,000", digits=3),
    Figure("wal_in", "B", "log of the server for its intake and publication, per delivery"),
    Figure("wal", "B", "log of the server for a claim and its outcome, per delivery"),
    Figure("wal_records", "", "records in it", digits=1),
    Figure("hot", "%", "changes of a delivery's row that no index heard of", digits=1),
    Figure("kept", "B", "size of the database per finished delivery"),
    Figure("lost", "", "due, and never at the door", at_most=0, worst=True),
    Figure("duplicates", "", "more than once at the door", at_most=0, worst=True),
    Figure("unsettled", "", "at the door, and not accepted in the ledger", at_most=0, worst=True),
    Figure("others", "cores", "used by others meanwhile", digits=2, worst=True),
)


def run(scale: Scale) -> Mapping[str, float]:
    with cheap_door() as door, sendonce(Account(door.url), scale.store) as subject:
        empty = subject.server_wrote()
        subject.fill(COUNT)
        before = subject.server_wrote()
        with subject.workers(1) as (worker,):
            figures = timed(door, worker, COUNT, subject.server_cpu_s)
        after = subject.server_wrote()
        accepted = subject.accepted()
    if empty and before and after:
        figures |= {
            "wal_in": (before.wal_bytes - empty.wal_bytes) / COUNT,
            "wal": (after.wal_bytes - before.wal_bytes) / COUNT,
            "wal_records": (after.wal_records - before.wal_records) / COUNT,
            "hot": (after.hot - before.hot) / (after.changed - before.changed) * 100,
            "kept": after.size / COUNT,
        }
    return {**figures, "unsettled": COUNT - accepted}


def timed(door: Door, worker: int, count: int, server_cpu_s: Callable[[], float]) -> dict[str, float]:
    """The figures of one worker that sends `count` deliveries."""
    wait_for(door, 1)
    first, server_s = door.count(), server_cpu_s()
    span = machine.Span([worker, *([door.process] if door.process else [])])
    wait_for(door, count)
    time.sleep(0.2)  # the last outcomes settle
    span.end()
    server_s = server_cpu_s() - server_s
    arrivals = [call.arrived_at for call in door.calls()]
    messages = door.messages()
    thousands = (len(arrivals) - first) / 1_000
    figures = {
        "rate": rate_per_s(arrivals),
        "middle_rate": rate_per_s(middle(arrivals)),
        "cpu": (span.used_s[worker] + server_s) / thousands,
        "peak_rss": machine.rss_mb(worker, peak=True),
        "lost": count - messages,
        "duplicates": len(arrivals) - messages,
        "others": max(0.0, span.others_cores - server_s / span.took_s),
    }
    if server_s:
        figures["server_cpu"] = server_s / thousands
    if door.process:
        figures["door_cpu"] = span.used_s[door.process] / thousands
    return figures


def wait_for(door: Door, count: int) -> None:
    """Until `count` requests have arrived, or none came for long."""
    seen, until = 0, time.monotonic() + PATIENCE_S
    while (now := door.count()) < count:
        if now > seen:
            seen, until = now, time.monotonic() + PATIENCE_S
        if time.monotonic() > until:
            raise TimeoutError(f"{now} of {count} requests, and none for {PATIENCE_S:g} s")
        time.sleep(LOOK_S)


MEASUREMENT: Final = Measurement(
    "drain", f"{COUNT:,} due deliveries, one worker process, provider at 20 ms, no rate limit", FIGURES, run
)
