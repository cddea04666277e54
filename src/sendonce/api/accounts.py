"""`/accounts`: what waits at each and why, and its limits. `/pauses`, `/resumptions`: holding back.

Accounts, channels and the scheduler are the whole installation's: to change them takes a key with `admin`.
A group is its tenant's: `operate` is enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import Path, Request, Response
from pydantic import ConfigDict, Field

from sendonce.api.idempotency import Done, once, said
from sendonce.api.pages import LIMIT, Cursor, Pages
from sendonce.api.pages import Limit as PageLimit
from sendonce.api.program import Caller, MayAdmin, MayOperate
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, Instant, Reason, Said, instant
from sendonce.core.access import Scope as Needed
from sendonce.core.duration import Rate, parse_duration, parse_rate, write_rate
from sendonce.core.errors import NotFound
from sendonce.core.pacing import SECOND, GateLimits, Limit
from sendonce.pipeline.failover import LEFT, reroute
from sendonce.pipeline.overview import AccountView, overview
from sendonce.pipeline.pause import Scope, Target, change_limits, pause, resume, target_of
from sendonce.pipeline.standstill import Word
from sendonce.ports.store import Pause, Tx
from sendonce.preparation import due_of

resource = Resource("accounts", "Provider accounts with their gates; pauses of all that can be paused.")

Name = Annotated[str, Path(description="The account's name.", max_length=200, examples=["mail"])]


class LimitsSaid(Said):
    """What the provider allows, as in force now."""

    limits: list[str] = Field(examples=[["14/s", "50000/d"]])
    lanes: int = Field(description="Calls that may be open at once.")
    headroom: float = Field(description="The share that is left to other traffic.")


class GateSaid(Said):
    """The account's gate: whether calls may start, and why not."""

    state: Word
    why: str
    left_s: float | None = Field(description="How long it stays so; null without an end, 0 while open.")
    lanes_used: int
    lanes_of: int
    per_second: float | None = Field(description="Starts a second just now; null where only quotas limit.")
    limits: LimitsSaid | None
    changed: bool = Field(description="The limits are no longer those of the configuration.")


class AccountSaid(Said):
    """What waits at an account, and why nothing leaves where nothing does. Counts are over all tenants."""

    name: str
    channel: str
    configured: bool
    ready: int
    waiting: int
    sending: int
    uncertain: int
    reconciling: int
    dead: int
    rejected: int
    oldest_s: float = Field(description="How long the first ready one waits.")
    accepted_lately: int = Field(description="Within the last minute.")
    keeps: float | None = Field(
        description="What it keeps of its weight among those it shares with; null: it shares nothing."
    )
    gate: GateSaid
    why: str


class AccountsSaid(Said):
    """By name. `next` asks for the page after it."""

    accounts: list[AccountSaid]
    next: str | None


class LimitsAsked(Asked):
    """New limits; what is not given stays."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"limits": ["20/s"], "reason": "raised today"}]}
    )

    limits: list[str] = Field(default_factory=list, description='All of them: "14/s", "50000/d".')
    lanes: int | None = None
    headroom: float | None = None
    reason: Reason


class LimitsChanged(Said):
    account: str
    before: LimitsSaid
    after: LimitsSaid


class MoveAsked(Asked):
    """Who is to carry what waits; of one group or category only, where that is named."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"to": "spare", "reason": "an outage", "preview": True}]}
    )

    to: str = Field(description="An account that shares with it.")
    group: str = ""
    category: str = ""
    reason: Reason
    preview: bool = Field(False, description="Count, and change nothing.")


class StaysSaid(Said):
    """What stays where it is, by why. `code` is for programs."""

    code: str = Field(examples=["uncertain"])
    why: str
    count: int


class MoveSaid(Said):
    """What went to the other account, or would go."""

    account: str
    to: str
    preview: bool
    moved: int
    left: list[StaysSaid]


