"""What applications handed in and nobody could take in: seen, tried again, or dropped.

Trying again costs nothing: what is wrong still is parked again, with what is wrong now. To drop one is for
ever, since nothing else holds it; so it takes a reason, which the audit keeps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sendonce.core.errors import NotFound
from sendonce.ports.store import Row, Store, Tx
from sendonce.withdrawal import check_reason

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Parked:
    """One that waits for somebody. `asked`: as it was given, which may be anything that is JSON."""

    id: int
    tenant: str
    asked_at: int
    asked_by: str
    field: str
    why: str
    asked: object

    @property
    def reminder(self) -> str:
        """Its own id; "" where it has none."""
        names = ("reminder", "reminder_id", "id")
        given = self.asked if isinstance(self.asked, dict) else {}
        return next((str(given[name])[:200] for name in names if name in given), "")


def parked(store: Store) -> Iterator[Parked]:
    """All of them, in the order in which they were handed in."""
    after = 0
    while page := store.read(partial(_page, after)):
        for row in page:
            after = int(row["id"])
            yield Parked(
                after,
                str(row["tenant"]),
                int(row["asked_at"]),
                str(row["asked_by"]),
                str(row["field"]),
                str(row["why"]),
                _read(str(row["body"])),
            )


def _page(after: int, tx: Tx) -> list[Row]:
    return tx.rows("view_intake_parked", after=after, limit=PAGE)


def retry(store: Store, ids: Sequence[int], *, actor: str) -> int:
    """Let these wait again; how many. Raises `NotFound` where one is not parked; then none does."""

    def unit(tx: Tx) -> int:
        done = tx.intake.retry(ids)
        _check_all(done, ids)
        tx.runs.audit(actor, "outbox_retry", "", "", {"count": done})
        return done

    return store.write(unit).result()


def drop(store: Store, ids: Sequence[int], *, reason: str, actor: str) -> int:
    """Forget these for ever; how many. Raises `NotFound` where one is not parked; then none is dropped."""
    why = check_reason(reason)
    known = {one.id: one for one in parked(store) if one.id in set(ids)}

    def unit(tx: Tx) -> int:
        done = tx.intake.drop(ids)
        _check_all(done, ids)
        for id_ in ids:
            tx.runs.audit(actor, "outbox_drop", known[id_].reminder, why, {"intake_id": id_})
        return done

    return store.write(unit).result()


def _check_all(done: int, ids: Sequence[int]) -> None:
    if done != len(ids):
        raise NotFound(
            f"{len(ids) - done} of {', '.join(map(str, ids))} are not parked: see `sendonce outbox list`; "
            "nothing was changed"
        )


def _read(body: str) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # what Python does not read, PostgreSQL may still hold
        return body
