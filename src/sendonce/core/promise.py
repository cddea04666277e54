"""What a provider account promises, and what follows for us after a lost response.

    K  honours an idempotency key for a window: retry with the same key and bytes inside it
    L  can be asked by our reference: wait until the answer can be trusted, then ask
    N  neither: an operator, or a policy, decides

The one arithmetic that the promise stands on is here: until when a key may still be used, and when
"absent" may be believed. Both are counted in microseconds of the store's steady clock, since a
stepped calendar clock would make an old key look young.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sendonce.core.lifecycle import Facts
from sendonce.core.value import value

SECOND: Final = 1_000_000


class ProviderClass(StrEnum):
    """What the provider offers against a lost response."""

    KEY = "K"
    LOOKUP = "L"
    NEITHER = "N"


@value
class Promise:
    """What this account's provider promises. All times in seconds.

    key_window_s    how long a key is honoured, counted from the first attempt; class K only
    key_margin_s    how long before the end of the window the key is no longer used
    timeout_s       the longest time from `start()` to the end of the call
    arrival_max_s   the longest time after the end of a call in which its request may still take
                    effect at the provider; class L waits it out before it believes "absent"
    index_lag_s     how long an accepted message may be missing from the look-up; class L
    held_s          how long a call of a process that is gone may still occupy the provider; None: as
                    long as a call may take. A killed process's sockets are closed by its kernel at once,
                    so adapters with long time-outs say less
    lookup          whether `look_up` answers at all (a class K account may have it besides)
    echo            events carry our signed delivery id back
    """

    provider_class: ProviderClass
    timeout_s: float
    key_window_s: float = 0.0
    key_margin_s: float = 60.0
    arrival_max_s: float = 60.0
    index_lag_s: float = 0.0
    held_s: float | None = None
    lookup: bool = False
    echo: bool = False


def key_dies_at(promise: Promise, first_try: int) -> int:
    """Until when (steady) a call under the key may start; `first_try` is the first claim's instant."""
    usable_s = promise.key_window_s - promise.key_margin_s - promise.timeout_s
    return first_try + int(usable_s * SECOND)


def key_alive(promise: Promise, first_try: int, steady: int) -> bool:
    """Whether another call under the same key is still absorbed by the provider."""
    return promise.provider_class is ProviderClass.KEY and steady < key_dies_at(promise, first_try)


def settles_at(promise: Promise, last_try: int, lease_s: float) -> int:
    """From when (steady) "absent" may be believed: every way that a request can still arrive is over.

    `last_try` is the last claim's instant; its process may have lived a lease longer than we knew.
    """
    settle_s = lease_s + promise.timeout_s + promise.arrival_max_s + promise.index_lag_s
    return last_try + int(settle_s * SECOND)


def facts(
    promise: Promise | None,
    *,
    first_try: int,
    last_try: int,
    expires_at: int,
    now: int,
    steady: int,
    lease_s: float,
    budget: bool = True,
) -> Facts:
    """What the life cycle's guards ask, for one delivery at one moment.

    `promise` None: not routed to an account yet, so nothing can have been sent. `now` is the
    calendar, the tries and `steady` are the store's steady clock.
    """
    if promise is None:
        return Facts(budget=budget, expired=now >= expires_at)
    return Facts(
        key_alive=key_alive(promise, first_try or steady, steady),
        lookup=promise.lookup,
        budget=budget,
        expired=now >= expires_at,
        settled=steady >= settles_at(promise, last_try, lease_s),
    )
