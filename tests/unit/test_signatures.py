"""Signatures of events: the published examples are right, and everything near them is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from sendonce.ports.events import Forged
from sendonce.ports.secret import Secret
from sendonce.providers import signatures
from sendonce.providers.signatures import AGE_MAX_S, MAILGUN_AGE_MAX_S, SINCH_AGE_MAX_S

SECOND = 1_000_000

# docs.svix.com/receiving/verifying-payloads/how-manual
SVIX_SECRET = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
SVIX_BODY = b'{"test": 2432232314}'
SVIX_AT = 1_614_265_330
SVIX = {
    "svix-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "svix-timestamp": str(SVIX_AT),
    "svix-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}

# github.com/twilio/twilio-python, tests of the request validator
TWILIO_URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
TWILIO_FORM = {
    "CallSid": "CA1234567890ABCDE",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
    "Caller": "+14158675309",
}
TWILIO_SIGNATURE = "RSOYDt4T1cUTdK1PDd93/VVr8B8="


def holds(check: Callable[[], None]) -> bool:
    try:
        check()
    except Forged:
        return False
    return True


def standard_webhook(
    headers: dict[str, str], body: bytes, secrets: list[Secret], *, now: int, prefix: str = "svix"
) -> bool:
    return holds(lambda: signatures.standard_webhook(headers, body, secrets, now=now, prefix=prefix))


def sinch(headers: dict[str, str], body: bytes, secrets: list[Secret], *, now: int) -> bool:
    return holds(lambda: signatures.sinch(headers, body, secrets, now=now))


def twilio(url: str, form: dict[str, str], signature: str, secrets: list[Secret]) -> bool:
    return holds(lambda: signatures.twilio(["https://other.example.com", url], form, signature, secrets))


def mailgun(timestamp: str, token: str, signature: str, secrets: list[Secret], *, now: int) -> bool:
    return holds(lambda: signatures.mailgun(timestamp, token, signature, secrets, now=now))


def webhook(headers: dict[str, str], body: bytes = SVIX_BODY, at: int = SVIX_AT, *more: Secret) -> bool:
    return standard_webhook(headers, body, [*more, SVIX_SECRET], now=at * SECOND)


def test_the_published_standard_webhook() -> None:
    assert webhook(SVIX)
    assert webhook({**SVIX, "svix-signature": f"v1,AAAA {SVIX['svix-signature']}"}), "one of several"
    assert webhook(SVIX, SVIX_BODY, SVIX_AT, Secret("whsec_AAAA")), "one of several secrets"
    assert standard_webhook(
        {name.replace("svix", "webhook"): value for name, value in SVIX.items()},
        SVIX_BODY,
        [SVIX_SECRET],
        now=SVIX_AT * SECOND,
        prefix="webhook",
    )


@pytest.mark.parametrize("name", SVIX)
def test_a_standard_webhook_that_was_changed(name: str) -> None:
    assert not webhook({**SVIX, name: ""})
    assert not webhook({**SVIX, name: SVIX[name][:-2] + "0="})
    assert not webhook({key: value for key, value in SVIX.items() if key != name})
    assert not webhook(SVIX, SVIX_BODY + b" ")
    assert not standard_webhook(SVIX, SVIX_BODY, [], now=SVIX_AT * SECOND)
    assert not standard_webhook(SVIX, SVIX_BODY, [Secret("whsec_*")], now=SVIX_AT * SECOND)


@pytest.mark.parametrize(
    ("off_s", "believed"),
    [(0, True), (AGE_MAX_S, True), (-AGE_MAX_S, True), (AGE_MAX_S + 1, False), (-AGE_MAX_S - 1, False)],
)
def test_an_old_event_is_not_played_again(off_s: int, believed: bool) -> None:
    assert webhook(SVIX, SVIX_BODY, SVIX_AT + off_s) is believed


def test_the_published_signature_of_twilio() -> None:
    secrets = [Secret("old"), Secret("12345")]
    assert twilio(TWILIO_URL, TWILIO_FORM, TWILIO_SIGNATURE, secrets)
    assert not twilio(TWILIO_URL + "&x=1", TWILIO_FORM, TWILIO_SIGNATURE, secrets)
    assert not twilio(TWILIO_URL, {**TWILIO_FORM, "Digits": "1235"}, TWILIO_SIGNATURE, secrets)
    assert not twilio(TWILIO_URL, TWILIO_FORM, TWILIO_SIGNATURE, [Secret("old")])
    assert not twilio(TWILIO_URL, TWILIO_FORM, "", secrets)


def test_mailgun_signs_its_token_and_the_time() -> None:
    token, at = "e0b5477167110d68991efc6b9f89f0a11066af27834600e123", 1_770_920_772
    signature = hmac.new(b"key", f"{at}{token}".encode(), hashlib.sha256).hexdigest()
    secrets = [Secret("key")]
    assert mailgun(str(at), token, signature, secrets, now=at * SECOND)
    assert not mailgun(str(at), token[:-1], signature, secrets, now=at * SECOND)
    assert not mailgun(str(at + 1), token, signature, secrets, now=at * SECOND)
    assert not mailgun(str(at), token, signature, [Secret("other")], now=at * SECOND)
    assert not mailgun(str(at), token, signature, secrets, now=(at + MAILGUN_AGE_MAX_S + 1) * SECOND)
    assert mailgun(str(at), token, signature, secrets, now=(at + MAILGUN_AGE_MAX_S) * SECOND)
    assert not mailgun("", "", signature, secrets, now=at * SECOND)


def test_sinch_signs_body_nonce_and_time() -> None:
    body, nonce, at = b'{"type": "delivery_report_sms"}', "01FC66621", 1_770_920_772
    signed = body + f".{nonce}.{at}".encode()
    name = "x-sinch-webhook-signature"
    headers = {
        name: base64.b64encode(hmac.new(b"key", signed, hashlib.sha256).digest()).decode(),
        f"{name}-nonce": nonce,
        f"{name}-timestamp": str(at),
    }
    secrets = [Secret("key")]
    assert sinch(headers, body, secrets, now=at * SECOND)
    assert not sinch(headers, body + b" ", secrets, now=at * SECOND)
    assert not sinch({**headers, f"{name}-nonce": "x"}, body, secrets, now=at * SECOND)
    assert not sinch(headers, body, secrets, now=(at - AGE_MAX_S - 1) * SECOND)
    assert sinch(headers, body, secrets, now=(at + SINCH_AGE_MAX_S) * SECOND)
    assert not sinch(headers, body, secrets, now=(at + SINCH_AGE_MAX_S + 1) * SECOND)
    assert not sinch({}, body, secrets, now=at * SECOND)


@given(
    headers=st.dictionaries(
        st.sampled_from([*SVIX, "x-sinch-webhook-signature", "x-sinch-webhook-signature-nonce"])
        | st.just("x-sinch-webhook-signature-timestamp"),
        st.text(max_size=40) | st.just(str(SVIX_AT)),
    ),
    body=st.binary(max_size=40),
)
def test_nothing_that_is_made_up_is_believed_or_raises(headers: dict[str, str], body: bytes) -> None:
    assert not standard_webhook(headers, body, [SVIX_SECRET], now=SVIX_AT * SECOND)
    assert not sinch(headers, body, [SVIX_SECRET], now=SVIX_AT * SECOND)
    signature = headers.get("svix-signature", "")
    assert not twilio("https://us.example.com/", headers, signature, [SVIX_SECRET])
    assert not mailgun(str(SVIX_AT), "token", signature, [SVIX_SECRET], now=SVIX_AT * SECOND)


def test_a_signature_is_written_in_one_way_only() -> None:
    """The last character of a base64 text may have spare bits, by which one signature had several forms."""
    at, body, key = 1_770_920_772, b"[]", ec.generate_private_key(ec.SECP256R1())
    der = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    public = [signatures.p256_key(base64.b64encode(der).decode())]

    def is_theirs(signature: str) -> bool:
        name = "x-twilio-email-event-webhook"
        headers = {f"{name}-signature": signature, f"{name}-timestamp": str(at)}
        return holds(lambda: signatures.sendgrid(headers, body, public, now=at * SECOND))

    signature = b""
    while len(signature) % 3 == 0:  # the length of the DER varies
        signature = key.sign(f"{at}".encode() + body, ec.ECDSA(hashes.SHA256()))
    text = base64.b64encode(signature).decode()
    last = len(text.rstrip("=")) - 1
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    spare = alphabet[alphabet.index(text[last]) ^ 1]
    other = text[:last] + spare + text[last + 1 :]
    assert base64.b64decode(other) == signature, "the same bytes"
    assert is_theirs(text)
    for changed in (other, text + "\n", text.rstrip("="), f" {text}"):
        assert not is_theirs(changed)


@pytest.mark.parametrize("head", [{"alg": "none"}, {"alg": "HS512"}, {"alg": "RS256"}, {}, [], "HS256"])
def test_a_token_of_another_kind_is_none(head: object) -> None:
    at, body = 1_770_920_772, b"{}"

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    def is_theirs(head: object, **claims: object) -> bool:
        whole = {"iat": at, "payload_hash": hashlib.sha256(body).hexdigest(), **claims}
        signed = f"{part(head)}.{part(whole)}"
        digest = hmac.digest(b"key", signed.encode(), "sha256")
        token = f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        return holds(lambda: signatures.vonage(f"Bearer {token}", body, [Secret("key")], now=at * SECOND))

    assert is_theirs({"alg": "HS256", "typ": "JWT"})
    assert not is_theirs(head)
    for claims in ({"payload_hash": ""}, {"payload_hash": None}, {"iat": "soon"}, {"iat": at - 90_001}):
        assert not is_theirs({"alg": "HS256"}, **claims)


def test_nothing_is_signed_with_an_empty_secret() -> None:
    empty, at = [Secret("")], 1_770_920_772
    hexdigest = hmac.new(b"", f"{at}t".encode(), hashlib.sha256).hexdigest()
    assert not mailgun(str(at), "t", hexdigest, empty, now=at * SECOND)
    assert not holds(lambda: signatures.shared_secret("Bearer ", empty))
    digest = base64.b64encode(hmac.digest(b"", b"https://us.example.com/", "sha1")).decode()
    assert not twilio("https://us.example.com/", {}, digest, empty)
    body = hmac.new(b"", b"{}", hashlib.sha256).hexdigest()
    assert not holds(lambda: signatures.hmac_of_body(body, b"{}", empty, timestamp=None, now=0))


@pytest.mark.parametrize(
    ("header", "theirs"),
    [
        ("Bearer s:ecret", True),
        ("bearer s:ecret", True),
        ("Basic " + base64.b64encode(b"anybody:s:ecret").decode(), True),
        ("Basic " + base64.b64encode(b":s:ecret").decode(), True),
        ("Basic " + base64.b64encode(b"s:ecret").decode(), False),
        ("Basic " + base64.b64encode(b"anybody:secret").decode(), False),
        ("Basic s:ecret", False),
        ("Digest s:ecret", False),
        ("s:ecret", False),
        ("Bearer", False),
        ("Bearer  s:ecret", False),
        ("Bearer \ud800", False),
        ("", False),
    ],
)
def test_a_secret_that_is_told(header: str, theirs: bool) -> None:
    assert holds(lambda: signatures.shared_secret(header, [Secret("old"), Secret("s:ecret")])) is theirs
