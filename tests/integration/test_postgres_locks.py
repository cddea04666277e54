"""What one session holds while another one waits: locks come in one order, and a row that somebody holds is
still there for who reports.

The other session is a bare one. It takes the row that a unit needs first; while the unit waits for it,
what comes later in the order must be free. Had the unit come from the other side, the two would wait for
each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from sendonce.core.consent import ANY_CATEGORY, Kind
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted, Outcome, Reason, Rejected, Unknown
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.pipeline import consent, erasure, events
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.pipeline.consent import Record
from sendonce.pipeline.events import EventApplier
from sendonce.pipeline.settler import settle
from tests.integration import world as small
from tests.integration.places import PostgresPlace
from tests.integration.world import TENANT
from tests.postgres_schemas import bare

WITHIN_S = 20.0
ANN, BOB = "+12025550123", "+12025550124"


@contextmanager
def session(stores: PostgresPlace, path: str) -> Iterator[psycopg.Connection]:
    url, schema = bare(stores._url(path))
    with psycopg.connect(url) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        connection.commit()
        yield connection


@pytest.fixture
def world(stores: PostgresPlace) -> small.World:
    return small.World("K", path="locks")


@pytest.fixture
def other(stores: PostgresPlace, world: small.World) -> Iterator[psycopg.Connection]:
    with session(stores, "locks") as connection:
        yield connection


@pytest.fixture
def third(stores: PostgresPlace, world: small.World) -> Iterator[psycopg.Connection]:
    with session(stores, "locks") as connection:
        yield connection


@contextmanager
def waiting(work: Callable[[], object], other: psycopg.Connection) -> Iterator[None]:
    """While `work` waits for what `other` holds. Afterwards `other` lets go, and the work must succeed."""
    fault: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            fault.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until = time.monotonic() + WITHIN_S
        asked = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        while other.execute(asked.encode()).fetchone() == (0,):
            assert thread.is_alive(), fault or "it did not wait for the row that was held"
            assert time.monotonic() < until, "it neither waited nor ended"
        yield
    finally:
        other.rollback()
        thread.join(WITHIN_S)
    assert not fault, fault


def hold(connection: psycopg.Connection, table: str, which: str, *given: Any) -> None:
    """Lock rows, or raise where somebody holds one."""
    found = connection.execute(
        f"SELECT 1 FROM {table} WHERE {which} FOR UPDATE NOWAIT".encode(),
        given,
    ).fetchall()
    assert found, f"no such row in {table}: {which} {given}"


def is_free(connection: psycopg.Connection, table: str, which: str, *given: Any) -> bool:
    try:
        hold(connection, table, which, *given)
    except psycopg.errors.LockNotAvailable:
        return False
    finally:
        connection.rollback()
    return True


# What is reported


def test_the_mark_stays_behind_what_another_pass_has_in_hand(
    world: small.World, other: psycopg.Connection
) -> None:
    """That pass may yet fail: what it holds is not decided."""
    held = world.schedule("r-1")
    due_at = world.row(held).course.due_at
    world.advance(5)
    world.schedule("r-2")
    hold(other, "delivery", "key = %s", held)
    report = world.pass_()
    assert (report.counts["published"], report.mark) == (1, due_at)
    other.rollback()
    report = world.pass_()
    assert (report.counts["published"], report.mark) == (1, world.now)


# The order of locks


def test_a_pass_waits_for_no_flow_that_is_idle(
    world: small.World, other: psycopg.Connection, third: psycopg.Connection
) -> None:
    """It forgets those that are idle. Another pass may have one of them in hand, and want to forget what this
    one has in hand."""

    def flows() -> dict[str, int]:
        with third.transaction():
            return dict(third.execute(b"SELECT flow, tag FROM flow").fetchall())

    gate = world.read(lambda tx: tx.gates.all())[0]
    world.write(lambda tx: tx.gates.save_flows("sms-K", {"held": 1, "idle": 1}, below=0))
    world.write(lambda tx: tx.gates.save(replace(gate, vtime=10)))
    hold(other, "flow", "flow = 'held'")
    world.schedule()
    assert world.pass_().counts["published"] == 1
    assert "held" in flows()
    assert "idle" not in flows()
    other.rollback()
    world.schedule("r-2")
    world.pass_()
    assert "held" not in flows()


def test_a_flow_never_goes_back(world: small.World) -> None:
    """Two passes read the same place of a flow; the one that came further counts, whoever writes last."""
    write = world.write
    write(lambda tx: tx.gates.save_flows("sms-K", {"f": 500}, below=0))
    write(lambda tx: tx.gates.save_flows("sms-K", {"f": 100, "g": 100}, below=0))
    assert world.read(lambda tx: tx.gates.flows("sms-K", ["f", "g"])) == {"f": 500, "g": 100}


def test_a_refused_address_is_taken_back_in_the_order_of_ids(
    world: small.World, other: psycopg.Connection, third: psycopg.Connection
) -> None:
    """Settling a refusal locks the deliveries of its address too, which may come before those it settles."""
    planned = world.schedule("later", due_in_s=3_600, to=ANN)
    first, second = world.schedule("r-1", to=ANN), world.schedule("r-2", to=BOB)
    world.pass_()
    claims = {claim.key: claim for claim in world.claim()}
    outcomes: list[tuple[Claim, Outcome]] = [
        (claims[first], Rejected(Reason.INVALID_ADDRESS, "21211", suppress=True)),
        (claims[second], Accepted("r")),
    ]
    attempts = [Attempted(claim, outcome, claim.slot_at, world.store.steady()) for claim, outcome in outcomes]
    hold(other, "delivery", "key = %s", planned)

    def work() -> None:
        world.write(lambda tx: settle(tx, attempts, world.policy, process="w-1", chance=lambda: 0.5))

    with waiting(work, other):
        assert is_free(third, "delivery", "key = %s", first)
    assert [world.state(key) for key in (planned, first, second)] == [
        State.SUPPRESSED,
        State.REJECTED,
        State.ACCEPTED,
    ]


def test_what_events_prove_is_locked_together_with_what_they_take_back(
    world: small.World, other: psycopg.Connection, third: psycopg.Connection
) -> None:
    """A proof of one delivery and a STOP against another, in one page."""
    doubtful = world.schedule("r-1", to=BOB)
    world.pass_()
    (claim,) = world.claim()
    assert world.settle([(claim, Unknown("reset"))]) == [State.QUEUED]
    planned = world.schedule("r-2", due_in_s=3_600, to=ANN)
    told = [
        ProviderEvent(identity="1", kind=EventKind.OPTED_OUT, address=ANN),
        ProviderEvent(identity="2", kind=EventKind.DELIVERED, send_key=claim.message.send_key),
    ]
    events.take_in(world.store, world.policy, "sms-K", told).result()
    hold(other, "delivery", "key = %s", doubtful)
    with waiting(EventApplier(world.store, world.policy).step, other):
        assert is_free(third, "delivery", "key = %s", planned)
    assert [world.state(key) for key in (doubtful, planned)] == [State.ACCEPTED, State.SUPPRESSED]


def test_opt_outs_in_a_list_take_back_in_the_order_of_ids(
    world: small.World, other: psycopg.Connection, third: psycopg.Connection
) -> None:
    of_bob, of_ann = world.schedule("r-1", to=BOB), world.schedule("r-2", to=ANN)
    hold(other, "delivery", "key = %s", of_bob)
    records = [
        Record(TENANT, Channel.SMS, address, ANY_CATEGORY, Kind.OPT_OUT, world.now, "operator", "")
        for address in (ANN, BOB)
    ]
    with waiting(
        lambda: consent.record(world.store, records, policy=world.policy, actor="operator:test"), other
    ):
        assert is_free(third, "delivery", "key = %s", of_ann)
    assert [world.state(key) for key in (of_bob, of_ann)] == [State.SUPPRESSED] * 2


def test_records_of_addresses_are_locked_in_one_order(
    world: small.World, other: psycopg.Connection, third: psycopg.Connection
) -> None:
    tags = {world.tag(Channel.SMS, address): address for address in (ANN, BOB)}
    low, high = sorted(tags)

    def note(address: str, at: int) -> Record:
        return Record(TENANT, Channel.SMS, address, ANY_CATEGORY, Kind.OPT_OUT, at, "operator", "")

    consent.record(
        world.store, [note(address, 1) for address in (ANN, BOB)], policy=world.policy, actor="operator:test"
    )
    hold(other, "preference", "address_tag = %s", low)
    anew = [note(tags[tag], 2) for tag in (high, low)]
    with waiting(
        lambda: consent.record(world.store, anew, policy=world.policy, actor="operator:test"), other
    ):
        assert is_free(third, "preference", "address_tag = %s", high)


def test_erasing_locks_records_before_deliveries(
    world: small.World, other: psycopg.Connection, third: psycopg.Connection
) -> None:
    """As an opt-out does, of which one may come at the same time."""

    def erase() -> None:
        erasure.erase(
            world.store, "c-1", policy=world.policy, tenant=TENANT, reason="asked", actor="operator:test"
        )

    others = world.schedule("r-1", customer="c-2", to=BOB)
    own = world.schedule("r-2", customer="c-1", to=BOB)
    other.execute(
        b"INSERT INTO preference (tenant, channel, address_tag, category, kind, at, source, evidence, masked,"
        b" actor) VALUES (%s, 'sms', %s, '*', 'suppressed', 1, 'operator', '', '', '')",
        (TENANT, world.tag(Channel.SMS, BOB)),
    )
    with waiting(erase, other):
        assert is_free(third, "delivery", "key = %s", own)
    assert [world.state(key) for key in (others, own)] == [State.SUPPRESSED, State.CANCELLED]


def test_erasing_waits_for_another_customers_delivery_before_it_has_its_own(
    world: small.World, other: psycopg.Connection, third: psycopg.Connection
) -> None:
    others = world.schedule("r-1", customer="c-2", to=ANN)
    own = world.schedule("r-2", customer="c-1", to=ANN)
    hold(other, "delivery", "key = %s", others)

    def erase() -> None:
        erasure.erase(
            world.store, "c-1", policy=world.policy, tenant=TENANT, reason="asked", actor="operator:test"
        )

    with waiting(erase, other):
        assert is_free(third, "delivery", "key = %s", own)
    assert [world.state(key) for key in (others, own)] == [State.SUPPRESSED, State.CANCELLED]


def test_erasing_waits_for_an_event_that_is_being_applied_before_it_holds_anything(
    world: small.World, other: psycopg.Connection, third: psycopg.Connection
) -> None:
    """Whoever applies one holds it, and then wants the records and the deliveries of its address."""
    own = world.schedule("r-1", customer="c-1", to=ANN)
    record = Record(TENANT, Channel.SMS, ANN, ANY_CATEGORY, Kind.OPT_OUT, 1, "operator", "")
    consent.record(world.store, [record], policy=world.policy, actor="operator:test")
    told = [ProviderEvent(identity="1", kind=EventKind.REPLIED, address=ANN, text="I am Ann")]
    events.take_in(world.store, world.policy, "sms-K", told).result()
    hold(other, "provider_event", "identity = '1'")

    def erase() -> None:
        erasure.erase(
            world.store, "c-1", policy=world.policy, tenant=TENANT, reason="asked", actor="operator:test"
        )

    with waiting(erase, other):
        assert is_free(third, "delivery", "key = %s", own)
        assert is_free(third, "preference", "address_tag = %s", world.tag(Channel.SMS, ANN))
    left = world.read(lambda tx: events.event(tx, 1))
    assert left is not None
    assert (left.text, left.masked, left.address_tag) == ("", "", "")
