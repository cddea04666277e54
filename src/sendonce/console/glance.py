"""A preview that a person waits for: it ends when it has seen enough, and says that there is more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

LOOKED_MAX: Final = 5_000
WAIT_S: Final = 3.0

T = TypeVar("T")


class _Enough(Exception):
    """It has seen as much as a person waits for."""


def glance(preview: Callable[[Callable[[T], None]], T], looked: Callable[[T], int]) -> tuple[T, bool]:
    """What `preview` saw, and whether there is more. It tells its progress to what it is given; `looked`
    counts in that what it has looked at."""
    until = time.monotonic() + WAIT_S
    last: list[T] = []

    def heard(seen: T) -> None:
        last[:] = [seen]
        if looked(seen) >= LOOKED_MAX or time.monotonic() >= until:
            raise _Enough

    try:
        return preview(heard), False
    except _Enough:
        return last[0], True
