"""Turns at the store: long work in units that are short for everybody else, and room between them.

    for part in turns.parts(items):
        with turns.turn(len(part)):
            store.write(...).result()

A unit of the store keeps all other writers waiting. How many items fit into `HOLD_US` depends on the
machine, on what else it does and on the items; so each turn is timed, and the next is sized by it.

The room is there because SQLite has no queue: who finds it locked looks again every 2 ms or so
(`store.sqlite`), and where one process comes back at once, the others hardly find it open. With a gap
of a quarter of what was held, as much as the work between two turns takes, they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

HOLD_US: Final = 5_000
ROOM_SHARE: Final = 0.25
ROOM_US_MAX: Final = 2_000
SIZE_MIN: Final = 4


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
        self._closed_until = 0
        self.size = size_max

    def parts(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Cut into turns as long as the turns before them allow, and of one length: each costs a flush."""
        left = items
        while left:
            turns = -(-len(left) // self.size)
            count = -(-len(left) // turns)
            yield left[:count]
            left = left[count:]

    @contextmanager
    def turn(self, count: int) -> Iterator[None]:
        """Around a unit with `count` items: waits until the others had their room, and takes the time."""
        if (left := self._closed_until - self._steady()) > 0:
            self._sleep(left / 1e6)
        begun = self._steady()
        yield
        ended = self._steady()
        held = ended - begun
        self._closed_until = ended + min(round(held * ROOM_SHARE), ROOM_US_MAX)
        if held > 0:
            fitting = count * HOLD_US // held
            # Half of the way: one turn that was interrupted says little about the next.
            self.size = max(SIZE_MIN, min(self._size_max, (self.size + fitting + 1) // 2))
