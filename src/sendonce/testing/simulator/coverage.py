"""What a run has hit, out of all that there is: generated from the table, so that no new rule goes unseen.

Four kinds of items: each rule of the life cycle from each state and for each provider class in which it
can fire; each fault; each check that stands outside the table; what is done to the record itself. A green
run that never went somewhere says nothing about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Final

from sendonce.core.lifecycle import (
    SAYS_NOT_SENT,
    TABLE,
    Effect,
    Event,
    Facts,
    Guard,
    Moved,
    Rule,
    Standing,
    State,
    step,
)
from sendonce.testing.simulator.faults import Fault

UNROUTED: Final = "-"
"""The class of what was not published yet."""
CLASSES: Final = ("K", "K+L", "L", "N")
CHECKS: Final = ("stopping", "gate_closed", "slot_missed", "key_dying", "lease_lost")
"""What the sender asks right before the first byte. Its deadline is not among them: a slot is always
missed long before."""
KEPT: Final = ("sealed", "removed", "erased")
"""What was done to the record itself, and found to be so at the end."""
NOTES: Final = (Event.DUPLICATE_OBSERVED, Event.LATE_OUTCOME)


@dataclass(slots=True)
class Coverage:
    """Counters by item; an item is a line of text that says what it is."""

    hit: Counter[str] = field(default_factory=Counter)

    def rule(self, rule: Rule, source: State, class_: str) -> None:
        self.hit[name_of(rule, source, class_)] += 1

    def fault(self, fault: Fault) -> None:
        self.hit[f"fault: {fault.value}"] += 1

    def check(self, why: str) -> None:
        self.hit[f"check: {why}"] += 1

    def kept(self, what: str) -> None:
        self.hit[f"kept: {what}"] += 1

    def note(self, event: Event) -> None:
        self.hit[f"note: {event.value}"] += 1

    def add(self, other: Mapping[str, int]) -> None:
        self.hit.update(other)

    def missing(self, faults: Iterable[Fault] = tuple(Fault)) -> list[str]:
        return [item for item in items(faults) if not self.hit[item]]

    def percent(self, faults: Iterable[Fault] = tuple(Fault)) -> int:
        """Whole percent, rounded down: 100 means all."""
        every = list(items(faults))
        return 100 * sum(1 for item in every if self.hit[item]) // len(every)


def items(faults: Iterable[Fault] = tuple(Fault)) -> Iterator[str]:
    """Everything that there is to hit, by these faults."""
    yield from sorted(name_of(*place) for place in _reachable())
    yield from (f"fault: {fault.value}" for fault in faults)
    yield from (f"check: {why}" for why in CHECKS)
    yield from (f"kept: {what}" for what in KEPT)
    yield from (f"note: {event.value}" for event in NOTES)


def name_of(rule: Rule, source: State, class_: str) -> str:
    guards = " + ".join(guard.value for guard in rule.guards)
    to = source if rule.to is None else rule.to
    return f"{class_:3} {rule.event.value}: {source} -> {to}{f' ({guards})' if guards else ''}"


@cache
def legal(before: Standing, event: Event, class_: str) -> Mapping[Standing, Rule]:
    """Where the table can lead from here, whatever the world is like for this class; by which rule.

    Epochs and versions are counted from those of `before`, which must be 0.
    """
    found: dict[Standing, Rule] = {}
    for facts in _worlds(class_):
        answer = step(before, event, facts)
        if isinstance(answer, Moved):
            found.setdefault(answer.standing, answer.rule)
    return found


@cache
def _worlds(class_: str) -> tuple[Facts, ...]:
    both = (False, True)
    keys = both if class_.startswith("K") else (False,)
    return tuple(
        Facts(key_alive=key, lookup="L" in class_, budget=budget, expired=expired, settled=settled)
        for key, budget, expired, settled in product(keys, both, both, both)
    )


@cache
def _reachable() -> frozenset[tuple[Rule, State, str]]:
    """Every rule with the states and classes in which a run that keeps its promise can see it fire."""
    found: set[tuple[Rule, State, str]] = set()
    for routed in CLASSES:
        start = (Standing(State.SCHEDULED, 0, 0), UNROUTED)
        seen, waiting = {start}, [start]
        while waiting:
            standing, class_ = waiting.pop()
            for event in dict.fromkeys(rule.event for rule in TABLE):
                for after, rule in legal(standing, event, class_).items():
                    if _never(rule, standing, class_):
                        continue
                    found.add((rule, standing.state, class_))
                    next_ = (replace(after, epoch=0, version=0), _class_after(after.state, class_, routed))
                    if next_ not in seen:
                        seen.add(next_)
                        waiting.append(next_)
    return frozenset(found)


def _class_after(state: State, class_: str, routed: str) -> str:
    if state is State.SCHEDULED:
        return UNROUTED
    return routed if state is State.QUEUED else class_


def _never(rule: Rule, standing: Standing, class_: str) -> bool:
    """What the table allows and a promise that holds never needs."""
    source = standing.state
    if rule.event is Event.PROVEN:
        # A proof where nothing may have been sent would be the broken promise itself.
        return not standing.maybe and source is not State.SENDING
    if Effect.ALARM in rule.effects and source in SAYS_NOT_SENT - {State.NOT_SENT}:
        return True
    if rule.event in (Event.REDRIVEN, Event.PERMITTED) and class_ == UNROUTED:
        return True  # it has no text that could go out: it is made anew, or not at all
    return Guard.SETTLED in rule.guards and "L" not in class_
