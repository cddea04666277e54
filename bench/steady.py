"""steady: what changes when a worker goes on and on at half of what it could.

A crowd is queued, and an account's limit lets a thousand a second of it go. Every few seconds it is looked at
what must not grow: the worker's memory, how late calls start, and the rows that the database has not tidied
up yet. Compared is the last quarter of the time with the second: the first fills caches.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from bench import machine
from bench.crowd import Database, beside, make_crowd
from bench.door import cheap_door, rate_per_s
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, publish, sendonce

RATE: Final = 1_000
SPAN_S: Final = 60
FULL_S: Final = 1_200
LOOK_S: Final = 2.0
HOT: Final = ("delivery", "agenda", "open_call", "gate", "process", "writer", "ledger")

FIGURES: Final = (
    Figure("span", "s", "how long"),
    Figure("used", "%", f"of {RATE:,} a second, used", digits=1, at_least=95),
    Figure("peak_rss", "MB", "worker memory at its peak", at_most=150, worst=True),
    Figure("growth", "x", "memory, last quarter against the second", digits=3, at_most=1.05, worst=True),
    Figure("late", "ms", "calls start after their slot: 99 of 100 within, last quarter", digits=1),
    Figure("late_ratio", "x", "the same against the second quarter", digits=2, at_most=1.5, worst=True),
    Figure("dead", "", "dead rows in the database, most in the last quarter"),
    Figure("dead_ratio", "x", "the same against the second quarter", digits=2, at_most=1.5, worst=True),
    Figure("others", "cores", "used by others meanwhile", digits=2, worst=True),
)


def run(scale: Scale) -> Mapping[str, float]:
    span_s = FULL_S if scale.full else SPAN_S
    with (
        cheap_door() as door,
        sendonce(Account(door.url, limit=f"{RATE}/s", lanes=200, jitter="10ms"), scale.store) as subject,
    ):
        with subject.open() as app:
            subject.take_in(app, subject.rows_file(1))
            publish(app)
            named = {"tenant": "default", "reminder": "parcel-0"}
            (first,) = app.store.read(lambda tx: tx.deliveries.matching("reminder", named, 1, 0))
        database = beside(subject)
        make_crowd(database, first.id, RATE * (span_s + 10), first=1_000_000)
        database.done()
        with subject.workers(1) as (worker,):
            while not door.count():
                time.sleep(0.05)
            memory = machine.MemorySampler(worker)
            watched = machine.Span([worker, *([door.process] if door.process else [])])
            server_s = subject.server_cpu_s()
            begun, dead = time.monotonic(), []
            while (left := begun + span_s - time.monotonic()) > 0:
                dead.append(_dead_rows(database) if subject.server else 0)
                threading.Event().wait(min(LOOK_S, left))
            watched.end()
            server_s = subject.server_cpu_s() - server_s
            sent = door.calls()
            samples = memory.stop()
            peak = machine.rss_mb(worker, peak=True)
        late = _late_ms(database)
        database.close()
    arrivals = [call.arrived_at for call in sent]
    figures = {
        "span": float(span_s),
        "used": rate_per_s(arrivals) / RATE * 100,
        "peak_rss": peak,
        "growth": statistics.mean(_last(samples)) / statistics.mean(_second(samples)),
        "late": _within(_last(late)),
        "late_ratio": _within(_last(late)) / _within(_second(late)),
        "others": max(0.0, watched.others_cores - server_s / watched.took_s),
    }
    if subject.server:
        figures["dead"] = max(_last(dead))
        figures["dead_ratio"] = max(_last(dead)) / max(1, *_second(dead))
    return figures


def _dead_rows(database: Database) -> int:
    tables = ", ".join(f"'{name}'" for name in HOT)
    rows = database.rows(f"SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname IN ({tables})")
    return int(rows[0][0])


def _late_ms(database: Database) -> list[float]:
    """Of one in ten, in the order in which they were settled."""
    rows = database.rows(
        "SELECT body FROM ledger WHERE event = 'accepted' AND delivery_id % 10 = 0 ORDER BY id"
    )
    return [json.loads(body)["late_us"] / 1_000 for (body,) in rows]


def _second(values: Sequence[float]) -> Sequence[float]:
    return values[len(values) // 4 : len(values) // 2]


def _last(values: Sequence[float]) -> Sequence[float]:
    return values[-(len(values) // 4) :]


def _within(values: Sequence[float]) -> float:
    """What 99 of 100 stay within."""
    return sorted(values)[int(len(values) * 0.99)]


MEASUREMENT: Final = Measurement(
    "steady",
    f"{RATE:,} a second from one worker, for {SPAN_S} s (with --full {FULL_S // 60} minutes)",
    FIGURES,
    run,
)
