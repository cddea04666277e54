"""The HTTP client against real servers on loopback that answer in every bad way there is."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendonce.core.errors import ConfigError
from sendonce.runtime.http_client import (
    DEFAULT_LIMITS,
    Connection,
    HttpClient,
    Limits,
    MaybeSent,
    NotSent,
    Origin,
    Response,
    encode_request,
    parse_url,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Response | NotSent | MaybeSent


# Complete answers

COMPLETE = {
    "content-length": (OK, True),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nT: 1\r\n\r\n",
        True,
    ),
    "interim answers": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\n" + OK, True),
    "connection: close": (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1), False),
    "http/1.0": (OK.replace(b"1.1", b"1.0"), False),
    "a second answer": (OK + OK, False),
    "garbage behind": (OK + b"\x00\x01garbage", False),
    "half an answer behind": (OK + b"HTTP/1.1 4", False),
}


@pytest.mark.parametrize("case", COMPLETE)
def test_a_complete_answer(case: str) -> None:
    wire, reusable = COMPLETE[case]

    async def scenario() -> None:
        async with serving(replying(wire)) as peer, peer.client() as client:
            first = await call(client, peer)
            second = await call(client, peer)
        for answer in (first, second):
            assert isinstance(answer, Response)
            assert answer.body == (b"" if answer.status == 204 else b"ok")
            assert answer.header("link") is None
            assert answer.header("t") is None
        assert peer.connections == (1 if reusable else 2)
        assert len(peer.requests) == 2

    run(scenario())


def test_a_body_that_ends_with_the_stream() -> None:
    async def scenario() -> None:
        async with (
            serving(replying(b"HTTP/1.1 200 OK\r\n\r\nok", then_close=True)) as peer,
            peer.client() as client,
        ):
            assert await call(client, peer) == Response(200, (), b"ok")
            assert isinstance(await call(client, peer), Response)
        assert peer.connections == 2

    run(scenario())


def test_the_request_on_the_wire() -> None:
    async def scenario() -> None:
        async with serving(replying(OK)) as peer, peer.client() as client:
            await call(client, peer, headers=[("X-Key", "k1")], body=b"abc")
        assert peer.requests == [
            b"POST /send HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept-Encoding: identity\r\n"
            b"X-Key: k1\r\nContent-Length: 3\r\n\r\nabc" % peer.port
        ]

    run(scenario())


def test_headers_are_found_by_name_and_joined() -> None:
    wire = b"HTTP/1.1 429 Slow\r\nretry-AFTER: 5\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n"

    async def scenario() -> None:
        async with serving(replying(wire)) as peer, peer.client() as client:
            answer = await call(client, peer)
        assert isinstance(answer, Response)
        assert answer.header("retry-after") == "5"
        assert answer.header("x-a") == "1, 2"

    run(scenario())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(COMPLETE)), st.lists(st.integers(1, 90), max_size=6))
def test_the_pieces_in_which_an_answer_arrives_change_nothing(case: str, cuts: list[int]) -> None:
    wire, _ = COMPLETE[case]
    pieces = [wire[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(wire)], strict=True)]

    async def dribble(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with serving(dribble) as peer, peer.client() as client:
            answer = await call(client, peer)
        assert isinstance(answer, Response)
        assert answer.status in (200, 204)

    run(scenario())


def test_an_early_answer_to_an_unread_body_is_believed_and_its_connection_is_not_used_again() -> None:
    async def refuse(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await peer.stopped.wait()

    async def scenario() -> None:
        async with serving(refuse) as peer, peer.client() as client:
            big = bytes(8_000_000)
            for _ in range(2):
                answer = await call(client, peer, body=big)
                assert isinstance(answer, Response)
                assert answer.status == 413
        assert peer.connections == 2

    run(scenario())


# Answers that are none

BROKEN = {
    "reset at once": (b"", "reset", "reset"),
    "closed at once": (b"", "close", "reset"),
    "closed in the headers": (OK[:20], "close", "truncated"),
    "closed in the body": (OK[:-1], "close", "truncated"),
    "reset in the body": (OK[:-1], "reset", "reset"),
    "closed after an interim answer": (b"HTTP/1.1 100 Continue\r\n\r\n", "close", "truncated"),
    "closed in a chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "close", "truncated",
    ),
    "no last chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "close", "truncated",
    ),
    "reset before the end of the stream": (b"HTTP/1.1 200 OK\r\n\r\nok", "reset", "reset"),
    "not http": (b"220 mail.example.com ESMTP\r\n", "stay", "bad_response"),
    "bytes": (bytes(range(256)), "stay", "bad_response"),
    "http/2 in clear": (OK.replace(b"HTTP/1.1", b"HTTP/2.0"), "stay", "bad_response"),
    "two lengths": (OK.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n", 1), "stay", "bad_response"),
    "length and chunks": (
        OK.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n", 1), "stay", "bad_response",
    ),
    "a length that is none": (OK.replace(b": 2", b": two"), "stay", "bad_response"),
    "a chunk size that is none": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab", "stay", "bad_response",
    ),
    "switching protocols": (
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "stay", "bad_response",
    ),
    "many headers": (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 2000, "stay", "too_large"),
    "one endless header": (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 400_000, "stay", "too_large"),
    "endless interim answers": (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000, "stay", "too_large"),
    "a body over the bound": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + bytes(5000), "stay", "too_large",
    ),
    "a streamed body over the bound": (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(5000), "stay", "too_large"),
    "endless chunk extensions": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 400_000, "stay", "too_large",
    ),
    "silence": (b"", "stay", "timeout"),
    "silence in the body": (OK[:-1], "stay", "timeout"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_no_complete_answer_may_have_been_sent(case: str) -> None:
    wire, end, why = BROKEN[case]
    limits = Limits(header_bytes_max=8192, body_bytes_max=4096)

    async def scenario() -> None:
        handler = replying(wire, then_close=end == "close", then_reset=end == "reset")
        async with serving(handler) as peer, peer.client(limits) as client:
            timeout_s = 0.05 if why == "timeout" else 5.0
            assert await call(client, peer, timeout_s=timeout_s) == MaybeSent(why)
            assert peer.requests, "the request had arrived, so 'maybe' was the truth"

    run(scenario())


@pytest.mark.parametrize("case", ["content-length", "chunked", "interim answers"])
def test_every_cut_of_an_answer_is_noticed(case: str) -> None:
    wire, _ = COMPLETE[case]

    async def scenario() -> None:
        cuts = iter(range(len(wire)))

        async def cut(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await peer.read_request(reader)
            writer.write(wire[: next(cuts)])
            writer.close()

        async with serving(cut) as peer, peer.client() as client:
            for _ in range(len(wire)):
                answer = await call(client, peer)
                assert isinstance(answer, MaybeSent), (answer, peer.connections)

    run(scenario())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(min_size=1, max_size=200), st.booleans())
def test_noise_is_never_an_answer_and_never_an_exception(noise: bytes, as_header: bool) -> None:
    wire = (b"HTTP/1.1 200 OK\r\nContent-Length: " + noise) if as_header else noise

    async def scenario() -> None:
        async with serving(replying(wire, then_close=True)) as peer, peer.client() as client:
            answer = await call(client, peer)
        assert isinstance(answer, MaybeSent) or (as_header and isinstance(answer, Response))

    run(scenario())


def test_the_deadline_is_total() -> None:
    async def trickle(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        with contextlib.suppress(OSError):
            while not peer.stopped.is_set():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)

    async def scenario() -> None:
        async with serving(trickle) as peer, peer.client() as client:
            begun = time.monotonic()
            assert await call(client, peer, timeout_s=0.15) == MaybeSent("timeout")
            assert 0.14 < time.monotonic() - begun < 2

    run(scenario())


def test_a_kept_connection_obeys_each_requests_own_deadline() -> None:
    async def scenario() -> None:
        async with serving(replying(OK, answers_max=2)) as peer, peer.client() as client:
            assert isinstance(await call(client, peer, timeout_s=30), Response)
            assert isinstance(await call(client, peer, timeout_s=0.05), Response)
            await asyncio.sleep(0.1)  # the deadline of an answered request touches nothing
            assert await call(client, peer, timeout_s=0.05) == MaybeSent("timeout")
        assert peer.connections == 1

    run(scenario())


def test_an_abandoned_exchange_resets_its_socket() -> None:
    ends: list[str] = []

    async def listen(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read_request(reader)
        try:
            ends.append("closed" if await reader.read() == b"" else "data")
        except ConnectionResetError:
            ends.append("reset")
        peer.stopped.set()

    async def scenario() -> None:
        async with serving(listen) as peer, peer.client() as client:
            assert await call(client, peer, timeout_s=0.05) == MaybeSent("timeout")
            await asyncio.wait_for(peer.stopped.wait(), 5)

    run(scenario())
    assert ends == ["reset"]


def test_a_cancelled_caller_resets_the_socket_and_frees_its_slot() -> None:
    async def scenario() -> None:
        async with serving(replying(b"")) as peer, peer.client(Limits(connections_max=1)) as client:
            for _ in range(3):
                task = asyncio.create_task(call(client, peer))
                await peer.wait_for_requests(peer.connections + 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert peer.connections == 3

    run(scenario())


# Before any byte


def test_refused() -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            async with closing(HttpClient(allow_plain=True)) as client:
                assert await client.acquire(Origin("http", "127.0.0.1", taken.getsockname()[1])) == NotSent(
                    "refused"
                )

    run(scenario())


def test_unknown_host() -> None:
    async def scenario() -> None:
        async with closing(HttpClient(allow_plain=True)) as client:
            assert await client.acquire(Origin("http", "no-such-host.invalid", 80)) == NotSent("dns")

    run(scenario())


def test_plain_http_must_be_allowed() -> None:
    async def scenario() -> None:
        async with serving(replying(OK)) as peer, closing(HttpClient()) as client:
            assert await client.acquire(peer.origin) == NotSent("plain_http")
        assert peer.connections == 0

    run(scenario())


def test_a_connect_that_hangs_is_bounded() -> None:
    async def scenario() -> None:
        # a listener that never answers the TLS hello
        async with serving(replying(b"")) as peer, closing(HttpClient()) as client:
            origin = Origin("https", "127.0.0.1", peer.port)
            assert await client.acquire(origin, timeout_s=0.05) == NotSent("timeout")
            assert await client.acquire(origin, timeout_s=0.05) == NotSent("timeout")

    run(scenario())


@pytest.mark.parametrize("how", ["closed", "data", "reset"])
def test_a_connection_that_dies_between_acquire_and_request_sends_nothing(how: str) -> None:
    async def scenario() -> None:
        proceed = asyncio.Event()

        async def die(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await proceed.wait()
            if how == "data":
                writer.write(OK)
                await writer.drain()
            end(writer, reset=how == "reset")
            peer.stopped.set()
            peer.requests += [data] if (data := await swallow(reader)) else []

        async with serving(die) as peer, peer.client() as client:
            connection = await client.acquire(peer.origin)
            assert isinstance(connection, Connection)
            proceed.set()
            await peer.stopped.wait()
            assert await connection.request(request_to(peer), timeout_s=5) == NotSent("stale")
        assert peer.requests == []

    run(scenario())


def test_an_end_of_stream_that_only_the_kernel_knows_is_seen() -> None:
    """No turn of the loop lies between the peer's close and our write: the socket itself is asked."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with closing(HttpClient(allow_plain=True)) as client:
                origin = Origin("http", "127.0.0.1", listener.getsockname()[1])
                connection = await client.acquire(origin)
                assert isinstance(connection, Connection)
                accepted, _ = listener.accept()
                accepted.close()
                assert await connection.request(request_for(origin), timeout_s=5) == NotSent("stale")

    run(scenario())


