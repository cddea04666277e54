"""Reading settings: each field carries the function that reads it, and names the rule it breaks.

A settings class is a frozen dataclass whose fields say `metadata=by(reader)` and whose `__post_init__`
calls `validate`. So a value is checked in one place, whether it comes from Python or from JSON.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from sendonce.core.errors import InvalidInput

Span = tuple[float, float]
"""Seconds: a fixed time `(x, x)`, or a range from which the seeded chance picks. JSON: `x` or `[lo, hi]`."""


class Wrong(InvalidInput):
    """A value that breaks a rule, with the keys that lead to it."""

    def __init__(self, path: tuple[str, ...], rule: str) -> None:
        name = ".".join(path)
        super().__init__(f"{name}: {rule}" if name else rule, field=name)
        self.path = path
        self.rule = rule


Kind = TypeVar("Kind")


def read(kind: type[Kind], data: Any) -> Kind:
    """An instance of a settings class from its JSON form, or as it is."""
    if isinstance(data, kind):
        return data
    if not isinstance(data, Mapping):
        raise Wrong((), f"{data!r} must be an object with the keys of {kind.__name__}")
    known = list(_readers(kind))
    for key in data:
        if key not in known:
            raise Wrong((str(key),), _unknown(str(key), known))
    return kind(**data)


def validate(settings: Any) -> None:
    """Put each field of a frozen instance in its own form. Raises `InvalidInput`."""
    for name, read in _readers(type(settings)).items():
        value = getattr(settings, name)
        try:
            object.__setattr__(settings, name, read(value))
        except Wrong as wrong:
            raise Wrong((name, *wrong.path), wrong.rule) from None
        except ValueError as error:
            raise Wrong((name,), f"{value!r} {error}") from None


def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    return {f.name: f.metadata["read"] for f in fields(kind)}


def _unknown(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
    return f"unknown key; {hint}"


def by(read: Callable[[Any], Any]) -> dict[str, Any]:
    """Field metadata: what turns a value from outside into the field's own, or says which rule it breaks."""
    return {"read": read}


def whole(low: int, high: int = 2**53) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return read


def number(low: float, high: float = 1e9) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return float(value)

    return read


def span(value: Any) -> Span:
    seconds = number(0, 86_400)
    if isinstance(value, (list, tuple)):
        if len(value) != 2 or seconds(value[0]) > seconds(value[1]):
            raise ValueError("must be seconds, or [lowest, highest] seconds")
        return seconds(value[0]), seconds(value[1])
    return seconds(value), seconds(value)


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str) or "\r" in value or "\n" in value or not value.isprintable():
        raise ValueError("must be text on one line")
    return value


def reply(value: Any) -> str:
    line = text(value)
    if line and not re.fullmatch(r"[245]\d\d [\x20-\x7e]+", line):
        raise ValueError('must be an SMTP reply such as "450 4.7.1 Too many messages"')
    return line


def pattern(value: Any) -> str:
    try:
        re.compile(text(value))
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return str(value)


def one_of(kind: type[StrEnum]) -> Callable[[Any], StrEnum]:
    def read(value: Any) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"must be one of {', '.join(kind)}") from None

    return read


def loopback_host(value: Any) -> str:
    if value == "localhost":
        return "127.0.0.1"
    try:
        if ipaddress.ip_address(text(value)).is_loopback:
            return str(value)
    except ValueError:
        pass
    raise ValueError("must be a loopback address such as 127.0.0.1: the sandbox has no access control")
