"""The API on a socket: uvicorn on the loop of whoever runs it, with a graceful end.

A stop closes the socket, answers what was asked before, and says 503 to what comes on an open connection
meanwhile. TLS is for a proxy in front.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import uvicorn

from sendonce.api.application import application
from sendonce.api.door import Bounds
from sendonce.api.program import Program
from sendonce.core.errors import ConfigError
from sendonce.runtime.health import Address, why_not

BACKLOG: Final = 1_024
HEAD_BYTES_MAX: Final = 32 * 1024
KEEP_ALIVE_S: Final = 30


class _Server(uvicorn.Server):
    """Signals belong to whoever runs us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    program: Program,
    address: Address,
    *,
    field: str,
    stop_s: float,
    leaving: Callable[[], bool] = lambda: False,
    bounds: Bounds | None = None,
) -> AsyncIterator[int]:
    """Serve meanwhile; yields the port, which port 0 leaves to the machine.

    leaving  the process will end, so `/readyz` says no already

    Raises `ConfigError`, which names `field`, where the address cannot be had, or an account whose events
    cannot be verified.
    """
    for name in program.app.settings.accounts:
        program.app.event_source(name)  # a key that is none is told before anybody listens
    listening = _listening(address, field)
    stop = asyncio.Event()
    made = application(program, stopping=lambda: stop.is_set() or leaving(), bounds=bounds)
    server = _Server(
        uvicorn.Config(
            made,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, int(stop_s)),
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listening]), name="api")
    try:
        yield listening.getsockname()[1]
    finally:
        stop.set()
        server.should_exit = True
        await task
        listening.close()
        await program.app.close_event_sources()


def _listening(address: Address, field: str) -> socket.socket:
    """A socket that listens.

    Its protocol is named: asyncio sends small writes at once on such sockets only, and every answer is two,
    of which the second would wait 40 ms until the peer acknowledges the first.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        made.close()
        raise ConfigError(f"{field} {address} {why_not(error, address)}") from None
    made.setblocking(False)
    return made
