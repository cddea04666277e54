"""Durations and rates as people write them, and elapsed time as people read it.

    parse_duration("1h30m") -> 5400.0         write_duration(5400.0) -> "1h30m"
    parse_rate("3000/min")  -> Rate(3000, 60.0, "requests")
    say_duration(7500.0)    -> "2 h 5 min"    say_when(then, now) -> "41 s ago"
    say_number(1234.5)      -> "1,234"

A number without a unit is refused everywhere: whether "90" means seconds or minutes is exactly the
mistake that a configuration should not be able to hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from sendonce.core.errors import InvalidInput

DURATION_MAX_S = 36_500 * 86_400.0
"""One hundred years: longer is a slip of the hand."""

RATE_COUNT_MAX = 1_000_000_000

RateUnit = Literal["requests", "parts"]


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` units in any `interval_s` seconds. `parts` are SMS parts, `requests` are calls."""

    count: int
    interval_s: float
    unit: RateUnit


def parse_duration(text: str, *, field: str = "duration") -> float:
    """Seconds of "500ms", "90s", "15m" (or "15min"), "24h", "2d", "1.5h", "1h30m", "1d 12h".

    Units go from large to small, each once. Raises `InvalidInput` that names value, rule and fix.
    """
    cleaned = text.strip()
    if not _DURATION.fullmatch(cleaned):
        raise InvalidInput(_no_duration(text, cleaned), field=field)
    milliseconds = 0.0
    smallest = None
    for number, unit in _PART.findall(cleaned):
        size = _UNIT_MS[unit]
        if smallest is not None and size >= smallest:
            raise InvalidInput(
                f"{text!r:.80} must name its units from large to small, each once: write 1h30m", field=field
            )
        smallest = size
        milliseconds += float(number) * size
    if milliseconds / 1000 > DURATION_MAX_S:
        raise InvalidInput(f"{text!r:.80} is longer than 100 years (36500d): write less", field=field)
    return milliseconds / 1000


def write_duration(seconds: float) -> str:
    """The text that `parse_duration` reads back, exact to the millisecond: "1h30m", "0s", "1d500ms"."""
    left = _whole_ms(seconds)
    text = ""
    for unit, size in _WRITTEN:
        amount, left = divmod(left, size)
        text += f"{amount}{unit}" if amount else ""
    return text or "0s"


def parse_rate(text: str, *, field: str = "rate") -> Rate:
    """A limit such as "14/s", "3000/min", "50000/d", "10/60s", "10 parts/s".

    The interval is one unit or a duration. Requests are meant where nothing is said.
    Raises `InvalidInput` that names value, rule and fix.
    """
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(
            f"{text!r:.80} is no rate: write a whole count, a slash and an interval, "
            'such as 14/s, 3000/min, 50000/d, 10/60s or "10 parts/s"',
            field=field,
        )
    count = int(found["count"])
    if not 1 <= count <= RATE_COUNT_MAX:
        raise InvalidInput(
            f"{text!r:.80} must count from 1 to {RATE_COUNT_MAX}: to send nothing, pause the account instead",
            field=field,
        )
    every = found["every"].strip()
    interval_s = parse_duration(every if every[:1].isdigit() else f"1{every}", field=field)
    if interval_s <= 0:
        raise InvalidInput(f"{text!r:.80} has an interval of zero: write for example {count}/s", field=field)
    return Rate(count, interval_s, "parts" if found["unit"] in ("part", "parts") else "requests")


def write_rate(rate: Rate) -> str:
    """The text that `parse_rate` reads back: "14/s", "10 parts/s", "10/1m30s"."""
    every = write_duration(rate.interval_s)
    unit = " parts" if rate.unit == "parts" else ""
    return f"{rate.count}{unit}/{every[1:] if _ONE_UNIT.fullmatch(every) else every}"


def say_duration(seconds: float) -> str:
    """For people: the two largest units that matter, never rounded up: "2 h 5 min", "1.8 s", "350 ms".

    The sign is dropped; `say_when` says the direction.
    """
    milliseconds = _whole_ms(abs(seconds))
    if milliseconds < 1000:
        return f"{milliseconds} ms" if milliseconds else "0 s"
    if milliseconds < 10_000:
        return f"{milliseconds // 100 / 10:g} s"
    amounts = []
    left = milliseconds
    for name, size in _SAID:
        amount, left = divmod(left, size)
        amounts.append((amount, name))
    first = next(index for index, (amount, _) in enumerate(amounts) if amount)
    return " ".join(f"{amount} {name}" for amount, name in amounts[first : first + 2] if amount)


def say_number(value: float) -> str:
    """A rate, or another measure, for people: three digits that count, all before the point, no exponent:
    "1,234", "20", "0.0333". What is not nought is never said to be."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return format(Decimal(f"{value:.3g}"), "f")


def say_when(then: int, now: int) -> str:
    """How far `then` is from `now` (both microseconds UTC): "41 s ago", "in 2 h 5 min", "now"."""
    apart_s = (now - then) / 1_000_000
    if abs(apart_s) < 0.001:
        return "now"
    return f"{say_duration(apart_s)} ago" if apart_s > 0 else f"in {say_duration(apart_s)}"


_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_WRITTEN = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_SAID = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))

# Nine digits hold every real duration and keep a hostile row from buying a long multiplication.
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)[ ]?(ms|min|s|m|h|d)", re.ASCII)
_DURATION = re.compile(rf"{_PART.pattern}(?:[ ]?{_PART.pattern}){{0,4}}", re.ASCII)
_RATE = re.compile(
    r"(?P<count>\d{1,12})[ ]?(?P<unit>requests?|parts?)?[ ]?/[ ]?(?P<every>[a-z0-9. ]{1,40})", re.ASCII
)
_ONE_UNIT = re.compile(r"1[a-z]+", re.ASCII)


def _no_duration(text: str, cleaned: str) -> str:
    if re.fullmatch(r"\d{1,9}(\.\d+)?", cleaned, re.ASCII):
        return f"{text!r:.80} has no unit: write {cleaned}s for seconds, or use ms, m, h or d"
    return f"{text!r:.80} is no duration: write a number and a unit (ms, s, m, h, d), such as 90s or 1h30m"


def _whole_ms(seconds: float) -> int:
    # Through microseconds first: 0.29 s is 289.99999999999994 ms as a float.
    return round(seconds * 1_000_000) // 1000