class PauseAsked(Asked):
    """What to hold back. `name` is not for the scheduler."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"what": "group", "name": "loan-77", "reason": "paid by card"}]}
    )

    what: str = Field(description="scheduler, channel, group or account.")
    name: str = ""
    until: str = Field("", description='"in 2h", or a time; else until it is resumed.')
    reason: Reason


class PauseSaid(Said):
    """A pause as it stands. `until` null: until somebody ends it."""

    what: Scope
    name: str
    until: Instant
    held: int | None = Field(description="Open deliveries of a group; null for everything else.")


class PauseSeen(Said):
    what: Scope
    name: str
    until: Instant
    reason: str
    actor: str
    at: Instant


class PausesSaid(Said):
    """By what is paused, and its name. `next` asks for the page after it."""

    pauses: list[PauseSeen]
    next: str | None


class ResumptionAsked(Asked):
    """What to let go."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"what": "group", "name": "loan-77", "reason": "it bounced"}]}
    )

    what: str = Field(description="scheduler, channel, group or account.")
    name: str = ""
    reason: Reason
    reopen: bool = Field(False, description="Open an account's gate too, whatever closed it.")
    over: str = Field("", description='Spread what was held over so long, such as "30m".')


class ResumptionSaid(Said):
    what: Scope
    name: str
    was_paused: bool
    woken: int = Field(description="Looked at again now.")
    spread: int = Field(description="Going over the span that was asked for.")
    opened: str = Field(description="Why the gate had been closed that is open now.")


@resource.get("/accounts", Needed.OPERATE)
def list_accounts(caller: MayOperate, limit: PageLimit = LIMIT, cursor: Cursor = "") -> AccountsSaid:
    """Each account: what waits, its gate, its limits, and why nothing leaves where nothing does."""
    seen = caller.read(lambda tx: overview(tx, caller.policy))
    found, beyond = Pages(caller, "accounts", {}).cut(
        seen.accounts, lambda each: (each.name,), limit=limit, cursor=cursor
    )
    return AccountsSaid(accounts=[_account(each) for each in found], next=beyond)


@resource.get("/accounts/{name}", Needed.OPERATE)
def read_account(name: Name, caller: MayOperate) -> AccountSaid:
    """One account."""
    seen = caller.read(lambda tx: overview(tx, caller.policy))
    for each in seen.accounts:
        if each.name == name:
            return _account(each)
    raise NotFound(f"no account {name!r:.80} is known")


@resource.patch("/accounts/{name}/limits", Needed.ADMIN)
def change_account_limits(name: Name, asked: LimitsAsked, caller: MayAdmin) -> LimitsChanged:
    """Change an account's limits for all processes, until its configuration changes."""
    now = caller.read(lambda tx: _limits_of(tx, name))
    wanted = replace(
        now,
        limits=tuple(_limit(text) for text in asked.limits) or now.limits,
        lanes=now.lanes if asked.lanes is None else asked.lanes,
        headroom=now.headroom if asked.headroom is None else asked.headroom,
    )
    before, after = change_limits(caller.store, name, wanted, reason=asked.reason, actor=caller.actor)
    return LimitsChanged(account=name, before=_limits(before), after=_limits(after))


@resource.post("/accounts/{name}/moves", Needed.ADMIN, response_model=MoveSaid)
def move_what_waits(name: Name, request: Request, asked: MoveAsked, caller: MayAdmin) -> Response:
    """Give what waits for this account to another that shares with it; never what may be sent already."""

    def work() -> Done:
        done = reroute(
            caller.store,
            caller.policy,
            name,
            asked.to,
            reason=asked.reason,
            actor=caller.actor,
            group=asked.group,
            category=asked.category,
            preview=asked.preview,
        )
        left = [StaysSaid(code=code, why=LEFT[code], count=count) for code, count in done.left.most_common()]
        return said(MoveSaid(account=name, to=done.target, preview=done.preview, moved=done.moved, left=left))

    return once(request, caller, work)


