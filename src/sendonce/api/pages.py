"""Pages: how many at once, and a cursor that belongs to its query.

A cursor says where the next page begins. It is signed together with whose it is and what was asked for, so it
leads nowhere in another query and cannot be made up; how many a page has may change from one to the next.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query

from sendonce.api.problems import Problem
from sendonce.api.program import Caller

T = TypeVar("T")

LIMIT: Final = 100
LIMIT_MAX: Final = 500
MAC_BYTES: Final = 16
CURSOR_LENGTH_MAX: Final = 500

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many at most.")]
Cursor = Annotated[
    str, Query(max_length=CURSOR_LENGTH_MAX, description="`next` of the page before; else the first page.")
]


class Pages:
    """The pages of one query of one caller."""

    def __init__(self, caller: Caller, what: str, query: Mapping[str, object]) -> None:
        self._secret = caller.store.secret
        self._query = json.dumps([what, caller.tenant, dict(query)], sort_keys=True).encode()

    def after(self, cursor: str) -> tuple[int | str, ...] | None:
        """Where the page begins; None for the first. Raises `Problem` for a cursor of another query."""
        if not cursor:
            return None
        try:
            raw = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raise _foreign() from None
        if not hmac.compare_digest(raw[:MAC_BYTES], self._mac(raw[MAC_BYTES:])):
            raise _foreign()
        return tuple(json.loads(raw[MAC_BYTES:]))

    def next(self, place: Sequence[int | str] | None) -> str | None:
        """The cursor of the next page; None where there is none."""
        if place is None:
            return None
        text = json.dumps(list(place), separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mac(text) + text).decode().rstrip("=")

    def cut(
        self, items: Iterable[T], place: Callable[[T], tuple[int | str, ...]], *, limit: int, cursor: str
    ) -> tuple[list[T], str | None]:
        """A page of what is held in memory, in the order of `place`, and the cursor of the next. `place` is
        different for each, so that a page goes on where the last one ended, whatever came or went."""
        after = self.after(cursor)
        chosen = sorted((each for each in items if after is None or place(each) > after), key=place)
        page = chosen[:limit]
        return page, self.next(place(page[-1]) if len(chosen) > limit else None)

    def _mac(self, place: bytes) -> bytes:
        return hmac.digest(self._secret, b"cursor\0" + self._query + b"\0" + place, "sha256")[:MAC_BYTES]


def _foreign() -> Problem:
    return Problem("bad_cursor", "send `next` of the page before, with the same filters, or no cursor")
