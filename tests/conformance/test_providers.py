"""The provider contract on every adapter that is shipped, and on each class of the configurable one."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sendonce.core.outcome import Accepted, Failed, Finding, Outcome, Reason, Rejected, Unknown
from sendonce.ports.provider import Message, Promise, Provider, Start, TooLate
from sendonce.ports.secret import Secret
from sendonce.providers.http import HttpProvider, HttpSettings
from sendonce.providers.smtp import Security, SmtpProvider, SmtpSettings
from sendonce.providers.twilio import TwilioProvider, TwilioSettings
from sendonce.testing.conformance.provider import (
    HttpContract,
    KeyContract,
    LookupContract,
    SmtpContract,
    json_answer,
)

PASSWORD = "correct-horse-battery"
BODY = (
    '{"to": "{{ to }}", "message": {"text": "{{ text }}", "from": "{{ sender }}"}, "ref": "{{ send_key }}"}'
)


class TestSmtp(SmtpContract):
    credential = PASSWORD

    def provider(self, port: int) -> Provider:
        return SmtpProvider(
            SmtpSettings(
                host="127.0.0.1",
                port=port,
                security=Security.NONE,
                username="shop",
                password=Secret(PASSWORD),
                helo="client.example.org",
                connect_timeout_s=2.0,
                transaction_timeout_s=0.3,
                reply_timeout_s=0.3,
            )
        )


class TestTwilio(HttpContract):
    credential = PASSWORD

    def provider(self, port: int) -> Provider:
        return TwilioProvider(
            TwilioSettings(
                account_sid="AC" + "0" * 32,
                auth_token=Secret(PASSWORD),
                callback_url="https://us.example.com/events",
                callback_secret=Secret("another-secret"),
                base_url=f"http://127.0.0.1:{port}",
                allow_plain_http=True,
                timeout_s=0.3,
            )
        )

    def accepted(self) -> bytes:
        return json_answer(201, {"sid": "SM" + "1" * 32, "status": "queued"})

    def found(self, target: str) -> bytes:
        return json_answer(200, {"messages": [], "status": "active", "type": "Full"})


class TestHttpWithKey(KeyContract):
    credential = PASSWORD

    def provider(self, port: int) -> Provider:
        return http_provider(port, key_header="Idempotency-Key", key_window_s=86400.0)

    def accepted(self) -> bytes:
        return json_answer(202, {"data": {"id": "m-1"}})


class TestHttpWithKeyInBody(KeyContract):
    credential = PASSWORD

    def provider(self, port: int) -> Provider:
        return http_provider(port, key_field="options.key", key_window_s=900.0)

    def accepted(self) -> bytes:
        return json_answer(202, {"data": {"id": "m-1"}})


class TestHttpWithLookup(LookupContract):
    credential = PASSWORD

    def provider(self, port: int) -> Provider:
        return http_provider(
            port,
            lookup_url=f"http://127.0.0.1:{port}/messages?reference={{{{ send_key }}}}",
            lookup_rows_path="rows",
            lookup_match_path="ref",
            lookup_receipt_path="id",
            lookup_believable=True,
            index_lag_s=5.0,
        )

    def accepted(self) -> bytes:
        return json_answer(202, {"data": {"id": "m-1"}})

    def found(self, target: str) -> bytes:
        return self.absent()

    def present(self) -> bytes:
        return json_answer(200, {"rows": [{"ref": "other"}, {"ref": self.message.send_key, "id": "m-1"}]})

    def absent(self) -> bytes:
        return json_answer(200, {"rows": []})

    def others(self) -> bytes:
        return json_answer(200, {"rows": [{"ref": "other", "id": "m-2"}]})


class TestHttpWithNeither(HttpContract):
    credential = PASSWORD

    def provider(self, port: int) -> Provider:
        return http_provider(port)

    def accepted(self) -> bytes:
        return json_answer(202, {"data": {"id": "m-1"}})


def http_provider(port: int, **more: object) -> HttpProvider:
    settings = HttpSettings(
        url=f"http://127.0.0.1:{port}/messages",
        body_json=BODY,
        bearer=Secret(PASSWORD),
        receipt_path="data.id",
        code_path="code",
        check_url=f"http://127.0.0.1:{port}/me",
        allow_plain_http=True,
        timeout_s=0.3,
        **more,  # type: ignore[arg-type]
    )
    return HttpProvider(settings)


# The contract bites: each adapter below breaks one rule, and the named test must notice.


class Wrapped:
    """An adapter that behaves; subclasses do not."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    @property
    def promise(self) -> Promise:
        return self._inner.promise

    async def send(self, message: Message, *, start: Start) -> Outcome:
        return await self._inner.send(message, start=start)

    async def look_up(self, message: Message) -> Finding:
        return await self._inner.look_up(message)

    async def check(self) -> str:
        return await self._inner.check()

    async def close(self) -> None:
        await self._inner.close()


