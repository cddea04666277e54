"""Email through any SMTP server that relays for us. Class N: SMTP knows neither keys nor look-ups.

    connect, TLS, EHLO, AUTH  ->  start()  ->  MAIL  ->  RCPT  ->  DATA  ->  text  ->  "."  ->  reply
    `---- before any byte ----'              `---- provably not accepted ---------'  `- may have been -'

A server takes responsibility for a message with its reply to the final dot, and only there (RFC 5321
6.1). So a broken connection is `Unknown` between the dot and that reply and nowhere else; before the
dot it is `Failed`. For that to hold, the text is handed to the kernel whole before the dot is
written at all. The reply may take ten minutes (RFC 5321 4.5.3.2.6), and giving up early is what
makes duplicates (RFC 1047); `close()` ends the wait at once.

aiosmtplib opens the session (greeting, EHLO, STARTTLS, AUTH). The transaction is ours, on its
transport, because the promise hangs on which byte was written when, and on which reply answers what:
a reply that nobody asked for is never taken for an answer.

The return path may carry a token of the message (`return_path`), so that a bounce which comes back as mail
leads to it. Where the server offers DSN (RFC 3461), the token also goes along as ENVID, which reports repeat,
and no more is asked for than failures and delays, with the headers of the message only.

A session carries several messages, one recipient each. An idle one is asked with RSET before it is
used again, so that one which died quietly costs a new connection and nothing else.

What the codes mean: the tables at the end. Sources: RFC 5321 (codes, phases), RFC 3461 (DSN), RFC 3463 and
the IANA registry of enhanced status codes (RFC 5248), RFC 4954 (AUTH), RFC 1870 (SIZE), RFC 7504 (521,
556); the public error lists of Amazon SES ("Throttling failure", "not verified"), Gmail (4.2.1, 5.4.5) and
Exchange Online (5.1.90, 5.4.1), and Postfix's own wording for relaying and senders.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import aiosmtplib

from sendonce.address import parse_sender
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.mail_token import TOKEN_LENGTH
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    Finding,
    NoAnswer,
    NotStarted,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import EmailContent, Message, Promise, ProviderClass, Start, TooLate
from sendonce.ports.secret import Secret
from sendonce.providers.mime import build_email
from sendonce.runtime import sockets
from sendonce.runtime.handles import is_none_left
from sendonce.runtime.sockets import Watch, tls_context


class Security(StrEnum):
    """How the connection is protected. `none` is for a relay on this machine."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """One account at one SMTP server. Times in seconds."""

    host: str = field(metadata={"meaning": "Name of the server, as in its certificate."})
    security: Security = field(
        default=Security.STARTTLS,
        metadata={"meaning": "`starttls` (usual), `tls` from the first byte, or `none` for a local relay."},
    )
    port: int = field(
        default=0,
        metadata={"meaning": "0: 587 for `starttls`, 465 for `tls`, 25 for `none`.", "min": 0, "max": 65535},
    )
    username: str = field(default="", metadata={"meaning": "Name to log in with; empty: no login."})
    password: Secret = field(default_factory=lambda: Secret(""), metadata={"meaning": "Its password."})
    ca_file: Path | None = field(
        default=None, metadata={"meaning": "PEM file of a private authority to trust besides."}
    )
    helo: str = field(default="", metadata={"meaning": "Our name in EHLO; empty: the name of this host."})
    envelope_sender: str = field(
        default="", metadata={"meaning": "Where bounces go (MAIL FROM); empty: the address in From."}
    )
    return_path: str = field(
        default="",
        metadata={
            "meaning": "In place of it, an address that gets a token of each message: `bounces@example.com` "
            "becomes `bounces+TOKEN@example.com`; where the server wants another form, write `{token}` "
            "in it ([bounces](opt-out.md#bounces-that-come-as-mail))."
        },
    )
    delivery_reports: bool = field(
        default=False,
        metadata={
            "meaning": "Whether the server is asked to report deliveries too, where it can (RFC 3461): "
            "a mail for each."
        },
    )
    connect_timeout_s: float = field(
        default=30.0,
        metadata={"meaning": "A free connection, TCP, TLS, greeting and login together.", "min": 0.01},
    )
    transaction_timeout_s: float = field(
        default=120.0,
        metadata={"meaning": "From MAIL to the final dot; running out of it is harmless.", "min": 0.01},
    )
    reply_timeout_s: float = field(
        default=600.0,
        metadata={"meaning": "From the final dot to its reply. RFC 5321 asks for ten minutes.", "min": 0.01},
    )
    idle_s: float = field(
        default=15.0, metadata={"meaning": "An unused connection is closed after this.", "min": 0}
    )
    messages_per_connection: int = field(
        default=100, metadata={"meaning": "Then the connection is closed.", "min": 1}
    )
    connections_max: int = field(
        default=100,
        metadata={"meaning": "Open at once, in each process; at least the account's `lanes`.", "min": 1},
    )

    def __post_init__(self) -> None:
        if not self.host or not re.fullmatch(r"[!-~]+", self.host):
            raise InvalidInput(
                f"must be a host name such as smtp.example.com, not {self.host!r}", field="host"
            )
        if self.return_path:
            if self.envelope_sender:
                raise InvalidInput("stands beside envelope_sender: keep one of them", field="return_path")
            _check_return_path(self.return_path)
        if bool(self.username) != bool(self.password):
            missing = "password" if self.username else "username"
            raise InvalidInput("must be written: a login needs a username and a password", field=missing)
        if self.security is Security.NONE and self.username and not _is_this_machine(self.host):
            raise InvalidInput(
                f'must be "starttls" or "tls": a password must not travel in clear to {self.host}',
                field="security",
            )

    @property
    def port_used(self) -> int:
        return self.port or {Security.STARTTLS: 587, Security.TLS: 465, Security.NONE: 25}[self.security]


class Phase(StrEnum):
    """What was sent last. A reply means other things in other phases."""

    CONNECT = "connect"
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    TEXT = "text"
    DOT = "dot"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. `text` is all its lines, without codes, joined by line breaks."""

    code: int
    text: str
    enhanced: str = ""  # such as 5.1.1; "" where the server gave none

    @property
    def brief(self) -> str:
        """For the ledger: codes only. The text may hold the recipient's address."""
        return f"{self.code} {self.enhanced}".rstrip()


