"""Erasing a person: what is not sent ends, what was said to them is destroyed, and the record stays whole.

    asked --a unit a page--> waiting in the outbox: dropped
                             open deliveries: cancelled, or marked as in a cancel
                             text, address, data, earlier revisions: destroyed
                             addresses: suppressed by their tags, what records show of them blanked
          --nothing left--> done

What remains says nothing about anybody who does not hold the store's secret or the caller's own ids: ledger
entries with delivery keys, times, codes and tags, so that every chain still verifies; and the suppressions,
so that nobody erased is written to again.

A delivery that is being called, asked about or in doubt needs its text until it has ended; nothing takes it
from there, and the life cycle lets it go nowhere but to its end. The request stands in the store until then,
and `pipeline.retention` looks after it. Erasing again changes nothing.

Every page locks its deliveries first. So a claim or a publication either comes before, and is met as SENDING
or QUEUED, or comes after, and finds nothing to take.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sendonce.address import comparison_form, normalise_email, normalise_phone
from sendonce.asking import FIELD_OF, asked_of_mapping
from sendonce.core.consent import ANY_CATEGORY, Kind
from sendonce.core.delivery import Channel, address_tag, check_id, customer_tag
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.lifecycle import Event, State
from sendonce.core.policy import Policy
from sendonce.moves import facts_of
from sendonce.pipeline.record import lines_of
from sendonce.ports.store import Delivery, Erasure, HandedIn, Store, Tx
from sendonce.preparation import name_of_person
from sendonce.withdrawal import Answer, check_reason, judge, lock_open, withdraw, withdraw_refused

PAGE: Final = 8
"""Deliveries in one unit, each with its ledger read: some 5 ms of the write lock."""
HANDED_PAGE: Final = 200
REASON: Final = "erased"
"""The coded reason in the ledger; what the person who asked wrote stands in the audit."""

NEEDS_ITS_TEXT: Final = frozenset({State.SCHEDULED, State.QUEUED, State.SENDING, State.RECONCILING})
"""States in which a delivery, that could not be cancelled at once, is published, called or asked about."""


@dataclass(slots=True)
class Erased:
    """What one run did; of a preview, what it would do.

    deliveries  of this person, all that are known
    answers     by word, what became of those that were not erased before (`withdrawal.Word`)
    reminders   emptied; `texts` of them destroyed
    dropped     from the outbox
    addresses   suppressed now, that were not
    others      open deliveries of other customers to the same addresses, which are suppressed with them
    waiting     deliveries that are on their way or in doubt: the rest follows when they have ended
    """

    preview: bool = False
    deliveries: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    reminders: int = 0
    texts: int = 0
    dropped: int = 0
    addresses: int = 0
    others: int = 0
    waiting: int = 0

    @property
    def changed(self) -> bool:
        return bool(self.reminders or self.texts or self.dropped or self.addresses or self.answers)


def erase(
    store: Store,
    customer: str,
    *,
    policy: Policy,
    tenant: str,
    reason: str,
    actor: str,
    may_write: bool = False,
    progress: Callable[[Erased], None] = lambda erased: None,
) -> Erased:
    """Erase a customer; answered when it is durable, as far as it can be by now (`waiting`).

    `may_write`: suppress nothing, so that the person may be written to when somebody schedules anew. Raises
    `InvalidInput`, `NotFound` where nothing is known of the customer, and `StoreUnavailable`: then a
    scheduler goes on with it.
    """
    asked = _asked(customer, tenant, reason, actor, may_write=may_write)
    _check_known(store, asked, policy)

    def begin(tx: Tx) -> Erasure:
        request = Erasure(tenant, asked.customer, tx.now, actor, asked.reason, may_write)
        tx.removals.ask(request)
        tag = customer_tag(store.secret, tenant, asked.customer)
        tx.runs.audit(actor, "erase", tag, asked.reason, {"may_write": may_write})
        return request

    return go_on(store, store.write(begin).result(), policy, progress=progress)


def preview(store: Store, customer: str, *, policy: Policy, tenant: str, may_write: bool = False) -> Erased:
    """What erasing would do. Changes nothing; raises as `erase`."""
    asked = _asked(customer, tenant, "preview", "", may_write=may_write)
    _check_known(store, asked, policy)
    done = Erased(preview=True)
    done.dropped = len(_handed_in(store, asked, policy))
    after, addresses = 0, set[tuple[str, str, str]]()
    while page := store.read(partial(_page, asked, after)):
        after = page[-1].id
        addresses |= store.read(partial(_look_at, page, policy, done))
    if not may_write:
        ids = frozenset(_ids_of(store, asked))
        for each in sorted(addresses):
            store.read(partial(_look_at_address, each, ids, done))
    return done


def go_on(
    store: Store,
    request: Erasure,
    policy: Policy,
    *,
    progress: Callable[[Erased], None] = lambda erased: None,
) -> Erased:
    """Do what can be done of a request by now, in short units; it is finished where nothing waits any
    more."""
    done = Erased()
    # The outbox first: what the collector takes in meanwhile is then met as a delivery.
    handed = _handed_in(store, request, policy)
    for at in range(0, len(handed), PAGE):
        ids = handed[at : at + PAGE]
        store.write(partial(_drop, ids)).result()
        done.dropped += len(ids)
    after = 0
    while True:
        seen = store.read(partial(_seen, request, after))
        unit = store.write(partial(_erase_page, request, policy, store.secret, after, seen)).result()
        if unit.last is None:
            break
        after = unit.last
        unit.add_to(done)
        progress(done)
    if not done.waiting:
        store.write(partial(_finish, request, store.secret, done)).result()
    return done


def _asked(customer: str, tenant: str, reason: str, actor: str, *, may_write: bool) -> Erasure:
    return Erasure(tenant, check_id(customer, "customer"), 0, actor, check_reason(reason), may_write)


def _check_known(store: Store, asked: Erasure, policy: Policy) -> None:
    if not store.read(partial(_page, asked, 0)) and not _handed_in(store, asked, policy):
        raise NotFound(
            f"nothing is known of customer {asked.customer!r:.80} in tenant {asked.tenant}: give the id that "
            "stands in the delivery keys; `sendonce find` finds it by an address"
        )


def _page(asked: Erasure, after: int, tx: Tx) -> list[Delivery]:
    selection = {"tenant": asked.tenant, "customer": asked.customer}
    return tx.deliveries.matching("customer", selection, PAGE, after)


# A page of deliveries


@dataclass(slots=True)
class _Unit:
    """What one unit did. `last`: the last delivery of the page; None where there was none."""

    last: int | None = None
    deliveries: int = 0
    answers: Sequence[Answer] = ()
    reminders: int = 0
    texts: int = 0
    addresses: int = 0
    others: int = 0
    waiting: int = 0

    def add_to(self, done: Erased) -> None:
        done.deliveries += self.deliveries
        done.answers.update(answer.word.value for answer in self.answers if answer.changed)
        done.reminders += self.reminders
        done.texts += self.texts
        done.addresses += self.addresses
        done.others += self.others
        done.waiting += self.waiting


_Seen = tuple[frozenset[int], frozenset[tuple[str, str, str]]]
"""The ids of a page, and the addresses that it went to."""


def _seen(request: Erasure, after: int, tx: Tx) -> _Seen:
    page = _page(request, after, tx)
    return frozenset(row.id for row in page), _addresses(tx, page)


def _erase_page(request: Erasure, policy: Policy, secret: bytes, after: int, seen: _Seen, tx: Tx) -> _Unit:
    """One unit. Locks in one order, as everywhere: events, preferences, deliveries by id. `seen` is what the
    page was shortly before, by which that is known ahead; what a revision brought in between is added."""
    ids, expected = seen
    # Whoever applies an event holds it, and then wants the others.
    tx.events.blank(sorted(ids), _tags(expected))
    suppressed = 0
    if not request.may_write:
        suppressed = _suppress(tx, sorted(expected), request.actor)
    tx.removals.blank(sorted(expected))
    if not request.may_write:
        lock_open(tx, expected, ids)
    page = _page(request, after, tx)
    if not page:
        return _Unit()
    unit = _Unit(last=page[-1].id, deliveries=len(page), addresses=suppressed)
    unit.answers = withdraw(tx, page, Event.CANCELLED, policy=policy, actor=request.actor, reasons=REASON)
    addresses = sorted(_addresses(tx, page) | expected)
    if not request.may_write:
        unit.addresses += _suppress(tx, sorted(set(addresses) - expected), request.actor)
        own = {row.id for row in page}
        answers = withdraw_refused(tx, addresses, policy=policy, actor=request.actor)
        unit.others = sum(answer.changed and answer.delivery_id not in own for answer in answers)
    added = frozenset(addresses) - expected
    tx.removals.blank(sorted(added))
    # Of the page once more: some may have been applied while the first look waited for them.
    tx.events.blank([row.id for row in page], _tags(added))
    _destroy(tx, unit, {row.reminder_id for row in page}, frozenset(row.id for row in page))
    return unit


def _tags(addresses: Collection[tuple[str, str, str]]) -> list[tuple[str, str]]:
    return sorted({(tenant, tag) for tenant, _, tag in addresses})


def _destroy(tx: Tx, unit: _Unit, reminder_ids: Collection[int], page: frozenset[int]) -> None:
    """Empty the reminders of which no delivery needs its text any more."""
    of: dict[int, list[Delivery]] = {}
    for row in tx.deliveries.of_reminders(sorted(reminder_ids)):
        of.setdefault(row.reminder_id, []).append(row)
        unit.waiting += row.id in page and row.standing.state in NEEDS_ITS_TEXT
    over = {
        id_: rows for id_, rows in of.items() if not any(row.standing.state in NEEDS_ITS_TEXT for row in rows)
    }
    full = [id_ for id_, one in tx.reminders.by_ids(list(over)).items() if one.recipients or one.spec_hash]
    unit.texts = tx.removals.empty(full, [row.id for id_ in full for row in over[id_]], erased=True)
    unit.reminders = len(full)


def _addresses(tx: Tx, page: Sequence[Delivery]) -> frozenset[tuple[str, str, str]]:
    return frozenset(each for row in page for each in _addresses_of(tx, row))


def _addresses_of(tx: Tx, row: Delivery) -> set[tuple[str, str, str]]:
    """Where this delivery was ever to go, by the tags in its ledger: a revision may have changed it."""
    told = {line.word("address") for line in lines_of(tx, row.id)}
    return {(row.tenant, row.channel.value, tag) for tag in told | {row.address_tag} if tag}


def _suppress(tx: Tx, addresses: Sequence[tuple[str, str, str]], actor: str) -> int:
    known = tx.preferences.of(addresses)
    new = [
        each
        for each in addresses
        if not any(
            one.kind is Kind.SUPPRESSED and one.category == ANY_CATEGORY for one in known.get(each, [])
        )
    ]
    return tx.preferences.put(
        [
            {
                "tenant": tenant,
                "channel": channel,
                "address_tag": tag,
                "category": ANY_CATEGORY,
                "kind": Kind.SUPPRESSED.value,
                "at": tx.now,
                "source": REASON,
                "evidence": "",
                "masked": "",
                "actor": actor,
            }
            for tenant, channel, tag in new
        ]
    )


def _finish(request: Erasure, secret: bytes, done: Erased, tx: Tx) -> None:
    tx.removals.finish(request)
    counts = {"deliveries": done.deliveries, "reminders": done.reminders, "texts": done.texts}
    tag = customer_tag(secret, request.tenant, request.customer)
    tx.runs.audit(request.actor, REASON, tag, request.reason, {**counts, "dropped": done.dropped})


# What only looks


def _look_at(page: Sequence[Delivery], policy: Policy, done: Erased, tx: Tx) -> set[tuple[str, str, str]]:
    for row in page:
        done.deliveries += 1
        answer, _ = judge(row, Event.CANCELLED, facts_of(row, policy, now=tx.now, steady=tx.steady))
        if answer.changed:
            done.answers[answer.word.value] += 1
        done.waiting += answer.changed and answer.state in NEEDS_ITS_TEXT
        done.texts += len(tx.contents.get([(row.id, row.standing.version)]))
    reminders = tx.reminders.by_ids([row.reminder_id for row in page]).values()
    # Of two channels of one reminder the first counts, so that no page has to remember the one before.
    first = {min(each.id for each in tx.deliveries.of_reminders([one.id])): one for one in reminders}
    ids = {row.id for row in page}
    done.reminders += sum(bool(one.recipients or one.spec_hash) for id_, one in first.items() if id_ in ids)
    return set(_addresses(tx, page))


def _look_at_address(address: tuple[str, str, str], own: Collection[int], done: Erased, tx: Tx) -> None:
    tenant, channel, tag = address
    records = tx.preferences.of([address]).get(address, [])
    suppressed = any(one.kind is Kind.SUPPRESSED and one.category == ANY_CATEGORY for one in records)
    done.addresses += not suppressed
    after = 0
    selection = {"tenant": tenant, "address_tag": tag}
    while page := tx.deliveries.matching("address_open", selection, PAGE, after):
        after = page[-1].id
        done.others += sum(row.id not in own and row.channel == channel for row in page)


def _ids_of(store: Store, asked: Erasure) -> list[int]:
    ids: list[int] = []
    while page := store.read(partial(_page, asked, ids[-1] if ids else 0)):
        ids += [row.id for row in page]
    return ids


# What applications handed in


def _drop(ids: Sequence[int], tx: Tx) -> None:
    tx.intake.remove(ids)


def _handed_in(store: Store, asked: Erasure, policy: Policy) -> list[int]:
    """The numbers of what nobody has taken in and is this person's."""
    found: list[int] = []
    after = 0
    while page := store.read(partial(_handed_page, after)):
        after = page[-1].id
        found += [one.id for one in page if _is_theirs(one, asked, policy, store.secret)]
    return found


