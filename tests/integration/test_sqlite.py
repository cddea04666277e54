"""The embedded store on a real file: several processes, killed processes, bad disks and files, time, plans.

What holds for any store is in the conformance suite; here is what only a file can suffer.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from sendonce.core import pacing
from sendonce.core.errors import ConfigError, StoreMismatch, StoreUnavailable
from sendonce.core.outcome import Accepted
from sendonce.core.pacing import GateLimits, Limit
from sendonce.ports.store import Tx
from sendonce.runtime.clock import SystemClock
from sendonce.store.sqlite import SqliteStore, check_library, open_store
from sendonce.store.statements import raw_statements
from sendonce.testing.clock import VirtualClock
from sendonce.testing.conformance.store import add, broken_chains, new
from tests.integration.world import World, account_of, policy_of

pytestmark = pytest.mark.sqlite_only

ROOT = Path(__file__).parents[2]
SECOND = 1_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def opened(file: Path, *, inline: bool = False, busy_s: float = 10.0) -> SqliteStore:
    return open_store(f"sqlite:///{file}", SystemClock(), inline=inline, busy_s=busy_s)


def start_child(function: Callable[..., None], *arguments: object) -> subprocess.Popen[str]:
    """Run a function of this file in a process of its own."""
    program = "import sys, tests.integration.test_sqlite as here; getattr(here, sys.argv[1])(*sys.argv[2:])"
    command = [sys.executable, "-c", program, function.__name__, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*children: subprocess.Popen[str]) -> list[str]:
    """What each printed; red where one failed."""
    printed = []
    for child in children:
        out, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
        printed.append(out)
    return printed


def say(*words: object) -> None:
    """Tell the parent, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


# Several processes on one file.


def child_count(file: str, times: str) -> None:
    """Read, then write, in one unit, again and again."""
    store = opened(Path(file))
    for _ in range(int(times)):
        store.write(lambda tx: tx.set_meta("count", str(int(tx.meta("count") or 0) + 1))).result()
    store.close()


def test_processes_that_write_at_once_lose_no_update(file: Path) -> None:
    """STOR-01."""
    opened(file).close()
    finish(*(start_child(child_count, file, 100) for _ in range(2)))
    store = opened(file)
    assert store.read(lambda tx: tx.meta("count")) == "200"
    store.close()


def test_a_reader_that_turns_writer_waits_for_nobody_and_is_waited_for(file: Path) -> None:
    """STOR-01: a deferred transaction would fail here at once, whatever the time allowed."""
    ours, theirs = opened(file), opened(file)

    def read_then_write(tx: Tx) -> None:
        assert tx.meta("colour") is None
        queued.append(theirs.write(swap))
        assert not wait(queued, timeout=0.05).done, "the other connection wrote in the middle of our unit"
        tx.set_meta("colour", "red")

    def swap(tx: Tx) -> str | None:
        found = tx.meta("colour")
        tx.set_meta("colour", "blue")
        return found

    queued: list[Future[str | None]] = []
    ours.write(read_then_write).result()
    assert queued[0].result() == "red"
    assert ours.read(lambda tx: tx.meta("colour")) == "blue"
    ours.close()
    theirs.close()


LIMITS = GateLimits((Limit(20, 100_000),), lanes=3)
CLAIM_POLICY = policy_of(account_of("N", name="mail", limits=LIMITS))


def half() -> float:
    return 0.5


def child_claim(file: str, process: str) -> None:
    """Claim and settle until nothing is left; print (delivery, slot, open calls after the claim)."""
    from sendonce.pipeline.attempt import Attempted
    from sendonce.pipeline.claimer import Claimed, claim
    from sendonce.pipeline.settler import settle

    store = opened(Path(file))
    account = CLAIM_POLICY.accounts["mail"]

    def unit(tx: Tx) -> tuple[Claimed, int]:
        got = claim(tx, account, CLAIM_POLICY, process=process, secret=store.secret, lead_us=1_000)
        return got, tx.calls.count("mail")

    while True:
        claimed, open_calls = store.write(unit).result()
        if not claimed.claims:
            if claimed.why == "empty":
                break
            continue
        for one in claimed.claims:
            say(one.delivery_id, one.slot_at, open_calls)
        done = [Attempted(one, Accepted("r"), one.slot_at, one.slot_at) for one in claimed.claims]
        store.write(
            partial(settle, attempts=done, policy=CLAIM_POLICY, process=process, chance=half)
        ).result()
    store.close()


