"""`Retry-After`, read once and well: a number of seconds, or a date in any of HTTP's three forms.

The answer is a wait, never an instant, so that no clock is needed after it. A value that would make
the caller try again at once (0, a date that is past) or that means nothing gives None, and then the
caller's own backoff applies: a header must never turn a backoff into a tight loop. Capping is the
caller's policy; here a wait is only kept finite, whatever number was sent.

Sources: RFC 9110 section 10.2.3 (Retry-After) and 5.6.7 (HTTP-date; the rule for two-digit years).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

WAIT_MAX_S = 1e9
"""About 31 years. Every longer wait is cut to this, so that adding it to a time cannot overflow."""

_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)  # fractions are not in the RFC, yet are sent
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DATES = (
    re.compile(
        r"[a-z]{3}, (?P<day>\d\d?) (?P<month>[a-z]{3}) (?P<year>\d{4}) " + _CLOCK + r" (?:gmt|utc)", re.ASCII
    ),
    re.compile(
        r"[a-z]{6,9}, (?P<day>\d\d)-(?P<month>[a-z]{3})-(?P<year>\d\d) " + _CLOCK + r" (?:gmt|utc)", re.ASCII
    ),
    re.compile(r"[a-z]{3} (?P<month>[a-z]{3}) +(?P<day>\d\d?) " + _CLOCK + r" (?P<year>\d{4})", re.ASCII),
)


def parse_retry_after(value: str | None, now: int, *, said_at: str | None = None) -> float | None:
    """The wait that a `Retry-After` value asks for, in seconds from `now` (microseconds UTC).

    `said_at`: the `Date` of the same answer. Where it is one, a date is counted from it: both come from the
    clock of whoever answered, which need not agree with ours.

    Between 0 (excluded) and `WAIT_MAX_S`; None for no value, 0, a past date, or garbage. Never raises.
    """
    text = (value or "").strip().lower()
    wait_s = _seconds(text)
    if wait_s is None:
        at = _http_date(text, now)
        since = _http_date((said_at or "").strip().lower(), now)
        wait_s = None if at is None else (at - (now if since is None else since)) / 1e6
    if wait_s is None or wait_s <= 0:
        return None
    return min(wait_s, WAIT_MAX_S)


def _seconds(text: str) -> float | None:
    if not _SECONDS.fullmatch(text):
        return None
    return float(text)  # a number too long for a float becomes infinity, which is then capped


def _http_date(text: str, now: int) -> int | None:
    """Microseconds UTC of an HTTP-date in lower case, or None."""
    for form in _DATES:
        if match := form.fullmatch(text):
            return _instant(match.groupdict(), now)
    return None


def _instant(part: dict[str, str], now: int) -> int | None:
    year, second = int(part["year"]), int(part["second"])
    if len(part["year"]) == 2:
        year = _full_year(year, now)
    try:
        at = datetime(
            year,
            _MONTHS[part["month"]],
            int(part["day"]),
            int(part["hour"]),
            int(part["minute"]),
            min(second, 59),
            tzinfo=UTC,
        )
    except (KeyError, ValueError):
        return None
    leap_s = 1 if second == 60 else 0
    if second > 60:
        return None
    return (at - _EPOCH) // timedelta(microseconds=1) + leap_s * 1_000_000


def _full_year(two_digits: int, now: int) -> int:
    """RFC 9110: a year that looks more than 50 years ahead is the last past one with these digits."""
    this_year = (_EPOCH + timedelta(microseconds=now)).year
    year = this_year - this_year % 100 + two_digits
    return year - 100 if year > this_year + 50 else year


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
