"""The claim: the right to send, and the durable intent to do so, in one short transaction.

Under the lock of the account's gate: look how many calls may start, read that many rows in fair
order, ask the world once more (expired, cancelled, opted out, paused, night), spend slots, and move
each row to SENDING with a lane, a deadline and a ledger entry. When this has committed, the intent is
durable: from here on a crash can never be mistaken for "never tried".

Only what has a free lane and a slot within about 50 ms is taken, so that little is in doubt when a
process dies, and nothing waits in a worker while another one is idle. Without a gate, nothing is sent, and
neither while the store is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sendonce import telemetry
from sendonce.core import pacing
from sendonce.core.consent import refusal
from sendonce.core.due import Defer, Expire, Publish, decide_time, known_zone
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import ENDED, Event, NotMoved, State
from sendonce.core.policy import AccountPolicy, Policy
from sendonce.core.promise import ProviderClass, key_dies_at
from sendonce.moves import facts_of, move_on, note
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.message import message_of
from sendonce.pipeline.reach import PAUSE_LOOK_US, active_pauses, may_reach, pause_of
from sendonce.ports.provider import Message
from sendonce.ports.queue import Hint
from sendonce.ports.store import Course, Delivery, Move, OpenCall, Tx
from sendonce.telemetry import tell

CLAIM_MAX: Final = 64
"""Rows in one claim. What its commit takes, all of its slots wait for and other processes too: a worker
at full load had leads of 85 ms with 256, of 50 ms with 64, and sent a fifth more a second."""
DEADLINE_SLACK_S: Final = 5.0
"""What a send may take beyond the adapter's own time-out before it counts as lost."""
GAP_LOOK_US: Final = 60 * pacing.SECOND
LINE_LOOK_US: Final = pacing.SECOND
"""How often the line of fresh deliveries is looked at from its very beginning."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one claim brought. Where `claims` is empty, `why` says what held it and `again_at`
    (steady; 0: at the next look) when another try may bring something.

    `done` are hints that need no more attention: finished, taken or not yet due deliveries. What is neither
    in it nor claimed may be claimed later.
    """

    claims: tuple[Claim, ...]
    why: str = ""
    again_at: int = 0
    ended: int = 0
    done: tuple[Hint, ...] = ()


def claim(
    tx: Tx,
    account: AccountPolicy,
    policy: Policy,
    *,
    process: str,
    secret: bytes,
    lead_us: int,
    most: int = CLAIM_MAX,
    hints: Sequence[Hint] | None = None,
    lease_until: int = pacing.FOREVER,
) -> Claimed:
    """Claim for one account. `hints` None: from the store's own queue; else only what they name.

    One unit: the gate, the lanes, the rows, their entries and the slots move together or not at all.
    Past `lease_until`, the end of the process's own lease, nothing is claimed: it would be taken for
    lost, and its lane given away, while it is being sent.
    """
    if tx.steady >= lease_until:
        return Claimed((), "lease_lost")
    if tx.held:
        return Claimed((), "held")
    gate = tx.gates.lock(account.name)
    if gate is None:
        return Claimed((), "no gate")
    # A unit may begin before another one's and have the gate after it: then its own claims may be the first.
    calls_from = gate.calls_from if gate.calls_from <= tx.steady else 0
    open_calls, first_call = tx.calls.since(account.name, calls_from)
    room = pacing.room(gate, now=tx.steady, open_calls=open_calls)
    if room.lanes == 0:
        return Claimed((), room.why, room.again_at)
    ahead = pacing.slots_ahead(gate, min(room.lanes, most), now=tx.steady, lead_us=lead_us)
    if not ahead.slots:
        return Claimed((), ahead.why, ahead.again_at)
    retries = pacing.retries_allowed(gate, tx.steady)
    known: dict[int, Hint] = {}
    done: tuple[Hint, ...] = ()
    if hints is None:
        rows, line_from, looked_at = _line(tx, gate, len(ahead.slots), retries)
    else:
        line_from, looked_at = gate.line_from, gate.looked_at
        rows, known, done = _hinted(tx, account, hints, process)
        rows = _shared(
            [row for row in rows if _is_retry(row)][:retries],
            [row for row in rows if not _is_retry(row)],
            len(ahead.slots),
        )
    allowed, ended = _still_allowed(tx, rows, policy, process)
    sendable, spoiled = _sendable(tx, allowed, gate.limits, policy, process, secret)
    ended += spoiled
    # Hints name as many rows as they like; what has no lane and no slot now is left to the queue.
    sendable = sendable[: len(ahead.slots)]
    granted = pacing.grant(gate, [row.course.cost for row, _, _ in sendable], now=tx.steady, lead_us=lead_us)
    if not granted.slots:
        return Claimed((), granted.why or "empty", granted.again_at, ended, done)
    sendable = sendable[: len(granted.slots)]
    taken = [row for row, _, _ in sendable]
    moves = [
        _intent(tx, row, message, digest, slot, account, policy, process, known.get(row.id))
        for (row, message, digest), slot in zip(sendable, granted.slots, strict=True)
    ]
    watched = pacing.is_watched(gate)
    claims, calls = [], []
    for (before, message, _), slot, row in zip(
        sendable, granted.slots, tx.deliveries.advance(moves), strict=True
    ):
        assert row is not None, "rows locked in this unit cannot have moved"
        made = _claim_of(
            tx,
            before,
            row,
            message,
            slot,
            account,
            known.get(row.id),
            late_us=gate.limits.late_us,
            watched=watched,
        )
        claims.append(made)
        calls.append(OpenCall(row.id, made.epoch, account.name, process, tx.steady, slot, made.send_deadline))
    tx.calls.open(calls)
    fresh = sum(not _is_retry(row) for row in taken)
    after = pacing.claimed(
        granted.gate,
        fresh=fresh,
        retries=len(taken) - fresh,
        tag=max((row.course.tag for row in taken), default=0),
        now=tx.steady,
    )
    calls_from = tx.steady if first_call is None else min(first_call, tx.steady)
    tx.gates.save(replace(after, calls_from=calls_from, line_from=line_from, looked_at=looked_at))
    return Claimed(tuple(claims), granted.why, granted.again_at, ended, done)


