"""The reaper: finds calls that nobody will settle, and deliveries whose time is over.

A call is lost when its own send deadline has passed, also in a living process, or when its process
has lost its lease. What is true of such a delivery is that it may have been sent, and no more: by the
provider's class it is retried under its key, looked up, or called uncertain.

Its lane is another matter. The provider may still be working on the call, so the lane of a gone process
is free only some time after its lease. A living process frees its own: by settling the call, or here,
where it knows nothing of a call in its name, since it was never told that its claim was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from sendonce import telemetry
from sendonce.core import pacing
from sendonce.core.lifecycle import Event, NotMoved, State
from sendonce.core.policy import Policy
from sendonce.core.retry import wait_s
from sendonce.moves import move_on
from sendonce.ports.store import Delivery, LostCall, OpenCall, Tx
from sendonce.telemetry import tell

ACTOR: Final = "reaper"
PAGE: Final = 100


def reap(
    tx: Tx,
    policy: Policy,
    *,
    chance: Callable[[], float],
    process: str = "",
    held: Collection[tuple[int, int]] = (),
) -> int:
    """One unit: give up lost calls, free the lanes of gone ones; how many rows it moved.

    `process` is who asks, and `held` the calls (delivery id, epoch) that it has not settled yet.
    """
    moved, after = 0, (0, 0)
    while moved < PAGE and (page := tx.calls.overdue(tx.steady, PAGE, after)):
        rows = {row.id: row for row in tx.deliveries.by_ids([lost.call.delivery_id for lost in page])}
        for lost in page:
            row = rows.get(lost.call.delivery_id)
            if row is not None and _is_open(row, lost.call):
                moved += _give_up(tx, row, lost, policy, chance())
        tx.calls.close(
            [
                (lost.call.account, lost.call.claimed_at, lost.call.delivery_id, lost.call.epoch)
                for lost in page
                if _is_nobodys(lost.call, process, held) or _is_over(tx, lost, policy)
            ]
        )
        after = (page[-1].call.delivery_id, page[-1].call.epoch)
    return moved


def _is_open(row: Delivery, call: OpenCall) -> bool:
    return row.standing.state is State.SENDING and row.standing.epoch == call.epoch


def _give_up(tx: Tx, row: Delivery, lost: LostCall, policy: Policy, chance: float) -> int:
    call = lost.call
    account = policy.accounts.get(call.account)
    if account is None:
        return 0  # another process's configuration knows it; a name we lack decides nothing
    evidence = "lease_lost" if lost.gone else "send_deadline"
    failures = row.course.failures + 1
    wait = wait_s(account.retry, failures, None, chance)
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
    tell(
        telemetry.REAPED,
        delivery=row.key,
        account=call.account,
        epoch=call.epoch,
        state=move.standing.state.value,
        why=evidence,
    )
    return sum(tx.deliveries.move([move]))


def _is_nobodys(call: OpenCall, process: str, held: Collection[tuple[int, int]]) -> bool:
    """Whether the call is in the name of who asks, past its deadline, and unknown there: never made."""
    return call.process == process and (call.delivery_id, call.epoch) not in held


def _is_over(tx: Tx, lost: LostCall, policy: Policy) -> bool:
    """Whether the provider can no longer be working on the call of a process that is gone."""
    account = policy.accounts.get(lost.call.account)
    if account is None or not lost.gone:
        return False
    promise = account.promise
    held_s = promise.timeout_s if promise.held_s is None else promise.held_s
    return tx.steady >= lost.gone_since + int(held_s * pacing.SECOND)


def expire(tx: Tx, policy: Policy) -> int:
    """One unit: end what is past its expiry and still unsent, whatever holds it; how many rows."""
    rows = [] if tx.held else tx.deliveries.expired(tx.now, PAGE)
    moves = []
    for row in rows:
        if row.standing.maybe and row.course.account and row.course.account not in policy.accounts:
            continue  # nothing may be decided about what may be sent, without knowing what was promised
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
