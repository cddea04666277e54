"""The operator's desk: dead letters and redrives, uncertain deliveries and resolutions, and what is sent once
more; all of one tenant."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import ConfigDict, Field

from sendonce.api.idempotency import Done, once, said
from sendonce.api.pages import LIMIT, Cursor, Limit, Pages
from sendonce.api.program import Caller, MayOperate, MayRead
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, DeliverySaid, Instant, Reason, Said, delivery_said, instant
from sendonce.core.access import Scope
from sendonce.core.delivery import Channel
from sendonce.core.due import parse_due
from sendonce.core.duration import parse_duration
from sendonce.core.errors import InvalidInput, Refused
from sendonce.pipeline.chosen import Filter, meant
from sendonce.pipeline.hand_in import send_again
from sendonce.pipeline.intake import Verdict
from sendonce.pipeline.redrive import Redrive, dead_letters, groups, redrive, show
from sendonce.pipeline.resolve import DUPLICATE_RISK, Resolution, Word, resolve, uncertain

KEYS_MAX = 1_000

resource = Resource("desk", "Dead letters and redrives, uncertain deliveries and resolutions.")

Key = Annotated[
    str, Path(description="The delivery key, percent-encoded.", examples=["shipment-4821:customer-73:email"])
]
Text = Annotated[str, Query(max_length=200)]


class DeadGroupSaid(Said):
    """Dead letters with one cause, on one account."""

    state: str
    reason: str
    words: str
    channel: str
    account: str
    count: int
    first_due: Instant
    last_due: Instant


class DeadGroupsSaid(Said):
    groups: list[DeadGroupSaid]


class DeadLettersSaid(Said):
    deliveries: list[DeliverySaid]
    next: str | None


class AttemptSaid(Said):
    """One call to the provider. `outcome` is empty while none is known."""

    number: int
    at: Instant
    account: str
    outcome: str
    reason: str
    code: str
    took_s: float


class DeadLetterSaid(DeliverySaid):
    """A dead letter, whole: each attempt, what has changed since, and whether it may be redriven."""

    words: str
    attempts_made: list[AttemptSaid]
    rounds: int = Field(description="How often it was redriven.")
    changed: list[str] = Field(description="What is different from when its text was fixed.")
    refused: str = Field(description="Why it may not be redriven now; empty where it may.")
    fresh_refused: str = Field(description="The same, with content made anew.")


class ChoiceAsked(Asked):
    """Which deliveries: some keys, or all that the filters choose, or with `all` every one."""

    keys: list[str] = Field(default_factory=list, max_length=KEYS_MAX)
    all: bool = False
    channel: str = ""
    account: str = ""
    cause: str = Field("", description="A coded reason, or its family, such as failed.")
    template: str = ""
    group: str = ""
    due_from: str = ""
    due_to: str = ""
    reason: Reason
    preview: bool = Field(False, description="Answer the same and change nothing.")


class RedriveAsked(ChoiceAsked):
    """Which dead letters go again, and how."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"account": "mail", "reason": "the relay is back", "preview": True}]}
    )

    per_second: float = 5.0
    extend: str = Field("", description="Valid for at least so long from now.", examples=["2h"])
    fresh: bool = Field(False, description="Make the content anew, from the template as it is then.")


class RefusedSaid(Said):
    why: str
    count: int


class ExampleSaid(Said):
    key: str
    why: str


class RedriveSaid(Said):
    """What goes again, under the same keys, and what does not."""

    preview: bool
    redriven: int
    last_at: Instant = Field(description="When the last of them may go.")
    refused: list[RefusedSaid]
    examples: list[ExampleSaid] = Field(description="Of the refused, the first 200.")


class UncertainOne(DeliverySaid):
    """Nobody can tell by itself whether it was sent."""

    attempt_at: Instant
    evidence: str
    policy: str = Field(description="What the configuration says of such.")
    resend_refused: str = Field(description="Why it must not be sent again; empty where it may.")


class UncertainSaid(Said):
    uncertain: list[UncertainOne]
    next: str | None


