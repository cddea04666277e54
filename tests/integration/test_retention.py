"""Retention: what is over goes in two steps, what is not stays, and what is gone is never sent again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import NotFound, Refused, StoreUnavailable
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted, Found, Unknown
from sendonce.core.reminder import Asked
from sendonce.core.retention import Keep
from sendonce.moves import move_on
from sendonce.pipeline import erasure, reconciler, restore, story
from sendonce.pipeline.intake import Mode, Result, Verdict, admit, again
from sendonce.pipeline.report import report
from sendonce.pipeline.retention import LOOK_S, ROUND_US, Retention
from sendonce.pipeline.sealed import check_seals
from sendonce.pipeline.sealer import Sealer, refuse_unsealed
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Move, Tx
from sendonce.preparation import prepare
from sendonce.store import postgres
from tests.integration import world as small
from tests.integration.places import OneStorePlace
from tests.integration.world import SECOND, TENANT, World

DAY_S = 86_400.0
KEEP = Keep(content_s=30 * DAY_S, deliveries_s=90 * DAY_S)


def _round(world: World, keep: Keep = KEEP, **given: Any) -> Retention:
    """A whole round."""
    retention = Retention(world.store, world.policy, keep, **given)
    _run(retention)
    return retention


def _run(retention: Retention) -> None:
    while retention.step() != LOOK_S:
        pass


def _days(world: World, days: float) -> None:
    world.advance(days * DAY_S)


def _newest(world: World) -> str:
    """The newest of each kind always stays."""
    return world.schedule("newest", customer="c-newest", due_in_s=1e9)


def _admit(world: World, reminder: str, mode: Mode = Mode.NEW, **given: Any) -> Result:
    asked = Asked(
        **{
            "reminder": reminder,
            "customer": "c-1",
            "due": "now",
            "template": "t",
            "phone": "+12025550123",
            "data": {"name": "Ann"},
            "category": world.accounts[0],
            **given,
        }
    )
    prepared = prepare(asked, world.policy, world.book, secret=world.store.secret, now=world.now)
    return world.write(lambda tx: admit(tx, prepared, policy=world.policy, actor="api:test", mode=mode))[0]


def _rows(world: World, view: str, **parameters: int | str) -> list[dict[str, Any]]:
    return [dict(row) for row in world.read(lambda tx: tx.rows(view, **parameters))]


def _exists(world: World, key: str) -> bool:
    return bool(world.read(lambda tx: tx.deliveries.by_keys([(TENANT, key)])))


def test_first_the_content_goes_then_the_delivery_with_its_entries() -> None:
    world = World("K")
    key = world.accepted("a")
    row, entries = world.row(key), world.lines(key)
    _newest(world)
    _days(world, 29)
    _round(world)
    assert world.read(lambda tx: tx.contents.get([(row.id, 1)]))
    _days(world, 2)
    _round(world)
    assert not world.read(lambda tx: tx.contents.get([(row.id, 1)]))
    (reminder,) = world.read(lambda tx: tx.reminders.by_ids([row.reminder_id])).values()
    assert (reminder.data, reminder.recipients, reminder.spec_hash) == ("{}", {}, "spec")
    assert world.lines(key) == entries
    _days(world, 60)
    _round(world)
    assert not _exists(world, key)
    assert not world.read(lambda tx: tx.rows("view_ledger", delivery_id=row.id))
    assert not world.read(lambda tx: tx.reminders.by_ids([row.reminder_id]))
    with pytest.raises(NotFound, match="removed by policy"):
        world.read(lambda tx: story.story(tx, key, world.policy))
    with pytest.raises(NotFound, match="removed by policy"):
        world.read(lambda tx: story.record(tx, key))
    (stone,) = _rows(world, "view_tombstones", after=0, limit=9)
    body = json.loads(stone["body"])
    assert (body["deliveries"], body["entries"], body["policy"]) == (1, len(entries), "deliveries=90d")
    assert verify(world.store).removed == 1
    assert verify(world.store).ok


def test_without_a_setting_everything_stays() -> None:
    world = World("K")
    key = world.accepted("a")
    _newest(world)
    _days(world, 10_000)
    assert Retention(world.store, world.policy, Keep()).step() == LOOK_S
    assert world.read(lambda tx: tx.contents.get([(world.row(key).id, 1)]))


def test_what_is_open_in_doubt_or_dead_is_never_touched_nor_is_its_sibling() -> None:
    world = World("K", "N", "L")
    dead = world.dead("dead")
    (rejected,) = world.rejected("rejected", account="sms-L")
    uncertain = world.uncertain("uncertain", account="email-N")
    reconciling = world.schedule("reconciling", account="sms-L")
    world.pass_()
    world.send(Unknown("timeout"), "sms-L")
    open_ = world.schedule("open", due_in_s=1e9)
    pair = world.schedule("pair", account="email-N", also=(world.policy.accounts["sms-K"].channel,))
    world.pass_()
    world.send(Accepted("x"), "email-N")
    assert world.state(pair) is State.ACCEPTED
    sibling = world.read(lambda tx: tx.deliveries.of_reminders([world.row(pair).reminder_id]))
    assert {row.standing.state for row in sibling} == {State.ACCEPTED, State.QUEUED}
    keys = (dead, rejected, uncertain, reconciling, open_, pair)
    before = [world.row(key) for key in keys]
    _newest(world)
    _days(world, 1_000)
    _round(world)
    assert [world.row(key) for key in keys] == before
    for row in before:
        if row.standing.state is not State.SCHEDULED:
            assert world.read(lambda tx, row=row: tx.contents.get([(row.id, 1)]))  # type: ignore[misc]
    assert _rows(world, "view_tombstones", after=0, limit=9) == []


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("given", [{}, {"data": {"name": "Bob"}}, {"phone": "", "email": "ann@example.com"}])
@pytest.mark.parametrize("days", [31, 91])
def test_the_same_key_again_is_known_and_sent_no_second_time(
    mode: Mode, given: dict[str, Any], days: int
) -> None:
    world = World("K", "N")
    assert _admit(world, "a").verdict is Verdict.ACCEPTED
    world.pass_()
    assert world.send(Accepted("x")) == ["a:c-1:sms"]
    _newest(world)
    _days(world, days)
    _round(world)
    result = _admit(world, "a", mode, **given)
    same = not given and days == 31
    assert result.verdict is (Verdict.UNCHANGED if mode is Mode.NEW or same else Verdict.REFUSED)
    assert "another id" in result.why
    world.pass_()
    assert world.claim() == []
    assert world.claim("email-N") == []
    assert _admit(world, "a", customer="c-2").verdict is Verdict.ACCEPTED
    assert _admit(world, "b").verdict is Verdict.ACCEPTED


def test_what_says_nothing_any_more_cannot_be_sent_again() -> None:
    world = World("K")
    key = world.accepted("a")
    _newest(world)

    def send_again(tx: Tx) -> Result:
        return again(tx, key, tenant=TENANT, policy=world.policy, reason="asked", actor="operator:ann")

    _days(world, 31)
    _round(world)
    with pytest.raises(Refused, match="destroyed"):
        world.write(send_again)
    _days(world, 60)
    _round(world)
    with pytest.raises(NotFound):
        world.write(send_again)


def test_the_report_of_a_day_still_adds_up() -> None:
    world = World("K")
    for nth in range(5):
        world.accepted(f"a-{nth}")
    world.withdraw(world.schedule("c"))
    world.dead("dead")
    _newest(world)
    before = world.read(lambda tx: report(tx, "2026-01-01", "Etc/UTC"))
    _days(world, 100)
    _round(world)
    after = world.read(lambda tx: report(tx, "2026-01-01", "Etc/UTC"))
    assert (after.due, after.counts, after.adds_up) == (7, before.counts, True)
    assert (before.removed, after.removed) == (0, 6)
    assert world.read(lambda tx: report(tx, "2026-01-01", "Etc/UTC", tenant="other")).due == 0


def test_numbers_are_not_given_twice() -> None:
    """SQLite gives the highest number again once its row is gone: so the newest row of each kind stays."""
    world = World("K")
    keys = [world.accepted(f"a-{nth}") for nth in range(3)]
    newest = world.row(keys[-1])
    _days(world, 100)
    _round(world)
    assert [_exists(world, key) for key in keys] == [False, False, True]
    assert world.row(world.schedule("b")).id > newest.id


def test_many_go_in_short_units_and_a_round_can_begin_again_anywhere() -> None:
    world = World("K")
    for nth in range(95):
        world.withdraw(world.schedule(f"a-{nth}"))
    _newest(world)
    _days(world, 100)
    retention = Retention(world.store, world.policy, KEEP)
    units = []
    write = world.store.write

    def watched(unit: Callable[[Tx], Any], **given: Any) -> Any:
        done = write(unit, **given)
        units.append(done)
        if len(units) == 15:
            raise StoreUnavailable("away")
        return done

    world.store.write = watched  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        _run(retention)
    world.store.write = write  # type: ignore[method-assign]
    left = len(_rows(world, "view_verify_rows", after=0, upto=1_000))
    assert 1 < left < 96
    _round(world)
    assert len(_rows(world, "view_verify_rows", after=0, upto=1_000)) == 1
    stones = _rows(world, "view_tombstones", after=0, limit=99)
    assert [json.loads(stone["body"])["deliveries"] for stone in stones] == [*[10] * 9, 5]
    assert verify(world.store).removed == 95
    assert verify(world.store).ok


def test_a_round_comes_again_after_its_time_and_is_kept_in_the_audit() -> None:
    world = World("K")
    world.accepted("a")
    _newest(world)
    _days(world, 100)
    retention = _round(world)
    (audit,) = _rows(world, "view_audit", before=10**9, limit=9)
    assert (audit["actor"], audit["action"]) == ("retention", "retention")
    assert json.loads(audit["body"])["deliveries"] == 1
    world.accepted("b")
    world.schedule("c", due_in_s=1e9)
    world.advance(ROUND_US / SECOND - 1)
    assert retention.step() == LOOK_S
    assert len(_rows(world, "view_audit", before=10**9, limit=9)) == 1


def test_nothing_is_removed_from_a_held_store() -> None:
    world = World("K")
    key = world.accepted("a")
    _newest(world)
    _days(world, 100)
    restore.hold_by_hand(world.store, reason="files were set back", actor="operator:ann")
    assert Retention(world.store, world.policy, KEEP).step() == LOOK_S
    assert _exists(world, key)


def test_a_calendar_that_jumps_removes_nothing_for_a_day() -> None:
    world = World("K")
    key = world.accepted("a")
    _newest(world)
    retention = _round(world)
    world.clock.step(3_650 * DAY_S)
    assert retention.step() == LOOK_S
    assert _exists(world, key)
    world.clock.step(-3_650 * DAY_S)  # somebody saw it
    _days(world, 2)
    _run(retention)
    assert _exists(world, key)
    world.clock.step(3_650 * DAY_S)
    retention.step()
    _days(world, 1.1)
    _run(retention)
    assert not _exists(world, key)


def test_a_record_that_does_not_hold_is_left_to_people(tmp_path: Path) -> None:
    world = World("K", path=str(tmp_path / "store.db"))
    key, other = world.accepted("a"), world.accepted("b")
    _newest(world)
    world.tamper(f"UPDATE ledger SET body = '{{}}' WHERE delivery_id = {world.row(key).id} AND seq = 2")
    _days(world, 100)
    _round(world)
    assert (_exists(world, key), _exists(world, other)) == (True, False)
    assert verify(world.store).faulty == 1


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM removed WHERE delivery_id = 1", "2 deliveries, and 1 are recorded"),
        ("UPDATE removed SET head = 'x' WHERE delivery_id = 1", "not what it removed"),
        ("INSERT INTO delivery SELECT * FROM kept", "is said to be removed, and is there"),
        ("UPDATE tombstone SET body = '{}'", "does not give the recorded hash"),
        ("DELETE FROM tombstone WHERE number = 1", "tombstone 1 is missing"),
    ],
)
def test_a_removal_that_was_tampered_with_is_found(tmp_path: Path, statement: str, says: str) -> None:
    world = World("K", path=str(tmp_path / "store.db"))
    for nth in range(2):
        world.accepted(f"a-{nth}")
    _newest(world)
    world.tamper("CREATE TABLE kept AS SELECT * FROM delivery WHERE id = 1")
    _days(world, 100)
    _round(world)
    world.accepted("b")
    world.schedule("newer", due_in_s=1e9)
    _days(world, 100)
    _round(world)
    assert verify(world.store).ok
    assert len(_rows(world, "view_tombstones", after=0, limit=9)) == 2
    world.tamper(statement)
    assert any(says in fault.what for fault in verify(world.store).faults)
    world.tamper("DROP TABLE kept")


def test_what_is_not_sealed_yet_stays_and_what_is_sealed_is_still_proven() -> None:
    world = World("K")
    sealer = Sealer(world.store, None, every_s=1.0)
    first, second = world.accepted("a"), world.accepted("b")
    entries = len(world.lines(first)) + len(world.lines(second))
    _days(world, 100)
    _newest(world)
    _round(world, bury=refuse_unsealed)
    assert _exists(world, first)
    assert sealer.seal_one() is not None
    _days(world, 1)
    _round(world, bury=refuse_unsealed)
    assert not _exists(world, first)
    world.accepted("c")
    assert sealer.seal_one() is not None
    proof = check_seals(world.store, None)
    assert (proof.ok, proof.deleted) == (True, entries), proof.faults


def test_an_import_is_forgotten_with_the_last_that_it_made() -> None:
    world = World("K")

    def begin(tx: Tx) -> int:
        id_ = tx.runs.begin_import(TENANT, "", "a.csv", "operator:ann")
        tx.runs.finish_import(id_, {})
        return id_

    first, second = world.write(begin), world.write(begin)
    key = world.accepted("a")
    row = world.row(key)
    (reminder,) = world.read(lambda tx: tx.reminders.by_ids([row.reminder_id])).values()
    world.write(lambda tx: tx.reminders.insert([replace(reminder, reminder="made", import_id=first)]))
    keep = Keep(imports_s=30 * DAY_S)
    world.write(begin)
    _newest(world)
    _days(world, 31)
    _round(world, keep)
    assert [row["id"] for row in _rows(world, "import_list", tenant=TENANT, before=99, limit=9)] == [3, first]
    assert second == 2


def test_workers_and_admissions_beside_it_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Reminders are sent, listed again and again, and removed under their feet: each is sent once."""
    world = World("K", path=str(tmp_path / "store.db"))
    for nth in range(60):
        _admit(world, f"r-{nth}")
    world.pass_()
    world.settle([(claim, Accepted(f"x{claim.key}")) for claim in world.claim(most=60)])
    world.advance(1)
    while claims := world.claim(most=60):
        world.settle([(claim, Accepted(f"x{claim.key}")) for claim in claims])
        world.advance(1)
    _newest(world)
    _days(world, 100)
    others = [world.another_store() for _ in range(3)]
    errors: list[BaseException] = []
    verdicts: list[Verdict] = []
    start = threading.Barrier(3)

    def remove(store: Any) -> None:
        _run(Retention(store, world.policy, KEEP))

    def list_again(store: Any) -> None:
        for nth in range(60):
            asked = Asked(
                reminder=f"r-{nth}", customer="c-1", due="now", template="t", phone="+12025550123",
                data={"name": "Eve"},
            )  # fmt: skip
            prepared = prepare(asked, world.policy, world.book, secret=store.secret, now=world.now)
            try:
                verdicts.extend(
                    one.verdict
                    for one in store.write(
                        lambda tx: admit(tx, prepared, policy=world.policy, actor="a", mode=Mode.UPDATE)  # noqa: B023
                    ).result()
                )
            except StoreUnavailable:
                verdicts.append(Verdict.REFUSED)

    def run(step: Callable[[Any], None], store: Any) -> None:
        try:
            start.wait()
            step(store)
        except BaseException as error:
            errors.append(error)

    work = [(remove, others[0]), (remove, others[1]), (list_again, others[2])]
    threads = [threading.Thread(target=run, args=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        other.close()
    assert not errors, errors
    assert set(verdicts) == {Verdict.REFUSED}
    _days(world, 1)
    _round(world)
    assert len(_rows(world, "view_verify_rows", after=0, upto=1_000)) == 1
    proof = verify(world.store)
    assert (proof.ok, proof.removed) == (True, 60), proof.faults


def test_an_erased_person_is_removed_like_all_others() -> None:
    world = World("K")
    world.accepted("a")
    world.schedule("b", due_in_s=1e6)
    _newest(world)
    erasure.erase(world.store, "c-1", policy=world.policy, tenant=TENANT, reason="asked", actor="operator:a")
    _days(world, 100)
    _round(world)
    assert len(_rows(world, "view_verify_rows", after=0, upto=1_000)) == 1
    with pytest.raises(NotFound):
        erasure.preview(world.store, "c-1", policy=world.policy, tenant=TENANT)


def test_a_call_that_is_open_keeps_its_delivery_though_it_is_proven() -> None:
    world = World("K")
    key = world.schedule("a")
    world.pass_()
    (claim,) = world.claim()
    world.write(lambda tx: _prove(world, tx, key))
    _newest(world)
    _days(world, 100)
    _round(world)
    assert (_exists(world, key), world.state(key)) == (True, State.ACCEPTED)
    world.settle([(claim, Accepted("r"))])
    world.schedule("newer", due_in_s=1e9)
    _days(world, 1)
    _round(world)
    assert not _exists(world, key)


def test_what_comes_back_for_one_that_was_removed_meanwhile_is_told_and_stops_nobody() -> None:
    """A process slept for longer than ended deliveries are kept; the simulator found that its outcomes, and
    those beside them, could never be settled."""
    world = World("L")
    gone = world.schedule("gone")
    world.pass_()
    (slept,) = world.claim()
    world.advance(60.0)
    world.reap()
    world.advance(60.0)
    (doubt,) = world.write(
        lambda tx: reconciler.doubts(
            tx, world.policy, accounts=dict.fromkeys(world.accounts), secret=world.store.secret
        )
    )
    world.write(lambda tx: _prove(world, tx, gone))
    _newest(world)
    world.clock.advance(91 * DAY_S)
    world.reap()  # its lease is over, and its lane is free
    _round(world)
    assert not _exists(world, gone)
    world.schedule("beside", customer="c-2")
    world.pass_()
    world.beat()
    (beside,) = world.claim()
    assert world.settle([(slept, Accepted("late-1")), (beside, Accepted("r-2"))]) == [State.ACCEPTED]
    found = world.write(lambda tx: reconciler.resolve(tx, [(doubt, Found("late-1"))], world.policy))
    assert found == []
    assert verify(world.store).ok


def _prove(world: World, tx: Tx, key: str) -> None:
    (row,) = tx.deliveries.by_keys([(TENANT, key)])
    course = replace(row.course, receipt="r")
    told = {"receipt": "r"}
    move = move_on(row, Event.PROVEN, world.policy, tx, actor="provider", course=course, details=told)
    assert isinstance(move, Move)
    tx.deliveries.move([move])


def test_a_dead_sibling_keeps_what_was_sent() -> None:
    world = World("N", "K")
    sent = world.schedule("pair", account="email-N", also=(Channel.SMS,))
    world.pass_()
    world.send(Accepted("x"), "email-N")
    dead = world.fail_until_dead(world.key("pair", Channel.SMS))
    _newest(world)
    _days(world, 100)
    _round(world)
    assert world.read(lambda tx: tx.contents.get([(world.row(sent).id, 1)]))
    world.withdraw(dead)
    world.schedule("newer", due_in_s=1e9)
    _days(world, 100)
    _round(world)
    assert (_exists(world, sent), _exists(world, dead)) == (False, False)


@pytest.mark.sqlite_only  # it chooses its own place: on SQLite nobody else writes meanwhile
@pytest.mark.parametrize("gone", ["erased", "emptied", "removed"])
def test_what_goes_between_reading_a_reminder_and_locking_it_is_not_revised(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    place = OneStorePlace(postgres_url)
    monkeypatch.setattr(small, "place", place)
    world, other = World("K", "N"), World("K", "N")
    other.clock = world.clock
    assert _admit(world, "a", phone="", email="ann@example.com", category="email-N", due="in 1h").keys
    world.withdraw("a:c-1:email")
    _newest(world)
    days = {"erased": 0, "emptied": 31, "removed": 91}[gone]
    other.store.close()
    other.store = postgres.open_store(postgres_url, world.clock, inline=True, server_clock=False)
    _days(world, days)

    def revise(tx: Tx) -> None:
        find = tx.reminders.find

        def find_and_lose(keys: Any) -> Any:
            found = find(keys)
            if gone == "erased":
                erasure.erase(
                    other.store, "c-1", policy=world.policy, tenant=TENANT, reason="asked", actor="operator:a"
                )
            else:
                _run(Retention(other.store, world.policy, KEEP))
            return found

        tx.reminders.find = find_and_lose  # type: ignore[method-assign]
        asked = Asked(
            reminder="a", customer="c-1", due="in 1h", template="t", phone="+12025550123",
            data={"name": "Eve"}, category="sms-K",
        )  # fmt: skip
        prepared = prepare(asked, world.policy, world.book, secret=world.store.secret, now=world.now)
        admit(tx, prepared, policy=world.policy, actor="api:test", mode=Mode.UPDATE)

    with pytest.raises(StoreUnavailable, match="was removed while it was revised"):
        world.write(revise)
    assert {row["state"] for row in _rows(world, "view_verify_rows", after=0, upto=99)} <= {
        "CANCELLED",
        "SCHEDULED",
    }
    assert not _exists(world, "a:c-1:sms")
    other.store.close()
    place.close()
