"""What is said when something is not done: problem details (RFC 9457), the same shape for everything.

    {"type": "urn:sendonce:problem:rate_limited", "title": "Too many requests", "status": 429,
     "detail": "key abc... may ask 100 times a second: wait 2 s", "code": "rate_limited"}

`code` is a stable word for programs, `detail` a sentence for people: the value, the rule, the fix. `field`
names what is wrong, and `errors` each of several. A bug of ours says that it is one, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sendonce.core.errors import ConfigError, InvalidInput, NotFound, Refused, SendonceError, StoreError

MEDIA_TYPE: Final = "application/problem+json"
STORE_AGAIN_S: Final = 2
ERRORS_MAX: Final = 100

TITLES: Final[Mapping[str, tuple[int, str]]] = {
    "bad_request": (400, "The request cannot be read"),
    "bad_json": (400, "The body is no JSON that can be read"),
    "bad_cursor": (400, "The cursor is of another query"),
    "unauthorized": (401, "A valid key is needed"),
    "bad_signature": (403, "The request is not signed as it must be"),
    "forbidden": (403, "The key has not this scope"),
    "not_found": (404, "Nothing has that name"),
    "method_not_allowed": (405, "The resource has not this method"),
    "request_timeout": (408, "The body did not come in time"),
    "refused": (409, "The life cycle says no"),
    "in_flight": (409, "The same request is being answered"),
    "events_gone": (410, "What comes next is not all kept any more"),
    "changed": (412, "It was changed meanwhile"),
    "too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body must be JSON"),
    "invalid_input": (422, "A value breaks a rule"),
    "key_reused": (422, "The Idempotency-Key belongs to another request"),
    "rate_limited": (429, "Too many requests"),
    "bug": (500, "A bug in sendonce"),
    "config": (500, "The configuration of this service is not complete"),
    "store_unavailable": (503, "The store is away"),
    "busy": (503, "Too many requests at once"),
    "stopping": (503, "This process is stopping"),
}
"""Every problem by its code: its status and title."""


class Problem(HTTPException):
    """Something is not done. `code` is one of `TITLES`; `more` are further members."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        retry_after_s: int = 0,
        **more: object,
    ) -> None:
        status, self.title = TITLES[code]
        own = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
        super().__init__(status, detail, {**own, **(headers or {})})
        self.code = code
        self.more = {name: value for name, value in more.items() if value}

    def document(self) -> dict[str, object]:
        return {
            "type": f"urn:sendonce:problem:{self.code}",
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            "code": self.code,
            **self.more,
        }

    def response(self) -> Response:
        body = json.dumps(self.document(), ensure_ascii=False).encode("utf-8", "replace")
        return Response(body, self.status_code, self.headers, MEDIA_TYPE)


def problem_of(error: SendonceError) -> Problem:
    """What to say of an error that was raised on purpose."""
    match error:
        case InvalidInput(code="bad_cursor"):
            return Problem("bad_cursor", str(error), field=error.field)
        case InvalidInput():
            return Problem("invalid_input", str(error), field=error.field, reason=_reason(error))
        case NotFound():
            return Problem("not_found", str(error))
        case Refused(code="changed" | "events_gone"):
            return Problem(error.code, str(error))
        case Refused():
            return Problem("refused", str(error), reason=_reason(error))
        case StoreError():
            # Where it lies is for whoever runs it, not for whoever asks.
            said = "nothing was half done: ask again, with the same Idempotency-Key if there was one"
            return Problem("store_unavailable", said, retry_after_s=STORE_AGAIN_S)
        case ConfigError():
            return Problem("config", str(error))
        case _:
            return Problem("bug")


def problem_of_values(error: RequestValidationError) -> Problem:
    """What to say of values that do not fit the types of a request."""
    found = [_value_error(each) for each in error.errors()[:ERRORS_MAX]]
    if len(found) == 1:
        return Problem("invalid_input", found[0]["detail"], field=found[0]["field"])
    detail = "; ".join(f"{each['field']}: {each['detail']}" for each in found[:3])
    return Problem("invalid_input", detail, errors=found)


def _value_error(error: Mapping[str, Any]) -> dict[str, str]:
    place: Sequence[object] = error.get("loc", ())
    field = ".".join(str(part) for part in place[1:]) or str(place[0] if place else "body")
    return {"field": field[:200], "detail": str(error.get("msg", "is not valid"))[:300]}


def _reason(error: SendonceError) -> str:
    """A finer code than that of the class, where there is one."""
    return "" if error.code == type(error).code else error.code


def problem_of_http(error: HTTPException) -> Problem:
    """What to say of what the framework refused by itself."""
    if isinstance(error, Problem):
        return error
    code = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(
        error.status_code, "bad_request" if error.status_code < 500 else "bug"
    )
    said = {
        "not_found": "there is no such resource: /v1/openapi.json lists them",
        "method_not_allowed": "see Allow for those that it has",
    }
    return Problem(code, said.get(code, ""), headers=error.headers)