# Reuse


def test_a_connection_closed_while_idle_is_not_used() -> None:
    async def scenario() -> None:
        async with serving(replying(OK, then_close=True)) as peer, peer.client() as client:
            for _ in range(3):
                assert isinstance(await call(client, peer), Response)
        assert peer.connections == 3

    run(scenario())


def test_an_answer_without_a_request_poisons_the_connection() -> None:
    async def late_second(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read_request(reader)
        writer.write(OK)
        await asyncio.sleep(0.02)
        writer.write(OK.replace(b"200", b"500"))
        await swallow(reader)
        peer.stopped.set()

    async def scenario() -> None:
        async with serving(late_second) as peer, peer.client() as client:
            assert isinstance(await call(client, peer), Response)
            await asyncio.wait_for(peer.stopped.wait(), 5)  # we have closed it
            answer = await call(client, peer)
            assert isinstance(answer, Response)
            assert answer.status == 200
        assert peer.connections == 2

    run(scenario())


def test_idle_connections_are_closed_after_a_while() -> None:
    async def scenario() -> None:
        async with serving(replying(OK)) as peer, peer.client(Limits(idle_s=0.05)) as client:
            await asyncio.gather(*[call(client, peer) for _ in range(3)])
            assert peer.open == 3
            await peer.all_gone()
            assert isinstance(await call(client, peer), Response)
        assert peer.connections == 4

    run(scenario())


def test_the_peers_own_idle_time_is_honoured() -> None:
    wire = OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=1, max=100\r\n\r\n", 1)

    async def scenario() -> None:
        async with serving(replying(wire)) as peer, peer.client() as client:
            assert isinstance(await call(client, peer), Response)
            assert isinstance(await call(client, peer), Response)
        assert peer.connections == 2

    run(scenario())


def test_a_released_connection_is_used_again() -> None:
    async def scenario() -> None:
        async with serving(replying(OK)) as peer, peer.client() as client:
            connection = await client.acquire(peer.origin)
            assert isinstance(connection, Connection)
            connection.release()
            assert isinstance(await call(client, peer), Response)
        assert peer.connections == 1

    run(scenario())


# Bounds on connections


def test_connections_are_bounded_and_handed_on() -> None:
    async def scenario() -> None:
        async with (
            serving(replying(OK, delay_s=0.002)) as peer,
            peer.client(Limits(connections_max=4)) as client,
        ):
            answers = await asyncio.gather(*[call(client, peer) for _ in range(100)])
            assert all(isinstance(answer, Response) for answer in answers)
            assert peer.open_max == 4
        assert len(peer.requests) == 100

    run(scenario())


def test_waiting_for_a_connection_ends_in_time() -> None:
    async def scenario() -> None:
        async with serving(replying(OK)) as peer, peer.client(Limits(connections_max=1)) as client:
            held = await client.acquire(peer.origin)
            assert isinstance(held, Connection)
            assert await client.acquire(peer.origin, timeout_s=0.02) == NotSent("pool")
            waiting = [asyncio.create_task(client.acquire(peer.origin)) for _ in range(2)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            held.release()
            got = await waiting[1]
            assert isinstance(got, Connection), "a cancelled waiter must not swallow the turn"
            got.release()
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]

    run(scenario())


def test_failed_connects_free_their_slots() -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            origin = Origin("http", "127.0.0.1", taken.getsockname()[1])
            async with closing(HttpClient(limits=Limits(connections_max=1), allow_plain=True)) as client:
                for _ in range(3):
                    assert await client.acquire(origin) == NotSent("refused")

    run(scenario())


# Close


def test_close_ends_everything_at_once() -> None:
    async def scenario() -> None:
        async with serving(replying(b"")) as peer, peer.client(Limits(connections_max=2)) as client:
            calls = [asyncio.create_task(call(client, peer)) for _ in range(2)]
            await peer.wait_for_requests(2)
            waiting = asyncio.create_task(call(client, peer))
            hello = asyncio.create_task(client.acquire(Origin("https", "127.0.0.1", peer.port)))
            await asyncio.sleep(0.02)
            await client.close()
            await client.close()
            assert [await c for c in calls] == [MaybeSent("shutdown")] * 2
            assert await waiting == NotSent("closed")
            assert await hello == NotSent("closed")
            assert await client.acquire(peer.origin) == NotSent("closed")
            await peer.all_gone()

    run(scenario())


def test_close_between_acquire_and_request_sends_nothing() -> None:
    async def scenario() -> None:
        async with serving(replying(OK)) as peer, peer.client() as client:
            connection = await client.acquire(peer.origin)
            assert isinstance(connection, Connection)
            await client.close()
            assert await connection.request(request_to(peer), timeout_s=5) == NotSent("closed")
        assert peer.requests == []

    run(scenario())


# TLS


def test_tls_with_a_private_authority(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)

    async def scenario() -> None:
        client = HttpClient(ca_file=authority.ca_file)
        async with serving(replying(OK), tls=authority.server("127.0.0.1")) as peer, closing(client):
            origin = Origin("https", "127.0.0.1", peer.port)
            for _ in range(3):
                assert await exchange(client, origin) == Response(200, ((b"Content-Length", b"2"),), b"ok")
        assert peer.connections == 1

    run(scenario())


@pytest.mark.parametrize("fault", ["unknown authority", "another host", "expired"])
def test_tls_refuses_a_certificate_that_does_not_hold(tmp_path: Path, fault: str) -> None:
    authority = Authority.create(tmp_path)
    server = authority.server(
        "other.example.com" if fault == "another host" else "127.0.0.1", expired=fault == "expired"
    )

    async def scenario() -> None:
        async with serving(replying(OK), tls=server) as peer:
            ca_file = None if fault == "unknown authority" else authority.ca_file
            async with closing(HttpClient(ca_file=ca_file)) as client:
                answer = await client.acquire(Origin("https", "127.0.0.1", peer.port))
        assert answer == NotSent("certificate")
        assert peer.requests == []

    run(scenario())


def test_tls_to_a_plain_port_is_told() -> None:
    async def scenario() -> None:
        async with serving(replying(OK, at_once=True)) as peer, closing(HttpClient()) as client:
            assert await client.acquire(Origin("https", "127.0.0.1", peer.port)) == NotSent("tls")

    run(scenario())


@pytest.mark.parametrize(
    "wire", [OK[:-1], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"]
)
def test_tls_truncation_is_noticed(tmp_path: Path, wire: bytes) -> None:
    authority = Authority.create(tmp_path)

    async def scenario() -> None:
        handler = replying(wire, then_close=True)
        client = HttpClient(ca_file=authority.ca_file)
        async with serving(handler, tls=authority.server("127.0.0.1")) as peer, closing(client):
            answer = await exchange(client, Origin("https", "127.0.0.1", peer.port))
        assert answer == MaybeSent("truncated")

    run(scenario())


# Requests and URLs


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("POST", "/", [("X", "a\r\nY: b")]),
        ("POST", "/", [("X", "a\nb")]),
        ("POST", "/", [("X\r\nY", "a")]),
        ("POST", "/", [("X", "a\0")]),
        ("POST", "/ HTTP/1.1\r\nX: y", []),
        ("POST", "/a b", []),
        ("POST", "/ü", []),
        ("POST", "relative", []),
        ("POST", "/", [("X", "\N{SNOWMAN}")]),
        ("HEAD", "/", []),
        ("CONNECT", "/", []),
        ("get", "/", []),
    ],
)
def test_requests_that_would_break_the_framing(
    method: str, target: str, headers: list[tuple[str, str]]
) -> None:
    with pytest.raises(ValueError, match=r"line break|not a request|encode"):
        encode_request(Origin("https", "example.com", 443), method, target, headers, b"")