class SmtpProvider:
    """`ports.provider.Provider` for one SMTP account."""

    def __init__(self, settings: SmtpSettings) -> None:
        self._settings = settings
        self._tls = (
            None
            if settings.security is Security.NONE
            else tls_context(str(settings.ca_file) if settings.ca_file else None)
        )
        self._idle: list[_Session] = []
        self._in_use: set[_Session] = set()
        self._opening: set[asyncio.Task[_Session]] = set()
        self._free = asyncio.Semaphore(settings.connections_max)
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def promise(self) -> Promise:
        settings = self._settings
        return Promise(
            ProviderClass.NEITHER, timeout_s=settings.transaction_timeout_s + settings.reply_timeout_s
        )

    async def send(self, message: Message, *, start: Start) -> Outcome:
        letter = _letter(message, self._settings)
        if not isinstance(letter, _Letter):
            return letter
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await self._free.acquire()
        except TimeoutError:
            return Failed(Reason.CONNECTION, "pool")
        try:
            return await self._send_on_a_session(letter, start)
        finally:
            self._free.release()

    async def look_up(self, message: Message) -> Finding:
        return NoAnswer("unsupported")

    async def check(self) -> str:
        session = await self._open()
        if not isinstance(session, _Session):
            raise ConfigError(_advice(session, self._settings))
        session.quit()
        login = f"logged in as {self._settings.username}" if self._settings.username else "no login"
        return f"{session.tls_version or 'no TLS'}, {login}"

    async def close(self) -> None:
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        opening = set(self._opening)
        for task in opening:
            task.cancel()
        sessions = [*self._idle, *self._in_use]
        for session in self._idle:
            session.quit()
        self._idle.clear()
        for session in self._in_use:
            session.abort("shutdown")
        waits: list[asyncio.Future[Any]] = [*opening, *(session.gone for session in sessions)]
        if waits:
            await asyncio.wait(waits, timeout=5)

    # One message

    async def _send_on_a_session(self, letter: _Letter, start: Start) -> Outcome:
        session = await self._session()
        if not isinstance(session, _Session):
            return session
        try:
            if session.size_max and len(letter.text) > session.size_max:
                return Rejected(Reason.TOO_LARGE, "size")
            try:
                await start()
            except TooLate as late:
                return NotStarted(late.why)
            return await self._transact(session, letter)
        finally:
            self._put_back(session)

    async def _transact(self, session: _Session, letter: _Letter) -> Outcome:
        """From MAIL to the reply to the final dot. The first command is written at once."""
        phase = Phase.MAIL
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.transaction_timeout_s
        try:
            for phase, line in letter.commands(session):
                reply = await session.command(line, deadline)
                if reply.code // 100 != (3 if phase is Phase.DATA else 2):
                    session.needs_reset = True
                    return classify(phase, reply)
            phase = Phase.TEXT
            await session.write_text(letter.text, deadline)
            session.check_open()
            phase = Phase.DOT  # nothing is awaited between the check and the dot
            reply = await session.command(b".", loop.time() + self._settings.reply_timeout_s)
        except _Lost as lost:
            session.abort(lost.why)
            return _lost(phase, lost.why, session)
        except asyncio.CancelledError:
            session.abort("cancelled")
            raise
        session.messages += 1
        return classify(phase, reply)

    # Sessions

    async def _session(self) -> _Session | Outcome:
        """An idle session that still answers, or a new one; it is in use from now on."""
        now = asyncio.get_running_loop().time
        while self._idle and not self._closed:
            session = self._idle.pop()
            self._in_use.add(session)
            if session.idle_until > now() and await session.answers(now() + _PROBE_TIMEOUT_S):
                return session
            self._in_use.discard(session)
            session.quit()
        opened = await self._open()
        if isinstance(opened, _Session):
            self._in_use.add(opened)
        return opened

    def _put_back(self, session: _Session) -> None:
        self._in_use.discard(session)
        if session.lost or self._closed or session.messages >= self._settings.messages_per_connection:
            session.quit()
            return
        loop = asyncio.get_running_loop()
        session.written = False
        session.idle_since = loop.time()
        session.idle_until = loop.time() + self._settings.idle_s
        self._idle.append(session)
        if self._sweep is None:
            self._sweep = loop.call_later(self._settings.idle_s, self._drop_idle)

    def _drop_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = None
        for session in self._idle:
            if session.idle_until <= loop.time():
                session.quit()
        self._idle = [session for session in self._idle if not session.lost]
        if self._idle:
            soonest = min(session.idle_until for session in self._idle)
            self._sweep = loop.call_at(soonest, self._drop_idle)

    async def _open(self) -> _Session | Outcome:
        """A new session, logged in; or why there is none, which is provably before any message."""
        if self._closed:
            return NotStarted("stopping")
        opening = _Opening(self._settings, self._tls)
        task = asyncio.get_running_loop().create_task(opening.run())
        task.add_done_callback(_retrieve)
        self._opening.add(task)
        opened: _Session | Outcome = NotStarted("stopping")
        try:
            await asyncio.wait({task}, timeout=self._settings.connect_timeout_s)
            if not task.done():
                opened = Failed(Reason.CONNECTION, "timeout")
            elif not task.cancelled() and not self._closed:
                failure = task.exception()
                opened = opening.outcome(failure) if failure else task.result()
        finally:
            task.cancel()
            self._opening.discard(task)
            if not isinstance(opened, _Session):
                opening.abandon()
        return opened


