"""Plans and listed occurrences: the cases about recurrence, month ends and clock changes."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.due import HORIZON_AT, SECOND, Shift, due_at_local, parse_days, parse_due
from sendonce.core.errors import InvalidInput
from sendonce.core.plan import (
    OCCURRENCES_MAX,
    Plan,
    Step,
    expand,
    monthly_dates,
    parse_plan,
    parse_step,
    wall_times,
)


def utc(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


# Plans


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("D-3 09:00 sms,email", Step("D-3", -3, 540, ("sms", "email"))),
        ("D+2 10:00 sms", Step("D+2", 2, 600, ("sms",))),
        ("D 00:00 email", Step("D", 0, 0, ("email",))),
        ("D+0 23:59 email", Step("D", 0, 1439, ("email",))),
        ("D-0 23:59 email", Step("D", 0, 1439, ("email",))),
        ("  D-03   09:00  sms ", Step("D-3", -3, 540, ("sms",))),
        ("D-3 17:00 sms label=evening", Step("evening", -3, 1020, ("sms",))),
        ("D-3660 09:00 sms", Step("D-3660", -3660, 540, ("sms",))),
    ],
)
def test_reads_steps(text: str, step: Step) -> None:
    assert parse_step(text) == step
    assert parse_step(text, channels=("email", "sms")) == step


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must be day, time and channels"),
        ("D-3 09:00", "must be day, time and channels"),
        ("D-3 09:00 sms, email x", "must be day, time and channels"),
        ("D-3 09:00 sms, email", "only label=name may follow the channels"),
        ("D-3 09:00 sms label=", "only label=name may follow the channels"),
        ("D-3 09:00 sms label=a:b", "only label=name may follow the channels"),
        ("d-3 09:00 sms", "must start with D, D-3 or D+2"),
        ("D3 09:00 sms", "must start with D, D-3 or D+2"),
        ("D- 09:00 sms", "must start with D, D-3 or D+2"),
        ("D-3.5 09:00 sms", "must start with D, D-3 or D+2"),
        ("D+3661 09:00 sms", "must stay within 3660 days"),
        ("D-3 9:00 sms", "hour:minute from 00:00 to 23:59, not '9:00'"),
        ("D-3 24:00 sms", "hour:minute from 00:00 to 23:59"),
        ("D-3 09:60 sms", "hour:minute from 00:00 to 23:59"),
        ("D-3 09:00 sms,", "must list its channels as sms,email"),
        ("D-3 09:00 SMS", "must list its channels as sms,email"),
        ("D-3 09:00 sms,sms", "names a channel twice"),
        ("D-3 09:00 emial", "unknown channel 'emial': did you mean email?"),
        ("D-3 09:00 pigeon", "unknown channel 'pigeon': known are email, sms"),
    ],
)
def test_refuses_steps_by_name_and_rule(text: str, rule: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_step(text, channels=("sms", "email"), field="plan.loan.steps")
    assert rule in str(error.value)
    assert f"step {text!r}" in str(error.value)
    assert error.value.field == "plan.loan.steps"


def test_labels_are_unique_in_a_plan() -> None:
    with pytest.raises(InvalidInput, match=r"plan 'loan' has two steps 'D-3'.*label=evening"):
        parse_plan("loan", ["D-3 09:00 sms", "D-03 17:00 email"])
    with pytest.raises(InvalidInput, match="has two steps 'D'"):
        parse_plan("loan", ["D 09:00 sms", "D+0 17:00 email"])
    plan = parse_plan("loan", ["D-3 09:00 sms", "D-3 17:00 email label=evening"])
    assert [step.label for step in plan.steps] == ["D-3", "evening"]


@pytest.mark.parametrize(("name", "steps"), [("loan", []), ("", ["D 09:00 sms"]), ("a b", ["D 09:00 sms"])])
def test_a_plan_has_a_name_and_steps(name: str, steps: list[str]) -> None:
    with pytest.raises(InvalidInput, match="plan "):
        parse_plan(name, steps)


LOAN = parse_plan("loan", ["D-3 09:00 sms,email", "D 09:00 email", "D+2 10:00 sms"])


def test_a_plan_expands_over_a_month_end() -> None:
    planned = expand(LOAN, "2027-01-31", "Europe/Berlin")
    assert [(step.label, step.due.at, step.due.local, step.channels) for step in planned] == [
        ("D-3", utc("2027-01-28T08:00"), "2027-01-28T09:00:00", ("sms", "email")),
        ("D", utc("2027-01-31T08:00"), "2027-01-31T09:00:00", ("email",)),
        ("D+2", utc("2027-02-02T09:00"), "2027-02-02T10:00:00", ("sms",)),
    ]


@pytest.mark.parametrize(
    ("day", "locals_"),
    [
        ("2028-02-29", ["2028-02-26T09:00:00", "2028-02-29T09:00:00", "2028-03-02T10:00:00"]),
        ("2027-02-28", ["2027-02-25T09:00:00", "2027-02-28T09:00:00", "2027-03-02T10:00:00"]),
        ("2027-01-01", ["2026-12-29T09:00:00", "2027-01-01T09:00:00", "2027-01-03T10:00:00"]),
    ],
)
def test_plans_count_calendar_days(day: str, locals_: list[str]) -> None:
    assert [step.due.local for step in expand(LOAN, day, "America/New_York")] == locals_


def test_a_plan_keeps_the_wall_time_over_both_clock_changes() -> None:
    spring = expand(LOAN, "2026-03-29", "Europe/Berlin")
    assert [step.due.at for step in spring] == [
        utc("2026-03-26T08:00"),
        utc("2026-03-29T07:00"),
        utc("2026-03-31T08:00"),
    ]
    autumn = expand(LOAN, "2026-10-25", "Europe/Berlin")
    assert [step.due.at for step in autumn] == [
        utc("2026-10-22T07:00"),
        utc("2026-10-25T08:00"),
        utc("2026-10-27T09:00"),
    ]


def test_TIME_01_a_step_in_a_gap_is_shifted_and_reported() -> None:
    nightly = parse_plan("nightly", ["D-1 02:30 sms", "D 02:30 sms", "D+1 02:30 sms"])
    planned = expand(nightly, "2026-03-29", "Europe/Berlin")
    assert [step.due.at for step in planned] == [
        utc("2026-03-28T01:30"),
        utc("2026-03-29T01:30"),
        utc("2026-03-30T00:30"),
    ]
    assert [step.due.shift for step in planned] == [Shift.NONE, Shift.GAP_FORWARD, Shift.NONE]


def test_TIME_07_a_planned_step_keeps_its_wall_time_and_zone() -> None:
    visit = parse_plan("visit", ["D 09:00 sms"])
    due = expand(visit, "2023-04-10", "America/Mexico_City")[0].due
    assert (due.local, due.zone) == ("2023-04-10T09:00:00", "America/Mexico_City")
    assert due.at == utc("2023-04-10T15:00")


@pytest.mark.parametrize(
    ("day", "zone", "said"),
    [
        ("2027-01-31T09:00", "UTC", "is no ISO date"),
        ("31.01.2027", "UTC", "is no ISO date"),
        ("2027-W04-7", "UTC", "is no ISO date"),
        ("", "UTC", "is no ISO date"),
        ("2027-02-29", "UTC", "is not in the calendar"),
        ("1969-12-31", "UTC", "must be from 1970-01-01 to 2199-12-31"),
        ("9999-12-31", "UTC", "must be from 1970-01-01 to 2199-12-31"),
        ("2199-12-31", "UTC", "beyond the horizon"),
        ("1970-01-02", "UTC", "before 1970"),
        ("2027-01-31", "Europe/Berln", "did you mean Europe/Berlin"),
    ],
)
def test_dates_that_a_plan_refuses(day: str, zone: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        expand(LOAN, day, zone)
    assert said in str(error.value)


@given(
    st.dates(date(1990, 1, 1), date(2150, 1, 1)),
    st.integers(-3660, 3660),
    st.integers(0, 1439),
    st.sampled_from(
        ["Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Antarctica/Troll", "Africa/Casablanca"]
    ),
)
def test_a_step_is_due_as_its_wall_time_written_out(day: date, offset: int, minute: int, zone: str) -> None:
    plan = Plan("any", (Step("any", offset, minute, ("sms",)),))
    meant = f"{day + timedelta(days=offset)}T{minute // 60:02d}:{minute % 60:02d}"
    (planned,) = expand(plan, day.isoformat(), zone)
    assert planned.due == parse_due(meant, zone=zone)
    if planned.due.shift is Shift.NONE:
        shown = datetime.fromtimestamp(planned.due.at // SECOND, ZoneInfo(zone))
        assert shown.strftime("%Y-%m-%dT%H:%M") == meant


# Months


@pytest.mark.parametrize(
    ("start", "day", "short_month", "dates"),
    [
        (
            "2027-10-31",
            31,
            "clamp",
            "2027-10-31 2027-11-30 2027-12-31 2028-01-31 2028-02-29 2028-03-31 2028-04-30",
        ),
        ("2027-01-30", 30, "clamp", "2027-01-30 2027-02-28 2027-03-30 2027-04-30"),
        ("2025-06-01", 31, "clamp", "2025-06-30 2025-07-31"),
        ("2025-06-01", 31, "skip", "2025-07-31 2025-08-31 2025-10-31"),
        ("2027-01-30", 30, "skip", "2027-01-30 2027-03-30 2027-04-30"),
        ("2027-01-15", 14, "clamp", "2027-02-14 2027-03-14"),
        ("2027-12-31", 1, "clamp", "2028-01-01 2028-02-01"),
    ],
)
def test_TIME_09_month_ends_neither_skip_nor_drift(
    start: str, day: int, short_month: Literal["clamp", "skip"], dates: str
) -> None:
    expected = dates.split()
    found = monthly_dates(date.fromisoformat(start), day, len(expected), short_month=short_month)
    assert [found_date.isoformat() for found_date in found] == expected


@given(st.dates(date(1970, 1, 1), date(2090, 1, 1)), st.integers(1, 31), st.integers(0, 40), st.booleans())
def test_monthly_dates_are_one_a_month_and_never_drift(
    start: date, day: int, count: int, clamp: bool
) -> None:
    found = monthly_dates(start, day, count, short_month="clamp" if clamp else "skip")
    assert len(found) == count
    assert all(
        earlier < later for earlier, later in zip([start - timedelta(days=1), *found], found, strict=False)
    )
    for each in found:
        last = monthrange(each.year, each.month)[1]
        assert each.day == day if not clamp or day <= last else each.day == last
    if clamp:
        months = [each.year * 12 + each.month for each in found]
        assert months == list(range(months[0], months[0] + count)) if months else count == 0


@pytest.mark.parametrize(("day", "count"), [(0, 1), (32, 1), (1, -1), (1, OCCURRENCES_MAX + 1)])
def test_monthly_dates_out_of_range(day: int, count: int) -> None:
    with pytest.raises(InvalidInput, match=r"must be from \d+ to \d+"):
        monthly_dates(date(2027, 1, 1), day, count)


def test_monthly_dates_stop_at_the_horizon_with_an_error() -> None:
    assert monthly_dates(date(2199, 12, 1), 31, 1) == [date(2199, 12, 31)]
    with pytest.raises(InvalidInput, match="pass the horizon"):
        monthly_dates(date(2199, 12, 1), 31, 2)


# Wall times


def listed(
    minutes: list[int], zone: str, after: str, count: int, days: frozenset[int] | None = None
) -> list[int]:
    return [due.at for due in wall_times(minutes, zone, after=utc(after), count=count, days=days)]


def test_TIME_01_daily_in_the_gap_is_due_once_on_each_date() -> None:
    dues = wall_times([150], "Europe/Berlin", after=utc("2026-03-27T12:00"), count=3)
    assert [due.at for due in dues] == [
        utc("2026-03-28T01:30"),
        utc("2026-03-29T01:30"),
        utc("2026-03-30T00:30"),
    ]
    assert [due.local[:10] for due in dues] == ["2026-03-28", "2026-03-29", "2026-03-30"]


def test_TIME_03_a_short_day_skips_nothing_and_moves_nothing() -> None:
    sun_thu = parse_days("sun-thu")
    assert listed([0], "America/Chicago", "2026-03-06T06:00", 3, sun_thu) == [
        utc("2026-03-08T06:00"),
        utc("2026-03-09T05:00"),
        utc("2026-03-10T05:00"),
    ]
    assert listed([16 * 60 + 4], "America/New_York", "2026-03-08T00:00", 1) == [utc("2026-03-08T20:04")]


ODD_HOURS = [hour * 60 for hour in range(1, 24, 2)]


def test_TIME_05_the_repeated_hour_comes_once_and_time_moves_on() -> None:
    expected = [utc(f"2024-10-27T{hour:02d}:00") for hour in (0, 3, 5, 7, 9)]
    just_before = utc("2024-10-27T00:00") - 1
    dues = wall_times(ODD_HOURS, "Europe/London", after=just_before, count=5)
    assert [due.at for due in dues] == expected
    assert dues[0].shift is Shift.FIRST_OF_TWO

    stepped, after = [], just_before
    for _ in range(5):
        (due,) = wall_times(ODD_HOURS, "Europe/London", after=after, count=1)
        assert due.at > after
        after = due.at
        stepped.append(after)
    assert stepped == expected


def test_a_skipped_day_is_not_sent_twice() -> None:
    # Samoa had no 30 December 2011: its 09:00 falls together with that of the 31st.
    assert listed([540], "Pacific/Apia", "2011-12-29T00:00", 3) == [
        utc("2011-12-29T19:00"),
        utc("2011-12-30T19:00"),
        utc("2011-12-31T19:00"),
    ]


@pytest.mark.parametrize("minutes", [[150, 210], [210, 150]])
def test_of_two_times_that_fall_together_the_one_that_exists_is_named(minutes: list[int]) -> None:
    (skipped,) = wall_times([540], "Pacific/Apia", after=utc("2011-12-29T19:00"), count=1)
    assert (skipped.local, skipped.shift) == ("2011-12-31T09:00:00", Shift.NONE)
    (due,) = wall_times(minutes, "Europe/Berlin", after=utc("2026-03-29T00:00"), count=1)
    assert (due.local, due.shift) == ("2026-03-29T03:30:00", Shift.NONE)


def test_a_time_moved_by_a_gap_keeps_the_order() -> None:
    # 02:30 goes at 03:30, behind 03:00 and together with 03:30.
    assert listed([150, 180, 210], "Europe/Berlin", "2026-03-29T00:00", 3) == [
        utc("2026-03-29T01:00"),
        utc("2026-03-29T01:30"),
        utc("2026-03-30T00:30"),
    ]


@given(
    st.lists(st.integers(0, 1439), min_size=1, max_size=4, unique=True),
    st.sampled_from(
        ["Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Antarctica/Troll", "America/Nuuk"]
    ),
    st.integers(utc("2005-01-01T00:00"), utc("2035-01-01T00:00"))
    | st.integers(utc("2011-12-27T00:00"), utc("2012-01-02T00:00"))
    | st.integers(utc("2024-03-29T00:00"), utc("2024-04-01T00:00")),
    st.none() | st.frozensets(st.integers(0, 6), min_size=1),
)
def test_wall_times_step_by_step_are_those_listed_at_once(
    minutes: list[int], zone: str, after: int, days: frozenset[int] | None
) -> None:
    dues = wall_times(minutes, zone, after=after, count=8, days=days)
    around = datetime.fromtimestamp(after // SECOND, UTC)
    every = (
        due_at_local(datetime(each.year, each.month, each.day, minute // 60, minute % 60), zone).at  # noqa: DTZ001
        for each in (around + timedelta(days=n) for n in range(-4, 75))
        if days is None or each.weekday() in days
        for minute in minutes
    )
    assert [due.at for due in dues] == sorted({at for at in every if at > after})[:8]
    stepped = []
    for _ in range(8):
        (due,) = wall_times(minutes, zone, after=after, count=1, days=days)
        assert due.at > after
        after = due.at
        stepped.append(due)
    assert stepped == dues
    for due in dues:
        meant = datetime.fromisoformat(due.local)
        assert meant.hour * 60 + meant.minute in minutes
        assert days is None or meant.weekday() in days


@pytest.mark.parametrize(
    ("minutes", "days", "after", "count", "said"),
    [
        ([], None, 0, 1, "must be one or more of 0..1439"),
        ([1440], None, 0, 1, "must be one or more of 0..1439"),
        ([0], frozenset(), 0, 1, "must be one or more of 0 .Monday. to 6"),
        ([0], frozenset({7}), 0, 1, "must be one or more of 0 .Monday. to 6"),
        ([0], None, -1, 1, "must be microseconds UTC from 1970"),
        ([0], None, HORIZON_AT, 1, "must be microseconds UTC from 1970"),
        ([0], None, 0, OCCURRENCES_MAX + 1, "must be from 0 to"),
        ([0], None, HORIZON_AT - 1, 1, "beyond the horizon"),
    ],
)
def test_wall_times_refuse(
    minutes: list[int], days: frozenset[int] | None, after: int, count: int, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        wall_times(minutes, "UTC", after=after, count=count, days=days)


def test_no_wall_times_are_no_error() -> None:
    assert wall_times([0], "UTC", after=0, count=0) == []
    assert monthly_dates(date(2027, 1, 1), 1, 0) == []
