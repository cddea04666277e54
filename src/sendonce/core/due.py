"""When a delivery may go out: due times, zones, quiet hours, expiry. Pure: `now` is an argument.

A due time is kept three ways, because each answers a question that the others cannot:

    at      the instant, microseconds UTC      what the scheduler compares with
    local   the wall time as it was meant      what the customer was promised
    zone    the zone of that wall time         what brings `at` back when a country changes its rules

A wall time is turned into an instant by one rule, everywhere (RFC 5545, section 3.3.5, has the same):

    it exists once     that instant
    it never exists    the clocks jumped over it: later by the size of the jump (02:30 goes at 03:30)
    it exists twice    the clocks went back over it: the first of the two

so no date loses its reminder and none gets two. `Shift` reports the last two cases.

Quiet hours are read from the customer's wall clock: an instant is quiet when that clock shows a
quiet time, in the repeated hour of autumn both times.

Eligibility is state, not time arithmetic; the mark and the gaps at the end of this module only report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import cache, lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from sendonce.core.duration import say_duration
from sendonce.core.errors import InvalidInput
from sendonce.core.value import value

SECOND = 1_000_000
MINUTE = 60 * SECOND
DAY_MIN = 24 * 60

HORIZON = "2199-12-31"
"""The last UTC date on which something can be due. Later is refused, never cut."""

HORIZON_AT = 7_258_118_400 * SECOND
"""The first instant beyond the horizon: 2200-01-01T00:00:00Z."""


# Due times


class Shift(StrEnum):
    """What the zone's clock changes did to a wall time."""

    NONE = "none"
    GAP_FORWARD = "gap_forward"
    FIRST_OF_TWO = "first_of_two"


@value
class Due:
    """One due time.

    at     microseconds UTC
    local  ISO 8601 wall time without offset, as meant: in a gap still the time that never was
    zone   IANA name, or "" when only an offset was given: then `at` is fixed for good
    shift  how `at` was found from `local`
    """

    at: int
    local: str
    zone: str
    shift: Shift


def parse_due(text: str, *, zone: str | None, field: str = "due") -> Due:
    """Read an ISO 8601 date and time: with an offset or Z, or as local time of `zone`.

    An offset names the instant; where `zone` is given too, `local` is that instant on the zone's
    wall clock. Digits below the microsecond are dropped.
    Raises `InvalidInput` for anything ambiguous, impossible, before 1970 or beyond `HORIZON`.
    """
    cleaned = text.strip()
    form = _DATE_TIME.fullmatch(cleaned)
    if form is None:
        raise InvalidInput(_no_date_time(text, cleaned), field=field)
    offset = form[1]
    try:
        written = datetime.fromisoformat(cleaned.upper() if offset == "z" else cleaned)
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not in the calendar: {error}", field=field) from None
    if offset is None:
        if not zone:
            raise InvalidInput(
                f"{text!r:.80} has no offset and no zone: write {cleaned}+01:00 with the right offset, "
                "or give the column timezone",
                field=field,
            )
        return due_at_local(written, zone, field=field)
    return _due_at_offset(text, written, zone, field)


def due_at_local(local: datetime, zone: str, *, field: str = "due") -> Due:
    """The due time for a naive `local` on the wall clock of `zone`. Raises `InvalidInput` as `parse_due`."""
    where = _zone(zone)
    wall = local.isoformat()
    _check_year(local.year, wall, field)
    at, shift = _resolve(local, where)
    _check_reach(at, wall, field)
    return Due(at, wall, where.key, shift)


def instant_of(local: str, zone: str, *, kept: int | None = None) -> int:
    """The instant (microseconds UTC) of a stored wall time, by today's zone data.

    `kept` is the instant stored before. It stays where it still reads as `local`: so the second of
    an ambiguous pair, once chosen by an offset, does not jump to the first. Without a zone there are
    no rules that could change, and `kept` is the answer.
    Raises `InvalidInput` for an unknown zone, or for no zone and no `kept`.
    """
    if not zone:
        if kept is None:
            raise InvalidInput(f"{local!r:.80} has no zone: give one, or the instant kept for it")
        return kept
    where = _zone(zone)
    wall = datetime.fromisoformat(local)
    if kept is not None and _wall_at(kept, where).replace(tzinfo=None) == wall:
        return kept
    return _resolve(wall, where)[0]


