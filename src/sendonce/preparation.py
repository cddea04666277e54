"""What a caller asks for, checked: all that can be said about a reminder without looking into the store.

    Asked --prepare--> Prepared, one for the reminder or one for each step of its plan

Times, zones, addresses, senders, labels, the template and a test rendering with the reminder's own
data, so that a missing variable is found today and not when the reminder is due. It is pure, and
quick, since files of a million rows go through it.

`Prepared.reminder.spec_hash` stands for what the caller gave, however it was spelled: addresses as
they are compared, data in canonical JSON, relative times as written. What the configuration added is
not in it, so that the same file is the same after a change of the configuration.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from sendonce.address import (
    comparison_form,
    normalise_email,
    normalise_phone,
    normalise_sms_sender,
    parse_sender,
)
from sendonce.core.delivery import Channel, Identity, address_tag, check_id, parse_channel
from sendonce.core.due import SECOND, Due, Shift, check_not_past, parse_due, shift_note
from sendonce.core.duration import parse_duration, say_duration
from sendonce.core.errors import InvalidInput
from sendonce.core.plan import PlannedStep, expand
from sendonce.core.policy import Policy
from sendonce.core.reminder import AUTOMATIC, PRIORITY_MAX, Asked
from sendonce.core.unsubscribe import Unsubscription, unsubscribe_url
from sendonce.ports.store import Reminder
from sendonce.template_book import TemplateBook, variables


@dataclass(frozen=True, slots=True)
class Target:
    """One delivery to be. `expires_at` in microseconds UTC."""

    channel: Channel
    key: str
    address_tag: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """One reminder, checked. `reminder.id` is 0: what it becomes is decided at admission.

    notes     what the caller may want to know, such as the zone that was assumed
    too_late  why it cannot be new any more; a reminder that is known already is none the worse for it
    """

    reminder: Reminder
    targets: tuple[Target, ...]
    notes: tuple[str, ...] = ()
    too_late: InvalidInput | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests come from. `source` names the list they stand in, `import_id` the run that reads
    it; "" and 0 for none."""

    source: str = ""
    import_id: int = 0


NO_ORIGIN: Final = Origin()


def prepare(
    asked: Asked,
    policy: Policy,
    templates: TemplateBook,
    *,
    secret: bytes,
    now: int,
    origin: Origin = NO_ORIGIN,
) -> list[Prepared]:
    """Check one request; one reminder, or one for each step of its plan.

    `now` (microseconds UTC) is what relative times count from. Raises `InvalidInput` with the field.
    """
    world = _World(policy, templates, secret, now, origin)
    tenant = check_id(asked.tenant, "tenant")
    reminder = check_id(asked.reminder, "reminder")
    addresses = _addresses(asked, policy)
    customer = (
        check_id(asked.customer, "customer") if asked.customer else _customer_of(addresses, secret, tenant)
    )
    _check_labels(asked, policy)
    if not asked.plan:
        if asked.date:
            raise InvalidInput(
                f"date {asked.date!r:.80} belongs to a plan: name the plan, or write the time into due",
                field="date",
            )
        due, notes = due_of(asked.due, asked.timezone, policy.zone(tenant), now)
        channels = _channels(asked, addresses, policy)
        return [_prepared(asked, world, reminder, customer, due, notes, channels)]
    prepared = []
    for step_ in _steps(asked, policy, tenant):
        channels = _step_channels(asked, addresses, policy, step_.label, step_.channels)
        if channels:
            notes = () if asked.timezone else (_zone_note(policy.zone(tenant)),)
            id_ = f"{reminder}/{step_.label}"
            own = asked if asked.group else replace(asked, group=reminder)
            prepared.append(_prepared(own, world, id_, customer, step_.due, notes, channels))
    if not prepared:
        raise InvalidInput(
            f"plan {asked.plan!r} has no step on channels {', '.join(asked.channels)}: name others",
            field="channels",
        )
    return prepared


