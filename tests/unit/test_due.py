"""Due times, zones, quiet hours and the decision for a due row, against independent oracles.

The oracles read wall clocks through `datetime.astimezone` only and search by brute force, so that
they share no arithmetic with the code under test.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.due import (
    HORIZON_AT,
    MINUTE,
    SECOND,
    Defer,
    Due,
    Expire,
    ExpireReason,
    Gap,
    Publish,
    QuietHours,
    Shift,
    Verdict,
    Window,
    allowed_from,
    check_not_past,
    check_quiet,
    check_zone,
    decide_time,
    due_at_local,
    gap_since,
    instant_of,
    parse_days,
    parse_due,
    parse_quiet,
    shift_note,
    window_of,
)
from sendonce.core.errors import InvalidInput

HOUR = 60 * MINUTE
DAY = 24 * HOUR

# Half-hour and two-hour changes, a skipped day, Ramadan, changes at midnight, none at all.
ZONES = [
    "Africa/Casablanca",
    "America/Nuuk",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
    "America/Santiago",
    "America/Sao_Paulo",
]


def utc(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def wall(at: int, zone: str) -> datetime:
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    return instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None)


@cache
def clock_changes(zone: str) -> list[int]:
    """Days of 2005..2035 (start, microseconds UTC) in which the zone's offset changes."""
    where = ZoneInfo(zone)
    days = [datetime(2005, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(31 * 365)]
    offsets = [day.astimezone(where).utcoffset() for day in days]
    return [
        round(day.timestamp()) * SECOND
        for day, before, after in zip(days, offsets, offsets[1:], strict=False)
        if before != after
    ]


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, int]:
    """A zone and an instant, half of the time within two days of a change of its clocks."""
    zone = draw(st.sampled_from(ZONES))
    changes = clock_changes(zone)
    close: bool = draw(st.booleans())
    if changes and close:
        near = draw(st.sampled_from(changes))
        return zone, near + draw(st.integers(-30 * 60, 54 * 60)) * MINUTE
    return zone, utc("2005-01-01T00:00") + draw(st.integers(0, 30 * 365 * DAY // MINUTE)) * MINUTE


# Due times


@pytest.mark.parametrize(
    ("text", "zone", "at", "local", "kept_zone"),
    [
        ("2026-12-01T09:00+01:00", None, "2026-12-01T08:00", "2026-12-01T09:00:00", ""),
        ("2026-12-01T09:00:00Z", None, "2026-12-01T09:00", "2026-12-01T09:00:00", ""),
        ("2026-12-01 09:00:00+01", None, "2026-12-01T08:00", "2026-12-01T09:00:00", ""),
        ("2026-12-01t09:00:00.000000000z", None, "2026-12-01T09:00", "2026-12-01T09:00:00", ""),
        ("2026-12-01T09:00-0330", None, "2026-12-01T12:30", "2026-12-01T09:00:00", ""),
        (" 2026-12-01T09:00 ", "Europe/Berlin", "2026-12-01T08:00", "2026-12-01T09:00:00", "Europe/Berlin"),
        ("2026-07-01T09:00", "Europe/Berlin", "2026-07-01T07:00", "2026-07-01T09:00:00", "Europe/Berlin"),
        ("2026-07-01T09:00Z", "Asia/Kolkata", "2026-07-01T09:00", "2026-07-01T14:30:00", "Asia/Kolkata"),
        (
            "2026-07-01T09:00+01:00",
            "europe/berlin",
            "2026-07-01T08:00",
            "2026-07-01T10:00:00",
            "Europe/Berlin",
        ),
    ],
)
def test_reads_offsets_and_local_times(
    text: str, zone: str | None, at: str, local: str, kept_zone: str
) -> None:
    assert parse_due(text, zone=zone) == Due(utc(at), local, kept_zone, Shift.NONE)


def test_keeps_microseconds_and_drops_what_is_below() -> None:
    due = parse_due("2026-12-01T09:00:00.123456789Z", zone=None)
    assert due.at == utc("2026-12-01T09:00") + 123_456
    assert due.local == "2026-12-01T09:00:00.123456"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-12-01T09:00", "has no offset and no zone: write 2026-12-01T09:00+01:00"),
        ("2026-12-01", "is a date without a time: write 2026-12-01T09:00"),
        ("12/01/2026 09:00", "is no ISO 8601 date and time"),
        ("1796112000", "is no ISO 8601 date and time"),
        ("2026-W49-2T09:00Z", "is no ISO 8601 date and time"),
        ("20261201T0900Z", "is no ISO 8601 date and time"),
        ("2026-12-01T24:00Z", "is no ISO 8601 date and time"),
        ("2026-12-01T23:59:60Z", "is no ISO 8601 date and time"),
        ("2026-12-01T9:00Z", "is no ISO 8601 date and time"),
        ("٢٠٢٦-12-01T09:00Z", "is no ISO 8601 date and time"),
        ("", "is no ISO 8601 date and time"),
        ("2026-12-01T09:00Z\x00", "is no ISO 8601 date and time"),
        ("\ud800", "is no ISO 8601 date and time"),
        ("2026-02-29T09:00Z", "is not in the calendar"),
        ("2026-13-01T09:00Z", "is not in the calendar"),
        ("0000-01-01T09:00Z", "is not in the calendar"),
        ("2026-12-01T09:00+14:01", "no clock on earth"),
        ("2026-12-01T09:00-12:01", "no clock on earth"),
        ("0001-01-01T00:00+14:00", "is before 1970"),
        ("1970-01-01T00:00+01:00", "is before 1970 in UTC"),
    ],
)
def test_refuses_what_is_ambiguous_or_impossible(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_due(text, zone=None, field="send_at")
    assert said in str(error.value)
    assert error.value.field == "send_at"
    str(error.value).encode()  # a lone surrogate in the value must not break the report


nearly_times = st.from_regex(
    r"[012][0-9]{3}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-6][0-9](:[0-6][0-9])?(Z|[+-][01][0-9]:[0-9]{2})?",
    fullmatch=True,
)


@given(st.text(max_size=40) | nearly_times, st.sampled_from([None, "Europe/Berlin"]))
def test_any_text_is_read_within_the_horizon_or_refused(text: str, zone: str | None) -> None:
    try:
        due = parse_due(text, zone=zone)
    except InvalidInput as refused:
        message = str(refused)
        assert len(message) < 300
    else:
        assert 0 <= due.at < HORIZON_AT


@pytest.mark.parametrize(
    ("text", "zone", "at", "shift"),
    [
        ("2026-03-29T01:59:59", "Europe/Berlin", "2026-03-29T00:59:59", Shift.NONE),
        ("2026-03-29T02:00", "Europe/Berlin", "2026-03-29T01:00", Shift.GAP_FORWARD),
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:30", Shift.GAP_FORWARD),
        ("2026-03-29T03:00", "Europe/Berlin", "2026-03-29T01:00", Shift.NONE),
        ("2026-10-25T01:59", "Europe/Berlin", "2026-10-24T23:59", Shift.NONE),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30", Shift.FIRST_OF_TWO),
        ("2026-10-25T03:00", "Europe/Berlin", "2026-10-25T02:00", Shift.NONE),
        ("2026-10-04T02:15", "Australia/Lord_Howe", "2026-10-03T15:45", Shift.GAP_FORWARD),  # 02:45 there
        ("2026-04-05T01:45", "Australia/Lord_Howe", "2026-04-04T14:45", Shift.FIRST_OF_TWO),
        ("2026-03-29T02:30", "Antarctica/Troll", "2026-03-29T02:30", Shift.GAP_FORWARD),  # 04:30 there
        ("2026-10-25T01:30", "Antarctica/Troll", "2026-10-24T23:30", Shift.FIRST_OF_TWO),
        ("2011-12-30T09:00", "Pacific/Apia", "2011-12-30T19:00", Shift.GAP_FORWARD),  # the 31st, 09:00 there
        ("2024-03-10T02:30", "Africa/Casablanca", "2024-03-10T01:30", Shift.FIRST_OF_TWO),  # Ramadan begins
        ("2024-04-14T02:30", "Africa/Casablanca", "2024-04-14T02:30", Shift.GAP_FORWARD),  # Ramadan is over
    ],
)
def test_gap_goes_forward_and_overlap_takes_the_first(text: str, zone: str, at: str, shift: Shift) -> None:
    assert parse_due(text, zone=zone) == Due(utc(at), datetime.fromisoformat(text).isoformat(), zone, shift)


@given(moments())
def test_a_wall_time_gives_the_first_instant_that_shows_it(moment: tuple[str, int]) -> None:
    zone, near = moment
    meant = (datetime(1970, 1, 1) + timedelta(microseconds=near)).replace(second=0, microsecond=0)  # noqa: DTZ001
    due = due_at_local(meant, zone)
    offsets = {wall(near + hours * HOUR, zone) - wall(near + hours * HOUR, "UTC") for hours in range(-36, 37)}
    possible = {near - round(offset.total_seconds()) * SECOND for offset in offsets}
    showing = sorted(at for at in possible if wall(at, zone) == meant)
    if showing:
        assert due.at == showing[0]
        assert due.shift is (Shift.FIRST_OF_TWO if len(showing) > 1 else Shift.NONE)
    else:
        assert due.shift is Shift.GAP_FORWARD
        jump = max(offsets) - min(offsets)
        assert wall(due.at, zone) == meant + jump


@given(moments(), st.booleans())
def test_kept_instants_come_back_from_wall_time_and_zone(moment: tuple[str, int], with_offset: bool) -> None:
    zone, at = moment
    text = wall(at, "UTC").isoformat() + "+00:00" if with_offset else wall(at, zone).isoformat()
    due = parse_due(text, zone=zone)
    assert instant_of(due.local, due.zone, kept=due.at) == due.at
    if with_offset:
        assert due.at == at
    else:
        assert instant_of(due.local, due.zone) == due.at
        assert parse_due(due.local, zone=due.zone) == due


def test_the_second_of_a_pair_chosen_by_an_offset_stays_the_second() -> None:
    due = parse_due("2026-10-25T02:30+01:00", zone="Europe/Berlin")
    assert due == Due(utc("2026-10-25T01:30"), "2026-10-25T02:30:00", "Europe/Berlin", Shift.NONE)
    assert instant_of(due.local, due.zone, kept=due.at) == due.at
    assert instant_of(due.local, due.zone) == utc("2026-10-25T00:30")


def test_an_offset_without_zone_has_no_rules_that_could_change() -> None:
    due = parse_due("2026-10-25T02:30+01:00", zone=None)
    assert instant_of(due.local, due.zone, kept=due.at) == due.at
    with pytest.raises(InvalidInput, match="has no zone"):
        instant_of(due.local, due.zone)


def test_shifts_are_told_in_words() -> None:
    assert shift_note(parse_due("2026-03-28T02:30", zone="Europe/Berlin")) == ""
    assert "does not exist" in (gap := shift_note(parse_due("2026-03-29T02:30", zone="Europe/Berlin")))
    assert gap.endswith("due at 2026-03-29T03:30:00")
    assert "happens twice" in shift_note(parse_due("2026-10-25T02:30", zone="Europe/Berlin"))


def test_TIME_07_a_changed_rule_moves_the_instant_and_keeps_the_wall_time() -> None:
    stored = utc("2023-04-10T14:00")  # by the rules from before summer time was abolished
    assert instant_of("2023-04-10T09:00:00", "America/Mexico_City", kept=stored) == utc("2023-04-10T15:00")
    assert parse_due("2023-04-10T09:00", zone="America/Mexico_City").at == utc("2023-04-10T15:00")


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-01-01T00:00", "2026-04-01T00:00:00Z"),  # 7,776,000,000 ms: beyond a 32-bit timer
        ("2026-01-01T00:00", "2026-01-01T15:08:44Z"),  # 54,524 s: beyond a queue's 900 s
        ("2026-01-01T00:00", "2100-06-01T09:00:00Z"),
        ("2026-01-01T00:00", "2199-12-31T23:59:59.999999Z"),
    ],
)
def test_TIME_11_a_far_time_is_never_early_and_never_cut(now: str, due: str) -> None:
    at = parse_due(due, zone=None).at
    assert wall(at, "UTC").isoformat() + "Z" == due

    def decided(moment: int) -> Verdict:
        return decide_time(now=moment, next_at=at, expires_at=at + DAY, quiet=(), zone="", on_quiet="defer")

    assert decided(utc(now)) == Defer(at)
    assert decided(at - 1) == Defer(at)
    assert decided(at) == Publish(0.0)


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("9999-12-31T23:59:59Z", None),
        ("9999-12-31T23:59:59-12:00", None),
        ("9999-12-31T23:59:59", "America/New_York"),
        ("2200-01-01T00:00:00Z", None),
        ("2199-12-31T23:59:59-05:00", None),
        ("2199-12-31T23:59:59", "America/New_York"),
    ],
)
def test_TIME_11_beyond_the_horizon_is_refused_by_name(text: str, zone: str | None) -> None:
    with pytest.raises(InvalidInput, match="beyond the horizon, 2199-12-31 UTC") as error:
        parse_due(text, zone=zone)
    assert error.value.code == "beyond_horizon"


