"""How long what providers said is kept, that erasing a person reaches it, and that all may apply at once."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted
from sendonce.core.provider_event import EventKind, Fact
from sendonce.core.retention import Keep
from sendonce.pipeline import events, pruner, settler
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.pipeline.erasure import erase
from sendonce.pipeline.events import EventApplier
from sendonce.pipeline.retention import Retention
from sendonce.pipeline.verify import verify
from sendonce.ports.store import EventLook, Tx
from tests.integration.test_events import K, apply, facets, final, kept, key_of, say, tell
from tests.integration.world import ADDRESSES, TENANT, World

DAY = 86_400.0


def test_a_delivery_that_is_removed_takes_its_events_along() -> None:
    world = World("K")
    world.accepted("r-1", receipt="rec-1")
    tell(world, "sms-K", say(K.DELIVERED, "rec-1"), say(K.DELIVERED, "nobody's"))
    apply(world, wait_s=0.0)
    world.advance(30 * DAY)
    world.accepted("r-2", receipt="rec-2")  # the newest of each kind stays
    tell(world, "sms-K", say(K.DELIVERED, "rec-2"))
    apply(world)
    retention = Retention(world.store, world.policy, Keep(deliveries_s=7 * DAY))
    while retention.step() < 60.0:
        pass
    rows = world.read(lambda tx: tx.rows("view_facets", delivery_id=1))
    assert list(rows) == []
    assert world.read(lambda tx: events.event(tx, 1)) is None
    left = world.read(lambda tx: events.event(tx, 2))
    assert left is not None
    assert left.look is EventLook.UNMATCHED


def test_what_belongs_to_nobody_is_forgotten_in_time_and_what_waits_is_not() -> None:
    world = World("K")
    world.accepted("r-1", receipt="rec-1")
    tell(world, "sms-K", say(K.DELIVERED, "rec-1"), say(K.DELIVERED, "nobody's"), faulty=["json"])
    apply(world, wait_s=0.0)
    tell(world, "sms-K", say(K.SENT, "waits"))
    world.advance(91 * DAY)
    world.write(pruner.prune)
    left = [world.read(partial(events.event, id_=number)) for number in range(1, 5)]
    assert [one and one.receipt for one in left] == ["rec-1", None, None, "waits"]


def test_erasing_a_person_reaches_what_was_said_of_and_by_them() -> None:
    world = World("K")
    world.accepted("r-1", receipt="rec-1")
    number = ADDRESSES[Channel.SMS]
    tell(
        world,
        "sms-K",
        say(K.REPLIED, address=number, text="my name is Ann"),
        say(K.DELIVERED, "rec-1", address=number),
        say(K.UNKNOWN, "nobody's", address=number),
        say(K.REPLIED, address="+12025550199", text="another"),
    )
    apply(world, wait_s=0.0)
    erase(world.store, "c-1", policy=world.policy, tenant=TENANT, reason="asked", actor="operator:ann")
    told = kept(world)
    assert [(one.text, one.masked, one.address_tag) for one in told[:3]] == [("", "", "")] * 3
    assert told[3].text == "another"
    assert told[1].kind is EventKind.DELIVERED, "what happened stays"


def test_a_receipt_that_comes_late_is_known_from_then_on() -> None:
    """The delivery was settled by an event that named none; the call's own answer comes after it."""
    world = World("N")
    key = world.schedule(account="email-N")
    world.pass_()
    (claim,) = world.claim("email-N")
    world.advance(3_600)
    world.reap()
    tell(world, "email-N", say(K.SENT, key=key_of(world, key)), say(K.DELIVERED, "rec-9"))
    apply(world)
    assert (world.state(key), len(facets(world, key))) == (State.ACCEPTED, 1)
    late = Attempted(claim, Accepted("rec-9"), claim.slot_at, claim.slot_at)
    world.write(lambda tx: settler.settle(tx, [late], policy=world.policy, process="w-1", chance=lambda: 0.5))
    assert world.events(key)[-1] == "late_outcome"
    world.advance(2)
    apply(world)
    assert len(facets(world, key)) == 2
    assert verify(world.store).ok


def test_a_page_of_events_is_applied_once_by_all_who_apply(tmp_path: Path) -> None:
    """Threads with stores of their own, as processes have them; one of them settles late outcomes of the very
    same deliveries meanwhile."""
    world = World("N", path=str(tmp_path / "store.db"))
    count = 40
    keys = [world.schedule(f"r-{number}", account="email-N") for number in range(count)]
    world.pass_()
    claims: list[Claim] = []
    while len(claims) < count:
        more = world.claim("email-N")
        assert more
        claims += more
    world.advance(3_600)
    world.reap()
    assert {world.state(key) for key in keys} == {State.UNCERTAIN}
    numbers = {f"r-{number}:c-1:email": number for number in range(count)}
    for number, key in enumerate(keys):
        sends = key_of(world, key)
        tell(world, "email-N", say(K.SENT, f"rec-{number}", key=sends), say(K.DELIVERED, f"rec-{number}"))
        tell(world, "email-N", say(K.BOUNCED_HARD, key=sends, at=world.now - 1))
    barrier = threading.Barrier(4)
    errors: list[BaseException] = []

    def work() -> None:
        store = world.another_store()
        try:
            applier = EventApplier(store, world.policy)
            barrier.wait()
            for _ in range(count):
                applier.step()
        except BaseException as error:
            errors.append(error)
        finally:
            store.close()

    def settle() -> None:
        store = world.another_store()
        try:
            barrier.wait()
            for claim in claims:
                late = Attempted(claim, Accepted(f"rec-{numbers[claim.key]}"), claim.slot_at, claim.slot_at)
                settling = partial(
                    settler.settle,
                    attempts=[late],
                    policy=world.policy,
                    process="w-1",
                    chance=lambda: 0.5,
                )
                store.write(settling).result()
        except BaseException as error:
            errors.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=each) for each in (work, work, work, settle)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for _ in range(3):  # those that looked for a receipt before it was known
        world.advance(2)
        apply(world)
    for key in keys:
        assert world.state(key) is State.ACCEPTED
        assert world.events(key).count("proven") == 1
        assert final(world, key) is K.BOUNCED_HARD
        assert len(facets(world, key)) == 3
    assert {one.look for one in kept(world)} == {EventLook.DONE}


def test_an_applier_that_dies_leaves_all_to_the_next() -> None:
    world = World("K")
    delivery = world.accepted("r-1", receipt="rec-1")
    tell(world, "sms-K", say(K.DELIVERED, "rec-1", at=world.now))

    class Killed(Exception):
        """As a process that ends between its last statement and the commit."""

    def unit(tx: Tx) -> None:
        found = tx.events.waiting(tx.now, 10)
        events.apply(tx, found, world.policy, secret=world.store.secret, wait_s=1.0)
        raise Killed

    with pytest.raises(Killed):
        world.write(unit)
    assert facets(world, delivery) == ()
    apply(world)
    assert facets(world, delivery) == (Fact(K.DELIVERED, kept(world)[0].occurred_at),)
