"""`/reminders`: in, in bulk; read; changed. `/cancellations`: taken back.

The body of a bulk call is large, and each of its reminders is checked by the intake itself, with value,
rule and fix: so it is read as plain JSON here, without a model of each reminder. `ReminderAsked` is for the
document.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Annotated, Any, Final

from fastapi import Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from sendonce.address import masked
from sendonce.api.idempotency import HEADER, NOT_KEPT, Done, once, response_of, said
from sendonce.api.problems import Problem
from sendonce.api.program import BODY, Caller, MayCancel, MayRead, MaySchedule
from sendonce.api.reading import parsed
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, DeliverySaid, Instant, Reason, Said, delivery_said, instant
from sendonce.core.access import Scope
from sendonce.core.errors import InvalidInput
from sendonce.core.lifecycle import State
from sendonce.pipeline.cancel import By, Cancellation, cancel, selected
from sendonce.pipeline.hand_in import HandedIn, Result, edit, hand_in, reminders_of
from sendonce.pipeline.intake import UNIT_MAX, Verdict
from sendonce.ports.store import Delivery, Reminder
from sendonce.withdrawal import Answer

REMINDERS_MAX: Final = 10_000
"""In one call."""
SMALL_BYTES: Final = 4 * 1024
"""So much is checked within a millisecond or two."""

resource = Resource("reminders", "Reminders: in, in bulk; read, changed, taken back.")

Id = Annotated[str, Path(description="The reminder's id, percent-encoded.", examples=["shipment-4821"])]
Customer = Annotated[str, Query(description="Whose, where several have a reminder of this id.")]

EXAMPLE: Final[dict[str, Any]] = {
    "reminder": "shipment-4821",
    "customer": "customer-73",
    "due": "2027-12-01T09:00+01:00",
    "template": "shipped",
    "email": "ann@example.com",
    "data": {"name": "Ann", "parcel": "A-17"},
}


class ReminderAsked(BaseModel):
    """One reminder; with `plan` and `date` one for each step of the plan."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE], "additionalProperties": False})

    reminder: str = Field(description="Your id for it, at most 200 characters.")
    customer: str = Field("", description="Whose it is; else a name made from the first address.")
    due: str = Field("", description='"2026-12-01T09:00+01:00", local time of `timezone`, "now", "in 2h".')
    plan: str = Field("", description="Instead of due: the name of a plan, with `date`.")
    date: str = Field("", description="What the plan counts from.", examples=["2026-12-01"])
    timezone: str = Field("", description="IANA name; else the tenant's.", examples=["Europe/Berlin"])
    template: str = Field(description="Its name.")
    template_version: int = Field(0, ge=0, description="0: the newest when it goes out.")
    data: dict[str, Any] = Field(default_factory=dict, description="What the template shows.")
    email: str = ""
    phone: str = Field("", description="With its country code.", examples=["+12025550123"])
    channels: list[str] = Field(default_factory=list, description="Else each that an address is given for.")
    sender: str = ""
    reply_to: str = ""
    sms_sender: str = ""
    category: str = ""
    group: str = Field("", description="A label, to find, pause or cancel several together.")
    priority: int = Field(0, ge=0, le=9)
    expires: str = Field("", description='"2h" after the due time, or a time; else as configured.')


class RemindersAsked(BaseModel):
    """Up to 10,000 reminders. One that is wrong stops no other."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reminders": [EXAMPLE]}], "additionalProperties": False}
    )

    reminders: list[ReminderAsked] = Field(min_length=1, max_length=REMINDERS_MAX)
    update: bool = Field(False, description="Revise known ones, as long as nothing may have been sent.")


class ResultSaid(Said):
    """What became of one reminder. What is empty is left out, all but the first four."""

    index: int = Field(description="Its place in what was given; with a plan several share one.")
    reminder: str
    verdict: Verdict
    keys: list[str] = Field(description="Its delivery keys, one a channel.")
    fields: list[str] = Field(default_factory=list, description="What differs, for revisions and conflicts.")
    field: str = Field("", description="What is wrong, for invalid ones.")
    why: str = Field("", description="A sentence: value, rule and fix.")
    notes: list[str] = Field(default_factory=list, description="What was assumed, such as the zone.")


class RemindersSaid(Said):
    """One result for each reminder, in order, and how many of each verdict."""

    counts: dict[str, int]
    results: list[ResultSaid]


class ReminderChanged(ReminderAsked):
    """Fields to change; what is not given stays. Not `reminder`, `customer`, `plan`, `date`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"due": "2027-12-02T09:00+01:00"}],
            "additionalProperties": False,
            "required": [],
        }
    )


class RecipientSaid(Said):
    to: str = Field(description="Masked.")
    sender: str
    reply_to: str


