"""The marks of a store that was copied to another place, and the refusal that each process meets there.

Three rows of `meta`, each with the run of the copy that wrote it:

    moved      in the old store: it is closed, until somebody takes that back; once `done`, for ever
    arriving   in the new store: the copy is not whole yet
    arrived    in the new store, for good: where it comes from

They are looked at when a store is opened. Whoever has it open already is refused by its tables, see `moving`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from sendonce.core.errors import StoreMismatch
from sendonce.core.value import value

MOVED: Final = "moved"
ARRIVING: Final = "arriving"
ARRIVED: Final = "arrived"
MARKS: Final = (MOVED, ARRIVING, ARRIVED)


@value
class Mark:
    """One end of a copy.

    run    of the copy: each try has its own, and one whose run stands nowhere any more changes nothing
    store  which store it is, whatever its place is called: follows from its secret
    place  where the other end is, for people
    done   the copy was whole and verified
    """

    run: str
    store: str
    place: str
    done: bool

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def mark_of(text: str | None) -> Mark | None:
    return Mark(**json.loads(text)) if text else None


def closed_words(place: str) -> str:
    """What the tables of a store say that is closed; true before and after the copy was whole."""
    return f"the store was closed to be copied to {place}: nothing was written"


def refuse_moved(meta: Mapping[str, str], where: str) -> None:
    """Raise `StoreMismatch` for a store that may not be worked on: it has moved, or has not arrived."""
    moved, arriving = mark_of(meta.get(MOVED)), mark_of(meta.get(ARRIVING))
    if moved is not None and moved.done:
        raise StoreMismatch(
            f"{where} has moved to {moved.place} and sends nothing any more: name that one as `url` under "
            "[store] of the configuration",
            code="store_moved",
        )
    if moved is not None:
        raise StoreMismatch(
            f"{where} is closed, since it is being copied to {moved.place}: run `sendonce db copy` again to "
            "bring that to its end, or `sendonce db reopen` to stay here",
            code="store_moved",
        )
    if arriving is not None:
        raise StoreMismatch(
            f"{where} holds a part of {arriving.place}, whose copy was not brought to its end: run "
            "`sendonce db copy` again; nothing works here before all of it is there",
            code="store_arriving",
        )
