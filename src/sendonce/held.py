"""A store that may have lost what was written last, and what follows for each delivery in it.

A standby that took over may lack commits that were answered; a backup brings back a past in which deliveries
still wait that were sent since. Such a store is *held*: nothing is claimed, published, ended by the clock or
found absent, by no process, until somebody releases it (`pipeline.restore`). The hold stands in the store
itself, and tells of a span: this store surely has everything from before `lost_from`, and nothing that the
store before it wrote after `lost_until` counts here.

An attempt that was made in that span is not in the record. So what can have been claimed in it is *doubted*:
it gets the mark `maybe`, and the life cycle goes on from there. Under a key that the provider still honours,
counted from the earliest moment at which it can have been used, it goes once more; where the provider can be
asked, it is asked, once the last call of the span has settled; else it is uncertain, and a person decides.

    reconciled   all of them at the release
    touched      one that somebody cancels or changes before is doubted first: the answer must be true
    told         what a call of before returns is evidence only: an acceptance settles its delivery, whatever
                 the record has become, and a failure says nothing about the attempts that were lost
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Final

from sendonce.core import catch_up
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import UNSENT, Event, Moved, State, step
from sendonce.core.policy import Policy
from sendonce.core.promise import SECOND, settles_at
from sendonce.core.value import value
from sendonce.moves import DYING_FIRST, ELSEWHERE, facts_of, move_of
from sendonce.ports.store import HOLD, Course, Delivery, Move, Tx

MARGIN_US: Final = 5 * SECOND
"""Two servers' clocks may differ by so much, and a unit takes a while to commit."""
LINEAGE: Final = "lineage"
"""The line of history of the server that the store was written on (`store.postgres_lineage`)."""
RELEASED: Final = "released"
"""Until when the calendar span went that was last released: what comes to light later is a new one."""
REASON: Final = "doubted"
ACTOR: Final = "store"

FAILOVER: Final = "failover"
RESTORED: Final = "restored"
OLDER: Final = "older"
LOST_COMMITS: Final = "lost_commits"
LATE: Final = "late"
BY_HAND: Final = "by_hand"

RELEASE_FIRST: Final = "release it first, with `sendonce db released`"

WORDS: Final = {
    FAILOVER: "another server took over, and may lack what was written last",
    RESTORED: "it was restored from a backup, or copied",
    OLDER: "a process has seen a later state of it: an old server came back, or an old backup",
    LOST_COMMITS: "commits that were answered are not in it any more",
    LATE: "a process went on with the server before for longer than was known at the release",
    BY_HAND: "somebody holds it",
}
"""Why a store is held, in words."""

_CANNOT_BE_EARLIER: Final = frozenset({"quiet_hours", catch_up.REASON})
"""What was put off for these reasons is not looked at before its time, by nobody."""


@value
class Hold:
    """Why a store is held, and what it may have lost. Calendar instants; `steady` is the steady one of `at`.

    line        the server's line of history that the release takes over; "" where there is none
    lost_from   all that was written by then is here
    lost_until  0: nobody knows yet
    lost_steady the steady instant of `lost_from`; 0: nobody ever sent anything that is here
    """

    why: str
    reason: str
    actor: str
    at: int
    steady: int
    line: str
    lost_from: int
    lost_steady: int
    lost_until: int

    def __str__(self) -> str:
        return f"{self.reason} [{self.actor}]" if self.why == BY_HAND else WORDS[self.why]

    def until(self, now: int) -> int:
        """Up to when deliveries that fell due may have been tried, with the margin."""
        return (self.lost_until or now) + MARGIN_US

    def steady_until(self, now: int) -> int:
        return self.steady + self.until(now) - self.at

    @property
    def steady_from(self) -> int:
        """From when a lost attempt can have used a key, with the margin."""
        return max(1, self.lost_steady - MARGIN_US)


def hold_of(tx: Tx) -> Hold | None:
    """The hold that stands, if any."""
    text = tx.meta(HOLD)
    return Hold(**json.loads(text)) if text else None


def hold(tx: Tx, why: str, *, line: str = "", until: int = 0, reason: str = "", actor: str = ACTOR) -> Hold:
    """Hold the store, or tell a hold that stands of more: a later end, another server. To be called before
    anything else is written that the lost span could be mistaken by.

    `until` 0: nobody knows when the store before stopped writing.
    """
    standing = hold_of(tx)
    if standing is None:
        lost_from, lost_steady = _last_known(tx)
        if until and lost_from:
            # By the calendar of before: that of this server may be behind it.
            until = max(until, lost_from + tx.steady - lost_steady)
        standing = Hold(why, reason, actor, tx.now, tx.steady, line, lost_from, lost_steady, until)
        tx.runs.audit(actor, "hold", "store", reason or WORDS[why], {"why": why, "lost_from": lost_from})
    else:
        standing = replace(standing, line=line or standing.line, lost_until=max(standing.lost_until, until))
    keep(tx, standing)
    return standing


