"""The feed: what became of a tenant's deliveries, in order, at least once, for the application that asked.

    page = feed.page(tenant="default", after=cursor)     # told; then keep page.cursor, and ask with it

It is the ledger, read along the numbers of its entries, and costs who writes it nothing; and, each in its
place, what providers said later, which has numbers of its own. Of these each stands *behind* the entries that
were there when we learnt of it, so that an acceptance is told before what came of it.

    ledger   1 2 3 4 | 5 6 7 | 8        read up to 7: facet 1 (behind 4) and facet 2 (behind 7) are told,
    facets           1       2   3      facet 3 (behind 8) is not

Numbers are given before commits, so one may appear below others that were read already: nothing is told
above the `fence` of each of the two, below which nothing can come any more. So nothing is missed, and a
transaction that stays open holds up the feed rather than being skipped by it. While the store is held nothing
is told.

A cursor says how far its reader has come. It is signed, belongs to one tenant, and holds for as long as
what comes after it is kept: where entries that its reader has not had were removed by policy, or where the
store was released from a hold meanwhile, so that numbers may have been given twice, it is refused as gone,
with the time to begin again from. What is told twice then has the same `id`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Final

from sendonce.core.delivery import Channel, parse_key
from sendonce.core.errors import InvalidInput, Refused
from sendonce.core.feed import Kind, kind_of
from sendonce.core.lifecycle import ENDED
from sendonce.core.pacing import SECOND
from sendonce.pipeline.fence import Fence
from sendonce.pipeline.record import body_of
from sendonce.ports.store import Row, Store, Tx

LIMIT: Final = 100
LIMIT_MAX: Final = 1_000
SPAN: Final = 4_096
"""Numbers that are looked at in one reading."""
SPANS_MAX: Final = 32
"""Readings for one page: where other tenants have most of the ledger, a page may be short, or empty."""
FRESH_US: Final = 100_000
"""For so long what one found of the fence is good enough for all that wait for it to move."""
EARLIER_US: Final = 600 * SECOND
"""Whoever begins at a time begins so much earlier: the order of numbers is nearly that of time."""
GONE: Final = "events_gone"
BAD_CURSOR: Final = "bad_cursor"
_MAC_BYTES: Final = 16
_TOMBSTONES: Final = 500
_FIRST_ENTRY: Final = "view_feed_first"
_FIRST_FACET: Final = "view_feed_facet_first"
_ANY: Final = 2**63


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that became of a delivery.

    id         the same whenever it is told: the delivery key, and the place in its ledger, or a facet's kind
    at         microseconds UTC; of a facet by the provider, where it says so
    event      the ledger's word, or the kind of a facet; `state` is the delivery's after it, beside a facet
               the one that it has now
    over       it has ended; a later one may still come, such as evidence that it was sent after all
    maybe      it may have been sent
    account    that the delivery has now
    reason, code   why, in coded words: ours and the provider's
    """

    id: str
    kind: Kind
    at: int
    event: str
    state: str
    over: bool
    maybe: bool
    delivery: str
    reminder: str
    customer: str
    channel: Channel
    group: str
    category: str
    version: int
    account: str
    receipt: str
    reason: str
    code: str
    actor: str


