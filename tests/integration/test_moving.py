"""A store moves whole to another place, and nothing is ever sent from both: each kind of database to each."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, Refused, SendonceError, StoreError, StoreMismatch
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted
from sendonce.pipeline.restore import hold_by_hand, released
from sendonce.pipeline.sealed import check_seals
from sendonce.pipeline.sealer import Sealer
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Tx
from sendonce.store import moving
from sendonce.store.migrate import migrate
from sendonce.store.moving import Copied, Moved, Side, move, reopen
from sendonce.store.moving_postgres import PostgresSide
from sendonce.store.moving_sqlite import SqliteSide
from sendonce.store.sqlite import TOKENS
from sendonce.store.tables import META, Table, tables
from sendonce.testing.clock import VirtualClock
from tests.integration import world as small
from tests.integration.places import OneStorePlace, SqlitePlace
from tests.integration.world import World
from tests.postgres_schemas import Schemas, bare

pytestmark = pytest.mark.sqlite_only  # each test says which of the two it has on which side

KINDS = ("sqlite", "postgres")
EACH_WAY = [f"{source} to {target}" for source in KINDS for target in KINDS]


class Home:
    """One place for a store, as the move sees it and as a process does."""

    def __init__(self, kind: str, where: str, clock: VirtualClock, opened: ExitStack) -> None:
        self.kind = kind
        self.where = where
        self._clock = clock
        self._opened = opened

    def side(self, *, target: bool = False) -> Side:
        made = (
            SqliteSide(self.where, self._clock, target=target)
            if self.kind == "sqlite"
            else PostgresSide(self.where)
        )
        return self._opened.enter_context(closing(made))

    def world(self) -> World:
        """As a process of this place, on the one clock. A gate more is made where the policy has one."""
        place = SqlitePlace() if self.kind == "sqlite" else OneStorePlace(self.where)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(small, "place", place)
            patched.setattr(small, "VirtualClock", lambda: self._clock)
            made = World("K", "L", "N", path=self.where if self.kind == "sqlite" else "")
        self._opened.callback(made.store.close)
        return made

    def run(self, statement: str) -> None:
        """Behind everybody's back; a process may not do it where the tables are closed."""
        if self.kind == "sqlite":
            with closing(apsw.Connection(self.where)) as raw:
                raw.execute(statement)
        else:
            url, schema = bare(self.where)
            with psycopg.connect(url) as connection:
                connection.execute(f"SET search_path = {schema}".encode())
                connection.execute(statement.encode())


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def home(
    opened: ExitStack, clock: VirtualClock, tmp_path: Path, postgres_schemas: Schemas
) -> Callable[[str], Home]:
    """A new place of a kind. A schema is not given back: its tables may be closed."""
    numbers = itertools.count(1)

    def make(kind: str) -> Home:
        if kind == "sqlite":
            return Home(kind, str(tmp_path / f"{next(numbers)}.db"), clock, opened)
        return Home(kind, postgres_schemas.take(), clock, opened)

    return make


@pytest.fixture(params=["sqlite to postgres", "postgres to sqlite"])
def way(request: pytest.FixtureRequest, home: Callable[[str], Home]) -> tuple[Home, Home]:
    source, target = str(request.param).split(" to ")
    return home(source), home(target)


def lived_in(home: Home) -> World:
    """A store in which every state, a seal and a removal stand; its processes have ended."""
    world = home.world()
    world.accepted("accepted")
    world.accepted("asked", account="sms-L")
    world.uncertain("uncertain", account="email-N")
    world.dead("dead")
    world.rejected("rejected")
    world.withdraw(world.schedule("cancelled"))
    world.schedule("grüße — ' \" \\ \t 🚚", customer="c\\2", due_in_s=3_600.0, group="g")
    world.schedule("called")
    world.schedule("calling")
    world.pass_()
    assert len(world.claim()) == 2, "calls are open when the process dies"
    world.schedule("queued")
    world.pass_()
    world.opt_out(Channel.EMAIL, "no@example.com")
    assert Sealer(world.store, None, every_s=1.0).seal_one() is not None
    world.schedule("unsealed")
    all_die(world)
    if home.kind == "postgres":  # the clock of the tests is not the server's: let the steady one be
        ahead = world.store.steady() - home.side().steady()
        home.run(f"INSERT INTO meta (name, value) VALUES ('steady_correction', '{ahead}')")
    return world


