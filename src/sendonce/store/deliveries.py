"""Deliveries and their ledger, on any database.

`move` is the one place where a state changes, and it changes together with its ledger entry and its place on
the agenda, by which the stages find it. That place is derived here from the standing, never set by a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sendonce.core.delivery import Channel, partition_of
from sendonce.core.ledger import GENESIS, TELLS_RECEIPT, Entry, link, spell
from sendonce.core.lifecycle import ENDED, Ending, Event, Standing, State
from sendonce.ports.store import FIRST, Course, Delivery, Move, NewDelivery
from sendonce.store.session import Parameters, Session, Tuple, check_text

COLUMNS: Final = (
    "id, tenant, key, reminder_id, customer, channel, address_tag, category, grp, priority, "
    "state, epoch, version, maybe, permit, ending, "
    "due_at, next_at, expires_at, account, tag, cost, attempts, failures, throttles, "
    "first_try, last_try, receipt, reason, ended_at, seq, head"
)

_PASS, _FRESH, _RETRY = 0, 1, 2
_LOOKS: Final = {
    State.SCHEDULED: _PASS,
    State.QUEUED: _FRESH,  # or what `_look` makes of it
    State.RECONCILING: 10,
    State.UNCERTAIN: 11,
    State.DEAD: 12,
    State.REJECTED: 13,
}
"""Who looks at a delivery of this state; nobody where it is missing."""
_WHEN: Final = " ".join(f"WHEN '{state}' THEN {look}" for state, look in _LOOKS.items() if look >= 10)
LOOK_OF_STATE: Final = f"CASE :state {_WHEN} END"
"""The look of the state `:state`, in SQL."""
_RELABELS: Final = frozenset({Event.REVISED, Event.RESTORED, Event.DEFERRED})
"""Events after which the due time or the labels may be others: revisions, and new zone rules."""
_STATES: Final = {state.value: state for state in State}
_ENDINGS: Final = {ending.value: ending for ending in Ending}
_CHANNELS: Final = {channel.value: channel for channel in Channel}
_FIRST: Final = Standing(State.SCHEDULED)
# Looked up rather than asked of the enumerations, whose attributes are computed.
_SPELLED: Final = {state: (state.value, state in ENDED) for state in State}
_ENDED_BY: Final = {ending: ending.value for ending in Ending}


class SqlDeliveries:
    """`ports.store.Deliveries` on a session. `now` is the unit's calendar instant."""

    def __init__(self, session: Session, now: int) -> None:
        self._session = session
        self._now = now

    def insert(self, new: Sequence[NewDelivery]) -> list[int]:
        bodies = [
            spell(
                delivery.key,
                delivery.tenant,
                Entry(1, self._now, Event.SCHEDULED, delivery.actor, _FIRST, delivery.details),
            )
            for delivery in new
        ]
        heads = [link(GENESIS, body) for body in bodies]
        inserted = self._session.rows_each(
            "delivery_insert",
            [
                {
                    "tenant": delivery.tenant,
                    "key": delivery.key,
                    "reminder_id": delivery.reminder_id,
                    "customer": delivery.customer,
                    "part": partition_of(delivery.tenant, delivery.customer),
                    "channel": delivery.channel.value,
                    "address_tag": delivery.address_tag,
                    "category": delivery.category,
                    "grp": delivery.group,
                    "priority": delivery.priority,
                    "state": _FIRST.state.value,
                    "due_at": delivery.due_at,
                    "expires_at": delivery.expires_at,
                    "head": head,
                }
                for delivery, head in zip(new, heads, strict=True)
            ],
        )
        ids = [int(rows[0][0]) for rows in inserted]
        self._append(
            (id_, Event.SCHEDULED, 1, body, head, "")
            for id_, body, head in zip(ids, bodies, heads, strict=True)
        )
        self._session.many(
            "agenda_put",
            (
                {
                    "delivery_id": id_,
                    "look": _PASS,
                    "via": "",
                    "at": delivery.due_at,
                    "place": 0,
                    "until": delivery.expires_at,
                }
                for id_, delivery in zip(ids, new, strict=True)
            ),
        )
        return ids

    def by_ids(self, ids: Sequence[int]) -> list[Delivery]:
        found = self._session.rows_each("delivery_by_id", [{"id": id_} for id_ in sorted(set(ids))])
        return [_delivery(row) for rows in found for row in rows]

    def doubts(self, ids: Sequence[int]) -> dict[int, frozenset[str]]:
        asked = sorted(set(ids))
        found = self._session.rows_each("delivery_doubts", [{"id": id_} for id_ in asked])
        return {id_: frozenset(event for (event,) in rows) for id_, rows in zip(asked, found, strict=True)}

    def by_keys(self, keys: Sequence[tuple[str, str]]) -> list[Delivery]:
        for named_key in keys:
            check_text(*named_key)
        # In one order whoever asks, so that two who lock the same rows do not wait for each other.
        named: list[Parameters] = [{"tenant": tenant, "key": key} for tenant, key in sorted(set(keys))]
        return self._in_order(self._session.rows_each("delivery_by_key", named))

    def of_reminders(self, reminder_ids: Sequence[int]) -> list[Delivery]:
        named: list[Parameters] = [{"reminder_id": id_} for id_ in sorted(set(reminder_ids))]
        return self._in_order(self._session.rows_each("delivery_of_reminder", named))

    def matching(self, what: str, value: Mapping[str, int | str], limit: int, after: int) -> list[Delivery]:
        check_text(*value.values())
        return self._page(f"delivery_matching_{what}", {**value, "limit": limit, "after": after})

    def open_at(self, addresses: Sequence[tuple[str, str, str]]) -> set[int]:
        named: list[Parameters] = [
            {"tenant": tenant, "address_tag": tag}
            for tenant, tag in sorted({(a[0], a[2]) for a in addresses})
        ]
        return {row[0] for rows in self._session.rows_each("delivery_open_at", named) for row in rows}

    def due(self, now: int, limit: int, since: int = FIRST) -> list[Delivery]:
        return self._page("delivery_due", {"now": now, "limit": limit, "since": since})

    def first_due(self, now: int) -> int | None:
        rows = self._session.rows("delivery_first_due", {"now": now})
        return None if rows[0][0] is None else int(rows[0][0])

    def wake(self, account: str, now: int) -> None:
        self._session.run("delivery_wake", {"account": account, "now": now})

    def wake_some(self, account: str, now: int, limit: int) -> list[Delivery]:
        woken = self._session.rows("delivery_wake_some", {"account": account, "now": now, "limit": limit})
        return self.by_ids([row[0] for row in woken])

    def ready(self, account: str, *, retries: bool, limit: int, since: int = FIRST) -> list[Delivery]:
        look = _RETRY if retries else _FRESH
        parameters: dict[str, int | str] = {"account": account, "look": look, "limit": limit, "since": since}
        return self._page("delivery_ready", parameters)

    def line(self, account: str, *, retries: bool, after: tuple[int, int], limit: int) -> list[Delivery]:
        parameters: dict[str, int | str] = {
            "account": account,
            "look": _RETRY if retries else _FRESH,
            "after_place": after[0],
            "after": after[1],
            "limit": limit,
        }
        return self._page("delivery_line", parameters)

    def next_wake(self, account: str) -> int | None:
        rows = self._session.rows("delivery_next_wake", {"account": account})
        return None if rows[0][0] is None else int(rows[0][0])

    def expired(self, now: int, limit: int) -> list[Delivery]:
        return self._page("delivery_expired", {"now": now, "limit": limit})

    def attention(self, state: str, now: int, limit: int, account: str = "") -> list[Delivery]:
        parameters: dict[str, int | str] = {"state": state, "now": now, "limit": limit, "account": account}
        return self._page("delivery_attention", parameters)

    def move(self, moves: Sequence[Move]) -> list[bool]:
        return [changed == 1 for changed in self._moved(moves, [self._entry(move) for move in moves])]

    def advance(self, moves: Sequence[Move]) -> list[Delivery | None]:
        entries = [self._entry(move) for move in moves]
        changed = self._moved(moves, entries)
        return [
            _after(move, seq, head, self._now) if count else None
            for move, (seq, _, head), count in zip(moves, entries, changed, strict=True)
        ]

    def _moved(self, moves: Sequence[Move], entries: Sequence[tuple[int, str, str]]) -> list[int]:
        """How many rows each of the moves changed, 1 or 0; with their entries."""
        # One kind of statement after the other, not row by row: its code and pages stay in the caches.
        changed = self._session.run_each(
            "delivery_move",
            [self._columns(move, seq, head) for move, (seq, _, head) in zip(moves, entries, strict=True)],
        )
        moved = [(move, entry) for move, entry, yes in zip(moves, entries, changed, strict=True) if yes]
        self._append((move.before.id, move.event, *entry, _news(move)) for move, entry in moved)
        self._place([move for move, _ in moved])
        for move, _ in moved:
            if move.event in _RELABELS:
                self._relabel(move)
        return changed

    def note(self, notes: Sequence[Move]) -> list[bool]:
        entries = [self._entry(note) for note in notes]
        changed = self._session.run_each(
            "delivery_note",
            [
                {"id": note.before.id, "seq": seq, "head": head, "from_seq": note.before.seq}
                for note, (seq, _, head) in zip(notes, entries, strict=True)
            ],
        )
        done = [count == 1 for count in changed]
        noted = [(note, entry) for note, entry, yes in zip(notes, entries, done, strict=True) if yes]
        self._append((note.before.id, note.event, *entry, _news(note)) for note, entry in noted)
        return done

    def defer(self, deferrals: Sequence[tuple[Delivery, int]]) -> None:
        waiting = [(d, next_at) for d, next_at in deferrals if not _is_ready(d, self._now)]
        changed = self._session.run_each(
            "delivery_defer",
            [{"id": d.id, "next_at": next_at, "from_seq": d.seq} for d, next_at in waiting],
        )
        self._session.many(
            "agenda_defer",
            (
                {"delivery_id": d.id, "at": next_at}
                for (d, next_at), yes in zip(waiting, changed, strict=True)
                if yes
            ),
        )

    def unpause(self, scope: str, name: str, accounts: Sequence[str], until: int, limit: int) -> int:
        reason = f"paused:{scope}"
        parameters: dict[str, int | str] = {
            "scope": scope,
            "reason": reason,
            "name": name,
            "now": self._now,
            "until": until,
            "limit": limit,
        }
        found = self._session.rows("delivery_paused_scheduled", parameters)
        for account in accounts:
            found += self._session.rows("delivery_paused_queued", {**parameters, "account": account})
        # Locked in order of id, as all rows are, and asked again: somebody may have moved one meanwhile.
        held = [row for row in self.by_ids([row[0] for row in found]) if row.course.reason == reason]
        self.defer([(row, self._now) for row in held if row.course.next_at > self._now])
        return len(found)

    def _columns(self, move: Move, seq: int, head: str) -> Parameters:
        before, standing, course = move.before, move.standing, move.course
        state, ended = _SPELLED[standing.state]
        return {
            "state": state,
            "epoch": standing.epoch,
            "version": standing.version,
            "maybe": int(standing.maybe),
            "permit": int(standing.permit),
            "ending": _ENDED_BY[standing.ending],
            "next_at": course.next_at,
            "expires_at": course.expires_at,
            "account": course.account,
            "tag": course.tag,
            "cost": course.cost,
            "attempts": course.attempts,
            "failures": course.failures,
            "throttles": course.throttles,
            "first_try": course.first_try,
            "last_try": course.last_try,
            "receipt": course.receipt,
            "reason": course.reason,
            "ended_at": self._now if ended else 0,
            "seq": seq,
            "head": head,
            "id": before.id,
            "from_state": _SPELLED[before.standing.state][0],
            "from_epoch": before.standing.epoch,
            "from_seq": before.seq,
        }

    def _relabel(self, move: Move) -> None:
        before = move.before
        self._session.run(
            "delivery_relabel",
            {
                "id": before.id,
                "due_at": move.course.due_at,
                "address_tag": before.address_tag if move.address_tag is None else move.address_tag,
                "category": before.category if move.category is None else move.category,
                "grp": before.group if move.group is None else move.group,
                "priority": before.priority if move.priority is None else move.priority,
            },
        )

    def _entry(self, move: Move) -> tuple[int, str, str]:
        before = move.before
        seq = before.seq + 1
        entry = Entry(seq, self._now, move.event, move.actor, move.standing, move.details)
        body = spell(before.key, before.tenant, entry)
        return seq, body, link(before.head, body)

    def _place(self, moved: Sequence[Move]) -> None:
        """Give what moved its place on the agenda, or take it away."""
        put: list[Parameters] = []
        change: list[Parameters] = []
        strike: list[Parameters] = []
        for move in moved:
            id_, course = move.before.id, move.course
            was, is_ = move.before.standing.state in _LOOKS, move.standing.state in _LOOKS
            if is_:
                (change if was else put).append(
                    {
                        "delivery_id": id_,
                        "look": _look(move.standing, course, self._now),
                        "via": course.account,
                        "at": course.next_at,
                        "place": course.tag,
                        "until": course.expires_at,
                    }
                )
            elif was:
                strike.append({"delivery_id": id_})
        for name, rows in (("agenda_put", put), ("agenda_change", change), ("agenda_strike", strike)):
            if rows:
                self._session.many(name, rows)

    def _append(self, entries: Iterable[tuple[int, Event, int, str, str, str]]) -> None:
        """Append (delivery id, event, seq, text, hash, receipt that it tells of)."""
        self._session.many(
            "ledger_append",
            (
                {
                    "delivery_id": id_,
                    "seq": seq,
                    "at": self._now,
                    "event": event.value,
                    "body": body,
                    "hash": head,
                    "receipt": receipt,
                }
                for id_, event, seq, body, head, receipt in entries
            ),
        )

    def _in_order(self, found: Sequence[Sequence[Tuple]]) -> list[Delivery]:
        return sorted((_delivery(row) for rows in found for row in rows), key=lambda delivery: delivery.id)

    def _page(self, name: str, parameters: Mapping[str, int | str]) -> list[Delivery]:
        return [_delivery(row) for row in self._session.rows(name, parameters)]


