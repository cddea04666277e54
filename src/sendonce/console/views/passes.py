"""Passes of the scheduler, one by hand, and the report of a day, which must add up."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from sendonce.console.asked import Asked
from sendonce.console.forms import Done, Notice
from sendonce.console.page import Page, link
from sendonce.console.views import overview
from sendonce.core.errors import Refused
from sendonce.core.lifecycle import ENDED, OPEN, State
from sendonce.core.pacing import SECOND
from sendonce.pipeline.overview import PassView, passes
from sendonce.pipeline.report import report as make
from sendonce.withdrawal import check_reason

LIMIT: Final = 50
RUN_S: Final = 20.0
GAP_S: Final = 300.0
"""Passes further apart than this are shown as a gap: nothing was published in between."""
ORDER: Final = (*(state for state in State if state in ENDED), *(state for state in State if state in OPEN))

_one: Final = threading.Lock()


def show(asked: Asked) -> Page:
    before = asked.whole("before")
    found = asked.read(lambda tx: passes(tx, limit=LIMIT + 1, before=before))
    shown = found[:LIMIT]
    return Page(
        "passes.html",
        {
            "passes": list(zip(shown, _gaps(found), strict=False)),
            "before": shown[-1].id if len(found) > LIMIT else None,
            "today": _today(asked),
            "seen": overview.fresh(asked),
        },
    )


def _gaps(found: list[PassView]) -> list[float]:
    """How long before each pass nothing ran, 0.0 where that is nothing to speak of."""
    ends = [each.finished_at or each.started_at for each in found[1:]]
    apart = [(each.started_at - end) / SECOND for each, end in zip(found, ends, strict=False)]
    return [gap if gap > GAP_S else 0.0 for gap in apart] + [0.0]


def run(asked: Asked) -> Done:
    """One bounded pass, now. By several at once it is harmless; this process runs one at a time."""
    reason = check_reason(asked.given("reason"))
    if not _one.acquire(blocking=False):
        raise Refused("a pass is being run from here already: wait for it")
    try:
        until = time.monotonic() + RUN_S
        asked.console.app.collector().run(stopping=lambda: time.monotonic() >= until)
        done = asked.console.scheduler().run(trigger="console", stopping=lambda: time.monotonic() >= until)
        asked.write(lambda tx: tx.runs.audit(asked.who.actor, "pass", "", reason, {}))
    finally:
        _one.release()
    overview.forget(asked)
    if done is None:
        return Done(
            link("passes"), Notice("No pass ran: the scheduler is paused, or the store held.", good=False)
        )
    counts = ", ".join(f"{count} {word}" for word, count in done.counts.items() if count)
    rest = "" if done.complete else " More is due: run another, or leave it to the timer."
    return Done(link("passes"), Notice(f"Pass {done.id}: {counts or 'nothing was due'}.{rest}"))


def report(asked: Asked) -> Page:
    day = asked.query.get("day", "") or _today(asked)
    made = asked.read(lambda tx: make(tx, day, asked.zone, tenant=asked.tenant))
    states = [state for state in ORDER if any(line.counts.get(state) for line in made.lines)]
    return Page("report.html", {"made": made, "states": states, "day": day})


def _today(asked: Asked) -> str:
    now = datetime.fromtimestamp(asked.now // SECOND, UTC).astimezone(ZoneInfo(asked.zone))
    return f"{now:%Y-%m-%d}"
