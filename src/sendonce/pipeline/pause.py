"""Pause and resume, and an account's limits: what operators change while everything runs.

The scheduler, a channel, a group or an account can be paused, with or without an end. A pause holds
what has not started; calls that are open finish. An account's pause lies in its gate, on the store's
steady clock, so that a stepped calendar cannot end it; the others end at a calendar instant.

A resume wakes what the pause had put off at once, in short units, or gives it turns over a span: what
waits to be published gets its turn from the next pass, what was queued already gets it here. Resuming
an account also opens a gate that an account error or the breaker closed, since whoever resumes has
mended the cause; what the provider itself asked us to wait for stays, unless `reopen` says otherwise.

Everything here is audited with the person and the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

from sendonce import telemetry
from sendonce.core import catch_up, news, pacing
from sendonce.core.delivery import Channel, check_id, parse_channel
from sendonce.core.duration import say_duration
from sendonce.core.errors import InvalidInput, NotFound, Refused
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import Event
from sendonce.core.pacing import FOREVER, SECOND, Gate, GateLimits, Limit
from sendonce.core.policy import Policy
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.held import RELEASE_FIRST
from sendonce.moves import move_on
from sendonce.pipeline.catch_up import CatchUp
from sendonce.pipeline.reach import PAUSE_LOOK_US
from sendonce.ports.store import Delivery, Move, Pause, Store, Tx
from sendonce.telemetry import tell
from sendonce.withdrawal import check_reason

WAKE_MAX: Final = 200
"""Rows woken in one unit, of each kind: a few milliseconds of the write lock."""
OPEN_COUNT_MAX: Final = 10_000
LANES_MAX: Final = 10_000
OVER_MIN_S: Final = 1.0
OVER_MAX_S: Final = 7 * 86_400.0
TURNS_MAX: Final = 50
"""Queued rows that get a turn in one unit: each is a move, about 5 ms of the write lock for all."""


class Scope(StrEnum):
    """What is paused."""

    SCHEDULER = "scheduler"
    CHANNEL = "channel"
    GROUP = "group"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to pause or resume. `name` "" for the scheduler; `tenant` counts for a group only."""

    scope: Scope
    name: str = ""
    tenant: str = DEFAULT_TENANT

    @property
    def stored_name(self) -> str:
        return f"{self.tenant}/{self.name}" if self.scope is Scope.GROUP else self.name

    def __str__(self) -> str:
        return f"{self.scope} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Paused:
    """A pause as it stands. `until` on the calendar, None without an end.

    held    open deliveries of the group, up to `OPEN_COUNT_MAX`; None for other targets. 0 where the
            group is not known (yet): check the name
    """

    target: Target
    until: int | None
    held: int | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """`was_paused` False: there was nothing to resume. `woken`: deliveries that are looked at again now.

    spread  deliveries that get turns over the span that was asked for, instead of going at once
    opened  why the gate had been closed that is open now, "" where it was not
    """

    target: Target
    was_paused: bool
    woken: int = 0
    spread: int = 0
    opened: str = ""


def target_of(what: str, name: str, tenant: str = DEFAULT_TENANT) -> Target:
    """What a person names. Raises `InvalidInput` for a word that is none, and a name too many or missing."""
    try:
        scope = Scope(what)
    except ValueError:
        raise InvalidInput(
            f"{what!r:.80} cannot be paused: use one of {', '.join(Scope)}", field="what"
        ) from None
    if bool(name) is (scope is Scope.SCHEDULER):
        raise InvalidInput(f"{scope} {'takes no name' if name else 'needs a name'}", field="name")
    return Target(scope, name, tenant)


