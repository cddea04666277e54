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

from enum import StrEnum
from typing import Final

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
