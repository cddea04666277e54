"""Kinds of values: what a setting may be, and how it is read from TOML.

A `Kind` turns the raw value into the typed one, or raises `InvalidInput` with a sentence that continues
"KEY ..." and holds value, rule and fix; `binding` adds file, table and key. Nothing is converted in
silence: "587" is not a number, and 30 without a unit is not a duration.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from sendonce.config.problems import Place, Problems, did_you_mean
from sendonce.config.store_url import StoreUrl, holds_password, parse_store_url
from sendonce.core.due import QuietHours, check_zone, parse_quiet
from sendonce.core.duration import parse_duration, parse_rate, write_duration
from sendonce.core.errors import InvalidInput
from sendonce.core.pacing import SECOND, Limit
from sendonce.core.seal import public_key_of
from sendonce.ports.secret import Secret

SECRET_BYTES_MAX: Final = 65_536

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """What a value may be.

    label        for the documentation
    read         raw value and its own place -> value; raises `InvalidInput` or `ConfigErrors`
    is_duration  its key may also be written with `_s`, as a number of seconds
    is_secret    its messages show no value
    """

    label: str
    read: Callable[[object, Place], T_co]
    is_duration: bool = False
    is_secret: bool = False


# Texts


def _text(value: object, place: Place) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"= {_shown(value)} must be text: put it into quotes")
    text = _variable(value, place) if value.startswith("env:") else value
    if "\0" in text:
        raise InvalidInput("holds a NUL character: remove it")
    return text


def _line(value: object, place: Place) -> str:
    text = _text(value, place).strip()
    if not text or not text.isprintable():
        raise InvalidInput("must be one line of printable text, and not empty")
    return text


def _secret(value: object, place: Place) -> Secret:
    if not isinstance(value, str) or not value.startswith(("env:", "file:")):
        name = re.sub(r"[^A-Z0-9]+", "_", place.table.upper()).strip("_")
        raise InvalidInput(
            "must not stand in this file: put the value into an environment variable or a file of its own, "
            f'and write "env:{name}" or "file:PATH" here'
        )
    if value.startswith("env:"):
        return Secret(_variable(value, place))
    return Secret(_secret_file(_path(value.removeprefix("file:"), place)))


def _variable(reference: str, place: Place) -> str:
    name = reference.removeprefix("env:")
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        # It is not shown: what stands behind "env:" by mistake may be the credential itself.
        raise InvalidInput('must be "env:" and the name of a variable (letters, digits and _), without $')
    if name not in place.environ:
        raise InvalidInput(f"names the environment variable {name}, which is not set: set it and start again")
    if not place.environ[name]:
        raise InvalidInput(f"names the environment variable {name}, which is empty: give it a value")
    return place.environ[name]


def _secret_file(path: Path) -> str:
    try:
        if path.stat().st_size > SECRET_BYTES_MAX:
            raise InvalidInput(f"names the file {path}, which is too large for a credential: name another")
        # One line end belongs to the editor, not to the credential.
        text = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidInput(f"names the file {path}, which is not UTF-8 text: name another") from None
    except OSError as error:
        raise InvalidInput(
            f"names the file {path}, which cannot be read ({error.strerror}): create it, or give access"
        ) from None
    if not text:
        raise InvalidInput(f"names the file {path}, which is empty: write the credential into it")
    return text


def _path(value: object, place: Place) -> Path:
    return (place.file.parent / Path(_line(value, place)).expanduser()).absolute()


def _store_url(value: object, place: Place) -> StoreUrl:
    if not isinstance(value, str):
        raise InvalidInput('must be text, such as "sqlite:///sendonce.db"')
    if value.startswith(("env:", "file:")):
        return parse_store_url(_secret(value, place).reveal(), place.file.parent)
    if holds_password(value) and place.table:
        raise InvalidInput(
            'must not hold a password in this file: put the whole URL into a variable and write "env:NAME", '
            "or set SENDONCE_STORE_URL"
        )
    return parse_store_url(value, place.file.parent)


def _region(value: object, place: Place) -> str:
    text = _line(value, place)
    if not re.fullmatch("[A-Z]{2}", text, re.ASCII):
        raise InvalidInput(f'= {_shown(text)} must be a country in two capital letters, such as "US" or "DE"')
    return text


def _zone(value: object, place: Place) -> str:
    return check_zone(_line(value, place))


def _limit(value: object, place: Place) -> Limit:
    rate = parse_rate(_line(value, place))
    return Limit(rate.count, round(rate.interval_s * SECOND), rate.unit == "parts")


def _quiet(value: object, place: Place) -> QuietHours:
    return parse_quiet(_line(value, place))


def check_name(text: str) -> str:
    """A name that may stand in a heading, a command and a log. Raises `InvalidInput`."""
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text, re.ASCII):
        raise InvalidInput(
            f"{text!r:.80} must be a name of letters, digits, '-', '_' and '.', at most 64 characters"
        )
    return text


# Numbers and switches


def _switch(value: object, place: Place) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"= {_shown(value)} must be true or false, without quotes")
    return value


def whole(low: int | None = None, high: int | None = None) -> Kind[int]:
    """A whole number from `low` to `high`."""

    def read(value: object, place: Place) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(f"= {_shown(value)} must be a whole number, without quotes")
        _check_range(value, low, high, str)
        return value

    return Kind("whole number", read)


def number(low: float | None = None, high: float | None = None) -> Kind[float]:
    """A finite number from `low` to `high`."""

    def read(value: object, place: Place) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise InvalidInput(f"= {_shown(value)} must be a number, without quotes")
        _check_range(value, low, high, str)
        return float(value)

    return Kind("number", read)


def _share(value: object, place: Place) -> float:
    share = number().read(value, place)
    if not 0 <= share < 1:
        raise InvalidInput(f"= {_shown(value)} must be a share from 0 to below 1: a tenth is 0.1")
    return share


def duration(low: float | None = None, high: float | None = None) -> Kind[float]:
    """A span with its unit, "30s"; a plain number only under a key that ends in `_s`. Bounds in seconds."""

    def read(value: object, place: Place) -> float:
        in_seconds = place.table.endswith("_s")
        if isinstance(value, str) and not in_seconds:
            span_s = parse_duration(_text(value, place))
        elif isinstance(value, bool) or not isinstance(value, int | float):
            asked = (
                "a number of seconds" if in_seconds else 'a duration with its unit, such as "90s" or "24h"'
            )
            raise InvalidInput(f"= {_shown(value)} must be {asked}")
        elif not in_seconds:
            raise InvalidInput(f'= {value} has no unit: write "{value}s" if seconds are meant')
        else:
            span_s = number(0).read(value, place)
        _check_range(span_s, low, high, write_duration)
        return span_s

    return Kind("duration", read, is_duration=True)


def _check_range(value: float, low: float | None, high: float | None, say: Callable[[float], str]) -> None:
    if low is not None and value < low:
        raise InvalidInput(f"= {say(value)} must be at least {say(low)}")
    if high is not None and value > high:
        raise InvalidInput(f"= {say(value)} must be at most {say(high)}")


# Choices and collections


def words(known: Sequence[str]) -> Kind[str]:
    """One of a few words."""

    def read(value: object, place: Place) -> str:
        if not isinstance(value, str) or value not in known:
            hint = did_you_mean(value, known) if isinstance(value, str) else ""
            near = f": {hint}" if hint.startswith("did") else ""
            raise InvalidInput(f"= {_shown(value)} must be one of {', '.join(known)}{near}")
        return value

    return Kind(" or ".join([", ".join(known[:-1]), known[-1]]) if len(known) > 1 else known[0], read)


def choice(choices: type[E]) -> Kind[E]:
    """One member of an enumeration."""
    by_word = words([str(each) for each in choices])
    return Kind(by_word.label, lambda value, place: choices(by_word.read(value, place)))


def list_of(kind: Kind[T]) -> Kind[tuple[T, ...]]:
    """A list in brackets. One wrong entry does not hide the next."""

    def read(value: object, place: Place) -> tuple[T, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InvalidInput(f"= {_shown(value)} must be a list: write it in brackets, [...]")
        named = ((str(number), each) for number, each in enumerate(value, start=1))
        return tuple(_all(kind, named, place).values())

    return Kind(f"list of {_several(kind)}", read, is_secret=kind.is_secret)


def table_of(kind: Kind[T]) -> Kind[Mapping[str, T]]:
    """A table with keys of the writer's own."""

    def read(value: object, place: Place) -> Mapping[str, T]:
        return types.MappingProxyType(_all(kind, check_table(value).items(), place))

    return Kind(f"table of {_several(kind)}", read, is_secret=kind.is_secret)