def pause(
    store: Store, target: Target, policy: Policy, *, reason: str, actor: str, until: int | None = None
) -> Paused:
    """Pause from now on, until an instant (microseconds UTC) or a resume. Again: the later word counts.

    Raises `InvalidInput` for an empty reason, an end that is past, an unknown channel or account;
    `NotFound` for an account without a gate.
    """
    reason = check_reason(reason)
    target = _checked(target, policy)
    done = store.write(lambda tx: _pause(tx, target, reason, actor, until)).result()
    wait_s = None if until is None else (until - store.read(lambda tx: tx.now)) / SECOND
    tell(telemetry.PAUSED, scope=target.scope.value, target=target.stored_name, wait_s=wait_s)
    return done


def resume(
    store: Store,
    target: Target,
    policy: Policy,
    *,
    reason: str,
    actor: str,
    reopen: bool = False,
    over_s: float = 0.0,
    progress: Callable[[int], None] = lambda woken: None,
) -> Resumed:
    """End a pause and wake what it put off.

    reopen  for an account: open its gate, whatever closed it
    over_s  spread what the pause held, and all that is overdue with it, over so long; 0: go on at once

    Raises as `pause`, `InvalidInput` for a span that makes no sense, and `Refused` for one while the store is
    held, since what waits is doubted first. Safe to repeat: stopped halfway,
    the next call wakes the rest.
    """
    reason = check_reason(reason)
    target = _checked(target, policy, known=False)
    _check_over(target, over_s)
    over_us = int(over_s * SECOND)
    done = store.write(lambda tx: _resume(tx, target, policy, reason, actor, reopen, over_us)).result()
    tell(telemetry.RESUMED, scope=target.scope.value, target=target.stored_name, why=reason)
    if target.scope not in (Scope.CHANNEL, Scope.GROUP):
        return done
    woken = 0
    while over_us and (step := store.write(partial(_give_turns, target, policy, actor)).result()):
        woken += step
        progress(woken)
    while step := store.write(lambda tx: _wake(tx, target)).result():
        woken += step
        progress(woken)
    return replace(done, woken=woken)


def change_limits(
    store: Store, account: str, limits: GateLimits, *, reason: str, actor: str
) -> tuple[GateLimits, GateLimits]:
    """Set an account's limits while everything runs; the limits before and after.

    They hold for all processes from the next claim on, until the configuration itself changes. What
    was used of a quota stays used. Raises `InvalidInput` for limits that cannot be, `NotFound` for an
    account without a gate.
    """
    reason = check_reason(reason)
    check_limits(limits)
    before = store.write(lambda tx: _change_limits(tx, account, limits, reason, actor)).result()
    tell(
        telemetry.LIMITS_CHANGED,
        account=account,
        limits=str(limits),
        lanes=limits.lanes,
        source=actor,
    )
    return before, limits


def check_limits(limits: GateLimits) -> None:
    """Raise `InvalidInput` for limits that no provider has."""
    if not limits.limits:
        raise InvalidInput(
            "an account needs at least one limit: write what the provider allows, such as 14/s",
            field="limits",
        )
    for limit in limits.limits:
        if limit.count < 1 or limit.interval_us < 1_000:
            raise InvalidInput(
                f"{limit.count} in {limit.interval_us} us is no limit: at least 1, in at least a millisecond",
                field="limits",
            )
    if not 1 <= limits.lanes <= LANES_MAX:
        raise InvalidInput(f"{limits.lanes} lanes: use 1 to {LANES_MAX} open calls", field="lanes")
    if not 0.0 <= limits.headroom < 1.0:
        raise InvalidInput(
            f"headroom {limits.headroom} must be at least 0 and below 1: 0.2 leaves a fifth to others",
            field="headroom",
        )
    if not pacing.fits_ever(limits, 1):
        raise InvalidInput(
            f"a quota leaves nothing beside headroom {limits.headroom:g}: lower the headroom",
            field="headroom",
        )