def _first_entry(home: Home, delivery_id: int) -> int:
    text = "SELECT min(id) FROM ledger WHERE delivery_id = ?"
    return int(home.side().run(text, delivery_id)[0][0])


def all_die(world: World) -> None:
    """Every process is killed, and its lease is over."""
    world.clock.advance(world.policy.lease_s + 1.0)
    world.write(lambda tx: tx.processes.mark_stopped(["w-1", "s-1"]))
    world.store.close()


def moved(source: Home, target: Home) -> Moved:
    return move(source.side(), target.side(target=True), reason="a larger house", actor="operator:ann")


def rows(home: Home) -> dict[str, list[tuple[Any, ...]]]:
    """All that is in a store, but for what each place has of its own."""
    side = home.side()
    return {table.name: list(moving._data(side, table)) for table in tables()}


@pytest.mark.parametrize("way", EACH_WAY, indirect=True)
def test_a_store_moves_whole_and_goes_on_where_it_stood(way: tuple[Home, Home]) -> None:
    source, target = way
    lived_in(source)
    before = rows(source)
    done = moved(source, target)

    after = rows(target)
    audited = after["audit"].pop()
    assert audited[3:6] == ("move", "store", "a larger house")
    assert after == before
    assert [(one.table, one.rows) for one in done.copied] == [
        (table.name, len(before[table.name]) + (table.name == "audit")) for table in tables()
    ]
    with pytest.raises(
        StoreMismatch, match=r"has moved to .* and sends nothing any more: name that one"
    ) as no:
        source.world()
    assert no.value.code == "store_moved"

    world = target.world()
    assert verify(world.store).ok
    assert check_seals(world.store, None).ok
    assert world.read(lambda tx: (tx.epoch, tx.held)) == (2, False)
    world.advance(120.0)
    assert world.reap() == 2, "what was being called when the process died"
    world.advance(120.0)
    world.pass_()
    tried = world.send(Accepted("r"))
    assert {f"{name}:c-1:sms" for name in ("called", "calling", "queued", "unsealed")} <= set(tried)
    highest = {name: max(row[0] for row in before[name]) for name in ("delivery", "reminder", "ledger")}
    new = world.schedule("new")
    assert world.row(new).id > highest["delivery"]
    assert world.row(new).reminder_id > highest["reminder"]
    assert _first_entry(target, world.row(new).id) > highest["ledger"]
    assert Sealer(world.store, None, every_s=1.0).seal_one() is not None
    assert check_seals(world.store, None).ok
    assert verify(world.store).ok


def test_every_table_comes_along_whatever_is_in_it(way: tuple[Home, Home]) -> None:
    source, target = way
    source.world().store.close()
    side = source.side()
    texts = itertools.cycle(["", "'\"\\\n\t\\N \\.", "grüße 🚚", "\x7f", "NULL"])
    numbers = itertools.cycle([0, 2**63 - 1, -(2**63), 7])
    kinds = _kinds()
    with side.alone():
        side.run("DELETE FROM process")
        for table in tables():
            if table.name in (META, "audit"):
                continue
            for nth in (1, 2, 3):
                row = [
                    nth
                    if table.key[:1] == (column,) and kinds[table.name, column] == "INTEGER"
                    else f"k{nth}"
                    if table.key[:1] == (column,)
                    else next(texts)
                    if kinds[table.name, column] == "TEXT"
                    else 0
                    if (table.name, column) == ("process", "lease_until")
                    else next(numbers)
                    for column in table.columns
                ]
                row = [
                    f"{value}{nth}" if kinds[table.name, c] == "TEXT" else value
                    for c, value in zip(table.columns, row, strict=True)
                ]
                _insert(side, table, row)
        side.run("DELETE FROM seal")  # a move to a file reads the last one
    before = rows(source)
    moved(source, target)
    after = rows(target)
    after["audit"].pop()
    assert after == before
    assert [name for name, found in after.items() if not found] == ["audit", "seal"]