class ResolutionAsked(ChoiceAsked):
    """What a person decides about uncertain deliveries, each on its own. By a filter: about those whose last
    attempt was before this request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"keys": ["r-1:c-1:sms"], "decision": "not_sent", "reason": "asked the provider"},
                {
                    "account": "text",
                    "cause": "unknown:timeout",
                    "decision": "not_sent",
                    "reason": "none of them in the provider's log",
                    "preview": True,
                },
            ]
        }
    )

    decision: str = Field(description="sent, not_sent or resend.")
    receipt: str = Field("", description="For sent, and one key: the provider's number, as proof.")
    may_arrive_twice: bool = Field(False, description="For resend: that it may is understood.")


class AnswerSaid(Said):
    key: str
    done: bool
    state: str = Field(description="Empty for a key that is not known.")
    why: str


class ResolutionSaid(Said):
    """What was decided, or in a preview would be, and what was not."""

    decision: Word
    preview: bool
    resolved: int
    refused: list[RefusedSaid]
    examples: list[ExampleSaid] = Field(description="Of the refused, the first 200.")
    answers: list[AnswerSaid] = Field(description="For keys: one each, in their order. Empty for a filter.")


class RepetitionAsked(Asked):
    """What is sent once more."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"delivery": "r-1:c-1:email", "reason": "deleted by mistake"}]}
    )

    delivery: str = Field(description="The key of a delivery that has ended.")
    reason: Reason


class RepetitionSaid(Said):
    """A new reminder, due now and linked to the old one; `unchanged`: it is on its way already."""

    verdict: Verdict
    reminder: str
    keys: list[str]
    why: str


@resource.get("/dead-letter-groups", Scope.READ)
def group_dead_letters(caller: MayRead) -> DeadGroupsSaid:
    """Dead letters by what killed them, the largest group first."""
    found = caller.read(lambda tx: groups(tx, tenant=caller.tenant))
    return DeadGroupsSaid(
        groups=[
            DeadGroupSaid(
                state=each.state,
                reason=each.reason,
                words=each.words,
                channel=each.channel,
                account=each.account,
                count=each.count,
                first_due=instant(each.first_due),
                last_due=instant(each.last_due),
            )
            for each in found
        ]
    )


