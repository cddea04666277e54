"""`/imports`: which files came in, and what became of their rows. `/import-undos`: one taken back."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Final

from fastapi import Path, Request, Response
from pydantic import ConfigDict, Field

from sendonce.api.idempotency import Done, once, said
from sendonce.api.pages import LIMIT, Cursor, Limit, Pages
from sendonce.api.program import MayCancel, MayRead
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, Instant, Reason, Said, instant
from sendonce.core.access import Scope
from sendonce.core.errors import NotFound
from sendonce.pipeline.importer import Undone, undo
from sendonce.ports.store import Row

RUN_S: Final = 20.0
"""After so long an answer is given, and the same request again goes on."""
NUMBER_MAX: Final = 2**53

resource = Resource("imports", "Imports of files: listed, and taken back.")

Number = Annotated[int, Path(ge=1, le=NUMBER_MAX, description="Its number.", examples=[1])]


class ImportSaid(Said):
    """An import. `finished_at` null: it runs, or was stopped and may be run again."""

    number: int
    file: str
    source: str = Field(description="The named list that the file is, or empty.")
    actor: str
    counts: dict[str, int] = Field(description="Rows, by what became of them.")
    started_at: Instant
    finished_at: Instant
    undone_at: Instant


class ImportsSaid(Said):
    """The newest first. `next` asks for the page after it."""

    imports: list[ImportSaid]
    next: str | None


class UndoAsked(Asked):
    """Which import is taken back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"number": 1, "reason": "last month's list"}]})

    number: int = Field(ge=1, le=NUMBER_MAX)
    reason: Reason


class KeptSaid(Said):
    reminder: str
    why: str


class UndoneSaid(Said):
    """What taking it back did, as far as it had not been sent."""

    number: int
    complete: bool = Field(description="False: more is left, and the same request, under a new key, goes on.")
    counts: dict[str, int] = Field(description="Deliveries that it made, by the answer to each.")
    restored: int = Field(description="Reminders that say again what they said before.")
    kept: list[KeptSaid] = Field(description="Reminders that stay as they are, the first of them.")
    more_kept: int


@resource.get("/imports", Scope.READ)
def list_imports(caller: MayRead, limit: Limit = LIMIT, cursor: Cursor = "") -> ImportsSaid:
    """Imports, newest first."""
    pages = Pages(caller, "imports", {})
    after = pages.after(cursor)
    before = int(after[0]) if after else 2**62
    rows = caller.read(
        lambda tx: tx.rows("import_list", tenant=caller.tenant, before=before, limit=limit + 1)
    )
    return ImportsSaid(
        imports=[_import(row) for row in rows[:limit]],
        next=pages.next((int(rows[limit - 1]["id"]),) if len(rows) > limit else None),
    )


@resource.get("/imports/{number}", Scope.READ)
def read_import(number: Number, caller: MayRead) -> ImportSaid:
    """One import."""
    for row in caller.read(lambda tx: tx.rows("import_get", id=number)):
        if row["tenant"] == caller.tenant:
            return _import(row)
    raise NotFound(f"no import {number} is known")


@resource.post("/import-undos", Scope.CANCEL, response_model=UndoneSaid)
def undo_import(request: Request, asked: UndoAsked, caller: MayCancel) -> Response:
    """Take back what an import created and revised, as far as it has not been sent."""

    def work() -> Done:
        so_far = Undone(asked.number)
        until = time.monotonic() + RUN_S

        def look(undone: Undone) -> None:
            nonlocal so_far
            so_far = undone
            if time.monotonic() >= until:
                raise _TooLong

        try:
            so_far = undo(
                caller.store,
                asked.number,
                policy=caller.policy,
                actor=caller.actor,
                reason=asked.reason,
                tenant=caller.tenant,
                progress=look,
            )
        except _TooLong:
            return said(_undone(so_far, complete=False))
        return said(_undone(so_far, complete=True))

    return once(request, caller, work)


class _TooLong(Exception):
    """It goes on with the next request."""


def _undone(done: Undone, *, complete: bool) -> UndoneSaid:
    return UndoneSaid(
        number=done.import_id,
        complete=complete,
        counts=dict(done.counts),
        restored=done.restored,
        kept=[KeptSaid(reminder=reminder, why=why) for reminder, why in done.kept],
        more_kept=done.more_kept,
    )


def _import(row: Row) -> ImportSaid:
    counts: dict[str, Any] = json.loads(str(row["counts"]) or "{}")
    return ImportSaid(
        number=int(row["id"]),
        file=str(row["file"]),
        source=str(row["source"]),
        actor=str(row["actor"]),
        counts={name: int(count) for name, count in counts.items()},
        started_at=instant(int(row["started_at"])),
        finished_at=instant(int(row["finished_at"])),
        undone_at=instant(int(row["undone_at"])),
    )