@dataclass(frozen=True, slots=True)
class Page:
    """What was told, in order; `cursor` is to ask the next page with, also where there was nothing.

    more  there may be more already. An empty page with `more` is a stretch without anything of this tenant,
          or somebody is writing just now
    """

    told: tuple[Told, ...]
    cursor: str
    more: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a reader has come: up to this number, at about this time, under this epoch of the store; the
    newest tombstone that was there then; and up to which number it has what providers said."""

    number: int
    at: int
    epoch: int
    tombstone: int
    facet: int = 0


class Feed:
    """The feed of one store, for one process. Thread-safe, blocking."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fence = Fence()
        self._fence_of_facets = Fence(lambda tx: tx.events)
        self._asking = Lock()
        self._bound = (0, 0)
        self._looked_at = -FRESH_US

    def bound(self, *, fresh_us: int = FRESH_US) -> tuple[int, int]:
        """The numbers up to which can be told, of the ledger and of facets, as they were at most `fresh_us`
        ago: asked once for all that wait.

        Raises `StoreError`.
        """
        with self._asking:
            if self._store.steady() - self._looked_at >= fresh_us:
                self._bound = self._store.read(
                    lambda tx: (self._fence.look(tx), self._fence_of_facets.look(tx))
                )
                self._looked_at = self._store.steady()
            return self._bound

    def page(self, *, tenant: str, after: str = "", since: int = 0, limit: int = LIMIT) -> Page:
        """What was told behind the cursor `after`; without one from the beginning of what is kept, or from
        about the instant `since` (microseconds UTC) on.

        Raises `InvalidInput` for a cursor that is none of this tenant, and `Refused` (code "events_gone")
        where what comes next is not all there any more.
        """
        bound, facets_bound = self.bound(fresh_us=0)
        # Another transaction, after the bound was found: it sees all that stands below it.
        place = self._read(tenant, after) if after else self._begin(since, bound, facets_bound)
        reached, told = place, list[Told]()
        for _ in range(SPANS_MAX):
            before = reached
            part, reached = self._span(tenant, before, bound, facets_bound, limit - len(told))
            told += part
            if len(told) >= limit or reached == before:
                break
        # Asked last: whatever was removed before the entries were read has its tombstone by now.
        tombstone = self._check_kept(place)
        cursor = self._write(tenant, replace(reached, tombstone=tombstone))
        behind = reached.number < bound or reached.facet < facets_bound
        return Page(tuple(told), cursor, behind or self._fence.waits or self._fence_of_facets.waits)

    def _span(
        self, tenant: str, place: _Place, bound: int, facets_bound: int, limit: int
    ) -> tuple[list[Told], _Place]:
        """A stretch of the ledger with what stands behind its entries, and where it ends."""
        upto, facets_upto = min(bound, place.number + SPAN), min(facets_bound, place.facet + SPAN)
        rows = self._rows("view_feed", tenant, place.number, upto, limit)
        facets = self._rows("view_feed_facets", tenant, place.facet, facets_upto, limit)
        number = int(rows[-1]["id"]) if len(rows) == limit else max(place.number, upto)
        facet = int(facets[-1]["number"]) if len(facets) == limit else max(place.facet, facets_upto)
        # In order of the entries; those of which none was told go along with the one before.
        items: list[tuple[int, int, Row]] = [(int(row["id"]), 0, row) for row in rows]
        behind = place.number
        for row in facets:
            behind = max(behind, int(row["behind"]))
            if behind > number:
                facet = int(row["number"]) - 1
                break
            items.append((behind, int(row["number"]), row))
        items.sort(key=lambda each: each[:2])
        if len(items) > limit:
            del items[limit:]
            number = max((entry for entry, said, _ in items if not said), default=place.number)
            facet = max((said for _, said, _ in items), default=0) or place.facet
        at = max([place.at, *(int(row["at"]) for _, said, row in items if not said)])
        told = [_told_facet(row) if said else _told(row) for _, said, row in items]
        return [each for each in told if each is not None], replace(place, number=number, at=at, facet=facet)

    def _rows(self, name: str, tenant: str, after: int, upto: int, limit: int) -> list[Row]:
        if after >= upto:
            return []
        return self._store.read(lambda tx: tx.rows(name, tenant=tenant, after=after, upto=upto, limit=limit))

    # Places

    def _begin(self, since: int, bound: int, facets_bound: int) -> _Place:
        epoch, (tombstone, _) = self._store.read(lambda tx: (tx.epoch, tx.seals.tombstone()))
        if not since:
            return _Place(0, since, epoch, tombstone)
        number = number_at(self._store, since - EARLIER_US, bound)
        facet = number_at(self._store, since - EARLIER_US, facets_bound, _FIRST_FACET)
        return _Place(number, since, epoch, tombstone, facet)

    def _check_kept(self, place: _Place) -> int:
        """The newest tombstone. Raises `Refused` where one since `place` took away what was not read yet."""
        epoch = self._store.read(lambda tx: tx.epoch)
        if epoch != place.epoch:
            raise _gone("the store was released from a hold, and may have numbered entries anew", place)
        newest = place.tombstone
        while rows := self._store.read(partial(_tombstones, newest)):
            newest = int(rows[-1]["number"])
            if any(entry > place.number or facet > place.facet for entry, facet in map(_highest_gone, rows)):
                raise _gone("some of what comes next was kept for its time and removed", place)
        return newest

    # Cursors

    def _write(self, tenant: str, place: _Place) -> str:
        numbers = [place.number, place.at, place.epoch, place.tombstone, place.facet]
        text = json.dumps(numbers, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mac(tenant, text) + text).decode().rstrip("=")

    def _read(self, tenant: str, cursor: str) -> _Place:
        try:
            raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raise _foreign() from None
        if not hmac.compare_digest(raw[:_MAC_BYTES], self._mac(tenant, raw[_MAC_BYTES:])):
            raise _foreign()
        return _Place(*map(int, json.loads(raw[_MAC_BYTES:])))

    def _mac(self, tenant: str, text: bytes) -> bytes:
        said = b"feed\0" + tenant.encode() + b"\0" + text
        return hmac.digest(self._store.secret, said, "sha256")[:_MAC_BYTES]


