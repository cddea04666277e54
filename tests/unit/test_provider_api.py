"""What vendors' adapters have in common: no answer surprises them, and no text of one gets through."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.errors import InvalidInput
from sendonce.core.outcome import Accepted, AccountError, Outcome, Reason, Rejected, Throttled, Unknown
from sendonce.ports.provider import EmailContent, SmsContent
from sendonce.providers import mailgun, notify, postmark, resend, sendgrid, ses, sinch, twilio, vonage
from sendonce.providers.api import code_in, email_of, json_body, mailbox, receipt_in, sms_of
from sendonce.runtime.http_client import Response
from sendonce.testing.conformance.provider import HttpContract, SmtpContract
from tests.api_calls import answer

NOW = 1_767_225_600_000_000
EMAIL, SMS = SmtpContract.message, HttpContract.message
CLASSIFY: dict[str, Callable[[Response, int], Outcome]] = {
    "mailgun": mailgun.classify,
    "notify": notify.classify,
    "postmark": postmark.classify,
    "resend": resend.classify,
    "sendgrid": sendgrid.classify,
    "ses": ses.classify,
    "sinch": sinch.classify,
    "twilio": twilio.classify,
    "vonage": vonage.classify,
}
every = pytest.mark.parametrize("name", CLASSIFY)

# Answers

ADDRESS, NUMBER = "ann.person@example.com", "+12025550123"
KEYS = st.sampled_from(
    [
        "id",
        "MessageID",
        "MessageId",
        "message_uuid",
        "ErrorCode",
        "Message",
        "message",
        "name",
        "code",
        "text",
        "type",
        "__type",
        "errors",
        "error",
        "field",
        "statusCode",
        "x",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-1, 10**12)
    | st.sampled_from([ADDRESS, NUMBER, NUMBER[1:], f"{ADDRESS}#1000", f"about {ADDRESS}"])
    | st.text(max_size=20)
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner), max_leaves=8
)
STATUSES = st.integers(200, 599)


@every
@given(status=STATUSES, body=JSON | st.binary(max_size=30))
def test_every_answer_means_something(name: str, status: int, body: object) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    outcome = CLASSIFY[name](Response(status, (), raw), NOW)
    if isinstance(outcome, Accepted):
        assert status in (200, 201, 202)
        assert outcome.receipt
    if status >= 500:
        assert isinstance(outcome, Unknown)
    if status == 429:
        assert not isinstance(outcome, Unknown), "a 429 was not processed"
    for part in (ADDRESS, "ann.person", NUMBER[1:]):
        assert part not in getattr(outcome, "code", "")


@every
def test_what_is_no_json_object_is_never_accepted(name: str) -> None:
    for body in (b"", b"[]", b"null", b"<html>", b"\xff", b'"id"', b"[" * 100_000):
        for status in (200, 201, 202):
            assert not isinstance(CLASSIFY[name](Response(status, (), body), NOW), Accepted)


@every
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, AccountError),
        (302, Unknown),
        (401, AccountError),
        (402, AccountError),
        (404, AccountError),
        (408, Unknown),
        (409, Unknown),
        (413, Rejected),
        (429, Throttled),
        (500, Unknown),
        (502, Unknown),
        (503, Unknown),
        (504, Unknown),
    ],
)
def test_a_status_that_nobody_explains(name: str, status: int, kind: type[Outcome]) -> None:
    assert isinstance(CLASSIFY[name](answer(status), NOW), kind)


@every
def test_a_date_in_retry_after_is_counted_from_the_answers_own(name: str) -> None:
    headers = (
        (b"Date", b"Thu, 01 Jan 2026 10:00:00 GMT"),
        (b"Retry-After", b"Thu, 01 Jan 2026 10:00:20 GMT"),
    )
    outcome = CLASSIFY[name](answer(429, None, *headers), NOW)
    assert isinstance(outcome, Throttled)
    assert outcome.retry_after_s == 20.0


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("ThrottlingException", "ThrottlingException"),
        (21211, "21211"),
        ("", ""),
        (None, ""),
        (True, ""),
        ("a b", ""),
        (ADDRESS, ""),
        (NUMBER, ""),
        (12025550123, ""),
        ("x" * 65, ""),
    ],
)
def test_a_code_holds_no_person(value: object, code: str) -> None:
    assert code_in(value) == code


def test_a_receipt_is_printable_and_short() -> None:
    assert receipt_in("<1@mg.example.org>") == "<1@mg.example.org>"
    for bad in (None, 1, "", "a b", "a\nb", "é", "x" * 201):
        assert receipt_in(bad) == ""


# Requests


@pytest.mark.parametrize(
    ("sender", "written"),
    [
        ("shop@example.org", "shop@example.org"),
        ("Shop <shop@example.org>", "Shop <shop@example.org>"),
        ("Shop, Ltd <shop@example.org>", '"Shop, Ltd" <shop@example.org>'),
        ('"The \\"Shop\\"" <shop@example.org>', '"The \\"Shop\\"" <shop@example.org>'),
        ("Café <shop@example.org>", '"Café" <shop@example.org>'),
    ],
)
def test_a_sender_is_one_mailbox(sender: str, written: str) -> None:
    assert mailbox(sender) == written


def test_a_sender_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput):
        mailbox("Shop shop@example.org>")


@pytest.mark.parametrize(
    "to",
    [
        "a@example.com,b@example.com",
        "a@example.com;b@example.com",
        "a@example.com b@example.com",
        "Ann <a@example.com>",
        "a@example.com\r\nBcc: b@example.com",
        "a",
        "",
        "<>",
        "a@@example.com",
    ],
)
def test_an_address_that_could_be_read_as_several_is_refused(to: str) -> None:
    assert email_of(replace(EMAIL, to=to)) == Rejected(Reason.INVALID_ADDRESS, "syntax")


@pytest.mark.parametrize("to", ["ann.person+tag@example.com", "ann@müller.example", "o'neil@example.com"])
def test_addresses_that_people_have_are_taken(to: str) -> None:
    assert isinstance(email_of(replace(EMAIL, to=to)), EmailContent)


@pytest.mark.parametrize("to", ["12025550123", "+1202555", "+0", "+12025550123,+12025550124", ""])
def test_only_whole_international_numbers_are_taken(to: str) -> None:
    taken = isinstance(sms_of(replace(SMS, to=to)), SmsContent)
    assert taken == (to == "+1202555")


def test_the_other_channel_is_a_configuration_error() -> None:
    assert email_of(SMS) == AccountError(Reason.CONFIGURATION, "not_email")
    assert sms_of(EMAIL) == AccountError(Reason.CONFIGURATION, "not_sms")


def test_a_body_is_ascii_and_whole() -> None:
    assert json_body({"a": "é\n", "b": [1]}) == b'{"a":"\\u00e9\\n","b":[1]}'
    with pytest.raises(ValueError, match="surrogate"):
        json_body({"a": "\ud800"})
