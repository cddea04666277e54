"""What a channel is to keep: its service level objectives, and the judgement over what it kept.

An objective is a span and the share of deliveries that must keep within it. Spans are counted from the due
time: what quiet hours put off, as its category wants it, is judged by nothing here. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PUBLISHED_S: Final = 60.0
KEPT: Final = 0.99
RECOVERED_S: Final = 86_400.0


class Objective(StrEnum):
    """What is promised, in the order in which it is shown."""

    PUBLISHED = "published"  # the scheduler has queued it, or decided it
    ACCEPTED = "accepted"  # the provider has taken it: the window
    RECEIVED = "received"  # the provider says that it reached the customer
    OLDEST = "oldest"  # how old what is due and not sent may get
    DUPLICATES = "duplicates"  # sends beyond one, of which a second acceptance tells
    RECOVERED = "recovered"  # a dead letter was redriven, or decided


@dataclass(frozen=True, slots=True)
class Objectives:
    """Of one channel. Seconds from the due time; `received_s` from the provider's acceptance, None: none.

    kept        the share of deliveries that must keep `published_s`, `accepted_s` and `received_s`
    duplicates  how many a month may bring
    recovered_s how long a dead letter may wait for somebody
    """

    published_s: float = PUBLISHED_S
    accepted_s: float = 900.0
    oldest_s: float = 900.0
    received_s: float | None = None
    kept: float = KEPT
    duplicates: int = 0
    recovered_s: float = RECOVERED_S


USUAL: Final = Objectives()


@dataclass(frozen=True, slots=True)
class Kept:
    """How one objective was kept: `within` of `count`. `target` is the share, or for counts the budget.

    A count of nothing keeps everything: `share` is 1.
    """

    objective: Objective
    count: int
    within: int
    target: float

    @property
    def share(self) -> float:
        return self.within / self.count if self.count else 1.0

    @property
    def missed(self) -> int:
        return self.count - self.within

    @property
    def ok(self) -> bool:
        if self.objective is Objective.DUPLICATES:
            return self.missed <= self.target
        return self.share >= self.target