def _kinds() -> dict[tuple[str, str], str]:
    """TEXT or INTEGER, by table and column."""
    with closing(SqliteSide(":memory:", VirtualClock(), target=False)) as empty:
        migrate(empty._raw, TOKENS)
        found = empty.run(
            "SELECT m.name, c.name, c.type FROM sqlite_master m CROSS JOIN pragma_table_info(m.name) c"
        )
    return {(name, column): "TEXT" if kind == "TEXT" else "INTEGER" for name, column, kind in found}


def _insert(side: Side, table: Table, row: list[Any]) -> None:
    places = ", ".join("?" * len(row))
    side.run(f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})", *row)


@pytest.mark.parametrize("kind", KINDS)
def test_no_table_is_unknown(kind: str, home: Callable[[str], Home]) -> None:
    """What a migration adds is on the list; what is there and on no list stops the move."""
    source = home(kind)
    source.world().store.close()
    assert {name: set(columns) for name, columns in source.side().columns().items()} == {
        table.name: set(table.columns) for table in tables()
    }
    source.run("CREATE TABLE notes (id BIGINT)")
    with pytest.raises(StoreMismatch, match=r"has not the tables of its schema version \(notes\)"):
        moved(source, home("sqlite"))


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_the_old_store_open_writes_nothing_more(kind: str, home: Callable[[str], Home]) -> None:
    source = home(kind)
    world = source.world()
    world.schedule("waits")
    world.pass_()
    world.clock.advance(world.policy.lease_s + 1.0)
    if kind == "postgres":  # whose leases the move judges by the server's clock: they are long over
        world.write(lambda tx: tx.processes.mark_stopped(["w-1"]))
    side, target = source.side(), home("sqlite")
    moved_here: list[str] = []

    def look(what: str, table: str, count: int) -> None:
        if not moved_here:  # while it is copied
            _refuses(world)
            moved_here.append(table)

    move(side, target.side(target=True), reason="r", actor="a", progress=look)
    assert moved_here
    _refuses(world)
    for table in tables():
        what = "VALUES ('name', 'value')" if table.name == META else "DEFAULT VALUES"
        with pytest.raises((apsw.ConstraintError, psycopg.Error), match="closed to be copied"):
            source.run(f"INSERT INTO {table.name} {what}")


def _refuses(world: World) -> None:
    for attempt in (world.claim, world.pass_, lambda: world.schedule("late"), world.beat):
        with pytest.raises(StoreMismatch, match=r"was closed to be copied to .*: nothing was written") as no:
            attempt()
        assert no.value.code == "store_moved"


def test_applications_are_refused_in_their_own_transactions(home: Callable[[str], Home]) -> None:
    source = home("postgres")
    source.world()
    source.run("UPDATE process SET stopped = 1")
    url, schema = bare(source.where)
    with psycopg.connect(url) as application:
        application.execute(f"SELECT {schema}.schedule('[]')".encode())
        application.commit()
        moved(source, home("sqlite"))
        one = '{"reminder": "r", "email": "a@example.com", "template": "t", "due": "2030-01-01T00:00Z"}'
        with pytest.raises(psycopg.Error, match="was closed to be copied to sqlite:///"):
            application.execute(f"SELECT {schema}.schedule('{one}')".encode())


class Killed(BaseException):
    """Nothing after it is run, as with a process that is gone."""


