"""The API put together: routes, how errors look, the door in front, and the document that describes it all.

`/healthz` says that the process answers, `/readyz` that it can work. Everything else needs a key, but a link
by which a customer unsubscribes, and what providers call back with, which they sign.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import compile_path
from starlette.types import ASGIApp

from sendonce import telemetry
from sendonce.api import (
    accounts,
    deliveries,
    desk,
    feed,
    forecast,
    imports,
    keys,
    passes,
    preferences,
    provider_events,
    reminders,
    seals,
    templates,
)
from sendonce.api.door import Bounds, Door
from sendonce.api.events import DOCUMENT, ProviderCalls
from sendonce.api.idempotency import HEADER
from sendonce.api.problems import MEDIA_TYPE, TITLES, Problem, problem_of, problem_of_http, problem_of_values
from sendonce.api.program import CALLER, Caller, Program
from sendonce.api.unsubscribe import Unsubscribe
from sendonce.console.application import console_of, is_ours
from sendonce.core.access import Scope
from sendonce.core.errors import SendonceError, StoreError
from sendonce.runtime.health import METRICS_TYPE
from sendonce.telemetry import fault, tell

DESCRIPTION: Final = """Due reminders by email and SMS, each delivered once.

Every request needs a key in `Authorization: Bearer`, but those of providers, who sign. What goes wrong is a
problem document (RFC 9457). A `POST` may carry an `Idempotency-Key`: asked again, it answers the same and
does nothing twice. Instants are ISO 8601 in UTC with microseconds, or null; durations end in `_s` and are in
seconds."""

RESOURCES: Final = tuple(
    each.resource
    for each in (
        reminders,
        imports,
        deliveries,
        feed,
        passes,
        accounts,
        forecast,
        desk,
        provider_events,
        preferences,
        templates,
        seals,
        keys,
    )
)
"""The resources, in the order of the document."""


def application(
    program: Program, *, stopping: Callable[[], bool] = lambda: False, bounds: Bounds | None = None
) -> ASGIApp:
    """The whole API as an ASGI application. `stopping`: whether this process takes its leave."""
    made = FastAPI(
        title="sendonce",
        version=version("sendonce"),
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    made.state.program = program
    made.state.stopping = stopping
    made.add_exception_handler(HTTPException, _told_http)
    made.add_exception_handler(RequestValidationError, _told_values)
    made.add_exception_handler(SendonceError, _told)
    made.add_exception_handler(Exception, _told_bug)
    for resource in RESOURCES:
        made.include_router(resource.router, prefix="/v1")

    @made.api_route("/healthz", methods=["GET", "HEAD"], include_in_schema=False)
    async def healthz() -> Response:
        return PlainTextResponse("alive\n", headers={"Cache-Control": "no-store"})

    ready = _Readiness(program, stopping)

    @made.api_route("/readyz", methods=["GET", "HEAD"], include_in_schema=False)
    def readyz() -> Response:
        lacks = ready.lacks()
        text = f"not ready: {lacks}\n" if lacks else "ready\n"
        return PlainTextResponse(text, 503 if lacks else 200, {"Cache-Control": "no-store"})

    @made.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        """Whoever scrapes has a key; what it shows is the whole installation's."""
        Caller(program, request.scope[CALLER]).needs(Scope.OPERATE)
        shown = program.app.exposition
        if shown is None:
            raise Problem("not_found", "metrics need the extra: pip install 'sendonce[metrics]'")
        with suppress(StoreError):  # what this process counted is shown in any case
            shown.look()
        return Response(shown.text(), media_type=METRICS_TYPE, headers={"Cache-Control": "no-store"})

    @made.get("/v1/openapi.json", include_in_schema=False)
    def openapi() -> Response:
        return JSONResponse(description_of(made))

    behind = Unsubscribe(Door(made, lambda: program.app.store, bounds=bounds), program)
    api = _Guarded(ProviderCalls(behind, program))
    return _WithConsole(api, console_of(program.app.settings, program.app, program.scheduler))


READY_S: Final = 1.0
NOT_ONCE: Final = frozenset({"add_key", "rotate_key", "preview_template"})
"""What takes no Idempotency-Key: a secret is shown once and kept nowhere; a preview does nothing."""