def _checked(target: Target, policy: Policy, *, known: bool = True) -> Target:
    """The target, spelled as it is stored. `known` False: a name that the configuration lost will do."""
    match target.scope:
        case Scope.SCHEDULER:
            return Target(Scope.SCHEDULER)
        case Scope.CHANNEL:
            return Target(Scope.CHANNEL, parse_channel(target.name).value)
        case Scope.GROUP:
            if not target.name.strip():
                raise InvalidInput("the group has no name: give one", field="group")
            return replace(target, name=check_id(target.name, "group"))
        case Scope.ACCOUNT:
            if known and target.name not in policy.accounts:
                names = ", ".join(sorted(policy.accounts))
                raise InvalidInput(f"account {target.name!r:.80} is unknown: use {names}", field="account")
            return Target(Scope.ACCOUNT, target.name)


def _pause(tx: Tx, target: Target, reason: str, actor: str, until: int | None) -> Paused:
    if until is not None and until <= tx.now:
        ago = say_duration((tx.now - until) / SECOND)
        raise InvalidInput(f"the end of the pause is {ago} ago: give a later one, or none", field="until")
    if target.scope is Scope.ACCOUNT:
        gate = _gate(tx, target.name)
        ends = FOREVER if until is None else tx.steady + (until - tx.now)
        tx.gates.save(replace(gate, paused_until=ends))
    # For an account the gate decides; this row remembers who paused it, and why.
    ends = FOREVER if until is None else until
    tx.runs.pause(Pause(target.scope.value, target.stored_name, ends, reason, actor, tx.now))
    tx.runs.audit(actor, "pause", str(target), reason, {"until": until})
    return Paused(target, until, _held(tx, target))