def words_of(tx: Tx) -> str:
    """Why the store is held, in words; "" where it is not."""
    standing = hold_of(tx)
    return "" if standing is None else str(standing)


def keep(tx: Tx, standing: Hold) -> None:
    tx.set_meta(HOLD, json.dumps(asdict(standing)))


def release(tx: Tx, standing: Hold) -> int:
    """Let go, in the unit that reconciled the rest; the new store epoch."""
    epoch = int(tx.meta("epoch") or 0) + 1
    tx.set_meta("epoch", str(epoch))
    tx.set_meta(RELEASED, str(standing.until(tx.now)))
    if standing.line:
        tx.set_meta(LINEAGE, standing.line)
    tx.set_meta(HOLD, "")
    return epoch


def _last_known(tx: Tx) -> tuple[int, int]:
    """When somebody last wrote what is here, by the calendar and by the steady clock: the last heartbeat,
    since every process that sends has one, and nobody sends without. 0: there was none."""
    beat_at = int(tx.rows("view_last_beat")[0]["beat_at"])
    by_calendar = tx.steady - max(0, tx.now - beat_at)
    return beat_at, int(tx.meta("steady_seen") or by_calendar) if beat_at else 0


def in_doubt(row: Delivery, standing: Hold, now: int) -> bool:
    """Whether an attempt of this delivery may be missing from the record, and it was not doubted yet."""
    if row.course.last_try >= standing.steady_until(now):
        return False
    state, course, until = row.standing.state, row.course, standing.until(now)
    if state in (State.SENDING, State.RECONCILING):
        return True
    later = course.next_at > until and course.reason in _CANNOT_BE_EARLIER
    # What was published, or put off by a pass, was due by a calendar that has been set back since: its due
    # time says nothing. A pause that put it off may have been ended in the lost span.
    was_due = (state is State.QUEUED or course.reason != "") and course.due_at > standing.at
    return state in UNSENT and (course.due_at <= until or was_due) and not later


def doubted(tx: Tx, rows: Iterable[Delivery], policy: Policy) -> list[Delivery]:
    """Rows as read in this unit, those that a held store must doubt after that was done. A store that is not
    held gives them back as they are."""
    found = list(rows)
    standing = hold_of(tx) if tx.held else None
    if standing is None:
        return found
    doubtful = [row for row in found if row.standing.state in UNSENT and in_doubt(row, standing, tx.now)]
    after = {row.id: row for row in doubt(tx, doubtful, standing, policy, actor=ACTOR)}
    return [after.get(row.id, row) for row in found]


def doubt(
    tx: Tx, rows: Sequence[Delivery], standing: Hold, policy: Policy, *, actor: str, keys: bool = True
) -> list[Delivery]:
    """Doubt rows that are `in_doubt`, as read in this unit; the rows after it.

    `keys` False: no key is trusted, since the content may have been another one; each counts as long dead.
    """
    moves = [judge(tx, row, standing, policy, actor=actor, keys=keys) for row in rows]
    after = tx.deliveries.advance(moves)
    assert None not in after, "rows locked in this unit cannot have moved"
    return [row for row in after if row is not None]


def judge(tx: Tx, row: Delivery, standing: Hold, policy: Policy, *, actor: str, keys: bool = True) -> Move:
    """What becomes of one that is in doubt. Writes nothing."""
    used_from = standing.steady_from if keys else 1
    if policy.is_shared(row.channel, row.tenant, row.category):
        used_from = ELSEWHERE
    course = replace(
        row.course,
        first_try=min(row.course.first_try or used_from, used_from),
        last_try=max(row.course.last_try, standing.steady_until(tx.now)),
    )
    world = facts_of(replace(row, course=course), policy, now=tx.now, steady=tx.steady)
    moved = step(row.standing, Event.DOUBTED, world)
    assert isinstance(moved, Moved), f"the table doubts whatever may have been tried: {moved}"
    details: dict[str, Value] = {
        "reason": standing.why,
        "from": standing.lost_from,
        "until": standing.until(tx.now),
    }
    course = _course_after(row, moved, course, policy, tx)
    return move_of(row, moved, policy, tx, actor=actor, course=course, details=details)


def _course_after(row: Delivery, moved: Moved, course: Course, policy: Policy, tx: Tx) -> Course:
    """What a change of state alone does not bring along."""
    match moved.standing.state:
        case State.QUEUED:
            return replace(course, tag=DYING_FIRST + course.first_try)
        case State.RECONCILING if (
            row.standing.state is State.RECONCILING and course.account in policy.accounts
        ):
            promise = policy.accounts[course.account].promise
            wait = settles_at(promise, course.last_try, policy.lease_s) - tx.steady
            return replace(course, next_at=tx.now + max(0, wait))
        case State.RECONCILING | State.UNCERTAIN:
            return replace(course, reason=REASON)
        case _:
            return course
