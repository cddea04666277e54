"""Asking what became of accepted messages: about whom, when, how fast, and what comes of the answers."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace

import pytest

from sendonce import telemetry
from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import AccountError, NoAnswer, Reason, Throttled, ThrottleScope
from sendonce.core.provider_event import ProviderEvent
from sendonce.held import FAILOVER, hold
from sendonce.pipeline.erasure import erase
from sendonce.pipeline.polls import AGES_S, AWAY_MAX_S, AWAY_S, LOOK_S, SPAN, Poll
from sendonce.pipeline.restore import released
from sendonce.ports.events import Answered, EventBatch, Heard, NotTold
from sendonce.ports.store import Tx
from tests.integration.test_events import K, apply, facets, final, kept, records, say, tell
from tests.integration.world import ADDRESSES, SECOND, TENANT, World

DAY_S = 86_400.0


class Vendor:
    """A provider that can be asked. `says`: by receipt; what is not there is under way. `instead`: what the
    next questions are answered with."""

    def __init__(self) -> None:
        self.says: dict[str, Answered] = {}
        self.instead: list[Answered] = []
        self.questions: list[str] = []
        self.closed = 0

    async def ask(self, receipt: str) -> Answered:
        self.questions.append(receipt)
        if self.instead:
            return self.instead.pop(0)
        return self.says.get(receipt, Heard(EventBatch()))

    async def close(self) -> None:
        self.closed += 1

    @property
    def asked(self) -> list[str]:
        """What was asked since one looked last."""
        asked, self.questions = self.questions, []
        return asked


class Silent(Vendor):
    """One that answers nothing until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self._ended = asyncio.Event(), asyncio.Event()

    async def ask(self, receipt: str) -> Answered:
        self.questions.append(receipt)
        self.is_asked.set()
        await self._ended.wait()
        return NoAnswer("shutdown")

    async def close(self) -> None:
        self._ended.set()


def heard(*events: ProviderEvent, calls: int = 1) -> Heard:
    return Heard(EventBatch(events), calls)


def polling(
    world: World,
    vendor: Vendor,
    *,
    account: str = "sms-K",
    spacing_s: float = 0.5,
    within_s: float = 5 * DAY_S,
    process: str = "p-1",
) -> Poll:
    return Poll(
        world.store,
        world.policy,
        account,
        vendor,
        spacing_s=spacing_s,
        within_s=within_s,
        process=process,
        chance=lambda: 0.0,
    )


def turn(poll: Poll, *, most: int = 500) -> list[float]:
    """Steps until there is nothing to do for a while, as the loop makes them; their waits, not waited."""

    async def steps() -> list[float]:
        waits = []
        for _ in range(most):
            waits.append(await poll.step())
            if waits[-1] >= LOOK_S / 2:
                return waits
        raise AssertionError("it never came to rest")

    return asyncio.run(steps())


# Who is asked about, and when


def test_a_message_is_asked_about_at_each_age_until_it_is_too_old() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    poll, accepted_at = polling(world, vendor, within_s=3 * DAY_S), world.now
    asked_at = []
    for age in sorted({each + about for each in AGES_S for about in (-1, 0, 1)}):
        world.clock.advance(age - (world.now - accepted_at) / SECOND)
        turn(poll)
        if vendor.asked:
            asked_at.append(age)
    assert asked_at == [age for age in AGES_S if age < 3 * DAY_S]


def test_what_it_tells_is_taken_in_as_an_event_and_then_it_is_asked_no_more() -> None:
    world, vendor = World("K"), Vendor()
    delivery = world.accepted("r-1", receipt="m-1")
    poll = polling(world, vendor)
    world.advance(61)
    vendor.says["m-1"] = heard(say(K.SENT, "m-1"))
    turn(poll)
    apply(world)
    assert (vendor.asked, final(world, delivery)) == (["m-1"], K.SENT)
    world.advance(300)
    vendor.says["m-1"] = heard(say(K.DELIVERED, "m-1"))
    turn(poll)
    apply(world)
    assert (vendor.asked, final(world, delivery)) == (["m-1"], K.DELIVERED)
    world.advance(DAY_S)
    turn(poll)
    assert vendor.asked == []
    assert world.state(delivery) is State.ACCEPTED


