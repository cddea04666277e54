"""Imports: a whole file through intake, with a report that accounts for every row.

Rows go through `preparation` one by one and into the store in short units, so an import of any size
holds up nobody, and a row that is wrong stops no other. A crash leaves whole units behind; the same
file again finds them unchanged and goes on, so the end is the same as without the crash.

Every import is remembered. What it created can be taken back as long as it has not been sent
(`undo`), and what it revised gets its earlier content back; after that the corrected file may be
imported under the same ids.

A file with a `source` can be the whole truth of that source: `cancel_missing` then cancels what the
source listed before and lists no more. It is refused where the list shrank too much, which is what
half a file looks like, and where rows could not be read, since what they listed is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Final

from sendonce import telemetry
from sendonce.core.delivery import check_id
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.lifecycle import Event
from sendonce.core.policy import Policy
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.moves import facts_of
from sendonce.pipeline.intake import (
    NOT_LISTED,
    UNDONE,
    UNIT_MAX,
    Mode,
    Result,
    Verdict,
    admit,
    identity_of,
)
from sendonce.pipeline.preparer import Outcome, Preparer, Rules
from sendonce.ports.store import Delivery, Reminder, Store, Tx
from sendonce.preparation import Origin, Prepared, prepared_again
from sendonce.runtime.turns import Turns
from sendonce.table_file import BadRow, Row, TableFile
from sendonce.telemetry import tell
from sendonce.template_book import TemplateBook, from_store
from sendonce.withdrawal import Answer, Word, check_reason, judge, withdraw

PROBLEMS_MAX: Final = 1_000
SHRINK_MAX_SHARE: Final = 0.2
UNREAD_MAX: Final = 10_000
WIDE: Final = 1_000
"""Reminders in a portion, and in a unit that keeps nobody waiting: fewer flushes, fewer journeys."""
LOOK_US: Final = 1_000_000
"""How long what was seen of other processes is believed."""
WORKING_MAX: Final = 20
"""Of the processes heard of last; one that is at work is among them."""
PAGE: Final = 50
"""Deliveries or reminders in one unit of taking back: about 5 ms of the write lock."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A row, or a reminder of it, that did not get in. `message` names value, rule and fix.

    verdict  invalid, conflicting or refused
    """

    row: int
    reminder: str
    field: str
    verdict: Verdict
    message: str

    def __str__(self) -> str:
        where = f"row {self.row}" + (f", {self.field}" if self.field else "")
        return f"{where}: {self.message}"


@dataclass(slots=True)
class Report:
    """What became of a file.

    rows       rows read, also the bad ones; blank ones are not counted
    counts     reminders by verdict (`Verdict`); a row that could not be read is one invalid. Without
               plans the sum is `rows`
    deliveries of the accepted and revised reminders, over all channels
    notes      what was assumed on the way, and how often
    problems   the first `PROBLEMS_MAX`; `more_problems` came after them
    missing    deliveries that the source no longer lists, by `withdrawal.Word`
    missing_refused  why nothing was cancelled for that reason; "" where nothing was in the way
    """

    import_id: int = 0
    dry_run: bool = False
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    deliveries: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    more_problems: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    missing_refused: str = ""

    def count(self, verdict: Verdict) -> int:
        return self.counts[verdict.value]

    @property
    def clean(self) -> bool:
        """Every row got in, or was in already, and all that was asked for is done."""
        return not self.problems and not self.missing_refused


def import_rows(
    store: Store,
    policy: Policy,
    rows: Iterable[Row | BadRow],
    *,
    actor: str,
    tenant: str = DEFAULT_TENANT,
    source: str = "",
    file: str = "",
    mode: Mode = Mode.NEW,
    dry_run: bool = False,
    cancel_missing: bool = False,
    shrink_max_share: float = SHRINK_MAX_SHARE,
    book: TemplateBook | None = None,
    hands: int = 0,
    progress: Callable[[Report], None] = lambda report: None,
    on_problem: Callable[[Problem], None] = lambda problem: None,
) -> Report:
    """Import rows; what the report says is durable.

    source           the named list that the rows are, "" for none
    file             for the record of imports only
    dry_run          write nothing, and report the same
    cancel_missing   cancel what `source` listed before and these rows do not
    shrink_max_share of its open reminders may be missing at most, else nothing is cancelled
    hands            further processes that prepare rows where there are thousands; the report is the same
    progress         called after each portion; `on_problem` with each problem, also past `PROBLEMS_MAX`

    Relative times count from the start of the import. Raises `InvalidInput` where `cancel_missing` has
    no source, and `StoreUnavailable`: then run it again, what was done is found unchanged.
    """
    if cancel_missing and not source:
        raise InvalidInput(
            "cancel-missing needs the name of the source that the file lists: give --source NAME",
            field="source",
        )
    templates = book or TemplateBook(from_store(store))
    templates.refresh()
    run = _Run(
        store,
        policy,
        templates,
        actor,
        tenant,
        mode,
        Report(dry_run=dry_run),
        on_problem,
        lists=cancel_missing,
        # Rows that were waited for are not kept waiting themselves.
        portion_max=WIDE if isinstance(rows, TableFile) and rows.all_there else UNIT_MAX,
    )
    with run.begin(source, file, hands) as preparer:
        for portion in run.portions(preparer.outcomes(rows)):
            run.take(portion)
            progress(run.report)
    if cancel_missing:
        run.cancel_missing(source, shrink_max_share, progress)
    run.finish()
    return run.report


_Line = tuple[int, Prepared]
"""A prepared reminder and the number of its row."""


class _Run:
    """One import on its way."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        templates: TemplateBook,
        actor: str,
        tenant: str,
        mode: Mode,
        report: Report,
        on_problem: Callable[[Problem], None],
        *,
        lists: bool,
        portion_max: int,
    ) -> None:
        self._store = store
        self._portion_max = portion_max
        self._policy = policy
        self._templates = templates
        self._actor = actor
        self._tenant = tenant
        self._mode = mode
        self.report = report
        self._on_problem = on_problem
        self._turns = Turns(store.steady, size_max=UNIT_MAX)
        self._waited_for = store.one_writer
        self._looked_at = -LOOK_US
        self._rehearsed: dict[bytes, str] = {}
        # For cancel_missing: whom the rows list, and whether rows are unknown. Ids only: a source of
        # a million reminders fits into memory.
        self._lists = lists
        self._listed: set[int] = set()
        self._created: set[int] = set()
        self._unread: set[str] = set()
        self._blind = False

    def begin(self, source: str, file: str, hands: int) -> Preparer:
        if source:
            check_id(source, "source")
        if self.report.dry_run:
            now = self._store.read(lambda tx: tx.now)
        else:
            begin = partial(_begin, self._tenant, source, file, self._actor)
            now, self.report.import_id = self._store.write(begin).result()
        origin = Origin(source, self.report.import_id)
        rules = Rules(self._tenant, self._policy, self._store.secret, now, origin)
        return Preparer(rules, self._templates, hands=hands)

    def portions(self, outcomes: Iterable[tuple[Row | BadRow, Outcome]]) -> Iterator[list[_Line]]:
        """The rows that are right, in portions; what is wrong is told on the way."""
        portion: list[_Line] = []
        for row, outcome in outcomes:
            self.report.rows += 1
            match outcome:
                case BadRow():
                    self._unreadable(row, outcome.field, outcome.message)
                case InvalidInput():
                    self._unreadable(row, outcome.field, str(outcome))
                case prepared:
                    for one in prepared:
                        self.report.notes.update(one.notes)
                        portion.append((row.number, one))
            if len(portion) >= self._portion_max:
                yield portion
                portion = []
        if portion:
            yield portion

    def take(self, portion: Sequence[_Line]) -> None:
        for unit in self._turns.parts(portion) if self._is_waited_for() else (portion,):
            with self._turns.room() if self._waited_for else nullcontext():
                results = self._rehearse(unit) if self.report.dry_run else self._written(unit)
            for (number, prepared), result in zip(unit, results, strict=True):
                self._account(number, prepared, result)

    def _is_waited_for(self) -> bool:
        """Whether a process is at work that our units would keep waiting; looked at once a second.

        Where there is none, units are wide: each ends with a flush, and those take longer than the rows.
        """
        if self._store.one_writer and self._store.steady() - self._looked_at >= LOOK_US:
            self._looked_at = self._store.steady()
            self._waited_for = self._store.read(_somebody_works)
        return self._waited_for

    def finish(self) -> None:
        if self.report.dry_run:
            return
        report = self.report
        counts = {**report.counts, "rows": report.rows, "missing": report.missing.total()}
        self._store.write(lambda tx: tx.runs.finish_import(report.import_id, counts)).result()
        tell(
            telemetry.IMPORT_FINISHED,
            tenant=self._tenant,
            import_id=report.import_id,
            rows=report.rows,
            accepted=report.count(Verdict.ACCEPTED),
            unchanged=report.count(Verdict.UNCHANGED),
            revised=report.count(Verdict.REVISED),
            conflicting=report.count(Verdict.CONFLICTING),
            invalid=report.count(Verdict.INVALID),
            cancelled=report.missing.total(),
        )

    # Rows

    def _unreadable(self, row: Row | BadRow, field_: str, message: str) -> None:
        reminder = row.values.get("reminder", "")
        if reminder and len(self._unread) < UNREAD_MAX:
            self._unread.add(reminder)
        else:
            self._blind = True
        self.report.counts[Verdict.INVALID.value] += 1
        self._problem(Problem(row.number, reminder, field_, Verdict.INVALID, message))

    def _account(self, number: int, prepared: Prepared, result: Result) -> None:
        report, verdict = self.report, result.verdict
        report.counts[verdict.value] += 1
        if self._lists and result.reminder_id:
            self._listed.add(result.reminder_id)
            if verdict is Verdict.ACCEPTED:
                self._created.add(result.reminder_id)
        match verdict:
            case Verdict.ACCEPTED | Verdict.REVISED:
                report.deliveries += len(result.keys)
            case Verdict.UNCHANGED:
                if result.why:
                    report.notes[result.why] += 1
            case Verdict.CONFLICTING | Verdict.REFUSED | Verdict.INVALID:
                named = result.field or ", ".join(result.fields)
                self._problem(Problem(number, prepared.reminder.reminder, named, verdict, result.why))

    def _problem(self, problem: Problem) -> None:
        if len(self.report.problems) < PROBLEMS_MAX:
            self.report.problems.append(problem)
        else:
            self.report.more_problems += 1
        self._on_problem(problem)

    # Units

    def _written(self, unit: Sequence[_Line]) -> list[Result]:
        return self._store.write(self._admitting([one for _, one in unit])).result()

    def _admitting(self, prepared: Sequence[Prepared]) -> Callable[[Tx], list[Result]]:
        def unit(tx: Tx) -> list[Result]:
            return admit(tx, prepared, policy=self._policy, actor=self._actor, mode=self._mode)

        return self._turns.timed(unit, len(prepared)) if self._waited_for else unit

    def _rehearse(self, unit: Sequence[_Line]) -> list[Result]:
        """As admission, written nowhere: the unit takes itself back.

        So it cannot meet what earlier units of this file would have written; of those, a digest of
        identity and content is kept.
        """
        met = {at: result for at, (_, one) in enumerate(unit) if (result := self._met(one)) is not None}
        fresh = [one for at, (_, one) in enumerate(unit) if at not in met]
        results = iter(_taken_back(self._store, self._admitting(fresh)))
        answers = [met[at] if at in met else next(results) for at in range(len(unit))]
        for (_, one), answer in zip(unit, answers, strict=True):
            if answer.verdict in (Verdict.ACCEPTED, Verdict.REVISED):
                self._rehearsed[_digest(one)] = one.reminder.spec_hash[:16]
        return answers

    def _met(self, prepared: Prepared) -> Result | None:
        known = self._rehearsed.get(_digest(prepared))
        if known is None:
            return None
        keys = tuple(target.key for target in prepared.targets)
        if known == prepared.reminder.spec_hash[:16]:
            return Result(Verdict.UNCHANGED, 0, keys)
        if self._mode is Mode.UPDATE:
            return Result(Verdict.REVISED, 0, keys)
        why = "an earlier row of this file gives it other content: nothing was changed; keep one of them"
        return Result(Verdict.CONFLICTING, 0, keys, why=why)

    # What the source no longer lists

    def cancel_missing(
        self, source: str, shrink_max_share: float, progress: Callable[[Report], None]
    ) -> None:
        report = self.report
        if self._blind:
            report.missing_refused = (
                "some rows could not be read at all, so what they list is unknown: correct them and run "
                "the import again; nothing was cancelled"
            )
            return
        open_ids = self._open_of(source) - self._created
        missing = sorted(open_ids - self._listed - self._spared(open_ids - self._listed))
        if len(missing) > shrink_max_share * len(open_ids):
            report.missing_refused = (
                f"{len(missing)} of {len(open_ids)} open reminders of source {source!r} are not listed, "
                f"more than {shrink_max_share:.0%}: where the file is whole, allow a larger share; nothing "
                "was cancelled"
            )
            return
        for at in range(0, len(missing), PAGE):
            page = missing[at : at + PAGE]
            if report.dry_run:
                words = self._store.read(partial(self._judge_missing, page))
            else:
                words = self._store.write(partial(self._withdraw_missing, page)).result()
            report.missing.update(word.value for word in words)
            progress(report)

    def _open_of(self, source: str) -> set[int]:
        """Ids of the source's reminders with a delivery that has not ended."""
        found: set[int] = set()
        value: dict[str, int | str] = {"tenant": self._tenant, "source": source, "import_id": -1}
        after = 0
        while page := self._store.read(partial(_matching, "source_missing", value, after)):
            after = page[-1].id
            found.update(delivery.reminder_id for delivery in page)
        return found

    def _spared(self, candidates: set[int]) -> set[int]:
        """Not listed, and not missing either: their row was wrong, or a later import wrote them."""
        spared: set[int] = set()
        ordered = sorted(candidates)
        for at in range(0, len(ordered), 500):
            page = ordered[at : at + 500]
            for id_, reminder in self._store.read(partial(_reminders, page)).items():
                by_row = not self._unread.isdisjoint(
                    (reminder.reminder, reminder.reminder.rpartition("/")[0])
                )
                if by_row or (self.report.import_id and reminder.import_id > self.report.import_id):
                    spared.add(id_)
        return spared

    def _withdraw_missing(self, reminder_ids: Sequence[int], tx: Tx) -> list[Word]:
        rows = [row for row in tx.deliveries.of_reminders(reminder_ids) if row.ended_at == 0]
        answers = withdraw(
            tx, rows, Event.CANCELLED, policy=self._policy, actor=self._actor, reasons=NOT_LISTED
        )
        return [answer.word for answer in answers]

    def _judge_missing(self, reminder_ids: Sequence[int], tx: Tx) -> list[Word]:
        return [
            judge(row, Event.CANCELLED, facts_of(row, self._policy, now=tx.now, steady=tx.steady))[0].word
            for row in tx.deliveries.of_reminders(reminder_ids)
            if row.ended_at == 0
        ]