STEPS = ("_prepare", "_close", "_copy", "_compare", "_leave", "_open", "go_on_at", "move_in")
"""Killed before each of them, and so after the one before; at a table in the middle, where there are many."""


@pytest.mark.parametrize("step", STEPS)
def test_killed_anywhere_neither_works_until_the_same_command_has_ended(
    step: str, way: tuple[Home, Home]
) -> None:
    source, target = way
    source_world = source.world()
    source_world.schedule("waits")
    all_die(source_world)
    one, other = source.side(), target.side(target=True)
    where = moving if step.startswith("_") else other
    real = getattr(where, step)
    calls = itertools.count(1)

    def die(*given: Any, **named: Any) -> Any:
        if step not in ("_copy", "_compare") or next(calls) == len(tables()) // 2:
            raise Killed
        return real(*given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(where, step, die)
        with pytest.raises(Killed):
            move(one, other, reason="r", actor="a")
    for side in (one, other):
        side.close()  # type: ignore[attr-defined]

    works = [home.kind for home in (source, target) if _works(home)]
    if step in ("_prepare", "_close"):
        assert works == [source.kind], "nothing has begun"
    elif step == "move_in" and target.kind == "postgres":
        assert works == [target.kind], "all was done: only a file has to get its name"
    else:
        assert works == []

    done = moved(source, target)
    assert [home.kind for home in (source, target) if _works(home)] == [target.kind]
    assert done.epoch == 2
    world = target.world()
    assert [row[4] for row in rows(target)["audit"]] == ["store"], "it has moved once"
    world.pass_()
    assert world.send(Accepted("r")) == ["waits:c-1:sms"]
    assert verify(world.store).ok


def _works(home: Home) -> bool:
    if (home.kind == "sqlite" and not Path(home.where).exists()) or not home.side().version():
        return False
    try:
        world = home.world()
    except StoreMismatch as no:
        if no.code not in ("store_moved", "store_arriving"):
            raise
        return False
    world.clock.advance(world.policy.lease_s + 1.0)
    if (home.side().run("SELECT count(*) FROM process WHERE stopped = 0"))[0][0]:
        world.write(lambda tx: tx.processes.mark_stopped(["w-1"]))
    there = world.read(lambda tx: bool(tx.rows("view_demo_states")))
    world.store.close()
    return there


def test_a_process_that_is_really_killed_leaves_both_closed(way: tuple[Home, Home]) -> None:
    """SIGKILL in the middle of a table, from within."""
    source, target = way
    world = source.world()
    world.schedule_many(50)
    all_die(world)
    context = get_context("forkserver")
    context.set_forkserver_preload(["sendonce.app"])
    child = context.Process(target=_move_and_die, args=(source.kind, source.where, target.where))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not _works(source)
    assert not _works(target)
    done = moved(source, target)
    assert {one.table: one.rows for one in done.copied}["delivery"] == 50
    assert verify(target.world().store).ok


def _move_and_die(kind: str, source: str, target: str) -> None:
    clock = VirtualClock(boot_id="another")

    def die(what: str, table: str, count: int) -> None:
        if table == "ledger" and count >= 20:
            os.kill(os.getpid(), signal.SIGKILL)

    moving.BATCH_ROWS = 10  # type: ignore[misc]
    if kind == "sqlite":
        move(
            SqliteSide(source, clock, target=False), PostgresSide(target), reason="r", actor="a", progress=die
        )
    else:
        move(
            PostgresSide(source), SqliteSide(target, clock, target=True), reason="r", actor="a", progress=die
        )


def test_a_store_whose_move_was_not_ended_can_stay(way: tuple[Home, Home]) -> None:
    source, target = way
    lived_in(source)
    before = rows(source)
    killed_before("_compare", source, target)
    reopen(source.side(), reason="not today", actor="operator:ann")
    with pytest.raises(Refused, match="is not closed"):
        reopen(source.side(), reason="again", actor="operator:ann")
    after = rows(source)
    assert [row[3] for row in after["audit"]][-2:] == ["move", "reopen"]
    assert {**after, "audit": []} == {**before, "audit": []}
    world = source.world()
    assert verify(world.store).ok
    world.schedule("later")
    all_die(world)
    moved(source, target)
    assert target.world().state("later:c-1:sms") is State.SCHEDULED
    with pytest.raises(Refused, match=r"has moved to .*, which may be at work already"):
        reopen(source.side(), reason="r", actor="a")
    with pytest.raises(Refused, match=r"has moved to .*: copy that one, if it shall move again"):
        moved(
            source, Home("sqlite", f"{target.where}.elsewhere.db".split("?")[0], VirtualClock(), ExitStack())
        )


def killed_before(step: str, source: Home, target: Home) -> None:
    def die(*given: object, **named: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moving, step, die)
        with pytest.raises(Killed):
            moved(source, target)


def test_a_run_that_another_one_overtook_opens_nothing(way: tuple[Home, Home], home: Any) -> None:
    source, target = way
    all_die(source.world())
    real, elsewhere = moving._leave, home("sqlite")

    def overtaken(side: Side, mark: Any) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(moving, "_leave", real)
            moved(source, elsewhere)
        real(side, mark)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moving, "_leave", overtaken)
        with pytest.raises(Refused, match="was reopened meanwhile, or another copy was begun"):
            moved(source, target)
    assert not _works(source)
    assert _opens(elsewhere)
    assert not _opens(target)


