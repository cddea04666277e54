"""Whether the server is still the one that the store was written on.

A standby that was promoted goes on with a timeline of its own, and so does a server that was recovered from
an archive. A dump is restored into other tables, most often of another server. So a store remembers the *line
of history* that it was last released on, in `meta`:

    system identifier / timeline / database / table

Each transaction that writes brings along what the server says and what the store remembers, in the round trip
that begins it: a connection that was made before a promotion, or that a pooler moved to another server, is
found out as well. The timeline is asked of the write-ahead log (`pg_walfile_name`): the control file
(`pg_control_checkpoint`) goes on naming the old one until the first checkpoint after the promotion, minutes
later. What cannot change while a server runs is asked once for each start of it.

Where they differ, the store is held (`sendonce.held`) before anything else is written on the new line.
Besides, each connection remembers what it has seen, for what no line of history shows:

    older         a store epoch below the one it knows: an old primary that came back
    lost commits  its own last commit is not there: the server's files were set back
    late          it went on with the server before for longer than the release knew of

What a release has already reconciled is no news: a connection that was idle since before it, and finds only
now that its last commit is missing, holds nothing again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from psycopg import errors

from sendonce import telemetry
from sendonce.core.errors import StoreMismatch
from sendonce.held import (
    FAILOVER,
    LATE,
    LINEAGE,
    LOST_COMMITS,
    OLDER,
    RELEASED,
    RESTORED,
    hold,
    hold_of,
)
from sendonce.ports.store import HOLD, Tx
from sendonce.telemetry import tell

COLUMNS: Final = 3
"""How many `Lineage.columns` are."""

Ask = Callable[[str], tuple[Any, ...]]
"""Runs statements and gives the last row."""


class Lineage:
    """What one writing connection knows of its server's line of history.

    held, epoch   as the transaction that was begun last found them
    committed_at  when it last committed something, by the calendar of the server; `committed_epoch`: in
                  which store epoch
    lost          a commit of its own that was answered is not there
    """

    def __init__(self, schema: str) -> None:
        meta = f'"{schema}".meta'
        self.held = False
        self.epoch = 0
        self.committed_at = 0
        self.committed_epoch = 0
        self.lost = False
        self.columns = (
            "CASE WHEN pg_is_in_recovery() THEN '' "
            "ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END, "
            "pg_postmaster_start_time()::text, "
            f"ARRAY(SELECT name || '=' || value FROM {meta} WHERE name IN ('{LINEAGE}', '{HOLD}', 'epoch'))"
        )
        self._place = (
            "SELECT (SELECT system_identifier::text FROM pg_control_system()), "
            "(SELECT oid::text FROM pg_database WHERE datname = current_database()), "
            f"'{meta}'::regclass::oid::text"
        )
        self._line = ""  # of the transaction that was begun last
        self._started = ""
        self._system, self._database, self._table = "", "", ""
        self._seen = ""  # the line that it last worked on
        self._known_epoch = 0

    def check(self, ask: Ask, where: str) -> None:
        """Raise `StoreMismatch` where the server does not tell its line: then nobody would be warned."""
        try:
            ask(f"SELECT {self.columns}")
            ask(self._place)
        except (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedFunction) as error:
            raise StoreMismatch(
                f"{where} does not say which line of history it is on ({error.diag.message_primary}), so a "
                "failover that lost commits could not be noticed: GRANT EXECUTE ON FUNCTION "
                "pg_walfile_name(pg_lsn), pg_current_wal_insert_lsn(), pg_control_system() TO its user"
            ) from None

    def committed(self, now: int) -> None:
        """The transaction that was begun last is there, at `now` (the server's calendar)."""
        self.committed_at, self.committed_epoch = now, self.epoch

    def is_as_before(self, answer: tuple[Any, ...], ask: Ask) -> bool:
        """Take in what a transaction was begun with; False: `settle` has something to write first."""
        timeline, started, told = answer
        meta = dict(pair.split("=", 1) for pair in told)
        if started != self._started:
            self._system, self._database, self._table = ask(self._place)
            self._started = started
        standing = meta.get(HOLD)
        self.held = bool(standing)
        self.epoch = int(meta.get("epoch", 0))
        if not timeline:
            return True  # a standby: it takes no writes, and so no claims
        line = f"{self._system}/{timeline}/{self._database}/{self._table}"
        # While it is held, the release that will come stands for what the store remembers.
        known = (json.loads(standing)["line"] if standing else "") or meta.get(LINEAGE)
        if self._seen == line == known and self.epoch >= self._known_epoch and not self.lost:
            self._known_epoch = self.epoch
            return True
        self._line = line
        return False

    def settle(self, tx: Tx) -> None:
        """Write what the line that was just found calls for, in a transaction of its own; to be committed."""
        recorded = "".join(str(row["value"]) for row in tx.rows("meta_lock", name=LINEAGE))
        standing = hold_of(tx)
        epoch = int(tx.meta("epoch") or 0)
        if not recorded:
            tx.set_meta(LINEAGE, self._line)  # a new store
        elif why := self._why(tx, standing.line or recorded if standing else recorded, epoch):
            first = standing is None or standing.line != self._line
            until = max(self.committed_at, tx.now) if first else self.committed_at
            hold(tx, why, line=self._line, until=until)
            if standing is None:
                tell(telemetry.STORE_HELD, why=why, line=self._line)
        self._seen = self._line
        self._known_epoch = epoch
        self.lost = False

    def _why(self, tx: Tx, recorded: str, epoch: int) -> str:
        if recorded != self._line:
            was, is_ = recorded.split("/"), self._line.split("/")
            return FAILOVER if (was[0], *was[2:]) == (is_[0], *is_[2:]) else RESTORED
        if epoch < self._known_epoch:
            return OLDER
        released = self.committed_at <= int(tx.meta(RELEASED) or 0)
        # The released span ends a margin after the release. What was committed in that margin is of the
        # epoch that the release began, and was not reconciled.
        if self.lost and not (released and self.committed_epoch < epoch):
            return LOST_COMMITS
        moved = self._seen not in ("", self._line)
        return LATE if moved and not released else ""
