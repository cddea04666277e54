"""How PostgreSQL finds what stages ask for all the time, in a store that is full of what nobody asks for.

The plans are the generic ones, made without knowing any parameter: what a prepared statement comes to after a
few runs, and the worst that it can be. What stages ask while they write must be found in a store that nobody
has analysed yet as in one that was: a new one is filled, and used, before the server looks at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import pytest

from bench.crowd import Postgres, make_crowd
from sendonce.store import postgres
from sendonce.store.statements import raw_statements
from sendonce.testing.postgres_server import PostgresServer
from tests.integration import world as small
from tests.integration.places import OneStorePlace

COUNT: Final = 4_000
GROWS: Final = (
    "delivery", "ledger", "content", "reminder", "revision", "preference", "agenda", "tombstone", "removed",
    "provider_event", "facet",
)  # fmt: skip
"""Tables that grow with the years, or that are full of what is due some day."""
BY: Final = {
    "delivery_by_id": "delivery_pkey",
    "delivery_by_key": "delivery_tenant_key_key",
    "delivery_of_reminder": "delivery_reminder",
    "delivery_due": "agenda_pass",
    "delivery_first_due": "agenda_pass",
    "delivery_open_at": "delivery_address",
    "delivery_wake": "agenda_waiting",
    "delivery_wake_some": "agenda_waiting",
    "delivery_ready": "agenda_ready",
    "outbox_refill": "agenda_ready",
    "delivery_line": "agenda_ready",
    "delivery_next_wake": "agenda_waiting",
    "delivery_expired": "agenda_unsent",
    "delivery_attention": "agenda_attention",
    "delivery_paused_scheduled": "agenda_pass",
    "delivery_paused_queued": "agenda_waiting",
    "delivery_matching_pending": "agenda_",
    "delivery_matching_state": "agenda_attention",
    "delivery_matching_receipt": "ledger_receipt",
    "delivery_move": "delivery_pkey",
    "delivery_defer": "delivery_pkey",
    "delivery_note": "delivery_pkey",
    "agenda_change": "agenda_pkey",
    "agenda_strike": "agenda_pkey",
    "agenda_defer": "agenda_pkey",
    "content_get": "content_pkey",
    "preference_of": "preference_pkey",
    "preference_blank": "preference_pkey",
    "reminder_empty": "reminder_pkey",
    "revision_drop": "revision_pkey",
    "content_drop": "content_pkey",
    "retention_from": "delivery_pkey",
    "ledger_numbers": "ledger_delivery_id_seq_key",
    "ledger_drop": "ledger_delivery_id_seq_key",
    "delivery_drop": "delivery_pkey",
    "reminder_drop": "reminder_pkey",
    "tombstone_last": "tombstone_pkey",
    "removed_find": "removed_identity",
    "import_forget": "reminder_made_by",
    "view_tombstones": "tombstone_pkey",
    "reminder_find": "reminder_tenant_reminder_customer_key",
    "view_ledger": "ledger_delivery_id_seq_key",
    "view_desk": "agenda_attention",
    "view_scheduled": "agenda_pass",
    "view_metrics_unresolved": "agenda_attention",
    "view_attention": "agenda_attention",
    "view_find_receipt": "ledger_receipt",
    "event_waiting": "provider_event_waiting",
    "event_lock": "provider_event_pkey",
    "event_by_mark": "content_mark",
    "event_by_receipt": "ledger_receipt",
    "event_end": "provider_event_pkey",
    "event_wait": "provider_event_pkey",
    "event_retry": "provider_event_pkey",
    "event_old": "provider_event_loose",
    "event_forget": "provider_event_pkey",
    "event_blank": "provider_event_delivery",
    "event_blank_address": "provider_event_address",
    "event_drop": "provider_event_delivery",
    "facet_drop": "facet_delivery_id_kind_key",
    "facet_numbers": "facet_delivery_id_kind_key",
    "view_facets": "facet_delivery_id_kind_key",
    "view_feed_facet_first": "facet_number",
    "view_events_of": "provider_event_delivery",
    "view_events_people": "provider_event_people",
    "view_events_left": "provider_event_people",
}
"""What must lead to the rows."""


COUNTS: Final = {"backlog_pending"}
"""Asked with the number of what is due unknown, counting may well read through; the plan that knows it is
taken as long as little is due."""


@pytest.fixture(scope="module")
def full(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    """A session with generic plans, in a store of thousands that are finished and thousands to come."""
    with filled(postgres_server, "plans") as connection:
        connection.execute(
            "INSERT INTO tombstone (number, at, body, hash) "
            f"SELECT g, 0, '', '' FROM generate_series(1, {COUNT}) g"
        )
        connection.execute(
            "INSERT INTO removed (tombstone, delivery_id, tenant, identity, due_at, channel, category, "
            "account, state, entries, head) SELECT g / 20, g, '', 'tag-' || g, g, '', '', '', '', 1, '' "
            f"FROM generate_series(1, {COUNT}) g"
        )
        connection.execute(b"VACUUM ANALYZE")
        connection.execute(b"SET plan_cache_mode = force_generic_plan")
        yield connection


@pytest.fixture(scope="module")
def new(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    """As full, and nobody knows; with the settings that a writing transaction brings along."""
    with filled(postgres_server, "plans_new") as connection:
        for name, value in postgres.PLANNER.items():
            connection.execute(f"SET {name} = {value}".encode())
        yield connection


@contextmanager
def filled(postgres_server: PostgresServer, name: str) -> Iterator[psycopg.Connection]:
    postgres_server.create_database(name)
    postgres_server.execute(
        f'ALTER DATABASE "{name}" SET track_counts = off'
    )  # so nothing is due to be analysed
    place = OneStorePlace(postgres_server.url(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "place", place)
        it = small.World("K", "N")
        finished = it.row(it.accepted("finished"))
        it.uncertain("doubtful", account="email-N")
        it.dead("dead")
        it.schedule("queued")
        it.pass_()
        it.schedule_many(1, due_in_s=86_400)
        future = it.row("r-0:c-1:sms")
        place.close()
    database = Postgres(postgres_server.url(name))
    make_crowd(database, finished.id, COUNT, first=10_000)
    make_crowd(database, future.id, COUNT, first=10_000 + COUNT, spread_s=86_400)
    database.close()
    with psycopg.connect(postgres_server.url(name), autocommit=True) as connection:
        connection.execute(b"SET search_path = sendonce")
        connection.execute(
            "INSERT INTO preference "
            "(tenant, channel, address_tag, category, kind, at, source, evidence, masked, actor) "
            "SELECT 'default', 'sms', 'tag-' || g, '*', 'opt_out', 0, '', '', '', '' "
            f"FROM generate_series(1, {COUNT}) AS g"
        )
        connection.execute(
            "INSERT INTO revision (reminder_id, version, import_id, spec, at) "
            f"SELECT g, 1, g / 10, '', 0 FROM generate_series(1, {COUNT}) g"
        )
        connection.execute(
            "INSERT INTO provider_event (account, identity, tenant, kind, receipt, send_key, address_tag, "
            "masked, occurred_at, received_at, code, text, look, next_at, tries, why, applied_at, "
            "delivery_id) "
            "SELECT 'a', 'e-' || g, 'default', 'delivered', '', '', 'tag-' || g, '', 0, g, '', '', "
            "CASE mod(g, 200) WHEN 0 THEN 2 WHEN 1 THEN 0 ELSE 1 END, g, 1, '', 0, g * mod(g, 50) "
            f"FROM generate_series(1, {COUNT}) g"
        )
        connection.execute(
            "INSERT INTO facet (delivery_id, kind, rank, at, code, behind, told_at) "
            f"SELECT g, 'delivered', 9, 0, '', 0, 0 FROM generate_series(1, {COUNT}) g"
        )
        yield connection
    postgres_server.drop_database(name)


def plan(connection: psycopg.Connection, text: bytes, number: str = "1") -> str:
    """The plan of a statement with numbered parameters; all numbers among them are `number`."""
    connection.execute(b"PREPARE asked AS " + text)
    try:
        row = connection.execute(
            "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'asked'"
        ).fetchone()
        assert row is not None
        given = ", ".join(f"'{number}'" if kind in ("bigint", "integer") else "'{1}'" for kind in row[0])
        asked = f"EXPLAIN EXECUTE asked({given})" if given else "EXPLAIN EXECUTE asked"
        return "\n".join(str(line[0]) for line in connection.execute(asked.encode()))
    finally:
        connection.execute(b"DEALLOCATE asked")


def texts(name: str) -> Iterator[bytes]:
    """A statement as it is sent: for one row, and for many where there is such a form."""
    statement = postgres._statements(reading=name.startswith("view_"))[name]
    yield statement.text
    if statement.batch is not None:
        numbers = ("_id", "_seq", "_at", "_look", "_version", "_epoch", "_place", "_until")
        # The types that parameters have when they are first seen.
        example = {
            name: 1 if f"_{name}".endswith(numbers) or name in _NUMBERS else "1"
            for name in statement.batch.names
        }
        yield statement.batch.typed(example).encode()


_NUMBERS: Final = {
    "maybe", "permit", "next_at", "expires_at", "tag", "cost", "attempts", "failures", "throttles",
    "first_try", "last_try", "ended_at", "from_epoch", "from_seq", "after", "upto", "before", "erased",
    "mark", "rank", "tries", "look", "now",
}  # fmt: skip


@pytest.mark.parametrize("name", BY)
def test_the_right_index_leads_to_the_rows(full: psycopg.Connection, name: str) -> None:
    for text in texts(name):
        seen = plan(full, text)
        assert BY[name] in seen, seen
        assert not re.search(rf"Seq Scan on ({'|'.join(GROWS)})\b", seen), seen


@pytest.mark.parametrize("name", [name for name in BY if not name.startswith("view_")])
def test_nobody_has_to_know_the_tables_for_it(new: psycopg.Connection, name: str) -> None:
    for text in texts(name):
        seen = plan(new, text)
        assert BY[name] in seen, seen
        assert not re.search(r"Seq Scan on|Bitmap Heap Scan on|Hash Join|Merge Join", seen), seen


@pytest.mark.parametrize("name", ["delivery_due", "delivery_ready", "delivery_line", "delivery_expired"])
def test_what_is_taken_in_order_is_not_sorted(new: psycopg.Connection, name: str) -> None:
    """Sorting would read, and lock, all that waits to take a few."""
    (text,) = texts(name)
    assert "Sort" not in plan(new, text)


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("retention_old", "delivery_pkey"),
        ("retention_full", "reminder_pkey"),
        ("view_removed", "removed_pkey"),
        ("view_forecast_minutes", "agenda_pass"),
        ("view_forecast_queued_keys", "agenda_ready"),
        ("view_report_removed", "removed_due"),
    ],
)
def test_a_span_is_read_by_its_own_index(full: psycopg.Connection, name: str, by: str) -> None:
    """These are asked for one span at a time."""
    seen = plan(full, next(texts(name)))
    assert by in seen, seen
    assert not re.search(rf"Seq Scan on ({'|'.join(GROWS)})\b", seen), seen


def test_what_happened_lately_is_found_by_the_numbers_of_the_entries(full: psycopg.Connection) -> None:
    last = full.execute(b"SELECT max(id) FROM ledger").fetchone()
    assert last is not None
    full.execute(b"SET plan_cache_mode = force_custom_plan")
    seen = plan(full, next(texts("view_flow")), str(last[0] - 100))
    full.execute(b"SET plan_cache_mode = force_generic_plan")
    assert "ledger_newest" in seen
    assert "delivery_pkey" in seen


def test_the_sealer_reads_by_the_numbers_of_entries(full: psycopg.Connection) -> None:
    """On a connection that reads, so with the planner as it is, on a ledger that the server has analysed."""
    last = full.execute(b"SELECT max(id) FROM ledger").fetchone()
    assert last is not None
    with full.transaction(force_rollback=True):
        for name in postgres.PLANNER:
            full.execute(f"SET LOCAL {name} = DEFAULT".encode())
        for mode in (b"force_custom_plan", b"force_generic_plan"):
            full.execute(b"SET LOCAL plan_cache_mode = " + mode)
            assert "ledger_newest" in plan(full, next(texts("seal_entries")), str(last[0] - 100))


def test_the_feed_reads_by_the_numbers_of_entries(full: psycopg.Connection) -> None:
    """Each stretch of the ledger, and of the deliveries only those of its entries."""
    last = full.execute(b"SELECT max(id) FROM ledger").fetchone()
    assert last is not None
    with full.transaction(force_rollback=True):
        for name in postgres.PLANNER:
            full.execute(f"SET LOCAL {name} = DEFAULT".encode())
        full.execute(b"SET LOCAL plan_cache_mode = force_generic_plan")
        assert "ledger_newest" in plan(full, next(texts("view_feed_first")), str(last[0] - 100))
        seen = plan(full, next(texts("view_feed")), str(last[0] - 100))
        facets = plan(full, next(texts("view_feed_facets")), "100")
    assert "ledger_newest" in seen, seen
    assert not re.search(r"Seq Scan on ledger\b", seen), seen
    assert "facet_number" in facets, facets


def test_who_asks_providers_reads_by_the_numbers_of_entries(full: psycopg.Connection) -> None:
    """Each stretch of the ledger, and of the rest only what belongs to its entries."""
    last = full.execute(b"SELECT max(id) FROM ledger").fetchone()
    assert last is not None
    with full.transaction(force_rollback=True):
        for name in postgres.PLANNER:
            full.execute(f"SET LOCAL {name} = DEFAULT".encode())
        full.execute(b"SET LOCAL plan_cache_mode = force_generic_plan")
        for name in ("view_poll", "view_poll_young"):
            seen = plan(full, next(texts(name)), str(last[0] - 100))
            assert "ledger_newest" in seen, seen
            assert not re.search(rf"Seq Scan on ({'|'.join(GROWS)})\b", seen), seen


def test_no_stage_reads_through_what_grows(full: psycopg.Connection) -> None:
    scans = {}
    for name in raw_statements():
        if not name.startswith("view_") and name not in COUNTS:
            seen = plan(full, next(texts(name)))
            if re.search(rf"Seq Scan on ({'|'.join(GROWS)})\b", seen):
                scans[name] = seen
    assert scans == {}, "\n\n".join(f"{k}: {v}" for k, v in scans.items())
