"""One delivery, from due to done, over a transport that repeats and loses acknowledgements.

`shipment-4821:customer-73:email`, due at 09:00:00: published once though the scheduler runs twice, sent
by worker A, handed out again to worker B. The same with a worker that dies before its receipt is
committed, and with a response that is lost. What counts is what the provider took.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace

import pytest

from sendonce.core.consent import NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted, Finding, NoAnswer, Outcome, Unknown
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.policy import AccountPolicy, CategoryPolicy, ChannelPolicy, Policy, UncertainPolicy
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.reminder import Asked
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Route
from sendonce.pipeline import intake, reaper, relay
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.pipeline.claimer import Claimed, claim
from sendonce.pipeline.scheduler import Scheduler
from sendonce.pipeline.sender import Conditions, send
from sendonce.pipeline.settler import settle
from sendonce.ports.provider import Message, Start
from sendonce.ports.queue import Hint
from sendonce.ports.store import Process, Store, StoredTemplate, Tx
from sendonce.preparation import prepare
from sendonce.store.sqlite import open_store
from sendonce.template_book import TemplateBook, from_store
from sendonce.testing.clock import VirtualClock
from sendonce.testing.transport import Faults, UnreliableQueue

KEY = "shipment-4821:customer-73:email"
NINE = 1_764_579_600_000_000  # 2025-12-01T09:00:00Z
SECOND = 1_000_000
LEASE_S = 30.0


@dataclass
class Mailbox:
    """A provider that remembers keys, as class K does, and may lose its answer after it took the mail."""

    promise: Promise
    lose_response: bool = False
    calls: int = 0
    effects: dict[str, str] = field(default_factory=dict)

    async def send(self, message: Message, *, start: Start) -> Outcome:
        await start()
        self.calls += 1
        known = message.send_key in self.effects
        self.effects.setdefault(message.send_key, "receipt-4821")
        if self.lose_response:
            self.lose_response = False
            return Unknown("reset")
        return Accepted(self.effects[message.send_key], duplicate=known)

    async def look_up(self, message: Message) -> Finding:
        return NoAnswer("unsupported")

    async def check(self) -> str:
        return "well"

    async def close(self) -> None:
        pass


class Walk:
    """The stages, driven by hand on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = VirtualClock(NINE - 60 * SECOND)
        promise = Promise(ProviderClass.KEY, timeout_s=10.0, key_window_s=86_400.0)
        self.account = AccountPolicy(
            name="mail",
            channel=Channel.EMAIL,
            promise=promise,
            limits=GateLimits((Limit(1, SECOND),), lanes=2),
            retry=RetryPolicy(),
            sender="Shop <shop@example.com>",
        )
        self.policy = Policy(
            accounts={"mail": self.account},
            channels={Channel.EMAIL: ChannelPolicy(Channel.EMAIL, 86_400.0, 900.0, UncertainPolicy.HOLD)},
            categories={"shipment": CategoryPolicy("shipment", NoRecord.ALLOW)},
            default_category="shipment",
            zones={"default": "Europe/London"},
            routes=(Route(Channel.EMAIL, "mail"),),
            lease_s=LEASE_S,
            hints=True,
        )
        self.store: Store = open_store("sqlite://:memory:", self.clock, inline=True)
        self.book = TemplateBook(from_store(self.store))
        self.queue = UnreliableQueue(Faults(redeliver_s=30.0), seed=1)
        self.mailbox = Mailbox(promise)
        self.store.write(self._begin).result()
        asked = Asked(
            reminder="shipment-4821",
            customer="customer-73",
            due="2025-12-01T09:00:00Z",
            template="shipment",
            email="ann@example.com",
            data={"name": "Ann"},
        )
        prepared = prepare(asked, self.policy, self.book, now=self.clock.now(), secret=self.store.secret)
        self.store.write(lambda tx: intake.admit(tx, prepared, policy=self.policy, actor="test")).result()

    def _begin(self, tx: Tx) -> None:
        tx.gates.seed("mail", self.account.limits)
        text = ("On its way", "Hi {{ name }}", "", "hash", 0)
        tx.templates.put([StoredTemplate("default", "shipment", 1, Channel.EMAIL, *text)])

    def pass_(self) -> int:
        scheduler = Scheduler(self.store, self.policy, self.book, process="scheduler-1")
        report = scheduler.run(trigger="test")
        assert report is not None
        assert report.complete
        return report.counts.get("published", 0)

    def beat(self, worker: str) -> None:
        until = self.store.steady() + int(LEASE_S * SECOND)
        process = Process(worker, "worker", "email", "host", 1, 0, 0, until, stopped=False)
        self.store.write(lambda tx: tx.processes.beat(process)).result()

    def claim(self, worker: str, hints: Sequence[Hint]) -> Claimed:
        self.beat(worker)
        return self.store.write(
            lambda tx: claim(
                tx,
                self.account,
                self.policy,
                process=worker,
                secret=self.store.secret,
                lead_us=2_000,
                hints=hints,
            )
        ).result()

    async def send(self, made: Claim) -> Attempted:
        # The clock stands still; the sender waits for its slot, so it is told that the slot has come.
        conditions = Conditions(
            steady=lambda: max(self.store.steady(), made.slot_at),
            lease_until=lambda: self.store.steady() + SECOND,
            stopping=lambda: False,
        )
        return await send(made, self.mailbox, conditions)

    def settle(self, worker: str, attempt: Attempted) -> State:
        (settled,) = self.store.write(
            lambda tx: settle(tx, [attempt], self.policy, process=worker, chance=lambda: 0.5)
        ).result()
        return settled.state

    def events(self) -> list[str]:
        return [str(entry["event"]) for entry in self.ledger()]

    def ledger(self) -> list[dict[str, object]]:
        def lines(tx: Tx) -> list[dict[str, object]]:
            (row,) = tx.deliveries.by_keys([("default", KEY)])
            return [json.loads(str(line["body"])) for line in tx.rows("view_ledger", delivery_id=row.id)]

        return self.store.read(lines)

    def state(self) -> State:
        (row,) = self.store.read(lambda tx: tx.deliveries.by_keys([("default", KEY)]))
        return row.standing.state


