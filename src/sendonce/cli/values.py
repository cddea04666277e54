"""Values that stand on the command line or in a file that it names."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from sendonce.core.errors import InvalidInput

STDIN: Final = "-"


def pairs_of(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """`["a=1", "b=x=y"]` as a mapping. Raises `InvalidInput` for one without "=" or named twice."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(f"{option} {text!r:.80} must be NAME=VALUE", field=option)
        if name.strip() in found:
            raise InvalidInput(f"{option} names {name.strip()!r:.80} twice: keep one", field=option)
        found[name.strip()] = value
    return found


def object_of(text: str, option: str) -> dict[str, object]:
    """A JSON object, given as text or as the name of a file that holds it; "" is an empty one."""
    if not text:
        return {}
    if not text.lstrip().startswith(("{", "[", '"')):
        with opened(text) as stream:
            text = stream.read().decode("utf-8-sig", errors="replace")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{option} is no JSON ({error}): write an object", field=option) from None
    if not isinstance(value, dict):
        raise InvalidInput(f'{option} must be a JSON object, such as \'{{"name": "Ann"}}\'', field=option)
    return value


@contextmanager
def opened(name: str) -> Iterator[IO[bytes]]:
    """A file for reading, or standard input for "-". Raises `InvalidInput` where it cannot be read."""
    if name == STDIN:
        yield sys.stdin.buffer
        return
    with _readable(name) as stream:
        yield stream


def _readable(name: str) -> IO[bytes]:
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise InvalidInput(f"{name!r:.200} cannot be read: {error.strerror}", field="file") from None


def size_of(name: str) -> int | None:
    """How many bytes a file has; None where nobody knows, as for a pipe."""
    path = Path(name)
    return path.stat().st_size if name != STDIN and path.is_file() else None


def moment(text: str, zone: str, now: int, option: str) -> int:
    """An instant as callers write due times, "in 2h" or "2026-12-01T09:00+01:00"; microseconds UTC."""
    from sendonce.preparation import due_of

    try:
        return due_of(text, "", zone, now)[0].at
    except InvalidInput as error:
        raise InvalidInput(f"{option}: {error}", field=option) from None
