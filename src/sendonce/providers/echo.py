"""Our signed id in a callback URL, so that a provider's later events name the send they belong to.

    https://us.example.com/v1/events/sms?k=SEND_KEY&s=SIGNATURE

Providers without a field for our reference still call the URL that a message was sent with. The send
key in it holds no personal data, and the signature (HMAC-SHA-256 under the account's callback secret)
keeps strangers from inventing events for it. The same message always gives the same URL.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from urllib.parse import parse_qs, urlsplit

from sendonce.ports.secret import Secret


def callback_url(base: str, send_key: str, secret: Secret) -> str:
    """`base` with the send key and its signature added to its query."""
    joint = "&" if urlsplit(base).query else "?"
    return f"{base}{joint}k={send_key}&s={_signature(send_key, secret)}"


def verify_callback(url: str, secret: Secret) -> str | None:
    """The send key that a callback URL (or its path and query) carries; None where it is not ours."""
    query = parse_qs(urlsplit(url).query)
    keys, signatures = query.get("k", []), query.get("s", [])
    if len(keys) != 1 or len(signatures) != 1 or not _SEND_KEY.fullmatch(keys[0]):
        return None
    expected = _signature(keys[0], secret)
    return keys[0] if hmac.compare_digest(expected.encode(), signatures[0].encode()) else None


def _signature(send_key: str, secret: Secret) -> str:
    key = secret.reveal().encode()
    return hmac.new(key, b"sendonce callback " + send_key.encode(), hashlib.sha256).hexdigest()[:32]


_SEND_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