def shift_note(due: Due) -> str:
    """One sentence for an import report about a shifted due time; "" where nothing was shifted."""
    match due.shift:
        case Shift.NONE:
            return ""
        case Shift.GAP_FORWARD:
            goes = _wall_at(due.at, _zone(due.zone)).replace(tzinfo=None).isoformat()
            return f"{due.local} does not exist in {due.zone} (clocks go forward): it is due at {goes}"
        case Shift.FIRST_OF_TWO:
            return f"{due.local} happens twice in {due.zone} (clocks go back): it is due the first time"


def check_not_past(due: Due, now: int, late_ok_s: float, *, field: str = "due") -> None:
    """Refuse a due time more than `late_ok_s` before `now`, so that an old file does not go out today."""
    late_s = (now - due.at) / SECOND
    if late_s > late_ok_s:
        raise InvalidInput(
            f"{due.local} {due.zone or 'at its offset'} was due {say_duration(late_s)} ago, and at most "
            f"{say_duration(late_ok_s)} is accepted: give a later time, or leave the row out",
            field=field,
            code="past_due",
        )


# Zones


def check_zone(name: str, *, field: str = "timezone") -> str:
    """The name as the IANA database spells it ("europe/berlin" gives "Europe/Berlin"); links stay links.

    Raises `InvalidInput` with the nearest names.
    """
    try:
        return _zone(name).key
    except InvalidInput as error:
        raise InvalidInput(str(error), field=field, code=error.code) from None


# Quiet hours


def known_zone(*names: str) -> str:
    """The first of these names that is a zone; "UTC" where none is.

    For decisions that must not fail on a row whose zone was known when it came in.
    """
    for name in names:
        if name:
            try:
                _zone(name)
            except InvalidInput:
                continue
            return name
    return "UTC"


@value
class QuietHours:
    """A daily span of the wall clock in which nothing goes out; may cross midnight.

    start_min  first quiet minute of the day, 0..1439
    end_min    first minute after it, 0..1440; at or below `start_min` it is the next day's
    days       weekdays on which a span *starts*, Monday is 0; None is every day
    """

    start_min: int
    end_min: int
    days: frozenset[int] | None = None

    def __str__(self) -> str:
        """The text that `parse_quiet` reads back."""
        span = f"{_clock(self.start_min)}-{_clock(self.end_min)}"
        return span if self.days is None else f"{span} {','.join(_DAYS[day] for day in sorted(self.days))}"


def parse_quiet(text: str, *, field: str = "quiet_hours") -> QuietHours:
    """Read "21:00-08:00", "21:00-08:00 sat,sun" or "00:00-24:00 sat-sun". Raises `InvalidInput`."""
    form = _QUIET.fullmatch(text.strip())
    if form is None:
        raise InvalidInput(
            f"{text!r:.80} are no quiet hours: write start and end, such as 21:00-08:00, "
            'or with days "21:00-08:00 sat,sun"',
            field=field,
        )
    start_min, end_min = _minutes(form["start"]), _minutes(form["end"])
    if start_min in (end_min, DAY_MIN):
        raise InvalidInput(
            f'{text!r:.80} must not be empty or start at 24:00: for whole days write "00:00-24:00 sun"',
            field=field,
        )
    days = None if form["days"] is None else parse_days(form["days"], field=field)
    quiet = QuietHours(start_min, end_min, days)
    check_quiet([quiet], field=field)
    return quiet


