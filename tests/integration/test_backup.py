"""A backup is a sound copy of one instant, private, whole or not there, and harmless where it is restored."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sendonce.core.errors import InvalidInput, StoreMismatch, StoreUnavailable
from sendonce.core.lifecycle import Standing, State
from sendonce.core.outcome import Accepted
from sendonce.pipeline.restore import hold_everything, released
from sendonce.pipeline.scheduler import Scheduler
from sendonce.pipeline.verify import verify
from sendonce.store import backup
from sendonce.store.backup import back_up
from tests.integration.world import World

pytestmark = pytest.mark.sqlite_only


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World("K", "N", path=str(tmp_path / "store.db"))
    made.schedule_many(200, due_in_s=0)
    return made


def test_a_copy_is_of_one_instant_while_others_write(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "STEP_PAGES", 20)
    told: list[tuple[int, int]] = []

    def write_more(pages: int, of: int) -> None:
        told.append((pages, of))
        world.schedule(f"meanwhile-{len(told)}")

    size = back_up(str(tmp_path / "store.db"), tmp_path / "copy.db", progress=write_more)
    assert len(told) > 3
    assert told[-1][0] == told[-1][1] == size // 4096
    copy = World("K", "N", path=str(tmp_path / "copy.db"))
    assert copy.read(lambda tx: tx.rows("view_scheduled_total")[0]["total"]) == 200
    assert verify(copy.store).ok


def test_it_is_the_owners_alone_and_one_file(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "b.db.partial").write_text("of one that was killed")
    size = back_up(str(tmp_path / "store.db"), folder / "b.db")
    assert [each.name for each in folder.iterdir()] == ["b.db"]
    assert (folder / "b.db").stat().st_size == size
    assert stat.S_IMODE((folder / "b.db").stat().st_mode) == 0o600


def test_what_is_there_is_never_overwritten(world: World, tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    there.write_text("precious")
    with pytest.raises(InvalidInput, match=r"there\.db is there already and stays as it is"):
        back_up(str(tmp_path / "store.db"), there)
    late = tmp_path / "late.db"

    def somebody_is_faster(copy: Path) -> None:
        late.write_text("precious")

    with pytest.raises(InvalidInput, match="is there already"):
        back_up(str(tmp_path / "store.db"), late, finish=somebody_is_faster)
    assert there.read_text() == late.read_text() == "precious"
    with pytest.raises(InvalidInput, match="cannot be written to: No such file"):
        back_up(str(tmp_path / "store.db"), tmp_path / "none" / "b.db")


def test_one_that_fails_leaves_nothing(world: World, tmp_path: Path) -> None:
    def fail(copy: Path) -> None:
        raise StoreUnavailable("the disk is full")

    with pytest.raises(StoreUnavailable):
        back_up(str(tmp_path / "store.db"), tmp_path / "b.db", finish=fail)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("b.db")] == []


def test_a_damaged_store_makes_no_backup(world: World, tmp_path: Path) -> None:
    world.store.close()
    path = tmp_path / "store.db"
    data = bytearray(path.read_bytes())
    for page in range(10, len(data) // 4096, 2):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(StoreMismatch):
        back_up(str(path), tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


def test_a_restored_copy_sends_nothing_until_somebody_says_so(world: World, tmp_path: Path) -> None:
    def hold(copy: Path) -> None:
        held = World("K", "N", path=str(copy))
        held.write(hold_everything)
        held.store.close()

    world.pass_()
    due = world.schedule("due")
    back_up(str(tmp_path / "store.db"), tmp_path / "copy.db", finish=hold)
    copy = World("K", "N", path=str(tmp_path / "copy.db"))
    assert (world.store.secret, copy.read(lambda tx: tx.meta("epoch"))) == (copy.store.secret, "2")
    assert Scheduler(copy.store, copy.policy, copy.book, process="s").run(trigger="test") is None
    assert copy.claim() == []
    assert copy.claimed().why == "held"
    done = released(copy.store, copy.policy, reason="compared", actor="operator:ann")
    assert (done.epoch, done.counts) == (3, {("QUEUED", "K", "key"): 200, ("SCHEDULED", "K", "text"): 1})
    copy.advance(60.0)  # a call of the store before may be open for so long
    copy.pass_()
    assert copy.row(due).standing == Standing(State.QUEUED, 1, maybe=True)
    assert len(copy.send(Accepted("r"))) > 0
    assert verify(copy.store).ok
    assert world.claimed().why != "held"  # the store itself went on
