"""Where each channel's catch-up stands, in the store: all passes and all resumes take turns from one line.

The span between two turns is the channel's `catch_up` rate, or for a while what an operator said with the
resume. Two passes at once may give the same turn twice, which costs nothing: a turn is a pace, not a right.
"""

from __future__ import annotations

import json
from typing import Final

from sendonce.core import catch_up
from sendonce.core.catch_up import Turns
from sendonce.core.delivery import Channel
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.ports.store import Delivery, Tx

_META: Final = "catch_up:"


class CatchUp:
    """The turns of one unit; `save` keeps them."""

    def __init__(self, tx: Tx, policy: Policy) -> None:
        self._tx = tx
        self._policy = policy
        self._read: dict[Channel, Turns] = {}
        self._now: dict[Channel, Turns] = {}

    def turn_of(self, row: Delivery) -> int:
        """When this due row may be published; `tx.now` or before: at once."""
        course, now = row.course, self._tx.now
        grace_us = int(self._policy.grace_s * SECOND)
        if not catch_up.is_overdue(now=now, next_at=course.next_at, reason=course.reason, grace_us=grace_us):
            return now
        return self.next(row)

    def next(self, row: Delivery) -> int:
        """The next turn of its channel, for a row that is overdue."""
        turns = self._turns(row.channel)
        at, self._now[row.channel] = catch_up.turn(turns, now=self._tx.now, expires_at=row.course.expires_at)
        return at

    def spread(self, channel: Channel, count: int, over_us: int) -> None:
        """Let `count` overdue rows of the channel go within the next `over_us`."""
        turns = self._turns(channel)
        self._now[channel] = catch_up.spread(turns, now=self._tx.now, count=count, over_us=over_us)

    def until(self, channel: Channel) -> int:
        """By when the turns given so far are over; `tx.now` or before: they are."""
        return self._turns(channel).next_at

    def save(self) -> None:
        for channel, turns in sorted(self._now.items()):
            if turns != self._read[channel]:
                text = json.dumps([turns.next_at, turns.step_us, turns.until])
                self._tx.set_meta(f"{_META}{channel}", text)

    def _turns(self, channel: Channel) -> Turns:
        if channel not in self._now:
            kept = self._tx.meta(f"{_META}{channel}")
            turns = Turns(*json.loads(kept)) if kept else Turns()
            self._read[channel] = turns
            if turns.until <= self._tx.now:
                own = self._policy.channels.get(channel)
                turns = Turns(turns.next_at, own.catch_up_us if own is not None else 0)
            self._now[channel] = turns
        return self._now[channel]
