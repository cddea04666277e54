"""Keys of the HTTP API, and what was answered under an Idempotency-Key, on any database."""

from __future__ import annotations

from collections.abc import Sequence

from sendonce.core.access import ApiKey, parse_scopes, write_scopes
from sendonce.ports.store import Answered, Batch
from sendonce.store.session import Session, Tuple


class SqlApiKeys:
    """`ports.store.ApiKeys` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put(self, keys: Sequence[ApiKey]) -> None:
        self._session.many(
            "key_put",
            (
                {
                    "prefix": key.prefix,
                    "tenant": key.tenant,
                    "name": key.name,
                    "hash": key.hash,
                    "scopes": write_scopes(key.scopes),
                    "rate": key.rate,
                    "created_at": key.created_at,
                    "created_by": key.created_by,
                    "expires_at": key.expires_at,
                }
                for key in keys
            ),
        )

    def get(self, prefix: str) -> ApiKey | None:
        rows = self._session.rows("key_get", {"prefix": prefix})
        return _key(rows[0]) if rows else None

    def all(self, tenant: str = "") -> list[ApiKey]:
        return [_key(row) for row in self._session.rows("key_list", {"tenant": tenant})]

    def revoke(self, prefix: str, at: int) -> bool:
        return self._session.run("key_revoke", {"prefix": prefix, "at": at}) == 1

    def expire(self, prefix: str, at: int) -> bool:
        return self._session.run("key_expire", {"prefix": prefix, "at": at}) == 1

    def touch(self, prefix: str, at: int, before: int) -> bool:
        return self._session.run("key_touch", {"prefix": prefix, "at": at, "before": before}) == 1


def _key(row: Tuple) -> ApiKey:
    prefix, tenant, name, hash_, scopes, *rest = row
    return ApiKey(prefix, tenant, name, hash_, parse_scopes(scopes.split(",")), *rest)


class SqlAnswers:
    """`ports.store.Answers` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(
        self, tenant: str, name: str, fingerprint: str, *, at: int, stale: int, keep_until: int
    ) -> bool:
        return (
            self._session.run(
                "answered_begin",
                {
                    "tenant": tenant,
                    "name": name,
                    "fingerprint": fingerprint,
                    "at": at,
                    "stale": stale,
                    "keep_until": keep_until,
                },
            )
            == 1
        )

    def get(self, tenant: str, name: str) -> Answered | None:
        rows = self._session.rows("answered_get", {"tenant": tenant, "name": name})
        return Answered(*rows[0]) if rows else None

    def finish(
        self, tenant: str, name: str, begun_at: int, *, status: int, answer: str, keep_until: int
    ) -> bool:
        return (
            self._session.run(
                "answered_finish",
                {
                    "tenant": tenant,
                    "name": name,
                    "begun_at": begun_at,
                    "status": status,
                    "answer": answer,
                    "keep_until": keep_until,
                },
            )
            == 1
        )

    def drop(self, tenant: str, name: str, begun_at: int) -> None:
        self._session.run("answered_drop", {"tenant": tenant, "name": name, "begun_at": begun_at})

    def forget(self, now: int, limit: int) -> int:
        return self._session.run("answered_forget", {"now": now, "limit": limit})


class SqlBatches:
    """`ports.store.Batches` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(
        self, tenant: str, id_: str, kind: str, *, actor: str, at: int, stale: int, progress: str
    ) -> str:
        self._session.run("batch_give_up", {"tenant": tenant, "stale": stale})
        self._session.run(
            "batch_begin",
            {"tenant": tenant, "id": id_, "kind": kind, "actor": actor, "at": at, "progress": progress},
        )
        rows = self._session.rows("batch_running", {"tenant": tenant})
        return str(rows[0][0]) if rows else id_

    def get(self, tenant: str, id_: str) -> Batch | None:
        rows = self._session.rows("batch_get", {"tenant": tenant, "id": id_})
        return Batch(*rows[0]) if rows else None

    def note(self, tenant: str, id_: str, progress: str, *, at: int, ended: bool = False) -> bool:
        facts: dict[str, int | str] = {
            "tenant": tenant,
            "id": id_,
            "progress": progress,
            "at": at,
            "ended_at": at if ended else 0,
        }
        return self._session.run("batch_tell", facts) == 1

    def forget(self, before: int, limit: int) -> int:
        return self._session.run("batch_forget", {"before": before, "limit": limit})
