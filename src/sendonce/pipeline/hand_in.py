"""Reminders as programs hand them in: each is prepared, taken in with others, and gets an answer of its own.

One that is wrong stops no other. What is answered is durable; asking again after a crash or a time-out
changes nothing, since the same reminder with the same content is `unchanged`. `edit` changes single fields
of one that is known, as long as nothing of it may have been sent; the rest of it stays as it was.

Units are handed to the store while the next ones are prepared, a few ahead and no more, so that neither waits
for the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sendonce.asking import FIELD_OF, asked_again, asked_of_mapping, fields_of_mapping
from sendonce.core.delivery import parse_key
from sendonce.core.errors import InvalidInput, NotFound, Refused
from sendonce.core.policy import Policy
from sendonce.core.reminder import Asked
from sendonce.pipeline.intake import UNIT_MAX, Mode, Verdict, admit, again
from sendonce.pipeline.intake import Result as Admitted
from sendonce.pipeline.record import delivery_of
from sendonce.ports.store import Delivery, Reminder, Store, Tx
from sendonce.preparation import Prepared, prepare
from sendonce.template_book import TemplateBook

AHEAD: Final = 8
"""Units that may wait for the store."""
TRIES: Final = 3
DELIVERIES_MAX: Final = 200
KEPT: Final = frozenset({"reminder", "customer", "tenant", "plan", "date"})
"""What a reminder is, and cannot be changed into another."""

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


@dataclass(frozen=True, slots=True)
class HandedIn:
    """The results, in order; `latest` is when the last of them expires (0: none is in)."""

    results: list[Result]
    latest: int


def hand_in(
    store: Store,
    book: TemplateBook,
    policy: Policy,
    reminders: Iterable[object],
    *,
    tenant: str,
    actor: str,
    update: bool = False,
    bound: bool = False,
) -> HandedIn:
    """Take reminders in; one result for each, in their order, for a plan one for each of its steps.

    update  known reminders are revised, as long as nothing may have been sent
    bound   whoever asks may speak for this tenant only

    Raises `StoreUnavailable`: give the same again, what is in already is `unchanged` then.
    """
    book.refresh()
    now = store.read(lambda tx: tx.now)
    taking = _Taking(store, policy, actor, Mode.UPDATE if update else Mode.NEW)
    for index, given in enumerate(reminders):
        try:
            asked = _asked(given, tenant, bound=bound)
            prepared = prepare(asked, policy, book, secret=store.secret, now=now)
        except InvalidInput as error:
            taking.results.append(_invalid(index, given, error))
            continue
        taking.add(index, prepared)
    taking.finish()
    return HandedIn(sorted(taking.results, key=lambda result: result.index), taking.latest)


_Line = tuple[int, Prepared]


class _Taking:
    """Units on their way into the store, in order."""

    def __init__(self, store: Store, policy: Policy, actor: str, mode: Mode) -> None:
        self._store = store
        self._admit = partial(admit, policy=policy, actor=actor, mode=mode)
        self._unit: list[_Line] = []
        self._waiting: deque[tuple[list[_Line], Future[list[Admitted]]]] = deque()
        self.results: list[Result] = []
        self.latest = 0

    def add(self, index: int, prepared: Sequence[Prepared]) -> None:
        self._unit += [(index, one) for one in prepared]
        if len(self._unit) >= UNIT_MAX:
            self._hand_over()

    def finish(self) -> None:
        if self._unit:
            self._hand_over()
        while self._waiting:
            self._take_answers()

    def _hand_over(self) -> None:
        unit, self._unit = self._unit, []
        prepared = [one for _, one in unit]
        self._waiting.append((unit, self._store.write(lambda tx: self._admit(tx, prepared))))
        if len(self._waiting) > AHEAD:
            self._take_answers()

    def _take_answers(self) -> None:
        unit, done = self._waiting.popleft()
        for (index, one), answer in zip(unit, done.result(), strict=True):
            result = _result(index, one, answer)
            self.results.append(result)
            if result.ok:
                self.latest = max(self.latest, one.reminder.expires_at)


def edit(
    store: Store,
    book: TemplateBook,
    policy: Policy,
    reminder: str,
    changes: Mapping[str, object],
    *,
    tenant: str,
    actor: str,
    customer: str = "",
    version: int = 0,
) -> Result:
    """Change these fields of a known reminder, and no other; a span until its expiry moves with its due time.

    customer  whose, where several have a reminder of this id
    version   only where it still is this one; 0: whichever

    `data` is replaced as a whole, and an address for another channel adds that channel. Raises `NotFound`,
    `Refused` (code "changed" where the version is another), and `InvalidInput`.
    """
    for name in changes:
        if FIELD_OF.get(name) in KEPT:
            raise InvalidInput(
                f"{name} says which reminder it is and cannot be changed: cancel it, and hand in another",
                field=name,
            )
    book.refresh()
    for _ in range(TRIES):
        now, old = store.read(lambda tx: (tx.now, _the_reminder(tx, reminder, customer, tenant)))
        if version and old.version != version:
            raise Refused(
                f"{reminder} is at version {old.version}, not {version}: read it again", code="changed"
            )
        prepared = prepare(_changed(asked_again(old), changes), policy, book, secret=store.secret, now=now)
        done = store.write(partial(_revise, prepared, old, policy, actor)).result()
        if done is not None:
            return _result(0, prepared[0], done)
    raise Refused(f"{reminder} kept changing: read it again", code="changed")


def send_again(store: Store, policy: Policy, key: str, *, tenant: str, reason: str, actor: str) -> Result:
    """Send what has ended once more, as a new reminder that is linked to it; see `intake.again`."""

    def unit(tx: Tx) -> Admitted:
        return again(tx, key, tenant=tenant, policy=policy, reason=reason, actor=actor)

    done = store.write(unit).result()
    return Result(0, parse_key(done.keys[0]).reminder, done.verdict, done.keys, why=done.why)


def reminders_of(
    tx: Tx, reminder: str, *, tenant: str, customer: str = ""
) -> list[tuple[Reminder, list[Delivery]]]:
    """The reminders of this id, of all customers or of one, with their deliveries.

    Raises `NotFound`.
    """
    rows = tx.rows("view_deliveries_of_reminder", tenant=tenant, reminder=reminder, limit=DELIVERIES_MAX)
    deliveries = [delivery_of(row) for row in rows]
    chosen = [each for each in deliveries if customer in ("", each.customer)]
    reminders = tx.reminders.by_ids(list(dict.fromkeys(each.reminder_id for each in chosen)))
    if not reminders:
        whose = f" of customer {customer!r:.200}" if customer else ""
        raise NotFound(f"no reminder {reminder!r:.200}{whose} is known")
    return [(one, [each for each in chosen if each.reminder_id == id_]) for id_, one in reminders.items()]


def _asked(given: object, tenant: str, *, bound: bool) -> Asked:
    if isinstance(given, Asked):
        asked = given
    elif isinstance(given, Mapping):
        asked = asked_of_mapping(given, tenant)
    else:
        raise InvalidInput(
            f"it is {type(given).__name__} and must be an object with the fields of a reminder",
            field="reminder",
        )
    if bound and asked.tenant != tenant:
        raise InvalidInput(
            f"tenant {asked.tenant!r:.80}: the key is of tenant {tenant}, leave it out", field="tenant"
        )
    return asked


def _the_reminder(tx: Tx, reminder: str, customer: str, tenant: str) -> Reminder:
    found = reminders_of(tx, reminder, tenant=tenant, customer=customer)
    if len(found) > 1:
        raise InvalidInput(
            f"{len(found)} customers have a reminder {reminder!r:.200}: name the customer", field="customer"
        )
    return found[0][0]


def _changed(base: Asked, changes: Mapping[str, object]) -> Asked:
    named = fields_of_mapping(changes)
    changed = replace(base, **named)  # type: ignore[arg-type]
    if "channels" in named:
        return changed
    addresses = {"email": changed.email, "sms": changed.phone}
    return replace(changed, channels=tuple(channel for channel, address in addresses.items() if address))


def _revise(
    prepared: Sequence[Prepared], old: Reminder, policy: Policy, actor: str, tx: Tx
) -> Admitted | None:
    """One unit; None where somebody was faster."""
    (now,) = tx.reminders.find([(old.tenant, old.reminder, old.customer)])
    if now is None or now.version != old.version:
        return None
    (answer,) = admit(tx, prepared, policy=policy, actor=actor, mode=Mode.UPDATE)
    return answer


def _result(index: int, one: Prepared, answer: Admitted) -> Result:
    return Result(
        index,
        one.reminder.reminder,
        answer.verdict,
        answer.keys,
        answer.fields,
        answer.field,
        answer.why,
        one.notes,
    )


def _invalid(index: int, given: object, error: InvalidInput) -> Result:
    name = given.get("reminder", "") if isinstance(given, Mapping) else getattr(given, "reminder", "")
    return Result(index, str(name)[:200], Verdict.INVALID, field=error.field, why=str(error))
