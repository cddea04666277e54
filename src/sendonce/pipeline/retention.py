"""Retention: what is over for long enough is destroyed, in two steps and by policy.

First what a reminder said, to whom, and said before; later its deliveries with their ledgers, where a
tombstone then stands (`core.tombstone`). A reminder goes as a whole, once all its deliveries have ended; what
is open, in doubt or a dead letter keeps it. A delivery whose record does not hold is left to people, with all
its entries.

What was removed is never sent again: a keyed tag of its reminder stays, so that the same one, scheduled anew
by whatever list still has it, is answered as known.

The deliveries are looked through by their numbers, a span at a time, on a reading connection; what is to be
done is done in short units that lock, judge again and remove. So nothing stands on where a round has come to:
it may begin again at any time, also by two processes at once. SQLite gives the highest number again once its
row is gone, so the newest of each kind stays.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

from sendonce import telemetry
from sendonce.core.duration import write_duration
from sendonce.core.errors import Refused, StoreUnavailable
from sendonce.core.ledger import check_chain
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.core.retention import Keep, Sight, all_over, before, look_at_clocks
from sendonce.core.tombstone import Remains, tombstone
from sendonce.pipeline import erasure
from sendonce.ports.store import Delivery, Reminder, Removed, Store, Tx
from sendonce.telemetry import tell

SPAN: Final = 2_000
"""Ids looked through at once, by who only reads."""
PAGE: Final = 10
"""Reminders in one unit: some 5 ms of the write lock, with every chain checked before it goes."""
ERASURES: Final = 50
IMPORTS_PAGE: Final = 100
ROUND_US: Final = 6 * 3_600 * SECOND
LOOK_S: Final = 60.0
PAUSE_S: Final = 0.02
"""Between two spans with work in them: the workers come first."""

ACTOR: Final = "retention"
ROUND: Final = "retention_round"
"""The name in `meta` of the calendar instant at which the last round was over."""
CLOCKS: Final = "retention_clocks"

Bury = Callable[[Tx, Sequence[int]], None]
"""Told in the unit that removes these entries, in order of their numbers. Raises `Refused` where one of them
may not go yet, since it is not sealed."""


def bury_nowhere(tx: Tx, gone: Sequence[int]) -> None:
    """Where nothing is sealed, all may go."""


class Retention:
    """Of one configuration. Blocking; of several processes one is enough.

    `overwrite` is called once something was destroyed, to rid the database's own files of older copies.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        keep: Keep,
        *,
        bury: Bury = bury_nowhere,
        overwrite: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._policy = policy
        self._keep = keep
        self._bury = bury
        self._overwrite = overwrite
        self._after: int | None = None
        """How far the round has come; None between two rounds."""
        self._done: Counter[str] = Counter()

    def step(self) -> float:
        """Do a little; seconds until the next step. Raises `StoreError`: what was done until then is done."""
        for request in self._store.read(lambda tx: [] if tx.held else tx.removals.asked(ERASURES)):
            if not erasure.go_on(self._store, request, self._policy).waiting:
                self._overwrite()
        if not self._keep.anything or not self._is_due():
            return LOOK_S
        return self._span()

    def _is_due(self) -> bool:
        """Whether a round is to begin or to go on: not in a held store, and not on a calendar that jumped."""
        sight = self._store.write(_see).result()
        if sight is None:
            self._after = None
            return False
        now, last = sight
        if self._after is None and now - last >= ROUND_US:
            self._after, self._done = 0, Counter()
        return self._after is not None

    def _span(self) -> float:
        assert self._after is not None
        first = self._store.read(partial(_first, self._after))
        if first is None:
            self._end()
            return LOOK_S
        after, upto = first - 1, first - 1 + SPAN
        worked = False
        for full, span_s in ((True, self._keep.content_s), (False, self._keep.deliveries_s)):
            if span_s is None:
                continue
            found = self._store.read(partial(_old, span_s, after, upto, full))
            for at in range(0, len(found), PAGE):
                page = found[at : at + PAGE]
                self._done += self._store.write(partial(self._unit, page, span_s, full)).result()
                worked = True
        self._after = upto
        return PAUSE_S if worked else 0.0

    def _unit(self, reminder_ids: Sequence[int], span_s: float, full: bool, tx: Tx) -> Counter[str]:
        if tx.held:
            return Counter()
        return self._empty(reminder_ids, span_s, tx) if full else self._remove(reminder_ids, span_s, tx)

    def _empty(self, reminder_ids: Sequence[int], span_s: float, tx: Tx) -> Counter[str]:
        over = _over(tx, reminder_ids, before(tx.now, span_s))
        texts = tx.removals.empty(
            list(over), [row.id for rows in over.values() for row in rows], erased=False
        )
        return Counter(emptied=len(over), texts=texts)

    def _remove(self, reminder_ids: Sequence[int], span_s: float, tx: Tx) -> Counter[str]:
        over = _over(tx, reminder_ids, before(tx.now, span_s))
        reminders = tx.reminders.by_ids(list(over))
        rows = [row for id_ in sorted(over) if id_ in reminders for row in over[id_]]
        numbers = tx.removals.numbers([row.id for row in rows])
        newest = tx.removals.newest()
        sound = {id_ for id_ in over if all(_is_sound(row, numbers.get(row.id, [])) for row in over[id_])}
        going = [
            row
            for row in rows
            if row.reminder_id in sound and not _newest(over[row.reminder_id], numbers, newest)
        ]
        for id_ in over.keys() - sound:
            tell(telemetry.RETENTION_STOPPED, delivery=over[id_][0].key, why="record")
        gone = sorted(line[0] for row in going for line in numbers[row.id])
        if not going:
            return Counter()
        tx.rows("meta_lock", name=CLOCKS)  # one tombstone follows the other, whoever makes it
        last = tx.removals.last()
        remains = [Remains(row.id, row.seq, row.head) for row in going]
        policy = f"deliveries={write_duration(span_s)}"
        facet = tx.removals.facet([row.id for row in going])
        stone = tombstone(last, remains, gone, facet=facet, at=tx.now, policy=policy)
        try:
            self._bury(tx, gone)
        except Refused:
            return Counter(unsealed=len(going))
        if not tx.removals.remove(stone, [_removed(row, reminders[row.reminder_id]) for row in going]):
            raise StoreUnavailable("a delivery changed while it was removed: it is looked at again")
        return Counter(deliveries=len(going), entries=len(gone))

    def _end(self) -> None:
        """The round is over; what it did is told once."""
        if self._keep.imports_s is not None:
            self._done["imports"] += self._forget_imports(self._keep.imports_s)
        counts = {name: count for name, count in sorted(self._done.items()) if count}

        def unit(tx: Tx) -> None:
            tx.set_meta(ROUND, str(tx.now))
            if counts:
                tx.runs.audit(ACTOR, ACTOR, "store", "by policy", counts)

        self._store.write(unit).result()
        self._after = None
        if counts:
            self._overwrite()
            tell(
                telemetry.RETENTION_DONE,
                emptied=self._done["emptied"],
                deliveries=self._done["deliveries"],
                entries=self._done["entries"],
                imports=self._done["imports"],
                unsealed=self._done["unsealed"],
            )

    def _forget_imports(self, span_s: float) -> int:
        forgotten = 0
        while True:
            some = self._store.write(
                lambda tx: tx.removals.forget_imports(before(tx.now, span_s), IMPORTS_PAGE)
            ).result()
            forgotten += some
            if some < IMPORTS_PAGE:
                return forgotten


