"""The console as an ASGI application: bounds, headers, static files, sign-in, roles, form tokens, errors.

A request passes in this order, and what fails ends there:

    room       so many at once, and so large a body: else 503, 413
    session    a signed cookie whose credential still holds: else the sign-in page (`console.session`)
    role       the scope that the page names in the table of routes: else 403
    form       the same origin, and a token for this session and this path: else 403 (`console.forms`)
    view       reads and calls stages, in a thread; a form is done once, then a 303 leads to what it did

Whatever comes out carries the same headers: nothing but our own style sheet, script and pictures may be
loaded, nothing runs that stands in a page, nobody may frame it, and nobody keeps a copy.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio.to_thread
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sendonce import telemetry
from sendonce.config import Settings
from sendonce.console import forms, session
from sendonce.console.asked import Asked, Console, Denied
from sendonce.console.forms import Done, Forged
from sendonce.console.page import ROOT, Page, link, render, statics
from sendonce.console.roles import roles_with
from sendonce.console.routes import ROUTES, Route
from sendonce.console.session import COOKIE, Ticket, Who, cookie_name, is_local
from sendonce.console.tries import Tries
from sendonce.console.users import Users
from sendonce.core.errors import InvalidInput, NotFound, Refused, SendonceError, StoreError
from sendonce.ports.store import Tx
from sendonce.telemetry import fault, tell

OPEN_MAX: Final = 64
THREADS: Final = 8
"""Threads of the console: whoever looks must not keep those from working who call the API."""
BODY_BYTES_MAX: Final = 128 * 1024
BODY_S: Final = 20.0
FIELDS_MAX: Final = 2_000
DOOR: Final = "sendonce_door"
SIGN_IN: Final = f"{ROOT}/sign-in"
SIGN_OUT: Final = f"{ROOT}/sign-out"

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "Cache-Control": "no-store",
}


def console_of(settings: Settings, app: Any, scheduler: Callable[[], Any]) -> ASGIApp:
    """The console of a program. Raises `ConfigError` for a user file that cannot be read."""
    users = Users(settings.console_users) if settings.console_users is not None else None
    return ConsoleApplication(Console(app, scheduler, users, settings.console_session_s))


def is_ours(path: str) -> bool:
    """Whether a path belongs to the console."""
    return path == ROOT or path.startswith(f"{ROOT}/")


class _Ended(Exception):
    """A request that is answered already."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class ConsoleApplication:
    """Answers everything under `/console`."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._tries = Tries()
        self._open = 0
        self._threads: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        self._open += 1
        try:
            if self._open > OPEN_MAX:
                response = _plain("Too many people look at once: reload in a moment.\n", 503)
            else:
                response = await self._answer(_Request(scope, receive))
        except _Ended as ended:
            response = ended.response
        except Exception as error:
            tell(telemetry.STAGE_FAILED, stage="console", **fault(error))
            response = _plain("A bug in sendonce: it was told to whoever runs this service.\n", 500)
        finally:
            self._open -= 1
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, sending)

    async def _answer(self, request: _Request) -> Response:
        path = request.path
        if path.startswith(f"{ROOT}/static/"):
            return _static(path)
        if request.method not in ("GET", "HEAD", "POST"):
            return _plain("The console is read with GET and changed with POST.\n", 405)
        if request.method == "POST":
            await request.read_form()
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(THREADS)
        return await anyio.to_thread.run_sync(self._answered, request, limiter=self._threads)

    def _answered(self, request: _Request) -> Response:
        """The whole answer, in a thread: it reads the store."""
        try:
            return self._routed(request)
        except StoreError as error:
            tell(telemetry.STORE_UNAVAILABLE, stage="console", **fault(error))
            said = "The store is away. Nothing was half done: reload in a moment.\n"
            return _plain(said, 503, {"Retry-After": "2"})

    def _routed(self, request: _Request) -> Response:
        if request.path == SIGN_IN:
            return self._sign_in(request) if request.method == "POST" else self._door(request)
        now, who = self._console.store.read(lambda tx: (tx.now, self._who(tx, request)))
        if who is None:
            return self._to_the_door(request)
        if request.path == ROOT:
            return _see_other(link("overview" if who.watches else "find"))
        if request.path == SIGN_OUT and request.method == "POST":
            return self._sign_out(request, who, now)
        route = ROUTES.get(("POST" if request.method == "POST" else "GET", request.path))
        asked = Asked(
            self._console,
            who,
            now,
            request.query,
            request.lists,
            request.form,
            partial=request.is_partial,
        )
        try:
            if route is None:
                raise NotFound("there is no such page")
            _check_role(route, who)
            if request.method == "POST":
                return self._done(request, asked, route)
            page = route.view(asked)
            assert isinstance(page, Page)
            return self._shown(request, asked, page)
        except Denied as denied:
            return self._problem(
                request, asked, 403, "Your role does not reach that far", _role_words(denied, who)
            )
        except Forged:
            return self._problem(
                request,
                asked,
                403,
                "The form was not accepted",
                "It is not from this session, or stood open for too long. Nothing was done: open the page "
                "again and repeat it.",
            )
        except SendonceError as error:
            if isinstance(error, StoreError):
                raise
            return self._problem(request, asked, *_problem(error))

    def _done(self, request: _Request, asked: Asked, route: Route) -> Response:
        _check_origin(request)
        secret = self._console.store.secret
        nonce = forms.nonce_of(request.field("token"), asked.who.session, request.path, secret, asked.now)

        def work() -> Done:
            done = route.view(
                Asked(
                    asked.console,
                    asked.who,
                    asked.now,
                    asked.query,
                    asked.lists,
                    asked.form,
                    nonce,
                )
            )
            assert isinstance(done, Done)
            return done

        done, first = forms.once(asked.store, asked.tenant, nonce, request.fingerprint, work)
        if first:
            tell(telemetry.CONSOLE_MOVE, action=request.path.removeprefix(f"{ROOT}/"), by=asked.who.actor)
        if done.secret:
            return self._shown(request, asked, Page("secret.html", {"done": done}))
        mark = "&" if "?" in done.location else "?"
        return _see_other(f"{done.location}{mark}said={nonce}")

    # Pages

    def _shown(self, request: _Request, asked: Asked, page: Page) -> Response:
        said = None
        if request.query.get("said") and not asked.partial:
            said = asked.read(lambda tx: forms.notice(tx, asked.tenant, request.query["said"]))
        text = render(
            page,
            who=asked.who,
            now=asked.now,
            zone=asked.zone,
            path=request.path,
            here=request.here,
            partial=asked.partial,
            every_s=page.every_s,
            reloads=page.reloads,
            notice=said,
            token=asked.token,
            sign_out=SIGN_OUT,
        )
        # 286 tells htmx that there is nothing more to wait for.
        status = 286 if asked.partial and not page.every_s else page.status
        return Response(text, status, media_type="text/html")

    def _problem(self, request: _Request, asked: Asked, status: int, title: str, text: str) -> Response:
        if asked.partial:
            return Response(status_code=204)  # what stands there stays, and the next look comes soon
        return self._shown(
            request,
            asked,
            Page("problem.html", {"title": title, "text": text, "back": request.came_from}, status),
        )

    # Sign-in

    def _who(self, tx: Tx, request: _Request) -> Who | None:
        ticket = session.read(request.cookie(COOKIE), self._console.store.secret, tx.now)
        return session.who(tx, ticket, self._console.users) if ticket is not None else None

    def _to_the_door(self, request: _Request) -> Response:
        onward = request.here if request.method != "POST" else ROOT
        if request.is_partial:
            return Response(status_code=204, headers={"HX-Redirect": _door_of(onward)})
        return _see_other(_door_of(onward))

    def _door(self, request: _Request, *, problem: str = "", status: int = 200) -> Response:
        store = self._console.store
        door = request.cookie(DOOR)
        if len(door) != 32:
            door = secrets.token_hex(16)
        now = store.read(lambda tx: tx.now)
        text = render(
            Page("sign_in.html"),
            token=forms.token(f"door:{door}", SIGN_IN, store.secret, now),
            onward=_inside(request.query.get("next", "") or request.field("next")),
            problem=problem,
            users=self._console.users is not None,
            name=request.field("name")[:80],
        )
        response = Response(text, status, media_type="text/html")
        request.set_cookie(response, DOOR, door, 3_600)
        return response

    def _sign_in(self, request: _Request) -> Response:
        console, store = self._console, self._console.store
        try:
            _check_origin(request)
            now = store.read(lambda tx: tx.now)
            door = f"door:{request.cookie(DOOR)}"
            forms.nonce_of(request.field("token"), door, SIGN_IN, store.secret, now)
        except Forged:
            said = "Your browser did not send back what it was given: allow cookies, and open the page anew."
            if not request.is_secure_place:
                said += " Away from this machine the console needs TLS (https)."
            return self._door(request, problem=said, status=403)
        name = request.field("name").strip()[:80] or request.field("key").strip()[:15]
        wait_s = self._tries.wait_s(name, self._clock())
        if wait_s:
            response = self._door(
                request, problem=f"Too many tries: wait {wait_s:.0f} s, then try again.", status=429
            )
            response.headers["Retry-After"] = str(int(wait_s) + 1)
            return response
        ticket, actor, tenant = self._credentials(request, now)
        if ticket is None:
            self._tries.failed(name, self._clock())
            tell(telemetry.CONSOLE_SIGN_IN_FAILED, source="user" if request.field("name") else "key")
            return self._door(request, problem="That is nobody we know: check what you typed.", status=401)
        self._tries.succeeded(name)
        store.write(lambda tx: tx.runs.audit(actor, "sign_in", tenant, "", {"ends": ticket.ends_at})).result()
        tell(telemetry.CONSOLE_MOVE, action="sign-in", by=actor)
        response = _see_other(_inside(request.field("next")) or ROOT)
        life_s = max(1, (ticket.ends_at - now) // session.SECOND)
        request.set_cookie(response, COOKIE, session.write(ticket, console.store.secret), life_s)
        request.set_cookie(response, DOOR, "", 0)
        return response

    def _credentials(self, request: _Request, now: int) -> tuple[Ticket | None, str, str]:
        console = self._console
        name, password = request.field("name").strip(), request.field("password")
        if name and console.users is not None:
            user = console.users.check(name, password)
            if user is None:
                return None, "", ""
            return (
                session.ticket_for_user(user, now, console.session_s),
                f"operator:{user.name}",
                user.tenant,
            )
        token = request.field("key")
        key = console.store.read(lambda tx: session.recognise(tx.api_keys.get, token, tx.now))
        if key is None:
            return None, "", ""
        return session.ticket_for_key(key, now, console.session_s), key.actor, key.tenant

    def _sign_out(self, request: _Request, who: Who, now: int) -> Response:
        _check_origin(request)
        forms.nonce_of(request.field("token"), who.session, SIGN_OUT, self._console.store.secret, now)

        def unit(tx: Tx) -> None:
            session.end(tx, who)
            tx.runs.audit(who.actor, "sign_out", who.tenant, "", {})

        self._console.store.write(unit).result()
        response = _see_other(SIGN_IN)
        request.set_cookie(response, COOKIE, "", 0)
        return response


class _Request:
    """A request, read by our own narrow rules."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.method: str = scope["method"]
        self.path: str = scope["path"].rstrip("/") or "/"
        self.lists = _lists(scope["query_string"].decode("latin-1"))
        self.query: Mapping[str, str] = {name: values[-1] for name, values in self.lists.items()}
        self.form: Mapping[str, list[str]] = {}
        self._cookies = _cookies(self.header("cookie"))

    @property
    def here(self) -> str:
        """The address of this page, without what was said on it."""
        pairs = {name: value for name, value in self.query.items() if name != "said"}
        return link(*self.path.removeprefix(ROOT).strip("/").split("/"), **pairs)

    @property
    def is_partial(self) -> bool:
        return self.header("hx-request") == "true"

    @property
    def is_secure_place(self) -> bool:
        """Whether a cookie that is not Secure would travel over no network."""
        return is_local(self.header("host"))

    @property
    def came_from(self) -> str:
        """The page before, where it was one of ours."""
        came = urlsplit(self.header("referer"))
        if came.netloc != self.header("host"):
            return ""
        return _inside(f"{came.path}?{came.query}" if came.query else came.path)

    @property
    def fingerprint(self) -> bytes:
        fields = sorted((name, values) for name, values in self.form.items() if name != "token")
        return repr((self.path, fields)).encode("utf-8", "replace")

    def header(self, name: str) -> str:
        wanted = name.encode()
        values = [value for own, value in self._headers if own == wanted]
        return values[0].decode("latin-1") if len(values) == 1 else ""

    def cookie(self, name: str) -> str:
        return self._cookies.get(cookie_name(name, secure=not self.is_secure_place), "")

    def set_cookie(self, response: Response, name: str, value: str, life_s: int) -> None:
        secure = not self.is_secure_place
        response.set_cookie(
            cookie_name(name, secure=secure),
            value,
            max_age=life_s,
            path="/",
            secure=secure,
            httponly=True,
            samesite="lax",
        )

    def field(self, name: str) -> str:
        return self.form.get(name, [""])[0]

    async def read_form(self) -> None:
        """Raises `_Ended` for what is no form, too large, or too slow."""
        if self.header("content-type").partition(";")[0].strip() != "application/x-www-form-urlencoded":
            raise _Ended(_plain("Send a form.\n", 415))
        body = b""
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise _Ended(_plain("The connection was closed.\n", 400))
                    body += message.get("body", b"")
                    if len(body) > BODY_BYTES_MAX:
                        raise _Ended(_plain("That is too much at once.\n", 413, {"Connection": "close"}))
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise _Ended(_plain("It took too long.\n", 408, {"Connection": "close"})) from None
        self.form = _lists(body.decode("latin-1"))


