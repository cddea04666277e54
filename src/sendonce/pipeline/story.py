"""What happened to a delivery: two views of one record.

The *story* is for a support agent: what happened in plain words and in the customer's own time, what
may be said to the customer, and the text that was sent, its address masked. The *acceptance ledger* is
for an auditor: the entries as they were written, with every code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from sendonce.address import masked
from sendonce.core.delivery import parse_key
from sendonce.core.due import known_zone
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.policy import Policy
from sendonce.core.provider_event import stands
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.pipeline.record import Line, delivery_by_key, delivery_of, facets_of, lines_of
from sendonce.pipeline.sentences import later_sentence, sentence, tell_customer
from sendonce.ports.store import Content, Delivery, Reminder, Tx
from sendonce.render import SALT

DELIVERIES_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened. `at` in microseconds UTC, `local` on the customer's wall clock."""

    seq: int
    at: int
    local: str
    text: str
    actor: str


@dataclass(frozen=True, slots=True)
class Later:
    """One kind of thing that the provider said later. `at` in microseconds UTC, by the provider where it says
    so; `code` its own word; `stands`: of those that say where the message is, this one counts."""

    kind: str
    at: int
    local: str
    text: str
    code: str
    stands: bool


@dataclass(frozen=True, slots=True)
class Said:
    """What was or will be sent, as frozen at publication. `parts`: "text", for email "subject", "html",
    "sender", "reply_to" too; the recipient's address is masked wherever it stands."""

    parts: Mapping[str, str]
    template: str
    template_version: int
    hash: str
    frozen_at: int


@dataclass(frozen=True, slots=True)
class Story:
    """One delivery, told. `headline` is what to tell the customer; `said` None: its text is not fixed yet.

    due_local  the due time as the caller wrote it, on the wall clock of `zone`
    linked     the delivery that this one sends again, "" for none
    later      what the provider said later, in the order of its times; beside the moments, which are ours
    """

    delivery: Delivery
    reminder: str
    headline: str
    moments: tuple[Moment, ...]
    address: str
    said: Said | None
    due_local: str
    zone: str
    linked: str = ""
    later: tuple[Later, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """The acceptance ledger of one delivery: its entries, with the hash of the last as the row has it."""

    delivery: Delivery
    lines: tuple[Line, ...] = field(default=())


def story(tx: Tx, name: str, policy: Policy, *, tenant: str = DEFAULT_TENANT) -> list[Story]:
    """The delivery of this key, or all deliveries of the reminder of this id (at most `DELIVERIES_MAX`).

    Raises `NotFound`.
    """
    deliveries = _named(tx, name, tenant)
    reminders = tx.reminders.by_ids([delivery.reminder_id for delivery in deliveries])
    contents = {
        delivery.id: tx.contents.get([(delivery.id, delivery.standing.version)]).get(delivery.id)
        for delivery in deliveries
    }
    return [
        _tell(tx, delivery, reminders.get(delivery.reminder_id), contents[delivery.id], policy)
        for delivery in deliveries
    ]


def record(tx: Tx, key: str, *, tenant: str = DEFAULT_TENANT) -> Record:
    """The ledger of one delivery. Raises `NotFound`, and `InvalidInput` for what is no delivery key."""
    delivery = delivery_by_key(tx, tenant, parse_key(key).key)
    if delivery is None:
        raise _unknown(
            tx, tenant, key, f"no delivery has the key {key!r:.200}: look for it with `sendonce find`"
        )
    return Record(delivery, tuple(lines_of(tx, delivery.id)))


def local_time(at: int, zone: str) -> str:
    """An instant on the wall clock of `zone`, to the second: "2026-12-01 09:00:05 CET"."""
    seconds = at // 1_000_000
    try:
        moment = datetime.fromtimestamp(seconds, UTC).astimezone(ZoneInfo(zone))
    except (OverflowError, ValueError, OSError):
        return "a time beyond the calendar"
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}"


def _named(tx: Tx, name: str, tenant: str) -> list[Delivery]:
    name = name.strip()
    try:
        delivery = delivery_by_key(tx, tenant, parse_key(name).key)
    except InvalidInput:
        delivery = None
    if delivery is not None:
        return [delivery]
    rows = tx.rows("view_deliveries_of_reminder", tenant=tenant, reminder=name, limit=DELIVERIES_MAX)
    if not rows:
        why = "give a reminder id or a delivery key, or use `sendonce find`"
        raise _unknown(tx, tenant, name, f"nothing is known of {name!r:.200}: {why}")
    return [delivery_of(row) for row in rows]


def _unknown(tx: Tx, tenant: str, name: str, otherwise: str) -> NotFound:
    """What to say of a name that no delivery has: it may be that of one that was removed."""
    try:
        identity = parse_key(name)
    except InvalidInput:
        return NotFound(otherwise)
    one = (tenant, identity.reminder, identity.customer)
    if one not in tx.removals.known([one]):
        return NotFound(otherwise)
    return NotFound(f"{name} ended long ago and was removed by policy: the report of its day still counts it")


def _tell(
    tx: Tx, delivery: Delivery, reminder: Reminder | None, content: Content | None, policy: Policy
) -> Story:
    own = reminder.zone if reminder is not None else ""
    zone = known_zone(own, policy.zone(delivery.tenant))
    asked = reminder.recipients.get(delivery.channel.value, {}) if reminder is not None else {}
    address = content.address if content is not None else asked.get("to", "")
    masked_address = masked(delivery.channel.value, address) if address else ""

    def when(at: int) -> str:
        return local_time(at, zone)

    facts = sorted(facets_of(tx, delivery.id), key=lambda fact: (fact.at, fact.kind))
    standing = stands(facts)
    headline = tell_customer(delivery, tx.now, when)
    if standing is not None:
        headline = f"{headline} {later_sentence(standing)}"
    return Story(
        delivery=delivery,
        reminder=reminder.reminder if reminder is not None else "",
        headline=headline,
        moments=tuple(
            Moment(line.seq, line.at, when(line.at), sentence(line, when), line.actor)
            for line in lines_of(tx, delivery.id)
        ),
        address=masked_address,
        said=_said(content, masked_address) if content is not None else None,
        due_local=reminder.due_local if reminder is not None else "",
        zone=zone,
        linked=reminder.linked if reminder is not None else "",
        later=tuple(
            Later(fact.kind.value, fact.at, when(fact.at), later_sentence(fact), fact.code, fact is standing)
            for fact in facts
        ),
    )


def _said(content: Content, masked_address: str) -> Said | None:
    """None where the content is gone or cannot be read: that is for `verify` to judge."""
    try:
        payload = json.loads(content.payload)
    except ValueError:
        return None
    if not isinstance(payload, dict):
        return None
    parts = {
        name: _masked(str(text), content.address, masked_address)
        for name, text in payload.items()
        if name != SALT
    }
    return Said(parts, content.template, content.template_version, content.hash, content.frozen_at)


def _masked(text: str, address: str, masked_address: str) -> str:
    if not address:
        return text
    return re.sub(re.escape(address), lambda _: masked_address, text, flags=re.IGNORECASE)
