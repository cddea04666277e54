"""Plans: one date becomes several reminders, in the customer's zone; and dates that recur.

    [plan.loan]
    steps = ["D-3 09:00 sms,email", "D 09:00 email", "D+2 10:00 sms"]

with the date 2027-01-31 gives reminders for 28 January 09:00, 31 January 09:00 and 2 February 10:00,
each on the customer's wall clock, so that a clock change between them moves nothing by an hour.

Days are counted on the calendar and times are read on the wall clock; nothing here adds 24 hours.
Recurrence is not stored: `monthly_dates` and `wall_times` list occurrences for whoever schedules them.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from typing import Literal

from sendonce.core.due import DAY_MIN, HORIZON, HORIZON_AT, SECOND, Due, Shift, due_at_local
from sendonce.core.errors import InvalidInput

OFFSET_DAYS_MAX = 3660
"""Ten years either way from the plan's date."""

OCCURRENCES_MAX = 1200
"""A hundred years of months; more is asked for in several calls."""


# Plans


@dataclass(frozen=True, slots=True)
class Step:
    """One reminder of a plan.

    label        unique in its plan; the reminder's id is `{id}/{label}`
    offset_days  calendar days from the plan's date, negative before it
    minute       minutes since midnight on the customer's wall clock, 0..1439
    channels     at least one, in the order written
    """

    label: str
    offset_days: int
    minute: int
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A named, non-empty sequence of steps with unique labels; made by `parse_plan`."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step on a date: when its reminder is due, and on which channels."""

    label: str
    due: Due
    channels: tuple[str, ...]


