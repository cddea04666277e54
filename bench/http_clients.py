"""What one request costs in CPU: our HTTP client beside aiohttp and the floor, in one run.

    python bench/http_clients.py --url http://127.0.0.1:9100/messages [--seconds 3] [--rounds 3]

The server must answer POST with a small JSON body and keep connections alive; it should be a cheap one (a
C program on epoll), since it shares the machine. The floor is the least that asyncio can do: write ready
bytes, take the next read for the answer. Clients take turns, so that a noisy minute hits all of them.
Reported is the median of the rounds: requests a second, and CPU seconds of this process per 1,000 requests,
start-up excluded.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import cast

from sendonce.runtime.http_client import HttpClient, Limits, NotSent, Response, encode_request, parse_url

HEADERS = [("Content-Type", "application/json")]
Turn = Callable[[int], Awaitable[None]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--uvloop", action="store_true")
    args = parser.parse_args()
    results: dict[str, list[tuple[float, float]]] = {"floor": [], "sendonce": [], "aiohttp": []}
    for _ in range(args.rounds):
        for client, figures in results.items():
            figures.append(one_round(client, args))
    for client, figures in results.items():
        rate, cpu_s = (statistics.median(column) for column in zip(*figures, strict=True))
        line = {
            "client": client,
            "loop": "uvloop" if args.uvloop else "asyncio",
            "python": sys.version.split()[0],
            "in_flight": args.in_flight,
            "requests_per_s": round(rate),
            "cpu_s_per_1000": round(cpu_s, 4),
        }
        print(json.dumps(line), flush=True)


def one_round(client: str, args: argparse.Namespace) -> tuple[float, float]:
    measure = {"floor": with_nothing, "sendonce": with_sendonce, "aiohttp": with_aiohttp}[client]
    coroutine = measure(args.url, args.in_flight, args.seconds)
    if args.uvloop:
        import uvloop

        return uvloop.run(coroutine)
    return asyncio.run(coroutine)


async def with_nothing(url: str, in_flight: int, seconds: float) -> tuple[float, float]:
    origin, target = parse_url(url)

    class Lane(asyncio.Protocol):
        transport: asyncio.Transport
        answered: asyncio.Future[None]

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)

        def data_received(self, data: bytes) -> None:
            self.answered.set_result(None)  # answers of this server come in one piece

    loop = asyncio.get_running_loop()
    free = [(await loop.create_connection(Lane, origin.host, origin.port))[1] for _ in range(in_flight)]

    async def turn(number: int) -> None:
        body = body_of(number)
        lane = free.pop()
        lane.answered = loop.create_future()
        lane.transport.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: k%d\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (target.encode(), number, len(body), body)
        )
        await lane.answered
        free.append(lane)

    try:
        return await drive(turn, in_flight, seconds)
    finally:
        for lane in free:
            lane.transport.close()


async def with_sendonce(url: str, in_flight: int, seconds: float) -> tuple[float, float]:
    origin, target = parse_url(url)
    client = HttpClient(limits=Limits(connections_max=in_flight), allow_plain=True)

    async def turn(number: int) -> None:
        headers = [*HEADERS, ("Idempotency-Key", f"k{number}")]
        data = encode_request(origin, "POST", target, headers, body_of(number))
        connection = await client.acquire(origin)
        if isinstance(connection, NotSent):
            raise SystemExit(f"not sent: {connection.why}")
        answer = await connection.request(data, timeout_s=30)
        if not isinstance(answer, Response) or answer.status >= 300:
            raise SystemExit(f"unexpected answer: {answer}")

    try:
        return await drive(turn, in_flight, seconds)
    finally:
        await client.close()


async def with_aiohttp(url: str, in_flight: int, seconds: float) -> tuple[float, float]:
    aiohttp = importlib.import_module("aiohttp")  # the peer; install it to run this benchmark
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def turn(number: int) -> None:
            headers = dict([*HEADERS, ("Idempotency-Key", f"k{number}")])
            async with session.post(url, data=body_of(number), headers=headers) as answer:
                await answer.read()
                if answer.status >= 300:
                    raise SystemExit(f"unexpected answer: {answer.status}")

        return await drive(turn, in_flight, seconds)


async def drive(turn: Turn, in_flight: int, seconds: float) -> tuple[float, float]:
    """Requests a second and CPU seconds per 1,000, after a warm-up of one request on each lane."""
    await asyncio.gather(*[turn(-lane) for lane in range(in_flight)])
    cpu, begun = cpu_s(), time.perf_counter()
    end, done = begun + seconds, 0

    async def lane(first: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            done += 1
            await turn(done)

    await asyncio.gather(*[lane(number) for number in range(in_flight)])
    return done / (time.perf_counter() - begun), (cpu_s() - cpu) / done * 1000


def body_of(number: int) -> bytes:
    return json.dumps(
        {"key": f"k{number}", "to": "+15551234567", "body": "Reminder: tomorrow at 10:00."}
    ).encode()


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
