"""Verify: a sound store passes, and whatever is tampered with is named; nothing crashes the run."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import apsw
import pytest

from sendonce.core.delivery import Channel
from sendonce.core.ledger import Fault, link
from sendonce.core.lifecycle import Event
from sendonce.core.outcome import (
    Accepted,
    Failed,
    NotStarted,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.pipeline.chosen import Filter
from sendonce.pipeline.redrive import redrive
from sendonce.pipeline.resolve import Word, resolve
from sendonce.pipeline.verify import SPAN, Verified, verify
from sendonce.ports.store import Store
from sendonce.store.sqlite import open_store
from sendonce.testing.clock import VirtualClock
from tests.integration.world import World

KEY = "r-1:c-1:sms"


def full_life(world: World) -> None:
    """Deliveries through most of the table, so that "sound" means something."""
    world.accepted("r-1")
    world.dead("r-2")
    world.dead("r-3", reason=Reason.CONNECTION)
    redrive(world.store, Filter(keys=("r-3:c-1:sms",)), world.policy, reason="mended", actor="operator:ann")
    world.send(NotStarted("slot_missed"))
    world.send(Throttled(ThrottleScope.RECIPIENT, "429", 1.0))
    world.advance(5)
    world.send(Accepted("late"))
    for number in range(3):
        world.uncertain(f"u-{number}", account="email-N")
    for word, number in ((Word.SENT, 0), (Word.NOT_SENT, 1), (Word.RESEND, 2)):
        chosen = Filter(keys=(f"u-{number}:c-1:email",))
        done = resolve(world.store, chosen, word, world.policy, reason="asked", actor="operator:ann")
        assert done.resolved == 1, done
    world.send(Accepted("again"), "email-N")
    world.schedule("r-5", valid_s=10.0)
    world.schedule("r-6", due_in_s=3600, also=[Channel.EMAIL])
    world.withdraw("r-6:c-1:email")
    world.pass_()
    world.send(Unknown("timeout"))
    world.advance(20)
    world.expire()
    world.send(Accepted("known", duplicate=True))
    world.schedule("r-7")
    world.pass_()
    claims = world.claim()
    world.withdraw("r-7:c-1:sms")
    world.settle([(claim, Rejected(Reason.BLOCKED, "550")) for claim in claims])
    world.schedule("r-8")
    world.pass_()
    world.claim()  # left open


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with full lives in it; each test works on a copy."""
    path = tmp_path_factory.mktemp("sound") / "store.db"
    world = World("K", "N", path=str(path))
    full_life(world)
    world.store.close()
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> str:
    return str(shutil.copy(sound, tmp_path / "store.db"))


@pytest.fixture
def store(path: str) -> Iterator[Store]:
    store = reopened(path)
    yield store
    store.close()


def reopened(path: str) -> Store:
    return open_store(f"sqlite:///{path}", VirtualClock(), inline=True)


def tamper(path: str, *statements: str, **values: object) -> int:
    """Change the file behind the program's back; how many rows were changed."""
    raw = apsw.Connection(path)
    for statement in statements:
        raw.execute(statement, values)
    changed = raw.total_changes()
    raw.close()
    return changed


def faults(store: Store) -> list[Fault]:
    return verify(store).faults


def test_a_sound_store_passes(store: Store) -> None:
    told: list[tuple[int, int]] = []
    verified = verify(store, progress=lambda so_far, total: told.append((so_far.deliveries, total)))
    assert verified.faults == []
    assert verified.ok
    assert verified.deliveries == 11
    assert verified.entries > 40
    assert told[-1] == (11, 11)


def test_an_empty_store_passes() -> None:
    assert verify(World().store) == Verified()


def test_a_pass_of_every_outcome_is_sound() -> None:
    """Random lives, as the stages make them, are always sound."""
    world = World("K", "L", "N")
    chance = random.Random(5)
    outcomes: list[Outcome] = [
        Accepted("a"),
        Rejected(Reason.INVALID_ADDRESS, "550"),
        Throttled(ThrottleScope.RECIPIENT, "429"),
        Failed(Reason.UNAVAILABLE, "503"),
        Unknown("timeout"),
        NotStarted("slot_missed"),
    ]
    keys = []
    for number in range(60):
        account = chance.choice(world.accounts)
        keys.append(
            world.schedule(f"r-{number}", account=account, valid_s=chance.choice([5.0, 60.0, 3600.0]))
        )
        world.pass_()
        for name in world.accounts:
            claims = world.claim(name, most=4)
            if chance.random() < 0.2 and claims:
                world.withdraw(claims[0].key, chance.choice([Event.CANCELLED, Event.SUPPRESSED]))
            world.settle([(claim, chance.choice(outcomes)) for claim in claims])
        world.advance(chance.random() * 4)
        world.expire()
        world.reap()
    assert len({world.state(key) for key in keys}) >= 7
    assert faults(world.store) == []


