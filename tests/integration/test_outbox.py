"""The outbox: what an application schedules inside its own transaction is in exactly when that commits, and
is taken in once. The drivers by themselves are in `test_outbox_drivers.py`."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

import sendonce
from sendonce import telemetry
from sendonce.asking import FIELD_OF
from sendonce.core.errors import InvalidInput, NotFound, StoreUnavailable
from sendonce.core.reminder import Asked
from sendonce.pipeline import collector as collector_module
from sendonce.pipeline import parked as parked_module
from sendonce.pipeline.alarm import sound
from sendonce.pipeline.handed_in import OutboxView, outbox
from sendonce.pipeline.intake import admit
from sendonce.pipeline.overview import Overview
from sendonce.pipeline.overview import overview as look
from sendonce.pipeline.parked import drop, parked, retry
from sendonce.pipeline.record import lines_of
from sendonce.ports.store import HandedIn, Store, Tx
from sendonce.preparation import prepare
from sendonce.store import sqlite
from sendonce.store.intake import SqlIntake
from sendonce.store.statements import by_place, expand
from sendonce.testing.clock import VirtualClock
from sendonce.testing.postgres_server import PostgresServer
from tests.integration.outbox_world import FAR, OutboxWorld, reminder
from tests.way_in import policy

KEY = "r-1:c-1:email"
PAGE = Path(__file__).parents[2] / "docs/outbox.md"


@pytest.fixture
def shop(postgres_url: str) -> Iterator[OutboxWorld]:
    made = OutboxWorld(postgres_url)
    yield made
    made.close()


def overview(store: Store) -> Overview:
    return store.read(lambda tx: look(tx, policy()))


def order(connection: psycopg.Connection[Any], id_: str) -> None:
    connection.execute("INSERT INTO shop.orders (id) VALUES (%s)", (id_,))


def schedule(shop: OutboxWorld, connection: psycopg.Connection[Any], *reminders: Any, **options: Any) -> int:
    return sendonce.schedule(connection, reminders, schema=shop.schema, **options)


def call(
    shop: OutboxWorld, connection: psycopg.Connection[Any], given: object, on_error: str | None = "refuse"
) -> int:
    """The SQL function, as any language calls it."""
    row = connection.execute(
        f"SELECT {shop.schema}.schedule(%s, %s)".encode(), (Jsonb(given), on_error)
    ).fetchone()
    assert row is not None
    return int(row[0])


# With the caller's transaction


def test_what_committed_is_taken_in_once(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        order(connection, "o-1")
        assert schedule(shop, connection, reminder("r-1"), reminder("r-2")) == 2
        assert shop.collect().taken == 0  # not committed: nobody sees it
    done = shop.collect()
    assert (done.taken, done.parked, done.complete) == (2, 0, True)
    assert set(shop.taken()) == {KEY, "r-2:c-1:email"}
    assert shop.orders() == ["o-1"]
    assert (shop.waiting(), shop.collect().taken) == (0, 0)


def test_what_was_rolled_back_never_was(shop: OutboxWorld) -> None:
    """LOST-09."""
    with shop.connect() as connection:
        order(connection, "o-1")
        schedule(shop, connection, reminder())
        connection.rollback()
    assert (shop.orders(), shop.waiting(), shop.collect().taken) == ([], 0, 0)


def test_a_savepoint_takes_back_its_own(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder("kept"))
        connection.execute("SAVEPOINT here")
        schedule(shop, connection, reminder("undone"))
        connection.execute("ROLLBACK TO SAVEPOINT here")
    shop.collect()
    assert set(shop.taken()) == {"kept:c-1:email"}


def test_a_transaction_that_commits_late_is_found(shop: OutboxWorld) -> None:
    """LOST-01: its row has the lower number, and everything up to a higher one was taken in before."""
    with shop.connect() as late:
        schedule(shop, late, reminder("late"))
        with shop.connect() as quick:
            schedule(shop, quick, reminder("quick"))
        assert shop.collect().taken == 1
        assert set(shop.taken()) == {"quick:c-1:email"}
    assert shop.collect().taken == 1
    assert set(shop.taken()) == {"quick:c-1:email", "late:c-1:email"}


def test_again_with_the_same_content_changes_nothing(shop: OutboxWorld) -> None:
    for _ in range(2):
        with shop.connect() as connection:
            schedule(shop, connection, reminder(), reminder())
        assert shop.collect().taken == 2
    (delivery,) = shop.taken().values()
    assert delivery.seq == 1


def test_the_ledger_names_the_database_user(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder())
    shop.collect()
    (delivery,) = shop.taken().values()
    (line,) = shop.store.read(lambda tx: lines_of(tx, delivery.id))
    assert line.actor == "outbox:postgres"


def test_a_relative_time_counts_from_when_it_was_asked(shop: OutboxWorld) -> None:
    """The scheduler was away for a day: the reminder is late, not put off nor refused as too late."""
    with shop.connect() as connection:
        schedule(shop, connection, reminder(due="in 2h", expires="3d"))
    with shop.connect() as connection:
        connection.execute(f"UPDATE {shop.schema}.intake SET asked_at = asked_at - 86400000000".encode())
    (handed,) = shop.store.read(lambda tx: tx.intake.waiting(1))
    assert shop.collect().taken == 1
    assert shop.taken()[KEY].course.due_at == handed.asked_at + 2 * 3_600_000_000


def test_a_plan_makes_its_steps(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        loan = reminder(due=None, plan="loan", date="2100-02-01", phone="+12025550123", template="pay")
        assert schedule(shop, connection, loan) == 1
    shop.collect()  # the template has no text message: so the whole plan is wrong
    (parked,) = shop.parked()
    assert "sms" in str(parked["why"])


# By several, and through crashes


def test_two_schedulers_at_once_take_in_each_once(shop: OutboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one comes while the first has locked its page, and between its look and its unit."""
    other = shop.another_store()
    with shop.connect() as connection:
        schedule(shop, connection, *(reminder(f"r-{n}") for n in range(120)))
    counts: list[int] = []

    def meanwhile(tx: Tx, prepared: Any, **options: Any) -> Any:
        monkeypatch.setattr(collector_module, "admit", admit)
        counts.append(shop.collector(other).run().taken)
        return admit(tx, prepared, **options)

    monkeypatch.setattr(collector_module, "admit", meanwhile)
    done = shop.collector().run()
    other.close()
    # What the first one holds the other one skips, and does not wait for; nobody takes in what is not his.
    assert sum(counts) + done.taken == 120
    assert len(shop.taken()) == 120
    assert all(delivery.seq == 1 for delivery in shop.taken().values())
    assert shop.waiting() == 0


