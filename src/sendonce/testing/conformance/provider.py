"""The provider port's contract as tests, against a faulty peer on real sockets.

To run it on an adapter, subclass a contract in a test file and say how to build the adapter:

    class TestAcme(HttpContract):
        credential = "s3cret"

        def provider(self, port: int) -> Provider:
            return AcmeProvider(AcmeSettings(url=f"http://127.0.0.1:{port}", token=Secret("s3cret"), ...))

        def accepted(self) -> bytes:
            return json_answer(201, {"id": "m-1"})

    ProviderContract       every rule that holds for all adapters
    ├── HttpContract       peer: an HTTP server; after the first byte everything is unknown
    └── SmtpContract       peer: an SMTP server; unknown only between the final dot and its reply
    KeyContract, LookupContract    added by a class K or L adapter

The adapter under test should have short timeouts (about 0.3 s), so that silence is cheap to wait out.
Needs nothing but pytest to find the tests; the checks are plain assertions.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

from sendonce.core.errors import ConfigError
from sendonce.core.outcome import (
    Absent,
    Accepted,
    AccountError,
    Failed,
    Finding,
    Found,
    NoAnswer,
    NotStarted,
    Outcome,
    Rejected,
    Throttled,
    Unknown,
)
from sendonce.ports.provider import EmailContent, Message, Provider, ProviderClass, SmsContent, TooLate

T = TypeVar("T")
PROVABLY_NOT_SENT = (NotStarted, Failed, AccountError)
OUTCOMES = (NotStarted, Accepted, Rejected, Throttled, AccountError, Failed, Unknown)
FINDINGS = (Found, Absent, NoAnswer)
TO_EMAIL, TO_SMS = "Ann.Person+tag@example.com", "+12025550123"

BUSY_S: Final = 5.0
"""How late a busy machine may be, where a fault would mean never."""


RETRY_AFTER: Final = {
    "Retry-After: 7": 7.0,
    "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT": 120.0,
    "Retry-After: Wednesday, 21-Oct-26 07:28:00 GMT": 120.0,
    "Retry-After: Wed Oct 21 07:28:00 2026": 120.0,
    "retry-after: wed, 21 oct 2026 07:28:00 gmt": 120.0,
    "Retry-After: 0": None,
    "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT": None,
    "Retry-After: soon": None,
    "X-Nothing: here": None,
}
"""Header lines of an answer from 2026-10-21 07:26 UTC, and how many seconds each asks for."""


class Fault(StrEnum):
    """What the peer does with a call. The `AFTER` ones come when the whole message has arrived."""

    NONE = "none"
    CLOSE_ON_CONNECT = "close on connect"
    RESET_ON_CONNECT = "reset on connect"
    RESET_AFTER = "reset after"
    CLOSE_AFTER = "close after"
    TRUNCATE_AFTER = "truncate after"
    GARBAGE_AFTER = "garbage after"
    SILENT_AFTER = "silent after"
    REJECT = "reject"  # permanently, with the address in the words
    THROTTLE = "throttle"
    UNAUTHORIZED = "unauthorized"


AFTER = (
    Fault.RESET_AFTER,
    Fault.CLOSE_AFTER,
    Fault.TRUNCATE_AFTER,
    Fault.GARBAGE_AFTER,
    Fault.SILENT_AFTER,
)


class Peer(ABC):
    """A provider on loopback that misbehaves on demand and counts what reaches it."""

    def __init__(self) -> None:
        self.fault = Fault.NONE
        self.port = 0
        self.connections = 0
        self.open = 0
        self.sending_bytes = 0  # of commands or requests that can cause a send
        self.messages: list[bytes] = []  # arrived whole, whatever was answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @abstractmethod
    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the other side leaves."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # let the transports see their end

    async def end(self, writer: asyncio.StreamWriter, wire: bytes) -> bool:
        """Answer with `wire`, or misbehave as the fault says. Returns whether to go on."""
        match self.fault:
            case Fault.RESET_AFTER:
                reset(writer)
            case Fault.CLOSE_AFTER:
                writer.close()
            case Fault.TRUNCATE_AFTER:
                writer.write(wire[: len(wire) // 2])
                await writer.drain()
                writer.close()
            case Fault.GARBAGE_AFTER:
                writer.write(b"\x00\xff\x13 what\r\n\r\n")
                await writer.drain()
                await asyncio.Event().wait()
            case Fault.SILENT_AFTER:
                await asyncio.Event().wait()
            case _:
                writer.write(wire)
                await writer.drain()
                return True
        return False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                if self.fault is Fault.RESET_ON_CONNECT:
                    reset(writer)
                elif self.fault is not Fault.CLOSE_ON_CONNECT:
                    await self.converse(reader, writer)
        finally:
            self.open -= 1
            writer.close()
            self._tasks.discard(task)


class HttpPeer(Peer):
    """Reads requests, answers what it is told to. A GET is a look-up or a check, never a send."""

    def __init__(
        self, accepted: bytes, rejected: bytes, lookups: Callable[[str], bytes] | None = None
    ) -> None:
        super().__init__()
        self._accepted = accepted
        self._rejected = rejected
        self._lookups = lookups
        self.throttled_with: tuple[str, ...] = ("Retry-After: 7",)
        self.authorizations: set[str] = set()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        go_on = True
        while go_on:
            first = await reader.readexactly(4)
            sends = first != b"GET "
            self.sending_bytes += sends
            head = first + await reader.readuntil(b"\r\n\r\n")
            length = int(header(head, "content-length") or "0")
            request = head + await reader.readexactly(length)
            self.authorizations.add(header(head, "authorization"))
            if sends:
                self.messages.append(request)
            go_on = await self.end(writer, self._answer(request, sends))

    def _answer(self, request: bytes, sends: bool) -> bytes:
        match self.fault:
            case Fault.UNAUTHORIZED:
                return json_answer(401, {"code": 20003})
            case Fault.REJECT:
                return self._rejected
            case Fault.THROTTLE:
                return http_answer(429, b"", *self.throttled_with)
        if sends:
            return self._accepted
        if self._lookups is not None:
            return self._lookups(request.split(b" ")[1].decode("latin-1"))
        return json_answer(200, {})


class SmtpPeer(Peer):
    """A small SMTP server. `break_at` closes the connection when that command (or "TEXT") arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.break_at = ""
        self.commands: list[str] = []

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 peer ESMTP\r\n")
        while line := await reader.readline():
            command = line.decode("latin-1").strip()
            verb = command.split(" ")[0].split(":")[0].upper()
            self.commands.append(command)
            if verb == "MAIL":
                self.sending_bytes += len(line)
            if verb == self.break_at:
                return
            if verb != "DATA":
                writer.write(self._reply(verb, command))
                await writer.drain()
                if verb == "QUIT":
                    return
            elif not await self._text(reader, writer):
                return

    def _reply(self, verb: str, command: str) -> bytes:
        match verb:
            case "EHLO":
                return b"250-peer\r\n250-SIZE 50000000\r\n250 AUTH PLAIN LOGIN\r\n"
            case "AUTH" if self.fault is Fault.UNAUTHORIZED:
                return b"535 5.7.8 Authentication credentials invalid\r\n"
            case "AUTH":
                return b"235 2.7.0 Welcome\r\n"
            case "RCPT" if self.fault is Fault.REJECT:
                address = command.partition(":")[2].encode()
                return b"550-5.1.1 The account %b does not exist.\r\n550 5.1.1 See help page\r\n" % address
            case "RCPT" if self.fault is Fault.THROTTLE:
                return b"454 4.7.0 Throttling failure: Maximum sending rate exceeded\r\n"
            case "QUIT":
                return b"221 2.0.0 Bye\r\n"
            case _:
                return b"250 2.0.0 Ok\r\n"

    async def _text(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"354 Go ahead\r\n")
        lines = []
        while (line := await reader.readline()) != b".\r\n":
            if not line or self.break_at == "TEXT":
                return False
            lines.append(line.removeprefix(b"."))
        self.messages.append(b"".join(lines))
        return await self.end(writer, b"250-2.0.0 Ok: all\r\n250 2.0.0 queued as 4F1A\r\n")