def walk(steps: Callable[[Walk], Coroutine[None, None, None]]) -> None:
    it = Walk()
    asyncio.run(steps(it))
    it.store.close()


async def published_once(it: Walk) -> list[Hint]:
    """Nothing before nine; at nine one hint, though the scheduler runs twice."""
    assert it.pass_() == 0
    it.clock.advance(60)
    assert it.pass_() == 1
    assert it.pass_() == 0
    assert it.state() is State.QUEUED
    assert await relay.relay(it.store, {"mail": it.queue}) == 1
    assert await relay.relay(it.store, {"mail": it.queue}) == 0
    hints = await it.queue.pull(10, 0.0)
    assert [hint.key for hint in hints] == [KEY]
    return hints


def test_acknowledgement_lost() -> None:
    async def steps(it: Walk) -> None:
        hints = await published_once(it)
        claimed = it.claim("worker-a", hints)
        (made,) = claimed.claims
        assert made.slot_at > it.store.steady()  # paced: its start has a time of its own
        assert it.state() is State.SENDING  # the intent is durable before the call
        assert it.mailbox.calls == 0
        assert it.settle("worker-a", await it.send(made)) is State.ACCEPTED
        # The acknowledgement is lost, and the transport hands the hint out again.
        it.queue.tick(31)
        it.clock.advance(31)
        again = await it.queue.pull(10, 0.0)
        second = it.claim("worker-b", again)
        assert second.claims == ()
        assert list(second.done) == again
        await it.queue.ack(second.done)
        assert it.queue.left == 0
        assert it.mailbox.calls == 1
        assert it.events() == ["scheduled", "published", "claimed", "accepted", "duplicate_observed"]
        accepted = it.ledger()[3]
        assert accepted["receipt"] == "receipt-4821"
        assert it.ledger()[2]["hint"] == hints[0].message_id

    walk(steps)


