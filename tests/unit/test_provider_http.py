"""The configurable adapter: requests by template, answers by rule, class by what is configured."""

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
from sendonce.ports.provider import EmailContent, Message, ProviderClass, SmsContent
from sendonce.ports.secret import Secret
from sendonce.providers.http import HttpProvider, HttpSettings, Meaning, Rule, classify, find
from sendonce.runtime.http_client import Response
from sendonce.testing.conformance.provider import HttpPeer, json_answer

NOW = 1_767_225_600_000_000
KEY = "5e" * 32
NASTY = '", "admin": true, "x": "{{ 7 * 7 }}\\\r\n\u2028é{% raw %}'
BODY = """
{"to": "{{ to }}", "content": {"text": "{{ text }}", "n": 1, "ok": true, "none": null},
 "tags": ["a", "{{ sender }}"]}
"""


# Requests


def test_a_json_body_keeps_its_shape_whatever_the_text() -> None:
    async def scenario(peer: HttpPeer, provider: HttpProvider) -> None:
        assert isinstance(await provider.send(sms(NASTY), start=nothing), Accepted)
        assert json.loads(body_of(peer)) == {
            "to": "+12025550123",
            "content": {"text": NASTY, "n": 1, "ok": True, "none": None},
            "tags": ["a", "+12025550100"],
        }
        assert b"\r\nContent-Type: application/json\r\n" in peer.messages[0]

    run(scenario)


def test_a_form_body_keeps_its_fields_whatever_the_text() -> None:
    async def scenario(peer: HttpPeer, provider: HttpProvider) -> None:
        await provider.send(sms("a&b=c +%é\n"), start=nothing)
        form = parse_qsl(body_of(peer).decode(), keep_blank_values=True)
        assert form == [("to", "+12025550123"), ("msg", "Dear: a&b=c +%é\n"), ("key", f"k-{KEY}")]

    run(
        scenario,
        body_json="",
        body_form={"to": "{{ to }}", "msg": "Dear: {{ text }}"},
        key_field="key",
        key_template="k-{{ send_key }}",
        key_window_s=60.0,
    )


def test_email_fields_filters_and_conditions() -> None:
    template = """
    {"s": "{{ subject | upper }}", "h": "{% if html %}{{ html }}{% else %}none{% endif %}",
     "r": "{{ reply_to }}", "k": "{{ delivery_key }}"}
    """

    async def scenario(peer: HttpPeer, provider: HttpProvider) -> None:
        content = EmailContent("due <&>", "t", "<p>&amp;</p>", "Shop <s@example.org>", "help@example.org")
        await provider.send(Message("r:c:email", KEY, "a@example.com", content, NOW), start=nothing)
        assert json.loads(body_of(peer)) == {
            "s": "DUE <&>",
            "h": "<p>&amp;</p>",
            "r": "help@example.org",
            "k": "r:c:email",
        }

    run(scenario, body_json=template)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"key_header": "Idempotency-Key"}, "header"),
        ({"key_field": "options.deep.key"}, "body"),
    ],
)
def test_the_key_goes_where_it_is_asked_for(changes: dict[str, Any], where: str) -> None:
    async def scenario(peer: HttpPeer, provider: HttpProvider) -> None:
        await provider.send(sms(), start=nothing)
        in_header = f"\r\nIdempotency-Key: {KEY}\r\n".encode() in peer.messages[0]
        in_body = json.loads(body_of(peer)).get("options") == {"deep": {"key": KEY}}
        assert (in_header, in_body) == (where == "header", where == "body")
        assert provider.promise.provider_class is ProviderClass.KEY

    run(scenario, key_window_s=86400.0, **changes)


def test_values_in_a_url_are_encoded() -> None:
    async def scenario(peer: HttpPeer, provider: HttpProvider) -> None:
        await provider.send(sms(to="+1/../x?y#z"), start=nothing)
        target = peer.messages[0].split(b" ")[1]
        assert target == b"/v1/%2B1%2F..%2Fx%3Fy%23z/messages?k=" + KEY.encode()
        assert peer.messages[0].startswith(b"PUT ")

    run(scenario, path="/v1/{{ to }}/messages?k={{ send_key }}", method="PUT")


def test_logins_and_headers() -> None:
    async def scenario(peer: HttpPeer, provider: HttpProvider) -> None:
        await provider.send(sms(), start=nothing)
        assert peer.authorizations == {"Basic c2hvcDpwdw=="}
        assert b"\r\nX-Region: eu\r\n" in peer.messages[0]
        assert b"\r\nX-Api-Key: hidden\r\n" in peer.messages[0]
        assert "hidden" not in repr(vars(provider))

    run(
        scenario,
        basic_username="shop",
        basic_password=Secret("pw"),
        headers={"X-Region": "eu"},
        secret_headers={"X-Api-Key": Secret("hidden")},
    )