class _TakenBack(Exception):
    def __init__(self, results: list[Result]) -> None:
        self.results = results


def _taken_back(store: Store, unit: Callable[[Tx], list[Result]]) -> list[Result]:
    """What a unit would answer, while nothing of it stays."""

    def rehearsal(tx: Tx) -> None:
        raise _TakenBack(unit(tx))

    try:
        store.write(rehearsal).result()
    except _TakenBack as taken:
        return taken.results
    raise AssertionError("a rehearsal always takes itself back")


def _matching(what: str, value: Mapping[str, int | str], after: int, tx: Tx) -> list[Delivery]:
    return tx.deliveries.matching(what, value, 500, after)


def _reminders(ids: Sequence[int], tx: Tx) -> dict[int, Reminder]:
    return tx.reminders.by_ids(ids)


def _revisions(import_id: int, after: int, tx: Tx) -> list[Reminder]:
    return tx.reminders.revisions(import_id, PAGE, after)


def _somebody_works(tx: Tx) -> bool:
    running = tx.rows("view_processes", since=tx.now, steady=tx.steady, limit=WORKING_MAX)
    return any(row["stopped"] == 0 and int(row["lease_until"]) > tx.steady for row in running)


def _begin(tenant: str, source: str, file: str, actor: str, tx: Tx) -> tuple[int, int]:
    # A file may have any name; what is kept of it is what a person can read.
    readable = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in file)
    return tx.now, tx.runs.begin_import(tenant, source, readable, actor)