def test_processes_that_claim_at_once_share_one_gate(file: Path) -> None:
    """RATE-09: no delivery twice, no slot too close to another, never more lanes than there are."""
    world = World(policy=CLAIM_POLICY, path=str(file))
    for number in range(60):
        world.schedule(f"r-{number}", valid_s=1e9)
    world.pass_()
    world.store.close()

    printed = finish(*(start_child(child_claim, file, f"p{n}") for n in range(3)))
    lines = [tuple(map(int, line.split())) for out in printed for line in out.splitlines()]
    assert len(lines) == 60
    assert len({delivery for delivery, _, _ in lines}) == 60
    assert {open_calls for _, _, open_calls in lines} <= {1, 2, 3}
    slots = sorted(slot for _, slot, _ in lines)
    spacing = (100_000 + LIMITS.margin_us) // 20
    assert spacing == pacing.spacing_us(pacing.Gate("mail", LIMITS), 0)
    assert min(later - earlier for earlier, later in pairwise(slots)) >= spacing

    store = opened(file)
    assert broken_chains(store) == []
    assert store.read(lambda tx: tx.calls.count("mail")) == 0
    store.close()


def test_two_that_create_the_file_at_once_get_the_same_store(tmp_path: Path) -> None:
    for number in range(5):
        stores: list[SqliteStore] = []
        start = threading.Barrier(4)

        def create(file: Path, start: threading.Barrier = start, stores: list[SqliteStore] = stores) -> None:
            start.wait()
            stores.append(opened(file))

        threads = [threading.Thread(target=create, args=(tmp_path / f"{number}.db",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(stores) == 4
        assert len({store.secret for store in stores}) == 1
        for store in stores:
            store.close()


# A lock held for too long.


@contextlib.contextmanager
def held_lock(file: Path) -> Iterator[None]:
    """A shell that forgot its transaction."""
    shell = apsw.Connection(str(file))
    shell.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        shell.execute("ROLLBACK")
        shell.close()


@pytest.mark.parametrize("inline", [True, False])
def test_a_lock_held_too_long_fails_the_unit_and_nothing_of_it_happens(file: Path, inline: bool) -> None:
    store = opened(file, inline=inline, busy_s=0.05)
    with held_lock(file):
        refused = [store.write(lambda tx, n=n: tx.set_meta(f"m{n}", "x")) for n in range(3)]  # type: ignore[misc]
        for future in refused:
            error = future.exception()
            assert isinstance(error, StoreUnavailable)
            assert str(file) in str(error)
            assert "locked by another process" in str(error)
            assert "try again" in str(error)
        assert store.read(lambda tx: tx.meta("m0")) is None  # readers go on
    store.write(lambda tx: tx.set_meta("later", "x")).result()
    assert store.read(lambda tx: [tx.meta(f"m{n}") for n in range(3)]) == [None, None, None]
    store.close()


def test_a_lock_that_is_let_go_in_time_is_waited_for(file: Path) -> None:
    store = opened(file, busy_s=30.0)
    with held_lock(file):
        future = store.write(lambda tx: tx.set_meta("patience", "x"))
        assert not wait([future], timeout=0.05).done
    assert future.result() is None
    store.close()


def test_opening_a_locked_file_says_so(file: Path) -> None:
    opened(file).close()
    with held_lock(file), pytest.raises(StoreUnavailable, match="locked by another process"):
        opened(file, busy_s=0.05)


# A full disk.


@dataclass(frozen=True, slots=True)
class SmallDisk:
    folder: Path
    fill: Callable[[SqliteStore], None]
    free: Callable[[SqliteStore], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of one megabyte; where it may not be mounted, a database of few pages, which gives
    the same error to whoever writes."""
    mounted = shutil.which("mount") and os.getuid() == 0
    if mounted:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    if mounted:
        ballast = tmp_path / "ballast"

        def fill(store: SqliteStore) -> None:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
                while True:
                    stream.write(b"x" * 4096)

        def free(store: SqliteStore) -> None:
            ballast.unlink()

    else:

        def fill(store: SqliteStore) -> None:
            assert store._inline is not None
            store._inline._raw.execute("PRAGMA max_page_count = 1").fetchall()

        def free(store: SqliteStore) -> None:
            assert store._inline is not None
            store._inline._raw.execute("PRAGMA max_page_count = 100000").fetchall()

    try:
        yield SmallDisk(tmp_path, fill, free)
    finally:
        if mounted:
            subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_loses_nothing_that_was_answered(small_disk: SmallDisk) -> None:
    store = opened(small_disk.folder / "s.db", inline=True)
    add(store, new("before"))
    small_disk.fill(store)
    answered, error = ["before"], None
    for number in range(200):
        future = store.write(lambda tx, n=number: tx.deliveries.insert([new(f"n{n}", group="g" * 5_000)]))  # type: ignore[misc]
        error = future.exception()
        if error is not None:
            break
        answered.append(f"n{number}")
    assert isinstance(error, StoreUnavailable)
    assert "full" in str(error)
    assert "free space" in str(error)
    small_disk.free(store)
    add(store, new("after"))
    rows = store.read(lambda tx: tx.rows("view_verify_rows", after=0, upto=2**62))
    assert [str(row["key"]).split(":")[0] for row in rows] == [*answered, "after"]
    assert broken_chains(store) == []
    store.close()


# Files that are not ours to write.


def unchanged(file: Path, error: type[Exception], match: str) -> None:
    """Opening is refused with this error, and not one byte of the file is another."""
    before = file.read_bytes()
    with pytest.raises(error, match=match):
        opened(file)
    assert file.read_bytes() == before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened: its folder does not exist"):
        opened(tmp_path / "nowhere" / "s.db")


def test_a_file_of_something_else_is_refused_untouched(file: Path) -> None:
    file.write_bytes(b"name,due\n" + secrets.token_bytes(4_000))
    unchanged(file, StoreMismatch, "not a sound SQLite database")


def test_a_database_of_something_else_is_refused_untouched(file: Path) -> None:
    theirs = apsw.Connection(str(file))
    theirs.execute("CREATE TABLE invoices (id); INSERT INTO invoices VALUES (1)")
    theirs.close()
    unchanged(file, StoreMismatch, "database of something else .it has a table invoices")


def test_a_newer_database_is_refused_untouched(file: Path) -> None:
    store = opened(file)
    store.write(lambda tx: tx.set_meta("schema_version", "9999")).result()
    store.close()
    unchanged(file, StoreMismatch, "schema version 9999, this program knows [0-9]+: install the newer")


def test_a_damaged_database_says_what_to_do(file: Path) -> None:
    store = opened(file)
    add(store, *(new(f"n{number}") for number in range(200)))
    store.close()
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(secrets.token_bytes(size - 4096))
    unchanged(file, StoreMismatch, "not a sound SQLite database .*restore the last backup")


def child_read_only(file: str) -> None:
    """Open as somebody who may read, but not write."""
    if os.getuid() == 0:
        os.setgid(65_534)
        os.setuid(65_534)
    try:
        opened(Path(file), busy_s=0.05)
    except StoreUnavailable as error:
        say(error)


def test_a_file_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    """In a folder that others may read: opening as root would prove nothing."""
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path
    folder = folder / f"sendonce-{secrets.token_hex(8)}"
    folder.mkdir()
    try:
        file = folder / "s.db"
        opened(file).close()
        file.chmod(0o444)
        folder.chmod(0o555)
        (message,) = finish(start_child(child_read_only, file))
        assert message.startswith(f"{file} ")
        assert "permissions" in message
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize("url", ["postgres://x", "sqlite:s.db", "sqlite://", "sqlite:///"])
def test_a_url_that_names_no_file_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("sqlite:///file.db")):
        open_store(url, SystemClock())


def test_a_store_in_memory_has_no_second_connection() -> None:
    with pytest.raises(ConfigError, match="name a file"):
        open_store("sqlite://:memory:", SystemClock())


@pytest.mark.parametrize("version", ["3.51.2", "3.50.99", "3.9.1", "2.8.17"])
def test_an_sqlite_that_can_corrupt_the_file_is_refused(version: str) -> None:
    with pytest.raises(StoreMismatch, match=rf"SQLite {re.escape(version)} .* 3\.51\.3 or later"):
        check_library(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.51.10", "3.52.0", "3.100.0", "4.0.0"])
def test_a_later_sqlite_is_taken(version: str) -> None:
    check_library(version)


# Killed in the middle.


def child_insert(file: str, begin: str) -> None:
    """Insert in groups, and print each id once its unit is answered."""
    store = opened(Path(file))
    number = int(begin)
    while True:
        given = [[new(f"n{number + i}")] for i in range(8)]
        futures = [store.write(lambda tx, one=one: tx.deliveries.insert(one)) for one in given]  # type: ignore[misc]
        for future in futures:
            say(future.result()[0], number)
            number += 1


def test_a_killed_process_loses_no_unit_that_was_answered(file: Path) -> None:
    answered: dict[int, str] = {}
    for begin in (0, 100_000, 200_000):
        child = start_child(child_insert, file, begin)
        assert child.stdout is not None
        for _ in range(60):
            id_, number = child.stdout.readline().split()
            answered[int(id_)] = f"n{number}:c:email"
        child.kill()
        for line in child.stdout:
            if line.endswith("\n") and len(parts := line.split()) == 2:
                answered[int(parts[0])] = f"n{parts[1]}:c:email"
        child.communicate()
    assert len(answered) >= 180
    store = opened(file)
    rows = store.read(lambda tx: tx.rows("view_verify_rows", after=0, upto=2**62))
    kept = {int(row["id"]): str(row["key"]) for row in rows}
    assert {id_: kept.get(id_) for id_ in answered} == answered
    assert broken_chains(store) == []
    store.close()


# Time and the secret, over restarts.


def test_the_steady_clock_goes_on_over_a_restart_of_the_process(file: Path) -> None:
    clock = VirtualClock()
    store = open_store(f"sqlite:///{file}", clock)
    before = store.steady()
    store.close()
    clock.advance(10)
    clock.step(-86_400)  # the calendar is set back while nobody runs
    store = open_store(f"sqlite:///{file}", clock)
    assert store.steady() == before + 10 * SECOND
    store.close()


def test_the_steady_clock_goes_on_over_a_restart_of_the_machine(file: Path) -> None:
    clock = VirtualClock()
    store = open_store(f"sqlite:///{file}", clock)
    before = store.steady()
    store.close()
    clock.advance(600)
    clock.restart_machine("virtual-2")
    store = open_store(f"sqlite:///{file}", clock)
    assert store.steady() == before + 600 * SECOND
    clock.advance(1)
    assert store.steady() == before + 601 * SECOND
    store.close()


def test_the_steady_clock_never_goes_back_even_if_the_machine_wakes_up_in_the_past(file: Path) -> None:
    """A dead clock battery: the calendar starts years ago. What a process noted last is the floor."""
    clock = VirtualClock()
    store = open_store(f"sqlite:///{file}", clock)
    clock.advance(100)
    store.write(lambda tx: tx.set_meta("steady_seen", str(tx.steady))).result()
    seen = store.steady()
    store.close()
    clock.restart_machine("virtual-2")
    clock.step(-10 * 365 * 86_400)
    store = open_store(f"sqlite:///{file}", clock)
    assert store.steady() >= seen
    store.close()


def test_the_secret_survives_and_is_each_stores_own(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "a.db"), opened(tmp_path / "b.db")
    secret = first.secret
    assert secret != second.secret
    first.close()
    second.close()
    again = opened(tmp_path / "a.db")
    assert again.secret == secret
    again.close()


# How it is asked.


def test_every_commit_reaches_the_disk(file: Path) -> None:
    store = opened(file, inline=True)
    assert store._inline is not None
    raw = store._inline._raw
    assert raw.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert raw.execute("PRAGMA synchronous").fetchall() == [(2,)]  # FULL
    store.close()


PLANS = {
    "delivery_by_id": "SEARCH delivery USING INTEGER PRIMARY KEY (rowid=?)",
    "delivery_by_key": "SEARCH delivery USING INDEX sqlite_autoindex_delivery_1 (tenant=? AND key=?)",
    "delivery_of_reminder": "SEARCH delivery USING INDEX delivery_reminder (reminder_id=?)",
    "delivery_wake": "SEARCH agenda USING INDEX agenda_waiting (via=? AND at<?)",
    "delivery_next_wake": "SEARCH agenda USING INDEX agenda_waiting (via=?)",
    "delivery_move": "SEARCH delivery USING INTEGER PRIMARY KEY (rowid=?)",
    "delivery_defer": "SEARCH delivery USING INTEGER PRIMARY KEY (rowid=?)",
    "delivery_note": "SEARCH delivery USING INTEGER PRIMARY KEY (rowid=?)",
    "agenda_change": "SEARCH agenda USING INTEGER PRIMARY KEY (rowid=?)",
    "agenda_defer": "SEARCH agenda USING INTEGER PRIMARY KEY (rowid=?)",
    "agenda_strike": "SEARCH agenda USING INTEGER PRIMARY KEY (rowid=?)",
    "call_count": "SEARCH open_call USING PRIMARY KEY (account=? AND claimed_at>?)",
    "call_close": (
        "SEARCH open_call USING PRIMARY KEY (account=? AND claimed_at=? AND delivery_id=? AND epoch=?)"
    ),
    "gate_lock": "SEARCH gate USING INDEX sqlite_autoindex_gate_1 (account=?)",
    "flow_get": "SEARCH flow USING PRIMARY KEY (account=? AND flow=?)",
    "content_get": "SEARCH content USING INDEX sqlite_autoindex_content_1 (delivery_id=? AND version=?)",
    "preference_of": "SEARCH preference USING PRIMARY KEY (tenant=? AND channel=? AND address_tag=?)",
    "reminder_find": "SEARCH reminder USING INDEX sqlite_autoindex_reminder_1 "
    "(tenant=? AND reminder=? AND customer=?)",
}
"""What the stages run all the time, and the one step that each may take: no scan, no sorting."""


@pytest.fixture(scope="module")
def plans() -> dict[str, list[str]]:
    store = open_store("sqlite://:memory:", VirtualClock(), inline=True)
    connection = store._inline
    assert connection is not None
    found = {}
    for name, text in connection._sql.items():
        parameters = dict.fromkeys(re.findall(r":(\w+)", text), 1)
        rows = connection._raw.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
        found[name] = [str(row[3]) for row in rows]
    store.close()
    return found


BY_AGENDA = {
    "delivery_due": "agenda_pass (at>? AND at<?)",
    "delivery_ready": "agenda_ready (via=? AND look=? AND place>?)",
    "delivery_expired": "agenda_unsent (until<?)",
    "delivery_attention": "agenda_attention (look=? AND at<?)",
    "delivery_matching_state": "agenda_attention (look=?)",
    "delivery_paused_scheduled": "agenda_pass (at>? AND at<?)",
    "delivery_paused_queued": "agenda_waiting (via=? AND at>? AND at<?)",
}
"""What looks for deliveries goes to them by the agenda, and there by the index of what it looks for."""


@pytest.mark.parametrize("name", PLANS)
def test_a_hot_statement_goes_straight_to_its_rows(plans: dict[str, list[str]], name: str) -> None:
    assert plans[name] == [PLANS[name]]


@pytest.mark.parametrize("name", BY_AGENDA)
def test_a_stage_goes_to_its_rows_by_the_agenda(plans: dict[str, list[str]], name: str) -> None:
    first, then, *more = plans[name]
    assert first.replace("COVERING ", "") == f"SEARCH agenda USING INDEX {BY_AGENDA[name]}"
    assert then == PLANS["delivery_by_id"]
    assert more == ([] if name != "delivery_matching_state" else ["USE TEMP B-TREE FOR ORDER BY"])


def test_no_statement_of_a_stage_reads_a_whole_table(plans: dict[str, list[str]]) -> None:
    """Small tables and partial indexes may be read through; a table that grows with the years may not."""
    grows = re.compile(
        r"SCAN (delivery|reminder|revision|content|ledger|preference|removed|r|d|l)\b(?! USING \w* ?INDEX)"
    )
    assert set(plans) == set(raw_statements())
    scans = {
        name: steps
        for name, steps in plans.items()
        if not name.startswith("view_") and any(grows.search(step) for step in steps)
    }
    assert scans == {}


def test_what_is_removed_is_found_by_number_and_what_was_by_its_tag(plans: dict[str, list[str]]) -> None:
    by_id = "SEARCH delivery USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
    assert plans["retention_old"] == [by_id]
    assert plans["retention_full"] == [
        by_id.replace("delivery", "d"),
        "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
    ]
    assert plans["removed_find"] == ["SEARCH removed USING COVERING INDEX removed_identity (identity=?)"]
    assert plans["ledger_drop"] == ["SEARCH ledger USING INDEX sqlite_autoindex_ledger_1 (delivery_id=?)"]


def test_an_import_is_undone_by_its_own_revisions(plans: dict[str, list[str]]) -> None:
    assert plans["revision_of_import"][0] == "SEARCH revision USING INDEX revision_import (import_id=?)"


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    """It holds addresses and the store's secret; what its owner opened up later stays as it is."""
    path = tmp_path / "private.db"
    before = os.umask(0o022)
    try:
        store = open_store(f"sqlite:///{path}", VirtualClock(), inline=True)
        store.write(lambda tx: tx.set_meta("a", "b")).result()
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        store.close()
        path.chmod(0o640)
        open_store(f"sqlite:///{path}", VirtualClock(), inline=True).close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("private.db", "private.db-wal", "private.db-shm"), 0o600)
    assert path.stat().st_mode & 0o777 == 0o640


# Ids of new rows


def test_ids_of_new_rows_are_said_without_returning() -> None:
    """In every insertion that gives one; they are the ids that the rows have, with other tables between."""
    store = open_store("sqlite://:memory:", VirtualClock(), inline=True)
    connection = store._inline
    assert connection is not None
    texts = raw_statements().items()
    giving = {name for name, text in texts if "RETURNING" in text and "INSERT" in text}
    assert set(connection._making) == giving >= {"reminder_insert", "delivery_insert"}
    assert not any("RETURNING" in text for text, _ in connection._making.values())

    def unit(tx: Tx) -> None:
        for n in range(3):
            names = [f"r-{n}{m}" for m in range(4)]
            ids = tx.deliveries.insert([new(name) for name in names])
            assert [(row.id, row.key) for row in tx.deliveries.by_ids(ids)] == [
                (id_, f"{name}:c:email") for id_, name in zip(ids, names, strict=True)
            ]
            tx.runs.begin_import("t", "", f"file-{n}", "test")

    store.write(unit).result()
