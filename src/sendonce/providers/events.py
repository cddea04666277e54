"""What the event sources of vendors have in common: a request is verified, split into items, each is read.

    verified bytes -> items -> collect(items, read) -> events, and a reason for each item that has none

A source adds what only it knows: what is signed, what an item looks like, and a table of the vendor's words.
Nothing of an event is trusted further than its form: texts are cut and cleaned, so that no store chokes on
them; times and ids that cannot be one are left out; a code is a short word or nothing. What has no word of
ours is `UNKNOWN` with the vendor's own code, also opens and clicks, which nobody here asks for.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from sendonce.core.errors import InvalidInput
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, Unreadable
from sendonce.ports.secret import Secret

Kinds = Mapping[str, EventKind]
"""The vendor's word, and ours."""

TEXT_MAX: Final = 4_096
ADDRESS_MAX: Final = 320
FIELDS_MAX: Final = 200

Item = TypeVar("Item")


class Faulty(Exception):
    """One item of a request cannot be read. `why` holds none of its content."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class VendorEvents:
    """The base of sources that keep nothing open."""

    async def close(self) -> None:
        return None


def check_secrets(secrets: tuple[Secret, ...], field: str = "event_secrets") -> None:
    """Raises `InvalidInput` for an empty one: anybody could sign with it."""
    if not all(secrets):
        raise InvalidInput("must hold no empty secret: anybody could sign with it", field=field)


def collect(items: Iterable[Item], read: Callable[[Item], ProviderEvent]) -> EventBatch:
    """Every item read; one that is faulty costs nobody but itself."""
    events: list[ProviderEvent] = []
    faulty: list[str] = []
    for item in items:
        try:
            events.append(read(item))
        except Faulty as fault:
            faulty.append(fault.why)
    return EventBatch(tuple(events), tuple(faulty))


# The request


def json_in(request: EventRequest) -> Any:
    """The JSON of the body. Raises `Unreadable`."""
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        raise Unreadable("json") from None


def json_object(request: EventRequest) -> dict[str, Any]:
    """The JSON object that the body is. Raises `Unreadable`."""
    return object_of(json_in(request), Unreadable("not_an_object"))


def form_in(request: EventRequest) -> dict[str, str]:
    """The form's fields; of one that came twice, the last. Raises `Unreadable`."""
    try:
        pairs = parse_qsl(
            request.body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        raise Unreadable("form") from None
    return dict(pairs)


def object_of(value: object, otherwise: Exception | None = None) -> dict[str, Any]:
    """`value` as an object. Raises `otherwise`, or `Faulty` where it is none."""
    if isinstance(value, dict):
        return value
    raise otherwise or Faulty("not_an_object")


def part(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object below `name`; empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


# The fields of an item


def identity_of(value: object) -> str:
    """The vendor's id of the event. Raises `Faulty`: without one a repeat could not be told."""
    text = text_in(value, 200).strip()
    if not text:
        raise Faulty("no_id")
    return text


def identity_from(*constant: object) -> str:
    """An id of our own, from what is the same whenever this event is told."""
    told = json.dumps([each if isinstance(each, str) else text_in(each) for each in constant]).encode("ascii")
    return "sha256-" + hashlib.sha256(told).hexdigest()


def kind_of(word: str, kinds: Kinds) -> EventKind:
    return kinds.get(word, EventKind.UNKNOWN)


def send_key_in(value: object) -> str:
    """Our reference where it is one: of others, whatever they are, we know nothing."""
    return value if isinstance(value, str) and _SEND_KEY.fullmatch(value) else ""


def address_in(value: object) -> str:
    """An address or a number as the vendor writes it; "" for what is too long for one."""
    text = text_in(value, ADDRESS_MAX + 1).strip()
    return text if len(text) <= ADDRESS_MAX else ""


def number_in(value: object) -> str:
    """A telephone number with the `+` that some vendors leave out; a sender's name stays as it is."""
    text = address_in(value)
    return f"+{text}" if _DIGITS.fullmatch(text) else text


def text_in(value: object, longest: int = TEXT_MAX) -> str:
    """A text that every store takes: no NUL, no half of a character, and not endless. Numbers are written."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value) if abs(value) < 1e18 else ""
    if not isinstance(value, str):
        return ""
    return value[:longest].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def moment_in(value: object) -> int | None:
    """Microseconds UTC of an ISO 8601 time or of seconds since 1970; None where it is neither.

    A time without a zone is UTC: so it is where vendors document one.
    """
    try:
        if isinstance(value, str) and not _SECONDS.fullmatch(value):
            at = datetime.fromisoformat(value)
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            micros = round(at.timestamp() * 1_000_000)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            seconds = float(value)
            micros = round(seconds * 1_000_000) if math.isfinite(seconds) else -1
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return micros if 0 < micros < _LATEST else None


_SEND_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DIGITS = re.compile(r"[1-9][0-9]{6,14}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)
_LATEST = 4_102_444_800_000_000  # the year 2100
