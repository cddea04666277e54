"""The collector: takes in what applications handed in inside their own transactions.

    an application commits --> waiting --a unit: admitted and removed together--> deliveries
                                  \\--> parked, with what is wrong, until somebody retries or drops it

What waits is found by its state. A page is read and prepared outside the unit; the unit locks what of it
still waits, so that each is taken in once however many schedulers look, and one that is killed leaves all as
it was.

The moment of asking counts, not the moment of taking in: "in 2h" is counted from it, and what was in time
then is not too late because we were not there. A plan of which some steps cannot be is parked, and its other
steps are in; again, those are unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

from sendonce import telemetry
from sendonce.asking import asked_of_mapping
from sendonce.core import pacing
from sendonce.core.errors import InvalidInput, StoreError, StoreMismatch, StoreUnavailable
from sendonce.core.policy import Policy
from sendonce.pipeline.intake import UNIT_MAX, Result, Verdict, admit
from sendonce.ports.store import HandedIn, Store, Tx
from sendonce.preparation import Prepared, prepare
from sendonce.telemetry import fault, tell
from sendonce.template_book import TemplateBook

PAGE: Final = 500
"""Rows that are read at once: ten units, which a store may commit together."""
WHY_LENGTH_MAX: Final = 1_000

_INSIDE: Final = frozenset({Verdict.ACCEPTED, Verdict.UNCHANGED, Verdict.REVISED})


@dataclass(frozen=True, slots=True)
class Collected:
    """What one run did. `complete`: nothing waits any more that others do not have in hand."""

    taken: int
    parked: int
    complete: bool


class Collector:
    """Takes in what waits. Any number may run at once."""

    def __init__(self, store: Store, policy: Policy, book: TemplateBook) -> None:
        self._store = store
        self._policy = policy
        self._book = book

    def run(self, *, stopping: Callable[[], bool] = lambda: False) -> Collected:
        """Take in what waits; blocking, within the bounds of a pass. `stopping` is asked between pages.

        Raises `StoreError`; what was taken in until then is in.
        """
        taken = parked = 0
        until = self._store.steady() + int(self._policy.pass_time_max_s * pacing.SECOND)
        left = self._policy.pass_rows_max
        while left > 0 and not stopping():
            page = self._store.read(partial(_page, min(PAGE, left)))
            if not page:
                return Collected(taken, parked, complete=True)
            self._book.refresh()
            done = self._take(_units(map(self._prepared, page)))
            if not done:  # others have them in hand
                return Collected(taken, parked, complete=True)
            wrong = sum(end.fault is not None for end in done)
            taken, parked = taken + len(done) - wrong, parked + wrong
            left -= len(done)
            if self._store.steady() >= until:
                break
        return Collected(taken, parked, complete=False)

    def _prepared(self, handed: HandedIn) -> _Line:
        try:
            given = json.loads(handed.body)
            if not isinstance(given, dict):
                raise InvalidInput('it must be an object: {"reminder": ...}', field="reminder")
            asked = asked_of_mapping(given, handed.tenant)
            prepared = prepare(
                asked, self._policy, self._book, secret=self._store.secret, now=handed.asked_at
            )
        except InvalidInput as error:
            return _Line(handed, (), _Fault(error.field, str(error), error.code))
        except StoreError:
            raise  # a template could not be read: it is not the line
        except Exception as error:  # a bug: the line is parked alone, and hides nobody for ever
            return _Line(handed, (), _bug(error))
        return _Line(handed, tuple(prepared))

    def _take(self, units: Iterable[Sequence[_Line]]) -> list[_End]:
        """Each in a unit of its own; the next ones are prepared while the store writes the first."""
        handed = [(lines, self._store.write(partial(self._unit, lines))) for lines in units]
        wait([future for _, future in handed])  # for all: what goes wrong with one leaves none behind
        return [end for lines, future in handed for end in self._ends(lines, future)]

    def _ends(self, lines: Sequence[_Line], future: Future[list[_End]]) -> list[_End]:
        """What became of a unit. A line of it that cannot be written is found by halves, and parked."""
        try:
            ends = future.result()
        except (StoreUnavailable, StoreMismatch):
            raise
        except Exception as error:
            if len(lines) == 1:
                if lines[0].fault is not None:
                    raise  # not even parked: it is not the line
                return self._take([[_Line(lines[0].handed, (), _bug(error))]])
            middle = len(lines) // 2
            return self._take([lines[:middle], lines[middle:]])
        for end in ends:
            if end.fault is not None:
                tell(
                    telemetry.OUTBOX_PARKED,
                    tenant=end.handed.tenant,
                    intake_id=end.handed.id,
                    reason=end.fault.reason,
                )
        return ends

    def _unit(self, lines: Sequence[_Line], tx: Tx) -> list[_End]:
        mine = tx.intake.lock([line.handed.id for line in lines])
        ends: list[_End] = []
        for by, group in groupby((line for line in lines if line.handed.id in mine), lambda line: line.by):
            here = list(group)
            prepared = [one for line in here for one in line.prepared]
            results = iter(admit(tx, prepared, policy=self._policy, actor=by))
            ends += [_End(line.handed, line.fault or _fault_of(line, results)) for line in here]
        tx.intake.remove([end.handed.id for end in ends if end.fault is None])
        tx.intake.park(
            [
                (end.handed.id, end.fault.field, end.fault.why[:WHY_LENGTH_MAX])
                for end in ends
                if end.fault is not None
            ]
        )
        return ends


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why one is parked. `reason` is one word."""

    field: str
    why: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Line:
    """One that waits; with a fault there is nothing to admit."""

    handed: HandedIn
    prepared: tuple[Prepared, ...]
    fault: _Fault | None = None

    @property
    def by(self) -> str:
        """Who asked, for the ledger."""
        return f"outbox:{self.handed.asked_by}"


@dataclass(frozen=True, slots=True)
class _End:
    handed: HandedIn
    fault: _Fault | None


def _page(limit: int, tx: Tx) -> list[HandedIn]:
    return tx.intake.waiting(limit)


def _units(lines: Iterator[_Line]) -> Iterator[list[_Line]]:
    """Cut so that none has many more than `UNIT_MAX` reminders: a plan makes several of one line."""
    unit: list[_Line] = []
    size = 0
    for line in lines:
        unit.append(line)
        size += max(1, len(line.prepared))
        if size >= UNIT_MAX:
            yield unit
            unit, size = [], 0
    if unit:
        yield unit


def _fault_of(line: _Line, results: Iterator[Result]) -> _Fault | None:
    """The first of its results that is no success; takes as many as the line has."""
    found: _Fault | None = None
    for one, result in [(one, next(results)) for one in line.prepared]:
        if found is None and result.verdict not in _INSIDE:
            field = result.field or next(iter(result.fields), "")
            step = f"{one.reminder.reminder}: " if len(line.prepared) > 1 else ""
            found = _Fault(field, step + result.why, result.verdict.value)
    return found


def _bug(error: Exception) -> _Fault:
    """Told by type and place: the message may quote what it choked on."""
    told = fault(error)
    why = (
        f"it cannot be read or written ({told['error']} at {told['at']}): report it if you cannot see why, "
        "and drop it"
    )
    return _Fault("", why, told["error"])
