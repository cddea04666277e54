"""What vendors call back with, in the shapes that they document, and signed as they sign.

    write("sinch", Told(...), secret) -> body and headers

Written apart from the adapters that verify and read them, so that a test of one by the other says something.
One secret serves all: as key of an HMAC, as password or token, and SendGrid's private key is derived from it
(`sendgrid_public_key`). Amazon SES is not here: an emulator of SNS signs for it in the tests.

Sources: those that the adapters' `*_events` modules name.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

Headers = dict[str, str]
JSON: Final = {"Content-Type": "application/json"}


class Told(NamedTuple):
    """One thing that is said later.

    kind        delivered, bounced, complained, suppressed, or stopped: the customer answers STOP
    number      of the event, in this sandbox
    at          when it happened, and
    signed_at   when this call of it is signed; microseconds UTC
    reference   our own, as the vendor was given it
    faulty      beside an item that nobody can read; for those who call with several
    """

    kind: str
    number: int
    at: int
    receipt: str
    reference: str
    to: str
    sender: str
    account: str = ""
    faulty: bool = False
    signed_at: int = 0

    @property
    def iso(self) -> str:
        return datetime.fromtimestamp(self.at / 1_000_000, UTC).isoformat(timespec="milliseconds")

    @property
    def seconds(self) -> str:
        """Of the call, as signatures want it."""
        return str((self.signed_at or self.at) // 1_000_000)


def write(vendor: str, told: Told, secret: str, url: str = "") -> tuple[bytes, Headers]:
    """Body and headers of the call. `url`: where it goes, which some sign."""
    shape, sign = VENDORS[vendor]
    return sign(shape(told), told, secret, url)


def twilio_signature(auth_token: str, url: str, form: Mapping[str, str]) -> str:
    """Twilio's request signature: base64 of HMAC-SHA1 over the URL and the sorted names and values."""
    signed = url + "".join(name + form[name] for name in sorted(form))
    return base64.b64encode(hmac.digest(auth_token.encode(), signed.encode(), hashlib.sha1)).decode()


