"""`/passes`: what an outside cron asks for, and what passes did.

Called late, twice, or by several at once, a pass publishes what is due and changes nothing the second time.
It calls no provider. An answer comes within half a minute, since crons kill long calls: what is left over
then is for the next one, and `complete` says so. It is under 4 KB.

Where a secret for it is configured, the request is signed besides: `Sendonce-Signature: t=SECONDS,v1=HEX`,
the HMAC-SHA256 of `SECONDS.BODY`. It may be five minutes old; that somebody sends it again within those is
harmless.
"""

from __future__ import annotations

import hmac
import re
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Path, Request, Response
from pydantic import ConfigDict, Field

from sendonce.api.idempotency import Done, once, said
from sendonce.api.pages import LIMIT, Cursor, Limit, Pages
from sendonce.api.problems import Problem
from sendonce.api.program import BODY, Caller, MayOperate
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, Instant, Said, instant
from sendonce.core.access import Scope
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.pipeline.overview import PassView, pass_of, passes
from sendonce.pipeline.scheduler import PassReport

RUN_S: Final = 20.0
"""After so long a pass that was asked for over HTTP ends at the next unit."""
TOGETHER_MAX: Final = 4
"""Passes that one process runs at once; each more is told to come again."""
SIGNATURE: Final = "Sendonce-Signature"
SIGNATURE_AGE_S: Final = 300
TRIGGER_LENGTH_MAX: Final = 40

_SIGNATURE: Final = re.compile(r"t=(\d{1,12})((?:,v1=[0-9a-f]{64}){1,4})", re.ASCII)

resource = Resource("passes", "Passes: publishing what is due; the target of an outside cron.")


class PassAsked(Asked):
    """A pass. The body may be left out."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"trigger": "cron"}]})

    trigger: str = Field("http", description="Who asks, for the run history: at most 40 characters.")


class PassSaid(Said):
    """A pass. Its counts are over all tenants."""

    run: int | None = Field(description="Its number; null where none ran.")
    trigger: str
    paused: bool = Field(description="Nothing was published: the scheduler is paused, or the store is held.")
    held: bool
    complete: bool = Field(description="All that was due is published or decided; else the next goes on.")
    counts: dict[str, int] = Field(description="Deliveries, by what became of them.")
    started_at: Instant
    finished_at: Instant


class PassDone(PassSaid):
    """A pass that was asked for."""

    mark: Instant = Field(description="All that was due by it is published or decided.")
    taken_in: int = Field(description="Out of the outbox of applications.")
    parked: int


class PassesSaid(Said):
    """The newest first. `next` asks for the page after it."""

    passes: list[PassSaid]
    next: str | None


_together = threading.BoundedSemaphore(TOGETHER_MAX)


@resource.post("/passes", Scope.OPERATE, response_model=PassDone)
def run_pass(request: Request, caller: MayOperate, asked: PassAsked | None = None) -> Response:
    """Publish what is due, in one bounded pass. Harmless when it comes late, twice, or together."""
    _check_signature(request, caller)
    trigger = asked.trigger if asked is not None else "http"
    if not trigger.isprintable() or not 0 < len(trigger) <= TRIGGER_LENGTH_MAX:
        raise InvalidInput(
            f"trigger {trigger!r:.80} must be one printable word of at most {TRIGGER_LENGTH_MAX} characters",
            field="trigger",
        )
    return once(request, caller, lambda: _run(caller, trigger))


def _run(caller: Caller, trigger: str) -> Done:
    if not _together.acquire(blocking=False):
        raise Problem("busy", f"{TOGETHER_MAX} passes are running: ask again later", retry_after_s=5)
    try:
        late = _after(RUN_S)
        app = caller.program.app
        collected = app.collector().run(stopping=late)
        report = caller.program.scheduler().run(trigger=trigger, stopping=late)
    finally:
        _together.release()
    held = report is None and caller.read(lambda tx: tx.held)
    return said(
        PassDone(
            **_pass(report, trigger),
            held=held,
            mark=instant(report.mark) if report else None,
            taken_in=collected.taken,
            parked=collected.parked,
        )
    )


def _after(span_s: float) -> Callable[[], bool]:
    until = time.monotonic() + span_s
    return lambda: time.monotonic() >= until


def _pass(report: PassReport | None, trigger: str) -> dict[str, Any]:
    if report is None:
        times = {"started_at": None, "finished_at": None}
        return {"run": None, "trigger": trigger, "paused": True, "complete": False, "counts": {}, **times}
    return {
        "run": report.id,
        "trigger": report.trigger,
        "paused": False,
        "complete": report.complete,
        "counts": dict(report.counts),
        "started_at": instant(report.started_at),
        "finished_at": instant(report.finished_at),
    }


@resource.get("/passes", Scope.OPERATE)
def list_passes(caller: MayOperate, limit: Limit = LIMIT, cursor: Cursor = "") -> PassesSaid:
    """The run history, newest first; the timer's passes that found nothing are not kept."""
    pages = Pages(caller, "passes", {})
    after = pages.after(cursor)
    found = caller.read(lambda tx: passes(tx, limit=limit + 1, before=int(after[0]) if after else 0))
    return PassesSaid(
        passes=[_seen(each) for each in found[:limit]],
        next=pages.next((found[limit - 1].id,) if len(found) > limit else None),
    )


@resource.get("/passes/{run}", Scope.OPERATE)
def read_pass(
    run: Annotated[int, Path(ge=1, le=2**53, description="Its number.", examples=[1])], caller: MayOperate
) -> PassSaid:
    """One pass. `finished_at` null: it is running, or was killed."""
    found = caller.read(lambda tx: pass_of(tx, run))
    if found is None:
        raise NotFound(f"no pass {run} is kept")
    return _seen(found)


def _seen(one: PassView) -> PassSaid:
    return PassSaid(
        run=one.id,
        trigger=one.trigger,
        paused=False,
        held=False,
        complete=one.complete,
        counts=dict(one.counts),
        started_at=instant(one.started_at),
        finished_at=instant(one.finished_at),
    )


def _check_signature(request: Request, caller: Caller) -> None:
    secret = caller.program.pass_secret
    if secret is None:
        return
    given = request.headers.getlist(SIGNATURE)
    form = _SIGNATURE.fullmatch(given[0].strip()) if len(given) == 1 else None
    if form is None:
        raise Problem("bad_signature", f"send {SIGNATURE}: t=SECONDS,v1=HEX")
    at = int(form[1])
    body: bytes = request.scope[BODY]
    own = hmac.digest(secret.reveal().encode(), f"{at}.".encode() + body, "sha256").hex()
    fits = [hmac.compare_digest(own, each.removeprefix("v1=")) for each in form[2][1:].split(",")]
    if not any(fits):
        raise Problem("bad_signature", "it is no HMAC-SHA256 of SECONDS.BODY under the configured secret")
    if abs(caller.now // 1_000_000 - at) > SIGNATURE_AGE_S:
        raise Problem("bad_signature", f"it is {SIGNATURE_AGE_S} s old or more, or as far ahead: sign anew")
