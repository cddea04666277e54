"""The sandbox over real sockets: what it promises to those who test against it.

Every fault is checked from both sides: what the client saw, and what the door counted.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import queue
import smtplib
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.testing.sandbox import (
    ChannelRules,
    EventRules,
    Refusal,
    Sandbox,
    SandboxClient,
    SandboxSettings,
    Trigger,
    read_settings,
    sandbox_in_process,
    sandbox_in_thread,
    serve,
)
from sendonce.testing.sandbox.callbacks import standard_signature, twilio_signature
from sendonce.testing.sandbox.door import most_in_window
from sendonce.testing.sandbox.settings import merge_rules, to_json
from sendonce.testing.sandbox.shapes import REFUSALS
from sendonce.testing.sandbox.smtp_server import REPLIES

SID = "AC00000000000000000000000000000001"
NUMBER = "+15551234567"
TIMEOUT_S = 10.0


# --- the sandbox and its clients


@pytest.fixture(scope="module")
def running() -> Iterator[SandboxClient]:
    with sandbox_in_thread(SandboxSettings()) as client:
        yield client


@pytest.fixture
def sandbox(running: SandboxClient) -> SandboxClient:
    running.reset(rules=True)
    return running


class Answer:
    """An HTTP answer, read in full."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    sandbox: SandboxClient, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Answer:
    connection = http.client.HTTPConnection(sandbox.host, sandbox.http_port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(method, target, body, headers or {})
        return Answer(connection.getresponse())


def sms(
    sandbox: SandboxClient,
    marker: str = "r1",
    *,
    to: str = NUMBER,
    key: str = "",
    headers: dict[str, str] | None = None,
    path: str = "/v1/messages",
    **more: str,
) -> Answer:
    body = {"to": to, "from": "Shop", "text": f"Your parcel is due [ref:{marker}]", **more}
    all_headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
    return call(sandbox, "POST", path, json.dumps(body).encode(), all_headers | (headers or {}))


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def twilio(sandbox: SandboxClient, marker: str = "r1", *, token: str = "", **form: str) -> Answer:
    fields = {"To": NUMBER, "From": "+15550001111", "Body": f"Due today [ref:{marker}]", **form}
    body = urlencode({name: value for name, value in fields.items() if value}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded", **basic(SID, token)}
    return call(sandbox, "POST", f"/2010-04-01/Accounts/{SID}/Messages.json", body, headers)


def mail(marker: str = "r1", *, to: str = "ann@example.com", subject: str = "Payment due") -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "pay@example.com", to, subject
    message["Message-ID"] = f"<{marker}@example.com>"
    message.set_content(f"Please pay by Friday. [ref:{marker}]\n")
    return message


@contextlib.contextmanager
def smtp(sandbox: SandboxClient) -> Iterator[smtplib.SMTP]:
    client = smtplib.SMTP(sandbox.host, sandbox.smtp_port, timeout=TIMEOUT_S)
    try:
        yield client
    finally:
        client.close()


def send_mail(sandbox: SandboxClient, message: EmailMessage) -> None:
    with smtp(sandbox) as client:
        client.send_message(message)
        client.quit()


def counts(sandbox: SandboxClient, channel: str = "sms") -> dict[str, Any]:
    report: dict[str, Any] = sandbox.report()["channels"][channel]
    return report


def until(look: Callable[[], Any]) -> Any:
    """What `look` sees as soon as it is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        seen = look()
        if seen:
            return seen
    raise AssertionError("it never came")


def settled(sandbox: SandboxClient, channel: str = "sms") -> dict[str, Any]:
    """The counts, once the server has seen the last connection end."""
    until(lambda: counts(sandbox, channel)["in_flight"] == 0)
    return counts(sandbox, channel)


@contextlib.contextmanager
def open_call(sandbox: SandboxClient, marker: str = "open", key: str = "") -> Iterator[None]:
    """A call that has arrived in full, whose client waits for its answer until the end of the block."""
    body = json.dumps({"to": NUMBER, "text": f"[ref:{marker}]"}).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: {len(body)}"
    before = counts(sandbox)["calls"]
    with socket.create_connection((sandbox.host, sandbox.http_port)) as raw:
        raw.sendall(head.encode() + b"\r\n\r\n" + body)
        until(lambda: counts(sandbox)["calls"] > before)
        yield


# --- sending, and counting by the marker in the content


def test_a_generic_message_is_accepted_and_counted(sandbox: SandboxClient) -> None:
    answer = sms(sandbox, "loan-7:ann:sms", reference="our-1")
    assert answer.status == 202
    assert answer.json == {"id": answer.json["id"], "status": "accepted", "reference": "our-1"}
    assert answer.json["id"].startswith("sbx-")
    [effect] = sandbox.effects("loan-7:ann:sms")
    assert effect["receipt"] == answer.json["id"]
    assert (effect["to"], effect["reference"], effect["channel"]) == (NUMBER, "our-1", "sms")
    assert abs(effect["at"] / 1e6 - time.time()) < 60


def test_a_twilio_message_has_twilios_shape(sandbox: SandboxClient) -> None:
    answer = twilio(sandbox, "r9")
    assert answer.status == 201
    message = answer.json
    assert message["sid"].startswith("SM")
    assert len(message["sid"]) == 34
    assert message["status"] == "queued"
    assert message["account_sid"] == SID
    assert message["to"] == NUMBER
    assert message["error_code"] is None
    assert parsedate_to_datetime(message["date_created"]).tzinfo is not None
    assert [effect["receipt"] for effect in sandbox.effects("r9")] == [message["sid"]]


def test_an_email_is_accepted_and_its_receipt_told(sandbox: SandboxClient) -> None:
    with smtp(sandbox) as client:
        client.ehlo()
        client.mail("pay@example.com")
        client.rcpt("ann@example.com")
        code, text = client.data(mail("m1").as_bytes())
    [effect] = sandbox.effects("m1")
    assert code == 250
    assert text.decode().endswith(effect["receipt"])
    assert effect["reference"] == "<m1@example.com>"
    assert counts(sandbox, "email")["effects"] == 1


def test_emails_can_also_be_sent_over_http(sandbox: SandboxClient) -> None:
    assert sms(sandbox, "h1", path="/v1/emails", to="ann@example.com").status == 202
    assert counts(sandbox, "email")["markers"] == 1


def test_effects_beyond_one_for_a_marker_are_duplicates_whatever_their_keys(sandbox: SandboxClient) -> None:
    for key in ("a", "b", "c"):
        sms(sandbox, "same", key=key)
    sms(sandbox, "other")
    sms(sandbox, "x", text="no marker here")
    report = counts(sandbox)
    assert (report["effects"], report["markers"], report["unmarked"]) == (5, 2, 1)
    assert report["duplicates"] == 2
    assert report["duplicate_markers"] == ["same"]


def test_the_same_marker_on_both_channels_is_no_duplicate(sandbox: SandboxClient) -> None:
    sms(sandbox, "both")
    send_mail(sandbox, mail("both"))
    assert counts(sandbox)["duplicates"] == counts(sandbox, "email")["duplicates"] == 0
    assert len(sandbox.effects("both")) == 2


@pytest.mark.parametrize("encoding", ["7bit", "quoted-printable", "base64"])
def test_the_marker_is_found_in_the_decoded_text(sandbox: SandboxClient, encoding: str) -> None:
    message = mail("unused")
    message.set_content("x" * 60 + " [ref:shipment-4821:customer-73:email] bye\n", cte=encoding)
    send_mail(sandbox, message)
    assert len(sandbox.effects("shipment-4821:customer-73:email")) == 1


def test_the_marker_is_found_in_html_and_in_an_encoded_subject(sandbox: SandboxClient) -> None:
    html = mail("unused")
    html.set_content("<p>Hello [ref:in-html]</p>", subtype="html")
    send_mail(sandbox, html)
    titled = mail("unused", subject="Zahlung fällig – bitte prüfen [ref:in-subject]")
    titled.set_content("nothing here\n")
    send_mail(sandbox, titled)
    assert len(sandbox.effects("in-html")) == 1
    assert len(sandbox.effects("in-subject")) == 1


def test_keys_headers_and_message_ids_are_never_taken_for_the_marker(sandbox: SandboxClient) -> None:
    sms(sandbox, text="plain", key="[ref:key]", reference="[ref:reference]")
    message = "Subject: Due\r\nMessage-ID: <[ref:id]@example.com>\r\nX-Key: [ref:header]\r\n\r\nplain\r\n"
    with smtp(sandbox) as client:
        client.sendmail("pay@example.com", "ann@example.com", message)
    assert counts(sandbox)["unmarked"] == counts(sandbox, "email")["unmarked"] == 1


def test_each_recipient_of_a_mail_is_an_effect(sandbox: SandboxClient) -> None:
    with smtp(sandbox) as client:
        client.sendmail("pay@example.com", ["a@example.com", "b@example.com"], mail("m2").as_bytes())
    assert sorted(effect["to"] for effect in sandbox.effects("m2")) == ["a@example.com", "b@example.com"]


def test_arrivals_tell_each_call_in_order(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"error_before": {"every": 2}})
    statuses = [sms(sandbox, f"r{n}").status for n in range(4)]
    rows = sandbox.arrivals()
    assert statuses == [202, 503, 202, 503]
    assert [row["answer"] for row in rows] == ["accepted", "error_before"] * 2
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert all(row["ended_at"] >= row["at"] and row["admitted"] for row in rows)


# --- limits


def test_the_rate_limit_is_an_exact_sliding_window(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"rate_limit": 3, "rate_interval_s": 0.4})
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        sms(sandbox)
    report = counts(sandbox)
    assert report["worst_window"]["interval_s"] == 0.4
    assert report["worst_window"]["admitted"] == 3
    assert report["worst_window"]["calls"] > 3
    assert report["effects"] in range(6, 13)  # 3 in each of 3.75 windows, the last begun
    assert report["throttled"] == report["answers"]["throttled_rate"] == report["calls"] - report["effects"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"retry_after": "seconds", "retry_after_s": 2.2}, "3"),
        ({"retry_after": "zero"}, "0"),
        ({"retry_after": "absent"}, None),
        ({"retry_after": "garbage"}, "soon"),
        ({"retry_after": "garbage", "retry_after_text": "9999999999"}, "9999999999"),
    ],
)
def test_retry_after_takes_each_form(
    sandbox: SandboxClient, rules: dict[str, Any], expected: str | None
) -> None:
    sandbox.change(sms={"throttle": {"next": 2}, **rules})
    for answer in (sms(sandbox), twilio(sandbox)):
        assert answer.status == 429
        assert answer.headers["Retry-After"] == expected


def test_retry_after_can_be_a_date(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"throttle": {"next": 1}, "retry_after": "date", "retry_after_s": 90})
    value = sms(sandbox).headers["Retry-After"]
    assert value.endswith("GMT")
    assert 80 < (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds() < 100


def test_the_next_few_and_every_kth_can_be_throttled(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"throttle": {"next": 2, "every": 3}})
    assert [sms(sandbox).status for _ in range(7)] == [429, 429, 429, 202, 202, 429, 202]
    assert sandbox.rules()["sms"]["throttle"] == {"probability": 0.0, "every": 3, "next": 0}


def test_the_quota_has_its_own_answer(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"quota_limit": 1, "rate_limit": 100})
    assert sms(sandbox).status == 202
    assert sms(sandbox).json["error"]["code"] == "quota_exceeded"
    assert twilio(sandbox).json["code"] == 63038
    assert counts(sandbox)["answers"]["throttled_quota"] == 2


def test_the_concurrency_limit_counts_open_calls(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"concurrency_limit": 2, "hung": {"next": 2}})
    with open_call(sandbox):
        with open_call(sandbox):
            assert [sms(sandbox).status for _ in range(2)] == [429, 429]
        until(lambda: counts(sandbox)["in_flight"] == 1)
        assert sms(sandbox).status == 202  # there is room again
    report = settled(sandbox)
    assert report["answers"] == {"hung": 2, "throttled_concurrency": 2, "accepted": 1}
    assert report["most_in_flight"] == 3  # two admitted, and the one being refused


def test_throttled_twilio_calls_have_twilios_code(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"throttle": {"next": 1}})
    answer = twilio(sandbox)
    assert answer.json["code"] == 20429
    assert answer.json["status"] == answer.status == 429
    assert answer.json["more_info"].endswith("/20429")


def test_smtp_is_throttled_at_mail_and_stays_usable(sandbox: SandboxClient) -> None:
    sandbox.change(email={"throttle": {"next": 1}})
    with smtp(sandbox) as client:
        client.ehlo()
        assert client.mail("pay@example.com") == (450, b"4.7.1 Too many messages, slow down")
        client.send_message(mail("m3"))
    report = counts(sandbox, "email")
    assert (report["calls"], report["throttled"], report["effects"]) == (2, 1, 1)


def test_smtp_hangs_up_after_421(sandbox: SandboxClient) -> None:
    sandbox.change(email={"throttle": {"next": 1}, "throttle_reply": "421 4.7.0 Try again later"})
    with smtp(sandbox) as client:
        client.ehlo()
        assert client.mail("pay@example.com")[0] == 421
        with pytest.raises(smtplib.SMTPServerDisconnected):
            client.noop()
    assert settled(sandbox, "email")["answers"] == {"throttled_script": 1}


def test_smtp_obeys_its_rate_and_quota(sandbox: SandboxClient) -> None:
    sandbox.change(email={"rate_limit": 1, "rate_interval_s": 60})
    with smtp(sandbox) as client:
        client.send_message(mail("m4"))
        with pytest.raises(smtplib.SMTPSenderRefused, match="slow down"):
            client.send_message(mail("m5"))
    sandbox.reset(rules=True)
    sandbox.change(email={"quota_limit": 1})
    with smtp(sandbox) as client:
        client.send_message(mail("m6"))
        with pytest.raises(smtplib.SMTPSenderRefused, match="quota"):
            client.send_message(mail("m7"))


# --- time


def test_latency_is_before_the_answer_and_after_the_effect(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"latency_s": 0.15}, email={"latency_s": [0.15, 0.2]})
    sms(sandbox, "slow")
    send_mail(sandbox, mail("slow"))
    for row in sandbox.arrivals():
        assert 150_000 <= row["ended_at"] - row["at"] < 2_000_000
        effects = [effect for effect in sandbox.effects("slow") if effect["channel"] == row["channel"]]
        assert effects[0]["at"] <= row["ended_at"] - 150_000


def test_a_late_effect_happens_though_the_client_is_gone(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"effect_delay_s": 0.2, "latency_s": 60})
    with open_call(sandbox, "late"):
        pass
    report = settled(sandbox)
    assert report["answers"] == {"gone": 1}
    until(lambda: counts(sandbox)["effects"])
    [effect] = sandbox.effects("late")
    assert effect["at"] - report["first_at"] >= 200_000


# --- faults: seen by the client, counted at the door

HTTP_FAULTS = [
    # fault, what the client sees, effects, a count that rises
    ("cut_early", ConnectionResetError, 0, "lost_requests"),
    ("lost_before", ConnectionResetError, 0, "lost_requests"),
    ("error_before", 503, 0, None),
    ("error_after", 500, 1, None),
    ("lost_after", ConnectionResetError, 1, "lost_responses"),
    ("truncated", http.client.IncompleteRead, 1, "lost_responses"),
]


@pytest.mark.parametrize(("fault", "seen", "effects", "count"), HTTP_FAULTS)
@pytest.mark.parametrize("send", [sms, twilio])
def test_http_faults(
    sandbox: SandboxClient, send: Any, fault: str, seen: Any, effects: int, count: str | None
) -> None:
    sandbox.change(sms={fault: {"next": 1}})
    if isinstance(seen, int):
        assert send(sandbox, "f").status == seen
    else:
        with pytest.raises(seen):
            send(sandbox, "f")
    report = settled(sandbox)
    assert report["answers"] == {fault: 1}
    assert len(sandbox.effects("f")) == report["effects"] == effects
    if count is not None:
        assert report[count] == 1
    assert send(sandbox, "g").status in (201, 202)  # one was asked for, and one came


def test_http_can_leave_a_client_waiting(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"hung": {"next": 1}})
    connection = http.client.HTTPConnection(sandbox.host, sandbox.http_port, timeout=0.2)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/messages", json.dumps({"to": NUMBER, "text": "[ref:h]"}))
        with pytest.raises(TimeoutError):
            connection.getresponse()
    report = settled(sandbox)
    assert report["answers"] == {"hung": 1}
    assert (report["effects"], report["lost_responses"]) == (1, 1)


SMTP_FAULTS = [
    ("cut_early", None, 0, "lost_requests"),
    ("lost_before", None, 0, "lost_requests"),
    ("error_before", 451, 0, None),
    ("error_after", 451, 1, None),
    ("lost_after", None, 1, "lost_responses"),
    ("truncated", None, 1, "lost_responses"),
]


@pytest.mark.parametrize(("fault", "code", "effects", "count"), SMTP_FAULTS)
def test_smtp_faults(
    sandbox: SandboxClient, fault: str, code: int | None, effects: int, count: str | None
) -> None:
    sandbox.change(email={fault: {"next": 1}})
    with smtp(sandbox) as client:
        client.ehlo()
        client.mail("pay@example.com")
        client.rcpt("ann@example.com")
        if code is not None:
            assert client.data(mail("f").as_bytes())[0] == code
        else:
            with pytest.raises((smtplib.SMTPServerDisconnected, smtplib.SMTPDataError, OSError)):
                expect_whole_reply(client.data(mail("f").as_bytes()))
    report = settled(sandbox, "email")
    assert report["answers"] == {fault: 1}
    assert len(sandbox.effects("f")) == report["effects"] == effects
    if count is not None:
        assert report[count] == 1
    send_mail(sandbox, mail("g"))


def expect_whole_reply(reply: tuple[int, bytes]) -> None:
    """smtplib takes a half line for a reply; a whole one of ours tells the receipt."""
    if b"queued as sbx-" not in reply[1]:
        raise smtplib.SMTPServerDisconnected("half a reply")


def test_smtp_can_leave_a_client_waiting(sandbox: SandboxClient) -> None:
    sandbox.change(email={"hung": {"next": 1}})
    with smtp(sandbox) as client:
        client.ehlo()
        client.mail("pay@example.com")
        client.rcpt("ann@example.com")
        assert client.sock is not None
        client.sock.settimeout(0.2)
        with pytest.raises(smtplib.SMTPServerDisconnected, match="timed out"):
            client.data(mail("h").as_bytes())
    report = settled(sandbox, "email")
    assert report["answers"] == {"hung": 1}
    assert report["effects"] == 1


def test_the_cut_before_the_final_dot_takes_nothing(sandbox: SandboxClient) -> None:
    with smtp(sandbox) as client:
        client.ehlo()
        client.mail("pay@example.com")
        client.rcpt("ann@example.com")
        client.docmd("DATA")
        client.send(b"Subject: half\r\n\r\n[ref:half]\r\n")
    report = settled(sandbox, "email")
    assert report["answers"] == {"abandoned": 1}
    assert report["effects"] == 0


def test_a_share_of_answers_is_lost_by_the_seed(sandbox: SandboxClient) -> None:
    def lost() -> list[int]:
        sandbox.reset(rules=True)
        sandbox.change(sms={"lost_after": 0.3, "latency_s": [0, 0.001]})
        for n in range(40):
            with contextlib.suppress(ConnectionResetError):
                sms(sandbox, f"r{n}")
        return [n for n, row in enumerate(sandbox.arrivals()) if row["answer"] == "lost_after"]

    first = lost()
    assert 3 < len(first) < 25
    assert lost() == first
    assert counts(sandbox)["effects"] == 40


# --- refusals


def test_recipients_are_refused_in_each_protocols_own_words(sandbox: SandboxClient) -> None:
    recipients = [
        {"pattern": r"^\+1555000", "refusal": "opted_out"},
        {"pattern": r"9$", "refusal": "not_mobile"},
        {"pattern": "^nobody@", "refusal": "invalid"},
        {"pattern": "^full@", "refusal": "mailbox_full"},
        {"pattern": "^odd@", "refusal": "blocked", "reply": "571 5.7.1 Go away"},
    ]
    sandbox.change(sms={"recipients": recipients}, email={"recipients": recipients})
    assert twilio(sandbox, To="+15550001234").json["code"] == 21610
    assert twilio(sandbox, To="+15551230009").json["code"] == 21614
    assert twilio(sandbox, To="12").json["code"] == 21211
    assert sms(sandbox, to="+15550001234").json["error"]["code"] == "opted_out"
    assert sms(sandbox, to="call me").json["error"]["code"] == "invalid_recipient"
    assert counts(sandbox)["answers"] == {"refused": 5}
    with smtp(sandbox) as client:
        client.ehlo()
        client.mail("pay@example.com")
        assert client.rcpt("nobody@example.com") == (550, b"5.1.1 No such user here")
        assert client.rcpt("FULL@example.com")[0] == 452
        assert client.rcpt("odd@example.com") == (571, b"5.7.1 Go away")
        client.rset()
    assert counts(sandbox, "email")["answers"] == {"refused": 1}
    assert sandbox.effects() == []


def test_senders_that_are_not_ours_are_refused(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"refused_senders": "^Shop$|9$"}, email={"refused_senders": "@evil"})
    assert sms(sandbox).status == 403
    assert twilio(sandbox, From="+15550000009").json["code"] == 21606
    with smtp(sandbox) as client:
        client.ehlo()
        assert client.mail("x@evil.example")[0] == 553


@pytest.mark.parametrize(
    ("form", "code"),
    [({"To": ""}, 21604), ({"From": ""}, 21603), ({"Body": ""}, 21602), ({"Body": "x" * 1601}, 21617)],
)
def test_twilio_demands_its_fields(sandbox: SandboxClient, form: dict[str, str], code: int) -> None:
    answer = twilio(sandbox, **form)
    assert (answer.status, answer.json["code"]) == (400, code)
    assert counts(sandbox)["answers"] == {"malformed": 1}


@pytest.mark.parametrize("body", [b"", b"nope", b"[]", b'{"to": 1, "text": "x"}', b'{"to": "+15551234567"}'])
def test_the_generic_api_refuses_what_it_cannot_read(sandbox: SandboxClient, body: bytes) -> None:
    assert call(sandbox, "POST", "/v1/messages", body).status == 400
    assert counts(sandbox)["answers"] == {"malformed": 1}


def test_credentials_can_go_bad_while_running(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"refuse_credentials": True}, email={"refuse_credentials": True})
    assert sms(sandbox).status == 401
    assert twilio(sandbox).json["code"] == 20003
    assert call(sandbox, "GET", "/v1/account").status == 401
    with smtp(sandbox) as client, pytest.raises(smtplib.SMTPAuthenticationError) as refused:
        client.login("any", "any")
    assert refused.value.smtp_code == 535
    sandbox.change(sms={"refuse_credentials": None})
    assert call(sandbox, "GET", "/v1/account").status == 200


# --- idempotency keys


def test_a_known_key_gives_the_same_receipt_and_no_second_effect(sandbox: SandboxClient) -> None:
    first, again = sms(sandbox, key="k"), sms(sandbox, key="k")
    assert again.body == first.body
    assert first.headers["Idempotent-Replayed"] is None
    assert again.headers["Idempotent-Replayed"] == "true"
    report = counts(sandbox)
    assert (report["effects"], report["replays"], report["duplicates"]) == (1, 1, 0)


def test_the_key_may_stand_in_the_body(sandbox: SandboxClient) -> None:
    assert sms(sandbox, idempotency_key="k").body == sms(sandbox, idempotency_key="k").body
    assert counts(sandbox)["effects"] == 1


def test_a_key_survives_a_lost_answer(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"lost_after": {"next": 1}})
    with pytest.raises(ConnectionResetError):
        sms(sandbox, key="k")
    again = sms(sandbox, key="k")
    assert again.status == 202
    assert again.json["id"] == sandbox.effects("r1")[0]["receipt"]
    assert counts(sandbox)["effects"] == 1


def test_a_key_with_another_body_is_422(sandbox: SandboxClient) -> None:
    sms(sandbox, "one", key="k")
    answer = sms(sandbox, "two", key="k")
    assert (answer.status, answer.json["error"]["code"]) == (422, "idempotency_mismatch")
    assert counts(sandbox)["answers"]["key_mismatch"] == 1


def test_a_key_in_flight_is_409(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"latency_s": 60})
    with open_call(sandbox, "first", key="k"):
        sandbox.change(sms={"latency_s": 0})
        body = json.dumps({"to": NUMBER, "text": "[ref:first]"}).encode()
        answer = call(sandbox, "POST", "/v1/messages", body, {"Idempotency-Key": "k"})
        assert (answer.status, answer.json["error"]["code"]) == (409, "idempotency_in_flight")
    assert settled(sandbox)["answers"] == {"gone": 1, "key_in_flight": 1}
    assert len(sandbox.effects("first")) == 1


def test_keys_are_forgotten_after_their_window_or_ignored(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"idempotency_window_s": 0})
    sms(sandbox, key="k")
    sms(sandbox, key="k")
    assert counts(sandbox)["duplicates"] == 1
    sandbox.change(sms={"idempotency_window_s": None, "idempotency": "ignored"})
    sms(sandbox, key="k")
    assert counts(sandbox)["duplicates"] == 2


# --- look-up


def test_look_up_by_reference_with_an_index_that_lags(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"lookup_lag_s": 0.2})
    receipt = sms(sandbox, reference="our 1/ü").json["id"]
    target = f"/v1/messages?reference={quote('our 1/ü')}"
    assert call(sandbox, "GET", target).json == {"messages": []}
    found = until(lambda: call(sandbox, "GET", target).json["messages"])
    assert [message["id"] for message in found] == [receipt]
    assert call(sandbox, "GET", f"/v1/messages/{receipt}").json["to"] == NUMBER
    assert counts(sandbox)["lookups"] >= 3
    assert counts(sandbox)["calls"] == 1


def test_look_up_can_fail_or_be_missing(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"lookup_error": {"next": 1}})
    assert [call(sandbox, "GET", "/v1/messages?reference=x").status for _ in range(2)] == [503, 200]
    sandbox.change(sms={"lookup": False})
    assert call(sandbox, "GET", "/v1/messages?reference=x").status == 404
    assert call(sandbox, "GET", f"/2010-04-01/Accounts/{SID}/Messages.json").status == 404


def test_twilio_lists_by_to_from_and_day_newest_first(sandbox: SandboxClient) -> None:
    sids = [twilio(sandbox, f"t{n}").json["sid"] for n in range(3)]
    twilio(sandbox, To="+15557654321")
    sms(sandbox, "generic")  # of the other API, never listed here
    base = f"/2010-04-01/Accounts/{SID}/Messages.json"
    today = datetime.now(UTC).date()

    def listed(**query: str) -> list[str]:
        answer = call(sandbox, "GET", f"{base}?{urlencode(query)}")
        return [message["sid"] for message in answer.json["messages"]]

    assert listed(To=NUMBER) == sids[::-1]
    assert len(listed()) == 4
    assert listed(To=NUMBER, From="+15550001111", **{"DateSent>": str(today - timedelta(1))}) == sids[::-1]
    assert listed(To=NUMBER, DateSent=str(today + timedelta(7))) == []
    assert listed(To=NUMBER, **{"DateSent<": str(today - timedelta(1))}) == []
    assert listed(From="+15559999999") == []
    page = call(sandbox, "GET", f"{base}?To={quote(NUMBER)}&PageSize=2").json
    rest = call(sandbox, "GET", page["next_page_uri"]).json
    assert [m["sid"] for m in page["messages"] + rest["messages"]] == sids[::-1]
    assert rest["next_page_uri"] is None
    one = call(sandbox, "GET", f"/2010-04-01/Accounts/{SID}/Messages/{sids[0]}.json").json
    assert one["body"] == "Due today [ref:t0]"
    assert call(sandbox, "GET", f"/2010-04-01/Accounts/{SID}.json").json["status"] == "active"
    assert call(sandbox, "GET", f"{base}?DateSent=yesterday").json["code"] == 20001


# --- later events


class Receiver:
    """A customer's webhook: an HTTP server in a thread that keeps what it gets."""

    def __init__(self) -> None:
        self.got: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.put((dict(self.headers), body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?id=7"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def get(self) -> tuple[dict[str, str], bytes]:
        return self.got.get(timeout=TIMEOUT_S)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as receiver:
        yield receiver


def test_twilio_events_go_signed_to_the_status_callback(receiver: Receiver) -> None:
    settings = SandboxSettings(twilio_auth_token="secret")
    with sandbox_in_thread(settings) as sandbox:
        sandbox.change(sms={"events": {"delay_s": 0, "bounce_pattern": "99$"}})
        sid = twilio(sandbox, token="secret", StatusCallback=receiver.url).json["sid"]
        headers, body = receiver.get()
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        assert (form["MessageSid"], form["MessageStatus"]) == (sid, "delivered")
        assert headers["X-Twilio-Signature"] == twilio_signature("secret", receiver.url, form)
        twilio(sandbox, token="secret", To="+15551230099", StatusCallback=receiver.url)
        form = {name: values[0] for name, values in parse_qs(receiver.get()[1].decode()).items()}
        assert (form["MessageStatus"], form["ErrorCode"]) == ("undelivered", "30003")


def test_other_events_go_to_the_events_url(receiver: Receiver) -> None:
    settings = SandboxSettings(events_url=receiver.url, events_secret="whsec_c2VjcmV0")
    with sandbox_in_thread(settings) as sandbox:
        sandbox.change(email={"events": {"delay_s": 0, "complained": {"next": 1}}})
        send_mail(sandbox, mail("e1"))
        headers, body = receiver.get()
        types = {json.loads(body)["type"], json.loads(receiver.get()[1])["type"]}
        assert types == {"delivered", "complained"}
        assert json.loads(body)["reference"] == "<e1@example.com>"
        identity, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        assert headers["webhook-signature"] == standard_signature("secret", identity, timestamp, body)


def test_events_may_come_twice_or_never(sandbox: SandboxClient, receiver: Receiver) -> None:
    sandbox.change(sms={"events": {"delay_s": 0, "repeated": {"next": 1}, "lost": {"next": 1}}})
    sms(sandbox, "lost", callback_url=receiver.url)
    sms(sandbox, "twice", callback_url=receiver.url)
    bodies = [json.loads(receiver.get()[1]) for _ in range(2)]
    assert bodies[0]["id"] == bodies[1]["id"]
    assert [event["marker"] for event in sandbox.events()] == ["twice", "twice"]


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/x", "http://example.com/x", "http://10.0.0.1/", "ftp://x", "?"]
)
def test_nobody_outside_is_ever_called(sandbox: SandboxClient, url: str) -> None:
    sandbox.change(sms={"events": {"delay_s": 0}})
    sms(sandbox, callback_url=url)
    events = until(sandbox.events)
    assert events[0]["result"].startswith("not posted")


# --- steering


def test_control_merges_and_null_goes_back_to_the_default(sandbox: SandboxClient) -> None:
    before = sandbox.rules()
    sandbox.change(sms={"rate_limit": 5, "events": {"delay_s": 2}})
    after = sandbox.change(sms={"latency_s": 0.01})["sms"]
    assert (after["rate_limit"], after["latency_s"]) == (5, [0.01, 0.01])
    assert after["events"]["delay_s"] == [2, 2]
    sandbox.change(sms={"rate_limit": None, "latency_s": None, "events": None})
    assert sandbox.rules() == before


def test_a_later_change_does_not_arm_a_fault_again(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"throttle": {"next": 1}})
    assert sms(sandbox).status == 429
    sandbox.change(sms={"rate_limit": 100})
    assert sms(sandbox).status == 202
    sandbox.change(sms={"throttle": {"next": 1}})
    assert sms(sandbox).status == 429


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"sms": {"rate_limt": 5}}, "did you mean 'rate_limit'"),
        ({"sms": {"rate_limit": -1}}, "sms.rate_limit: -1 must be a whole number"),
        ({"sms": {"events": {"bounced": {"every": "x"}}}}, "sms.events.bounced.every"),
        ({"sms": {"latency_s": [2, 1]}}, "lowest"),
        ({"sms": {"lost_after": 1.5}}, "sms.lost_after.probability"),
        ({"email": {"throttle_reply": "999 no"}}, "SMTP reply"),
        ({"sms": {"recipients": [{"pattern": "("}]}}, "regular expression"),
        ({"sms": {"retry_after": "later"}}, "seconds, date, absent, garbage, zero"),
        ({"voice": {}}, "no channel"),
        ({"sms": 5}, "object"),
    ],
)
def test_a_wrong_change_is_refused_and_changes_nothing(
    sandbox: SandboxClient, patch: dict[str, Any], words: str
) -> None:
    before = sandbox.rules()
    with pytest.raises(InvalidInput) as refused:
        sandbox.change(**{"email": {"rate_limit": 7}, **patch})
    assert words in str(refused.value)
    assert sandbox.rules() == before


