"""What is taken away for good, on any database."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from sendonce.core.tombstone import Tombstone
from sendonce.ports.store import Erasure, HandedIn, Removed
from sendonce.store.session import Parameters, Session

Identity = tuple[str, str, str]


class SqlRemovals:
    """`ports.store.Removals` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, erasure: Erasure) -> None:
        self._session.run(
            "erasure_put",
            {
                "tenant": erasure.tenant,
                "customer": erasure.customer,
                "asked_at": erasure.asked_at,
                "actor": erasure.actor,
                "reason": erasure.reason,
                "may_write": int(erasure.may_write),
            },
        )

    def asked(self, limit: int) -> list[Erasure]:
        rows = self._session.rows("erasure_page", {"limit": limit})
        return [Erasure(row[0], row[1], row[2], row[3], row[4], may_write=row[5] == 1) for row in rows]

    def finish(self, erasure: Erasure) -> None:
        self._session.run("erasure_done", {"tenant": erasure.tenant, "customer": erasure.customer})

    def empty(self, reminder_ids: Sequence[int], delivery_ids: Sequence[int], *, erased: bool) -> int:
        self._session.many("reminder_empty", [{"id": id_, "erased": int(erased)} for id_ in reminder_ids])
        self._session.many("revision_drop", [{"reminder_id": id_} for id_ in reminder_ids])
        return sum(self._session.run_each("content_drop", [{"delivery_id": id_} for id_ in delivery_ids]))

    def blank(self, addresses: Sequence[tuple[str, str, str]]) -> int:
        named = [
            {"tenant": tenant, "channel": channel, "address_tag": tag} for tenant, channel, tag in addresses
        ]
        return sum(self._session.run_each("preference_blank", named))

    def handed_in(self, limit: int, after: int) -> list[HandedIn]:
        rows = self._session.rows("intake_all", {"limit": limit, "after": after})
        return [HandedIn(*row) for row in rows]

    def next_from(self, after: int) -> int | None:
        found = int(self._session.rows("retention_from", {"after": after})[0][0])
        return found or None

    def old(self, before: int, after: int, upto: int, *, full: bool) -> list[int]:
        name = "retention_full" if full else "retention_old"
        rows = self._session.rows(name, {"before": before, "after": after, "upto": upto})
        return sorted({row[0] for row in rows})

    def newest(self) -> tuple[int, int, int, int]:
        delivery, reminder, entry, told_of = self._session.rows("retention_newest", {})[0]
        return delivery, reminder, entry, told_of

    def numbers(self, delivery_ids: Sequence[int]) -> dict[int, list[tuple[int, int, str, str]]]:
        found = self._session.rows_each("ledger_numbers", [{"delivery_id": id_} for id_ in delivery_ids])
        return {
            id_: [(row[0], row[1], row[2], row[3]) for row in rows]
            for id_, rows in zip(delivery_ids, found, strict=True)
        }

    def facet(self, delivery_ids: Sequence[int]) -> int:
        found = self._session.rows_each("facet_numbers", [{"delivery_id": id_} for id_ in delivery_ids])
        return max((int(row[0]) for rows in found for row in rows), default=0)

    def called(self, calls: Sequence[tuple[str, int]]) -> set[int]:
        named: list[Parameters] = [{"account": account, "delivery_id": id_} for account, id_ in calls]
        found = zip(calls, self._session.rows_each("call_of", named), strict=True)
        return {id_ for (_, id_), rows in found if rows}

    def last(self) -> Tombstone | None:
        rows = self._session.rows("tombstone_last", {})
        return Tombstone(*rows[0]) if rows else None

    def remove(self, stone: Tombstone, removed: Sequence[Removed]) -> bool:
        gone = self._session.run_each("delivery_drop", [{"id": one.id, "seq": one.seq} for one in removed])
        ids = [{"delivery_id": one.id} for one in removed]
        for name in ("content_drop", "ledger_drop", "outbox_drop", "event_drop", "facet_drop"):
            self._session.many(name, ids)
        reminder_ids = sorted({one.reminder_id for one in removed})
        self._session.many("revision_drop", [{"reminder_id": id_} for id_ in reminder_ids])
        self._session.many("reminder_drop", [{"id": id_} for id_ in reminder_ids])
        self._session.run(
            "tombstone_put",
            {"number": stone.number, "at": stone.at, "body": stone.body, "hash": stone.hash},
        )
        secret = self._secret()
        self._session.many(
            "removed_put",
            [
                {
                    "tombstone": stone.number,
                    "delivery_id": one.id,
                    "tenant": one.tenant,
                    "identity": _tag(secret, (one.tenant, one.reminder, one.customer)),
                    "due_at": one.due_at,
                    "channel": one.channel.value,
                    "category": one.category,
                    "account": one.account,
                    "state": one.state.value,
                    "entries": one.seq,
                    "head": one.head,
                }
                for one in removed
            ],
        )
        return sum(gone) == len(removed)

    def known(self, identities: Sequence[Identity]) -> set[Identity]:
        if not identities or not int(self._session.rows("view_removed_any", {})[0][0]):
            return set()
        secret = self._secret()
        tags = [{"identity": _tag(secret, one)} for one in identities]
        found = zip(identities, self._session.rows_each("removed_find", tags), strict=True)
        return {one for one, rows in found if rows}

    def forget_imports(self, before: int, limit: int) -> int:
        return self._session.run("import_forget", {"before": before, "limit": limit})

    def _secret(self) -> bytes:
        return bytes.fromhex(str(self._session.rows("meta_get", {"name": "secret"})[0][0]))


def _tag(secret: bytes, identity: Identity) -> str:
    """What stands for a reminder that was removed: its ids may be a person's, and are gone with it."""
    text = "\0".join(("removed", *identity))
    return hmac.digest(secret, text.encode(), "sha256").hex()[:32]
