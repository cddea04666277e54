"""What providers said later, on any database.

The fold needs no reading: of one kind the earliest counts, and the statement that adds one compares. So two
processes that learn of the same delivery at once never take anything from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.provider_event import RANKS, EventKind, Fact
from sendonce.ports.store import EventLook, Sent, StoredEvent
from sendonce.store.session import Parameters, Session, Tuple

COLUMNS: Final = (
    "account, identity, kind, received_at, tenant, receipt, send_key, address_tag, masked, occurred_at, "
    "code, text, look, next_at, tries, why, applied_at, delivery_id, id"
)


class SqlProviderEvents:
    """`ports.store.ProviderEvents` on a session. `now` is the unit's calendar instant."""

    def __init__(self, session: Session, now: int) -> None:
        self._session = session
        self._now = now

    def put(self, new: Sequence[StoredEvent]) -> list[bool]:
        counts = self._session.run_each(
            "event_put",
            [
                {
                    "account": one.account,
                    "identity": one.identity,
                    "tenant": one.tenant,
                    "kind": one.kind.value,
                    "receipt": one.receipt,
                    "send_key": one.send_key,
                    "address_tag": one.address_tag,
                    "masked": one.masked,
                    "occurred_at": one.occurred_at,
                    "received_at": one.received_at,
                    "code": one.code,
                    "text": one.text,
                    "look": one.look.value,
                    "next_at": one.next_at,
                    "why": one.why,
                    "applied_at": one.applied_at,
                }
                for one in new
            ],
        )
        return [count == 1 for count in counts]

    def waiting(self, now: int, limit: int) -> list[StoredEvent]:
        return [_event(row) for row in self._session.rows("event_waiting", {"now": now, "limit": limit})]

    def lock(self, ids: Sequence[int]) -> list[StoredEvent]:
        found = self._session.rows_each("event_lock", [{"id": id_} for id_ in sorted(set(ids))])
        return [_event(row) for rows in found for row in rows]

    def by_marks(self, marks: Sequence[int]) -> list[list[Sent]]:
        found = self._session.rows_each("event_by_mark", [{"mark": mark} for mark in marks])
        return [[_sent(row) for row in rows] for rows in found]

    def by_receipts(self, receipts: Sequence[str]) -> list[list[Sent]]:
        found = self._session.rows_each("event_by_receipt", [{"receipt": receipt} for receipt in receipts])
        return [list(dict.fromkeys(_sent(row) for row in rows)) for rows in found]

    def fold(self, facts: Sequence[tuple[int, Fact]]) -> None:
        # In one order whoever adds, so that two who add to the same rows do not wait for each other.
        ordered = sorted(facts, key=lambda each: (each[0], each[1].kind, each[1].at, each[1].code))
        if not ordered:
            return
        behind = self._session.rows("seal_given", {})[0][0]
        self._session.many(
            "facet_fold",
            (
                {
                    "delivery_id": id_,
                    "kind": fact.kind.value,
                    "rank": RANKS.get(fact.kind, 0),
                    "at": fact.at,
                    "code": fact.code,
                    "behind": behind,
                    "told_at": self._now,
                }
                for id_, fact in ordered
            ),
        )

    def given(self) -> int:
        return int(self._session.rows("facet_given", {})[0][0])

    def writers(self) -> frozenset[str]:
        return frozenset(str(row[0]) for row in self._session.rows("facet_writers", {}))

    def end(self, ended: Sequence[tuple[int, EventLook, str, int]]) -> None:
        self._session.many(
            "event_end",
            (
                {
                    "id": id_,
                    "look": look.value,
                    "why": why,
                    "applied_at": self._now,
                    "delivery_id": delivery_id,
                }
                for id_, look, why, delivery_id in ended
            ),
        )

    def wait(self, later: Sequence[tuple[int, int, str]]) -> None:
        self._session.many(
            "event_wait", ({"id": id_, "next_at": next_at, "why": why} for id_, next_at, why in later)
        )

    def retry(self, ids: Sequence[int]) -> int:
        named: list[Parameters] = [{"id": id_, "next_at": self._now} for id_ in ids]
        return sum(self._session.run_each("event_retry", named))

    def forget(self, before: int, limit: int) -> int:
        old = self._session.rows("event_old", {"before": before, "limit": limit})
        return sum(self._session.run_each("event_forget", [{"id": row[0]} for row in old]))

    def blank(self, delivery_ids: Sequence[int], addresses: Sequence[tuple[str, str]]) -> None:
        self._session.many("event_blank", ({"delivery_id": id_} for id_ in delivery_ids))
        self._session.many(
            "event_blank_address", ({"tenant": tenant, "address_tag": tag} for tenant, tag in addresses)
        )


def _event(row: Tuple) -> StoredEvent:
    values = list(row)
    values[2], values[12] = EventKind(values[2]), EventLook(values[12])
    return StoredEvent(*values)


def _sent(row: Tuple) -> Sent:
    id_, tenant, key, channel, tag, state, version, version_now, account, attempts, maybe, receipt = row
    return Sent(
        delivery_id=id_,
        tenant=tenant,
        key=key,
        channel=Channel(channel),
        address_tag=tag,
        state=State(state),
        version=version,
        version_now=version_now,
        account_now=account,
        attempts=attempts,
        maybe=maybe == 1,
        receipt_now=receipt,
    )
