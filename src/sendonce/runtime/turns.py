"""Turns at the store: long work in units that are short for everybody else, and room between them.

    for part in turns.parts(items):
        with turns.room():
            store.write(turns.timed(unit, len(part))).result()

A unit of the store keeps all other writers waiting. How many items fit into `HOLD_US` depends on the
machine, on what else it does and on the items; so each unit is timed, and the next is sized by it. The
flush at the end is not in that time: it takes what the disk takes, however short the unit was, and
shorter units would only make more of them.

The room is there because SQLite has no queue: who finds it locked looks again after up to 3 ms
(`store.sqlite`), and where one process comes back at once, the others hardly find it open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Final, TypeVar

T = TypeVar("T")
Tx = TypeVar("Tx")

HOLD_US: Final = 4_000
SIZE_MIN: Final = 10
ROOM_SHARE: Final = 0.25
ROOM_US_MAX: Final = 1_000


class Turns:
    """The turns of one long piece of work.

    steady    a clock in microseconds; where it stands still, as in tests, so do sizes
    size_max  items in a turn at most; the first turn has as many
    """

    def __init__(
        self, steady: Callable[[], int], *, size_max: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._steady = steady
        self._size_max = size_max
        self._sleep = sleep
        self._room_until = 0
        self.size = size_max

    def parts(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Cut into turns as long as the turns before them allow, and of one length.

        A quarter more than allowed is better than one turn more: each costs a flush.
        """
        left = items
        while left:
            turns = max(1, ceil(len(left) / self.size - 0.25))
            count = ceil(len(left) / turns)
            yield left[:count]
            left = left[count:]

    def timed(self, unit: Callable[[Tx], T], count: int) -> Callable[[Tx], T]:
        """The unit with `count` items, which sizes the next by the time that it takes."""

        def timed(tx: Tx) -> T:
            begun = self._steady()
            answer = unit(tx)
            if (held := self._steady() - begun) > 0:
                fitting = count * HOLD_US // held
                # Half of the way: one turn that was interrupted says little about the next.
                self.size = max(SIZE_MIN, min(self._size_max, (self.size + fitting + 1) // 2))
            return answer

        return timed

    @contextmanager
    def room(self) -> Iterator[None]:
        """Around a turn and its flush: waits first until the others had theirs.

        That is a part of what the last one took. What was worked on since then, elsewhere, counts.
        """
        if (left := self._room_until - self._steady()) > 0:
            self._sleep(left / 1e6)
        begun = self._steady()
        yield
        ended = self._steady()
        self._room_until = ended + min(round((ended - begun) * ROOM_SHARE), ROOM_US_MAX)
