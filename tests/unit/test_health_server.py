"""The health listener over real sockets: what it answers, and what no client can do to it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.runtime.health import Address, Bounds, HealthServer, Report, parse_address

READY = Report([], {"role": "worker", "ready": True})
AWAY = Report(["store_away", "lease_over"], {"role": "worker", "ready": False})
PATIENT = Bounds(request_s=60.0, linger_s=60.0)
"""No test waits for these: where a bound of time is tried, it is a short one."""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass
class Served:
    """A listener, what it reports, and what failed in it."""

    address: Address
    server: HealthServer
    report: Report | Exception = READY
    failed: list[str] = field(default_factory=list)

    async def ask(self, target: str, method: str = "GET") -> Answer:
        return await self.say(f"{method} {target} HTTP/1.1\r\nHost: here\r\n\r\n".encode())

    async def say(self, data: bytes) -> Answer:
        """Send all of it, and read until the other side ends."""
        async with self.connected() as (reader, writer):
            writer.write(data)
            return Answer.of(await reader.read())

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):  # it was reset, which is what some tests are about
                await writer.wait_closed()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str

    @staticmethod
    def of(data: bytes) -> Answer:
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        found = re.fullmatch(r"HTTP/1\.1 ([0-9]{3}) [A-Z].*", first)
        assert found, data
        headers = dict(line.split(": ", 1) for line in lines)
        return Answer(int(found[1]), headers, body.decode())


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Served], Coroutine[Any, Any, None]]], None]:
    """Run a scenario against a listener, on each kind of loop."""

    def run_it(scenario: Callable[[Served], Coroutine[Any, Any, None]], bounds: Bounds = PATIENT) -> None:
        async def whole() -> None:
            async with asyncio.timeout(20), serving(bounds) as served:
                await scenario(served)
                assert (await served.ask("/live")).status == 200  # whatever was done to it

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(whole())

    return run_it


@asynccontextmanager
async def serving(bounds: Bounds) -> AsyncIterator[Served]:
    def report() -> Report:
        if isinstance(served.report, Exception):
            raise served.report
        return served.report

    def failed(stage: str, error: Exception) -> None:
        served.failed.append(f"{stage}: {error}")

    served = Served(
        parse_address(str(free_port()), field="--health"),
        HealthServer(report, on_error=failed, bounds=bounds),
    )
    await served.server.start(served.address, field="--health")
    try:
        yield served
    finally:
        await served.server.close()


async def write_for_ever(writer: asyncio.StreamWriter, piece: bytes) -> None:
    """Raises `OSError` once the other side has reset the connection."""
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.005)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# What it answers


def test_one_that_is_ready(run: Any) -> None:
    async def scenario(served: Served) -> None:
        live, ready, health = [await served.ask(path) for path in ("/live", "/ready", "/health")]
        assert (live.status, live.body) == (200, "alive\n")
        assert (ready.status, ready.body) == (200, "ready\n")
        assert (health.status, json.loads(health.body)) == (200, READY.document)
        assert health.headers == {
            "Content-Type": "application/json",
            "Content-Length": str(len(health.body)),
            "Cache-Control": "no-store",
            "Connection": "close",
        }

    run(scenario)


def test_one_that_is_not_ready_says_why_and_lives(run: Any) -> None:
    async def scenario(served: Served) -> None:
        served.report = AWAY
        live, ready, health = [await served.ask(path) for path in ("/live", "/ready", "/health")]
        assert live.status == 200
        assert (ready.status, ready.body) == (503, "not ready: store_away, lease_over\n")
        assert (health.status, json.loads(health.body)) == (200, AWAY.document)
        served.report = READY
        assert (await served.ask("/ready")).status == 200

    run(scenario)


@pytest.mark.parametrize("target", ["/live", "/ready", "/health", "/nothing"])
def test_a_head_is_a_get_without_its_body(run: Any, target: str) -> None:
    async def scenario(served: Served) -> None:
        get, head = await served.ask(target), await served.ask(target, "HEAD")
        assert (head.status, head.headers, head.body) == (get.status, get.headers, "")
        assert get.body

    run(scenario)


REFUSED = {
    "another path": (b"GET /metrics HTTP/1.1\r\n\r\n", 404),
    "a longer path": (b"GET /live/ HTTP/1.1\r\n\r\n", 404),
    "a post": (b"POST /live HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody", 405),
    "a post of something long": (b"POST /ready HTTP/1.1\r\n\r\n" + 60_000 * b"x", 405),
    "a method in small letters": (b"get /live HTTP/1.1\r\n\r\n", 405),
    "no version": (b"GET /live\r\n\r\n", 400),
    "another version": (b"GET /live HTTP/2.0\r\n\r\n", 400),
    "another protocol": (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", 400),
    "nothing but an empty line": (b"\r\n\r\n", 400),
    "bytes that are no text": (bytes(range(128, 256)) + b"\r\n\r\n", 400),
    "a long head": (b"GET /live HTTP/1.1\r\nX: " + 9_000 * b"x" + b"\r\n\r\n", 431),
    "a head without an end": (60_000 * b"x", 431),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(run: Any, case: str) -> None:
    said, status = REFUSED[case]

    async def scenario(served: Served) -> None:
        answer = await served.say(said)
        assert answer.status == status
        assert answer.headers["Connection"] == "close"
        assert ("Allow" in answer.headers) == (status == 405)

    run(scenario)


TAKEN = {
    "http/1.0": b"GET /ready HTTP/1.0\r\n\r\n",
    "with a query": b"GET /ready?probe=1 HTTP/1.1\r\n\r\n",
    "with headers": b"GET /ready HTTP/1.1\r\nHost: a\r\nUser-Agent: kube-probe/1.33\r\nAccept: */*\r\n\r\n",
    "with a second request behind": 2 * b"GET /ready HTTP/1.1\r\n\r\n",
    "the longest head": b"GET /ready HTTP/1.1\r\nX: " + (8_192 - 28) * b"x" + b"\r\n\r\n",
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_taken(run: Any, case: str) -> None:
    async def scenario(served: Served) -> None:
        assert (await served.say(TAKEN[case])).body == "ready\n"

    run(scenario)


def test_a_request_may_come_in_pieces(run: Any) -> None:
    async def scenario(served: Served) -> None:
        async with served.connected() as (reader, writer):
            for byte in b"GET /live HTTP/1.1\r\n\r\n":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert Answer.of(await reader.read()).status == 200

    run(scenario)


def test_who_says_no_more_still_gets_an_answer(run: Any) -> None:
    async def scenario(served: Served) -> None:
        async with served.connected() as (reader, writer):
            writer.write(b"GET /live HTTP/1.1\r\n\r\n")
            writer.write_eof()
            assert Answer.of(await reader.read()).status == 200

    run(scenario)


def test_what_comes_behind_an_answer_resets_nothing(run: Any) -> None:
    async def scenario(served: Served) -> None:
        async with served.connected() as (reader, writer):
            writer.write(b"POST /live HTTP/1.1\r\nContent-Length: 20\r\n\r\n")
            assert Answer.of(await reader.read()).status == 405
            for _ in range(20):
                writer.write(b"x")
                await writer.drain()  # raises where the connection was reset
                await asyncio.sleep(0.001)

    run(scenario)


def test_a_report_that_cannot_be_made_is_told_and_is_no_end(run: Any) -> None:
    async def scenario(served: Served) -> None:
        served.report = ValueError("secret")
        answer = await served.ask("/ready")
        assert (answer.status, "secret" in answer.body) == (500, False)
        assert served.failed == ["health: secret"]
        assert (await served.ask("/live")).status == 200

    run(scenario)


# What no client can do to it


def test_half_a_request_is_none(run: Any) -> None:
    async def scenario(served: Served) -> None:
        async with served.connected() as (reader, writer):
            writer.write(b"GET /live HTTP/1.1\r\n")
            writer.write_eof()
            assert await reader.read() == b""

    run(scenario)


@pytest.mark.parametrize("begun", [b"", b"GET /live HTTP/1.1\r\nX: "])
def test_who_does_not_go_on_is_let_go(run: Any, begun: bytes) -> None:
    async def scenario(served: Served) -> None:
        async with served.connected() as (reader, writer):
            writer.write(begun)
            assert Answer.of(await reader.read()).status == 408

    run(scenario, Bounds(request_s=0.05, linger_s=60.0))


def test_who_does_not_go_after_an_answer_is_let_go(run: Any) -> None:
    async def scenario(served: Served) -> None:
        async with served.connected() as (reader, writer):
            writer.write(b"GET /live HTTP/1.1\r\n\r\n")
            assert Answer.of(await reader.read()).status == 200
            with pytest.raises(OSError):  # noqa: PT011 (a reset or a broken pipe)
                await write_for_ever(writer, b"x")

    run(scenario, Bounds(request_s=60.0, linger_s=0.05))


def test_who_never_ends_is_cut_off(run: Any) -> None:
    async def scenario(served: Served) -> None:
        async with served.connected() as (_, writer):
            with pytest.raises(OSError):  # noqa: PT011 (a reset or a broken pipe)
                await write_for_ever(writer, 10_000 * b"x")

    run(scenario)


def test_whoever_holds_all_connections_keeps_nobody_out(run: Any) -> None:
    async def scenario(served: Served) -> None:
        held = [
            await asyncio.open_connection(served.address.host, served.address.port)
            for _ in range(served.server.bounds.connections_max + 8)
        ]
        assert (await served.ask("/live")).status == 200
        # The first eight were one too many each, and the ninth gave way to the question.
        for reader, writer in held[:9]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        for reader, writer in held[9:]:
            writer.write(b"GET /live HTTP/1.1\r\n\r\n")
            assert Answer.of(await reader.read()).status == 200
            writer.close()

    run(scenario)


def test_many_at_once_are_all_answered(run: Any) -> None:
    async def scenario(served: Served) -> None:
        for _ in range(5):
            answers = await asyncio.gather(*(served.ask("/ready") for _ in range(30)))
            assert {answer.body for answer in answers} == {"ready\n"}

    run(scenario)


@given(st.lists(st.binary(max_size=200), max_size=5))
@settings(max_examples=50)
def test_no_bytes_can_break_it(pieces: list[bytes]) -> None:
    async def scenario() -> None:
        async with serving(PATIENT) as served:
            async with served.connected() as (reader, writer):
                for piece in pieces:
                    writer.write(piece)
                writer.write_eof()
                said = await reader.read()
                assert said == b"" or Answer.of(said).status in {200, 400, 404, 405}
            assert (await served.ask("/live")).status == 200
            assert served.failed == []

    asyncio.run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_closed_it_listens_no_more_and_ends_who_waits(loop: str) -> None:
    async def scenario() -> None:
        async with serving(PATIENT) as served, served.connected() as (reader, _):
            assert (await served.ask("/live")).status == 200
            await served.server.close()
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            with pytest.raises(ConnectionRefusedError):
                await served.ask("/live")
            await served.server.close()  # again
            another = HealthServer(lambda: READY, on_error=lambda stage, error: None)
            await another.start(served.address, field="--health")  # the port is free at once
            assert (await served.ask("/live")).status == 200
            await another.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario())


# Where it listens

ADDRESSES = {
    "8081": Address("127.0.0.1", 8081),
    "0.0.0.0:1": Address("0.0.0.0", 1),
    "localhost:65535": Address("localhost", 65535),
    "my-host.example.com:08081": Address("my-host.example.com", 8081),
    "[::1]:8081": Address("::1", 8081),
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address(text: str) -> None:
    assert parse_address(text, field="--health") == ADDRESSES[text]


def test_an_address_is_written_as_it_is_read() -> None:
    for address in ADDRESSES.values():
        assert parse_address(str(address), field="--health") == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 8081",
        "0",
        "65536",
        "-1",
        "808١",
        "host",
        "host:",
        ":8081",
        "::1:8081",
        "[::1]",
        "a b:1",
        "http://h:1",
    ],
)
def test_what_is_no_address_is_named_with_the_rule(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_address(text, field="--health")
    assert error.value.field == "--health"
    assert str(error.value) == (
        f"--health {text!r} must be PORT or HOST:PORT with a port from 1 to 65535: "
        "write 8081, 0.0.0.0:8081 or [::1]:8081"
    )


UNUSABLE = {  # told by this machine alone, without asking a name server
    "fe80::1%none": r"cannot be resolved \(.+\): name a host",
    "a..b": r"cannot be resolved \(.+\): name a host",
    "203.0.113.1": "is no address of this machine: write one that is, such as 127.0.0.1, or 0.0.0.0 for all",
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("host", UNUSABLE)
def test_an_address_that_cannot_be_had(host: str, loop: str) -> None:
    async def scenario() -> None:
        server = HealthServer(lambda: READY, on_error=lambda stage, error: None)
        address = Address(host, free_port())
        with pytest.raises(ConfigError, match=f"^--health {re.escape(str(address))} {UNUSABLE[host]}"):
            await server.start(address, field="--health")
        await server.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_an_address_that_is_taken(loop: str) -> None:
    async def scenario() -> None:
        async with serving(PATIENT) as served:
            server = HealthServer(lambda: READY, on_error=lambda stage, error: None)
            with pytest.raises(ConfigError, match="is in use already: give each process a port of its own"):
                await server.start(served.address, field="--health")

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario())