def test_what_was_called_back_before_is_not_asked_and_told_again_it_changes_nothing() -> None:
    world, vendor = World("K"), Vendor()
    one, other = world.accepted("r-1", receipt="m-1"), world.accepted("r-2", receipt="m-2")
    poll = polling(world, vendor)
    tell(world, "sms-K", say(K.DELIVERED, "m-1"))
    apply(world)
    tell(world, "sms-K", say(K.SENT, "m-2", identity="e-2"))  # taken in, and not applied yet
    world.advance(61)
    vendor.says["m-2"] = heard(say(K.SENT, "m-2", identity="e-2"), say(K.DELIVERED, "m-2"))
    turn(poll)
    apply(world)
    assert vendor.asked == ["m-2"]
    assert (final(world, one), final(world, other)) == (K.DELIVERED, K.DELIVERED)
    assert [fact.kind for fact in facets(world, other)] == [K.DELIVERED, K.SENT]


def test_a_bounce_suppresses_as_one_that_is_called_back() -> None:
    world, vendor = World("N"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.advance(61)
    vendor.says["m-1"] = heard(say(K.BOUNCED_HARD, "m-1", address=ADDRESSES[Channel.EMAIL]), calls=2)
    waits = turn(polling(world, vendor, account="email-N", spacing_s=0.5))
    apply(world)
    assert Kind.SUPPRESSED.value in records(world, Channel.EMAIL)
    assert 1.0 in waits, "two calls take twice the time"


def test_only_what_this_account_accepted_is_asked_of_it() -> None:
    world, vendor = World("K", "L"), Vendor()
    world.accepted("r-1", receipt="m-1", account="sms-K")
    world.accepted("r-2", receipt="m-2", account="sms-L")
    world.schedule("r-3", account="sms-K")
    world.schedule("r-4")
    world.advance(61)
    turn(polling(world, vendor, account="sms-L"))
    assert vendor.asked == ["m-2"]


def test_who_was_away_asks_about_each_once_and_not_for_each_age_that_it_missed() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="old")
    world.advance(3 * 3_600)
    world.accepted("r-2", receipt="young")
    world.advance(61)
    turn(polling(world, vendor))
    assert sorted(vendor.asked) == ["old", "young"]


def test_what_is_too_old_when_polling_begins_is_let_be() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="old")
    world.advance(6 * DAY_S)
    world.accepted("r-2", receipt="young")
    world.advance(61)
    turn(polling(world, vendor))
    assert vendor.asked == ["young"]


def test_more_than_a_line_is_asked_about_to_the_end() -> None:
    world, vendor = World("K"), Vendor()
    for number in range(7):
        world.accepted(f"r-{number}", receipt=f"m-{number}")
    world.advance(61)
    turn(polling(world, vendor, spacing_s=4.0))  # two of one age at a time
    assert vendor.asked == [f"m-{number}" for number in range(7)]


# Places


def test_the_next_process_goes_on_from_the_place_and_one_that_stands_by_asks_nothing() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.advance(61)
    first, second = polling(world, vendor), polling(world, vendor, process="p-2")
    turn(first)
    assert vendor.asked == ["m-1"]
    assert turn(second) == [LOOK_S]
    asyncio.run(first.close())
    assert vendor.closed == 1
    world.accepted("r-2", receipt="m-2")
    world.advance(61)
    turn(second)
    assert vendor.asked == ["m-2"]


def test_a_process_that_dies_costs_a_question_twice_and_none() -> None:
    world, vendor = World("K"), Vendor()
    for number in range(3):
        world.accepted(f"r-{number}", receipt=f"m-{number}")
    world.advance(61)
    first = polling(world, vendor)

    async def some() -> None:
        for _ in range(2):  # the look, and one question
            await first.step()

    asyncio.run(some())
    world.advance(100)  # its lease is over
    turn(polling(world, vendor, process="p-2"))
    assert vendor.asked == ["m-0", "m-0", "m-1", "m-2"]