def _handed_page(after: int, tx: Tx) -> list[HandedIn]:
    return tx.removals.handed_in(HANDED_PAGE, after)


def _is_theirs(handed: HandedIn, asked: Erasure, policy: Policy, secret: bytes) -> bool:
    if handed.tenant != asked.tenant:
        return False
    try:
        given = json.loads(handed.body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(given, dict):
        return False
    return asked.customer in _customers_of(given, handed.tenant, policy, secret)


def _customers_of(given: Mapping[str, object], tenant: str, policy: Policy, secret: bytes) -> set[str]:
    """Whose it is: the customer that it names, else the person behind any of its addresses."""
    try:
        asked = asked_of_mapping(given, tenant)
        named, email, phone = asked.customer, asked.email, asked.phone
    except InvalidInput:  # parked, with a field that nobody can read
        texts = {FIELD_OF.get(name, ""): text for name, text in given.items() if isinstance(text, str)}
        named, email, phone = (texts.get(name, "") for name in ("customer", "email", "phone"))
    if named:
        return {named.strip()}
    people: set[str] = set()
    for channel, text in ((Channel.EMAIL, email), (Channel.SMS, phone)):
        try:
            match channel:
                case Channel.EMAIL:
                    address = normalise_email(text)
                case Channel.SMS:
                    address = normalise_phone(text, region=policy.phone_region)
        except InvalidInput:
            continue
        form = comparison_form(channel, address)
        people.add(name_of_person(address_tag(secret, tenant, channel, form)))
    return people
