"""Keys of the HTTP API, and what was answered under an Idempotency-Key, on any database."""

from __future__ import annotations

from collections.abc import Sequence

from sendonce.core.access import ApiKey, parse_scopes, write_scopes
from sendonce.ports.store import Answered
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