def test_past_times_are_refused_beyond_the_allowed_lateness() -> None:
    due = parse_due("2026-05-04T09:00Z", zone=None)
    check_not_past(due, due.at - DAY, 0.0)
    check_not_past(due, due.at, 0.0)
    check_not_past(due, due.at + 900 * SECOND, 900.0)
    with pytest.raises(InvalidInput, match="was due 15 min ago, and at most 5 min is accepted") as error:
        check_not_past(due, due.at + 900 * SECOND, 300.0)
    assert error.value.code == "past_due"
    with pytest.raises(InvalidInput):
        check_not_past(due, due.at + 1, 0.0)


# Zones


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        (" america/new_york ", "America/New_York"),
        ("utc", "UTC"),
        ("Asia/Calcutta", "Asia/Calcutta"),
    ],
)
def test_zone_names_are_spelled_as_in_the_database(name: str, canonical: str) -> None:
    assert check_zone(name) == canonical


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("new york", "did you mean America/New_York?"),
        ("+02:00", "an offset goes into the time itself"),
        ("UTC+2", "an offset goes into the time itself"),
        ("PST", "write a name such as"),
        ("", "the zone is empty"),
        ("localtime", "is no zone"),
        ("../../../etc/passwd", "is no zone"),
        ("Europe/Berlin\x00", "is no zone"),
        ("x" * 100_000, "is no zone"),
    ],
)
def test_unknown_zones_are_refused_with_the_nearest_names(name: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        check_zone(name, field="tenant.timezone")
    assert said in str(error.value)
    assert len(str(error.value)) < 300
    assert (error.value.field, error.value.code) == ("tenant.timezone", "unknown_zone")
    with pytest.raises(InvalidInput) as same:
        parse_due("2026-12-01T09:00Z", zone=name or " ")
    assert same.value.field == "timezone"


# Quiet hours

NIGHT = parse_quiet("21:00-08:00")


@pytest.mark.parametrize(
    ("text", "quiet"),
    [
        ("21:00-08:00", QuietHours(1260, 480)),
        ("12:30-14:00", QuietHours(750, 840)),
        ("21:00-00:00", QuietHours(1260, 0)),
        ("21:00-24:00", QuietHours(1260, 1440)),
        ("21:00-08:00 sat,sun", QuietHours(1260, 480, frozenset({5, 6}))),
        (" 00:00-24:00  Sat-Mon ", QuietHours(0, 1440, frozenset({5, 6, 0}))),
        ("20:00-07:00 mon-fri, sun", QuietHours(1200, 420, frozenset({0, 1, 2, 3, 4, 6}))),
    ],
)
def test_reads_quiet_hours(text: str, quiet: QuietHours) -> None:
    assert parse_quiet(text) == quiet


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("08:00-08:00", "must not be empty"),
        ("24:00-08:00", "must not be empty or start at 24:00"),
        ("00:00-24:00", "leaves no minute of the week open"),
        ("00:00-24:00 mon-sun", "leaves no minute of the week open"),
        ("21-8", "are no quiet hours"),
        ("9pm-8am", "are no quiet hours"),
        ("25:00-08:00", "are no quiet hours"),
        ("21:00-08:00 weekend", "names no days"),
        ("21:00-08:00 sat,", "names no days"),
    ],
)
def test_refuses_quiet_hours_that_say_nothing_or_close_everything(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_quiet(text, field="category.marketing.quiet")
    assert said in str(error.value)
    assert error.value.field == "category.marketing.quiet"


def test_quiet_hours_that_only_together_close_the_week_are_refused() -> None:
    both = [parse_quiet("08:00-21:00"), NIGHT]
    with pytest.raises(InvalidInput, match="leaves no minute of the week open"):
        check_quiet(both)
    with pytest.raises(InvalidInput, match="leaves no minute of the week open"):
        allowed_from(both, "Europe/Berlin", utc("2026-05-04T12:00"))
    check_quiet([parse_quiet("08:01-21:00"), NIGHT])


@pytest.mark.parametrize(
    ("quiet", "zone", "at", "allowed"),
    [
        (["21:00-08:00"], "Europe/Berlin", "2026-05-04T10:00:00", "2026-05-04T10:00:00"),
        (["21:00-08:00"], "Europe/Berlin", "2026-05-04T18:59:59", "2026-05-04T18:59:59"),
        (["21:00-08:00"], "Europe/Berlin", "2026-05-04T19:00:00", "2026-05-05T06:00:00"),
        (["21:00-08:00"], "Europe/Berlin", "2026-05-05T06:00:00", "2026-05-05T06:00:00"),
        # Nights with a clock change end at 08:00 on the wall, an hour earlier or later in UTC.
        (["21:00-08:00"], "Europe/Berlin", "2026-03-28T21:00:00", "2026-03-29T06:00:00"),
        (["21:00-08:00"], "Europe/Berlin", "2026-10-24T21:00:00", "2026-10-25T07:00:00"),
        # The end lies in the gap: open as soon as the clock shows 03:00.
        (["21:00-02:30"], "Europe/Berlin", "2026-03-29T00:10:00", "2026-03-29T01:00:00"),
        # The end lies in the repeated hour: open at the first 02:30, quiet again from the second 02:00.
        (["21:00-02:30"], "Europe/Berlin", "2026-10-25T00:10:00", "2026-10-25T00:30:00"),
        (["21:00-02:30"], "Europe/Berlin", "2026-10-25T01:05:00", "2026-10-25T01:30:00"),
        # The gap jumps into quiet hours, and over all of them.
        (["03:00-04:00"], "Europe/Berlin", "2026-03-29T00:59:59", "2026-03-29T00:59:59"),
        (["03:00-04:00"], "Europe/Berlin", "2026-03-29T01:00:00", "2026-03-29T02:00:00"),
        (["02:00-03:00"], "Europe/Berlin", "2026-03-29T01:00:00", "2026-03-29T01:00:00"),
        # A span belongs to the day on which it starts.
        (["21:00-08:00 sat,sun"], "UTC", "2026-05-04T05:00:00", "2026-05-04T08:00:00"),  # Monday morning
        (["21:00-08:00 sat,sun"], "UTC", "2026-05-02T05:00:00", "2026-05-02T05:00:00"),  # Saturday morning
        (["00:00-24:00 sat-sun", "21:00-08:00"], "UTC", "2026-05-01T22:00:00", "2026-05-04T08:00:00"),
        (["21:00-08:00"], "Australia/Lord_Howe", "2026-10-03T12:00:00", "2026-10-03T21:00:00"),
        (["00:00-24:00 fri"], "Pacific/Apia", "2011-12-30T09:59:00", "2011-12-30T09:59:00"),  # Thursday 23:59
        (["21:00-08:00"], "Pacific/Apia", "2011-12-30T09:59:00", "2011-12-30T18:00:00"),  # Saturday 08:00
    ],
)
def test_first_allowed_instant(quiet: list[str], zone: str, at: str, allowed: str) -> None:
    assert allowed_from([parse_quiet(text) for text in quiet], zone, utc(at)) == utc(allowed)


days = st.none() | st.frozensets(st.integers(0, 6), min_size=1)
quiet_hours = st.builds(QuietHours, st.integers(0, 1439), st.integers(0, 1440), days).filter(
    lambda quiet: (
        quiet.start_min != quiet.end_min
        and (
            (quiet.start_min, quiet.end_min) != (0, 1440) or (quiet.days is not None and len(quiet.days) < 7)
        )
    )
)


def quiet_minutes(quiet: list[QuietHours]) -> set[tuple[int, int]]:
    """(weekday, minute of day) of every quiet minute, by walking each span a minute at a time."""
    found = set()
    for hours in quiet:
        for start_day in range(7):
            if hours.days is not None and start_day not in hours.days:
                continue
            day, minute = start_day, hours.start_min
            while True:
                found.add((day, minute))
                minute += 1
                if minute == hours.end_min:
                    break
                if minute == 1440:
                    day, minute = (day + 1) % 7, 0
                    if hours.end_min == 0:
                        break
    return found


@given(moments(), st.lists(quiet_hours, min_size=1, max_size=3), st.integers(0, MINUTE - 1))
def test_allowed_instant_is_open_and_nothing_before_it_is(
    moment: tuple[str, int], quiet: list[QuietHours], into: int
) -> None:
    zone, at = moment[0], moment[1] + into
    closed = quiet_minutes(quiet)
    if len(closed) == 7 * 1440:
        return

    def is_quiet(instant: int) -> bool:
        shown = wall(instant, zone)
        return (shown.weekday(), shown.hour * 60 + shown.minute) in closed

    allowed = allowed_from(quiet, zone, at)
    assert allowed >= at
    assert not is_quiet(allowed)
    assert allowed_from(quiet, zone, allowed) == allowed
    if allowed > at:
        assert is_quiet(at)
        assert is_quiet(allowed - 1)
        assert all(is_quiet(minute) for minute in range(at - at % MINUTE + MINUTE, allowed, MINUTE))


@given(quiet_hours)
def test_quiet_hours_round_trip(quiet: QuietHours) -> None:
    assert parse_quiet(str(quiet)) == quiet


def test_an_open_hour_that_a_gap_jumps_over_is_found_a_week_later() -> None:
    only_sunday_2_to_3 = [
        parse_quiet("00:00-24:00 mon-sat"),
        parse_quiet("00:00-02:00 sun"),
        parse_quiet("03:00-24:00 sun"),
    ]
    before_gap = utc("2026-03-29T00:00")
    assert allowed_from(only_sunday_2_to_3, "Europe/Berlin", before_gap) == utc("2026-04-05T00:00")
    just_closed = utc("2026-03-22T02:00")  # the longest wait there is
    assert allowed_from(only_sunday_2_to_3, "Europe/Berlin", just_closed) == utc("2026-04-05T00:00")


def test_days() -> None:
    assert parse_days("sun-thu") == {6, 0, 1, 2, 3}
    assert parse_days("Sat, sun") == {5, 6}
    assert parse_days("wed-wed") == {2}
    for bad in ("", "someday", "mon-", "-mon", "mon-tue-wed", "1"):
        with pytest.raises(InvalidInput, match="names no days"):
            parse_days(bad)


# The decision for a due row

DUE = utc("2026-05-04T09:00")


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (DUE + 1_800_000, Publish(1.8)),
        (DUE + 10 * MINUTE, Publish(600.0)),
        (DUE + 2 * DAY, Expire(ExpireReason.PAST_EXPIRY)),
    ],
)
def test_TIME_13_lateness_is_recorded_and_only_the_expiry_ends(now: int, verdict: Verdict) -> None:
    decided = decide_time(now=now, next_at=DUE, expires_at=DUE + DAY, quiet=(), zone="UTC", on_quiet="defer")
    assert decided == verdict