def test_a_body_that_is_not_json_is_refused(sandbox: SandboxClient) -> None:
    for body in (b"", b"{", b"3", b'"sms"'):
        assert call(sandbox, "POST", "/control", body).status == 400
    assert call(sandbox, "POST", "/reset", b"[]").status == 400


def test_reset_forgets_counts_and_keeps_rules_unless_asked(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"rate_limit": 5})
    first = sms(sandbox, "a", key="k").json["id"]
    sandbox.reset()
    report = counts(sandbox)
    assert (report["calls"], report["effects"], report["first_at"]) == (0, 0, None)
    assert sandbox.rules()["sms"]["rate_limit"] == 5
    assert sms(sandbox, "a", key="k").json["id"] > first  # a receipt never comes twice
    sandbox.reset(rules=True)
    assert sandbox.rules()["sms"]["rate_limit"] == 0


def test_a_call_that_is_open_at_a_reset_still_counts_as_open(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"hung": {"next": 1}})
    with open_call(sandbox):
        sandbox.reset()
        report = counts(sandbox)
        assert (report["in_flight"], report["most_in_flight"], report["calls"]) == (1, 1, 0)
    report = settled(sandbox)
    assert (report["in_flight"], report["calls"], report["answers"]) == (0, 0, {})


def test_health_report_and_unknown_paths(sandbox: SandboxClient) -> None:
    assert call(sandbox, "GET", "/healthz").json == {"status": "ok"}
    assert call(sandbox, "GET", "/nowhere").status == 404
    assert call(sandbox, "DELETE", "/v1/messages").status == 404
    assert sandbox.report()["durable"] is False
    assert sandbox.report(interval_s=2.5)["channels"]["sms"]["worst_window"]["interval_s"] == 2.5
    for bad in ("x", "-1", "0", "nan", "inf"):
        assert call(sandbox, "GET", f"/report?interval_s={bad}").status == 400