# One statement each: what somebody could do to the file, and what must be said about it.
LEDGER = "(SELECT id FROM delivery WHERE key = 'r-1:c-1:sms')"
PLANNED = "(SELECT id FROM delivery WHERE key = 'r-6:c-1:sms')"
TAMPERED: Mapping[str, tuple[str, int, str]] = {
    "one bit of an entry": (
        f"UPDATE ledger SET body = replace(body, 'sms-K', 'sms-k') WHERE delivery_id = {LEDGER} AND seq = 2",
        2,
        "does not give the recorded hash",
    ),
    "one bit of a hash": (
        (
            "UPDATE ledger "
            "SET hash = CASE substr(hash, 1, 1) WHEN '0' THEN '1' ELSE '0' END || substr(hash, 2) "
            f"WHERE delivery_id = {LEDGER} AND seq = 3"
        ),
        3,
        "does not give the recorded hash",
    ),
    "an entry dropped": (
        f"DELETE FROM ledger WHERE delivery_id = {LEDGER} AND seq = 3",
        3,
        "entry 3 is missing",
    ),
    "the first entry dropped": (
        f"DELETE FROM ledger WHERE delivery_id = {LEDGER} AND seq = 1",
        1,
        "entry 1 is missing",
    ),
    "the tail cut off": (
        f"DELETE FROM ledger WHERE delivery_id = {LEDGER} AND seq = 4",
        4,
        "the row counts 4 entries, the ledger ends at 3",
    ),
    "the whole ledger gone": (f"DELETE FROM ledger WHERE delivery_id = {LEDGER}", 0, "no entry at all"),
    "a forged state": (
        "UPDATE delivery SET state = 'CANCELLED' WHERE key = 'r-1:c-1:sms'",
        0,
        "the row says CANCELLED, the ledger replays to ACCEPTED",
    ),
    "a state that is none": (
        "UPDATE delivery SET state = 'SENT' WHERE key = 'r-1:c-1:sms'",
        0,
        "cannot be read",
    ),
    "a number that is none": (
        "UPDATE delivery SET epoch = 'x' WHERE key = 'r-1:c-1:sms'",
        0,
        "cannot be read",
    ),
    "a forged epoch": ("UPDATE delivery SET epoch = 7 WHERE key = 'r-1:c-1:sms'", 0, "replays to"),
    "a forged receipt": (
        "UPDATE delivery SET receipt = 'x' WHERE key = 'r-1:c-1:sms'",
        0,
        "its receipt is 'x'",
    ),
    "a forged end": ("UPDATE delivery SET ended_at = 5 WHERE key = 'r-1:c-1:sms'", 0, "it ended at 5"),
    "another account": (
        "UPDATE delivery SET account = 'b' WHERE key = 'r-1:c-1:sms'",
        0,
        "its account is 'b'",
    ),
    "attempts wiped": ("UPDATE delivery SET attempts = 0 WHERE key = 'r-1:c-1:sms'", 0, "its attempts is 0"),
    "another customer": (
        "UPDATE delivery SET customer = 'x' WHERE key = 'r-1:c-1:sms'",
        0,
        "its customer or",
    ),
    "sent again by a flag": (
        f"INSERT INTO agenda (delivery_id, look, via, at, place, until) SELECT {LEDGER}, 1, 'sms-K', 1, 1, 1",
        0,
        "its place on the agenda is not",
    ),
    "hidden from the stages": (
        f"DELETE FROM agenda WHERE delivery_id = {PLANNED}",
        0,
        "its place on the agenda is not",
    ),
    "put off by its place": (
        f"UPDATE agenda SET at = at + 1 WHERE delivery_id = {PLANNED}",
        0,
        "its place on the agenda is not",
    ),
    "a receipt to find by": (
        f"UPDATE ledger SET receipt = 'x' WHERE delivery_id = {LEDGER} AND receipt <> ''",
        4,
        "its columns are not what its text says",
    ),
    "a lane taken away": ("DELETE FROM open_call", 0, "SENDING without an open call"),
    "the event column": (
        f"UPDATE ledger SET event = 'failed' WHERE delivery_id = {LEDGER} AND seq = 4",
        4,
        "its columns are not what its text says",
    ),
    "the time column": (
        f"UPDATE ledger SET at = at + 1 WHERE delivery_id = {LEDGER} AND seq = 2",
        2,
        "its columns are not what its text says",
    ),
    "another text": (
        f"UPDATE content SET payload = replace(payload, 'Ann', 'Bob') WHERE delivery_id = {LEDGER}",
        2,
        "not the one whose hash was recorded",
    ),
    "a text and its hash": (
        f"UPDATE content SET payload = '{{}}', hash = 'h' WHERE delivery_id = {LEDGER}",
        2,
        "not the one whose hash was recorded",
    ),
    "a text that is none": (
        f"UPDATE content SET payload = '[' WHERE delivery_id = {LEDGER}",
        2,
        "not the one",
    ),
    "the row taken away": ("DELETE FROM delivery WHERE key = 'r-1:c-1:sms'", 0, "has no row"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_named(store: Store, path: str, name: str) -> None:
    statement, seq, what = TAMPERED[name]
    assert tamper(path, statement) > 0
    found = faults(store)
    assert len(found) == 1, found
    assert found[0].seq == seq
    assert what in found[0].what
    assert found[0].key in (KEY, "r-6:c-1:sms", "r-8:c-1:sms")


def test_swapped_entries_are_found(store: Store, path: str) -> None:
    swap = f"UPDATE ledger SET seq = :to WHERE delivery_id = {LEDGER} AND seq = :of"
    raw = apsw.Connection(path)
    for of, to in ((2, 99), (3, 2), (99, 3)):
        raw.execute(swap, {"of": of, "to": to})
    raw.close()
    assert [(fault.key, fault.seq) for fault in faults(store)] == [(KEY, 2)]


def test_every_bit_of_an_entry_counts(store: Store, path: str) -> None:
    """Flip one bit of each character, one at a time: each is found."""
    raw = apsw.Connection(path)
    raw.execute("PRAGMA synchronous = OFF").fetchall()
    of = f"WHERE seq = 3 AND delivery_id = {LEDGER}"
    text = str(raw.execute(f"SELECT body FROM ledger {of}").get)
    for place in range(len(text)):
        flipped = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        raw.execute(f"UPDATE ledger SET body = ? {of}", (flipped,))
        assert [fault.seq for fault in faults(store)] == [3], f"bit of {text[place]!r} at {place}"
    raw.execute(f"UPDATE ledger SET body = ? {of}", (text,))
    assert faults(store) == []
    raw.close()


# A forger who also mends every hash and the row's head: only the replay can tell.


def forge(path: str, key: str, change: Callable[[list[dict[str, object]]], None]) -> None:
    """Rewrite the whole chain of one delivery, with sound hashes."""
    raw = apsw.Connection(path)
    ((id_,),) = raw.execute("SELECT id FROM delivery WHERE key = ?", (key,)).fetchall()
    bodies = [
        json.loads(text)
        for (text,) in raw.execute("SELECT body FROM ledger WHERE delivery_id = ? ORDER BY seq", (id_,))
    ]
    change(bodies)
    raw.execute("DELETE FROM ledger WHERE delivery_id = ?", (id_,))
    digest = ""
    for seq, body in enumerate(bodies, 1):
        body["seq"] = seq
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        digest = link(digest, text)
        raw.execute(
            "INSERT INTO ledger (delivery_id, seq, at, event, body, hash, receipt) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (id_, seq, body["at"], body["event"], text, digest, body.get("receipt", "")),
        )
    last = bodies[-1]
    raw.execute(
        "UPDATE delivery SET seq = ?, head = ?, state = ?, epoch = ? WHERE id = ?",
        (len(bodies), digest, last["state"], last["epoch"], id_),
    )
    raw.close()


def drop_claim(bodies: list[dict[str, object]]) -> None:
    del bodies[2]


def skip_epoch(bodies: list[dict[str, object]]) -> None:
    for body in bodies[2:]:
        body["epoch"] = 2


def claim_late(bodies: list[dict[str, object]]) -> None:
    bodies[2]["at"] = bodies[1]["expires"]


def cancel_before(bodies: list[dict[str, object]]) -> None:
    cancelled = {**bodies[1], "event": "cancelled", "state": "CANCELLED", "epoch": 1}
    bodies.insert(2, cancelled)


def unknown_event(bodies: list[dict[str, object]]) -> None:
    bodies[1]["event"] = "improved"


def no_beginning(bodies: list[dict[str, object]]) -> None:
    del bodies[0]


def moving_note(bodies: list[dict[str, object]]) -> None:
    bodies.append({**bodies[-1], "event": "duplicate_observed", "state": "DEAD"})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (drop_claim, "the life cycle has no accepted from QUEUED to ACCEPTED"),
        (skip_epoch, "the life cycle has no claimed from QUEUED to SENDING"),
        (claim_late, "claimed at or past its expiry"),
        (cancel_before, "claimed after it was cancelled"),
        (unknown_event, "'improved' is no event"),
        (no_beginning, "a ledger begins with scheduled"),
        (moving_note, "duplicate_observed records something, but here it moved ACCEPTED to DEAD"),
    ],
)
def test_a_sound_chain_of_a_false_story_is_found(
    store: Store, path: str, change: Callable[[list[dict[str, object]]], None], what: str
) -> None:
    forge(path, KEY, change)
    found = faults(store)
    assert {fault.key for fault in found} == {KEY}
    assert any(what in fault.what for fault in found), found


