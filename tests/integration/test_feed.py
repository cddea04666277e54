"""The feed of an application: in order, nothing missed whoever commits when, and a cursor that says when it
holds no longer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from sendonce.core.errors import InvalidInput, Refused
from sendonce.core.feed import Kind
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.core.retention import Keep
from sendonce.held import FAILOVER, hold
from sendonce.pipeline import feed as module
from sendonce.pipeline.events import EventApplier, take_in
from sendonce.pipeline.feed import BAD_CURSOR, GONE, Feed, Page, Told, pages
from sendonce.pipeline.restore import released
from sendonce.pipeline.retention import LOOK_S, Retention
from sendonce.ports.store import Store, Tx
from sendonce.store import postgres
from sendonce.testing.clock import VirtualClock
from sendonce.withdrawal import withdraw
from tests.integration.world import SECOND, TENANT, World
from tests.postgres_schemas import bare

DAY_S = 86_400.0


def told(world: World, after: str = "", **given: int) -> tuple[list[Told], str]:
    """All that is there behind a cursor, and the next one."""
    found: list[Told] = []
    cursor = after
    for page in pages(Feed(world.store), tenant=TENANT, after=after, **given):
        found += page.told
        cursor = page.cursor
    return found, cursor


def test_each_end_is_told_once_in_order_and_nothing_of_the_way_there() -> None:
    world = World("K", "N")
    sent = world.accepted("r-1")
    dead = world.dead("r-2")
    unclear = world.uncertain("r-3", account=world.accounts[1])
    gone = world.schedule("r-4", due_in_s=60)
    world.withdraw(gone, Event.CANCELLED, "paid")
    found, cursor = told(world)
    assert [(each.delivery, each.state, each.over) for each in found] == [
        (sent, "ACCEPTED", True),
        (dead, "DEAD", True),
        (unclear, "UNCERTAIN", False),
        (gone, "CANCELLED", True),
    ]
    assert {each.kind for each in found} == {Kind.DISPOSITION}
    assert found[0].id == f"{sent}/{len(world.lines(sent))}"
    assert (found[0].reminder, found[0].customer, found[0].at) == ("r-1", "c-1", world.lines(sent)[-1].at)
    assert (found[2].maybe, found[3].reason) == (True, "paid")
    assert told(world, cursor) == ([], cursor)


def test_what_goes_again_is_told_and_so_is_its_new_end() -> None:
    world = World("N")
    key = world.uncertain("r-1")
    _, cursor = told(world)
    world.permit(key)
    world.send(Accepted("m-1"))
    found, _ = told(world, cursor)
    assert [(each.kind, each.state, each.receipt) for each in found] == [
        (Kind.REOPENED, "QUEUED", ""),
        (Kind.DISPOSITION, "ACCEPTED", "m-1"),
    ]


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("span", [1, 3, 4_096])
def test_pages_of_any_size_meet_each_once(limit: int, span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPAN", span)
    monkeypatch.setattr(module, "SPANS_MAX", 2)
    world = World("K")
    keys = [world.accepted(f"r-{number}") for number in range(5)]
    found, _ = told(world, limit=limit)
    assert [each.delivery for each in found] == keys


def test_a_tenant_is_told_of_its_own_and_its_cursor_is_of_no_use_to_another() -> None:
    world = World("K")
    world.accepted("r-1")
    feed = Feed(world.store)
    other = feed.page(tenant="acme")
    assert (other.told, other.more) == ((), False)
    with pytest.raises(InvalidInput) as raised:
        feed.page(tenant=TENANT, after=other.cursor)
    assert (raised.value.field, raised.value.code) == ("after", BAD_CURSOR)


@pytest.mark.parametrize("cursor", ["x", "é", "A" * 60, "=", "\x00", "AAAA-BBBB_"])
def test_a_cursor_that_is_made_up_is_refused(cursor: str) -> None:
    world = World("K")
    with pytest.raises(InvalidInput, match="no cursor of this feed"):
        Feed(world.store).page(tenant=TENANT, after=cursor)


def test_it_can_begin_at_a_time() -> None:
    world = World("K")
    for number in range(30):
        world.accepted(f"r-{number}")
        world.advance(3_600)
    found, _ = told(world, since=world.now - round(5.5 * 3_600 * SECOND))
    assert [each.reminder for each in found] == [f"r-{number}" for number in range(25, 30)]
    assert len(told(world, since=1)[0]) == 30
    assert told(world, since=world.now + 7_200 * SECOND)[0] == []


# What providers said later


def hear(world: World, account: str, *said: ProviderEvent) -> None:
    """Taken in, and applied."""
    take_in(world.store, world.policy, account, said).result()
    applier = EventApplier(world.store, world.policy, wait_s=0.0)
    while applier.step() == 0.0:
        pass


def says(kind: EventKind, receipt: str, *, at: int = 0, code: str = "") -> ProviderEvent:
    return ProviderEvent(f"{kind}-{receipt}-{at}", kind, receipt=receipt, code=code, occurred_at=at or None)


def test_what_was_said_later_is_told_behind_the_acceptance_and_is_none() -> None:
    world = World("K")
    first, second = (world.accepted(f"r-{n}", receipt=f"m-{n}") for n in (1, 2))
    at = world.now
    world.advance(10)
    hear(
        world, "sms-K", says(EventKind.DELIVERED, "m-2", at=at + 1, code="30003"), says(EventKind.SENT, "m-1")
    )
    third = world.accepted("r-3", receipt="m-3")
    found, cursor = told(world)
    assert [(each.kind, each.delivery, each.event) for each in found] == [
        (Kind.DISPOSITION, first, "accepted"),
        (Kind.DISPOSITION, second, "accepted"),
        (Kind.FACET, first, "sent"),  # as one unit learnt of both: in the order of deliveries
        (Kind.FACET, second, "delivered"),
        (Kind.DISPOSITION, third, "accepted"),
    ]
    facet = next(each for each in found if each.event == "delivered")
    assert (facet.id, facet.at, facet.code) == (f"{second}/delivered", at + 1, "30003")
    assert (facet.state, facet.over, facet.receipt, facet.actor) == (
        "ACCEPTED",
        True,
        "m-2",
        "provider:sms-K",
    )
    assert told(world, cursor) == ([], cursor)
    hear(world, "sms-K", says(EventKind.COMPLAINED, "m-3"))
    assert [(each.kind, each.event) for each in told(world, cursor)[0]] == [(Kind.FACET, "complained")]


def test_of_one_kind_said_again_nothing_is_told_again() -> None:
    world = World("K")
    world.accepted("r-1", receipt="m-1")
    at = world.now
    world.advance(100)
    hear(world, "sms-K", says(EventKind.DELIVERED, "m-1", at=at + 5))
    found, cursor = told(world)
    hear(world, "sms-K", says(EventKind.DELIVERED, "m-1", at=at + 3))
    assert told(world, cursor)[0] == []
    again, _ = told(world)
    assert [each.id for each in again] == [each.id for each in found]
    assert [each.at - at for each in again if each.kind is Kind.FACET] == [3], "the earliest counts"


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("span", [1, 3, 4_096])
def test_pages_of_any_size_meet_each_facet_once_and_behind_its_acceptance(
    limit: int, span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPAN", span)
    monkeypatch.setattr(module, "SPANS_MAX", 2)
    world = World("K")
    for number in range(4):
        world.accepted(f"r-{number}", receipt=f"m-{number}")
        if number:  # of the one before, so that its place is behind this one
            hear(
                world,
                "sms-K",
                *(says(kind, f"m-{number - 1}") for kind in (EventKind.SENT, EventKind.DELIVERED)),
            )
    found, _ = told(world, limit=limit)
    ids = [each.id for each in found]
    assert len(ids) == len(set(ids)) == 4 + 2 * 3
    places = [(each.kind, each.reminder) for each in found]
    for number in range(3):
        accepted = places.index((Kind.DISPOSITION, f"r-{number}"))
        facets = [at for at, place in enumerate(places) if place == (Kind.FACET, f"r-{number}")]
        assert accepted + 1 < min(facets), "after the next acceptance, which was there by then"
        assert number == 2 or max(facets) < places.index((Kind.DISPOSITION, f"r-{number + 2}"))


def test_a_tenant_hears_nothing_of_what_is_said_to_others() -> None:
    world = World("K")
    world.accepted("r-1", receipt="m-1")
    hear(world, "sms-K", says(EventKind.DELIVERED, "m-1"))
    page = Feed(world.store).page(tenant="acme")
    assert (page.told, page.more) == ((), False)


def test_a_facet_is_found_by_the_time_when_we_learnt_of_it() -> None:
    world = World("K")
    for number in range(3):
        world.accepted(f"r-{number}", receipt=f"m-{number}")
    for number in range(3):
        world.advance(3_600)
        hear(world, "sms-K", says(EventKind.DELIVERED, f"m-{number}", at=1))
    found, _ = told(world, since=world.now - 1_800 * SECOND)
    assert [each.id for each in found] == ["r-2:c-1:sms/delivered"]


def test_a_cursor_before_facets_that_were_removed_is_gone_and_one_behind_them_goes_on() -> None:
    world = World("K")
    world.accepted("r-1", receipt="m-1")
    early = told(world)[1]  # all of the ledger, and nothing that was said later
    hear(world, "sms-K", says(EventKind.DELIVERED, "m-1"))
    late = told(world)[1]
    world.advance(40 * DAY_S)
    world.accepted("r-2", receipt="m-2")
    hear(world, "sms-K", says(EventKind.DELIVERED, "m-2"))
    world.schedule("newest", customer="c-newest", due_in_s=1e9)
    retain(world)
    with pytest.raises(Refused) as raised:
        told(world, early)
    assert raised.value.code == GONE
    assert [each.event for each in told(world, late)[0]] == ["accepted", "delivered"]


def test_the_newest_that_was_said_is_not_removed_so_that_its_number_is_given_once() -> None:
    world = World("K")
    world.accepted("r-1", receipt="m-1")
    hear(world, "sms-K", says(EventKind.DELIVERED, "m-1"))
    cursor = told(world)[1]
    world.advance(40 * DAY_S)
    world.accepted("r-2", receipt="m-2")
    world.schedule("newest", customer="c-newest", due_in_s=1e9)
    retain(world)
    hear(world, "sms-K", says(EventKind.DELIVERED, "m-2"))
    assert [each.event for each in told(world, cursor)[0]] == ["accepted", "delivered"]


# What no longer holds


def retain(world: World) -> None:
    retention = Retention(world.store, world.policy, Keep(deliveries_s=30 * DAY_S))
    while retention.step() != LOOK_S:
        pass


def test_a_cursor_before_what_was_removed_is_gone_and_one_behind_it_goes_on() -> None:
    world = World("K")
    world.accepted("r-1")
    feed = Feed(world.store)
    early = feed.page(tenant=TENANT, limit=1).cursor
    world.accepted("r-2")
    late = told(world, early)[1]
    world.advance(40 * DAY_S)
    last = world.accepted("r-3")
    world.schedule("newest", customer="c-newest", due_in_s=1e9)
    retain(world)
    with pytest.raises(Refused, match="begin again without a cursor, with since=") as raised:
        feed.page(tenant=TENANT, after=early)
    assert raised.value.code == GONE
    assert [each.delivery for each in told(world, late)[0]] == [last]
    again, cursor = told(world)  # whoever begins anew gets what is kept, and can go on
    assert [each.delivery for each in again] == [last]
    assert told(world, cursor)[0] == []


def test_a_held_store_tells_nothing_and_after_its_release_older_cursors_are_gone() -> None:
    world = World("K")
    key = world.accepted("r-1")
    feed = Feed(world.store)
    before = feed.page(tenant=TENANT).cursor
    world.clock.advance(1.0)
    world.write(lambda tx: hold(tx, FAILOVER, until=tx.now))
    held = feed.page(tenant=TENANT)
    assert held.told == ()
    assert feed.page(tenant=TENANT, after=before).told == ()
    released(world.store, world.policy, reason="compared", actor="operator:ann")
    with pytest.raises(Refused, match="released from a hold") as raised:
        feed.page(tenant=TENANT, after=before)
    assert raised.value.code == GONE
    assert key in {each.delivery for each in told(world)[0]}


# Writers beside it


@pytest.mark.parametrize("writers", [1, 4])
def test_no_end_is_missed_while_others_write(writers: int, tmp_path: Path) -> None:
    """Each writer has a store of its own, as processes have, and ends deliveries as fast as it can."""
    world = World("K", path=str(tmp_path / "store.db"))
    each_writes = 60
    stores = [world.another_store() for _ in range(writers)]
    keys = [
        [world.schedule(f"r-{number}-{nth}", due_in_s=1e6) for nth in range(each_writes)]
        for number in range(writers)
    ]
    running = [
        threading.Thread(target=cancel_each, args=(store, own, world))
        for store, own in zip(stores, keys, strict=True)
    ]
    feed = Feed(world.store)
    found: list[Told] = []
    cursor = ""
    for thread in running:
        thread.start()
    try:
        while any(thread.is_alive() for thread in running):
            page = feed.page(tenant=TENANT, after=cursor, limit=7)
            found += page.told
            cursor = page.cursor
    finally:
        for thread in running:
            thread.join()
        for store in stores:
            store.close()
    found += told(world, cursor)[0]
    assert sorted(each.delivery for each in found) == sorted(key for own in keys for key in own)
    for own in keys:  # each writer's ends in the order in which it wrote them
        assert [each.delivery for each in found if each.delivery in own] == own


def cancel_each(store: Store, keys: list[str], world: World) -> None:
    def cancel(key: str, tx: Tx) -> None:
        row = tx.deliveries.by_keys([(TENANT, key)])
        withdraw(tx, row, Event.CANCELLED, policy=world.policy, actor="test", reasons="paid")

    for key in keys:
        store.write(partial(cancel, key)).result()


# What PostgreSQL alone can do: an open transaction with a lower number. (These choose their own place.)


@pytest.fixture
def many(postgres_url: str) -> Iterator[tuple[Store, psycopg.Connection, int]]:
    """A store, a stranger's connection to it, and a delivery there."""
    url, schema = bare(postgres_url)
    store = postgres.open_store(postgres_url, VirtualClock(), inline=True, server_clock=False)
    with psycopg.connect(url) as other:
        other.execute(f"SET search_path = {schema}".encode())
        other.commit()
        row = other.execute(DELIVERY).fetchone()
        other.commit()
        assert row is not None
        yield store, other, int(row[0])
    store.close()


