"""The event contract on every vendor's source. They are signed here by the sandbox's own way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, EventSource, NotNow
from sendonce.ports.secret import Secret
from sendonce.providers import signatures
from sendonce.providers.echo import callback_url
from sendonce.providers.http import HttpSettings, http_events
from sendonce.providers.http_events import HttpEvents, Signed
from sendonce.providers.mailgun import MailgunSettings
from sendonce.providers.mailgun_events import mailgun_events
from sendonce.providers.notify import NotifySettings
from sendonce.providers.notify_events import notify_events
from sendonce.providers.postmark import PostmarkSettings
from sendonce.providers.postmark_events import postmark_events
from sendonce.providers.resend import ResendSettings
from sendonce.providers.resend_events import resend_events
from sendonce.providers.sendgrid import SendgridSettings
from sendonce.providers.sendgrid_events import sendgrid_events
from sendonce.providers.ses import SesSettings
from sendonce.providers.ses_events import SesEvents, ses_events
from sendonce.providers.sinch import SinchSettings
from sendonce.providers.sinch_events import sinch_events
from sendonce.providers.twilio import TwilioSettings
from sendonce.providers.twilio_events import twilio_events
from sendonce.providers.vonage import VonageSettings
from sendonce.providers.vonage_events import vonage_events
from sendonce.testing.conformance.event_source import (
    FORGER,
    NOW,
    SECRET,
    SPOILT,
    BatchContract,
    EventContract,
    SignedBodyContract,
    TimedContract,
    check_storable,
    without,
)
from sendonce.testing.sandbox.callbacks import VENDORS, Told, sendgrid_public_key, standard_signature

KEY = "5e" * 32
RECEIPT = "49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"
SID = "AC" + "0" * 32
PUBLIC = "https://us.example.com/v1/events/sms"
ECHO = Secret("our own")


def told(**changes: Any) -> Told:
    about = Told("delivered", 7, NOW, RECEIPT, KEY, "ann@example.com", "shop@example.org", SID)
    return about._replace(**changes)


def secrets_of(given: tuple[str, ...]) -> tuple[Secret, ...]:
    return tuple(Secret(each) for each in given)


class Vendor(EventContract):
    """A vendor by its name in the sandbox, and what is told there."""

    vendor: ClassVar[str]
    about: ClassVar[Told] = told()
    url: ClassVar[str] = PUBLIC

    def example(self) -> bytes:
        return json.dumps(VENDORS[self.vendor][0](self.about)).encode()

    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        body, headers = VENDORS[self.vendor][1](body, self.about._replace(signed_at=at), secret, self.url)
        return EventRequest("POST", self.url, {name.lower(): text for name, text in headers.items()}, body)


def delivered(identity: str, **changes: Any) -> ProviderEvent:
    event = ProviderEvent(
        identity,
        EventKind.DELIVERED,
        receipt=RECEIPT,
        send_key=KEY,
        address="ann@example.com",
        occurred_at=NOW,
        code="delivered",
    )
    return replace(event, **changes)


class TestResend(Vendor, SignedBodyContract, TimedContract):
    vendor = "resend"
    signed_headers = ("svix-id", "svix-timestamp", "svix-signature")
    age_max_s = 300
    wanted = delivered("msg_000007", code="email.delivered")

    def source(self, *secrets: str) -> EventSource | None:
        return resend_events(ResendSettings(api_key=Secret("re_x"), event_secrets=secrets_of(secrets)))


class TestPostmark(Vendor):
    vendor = "postmark"
    about = told(reference=f"metadata_sendonce={KEY}")
    wanted = delivered("", code="Delivery")

    def source(self, *secrets: str) -> EventSource | None:
        return postmark_events(PostmarkSettings(server_token=Secret("x"), event_secrets=secrets_of(secrets)))


class TestSendgrid(Vendor, SignedBodyContract, TimedContract, BatchContract):
    vendor = "sendgrid"
    signed_headers = ("x-twilio-email-event-webhook-signature", "x-twilio-email-event-webhook-timestamp")
    age_max_s = signatures.SENDGRID_AGE_MAX_S
    wanted = delivered("sg_event_000007")

    def source(self, *secrets: str) -> EventSource | None:
        keys = tuple(sendgrid_public_key(each) for each in secrets)
        return sendgrid_events(SendgridSettings(api_key=Secret("SG.x"), event_public_keys=keys))

    def with_bad_ones(self) -> bytes:
        return json.dumps([None, *json.loads(self.example()), {"event": "delivered"}]).encode()


class TestMailgun(Vendor, TimedContract):
    """Only token and time are signed, which stand in the body; the event is not."""

    vendor = "mailgun"
    about = told(receipt=f"<{RECEIPT}@mg.example.org>")
    age_max_s = signatures.MAILGUN_AGE_MAX_S
    wanted = delivered("", receipt=f"<{RECEIPT}@mg.example.org>")

    def source(self, *secrets: str) -> EventSource | None:
        return mailgun_events(
            MailgunSettings(domain="mg.example.org", api_key=Secret("x"), event_secrets=secrets_of(secrets))
        )

    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        try:
            item = json.loads(body)
        except (ValueError, RecursionError):
            item = None
        if not isinstance(item, dict):
            return EventRequest("POST", self.url, {}, body)
        item.pop("signature", None)
        return super().signed(item, secret, at=at)  # type: ignore[arg-type]

    def signs_inside(self, request: EventRequest) -> bool:
        return isinstance(self.read(request), EventBatch)

    def test_nothing_of_what_is_signed_can_be_changed(self) -> None:
        good = self.good()
        for name, text in json.loads(good.body)["signature"].items():
            for index in range(len(text)):
                changed = text[:index] + chr(ord(text[index]) ^ 1) + text[index + 1 :]
                body = json.loads(good.body)
                body["signature"][name] = changed
                assert self.refused(replace(good, body=json.dumps(body).encode())), (name, index)


class TestSinch(Vendor, SignedBodyContract, TimedContract):
    vendor = "sinch"
    about = told(to="+447700900123")
    signed_headers = (
        "x-sinch-webhook-signature",
        "x-sinch-webhook-signature-nonce",
        "x-sinch-webhook-signature-timestamp",
    )
    age_max_s = signatures.SINCH_AGE_MAX_S
    wanted = delivered("", address="+447700900123", code="Delivered/0")

    def source(self, *secrets: str) -> EventSource | None:
        return sinch_events(
            SinchSettings(
                region="eu",
                service_plan_id="plan1",
                api_token=Secret("x"),
                event_secrets=secrets_of(secrets),
            )
        )


class TestVonage(Vendor, SignedBodyContract, TimedContract):
    vendor = "vonage"
    about = told(to="+447700900123")
    signed_headers = ("authorization",)
    age_max_s = signatures.VONAGE_AGE_MAX_S
    wanted = delivered("", address="+447700900123")

    def source(self, *secrets: str) -> EventSource | None:
        return vonage_events(
            VonageSettings(api_key="abcd1234", api_secret=Secret("x"), event_secrets=secrets_of(secrets))
        )


class TestNotify(Vendor):
    vendor = "notify"
    about = told(to="+447700900123")
    wanted = delivered("", address="+447700900123")

    def source(self, *secrets: str) -> EventSource | None:
        key = Secret(f"live-{RECEIPT}-{RECEIPT}")
        return notify_events(
            NotifySettings(api_key=key, template_id=RECEIPT, event_secrets=secrets_of(secrets))
        )


class TestTwilio(Vendor, SignedBodyContract):
    vendor = "twilio"
    about = told(to="+447700900123", receipt="SM" + "1" * 32)
    url = callback_url(PUBLIC, KEY, ECHO)
    signed_headers = ("x-twilio-signature",)
    wanted = delivered("", receipt="SM" + "1" * 32, address="+447700900123", occurred_at=None)

    def source(self, *secrets: str) -> EventSource | None:
        return twilio_events(
            TwilioSettings(
                account_sid=SID,
                auth_token=Secret("of the API key"),
                api_key="SK1",
                event_secrets=secrets_of(secrets),
                callback_url=PUBLIC,
                callback_secret=ECHO,
            )
        )

    def example(self) -> bytes:
        return urlencode(VENDORS["twilio"][0](self.about)).encode()

    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        form = dict(parse_qsl(body.decode("latin-1"), keep_blank_values=True))
        request = super().signed(form, secret, at=at)  # type: ignore[arg-type]
        return replace(request, body=body)

    def spoilt(self) -> Iterator[bytes]:
        form = dict(parse_qsl(self.example().decode()))
        for name in form:
            for value in SPOILT:
                text = str(value).encode(errors="replace").decode()
                yield urlencode({**form, name: text}).encode()
            yield urlencode({key: text for key, text in form.items() if key != name}).encode()


class TestSes(SignedBodyContract, TimedContract):
    """In an envelope of SNS, all of which can be spoilt here; `test_ses_events` has one from an emulator."""

    signed_headers = ()
    age_max_s = 2 * 3_600
    wanted = delivered("22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", code="Delivery")

    def source(self, *secrets: str) -> EventSource | None:
        if not secrets:
            return ses_events(settings_of_ses())
        return SesEvents(tuple(map(topic_of, secrets)), fetch=certificate)

    def example(self) -> bytes:
        event = {
            "eventType": "Delivery",
            "mail": {
                "timestamp": "2026-12-01T00:00:00.000Z",
                "messageId": RECEIPT,
                "destination": ["ann@example.com"],
                "tags": {"ses:configuration-set": ["reminders"], "sendonce": [KEY]},
            },
            "delivery": {
                "timestamp": datetime.fromtimestamp(NOW / 1_000_000, UTC).isoformat(),
                "recipients": ["ann@example.com"],
                "smtpResponse": "250 2.0.0 OK",
            },
        }
        return json.dumps(event).encode()

    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        """A topic stands for the secret: who knows neither has none of our events."""
        fields = {
            "Type": "Notification",
            "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
            "TopicArn": topic_of(secret),
            "Message": body.decode(errors="replace"),
            "Timestamp": datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(),
            "SignatureVersion": "2",
            "SigningCertURL": CERTIFICATE_URL,
            "UnsubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=Unsubscribe",
        }
        return EventRequest("POST", PUBLIC, {}, json.dumps(signed_by_sns(fields)).encode())

    def signs_inside(self, request: EventRequest) -> bool:
        return True

    def tampered(self) -> Iterator[EventRequest]:
        request = self.good()
        whole = json.loads(request.body)
        for name in ("Type", "MessageId", "TopicArn", "Message", "Timestamp", "Signature"):
            text = whole[name]
            for index in range(len(text)):
                changed = text[:index] + chr(ord(text[index]) ^ 1) + text[index + 1 :]
                yield replace(request, body=json.dumps({**whole, name: changed}).encode())
            yield replace(request, body=json.dumps(without(whole, (name,))).encode())
        yield replace(request, body=json.dumps({**whole, "Subject": "one more"}).encode())
        yield replace(request, body=json.dumps({**whole, "SignatureVersion": "1"}).encode())

    def test_another_body_is_not_vouched_for(self) -> None:
        """Of the envelope only some fields are signed; an event within it is one of them."""
        whole = json.loads(self.good().body)
        for body in list(self.spoilt())[:100]:
            other = json.dumps({**whole, "Message": body.decode()}).encode()
            assert self.refused(replace(self.good(), body=other))

    def test_what_is_made_up_never_gets_in(self) -> None:
        assert self.refused(self.good(FORGER))


class ByConfiguration(EventContract):
    """The `http` adapter, with events as an API of one's own might tell them."""

    wanted = delivered("evt-7")
    how: ClassVar[dict[str, Any]]

    def source(self, *secrets: str) -> EventSource | None:
        events = None
        if secrets:
            events = HttpEvents(
                secrets=secrets_of(secrets),
                rows_path="events",
                kind_path="what",
                kinds={"delivered": EventKind.DELIVERED},
                id_path="id",
                receipt_path="message.id",
                reference_path="message.reference",
                address_path="to.0",
                time_path="at",
                text_path="text",
                **self.how,
            )
        return http_events(HttpSettings(url="https://api.example.com", body_json="{}", events=events))

    def example(self) -> bytes:
        event = {
            "id": "evt-7",
            "what": "delivered",
            "message": {"id": RECEIPT, "reference": KEY},
            "to": ["ann@example.com"],
            "at": NOW // 1_000_000,
        }
        return json.dumps({"events": [event]}).encode()

    def with_bad_ones(self) -> bytes:
        whole = json.loads(self.example())
        return json.dumps({"events": [{"what": 12}, *whole["events"], None]}).encode()


