"""The proof: every delivery's ledger is whole, and replaying it gives the row.

For each delivery, by its own entries:

1. the chain: no entry changed, dropped, swapped or cut off; the row carries the last hash and the count
2. the replay: each entry is a step that the life cycle's table allows, and the last one gives the row
3. what must never be, whatever the table says: a claim at or past the expiry, a claim after a cancel, an
   acceptance that does not stand where the record says that nothing was sent
4. what stands beside it: account, attempts, receipt and end follow from the entries, and its place on the
   agenda from the row, so that nobody can hide a delivery from the stages; the frozen text still has the hash
   that was recorded

What retention removed is counted by its tombstones. Their chain is proven too, and each against what is left
of its deliveries; so what is missing by policy is told from what is missing.

It reads spans of ids, one after the other, in bounded memory, beside running workers. A row or an entry
that cannot be read is a fault like any other and stops nothing.

A chain proves a delivery against its row. That somebody with write access replaced both, rows and
entries together, or took both away, the seals show (`sealed`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import groupby, product
from typing import Final

from sendonce.core.delivery import parse_key
from sendonce.core.errors import InvalidInput, StoreMismatch
from sendonce.core.ledger import TELLS_RECEIPT, Fault, check_chain, standing_of
from sendonce.core.lifecycle import (
    ENDED,
    SAYS_NOT_SENT,
    TABLE,
    Event,
    Facts,
    Moved,
    Standing,
    State,
    step,
)
from sendonce.core.tombstone import Remains, Tombstone, fault_of
from sendonce.pipeline.record import Line, line_of, standing_of_row
from sendonce.ports.store import Row, Store, Tx
from sendonce.render import content_hash

SPAN: Final = 250
"""Ids read at once."""
TOMBSTONES: Final = 100
FAULTS_MAX: Final = 1_000
UNREADABLE_MAX: Final = 100
"""So many spans that the database itself cannot read, and the file is beyond checking row by row."""


@dataclass(slots=True)
class Verified:
    """What was checked. `faults` are the first `FAULTS_MAX` of `faulty`; `removed` were pruned by policy."""

    deliveries: int = 0
    entries: int = 0
    removed: int = 0
    faulty: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.faulty == 0

    def add(self, faults: Sequence[Fault]) -> None:
        self.faulty += len(faults)
        self.faults += faults[: FAULTS_MAX - len(self.faults)]


def verify(
    store: Store, *, progress: Callable[[Verified, int], None] = lambda verified, total: None
) -> Verified:
    """Check everything. `progress` gets what was checked so far, and about how many deliveries there are.

    Raises `StoreMismatch` only where the file is so broken that rows can no longer be told apart.
    """
    verified = Verified()
    sizes = store.read(lambda tx: tx.rows("view_verify_size"))[0]
    total = max(int(sizes["deliveries"]), int(sizes["recorded"]), int(sizes["planned"]))
    unreadable = 0
    for after in range(0, total, SPAN):
        unreadable += _check_span(store, verified, after, min(after + SPAN, total))
        if unreadable >= UNREADABLE_MAX:
            raise StoreMismatch(
                f"{unreadable} spans of the database cannot be read: restore the last backup, then verify it"
            )
        progress(verified, total)
    _check_tombstones(store, verified)
    return verified


def _check_span(store: Store, verified: Verified, after: int, upto: int) -> int:
    """Check the ids above `after` up to `upto`; how many spans the database could not read."""
    try:
        span = store.read(partial(_read, after, upto))
    except StoreMismatch as error:
        if upto - after == 1:
            verified.add([Fault(f"id {upto}", 0, f"the database cannot read it: {error}")])
            return 1
        middle = (after + upto) // 2
        lower = _check_span(store, verified, after, middle)
        return lower + _check_span(store, verified, middle, upto)
    for row in span.rows:
        id_ = row["id"]
        lines = span.lines.pop(id_, [])
        verified.deliveries += 1
        verified.entries += len(lines)
        called = (id_, row["epoch"]) in span.calls
        verified.add(check(row, lines, span.contents.get(id_, []), called=called))
    for id_, orphans in span.lines.items():
        verified.entries += len(orphans)
        key = orphans[0].word("key") or f"id {id_}"
        verified.add([Fault(key, 0, f"{len(orphans)} entries stand for a delivery that has no row")])
    for id_ in span.planned - {row["id"] for row in span.rows}:
        verified.add([Fault(f"id {id_}", 0, "it is on the agenda, and has no row")])
    return 0


def _check_tombstones(store: Store, verified: Verified) -> None:
    """The chain of what was removed, a page at a time."""
    last: Tombstone | None = None
    while page := store.read(partial(_read_tombstones, last.number if last is not None else 0)):
        for stone, rows in page:
            key = f"tombstone {stone.number}"
            verified.removed += len(rows)
            try:
                fault = fault_of(stone, last, [_remains(row) for row in rows])
            except (ValueError, TypeError) as error:
                fault = f"what is left of its deliveries cannot be read ({type(error).__name__})"
            there = [row["delivery_id"] for row in rows if row["there"]]
            if there and not fault:
                fault = f"delivery id {there[0]} is said to be removed, and is there"
            if fault:
                verified.add([Fault(key, 0, fault)])
            last = stone


def _remains(row: Row) -> Remains:
    return Remains(int(row["delivery_id"]), int(row["entries"]), str(row["head"]))


def _read_tombstones(after: int, tx: Tx) -> list[tuple[Tombstone, list[Row]]]:
    stones = [
        Tombstone(int(row["number"]), _whole(row["at"]), str(row["body"]), str(row["hash"]))
        for row in tx.rows("view_tombstones", after=after, limit=TOMBSTONES)
    ]
    upto = stones[-1].number if stones else after
    of: dict[int, list[Row]] = {}
    for row in tx.rows("view_removed", after=after, upto=upto):
        of.setdefault(int(row["tombstone"]), []).append(row)
    return [(stone, of.get(stone.number, [])) for stone in stones]


def _whole(value: int | str) -> int:
    return value if isinstance(value, int) else -1


@dataclass(frozen=True, slots=True)
class _Span:
    rows: Sequence[Row]
    lines: dict[int | str, list[Line]]
    contents: Mapping[int | str, Sequence[Row]]
    calls: frozenset[tuple[int | str, int | str]]
    planned: frozenset[int | str]


def _read(after: int, upto: int, tx: Tx) -> _Span:
    """One consistent look at a span: rows, entries, texts, open calls."""
    lines = tx.rows("view_verify_lines", after=after, upto=upto)
    contents = tx.rows("view_verify_contents", after=after, upto=upto)
    calls = tx.rows("view_verify_calls", after=after, upto=upto)
    return _Span(
        tx.rows("view_verify_rows", after=after, upto=upto),
        {id_: [_line(row) for row in of_it] for id_, of_it in groupby(lines, lambda row: row["delivery_id"])},
        {id_: list(of_it) for id_, of_it in groupby(contents, lambda row: row["delivery_id"])},
        frozenset((row["delivery_id"], row["epoch"]) for row in calls),
        frozenset(row["delivery_id"] for row in tx.rows("view_verify_agenda", after=after, upto=upto)),
    )


def _line(row: Row) -> Line:
    try:
        return line_of(row)
    except ValueError:
        # A number that is none; the text and its hash still say what was written.
        return Line(-1, -1, str(row["event"]), {}, str(row["body"]), str(row["hash"]))


def check(row: Row, lines: Sequence[Line], contents: Sequence[Row], *, called: bool) -> list[Fault]:
    """The faults of one delivery; none where everything holds. Never raises for what stands in them.

    `contents`: its frozen texts; `called`: whether an open call stands for its present epoch.
    """
    key = str(row["key"])
    try:
        standing = standing_of_row(row)
        seq = int(row["seq"])
    except (ValueError, TypeError) as error:
        return [Fault(key, 0, f"the row cannot be read: {error}")]
    try:
        broken = check_chain(
            key, ((line.seq, line.text, line.hash) for line in lines), seq, str(row["head"]), standing
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        broken = Fault(key, 0, f"an entry's text is no entry ({type(error).__name__})")
    if broken is not None:
        return [broken]  # what follows would only say the same in other words
    # From here on an entry is what its text says, since that is what the hash covers.
    told = [_by_text(line) for line in lines]
    try:
        return [
            Fault(key, at, what)
            for at, what in (
                *_columns(lines, told),
                *_replay(told),
                *_nevers(told),
                *_row_follows(row, standing, told, called=called),
                *_texts(told, contents),
            )
        ]
    except (ValueError, TypeError, KeyError) as error:
        return [Fault(key, 0, f"the row or its entries hold what cannot be ({type(error).__name__})")]


_NOWHERE: Final = (-9,)
_LOOKS: Final = {
    State.SCHEDULED: (0,),
    State.QUEUED: (1, 2, -1, -2),
    State.RECONCILING: (10,),
    State.UNCERTAIN: (11,),
    State.DEAD: (12,),
    State.REJECTED: (13,),
}
"""Who may look at a delivery in this state, as the schema numbers them: said here once more, apart from who
writes it."""

_Finding = tuple[int, str]
"""The entry that does not hold (0: the row), and what is wrong."""

_NOTES: Final = frozenset(Event) - {rule.event for rule in TABLE} - {Event.SCHEDULED}
"""Events that record something and move nothing."""


def _by_text(line: Line) -> Line:
    event, at = line.word("event"), line.number("at")
    return line if (event, at) == (line.event, line.at) else replace(line, event=event, at=at)


def _columns(lines: Sequence[Line], told: Sequence[Line]) -> Iterator[_Finding]:
    """What stands beside the text, for views to select by, must say the same."""
    for line, by_text in zip(lines, told, strict=True):
        receipt = by_text.word("receipt") if by_text.event in TELLS_RECEIPT else ""
        if (line.event, line.at, line.receipt) != (by_text.event, by_text.at, receipt):
            yield line.seq, "its columns are not what its text says"


def _replay(lines: Sequence[Line]) -> Iterator[_Finding]:
    """Each entry must be a step of the table."""
    before: Standing | None = None
    for line in lines:
        try:
            event = Event(line.event)
        except ValueError:
            yield line.seq, f"{line.event!r} is no event that this version knows"
            return
        after = standing_of(line.body)
        if before is None:
            if (event, after) != (Event.SCHEDULED, Standing(State.SCHEDULED)):
                yield line.seq, f"a ledger begins with {Event.SCHEDULED}, not with {event}"
        elif event in _NOTES:
            if after != before:
                yield (
                    line.seq,
                    f"{event} records something, but here it moved {before.state} to {after.state}",
                )
        elif _relative(after, before) not in _steps(_relative(before, before), event):
            yield line.seq, f"the life cycle has no {event} from {before.state} to {after.state}"
        before = after


def _relative(standing: Standing, base: Standing) -> Standing:
    return replace(standing, epoch=standing.epoch - base.epoch, version=standing.version - base.version)


@cache
def _steps(before: Standing, event: Event) -> frozenset[Standing]:
    """Wherever the table can lead on this event, whatever the world was like then."""
    worlds = product((False, True), repeat=len(fields(Facts)))
    answers = (step(before, event, Facts(*world)) for world in worlds)
    return frozenset(answer.standing for answer in answers if isinstance(answer, Moved))


def _nevers(lines: Sequence[Line]) -> Iterator[_Finding]:
    """What must never stand in a ledger, found without the table."""
    expires_at: int | None = None
    ended_by = ""
    for line in lines:
        match line.event:
            case Event.PUBLISHED | Event.REDRIVEN:
                expires_at = line.number("expires") or expires_at
                ended_by = ""
            case Event.RESTORED | Event.REVISED | Event.PERMITTED:
                ended_by = ""
            case Event.EXPIRED if line.state != State.EXPIRED:
                pass  # in doubt: proven absent, on a calendar that was set back, it may go once more
            case Event.CANCELLED | Event.SUPPRESSED | Event.EXPIRED:
                ended_by = line.event
            case Event.CLAIMED:
                if ended_by:
                    yield line.seq, f"claimed after it was {ended_by}"
                if expires_at is not None and line.at >= expires_at:
                    yield line.seq, "claimed at or past its expiry"
            case Event.LATE_OUTCOME:
                if line.word("outcome") == "accepted" and line.state in SAYS_NOT_SENT:
                    yield line.seq, f"an acceptance arrived, but the record stays {line.state}"


def _row_follows(row: Row, standing: Standing, lines: Sequence[Line], *, called: bool) -> Iterator[_Finding]:
    """What the row says beside its standing must follow from the entries."""
    state = standing.state
    place = (row["via"], row["at"], row["place"], row["until"])
    follows = (row["account"], row["next_at"], row["tag"], row["expires_at"])
    looks = _LOOKS.get(state, _NOWHERE)
    if row["look"] not in looks or (looks is not _NOWHERE and place != follows):
        yield 0, f"its place on the agenda is not that of {state}: no stage would find it, or the wrong one"
    if state is State.SENDING and not called:
        yield 0, "it is SENDING without an open call, so nobody would ever give it up"
    moved_at = next(line.at for line in reversed(lines) if line.event not in _NOTES)
    if row["ended_at"] != (moved_at if state in ENDED else 0):
        yield 0, f"it says that it ended at {row['ended_at']}, the ledger says {moved_at}"
    account = receipt = ""
    attempts = 0
    for line in lines:
        match line.event:
            case Event.PUBLISHED | Event.REROUTED:
                account = line.word("account")
            case Event.REVISED | Event.RESTORED:
                account = ""
            case Event.CLAIMED:
                attempts += 1
            case Event.RELEASED:
                attempts -= 1
            case Event.ACCEPTED | Event.PROVEN:
                receipt = line.word("receipt")
    for name, told in (("account", account), ("attempts", attempts)):
        if row[name] != told:
            yield 0, f"its {name} is {row[name]!r}, the ledger says {told!r}"
    if state is State.ACCEPTED and row["receipt"] != receipt:
        yield 0, f"its receipt is {row['receipt']!r}, the ledger says {receipt!r}"
    identity = _identity(str(row["key"]))
    if identity != (row["customer"], row["channel"]):
        yield 0, "its customer or channel is not the one in its key"


def _identity(key: str) -> tuple[str, str] | None:
    try:
        identity = parse_key(key)
    except InvalidInput:
        return None
    return identity.customer, identity.channel.value


def _texts(lines: Sequence[Line], contents: Sequence[Row]) -> Iterator[_Finding]:
    """A frozen text must have the hash that its publication recorded. One that was erased is no fault."""
    recorded = {line.number("version"): line for line in lines if line.event == Event.PUBLISHED}
    for content in contents:
        version = int(content["version"])
        line = recorded.get(version)
        if line is None:
            yield 0, f"a text of version {version} is kept, but no publication recorded it"
        elif content["hash"] != line.word("payload") or _hash_of(content) != line.word("payload"):
            yield line.seq, f"the text of version {version} is not the one whose hash was recorded"


def _hash_of(content: Row) -> str:
    try:
        return content_hash(json.loads(str(content["payload"])))
    except (ValueError, InvalidInput, RecursionError):
        return ""
