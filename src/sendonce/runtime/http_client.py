"""A small HTTP/1.1 client that knows whether a byte of the request may have left.

Most clients hide the one thing that decides between "try again" and "never guess": they connect,
write and retry behind one call. Here a call has two steps, and each can only fail in its own way:

    acquire(origin)   pool, DNS, TCP, TLS      ->  Connection | NotSent     no byte has left
    request(data)     one write, one answer    ->  Response | NotSent | MaybeSent

The bytes are made beforehand by `encode_request`, so that nothing can fail late. `request` looks at
the socket once more and then writes at once, with nothing awaited in between: a caller may do its
last checks between the two steps. It answers `NotSent` only where the connection was already seen to
be closed; whatever goes wrong after the write is `MaybeSent`.

What it promises besides: nothing is ever retried and no redirect is followed; an answer is believed
only when it is complete by the framing of RFC 9112; headers, body, connections, idle time and the
whole exchange are bounded; an abandoned exchange resets its socket, so that nothing lingers at the
provider's door; certificates and host names are always verified, and plain `http` must be allowed
in so many words. It speaks to APIs: no proxies, cookies, compression, upgrades or HEAD.

Idle connections are dropped after a few seconds, and at once when data or an end of stream shows up
on them: a connection that dies under a request costs an unknown outcome, a new one costs a handshake.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from typing import cast
from urllib.parse import urlsplit

import httptools

from sendonce.core.errors import ConfigError
from sendonce.core.value import value
from sendonce.runtime import sockets
from sendonce.runtime.handles import is_none_left
from sendonce.runtime.sockets import Watch, tls_context


@value
class Origin:
    """Where connections go. `scheme` is http or https, `host` is ASCII and without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@value
class Limits:
    """Bounds of one client. Seconds and bytes.

    connections_max    per origin; more callers wait, within `connect_timeout_s`
    connect_timeout_s  waiting for a free connection, DNS, TCP and TLS together
    idle_s             an unused connection is closed after this; keep it well below the peer's own
    header_bytes_max   status line and headers of one answer
    body_bytes_max     body of one answer
    """

    connections_max: int = 64
    connect_timeout_s: float = 10.0
    idle_s: float = 4.0
    header_bytes_max: int = 64 * 1024
    body_bytes_max: int = 1024 * 1024


DEFAULT_LIMITS = Limits()


@value
class NotSent:
    """No byte of the request has left.

    `why`: pool, timeout, dns, refused, connect, tls, certificate, stale, closed, plain_http.
    """

    why: str


@value
class MaybeSent:
    """Bytes of the request may have left, and no complete answer came.

    `why`: timeout, reset, truncated, bad_response, too_large, shutdown.
    """

    why: str


@value
class Response:
    """A complete answer. Headers are as received; `header` finds one by its name."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, several joined by a comma; None where there is none."""
        wanted = name.lower().encode("latin-1")
        values = [value.decode("latin-1") for key, value in self.headers if key.lower() == wanted]
        return ", ".join(values) if values else None


def parse_url(url: str) -> tuple[Origin, str]:
    """The origin and the request target of an absolute URL. Raises `ConfigError`."""
    if not _VISIBLE.fullmatch(url):  # urlsplit would drop a line break without a word
        raise ConfigError(f"{url!r} must be visible ASCII characters only: percent-encode the others")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(
            f"{url!r} is not a URL ({error}); write one such as https://api.example.com/v1"
        ) from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ConfigError(f"{url!r} must begin with https:// (or http://) and name a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ConfigError(
            "a URL must hold no credentials and no #fragment: credentials have their own settings"
        )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _TARGET.fullmatch(target) or not _HOST.fullmatch(parts.hostname):
        raise ConfigError(f"{url!r} holds a character that must be percent-encoded (in a host: punycode)")
    return Origin(parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme]), target