@pytest.mark.parametrize(
    ("url", "origin", "target", "host"),
    [
        ("https://api.example.com", Origin("https", "api.example.com", 443), "/", "api.example.com"),
        (
            "https://API.example.com:443/a?b=c",
            Origin("https", "api.example.com", 443),
            "/a?b=c",
            "api.example.com",
        ),
        ("http://127.0.0.1:8080/x", Origin("http", "127.0.0.1", 8080), "/x", "127.0.0.1:8080"),
        ("http://[::1]:8080/", Origin("http", "::1", 8080), "/", "[::1]:8080"),
    ],
)
def test_urls(url: str, origin: Origin, target: str, host: str) -> None:
    assert parse_url(url) == (origin, target)
    assert origin.authority == host


@pytest.mark.parametrize(
    "url",
    ["", "api.example.com", "ftp://example.com", "https://", "https://u:p@example.com/", "https://example.com/#x",
     "https://example.com:99999/", "https://exämple.com/", "https://example.com/a b", "https://[::1", "https://a\r\nb/"],
)  # fmt: skip
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url)


def test_a_ca_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(ConfigError, match=name):
            HttpClient(ca_file=str(tmp_path / name))


# The peer


Handler = Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Peer:
    """A server on loopback that counts what it sees."""

    port: int = 0
    connections: int = 0
    open: int = 0
    open_max: int = 0
    requests: list[bytes] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def origin(self) -> Origin:
        return Origin("http", "127.0.0.1", self.port)

    def client(self, limits: Limits = DEFAULT_LIMITS) -> contextlib.AbstractAsyncContextManager[HttpClient]:
        return closing(HttpClient(limits=limits, allow_plain=True))

    async def read_request(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))

    async def wait_for_requests(self, count: int) -> None:
        await until(lambda: len(self.requests) >= count)

    async def all_gone(self) -> None:
        await until(lambda: self.open == 0)


