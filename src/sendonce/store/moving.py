"""Moving house: one store copied whole into another place, of the same kind of database or the other.

    source   open ---- closed -------------------------------> moved, for ever
    target   none ---- arriving -- filled -- read back, equal ---------> open

**The source closes first.** One transaction that no other writer shares looks whether a process is alive on
it, marks it, and has each of its tables refuse whatever is written: to whoever has it open already, and to
applications that schedule in their own transactions, as to whoever opens it later. So nothing is sent from it
while it is copied, and what is copied does not change.

**The target opens last.** It carries its mark before its first row, and each process refuses a store with
that mark. It is read back and compared, table by table; then the source is marked as moved, and then the
target is opened. In between neither of them works. Killed anywhere, both stay closed, and the same command
begins the copy again, or only opens the target where all was done but that.

What each place has of its own is not copied: its schema's version, its line of history, its clocks. The
steady clock goes on at the instant at which it stands in the source, so that leases, gates and the age of
keys mean what they meant. The store epoch is one more: what was claimed before is evidence only.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, Protocol

from sendonce.core.errors import InvalidInput, Refused, StoreMismatch
from sendonce.core.pacing import SECOND
from sendonce.core.seal import read as read_seal
from sendonce.core.value import value
from sendonce.ports.store import HOLD
from sendonce.store.migrate import migrations
from sendonce.store.moved import ARRIVED, ARRIVING, MARKS, MOVED, Mark, closed_words, mark_of
from sendonce.store.tables import META, Table, tables

Row = tuple[Any, ...]
Progress = Callable[[str, str, int], None]
"""Hears what is done ("copying", "comparing"), with which table, and how many of its rows that was."""

BATCH_ROWS: Final = 2_000
BATCH_CHARACTERS: Final = 4_000_000
"""What is held in memory of a table, and committed at once."""

_OF_THE_PLACE: Final = frozenset(
    {
        *("schema_version", "lineage", "epoch", HOLD),
        *("boot_id", "steady_offset", "steady_seen", "steady_correction"),
        *MARKS,
    }
)
"""Rows of `meta` that tell of a place and not of what is in it."""
_MAY_BE_THERE: Final = frozenset({META, "gate"})
"""What a target may hold: a process that was only started on it makes a gate for each account."""


class Side(Protocol):
    """One of the two stores, below everything that a process has of one. `?` stands for a parameter.

    where     says it to people, without a password
    identity  the same for two names of one place
    numbers_go_on_from_rows  the next number of a table is one more than the highest that is there
    """

    where: str
    numbers_go_on_from_rows: bool

    @property
    def identity(self) -> tuple[object, ...]: ...

    def version(self) -> int:
        """Of the schema; 0: there is no store. Raises `StoreMismatch` where something else is there."""
        ...

    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """What tables there are that hold data, with their columns."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """One transaction, during which nobody else writes, and which the closed tables let through."""
        ...

    def run(self, text: str, *parameters: int | str) -> list[Row]: ...

    def now(self) -> int:
        """Its calendar now."""
        ...

    def steady(self) -> int:
        """Its steady clock now."""
        ...

    # As the source

    def rows(self, table: Table) -> Iterator[Row]:
        """All rows in order, read as they are asked for."""
        ...

    def given(self, table: Table) -> int:
        """The highest number that a table which numbers itself has given, where its rows may not show it."""
        ...

    def close_tables(self, words: str) -> None:
        """Let each table refuse what is written, with these words; in `alone`. Again: new words."""
        ...

    def open_tables(self) -> None: ...

    # As the target

    def make(self) -> None:
        """An empty store of this program's schema, where there is none. Raises where it must not be."""
        ...

    def clear(self) -> None:
        """Take all rows away but the schema's version; in `alone`."""
        ...

    def fill(self, table: Table, rows: list[Row]) -> None:
        """Durable with the next `flush` at the latest."""
        ...

    def number_from(self, table: Table, given: int) -> None:
        """Let the table give higher numbers than this one and than it has."""
        ...

    def go_on_at(self, steady: int) -> None:
        """Let its steady clock stand at this instant now; in `alone`."""
        ...

    def flush(self) -> None:
        """What was written survives a power cut."""
        ...

    def move_in(self) -> None:
        """It has its name, and is ready for work. Again: nothing."""
        ...


@value
class Copied:
    """One table, as it is in both places. `digest`: of all its rows in order."""

    table: str
    rows: int
    digest: str


@value
class Moved:
    """What has moved. `copied` is empty where an earlier run had copied all, and this one only opened."""

    source: str
    target: str
    epoch: int
    copied: list[Copied]


