"""Rows of a file, prepared in their order: here, and by further processes where the file is long.

Preparation is pure, so who does it makes no difference to the answer; the store is written here. The
first `INLINE_ROWS` are prepared here one by one, as they come. Then the hands of a `runtime.crew` are
started, and get the rows that follow in chunks; until they are ready, chunks are prepared here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Self

from sendonce.core.errors import InvalidInput
from sendonce.core.policy import Policy
from sendonce.core.reminder import asked_of
from sendonce.pipeline.packing import Error, PackedOutcome, Sources, loader_of, packed, sources_of, unpacked
from sendonce.preparation import Origin, Prepared, prepare
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
        sources: dict[tuple[str, int], Sources | Error] = {}
        for name, version in named:
            with suppress(InvalidInput):  # a version that is no number: the row does not come as far
                number = asked_of({"template_version": version}, {}).template_version
                sources[name, number] = sources_of(self._templates, self._rules.tenant.strip(), name, number)
        return rows, sources


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


_Packed = tuple[list[tuple[Mapping[str, str], Mapping[str, object]]], dict[tuple[str, int], Sources | Error]]


def preparing(rules: Rules) -> Callable[[_Packed], list[PackedOutcome]]:
    """What a hand does with a chunk."""
    sources: dict[tuple[str, int], Sources | Error] = {}
    templates = TemplateBook(loader_of(sources))

    def work(given: _Packed) -> list[PackedOutcome]:
        rows, named = given
        sources.clear()
        sources.update(named)
        templates.refresh()
        return [packed(partial(_prepare, values, data, rules, templates)) for values, data in rows]

    return work


def _unpack(
    chunk: Sequence[Row | BadRow], outcomes: list[PackedOutcome]
) -> list[tuple[Row | BadRow, Outcome]]:
    answers = iter(outcomes)
    return [(row, row if isinstance(row, BadRow) else unpacked(next(answers))) for row in chunk]