def test_templates_run_in_a_sandbox() -> None:
    attack = '{"x": "{{ to.__class__.__mro__ }}"}'
    with pytest.raises(ConfigError):
        HttpProvider(settings(body_json=attack))


@pytest.mark.parametrize(
    "changes",
    [
        {"body_json": '{"x": {{ to }}}'},
        {"body_json": '{"x": "{{ nobody }}"}'},
        {"body_json": '{"x": "{{ to"}'},
        {"body_json": '{"x": 1}', "key_field": "x.y", "key_window_s": 1.0},
        {"url": "https://{{ to }}/x"},
        {"url": "https://example.com/a b"},
        {"url": "ftp://example.com/"},
        {"url": "https://example.com/{{ nobody }}"},
        {"url": "http://example.com/"},
        {"lookup_url": "http://example.com/"},
        {"headers": {"Host": "x"}},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X Y": "a"}},
        {"headers": {"X": "a"}, "secret_headers": {"x": Secret("b")}},
        {"key_template": "{{ nobody }}"},
    ],
)
def test_what_cannot_work_is_a_configuration_error_at_once(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        HttpProvider(settings(**changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"body_json": ""}, "body_json"),
        ({"body_form": {"a": "b"}}, "body_json"),
        ({"bearer": Secret("x"), "basic_username": "y", "basic_password": Secret("z")}, "bearer"),
        ({"basic_username": "y"}, "basic_password"),
        ({"basic_password": Secret("y")}, "basic_username"),
        ({"key_header": "K", "key_field": "k", "key_window_s": 1.0}, "key_header"),
        ({"key_header": "K"}, "key_window_s"),
        ({"key_window_s": 1.0}, "key_window_s"),
        ({"lookup_believable": True}, "lookup_believable"),
    ],
)
def test_settings_that_cannot_work_name_the_setting(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        settings(**changes)
    assert caught.value.field == named


def test_a_rule_with_a_wrong_status_is_refused() -> None:
    for status in ("", "4x", "99", "6xx", "4040"):
        with pytest.raises(InvalidInput):
            Rule(Meaning.FAILED, status=status)


# Class


@pytest.mark.parametrize(
    ("changes", "expected", "lookup"),
    [
        ({}, ProviderClass.NEITHER, False),
        ({"lookup_url": "https://example.com/{{ send_key }}"}, ProviderClass.LOOKUP, True),
        ({"key_header": "K", "key_window_s": 60.0}, ProviderClass.KEY, False),
        (
            {"key_field": "k", "key_window_s": 60.0, "lookup_url": "https://example.com/{{ send_key }}"},
            ProviderClass.KEY,
            True,
        ),
    ],
)
def test_the_class_follows_from_what_is_configured(
    changes: dict[str, Any], expected: ProviderClass, lookup: bool
) -> None:
    promise = HttpProvider(settings(index_lag_s=7.0, arrival_max_s=9.0, **changes)).promise
    assert (promise.provider_class, promise.lookup) == (expected, lookup)
    assert promise.key_window_s == changes.get("key_window_s", 0.0)
    assert (promise.index_lag_s, promise.arrival_max_s, promise.timeout_s) == (7.0, 9.0, 30.0)


# Answers

DEFAULTS: list[tuple[int, Outcome]] = [
    (200, Accepted("", "http_200")),
    (202, Accepted("", "http_202")),
    (204, Accepted("", "http_204")),
    (301, AccountError(Reason.CONFIGURATION, "http_301")),
    (302, Unknown("server_error", "http_302")),
    (303, Unknown("server_error", "http_303")),
    (308, AccountError(Reason.CONFIGURATION, "http_308")),
    (400, Rejected(Reason.BAD_CONTENT, "http_400")),
    (401, AccountError(Reason.AUTHENTICATION, "http_401")),
    (402, AccountError(Reason.CREDIT, "http_402")),
    (403, AccountError(Reason.AUTHENTICATION, "http_403")),
    (404, AccountError(Reason.CONFIGURATION, "http_404")),
    (408, Unknown("server_error", "http_408")),
    (409, Unknown("server_error", "http_409")),
    (413, Rejected(Reason.TOO_LARGE, "http_413")),
    (418, Rejected(Reason.OTHER, "http_418")),
    (422, Rejected(Reason.BAD_CONTENT, "http_422")),
    (425, Failed(Reason.UNAVAILABLE, "http_425")),
    (429, Throttled(ThrottleScope.UNDECLARED, "http_429")),
    (500, Unknown("server_error", "http_500")),
    (501, AccountError(Reason.CONFIGURATION, "http_501")),
    (502, Unknown("bad_gateway", "http_502")),
    (503, Unknown("server_error", "http_503")),
    (504, Unknown("bad_gateway", "http_504")),
    (599, Unknown("server_error", "http_599")),
]


@pytest.mark.parametrize(("status", "expected"), DEFAULTS)
def test_what_a_status_means_where_no_rule_says_otherwise(status: int, expected: Outcome) -> None:
    assert classify(Response(status, (), b""), settings(), NOW) == expected


RULES = (
    Rule(Meaning.REJECTED, status="4xx", code="opted_out", reason=Reason.OPTED_OUT, suppress=True),
    Rule(Meaning.REJECTED, status="200", code="rejected", reason=Reason.BLOCKED),
    Rule(Meaning.DUPLICATE, status="409", code="seen"),
    Rule(Meaning.THROTTLED, status="503", code="busy", scope=ThrottleScope.CONCURRENCY),
    Rule(Meaning.FAILED, status="503", reason=Reason.UNAVAILABLE),
    Rule(Meaning.ACCOUNT_ERROR, code="no_credit", reason=Reason.CREDIT),
)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            Response(400, (), b'{"e":{"code":"opted_out"}}'),
            Rejected(Reason.OPTED_OUT, "http_400/opted_out", True),
        ),
        (Response(200, (), b'{"e":{"code":"rejected"}}'), Rejected(Reason.BLOCKED, "http_200/rejected")),
        (Response(200, (), b'{"id":"m-1"}'), Accepted("m-1", "http_200")),
        (Response(200, (), b'{"id":17}'), Accepted("17", "http_200")),
        (
            Response(409, (), b'{"e":{"code":"seen"},"id":"m-1"}'),
            Accepted("m-1", "http_409/seen", duplicate=True),
        ),
        (
            Response(200, ((b"idempotent-replayed", b"true"),), b'{"id":"m-1"}'),
            Accepted("m-1", "http_200", duplicate=True),
        ),
        (
            Response(503, ((b"retry-after", b"3"),), b'{"e":{"code":"busy"}}'),
            Throttled(ThrottleScope.CONCURRENCY, "http_503/busy", 3.0),
        ),
        (
            Response(503, ((b"retry-after", b"Thu, 01 Jan 2026 00:00:30 GMT"),), b"<html>"),
            Failed(Reason.UNAVAILABLE, "http_503", 30.0),
        ),
        (Response(400, (), b'{"e":{"code":"no_credit"}}'), AccountError(Reason.CREDIT, "http_400/no_credit")),
        (Response(429, (), b""), Throttled(ThrottleScope.RATE, "http_429")),
        # a gateway's page, an empty answer, an id that is none: nobody said that the message was taken
        (Response(200, (), b"<html>Log in</html>"), Unknown("truncated", "http_200/no_receipt")),
        (Response(200, (), b""), Unknown("truncated", "http_200/no_receipt")),
        (Response(200, (), b'{"id":null}'), Unknown("truncated", "http_200/no_receipt")),
        (Response(200, (), b'{"id":"two words"}'), Unknown("truncated", "http_200/no_receipt")),
        # codes that may be somebody's address or number stay out of the ledger
        (Response(400, (), b'{"e":{"code":"ann@example.com"}}'), Rejected(Reason.BAD_CONTENT, "http_400")),
        (Response(400, (), b'{"e":{"code":"+12025550123"}}'), Rejected(Reason.BAD_CONTENT, "http_400")),
        (Response(400, (), b'{"e":{"code":12025550123}}'), Rejected(Reason.BAD_CONTENT, "http_400")),
        (Response(400, (), b'{"e":{"code":1042}}'), Rejected(Reason.BAD_CONTENT, "http_400/1042")),
        (Response(400, (), b"[" * 100_000), Rejected(Reason.BAD_CONTENT, "http_400")),
    ],
)
def test_rules_come_first(response: Response, expected: Outcome) -> None:
    configured = settings(
        rules=RULES, code_path="e.code", receipt_path="id", throttle_scope=ThrottleScope.RATE
    )
    assert classify(response, configured, NOW) == expected


