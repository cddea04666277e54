"""The seals on a real store: what is sealed, and that whatever is tampered with is found and named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import psycopg
import pytest

from sendonce.core import seal
from sendonce.core.errors import Refused
from sendonce.core.ledger import Fault, link
from sendonce.core.retention import Keep
from sendonce.core.seal import SealedBlock
from sendonce.pipeline.restore import hold_by_hand
from sendonce.pipeline.retention import Retention
from sendonce.pipeline.sealed import Sealed, check_seals
from sendonce.pipeline.sealer import AGAIN_S, Sealer, refuse_unsealed
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Store, Tx
from sendonce.store import postgres, sqlite
from sendonce.testing.clock import VirtualClock
from tests.integration.world import World
from tests.postgres_schemas import bare

KEY = "r-1:c-1:sms"


class TestKey:
    """A key whose signatures are easy to see through."""

    __test__ = False

    def __init__(self, key: str = "k1") -> None:
        self.key = key
        self.keys = [key]

    def sign(self, payload: bytes) -> str:
        return f"{self.key} signs {seal.hash_of(payload.decode())}"

    def holds(self, key: str, payload: bytes, signature: str) -> bool:
        return signature == TestKey(key).sign(payload)


SIGNER = TestKey()


def sealer(
    store: Store, signer: TestKey | None = SIGNER, export: Callable[[str], None] | None = None
) -> Sealer:
    return Sealer(store, signer, every_s=10.0, export=export)


def seal_all(store: Store, signer: TestKey | None = SIGNER) -> list[SealedBlock]:
    one = sealer(store, signer)
    blocks = []
    while (block := one.seal_one()) is not None:
        blocks.append(block)
    return blocks


def blocks(world: World) -> list[SealedBlock]:
    return world.read(lambda tx: tx.seals.page(0, 1_000))


def live(world: World, count: int = 3, first: int = 1) -> None:
    """Deliveries that were sent, sealed in blocks of their own."""
    for number in range(first, first + count):
        world.accepted(f"r-{number}")
        seal_all(world.store)


def checked(world: World, exported: Sequence[str] = ()) -> Sealed:
    return check_seals(world.store, SIGNER, exported)


def entries(world: World) -> list[seal.Entry]:
    return world.read(lambda tx: tx.seals.entries(0, 1_000_000, 1_000_000))


# Sealing


def test_what_is_there_is_sealed_once_and_what_comes_later_next() -> None:
    world = World("K")
    assert seal_all(world.store) == []
    world.accepted("r-1")
    (first,) = seal_all(world.store)
    world.advance(1)
    world.accepted("r-2")
    (second,) = seal_all(world.store)
    assert seal_all(world.store) == []
    one, two = seal.read(first.header), seal.read(second.header)
    assert (one.number, one.previous, one.after, one.at) == (1, "", 0, world.now - 1_000_000)
    assert (two.number, two.previous, two.after) == (2, first.hash, one.upto)
    assert one.count + two.count == len(entries(world)) == 8
    found = checked(world)
    assert found.faults == []
    assert (found.blocks, found.entries, found.unsigned, found.unsealed) == (2, 8, 0, 0)


def test_many_entries_become_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "IDS_MAX", 64)
    world = World("K")
    world.schedule_many(200)
    assert [seal.read(block.header).count for block in seal_all(world.store)] == [64, 64, 64, 8]
    found = checked(world)
    assert (found.faults, found.blocks, found.entries) == ([], 4, 200)


def test_without_a_key_blocks_are_chained_and_counted_as_unsigned() -> None:
    world = World("K")
    world.accepted()
    (block,) = seal_all(world.store, None)
    assert (block.signature, seal.read(block.header).key) == ("", "")
    found = check_seals(world.store, None)
    assert (found.faults, found.blocks, found.unsigned) == ([], 1, 1)


def test_a_key_may_come_later_and_then_stays() -> None:
    world = World("K")
    world.accepted("r-1")
    seal_all(world.store, None)
    world.accepted("r-2")
    seal_all(world.store)
    assert (checked(world).faults, checked(world).unsigned) == ([], 1)
    world.accepted("r-3")
    seal_all(world.store, None)
    (fault,) = checked(world).faults
    assert (fault.key, fault.what) == ("block 3", "it is not signed, and block 2 before it is")


def hold(world: World) -> None:
    hold_by_hand(world.store, reason="restored", actor="operator:ann")


def test_a_held_store_is_not_sealed() -> None:
    world = World("K")
    world.accepted()
    hold(world)
    assert seal_all(world.store) == []


def meanwhile(world: World, do: Callable[[], object]) -> Callable[[], SealedBlock | None]:
    """A sealer that has found what to seal when something else is done first."""
    real, asked = world.store.read, [0]

    def read(query: Callable[[Tx], object]) -> object:
        answer = real(query)
        asked[0] += 1
        if asked[0] == 2:
            do()
        return answer

    def seal_one() -> SealedBlock | None:
        world.store.read = read  # type: ignore[method-assign, assignment]
        try:
            return sealer(world.store).seal_one()
        finally:
            world.store.read = real  # type: ignore[method-assign]

    return seal_one


def test_two_sealers_make_one_chain() -> None:
    world = World("K")
    world.accepted()
    second = sealer(world.store)
    made: list[SealedBlock | None] = []
    assert meanwhile(world, lambda: made.append(second.seal_one()))() is None
    assert made != [None]
    assert (checked(world).faults, checked(world).blocks) == ([], 1)


def test_a_store_that_is_held_meanwhile_is_not_sealed() -> None:
    world = World("K")
    world.accepted()
    assert meanwhile(world, lambda: hold(world))() is None
    assert blocks(world) == []


def test_a_step_says_when_to_come_again_and_exports_the_last_block_once() -> None:
    world = World("K")
    exported: list[str] = []
    one = sealer(world.store, export=exported.append)
    assert one.step() == 10.0
    world.accepted("r-1")
    assert one.step() == 10.0
    assert one.step() == 10.0
    assert exported == [seal.spell_checkpoint(blocks(world)[0])]


def test_a_full_block_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "IDS_MAX", 64)
    world = World("K")
    world.schedule_many(130)
    one = sealer(world.store)
    assert [one.step() for _ in range(4)] == [0.0, 0.0, 10.0, 10.0]


def test_checkpoints_keep_their_distance() -> None:
    world = World("K")
    exported: list[str] = []
    one = Sealer(world.store, SIGNER, every_s=10.0, export=exported.append, export_every_s=60.0)
    for number in range(5):
        world.accepted(f"r-{number}")
        one.step()
        world.advance(20)
    assert [seal.read_checkpoint(line)[1].number for line in exported] == [1, 4]


def test_a_checkpoint_that_cannot_be_exported_is_tried_again() -> None:
    world = World("K")
    exported: list[str] = []

    def export(line: str) -> None:
        exported.append(line)
        if len(exported) == 1:
            raise OSError("no space left")

    one = sealer(world.store, export=export)
    world.accepted("r-1")
    assert [one.step() for _ in range(3)] == [10.0, 10.0, 10.0]
    assert len(exported) == 2


# What PostgreSQL alone can do: an open transaction with a lower number. (These choose their own place.)


@pytest.fixture
def many(postgres_url: str) -> Iterator[tuple[Store, psycopg.Connection]]:
    """A store, and a stranger's connection to it."""
    url, schema = bare(postgres_url)
    store = postgres.open_store(postgres_url, VirtualClock(), inline=True, server_clock=False)
    with psycopg.connect(url) as other:
        other.execute(f"SET search_path = {schema}".encode())
        other.commit()
        yield store, other
    store.close()


