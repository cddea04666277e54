"""`/deliveries`: found by filters, each with its story for support and its ledger for an auditor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import Field

from sendonce.api.pages import LIMIT, Cursor, Limit, Pages
from sendonce.api.program import Caller, MayRead
from sendonce.api.routing import Resource
from sendonce.api.shapes import DeliverySaid, Instant, Said, delivery_said, instant
from sendonce.core.access import Scope
from sendonce.core.delivery import Channel, parse_key
from sendonce.core.due import parse_due
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.ledger import Value, check_chain
from sendonce.core.lifecycle import State
from sendonce.pipeline.find import NEWEST, find
from sendonce.pipeline.listing import Chosen, deliveries
from sendonce.pipeline.record import Line, delivery_by_key
from sendonce.pipeline.story import Story, record, story
from sendonce.ports.store import Delivery

resource = Resource("deliveries", "Deliveries: found, told, and as they are recorded.")

Key = Annotated[
    str, Path(description="The delivery key, percent-encoded.", examples=["shipment-4821:customer-73:email"])
]
Text = Annotated[str, Query(max_length=200)]
Time = Annotated[str, Query(description="A time with its offset, or in the tenant's zone.", max_length=80)]


class DeliveriesSaid(Said):
    """A page. `next` asks for the one after it; null: this is the last. It may be short, and not the last."""

    deliveries: list[DeliverySaid]
    next: str | None


class MomentSaid(Said):
    seq: int
    at: Instant
    local: str = Field(description="On the customer's wall clock.")
    text: str
    actor: str


class LaterSaid(Said):
    """One kind of thing that the provider said later; `stands`: of those that say where it is, it counts."""

    kind: str
    at: Instant
    local: str = Field(description="On the customer's wall clock.")
    text: str
    code: str
    stands: bool


class TextSaid(Said):
    """What was or will be sent, as frozen at publication; addresses are masked."""

    parts: dict[str, str]
    template: str
    template_version: int
    hash: str
    frozen_at: Instant


class StorySaid(DeliverySaid):
    """A delivery, told: what happened in plain words, and what to tell the customer."""

    reminder: str
    headline: str
    address: str = Field(description="Masked.")
    due_local: str
    timezone: str
    linked: str
    moments: list[MomentSaid]
    later: list[LaterSaid]
    said: TextSaid | None


class EntrySaid(Said):
    """A ledger entry as it was written; `text` is what the hash is of."""

    seq: int
    at: Instant
    event: str
    actor: str
    state: str
    epoch: int
    details: dict[str, Value]
    hash: str
    text: str


class LedgerSaid(DeliverySaid):
    """The acceptance ledger of a delivery. `head` is the hash of its last entry."""

    head: str
    fault: str = Field(description="Where the chain of hashes does not hold; empty where it does.")
    entries: list[EntrySaid]


@resource.get("/deliveries", Scope.READ)
def list_deliveries(
    caller: MayRead,
    reminder: Text = "",
    customer: Text = "",
    group: Text = "",
    channel: Channel | None = None,
    account: Text = "",
    category: Text = "",
    state: State | None = None,
    due_from: Time = "",
    due_to: Time = "",
    find: Annotated[
        str,
        Query(description="Instead: a key, reminder, customer, address or receipt.", max_length=1_000),
    ] = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> DeliveriesSaid:
    """Deliveries, newest first; where only a span of due times is given, in the order of those."""
    query = {
        "reminder": reminder,
        "customer": customer,
        "group": group,
        "channel": channel,
        "account": account,
        "category": category,
        "state": state,
        "due_from": due_from,
        "due_to": due_to,
        "find": find,
    }
    pages = Pages(caller, "deliveries", query)
    after = pages.after(cursor)
    place = None if after is None else tuple(int(each) for each in after)
    if find:
        return _found(caller, find, query, pages, limit, place)
    chosen = Chosen(
        tenant=caller.tenant,
        reminder=reminder,
        customer=customer,
        group=group,
        channel=channel.value if channel else "",
        account=account,
        category=category,
        state=state.value if state else "",
        since=_time(caller, due_from, "due_from"),
        until=_time(caller, due_to, "due_to"),
    )
    page = caller.read(lambda tx: deliveries(tx, chosen, limit=limit, after=place))
    return DeliveriesSaid(
        deliveries=[DeliverySaid(**delivery_said(each)) for each in page.found], next=pages.next(page.after)
    )


def _found(
    caller: Caller,
    text: str,
    query: dict[str, Any],
    pages: Pages,
    limit: int,
    place: tuple[int, ...] | None,
) -> DeliveriesSaid:
    others = [name for name, value in query.items() if value and name != "find"]
    if others:
        raise InvalidInput(f"find goes without other filters: leave out {', '.join(others)}", field="find")
    page = caller.read(
        lambda tx: find(
            tx,
            text,
            caller.policy,
            secret=caller.store.secret,
            tenant=caller.tenant,
            limit=limit,
            before=place[0] if place else NEWEST,
        )
    )
    return DeliveriesSaid(
        deliveries=[DeliverySaid(**delivery_said(each.delivery)) for each in page.found],
        next=pages.next(None if page.before is None else (page.before,)),
    )


@resource.get("/deliveries/{key:path}/story", Scope.READ)
def tell_delivery(key: Key, caller: MayRead) -> StorySaid:
    """The story of a delivery, for a support agent: what happened, and what to tell the customer."""
    (told,) = caller.read(lambda tx: story(tx, _known(key), caller.policy, tenant=caller.tenant))
    return _story(told)


@resource.get("/deliveries/{key:path}/ledger", Scope.READ)
def read_ledger(key: Key, caller: MayRead) -> LedgerSaid:
    """The acceptance ledger of a delivery, for an auditor: each entry as it was written."""
    found = caller.read(lambda tx: record(tx, _known(key), tenant=caller.tenant))
    return LedgerSaid(
        **delivery_said(found.delivery),
        head=found.delivery.head,
        fault=_fault(found.delivery, found.lines),
        entries=[_entry(line) for line in found.lines],
    )


@resource.get("/deliveries/{key:path}", Scope.READ)
def read_delivery(key: Key, caller: MayRead) -> DeliverySaid:
    """A delivery as it stands."""
    found = caller.read(lambda tx: delivery_by_key(tx, caller.tenant, _known(key)))
    if found is None:
        raise _nothing(key)
    return DeliverySaid(**delivery_said(found))


def _fault(delivery: Delivery, lines: Sequence[Line]) -> str:
    try:
        broken = check_chain(
            delivery.key,
            [(line.seq, line.text, line.hash) for line in lines],
            delivery.seq,
            delivery.head,
            delivery.standing,
        )
    except (ValueError, KeyError, TypeError) as error:
        return f"an entry cannot be read ({type(error).__name__})"
    return f"entry {broken.seq}: {broken.what}" if broken else ""


def _known(key: str) -> str:
    """The key as it is kept. What is no key at all is not there either."""
    try:
        return parse_key(key).key
    except InvalidInput:
        raise _nothing(key) from None


def _nothing(key: str) -> NotFound:
    return NotFound(f"no delivery has the key {key!r:.200}: list them by ?find=")


def _time(caller: Caller, text: str, field: str) -> int:
    return parse_due(text, zone=caller.policy.zone(caller.tenant), field=field).at if text else 0


def _story(told: Story) -> StorySaid:
    text = told.said
    return StorySaid(
        **delivery_said(told.delivery),
        reminder=told.reminder,
        headline=told.headline,
        address=told.address,
        due_local=told.due_local,
        timezone=told.zone,
        linked=told.linked,
        moments=[
            MomentSaid(seq=each.seq, at=instant(each.at), local=each.local, text=each.text, actor=each.actor)
            for each in told.moments
        ],
        later=[
            LaterSaid(
                kind=each.kind,
                at=instant(each.at),
                local=each.local,
                text=each.text,
                code=each.code,
                stands=each.stands,
            )
            for each in told.later
        ],
        said=None
        if text is None
        else TextSaid(
            parts=dict(text.parts),
            template=text.template,
            template_version=text.template_version,
            hash=text.hash,
            frozen_at=instant(text.frozen_at),
        ),
    )


def _entry(line: Line) -> EntrySaid:
    return EntrySaid(
        seq=line.seq,
        at=instant(line.at),
        event=line.event,
        actor=line.actor,
        state=line.state,
        epoch=line.number("epoch"),
        details=line.details,
        hash=line.hash,
        text=line.text,
    )
