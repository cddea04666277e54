"""Everybody outside: callers with reminders, customers who opt out, operators, each at a bad moment.

What they do, they do through the product's own stages, at a *desk*: a process like the others, which may
die, freeze or be refused by the store in the middle of it. A person who got no answer asks again.

The worst moment is known from the ledger: something that has just been claimed is cancelled, something
that has just become uncertain is decided, something that has just died is redriven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from sendonce.core.consent import ANY_CATEGORY, Kind
from sendonce.core.delivery import Channel, Identity, parse_key
from sendonce.core.errors import InvalidInput, NotFound, Refused
from sendonce.core.lifecycle import DEAD_LETTERS, Event, State
from sendonce.core.policy import Policy
from sendonce.core.promise import ProviderClass, key_dies_at
from sendonce.core.reminder import DEFAULT_TENANT, Asked
from sendonce.pipeline import cancel, consent, erasure, pause, redrive, resolve, restore
from sendonce.pipeline.chosen import Filter
from sendonce.pipeline.intake import UNDONE, Mode, admit
from sendonce.ports.store import Content, Store, StoredTemplate, Tx
from sendonce.preparation import prepare
from sendonce.template_book import TemplateBook
from sendonce.testing.simulator.checks import Seen, Shadow
from sendonce.testing.simulator.faults import Dice, Fault
from sendonce.testing.simulator.keeper import Keeper

SECOND: Final = 1_000_000
TEMPLATE: Final = "t"
STEPS_MAX: Final = 2
"""How often somebody sets the calendar because of what has just happened: all else waits for it as well."""
WAITS_MAX: Final = 6
WAIT_MAX_S: Final = 40.0
JUST_BEFORE_S: Final = (0.002, 0.007)
"""How long before a key dies its account is let go: a dying one goes first, some 2 ms after its claim, so
that the claim must be the last thing that is in time."""
EXPIRIES_S: Final = (12, 20, 40, 90, 240)
ADDRESSES_MIN: Final = 60
BATCH: Final = 20
BATCHES: Final = 25
GROUPS: Final = 4
ACTOR: Final = "operator:simulated"
SOON: Final = (0.0, 0.0, 0.002, 0.03, 0.3, 3.0, 12.0)
"""Seconds after something was seen, until somebody acts on it."""
IN_A_CALL: Final = (0.0, 0.002, 0.02, 0.05, 0.1)
"""The same for what is only true while a call is open."""

Deed = Callable[[Store, TemplateBook], None]
"""Something a person does; run beside the loop, through the ports of a desk."""

_LATER_WEIGHT: Final = {
    Event.SCHEDULED: 0.4,
    Event.PUBLISHED: 0.4,
    Event.CLAIMED: 2.0,
    Event.ACCEPTED: 0.1,
    Event.DEFERRED: 1.0,
}
"""How likely somebody is to act on what has just happened, beside 3 for all that is rare."""


_DOUBTS: Final = {
    Event.UNKNOWN: 0.5,
    Event.CLAIMED: 0.5,
    Event.KEY_DIED: 0.5,
    Event.PERMITTED: 1.0,
    Event.NOT_SENT: 4.0,
    Event.ASSUMED_SENT: 4.0,
}
"""After these, somebody may ask the provider by telephone, and bring a receipt: how likely."""
LOST_TRACK: Final = 2.0
"""The same, at least, for what the store knows to be in doubt and not where it went."""
UNDER_A_PERMIT: Final = 9.0
"""How much likelier somebody takes one back in the midst of a call that a permit allowed, and how much before
there is one."""
UNDER_A_PERMIT_BEFORE: Final = 0.5
PUT_BACK_FIRST: Final = 0.7
"""How often somebody mends a text first, where nobody could be asked without it, and then decides."""
RELEASED_AT_ONCE: Final = 0.4
_STORED: Final = {State.QUEUED: 1.0, State.RECONCILING: 4.0}
"""While it stands so, its stored text is needed once more; nobody can be asked without it."""
_WORDS: Final = {
    Fault.SAY_SENT_PROVEN: resolve.Word.SENT,
    Fault.SAY_SENT: resolve.Word.SENT,
    Fault.SAY_NOT_SENT: resolve.Word.NOT_SENT,
    Fault.SAY_RESEND: resolve.Word.RESEND,
}


class Do(Protocol):
    """Hands a deed to a desk after so many seconds; one that is urgent goes before what waits there."""

    def __call__(self, seconds: float, deed: Deed, *, urgent: bool = False) -> None: ...


@dataclass(slots=True)
class People:
    """Decides who does what, and when. `receipt_of`
    is what a person finds who asks the provider about a delivery key; `step_clock` sets the calendar."""

    dice: Dice
    policy: Policy
    now: Callable[[], int]
    now_s: Callable[[], float]
    do: Do
    receipt_of: Callable[[str], str]
    step_clock: Callable[[float], None]
    keeper: Keeper
    asked: dict[str, Asked] = field(default_factory=dict)
    _due_s: dict[str, float] = field(default_factory=dict)
    _expires_s: dict[str, float] = field(default_factory=dict)
    _sound: dict[tuple[int, int], Content] = field(default_factory=dict)
    _damaged: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    _expiries: int = 0
    _steps: int = STEPS_MAX
    _waits: int = WAITS_MAX
    _over: bool = False

    # Callers

    def take_in(self, count: int, active_s: float) -> None:
        """All reminders of the run, in a few batches, some of them long before they are due."""
        batch: list[Asked] = []
        self._expiries = self.dice.pick("expiries", (3, 4, 5))
        full = max(BATCH, count // BATCHES)
        for number in range(count):
            if self.dice.keeps(f"delivery {number}"):
                batch.append(self._reminder(number, count, active_s))
            if len(batch) == full or number == count - 1:
                first_s = min((self._due_s[each.reminder] for each in batch), default=0.0)
                self.do(
                    max(0.0, first_s - self.dice.between("take in", -2.0, 20.0)), self._admit(tuple(batch))
                )
                batch = []

    def _reminder(self, number: int, count: int, active_s: float) -> Asked:
        place = f"delivery {number}"
        dice, accounts = self.dice, list(self.policy.accounts.values())
        # In order of due time, with a crowd at the start: everything falls due at nine.
        part = number / count
        due_s = 1.0 + active_s * 0.9 * (part / 1.6 if part < 0.16 else part / 4 + dice.chance(place) * 0.85)
        account = dice.pick(f"{place} account", accounts)
        category = (
            f"{account.name}{dice.pick(f'{place} policy', ('', '', '', '-resend', '-resend', '-assume'))}"
        )
        expires_s = dice.pick(f"{place} expiry", EXPIRIES_S[: self._expiries])
        address = int(dice.chance(f"{place} address") * max(ADDRESSES_MIN, count // 4))
        asked = Asked(
            reminder=f"r{number}",
            customer=f"c{number}",
            due=_spell(self.now() + int(due_s * SECOND)),
            template=TEMPLATE,
            data={"name": "Ann"},
            category=category,
            group=f"g{number % GROUPS}",
            priority=number % 3,
            expires=f"{expires_s}s",
        )
        if account.channel is Channel.EMAIL:
            asked = replace(asked, email=f"a{address}@example.com")
        else:
            asked = replace(asked, phone=f"+1202555{100 + address:04}")
        self.asked[asked.reminder] = asked
        self._due_s[asked.reminder] = due_s
        self._expires_s[asked.reminder] = expires_s
        return asked

    def _admit(self, asked: Sequence[Asked], mode: Mode = Mode.NEW) -> Deed:
        def deed(store: Store, book: TemplateBook) -> None:
            now = store.read(lambda tx: tx.now)
            prepared = []
            keys = [_key_of(each) for each in asked]
            for each in asked:
                try:
                    prepared += prepare(each, self.policy, book, secret=store.secret, now=now)
                except InvalidInput:
                    continue  # a template that is broken for now: this caller gives up
            for key in keys:
                self.keeper.handed_in(key)
            store.write(
                lambda tx: admit(tx, prepared, policy=self.policy, actor="api:simulated", mode=mode)
            ).result()
            for key in keys:
                self.keeper.handed_in(key)  # it may have been erased meanwhile

        return deed

    # Whatever has just happened

    def hear(self, seen: Seen) -> None:
        """Act on one ledger entry, or not."""
        shadow, event = seen.shadow, seen.event
        key, state = shadow.key, shadow.standing.state
        place = f"{key} {event}"
        weight = 3.0 if shadow.standing.maybe else _LATER_WEIGHT.get(event, 3.0)
        taken_back = weight
        if shadow.standing.permit:
            taken_back = UNDER_A_PERMIT if event is Event.CLAIMED else UNDER_A_PERMIT_BEFORE
        when = IN_A_CALL if event is Event.CLAIMED else SOON
        if event is Event.SCHEDULED:
            self._caller_returns(key)
        if self._strikes(Fault.CANCEL, place, key, taken_back):
            self._soon(place, self._cancel(key, "paid"), when)
        if self._strikes(Fault.ERASE, place, key, taken_back):
            self._soon(place, self._erase(key), when)
        if self._strikes(Fault.OPT_OUT, place, key, taken_back):
            self._soon(place, self._record(key, Kind.OPT_OUT), when)
            if self.dice.strikes(Fault.OPT_IN, key):
                self.do(self.dice.between(key, 1.0, 20.0), self._record(key, Kind.OPT_IN))
        lost_track = shadow.standing.maybe and not shadow.account
        proof = max(LOST_TRACK if lost_track else 0.0, _DOUBTS.get(event, 0.0))
        if proof and self._strikes(Fault.SAY_SENT_PROVEN, place, key, proof):
            self._soon(place, self._say(key, Fault.SAY_SENT_PROVEN))
        if event is Event.UNRESOLVED and self.dice.chance(f"{place} mended") < PUT_BACK_FIRST:
            self.do(0.0, self._put_back(key))
        if event is Event.UNRESOLVED and self._steps and self._strikes(Fault.CLOCK_BACK, place, key, 5.0):
            # Its expiry lies in the future once more.
            self._steps -= 1
            self.step_clock(-60.0)
        if event is Event.PERMITTED and self._steps and self._strikes(Fault.CLOCK_FORWARD, place, key, 0.5):
            self._steps -= 1
            self.step_clock(90.0)
        if event is Event.UNKNOWN and self._waits and shadow.account:
            self._wait_for_the_key(place, key, shadow)
        if event is Event.HELD and self.dice.chance(f"{place} mended") < 0.5:
            self._soon(place, self._resume(pause.Target(pause.Scope.ACCOUNT, shadow.account)))
        needed = _STORED.get(state, 0.0) * (2.0 if shadow.standing.maybe else 1.0)
        if needed and self._strikes(Fault.DAMAGED_TEXT, place, key, weight * needed):
            self._soon(place, self._damage(key))
            self.do(self.dice.between(f"{place} put back", 1.0, 15.0), self._put_back(key))
        if state in DEAD_LETTERS:
            self._redrive(place, key)
        if state is State.UNCERTAIN:
            self._resolve(place, key)

    def _wait_for_the_key(self, place: str, key: str, shadow: Shadow) -> None:
        """Hold the account until a moment before the provider's memory of this one counts as over."""
        promise = self.policy.accounts[shadow.account].promise
        left_s = key_dies_at(promise, round(shadow.tried_s * SECOND)) / SECOND - self.now_s()
        if promise.provider_class is not ProviderClass.KEY or not 0.1 < left_s < WAIT_MAX_S:
            return
        reminder = parse_key(key).reminder
        expires_s = self._due_s[reminder] + self._expires_s[reminder]
        if shadow.standing.state is not State.QUEUED or expires_s < self.now_s() + left_s:
            return  # nothing waits under this key, or not for so long
        if self._strikes(Fault.PAUSE_ACCOUNT, place, key, 5.0):
            self._waits -= 1
            target = pause.Target(pause.Scope.ACCOUNT, shadow.account)
            self.do(0.0, self._pause(target))
            just_before_s = self.dice.between(f"{place} resume", *JUST_BEFORE_S)
            self.do(left_s - just_before_s, self._resume(target), urgent=True)

    def _strikes(self, fault: Fault, place: str, key: str, weight: float) -> bool:
        return self.dice.strikes(fault, place, key, weight=weight)

    def _soon(self, place: str, deed: Deed, when: Sequence[float] = SOON) -> None:
        self.do(self.dice.pick(f"{place} soon", when), deed)

    def _caller_returns(self, key: str) -> None:
        dice, asked = self.dice, self.asked[parse_key(key).reminder]
        wait_s = max(0.0, self._due_s[asked.reminder] - self.now_s())
        if dice.strikes(Fault.REPEAT, key):
            self.do(dice.between(key, 0.0, wait_s + 10.0), self._admit((asked,)))
        if dice.strikes(Fault.UPDATE, key):
            changed = replace(asked, data={"name": "Bob"})
            self.do(dice.between(key, 0.0, wait_s + 3.0), self._admit((changed,), Mode.UPDATE))
        if dice.strikes(Fault.RESCHEDULE, key):
            at_s = dice.between(key, 0.0, wait_s + 3.0)
            due_s = dice.between(key, 0.0, 20.0)
            moved = replace(asked, due=_spell(self.now() + int((at_s + due_s) * SECOND)))
            self.do(at_s, self._admit((moved,), Mode.UPDATE))
        if dice.strikes(Fault.UNDO, key):
            at_s = dice.between(key, 0.0, wait_s + 1.0)
            self.do(at_s, self._cancel(key, UNDONE))
            self.do(at_s + dice.between(key, 0.1, 5.0), self._admit((asked,)))

    def _cancel(self, key: str, reason: str) -> Deed:
        def deed(store: Store, book: TemplateBook) -> None:
            chosen = cancel.Selection(cancel.By.DELIVERY, key)
            cancel.cancel(store, chosen, policy=self.policy, reason=reason, actor=ACTOR)

        return _if_there(deed)

    def _record(self, key: str, kind: Kind) -> Deed:
        def deed(store: Store, book: TemplateBook) -> None:
            identity = parse_key(key)
            asked = self.asked[identity.reminder]
            address = asked.email or asked.phone
            now = store.read(lambda tx: tx.now)
            said = consent.Record(
                DEFAULT_TENANT, identity.channel, address, ANY_CATEGORY, kind, now, "simulated", ""
            )
            consent.record(store, [said], policy=self.policy, actor=ACTOR)

        return deed

    def _erase(self, key: str) -> Deed:
        def deed(store: Store, book: TemplateBook) -> None:
            since = self.keeper.failovers
            erasure.erase(
                store,
                parse_key(key).customer,
                policy=self.policy,
                tenant=DEFAULT_TENANT,
                reason="wrote to us",
                actor=ACTOR,
            )
            self.keeper.was_erased(key, since)

        return _if_there(deed)

    def _damage(self, key: str) -> Deed:
        """What was frozen cannot be read any more; until somebody puts the right bytes back."""

        def unit(tx: Tx) -> None:
            # One that comes late, when all has been put back, does no harm any more.
            for row in [] if self._over else tx.deliveries.by_keys([(DEFAULT_TENANT, key)]):
                for content in tx.contents.get([(row.id, row.standing.version)]).values():
                    self._sound.setdefault((content.delivery_id, content.version), content)
                    self._damaged.setdefault(key, set()).add((content.delivery_id, content.version))
                    tx.contents.put([replace(content, payload="{")])

        return lambda store, book: store.write(unit).result()

    def _put_back(self, key: str) -> Deed:
        def deed(store: Store, book: TemplateBook) -> None:
            damaged = self._damaged.get(key, set())
            self._mend(store, {name: text for name, text in self._sound.items() if name in damaged})

        return deed

    def put_back_all(self, store: Store, book: TemplateBook) -> None:
        self._mend(store, self._sound)

    def _mend(self, store: Store, texts: Mapping[tuple[int, int], Content]) -> None:
        def unit(tx: Tx) -> None:
            # What was erased or removed meanwhile is nobody's to put back.
            tx.contents.put([text for name, text in texts.items() if tx.contents.get([name])])

        store.write(unit).result()

    # Operators

    def _redrive(self, place: str, key: str) -> None:
        fresh = self.dice.strikes(Fault.REDRIVE_FRESH, place, key)
        if not fresh and not self.dice.strikes(Fault.REDRIVE, place, key):
            return

        def deed(store: Store, book: TemplateBook) -> None:
            chosen = Filter(keys=(key,))
            redrive.redrive(
                store,
                chosen,
                self.policy,
                reason="mended",
                actor=ACTOR,
                per_s=20.0,
                extend_s=60.0,
                fresh=fresh,
            )

        self._soon(place, _if_there(deed))

    def _resolve(self, place: str, key: str) -> None:
        fault = self.dice.which(tuple(_WORDS), f"{place} word", key)
        if fault is not None:
            self._soon(place, self._say(key, fault))

    def _say(self, key: str, fault: Fault) -> Deed:
        def deed(store: Store, book: TemplateBook) -> None:
            receipt = self.receipt_of(key) if fault is Fault.SAY_SENT_PROVEN else ""
            if fault is Fault.SAY_SENT_PROVEN and not receipt:
                return
            resolve.resolve(
                store,
                Filter(keys=(key,)),
                _WORDS[fault],
                self.policy,
                reason="asked the provider",
                actor=ACTOR,
                receipt=receipt,
            )

        return _if_there(deed)

    def look_around(self) -> None:
        """Called every few seconds: pauses, and what their author did not mean to do to a template."""
        dice = self.dice
        account = dice.pick("pause account", list(self.policy.accounts))
        channel = dice.pick("pause channel", list(self.policy.channels))
        group = dice.pick("pause group", range(GROUPS))
        targets = {
            Fault.PAUSE_SCHEDULER: pause.Target(pause.Scope.SCHEDULER),
            Fault.PAUSE_CHANNEL: pause.Target(pause.Scope.CHANNEL, channel.value),
            Fault.PAUSE_GROUP: pause.Target(pause.Scope.GROUP, f"g{group}"),
            Fault.PAUSE_ACCOUNT: pause.Target(pause.Scope.ACCOUNT, account),
        }
        for fault, target in targets.items():
            if dice.strikes(fault, "look around", str(target)):
                self.do(0.0, self._pause(target))
                self.do(dice.between("resume", 0.5, 20.0), self._resume(target))
        if dice.strikes(Fault.BAD_TEMPLATE, "look around"):
            self.do(0.0, self.add_template("{{ nobody_gives_this }}"))
            self.do(dice.between("mend", 0.5, 6.0), self.add_template("{{ name }}"))

    def _pause(self, target: pause.Target) -> Deed:
        def deed(store: Store, book: TemplateBook) -> None:
            pause.pause(store, target, self.policy, reason="look into it", actor=ACTOR)

        return deed

    def _resume(self, target: pause.Target) -> Deed:
        def deed(store: Store, book: TemplateBook) -> None:
            pause.resume(store, target, self.policy, reason="done", actor=ACTOR)

        return deed

    def fail_over(self, store: Store) -> None:
        """The store went back to an earlier state: somebody looks into it, and lets it go."""
        store.read(self._forget_texts)
        if self.dice.strikes(Fault.BAD_TEMPLATE, "failover", weight=4.0):
            self.do(0.0, self.add_template("{{ nobody_gives_this }}"))
            self.do(self.dice.between("mend", 10.0, 30.0), self.add_template("{{ name }}"))
        at_once = self.dice.chance("released at once") < RELEASED_AT_ONCE
        wait_s = (
            self.dice.between("release", 0.0, 0.5) if at_once else self.dice.between("release", 0.5, 25.0)
        )
        self.do(wait_s, self.release)

    def release(self, store: Store, book: TemplateBook) -> None:
        try:
            restore.released(store, self.policy, reason="looked into it", actor=ACTOR)
        except Refused:
            return  # somebody else was faster

    def _forget_texts(self, tx: Tx) -> None:
        """Those that were frozen since are not there any more, and nobody puts them back."""
        there = {
            (content.delivery_id, content.version): content.hash
            for content in (content for key in self._sound for content in tx.contents.get([key]).values())
        }
        self._sound = {key: text for key, text in self._sound.items() if there.get(key) == text.hash}

    def resume_all(self) -> None:
        """When the bad days are over."""
        self._over = True
        self.do(0.0, self.release)
        for name in self.policy.accounts:
            self.do(0.0, self._resume(pause.Target(pause.Scope.ACCOUNT, name)))
        for channel in self.policy.channels:
            self.do(0.0, self._resume(pause.Target(pause.Scope.CHANNEL, channel.value)))
        for number in range(GROUPS):
            self.do(0.0, self._resume(pause.Target(pause.Scope.GROUP, f"g{number}")))
        self.do(0.0, self._resume(pause.Target(pause.Scope.SCHEDULER)))
        self.do(0.0, self.add_template("{{ name }}"))
        self.do(0.0, self.put_back_all)

    def add_template(self, body: str) -> Deed:
        """The next version of the one template, for both channels."""

        text = f"Dear {body}, [ref:{{{{ delivery_key }}}}]"
        subjects = {Channel.EMAIL: "About {{ reminder }}", Channel.SMS: ""}

        def unit(tx: Tx) -> None:
            newest = tx.templates.newest(DEFAULT_TENANT, TEMPLATE)
            version = newest[0].version + 1 if newest else 1
            tx.templates.put(
                [
                    StoredTemplate(
                        DEFAULT_TENANT,
                        TEMPLATE,
                        version,
                        channel,
                        subject,
                        text,
                        "",
                        f"{channel}{version}",
                        0,
                    )
                    for channel, subject in subjects.items()
                ]
            )

        def deed(store: Store, book: TemplateBook) -> None:
            store.write(unit).result()
            book.refresh()

        return deed


def _key_of(asked: Asked) -> str:
    channel = Channel.EMAIL if asked.email else Channel.SMS
    return Identity(asked.reminder, asked.customer, channel).key


def _if_there(deed: Deed) -> Deed:
    """A person who asks for what is not there, or must not be, is told so and goes away."""

    def done(store: Store, book: TemplateBook) -> None:
        try:
            deed(store, book)
        except (NotFound, Refused):
            return

    return done


def _spell(at: int) -> str:
    seconds, micros = divmod(at, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"
