"""Uncertain deliveries: nobody can tell by itself whether they were sent, so a person decides.

    sent      with the provider's receipt it is proven; without one it is an operator's word
    not_sent  an operator's word; it ends, unsent
    resend    one more attempt, which may arrive twice: `DUPLICATE_RISK` says so

Each decision stands in the ledger with the person and the reason. Late evidence still wins over it.
Deliveries are decided by key, or all that a filter chooses; a preview gives the same answers and changes
nothing.

What is decided by a filter is what was attempted before it was asked for: of a later attempt nobody can have
asked the provider yet. So one that is sent again, and uncertain again meanwhile, is not sent a third time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, assert_never

from sendonce import telemetry
from sendonce.core.consent import Preference, refusal
from sendonce.core.delivery import parse_key
from sendonce.core.errors import InvalidInput
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import SAYS_NOT_SENT, Event, NotMoved, State
from sendonce.core.policy import Policy, UncertainPolicy
from sendonce.held import RELEASE_FIRST
from sendonce.moves import move_on
from sendonce.pipeline.chosen import NO_DELIVERY, START, Filter, Part, Place, checked, page, walk
from sendonce.pipeline.record import lines_of
from sendonce.pipeline.sentences import reason_words
from sendonce.ports.store import Course, Delivery, Move, Store, Tx
from sendonce.telemetry import tell
from sendonce.withdrawal import check_reason

LIMIT_MAX: Final = 500
EXAMPLES_MAX: Final = 200
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


@dataclass(slots=True)
class Resolution:
    """What a resolution did, or in a `preview` would do.

    resolved  how many are decided
    refused   why not -> how many
    examples  the first `EXAMPLES_MAX` refused: (key, why)
    answers   where keys were named: one for each, in their order, once all is done
    """

    chosen: Filter
    word: Word
    preview: bool
    resolved: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str]] = field(default_factory=list)
    answers: list[Resolved] = field(default_factory=list)

    @property
    def seen(self) -> int:
        return self.resolved + self.refused.total()

    def add(self, answer: Resolved) -> None:
        if answer.done:
            self.resolved += 1
            return
        self.refused[answer.why] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append((answer.key, answer.why))


def uncertain(
    tx: Tx, policy: Policy, chosen: Filter, *, limit: int = 100, after: Place = START
) -> UncertainPage:
    """A page of what a filter chooses; a tenant of "" stands for any. `limit` is cut to `LIMIT_MAX`.

    Raises `InvalidInput` for an unknown channel.
    """
    limit = max(1, min(limit, LIMIT_MAX))
    deliveries = page(tx, checked(chosen), State.UNCERTAIN, after, limit + 1)
    shown = deliveries[:limit]
    last = shown[-1] if len(deliveries) > limit else None
    words = _preferences(tx, shown)
    return UncertainPage(
        tuple(_uncertain(tx, delivery, policy, words) for delivery in shown),
        None if last is None else (last.course.next_at, last.id),
    )


def resolve(
    store: Store,
    chosen: Filter,
    word: Word,
    policy: Policy,
    *,
    reason: str,
    actor: str,
    receipt: str = "",
    preview: bool = False,
    progress: Callable[[Resolution], None] = lambda done: None,
) -> Resolution:
    """Decide what was chosen, each on its own; durable when it returns.

    `receipt`: the provider's number for the one delivery that is `sent`, as proof; `actor`: the person,
    as "operator:NAME". A resend reads consent, expiry and cancellation once more.

    In short units: stopped halfway, what was decided is decided, and the same call goes on with the rest.
    Raises `InvalidInput` for an empty reason, a receipt for what is not one named delivery or for another
    word, an unknown channel, and for what is no delivery key.
    """
    reason = check_reason(reason)
    named = [parse_key(key).key for key in chosen.keys]
    chosen = checked(chosen)
    desk = _Desk(
        word=word,
        policy=policy,
        reason=reason,
        actor=actor,
        receipt=_checked_receipt(receipt, word, chosen),
        preview=preview,
        attempted_before=None if named else store.read(lambda tx: tx.steady),
    )
    done = Resolution(chosen, word, preview)
    answers: dict[str, Resolved] = {}
    for found in walk(store, chosen, (State.UNCERTAIN,), desk.decide, preview=preview):
        for answer, was in found:
            done.add(answer)
            if named:
                answers[answer.key] = answer
            if answer.done and not preview:
                _tell(answer, was)
        progress(done)
    done.answers = [answers[key] for key in named]
    if done.seen and not preview:
        _audit(store, done, reason, actor)
    return done


def _tell(answer: Resolved, was: Delivery | None) -> None:
    tell(telemetry.RESOLVED, delivery=answer.key, state=answer.state)
    if was is not None and answer.state == State.ACCEPTED and was.standing.state in SAYS_NOT_SENT:
        tell(
            telemetry.PROVEN_ALARM,
            delivery=answer.key,
            state=was.standing.state.value,
            account=was.course.account,
            source="operator",
        )


def _checked_receipt(receipt: str, word: Word, chosen: Filter) -> str:
    receipt = receipt.strip()
    if not receipt:
        return ""
    if word is not Word.SENT:
        raise InvalidInput(f"a receipt proves that it was sent: it does not go with {word}", field="receipt")
    if len(chosen.keys) != 1:
        raise InvalidInput("a receipt belongs to one delivery: resolve them one by one", field="receipt")
    if len(receipt) > RECEIPT_LENGTH_MAX or not receipt.isprintable():
        raise InvalidInput(
            f"receipt {receipt!r:.80} is no provider's number: one line of at most {RECEIPT_LENGTH_MAX}",
            field="receipt",
        )
    return receipt


_Words = Mapping[tuple[str, str, str], Sequence[Preference]]
"""What customers said, by (tenant, channel, address tag)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """What one resolution asks for, the same for each of its deliveries.

    `attempted_before`: a steady instant; what was attempted after it is left alone. None: nothing is.
    """

    word: Word
    policy: Policy
    reason: str
    actor: str
    receipt: str
    preview: bool
    attempted_before: int | None

    def decide(self, tx: Tx, part: Part) -> list[tuple[Resolved, Delivery | None]]:
        """Each of a unit: what becomes of it, and what it was."""
        words = _preferences(tx, part.rows)
        answers: list[tuple[Resolved, Delivery | None]] = []
        moves: list[Move] = []
        for row in part.rows:
            if self.attempted_before is not None and row.course.last_try > self.attempted_before:
                continue
            judged = self._judge(tx, row, words)
            if isinstance(judged, str):
                answers.append((Resolved(row.key, False, row.standing.state.value, judged), row))
                continue
            answers.append((Resolved(row.key, True, judged.standing.state.value), row))
            moves.append(judged)
        if not self.preview:
            done = tx.deliveries.move(moves)
            assert all(done), "rows locked in this unit cannot have moved"
        return answers + [(Resolved(key, False, "", NO_DELIVERY), None) for key in part.unknown]

    def _judge(self, tx: Tx, row: Delivery, words: _Words) -> Move | str:
        """The move that the table allows, or why not."""
        event, course, details = _event(tx, row, self.word, self.receipt)
        why = _why_not(tx, row, event, self.policy, words)
        if why:
            return why
        details = {**details, "reason": self.reason}
        move = move_on(row, event, self.policy, tx, actor=self.actor, course=course, details=details)
        return move.why if isinstance(move, NotMoved) else move