def prepared_again(old: Reminder, *, secret: bytes) -> Prepared:
    """A reminder that the store has, as if it had just been asked for: to put it back as it was."""
    targets = []
    for name, recipient in old.recipients.items():
        channel = Channel(name)
        form = comparison_form(channel, recipient["to"])
        targets.append(
            Target(
                channel,
                Identity(old.reminder, old.customer, channel).key,
                address_tag(secret, old.tenant, channel, form),
                int(recipient["expires_at"]),
            )
        )
    return Prepared(old, tuple(targets))


@lru_cache(maxsize=4096)  # thousands of rows are due at the same time
def due_of(text: str, timezone: str, default_zone: str, now: int) -> tuple[Due, tuple[str, ...]]:
    """Read a due time as callers may write it, with notes on what was assumed.

    Besides the forms of `core.due.parse_due`: "now", "+20s" and "in 20s", counted from `now`. A time
    with an offset and no zone beside it keeps none, and its instant never moves.
    """
    if not text.strip():
        raise InvalidInput("due is empty: give a time such as 2026-12-01T09:00+01:00", field="due")
    zone = timezone or default_zone
    assumed: tuple[str, ...] = () if timezone else (_zone_note(default_zone),)
    relative = _RELATIVE.fullmatch(text.strip())
    if relative:
        wait_s = parse_duration(relative[1], field="due") if relative[1] else 0.0
        return at_instant(now + round(wait_s * SECOND), zone), assumed
    if not timezone and _WITH_OFFSET.search(text):
        return parse_due(text, zone=None), ()
    due = parse_due(text, zone=zone)
    if due.shift is not Shift.NONE:
        assumed += (shift_note(due),)
    return due, assumed


