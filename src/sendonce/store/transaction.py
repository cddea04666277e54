"""One unit's view of the store: the nouns of the port, put together over a session."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from sendonce.ports.store import HOLD, Outgoing, Row
from sendonce.store.access import SqlAnswers, SqlApiKeys, SqlBatches
from sendonce.store.deliveries import SqlDeliveries
from sendonce.store.events import SqlProviderEvents
from sendonce.store.gates import SqlCalls, SqlGates
from sendonce.store.intake import SqlIntake
from sendonce.store.reminders import SqlContents, SqlReminders, SqlTemplates
from sendonce.store.removals import SqlRemovals
from sendonce.store.runs import SqlPreferences, SqlProcesses, SqlRuns
from sendonce.store.seals import SqlSeals
from sendonce.store.session import Session, check_text


class SqlTx:
    """`ports.store.Tx` on a session; made anew for each unit, so that no unit sees another's clock.

    `standing`: (held, epoch), where the transaction brought them along; else they are read when asked for.
    """

    def __init__(
        self, session: Session, *, now: int, steady: int, standing: tuple[bool, int] | None = None
    ) -> None:
        self._session = session
        self.now = now
        self.steady = steady
        self.announced: dict[str, None] = {}
        """What to tell once this unit has committed, in order."""
        self._standing = standing

    @property
    def held(self) -> bool:
        return bool(self.meta(HOLD)) if self._standing is None else self._standing[0]

    @property
    def epoch(self) -> int:
        return int(self.meta("epoch") or 0) if self._standing is None else self._standing[1]

    @cached_property
    def deliveries(self) -> SqlDeliveries:
        return SqlDeliveries(self._session, self.now)

    @cached_property
    def reminders(self) -> SqlReminders:
        return SqlReminders(self._session, self.now)

    @cached_property
    def contents(self) -> SqlContents:
        return SqlContents(self._session)

    @cached_property
    def calls(self) -> SqlCalls:
        return SqlCalls(self._session)

    @cached_property
    def gates(self) -> SqlGates:
        return SqlGates(self._session)

    @cached_property
    def preferences(self) -> SqlPreferences:
        return SqlPreferences(self._session)

    @cached_property
    def templates(self) -> SqlTemplates:
        return SqlTemplates(self._session)

    @cached_property
    def processes(self) -> SqlProcesses:
        return SqlProcesses(self._session, self.steady)

    @cached_property
    def runs(self) -> SqlRuns:
        return SqlRuns(self._session, self.now)

    @cached_property
    def intake(self) -> SqlIntake:
        return SqlIntake(self._session)

    @cached_property
    def events(self) -> SqlProviderEvents:
        return SqlProviderEvents(self._session, self.now)

    @cached_property
    def removals(self) -> SqlRemovals:
        return SqlRemovals(self._session)

    @cached_property
    def api_keys(self) -> SqlApiKeys:
        return SqlApiKeys(self._session)

    @cached_property
    def answers(self) -> SqlAnswers:
        return SqlAnswers(self._session)

    @cached_property
    def batches(self) -> SqlBatches:
        return SqlBatches(self._session)

    @cached_property
    def seals(self) -> SqlSeals:
        return SqlSeals(self._session)

    def meta(self, name: str) -> str | None:
        rows = self._session.rows("meta_get", {"name": name})
        return str(rows[0][0]) if rows else None

    def set_meta(self, name: str, value: str) -> None:
        self._session.run("meta_put", {"name": name, "value": value})

    def hint(self, hints: Sequence[Outgoing]) -> None:
        self._session.many(
            "outbox_put",
            (
                {
                    "delivery_id": hint.delivery_id,
                    "epoch": hint.epoch,
                    "account": hint.account,
                    "place": hint.place,
                }
                for hint in hints
            ),
        )

    def hint_ready(self, account: str, limit: int) -> int:
        return self._session.run("outbox_refill", {"account": account, "limit": limit})

    def hints(self, limit: int, account: str = "") -> list[Outgoing]:
        rows = (
            self._session.rows("outbox_page", {"limit": limit, "account": account})
            if account
            else self._session.rows("outbox_all", {"limit": limit})
        )
        return [Outgoing(row[0], row[1], row[2], row[3]) for row in rows]

    def hinted(self, hints: Sequence[tuple[int, int]]) -> None:
        self._session.many("outbox_take", ({"delivery_id": id_, "epoch": epoch} for id_, epoch in hints))

    def announce(self, topic: str) -> None:
        self.announced[topic] = None

    def rows(self, view: str, **parameters: int | str) -> list[Row]:
        check_text(*parameters.values())
        return self._session.mappings(view, parameters)
