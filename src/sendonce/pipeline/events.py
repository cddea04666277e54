"""What providers say later: taken in at once, applied in groups.

    a call, verified and read --take_in--> durable, waiting --apply--> done: beside its delivery, in force
                                 \\--> a faulty item: kept, for people      \\--> unmatched, for people

`take_in` writes down what was said, and nothing else, so that the provider is answered fast. What was told
before, by the same identity at the same account, changes nothing.

`apply` finds the delivery: by our own send key where it came back verified, else by the receipt that our
ledger knows, and only under the account that made the call. An event may be faster than the commit of our own
outcome, so one that finds nothing looks again, at growing intervals, for a bounded time; then it is left to
people. What follows from one:

    the delivery   what was said is folded beside it; its own row is not touched. Where the send key proves
                   that the provider had it and our record does not say so, it is settled as PROVEN
    the address    a bounce, a complaint, a STOP: a record, in force at once, as in `pipeline.consent`

No event ever makes a call, and none takes anything back that the ledger says. Any number of processes may
apply at once, and one that dies leaves all as it was: whatever an event does is one unit, and all of it may
be done again.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sendonce import metrics, telemetry
from sendonce.address import comparison_form, country_of, masked, normalise_email, normalise_phone
from sendonce.core import news, opt_out
from sendonce.core.consent import ANY_CATEGORY, Kind
from sendonce.core.delivery import Channel, address_tag, mark_of, send_key
from sendonce.core.errors import InvalidInput, StoreMismatch, StoreUnavailable
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import SAYS_NOT_SENT, Event, NotMoved, State
from sendonce.core.opt_out import Meaning
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.core.provider_event import BY_ADDRESS, PROVES, EventKind, Fact, ProviderEvent, consent_of
from sendonce.moves import move_on
from sendonce.pipeline.record import lines_of, masked_of
from sendonce.ports.store import EventLook, Row, Sent, Store, StoredEvent, Tx
from sendonce.telemetry import fault, tell
from sendonce.withdrawal import lock_open, withdraw_refused

RETURNED_MAIL: Final = ""
"""The account of what came as mail: one mailbox may serve many, and the token alone says whose it is."""

UNIT_MAX: Final = 500
"""Events in one unit of the store that takes them in."""
PAGE: Final = 100
"""Events in one unit that applies them."""
LOOK_S: Final = 1.0
AGAIN_MAX_S: Final = 600.0
WAIT_S: Final = 86_400.0
"""How long an event may wait for its delivery, where the configuration says nothing."""
IN_FLIGHT_US: Final = 5 * SECOND
"""So long the outcome of an open call is waited for, which says more. Then the event settles it."""

IDENTITY_MAX: Final = 200
RECEIPT_MAX: Final = 500
CODE_MAX: Final = 200
TEXT_MAX: Final = 1_000

_SEND_KEY: Final = re.compile(r"[0-9a-f]{32,64}", re.ASCII)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_SOURCES: Final = {
    EventKind.BOUNCED_HARD: "bounce",
    EventKind.COMPLAINED: "complaint",
    EventKind.SUPPRESSED: "provider",
    EventKind.OPTED_OUT: "reply",
    EventKind.OPTED_IN: "reply",
}
"""Who says it, in the record about the address."""


# Taking in


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What became durable. `known`: told before; `faulty`: kept for people."""

    new: int
    known: int
    faulty: int