@resource.get("/pauses", Needed.OPERATE)
def list_pauses(caller: MayOperate, limit: PageLimit = LIMIT, cursor: Cursor = "") -> PausesSaid:
    """What is paused now: all but the groups of other tenants."""
    now, found = caller.read(lambda tx: (tx.now, tx.runs.pauses()))
    own = f"{caller.tenant}/"
    shown = [
        each
        for each in found
        if each.until > now and (each.scope != Scope.GROUP or each.name.startswith(own))
    ]
    page, beyond = Pages(caller, "pauses", {}).cut(
        shown, lambda each: (each.scope, each.name), limit=limit, cursor=cursor
    )
    return PausesSaid(pauses=[_seen(each, own) for each in page], next=beyond)


@resource.post("/pauses", Needed.OPERATE, response_model=PauseSaid)
def add_pause(request: Request, asked: PauseAsked, caller: MayOperate) -> Response:
    """Hold back what has not started: a group, or for all tenants an account, a channel, or everything."""
    target = _target(caller, asked.what, asked.name)

    def work() -> Done:
        zone = caller.policy.zone(caller.tenant)
        until = due_of(asked.until, "", zone, caller.now)[0].at if asked.until else None
        done = pause(
            caller.store, target, caller.policy, reason=asked.reason, actor=caller.actor, until=until
        )
        return said(
            PauseSaid(
                what=done.target.scope, name=done.target.name, until=instant(done.until), held=done.held
            )
        )

    return once(request, caller, work)


@resource.post("/resumptions", Needed.OPERATE, response_model=ResumptionSaid)
def end_pause(request: Request, asked: ResumptionAsked, caller: MayOperate) -> Response:
    """End a pause; what it held goes on at once, paced, or spread over a time."""
    target = _target(caller, asked.what, asked.name)

    def work() -> Done:
        done = resume(
            caller.store,
            target,
            caller.policy,
            reason=asked.reason,
            actor=caller.actor,
            reopen=asked.reopen,
            over_s=parse_duration(asked.over, field="over") if asked.over else 0.0,
        )
        return said(
            ResumptionSaid(
                what=done.target.scope,
                name=done.target.name,
                was_paused=done.was_paused,
                woken=done.woken,
                spread=done.spread,
                opened=done.opened,
            )
        )

    return once(request, caller, work)


def _target(caller: Caller, what: str, name: str) -> Target:
    """What is meant, where this key may hold it back."""
    target = target_of(what, name, caller.tenant)
    if target.scope is not Scope.GROUP:
        caller.needs(Needed.ADMIN)
    return target


def _account(each: AccountView) -> AccountSaid:
    gate = each.gate
    values: dict[str, Any] = {name: getattr(each, name) for name in _AS_SEEN}
    return AccountSaid(
        **values,
        oldest_s=round(each.oldest_s, 3),
        accepted_lately=each.flow.accepted,
        gate=GateSaid(
            state=gate.word,
            why=gate.why,
            left_s=gate.left_s,
            lanes_used=gate.lanes_used,
            lanes_of=gate.lanes_of,
            per_second=gate.rate,
            limits=None if gate.limits is None else _limits(gate.limits),
            changed=gate.changed,
        ),
    )


_AS_SEEN: Final = (
    "name",
    "channel",
    "configured",
    "ready",
    "waiting",
    "sending",
    "uncertain",
    "reconciling",
    "dead",
    "rejected",
    "keeps",
    "why",
)


def _seen(each: Pause, own: str) -> PauseSeen:
    return PauseSeen(
        what=Scope(each.scope),
        name=each.name.removeprefix(own) if each.scope == Scope.GROUP else each.name,
        until=instant(each.until),
        reason=each.reason,
        actor=each.actor,
        at=instant(each.at),
    )


def _limits(limits: GateLimits) -> LimitsSaid:
    rates = [
        write_rate(Rate(each.count, each.interval_us / SECOND, "parts" if each.parts else "requests"))
        for each in limits.limits
    ]
    return LimitsSaid(limits=rates, lanes=limits.lanes, headroom=limits.headroom)


def _limits_of(tx: Tx, account: str) -> GateLimits:
    for gate in tx.gates.all():
        if gate.account == account:
            return gate.limits
    raise NotFound(f"no account {account!r:.80} is known")


def _limit(text: str) -> Limit:
    rate = parse_rate(text, field="limits")
    return Limit(rate.count, round(rate.interval_s * SECOND), rate.unit == "parts")
