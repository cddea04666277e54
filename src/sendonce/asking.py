"""A reminder as programs ask for it: a mapping by the names of its fields, read into an `Asked`.

Unlike a file's columns, an unknown name is an error: variables stand under `data`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Final

from sendonce.config import did_you_mean
from sendonce.core.delivery import Channel
from sendonce.core.due import SECOND, instant_of
from sendonce.core.errors import InvalidInput
from sendonce.core.reminder import COLUMNS, Asked
from sendonce.ports.store import Reminder

DEPTH_MAX: Final = 32
"""Lists and objects inside each other, in what a template shows."""

_CONTAINERS: Final = (dict, list, tuple)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def asked_of_mapping(given: Mapping[str, object], tenant: str) -> Asked:
    """A reminder from a mapping by the fields of `Asked`, or their other names in files.

    Raises `InvalidInput`.
    """
    values: dict[str, object] = {"reminder": "", "tenant": tenant, **fields_of_mapping(given)}
    return Asked(**values)  # type: ignore[arg-type]


def fields_of_mapping(given: Mapping[str, object]) -> dict[str, object]:
    """What is given, by the fields of `Asked`; None counts as not given. Raises `InvalidInput`."""
    values: dict[str, object] = {}
    for name, value in given.items():
        field = FIELD_OF.get(name)
        if field is None:
            raise InvalidInput(
                f"{name!r:.80} is no field of a reminder: {did_you_mean(name, _FIELDS)} "
                "(what the template shows belongs into data)",
                field=str(name)[:80],
            )
        if value is not None:
            values[field] = _read(field, value)
    return values


def asked_again(old: Reminder) -> Asked:
    """A reminder that the store has, as if it were asked for anew: prepared, it is the same again."""
    email = old.recipients.get(Channel.EMAIL, {})
    sms = old.recipients.get(Channel.SMS, {})
    return Asked(
        reminder=old.reminder,
        customer=old.customer,
        due=_due_again(old),
        timezone=old.zone,
        template=old.template,
        template_version=old.template_version,
        data=json.loads(old.data),
        email=email.get("to", ""),
        phone=sms.get("to", ""),
        channels=tuple(old.recipients),
        sender=email.get("sender", ""),
        reply_to=email.get("reply_to", ""),
        sms_sender=sms.get("sender", ""),
        category=old.category,
        group=old.group,
        priority=old.priority,
        expires=_expires_again(old),
        tenant=old.tenant,
    )


def too_deep(value: object, depth_max: int = DEPTH_MAX) -> bool:
    """Whether lists and objects are inside each other more than `depth_max` deep."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(depth_max + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return False
    return True


def _due_again(old: Reminder) -> str:
    """The wall time as it was meant; where that says another instant than was kept, the instant."""
    wall = datetime.fromisoformat(old.due_local)
    if old.zone and instant_of(old.due_local, old.zone) == old.due_at:
        return old.due_local
    at = _EPOCH + timedelta(microseconds=old.due_at)
    if old.zone:
        return at.isoformat()
    return wall.replace(tzinfo=timezone(wall - at.replace(tzinfo=None))).isoformat()


def _expires_again(old: Reminder) -> str:
    """The span until it expires, where all channels have the same; else each has its own, as configured."""
    spans = {int(recipient["expires_at"]) - old.due_at for recipient in old.recipients.values()}
    return f"{spans.pop() / SECOND:f}s" if len(spans) == 1 else ""


def _read(field: str, value: object) -> object:
    match field, value:
        case "data", Mapping():
            if too_deep(value):
                raise InvalidInput(f"data is nested more than {DEPTH_MAX} deep: make it flat", field="data")
            return value
        case "channels", str():
            return tuple(value.replace(",", " ").split())
        case "channels", list() | tuple() if all(isinstance(one, str) for one in value):
            return tuple(value)
        case (("priority" | "template_version"), int()) if not isinstance(value, bool):
            return value
        case (("due" | "date" | "expires"), datetime() | date()):
            return value.isoformat()
        case (("data" | "channels" | "priority" | "template_version"), _):
            kind = {"data": "a mapping", "channels": "a list of names"}.get(field, "a whole number")
            raise InvalidInput(f"{field} is {type(value).__name__} and must be {kind}", field=field)
        case _, str():
            return value
        case _:
            raise InvalidInput(f"{field} is {type(value).__name__} and must be text", field=field)


_FIELDS: Final = tuple(field.name for field in fields(Asked))
FIELD_OF: Final[Mapping[str, str]] = {
    **{other: field for field, others in COLUMNS.items() for other in others},
    **{field: field for field in _FIELDS},
}
