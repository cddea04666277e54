"""What a database server needs to stay fast: its tables tidied up, changed rows on their page, nothing that
holds both back.

The figures are the server's own. A store in a file has none: it tidies up with each commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sendonce.ports.store import Tx

LOOK_FROM: Final = 10_000
"""Rows from which a share says something."""
HOT_LEAST: Final = 0.9
"""Of the changes of a delivery's row that no index should hear of; the bench sees 98 to 99.6 %."""
DEAD_MOST: Final = 1.0
"""Dead rows for each living one. The server tidies up long before (`autovacuum` of each table)."""
HOLDS_BACK_US: Final = 5 * 60_000_000
"""Our own transactions end within seconds, and a report within five minutes."""
ROW_CHANGES_IN_PLACE: Final = "delivery"


@dataclass(frozen=True, slots=True)
class Table:
    """One table, since the server's statistics were reset. `tidied_at`, `analysed_at`: calendar; 0: never."""

    name: str
    rows: int
    dead: int
    changed: int
    hot: int
    bytes: int
    tidied_at: int
    analysed_at: int

    @property
    def hot_share(self) -> float | None:
        """Of its changes, how many no index heard of; None where there were none."""
        return self.hot / self.changed if self.changed else None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps the server from tidying up: process, program, and since when (calendar)."""

    pid: int
    program: str
    since: int


@dataclass(frozen=True, slots=True)
class Care:
    """`tables`: the largest first. `findings`: what is not as it should be, each with what to do."""

    tables: tuple[Table, ...]
    findings: tuple[str, ...]


def care(tx: Tx) -> Care:
    tables = tuple(
        Table(
            name=str(row["name"]),
            rows=int(row["alive"]),
            dead=int(row["dead"]),
            changed=int(row["changed"]),
            hot=int(row["hot"]),
            bytes=int(row["bytes"]),
            tidied_at=int(row["tidied_at"]),
            analysed_at=int(row["analysed_at"]),
        )
        for row in tx.rows("view_care_tables")
    )
    holders = [
        Holder(int(row["pid"]), str(row["program"]), int(row["since"]))
        for row in tx.rows("view_care_holders")
    ]
    return Care(tables, tuple(findings(tables, holders, now=tx.now)))


def findings(tables: Sequence[Table], holders: Sequence[Holder], *, now: int) -> list[str]:
    """In words, the cause before what it causes."""
    held_back = [
        f"process {holder.pid} ({holder.program or 'no name'}) has had a transaction open for "
        f"{(now - holder.since) // 60_000_000} min: until it ends nothing that was changed since can be "
        f"tidied up; end it with SELECT pg_terminate_backend({holder.pid}) if nobody needs it"
        for holder in holders
        if now - holder.since >= HOLDS_BACK_US
    ]
    full = [
        f"{table.name} has {table.dead:,} dead rows beside {table.rows:,} living ones: see that autovacuum "
        f"is on and gets its turn, and run VACUUM ANALYZE {table.name} now"
        for table in tables
        if table.dead >= LOOK_FROM and table.dead > DEAD_MOST * table.rows
    ]
    moved = [
        f"only {share:.0%} of the changes of {table.name} stayed on their page (90 % or more are usual): its "
        f"pages have no room; see that its fillfactor is as sendonce set it, and run VACUUM {table.name}"
        for table in tables
        if table.name == ROW_CHANGES_IN_PLACE
        and table.changed >= LOOK_FROM
        and (share := table.hot_share) is not None
        and share < HOT_LEAST
    ]
    return held_back + full + moved