def pages(feed: Feed, *, tenant: str, after: str = "", since: int = 0, limit: int = LIMIT) -> Iterator[Page]:
    """All pages that are there, one after the other, without waiting for what comes."""
    while True:
        page = feed.page(tenant=tenant, after=after, since=since, limit=limit)
        yield page
        if not page.more or (page.cursor == after and not page.told):
            return
        after, since = page.cursor, 0


def number_at(store: Store, at: int, bound: int, first: str = _FIRST_ENTRY) -> int:
    """A number up to which all are earlier than the instant `at`, as far as they are in its order; `first` is
    the statement that finds one."""
    low, high = 0, bound  # all up to `low` are earlier; what is above `high` is not
    while low < high:
        middle = (low + high) // 2
        found = store.read(partial(_first, first, middle, high))
        if found is None or found[1] >= at:
            high = middle
        else:
            low = found[0]
    return low


def _first(name: str, after: int, upto: int, tx: Tx) -> tuple[int, int] | None:
    """The first entry behind `after`, as (number, instant); in stretches that grow, since much may be
    gone."""
    span = SPAN
    while after < upto:
        until = min(upto, after + span)
        if rows := tx.rows(name, after=after, upto=until):
            return int(rows[0]["id"]), int(rows[0]["at"])
        after, span = until, span * 2
    return None


def _tombstones(after: int, tx: Tx) -> list[Row]:
    return tx.rows("view_tombstones", after=after, limit=_TOMBSTONES)


def _highest_gone(tombstone: Row) -> tuple[int, int]:
    """The highest numbers that a tombstone took away, of entries and of facets; where it does not say, any
    could be."""
    body = body_of(str(tombstone["body"]))
    entry, facet = body.get("last"), body.get("facet")
    return entry if isinstance(entry, int) else _ANY, facet if isinstance(facet, int) else _ANY


def _told(row: Row) -> Told | None:
    body = body_of(str(row["body"]))
    kind = kind_of(str(row["event"]), str(body.get("state", "")))
    if kind is None:
        return None

    def word(name: str) -> str:
        value = body.get(name)
        return "" if value is None else str(value)

    key = str(row["key"])
    return Told(
        id=f"{key}/{row['seq']}",
        kind=kind,
        at=int(row["at"]),
        event=str(row["event"]),
        state=word("state"),
        over=word("state") in ENDED,
        maybe=bool(body.get("maybe", False)),
        delivery=key,
        reminder=parse_key(key).reminder,
        customer=str(row["customer"]),
        channel=Channel(str(row["channel"])),
        group=str(row["grp"]),
        category=str(row["category"]),
        version=int(body.get("version") or 0),
        account=str(row["account"]),
        receipt=word("receipt"),
        reason=word("reason"),
        code=word("code"),
        actor=word("actor"),
    )


def _told_facet(row: Row) -> Told:
    key, account, state = str(row["key"]), str(row["account"]), str(row["state"])
    return Told(
        id=f"{key}/{row['kind']}",
        kind=Kind.FACET,
        at=int(row["at"]),
        event=str(row["kind"]),
        state=state,
        over=state in ENDED,
        maybe=bool(row["maybe"]),
        delivery=key,
        reminder=parse_key(key).reminder,
        customer=str(row["customer"]),
        channel=Channel(str(row["channel"])),
        group=str(row["grp"]),
        category=str(row["category"]),
        version=int(row["version"]),
        account=account,
        receipt=str(row["receipt"]),
        reason="",
        code=str(row["code"]),
        actor=f"provider:{account}",
    )


def _foreign() -> InvalidInput:
    return InvalidInput(
        "after is no cursor of this feed: send `cursor` of the page before, or none",
        field="after",
        code=BAD_CURSOR,
    )


def _gone(why: str, place: _Place) -> Refused:
    return Refused(
        f"{why}: begin again without a cursor, with since= the time of the last event that you have; "
        "read deliveries that you miss by themselves",
        code=GONE,
    )