def test_a_receipt_in_a_header() -> None:
    configured = settings(receipt_header="X-Message-Id")
    good = Response(202, ((b"x-message-id", b"m-7"),), b"")
    assert classify(good, configured, NOW) == Accepted("m-7", "http_202")
    assert isinstance(classify(Response(202, (), b""), configured, NOW), Unknown)


@given(st.integers(200, 599), st.binary(max_size=40), st.booleans())
def test_every_answer_means_something(status: int, body: bytes, with_rules: bool) -> None:
    configured = settings(rules=RULES if with_rules else (), code_path="e.code", receipt_path="id")
    outcome = classify(Response(status, (), body), configured, NOW)
    if isinstance(outcome, Accepted):
        assert status // 100 == 2 or status == 409
    if status // 100 == 5 and not with_rules and status != 501:
        assert isinstance(outcome, Unknown)


# Look-up


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (Response(200, (), b'{"rows":[{"ref":"k","id":"m-1"}]}'), Found("m-1")),
        (Response(200, (), b'{"rows":[{"ref":"o"},{"ref":"k","id":2}]}'), Found("2")),
        (Response(200, (), b'{"rows":{"ref":"k"}}'), Found("")),
        (Response(200, (), b'{"rows":[]}'), Absent(True)),
        (Response(404, (), b""), Absent(True)),
        (Response(200, (), b'{"rows":[{"ref":"o","id":"m-2"}]}'), NoAnswer("no_match")),
        (Response(200, (), b'{"rows":[null, 3, "k"]}'), NoAnswer("no_match")),
        (Response(200, (), b'{"rows":null}'), NoAnswer("bad_answer")),
        (Response(200, (), b"<html>"), NoAnswer("bad_answer")),
        (Response(202, (), b'{"rows":[]}'), NoAnswer("http_202")),
        (Response(401, (), b""), NoAnswer("http_401")),
        (Response(500, (), b""), NoAnswer("http_500")),
    ],
)
def test_what_a_look_up_proves(response: Response, expected: Finding) -> None:
    configured = settings(
        lookup_url="https://example.com/{{ send_key }}",
        lookup_rows_path="rows",
        lookup_match_path="ref",
        lookup_receipt_path="id",
        lookup_believable=True,
    )
    assert find(response, configured, "k") == expected


