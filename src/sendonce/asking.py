"""A reminder as programs ask for it: a mapping by the names of its fields, read into an `Asked`.

Unlike a file's columns, an unknown name is an error: variables stand under `data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import date, datetime
from typing import Final

from sendonce.config import did_you_mean
from sendonce.core.errors import InvalidInput
from sendonce.core.reminder import COLUMNS, Asked


def asked_of_mapping(given: Mapping[str, object], tenant: str) -> Asked:
    """A reminder from a mapping by the fields of `Asked`, or their other names in files.

    Raises `InvalidInput`.
    """
    values: dict[str, object] = {"reminder": "", "tenant": tenant}
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
    return Asked(**values)  # type: ignore[arg-type]


def _read(field: str, value: object) -> object:
    match field, value:
        case "data", Mapping():
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
