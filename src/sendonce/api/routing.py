"""Resources: routes that read bodies strictly, and say in the document which scope they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from sendonce.api.program import BODY
from sendonce.api.reading import document_of
from sendonce.core.access import Scope

Handler = TypeVar("Handler", bound=Callable[..., Any])


class StrictRequest(Request):
    """A request whose body is read by our own rules."""

    async def json(self) -> Any:
        return document_of(self.scope[BODY])


class Route(APIRoute):
    """Hands `StrictRequest` to its handler."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await inner(StrictRequest(request.scope, request.receive))

        return handler


class Resource:
    """One noun of the API: its routes under one heading of the document."""

    def __init__(self, name: str, meaning: str) -> None:
        self.tag = {"name": name, "description": meaning}
        self.router = APIRouter(tags=[name], route_class=Route)

    def get(self, path: str, scope: Scope, **more: Any) -> Callable[[Handler], Handler]:
        return self._route("GET", path, scope, **more)

    def post(
        self, path: str, scope: Scope, *, status: int = 200, **more: Any
    ) -> Callable[[Handler], Handler]:
        return self._route("POST", path, scope, status=status, **more)

    def patch(self, path: str, scope: Scope, **more: Any) -> Callable[[Handler], Handler]:
        return self._route("PATCH", path, scope, **more)

    def delete(self, path: str, scope: Scope, **more: Any) -> Callable[[Handler], Handler]:
        return self._route("DELETE", path, scope, **more)

    def _route(
        self,
        method: str,
        path: str,
        scope: Scope,
        *,
        status: int = 200,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.router.add_api_route(
                path,
                handler,
                methods=[method],
                status_code=status,
                operation_id=handler.__name__,
                summary=(handler.__doc__ or "").strip().split("\n")[0],
                openapi_extra={"x-scope": scope.value, **(extra or {})},
                **more,
            )
            return handler

        return register
