"""The token of a one-click unsubscription: who says no to what, without a look into anything.

    https://us.example.com/unsubscribe/TOKEN      TOKEN = base64url(tag, address tag, category, tenant)

It holds the tag of the address and not the address, so it tells nobody whom it is about, and it goes on to
work when the delivery that carried it was erased or removed: an unsubscription is about an address, not
about a message. It does not run out. RFC 8058 names no time, mailboxes keep mail for years, and a "no" that
comes late is still one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

from sendonce.core.errors import InvalidInput
from sendonce.core.value import value

TOKEN_LENGTH_MAX: Final = 1_400
URL_LENGTH_MAX: Final = 900
_TAG_BYTES: Final = 16
_ADDRESS_BYTES: Final = 16


@value
class Unsubscription:
    """Who (`address_tag`, see `core.delivery`) wants no more email of which category, from whom."""

    tenant: str
    address_tag: str
    category: str


def unsubscribe_token(secret: bytes, what: Unsubscription) -> str:
    """The same for the same address, tenant and category, always."""
    body = bytes.fromhex(what.address_tag) + f"{what.category}\0{what.tenant}".encode()
    return _written(_tag(secret, body) + body)


def unsubscribe_url(public_url: str, secret: bytes, what: Unsubscription) -> str:
    """The address of one click, as it stands in a header of mail.

    Raises `InvalidInput` for a tenant whose name would make it longer than a line may be (RFC 5322, 2.1.1).
    """
    url = f"{public_url}/unsubscribe/{unsubscribe_token(secret, what)}"
    if len(url) > URL_LENGTH_MAX:
        raise InvalidInput(
            f"the name of tenant {what.tenant!r:.80} is too long for an unsubscription link: shorten it",
            field="tenant",
            code="unsubscribe_url",
        )
    return url


def read_unsubscribe_token(secret: bytes, token: str) -> Unsubscription | None:
    """What a token says; None where it is not ours. Compared in constant time."""
    if len(token) > TOKEN_LENGTH_MAX or not token.isascii():
        return None
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    tag, body = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
    if not hmac.compare_digest(tag, _tag(secret, body)) or _written(raw) != token:
        return None
    category, _, tenant = body[_ADDRESS_BYTES:].decode().partition("\0")
    return Unsubscription(tenant, body[:_ADDRESS_BYTES].hex(), category)


def _written(raw: bytes) -> str:
    """Base64 in the one way in which we write it; other spellings of a token are not ours."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _tag(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, b"unsubscribe\0" + body, "sha256")[:_TAG_BYTES]