def _digest(prepared: Prepared) -> bytes:
    return blake2b("\0".join(identity_of(prepared)).encode(), digest_size=12).digest()


# Undo.


@dataclass(slots=True)
class Undone:
    """What taking back an import did.

    counts    deliveries that it created, by `withdrawal.Word`
    restored  reminders that it revised and that say again what they said before
    kept      reminders that stay as they are, with the reason: the first `PROBLEMS_MAX`
    """

    import_id: int
    counts: Counter[str] = field(default_factory=Counter)
    restored: int = 0
    kept: list[tuple[str, str]] = field(default_factory=list)
    more_kept: int = 0

    def keep(self, reminder: str, why: str) -> None:
        if len(self.kept) < PROBLEMS_MAX:
            self.kept.append((reminder, why))
        else:
            self.more_kept += 1


def undo(
    store: Store,
    import_id: int,
    *,
    policy: Policy,
    actor: str,
    reason: str,
    tenant: str = DEFAULT_TENANT,
    progress: Callable[[Undone], None] = lambda undone: None,
) -> Undone:
    """Take back what an import created and revised, as far as it has not been sent.

    What a later import or call changed again is kept, and said. Stopped halfway and asked again, it
    goes on. Raises `NotFound`, and `InvalidInput` for an empty reason.
    """
    reason = check_reason(reason)
    runs = store.read(lambda tx: tx.rows("import_get", id=import_id))
    if not runs or runs[0]["tenant"] != tenant:
        raise NotFound(f"no import {import_id} in tenant {tenant}: `sendonce import --list` shows them")
    undone = Undone(import_id)
    created = _take_back(store, undone, policy, actor, progress)
    _restore(store, undone, created, policy, actor, progress)

    def finish(tx: Tx) -> None:
        tx.runs.undo_import(import_id)
        body = {**undone.counts, "restored": undone.restored}
        tx.runs.audit(actor, "import_undo", str(import_id), reason, body)

    store.write(finish).result()
    return undone


