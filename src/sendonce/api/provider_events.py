"""What providers said and nobody could place: events of no delivery, what could not be read, and replies that
may mean no. To look at, and to look for once more.

An event whose address is one tenant's is that tenant's alone. One that names no address, at an account of
several tenants, may be anybody's: each of their operators sees that it is there, and nothing personal of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from fastapi import Path, Request, Response
from pydantic import ConfigDict, Field

from sendonce.api.idempotency import Done, once, said
from sendonce.api.pages import LIMIT, Cursor, Limit, Pages
from sendonce.api.problems import Problem
from sendonce.api.program import Caller, MayOperate
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, Instant, Said, instant
from sendonce.core.access import Scope
from sendonce.core.provider_event import EventKind
from sendonce.pipeline.events import SHOWN_MAX, left_of, retry, shown_of
from sendonce.ports.store import EventLook, StoredEvent

resource = Resource(
    "provider events", "What providers said later and nobody could place; and who calls here."
)


class Left(StrEnum):
    """Why it is left to people."""

    UNMATCHED = "unmatched"
    FAULTY = "faulty"
    UNCLEAR = "unclear"


LOOKS: Final = {
    Left.UNMATCHED: EventLook.UNMATCHED,
    Left.FAULTY: EventLook.FAULTY,
    Left.UNCLEAR: EventLook.UNCLEAR,
}

NUMBER_MAX: Final = 2**53


class ProviderEventSaid(Said):
    """One event as it was taken in. No address is in it that anybody could write to."""

    id: int
    account: str = Field(description="Empty for returned mail.")
    kind: EventKind
    code: str = Field(description="The provider's own word.")
    receipt: str
    state: str = Field(description="waits, done, unmatched, faulty or unclear.", examples=["unmatched"])
    why: str = Field(description="What it waits for, or why it is left to people; a coded word.")
    address: str = Field(description="Masked; empty where it may be another tenant's.")
    text: str = Field(description="A customer's own words; empty where they may be another tenant's.")
    occurred_at: Instant = Field(description="By the provider, where it says so.")
    received_at: Instant
    tries: int = Field(description="How often its delivery was looked for.")


class ProviderEventsSaid(Said):
    events: list[ProviderEventSaid]
    next: str | None


class RetryAsked(Asked):
    """Which events are looked for once more."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": [1]}]})

    ids: list[int] = Field(min_length=1, max_length=SHOWN_MAX)


class RetrySaid(Said):
    """How many wait again. What could not be read, or names nothing, has nothing to look for."""

    retried: int


@resource.get("/provider-events", Scope.OPERATE)
def list_provider_events(
    caller: MayOperate, state: Left = Left.UNMATCHED, limit: Limit = LIMIT, cursor: Cursor = ""
) -> ProviderEventsSaid:
    """What is left to people, in the order in which it came."""
    pages = Pages(caller, "provider-events", {"state": state})
    place = pages.after(cursor)
    after = 0 if place is None else int(place[0])
    found = caller.read(
        lambda tx: left_of(tx, caller.policy, caller.tenant, LOOKS[state], after=after, limit=limit + 1)
    )
    page = found[:limit]
    return ProviderEventsSaid(
        events=[_said(one) for one in page],
        next=pages.next((page[-1].id,) if len(found) > limit else None),
    )


@resource.get("/provider-events/{number}", Scope.OPERATE)
def read_provider_event(
    caller: MayOperate,
    number: Annotated[int, Path(ge=1, le=NUMBER_MAX, description="Its `id`.", examples=[1])],
) -> ProviderEventSaid:
    """One event as it was taken in, and what became of it."""
    found = caller.read(lambda tx: shown_of(tx, caller.policy, caller.tenant, number))
    if found is None:
        raise Problem("not_found", f"there is no event {number}: see /v1/provider-events")
    return _said(found)


@resource.post("/provider-event-retries", Scope.OPERATE, response_model=RetrySaid)
def retry_provider_events(request: Request, asked: RetryAsked, caller: MayOperate) -> Response:
    """Look for the deliveries of events once more, as if they had come now."""

    def work() -> Done:
        ids = [number for number in dict.fromkeys(asked.ids) if _is_there(caller, number)]
        return said(RetrySaid(retried=retry(caller.store, ids, actor=caller.actor) if ids else 0))

    return once(request, caller, work)


def _is_there(caller: Caller, number: int) -> bool:
    if not 1 <= number <= NUMBER_MAX:
        return False
    return caller.read(lambda tx: shown_of(tx, caller.policy, caller.tenant, number)) is not None


def _said(one: StoredEvent) -> ProviderEventSaid:
    return ProviderEventSaid(
        id=one.id,
        account=one.account,
        kind=one.kind,
        code=one.code,
        receipt=one.receipt,
        state=one.look.name.lower(),
        why=one.why,
        address=one.masked,
        text=one.text,
        occurred_at=instant(one.occurred_at),
        received_at=instant(one.received_at),
        tries=one.tries,
    )
