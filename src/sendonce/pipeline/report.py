"""The report of a day: what fell due equals the sum of what became of it.

Everything that was due on one day, where the day is one on the wall clock of a zone, by channel,
category and account. What is still open is named. A disposition counts only if the ledger backs it:
where the row's state is not the one that its last entry tells, the sum falls short, and the report says
by how much, and for whom. What was removed by policy since still counts: its outcome was kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Final

from sendonce.core.due import check_zone, due_at_local
from sendonce.core.errors import InvalidInput
from sendonce.core.lifecycle import ENDED, OPEN, State
from sendonce.pipeline.record import delivery_of
from sendonce.ports.store import Delivery, EventLook, Tx

NAMED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One channel, category and account ("" before publication). `counts` by state, backed ones only."""

    channel: str
    category: str
    account: str
    due: int
    counts: Mapping[str, int]

    @property
    def adds_up(self) -> bool:
        return sum(self.counts.values()) == self.due


@dataclass(frozen=True, slots=True)
class Report:
    """One day. `start` up to but not including `end`, microseconds UTC.

    due      deliveries that fell due, counted apart from what became of them
    removed  how many of them were removed by policy since
    counts   by state, over all lines
    later    what providers said of them later, by kind: what stands, by rank, and what is told beside
    left     what providers said on that day and nobody could place, by state
    open     those not ended yet, the first `NAMED_MAX`
    faults   where it does not add up, in words; empty where it does
    """

    day: date
    zone: str
    start: int
    end: int
    due: int
    counts: Mapping[str, int]
    lines: tuple[ReportLine, ...]
    open: tuple[Delivery, ...]
    faults: tuple[str, ...]
    removed: int = 0
    later: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        return sum(self.counts.get(state, 0) for state in ENDED)

    @property
    def still_open(self) -> int:
        return sum(self.counts.get(state, 0) for state in OPEN)

    @property
    def adds_up(self) -> bool:
        return not self.faults


def report(tx: Tx, day: str, zone: str, *, tenant: str = "") -> Report:
    """The report of `day` ("2026-12-01") in `zone`; `tenant` "" means all of them.

    Raises `InvalidInput` for what is no date or no zone.
    """
    the_day = _day(day)
    zone = check_zone(zone, field="zone")
    start, end = _midnight(the_day, zone), _midnight(the_day + timedelta(days=1), zone)
    span: dict[str, int | str] = {"start": start, "end": end, "tenant": tenant}
    due_by: Counter[tuple[str, str, str]] = Counter()
    counts_by: dict[tuple[str, str, str], Counter[str]] = {}
    broken = False
    for row in tx.rows("view_report", **span):
        group = (str(row["channel"]), str(row["category"]), str(row["account"]))
        due_by[group] += int(row["count"])
        backed = counts_by.setdefault(group, Counter())
        broken = broken or row["backed"] != 1
        if row["backed"] == 1 and row["state"] in _STATES:
            backed[str(row["state"])] += int(row["count"])
    removed = 0
    for row in tx.rows("view_report_removed", **span):
        group = (str(row["channel"]), str(row["category"]), str(row["account"]))
        due_by[group] += int(row["count"])
        removed += int(row["count"])
        if row["state"] in _STATES:
            counts_by.setdefault(group, Counter())[str(row["state"])] += int(row["count"])
    lines = tuple(
        ReportLine(*group, due=due_by[group], counts=dict(counts_by[group])) for group in sorted(due_by)
    )
    counts = sum(counts_by.values(), Counter())
    due = int(tx.rows("view_report_due", **span)[0]["count"]) + removed
    return Report(
        day=the_day,
        zone=zone,
        start=start,
        end=end,
        due=due,
        counts=dict(counts),
        lines=lines,
        open=tuple(_open(tx, span)),
        faults=tuple(_faults(lines, due, counts.total(), _unbacked(tx, span) if broken else [])),
        removed=removed,
        later={str(row["kind"]): int(row["count"]) for row in tx.rows("view_report_facets", **span)},
        left={
            EventLook(int(row["look"])).name.lower(): int(row["count"])
            for row in tx.rows("view_report_events", **span)
        },
    )


_STATES: Final = frozenset(State)


def _unbacked(tx: Tx, span: Mapping[str, int | str]) -> list[str]:
    return [str(row["key"]) for row in tx.rows("view_report_unbacked", **span, limit=NAMED_MAX)]


def _open(tx: Tx, span: Mapping[str, int | str]) -> list[Delivery]:
    rows = tx.rows("view_report_open", **span, limit=NAMED_MAX)
    return [delivery_of(row) for row in rows if row["state"] in _STATES]


def _faults(lines: tuple[ReportLine, ...], due: int, ended_or_open: int, unbacked: list[str]) -> list[str]:
    faults = [
        f"{line.channel}, {line.category}, {line.account or 'no account yet'}: {line.due} due, "
        f"but the ledger backs {sum(line.counts.values())} dispositions"
        for line in lines
        if not line.adds_up
    ]
    if due != ended_or_open and not faults:
        faults.append(f"{due} due, but {ended_or_open} dispositions")
    if unbacked:
        named = ", ".join(unbacked[:5])
        more = f" and {len(unbacked) - 5} more" if len(unbacked) > 5 else ""
        faults.append(
            f"the ledger does not end where the row says for {named}{more}: `sendonce verify` tells why"
        )
    return faults


def _day(text: str) -> date:
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%d").date()  # noqa: DTZ007 (a date has no zone)
    except ValueError:
        raise InvalidInput(f"{text!r:.80} is no day: write it as 2026-12-01", field="day") from None


def _midnight(day: date, zone: str) -> int:
    return due_at_local(datetime.combine(day, time()), zone, field="day").at
