"""When to try again: waits that grow, spread, and never become a tight loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.retry import WAIT_MAX_S, RetryPolicy, backoff_s, wait_s

POLICY = RetryPolicy(base_s=2.0, cap_s=900.0, floor_s=1.0)
chances = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("failures", "longest_s"), [(1, 2.0), (2, 4.0), (5, 32.0), (9, 512.0), (10, 900.0), (10_000, 900.0)]
)
def test_the_span_doubles_up_to_its_cap(failures: int, longest_s: float) -> None:
    assert backoff_s(POLICY, failures, 0.999_999) == pytest.approx(longest_s, rel=1e-3)
    assert backoff_s(POLICY, failures, 0.5) == max(1.0, longest_s / 2)
    assert backoff_s(POLICY, failures, 0.0) == 1.0


@given(failures=st.integers(1, 10**9), chance=chances)
def test_a_wait_is_never_below_the_floor_or_above_the_cap(failures: int, chance: float) -> None:
    assert 1.0 <= backoff_s(POLICY, failures, chance) <= 900.0


@given(failures=st.integers(1, 100), chance=chances)
def test_without_a_time_from_the_provider_our_own_backoff_applies(failures: int, chance: float) -> None:
    assert wait_s(POLICY, failures, None, chance) == backoff_s(POLICY, failures, chance)


@given(asked=st.floats(0, 1e12), failures=st.integers(1, 100), chance=chances)
def test_a_time_from_the_provider_is_honoured_up_to_a_day(asked: float, failures: int, chance: float) -> None:
    """RATE-05: never early, never for ever, and not all in the same moment."""
    wait = wait_s(POLICY, failures, asked, chance)
    least = min(asked, WAIT_MAX_S)
    assert wait >= max(least, 1.0)
    assert wait <= max(least + 5.0, 1.0)


def test_those_who_wait_together_come_back_apart() -> None:
    waits = {wait_s(POLICY, 1, 60.0, chance / 10) for chance in range(10)}
    assert len(waits) == 10
    assert max(waits) - min(waits) > 4.0
