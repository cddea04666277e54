"""Uncertain deliveries: nobody can tell by itself whether they were sent, so a person decides.

    sent      with the provider's receipt it is proven; without one it is an operator's word
    not_sent  an operator's word; it ends, unsent
    resend    one more attempt, which may arrive twice: `DUPLICATE_RISK` says so

Each decision stands in the ledger with the person and the reason. Late evidence still wins over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Final, assert_never

from sendonce import telemetry
from sendonce.core.consent import refusal
from sendonce.core.delivery import parse_key
from sendonce.core.errors import InvalidInput
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import SAYS_NOT_SENT, Event, NotMoved, State
from sendonce.core.policy import Policy, UncertainPolicy
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.held import RELEASE_FIRST
from sendonce.moves import move_on
from sendonce.pipeline.record import delivery_of, lines_of
from sendonce.pipeline.sentences import reason_words
from sendonce.ports.store import Course, Delivery, Store, Tx
from sendonce.telemetry import tell
from sendonce.withdrawal import check_reason

CHUNK: Final = 50
LIMIT_MAX: Final = 500
RECEIPT_LENGTH_MAX: Final = 200

DUPLICATE_RISK: Final = (
    "each of them may have been sent already: a resend can reach the customer twice. "
    "Resend only what you know, or have asked, not to have arrived."
)


class Word(StrEnum):
    """What a person decides."""

    SENT = "sent"
    NOT_SENT = "not_sent"
    RESEND = "resend"


@dataclass(frozen=True, slots=True)
class Uncertain:
    """One uncertain delivery. `since`: of the attempt that left it so; `evidence` in words.

    policy    what the configuration says of such deliveries
    resend    why it must not be sent again, "" where it may
    """

    delivery: Delivery
    since: int
    evidence: str
    policy: str
    resend: str


@dataclass(frozen=True, slots=True)
class UncertainPage:
    """A page. `after` asks for the next one; None: this is the last."""

    found: tuple[Uncertain, ...]
    after: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of one key. `done` False: refused, and `why` says why; `state` "" for an unknown key."""

    key: str
    done: bool
    state: str
    why: str = ""


def uncertain(
    tx: Tx,
    policy: Policy,
    *,
    tenant: str = "",
    channel: str = "",
    account: str = "",
    limit: int = 100,
    after: tuple[int, int] = (-1, 0),
) -> UncertainPage:
    """A page of uncertain deliveries. "" stands for any; `limit` is cut to `LIMIT_MAX`."""
    limit = max(1, min(limit, LIMIT_MAX))
    rows = tx.rows(
        "view_desk",
        state=State.UNCERTAIN.value,
        next_at=after[0],
        id=after[1],
        tenant=tenant,
        channel=channel,
        account=account,
        reason="",
        group="",
        since=0,
        until=0,
        template="",
        limit=limit + 1,
    )
    deliveries = [delivery_of(row) for row in rows]
    page = deliveries[:limit]
    last = page[-1] if len(deliveries) > limit else None
    return UncertainPage(
        tuple(_uncertain(tx, delivery, policy) for delivery in page),
        None if last is None else (last.course.next_at, last.id),
    )


def resolve(
    store: Store,
    keys: Sequence[str],
    word: Word,
    policy: Policy,
    *,
    reason: str,
    actor: str,
    receipt: str = "",
    tenant: str = DEFAULT_TENANT,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Resolved]:
    """Decide these deliveries, each on its own; the answers in the order of `keys`.

    `receipt`: the provider's number for the one delivery that is `sent`, as proof; `actor`: the person,
    as "operator:NAME". A resend reads consent, expiry and cancellation once more. Raises
    `InvalidInput` for an empty reason, a receipt for several deliveries or for another word, and for
    what is no delivery key.
    """
    reason = check_reason(reason)
    receipt = _checked_receipt(receipt, word, keys)
    named = {key: parse_key(key).key for key in keys}
    answers: dict[str, Resolved] = {}
    waiting = iter(dict.fromkeys(named.values()))
    while chunk := list(islice(waiting, CHUNK)):
        unit = partial(_resolve, chunk, word, policy, reason, actor, receipt, tenant)
        found = store.write(unit).result()
        answers |= {answer.key: answer for answer in found}
        progress(len(answers))
    for answer in answers.values():
        if answer.done:
            tell(telemetry.RESOLVED, delivery=answer.key, state=answer.state)
    return [answers[named[key]] for key in keys]