class TestHttpByStandardWebhooks(ByConfiguration, SignedBodyContract, TimedContract, BatchContract):
    how: ClassVar[dict[str, Any]] = {"signed": Signed.STANDARD}
    signed_headers = ("webhook-id", "webhook-timestamp", "webhook-signature")
    age_max_s = 300

    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        seconds = str(at // 1_000_000)
        headers = {
            "webhook-id": "msg-1",
            "webhook-timestamp": seconds,
            "webhook-signature": standard_signature(secret, "msg-1", seconds, body),
        }
        return EventRequest("POST", PUBLIC, headers, body)


class TestHttpByHmac(ByConfiguration, SignedBodyContract, BatchContract):
    how: ClassVar[dict[str, Any]] = {"signed": Signed.HMAC, "signature_header": "X-Signature"}
    signed_headers = ("x-signature",)

    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return EventRequest("POST", PUBLIC, {"x-signature": f"sha256={digest}"}, body)


class TestHttpByHmacWithTime(ByConfiguration, SignedBodyContract, TimedContract, BatchContract):
    how: ClassVar[dict[str, Any]] = {
        "signed": Signed.HMAC,
        "signature_header": "X-Signature",
        "timestamp_header": "X-Timestamp",
    }
    signed_headers = ("x-signature", "x-timestamp")
    age_max_s = 300

    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        seconds = str(at // 1_000_000)
        digest = hmac.digest(secret.encode(), seconds.encode() + b"." + body, "sha256")
        headers = {"x-signature": base64.b64encode(digest).decode(), "x-timestamp": seconds}
        return EventRequest("POST", PUBLIC, headers, body)


class TestHttpByToken(ByConfiguration, BatchContract):
    how: ClassVar[dict[str, Any]] = {"signed": Signed.TOKEN}

    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        return EventRequest("POST", PUBLIC, {"authorization": f"Bearer {secret}"}, body)


KEY_OF_AMAZON = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CERTIFICATE_URL = (
    f"https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{'0123456789abcdef' * 2}.pem"
)


def topic_of(secret: str) -> str:
    return f"arn:aws:sns:eu-west-1:123456789012:{hashlib.sha256(secret.encode()).hexdigest()[:12]}"


def settings_of_ses() -> SesSettings:
    return SesSettings(region="eu-west-1", access_key_id="AKIDEXAMPLE", secret_access_key=Secret("x"))


def signed_by_sns(fields: dict[str, str]) -> dict[str, str]:
    signed = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
    names = [name for name in signed if name in fields]
    text = "".join(f"{name}\n{fields[name]}\n" for name in names)
    signature = KEY_OF_AMAZON.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return {**fields, "Signature": base64.b64encode(signature).decode()}


async def certificate(url: str) -> bytes:
    if url != CERTIFICATE_URL:
        raise NotNow("no_such_certificate")
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return (
        x509.CertificateBuilder(name, name, KEY_OF_AMAZON.public_key(), 7, start, start + timedelta(days=900))
        .sign(KEY_OF_AMAZON, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


CONTRACTS: tuple[type[EventContract], ...] = (
    TestSes,
    TestHttpByStandardWebhooks,
    TestHttpByHmac,
    TestHttpByHmacWithTime,
    TestHttpByToken,
    TestResend,
    TestPostmark,
    TestSendgrid,
    TestMailgun,
    TestSinch,
    TestVonage,
    TestNotify,
    TestTwilio,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [
        "authorization",
        "x-signature",
        "x-timestamp",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "svix-id",
        "svix-timestamp",
        "svix-signature",
        "x-sinch-webhook-signature",
        "x-sinch-webhook-signature-nonce",
        "x-sinch-webhook-signature-timestamp",
        "x-twilio-signature",
        "x-twilio-email-event-webhook-signature",
        "x-twilio-email-event-webhook-timestamp",
    ]
)


@given(
    contract=st.sampled_from(CONTRACTS),
    url=st.text(max_size=60) | st.just(PUBLIC),
    headers=st.dictionaries(NAMES, st.text(max_size=60) | st.just(str(NOW // 1_000_000))),
    body=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()),
)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_none_forged_is_accepted(
    contract: type[EventContract], url: str, headers: dict[str, str], body: bytes
) -> None:
    assert contract().refused(EventRequest("POST", url, headers, body))


@given(contract=st.sampled_from(CONTRACTS), value=JSON, data=st.data())
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_signed_is_read_or_told(
    contract: type[EventContract], value: Any, data: st.DataObject
) -> None:
    case = contract()
    if contract is not TestTwilio and data.draw(st.booleans()):
        value = {**json.loads(case.example())} if contract is not TestSendgrid else json.loads(case.example())
        place = value[0] if isinstance(value, list) else value
        place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    result = case.read(case.signed(json.dumps(value).encode(), SECRET, at=NOW))
    if isinstance(result, EventBatch):
        check_storable(result)
