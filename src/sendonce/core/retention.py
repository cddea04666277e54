"""How long what is over is kept, and whether the calendar may be believed about it.

    ended --content--> what it said, to whom, and said before is destroyed
          --deliveries--> the delivery and its ledger are removed; a tombstone stands there

What is open, in doubt or a dead letter is never touched, however old: somebody may still have to act on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from sendonce.core.lifecycle import DEAD_LETTERS, ENDED, Standing
from sendonce.core.pacing import SECOND
from sendonce.core.value import value

DAY_S: Final = 86_400.0
JUMP_US: Final = 3_600 * SECOND
"""The calendar and the steady clock may come apart by so much without anybody asking why: a leap, an NTP
step."""
TRUST_US: Final = 24 * 3_600 * SECOND
"""After a greater jump nothing is removed for so long: a calendar that is years ahead by mistake would remove
everything, and somebody has a day to see it."""


@value
class Keep:
    """For how long, in seconds after the end; None: for ever.

    content     text, address and data of a reminder whose deliveries have all ended
    deliveries  these deliveries and their entries
    imports     what is known of an import, once nothing that it made is left
    passes      the history of scheduler passes and of processes
    """

    content_s: float | None = None
    deliveries_s: float | None = None
    imports_s: float | None = None
    passes_s: float = 14 * DAY_S

    @property
    def anything(self) -> bool:
        return not (self.content_s is None and self.deliveries_s is None and self.imports_s is None)


def before(now: int, span_s: float) -> int:
    """What ended before this instant was kept for `span_s`."""
    return now - round(span_s * SECOND)


class Ended(Protocol):
    """What is asked of a delivery."""

    @property
    def standing(self) -> Standing: ...
    @property
    def ended_at(self) -> int: ...


def all_over(deliveries: Iterable[Ended], before_us: int) -> bool:
    """Whether each of a reminder's deliveries ended before this instant, for good."""
    return all(
        one.standing.state in ENDED - DEAD_LETTERS and 0 < one.ended_at < before_us for one in deliveries
    )


@value
class Sight:
    """The two clocks as they were last seen together, and since when (steady) they have gone alike."""

    now: int
    steady: int
    since: int


def look_at_clocks(last: Sight | None, now: int, steady: int) -> tuple[Sight, bool]:
    """What to remember, and whether the calendar may be believed. The first look is believed: a store that
    was just opened has nothing to compare with, and what is too young to remove is young on every
    calendar."""
    if last is None:
        return Sight(now, steady, steady - TRUST_US), True
    drift = (now - last.now) - (steady - last.steady)
    since = steady if abs(drift) > JUMP_US else last.since
    return Sight(now, steady, since), steady - since >= TRUST_US
