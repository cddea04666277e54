"""Deliveries by filters, a page at a time, by keys and never by counting over rows that came before.

What is named first of reminder, customer and group leads through its own index, newest first. A span of due
times leads in the order of the due times. Everything else walks the ids downwards, a bounded piece at a
time: where little fits, a page may be short, or empty, and still name the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sendonce.core.errors import InvalidInput
from sendonce.core.pacing import SECOND
from sendonce.pipeline.record import delivery_of
from sendonce.ports.store import Delivery, Tx

LIMIT_MAX: Final = 500
SPAN: Final = 20_000
"""Ids that are looked at in one statement where no index leads."""
SPANS_MAX: Final = 5
DUE_SPAN_MAX_US: Final = 32 * 86_400 * SECOND
_NEVER: Final = 2**62

Place = tuple[int, ...]
"""Where the next page begins: (id,), or (due, id) in the order of the due times."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which deliveries of a tenant. "" and 0 stand for any; due from `since` on and before `until`."""

    tenant: str
    reminder: str = ""
    customer: str = ""
    group: str = ""
    channel: str = ""
    account: str = ""
    category: str = ""
    state: str = ""
    since: int = 0
    until: int = 0

    @property
    def by_due(self) -> bool:
        named = self.reminder or self.customer or self.group
        return bool(self.since and self.until and not named)


@dataclass(frozen=True, slots=True)
class Page:
    """`after` asks for the next page; None: this is the last."""

    found: tuple[Delivery, ...]
    after: Place | None


def deliveries(tx: Tx, chosen: Chosen, *, limit: int, after: Place | None = None) -> Page:
    """A page. `limit` is cut to `LIMIT_MAX`, and at least 1. Raises `InvalidInput` for too long a span."""
    limit = max(1, min(limit, LIMIT_MAX))
    if chosen.by_due:
        return _by_due(tx, chosen, limit, after or (-1, 0))
    before = after[0] if after else _NEVER
    for name in ("reminder", "customer", "group"):
        if getattr(chosen, name):
            found = _rows(tx, f"view_list_{name}", chosen, limit + 1, before=before)
            return _page(found, limit)
    return _by_spans(tx, chosen, limit, before)


def _by_due(tx: Tx, chosen: Chosen, limit: int, after: Place) -> Page:
    if not 0 < chosen.until - chosen.since <= DUE_SPAN_MAX_US:
        raise InvalidInput(
            "a span of due times must end after it begins, and be at most 32 days long: ask for less at once",
            field="due_to",
        )
    found = _rows(tx, "view_list_due", chosen, limit + 1, after_due=after[0], after_id=after[1])
    last = found[limit - 1] if len(found) > limit else None
    return Page(tuple(found[:limit]), None if last is None else (last.course.due_at, last.id))


def _by_spans(tx: Tx, chosen: Chosen, limit: int, before: int) -> Page:
    newest = int(tx.rows("view_list_newest")[0]["id"])
    before = min(before, newest + 1)
    found: list[Delivery] = []
    for _ in range(SPANS_MAX):
        floor = max(0, before - SPAN)
        found += _rows(tx, "view_list_span", chosen, limit + 1 - len(found), before=before, floor=floor)
        if len(found) > limit:
            return _page(found, limit)
        before = floor
        if not before:
            return Page(tuple(found), None)
    return Page(tuple(found), (before,))


def _page(found: list[Delivery], limit: int) -> Page:
    last = found[limit - 1] if len(found) > limit else None
    return Page(tuple(found[:limit]), None if last is None else (last.id,))


def _rows(tx: Tx, view: str, chosen: Chosen, limit: int, **place: int) -> list[Delivery]:
    values: Mapping[str, int | str] = {
        "tenant": chosen.tenant,
        "reminder": chosen.reminder,
        "customer": chosen.customer,
        "group": chosen.group,
        "channel": chosen.channel,
        "account": chosen.account,
        "category": chosen.category,
        "state": chosen.state,
        "since": chosen.since,
        "until": chosen.until or _NEVER,
        "limit": limit,
        **place,
    }
    return [delivery_of(row) for row in tx.rows(view, **values)]