# --- HTTP itself


def test_requests_in_one_burst_are_answered_in_order(sandbox: SandboxClient) -> None:
    sandbox.change(sms={"latency_s": [0, 0.02]})
    requests = b""
    for n in range(20):
        body = json.dumps({"to": NUMBER, "text": f"[ref:p{n}]", "reference": f"p{n}"}).encode()
        last = b"Connection: close\r\n" if n == 19 else b""
        requests += b"POST /v1/messages HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s" % (
            last,
            len(body),
            body,
        )
    assert raw_exchange(sandbox, requests).count(b"HTTP/1.1 202") == 20
    assert [effect["marker"] for effect in sandbox.effects()] == [f"p{n}" for n in range(20)]


def test_a_request_may_come_in_pieces(sandbox: SandboxClient) -> None:
    body = b'{"to": "+15551234567", "text": "[ref:pieces]"}'
    request = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    with socket.create_connection((sandbox.host, sandbox.http_port)) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request % (len(body), body):
            raw.sendall(bytes([byte]))
        assert raw.recv(65_536).startswith(b"HTTP/1.1 202 Accepted")
    assert len(sandbox.effects("pieces")) == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"garbage\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", b"404"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
        (b"POST /control HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_100_000, b"413"),
    ],
)
def test_what_is_not_a_decent_request_is_refused(
    sandbox: SandboxClient, request_bytes: bytes, status: bytes
) -> None:
    assert raw_exchange(sandbox, request_bytes).split(b" ")[1] == status
    assert call(sandbox, "GET", "/healthz").status == 200