DELIVERY = b"""
INSERT INTO delivery (tenant, key, reminder_id, customer, part, channel, address_tag, category, grp, priority,
    state, epoch, version, maybe, permit, ending, due_at, next_at, expires_at, account, tag, cost, attempts,
    failures, throttles, first_try, last_try, receipt, reason, ended_at, seq, head)
VALUES ('default', 'r:c:sms', 1, 'c', 1, 'sms', '', '', '', 0, 'ACCEPTED', 1, 1, 0, 0, '', 1, 1, 1, 'text', 0,
    1, 1, 0, 0, 0, 0, '', '', 1, 1, '') RETURNING id"""


def write_end(connection: psycopg.Connection, delivery: int, seq: int) -> None:
    connection.execute(
        b"INSERT INTO ledger (delivery_id, seq, at, event, body, hash, receipt) "
        b"VALUES (%d, %d, 1, 'accepted', '{\"state\": \"ACCEPTED\"}', 'h', '')" % (delivery, seq)
    )


def seqs(page: Page) -> list[int]:
    return [int(each.id.rpartition("/")[2]) for each in page.told]


@pytest.mark.sqlite_only
def test_an_open_transaction_with_a_lower_number_is_waited_for(
    many: tuple[Store, psycopg.Connection, int], postgres_url: str
) -> None:
    store, other, delivery = many
    url, schema = bare(postgres_url)
    feed = Feed(store)
    cursor = ""
    with psycopg.connect(url, autocommit=True) as third:
        third.execute(f"SET search_path = {schema}".encode())
        write_end(third, delivery, 1)
        first = feed.page(tenant=TENANT)
        write_end(other, delivery, 2)  # open, and stays so
        for seq in range(3, 8):
            write_end(third, delivery, seq)  # higher numbers, committed before it
            page = feed.page(tenant=TENANT, after=first.cursor)
            assert (seqs(page), page.more) == ([], True)
        other.commit()
        while not (page := feed.page(tenant=TENANT, after=first.cursor)).told:
            cursor = page.cursor
            assert page.more
    assert seqs(first) == [1]
    rest = [page, *pages(feed, tenant=TENANT, after=page.cursor)]
    assert [seq for each in rest for seq in seqs(each)] == [2, 3, 4, 5, 6, 7]
    assert cursor in ("", first.cursor)


