"""Whether a provider's event is its own: documented signatures, over raw bytes. Pure; nothing calls them yet.

    standard_webhook    Resend and others that follow Standard Webhooks: id, time and body
    sinch               Sinch: body, nonce and time
    twilio              Twilio: the URL and the form's fields; no time
    mailgun             Mailgun: a token and the time; *not* the event, which must come over HTTPS

All active secrets are tried, compared in constant time. A signature older or newer than `AGE_MAX_S` is
refused, so that a recorded event cannot be played again later. What cannot be read is no signature. Vonage's
tokens, SendGrid's ECDSA and Amazon SNS's RSA are not here; Postmark and Notify sign nothing.

Sources: github.com/standard-webhooks/standard-webhooks (specification);
docs.svix.com/receiving/verifying-payloads/how-manual; twilio.com/docs/usage/security;
documentation.mailgun.com user-manual/webhooks/securing-webhooks; developers.sinch.com/docs/sms (webhooks)
with github.com/sinch/sinch-sdk-python (authentication).
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping

from sendonce.ports.secret import Secret

AGE_MAX_S = 300


def standard_webhook(
    headers: Mapping[str, str], body: bytes, secrets: Iterable[Secret], *, now: int, prefix: str = "svix"
) -> bool:
    """`headers` in lower case. `now`: microseconds UTC. `prefix`: `svix`, or `webhook` by the specification.

    A secret is base64 after `whsec_`. The header may hold several signatures, of which one must be right.
    """
    identity, timestamp = headers.get(f"{prefix}-id", ""), headers.get(f"{prefix}-timestamp", "")
    if not identity or not _is_now(timestamp, now):
        return False
    signed = f"{identity}.{timestamp}.".encode() + body
    given = [each.removeprefix("v1,") for each in headers.get(f"{prefix}-signature", "").split(" ")]
    keys = [_decoded(secret.reveal().removeprefix("whsec_")) for secret in secrets]
    return _any_equal([_base64(key, signed, "sha256") for key in keys if key], given)


def sinch(headers: Mapping[str, str], body: bytes, secrets: Iterable[Secret], *, now: int) -> bool:
    """`headers` in lower case. `now`: microseconds UTC."""
    name = "x-sinch-webhook-signature"
    nonce, timestamp = headers.get(f"{name}-nonce", ""), headers.get(f"{name}-timestamp", "")
    if not nonce or not _is_now(timestamp, now):
        return False
    signed = body + f".{nonce}.{timestamp}".encode()
    return _any_equal(
        [_base64(secret.reveal().encode(), signed, "sha256") for secret in secrets], [headers.get(name, "")]
    )


def twilio(url: str, form: Mapping[str, str], signature: str, secrets: Iterable[Secret]) -> bool:
    """`url` as Twilio called it, with its query; `signature` from `X-Twilio-Signature`."""
    signed = (url + "".join(name + form[name] for name in sorted(form))).encode()
    return _any_equal([_base64(secret.reveal().encode(), signed, "sha1") for secret in secrets], [signature])


def mailgun(timestamp: str, token: str, signature: str, secrets: Iterable[Secret], *, now: int) -> bool:
    """The fields of the event's `signature`. `now`: microseconds UTC. A token comes once: remember it."""
    if not token or not _is_now(timestamp, now):
        return False
    signed = f"{timestamp}{token}".encode()
    return _any_equal(
        [hmac.new(secret.reveal().encode(), signed, "sha256").hexdigest() for secret in secrets], [signature]
    )


def _base64(key: bytes, signed: bytes, digest: str) -> str:
    return base64.b64encode(hmac.digest(key, signed, digest)).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _any_equal(wanted: list[str], given: list[str]) -> bool:
    """Whether one of ours is one of theirs. Every pair is compared, so that time tells nothing."""
    pairs = [(ours.encode(), theirs.encode()) for ours in wanted for theirs in given]
    return sum(hmac.compare_digest(*pair) for pair in pairs) > 0


def _is_now(timestamp: str, now: int) -> bool:
    """Whether whole seconds UTC are within the age that is believed."""
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
        return False
    return abs(int(timestamp) - now // 1_000_000) <= AGE_MAX_S
