"""What an application is told in its feed: how each delivery ended, and where such an end no longer holds.

    disposition   it ended, or nobody can tell whether it was sent: ACCEPTED, REJECTED, DEAD, CANCELLED,
                  SUPPRESSED, EXPIRED, ASSUMED_SENT, NOT_SENT, UNCERTAIN
    reopened      it had been told as one of these, and goes again: redriven, restored, permitted
    facet         what the provider said later of what it was given, beside the state: each kind once

The feed is the ledger, read in the order of its entries' numbers; here stands which of them are told. Facets
have no entry there, and are put among them by `pipeline.feed`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from sendonce.core.lifecycle import ENDED, Event, State

DISPOSED: Final = ENDED | {State.UNCERTAIN}
"""States that are told."""

REOPENING: Final = frozenset({Event.REDRIVEN, Event.RESTORED, Event.PERMITTED})

UNTOLD: Final = frozenset(
    {
        Event.SCHEDULED,
        Event.PUBLISHED,
        Event.DEFERRED,
        Event.REROUTED,
        Event.REVISED,
        Event.CLAIMED,
        Event.DUPLICATE_OBSERVED,
        Event.LATE_OUTCOME,
    }
)
"""Events that are never told, whatever state they leave: what happens on the way, and notes. They are most
of a ledger, so the statement that reads it leaves them out by itself."""


class Kind(StrEnum):
    """What it is to the application."""

    DISPOSITION = "disposition"
    REOPENED = "reopened"
    FACET = "facet"


STAGES: Final = frozenset(
    {"scheduler", "worker", "reaper", "reconciler", "policy", "provider", "failover", "retention"}
)
"""Who gives coded reasons, by the actor up to its colon; everybody else may write a sentence."""
_CODED: Final = re.compile(r"[a-z0-9_]+(?::[A-Za-z0-9_.-]+)*", re.ASCII)


def coded_reason(actor: str, reason: str) -> str:
    """The reason where it is one of our own codes; "" for what a person may have written, of anybody."""
    ours = actor.partition(":")[0] in STAGES and _CODED.fullmatch(reason) is not None
    return reason if ours else ""


def kind_of(event: str, state: str) -> Kind | None:
    """What an entry is told as, by its event and the state after it; None: it is not told."""
    if event in UNTOLD:
        return None
    if event in REOPENING:
        return Kind.REOPENED
    return Kind.DISPOSITION if state in DISPOSED else None