@resource.get("/dead-letters", Scope.READ)
def list_dead_letters(
    caller: MayRead,
    channel: Channel | None = None,
    account: Text = "",
    cause: Text = "",
    template: Text = "",
    group: Text = "",
    due_from: Text = "",
    due_to: Text = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> DeadLettersSaid:
    """What failed for good and was not sent, one by one."""
    chosen = _filter(caller, channel or "", account, cause, template, group, due_from, due_to)
    pages = Pages(caller, "dead-letters", {"chosen": repr(chosen)})
    after = pages.after(cursor)
    place = None if after is None else (str(after[0]), int(after[1]), int(after[2]))
    page = caller.read(lambda tx: dead_letters(tx, chosen, limit=limit, after=place))
    return DeadLettersSaid(
        deliveries=[DeliverySaid(**delivery_said(each)) for each in page.found], next=pages.next(page.after)
    )


@resource.get("/dead-letters/{key:path}", Scope.READ)
def read_dead_letter(key: Key, caller: MayRead) -> DeadLetterSaid:
    """One dead letter: each attempt, what has changed since, and whether it may be redriven."""
    letter = caller.read(lambda tx: show(tx, key, caller.policy, tenant=caller.tenant))
    return DeadLetterSaid(
        **delivery_said(letter.delivery),
        words=letter.words,
        attempts_made=[
            AttemptSaid(
                number=each.number,
                at=instant(each.at),
                account=each.account,
                outcome=each.outcome,
                reason=each.reason,
                code=each.code,
                took_s=each.took_s,
            )
            for each in letter.attempts
        ],
        rounds=letter.rounds,
        changed=list(letter.changed),
        refused=letter.refused,
        fresh_refused=letter.fresh_refused,
    )


@resource.post("/redrives", Scope.OPERATE, response_model=RedriveSaid)
def redrive_dead_letters(request: Request, asked: RedriveAsked, caller: MayOperate) -> Response:
    """Queue dead letters again, under the same keys, at a pace. Consent and expiry are read again."""
    chosen = _chosen(caller, asked)

    def work() -> Done:
        done = redrive(
            caller.store,
            chosen,
            caller.policy,
            reason=asked.reason,
            actor=caller.actor,
            per_s=asked.per_second,
            extend_s=parse_duration(asked.extend, field="extend") if asked.extend else 0.0,
            fresh=asked.fresh,
            preview=asked.preview,
        )
        return said(_redrive(done))

    return once(request, caller, work)


def _redrive(done: Redrive) -> RedriveSaid:
    return RedriveSaid(
        preview=done.preview,
        redriven=done.redriven,
        last_at=instant(done.last_at),
        refused=_refused(done.refused),
        examples=_examples(done.examples),
    )


def _refused(counts: Counter[str]) -> list[RefusedSaid]:
    return [RefusedSaid(why=why, count=count) for why, count in counts.most_common()]


def _examples(found: list[tuple[str, str]]) -> list[ExampleSaid]:
    return [ExampleSaid(key=key, why=why) for key, why in found]


@resource.get("/uncertain", Scope.READ)
def list_uncertain(
    caller: MayRead,
    channel: Channel | None = None,
    account: Text = "",
    cause: Text = "",
    template: Text = "",
    group: Text = "",
    due_from: Text = "",
    due_to: Text = "",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> UncertainSaid:
    """What may have been sent and may not: a person decides, with a resolution."""
    chosen = _filter(caller, channel or "", account, cause, template, group, due_from, due_to)
    pages = Pages(caller, "uncertain", {"chosen": repr(chosen)})
    after = pages.after(cursor)
    page = caller.read(
        lambda tx: uncertain(
            tx,
            caller.policy,
            chosen,
            limit=limit,
            after=(int(after[0]), int(after[1])) if after else (-1, 0),
        )
    )
    return UncertainSaid(
        uncertain=[
            UncertainOne(
                **delivery_said(each.delivery),
                attempt_at=instant(each.since),
                evidence=each.evidence,
                policy=each.policy,
                resend_refused=each.resend,
            )
            for each in page.found
        ],
        next=pages.next(page.after),
    )


@resource.post("/resolutions", Scope.OPERATE, response_model=ResolutionSaid)
def resolve_uncertain(request: Request, asked: ResolutionAsked, caller: MayOperate) -> Response:
    """Decide uncertain deliveries. A resend may reach the customer twice, and takes a word for that."""
    word = _word(asked.decision)
    chosen = _chosen(caller, asked)
    if word is Word.RESEND and not asked.may_arrive_twice and not asked.preview:
        raise Refused(
            f'{DUPLICATE_RISK} "may_arrive_twice": true says that this is understood', code="duplicate_risk"
        )

    def work() -> Done:
        done = resolve(
            caller.store,
            chosen,
            word,
            caller.policy,
            reason=asked.reason,
            actor=caller.actor,
            receipt=asked.receipt,
            preview=asked.preview,
        )
        return said(_resolution(done))

    return once(request, caller, work)


def _resolution(done: Resolution) -> ResolutionSaid:
    return ResolutionSaid(
        decision=done.word,
        preview=done.preview,
        resolved=done.resolved,
        refused=_refused(done.refused),
        examples=_examples(done.examples),
        answers=[
            AnswerSaid(key=each.key, done=each.done, state=each.state, why=each.why) for each in done.answers
        ],
    )


@resource.post("/repetitions", Scope.OPERATE, response_model=RepetitionSaid)
def send_once_more(request: Request, asked: RepetitionAsked, caller: MayOperate) -> Response:
    """Send what has ended once more, as a new reminder. Never a redrive, which keeps its key."""

    def work() -> Done:
        done = send_again(
            caller.store,
            caller.policy,
            asked.delivery,
            tenant=caller.tenant,
            reason=asked.reason,
            actor=caller.actor,
        )
        return said(
            RepetitionSaid(verdict=done.verdict, reminder=done.reminder, keys=list(done.keys), why=done.why)
        )

    return once(request, caller, work)


def _chosen(caller: Caller, asked: ChoiceAsked) -> Filter:
    chosen = _filter(
        caller,
        asked.channel,
        asked.account,
        asked.cause,
        asked.template,
        asked.group,
        asked.due_from,
        asked.due_to,
        keys=tuple(asked.keys),
    )
    return meant(chosen, everything=asked.all, how='"all": true')


def _filter(
    caller: Caller,
    channel: str,
    account: str,
    cause: str,
    template: str,
    group: str,
    due_from: str,
    due_to: str,
    *,
    keys: tuple[str, ...] = (),
) -> Filter:
    """As it was asked for, in an address or in a body."""
    zone = caller.policy.zone(caller.tenant)
    return Filter(
        tenant=caller.tenant,
        channel=str(channel),
        account=account,
        reason=cause,
        template=template,
        group=group,
        since=parse_due(due_from, zone=zone, field="due_from").at if due_from else 0,
        until=parse_due(due_to, zone=zone, field="due_to").at if due_to else 0,
        keys=keys,
    )


def _word(text: str) -> Word:
    try:
        return Word(text)
    except ValueError:
        raise InvalidInput(
            f"decision {text!r:.80} must be one of {', '.join(Word)}", field="decision"
        ) from None