def _opens(home: Home) -> bool:
    if home.kind == "sqlite" and not Path(home.where).exists():
        return False
    try:
        home.world()
    except StoreMismatch:
        return False
    return True


def test_what_differs_is_found_and_nothing_opens(way: tuple[Home, Home]) -> None:
    source, target = way
    lived_in(source)
    real = moving._copy

    def lossy(table: Table, one: Side, other: Side, progress: Any) -> Copied:
        copied = real(table, one, other, progress)
        if table.name == "leader":
            other.fill(table, [("sealer", "w-1", 1)])
        return copied

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moving, "_copy", lossy)
        with pytest.raises(
            StoreMismatch, match=r"table leader of .* is not what was copied \(1 rows for 0, digest"
        ):
            moved(source, target)
    assert not _works(source)
    assert not _works(target)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_not_quiet_stays_as_it_is(kind: str, home: Callable[[str], Home]) -> None:
    source, target = home(kind), home("sqlite")
    world = source.world()
    source.run(f"UPDATE process SET lease_until = {2**62}")
    with pytest.raises(Refused, match=r"is worked on \(worker 1 on host\): stop these first") as no:
        moved(source, target)
    assert no.value.code == "processes_alive"
    source.run("UPDATE process SET stopped = 1")
    hold_by_hand(world.store, reason="a disk was replaced", actor="operator:ann")
    with pytest.raises(Refused, match="is held, since it may have lost what was written last") as no:
        moved(source, target)
    assert no.value.code == "store_held"
    released(world.store, world.policy, reason="compared", actor="operator:ann", nothing_lost=True)
    with pytest.raises(InvalidInput, match="is both source and target"):
        moved(source, source)
    world.schedule("works")
    moved(source, target)
    assert target.world().read(lambda tx: tx.epoch) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_used_stays_as_it_is(kind: str, home: Callable[[str], Home]) -> None:
    source, target, other = home("sqlite"), home(kind), home("sqlite")
    for each in (source, other):
        world = each.world()
        world.schedule("a")
        all_die(world)
    world = target.world()
    world.schedule("b")
    world.store.close()
    before = rows(target)
    says = "is there already and stays as it is" if kind == "sqlite" else r"is not empty \(.*delivery, .*\)"
    with pytest.raises(InvalidInput, match=says):
        moved(source, target)
    assert rows(target) == before
    source.world().store.close()

    half = home(kind)
    killed_before("_close", other, half)
    all_die(source.world())
    with pytest.raises(InvalidInput, match="holds a part of another store"):
        moved(source, half)