def _take_back(
    store: Store, undone: Undone, policy: Policy, actor: str, progress: Callable[[Undone], None]
) -> set[int]:
    """Cancel what the import created; the ids of those reminders."""
    created: set[int] = set()
    kept: set[int] = set()
    after = 0
    while True:
        page = store.write(partial(_take_back_page, undone.import_id, policy, actor, after)).result()
        if not page.reminders:
            return created
        after = page.last
        created.update(page.reminders)
        undone.counts.update(answer.word.value for answer in page.answers)
        for id_, reminder in page.reminders.items():
            if reminder.import_id != undone.import_id and id_ not in kept:
                undone.keep(reminder.reminder, _LATER)
                kept.add(id_)
        progress(undone)


@dataclass(frozen=True, slots=True)
class _Page:
    reminders: dict[int, Reminder]
    answers: list[Answer]
    last: int


def _take_back_page(import_id: int, policy: Policy, actor: str, after: int, tx: Tx) -> _Page:
    page = tx.deliveries.matching("import", {"import_id": import_id}, PAGE, after)
    reminders = tx.reminders.by_ids([row.reminder_id for row in page])
    own = [row for row in page if reminders[row.reminder_id].import_id == import_id]
    answers = withdraw(tx, own, Event.CANCELLED, policy=policy, actor=actor, reasons=UNDONE)
    return _Page(reminders, answers, page[-1].id if page else after)