def test_a_look_up_by_name_alone() -> None:
    configured = settings(lookup_url="https://example.com/{{ send_key }}", lookup_receipt_path="id")
    assert find(Response(200, (), b'{"id":"m-1"}'), configured, "k") == Found("m-1")
    assert find(Response(404, (), b""), configured, "k") == Absent(believable=False)


def test_the_look_up_asks_for_our_key() -> None:
    asked: list[str] = []

    def lookups(target: str) -> bytes:
        asked.append(target)
        return json_answer(200, [{"ref": f"ref-{KEY}", "id": "m-1"}])

    async def scenario(peer: HttpPeer, provider: HttpProvider) -> None:
        peer._lookups = lookups
        assert await provider.look_up(sms()) == Found("m-1")
        assert dict(parse_qsl(urlsplit(asked[0]).query)) == {"reference": f"ref-{KEY}"}

    run(
        scenario,
        lookup_path="/messages?reference=ref-{{ send_key }}",
        lookup_match_path="ref",
        lookup_match="ref-{{ send_key }}",
        lookup_receipt_path="id",
    )


def test_check() -> None:
    async def scenario(peer: HttpPeer, provider: HttpProvider) -> None:
        assert await provider.check() == "check_url answered 200"
        for status, word in ((401, "credentials"), (404, "404")):
            peer._lookups = lambda _, status=status: json_answer(status, {})
            with pytest.raises(ConfigError, match=word):
                await provider.check()
        assert peer.messages == []

    run(scenario, check_path="/me")
    assert "check_url" in asyncio.run(HttpProvider(settings()).check())


def sms(text: str = "It's due", *, to: str = "+12025550123") -> Message:
    return Message("r:c:sms", KEY, to, SmsContent(text, "+12025550100"), NOW)


def settings(**changes: Any) -> HttpSettings:
    return HttpSettings(**{"url": "https://api.example.com/messages", "body_json": BODY, **changes})


def body_of(peer: HttpPeer) -> bytes:
    return peer.messages[0].partition(b"\r\n\r\n")[2]


async def nothing() -> None:
    pass


def run(
    scenario: Callable[[HttpPeer, HttpProvider], Coroutine[Any, Any, None]],
    *,
    path: str = "/messages",
    lookup_path: str = "",
    check_path: str = "",
    **changes: Any,
) -> None:
    async def bounded() -> None:
        peer = HttpPeer(json_answer(202, {}), b"")
        await peer.start()
        base = f"http://127.0.0.1:{peer.port}"
        urls = {"url": base + path}
        urls |= {"lookup_url": base + lookup_path} if lookup_path else {}
        urls |= {"check_url": base + check_path} if check_path else {}
        provider = HttpProvider(settings(allow_plain_http=True, **urls, **changes))
        try:
            async with asyncio.timeout(10):
                await scenario(peer, provider)
        finally:
            await provider.close()
            await peer.stop()

    asyncio.run(bounded())
