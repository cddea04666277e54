"""Twilio: what is sent, what answers mean, and what a look-up may claim."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Absent,
    Accepted,
    AccountError,
    Finding,
    NoAnswer,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import EmailContent, Message, ProviderClass, SmsContent
from sendonce.ports.secret import Secret
from sendonce.providers.echo import callback_url, verify_callback
from sendonce.providers.twilio import CODES, TwilioProvider, TwilioSettings, classify
from sendonce.runtime.http_client import Response
from sendonce.testing.conformance.provider import HttpPeer, json_answer

SID = "AC" + "0" * 32
MESSAGE_SID = "SM" + "1" * 32
NOW = 1_767_225_600_000_000
KEY = "5e" * 32


def answer(status: int, body: object = None, *headers: tuple[bytes, bytes]) -> Response:
    return Response(status, headers, b"" if body is None else json.dumps(body).encode())


# What answers mean

ANSWERS: list[tuple[Response, Outcome]] = [
    (answer(201, {"sid": MESSAGE_SID, "status": "queued"}), Accepted(MESSAGE_SID, "201")),
    (answer(201, {"sid": MESSAGE_SID, "status": "accepted"}), Accepted(MESSAGE_SID, "201")),
    (answer(201, {"sid": MESSAGE_SID, "status": "failed"}), Rejected(Reason.OTHER, "failed")),
    (
        answer(201, {"sid": MESSAGE_SID, "status": "failed", "error_code": 21610}),
        Rejected(Reason.OPTED_OUT, "21610", suppress=True),
    ),
    (answer(201), Unknown("truncated", "http_201")),
    (answer(201, {"sid": "+12025550123"}), Unknown("truncated", "http_201")),
    (answer(200, ["what"]), Unknown("truncated", "http_200")),
    (answer(400, {"code": 21211}), Rejected(Reason.INVALID_ADDRESS, "21211", suppress=True)),
    (answer(400, {"code": 21614}), Rejected(Reason.NOT_CAPABLE, "21614", suppress=True)),
    (answer(400, {"code": 21610}), Rejected(Reason.OPTED_OUT, "21610", suppress=True)),
    (answer(400, {"code": 21408}), Rejected(Reason.BLOCKED, "21408")),
    (answer(400, {"code": 21612}), Rejected(Reason.NOT_CAPABLE, "21612")),
    (answer(400, {"code": 21617}), Rejected(Reason.TOO_LARGE, "21617")),
    (answer(400, {"code": 21606}), AccountError(Reason.SENDER, "21606")),
    (answer(400, {"code": 21212}), AccountError(Reason.SENDER, "21212")),
    (answer(401, {"code": 20003}), AccountError(Reason.AUTHENTICATION, "20003")),
    (answer(401), AccountError(Reason.AUTHENTICATION, "http_401")),
    (answer(403, {"code": 99999}), AccountError(Reason.AUTHENTICATION, "99999")),
    (answer(404, {"code": 20404}), AccountError(Reason.CONFIGURATION, "20404")),
    (answer(404), AccountError(Reason.CONFIGURATION, "http_404")),
    (answer(301), AccountError(Reason.CONFIGURATION, "http_301")),
    (answer(400, {"code": 29999}), Rejected(Reason.OTHER, "29999")),
    (answer(400, {"code": "+12025550123"}), Rejected(Reason.OTHER, "http_400")),
    (answer(400, {"code": 12025550123}), Rejected(Reason.OTHER, "http_400")),
    (answer(400), Rejected(Reason.OTHER, "http_400")),
    (answer(429, {"code": 20429}), Throttled(ThrottleScope.CONCURRENCY, "20429")),
    (answer(429), Throttled(ThrottleScope.CONCURRENCY, "http_429")),
    (
        answer(429, {"code": 20429}, (b"retry-after", b"5")),
        Throttled(ThrottleScope.CONCURRENCY, "20429", 5.0),
    ),
    (
        answer(429, {"code": 63038}, (b"retry-after", b"Thu, 01 Jan 2026 00:01:00 GMT")),
        Throttled(ThrottleScope.QUOTA, "63038", 60.0),
    ),
    (answer(429, {"code": 21611}), Throttled(ThrottleScope.RATE, "21611")),
    (answer(400, {"code": 21611}), Throttled(ThrottleScope.RATE, "21611")),
    (answer(500, {"code": 20500}), Unknown("server_error", "20500")),
    (answer(503, {"code": 20503}), Unknown("server_error", "20503")),
    (answer(503, {"code": 21211}), Unknown("server_error", "21211")),
    (answer(502), Unknown("bad_gateway", "http_502")),
    (answer(504), Unknown("bad_gateway", "http_504")),
    (answer(408), Unknown("server_error", "http_408")),
    (answer(302), Unknown("server_error", "http_302")),
]


@pytest.mark.parametrize(("response", "expected"), ANSWERS, ids=lambda part: repr(part)[:60])
def test_what_an_answer_means(response: Response, expected: Outcome) -> None:
    assert classify(response, NOW) == expected


def test_only_codes_of_the_recipient_suppress() -> None:
    outcomes = {code: make(code) for code, make in CODES.items()}
    suppressed = {
        code for code, outcome in outcomes.items() if isinstance(outcome, Rejected) and outcome.suppress
    }
    assert suppressed == {"21211", "21214", "21217", "21265", "21610", "21614", "21635", "30006"}


KEYS = st.sampled_from(["sid", "code", "status", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=6,
)


@given(st.integers(200, 599), JSON | st.binary(max_size=30))
def test_every_answer_means_something(status: int, body: object) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    outcome = classify(Response(status, (), raw), NOW)
    if isinstance(outcome, Accepted):
        assert status in (200, 201)
    if status >= 500:
        assert isinstance(outcome, Unknown)


# What is sent


def test_the_request() -> None:
    async def scenario(peer: HttpPeer, twilio: TwilioProvider) -> None:
        assert await twilio.send(sms(valid_s=90), start=nothing) == Accepted(MESSAGE_SID, "201")
        head, _, body = peer.messages[0].partition(b"\r\n\r\n")
        assert head.startswith(f"POST /2010-04-01/Accounts/{SID}/Messages.json HTTP/1.1\r\n".encode())
        assert b"\r\nAuthorization: Basic QUMwMDAw" in head
        form = parse_qsl(body.decode(), strict_parsing=True)
        assert [name for name, _ in form] == ["To", "From", "Body", "StatusCallback", "ValidityPeriod"]
        fields = dict(form)
        assert fields["To"] == "+12025550123"
        assert fields["From"] == "+12025550100"
        assert fields["Body"] == "It's due & “é” +1\n=x"
        assert fields["ValidityPeriod"] == "90"
        assert verify_callback(fields["StatusCallback"], Secret("cb")) == KEY

    run(scenario)


@pytest.mark.parametrize(
    ("valid_s", "sent"), [(None, None), (-5, "1"), (0, "1"), (1, "1"), (36_000, "36000"), (10**9, "36000")]
)
def test_the_validity_period_is_kept_in_twilios_bounds(valid_s: int | None, sent: str | None) -> None:
    async def scenario(peer: HttpPeer, twilio: TwilioProvider) -> None:
        await twilio.send(sms(valid_s=valid_s), start=nothing)
        form = dict(parse_qsl(peer.messages[0].partition(b"\r\n\r\n")[2].decode()))
        assert form.get("ValidityPeriod") == sent

    run(scenario)


@pytest.mark.parametrize(
    ("sender", "service", "field", "value"),
    [
        ("+12025550100", "", "From", "+12025550100"),
        ("SHOP", "", "From", "SHOP"),
        ("MG" + "a" * 32, "", "MessagingServiceSid", "MG" + "a" * 32),
        ("+12025550100", "MG" + "b" * 32, "MessagingServiceSid", "MG" + "b" * 32),
    ],
)
def test_numbers_and_services_as_sender(sender: str, service: str, field: str, value: str) -> None:
    async def scenario(peer: HttpPeer, twilio: TwilioProvider) -> None:
        await twilio.send(sms(sender=sender), start=nothing)
        form = dict(parse_qsl(peer.messages[0].partition(b"\r\n\r\n")[2].decode()))
        assert form[field] == value
        assert ("From" in form) != ("MessagingServiceSid" in form)

    run(scenario, messaging_service_sid=service)


def test_an_email_is_a_configuration_error() -> None:
    async def scenario(peer: HttpPeer, twilio: TwilioProvider) -> None:
        message = Message("r:c:email", KEY, "a@example.com", EmailContent("s", "t", "", "b@example.com"), NOW)
        assert await twilio.send(message, start=nothing) == AccountError(Reason.CONFIGURATION, "not_sms")

    run(scenario)


# Look-up and check


@pytest.mark.parametrize(
    ("page", "finding"),
    [
        ({"messages": []}, Absent(believable=False)),
        ({"messages": [{"body": "another text"}]}, Absent(believable=False)),
        ({"messages": [{"body": "It's due & “é” +1\n=x", "sid": MESSAGE_SID}]}, NoAnswer("alike")),
        ({"messages": [], "next_page_uri": "/x"}, NoAnswer("more_pages")),
        ({"what": 1}, NoAnswer("http_200")),
    ],
)
def test_a_look_up_never_proves(page: object, finding: Finding) -> None:
    asked: list[str] = []

    def lookups(target: str) -> bytes:
        asked.append(target)
        return json_answer(200, page)

    async def scenario(peer: HttpPeer, twilio: TwilioProvider) -> None:
        peer._lookups = lookups
        assert await twilio.look_up(sms()) == finding
        query = dict(parse_qsl(urlsplit(asked[0]).query))
        assert query["To"] == "+12025550123"
        assert query["DateSent>"] == "2026-01-01"
        assert peer.messages == []

    run(scenario)


def test_check() -> None:
    async def scenario(peer: HttpPeer, twilio: TwilioProvider) -> None:
        peer._lookups = lambda _: json_answer(200, {"status": "active", "type": "Trial"})
        assert await twilio.check() == "account active, type Trial"
        peer._lookups = lambda _: json_answer(404, {"code": 20404})
        with pytest.raises(ConfigError, match="account_sid"):
            await twilio.check()
        await peer.stop()
        with pytest.raises(ConfigError, match="base_url"):
            await twilio.check()

    run(scenario)


# Settings and the signed id


def test_class_and_echo() -> None:
    promise = TwilioProvider(
        settings(callback_url="https://us.example.com/e", callback_secret=Secret("x"))
    ).promise
    assert (promise.provider_class, promise.echo) == (ProviderClass.NEITHER, True)
    assert not TwilioProvider(settings()).promise.echo


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"account_sid": "SK" + "0" * 32}, "account_sid"),
        ({"auth_token": Secret("")}, "auth_token"),
        ({"callback_url": "https://us.example.com/e"}, "callback_secret"),
        ({"base_url": "http://127.0.0.1:1"}, "base_url"),
    ],
)
def test_settings_that_cannot_work_name_the_setting(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        settings(**changes)
    assert caught.value.field == named


def test_a_signed_id_is_ours_only_whole() -> None:
    secret = Secret("callback secret")
    url = callback_url("https://us.example.com/events?account=sms", KEY, secret)
    assert url.startswith("https://us.example.com/events?account=sms&k=")
    assert callback_url("https://us.example.com/e", KEY, secret).startswith("https://us.example.com/e?k=")
    assert verify_callback(url, secret) == KEY
    assert verify_callback(urlsplit(url).path + "?" + urlsplit(url).query, secret) == KEY
    other = "6f" * 32
    for bad in (
        url[:-1],
        url.replace(KEY, other),
        url + "&k=" + other,
        url.replace("&s=", "&t="),
        url.replace(KEY, "ann@example.com"),
        "https://us.example.com/events",
        "",
    ):
        assert verify_callback(bad, secret) is None, bad
    assert verify_callback(url, Secret("another")) is None


def test_a_secret_is_shown_nowhere() -> None:
    secret = Secret("hunter2")
    for shown in (
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>20}",
        repr(settings(auth_token=secret)),
    ):
        assert "hunter2" not in shown
    assert secret.reveal() == "hunter2"
    assert secret == Secret("hunter2") != Secret("hunter3")
    assert bool(secret)
    assert not Secret("")
    assert len({secret, Secret("hunter2")}) == 1


def sms(*, sender: str = "+12025550100", valid_s: int | None = None) -> Message:
    content = SmsContent("It's due & “é” +1\n=x", sender)
    return Message("r:c:sms", KEY, "+12025550123", content, NOW, valid_s)


def settings(**changes: Any) -> TwilioSettings:
    return TwilioSettings(**{"account_sid": SID, "auth_token": Secret("token"), **changes})


async def nothing() -> None:
    pass


def run(scenario: Callable[[HttpPeer, TwilioProvider], Coroutine[Any, Any, None]], **changes: Any) -> None:
    async def bounded() -> None:
        peer = HttpPeer(json_answer(201, {"sid": MESSAGE_SID, "status": "queued"}), b"")
        await peer.start()
        twilio = TwilioProvider(
            settings(
                base_url=f"http://127.0.0.1:{peer.port}",
                allow_plain_http=True,
                callback_url="https://us.example.com/events",
                callback_secret=Secret("cb"),
                **changes,
            )
        )
        try:
            async with asyncio.timeout(10):
                await scenario(peer, twilio)
        finally:
            await twilio.close()
            await peer.stop()

    asyncio.run(bounded())
