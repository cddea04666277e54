"""`GET /events`: what became of deliveries, in order and at least once, for the application's own system.

Whoever asks with `wait` is answered as soon as there is something, or when that time is over. All that wait
in one process share one look at the store, some times a second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Annotated, Final

from fastapi import Query, Request
from pydantic import Field

from sendonce.api.problems import Problem
from sendonce.api.program import MayRead
from sendonce.api.routing import Resource
from sendonce.api.shapes import Instant, Said, instant
from sendonce.core.access import Scope
from sendonce.core.delivery import Channel
from sendonce.core.due import parse_due
from sendonce.core.errors import InvalidInput
from sendonce.core.feed import Kind
from sendonce.pipeline.feed import LIMIT, LIMIT_MAX, Page, Told

WAIT_MAX_S: Final = 25.0
"""Below what proxies and crons cut off."""
TICK_S: Final = 0.2
WAITING_MAX: Final = 50
"""Of one process; each more is told to come again."""
CURSOR_LENGTH_MAX: Final = 300

_waiting = threading.BoundedSemaphore(WAITING_MAX)

resource = Resource("feed", "What became of deliveries, as it comes.")


class EventSaid(Said):
    """One thing that became of a delivery."""

    id: str = Field(
        description="The same whenever it is told: to tell a repetition by.",
        examples=["shipment-4821:customer-73:email/4"],
    )
    kind: Kind = Field(
        description="disposition: it ended, or is UNCERTAIN. reopened: it was told as that, and goes "
        "again. facet: what the provider said later, beside the state."
    )
    at: Instant
    event: str = Field(
        description="The ledger's word; of a facet its kind, such as delivered or bounced_hard.",
        examples=["accepted"],
    )
    state: str = Field(
        description="Of the delivery, after it; beside a facet the one that it has now.",
        examples=["ACCEPTED"],
    )
    over: bool = Field(description="It has ended. A later event may still come, such as evidence.")
    maybe_sent: bool
    delivery: str = Field(examples=["shipment-4821:customer-73:email"])
    reminder: str
    customer: str
    channel: Channel
    group: str
    category: str
    version: int = Field(description="Of its content.")
    account: str
    receipt: str
    reason: str = Field(description="Our coded reason; empty where the state says it all.")
    code: str = Field(description="The provider's.")
    actor: str


class EventsSaid(Said):
    """A page, in order. `cursor` asks for what comes next, also where there was nothing."""

    events: list[EventSaid]
    cursor: str
    more: bool = Field(description="There may be more already: ask at once. Also of an empty page.")


@resource.get("/events", Scope.READ)
async def read_events(
    request: Request,
    caller: MayRead,
    after: Annotated[
        str, Query(max_length=CURSOR_LENGTH_MAX, description="`cursor` of the page before; else all.")
    ] = "",
    since: Annotated[
        str, Query(max_length=80, description="Without a cursor: from about this time on, rather earlier.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many at most.")] = LIMIT,
    wait: Annotated[
        float, Query(ge=0, le=WAIT_MAX_S, description="Seconds to wait where there is nothing yet.")
    ] = 0.0,
) -> EventsSaid:
    """What became of deliveries, in order and at least once: keep the cursor with what you did about it."""
    if after and since:
        raise InvalidInput("since is for the first page: leave it out where there is a cursor", field="since")
    zone = caller.policy.zone(caller.tenant)
    begin = parse_due(since, zone=zone, field="since").at if since else 0
    feed = caller.program.app.feed
    seen = await asyncio.to_thread(feed.bound) if wait else 0
    page = partial(feed.page, tenant=caller.tenant, limit=limit)
    found = await asyncio.to_thread(page, after=after, since=begin)
    if found.told or not wait:
        return _said(found)
    if not _waiting.acquire(blocking=False):
        raise Problem("busy", f"{WAITING_MAX} wait here already: ask again later", retry_after_s=5)
    try:
        until = time.monotonic() + wait
        while not found.told and time.monotonic() < until and not request.app.state.stopping():
            await asyncio.sleep(min(TICK_S, wait))
            if await request.is_disconnected():
                break
            bound = await asyncio.to_thread(feed.bound)
            if bound != seen or found.more:
                seen = bound
                found = await asyncio.to_thread(page, after=found.cursor)
    finally:
        _waiting.release()
    return _said(found)


def _said(page: Page) -> EventsSaid:
    return EventsSaid(events=[_event(each) for each in page.told], cursor=page.cursor, more=page.more)


def _event(one: Told) -> EventSaid:
    return EventSaid(
        id=one.id,
        kind=one.kind,
        at=instant(one.at),
        event=one.event,
        state=one.state,
        over=one.over,
        maybe_sent=one.maybe,
        delivery=one.delivery,
        reminder=one.reminder,
        customer=one.customer,
        channel=one.channel,
        group=one.group,
        category=one.category,
        version=one.version,
        account=one.account,
        receipt=one.receipt,
        reason=one.reason,
        code=one.code,
        actor=one.actor,
    )
