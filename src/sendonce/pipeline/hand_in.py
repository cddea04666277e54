"""Reminders as programs hand them in: each is prepared, taken in with others, and gets an answer of its own.

One that is wrong stops no other. What is answered is durable; asking again after a crash or a time-out
changes nothing, since the same reminder with the same content is `unchanged`. `edit` changes single fields
of one that is known, as long as nothing of it may have been sent; the rest of it stays as it was.

Units are handed to the store while the next ones are prepared, a few ahead and no more, so that neither waits
for the other. Small calls of many callers go in together (`Together`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from threading import Lock
from typing import Final

from sendonce.asking import FIELD_OF, asked_again, fields_of_mapping
from sendonce.core.delivery import parse_key
from sendonce.core.errors import InvalidInput, NotFound, Refused
from sendonce.core.policy import Policy
from sendonce.core.reminder import Asked
from sendonce.pipeline.given import Hands, Speaking, asked_of, prepared_here
from sendonce.pipeline.intake import UNIT_MAX, Mode, Verdict, admit, again
from sendonce.pipeline.intake import Result as Admitted
from sendonce.pipeline.record import delivery_of
from sendonce.ports.store import Delivery, Reminder, Store, Tx
from sendonce.preparation import Prepared, prepare
from sendonce.template_book import TemplateBook

AHEAD: Final = 8
"""Units that may wait for the store."""
LOOK_US: Final = 1_000_000
TRIES: Final = 3
DELIVERIES_MAX: Final = 200
KEPT: Final = frozenset({"reminder", "customer", "tenant", "plan", "date"})
"""What a reminder is, and cannot be changed into another."""

Beside = Callable[[Tx, Verdict], None]

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
    hands: Hands | None = None,
) -> HandedIn:
    """Take reminders in; one result for each, in their order, for a plan one for each of its steps.

    update  known reminders are revised, as long as nothing may have been sent
    bound   whoever asks may speak for this tenant only
    hands   who helps where there are many

    Raises `StoreUnavailable`: give the same again, what is in already is `unchanged` then.
    """
    book.refresh()
    now = store.read(lambda tx: tx.now)
    mode = Mode.UPDATE if update else Mode.NEW
    taking = Taking(
        lambda prepared: store.write(lambda tx: admit(tx, prepared, policy=policy, actor=actor, mode=mode))
    )
    speaking = Speaking(tenant, now, bound)
    outcomes = (
        prepared_here(enumerate(reminders), speaking, policy, store.secret, book)
        if hands is None
        else hands.outcomes(list(reminders), speaking, book)
    )
    with closing(outcomes):  # also where the store fails in between: others want the hands
        for index, given, outcome in outcomes:
            if isinstance(outcome, InvalidInput):
                taking.refuse(index, given, outcome)
            else:
                taking.add(index, outcome)
    return taking.finish()


_Line = tuple[int, Prepared]
_HandOver = Callable[[Sequence[Prepared]], Future[list[Admitted]]]


class Taking:
    """Reminders on their way into the store, in order: each that is given is added, or refused."""

    def __init__(self, hand_over: _HandOver) -> None:
        self._hand_over_to = hand_over
        self._unit: list[_Line] = []
        self._waiting: deque[tuple[list[_Line], Future[list[Admitted]]]] = deque()
        self._results: list[Result] = []
        self._latest = 0

    def add(self, index: int, prepared: Sequence[Prepared]) -> None:
        self._unit += [(index, one) for one in prepared]
        if len(self._unit) >= UNIT_MAX:
            self._hand_over()

    def refuse(self, index: int, given: object, error: InvalidInput) -> None:
        self._results.append(_invalid(index, given, error))

    def hand_over(self) -> list[Future[list[Admitted]]]:
        """Hand over what is left, and what is waited for. Where that is done, `finish` does not wait."""
        if self._unit:
            self._hand_over()
        return [done for _, done in self._waiting]

    def finish(self) -> HandedIn:
        """All results. Waits; raises what the store raises."""
        self.hand_over()
        while self._waiting:
            self._take_answers()
        return HandedIn(sorted(self._results, key=lambda result: result.index), self._latest)

    def _hand_over(self) -> None:
        unit, self._unit = self._unit, []
        self._waiting.append((unit, self._hand_over_to([one for _, one in unit])))
        if len(self._waiting) > AHEAD:
            self._take_answers()

    def _take_answers(self) -> None:
        unit, done = self._waiting.popleft()
        for (index, one), answer in zip(unit, done.result(), strict=True):
            result = _result(index, one, answer)
            self._results.append(result)
            if result.ok:
                self._latest = max(self._latest, one.reminder.expires_at)


class Together:
    """Small calls of many callers, in shared units. Safe to share between threads.

    What comes while a unit waits for the store goes into that unit, up to `UNIT_MAX` reminders: under load
    each statement serves several callers, and alone nobody waits for anybody. Where a unit fails as a whole,
    each call of it is tried by itself, so that none has another's fault.

    The time of the store, and which templates are the newest, are asked for once in `LOOK_US`.
    """

    def __init__(self, store: Store, policy: Policy, book: TemplateBook) -> None:
        self._store = store
        self._policy = policy
        self._book = book
        self._lock = Lock()
        self._open = _Batch()
        self._open.closed = True
        self._ahead = 0  # of the calendar before the steady clock
        self._looked_at: int | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether `now` asks nobody."""
        return self._looked_at is not None and self._store.steady() - self._looked_at < LOOK_US

    def now(self) -> int:
        """The store's calendar. May ask the store, and raises `StoreError` then."""
        if not self.is_fresh:
            self._ahead = self._store.read(lambda tx: tx.now - tx.steady)
            self._book.refresh()
            self._looked_at = self._store.steady()
        return self._store.steady() + self._ahead

    def take(
        self,
        reminders: Sequence[object],
        *,
        tenant: str,
        actor: str,
        update: bool = False,
        at_once: bool = False,
    ) -> Taking | None:
        """As `hand_in`, for one who is `bound` to the tenant; `finish` what is returned.

        `at_once`: ask the store for nothing before; None where it would have to be asked.
        """
        if at_once and not self.is_fresh:
            return None
        speaking = Speaking(tenant, self.now(), bound=True)
        mode = Mode.UPDATE if update else Mode.NEW
        ready: list[tuple[int, list[Prepared]]] = []
        taking = Taking(partial(self._admitted, actor, mode))
        for index, given in enumerate(reminders):
            try:
                asked = asked_of(given, speaking)
                if at_once and not self._book.has(asked.tenant, asked.template, asked.template_version):
                    return None
                prepared = prepare(
                    asked, self._policy, self._book, secret=self._store.secret, now=speaking.now
                )
            except InvalidInput as error:
                taking.refuse(index, given, error)
            else:
                ready.append((index, prepared))
        for index, prepared in ready:
            taking.add(index, prepared)
        return taking

    def _admitted(self, actor: str, mode: Mode, prepared: Sequence[Prepared]) -> Future[list[Admitted]]:
        call = _Call(actor, mode, prepared, Future())
        call.done.set_running_or_notify_cancel()  # who goes away takes nothing back
        with self._lock:
            batch, is_new = self._open, False
            if batch.closed or batch.size + len(prepared) > UNIT_MAX:
                batch = self._open = _Batch()
                is_new = True
            batch.calls.append(call)
            batch.size += len(prepared)
        if is_new:
            self._store.write(partial(self._unit, batch)).add_done_callback(partial(self._answer, batch))
        return call.done

    def _unit(self, batch: _Batch, tx: Tx) -> list[list[Admitted]]:
        with self._lock:
            batch.closed = True
        answers: list[list[Admitted]] = []
        for (actor, mode), calls in groupby(batch.calls, key=lambda call: (call.actor, call.mode)):
            of_it = list(calls)
            every = [one for call in of_it for one in call.prepared]
            results = iter(admit(tx, every, policy=self._policy, actor=actor, mode=mode))
            answers += [list(islice(results, len(call.prepared))) for call in of_it]
        return answers

    def _answer(self, batch: _Batch, done: Future[list[list[Admitted]]]) -> None:
        with self._lock:
            batch.closed = True
        error = done.exception()
        if error is None:
            for call, answer in zip(batch.calls, done.result(), strict=True):
                call.done.set_result(answer)
            return
        for call in batch.calls:
            if len(batch.calls) == 1:
                call.done.set_exception(error)
            else:
                self._alone(call)

    def _alone(self, call: _Call) -> None:
        def unit(tx: Tx) -> list[Admitted]:
            return admit(tx, call.prepared, policy=self._policy, actor=call.actor, mode=call.mode)

        self._store.write(unit).add_done_callback(partial(_pass_on, call.done))


