"""The health listener: a very small HTTP/1.1 server on the process's own loop, for probes.

    /live    200 as long as the loop answers
    /ready   200 while nothing keeps the process from its work, else 503 and what does
    /health  the same and more, as JSON
    /metrics what this process counts, for Prometheus

It knows nothing of workers: a function tells it, at each request, what to say. It must never disturb the work
beside it, so everything has a bound: the bytes of a request, the time of a connection, the number of them.
One more than that number ends the oldest, so that whoever holds all of them keeps no probe out. An answer is
made at once and written to its socket; nothing waits for whoever reads it.

Each connection is for one request. What follows the request line is read and not looked at: nothing that it
could say changes an answer.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.runtime.poller import OnError

LOOPBACK: Final = "127.0.0.1"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NO_METRICS: Final = "metrics need the extra: pip install 'sendonce[metrics]'"

_ADDRESS: Final = re.compile(r"(?:(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):)?([0-9]{1,5})", re.ASCII)
_REQUEST_LINE: Final = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.[0-9]\r\n")
_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, field: str) -> Address:
    """`HOST:PORT`, or a port alone, which is one of this machine's own. Raises `InvalidInput`."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found[3]) <= 65_535:
        raise InvalidInput(
            f"{field} {text!r:.80} must be PORT or HOST:PORT with a port from 1 to 65535: "
            "write 8081, 0.0.0.0:8081 or [::1]:8081",
            field=field,
        )
    return Address(found[1] or found[2] or LOOPBACK, int(found[3]))


@dataclass(frozen=True, slots=True)
class Report:
    """What to say: `lacks`, one word each, keep the process from its work; `document` is for `/health`."""

    lacks: Sequence[str]
    document: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Bounds:
    """`head_bytes_max` of a request, and `rest_bytes_max` behind it; `request_s` until it must be there,
    `linger_s` for its sender to go."""

    head_bytes_max: int = 8_192
    rest_bytes_max: int = 65_536
    request_s: float = 5.0
    linger_s: float = 1.0
    connections_max: int = 32


class HealthServer:
    """Answers from `start` to `close`. `on_error` hears of a report that could not be made.

    metrics  gives the text of `/metrics`, and blocks nothing; None: there is none
    """

    def __init__(
        self,
        report: Callable[[], Report],
        *,
        on_error: OnError,
        bounds: Bounds | None = None,
        metrics: Callable[[], bytes] | None = None,
    ) -> None:
        self._report = report
        self._metrics = metrics
        self._on_error = on_error
        self.bounds: Final = bounds or Bounds()
        self._server: asyncio.Server | None = None
        self._open: dict[_Connection, None] = {}  # in the order in which they came
        self._closed = False

    async def start(self, address: Address, *, field: str) -> None:
        """Begin to listen. Raises `ConfigError`, which names `field` as where the address comes from."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Connection(self), address.host, address.port, backlog=self.bounds.connections_max
            )
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{field} {address} {why_not(error, address)}") from None

    async def close(self) -> None:
        """Stop listening, and end what is open."""
        self._closed = True
        if self._server is not None:
            self._server.close()
            for connection in list(self._open):
                connection.abort()
            await self._server.wait_closed()

    def entered(self, connection: _Connection) -> None:
        if self._closed:  # it was being accepted while we closed
            connection.abort()
            return
        if len(self._open) >= self.bounds.connections_max:
            oldest = next(iter(self._open))
            self.left(oldest)
            oldest.abort()
        self._open[connection] = None

    def left(self, connection: _Connection) -> None:
        self._open.pop(connection, None)

    def answer(self, head: bytes) -> bytes:
        """What to say to a request, its empty line included."""
        asked = _REQUEST_LINE.match(head)
        if asked is None:
            return _answer(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
        method, path = asked[1], asked[2].partition(b"?")[0]
        if path == b"/metrics" and self._metrics is None:
            return _answer(HTTPStatus.NOT_FOUND, NO_METRICS, method=method)
        if path not in (b"/live", b"/ready", b"/health", b"/metrics"):
            return _answer(HTTPStatus.NOT_FOUND, "there are /live, /ready and /health", method=method)
        if method not in (b"GET", b"HEAD"):
            return _answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", "Allow: GET, HEAD")
        if path == b"/live":
            return _answer(HTTPStatus.OK, "alive", method=method)
        try:
            if path == b"/metrics" and self._metrics is not None:
                return _answer(HTTPStatus.OK, self._metrics(), content_type=METRICS_TYPE, method=method)
            report = self._report()
            body = json.dumps(report.document)
        except Exception as error:
            self._on_error("health", error)
            return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, "no report could be made", method=method)
        if path == b"/health":
            return _answer(HTTPStatus.OK, body, content_type="application/json", method=method)
        if report.lacks:
            why = f"not ready: {', '.join(report.lacks)}"
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, why, method=method)
        return _answer(HTTPStatus.OK, "ready", method=method)


class _Connection(asyncio.Protocol):
    """One request, one answer."""

    def __init__(self, server: HealthServer) -> None:
        self._server = server
        self._bounds = server.bounds
        self._head = bytearray()
        self._answered = False
        self._rest_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(self._bounds.request_s, self._late)
        self._server.entered(self)

    def data_received(self, data: bytes) -> None:
        if self._answered:  # a body, or the rest of what was too long
            self._rest_bytes += len(data)
            if self._rest_bytes > self._bounds.rest_bytes_max:
                self._transport.abort()
            return
        self._head += data
        end = self._head.find(_END, 0, self._bounds.head_bytes_max)
        if end >= 0:
            self._send(self._server.answer(bytes(self._head[: end + len(_END)])))
        elif len(self._head) >= self._bounds.head_bytes_max:
            rule = f"at most {self._bounds.head_bytes_max} bytes"
            self._send(_answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, rule))

    def eof_received(self) -> None:
        """It has nothing more to say: what it did not finish is no request, and the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._server.left(self)

    def abort(self) -> None:
        self._transport.abort()

    def _late(self) -> None:
        if self._answered:
            self._transport.abort()
        else:
            self._send(_answer(HTTPStatus.REQUEST_TIMEOUT, f"no request in {self._bounds.request_s:g} s"))

    def _send(self, answer: bytes) -> None:
        self._answered = True
        self._head.clear()
        self._transport.write(answer)
        # Only our half is closed. To close both while its bytes still come would reset the connection, and
        # throw away the answer before it is read.
        self._transport.write_eof()
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._bounds.linger_s, self._late)


def _answer(
    status: HTTPStatus,
    text: str | bytes,
    *headers: str,
    content_type: str = "text/plain; charset=utf-8",
    method: bytes = b"GET",
) -> bytes:
    body = text if isinstance(text, bytes) else f"{text}\n".encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *headers,
    ]
    head = "\r\n".join(lines).encode() + _END
    return head if method == b"HEAD" else head + body


def why_not(error: OSError | UnicodeError, address: Address) -> str:
    """What is wrong with an address on which we may not listen, and what to write."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"cannot be resolved ({error}): name a host that this machine knows, such as {LOOPBACK}"
    match error.errno:
        case errno.EADDRINUSE:
            return "is in use already: give each process a port of its own"
        case errno.EADDRNOTAVAIL:
            return f"is no address of this machine: write one that is, such as {LOOPBACK}, or 0.0.0.0 for all"
        case errno.EACCES | errno.EPERM:
            return "may not be listened on by this user: choose a port above 1023"
        case _:
            return f"cannot be listened on ({error.strerror or error}): choose another address"
