"""GOV.UK Notify: what is sent, what its answers mean, what its list proves, and its token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from sendonce.core.errors import InvalidInput
from sendonce.core.outcome import (
    Absent,
    Accepted,
    AccountError,
    Finding,
    Found,
    NoAnswer,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.promise import SECOND
from sendonce.ports.provider import EmailContent, Message
from sendonce.ports.secret import Secret
from sendonce.providers.notify import NotifyProvider, NotifySettings, classify, token
from sendonce.testing.conformance.provider import HttpContract, SmtpContract, json_answer
from tests.api_calls import answer, finding_of, request_of

SMS: Message = HttpContract.message
EMAIL: Message = SmtpContract.message
DAY = 86_400 * SECOND
NOW = SMS.frozen_at + DAY  # midnight UTC, a day after publication
SERVICE = "26785a09-ab16-4eb0-8407-a37497a57506"
KEY = f"my_test_key-{SERVICE}-3d844edf-8d35-48ac-975b-e847b4f122b0"
TEMPLATE = "f33517ff-2a88-4f6e-b855-c550268ce08a"
ID = "740e5834-3a29-46b4-9a6f-16142fde533a"
ACCEPTED = json_answer(201, {"id": ID})


def errors(kind: str) -> dict[str, object]:
    return {"status_code": 0, "errors": [{"error": kind, "message": f"about {SMS.to}"}]}


ANSWERS: list[tuple[int, object, Outcome]] = [
    (201, {"id": ID}, Accepted(ID, "201")),
    (201, {}, Unknown("truncated", "no_receipt")),
    (200, {"id": ID}, Unknown("server_error", "http_200")),
    (400, errors("ValidationError"), Rejected(Reason.OTHER, "ValidationError")),
    (400, errors("BadRequestError"), Rejected(Reason.OTHER, "BadRequestError")),
    (400, {"errors": [{"error": SMS.to}]}, Rejected(Reason.OTHER, "http_400")),
    (403, errors("AuthError"), AccountError(Reason.AUTHENTICATION, "AuthError")),
    (403, errors("BadRequestError"), AccountError(Reason.AUTHENTICATION, "BadRequestError")),
    (404, {}, AccountError(Reason.CONFIGURATION, "http_404")),
    (429, errors("RateLimitError"), Throttled(ThrottleScope.RATE, "RateLimitError")),
    (500, errors("Exception"), Unknown("server_error", "Exception")),
    (503, errors("ValidationError"), Unknown("server_error", "ValidationError")),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS, ids=lambda part: repr(part)[:50])
def test_what_an_answer_means(status: int, body: object, expected: Outcome) -> None:
    assert classify(answer(status, body), NOW) == expected


@pytest.mark.parametrize(("after_midnight_s", "wait_s"), [(0, 86_400.0), (1, 86_399.0), (86_399, 1.0)])
def test_the_days_allowance_is_there_again_at_midnight(after_midnight_s: int, wait_s: float) -> None:
    now = NOW + after_midnight_s * SECOND
    outcome = classify(answer(429, errors("TooManyRequestsError")), now)
    assert outcome == Throttled(ThrottleScope.QUOTA, "TooManyRequestsError", wait_s)


def test_the_token_is_the_documented_one() -> None:
    """The service, secret and time of the documentation's example, under RFC 7519's HS256."""
    made = token(Secret(KEY), 1_568_818_578)
    head, claims, signature = made.split(".")
    assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"typ": "JWT", "alg": "HS256"}
    assert json.loads(base64.urlsafe_b64decode(claims + "==")) == {"iss": SERVICE, "iat": 1_568_818_578}
    wanted = hmac.new(KEY[-36:].encode(), f"{head}.{claims}".encode(), hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(signature + "=") == wanted
    assert made != token(Secret(KEY[:-1] + "1"), 1_568_818_578)
    assert KEY[-36:] not in made


def test_the_request_of_a_text() -> None:
    head, body = request_of(provider, SMS, ACCEPTED)
    assert head.startswith("POST /v2/notifications/sms HTTP/1.1\r\n")
    assert f"\r\nAuthorization: Bearer {token(Secret(KEY), NOW // SECOND)}\r\n" in head
    assert json.loads(body) == {
        "template_id": TEMPLATE,
        "reference": SMS.send_key,
        "phone_number": SMS.to,
        "personalisation": {"text": SMS.content.text},
    }


def test_the_request_of_an_email() -> None:
    head, body = request_of(lambda url: provider(url, sender_id=TEMPLATE), EMAIL, ACCEPTED)
    assert head.startswith("POST /v2/notifications/email HTTP/1.1\r\n")
    fields = json.loads(body)
    assert fields["email_address"] == EMAIL.to
    assert fields["personalisation"]["subject"] == "Your parcel: “é”"
    assert fields["email_reply_to_id"] == TEMPLATE


def test_an_email_of_html_only_is_refused_before_any_call() -> None:
    content = EmailContent("s", "", "<p>It's due.</p>", "shop@example.org")
    finding = provider("http://127.0.0.1:1").send(replace(EMAIL, content=content), start=never)
    with pytest.raises(StopIteration) as ended:
        finding.send(None)  # it ends without waiting for anything
    assert ended.value.value == Rejected(Reason.BAD_CONTENT, "no_text")


@pytest.mark.parametrize(
    ("status", "page", "lag_s", "now", "finding"),
    [
        (200, {"notifications": []}, 600.0, NOW, Absent(believable=True)),
        (200, {"notifications": []}, None, NOW, Absent(believable=False)),
        (200, {"notifications": []}, 600.0, SMS.frozen_at + 3 * DAY, Absent(believable=False)),
        (200, {"notifications": [{"id": ID, "reference": SMS.send_key}]}, None, NOW, Found(ID)),
        (200, {"notifications": [{"id": ID, "reference": None}]}, 600.0, NOW, NoAnswer("no_match")),
        (200, {}, 600.0, NOW, NoAnswer("http_200")),
        (403, {"notifications": []}, 600.0, NOW, NoAnswer("http_403")),
    ],
)
def test_what_a_list_proves(
    status: int, page: object, lag_s: float | None, now: int, finding: Finding
) -> None:
    found, target = finding_of(lambda url: provider(url, now, index_lag_s=lag_s), SMS, status, page)
    assert found == finding
    assert parse_qs(urlsplit(target).query) == {"reference": [SMS.send_key]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"api_key": Secret("my_test_key")}, "api_key"),
        ({"template_id": "letter"}, "template_id"),
        ({"template_id": ""}, "template_id"),
        ({"sender_id": "GOVUK"}, "sender_id"),
        ({"connect_timeout_s": 25.0}, "connect_timeout_s"),
    ],
)
def test_settings_that_cannot_work_name_the_setting(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        provider("http://127.0.0.1:1", NOW, **changes)
    assert caught.value.field == named


async def never() -> None:
    raise AssertionError("nothing is to be sent")


def provider(url: str, now: int = NOW, /, **changes: object) -> NotifyProvider:
    settings: dict[str, object] = {
        "api_key": Secret(KEY),
        "template_id": TEMPLATE,
        "base_url": url,
        "allow_plain_http": True,
    }
    return NotifyProvider(NotifySettings(**{**settings, **changes}), now=lambda: now)  # type: ignore[arg-type]
