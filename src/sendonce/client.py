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
        page = client.events(after=kept_cursor)

It writes to the store and reads from it; it sends nothing. What it answered is durable. It is safe to share
between threads, and asking again after a crash or a time-out changes nothing: the same reminder with the same
content is `unchanged`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sendonce.app import App
from sendonce.config import load
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.reminder import DEFAULT_TENANT, Asked
from sendonce.pipeline.cancel import By, Cancellation, cancel, selected
from sendonce.pipeline.feed import LIMIT, Page
from sendonce.pipeline.hand_in import Result, hand_in, send_again
from sendonce.pipeline.story import Story, story
from sendonce.ports.secret import Secret
from sendonce.remote import Remote

__all__ = ["Client", "Page", "Result"]

ACTOR: Final = "api:python"
LOOK_S: Final = 0.2
"""How often the store is looked at while waiting for events."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Client:
    """A store with its configuration, opened when first used. Close it, or use it as a context manager.

    where   the path of a `sendonce.toml`; or the URL of a store (`sqlite:////srv/sendonce.db`), and then the
            configuration is found as the command line finds it, and this store is used instead of its own;
            None: as the command line
            "http://..." and "https://...": a service of the HTTP API, asked with `key`, which says whose data
            it is and stands in the ledger
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
        key: str | Secret = "",
    ) -> None:
        self._remote: Remote | None = None
        if isinstance(where, str) and where.startswith(("http://", "https://")):
            if tenant != DEFAULT_TENANT or actor != ACTOR:
                raise ConfigError("over HTTP the key says whose data it is and who asks: leave them out")
            self._remote = Remote(where, key)
            self._tenant = tenant
            return
        if key:
            raise ConfigError(
                "a key is for a service: give its address, such as https://sendonce.example.com"
            )
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
        client._remote = None
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
        if self._remote is not None:
            return self._remote.schedule(reminders, update=update)
        app = self._app
        return hand_in(
            app.store,
            app.book,
            app.policy,
            reminders,
            tenant=self._tenant,
            actor=self._actor,
            update=update,
        ).results

    def cancel(
        self,
        *,
        reason: str,
        delivery: str = "",
        reminder: str = "",
        customer: str = "",
        group: str = "",
        import_number: int = 0,
        preview: bool = False,
    ) -> Cancellation:
        """Take back what one of the five names; the answer is true for each delivery. An import means what
        it created.

        `preview` answers the same and changes nothing. Raises `NotFound` where nothing has that name, and
        `InvalidInput` where not exactly one is given or the reason is empty.
        """
        selection = selected(
            {
                By.DELIVERY: delivery,
                By.REMINDER: reminder,
                By.CUSTOMER: customer,
                By.GROUP: group,
                By.IMPORT: str(import_number or ""),
            },
            self._tenant,
        )
        if self._remote is not None:
            return self._remote.cancel(selection, reason=reason, preview=preview)
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
        if self._remote is not None:
            return self._remote.status(name)
        policy, tenant = self._app.policy, self._tenant
        return self._app.store.read(lambda tx: story(tx, name, policy, tenant=tenant))

    def again(self, delivery: str, *, reason: str) -> Result:
        """Send what has ended once more, as a new reminder that is linked to it; asked twice, sent once.

        Raises `NotFound`, `InvalidInput` for an empty reason, and `Refused` where something else is right.
        """
        if self._remote is not None:
            return self._remote.again(delivery, reason=reason)
        app = self._app
        return send_again(
            app.store, app.policy, delivery, tenant=self._tenant, reason=reason, actor=self._actor
        )

    def events(
        self,
        *,
        after: str = "",
        since: datetime | None = None,
        limit: int = LIMIT,
        wait_s: float = 0.0,
    ) -> Page:
        """What became of deliveries behind the cursor `after`, in order and at least once (`pipeline.feed`).

        Keep `cursor` of the page in the same transaction as what you did about it. Without a cursor it begins
        with all that is kept, or at about the instant `since`. Where there is nothing yet, it waits for up to
        `wait_s`.

        Raises `InvalidInput` for a cursor that is none, and `Refused` (code "events_gone") where what comes
        next is not all there any more: begin anew with `since`.
        """
        if since is not None and since.tzinfo is None:
            raise InvalidInput("since has no offset: give one, as in datetime.now(UTC)", field="since")
        if self._remote is not None:
            begin = since.isoformat() if since else ""
            return self._remote.events(after=after, since=begin, limit=limit, wait_s=wait_s)
        begun = (since - _EPOCH) // timedelta(microseconds=1) if since else 0
        feed, until = self._app.feed, time.monotonic() + wait_s
        page = feed.page(tenant=self._tenant, after=after, since=begun, limit=limit)
        while not page.told and time.monotonic() < until:
            time.sleep(LOOK_S)
            page = feed.page(tenant=self._tenant, after=page.cursor, limit=limit)
        return page

    def close(self) -> None:
        """Finish what was handed in, and close the store. Idempotent."""
        if self._remote is not None:
            self._remote.close()
        elif self._owned:
            self._app.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
