"""Settle: write down what calls returned, in groups, before anything is acknowledged.

Each outcome is applied under the epoch of its claim. Where the delivery has moved on meanwhile (the
lease ended, another worker has it), *state is fenced, evidence is not*: an acceptance proves that it
was sent and settles whatever stands there; a failure of an old epoch is recorded and moves nothing.
So it is for all calls of before, where the store may have lost what was written last (`sendonce.held`).

The gate hears about it in the same unit: a 429 closes it for everybody, a failing provider trips the
breaker, an account error holds the account, and the first success after any of these opens it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard, assert_never

from sendonce import telemetry
from sendonce.core import pacing
from sendonce.core.consent import ANY_CATEGORY, Kind
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import SAYS_NOT_SENT, Event, NotMoved, State
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    NotStarted,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.policy import AccountPolicy, Policy
from sendonce.core.retry import WAIT_MAX_S, wait_s
from sendonce.core.value import value
from sendonce.moves import move_on, note
from sendonce.pipeline.attempt import Attempted, Claim, Settled
from sendonce.ports.store import Course, Delivery, Move, Tx
from sendonce.telemetry import tell
from sendonce.withdrawal import lock_open, withdraw_refused


def settle(
    tx: Tx, attempts: Sequence[Attempted], policy: Policy, *, process: str, chance: Callable[[], float]
) -> list[Settled]:
    """Settle a group, in one unit; what each brought, by delivery ids, but for those of a store epoch before,
    which come last, and without those whose delivery is not there.

    `chance` draws from [0, 1) for backoff.
    """
    # Locks in one order: gates, preferences, deliveries by id.
    _tell_gates(tx, attempts, chance)
    _remember_refusals(tx, attempts)
    refused = {_address_of(attempt.claim) for attempt in attempts if _suppresses(attempt.outcome)}
    lock_open(tx, refused, [attempt.claim.delivery_id for attempt in attempts])
    attempts, of_before = _by_epoch(tx, attempts)
    settled: list[Settled] = []
    for group in _side_by_side(sorted(attempts, key=lambda attempt: attempt.claim.delivery_id)):
        # Most rows still stand as their claims left them, and are not read again.
        untouched = [(attempt, attempt.claim.row) for attempt in group]
        states = _settle_current(tx, untouched, policy, process, chance)
        left = [attempt for attempt, state in zip(group, states, strict=True) if state is None]
        late = iter(_settle_moved(tx, left, policy, process, chance) if left else ())
        for attempt, state in zip(group, states, strict=True):
            done = next(late) if state is None else Settled(attempt, state, True)
            settled += [] if done is None else [done]
        for attempt in group:
            if _suppresses(attempt.outcome):
                _take_back(tx, attempt.claim, policy)
    tx.calls.close(
        [(a.claim.account, a.claim.claimed_at, a.claim.delivery_id, a.claim.epoch) for a in attempts]
    )
    return settled + _settle_of_before(tx, of_before, policy, process)


def _by_epoch(tx: Tx, attempts: Sequence[Attempted]) -> tuple[list[Attempted], list[Attempted]]:
    """Those whose claims this store knows, and those of before: of another store epoch, or while it is held,
    since then the claim may be lost, or another claim that came after it."""
    known: list[Attempted] = []
    of_before: list[Attempted] = []
    for attempt in attempts:
        (of_before if tx.held or attempt.claim.store_epoch != tx.epoch else known).append(attempt)
    return known, of_before


def _settle_of_before(tx: Tx, attempts: Sequence[Attempted], policy: Policy, process: str) -> list[Settled]:
    """What a call of before returns is evidence only. Its lane, if it is still known, is freed by the reaper.

    The id of a delivery that was lost may be another's by now, so the key decides whose outcome it is.
    """
    settled: list[Settled] = []
    for attempt in sorted(attempts, key=lambda attempt: attempt.claim.delivery_id):
        claim = attempt.claim
        found = tx.deliveries.by_keys([(claim.tenant, claim.key)])
        if found:
            settled.append(_settle_late(tx, found[0], attempt, policy, process))
        else:
            _tell_stray(attempt)
        if _suppresses(attempt.outcome):
            _take_back(tx, claim, policy)
    return settled


def _tell_stray(attempt: Attempted) -> None:
    claim, outcome = attempt.claim, type(attempt.outcome).__name__.lower()
    tell(telemetry.OUTCOME_STRAY, delivery=claim.key, account=claim.account, outcome=outcome)


def _side_by_side(attempts: Sequence[Attempted]) -> Iterator[list[Attempted]]:
    """Cut where one outcome must see what those before it have written: the second of one delivery (an
    old epoch's and the new one's), and whatever comes after an address was given up."""
    group: list[Attempted] = []
    for attempt in attempts:
        if group and group[-1].claim.delivery_id == attempt.claim.delivery_id:
            yield group
            group = []
        group.append(attempt)
        if _suppresses(attempt.outcome):
            yield group
            group = []
    if group:
        yield group


def _suppresses(outcome: Outcome) -> TypeGuard[Rejected]:
    return isinstance(outcome, Rejected) and outcome.suppress


def _tell_gates(tx: Tx, attempts: Sequence[Attempted], chance: Callable[[], float]) -> None:
    """What the outcomes say about their accounts. Gates are locked first, in order of name.

    A gate that hears of a failure hears of the successes beside it too, else half of them failing would
    look like a row of failures.
    """
    telling = {a.claim.account for a in attempts if a.claim.watched or _says_something(a.outcome)}
    for account in sorted(telling):
        before = gate = tx.gates.lock(account)
        if gate is None or before is None:
            continue
        for attempt in attempts:
            if attempt.claim.account == account:
                gate = _gate_after(gate, attempt.outcome, tx.steady, chance())
        if gate != before:
            tx.gates.save(gate)
            if gate.closed_until > before.closed_until:
                _tell_closed(gate, (gate.closed_until - tx.steady) / pacing.SECOND)


def _tell_closed(gate: pacing.Gate, wait_s: float) -> None:
    why = gate.closed_why
    if why.startswith("account:"):
        tell(telemetry.ACCOUNT_HELD, account=gate.account, code=why.partition(":")[2], wait_s=wait_s)
    elif why == "breaker":
        tell(telemetry.BREAKER_OPENED, account=gate.account, streak=gate.streak, wait_s=wait_s)
    else:
        tell(telemetry.GATE_CLOSED, account=gate.account, why=why, wait_s=wait_s)


def _says_something(outcome: Outcome) -> bool:
    match outcome:
        case Throttled() | AccountError() | Unknown():
            return True
        case Failed():
            return True
        case Accepted() | Rejected() | NotStarted():
            return False
        case _:
            assert_never(outcome)


def _gate_after(gate: pacing.Gate, outcome: Outcome, now: int, chance: float) -> pacing.Gate:
    match outcome:
        case Accepted() | Rejected():
            # A rejection is about the recipient: the provider itself answered, so it is well.
            return pacing.call_succeeded(gate)
        case Throttled(scope, _, asked):
            capped = None if asked is None else min(asked, WAIT_MAX_S)
            return pacing.throttled(gate, scope, capped, chance=chance, now=now)
        case AccountError(_, code):
            return pacing.account_failed(gate, code, now=now)
        case Failed() | Unknown():
            return pacing.call_failed(gate, now=now)
        case NotStarted():
            return gate
        case _:
            assert_never(outcome)


@value
class _Applied:
    """An outcome as an event of the life cycle, with the course after it."""

    event: Event
    course: Course
    details: Mapping[str, Value]
    budget: bool = True


def _settle_current(
    tx: Tx,
    attempts: Sequence[tuple[Attempted, Delivery]],
    policy: Policy,
    process: str,
    chance: Callable[[], float],
) -> list[State | None]:
    """Settle outcomes whose claims stand, on rows in order of id; None where a row has moved meanwhile."""
    made = [_outcome_move(tx, row, attempt, policy, process, chance()) for attempt, row in attempts]
    done = tx.deliveries.move([move for move, _ in made])
    states: list[State | None] = []
    for (attempt, row), (move, applied), yes in zip(attempts, made, done, strict=True):
        states.append(move.standing.state if yes else None)
        if yes:
            _tell_outcome(row, attempt, move, applied)
    return states


def _settle_moved(
    tx: Tx, attempts: Sequence[Attempted], policy: Policy, process: str, chance: Callable[[], float]
) -> list[Settled | None]:
    """Settle outcomes of rows that somebody else has changed since the claim: noted a cancel, reaped,
    claimed again. None where retention has removed it meanwhile: a process may sleep for longer than ended
    deliveries are kept."""
    rows = {row.id: row for row in tx.deliveries.by_ids([a.claim.delivery_id for a in attempts])}
    current = [
        (a, rows[a.claim.delivery_id])
        for a in attempts
        if a.claim.delivery_id in rows and _is_current(rows[a.claim.delivery_id], a)
    ]
    states = iter(_settle_current(tx, current, policy, process, chance))
    settled: list[Settled | None] = []
    for attempt in attempts:
        row = rows.get(attempt.claim.delivery_id)
        if row is None:
            _tell_stray(attempt)
            settled.append(None)
        elif _is_current(row, attempt):
            state = next(states)
            assert state is not None, "rows locked in this unit cannot have moved"
            settled.append(Settled(attempt, state, True))
        else:
            settled.append(_settle_late(tx, row, attempt, policy, process))
    return settled


def _is_current(row: Delivery, attempt: Attempted) -> bool:
    return row.standing.state is State.SENDING and row.standing.epoch == attempt.claim.epoch


def _outcome_move(
    tx: Tx, row: Delivery, attempt: Attempted, policy: Policy, process: str, chance: float
) -> tuple[Move, _Applied]:
    applied = _apply(tx, row, attempt.outcome, policy.accounts[attempt.claim.account], chance)
    move = move_on(
        row,
        applied.event,
        policy,
        tx,
        actor=f"worker:{process}",
        course=applied.course,
        budget=applied.budget,
        details={**applied.details, **_timing(attempt)},
    )
    assert not isinstance(move, NotMoved), f"every outcome has its move from SENDING: {move}"
    return move, applied


def _tell_outcome(row: Delivery, attempt: Attempted, move: Move, applied: _Applied) -> None:
    account = attempt.claim.account
    if move.standing.state is State.UNCERTAIN:
        tell(telemetry.UNCERTAIN, delivery=row.key, account=account, why=move.course.reason)
    tell(
        telemetry.OUTCOME,
        delivery=row.key,
        account=account,
        outcome=applied.event.value,
        attempt=row.course.attempts,
        epoch=attempt.claim.epoch,
        reason=move.course.reason,
        code=str(applied.details.get("code", "")),
    )


def _apply(tx: Tx, row: Delivery, outcome: Outcome, account: AccountPolicy, chance: float) -> _Applied:
    course, retry = row.course, account.retry
    match outcome:
        case Accepted(receipt, code, duplicate):
            after = replace(course, receipt=receipt, reason="")
            known = {"decision": "provider_knew_key"} if duplicate else {}
            return _Applied(Event.ACCEPTED, after, {"receipt": receipt, "code": code, **known})
        case Rejected(reason, code):
            after = replace(course, reason=reason.value)
            return _Applied(Event.REJECTED, after, {"reason": reason.value, "code": code})
        case Throttled(scope, code, asked):
            throttles = course.throttles + 1
            # The gate waits for the account; the delivery itself waits where the gate may stay open.
            stays_open = scope in (ThrottleScope.RECIPIENT, ThrottleScope.CONCURRENCY)
            own = wait_s(retry, throttles, asked, chance) if stays_open else 0.0
            after = replace(
                course,
                throttles=throttles,
                next_at=tx.now + _us(own),
                reason=f"throttled:{scope.value}",
            )
            details: dict[str, Value] = {
                "reason": f"throttled:{scope.value}",
                "code": code,
                "retry_after_s": None if asked is None else int(min(asked, WAIT_MAX_S)),
            }
            return _Applied(Event.THROTTLED, after, details, budget=throttles < retry.throttles_max)
        case AccountError(reason, code):
            why = f"account:{reason.value}"
            after = replace(course, next_at=tx.now, reason=why)
            return _Applied(Event.HELD, after, {"reason": f"account:{reason.value}", "code": code})
        case Failed(reason, code, asked):
            failures = course.failures + 1
            wait = wait_s(retry, failures, asked, chance)
            after = replace(
                course,
                failures=failures,
                next_at=tx.now + _us(wait),
                reason=f"failed:{reason.value}",
            )
            left = failures < retry.attempts_max
            return _Applied(Event.FAILED, after, {"reason": reason.value, "code": code}, budget=left)
        case Unknown(evidence, code):
            return unknown(tx, row, account, evidence, code, chance)
        case NotStarted(why):
            # Nothing happened: not even an attempt is counted, and the first try is still to come.
            first = 0 if course.attempts == 1 else course.first_try
            after = replace(course, attempts=course.attempts - 1, first_try=first, next_at=tx.now, reason="")
            return _Applied(Event.RELEASED, after, {"reason": why})
        case _:
            assert_never(outcome)


def unknown(
    tx: Tx, row: Delivery, account: AccountPolicy, evidence: str, code: str, chance: float
) -> _Applied:
    """An outcome nobody knows spends the retry budget: a key does not make a broken provider well."""
    failures = row.course.failures + 1
    wait = wait_s(account.retry, failures, None, chance)
    after = replace(row.course, failures=failures, next_at=tx.now + _us(wait), reason=f"unknown:{evidence}")
    details = {"evidence": evidence, "code": code}
    return _Applied(Event.UNKNOWN, after, details, budget=failures < account.retry.attempts_max)


def _settle_late(tx: Tx, row: Delivery, attempt: Attempted, policy: Policy, process: str) -> Settled:
    """An outcome whose claim is no longer the current one."""
    details: dict[str, Value] = {
        "attempt_epoch": attempt.claim.epoch,
        "outcome": type(attempt.outcome).__name__.lower(),
        **_timing(attempt),
    }
    actor = f"worker:{process}"
    if isinstance(attempt.outcome, Accepted):
        details["receipt"] = attempt.outcome.receipt
        course = replace(row.course, receipt=attempt.outcome.receipt, reason="")
        move = move_on(row, Event.PROVEN, policy, tx, actor=actor, course=course, details=details)
        if not isinstance(move, NotMoved):
            tx.deliveries.move([move])
            if row.standing.state in SAYS_NOT_SENT:
                tell(
                    telemetry.PROVEN_ALARM,
                    delivery=row.key,
                    state=row.standing.state.value,
                    account=attempt.claim.account,
                    source="late_outcome",
                )
            return Settled(attempt, move.standing.state, True)
    tx.deliveries.note([note(row, Event.LATE_OUTCOME, actor, details)])
    return Settled(attempt, row.standing.state, False)


def _remember_refusals(tx: Tx, attempts: Sequence[Attempted]) -> None:
    """The provider said of these addresses that they must not be tried again.

    Who replied STOP may come back by an explicit opt-in; an address that does not exist cannot.
    """
    records = [
        _record(attempt.claim, attempt.outcome, tx.now)
        for attempt in attempts
        if _suppresses(attempt.outcome)
    ]
    if records:
        tx.preferences.put(records)


def _record(claim: Claim, outcome: Rejected, now: int) -> dict[str, int | str]:
    kind = Kind.OPT_OUT if outcome.reason is Reason.OPTED_OUT else Kind.SUPPRESSED
    return {
        "tenant": claim.tenant,
        "channel": claim.channel.value,
        "address_tag": claim.address_tag,
        "category": ANY_CATEGORY,
        "kind": kind.value,
        "at": now,
        "source": "provider",
        "evidence": f"{claim.account}: {outcome.code}",
        "masked": "",
        "actor": _provider(claim),
    }


def _take_back(tx: Tx, claim: Claim, policy: Policy) -> None:
    """What else was planned for an address that was refused, in the same unit."""
    withdraw_refused(tx, [_address_of(claim)], policy=policy, actor=_provider(claim))


def _address_of(claim: Claim) -> tuple[str, str, str]:
    return claim.tenant, claim.channel.value, claim.address_tag


def _provider(claim: Claim) -> str:
    return f"provider:{claim.account}"


def _timing(attempt: Attempted) -> dict[str, Value]:
    if not attempt.started_at:
        return {}
    return {
        "late_us": attempt.started_at - attempt.claim.slot_at,
        "took_us": attempt.ended_at - attempt.started_at,
    }


def _us(seconds: float) -> int:
    return int(seconds * pacing.SECOND)