class _WithConsole:
    """The console under its own path, where people sign in; everything else is the API."""

    def __init__(self, api: ASGIApp, console: ASGIApp) -> None:
        self._api = api
        self._console = console

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        ours = scope["type"] == "http" and is_ours(scope["path"])
        await (self._console if ours else self._api)(scope, receive, send)


class _Guarded:
    """What nobody foresaw is told, and answered as a bug: never a trace, never what it choked on.

    The framework answers what comes out of a resource (`_told_bug`) and raises it again, so that it is told
    here too; where all of an answer went out, nothing else follows.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begun = ended = False

        async def sending(message: Any) -> None:
            nonlocal begun, ended
            begun = begun or message["type"] == "http.response.start"
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self._inner(scope, receive, sending)
        except Exception as error:
            tell(telemetry.STAGE_FAILED, stage="api", **fault(error))
            if ended:
                return
            if begun or scope["type"] != "http":
                raise
            await _bug().response()(scope, receive, send)


def description_of(made: FastAPI) -> dict[str, Any]:
    """The OpenAPI document."""
    if made.openapi_schema is None:
        document = get_openapi(
            title=made.title,
            version=made.version,
            description=made.description,
            routes=made.routes,
            tags=[resource.tag for resource in RESOURCES],
        )
        document["paths"].update(deepcopy(dict(DOCUMENT)))
        _finish(document)
        made.openapi_schema = document
    return made.openapi_schema


def _finish(document: dict[str, Any]) -> None:
    """What holds for every operation: the key, and how problems look."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    for model in reminders.DOCUMENTED:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "so_..."}}
    document["security"] = [{"key": []}]
    problem = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for operations in document.get("paths", {}).values():
        for method, operation in operations.items():
            responses: dict[str, Any] = operation.setdefault("responses", {})
            if "HTTPValidationError" in str(responses.get("422")):
                del responses["422"]
            keyed = operation.get("security") != []
            if method == "post" and keyed and operation["operationId"] not in NOT_ONCE:
                operation.setdefault("parameters", []).append(_KEY_HEADER)
            responses["default"] = {"description": "A problem, see its code.", **problem}


_KEY_HEADER: Final[Mapping[str, Any]] = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 200},
    "description": "A text of yours for this request: sent again with it, it is done once.",
    "example": '"8e03978e-40d5-43dd-bc93-6894a57f9324"',
}

_PROBLEM: Final[Mapping[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The value, the rule, the fix."},
        "code": {"type": "string", "enum": sorted(TITLES)},
        "field": {"type": "string", "description": "What is wrong, where one value is."},
        "reason": {"type": "string", "description": "A finer code, where there is one."},
        "errors": {"type": "array", "items": {"type": "object"}},
    },
}


class _Readiness:
    """What keeps this process from its work; since anybody may ask, the store is asked once a second."""

    def __init__(self, program: Program, stopping: Callable[[], bool]) -> None:
        self._program = program
        self._stopping = stopping
        self._asked_at = -math.inf
        self._store = ""

    def lacks(self) -> str:
        if self._stopping():
            return "stopping"
        if time.monotonic() - self._asked_at >= READY_S:
            try:
                self._program.app.store.read(lambda tx: tx.now)
                self._store = ""
            except StoreError:
                self._store = "store"
            self._asked_at = time.monotonic()
        return self._store


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, SendonceError)
    if isinstance(error, StoreError):
        tell(telemetry.STORE_UNAVAILABLE, stage="api", **fault(error))
    return problem_of(error).response()


async def _told_bug(_: Request, error: Exception) -> Response:
    """Answered here and told by `_Guarded`, which gets it too."""
    return _bug().response()


def _bug() -> Problem:
    return Problem("bug", "it was told to whoever runs this service")


async def _told_values(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_of_values(error).response()


async def _told_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = problem_of_http(error)
    if problem.code == "method_not_allowed":
        problem.headers = {"Allow": ", ".join(sorted(_methods_at(request.scope["path"])))}
    return problem.response()


def _methods_at(path: str) -> set[str]:
    """All that a path has: each is a route of its own, and the framework names those of the first only."""
    found = {method for pattern, methods in _methods() if pattern.match(path) for method in methods}
    return found or {"GET", "HEAD"}  # the probes


@cache
def _methods() -> list[tuple[re.Pattern[str], set[str]]]:
    return [
        (compile_path(f"/v1{route.path}")[0], route.methods or set())
        for resource in RESOURCES
        for route in resource.router.routes
        if isinstance(route, APIRoute)
    ]
