"""A delivery's identity: one reminder to one customer on one channel.

The delivery key is minted once, at intake, and never changes: not on a retry, not on a redrive, not
when the content is revised. Everything that must be the same on every machine and for ever (the
key, the key that the provider sees, the tag of an address, the partition) is a pure function here.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from urllib.parse import unquote

from sendonce.core.errors import InvalidInput
from sendonce.core.value import value

ID_LENGTH_MAX = 200
PARTITIONS = 1024


class Channel(StrEnum):
    """How a delivery travels. Each channel has its own queue, workers and limits."""

    EMAIL = "email"
    SMS = "sms"


@value
class Identity:
    """Who the delivery is; unique within its tenant."""

    reminder: str
    customer: str
    channel: Channel

    @property
    def key(self) -> str:
        """The delivery key, `reminder:customer:channel`; `:` and `%` inside a part are encoded."""
        return f"{_escape(self.reminder)}:{_escape(self.customer)}:{self.channel}"


def parse_key(key: str) -> Identity:
    """The identity behind a delivery key. Raises `InvalidInput` where it is not one."""
    parts = key.split(":")
    if len(parts) != 3:
        raise InvalidInput(
            f"{key!r} is not a delivery key: write reminder:customer:channel, "
            "with ':' inside a part as %3A and '%' as %25",
            field="delivery_key",
        )
    return Identity(unquote(parts[0]), unquote(parts[1]), parse_channel(parts[2]))


def parse_channel(text: str) -> Channel:
    """A channel by name. Raises `InvalidInput` that lists the known ones."""
    try:
        return Channel(text.strip().lower())
    except ValueError:
        known = ", ".join(Channel)
        raise InvalidInput(f"unknown channel {text!r}: use one of {known}", field="channel") from None


def check_id(text: str, field: str) -> str:
    """A caller's id (reminder, customer, group, tenant), trimmed.

    Raises `InvalidInput` when it is empty, too long, or holds a control character: ids stand in
    keys, ledgers and URLs.
    """
    trimmed = text.strip()
    if not trimmed:
        raise InvalidInput(f"{field} is empty: every row needs one", field=field)
    if len(trimmed) > ID_LENGTH_MAX:
        raise InvalidInput(
            f"{field} has {len(trimmed)} characters: at most {ID_LENGTH_MAX} are allowed", field=field
        )
    if not trimmed.isprintable():
        raise InvalidInput(
            f"{field} {trimmed!r} holds a control or invisible character: use printable ones", field=field
        )
    return trimmed


def partition_of(tenant: str, customer: str) -> int:
    """The partition of a customer, 0 to 1023: by it the rows of many servers would be spread."""
    digest = hashlib.blake2b(f"{tenant}\0{customer}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % PARTITIONS


def send_key(secret: bytes, tenant: str, delivery_key: str, version: int) -> str:
    """What the provider sees as idempotency key or reference: 64 hex digits.

    The same over all attempts and redrives of one content version, another for another content:
    providers refuse a known key with a changed body. An HMAC, since it must not be guessable and
    must not show who the customer is.
    """
    text = f"send\0{tenant}\0{delivery_key}\0{version}"
    return hmac.digest(secret, text.encode(), "sha256").hex()


def mark_of(send_key: str) -> int:
    """The beginning of a send key as a number, 60 bits: by it the content is found that was sent under it.

    It is a hint and no proof: whoever finds one computes the whole key and compares.
    """
    return int(send_key[:15], 16)


def address_tag(secret: bytes, tenant: str, channel: str, comparison_form: str) -> str:
    """What stands for an address where the address itself must not: 32 hex digits.

    `comparison_form` is the address as it is compared (`sendonce.address`), so that an opt-out of
    one spelling holds for all.
    """
    text = f"address\0{tenant}\0{channel}\0{comparison_form}"
    return hmac.digest(secret, text.encode(), "sha256").hex()[:32]


def customer_tag(secret: bytes, tenant: str, customer: str) -> str:
    """What stands for a customer who was erased, in the audit: 16 hex digits; who has the id can tell."""
    return hmac.digest(secret, f"customer\0{tenant}\0{customer}".encode(), "sha256").hex()[:16]


def _escape(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")