def raw_exchange(sandbox: SandboxClient, request: bytes) -> bytes:
    answer = b""
    with socket.create_connection((sandbox.host, sandbox.http_port), timeout=TIMEOUT_S) as raw:
        with contextlib.suppress(ConnectionError):  # it may hang up before it has read everything
            raw.sendall(request)
        with contextlib.suppress(ConnectionError):
            while data := raw.recv(65_536):
                answer += data
    return answer


# --- credentials and TLS


def test_configured_credentials_are_demanded() -> None:
    settings = SandboxSettings(
        smtp_username="shop",
        smtp_password="pw",
        api_token="token",
        twilio_account_sid=SID,
        twilio_auth_token="secret",
    )
    assert "secret" not in repr(settings)
    assert "pw" not in repr(settings)
    with sandbox_in_thread(settings) as sandbox:
        assert sms(sandbox).status == 401
        assert sms(sandbox, headers={"Authorization": "Bearer wrong"}).status == 401
        assert sms(sandbox, headers={"Authorization": "Bearer token"}).status == 202
        assert sms(sandbox, headers=basic("any", "token")).status == 202
        assert twilio(sandbox, token="wrong").json["code"] == 20003
        assert twilio(sandbox, token="secret").status == 201
        with smtp(sandbox) as client:
            client.ehlo()
            assert client.mail("pay@example.com")[0] == 530
            for method in ("PLAIN", "LOGIN"):
                client.user, client.password = "shop", "wrong"
                with pytest.raises(smtplib.SMTPAuthenticationError):
                    client.auth(method, getattr(client, f"auth_{method.lower()}"))
            client.login("shop", "pw")
            client.send_message(mail("auth"))
        assert counts(sandbox)["answers"] == {"unauthorized": 3, "accepted": 3}
        assert counts(sandbox, "email")["answers"] == {"unauthorized": 1, "accepted": 1}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(cert_file), str(key_file)