@pytest.mark.sqlite_only
def test_a_facet_with_a_lower_number_that_commits_late_is_waited_for(
    many: tuple[Store, psycopg.Connection, int], postgres_url: str
) -> None:
    store, other, delivery = many
    url, schema = bare(postgres_url)
    feed = Feed(store)
    with psycopg.connect(url, autocommit=True) as third:
        third.execute(f"SET search_path = {schema}".encode())
        write_end(third, delivery, 1)
        first = feed.page(tenant=TENANT)
        write_facet(other, delivery, "sent")  # open, and stays so
        write_facet(third, delivery, "delivered")
        page = feed.page(tenant=TENANT, after=first.cursor)
        assert (page.told, page.more) == ((), True)
        other.commit()
        found = [each for page in pages(feed, tenant=TENANT, after=first.cursor) for each in page.told]
    assert [each.event for each in found] == ["sent", "delivered"]


def write_facet(connection: psycopg.Connection, delivery: int, kind: str) -> None:
    connection.execute(
        b"INSERT INTO facet (delivery_id, kind, rank, at, code, behind, told_at) "
        b"VALUES (%d, '%s', 1, 1, '', 1, 1)" % (delivery, kind.encode())
    )


@pytest.mark.sqlite_only
def test_what_was_given_up_holds_up_nothing(many: tuple[Store, psycopg.Connection, int]) -> None:
    store, other, delivery = many
    write_end(other, delivery, 1)
    other.rollback()
    write_end(other, delivery, 2)
    other.commit()
    assert seqs(Feed(store).page(tenant=TENANT)) == [2]


def test_states_are_spelled_as_everywhere() -> None:
    world = World("K")
    world.accepted("r-1")
    (one,) = told(world)[0]
    assert State(one.state) is State.ACCEPTED
