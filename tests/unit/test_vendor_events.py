"""What vendors' words mean: documented payloads, item by item. Verification is in the conformance suite."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from sendonce.core.errors import InvalidInput
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, EventSource, Forged
from sendonce.ports.secret import Secret
from sendonce.providers.echo import callback_url
from sendonce.providers.events import check_secrets, moment_in, number_in, text_in
from sendonce.providers.mailgun_events import MailgunEvents
from sendonce.providers.notify_events import NotifyEvents
from sendonce.providers.postmark_events import PostmarkEvents
from sendonce.providers.resend_events import ResendEvents
from sendonce.providers.sendgrid import SendgridSettings
from sendonce.providers.sendgrid_events import sendgrid_events
from sendonce.providers.ses_events import read_message
from sendonce.providers.sinch_events import SinchEvents
from sendonce.providers.sns import NOTIFICATION, SnsMessage
from sendonce.providers.twilio import TwilioSettings
from sendonce.providers.twilio_events import NO_REPLY, twilio_events
from sendonce.providers.vonage_events import VonageEvents
from sendonce.testing.sandbox.callbacks import VENDORS, Told, sendgrid_public_key, twilio_signature

NOW: Final = 1_798_000_000_000_000
SECRET: Final = "whsec_c2VjcmV0IG9uZQ=="
KEY: Final = "5e" * 32
SID: Final = "AC" + "0" * 32
MESSAGE: Final = "SM" + "1" * 32
K = EventKind


def read(vendor: str, item: Any) -> EventBatch:
    secrets = (Secret(SECRET),)
    sources: dict[str, EventSource | None] = {
        "resend": ResendEvents(secrets),
        "postmark": PostmarkEvents(secrets),
        "sendgrid": sendgrid_events(
            SendgridSettings(
                api_key=Secret("x"),
                event_public_keys=(sendgrid_public_key("other"), sendgrid_public_key(SECRET)),
            )
        ),
        "mailgun": MailgunEvents(secrets),
        "sinch": SinchEvents(secrets),
        "vonage": VonageEvents(secrets),
        "notify": NotifyEvents(secrets),
    }
    source = sources[vendor]
    assert source is not None
    about = Told("delivered", 7, NOW, "r", KEY, "a", "b")
    body, headers = VENDORS[vendor][1](item, about, SECRET, "")
    request = EventRequest(
        "POST", "https://us.example.com/", {name.lower(): value for name, value in headers.items()}, body
    )
    return asyncio.run(source.read(request, now=NOW))


def one(vendor: str, item: Any) -> ProviderEvent:
    batch = read(vendor, item)
    assert batch.faulty == ()
    (event,) = batch.events
    return event


@pytest.mark.parametrize(
    ("word", "more", "kind", "code"),
    [
        ("email.sent", {}, K.ACCEPTED, "email.sent"),
        ("email.scheduled", {}, K.ACCEPTED, "email.scheduled"),
        ("email.delivered", {}, K.DELIVERED, "email.delivered"),
        ("email.delivery_delayed", {}, K.DEFERRED, "email.delivery_delayed"),
        ("email.complained", {}, K.COMPLAINED, "email.complained"),
        ("email.bounced", {}, K.BOUNCED_HARD, "email.bounced"),
        (
            "email.bounced",
            {"bounce": {"type": "Permanent", "subType": "General"}},
            K.BOUNCED_HARD,
            "email.bounced/Permanent/General",
        ),
        (
            "email.bounced",
            {"bounce": {"type": "Transient", "subType": "MailboxFull"}},
            K.BOUNCED_SOFT,
            "email.bounced/Transient/MailboxFull",
        ),
        ("email.bounced", {"bounce": {"type": "Odd"}}, K.UNKNOWN, "email.bounced/Odd"),
        (
            "email.failed",
            {"failed": {"reason": "reached_daily_quota"}},
            K.REJECTED,
            "email.failed/reached_daily_quota",
        ),
        (
            "email.suppressed",
            {"suppressed": {"type": "OnAccountSuppressionList"}},
            K.SUPPRESSED,
            "email.suppressed/OnAccountSuppressionList",
        ),
        ("email.opened", {}, K.UNKNOWN, "email.opened"),
        ("domain.updated", {}, K.UNKNOWN, "domain.updated"),
    ],
)
def test_resend(word: str, more: dict[str, Any], kind: EventKind, code: str) -> None:
    data = {"email_id": "re-1", "to": ["ann@example.com"], "tags": {"sendonce": KEY}, **more}
    event = one("resend", {"type": word, "created_at": "2026-11-22T23:41:12.126Z", "data": data})
    at = moment_in("2026-11-22T23:41:12.126Z")
    assert event == ProviderEvent("msg_000007", kind, "re-1", KEY, "ann@example.com", at, code)


def test_whom_an_email_of_resend_is_about_is_told_of_one_recipient_only() -> None:
    data = {"email_id": "re-1", "to": ["ann@example.com", "bob@example.com"]}
    assert one("resend", {"type": "email.delivered", "data": data}).address == ""


@pytest.mark.parametrize(
    ("item", "kind", "code"),
    [
        ({"RecordType": "Delivery", "Recipient": "ann@example.com"}, K.DELIVERED, "Delivery"),
        ({"RecordType": "Bounce", "Type": "HardBounce"}, K.BOUNCED_HARD, "Bounce/HardBounce"),
        ({"RecordType": "Bounce", "Type": "Transient"}, K.DEFERRED, "Bounce/Transient"),
        ({"RecordType": "Bounce", "Type": "DnsError"}, K.DEFERRED, "Bounce/DnsError"),
        ({"RecordType": "Bounce", "Type": "SoftBounce"}, K.BOUNCED_SOFT, "Bounce/SoftBounce"),
        ({"RecordType": "Bounce", "Type": "Blocked"}, K.BOUNCED_SOFT, "Bounce/Blocked"),
        ({"RecordType": "Bounce", "Type": "BadEmailAddress"}, K.REJECTED, "Bounce/BadEmailAddress"),
        ({"RecordType": "Bounce", "Type": "AutoResponder"}, K.UNKNOWN, "Bounce/AutoResponder"),
        ({"RecordType": "Bounce", "Type": "Unsubscribe"}, K.OPTED_OUT, "Bounce/Unsubscribe"),
        ({"RecordType": "Bounce", "Type": "New"}, K.UNKNOWN, "Bounce/New"),
        (
            {"RecordType": "SpamComplaint", "Type": "SpamComplaint"},
            K.COMPLAINED,
            "SpamComplaint/SpamComplaint",
        ),
        (
            {
                "RecordType": "SubscriptionChange",
                "SuppressSending": True,
                "SuppressionReason": "ManualSuppression",
                "Origin": "Recipient",
            },
            K.OPTED_OUT,
            "SubscriptionChange/ManualSuppression",
        ),
        (
            {
                "RecordType": "SubscriptionChange",
                "SuppressSending": True,
                "SuppressionReason": "ManualSuppression",
                "Origin": "Customer",
            },
            K.SUPPRESSED,
            "SubscriptionChange/ManualSuppression",
        ),
        (
            {"RecordType": "SubscriptionChange", "SuppressSending": True, "SuppressionReason": "HardBounce"},
            K.SUPPRESSED,
            "SubscriptionChange/HardBounce",
        ),
        (
            {"RecordType": "SubscriptionChange", "SuppressSending": False, "Origin": "Recipient"},
            K.OPTED_IN,
            "SubscriptionChange/reactivated",
        ),
        (
            {"RecordType": "SubscriptionChange", "SuppressSending": False, "Origin": "Customer"},
            K.UNKNOWN,
            "SubscriptionChange/reactivated",
        ),
        ({"RecordType": "Open"}, K.UNKNOWN, "Open"),
    ],
)
def test_postmark(item: dict[str, Any], kind: EventKind, code: str) -> None:
    common = {"MessageID": "m-1", "Metadata": {"sendonce": KEY}, "ReceivedAt": "2026-11-22T00:00:00Z"}
    event = one("postmark", {"Email": "ann@example.com", **common, **item})
    at = moment_in("2026-11-22T00:00:00Z")
    assert event == ProviderEvent(event.identity, kind, "m-1", KEY, "ann@example.com", at, code)


def test_postmarks_events_without_an_id_are_told_apart() -> None:
    item = {"RecordType": "Delivery", "MessageID": "m-1", "DeliveredAt": "2026-11-22T00:00:00Z"}
    others = [
        {**item, "MessageID": "m-2"},
        {**item, "DeliveredAt": "2026-11-23T00:00:00Z"},
        {**item, "ID": 4},
    ]
    identities = {one("postmark", each).identity for each in (item, item, *others)}
    assert len(identities) == 4


def test_an_email_that_comes_in_is_a_reply() -> None:
    item = {
        "FromFull": {"Email": "ann@example.com", "Name": "Ann"},
        "MessageID": "in-1",
        "TextBody": "Stop please.\n> quoted",
        "StrippedTextReply": "Stop please.",
    }
    event = one("postmark", item)
    assert (event.kind, event.address, event.text) == (K.REPLIED, "ann@example.com", "Stop please.")
    assert event.receipt == ""


@pytest.mark.parametrize(
    ("item", "kind", "code"),
    [
        ({"event": "processed"}, K.ACCEPTED, "processed"),
        ({"event": "deferred", "response": "400 try again"}, K.DEFERRED, "deferred"),
        ({"event": "delivered"}, K.DELIVERED, "delivered"),
        ({"event": "bounce", "type": "bounce"}, K.BOUNCED_HARD, "bounce/bounce"),
        ({"event": "bounce", "type": "blocked"}, K.BOUNCED_SOFT, "bounce/blocked"),
        ({"event": "bounce", "type": "new"}, K.UNKNOWN, "bounce/new"),
        ({"event": "dropped", "reason": "Bounced Address"}, K.SUPPRESSED, "dropped/bounced_address"),
        ({"event": "dropped", "reason": "Invalid"}, K.REJECTED, "dropped"),
        ({"event": "spamreport"}, K.COMPLAINED, "spamreport"),
        ({"event": "unsubscribe"}, K.OPTED_OUT, "unsubscribe"),
        ({"event": "group_unsubscribe"}, K.OPTED_OUT, "group_unsubscribe"),
        ({"event": "group_resubscribe"}, K.OPTED_IN, "group_resubscribe"),
        ({"event": "open"}, K.UNKNOWN, "open"),
    ],
)
def test_sendgrid(item: dict[str, Any], kind: EventKind, code: str) -> None:
    common = {
        "sg_event_id": "ev-1",
        "sg_message_id": "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
        "email": "ann@example.com",
        "timestamp": 1_798_000_000,
        "sendonce": KEY,
    }
    event = one("sendgrid", [{**common, **item}])
    wanted = ProviderEvent("ev-1", kind, "14c5d75ce93.dfd.64b469", KEY, "ann@example.com", NOW, code)
    assert event == wanted


@pytest.mark.parametrize(
    ("told", "receipt"),
    [
        ("wrfRRvF7Q0GgwUo2CvDmEA.filter0425p1mdw1.13037.57168B4A1D.0", "wrfRRvF7Q0GgwUo2CvDmEA"),
        ("LRzXl_NHStOGhQ4kofSm_A.recvd-67c5b-x2x9w-1-64F1D6A2-5.0", "LRzXl_NHStOGhQ4kofSm_A"),
        ("wrfRRvF7Q0GgwUo2CvDmEA", "wrfRRvF7Q0GgwUo2CvDmEA"),
        ("filter0199p1las1.4745.5717FB6F5.0", ""),
        (None, ""),
    ],
)
def test_the_receipt_is_what_a_message_id_of_sendgrid_begins_with(told: object, receipt: str) -> None:
    assert one("sendgrid", [{"sg_event_id": "e", "event": "open", "sg_message_id": told}]).receipt == receipt


def test_the_keys_of_sendgrid_are_checked() -> None:
    for key in ("", "not base64", sendgrid_public_key("x")[:-4]):
        with pytest.raises(InvalidInput, match="verification keys"):
            sendgrid_events(SendgridSettings(api_key=Secret("x"), event_public_keys=(key,)))


@pytest.mark.parametrize(
    ("data", "kind", "code"),
    [
        ({"event": "accepted"}, K.ACCEPTED, "accepted"),
        ({"event": "delivered"}, K.DELIVERED, "delivered"),
        (
            {"event": "failed", "severity": "temporary", "reason": "generic"},
            K.DEFERRED,
            "failed/temporary/generic",
        ),
        (
            {"event": "failed", "severity": "permanent", "reason": "bounce"},
            K.BOUNCED_HARD,
            "failed/permanent/bounce",
        ),
        (
            {"event": "failed", "severity": "permanent", "delivery-status": {"bounce-type": "soft"}},
            K.BOUNCED_SOFT,
            "failed/permanent",
        ),
        (
            {"event": "failed", "severity": "permanent", "reason": "suppress-complaint"},
            K.SUPPRESSED,
            "failed/permanent/suppress-complaint",
        ),
        ({"event": "failed"}, K.UNKNOWN, "failed"),
        ({"event": "rejected", "reject": {"reason": "Sandbox"}}, K.REJECTED, "rejected"),
        ({"event": "complained"}, K.COMPLAINED, "complained"),
        ({"event": "unsubscribed"}, K.OPTED_OUT, "unsubscribed"),
        ({"event": "clicked"}, K.UNKNOWN, "clicked"),
    ],
)
def test_mailgun(data: dict[str, Any], kind: EventKind, code: str) -> None:
    common = {
        "timestamp": 1_798_000_000.5,
        "recipient": "ann@example.com",
        "message": {"headers": {"message-id": "1@mg.example.org"}},
        "user-variables": {"sendonce": KEY},
    }
    event = one("mailgun", {"event-data": {**common, **data}})
    assert len(event.identity) == 50, "the token, which comes once"
    wanted = ProviderEvent(
        event.identity, kind, "<1@mg.example.org>", KEY, "ann@example.com", NOW + 500_000, code
    )
    assert event == wanted


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        ("Queued", 400, K.ACCEPTED),
        ("Dispatched", 401, K.SENT),
        ("Delivered", 0, K.DELIVERED),
        ("Failed", 8, K.UNDELIVERED),
        ("Deleted", 5, K.UNDELIVERED),
        ("Rejected", 408, K.REJECTED),
        ("Aborted", 412, K.REJECTED),
        ("Cancelled", 407, K.REJECTED),
        ("Expired", 406, K.EXPIRED),
        ("Unknown", 0, K.UNKNOWN),
        ("New", 1, K.UNKNOWN),
    ],
)
def test_sinch(status: str, code: int, kind: EventKind) -> None:
    item = {
        "type": "recipient_delivery_report_sms",
        "batch_id": "01FC66621",
        "recipient": "447700900123",
        "status": status,
        "code": code,
        "at": "2026-11-22T08:17:19.210Z",
        "operator_status_at": "2026-11-22T08:17:00Z",
        "client_reference": KEY,
    }
    event = one("sinch", item)
    at = moment_in("2026-11-22T08:17:00Z")
    assert event == ProviderEvent(
        event.identity, kind, "01FC66621", KEY, "+447700900123", at, f"{status}/{code}"
    )


def test_a_report_of_a_whole_batch_of_sinch() -> None:
    item = {
        "type": "delivery_report_sms",
        "batch_id": "01FC66621",
        "client_reference": KEY,
        "statuses": [
            {"code": 0, "status": "Delivered", "count": 1, "recipients": ["447700900123"]},
            {"code": 0, "status": "Delivered", "count": 2, "recipients": ["447700900124", "447700900125"]},
            "nonsense",
        ],
    }
    batch = read("sinch", item)
    assert [event.address for event in batch.events] == ["+447700900123", ""]
    assert [event.send_key for event in batch.events] == [KEY, KEY]
    assert batch.faulty == ("not_an_object",)


def test_texts_that_come_in() -> None:
    sinch = {"type": "mo_text", "id": "in-1", "from": "447700900123", "body": "Stop", "received_at": "x"}
    assert one("sinch", sinch) == ProviderEvent(
        "in-1", K.REPLIED, address="+447700900123", code="mo_text", text="Stop"
    )
    binary = one("sinch", {**sinch, "type": "mo_binary", "body": "AAEC"})
    assert (binary.kind, binary.text) == (K.UNKNOWN, "")
    vonage = {"message_uuid": "in-1", "from": "447700900123", "message_type": "text", "text": "Stop"}
    assert one("vonage", vonage).text == "Stop"
    assert one("vonage", {**vonage, "message_type": "image"}).kind is K.UNKNOWN
    notify = {"id": "in-1", "source_number": "447700900123", "message": "Stop"}
    event = one("notify", {**notify, "date_received": "2026-11-22T12:15:30.000000Z"})
    assert (event.kind, event.address, event.text) == (K.REPLIED, "+447700900123", "Stop")
    assert event.occurred_at == moment_in("2026-11-22T12:15:30Z")


def test_half_a_character_and_a_nul_are_no_danger_to_a_store() -> None:
    item = json.loads('{"id": "in-1", "source_number": "1", "message": "a\\u0000b\\ud800c"}')
    assert one("notify", item).text == "a\ufffdb?c"


@pytest.mark.parametrize(
    ("item", "kind", "code"),
    [
        ({"status": "submitted"}, K.ACCEPTED, "submitted"),
        ({"status": "delivered"}, K.DELIVERED, "delivered"),
        ({"status": "rejected", "error": {"type": "https://x#1170"}}, K.REJECTED, "rejected/1170"),
        (
            {"status": "undeliverable", "error": {"type": "https://x#1260"}},
            K.UNDELIVERED,
            "undeliverable/1260",
        ),
        (
            {"status": "undeliverable", "error": {"type": "https://x#1240"}},
            K.SUPPRESSED,
            "undeliverable/1240",
        ),
        ({"status": "read"}, K.UNKNOWN, "read"),
    ],
)
def test_vonage(item: dict[str, Any], kind: EventKind, code: str) -> None:
    common = {
        "message_uuid": "u-1",
        "to": "447700900123",
        "timestamp": "2026-11-22T12:15:30Z",
        "client_ref": KEY,
    }
    event = one("vonage", {**common, **item})
    at = moment_in("2026-11-22T12:15:30Z")
    assert event == ProviderEvent(event.identity, kind, "u-1", KEY, "+447700900123", at, code)


@pytest.mark.parametrize(
    ("channel", "status", "kind"),
    [
        ("email", "delivered", K.DELIVERED),
        ("email", "permanent-failure", K.BOUNCED_HARD),
        ("email", "temporary-failure", K.BOUNCED_SOFT),
        ("email", "technical-failure", K.REJECTED),
        ("sms", "permanent-failure", K.UNDELIVERED),
        ("sms", "temporary-failure", K.UNDELIVERED),
        ("sms", "sent", K.SENT),
        ("sms", "sending", K.ACCEPTED),
        ("sms", "validation-failed", K.UNKNOWN),
    ],
)
def test_notify(channel: str, status: str, kind: EventKind) -> None:
    item = {
        "id": "n-1",
        "reference": KEY,
        "to": "ann@example.com",
        "status": status,
        "notification_type": channel,
        "completed_at": "2026-11-22T12:15:30.000000Z",
    }
    event = one("notify", item)
    at = moment_in("2026-11-22T12:15:30Z")
    assert event == ProviderEvent(event.identity, kind, "n-1", KEY, "ann@example.com", at, status)


# Twilio


PUBLIC: Final = "https://us.example.com/v1/events/sms"
OWN: Final = Secret("our own")


def twilio(form: dict[str, str], *, called: str = PUBLIC, signed: str = PUBLIC, sid: str = SID) -> EventBatch:
    source = twilio_events(
        TwilioSettings(account_sid=SID, auth_token=Secret(SECRET), callback_url=PUBLIC, callback_secret=OWN)
    )
    assert source is not None
    whole = {"AccountSid": sid, "MessageSid": MESSAGE, **form}
    headers = {"x-twilio-signature": twilio_signature(SECRET, signed, whole)}
    request = EventRequest("POST", called, headers, urlencode(whole).encode())
    return asyncio.run(source.read(request, now=NOW))


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        ("accepted", "", K.ACCEPTED),
        ("queued", "", K.ACCEPTED),
        ("sending", "", K.ACCEPTED),
        ("sent", "", K.SENT),
        ("delivered", "", K.DELIVERED),
        ("undelivered", "30003", K.UNDELIVERED),
        ("undelivered", "30036", K.EXPIRED),
        ("failed", "30001", K.REJECTED),
        ("failed", "21610", K.SUPPRESSED),
        ("canceled", "", K.REJECTED),
        ("read", "", K.UNKNOWN),
    ],
)
def test_twilio(status: str, error: str, kind: EventKind) -> None:
    url = callback_url(PUBLIC, KEY, OWN)
    form = {"MessageStatus": status, "To": "+447700900123"} | ({"ErrorCode": error} if error else {})
    (event,) = twilio(form, called=url, signed=url).events
    code = f"{status}/{error}" if error else status
    assert event == ProviderEvent(event.identity, kind, MESSAGE, KEY, "+447700900123", None, code)


def test_a_send_key_that_somebody_else_put_into_the_url_is_none() -> None:
    url = callback_url(PUBLIC, KEY, Secret("another"))
    (event,) = twilio({"MessageStatus": "delivered"}, called=url, signed=url).events
    assert (event.send_key, event.receipt) == ("", MESSAGE)


@pytest.mark.parametrize(
    ("told", "kind"),
    [("STOP", K.OPTED_OUT), ("START", K.OPTED_IN), ("HELP", K.REPLIED), ("", K.REPLIED)],
)
def test_a_text_to_twilio_gets_no_reply(told: str, kind: EventKind) -> None:
    form = {"SmsStatus": "received", "From": "+447700900123", "Body": "Arrêt"} | (
        {"OptOutType": told} if told else {}
    )
    batch = twilio(form)
    (event,) = batch.events
    assert (event.kind, event.address, event.text) == (kind, "+447700900123", "Arrêt")
    assert (event.receipt, event.send_key) == ("", "")
    assert (batch.answer, batch.answer_type) == (NO_REPLY, "text/xml")


@pytest.mark.parametrize(
    ("called", "signed"),
    [
        ("http://10.0.0.7:8080/v1/events/sms", PUBLIC),
        (PUBLIC, "https://us.example.com:443/v1/events/sms"),
        ("https://us.example.com:443/v1/events/sms", PUBLIC),
        ("http://10.0.0.7:8080/v1/events/sms?x=1", "https://us.example.com:443/v1/events/sms?x=1"),
    ],
)
def test_behind_a_proxy_the_address_that_twilio_knows_counts(called: str, signed: str) -> None:
    assert len(twilio({"MessageStatus": "sent"}, called=called, signed=signed).events) == 1


def test_another_path_another_account_and_an_address_that_is_none_are_not_twilios() -> None:
    for called, sid in ((PUBLIC + "2", SID), (PUBLIC, "AC" + "1" * 32), ("https://[/x", SID)):
        with pytest.raises(Forged):
            twilio({"MessageStatus": "sent"}, called=called, sid=sid)


def test_with_an_api_key_the_auth_token_must_be_told() -> None:
    common = {"account_sid": SID, "auth_token": Secret("of the key"), "api_key": "SK1"}
    assert twilio_events(TwilioSettings(**common)) is None  # type: ignore[arg-type]
    assert twilio_events(TwilioSettings(**common, event_secrets=(Secret("x"),))) is not None  # type: ignore[arg-type]


# Amazon SES


@pytest.mark.parametrize(
    ("event", "kind", "code"),
    [
        ({"eventType": "Send", "send": {}}, K.ACCEPTED, "Send"),
        ({"eventType": "Delivery", "delivery": {}}, K.DELIVERED, "Delivery"),
        (
            {"eventType": "DeliveryDelay", "deliveryDelay": {"delayType": "MailboxFull"}},
            K.DEFERRED,
            "DeliveryDelay/MailboxFull",
        ),
        (
            {"eventType": "Bounce", "bounce": {"bounceType": "Permanent", "bounceSubType": "General"}},
            K.BOUNCED_HARD,
            "Bounce/Permanent/General",
        ),
        (
            {"eventType": "Bounce", "bounce": {"bounceType": "Permanent", "bounceSubType": "Suppressed"}},
            K.SUPPRESSED,
            "Bounce/Permanent/Suppressed",
        ),
        (
            {"eventType": "Bounce", "bounce": {"bounceType": "Transient", "bounceSubType": "MailboxFull"}},
            K.BOUNCED_SOFT,
            "Bounce/Transient/MailboxFull",
        ),
        (
            {"eventType": "Bounce", "bounce": {"bounceType": "Undetermined"}},
            K.BOUNCED_SOFT,
            "Bounce/Undetermined",
        ),
        (
            {"eventType": "Complaint", "complaint": {"complaintFeedbackType": "abuse"}},
            K.COMPLAINED,
            "Complaint/abuse",
        ),
        (
            {"eventType": "Complaint", "complaint": {"complaintSubType": "OnAccountSuppressionList"}},
            K.SUPPRESSED,
            "Complaint/OnAccountSuppressionList",
        ),
        ({"eventType": "Reject", "reject": {"reason": "Bad content"}}, K.REJECTED, "Reject"),
        ({"eventType": "Rendering Failure", "failure": {}}, K.REJECTED, "Rendering_Failure"),
        (
            {"eventType": "Subscription", "subscription": {"newTopicPreferences": {"unsubscribeAll": True}}},
            K.OPTED_OUT,
            "Subscription",
        ),
        ({"eventType": "Open", "open": {}}, K.UNKNOWN, "Open"),
        ({"notificationType": "Delivery", "delivery": {}}, K.DELIVERED, "Delivery"),
    ],
)
def test_ses(event: dict[str, Any], kind: EventKind, code: str) -> None:
    mail = {
        "messageId": "0102-1",
        "destination": ["ann@example.com"],
        "timestamp": "2026-11-22T12:15:30Z",
        "tags": {"sendonce": [KEY]},
    }
    for detail in event.values():
        if isinstance(detail, dict):
            detail["timestamp"] = "2026-11-22T12:16:00.000Z"
    batch = read_message(SnsMessage(NOTIFICATION, "sns-1", "arn", json.dumps({**event, "mail": mail}), NOW))
    at = moment_in("2026-11-22T12:16:00Z")
    assert batch.events == (ProviderEvent("sns-1", kind, "0102-1", KEY, "ann@example.com", at, code),)


def test_a_bounce_of_several_recipients_is_an_event_for_each() -> None:
    bounce = {
        "bounceType": "Permanent",
        "bouncedRecipients": [{"emailAddress": "ann@example.com"}, {"emailAddress": "bob@example.com"}],
    }
    told = {"eventType": "Bounce", "bounce": bounce, "mail": {"messageId": "0102-1"}}
    batch = read_message(SnsMessage(NOTIFICATION, "sns-1", "arn", json.dumps(told), NOW))
    assert [(event.identity, event.address) for event in batch.events] == [
        ("sns-1/0", "ann@example.com"),
        ("sns-1/1", "bob@example.com"),
    ]


# What they share


@pytest.mark.parametrize(
    ("told", "moment"),
    [
        ("2026-11-22T00:00:00Z", 1_795_305_600_000_000),
        ("2026-11-22T01:00:00+01:00", 1_795_305_600_000_000),
        ("2026-11-22T00:00:00", 1_795_305_600_000_000),
        ("1795305600", 1_795_305_600_000_000),
        (1_795_305_600.25, 1_795_305_600_250_000),
        (True, None),
        (float("nan"), None),
        (1e300, None),
        (10**400, None),
        (-5, None),
        ("soon", None),
        ("0001-01-01T00:00:00+23:00", None),
        (None, None),
    ],
)
def test_times(told: object, moment: int | None) -> None:
    assert moment_in(told) == moment


def test_numbers_and_texts() -> None:
    assert number_in("447700900123") == "+447700900123"
    assert number_in("+447700900123") == "+447700900123"
    assert number_in("Shop") == "Shop"
    assert len(text_in("x" * 10_000)) == 4_096


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(InvalidInput, match="anybody could sign"):
        check_secrets((Secret("x"), Secret("")))