def move(
    source: Side,
    target: Side,
    *,
    reason: str,
    actor: str,
    progress: Progress = lambda what, table, rows: None,
) -> Moved:
    """Copy `source` into `target`, which opens when all of it is there, and close `source` for good.

    Raises `InvalidInput` where both are one place or the target may not be used, `Refused` where the source
    is not quiet, is held, or went elsewhere, `StoreMismatch` where a schema is another or the copy differs.
    """
    if source.identity == target.identity:
        raise InvalidInput(f"{source.where} is both source and target: name another place", field="target")
    _check_schema(source)
    before = mark_of(_meta(source).get(MOVED))
    if before is not None and before.done:
        return _open(source, target, before, [])
    mark = Mark(secrets.token_hex(8), _store_of(source), target.where, done=False)
    _check_quiet(source, target)
    _prepare(target, replace(mark, place=source.where))
    _close(source, target, mark, reason, actor)
    copied = [_copy(table, source, target, progress) for table in tables()]
    for one, table in zip(copied, tables(), strict=True):
        _compare(one, table, target, progress)
        target.number_from(table, source.given(table))
    target.flush()
    _leave(source, mark)
    return _open(source, target, mark, copied)


def reopen(source: Side, *, reason: str, actor: str) -> None:
    """Take back the closing of a store whose copy was not brought to its end. Raises `Refused` for one that
    is not closed, or that has moved: then the other one may be at work already."""
    _check_schema(source)
    with source.alone():
        mark = mark_of(_meta(source).get(MOVED))
        if mark is None:
            raise Refused(f"{source.where} is not closed: it can be worked on as it is", code="not_closed")
        if mark.done:
            raise Refused(
                f"{source.where} has moved to {mark.place}, which may be at work already: to come back, stop "
                "everything there and copy that one to a new place",
                code="store_moved",
            )
        source.open_tables()
        source.run("DELETE FROM meta WHERE name = ?", MOVED)
        _audit(source, actor, "reopen", mark.place, reason)


# The steps, in order


def _check_schema(source: Side) -> None:
    version, known = source.version(), migrations()[-1][0]
    if not version:
        raise InvalidInput(f"{source.where} holds no store: name one that does", field="source")
    if version != known:
        fix = (
            "install the newer sendonce that wrote it"
            if version > known
            else "run `sendonce db info` on it, which brings it up to date"
        )
        raise StoreMismatch(f"{source.where} has schema version {version}, and a copy needs {known}: {fix}")
    expected = {table.name: table.columns for table in tables()}
    found = {name: tuple(sorted(columns)) for name, columns in source.columns().items()}
    differ = sorted(
        name
        for name in found.keys() | expected.keys()
        if found.get(name) != tuple(sorted(expected.get(name, ())))
    )
    if differ:
        raise StoreMismatch(
            f"{source.where} has not the tables of its schema version ({', '.join(differ)}): somebody "
            "changed them, and what is not known would not be copied; put them back as they were"
        )


