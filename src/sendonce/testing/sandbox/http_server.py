"""A small HTTP/1.1 server: one thread, no task per request, and it may misbehave on purpose.

    bytes -> HttpConnection (httptools) -> Exchange -> Application.headers_done / Application.complete
                                                    <- reply | reset | truncate | hang

It is the bench's provider too, so that a request costs tens of microseconds. An `Exchange` is one
request and the ways to answer it, or not to. Exchanges of one connection are answered in order.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Protocol, cast

import httptools

HEADER_BYTES_MAX = 65_536
PIPELINED_MAX = 64

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Application(Protocol):
    """What the server serves."""

    def headers_done(self, exchange: Exchange) -> None:
        """The request line and headers are in; the body may still come."""

    def complete(self, exchange: Exchange) -> None:
        """The whole request is in. Must answer, now or later, by one of the exchange's ways."""

    def gone(self, exchange: Exchange) -> None:
        """The client left before the exchange was answered."""


class Exchange:
    """One request, and the ways to end it.

    `at` is the time of its first bytes, in microseconds. `call` is free for the application.
    """

    __slots__ = ("_connection", "at", "body", "call", "done", "headers", "keep_alive", "method", "target")

    def __init__(self, connection: HttpConnection, at: int) -> None:
        self.at = at
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.keep_alive = True
        self.done = False
        self.call: Any = None
        self._connection = connection

    def reply(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send a whole answer. Does nothing when the client is gone."""
        if not self.done:
            self._connection.finish(self, _head(self, status, body, content_type, headers) + body)

    def truncate(self, status: int, body: bytes) -> None:
        """Send the headers and half of the body, then end the connection."""
        if not self.done:
            head = _head(self, status, body, b"application/json", ())
            self._connection.break_off(self, head + body[: len(body) // 2])

    def reset(self) -> None:
        """End the connection by a TCP reset, with no answer."""
        if not self.done:
            self._connection.reset(self)

    def hang(self) -> None:
        """Never answer; the exchange ends when the client leaves."""


class HttpConnection(asyncio.Protocol):
    """One client connection. `open_connections` holds it while it lives."""

    def __init__(
        self,
        application: Application,
        *,
        now: Callable[[], int],
        size_max: int,
        open_connections: set[asyncio.BaseTransport],
    ) -> None:
        self._application = application
        self._now = now
        self._size_max = size_max
        self._open_connections = open_connections
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Exchange] = deque()
        self._answering: Exchange | None = None
        self._current: Exchange = Exchange(self, 0)
        self._current.done = True
        self._transport: asyncio.Transport
        self._at = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open_connections.add(transport)

    def data_received(self, data: bytes) -> None:
        self._at = self._now()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # RFC 9110, 7.8: an upgrade may be ignored; the answer is the connection's last
        except httptools.HttpParserError:
            # Also raised for what a callback refused; then the connection is closing already.
            self._refuse(400, b'{"error":{"code":"malformed","message":"not an HTTP/1.1 request"}}')

    def connection_lost(self, error: Exception | None) -> None:
        self._open_connections.discard(self._transport)
        unanswered = {self._answering, *self._waiting, self._current}
        self._answering = None
        self._waiting.clear()
        for exchange in unanswered:
            if exchange is not None and not exchange.done:
                exchange.done = True
                self._application.gone(exchange)

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._current = Exchange(self, self._at)
        self._headers = self._current.headers
        self._url: bytes = b""
        self._header_bytes = 0
        self._chunks: list[bytes] = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        self._header_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        exchange = self._current
        if self._header_bytes > HEADER_BYTES_MAX:
            self._refuse(431, b'{"error":{"code":"too_large","message":"the headers are too large"}}')
            return
        exchange.method = self._parser.get_method()
        exchange.target = self._url
        exchange.keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        if exchange.headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._application.headers_done(exchange)

    def on_body(self, chunk: bytes) -> None:
        self._body_bytes += len(chunk)
        if self._body_bytes > self._size_max:
            self._refuse(413, b'{"error":{"code":"too_large","message":"the body is too large"}}')
        else:
            self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        exchange = self._current
        if exchange.done or self._transport.is_closing():
            return
        exchange.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        if self._answering is None:
            self._answering = exchange
            self._application.complete(exchange)
        elif len(self._waiting) < PIPELINED_MAX:
            self._waiting.append(exchange)
        else:
            self._transport.abort()

    # how an exchange ends

    def finish(self, exchange: Exchange, answer: bytes) -> None:
        exchange.done = True
        self._transport.write(answer)
        self._answering = None
        if not exchange.keep_alive:
            self._transport.close()
        elif self._waiting:
            self._answering = self._waiting.popleft()
            self._application.complete(self._answering)

    def break_off(self, exchange: Exchange, answer: bytes) -> None:
        exchange.done = True
        self._transport.write(answer)
        self._transport.close()

    def reset(self, exchange: Exchange) -> None:
        exchange.done = True
        reset(self._transport)

    def _refuse(self, status: int, body: bytes) -> None:
        if self._transport.is_closing():
            return
        line = _STATUS_LINES[status] + b"content-type: application/json\r\nconnection: close\r\n"
        self._transport.write(line + b"content-length: %d\r\n\r\n" % len(body) + body)
        self._transport.close()


def reset(transport: asyncio.BaseTransport) -> None:
    """End a connection by RST, so that the other side sees a reset and not an orderly end."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        # SO_LINGER with a time of 0 turns close() into a reset; set on a duplicate, since not every
        # event loop's socket lets itself be changed, and the option belongs to the connection.
        with socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cast("asyncio.Transport", transport).abort()


def _head(
    exchange: Exchange,
    status: int,
    body: bytes,
    content_type: bytes,
    headers: Iterable[tuple[bytes, bytes]],
) -> bytes:
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status
    more = b"".join(b"%s: %s\r\n" % pair for pair in headers)
    if not exchange.keep_alive:
        more += b"connection: close\r\n"
    return b"%scontent-type: %s\r\ncontent-length: %d\r\n%s\r\n" % (line, content_type, len(body), more)
