"""The relay and hints: a transport may be away, repeat, reorder and lose; it costs time and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted, Failed, NotStarted, Outcome, Reason, Unknown
from sendonce.core.retry import RetryPolicy
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.claimer import Claimed, claim
from sendonce.pipeline.relay import BATCH, relay, sweep
from sendonce.pipeline.scheduler import Scheduler
from sendonce.ports.queue import Hint
from sendonce.ports.store import Tx
from sendonce.testing.transport import Faults, UnreliableQueue
from tests.integration.world import World, account_of, policy_of


class Away(UnreliableQueue):
    """A transport that is not there for a while; `half`: it took what it then did not confirm."""

    def __init__(self, *, half: bool = False) -> None:
        super().__init__(Faults(), seed=1)
        self.away = True
        self.half = half

    async def publish(self, hints: Sequence[Hint]) -> None:
        if self.away:
            if self.half:
                await super().publish(hints[: len(hints) // 2])
            raise StoreUnavailable("the broker does not answer")
        await super().publish(hints)


def _world(*kinds: str, **changes: object) -> World:
    accounts = [
        account_of(kind, retry=RetryPolicy(attempts_max=99, base_s=1.0, cap_s=8.0))
        for kind in kinds or ("K",)
    ]
    return World(policy=replace(policy_of(*accounts), hints=True, **changes))  # type: ignore[arg-type]


def _outbox(world: World) -> int:
    return world.read(lambda tx: len(tx.hints(10_000)))


def _relay(world: World, *queues: tuple[str, UnreliableQueue]) -> int:
    return asyncio.run(relay(world.store, dict(queues)))


def _pull(queue: UnreliableQueue, limit: int = 100) -> list[Hint]:
    return asyncio.run(queue.pull(limit, 0.0))


def _claim(world: World, hints: Sequence[Hint], account: str = "") -> Claimed:
    through = world.policy.accounts[account or world.accounts[0]]
    return world.write(
        lambda tx: claim(
            tx,
            through,
            world.policy,
            process="w-1",
            secret=world.store.secret,
            lead_us=2_000,
            hints=hints,
        )
    )


# The outbox


def test_a_hint_is_published_with_its_delivery_or_not_at_all() -> None:
    world = _world()
    for number in range(3):
        world.schedule(f"r-{number}")
    world.schedule("later", due_in_s=60.0)

    class Killed(Exception):
        pass

    scheduler = Scheduler(world.store, world.policy, world.book, process="s-1")

    def dies(tx: Tx) -> None:
        assert scheduler._next(0, 50, tx)["published"] == 3
        raise Killed

    with pytest.raises(Killed):
        world.write(dies)
    assert _outbox(world) == 0
    world.pass_()
    world.pass_()
    assert _outbox(world) == 3


@pytest.mark.parametrize("half", [False, True])
def test_lost_07_rows_stay_while_the_transport_is_away(half: bool) -> None:
    world = _world()
    for number in range(100):
        world.schedule(f"r-{number}")
    world.pass_()
    queue = Away(half=half)
    for _ in range(6):
        with pytest.raises(StoreUnavailable):
            _relay(world, ("sms-K", queue))
        assert _outbox(world) == 100, "handed over is not confirmed"
        world.advance(10)
    queue.away = False
    assert _relay(world, ("sms-K", queue)) == 100
    assert _outbox(world) == 0
    hints = {hint.delivery_id for hint in _pull(queue, 1_000)}
    assert len(hints) == 100


def test_lost_07_killed_between_publish_and_taking_out_publishes_again() -> None:
    world = _world()
    key = world.schedule()
    world.pass_()
    queue = UnreliableQueue(Faults(), seed=1)

    class Killed(Exception):
        pass

    def dies(unit: object) -> None:
        raise Killed

    write = world.store.write
    world.store.write = dies  # type: ignore[assignment, method-assign]
    with pytest.raises(Killed):
        _relay(world, ("sms-K", queue))
    world.store.write = write  # type: ignore[method-assign]
    assert _relay(world, ("sms-K", queue)) == 1
    hints = _pull(queue)
    assert [(hint.delivery_id, hint.epoch) for hint in hints] == [(world.row(key).id, 0)] * 2
    (made,) = _claim(world, hints[:1]).claims
    world.settle([(made, Accepted("r"))])
    again = _claim(world, hints[1:])
    assert (again.claims, again.done) == ((), tuple(hints[1:]))
    assert world.events(key)[-1] == "duplicate_observed"


def test_a_channel_without_a_transport_holds_up_no_other() -> None:
    world = _world("N", "K")
    for number in range(BATCH + 1):
        world.schedule(f"mail-{number}", account="email-N")
    world.schedule("text", account="sms-K")
    world.pass_()
    queue = UnreliableQueue(Faults(), seed=1)
    assert _relay(world, ("sms-K", queue)) == 1
    assert [hint.channel for hint in _pull(queue)] == ["sms"]


def test_a_transport_that_is_away_holds_up_no_other_channel() -> None:
    world = _world("N", "K")
    world.schedule("mail", account="email-N")
    world.schedule("text", account="sms-K")
    world.pass_()
    queue = UnreliableQueue(Faults(), seed=1)
    with pytest.raises(StoreUnavailable):
        _relay(world, ("email-N", Away()), ("sms-K", queue))
    assert queue.published == 1
    assert _outbox(world) == 1


def test_it_goes_in_batches() -> None:
    world = _world()
    for number in range(BATCH + 5):
        world.schedule(f"r-{number}")
    world.pass_()
    queue = UnreliableQueue(Faults(), seed=1)
    assert [_relay(world, ("sms-K", queue)) for _ in range(3)] == [BATCH, 5, 0]


# What a hint says is not what is true


def test_hints_of_what_is_not_ready_are_done_without_a_call() -> None:
    world = _world()
    sent, cancelled, waits = (world.schedule(name) for name in ("sent", "cancelled", "waits"))
    world.pass_()
    ids = {name: world.row(name).id for name in (sent, cancelled, waits)}
    claims = world.claim()
    outcomes: dict[str, Outcome] = {
        sent: Accepted("r"),
        cancelled: Failed(Reason.UNAVAILABLE, "503"),
        waits: Failed(Reason.UNAVAILABLE, "503"),
    }
    world.settle([(made, outcomes[made.key]) for made in claims])
    world.withdraw(cancelled)
    hints = [Hint(ids[name], name, 0, 1, "sms", f"m-{name}") for name in ids]
    stranger = Hint(999, "nobody", 0, 1, "sms", "m-0")
    found = _claim(world, [*hints, stranger])
    assert found.claims == ()
    assert set(found.done) == {*hints, stranger}
    assert world.events(sent)[-1] == world.events(cancelled)[-1] == "duplicate_observed"
    assert world.events(waits)[-1] == "failed", "it is hinted again when it is ready"


def test_a_hint_of_what_goes_through_another_account_is_done() -> None:
    """The other account's queue has one too, or will: the sweep sees to it."""
    a, b = account_of("K", name="a"), account_of("K", name="b")
    world = World(policy=replace(policy_of(a, b), hints=True))
    key = world.schedule(account="b")
    world.pass_()
    hint = Hint(world.row(key).id, key, 0, 1, "sms", "m-1")
    assert _claim(world, [hint], "a").done == (hint,)
    assert [made.key for made in _claim(world, [hint], "b").claims] == [key]


