"""import: how fast a file of reminders comes in, each row validated and rendered, durably.

As `sendonce import` does it: rows are prepared by further processes where cores are left (`runtime.crew`).
Their CPU is counted apart from that of the process that writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, sendonce

ROWS: Final = 100_000
NOWHERE: Final = "http://127.0.0.1:9/v1/messages"
"""An account that is never called: nothing is sent here."""

FIGURES: Final = (
    Figure("rate", "/s", "rows a second", at_least=4_000),
    Figure("cpu", "s", "CPU per 1,000, the importing process", digits=3),
    Figure("hands_cpu", "s", "CPU per 1,000, the processes that prepare", digits=3),
    Figure("wal", "B", "log of the server per row, both times"),
    Figure("again_rate", "/s", "rows a second, the same file again (all unchanged)"),
)


def run(scale: Scale) -> Mapping[str, float]:
    with sendonce(Account(NOWHERE), scale.store) as subject:
        path = subject.rows_file(ROWS, due="+2h")
        with subject.open() as app:
            wrote = subject.server_wrote()
            begun, before = time.perf_counter(), os.times()
            report = subject.take_in(app, path)
            took, after = time.perf_counter() - begun, os.times()
            assert report.deliveries == ROWS, report.problems[:3]
            begun = time.perf_counter()
            subject.take_in(app, path)
            again = time.perf_counter() - begun
        written = subject.server_wrote()
    own = after.user + after.system - before.user - before.system
    hands = after.children_user + after.children_system - before.children_user - before.children_system
    server = {"wal": (written.wal_bytes - wrote.wal_bytes) / ROWS} if wrote and written else {}
    return {
        **server,
        "rate": ROWS / took,
        "cpu": own / ROWS * 1_000,
        "hands_cpu": hands / ROWS * 1_000,
        "again_rate": ROWS / again,
    }


MEASUREMENT: Final = Measurement("import", f"{ROWS:,} CSV rows, one channel each", FIGURES, run)