def test_TIME_13_a_longer_validity_sends_two_days_late() -> None:
    decided = decide_time(
        now=DUE + 2 * DAY, next_at=DUE, expires_at=DUE + 3 * DAY, quiet=(), zone="UTC", on_quiet="defer"
    )
    assert decided == Publish(172_800.0)


@pytest.mark.parametrize(
    ("now", "next_at", "expires_at", "on_quiet", "verdict"),
    [
        # 21:30Z is quiet, 08:00Z next day is the first open time.
        ("21:30", "21:30", "next 09:00", "defer", Defer(utc("2026-05-05T08:00"))),
        ("21:30", "21:30", "next 08:01", "defer", Defer(utc("2026-05-05T08:00"))),
        ("21:30", "21:30", "next 08:00", "defer", Expire(ExpireReason.QUIET_PAST_EXPIRY)),
        ("21:30", "21:30", "next 09:00", "expire", Expire(ExpireReason.QUIET_HOURS)),
        ("20:59", "20:30", "next 09:00", "expire", Publish(29 * 60.0)),
        ("21:30", "21:30", "21:30", "defer", Expire(ExpireReason.PAST_EXPIRY)),
        ("21:30", "21:30", "21:30", "expire", Expire(ExpireReason.PAST_EXPIRY)),
        ("10:00", "10:01", "11:00", "defer", Defer(utc("2026-05-04T10:01"))),
        ("10:00", "11:00", "11:00", "defer", Expire(ExpireReason.DUE_PAST_EXPIRY)),
    ],
)
def test_verdicts(now: str, next_at: str, expires_at: str, on_quiet: str, verdict: Verdict) -> None:
    def on(clock: str) -> int:
        return utc(f"2026-05-05T{clock[5:]}" if clock.startswith("next ") else f"2026-05-04T{clock}")

    assert on_quiet in ("defer", "expire")
    decided = decide_time(
        now=on(now),
        next_at=on(next_at),
        expires_at=on(expires_at),
        quiet=[NIGHT],
        zone="UTC",
        on_quiet="defer" if on_quiet == "defer" else "expire",
    )
    assert decided == verdict


