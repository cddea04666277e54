"""What a drill is made of: scenarios, declared in one shape, and what was seen in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from sendonce.core.promise import ProviderClass

if TYPE_CHECKING:
    from sendonce.testing.drill.world import World


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a scenario.

    does  what was done
    must  what had to hold
    saw   what was seen
    held  whether it did
    """

    does: str
    must: str
    saw: str
    held: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing that goes wrong, or that somebody does at a bad moment.

    name      what people call it
    does      what is done
    must      what must hold
    run       does it, and yields each step as it was seen
    class_    only for accounts of this class; None: for all
    sandbox   whether it needs a provider that can be told to misbehave. The others are for real accounts too
    events    only for accounts whose provider calls back
    """

    name: str
    does: str
    must: str
    run: Callable[[World], Iterator[Step]]
    class_: ProviderClass | None = None
    sandbox: bool = True
    events: bool = False


class Verdict(StrEnum):
    """How a scenario came out."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CONFIGURED = "not configured"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a scenario.

    duplicates, lost  counted where the messages arrived, not by our own record
    why               where it was not run: why not
    """

    scenario: Scenario
    verdict: Verdict
    steps: tuple[Step, ...] = ()
    took_s: float = 0.0
    duplicates: int = 0
    lost: int = 0
    why: str = ""


@dataclass(slots=True)
class Totals:
    """What all scenarios came to."""

    results: list[Result] = field(default_factory=list)

    @property
    def scenarios(self) -> int:
        return sum(result.verdict is not Verdict.NOT_CONFIGURED for result in self.results)

    @property
    def passed(self) -> int:
        return sum(result.verdict is Verdict.PASSED for result in self.results)

    @property
    def failed(self) -> int:
        return sum(result.verdict is Verdict.FAILED for result in self.results)

    @property
    def duplicates(self) -> int:
        return sum(result.duplicates for result in self.results)

    @property
    def lost(self) -> int:
        return sum(result.lost for result in self.results)

    @property
    def ok(self) -> bool:
        return not (self.failed or self.duplicates or self.lost) and self.passed > 0

    def __str__(self) -> str:
        return (
            f"drill: scenarios={self.scenarios} passed={self.passed} failed={self.failed} "
            f"duplicates={self.duplicates} lost={self.lost}"
        )
