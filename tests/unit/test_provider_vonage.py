"""Vonage: what is sent, and what its answers mean."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sendonce.core.errors import InvalidInput
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import Message, ProviderClass
from sendonce.ports.secret import Secret
from sendonce.providers.vonage import CODES, VonageProvider, VonageSettings, classify
from sendonce.testing.conformance.provider import HttpContract, json_answer
from tests.api_calls import answer, request_of

MESSAGE: Message = HttpContract.message
NOW = MESSAGE.frozen_at
UUID = "aaaaaaaa-bbbb-cccc-dddd-0123456789ab"


def problem(code: str) -> dict[str, str]:
    return {"type": f"https://developer.vonage.com/api-errors/messages#{code}", "title": "what"}


ANSWERS: list[tuple[int, object, Outcome]] = [
    (202, {"message_uuid": UUID}, Accepted(UUID, "202")),
    (202, {}, Unknown("truncated", "no_receipt")),
    (429, problem("1000"), Throttled(ThrottleScope.RATE, "1000")),
    (429, {}, Throttled(ThrottleScope.RATE, "http_429")),
    (422, problem("1020"), Rejected(Reason.BAD_CONTENT, "1020")),
    (422, problem("1030"), Unknown("server_error", "1030")),
    (422, problem("1050"), Rejected(Reason.BLOCKED, "1050")),
    (422, problem("1100"), Failed(Reason.UNAVAILABLE, "1100")),
    (422, problem("1120"), AccountError(Reason.SENDER, "1120")),
    (422, problem("1170"), Rejected(Reason.INVALID_ADDRESS, "1170")),
    (422, problem("1240"), Rejected(Reason.OPTED_OUT, "1240", suppress=True)),
    (422, problem("1241"), Throttled(ThrottleScope.RECIPIENT, "1241")),
    (422, problem("9999"), Rejected(Reason.OTHER, "9999")),
    (422, {"type": "12025550123"}, Rejected(Reason.OTHER, "http_422")),
    (401, problem("unauthorized"), AccountError(Reason.AUTHENTICATION, "unauthorized")),
    (422, problem("1320"), Unknown("server_error", "1320")),
    (402, problem("1070"), AccountError(Reason.CREDIT, "1070")),
    (402, {}, AccountError(Reason.CREDIT, "http_402")),
    (500, problem("1100"), Unknown("server_error", "1100")),
    (503, {}, Unknown("server_error", "http_503")),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS, ids=lambda part: repr(part)[:50])
def test_what_an_answer_means(status: int, body: object, expected: Outcome) -> None:
    assert classify(answer(status, body), NOW) == expected


def test_only_codes_of_the_recipient_suppress() -> None:
    suppressed = [code for code, make in CODES.items() if getattr(make(code), "suppress", False)]
    assert suppressed == ["1190", "1240"]


def test_the_request() -> None:
    head, body = request_of(provider, MESSAGE, json_answer(202, {"message_uuid": UUID}))
    assert head.startswith("POST /v1/messages HTTP/1.1\r\n")
    assert "\r\nAuthorization: Basic YWJjZDEyMzQ6czNjcmV0\r\n" in head
    fields = json.loads(body)
    assert fields["to"] == "12025550123"
    assert fields["from"] == "12025550100"
    assert fields["client_ref"] == MESSAGE.send_key
    assert len(MESSAGE.send_key) <= 100
    assert fields["ttl"] == 3600
    assert "webhook_url" not in fields


@pytest.mark.parametrize(("valid_s", "ttl"), [(None, None), (-1, 20), (90, 90), (10**9, 604_800)])
def test_the_time_to_live_is_kept_in_bounds(valid_s: int | None, ttl: int | None) -> None:
    accepted = json_answer(202, {"message_uuid": UUID})
    _, body = request_of(provider, replace(MESSAGE, valid_s=valid_s), accepted)
    assert json.loads(body).get("ttl") == ttl


def test_class_and_echo() -> None:
    promise = provider("http://127.0.0.1:1", callback_url="https://us.example.com/e").promise
    assert (promise.provider_class, promise.echo) == (ProviderClass.NEITHER, True)
    assert not provider("http://127.0.0.1:1").promise.echo


@pytest.mark.parametrize(
    ("changes", "named"), [({"api_key": "a:b"}, "api_key"), ({"api_secret": Secret("")}, "api_secret")]
)
def test_settings_that_cannot_work_name_the_setting(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        provider("http://127.0.0.1:1", **changes)
    assert caught.value.field == named


def provider(url: str, **changes: object) -> VonageProvider:
    settings: dict[str, object] = {
        "api_key": "abcd1234",
        "api_secret": Secret("s3cret"),
        "base_url": url,
        "allow_plain_http": True,
    }
    return VonageProvider(VonageSettings(**{**settings, **changes}), now=lambda: NOW)  # type: ignore[arg-type]