@pytest.mark.parametrize("mode", ["starttls", "starttls_required", "implicit"])
def test_smtp_over_tls(certificate: tuple[str, str], mode: str) -> None:
    cert, key = certificate
    with sandbox_in_thread(read_settings({"smtp_tls": mode, "tls_cert": cert, "tls_key": key})) as sandbox:
        assert sandbox.tls_cert == cert
        trust = ssl.create_default_context(cafile=cert)
        if mode == "implicit":
            client: smtplib.SMTP = smtplib.SMTP_SSL(
                "localhost", sandbox.smtp_port, timeout=TIMEOUT_S, context=trust
            )
        else:
            client = smtplib.SMTP("localhost", sandbox.smtp_port, timeout=TIMEOUT_S)
        with contextlib.closing(client):
            client.ehlo()
            if mode != "implicit":
                assert client.mail("a@example.com")[0] == (530 if mode == "starttls_required" else 250)
                client.rset()
                client.starttls(context=trust)
            client.send_message(mail("tls"))
            sandbox.change(email={"lost_after": {"next": 1}})
            with pytest.raises((smtplib.SMTPServerDisconnected, OSError)):
                client.send_message(mail("tls-lost"))
        assert {effect["marker"] for effect in sandbox.effects()} == {"tls", "tls-lost"}
        assert settled(sandbox, "email")["lost_responses"] == 1


