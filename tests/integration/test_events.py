"""What providers say later: kept once, matched to its own delivery, folded beside it, and for its address.

Events are given to the stage as adapters make them; what comes over HTTP is in `test_api_events.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import cast

import pytest

from sendonce import metrics
from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel, send_key
from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted, Failed, Reason, Unknown
from sendonce.core.provider_event import PROVES, EventKind, Fact, ProviderEvent, stands
from sendonce.moves import move_on
from sendonce.pipeline import events
from sendonce.pipeline.events import RETURNED_MAIL, EventApplier, TakenIn, take_in
from sendonce.pipeline.record import counts_of_events, facets_of
from sendonce.ports.store import EventLook, Move, Row, Store, StoredEvent, Tx
from tests.integration.world import ADDRESSES, SECOND, TENANT, World

K = EventKind


def tell(world: World, account: str, *told: ProviderEvent, faulty: Sequence[str] = ()) -> TakenIn:
    return take_in(world.store, world.policy, account, told, faulty=faulty, source=b"body").result()


def apply(world: World, wait_s: float = events.WAIT_S) -> None:
    """Whatever may be applied now."""
    applier = EventApplier(world.store, world.policy, wait_s=wait_s)
    while applier.step() == 0.0:
        pass


def say(
    kind: EventKind,
    receipt: str = "",
    *,
    at: int = 0,
    identity: str = "",
    key: str = "",
    address: str = "",
    code: str = "",
    text: str = "",
) -> ProviderEvent:
    return ProviderEvent(
        identity=identity or f"{kind}-{receipt}-{key}-{address}-{at}",
        kind=kind,
        receipt=receipt,
        send_key=key,
        address=address,
        occurred_at=at or None,
        code=code,
        text=text,
    )


def key_of(world: World, delivery: str, version: int = 1, tenant: str = TENANT) -> str:
    return send_key(world.store.secret, tenant, delivery, version)


def facets(world: World, delivery: str) -> tuple[Fact, ...]:
    id_ = world.row(delivery).id
    return world.read(lambda tx: facets_of(tx, id_))


def final(world: World, delivery: str) -> EventKind | None:
    fact = stands(facets(world, delivery))
    return None if fact is None else fact.kind


def kept(world: World) -> list[StoredEvent]:
    """All that was taken in."""
    found: list[StoredEvent] = []
    while (one := world.read(partial(_numbered, len(found) + 1))) is not None:
        found.append(one)
    return found


def _numbered(number: int, tx: Tx) -> StoredEvent | None:
    return events.event(tx, number)


def looks(world: World) -> list[EventLook]:
    return [one.look for one in kept(world)]


def records(world: World, channel: Channel, address: str = "", tenant: str = TENANT) -> dict[str, Row]:
    tag = world.tag(channel, address or ADDRESSES[channel], tenant)
    rows = world.read(
        lambda tx: tx.rows(
            "preference_list", tenant=tenant, channel="", address_tag="", category="", kind="", limit=50
        )
    )
    return {str(row["kind"]): row for row in rows if row["address_tag"] == tag}


# Whose it is, and what stands


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_hook_01_what_stands_never_depends_on_the_order(order: Sequence[int]) -> None:
    world = World("K")
    delivery = world.accepted("p1", receipt="p1")
    start = world.now
    told = [
        say(K.ACCEPTED, "p1", at=start + 1),
        say(K.SENT, "p1", at=start + 3),
        say(K.DELIVERED, "p1", at=start + 5),
    ]
    world.advance(1)
    for index in order:
        tell(world, "sms-K", told[index])
        apply(world)
    assert final(world, delivery) is K.DELIVERED
    assert {one.occurred_at - start for one in kept(world)} == {1, 3, 5}, "each with the provider's time"
    assert world.state(delivery) is State.ACCEPTED
    assert "proven" not in world.events(delivery)


@pytest.mark.parametrize("first", [0, 1])
def test_hook_03_a_hard_bounce_after_delivered_stands_and_both_are_kept(first: int) -> None:
    world = World("N")
    delivery = world.accepted("p1", receipt="p1", account="email-N")
    other = world.schedule("p2", due_in_s=3_600)
    at = world.now
    world.advance(60)
    told = [
        say(K.DELIVERED, "p1", at=at + 10),
        say(K.BOUNCED_HARD, "p1", at=at + 40, code="5.1.1"),
    ]
    for index in (first, 1 - first):
        tell(world, "email-N", told[index])
        apply(world)
    assert stands(facets(world, delivery)) == Fact(K.BOUNCED_HARD, at + 40, "5.1.1")
    assert Fact(K.DELIVERED, at + 10) in facets(world, delivery)
    (record,) = records(world, Channel.EMAIL).values()
    assert record["kind"] == Kind.SUPPRESSED
    assert record["source"] == "bounce"
    assert "5.1.1" in str(record["evidence"])
    assert world.state(delivery) is State.ACCEPTED, "an event takes nothing back"
    assert world.state(other) is State.SUPPRESSED, "nothing more goes to that address"


def test_hook_07_one_bad_item_costs_the_others_nothing_and_all_of_it_again_changes_nothing() -> None:
    world = World("K")
    first, third = world.accepted("r1", receipt="p1"), world.accepted("r3", receipt="p3")
    batch = (say(K.DELIVERED, "p1"), say(K.DELIVERED, "p3"))
    assert tell(world, "sms-K", *batch, faulty=["no_id"]) == TakenIn(3, 0, 1)
    apply(world)
    before = kept(world)
    assert [final(world, one) for one in (first, third)] == [K.DELIVERED] * 2
    assert [(one.look, one.why) for one in before if one.look is not EventLook.DONE] == [
        (EventLook.FAULTY, "no_id")
    ]
    assert tell(world, "sms-K", *batch, faulty=["no_id"]) == TakenIn(0, 3, 1)
    apply(world)
    assert kept(world) == before


def test_how_late_an_event_is_told_is_counted_once_and_not_before_it_is_kept() -> None:
    """A clock that is ahead of ours is no lag below nought, and an event without a time has none."""
    world = World("K")

    def lags() -> tuple[int, float]:
        spread = metrics.EVENT_LAG.spreads().get(("sms-K",))
        return (0, 0.0) if spread is None else (sum(spread.buckets), spread.total)

    count, total = lags()
    told = [say(K.DELIVERED, f"p{at}", at=world.now + at * SECOND) for at in (-90, -30, 60)]
    tell(world, "sms-K", *told, say(K.DELIVERED, "no time"))
    assert lags() == pytest.approx((count + 3, total + 120.0))
    tell(world, "sms-K", *told, say(K.DELIVERED, "p4", at=world.now))  # all but the last are known
    assert lags() == pytest.approx((count + 4, total + 120.0))

    class Full:
        secret = world.store.secret

        def write(self, unit: object) -> Future[TakenIn]:
            refused: Future[TakenIn] = Future()
            refused.set_exception(StoreUnavailable("full"))
            return refused

    lost = take_in(cast(Store, Full()), world.policy, "sms-K", [say(K.DELIVERED, "lost", at=world.now)])
    assert lost.exception() is not None
    assert lags()[0] == count + 4


def test_the_lag_of_an_answer_that_several_tenants_may_have_is_one() -> None:
    world = World("K")
    world.policy = replace(world.policy, zones={**world.policy.zones, "other": "Etc/UTC"})
    before = sum(spread.buckets) if (spread := metrics.EVENT_LAG.spreads().get(("sms-K",))) else 0
    answer = say(K.OPTED_OUT, address=ADDRESSES[Channel.SMS], at=world.now - SECOND, text="STOP")
    assert tell(world, "sms-K", answer).new == 2
    assert sum(metrics.EVENT_LAG.spreads()["sms-K",].buckets) == before + 1


def test_hook_11_what_was_told_before_changes_nothing_also_a_year_later() -> None:
    world = World("N")
    world.accepted("p1", receipt="p1", account="email-N")
    told = say(K.COMPLAINED, "p1", at=world.now)
    tell(world, "email-N", told)
    apply(world)
    before, rows = kept(world), records(world, Channel.EMAIL)
    world.advance(365 * 86_400)
    assert tell(world, "email-N", told).new == 0
    apply(world)
    assert kept(world) == before
    assert records(world, Channel.EMAIL) == rows


def test_an_event_that_is_faster_than_our_own_commit_waits_for_it() -> None:
    world = World("K")
    delivery = world.schedule("r-1")
    world.pass_()
    (claim,) = world.claim()
    tell(world, "sms-K", say(K.DELIVERED, "rec-1"))
    apply(world)
    assert [(one.look, one.why) for one in kept(world)] == [(EventLook.WAITS, "receipt")]
    world.settle([(claim, Accepted("rec-1"))])
    world.advance(1)
    apply(world)
    assert final(world, delivery) is K.DELIVERED
    assert looks(world) == [EventLook.DONE]


def test_what_finds_nothing_is_looked_for_ever_less_often_and_then_left_to_people() -> None:
    world = World("K")
    tell(world, "sms-K", say(K.DELIVERED, "nobody's"))
    gaps: list[int] = []
    while (one := kept(world)[0]).look is EventLook.WAITS:
        gaps.append(one.next_at - world.now)
        world.advance(max(0, one.next_at - world.now) / SECOND)
        apply(world, wait_s=3_600)
    assert (one.look, one.why) == (EventLook.UNMATCHED, "receipt")
    assert gaps[1:8] == [SECOND * 2**n for n in range(7)]
    assert max(gaps) == events.AGAIN_MAX_S * SECOND
    assert 3_600 <= sum(gaps) / SECOND <= 3_600 + events.AGAIN_MAX_S
    assert world.read(counts_of_events) == {EventLook.WAITS: 0, EventLook.UNMATCHED: 1}


def test_a_person_has_it_looked_for_again() -> None:
    world = World("K")
    tell(world, "sms-K", say(K.DELIVERED, "late"), faulty=["json"])
    apply(world, wait_s=0.0)
    assert looks(world) == [EventLook.UNMATCHED, EventLook.FAULTY]
    delivery = world.accepted("r-1", receipt="late")
    assert events.retry(world.store, [1, 2, 99], actor="operator:ann") == 1, "what has no names has no home"
    apply(world)
    assert final(world, delivery) is K.DELIVERED
    assert looks(world) == [EventLook.DONE, EventLook.FAULTY]


def test_another_accounts_receipt_is_nobodys() -> None:
    world = World("K", "L")
    ours = world.accepted("r-1", receipt="same", account="sms-K")
    theirs = world.accepted("r-2", receipt="other", account="sms-L")
    tell(world, "sms-L", say(K.BOUNCED_HARD, "same"))
    tell(world, "sms-K", say(K.DELIVERED, "same", key=key_of(world, theirs)))
    apply(world, wait_s=0.0)
    assert facets(world, theirs) == ()
    assert facets(world, ours) == (Fact(K.DELIVERED, kept(world)[1].at),), "by the receipt, which is its own"
    assert records(world, Channel.SMS) == {}
    assert looks(world) == [EventLook.UNMATCHED, EventLook.DONE]


def test_one_receipt_of_two_accounts_leads_to_each_its_own() -> None:
    world = World("K", "L")
    one = world.accepted("r-1", receipt="1001", account="sms-K")
    two = world.accepted("r-2", receipt="1001", account="sms-L")
    tell(world, "sms-L", say(K.DELIVERED, "1001"))
    apply(world)
    assert (final(world, one), final(world, two)) == (None, K.DELIVERED)


def test_a_receipt_that_two_deliveries_have_says_nothing() -> None:
    world = World("N")
    both = [world.accepted(name, receipt="queued", account="email-N") for name in ("r-1", "r-2")]
    tell(world, "email-N", say(K.BOUNCED_HARD, "queued"))
    apply(world, wait_s=0.0)
    assert [facets(world, one) for one in both] == [(), ()]
    assert looks(world) == [EventLook.UNMATCHED]


# What it proves


def test_a_verified_send_key_settles_what_was_uncertain() -> None:
    world = World("N")
    delivery = world.uncertain("r-1", account="email-N")
    tell(world, "email-N", say(K.DELIVERED, "rec-9", key=key_of(world, delivery)))
    apply(world)
    row = world.row(delivery)
    assert (row.standing.state, row.course.receipt) == (State.ACCEPTED, "rec-9")
    last = world.lines(delivery)[-1]
    assert (last.event, last.actor) == ("proven", "provider:email-N")
    assert last.details == {
        "evidence": "event",
        "kind": "delivered",
        "receipt": "rec-9",
    }
    tell(world, "email-N", say(K.BOUNCED_HARD, "rec-9"))
    apply(world)
    assert final(world, delivery) is K.BOUNCED_HARD, "later ones find it by the receipt"


@pytest.mark.parametrize("kind", sorted(set(EventKind) - PROVES))
def test_what_proves_nothing_settles_nothing(kind: EventKind) -> None:
    world = World("N")
    delivery = world.uncertain("r-1", account="email-N")
    tell(world, "email-N", say(kind, key=key_of(world, delivery)))
    apply(world)
    assert world.state(delivery) is State.UNCERTAIN
    assert [fact.kind for fact in facets(world, delivery)] == [kind], "and is kept beside"


def test_the_beginning_of_a_key_is_enough_where_returned_mail_holds_no_more() -> None:
    world = World("N")
    delivery = world.uncertain("r-1", account="email-N")
    tell(world, RETURNED_MAIL, say(K.BOUNCED_HARD, key=key_of(world, delivery)[:32], code="failed 5.1.1"))
    tell(world, RETURNED_MAIL, say(K.DELIVERED, "receipt-r-1", identity="no key"))
    apply(world, wait_s=0.0)
    assert world.state(delivery) is State.ACCEPTED, "a server that reports took it"
    assert final(world, delivery) is K.BOUNCED_HARD
    assert looks(world) == [EventLook.DONE, EventLook.UNMATCHED], "by mail, only a token counts"


def test_a_call_in_flight_is_waited_for_and_then_settled() -> None:
    world = World("N")
    delivery = world.schedule("r-1", account="email-N")
    world.pass_()
    (claim,) = world.claim("email-N")
    tell(world, "email-N", say(K.DELIVERED, "rec-1", key=key_of(world, delivery)))
    apply(world)
    assert world.state(delivery) is State.SENDING
    assert facets(world, delivery) == ()
    for _ in range(5):
        world.advance(1)
        apply(world)
    assert world.state(delivery) is State.ACCEPTED
    assert final(world, delivery) is K.DELIVERED
    world.settle([(claim, Accepted("rec-1"))])
    assert world.events(delivery)[-2:] == ["proven", "late_outcome"]


def test_the_outcome_of_a_call_in_flight_comes_first() -> None:
    world = World("N")
    delivery = world.schedule("r-1", account="email-N")
    world.pass_()
    (claim,) = world.claim("email-N")
    tell(world, "email-N", say(K.DELIVERED, "rec-1", key=key_of(world, delivery)))
    apply(world)
    world.settle([(claim, Accepted("rec-1"))])
    world.advance(1)
    apply(world)
    assert world.events(delivery)[-1] == "accepted"
    assert final(world, delivery) is K.DELIVERED


def test_what_says_not_sent_is_put_right() -> None:
    world = World("N")
    delivery = world.dead("r-1", account="email-N")
    tell(world, "email-N", say(K.SENT, "rec-1", key=key_of(world, delivery)))
    apply(world)
    assert world.state(delivery) is State.ACCEPTED


def test_a_key_that_was_never_handed_out_proves_nothing() -> None:
    world = World("N")
    waiting = world.schedule("r-1", account="email-N")
    world.pass_()
    tell(world, "email-N", say(K.DELIVERED, "rec-1", key=key_of(world, waiting)))
    tell(world, "email-N", say(K.DELIVERED, "rec-2", key="0" * 64))
    apply(world, wait_s=0.0)
    assert world.state(waiting) is State.QUEUED
    assert looks(world) == [EventLook.UNMATCHED] * 2


def test_an_event_of_an_earlier_content_is_about_the_address_that_it_went_to() -> None:
    world = World("N")
    delivery = world.schedule("r-1", account="email-N")
    world.pass_()
    world.send(Failed(Reason.UNAVAILABLE, "503"), "email-N")
    old = world.row(delivery)

    def revise(tx: Tx) -> None:
        (row,) = tx.deliveries.by_ids([old.id])
        move = move_on(row, Event.REVISED, world.policy, tx, actor="test")
        assert isinstance(move, Move)
        tx.deliveries.move([replace(move, address_tag=world.tag(Channel.EMAIL, "new@example.com"))])

    world.write(revise)
    tell(world, "email-N", say(K.BOUNCED_HARD, key=key_of(world, delivery)))
    apply(world)
    assert world.state(delivery) is State.ACCEPTED, "the first content had been sent after all"
    assert set(records(world, Channel.EMAIL)) == {"suppressed"}
    assert records(world, Channel.EMAIL, "new@example.com") == {}


def test_no_event_ever_makes_a_call() -> None:
    for kind in EventKind:
        world = World("K", "N")
        ended = [
            world.accepted("r-1", receipt="rec-1"),
            world.dead("r-2"),
            world.uncertain("r-3", account="email-N"),
        ]
        for delivery in ended:
            tell(world, world.row(delivery).course.account, say(kind, key=key_of(world, delivery)))
        apply(world)
        world.pass_()
        assert world.claim() == []
        assert world.claim("email-N") == []


# What follows for the address


def test_a_stop_ends_what_is_open_and_a_start_lifts_it() -> None:
    world = World("K")
    open_ = world.schedule("r-1", due_in_s=3_600)
    at = world.now
    world.advance(60)
    number = ADDRESSES[Channel.SMS]
    tell(world, "sms-K", say(K.OPTED_OUT, address=number, at=at + 10 * SECOND, text="STOP"))
    apply(world)
    assert world.state(open_) is State.SUPPRESSED
    assert looks(world) == [EventLook.DONE]
    row = records(world, Channel.SMS)["opt_out"]
    assert (row["source"], row["masked"]) == ("reply", "+1202***0123")
    world.advance(10)
    tell(world, "sms-K", say(K.OPTED_IN, address=number, at=world.now, text="START"))
    apply(world)
    assert world.state(world.accepted("r-2")) is State.ACCEPTED


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_stop_and_a_start_count_in_the_order_in_which_they_were_said(order: Sequence[int]) -> None:
    world = World("K")
    at, number = world.now, ADDRESSES[Channel.SMS]
    world.advance(60)
    told = [say(K.OPTED_OUT, address=number, at=at + 1), say(K.OPTED_IN, address=number, at=at + 2)]
    for index in order:
        tell(world, "sms-K", told[index])
        apply(world)
    assert world.state(world.accepted("r-1")) is State.ACCEPTED


def test_a_clock_that_is_ahead_wins_over_nothing_that_is_said_later() -> None:
    world = World("K")
    number = ADDRESSES[Channel.SMS]
    tell(world, "sms-K", say(K.OPTED_IN, address=number, at=world.now + 10**15))
    apply(world)
    world.advance(1)
    tell(world, "sms-K", say(K.OPTED_OUT, address=number))
    apply(world)
    delivery = world.schedule("r-1")
    world.pass_()
    assert world.state(delivery) is State.SUPPRESSED


@pytest.mark.parametrize(
    ("text", "look", "kind"),
    [
        ("Stop", EventLook.DONE, K.OPTED_OUT),
        ("please stop texting me", EventLook.DONE, K.OPTED_OUT),
        ("START", EventLook.DONE, K.OPTED_IN),
        ("help", EventLook.DONE, K.REPLIED),
        ("thanks!", EventLook.DONE, K.REPLIED),
        ("don't stop", EventLook.UNCLEAR, K.REPLIED),
    ],
)
def test_a_customers_words_are_read(text: str, look: EventLook, kind: EventKind) -> None:
    world = World("K")
    tell(world, "sms-K", say(K.REPLIED, address=ADDRESSES[Channel.SMS], text=text))
    apply(world)
    (one,) = kept(world)
    assert (one.look, one.kind, one.text) == (look, kind, text)
    assert ("opt_out" in records(world, Channel.SMS)) is (kind is K.OPTED_OUT)


def test_an_account_of_many_tenants_hears_a_stop_for_all_of_them() -> None:
    world = World("K")
    world.policy = replace(world.policy, zones={"default": "UTC", "acme": "UTC"})
    delivery = world.accepted("r-1", receipt="rec-1")
    tell(world, "sms-K", say(K.OPTED_OUT, address=ADDRESSES[Channel.SMS]), say(K.DELIVERED, "rec-1"))
    apply(world)
    assert set(records(world, Channel.SMS)) == {"opt_out"}
    assert set(records(world, Channel.SMS, tenant="acme")) == {"opt_out"}
    assert final(world, delivery) is K.DELIVERED
    assert len(kept(world)) == 3, "one for each tenant, since a tag is a tenant's"


def test_an_opt_out_of_nobody_is_left_to_people() -> None:
    world = World("K")
    assert tell(world, "sms-K", say(K.OPTED_OUT, address="not a number")).faulty == 1
    apply(world)
    assert [(one.look, one.why) for one in kept(world)] == [(EventLook.FAULTY, "no_address")]


def test_cont_15_what_no_store_can_hold_is_replaced_and_the_event_applied() -> None:
    world = World("N")
    delivery = world.accepted("r-1", receipt="p1", account="email-N")
    tell(world, "email-N", say(K.BOUNCED_HARD, "p1", identity="x\0" * 300, code="bad\0\ud800", text="\0"))
    apply(world)
    assert final(world, delivery) is K.BOUNCED_HARD
    assert kept(world)[0].code == "bad\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


def test_nothing_of_an_address_is_kept_where_the_delivery_knows_it() -> None:
    world = World("N")
    world.accepted("r-1", receipt="p1", account="email-N")
    tell(world, "email-N", say(K.DELIVERED, "p1", address="ann@example.com"))
    assert kept(world)[0].masked == "a***@example.com"
    apply(world)
    assert kept(world)[0].masked == ""
    assert "ann@example.com" not in repr(kept(world))


def test_one_that_cannot_be_applied_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("K")
    delivery = world.accepted("r-1", receipt="good")
    tell(world, "sms-K", say(K.SENT, "bad"), say(K.DELIVERED, "good"))
    lacks = events._lacks

    def broken(event: StoredEvent) -> str:
        if event.receipt == "bad":
            raise ValueError("a bug")
        return lacks(event)

    monkeypatch.setattr(events, "_lacks", broken)
    apply(world)
    assert final(world, delivery) is K.DELIVERED
    assert [(one.look, one.why) for one in kept(world)] == [
        (EventLook.FAULTY, "bug:ValueError"),
        (EventLook.DONE, ""),
    ]


def test_uncertain_stays_so_where_the_outcome_is_unknown_and_no_event_comes() -> None:
    world = World("N")
    delivery = world.schedule("r-1", account="email-N")
    world.pass_()
    world.send(Unknown("timeout"), "email-N")
    apply(world)
    assert world.state(delivery) is State.UNCERTAIN
