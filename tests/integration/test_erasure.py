"""Erasing a person: nothing of them is found afterwards, nothing of theirs is sent, and the record holds."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import apsw
import psycopg
import pytest

from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel, customer_tag
from sendonce.core.errors import NotFound, StoreUnavailable
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted, Failed, Reason, Unknown
from sendonce.core.reminder import Asked
from sendonce.core.retention import Keep
from sendonce.pipeline import claimer, consent, erasure
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.intake import Mode, Result, Verdict, admit
from sendonce.pipeline.retention import Retention
from sendonce.pipeline.scheduler import Scheduler
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Delivery, Tx
from sendonce.preparation import name_of_person, prepare
from sendonce.store.overwrite import empty_log
from sendonce.template_book import TemplateBook, from_store
from sendonce.testing.postgres_server import PostgresServer
from tests.integration import world as small
from tests.integration.places import OneStorePlace
from tests.integration.world import TENANT, World

NAME = "Zerlina Quux"
ADDRESS = "zerlina.quux@example.com"
WHO = "c-zerlina"


def _erase(world: World, customer: str = WHO, *, may_write: bool = False) -> erasure.Erased:
    return erasure.erase(
        world.store,
        customer,
        policy=world.policy,
        tenant=TENANT,
        reason="asked by letter",
        actor="operator:ann",
        may_write=may_write,
    )


def _schedule(world: World, reminder: str, **given: object) -> str:
    fields: dict[str, object] = {"customer": WHO, "to": ADDRESS, "data": {"name": NAME}, **given}
    return world.schedule(reminder, **fields)  # type: ignore[arg-type]


def _admit(world: World, mode: Mode = Mode.NEW, **given: object) -> Result:
    asked = Asked(
        **{  # type: ignore[arg-type]
            "reminder": "r-1",
            "customer": WHO,
            "due": "now",
            "template": "t",
            "email": ADDRESS,
            "data": {"name": NAME},
            "category": world.accounts[0],
            **given,
        }
    )
    prepared = prepare(asked, world.policy, world.book, secret=world.store.secret, now=world.now)
    return world.write(lambda tx: admit(tx, prepared, policy=world.policy, actor="api:test", mode=mode))[0]


def _texts(world: World, *keys: str) -> int:
    ids = [(world.row(key).id, version) for key in keys for version in (1, 2)]
    return sum(len(world.read(lambda tx, one=one: tx.contents.get([one]))) for one in ids)  # type: ignore[misc]


def test_what_is_not_sent_ends_and_what_was_said_is_destroyed() -> None:
    world = World("N")
    sent = _schedule(world, "sent")
    world.pass_()
    world.send(Accepted("x"))
    queued = _schedule(world, "queued")
    world.pass_()
    future = _schedule(world, "future", due_in_s=1e6)
    other = world.schedule("other", customer="c-2", to="bob@example.com", due_in_s=1e6)
    done = _erase(world)
    assert (done.deliveries, done.reminders, done.texts, done.waiting) == (3, 3, 2, 0)
    assert done.answers == {"cancelled": 2}
    assert [world.state(key) for key in (sent, queued, future, other)] == [
        State.ACCEPTED, State.CANCELLED, State.CANCELLED, State.SCHEDULED,
    ]  # fmt: skip
    assert world.row(queued).course.reason == "erased"
    assert _texts(world, sent, queued, future) == 0
    for key in (sent, queued, future):
        reminder = world.read(lambda tx, key=key: tx.reminders.by_ids([world.row(key).reminder_id]))  # type: ignore[misc]
        (one,) = reminder.values()
        assert (one.data, one.recipients, one.spec_hash) == ("{}", {}, "")
    assert verify(world.store).ok
    (kept,) = world.read(lambda tx: tx.reminders.by_ids([world.row(other).reminder_id])).values()
    assert kept.recipients


def test_a_preview_says_the_same_and_changes_nothing() -> None:
    world = World("N")
    _schedule(world, "a")
    world.pass_()
    _schedule(world, "b", due_in_s=1e6)
    world.schedule("shared", customer="c-2", to=ADDRESS, due_in_s=1e6)
    seen = erasure.preview(world.store, WHO, policy=world.policy, tenant=TENANT)
    assert [world.state(world.key(r, Channel.EMAIL, WHO)) for r in ("a", "b")] == ["QUEUED", "SCHEDULED"]
    assert not world.read(lambda tx: tx.rows("view_audit", before=10**9, limit=9))
    assert replace(seen, preview=False) == _erase(world)
    assert (seen.others, seen.addresses) == (1, 1)


def test_nobody_erased_is_written_to_again_though_no_address_is_kept() -> None:
    world = World("N")
    _schedule(world, "a", due_in_s=1e6)
    world.opt_out(Channel.EMAIL, ADDRESS)
    _erase(world)
    tag = world.tag(Channel.EMAIL, ADDRESS)
    records = world.read(
        lambda tx: tx.rows(
            "preference_list", tenant=TENANT, channel="", address_tag="", category="", kind="", limit=9
        )
    )
    assert [(row["address_tag"], row["kind"], row["masked"]) for row in records] == [
        (tag, Kind.OPT_OUT, ""),
        (tag, Kind.SUPPRESSED, ""),
    ]
    assert _admit(world, reminder="anew", customer="c-other").verdict is Verdict.ACCEPTED
    world.pass_()
    assert world.state("anew:c-other:email") is State.SUPPRESSED


def test_with_may_write_a_new_reminder_goes_out() -> None:
    world = World("N")
    _schedule(world, "a", due_in_s=1e6)
    assert _erase(world, may_write=True).addresses == 0
    _admit(world, reminder="anew")
    world.pass_()
    assert world.state("anew:c-zerlina:email") is State.QUEUED


@pytest.mark.parametrize(
    ("mode", "given", "verdict"),
    [
        (Mode.NEW, {}, Verdict.UNCHANGED),
        (Mode.NEW, {"data": {"name": "Z"}}, Verdict.UNCHANGED),
        (Mode.UPDATE, {"data": {"name": "Z"}}, Verdict.REFUSED),
        (Mode.UPDATE, {"phone": "+12025550123", "email": ""}, Verdict.REFUSED),
    ],
)
def test_the_same_reminder_scheduled_anew_is_known_and_stays_as_it_is(
    mode: Mode, given: dict[str, object], verdict: Verdict
) -> None:
    world = World("N", "K")
    _admit(world, due="in 2h")
    _erase(world, may_write=True)
    result = _admit(world, mode, due="in 2h", **given)
    assert (result.verdict, "erased" in result.why) == (verdict, True)
    world.advance(3 * 3600)
    world.pass_()
    assert world.claim() == []
    assert (
        world.read(
            lambda tx: len(tx.deliveries.matching("customer", {"tenant": TENANT, "customer": WHO}, 9, 0))
        )
        == 1
    )


def test_what_is_on_its_way_ends_by_the_life_cycle_and_the_rest_follows() -> None:
    world = World("L", "N")
    asked = world.schedule("asked", customer=WHO, data={"name": NAME})
    world.pass_()
    (claim,) = world.claim()
    first = _erase(world)
    assert (first.waiting, first.answers) == (1, {"cancel_pending": 1})
    assert _texts(world, asked) == 1  # it is needed to ask the provider about it
    world.settle([(claim, Unknown("timeout"))])
    assert world.state(asked) is State.RECONCILING
    overwritten: list[int] = []
    retention = Retention(
        world.store, world.policy, Keep(), overwrite=lambda: overwritten.append(_texts(world, asked))
    )
    retention.step()
    assert (_texts(world, asked), overwritten) == (1, [])
    world.write(lambda tx: _found(world, tx, asked))
    assert world.state(asked) is State.ACCEPTED
    retention.step()
    retention.step()
    assert (_texts(world, asked), overwritten) == (0, [0])
    assert world.read(lambda tx: tx.removals.asked(9)) == []
    assert verify(world.store).ok


def _found(world: World, tx: Tx, key: str) -> None:
    from sendonce.moves import move_on
    from sendonce.ports.store import Move

    (row,) = tx.deliveries.by_keys([(TENANT, key)])
    move = move_on(
        row,
        Event.PROVEN,
        world.policy,
        tx,
        actor="provider",
        course=replace(row.course, receipt="r"),
        details={"receipt": "r"},
    )
    assert isinstance(move, Move)
    tx.deliveries.move([move])


@pytest.mark.parametrize(
    ("outcome", "ends"),
    [(Accepted("x"), State.ACCEPTED), (Failed(Reason.UNAVAILABLE, "503"), State.CANCELLED)],
)
def test_an_open_call_may_finish_and_is_not_repeated(outcome: Accepted | Failed, ends: State) -> None:
    world = World("K")
    key = world.schedule("a", customer=WHO)
    world.pass_()
    claims = world.claim()
    assert _erase(world).waiting == 1
    world.settle([(claim, outcome) for claim in claims])
    world.advance(60)
    assert (world.state(key), world.claim()) == (ends, [])
    assert _erase(world).waiting == 0
    assert _texts(world, key) == 0


def test_dead_letters_and_uncertain_ones_are_erased_and_never_go_again() -> None:
    world = World("N", "K")
    uncertain = world.uncertain("u", customer=WHO)
    dead = world.dead("d", customer=WHO, account="sms-K")
    done = _erase(world)
    assert done.waiting == 0
    assert (world.state(uncertain), world.state(dead)) == (State.UNCERTAIN, State.CANCELLED)
    assert _texts(world, uncertain, dead) == 0
    assert verify(world.store).ok
    with pytest.raises(AssertionError, match="cancelled or opted out"):
        world.permit(uncertain)


def test_the_audit_names_nobody_and_erasing_again_changes_nothing() -> None:
    world = World("N")
    _schedule(world, "a", due_in_s=1e6)
    _erase(world)
    before = world.events("a:c-zerlina:email")
    again = _erase(world)
    assert not again.changed
    assert world.events("a:c-zerlina:email") == before
    audit = world.read(lambda tx: tx.rows("view_audit", before=10**9, limit=9))
    assert [row["action"] for row in audit] == ["erased", "erase", "erased", "erase"]
    assert {row["target"] for row in audit} == {customer_tag(world.store.secret, TENANT, WHO)}
    assert WHO not in json.dumps([dict(row) for row in audit])


def test_one_that_was_killed_is_finished_by_a_scheduler() -> None:
    world = World("N")
    keys = [_schedule(world, f"r-{nth}", due_in_s=1e6) for nth in range(2 * erasure.PAGE)]

    def killed(done: erasure.Erased) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        erasure.erase(
            world.store,
            WHO,
            policy=world.policy,
            tenant=TENANT,
            reason="asked",
            actor="operator:ann",
            may_write=True,
            progress=killed,
        )
    states = Counter(world.state(key) for key in keys)
    assert states == {State.CANCELLED: erasure.PAGE, State.SCHEDULED: erasure.PAGE}
    Retention(world.store, world.policy, Keep()).step()
    assert {world.state(key) for key in keys} == {State.CANCELLED}
    assert not world.read(lambda tx: tx.removals.asked(9))
    assert not world.read(
        lambda tx: tx.preferences.of([(TENANT, "email", world.tag(Channel.EMAIL, ADDRESS))])
    )


def test_nobody_is_known_by_this_id() -> None:
    with pytest.raises(NotFound, match="nothing is known"):
        _erase(World("N"))


def test_what_waits_in_the_outbox_is_dropped_also_where_it_cannot_be_read(tmp_path: Path) -> None:
    world = World("N", path=str(tmp_path / "store.db"))
    _schedule(world, "a", due_in_s=1e6)
    nameless = name_of_person(world.tag(Channel.EMAIL, ADDRESS))
    for nth, body in enumerate(
        [
            {"reminder": "w-1", "customer_id": WHO, "email": ADDRESS},
            {"reminder": "w-2", "customer": WHO, "email": "no address", "nonsense": 1},
            {"reminder": "w-3", "customer": "c-2", "email": ADDRESS},
            {"reminder": "w-4", "email": ADDRESS.upper(), "priority": "x"},
        ]
    ):
        world.tamper(
            "INSERT INTO intake (tenant, body, asked_at, asked_by, parked, field, why) "
            f"VALUES ('default', '{json.dumps(body)}', 0, 'app', {nth % 2}, '', '')"
        )
    assert _erase(world).dropped == 2
    assert _erase(world, nameless).dropped == 1
    (left,) = world.read(lambda tx: tx.removals.handed_in(9, 0))
    assert "w-3" in left.body


# Nothing of them is found


def _live(world: World) -> None:
    """Everything that can leave a trace of a person, among hundreds of others, in every order."""
    for nth in range(120):
        who = WHO if nth % 3 == 0 else f"c-{nth}"
        to = ADDRESS if nth % 3 == 0 else f"bob{nth}@example.com"
        data = {"name": NAME if nth % 3 == 0 else "Bob", "long": (NAME if nth % 3 == 0 else "Bob") * 300}
        world.schedule(f"r-{nth}", customer=who, to=to, data=data, due_in_s=nth % 2 * 1e6)
    _admit(world, reminder="revised", due="in 9h")
    _admit(world, Mode.UPDATE, reminder="revised", due="in 9h", email=f"old.{ADDRESS}")
    _admit(world, Mode.UPDATE, reminder="revised", due="in 9h")
    world.pass_()
    world.send(Accepted("x"))
    values = {"address": ADDRESS, "kind": "opt_out", "evidence": f"{NAME} called"}
    record = consent.record_of(values, world.policy, now=world.now)
    consent.record(world.store, [record], policy=world.policy, actor="operator:ann")


TRACES = (ADDRESS.encode(), NAME.encode(), b"zerlina.q", b"z***")


@pytest.mark.sqlite_only
def test_no_byte_of_them_is_left_in_the_files_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    world = World("N", path=str(path))
    _live(world)
    before = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert all(before.count(trace) > 1 for trace in TRACES[:3])
    assert _erase(world).reminders == 41
    assert empty_log(str(path), wait_s=10.0)
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert not [(name, trace) for name, text in after.items() for trace in TRACES if trace in text]
    assert after["store.db"].count(b"bob1@example.com") > 0
    assert verify(world.store).ok


@pytest.mark.sqlite_only
def test_a_log_that_somebody_reads_is_emptied_once_he_is_done(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    world = World("N", path=str(path))
    _live(world)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN; SELECT count(*) FROM delivery").fetchall()
    _erase(world)
    assert not empty_log(str(path), wait_s=0.0)
    reader.execute("COMMIT")
    assert empty_log(str(path), wait_s=0.0)
    reader.close()


@pytest.mark.sqlite_only  # it makes its own database
def test_no_byte_of_them_is_in_a_dump_of_postgresql(postgres_server: PostgresServer) -> None:
    name = "erased"
    postgres_server.create_database(name)
    url = postgres_server.url(name)
    place = OneStorePlace(url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "place", place)
        world = World("N")
        _live(world)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO sendonce.intake (tenant, body, asked_at, asked_by, parked, field, why) "
                "VALUES ('default', %s, 0, 'app', 1, 'email', %s)",
                (json.dumps({"reminder": "w", "customer": WHO, "email": ADDRESS}), f"{ADDRESS} is wrong"),
            )
            assert all(_dump(connection).count(trace) > 1 for trace in TRACES[:3])
            assert _erase(world).dropped == 1
            text = _dump(connection)
            assert not [trace for trace in TRACES if trace in text]
            assert b"bob1@example.com" in text
        assert verify(world.store).ok
        place.close()
    postgres_server.drop_database(name)


def _dump(connection: psycopg.Connection) -> bytes:
    """All that a dump holds: every row of every table, as COPY writes it."""
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'sendonce'").fetchall()
    assert len(tables) > 20
    dumped = b""
    for (table,) in tables:
        with connection.cursor().copy(f"COPY sendonce.{table} TO STDOUT".encode()) as rows:
            dumped += b"".join(bytes(row) for row in rows)
    return dumped


# Beside others


@pytest.mark.parametrize("batch", range(3))
def test_a_claim_and_a_publication_beside_it_come_before_or_after(tmp_path: Path, batch: int) -> None:
    """Workers claim, schedulers publish and admissions revise while a customer is erased: whatever is claimed
    was claimed before its cancel, and afterwards nothing is left."""
    world = World("N", path=str(tmp_path / "store.db"))
    for nth in range(40):
        world.schedule(f"r-{nth}", customer=WHO, to=ADDRESS, data={"name": NAME})
    _admit(world, reminder="revised", due="in 1h")
    numbers = count()
    others = [world.another_store() for _ in range(3)]
    started, stop = threading.Barrier(4), threading.Event()
    claimed: list[Claim] = []
    errors: list[BaseException] = []

    def run(step: Callable[[], None]) -> None:
        try:
            started.wait()
            while not stop.is_set():
                step()
        except BaseException as error:
            errors.append(error)

    def publish() -> None:
        book = TemplateBook(from_store(others[0]))
        Scheduler(others[0], world.policy, book, process="s-2").run(trigger="test")

    def claim() -> None:
        account = world.policy.accounts["email-N"]
        unit = partial(
            claimer.claim, account=account, policy=world.policy, process="w-1", secret=others[1].secret,
            lead_us=2_000, most=2,
        )  # fmt: skip
        found = list(others[1].write(unit).result().claims)
        claimed.extend(found)

    def revise() -> None:
        asked = Asked(
            reminder="revised",
            customer=WHO,
            due="in 1h",
            template="t",
            email=ADDRESS,
            data={"name": f"Z{next(numbers)}"},
        )
        prepared = prepare(asked, world.policy, world.book, secret=others[2].secret, now=world.now)
        with suppress(StoreUnavailable):  # it was erased while it was revised
            others[2].write(
                lambda tx: admit(tx, prepared, policy=world.policy, actor="api", mode=Mode.UPDATE)
            ).result()

    threads = [threading.Thread(target=run, args=(step,)) for step in (publish, claim, revise)]
    for thread in threads:
        thread.start()
    started.wait()
    time.sleep(batch * 0.02)  # where it falls does not matter, only that it falls differently
    _erase(world)
    stop.set()
    for thread in threads:
        thread.join()
    for other in others:
        other.close()
    assert not errors, errors
    world.settle([(one, Accepted("x")) for one in claimed])
    done = _erase(world)
    assert done.waiting == 0
    states = Counter(row.standing.state for row in world.read(lambda tx: find_all(tx)))
    assert states[State.ACCEPTED] == len(claimed) == len({one.key for one in claimed})
    assert states[State.ACCEPTED] + states[State.CANCELLED] + states[State.SUPPRESSED] == 41
    assert not world.read(lambda tx: tx.rows("view_verify_contents", after=0, upto=10_000))
    assert verify(world.store).ok


def find_all(tx: Tx) -> list[Delivery]:
    return tx.deliveries.matching("customer", {"tenant": TENANT, "customer": WHO}, 1_000, 0)