def test_a_certificate_is_made_where_openssl_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(ConfigError, match="set tls_cert and tls_key"),
        sandbox_in_thread(read_settings({"smtp_tls": "starttls"})),
    ):
        pass
    openssl = tmp_path / "openssl"
    openssl.write_text("#!/bin/sh\necho no luck >&2\nexit 1\n")
    openssl.chmod(0o755)
    with (
        pytest.raises(ConfigError, match="no luck"),
        sandbox_in_thread(read_settings({"smtp_tls": "starttls"})),
    ):
        pass


def test_tls_files_belong_together_and_must_be_good(certificate: tuple[str, str], tmp_path: Path) -> None:
    cert, _ = certificate
    for files in ({"tls_cert": cert}, {"tls_cert": cert, "tls_key": str(tmp_path / "none")}):
        with (
            pytest.raises(ConfigError, match="tls_cert"),
            sandbox_in_thread(read_settings({"smtp_tls": "starttls", **files})),
        ):
            pass


# --- starting and stopping


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "example.com", "::", ""])
def test_only_loopback_is_served(host: str) -> None:
    with pytest.raises(InvalidInput, match="loopback"):
        SandboxSettings(host=host)


def test_settings_read_back_what_they_say() -> None:
    settings = read_settings(
        {"seed": 7, "host": "localhost", "sms": {"lost_after": 0.1, "recipients": [{"pattern": "x"}]}}
    )
    assert settings.host == "127.0.0.1"
    assert settings.sms.lost_after.probability == 0.1
    assert read_settings(json.loads(json.dumps(to_json(settings)))) == settings
    with pytest.raises(InvalidInput, match="did you mean 'smtp_port'"):
        read_settings({"smtp_prt": 1})
    with pytest.raises(InvalidInput, match="sms: 5 must be an object"):
        read_settings({"sms": 5})