def take_in(
    store: Store,
    policy: Policy,
    account: str,
    events: Sequence[ProviderEvent],
    *,
    faulty: Sequence[str] = (),
    source: bytes = b"",
) -> Future[TakenIn]:
    """Keep what an account's provider said. What the future holds is durable; it carries `StoreUnavailable`
    where nothing was kept: then the provider must tell it again.

    `account` must be configured, or `RETURNED_MAIL`. `faulty` are the reasons of items that could not be
    read, `source` the bytes that they came in, of which only a hash is kept: so they too are known when told
    again.
    """
    channel = Channel.EMAIL if account == RETURNED_MAIL else policy.accounts[account].channel
    tenants = tenants_of(policy, account)
    rows = [row for event in events for row in _rows(event, account, channel, tenants, policy, store.secret)]
    rows += _faulty_rows(account, faulty, source)
    wrong = Counter((row.kind.value, row.why) for row in rows if row.look is EventLook.FAULTY)
    for (kind, why), count in wrong.items():
        tell(telemetry.EVENT_LEFT, account=account, kind=kind, why=why, events=count)

    lags: dict[str, int] = {}  # by what an event is known by: one may be kept for several tenants

    def unit(tx: Tx) -> TakenIn:
        new = 0
        lags.clear()
        for at in range(0, len(rows), UNIT_MAX):
            page = rows[at : at + UNIT_MAX]
            for row, is_new in zip(page, tx.events.put([_dated(row, tx.now) for row in page]), strict=True):
                new += is_new
                if is_new and row.occurred_at:
                    lags[row.identity] = max(0, tx.now - row.occurred_at)
        if new:
            tx.announce(news.EVENTS)
        return TakenIn(new, len(rows) - new, wrong.total())

    def time_them(done: Future[TakenIn]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        for lag in lags.values():
            metrics.EVENT_LAG.observe((account,), lag / SECOND)

    kept = store.write(unit)
    kept.add_done_callback(time_them)
    return kept


def tenants_of(policy: Policy, account: str) -> tuple[str, ...]:
    """The tenants whose messages may go through an account: whose customers may answer there."""
    routes = [route for route in policy.routes if account in route.accounts]
    return tuple(
        tenant for tenant in sorted(policy.zones) if any(route.tenant in (None, tenant) for route in routes)
    )


def _dated(row: StoredEvent, now: int) -> StoredEvent:
    done = now if row.look is not EventLook.WAITS else 0
    # What lies ahead of us is a clock that is wrong: it would win over what is said from here on.
    return replace(row, received_at=now, next_at=now, applied_at=done, occurred_at=min(row.occurred_at, now))


def _rows(
    event: ProviderEvent,
    account: str,
    channel: Channel,
    tenants: Sequence[str],
    policy: Policy,
    secret: bytes,
) -> list[StoredEvent]:
    """An event as it is kept: once, or once for each tenant whose customer may have said it, since the tag of
    an address is a tenant's."""
    row = StoredEvent(
        account=account,
        identity=_identity(event.identity),
        kind=event.kind,
        received_at=0,
        receipt=_text(event.receipt, RECEIPT_MAX),
        send_key=event.send_key if _SEND_KEY.fullmatch(event.send_key) else "",
        occurred_at=max(0, event.occurred_at or 0),
        code=_text(event.code, CODE_MAX),
        text=_text(event.text, TEXT_MAX),
    )
    address = _address(event.address, channel, policy)
    row = _as_meant(row, event.text, address, channel)
    if address:
        row = replace(row, masked=masked(channel, address))
    by_address = row.kind in BY_ADDRESS and not row.send_key
    if not address or not (by_address or len(tenants) == 1) or not tenants:
        nobody = by_address and not row.receipt and row.look is EventLook.WAITS
        return [replace(row, look=EventLook.FAULTY, why="no_address") if nobody else row]
    form = comparison_form(channel, address)
    return [
        replace(row, tenant=tenant, address_tag=address_tag(secret, tenant, channel, form))
        for tenant in tenants
    ]


def _as_meant(row: StoredEvent, text: str, address: str, channel: Channel) -> StoredEvent:
    """A customer's own words, read: a STOP is an opt-out, whoever tells us of it."""
    if row.kind is not EventKind.REPLIED:
        return row
    country = country_of(address) if channel is Channel.SMS and address else ""
    reading = opt_out.read(text, country=country)
    match reading.meaning:
        case Meaning.OPTED_OUT:
            return replace(row, kind=EventKind.OPTED_OUT, code=row.code or reading.word)
        case Meaning.OPTED_IN:
            return replace(row, kind=EventKind.OPTED_IN, code=row.code or reading.word)
        case Meaning.UNCLEAR:
            return replace(row, look=EventLook.UNCLEAR, why="unclear")
        case Meaning.HELP | Meaning.OTHER if not (row.receipt or row.send_key):
            return replace(row, look=EventLook.DONE)
        case Meaning.HELP | Meaning.OTHER:
            return row


def _faulty_rows(account: str, faulty: Sequence[str], source: bytes) -> list[StoredEvent]:
    digest = hashlib.sha256(source).hexdigest()
    return [
        StoredEvent(
            account=account,
            identity=f"faulty-{digest}-{number}",
            kind=EventKind.UNKNOWN,
            received_at=0,
            look=EventLook.FAULTY,
            why=_text(why, CODE_MAX) or "unreadable",
        )
        for number, why in enumerate(faulty)
    ]


def _address(text: str, channel: Channel, policy: Policy) -> str:
    """The address as we would have written to it; "" where it is none."""
    try:
        match channel:
            case Channel.EMAIL:
                return normalise_email(text)
            case Channel.SMS:
                return normalise_phone(text, region=policy.phone_region)
    except InvalidInput:
        return ""


def _identity(text: str) -> str:
    """The provider's word for the event; a hash of what is too long, or may name a person."""
    if len(text) <= IDENTITY_MAX and "@" not in text and _text(text, IDENTITY_MAX) == text:
        return text
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _text(text: str, longest: int) -> str:
    """A text that every store can hold."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text[:longest])


# Applying


@dataclass(slots=True)
class Applied:
    """What one unit did. `looked`: at how many; `matched`: to a delivery; `left`: to people, by (account,
    kind, why); `proven`: deliveries that an event settled."""

    looked: int = 0
    matched: int = 0
    waiting: int = 0
    proven: int = 0
    left: Counter[tuple[str, str, str]] | None = None


class EventApplier:
    """Applies what waits, page by page. It blocks: step it on a thread. Any number may run at once."""

    def __init__(self, store: Store, policy: Policy, *, wait_s: float = WAIT_S) -> None:
        self._store = store
        self._policy = policy
        self._wait_s = wait_s

    def step(self) -> float:
        """One page; how many seconds until the next. Raises `StoreError`: then nothing of it happened."""
        try:
            done = self._store.write(partial(self._page, None)).result()
        except (StoreUnavailable, StoreMismatch):
            raise
        except Exception:
            return self._one_by_one()
        self._tell(done)
        return 0.0 if done.looked == PAGE else LOOK_S

    def _page(self, ids: Sequence[int] | None, tx: Tx) -> Applied:
        events = tx.events.waiting(tx.now, PAGE) if ids is None else tx.events.lock(ids)
        return apply(tx, events, self._policy, secret=self._store.secret, wait_s=self._wait_s)

    def _one_by_one(self) -> float:
        """Something of the page is more than we foresaw: it is left alone, and hides nobody for ever."""
        for event in self._store.read(lambda tx: tx.events.waiting(tx.now, PAGE)):
            try:
                done = self._store.write(partial(self._page, [event.id])).result()
            except (StoreUnavailable, StoreMismatch):
                raise
            except Exception as error:
                tell(telemetry.STAGE_FAILED, stage="events", **fault(error))
                why = f"bug:{type(error).__name__}"
                self._store.write(partial(_leave, event, why)).result()
                done = Applied(left=Counter({(event.account, event.kind.value, why): 1}))
            self._tell(done)
        return LOOK_S

    def _tell(self, done: Applied) -> None:
        for (account, kind, why), count in (done.left or {}).items():
            tell(telemetry.EVENT_LEFT, account=account, kind=kind, why=why, events=count)


def _leave(event: StoredEvent, why: str, tx: Tx) -> None:
    tx.events.end([(event.id, EventLook.FAULTY, why, 0)])


def apply(tx: Tx, events: Sequence[StoredEvent], policy: Policy, *, secret: bytes, wait_s: float) -> Applied:
    """Apply events, locked in this unit, and settle what they prove.

    `wait_s`: how long one may wait for its delivery.
    """
    done = Applied(looked=len(events), left=Counter())
    targets = _targets(tx, events, secret)
    # Locks in one order: preferences, deliveries by id, as everywhere.
    proofs = _proofs(events, targets)
    _keep_records(tx, events, targets, policy, proofs)
    in_flight, proven = _settle(tx, proofs, policy)
    done.proven = proven
    ended: list[tuple[int, EventLook, str, int]] = []
    later: list[tuple[int, int, str]] = []
    for event in events:
        target = targets.get(event.id)
        if target is not None and target.delivery_id not in in_flight:
            done.matched += 1
            ended.append((event.id, EventLook.DONE, "", target.delivery_id))
            continue
        why = _lacks(event) if target is None else "in_flight"
        wait = again_s(event.tries, wait_s) if why else None
        if wait is not None:
            done.waiting += 1
            later.append((event.id, tx.now + round((1.0 if target else wait) * SECOND), why))
        elif _says_enough(event):
            ended.append((event.id, EventLook.DONE, "", 0))
        else:
            look_why = why or "names_nothing"
            ended.append((event.id, EventLook.UNMATCHED, look_why, 0))
            if done.left is not None:
                done.left[(event.account, event.kind.value, look_why)] += 1
    tx.events.fold(
        [
            (target.delivery_id, Fact(event.kind, event.at, event.code))
            for event in events
            if (target := targets.get(event.id)) is not None and target.delivery_id not in in_flight
        ]
    )
    tx.events.end(ended)
    tx.events.wait(later)
    return done


def again_s(tries: int, wait_s: float) -> float | None:
    """When to look for the delivery of an event again, after `tries` looks before this one; None: it was long
    enough. A second, then twice as long each time, up to ten minutes."""
    waited = wait = 0.0
    for number in range(tries + 1):
        waited += wait
        wait = min(AGAIN_MAX_S, 2.0 ** min(number, 20))
    return wait if waited < wait_s else None


def _lacks(event: StoredEvent) -> str:
    """What an event waits for whose delivery is not found; "": it names none."""
    if event.send_key:
        return "send_key"
    return "receipt" if event.receipt else ""


def _says_enough(event: StoredEvent) -> bool:
    """Whether nobody needs to look at it, although no delivery is known: what it says of the person is in
    force."""
    return event.kind in BY_ADDRESS and bool(event.address_tag)


# Whose it is


def _targets(tx: Tx, events: Sequence[StoredEvent], secret: bytes) -> dict[int, Sent]:
    """The deliveries that events are about, by event id."""
    targets: dict[int, Sent] = {}
    keyed = [event for event in events if event.send_key]
    for event, found in zip(keyed, tx.events.by_marks([mark_of(e.send_key) for e in keyed]), strict=True):
        for sent in found:
            if _has_key(sent, event.send_key, secret) and _was_tried(tx, sent, event.account):
                targets[event.id] = sent
    named = [event for event in events if event.receipt and event.id not in targets]
    named = [event for event in named if event.account != RETURNED_MAIL]
    for event, found in zip(named, tx.events.by_receipts([e.receipt for e in named]), strict=True):
        theirs = [sent for sent in found if _was_receipt_of(tx, sent, event)]
        if len(theirs) == 1:  # a number that two have says nothing
            targets[event.id] = theirs[0]
    return targets


def _has_key(sent: Sent, key: str, secret: bytes) -> bool:
    return send_key(secret, sent.tenant, sent.key, sent.version).startswith(key)


def _was_tried(tx: Tx, sent: Sent, account: str) -> bool:
    """Whether this content was ever handed to this account. Who holds our reference and was never given it
    does not speak of it."""
    here = account in (RETURNED_MAIL, sent.account_now)
    if here and sent.version == sent.version_now and (sent.attempts or sent.maybe):
        return True
    return any(
        line.event == Event.CLAIMED
        and line.number("version") == sent.version
        and account in (RETURNED_MAIL, line.word("account"))
        for line in lines_of(tx, sent.delivery_id)
    )


def _was_receipt_of(tx: Tx, sent: Sent, event: StoredEvent) -> bool:
    """Whether the receipt is from the account that made the call: others may give the same numbers."""
    if sent.receipt_now == event.receipt and sent.account_now == event.account:
        return True
    lines = lines_of(tx, sent.delivery_id)
    epochs = {
        line.number("attempt_epoch") or line.number("epoch")
        for line in lines
        if line.receipt == event.receipt
    }
    return any(
        line.event == Event.CLAIMED
        and line.number("epoch") in epochs
        and line.word("account") == event.account
        for line in lines
    )


# What follows for addresses


def _keep_records(
    tx: Tx,
    events: Sequence[StoredEvent],
    targets: Mapping[int, Sent],
    policy: Policy,
    proofs: Collection[int],
) -> None:
    """Put into force what is said of addresses; with it, what else was planned for them is taken back.

    `proofs`: the deliveries that are locked after it.
    """
    records: dict[tuple[str, ...], Row] = {}
    for event in events:
        for tenant, channel, tag, seen in _addresses(tx, event, targets.get(event.id), policy):
            kind = consent_of(event.kind, channel)
            if kind is None:
                continue
            record = _record(event, tenant, channel, tag, kind, seen)
            name = (tenant, channel.value, tag, kind.value)
            if name not in records or int(record["at"]) > int(records[name]["at"]):
                records[name] = record
    if not records:
        return
    if not tx.preferences.put([records[name] for name in sorted(records)]):
        return
    by_account: dict[str, list[tuple[str, str, str]]] = {}
    for (tenant, channel_word, tag, kind_word), record in sorted(records.items()):
        if kind_word != Kind.OPT_IN.value:
            by_account.setdefault(str(record["actor"]), []).append((tenant, channel_word, tag))
    lock_open(tx, {each for addresses in by_account.values() for each in addresses}, proofs)
    for actor, addresses in by_account.items():
        withdraw_refused(tx, addresses, policy=policy, actor=actor)


def _addresses(
    tx: Tx, event: StoredEvent, target: Sent | None, policy: Policy
) -> list[tuple[str, Channel, str, str]]:
    """About whom an event says something: (tenant, channel, address tag, as people may see it)."""
    if consent_of(event.kind, Channel.EMAIL) is None:
        return []
    if target is not None:
        tag = _tag_of(tx, target)
        seen = event.masked if tag == event.address_tag else masked_of(tx, target.tenant, tag)
        return [(target.tenant, target.channel, tag, seen)]
    if event.kind not in BY_ADDRESS or not event.address_tag:
        return []
    # A "no" is in force at once for everybody who may have written; what else is about a message that we may
    # yet find is its own tenant's, and waits for that.
    if event.kind is EventKind.COMPLAINED and _lacks(event) and event.tries == 0:
        return []
    account = policy.accounts.get(event.account)
    channel = account.channel if account is not None else Channel.EMAIL
    return [(event.tenant, channel, event.address_tag, event.masked)]


def _tag_of(tx: Tx, sent: Sent) -> str:
    """The address that this content went to: a later revision may have another."""
    if sent.version in (0, sent.version_now):
        return sent.address_tag
    for line in lines_of(tx, sent.delivery_id):
        if line.event == Event.PUBLISHED and line.number("version") == sent.version:
            return line.word("address") or sent.address_tag
    return sent.address_tag


def _record(event: StoredEvent, tenant: str, channel: Channel, tag: str, kind: Kind, seen: str) -> Row:
    return {
        "tenant": tenant,
        "channel": channel.value,
        "address_tag": tag,
        "category": ANY_CATEGORY,
        "kind": kind.value,
        # By the provider's time, so that a STOP and a START count in the order in which they were said.
        "at": event.at,
        "source": _SOURCES[event.kind],
        "evidence": f"{_name(event.account)}: {event.kind.value} {event.code}".strip(),
        "masked": seen,
        "actor": _actor(event),
    }


def _name(account: str) -> str:
    return account or "returned mail"


def _actor(event: StoredEvent) -> str:
    return f"provider:{event.account or 'returned-mail'}"


# What follows for deliveries


def _proofs(events: Sequence[StoredEvent], targets: Mapping[int, Sent]) -> dict[int, StoredEvent]:
    """What proves by the events that a delivery was sent, for those that are not known to be.

    Only a send key proves: a receipt that we know is in the ledger with the acceptance already. Most
    deliveries are ACCEPTED by then, which is for ever, and are not even locked.
    """
    proofs: dict[int, StoredEvent] = {}
    for event in events:
        target = targets.get(event.id)
        if target is None or target.state is State.ACCEPTED or not event.send_key:
            continue
        if event.kind in PROVES:
            known = proofs.get(target.delivery_id)
            if known is None or (event.receipt and not known.receipt):
                proofs[target.delivery_id] = event
    return proofs


def _settle(tx: Tx, proofs: Mapping[int, StoredEvent], policy: Policy) -> tuple[set[int], int]:
    """Settle what is proven; deliveries whose open call is waited for, and how many were settled."""
    in_flight: set[int] = set()
    proven = 0
    for row in tx.deliveries.by_ids(list(proofs)) if proofs else ():
        event = proofs[row.id]
        if row.standing.state is State.ACCEPTED:
            continue
        if row.standing.state is State.SENDING and tx.now - event.received_at < IN_FLIGHT_US:
            in_flight.add(row.id)
            continue
        course = replace(row.course, receipt=event.receipt or row.course.receipt, reason="")
        details: dict[str, Value] = {
            "evidence": "event",
            "kind": event.kind.value,
            "code": event.code,
            "receipt": course.receipt,
        }
        move = move_on(row, Event.PROVEN, policy, tx, actor=_actor(event), course=course, details=details)
        if isinstance(move, NotMoved):
            continue
        (moved,) = tx.deliveries.move([move])
        assert moved, "a row locked in this unit cannot have moved"
        proven += 1
        if row.standing.state in SAYS_NOT_SENT:
            tell(
                telemetry.PROVEN_ALARM,
                delivery=row.key,
                state=row.standing.state.value,
                account=row.course.account,
                source="event",
            )
    return in_flight, proven


# For people


SHOWN_MAX: Final = 500


def left_to_people(tx: Tx, look: EventLook, *, after: int = 0, limit: int = SHOWN_MAX) -> list[StoredEvent]:
    """A page of what people may look at, in the order in which it came, behind the id `after`."""
    return [event_of(row) for row in tx.rows("view_events_people", look=look.value, after=after, limit=limit)]


def left_of(
    tx: Tx, policy: Policy, tenant: str, look: EventLook, *, after: int = 0, limit: int = SHOWN_MAX
) -> list[StoredEvent]:
    """`left_to_people`, as a tenant may see it: its own, and what may be anybody's with nothing personal."""
    rows = tx.rows("view_events_left", look=look.value, tenant=tenant, after=after, limit=limit)
    return [_as_seen(event_of(row), policy, tenant) for row in rows]


def shown_of(tx: Tx, policy: Policy, tenant: str, id_: int) -> StoredEvent | None:
    """One event, as `left_of` shows it; None where it is another tenant's, or none."""
    found = event(tx, id_)
    if found is None or found.tenant not in ("", tenant):
        return None
    if found.delivery_id:
        rows = tx.deliveries.by_ids([found.delivery_id])
        return found if rows and rows[0].tenant == tenant else None
    return _as_seen(found, policy, tenant)


def _as_seen(found: StoredEvent, policy: Policy, tenant: str) -> StoredEvent:
    if found.tenant or tenants_of(policy, found.account) == (tenant,):
        return found
    return replace(found, masked="", text="")


def event(tx: Tx, id_: int) -> StoredEvent | None:
    rows = tx.rows("view_event", id=id_)
    return event_of(rows[0]) if rows else None


def retry(store: Store, ids: Sequence[int], *, actor: str) -> int:
    """Look for the deliveries of these once more, as if they had come now; how many there were."""

    def unit(tx: Tx) -> int:
        done = tx.events.retry(ids)
        if done:
            tx.runs.audit(actor, "events_retry", "", "", {"count": done})
            tx.announce(news.EVENTS)
        return done

    return store.write(unit).result()


def event_of(row: Row) -> StoredEvent:
    """A row of the columns of an event."""
    values = dict(row)
    return StoredEvent(
        **{
            **values,  # type: ignore[arg-type]
            "kind": EventKind(str(values["kind"])),
            "look": EventLook(int(values["look"])),
        }
    )
