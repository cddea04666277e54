"""`/preferences`: who must not be written to, who said no, who said yes. Each record is in force at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from fastapi import Query, Request, Response
from pydantic import ConfigDict, Field

from sendonce.api.idempotency import NOT_KEPT, Done, once, said
from sendonce.api.pages import LIMIT, Cursor, Limit, Pages
from sendonce.api.program import Caller, MayCancel, MayRead
from sendonce.api.reminders import CancelledSaid, cancelled_said
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, Instant, Reason, Said, instant
from sendonce.core.access import Scope
from sendonce.core.consent import ANY_CATEGORY, Kind
from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.pipeline import consent
from sendonce.pipeline.consent import Record
from sendonce.ports.store import Row

RECORDS_MAX: Final = 10_000
_PLACE: Final = ("channel", "address_tag", "category", "kind")

resource = Resource("preferences", "Suppressions, opt-outs and opt-ins.")


class PreferenceAsked(Asked):
    """One record. `kind`: suppressed (never), opt_out (the person said no), opt_in (yes)."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"address": "ann@example.com", "kind": "opt_out"}]}
    )

    address: str = Field(description="An email address or a phone number.")
    channel: str = Field("", description="Else email where there is an @, and sms.")
    kind: str = "suppressed"
    category: str = Field(ANY_CATEGORY, description="Only this one; * is all.")
    at: str = Field("", description="When it was said; else now.")
    source: str = Field("", description="A short word, such as crm.")
    evidence: str = Field("", description="How you know: a ticket, a form, a call.")


class PreferencesAsked(Asked):
    """Up to 10,000 records. One that is wrong stops no other."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "records": [
                        {"address": "ann@example.com", "kind": "opt_out", "evidence": "ticket 7"},
                        {"address": "ann@example.com", "kind": "suppressed", "source": "crm"},
                    ]
                }
            ]
        }
    )

    records: list[PreferenceAsked] = Field(min_length=1, max_length=RECORDS_MAX)


class ProblemSaid(Said):
    index: int
    field: str
    why: str


class RecordedSaid(Said):
    """What is in force, what it took back, and what was left out."""

    records: int
    new: int = Field(description="Of them, new or newer than known.")
    deliveries: dict[str, int] = Field(description="Open deliveries that it took back, by answer.")
    answers: list[CancelledSaid] = Field(description="The first 1,000 of these.")
    problems: list[ProblemSaid]


class PreferenceSaid(Said):
    channel: str
    address: str = Field(description="Masked: the list cannot give addresses back.")
    kind: Kind
    category: str
    at: Instant
    source: str
    evidence: str
    actor: str


class PreferencesSaid(Said):
    records: list[PreferenceSaid]
    next: str | None


class RemovalAsked(Asked):
    """A record to take away. What it stopped stays stopped."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"address": "ann@example.com", "kind": "suppressed", "reason": "a typing error"}]
        }
    )

    address: str
    channel: str = ""
    kind: str = "suppressed"
    category: str = ANY_CATEGORY
    reason: Reason


class RemovalSaid(Said):
    removed: int


@resource.post("/preferences", Scope.CANCEL, response_model=RecordedSaid)
def record_preferences(request: Request, asked: PreferencesAsked, caller: MayCancel) -> Response:
    """Record who must not be written to, or may. When it is answered, nothing open goes there any more
    that a record forbids."""
    return once(request, caller, lambda: _record(asked, caller))


def _record(asked: PreferencesAsked, caller: Caller) -> Done:
    problems: list[ProblemSaid] = []
    done = consent.record(
        caller.store, _records(asked, caller, problems), policy=caller.policy, actor=caller.actor
    )
    answer = RecordedSaid(
        records=done.records,
        new=done.new,
        deliveries=dict(done.counts),
        answers=[cancelled_said(each) for each in done.answers],
        problems=problems,
    )
    unquoted = [each.model_copy(update={"why": NOT_KEPT}) for each in problems]
    kept = answer.model_copy(update={"problems": unquoted})
    return Done(answer.model_dump_json().encode(), kept=kept.model_dump_json().encode())


def _records(asked: PreferencesAsked, caller: Caller, problems: list[ProblemSaid]) -> Iterator[Record]:
    now = caller.now
    for index, one in enumerate(asked.records):
        try:
            yield consent.record_of(one.model_dump(), caller.policy, now=now, tenant=caller.tenant)
        except InvalidInput as error:
            problems.append(ProblemSaid(index=index, field=error.field, why=str(error)))


@resource.get("/preferences", Scope.READ)
def list_preferences(
    caller: MayRead,
    address: Annotated[str, Query(description="Only what is known of it.", max_length=400)] = "",
    channel: Channel | None = None,
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> PreferencesSaid:
    """What is recorded; addresses are masked."""
    pages = Pages(caller, "preferences", {"address": address, "channel": channel})
    after = pages.after(cursor) or ("", "", "", "")
    if channel is not None and not address:
        raise InvalidInput("channel says which kind of address is meant: give the address", field="channel")
    if address:
        known = _address(caller, address, channel.value if channel else "")
        rows = consent.records_of(
            caller.store, tenant=caller.tenant, channel=known.channel, address=known.address
        )
        return PreferencesSaid(records=[_said(row) for row in rows], next=None)
    place = dict(zip(_PLACE, after, strict=True))
    rows = caller.read(lambda tx: consent.page_of(tx, caller.tenant, place, limit + 1))
    last = rows[limit - 1] if len(rows) > limit else None
    return PreferencesSaid(
        records=[_said(row) for row in rows[:limit]],
        next=pages.next(None if last is None else [last[name] for name in _PLACE]),
    )


@resource.post("/preference-removals", Scope.CANCEL, response_model=RemovalSaid)
def remove_preference(request: Request, asked: RemovalAsked, caller: MayCancel) -> Response:
    """Take a record away. What it stopped stays stopped; new reminders may go out."""
    known = _address(caller, asked.address, asked.channel, asked.kind, asked.category)

    def work() -> Done:
        removed = consent.remove(
            caller.store,
            tenant=caller.tenant,
            channel=known.channel,
            address=known.address,
            category=known.category,
            kind=known.kind,
            reason=asked.reason,
            actor=caller.actor,
        )
        if not removed:
            raise NotFound(f"no {known.kind} record of this address for category {known.category}")
        return said(RemovalSaid(removed=1))

    return once(request, caller, work)


def _address(caller: Caller, address: str, channel: str, kind: str = "", category: str = "") -> Record:
    """The address, normalised, by the rules that records are read by."""
    values: Mapping[str, str] = {
        "address": address, "channel": channel, "kind": kind, "category": category,
    }  # fmt: skip
    return consent.record_of(values, caller.policy, now=caller.now, tenant=caller.tenant)


def _said(row: Row) -> PreferenceSaid:
    return PreferenceSaid(
        channel=str(row["channel"]),
        address=str(row["masked"]),
        kind=Kind(str(row["kind"])),
        category=str(row["category"]),
        at=instant(int(row["at"])),
        source=str(row["source"]),
        evidence=str(row["evidence"]),
        actor=str(row["actor"]),
    )