def test_it_runs_on_an_event_loop_and_stops_with_connections_open() -> None:
    async def run() -> None:
        sandbox = Sandbox()
        await sandbox.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.smtp_port)
        assert (await reader.readline()).startswith(b"220 ")
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", sandbox.http_port)
        idle_writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await idle_reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        await sandbox.stop()
        await sandbox.stop()
        for stream in (reader, idle_reader):
            with contextlib.suppress(ConnectionResetError):
                await stream.read()
        for open_writer in (writer, idle_writer):
            open_writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", sandbox.http_port)

    asyncio.run(run())


def test_serve_ends_when_it_is_cancelled() -> None:
    async def run() -> int:
        ready: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(SandboxSettings(), on_ready=ready.set_result))
        sandbox = await ready
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return sandbox.http_port

    port = asyncio.run(run())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_taken_port_is_said_plainly(sandbox: SandboxClient) -> None:
    with (
        pytest.raises(ConfigError, match="choose another port"),
        sandbox_in_thread(SandboxSettings(http_port=sandbox.http_port)),
    ):
        pass


def test_a_process_of_its_own_sends_faults_and_counts_too(receiver: Receiver) -> None:
    settings = SandboxSettings(events_url=receiver.url, sms=ChannelRules(rate_limit=1000))
    with sandbox_in_process(settings) as sandbox:
        sandbox.change(sms={"lost_after": {"next": 1}}, email={"lost_after": {"next": 1}})
        with pytest.raises(ConnectionResetError):
            sms(sandbox, "p1", key="k")
        assert sms(sandbox, "p1", key="k").headers["Idempotent-Replayed"] == "true"
        with pytest.raises(smtplib.SMTPServerDisconnected):
            send_mail(sandbox, mail("p2"))
        send_mail(sandbox, mail("p3"))
        assert {effect["marker"] for effect in sandbox.effects()} == {"p1", "p2", "p3"}
        assert json.loads(receiver.get()[1])["type"] == "delivered"
        port = sandbox.http_port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_process_that_cannot_start_says_why(sandbox: SandboxClient) -> None:
    with (
        pytest.raises(ConfigError, match="choose another port"),
        sandbox_in_process(SandboxSettings(http_port=sandbox.http_port)),
    ):
        pass


