"""The last hour, minute by minute: calls that started and how they ended, and deliveries that ended.

It is read from the newest entries of the ledger, `ENTRIES_MAX` at most, so it costs the same with millions of
deliveries and needs no index that each move would pay for. Where more happened in the hour than that, it says
from when on it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sendonce.core.lifecycle import Event
from sendonce.core.pacing import SECOND
from sendonce.ports.store import Tx

ENTRIES_MAX: Final = 20_000
MINUTES: Final = 60
MINUTE_US: Final = 60 * SECOND

STARTED: Final = "started"
RETRIED: Final = "retried"
THROTTLED: Final = "throttled"
ENDS: Final = ("sent", "refused", "dead", "cancelled", "suppressed", "expired")
"""How a delivery ends, in the order in which it is shown."""


@dataclass(frozen=True, slots=True)
class Minutes:
    """`columns`: one for each minute, the newest last; counts by word. `since`: from here on all is known,
    microseconds UTC; `whole`: that is the hour."""

    since: int
    whole: bool
    columns: tuple[Mapping[str, int], ...]

    def total(self, word: str) -> int:
        return sum(column.get(word, 0) for column in self.columns)

    @property
    def span_s(self) -> float:
        return MINUTES * 60.0 if self.whole else 60.0 * sum(bool(column) for column in self.columns)


def minutes(tx: Tx) -> Minutes:
    """What the newest entries tell. One read, bounded."""
    since = tx.now - MINUTES * MINUTE_US
    last = int(tx.rows("view_progress_last_entry")[0]["id"])
    rows = tx.rows("view_minutes", after=last - ENTRIES_MAX, since=since)
    columns: list[dict[str, int]] = [{} for _ in range(MINUTES)]
    for row in rows:
        column = columns[min(MINUTES - 1, max(0, int(row["minute"])))]
        for word in _words(str(row["event"]), row["died"] == 1, row["again"] == 1):
            column[word] = column.get(word, 0) + int(row["count"])
    looked_at = sum(int(row["count"]) for row in rows)
    whole = looked_at < ENTRIES_MAX
    first_at = min((int(row["first_at"]) for row in rows), default=since)
    return Minutes(since if whole else first_at, whole, tuple(columns))


def _words(event: str, died: bool, again: bool) -> tuple[str, ...]:
    if died:
        return ("dead",)
    match event:
        case Event.CLAIMED:
            return (STARTED, RETRIED) if again else (STARTED,)
        case Event.THROTTLED:
            return (THROTTLED,)
        case Event.ACCEPTED | Event.PROVEN:
            return ("sent",)
        case Event.REJECTED | Event.UNRENDERABLE:
            return ("refused",)
        case Event.CANCELLED:
            return ("cancelled",)
        case Event.SUPPRESSED:
            return ("suppressed",)
        case Event.EXPIRED:
            return ("expired",)
        case _:
            return ()
