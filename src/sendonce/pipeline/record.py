"""One delivery as people ask for it: its row and its ledger, read without locks.

Views must show what is there, also where somebody has tampered with it: a line whose text cannot be
read is handed out as such, never raised. Whether the record is sound is for `verify` to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sendonce.address import masked
from sendonce.core.delivery import Channel
from sendonce.core.errors import StoreMismatch
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import Ending, Standing, State
from sendonce.core.provider_event import EventKind, Fact
from sendonce.ports.store import Course, Delivery, EventLook, Row, Tx

NEWEST: Final = 2**62

_STANDING: Final = frozenset(
    {"key", "tenant", "seq", "at", "event", "actor", "state", "epoch", "version", "maybe", "permit", "ending"}
)


@dataclass(frozen=True, slots=True)
class Line:
    """One ledger entry as stored. `body` is `text` parsed; empty where it cannot be. `receipt` is the column
    beside it, to find by."""

    seq: int
    at: int
    event: str
    body: Mapping[str, Value]
    text: str
    hash: str
    receipt: str = ""

    @property
    def readable(self) -> bool:
        return bool(self.body)

    @property
    def actor(self) -> str:
        return self.word("actor")

    @property
    def state(self) -> str:
        """The delivery's state after it."""
        return self.word("state")

    @property
    def details(self) -> dict[str, Value]:
        """The fields that belong to this event alone."""
        return {name: value for name, value in self.body.items() if name not in _STANDING}

    def word(self, name: str) -> str:
        """A field as text, "" where there is none."""
        value = self.body.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> int:
        """A field as a number, 0 where there is none or it is no number."""
        value = self.body.get(name)
        return value if isinstance(value, int) else 0


def line_of(row: Row) -> Line:
    """A row of (seq, at, event, body, hash, receipt)."""
    text = str(row["body"])
    return Line(
        int(row["seq"]),
        int(row["at"]),
        str(row["event"]),
        body_of(text),
        text,
        str(row["hash"]),
        str(row["receipt"]),
    )


def body_of(text: str) -> dict[str, Value]:
    """The fields of an entry's text; empty where it is no JSON object of plain values."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(body, dict):
        return {}
    return {name: value for name, value in body.items() if value is None or isinstance(value, (str, int))}


def lines_of(tx: Tx, delivery_id: int) -> list[Line]:
    """The ledger of one delivery, in order."""
    return [line_of(row) for row in tx.rows("view_ledger", delivery_id=delivery_id)]


def facets_of(tx: Tx, delivery_id: int) -> tuple[Fact, ...]:
    """What was said of a delivery later: each kind once."""
    return tuple(
        Fact(EventKind(str(row["kind"])), int(row["at"]), str(row["code"]))
        for row in tx.rows("view_facets", delivery_id=delivery_id)
    )


def counts_of_events(tx: Tx) -> dict[EventLook, int]:
    """How many of what providers said wait, and how many are left to people."""
    found = {EventLook(int(row["look"])): int(row["count"]) for row in tx.rows("view_events_people_total")}
    (waiting,) = tx.rows("view_events_waiting")
    return {EventLook.WAITS: int(waiting["waiting"]), **found}


def delivery_by_key(tx: Tx, tenant: str, key: str) -> Delivery | None:
    rows = tx.rows("view_delivery", tenant=tenant, key=key)
    return delivery_of(rows[0]) if rows else None


def delivery_of(row: Row) -> Delivery:
    """A row of the delivery's columns. Raises `StoreMismatch` for a state, ending or channel that is none."""
    try:
        return _delivery(row)
    except ValueError as error:
        raise StoreMismatch(
            f"the row of delivery {row['key']} was not written by this program ({error}): "
            "run `sendonce verify`"
        ) from None


def _delivery(row: Row) -> Delivery:
    return Delivery(
        id=int(row["id"]),
        tenant=str(row["tenant"]),
        key=str(row["key"]),
        reminder_id=int(row["reminder_id"]),
        customer=str(row["customer"]),
        channel=Channel(str(row["channel"])),
        address_tag=str(row["address_tag"]),
        category=str(row["category"]),
        group=str(row["grp"]),
        priority=int(row["priority"]),
        standing=standing_of_row(row),
        course=Course(
            due_at=int(row["due_at"]),
            next_at=int(row["next_at"]),
            expires_at=int(row["expires_at"]),
            account=str(row["account"]),
            tag=int(row["tag"]),
            cost=int(row["cost"]),
            attempts=int(row["attempts"]),
            failures=int(row["failures"]),
            throttles=int(row["throttles"]),
            first_try=int(row["first_try"]),
            last_try=int(row["last_try"]),
            receipt=str(row["receipt"]),
            reason=str(row["reason"]),
        ),
        ended_at=int(row["ended_at"]),
        seq=int(row["seq"]),
        head=str(row["head"]),
    )


def standing_of_row(row: Row) -> Standing:
    """The standing as the row's columns say it. Raises `ValueError` for what is none."""
    return Standing(
        State(str(row["state"])),
        int(row["epoch"]),
        int(row["version"]),
        row["maybe"] == 1,
        row["permit"] == 1,
        Ending(str(row["ending"])),
    )


def masked_of(tx: Tx, tenant: str, tag: str) -> str:
    """The address of a tag for people's eyes, from the newest delivery to it; "" where nothing is left."""
    for row in tx.rows("view_find_address", tenant=tenant, value=tag, before=NEWEST, limit=1):
        id_, version = int(row["id"]), int(row["version"])
        content = tx.contents.get([(id_, version)]).get(id_)
        if content is not None and content.address:
            return masked(Channel(str(row["channel"])), content.address)
    return ""