def _check_quiet(source: Side, target: Side) -> None:
    meta = _meta(source)
    if meta.get(HOLD):
        raise Refused(
            f"{source.where} is held, since it may have lost what was written last: release it first, with "
            "`sendonce db released`",
            code="store_held",
        )
    steady = source.steady()
    alive = source.run(
        "SELECT role, pid, host, lease_until FROM process WHERE stopped = 0 AND lease_until > ? "
        "ORDER BY lease_until DESC LIMIT 20",
        steady,
    )
    if alive:
        who = ", ".join(f"{role} {pid} on {host}" for role, pid, host, _ in alive)
        longest_s = -(-(alive[0][3] - steady) // SECOND)
        raise Refused(
            f"{source.where} is worked on ({who}): stop these first; one that was killed counts as alive "
            f"until its lease ends, in {longest_s} s at the latest",
            code="processes_alive",
        )
    if target.numbers_go_on_from_rows:
        _check_seal(source)


def _check_seal(source: Side) -> None:
    """A file gives the number behind the last entry to the next one; a block may cover further numbers, which
    failed transactions used up. That entry would look sealed, and would not be."""
    headers = source.run("SELECT header FROM seal ORDER BY number DESC LIMIT 1")
    last = int(source.run("SELECT coalesce(max(id), 0) FROM ledger")[0][0])
    try:
        upto = read_seal(str(headers[0][0])).upto if headers else 0
    except (ValueError, TypeError, RecursionError):
        raise StoreMismatch(
            f"the last sealed block of {source.where} cannot be read: run `sendonce verify`"
        ) from None
    if upto > last:
        raise Refused(
            f"the last sealed block of {source.where} covers numbers behind the last entry, {last}, and a "
            "file would give them again: start its processes, let anything be scheduled or sent, then copy",
            code="numbers_used_up",
        )


def _prepare(target: Side, mark: Mark) -> None:
    """Have an empty target with its mark, whatever an earlier run left."""
    target.make()
    with target.alone():
        meta = _meta(target)
        before = mark_of(meta.get(ARRIVING))
        if before is None:
            full = [
                table.name
                for table in tables()
                if table.name not in _MAY_BE_THERE and target.run(f"SELECT 1 FROM {table.name} LIMIT 1")
            ]
            if full or meta.get(HOLD):
                raise InvalidInput(
                    f"{target.where} is not empty ({', '.join(full) or 'it is held'}): name a place without "
                    "a store; nothing was changed",
                    field="target",
                )
        elif before.store != mark.store:
            raise InvalidInput(
                f"{target.where} holds a part of another store, {before.place}: bring that copy to its end, "
                "or remove what is there",
                field="target",
            )
        target.clear()
        _put(target, ARRIVING, str(mark))
        target.close_tables(closed_words(target.where))


def _close(source: Side, target: Side, mark: Mark, reason: str, actor: str) -> None:
    """From here on nothing is written to the source, by nobody."""
    with source.alone():
        _check_quiet(source, target)  # again, with everybody else shut out
        before = mark_of(_meta(source).get(MOVED))
        if before is None:
            _audit(source, actor, "move", mark.place, reason)
        elif before.done:
            raise Refused(f"{source.where} has moved to {before.place} meanwhile", code="store_moved")
        _put(source, MOVED, str(mark))
        source.close_tables(closed_words(mark.place))


def _copy(table: Table, source: Side, target: Side, progress: Progress) -> Copied:
    count, digest = 0, hashlib.sha256()
    for batch in _batches(_data(source, table)):
        _take_in(batch, digest)
        target.fill(table, batch)
        count += len(batch)
        progress("copying", table.name, count)
    return Copied(table.name, count, digest.hexdigest())


def _compare(copied: Copied, table: Table, target: Side, progress: Progress) -> None:
    count, digest = 0, hashlib.sha256()
    for batch in _batches(_data(target, table)):
        _take_in(batch, digest)
        count += len(batch)
        progress("comparing", table.name, count)
    if (count, digest.hexdigest()) != (copied.rows, copied.digest):
        raise StoreMismatch(
            f"table {table.name} of {target.where} is not what was copied ({count} rows for {copied.rows}, "
            f"digest {digest.hexdigest()[:16]} for {copied.digest[:16]}): something else writes there; both "
            "stay closed, run `sendonce db copy` again"
        )


def _leave(source: Side, mark: Mark) -> None:
    """The source is closed for good, unless it was reopened, or another run has begun."""
    with source.alone():
        found = mark_of(_meta(source).get(MOVED))
        if found is None or found.run != mark.run:
            raise Refused(
                f"{source.where} was reopened meanwhile, or another copy was begun: this one is not used",
                code="not_closed",
            )
        _put(source, MOVED, str(replace(mark, done=True)))


def _open(source: Side, target: Side, mark: Mark, copied: list[Copied]) -> Moved:
    """The source has moved here: let the target work. Again after a kill: what is left of it."""
    elsewhere = Refused(
        f"{source.where} has moved to {mark.place}: copy that one, if it shall move again", code="store_moved"
    )
    if not target.version():
        raise elsewhere
    epoch = int(_meta(source).get("epoch", "0")) + 1
    with target.alone():
        meta = _meta(target)
        arriving, arrived = mark_of(meta.get(ARRIVING)), mark_of(meta.get(ARRIVED))
        if arriving is not None and arriving.run == mark.run:
            _put(target, "epoch", str(epoch))
            target.go_on_at(source.steady())
            _put(target, ARRIVED, str(replace(arriving, done=True)))
            target.run("DELETE FROM meta WHERE name = ?", ARRIVING)
            target.open_tables()
        elif arrived is None or arrived.run != mark.run:
            raise elsewhere
    target.flush()
    target.move_in()
    return Moved(source.where, target.where, epoch, copied)


# What the steps stand on


def _data(side: Side, table: Table) -> Iterable[Row]:
    rows = side.rows(table)
    return (row for row in rows if row[0] not in _OF_THE_PLACE) if table.name == META else rows


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(each) for each in row if isinstance(each, str))
        if len(batch) >= BATCH_ROWS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _take_in(batch: Iterable[Row], digest: Any) -> None:
    digest.update("".join(ascii(tuple(row)) for row in batch).encode())


def _meta(side: Side) -> dict[str, str]:
    return {str(name): str(text) for name, text in side.run("SELECT name, value FROM meta")}


def _put(side: Side, name: str, text: str) -> None:
    side.run(
        "INSERT INTO meta (name, value) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        name,
        text,
    )


def _store_of(source: Side) -> str:
    """Names the store and tells nothing of its secret."""
    return hashlib.sha256(b"store" + _meta(source)["secret"].encode()).hexdigest()[:16]


def _audit(side: Side, actor: str, action: str, place: str, reason: str) -> None:
    side.run(
        "INSERT INTO audit (at, actor, action, target, reason, body) VALUES (?, ?, ?, 'store', ?, ?)",
        side.now(),
        actor,
        action,
        reason,
        json.dumps({"place": place}),
    )
