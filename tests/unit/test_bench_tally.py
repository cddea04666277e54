"""What a list of calls at the door says: a wrong sum here would be a wrong claim about somebody."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.door import Call
from bench.tally import Tally, rate_from, rate_within, recovered_s, tally, worst_window

SECOND = 1_000_000


def at(*times_s: float, throttled: bool = False) -> list[Call]:
    """Calls for different messages."""
    return [Call(round(time_s * SECOND), 0, throttled, marker=n + 1) for n, time_s in enumerate(times_s)]


def says(marker: int, *, throttled: bool = False, replayed: bool = False) -> Call:
    return Call(0, 0, throttled, replayed, marker)


@pytest.mark.parametrize(
    ("calls", "counted"),
    [
        pytest.param([], Tally(0, 0, 0, 0), id="none"),
        pytest.param([says(1), says(2)], Tally(2, 0, 0, 0), id="once each"),
        pytest.param([says(1), says(1), says(1)], Tally(1, 2, 2, 0), id="taken three times"),
        pytest.param(
            [says(1), says(1, replayed=True)], Tally(1, 0, 1, 0), id="known key: repeated, not taken again"
        ),
        pytest.param([says(1, throttled=True), says(1)], Tally(1, 0, 0, 1), id="a 429 takes nothing"),
        pytest.param([says(1), says(1, throttled=True)], Tally(1, 0, 0, 1), id="nor does a later one"),
    ],
)
def test_what_was_taken_and_how_often(calls: list[Call], counted: Tally) -> None:
    assert tally(calls) == counted


@given(st.lists(st.builds(says, st.integers(1, 4), throttled=st.booleans(), replayed=st.booleans())))
def test_every_call_is_counted_once(calls: list[Call]) -> None:
    counted = tally(calls)
    assert counted.messages + counted.repeated + counted.throttled == len(calls)
    assert 0 <= counted.duplicates <= counted.repeated


@pytest.mark.parametrize(
    ("times_s", "most"),
    [
        ((), 0),
        ((0.0, 0.5, 0.999), 3),
        ((0.0, 1.0), 1),  # exactly a second apart: different windows
        ((0.6, 0.9, 1.1, 1.5, 1.599), 5),  # over the edge of whole seconds
        ((0.0, 0.1, 5.0, 5.1, 5.2, 9.0), 3),
    ],
)
def test_the_worst_second_slides(times_s: Sequence[float], most: int) -> None:
    assert worst_window(at(*times_s), SECOND) == most


def test_a_refused_call_was_made_all_the_same() -> None:
    assert worst_window([*at(0.0, 0.1), *at(0.2, throttled=True)], SECOND) == 3


@given(st.lists(st.integers(0, 5 * SECOND), min_size=1).map(sorted), st.integers(1, 2 * SECOND))
def test_the_worst_window_begins_with_a_call(times: list[int], width: int) -> None:
    calls = [Call(time, 0, throttled=False) for time in times]
    assert worst_window(calls, width) == max(
        sum(start <= time < start + width for time in times) for start in times
    )


@pytest.mark.parametrize(
    ("calls", "rate"),
    [
        pytest.param([], 0.0, id="none"),
        pytest.param(at(3.0, 3.5, 4.0, 4.5), 2.0, id="from the first call on"),
        pytest.param(at(3.0, 3.5, 5.0, 5.1), 1.0, id="nothing after the time"),
        pytest.param(
            [*at(3.0, throttled=True), *at(4.0, 5.0)], 0.5, id="a 429 starts the clock and is no delivery"
        ),
    ],
)
def test_the_rate_of_a_limited_time(calls: list[Call], rate: float) -> None:
    assert rate_within(calls, 2.0) == rate


@pytest.mark.parametrize(
    ("number", "rate"), [(0, 0.75), (1, 2.0), (2, 2.0), (3, 0.0), (7, 0.0)], ids=lambda value: str(value)
)
def test_the_rate_after_a_slow_start(number: int, rate: float) -> None:
    assert rate_from(at(0.0, 3.0, 3.5, 4.0), number) == rate


@pytest.mark.parametrize(
    ("times_s", "recovered"),
    [
        ((), 0.0),
        ((1.0, 2.0), 0.0),  # nothing came after the kill
        ((1.0, 4.5, 9.0, 31.25), 21.25),  # the last one counts, not the gap before it
    ],
)
def test_recovered_by_the_last_call(times_s: Sequence[float], recovered: float) -> None:
    assert recovered_s(at(*times_s), killed_at=10 * SECOND) == recovered
