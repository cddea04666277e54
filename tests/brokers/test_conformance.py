"""The queue suite on every transport, each over a real server of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from sendonce.core.delivery import Channel
from sendonce.ports.queue import Transport
from sendonce.testing.conformance.queue import Opened, Place, QueueSuite
from tests.brokers.places import KINDS, open_transport
from tests.brokers.servers import Server

REDELIVER_S = 3.0


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with KINDS[request.param]() as running:
        yield running


class TestTransports(QueueSuite):
    @pytest.fixture
    def opened(self, server: Server) -> Opened:
        @asynccontextmanager
        async def place() -> AsyncIterator[Place]:
            transport = open_transport(server, prefix=f"t{secrets.token_hex(4)}", redeliver_s=REDELIVER_S)
            queue = transport.queue("mail.eu", Channel.EMAIL)

            async def pass_time(seconds: float) -> None:
                if transport.features.redeliver_s:
                    await asyncio.sleep(seconds)
                elif seconds > REDELIVER_S / 2:
                    await queue.close()  # the connection ends: what it held comes again

            yield Place(queue, pass_time, redeliver_s=transport.features.redeliver_s or REDELIVER_S)
            await transport.close()

        return place


def test_each_tells_what_it_is(server: Server) -> None:
    async def body() -> str:
        transport: Transport = open_transport(server, prefix=f"t{secrets.token_hex(4)}")
        transport.queue("mail", Channel.EMAIL)
        try:
            return await transport.check()
        finally:
            await transport.close()

    assert asyncio.run(body()).startswith(("RabbitMQ 3.", "RabbitMQ 4.", "NATS 2.", "SQS in"))