def write_entry(connection: psycopg.Connection, seq: int) -> int:
    row = connection.execute(
        b"INSERT INTO ledger (delivery_id, seq, at, event, body, hash, receipt) "
        b"VALUES (7, $1, 1, 'claimed', '{}', 'h', '') RETURNING id".replace(b"$1", b"%d" % seq)
    ).fetchone()
    assert row is not None
    return int(row[0])


def write_more(store: Store, seq: int) -> None:
    """One entry of another transaction, committed."""
    store.write(
        lambda tx: tx.deliveries._session.run(  # type: ignore[attr-defined]
            "ledger_append",
            {
                "delivery_id": 8,
                "seq": seq,
                "at": 1,
                "event": "claimed",
                "body": "{}",
                "hash": "h",
                "receipt": "",
            },
        )
    ).result()


@pytest.mark.sqlite_only
def test_an_open_transaction_with_a_lower_number_is_waited_for(
    many: tuple[Store, psycopg.Connection],
) -> None:
    store, other = many
    one = sealer(store)
    write_more(store, 1)
    low = write_entry(other, 1)
    write_more(store, 2)  # a higher number, committed before it
    for seq in range(3, 8):
        assert one.step() == AGAIN_S
        write_more(store, seq)
    assert store.read(lambda tx: tx.seals.last()) is None
    other.commit()
    assert one.step() == 10.0
    sealed = [
        seal.read(block.header) for block in (*store.read(lambda tx: tx.seals.page(0, 9)), *seal_all(store))
    ]
    numbers = [id_ for block in sealed for each in seal.ranges_of(block.ids) for id_ in each]
    assert numbers == [entry[0] for entry in store.read(lambda tx: tx.seals.entries(0, 99, 99))]
    assert low in numbers
    assert len(numbers) == 8
    assert check_seals(store, SIGNER).faults == []