@given(moments(), st.integers(-DAY, DAY), st.integers(-DAY, 3 * DAY), st.booleans())
def test_verdicts_hold_what_they_promise(
    moment: tuple[str, int], since_due: int, validity: int, defers: bool
) -> None:
    zone, now = moment
    next_at, expires_at = now - since_due, now - since_due + validity
    match decide_time(
        now=now,
        next_at=next_at,
        expires_at=expires_at,
        quiet=[NIGHT],
        zone=zone,
        on_quiet="defer" if defers else "expire",
    ):
        case Publish(late_s):
            assert next_at <= now < expires_at
            assert 8 <= wall(now, zone).hour < 21
            assert late_s == (now - next_at) / SECOND
        case Defer(until):
            assert now < until < expires_at
            assert until == next_at or 8 <= wall(until, zone).hour < 21
        case Expire(reason):
            assert now >= expires_at or reason is not ExpireReason.PAST_EXPIRY
            assert not defers or reason is not ExpireReason.QUIET_HOURS


def test_a_deferral_repeated_at_its_time_publishes() -> None:
    night = utc("2026-10-24T22:00")
    first = decide_time(
        now=night,
        next_at=night,
        expires_at=night + DAY,
        quiet=[NIGHT],
        zone="Europe/Berlin",
        on_quiet="defer",
    )
    assert isinstance(first, Defer)
    again = decide_time(
        now=first.until,
        next_at=first.until,
        expires_at=night + DAY,
        quiet=[NIGHT],
        zone="Europe/Berlin",
        on_quiet="defer",
    )
    assert again == Publish(0.0)