def test_two_hints_of_one_delivery_in_one_pull_are_one_claim() -> None:
    world = _world()
    key = world.schedule()
    world.pass_()
    id_ = world.row(key).id
    twice = [Hint(id_, key, 0, 1, "sms", "m-1", f"r-{number}") for number in range(2)]
    (made,) = _claim(world, twice).claims
    assert world.state(key) is State.SENDING
    world.settle([(made, Accepted("r"))])
    assert len(_claim(world, twice).done) == 2
    assert world.events(key).count("duplicate_observed") == 2


def test_hints_take_no_more_than_lanes_and_slots() -> None:
    world = _world()
    keys = [world.schedule(f"r-{number}") for number in range(90)]
    world.pass_()
    hints = [Hint(world.row(key).id, key, 0, 1, "sms", f"m-{key}") for key in keys]
    found = _claim(world, hints)
    assert len(found.claims) == 49, "one each 1.03 ms, for 50 ms"
    assert world.read(lambda tx: tx.calls.count("sms-K")) == 49


# The sweep


def test_the_sweep_hints_what_was_lost_and_leaves_alone_what_waits() -> None:
    world = _world()
    lost = world.schedule("lost")
    waits = world.schedule("waits")
    world.pass_()
    world.write(lambda tx: tx.hinted([(world.row(key).id, 0) for key in (lost, waits)]))
    failed = Failed(Reason.UNAVAILABLE, "503", 3_600.0)
    world.settle([(made, NotStarted("stopping") if made.key == lost else failed) for made in world.claim()])
    assert world.write(lambda tx: sweep(tx, "sms-K")) == 0, "not before it is late"
    world.advance(17)
    assert world.write(lambda tx: sweep(tx, "sms-K")) == 1
    assert _outbox(world) == 1
    assert world.write(lambda tx: sweep(tx, "sms-K")) == 1
    assert _outbox(world) == 1, "still in the outbox: not a second time"