def _restore(
    store: Store,
    undone: Undone,
    created: set[int],
    policy: Policy,
    actor: str,
    progress: Callable[[Undone], None],
) -> None:
    """Give what the import revised its earlier content back, as a revision of its own."""
    after = 0
    while page := store.read(partial(_revisions, undone.import_id, after)):
        after = page[-1].id
        first: dict[int, Reminder] = {}
        for said in page:
            if said.id not in created:
                first.setdefault(said.id, said)
        answers = store.write(
            partial(_restore_page, list(first.values()), undone.import_id, policy, actor, store.secret)
        ).result()
        for said, why in zip(first.values(), answers, strict=True):
            if why:
                undone.keep(said.reminder, why)
            else:
                undone.restored += 1
        progress(undone)


def _restore_page(
    said: Sequence[Reminder], import_id: int, policy: Policy, actor: str, secret: bytes, tx: Tx
) -> list[str]:
    """Why each is kept as it is; "" where it says again what it said before."""
    current = tx.reminders.by_ids([one.id for one in said])
    answers = []
    for one in said:
        now = current[one.id]
        if now.import_id != import_id:
            answers.append("" if now.spec_hash == one.spec_hash else _LATER)
        elif _was_undone_before(tx, one):
            rows = tx.deliveries.of_reminders([one.id])
            withdraw(tx, rows, Event.CANCELLED, policy=policy, actor=actor, reasons=UNDONE)
            answers.append("")
        else:
            earlier = prepared_again(replace(one, id=0, import_id=0), secret=secret)
            (result,) = admit(tx, [earlier], policy=policy, actor=actor, mode=Mode.UPDATE)
            answers.append(result.why if result.verdict is Verdict.REFUSED else "")
    return answers


def _was_undone_before(tx: Tx, said: Reminder) -> bool:
    """What it said before belonged to an import that was undone: then it goes back to being cancelled."""
    runs = tx.rows("import_get", id=said.import_id) if said.import_id else []
    return bool(runs) and int(runs[0]["undone_at"]) > 0


_LATER: Final = "it was changed again after this import"