def _lists(text: str) -> Mapping[str, list[str]]:
    """Raises `_Ended` for what is not text in UTF-8, holds a NUL, or has far too many fields."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise _Ended(_plain("The request cannot be read.\n", 400)) from None
    if any("\0" in name or "\0" in value for name, value in pairs):
        raise _Ended(_plain("The request cannot be read.\n", 400))
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _cookies(header: str) -> Mapping[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(header).items()}
    except CookieError:
        return {}


def _check_role(route: Route, who: Who) -> None:
    if not who.may(route.scope):
        raise Denied(route.scope)
    if route.watches and not who.watches:
        raise Denied(route.scope)


def _role_words(denied: Denied, who: Who) -> str:
    if who.may(denied.scope):
        return (
            "This page shows figures over all tenants. It is for people of the user file, and for keys with "
            "the scope operate."
        )
    return (
        f"You are signed in as {who.role}. This takes the scope {denied.scope}, which "
        f"{roles_with(denied.scope)} have. Nothing was done."
    )


def _check_origin(request: _Request) -> None:
    """Raise `Forged` for a form that another site sends."""
    if request.header("sec-fetch-site") not in ("", "same-origin", "none"):
        raise Forged
    origin = request.header("origin")
    if origin and urlsplit(origin).netloc != request.header("host"):
        raise Forged


def _problem(error: SendonceError) -> tuple[int, str, str]:
    match error:
        case InvalidInput():
            return 422, "That cannot be", str(error)
        case NotFound():
            return 404, "Nothing has that name", str(error)
        case Refused():
            return 409, "It was not done", str(error)
        case _:
            return 500, "It was not done", str(error)


def _inside(path: str) -> str:
    """A path of the console; "" for any other."""
    plain = path.isprintable() and "\\" not in path and len(path) <= 2_000
    return path if plain and is_ours(path.partition("?")[0]) else ""


def _door_of(onward: str) -> str:
    return link("sign-in", next=onward if onward != ROOT else "")


def _see_other(location: str) -> Response:
    return RedirectResponse(location, 303)


def _plain(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status, headers, "text/plain")


def _static(path: str) -> Response:
    for each in statics().values():
        if each.path == path:
            headers = {"Cache-Control": "public, max-age=31536000, immutable"}
            return Response(each.content, 200, headers, each.media_type)
    return _plain("There is no such file.\n", 404)