# All of it at once


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_transport_does_each_is_sent_once(seed: int) -> None:
    """Hints repeated, reordered, lost, their acknowledgements lost; workers that fail, lose answers, die."""
    chance = random.Random(seed)
    world = _world()
    faults = Faults(repeat=0.3, lose=0.2, lose_ack=0.4, reorder=True, redeliver_s=10.0)
    queue = UnreliableQueue(faults, seed=seed)
    keys = [world.schedule(f"r-{number}") for number in range(40)]
    effects: Counter[str] = Counter()
    known: set[str] = set()
    calls = 0

    def call(made: Claim) -> Outcome:
        nonlocal calls
        calls += 1
        match chance.randrange(6):
            case 0:
                return Failed(Reason.UNAVAILABLE, "503")
            case 1:
                return Unknown("lost before")
            case kind:
                if made.message.send_key not in known:
                    known.add(made.message.send_key)
                    effects[made.key] += 1
                return Unknown("lost after") if kind == 2 else Accepted("r")

    async def turn() -> None:
        await relay(world.store, {"sms-K": queue})
        hints = await queue.pull(20, 0.0)
        found = _claim(world, hints)
        await queue.ack(found.done)
        for made in found.claims:
            outcome = call(made)
            if chance.random() < 0.1:
                continue  # the worker dies before it can write it down
            world.settle([(made, outcome)])
            if made.hint:
                await queue.ack([made.hint])
        taken = {made.hint for made in found.claims}
        await queue.nack([hint for hint in hints if hint not in taken and hint not in found.done], 1.0)

    async def run() -> None:
        for number in range(2_000):
            if number % 10 == 9 and all(world.state(key) is State.ACCEPTED for key in keys):
                return
            if number == 0:
                world.pass_()
            await turn()
            _reopen(world)
            world.advance(5)
            queue.tick(5)
            world.reap()
            world.write(lambda tx: sweep(tx, "sms-K"))

    asyncio.run(run())
    assert Counter(world.state(key) for key in keys) == {State.ACCEPTED: 40}
    assert effects == Counter(keys)
    assert calls >= 40
    assert queue.delivered > 40


def _reopen(world: World) -> None:
    """Failures are this test's daily bread; its breaker would make it long."""

    def unit(tx: Tx) -> None:
        gate = tx.gates.lock("sms-K")
        assert gate is not None
        tx.gates.save(replace(gate, closed_until=0, probing=False, streak=0))

    world.write(unit)
