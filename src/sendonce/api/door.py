"""The door: who comes in, how often, and with how much. Nothing behind it hears of anybody else.

    key        none, unknown, revoked, expired: 401, and the answer does not say which. Also where there is
               nothing behind the path: who has no key learns nothing
    rate       each key's own, counted in this process
    room       so many requests at once, and so many bytes of bodies: else 503, ask again
    body       JSON, in time, and within bounds; read before the key's work begins, so that a slow sender
               holds up nobody but itself

A key is looked up in the store at most once a second, so a revoked one is known everywhere a second later.
Where the store is away nobody is known, and the answer is 503. No forwarded header is read: nothing that is
answered hangs on where a request comes from.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sendonce import telemetry
from sendonce.api.problems import Problem, problem_of
from sendonce.api.program import BODY, CALLER
from sendonce.core.access import ApiKey, turn_of
from sendonce.core.errors import SendonceError, StoreError
from sendonce.pipeline.api_keys import known, note_use
from sendonce.ports.store import Store, Tx
from sendonce.telemetry import fault, tell

SECOND: Final = 1_000_000
KNOWN_S: Final = 1.0
"""How long a key that was looked up is taken for what it was."""
NOTE_S: Final = 60.0
KEYS_MAX: Final = 10_000
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""What is answered without a key, and says nothing."""
_BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """`bulk_bytes_max` is for the paths of `bulk`, `bytes_max` for others, `open_bytes_max` for all."""

    bytes_max: int = 256 * 1024
    bulk_bytes_max: int = 16 * 1024 * 1024
    open_bytes_max: int = 64 * 1024 * 1024
    open_max: int = 200
    body_s: float = 30.0
    bulk: frozenset[str] = frozenset({"/v1/reminders", "/v1/preferences"})


