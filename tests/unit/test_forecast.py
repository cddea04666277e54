"""The arithmetic of the forecast: lines, rates, lanes, quotas, closed gates, windows and expiries."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sendonce.core.forecast import MINUTE, SECOND, Quota, Supply, Volume, forecast, rate_needed

NOW = 1_000 * MINUTE
HOUR = 60 * MINUTE


def burst(count: int, at: int = NOW, *, window_s: float = 900.0, expiry_s: float = 86_400.0) -> Volume:
    window, until = at + int(window_s * SECOND), at + int(expiry_s * SECOND)
    return Volume(at, at, count, window, window, until, until)


TEN = Supply(rate=10.0, lanes=100)


def test_a_burst_takes_its_count_by_the_rate() -> None:
    course = forecast([burst(6_000)], TEN, now=NOW)
    assert course.drained_at == pytest.approx(NOW + 600 * SECOND, abs=SECOND)
    assert (course.started, course.late, course.expired, course.first_late) == (6_000, 0, 0, None)
    (one,) = course.bursts
    assert (one.begins_at, one.drained_at, one.count) == (NOW, course.drained_at, 6_000)


def test_minute_by_minute_it_adds_up() -> None:
    course = forecast([burst(6_000), burst(600, NOW + 5 * MINUTE)], TEN, now=NOW)
    assert [minute.started for minute in course.minutes] == [600] * 11
    assert [minute.waiting for minute in course.minutes] == [
        5_400, 4_800, 4_200, 3_600, 3_000, 3_000, 2_400, 1_800, 1_200, 600, 0,
    ]  # fmt: skip
    assert sum(minute.due for minute in course.minutes) == 6_600


def test_lanes_limit_where_calls_take_long() -> None:
    slow = replace(TEN, lanes=4, hold_s=2.0)  # two a second, by Little's law
    assert slow.bound == "lanes"
    course = forecast([burst(600)], slow, now=NOW)
    assert course.drained_at == pytest.approx(NOW + 300 * SECOND, abs=SECOND)


def test_repeats_cost_calls() -> None:
    course = forecast([burst(600)], replace(TEN, calls=1.5), now=NOW)
    assert course.drained_at == pytest.approx(NOW + 90 * SECOND, abs=SECOND)


def test_what_comes_slower_than_it_may_leave_leaves_as_it_comes() -> None:
    even = Volume(NOW, NOW + MINUTE, 60, NOW + HOUR, NOW + HOUR, NOW + 2 * HOUR, NOW + 2 * HOUR)
    course = forecast([even], TEN, now=NOW)
    assert course.drained_at == pytest.approx(NOW + MINUTE, abs=SECOND)
    assert course.late == 0


def test_a_closed_gate_holds_up_everything_until_it_opens() -> None:
    course = forecast([burst(600)], replace(TEN, opens_at=NOW + 10 * MINUTE), now=NOW)
    assert course.drained_at == pytest.approx(NOW + 11 * MINUTE, abs=SECOND)


def test_a_gate_that_nobody_opens_drains_nothing_and_all_of_it_expires() -> None:
    course = forecast([burst(600)], replace(TEN, opens_at=None), now=NOW)
    assert (course.drained_at, course.started, course.expired) == (None, 0, 600)
    assert course.first_late == (0, 0)


def test_who_comes_after_the_window_is_late_and_the_first_of_them_is_named() -> None:
    course = forecast([burst(12_000, window_s=900.0)], TEN, now=NOW)
    assert (course.late, course.expired) == (3_000, 0)
    assert course.first_late is not None
    assert course.first_late[1] == pytest.approx(9_000, abs=10)


def test_what_expires_costs_no_call() -> None:
    course = forecast(
        [burst(12_000, window_s=300.0, expiry_s=600.0), burst(100, NOW + 11 * MINUTE)], TEN, now=NOW
    )
    assert course.started == pytest.approx(6_100, abs=1)
    assert course.expired == pytest.approx(6_000, abs=1)
    assert course.late == pytest.approx(3_000, abs=1)
    assert course.drained_at == pytest.approx(NOW + 11 * MINUTE + 10 * SECOND, abs=SECOND)


def test_expiries_that_move_on_let_as_many_leave_as_there_is_time_for() -> None:
    moving = Volume(NOW, NOW + MINUTE, 6_000, NOW, NOW + MINUTE, NOW + MINUTE, NOW + 2 * MINUTE)
    course = forecast([moving], TEN, now=NOW)
    assert course.started == pytest.approx(1_200, rel=0.02)
    assert course.started + course.expired == 6_000


def test_a_quota_lets_through_what_is_left_and_then_what_comes_back() -> None:
    quota = Quota(100.0, HOUR, used=((NOW + 30 * MINUTE, 40.0),))
    course = forecast([burst(130)], replace(TEN, quotas=(quota,)), now=NOW)
    by_minute = {(minute.at - NOW) // MINUTE: minute.started for minute in course.minutes if minute.started}
    assert by_minute == {0: 60, 30: 40, 60: 30}


def test_a_quota_of_nothing_drains_nothing() -> None:
    course = forecast([burst(10)], replace(TEN, quotas=(Quota(0.0, HOUR),)), now=NOW)
    assert (course.drained_at, course.expired) == (None, 10)


def test_the_rate_that_would_suffice_suffices_and_a_little_less_does_not() -> None:
    volumes = [burst(12_000, window_s=900.0), burst(3_000, NOW + 5 * MINUTE, window_s=900.0)]
    rate = rate_needed(volumes, TEN, now=NOW)
    assert rate == pytest.approx(13.33, rel=0.02)
    assert rate is not None
    assert forecast(volumes, replace(TEN, rate=rate), now=NOW).missed == 0
    assert forecast(volumes, replace(TEN, rate=rate * 0.97), now=NOW).missed > 0


def test_a_rate_is_found_for_an_account_that_can_do_nothing() -> None:
    """As where the store is held: looking for it came to no end."""
    rate = rate_needed([burst(900, window_s=900.0)], Supply(0.0, 1), now=NOW)
    assert rate == pytest.approx(1.0, rel=0.02)


def test_no_rate_is_asked_for_where_nothing_is_late_or_nothing_helps() -> None:
    assert rate_needed([burst(100)], TEN, now=NOW) is None
    gone = burst(100, NOW - HOUR, window_s=60.0)
    assert forecast([gone], TEN, now=NOW).late == 100
    assert rate_needed([gone], TEN, now=NOW) is None


def test_where_only_quotas_limit_it_is_still_finite() -> None:
    course = forecast([burst(1_000)], Supply(math.inf, 10), now=NOW)
    assert course.drained_at is not None
    assert course.drained_at >= NOW


def test_a_day_of_minutes_with_a_thousand_each_is_quick_and_adds_up() -> None:
    volumes = [
        Volume(at, at + MINUTE - 1, 1_000, at + HOUR, at + HOUR, at + HOUR, at + HOUR)
        for at in range(NOW, NOW + 24 * HOUR, MINUTE)
    ]
    course = forecast(volumes, TEN, now=NOW)
    assert course.started + course.expired == pytest.approx(1_440_000, abs=2)
    assert course.started == pytest.approx(25 * 3_600 * 10, rel=0.01)