def _checked_receipt(receipt: str, word: Word, keys: Sequence[str]) -> str:
    receipt = receipt.strip()
    if not receipt:
        return ""
    if word is not Word.SENT:
        raise InvalidInput(f"a receipt proves that it was sent: it does not go with {word}", field="receipt")
    if len(set(keys)) != 1:
        raise InvalidInput("a receipt belongs to one delivery: resolve them one by one", field="receipt")
    if len(receipt) > RECEIPT_LENGTH_MAX or not receipt.isprintable():
        raise InvalidInput(
            f"receipt {receipt!r:.80} is no provider's number: one line of at most {RECEIPT_LENGTH_MAX}",
            field="receipt",
        )
    return receipt


def _resolve(
    keys: Sequence[str],
    word: Word,
    policy: Policy,
    reason: str,
    actor: str,
    receipt: str,
    tenant: str,
    tx: Tx,
) -> list[Resolved]:
    rows = {row.key: row for row in tx.deliveries.by_keys([(tenant, key) for key in keys])}
    return [
        _decide(tx, rows[key], word, policy, reason, actor, receipt)
        if key in rows
        else Resolved(key, False, "", "no delivery has this key")
        for key in keys
    ]


def _decide(
    tx: Tx, row: Delivery, word: Word, policy: Policy, reason: str, actor: str, receipt: str
) -> Resolved:
    state = row.standing.state
    event, course, details = _event(tx, row, word, receipt)
    why = _why_not(tx, row, event, policy)
    if why:
        return Resolved(row.key, False, state.value, why)
    move = move_on(row, event, policy, tx, actor=actor, course=course, details={**details, "reason": reason})
    if isinstance(move, NotMoved):
        return Resolved(row.key, False, state.value, move.why)
    (done,) = tx.deliveries.move([move])
    assert done, "a row locked in this unit cannot have moved"
    if event is Event.PROVEN and state in SAYS_NOT_SENT:
        tell(
            telemetry.PROVEN_ALARM,
            delivery=row.key,
            state=state.value,
            account=row.course.account,
            source="operator",
        )
    return Resolved(row.key, True, move.standing.state.value)


def _event(tx: Tx, row: Delivery, word: Word, receipt: str) -> tuple[Event, Course, dict[str, Value]]:
    course = row.course
    match word:
        case Word.SENT if receipt:
            return (
                Event.PROVEN,
                replace(course, receipt=receipt, reason=""),
                {"receipt": receipt, "evidence": "operator"},
            )
        case Word.SENT:
            return Event.ASSUMED_SENT, replace(course, reason="operator"), {}
        case Word.NOT_SENT:
            return Event.NOT_SENT, replace(course, reason="operator"), {}
        case Word.RESEND:
            return Event.PERMITTED, replace(course, next_at=tx.now), {"was": course.reason}
        case _:
            assert_never(word)


def _why_not(tx: Tx, row: Delivery, event: Event, policy: Policy) -> str:
    """What the life cycle's table does not know of: "" where nothing stands against it."""
    if event is Event.PROVEN and row.course.attempts == 0 and not row.standing.maybe:
        return "it was never tried, so the receipt must belong to another delivery"
    if event is Event.PROVEN and row.standing.state is State.ACCEPTED:
        known = f" with the receipt {row.course.receipt}" if row.course.receipt else ""
        return f"it is accepted already{known}"
    if row.course.account not in policy.accounts and row.course.account:
        return (
            f"its account {row.course.account!r} is not configured any more: add [account.*] with that name"
        )
    if event is Event.PERMITTED and not row.course.account:
        return "its text was never made, so there is nothing to send: schedule it as a new reminder"
    if event is Event.PERMITTED and tx.held:
        return f"the store is held: {RELEASE_FIRST}"
    return _why_not_again(tx, row, policy) if event is Event.PERMITTED else ""


def _why_not_again(tx: Tx, row: Delivery, policy: Policy) -> str:
    """Why it must not be sent again now, whatever a person wishes."""
    category = policy.categories.get(row.category)
    if category is None:
        return f"its category {row.category!r} is not configured any more"
    key = (row.tenant, row.channel.value, row.address_tag)
    refused = refusal(tx.preferences.of([key]).get(key, ()), row.category, category.no_record)
    return f"it must not be sent again: {reason_words(refused)}" if refused is not None else ""


def _uncertain(tx: Tx, row: Delivery, policy: Policy) -> Uncertain:
    since, evidence = row.course.due_at, reason_words(row.course.reason)
    for line in reversed(lines_of(tx, row.id)):
        if line.event == Event.CLAIMED:
            since = line.at
            break
    configured = row.channel in policy.channels
    says = policy.uncertain(row.channel, row.category) if configured else UncertainPolicy.HOLD
    probe = (
        move_on(row, Event.PERMITTED, policy, tx, actor="")
        if not row.course.account or row.course.account in policy.accounts
        else NotMoved(f"its account {row.course.account!r} is not configured any more")
    )
    why = probe.why if isinstance(probe, NotMoved) else _why_not_again(tx, row, policy)
    return Uncertain(row, since, evidence, says.value, why)