def _see(tx: Tx) -> tuple[int, int] | None:
    """Now, and when the last round was over; None where nothing may be removed."""
    text = tx.meta(CLOCKS)
    last = Sight(**json.loads(text)) if text else None
    sight, believed = look_at_clocks(last, tx.now, tx.steady)
    tx.set_meta(CLOCKS, json.dumps(asdict(sight)))
    if last is not None and sight.since != last.since:
        tell(telemetry.RETENTION_STOPPED, delivery="", why="calendar")
    if tx.held or not believed:
        return None
    return tx.now, int(tx.meta(ROUND) or 0)


def _first(after: int, tx: Tx) -> int | None:
    return tx.removals.next_from(after)


def _old(span_s: float, after: int, upto: int, full: bool, tx: Tx) -> list[int]:
    return tx.removals.old(before(tx.now, span_s), after, upto, full=full)


def _over(tx: Tx, reminder_ids: Sequence[int], before_us: int) -> dict[int, list[Delivery]]:
    """Those of these reminders that are over, with all their deliveries, locked."""
    of: dict[int, list[Delivery]] = {}
    for row in tx.deliveries.of_reminders(reminder_ids):
        of.setdefault(row.reminder_id, []).append(row)
    over = {id_: rows for id_, rows in of.items() if all_over(rows, before_us)}
    called = tx.removals.called([(row.course.account, row.id) for rows in over.values() for row in rows])
    return {id_: rows for id_, rows in over.items() if called.isdisjoint(row.id for row in rows)}


def _is_sound(row: Delivery, lines: Sequence[tuple[int, int, str, str]]) -> bool:
    """What does not hold is evidence: it is never removed."""
    try:
        chain = [(seq, text, digest) for _, seq, text, digest in lines]
        return check_chain(row.key, chain, row.seq, row.head, row.standing) is None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _newest(
    rows: Sequence[Delivery],
    numbers: dict[int, list[tuple[int, int, str, str]]],
    newest: tuple[int, int, int, int],
) -> bool:
    delivery, reminder, entry, told_of = newest
    return any(
        row.id in (delivery, told_of) or row.reminder_id == reminder or numbers[row.id][-1][0] == entry
        for row in rows
    )


def _removed(row: Delivery, reminder: Reminder) -> Removed:
    return Removed(
        id=row.id,
        tenant=row.tenant,
        reminder_id=row.reminder_id,
        reminder=reminder.reminder,
        customer=reminder.customer,
        due_at=row.course.due_at,
        channel=row.channel,
        category=row.category,
        account=row.course.account,
        state=row.standing.state,
        seq=row.seq,
        head=row.head,
    )
