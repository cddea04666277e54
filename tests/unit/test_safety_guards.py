"""The safety guards by name: without each, the walk tells the shortest story of what it was for.

The walk is `sendonce.testing.model` over the product's own table. A guard whose removal nobody notices would
be a guard that nobody needs, or a walk that does not look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from sendonce.core import lifecycle
from sendonce.core.lifecycle import Effect, Event, Guard, Rule, State
from sendonce.testing.model import GUARDED, Guarded, Kind, walk

Change = Callable[[Rule], Rule | None]


@dataclass(frozen=True)
class Removal:
    """What is taken away: a rule's part (`change`, None for the whole rule), or what a stage adds."""

    kind: Kind
    what: str
    story: str
    event: Event | None = None
    change: Change = lambda rule: rule
    missing: Guarded | None = None


def without(*parts: Guard | Effect) -> Change:
    return lambda rule: replace(
        rule,
        guards=tuple(guard for guard in rule.guards if guard not in parts),
        effects=tuple(effect for effect in rule.effects if effect not in parts),
    )


def forgetting_maybe(rule: Rule) -> Rule:
    to_queue = rule.to is State.QUEUED
    return replace(rule, effects=(*rule.effects, Effect.CLEAR_MAYBE)) if to_queue else rule


REMOVALS = {
    "the age of the key at the last moment": Removal(
        Kind.KEY,
        "2 effects with 0 permits",
        """
        published
        a worker claims it
        call 1 starts
        call 1 is settled: unknown
        a worker claims it
        request 1 is accepted
        the key comes into its margin
        the provider forgets the key
        call 2 starts
        request 2 is accepted
        """,
        missing=Guarded.KEY_AGE,
    ),
    "maybe is heeded": Removal(
        Kind.KEY,
        "SUPPRESSED while it may have been sent",
        """
        published
        a worker claims it
        the reaper gives up call 1
        suppressed
        """,
        event=Event.SUPPRESSED,
        change=without(Guard.NOT_MAYBE),
    ),
    "maybe stays": Removal(
        Kind.KEY,
        "REJECTED with an effect",
        """
        published
        a worker claims it
        call 1 starts
        call 1 is settled: unknown
        a worker claims it
        call 2 starts
        request 1 is accepted
        request 2 comes to nothing
        call 2 is settled: failed
        unrenderable
        """,
        event=Event.FAILED,
        change=forgetting_maybe,
    ),
    "a claim is fenced": Removal(
        Kind.NEITHER,
        "2 effects with 0 permits",
        """
        published
        a worker claims it
        a worker claims it
        call 1 starts
        call 2 starts
        request 1 is accepted
        request 2 is accepted
        """,
        missing=Guarded.CLAIM,
    ),
    "an outcome is fenced": Removal(
        Kind.LOOKUP,
        "REJECTED with an effect",
        """
        published
        a worker claims it
        call 1 starts
        request 1 comes to nothing
        the reaper gives up call 1
        the settle time is over
        a look-up finds nothing
        "absent" is applied
        a worker claims it
        call 1 is settled: rejected
        call 2 starts
        request 2 is accepted
        """,
        missing=Guarded.OUTCOME,
    ),
    "evidence counts however late": Removal(
        Kind.NEITHER,
        "proven to be sent, and SENDING all the same",
        """
        published
        a worker claims it
        call 1 starts
        request 1 is accepted
        an event proves that it was sent
        """,
        event=Event.PROVEN,
        change=lambda rule: None,
    ),
    "evidence counts against a person's word": Removal(
        Kind.NEITHER,
        "proven to be sent, and NOT_SENT all the same",
        """
        published
        a worker claims it
        call 1 starts
        call 1 is settled: unknown
        request 1 is accepted
        not_sent
        an event proves that it was sent
        """,
        event=Event.PROVEN,
        change=lambda rule: None if Effect.ALARM in rule.effects else rule,
    ),
    "the settle time, in the table": Removal(
        Kind.LOOKUP,
        "DEAD with an effect",
        """
        published
        a worker claims it
        call 1 starts
        call 1 is settled: unknown
        request 1 is accepted
        a look-up finds nothing
        "absent" is applied
        """,
        event=Event.ABSENT,
        change=without(Guard.SETTLED),
    ),
    "the settle time, when it is asked": Removal(
        Kind.LOOKUP,
        "DEAD with an effect",
        """
        published
        a worker claims it
        call 1 starts
        call 1 is settled: unknown
        request 1 is accepted
        a look-up finds nothing
        the look-up shows what arrived
        the settle time is over
        "absent" is applied
        """,
        missing=Guarded.FINDING,
    ),
    "a cancel that came in time is not forgotten": Removal(
        Kind.KEY,
        "QUEUED though a cancel or opt-out is pending",
        """
        published
        a worker claims it
        cancelled
        the reaper gives up call 1
        """,
        event=Event.UNKNOWN,
        change=without(Guard.NO_ENDING),
    ),
    "nobody permits what was cancelled": Removal(
        Kind.NEITHER,
        "QUEUED though a cancel or opt-out is pending",
        """
        published
        a worker claims it
        the reaper gives up call 1
        cancelled
        permitted
        """,
        event=Event.PERMITTED,
        change=without(Guard.NO_ENDING),
    ),
    "a missed slot is not used": Removal(
        Kind.LOOKUP,
        "DEAD with an effect",
        """
        published
        a worker claims it
        the reaper gives up call 1
        the slot of call 1 passes
        the settle time is over
        call 1 starts
        request 1 is accepted
        a look-up finds nothing
        "absent" is applied
        """,
        missing=Guarded.SLOT,
    ),
}


@pytest.mark.parametrize("removal", REMOVALS.values(), ids=REMOVALS)
def test_without_it_a_promise_breaks_and_the_shortest_story_is_told(
    removal: Removal, monkeypatch: pytest.MonkeyPatch
) -> None:
    if removal.event is not None:
        changed = [removal.change(rule) for rule in lifecycle._BY_EVENT[removal.event]]
        left = tuple(rule for rule in changed if rule is not None)
        monkeypatch.setitem(lifecycle._BY_EVENT, removal.event, left)
    missing = frozenset() if removal.missing is None else {removal.missing}
    violation = walk(removal.kind, guarded=GUARDED - missing).violation
    assert violation is not None
    assert violation.what == removal.what
    assert [action for action, _ in violation.story] == [
        line.strip() for line in removal.story.strip().splitlines()
    ]