class Eager(Wrapped):
    async def send(self, message: Message, *, start: Start) -> Outcome:
        outcome = await self._inner.send(message, start=nothing)
        await start()
        return outcome


class Unpaced(Wrapped):
    async def send(self, message: Message, *, start: Start) -> Outcome:
        return await self._inner.send(message, start=nothing)


class Retrying(Wrapped):
    async def send(self, message: Message, *, start: Start) -> Outcome:
        outcome = await self._inner.send(message, start=start)
        return await self._inner.send(message, start=nothing) if isinstance(outcome, Unknown) else outcome


class Guessing(Wrapped):
    async def send(self, message: Message, *, start: Start) -> Outcome:
        outcome = await self._inner.send(message, start=start)
        return Failed(Reason.CONNECTION, "guess") if isinstance(outcome, Unknown) else outcome


class Trusting(Wrapped):
    async def send(self, message: Message, *, start: Start) -> Outcome:
        outcome = await self._inner.send(message, start=start)
        return Accepted("?") if isinstance(outcome, Unknown) else outcome


class Talkative(Wrapped):
    def __repr__(self) -> str:
        return f"Talkative({PASSWORD})"


class Gossiping(Wrapped):
    async def send(self, message: Message, *, start: Start) -> Outcome:
        outcome = await self._inner.send(message, start=start)
        return replace(outcome, code=f"bad {message.to}") if isinstance(outcome, Rejected) else outcome


class Whimsical(Wrapped):
    async def send(self, message: Message, *, start: Start) -> Outcome:
        return await self._inner.send(replace(message, send_key=secrets.token_hex(32)), start=start)


class Fragile(Wrapped):
    async def send(self, message: Message, *, start: Start) -> Outcome:
        message.content.text.encode()
        return await self._inner.send(message, start=start)


class Hasty(Wrapped):
    async def check(self) -> str:
        return "all is well"


async def nothing() -> None:
    pass


BITES: list[tuple[type[Wrapped], Callable[[Any], None]]] = [
    (Eager, HttpContract.test_the_connection_is_ready_and_nothing_has_left_when_start_is_awaited),
    (Eager, HttpContract.test_too_late_leaves_no_byte_and_the_connection_in_order),
    (Eager, HttpContract.test_a_bug_in_start_is_not_hidden_and_sends_nothing),
    (Eager, HttpContract.test_close_during_start_sends_nothing),
    (Unpaced, HttpContract.test_a_message_is_accepted_by_one_call),
    (Unpaced, HttpContract.test_a_peer_that_leaves_during_start_is_provably_not_sent),
    (Retrying, HttpContract.test_a_call_that_breaks_after_the_message_is_unknown_and_not_repeated),
    (Retrying, HttpContract.test_silence_ends_within_the_promised_time),
    (Guessing, HttpContract.test_a_call_that_breaks_after_the_message_is_unknown_and_not_repeated),
    (Guessing, HttpContract.test_a_server_error_is_unknown),
    (Trusting, HttpContract.test_an_account_recovers_from_an_unknown_call),
    (Talkative, HttpContract.test_no_credential_is_ever_shown),
    (Gossiping, HttpContract.test_a_refusal_is_a_rejection_without_the_address_in_its_code),
    (Whimsical, HttpContract.test_the_same_message_gives_the_same_bytes),
    (Whimsical, KeyContract.test_the_key_is_on_the_wire),
    (Fragile, HttpContract.test_no_content_makes_it_raise),
    (Hasty, HttpContract.test_check_proves_the_login_and_sends_nothing),
]


@pytest.mark.parametrize(("broken", "test"), BITES, ids=lambda part: part.__name__)
def test_the_contract_notices(broken: type[Wrapped], test: Callable[[Any], None]) -> None:
    class Subject(TestHttpWithKey):
        __test__ = False

        def provider(self, port: int) -> Provider:
            return broken(super().provider(port))

    with pytest.raises((AssertionError, UnicodeEncodeError, TooLate)):
        test(Subject())