@pytest.mark.sqlite_only
def test_what_was_given_up_leaves_a_gap_for_ever(many: tuple[Store, psycopg.Connection]) -> None:
    store, other = many
    write_more(store, 1)
    low = write_entry(other, 1)
    write_more(store, 2)
    assert seal_all(store) == []
    other.rollback()
    (block,) = seal_all(store)
    assert seal.read(block.header).ids == f"{low - 1},{low + 1}"
    assert check_seals(store, SIGNER).faults == []


@pytest.mark.sqlite_only
def test_a_chain_of_transactions_that_never_pauses_does_not_hold_it_up(
    many: tuple[Store, psycopg.Connection], postgres_url: str
) -> None:
    """There is always somebody writing, but nobody for long."""
    store, other = many
    url, schema = bare(postgres_url)
    one = sealer(store)
    with psycopg.connect(url) as third:
        third.execute(f"SET search_path = {schema}".encode())
        third.commit()
        write_entry(other, 1)
        assert one.seal_one() is None
        for seq in range(2, 8, 2):
            write_entry(third, seq)
            other.commit()
            one.seal_one()
            write_entry(other, seq + 1)
            third.commit()
            one.seal_one()
        last = store.read(lambda tx: tx.seals.last())
        assert last is not None
        assert seal.read(last.header).upto >= 4
        other.commit()
    seal_all(store)
    found = check_seals(store, SIGNER)
    assert (found.faults, found.entries) == ([], 7)


@pytest.mark.sqlite_only
def test_another_server_is_asked_anew(many: tuple[Store, psycopg.Connection], postgres_url: str) -> None:
    """What was asked before the store was released says nothing about the server that took over, which may
    give the same numbers again."""
    store, other = many
    one = sealer(store)
    write_more(store, 1)
    write_entry(other, 1)
    assert one.seal_one() is None
    other.rollback()
    other.execute("SELECT setval('ledger_id_seq', 1)")
    other.commit()
    store.write(lambda tx: tx.set_meta("epoch", "2")).result()
    low = write_entry(other, 1)
    write_more(store, 2)
    assert one.seal_one() is None
    other.commit()
    block = one.seal_one()
    assert block is not None
    assert low == 2
    assert seal.read(block.header).ids == "1-3"


# Tampering: one statement each, on either database, and what must be said