def encode_request(
    origin: Origin, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes
) -> bytes:
    """The bytes of one request.

    Host, Accept-Encoding and Content-Length are added; the caller's headers must not repeat them.
    Raises ValueError for a line break or NUL in a header (injection), a character outside Latin-1,
    or a method or target that this client does not send.
    """
    lines = [f"{method} {target} HTTP/1.1", f"Host: {origin.authority}", "Accept-Encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body or method not in _BODILESS:
        lines.append(f"Content-Length: {len(body)}")
    count = len(lines) + 1
    head = "\r\n".join(lines) + "\r\n\r\n"
    if head.count("\r") != count or head.count("\n") != count or "\0" in head:
        raise ValueError("a header, the method or the target holds a line break or a NUL")
    if not _REQUEST_LINE.match(head):
        raise ValueError(f"not a request that this client sends: {method!r} {target!r}")
    return head.encode("latin-1") + body


class HttpClient:
    """Connections to any number of origins, on the running event loop.

    ca_file      PEM file of further authorities to trust, beside the system's
    allow_plain  whether `http://` origins may be used at all
    """

    def __init__(
        self, *, limits: Limits = DEFAULT_LIMITS, ca_file: str | None = None, allow_plain: bool = False
    ) -> None:
        self._limits = limits
        self._allow_plain = allow_plain
        self._tls = tls_context(ca_file) if ca_file or not allow_plain else None
        self._pools: dict[Origin, _Pool] = {}
        self._connecting: set[asyncio.Task[tuple[asyncio.Transport, Connection]]] = set()
        self._open: set[Connection] = set()
        self._all_closed: asyncio.Future[None] | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self.closed = False

    async def acquire(self, origin: Origin, *, timeout_s: float | None = None) -> Connection | NotSent:
        """A connection for one request: an idle one, a new one, or the next that comes free.

        At most `timeout_s` (default: `connect_timeout_s`). The caller must either call `request` once
        or give the connection back with `release`. Cancelling is safe.
        """
        if self.closed:
            return NotSent("closed")
        if origin.scheme == "http" and not self._allow_plain:
            return NotSent("plain_http")
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = _Pool(origin)
        if connection := pool.take_idle():
            return connection
        now = asyncio.get_running_loop().time
        deadline = now() + (self._limits.connect_timeout_s if timeout_s is None else timeout_s)
        while pool.slots_taken >= self._limits.connections_max:
            if not await pool.wait(deadline - now()):
                return NotSent("closed" if self.closed else "pool")
            if connection := pool.take_idle():
                return connection
        return await self._connect(pool, deadline - now())

    async def close(self) -> None:
        """Abort every open exchange (`MaybeSent("shutdown")`) and close every connection. Idempotent."""
        self.closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for pool in self._pools.values():
            pool.wake_all()
        connecting = set(self._connecting)
        for task in connecting:
            task.cancel()
        for connection in list(self._open):
            connection.abort("shutdown")
        if connecting:
            await asyncio.wait(connecting)
        if self._open:
            if self._all_closed is None:
                self._all_closed = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._all_closed})

    async def _connect(self, pool: _Pool, timeout_s: float) -> Connection | NotSent:
        origin = pool.origin
        tls = self._tls_context() if origin.scheme == "https" else None
        connection = Connection(self, pool, self._limits)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.create_connection(lambda: connection, origin.host, origin.port, ssl=tls))
        task.add_done_callback(_retrieve)
        self._connecting.add(task)
        try:
            await asyncio.wait({task}, timeout=max(0.0, timeout_s))
            if not task.done():
                return NotSent("timeout")
            if task.cancelled() or self.closed:
                return NotSent("closed")
            if failure := task.exception():
                return NotSent(_why_not_connected(failure))
            return connection if connection.usable else NotSent("closed")
        except asyncio.CancelledError:
            connection.abort("shutdown")
            raise
        finally:
            task.cancel()
            self._connecting.discard(task)
            if not connection.usable:
                connection.abandon()

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = tls_context(None)
        return self._tls

    # Told by the connections

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._all_closed is not None and not self._open and not self._all_closed.done():
            self._all_closed.set_result(None)

    def idle_began(self) -> None:
        if self._sweep is None and not self.closed:
            self._sweep = asyncio.get_running_loop().call_later(self._limits.idle_s, self._drop_idle)

    def _drop_idle(self) -> None:
        """One timer for all idle connections, alive only while there are some."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        soonest = min((pool.drop_idle(loop.time()) for pool in self._pools.values()), default=_NEVER)
        if soonest < _NEVER:
            self._sweep = loop.call_at(soonest, self._drop_idle)


class Connection(asyncio.Protocol):
    """One connection, carrying one exchange at a time. Obtained from `HttpClient.acquire`."""

    __slots__ = (
        "_answer", "_body", "_body_bytes_left", "_bytes_seen", "_client", "_complete",
        "_deadline", "_header_bytes_left", "_headers", "_holds_slot", "_keep_alive", "_limits", "_loop",
        "_parser", "_plain", "_pool", "_reusable", "_status", "_timer", "_timer_at",
        "_transport", "_watch", "_why_lost", "idle_until", "usable",
    )  # fmt: skip

    def __init__(self, client: HttpClient, pool: _Pool, limits: Limits) -> None:
        self._client = client
        self._pool = pool
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._watch: Watch | None = None
        self._plain = pool.origin.scheme == "http"
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Response | MaybeSent] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._deadline = _NEVER
        self._why_lost = "reset"
        self._holds_slot = True
        self._status = 0  # of the final answer, once its headers are complete
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._bytes_seen = 0
        self._header_bytes_left = limits.header_bytes_max
        self._body_bytes_left = limits.body_bytes_max
        self._complete = False
        self._keep_alive = False
        self._reusable = True
        self.idle_until = _NEVER
        self.usable = False
        pool.slots_taken += 1

    # One exchange

    async def request(self, data: bytes, *, timeout_s: float) -> Response | NotSent | MaybeSent:
        """Write one request (from `encode_request`) at once, then wait for its whole answer.

        At most `timeout_s` seconds. Afterwards the connection belongs to the pool again, whatever
        the result. When the caller is cancelled, the socket is reset.
        """
        if not self.alive():
            self.drop()
            return NotSent("closed" if self._client.closed else "stale")
        assert self._transport is not None
        answer: asyncio.Future[Response | MaybeSent] = self._loop.create_future()
        self._answer = answer
        self._transport.write(data)
        self._set_deadline(self._loop.time() + timeout_s)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._answer is answer:  # else it is over, and the connection may be another's by now
                self.abort("shutdown")
            raise

    def release(self) -> None:
        """Give the connection back unused."""
        if self.alive():
            self._pool.give_back(self, self._limits.idle_s)
            self._client.idle_began()
        else:
            self.drop()

    def abort(self, why: str) -> None:
        """Reset the socket now; an open exchange ends as `MaybeSent(why)`."""
        self.usable = False
        self._settle(MaybeSent(why))
        if self._transport is not None:
            sockets.abort(self._transport)

    def drop(self) -> None:
        """Close a connection that carries nothing any more."""
        self.usable = False
        if self._transport is None or self._transport.is_closing():
            return
        if self._plain:
            self._transport.close()
        else:
            self._transport.abort()  # close() would wait for the peer's close_notify

    def abandon(self) -> None:
        """Give up a connection that is not open yet; should it open after all, it is closed at once."""
        self.drop()
        self._free_slot()

    def alive(self) -> bool:
        """Whether nothing speaks against writing: not closed, and nothing waits to be read.

        Asks the kernel too, so that an end of stream which the loop has not seen yet is found.
        """
        return self.usable and self._watch is not None and self._watch.quiet()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._holds_slot:
            self._transport.abort()
            return
        self._watch = Watch(transport)
        self.usable = True
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.drop()  # bytes that nobody asked for: never to be taken for an answer
            return
        self._bytes_seen += len(data)
        if self._bytes_seen > self._bytes_max():
            self.abort("too_large")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self.abort("too_large" if isinstance(error.__context__, _TooLarge) else "bad_response")
                return
            self._reusable = False  # garbage after a complete answer
        if self._complete:
            self._finish()

    def eof_received(self) -> None:
        self.usable = False
        if self._answer is not None and self._status and not _has_length(self._headers):
            self._finish()
        elif self._bytes_seen:
            self._why_lost = "truncated"

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._settle(MaybeSent(self._why_lost))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watch = None
        self._pool.forget(self)
        self._free_slot()
        self._client.lost(self)

    # httptools

    def on_message_begin(self) -> None:
        if self._complete:
            self._reusable = False  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes_left -= len(name) + len(value) + 4
        if self._header_bytes_left < 0:
            raise _TooLarge
        if not self._status:  # else it is a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._parser.get_http_version() not in _VERSIONS or status < 100 or status == 101:
            raise _BadResponse
        if status < 200:
            self._headers.clear()  # 100, 103: the answer is still to come
        elif not self._complete:
            self._status = status

    def on_body(self, data: bytes) -> None:
        if self._complete:
            return
        self._body_bytes_left -= len(data)
        if self._body_bytes_left < 0:
            raise _TooLarge
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._status and not self._complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()

    def _bytes_max(self) -> int:
        """What an answer may take on the wire: stops endless headers, interim answers, tiny chunks."""
        before_body = self._limits.header_bytes_max + _READ_BYTES
        return before_body + (8 * self._limits.body_bytes_max if self._status else 0)

    # The end of an exchange

    def _finish(self) -> None:
        """The answer is complete: tell it, and keep the connection where nothing speaks against it."""
        response = Response(self._status, tuple(self._headers), b"".join(self._body))
        assert self._transport is not None
        keep = (
            self._keep_alive
            and self._reusable
            and self.usable
            and self._transport.get_write_buffer_size() == 0  # else it answered before it had read all
        )
        self._settle(response)
        if keep:
            self._begin_message()
            self._pool.give_back(self, _idle_s(response, self._limits.idle_s))
            self._client.idle_began()
        else:
            self.drop()

    def _settle(self, result: Response | MaybeSent) -> None:
        self._deadline = _NEVER
        if self._answer is not None:
            if not self._answer.done():  # its waiter may have been cancelled
                self._answer.set_result(result)
            self._answer = None

    def _begin_message(self) -> None:
        self._status = 0
        self._headers.clear()
        self._body.clear()
        self._bytes_seen = 0
        self._header_bytes_left = self._limits.header_bytes_max
        self._body_bytes_left = self._limits.body_bytes_max
        self._complete = False
        self._keep_alive = False

    def _free_slot(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self._pool.slots_taken -= 1
            self._pool.wake_one()

    # One timer per connection: requests move the deadline, and only a fired timer is armed anew.

    def _set_deadline(self, at: float) -> None:
        self._deadline = at
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm(at)

    def _arm(self, at: float) -> None:
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self._loop.time() >= self._deadline:
            self.abort("timeout")
        elif self._deadline < _NEVER:
            self._arm(self._deadline)


class _Pool:
    """The connections of one origin: idle ones, newest first, and callers that wait for one."""

    __slots__ = ("_idle", "_waiting", "origin", "slots_taken")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.slots_taken = 0
        self._idle: list[Connection] = []
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive() and connection.idle_until > asyncio.get_running_loop().time():
                return connection
            connection.drop()
        return None

    def give_back(self, connection: Connection, idle_s: float) -> None:
        connection.idle_until = asyncio.get_running_loop().time() + idle_s
        self._idle.append(connection)
        self.wake_one()

    def drop_idle(self, now: float) -> float:
        """Close what has been idle for too long; returns when to look again."""
        for connection in self._idle:
            if connection.idle_until <= now:
                connection.drop()
        self._idle = [connection for connection in self._idle if connection.usable]
        return min((connection.idle_until for connection in self._idle), default=_NEVER)

    def forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until a connection or a slot may be free. False when the time is over or all is closed."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait({turn}, timeout=max(0.0, timeout_s))
        except asyncio.CancelledError:
            if turn.done():
                self.wake_one()  # the turn was ours and we leave: hand it on
            raise
        finally:
            if not turn.done():
                self._waiting.remove(turn)
        return turn.done() and turn.result()

    def wake_one(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(True)

    def wake_all(self) -> None:
        """The end: every waiter is told to go."""
        while self._waiting:
            self._waiting.popleft().set_result(False)


def _has_length(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """RFC 9112 6.3: without one of these, only the end of the stream ends the body."""
    names = {name.lower(): value.lower() for name, value in headers}
    return b"content-length" in names or b"chunked" in names.get(b"transfer-encoding", b"")


def _idle_s(response: Response, idle_s: float) -> float:
    """Shorter where the peer says how long it keeps the connection (`Keep-Alive: timeout=5`)."""
    if hint := _KEEP_ALIVE.search(response.header("keep-alive") or ""):
        return min(idle_s, int(hint[1]) - 1.0)
    return idle_s


def _why_not_connected(failure: BaseException) -> str:
    match failure:
        case OSError() if is_none_left(failure):
            return "handles"
        case ssl.SSLCertVerificationError():
            return "certificate"
        case ssl.SSLError():
            return "tls"
        case socket.gaierror():
            return "dns"
        case ConnectionRefusedError():
            return "refused"
        case TimeoutError():
            return "timeout"
        case OSError():
            return "connect"
        case _:
            raise failure


def _retrieve(task: asyncio.Task[tuple[asyncio.Transport, Connection]]) -> None:
    """Look at the failure of a connect that nobody waits for any more, so that it is not logged."""
    if not task.cancelled():
        task.exception()


class _TooLarge(Exception):
    pass


class _BadResponse(Exception):
    pass


_VERSIONS = ("1.1", "1.0")
_NEVER = float("inf")
_READ_BYTES = 256 * 1024  # one read of the loop may bring the body along with the headers
_BODILESS = ("GET", "DELETE")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[!-~]*", re.ASCII)
_TARGET = re.compile(r"/[!-~]*", re.ASCII)
_HOST = re.compile(r"[a-z0-9._:%-]+", re.ASCII)
_REQUEST_LINE = re.compile(r"(?:GET|POST|PUT|PATCH|DELETE) /[!-~]* HTTP/1\.1\r\n", re.ASCII)
_KEEP_ALIVE = re.compile(r"timeout=(\d{1,6})", re.IGNORECASE)
