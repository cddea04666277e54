"""Catch-up: after a pause or an outage, what is overdue gets its turns, spread over time.

Without it everything overdue is published at once and stands in line before what falls due now. With it
the overdue ones come one by one, and what is due on time never waits for them.

Each is put off once and no more: when its turn has come it goes, however late the pass that sees it. No
turn lies further than half of what is left until the expiry, so none is spread away. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

REASON: Final = "catch_up"
AHEAD_US: Final = 1_000_000
"""A turn within so long is taken at once: a pass comes about once a second, and an entry is saved."""
_HELD: Final = ("paused:", "configuration")


@dataclass(frozen=True, slots=True)
class Turns:
    """Where a channel's catch-up stands. All in microseconds on the calendar.

    next_at  the next free turn; `step_us` between two of them, 0: no spreading
    until    as long as this lies ahead, `step_us` is an operator's word and not the configured one
    """

    next_at: int = 0
    step_us: int = 0
    until: int = 0


def is_overdue(*, now: int, next_at: int, reason: str, grace_us: int) -> bool:
    """Whether a due row has waited for somebody else than itself: a pause, a lost configuration, no pass."""
    if reason == REASON:
        return False
    return reason.startswith(_HELD) or now - next_at > grace_us


def turn(turns: Turns, *, now: int, expires_at: int) -> tuple[int, Turns]:
    """When one overdue row may go (`now`: at once), and the turns after it."""
    if not turns.step_us:
        return now, turns
    at = max(now, turns.next_at)
    latest = now + (expires_at - now) // 2
    if at > latest:
        return latest, turns  # it cannot wait so long; it goes between the turns of others
    return now if at <= now + AHEAD_US else at, replace(turns, next_at=at + turns.step_us)


def spread(turns: Turns, *, now: int, count: int, over_us: int) -> Turns:
    """The turns in which `count` rows go within the next `over_us`, evenly."""
    return Turns(max(now, turns.next_at), max(1, over_us // max(1, count)), now + over_us)
