"""What applications handed in, on any database. On PostgreSQL the function `schedule` fills it (see the
migrations); elsewhere it stays empty."""

from __future__ import annotations

from collections.abc import Sequence

from sendonce.ports.store import HandedIn
from sendonce.store.session import Session


class SqlIntake:
    """`ports.store.Intake` on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def waiting(self, limit: int) -> list[HandedIn]:
        return [HandedIn(*row) for row in self._session.rows("intake_waiting", {"limit": limit})]

    def lock(self, ids: Sequence[int]) -> set[int]:
        found = self._session.rows_each("intake_lock", [{"id": id_} for id_ in ids])
        return {row[0] for rows in found for row in rows}

    def remove(self, ids: Sequence[int]) -> None:
        self._session.many("intake_remove", ({"id": id_} for id_ in ids))

    def park(self, parked: Sequence[tuple[int, str, str]]) -> None:
        self._session.many(
            "intake_park", ({"id": id_, "field": field, "why": why} for id_, field, why in parked)
        )

    def retry(self, ids: Sequence[int]) -> int:
        return sum(self._session.run_each("intake_retry", [{"id": id_} for id_ in ids]))

    def drop(self, ids: Sequence[int]) -> int:
        return sum(self._session.run_each("intake_drop", [{"id": id_} for id_ in ids]))