def _resume(
    tx: Tx, target: Target, policy: Policy, reason: str, actor: str, reopen: bool, over_us: int
) -> Resumed:
    if over_us and tx.held:
        raise Refused(f"the store is held: {RELEASE_FIRST}, then spread what waits", code="held")
    opened = ""
    if target.scope is Scope.ACCOUNT:
        gate = _gate(tx, target.name)
        was_paused = gate.paused_until > tx.steady
        after = _opened(gate, tx.steady, reopen=reopen)
        if gate.closed_until > tx.steady and not after.closed_until:
            opened = gate.closed_why
        tx.gates.save(after)
        tx.announce(news.gate(target.name))
    else:
        standing = {(p.scope, p.name): p for p in tx.runs.pauses()}
        found = standing.get((target.scope.value, target.stored_name))
        was_paused = found is not None and found.until > tx.now
    tx.runs.resume(target.scope.value, target.stored_name)
    if target.scope is Scope.SCHEDULER:
        tx.announce(news.DUE)
    spread = _spread(tx, target, policy, over_us) if over_us else 0
    if was_paused or opened or spread:
        body: dict[str, Value] = {"opened": opened, "over_s": over_us // SECOND, "spread": spread}
        tx.runs.audit(actor, "resume", str(target), reason, body)
    return Resumed(target, was_paused, spread=spread, opened=opened)


def _check_over(target: Target, over_s: float) -> None:
    if not over_s:
        return
    if target.scope is Scope.ACCOUNT:
        raise InvalidInput(
            "an account has no span to catch up over, its limits pace what waits: change them with "
            "`sendonce accounts limits`, or pause and resume its channel",
            field="over",
        )
    if not OVER_MIN_S <= over_s <= OVER_MAX_S:
        raise InvalidInput(
            f"catching up over {say_duration(over_s)}: use 1 s to {say_duration(OVER_MAX_S)}", field="over"
        )


def _spread(tx: Tx, target: Target, policy: Policy, over_us: int) -> int:
    """Set the turns for what waits: by channel, since each has a line of its own. How many wait."""
    rows = tx.rows(
        "view_held",
        scope=target.scope.value,
        name=target.stored_name,
        reason=f"paused:{target.scope}",
        now=tx.now,
        until=_held_until(tx),
    )
    held = Counter[str]()
    for row in rows:
        held[str(row["channel"])] += int(row["count"])
    turns = CatchUp(tx, policy)
    for channel, count in held.items():
        turns.spread(Channel(channel), count, over_us)
    turns.save()
    return held.total()


def _give_turns(target: Target, policy: Policy, actor: str, tx: Tx) -> int:
    """One unit: a turn for each of the next queued rows that the pause put off. How many; 0: no more, since
    who has a turn is no longer put off by the pause."""
    chosen = {
        "scope": target.scope.value,
        "name": target.stored_name,
        "reason": f"paused:{target.scope}",
        "now": tx.now,
        "until": _held_until(tx),
    }
    rows = tx.deliveries.matching("held_queued", chosen, TURNS_MAX, after=0)
    turns = CatchUp(tx, policy)
    # A key that is dying does not wait.
    moves = [
        _later(tx, row, policy, actor, tx.now if row.standing.maybe else turns.next(row)) for row in rows
    ]
    turns.save()
    moved = tx.deliveries.move(moves)
    assert all(moved), "rows locked in this unit cannot have moved"
    return len(rows)


def _later(tx: Tx, row: Delivery, policy: Policy, actor: str, at: int) -> Move:
    course = replace(row.course, next_at=at, reason=catch_up.REASON)
    details: dict[str, Value] = {"reason": catch_up.REASON, "until": at}
    move = move_on(row, Event.DEFERRED, policy, tx, actor=actor, course=course, details=details)
    assert isinstance(move, Move), f"the table puts off whatever is queued: {move}"
    return move


def _opened(gate: Gate, steady: int, *, reopen: bool) -> Gate:
    """Open by hand: all of it, or all but what the provider asked for."""
    asked_for = gate.closed_until > steady and gate.closed_why in ("throttled", "quota")
    if asked_for and not reopen:
        return replace(gate, paused_until=0)
    return pacing.resumed(gate)


def _wake(tx: Tx, target: Target) -> int:
    accounts = [gate.account for gate in tx.gates.all()]
    until = _held_until(tx)
    woken = tx.deliveries.unpause(target.scope.value, target.stored_name, accounts, until, WAKE_MAX)
    if woken:
        for topic in (news.DUE, *map(news.queued, accounts)):
            tx.announce(topic)
    return woken


def _held_until(tx: Tx) -> int:
    """What a pause put off has come to be looked at by then."""
    return tx.now + PAUSE_LOOK_US + SECOND


def _held(tx: Tx, target: Target) -> int | None:
    if target.scope is not Scope.GROUP:
        return None
    rows = tx.rows("view_group_open", tenant=target.tenant, group=target.name, limit=OPEN_COUNT_MAX)
    return int(rows[0]["count"])


def _change_limits(tx: Tx, account: str, limits: GateLimits, reason: str, actor: str) -> GateLimits:
    gate = _gate(tx, account)
    tx.gates.save(replace(gate, limits=limits, usage=_usage_for(gate, limits)))
    tx.announce(news.gate(account))
    body: dict[str, Value] = {"before": str(gate.limits), "after": str(limits)}
    tx.runs.audit(actor, "limits", account, reason, body)
    return gate.limits


def _usage_for(gate: Gate, limits: GateLimits) -> tuple[tuple[tuple[int, int], ...], ...]:
    """What was used of each quota, carried over to the quota with the same interval and unit."""
    used: Mapping[tuple[int, bool], tuple[tuple[int, int], ...]] = {
        (quota.interval_us, quota.parts): spent
        for quota, spent in zip(_quotas(gate.limits), gate.usage, strict=False)
    }
    return tuple(used.get((quota.interval_us, quota.parts), ()) for quota in _quotas(limits))


def _quotas(limits: GateLimits) -> list[Limit]:
    return [limit for limit in limits.limits if limit.is_quota]


def _gate(tx: Tx, account: str) -> Gate:
    gate = tx.gates.lock(account)
    if gate is None:
        names = ", ".join(gate.account for gate in tx.gates.all()) or "none"
        raise NotFound(f"account {account!r:.80} has no gate; there are: {names}")
    return gate
