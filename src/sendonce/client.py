"""`Client`: what a program uses to schedule reminders, take them back, and ask what became of them.

    with Client("sendonce.toml") as client:
        results = client.schedule(
            [
                {
                    "reminder": "shipment-4821",
                    "customer": "customer-73",
                    "due": "2026-12-01T09:00+01:00",
                    "template": "shipped",
                    "email": "ann@example.com",
                    "data": {"name": "Ann"},
                }
            ]
        )
        assert results[0].ok, results[0].why
        client.status("shipment-4821:customer-73:email")
        client.cancel(reminder="shipment-4821", reason="returned")

It writes to the store and reads from it; it sends nothing. What it answered is durable. It is safe to share
between threads, and asking again after a crash or a time-out changes nothing: the same reminder with the same
content is `unchanged`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sendonce.app import App
from sendonce.asking import asked_of_mapping
from sendonce.config import load
from sendonce.core.errors import InvalidInput
from sendonce.core.reminder import DEFAULT_TENANT, Asked
from sendonce.pipeline.cancel import By, Cancellation, Selection, cancel
from sendonce.pipeline.intake import UNIT_MAX, Mode, Verdict, admit
from sendonce.pipeline.intake import Result as Admitted
from sendonce.pipeline.story import Story, story
from sendonce.ports.store import Tx
from sendonce.preparation import Prepared, prepare

ACTOR: Final = "api:python"
_INSIDE: Final = frozenset({Verdict.ACCEPTED, Verdict.UNCHANGED, Verdict.REVISED})


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one reminder.

    index     its place in what was given; with a plan several results share one
    reminder  its id; with a plan `ID/STEP`
    verdict   accepted, unchanged, revised, conflicting, refused or invalid
    keys      its delivery keys, one a channel
    fields    what differs, for revisions and conflicts; `field` is what is wrong, for invalid ones
    why       a sentence: value, rule and fix; "" where the verdict says it all
    notes     what was assumed, such as the zone
    """

    index: int
    reminder: str
    verdict: Verdict
    keys: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    field: str = ""
    why: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """It is in, as given: new, revised or known already."""
        return self.verdict in _INSIDE


class Client:
    """A store with its configuration, opened when first used. Close it, or use it as a context manager.

    where   the path of a `sendonce.toml`; or the URL of a store (`sqlite:////srv/sendonce.db`), and then the
            configuration is found as the command line finds it, and this store is used instead of its own;
            None: as the command line
    tenant  whose data it is
    actor   who does this, for the ledger

    Raises `ConfigError` for the configuration and, once used, `StoreError` for the store.
    """

    def __init__(
        self,
        where: str | Path | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        actor: str = ACTOR,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        variables = dict(os.environ if environ is None else environ)
        if isinstance(where, str) and "://" in where:
            variables["SENDONCE_STORE_URL"] = where
            where = None
        self._app = App(load(where, environ=variables))
        self._owned = True
        self._tenant = tenant
        self._actor = actor

    @classmethod
    def of(cls, app: App, *, tenant: str = DEFAULT_TENANT, actor: str = ACTOR) -> Client:
        """On a program that is open already, and stays open when this is closed."""
        client = cls.__new__(cls)
        client._app, client._owned, client._tenant, client._actor = app, False, tenant, actor
        return client

    def schedule(
        self, reminders: Iterable[Asked | Mapping[str, object]], *, update: bool = False
    ) -> list[Result]:
        """Take reminders in; one result for each, in their order, for a plan one for each of its steps.

        A reminder is an `Asked` or a mapping with its fields. `due`, `date` and `expires` may be
        `datetime` or `date`; a `datetime` without an offset needs a `timezone` beside it. One that is
        wrong stops no other. `update`: known reminders are revised, as long as nothing may have been sent.

        Answered when durable, a hundred or so at a time. Raises `StoreUnavailable`: what came before is
        in, so give the same again.
        """
        app = self._app
        app.book.refresh()
        now = app.store.read(lambda tx: tx.now)
        results: list[Result] = []
        unit: list[_Line] = []
        for index, given in enumerate(reminders):
            try:
                asked = asked_of_mapping(given, self._tenant) if isinstance(given, Mapping) else given
                prepared = prepare(asked, app.policy, app.book, secret=app.store.secret, now=now)
            except InvalidInput as error:
                results.append(_invalid(index, given, error))
                continue
            unit += [(index, one) for one in prepared]
            if len(unit) >= UNIT_MAX:
                results += self._admit(unit, update)
                unit = []
        results += self._admit(unit, update)
        return sorted(results, key=lambda result: result.index)

    def cancel(
        self,
        *,
        reason: str,
        delivery: str = "",
        reminder: str = "",
        customer: str = "",
        group: str = "",
        preview: bool = False,
    ) -> Cancellation:
        """Take back what one of the four names; the answer is true for each delivery.

        `preview` answers the same and changes nothing. Raises `NotFound` where nothing has that name, and
        `InvalidInput` where not exactly one is given or the reason is empty.
        """
        selection = selected(
            {By.DELIVERY: delivery, By.REMINDER: reminder, By.CUSTOMER: customer, By.GROUP: group},
            self._tenant,
        )
        return cancel(
            self._app.store,
            selection,
            policy=self._app.policy,
            reason=reason,
            actor=self._actor,
            preview=preview,
        )

    def status(self, name: str) -> list[Story]:
        """The story of a delivery by its key, or of all deliveries of a reminder by its id.

        Raises `NotFound`.
        """
        policy, tenant = self._app.policy, self._tenant
        return self._app.store.read(lambda tx: story(tx, name, policy, tenant=tenant))

    def close(self) -> None:
        """Finish what was handed in, and close the store. Idempotent."""
        if self._owned:
            self._app.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admit(self, unit: Sequence[_Line], update: bool) -> list[Result]:
        if not unit:
            return []
        mode = Mode.UPDATE if update else Mode.NEW
        policy, actor = self._app.policy, self._actor

        def admitted(tx: Tx) -> list[Admitted]:
            return admit(tx, [one for _, one in unit], policy=policy, actor=actor, mode=mode)

        answers = self._app.store.write(admitted).result()
        return [
            Result(
                index,
                one.reminder.reminder,
                answer.verdict,
                answer.keys,
                answer.fields,
                answer.field,
                answer.why,
                one.notes,
            )
            for (index, one), answer in zip(unit, answers, strict=True)
        ]


_Line = tuple[int, Prepared]


def selected(names: Mapping[By, str], tenant: str) -> Selection:
    """The one selection that is named. Raises `InvalidInput` where none or several are."""
    given = [(by, name) for by, name in names.items() if name]
    if len(given) != 1:
        raise InvalidInput(
            f"{len(given) or 'nothing'} named: name exactly one of {', '.join(names)}", field="selection"
        )
    return Selection(*given[0], tenant=tenant)


def _invalid(index: int, given: Asked | Mapping[str, object], error: InvalidInput) -> Result:
    reminder = given.get("reminder", "") if isinstance(given, Mapping) else given.reminder
    return Result(index, str(reminder)[:200], Verdict.INVALID, field=error.field, why=str(error))
