"""What a provider says later of a message that it accepted, and what a customer answers.

    on the way   accepted, sent, deferred, bounced_soft
    at the end   delivered, bounced_hard, undelivered, expired, rejected, suppressed
    beside       complained, opted_out, opted_in, replied

It is kept *beside* ACCEPTED and never overwrites it. Of the first two lines one stands for the delivery, by
rank and never by order of arrival: "sent" that comes after "delivered" changes nothing. A hard bounce may
follow "delivered" (the far side changed its mind), and then both are shown. A provider's "unknown" is not a
failure, and no event ever causes a second send.

Some kinds prove that the provider had the message (see `PROVES`): with our signed reference they settle what
was uncertain. Others, such as "dropped" or "rejected", prove nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel
from sendonce.core.value import value


class EventKind(StrEnum):
    """What happened, in the field's common words; the provider's own code stands beside it."""

    ACCEPTED = "accepted"
    SENT = "sent"  # handed on to a carrier or a mail server
    DEFERRED = "deferred"
    BOUNCED_SOFT = "bounced_soft"
    DELIVERED = "delivered"
    BOUNCED_HARD = "bounced_hard"
    UNDELIVERED = "undelivered"  # an SMS, for good
    EXPIRED = "expired"
    REJECTED = "rejected"  # by the provider, after it had accepted
    SUPPRESSED = "suppressed"  # on the provider's own list
    COMPLAINED = "complained"
    OPTED_OUT = "opted_out"
    OPTED_IN = "opted_in"
    REPLIED = "replied"  # a customer's own words: `text`
    UNKNOWN = "unknown"  # the provider itself does not know, or says what we have no word for


PROVES: Final = frozenset(
    {
        EventKind.ACCEPTED,
        EventKind.SENT,
        EventKind.DEFERRED,
        EventKind.BOUNCED_SOFT,
        EventKind.DELIVERED,
        EventKind.BOUNCED_HARD,
        EventKind.UNDELIVERED,
        EventKind.COMPLAINED,
    }
)
"""Kinds that come only where the provider took the message: the next hop refuses only what it was handed."""


@value
class ProviderEvent:
    """One thing that a provider said. Adapters make it from verified bytes; the pipeline applies it.

    identity     what makes it this event at this account: the provider's event id, or a hash of what is
                 constant in it where it has none; the same event told twice has the same identity
    kind         see `EventKind`
    receipt      the provider's message id, as `Accepted.receipt` would be; "" where the event names none
    send_key     our own reference, only where it came back *verified*: inside what the provider signed, or
                 in a callback URL with our signature; else ""
    address      whom it is about, as the provider writes it; "" where it does not say. Personal: never
                 logged, never put into the ledger
    occurred_at  calendar microseconds UTC by the provider; None where it does not say
    code         the provider's own word, short, without personal data
    text         the customer's words, for REPLIED and the words that opt out or in; else "". Personal
    """

    identity: str
    kind: EventKind
    receipt: str = ""
    send_key: str = ""
    address: str = ""
    occurred_at: int | None = None
    code: str = ""
    text: str = ""


# What stands for a delivery

ON_THE_WAY: Final = (EventKind.ACCEPTED, EventKind.SENT, EventKind.DEFERRED, EventKind.BOUNCED_SOFT)
AT_THE_END: Final = (
    EventKind.SUPPRESSED,
    EventKind.REJECTED,
    EventKind.EXPIRED,
    EventKind.UNDELIVERED,
    EventKind.DELIVERED,
    EventKind.BOUNCED_HARD,
)
"""In order of rank: what proves more stands. "Delivered" beats those that say that nothing arrived, since
only the far side can have said it; a hard bounce beats "delivered", since it may change its mind."""
BESIDE: Final = (EventKind.COMPLAINED, EventKind.OPTED_OUT, EventKind.OPTED_IN, EventKind.REPLIED)

RANKS: Final = {kind: rank for rank, kind in enumerate((*ON_THE_WAY, *AT_THE_END), start=1)}
"""A kind without a rank stands for nothing: it is told beside, or the provider itself does not know."""


@value
class Fact:
    """One kind of thing that was said of a delivery. `at` in microseconds UTC, by the provider where it says
    so, else when we were told; `code` the provider's word."""

    kind: EventKind
    at: int
    code: str = ""


Facets = tuple[Fact, ...]
"""What was said of a delivery: each kind once, in order of kind."""


def fold(facets: Facets, *facts: Fact) -> Facets:
    """What was said, with these besides. Of one kind, said again, the earliest counts: so it does not matter
    in which order they come, nor how often."""
    kept = {fact.kind: fact for fact in facets}
    for fact in facts:
        known = kept.get(fact.kind)
        if known is None or (fact.at, fact.code) < (known.at, known.code):
            kept[fact.kind] = fact
    return tuple(kept[kind] for kind in sorted(kept))


def stands(facets: Iterable[Fact]) -> Fact | None:
    """The one that stands for the delivery, by rank; None where nothing was said that could."""
    ranked = [fact for fact in facets if fact.kind in RANKS]
    return max(ranked, key=lambda fact: RANKS[fact.kind], default=None)


# What follows for the address


def consent_of(kind: EventKind, channel: Channel) -> Kind | None:
    """The record about the address that follows from an event; None: none does.

    On SMS a provider's own list holds those who replied STOP, and they may come back by an opt-in; a mail
    address on such a list does not exist, or complained.
    """
    match kind:
        case EventKind.BOUNCED_HARD | EventKind.COMPLAINED:
            return Kind.SUPPRESSED
        case EventKind.SUPPRESSED:
            return Kind.OPT_OUT if channel is Channel.SMS else Kind.SUPPRESSED
        case EventKind.OPTED_OUT:
            return Kind.OPT_OUT
        case EventKind.OPTED_IN:
            return Kind.OPT_IN
        case _:
            return None


BY_ADDRESS: Final = frozenset(
    {EventKind.COMPLAINED, EventKind.OPTED_OUT, EventKind.OPTED_IN, EventKind.REPLIED}
)
"""Kinds that say something of a person, whichever message it was about: the address is enough."""
