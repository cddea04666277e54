"""Preparation by further processes: the same answers and the same report, row for row, whatever happens."""

from __future__ import annotations

import io
import json
import os
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.core.errors import InvalidInput
from sendonce.core.reminder import COLUMNS
from sendonce.pipeline import importer, preparer
from sendonce.pipeline.importer import Problem, Report, import_rows
from sendonce.pipeline.intake import Mode
from sendonce.pipeline.preparer import Outcome, Preparer, Rules
from sendonce.preparation import Origin
from sendonce.runtime import crew
from sendonce.table_file import BadRow, Row, TableFile
from tests.way_in import WayIn

HEADER = (
    "id,customer,email,phone,due,plan,date,zone,template,template_version,channels,from,priority,expires,name"
)
GOOD = "r-{0},c-{0},ann{0}@example.com,,2026-02-01T09:00,,,,pay,,,,,,Ann"
LINES = [
    GOOD,
    "r-{0},c-{0},Ann.{0}@Example.com,+1 202 555 0123,2026-02-01T09:00+01:00,,,,pay,3,,Us <us@b.io>,3,2h,Ann",
    "r-{0},,ann@example.com,+12025550123,,loan,2026-03-31,Europe/Paris,pay,,,,,,Ann",
    "r-{0},c-{0},ann@example.com,,+2h,,,,mail-only,,,,,,Zoë 山田",
    "r-{0},c-{0},ann@example.com,,2026-03-29T02:30,,,Europe/Berlin,pay,1,email,,,,Ann",
    "r-{0},c-{0},nobody,,2026-02-01T09:00,,,,pay,,,,,,Ann",
    "r-{0},c-{0},ann@example.com,,2020-01-01T09:00,,,,pay,,,,,,Ann",
    "r-{0},c-{0},ann@example.com,,2026-02-01T09:00,,,,unknown,,,,,,Ann",
    "r-{0},c-{0},ann@example.com,,2026-02-01T09:00,,,,pay,99,,,,,Ann",
    "r-{0},c-{0},ann@example.com,,2026-02-01T09:00,,,,pay,x,,,,,Ann",
    "r-{0},c-{0},ann@example.com,,2026-02-01T09:00,,,,,,,,,,Ann",
    "r-{0},c-{0},,+12025550123,2026-02-01T09:00,,,,mail-only,,,,,,Ann",
    "r-{0},c-{0},only three",
    ",,,,,,,,,,,,,,",
    ",c-{0},ann@example.com,,2026-02-01T09:00,,,,pay,,,,,,Ann",
    "r-0,c-0,ann0@example.com,,2026-02-01T09:00,,,,pay,,,,,,Ann",
    "r-0,c-0,ann0@example.com,,2026-02-01T09:00,,,,pay,,,,,,Bob",
    'r-{0},c-{0},ann@example.com,,2026-02-01T09:00,,,,pay,,,,,,"two\nlines"',
]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hands from the fifth row on, small chunks, and all of them for the hands, however slow they start."""
    monkeypatch.setattr(preparer, "INLINE_ROWS", 5)
    monkeypatch.setattr(preparer, "CHUNK_ROWS", 7)
    ready = crew._Hand.ready

    def waiting(hand: crew._Hand) -> bool:
        if not hand._started and not hand._lost:
            select.select([hand._from], [], [])
        return ready(hand)

    monkeypatch.setattr(crew._Hand, "ready", waiting)


def mixed(count: int) -> str:
    return "\n".join([HEADER, *(LINES[n % len(LINES)].format(n) for n in range(count))])


def table(text: str) -> TableFile:
    return TableFile(io.BytesIO(text.encode()), COLUMNS)


def rules(way_in: WayIn) -> Rules:
    return Rules("default", way_in.policy, way_in.store.secret, way_in.now, Origin("crm", 7))


def outcomes(way_in: WayIn, text: str, hands: int) -> list[tuple[int, Any]]:
    with Preparer(rules(way_in), way_in.book, hands=hands) as prepared:
        return [(row.number, shown(outcome)) for row, outcome in prepared.outcomes(table(text))]


def shown(outcome: Outcome) -> Any:
    """So that it can be compared: exceptions are equal to themselves only."""
    match outcome:
        case InvalidInput():
            return (type(outcome), str(outcome), outcome.field, outcome.code)
        case BadRow():
            return outcome
        case _:
            return [(replace(one, too_late=None), one.too_late and shown(one.too_late)) for one in outcome]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("hands", [1, 2])
def test_outcomes_are_the_same_with_hands(hands: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here = 0
    outcome = Preparer._outcome

    def counted(self: Preparer, row: Row | BadRow) -> Outcome:
        nonlocal here
        here += 1
        return outcome(self, row)

    way_in = WayIn()
    text = mixed(5 * len(LINES))
    alone = outcomes(way_in, text, 0)
    monkeypatch.setattr(Preparer, "_outcome", counted)
    assert outcomes(way_in, text, hands) == alone
    assert here == preparer.INLINE_ROWS
    assert {type(outcome) for _, outcome in alone} == {list, tuple, BadRow}


_texts = st.text(max_size=12)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.usefixtures("soon")
@settings(max_examples=5, deadline=None)
@given(st.lists(st.dictionaries(_texts | st.just("name"), _values, max_size=4), min_size=12, max_size=40))
def test_any_data_travels_unchanged(data: list[dict[str, Any]]) -> None:
    way_in = WayIn()
    text = "\n".join(
        json.dumps({"id": f"r-{n}", "email": "ann@example.com", "due": "now", "template": "pay", "data": one})
        for n, one in enumerate(data)
    )
    assert outcomes(way_in, text, 1) == outcomes(way_in, text, 0)


@pytest.mark.usefixtures("soon")
def test_data_nested_deeper_than_travels_is_answered_all_the_same() -> None:
    deep = "[" * 900 + "]" * 900
    lines = [
        f'{{"id": "{n}", "email": "a@b.io", "due": "now", "template": "pay", "x": {deep if n == 9 else 1}}}'
        for n in range(20)
    ]
    way_in = WayIn()
    alone = outcomes(way_in, "\n".join(lines), 0)
    assert outcomes(way_in, "\n".join(lines), 1) == alone
    assert "nested deeper" in str(alone[9])


# Whole imports


def imported(
    way_in: WayIn,
    text: str,
    hands: int,
    progress: Callable[[Report], None] = lambda report: None,
    **options: Any,
) -> tuple[Report, list[Problem]]:
    told: list[Problem] = []
    report = import_rows(
        way_in.store,
        way_in.policy,
        table(text),
        actor="operator:kim",
        book=way_in.book,
        hands=hands,
        on_problem=told.append,
        progress=progress,
        **options,
    )
    return report, told


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("options", [{}, {"dry_run": True}, {"mode": Mode.UPDATE}, {"source": "crm"}])
def test_the_report_is_the_same_with_hands(options: dict[str, Any]) -> None:
    text = mixed(6 * len(LINES))
    alone, helped = WayIn(), WayIn()
    helped.store.secret = alone.store.secret
    assert imported(helped, text, 2, **options) == imported(alone, text, 0, **options)
    assert helped.deliveries() == alone.deliveries()
    assert bool(alone.deliveries()) != bool(options.get("dry_run"))


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("after", [1, 2])
def test_a_hand_that_is_killed_loses_no_row(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    crews: list[crew.Crew] = []
    begin = crew.Crew.__init__

    def seen(self: crew.Crew, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        crews.append(self)

    monkeypatch.setattr(crew.Crew, "__init__", seen)
    monkeypatch.setattr(importer, "WIDE", 50)
    portions = 0

    def kill(report: Report) -> None:
        nonlocal portions
        portions += 1
        if portions == after:
            for hand in crews[0]._hands:
                os.kill(hand._process.pid, signal.SIGKILL)

    text = mixed(12 * len(LINES))
    alone, helped = WayIn(), WayIn()
    helped.store.secret = alone.store.secret
    assert imported(helped, text, 2, progress=kill) == imported(alone, text, 0)
    assert portions > after
    assert helped.deliveries() == alone.deliveries()


def test_few_rows_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparer, "Crew", lambda *_, **options: pytest.fail("a process was started"))
    monkeypatch.setattr(preparer, "INLINE_ROWS", 40)
    report, _ = imported(WayIn(), mixed(41), 2)  # one of the lines is blank
    assert report.rows > 30


@pytest.mark.usefixtures("soon")
def test_rows_are_not_read_far_ahead() -> None:
    read = 0

    def rows() -> Iterator[Row | BadRow]:
        nonlocal read
        for row in table(mixed(500)):
            read += 1
            yield row

    with Preparer(rules(way_in := WayIn()), way_in.book, hands=1) as prepared:
        for done, _ in enumerate(prepared.outcomes(rows()), 1):
            assert read - done <= preparer.CHUNK_ROWS * (crew.AHEAD + 1)
    assert read > 400