@dataclass(frozen=True, slots=True)
class _Letter:
    """Envelope and text of one message; `text` is dot-stuffed and ends with CRLF, without the dot."""

    sender: str
    recipient: str
    text: bytes
    token: str
    notify: str

    def commands(self, session: _Session) -> tuple[tuple[Phase, bytes], ...]:
        size = f" SIZE={len(self.text)}" if session.size_max is not None else ""
        envelope, notify = "", ""
        if session.dsn and self.token:
            envelope, notify = f" RET=HDRS ENVID={self.token}", f" NOTIFY={self.notify}"
        return (
            (Phase.MAIL, f"MAIL FROM:<{self.sender}>{size}{envelope}".encode("ascii")),
            (Phase.RCPT, f"RCPT TO:<{self.recipient}>{notify}".encode("ascii")),
            (Phase.DATA, b"DATA"),
        )


def _letter(message: Message, settings: SmtpSettings) -> _Letter | Outcome:
    """What goes on the wire, or a refusal that needs no server."""
    content = message.content
    if not isinstance(content, EmailContent):
        return AccountError(Reason.CONFIGURATION, "not_email")
    if not _ADDRESS.fullmatch(message.to):
        if message.to.isascii():
            return Rejected(Reason.INVALID_ADDRESS, "syntax")
        return Rejected(Reason.NOT_CAPABLE, "smtputf8")  # we send 7-bit mail only
    try:
        sender = return_path(settings.return_path, message.return_token)
        sender = sender or settings.envelope_sender or parse_sender(content.sender)[1]
        text = build_email(message, content)
    except InvalidInput:
        return Rejected(Reason.SENDER, "sender_syntax")
    except ValueError:
        return Rejected(Reason.BAD_CONTENT, "encoding")
    if not _ADDRESS.fullmatch(sender):
        return Rejected(Reason.SENDER, "sender_syntax")
    notify = "SUCCESS,FAILURE,DELAY" if settings.delivery_reports else "FAILURE,DELAY"
    return _Letter(sender, message.to, _LEADING_DOT.sub(b"..", text), message.return_token, notify)


