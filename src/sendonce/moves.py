"""One delivery, one event: what the table makes of it, as a move that the store can do.

Whoever moves deliveries shares this step: gather the facts, ask the life cycle, carry the answer over
into a `Move`. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sendonce.core.ledger import Value
from sendonce.core.lifecycle import Event, Facts, Moved, NotMoved, State, step
from sendonce.core.policy import Policy
from sendonce.core.promise import facts, settles_at
from sendonce.ports.store import Course, Delivery, Move, Tx

FAR = 2**62
"""A `next_at` for rows that wait for a person, not for time."""
FIRST_LOOK_US = 5_000_000
"""After which time a provider is asked about a lost answer for the first time."""
DYING_FIRST = -(2**62)
"""Added to the tags of deliveries that wait under a key: they go before all others."""

ELSEWHERE = -1
"""The `first_try` of one that was doubted where several accounts may carry it: the store may have lost that
it went to another one, so its own account knows nothing about it, by key or by look-up."""


def facts_of(delivery: Delivery, policy: Policy, *, now: int, steady: int, budget: bool = True) -> Facts:
    """What the guards ask, for this delivery, at this moment.

    Before publication it has no account yet, and of an account that the configuration lost we know no
    promise: then no key is alive and nobody can be asked, so that what may be sent ends as uncertain. So it
    is where another account may have got it (`ELSEWHERE`).
    """
    course = delivery.course
    account = None if course.first_try == ELSEWHERE else policy.accounts.get(course.account)
    return facts(
        None if account is None else account.promise,
        first_try=course.first_try,
        last_try=course.last_try,
        expires_at=course.expires_at,
        now=now,
        steady=steady,
        lease_s=policy.lease_s,
        budget=budget,
    )


def move_on(
    delivery: Delivery,
    event: Event,
    policy: Policy,
    tx: Tx,
    *,
    actor: str,
    course: Course | None = None,
    budget: bool = True,
    details: Mapping[str, Value] | None = None,
) -> Move | NotMoved:
    """The move for an event, or the table's refusal.

    `course` is the course after the event where the stage changed it. What follows from the new
    state alone is set here: when a reconciler may believe an answer, that an uncertain row waits
    for a person, that a dying key goes first.
    """
    world = facts_of(delivery, policy, now=tx.now, steady=tx.steady, budget=budget)
    match step(delivery.standing, event, world):
        case Moved() as moved:
            return move_of(delivery, moved, policy, tx, actor=actor, course=course, details=details)
        case NotMoved() as refused:
            return refused


def move_of(
    delivery: Delivery,
    moved: Moved,
    policy: Policy,
    tx: Tx,
    *,
    actor: str,
    course: Course | None = None,
    details: Mapping[str, Value] | None = None,
) -> Move:
    """A `Move` from what the table answered; see `move_on`."""
    after = _settled_course(delivery, moved, policy, tx, course or delivery.course)
    return Move(delivery, moved.rule.event, moved.standing, after, actor, details or {})


def note(delivery: Delivery, event: Event, actor: str, details: Mapping[str, Value]) -> Move:
    """An entry that moves nothing."""
    return Move(delivery, event, delivery.standing, delivery.course, actor, details)


def _settled_course(delivery: Delivery, moved: Moved, policy: Policy, tx: Tx, course: Course) -> Course:
    state = moved.standing.state
    if state is delivery.standing.state:
        return course
    if state is State.RECONCILING:
        promise = policy.accounts[delivery.course.account].promise  # who can be asked is known
        wait = settles_at(promise, course.last_try, policy.lease_s) - tx.steady
        # What arrived can be found long before absence may be believed.
        return replace(course, next_at=tx.now + max(0, min(wait, FIRST_LOOK_US)))
    if state is State.UNCERTAIN:
        return replace(course, next_at=tx.now)
    if state is State.QUEUED and moved.standing.maybe and not moved.standing.permit:
        # By the first attempt, from which the provider counts the life of the key.
        return replace(course, tag=DYING_FIRST + course.first_try)
    return course
