"""The cases of others that are about PostgreSQL: what it refuses, and what others do to it, costs time and
nothing else. docs/cases.md lists all of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg
import pytest

from sendonce.core.delivery import Identity
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted
from sendonce.pipeline.claimer import LINE_LOOK_US
from sendonce.pipeline.record import lines_of
from sendonce.pipeline.scheduler import Scheduler
from sendonce.ports.store import FIRST, NewDelivery, Store, Tx
from sendonce.runtime.clock import SystemClock
from sendonce.store import postgres
from sendonce.template_book import TemplateBook, from_store
from sendonce.testing.postgres_server import PostgresServer
from tests.integration import world as small
from tests.integration.places import OneStorePlace, PostgresPlace
from tests.integration.test_worker import LEASE_S, Bench, Scripted, account, bench, work
from tests.postgres_schemas import bare

REFUSING = """
CREATE SEQUENCE refusals;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('{schema}.refusals') <= {times} THEN
        RAISE EXCEPTION 'refused' USING ERRCODE = '{code}';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON delivery FOR EACH ROW
    WHEN (NEW.state = 'ACCEPTED') EXECUTE FUNCTION refuse();
"""
"""What no transaction undoes is a sequence: it counts the refusals."""


@pytest.mark.parametrize("code", ["40001", "40P01"])
@pytest.mark.parametrize("times", [1, 5])
def test_stor_03_what_the_database_gives_up_is_written_again_and_not_sent_again(
    stores: PostgresPlace, tmp_path: Path, code: str, times: int
) -> None:
    """Serialization failure or deadlock on the write of an outcome, once and five times in a row."""
    with bench(tmp_path, 1, account(jitter_us=500_000)) as (it, keys):
        path = str(it.path)
        schema = bare(stores._url(path))[1]
        stores.tamper(path, REFUSING.format(schema=schema, times=times, code=code))
        try:
            provider = Scripted(it.policy.accounts["sms-K"].promise)
            asyncio.run(work(it.worker(provider), until=lambda: it.states() == {State.ACCEPTED: 1}))
            assert stores.tamper(path, f"SELECT 1 FROM refusals WHERE last_value = {times + 1}") == 1
        finally:
            stores.tamper(path, "DROP FUNCTION refuse() CASCADE")
            stores.tamper(path, "DROP SEQUENCE refusals")
        (row,) = it.rows()
        assert (provider.calls, row.course.attempts, row.course.failures) == (1, 1, 0)
        assert list(provider.door.effects) == keys
        events = [line.event for line in it.store.read(lambda tx: lines_of(tx, row.id))]
        assert (events[-1], events.count("accepted")) == ("accepted", 1)


class Off(SystemClock):
    """The clock of another host."""

    def __init__(self, off_s: float) -> None:
        self._off_us = round(off_s * small.SECOND)

    def now(self) -> int:
        return super().now() + self._off_us

    def boot(self) -> int:
        return super().boot() + self._off_us


@pytest.mark.parametrize("off_s", [120.0, -120.0])
def test_stor_09_a_host_whose_clock_is_off_takes_no_claim_and_sends_nothing_early(
    stores: PostgresPlace, tmp_path: Path, off_s: float
) -> None:
    """A holds a call for three leases and renews them; B, two minutes ahead or behind, works beside it. What
    is due in a minute is due then."""
    with bench(tmp_path, 1, account(lanes=2, timeout_s=20.0), lease_s=LEASE_S) as (it, keys):
        there = postgres.open_store(stores._url(str(it.path)), Off(off_s))
        scheduler = Scheduler(there, it.policy, TemplateBook(from_store(there)), process="s-b")
        promise = it.policy.accounts["sms-K"].promise
        ours, theirs = Scripted(promise, takes_s=3 * LEASE_S), Scripted(promise)
        before = it.store.read(lambda tx: tx.now)
        due_at = before + 60 * small.SECOND
        it.store.write(lambda tx: tx.deliveries.insert([_later(tx, due_at)])).result()
        passes: list[int] = []

        async def beside() -> None:
            if ours.door.open:
                report = scheduler.run(trigger="test")
                passes.append(report.counts.get("published", 0) if report else -1)

        try:
            asyncio.run(_one_after_the_other(it, ours, theirs, there, beside))
        finally:
            there.close()
        assert (ours.calls, theirs.calls) == (1, 0)
        assert len(passes) >= 3
        assert set(passes) == {0}
        assert it.states() == {State.ACCEPTED: 1, State.SCHEDULED: 1}
        events = [line.event for line in it.store.read(lambda tx: lines_of(tx, it.rows()[0].id))]
        assert events.count("claimed") - events.count("released") == 1, keys


async def _one_after_the_other(
    it: Bench, ours: Scripted, theirs: Scripted, there: Store, meanwhile: Callable[[], Awaitable[None]]
) -> None:
    """A alone until its call is open, then B beside it."""
    first = asyncio.create_task(
        work(it.worker(ours), until=lambda: it.states()[State.ACCEPTED] == 1, meanwhile=meanwhile)
    )
    while not ours.door.open:  # noqa: ASYNC110 - a provider that counts for itself
        await asyncio.sleep(0.005)
    await work(it.worker(theirs, store=there), until=first.done)
    await first


def _later(tx: Tx, due_at: int) -> NewDelivery:
    """Another delivery of the first one's reminder."""
    (row,) = tx.deliveries.by_ids([1])
    key = Identity("later", row.customer, row.channel).key
    return NewDelivery(
        row.tenant, key, row.reminder_id, row.customer, row.channel, row.address_tag, row.category, "", 0,
        due_at, due_at + 3_600 * small.SECOND, "api:test", {},
    )  # fmt: skip