class ReminderSaid(Said):
    """A reminder as it stands, with its deliveries."""

    reminder: str
    customer: str
    version: int = Field(description="One more with each change; `If-Match` takes it.")
    due_at: Instant
    due_local: str
    timezone: str
    expires_at: Instant
    template: str
    template_version: int
    category: str
    group: str
    priority: int
    data: dict[str, Any]
    recipients: dict[str, RecipientSaid]
    linked: str = Field(description="The delivery that this one sends again, or empty.")
    created_at: Instant
    deliveries: list[DeliverySaid]


class FoundReminders(Said):
    reminders: list[ReminderSaid] = Field(description="One for each customer that has this id.")


_BULK: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RemindersAsked"}}},
    }
}
_CHANGE: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ReminderChanged"}}},
    }
}
DOCUMENTED: Final = (RemindersAsked, ReminderChanged)
"""What stands in the document and is read by the intake's own rules."""


@resource.post("/reminders", Scope.SCHEDULE, response_model=RemindersSaid, extra=_BULK)
async def hand_in_reminders(request: Request, caller: MaySchedule) -> Response:
    """Take in up to 10,000 reminders, each with an answer of its own.

    The same reminder with the same content again changes nothing. What is answered is durable.
    """
    body: bytes = request.scope[BODY]
    if len(body) <= SMALL_BYTES and HEADER not in request.headers:
        done = await _at_once(body, caller)
        if done is not None:
            return response_of(done)
    return await run_in_threadpool(once, request, caller, lambda: _hand_in(body, caller))


async def _at_once(body: bytes, caller: Caller) -> Done | None:
    """Little enough to be checked on the loop, which costs less than to change threads; None where the store
    must be asked for something before."""
    reminders, update = _bulk(parsed(body))
    taking = caller.program.app.together.take(
        reminders, tenant=caller.tenant, actor=caller.actor, update=update, at_once=True
    )
    if taking is None:
        return None
    for handed_over in taking.hand_over():
        await asyncio.wrap_future(handed_over)
    return _done(taking.finish())


def _hand_in(body: bytes, caller: Caller) -> Done:
    reminders, update = _bulk(parsed(body))
    app = caller.program.app
    if len(reminders) <= UNIT_MAX:
        taking = app.together.take(reminders, tenant=caller.tenant, actor=caller.actor, update=update)
        assert taking is not None
        return _done(taking.finish())
    return _done(
        hand_in(
            caller.store,
            app.book,
            caller.policy,
            reminders,
            tenant=caller.tenant,
            actor=caller.actor,
            update=update,
            bound=True,
            hands=app.hands,
        )
    )


def _done(done: HandedIn) -> Done:
    counts = Counter(result.verdict.value for result in done.results)
    results = [_result(result) for result in done.results]
    kept = b""
    if counts[Verdict.INVALID.value]:
        kept = _write({"counts": counts, "results": [_without_quotes(each) for each in results]})
    return Done(_write({"counts": counts, "results": results}), about_until=done.latest, kept=kept)


def _without_quotes(result: dict[str, object]) -> dict[str, object]:
    return {**result, "why": NOT_KEPT} if result["verdict"] == Verdict.INVALID.value else result


def _bulk(document: object) -> tuple[list[object], bool]:
    match document:
        case {"reminders": list() as reminders, **rest} if rest.keys() <= {"update"}:
            update = rest.get("update", False)
        case _:
            raise InvalidInput(
                'the body must be {"reminders": [...]}, with "update" beside it or nothing', field="reminders"
            )
    if not isinstance(update, bool):
        raise InvalidInput("update must be true or false", field="update")
    if not 1 <= len(reminders) <= REMINDERS_MAX:
        raise InvalidInput(
            f"{len(reminders)} reminders: hand in 1 to {REMINDERS_MAX} in one call", field="reminders"
        )
    return reminders, update


def _result(result: Result) -> dict[str, object]:
    said: dict[str, object] = {
        "index": result.index,
        "reminder": result.reminder,
        "verdict": result.verdict.value,
        "keys": result.keys,
    }
    more = {"fields": result.fields, "field": result.field, "why": result.why, "notes": result.notes}
    said.update({name: value for name, value in more.items() if value})
    return said


def _write(document: object) -> bytes:
    # A message may quote half a character out of what was given.
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


@resource.get("/reminders/{reminder:path}", Scope.READ)
def read_reminder(reminder: Id, caller: MayRead, customer: Customer = "") -> FoundReminders:
    """A reminder as it stands, with its deliveries, for each customer that has this id."""
    found = caller.read(lambda tx: reminders_of(tx, reminder, tenant=caller.tenant, customer=customer))
    return FoundReminders(reminders=[_reminder(one, deliveries) for one, deliveries in found])