OF = f"delivery_id = (SELECT id FROM delivery WHERE key = '{KEY}')"
TAMPERED = {
    "one bit of an entry's hash": (
        f"UPDATE ledger SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE {OF} AND seq = 2",
        KEY,
        2,
        r"entry 2 of the ledger is another one than block 1 sealed on 2026-01-01 00:00:00 UTC",
    ),
    "an entry dropped": (
        f"DELETE FROM ledger WHERE {OF} AND seq = 3",
        "block 1",
        0,
        r"entries 3 of the ledger are gone, 1 of 4 that were sealed on 2026-01-01",
    ),
    "the tail of a delivery dropped": (
        f"DELETE FROM ledger WHERE {OF} AND seq > 2",
        "block 1",
        0,
        r"entries 3-4 of the ledger are gone",
    ),
    "an entry given to another delivery": (
        f"UPDATE ledger SET delivery_id = delivery_id + 90 WHERE {OF} AND seq = 2",
        KEY,
        2,
        r"entry 2 of the ledger is another one",
    ),
    "a block dropped": ("DELETE FROM seal WHERE number = 2", "block 2", 0, "it is gone: block 3 is the next"),
    "the first block dropped": ("DELETE FROM seal WHERE number = 1", "block 1", 0, "it is gone: block 2 is"),
    "a signature taken away": (
        "UPDATE seal SET signature = '' WHERE number = 2",
        "block 2",
        0,
        "the signature of key k1 is gone",
    ),
    "a signature of another": (
        "UPDATE seal SET signature = 'x' WHERE number = 2",
        "block 2",
        0,
        "its signature is not that of key k1",
    ),
    "leaves that are none": (
        "UPDATE seal SET leaves = '?' WHERE number = 2",
        "block 2",
        0,
        "no whole number of hashes",
    ),
    "a header that is none": (
        "UPDATE seal SET header = '[' WHERE number = 2",
        "block 2",
        0,
        "cannot be read",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_found_and_named(name: str, tmp_path: Path) -> None:
    statement, key, seq, what = TAMPERED[name]
    world = World("K", path=str(tmp_path / "store.db"))
    live(world)
    assert checked(world).faults == []
    assert world.tamper(statement) > 0
    (fault,) = checked(world).faults
    assert (fault.key, fault.seq) == (key, seq)
    assert re.search(what, fault.what)


# What people did, in the audit


def act(world: World, *names: str) -> None:
    def done(name: str, tx: Tx) -> None:
        tx.runs.audit("operator:ann", "pause", name, "prices", {"until": 0})

    for name in names:
        world.write(partial(done, name))


def test_acts_are_sealed_with_entries_or_alone() -> None:
    world = World("K")
    act(world, "one", "two")
    world.accepted()
    (first,) = seal_all(world.store)
    act(world, "three")
    (second,) = seal_all(world.store)
    assert seal_all(world.store) == []
    act(world, "four")
    told = [seal.read(block.header) for block in (first, second)]
    assert [(each.count, each.acts_after, each.acts_upto, each.acts) for each in told] == [
        (4, 0, 2, "1-2"),
        (0, 2, 3, "3"),
    ]
    found = checked(world)
    assert (found.faults, found.entries, found.acts, found.unsealed, found.unsealed_acts) == ([], 4, 3, 0, 1)


def test_many_acts_become_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "IDS_MAX", 4)
    world = World("K")
    act(world, *map(str, range(9)))
    one = sealer(world.store)
    assert [one.step() for _ in range(4)] == [0.0, 0.0, 10.0, 10.0]
    assert [seal.read(block.header).acts for block in blocks(world)] == ["1-4", "5-8", "9"]
    assert (checked(world).faults, checked(world).acts) == ([], 9)


ACTS_TAMPERED = {
    "who it was": ("UPDATE audit SET actor = 'operator:eve' WHERE id = 2", "the audit", 2, "another one"),
    "when": (
        "UPDATE audit SET at = at + 1 WHERE id = 2",
        "the audit",
        2,
        "act 2 is another one than block 2",
    ),
    "why": ("UPDATE audit SET reason = '' WHERE id = 1", "the audit", 1, "than block 1 sealed on 2026-01-01"),
    "how": ("UPDATE audit SET body = '{}' WHERE id = 3", "the audit", 3, "another one"),
    "one dropped": ("DELETE FROM audit WHERE id = 2", "block 2", 0, "acts 2 of the audit are gone, 1 of 1"),
    "the last one dropped": ("DELETE FROM audit WHERE id = 3", "block 3", 0, "acts 3 of the audit are gone"),
    "its number": ("UPDATE audit SET id = 77 WHERE id = 2", "block 2", 0, "acts 2 of the audit are gone"),
}


@pytest.mark.parametrize("name", ACTS_TAMPERED)
def test_tampering_with_the_audit_is_found_and_named(name: str, tmp_path: Path) -> None:
    statement, key, seq, what = ACTS_TAMPERED[name]
    world = audited(tmp_path)
    assert checked(world).faults == []
    assert world.tamper(statement) == 1
    assert verify(world.store).ok, "only the seals can tell"
    (fault,) = checked(world).faults
    assert (fault.key, fault.seq) == (key, seq)
    assert what in fault.what


def audited(tmp_path: Path) -> World:
    """Three acts, each in a block of its own."""
    world = World("K", path=str(tmp_path / "store.db"))
    for name in ("one", "two", "three"):
        act(world, name)
        seal_all(world.store)
    return world


def test_an_act_that_was_put_in_behind_the_seal_is_found(tmp_path: Path) -> None:
    world = World("K", path=str(tmp_path / "store.db"))
    act(world, "one", "two", "three")
    world.tamper("DELETE FROM audit WHERE id = 2")  # a number that a failed transaction would have used up
    (block,) = seal_all(world.store)
    assert seal.read(block.header).acts == "1,3"
    world.tamper(
        "INSERT INTO audit (id, at, actor, action, target, reason, body) "
        "VALUES (2, 1, 'operator:ann', 'resume', 'sms', '', '{}')"
    )
    (fault,) = checked(world).faults
    assert (fault.key, fault.seq) == ("the audit", 2)
    assert fault.what.startswith("act 2 was put in behind the seal of block 1, sealed on 2026-01-01")


@pytest.mark.sqlite_only
def test_an_act_of_an_open_transaction_with_a_lower_number_is_waited_for(
    many: tuple[Store, psycopg.Connection],
) -> None:
    store, other = many
    one = sealer(store)

    def done() -> None:
        store.write(lambda tx: tx.runs.audit("operator:ann", "pause", "sms", "prices", {})).result()

    done()
    other.execute(
        "INSERT INTO audit (at, actor, action, target, reason, body) VALUES (1, 'a', 'b', 'c', 'd', '{}')"
    )
    done()
    assert one.seal_one() is None
    assert one.waits
    other.commit()
    (block,) = seal_all(store)
    assert seal.read(block.header).acts == "1-3"
    assert check_seals(store, SIGNER).faults == []


def tampered(tmp_path: Path, *statements: str, count: int = 3) -> World:
    world = World("K", path=str(tmp_path / "store.db"))
    live(world, count)
    for statement in statements:
        assert world.tamper(statement) > 0, statement
    return world


DELIVERY_GONE = [
    f"DELETE FROM ledger WHERE {OF}",
    f"DELETE FROM content WHERE {OF}",
    f"DELETE FROM delivery WHERE key = '{KEY}'",
    "DELETE FROM reminder WHERE reminder = 'r-1'",
]


def test_a_delivery_that_was_taken_away_whole_is_found_by_the_seals_alone(tmp_path: Path) -> None:
    world = tampered(tmp_path, *DELIVERY_GONE)
    assert verify(world.store).ok
    (fault,) = checked(world).faults
    assert fault.key == "block 1"
    assert fault.what.startswith("entries 1-4 of the ledger are gone, 4 of 4 that were sealed on 2026-01-01")


def test_two_entries_that_changed_places_are_both_named(tmp_path: Path) -> None:
    world = tampered(
        tmp_path,
        f"UPDATE ledger SET seq = 99 WHERE {OF} AND seq = 2",
        f"UPDATE ledger SET seq = 2 WHERE {OF} AND seq = 3",
        f"UPDATE ledger SET seq = 3 WHERE {OF} AND seq = 99",
    )
    assert [(fault.key, fault.seq) for fault in checked(world).faults] == [(KEY, 3), (KEY, 2)]


def test_entries_of_two_deliveries_that_changed_numbers_are_named(tmp_path: Path) -> None:
    """The chains of both still hold."""
    world = World("K", path=str(tmp_path / "store.db"))
    live(world)
    one, two = (entry[0] for entry in entries(world) if entry[2] == 1 and entry[1] < 3)
    assert (one, two) == (1, 5)
    for of, to in ((one, 999), (two, one), (999, two)):
        world.tamper(f"UPDATE ledger SET id = {to} WHERE id = {of}")
    assert verify(world.store).ok
    assert [(fault.key, fault.seq) for fault in checked(world).faults] == [("r-2:c-1:sms", 1), (KEY, 1)]


def test_a_delivery_that_was_rewritten_with_sound_hashes_is_found_by_the_seals_alone(tmp_path: Path) -> None:
    """Row and entries say together that the provider gave another receipt."""
    world = World("K", path=str(tmp_path / "store.db"))
    live(world)
    row, previous = world.row(KEY), ""
    for line in world.lines(KEY):
        body = json.loads(line.text)
        if "receipt" in body:
            body["receipt"] = "forged"
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        previous = link(previous, text)
        where = f"WHERE delivery_id = {row.id} AND seq = {line.seq}"
        receipt = body.get("receipt", "")
        world.tamper(f"UPDATE ledger SET body = '{text}', hash = '{previous}', receipt = '{receipt}' {where}")
    world.tamper(f"UPDATE delivery SET head = '{previous}', receipt = 'forged' WHERE id = {row.id}")
    assert verify(world.store).ok
    (fault,) = checked(world).faults
    assert (fault.key, fault.seq) == (KEY, 4)


def test_an_entry_put_in_behind_a_seal_is_named(tmp_path: Path) -> None:
    """Into a number that no entry had when it was sealed."""
    world = World("K", path=str(tmp_path / "store.db"))
    live(world, 1)
    world.schedule("r-2")
    world.schedule("r-3")
    world.tamper("DELETE FROM ledger WHERE id = 5")
    seal_all(world.store)
    assert checked(world).ok
    columns = "delivery_id, seq, at, event, body, hash, receipt"
    put_in = "SELECT 5, 2, 7, at, event, body, hash, '' FROM ledger WHERE id = 6"
    world.tamper(f"INSERT INTO ledger (id, {columns}) {put_in}")
    (fault,) = checked(world).faults
    assert (fault.key, fault.seq) == ("r-3:c-1:sms", 7)
    assert fault.what.startswith("entry 5 of the ledger was put in behind the seal of block 2")


def test_the_end_cut_off_is_found_by_a_checkpoint_alone(tmp_path: Path) -> None:
    world = World("K", path=str(tmp_path / "store.db"))
    live(world)
    exported = [seal.spell_checkpoint(block) for block in blocks(world)]
    last = seal.read(blocks(world)[-1].header)
    for statement in (
        f"DELETE FROM ledger WHERE id > {last.after}",
        "DELETE FROM content WHERE delivery_id = 3",
        "DELETE FROM delivery WHERE id = 3",
        "DELETE FROM reminder WHERE id = 3",
        "DELETE FROM seal WHERE number = 3",
    ):
        assert world.tamper(statement) > 0
    assert verify(world.store).ok
    assert checked(world).ok
    assert checked(world, exported[:2]).ok
    found = checked(world, exported)
    assert found.checkpoints == 3
    (fault,) = found.faults
    assert fault.key == "block 3"
    assert (
        "line 3 of the checkpoints has it, of 2026-01-01 00:00:00 UTC; the store ends at block 2"
        in fault.what
    )


def test_blocks_made_anew_are_found_by_a_checkpoint_alone(tmp_path: Path) -> None:
    """By somebody who has no key, or has it too."""
    world = World("K", path=str(tmp_path / "store.db"))
    live(world)
    exported = [seal.spell_checkpoint(block) for block in blocks(world)]
    world.tamper("DELETE FROM ledger WHERE id = 2")
    world.tamper("DELETE FROM seal")
    seal_all(world.store)
    assert checked(world).ok
    faults = checked(world, exported).faults
    assert [fault.key for fault in faults] == ["block 1", "block 2", "block 3"]
    assert "another one than in line 1 of the checkpoints" in faults[0].what


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda line: line.replace("upto", "upt0"), "line 2 of the checkpoints was torn or changed"),
        (lambda line: line[:40], "line 2 of the checkpoints was torn or changed"),
        (
            lambda line: line.replace("k1 signs", "k1 sings"),
            "line 2 of the checkpoints: its signature is not that",
        ),
    ],
)
def test_a_checkpoint_that_was_changed_is_told(change: Callable[[str], str], what: str) -> None:
    world = World("K")
    live(world, 2)
    one, two = (seal.spell_checkpoint(block) for block in blocks(world))
    (fault,) = checked(world, [one, change(two)]).faults
    assert (fault.key, fault.what.startswith(what)) == ("checkpoint 2", True), fault