def parse_days(text: str, *, field: str = "days") -> frozenset[int]:
    """Weekdays of "sat,sun", "mon-fri" or "sun-thu", Monday is 0. Raises `InvalidInput`."""
    days: set[int] = set()
    for part in text.strip().lower().split(","):
        first, dash, last = part.strip().partition("-")
        if not dash:
            last = first
        if first not in _DAYS or last not in _DAYS:
            raise InvalidInput(
                f"{text!r:.80} names no days: write {', '.join(_DAYS)}, as sat,sun or mon-fri", field=field
            )
        start, end = _DAYS.index(first), _DAYS.index(last)
        days.update(day % 7 for day in range(start, end + 1 if end >= start else end + 8))
    return frozenset(days)


def check_quiet(quiet: Sequence[QuietHours], *, field: str = "quiet_hours") -> None:
    """Refuse quiet hours that together leave no minute of the week open: nothing would ever go out."""
    closed = bytearray(7 * DAY_MIN)
    for hours in quiet:
        for day in range(7) if hours.days is None else hours.days:
            for minute in range(hours.start_min, _end_min(hours)):
                closed[(day * DAY_MIN + minute) % len(closed)] = 1
    if all(closed):
        raise InvalidInput(
            f"{'; '.join(map(str, quiet))!r:.80} leaves no minute of the week open: "
            "shorten one, or name its days",
            field=field,
        )


def allowed_from(quiet: Sequence[QuietHours], zone: str, at: int) -> int:
    """The first instant at or after `at` when the wall clock of `zone` shows no quiet time.

    Steps from the end of a span to the end of the next, and stops at each clock change on the way to
    read the wall clock again. Each step moves forward, and their number is bounded.
    Raises `InvalidInput` for an unknown zone, or where `check_quiet` would have.
    """
    if not quiet:
        return at
    where = _zone(zone)
    moment = at
    for _ in range(_QUIET_STEPS_PER_SPAN * (len(quiet) + 1)):
        left = _quiet_left(quiet, _wall_at(moment, where))
        if left == 0:
            return moment
        moment = _until_clock_change(where, moment, moment + left)
    check_quiet(quiet)
    raise AssertionError(f"no open time within {_QUIET_STEPS_PER_SPAN} days of {at} in {zone}")


# The decision for a due row


class ExpireReason(StrEnum):
    """Why time ended a delivery; a code for the ledger."""

    PAST_EXPIRY = "past_expiry"  # found too late: its validity is over
    QUIET_HOURS = "quiet_hours"  # due in quiet hours, and its category expires there
    QUIET_PAST_EXPIRY = "quiet_past_expiry"  # the next allowed time is past its validity
    DUE_PAST_EXPIRY = "due_past_expiry"  # put off (pause, edit) past its validity


@value
class Publish:
    """It may go out now. `late_s`: how long after `next_at` that is, for the ledger."""

    late_s: float = 0.0


@value
class Defer:
    """Not before `until`, microseconds UTC, always later than `now` and earlier than the expiry."""

    until: int


@value
class Expire:
    """It ends here, visibly, with a reason."""

    reason: ExpireReason


Verdict = Publish | Defer | Expire


def decide_time(
    *,
    now: int,
    next_at: int,
    expires_at: int,
    quiet: Sequence[QuietHours],
    zone: str,
    on_quiet: Literal["defer", "expire"],
) -> Verdict:
    """What time allows for one delivery. Lateness alone never drops it; only the expiry does.

    The expiry is the first instant at which it must not go out any more. `zone` is read only where
    there are quiet hours.
    """
    if now >= expires_at:
        return Expire(ExpireReason.PAST_EXPIRY)
    if next_at > now:
        return Defer(next_at) if next_at < expires_at else Expire(ExpireReason.DUE_PAST_EXPIRY)
    until = allowed_from(quiet, zone, now)
    if until == now:
        return Publish((now - next_at) / SECOND)
    if on_quiet == "expire":
        return Expire(ExpireReason.QUIET_HOURS)
    return Defer(until) if until < expires_at else Expire(ExpireReason.QUIET_PAST_EXPIRY)


# What a pass reports


@value
class Window:
    """Due times from `start` up to but not including `end`, now reported as all published."""

    start: int
    end: int


@value
class Gap:
    """No pass ran from `start` to `end`: a pause, an outage, or a timer that does not come."""

    start: int
    end: int