DEAD = 20_000
FEW = DEAD / 1_000


def test_stor_07_an_old_reader_makes_one_claim_in_a_second_slower(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are done stay for a transaction that began before. Who looks at the whole line meets each of
    them, once in a second; the claims between begin at its head, and count calls from the oldest one on."""
    name = "old_reader"
    postgres_server.create_database(name)
    url = postgres_server.url(name)
    place = OneStorePlace(url)
    monkeypatch.setattr(small, "place", place)
    world = small.World("K")
    with psycopg.connect(url, autocommit=True) as raw, psycopg.connect(url) as reader:
        raw.execute(b"SET search_path = sendonce")
        before = _send_one(world, raw, "before")
        reader.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(b"SELECT 1 FROM sendonce.reminder LIMIT 1")
        raw.execute(
            "INSERT INTO agenda (delivery_id, look, via, at, place, until) "
            f"SELECT 1000000 + g, 1, 'sms-K', 0, 0, 9000000000000000 FROM generate_series(1, {DEAD}) g"
        )
        raw.execute(b"DELETE FROM agenda WHERE delivery_id > 1000000")
        raw.execute(
            "INSERT INTO open_call "
            "(delivery_id, epoch, account, process, claimed_at, slot_at, send_deadline) "
            f"SELECT 1000000 + g, 1, 'sms-K', 'w-1', 0, 0, 0 FROM generate_series(1, {DEAD}) g"
        )
        raw.execute(b"DELETE FROM open_call WHERE delivery_id > 1000000")
        raw.execute(b"VACUUM agenda, open_call")  # may not take them away yet
        world.advance(1)
        looked = _send_one(world, raw, "looks at the whole line")
        held = _send_one(world, raw, "held")
        # A page more or less is a matter of how an index has split; the dead fill hundreds.
        assert held <= before + FEW < before + DEAD / 100 < looked
        reader.rollback()
        world.advance(1)
        assert _send_one(world, raw, "just after") <= looked
        raw.execute(b"VACUUM agenda, open_call")
        world.advance(1)
        assert _send_one(world, raw, "after") <= before + FEW
    place.close()
    postgres_server.drop_database(name)


def _send_one(world: small.World, raw: psycopg.Connection, name: str) -> int:
    """Publish and send one; the pages that its claim reads to count the calls and to find it."""
    key = world.schedule(name)
    world.pass_()
    (gate,) = world.read(lambda tx: tx.gates.all())
    looks = world.store.steady() - gate.looked_at >= LINE_LOOK_US
    place = FIRST if looks else gate.line_from
    pages = _pages(raw, "delivery_ready", f"'sms-K', 1, {place}, 10")
    pages += _pages(raw, "call_count", f"'sms-K', {gate.calls_from}")
    assert world.send(Accepted("r")) == [key]
    return pages


def _pages(raw: psycopg.Connection, name: str, parameters: str) -> int:
    raw.execute(b"PREPARE asked AS " + postgres._statements(reading=False)[name].text)
    plan = raw.execute(
        f"EXPLAIN (ANALYZE, BUFFERS, TIMING off) EXECUTE asked({parameters})".encode()
    ).fetchall()
    raw.execute(b"DEALLOCATE asked")
    found = re.search(r"Buffers: shared hit=(\d+)(?: read=(\d+))?", "\n".join(line[0] for line in plan))
    assert found is not None, plan
    return int(found[1]) + int(found[2] or 0)