def _line(tx: Tx, gate: pacing.Gate, most: int, retries: int) -> tuple[list[Delivery], int, int]:
    """The head of the line: retries first, dying keys before all, but fresh ones keep their share. And from
    which place on the fresh ones were looked at, and when all of them were.

    What was taken leaves an index entry behind until the server has tidied up, which an old reader forbids.
    So all of them are looked at once in `LINE_LOOK_US`, and in between those from the head on. Who comes in
    below it (late, given back, redriven) waits for the next look.
    """
    name, now = gate.account, tx.steady
    tx.deliveries.wake(name, tx.now)
    again = tx.deliveries.ready(name, retries=True, limit=min(most, retries)) if retries else []
    if 0 <= now - gate.looked_at < LINE_LOOK_US:
        fresh = tx.deliveries.ready(name, retries=False, limit=most, since=gate.line_from)
        return _shared(again, fresh, most), gate.line_from, gate.looked_at
    fresh = tx.deliveries.ready(name, retries=False, limit=most)
    head = min([gate.vtime, *(row.course.tag for row in fresh[:1])])
    return _shared(again, fresh, most), head, now


def _shared(again: Sequence[Delivery], fresh: Sequence[Delivery], most: int) -> list[Delivery]:
    share = max(1, most // 4) if fresh else most
    first = again[: max(share, most - len(fresh))]
    return [*first, *fresh[: most - len(first)]]


def _hinted(
    tx: Tx, account: AccountPolicy, hints: Sequence[Hint], process: str
) -> tuple[list[Delivery], dict[int, Hint], tuple[Hint, ...]]:
    """The rows that hints name and that may be claimed now, in fair order; and the hints that are settled by
    a look."""
    by_id = {hint.delivery_id: hint for hint in hints}
    found = {row.id: row for row in tx.deliveries.by_ids(list(by_id))}
    rows: list[Delivery] = []
    done: list[Hint] = []
    notes: list[Move] = []
    for hint in hints:
        row = found.get(hint.delivery_id)
        if row is None:
            done.append(hint)  # a hint of another store, or from before a restore: the row is the truth
        elif row.standing.state is State.QUEUED:
            if row.course.next_at > tx.now:
                done.append(hint)  # waiting for its retry: the sweeper hints it again when it is ready
            elif row.course.account != account.name or by_id[row.id] is not hint:
                done.append(hint)  # goes through another account now, whose own queue has it; or named twice
            else:
                rows.append(row)
        else:
            done.append(hint)
            if row.standing.state in ENDED:
                details = {"decision": "duplicate_observed", "hint": hint.message_id}
                notes.append(note(row, Event.DUPLICATE_OBSERVED, f"worker:{process}", details))
                tell(
                    telemetry.DUPLICATE_OBSERVED,
                    delivery=row.key,
                    state=row.standing.state.value,
                    source="hint",
                )
    _note_each(tx, notes)
    rows.sort(key=lambda row: (row.course.tag, row.id))
    return rows, by_id, tuple(done)


def _note_each(tx: Tx, notes: Sequence[Move]) -> None:
    """Two hints of one delivery in one pull are two entries, one after the other."""
    for entry in notes:
        row = tx.deliveries.by_ids([entry.before.id])[0]
        tx.deliveries.note([replace(entry, before=row)])


def _still_allowed(
    tx: Tx, rows: Sequence[Delivery], policy: Policy, process: str
) -> tuple[list[Delivery], int]:
    """Ask the world again, now that the rows are locked; what may not go is moved where it belongs."""
    if not rows:
        return [], 0
    actor = f"worker:{process}"
    preferences = tx.preferences.of([(row.tenant, row.channel.value, row.address_tag) for row in rows])
    pauses = active_pauses(tx)
    reminders = tx.reminders.by_ids([row.reminder_id for row in rows]) if _needs_zone(rows, policy) else {}
    allowed: list[Delivery] = []
    moves: list[Move] = []
    for row in rows:
        category = policy.categories.get(row.category)
        if category is None:
            course = replace(row.course, next_at=tx.now + GAP_LOOK_US, reason="configuration")
            moves.append(_must(move_on(row, Event.DEFERRED, policy, tx, actor=actor, course=course)))
            continue
        reminder = reminders.get(row.reminder_id)
        verdict = decide_time(
            now=tx.now,
            next_at=min(row.course.next_at, tx.now),
            expires_at=row.course.expires_at,
            quiet=category.quiet,
            zone=known_zone(reminder.zone if reminder else "", policy.zone(row.tenant)),
            on_quiet=category.on_quiet.value,
        )
        refused = refusal(
            preferences.get((row.tenant, row.channel.value, row.address_tag), ()),
            row.category,
            category.no_record,
        )
        pause = pause_of(row, pauses)
        if isinstance(verdict, Expire):
            moves.append(_end(tx, row, Event.EXPIRED, verdict.reason.value, policy, actor))
        elif refused is not None:
            moves.append(_end(tx, row, Event.SUPPRESSED, refused, policy, actor))
        elif _key_died(tx, row, policy):
            moves.append(_end(tx, row, Event.KEY_DIED, "key_died", policy, actor))
        elif pause is not None or isinstance(verdict, Defer):
            until = pause.until if pause is not None else verdict.until if isinstance(verdict, Defer) else 0
            until = min(until, tx.now + PAUSE_LOOK_US, row.course.expires_at)
            reason = f"paused:{pause.scope}" if pause is not None else "quiet_hours"
            course = replace(row.course, next_at=until, reason=reason)
            details: dict[str, Value] = {"reason": reason, "until": until}
            moves.append(
                _must(move_on(row, Event.DEFERRED, policy, tx, actor=actor, course=course, details=details))
            )
        else:
            assert isinstance(verdict, Publish)
            allowed.append(row)
    contents = (
        tx.contents.get([(row.id, row.standing.version) for row in allowed]) if _guarded(policy) else {}
    )
    reachable: list[Delivery] = []
    for row in allowed:
        content = contents.get(row.id)
        if content is not None and not may_reach(policy, row.channel, content.address):
            moves.append(_end(tx, row, Event.SUPPRESSED, "recipient_not_allowed", policy, actor))
        else:
            reachable.append(row)
    moved = tx.deliveries.move(moves)
    assert all(moved), "rows locked in this unit cannot have moved"
    return reachable, len(moves)


def _key_died(tx: Tx, row: Delivery, policy: Policy) -> bool:
    """Whether only a key made it safe to try again, and the provider may have forgotten it."""
    if not row.standing.maybe or row.standing.permit:
        return False
    return not facts_of(row, policy, now=tx.now, steady=tx.steady).key_alive


def _sendable(
    tx: Tx, rows: Sequence[Delivery], limits: pacing.GateLimits, policy: Policy, process: str, secret: bytes
) -> tuple[list[tuple[Delivery, Message, str]], int]:
    """The messages of the rows, each with its content's hash. A row whose content was damaged, or that is
    larger than a quota lowered since, can never go: it ends with a reason, and hides nobody behind it."""
    contents = tx.contents.get([(row.id, row.standing.version) for row in rows])
    sendable: list[tuple[Delivery, Message, str]] = []
    moves: list[Move] = []
    for row in rows:
        code = "" if pacing.fits_ever(limits, row.course.cost) else "larger_than_quota"
        try:
            content = contents[row.id]
            message = message_of(row, content, policy, secret=secret, now=tx.now)
        except (LookupError, TypeError, ValueError):
            code = "unreadable"
        if code:
            tell(telemetry.BAD_CONTENT, delivery=row.key, code=code)
            reason, actor = f"bad_content:{code}", f"worker:{process}"
            moves.append(_end(tx, row, Event.UNRENDERABLE, reason, policy, actor))
        else:
            sendable.append((row, message, content.hash))
    moved = tx.deliveries.move(moves)
    assert all(moved), "rows locked in this unit cannot have moved"
    return sendable, len(moves)


def _intent(
    tx: Tx,
    row: Delivery,
    message: Message,
    digest: str,
    slot: int,
    account: AccountPolicy,
    policy: Policy,
    process: str,
    hint: Hint | None,
) -> Move:
    """The move to SENDING: once it has committed, a call may be made."""
    before = row.course
    course = Course(
        due_at=before.due_at,
        next_at=before.next_at,
        expires_at=before.expires_at,
        account=before.account,
        tag=before.tag,
        cost=before.cost,
        attempts=before.attempts + 1,
        failures=before.failures,
        throttles=before.throttles,
        first_try=before.first_try or tx.steady,
        last_try=tx.steady,
        receipt=before.receipt,
        reason="",
    )
    details: dict[str, Value] = {
        "account": account.name,
        "attempt": course.attempts,
        "send_key": message.send_key[:16],
        "decision": _decision(row),
        "payload": digest,
        "wait_us": slot - tx.steady,
        "queued_us": max(0, tx.now - before.next_at),
        "hint": hint.message_id if hint else "",
    }
    return _must(
        move_on(row, Event.CLAIMED, policy, tx, actor=f"worker:{process}", course=course, details=details)
    )


def _claim_of(
    tx: Tx,
    before: Delivery,
    row: Delivery,
    message: Message,
    slot: int,
    account: AccountPolicy,
    hint: Hint | None,
    *,
    late_us: int,
    watched: bool,
) -> Claim:
    promise, was = account.promise, before.standing
    uses_key = promise.provider_class is ProviderClass.KEY and was.maybe and not was.permit
    return Claim(
        delivery_id=row.id,
        key=row.key,
        tenant=row.tenant,
        channel=row.channel,
        account=account.name,
        epoch=row.standing.epoch,
        address_tag=row.address_tag,
        message=message,
        claimed_at=tx.steady,
        slot_at=slot,
        starts_by=slot + late_us,
        send_deadline=slot + int((promise.timeout_s + DEADLINE_SLACK_S) * pacing.SECOND),
        key_dies_at=key_dies_at(promise, row.course.first_try) if uses_key else None,
        watched=watched,
        row=row,
        store_epoch=tx.epoch,
        hint=hint,
    )


def _decision(row: Delivery) -> str:
    """Why this attempt cannot make a second effect; for the ledger."""
    if row.standing.permit:
        return "permit"
    if row.standing.maybe:
        return "same_key"
    return "retry_after_failure" if row.course.failures else "first"


def _end(tx: Tx, row: Delivery, event: Event, reason: str, policy: Policy, actor: str) -> Move:
    course = replace(row.course, reason=reason)
    details = {"reason": reason}
    return _must(move_on(row, event, policy, tx, actor=actor, course=course, details=details))


def _must(move: Move | NotMoved) -> Move:
    assert isinstance(move, Move), f"the table must allow what a claim does: {move}"
    return move


def _is_retry(row: Delivery) -> bool:
    """Whether a provider was called for it before: what was only doubted waits for its first call."""
    return row.course.failures > 0 or (row.standing.maybe and row.course.attempts > 0)


def _needs_zone(rows: Sequence[Delivery], policy: Policy) -> bool:
    return any(row.category in policy.categories and policy.categories[row.category].quiet for row in rows)


def _guarded(policy: Policy) -> bool:
    return bool(policy.recipients.allow)
