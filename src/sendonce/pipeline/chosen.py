"""What an operator chooses on the desk, by key or by filter, and the walk over it in short units.

The desk is what waits for a person: dead letters, and what is uncertain. A choice is keys or a filter, never
both: it would be unclear whether a named delivery that does not fit is meant. Everything is chosen only where
that was said.

A walk goes over the desk in the order of its index and answers each delivery once, also one that comes by
again while it goes on: sent once more meanwhile, and dead or uncertain anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from sendonce.core.delivery import parse_channel, parse_key
from sendonce.core.errors import InvalidInput
from sendonce.core.lifecycle import State
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.pipeline.record import delivery_by_key, delivery_of
from sendonce.ports.store import Delivery, Store, Tx

CHUNK: Final = 50
"""Deliveries in one unit: about 5 ms of the write lock."""
PREVIEW_CHUNK: Final = 500

Place = tuple[int, int]
"""Where a page begins, in the order of the index: after this (next_at, id)."""
START: Final[Place] = (-1, 0)

NO_DELIVERY: Final = "no delivery has this key"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which deliveries of the desk. "" and 0 stand for any.

    reason        a coded reason, or its family: "failed" for "failed:connection" and its like
    since, until  due from, and before (microseconds UTC)
    keys          only these deliveries; what of them is not on the desk is refused, not ignored
    """

    tenant: str = DEFAULT_TENANT
    channel: str = ""
    account: str = ""
    reason: str = ""
    template: str = ""
    group: str = ""
    since: int = 0
    until: int = 0
    keys: tuple[str, ...] = ()

    @property
    def narrowed(self) -> dict[str, str | int]:
        """What narrows it down, beside keys."""
        named: dict[str, str | int] = {
            "channel": self.channel,
            "account": self.account,
            "reason": self.reason,
            "template": self.template,
            "group": self.group,
            "since": self.since,
            "until": self.until,
        }
        return {name: value for name, value in named.items() if value}

    def __str__(self) -> str:
        given = [f"{name}={value}" for name, value in self.narrowed.items()]
        given += [f"keys={len(self.keys)}"] if self.keys else []
        return f"tenant={self.tenant} {' '.join(given) or 'all'}"


@dataclass(frozen=True, slots=True)
class Part:
    """What one unit is about. `rows` are locked, but for a preview; `unknown` are keys that nothing has."""

    rows: Sequence[Delivery]
    unknown: Sequence[str] = ()


def meant(chosen: Filter, *, everything: bool, how: str) -> Filter:
    """The choice, where it says what is meant.

    everything   that all is meant was said, in the words of `how`
    Raises `InvalidInput` where nothing is chosen and `everything` was not said, or beside keys.
    """
    if not chosen.keys and not chosen.narrowed and not everything:
        raise InvalidInput(f"nothing is chosen: name keys, narrow it down, or say {how}", field="keys")
    if chosen.keys and everything:
        raise InvalidInput(f"keys and {how} exclude each other: leave out one of them", field="keys")
    return checked(chosen)


def checked(chosen: Filter) -> Filter:
    """The same, as the store has it: each key once. Raises `InvalidInput` for an unknown channel, for what is
    no delivery key, and for keys beside a filter."""
    if chosen.keys and chosen.narrowed:
        raise InvalidInput(
            f"keys and a filter ({', '.join(chosen.narrowed)}) exclude each other: name the keys only, or "
            "leave them out",
            field="keys",
        )
    channel = parse_channel(chosen.channel).value if chosen.channel else ""
    keys = tuple(dict.fromkeys(parse_key(key).key for key in chosen.keys))
    return replace(chosen, channel=channel, keys=keys)


def page(tx: Tx, chosen: Filter, state: State, place: Place, limit: int) -> list[Delivery]:
    """So many that fit, behind `place`. A tenant of "" stands for any."""
    rows = tx.rows(
        "view_desk",
        state=state.value,
        next_at=place[0],
        id=place[1],
        tenant=chosen.tenant,
        channel=chosen.channel,
        account=chosen.account,
        reason=chosen.reason,
        group=chosen.group,
        since=chosen.since,
        until=chosen.until,
        template=chosen.template,
        limit=limit,
    )
    return [delivery_of(row) for row in rows]


def walk(
    store: Store,
    chosen: Filter,
    states: Sequence[State],
    unit: Callable[[Tx, Part], list[Answer]],
    *,
    preview: bool,
) -> Iterator[list[Answer]]:
    """What `unit` answers for each part of the choice, once it is durable; in a preview it only reads.

    Stopped halfway, what was done is done. `chosen` must be `checked`.
    """
    limit = PREVIEW_CHUNK if preview else CHUNK
    answered: set[int] = set()
    for first in _takes(chosen, states, limit):
        take: _Take | None = first
        while take is not None:
            work = partial(_unit, take, answered, unit, preview)
            answers, ids, take = store.read(work) if preview else store.write(work).result()
            answered.update(ids)  # only now: a unit may run twice before it is durable
            yield answers


def _unit(
    take: _Take,
    answered: Collection[int],
    unit: Callable[[Tx, Part], list[Answer]],
    preview: bool,
    tx: Tx,
) -> tuple[list[Answer], list[int], _Take | None]:
    seen = take.read(tx)
    new = [row for row in seen if row.id not in answered]
    rows = new if preview else tx.deliveries.by_ids([row.id for row in new])
    answers = unit(tx, Part(rows, take.unknown(rows)))
    return answers, [row.id for row in rows], take.after(seen)


@dataclass(frozen=True, slots=True)
class _Pages:
    """Walks the desk in the order of its index, from a place on."""

    chosen: Filter
    state: State
    limit: int
    place: Place = START

    def read(self, tx: Tx) -> list[Delivery]:
        return page(tx, self.chosen, self.state, self.place, self.limit)

    def after(self, rows: Sequence[Delivery]) -> _Pages | None:
        if len(rows) < self.limit:
            return None
        return replace(self, place=(rows[-1].course.next_at, rows[-1].id))

    def unknown(self, rows: Sequence[Delivery]) -> list[str]:
        return []


@dataclass(frozen=True, slots=True)
class _Named:
    """The deliveries that were named, a unit of them."""

    tenant: str
    keys: tuple[str, ...]

    def read(self, tx: Tx) -> list[Delivery]:
        found = (delivery_by_key(tx, self.tenant, key) for key in self.keys)
        return [row for row in found if row is not None]

    def after(self, rows: Sequence[Delivery]) -> None:
        return None

    def unknown(self, rows: Sequence[Delivery]) -> list[str]:
        known = {row.key for row in rows}
        return [key for key in self.keys if key not in known]


_Take = _Pages | _Named


def _takes(chosen: Filter, states: Sequence[State], limit: int) -> Iterator[_Take]:
    if not chosen.keys:
        for state in states:
            yield _Pages(chosen, state, limit)
    for start in range(0, len(chosen.keys), limit):
        yield _Named(chosen.tenant, chosen.keys[start : start + limit])