def return_path(pattern: str, token: str) -> str:
    """The address that bounces of one message go to: variable envelope return paths, with a token."""
    local, _, domain = pattern.partition("@")
    if "{token}" in local:
        return f"{local.replace('{token}', token or 'none')}@{domain}"
    return f"{local}+{token}@{domain}" if token and local else pattern


def _check_return_path(pattern: str) -> None:
    plain = pattern.replace("{token}", "t", 1)
    if set(plain) & set("{}") or not _ADDRESS.fullmatch(plain):
        raise InvalidInput(
            f"= {pattern!r} must be an address, such as bounces@example.com or bounces+{{token}}@example.com",
            field="return_path",
        )
    local, _, domain = return_path(pattern, "t" * TOKEN_LENGTH).rpartition("@")
    if "{token}" in domain:
        raise InvalidInput(f"= {pattern!r} has {{token}} behind the @: write it before", field="return_path")
    if len(local) > _LOCAL_PART_MAX:
        raise InvalidInput(
            f"= {pattern!r} makes {len(local)} characters before the @ with a token: {_LOCAL_PART_MAX} are "
            "allowed, shorten it",
            field="return_path",
        )


def _lost(phase: Phase, why: str, session: _Session) -> Outcome:
    if phase is not Phase.DOT:
        if phase is Phase.MAIL and why == "shutdown" and not session.written:
            return NotStarted("stopping")
        return Failed(Reason.CONNECTION, f"{phase}_{why}")
    if why == "bad_reply":
        return Unknown("truncated", why)
    return Unknown("reset" if why in ("closed", "unsolicited") else why)


# Opening a session


class _Opening:
    """Connect, TLS, EHLO, AUTH through aiosmtplib; then its transport becomes a `_Session`."""

    def __init__(self, settings: SmtpSettings, tls: ssl.SSLContext | None) -> None:
        self._settings = settings
        self._step = "connect"
        self._client = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port_used,
            use_tls=settings.security is Security.TLS,
            start_tls=False,
            tls_context=tls,
            timeout=settings.connect_timeout_s,
            local_hostname=settings.helo or _own_name(),
        )

    async def run(self) -> _Session:
        client, settings = self._client, self._settings
        try:
            await client.connect()
            if settings.security is Security.STARTTLS:
                self._step = "starttls"
                await client.starttls(server_hostname=settings.host)
            self._step = "ehlo"
            if client.is_ehlo_or_helo_needed:
                await client.ehlo()
            if settings.username:
                self._step = "auth"
                await client.login(settings.username, settings.password.reveal())
        except BaseException:
            self.abandon()
            raise
        assert client.transport is not None
        extensions = client.esmtp_extensions
        transport = cast("asyncio.Transport", client.transport)
        return _Session(transport, extensions.get("size"), dsn="dsn" in extensions)

    def abandon(self) -> None:
        transport = self._client.transport
        self._client.close()
        if transport is not None:
            cast("asyncio.Transport", transport).abort()

    def outcome(self, failure: BaseException) -> Outcome:
        phase = Phase.AUTH if self._step == "auth" else Phase.CONNECT
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(failure)):
            return AccountError(Reason.CONFIGURATION, "tls_certificate")
        match failure:
            case OSError() if is_none_left(failure):
                return NotStarted("no_handles")
            case aiosmtplib.SMTPResponseException(code=code, message=text):
                if not 200 <= code <= 599:
                    return Failed(Reason.CONNECTION, f"{self._step}_bad_reply")
                return classify(phase, parse_reply(code, text.split("\n")))
            case aiosmtplib.SMTPTimeoutError() | TimeoutError():
                return Failed(Reason.CONNECTION, "timeout")
            case aiosmtplib.SMTPServerDisconnected() | OSError():
                return Failed(Reason.CONNECTION, self._why(failure))
            case aiosmtplib.SMTPException() if self._step == "starttls":
                return AccountError(Reason.CONFIGURATION, "starttls_not_offered")
            case aiosmtplib.SMTPException():
                return AccountError(Reason.AUTHENTICATION, "auth_not_offered")
            case _:
                raise failure

    def _why(self, failure: BaseException) -> str:
        kinds = ((socket.gaierror, "dns"), (ConnectionRefusedError, "refused"), (ssl.SSLError, "tls"))
        for cause in _causes(failure):
            for kind, why in kinds:
                if isinstance(cause, kind):
                    return why
        return f"{self._step}_closed"


