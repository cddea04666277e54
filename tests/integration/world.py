"""A small world for tests: real stages on a real store, with a clock and chance that stand still.

    world = World("K", "N")                  # accounts "sms-K" and "email-N"
    key = world.schedule("r-1")              # due now, on the first account
    world.pass_()
    world.settle([(claim, Accepted("r1")) for claim in world.claim()])
    assert world.state(key) is State.ACCEPTED

Each class of provider has an account of its own: K and L send text messages, N sends email; "K:email"
says otherwise. A reminder goes through the account that `schedule(account=...)` names.

Every test here that uses it runs twice, on SQLite and on PostgreSQL (`conftest.py`); what speaks of SQLite's
own files is marked `sqlite_only`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sendonce.address import comparison_form
from sendonce.core.consent import ANY_CATEGORY, Kind, NoRecord
from sendonce.core.delivery import Channel, Identity, address_tag
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted, Failed, Outcome, Reason, Rejected, Unknown
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.policy import AccountPolicy, CategoryPolicy, ChannelPolicy, Policy, UncertainPolicy
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Route
from sendonce.moves import move_on
from sendonce.pipeline import claimer, reaper, reconciler, scheduler, settler
from sendonce.pipeline.attempt import Attempted, Claim, Settled
from sendonce.pipeline.record import Line, lines_of
from sendonce.ports.store import (
    Delivery,
    Move,
    NewDelivery,
    Process,
    Reminder,
    Store,
    StoredTemplate,
    Tx,
)
from sendonce.template_book import TemplateBook, from_store
from sendonce.testing.clock import VirtualClock
from sendonce.withdrawal import Withdrawal, Word, withdraw
from tests.integration.places import Place, SqlitePlace

T = TypeVar("T")

SECOND: Final = 1_000_000
HOUR: Final = 3_600 * SECOND
TENANT: Final = "default"
TIMEOUT_S: Final = 10.0
ADDRESSES: Final = {Channel.EMAIL: "ann@example.com", Channel.SMS: "+12025550123"}

_PROMISES: Final = {
    "K": Promise(ProviderClass.KEY, timeout_s=TIMEOUT_S, key_window_s=86_400.0),
    "L": Promise(ProviderClass.LOOKUP, timeout_s=TIMEOUT_S, lookup=True, index_lag_s=5.0),
    "N": Promise(ProviderClass.NEITHER, timeout_s=TIMEOUT_S),
}
_CHANNELS: Final = {"K": Channel.SMS, "L": Channel.SMS, "N": Channel.EMAIL}
_SENDERS: Final = {Channel.EMAIL: "Us <us@example.com>", Channel.SMS: "+12025550100"}


def account_of(
    class_: str,
    *,
    name: str = "",
    limits: GateLimits | None = None,
    retry: RetryPolicy | None = None,
) -> AccountPolicy:
    """An account of class K, L or N; "N:sms" for another channel than the usual one."""
    letter, _, named = class_.partition(":")
    channel = Channel(named) if named else _CHANNELS[letter]
    return AccountPolicy(
        name=name or f"{channel.value}-{letter}",
        channel=channel,
        promise=_PROMISES[letter],
        limits=limits or GateLimits((Limit(1_000, SECOND),), lanes=50),
        retry=retry or RetryPolicy(attempts_max=3, base_s=2.0),
        sender=_SENDERS[channel],
    )


def policy_of(*accounts: AccountPolicy, **changes: Any) -> Policy:
    """A policy with these accounts, and a category named like each of them that routes to it.

    Both channels hold what is uncertain, expire after a day and alarm after ten minutes.
    """
    policy = Policy(
        accounts={account.name: account for account in accounts},
        channels={
            channel: ChannelPolicy(channel, 86_400.0, 600.0, UncertainPolicy.HOLD) for channel in Channel
        },
        categories={account.name: CategoryPolicy(account.name, NoRecord.ALLOW) for account in accounts},
        default_category=accounts[0].name,
        zones={"default": "Europe/Berlin"},
        routes=(
            *(Route(account.channel, account.name, category=account.name) for account in accounts),
            *(Route(account.channel, account.name) for account in accounts),
        ),
    )
    return replace(policy, **changes)


place: Place = SqlitePlace()
"""Where worlds keep their stores. A fixture puts another one here."""


class World:
    """See the module text. `path` names a store that can be opened again. `chance` is every draw."""

    def __init__(
        self,
        *classes: str,
        policy: Policy | None = None,
        retry: RetryPolicy | None = None,
        limits: GateLimits | None = None,
        path: str = "",
        chance: float = 0.5,
    ) -> None:
        self.clock = VirtualClock()  # 2026-01-01T00:00:00Z
        self.path = path
        self.store = place.open(path, self.clock, self)
        self.policy = policy or policy_of(
            *(account_of(class_, retry=retry, limits=limits) for class_ in classes or ("K",))
        )
        self.accounts = list(self.policy.accounts)
        self.chance = chance
        self.process = "w-1"
        if not self.read(lambda tx: tx.templates.newest(TENANT, "t")):  # else the file was used before
            for channel, subject in ((Channel.EMAIL, "About {{ reminder }}"), (Channel.SMS, "")):
                self.template("t", channel, "Dear {{ name }}, this is {{ reminder }}", subject=subject)
        self.book = TemplateBook(from_store(self.store))
        self.write(self._seed)
        self.beat()

    def _seed(self, tx: Tx) -> None:
        for account in self.policy.accounts.values():
            tx.gates.seed(account.name, account.limits)

    # The clock

    @property
    def now(self) -> int:
        return self.clock.now()

    def advance(self, seconds: float) -> None:
        """Let time pass; the worker process stays alive."""
        self.clock.advance(seconds)
        self.beat()

    # The store

    def another_store(self) -> Store:
        """The store of a world with a path, as another process has it. Close it."""
        return place.another(self.path, self.clock)

    def tamper(self, statement: str) -> int:
        """Change rows of a world with a path behind the program's back; how many."""
        return place.tamper(self.path, statement)

    # Making things

    def template(
        self,
        name: str,
        channel: Channel,
        text: str,
        *,
        subject: str = "",
        html: str = "",
        version: int = 1,
        tenant: str = TENANT,
    ) -> None:
        stored = StoredTemplate(tenant, name, version, channel, subject, text, html, f"{name}{version}", 0)
        self.write(lambda tx: tx.templates.put([stored]))

    def schedule(
        self,
        reminder: str = "r-1",
        *,
        customer: str = "c-1",
        account: str = "",
        also: Sequence[Channel] = (),
        due_in_s: float = 0.0,
        valid_s: float = 86_400.0,
        group: str = "",
        priority: int = 0,
        zone: str = "",
        template: str = "t",
        data: Mapping[str, object] | None = None,
        to: str = "",
        sender: str = "",
        tenant: str = TENANT,
    ) -> str:
        """One reminder and its delivery over `account` (the first one where none is named), and over
        further channels; returns the key of the first."""
        through = self.policy.accounts[account or self.accounts[0]]
        due_at = self.now + int(due_in_s * SECOND)
        recipients = {
            channel.value: {"to": to if to and channel is through.channel else ADDRESSES[channel]}
            for channel in (through.channel, *also)
        }
        if sender:
            recipients[through.channel.value]["sender"] = sender
        new = replace(
            self._reminder(through, due_at),
            tenant=tenant,
            reminder=reminder,
            customer=customer,
            zone=zone,
            expires_at=due_at + int(valid_s * SECOND),
            template=template,
            priority=priority,
            group=group,
            data=json.dumps({"name": "Ann"} if data is None else data),
            recipients=recipients,
        )
        self.write(lambda tx: self._insert(tx, new))
        return self.key(reminder, through.channel, customer)

    def schedule_many(
        self, count: int, *, account: str = "", customer: str = "c-1", due_in_s: float = 1e6
    ) -> None:
        """Reminders "r-0", "r-1", ... in one unit, far in the future where nothing else is said."""
        through = self.policy.accounts[account or self.accounts[0]]
        due_at = self.now + int(due_in_s * SECOND)
        one = replace(self._reminder(through, due_at), customer=customer)

        def unit(tx: Tx) -> None:
            for number in range(count):
                self._insert(tx, replace(one, reminder=f"r-{number}"))

        self.write(unit)

    def _reminder(self, through: AccountPolicy, due_at: int) -> Reminder:
        return Reminder(
            id=0,
            tenant=TENANT,
            reminder="r-1",
            customer="c-1",
            due_at=due_at,
            due_local="2026-01-01T01:00:00",
            zone="",
            expires_at=due_at + 24 * HOUR,
            template="t",
            template_version=0,
            category=through.name,
            priority=0,
            group="",
            source="",
            import_id=0,
            linked="",
            data=json.dumps({"name": "Ann"}),
            recipients={through.channel.value: {"to": ADDRESSES[through.channel]}},
            spec_hash="spec",
            version=1,
            created_at=self.now,
        )

    def _insert(self, tx: Tx, new: Reminder) -> None:
        (id_,) = tx.reminders.insert([new])
        tx.deliveries.insert(
            [
                NewDelivery(
                    tenant=new.tenant,
                    key=self.key(new.reminder, Channel(channel), new.customer),
                    reminder_id=id_,
                    customer=new.customer,
                    channel=Channel(channel),
                    address_tag=self.tag(Channel(channel), recipient["to"], new.tenant),
                    category=new.category,
                    group=new.group,
                    priority=new.priority,
                    due_at=new.due_at,
                    expires_at=new.expires_at,
                    actor="api:test",
                    details={
                        "due_at": new.due_at,
                        "expires_at": new.expires_at,
                        "template": new.template,
                    },
                )
                for channel, recipient in new.recipients.items()
            ]
        )

    def key(self, reminder: str, channel: Channel, customer: str = "c-1") -> str:
        return Identity(reminder, customer, channel).key

    def tag(self, channel: Channel, address: str, tenant: str = TENANT) -> str:
        return address_tag(self.store.secret, tenant, channel.value, comparison_form(channel.value, address))

    # The stages

    def pass_(self) -> scheduler.PassReport:
        """One pass of the scheduler, which must not be paused."""
        report = scheduler.Scheduler(self.store, self.policy, self.book, process="s-1").run(trigger="test")
        assert report is not None, "the scheduler is paused"
        return report

    def claim(self, account: str = "", *, most: int = claimer.CLAIM_MAX) -> list[Claim]:
        """What a worker may send now, over `account` (the first one where none is named)."""
        return list(self.claimed(account, most=most).claims)

    def claimed(self, account: str = "", *, most: int = claimer.CLAIM_MAX) -> claimer.Claimed:
        through = self.policy.accounts[account or self.accounts[0]]
        return self.write(
            lambda tx: claimer.claim(
                tx,
                through,
                self.policy,
                process=self.process,
                secret=self.store.secret,
                lead_us=2_000,
                most=most,
            )
        )

    def settle(self, outcomes: Sequence[tuple[Claim, Outcome]]) -> list[State]:
        """Settle what calls returned, in one unit; the states after it, in order of delivery ids."""
        return [each.state for each in self.settled(outcomes)]

    def settled(self, outcomes: Sequence[tuple[Claim, Outcome]]) -> list[Settled]:
        """The same, with all that is said of each."""
        steady = self.store.steady()
        attempts = [Attempted(claim, outcome, claim.slot_at, steady) for claim, outcome in outcomes]
        return self.write(
            lambda tx: settler.settle(
                tx, attempts, self.policy, process=self.process, chance=lambda: self.chance
            )
        )

    def send(self, outcome: Outcome, account: str = "") -> list[str]:
        """Claim what may go now and settle all of it with this outcome; the keys of what was tried."""
        claims = self.claim(account)
        self.settle([(claim, outcome) for claim in claims])
        return [claim.key for claim in claims]

    def reap(self) -> int:
        return self.write(lambda tx: reaper.reap(tx, self.policy, chance=lambda: self.chance))

    def expire(self) -> int:
        return self.write(lambda tx: reaper.expire(tx, self.policy))

    def apply_policy(self) -> int:
        """What the policy says of uncertain deliveries; under `hold`, it puts them aside."""
        return self.write(lambda tx: reconciler.apply_policy(tx, self.policy))

    def beat(self, process: str = "", *, role: str = "worker") -> None:
        """Renew the lease of a process."""
        channels = ",".join(sorted({account.channel.value for account in self.policy.accounts.values()}))
        lease_until = self.store.steady() + int(self.policy.lease_s * SECOND)
        alive = Process(
            process or self.process, role, channels, "host", 1, self.now, self.now, lease_until, stopped=False
        )
        self.write(lambda tx: tx.processes.beat(alive))

    def withdraw(self, key: str, event: Withdrawal = Event.CANCELLED, reason: str = "paid") -> Word:
        """Cancel or suppress one delivery; the answer in one word."""
        (answer,) = self.write(
            lambda tx: withdraw(
                tx,
                tx.deliveries.by_keys([(TENANT, key)]),
                event,
                policy=self.policy,
                actor="api:test",
                reasons=reason,
            )
        )
        return answer.word

    def permit(self, key: str) -> None:
        """Allow an uncertain delivery one more attempt, as an operator does."""

        def unit(tx: Tx) -> None:
            (row,) = tx.deliveries.by_keys([(TENANT, key)])
            course = replace(row.course, next_at=tx.now)
            move = move_on(row, Event.PERMITTED, self.policy, tx, actor="operator", course=course)
            assert isinstance(move, Move), move
            tx.deliveries.move([move])

        self.write(unit)

    def opt_out(
        self,
        channel: Channel,
        address: str = "",
        *,
        kind: Kind = Kind.OPT_OUT,
        category: str = ANY_CATEGORY,
    ) -> None:
        """Record a "no" of an address, for all categories or one; open deliveries are left as they are."""
        record: dict[str, int | str] = {
            "tenant": TENANT,
            "channel": channel.value,
            "address_tag": self.tag(channel, address or ADDRESSES[channel]),
            "category": category,
            "kind": kind.value,
            "at": self.now,
            "source": "test",
            "evidence": "",
            "masked": "",
            "actor": "api:test",
        }
        self.write(lambda tx: tx.preferences.put([record]))

    # Ways to get somewhere

    def accepted(self, reminder: str = "r-1", *, receipt: str = "", **given: Any) -> str:
        """Schedule, publish, send; the provider takes it."""
        return self._sent(reminder, Accepted(receipt or f"receipt-{reminder}"), given)

    def dead(self, reminder: str = "r-1", *, reason: Reason = Reason.UNAVAILABLE, **given: Any) -> str:
        """Schedule, publish, and fail until the attempts are used up."""
        key = self.schedule(reminder, **given)
        self.pass_()
        return self.fail_until_dead(key, reason=reason)

    def rejected(self, *reminders: str, reason: Reason = Reason.BLOCKED, **given: Any) -> list[str]:
        """Schedule, publish, send all of these; the provider refuses them. The gate stays well."""
        keys = [self.schedule(reminder, **given) for reminder in reminders]
        self.pass_()
        while waiting := [key for key in keys if self.state(key) is not State.REJECTED]:
            self.send(Rejected(reason, "550"), self.row(waiting[0]).course.account)
            self.advance(1.0)
        return keys

    def fail_until_dead(self, key: str, *, reason: Reason = Reason.UNAVAILABLE) -> str:
        """Fail a queued delivery until the attempts are used up."""
        while (row := self.row(key)).standing.state is not State.DEAD:
            assert row.standing.state is State.QUEUED, row
            self.advance(max(0.0, (row.course.next_at - self.now) / SECOND))
            self.send(Failed(reason, "503"), row.course.account)
            self.advance(1.0)
        return key

    def uncertain(self, reminder: str = "r-1", **given: Any) -> str:
        """Schedule, publish, send; no answer comes. The account must be of class N."""
        key = self._sent(reminder, Unknown("timeout"), given)
        assert self.state(key) is State.UNCERTAIN, self.state(key)
        return key

    def _sent(self, reminder: str, outcome: Outcome, given: Mapping[str, Any]) -> str:
        key = self.schedule(reminder, **given)
        self.pass_()
        self.send(outcome, self.row(key).course.account)
        return key

    # Looking

    def row(self, key: str, tenant: str = TENANT) -> Delivery:
        found = self.store.read(lambda tx: tx.deliveries.by_keys([(tenant, key)]))
        assert found, f"no delivery {key}"
        return found[0]

    def state(self, key: str) -> State:
        return self.row(key).standing.state

    def lines(self, key: str) -> list[Line]:
        """The ledger of a delivery."""
        id_ = self.row(key).id
        return self.store.read(lambda tx: lines_of(tx, id_))

    def events(self, key: str) -> list[str]:
        return [line.event for line in self.lines(key)]

    def write(self, unit: Callable[[Tx], T]) -> T:
        """Run a unit and wait for it."""
        return self.store.write(unit).result()

    def read(self, query: Callable[[Tx], T]) -> T:
        return self.store.read(query)