# What a pass reports


@pytest.mark.parametrize(
    ("mark", "now", "oldest_pending", "window"),
    [
        (None, 100, None, Window(100, 100)),
        (None, 100, 70, Window(70, 70)),
        (40, 100, None, Window(40, 100)),
        (40, 100, 70, Window(40, 70)),  # a full page: the rest is due from 70 on
        (40, 100, 150, Window(40, 100)),  # pending, but not due yet
        (40, 100, 10, Window(40, 40)),  # a late arrival: the mark never moves back
        (40, 30, None, Window(40, 40)),  # nor does a clock that was set back move it
    ],
)
def test_window_of(mark: int | None, now: int, oldest_pending: int | None, window: Window) -> None:
    assert window_of(mark, now, oldest_pending=oldest_pending) == window


def test_gaps_between_passes() -> None:
    assert gap_since(None, DUE, interval_s=60.0) is None
    assert gap_since(DUE, DUE + 60 * SECOND, interval_s=60.0) is None
    assert gap_since(DUE, DUE + 120 * SECOND, interval_s=60.0) is None
    assert gap_since(DUE, DUE + 120 * SECOND + 1, interval_s=60.0) == Gap(DUE, DUE + 120 * SECOND + 1)
    assert gap_since(DUE, DUE - 1, interval_s=60.0) is None


def test_the_horizon_is_the_documented_date() -> None:
    assert wall(HORIZON_AT - 1, "UTC").date() == date(2199, 12, 31)
    assert wall(HORIZON_AT, "UTC").date() == date(2200, 1, 1)