class _Lost(Exception):
    """The session is of no use any more.

    `why`: timeout, reset, closed, bad_reply, unsolicited, shutdown, cancelled.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class _Session(asyncio.Protocol):
    """A session that is logged in: commands out, replies in, one at a time."""

    def __init__(self, transport: asyncio.Transport, size: str | None, *, dsn: bool) -> None:
        self.dsn = dsn
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._lines: list[str] = []
        self._reply: asyncio.Future[Reply] | None = None
        self._room: asyncio.Future[None] | None = None  # while the kernel does not take all we wrote
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.size_max: int | None = int(size) if size is not None and size.isdecimal() else None
        self.tls_version: str = ""
        if tls := transport.get_extra_info("ssl_object"):
            self.tls_version = tls.version() or ""
        self.lost = ""
        self._watch = Watch(transport)
        self.written = False
        self.messages = 0
        self.needs_reset = False
        self.idle_since = self._loop.time()
        self.idle_until = float("inf")
        transport.set_protocol(self)
        # "Resume" then means: nothing is left on our side. Plain transports pause above the mark, TLS at it.
        transport.set_write_buffer_limits(high=1 if self.tls_version else 0, low=0)
        if transport.is_closing():
            self.connection_lost(None)

    async def command(self, line: bytes, deadline: float) -> Reply:
        """Write one line at once; its whole reply. Raises `_Lost`."""
        self.check_open()
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self._reply = reply
        self.written = True
        self._transport.write(line + b"\r\n")
        await self._wait(reply, deadline)
        answer = reply.result()
        if answer.code == _CLOSING:
            self.lost = self.lost or "closed"
        return answer

    async def write_text(self, text: bytes, deadline: float) -> None:
        """Write the text, and wait until the kernel has all of it. Raises `_Lost`."""
        self.check_open()
        self._transport.write(text)
        if self._room is not None:
            await self._wait(self._room, deadline)

    def check_open(self) -> None:
        """Raises `_Lost` when the server has left or has spoken unasked, by the kernel's view too."""
        if not self.lost and not self._watch.quiet():
            self.lost = "closed"
        if self.lost:
            raise _Lost(self.lost)

    async def answers(self, deadline: float) -> bool:
        """Whether the session is fit for a new message. A fresh one is; else RSET tells."""
        if self.lost:
            return False
        if not self.needs_reset and self._loop.time() - self.idle_since < _FRESH_S:
            return True
        try:
            reply = await self.command(b"RSET", deadline)
        except _Lost:
            return False
        except asyncio.CancelledError:
            self.abort("cancelled")
            raise
        self.needs_reset = False
        self.written = False  # by the next message
        return reply.code // 100 == 2

    def quit(self) -> None:
        """Take leave without waiting for the answer."""
        if not self.lost:
            self.lost = "closed"
            self._transport.write(b"QUIT\r\n")
        if self.tls_version:
            self._transport.abort()  # close() would wait for the server's close_notify
        else:
            self._transport.close()

    def abort(self, why: str) -> None:
        """Reset the socket now; whoever waits gets `_Lost(why)`."""
        self._lose(why)
        sockets.abort(self._transport)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if not self._asked():
            self._lose("unsolicited")  # a farewell, or words for which there is no question
            return
        self._buffer += data
        if len(self._buffer) + sum(map(len, self._lines)) > _REPLY_BYTES_MAX:
            self._lose("bad_reply")
            return
        while b"\n" in self._buffer and self._asked():
            line, _, self._buffer = self._buffer.partition(b"\n")
            self._line(line.rstrip(b"\r"))
        if self._buffer and not self._asked() and not self.lost:
            self.lost = "unsolicited"  # more than one reply: this one counts, the session is over

    def eof_received(self) -> None:
        self._lose("closed")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("closed" if exc is None else "reset")
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def _asked(self) -> bool:
        return self._reply is not None

    def _line(self, line: bytes) -> None:
        match = _REPLY_LINE.fullmatch(line)
        if match is None or (self._lines and self._lines[0][:3] != match[1].decode()):
            self._lose("bad_reply")
            return
        self._lines.append(line.decode("ascii", "replace"))
        if match[2] != b"-":
            lines, self._lines = self._lines, []
            waiting, self._reply = self._reply, None
            if waiting is not None and not waiting.done():
                waiting.set_result(parse_reply(int(match[1]), [line[4:] for line in lines]))

    async def _wait(self, future: asyncio.Future[Reply] | asyncio.Future[None], deadline: float) -> None:
        await asyncio.wait({future}, timeout=max(0.0, deadline - self._loop.time()))
        if not future.done():
            self._reply = None
            raise _Lost(self.lost or "timeout")
        if future.cancelled():
            raise _Lost(self.lost)

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        for waiting in (self._reply, self._room):
            if waiting is not None and not waiting.done():
                waiting.cancel()
        self._reply = None