def test_death_before_the_receipt_is_committed() -> None:
    async def steps(it: Walk) -> None:
        hints = await published_once(it)
        (made,) = it.claim("worker-a", hints).claims
        await it.send(made)  # the provider took it; worker A dies before it can say so
        it.clock.advance(LEASE_S + 1)
        it.queue.tick(LEASE_S + 1)
        again = await it.queue.pull(10, 0.0)
        early = it.claim("worker-b", again)
        assert early.claims == ()  # still SENDING: nobody knows, so nobody sends
        reaped = it.store.write(lambda tx: reaper.reap(tx, it.policy, chance=lambda: 0.0)).result()
        assert reaped == 1
        assert it.state() is State.QUEUED
        it.clock.advance(2)
        it.store.write(lambda tx: relay.sweep(tx, "mail")).result()
        it.clock.advance(15)
        assert it.store.write(lambda tx: relay.sweep(tx, "mail")).result() == 1
        await relay.relay(it.store, {"mail": it.queue})
        swept = await it.queue.pull(10, 0.0)
        (retried,) = it.claim("worker-b", swept).claims
        same_bytes = replace(retried.message, valid_s=made.message.valid_s)
        assert same_bytes == made.message
        assert it.settle("worker-b", await it.send(retried)) is State.ACCEPTED
        assert it.mailbox.calls == 2
        assert len(it.mailbox.effects) == 1
        assert it.events() == ["scheduled", "published", "claimed", "unknown", "claimed", "accepted"]
        assert it.ledger()[4]["decision"] == "same_key"
        assert it.ledger()[5]["decision"] == "provider_knew_key"

    walk(steps)


def test_response_lost() -> None:
    async def steps(it: Walk) -> None:
        hints = await published_once(it)
        it.mailbox.lose_response = True
        (made,) = it.claim("worker-a", hints).claims
        assert it.settle("worker-a", await it.send(made)) is State.QUEUED
        (row,) = it.store.read(lambda tx: tx.deliveries.by_keys([("default", KEY)]))
        assert row.standing.maybe
        it.clock.advance(20)
        (retried,) = (
            it.store.write(
                lambda tx: claim(
                    tx, it.account, it.policy, process="worker-a", secret=it.store.secret, lead_us=2_000
                )
            )
            .result()
            .claims
        )
        assert it.settle("worker-a", await it.send(retried)) is State.ACCEPTED
        assert it.mailbox.calls == 2
        assert len(it.mailbox.effects) == 1

    walk(steps)


def test_late_success_of_a_dead_worker_settles_the_delivery() -> None:
    """State is fenced, evidence is not."""

    async def steps(it: Walk) -> None:
        hints = await published_once(it)
        (made,) = it.claim("worker-a", hints).claims
        attempt = await it.send(made)
        it.clock.advance(LEASE_S + 1)
        it.store.write(lambda tx: reaper.reap(tx, it.policy, chance=lambda: 0.0)).result()
        assert it.state() is State.QUEUED
        assert it.settle("worker-a", attempt) is State.ACCEPTED
        assert it.events()[-1] == "proven"
        it.clock.advance(60)
        assert it.claim("worker-b", await it.queue.pull(10, 0.0)).claims == ()
        assert it.mailbox.calls == 1

    walk(steps)


@pytest.mark.parametrize("gate", ["none", "closed"])
def test_without_a_gate_nothing_is_sent(gate: str) -> None:
    async def steps(it: Walk) -> None:
        hints = await published_once(it)
        if gate == "closed":
            it.store.write(_close).result()
        else:
            it.account = replace(it.account, name="other")
        claimed = it.claim("worker-a", hints)
        assert claimed.claims == ()
        assert claimed.why == ("throttled" if gate == "closed" else "no gate")
        assert it.state() is State.QUEUED

    walk(steps)


def _close(tx: Tx) -> None:
    gate = tx.gates.lock("mail")
    assert gate is not None
    tx.gates.save(replace(gate, closed_until=tx.steady + 5 * SECOND, closed_why="throttled"))
