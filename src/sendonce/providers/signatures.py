"""Whether a provider's event is its own: documented signatures, over raw bytes. Pure.

    standard_webhook    Resend and others that follow Standard Webhooks: id, time and body
    sinch               Sinch: body, nonce and time
    twilio              Twilio: the URL and the form's fields; no time
    mailgun             Mailgun: a token and the time; *not* the event, which must come over HTTPS
    sendgrid            SendGrid: time and body, ECDSA on P-256
    sns                 Amazon SNS: the message's fields, RSA (the text that is signed is made in `sns`)
    vonage              Vonage: a JWT (HS256) that holds the body's hash and the time
    hmac_of_body        an API by configuration: the body, perhaps with a time
    shared_secret       Postmark and Notify sign nothing: a password or token that only they were told

Each returns nothing for what is right and raises `Forged` for everything else, so that a result which nobody
looks at lets nothing in. All active secrets are tried, and compared in constant time. What cannot be read is
no signature.

How old a signature may be: `AGE_MAX_S` where each try is signed anew. Where that is not documented, a try may
carry the first one's time, and would be refused when we were away for ten minutes; there it is as old as the
provider's last try may be (decision 0023). A replay within that time is the same event again, which changes
nothing.

Sources: github.com/standard-webhooks/standard-webhooks (specification);
docs.svix.com/receiving/verifying-payloads/how-manual; twilio.com/docs/usage/security;
documentation.mailgun.com user-manual/webhooks/securing-webhooks; developers.sinch.com/docs/sms (webhooks)
with github.com/sinch/sinch-sdk-python (authentication); twilio.com/docs/sendgrid/for-developers/
tracking-events/getting-started-event-webhook-security-features; docs.aws.amazon.com/sns/latest/dg/
sns-verify-signature-of-message; developer.vonage.com/messages/concepts/signed-webhooks with the Vonage blog
"Validating inbound messages from the Vonage Messages API"; postmarkapp.com/developer/webhooks/
webhooks-overview; docs.notifications.service.gov.uk (callbacks).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from sendonce.core.errors import ConfigError
from sendonce.ports.events import Forged
from sendonce.ports.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey as RSAPublicKey

AGE_MAX_S: Final = 300
SINCH_AGE_MAX_S: Final = 25 * 3_600  # the last try is 81,920 s after the first
MAILGUN_AGE_MAX_S: Final = 9 * 3_600  # tries go on for eight hours
SENDGRID_AGE_MAX_S: Final = 25 * 3_600  # ... for 24 hours
VONAGE_AGE_MAX_S: Final = 25 * 3_600  # ... for 24 hours


def standard_webhook(
    headers: Mapping[str, str], body: bytes, secrets: Iterable[Secret], *, now: int, prefix: str = "svix"
) -> None:
    """`headers` in lower case. `now`: microseconds UTC. `prefix`: `svix`, or `webhook` by the specification.

    A secret is base64 after `whsec_`. The header may hold several signatures, of which one must be right.
    """
    identity, timestamp = headers.get(f"{prefix}-id", ""), headers.get(f"{prefix}-timestamp", "")
    signed = f"{identity}.{timestamp}.".encode(errors="surrogatepass") + body
    given = [each.removeprefix("v1,") for each in headers.get(f"{prefix}-signature", "").split(" ")]
    keys = [_decoded(secret.reveal().removeprefix("whsec_")) for secret in secrets]
    _one_must_equal([_base64(key, signed, "sha256") for key in keys if key], given)
    if not identity:
        raise Forged("signature")
    _check_age(timestamp, now, AGE_MAX_S)


def sinch(headers: Mapping[str, str], body: bytes, secrets: Iterable[Secret], *, now: int) -> None:
    """`headers` in lower case. `now`: microseconds UTC."""
    name = "x-sinch-webhook-signature"
    nonce, timestamp = headers.get(f"{name}-nonce", ""), headers.get(f"{name}-timestamp", "")
    signed = body + f".{nonce}.{timestamp}".encode(errors="surrogatepass")
    keys = [secret.reveal().encode() for secret in secrets]
    _one_must_equal([_base64(key, signed, "sha256") for key in keys if key], [headers.get(name, "")])
    if not nonce:
        raise Forged("signature")
    _check_age(timestamp, now, SINCH_AGE_MAX_S)


def twilio(urls: Iterable[str], form: Mapping[str, str], signature: str, secrets: Iterable[Secret]) -> None:
    """`urls`: what Twilio may have called, with its query, of which one must be signed; `signature` from
    `X-Twilio-Signature`."""
    fields = "".join(name + form[name] for name in sorted(form))
    keys = [secret.reveal().encode() for secret in secrets]
    texts = [(url + fields).encode(errors="surrogatepass") for url in urls]
    _one_must_equal([_base64(key, text, "sha1") for key in keys if key for text in texts], [signature])


def mailgun(timestamp: str, token: str, signature: str, secrets: Iterable[Secret], *, now: int) -> None:
    """The fields of the event's `signature`. `now`: microseconds UTC. A token comes once: remember it."""
    signed = f"{timestamp}{token}".encode(errors="surrogatepass")
    keys = [secret.reveal().encode() for secret in secrets]
    _one_must_equal([hmac.new(key, signed, "sha256").hexdigest() for key in keys if key], [signature])
    if not token:
        raise Forged("signature")
    _check_age(timestamp, now, MAILGUN_AGE_MAX_S)


