"""Sinch: what is sent, what its answers mean, and what its list proves."""

from __future__ import annotations

import json
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
from sendonce.ports.provider import Message
from sendonce.ports.secret import Secret
from sendonce.providers.sinch import CODES, SinchProvider, SinchSettings, classify
from sendonce.testing.conformance.provider import HttpContract, json_answer
from tests.api_calls import answer, finding_of, request_of

MESSAGE: Message = HttpContract.message
DAY = 86_400 * SECOND
NOW = MESSAGE.frozen_at + DAY
BATCH = {"id": "01FC66621", "client_reference": MESSAGE.send_key}


def said(code: str) -> dict[str, str]:
    return {"code": code, "text": f"about {MESSAGE.to}"}


ANSWERS: list[tuple[int, object, Outcome]] = [
    (201, BATCH, Accepted("01FC66621", "201")),
    (200, BATCH, Accepted("01FC66621", "200")),
    (201, {}, Unknown("truncated", "no_receipt")),
    (400, said("syntax_invalid_json"), Rejected(Reason.BAD_CONTENT, "syntax_invalid_json")),
    (
        400,
        said("syntax_invalid_parameter_format"),
        Rejected(Reason.OTHER, "syntax_invalid_parameter_format"),
    ),
    (403, said("illegal_number_type"), Rejected(Reason.NOT_CAPABLE, "illegal_number_type")),
    (403, said("blocked_account"), AccountError(Reason.AUTHENTICATION, "blocked_account")),
    (403, said("something_new"), AccountError(Reason.AUTHENTICATION, "something_new")),
    (403, said("missing_callback_url"), AccountError(Reason.CONFIGURATION, "missing_callback_url")),
    (400, said("+12025550123"), Rejected(Reason.OTHER, "http_400")),
    (401, {}, AccountError(Reason.AUTHENTICATION, "http_401")),
    (402, {}, AccountError(Reason.CREDIT, "http_402")),
    (404, {}, AccountError(Reason.CONFIGURATION, "http_404")),
    (429, {}, Throttled(ThrottleScope.UNDECLARED, "http_429")),
    (500, said("syntax_invalid_json"), Unknown("server_error", "syntax_invalid_json")),
    (503, {}, Unknown("server_error", "http_503")),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS, ids=lambda part: repr(part)[:50])
def test_what_an_answer_means(status: int, body: object, expected: Outcome) -> None:
    assert classify(answer(status, body), NOW) == expected


def test_no_answer_suppresses_a_number() -> None:
    assert not any(getattr(make(code), "suppress", False) for code, make in CODES.items())


def test_the_request() -> None:
    head, body = request_of(lambda url: provider(url), MESSAGE, json_answer(201, BATCH))
    assert head.startswith("POST /xms/v1/plan1/batches HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer t0ken\r\n" in head
    fields = json.loads(body)
    assert fields["to"] == ["12025550123"]
    assert fields["client_reference"] == MESSAGE.send_key
    assert fields["expire_at"] == "2026-01-02T01:00:00.000Z"
    assert "delivery_report" not in fields


def test_reports_are_asked_for_where_somebody_listens() -> None:
    def build(url: str) -> SinchProvider:
        return provider(url, callback_url="https://us.example.com/e")

    _, body = request_of(build, MESSAGE, json_answer(201, BATCH))
    fields = json.loads(body)
    assert (fields["delivery_report"], fields["callback_url"]) == (
        "per_recipient",
        "https://us.example.com/e",
    )
    assert build("http://127.0.0.1:1").promise.echo
    assert not provider("http://127.0.0.1:1").promise.echo


@pytest.mark.parametrize(
    ("status", "page", "lag_s", "now", "finding"),
    [
        (200, {"batches": []}, 600.0, NOW, Absent(believable=True)),
        (200, {"batches": []}, None, NOW, Absent(believable=False)),
        (200, {"batches": []}, 600.0, MESSAGE.frozen_at + 14 * DAY, Absent(believable=False)),
        (200, {"batches": [{"id": "x"}, BATCH]}, None, NOW, Found("01FC66621")),
        (200, {"batches": [{"id": "x"}]}, 600.0, NOW, NoAnswer("no_match")),
        (200, {}, 600.0, NOW, NoAnswer("http_200")),
        (404, {}, 600.0, NOW, NoAnswer("http_404")),
    ],
)
def test_what_a_list_proves(
    status: int, page: object, lag_s: float | None, now: int, finding: Finding
) -> None:
    found, target = finding_of(lambda url: provider(url, now, index_lag_s=lag_s), MESSAGE, status, page)
    assert found == finding
    query = parse_qs(urlsplit(target).query)
    assert query["client_reference"] == [MESSAGE.send_key]
    assert query["start_date"] == ["2025-12-31T23:00:00.000Z"], "without one, a day is all that is listed"


def test_the_region_names_the_address() -> None:
    settings = SinchSettings(region="eu", service_plan_id="plan1", api_token=Secret("x"))
    assert settings.base_url == "https://eu.sms.api.sinch.com"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"region": "Europe"}, "region"),
        ({"service_plan_id": "a/b"}, "service_plan_id"),
        ({"api_token": Secret("")}, "api_token"),
    ],
)
def test_settings_that_cannot_work_name_the_setting(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        provider("http://127.0.0.1:1", NOW, **changes)
    assert caught.value.field == named


def provider(url: str, now: int = NOW, /, **changes: object) -> SinchProvider:
    settings: dict[str, object] = {
        "region": "us",
        "service_plan_id": "plan1",
        "api_token": Secret("t0ken"),
        "base_url": url,
        "allow_plain_http": True,
    }
    return SinchProvider(SinchSettings(**{**settings, **changes}), now=lambda: now)  # type: ignore[arg-type]
