"""Rows of a file, prepared in their order: here, and by further processes where the file is long.

Preparation is pure, so who does it makes no difference to the answer; the store is written here. The
first `INLINE_ROWS` are prepared here one by one, as they come. Then the hands of a `runtime.crew` are
started, and get the rows that follow in chunks; until they are ready, chunks are prepared here too.

A hand has no store. With each chunk it gets the templates that the chunk names, or what is wrong with
them, as the book of this process has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from typing import Any, Final, Self

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput
from sendonce.core.policy import Policy
from sendonce.core.reminder import asked_of
from sendonce.ports.store import Reminder, StoredTemplate
from sendonce.preparation import Origin, Prepared, Target, prepare
from sendonce.runtime.crew import Crew
from sendonce.table_file import BadRow, Row
from sendonce.template_book import TemplateBook

INLINE_ROWS: Final = 3_000
"""Rows before hands are started. They take about 0.3 s to start, in which a thousand more are prepared."""

CHUNK_ROWS: Final = 100

Outcome = list[Prepared] | InvalidInput | BadRow
"""The reminders of a row, or what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is the same for all rows of an import; see `preparation.prepare`."""

    tenant: str
    policy: Policy
    secret: bytes
    now: int
    origin: Origin


class Preparer:
    """Prepares the rows of one import. Leaving it ends the hands that it started; `hands` 0: none."""

    def __init__(self, rules: Rules, templates: TemplateBook, *, hands: int = 0) -> None:
        self._rules = rules
        self._templates = templates
        self._hands = hands
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def outcomes(self, rows: Iterable[Row | BadRow]) -> Iterator[tuple[Row | BadRow, Outcome]]:
        """Each row with what became of it. Few rows are ahead of what was taken, whatever their number."""
        coming = iter(rows)
        for row in islice(coming, INLINE_ROWS) if self._hands > 0 else coming:
            yield row, self._outcome(row)
        first = list(islice(coming, CHUNK_ROWS))
        if not first:
            return
        crew = self._exits.enter_context(Crew(preparing, self._rules, hands=self._hands))
        chunks = _chunks(first, coming)
        for chunk in crew.each(chunks, here=self._prepared, pack=self._pack, unpack=_unpack):
            yield from chunk

    def _outcome(self, row: Row | BadRow) -> Outcome:
        if isinstance(row, BadRow):
            return row
        try:
            return _prepare(row.values, row.data, self._rules, self._templates)
        except InvalidInput as error:
            return error

    def _prepared(self, chunk: Sequence[Row | BadRow]) -> list[tuple[Row | BadRow, Outcome]]:
        return [(row, self._outcome(row)) for row in chunk]

    def _pack(self, chunk: Sequence[Row | BadRow]) -> _Packed:
        rows = [(row.values, row.data) for row in chunk if isinstance(row, Row)]
        named = {(values.get("template", ""), values.get("template_version", "")) for values, _ in rows}
        sources: dict[tuple[str, int], _Sources | _Error] = {}
        for name, version in named:
            with suppress(InvalidInput):  # a version that is no number: the row does not come as far
                number = asked_of({"template_version": version}, {}).template_version
                sources[name, number] = self._sources(name, number)
        return rows, sources

    def _sources(self, name: str, version: int) -> _Sources | _Error:
        """All channels of a template, as they were written."""
        try:
            found = self._templates.get(self._rules.tenant.strip(), name, version)
        except InvalidInput as error:
            return _of_error(error)
        sources = [part.source for part in found.parts.values()]
        return [(found.version, one.channel, one.subject, one.text, one.html) for one in sources]


def _chunks(first: list[Row | BadRow], rows: Iterator[Row | BadRow]) -> Iterator[list[Row | BadRow]]:
    chunk = first
    while chunk:
        yield chunk
        chunk = list(islice(rows, CHUNK_ROWS))


def _prepare(
    values: Mapping[str, str], data: Mapping[str, object], rules: Rules, templates: TemplateBook
) -> list[Prepared]:
    asked = asked_of(values, data, tenant=rules.tenant)
    return prepare(asked, rules.policy, templates, secret=rules.secret, now=rules.now, origin=rules.origin)


# What travels: texts, numbers, and tuples and lists of them. Objects of classes take several times as long.

_Error = tuple[str, str, str]
_Sources = list[tuple[int, str, str, str, str]]
_Packed = tuple[
    list[tuple[Mapping[str, str], Mapping[str, object]]], dict[tuple[str, int], _Sources | _Error]
]
_PackedPrepared = tuple[tuple[Any, ...], list[tuple[Any, ...]], tuple[str, ...], _Error | None]
_PackedOutcome = list[_PackedPrepared] | _Error

_of_reminder: Final = attrgetter(*(field.name for field in fields(Reminder)))
_of_target: Final = attrgetter(*(field.name for field in fields(Target)))


def preparing(rules: Rules) -> Callable[[_Packed], list[_PackedOutcome]]:
    """What a hand does with a chunk."""
    sources: dict[tuple[str, int], _Sources | _Error] = {}

    def load(tenant: str, name: str, version: int) -> list[StoredTemplate]:
        found = sources[name, version]
        if isinstance(found, tuple):
            raise _error(found)
        return [
            StoredTemplate(tenant, name, number, Channel(channel), subject, text, html, "", 0)
            for number, channel, subject, text, html in found
        ]

    templates = TemplateBook(load)

    def outcome(values: Mapping[str, str], data: Mapping[str, object]) -> _PackedOutcome:
        try:
            return [_of_prepared(one) for one in _prepare(values, data, rules, templates)]
        except InvalidInput as error:
            return _of_error(error)

    def work(packed: _Packed) -> list[_PackedOutcome]:
        rows, given = packed
        sources.clear()
        sources.update(given)
        templates.refresh()
        return [outcome(values, data) for values, data in rows]

    return work


def _unpack(
    chunk: Sequence[Row | BadRow], packed: list[_PackedOutcome]
) -> list[tuple[Row | BadRow, Outcome]]:
    answers = iter(packed)
    return [(row, row if isinstance(row, BadRow) else _outcome_of(next(answers))) for row in chunk]


def _outcome_of(packed: _PackedOutcome) -> Outcome:
    if isinstance(packed, tuple):
        return _error(packed)
    return [
        Prepared(
            Reminder(*reminder),
            tuple(Target(*target) for target in targets),
            notes,
            _error(too_late) if too_late else None,
        )
        for reminder, targets, notes, too_late in packed
    ]


def _of_prepared(one: Prepared) -> _PackedPrepared:
    targets = [_of_target(target) for target in one.targets]
    too_late = _of_error(one.too_late) if one.too_late else None
    return _of_reminder(one.reminder), targets, one.notes, too_late


def _of_error(error: InvalidInput) -> _Error:
    return str(error), error.field, error.code


def _error(packed: _Error) -> InvalidInput:
    message, field, code = packed
    return InvalidInput(message, field=field, code=code)