def test_an_acceptance_beside_not_sent_is_found(store: Store, path: str) -> None:
    def late(bodies: list[dict[str, object]]) -> None:
        note = {"outcome": "accepted", "receipt": "x", "event": "late_outcome"}
        bodies.append(
            {**{name: bodies[-1][name] for name in bodies[-1] if name not in ("code", "reason")}, **note}
        )

    forge(path, "r-2:c-1:sms", late)
    assert any("an acceptance arrived, but the record stays DEAD" in fault.what for fault in faults(store))


def test_entries_that_are_no_json_crash_nothing(store: Store, path: str) -> None:
    for text in ("[]", "nonsense", "{}", '"x"', '{"key":"r-1:c-1:sms","seq":1}'):
        digest = link("", text)
        tamper(
            path,
            f"UPDATE ledger SET body = :text, hash = :digest WHERE delivery_id = {LEDGER} AND seq = 1",
            text=text,
            digest=digest,
        )
        found = faults(store)
        assert [fault.key for fault in found] == [KEY], text


@pytest.mark.sqlite_only
@pytest.mark.parametrize("place", ["ledger SET body", "delivery SET head", "delivery SET receipt"])
def test_bytes_that_are_no_text_are_told_and_the_rest_is_checked(store: Store, path: str, place: str) -> None:
    """SQLite hands out as a text whatever stands there, and one flipped bit leaves no UTF-8."""
    id_ = "delivery_id" if place.startswith("ledger") else "id"
    assert tamper(path, f"UPDATE {place} = CAST(x'8122' AS TEXT) WHERE {id_} = {LEDGER}")
    verified = verify(store)
    (fault,) = verified.faults
    assert "not UTF-8" in fault.what
    assert "restore the last backup" in fault.what
    assert verified.deliveries == 10