def at_instant(at: int, zone: str) -> Due:
    """The due time for an instant, as the wall clock of `zone` shows it."""
    seconds, micros = divmod(at, SECOND)
    return parse_due(f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z", zone=zone)


@dataclass(frozen=True, slots=True)
class _World:
    """What stays the same over many requests."""

    policy: Policy
    templates: TemplateBook
    secret: bytes
    now: int
    origin: Origin


def _prepared(
    asked: Asked,
    world: _World,
    reminder: str,
    customer: str,
    due: Due,
    notes: tuple[str, ...],
    channels: Mapping[Channel, str],
) -> Prepared:
    policy, now = world.policy, world.now
    tenant = asked.tenant.strip()
    category = asked.category or policy.default_category
    template = world.templates.get(tenant, _template_name(asked), asked.template_version)
    recipients: dict[str, dict[str, str]] = {}
    targets = []
    compared: list[str] = []
    for channel, address in channels.items():
        key = Identity(reminder, customer, channel).key
        form = comparison_form(channel, address)
        tag = address_tag(world.secret, tenant, channel, form)
        unsubscribe = ""
        known = policy.categories.get(category)
        if channel is Channel.EMAIL and known is not None and known.unsubscribe:
            what = Unsubscription(tenant, tag, category)
            unsubscribe = unsubscribe_url(policy.public_url, world.secret, what)
        template.part(channel).render(
            variables(
                asked.data,
                reminder=reminder,
                customer=customer,
                channel=channel,
                delivery_key=key,
                due_local=due.local,
                timezone=due.zone or policy.zone(tenant),
                unsubscribe=unsubscribe,
            )
        )
        expires_at = _expires_at(asked.expires, due, policy, channel, category, tenant, now)
        recipients[channel.value] = recipient = _recipient(asked, channel, address, expires_at)
        compared += (channel.value, form, recipient.get("sender", ""), recipient.get("reply_to", ""))
        targets.append(Target(channel, key, tag, expires_at))
    data = _canonical(asked.data)
    latest = max(target.expires_at for target in targets)
    return Prepared(
        Reminder(
            id=0,
            tenant=tenant,
            reminder=reminder,
            customer=customer,
            due_at=due.at,
            due_local=due.local,
            zone=due.zone,
            expires_at=latest,
            template=template.name,
            template_version=asked.template_version,
            category=category,
            priority=asked.priority,
            group=asked.group.strip(),
            source=world.origin.source,
            import_id=world.origin.import_id,
            linked="",
            data=data,
            recipients=recipients,
            spec_hash=_spec_hash(asked, due, data, "\0".join(compared)),
            version=1,
            created_at=now,
        ),
        tuple(targets),
        notes,
        _too_late(due, targets, policy, now),
    )


def _spec_hash(asked: Asked, due: Due, data: str, recipients: str) -> str:
    """Of what the caller gave, not of what the configuration added: that may change in between."""
    match _form_of(asked.due):
        case "relative":
            when = asked.due
        case "instant":
            when = str(due.at)
        case _:
            when = f"{due.local} {asked.timezone and due.zone}"
    # No part can hold a NUL: it would not have come this far.
    spec = "\0".join(
        (
            when, asked.expires, asked.template, str(asked.template_version), asked.category, asked.group,
            str(asked.priority), data, recipients,
        )
    )  # fmt: skip
    return hashlib.sha256(spec.encode()).hexdigest()


@lru_cache(maxsize=4096)
def _form_of(due: str) -> str:
    """How a due time was written: as "relative", "instant" or "local" time."""
    if _RELATIVE.fullmatch(due.strip()):
        return "relative"
    return "instant" if _WITH_OFFSET.search(due) else "local"


def _too_late(due: Due, targets: Sequence[Target], policy: Policy, now: int) -> InvalidInput | None:
    try:
        check_not_past(due, now, policy.late_ok_s)
    except InvalidInput as error:
        return error
    first = min(target.expires_at for target in targets)
    if first > now:
        return None
    return InvalidInput(
        f"it was due at {due.local} and would have expired {say_duration((now - first) / SECOND)} ago: "
        "give a later due time, or a later time in expires",
        field="expires",
        code="expired",
    )


def _expires_at(
    text: str, due: Due, policy: Policy, channel: Channel, category: str, tenant: str, now: int
) -> int:
    if not text:
        return due.at + round(policy.expiry_s(channel, category) * SECOND)
    if _INSTANT.match(text):
        expires_at = due_of(text, due.zone, policy.zone(tenant), now)[0].at
    else:
        expires_at = due.at + round(parse_duration(text, field="expires") * SECOND)
    if expires_at <= due.at:
        raise InvalidInput(
            f"expires {text!r:.80} is not after the due time {due.local}: give a later one, or a span such "
            "as 2h after it",
            field="expires",
        )
    return expires_at


# Who, and on which channels.


def _addresses(asked: Asked, policy: Policy) -> dict[Channel, str]:
    addresses = {}
    if asked.email:
        addresses[Channel.EMAIL] = normalise_email(asked.email)
    if asked.phone:
        addresses[Channel.SMS] = normalise_phone(asked.phone, region=policy.phone_region)
    if not addresses:
        raise InvalidInput(
            "there is no address: give an email address, a phone number, or both", field="email"
        )
    return addresses


def _customer_of(addresses: Mapping[Channel, str], secret: bytes, tenant: str) -> str:
    """A name for the person behind the first address: the same for every spelling, and no address.

    It stands in delivery keys and in the ledger, where a plain address must not.
    """
    channel, address = next(iter(addresses.items()))
    return name_of_person(address_tag(secret, tenant, channel, comparison_form(channel, address)))


def name_of_person(tag: str) -> str:
    """The customer that a reminder without one is for, by the tag of its first address."""
    return f"person-{tag[:16]}"


def _channels(asked: Asked, addresses: Mapping[Channel, str], policy: Policy) -> dict[Channel, str]:
    if not asked.channels:
        chosen = dict(addresses)
    else:
        chosen = {
            channel: _address_for(channel, addresses, f"{channel} is asked for")
            for channel in map(parse_channel, asked.channels)
        }
    _check_configured(chosen, policy)
    return chosen


def _step_channels(
    asked: Asked, addresses: Mapping[Channel, str], policy: Policy, label: str, names: Sequence[str]
) -> dict[Channel, str]:
    """The channels of a plan's step, as far as the row allows them; empty where it allows none."""
    allowed = [parse_channel(name) for name in asked.channels]
    wanted = [channel for name in names if (channel := parse_channel(name)) in allowed or not allowed]
    chosen = {
        channel: _address_for(channel, addresses, f"step {label} of the plan goes by {channel}")
        for channel in wanted
    }
    _check_configured(chosen, policy)
    return chosen


def _address_for(channel: Channel, addresses: Mapping[Channel, str], why: str) -> str:
    try:
        return addresses[channel]
    except KeyError:
        field = "email" if channel is Channel.EMAIL else "phone"
        raise InvalidInput(
            f"{why}, and the row has no {field}: give one, or name the channels it may use in channels",
            field=field,
        ) from None


def _check_configured(channels: Mapping[Channel, str], policy: Policy) -> None:
    for channel in channels:
        if channel not in policy.channels:
            raise InvalidInput(
                f"channel {channel} is not configured: use {', '.join(policy.channels)} or set up "
                f"[channel.{channel}]",
                field="channels",
            )


def _recipient(asked: Asked, channel: Channel, address: str, expires_at: int) -> dict[str, str]:
    """What the reminder remembers for a channel; "sender" and "reply_to" only where given."""
    found = {"to": address, "expires_at": str(expires_at)}
    match channel:
        case Channel.EMAIL:
            if asked.sender:
                found["sender"] = _mail_sender(asked.sender, "sender")
            if asked.reply_to:
                found["reply_to"] = _mail_sender(asked.reply_to, "reply_to")
        case Channel.SMS:
            if asked.sms_sender:
                found["sender"] = _sms_sender(asked.sms_sender)
    return found


@lru_cache(maxsize=256)
def _mail_sender(text: str, field: str) -> str:
    try:
        parse_sender(text)
    except InvalidInput as error:
        raise InvalidInput(str(error), field=field, code=error.code) from None
    return text.strip()


@lru_cache(maxsize=256)
def _sms_sender(text: str) -> str:
    try:
        return normalise_sms_sender(text)
    except InvalidInput as error:
        raise InvalidInput(str(error), field="sms_sender", code=error.code) from None


# What else is given.


def _check_labels(asked: Asked, policy: Policy) -> None:
    if asked.category and asked.category not in policy.categories:
        raise InvalidInput(
            f"category {asked.category!r:.80} is not configured: use {', '.join(sorted(policy.categories))}",
            field="category",
        )
    if asked.group:
        check_id(asked.group, "group")
    if not 0 <= asked.priority <= PRIORITY_MAX:
        raise InvalidInput(
            f"priority {asked.priority} must be from 0 (the rule) to {PRIORITY_MAX} (first)",
            field="priority",
        )
    for name in AUTOMATIC:
        if name in asked.data:
            raise InvalidInput(
                f"variable {name!r} is filled in by sendonce: give yours another name", field=name
            )


def _template_name(asked: Asked) -> str:
    if not asked.template:
        raise InvalidInput("template is empty: name one, see `sendonce template list`", field="template")
    return asked.template


def _steps(asked: Asked, policy: Policy, tenant: str) -> list[PlannedStep]:
    if asked.due:
        raise InvalidInput(
            f"a plan takes a date and makes its own due times: drop due {asked.due!r:.80} or the plan",
            field="due",
        )
    plan = policy.plans.get(asked.plan)
    if plan is None:
        known = ", ".join(sorted(policy.plans)) or "none is configured"
        raise InvalidInput(f"unknown plan {asked.plan!r:.80}: use one of {known}", field="plan")
    return expand(plan, asked.date, asked.timezone or policy.zone(tenant))


@lru_cache(maxsize=16)
def _zone_note(zone: str) -> str:
    return f"no timezone given: {zone} was assumed"


def _canonical(data: Mapping[str, object]) -> str:
    try:
        return canonical(data) if data else "{}"
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"data is no plain JSON ({error}): use text, numbers, lists, objects", field="data"
        ) from None


_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
canonical = _JSON.encode
"""The one spelling of JSON values: keys sorted, no blanks."""

_RELATIVE = re.compile(r"now|(?:\+|in\s+)(\d.*)", re.IGNORECASE)
_WITH_OFFSET = re.compile(r"(?:[zZ]|:\d\d(?:[.,]\d+)?[+-]\d\d(?::?\d\d)?)\s*$")
_INSTANT = re.compile(r"\d{4}-|now|\+|in\s", re.IGNORECASE)
