"""When to try again, and when to give up.

Two budgets, kept apart. *Failures* (provably not accepted, or unknown) spend the retry budget.
*Throttles* (429, a closed gate) spend nothing of it, since the provider only asked us to wait; they
have a cap of their own, far higher, and the expiry that every delivery has.

Backoff is exponential with full jitter over a floor: full jitter spreads a burst best, the floor
keeps a lucky draw from becoming a tight loop. `chance` in [0, 1) is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WAIT_MAX_S: Final = 86_400.0
"""The longest wait that a provider may ask of one delivery; longer ones are cut to it."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon.

    attempts_max   failures after which a delivery is dead
    throttles_max  answers of 429 after which it is dead
    base_s, cap_s  the first and the longest span from which a wait is drawn
    floor_s        the shortest wait
    """

    attempts_max: int = 6
    throttles_max: int = 500
    base_s: float = 2.0
    cap_s: float = 900.0
    floor_s: float = 1.0


def backoff_s(policy: RetryPolicy, failures: int, chance: float) -> float:
    """The wait before the next try after `failures` failures in a row (1 or more), in seconds."""
    span = min(policy.cap_s, policy.base_s * 2.0 ** min(failures - 1, 30))
    return max(policy.floor_s, span * chance)


def wait_s(policy: RetryPolicy, failures: int, asked_s: float | None, chance: float) -> float:
    """The wait after an answer that may have named a time.

    The provider's own time is honoured up to `WAIT_MAX_S`, with up to a tenth more so that all
    deliveries do not come back in the same moment; without one our backoff applies.
    """
    if asked_s is None:
        return backoff_s(policy, failures, chance)
    asked = min(asked_s, WAIT_MAX_S)
    return max(policy.floor_s, asked + min(asked * 0.1, 5.0) * chance)