class Door:
    """An ASGI application in front of another."""

    def __init__(
        self,
        inner: ASGIApp,
        store: Callable[[], Store],
        *,
        bounds: Bounds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._store = store
        self._bounds = bounds or Bounds()
        self._clock = clock
        self._known: dict[str, tuple[float, ApiKey | None]] = {}
        self._free_at: dict[str, int] = {}
        self._noted: dict[str, float] = {}
        self._open = 0
        self._open_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._inner(scope, receive, send)
            return
        if scope["path"] in OPEN_PATHS:
            await self._inner(scope, receive, send)
            return
        taken = 0
        try:
            if self._open >= self._bounds.open_max:
                raise Problem("busy", "ask again in a moment", retry_after_s=1)
            self._open += 1
            try:
                scope[CALLER] = key = await self._admitted(scope)
                self._check_rate(key)
                taken = self._take(scope)
                scope[BODY] = body = await self._body(scope, receive)
                await self._inner(scope, _Replay(body, receive), send)
            finally:
                self._open -= 1
                self._open_bytes -= taken
        except Problem as problem:
            await problem.response()(scope, receive, send)
        except SendonceError as error:
            await problem_of(error).response()(scope, receive, send)

    async def _admitted(self, scope: Scope) -> ApiKey:
        token = _bearer(_all(scope, b"authorization"))
        if token is None:
            raise _unauthorized()
        found = self._known.get(token)
        at = self._clock()
        if found is None or at - found[0] >= KNOWN_S:
            key = await asyncio.to_thread(self._look_up, token)
            if key is None:
                # Not remembered: whoever guesses must not fill the memory.
                self._known.pop(token, None)
                raise _unauthorized()
            if len(self._known) >= KEYS_MAX:
                self._known.clear()
            self._known[token] = found = (at, key)
        key = found[1]
        assert key is not None
        self._note(key.prefix, at)
        return key

    def _look_up(self, token: str) -> ApiKey | None:
        return self._store().read(lambda tx: known(tx.api_keys.get, token, now=tx.now))

    def _note(self, prefix: str, at: float) -> None:
        """Have it written that the key is used, once in a while, and wait for nothing."""
        if at - self._noted.get(prefix, -math.inf) < NOTE_S:
            return
        self._noted[prefix] = at

        def unit(tx: Tx) -> None:
            note_use(prefix, tx)

        self._store().write(unit).add_done_callback(_tell_of)

    def _check_rate(self, key: ApiKey) -> None:
        now = int(self._clock() * SECOND) + 1
        free_at, early = turn_of(self._free_at.get(key.prefix, 0), now, key.rate)
        if early:
            wait_s = math.ceil(early / SECOND)
            raise Problem(
                "rate_limited",
                f"key {key.prefix} may ask {key.rate} times a second: wait {wait_s} s",
                retry_after_s=wait_s,
            )
        self._free_at[key.prefix] = free_at

    def _take(self, scope: Scope) -> int:
        """Room for the body; how many bytes."""
        most = self._most(scope)
        length = _length(_all(scope, b"content-length"), scope)
        if length is not None and length > most:
            raise _too_large(most)
        size = most if length is None else length
        if self._open_bytes + size > self._bounds.open_bytes_max:
            raise Problem("busy", "ask again in a moment", retry_after_s=1)
        self._open_bytes += size
        return size

    def _most(self, scope: Scope) -> int:
        bulk = scope["path"] in self._bounds.bulk
        return self._bounds.bulk_bytes_max if bulk else self._bounds.bytes_max

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = self._most(scope)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._bounds.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem("bad_request", "the connection was closed in the middle of the body")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > most:
                        raise _too_large(most)
                    chunks.append(chunk)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            said = f"send all of it within {self._bounds.body_s:g} s"
            raise Problem("request_timeout", said, headers={"Connection": "close"}) from None
        if size and scope["method"] not in _BODILESS:
            _check_type(_all(scope, b"content-type"), _all(scope, b"content-encoding"))
        return b"".join(chunks)


class _Replay:
    """The body once more, for whoever is behind the door; then whatever the connection says."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _tell_of(done: Future[None]) -> None:
    error = done.exception()
    if error is not None and not isinstance(error, StoreError):
        tell(telemetry.STAGE_FAILED, stage="api", **fault(error))


def _all(scope: Scope, name: bytes) -> list[str]:
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return [value.decode("latin-1") for own, value in headers if own == name]


def _bearer(values: list[str]) -> str | None:
    """The token, where exactly one is given."""
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _unauthorized() -> Problem:
    said = "send Authorization: Bearer KEY with a key that holds"
    return Problem("unauthorized", said, headers={"WWW-Authenticate": 'Bearer realm="sendonce"'})


def _too_large(most: int) -> Problem:
    said = f"at most {most // 1024} KB: send less at once"
    return Problem("too_large", said, headers={"Connection": "close"})


def _length(values: list[str], scope: Scope) -> int | None:
    """What the body will have; 0 where none is announced, None where nobody knows."""
    if _all(scope, b"transfer-encoding"):
        return None
    if not values:
        return 0
    if len(values) != 1 or not (values[0].isascii() and values[0].isdigit()) or len(values[0]) > 18:
        raise Problem("bad_request", "Content-Length is no number", headers={"Connection": "close"})
    return int(values[0])


def _check_type(types: list[str], encodings: list[str]) -> None:
    kind, _, parameters = (types[0] if len(types) == 1 else "").partition(";")
    kind, charset = kind.strip().lower(), parameters.strip().lower().replace('"', "")
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Problem(
            "unsupported_media_type",
            f"Content-Type is {kind or 'missing'!r:.80}: send application/json",
            headers={"Accept": "application/json"},
        )
    if charset.startswith("charset=") and charset != "charset=utf-8":
        raise Problem("unsupported_media_type", f"{charset!r:.80}: JSON is UTF-8, and no other")
    if any(encoding.strip().lower() != "identity" for encoding in encodings):
        raise Problem("unsupported_media_type", "send the body as it is, without a Content-Encoding")