def _preferences(tx: Tx, rows: Sequence[Delivery]) -> _Words:
    return tx.preferences.of([(row.tenant, row.channel.value, row.address_tag) for row in rows])


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


def _why_not(tx: Tx, row: Delivery, event: Event, policy: Policy, words: _Words) -> str:
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
    return _why_not_again(row, policy, words) if event is Event.PERMITTED else ""


def _why_not_again(row: Delivery, policy: Policy, words: _Words) -> str:
    """Why it must not be sent again now, whatever a person wishes."""
    category = policy.categories.get(row.category)
    if category is None:
        return f"its category {row.category!r} is not configured any more"
    key = (row.tenant, row.channel.value, row.address_tag)
    refused = refusal(words.get(key, ()), row.category, category.no_record)
    return f"it must not be sent again: {reason_words(refused)}" if refused is not None else ""


def _uncertain(tx: Tx, row: Delivery, policy: Policy, words: _Words) -> Uncertain:
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
    why = probe.why if isinstance(probe, NotMoved) else _why_not_again(row, policy, words)
    return Uncertain(row, since, evidence, says.value, why)


def _audit(store: Store, done: Resolution, reason: str, actor: str) -> None:
    body: Mapping[str, Value] = {
        "decision": done.word.value,
        "resolved": done.resolved,
        "refused": done.refused.total(),
    }
    store.write(lambda tx: tx.runs.audit(actor, "resolve", str(done.chosen), reason, body)).result()
