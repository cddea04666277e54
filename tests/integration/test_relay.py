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
from sendonce.pipeline.relay import BATCH, Ahead, Swept, discard, refill, relay, sweep
from sendonce.pipeline.scheduler import Scheduler
from sendonce.ports.queue import Hint
from sendonce.ports.store import FIRST, Tx
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
        assert scheduler._next(0, 50, FIRST, tx)[0]["published"] == 3
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


# Order and room


def test_hints_are_claimed_in_fair_order_whatever_order_they_come_in() -> None:
    world = _world()
    keys = [world.schedule(f"r-{number}") for number in range(80)]
    world.pass_()
    rows = sorted((world.row(key) for key in keys), key=lambda row: (row.course.tag, row.id))
    hints = [Hint(row.id, row.key, 0, 1, "sms", f"m-{row.id}", f"r-{row.id}") for row in reversed(rows)]
    made = _claim(world, hints).claims
    assert [one.delivery_id for one in made] == [row.id for row in rows[: len(made)]]
    assert 0 < len(made) < 80


def test_hinted_retries_take_no_more_than_their_share_of_fresh_traffic() -> None:
    """As in the store's own queue: a tail of failures starves nobody."""
    world = _world()
    failed = [world.schedule(f"failed-{number}") for number in range(60)]
    world.pass_()
    while any(world.row(key).course.failures == 0 for key in failed):
        for made in world.claim():
            world.settle([(made, Failed(Reason.UNAVAILABLE, "503"))])
            _reopen(world)
        world.advance(1)
    fresh = [world.schedule(f"fresh-{number}") for number in range(60)]
    world.advance(20)
    world.pass_()
    hints = [
        Hint(row.id, row.key, row.standing.epoch, 1, "sms", f"m-{row.id}", f"r-{row.id}")
        for row in map(world.row, (*failed, *fresh))
    ]
    claims = _claim(world, hints).claims
    again = [one for one in claims if one.key in failed]
    assert len(claims) > 20
    assert len(again) <= len(claims) // 4 + 1


def test_no_more_is_published_ahead_than_workers_need() -> None:
    """What waits longer waits in the store, where it can still be overtaken."""
    world = _world()
    for number in range(30):
        world.schedule(f"r-{number}")
    world.pass_()
    queue = UnreliableQueue(Faults(redeliver_s=1e9), seed=1)
    ahead = Ahead(lambda account: 10)

    def turn() -> int:
        return asyncio.run(relay(world.store, {"sms-K": queue}, ahead))

    assert [turn(), turn(), _outbox(world)] == [10, 0, 20]
    first = _pull(queue, 4)
    lowest = sorted(row.course.tag for row in map(world.row, _keys(world)))[:4]
    assert [world.row(hint.key).course.tag for hint in first] == lowest
    assert [turn(), turn(), queue.published] == [4, 0, 14]


def test_what_is_not_true_any_more_is_taken_out_and_not_published() -> None:
    world = _world()
    sent, cancelled, waits = (world.schedule(name) for name in ("sent", "cancelled", "waits"))
    world.pass_()
    world.withdraw(cancelled)
    world.settle([(made, Accepted("r")) for made in world.claim() if made.key == sent])
    queue = UnreliableQueue(Faults(), seed=1)
    assert _relay(world, ("sms-K", queue)) == 3
    assert queue.published == (1 if world.state(waits) is State.QUEUED else 0)
    assert _outbox(world) == 0


def test_when_the_store_carries_again_the_outbox_is_emptied_and_when_a_broker_does_it_is_filled() -> None:
    world = _world()
    for number in range(BATCH + 1):
        world.schedule(f"r-{number}")
    world.pass_()
    assert [asyncio.run(discard(world.store)) for _ in range(3)] == [BATCH, 1, 0]
    world.write(lambda tx: refill(tx, "sms-K"))
    assert _outbox(world) == BATCH + 1


# The sweep


def test_the_sweep_leaves_alone_what_waits_for_its_turn_in_the_queue() -> None:
    """Hints leave in fair order: only what virtual time has passed by has lost its hint."""
    world = _world()
    keys = [world.schedule(f"r-{number}") for number in range(60)]
    world.pass_()
    rows = sorted((world.row(key) for key in keys), key=lambda row: (row.course.tag, row.id))
    world.write(lambda tx: tx.hinted([(row.id, 0) for row in rows]))
    lost = rows[0]
    hints = [Hint(row.id, row.key, 0, 1, "sms", f"m-{row.id}", f"r-{row.id}") for row in rows[1:11]]
    world.settle([(made, Accepted("r")) for made in _claim(world, hints).claims])
    world.advance(17)
    assert world.write(lambda tx: sweep(tx, "sms-K", waiting=49)) == 1
    (hint,) = world.read(lambda tx: tx.hints(9))
    assert hint.delivery_id == lost.id
    assert world.write(lambda tx: sweep(tx, "sms-K", waiting=0)) == 50, "nothing waits there: all are lost"


def test_what_is_hinted_again_in_vain_is_hinted_more_seldom() -> None:
    world = _world()
    key = world.schedule()
    world.pass_()
    world.advance(16)
    swept, times = Swept(), []
    for second in range(600):
        if world.write(lambda tx: sweep(tx, "sms-K", swept=swept)):
            times.append(second)
        world.advance(1)
    assert times == [0, 15, 45, 105, 225, 465]
    assert world.state(key) is State.QUEUED


def test_a_retry_is_hinted_when_its_time_has_come_and_not_a_quarter_of_a_minute_later() -> None:
    world = _world()
    key = world.schedule()
    world.pass_()
    world.write(lambda tx: tx.hinted([(world.row(key).id, 0)]))
    world.settle([(made, Failed(Reason.UNAVAILABLE, "503", 5.0)) for made in world.claim()])
    _reopen(world)
    assert world.write(lambda tx: sweep(tx, "sms-K", waiting=9)) == 0
    world.advance(60)
    assert world.write(lambda tx: sweep(tx, "sms-K", waiting=9)) == 1
    assert [hint.epoch for hint in world.read(lambda tx: tx.hints(9))] == [world.row(key).standing.epoch]


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


def _keys(world: World) -> list[str]:
    return [str(row["key"]) for row in world.read(lambda tx: tx.rows("view_demo_states"))]


def _reopen(world: World) -> None:
    """Failures are this test's daily bread; its breaker would make it long."""

    def unit(tx: Tx) -> None:
        gate = tx.gates.lock("sms-K")
        assert gate is not None
        tx.gates.save(replace(gate, closed_until=0, probing=False, streak=0))

    world.write(unit)
