"""`Idempotency-Key`: a request that is sent again is answered again, and done once.

As in draft-ietf-httpapi-idempotency-key-header: the client makes up a key for each request and sends it
again with every repetition. The first to come is answered and its answer kept; a repetition gets the same
one, marked with `Idempotency-Replayed: true`. One that comes while the first is being answered is told so
(409), and one that has another method, path or body is refused (422), since it is another request under a
name that is taken. Only what was done is kept: after an error the same request is tried anew.

A kept answer outlives what it is about: it is forgotten a month after the last reminder that it took in can
still go out. What was begun by a process that died is taken over by the next who asks the same; everything
here may be done twice, so this is about answers and not about sends.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from sendonce.api.problems import Problem
from sendonce.api.program import BODY, Caller
from sendonce.core.pacing import SECOND
from sendonce.ports.store import Answered, Tx

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
LENGTH_MAX: Final = 200
KEEP_US: Final = 31 * 86_400 * SECOND
STALE_US: Final = 120 * SECOND
"""Nobody answers for so long: whoever began has died."""
FORGET_PAGE: Final = 20
NOT_KEPT: Final = "as it was answered before; the sentence is not kept, since it may quote what was given"

_FORM: Final = re.compile(r'"([!#-\[\]-~ ]+)"|([!#-~]+)')


@dataclass(frozen=True, slots=True)
class Done:
    """An answer.

    about_until  until when what it is about can still happen; it is kept longer than that
    kept         what is kept of it and answered again, b"" for all: without what somebody wrote, such as an
                 address that is none, since it is kept for long and a person may have to be forgotten
    """

    body: bytes
    status: int = 200
    about_until: int = 0
    kept: bytes = b""


def said(model: BaseModel, *, status: int = 200) -> Done:
    return Done(model.model_dump_json().encode(), status)


def once(request: Request, caller: Caller, work: Callable[[], Done]) -> Response:
    """Do the work, or answer as it was answered before, where the request carries a key.

    Raises `Problem`, and what the work raises.
    """
    name = _name(request.headers.getlist(HEADER))
    if not name:
        return response_of(work())
    fingerprint = _fingerprint(request)
    begun = _Begun(caller, name, fingerprint)
    earlier = begun.begin()
    if earlier is not None:
        return _again(earlier, fingerprint)
    try:
        done = work()
    except BaseException:
        begun.drop()
        raise
    begun.finish(done)
    return response_of(done)


class _Begun:
    """One key of one tenant, while it is being answered."""

    def __init__(self, caller: Caller, name: str, fingerprint: str) -> None:
        self._caller = caller
        self._name = name
        self._fingerprint = fingerprint
        self._at = 0

    def begin(self) -> Answered | None:
        """What there is already, or None: now it is ours."""
        known = self._caller.read(self._get)
        if known is not None and known.status:
            return known
        self._at, known = self._caller.write(self._begin)
        return known

    def finish(self, done: Done) -> None:
        answer = base64.b85encode(zlib.compress(done.kept or done.body, 6)).decode()
        keep_until = max(self._at, done.about_until) + KEEP_US

        def unit(tx: Tx) -> None:
            tx.answers.finish(
                self._caller.tenant,
                self._name,
                self._at,
                status=done.status,
                answer=answer,
                keep_until=keep_until,
            )
            tx.answers.forget(tx.now, FORGET_PAGE)

        self._caller.write(unit)

    def drop(self) -> None:
        """Without waiting: where the store is away, it is taken over later."""
        self._caller.store.write(lambda tx: tx.answers.drop(self._caller.tenant, self._name, self._at))

    def _get(self, tx: Tx) -> Answered | None:
        return tx.answers.get(self._caller.tenant, self._name)

    def _begin(self, tx: Tx) -> tuple[int, Answered | None]:
        taken = tx.answers.begin(
            self._caller.tenant,
            self._name,
            self._fingerprint,
            at=tx.now,
            stale=tx.now - STALE_US,
            keep_until=tx.now + KEEP_US,
        )
        return tx.now, None if taken else self._get(tx)


def _again(earlier: Answered, fingerprint: str) -> Response:
    if earlier.fingerprint != fingerprint:
        raise Problem(
            "key_reused",
            f"this {HEADER} came before with another method, path or body: take a new one for a new request",
        )
    if not earlier.status:
        raise Problem("in_flight", "ask again in a moment", retry_after_s=1)
    body = zlib.decompress(base64.b85decode(earlier.answer))
    return response_of(Done(body, earlier.status), {REPLAYED: "true"})


def response_of(done: Done, headers: dict[str, str] | None = None) -> Response:
    """An answer that nobody need be able to ask for again."""
    return Response(done.body, done.status, headers, "application/json")


def _fingerprint(request: Request) -> str:
    head = f"{request.method}\0{request.url.path}\0{request.url.query}\0"
    body: bytes = request.scope[BODY]
    return hashlib.sha256(head.encode() + body).hexdigest()


def _name(values: list[str]) -> str:
    """The key, written as the draft says, in quotation marks, or without; "" where there is none."""
    if not values:
        return ""
    form = _FORM.fullmatch(values[0].strip()) if len(values) == 1 else None
    name = (form[1] or form[2]) if form else ""
    if not 0 < len(name) <= LENGTH_MAX:
        raise Problem(
            "bad_request",
            f'{HEADER} must be one text of 1 to {LENGTH_MAX} plain characters, such as "8e03978e-40d5"',
        )
    return name
