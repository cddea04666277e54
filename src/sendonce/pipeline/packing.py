"""What travels between a process and its hands (`runtime.crew`), where reminders are prepared.

Texts, numbers, and tuples and lists of them: objects of classes take several times as long. A hand has no
store. It gets the templates that its chunk names, or what is wrong with them, as the book of its process has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput
from sendonce.ports.store import Reminder, StoredTemplate
from sendonce.preparation import Prepared, Target
from sendonce.template_book import Loader, TemplateBook

Error = tuple[str, str, str]
Sources = list[tuple[int, str, str, str, str]]
"""All channels of a template: version, channel, subject, text, HTML."""
Named = Mapping[tuple[str, int], Sources | Error]
"""By name and version that was asked for."""
PackedOutcome = list[tuple[tuple[Any, ...], list[tuple[Any, ...]], tuple[str, ...], Error | None]] | Error

_of_reminder: Final = attrgetter(*(field.name for field in fields(Reminder)))
_of_target: Final = attrgetter(*(field.name for field in fields(Target)))


def sources_of(templates: TemplateBook, tenant: str, name: str, version: int) -> Sources | Error:
    """A template as it was written, or what is wrong with it."""
    try:
        found = templates.get(tenant, name, version)
    except InvalidInput as error:
        return _of_error(error)
    sources = [part.source for part in found.parts.values()]
    return [(found.version, one.channel, one.subject, one.text, one.html) for one in sources]


def loader_of(named: Named) -> Loader:
    """Loads what came along. Raises `KeyError` for what did not, and what is wrong with it."""

    def load(tenant: str, name: str, version: int) -> list[StoredTemplate]:
        found = named[name, version]
        if isinstance(found, tuple):
            raise _error(found)
        return [
            StoredTemplate(tenant, name, number, Channel(channel), subject, text, html, "", 0)
            for number, channel, subject, text, html in found
        ]

    return load


def packed(prepare: Callable[[], list[Prepared]]) -> PackedOutcome:
    """What preparing comes to, ready to travel."""
    try:
        return [_of_prepared(one) for one in prepare()]
    except InvalidInput as error:
        return _of_error(error)


def unpacked(outcome: PackedOutcome) -> list[Prepared] | InvalidInput:
    if isinstance(outcome, tuple):
        return _error(outcome)
    return [
        Prepared(
            Reminder(*reminder),
            tuple(Target(*target) for target in targets),
            notes,
            _error(too_late) if too_late else None,
        )
        for reminder, targets, notes, too_late in outcome
    ]


def _of_prepared(
    one: Prepared,
) -> tuple[tuple[Any, ...], list[tuple[Any, ...]], tuple[str, ...], Error | None]:
    targets = [_of_target(target) for target in one.targets]
    too_late = _of_error(one.too_late) if one.too_late else None
    return _of_reminder(one.reminder), targets, one.notes, too_late


def _of_error(error: InvalidInput) -> Error:
    return str(error), error.field, error.code


def _error(found: Error) -> InvalidInput:
    message, field, code = found
    return InvalidInput(message, field=field, code=code)