def test_a_postgresql_that_was_only_looked_at_is_empty(home: Callable[[str], Home]) -> None:
    """`sendonce check` on the new configuration makes the schema and a gate for each account."""
    source, target = home("sqlite"), home("postgres")
    all_die(source.world())
    target.world().store.close()
    target.run("DELETE FROM process; DELETE FROM template")
    moved(source, target)
    ((secret,),) = source.side().run("SELECT value FROM meta WHERE name = 'secret'")
    assert target.world().store.secret.hex() == secret


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_of_another_version_does_not_move(kind: str, home: Callable[[str], Home]) -> None:
    source = home(kind)
    with pytest.raises(SendonceError, match=r"holds no store|cannot be opened"):
        moved(source, home("sqlite"))
    all_die(source.world())
    for version, says in ((0, "holds no store"), (99, "install the newer sendonce that wrote it")):
        source.run(f"UPDATE meta SET value = '{version}' WHERE name = 'schema_version'")
        with pytest.raises(SendonceError, match=says):
            moved(source, home("sqlite"))


def test_who_cannot_be_reached_is_named(home: Callable[[str], Home]) -> None:
    source = home("sqlite")
    all_die(source.world())
    away = PostgresSide("postgresql://nobody:secret@127.0.0.1:1/x")
    with pytest.raises(
        StoreError, match=r"database x at 127\.0\.0\.1, schema sendonce cannot be reached"
    ) as no:
        move(source.side(), away, reason="r", actor="a")
    assert "secret" not in str(no.value)
    target = SqliteSide(f"{source.where}/in/no.db", VirtualClock(), target=True)
    with pytest.raises(InvalidInput, match="cannot be written to"):
        move(source.side(), target, reason="r", actor="a")
    assert _opens(source)


def test_numbers_that_a_block_covers_are_not_given_again_by_a_file(home: Callable[[str], Home]) -> None:
    """A failed transaction used the last ones up, and a block was sealed over them."""
    source = home("postgres")
    world = source.world()
    world.accepted("a")

    def fail(tx: Tx) -> None:
        raise RuntimeError("after an entry got its number")

    def used_up(tx: Tx) -> None:
        world._insert(tx, world._reminder(world.policy.accounts["sms-K"], world.now))
        fail(tx)

    sealer = Sealer(world.store, None, every_s=1.0)
    assert sealer.seal_one() is not None
    world.write(lambda tx: None)
    with pytest.raises(RuntimeError):
        world.write(used_up)
    world.accepted("b")
    with pytest.raises(RuntimeError):
        world.write(used_up)
    assert sealer.seal_one() is not None
    source.run("UPDATE process SET stopped = 1")
    with pytest.raises(Refused, match="covers numbers behind the last entry"):
        moved(source, home("sqlite"))
    last = source.side().run("SELECT max(id) FROM ledger")[0][0]
    target = home("postgres")
    moved(source, target)
    new = target.world()
    assert _first_entry(target, new.row(new.schedule("c")).id) > last + 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_steady_clock_goes_on(kind: str, home: Callable[[str], Home], clock: VirtualClock) -> None:
    """Behind the calendar or ahead of it: keys are as old as they were, and no lane is freed early."""
    for step_s in (-7_200.0, 3_600.0):
        source, target = home(kind), home(kind)
        world = source.world()
        if kind == "sqlite":
            clock.step(step_s)
        else:
            source.run(
                f"INSERT INTO meta (name, value) VALUES ('steady_correction', '{round(step_s * 1e6)}')"
            )
        source.run("UPDATE process SET stopped = 1")
        world.store.close()
        moved(source, target)
        before, after = source.side().steady(), target.side().steady()
        assert abs(before - after) < (1 if kind == "sqlite" else 5_000_000)
        if kind == "sqlite":
            assert target.world().store.steady() == before