def test_many_deliveries_go_in_spans_and_faults_are_bounded(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    world = World("K", path=path)
    count = 2 * SPAN + 7
    world.schedule_many(count)
    assert world.tamper("UPDATE delivery SET head = 'x'") == count
    verified = verify(world.store)
    assert (verified.deliveries, verified.faulty) == (count, count)
    assert len(verified.faults) == count
    assert not verified.ok


@pytest.mark.sqlite_only
def test_a_damaged_page_is_told_and_the_rest_is_checked(tmp_path: Path) -> None:
    """Bytes of the file itself are overwritten: the rows that can be read are still checked."""
    path = str(tmp_path / "store.db")
    world = World("K", path=path)
    world.schedule_many(400, customer="c" * 150)
    world.store.close()
    with open(path, "r+b") as file:
        data = file.read()
        page = int.from_bytes(data[16:18], "big")
        row = b"defaultr-333:" + b"c" * 150  # tenant and key, side by side in the table's row
        leaves = [at for at in range(0, len(data), page) if data[at] == 13 and row in data[at : at + page]]
        file.seek(leaves[0])
        file.write(b"\xff" * page)
    store = reopened(path)
    verified = verify(store)
    store.close()
    assert 0 < verified.faulty < 100
    assert verified.deliveries + verified.faulty >= 400