def replying(
    wire: bytes,
    *,
    then_close: bool = False,
    then_reset: bool = False,
    answers_max: int = 1_000_000,
    delay_s: float = 0,
    at_once: bool = False,
) -> Handler:
    async def handler(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if at_once:
            writer.write(wire)
        for turn in range(1_000_000):
            await peer.read_request(reader)
            if turn < answers_max:
                await asyncio.sleep(delay_s)
                writer.write(wire)
                await writer.drain()
            if then_reset:
                await asyncio.sleep(0.01)  # let what was written arrive before the reset
            if then_close or then_reset:
                end(writer, reset=then_reset)
                return

    return handler


def end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        linger = b"\x01\0\0\0\0\0\0\0"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    else:
        writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is awaited lives on both sides of a socket
            await asyncio.sleep(0.001)


async def swallow(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(OSError):
        return await reader.read()
    return b""


@contextlib.asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    peer = Peer()
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.connections += 1
        peer.open += 1
        peer.open_max = max(peer.open, peer.open_max)
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await handler(peer, reader, writer)
        finally:
            peer.open -= 1
            writer.transport.abort() if tls and not writer.is_closing() else writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        peer.stopped.set()
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def closing(client: HttpClient) -> AsyncIterator[HttpClient]:
    try:
        yield client
    finally:
        await client.close()


def request_for(origin: Origin, headers: list[tuple[str, str]] | None = None, body: bytes = b"x") -> bytes:
    return encode_request(origin, "POST", "/send", headers or [], body)


def request_to(peer: Peer) -> bytes:
    return request_for(peer.origin)


async def exchange(
    client: HttpClient, origin: Origin, *, timeout_s: float = 5.0, data: bytes | None = None
) -> Answer:
    connection = await client.acquire(origin)
    if isinstance(connection, NotSent):
        return connection
    return await connection.request(data or request_for(origin), timeout_s=timeout_s)


async def call(
    client: HttpClient,
    peer: Peer,
    *,
    headers: list[tuple[str, str]] | None = None,
    body: bytes = b"x",
    timeout_s: float = 5.0,
) -> Answer:
    return await exchange(
        client, peer.origin, timeout_s=timeout_s, data=request_for(peer.origin, headers, body)
    )


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario

    asyncio.run(bounded())


@dataclass
class Authority:
    """A certificate authority of the test's own."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, directory: Path) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        certificate = (
            certificate_builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        (directory / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(directory, key, certificate)

    @property
    def ca_file(self) -> str:
        return str(self.directory / "ca.pem")

    def server(self, host: str, *, expired: bool = False) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        general = x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
        certificate = (
            certificate_builder(name, self.certificate.subject, key, expired=expired)
            .add_extension(x509.SubjectAlternativeName([general]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        path = self.directory / "server.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, expired: bool = False
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * day)
        .not_valid_after(now - day if expired else now + day)
    )
