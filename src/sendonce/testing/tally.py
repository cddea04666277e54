"""What a provider took, held against what the store says of each delivery.

Counted is what came through the provider's door, told apart by a marker inside each message: a program that
believes its own book-keeping cannot hide a loss or a duplicate from this. For the sandbox, with
`[ref:{{ delivery_key }}]` in the templates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sendonce.core.lifecycle import ENDED, SAYS_NOT_SENT, State
from sendonce.ports.store import Row

AT_REST: Final = ENDED | {State.UNCERTAIN}
"""Nothing moves by itself any more."""
UNSENT: Final = SAYS_NOT_SENT - {State.NOT_SENT}
"""Not sent, by the record. `NOT_SENT` is an operator's word, which may be wrong."""


@dataclass(frozen=True)
class Tally:
    """`states`: of each delivery, by its key. `taken`: how often the provider took each marker; `unmarked`:
    how many messages without one, of which nothing can be said."""

    states: Mapping[str, State]
    taken: Mapping[str, int]
    unmarked: int = 0

    @cached_property
    def counts(self) -> Counter[State]:
        return Counter(self.states.values())

    @cached_property
    def never_taken(self) -> list[str]:
        """Accepted, says the store; the provider has not got it."""
        return [k for k, state in self.states.items() if state is State.ACCEPTED and k not in self.taken]

    @cached_property
    def unfinished(self) -> list[str]:
        """Neither ended nor waiting for a person."""
        return [key for key, state in self.states.items() if state not in AT_REST]

    @cached_property
    def contradicted(self) -> list[str]:
        """Not sent, says the store; the provider took it."""
        return [key for key, state in self.states.items() if state in UNSENT and key in self.taken]

    @property
    def lost(self) -> int:
        return len(self.never_taken) + len(self.unfinished)

    @property
    def duplicates(self) -> int:
        return sum(times - 1 for times in self.taken.values())

    def problems(self) -> Iterator[str]:
        """A sentence for each thing that must not be."""
        states = self.states
        yield from (f"{key} is ACCEPTED, but the provider never took it" for key in self.never_taken)
        yield from (f"{key} has not ended: {states[key]}" for key in self.unfinished)
        yield from (f"{key} is {states[key]}, but the provider took it" for key in self.contradicted)
        yield from (f"{key} was taken {times} times" for key, times in self.taken.items() if times > 1)
        strangers = (marker for marker in self.taken if marker not in states)
        yield from (f"the provider took {marker!r}, which nobody scheduled" for marker in strangers)
        if self.unmarked:
            yield f"the provider took {self.unmarked} messages without a marker"


def tally(rows: Iterable[Row], effects: Iterable[Mapping[str, object]]) -> Tally:
    """`rows`: key and state of every delivery (`view_demo_states`); `effects`: as the sandbox lists them."""
    taken = Counter(str(effect["marker"]) for effect in effects)
    unmarked = taken.pop("", 0)
    return Tally({str(row["key"]): State(str(row["state"])) for row in rows}, taken, unmarked)
