"""What one provider call returned, and what a look-up said: closed sets of values.

An adapter turns every answer, refusal, timeout and broken connection into exactly one `Outcome`.
The line that matters is between *provably not accepted* and *may have been accepted*:

    NotStarted    no byte that could cause a send has left            nothing happened, nothing spent
    Accepted      the provider took it                                ends the delivery
    Rejected      permanent for this recipient or this content        ends the delivery
    Throttled     refused for pace; documented as not processed       waits, spends no retry budget
    AccountError  our account, sender or credit is at fault           holds the account, spends nothing
    Failed        provably not accepted, worth another try            spends the retry budget
    Unknown       any byte may have left and no complete answer came  never guessed, see `lifecycle`

When a failure cannot be placed for certain, it is `Unknown`. Codes are the provider's own, short,
and free of personal data: they go into the ledger.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sendonce.core.value import value


class Reason(StrEnum):
    """Why something was refused, in the field's common words; the provider's code stands beside it."""

    INVALID_ADDRESS = "invalid_address"
    NOT_CAPABLE = "not_capable"  # a landline, a short code: the channel cannot reach it
    OPTED_OUT = "opted_out"
    SUPPRESSED = "suppressed"  # on the provider's own suppression list
    BLOCKED = "blocked"  # policy, spam, geography, carrier
    TOO_LARGE = "too_large"
    BAD_CONTENT = "bad_content"
    EXPIRED = "expired"
    MAILBOX_FULL = "mailbox_full"
    UNAVAILABLE = "unavailable"  # the provider or the receiving side is down for now
    CONNECTION = "connection"  # DNS, refused, TLS: before any byte of the request
    AUTHENTICATION = "authentication"
    SENDER = "sender"  # our From, number or domain is not verified or not allowed
    CREDIT = "credit"
    CONFIGURATION = "configuration"
    OTHER = "other"


class ThrottleScope(StrEnum):
    """Whom a 429 is about. Adapters declare it; `UNDECLARED` closes briefly, then probes with one."""

    RATE = "rate"  # starts per interval of the whole account
    CONCURRENCY = "concurrency"  # open calls of the whole account
    QUOTA = "quota"  # a daily or monthly allowance: park until its reset
    RECIPIENT = "recipient"  # only this recipient waits
    UNDECLARED = "undeclared"


@value
class NotStarted:
    """No byte that could cause a send has left. `why`: slot_missed, too_late, stopping,
    key_dying, no_handles."""

    why: str


@value
class Accepted:
    """The provider took it. `receipt` is its message id ("" where it gives none).

    `duplicate`: the provider said that it knew our key already (the first call had arrived).
    """

    receipt: str
    code: str = ""
    duplicate: bool = False


RECEIPT_MAX: Final = 200


def as_receipt(text: str) -> str:
    """A provider's word as a receipt: what any store can keep and a person can read, not endlessly long."""
    if not text.isprintable():
        text = "".join(character for character in text if character.isprintable())
    return text[:RECEIPT_MAX]


@value
class Rejected:
    """Permanent for this recipient or this content. `suppress`: the address must not be tried again."""

    reason: Reason
    code: str
    suppress: bool = False


@value
class Throttled:
    """Refused for pace and not processed.

    `retry_after_s`: the provider's wait in seconds, already parsed; None where it gave none or one
    that means nothing (0, past, garbage), and then our own backoff applies.
    """

    scope: ThrottleScope
    code: str
    retry_after_s: float | None = None


@value
class AccountError:
    """Our credentials, sender, credit or configuration is at fault; no recipient is to blame."""

    reason: Reason
    code: str


@value
class Failed:
    """Provably not accepted, and worth another try.

    `retry_after_s` as in `Throttled`, for a 503 that names a time.
    """

    reason: Reason
    code: str
    retry_after_s: float | None = None


@value
class Unknown:
    """May have been accepted. `evidence`: timeout, reset, truncated, bad_gateway, server_error,
    shutdown, lease_lost."""

    evidence: str
    code: str = ""


Outcome = NotStarted | Accepted | Rejected | Throttled | AccountError | Failed | Unknown


@value
class Found:
    """A look-up by our reference proved that the provider has it."""

    receipt: str


@value
class Absent:
    """A look-up answered, and knows nothing of our reference.

    `believable` is the adapter's word that this provider's search can be trusted once its index
    lag is over; where it is False, absence proves nothing, whatever the time.
    """

    believable: bool


@value
class NoAnswer:
    """The look-up itself failed; ask again later."""

    code: str


Finding = Found | Absent | NoAnswer
