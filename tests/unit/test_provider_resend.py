"""Resend: what is sent, and what its answers mean."""

from __future__ import annotations

import json

import pytest

from sendonce.core.errors import InvalidInput
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.promise import SECOND, key_dies_at
from sendonce.ports.secret import Secret
from sendonce.providers.resend import CODES, ResendProvider, ResendSettings, classify
from sendonce.testing.conformance.provider import SmtpContract, json_answer
from tests.api_calls import answer, request_of

NOW = 1_767_225_600_000_000
ID = "49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"


def error(status: int, name: str, message: str = "") -> dict[str, object]:
    return {"statusCode": status, "name": name, "message": message}


ANSWERS: list[tuple[int, object, Outcome]] = [
    (200, {"id": ID}, Accepted(ID, "200")),
    (200, {}, Unknown("truncated", "no_receipt")),
    (200, ["what"], Unknown("truncated", "no_receipt")),
    (200, {"id": "ann@example.com is\nfine"}, Unknown("truncated", "no_receipt")),
    (
        409,
        error(409, "concurrent_idempotent_requests"),
        Unknown("server_error", "concurrent_idempotent_requests"),
    ),
    (409, error(409, "invalid_idempotent_request"), Unknown("server_error", "invalid_idempotent_request")),
    (409, {}, Unknown("server_error", "http_409")),
    (
        400,
        error(400, "invalid_idempotency_key"),
        AccountError(Reason.CONFIGURATION, "invalid_idempotency_key"),
    ),
    (401, error(401, "missing_api_key"), AccountError(Reason.AUTHENTICATION, "missing_api_key")),
    (403, error(403, "invalid_api_key"), AccountError(Reason.AUTHENTICATION, "invalid_api_key")),
    (403, {"error": "1010"}, AccountError(Reason.AUTHENTICATION, "http_403")),
    (
        401,
        error(401, "validation_error", "API key is invalid"),
        AccountError(Reason.AUTHENTICATION, "validation_error/401"),
    ),
    (
        400,
        error(400, "validation_error", "API key is invalid"),
        AccountError(Reason.AUTHENTICATION, "validation_error/400"),
    ),
    (
        403,
        error(403, "validation_error", "The x.com domain is not verified."),
        AccountError(Reason.SENDER, "validation_error/403"),
    ),
    (
        422,
        error(422, "validation_error", "Invalid `to` field. ann@example.com"),
        Rejected(Reason.INVALID_ADDRESS, "validation_error/422"),
    ),
    (
        422,
        error(422, "validation_error", "Invalid `from` field."),
        AccountError(Reason.SENDER, "validation_error/422"),
    ),
    (400, error(400, "validation_error", "Something"), Rejected(Reason.BAD_CONTENT, "validation_error/400")),
    (422, error(422, "missing_required_field"), Rejected(Reason.BAD_CONTENT, "missing_required_field")),
    (451, error(451, "security_error"), Rejected(Reason.BLOCKED, "security_error")),
    (418, error(418, "ann@example.com"), Rejected(Reason.OTHER, "http_418")),
    (404, error(404, "not_found"), AccountError(Reason.CONFIGURATION, "not_found")),
    (429, error(429, "rate_limit_exceeded"), Throttled(ThrottleScope.RATE, "rate_limit_exceeded")),
    (429, error(429, "daily_quota_exceeded"), Throttled(ThrottleScope.QUOTA, "daily_quota_exceeded")),
    (429, error(429, "monthly_quota_exceeded"), Throttled(ThrottleScope.QUOTA, "monthly_quota_exceeded")),
    (429, {}, Throttled(ThrottleScope.RATE, "http_429")),
    (500, error(500, "application_error"), Unknown("server_error", "application_error")),
    (500, error(500, "validation_error"), Unknown("server_error", "validation_error")),
    (503, error(503, "rate_limit_exceeded"), Unknown("server_error", "rate_limit_exceeded")),
    (504, {}, Unknown("bad_gateway", "http_504")),
    (302, {}, Unknown("server_error", "http_302")),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS, ids=lambda part: repr(part)[:50])
def test_what_an_answer_means(status: int, body: object, expected: Outcome) -> None:
    assert classify(answer(status, body), NOW) == expected


def test_no_code_suppresses_an_address() -> None:
    """What Resend says at once is about the form of a request; bounces come later, as events."""
    assert not any(getattr(make(code), "suppress", False) for code, make in CODES.items())


def test_the_request() -> None:
    message = SmtpContract.message
    head, body = request_of(
        lambda url: ResendProvider(settings_of(url)), message, json_answer(200, {"id": ID})
    )
    assert head.startswith("POST /v1/emails HTTP/1.1\r\n")
    assert f"\r\nIdempotency-Key: {message.send_key}\r\n" in head
    assert "\r\nAuthorization: Bearer re_123\r\n" in head
    assert "\r\nUser-Agent: sendonce\r\n" in head, "without one Resend answers 403"
    fields = json.loads(body)
    assert fields["to"] == [message.to]
    assert fields["from"] == "Shop <shop@example.org>"
    assert fields["subject"] == "Your parcel: “é”"
    assert fields["tags"] == [{"name": "sendonce", "value": message.send_key}]


def test_a_key_is_used_for_a_day_less_the_margin_and_one_time_out() -> None:
    promise = ResendProvider(settings_of("https://api.resend.com")).promise
    assert key_dies_at(promise, 0) == (86_400 - 60 - 30) * SECOND


def test_settings_that_cannot_work_name_the_setting() -> None:
    with pytest.raises(InvalidInput) as caught:
        ResendSettings(api_key=Secret(""))
    assert caught.value.field == "api_key"
    with pytest.raises(InvalidInput) as caught:
        ResendSettings(api_key=Secret("x"), base_url="http://127.0.0.1:1")
    assert caught.value.field == "base_url"


def settings_of(url: str) -> ResendSettings:
    return ResendSettings(api_key=Secret("re_123"), base_url=f"{url}/v1/", allow_plain_http=True)