def test_the_command_line_takes_ports_and_a_file(tmp_path: Path) -> None:
    config = tmp_path / "sandbox.json"
    config.write_text(json.dumps({"seed": 3, "sms": {"rate_limit": 9}}))
    command = [sys.executable, "-m", "sendonce.testing.sandbox", "--smtp-port", "0", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        client = SandboxClient(**json.loads(process.stdout.readline()))
        with contextlib.closing(client):
            assert client.rules()["sms"]["rate_limit"] == 9
            assert client.report()["seed"] == 3
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    wrong = subprocess.run(
        [*command[:3], "--config", '{"sms": {"speed": 1}}'], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "sms.speed" in wrong.stderr


# --- arithmetic


@given(st.lists(st.integers(0, 50), max_size=30).map(sorted), st.integers(1, 20))
def test_the_worst_window_is_the_worst_of_all(times: list[int], width: int) -> None:
    every_start = [sum(start <= time < start + width for time in times) for start in range(51)]
    assert most_in_window(times, width) == max(every_start, default=0)


@given(st.integers(0, 10**6), st.floats(0, 1), st.booleans())
def test_merging_what_the_rules_say_changes_nothing(limit: int, share: float, lookup: bool) -> None:
    rules = merge_rules(
        ChannelRules(), {"rate_limit": limit, "lost_after": share, "lookup": lookup}, channel="sms"
    )
    assert merge_rules(rules, to_json(rules), channel="sms") == rules
    assert merge_rules(rules, {}, channel="sms") == rules


# --- the page that documents it


def test_every_setting_and_code_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")
    settings = {f.name for kind in (SandboxSettings, ChannelRules) for f in fields(kind)}
    told = {*settings, *(f"events.{f.name}" for f in fields(EventRules)), *(f.name for f in fields(Trigger))}
    missing = sorted(name for name in told if f"`{name}`" not in page and f"`{name}:" not in page)
    assert missing == []
    for refusal in Refusal:
        generic, code, _ = REFUSALS[refusal]
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{refusal}` |")]
        assert generic in row
        assert str(code) in row
        assert REPLIES[refusal][:9] in row
