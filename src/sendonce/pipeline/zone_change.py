"""When the rules of a time zone change, future reminders keep their wall time and move their instant.

A reminder remembers what its caller meant: 09:00 in Mexico City. The instant that follows from it is
worked out at intake, and again here, for everything that is still scheduled, once the rules that this
program goes by have another version. What was published or sent is left alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from sendonce.core.due import instant_of
from sendonce.core.errors import InvalidInput
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import Event
from sendonce.core.policy import Policy
from sendonce.held import doubted
from sendonce.moves import move_on
from sendonce.ports.store import Delivery, Move, Reminder, Store, Tx

ACTOR: Final = "zone rules"
PAGE: Final = 100
META: Final = "zone_rules"


def follow_zone_rules(store: Store, policy: Policy, version: str) -> int:
    """Recompute what is scheduled, if `version` is another than the one last seen; how many moved.

    Killed in the middle, it starts over: a row that moved already moves no further.
    """
    seen = store.read(lambda tx: tx.meta(META))
    if seen == version:
        return 0
    moved = after = 0
    while seen is not None:  # a new store has nothing that older rules decided
        last, changed = store.write(partial(_page, policy, after)).result()
        moved += changed
        if last is None:
            break
        after = last
    store.write(lambda tx: tx.set_meta(META, version)).result()
    return moved


def _page(policy: Policy, after: int, tx: Tx) -> tuple[int | None, int]:
    rows = doubted(tx, tx.deliveries.matching("pending", {}, PAGE, after), policy)
    if not rows:
        return None, 0
    reminders = tx.reminders.by_ids([row.reminder_id for row in rows])
    moves = [move for row in rows if (move := _moved(tx, row, reminders[row.reminder_id], policy))]
    done = tx.deliveries.move(moves)
    tx.reminders.reschedule(
        {move.before.reminder_id: move.course.due_at for move, ok in zip(moves, done, strict=True) if ok}
    )
    return rows[-1].id, sum(done)


def _moved(tx: Tx, row: Delivery, reminder: Reminder, policy: Policy) -> Move | None:
    if not reminder.zone:
        return None  # an instant was given, not a wall time
    if row.standing.maybe:
        return None  # it may be sent already
    try:
        due_at = instant_of(reminder.due_local, reminder.zone, kept=row.course.due_at)
    except InvalidInput:
        return None  # a zone that the new rules do not know keeps the instant it had
    shift = due_at - row.course.due_at
    if shift == 0:
        return None
    waits_for_due = row.course.next_at == row.course.due_at
    course = replace(
        row.course,
        due_at=due_at,
        next_at=due_at if waits_for_due else row.course.next_at,
        expires_at=row.course.expires_at + shift,
    )
    details: dict[str, Value] = {"reason": "zone_rules", "zone": reminder.zone, "due": due_at}
    move = move_on(row, Event.DEFERRED, policy, tx, actor=ACTOR, course=course, details=details)
    assert isinstance(move, Move), move
    return move
