"""Hand the feed of a tenant on to a sink, page by page, at least once and in the order of each delivery.

    read a page behind the place -> the sink has all of it -> the place moves

The place is a cursor of the feed and stands in the store, beside what it is a place in: a store that is
restored brings the place that it had then, and a cursor knows when it holds no longer. It moves only from
where this process found it. So a crash, a page whose answer was lost, or a second process cost a repetition
and never a gap. One process of a tenant hands on, the others stand by.

What is handed on cannot be called back: many read it, and it is kept as they like. So it holds less than the
feed: nobody who acted is named, and of reasons only the coded ones, since people write the others.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

from sendonce import telemetry
from sendonce.core.feed import Kind, coded_reason
from sendonce.core.pacing import SECOND
from sendonce.pipeline.feed import LIMIT_MAX, Feed, Told
from sendonce.pipeline.leader import Leader
from sendonce.ports.sink import Record, Sink, SinkUnavailable
from sendonce.ports.store import Store, Tx
from sendonce.telemetry import tell

LOOK_S: Final = 0.5
STAND_BY_S: Final = 5.0
LEASE_S: Final = 60.0
"""Longer than a page takes, in which nobody asks for the lead."""
ASK_S: Final = 10.0
KEEP_S: Final = 60.0
"""So often the place is kept while nothing is told: other entries move it too, and each time is a commit."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class HandOn:
    """One process's part in handing on what a tenant is told. Blocking; for one thread.

    since  begin anew at about this instant (microseconds UTC), wherever the place is; 0: go on from the
           place, or with all that is kept where there is none
    """

    def __init__(
        self, store: Store, feed: Feed, sink: Sink, *, tenant: str, process: str, since: int = 0
    ) -> None:
        self._store = store
        self._feed = feed
        self._sink = sink
        self._tenant = tenant
        self._name = f"feed:{sink.name}:{tenant}"
        self._since = since
        self._leader = Leader(store, self._name, process, lease_s=LEASE_S)
        self._ask_at = 0
        self._keep_at = 0
        self._kept: str | None = None  # the place as it stands in the store, as far as this process knows
        self._after = ""
        self._away = False
        self.handed_on = 0
        self.more = True  # there may be more already

    @property
    def leads(self) -> bool:
        return self._leader.led

    def step(self) -> float:
        """Hand on one page; seconds until the next. Raises `SinkUnavailable` and `StoreUnavailable`, after
        which it can be tried again, and `Refused` (code "events_gone") where a person must decide."""
        if not self._lead():
            self._kept = None
            return STAND_BY_S
        if self._kept is None:
            self._find_place()
        before = self._after
        page = self._feed.page(tenant=self._tenant, after=before, since=self._since, limit=LIMIT_MAX)
        if page.told:
            self._publish([_record(each) for each in page.told])
        if page.told or self._store.steady() >= self._keep_at:
            if not self._move(page.cursor):
                self._kept = None  # another was faster: go on from where it is
                return 0.0
            self._keep_at = self._store.steady() + int(KEEP_S * SECOND)
        self._after, self._since = page.cursor, 0
        self.handed_on += len(page.told)
        self.more = page.more
        return 0.0 if page.more and page.cursor != before else LOOK_S

    def resign(self) -> None:
        """Let the next process have it at once."""
        self._leader.resign()
        self._ask_at = 0

    def _lead(self) -> bool:
        if not self._leader.led or self._store.steady() >= self._ask_at:
            self._leader.leads()
            self._ask_at = self._store.steady() + int(ASK_S * SECOND)
        return self._leader.led

    def _find_place(self) -> None:
        self._kept = self._store.read(lambda tx: tx.meta(self._name)) or ""
        self._after = "" if self._since else self._kept

    def _move(self, cursor: str) -> bool:
        """Whether the place stood where this process had it, and moved on."""
        kept = self._kept or ""

        def unit(tx: Tx) -> bool:
            stands = "".join(str(row["value"]) for row in tx.rows("meta_lock", name=self._name))
            if stands != kept:
                return False
            tx.set_meta(self._name, cursor)
            return True

        moved = self._store.write(unit).result()
        if moved:
            self._kept = cursor
        return moved

    def _publish(self, records: list[Record]) -> None:
        try:
            self._sink.publish(self._tenant, records)
        except SinkUnavailable as error:
            if not self._away:
                tell(telemetry.SINK_AWAY, sink=self._sink.name, why=str(error))
            self._away = True
            raise
        if self._away:
            tell(telemetry.SINK_BACK, sink=self._sink.name)
        self._away = False


def _record(one: Told) -> Record:
    body = {
        "id": one.id,
        "sequence": None if one.kind is Kind.FACET else int(one.id.rpartition("/")[2]),
        "kind": one.kind,
        "at": (_EPOCH + timedelta(microseconds=one.at))
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z"),
        "event": one.event,
        "state": one.state,
        "over": one.over,
        "maybe_sent": one.maybe,
        "delivery": one.delivery,
        "reminder": one.reminder,
        "customer": one.customer,
        "channel": one.channel,
        "group": one.group,
        "category": one.category,
        "version": one.version,
        "account": one.account,
        "receipt": one.receipt,
        "reason": coded_reason(one.actor, one.reason),
        "code": one.code,
    }
    return Record(one.delivery, one.id, json.dumps(body, separators=(",", ":")).encode())