def sendgrid(
    headers: Mapping[str, str], body: bytes, keys: Sequence[EllipticCurvePublicKey], *, now: int
) -> None:
    """`headers` in lower case; `keys` by `p256_key`. `now`: microseconds UTC."""
    library = _library()
    name = "x-twilio-email-event-webhook"
    timestamp = headers.get(f"{name}-timestamp", "")
    signature = _decoded(headers.get(f"{name}-signature", ""))
    signed = timestamp.encode(errors="surrogatepass") + body
    for key in keys:
        try:
            key.verify(signature, signed, library.ec.ECDSA(library.hashes.SHA256()))
        except library.invalid:
            continue
        return _check_age(timestamp, now, SENDGRID_AGE_MAX_S)
    raise Forged("signature")


def sns(signed: bytes, signature: str, key: RSAPublicKey) -> None:
    """Version 2 (SHA-256) of SNS's signatures; version 1 is SHA-1, which nobody should rely on any more."""
    library = _library()
    try:
        key.verify(_decoded(signature), signed, library.padding.PKCS1v15(), library.hashes.SHA256())
    except library.invalid:
        raise Forged("signature") from None


def vonage(authorization: str, body: bytes, secrets: Iterable[Secret], *, now: int) -> None:
    """`authorization`: the header. `now`: microseconds UTC. The token must hold the hash of this body."""
    scheme, _, token = authorization.partition(" ")
    signed, _, signature = token.rpartition(".")
    keys = [secret.reveal().encode() for secret in secrets]
    text = signed.encode(errors="surrogatepass")
    wanted = [_base64url(hmac.digest(key, text, "sha256")) for key in keys if key]
    _one_must_equal(wanted, [signature])
    head, claims = (_json_part(part) for part in [*signed.split("."), "", ""][:2])
    if scheme.lower() != "bearer" or head.get("alg") != "HS256":
        raise Forged("signature")
    _one_must_equal([hashlib.sha256(body).hexdigest()], [str(claims.get("payload_hash", ""))])
    _check_age(str(claims.get("iat", "")), now, VONAGE_AGE_MAX_S)