@resource.patch("/reminders/{reminder:path}", Scope.SCHEDULE, response_model=ResultSaid, extra=_CHANGE)
def change_reminder(
    request: Request,
    reminder: Id,
    caller: MaySchedule,
    customer: Customer = "",
    if_match: Annotated[str, Header(description='The version that is changed, such as "2".')] = "",
) -> Response:
    """Change fields of a reminder, such as its due time, as long as nothing of it may have been sent.

    What is not given stays. `data` is replaced as a whole.
    """
    changes = parsed(request.scope[BODY])
    if not isinstance(changes, dict) or not changes:
        raise InvalidInput("the body must be an object with the fields to change", field="body")
    app = caller.program.app
    result = edit(
        caller.store,
        app.book,
        caller.policy,
        reminder,
        changes,
        tenant=caller.tenant,
        actor=caller.actor,
        customer=customer,
        version=_version(if_match),
    )
    match result.verdict:
        case Verdict.REFUSED | Verdict.CONFLICTING:
            raise Problem("refused", result.why, fields=list(result.fields))
        case Verdict.INVALID:
            raise Problem("invalid_input", result.why, field=result.field)
        case _:
            return Response(_write(_result(result)), media_type="application/json")


def _version(text: str) -> int:
    digits = text.strip().removeprefix("W/").strip('"')
    if not digits or digits == "*":
        return 0
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
        raise Problem("bad_request", f'If-Match {text!r:.80} is no version: send one such as "2"')
    return int(digits)


def _reminder(one: Reminder, deliveries: list[Delivery]) -> ReminderSaid:
    return ReminderSaid(
        reminder=one.reminder,
        customer=one.customer,
        version=one.version,
        due_at=instant(one.due_at),
        due_local=one.due_local,
        timezone=one.zone,
        expires_at=instant(one.expires_at),
        template=one.template,
        template_version=one.template_version,
        category=one.category,
        group=one.group,
        priority=one.priority,
        data=json.loads(one.data),
        recipients={
            channel: RecipientSaid(
                to=masked(channel, recipient["to"]),
                sender=recipient.get("sender", ""),
                reply_to=recipient.get("reply_to", ""),
            )
            for channel, recipient in one.recipients.items()
        },
        linked=one.linked,
        created_at=instant(one.created_at),
        deliveries=[DeliverySaid(**delivery_said(each)) for each in deliveries],
    )


# Taking back


class CancellationAsked(Asked):
    """What to take back: exactly one of the five."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reminder": "shipment-4821", "reason": "returned"}]}
    )

    reminder: str = ""
    delivery: str = Field("", description="A delivery key.")
    customer: str = ""
    group: str = ""
    import_: str = Field("", alias="import", description="The number of an import: what it created.")
    reason: Reason
    preview: bool = Field(False, description="Answer the same and change nothing.")


class CancelledSaid(Said):
    key: str
    answer: str = Field(description="cancelled, suppressed, cancel_pending, already_sent or already_ended.")
    state: State
    changed: bool = Field(description="By this request, not by an earlier one.")
    text: str


def cancelled_said(answer: Answer) -> CancelledSaid:
    return CancelledSaid(
        key=answer.key,
        answer=answer.word.value,
        state=answer.state,
        changed=answer.changed,
        text=str(answer),
    )


class CancellationSaid(Said):
    """What became of each delivery; the first 1,000 of them in `answers`."""

    preview: bool
    changed: int = Field(description="By this request; the others had been answered before.")
    counts: dict[str, int]
    answers: list[CancelledSaid]
    more: int


@resource.post("/cancellations", Scope.CANCEL, response_model=CancellationSaid)
def take_back(request: Request, asked: CancellationAsked, caller: MayCancel) -> Response:
    """Take back what has not been sent. The answer is true for each delivery.

    `cancel_pending`: a call is open or in doubt, so it may already be sent; it will not be tried again.
    """
    names = {
        By.REMINDER: asked.reminder,
        By.DELIVERY: asked.delivery,
        By.CUSTOMER: asked.customer,
        By.GROUP: asked.group,
        By.IMPORT: asked.import_,
    }
    selection = selected(names, caller.tenant)

    def work() -> Done:
        done = cancel(
            caller.store,
            selection,
            policy=caller.policy,
            reason=asked.reason,
            actor=caller.actor,
            preview=asked.preview,
        )
        return said(_cancellation(done))

    return once(request, caller, work)


def _cancellation(done: Cancellation) -> CancellationSaid:
    return CancellationSaid(
        preview=done.preview,
        changed=done.changed,
        counts=dict(done.counts),
        answers=[cancelled_said(each) for each in done.answers],
        more=done.more,
    )
