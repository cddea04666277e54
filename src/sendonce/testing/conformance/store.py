"""What every store must do: the promises of `ports.store`, each as a test.

    from sendonce.testing.conformance.store import StoreSuite, broken_chains

    class TestMyStore(StoreSuite):
        pass

with two fixtures: `clock`, a `VirtualClock`, and `store`, an empty store opened with that clock. After each
test `broken_chains(store)` must be empty: whatever a test did, the ledger replays to the table.

Nothing here names a database, and the data is made so that wrong answers differ from right ones: ids never
run in the order of the times, every state is always present, and somebody else's rows lie beside.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from sendonce.core.access import ApiKey, Scope
from sendonce.core.consent import Kind, Preference
from sendonce.core.delivery import Channel
from sendonce.core.errors import StoreUnavailable
from sendonce.core.ledger import Value, check_chain
from sendonce.core.lifecycle import ENDED, UNSENT, Ending, Event, Facts, Moved, Standing, State, step
from sendonce.core.pacing import Gate, GateLimits, Limit
from sendonce.core.provider_event import EventKind, Fact
from sendonce.core.seal import SealedBlock
from sendonce.core.tombstone import Remains, Tombstone, tombstone
from sendonce.ports.store import (
    Answered,
    Batch,
    Content,
    Course,
    Delivery,
    Erasure,
    EventLook,
    Move,
    NewDelivery,
    OpenCall,
    Outgoing,
    Pause,
    Process,
    Reminder,
    Removed,
    Row,
    Store,
    StoredEvent,
    StoredTemplate,
    Tx,
)
from sendonce.testing.clock import VirtualClock

T = TypeVar("T")

SECOND: Final = 1_000_000
HOUR: Final = 3_600 * SECOND
START: Final = 1_767_225_600 * SECOND  # where a VirtualClock begins
LIMITS: Final = GateLimits(
    (Limit(10, SECOND), Limit(50_000, 86_400 * SECOND, parts=True)), lanes=4, headroom=0.1
)

Step = tuple[Event, Facts]
PUBLISHED: Final[tuple[Step, ...]] = ((Event.PUBLISHED, Facts()),)
CLAIMED: Final = (*PUBLISHED, (Event.CLAIMED, Facts()))
UNCERTAIN: Final = (*CLAIMED, (Event.UNKNOWN, Facts()))
WAY_TO: Final[Mapping[State, tuple[Step, ...]]] = {
    State.SCHEDULED: (),
    State.QUEUED: PUBLISHED,
    State.SENDING: CLAIMED,
    State.RECONCILING: (*CLAIMED, (Event.UNKNOWN, Facts(lookup=True))),
    State.UNCERTAIN: UNCERTAIN,
    State.ACCEPTED: (*CLAIMED, (Event.ACCEPTED, Facts())),
    State.REJECTED: (*CLAIMED, (Event.REJECTED, Facts())),
    State.DEAD: (*CLAIMED, (Event.FAILED, Facts(budget=False))),
    State.CANCELLED: ((Event.CANCELLED, Facts()),),
    State.SUPPRESSED: (*PUBLISHED, (Event.SUPPRESSED, Facts())),
    State.EXPIRED: ((Event.EXPIRED, Facts()),),
    State.ASSUMED_SENT: (*UNCERTAIN, (Event.ASSUMED_SENT, Facts())),
    State.NOT_SENT: (*UNCERTAIN, (Event.NOT_SENT, Facts())),
}
"""How a delivery comes into each state, along the table."""


def broken_chains(store: Store) -> list[str]:
    """Every delivery whose ledger does not replay to its row, with what is wrong."""

    def query(tx: Tx) -> list[str]:
        faults = []
        for row in _all_rows(tx):
            lines = [
                (int(line["seq"]), str(line["body"]), str(line["hash"]))
                for line in tx.rows("view_ledger", delivery_id=row["id"])
            ]
            fault = check_chain(str(row["key"]), lines, int(row["seq"]), str(row["head"]), _standing(row))
            faults += [f"{fault.key}, entry {fault.seq}: {fault.what}"] if fault else []
        return faults

    return store.read(query)


def api_key(prefix: str, **changes: Any) -> ApiKey:
    key = ApiKey(prefix, "t", "shop", "h" * 64, frozenset({Scope.SCHEDULE}), 100, START, "ann", 0, 0, 0)
    return replace(key, **changes)


def _finish(store: Store, begun_at: int) -> bool:
    return store.write(
        lambda tx: tx.answers.finish("t", "k", begun_at, status=201, answer="text", keep_until=999)
    ).result()


class StoreSuite:
    """The tests. They find `store` and `clock` by name; no test library is imported here."""

    # Units.

    def test_a_unit_gives_back_what_it_returned_and_sees_its_own_writes(self, store: Store) -> None:
        def unit(tx: Tx) -> tuple[str | None, str | None, list[State]]:
            before = tx.meta("colour")
            tx.set_meta("colour", "red")
            tx.set_meta("colour", "blue")
            (id_,) = tx.deliveries.insert([new("a")])
            (row,) = tx.deliveries.by_ids([id_])
            tx.deliveries.move([along(row, Event.PUBLISHED)])
            return before, tx.meta("colour"), [row.standing.state for row in tx.deliveries.by_ids([id_])]

        assert store.write(unit).result() == (None, "blue", [State.QUEUED])
        assert store.read(lambda tx: tx.meta("colour")) == "blue"

    def test_a_unit_that_raises_takes_back_its_own_writes_and_nobody_elses(self, store: Store) -> None:
        def unit(number: int) -> Callable[[Tx], int]:
            def run(tx: Tx) -> int:
                tx.set_meta(f"unit-{number}", "done")
                tx.deliveries.insert([new(f"u{number}")])
                if number % 3 == 0:
                    raise ValueError(number)
                return number

            return run

        futures = in_threads(store, [unit(number) for number in range(30)])
        for number, future in enumerate(futures):
            if number % 3 == 0:
                error = future.exception()
                assert isinstance(error, ValueError)
                assert error.args == (number,)
            else:
                assert future.result() == number
        done = store.read(lambda tx: {n for n in range(30) if tx.meta(f"unit-{n}") == "done"})
        assert done == {number for number in range(30) if number % 3}
        keys = {str(row["key"]) for row in store.read(_all_rows)}
        assert keys == {f"u{number}:c:email" for number in done}

    def test_a_move_and_its_entry_fall_together(self, store: Store) -> None:
        (row,) = add(store, new("a"))

        def unit(tx: Tx) -> None:
            assert tx.deliveries.move([along(row, Event.PUBLISHED)]) == [True]
            assert [entry["event"] for entry in entries(tx, row.id)] == ["scheduled", "published"]
            raise ValueError("after the move")

        assert isinstance(store.write(unit).exception(), ValueError)
        assert look(store, row.id) == row
        assert store.read(lambda tx: [entry["event"] for entry in entries(tx, row.id)]) == ["scheduled"]

    def test_units_of_many_threads_lose_no_update(self, store: Store) -> None:
        def count(tx: Tx) -> int:
            value = int(tx.meta("count") or 0) + 1
            tx.set_meta("count", str(value))
            return value

        futures = in_threads(store, [count] * 200)
        assert sorted(future.result() for future in futures) == list(range(1, 201))

    def test_a_unit_sees_one_instant_and_a_query_changes_nothing(
        self, store: Store, clock: VirtualClock
    ) -> None:
        clock.advance(2.5)

        def unit(tx: Tx) -> tuple[int, int, int]:
            first = tx.now, tx.steady
            clock.advance(1.0)
            assert (tx.now, tx.steady) == first
            return tx.now, tx.steady, store.steady()

        now, steady, outside = store.write(unit).result()
        assert now == START + 2_500_000
        assert outside == steady + SECOND

        def write_while_reading(tx: Tx) -> None:
            tx.set_meta("sneaked", "in")

        with suppress(Exception):  # a store may refuse it, or forget it
            store.read(write_while_reading)
        assert store.read(lambda tx: tx.meta("sneaked")) is None
        assert store.write(lambda tx: tx.meta("sneaked")).result() is None

    def test_the_steady_clock_is_not_moved_by_the_calendar(self, store: Store, clock: VirtualClock) -> None:
        before = store.steady()
        clock.step(-7_200)
        assert store.steady() == before
        clock.step(+86_400)
        clock.advance(3.0)
        assert store.steady() == before + 3 * SECOND
        assert store.write(lambda tx: tx.steady).result() == before + 3 * SECOND

    def test_the_secret_is_long_and_does_not_change(self, store: Store) -> None:
        assert len(store.secret) >= 32
        assert store.secret == store.secret
        assert len(set(store.secret)) > 8

    def test_closing_twice_is_closing_once(self, store: Store) -> None:
        done = store.write(lambda tx: tx.set_meta("last", "word"))
        store.close()
        store.close()
        assert done.result() is None

    # News.

    def test_news_is_told_after_the_commit_once_for_each_topic_of_a_unit(self, store: Store) -> None:
        ear = Ear(store)
        ear.tune_in(store)
        inside: list[bool] = []

        def unit(tx: Tx) -> None:
            for _ in range(3):
                tx.announce("queued:a")
                tx.announce("due")
            tx.set_meta("told", "yes")
            inside.append(ear.silent)

        store.write(unit).result()
        assert sorted(ear.until(2)) == ["due", "queued:a"]
        assert all(inside)
        ear.tune_in(store)
        assert ear.silent

    def test_news_of_a_unit_that_wrote_nothing_is_told_too(self, store: Store) -> None:
        ear = Ear(store)
        ear.tune_in(store)
        store.write(lambda tx: tx.announce("due")).result()
        assert ear.until(1) == ["due"]

    def test_a_unit_that_raises_announces_nothing_and_its_neighbours_do(self, store: Store) -> None:
        ear = Ear(store)
        ear.tune_in(store)

        def unit(number: int) -> Callable[[Tx], None]:
            def run(tx: Tx) -> None:
                tx.announce(f"unit {number}")
                tx.set_meta("last", str(number))
                if number % 3 == 0:
                    raise ValueError(number)

            return run

        for number, future in enumerate(in_threads(store, [unit(number) for number in range(30)])):
            assert (future.exception() is None) is (number % 3 != 0)
        expected = sorted(f"unit {number}" for number in range(30) if number % 3)
        assert sorted(ear.until(len(expected))) == expected
        ear.tune_in(store)
        assert ear.silent

    def test_what_a_query_announces_is_told_to_nobody(self, store: Store) -> None:
        ear = Ear(store)
        ear.tune_in(store)
        store.read(lambda tx: tx.announce("nothing"))
        ear.tune_in(store)
        assert ear.silent

    def test_all_who_listen_hear_it_until_they_close(self, store: Store) -> None:
        one, other = Ear(store), Ear(store)
        one.tune_in(store)
        other.tune_in(store)
        one.forget()
        other.close()
        other.close()
        other.forget()
        store.write(lambda tx: tx.announce("due")).result()
        assert one.until(1) == ["due"]
        assert other.silent

    def test_who_raises_at_hearing_it_harms_nobody(self, store: Store) -> None:
        raised = threading.Event()

        def hear(topic: str) -> None:
            raised.set()
            raise ValueError(topic)

        listening = store.listen(hear)
        ear = Ear(store)
        ear.tune_in(store)
        assert raised.is_set()
        assert store.write(lambda tx: tx.meta("well")).result() is None
        ear.tune_in(store)
        listening.close()

    def test_a_closed_store_has_no_news(self, store: Store) -> None:
        early = Ear(store)
        early.tune_in(store)
        store.close()
        late = Ear(store)
        assert early.silent
        assert late.silent
        early.close()
        late.close()

    # Deliveries: inserting and finding.

    def test_insert_gives_ids_in_order_and_rows_as_given(self, store: Store) -> None:
        given = [new("c", due_at=START + 3), new("a", due_at=START + 1, tenant="other"), new("b", group="g")]
        rows = add(store, *given)
        assert [row.key for row in rows] == ["c:c:email", "a:c:email", "b:c:email"]
        first = given[0]
        assert rows[0] == Delivery(
            id=rows[0].id,
            tenant=first.tenant,
            key=first.key,
            reminder_id=first.reminder_id,
            customer=first.customer,
            channel=first.channel,
            address_tag=first.address_tag,
            category=first.category,
            group=first.group,
            priority=first.priority,
            standing=Standing(State.SCHEDULED),
            course=Course(due_at=START + 3, next_at=START + 3, expires_at=first.expires_at),
            ended_at=0,
            seq=1,
            head=rows[0].head,
        )
        assert len({row.head for row in rows}) == 3

    def test_a_key_is_unique_within_its_tenant_and_a_second_one_undoes_the_unit(self, store: Store) -> None:
        add(store, new("a"), new("a", tenant="other"))
        assert store.write(lambda tx: tx.deliveries.insert([new("b"), new("a")])).exception() is not None
        assert [row["key"] for row in store.read(_all_rows)] == ["a:c:email", "a:c:email"]

    def test_by_ids_and_by_keys_come_in_order_of_id_without_the_unknown(self, store: Store) -> None:
        a, b, c = add(store, new("a"), new("b"), new("c"))
        unknown = c.id + 1_000
        assert store.read(lambda tx: tx.deliveries.by_ids([c.id, unknown, a.id, c.id])) == [a, c]
        wanted = [("t", "c:c:email"), ("t", "x:c:email"), ("other", "b:c:email"), ("t", "b:c:email")]
        assert store.read(lambda tx: tx.deliveries.by_keys(wanted)) == [b, c]

    def test_of_reminders_gives_all_channels(self, store: Store) -> None:
        sms = replace(new("a"), channel=Channel.SMS, key="a:c:sms", reminder_id=7)
        rows = add(store, sms, new("b", reminder_id=8), new("a", reminder_id=7), new("d", reminder_id=9))
        assert store.read(lambda tx: tx.deliveries.of_reminders([9, 7])) == [rows[0], rows[2], rows[3]]

    def test_matching_selects_by_each_name_a_page_at_a_time(self, store: Store) -> None:
        def unit(tx: Tx) -> list[int]:
            run = tx.runs.begin_import("t", "crm", "f.csv", "test")
            again = tx.runs.begin_import("t", "crm", "g.csv", "test")
            loan = tx.reminders.insert(
                [
                    asked("loan", customer="c1", group="debt", source="crm", import_id=run),
                    asked("loan", customer="c2", group="debt", source="crm", import_id=run),
                    asked("parcel", customer="c1", source="crm", import_id=again),
                    replace(asked("loan", customer="c1", group="debt", source="crm"), tenant="other"),
                ]
            )
            tx.reminders.touch([loan[1]], again)
            return [run, again, *loan]

        run, again, r1, r2, r3, r4 = store.write(unit).result()
        a, b, c, d = add(
            store,
            new("loan", customer="c1", reminder_id=r1, address_tag="ann"),
            new("loan", customer="c2", reminder_id=r2, address_tag="bob"),
            new("parcel", customer="c1", reminder_id=r3, address_tag="ann"),
            new("loan", customer="c1", reminder_id=r4, address_tag="ann", tenant="other"),
        )
        lead(store, c, WAY_TO[State.ACCEPTED], receipt="r-77")
        lead(store, b, WAY_TO[State.UNCERTAIN])

        def found(what: str, limit: int = 10, after: int = 0, **value: int | str) -> list[int]:
            return [
                row.id for row in store.read(lambda tx: tx.deliveries.matching(what, value, limit, after))
            ]

        assert found("reminder", tenant="t", reminder="loan") == [a.id, b.id]
        assert found("customer", tenant="t", customer="c1") == [a.id, c.id]
        assert found("customer", tenant="other", customer="c1") == [d.id]
        assert found("group", tenant="t", group="debt") == [a.id, b.id]
        assert found("group", tenant="t", group="") == []
        assert found("import", import_id=run) == [a.id, b.id]
        assert found("import", import_id=again) == [c.id]
        assert found("import", import_id=0) == []
        assert found("source_missing", tenant="t", source="crm", import_id=again) == [a.id]
        assert found("source_missing", tenant="t", source="", import_id=again) == []
        assert found("pending") == [a.id, d.id]
        assert found("address", tenant="t", address_tag="ann") == [a.id, c.id]
        assert found("address_open", tenant="t", address_tag="ann") == [a.id]
        open_at = [("t", "email", "ann"), ("t", "email", "nobody"), ("t", "email", "ann")]
        assert store.read(lambda tx: tx.deliveries.open_at(open_at)) == {a.id}
        assert store.read(lambda tx: tx.deliveries.open_at([])) == set()
        assert found("state", state="UNCERTAIN") == [b.id]
        assert found("state", state="DEAD") == []
        assert found("receipt", receipt="r-77") == [c.id]
        assert found("receipt", receipt="") == []
        assert found("reminder", 1, 0, tenant="t", reminder="loan") == [a.id]
        assert found("reminder", 1, a.id, tenant="t", reminder="loan") == [b.id]
        assert found("reminder", 1, b.id, tenant="t", reminder="loan") == []

    # Deliveries: who is next.

    def test_the_place_on_the_agenda_follows_from_the_state(self, store: Store, clock: VirtualClock) -> None:
        rows = one_in_each_state(store)
        clock.advance(1.0)
        found = {State(str(row["state"])): row["look"] for row in store.read(_all_rows)}
        looks = {State.SCHEDULED: 0, State.QUEUED: 1, State.RECONCILING: 10, State.UNCERTAIN: 11}
        assert found == dict.fromkeys(State, -9) | looks | {State.DEAD: 12, State.REJECTED: 13}
        assert {state for state, row in rows.items() if row.ended_at} == ENDED
        assert {row.ended_at for row in rows.values()} == {0, START}

    def test_nobody_is_shown_rows_in_other_states(self, store: Store, clock: VirtualClock) -> None:
        rows = one_in_each_state(store)
        clock.advance(10 * 86_400)

        def shown(query: Callable[[Tx], list[Delivery]]) -> set[State]:
            return {row.standing.state for row in store.read(query)}

        now = clock.now()
        assert shown(lambda tx: tx.deliveries.due(now, 99)) == {State.SCHEDULED}
        assert shown(lambda tx: tx.deliveries.ready("acc", retries=False, limit=99)) == {State.QUEUED}
        assert shown(lambda tx: tx.deliveries.ready("acc", retries=True, limit=99)) == set()
        assert shown(lambda tx: tx.deliveries.expired(now, 99)) == UNSENT
        for state in State:
            watched = state in (State.RECONCILING, State.UNCERTAIN, State.DEAD, State.REJECTED)
            seen = store.read(lambda tx, state=state: tx.deliveries.attention(state.value, now, 99))  # type: ignore[misc]
            assert seen == ([rows[state]] if watched else [])

    def test_due_is_in_order_of_time_within_the_limit_and_inclusive(
        self, store: Store, clock: VirtualClock
    ) -> None:
        at = {"late": 50, "first": 10, "edge": 60, "second": 20, "after": 61}
        add(store, *(new(name, due_at=START + offset) for name, offset in at.items()))

        def due(now: int, limit: int = 99) -> list[str]:
            return [row.key.split(":")[0] for row in store.read(lambda tx: tx.deliveries.due(now, limit))]

        assert due(START + 60) == ["first", "second", "late", "edge"]
        assert due(START + 59) == ["first", "second", "late"]
        assert due(START + 60, limit=2) == ["first", "second"]
        assert due(START + 9) == []
        assert store.read(lambda tx: tx.deliveries.first_due(START + 60)) == START + 10
        assert store.read(lambda tx: tx.deliveries.first_due(START + 9)) is None

    def test_a_row_that_commits_late_below_the_mark_is_still_due(self, store: Store) -> None:
        add(store, new("early", due_at=START - 50), new("later", due_at=START - 10))

        def a_pass(tx: Tx) -> int:
            page = tx.deliveries.due(START, 99)
            tx.deliveries.move([along(row, Event.PUBLISHED) for row in page])
            return len(page)

        assert store.write(a_pass).result() == 2
        assert store.write(a_pass).result() == 0
        add(store, new("late", due_at=START - 40))
        assert store.write(a_pass).result() == 1

    def test_an_examined_row_leaves_the_head_of_the_line(self, store: Store) -> None:
        """Published, ended or deferred: nothing starves behind rows that cannot go."""
        add(
            store, *(new(f"held{n}", due_at=START - 100 + n) for n in range(5)), new("free", due_at=START - 1)
        )

        def a_pass(tx: Tx) -> list[str]:
            page = tx.deliveries.due(START, 5)
            tx.deliveries.defer([(row, START + HOUR) for row in page])
            return [row.key.split(":")[0] for row in page]

        assert store.write(a_pass).result() == [f"held{n}" for n in range(5)]
        assert store.write(a_pass).result() == ["free"]
        assert store.write(a_pass).result() == []

    def test_defer_leaves_ready_and_changed_rows_alone_and_writes_no_entry(self, store: Store) -> None:
        scheduled, ready, waiting, stale = add(store, new("s"), new("r"), new("w"), new("x"))
        ready = lead(store, ready, PUBLISHED)
        waiting = lead(store, waiting, PUBLISHED, next_at=START + 50)
        lead(store, stale, ((Event.DEFERRED, Facts()),), next_at=START + 7)
        later = START + HOUR

        def unit(tx: Tx) -> None:
            tx.deliveries.defer([(row, later) for row in (scheduled, ready, waiting, stale)])

        store.write(unit).result()
        rows = store.read(lambda tx: tx.deliveries.by_ids([scheduled.id, ready.id, waiting.id, stale.id]))
        assert [row.course.next_at for row in rows] == [later, ready.course.next_at, later, START + 7]
        assert [row.seq for row in rows] == [1, 2, 2, 2]

    def test_ready_is_in_fair_order_of_one_kind_and_account(self, store: Store) -> None:
        def queued(name: str, **course: int | str) -> int:
            (row,) = add(store, new(name))
            return lead(store, row, PUBLISHED, **course).id

        third = queued("third", tag=30)
        queued("other account", tag=1, account="b")
        first = queued("first", tag=-5)
        queued("waiting", tag=0, next_at=START + 1)
        second = queued("second", tag=20)
        second_too = queued("second too", tag=20)
        failed = queued("failed", tag=40, failures=1)
        (row,) = add(store, new("maybe"))
        maybe = lead(store, row, (*CLAIMED, (Event.UNKNOWN, Facts(key_alive=True))), tag=35, attempts=1).id
        (row,) = add(store, new("doubted, and never tried"))
        doubted = lead(store, row, (*PUBLISHED, (Event.DOUBTED, Facts(key_alive=True))), tag=-9).id

        def line(limit: int, *, retries: bool) -> list[int]:
            rows = store.read(lambda tx: tx.deliveries.ready("acc", retries=retries, limit=limit))
            return [row.id for row in rows]

        assert line(99, retries=False) == [doubted, first, second, second_too, third]
        assert line(3, retries=False) == [doubted, first, second]
        assert line(99, retries=True) == [maybe, failed]

    def test_wake_makes_ready_whose_time_has_come_in_one_account(
        self, store: Store, clock: VirtualClock
    ) -> None:
        def waiting(name: str, next_at: int, **course: int | str) -> int:
            (row,) = add(store, new(name))
            return lead(store, row, PUBLISHED, next_at=next_at, **course).id

        edge = waiting("edge", START + 100)
        past = waiting("past", START + 50, failures=2)
        later = waiting("later", START + 101)
        other = waiting("other", START + 10, account="b")

        def ready(account: str) -> list[int]:
            return store.read(
                lambda tx: [
                    row.id
                    for retries in (False, True)
                    for row in tx.deliveries.ready(account, retries=retries, limit=99)
                ]
            )

        assert ready("acc") == []
        assert store.read(lambda tx: tx.deliveries.next_wake("acc")) == START + 50
        store.write(lambda tx: tx.deliveries.wake("acc", START + 100)).result()
        assert ready("acc") == [edge, past]
        assert ready("b") == []
        assert store.read(lambda tx: tx.deliveries.next_wake("acc")) == START + 101
        store.write(lambda tx: tx.deliveries.wake("acc", START + 101)).result()
        assert ready("acc") == [edge, later, past]
        assert store.read(lambda tx: tx.deliveries.next_wake("acc")) is None
        assert store.read(lambda tx: tx.deliveries.next_wake("b")) == START + 10
        assert store.read(lambda tx: tx.deliveries.next_wake("unknown")) is None
        assert look(store, other).seq == 2

    def test_expired_is_at_or_past_the_expiry_earliest_first(self, store: Store) -> None:
        a, b, c, d = add(
            store,
            new("a", expires_at=START + 30),
            new("b", expires_at=START + 10),
            new("c", expires_at=START + 31),
            new("d", expires_at=START + 20),
        )
        lead(store, b, PUBLISHED, next_at=START + HOUR)
        lead(store, d, CLAIMED)

        def expired(now: int, limit: int = 99) -> list[int]:
            return [row.id for row in store.read(lambda tx: tx.deliveries.expired(now, limit))]

        assert expired(START + 30) == [b.id, a.id]
        assert expired(START + 30, limit=1) == [b.id]
        assert expired(START + 29) == [b.id]
        assert expired(START + 31) == [b.id, a.id, c.id]

    def test_attention_comes_in_order_of_next_at(self, store: Store) -> None:
        rows = add(store, new("a"), new("b"), new("c"))
        for row, next_at in zip(rows, (START + 30, START + 10, START + 31), strict=True):
            lead(store, row, WAY_TO[State.UNCERTAIN], next_at=next_at)

        def seen(now: int, limit: int = 99) -> list[int]:
            return [row.id for row in store.read(lambda tx: tx.deliveries.attention("UNCERTAIN", now, limit))]

        assert seen(START + 30) == [rows[1].id, rows[0].id]
        assert seen(START + 30, limit=1) == [rows[1].id]
        assert seen(START + 9) == []

    def test_unpause_wakes_what_this_pause_put_off(self, store: Store, clock: VirtualClock) -> None:
        def put_off(name: str, reason: str, next_at: int, *, queued: bool = False, **fields: str) -> int:
            (row,) = add(store, new(name, due_at=START - 5, **fields))
            way = (*PUBLISHED, (Event.DEFERRED, Facts())) if queued else ((Event.DEFERRED, Facts()),)
            return lead(store, row, way, next_at=next_at, reason=reason).id

        near, far = START + HOUR, START + 2 * HOUR
        scheduled = put_off("scheduled", "paused:group", near, group="g")
        queued = put_off("queued", "paused:group", near, queued=True, group="g")
        put_off("later", "paused:group", far, group="g")
        put_off("another group", "paused:group", near, group="h")
        put_off("night", "quiet_hours", near, group="g")
        channel = put_off("channel", "paused:channel", near, group="g")

        def unpause(scope: str, name: str, limit: int = 9) -> int:
            return store.write(
                lambda tx: tx.deliveries.unpause(scope, name, ["acc", "b"], near, limit)
            ).result()

        def moved() -> set[int]:
            return {int(row["id"]) for row in store.read(_all_rows) if row["next_at"] == START}

        assert unpause("group", "t/nobody") == 0
        assert moved() == set()
        assert unpause("group", "t/g") == 2
        assert moved() == {scheduled, queued}
        assert unpause("group", "t/g") == 0
        assert unpause("channel", "email") == 1
        assert moved() == {scheduled, queued, channel}

    # Deliveries: moving.

    def test_a_move_is_a_compare_and_set_on_state_epoch_and_seq(self, store: Store) -> None:
        (old,) = add(store, new("a"))
        fresh = lead(store, old, PUBLISHED)
        stale = [
            old,  # state and seq
            replace(fresh, standing=replace(fresh.standing, epoch=fresh.standing.epoch + 1)),
            replace(fresh, standing=replace(fresh.standing, epoch=fresh.standing.epoch - 1)),
            replace(fresh, standing=replace(fresh.standing, state=State.SENDING)),
            replace(fresh, seq=fresh.seq + 1),
            replace(fresh, seq=fresh.seq - 1),
            replace(fresh, id=fresh.id + 1_000),
        ]
        moves = [Move(row, Event.ACCEPTED, Standing(State.ACCEPTED), row.course, "test") for row in stale]
        assert store.write(lambda tx: tx.deliveries.move(moves)).result() == [False] * len(moves)
        assert look(store, fresh.id) == fresh
        assert store.read(lambda tx: len(entries(tx, fresh.id))) == 2

    def test_of_two_moves_of_one_row_the_first_wins_and_the_second_leaves_no_entry(
        self, store: Store
    ) -> None:
        a, b = add(store, new("a"), new("b"))
        moves = [along(a, Event.PUBLISHED), along(a, Event.CANCELLED), along(b, Event.PUBLISHED)]
        assert store.write(lambda tx: tx.deliveries.move(moves)).result() == [True, False, True]
        assert look(store, a.id).standing.state is State.QUEUED
        assert store.read(lambda tx: [e["event"] for e in entries(tx, a.id)]) == ["scheduled", "published"]

    def test_what_a_row_is_after_a_move_is_what_is_read_then(self, store: Store) -> None:
        a, b, c, d = add(store, new("a"), new("b", group="g"), new("c"), new("d"))
        lead(store, c, PUBLISHED)
        revised = replace(
            along(b, Event.REVISED, due_at=START + 77),
            address_tag="new",
            category="payment",
            group="h",
            priority=3,
        )
        moves = [
            along(a, Event.PUBLISHED),
            revised,
            along(c, Event.PUBLISHED),  # it was read before it moved
            along(d, Event.CANCELLED),
        ]
        after = store.write(lambda tx: tx.deliveries.advance(moves)).result()
        assert after == [look(store, a.id), look(store, b.id), None, look(store, d.id)]
        row = after[0]
        assert row is not None
        assert store.write(lambda tx: tx.deliveries.move([along(row, Event.CLAIMED)])).result() == [True]

    def test_what_a_ledger_ever_said_of_doubt_is_found_for_each(self, store: Store) -> None:
        plain, unsure, cleared = add(store, new("plain"), new("unsure"), new("cleared"))
        lead(store, plain, CLAIMED)
        lead(store, unsure, UNCERTAIN)
        known = (Event.UNKNOWN, Facts(lookup=True)), (Event.ABSENT, Facts(settled=True))
        assert not lead(store, cleared, (*CLAIMED, *known)).standing.maybe
        ids = [cleared.id, plain.id, unsure.id, plain.id]
        for asked in (store.read, lambda unit: store.write(unit).result()):
            assert asked(lambda tx: tx.deliveries.doubts(ids)) == {
                plain.id: frozenset(),
                unsure.id: {"unknown"},
                cleared.id: {"unknown"},
            }
        assert store.read(lambda tx: tx.deliveries.doubts([])) == {}

    def test_threads_that_race_for_one_row_get_it_once(self, store: Store) -> None:
        (row,) = add(store, new("a"))
        row = lead(store, row, PUBLISHED)
        claims = [lambda tx: tx.deliveries.move([along(row, Event.CLAIMED)])[0]] * 20
        assert sorted(future.result() for future in in_threads(store, claims)) == [False] * 19 + [True]

    def test_a_move_writes_all_of_standing_and_course(self, store: Store) -> None:
        (row,) = add(store, new("a"))
        standing = Standing(State.UNCERTAIN, 5, 3, maybe=True, permit=True, ending=Ending.OPT_OUT)
        course = Course(
            due_at=row.course.due_at,
            next_at=START + 2,
            expires_at=START + 3,
            account="acc",
            tag=-(2**62),
            cost=4,
            attempts=5,
            failures=6,
            throttles=7,
            first_try=START + 8,
            last_try=START + 9,
            receipt="r",
            reason="why",
        )
        details: dict[str, Value] = {
            "code": "é\x7f",
            "number": 2**53 + 1,
            "empty": "",
            "none": None,
            "yes": True,
        }
        move = Move(row, Event.UNKNOWN, standing, course, "worker:w", details)
        assert store.write(lambda tx: tx.deliveries.move([move])).result() == [True]
        after = look(store, row.id)
        assert (after.standing, after.course, after.seq) == (standing, course, 2)
        assert after.head != row.head

    def test_a_revision_may_change_what_it_is_about_and_other_moves_may_not(self, store: Store) -> None:
        (row,) = add(store, new("a", group="g"))
        revised = replace(
            along(row, Event.REVISED, due_at=START + 77),
            address_tag="new",
            category="payment",
            group="h",
            priority=3,
        )
        assert store.write(lambda tx: tx.deliveries.move([revised])).result() == [True]
        after = look(store, row.id)
        assert (after.address_tag, after.category, after.group, after.priority) == ("new", "payment", "h", 3)
        assert after.course.due_at == START + 77
        last = lead(store, after, PUBLISHED)
        assert (last.address_tag, last.category, last.group, last.priority) == ("new", "payment", "h", 3)
        assert last.course.due_at == START + 77

    def test_a_note_moves_nothing_and_advances_the_ledger(self, store: Store) -> None:
        (row,) = add(store, new("a"))
        done = lead(store, row, WAY_TO[State.ACCEPTED])
        note = Move(done, Event.DUPLICATE_OBSERVED, done.standing, done.course, "worker:w", {"hint": "m-1"})
        assert store.write(lambda tx: tx.deliveries.note([note])).result() == [True]
        after = look(store, row.id)
        assert after == replace(done, seq=done.seq + 1, head=after.head)
        assert after.head != done.head
        assert store.write(lambda tx: tx.deliveries.note([note])).result() == [False]
        assert look(store, row.id) == after

    # Reminders, content, templates.

    def test_reminders_are_found_in_the_order_asked_for(self, store: Store) -> None:
        given = [asked("b"), asked("a", group="g", data='{"x":1}'), asked("a", customer="c2")]
        ids = store.write(lambda tx: tx.reminders.insert(given)).result()
        keys = [("t", "a", "c"), ("t", "zz", "c"), ("t", "b", "c"), ("other", "a", "c")]
        first, missing, second, other = store.read(lambda tx: tx.reminders.find(keys))
        assert first == replace(given[1], id=ids[1])
        assert second == replace(given[0], id=ids[0])
        assert missing is None
        assert other is None
        assert store.read(lambda tx: set(tx.reminders.by_ids([ids[2], ids[0], 9_999]))) == {ids[2], ids[0]}

    def test_a_revision_keeps_what_was_said_before(self, store: Store) -> None:
        run = store.write(lambda tx: tx.runs.begin_import("t", "crm", "f.csv", "test")).result()
        ids = store.write(lambda tx: tx.reminders.insert([asked("a"), asked("b"), asked("c")])).result()
        first = store.read(lambda tx: tx.reminders.by_ids([ids[0]]))[ids[0]]
        other = store.read(lambda tx: tx.reminders.by_ids([ids[1]]))[ids[1]]
        second = replace(first, data='{"n":2}', due_at=START + 9, group="g", import_id=run, spec_hash="h2")
        third = replace(second, data='{"n":3}', recipients={"sms": {"to": "+12025550100"}})
        store.write(lambda tx: tx.reminders.revise([second])).result()
        store.write(lambda tx: tx.reminders.revise([third, replace(other, import_id=run)])).result()
        assert store.read(lambda tx: tx.reminders.by_ids([ids[0]])) == {ids[0]: replace(third, version=3)}

        def kept(limit: int, after: int) -> list[Reminder]:
            return store.read(lambda tx: tx.reminders.revisions(run, limit, after))

        assert kept(99, 0) == [first, replace(second, version=2), other]
        assert kept(99, ids[0]) == [other]
        assert store.read(lambda tx: tx.reminders.revisions(run + 1, 99, 0)) == []

    def test_touch_notes_the_import_and_nothing_else(self, store: Store) -> None:
        ids = store.write(lambda tx: tx.reminders.insert([asked("a"), asked("b")])).result()
        before = store.read(lambda tx: tx.reminders.by_ids(ids))
        store.write(lambda tx: tx.reminders.touch([ids[1]], 5)).result()
        after = store.read(lambda tx: tx.reminders.by_ids(ids))
        assert after == {ids[0]: before[ids[0]], ids[1]: replace(before[ids[1]], import_id=5)}

    def test_reschedule_moves_the_expiry_along(self, store: Store) -> None:
        ids = store.write(lambda tx: tx.reminders.insert([asked("a"), asked("b")])).result()
        before = store.read(lambda tx: tx.reminders.by_ids(ids))
        store.write(lambda tx: tx.reminders.reschedule({ids[0]: before[ids[0]].due_at - HOUR})).result()
        moved = before[ids[0]]
        moved = replace(moved, due_at=moved.due_at - HOUR, expires_at=moved.expires_at - HOUR)
        assert store.read(lambda tx: tx.reminders.by_ids(ids)) == {**before, ids[0]: moved}

    def test_content_is_kept_by_version_and_replaced_by_the_same(self, store: Store) -> None:
        contents = [content(1, 1, "one"), content(1, 2, "two"), content(2, 1, "other")]
        store.write(lambda tx: tx.contents.put(contents)).result()
        store.write(lambda tx: tx.contents.put([content(1, 2, "two again")])).result()

        def get(*keys: tuple[int, int]) -> dict[int, str]:
            found = store.read(lambda tx: tx.contents.get(keys))
            return {id_: one.payload for id_, one in found.items()}

        assert get((1, 2), (2, 1), (3, 1)) == {1: "two again", 2: "other"}
        assert get((1, 1)) == {1: "one"}
        assert store.read(lambda tx: tx.contents.get([(2, 1)]))[2] == contents[2]

    def test_templates_have_versions_of_all_channels(self, store: Store) -> None:
        given = [
            template("pay", 1, Channel.EMAIL),
            template("pay", 1, Channel.SMS),
            template("pay", 2, Channel.SMS),
            template("ship", 9, Channel.EMAIL),
            replace(template("pay", 7, Channel.EMAIL), tenant="other"),
        ]
        store.write(lambda tx: tx.templates.put(given)).result()
        assert store.read(lambda tx: tx.templates.newest("t", "pay")) == [given[2]]
        assert store.read(lambda tx: tx.templates.version("t", "pay", 1)) == given[:2]
        assert store.read(lambda tx: tx.templates.newest("t", "nothing")) == []
        assert store.read(lambda tx: tx.templates.version("t", "pay", 3)) == []

    def test_a_template_version_is_immutable(self, store: Store) -> None:
        store.write(lambda tx: tx.templates.put([template("pay", 1, Channel.SMS)])).result()
        again = replace(template("pay", 1, Channel.SMS), text="changed")
        assert store.write(lambda tx: tx.templates.put([again])).exception() is not None
        assert store.read(lambda tx: tx.templates.newest("t", "pay"))[0].text != "changed"

    # Calls and processes.

    def test_calls_are_counted_by_account_until_they_are_closed(self, store: Store) -> None:
        calls = [call(1, 1), call(1, 2), call(2, 1), call(3, 1, account="b")]
        store.write(lambda tx: tx.calls.open(calls)).result()
        assert store.read(lambda tx: (tx.calls.count("acc"), tx.calls.count("b"), tx.calls.count("x"))) == (
            3, 1, 0,
        )  # fmt: skip
        store.write(
            lambda tx: tx.calls.close([("acc", START, 1, 2), ("acc", START, 2, 7), ("b", START, 1, 1)])
        ).result()
        assert store.read(lambda tx: (tx.calls.count("acc"), tx.calls.count("b"))) == (2, 1)
        again = [("acc", START, 1, 1), ("acc", START, 2, 1), ("acc", START, 1, 1), ("b", START - 1, 3, 1)]
        store.write(lambda tx: tx.calls.close(again)).result()
        assert store.read(lambda tx: (tx.calls.count("acc"), tx.calls.count("b"))) == (0, 1)

    def test_calls_are_counted_from_an_instant_on(self, store: Store) -> None:
        calls = [replace(call(number, 1), claimed_at=START + number) for number in range(1, 4)]
        store.write(lambda tx: tx.calls.open(calls)).result()

        def since(claimed_at: int) -> tuple[int, int | None]:
            return store.read(lambda tx: tx.calls.since("acc", claimed_at))

        assert since(0) == (3, START + 1)
        assert since(START + 2) == (2, START + 2)
        assert since(START + 4) == (0, None)

    def test_overdue_calls_tell_a_gone_process_from_a_slow_one(self, store: Store) -> None:
        steady = store.steady()
        processes = [
            process("living", steady + HOUR),
            process("dead", steady),
            replace(process("stopped", steady + HOUR), stopped=True),
        ]
        calls = [
            call(5, 1, process="living", send_deadline=steady + 1),
            call(4, 1, process="living", send_deadline=steady),
            call(3, 1, process="dead", send_deadline=steady + HOUR),
            call(2, 1, process="stopped", send_deadline=steady + HOUR),
            call(1, 1, process="never heard of", send_deadline=steady + HOUR),
        ]

        def unit(tx: Tx) -> None:
            for one in processes:
                tx.processes.beat(one)
            tx.calls.open(calls)

        store.write(unit).result()

        def overdue(at: int, limit: int = 99) -> list[tuple[int, bool]]:
            lost = store.read(lambda tx: tx.calls.overdue(at, limit))
            return [(one.call.delivery_id, one.gone) for one in lost]

        assert overdue(steady) == [(1, True), (2, True), (3, True), (4, False)]
        assert overdue(steady, limit=2) == [(1, True), (2, True)]
        assert overdue(steady - 1) == [(1, True), (2, True)]
        assert overdue(steady + HOUR) == [(1, True), (2, True), (3, True), (4, True), (5, True)]
        lost = store.read(lambda tx: tx.calls.overdue(steady, 99))
        assert lost[2].call == calls[2]
        assert lost[2].gone_since == steady

    def test_a_process_beats_dies_and_stops(self, store: Store) -> None:
        steady = store.steady()
        first, second = process("one", steady + 10), process("two", steady + 20)

        def beat(*processes: Process) -> None:
            for one in processes:
                store.write(lambda tx, one=one: tx.processes.beat(one)).result()  # type: ignore[misc]

        def dead(at: int) -> list[str]:
            return sorted(one.id for one in store.read(lambda tx: tx.processes.dead(at)))

        beat(first, second)
        assert dead(steady + 9) == []
        assert dead(steady + 10) == ["one"]
        assert dead(steady + 20) == ["one", "two"]
        beat(replace(first, lease_until=steady + 30))
        assert dead(steady + 20) == ["two"]
        store.write(lambda tx: tx.processes.mark_stopped(["two"])).result()
        assert dead(steady + 40) == ["one"]
        assert store.read(lambda tx: tx.processes.dead(steady + 40)) == [
            replace(first, lease_until=steady + 30)
        ]

    def test_ended_processes_of_long_ago_are_forgotten_and_nobody_else(
        self, store: Store, clock: VirtualClock
    ) -> None:
        lease = store.steady() + 3_000 * HOUR
        kept = [
            replace(process("alive", lease), beat_at=START - 9),
            replace(process("young", lease), beat_at=START, stopped=True),
            replace(process("calling", lease), beat_at=START - 8, stopped=True),
        ]
        lost = [
            replace(process(f"ended-{number}", lease), beat_at=START - number, stopped=True)
            for number in (3, 1, 2)
        ]
        gone = replace(process("gone", store.steady()), beat_at=START - 4)

        def unit(tx: Tx) -> None:
            for one in (*kept, *lost, gone):
                tx.processes.beat(one)
            tx.calls.open([call(7, 1, process="calling")])

        store.write(unit).result()
        assert store.write(lambda tx: tx.processes.forget(START, 2)).result() == 2
        names = {
            row["id"] for row in store.read(lambda tx: tx.rows("view_processes", since=0, steady=0, limit=9))
        }
        assert names == {"alive", "young", "calling", "ended-1", "ended-2"}
        assert store.write(lambda tx: tx.processes.forget(START, 9)).result() == 2
        assert store.write(lambda tx: tx.processes.forget(START, 9)).result() == 0
        store.write(lambda tx: tx.calls.close([("acc", START, 7, 1)])).result()
        assert store.write(lambda tx: tx.processes.forget(START, 9)).result() == 1

    def test_one_process_leads_until_its_lease_is_over_or_it_resigns(
        self, store: Store, clock: VirtualClock
    ) -> None:
        begin = store.steady()

        def leads(name: str, until: int, role: str = "scheduler") -> bool:
            return store.write(lambda tx: tx.processes.lead(role, name, begin + until * SECOND)).result()

        def resign(name: str) -> None:
            store.write(lambda tx: tx.processes.resign("scheduler", name)).result()

        assert leads("one", 10)
        assert not leads("two", 99)
        assert leads("two", 99, role="other")
        assert leads("one", 20)
        clock.advance(19)
        assert not leads("two", 99)
        clock.advance(1)
        assert leads("two", 50)
        assert not leads("one", 99)
        resign("one")  # it does not lead any more
        assert not leads("one", 99)
        resign("two")
        assert leads("one", 99)

    def test_threads_that_ask_for_the_lead_get_it_once(self, store: Store) -> None:
        until = store.steady() + HOUR
        asked = [lambda tx, n=n: tx.processes.lead("scheduler", f"p-{n}", until) for n in range(20)]
        assert sorted(future.result() for future in in_threads(store, asked)) == [False] * 19 + [True]

    # Gates.

    def test_there_is_no_gate_before_it_is_seeded(self, store: Store) -> None:
        assert store.write(lambda tx: tx.gates.lock("acc")).result() is None
        store.write(lambda tx: tx.gates.seed("acc", LIMITS)).result()
        gate = store.write(lambda tx: tx.gates.lock("acc")).result()
        assert gate is not None
        assert gate.limits == LIMITS
        assert store.write(lambda tx: tx.gates.lock("b")).result() is None

    def test_a_gate_comes_back_as_it_was_saved(self, store: Store) -> None:
        def unit(tx: Tx) -> tuple[Gate, Gate | None]:
            tx.gates.seed("acc", LIMITS)
            gate = tx.gates.lock("acc")
            assert gate is not None
            changed = replace(
                gate,
                limits=replace(LIMITS, lanes=2, jitter_us=9),
                tats=(START + 1,),
                usage=(((START, 3), (START + HOUR, 4)),),
                closed_until=START + 2,
                closed_why="throttled",
                paused_until=START + 3,
                probing=True,
                pace=0.343,
                lane_pace=0.7,
                paced_at=START + 4,
                stepped_at=START + 5,
                streak=6,
                throttles=7,
                retry_credit=1.25,
                credited_at=START + 8,
                vtime=2**61,
            )
            tx.gates.save(changed)
            return changed, tx.gates.lock("acc")

        saved, read = store.write(unit).result()
        assert read is not None
        assert read == replace(saved, version=read.version)
        assert read.version > saved.version
        store.write(lambda tx: tx.gates.seed("a", LIMITS)).result()
        assert [gate.account for gate in store.read(lambda tx: tx.gates.all())] == ["a", "acc"]
        assert store.read(lambda tx: tx.gates.all())[1] == read

    def test_a_gate_that_changed_meanwhile_is_not_saved(self, store: Store) -> None:
        store.write(lambda tx: tx.gates.seed("acc", LIMITS)).result()
        old = store.write(lambda tx: tx.gates.lock("acc")).result()
        assert old is not None
        store.write(lambda tx: tx.gates.save(replace(old, vtime=1))).result()

        def unit(tx: Tx) -> None:
            tx.set_meta("beside", "it")
            tx.gates.save(replace(old, vtime=2))

        assert isinstance(store.write(unit).exception(), StoreUnavailable)
        gate = store.write(lambda tx: tx.gates.lock("acc")).result()
        assert gate is not None
        assert gate.vtime == 1
        assert store.read(lambda tx: tx.meta("beside")) is None

    def test_a_changed_limit_wins_until_the_configuration_changes(self, store: Store) -> None:
        def seed(limits: GateLimits) -> GateLimits:
            def unit(tx: Tx) -> GateLimits:
                tx.gates.seed("acc", limits)
                gate = tx.gates.lock("acc")
                assert gate is not None
                return gate.limits

            return store.write(unit).result()

        def change(limits: GateLimits) -> None:
            def unit(tx: Tx) -> None:
                gate = tx.gates.lock("acc")
                assert gate is not None
                tx.gates.save(replace(gate, limits=limits, vtime=5))

            store.write(unit).result()

        by_hand = replace(LIMITS, lanes=1)
        newer = replace(LIMITS, lanes=9)
        assert seed(LIMITS) == LIMITS
        change(by_hand)
        assert seed(LIMITS) == by_hand  # a restart with the same configuration
        assert seed(newer) == newer  # the configuration has changed
        assert seed(newer) == newer
        change(by_hand)
        assert seed(newer) == by_hand
        assert seed(LIMITS) == LIMITS
        gate = store.write(lambda tx: tx.gates.lock("acc")).result()
        assert gate is not None
        assert gate.vtime == 5  # seeding changes limits and nothing else

    def test_a_gate_is_made_once_and_says_what_was_configured(self, store: Store) -> None:
        newer = replace(LIMITS, lanes=9)

        def unit(tx: Tx) -> list[bool]:
            made = [tx.gates.create("acc", LIMITS), tx.gates.create("acc", newer)]
            return [
                *made,
                tx.gates.seed("acc", LIMITS),
                tx.gates.seed("acc", newer),
                tx.gates.seed("b", newer),
            ]

        assert store.write(unit).result() == [True, False, False, True, True]
        assert store.read(lambda tx: tx.gates.configured()) == {"acc": newer, "b": newer}

    def test_flows_keep_their_tags_and_old_ones_are_forgotten(self, store: Store) -> None:
        store.write(lambda tx: tx.gates.save_flows("acc", {"a": 10, "b": 20, "c": 30}, 0)).result()
        store.write(lambda tx: tx.gates.save_flows("x", {"a": 5}, 0)).result()
        store.write(lambda tx: tx.gates.save_flows("acc", {"b": 25, "d": 20}, 20)).result()
        wanted = ["a", "b", "c", "d", "e", "b"]
        assert store.read(lambda tx: tx.gates.flows("acc", wanted)) == {"b": 25, "c": 30, "d": 20}
        assert store.read(lambda tx: tx.gates.flows("x", ["a"])) == {"a": 5}

    # Preferences.

    def test_of_one_kind_and_category_the_newest_record_wins(self, store: Store) -> None:
        def put(*records: Mapping[str, int | str]) -> int:
            return store.write(lambda tx: tx.preferences.put(records)).result()

        assert put(record(Kind.OPT_OUT, "*", 10, "page"), record(Kind.OPT_IN, "*", 5, "form")) == 2
        assert put(record(Kind.OPT_OUT, "*", 9, "older")) == 0
        assert put(record(Kind.OPT_OUT, "*", 10, "same instant")) == 0
        assert put(record(Kind.OPT_OUT, "*", 11, "newer"), record(Kind.OPT_OUT, "pay", 1, "page")) == 2
        assert put({**record(Kind.OPT_OUT, "*", 1, "theirs"), "tenant": "other"}) == 1
        keys = [("t", "email", "ann"), ("t", "sms", "ann"), ("t", "email", "bob"), ("other", "email", "ann")]
        found = store.read(lambda tx: tx.preferences.of(keys))
        assert set(found) == {keys[0], keys[3]}
        assert set(found[keys[0]]) == {
            Preference(Kind.OPT_OUT, "*", 11, "newer"),
            Preference(Kind.OPT_IN, "*", 5, "form"),
            Preference(Kind.OPT_OUT, "pay", 1, "page"),
        }

    def test_a_removed_record_is_gone_and_no_other(self, store: Store) -> None:
        records = [record(Kind.SUPPRESSED, "*", 1, "bounce"), record(Kind.OPT_OUT, "*", 2, "page")]
        store.write(lambda tx: tx.preferences.put(records)).result()

        def remove(kind: Kind) -> int:
            return store.write(
                lambda tx: tx.preferences.remove("t", "email", "ann", "*", kind.value)
            ).result()

        assert remove(Kind.SUPPRESSED) == 1
        assert remove(Kind.SUPPRESSED) == 0
        key = ("t", "email", "ann")
        assert store.read(lambda tx: tx.preferences.of([key])) == {
            key: [Preference(Kind.OPT_OUT, "*", 2, "page")]
        }

    # Runs, pauses, the outbox.

    def test_passes_are_kept_as_history(self, store: Store, clock: VirtualClock) -> None:
        first = store.write(lambda tx: tx.runs.begin_pass("timer", "p1", 100)).result()
        second = store.write(lambda tx: tx.runs.begin_pass("cron", "p2", 100)).result()
        clock.advance(2.0)
        store.write(lambda tx: tx.runs.finish_pass(first, 150, {"published": 3}, complete=True)).result()
        rows = store.read(lambda tx: tx.rows("view_passes", limit=9))
        assert [row["id"] for row in rows] == [second, first]
        done, running = rows[1], rows[0]
        assert (done["trigger"], done["mark_before"], done["mark_after"], done["complete"]) == (
            "timer", 100, 150, 1,
        )  # fmt: skip
        assert (done["started_at"], done["finished_at"]) == (START, START + 2 * SECOND)
        assert done["counts"] == '{"published":3}'
        assert (running["finished_at"], running["complete"]) == (0, 0)

    def test_passes_of_long_ago_are_forgotten_oldest_first(self, store: Store, clock: VirtualClock) -> None:
        for _ in range(5):
            store.write(lambda tx: tx.runs.begin_pass("timer", "p", 0)).result()
            clock.advance(1.0)
        numbers = [int(row["id"]) for row in store.read(lambda tx: tx.rows("view_passes", limit=9))][::-1]
        before = START + 3 * SECOND
        assert store.write(lambda tx: tx.runs.forget_passes(before, 2)).result() == 2
        left = [row["id"] for row in store.read(lambda tx: tx.rows("view_passes", limit=9))]
        assert left == [numbers[4], numbers[3], numbers[2]]
        assert store.write(lambda tx: tx.runs.forget_passes(before, 2)).result() == 1
        assert store.write(lambda tx: tx.runs.forget_passes(before, 2)).result() == 0

    def test_what_people_changed_is_kept_in_order(self, store: Store, clock: VirtualClock) -> None:
        body: dict[str, Value] = {"before": "14/s", "after": "20/s", "lanes": 4}

        def failed(tx: Tx) -> float:
            tx.runs.audit("operator:eve", "resume", "sms", "undone", {})
            return 1 / 0

        def page(before: int) -> list[Row]:
            return store.read(lambda tx: tx.rows("view_audit", before=before, limit=9))

        store.write(lambda tx: tx.runs.audit("operator:ann", "pause", "sms", "prices", {})).result()
        clock.advance(2.0)
        store.write(lambda tx: tx.runs.audit("api:x", "limits", "mail", 'said "yes"', body)).result()
        assert isinstance(store.write(failed).exception(), ZeroDivisionError)
        names = ("at", "actor", "action", "target", "reason", "body")
        newest, oldest = page(2**62)
        assert [newest[name] for name in names] == [
            START + 2 * SECOND, "api:x", "limits", "mail", 'said "yes"',
            '{"after":"20/s","before":"14/s","lanes":4}',
        ]  # fmt: skip
        assert [oldest[name] for name in names] == [START, "operator:ann", "pause", "sms", "prices", "{}"]
        assert page(int(newest["id"])) == [oldest]

    def test_imports_are_kept_and_undone_once(self, store: Store, clock: VirtualClock) -> None:
        first = store.write(lambda tx: tx.runs.begin_import("t", "crm", "f.csv", "ann")).result()
        second = store.write(lambda tx: tx.runs.begin_import("t", "", "g.csv", "bob")).result()
        store.write(lambda tx: tx.runs.finish_import(first, {"accepted": 2})).result()
        clock.advance(1.0)
        store.write(lambda tx: tx.runs.undo_import(first)).result()
        clock.advance(1.0)
        store.write(lambda tx: tx.runs.undo_import(first)).result()
        (row,) = store.read(lambda tx: tx.rows("import_get", id=first))
        assert (row["file"], row["counts"], row["undone_at"]) == ("f.csv", '{"accepted":2}', START + SECOND)
        (row,) = store.read(lambda tx: tx.rows("import_get", id=second))
        assert (row["source"], row["finished_at"], row["undone_at"]) == ("", 0, 0)

    def test_a_pause_is_replaced_and_lifted(self, store: Store) -> None:
        pauses = [
            Pause("channel", "sms", START + 5, "provider down", "ann", START),
            Pause("group", "sms", START + 6, "audit", "bob", START),
        ]
        longer = replace(pauses[0], until=START + 50)

        def unit(tx: Tx) -> None:
            for pause in (*pauses, longer):
                tx.runs.pause(pause)

        store.write(unit).result()
        kept = store.read(lambda tx: tx.runs.pauses())
        assert sorted(kept, key=lambda pause: pause.scope) == [longer, pauses[1]]
        assert store.write(lambda tx: tx.runs.resume("channel", "sms")).result() == 1
        assert store.write(lambda tx: tx.runs.resume("channel", "sms")).result() == 0
        assert store.read(lambda tx: tx.runs.pauses()) == [pauses[1]]

    def test_the_outbox_keeps_a_hint_until_it_is_taken(self, store: Store) -> None:
        mail, late, soon = Outgoing(3, 1, "mail", 7), Outgoing(1, 2, "text", 9), Outgoing(2, 1, "text", 5)
        store.write(lambda tx: tx.hint([mail, late, soon])).result()
        store.write(lambda tx: tx.hint([mail])).result()
        assert store.read(lambda tx: tx.hints(9)) == [late, soon, mail]
        assert store.read(lambda tx: tx.hints(2)) == [late, soon]
        store.write(lambda tx: tx.hinted([(2, 1), (3, 2)])).result()
        assert store.read(lambda tx: tx.hints(9)) == [late, mail]

    def test_an_account_s_hints_leave_the_outbox_in_fair_order(self, store: Store) -> None:
        """Not in the order of publication: what is urgent, or of a small group, has a lower place."""
        hints = [Outgoing(number, 1, "text", 100 - number) for number in range(1, 6)]
        store.write(lambda tx: tx.hint([*hints, Outgoing(9, 1, "mail", 0)])).result()
        assert store.read(lambda tx: tx.hints(3, "text")) == hints[:1:-1]
        assert store.read(lambda tx: tx.hints(3, "nobody")) == []

    def test_what_is_ready_can_be_hinted_at_once(self, store: Store) -> None:
        """And what waits, what is another account's and what is hinted already is not, or not twice."""
        ready, other, waits = add(store, new("ready"), new("other"), new("waits"))
        lead(store, ready, PUBLISHED, account="text", tag=5)
        lead(store, other, PUBLISHED, account="mail")
        lead(store, waits, PUBLISHED, account="text", next_at=START + HOUR)
        for _ in range(2):
            store.write(lambda tx: tx.hint_ready("text", 9)).result()
            (hint,) = store.read(lambda tx: tx.hints(9))
            assert (hint.delivery_id, hint.account, hint.place) == (ready.id, "text", 5)

    def test_of_what_waits_some_is_woken_and_told_the_oldest_first(self, store: Store) -> None:
        rows = add(store, *(new(str(number)) for number in range(4)))
        for number, row in enumerate(rows):
            lead(store, row, PUBLISHED, account="text", next_at=START + 40 - 10 * number)

        def wake() -> list[int]:
            woken = store.write(lambda tx: tx.deliveries.wake_some("text", START + 30, 2)).result()
            return [row.id for row in woken]

        assert [wake(), wake(), wake()] == [[rows[2].id, rows[3].id], [rows[1].id], []]
        ready = store.read(lambda tx: tx.deliveries.ready("text", retries=False, limit=9))
        assert {row.id for row in ready} == {row.id for row in rows[1:]}

    # Seals.

    def test_entries_come_in_the_order_of_their_numbers(self, store: Store) -> None:
        assert store.read(lambda tx: (tx.seals.given(), tx.seals.entries(0, 99, 99))) == (0, [])
        rows = add(store, new("a"), new("b"), new("c"))
        found = store.read(lambda tx: tx.seals.entries(0, 99, 99))
        assert [(delivery_id, seq, head) for _, delivery_id, seq, head in found] == [
            (row.id, 1, row.head) for row in rows
        ]
        ids = [entry[0] for entry in found]
        assert ids == sorted(set(ids))
        assert store.read(lambda tx: tx.seals.given()) == ids[-1]
        assert store.read(lambda tx: tx.seals.entries(ids[0], ids[1], 99)) == found[1:2]
        assert store.read(lambda tx: tx.seals.entries(0, 99, 2)) == found[:2]
        assert json.loads(store.read(lambda tx: tx.seals.text_of(found[1])))["key"] == rows[1].key
        assert store.read(lambda tx: tx.seals.text_of((99, 1, 1, ""))) == ""

    def test_acts_come_in_the_order_of_their_numbers(self, store: Store) -> None:
        assert store.read(lambda tx: (tx.seals.acts.given(), tx.seals.acts.between(0, 99, 99))) == (0, [])
        for name in ("sms", "email", "slow"):
            store.write(partial(_paused, name)).result()
        found = store.read(lambda tx: tx.seals.acts.between(0, 99, 99))
        ids = [act[0] for act in found]
        assert [act[1:] for act in found] == [
            (START, "operator:ann", "pause", name, "prices", '{"until":0}')
            for name in ("sms", "email", "slow")
        ]
        assert ids == sorted(set(ids))
        assert store.read(lambda tx: tx.seals.acts.given()) == ids[-1]
        assert store.read(lambda tx: tx.seals.acts.between(ids[0], ids[1], 99)) == found[1:2]
        assert store.read(lambda tx: tx.seals.acts.between(0, 99, 2)) == found[:2]

    def test_nobody_writes_once_all_is_committed(self, store: Store) -> None:
        add(store, new("a"))
        store.write(partial(_paused, "sms")).result()
        assert store.read(lambda tx: (tx.seals.writers(), tx.seals.acts.writers())) == (
            frozenset(),
            frozenset(),
        )

    def test_blocks_come_back_as_they_were_and_no_number_twice(self, store: Store) -> None:
        assert store.read(lambda tx: (tx.seals.last(), tx.seals.page(0, 9))) == (None, [])
        blocks = [SealedBlock(n, f"header {n}", f"hash {n}", "s" * n, bytes(range(n))) for n in (1, 2, 3)]
        for block in blocks:
            store.write(partial(_append, block)).result()
        assert store.read(lambda tx: tx.seals.last()) == replace(blocks[2], leaves=b"")
        assert store.read(lambda tx: tx.seals.page(1, 9)) == blocks[1:]
        assert store.read(lambda tx: tx.seals.page(0, 2)) == blocks[:2]
        other = SealedBlock(2, "another", "", "", b"")
        assert store.write(partial(_append, other)).exception() is not None
        assert store.read(lambda tx: tx.seals.page(1, 1)) == blocks[1:2]

    # Taking away for good.

    def test_an_emptied_reminder_says_nothing_and_the_others_say_all(self, store: Store) -> None:
        ids = store.write(lambda tx: tx.reminders.insert([asked("a"), asked("b"), asked("c")])).result()
        given = store.read(lambda tx: tx.reminders.by_ids(ids))
        store.write(
            lambda tx: tx.reminders.revise([replace(one, import_id=7) for one in given.values()])
        ).result()
        texts = [content(1, 1, "one"), content(1, 2, "two"), content(2, 1, "other"), content(3, 1, "third")]
        store.write(lambda tx: tx.contents.put(texts)).result()
        assert store.write(lambda tx: tx.removals.empty([ids[0]], [1], erased=True)).result() == 2
        assert store.write(lambda tx: tx.removals.empty([ids[1]], [2], erased=False)).result() == 1
        after = store.read(lambda tx: tx.reminders.by_ids(ids))
        assert [after[id_].spec_hash for id_ in ids] == ["", "h", "h"]
        assert [after[id_].recipients for id_ in ids] == [{}, {}, given[ids[2]].recipients]
        assert {after[id_].data for id_ in ids[:2]} == {"{}"}
        assert store.read(lambda tx: [one.id for one in tx.reminders.revisions(7, 9, 0)]) == [ids[2]]
        assert set(store.read(lambda tx: tx.contents.get([(1, 1), (1, 2), (2, 1), (3, 1)]))) == {3}

    def test_what_is_old_is_told_by_its_end_its_state_and_its_number(
        self, store: Store, clock: VirtualClock
    ) -> None:
        ids = store.write(lambda tx: tx.reminders.insert([asked(state) for state in State])).result()
        given = [new(state.value, reminder_id=id_) for state, id_ in zip(State, ids, strict=True)]
        rows = add(store, *given)
        of = dict(zip(State, zip(rows, ids, strict=True), strict=True))
        for state, (row, _) in of.items():
            lead(store, row, WAY_TO[state])
        ended = {of[state][1] for state in ENDED - {State.DEAD, State.REJECTED}}

        def old(before: int, *, after: int = 0, upto: int = 10**6, full: bool = False) -> set[int]:
            return set(store.read(lambda tx: tx.removals.old(before, after, upto, full=full)))

        assert old(START) == set()
        assert old(START + 1) == ended
        accepted, reminder_id = of[State.ACCEPTED]
        assert old(START + 1, after=accepted.id - 1, upto=accepted.id) == {reminder_id}
        assert old(START + 1, after=accepted.id) | {reminder_id} == {
            id_ for id_ in ended if id_ >= reminder_id
        }
        store.write(lambda tx: tx.removals.empty([reminder_id], [], erased=False)).result()
        assert old(START + 1, full=True) == ended - {reminder_id}
        assert store.read(lambda tx: tx.removals.next_from(accepted.id - 1)) == accepted.id
        assert store.read(lambda tx: tx.removals.next_from(10**6)) is None

    def test_what_is_removed_is_gone_with_all_that_hung_on_it_and_known_for_ever(self, store: Store) -> None:
        ids = store.write(lambda tx: tx.reminders.insert([asked("a"), asked("b")])).result()
        rows = add(store, new("a", reminder_id=ids[0]), new("b", reminder_id=ids[1]))
        going, staying = (lead(store, row, WAY_TO[State.ACCEPTED]) for row in rows)
        store.write(
            lambda tx: tx.contents.put([content(going.id, 1, "x"), content(staying.id, 1, "y")])
        ).result()
        kept = Outgoing(staying.id, 1, "acc", 0)
        store.write(lambda tx: tx.hint([kept, replace(kept, delivery_id=going.id)])).result()
        removed = Removed(
            going.id,
            "t",
            ids[0],
            "a",
            "c",
            START,
            Channel.EMAIL,
            "news",
            "acc",
            State.ACCEPTED,
            going.seq,
            going.head,
        )
        numbers = store.read(lambda tx: tx.removals.numbers([going.id]))[going.id]
        assert [seq for _, seq, _, _ in numbers] == list(range(1, going.seq + 1))
        gone = [number for number, *_ in numbers]
        remains = [Remains(going.id, going.seq, going.head)]
        stone = tombstone(None, remains, gone, facet=0, at=START, policy="test")
        stale = replace(removed, seq=going.seq - 1)
        assert store.write(partial(_take_back, stone, stale)).exception() is not None
        assert store.write(lambda tx: tx.removals.remove(stone, [removed])).result()
        left = store.read(lambda tx: tx.deliveries.by_ids([going.id, staying.id]))
        assert [row.id for row in left] == [staying.id]
        assert store.read(lambda tx: entries(tx, going.id)) == []
        assert len(store.read(lambda tx: entries(tx, staying.id))) == staying.seq
        assert set(store.read(lambda tx: tx.reminders.by_ids(ids))) == {ids[1]}
        assert set(store.read(lambda tx: tx.contents.get([(going.id, 1), (staying.id, 1)]))) == {staying.id}
        assert store.read(lambda tx: tx.hints(9)) == [kept]
        assert store.read(lambda tx: tx.removals.last()) == stone
        asked_for = [("t", "a", "c"), ("t", "b", "c"), ("other", "a", "c"), ("t", "a", "c2")]
        assert store.read(lambda tx: tx.removals.known(asked_for)) == {("t", "a", "c")}
        with_it = store.write(lambda tx: tx.removals.remove(stone, [removed]))
        assert with_it.exception() is not None  # a number is given once

    # What providers said later.

    def test_an_event_is_kept_once_for_an_account_an_identity_and_a_tenant(self, store: Store) -> None:
        first = heard("e-1", receipt="m-1", code="250", text="thanks", masked="a***", address_tag="ann")
        others = [replace(first, **{name: "other"}) for name in ("account", "identity", "tenant")]  # type: ignore[arg-type]
        assert put(store, first, first, *others) == [True, False, True, True, True]
        assert put(store, replace(first, code="changed", receipt="m-2")) == [False]
        found = store.read(lambda tx: tx.events.waiting(START, 9))
        assert [replace(one, id=0) for one in found] == [first, *others], "as it was told first"
        assert len({one.id for one in found}) == 4

    def test_what_waits_is_given_in_the_order_of_its_turn(self, store: Store) -> None:
        late, early, done, same = (
            heard("late", next_at=START + 9),
            heard("early", next_at=START - 9),
            heard("done", look=EventLook.DONE),
            heard("same", next_at=START - 9),
        )
        put(store, late, early, done, same)
        assert waiting(store, START) == ["early", "same"]
        assert waiting(store, START + 9) == ["early", "same", "late"]
        assert [one.identity for one in store.read(lambda tx: tx.events.waiting(START, 1))] == ["early"]

    def test_an_event_that_waits_is_locked_whenever_its_turn_is_and_one_that_ended_is_not(
        self, store: Store
    ) -> None:
        put(store, heard("a", next_at=START + HOUR), heard("b", look=EventLook.UNMATCHED), heard("c"))
        a, b, c = (numbers_of(store)[name] for name in "abc")
        locked = store.write(lambda tx: tx.events.lock([c, b, a, a, 10**6])).result()
        assert [one.identity for one in locked] == ["a", "c"]

    def test_an_event_that_ended_has_its_delivery_and_shows_no_address(self, store: Store) -> None:
        put(store, heard("a", masked="a***"), heard("b", masked="b***"), heard("c", masked="c***"))
        a, b, c = (numbers_of(store)[name] for name in "abc")
        later = START + HOUR
        store.write(lambda tx: tx.events.wait([(c, later, "receipt")])).result()
        store.write(
            lambda tx: tx.events.end([(a, EventLook.DONE, "", 7), (b, EventLook.UNMATCHED, "receipt", 0)])
        ).result()
        assert waiting(store, later - 1) == []
        (one,) = store.read(lambda tx: tx.events.waiting(later, 9))
        assert (one.identity, one.why, one.tries, one.masked) == ("c", "receipt", 1, "c***")
        (row,) = store.read(lambda tx: tx.rows("view_events_of", delivery_id=7, limit=9))
        assert (row["identity"], row["look"], row["applied_at"], row["masked"]) == ("a", 1, START, "")
        (row,) = store.read(lambda tx: tx.rows("view_event", id=b))
        assert (row["look"], row["why"], row["tries"], row["masked"]) == (2, "receipt", 1, "b***")

    def test_what_is_retried_comes_as_if_it_were_new_where_there_is_something_to_look_for(
        self, store: Store, clock: VirtualClock
    ) -> None:
        looks = {"unmatched": EventLook.UNMATCHED, "faulty": EventLook.FAULTY, "unclear": EventLook.UNCLEAR}
        put(
            store,
            *(heard(name, receipt="m", look=look) for name, look in looks.items()),
            heard("done", receipt="m", look=EventLook.DONE),
            heard("nothing", look=EventLook.UNMATCHED),
        )
        ids = list(numbers_of(store).values())
        clock.advance(60)
        assert store.write(lambda tx: tx.events.retry([*ids, 10**6])).result() == 2
        now = store.read(lambda tx: tx.now)
        found = store.read(lambda tx: tx.events.waiting(now, 9))
        assert [(one.identity, one.next_at, one.tries) for one in found] == [
            ("unmatched", now, 0),
            ("faulty", now, 0),
        ]

    def test_deliveries_are_found_by_their_marks_and_their_receipts(self, store: Store) -> None:
        rows = add(store, new("a"), new("b"), new("c"))
        sent = lead(store, rows[0], WAY_TO[State.ACCEPTED], receipt="m-1")
        twice = [lead(store, row, WAY_TO[State.ACCEPTED], receipt="m-2") for row in rows[1:]]
        store.write(
            lambda tx: tx.contents.put([replace(content(sent.id, number, "x"), mark=77) for number in (2, 1)])
        ).result()
        by_mark = store.read(lambda tx: tx.events.by_marks([77, 78]))
        assert [[(one.delivery_id, one.version) for one in found] for found in by_mark] == [
            [(sent.id, 1), (sent.id, 2)],
            [],
        ]
        by_receipt = store.read(lambda tx: tx.events.by_receipts(["m-2", "m-1", "", "m-3"]))
        found = [sorted(one.delivery_id for one in each) for each in by_receipt]
        assert found == [sorted(row.id for row in twice), [sent.id], [], []]
        (one,) = by_receipt[1]
        assert (one.tenant, one.key, one.channel, one.address_tag) == ("t", "a:c:email", Channel.EMAIL, "tag")
        assert (one.state, one.version_now, one.account_now, one.receipt_now) == (
            State.ACCEPTED,
            sent.standing.version,
            "acc",
            "m-1",
        )

    def test_facets_fold_in_any_order_and_are_numbered_once(self, store: Store) -> None:
        facts = [Fact(EventKind.DELIVERED, START + at, f"c{at}") for at in (5, 3, 9)]
        for fact in facts:
            store.write(partial(_fold, [(7, fact), (8, Fact(EventKind.SENT, START, ""))])).result()
        store.write(lambda tx: tx.events.fold([])).result()
        assert facets(store, 7) == [("delivered", START + 3, "c3")]
        assert facets(store, 8) == [("sent", START, "")]
        given = store.read(lambda tx: tx.events.given())
        assert store.read(lambda tx: tx.events.writers()) == frozenset()
        store.write(partial(_fold, [(7, Fact(EventKind.SENT, START, ""))])).result()
        assert facets(store, 7) == [("delivered", START + 3, "c3"), ("sent", START, "")]
        assert store.read(lambda tx: tx.events.given()) > given
        rows = store.read(lambda tx: tx.removals.facet([7]))
        assert rows == store.read(lambda tx: tx.events.given()), "the newest is of this one"
        assert store.read(lambda tx: tx.removals.facet([8])) < rows
        assert store.read(lambda tx: tx.removals.facet([9])) == 0

    def test_what_a_provider_said_stands_behind_the_entries_that_were_there(self, store: Store) -> None:
        (row,) = add(store, new("a"))
        lead(store, row, WAY_TO[State.ACCEPTED])
        store.write(partial(_fold, [(row.id, Fact(EventKind.DELIVERED, START, ""))])).result()
        (after,) = add(store, new("b"))
        given: dict[str, int | str] = {"tenant": "t", "after": 0, "upto": 2**62, "limit": 9}
        (told,) = store.read(lambda tx: tx.rows("view_feed_facets", **given))
        numbers = store.read(lambda tx: tx.removals.numbers([row.id, after.id]))
        assert numbers[row.id][-1][0] <= int(told["behind"]) < numbers[after.id][0][0]

    def test_what_waits_or_has_a_delivery_is_never_forgotten(self, store: Store) -> None:
        put(
            store,
            heard("old", look=EventLook.UNMATCHED, received_at=START - 9),
            heard("older", look=EventLook.FAULTY, received_at=START - 10),
            heard("waits", received_at=START - 10),
            heard("matched", received_at=START - 10),
            heard("young", look=EventLook.DONE, received_at=START),
        )
        ids = numbers_of(store)
        store.write(lambda tx: tx.events.end([(ids["matched"], EventLook.DONE, "", 7)])).result()
        assert store.write(lambda tx: tx.events.forget(START, 1)).result() == 1
        assert set(numbers_of(store)) == {"old", "waits", "matched", "young"}, "the oldest first"
        assert store.write(lambda tx: tx.events.forget(START, 9)).result() == 1
        assert set(numbers_of(store)) == {"waits", "matched", "young"}

    def test_what_is_personal_is_destroyed_by_delivery_and_by_address(self, store: Store) -> None:
        personal = {"masked": "a***", "text": "I am Ann", "address_tag": "ann"}
        put(
            store,
            heard("by address", **personal),
            heard("of her delivery", **{**personal, "address_tag": "old"}),
            heard("another's", **{**personal, "address_tag": "bob"}),
            heard("another tenant's", **personal, tenant="other"),
            heard("of nobody", masked="x***", text="who"),
        )
        ids = numbers_of(store)
        store.write(lambda tx: tx.events.end([(ids["of her delivery"], EventLook.DONE, "", 7)])).result()
        store.write(lambda tx: tx.events.blank([7, 0], [("t", "ann"), ("t", "")])).result()

        def left(name: str) -> bool:
            (row,) = store.read(lambda tx: tx.rows("view_event", id=ids[name]))
            return bool(row["text"] or row["masked"] or row["address_tag"])

        assert {name for name in ids if left(name)} == {"another's", "another tenant's", "of nobody"}

    def test_a_blanked_record_is_in_force_and_shows_nothing(self, store: Store) -> None:
        one = {**record(Kind.OPT_OUT, "news", 5, "crm"), "masked": "a***", "evidence": "she called"}
        other = {**one, "address_tag": "other"}
        store.write(lambda tx: tx.preferences.put([one, other])).result()
        address = (str(one["tenant"]), str(one["channel"]), str(one["address_tag"]))
        assert store.write(lambda tx: tx.removals.blank([address])).result() == 1
        assert store.write(lambda tx: tx.removals.blank([address])).result() == 0
        assert store.read(lambda tx: tx.preferences.of([address])) == {
            address: [Preference(Kind.OPT_OUT, "news", 5, "crm")]
        }
        shown = store.read(
            lambda tx: tx.rows(
                "preference_list",
                tenant=address[0],
                channel="",
                address_tag="",
                category="",
                kind="",
                limit=9,
            )
        )
        assert {(row["masked"], row["evidence"]) for row in shown} == {("", ""), ("a***", "she called")}

    def test_a_customer_is_being_erased_until_that_is_finished(self, store: Store) -> None:
        first = Erasure("t", "c", START, "operator:ann", "asked", may_write=False)
        other = replace(first, tenant="u", may_write=True)
        store.write(lambda tx: tx.removals.ask(first)).result()
        store.write(lambda tx: tx.removals.ask(replace(first, reason="again"))).result()
        store.write(lambda tx: tx.removals.ask(other)).result()
        assert store.read(lambda tx: tx.removals.asked(9)) == [first, other]
        store.write(lambda tx: tx.removals.finish(first)).result()
        assert store.read(lambda tx: tx.removals.asked(9)) == [other]

    def test_an_import_is_forgotten_only_when_nothing_of_it_is_left(
        self, store: Store, clock: VirtualClock
    ) -> None:
        runs = [
            store.write(lambda tx: tx.runs.begin_import("t", "", "f.csv", "test")).result() for _ in range(5)
        ]
        made, revised, nothing, nothing_too, newest = runs
        ids = store.write(lambda tx: tx.reminders.insert([asked("a", import_id=made), asked("b")])).result()
        b = store.read(lambda tx: tx.reminders.by_ids([ids[1]]))[ids[1]]
        store.write(lambda tx: tx.reminders.revise([replace(b, import_id=revised, spec_hash="h2")])).result()
        assert store.write(lambda tx: tx.removals.forget_imports(START, 9)).result() == 0
        assert store.write(lambda tx: tx.removals.forget_imports(START + 1, 1)).result() == 1
        assert store.write(lambda tx: tx.removals.forget_imports(START + 1, 9)).result() == 1
        kept = store.read(lambda tx: tx.rows("import_list", tenant="t", before=10**6, limit=9))
        assert {row["id"] for row in kept} == {made, revised, newest}
        assert {nothing, nothing_too}.isdisjoint(row["id"] for row in kept)

    # Access over HTTP.

    def test_a_key_comes_back_as_it_was_put_and_lists_by_tenant(self, store: Store) -> None:
        keys = [api_key("zz", tenant="acme"), api_key("aa", scopes=frozenset({Scope.READ, Scope.ADMIN}))]
        store.write(lambda tx: tx.api_keys.put(keys)).result()
        found = store.read(lambda tx: [tx.api_keys.get(prefix) for prefix in ("aa", "zz", "mm")])
        assert found == [keys[1], keys[0], None]
        assert store.read(lambda tx: tx.api_keys.all()) == [keys[1], keys[0]]
        assert store.read(lambda tx: tx.api_keys.all("acme")) == [keys[0]]

    def test_a_key_is_revoked_once_and_its_end_only_comes_nearer(self, store: Store) -> None:
        def unit(tx: Tx) -> list[bool]:
            tx.api_keys.put([api_key("aa"), api_key("bb")])
            return [
                tx.api_keys.revoke("aa", 7),
                tx.api_keys.revoke("aa", 8),
                tx.api_keys.revoke("mm", 8),
                tx.api_keys.expire("aa", 50),
                tx.api_keys.expire("aa", 60),
                tx.api_keys.expire("aa", 40),
            ]

        assert store.write(unit).result() == [True, False, False, True, False, True]
        revoked, other = store.read(lambda tx: tx.api_keys.all())
        assert (revoked.revoked_at, revoked.expires_at) == (7, 40)
        assert other == api_key("bb")

    def test_that_a_key_was_used_is_noted_once_in_a_while(self, store: Store) -> None:
        def unit(tx: Tx) -> list[bool]:
            tx.api_keys.put([api_key("aa"), api_key("bb")])
            return [tx.api_keys.touch("aa", at, at - 60) for at in (100, 159, 160, 161, 300)]

        assert store.write(unit).result() == [True, False, False, True, True]
        assert [key.used_at for key in store.read(lambda tx: tx.api_keys.all())] == [300, 0]

    def test_an_answer_is_begun_once_and_kept(self, store: Store) -> None:
        def begin(at: int, fingerprint: str = "f", tenant: str = "t") -> bool:
            return store.write(
                lambda tx: tx.answers.begin(
                    tenant, "k", fingerprint, at=at, stale=at - 50, keep_until=at + 99
                )
            ).result()

        assert begin(100)
        assert begin(100, tenant="other")
        assert not begin(140)
        assert not begin(200, fingerprint="g")  # another question never takes over
        assert begin(200)  # who asks the same does, once nobody can be at it any more
        finish = partial(_finish, store)
        assert not finish(100)
        assert finish(200)
        assert not finish(200)
        assert not begin(900)
        assert store.read(lambda tx: tx.answers.get("t", "k")) == Answered("f", 200, 201, "text")
        assert store.read(lambda tx: tx.answers.get("other", "k")) == Answered("f", 100, 0, "")
        assert store.read(lambda tx: tx.answers.get("t", "x")) is None

    def test_an_answer_that_never_came_may_be_dropped_and_old_ones_are_forgotten(self, store: Store) -> None:
        def unit(tx: Tx) -> list[int]:
            for number in range(5):
                tx.answers.begin("t", str(number), "f", at=1, stale=0, keep_until=10 + number)
            tx.answers.finish("t", "4", 1, status=200, answer="", keep_until=14)
            for name in ("3", "4"):
                tx.answers.drop("t", name, 1)
            return [tx.answers.forget(13, 2), tx.answers.forget(13, 2), tx.answers.forget(13, 2)]

        assert store.write(unit).result() == [2, 1, 0]
        left = store.read(lambda tx: [tx.answers.get("t", str(number)) for number in range(5)])
        assert [answer is not None for answer in left] == [False, False, False, False, True]

    def test_one_batch_of_a_tenant_runs_and_one_that_is_not_heard_of_has_ended(self, store: Store) -> None:
        def begin(id_: str, at: int, *, tenant: str = "t", stale: int = 0) -> str:
            return store.write(
                lambda tx: tx.batches.begin(
                    tenant, id_, "redrive", actor="ann", at=at, stale=stale, progress="{}"
                )
            ).result()

        def note(id_: str, at: int, *, ended: bool = False) -> bool:
            return store.write(lambda tx: tx.batches.note("t", id_, f"at {at}", at=at, ended=ended)).result()

        assert begin("a", 100) == "a"
        assert begin("b", 100, tenant="other") == "b"
        assert begin("c", 110) == "a"
        assert store.read(lambda tx: tx.batches.get("t", "c")) is None
        assert note("a", 120)
        assert begin("c", 130, stale=120) == "a"
        assert begin("c", 200, stale=121) == "c"
        assert not note("a", 201)
        assert store.read(lambda tx: tx.batches.get("t", "a")) == Batch(
            "a", "redrive", "ann", 100, 120, 120, "at 120"
        )
        assert note("c", 210, ended=True)
        assert not note("c", 211)
        assert store.read(lambda tx: tx.batches.get("t", "c")) == Batch(
            "c", "redrive", "ann", 200, 210, 210, "at 210"
        )
        assert begin("d", 220) == "d"
        assert [store.write(lambda tx: tx.batches.forget(211, 2)).result() for _ in range(2)] == [2, 1]
        left = store.read(lambda tx: [tx.batches.get("t", id_) for id_ in "acd"])
        assert [each is not None for each in left] == [False, False, True]

    def test_meta_keeps_the_last_value(self, store: Store) -> None:
        assert store.read(lambda tx: tx.meta("mark")) is None
        store.write(lambda tx: tx.set_meta("mark", "1")).result()
        store.write(lambda tx: tx.set_meta("mark", "")).result()
        assert store.read(lambda tx: tx.meta("mark")) == ""