@dataclass(frozen=True, slots=True)
class _Call:
    actor: str
    mode: Mode
    prepared: Sequence[Prepared]
    done: Future[list[Admitted]]


@dataclass(slots=True)
class _Batch:
    """Calls that go into one unit; `closed` once it has begun."""

    calls: list[_Call] = field(default_factory=list)
    size: int = 0
    closed: bool = False


def _pass_on(to: Future[list[Admitted]], done: Future[list[Admitted]]) -> None:
    if error := done.exception():
        to.set_exception(error)
    else:
        to.set_result(done.result())


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
    beside: Beside | None = None,
) -> Result:
    """Change these fields of a known reminder, and no other; a span until its expiry moves with its due time.

    customer  whose, where several have a reminder of this id
    version   only where it still is this one; 0: whichever
    beside    writes what belongs to the change in the unit that makes it; not asked where nothing was made

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
        done = store.write(partial(_revise, prepared, old, policy, actor, beside)).result()
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
    prepared: Sequence[Prepared],
    old: Reminder,
    policy: Policy,
    actor: str,
    beside: Beside | None,
    tx: Tx,
) -> Admitted | None:
    """One unit; None where somebody was faster."""
    (now,) = tx.reminders.find([(old.tenant, old.reminder, old.customer)])
    if now is None or now.version != old.version:
        return None
    (answer,) = admit(tx, prepared, policy=policy, actor=actor, mode=Mode.UPDATE)
    if beside is not None and answer.verdict in _INSIDE:
        beside(tx, answer.verdict)
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