# What a reply means


def parse_reply(code: int, lines: list[str]) -> Reply:
    """A reply from its code and the texts of its lines; every line may begin with the enhanced code."""
    found = [match for line in lines if (match := _ENHANCED.match(line))]
    enhanced = found[-1][1] if found and found[-1][1][0] == str(code)[0] else ""
    return Reply(code, "\n".join(_ENHANCED.sub("", line, count=1).strip() for line in lines), enhanced)


def classify(phase: Phase, reply: Reply) -> Outcome:
    """The outcome of a message whose last word was `reply`; pure. Every reply is a complete answer."""
    kind = reply.code // 100
    if phase is Phase.DOT and kind == 2:
        return Accepted(receipt_of(reply), reply.brief)
    if kind not in (4, 5):
        # Before the dot a strange reply ends the attempt; after it, it says nothing at all.
        return Unknown("truncated", reply.brief) if phase is Phase.DOT else Failed(Reason.OTHER, reply.brief)
    if scope := _pace(reply):
        return Throttled(scope, reply.brief)
    if account := _our_fault(phase, reply):
        return AccountError(account, reply.brief)
    if kind == 4 or (reply.code == 552 and phase is Phase.RCPT and not reply.enhanced):  # RFC 5321 4.5.3.1.10
        full = reply.enhanced.endswith(".2.2")
        return Failed(Reason.MAILBOX_FULL if full else Reason.UNAVAILABLE, reply.brief)
    reason, suppress = _refusal(phase, reply)
    return Rejected(reason, reply.brief, suppress)


def receipt_of(reply: Reply) -> str:
    """The server's id of the message, as far as its free text holds one; never an address."""
    for pattern in _RECEIPTS:
        if found := pattern.search(reply.text):
            return found[1]
    return ""


def _pace(reply: Reply) -> ThrottleScope | None:
    if reply.code // 100 == 5 and reply.enhanced not in _PACE_ALTHOUGH_PERMANENT:
        return None
    if reply.enhanced.endswith(".2.2"):
        return None  # a full mailbox is "over quota" too
    for pattern, scope in _PACE_WORDS:
        if pattern.search(reply.text):
            return scope
    return _PACE_ALTHOUGH_PERMANENT.get(reply.enhanced) or _PACE_CODES.get(reply.enhanced)


def _our_fault(phase: Phase, reply: Reply) -> Reason | None:
    """Our login, sender or set-up; None where the recipient or the content is meant."""
    code, enhanced = reply.code, reply.enhanced
    if code in _AUTH_CODES or enhanced in _AUTH_STATUSES:
        return Reason.AUTHENTICATION
    if code // 100 == 4:
        return None
    if enhanced == "5.7.0" and _AUTH_WORDS.search(reply.text):
        return Reason.AUTHENTICATION
    if enhanced in _SENDER_STATUSES or _SENDER_WORDS.search(reply.text):
        return Reason.SENDER
    if code in _PROTOCOL_CODES or (_RELAY_WORDS.search(reply.text) and not enhanced.startswith("5.1.")):
        return Reason.CONFIGURATION  # 5.1.1 with "relay" in it is Postfix's "unknown in relay table"
    match phase:
        case Phase.AUTH:
            return Reason.AUTHENTICATION
        case Phase.CONNECT:
            return Reason.CONFIGURATION  # 554 in the greeting: it does not talk to us
        case Phase.MAIL if code != 552 and enhanced not in ("5.3.4", "5.2.3"):
            return Reason.SENDER  # RFC 5321 4.3.3: at MAIL, 550 and 553 are about the sender
        case _:
            return None


