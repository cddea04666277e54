"""What waits, what holds it, who is at work, and how the last hour went: an operator's first page."""

from __future__ import annotations

from typing import Final

from sendonce.console.asked import Asked, Console
from sendonce.console.kept import Kept
from sendonce.console.page import Page
from sendonce.pipeline.forecast import Forecast, forecast
from sendonce.pipeline.minutes import ENDS, Minutes, minutes
from sendonce.pipeline.overview import Overview, ProcessView, overview

EVERY_S: Final = 5
FRESH_S: Final = 2.0
"""However many people look, the store is looked through so often at most by this process, and less often
where that takes long."""
AHEAD_S: Final = 30.0
"""The same for the forecast, which looks through a day."""
ENDED_SHOWN: Final = 5

_seen: Final = Kept[Console, tuple[Overview, Minutes]](FRESH_S)
_foreseen: Final = Kept[Console, Forecast](AHEAD_S)


def show(asked: Asked) -> Page:
    seen, hour = _look(asked)
    ahead = _ahead(asked)
    shown, ended = _processes(seen)
    return Page(
        "overview.html",
        {
            "seen": seen,
            "hour": hour,
            "columns": _columns(hour),
            "ends": [(word, hour.total(word)) for word in ENDS],
            "processes": shown,
            "ended": ended,
            "sentence": _sentence(seen),
            "ahead": {each.channel: each for each in ahead.channels},
            "missed": [each for each in ahead.accounts if each.missed],
        },
        every_s=EVERY_S,
    )


def fresh(asked: Asked) -> Overview:
    """The overview, as it was a moment ago."""
    return _look(asked)[0]


def forget(asked: Asked) -> None:
    """Something was changed: look anew at the next request."""
    _seen.forget(asked.console)
    _foreseen.forget(asked.console)


def _look(asked: Asked) -> tuple[Overview, Minutes]:
    return _seen.of(asked.console, lambda: asked.read(lambda tx: (overview(tx, asked.policy), minutes(tx))))


def _ahead(asked: Asked) -> Forecast:
    """What will leave when, within a day."""
    return _foreseen.of(asked.console, lambda: asked.read(lambda tx: forecast(tx, asked.policy)))


def _columns(hour: Minutes) -> list[list[tuple[str, int]]]:
    """For the chart: what was sent, and what was not."""
    return [
        [
            ("good", column.get("sent", 0)),
            ("quiet", sum(column.get(word, 0) for word in ("cancelled", "suppressed", "expired"))),
            ("bad", column.get("refused", 0) + column.get("dead", 0)),
        ]
        for column in hour.columns
    ]


def _sentence(seen: Overview) -> tuple[str, str]:
    """All of it in one sentence, and how it sounds: "good", "care" or "bad"."""
    if seen.held:
        return f"Nothing is sent: {seen.held}.", "bad"
    late = [each for each in seen.channels if each.alert]
    if late:
        names = " and ".join(each.channel for each in late)
        stuck = next((each for each in seen.accounts if each.channel == late[0].channel), None)
        why = f": {stuck.why}" if stuck is not None else ""
        return f"Too late on {names}{why}.", "bad"
    lost = [each for each in seen.accounts if each.stranded]
    if lost:
        return f"{lost[0].name}: {lost[0].why}.", "bad"
    if len(seen.pauses) == 1:
        (pause,) = seen.pauses
        what = f"{pause.scope} {pause.name}" if pause.scope != "group" else "a group"
        return f"Paused: {what.strip()}.", "care"
    if seen.pauses:
        return f"{len(seen.pauses)} pauses hold back what they name.", "care"
    held = [each for each in seen.accounts if each.gate.word.value not in ("open", "missing") and each.ready]
    if held:
        return f"{held[0].name}: {held[0].why}.", "care"
    if any(each.ready or each.sending or each.waiting for each in seen.accounts):
        return "Everything flows.", "good"
    return "Nothing is due: everything that was is done.", "good"


def _processes(seen: Overview) -> tuple[list[ProcessView], int]:
    """Who is at work or gone; of those that ended well the last few, and how many more there are."""
    ended = [each for each in seen.processes if each.process.stopped][ENDED_SHOWN:]
    return [each for each in seen.processes if each not in ended], len(ended)
