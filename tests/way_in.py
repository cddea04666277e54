"""A policy, templates and a store in memory, for the tests of everything on the way in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sendonce.core.consent import NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import Event, Facts, Moved, step
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.plan import parse_plan
from sendonce.core.policy import (
    AccountPolicy,
    CategoryPolicy,
    ChannelPolicy,
    Policy,
    UncertainPolicy,
)
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.reminder import Asked
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Route
from sendonce.pipeline.intake import Mode, Result, admit
from sendonce.ports.store import Delivery, Move, Reminder, StoredTemplate, Tx
from sendonce.preparation import NO_ORIGIN, Origin, Prepared, prepare
from sendonce.store.sqlite import SqliteStore, open_store
from sendonce.template_book import TemplateBook, from_store
from sendonce.testing.clock import VirtualClock

SECOND = 1_000_000
DAY = 86_400 * SECOND


def policy() -> Policy:
    """Two channels, an account each (email class N, sms class L), zone Europe/Berlin, one plan."""
    limits = GateLimits((Limit(10, SECOND),), 2)
    neither = Promise(ProviderClass.NEITHER, timeout_s=10.0)
    lookup = Promise(ProviderClass.LOOKUP, timeout_s=10.0, lookup=True)
    return Policy(
        accounts={
            "mail": AccountPolicy("mail", Channel.EMAIL, neither, limits, RetryPolicy(), "us@example.com"),
            "text": AccountPolicy("text", Channel.SMS, lookup, limits, RetryPolicy(), "+12025550100"),
        },
        channels={
            Channel.EMAIL: ChannelPolicy(Channel.EMAIL, 86_400.0, 600.0, UncertainPolicy.HOLD),
            Channel.SMS: ChannelPolicy(Channel.SMS, 3_600.0, 600.0, UncertainPolicy.HOLD),
        },
        categories={
            "payment": CategoryPolicy("payment", NoRecord.ALLOW),
            "shipment": CategoryPolicy("shipment", NoRecord.ALLOW, expiry_s=7_200.0),
        },
        default_category="payment",
        zones={"default": "Europe/Berlin"},
        routes=(Route(Channel.EMAIL, "mail"), Route(Channel.SMS, "text")),
        plans={
            "loan": parse_plan("loan", ["D-3 09:00 sms,email", "D 09:00 email", "D+2 10:00 sms"]),
        },
        late_ok_s=3_600.0,
    )


class WayIn:
    """A store with the templates "pay" and "mail-only", and the calls that tests make again and again."""

    def __init__(self) -> None:
        self.clock = VirtualClock()  # 2026-01-01T00:00:00Z
        self.store = self.opened()
        self.policy = policy()
        self.add_template("pay", email=("Due {{ due_local }}", "Dear {{ name }}, [ref:{{ delivery_key }}]"))
        self.add_template(
            "pay", version=2, email=("Due", "Dear {{ name }}, {{ amount }}"), sms="Hi {{ name }}"
        )
        self.add_template("pay", version=3, email=("Due", "Dear {{ name }}"), sms="Hi {{ name }}")
        self.add_template("mail-only", email=("Hello", "Hello {{ name | default('you') }}"))
        self.book = TemplateBook(from_store(self.store))

    def opened(self) -> SqliteStore:
        return open_store("sqlite://:memory:", self.clock, inline=True)

    @property
    def now(self) -> int:
        return self.clock.now()

    def add_template(
        self, name: str, *, version: int = 1, email: tuple[str, str] | None = None, sms: str = ""
    ) -> None:
        parts = []
        if email:
            parts.append(StoredTemplate("default", name, version, Channel.EMAIL, *email, "", f"{name}e", 0))
        if sms:
            parts.append(StoredTemplate("default", name, version, Channel.SMS, "", sms, "", f"{name}s", 0))
        self.store.write(lambda tx: tx.templates.put(parts)).result()

    def take(
        self,
        *asked: Asked,
        mode: Mode = Mode.NEW,
        origin: Origin = NO_ORIGIN,
    ) -> list[Result]:
        """Prepare and admit in one unit."""
        prepared = [one for each in asked for one in self.prepare(each, origin)]
        return self.store.write(
            lambda tx: admit(tx, prepared, policy=self.policy, actor="api:test", mode=mode)
        ).result()

    def prepare(self, asked: Asked, origin: Origin = NO_ORIGIN) -> list[Prepared]:
        return prepare(asked, self.policy, self.book, secret=self.store.secret, now=self.now, origin=origin)

    def deliveries(self) -> dict[str, Delivery]:
        """All of them, by key."""

        def everything(tx: Tx) -> list[Delivery]:
            return tx.deliveries.by_ids(range(1, 5_000))

        return {delivery.key: delivery for delivery in self.store.read(everything)}

    def states(self) -> dict[str, str]:
        return {key: delivery.standing.state.value for key, delivery in self.deliveries().items()}

    def reminder(self, id_: int) -> Reminder:
        return self.store.read(lambda tx: tx.reminders.by_ids([id_]))[id_]

    def lead(
        self,
        key: str,
        *events: Event,
        account: str = "",
        facts: Facts | None = None,
        course: Mapping[str, Any] | None = None,
    ) -> None:
        """Move a delivery along the table, as the stages would; `course` is what changes in it."""

        def unit(tx: Tx) -> None:
            for event in events:
                (before,) = tx.deliveries.by_keys([("default", key)])
                moved = step(before.standing, event, facts or Facts())
                assert isinstance(moved, Moved), moved
                after = replace(before.course, account=account or before.course.account, **(course or {}))
                assert tx.deliveries.move([Move(before, event, moved.standing, after, "test")]) == [True]

        self.store.write(unit).result()

    def entries(self, key: str) -> int:
        return self.deliveries()[key].seq


def asked(reminder: str = "r-1", **fields: Any) -> Asked:
    """A valid request, with other fields where given."""
    given: dict[str, Any] = {
        "customer": "c-1",
        "due": "2026-02-01T09:00",
        "template": "pay",
        "email": "ann@example.com",
        "data": {"name": "Ann"},
        **fields,
    }
    return Asked(reminder, **given)
