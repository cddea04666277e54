"""SendGrid: what is sent, and what its answers mean."""

from __future__ import annotations

import asyncio
import json

import pytest

from sendonce.core.errors import ConfigError
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
from sendonce.ports.provider import ProviderClass
from sendonce.ports.secret import Secret
from sendonce.providers.sendgrid import SendgridProvider, SendgridSettings, classify
from sendonce.testing.conformance.provider import HttpPeer, SmtpContract, http_answer, json_answer
from tests.api_calls import answer, request_of

MESSAGE = SmtpContract.message
NOW = MESSAGE.frozen_at
ACCEPTED = http_answer(202, b"", "X-Message-Id: 14c5d75ce93.dfd.64b469")


def errors(message: str, field: str | None = None) -> dict[str, object]:
    return {"errors": [{"message": message, "field": field, "help": None}]}


ANSWERS: list[tuple[int, object, Outcome]] = [
    (202, None, Unknown("truncated", "no_receipt")),
    (200, None, Unknown("server_error", "http_200")),  # sandbox mode, which is never asked for
    (
        400,
        errors("Does not contain a valid address.", "personalizations.0.to.0.email"),
        Rejected(Reason.INVALID_ADDRESS, "http_400/to"),
    ),
    (400, errors("Bad", "from.email"), AccountError(Reason.SENDER, "http_400/from")),
    (400, errors("The subject is required.", "subject"), Rejected(Reason.BAD_CONTENT, "http_400")),
    (400, {"errors": "what"}, Rejected(Reason.BAD_CONTENT, "http_400")),
    (401, errors("Maximum credits exceeded"), AccountError(Reason.CREDIT, "http_401/credits")),
    (401, errors("authorization required"), AccountError(Reason.AUTHENTICATION, "http_401")),
    (403, errors("not a verified Sender Identity", "from"), AccountError(Reason.SENDER, "http_403/from")),
    (403, errors("access forbidden"), AccountError(Reason.AUTHENTICATION, "http_403")),
    (404, errors("not found"), AccountError(Reason.CONFIGURATION, "http_404")),
    (406, None, AccountError(Reason.CONFIGURATION, "http_406")),
    (413, errors("content too large"), Rejected(Reason.TOO_LARGE, "http_413")),
    (429, errors("too many requests"), Throttled(ThrottleScope.RATE, "http_429")),
    (500, errors("internal server error"), Unknown("server_error", "http_500")),
    (503, errors("Bad", "from"), Unknown("server_error", "http_503")),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS, ids=lambda part: repr(part)[:50])
def test_what_an_answer_means(status: int, body: object, expected: Outcome) -> None:
    assert classify(answer(status, body), NOW) == expected


def test_the_receipt_is_in_a_header() -> None:
    taken = classify(answer(202, None, (b"X-Message-Id", b"14c5d75ce93.dfd.64b469")), NOW)
    assert taken == Accepted("14c5d75ce93.dfd.64b469", "202")


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ([(b"X-RateLimit-Reset", b"%d" % (NOW // 1_000_000 + 20))], 20.0),
        ([(b"X-RateLimit-Reset", b"%d" % (NOW // 1_000_000 - 20))], None),
        ([(b"X-RateLimit-Reset", b"%d" % (NOW // 1_000 + 20_000))], None),  # milliseconds are none
        ([(b"X-RateLimit-Reset", b"soon")], None),
        ([(b"Retry-After", b"7"), (b"X-RateLimit-Reset", b"%d" % (NOW // 1_000_000 + 20))], 7.0),
    ],
)
def test_the_wait_after_a_429(headers: list[tuple[bytes, bytes]], wait_s: float | None) -> None:
    assert classify(answer(429, None, *headers), NOW) == Throttled(ThrottleScope.RATE, "http_429", wait_s)


def test_the_request() -> None:
    head, body = request_of(provider, MESSAGE, ACCEPTED)
    assert head.startswith("POST /v3/mail/send HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer SG.1\r\n" in head
    fields = json.loads(body)
    (person,) = fields["personalizations"]
    assert person == {"to": [{"email": MESSAGE.to}], "custom_args": {"sendonce": MESSAGE.send_key}}
    assert fields["from"] == {"email": "shop@example.org", "name": "Shop"}
    assert [part["type"] for part in fields["content"]] == ["text/plain", "text/html"]
    assert "mail_settings" not in fields


def test_the_class() -> None:
    promise = provider("http://127.0.0.1:1").promise
    assert (promise.provider_class, promise.echo, promise.lookup) == (ProviderClass.NEITHER, True, False)


def test_a_key_that_may_not_send_is_a_configuration_error() -> None:
    async def scenario() -> None:
        peer = HttpPeer(b"", b"", lambda _: json_answer(200, {"scopes": ["stats.read"]}))
        await peer.start()
        sendgrid = provider(f"http://127.0.0.1:{peer.port}")
        with pytest.raises(ConfigError, match=r"scope mail\.send"):
            await sendgrid.check()
        await sendgrid.close()
        await peer.stop()

    asyncio.run(scenario())


def provider(url: str) -> SendgridProvider:
    return SendgridProvider(
        SendgridSettings(api_key=Secret("SG.1"), base_url=url, allow_plain_http=True), now=lambda: NOW
    )
