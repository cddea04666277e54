"""Turns: sized by how long they held the store, with room for the others between them."""

from __future__ import annotations

import pytest

from sendonce.runtime.turns import HOLD_US, ROOM_US_MAX, SIZE_MIN, Turns


class Clock:
    """Moves when it is told to, and when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.slept: list[int] = []

    def steady(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds * 1e6))
        self.now += round(seconds * 1e6)


def made(clock: Clock, size_max: int = 50) -> Turns:
    return Turns(clock.steady, size_max=size_max, sleep=clock.sleep)


def held(turns: Turns, clock: Clock, count: int, micros: int) -> None:
    def unit(tx: None) -> str:
        clock.now += micros
        return "answer"

    assert turns.timed(unit, count)(None) == "answer"


@pytest.mark.parametrize(
    ("item_us", "fixed_us", "fits"),
    [(10, 500, 50), (80, 0, 50), (160, 0, 25), (150, 1_000, 20), (300, 0, 13), (50_000, 0, SIZE_MIN)],
)
def test_the_size_settles_at_what_may_be_held(item_us: int, fixed_us: int, fits: int) -> None:
    clock = Clock()
    turns = made(clock)
    for _ in range(40):
        held(turns, clock, turns.size, turns.size * item_us + fixed_us)
    assert abs(turns.size - fits) <= 1
    assert turns.size * item_us + fixed_us <= HOLD_US + item_us or turns.size == SIZE_MIN


def test_one_turn_that_was_interrupted_does_not_decide() -> None:
    clock = Clock()
    turns = made(clock, 40)
    held(turns, clock, 40, 1_000_000)
    assert turns.size == 20
    held(turns, clock, 20, 20 * 100)
    assert turns.size == 30


def test_a_slow_flush_makes_no_short_units() -> None:
    """Or a slow disk would get all the more flushes."""
    clock = Clock()
    turns = made(clock)
    for _ in range(20):
        with turns.room():
            held(turns, clock, turns.size, turns.size * 10)
            clock.now += 100_000
    assert turns.size == 50


def test_others_have_room_after_each_turn() -> None:
    clock = Clock()
    turns = made(clock)

    def turn(micros: int) -> None:
        with turns.room():
            clock.now += micros

    turn(2_000)
    turn(2_000)
    assert clock.slept == [500]
    clock.now += 300  # work of its own, elsewhere, is room too
    turn(100_000)
    assert clock.slept == [500, 200]
    turn(1_000)
    assert clock.slept == [500, 200, ROOM_US_MAX]


def test_a_clock_that_stands_still_changes_nothing() -> None:
    clock = Clock()
    turns = made(clock)
    for _ in range(3):
        with turns.room():
            held(turns, clock, 50, 0)
    assert (turns.size, clock.slept) == (50, [])


def test_a_unit_that_fails_is_no_measure() -> None:
    clock = Clock()
    turns = made(clock)

    def failing(tx: None) -> None:
        clock.now += 900_000
        raise LookupError

    with pytest.raises(LookupError):
        turns.timed(failing, 50)(None)
    assert turns.size == 50


@pytest.mark.parametrize(
    ("size", "count", "lengths"),
    [
        (50, 50, [50]),
        (40, 50, [50]),
        (39, 50, [25, 25]),
        (23, 50, [25, 25]),
        (20, 50, [17, 17, 16]),
        (4, 3, [3]),
        (9, 0, []),
    ],
)
def test_parts_are_of_one_length_and_leave_nothing_out(size: int, count: int, lengths: list[int]) -> None:
    turns = made(Clock())
    turns.size = size
    parts = list(turns.parts(list(range(count))))
    assert [len(part) for part in parts] == lengths
    assert [item for part in parts for item in part] == list(range(count))


def test_a_part_is_cut_by_the_turns_before_it() -> None:
    clock = Clock()
    turns = made(clock, 50)
    lengths = []
    for part in turns.parts(list(range(100))):
        lengths.append(len(part))
        held(turns, clock, len(part), len(part) * 500)
    assert lengths[0] == 50
    assert sum(lengths) == 100
    assert lengths[-1] < 30