def _refusal(phase: Phase, reply: Reply) -> tuple[Reason, bool]:
    """Why, and whether the address must not be tried again."""
    status = reply.enhanced[2:]
    if status in _STATUSES:
        return _STATUSES[status]
    if status[:1] in _SUBJECTS:
        return _SUBJECTS[status[0]], False
    if phase is Phase.RCPT and reply.code in _RCPT_CODES:
        return _RCPT_CODES[reply.code]
    return _TEXT_CODES.get(reply.code, Reason.OTHER), False


def speaks_of_the_address(status: str) -> bool:
    """Whether an enhanced status such as "5.1.1" says that the address must not be tried again."""
    return status.startswith("5.") and _STATUSES.get(status[2:], (None, False))[1]


# Enhanced status codes without their class (RFC 3463, RFC 5248 registry): reason, suppress the address.
_STATUSES: dict[str, tuple[Reason, bool]] = {
    "1.1": (Reason.INVALID_ADDRESS, True),  # no such mailbox
    "1.2": (Reason.INVALID_ADDRESS, True),  # no such domain
    "1.3": (Reason.INVALID_ADDRESS, True),  # the address is not one
    "1.4": (Reason.INVALID_ADDRESS, False),  # ambiguous: more than one mailbox
    "1.6": (Reason.INVALID_ADDRESS, True),  # moved, no forwarding
    "1.10": (Reason.INVALID_ADDRESS, True),  # null MX: the domain takes no mail (RFC 7505)
    "2.1": (Reason.INVALID_ADDRESS, True),  # disabled, does not take mail
    "2.2": (Reason.MAILBOX_FULL, False),
    "2.3": (Reason.TOO_LARGE, False),  # larger than this mailbox takes
    "3.4": (Reason.TOO_LARGE, False),  # larger than the system takes
    "4.1": (Reason.INVALID_ADDRESS, False),  # Exchange Online: not in the directory; RFC: no answer from host
    "4.4": (Reason.INVALID_ADDRESS, False),  # no route to the domain
    "6.7": (Reason.NOT_CAPABLE, False),  # needs SMTPUTF8
}
# The rest by subject.
_SUBJECTS: dict[str, Reason] = {
    "1": Reason.INVALID_ADDRESS,
    "2": Reason.OTHER,
    "3": Reason.OTHER,
    "4": Reason.UNAVAILABLE,
    "5": Reason.OTHER,
    "6": Reason.BAD_CONTENT,
    "7": Reason.BLOCKED,
}
# Basic codes, where no enhanced one says more (RFC 5321 4.2.3; RFC 7504). A bare 550 also means "policy",
# so it suppresses nobody.
_RCPT_CODES: dict[int, tuple[Reason, bool]] = {
    501: (Reason.INVALID_ADDRESS, False),
    521: (Reason.INVALID_ADDRESS, False),
    550: (Reason.INVALID_ADDRESS, False),
    551: (Reason.INVALID_ADDRESS, False),
    553: (Reason.INVALID_ADDRESS, False),
    554: (Reason.BLOCKED, False),
    556: (Reason.INVALID_ADDRESS, True),
}
_TEXT_CODES: dict[int, Reason] = {550: Reason.BLOCKED, 552: Reason.TOO_LARGE, 554: Reason.BLOCKED}

_AUTH_CODES = frozenset({432, 530, 534, 535, 538})  # RFC 4954; 432: a password change is needed
_AUTH_STATUSES = frozenset({"5.7.8", "5.7.9", "5.7.11", "5.7.13", "5.7.14", "5.7.57"})
_SENDER_STATUSES = frozenset({"5.1.7", "5.1.8", "5.7.60"})  # 5.7.60: Exchange, may not send as this one
_PROTOCOL_CODES = frozenset({500, 502, 503, 504, 555})
_AUTH_WORDS = re.compile(r"authenti|log ?in|credential", re.IGNORECASE)
_SENDER_WORDS = re.compile(
    r"sender address rejected|address is not verified|not owned by user", re.IGNORECASE
)
_RELAY_WORDS = re.compile(
    r"\brelay(?:ing)? (?:access )?(?:is )?(?:denied|not (?:allowed|permitted)|prohibited)"
    r"|(?:unable|not (?:allowed|permitted)) to relay|client host rejected",
    re.IGNORECASE,
)