def test_what_another_took_in_since_the_look_is_left_alone(
    shop: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shop.another_store()
    with shop.connect() as connection:
        schedule(shop, connection, reminder())
    mine = shop.collector()
    prepared = mine._prepared

    def meanwhile(handed: HandedIn) -> Any:
        assert shop.collector(other).run().taken == 1
        return prepared(handed)

    monkeypatch.setattr(mine, "_prepared", meanwhile)
    done = mine.run()
    other.close()
    assert (done.taken, done.parked, done.complete) == (0, 0, True)
    assert shop.taken()[KEY].seq == 1


def test_a_crash_between_taking_in_and_committing_leaves_all_as_it_was(
    shop: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder())

    def crashes(*args: Any, **options: Any) -> Any:
        admit(*args, **options)
        raise StoreUnavailable("the line was cut")

    monkeypatch.setattr(collector_module, "admit", crashes)
    with pytest.raises(StoreUnavailable):
        shop.collect()
    assert (shop.taken(), shop.waiting(), shop.parked()) == ({}, 1, [])
    monkeypatch.undo()
    assert shop.collect().taken == 1
    assert set(shop.taken()) == {KEY}


def test_one_that_cannot_be_written_is_parked_alone(
    shop: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, *(reminder(f"r-{n}") for n in range(20)))

    def poisoned(tx: Tx, prepared: Any, **options: Any) -> Any:
        if any(one.reminder.reminder == "r-13" for one in prepared):
            raise ZeroDivisionError("ann@example.com")
        return admit(tx, prepared, **options)

    monkeypatch.setattr(collector_module, "admit", poisoned)
    done = shop.collect()
    assert (done.taken, done.parked) == (19, 1)
    (parked,) = shop.parked()
    assert json.loads(str(parked["body"]))["reminder"] == "r-13"
    assert "ZeroDivisionError at test_outbox.py" in str(parked["why"])
    assert "ann@" not in str(parked["why"])


def test_one_that_a_bug_cannot_prepare_is_parked_alone(
    shop: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder("bad"), reminder("good"))

    def stumbles(asked: Asked, *args: Any, **options: Any) -> Any:
        if asked.reminder == "bad":
            raise OverflowError
        return prepare(asked, *args, **options)

    monkeypatch.setattr(collector_module, "prepare", stumbles)
    done = shop.collect()
    assert (done.taken, done.parked) == (1, 1)


def test_a_store_that_is_away_while_a_template_is_read_parks_nobody(
    shop: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder())

    def away(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("the line was cut")

    monkeypatch.setattr(collector_module, "prepare", away)
    with pytest.raises(StoreUnavailable):
        shop.collect()
    assert (shop.waiting(), shop.parked()) == (1, [])


def test_what_is_parked_is_in_nobody_s_way(shop: OutboxWorld) -> None:
    """Each look of a scheduler reads one small index, however much is parked."""
    with shop.connect() as connection:
        call(shop, connection, [{"reminder": f"r-{n}"} for n in range(5_000)], "park")
        connection.execute(f"ANALYZE {shop.schema}.intake".encode())
        connection.execute(f"SET LOCAL search_path = {shop.schema}".encode())
        plans = {
            name: connection.execute(
                b"EXPLAIN "
                + by_place(expand({"skip_locked": "FOR UPDATE SKIP LOCKED"})[name], ":")[0]
                .replace(":1", "1")
                .encode()
            ).fetchall()
            for name in ("intake_waiting", "intake_lock", "view_intake_waiting")
        }
    assert "intake_waiting" in str(plans["intake_waiting"])
    assert "intake_pkey" in str(plans["intake_lock"]) or "intake_waiting" in str(plans["intake_lock"])
    assert "intake_waiting" in str(plans["view_intake_waiting"])
    assert "Seq Scan" not in str(plans)


def test_what_cannot_even_be_parked_is_a_bug_and_waits(
    shop: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder("bad", template="none"), reminder("good"))

    def broken(self: SqlIntake, parked: Any) -> None:
        if parked:
            raise ZeroDivisionError

    monkeypatch.setattr(SqlIntake, "park", broken)
    with pytest.raises(ZeroDivisionError):
        shop.collect()
    monkeypatch.undo()
    shop.collect()
    assert set(shop.taken()) == {"good:c-1:email"}
    assert len(shop.parked()) == 1


def test_a_run_is_bounded_and_says_that_there_is_more(shop: OutboxWorld) -> None:
    shop.policy = replace(shop.policy, pass_rows_max=60)
    with shop.connect() as connection:
        schedule(shop, connection, *(reminder(f"r-{n}") for n in range(150)))
    runs = [shop.collect() for _ in range(3)]
    assert [run.complete for run in runs] == [False, False, True]
    assert sum(run.taken for run in runs) == 150
    with shop.connect() as connection:
        schedule(shop, connection, *(reminder(f"s-{n}") for n in range(150)))
    assert shop.collector().run(stopping=lambda: True).taken == 0
    shop.policy = replace(shop.policy, pass_rows_max=10_000, pass_time_max_s=0.0)
    assert not shop.collect().complete


# What is wrong with it, as far as the shape tells: refused by the database, and before it by Python

WRONG: Mapping[str, tuple[object, str]] = {
    "no object": ("r-1", "reminder"),
    "an unknown field": (reminder(dues="now"), "dues"),
    "no id": (reminder(None), "reminder"),  # type: ignore[arg-type]
    "an empty id": (reminder(""), "reminder"),
    "an id that is a number": (reminder(7), "reminder"),  # type: ignore[arg-type]
    "no template": (reminder(template=None), "template"),
    "no address": (reminder(email=None), "email"),
    "an address that is none": (reminder(email=["ann@example.com"]), "email"),
    "no time": (reminder(due=None), "due"),
    "a time that is a number": (reminder(due=1_800_000_000), "due"),
    "a plan with a time": (reminder(plan="loan", date="2100-01-01"), "due"),
    "a plan without a date": (reminder(due=None, plan="loan"), "date"),
    "a date without a plan": (reminder(date="2100-01-01"), "date"),
    "data that is a list": (reminder(data=["Ann"]), "data"),
    "channels of numbers": (reminder(channels=[1]), "channels"),
    "channels in lists": (reminder(channels=[["email"]]), "channels"),
    "a priority beyond": (reminder(priority=10), "priority"),
    "a negative priority": (reminder(priority=-1), "priority"),
    "a broken priority": (reminder(priority=1.5), "priority"),
    "a priority in words": (reminder(priority="1"), "priority"),
    "a priority that is yes": (reminder(priority=True), "priority"),
    "a negative version": (reminder(template_version=-1), "template_version"),
}
RIGHT: Mapping[str, dict[str, Any]] = {
    "other names": {"id": "r-1", "when": FAR, "template_name": "plain", "mail": "ann@example.com"},
    "everything": reminder(
        channels=["email"],
        priority=9,
        template_version=1,
        category="payment",
        group="g",
        timezone="Europe/Berlin",
        expires="2h",
        sender="us@example.com",
        reply_to="us@example.com",
        tenant="default",
    ),
    "channels in one text": reminder(channels="email"),
    "empty ones": reminder(phone="", plan="", date="", channels=[], group=""),
    "ones that are null": {**reminder(), "phone": None, "priority": None, "data": None, "template": "plain"},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_refuses_the_whole_statement(shop: OutboxWorld, what: str) -> None:
    given, field = WRONG[what]
    both = [reminder("before"), given]
    with shop.connect() as connection:
        with pytest.raises(errors.InvalidParameterValue, match=r"reminder 2 of those given: .+") as refused:
            call(shop, connection, both)
        assert refused.value.diag.column_name == field
        connection.rollback()
    with shop.connect() as connection:
        order(connection, "o-1")
        with pytest.raises(InvalidInput, match=r"reminder 2 of those given: .+") as refused_here:
            schedule(shop, connection, *both)
        assert refused_here.value.field == field
        order(connection, "o-2")  # the transaction goes on: the database was not asked
    assert (shop.orders(), shop.waiting(), shop.parked()) == (["o-1", "o-2"], 0, [])


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_parked_where_that_is_asked_for(shop: OutboxWorld, what: str) -> None:
    given, field = WRONG[what]
    with shop.connect() as connection:
        assert call(shop, connection, [reminder("a"), given], "park") == 1
        assert schedule(shop, connection, reminder("b"), given, on_error="park") == 1
    assert shop.collect().taken == 2
    assert set(shop.taken()) == {"a:c-1:email", "b:c-1:email"}
    first, second = shop.parked()
    assert first["field"] == second["field"] == field
    assert first["why"] == second["why"] != ""
    assert json.loads(str(first["body"])) == given


@pytest.mark.parametrize("what", RIGHT)
def test_what_is_right_passes_both(shop: OutboxWorld, what: str) -> None:
    shop.add_template("plain", "Hello")
    with shop.connect() as connection:
        assert call(shop, connection, RIGHT[what]) == 1
        assert schedule(shop, connection, RIGHT[what]) == 1
    assert shop.collect().taken == 2  # the second one is the same as the first
    (delivery,) = shop.taken().values()
    assert delivery.seq == 1


def test_both_know_the_same_fields(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        for name, field in FIELD_OF.items():
            one = {known: value for known, value in reminder().items() if known != field}
            call(shop, connection, {**one, name: 1.5}, "park")
    parked = shop.parked()
    known = [row["field"] for row in parked]
    assert known == list(FIELD_OF.values())
    assert not any("is no field" in str(row["why"]) for row in parked)


@pytest.mark.parametrize("given", ["null", "7", '"r-1"', "true"])
def test_what_is_no_list_of_reminders_is_refused(shop: OutboxWorld, given: str) -> None:
    with (
        shop.connect() as connection,
        pytest.raises(errors.InvalidParameterValue, match="JSON object, or an"),
    ):
        connection.execute(f"SELECT {shop.schema}.schedule(%s::jsonb, 'park')".encode(), (given,))


def test_sql_null_is_refused_and_never_ignored(shop: OutboxWorld) -> None:
    with shop.connect() as connection, pytest.raises(errors.InvalidParameterValue, match="is NULL"):
        connection.execute(f"SELECT {shop.schema}.schedule(NULL)".encode())


def test_text_that_is_no_json_is_refused(shop: OutboxWorld) -> None:
    with shop.connect() as connection, pytest.raises(errors.InvalidTextRepresentation, match="json"):
        connection.execute(f"SELECT {shop.schema}.schedule('[{{')".encode())


@pytest.mark.parametrize("on_error", ["", "Park", "ignore", None])
def test_another_word_for_what_is_wrong_is_refused(shop: OutboxWorld, on_error: str | None) -> None:
    with shop.connect() as connection:
        with pytest.raises(errors.InvalidParameterValue, match="'refuse', or 'park'"):
            call(shop, connection, [], on_error)
        connection.rollback()
        with pytest.raises(InvalidInput, match="'refuse' or 'park'"):
            schedule(shop, connection, on_error=on_error)


def test_one_that_is_too_large_is_refused(shop: OutboxWorld) -> None:
    large = reminder(data={"name": "x" * 1_048_576})
    with shop.connect() as connection, pytest.raises(errors.InvalidParameterValue, match="may have 1024"):
        schedule(shop, connection, large)


def test_nothing_is_nothing(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        assert (schedule(shop, connection), call(shop, connection, [])) == (0, 0)


@pytest.mark.parametrize(
    "data",
    [
        {"name": "Ann\0"},
        {"Ann\0": "name"},
        {"name": "\ud800"},
        {"name": float("nan")},
        {"name": object()},
        {"name": b"Ann"},
        {(1, 2): "Ann"},
    ],
)
@pytest.mark.parametrize("on_error", ["refuse", "park"])
def test_what_json_cannot_say_is_refused_before_the_database_is_asked(
    shop: OutboxWorld, data: Any, on_error: str
) -> None:
    with shop.connect() as connection:
        with pytest.raises(InvalidInput, match=r"reminder 1 .*no plain JSON") as refused:
            schedule(shop, connection, reminder(data=data), on_error=on_error)
        assert refused.value.field == "data"
        order(connection, "o-1")
    assert (shop.orders(), shop.waiting()) == (["o-1"], 0)


def test_text_that_looks_like_an_escape_is_text(shop: OutboxWorld) -> None:
    data = {"name": r"Ann\u0000", "mood": 'ü "quoted" \\ %s $1 :reminders'}
    with shop.connect() as connection:
        schedule(shop, connection, reminder(data=data))
    shop.collect()
    found = shop.store.read(lambda tx: tx.reminders.find([("default", "r-1", "c-1")]))[0]
    assert found is not None
    assert json.loads(found.data) == data


# What is wrong with it, as only the configuration tells


@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        ({"template": "later"}, "template", "later"),
        ({"email": "ann"}, "email", "ann"),
        ({"category": "none"}, "category", "not configured"),
        ({"due": "soon"}, "due", "soon"),
        ({"due": "2001-01-01T00:00Z"}, "due", "2001"),
        ({"data": {}}, "data", "name"),
        ({"timezone": "Mars/Base"}, "timezone", "Mars"),
        ({"reminder": "r" * 300}, "reminder", "300 characters"),
        ({"template_version": 999_999_999}, "template_version", "999999999"),
    ],
)
def test_what_cannot_be_taken_in_is_parked_and_told(
    shop: OutboxWorld, fields: dict[str, Any], field: str, why: str
) -> None:
    stream = io.StringIO()
    telemetry.configure("warning", "json", stream=stream)
    try:
        with shop.connect() as connection:
            assert schedule(shop, connection, {**reminder(), **fields}, reminder("good")) == 2
        done = shop.collect()
    finally:
        telemetry.silence()
    assert (done.taken, done.parked) == (1, 1)
    (parked,) = shop.parked()
    assert why in str(parked["why"])
    (told,) = map(json.loads, stream.getvalue().splitlines())
    assert (told["event"], told["intake_id"], told["tenant"]) == ("outbox_parked", parked["id"], "default")
    assert told["reason"]
    assert "dropped" not in told
    assert shop.collect().taken == 0  # it waits no more


def test_another_content_under_a_known_id_is_parked(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder(), reminder(data={"name": "Bob"}))
    done = shop.collect()
    assert (done.taken, done.parked) == (1, 1)
    (parked,) = shop.parked()
    assert parked["field"] == "data.name"
    assert "known with another data.name" in str(parked["why"])


def test_a_plan_with_a_step_that_is_wrong_is_parked_and_its_other_steps_are_in(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder("loan-1/D", due="2100-03-01T09:00", email="bob@example.com"))
        shop_plan = reminder("loan-1", due=None, plan="loan", date="2100-02-01", channels=["email"])
        schedule(shop, connection, shop_plan)
    done = shop.collect()
    assert (done.taken, done.parked) == (1, 1)
    (parked,) = shop.parked()
    assert str(parked["why"]).startswith("loan-1/D: it is known with another")
    assert "loan-1/D-3:c-1:email" in shop.taken()


def test_a_parked_one_is_retried_or_dropped(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder("r-1", template="later"), reminder("r-2", template="never"))
    assert shop.collect().parked == 2
    first, second = parked(shop.store)
    assert [(one.reminder, one.field) for one in (first, second)] == [
        ("r-1", "template"),
        ("r-2", "template"),
    ]
    shop.add_template("later")
    assert retry(shop.store, [first.id], actor="operator:me") == 1
    with pytest.raises(NotFound, match=r"1 of .* are not parked.*nothing was changed"):
        drop(shop.store, [first.id, second.id], reason="test", actor="operator:me")
    with pytest.raises(NotFound):
        retry(shop.store, [second.id, 10**9], actor="operator:me")
    assert drop(shop.store, [second.id], reason="a test order", actor="operator:me") == 1
    assert shop.collect().taken == 1
    assert (set(shop.taken()), list(parked(shop.store))) == ({KEY}, [])
    with shop.connect() as connection:
        kept = connection.execute(
            f"SELECT actor, action, target, reason FROM {shop.schema}.audit ORDER BY id".encode()
        ).fetchall()
    assert kept == [
        ("operator:me", "outbox_retry", "", ""),
        ("operator:me", "outbox_drop", "r-2", "a test order"),
    ]


def test_all_that_is_parked_is_listed_page_by_page(
    shop: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked_module, "PAGE", 3)
    with shop.connect() as connection:
        call(shop, connection, [{"id": f"r-{n}"} for n in range(7)] + ["not an object"], "park")
    assert [one.reminder for one in parked(shop.store)] == [*(f"r-{n}" for n in range(7)), ""]


def alarmed(shop: OutboxWorld) -> list[dict[str, Any]]:
    stream = io.StringIO()
    telemetry.configure("warning", "json", stream=stream)
    try:
        sound([], [], shop.store.read(outbox))
    finally:
        telemetry.silence()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_overview_tells_what_waits_and_what_is_parked(shop: OutboxWorld) -> None:
    with shop.connect() as connection:
        schedule(shop, connection, reminder("r-1"), reminder("r-2"))
        schedule(shop, connection, {}, on_error="park")
    seen = overview(shop.store)
    assert (seen.outbox.waiting, seen.outbox.parked, seen.alerts) == (2, 1, ())
    assert 0 <= seen.outbox.waits_s < 300
    with shop.connect() as connection:  # no scheduler for ten minutes
        connection.execute(f"UPDATE {shop.schema}.intake SET asked_at = asked_at - 600000000".encode())
    assert overview(shop.store).alerts == ("outbox",)
    assert [event["event"] for event in alarmed(shop)] == ["outbox_old"]
    shop.collect()
    assert alarmed(shop) == []
    seen = overview(shop.store)
    assert (seen.outbox, seen.alerts) == (OutboxView(waiting=0, waits_s=0.0, parked=1), ())


def test_deeply_nested_data_hides_nobody(shop: OutboxWorld) -> None:
    deep = '{"reminder": "deep", "due": "%s", "template": "pay", "email": "a@example.com", "data": %s}'
    nested = '{"name": ' + "[" * 3_000 + "]" * 3_000 + "}"
    long = '{"name": ' + "9" * 5_000 + "}"
    with shop.connect() as connection:
        for data in (nested, long):
            connection.execute(f"SELECT {shop.schema}.schedule(%s::jsonb)".encode(), (deep % (FAR, data),))
        schedule(shop, connection, reminder())
    done = shop.collect()
    assert (done.taken, done.parked) == (1, 2)


def test_the_page_shows_sql_that_works(shop: OutboxWorld) -> None:
    shop.add_template("shipped")
    example = next(text for text in written(shop, "sql") if "BEGIN" in text)
    with shop.connect(autocommit=True) as connection:
        connection.execute(example.replace("INTO orders", "INTO shop.orders").encode())
    assert shop.collect().taken == 1
    assert (shop.orders(), list(shop.taken())) == (["4821"], ["order-4821:customer-73:email"])


def test_the_page_shows_a_program_that_works(shop: OutboxWorld) -> None:
    shop.add_template("shipped")
    program, *_ = written(shop, "python")
    for plain, here in (
        ("orders (id, email) VALUES (%s, %s)", "shop.orders (id) VALUES (%s)"),
        ('("4821", "ann@example.com"))', '("4821",))'),
        ("        ],\n    )", f"        ],\n        schema={shop.schema!r},\n    )"),
    ):
        assert program.count(plain) == 1
        program = program.replace(plain, here)
    exec(program, {"psycopg": psycopg, "DATABASE": shop.dsn})
    assert shop.collect().taken == 1
    assert (shop.orders(), list(shop.taken())) == (["4821"], ["order-4821:customer-73:email"])


# Who may


def written(shop: OutboxWorld, language: str) -> list[str]:
    """What the page shows, for the schema of this store."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    if language == "sql":
        return [re.sub(r"\bsendonce\b", shop.schema, text) for text in found]
    return found


@pytest.fixture
def webshop(shop: OutboxWorld, postgres_server: PostgresServer) -> Iterator[str]:
    """A user of the application, with what docs/outbox.md grants and nothing more; the URL as him."""
    granting = next(text for text in written(shop, "sql") if "GRANT" in text)
    postgres_server.execute(f"CREATE ROLE webshop LOGIN; {granting}", "tests")
    yield shop.dsn.replace("postgres@", "webshop@", 1)
    postgres_server.execute("DROP OWNED BY webshop; DROP ROLE webshop", "tests")


def test_an_application_needs_no_right_on_any_table(shop: OutboxWorld, webshop: str) -> None:
    with psycopg.connect(webshop) as connection:
        assert schedule(shop, connection, reminder()) == 1
        with pytest.raises(errors.InvalidParameterValue), connection.transaction():
            call(shop, connection, {"reminder": "r-2"})
        assert call(shop, connection, {"reminder": "r-2"}, "park") == 0
    shop.collect()
    (delivery,) = shop.taken().values()
    (line,) = shop.store.read(lambda tx: lines_of(tx, delivery.id))
    assert line.actor == "outbox:webshop"
    assert [row["asked_by"] for row in shop.parked()] == ["webshop"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM {schema}.intake",
        "INSERT INTO {schema}.intake VALUES (1, '', '', 1, '', 0, '', '')",
        "UPDATE {schema}.intake SET parked = 0",
        "SELECT * FROM {schema}.delivery",
        "SELECT value FROM {schema}.meta",
        "SELECT {schema}.intake_fault('{{}}')",
        "CREATE TABLE {schema}.more ()",
    ],
)
def test_an_application_sees_and_changes_nothing_else(
    shop: OutboxWorld, webshop: str, statement: str
) -> None:
    with psycopg.connect(webshop) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(statement.format(schema=shop.schema).encode())


def test_without_a_grant_nobody_may_schedule(shop: OutboxWorld, webshop: str) -> None:
    with shop.connect() as owner:
        owner.execute(f"REVOKE EXECUTE ON FUNCTION {shop.schema}.schedule(jsonb, text) FROM webshop".encode())
    with psycopg.connect(webshop) as connection, pytest.raises(errors.InsufficientPrivilege):
        schedule(shop, connection, reminder())


def test_tables_and_functions_of_the_caller_are_never_found(
    shop: OutboxWorld, webshop: str, postgres_server: PostgresServer
) -> None:
    """The function runs as its owner: what a caller puts in its way would run with the owner's rights."""
    postgres_server.execute("CREATE SCHEMA trap AUTHORIZATION webshop", "tests")
    with psycopg.connect(webshop) as connection:
        connection.execute("CREATE TEMPORARY TABLE intake (LIKE pg_class)")
        connection.execute(
            "CREATE FUNCTION trap.intake_fault(asked jsonb) RETURNS text[] LANGUAGE plpgsql "
            "AS $$ BEGIN RAISE 'trapped'; END $$"
        )
        connection.execute("SET search_path = pg_temp, trap, pg_catalog")
        assert schedule(shop, connection, reminder()) == 1
    assert shop.collect().taken == 1


# Elsewhere


def test_on_sqlite_the_intake_is_empty() -> None:
    store = sqlite.open_store("sqlite://:memory:", VirtualClock(), inline=True)
    assert store.read(lambda tx: tx.intake.waiting(10)) == []
    assert store.write(lambda tx: tx.intake.retry([1]) + tx.intake.drop([1])).result() == 0
    assert overview(store).outbox == OutboxView(waiting=0, waits_s=0.0, parked=0)
    store.close()