def test_a_key_that_nobody_trusts_is_told() -> None:
    world = World("K")
    world.accepted()
    seal_all(world.store, TestKey("k2"))
    (fault,) = checked(world).faults
    assert fault == Fault("block 1", 0, "key k2 signed it, which [audit] public_keys does not name")


def test_every_kind_of_value_may_stand_in_a_tampered_row_and_nothing_stops() -> None:
    world = World("K")
    live(world)
    world.store.write(lambda tx: tx.seals.append(SealedBlock(77, "{}", "", "", b"x"))).result()
    assert [fault.key for fault in checked(world).faults] == ["block 4", "block 77"]


@pytest.mark.sqlite_only
def test_what_the_database_cannot_read_is_named_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    world = World("K", path=str(path))
    for customer in ("c-1", "c-2", "c-3"):
        world.schedule_many(200, customer=customer)
        seal_all(world.store)
    world.store.close()
    pages = bytearray(path.read_bytes())
    at = pages.index(b'"key":"r-100:c-2:sms"') // 4096 * 4096
    pages[at] ^= 0xFF  # the kind of the page
    path.write_bytes(pages)
    world.store = sqlite.open_store(f"sqlite:///{path}", world.clock, inline=True)
    (fault,) = checked(world).faults
    assert fault.key == "block 2"
    assert fault.what.startswith("the database cannot read it, or its entries")
    assert (checked(world).blocks, checked(world).entries) == (2, 400)