def test_a_line_that_was_asked_to_its_end_is_kept_at_once() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.advance(61)
    first = polling(world, vendor)

    async def the_line_alone() -> None:
        for _ in range(2):  # the look, and its one question
            await first.step()

    asyncio.run(the_line_alone())
    world.advance(100)
    turn(polling(world, vendor, process="p-2"))
    assert vendor.asked == ["m-1"]


def test_after_a_release_the_numbers_may_be_others_and_places_are_found_anew() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.advance(61)
    poll = polling(world, vendor)
    turn(poll)
    assert vendor.asked == ["m-1"]
    world.write(
        lambda tx: tx.set_meta("poll:sms-K", json.dumps({"epoch": tx.epoch, "places": {"300": 10**9}}))
    )
    world.write(lambda tx: hold(tx, FAILOVER, until=tx.now))
    world.advance(300)
    turn(poll)
    assert vendor.asked == [], "nothing is asked of a held store"
    released(world.store, world.policy, reason="compared", actor="operator:ann")
    turn(poll)
    turn(poll)
    assert vendor.asked == ["m-1"]


def test_a_place_that_nobody_else_writes_about_is_reached_in_spans() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.advance(61)
    world.write(
        lambda tx: tx.set_meta("poll:sms-K", json.dumps({"epoch": tx.epoch, "places": {"60": -20 * SPAN}}))
    )
    turn(polling(world, vendor))
    assert vendor.asked == ["m-1"]


def test_an_entry_from_a_clock_that_was_ahead_holds_nobody_up() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.clock.step(DAY_S)
    world.accepted("r-2", receipt="m-2")
    world.clock.step(-DAY_S)
    world.accepted("r-3", receipt="m-3")
    world.advance(61)
    turn(polling(world, vendor))
    assert {"m-1", "m-3"} <= set(vendor.asked)


def test_nobody_asks_about_a_person_who_was_erased() -> None:
    world, vendor = World("K"), Vendor()
    for customer in ("c-1", "c-2"):
        world.accepted(f"r-{customer}", receipt=f"m-{customer}", customer=customer)
    erase(
        world.store, "c-1", policy=world.policy, tenant=TENANT, reason="asked by letter", actor="operator:ann"
    )
    world.advance(61)
    turn(polling(world, vendor))
    assert vendor.asked == ["m-c-2"]


def test_a_stop_gives_up_the_open_question_and_it_was_never_asked() -> None:
    world, vendor = World("K"), Silent()
    world.accepted("r-1", receipt="m-1")
    world.accepted("r-2", receipt="m-2")
    world.advance(61)
    poll, stream = polling(world, vendor), io.StringIO()

    async def stop_while_it_is_silent() -> None:
        await poll.step()
        open_step = asyncio.create_task(poll.step())
        await vendor.is_asked.wait()
        poll.stop()
        async with asyncio.timeout(10.0):
            assert await open_step == 0.0
            await poll.close()

    telemetry.configure("debug", "json", stream=stream)
    try:
        asyncio.run(stop_while_it_is_silent())
    finally:
        telemetry.silence()
    assert "poll_away" not in stream.getvalue()
    other = Vendor()
    turn(polling(world, other, process="p-2"))
    assert (vendor.asked, other.asked) == (["m-1"], ["m-1", "m-2"])


# What is not told


def test_one_message_at_which_the_provider_fails_hides_nobody() -> None:
    world, vendor = World("K"), Vendor()
    for number in range(3):
        world.accepted(f"r-{number}", receipt=f"m-{number}")
    world.advance(61)
    vendor.says["m-0"] = NoAnswer("http_500")
    poll = polling(world, vendor)
    assert turn(poll)[-1] == LOOK_S
    assert vendor.asked == ["m-0", "m-1", "m-2"]
    world.advance(300)
    vendor.says.clear()
    turn(poll)
    assert vendor.asked == ["m-0", "m-1", "m-2"], "it is asked about at its next age"


