"""The way in: prepared reminders meet what the store has, and become deliveries or a true answer.

    Prepared --admit, in a unit of the store--> Result

The same content again changes nothing. Other content under a known id is a conflict that names the
fields, or a revision where the caller asked for one, as long as nothing of it may have been sent. A
reminder is revised as a whole or not at all: a channel that is no longer asked for is cancelled, a
new one is added. `again` sends what has ended once more, as a new reminder.

A unit takes some dozens of reminders, short enough for everybody else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

from sendonce.address import comparison_form
from sendonce.core import news
from sendonce.core.delivery import Channel, Identity, check_id
from sendonce.core.due import SECOND
from sendonce.core.errors import InvalidInput, NotFound, Refused, StoreUnavailable
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import OPEN, UNSENT, Event, Moved, NotMoved, State, step
from sendonce.core.policy import Policy
from sendonce.held import doubted
from sendonce.moves import facts_of
from sendonce.ports.store import Course, Delivery, Move, NewDelivery, Reminder, Tx
from sendonce.preparation import Prepared, Target, at_instant, canonical
from sendonce.withdrawal import check_reason, withdraw

UNIT_MAX: Final = 50
"""Reminders in one unit. Larger ones are a little faster, and hold the write lock for longer."""

UNDONE: Final = "import_undone"
"""The coded reason of deliveries that were cancelled because their import was undone."""

NOT_LISTED: Final = "not_listed"
"""The coded reason of deliveries that were cancelled because their source no longer listed them."""

CHANNEL_REMOVED: Final = "channel_removed"

AGAIN_MAX: Final = 100


class Mode(StrEnum):
    """What happens to a known reminder that is given with other content."""

    NEW = "new"  # it is a conflict
    UPDATE = "update"  # it is revised, as long as nothing of it may have been sent


class Verdict(StrEnum):
    """What became of one reminder."""

    ACCEPTED = "accepted"
    UNCHANGED = "unchanged"
    REVISED = "revised"
    CONFLICTING = "conflicting"  # other content, and no revision was asked for; nothing was changed
    REFUSED = "refused"  # the life cycle says no; nothing was changed
    INVALID = "invalid"  # too late to be new


@dataclass(frozen=True, slots=True)
class Result:
    """The answer for one prepared reminder.

    keys     delivery keys, in the order of the channels
    fields   what differs, for revisions and conflicts
    why      a sentence for people; "" where the verdict says it all
    """

    verdict: Verdict
    reminder_id: int
    keys: tuple[str, ...]
    fields: tuple[str, ...] = ()
    field: str = ""
    why: str = ""


def admit(
    tx: Tx,
    prepared: Sequence[Prepared],
    *,
    policy: Policy,
    actor: str,
    mode: Mode = Mode.NEW,
) -> list[Result]:
    """Take in up to about `UNIT_MAX` reminders in this unit; results in their order.

    A reminder stays in the source that it was first in.
    """
    results: list[Result] = []
    for distinct in _runs_of_distinct(prepared):
        results += _admit_distinct(tx, distinct, policy, mode, actor)
    if any(
        one.reminder.due_at <= tx.now and result.verdict in (Verdict.ACCEPTED, Verdict.REVISED)
        for one, result in zip(prepared, results, strict=True)
    ):
        tx.announce(news.DUE)
    return results


def _runs_of_distinct(prepared: Sequence[Prepared]) -> Iterator[list[Prepared]]:
    """Cut where an identity comes again: it must meet what its first row has written."""
    run: list[Prepared] = []
    seen: set[tuple[str, str, str]] = set()
    for one in prepared:
        key = identity_of(one)
        if key in seen:
            yield run
            run, seen = [], set()
        run.append(one)
        seen.add(key)
    yield run


def identity_of(prepared: Prepared) -> tuple[str, str, str]:
    """(tenant, reminder, customer)."""
    return (prepared.reminder.tenant, prepared.reminder.reminder, prepared.reminder.customer)


def _admit_distinct(
    tx: Tx, prepared: Sequence[Prepared], policy: Policy, mode: Mode, actor: str
) -> list[Result]:
    known = tx.reminders.find([identity_of(one) for one in prepared])
    new = [one for one, old in zip(prepared, known, strict=True) if old is None and not one.too_late]
    removed = tx.removals.known([identity_of(one) for one in new])
    fresh = [one for one in new if identity_of(one) not in removed]
    ids = iter(_insert(tx, fresh, actor))
    deliveries: dict[int, list[Delivery]] = {}
    for delivery in tx.deliveries.of_reminders([old.id for old in known if old is not None]):
        deliveries.setdefault(delivery.reminder_id, []).append(delivery)
    results = []
    for one, old in zip(prepared, known, strict=True):
        if old is not None:
            results.append(_meet(tx, one, old, deliveries.get(old.id, []), policy, mode, actor))
        elif one.too_late is not None:
            results.append(_invalid(one, one.too_late, 0))
        elif identity_of(one) in removed:
            results.append(_gone(one, 0, mode, "it ended long ago and was removed"))
        else:
            results.append(Result(Verdict.ACCEPTED, next(ids), _keys(one)))
    return results


def _insert(tx: Tx, fresh: Sequence[Prepared], actor: str) -> list[int]:
    if not fresh:
        return []
    ids = tx.reminders.insert([one.reminder for one in fresh])
    tx.deliveries.insert(
        [
            _new_delivery(one.reminder, target, id_, actor)
            for one, id_ in zip(fresh, ids, strict=True)
            for target in one.targets
        ]
    )
    return ids


def _new_delivery(reminder: Reminder, target: Target, id_: int, actor: str) -> NewDelivery:
    return NewDelivery(
        tenant=reminder.tenant,
        key=target.key,
        reminder_id=id_,
        customer=reminder.customer,
        channel=target.channel,
        address_tag=target.address_tag,
        category=reminder.category,
        group=reminder.group,
        priority=reminder.priority,
        due_at=reminder.due_at,
        expires_at=target.expires_at,
        actor=actor,
        details=_details(reminder, target),
    )


def _details(reminder: Reminder, target: Target) -> dict[str, Value]:
    return {
        "due_at": reminder.due_at,
        "expires_at": target.expires_at,
        "template": reminder.template,
        "address": target.address_tag,
        "import": reminder.import_id or None,
    }


# A reminder that is known already.


def _meet(
    tx: Tx,
    new: Prepared,
    old: Reminder,
    deliveries: Sequence[Delivery],
    policy: Policy,
    mode: Mode,
    actor: str,
) -> Result:
    if not old.recipients:
        same = old.spec_hash == new.reminder.spec_hash
        why = "it has ended" if old.spec_hash else "its customer was erased"
        return _gone(new, old.id, Mode.NEW if same else mode, f"{why}, and what it said was destroyed")
    fields = () if old.spec_hash == new.reminder.spec_hash else differences(old, new.reminder)
    undone = {delivery.channel for delivery in deliveries if _may_come_back(delivery, old, new.reminder)}
    if not fields and not undone:
        cancelled = any(delivery.standing.state is State.CANCELLED for delivery in deliveries)
        why = "it was cancelled and stays so: to send it after all, give it another id" if cancelled else ""
        return Result(Verdict.UNCHANGED, old.id, _keys(new), why=why)
    kept = {delivery.channel: delivery for delivery in deliveries if delivery.channel not in undone}
    if fields and mode is Mode.NEW and kept:
        why = f"it is known with another {', '.join(fields)}: nothing was changed; an update would revise it"
        return Result(Verdict.CONFLICTING, old.id, _keys(new), fields, why=why)
    if new.too_late is not None:
        return _invalid(new, new.too_late, old.id)
    deliveries = doubted(tx, deliveries, policy)
    plan = _plan_revision(tx, new, deliveries, undone, policy, content_changed=bool(fields))
    if isinstance(plan, str):
        return Result(Verdict.REFUSED, old.id, _keys(new), fields, why=plan)
    _revise(tx, new, old, plan, fields, policy, actor)
    return Result(Verdict.REVISED if kept else Verdict.ACCEPTED, old.id, _keys(new), fields)


def _gone(new: Prepared, id_: int, mode: Mode, why: str) -> Result:
    """It is known, and nobody can tell any more whether it is the same: it is never sent again by itself."""
    verdict = Verdict.UNCHANGED if mode is Mode.NEW else Verdict.REFUSED
    return Result(verdict, id_, _keys(new), why=f"{why}: to send it after all, give it another id")


def _may_come_back(delivery: Delivery, old: Reminder, new: Reminder) -> bool:
    """Cancelled by a file and not by a person: a file brings it back, in the second case its own source."""
    if delivery.standing.state is not State.CANCELLED:
        return False
    reason = delivery.course.reason
    return reason == UNDONE or (reason == NOT_LISTED and new.source == old.source != "")


@dataclass(frozen=True, slots=True)
class _Revision:
    moved: list[tuple[Delivery, Target, Event, Moved]]
    added: list[Target]
    removed: list[Delivery]


def _plan_revision(
    tx: Tx,
    new: Prepared,
    deliveries: Sequence[Delivery],
    undone: Set[Channel],
    policy: Policy,
    *,
    content_changed: bool,
) -> _Revision | str:
    """What must happen to each channel, or the reason why the reminder stays as it is."""
    own = {delivery.channel: delivery for delivery in deliveries}
    revision = _Revision([], [], [])
    for target in new.targets:
        delivery = own.pop(target.channel, None)
        if delivery is None:
            revision.added.append(target)
        elif target.channel in undone or content_changed:
            event = Event.RESTORED if target.channel in undone else Event.REVISED
            world = facts_of(delivery, policy, now=tx.now, steady=tx.steady)
            match step(delivery.standing, event, world):
                case Moved() as moved:
                    revision.moved.append((delivery, target, event, moved))
                case NotMoved(why):
                    return f"{target.channel}: {why}"
    for delivery in own.values():
        standing = delivery.standing
        if standing.state in OPEN:
            if standing.state not in UNSENT or standing.maybe:
                return f"{delivery.channel}: may already be sent ({standing.state}), so it cannot be left out"
            revision.removed.append(delivery)
    return revision


def _revise(
    tx: Tx,
    new: Prepared,
    old: Reminder,
    plan: _Revision,
    fields: tuple[str, ...],
    policy: Policy,
    actor: str,
) -> None:
    # Read before its deliveries were locked: meanwhile it may have been emptied, or removed with all of them.
    now = tx.reminders.by_ids([old.id]).get(old.id)
    if now is None or not now.recipients:
        raise StoreUnavailable(f"{new.reminder.reminder} was removed while it was revised: try again")
    reminder = replace(
        new.reminder,
        id=old.id,
        source=old.source or new.reminder.source,
        linked=old.linked,
        created_at=old.created_at,
        version=old.version + 1,
    )
    tx.reminders.revise([reminder])
    changed = ",".join(fields)
    done = tx.deliveries.move(
        [
            Move(
                before=delivery,
                event=event,
                standing=moved.standing,
                course=Course(
                    due_at=reminder.due_at,
                    next_at=reminder.due_at,
                    expires_at=target.expires_at,
                    attempts=delivery.course.attempts,
                ),
                actor=actor,
                details={**_details(reminder, target), "changed": changed},
                address_tag=target.address_tag,
                category=reminder.category,
                group=reminder.group,
                priority=reminder.priority,
            )
            for delivery, target, event, moved in plan.moved
        ]
    )
    if not all(done):
        raise StoreUnavailable(f"{reminder.reminder} changed while it was revised: try again")
    tx.deliveries.insert([_new_delivery(reminder, target, old.id, actor) for target in plan.added])
    withdraw(tx, plan.removed, Event.CANCELLED, policy=policy, actor=actor, reasons=CHANNEL_REMOVED)


def differences(old: Reminder, new: Reminder) -> tuple[str, ...]:
    """The fields, by the names that callers know, in which two reminders differ."""
    found = [
        name
        for name, before, after in (
            ("due", (old.due_at, old.due_local), (new.due_at, new.due_local)),
            ("timezone", old.zone, new.zone),
            ("template", old.template, new.template),
            ("template_version", old.template_version, new.template_version),
            ("category", old.category, new.category),
            ("group", old.group, new.group),
            ("priority", old.priority, new.priority),
            ("channels", set(old.recipients), set(new.recipients)),
        )
        if before != after
    ]
    for channel in Channel:
        if channel in old.recipients and channel in new.recipients:
            before, after = old.recipients[channel], new.recipients[channel]
            found += _recipient_differences(channel, before, after)
            if int(before["expires_at"]) - old.due_at != int(after["expires_at"]) - new.due_at:
                found.append("expires")
    if old.data != new.data:
        found += _data_differences(json.loads(old.data), json.loads(new.data))
    return tuple(dict.fromkeys(found))


def _data_differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    names = sorted({*old, *new})
    return [
        f"data.{name}"
        for name in names
        if name not in old or name not in new or canonical(old[name]) != canonical(new[name])
    ]


def _recipient_differences(channel: Channel, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    address = "email" if channel is Channel.EMAIL else "phone"
    sender = "sender" if channel is Channel.EMAIL else "sms_sender"
    found = []
    if comparison_form(channel, old["to"]) != comparison_form(channel, new["to"]):
        found.append(address)
    if old.get("sender") != new.get("sender"):
        found.append(sender)
    if old.get("reply_to") != new.get("reply_to"):
        found.append("reply_to")
    return found


def _keys(prepared: Prepared) -> tuple[str, ...]:
    return tuple(target.key for target in prepared.targets)


def _invalid(prepared: Prepared, error: InvalidInput, id_: int) -> Result:
    return Result(Verdict.INVALID, id_, _keys(prepared), field=error.field, why=str(error))


# Sending again.


def again(tx: Tx, key: str, *, tenant: str, policy: Policy, reason: str, actor: str) -> Result:
    """Send what has ended once more, as a new reminder `ID/again-1` that is linked to it and due now.

    Never a redrive: that keeps the key, and the provider would take it for the same message. While
    an earlier one is still on its way, that one is the answer, so pressing twice sends once. Raises
    `NotFound`, and `Refused` with the reason and what would work instead.
    """
    reason = check_reason(reason)
    found = tx.deliveries.by_keys([(tenant, key)])
    if not found:
        raise NotFound(f"no delivery {key!r:.200} of tenant {tenant}")
    (delivery,) = found
    if refusal := _not_again(delivery):
        raise Refused(f"{key}: {refusal}")
    old = tx.reminders.by_ids([delivery.reminder_id])[delivery.reminder_id]
    if not old.recipients:
        raise Refused(f"{key}: what it said, and to whom, was destroyed: schedule a new reminder instead")
    for number in range(1, AGAIN_MAX + 1):
        id_ = f"{old.reminder}/again-{number}"
        own_key = Identity(id_, old.customer, delivery.channel).key
        if (there := tx.deliveries.by_keys([(tenant, own_key)])) and there[0].standing.state in OPEN:
            return Result(Verdict.UNCHANGED, there[0].reminder_id, (own_key,), why="it is on its way already")
        if tx.reminders.find([(tenant, id_, old.customer)])[0] is None:
            prepared = _once_more(tx, old, delivery, check_id(id_, "reminder"), policy)
            tx.runs.audit(actor, "send_again", key, reason, {"reminder": id_})
            ids = _insert(tx, [prepared], actor)
            tx.announce(news.DUE)
            return Result(Verdict.ACCEPTED, ids[0], (own_key,))
    raise Refused(f"{key} was sent again {AGAIN_MAX} times: give the reminder a new id")


def _not_again(delivery: Delivery) -> str:
    """Why a delivery cannot be sent again; "" where it can."""
    match delivery.standing.state:
        case State.SCHEDULED | State.QUEUED | State.SENDING:
            return "it is still on its way: wait for it, or change its due time"
        case State.RECONCILING | State.UNCERTAIN:
            return "it may have been sent: resolve it first, or both may arrive"
        case State.DEAD | State.REJECTED:
            return "it was not sent: redrive it, which keeps its key"
        case State.SUPPRESSED:
            return f"the address may not be written to ({delivery.course.reason}): an opt-in comes first"
        case State.ACCEPTED | State.ASSUMED_SENT | State.CANCELLED | State.EXPIRED | State.NOT_SENT:
            return ""
        case never:
            assert_never(never)


def _once_more(tx: Tx, old: Reminder, delivery: Delivery, id_: str, policy: Policy) -> Prepared:
    due = at_instant(tx.now, old.zone or policy.zone(old.tenant))
    channel = delivery.channel
    expires_at = due.at + round(policy.expiry_s(channel, old.category) * SECOND)
    frozen = tx.contents.get([(delivery.id, delivery.standing.version)]).get(delivery.id)
    recipient = {**old.recipients[channel], "expires_at": str(expires_at)}
    reminder = replace(
        old,
        id=0,
        reminder=id_,
        due_at=due.at,
        due_local=due.local,
        zone=due.zone,
        expires_at=expires_at,
        template_version=frozen.template_version if frozen else old.template_version,
        source="",
        import_id=0,
        linked=delivery.key,
        recipients={channel.value: recipient},
        spec_hash=hashlib.sha256(canonical(["again", delivery.key, id_]).encode()).hexdigest(),
        version=1,
        created_at=tx.now,
    )
    key = Identity(id_, old.customer, channel).key
    return Prepared(reminder, (Target(channel, key, delivery.address_tag, expires_at),))
