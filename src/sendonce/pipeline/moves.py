"""One delivery, one event: what the table makes of it, as a move that the store can do.

The stages meet in the store and share only this step: gather the facts, ask the life cycle, carry
the answer over into a `Move`. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sendonce.core.errors import ConfigError
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import UNSENT, Event, Facts, Moved, NotMoved, State, step
from sendonce.core.policy import AccountPolicy, Policy
from sendonce.core.promise import facts, settles_at
from sendonce.ports.store import Course, Delivery, Move, Tx

FAR = 2**62
"""A `next_at` for rows that wait for a person, not for time."""
DYING_FIRST = -(2**62)
"""Added to the tags of deliveries that wait under a key: they go before all others."""


def account_of(delivery: Delivery, policy: Policy) -> AccountPolicy | None:
    """The account that a delivery was routed to; None before publication.

    Where the configuration no longer knows it: None as long as nothing can have been sent through it.
    Else raises `ConfigError`: nothing may be decided about what was sent through an account of which
    we know no promise.
    """
    name, standing = delivery.course.account, delivery.standing
    account = policy.accounts.get(name)
    if account is None and name and (standing.maybe or standing.state not in UNSENT):
        raise ConfigError(
            f"account {name!r} is not configured any more, and delivery {delivery.key} was routed to it: "
            f"keep [account.{name}] until its deliveries have ended"
        )
    return account


def facts_of(delivery: Delivery, policy: Policy, tx: Tx, *, budget: bool = True) -> Facts:
    """What the guards ask, for this delivery, now."""
    account = account_of(delivery, policy)
    course = delivery.course
    return facts(
        account.promise if account else None,
        first_try=course.first_try,
        last_try=course.last_try,
        expires_at=course.expires_at,
        now=tx.now,
        steady=tx.steady,
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
    answer = step(delivery.standing, event, facts_of(delivery, policy, tx, budget=budget))
    if isinstance(answer, NotMoved):
        return answer
    after = _settled_course(delivery, answer, policy, tx, course or delivery.course)
    return Move(delivery, event, answer.standing, after, actor, details or {})


def note(delivery: Delivery, event: Event, actor: str, details: Mapping[str, Value]) -> Move:
    """An entry that moves nothing."""
    return Move(delivery, event, delivery.standing, delivery.course, actor, details)


def _settled_course(delivery: Delivery, moved: Moved, policy: Policy, tx: Tx, course: Course) -> Course:
    state = moved.standing.state
    if state is delivery.standing.state:
        return course
    if state is State.RECONCILING:
        account = account_of(delivery, policy)
        assert account is not None, "only a routed delivery can be in doubt"
        wait = settles_at(account.promise, course.last_try, policy.lease_s) - tx.steady
        return replace(course, next_at=tx.now + max(0, wait))
    if state is State.UNCERTAIN:
        return replace(course, next_at=tx.now)
    if state is State.QUEUED and moved.standing.maybe and not moved.standing.permit:
        # By the first attempt, from which the provider counts the life of the key.
        return replace(course, tag=DYING_FIRST + course.first_try)
    return course