def test_a_provider_that_is_away_costs_time_alone() -> None:
    world, vendor = World("K"), Vendor()
    for number in range(3):
        world.accepted(f"r-{number}", receipt=f"m-{number}")
    world.advance(61)
    poll = polling(world, vendor)
    waits = []
    for _ in range(9):
        vendor.instead = [NoAnswer("timeout")] * 3
        waits.append(turn(poll)[-1])
        vendor.instead = []
    assert waits[:3] == [AWAY_S / 2, AWAY_S, AWAY_S * 2]
    assert waits[-1] == AWAY_MAX_S / 2
    vendor.questions.clear()
    turn(poll)
    assert vendor.asked == ["m-0", "m-1", "m-2"]


def test_a_login_that_is_refused_is_away_at_once_and_holds_no_sends() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.accepted("r-2", receipt="m-2")
    world.advance(61)
    vendor.instead = [AccountError(Reason.AUTHENTICATION, "http_401")]
    turn(polling(world, vendor))
    assert vendor.asked == ["m-1"]
    (gate,) = world.read(lambda tx: tx.gates.all())
    assert gate.closed_until <= world.read(lambda tx: tx.steady)


def test_what_the_provider_does_not_know_is_asked_again_at_its_next_age() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.advance(61)
    vendor.says["m-1"] = NotTold("http_404")
    poll = polling(world, vendor)
    turn(poll)
    world.advance(300)
    turn(poll)
    assert vendor.asked == ["m-1", "m-1"]
    assert kept(world) == []


def test_an_item_that_cannot_be_read_is_left_to_people_once() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    vendor.says["m-1"] = Heard(EventBatch(faulty=("not_an_object",)))
    poll = polling(world, vendor)
    for wait_s in (61, 300):
        world.advance(wait_s)
        turn(poll)
    assert len(vendor.asked) == 2
    assert [one.why for one in kept(world)] == ["not_an_object"]


# Pace


def test_a_429_closes_the_gate_for_sends_too_and_nothing_is_asked_until_it_opens() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.accepted("r-2", receipt="m-2")
    world.advance(61)
    world.schedule("r-3")
    world.pass_()
    poll = polling(world, vendor)
    vendor.instead = [Throttled(ThrottleScope.RATE, "429", 30.0)]
    turn(poll)
    assert vendor.asked == ["m-1"]
    assert world.claim() == []
    world.advance(29)
    assert asyncio.run(poll.step()) == pytest.approx(1.0)
    assert vendor.asked == []
    world.advance(2)
    turn(poll)
    assert vendor.asked == ["m-1", "m-2"]
    assert len(world.claim()) == 1


def test_questions_take_no_slot_and_a_closed_gate_stops_them() -> None:
    world, vendor = World("K"), Vendor()
    world.accepted("r-1", receipt="m-1")
    world.advance(61)
    (before,) = world.read(lambda tx: tx.gates.all())

    def close(until: int) -> None:
        def unit(tx: Tx) -> None:
            gate = tx.gates.lock("sms-K")
            assert gate is not None
            tx.gates.save(replace(gate, closed_until=until))

        world.write(unit)

    close(world.read(lambda tx: tx.steady) + 5 * SECOND)
    poll = polling(world, vendor)
    assert asyncio.run(poll.step()) == pytest.approx(5.0)
    close(0)
    turn(poll)
    assert vendor.asked == ["m-1"]
    (after,) = world.read(lambda tx: tx.gates.all())
    assert (after.tats, after.usage) == (before.tats, before.usage)


def test_questions_are_as_far_apart_as_the_allowance_says() -> None:
    world, vendor = World("K"), Vendor()
    for number in range(4):
        world.accepted(f"r-{number}", receipt=f"m-{number}")
    world.advance(61)
    waits = turn(polling(world, vendor, spacing_s=2.5))
    assert [wait for wait in waits if wait] == [2.5, 2.5, 2.5, 2.5, LOOK_S]
