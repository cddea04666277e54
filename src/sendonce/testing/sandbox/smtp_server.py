"""The SMTP side of the sandbox, on aiosmtpd: real commands, real AUTH, real TLS, and faults on purpose.

A call is one mail transaction: it starts with MAIL and ends with the reply to the final dot, with RSET,
or with the connection. What the client may conclude is the protocol's own rule (RFC 5321, 4.2.5 and 6.1):
before the final dot nothing was taken; between the dot and its reply nobody knows.

Several recipients of one transaction are several effects, as each gets a mail.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from email import message_from_bytes
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from typing import Any, NoReturn, cast

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session, syntax

from sendonce.testing.sandbox.channel import Call, Channel, Request, Verdict
from sendonce.testing.sandbox.door import THROTTLED, Answer
from sendonce.testing.sandbox.http_server import reset
from sendonce.testing.sandbox.settings import Refusal, SandboxSettings, Tls
from sendonce.testing.sandbox.shapes import GENERIC_RECEIPT

HOSTNAME = "sandbox.invalid"
IDLE_TIMEOUT_S = 600.0

# RFC 3463 codes; 5.1.1 and 5.7.1 as in common mail servers' own words.
REPLIES = {
    Refusal.INVALID: "550 5.1.1 No such user here",
    Refusal.NOT_MOBILE: "550 5.1.2 Bad destination system address",
    Refusal.OPTED_OUT: "550 5.7.1 Recipient does not want mail from you",
    Refusal.BLOCKED: "554 5.7.1 Message refused by policy",
    Refusal.UNROUTABLE: "550 5.4.4 Unable to route",
    Refusal.MAILBOX_FULL: "452 4.2.2 Mailbox full",
    Refusal.BUSY: "451 4.3.2 System not accepting messages now, try again later",
}
SENDER_REFUSED = "553 5.7.1 Sender address not owned by this account"
AUTH_REQUIRED = "530 5.7.0 Authentication required"
AUTH_FAILED = "535 5.7.8 Authentication credentials invalid"
TRUNCATED = b"250 2.0"


class SmtpConnection(SMTP):
    """One client connection. `open_connections` holds its transport while it lives."""

    def __init__(
        self,
        settings: SandboxSettings,
        channel: Channel,
        *,
        tls: ssl.SSLContext | None,
        now: Callable[[], int],
        open_connections: set[asyncio.BaseTransport],
    ) -> None:
        self._hooks = _Hooks(settings, channel, now=now)
        self._open_connections = open_connections
        self._connected: asyncio.BaseTransport | None = None
        super().__init__(
            self._hooks,
            data_size_limit=settings.size_max,
            enable_SMTPUTF8=True,
            hostname=HOSTNAME,
            ident="sendonce sandbox",
            tls_context=None if settings.smtp_tls is Tls.IMPLICIT else tls,
            require_starttls=settings.smtp_tls is Tls.STARTTLS_REQUIRED,
            auth_require_tls=False,
            authenticator=self._hooks.authenticate,
            timeout=IDLE_TIMEOUT_S,
            loop=asyncio.get_running_loop(),
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._connected is None:  # called again when STARTTLS has wrapped the first one
            self._connected = transport
            self._open_connections.add(transport)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._connected is not None:
            self._open_connections.discard(self._connected)
        self._hooks.end_call(self._hooks.parting)
        super().connection_lost(error)

    @syntax("DATA")
    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        if self._hooks.cuts_early(self.envelope):
            await self.push("354 End data with <CR><LF>.<CR><LF>")
            await self._reader.read(1)
            self._hooks.end_call(Answer.CUT_EARLY)
            await _vanish(self)
        await super().smtp_DATA(arg)


class _Hooks:
    """What the sandbox says to the commands that matter. One for each connection."""

    def __init__(self, settings: SandboxSettings, channel: Channel, *, now: Callable[[], int]) -> None:
        self.parting = Answer.ABANDONED
        self._settings = settings
        self._channel = channel
        self._now = now
        self._call: Call | None = None

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        login = cast("LoginPassword", data)
        wanted = (self._settings.smtp_username.encode(), self._settings.smtp_password.encode())
        right = not self._credentials_set or (login.login, login.password) == wanted
        if right and not self._channel.rules.refuse_credentials:
            return AuthResult(success=True)
        return AuthResult(success=False, handled=False, message=AUTH_FAILED)

    async def handle_MAIL(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        call = self._channel.begin(
            self._now(), authorized=bool(session.authenticated) or not self._credentials_set
        )
        if call.refusal is not None:
            call.end(call.refusal)
            return self._turned_away(server, call.refusal)
        if self._channel.refuses_sender(address):
            call.end(Answer.REFUSED)
            return SENDER_REFUSED
        self._call = call
        self.parting = Answer.ABANDONED
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 2.1.0 Ok"

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        rule = self._channel.refusal_of(address)
        if rule is not None:
            self.parting = Answer.REFUSED
            return rule.reply or REPLIES[rule.refusal]
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 Ok"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.parting = Answer.GONE
        verdict = self._channel.judge(_request(envelope))
        if verdict.delay_s > 0:
            await asyncio.sleep(verdict.delay_s)
        return await self._answer(server, verdict)

    async def handle_RSET(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.end_call(self.parting)
        return "250 2.0.0 Ok"

    async def handle_EHLO(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, hostname: str, responses: list[str]
    ) -> list[str]:
        self.end_call(self.parting)
        session.host_name = hostname
        return responses

    async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.end_call(self.parting)
        return "221 2.0.0 Bye"

    def cuts_early(self, envelope: Envelope | None) -> bool:
        ready = self._call is not None and envelope is not None and bool(envelope.rcpt_tos)
        return ready and self._channel.strikes("cut_early")

    def end_call(self, answer: Answer) -> None:
        if self._call is not None:
            self._call.end(answer)
            self._call = None

    @property
    def _credentials_set(self) -> bool:
        return bool(self._settings.smtp_username or self._settings.smtp_password)

    def _turned_away(self, server: SMTP, answer: Answer) -> str:
        if answer not in THROTTLED:
            return AUTH_REQUIRED if not self._channel.rules.refuse_credentials else AUTH_FAILED
        reply = self._channel.rules.throttle_reply
        if answer is Answer.THROTTLED_QUOTA:
            reply = "454 4.7.0 Daily message quota exceeded"
        if reply.startswith("421") and server.transport is not None:
            # RFC 5321, 3.8: after 421 the channel closes. Once this reply is written.
            asyncio.get_running_loop().call_soon(cast("asyncio.Transport", server.transport).close)
        return reply

    async def _answer(self, server: SMTP, verdict: Verdict) -> str:
        match verdict.answer:
            case Answer.LOST_BEFORE | Answer.LOST_AFTER:
                self.end_call(verdict.answer)
                await _vanish(server)
            case Answer.TRUNCATED:
                self.end_call(verdict.answer)
                transport = cast("asyncio.Transport", server.transport)
                transport.write(TRUNCATED)
                transport.close()
                await _until_closed()
            case Answer.HUNG:
                self.parting = Answer.HUNG
                await _until_closed()
            case Answer.ERROR_BEFORE | Answer.ERROR_AFTER:
                reply = self._channel.rules.error_reply
            case Answer.REFUSED:
                reply = SENDER_REFUSED
            case _:
                reply = f"250 2.0.0 Ok: queued as {verdict.receipt}"
        self.end_call(verdict.answer)
        return reply


def _request(envelope: Envelope) -> Request:
    """The transaction as a request. The marker is looked for in text, HTML and subject, decoded."""
    message = message_from_bytes(cast("bytes", envelope.original_content))
    return Request(
        recipients=tuple(envelope.rcpt_tos),
        sender=envelope.mail_from or "",
        contents=(_part(message, "text/plain"), _part(message, "text/html"), _subject(message)),
        receipt=GENERIC_RECEIPT.format,
        reference=str(message.get("Message-ID", "")),
        screened=True,
    )


def _part(message: Message, content_type: str) -> str:
    for part in message.walk():
        if part.get_content_type() == content_type and not part.is_multipart():
            payload = part.get_payload(decode=True)
            charset = part.get_content_charset("utf-8")
            try:
                return cast("bytes", payload).decode(charset, "replace")
            except LookupError:
                return cast("bytes", payload).decode("utf-8", "replace")
    return ""


def _subject(message: Message) -> str:
    try:
        return str(make_header(decode_header(str(message.get("Subject", "")))))
    except (HeaderParseError, LookupError, UnicodeDecodeError):
        return ""


async def _vanish(server: SMTP) -> NoReturn:
    if server.transport is not None:
        reset(server.transport)
    await _until_closed()


async def _until_closed() -> NoReturn:
    """Says nothing more; the connection's end cancels this."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets that future")
