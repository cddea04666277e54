"""What a list of calls at the door says: arithmetic, apart from where the calls come from.

Times are microseconds of the door's clock, calls in order of arrival. A message is *taken* when the door
accepts it, *taken again* when it accepts the same content once more as a new message: that is what a
customer would see. A *repeated call* is any further call for a message that was taken, also where the door
knew its key and took nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bench.door import Call
from sendonce.testing.sandbox.door import most_in_window

SECOND_US: Final = 1_000_000


class Tally(NamedTuple):
    """`messages` different ones were taken, `duplicates` more were taken again; `repeated` and `throttled`
    are calls.
    """

    messages: int
    duplicates: int
    repeated: int
    throttled: int


def tally(calls: Sequence[Call]) -> Tally:
    taken: set[int] = set()
    duplicates = repeated = throttled = 0
    for call in calls:
        if call.throttled:
            throttled += 1
        elif call.marker in taken:
            repeated += 1
            duplicates += not call.replayed
        else:
            taken.add(call.marker)
    return Tally(len(taken), duplicates, repeated, throttled)


def worst_window(calls: Sequence[Call], width_us: int) -> int:
    """The most calls, whatever was answered, that any half-open stretch of this width holds."""
    return most_in_window([call.arrived_at for call in calls], width_us)


def rate_within(calls: Sequence[Call], seconds: float) -> float:
    """Calls that were accepted, a second, over so many seconds from the first call of all."""
    if not calls:
        return 0.0
    until = calls[0].arrived_at + seconds * SECOND_US
    return sum(not call.throttled and call.arrived_at < until for call in calls) / seconds


def rate_from(calls: Sequence[Call], number: int) -> float:
    """Calls a second from the one of this number, counted from 0, to the last; 0 where there are not two."""
    if len(calls) - number < 2:
        return 0.0
    took_us = calls[-1].arrived_at - calls[number].arrived_at
    return (len(calls) - 1 - number) / max(1, took_us) * SECOND_US


def recovered_s(calls: Sequence[Call], killed_at: int) -> float:
    """From the kill to the last call: what was in flight has come back by then, or never does."""
    return max(0, calls[-1].arrived_at - killed_at) / SECOND_US if calls else 0.0
