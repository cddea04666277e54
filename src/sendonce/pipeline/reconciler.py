"""The reconciler: finds out what became of deliveries in doubt.

RECONCILING: the provider can be asked by our reference. "Found" settles it at any time; "absent" is
believed only when every way in which the request can still arrive, or be missing from the search, is
over. No answer until the expiry, and nobody can tell.

UNCERTAIN: nobody can tell by itself. The policy of the channel or category decides, and its default
is to wait for a person. Late evidence settles both at any time, from wherever it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, assert_never

from sendonce import telemetry
from sendonce.core import pacing
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import Event, NotMoved, State
from sendonce.core.outcome import Absent, Finding, Found, NoAnswer
from sendonce.core.policy import Policy, UncertainPolicy
from sendonce.core.promise import settles_at
from sendonce.moves import ELSEWHERE, FAR, move_on
from sendonce.pipeline.message import message_of
from sendonce.pipeline.record import lines_of
from sendonce.ports.provider import Message
from sendonce.ports.store import Delivery, Move, Tx
from sendonce.telemetry import tell

ACTOR: Final = "reconciler"
POLICY: Final = "policy"
PAGE: Final = 50
ASK_AGAIN_US: Final = 30 * pacing.SECOND


@dataclass(frozen=True, slots=True)
class Doubt:
    """One delivery to ask about. `asked_at`: not asked before this steady instant."""

    delivery_id: int
    key: str
    epoch: int
    account: str
    message: Message
    asked_at: int


def doubts(tx: Tx, policy: Policy, *, accounts: Mapping[str, object], secret: bytes) -> list[Doubt]:
    """One unit: who is to be asked about now, by this process's accounts.

    Each is put off as it is handed out, so that two processes do not ask about the same one.
    """
    rows = [
        row
        for name in sorted(set(accounts) & set(policy.accounts))
        for row in tx.deliveries.attention(State.RECONCILING.value, tx.now, PAGE, name)
    ]
    contents = tx.contents.get([(row.id, row.standing.version) for row in rows])
    asked: list[Doubt] = []
    asking: list[Delivery] = []
    given_up: list[Move] = []
    for row in rows:
        try:
            message = message_of(row, contents[row.id], policy, secret=secret, now=tx.now)
        except (LookupError, TypeError, ValueError):
            given_up.append(_cannot_be_asked(tx, row, policy))
            continue
        asking.append(row)
        asked.append(Doubt(row.id, row.key, row.standing.epoch, row.course.account, message, tx.steady))
    tx.deliveries.defer([(row, _again_at(tx, row, policy)) for row in asking])
    moved = tx.deliveries.move(given_up)
    assert all(moved), "rows locked in this unit cannot have moved"
    return asked


def _again_at(tx: Tx, row: Delivery, policy: Policy) -> int:
    """Once early, since what arrived can be found soon; then when absence may be believed."""
    settles = settles_at(policy.accounts[row.course.account].promise, row.course.last_try, policy.lease_s)
    wait = settles - tx.steady
    return tx.now + (wait if wait > 0 else ASK_AGAIN_US)


def _cannot_be_asked(tx: Tx, row: Delivery, policy: Policy) -> Move:
    """Its stored text was damaged, so there is nothing to ask with: a person decides, and the others are
    asked about all the same."""
    tell(telemetry.BAD_CONTENT, delivery=row.key, code="unreadable")
    reason = "bad_content:unreadable"
    move = move_on(
        row,
        Event.UNRESOLVED,
        policy,
        tx,
        actor=ACTOR,
        course=replace(row.course, reason=reason),
        details={"reason": reason},
    )
    assert isinstance(move, Move), f"what is being asked about may always be given up: {move}"
    return move


def resolve(tx: Tx, findings: list[tuple[Doubt, Finding]], policy: Policy) -> list[State]:
    """One unit: apply what the providers said; the state after each, but for those that were settled and
    removed while the provider was being asked."""
    rows = {row.id: row for row in tx.deliveries.by_ids([doubt.delivery_id for doubt, _ in findings])}
    return [
        _resolve(tx, rows[doubt.delivery_id], doubt, finding, policy)
        for doubt, finding in findings
        if doubt.delivery_id in rows
    ]


def _resolve(tx: Tx, row: Delivery, doubt: Doubt, finding: Finding, policy: Policy) -> State:
    account = policy.accounts[row.course.account]
    if (row.standing.state is not State.RECONCILING or tx.held) and not isinstance(finding, Found):
        return row.standing.state
    course, budget = row.course, row.course.failures < account.retry.attempts_max
    if isinstance(finding, Absent) and course.first_try == ELSEWHERE:
        finding = Absent(believable=False)  # another account may have it, and nobody knows which
    details: dict[str, Value] = {}
    match finding:
        case Found(receipt):
            event = Event.PROVEN
            course = replace(course, receipt=receipt, reason="")
            details = {"receipt": receipt, "evidence": "look_up"}
        # By when it was asked, not by when the answer is applied: a look-up that was early stays early,
        # and one from before a later claim says nothing about it.
        case Absent(believable=True) if doubt.asked_at >= settles_at(
            account.promise, course.last_try, policy.lease_s
        ):
            event = Event.ABSENT
            course = replace(course, next_at=tx.now, first_try=0, reason="absent")
            details = {"evidence": "absent"}
        case Absent() | NoAnswer():
            if tx.now < course.expires_at or (isinstance(finding, Absent) and finding.believable):
                return row.standing.state  # put off already; ask again later
            event = Event.UNRESOLVED
            why = finding.code if isinstance(finding, NoAnswer) else "absence_proves_nothing"
            details = {"reason": "no_answer", "code": why}
        case _:
            assert_never(finding)
    move = move_on(row, event, policy, tx, actor=ACTOR, course=course, budget=budget, details=details)
    if isinstance(move, NotMoved):
        return row.standing.state
    tx.deliveries.move([move])
    tell(
        telemetry.RECONCILED,
        delivery=row.key,
        account=account.name,
        finding=type(finding).__name__.lower(),
        state=move.standing.state.value,
    )
    return move.standing.state


def apply_policy(tx: Tx, policy: Policy) -> int:
    """One unit: what the policy says of uncertain deliveries; how many rows it moved.

    A held one is put aside: from then on it waits for a person or for evidence. So is one that the
    policy has resent before: a policy takes the risk of one duplicate, not of a row of them; and one that a
    held store doubted: what the policy was made for is a lost answer, not a lost record.
    """
    if tx.held:
        return 0
    rows = [
        row
        for name in sorted(policy.accounts)
        for row in tx.deliveries.attention(State.UNCERTAIN.value, tx.now, PAGE, name)
    ]
    moved = 0
    for row in rows:
        match policy.uncertain(row.channel, row.category):
            case UncertainPolicy.HOLD:
                event = None
            case _ if _is_a_persons(tx, row):
                event = None
            case UncertainPolicy.RESEND:
                event = Event.PERMITTED
            case UncertainPolicy.ASSUME_SENT:
                event = Event.ASSUMED_SENT
        move = (
            move_on(
                row,
                event,
                policy,
                tx,
                actor=POLICY,
                course=replace(row.course, next_at=tx.now),
                details={"reason": f"policy:{event.value}"},
            )
            if event is not None
            else None
        )
        if move is None or isinstance(move, NotMoved):
            tx.deliveries.defer([(row, FAR)])
            continue
        moved += sum(tx.deliveries.move([move]))
    return moved


def _is_a_persons(tx: Tx, row: Delivery) -> bool:
    """Whether the policy has permitted an attempt before, or it was doubted; the ledger remembers."""
    return any(
        line.event == Event.DOUBTED or (line.event == Event.PERMITTED and line.actor == POLICY)
        for line in lines_of(tx, row.id)
    )
