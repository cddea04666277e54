"""The reaper: finds calls that nobody will settle, and deliveries whose time is over.

A call is lost when its own send deadline has passed, also in a living process, or when its process
has lost its lease. What is true of such a delivery is that it may have been sent, and no more: by the
provider's class it is retried under its key, looked up, or called uncertain.

Its lane is another matter. The provider may still be working on the call, so the lane of a gone
process is free only some time after its lease; a living process frees its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sendonce import telemetry
from sendonce.core import pacing
from sendonce.core.lifecycle import Event, NotMoved, State
from sendonce.core.policy import Policy
from sendonce.core.retry import wait_s
from sendonce.pipeline.moves import move_on
from sendonce.ports.store import Tx
from sendonce.telemetry import tell

ACTOR: Final = "reaper"
PAGE: Final = 100


def reap(tx: Tx, policy: Policy, *, chance: Callable[[], float]) -> int:
    """One unit: give up lost calls, free the lanes of gone ones; how many rows it moved."""
    overdue = tx.calls.overdue(tx.steady, PAGE)
    if not overdue:
        return 0
    rows = {row.id: row for row in tx.deliveries.by_ids([lost.call.delivery_id for lost in overdue])}
    moved = 0
    freed: list[tuple[int, int]] = []
    for lost in overdue:
        call = lost.call
        account = policy.accounts.get(call.account)
        row = rows.get(call.delivery_id)
        if account is None:
            continue  # another process's configuration knows it; a name we lack decides nothing
        if row is not None and row.standing.state is State.SENDING and row.standing.epoch == call.epoch:
            evidence = "lease_lost" if lost.gone else "send_deadline"
            failures = row.course.failures + 1
            wait = wait_s(account.retry, failures, None, chance())
            course = replace(
                row.course,
                failures=failures,
                next_at=tx.now + int(wait * pacing.SECOND),
                reason=f"unknown:{evidence}",
            )
            move = move_on(
                row,
                Event.UNKNOWN,
                policy,
                tx,
                actor=ACTOR,
                course=course,
                budget=failures < account.retry.attempts_max,
                details={"evidence": evidence, "process": call.process},
            )
            assert not isinstance(move, NotMoved), f"an unknown outcome has its move from SENDING: {move}"
            moved += sum(tx.deliveries.move([move]))
            tell(
                telemetry.REAPED,
                delivery=row.key,
                account=call.account,
                epoch=call.epoch,
                state=move.standing.state.value,
                why=evidence,
            )
        held_s = account.promise.timeout_s if account.promise.held_s is None else account.promise.held_s
        if lost.gone and tx.steady >= lost.gone_since + int(held_s * pacing.SECOND):
            freed.append((call.delivery_id, call.epoch))
    tx.calls.close(freed)
    return moved


def expire(tx: Tx, policy: Policy) -> int:
    """One unit: end what is past its expiry and still unsent, whatever holds it; how many rows."""
    rows = tx.deliveries.expired(tx.now, PAGE)
    moves = []
    for row in rows:
        if row.course.account and row.course.account not in policy.accounts:
            continue
        course = replace(row.course, reason="past_expiry")
        move = move_on(
            row,
            Event.EXPIRED,
            policy,
            tx,
            actor=ACTOR,
            course=course,
            details={"reason": "past_expiry", "held_by": row.course.reason},
        )
        assert not isinstance(move, NotMoved), move
        moves.append(move)
    return sum(tx.deliveries.move(moves))