# Data.


def _append(block: SealedBlock, tx: Tx) -> None:
    tx.seals.append(block)


def _paused(name: str, tx: Tx) -> None:
    tx.runs.audit("operator:ann", "pause", name, "prices", {"until": 0})


def new(name: str, **fields: int | str) -> NewDelivery:
    """A delivery to be: tenant "t", customer "c", by email, due at the start of the clock."""
    given: dict[str, int | str] = {"customer": "c", **fields}
    due_at = int(given.pop("due_at", START))
    base = NewDelivery(
        tenant="t",
        key=f"{name}:{given['customer']}:email",
        reminder_id=1,
        customer="c",
        channel=Channel.EMAIL,
        address_tag="tag",
        category="news",
        group="",
        priority=1,
        due_at=due_at,
        expires_at=due_at + 86_400 * SECOND,
        actor="test",
        details={"address": "tag"},
    )
    return replace(base, **given)  # type: ignore[arg-type]


def asked(name: str, **fields: int | str) -> Reminder:
    base = Reminder(
        id=0,
        tenant="t",
        reminder=name,
        customer="c",
        due_at=START + HOUR,
        due_local="2026-01-01T01:00",
        zone="UTC",
        expires_at=START + 2 * HOUR,
        template="pay",
        template_version=0,
        category="news",
        priority=1,
        group="",
        source="",
        import_id=0,
        linked="",
        data="{}",
        recipients={"email": {"to": "ann@example.com", "sender": "", "reply_to": ""}},
        spec_hash="h",
        version=1,
        created_at=START,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def content(delivery_id: int, version: int, payload: str) -> Content:
    return Content(delivery_id, version, "ann@example.com", payload, "hash", "pay", 1, START)


def template(name: str, version: int, channel: Channel) -> StoredTemplate:
    return StoredTemplate("t", name, version, channel, "Due", f"{name} {version}", "", "hash", START)


def call(
    delivery_id: int, epoch: int, *, account: str = "acc", process: str = "p", send_deadline: int = START
) -> OpenCall:
    return OpenCall(delivery_id, epoch, account, process, START, START, send_deadline)


def process(id_: str, lease_until: int) -> Process:
    return Process(id_, "worker", "email", "host", 42, START, START, lease_until, stopped=False)


def record(kind: Kind, category: str, at: int, source: str) -> dict[str, int | str]:
    return {
        "tenant": "t",
        "channel": "email",
        "address_tag": "ann",
        "category": category,
        "kind": kind.value,
        "at": at,
        "source": source,
        "evidence": "",
        "masked": "a***@example.com",
        "actor": "test",
    }


# Steps.


def heard(identity: str, **fields: Any) -> StoredEvent:
    """What a provider said, waiting since the start of the clock."""
    base = StoredEvent(
        "acc",
        identity,
        EventKind.DELIVERED,
        received_at=START,
        tenant="t",
        occurred_at=START - 5,
        next_at=START,
    )
    return replace(base, **fields)


def put(store: Store, *given: StoredEvent) -> list[bool]:
    return store.write(lambda tx: tx.events.put(given)).result()


def waiting(store: Store, now: int) -> list[str]:
    return [one.identity for one in store.read(lambda tx: tx.events.waiting(now, 99))]


def numbers_of(store: Store) -> dict[str, int]:
    """The number of each event that is kept, by its identity."""
    rows = [store.read(lambda tx, id_=id_: tx.rows("view_event", id=id_)) for id_ in range(1, 20)]  # type: ignore[misc]
    return {str(row["identity"]): int(row["id"]) for found in rows for row in found}


def facets(store: Store, delivery_id: int) -> list[tuple[str, int, str]]:
    rows = store.read(lambda tx: tx.rows("view_facets", delivery_id=delivery_id))
    return [(str(row["kind"]), int(row["at"]), str(row["code"])) for row in rows]


def _fold(facts: Sequence[tuple[int, Fact]], tx: Tx) -> None:
    tx.events.fold(facts)


def add(store: Store, *given: NewDelivery) -> list[Delivery]:
    """Insert, and read back in the order given."""

    def unit(tx: Tx) -> list[Delivery]:
        ids = tx.deliveries.insert(given)
        by_id = {row.id: row for row in tx.deliveries.by_ids(ids)}
        return [by_id[id_] for id_ in ids]

    return store.write(unit).result()


def look(store: Store, id_: int) -> Delivery:
    (row,) = store.read(lambda tx: tx.deliveries.by_ids([id_]))
    return row


def along(row: Delivery, event: Event, facts: Facts = Facts(), **course: int | str) -> Move:  # noqa: B008 (frozen)
    """The move that the table makes of an event."""
    moved = step(row.standing, event, facts)
    assert isinstance(moved, Moved), moved
    after = replace(row.course, **course)  # type: ignore[arg-type]
    return Move(row, event, moved.standing, after, "test", {"reason": "test"})


def lead(store: Store, row: Delivery, way: Sequence[Step], **course: int | str) -> Delivery:
    """Lead a delivery along the table, in one unit; `course` holds after the last step."""

    def unit(tx: Tx) -> Delivery:
        now = row
        for number, (event, facts) in enumerate(way, start=1):
            account = now.course.account or "acc"
            changes = {"account": account, **(course if number == len(way) else {})}
            assert tx.deliveries.move([along(now, event, facts, **changes)]) == [True]
            (now,) = tx.deliveries.by_ids([row.id])
        return now

    return store.write(unit).result()


def one_in_each_state(store: Store) -> dict[State, Delivery]:
    rows = add(store, *(new(state.value) for state in State))
    return {state: lead(store, row, WAY_TO[state]) for state, row in zip(State, rows, strict=True)}


def in_threads(store: Store, units: Sequence[Callable[[Tx], T]]) -> list[Future[T]]:
    """Hand units in from several threads at once; their futures in the order of the units."""
    futures: dict[int, Future[T]] = {}
    start = threading.Barrier(8)

    def hand_in(part: int) -> None:
        start.wait()
        for number in range(part, len(units), 8):
            futures[number] = store.write(units[number])

    threads = [threading.Thread(target=hand_in, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [futures[number] for number in range(len(units))]


class Ear:
    """Somebody who listens, and remembers. For a store that may begin to hear later than it says."""

    def __init__(self, store: Store) -> None:
        self._heard: list[str] = []
        self._change = threading.Condition()
        self.tries = 0
        self._listening = store.listen(self._hear)

    def tune_in(self, store: Store) -> None:
        """Have `store` announce something of no meaning until it is heard: all from before is heard then."""
        until = time.monotonic() + HEARD_WITHIN_S
        topic = f"{_TUNE}{id(self)}.{self.tries}"
        while True:
            self.tries += 1
            store.write(lambda tx: tx.announce(topic)).exception()
            with self._change:
                if self._change.wait_for(lambda: topic in self._heard, 0.1):
                    return
            assert time.monotonic() < until, "nothing is heard"

    def until(self, count: int) -> list[str]:
        """The next so many topics, which are then forgotten."""
        with self._change:
            assert self._change.wait_for(lambda: len(self._news) >= count, HEARD_WITHIN_S), self._news
            news = self._news
            self._heard.clear()
            return news

    @property
    def silent(self) -> bool:
        """Whether nothing was heard since the last look."""
        with self._change:
            return not self._news

    def forget(self) -> None:
        with self._change:
            self._heard.clear()

    def close(self) -> None:
        self._listening.close()

    @property
    def _news(self) -> list[str]:
        return [topic for topic in self._heard if not topic.startswith(_TUNE)]

    def _hear(self, topic: str) -> None:
        with self._change:
            self._heard.append(topic)
            self._change.notify_all()


HEARD_WITHIN_S: Final = 30.0
_TUNE: Final = "tune:"


def _take_back(stone: Tombstone, removed: Removed, tx: Tx) -> None:
    """A unit that removes what has changed meanwhile, and so must not go on."""
    if not tx.removals.remove(stone, [removed]):
        raise StoreUnavailable("it changed")


def entries(tx: Tx, delivery_id: int) -> list[Row]:
    return tx.rows("view_ledger", delivery_id=delivery_id)


def _all_rows(tx: Tx) -> list[Row]:
    return tx.rows("view_verify_rows", after=0, upto=2**62)


def _standing(row: Row) -> Standing:
    return Standing(
        State(str(row["state"])),
        int(row["epoch"]),
        int(row["version"]),
        row["maybe"] == 1,
        row["permit"] == 1,
        Ending(str(row["ending"])),
    )
