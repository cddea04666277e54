"""SMTP: what replies mean, and how sessions are opened, used again and lost."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.mail_token import TOKEN_LENGTH
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    NotStarted,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import EmailContent, Message
from sendonce.ports.secret import Secret
from sendonce.providers.smtp import (
    Phase,
    Reply,
    Security,
    SmtpProvider,
    SmtpSettings,
    classify,
    parse_reply,
    receipt_of,
)

MAIL, RCPT, DATA, DOT, AUTH, CONNECT = (
    Phase.MAIL,
    Phase.RCPT,
    Phase.DATA,
    Phase.DOT,
    Phase.AUTH,
    Phase.CONNECT,
)

# What replies mean

INVALID, GONE = Rejected(Reason.INVALID_ADDRESS, ""), Rejected(Reason.INVALID_ADDRESS, "", suppress=True)
LOGIN, SENDER = AccountError(Reason.AUTHENTICATION, ""), AccountError(Reason.SENDER, "")
SETUP = AccountError(Reason.CONFIGURATION, "")
BLOCKED, TOO_LARGE = Rejected(Reason.BLOCKED, ""), Rejected(Reason.TOO_LARGE, "")
LATER, FULL = Failed(Reason.UNAVAILABLE, ""), Failed(Reason.MAILBOX_FULL, "")
RATE, QUOTA = Throttled(ThrottleScope.RATE, ""), Throttled(ThrottleScope.QUOTA, "")
LANES, RECIPIENT = Throttled(ThrottleScope.CONCURRENCY, ""), Throttled(ThrottleScope.RECIPIENT, "")

REPLIES: list[tuple[Phase, str, Outcome]] = [
    # the recipient
    (RCPT, "550 5.1.1 The account does not exist", GONE),
    (RCPT, "550 5.1.1 <ann@example.com>: User unknown in relay recipient table", GONE),
    (RCPT, "550 5.1.2 Host unknown", GONE),
    (RCPT, "553 5.1.3 Bad address syntax", GONE),
    (RCPT, "551 5.1.6 Moved", GONE),
    (RCPT, "556 5.1.10 Domain does not accept mail", GONE),
    (RCPT, "556 Domain does not accept mail", GONE),
    (RCPT, "550 5.2.1 The email account is disabled", GONE),
    (DOT, "550 5.1.1 No such user", GONE),
    (RCPT, "550 No such user here", INVALID),  # might be policy too: nobody is suppressed
    (RCPT, "550 5.4.1 Recipient address rejected: Access denied", INVALID),
    (RCPT, "551 User not local", INVALID),
    (RCPT, "553 Mailbox name not allowed", INVALID),
    (RCPT, "501 Syntax error", INVALID),
    (RCPT, "550 5.1.0 Address rejected", INVALID),
    (RCPT, "552 5.2.2 Over quota", Rejected(Reason.MAILBOX_FULL, "")),
    (RCPT, "552 Too many recipients", LATER),  # RFC 5321 4.5.3.1.10: this 552 is a 452
    (RCPT, "554 5.7.1 Message refused", BLOCKED),
    (RCPT, "550 5.7.0 Policy", BLOCKED),
    (RCPT, "550 5.6.7 Internationalized address", Rejected(Reason.NOT_CAPABLE, "")),
    (RCPT, "452 4.2.2 Mailbox full", FULL),
    (RCPT, "450 4.2.2 Over quota, try later", FULL),
    (RCPT, "450 Mailbox busy", LATER),
    (RCPT, "451 4.3.0 Local error", LATER),
    (RCPT, "452 4.3.1 Insufficient system storage", LATER),
    # the content
    (MAIL, "552 5.3.4 Message size exceeds fixed limit", TOO_LARGE),
    (MAIL, "552 Message size exceeds limit", TOO_LARGE),
    (DOT, "552 Too much mail data", TOO_LARGE),
    (DOT, "552 5.3.4 Too big", TOO_LARGE),
    (DOT, "550 5.7.1 Looks like spam", BLOCKED),
    (DOT, "554 Transaction failed", BLOCKED),
    (DOT, "550 Denied by policy", BLOCKED),
    (DOT, "554 5.6.0 Malformed", Rejected(Reason.BAD_CONTENT, "")),
    (DOT, "451 Aborted: local error", LATER),
    (DOT, "421 4.3.2 Shutting down", LATER),
    (DATA, "451 4.7.1 Try again later", LATER),
    # us
    (AUTH, "535 5.7.8 Authentication credentials invalid", LOGIN),
    (AUTH, "534 5.7.9 Mechanism too weak", LOGIN),
    (AUTH, "500 5.7.0 Authentication failed", LOGIN),
    (AUTH, "550 No", LOGIN),
    (AUTH, "454 4.7.0 Temporary authentication failure", LATER),
    (MAIL, "530 5.7.0 Authentication required", LOGIN),
    (MAIL, "530 5.7.57 Client not authenticated", LOGIN),
    (RCPT, "530 Access denied", LOGIN),
    (MAIL, "550 5.7.1 Not allowed to send as this", SENDER),
    (MAIL, "501 5.1.7 Bad sender", SENDER),
    (MAIL, "553 Sender not ours", SENDER),
    (RCPT, "553 5.7.1 <a@b>: Sender address rejected: not owned by user c", SENDER),
    (RCPT, "550 5.1.8 Sender domain not found", SENDER),
    (DOT, "554 Message rejected: Email address is not verified. The following identities failed", SENDER),
    (RCPT, "554 5.7.1 <ann@example.com>: Relay access denied", SETUP),
    (RCPT, "550 5.7.1 Unable to relay", SETUP),
    (RCPT, "554 5.7.1 <host>: Client host rejected: Access denied", SETUP),
    (RCPT, "503 Bad sequence", SETUP),
    (MAIL, "555 Parameters not recognized", SETUP),
    (CONNECT, "554 No SMTP service here", SETUP),
    (CONNECT, "421 Service not available", LATER),
    # pace
    (DATA, "454 Throttling failure: Maximum sending rate exceeded", RATE),
    (DATA, "454 Throttling failure: Daily message quota exceeded", QUOTA),
    (MAIL, "550 5.4.5 Daily user sending limit exceeded", QUOTA),
    (RCPT, "550 5.1.90 Your message can't be sent: you've reached your daily limit", QUOTA),
    (CONNECT, "421 4.7.0 Too many connections from your host", LANES),
    (MAIL, "432 4.3.2 Concurrent connections limit exceeded", LANES),
    (DOT, "421 4.7.0 Our system has detected an unusual rate of unsolicited mail", RATE),
    (DOT, "421 4.7.28 Our system has detected mail", RATE),
    (RCPT, "450 4.2.1 The user you are trying to contact is receiving email too quickly", RECIPIENT),
    (RCPT, "450 4.2.1 The user you are trying to contact is receiving mail at a rate that", RECIPIENT),
    (RCPT, "550 5.2.1 The user you are trying to contact is receiving mail at a rate that", RECIPIENT),
    (RCPT, "451 4.7.1 Greylisting in action, please come back later", RECIPIENT),
    (RCPT, "450 4.2.0 <ann@example.com>: Recipient address rejected: Greylisted", RECIPIENT),
    (RCPT, "451 4.5.1 The recipient <ann@example.com> has exceeded their message rate limit", RECIPIENT),
    # strange
    (MAIL, "354 Go on", Failed(Reason.OTHER, "")),
    (DATA, "250 Ok", Failed(Reason.OTHER, "")),
    (DOT, "354 Go on", Unknown("truncated", "")),
    (DOT, "250 2.0.0 Ok: queued as 4F1A", Accepted("4F1A", "")),
]


@pytest.mark.parametrize(("phase", "line", "expected"), REPLIES, ids=lambda part: str(part)[:40])
def test_what_a_reply_means(phase: Phase, line: str, expected: Outcome) -> None:
    code, _, text = line.partition(" ")
    outcome = classify(phase, parse_reply(int(code), [text]))
    assert not isinstance(outcome, NotStarted)
    assert replace(outcome, code="") == expected
    assert outcome.code.split(" ")[0] == code


@given(
    st.sampled_from(list(Phase)),
    st.integers(200, 599),
    st.sampled_from(["", "2.0.0", "4.7.28", "5.1.1", "5.2.1", "5.0.0", "4.2.2"]),
    st.text(max_size=40),
)
def test_every_reply_means_something(phase: Phase, code: int, enhanced: str, text: str) -> None:
    outcome = classify(phase, Reply(code, text, enhanced))
    if isinstance(outcome, Accepted):
        assert phase is DOT
        assert 200 <= code <= 299
    if isinstance(outcome, Unknown):
        assert phase is DOT
        assert 300 <= code <= 399
    assert isinstance(outcome, Throttled | Rejected | Failed | AccountError | Accepted | Unknown)


def test_a_reply_of_several_lines_is_read_in_full() -> None:
    reply = parse_reply(550, ["5.1.1 The account does not exist.", "5.1.1 See help page"])
    assert reply == Reply(550, "The account does not exist.\nSee help page", "5.1.1")
    assert parse_reply(250, ["5.1.1 odd"]).enhanced == "", "a class that contradicts the code is no status"
    assert parse_reply(250, ["192.168.0.1 hello"]).enhanced == ""


@pytest.mark.parametrize(
    ("text", "receipt"),
    [
        ("Ok: queued as 4F1A2B", "4F1A2B"),
        ("Ok 010201890a-4f1a-000000", "010201890a-4f1a-000000"),
        ("OK  1700000000 d2e1a72fcca58-68-20020a6bd8si - gsmtp", "d2e1a72fcca58-68-20020a6bd8si"),
        ("OK id=1abcDE-0001-Xy", "1abcDE-0001-Xy"),
        ("Queued mail for delivery", ""),
        ("Ok", ""),
        ("Message for ann@example.com accepted", ""),
        ("", ""),
    ],
)
def test_receipts(text: str, receipt: str) -> None:
    assert receipt_of(Reply(250, text)) == receipt


# Sessions


def test_messages_go_over_one_session_and_a_session_carries_only_so_many() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, messages_per_connection=3) as smtp:
            for _ in range(7):
                assert isinstance(await send(smtp), Accepted)
        assert server.sessions == 3
        assert len(server.texts) == 7
        assert server.commands.count("QUIT") == 3

    run(scenario())


def test_the_envelope() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, envelope_sender="bounce@example.org") as smtp:
            await send(smtp)
        size = len(server.texts[0])
        assert server.commands[1:4] == [
            f"MAIL FROM:<bounce@example.org> SIZE={size}",
            "RCPT TO:<ann@example.com>",
            "DATA",
        ]

    run(scenario())


TOKEN = "a" * TOKEN_LENGTH


@pytest.mark.parametrize(
    ("pattern", "token", "path"),
    [
        ("bounces@example.org", TOKEN, f"bounces+{TOKEN}@example.org"),
        ("b-{token}@example.org", TOKEN, f"b-{TOKEN}@example.org"),
        ("{token}@bounces.example.org", TOKEN, f"{TOKEN}@bounces.example.org"),
        ("bounces@example.org", "", "bounces@example.org"),
        ("b-{token}@example.org", "", "b-none@example.org"),
        ("", TOKEN, "shop@example.org"),
    ],
)
def test_the_return_path_carries_the_token_of_the_message(pattern: str, token: str, path: str) -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, return_path=pattern) as smtp:
            for _ in range(2):
                await send(smtp, token=token)
        senders = [line.split(" ")[1] for line in server.commands if line.startswith("MAIL")]
        assert senders == [f"FROM:<{path}>"] * 2

    run(scenario())


@pytest.mark.parametrize("reports", [False, True])
def test_a_server_that_offers_dsn_is_told_what_to_report_and_under_which_name(reports: bool) -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, delivery_reports=reports) as smtp:
            server.script["EHLO"] = b"250-test\r\n250-DSN\r\n250 AUTH PLAIN\r\n"
            await send(smtp, token=TOKEN)
            await send(smtp)
        wanted = "SUCCESS,FAILURE,DELAY" if reports else "FAILURE,DELAY"
        lines = [line for line in server.commands if line.startswith(("MAIL", "RCPT"))]
        assert lines == [
            f"MAIL FROM:<shop@example.org> RET=HDRS ENVID={TOKEN}",
            f"RCPT TO:<ann@example.com> NOTIFY={wanted}",
            "MAIL FROM:<shop@example.org>",
            "RCPT TO:<ann@example.com>",
        ]

    run(scenario())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("bounces", "must be an address"),
        ("bounces@example.org, x@example.org", "must be an address"),
        ("b-{token}-{token}@example.org", "must be an address"),
        ("b-{tokn}@example.org", "must be an address"),
        ("b@{token}.example.org", "before"),
        ("far-too-long-for-a-return-path@example.org", "shorten"),
    ],
)
def test_a_return_path_that_cannot_be_is_refused(wrong: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        SmtpSettings(host="mx.example.org", return_path=wrong)
    assert caught.value.field == "return_path"


def test_a_return_path_stands_in_place_of_an_envelope_sender() -> None:
    with pytest.raises(InvalidInput, match="keep one"):
        SmtpSettings(host="mx.example.org", return_path="b@example.org", envelope_sender="c@example.org")


def test_a_process_without_file_handles_has_started_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", full, raising=False)
            assert await send(smtp) == NotStarted("no_handles")
            monkeypatch.undo()
            assert isinstance(await send(smtp), Accepted)

    asyncio.run(scenario())


def test_lines_that_begin_with_a_dot_arrive_whole() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            await send(smtp, text=".\n..\n.hidden\nplain")
        assert server.texts[0].endswith(b"\r\n\r\n.\r\n..\r\n.hidden\r\nplain\r\n")

    run(scenario())


@pytest.mark.parametrize("how", ["closed", "closed with 421", "deaf to RSET", "RSET refused"])
def test_a_session_that_died_while_idle_costs_a_new_one_and_nothing_else(how: str) -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            assert isinstance(await send(smtp), Accepted)
            smtp._idle[0].idle_since -= 5  # long enough ago to be asked first
            if how.startswith("closed"):
                if how == "closed with 421":
                    server.say(b"421 4.4.2 Idle for too long\r\n")
                server.hang_up()
                await asyncio.sleep(0.02)
            else:
                server.script["RSET"] = b"" if how == "deaf to RSET" else b"421 4.3.2 Bye\r\n"
            assert isinstance(await send(smtp), Accepted)
        assert server.sessions == 2
        assert len(server.texts) == 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sendonce.providers.smtp._PROBE_TIMEOUT_S", 0.05)
        run(scenario())


def test_an_end_that_only_the_kernel_knows_is_seen_before_mail() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:

            async def start() -> None:
                server.hang_up()
                await asyncio.sleep(0.02)

            assert await send(smtp, start=start) == Failed(Reason.CONNECTION, "mail_closed")
        assert not any(command.startswith("MAIL") for command in server.commands)

    run(scenario())


def test_idle_sessions_are_closed_after_a_while() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, idle_s=0.05) as smtp:
            await asyncio.gather(*[send(smtp) for _ in range(3)])
            await until(lambda: server.open == 0)
            assert smtp._idle == []
        assert server.commands.count("QUIT") == 3

    run(scenario())


def test_sessions_are_bounded() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, connections_max=2) as smtp:
            outcomes = await asyncio.gather(*[send(smtp) for _ in range(20)])
            assert all(isinstance(outcome, Accepted) for outcome in outcomes)
        assert server.sessions == 2

    run(scenario())


def test_waiting_for_a_session_ends_in_time() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, connections_max=1, connect_timeout_s=0.05) as smtp:
            server.script["."] = b""
            first = asyncio.create_task(send(smtp))
            await until(lambda: len(server.texts) == 1)
            assert await send(smtp) == Failed(Reason.CONNECTION, "pool")
            await smtp.close()
            assert await first == Unknown("shutdown")

    run(scenario())


# The reply to the final dot


def test_a_late_reply_counts() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, transaction_timeout_s=0.1) as smtp:
            server.delay_s = 0.2  # longer than all that may pass before the dot
            assert isinstance(await send(smtp), Accepted)

    run(scenario())


def test_the_wait_for_a_reply_is_ended_by_close() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, reply_timeout_s=600.0) as smtp:
            server.script["."] = b""
            assert smtp.promise.timeout_s > 600
            call = asyncio.create_task(send(smtp))
            await until(lambda: len(server.texts) == 1)
            await smtp.close()
            assert await asyncio.wait_for(call, 0.2) == Unknown("shutdown")

    run(scenario())


def test_an_unasked_reply_is_never_taken_for_the_answer() -> None:
    """A server that answers DATA with 354 and a 250 at once must not have "accepted" anything."""

    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            server.script["DATA"] = b"354 Go on\r\n250 2.0.0 Ok: queued as EARLY\r\n"
            server.script["."] = b"550 5.7.1 Spam\r\n"
            outcome = await send(smtp)
            assert isinstance(outcome, Failed | Rejected | Unknown), outcome

            server.script["DATA"] = b"354 Go on\r\n"
            server.script["RCPT"] = b"250 Ok\r\n354 Go on\r\n250 queued as EARLY\r\n"
            assert isinstance(await send(smtp), Failed | Rejected | Unknown)

    run(scenario())


def test_a_second_reply_to_the_dot_ends_the_session() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            server.script["."] = b"250 2.0.0 Ok: queued as A1\r\n550 5.1.1 Oops\r\n"
            assert await send(smtp) == Accepted("A1", "250 2.0.0")
            server.script["."] = b"250 2.0.0 Ok: queued as A2\r\n"
            assert await send(smtp) == Accepted("A2", "250 2.0.0")
        assert server.sessions == 2

    run(scenario())


@pytest.mark.parametrize(
    "reply",
    [b"garbage\r\n", b"250-half\r\n550 other\r\n", b"25\r\n", b"99 x\r\n", b"250-" + b"x" * 70_000, b"\r\n"],
)
def test_garbage_is_unknown_after_the_dot_and_failed_before_it(reply: bytes) -> None:
    async def scenario() -> None:
        for step, kind in ((".", Unknown), ("MAIL", Failed), ("RCPT", Failed), ("DATA", Failed)):
            async with serving() as server, provider(server) as smtp:
                server.script[step] = reply
                assert isinstance(await send(smtp), kind), (step, kind)

    run(scenario())


def test_a_reply_in_single_bytes_is_read() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            server.dribble = True
            server.script["."] = b"250-2.0.0 first\r\n250 2.0.0 Ok: queued as SLOW1\r\n"
            assert await send(smtp) == Accepted("SLOW1", "250 2.0.0")

    run(scenario())


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA"])
def test_silence_before_the_dot_is_failed(step: str) -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, transaction_timeout_s=0.05) as smtp:
            server.script[step] = b""
            assert await send(smtp) == Failed(Reason.CONNECTION, f"{step.lower()}_timeout")

    run(scenario())


def test_a_message_over_the_servers_size_needs_no_start() -> None:
    async def scenario() -> None:
        started: list[bool] = []

        async def start() -> None:
            started.append(True)

        async with serving() as server, provider(server) as smtp:
            server.script["EHLO"] = b"250-x\r\n250 SIZE 400\r\n"
            assert await send(smtp, start=start, text="x" * 500) == Rejected(Reason.TOO_LARGE, "size")
        assert started == []

    run(scenario())


# Opening


@pytest.mark.parametrize(
    ("step", "reply", "expected"),
    [
        ("", b"554 5.7.1 Go away\r\n", AccountError(Reason.CONFIGURATION, "554 5.7.1")),
        ("", b"421 4.7.0 Too many connections\r\n", Throttled(ThrottleScope.CONCURRENCY, "421 4.7.0")),
        ("", b"HTTP/1.1 400 Bad Request\r\n", Failed(Reason.CONNECTION, "connect_bad_reply")),
        ("EHLO", b"421 4.3.2 Shutting down\r\n", Failed(Reason.UNAVAILABLE, "421 4.3.2")),
        ("AUTH", b"535 5.7.8 Wrong\r\n", AccountError(Reason.AUTHENTICATION, "535 5.7.8")),
        ("AUTH", b"454 4.7.0 Later\r\n", Failed(Reason.UNAVAILABLE, "454 4.7.0")),
        ("EHLO", b"250 x\r\n", AccountError(Reason.AUTHENTICATION, "auth_not_offered")),
    ],
)
def test_a_session_that_does_not_come_about(step: str, reply: bytes, expected: Outcome) -> None:
    async def scenario() -> None:
        async with (
            serving() as server,
            provider(server, username="shop", password=Secret("pw")) as smtp,
        ):
            server.script[step] = reply
            assert await send(smtp) == expected
            with pytest.raises(ConfigError):
                await smtp.check()

    run(scenario())


def test_a_greeting_that_never_comes() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, connect_timeout_s=0.05) as smtp:
            server.script[""] = b""
            assert await send(smtp) == Failed(Reason.CONNECTION, "timeout")
            await until(lambda: server.open == 0)

    run(scenario())


def test_starttls_must_be_offered() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server, security=Security.STARTTLS) as smtp:
            assert await send(smtp) == AccountError(Reason.CONFIGURATION, "starttls_not_offered")
            with pytest.raises(ConfigError, match="STARTTLS"):
                await smtp.check()
        assert not any(command.startswith(("MAIL", "AUTH")) for command in server.commands)

    run(scenario())


@pytest.mark.parametrize("security", [Security.STARTTLS, Security.TLS])
def test_mail_over_tls(tmp_path: Path, security: Security) -> None:
    certificate = self_signed(tmp_path, "127.0.0.1")

    async def scenario() -> None:
        async with (
            serving(certificate, implicit=security is Security.TLS) as server,
            provider(
                server,
                security=security,
                ca_file=certificate,
                username="shop",
                password=Secret("pw"),
            ) as smtp,
        ):
            assert (await smtp.check()).startswith("TLSv1.")
            assert isinstance(await send(smtp), Accepted)
            assert isinstance(await send(smtp), Accepted)
        assert server.sessions == 2, "one for the check, one for both messages"
        assert len(server.texts) == 2

    run(scenario())


@pytest.mark.parametrize("security", [Security.STARTTLS, Security.TLS])
@pytest.mark.parametrize("fault", ["unknown authority", "another host"])
def test_a_certificate_that_does_not_hold(tmp_path: Path, security: Security, fault: str) -> None:
    host = "other.example.com" if fault == "another host" else "127.0.0.1"
    certificate = self_signed(tmp_path, host)

    async def scenario() -> None:
        trusted = certificate if fault == "another host" else None
        async with (
            serving(certificate, implicit=security is Security.TLS) as server,
            provider(server, security=security, ca_file=trusted) as smtp,
        ):
            assert await send(smtp) == AccountError(Reason.CONFIGURATION, "tls_certificate")
            with pytest.raises(ConfigError, match="certificate"):
                await smtp.check()
        assert not any(command.startswith("MAIL") for command in server.commands)

    run(scenario())


def test_close_while_opening() -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            server.script[""] = b""
            call = asyncio.create_task(send(smtp))
            await until(lambda: server.open == 1)
            await smtp.close()
            assert await call == NotStarted("stopping")
            await until(lambda: server.open == 0)

    run(scenario())


# Messages and settings


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("a\r\nRCPT TO:<x@y.example>@example.com", Rejected(Reason.INVALID_ADDRESS, "syntax")),
        ("<a@example.com>", Rejected(Reason.INVALID_ADDRESS, "syntax")),
        ("no-at-sign", Rejected(Reason.INVALID_ADDRESS, "syntax")),
        ("é@example.com", Rejected(Reason.NOT_CAPABLE, "smtputf8")),
    ],
)
def test_recipients_that_cannot_be_written(to: str, expected: Outcome) -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            assert await send(smtp, to=to) == expected
        assert server.sessions == 0

    run(scenario())


@pytest.mark.parametrize("to", ["ann+may@example.com", "+1@example.com", "o'brien@example.com"])
def test_recipients_are_written_as_given(to: str) -> None:
    async def scenario() -> None:
        async with serving() as server, provider(server) as smtp:
            assert isinstance(await send(smtp, to=to), Accepted)
        assert f"RCPT TO:<{to}>" in server.commands
        assert f"\r\nTo: {to}\r\n".encode() in server.texts[0]

    run(scenario())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"host": ""}, "host"),
        ({"host": "a b"}, "host"),
        ({"username": "shop"}, "password"),
        ({"password": Secret("x")}, "username"),
        ({"username": "s", "password": Secret("x"), "security": Security.NONE}, "security"),
    ],
)
def test_settings_that_cannot_work_name_the_setting(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SmtpSettings(**{"host": "mail.example.com", **changes})
    assert caught.value.field == named


def test_usual_ports() -> None:
    ports = {security: SmtpSettings("mail.example.com", security).port_used for security in Security}
    assert ports == {Security.STARTTLS: 587, Security.TLS: 465, Security.NONE: 25}
    assert SmtpSettings("mail.example.com", port=2525).port_used == 2525


# The server


@dataclass
class Server:
    """A scripted SMTP server. `script` maps a verb, "." or "" (the greeting) to a reply; b"" is silence."""

    port: int = 0
    sessions: int = 0
    open: int = 0
    script: dict[str, bytes] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    delay_s: float = 0.0
    dribble: bool = False
    tls: ssl.SSLContext | None = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.reply(writer, "", b"220 test ESMTP\r\n")
        while line := await reader.readline():
            command = line.decode("latin-1").strip()
            verb = command.split(" ")[0].upper()
            self.commands.append(command)
            match verb:
                case "EHLO":
                    tls = b"250-STARTTLS\r\n" if self.tls else b""
                    await self.reply(
                        writer, verb, b"250-test\r\n" + tls + b"250-SIZE 900000\r\n250 AUTH PLAIN\r\n"
                    )
                case "STARTTLS" if self.tls:
                    writer.write(b"220 Go on\r\n")
                    await writer.start_tls(self.tls)
                case "AUTH":
                    await self.reply(writer, verb, b"235 2.7.0 Welcome\r\n")
                case "DATA":
                    await self.reply(writer, verb, b"354 Go on\r\n")
                    await self.read_text(reader)
                    await asyncio.sleep(self.delay_s)
                    await self.reply(writer, ".", b"250 2.0.0 Ok: queued as Q%d\r\n" % len(self.texts))
                case "QUIT":
                    return
                case _:
                    await self.reply(writer, verb, b"250 2.0.0 Ok\r\n")

    async def read_text(self, reader: asyncio.StreamReader) -> None:
        lines = []
        while (line := await reader.readline()) != b".\r\n":
            if not line:
                raise EOFError
            lines.append(line.removeprefix(b"."))
        self.texts.append(b"".join(lines))

    async def reply(self, writer: asyncio.StreamWriter, step: str, usual: bytes) -> None:
        wire = self.script.get(step, usual)
        for piece in [wire[at : at + 1] for at in range(len(wire))] if self.dribble else [wire]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    def say(self, wire: bytes) -> None:
        for writer in self.writers:
            writer.write(wire)

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()


@contextlib.asynccontextmanager
async def serving(certificate: Path | None = None, *, implicit: bool = False) -> AsyncIterator[Server]:
    server = Server()
    tasks: set[asyncio.Task[None]] = set()
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.tls = None if implicit else context

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.sessions += 1
        server.open += 1
        server.writers.append(writer)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await server.converse(reader, writer)
        finally:
            server.open -= 1
            server.writers.remove(writer)
            writer.transport.abort() if certificate else writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(one, "127.0.0.1", 0, ssl=context if implicit else None)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def provider(server: Server, **more: Any) -> AsyncIterator[SmtpProvider]:
    settings = {"host": "127.0.0.1", "port": server.port, "security": Security.NONE, "helo": "us", **more}
    smtp = SmtpProvider(SmtpSettings(**settings))
    try:
        yield smtp
    finally:
        await smtp.close()


async def send(
    smtp: SmtpProvider,
    *,
    to: str = "ann@example.com",
    text: str = "It's due.",
    token: str = "",
    start: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> Outcome:
    content = EmailContent("Hello", text, "", "Shop <shop@example.org>")
    message = Message("r:c:email", "ab" * 32, to, content, 1_790_843_000_000_000, return_token=token)
    return await smtp.send(message, start=start or nothing)


async def nothing() -> None:
    pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is awaited lives on both sides of a socket
            await asyncio.sleep(0.002)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario

    asyncio.run(bounded())


def self_signed(directory: Path, host: str) -> Path:
    """A PEM file with key and certificate that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    general = x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([general]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = directory / "server.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return path
