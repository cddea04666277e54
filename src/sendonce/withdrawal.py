"""Taking a delivery back: a cancel or an opt-out, and a true answer to whoever asked.

    cancelled, suppressed   it had not been tried, or provably not been accepted: it will not go out
    pending                 a call is open or in doubt: it may already be sent; it will not be tried
                            again, and ends as what turns out to be true
    already_sent            the provider accepted it before
    already_ended           it had ended otherwise; `state` says how

Asking again gives the same answer and writes nothing. Whoever holds deliveries inside a unit of the
store can use this: intake for a removed channel, cancel, consent, and the stages that learn of an
opt-out from a provider. What a held store may have lost an attempt of is doubted first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from sendonce.core.consent import NoRecord, refusal
from sendonce.core.errors import InvalidInput, StoreUnavailable
from sendonce.core.lifecycle import OPEN, Ending, Event, Facts, Moved, State, step
from sendonce.core.policy import Policy
from sendonce.held import doubted
from sendonce.moves import facts_of, move_of
from sendonce.ports.store import Delivery, Move, Tx

TRIES: Final = 5
PAGE: Final = 200
REASON_LENGTH_MAX: Final = 200

Withdrawal = Literal[Event.CANCELLED, Event.SUPPRESSED]


class Word(StrEnum):
    """The answer in one word; see the module text."""

    CANCELLED = "cancelled"
    SUPPRESSED = "suppressed"
    PENDING = "cancel_pending"
    ALREADY_SENT = "already_sent"
    ALREADY_ENDED = "already_ended"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one delivery. `changed`: this request did it, not an earlier one."""

    delivery_id: int
    key: str
    word: Word
    state: State
    changed: bool

    def __str__(self) -> str:
        match self.word:
            case Word.CANCELLED | Word.SUPPRESSED:
                return f"{self.key}: {self.word}; it will not be sent"
            case Word.PENDING:
                return f"{self.key}: it may already be sent ({self.state}); it will not be tried again"
            case Word.ALREADY_SENT:
                return f"{self.key}: already sent, the provider accepted it"
            case Word.ALREADY_ENDED:
                return f"{self.key}: it had ended before: {self.state}"


def withdraw(
    tx: Tx,
    deliveries: Sequence[Delivery],
    event: Withdrawal,
    *,
    policy: Policy,
    actor: str,
    reasons: Mapping[int, str] | str,
) -> list[Answer]:
    """Take back deliveries as read in this unit; answers in their order.

    `reasons`: a coded reason for all of them, or one by delivery id.
    """
    answers: dict[int, Answer] = {}
    waiting = doubted(tx, deliveries, policy)
    for _ in range(TRIES):
        decided = [
            (delivery, judge(delivery, event, facts_of(delivery, policy, now=tx.now, steady=tx.steady)))
            for delivery in waiting
        ]
        answers |= {answer.delivery_id: answer for _, (answer, _) in decided}
        moves = [
            _move(tx, delivery, moved, policy, actor, _reason(reasons, delivery))
            for delivery, (_, moved) in decided
            if moved is not None
        ]
        lost = [
            move.before.id for move, done in zip(moves, tx.deliveries.move(moves), strict=True) if not done
        ]
        if not lost:
            return [answers[delivery.id] for delivery in deliveries]
        waiting = tx.deliveries.by_ids(lost)
    raise StoreUnavailable(f"{len(waiting)} deliveries kept changing while they were taken back: ask again")


def judge(delivery: Delivery, event: Withdrawal, world: Facts) -> tuple[Answer, Moved | None]:
    """What the answer would be, and the move that makes it true; None where nothing needs to move."""
    standing = delivery.standing
    if standing.ending is not Ending.NONE:
        # Asked before. A cancel does not take the place of an opt-out, or the other way round: both
        # end unsent, and the first reason is the true one.
        return _answer(delivery, Word.PENDING, standing.state, changed=False), None
    match step(standing, event, world):
        case Moved(standing=after) as moved:
            word = _WORDS.get(after.state, Word.PENDING)
            return _answer(delivery, word, after.state, changed=True), moved
        case _:
            word = _ENDED_WORDS.get(standing.state, Word.ALREADY_ENDED)
            return _answer(delivery, word, standing.state, changed=False), None


def withdraw_refused(
    tx: Tx, addresses: Iterable[tuple[str, str, str]], *, policy: Policy, actor: str
) -> list[Answer]:
    """Take back every open delivery to these addresses that their records no longer allow.

    `addresses` are (tenant, channel, address tag). To be called in the unit that records an opt-out
    or a suppression, so that the record and its effect are one, and before it is answered. Only
    records count here; what no record at all means is read where a delivery would go out.
    """
    answers: list[Answer] = []
    records = tx.preferences.of(list(addresses))
    ids = sorted(tx.deliveries.open_at(list(records)))
    for at in range(0, len(ids), PAGE):
        # Locked now, and asked again: one may have ended, or been given another address, meanwhile.
        page = [row for row in tx.deliveries.by_ids(ids[at : at + PAGE]) if row.standing.state in OPEN]
        reasons = {
            row.id: why
            for row in page
            if (said := records.get((row.tenant, row.channel.value, row.address_tag)))
            and (why := refusal(said, row.category, NoRecord.ALLOW)) is not None
        }
        refused = [row for row in page if row.id in reasons]
        answers += withdraw(tx, refused, Event.SUPPRESSED, policy=policy, actor=actor, reasons=reasons)
    return answers


def lock_open(tx: Tx, addresses: Collection[tuple[str, str, str]], ids: Iterable[int]) -> None:
    """Lock what `withdraw_refused` will take back of these addresses together with the deliveries `ids`, all
    in order of id: for a unit that has both to do, one after the other."""
    if addresses:
        tx.deliveries.by_ids(sorted(tx.deliveries.open_at(list(addresses)).union(ids)))


def check_reason(text: str) -> str:
    """A person's reason, trimmed. It goes into the ledger, which is for ever. Raises `InvalidInput`."""
    reason = text.strip()
    if not reason:
        raise InvalidInput("reason is empty: say why, in a few words without personal data", field="reason")
    if len(reason) > REASON_LENGTH_MAX or not reason.isprintable():
        raise InvalidInput(
            f"reason {reason!r:.80} must be one line of at most {REASON_LENGTH_MAX} characters: shorten it",
            field="reason",
        )
    return reason


def _reason(reasons: Mapping[int, str] | str, delivery: Delivery) -> str:
    return reasons if isinstance(reasons, str) else reasons[delivery.id]


_WORDS: Final = {State.CANCELLED: Word.CANCELLED, State.SUPPRESSED: Word.SUPPRESSED}
_ENDED_WORDS: Final = {**_WORDS, State.ACCEPTED: Word.ALREADY_SENT}


def _answer(delivery: Delivery, word: Word, state: State, *, changed: bool) -> Answer:
    return Answer(delivery.id, delivery.key, word, state, changed)


def _move(tx: Tx, delivery: Delivery, moved: Moved, policy: Policy, actor: str, reason: str) -> Move:
    course = replace(delivery.course, reason=reason)
    return move_of(delivery, moved, policy, tx, actor=actor, course=course, details={"reason": reason})