@pytest.mark.sqlite_only
def test_blocks_that_the_database_cannot_read_at_all_are_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    world = World("K", path=str(path))
    live(world)
    world.store.close()
    pages = bytearray(path.read_bytes())
    at = pages.rindex(b'"tombstone_hash"') // 4096 * 4096
    pages[at] ^= 0xFF
    path.write_bytes(pages)
    world.store = sqlite.open_store(f"sqlite:///{path}", world.clock, inline=True)
    assert [fault.key for fault in checked(world).faults] == [f"block {number}" for number in range(1, 9)]


# What was removed on purpose

WEEK_S = 7 * 86_400.0
KEEP = Keep(content_s=None, deliveries_s=WEEK_S, imports_s=None, passes_s=WEEK_S)


def removed(world: World) -> int:
    """A round of retention, as a process that seals runs it; how many deliveries are left."""
    retention = Retention(world.store, world.policy, KEEP, bury=refuse_unsealed)
    for _ in range(20):
        retention.step()
    return len(world.read(lambda tx: tx.rows("view_verify_rows", after=0, upto=99)))


def aged(tmp_path: Path) -> World:
    """Three deliveries of a month ago and one of today; all sealed."""
    world = World("K", path=str(tmp_path / "store.db"))
    live(world)
    world.advance(30 * 86_400)
    live(world, 1, first=4)
    return world


