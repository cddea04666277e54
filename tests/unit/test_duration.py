"""Durations, rates and elapsed time in words: tables, and round trips for every value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.duration import (
    DURATION_MAX_S,
    Rate,
    RateUnit,
    parse_duration,
    parse_rate,
    say_duration,
    say_number,
    say_when,
    write_duration,
    write_rate,
)
from sendonce.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0.0),
        ("500ms", 0.5),
        ("90s", 90.0),
        ("15m", 900.0),
        ("15min", 900.0),
        ("24h", 86_400.0),
        ("2d", 172_800.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        (" 1d 12h ", 129_600.0),
        ("1h 30 min", 5400.0),
        ("0.29s", 0.29),
        ("36500d", DURATION_MAX_S),
    ],
)
def test_reads_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("90", "has no unit: write 90s"),
        ("1.5", "has no unit: write 1.5s"),
        ("", "is no duration"),
        ("h", "is no duration"),
        ("-5m", "is no duration"),
        ("5 weeks", "is no duration"),
        ("5M", "is no duration"),
        ("1e3s", "is no duration"),
        ("infs", "is no duration"),
        ("1h30", "is no duration"),
        ("٣s", "is no duration"),
        ("9999999999s", "is no duration"),
        ("30m1h", "from large to small, each once"),
        ("1h1h", "from large to small, each once"),
        ("1m1min", "from large to small, each once"),
        ("36500d1ms", "is longer than 100 years"),
        ("1" * 10_000, "is no duration"),
    ],
)
def test_refuses_unclear_durations(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_duration(text, field="expiry")
    assert said in str(error.value)
    assert error.value.field == "expiry"
    assert len(str(error.value)) < 200


@given(st.integers(0, round(DURATION_MAX_S * 1000)))
def test_durations_round_trip_to_the_millisecond(milliseconds: int) -> None:
    assert parse_duration(write_duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (5400.0, "1h30m"), (0.5, "500ms"), (86_400.5, "1d500ms"), (0.29, "290ms"), (60.0, "1m")],
)
def test_writes_durations(seconds: float, text: str) -> None:
    assert write_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("14/s", Rate(14, 1.0, "requests")),
        ("3000/min", Rate(3000, 60.0, "requests")),
        ("3000/m", Rate(3000, 60.0, "requests")),
        ("50000/d", Rate(50_000, 86_400.0, "requests")),
        ("10/60s", Rate(10, 60.0, "requests")),
        ("10/1m30s", Rate(10, 90.0, "requests")),
        ("1/500ms", Rate(1, 0.5, "requests")),
        ("10 parts/s", Rate(10, 1.0, "parts")),
        ("1 part/2s", Rate(1, 2.0, "parts")),
        (" 10 requests / s ", Rate(10, 1.0, "requests")),
    ],
)
def test_reads_rates(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("14", "is no rate"),
        ("/s", "is no rate"),
        ("0.5/s", "is no rate"),
        ("-1/s", "is no rate"),
        ("1,000/s", "is no rate"),
        ("10 segments/s", "is no rate"),
        ("10/s/s", "is no rate"),
        ("0/s", "pause the account instead"),
        ("1000000001/s", "must count from 1"),
        ("10/60", "has no unit: write 60s"),
        ("10/fortnight", "is no duration"),
        ("10/0s", "has an interval of zero"),
        ("10/ ", "is no rate"),
    ],
)
def test_refuses_unclear_rates(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_rate(text, field="accounts.main.rate")
    assert said in str(error.value)
    assert error.value.field == "accounts.main.rate"


units: st.SearchStrategy[RateUnit] = st.sampled_from(("requests", "parts"))


@given(st.integers(1, 10**9), st.integers(1, 10**10), units)
def test_rates_round_trip(count: int, milliseconds: int, unit: RateUnit) -> None:
    rate = Rate(count, milliseconds / 1000, unit)
    assert parse_rate(write_rate(rate)) == rate


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Rate(14, 1.0, "requests"), "14/s"),
        (Rate(3000, 60.0, "requests"), "3000/m"),
        (Rate(10, 1.0, "parts"), "10 parts/s"),
        (Rate(10, 90.0, "requests"), "10/1m30s"),
        (Rate(10, 0.001, "requests"), "10/ms"),
        (Rate(10, 10.0, "requests"), "10/10s"),
    ],
)
def test_writes_rates(rate: Rate, text: str) -> None:
    assert write_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 s"),
        (0.0004, "0 s"),
        (0.35, "350 ms"),
        (0.9999, "999 ms"),
        (1.0, "1 s"),
        (1.8, "1.8 s"),
        (9.99, "9.9 s"),
        (41.0, "41 s"),
        (59.9996, "59 s"),
        (60.0, "1 min"),
        (90.0, "1 min 30 s"),
        (3600.0, "1 h"),
        (3601.0, "1 h"),
        (7500.0, "2 h 5 min"),
        (86_400.0, "1 d"),
        (-7500.0, "2 h 5 min"),
        (40 * 86_400.0 + 7200.0, "40 d 2 h"),
    ],
)
def test_says_durations(seconds: float, said: str) -> None:
    assert say_duration(seconds) == said


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (0, 41_000_000, "41 s ago"),
        (7_500_000_000, 0, "in 2 h 5 min"),
        (5, 5, "now"),
        (0, 999, "now"),
        (0, 1000, "1 ms ago"),
        (0, 1_800_000, "1.8 s ago"),
    ],
)
def test_says_when(then: int, now: int, said: str) -> None:
    assert say_when(then, now) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (1 / 86_400, "0.0000116"),
        (1 / 30, "0.0333"),
        (0.5, "0.5"),
        (20.0, "20"),
        (99.96, "100"),
        (123.4, "123"),
        (1_500.0, "1,500"),
        (-1_234_567.8, "-1,234,568"),
    ],
)
def test_a_number_is_said_whole_and_never_with_an_exponent(value: float, said: str) -> None:
    assert say_number(value) == said