# A refusal for pace. Words are looked at first, since codes are used loosely; order matters.
_PACE_WORDS: tuple[tuple[re.Pattern[str], ThrottleScope], ...] = (
    (
        re.compile(r"gr[ea]ylist|receiving (?:e?mail) (?:too quickly|at a rate)", re.I),
        ThrottleScope.RECIPIENT,
    ),
    (re.compile(r"recipient\b.*\brate limit", re.I), ThrottleScope.RECIPIENT),
    (re.compile(r"concurrent|too many connections|connection limit", re.I), ThrottleScope.CONCURRENCY),
    (
        re.compile(r"daily|quota exceeded|sending limit|(?:per|24) ?-?(?:day|hour)|hourly", re.I),
        ThrottleScope.QUOTA,
    ),
    (
        re.compile(
            r"throttl|rate limit|sending rate|unusual rate|too many messages|too fast|slow(?:er)? down", re.I
        ),
        ThrottleScope.RATE,
    ),
)
_PACE_CODES = {"4.7.28": ThrottleScope.RATE}  # mail flood
# Permanent by class, yet only a matter of time; None: only with the words.
_PACE_ALTHOUGH_PERMANENT: dict[str, ThrottleScope | None] = {
    "5.4.5": ThrottleScope.QUOTA,  # Gmail: daily sending limit
    "5.1.90": ThrottleScope.QUOTA,  # Exchange Online: daily recipients
    "5.2.1": None,  # Gmail: the mailbox receives at too high a rate
}

_RECEIPTS = (
    re.compile(r"queued(?: mail for delivery)? as ([\w.+/=-]{1,120})", re.ASCII | re.IGNORECASE),
    re.compile(r"\bid[= ]<?([\w.+/=-]{1,120})", re.ASCII | re.IGNORECASE),
    re.compile(r"^ok:?\s+(?:\d{9,11}\s+)?([\w.+/=-]{6,120})", re.ASCII | re.IGNORECASE),  # SES; Gmail
    re.compile(r"^([\w-]{6,120})$", re.ASCII),
)


def _advice(outcome: Outcome, settings: SmtpSettings) -> str:
    where = f"{settings.host}:{settings.port_used}"
    match outcome:
        case AccountError(Reason.AUTHENTICATION, code):
            return f"{where} refused the login ({code}): mend username and password"
        case AccountError(_, "tls_certificate"):
            return f"{where} shows a certificate that does not hold for it: mend host, or name its ca_file"
        case AccountError(_, "starttls_not_offered"):
            return f'{where} offers no STARTTLS: write security = "tls", or another port'
        case Failed(_, "dns"):
            return f"{settings.host} has no address: mend host"
        case Failed(_, "refused" | "timeout" as code):
            return f"{where} cannot be reached ({code}): mend host and port, or let the firewall pass it"
        case AccountError(_, code) | Failed(_, code) | Throttled(_, code):
            return f"{where} does not let us in ({code}): mend host, port and security"
        case _:
            return f"{where} was not asked: the account is being closed"


def _is_this_machine(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _own_name() -> str:
    name = socket.gethostname()
    return name if re.fullmatch(r"[A-Za-z0-9.-]+", name) else "localhost"


def _causes(failure: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = failure
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain


def _retrieve(task: asyncio.Task[_Session]) -> None:
    """Look at the failure of an opening that nobody waits for any more, so that it is not logged."""
    if not task.cancelled():
        task.exception()


_LOCAL_PART_MAX = 64  # RFC 5321 4.5.3.1.1
_ADDRESS = re.compile(r"[!#-;=?A-Z\[-~]+@[!#-;=?A-Z\[-~]+", re.ASCII)  # visible ASCII without " < > @
_LEADING_DOT = re.compile(rb"^\.", re.MULTILINE)
_REPLY_LINE = re.compile(rb"([2-5]\d\d)(?:([ -])(.*))?")
_ENHANCED = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?=\s|$)", re.ASCII)
_REPLY_BYTES_MAX = 64 * 1024
_CLOSING = 421  # may answer anything, at any time
_FRESH_S = 1.0
_PROBE_TIMEOUT_S = 5.0
