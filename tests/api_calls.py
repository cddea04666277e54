"""One call of an adapter against a peer on loopback: what tests of vendors' adapters have in common."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from sendonce.core.outcome import Finding
from sendonce.ports.provider import Message, Provider
from sendonce.runtime.http_client import Response
from sendonce.testing.conformance.provider import HttpPeer, json_answer


def answer(status: int, body: object = None, *headers: tuple[bytes, bytes]) -> Response:
    """A whole answer; `body` as JSON, or as it is where it is bytes."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return Response(status, headers, raw)


def request_of(build: Callable[[str], Provider], message: Message, accepted: bytes) -> tuple[str, bytes]:
    """Head and body of the request that a send makes; `build` gets the peer's URL."""

    async def scenario() -> tuple[str, bytes]:
        peer = HttpPeer(accepted, b"")
        await peer.start()
        provider = build(f"http://127.0.0.1:{peer.port}")
        try:
            async with asyncio.timeout(10):
                await provider.send(message, start=_at_once)
        finally:
            await provider.close()
            await peer.stop()
        head, _, body = peer.messages[0].partition(b"\r\n\r\n")
        return f"{head.decode('latin-1')}\r\n", body

    return asyncio.run(scenario())


def finding_of(
    build: Callable[[str], Provider], message: Message, status: int, page: object
) -> tuple[Finding, str]:
    """What a look-up makes of an answer, and the target that it asked for."""
    asked: list[str] = []

    def looked_up(target: str) -> bytes:
        asked.append(target)
        return json_answer(status, page)

    async def scenario() -> Finding:
        peer = HttpPeer(b"", b"", looked_up)
        await peer.start()
        provider = build(f"http://127.0.0.1:{peer.port}")
        try:
            async with asyncio.timeout(10):
                return await provider.look_up(message)
        finally:
            await provider.close()
            await peer.stop()

    return asyncio.run(scenario()), asked[0] if asked else ""


async def _at_once() -> None:
    pass
