"""What stands for a message in the return path of its mail, so that a bounce names what it is about.

    bounces+TOKEN@example.com        TOKEN = base32(16 bytes of the send key, 8 bytes of a keyed tag)

Reports of mail servers are not signed, and anybody may write to a return path. So nothing in a report is
believed but what comes with a token that only we can have made. It is 39 letters and digits without case,
since some servers write local parts in small letters, and leads to its send key by the first half of it. It
holds no personal data, and the same message always has the same.

Whoever got a message can read its token, and can report that message as bounced; nothing else is in their
reach.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from typing import Final

TOKEN_LENGTH: Final = 39
KEY_DIGITS: Final = 32
"""Hex digits of the send key in a token: 128 bits."""

_TAG_BYTES: Final = 8
_TOKEN: Final = re.compile(r"(?<![a-z0-9])[a-z2-7]{39}(?![a-z0-9])", re.ASCII)


def mail_token(secret: bytes, send_key: str) -> str:
    """The token of a message. `secret`: the store's."""
    key = bytes.fromhex(send_key[:KEY_DIGITS])
    return base64.b32encode(key + _tag(secret, key)).decode().rstrip("=").lower()


def read_mail_token(secret: bytes, token: str) -> str | None:
    """The first 32 hex digits of the send key; None where the token is not ours. In constant time."""
    try:
        raw = base64.b32decode(token.upper() + "=", casefold=False)
    except (binascii.Error, ValueError):
        return None
    key, tag = raw[: KEY_DIGITS // 2], raw[KEY_DIGITS // 2 :]
    return key.hex() if hmac.compare_digest(tag, _tag(secret, key)) and len(token) == TOKEN_LENGTH else None


def tokens_in(text: str) -> list[str]:
    """What in an address or a header could be a token, in its order, each once."""
    return list(dict.fromkeys(_TOKEN.findall(text.lower())))


def _tag(secret: bytes, key: bytes) -> bytes:
    return hmac.digest(secret, b"return path\0" + key, "sha256")[:_TAG_BYTES]