def _several(kind: Kind[object]) -> str:
    return kind.label if kind.label.endswith("s") else f"{kind.label}s"


def _all(kind: Kind[T], items: Iterable[tuple[str, object]], place: Place) -> dict[str, T]:
    found: dict[str, T] = {}
    problems = Problems()
    wrong: list[str] = []
    for name, value in items:
        try:
            with problems.noted():
                found[name] = kind.read(value, place.at(f"{place.table}.{name}"))
        except InvalidInput as error:
            wrong.append(f"entry {name} {error}")
    problems.check()
    if wrong:
        raise InvalidInput("; ".join(wrong))
    return found


def check_table(value: object) -> Mapping[str, Any]:
    """A TOML table. Raises `InvalidInput`."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"= {_shown(value)} must be a table: write it under a heading of its own")
    return value


def _shown(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case Mapping():
            return "{...}"
        case list() | tuple():
            return "[...]"
        case _:
            return f"{value!r:.80}"


TEXT: Final = Kind("text", _text)
LINE: Final = Kind("text", _line)
NAME: Final = Kind("name", lambda value, place: check_name(_line(value, place)))
SECRET: Final = Kind("env:NAME or file:PATH", _secret, is_secret=True)
PATH: Final = Kind("path", _path)
SWITCH: Final = Kind("true or false", _switch)
SHARE: Final = Kind("share", _share)
ZONE: Final = Kind("IANA zone", _zone)
LIMIT: Final = Kind("rate", _limit)
QUIET: Final = Kind("quiet hours", _quiet)
REGION: Final = Kind("country", _region)
STORE_URL: Final = Kind("store URL", _store_url, is_secret=True)
PUBLIC_KEY: Final = Kind("public key", lambda value, place: public_key_of(_line(value, place)))
# Addresses are compared without case; so are the patterns over them.
PATTERN: Final = Kind("pattern", lambda value, place: _line(value, place).casefold())
