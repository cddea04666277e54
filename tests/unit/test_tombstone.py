"""Tombstones: what each says is what is left, and none can be taken out or put in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sendonce.core.pacing import SECOND
from sendonce.core.retention import JUMP_US, TRUST_US, Sight, look_at_clocks
from sendonce.core.tombstone import (
    Remains,
    Tombstone,
    fault_of,
    heads_of,
    numbers_of,
    spell_numbers,
    tombstone,
)

FIRST = [Remains(1, 2, "a"), Remains(4, 1, "b")]
SECOND_ONE = [Remains(2, 1, "c")]


def _two() -> tuple[Tombstone, Tombstone]:
    first = tombstone(None, FIRST, [3, 1, 2], facet=0, at=5, policy="deliveries=90d")
    return first, tombstone(first, SECOND_ONE, [9], facet=0, at=6, policy="deliveries=90d")


def test_what_was_made_holds() -> None:
    first, second = _two()
    assert fault_of(first, None, FIRST) == ""
    assert fault_of(second, first, SECOND_ONE) == ""
    assert heads_of(FIRST) == heads_of(FIRST[::-1])


@pytest.mark.parametrize(
    ("remains", "says"),
    [
        ([], "2 deliveries, and 0"),
        (FIRST[:1], "2 deliveries, and 1"),
        ([FIRST[0], Remains(4, 1, "c")], "not what it removed"),
        ([FIRST[0], Remains(5, 1, "b")], "not what it removed"),
        ([Remains(1, 1, "a"), Remains(4, 2, "b")], "not what it removed"),
        ([Remains(1, 3, "a"), FIRST[1]], "not what it removed"),
    ],
)
def test_what_is_left_must_be_what_it_removed(remains: list[Remains], says: str) -> None:
    assert says in fault_of(_two()[0], None, remains)


def test_the_chain_shows_what_was_dropped_or_put_in() -> None:
    first, second = _two()
    other = tombstone(None, FIRST, [1, 2, 4], facet=0, at=5, policy="deliveries=90d")
    assert "tombstone 1 is missing" in fault_of(second, None, SECOND_ONE)
    assert "recorded hash" in fault_of(second, other, SECOND_ONE)
    assert "tombstone 3 is missing" in fault_of(second, second, SECOND_ONE)
    assert "recorded hash" in fault_of(Tombstone(1, 5, first.body + " ", first.hash), None, FIRST)
    assert "stands beside it" in fault_of(Tombstone(1, 7, first.body, first.hash), None, FIRST)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "x", '{"gone": "2-1"}', '{"gone": 3}', '{"gone": "0-99999999999"}']
)
def test_a_text_that_is_none_is_a_fault_and_no_error(text: str) -> None:
    from sendonce.core.ledger import link

    assert "no tombstone" in fault_of(Tombstone(1, 5, text, link("", text)), None, FIRST)


@given(some.sets(some.integers(1, 60)))
def test_numbers_are_read_back_as_they_were_spelled(numbers: set[int]) -> None:
    assert numbers_of(spell_numbers(numbers)) == sorted(numbers)


@pytest.mark.parametrize("text", ["2-1", "1,1", "1-2,3", "03", "3,1", "1-", ",", "a"])
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        numbers_of(text)


def test_a_calendar_is_believed_again_a_day_after_its_last_jump() -> None:
    sight, believed = look_at_clocks(None, 10**15, 10**9)
    assert believed
    steps = [(60 * SECOND, 60 * SECOND, True), (JUMP_US + 2, 1, False), (TRUST_US - 1, TRUST_US - 1, False)]
    for now, steady, expected in [*steps, (1, 1, True), (-JUMP_US, 1, False), (TRUST_US, TRUST_US, True)]:
        sight, believed = look_at_clocks(sight, sight.now + now, sight.steady + steady)
        assert believed is expected, sight
    assert isinstance(sight, Sight)