def hmac_of_body(
    given: str, body: bytes, secrets: Iterable[Secret], *, timestamp: str | None, now: int
) -> None:
    """`given`: hexadecimal or base64, perhaps after `sha256=`. With a `timestamp`, whole seconds UTC, what is
    signed is the time, a dot and the body. `now`: microseconds UTC."""
    signed = body if timestamp is None else timestamp.encode(errors="surrogatepass") + b"." + body
    keys = [secret.reveal().encode() for secret in secrets]
    made = [hmac.digest(key, signed, "sha256") for key in keys if key]
    wanted = [form for digest in made for form in (digest.hex(), base64.b64encode(digest).decode("ascii"))]
    _one_must_equal(wanted, [given.removeprefix("sha256=")])
    if timestamp is not None:
        _check_age(timestamp, now, AGE_MAX_S)


def shared_secret(authorization: str, secrets: Iterable[Secret]) -> None:
    """`authorization`: the header, as `Bearer SECRET`, or Basic with the secret as password of any user."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":
        given = _decoded(given).decode("utf-8", "replace").partition(":")[2]
    elif scheme.lower() != "bearer":
        raise Forged("secret")
    _one_must_equal([secret.reveal() for secret in secrets if secret], [given], why="secret")


# Keys


def p256_key(text: str) -> EllipticCurvePublicKey:
    """A public key on P-256 as base64 of its DER. Raises ValueError, or `ConfigError` without the library."""
    library = _library()
    key: Any
    try:
        key = library.serialization.load_der_public_key(base64.b64decode(text, validate=True))
    except (ValueError, library.unsupported):
        key = None
    if not isinstance(key, library.ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise ValueError("not a public key on P-256 in base64")
    return cast("EllipticCurvePublicKey", key)


def certificate_key(pem: bytes) -> RSAPublicKey:
    """The RSA key of a certificate. Raises ValueError, or `ConfigError` without the library."""
    library = _library()
    key: Any
    try:
        key = library.x509.load_pem_x509_certificate(pem).public_key()
    except library.unsupported:
        key = None
    if not isinstance(key, library.rsa.RSAPublicKey):
        raise ValueError("no certificate with an RSA key")
    return cast("RSAPublicKey", key)


def need_library() -> None:
    """Raises `ConfigError` where public keys cannot be used, so that it is told at the start."""
    _library()


class _Library:
    """What is used of it. It is an optional one, and loaded when a key is used."""

    def __init__(self) -> None:
        from cryptography import exceptions, x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

        self.ec: Any = ec
        self.hashes: Any = hashes
        self.padding: Any = padding
        self.rsa: Any = rsa
        self.serialization: Any = serialization
        self.x509: Any = x509
        self.invalid = exceptions.InvalidSignature
        self.unsupported = exceptions.UnsupportedAlgorithm


@cache
def _library() -> _Library:
    try:
        return _Library()
    except ImportError:
        raise ConfigError(
            "events of SendGrid and Amazon SES need the library cryptography: pip install 'sendonce[events]'"
        ) from None


# What they share


def _base64(key: bytes, signed: bytes, digest: str) -> str:
    return base64.b64encode(hmac.digest(key, signed, digest)).decode("ascii")


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decoded(text: str) -> bytes:
    """The bytes of a base64 text that is written in the only right way; else none."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    # Spare bits of the last character would let one signature be written in several ways.
    return data if base64.b64encode(data).decode("ascii") == text else b""


def _json_part(text: str) -> dict[str, Any]:
    """A part of a JSON Web Token; empty where it is none."""
    try:
        value = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _one_must_equal(wanted: Sequence[str], given: Sequence[str], *, why: str = "signature") -> None:
    """Raises `Forged` unless one of ours is one of theirs. All are compared, so that time tells nothing."""
    pairs = [(_bytes(ours), _bytes(theirs)) for ours in wanted for theirs in given]
    if sum(hmac.compare_digest(*pair) for pair in pairs) == 0:
        raise Forged(why)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _check_age(timestamp: str, now: int, age_max_s: int) -> None:
    """Whole seconds UTC, within the age that is believed, and ahead of us only as far as clocks are."""
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
        raise Forged("age")
    if not -AGE_MAX_S <= now // 1_000_000 - int(timestamp) <= age_max_s:
        raise Forged("age")
