"""`Retry-After` in every form that HTTP allows, and in the forms that it does not."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.retry_after import WAIT_MAX_S, parse_retry_after

NOW = int(datetime(2026, 10, 21, 7, 26, tzinfo=UTC).timestamp()) * 1_000_000
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("Wed, 21 Oct 2026 07:28:00 GMT", 120.0),
        ("Wednesday, 21-Oct-26 07:28:00 GMT", 120.0),
        ("Wed Oct 21 07:28:00 2026", 120.0),
        ("wed, 21 oct 2026 07:28:00 gmt", 120.0),
        ("  WED, 21 OCT 2026 07:28:00 GMT\t", 120.0),
        ("Sun Nov  1 07:26:00 2026", 11 * 86400.0),
        ("Wed, 21 Oct 2026 07:27:60 GMT", 120.0),  # a leap second is the next minute
        ("Thursday, 21-Oct-27 07:26:00 GMT", 365 * 86400.0),
        ("1", 1.0),
        ("300", 300.0),
        ("86400", 86400.0),
        ("0120", 120.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
    ],
)
def test_a_wait_is_read(value: str, wait_s: float) -> None:
    """RATE-01."""
    assert parse_retry_after(value, NOW) == wait_s


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "0",
        "00",
        "0.0",
        "-5",
        "+5",
        "1e3",
        "inf",
        "nan",
        "soon",
        "5, 10",
        "5 s",
        "١٢٠",  # digits, but not HTTP's
        "²",
        "Wed, 21 Oct 2015 07:28:00 GMT",
        "Wed, 21 Oct 2026 07:26:00 GMT",  # now
        "Wednesday, 21-Oct-77 07:28:00 GMT",  # 1977: more than 50 years ahead is the past
        "Wed, 21 Oct 2026 07:28:00",
        "Wed, 21 Oct 2026 07:28:00 CET",
        "Wed, 21 Oct 2026 24:28:00 GMT",
        "Wed, 21 Oct 2026 07:28:61 GMT",
        "Wed, 31 Feb 2027 07:28:00 GMT",
        "Wed, 21 Foo 2026 07:28:00 GMT",
        "Wed, 21 Oct 0000 07:28:00 GMT",
        "2026-10-21T07:28:00Z",
    ],
)
def test_no_hint(value: str | None) -> None:
    assert parse_retry_after(value, NOW) is None


@pytest.mark.parametrize(
    "value", ["9999999999", "9223372036854775808", "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"]
)
def test_a_huge_wait_is_finite_and_long(value: str) -> None:
    wait_s = parse_retry_after(value, NOW)
    assert wait_s == WAIT_MAX_S
    assert NOW + int(wait_s * 1e6) < 2**63


@pytest.mark.parametrize("off_s", [-36_000, -1, 0, 1, 36_000])
def test_a_date_is_counted_from_the_date_of_the_answer(off_s: int) -> None:
    """Whose clock is hours off waits as long as everybody else."""
    said_at = "Wed, 21 Oct 2026 07:26:00 GMT"
    ours = NOW + off_s * 1_000_000
    assert parse_retry_after("Wed, 21 Oct 2026 07:28:00 GMT", ours, said_at=said_at) == 120.0
    assert parse_retry_after("120", ours, said_at=said_at) == 120.0


@pytest.mark.parametrize("said_at", [None, "", "yesterday"])
def test_without_a_date_of_the_answer_our_clock_has_to_do(said_at: str | None) -> None:
    assert parse_retry_after("Wed, 21 Oct 2026 07:28:00 GMT", NOW, said_at=said_at) == 120.0


@given(st.integers(min_value=1, max_value=40 * 365 * 86400))
def test_the_three_forms_agree(wait_s: int) -> None:
    at = datetime(2026, 10, 21, 7, 26, tzinfo=UTC) + timedelta(seconds=wait_s)
    day, month, clock = DAYS[at.weekday()], MONTHS[at.month - 1], f"{at:%H:%M:%S}"
    forms = [
        f"{day[:3]}, {at.day:02} {month} {at.year} {clock} GMT",
        f"{day}, {at.day:02}-{month}-{at.year % 100:02} {clock} GMT",
        f"{day[:3]} {month} {at.day:2} {clock} {at.year}",
    ]
    expected = min(float(wait_s), WAIT_MAX_S)
    assert [parse_retry_after(form, NOW) for form in forms] == [expected] * 3


@given(st.text(), st.integers(min_value=0, max_value=2**50))
def test_anything_gives_none_or_a_finite_positive_wait(value: str, now: int) -> None:
    wait_s = parse_retry_after(value, now)
    assert wait_s is None or (0 < wait_s <= WAIT_MAX_S and math.isfinite(wait_s))
