"""import: how fast a file of reminders comes in, each row validated and rendered, durably."""

from __future__ import annotations

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
    Figure("cpu", "s", "CPU per 1,000", digits=3),
    Figure("again_rate", "/s", "rows a second, the same file again (all unchanged)"),
)


def run(scale: Scale) -> Mapping[str, float]:
    with sendonce(Account(NOWHERE)) as subject:
        path = subject.rows_file(ROWS, due="+2h")
        with subject.open() as app:
            begun, cpu = time.perf_counter(), time.process_time()
            report = subject.take_in(app, path)
            took, used = time.perf_counter() - begun, time.process_time() - cpu
            assert report.deliveries == ROWS, report.problems[:3]
            begun = time.perf_counter()
            subject.take_in(app, path)
            again = time.perf_counter() - begun
    return {"rate": ROWS / took, "cpu": used / ROWS * 1_000, "again_rate": ROWS / again}


MEASUREMENT: Final = Measurement("import", f"{ROWS:,} CSV rows, one channel each", FIGURES, run)
