"""What an application is told in its feed: how each delivery ended, and where such an end no longer holds.

    disposition   it ended, or nobody can tell whether it was sent: ACCEPTED, REJECTED, DEAD, CANCELLED,
                  SUPPRESSED, EXPIRED, ASSUMED_SENT, NOT_SENT, UNCERTAIN
    reopened      it had been told as one of these, and goes again: redriven, restored, permitted
    facet         what the provider said later of what it had accepted, beside the state. None is told yet:
                  they are kept without an entry in the ledger

The feed is the ledger, read in the order of its entries' numbers; here stands which of them are told.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sendonce.core.lifecycle import ENDED, Event, State

DISPOSED: Final = ENDED | {State.UNCERTAIN}
"""States that are told."""

REOPENING: Final = frozenset({Event.REDRIVEN, Event.RESTORED, Event.PERMITTED})

FACETS: Final[frozenset[str]] = frozenset()
"""Events that tell what a provider said later: none yet, see above."""

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
    """What an entry is to the application."""

    DISPOSITION = "disposition"
    REOPENED = "reopened"
    FACET = "facet"


def kind_of(event: str, state: str) -> Kind | None:
    """What an entry is told as, by its event and the state after it; None: it is not told."""
    if event in FACETS:
        return Kind.FACET
    if event in UNTOLD:
        return None
    if event in REOPENING:
        return Kind.REOPENED
    return Kind.DISPOSITION if state in DISPOSED else None
