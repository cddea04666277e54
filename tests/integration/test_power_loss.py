"""Power cuts on SQLite: what was answered is on every disk that a cut could have left, as the store is
shipped; and the same test sees that it would not be with a store that flushes less.

`make crash ARGS="--power 300"` does the same with more of everything.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import apsw

from tests.crash.disk import Answer, Disk, Name, Step, Sync, Truncate, Write, cuts, in_the_end, recorded
from tests.crash.power import judged, work

DELIVERIES = 60
CUTS = 40
SEED = 7


def lost(disk: Disk) -> Counter[str]:
    """In how many cuts something was missing, by what had been answered."""
    return Counter(what for cut in judged(disk.steps, CUTS, SEED) for what in cut.missing)


def test_no_cut_loses_what_was_answered(tmp_path: Path) -> None:
    disk = work(tmp_path, deliveries=DELIVERIES)
    assert lost(disk) == {}
    # It is no proof where nothing was answered, or nothing was at stake.
    kinds = Counter(step.what for step in disk.steps if isinstance(step, Answer))
    assert kinds["called"] >= DELIVERIES - DELIVERIES // 10
    assert all(kinds[kind] for kind in ("commit", "scheduled", "cancelled", "told"))
    assert any(isinstance(step, Truncate) for step in disk.steps)
    here = {path.name: path.read_bytes() for path in disk.folder.iterdir()}
    assert in_the_end(disk.steps) == here, "not all that SQLite wrote was noted"


def test_a_store_that_flushes_less_loses_intents(tmp_path: Path) -> None:
    """`synchronous = NORMAL`, which many recommend for WAL."""
    missing = lost(work(tmp_path, synchronous="NORMAL", deliveries=DELIVERIES))
    assert missing["commit"] >= CUTS // 5
    assert missing["called"] >= 1, "a message is at the provider, and no intent tells of it"
    assert missing["store"] == 0, "what is there is sound: it is only too old"


# The disk itself.


def left(steps: list[Step], at: int, *, seeds: int = 200) -> set[tuple[tuple[str, bytes], ...]]:
    """Everything that a cut was seen to leave."""
    found = set()
    for seed in range(seeds):
        (one,) = cuts(steps, [at], Random(seed))
        found.add(tuple(sorted(one.files.items())))
    return found


def test_what_was_flushed_is_there_and_of_the_rest_any_part() -> None:
    steps: list[Step] = [
        Name("a", 1),
        Write(1, 0, b"1" * 1024),
        Sync(1, folder=True),
        Write(1, 256, b"2" * 512),
    ]
    whole, torn = b"1" * 256 + b"2" * 512 + b"1" * 256, b"1" * 256 + b"2" * 256 + b"1" * 512
    assert left(steps, 3) == {(("a", b"1" * 1024),)}
    found = {dict(files)["a"] for files in left(steps, 4)}
    assert found == {b"1" * 1024, whole, torn, b"1" * 512 + b"2" * 256 + b"1" * 256}


def test_a_name_is_there_when_its_folder_was_flushed() -> None:
    steps: list[Step] = [
        Name("a", 1),
        Write(1, 0, b"x"),
        Sync(1, folder=False),
        Name("b", 2),
        Sync(2, folder=True),
        Name("b", 0),
    ]
    assert left(steps, 3) == {(), (("a", b"x"),)}
    assert left(steps, 5) == {(("a", b"x"), ("b", b""))}
    assert left(steps, 6) == {(("a", b"x"), ("b", b"")), (("a", b"x"),)}


def test_files_elsewhere_are_nobodys_business(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    with recorded(tmp_path / "here") as disk:
        for folder in ("here", "there"):
            with apsw.Connection(str(tmp_path / folder / "a.db")) as connection:
                connection.execute("CREATE TABLE t (a)")
            connection.close()
    names = {step.name for step in disk.steps if isinstance(step, Name)}
    assert names == {"a.db", "a.db-journal"}
    noted = len(disk.steps)
    connection = apsw.Connection(str(tmp_path / "here" / "a.db"))
    connection.execute("CREATE TABLE u (a)")
    connection.close()
    assert len(disk.steps) == noted, "and afterwards nothing is noted"
