"""Postmark: what is sent, what its answers mean, and what its search proves."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from sendonce.core.errors import InvalidInput
from sendonce.core.outcome import (
    Absent,
    Accepted,
    AccountError,
    Failed,
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
from sendonce.core.promise import SECOND, settles_at
from sendonce.ports.secret import Secret
from sendonce.providers.postmark import CODES, PostmarkProvider, PostmarkSettings, classify
from sendonce.testing.conformance.provider import SmtpContract, json_answer
from tests.api_calls import answer, finding_of, request_of

MESSAGE = SmtpContract.message
DAY = 86_400 * SECOND
NOW = MESSAGE.frozen_at + DAY


def said(code: object, message: str = "") -> dict[str, object]:
    return {"ErrorCode": code, "Message": message}


ANSWERS: list[tuple[int, object, Outcome]] = [
    (200, {"ErrorCode": 0, "MessageID": "b7bc2f4a"}, Accepted("b7bc2f4a", "200")),
    (200, {"ErrorCode": 0}, Unknown("truncated", "no_receipt")),
    (200, {"MessageID": "b7bc2f4a"}, Unknown("truncated", "no_receipt")),
    (200, [], Unknown("truncated", "no_receipt")),
    # a 200 that hides a refusal
    (200, said(406), Rejected(Reason.SUPPRESSED, "406", suppress=True)),
    (200, said(999), Rejected(Reason.OTHER, "999")),
    (200, said(300, "Error parsing 'To'"), Rejected(Reason.INVALID_ADDRESS, "300")),
    (422, said(406), Rejected(Reason.SUPPRESSED, "406", suppress=True)),
    (422, said(300, "Invalid 'From' address: 'x'."), AccountError(Reason.SENDER, "300")),
    (422, said(300, "Provide either TextBody or HtmlBody."), Rejected(Reason.BAD_CONTENT, "300")),
    (422, said(400), AccountError(Reason.SENDER, "400")),
    (422, said(401), AccountError(Reason.SENDER, "401")),
    (422, said(405), AccountError(Reason.CREDIT, "405")),
    (422, said(412), AccountError(Reason.AUTHENTICATION, "412")),
    (422, said(100), Failed(Reason.UNAVAILABLE, "100")),
    (422, said("ann@example.com"), Rejected(Reason.OTHER, "http_422")),
    (401, said(10), AccountError(Reason.AUTHENTICATION, "10")),
    (401, None, AccountError(Reason.AUTHENTICATION, "http_401")),
    (429, said(429), Throttled(ThrottleScope.RATE, "429")),
    (429, None, Throttled(ThrottleScope.RATE, "http_429")),
    (413, None, Rejected(Reason.TOO_LARGE, "http_413")),
    (500, said(0), Unknown("server_error", "http_500")),
    (503, said(100), Unknown("server_error", "100")),
    (500, said(300, "'To'"), Unknown("server_error", "300")),
    (502, None, Unknown("bad_gateway", "http_502")),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS, ids=lambda part: repr(part)[:50])
def test_what_an_answer_means(status: int, body: object, expected: Outcome) -> None:
    assert classify(answer(status, body), NOW) == expected


def test_only_an_inactive_recipient_is_suppressed() -> None:
    assert [code for code, make in CODES.items() if getattr(make(code), "suppress", False)] == ["406"]


def test_the_request() -> None:
    accepted = json_answer(200, {"ErrorCode": 0, "MessageID": "b7bc2f4a"})
    head, body = request_of(lambda url: provider(url), MESSAGE, accepted)
    assert head.startswith("POST /email HTTP/1.1\r\n")
    assert "\r\nX-Postmark-Server-Token: t0ken\r\n" in head
    fields = json.loads(body)
    assert fields["To"] == MESSAGE.to
    assert fields["Metadata"] == {"sendonce": MESSAGE.send_key}
    assert fields["MessageStream"] == "outbound"
    (name,) = fields["Metadata"]
    assert len(name) <= 20
    assert len(MESSAGE.send_key) <= 80


@pytest.mark.parametrize(
    ("status", "page", "lag_s", "now", "finding"),
    [
        (200, {"Messages": []}, 600.0, NOW, Absent(believable=True)),
        (200, {"Messages": []}, None, NOW, Absent(believable=False)),
        (200, {"Messages": []}, 600.0, MESSAGE.frozen_at + 7 * DAY, Absent(believable=False)),
        (
            200,
            {"Messages": [{"MessageID": "b7", "Metadata": {"sendonce": MESSAGE.send_key}}]},
            None,
            NOW,
            Found("b7"),
        ),
        (200, {"Messages": [{"MessageID": "b7", "Metadata": None}]}, 600.0, NOW, NoAnswer("no_match")),
        (200, {"Messages": ["what"]}, 600.0, NOW, NoAnswer("http_200")),
        (200, {}, 600.0, NOW, NoAnswer("http_200")),
        (422, {"Messages": []}, 600.0, NOW, NoAnswer("http_422")),
    ],
)
def test_what_a_search_proves(
    status: int, page: object, lag_s: float | None, now: int, finding: Finding
) -> None:
    found, target = finding_of(lambda url: provider(url, lag_s, now), MESSAGE, status, page)
    assert found == finding
    assert urlsplit(target).path == "/messages/outbound"
    query = parse_qs(urlsplit(target).query)
    assert query["metadata_sendonce"] == [MESSAGE.send_key]
    assert query["messagestream"] == ["outbound"]


def test_the_core_waits_out_the_stated_lag() -> None:
    promise = provider("https://api.postmarkapp.com", 600.0).promise
    assert settles_at(promise, 0, lease_s=60.0) == (60 + 30 + 60 + 600) * SECOND


def test_settings_that_cannot_work_name_the_setting() -> None:
    with pytest.raises(InvalidInput) as caught:
        PostmarkSettings(server_token=Secret(""))
    assert caught.value.field == "server_token"
    with pytest.raises(InvalidInput) as caught:
        PostmarkSettings(server_token=Secret("x"), message_stream="")
    assert caught.value.field == "message_stream"


def provider(url: str, lag_s: float | None = None, now: int = NOW) -> PostmarkProvider:
    settings = PostmarkSettings(
        server_token=Secret("t0ken"), index_lag_s=lag_s, base_url=url, allow_plain_http=True
    )
    return PostmarkProvider(settings, now=lambda: now)