def parse_plan(
    name: str, steps: Sequence[str], *, channels: Collection[str] | None = None, field: str = "steps"
) -> Plan:
    """Read a plan from its steps' texts; `channels` are the known ones, None accepts any name.

    Raises `InvalidInput` that names the plan, the step and the rule.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"plan {name!r:.80} must be named with letters, digits, '-', '_' and '.', at most 32", field=field
        )
    if not steps:
        raise InvalidInput(f'plan {name!r} has no steps: write for example "D-3 09:00 sms"', field=field)
    parsed: dict[str, Step] = {}
    for text in steps:
        step = parse_step(text, channels=channels, field=field)
        if step.label in parsed:
            raise InvalidInput(
                f"plan {name!r} has two steps {step.label!r}, and reminders need ids of their own: "
                f'join their channels, or name one: "{text.strip()} label=evening"',
                field=field,
            )
        parsed[step.label] = step
    return Plan(name, tuple(parsed.values()))


def parse_step(text: str, *, channels: Collection[str] | None = None, field: str = "steps") -> Step:
    """Read "D-3 09:00 sms,email", "D+2 10:00 sms", "D 09:00 email", "D-3 17:00 sms label=evening".

    Raises `InvalidInput` that names the step and the rule.
    """
    words = text.split()
    if not 3 <= len(words) <= 4:
        raise _no_step(text, 'must be day, time and channels, such as "D-3 09:00 sms,email"', field)
    day, clock, names, *more = words
    offset_days = _offset_days(text, day, field)
    label = f"D{offset_days:+d}" if offset_days else "D"
    if more:
        label = _label(text, more[0], field)
    return Step(label, offset_days, _minute(text, clock, field), _channels(text, names, channels, field))


def expand(plan: Plan, date: str, zone: str, *, field: str = "date") -> list[PlannedStep]:
    """The plan's reminders for an ISO date, on the wall clock of `zone`, in the plan's order.

    Raises `InvalidInput` for what is no date, an unknown zone, or a step before 1970 or past the horizon.
    """
    anchor = _iso_date(date, field)
    return [
        PlannedStep(
            step.label,
            _at(anchor + timedelta(days=step.offset_days), step.minute, zone, field),
            step.channels,
        )
        for step in plan.steps
    ]


# Recurrence, listed and not stored


def monthly_dates(
    start: date, day: int, count: int, *, short_month: Literal["clamp", "skip"] = "clamp"
) -> list[date]:
    """The first `count` dates on the `day` of a month (1..31), from `start` on.

    A month too short for it gives its last day (clamp), or nothing (skip, as in RFC 5545). Each
    month is found from `day` itself, so a short one never changes those after it.
    Raises `InvalidInput` for a day or count out of range, or dates past the horizon.
    """
    if not 1 <= day <= 31:
        raise InvalidInput(
            f"day {day} must be from 1 to 31: for the last day of each month write 31", field="day"
        )
    _check_count(count)
    dates: list[date] = []
    for first in _months(start):
        if len(dates) == count:
            break
        if first.isoformat() > HORIZON:
            raise InvalidInput(
                f"{count} months from {start} pass the horizon, {HORIZON}: ask for fewer", field="count"
            )
        last = monthrange(first.year, first.month)[1]
        if day > last and short_month == "skip":
            continue
        found = first.replace(day=min(day, last))
        if found >= start:
            dates.append(found)
    return dates


def wall_times(
    minutes: Collection[int], zone: str, *, after: int, count: int, days: Collection[int] | None = None
) -> list[Due]:
    """The next `count` instants, later than `after`, when the wall clock of `zone` comes to one of `minutes`.

    `minutes` since midnight, 0..1439; `days` are weekdays, Monday is 0, None is every day. Strictly
    increasing: a time in a gap goes out later by the gap, a repeated one the first time, and two that
    fall together go out once, under the wall time that exists.
    Raises `InvalidInput` for values out of range, or where the horizon comes first.
    """
    if not minutes or not all(0 <= minute < DAY_MIN for minute in minutes):
        raise InvalidInput(f"minutes {sorted(minutes)!r:.80} must be one or more of 0..1439", field="minutes")
    if days is not None and (not days or not all(0 <= day <= 6 for day in days)):
        raise InvalidInput(f"days {sorted(days)!r:.80} must be one or more of 0 (Monday) to 6", field="days")
    _check_count(count)
    if not 0 <= after < HORIZON_AT:
        raise InvalidInput(f"after {after} must be microseconds UTC from 1970 to {HORIZON}", field="after")
    found: dict[int, Due] = {}
    for day in _days_around(after):
        # A skipped day's times fall together with the next day's (Samoa, 2011), so one more is read.
        enough = len(found) >= count
        if days is None or day.weekday() in days:
            for minute in minutes:
                due = _at(day, minute, zone, "minutes")
                if due.at > after and (due.at not in found or due.shift is Shift.NONE):
                    found[due.at] = due
        if enough:
            break
    return [found[at] for at in sorted(found)[:count]]


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", re.ASCII)
_LABEL = re.compile(r"label=([A-Za-z0-9][A-Za-z0-9._+-]{0,31})", re.ASCII)
_DAY = re.compile(r"D(?:([+-])(\d{1,4}))?", re.ASCII)
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_FIRST_DAY = date(1970, 1, 2)  # the first that is after 1970-01-01T00:00Z in every zone
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _no_step(text: str, rule: str, field: str) -> InvalidInput:
    return InvalidInput(f"step {text!r:.80} {rule}", field=field)


def _offset_days(text: str, day: str, field: str) -> int:
    form = _DAY.fullmatch(day)
    if form is None:
        raise _no_step(text, f"must start with D, D-3 or D+2, not {day!r:.40}", field)
    offset_days = int((form[1] or "") + (form[2] or "0"))
    if abs(offset_days) > OFFSET_DAYS_MAX:
        raise _no_step(text, f"must stay within {OFFSET_DAYS_MAX} days of its date", field)
    return offset_days


def _label(text: str, word: str, field: str) -> str:
    form = _LABEL.fullmatch(word)
    if form is None:
        raise _no_step(
            text,
            f"ends with {word!r:.40}: only label=name may follow the channels, and those have no spaces",
            field,
        )
    return form[1]


def _minute(text: str, clock: str, field: str) -> int:
    form = _CLOCK.fullmatch(clock)
    if form is None:
        raise _no_step(
            text, f"must give its time as hour:minute from 00:00 to 23:59, not {clock!r:.40}", field
        )
    return int(form[1]) * 60 + int(form[2])


def _channels(text: str, names: str, known: Collection[str] | None, field: str) -> tuple[str, ...]:
    channels = tuple(names.split(","))
    for channel in channels:
        if not _CHANNEL.fullmatch(channel):
            raise _no_step(text, f"must list its channels as sms,email, not {names!r:.40}", field)
        if known is not None and channel not in known:
            near = get_close_matches(channel, known, n=1)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            raise _no_step(text, f"names the unknown channel {channel!r}: {meant}", field)
    if len(set(channels)) < len(channels):
        raise _no_step(text, "names a channel twice: each gets its reminder once", field)
    return channels


def _iso_date(text: str, field: str) -> date:
    cleaned = text.strip()
    if not _ISO_DATE.fullmatch(cleaned):
        raise InvalidInput(
            f"{text!r:.80} is no ISO date: write year-month-day, such as 2027-01-31", field=field
        )
    try:
        found = date.fromisoformat(cleaned)
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not in the calendar: {error}", field=field) from None
    if not "1970-01-01" <= cleaned <= HORIZON:
        raise InvalidInput(f"{text!r:.80} must be from 1970-01-01 to {HORIZON}", field=field)
    return found


def _at(day: date, minute: int, zone: str, field: str) -> Due:
    return due_at_local(datetime.combine(day, time(minute // 60, minute % 60)), zone, field=field)


def _check_count(count: int) -> None:
    if not 0 <= count <= OCCURRENCES_MAX:
        raise InvalidInput(
            f"count {count} must be from 0 to {OCCURRENCES_MAX}: ask again from the last", field="count"
        )


def _months(start: date) -> Iterator[date]:
    year, month = start.year, start.month
    while True:
        yield date(year, month, 1)
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)


def _days_around(after: int) -> Iterator[date]:
    """Calendar days without end, from two before `after`: a zone is up to 14 hours off, a gap one day."""
    day = max(datetime.fromtimestamp(after // SECOND, UTC).date() - timedelta(days=2), _FIRST_DAY)
    while True:
        yield day
        day += timedelta(days=1)