@dataclass
class Starts:
    """A `start()` that counts its calls, and what the peer had seen of the message by then."""

    peer: Peer
    then: Callable[[], Awaitable[None]] | None = None
    calls: int = 0
    bytes_before: list[int] = field(default_factory=list)
    connections_before: list[int] = field(default_factory=list)

    async def __call__(self) -> None:
        self.calls += 1
        await asyncio.sleep(0.02)  # what had left before would have arrived by now
        self.bytes_before.append(self.peer.sending_bytes)
        self.connections_before.append(self.peer.connections)
        if self.then is not None:
            await self.then()


class ProviderContract(ABC):
    """The rules of `ports.provider`. Subclasses name the peer and build the adapter."""

    credential: str
    """A secret that the adapter is given and that must never be shown."""

    message: Message

    @abstractmethod
    def peer(self) -> Peer:
        """A peer of the adapter's kind, not started."""

    @abstractmethod
    def provider(self, port: int) -> Provider:
        """The adapter, talking to 127.0.0.1:`port`, with timeouts of about 0.3 s."""

    def unsigned(self, request: bytes) -> bytes:
        """A request without the header that signs the time of the call, where there is one (rule 5)."""
        return request

    # Rule 1, 2: the good way

    def test_a_message_is_accepted_by_one_call(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            starts = Starts(peer)
            outcome = await provider.send(self.message, start=starts)
            assert isinstance(outcome, Accepted), outcome
            assert outcome.receipt
            assert starts.calls == 1
            assert len(peer.messages) == 1

        self.run(scenario)

    def test_the_connection_is_ready_and_nothing_has_left_when_start_is_awaited(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            starts = Starts(peer)
            await provider.send(self.message, start=starts)
            assert starts.connections_before == [1]
            assert starts.bytes_before == [0]

        self.run(scenario)

    def test_messages_at_once_are_all_accepted(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            messages = [replace(self.message, send_key=f"{number:064x}") for number in range(20)]
            starts = Starts(peer)
            outcomes = await asyncio.gather(*[provider.send(each, start=starts) for each in messages])
            assert all(isinstance(outcome, Accepted) for outcome in outcomes), outcomes
            assert starts.calls == len(peer.messages) == 20

        self.run(scenario)

    def test_connections_are_used_again(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            for _ in range(3):
                assert isinstance(await provider.send(self.message, start=Starts(peer)), Accepted)
            assert peer.connections == 1

        self.run(scenario)

    def test_too_late_leaves_no_byte_and_the_connection_in_order(self) -> None:
        async def too_late() -> None:
            raise TooLate("slot_missed")

        async def scenario(peer: Peer, provider: Provider) -> None:
            outcome = await provider.send(self.message, start=Starts(peer, too_late))
            assert outcome == NotStarted("slot_missed")
            await asyncio.sleep(0.02)
            assert (peer.sending_bytes, peer.messages) == (0, [])
            assert isinstance(await provider.send(self.message, start=Starts(peer)), Accepted)
            assert (peer.connections, len(peer.messages)) == (1, 1)

        self.run(scenario)

    def test_a_bug_in_start_is_not_hidden_and_sends_nothing(self) -> None:
        async def broken() -> None:
            raise ZeroDivisionError

        async def scenario(peer: Peer, provider: Provider) -> None:
            try:
                await provider.send(self.message, start=Starts(peer, broken))
            except ZeroDivisionError:
                pass
            else:
                raise AssertionError("the exception was swallowed")
            await asyncio.sleep(0.02)
            assert peer.sending_bytes == 0

        self.run(scenario)

    # Rule 3: before the first byte

    def test_nobody_listens(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            await peer.stop()
            starts = Starts(peer)
            outcome = await provider.send(self.message, start=starts)
            assert isinstance(outcome, PROVABLY_NOT_SENT), outcome
            assert starts.calls == 0

        self.run(scenario)

    def test_a_connection_that_breaks_at_once_is_provably_not_sent(self) -> None:
        for fault in (Fault.CLOSE_ON_CONNECT, Fault.RESET_ON_CONNECT):

            async def scenario(peer: Peer, provider: Provider, fault: Fault = fault) -> None:
                peer.fault = fault
                outcome = await provider.send(self.message, start=Starts(peer))
                assert isinstance(outcome, PROVABLY_NOT_SENT), (fault, outcome)
                assert peer.messages == []

            self.run(scenario)

    def test_a_peer_that_leaves_during_start_is_provably_not_sent(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            async def leave() -> None:
                await peer.stop()
                await until(lambda: peer.open == 0)

            outcome = await provider.send(self.message, start=Starts(peer, leave))
            assert isinstance(outcome, PROVABLY_NOT_SENT), outcome
            assert peer.messages == []

        self.run(scenario)

    # Rule 3, 4: after the first byte

    def test_a_call_that_breaks_after_the_message_is_unknown_and_not_repeated(self) -> None:
        for fault in AFTER:

            async def scenario(peer: Peer, provider: Provider, fault: Fault = fault) -> None:
                peer.fault = fault
                starts = Starts(peer)
                outcome = await provider.send(self.message, start=starts)
                assert isinstance(outcome, Unknown), (fault, outcome)
                assert outcome.evidence
                await asyncio.sleep(0.02)
                assert len(peer.messages) == starts.calls == 1, fault

            self.run(scenario)

    def test_an_account_recovers_from_an_unknown_call(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            for fault in (Fault.RESET_AFTER, Fault.SILENT_AFTER):
                peer.fault = fault
                assert isinstance(await provider.send(self.message, start=Starts(peer)), Unknown)
                peer.fault = Fault.NONE
                assert isinstance(await provider.send(self.message, start=Starts(peer)), Accepted)

        self.run(scenario)

    def test_a_refusal_is_a_rejection_without_the_address_in_its_code(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            peer.fault = Fault.REJECT
            outcome = await provider.send(self.message, start=Starts(peer))
            assert isinstance(outcome, Rejected), outcome
            assert outcome.code
            for part in (self.message.to, "Person", "2025550123"):
                assert part not in repr(outcome)

        self.run(scenario)

    def test_a_refusal_for_pace_is_throttled(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            peer.fault = Fault.THROTTLE
            outcome = await provider.send(self.message, start=Starts(peer))
            assert isinstance(outcome, Throttled), outcome

        self.run(scenario)

    def test_a_refused_login_is_the_accounts_fault(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            peer.fault = Fault.UNAUTHORIZED
            outcome = await provider.send(self.message, start=Starts(peer))
            assert isinstance(outcome, AccountError), outcome

        self.run(scenario)

    # Rule 5: the same bytes

    def test_the_same_message_gives_the_same_bytes(self) -> None:
        seen: list[bytes] = []

        async def scenario(peer: Peer, provider: Provider) -> None:
            for _ in range(2):
                await provider.send(self.message, start=Starts(peer))
            seen.extend(self.unsigned(without_port(each, peer.port)) for each in peer.messages)

        self.run(scenario)
        self.run(scenario)  # another process, for all that the adapter can tell
        assert len(seen) == 4
        assert len(set(seen)) == 1, seen

    # Rule 1: nothing raises

    def test_no_content_makes_it_raise(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            for message in self.odd_messages():
                outcome = await provider.send(message, start=Starts(peer))
                assert isinstance(outcome, OUTCOMES), (message, outcome)
                assert not isinstance(outcome, Unknown), (message, outcome)

        self.run(scenario)

    def odd_messages(self) -> list[Message]:
        """Content that intake refuses, as if it had got past intake."""
        odd = [
            "",
            "\ud800",
            "a\0b",
            "a\r\nBcc: x@example.net\r\n\r\nb",
            "\r\n.\r\n",
            "x" * 5000,
            "\u202e\U0001f60e",
        ]
        messages = [
            replace(self.message, to=to) for to in ("", "a\r\nb@example.com", "<>", "\ud800", "x" * 5000)
        ]
        for text in odd:
            content = self.message.content
            match content:
                case EmailContent():
                    changed: EmailContent | SmsContent = replace(content, text=text, subject=text, html=text)
                    messages.append(replace(self.message, content=replace(content, sender=text)))
                case SmsContent():
                    changed = replace(content, text=text)
                    messages.append(replace(self.message, content=replace(content, sender=text)))
            messages.append(replace(self.message, content=changed))
        return messages

    def test_where_one_click_unsubscribes_goes_along(self) -> None:
        """RFC 8058: who offers it must be reached by every provider that carries email."""
        content = self.message.content
        if not isinstance(content, EmailContent):
            return
        url = "https://us.example.com/unsubscribe/AbC-_9"
        marked = replace(self.message, content=replace(content, unsubscribe=url))

        async def scenario(peer: Peer, provider: Provider) -> None:
            for message in (self.message, marked):
                await provider.send(message, start=Starts(peer))
            plain, one = (_readable(without_port(each, peer.port)) for each in peer.messages)
            assert url not in plain
            assert url in one
            assert "List-Unsubscribe=One-Click" in one or "one_click_unsubscribe_url" in one

        self.run(scenario)

    # Rule 6: secrets

    def test_no_credential_is_ever_shown(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            shown = [repr(provider), str(provider), repr(getattr(provider, "__dict__", {}))]
            shown.append(repr(await provider.send(self.message, start=Starts(peer))))
            for fault in (Fault.UNAUTHORIZED, Fault.RESET_AFTER):
                peer.fault = fault
                shown.append(repr(await provider.send(self.message, start=Starts(peer))))
                with contextlib.suppress(ConfigError):
                    shown.append(await provider.check())
            for text in shown:
                assert self.credential not in text

        self.run(scenario)

    # Rule 7: the end

    def test_silence_ends_within_the_promised_time(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            peer.fault = Fault.SILENT_AFTER
            loop = asyncio.get_running_loop()
            began: list[float] = []

            async def note() -> None:
                began.append(loop.time())

            outcome = await provider.send(self.message, start=Starts(peer, note))
            assert outcome == Unknown("timeout")
            assert len(peer.messages) == 1, "one call of send is one call of the provider"
            # What does not end by itself would never end here; a busy machine is only late.
            assert loop.time() - began[0] < provider.promise.timeout_s + BUSY_S

        self.run(scenario)

    def test_close_gives_up_open_calls_at_once(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            peer.fault = Fault.SILENT_AFTER
            calls = [asyncio.create_task(provider.send(self.message, start=Starts(peer))) for _ in range(3)]
            await until(lambda: len(peer.messages) == 3)
            await provider.close()
            outcomes = await asyncio.wait_for(asyncio.gather(*calls), 0.2)
            assert outcomes == [Unknown("shutdown")] * 3
            await until(lambda: peer.open == 0 or peer.fault is Fault.SILENT_AFTER)
            await provider.close()
            starts = Starts(peer)
            assert isinstance(await provider.send(self.message, start=starts), NotStarted)
            assert starts.calls == 0

        self.run(scenario)

    def test_close_during_start_sends_nothing(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            outcome = await provider.send(self.message, start=Starts(peer, provider.close))
            assert isinstance(outcome, PROVABLY_NOT_SENT), outcome
            await asyncio.sleep(0.02)
            assert peer.sending_bytes == 0

        self.run(scenario)

    def test_a_cancelled_call_lets_go_of_its_connection(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            peer.fault = Fault.SILENT_AFTER
            call = asyncio.create_task(provider.send(self.message, start=Starts(peer)))
            await until(lambda: len(peer.messages) == 1)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            assert call.cancelled(), "CancelledError must be let through"
            peer.fault = Fault.NONE
            assert isinstance(await provider.send(self.message, start=Starts(peer)), Accepted)
            assert peer.connections == 2, "an abandoned connection was used again"

        self.run(scenario)

    # Promise, look-up, check

    def test_the_promise_is_whole(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            promise = provider.promise
            assert promise.timeout_s > 0
            assert (promise.key_window_s > 0) == (promise.provider_class is ProviderClass.KEY)
            assert promise.lookup or promise.provider_class is not ProviderClass.LOOKUP
            finding = await provider.look_up(self.message)
            assert isinstance(finding, FINDINGS)
            if not promise.lookup:
                assert not isinstance(finding, Found)
                assert not (isinstance(finding, Absent) and finding.believable)
            assert peer.sending_bytes == 0

        self.run(scenario)

    def test_check_proves_the_login_and_sends_nothing(self) -> None:
        async def scenario(peer: Peer, provider: Provider) -> None:
            line = await provider.check()
            assert line
            assert "\n" not in line
            peer.fault = Fault.UNAUTHORIZED
            try:
                await provider.check()
            except ConfigError as error:
                said = str(error)
            else:
                raise AssertionError("a refused login must be a ConfigError")
            assert self.credential not in said
            assert (peer.sending_bytes, peer.messages) == (0, [])

        self.run(scenario)

    # Machinery

    def run(self, scenario: Callable[[Any, Provider], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20), self._both() as (peer, provider):
                await scenario(peer, provider)

        asyncio.run(bounded())

    @contextlib.asynccontextmanager
    async def _both(self) -> AsyncIterator[tuple[Peer, Provider]]:
        peer = self.peer()
        await peer.start()
        provider = self.provider(peer.port)
        try:
            yield peer, provider
        finally:
            await provider.close()
            await peer.stop()


def _readable(data: bytes) -> str:
    """What is on the wire, with what is percent-encoded or in base64 in it."""
    text = unquote_plus(data.decode("latin-1"))
    found = re.findall(r"[A-Za-z0-9+/]{400,}={0,2}", data.decode("latin-1"))
    return "\n".join([text, *(base64.b64decode(each).decode("latin-1") for each in found)])


class HttpContract(ProviderContract):
    """For adapters that make one HTTP request a message."""

    message = Message(
        delivery_key="shipment-4821:customer-73:sms",
        send_key="5e" * 32,
        to=TO_SMS,
        content=SmsContent("It's due: “é” & 100% <b>", "+12025550100"),
        frozen_at=1_767_225_600_000_000,
        valid_s=3600,
    )

    @abstractmethod
    def accepted(self) -> bytes:
        """The whole answer of a provider that takes the message; see `json_answer`."""

    def rejected(self) -> bytes:
        """A permanent refusal that names the recipient."""
        return json_answer(400, {"code": self.message.to, "message": f"{self.message.to} is invalid"})

    def found(self, target: str) -> bytes:
        """The answer to a GET."""
        return json_answer(200, {})

    def peer(self) -> HttpPeer:
        return HttpPeer(self.accepted(), self.rejected(), self.found)

    def test_retry_after_is_read(self) -> None:
        """RATE-01, RATE-03: in each form that HTTP has; what is zero, past or none of them is no hint."""

        async def scenario(peer: HttpPeer, provider: Provider) -> None:
            peer.fault = Fault.THROTTLE
            for line, wait_s in RETRY_AFTER.items():
                peer.throttled_with = (line, "Date: Wed, 21 Oct 2026 07:26:00 GMT")
                outcome = await provider.send(self.message, start=Starts(peer))
                assert isinstance(outcome, Throttled), (line, outcome)
                assert outcome.retry_after_s == wait_s, (line, outcome)

        self.run(scenario)

    def test_a_server_error_is_unknown(self) -> None:
        for status in (500, 502, 503, 504):
            answer = json_answer(status, {"message": "oops"})

            async def scenario(peer: HttpPeer, provider: Provider, answer: bytes = answer) -> None:
                peer._accepted = answer
                outcome = await provider.send(self.message, start=Starts(peer))
                assert isinstance(outcome, Unknown), (answer, outcome)

            self.run(scenario)

    def test_the_credential_reaches_the_provider_in_a_header_only(self) -> None:
        async def scenario(peer: HttpPeer, provider: Provider) -> None:
            await provider.send(self.message, start=Starts(peer))
            head, _, body = peer.messages[0].partition(b"\r\n\r\n")
            assert self.credential.encode() not in body
            assert self.credential.encode() not in head.split(b"\r\n")[0], "a URL ends up in logs"

        self.run(scenario)


class KeyContract(HttpContract):
    """For class K: the key is on the wire, and stays the same for the same message only."""

    def test_the_key_is_on_the_wire(self) -> None:
        async def scenario(peer: HttpPeer, provider: Provider) -> None:
            other = replace(self.message, send_key="7a" * 32)
            for message in (self.message, self.message, other):
                await provider.send(message, start=Starts(peer))
            first, again, changed = (without_port(each, peer.port) for each in peer.messages)
            assert first == again != changed
            assert provider.promise.provider_class is ProviderClass.KEY

        self.run(scenario)


class LookupContract(HttpContract):
    """For class L: a message is found by our key only, and absence is told apart from silence."""

    @abstractmethod
    def present(self) -> bytes:
        """The answer to a look-up that finds `message`."""

    @abstractmethod
    def absent(self) -> bytes:
        """The answer to a look-up that finds nothing."""

    @abstractmethod
    def others(self) -> bytes:
        """An answer that holds only messages of other keys."""

    def test_what_a_look_up_proves(self) -> None:
        broken = (
            json_answer(500, {}),
            json_answer(401, {}),
            http_answer(200, b"<html>", "Content-Type: text/html"),
            self.others(),
        )
        expected: list[tuple[bytes, type[Finding]]] = [(self.present(), Found), (self.absent(), Absent)]
        expected += [(answer, NoAnswer) for answer in broken]
        for answer, kind in expected:

            async def scenario(
                peer: HttpPeer, provider: Provider, answer: bytes = answer, kind: type[Finding] = kind
            ) -> None:
                peer._lookups = lambda _: answer
                finding = await provider.look_up(self.message)
                assert isinstance(finding, kind), (answer, finding)
                assert peer.sending_bytes == 0

            self.run(scenario)

    def test_a_look_up_that_breaks_is_no_answer(self) -> None:
        for fault in AFTER:

            async def scenario(peer: HttpPeer, provider: Provider, fault: Fault = fault) -> None:
                peer.fault = fault
                assert isinstance(await provider.look_up(self.message), NoAnswer), fault

            self.run(scenario)


class SmtpContract(ProviderContract):
    """For adapters that speak SMTP."""

    message = Message(
        delivery_key="shipment-4821:customer-73:email",
        send_key="5e" * 32,
        to=TO_EMAIL,
        content=EmailContent(
            "Your parcel: “é”", "It's due.\r\n.\r\nFrom here\n", "<p>It's due.</p>", "Shop <shop@example.org>"
        ),
        frozen_at=1_767_225_600_000_000,
        valid_s=3600,
    )

    def peer(self) -> SmtpPeer:
        return SmtpPeer()

    def test_before_the_final_dot_everything_is_provably_not_accepted(self) -> None:
        for command in ("MAIL", "RCPT", "DATA"):

            async def scenario(peer: SmtpPeer, provider: Provider, command: str = command) -> None:
                peer.break_at = command
                outcome = await provider.send(self.message, start=Starts(peer))
                assert isinstance(outcome, Failed), (command, outcome)
                assert peer.messages == []

            self.run(scenario)

    def test_a_text_that_did_not_leave_whole_is_provably_not_accepted(self) -> None:
        """Larger than all buffers on the way, so that the final dot cannot have been written."""
        line = "All work and no play makes a long message, one line after another.\n"
        content = EmailContent("Long", line * 150_000, "", self.message.content.sender)

        async def scenario(peer: SmtpPeer, provider: Provider) -> None:
            peer.break_at = "TEXT"
            outcome = await provider.send(replace(self.message, content=content), start=Starts(peer))
            assert isinstance(outcome, Failed), outcome
            assert peer.messages == []

        self.run(scenario)

    def test_one_recipient_in_the_envelope_whatever_the_content(self) -> None:
        async def scenario(peer: SmtpPeer, provider: Provider) -> None:
            for message in self.odd_messages():
                before = len(peer.commands)
                await provider.send(message, start=Starts(peer))
                asked = [command for command in peer.commands[before:] if command.startswith("RCPT")]
                assert asked in ([], [f"RCPT TO:<{message.to}>"])
            assert not any("spy" in command or "x@example.net" in command for command in peer.commands)

        self.run(scenario)

    def test_a_session_goes_on_after_a_refusal(self) -> None:
        async def scenario(peer: SmtpPeer, provider: Provider) -> None:
            peer.fault = Fault.REJECT
            assert isinstance(await provider.send(self.message, start=Starts(peer)), Rejected)
            peer.fault = Fault.NONE
            assert isinstance(await provider.send(self.message, start=Starts(peer)), Accepted)
            assert peer.connections == 1
            assert "RSET" in peer.commands

        self.run(scenario)


# Tools for peers


def json_answer(status: int, body: object) -> bytes:
    return http_answer(status, json.dumps(body).encode(), "Content-Type: application/json")


def http_answer(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def header(head: bytes, name: str) -> str:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.decode("latin-1").partition(":")
        if key.lower() == name:
            return value.strip()
    return ""


def without_port(request: bytes, port: int) -> bytes:
    """A request as it would be to a server that always has the same port."""
    return request.replace(b":%d" % port, b":PORT")


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens at the other end of a socket."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is awaited lives on both sides
            await asyncio.sleep(0.002)


__all__ = [
    "AFTER",
    "Fault",
    "HttpContract",
    "HttpPeer",
    "KeyContract",
    "LookupContract",
    "Outcome",
    "Peer",
    "ProviderContract",
    "SmtpContract",
    "SmtpPeer",
    "Starts",
    "http_answer",
    "json_answer",
]
