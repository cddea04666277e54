"""Mailgun: what is sent, what its answers mean, and what its events prove."""

from __future__ import annotations

from urllib.parse import parse_qs, parse_qsl, urlsplit

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
from sendonce.ports.secret import Secret
from sendonce.providers.mailgun import ROWS_MAX, MailgunProvider, MailgunSettings, classify
from sendonce.testing.conformance.provider import SmtpContract, json_answer
from tests.api_calls import answer, finding_of, request_of

MESSAGE = SmtpContract.message
DAY = 86_400 * SECOND
NOW = MESSAGE.frozen_at + DAY // 2
ID = "<20260101000000.1@mg.example.org>"
OURS = {
    "event": "accepted",
    "user-variables": {"sendonce": MESSAGE.send_key},
    "message": {"headers": {"message-id": "20260101000000.1@mg.example.org"}},
}
ANOTHER = {"event": "accepted", "user-variables": {"sendonce": "7a" * 32}}

ANSWERS: list[tuple[int, object, Outcome]] = [
    (200, {"id": ID, "message": "Queued. Thank you."}, Accepted(ID, "200")),
    (200, {"message": "Queued. Thank you."}, Unknown("truncated", "no_receipt")),
    (200, b"<html>", Unknown("truncated", "no_receipt")),
    (
        400,
        {"message": "'from' parameter is not a valid address."},
        AccountError(Reason.SENDER, "http_400/from"),
    ),
    (
        400,
        {"message": "'to' parameter is not a valid address."},
        Rejected(Reason.INVALID_ADDRESS, "http_400/to"),
    ),
    (400, {"message": "something else"}, Rejected(Reason.BAD_CONTENT, "http_400")),
    (401, b"Forbidden", AccountError(Reason.AUTHENTICATION, "http_401")),
    (402, {}, AccountError(Reason.CREDIT, "http_402")),
    (403, {}, AccountError(Reason.AUTHENTICATION, "http_403")),
    (404, {"message": "Domain not found"}, AccountError(Reason.CONFIGURATION, "http_404")),
    (413, {}, Rejected(Reason.TOO_LARGE, "http_413")),
    (429, {}, Throttled(ThrottleScope.RATE, "http_429")),
    (500, {"message": "'to' parameter"}, Unknown("server_error", "http_500")),
    (502, {}, Unknown("bad_gateway", "http_502")),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS, ids=lambda part: repr(part)[:50])
def test_what_an_answer_means(status: int, body: object, expected: Outcome) -> None:
    assert classify(answer(status, body), NOW) == expected


def test_the_request() -> None:
    head, body = request_of(provider, MESSAGE, json_answer(200, {"id": ID}))
    assert head.startswith("POST /v3/mg.example.org/messages HTTP/1.1\r\n")
    assert "\r\nAuthorization: Basic YXBpOmtleS0x\r\n" in head
    form = dict(parse_qsl(body.decode(), strict_parsing=True))
    assert form["to"] == MESSAGE.to
    assert form["from"] == "Shop <shop@example.org>"
    assert form["v:sendonce"] == MESSAGE.send_key
    assert form["text"] == "It's due.\r\n.\r\nFrom here\n"


@pytest.mark.parametrize(
    ("status", "page", "lag_s", "now", "finding"),
    [
        (200, {"items": [ANOTHER, OURS]}, None, NOW, Found(ID)),
        (200, {"items": []}, 3600.0, NOW, Absent(believable=True)),
        (200, {"items": [ANOTHER]}, 3600.0, NOW, Absent(believable=True)),
        (200, {"items": []}, None, NOW, Absent(believable=False)),
        (200, {"items": []}, 3600.0, MESSAGE.frozen_at + DAY, Absent(believable=False)),
        (200, {"items": [ANOTHER] * ROWS_MAX}, 3600.0, NOW, NoAnswer("more_pages")),
        (200, {"items": [{"event": "delivered"}]}, 3600.0, NOW, NoAnswer("no_match")),
        (200, {"what": 1}, 3600.0, NOW, NoAnswer("http_200")),
        (404, {"items": []}, 3600.0, NOW, NoAnswer("http_404")),
    ],
)
def test_what_events_prove(
    status: int, page: object, lag_s: float | None, now: int, finding: Finding
) -> None:
    found, target = finding_of(lambda url: provider(url, lag_s, now), MESSAGE, status, page)
    assert found == finding
    query = parse_qs(urlsplit(target).query)
    assert query["recipient"] == [MESSAGE.to]
    assert query["begin"] == [str(MESSAGE.frozen_at // SECOND - 3600)]
    assert "%2B" in target, "a plus in an address is not a blank"


@pytest.mark.parametrize(
    ("domain", "key", "named"), [("Mg Example", "x", "domain"), ("mg.x.org", "", "api_key")]
)
def test_settings_that_cannot_work_name_the_setting(domain: str, key: str, named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        MailgunSettings(domain=domain, api_key=Secret(key))
    assert caught.value.field == named


def provider(url: str, lag_s: float | None = None, now: int = NOW) -> MailgunProvider:
    settings = MailgunSettings(
        domain="mg.example.org",
        api_key=Secret("key-1"),
        index_lag_s=lag_s,
        base_url=url,
        allow_plain_http=True,
    )
    return MailgunProvider(settings, now=lambda: now)
