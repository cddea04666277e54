"""The arithmetic of the promise: until when a key is safe, from when "absent" is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.lifecycle import Facts
from sendonce.core.promise import (
    SECOND,
    Promise,
    ProviderClass,
    facts,
    key_alive,
    key_dies_at,
    settles_at,
)

START = 1_000 * SECOND
KEY = Promise(ProviderClass.KEY, timeout_s=10.0, key_window_s=86_400.0, key_margin_s=60.0)
LOOKUP = Promise(ProviderClass.LOOKUP, timeout_s=10.0, lookup=True, arrival_max_s=60.0, index_lag_s=5.0)
NEITHER = Promise(ProviderClass.NEITHER, timeout_s=10.0)


def test_a_key_is_used_until_a_call_under_it_could_end_in_the_margin() -> None:
    dies = key_dies_at(KEY, START)
    assert dies == START + (86_400 - 60 - 10) * SECOND
    assert key_alive(KEY, START, dies - 1)
    assert not key_alive(KEY, START, dies)


def test_only_class_k_has_a_key() -> None:
    for promise in (LOOKUP, NEITHER):
        assert not key_alive(promise, START, START)


def test_a_window_shorter_than_its_margin_is_never_alive() -> None:
    assert not key_alive(Promise(ProviderClass.KEY, timeout_s=10.0, key_window_s=70.0), START, START)
    assert key_alive(Promise(ProviderClass.KEY, timeout_s=10.0, key_window_s=70.1), START, START)


def test_absent_is_believed_once_no_request_can_arrive_or_be_missing() -> None:
    assert settles_at(LOOKUP, START, 30.0) == START + (30 + 10 + 60 + 5) * SECOND


@given(
    window_s=st.floats(0, 1e6),
    margin_s=st.floats(0, 1e4),
    timeout_s=st.floats(0, 1e3),
    start_us=st.integers(0, 10**12),
)
def test_a_call_that_starts_while_the_key_lives_ends_before_the_margin(
    window_s: float, margin_s: float, timeout_s: float, start_us: int
) -> None:
    promise = Promise(ProviderClass.KEY, timeout_s=timeout_s, key_window_s=window_s, key_margin_s=margin_s)
    if key_alive(promise, START, START + start_us):
        ends_s = start_us / SECOND + timeout_s
        assert ends_s <= window_s - margin_s + 2e-6  # float sums of seconds, whole microseconds


CASES = [
    (None, Facts(expired=False)),
    (KEY, Facts(key_alive=True, settled=False)),
    (LOOKUP, Facts(lookup=True, settled=False)),
    (NEITHER, Facts(settled=False)),
]


@pytest.mark.parametrize(("promise", "expected"), CASES)
def test_facts_right_after_the_first_try(promise: Promise | None, expected: Facts) -> None:
    asked = facts(
        promise, first_try=START, last_try=START, expires_at=500, now=499, steady=START, lease_s=30.0
    )
    assert asked == expected


def test_facts_follow_both_clocks() -> None:
    """The calendar ends a delivery; the steady clock ages keys and settles doubts."""
    dies = key_dies_at(KEY, START)
    late = facts(KEY, first_try=START, last_try=dies, expires_at=500, now=500, steady=dies, lease_s=30.0)
    assert late == Facts(expired=True)
    settled = settles_at(LOOKUP, dies, 30.0)
    for steady in (settled - 1, settled):
        asked = facts(
            LOOKUP, first_try=START, last_try=dies, expires_at=500, now=0, steady=steady, lease_s=30.0
        )
        assert asked.settled is (steady == settled)


def test_a_key_that_was_never_used_is_young() -> None:
    asked = facts(KEY, first_try=0, last_try=0, expires_at=500, now=0, steady=10**15, lease_s=30.0)
    assert asked.key_alive


def test_the_budget_is_passed_on() -> None:
    for promise in (None, KEY):
        asked = facts(
            promise, first_try=0, last_try=0, expires_at=5, now=0, steady=0, lease_s=30.0, budget=False
        )
        assert not asked.budget
