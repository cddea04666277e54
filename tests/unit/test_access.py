"""Keys: their form, their scopes, and how often they may ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.access import (
    BURST_S,
    NOBODY,
    RATE_MAX,
    SECOND,
    Scope,
    check_name,
    check_rate,
    fits,
    hash_of,
    parse_scopes,
    parts_of,
    token_of,
    turn_of,
    write_scopes,
)
from sendonce.core.errors import InvalidInput

SECRET = "A" * 43


def test_a_token_comes_apart_as_it_was_put_together() -> None:
    assert parts_of(token_of("abcdefghij27", SECRET)) == ("abcdefghij27", SECRET)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "so_",
        f"so_abc_{SECRET}",
        f"so_abcdefghij27_{SECRET}A",
        f"so_abcdefghij27_{SECRET}\n",
        f"so_ABCDEFGHIJ27_{SECRET}",
        f"so_abcdefghij2é_{SECRET}",
        f"so_abcdefghij27-{SECRET}",
        "x" * 10_000,
    ],
)
def test_what_is_no_key_is_none(token: str) -> None:
    assert parts_of(token) is None


def test_a_secret_fits_its_own_hash_only() -> None:
    assert fits(SECRET, hash_of(SECRET))
    assert not fits(SECRET, hash_of("B" * 43))
    assert not fits(SECRET, NOBODY)
    assert SECRET not in hash_of(SECRET)


def test_scopes_are_read_and_written_in_one_order() -> None:
    assert write_scopes(parse_scopes(["READ ", "schedule", "read"])) == "schedule,read"
    assert parse_scopes(["admin"]) == {Scope.ADMIN}  # and nothing besides


@pytest.mark.parametrize(("names", "said"), [(["red"], "'red' is unknown"), ([], "needs a scope")])
def test_other_scopes_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse_scopes(names)


@pytest.mark.parametrize("rate", [0, -1, RATE_MAX + 1])
def test_a_rate_has_bounds(rate: int) -> None:
    with pytest.raises(InvalidInput, match="requests a second"):
        check_rate(rate)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 81])
def test_a_name_is_one_line(name: str) -> None:
    with pytest.raises(InvalidInput, match="say who uses the key"):
        check_name(name)


def test_a_burst_may_go_at_once_and_then_one_each_spacing() -> None:
    free_at, now, rate = 0, 50 * SECOND, 10
    early = 0
    for _ in range(BURST_S * rate):
        free_at, early = turn_of(free_at, now, rate)
        assert early == 0
    again, early = turn_of(free_at, now, rate)
    assert (again, early) == (free_at, SECOND // rate)
    assert turn_of(free_at, now + early, rate)[1] == 0


@given(
    st.integers(1, RATE_MAX), st.lists(st.integers(0, SECOND), min_size=1, max_size=80), st.integers(1, 10**6)
)
def test_no_span_holds_more_than_its_rate_and_one_burst(rate: int, gaps: list[int], begin: int) -> None:
    free_at, now, went = 0, begin * SECOND, []
    for gap in gaps:
        now += gap
        free_at, early = turn_of(free_at, now, rate)
        if not early:
            went.append(now)
    for index, first in enumerate(went):
        for count, last in enumerate(went[index:], start=1):
            assert (count - BURST_S * rate) * (SECOND // rate) <= last - first