def window_of(mark: int | None, now: int, *, oldest_pending: int | None) -> Window:
    """What a pass at `now` may report, when `oldest_pending` is the least due time that it left behind.

    `end` is the new mark: everything due before it is published. It never moves back: a row that
    commits below it is a late arrival, published by the next pass all the same, and counted. There is
    no width, since a pass finds rows by their state and not by their window.
    """
    reached = now if oldest_pending is None else min(now, oldest_pending)
    if mark is None:
        return Window(reached, reached)
    return Window(mark, max(mark, reached))


def gap_since(last_pass_end: int | None, now: int, *, interval_s: float) -> Gap | None:
    """The gap that a pass starting at `now` ends; None for the first pass, or within two intervals.

    Two, because outside timers jitter: one late run is not an outage.
    """
    if last_pass_end is None or now - last_pass_end <= 2 * interval_s * SECOND:
        return None
    return Gap(last_pass_end, now)


# Reading a due time

# Stricter than `datetime.fromisoformat`, whose forms differ between Python versions: no weeks, no
# missing dashes, no 24:00, ASCII digits only.
_DATE_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ](?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?"
    r"([Zz]|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE = _EPOCH.replace(tzinfo=None)
_OFFSET_MAX = timedelta(hours=14)  # Kiribati; the other side ends at -12:00
_OFFSET_MIN = timedelta(hours=-12)


def _no_date_time(text: str, cleaned: str) -> str:
    if _DATE.fullmatch(cleaned):
        return f"{text!r:.80} is a date without a time: write {cleaned}T09:00 and the zone or offset"
    return (
        f"{text!r:.80} is no ISO 8601 date and time: write year-month-dayThour:minute, "
        "such as 2026-12-01T09:00+01:00"
    )


def _due_at_offset(text: str, written: datetime, zone: str | None, field: str) -> Due:
    offset = written.utcoffset()
    assert offset is not None
    if not _OFFSET_MIN <= offset <= _OFFSET_MAX:
        raise InvalidInput(
            f"{text!r:.80} has an offset that no clock on earth shows: write one from -12:00 to +14:00",
            field=field,
        )
    _check_year(written.year, text, field)
    wall = written.replace(tzinfo=None)
    at = _micros(wall - offset - _EPOCH_NAIVE)
    _check_reach(at, text, field)
    if not zone:
        return Due(at, wall.isoformat(), "", Shift.NONE)
    where = _zone(zone)
    return Due(at, _wall_at(at, where).replace(tzinfo=None).isoformat(), where.key, Shift.NONE)


def _resolve(wall: datetime, where: ZoneInfo) -> tuple[int, Shift]:
    # With fold=0 Python reads a gap by the offset before it, which moves the time forward by the
    # gap, and an overlap by its first pass (PEP 495). So fold=0 is our rule, and fold=1 only tells
    # the cases apart. fold=1 in a gap would go out too early.
    # (`where.utcoffset` reads the wall clock of a naive time too, and spares two attached copies.)
    first = where.utcoffset(wall.replace(fold=0) if wall.fold else wall)
    second = where.utcoffset(wall.replace(fold=1))
    assert first is not None
    assert second is not None
    at = _micros(wall - first - _EPOCH_NAIVE)
    if first == second:
        return at, Shift.NONE
    return at, Shift.GAP_FORWARD if first < second else Shift.FIRST_OF_TWO


def _wall_at(at: int, where: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(microseconds=at)).astimezone(where)


def _micros(span: timedelta) -> int:
    return (span.days * 86_400 + span.seconds) * SECOND + span.microseconds


def _check_year(year: int, text: str, field: str) -> None:
    # Before any arithmetic: the ends of the calendar would overflow.
    if year < 1970:
        raise InvalidInput(f"{text!r:.80} is before 1970: give a later time", field=field)
    if year > 2200:
        raise InvalidInput(_beyond(text), field=field, code="beyond_horizon")


def _check_reach(at: int, text: str, field: str) -> None:
    if at < 0:
        raise InvalidInput(f"{text!r:.80} is before 1970 in UTC: give a later time", field=field)
    if at >= HORIZON_AT:
        raise InvalidInput(_beyond(text), field=field, code="beyond_horizon")


def _beyond(text: str) -> str:
    return f"{text!r:.80} is beyond the horizon, {HORIZON} UTC: give an earlier time"


# Finding a zone

_ZONE_NAME_MAX = 64

# Names in some copies of the database that say "this machine" or "not set", not where a customer is.
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    # `ZoneInfo` alone would accept "europe/berlin" on some file systems and not on others.
    known = _zone_names().get(name.strip().casefold())
    if known is None:
        raise InvalidInput(_unknown_zone(name[: _ZONE_NAME_MAX + 1]), field="timezone", code="unknown_zone")
    return ZoneInfo(known)


@cache
def _zone_names() -> dict[str, str]:
    return {name.casefold(): name for name in sorted(available_timezones() - _NO_ZONES)}


@lru_cache(maxsize=1024)  # a column of one bad name repeats it on every row
def _unknown_zone(name: str) -> str:
    wanted = name.strip().casefold().replace(" ", "_")
    if not wanted:
        return "the zone is empty: write a name such as Europe/Berlin"
    rule = f"{name!r:.80} is no zone of the IANA database"
    if re.match(r"(?:utc|gmt)?[+-]\d", wanted):
        return f"{rule}: an offset goes into the time itself, a zone is a name such as Europe/Berlin"
    if len(wanted) > _ZONE_NAME_MAX:
        return f"{rule}: write a name such as Europe/Berlin"
    names = _zone_names()
    near = [names[key] for key in names if "/" in key and key.rpartition("/")[2] == wanted]
    near = near or [names[key] for key in get_close_matches(wanted, names, n=3, cutoff=0.7)]
    if not near:
        return f"{rule}: write a name such as Europe/Berlin"
    return f"{rule}: did you mean {' or '.join(near[:3])}?"


# Reading and stepping through quiet hours

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_QUIET = re.compile(
    r"(?P<start>(?:[01]\d|2[0-3]):[0-5]\d|24:00)-(?P<end>(?:[01]\d|2[0-3]):[0-5]\d|24:00)"
    r"(?:[ ]+(?P<days>[A-Za-z, -]{3,60}))?",
    re.ASCII,
)

# A week has an open minute. The worst a clock change can do is to jump over it once, and then the
# next week has it: two weeks and the day of the change, with one step per span and day, and one per change.
_QUIET_STEPS_PER_SPAN = 24


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


def _end_min(hours: QuietHours) -> int:
    return hours.end_min if hours.end_min > hours.start_min else hours.end_min + DAY_MIN


def _quiet_left(quiet: Sequence[QuietHours], wall: datetime) -> int:
    """Microseconds of wall time to the end of the longest span that holds `wall`; 0 where none does."""
    weekday = wall.weekday()
    since_midnight = (wall.hour * 60 + wall.minute) * MINUTE + wall.second * SECOND + wall.microsecond
    left = 0
    for hours in quiet:
        for days_back in (0, 1):  # a span of yesterday may reach into today
            if hours.days is not None and (weekday - days_back) % 7 not in hours.days:
                continue
            into = since_midnight + days_back * DAY_MIN * MINUTE
            if hours.start_min * MINUTE <= into < _end_min(hours) * MINUTE:
                left = max(left, _end_min(hours) * MINUTE - into)
    return left


def _until_clock_change(where: ZoneInfo, start: int, end: int) -> int:
    """`end`, or the first change of the zone's offset after `start` where one comes before `end`.

    At most a day apart, and no zone since 1970 changed twice within one; changes fall on whole seconds.
    """
    before = _wall_at(start, where).utcoffset()
    if _wall_at(end, where).utcoffset() == before:
        return end
    low, high = start // SECOND, end // SECOND
    while high - low > 1:
        middle = (low + high) // 2
        if _wall_at(middle * SECOND, where).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high * SECOND
