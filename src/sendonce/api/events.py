"""`POST /v1/events/ACCOUNT`: what an account's provider calls back with.

No API key: the provider's signature is the key, and only the account's own event source can tell. A request
is answered once what it says is durable, and applied later (`pipeline.events`).

    200   it is kept, or was before; with what the provider wants to read
    400   it is the provider's, and nothing in it can be read
    403   it is not the provider's, or too old to be believed: nothing of it is kept
    404   no such account, or one whose provider calls nobody, or without a secret to know it by
    405   it is no POST
    413   too large; 408: it did not come in time
    503   nobody can say now, or nothing can be kept now: a provider tells it again

Some providers sign the address that they call. That is `public_url` of the configuration where one is set;
forwarded headers, which anybody may write, are never read.

A flood of what is forged costs a look at a signature each, and one line in the log a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sendonce import telemetry
from sendonce.api.problems import STORE_AGAIN_S, Problem
from sendonce.api.program import Program
from sendonce.core.errors import StoreError
from sendonce.pipeline.events import take_in
from sendonce.ports.events import EventRequest, EventSource, Forged, NotNow, Unreadable
from sendonce.ports.store import Store
from sendonce.telemetry import fault, tell

PREFIX: Final = "/v1/events/"
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
OPEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all requests together, in this process."""
OPEN_MAX: Final = 400
BODY_S: Final = 10.0
TOLD_APART_S: Final = 1.0


DOCUMENT: Final[Mapping[str, Any]] = {
    PREFIX + "{account}": {
        "post": {
            "operationId": "take_in_events",
            "tags": ["provider events"],
            "summary": "What an account's provider calls back with.",
            "description": "No key: the provider signs it, in its own way and format. It is kept when it is "
            "answered, and applied later.",
            "security": [],
            "parameters": [
                {
                    "name": "account",
                    "in": "path",
                    "required": True,
                    "description": "The name of the account in the configuration.",
                    "schema": {"type": "string", "minLength": 1, "examples": ["mail"]},
                }
            ],
            "requestBody": {
                "required": True,
                "description": "As the provider documents it.",
                "content": {
                    "application/json": {"schema": {}},
                    "application/x-www-form-urlencoded": {"schema": {"type": "object"}},
                },
            },
            "responses": {
                "200": {
                    "description": "It is kept, or was before; with what the provider wants to read.",
                    "content": {
                        "text/plain": {"schema": {"type": "string"}},
                        "text/xml": {"schema": {"type": "string"}},
                    },
                }
            },
        }
    }
}
"""In the OpenAPI document. What is no 200 is a problem, as everywhere."""


class ProviderCalls:
    """An ASGI application in front of another, which gets every other path."""

    def __init__(
        self, inner: ASGIApp, program: Program, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._program = program
        self._clock = clock
        self._open = 0
        self._open_bytes = 0
        self._told_at: dict[str, float] = {}
        self._store: Store | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._inner(scope, receive, send)
            return
        if self._open >= OPEN_MAX:
            await Problem("busy", "ask again", retry_after_s=1).response()(scope, receive, send)
            return
        self._open += 1
        try:
            answer = await self._answered(scope, receive)
        finally:
            self._open -= 1
        await answer(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive) -> Response:
        try:
            return await self._answer(scope, receive)
        except Problem as problem:
            return problem.response()
        except StoreError as error:
            tell(telemetry.STORE_UNAVAILABLE, stage="events", **fault(error))
            said = "nothing of it was kept: tell it again"
            return Problem("store_unavailable", said, retry_after_s=STORE_AGAIN_S).response()

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        if scope["method"] != "POST":
            raise Problem("method_not_allowed", "providers POST here", headers={"Allow": "POST"})
        app = self._program.app
        account = unquote(scope["path"].removeprefix(PREFIX))
        source = app.event_source(account) if account in app.policy.accounts else None
        if source is None:
            raise Problem("not_found", "no account of this name has a provider that calls here")
        size = _Size()
        try:
            body = await self._body(receive, size)
            request = EventRequest("POST", _url(scope, app.policy.public_url), _headers(scope), body)
            return await self._kept(source, account, request)
        finally:
            self._open_bytes -= size.bytes

    async def _kept(self, source: EventSource, account: str, request: EventRequest) -> Response:
        app = self._program.app
        try:
            batch = await source.read(request, now=app.clock.now())
        except Forged as forged:
            self._tell(account, forged.why)
            raise Problem("bad_signature", f"it is not believed: {forged.why}", reason=forged.why) from None
        except Unreadable as unreadable:
            self._tell(account, unreadable.why)
            said = f"nothing in it can be read: {unreadable.why}"
            raise Problem("bad_request", said, reason=unreadable.why) from None
        except NotNow as later:
            self._tell(account, later.why)
            said = f"it cannot be verified now: {later.why}"
            raise Problem("busy", said, retry_after_s=STORE_AGAIN_S) from None
        if self._store is None:  # opening it may take a while
            self._store = await asyncio.to_thread(lambda: app.store)
        kept = take_in(
            self._store, app.policy, account, batch.events, faulty=batch.faulty, source=request.body
        )
        await asyncio.wrap_future(kept)
        return Response(batch.answer, 200, {"Cache-Control": "no-store"}, batch.answer_type)

    def _tell(self, account: str, why: str) -> None:
        now = self._clock()
        if now - self._told_at.get(account, float("-inf")) >= TOLD_APART_S:
            self._told_at[account] = now
            tell(telemetry.EVENT_REFUSED, account=account, why=why)

    async def _body(self, receive: Receive, size: _Size) -> bytes:
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem("bad_request", "the connection was closed before all of it came")
                    part = message.get("body", b"")
                    size.bytes += len(part)
                    self._open_bytes += len(part)
                    if size.bytes > BODY_BYTES_MAX:
                        raise Problem("too_large", f"at most {BODY_BYTES_MAX} bytes are read")
                    if self._open_bytes > OPEN_BYTES_MAX:
                        raise Problem("busy", "too much is coming at once: tell it again", retry_after_s=1)
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Problem("request_timeout", f"the body must come within {BODY_S:g} s") from None


class _Size:
    """What a request has sent so far."""

    def __init__(self) -> None:
        self.bytes = 0


def _url(scope: Scope, public_url: str) -> str:
    """The address as the provider called it."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    target = (path + b"?" + query if query else path).decode("latin-1")
    if public_url:
        return public_url.rstrip("/") + target
    host = _headers(scope).get("host", "")
    return f"{scope['scheme']}://{host}{target}"


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, text = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found