def test_entries_that_were_removed_by_policy_are_explained_and_their_tombstone_is_sealed(
    tmp_path: Path,
) -> None:
    world = aged(tmp_path)
    assert removed(world) == 1
    assert len(entries(world)) == 4
    found = checked(world)
    assert (found.faults, found.deleted, found.entries) == ([], 12, 16)
    (block,) = seal_all(world.store)
    assert seal.read(block.header).tombstone == world.read(lambda tx: tx.seals.tombstone())[0] > 0
    assert seal_all(world.store) == []
    assert checked(world).faults == []


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM tombstone", "tombstone 1, which it names, is gone"),
        ("UPDATE tombstone SET hash = 'x'", "tombstone 1 is another one than it names"),
    ],
)
def test_a_tombstone_that_was_sealed_cannot_go(tmp_path: Path, statement: str, what: str) -> None:
    world = aged(tmp_path)
    removed(world)
    (block,) = seal_all(world.store)
    world.tamper(statement)
    faults = {fault.key: fault.what for fault in checked(world).faults}
    assert faults[f"block {block.number}"] == what


def test_what_a_tombstone_does_not_name_is_missed_all_the_same(tmp_path: Path) -> None:
    world = aged(tmp_path)
    removed(world)
    world.tamper("DELETE FROM ledger WHERE id = 14")
    (fault,) = checked(world).faults
    assert (fault.key, fault.what.startswith("entries 14 of the ledger are gone")) == ("block 4", True)


def test_what_is_not_sealed_yet_is_not_removed(tmp_path: Path) -> None:
    world = World("K", path=str(tmp_path / "store.db"))
    world.accepted("r-1")
    world.accepted("r-2")
    world.advance(30 * 86_400)
    removed(world)
    assert len(entries(world)) == 8
    with pytest.raises(Refused, match="entry 8 of the ledger is not sealed yet"):
        world.write(lambda tx: refuse_unsealed(tx, [7, 8]))
    seal_all(world.store)
    world.write(lambda tx: refuse_unsealed(tx, [7, 8]))
