"""Imports: every row accounted for, the same file twice, a crash in the middle, undo, missing rows."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.core.errors import InvalidInput, NotFound, StoreUnavailable
from sendonce.core.lifecycle import Event
from sendonce.core.reminder import COLUMNS
from sendonce.pipeline import importer
from sendonce.pipeline.importer import WIDE, Problem, Report, Undone, import_rows, undo
from sendonce.pipeline.intake import UNIT_MAX, Mode, Result, Verdict, admit
from sendonce.ports.store import Process, Tx
from sendonce.preparation import Prepared
from sendonce.table_file import TableFile
from tests.way_in import WayIn

HEADER = "id,customer,email,due,template,name"


@pytest.fixture
def way_in() -> WayIn:
    return WayIn()


def table(*lines: str, header: str = HEADER, **defaults: str) -> TableFile:
    content = "\n".join([header, *lines]) + "\n"
    return TableFile(io.BytesIO(content.encode()), COLUMNS, defaults=defaults)


def line(n: int, *, name: str = "Ann", due: str = "2026-02-01T09:00", email: str = "") -> str:
    return f"r-{n},c-{n},{email or f'ann{n}@example.com'},{due},pay,{name}"


def run(way_in: WayIn, file: TableFile, **options: Any) -> Report:
    return import_rows(way_in.store, way_in.policy, file, actor="operator:kim", book=way_in.book, **options)


def counts(report: Report) -> dict[str, int]:
    return {name: count for name, count in report.counts.items() if count}


def back(way_in: WayIn, import_id: int, **options: Any) -> Undone:
    return undo(
        way_in.store, import_id, policy=way_in.policy, actor="operator:kim", reason="wrong file", **options
    )


# Every row


def test_the_report_accounts_for_every_row(way_in: WayIn) -> None:
    run(way_in, table(line(1), line(2)))
    report = run(
        way_in,
        table(
            line(1),
            line(2, name="Bob"),
            line(3),
            line(4, due="2026-02-30T09:00"),
            "r-5,c-5,only three",
            "",
            line(6, email="nobody"),
            line(7, due="2020-01-01T09:00"),
            line(3),
        ),
    )
    assert report.rows == 8
    assert counts(report) == {"accepted": 1, "unchanged": 2, "conflicting": 1, "invalid": 4}
    assert sum(report.counts.values()) == report.rows
    assert [(problem.row, problem.field, problem.verdict) for problem in report.problems] == [
        (5, "due", Verdict.INVALID),
        (6, "", Verdict.INVALID),
        (8, "email", Verdict.INVALID),
        (3, "data.name", Verdict.CONFLICTING),
        (9, "due", Verdict.INVALID),
    ]
    assert "'2026-02-30T09:00'" in report.problems[0].message
    assert str(report.problems[0]).startswith("row 5, due: ")
    assert not report.clean
    assert report.deliveries == 1
    assert report.notes == {"no timezone given: Europe/Berlin was assumed": 5}
    assert len(way_in.states()) == 3


def test_a_file_may_have_a_name_that_no_store_can_hold(way_in: WayIn) -> None:
    """CONT-15: on most systems a name is bytes, and need not be text. A source is a name, and is checked."""
    taken = table(line(1))
    import_rows(way_in.store, way_in.policy, taken, actor="operator:kim", file="bad\udcff\0.csv")
    (known,) = way_in.store.read(lambda tx: tx.rows("import_list", tenant="default", before=99, limit=9))
    assert known["file"] == "bad\ufffd\ufffd.csv"
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="holds a control"):
            run(way_in, table(line(2)), source="crm\0", dry_run=dry_run)
    assert len(way_in.states()) == 1


def test_people_with_other_capitals_are_one(way_in: WayIn) -> None:
    """API-03."""
    content = b'email\nAnn@Example.com\nann@example.com \nann@example.com\n""\n'
    defaults = {"reminder": "news", "due": "2026-02-01T09:00", "template": "mail-only"}
    for accepted, unchanged in ((1, 2), (0, 3)):
        report = run(way_in, TableFile(io.BytesIO(content), COLUMNS, defaults=defaults))
        assert (report.rows, report.count(Verdict.ACCEPTED)) == (4, accepted)
        assert report.count(Verdict.UNCHANGED) == unchanged
        assert report.count(Verdict.INVALID) == 1
        assert (report.problems[0].row, report.problems[0].field) == (5, "email")
    assert list(way_in.states().values()) == ["SCHEDULED"]


@pytest.mark.parametrize("mode", Mode)
def test_the_same_file_again_changes_nothing(way_in: WayIn, mode: Mode) -> None:
    lines = [line(n) for n in range(WIDE + 30)]
    run(way_in, table(*lines))
    before = way_in.deliveries()
    report = run(way_in, table(*lines), mode=mode)
    assert counts(report) == {"unchanged": WIDE + 30}
    assert report.clean
    assert way_in.deliveries() == before


def test_problems_are_bounded_in_memory_and_all_told(way_in: WayIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "PROBLEMS_MAX", 5)
    told: list[Problem] = []
    report = run(way_in, table(*(line(n, due="soon") for n in range(12))), on_problem=told.append)
    assert (len(report.problems), report.more_problems, len(told)) == (5, 7, 12)


def test_progress_is_told_after_each_unit(way_in: WayIn) -> None:
    seen: list[int] = []
    count = 2 * WIDE + 5
    run(
        way_in,
        table(*(line(n) for n in range(count))),
        progress=lambda report: seen.append(report.count(Verdict.ACCEPTED)),
    )
    assert seen == [WIDE, 2 * WIDE, count]


def test_rows_that_were_waited_for_do_not_wait_for_others(way_in: WayIn) -> None:
    """A pipe may say nothing more for long; what it gave is written in short portions."""
    reader, writer = os.pipe()
    with open(writer, "w") as given:
        given.write("\n".join([HEADER, *(line(n) for n in range(UNIT_MAX + 1))]) + "\n")
    seen: list[int] = []
    with open(reader, "rb") as stream:
        file = TableFile(stream, COLUMNS)
        run(way_in, file, progress=lambda report: seen.append(report.count(Verdict.ACCEPTED)))
    assert seen == [UNIT_MAX, UNIT_MAX + 1]


def test_portions_are_wide_where_writers_do_not_wait_for_each_other(
    way_in: WayIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(way_in.store), "one_writer", False)
    monkeypatch.setattr(way_in.store, "steady", lambda: pytest.fail("nothing is timed"))
    seen: list[int] = []
    lines = [line(n) for n in range(WIDE + 7)]
    run(way_in, table(*lines), progress=lambda report: seen.append(report.count(Verdict.ACCEPTED)))
    assert seen == [WIDE, WIDE + 7]


@pytest.mark.parametrize("alive", [True, False])
def test_units_are_short_while_a_process_would_wait_for_them(
    way_in: WayIn, monkeypatch: pytest.MonkeyPatch, *, alive: bool
) -> None:
    """Nothing else tells that somebody waits; a process whose lease is over does not."""
    until = way_in.store.steady() + (1_000_000 if alive else 0)
    at_work = Process("w-1", "worker", "sms", "host", 7, 0, 0, until, stopped=False)
    way_in.store.write(lambda tx: tx.processes.beat(at_work)).result()
    sizes: list[int] = []

    def admitted(tx: Tx, prepared: Sequence[Prepared], **options: Any) -> list[Result]:
        sizes.append(len(prepared))
        return admit(tx, prepared, **options)

    monkeypatch.setattr(importer, "admit", admitted)
    run(way_in, table(*(line(n) for n in range(WIDE + 1))))
    assert sizes == ([UNIT_MAX] * (WIDE // UNIT_MAX) + [1] if alive else [WIDE, 1])


def test_a_plan_counts_reminders(way_in: WayIn) -> None:
    file = table(
        "loan-1,c-1,ann@example.com,+12025550123,2026-03-31,Ann",
        "loan-2,c-2,bob@example.com,,2026-03-31,Bob",
        header="id,customer,email,phone,plan_date,name",
        plan="loan",
        template="pay",
    )
    report = run(way_in, file)
    assert (report.rows, counts(report), report.deliveries) == (2, {"accepted": 3, "invalid": 1}, 4)
    assert report.problems[0].field == "phone"


# Rehearsal


def _mixed() -> TableFile:
    many = [line(n) for n in range(WIDE)]
    return table(
        line(900, name="new"),
        line(901, name="other"),
        *many,
        line(5),
        line(6, name="Bob"),
        line(950, due="?"),
        line(5, name="Cid"),
        line(901),
    )


@pytest.mark.parametrize("mode", Mode)
def test_a_dry_run_reports_the_same_and_writes_nothing(way_in: WayIn, mode: Mode) -> None:
    run(way_in, table(line(900), line(901)))
    before = way_in.deliveries(), _tables(way_in)
    dry = run(way_in, _mixed(), mode=mode, dry_run=True)
    assert (way_in.deliveries(), _tables(way_in)) == before
    assert (dry.import_id, dry.dry_run) == (0, True)
    wet = run(way_in, _mixed(), mode=mode)
    assert dry.counts == wet.counts
    assert (dry.rows, dry.deliveries, dry.notes) == (wet.rows, wet.deliveries, wet.notes)
    assert [(p.row, p.verdict) for p in dry.problems] == [(p.row, p.verdict) for p in wet.problems]


def _tables(way_in: WayIn) -> dict[str, int]:
    connection = way_in.store._inline
    assert connection is not None
    names = [
        str(row[0]) for row in connection._execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    return {name: int(next(iter(connection._execute(f"SELECT count(*) FROM {name}")))[0]) for name in names}


# Crashes


class Crash(Exception):
    pass


@pytest.mark.parametrize("units", [0, 1, 2])
def test_a_crash_in_the_middle_and_the_file_again_give_the_same_end(way_in: WayIn, units: int) -> None:
    lines = [line(n, name=f"Ann {n}") for n in range(2 * WIDE + 7)]
    left = units

    def die(report: Report) -> None:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1

    with pytest.raises(Crash):
        run(way_in, table(*lines), progress=die)
    crashed = len(way_in.states())
    assert crashed == min((units + 1) * WIDE, len(lines))
    report = run(way_in, table(*lines))
    assert (report.count(Verdict.UNCHANGED), report.count(Verdict.ACCEPTED)) == (
        crashed,
        len(lines) - crashed,
    )
    whole = WayIn()
    run(whole, table(*lines))
    assert way_in.states() == whole.states()


def test_a_store_that_is_away_stops_the_import_with_nothing_half_done(
    way_in: WayIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        results = admit(*args, **options)
        if calls == 2:
            raise StoreUnavailable("the disk is full")
        return results

    monkeypatch.setattr(importer, "admit", failing)
    lines = [line(n) for n in range(2 * WIDE)]
    with pytest.raises(StoreUnavailable):
        run(way_in, table(*lines))
    assert len(way_in.states()) == WIDE
    assert counts(run(way_in, table(*lines))) == {"unchanged": WIDE, "accepted": WIDE}


# What a source no longer lists


def listing(way_in: WayIn, ids: Iterable[int], *more: str, **options: Any) -> Report:
    given = {"source": "crm", "cancel_missing": True, **options}
    return run(way_in, table(*(line(n) for n in ids), *more), **given)


def open_ids(way_in: WayIn) -> set[int]:
    return {
        int(key.split(":")[0][2:])
        for key, state in way_in.states().items()
        if state in ("SCHEDULED", "SENDING")
    }


def test_what_the_source_no_longer_lists_is_cancelled(way_in: WayIn) -> None:
    listing(way_in, range(20))
    run(way_in, table(line(100)), source="shop")
    run(way_in, table(line(101)))
    way_in.lead("r-3:c-3:email", Event.PUBLISHED, Event.CLAIMED, Event.ACCEPTED)
    way_in.lead("r-4:c-4:email", Event.PUBLISHED, Event.CLAIMED)
    dry = listing(way_in, range(5, 25), shrink_max_share=0.3, dry_run=True)
    assert open_ids(way_in) == {*range(20), 100, 101} - {3}
    report = listing(way_in, range(5, 25), shrink_max_share=0.3)
    assert report.missing == {"cancelled": 3, "cancel_pending": 1} == dry.missing
    assert open_ids(way_in) == {*range(4, 25), 100, 101}
    assert way_in.deliveries()["r-1:c-1:email"].course.reason == "not_listed"
    assert report.clean


@pytest.mark.parametrize(("left", "refused"), [(8, False), (7, True), (0, True)])
def test_half_a_file_cancels_nothing(way_in: WayIn, left: int, refused: bool) -> None:
    listing(way_in, range(10))
    report = listing(way_in, range(left))
    assert bool(report.missing_refused) is refused
    assert report.clean is not refused
    assert open_ids(way_in) == set(range(10 if refused else left))
    if refused:
        assert f"{10 - left} of 10" in report.missing_refused
        assert listing(way_in, range(left), shrink_max_share=1.0).missing == {"cancelled": 10 - left}


def test_a_row_that_is_wrong_is_not_missing(way_in: WayIn) -> None:
    listing(way_in, range(10))
    report = listing(way_in, range(9), line(9, due="soon"))
    assert (report.count(Verdict.INVALID), report.missing) == (1, {})
    assert open_ids(way_in) == set(range(10))
    assert listing(way_in, range(9), line(9, name="Bob")).missing == {}


def test_rows_without_an_id_leave_it_open_what_is_listed(way_in: WayIn) -> None:
    listing(way_in, range(10))
    report = listing(way_in, range(9), ",c-9,ann9@example.com,2026-02-01T09:00,pay,Ann")
    assert "could not be read" in report.missing_refused
    assert open_ids(way_in) == set(range(10))


def test_a_step_of_a_plan_whose_row_is_wrong_is_not_missing(way_in: WayIn) -> None:
    header = "id,customer,email,date,channels,name"
    options = {"plan": "loan", "template": "pay"}
    rows = [f"loan-{n},c-{n},a{n}@example.com,2026-03-31,email,Ann" for n in range(6)]
    run(way_in, table(*rows, header=header, **options), source="bank", cancel_missing=True)
    assert len(way_in.states()) == 12
    rows[0] = rows[0].replace("2026-03-31", "31.03.2026")
    report = run(way_in, table(*rows, header=header, **options), source="bank", cancel_missing=True)
    assert report.missing == {}
    assert set(way_in.states().values()) == {"SCHEDULED"}


def test_what_is_listed_again_comes_back(way_in: WayIn) -> None:
    listing(way_in, range(10))
    listing(way_in, range(9))
    assert open_ids(way_in) == set(range(9))
    assert counts(run(way_in, table(line(9)), source="shop")) == {"unchanged": 1}
    report = listing(way_in, range(10))
    assert counts(report) == {"unchanged": 9, "accepted": 1}
    assert open_ids(way_in) == set(range(10))


def test_cancel_missing_needs_a_source(way_in: WayIn) -> None:
    with pytest.raises(InvalidInput, match="source"):
        run(way_in, table(line(1)), cancel_missing=True)


# Undo


def test_undo_takes_back_what_was_created_and_not_sent(way_in: WayIn) -> None:
    run(way_in, table(line(0)))
    report = run(way_in, table(*(line(n) for n in range(6))))
    way_in.lead("r-1:c-1:email", Event.PUBLISHED, Event.CLAIMED, Event.ACCEPTED)
    way_in.lead("r-2:c-2:email", Event.PUBLISHED, Event.CLAIMED)
    undone = back(way_in, report.import_id)
    assert undone.counts == {"already_sent": 1, "cancel_pending": 1, "cancelled": 3}
    assert (undone.restored, undone.kept) == (0, [])
    assert way_in.states()["r-0:c-0:email"] == "SCHEDULED"
    after = way_in.deliveries()
    assert back(way_in, report.import_id).counts == undone.counts
    assert way_in.deliveries() == after
    (row,) = way_in.store.read(lambda tx: tx.rows("import_get", id=report.import_id))
    assert int(row["undone_at"]) == way_in.now


def test_undo_gives_revised_reminders_their_content_back(way_in: WayIn) -> None:
    run(way_in, table(*(line(n) for n in range(4))))
    report = run(
        way_in, table(*(line(n, name="Bob", due="2026-02-02T09:00") for n in range(5))), mode=Mode.UPDATE
    )
    assert counts(report) == {"revised": 4, "accepted": 1}
    way_in.lead("r-1:c-1:email", Event.PUBLISHED, Event.CLAIMED)
    run(way_in, table(line(2, name="Cid")), mode=Mode.UPDATE)
    undone = back(way_in, report.import_id)
    assert undone.counts == {"cancelled": 1}
    assert undone.restored == 2
    assert dict(undone.kept) == {
        "r-1": "email: may already be sent (SENDING): its content can no longer change",
        "r-2": "it was changed again after this import",
    }
    names = {n: way_in.reminder(n + 1).data for n in range(4)}
    assert names == {0: '{"name":"Ann"}', 1: '{"name":"Bob"}', 2: '{"name":"Cid"}', 3: '{"name":"Ann"}'}
    delivery = way_in.deliveries()["r-0:c-0:email"]
    assert delivery.course.due_at == way_in.reminder(1).due_at
    assert way_in.reminder(1).due_local == "2026-02-01T09:00:00"
    assert (delivery.standing.version, way_in.reminder(1).version) == (3, 3)
    assert back(way_in, report.import_id).restored == 2
    assert counts(run(way_in, table(line(0), line(3)))) == {"unchanged": 2}


def test_the_corrected_file_goes_in_after_an_undo(way_in: WayIn) -> None:
    wrong = run(way_in, table(*(line(n, name="Wrong") for n in range(4))))
    back(way_in, wrong.import_id)
    assert set(way_in.states().values()) == {"CANCELLED"}
    right = run(way_in, table(*(line(n) for n in range(4))))
    assert counts(right) == {"accepted": 4}
    assert set(way_in.states().values()) == {"SCHEDULED"}
    assert way_in.reminder(1).data == '{"name":"Ann"}'
    # The first undo again does not reach what a later import brought back ...
    assert {why for _, why in back(way_in, wrong.import_id).kept} == {
        "it was changed again after this import"
    }
    assert set(way_in.states().values()) == {"SCHEDULED"}
    # ... and undoing the later one does not bring the wrong file back.
    back(way_in, right.import_id)
    assert set(way_in.states().values()) == {"CANCELLED"}


def test_what_a_person_cancelled_does_not_come_back_with_the_file(way_in: WayIn) -> None:
    report = run(way_in, table(line(1), line(2)))
    way_in.lead("r-1:c-1:email", Event.CANCELLED, course={"reason": "paid"})
    back(way_in, report.import_id)
    again = run(way_in, table(line(1), line(2)))
    assert counts(again) == {"unchanged": 1, "accepted": 1}
    assert way_in.states() == {"r-1:c-1:email": "CANCELLED", "r-2:c-2:email": "SCHEDULED"}
    assert any("cancelled" in note for note in again.notes)


def test_a_row_given_twice_in_one_file_is_undone_once(way_in: WayIn) -> None:
    report = run(way_in, table(line(1), line(1, name="Bob"), line(1, name="Cid")), mode=Mode.UPDATE)
    assert counts(report) == {"accepted": 1, "revised": 2}
    undone = back(way_in, report.import_id)
    assert (undone.counts, undone.restored) == ({"cancelled": 1}, 0)
    run(way_in, table(line(2)))
    report = run(way_in, table(line(2, name="Bob"), line(2, name="Cid")), mode=Mode.UPDATE)
    assert back(way_in, report.import_id).restored == 1
    assert way_in.reminder(2).data == '{"name":"Ann"}'


def test_undo_in_pages(way_in: WayIn) -> None:
    count = 2 * importer.PAGE + 3
    report = run(way_in, table(*(line(n) for n in range(count))))
    revised = run(way_in, table(*(line(n, name="Bob") for n in range(count))), mode=Mode.UPDATE)
    seen: list[int] = []
    assert back(way_in, revised.import_id, progress=lambda u: seen.append(u.restored)).restored == count
    assert seen == [importer.PAGE, 2 * importer.PAGE, count]
    assert {reminder for reminder, _ in back(way_in, report.import_id).kept} == {
        f"r-{n}" for n in range(count)
    }


@pytest.mark.parametrize("tenant", ["default", "other"])
def test_undo_of_an_unknown_import(way_in: WayIn, tenant: str) -> None:
    if tenant == "other":
        run(way_in, table(line(1)))
    with pytest.raises(NotFound):
        back(way_in, 1, tenant=tenant)


def test_undo_needs_a_reason(way_in: WayIn) -> None:
    report = run(way_in, table(line(1)))
    with pytest.raises(InvalidInput, match="reason"):
        undo(way_in.store, report.import_id, policy=way_in.policy, actor="a", reason="")


# Any files in any order


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5), st.sampled_from("AB?")), max_size=8),
            st.sampled_from(Mode),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_sequence_of_files_keeps_its_promises(
    files: list[tuple[list[tuple[int, str]], Mode, bool]],
) -> None:
    """Rows are all accounted for, dry runs tell the truth, the second time changes nothing."""
    way_in = WayIn()
    for rows, mode, undone in files:
        lines = [line(n, name=name, due="soon" if name == "?" else "2026-02-01T09:00") for n, name in rows]
        dry = run(way_in, table(*lines), mode=mode, dry_run=True)
        report = run(way_in, table(*lines), mode=mode)
        assert dry.counts == report.counts
        assert sum(report.counts.values()) == report.rows == len(rows)
        if undone:
            back(way_in, report.import_id)
            after = way_in.deliveries()
            back(way_in, report.import_id)
            assert way_in.deliveries() == after
        elif mode is Mode.NEW:
            after = way_in.deliveries()
            again = run(way_in, table(*lines), mode=mode)
            assert again.count(Verdict.ACCEPTED) == 0
            assert way_in.deliveries() == after