def standard_signature(secret: str, identity: str, timestamp: str, body: bytes) -> str:
    """Standard Webhooks, symmetric: HMAC-SHA256 over id, timestamp and body, joined by dots.

    The secret's bytes are used as they are, or decoded from base64 after the prefix `whsec_`.
    """
    prefix = "whsec_"
    coded = secret.startswith(prefix)
    key = base64.b64decode(secret.removeprefix(prefix)) if coded else secret.encode()
    signed = b".".join((identity.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def sendgrid_public_key(secret: str) -> str:
    """What `event_public_keys` must hold for this secret: base64 of the DER."""
    from cryptography.hazmat.primitives import serialization

    public = _sendgrid_key(secret).public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


# The ways to sign: body (or form), what is told, secret, URL -> body and headers


def by_standard_webhook(item: Any, told: Told, secret: str, url: str) -> tuple[bytes, Headers]:
    body, identity = _json(item), f"msg_{told.number:06d}"
    signature = standard_signature(secret, identity, told.seconds, body)
    return body, {
        **JSON,
        "svix-id": identity,
        "svix-timestamp": told.seconds,
        "svix-signature": signature,
    }


def by_sinch(item: Any, told: Told, secret: str, url: str) -> tuple[bytes, Headers]:
    body, nonce = _json(item), f"nonce{told.number:06d}"
    signed = body + f".{nonce}.{told.seconds}".encode()
    name = "x-sinch-webhook-signature"
    return body, {
        **JSON,
        name: base64.b64encode(hmac.digest(secret.encode(), signed, "sha256")).decode(),
        f"{name}-nonce": nonce,
        f"{name}-timestamp": told.seconds,
        f"{name}-algorithm": "HmacSHA256",
    }


def by_sendgrid(item: Any, told: Told, secret: str, url: str) -> tuple[bytes, Headers]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    body = _json(item)
    signature = _sendgrid_key(secret).sign(told.seconds.encode() + body, ec.ECDSA(hashes.SHA256()))
    name = "X-Twilio-Email-Event-Webhook"
    return body, {
        **JSON,
        f"{name}-Signature": base64.b64encode(signature).decode(),
        f"{name}-Timestamp": told.seconds,
    }


def by_mailgun(item: Any, told: Told, secret: str, url: str) -> tuple[bytes, Headers]:
    token = hashlib.sha256(f"token {told.number}".encode()).hexdigest()[:50]
    signature = hmac.new(secret.encode(), (told.seconds + token).encode(), "sha256").hexdigest()
    signed = {"timestamp": told.seconds, "token": token, "signature": signature}
    return _json({"signature": signed, **item}), dict(JSON)


def by_vonage(item: Any, told: Told, secret: str, url: str) -> tuple[bytes, Headers]:
    body = _json(item)
    claims = {
        "iat": int(told.seconds),
        "jti": f"{told.number:032x}",
        "iss": "Vonage",
        "payload_hash": hashlib.sha256(body).hexdigest(),
        "api_key": "abcd1234",
    }
    signed = ".".join(_part(_json(each)) for each in ({"alg": "HS256", "typ": "JWT"}, claims))
    token = f"{signed}.{_part(hmac.digest(secret.encode(), signed.encode(), 'sha256'))}"
    return body, {**JSON, "Authorization": f"Bearer {token}"}


def by_password(item: Any, told: Told, secret: str, url: str) -> tuple[bytes, Headers]:
    login = base64.b64encode(f"sendonce:{secret}".encode()).decode()
    return _json(item), {**JSON, "Authorization": f"Basic {login}"}


def by_token(item: Any, told: Told, secret: str, url: str) -> tuple[bytes, Headers]:
    return _json(item), {**JSON, "Authorization": f"Bearer {secret}"}


def by_twilio(item: Any, told: Told, secret: str, url: str) -> tuple[bytes, Headers]:
    return urlencode(item).encode(), {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Twilio-Signature": twilio_signature(secret, url, item),
        "I-Twilio-Idempotency-Token": f"sandbox-{told.number}",
    }


# The shapes


def resend(told: Told) -> Any:
    word = {"stopped": "received"}.get(told.kind, told.kind)
    data: dict[str, Any] = {
        "email_id": told.receipt,
        "created_at": told.iso,
        "from": told.sender,
        "to": [told.to],
        "subject": "Reminder",
        "tags": {"sendonce": told.reference},
    }
    if told.kind == "bounced":
        data["bounce"] = {
            "type": "Permanent",
            "subType": "General",
            "message": "The mailbox does not exist.",
            "diagnosticCode": ["smtp; 550 5.1.1 user unknown"],
        }
    if told.kind == "suppressed":
        data["suppressed"] = {
            "type": "OnAccountSuppressionList",
            "reason": "previous_bounce",
            "message": "The address is on the list.",
            "diagnosticCode": [],
        }
    return {"type": f"email.{word}", "created_at": told.iso, "data": data}


def postmark(told: Told) -> Any:
    common = {
        "MessageID": told.receipt,
        "MessageStream": "outbound",
        "ServerID": 23,
        "Metadata": {"sendonce": told.reference.partition("=")[2]},
    }
    match told.kind:
        case "delivered":
            return {**common, "RecordType": "Delivery", "Recipient": told.to, "DeliveredAt": told.iso}
        case "complained":
            kind = {"RecordType": "SpamComplaint", "Type": "SpamComplaint", "TypeCode": 512}
        case "suppressed":
            kind = {"RecordType": "Bounce", "Type": "ManuallyDeactivated", "TypeCode": 100_008}
        case _:
            kind = {"RecordType": "Bounce", "Type": "HardBounce", "TypeCode": 1}
    return {**common, **kind, "ID": told.number, "Email": told.to, "BouncedAt": told.iso}


def sendgrid(told: Told) -> Any:
    words = {
        "bounced": {"event": "bounce", "type": "bounce", "reason": "550 5.1.1 unknown", "status": "5.1.1"},
        "complained": {"event": "spamreport"},
        "suppressed": {"event": "dropped", "reason": "Bounced Address"},
    }
    event = {
        "event": "delivered",
        **words.get(told.kind, {}),
        "email": told.to,
        "timestamp": told.at // 1_000_000,
        "sg_event_id": f"sg_event_{told.number:06d}",
        "sg_message_id": f"{told.receipt}.recvd-7d5dbc5f9b-x2x9w-1-64F1D6A2-5.0",
        "sendonce": told.reference,
    }
    return [{"event": "delivered", "email": 7}, event] if told.faulty else [event]


def mailgun(told: Told) -> Any:
    words: dict[str, dict[str, Any]] = {
        "bounced": {
            "event": "failed",
            "severity": "permanent",
            "reason": "bounce",
            "delivery-status": {"code": 550, "bounce-type": "hard"},
        },
        "suppressed": {"event": "failed", "severity": "permanent", "reason": "suppress-bounce"},
        "complained": {"event": "complained"},
    }
    return {
        "event-data": {
            "event": "delivered",
            **words.get(told.kind, {}),
            "id": f"event{told.number}",
            "timestamp": told.at / 1_000_000,
            "recipient": told.to,
            "message": {"headers": {"message-id": told.receipt.strip("<>"), "to": told.to}},
            "user-variables": {"sendonce": told.reference},
        }
    }


def sinch(told: Told) -> Any:
    if told.kind == "stopped":
        return {
            "type": "mo_text",
            "id": f"01MO{told.number:022d}",
            "from": told.to.removeprefix("+"),
            "to": told.sender,
            "body": "STOP",
            "received_at": told.iso,
            "operator_id": "311071",
        }
    failed = told.kind != "delivered"
    return {
        "type": "recipient_delivery_report_sms",
        "batch_id": told.receipt,
        "recipient": told.to.removeprefix("+"),
        "code": 403 if failed else 0,
        "status": "Failed" if failed else "Delivered",
        "at": told.iso,
        "client_reference": told.reference,
    }


def vonage(told: Told) -> Any:
    common = {"message_uuid": told.receipt, "channel": "sms", "timestamp": told.iso}
    if told.kind == "stopped":
        uuid = f"bbbbbbbb-bbbb-cccc-dddd-{told.number:012x}"
        people = {"from": told.to.removeprefix("+"), "to": told.sender}
        return {**common, "message_uuid": uuid, **people, "message_type": "text", "text": "STOP"}
    status: dict[str, Any] = {"status": "delivered"}
    if told.kind != "delivered":
        kind = "https://developer.vonage.com/api-errors/messages#1260"
        status = {"status": "undeliverable", "error": {"type": kind, "title": 1260, "instance": "x"}}
    people = {"to": told.to.removeprefix("+"), "from": told.sender}
    return {**common, **people, **status, "client_ref": told.reference}


def notify(told: Told, kind: str = "sms") -> Any:
    if told.kind == "stopped":
        return {
            "id": f"aaaaaaaa-3a29-46b4-9a6f-{told.number:012x}",
            "source_number": told.to.removeprefix("+"),
            "destination_number": "07700900100",
            "message": "STOP",
            "date_received": told.iso,
        }
    return {
        "id": told.receipt,
        "reference": told.reference,
        "to": told.to,
        "status": "delivered" if told.kind in ("delivered", "complained") else "permanent-failure",
        "created_at": told.iso,
        "sent_at": told.iso,
        "completed_at": told.iso,
        "notification_type": kind,
        "template_id": "26785a09-ab16-4eb0-8407-a37497a57506",
        "template_version": 1,
    }


def notify_email(told: Told) -> Any:
    return notify(told, "email")


def twilio(told: Told) -> Any:
    common = {"AccountSid": told.account, "ApiVersion": "2010-04-01"}
    if told.kind == "stopped":
        sid = f"SM{told.number:032x}"
        text = {"From": told.to, "To": told.sender, "Body": "STOP", "OptOutType": "STOP", "NumMedia": "0"}
        return {**common, "MessageSid": sid, "SmsSid": sid, "SmsStatus": "received", **text}
    status = "delivered" if told.kind == "delivered" else "undelivered"
    form = {
        **common,
        "From": told.sender,
        "MessageSid": told.receipt,
        "MessageStatus": status,
        "SmsSid": told.receipt,
        "SmsStatus": status,
        "To": told.to,
    }
    return form if status == "delivered" else {**form, "ErrorCode": TWILIO_UNREACHABLE}


TWILIO_UNREACHABLE: Final = "30003"

Shape = Callable[[Told], Any]
Sign = Callable[[Any, Told, str, str], tuple[bytes, Headers]]
VENDORS: Final[Mapping[str, tuple[Shape, Sign]]] = {
    "resend": (resend, by_standard_webhook),
    "postmark": (postmark, by_password),
    "sendgrid": (sendgrid, by_sendgrid),
    "mailgun": (mailgun, by_mailgun),
    "sinch": (sinch, by_sinch),
    "vonage": (vonage, by_vonage),
    "notify": (notify, by_token),
    "notify-email": (notify_email, by_token),
    "twilio": (twilio, by_twilio),
}


def _json(value: Any) -> bytes:
    """Bytes stay as they are, for who wants to sign something else."""
    return value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _sendgrid_key(secret: str) -> Any:
    """A private key on P-256 that this secret always gives."""
    from cryptography.hazmat.primitives.asymmetric import ec

    number = int.from_bytes(hashlib.sha512(secret.encode()).digest()) % (_P256_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())


_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # FIPS 186-4, D.1.2.3