def _after(move: Move, seq: int, head: str, now: int) -> Delivery:
    before = move.before
    return Delivery(
        id=before.id,
        tenant=before.tenant,
        key=before.key,
        reminder_id=before.reminder_id,
        customer=before.customer,
        channel=before.channel,
        address_tag=before.address_tag if move.address_tag is None else move.address_tag,
        category=before.category if move.category is None else move.category,
        group=before.group if move.group is None else move.group,
        priority=before.priority if move.priority is None else move.priority,
        standing=move.standing,
        course=move.course,
        ended_at=now if move.standing.state in ENDED else 0,
        seq=seq,
        head=head,
    )


def _look(standing: Standing, course: Course, now: int) -> int:
    """Who looks at it: for a queued one the kind of claim, negative while it waits."""
    if standing.state is not State.QUEUED:
        return _LOOKS[standing.state]
    again = course.failures or (standing.maybe and course.attempts)
    kind = _RETRY if again else _FRESH
    return kind if course.next_at <= now else -kind


def _is_ready(delivery: Delivery, now: int) -> bool:
    """Whether a worker may claim it as it stands."""
    return delivery.standing.state is State.QUEUED and delivery.course.next_at <= now


def _news(move: Move) -> str:
    """The receipt that an entry tells of, "" for none."""
    if move.event is Event.LATE_OUTCOME:  # it changes nothing of the delivery's course
        return str(move.details.get("receipt", ""))
    return move.course.receipt if move.event in TELLS_RECEIPT else ""


def _delivery(row: Tuple) -> Delivery:
    """A row in the order of `COLUMNS`."""
    return Delivery(
        id=row[0],
        tenant=row[1],
        key=row[2],
        reminder_id=row[3],
        customer=row[4],
        channel=_CHANNELS[row[5]],
        address_tag=row[6],
        category=row[7],
        group=row[8],
        priority=row[9],
        standing=Standing(
            _STATES[row[10]], row[11], row[12], row[13] == 1, row[14] == 1, _ENDINGS[row[15]]
        ),
        course=Course(
            row[16], row[17], row[18], row[19], row[20], row[21], row[22], row[23], row[24], row[25],
            row[26], row[27], row[28],
        ),
        ended_at=row[29],
        seq=row[30],
        head=row[31],
    )  # fmt: skip
