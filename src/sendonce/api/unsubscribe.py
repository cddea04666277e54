"""`/unsubscribe/TOKEN`: one click ends a category of email (RFC 8058). The only door that needs no key.

    GET     a small page with a button, and nothing else: scanners of mail follow every link
    POST    the "no", in force when it is answered; whoever sends it, a mail provider or that button

The token is what opens it: only we can have made it, and it says who, from whom and which category. Asked
again, it is answered the same and nothing changes. No cookie, no redirect, no log-in; what the body says is
read away, since RFC 8058 fixes it.

A token that is not ours costs a hash and reaches no store. One that is may be used a few times a second: no
flood of some keeps out the "no" of others. It stands in front of the door for keys, and nothing of a
request but its method and path decides anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from html import escape
from typing import Final

from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sendonce import telemetry
from sendonce.api.program import Program
from sendonce.core.access import turn_of
from sendonce.core.errors import StoreError
from sendonce.core.unsubscribe import read_unsubscribe_token
from sendonce.pipeline import consent
from sendonce.telemetry import fault, tell

PREFIX: Final = "/unsubscribe/"
ACTOR: Final = "customer:one-click"
RATE: Final = 5
"""Clicks a second with the same token, in this process; a few more in a burst."""
TOKENS_MAX: Final = 10_000
OPEN_MAX: Final = 200
BODY_BYTES_MAX: Final = 16 * 1024
BODY_S: Final = 10.0
SECOND: Final = 1_000_000

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex, nofollow",
}


class Unsubscribe:
    """An ASGI application in front of another, which gets every other path."""

    def __init__(
        self,
        inner: ASGIApp,
        program: Program,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._program = program
        self._clock = clock
        self._free_at: dict[str, int] = {}
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._inner(scope, receive, send)
            return
        if self._open >= OPEN_MAX:
            await _later(503)(scope, receive, send)
            return
        self._open += 1
        try:
            answer = await self._answer(scope, receive)
        finally:
            self._open -= 1
        await answer(scope, receive, send)

    def _too_fast(self, token: str) -> bool:
        if len(self._free_at) >= TOKENS_MAX:
            self._free_at.clear()
        free_at, early = turn_of(self._free_at.get(token, 0), int(self._clock() * SECOND) + 1, RATE)
        self._free_at[token] = free_at
        return bool(early)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        app = self._program.app
        try:
            secret = (await asyncio.to_thread(lambda: app.store)).secret
            token = scope["path"].removeprefix(PREFIX)
            what = read_unsubscribe_token(secret, token)
            if what is None:
                return _page(404, "This link is not complete", "Please open it from the email once more.")
            match scope["method"]:
                case "GET" | "HEAD":
                    return _page(200, "No more of these emails?", _BUTTON)
                case "POST" if self._too_fast(token):
                    return _later(429)
                case "POST":
                    if not await _read_away(receive):
                        return _page(413, "That was too much", "Please use the button of the page.")
                    await asyncio.to_thread(
                        consent.unsubscribe, app.store, what, policy=app.policy, actor=ACTOR
                    )
                    return _page(200, "Done", "You will get no more of these emails.")
                case _:
                    more = {"Allow": "GET, HEAD, POST"}
                    return _page(405, "Not like this", "Please open the link in a browser.", more)
        except StoreError as error:
            tell(telemetry.STORE_UNAVAILABLE, stage="api", **fault(error))
            return _later(503)


async def _read_away(receive: Receive) -> bool:
    """Whether all of the body came, within bounds; what it says does not matter."""
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or size > BODY_BYTES_MAX:
                    return False
                if not message.get("more_body"):
                    return True
    except TimeoutError:
        return False


_BUTTON: Final = (
    '<form method="post"><input type="hidden" name="List-Unsubscribe" value="One-Click">'
    '<button type="submit">Unsubscribe</button></form>'
)


def _later(status: int) -> Response:
    return _page(status, "Not now", "Please try again in a minute.", {"Retry-After": "60"})


def _page(status: int, title: str, said: str, headers: dict[str, str] | None = None) -> Response:
    said = said if said is _BUTTON else f"<p>{escape(said)}</p>"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title></head><body><h1>{escape(title)}</h1>{said}</body></html>\n"
    )
    return HTMLResponse(text, status, {**HEADERS, **(headers or {})})
