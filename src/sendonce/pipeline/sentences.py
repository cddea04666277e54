"""The ledger in plain words, for somebody who answers the telephone.

One sentence for each entry, one for each coded reason, and one that says what to tell the customer.
Pure: codes and times in, words out. The codes themselves stay in the acceptance ledger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from sendonce.core.lifecycle import Ending, Event, State
from sendonce.core.outcome import Reason
from sendonce.core.provider_event import EventKind, Fact
from sendonce.pipeline.record import Line
from sendonce.ports.store import Delivery

When = Callable[[int], str]
"""Writes an instant (microseconds UTC) as wall time where the customer lives."""


def sentence(line: Line, when: When) -> str:
    """What happened in this entry."""
    try:
        event = Event(line.event)
    except ValueError:
        return f"Something this version does not know: {line.event}."
    if not line.readable:
        return f"The text of this entry ({line.event}) cannot be read: run `sendonce verify`."
    return _sentence(event, line, when)


def _sentence(event: Event, line: Line, when: When) -> str:
    given = reason_words(line.word("reason"))
    why = given or _NO_REASON
    code = line.word("code")
    coded = f" (code {code})" if code else ""
    match event:
        case Event.SCHEDULED:
            due, expires = line.number("due_at"), line.number("expires_at")
            times = f": due {when(due)}, valid until {when(expires)}" if due and expires else ""
            return f"Taken in{times}."
        case Event.REVISED:
            changed = line.word("changed").replace(",", ", ")
            return f"Changed before anything was sent{f': {changed}' if changed else ''}."
        case Event.RESTORED:
            return f"{_who(line)} took it up again; its text will be made anew{_because(line)}."
        case Event.PUBLISHED:
            meant = line.word("meant")
            instead = f", since {meant}, which it was meant for, was not well" if meant else ""
            return f"Came due: its text was fixed, and it was queued for {_account(line)}{instead}."
        case Event.REROUTED:
            return (
                f"It was first meant for {line.word('from') or 'another account'}, and moved to "
                f"{_account(line)}{_moved_because(line)}. Nothing of it had been sent."
            )
        case Event.DEFERRED if line.word("reason") == "zone_rules":
            return f"Its zone has new rules: on the customer's clock it is due {when(line.number('due'))}."
        case Event.DEFERRED:
            until = 0 if _is_looked_at(line.word("reason")) else line.number("until")
            return f"Put off{f' until {when(until)}' if until else ''}: {why}."
        case Event.UNRENDERABLE:
            ends = "; nothing was sent" if line.state == State.REJECTED else _now(line)
            return f"It cannot be sent as it is: {given or 'template and data do not fit'}{ends}."
        case Event.CLAIMED:
            return f"Attempt {line.number('attempt') or '?'} began at {_account(line)}{_decision(line)}."
        case Event.RELEASED:
            return f"The attempt was not started and counts for nothing: {why}{_now(line)}."
        case Event.ACCEPTED:
            knew = line.word("decision") == "provider_knew_key"
            known = "; it had it already from an earlier attempt" if knew else ""
            return f"The provider took it{_receipt(line)}{known}."
        case Event.FAILED:
            return f"The attempt failed, and nothing was sent by it: {why}{coded}{_now(line)}."
        case Event.THROTTLED:
            wait = line.number("retry_after_s")
            asked = f", and asked for {wait} s" if wait else ""
            return f"The provider was too busy and did not take it{asked}{coded}{_now(line)}."
        case Event.HELD:
            held = reason_words(line.word("reason").removeprefix("account:")) or _NO_REASON
            return f"The provider refused our account, not this customer: {held}{coded}{_now(line)}."
        case Event.REJECTED:
            return f"The provider refused it for good: {why}{coded}{_now(line)}."
        case Event.UNKNOWN:
            evidence = _EVIDENCE.get(line.word("evidence"), line.word("evidence") or "no answer came")
            return f"It may have been sent, nobody knows: {evidence}{coded}{_now(line)}."
        case Event.KEY_DIED:
            return (
                "An earlier attempt may have been sent, and the time in which the provider would recognise "
                f"a repetition is over{_now(line)}."
            )
        case Event.CANCELLED:
            if line.state == State.CANCELLED:
                return f"Cancelled before it was sent: {why}."
            return f"Somebody asked to cancel it, when it may already have been sent: {why}."
        case Event.SUPPRESSED:
            if line.state == State.SUPPRESSED:
                return f"Not to be sent: {given or 'the address must not be written to'}."
            return (
                "The address must not be written to any more, but this one may already have been sent: "
                f"{why}."
            )
        case Event.EXPIRED:
            if line.state == State.EXPIRED:
                return f"Its time was over before it could be sent: {given or 'it was no longer valid'}."
            return f"Its time is over, but an earlier attempt may have been sent{_now(line)}."
        case Event.PROVEN:
            source = _PROOF.get(line.word("evidence"), "a late answer")
            return f"Proven to be sent by {source}{_receipt(line)}."
        case Event.ABSENT:
            return f"The provider was asked and does not have it: it was not sent{_now(line)}."
        case Event.UNRESOLVED if line.word("reason").startswith("bad_content"):
            return f"The provider cannot be asked: {why}{_now(line)}."
        case Event.UNRESOLVED:
            return "The provider was asked and could not tell whether it was sent."
        case Event.PERMITTED:
            return f"{_who(line)} allowed one more attempt, although it may arrive twice{_because(line)}."
        case Event.ASSUMED_SENT:
            return f"{_who(line)} decided that it counts as sent{_because(line)}."
        case Event.NOT_SENT:
            return f"{_who(line)} decided that it was not sent{_because(line)}."
        case Event.REDRIVEN:
            later = line.number("expires")
            valid = f"; it is now valid until {when(later)}" if later else ""
            return f"{_who(line)} put it back into the queue{_because(line)}{valid}."
        case Event.DOUBTED:
            return (
                "The record may have lost an attempt, since the store was restored or another server took "
                f"over: it may have been sent{_doubted(line)}."
            )
        case Event.DUPLICATE_OBSERVED:
            return "The queue handed it out once more; it was finished already, so nothing was done."
        case Event.LATE_OUTCOME:
            outcome = _LATE.get(line.word("outcome"), "an answer")
            return f"An old attempt reported late ({outcome}); that changed nothing."
        case _:
            assert_never(event)


def _moved_because(line: Line) -> str:
    held, _, code = line.word("reason").partition(":")
    if held == "held" and code:
        return f", since that account was held ({code.removeprefix('account:').replace('_', ' ')})"
    return f" by {_who(line)}{_because(line)}"


def later_sentence(fact: Fact) -> str:
    """What the provider said later, in words: what it knows, which is not always what the customer sees."""
    code = f" (code {fact.code})" if fact.code and fact.kind in _CODED_LATER else ""
    return f"{_LATER[fact.kind]}{code}."


def reason_words(reason: str) -> str:
    """A coded reason in words: "failed:connection", "opted_out:import", "past_expiry". "" stays "", and
    what a person wrote stays as written."""
    if not _CODED.fullmatch(reason):
        return reason
    if reason in _REASONS:
        return _REASONS[reason]
    family, _, rest = reason.partition(":")
    said = _FAMILIES.get(family)
    if said is None or not rest:
        return said or reason.replace("_", " ")
    return f"{said} ({_REASONS.get(rest, _EVIDENCE.get(rest, rest.replace('_', ' ')))})"


def tell_customer(delivery: Delivery, now: int, when: When) -> str:
    """One sentence: what is true, and may be said, about this delivery now."""
    course, standing = delivery.course, delivery.standing
    given = reason_words(course.reason)
    why = given or _NO_REASON
    match standing.state:
        case State.SCHEDULED if standing.maybe:
            return "It may have been sent already, the record of that was lost. Promise nothing yet."
        case State.SCHEDULED if _is_looked_at(course.reason) and course.next_at > now:
            return f"It has not been sent yet and waits: {why}."
        case State.SCHEDULED if course.reason and course.next_at > now:
            return f"It has not been sent yet and waits until {when(course.next_at)}: {why}."
        case State.SCHEDULED if course.next_at > now:
            return f"It has not been sent yet; it is planned for {when(course.next_at)}."
        case State.SCHEDULED:
            return "It has not been sent yet; it is due, and goes out shortly."
        case State.QUEUED if standing.maybe and standing.permit:
            return "It may have been sent before, and is sent once more: it may arrive twice."
        case State.QUEUED if standing.maybe:
            return (
                "It may have been sent already; it is tried again in a way that the provider recognises, "
                "so it arrives once."
            )
        case State.QUEUED if _is_looked_at(course.reason) and course.next_at > now:
            return f"It has not been sent yet and waits: {why}."
        case State.QUEUED if course.next_at > now:
            last = reason_words(course.reason.removeprefix("failed:"))
            because = f" ({last})" if last else ""
            return f"It has not been sent yet; the next try is at {when(course.next_at)}{because}."
        case State.QUEUED:
            return "It has not been sent yet; it is in the queue and goes out as soon as the provider allows."
        case State.SENDING if standing.ending is not Ending.NONE:
            return "It was being sent when it was to be stopped: it may still arrive, and is not tried again."
        case State.SENDING:
            return "It is being sent at this moment."
        case State.RECONCILING:
            return "It may have been sent; the provider is being asked. Promise nothing yet."
        case State.UNCERTAIN:
            return "It may have been sent, nobody can tell: ask whether it arrived before it is sent again."
        case State.ACCEPTED:
            at = f" at {when(delivery.ended_at)}" if delivery.ended_at else ""
            receipt = f", its number there is {course.receipt}" if course.receipt else ""
            return f"It was sent{at}: the provider took it{receipt}."
        case State.REJECTED:
            return f"It was not sent: {why}. {_ADVICE.get(course.reason, '')}".rstrip()
        case State.DEAD:
            last = reason_words(course.reason.removeprefix("failed:")) or _NO_REASON
            return f"It was not sent, every attempt failed: {last}. An operator can send it again."
        case State.CANCELLED:
            return f"It was not sent: it was cancelled ({why})."
        case State.SUPPRESSED:
            return f"It was not sent, because it must not be: {why}."
        case State.EXPIRED:
            return f"It was not sent: its time was over at {when(course.expires_at)}."
        case State.ASSUMED_SENT:
            return "It counts as sent by a decision, without proof: ask whether it arrived."
        case State.NOT_SENT:
            return "It counts as not sent by a decision, without proof."
        case _:
            assert_never(standing.state)


# Pieces of sentences


def _is_looked_at(reason: str) -> bool:
    """Whether its next instant is only the next look: it waits for a person, and nobody knows how long."""
    return reason.startswith("paused:") or reason == "configuration"


_CODED: Final = re.compile(r"[a-z_]*(:[\w.-]*)?")
_NO_REASON: Final = "no reason kept"


def _now(line: Line) -> str:
    """What follows from where the delivery stands after the entry."""
    return _NOW.get(line.state, "")


def _account(line: Line) -> str:
    return f"the account {line.word('account')}" if line.word("account") else "its account"


def _receipt(line: Line) -> str:
    return f" (its number there: {line.word('receipt')})" if line.word("receipt") else ""


def _because(line: Line) -> str:
    return f": {reason_words(line.word('reason'))}" if line.word("reason") else ""


def _who(line: Line) -> str:
    kind, _, name = line.actor.partition(":")
    match kind:
        case "policy":
            return "The configured policy"
        case "operator" | "api" if name:
            return name
        case _:
            return line.actor or "Somebody"


def _decision(line: Line) -> str:
    return _DECISIONS.get(line.word("decision"), "")


def _doubted(line: Line) -> str:
    if line.state == State.QUEUED:
        return "; it is tried again in a way that the provider recognises"
    return _now(line)


_NOW: Final[Mapping[str, str]] = {
    State.QUEUED: "; it is tried again",
    State.DEAD: "; that was the last try",
    State.CANCELLED: "; it had been cancelled meanwhile, and ends here",
    State.SUPPRESSED: "; it must not be sent any more, and ends here",
    State.EXPIRED: "; its time is over, and it ends here",
    State.RECONCILING: "; the provider will be asked",
    State.UNCERTAIN: "; nobody can tell by itself, so a person or the policy decides",
}

_DECISIONS: Final[Mapping[str, str]] = {
    "first": "",
    "retry_after_failure": ", since the one before provably sent nothing",
    "same_key": ", under the same key, so that the provider recognises a repetition",
    "permit": ", allowed although an earlier one may have been sent",
}

_PROOF: Final[Mapping[str, str]] = {
    "look_up": "asking the provider",
    "operator": "an operator who has the provider's number for it",
    "event": "the provider's own report",
}

_LATE: Final[Mapping[str, str]] = {
    "accepted": "taken",
    "rejected": "refused",
    "throttled": "too busy",
    "accounterror": "account refused",
    "failed": "failed",
    "unknown": "unknown",
    "notstarted": "never started",
}

_EVIDENCE: Final[Mapping[str, str]] = {
    "timeout": "no answer came in time",
    "reset": "the connection broke before the answer",
    "truncated": "the answer broke off",
    "bad_gateway": "a machine in between answered for the provider",
    "server_error": "the provider failed while it worked on it",
    "shutdown": "the sending process was stopped during the call",
    "lease_lost": "the sending process died or was cut off during the call",
    "send_deadline": "the call took longer than it may",
    "adapter_bug": "the adapter failed during the call",
}

_LATER: Final[Mapping[EventKind, str]] = {
    EventKind.ACCEPTED: "The provider says that it took it",
    EventKind.SENT: "It is on its way: the provider handed it on",
    EventKind.DEFERRED: "The other side is busy, and the provider tries again",
    EventKind.BOUNCED_SOFT: "The other side did not take it for now",
    EventKind.DELIVERED: "It arrived: the other side took it",
    EventKind.BOUNCED_HARD: "It came back: the other side refused it for good",
    EventKind.UNDELIVERED: "It did not arrive, says the provider",
    EventKind.EXPIRED: "The provider gave up: it did not arrive in time",
    EventKind.REJECTED: "The provider did not send it on after all",
    EventKind.SUPPRESSED: "The provider did not send it on: the address is on its own list",
    EventKind.COMPLAINED: "The customer reported it as spam: nothing more is sent there",
    EventKind.OPTED_OUT: "The customer asked for no more: nothing more is sent there",
    EventKind.OPTED_IN: "The customer asked for messages again",
    EventKind.REPLIED: "The customer answered",
    EventKind.UNKNOWN: "The provider said something that we have no word for",
}
_CODED_LATER: Final = frozenset(EventKind) - {EventKind.ACCEPTED, EventKind.SENT, EventKind.DELIVERED}

_FAMILIES: Final[Mapping[str, str]] = {
    "failed": "the attempts failed",
    "throttled": "the provider was too busy",
    "unknown": "the outcome is unknown",
    "account": "the provider refuses our account",
    "suppressed": "the address is on the suppression list",
    "opted_out": "the customer opted out",
    "bad_content": "template and data do not fit",
    "paused": "sending is paused",
    "policy": "by the configured policy",
}

_REASONS: Final[Mapping[str, str]] = {
    "": "",
    Reason.INVALID_ADDRESS: "the address does not exist",
    Reason.NOT_CAPABLE: "this number cannot receive such messages",
    Reason.OPTED_OUT: "the customer opted out at the provider",
    Reason.SUPPRESSED: "the address is on the provider's suppression list",
    Reason.BLOCKED: "the provider or the receiving side blocks it",
    Reason.TOO_LARGE: "it is too large",
    Reason.BAD_CONTENT: "the provider does not take this content",
    Reason.EXPIRED: "it was no longer valid",
    Reason.MAILBOX_FULL: "the mailbox is full",
    Reason.UNAVAILABLE: "the provider or the receiving side is down",
    Reason.CONNECTION: "the provider could not be reached",
    Reason.AUTHENTICATION: "our credentials are refused",
    Reason.SENDER: "our sender is not allowed",
    Reason.CREDIT: "our credit is used up",
    Reason.CONFIGURATION: "our configuration lacks something",
    Reason.OTHER: "the provider gives no clear reason",
    "no_consent": "no consent is recorded",
    "recipient_not_allowed": "the configuration lets nothing go to this address",
    "past_expiry": "it was no longer valid",
    "quiet_hours": "it is quiet time where the customer lives",
    "catch_up": "it has its turn among all that was left by a pause or an outage",
    "quiet_past_expiry": "quiet time lasts longer than it is valid",
    "due_past_expiry": "it was put off to a time at which it is no longer valid",
    "paused:channel": "its channel is paused",
    "paused:group": "its group is paused",
    "configuration": "our configuration lacks its category or its account",
    "absent": "the provider does not have it",
    "doubted": "the record of what was sent then is lost",
    "key_died": "a repetition would no longer be recognised",
    "slot_missed": "its slot had passed",
    "no_handles": "the process could open no more files",
    "gate_closed": "the provider had asked for a pause meanwhile",
    "deadline": "its deadline had passed",
    "key_dying": "a repetition would no longer be recognised",
    "bad_content:larger_than_quota": "it has more parts than a quota of its account allows",
    "bad_content:unreadable": "its stored text is damaged",
    "stopping": "the sending process was stopping",
    "lease_lost": "the sending process had lost its lease",
    "import_undone": "the import that brought it was undone",
    "channel_removed": "its channel was taken out of the reminder",
    "no_answer": "the provider gave no answer",
    "zone_rules": "its zone has new rules",
    "policy:permitted": "by the configured policy",
    "policy:assumed_sent": "by the configured policy",
}

_ASK_ADDRESS: Final = "Ask for another address."
_ADVICE: Final[Mapping[str, str]] = {
    Reason.INVALID_ADDRESS: _ASK_ADDRESS,
    Reason.NOT_CAPABLE: _ASK_ADDRESS,
    Reason.MAILBOX_FULL: _ASK_ADDRESS,
    Reason.OPTED_OUT: "The customer must opt in again first.",
}
