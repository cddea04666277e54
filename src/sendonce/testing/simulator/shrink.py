"""From a seed that fails to the shortest history that still fails in the same way.

Faults and deliveries are left out in halves, then in ever smaller groups, as long as the same invariant
breaks. Every trial runs the whole seed again, so this is bounded by a number of trials, not by patience.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from sendonce.testing.simulator.faults import Profile
from sendonce.testing.simulator.world import Outcome, run_seed

TRIALS_MAX: Final = 150


@dataclass(frozen=True, slots=True)
class Shrunk:
    """`without` is what could be left out; `outcome` what is left."""

    without: frozenset[str]
    outcome: Outcome
    trials: int

    def lines(self) -> Iterator[str]:
        """The history, for people: what went wrong, what broke, and the delivery's own story."""
        yield f"{self.outcome.counts.deliveries} deliveries and {len(self.outcome.struck)} faults are left:"
        yield from (f"  {struck}" for struck in self.outcome.struck)
        yield "and this does not hold:"
        yield from (f"  {broken}" for broken in self.outcome.broken[:5])
        if self.outcome.story:
            yield "the ledger of the delivery:"
            yield from (f"  {line}" for line in self.outcome.story)


def shrink(
    failed: Outcome,
    profile: Profile,
    *,
    trials_max: int = TRIALS_MAX,
    progress: Callable[[int], None] = lambda trials: None,
    run: Callable[[int, Profile, Set[str]], Outcome] | None = None,
) -> Shrunk:
    """Leave out what is not needed for the first broken invariant of a failed outcome.

    `run` stands in for `run_seed`. The outcome that comes back has failed too.
    """
    trial = _Trial(failed, profile, trials_max, progress, run or _run)
    deliveries = [f"delivery {number}" for number in range(failed.asked)]
    trial.reduce([struck.id for struck in failed.struck if struck.at_s > failed.broken[0].at_s])
    trial.reduce([struck.id for struck in trial.best.struck])
    trial.reduce(deliveries)
    trial.reduce([struck.id for struck in trial.best.struck])
    return Shrunk(trial.without, trial.best, trial.made)


def _run(seed: int, profile: Profile, without: Set[str]) -> Outcome:
    return run_seed(seed, profile, without=without, to_the_end=False)


class _Trial:
    def __init__(
        self,
        failed: Outcome,
        profile: Profile,
        trials_max: int,
        progress: Callable[[int], None],
        run: Callable[[int, Profile, Set[str]], Outcome],
    ) -> None:
        self.best = failed
        self.without: frozenset[str] = frozenset()
        self.made = 0
        self._kind = failed.broken[0].kind
        self._profile = profile
        self._trials_max = trials_max
        self._progress = progress
        self._run = run

    def reduce(self, candidates: list[str]) -> None:
        """Try to leave out groups of these, halving the groups until they are single ones."""
        size = len(candidates)
        while size >= 1 and candidates:
            kept: list[str] = []
            for start in range(0, len(candidates), size):
                if self.made >= self._trials_max:
                    return
                group = candidates[start : start + size]
                if not self._fails_without(group):
                    kept += group
            candidates = kept
            size = size // 2 if size > 1 else 0

    def _fails_without(self, group: list[str]) -> bool:
        self.made += 1
        self._progress(self.made)
        without = self.without | set(group)
        outcome = self._run(self.best.seed, self._profile, without)
        if any(broken.kind == self._kind for broken in outcome.broken):
            self.best, self.without = outcome, without
            return True
        return False
