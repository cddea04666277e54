"""Mail that comes back: what is a report, whose it is, what it says, and what must never be taken for one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.core.delivery import send_key
from sendonce.core.mail_token import KEY_DIGITS, mail_token
from sendonce.core.provider_event import EventKind
from sendonce.ports.provider import EmailContent, Message
from sendonce.ports.returned_mail import Found, Reading
from sendonce.providers.mail_report import (
    BYTES_MAX,
    DEPTH_MAX,
    PARTS_MAX,
    RECIPIENTS_MAX,
    read_mail,
)
from sendonce.providers.mime import build_email
from sendonce.testing.mail_reports import feedback_report, old_bounce, status_report, vacation

SECRET = b"s" * 32
NOW = 1_767_230_000_000_000  # 2026-01-01, half past one
KEY = send_key(SECRET, "default", "r-1:c-1:email", 1)
TOKEN = mail_token(SECRET, KEY)
PATH = f"bounces+{TOKEN}@example.org"
CONTENT = EmailContent("It's due", "Dear Ann, it's due.", "", "Shop <shop@example.org>")
SENT = build_email(
    Message("r-1:c-1:email", KEY, "ann@example.com", CONTENT, 1_767_225_600_000_000, return_token=TOKEN),
    CONTENT,
)
BARE = re.sub(rb"X-Sendonce-Return: .*\r\n", b"", SENT)  # what some servers leave of the headers


def read(raw: bytes) -> Reading:
    return read_mail(raw, secret=SECRET, now=NOW)


def kind_of(raw: bytes) -> EventKind:
    reading = read(raw)
    assert reading.found is Found.REPORT, reading
    (event,) = reading.events
    return event.kind


# What a report says


@pytest.mark.parametrize(
    ("action", "status", "diagnostic", "kind"),
    [
        ("failed", "5.1.1", "", EventKind.BOUNCED_HARD),
        ("failed", "5.1.2", "", EventKind.BOUNCED_HARD),
        ("failed", "5.1.10", "", EventKind.BOUNCED_HARD),
        ("failed", "5.2.1", "", EventKind.BOUNCED_HARD),
        ("Failed (permanently)", "5.1.1 (bad mailbox)", "", EventKind.BOUNCED_HARD),
        ("failed", "5.0.0", "smtp; 550 5.1.1 <ann@example.com>: user unknown", EventKind.BOUNCED_HARD),
        ("failed", "", "smtp; 550 5.1.1 user unknown", EventKind.BOUNCED_HARD),
        ("failed", "5.0.0", "x-unix; 5.1.1", EventKind.UNDELIVERED),
        ("failed", "5.0.0", "smtp; 550 no such user here", EventKind.UNDELIVERED),
        ("failed", "5.0.0", "smtp; 450 4.1.1 later", EventKind.UNDELIVERED),
        ("failed", "5.2.2", "smtp; 552 5.1.1 odd", EventKind.UNDELIVERED),
        ("failed", "5.2.2", "", EventKind.UNDELIVERED),
        ("failed", "5.7.1", "", EventKind.UNDELIVERED),
        ("failed", "5.4.1", "", EventKind.UNDELIVERED),
        ("failed", "5.4.7", "", EventKind.EXPIRED),
        ("failed", "4.4.1", "", EventKind.EXPIRED),
        ("failed", "4.1.1", "", EventKind.EXPIRED),
        ("delayed", "4.4.1", "", EventKind.DEFERRED),
        ("delayed", "", "", EventKind.DEFERRED),
        ("relayed", "2.1.9", "", EventKind.SENT),
        ("delivered", "2.0.0", "", EventKind.DELIVERED),
        ("expanded", "2.1.5", "", EventKind.DELIVERED),
        # what contradicts itself, or has no word of ours
        ("failed", "2.0.0", "", EventKind.UNKNOWN),
        ("delivered", "5.1.1", "", EventKind.UNKNOWN),
        ("delayed", "5.1.1", "", EventKind.UNKNOWN),
        ("bounced", "5.1.1", "", EventKind.UNKNOWN),
        ("", "5.1.1", "", EventKind.UNKNOWN),
    ],
)
def test_action_and_status_say_what_happened(
    action: str, status: str, diagnostic: str, kind: EventKind
) -> None:
    assert kind_of(status_report(SENT, to=PATH, action=action, status=status, diagnostic=diagnostic)) is kind


def test_a_report_leads_to_its_message_and_names_nobody() -> None:
    (event,) = read(status_report(SENT, to=PATH, recipient="victim@example.net")).events
    assert event.send_key == KEY[:KEY_DIGITS]
    assert (event.address, event.text, event.receipt) == ("", "", "")
    assert event.code == "failed 5.1.1"
    assert event.occurred_at == 1_767_226_200_000_000
    assert "@" not in event.identity + event.code


@pytest.mark.parametrize(
    "raw",
    [
        status_report(BARE, to=PATH),
        status_report(BARE, to=PATH.upper()),
        status_report(BARE, to="bounces@example.org", envelope_id=TOKEN),
        status_report(BARE, to="bounces@example.org", envelope_id=TOKEN, returned=""),
        status_report(SENT, to="bounces@example.org"),
        status_report(SENT, to="bounces@example.org", returned="message/rfc822"),
        b"X-Original-To: " + PATH.encode() + b"\r\n" + status_report(BARE, to="x@example.org", returned=""),
        b"Delivered-To: " + PATH.encode() + b"\r\n" + status_report(BARE, to="x@example.org", returned=""),
    ],
)
def test_the_token_is_found_wherever_a_server_leaves_it(raw: bytes) -> None:
    (event,) = read(raw).events
    assert (event.kind, event.send_key) == (EventKind.BOUNCED_HARD, KEY[:KEY_DIGITS])


def test_an_internationalised_report_is_read(  # RFC 6533
) -> None:
    raw = status_report(BARE, to=PATH).replace(b"message/delivery-status", b"message/global-delivery-status")
    assert kind_of(raw) is EventKind.BOUNCED_HARD


def test_several_recipients_are_several_events_and_no_more_than_so_many() -> None:
    more = [
        line
        for n in range(50)
        for line in ("", f"Final-Recipient: rfc822; u{n}@x", "Action: failed", f"Status: 5.1.{n}")
    ]
    events = read(status_report(SENT, to=PATH, more=more)).events
    assert 1 < len(events) <= RECIPIENTS_MAX
    assert len({event.identity for event in events}) == len(events)


def test_the_same_mail_again_is_the_same_event_and_another_is_not() -> None:
    raw = status_report(SENT, to=PATH, action="delayed", status="4.4.1")
    later = status_report(
        SENT, to=PATH, action="delayed", status="4.4.1", message_id="<report-2@mx.example.net>"
    )
    assert read(raw) == read(raw)
    moved = b"X-Folder: seen\r\n" + raw
    assert read(moved).events == read(raw).events
    assert read(later).events[0].identity != read(raw).events[0].identity


def test_a_time_that_cannot_be_is_left_out() -> None:
    for date in (
        "",
        "yesterday",
        "Thu, 1 Jan 2099 00:00:00 +0000",
        "Thu, 1 Jan 1960 00:00:00 +0000",
        "9" * 400,
    ):
        (event,) = read(status_report(SENT, to=PATH, date=date)).events
        assert event.occurred_at is None, date


# Complaints


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("abuse", EventKind.COMPLAINED),
        ("fraud", EventKind.COMPLAINED),
        ("not-spam", EventKind.UNKNOWN),
        ("auth-failure", EventKind.UNKNOWN),
    ],
)
def test_a_feedback_report_is_a_complaint(kind: str, event: EventKind) -> None:
    assert kind_of(feedback_report(SENT, to="fbl@example.org", kind=kind)) is event
    assert kind_of(feedback_report(BARE, to="fbl@example.org", kind=kind, return_path=PATH)) is event


# What is no report


def test_hook_09_an_automatic_answer_is_no_bounce() -> None:
    assert read(vacation(SENT, to=PATH)) == Reading(Found.AUTOMATIC)
    auto = re.sub(rb"Auto-Submitted: .*\r\n", b"X-Autoreply: yes\r\n", vacation(SENT, to=PATH))
    assert read(auto) == Reading(Found.AUTOMATIC)


def test_hook_09_a_robot_that_writes_a_report_from_an_address_of_its_own_is_not_believed() -> None:
    reading = read(status_report(SENT, to=PATH, return_path="<robot@example.com>"))
    assert (reading.found, reading.why) == (Found.UNREADABLE, "return_path")
    assert [event.kind for event in reading.events] == [EventKind.UNKNOWN]
    assert kind_of(status_report(SENT, to=PATH, return_path="")) is EventKind.BOUNCED_HARD


def test_hook_09_a_full_mailbox_bounces_nobody_for_good() -> None:
    assert kind_of(status_report(SENT, to=PATH, status="5.2.2")) is EventKind.UNDELIVERED
    assert kind_of(status_report(SENT, to=PATH, status="4.2.2")) is EventKind.EXPIRED


def test_a_receipt_of_reading_is_no_report() -> None:
    raw = status_report(SENT, to=PATH).replace(
        b"report-type=delivery-status", b"report-type=disposition-notification"
    )
    assert read(raw) == Reading(Found.AUTOMATIC)


@pytest.mark.parametrize(
    "raw",
    [
        old_bounce(SENT, to=PATH),
        status_report(SENT, to=PATH).replace(b"multipart/report", b"multipart/mixed"),
        status_report(SENT, to=PATH).replace(b"message/delivery-status", b"text/plain"),
        status_report(SENT, to=PATH).replace(b"Final-Recipient", b"X-A").replace(b"Action", b"X-B"),
        b"From: ann@example.com\r\nTo: " + PATH.encode() + b"\r\n\r\nWho are you?\r\n",
        b"To: " + PATH.encode() + b"\r\n",
    ],
)
def test_what_is_ours_and_no_report_is_for_a_person_and_never_a_bounce(raw: bytes) -> None:
    reading = read(raw)
    assert reading.found is Found.UNREADABLE
    (event,) = reading.events
    assert (event.kind, event.send_key) == (EventKind.UNKNOWN, KEY[:KEY_DIGITS])
    assert event.code.startswith("mail ")


def test_without_a_token_of_ours_nothing_is_believed() -> None:
    other = mail_token(b"another secret", KEY)
    for raw in (
        status_report(BARE, to="bounces@example.org"),
        status_report(BARE, to=f"bounces+{other}@example.org", envelope_id=other),
        status_report(BARE, to=f"bounces+{TOKEN[:-2]}aa@example.org"),
        feedback_report(BARE, to="fbl@example.org"),
        b"",
        b"\r\n\r\n",
        b"To: x\r\n\r\n" + TOKEN.encode(),  # in the text: anybody may have quoted it
    ):
        assert read(raw) == Reading(Found.FOREIGN), raw


# Bounds


def test_what_is_too_large_too_deep_or_has_too_many_parts_is_not_read() -> None:
    big = status_report(SENT, to=PATH) + b"x" * BYTES_MAX
    deep = (
        b"To: "
        + PATH.encode()
        + b"\r\n"
        + b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n' * (DEPTH_MAX + 1)
    )
    wide = status_report(SENT, to=PATH).replace(
        b"--=_report--", b"--=_report\r\nContent-Type: text/plain\r\n\r\nx\r\n" * PARTS_MAX
    )
    assert [read(raw).why for raw in (big, deep, wide)] == ["bytes", "depth", "parts"]
    assert {read(raw).found for raw in (big, deep, wide)} == {Found.OVERSIZED}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_mail_whatever_ends_in_an_error(data: st.DataObject) -> None:
    raw = bytearray(
        data.draw(
            st.sampled_from(
                [status_report(SENT, to=PATH), feedback_report(SENT, to=PATH), vacation(SENT, to=PATH)]
            )
        )
    )
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=30))
    for event in read(bytes(raw)).events:
        assert event.send_key == KEY[:KEY_DIGITS]
        assert not event.address
        assert len(event.code) < 80
        assert len(event.identity) < 60


@given(st.binary(max_size=4_000))
def test_no_bytes_whatever_end_in_an_error(raw: bytes) -> None:
    assert read(raw).found in (Found.FOREIGN, Found.OVERSIZED)
