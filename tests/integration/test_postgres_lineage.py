"""Whether a store notices another server under it: real ones, promoted, copied, dumped, set back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from sendonce import held
from sendonce.core.errors import StoreMismatch
from sendonce.core.policy import Policy
from sendonce.held import FAILOVER, LATE, LOST_COMMITS, OLDER, RESTORED, Hold, hold_of
from sendonce.pipeline.restore import hold_by_hand, released
from sendonce.ports.store import Process, Tx
from sendonce.runtime.clock import SystemClock
from sendonce.store.postgres import PostgresStore, _Writing, open_store
from sendonce.store.postgres_lineage import Lineage
from sendonce.testing.postgres_server import PostgresServer
from tests.integration.world import account_of, policy_of

NAME = "reminders"
WITHIN_S = 30.0


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def primary(opened: ExitStack) -> PostgresServer:
    server = opened.enter_context(PostgresServer())
    server.create_database(NAME)
    return server


@pytest.fixture
def policy() -> Policy:
    return policy_of(account_of("K"))


def at(*servers: PostgresServer, database: str = NAME) -> str:
    """The URL of whichever of them takes writes."""
    folders = ",".join(quote(str(server.folder), safe="") for server in servers)
    return f"postgresql://postgres@/{database}?host={folders}"


def a_store(opened: ExitStack, url: str) -> PostgresStore:
    store = open_store(url, SystemClock(), inline=True)
    opened.callback(store.close)
    return store


def wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.01)


def beat(store: PostgresStore) -> int:
    """A heartbeat, as a worker's; when it was."""

    def unit(tx: Tx) -> int:
        process = Process("w-1", "worker", "sms", "host", 1, tx.now, tx.now, tx.steady, stopped=False)
        tx.processes.beat(process)
        tx.set_meta("steady_seen", str(tx.steady))
        return tx.now

    return store.write(unit).result()


def standing_of(store: PostgresStore) -> Hold | None:
    """As the next transaction finds it; what that says of it, and what stands there, are one."""
    is_held, standing = store.write(lambda tx: (tx.held, hold_of(tx))).result()
    assert is_held is (standing is not None)
    return standing


def is_held(store: PostgresStore, why: str) -> Hold:
    standing = standing_of(store)
    assert standing is not None
    assert standing.why == why
    return standing


def left_behind(primary: PostgresServer, opened: ExitStack) -> PostgresServer:
    """A standby that has all that was written until now, and receives nothing more."""
    standby = opened.enter_context(primary.copy(follows=True))
    written = primary.ask("SELECT pg_current_wal_lsn()::text", NAME)
    wait(lambda: bool(standby.ask(f"SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn", NAME)))
    standby.cut_off()
    wait(lambda: standby.ask("SELECT count(*) FROM pg_stat_wal_receiver", NAME) == 0)
    return standby


def let_go(store: PostgresStore, policy: Policy, **given: Any) -> int:
    return released(store, policy, reason="compared", actor="operator:ann", **given).epoch


# A standby is promoted


def test_who_comes_to_a_promoted_standby_finds_it_held(
    primary: PostgresServer, opened: ExitStack, policy: Policy
) -> None:
    last_known = beat(a_store(opened, at(primary)))
    other = left_behind(primary, opened)
    both = at(primary, other)
    came_over, late = a_store(opened, both), a_store(opened, both)
    beat(came_over)
    came_over.write(lambda tx: tx.set_meta("lost", "yes")).result()
    assert standing_of(came_over) is None
    primary.stop(immediate=True)
    other.promote()
    standing = is_held(came_over, FAILOVER)
    assert standing.lost_from == last_known
    assert standing.line.split("/")[1] == "00000002"
    assert came_over.write(lambda tx: tx.meta("lost")).result() is None
    # What is written now is no news of the span, and everybody finds the same hold.
    beat(came_over)
    assert is_held(late, FAILOVER) == standing
    assert is_held(a_store(opened, at(other)), FAILOVER) == standing
    assert let_go(late, policy) == 2
    assert [standing_of(each) for each in (came_over, late, a_store(opened, at(other)))] == [None] * 3


def test_the_log_knows_of_a_promotion_before_the_control_file_does(
    primary: PostgresServer, opened: ExitStack
) -> None:
    """And a connection that was made to the standby before sees it as well."""
    a_store(opened, at(primary))
    other = left_behind(primary, opened)
    columns = f"SELECT {Lineage('sendonce').columns}"
    with psycopg.connect(other.url(NAME), autocommit=True) as connection:

        def timeline() -> str:
            row = connection.execute(columns.encode()).fetchone()
            assert row is not None
            return str(row[0])

        assert timeline() == ""
        other.execute("ALTER SYSTEM SET checkpoint_timeout = '1h'")
        other.promote()
        assert timeline() == "00000002"


def test_a_second_failover_before_the_release_is_one_more(
    primary: PostgresServer, opened: ExitStack, policy: Policy
) -> None:
    beat(a_store(opened, at(primary)))
    second = left_behind(primary, opened)
    primary.stop(immediate=True)
    second.promote()
    first_hold = is_held(a_store(opened, at(second)), FAILOVER)
    third = left_behind(second, opened)
    second.stop(immediate=True)
    third.promote()
    store = a_store(opened, at(third))
    standing = is_held(store, FAILOVER)
    assert standing.line.split("/")[1] == "00000003"
    assert (standing.lost_from, standing.at) == (first_hold.lost_from, first_hold.at)
    assert standing.lost_until > first_hold.lost_until
    let_go(store, policy)
    assert standing_of(store) is None


# Nobody keeps the old one off


def test_an_old_primary_that_comes_back_is_refused_by_who_knows_better(
    primary: PostgresServer, opened: ExitStack, policy: Policy
) -> None:
    beat(a_store(opened, at(primary)))
    other = left_behind(primary, opened)
    primary.stop(immediate=True)
    other.promote()
    store = a_store(opened, at(other, primary))
    let_go(store, policy)
    assert standing_of(store) is None
    other.stop(immediate=True)
    primary.start()
    is_held(store, OLDER)
    is_held(a_store(opened, at(primary)), OLDER)  # it stands in the store, for everybody


def test_who_went_on_with_the_old_one_holds_the_new_one_again(
    primary: PostgresServer, opened: ExitStack, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MARGIN_US", 0)
    store = a_store(opened, at(primary))
    last_known = beat(store)
    other = left_behind(primary, opened)
    apart = a_store(opened, at(primary, other))
    other.promote()  # and the primary runs on
    let_go(a_store(opened, at(other)), policy, until=last_known)
    went_on = beat(apart)
    primary.stop(immediate=True)
    standing = is_held(apart, LATE)
    assert standing.lost_until >= went_on


def test_who_left_the_old_one_in_time_holds_nothing_again(
    primary: PostgresServer, opened: ExitStack, policy: Policy
) -> None:
    beat(a_store(opened, at(primary)))
    other = left_behind(primary, opened)
    apart = a_store(opened, at(primary, other))
    beat(apart)
    primary.stop(immediate=True)
    other.promote()
    let_go(a_store(opened, at(other)), policy)
    assert standing_of(apart) is None
    beat(apart)  # what it wrote before is not there: the release knew of that
    assert standing_of(apart) is None


def test_what_is_lost_right_after_a_release_is_no_part_of_it(
    primary: PostgresServer, opened: ExitStack, policy: Policy
) -> None:
    """The span that was released ends a margin after the release: a commit of that margin may be lost too."""
    beat(a_store(opened, at(primary)))
    hold_by_hand(a_store(opened, at(primary)), reason="set back", actor="operator:ann")
    let_go(a_store(opened, at(primary)), policy)
    backup = primary.copy()
    opened.callback(backup.close)
    both = a_store(opened, at(primary, backup))
    beat(both)
    primary.stop(immediate=True)
    backup.start()
    beat(both)
    is_held(both, LOST_COMMITS)


# A backup is restored


def test_what_is_recovered_from_an_archive_is_held(primary: PostgresServer, opened: ExitStack) -> None:
    beat(a_store(opened, at(primary)))
    recovered = opened.enter_context(primary.copy(recovers=True))
    is_held(a_store(opened, at(recovered)), FAILOVER)


def test_a_dump_that_is_restored_is_held_wherever_it_is(primary: PostgresServer, opened: ExitStack) -> None:
    store = a_store(opened, at(primary))
    last_known = beat(store)
    dump = primary.folder / "dump"
    primary.run("pg_dump", f"--host={primary.folder}", "--username=postgres", f"--file={dump}", NAME)
    beat(store)
    store.close()

    def restore(server: PostgresServer, database: str) -> PostgresStore:
        server.run(
            "psql", f"--host={server.folder}", "--username=postgres", "--quiet", f"--file={dump}", database
        )
        return a_store(opened, at(server, database=database))

    primary.create_database("beside")
    assert is_held(restore(primary, "beside"), RESTORED).lost_from == last_known
    primary.execute("DROP SCHEMA sendonce CASCADE", NAME)
    is_held(restore(primary, NAME), RESTORED)
    with PostgresServer() as elsewhere:
        elsewhere.create_database(NAME)
        is_held(restore(elsewhere, NAME), RESTORED)


def test_a_copy_of_the_database_is_held(primary: PostgresServer, opened: ExitStack) -> None:
    a_store(opened, at(primary)).close()
    primary.create_database("copy", template=NAME)
    is_held(a_store(opened, at(primary, database="copy")), RESTORED)


def test_files_that_were_set_back_are_noticed_by_who_still_runs(
    primary: PostgresServer, opened: ExitStack, policy: Policy
) -> None:
    a_store(opened, at(primary)).close()
    backup = primary.copy()
    opened.callback(backup.close)
    both = a_store(opened, at(primary, backup))
    beat(both)
    primary.stop(immediate=True)
    backup.start()
    seen: list[bool] = []

    def claims(tx: Tx) -> None:
        """What it writes is not believed, and it is run again."""
        seen.append(tx.held)
        tx.set_meta("x", "y")

    both.write(claims).result()
    assert seen == [False, True]
    is_held(both, LOST_COMMITS)
    let_go(both, policy)
    assert standing_of(both) is None


def test_where_nobody_runs_files_that_were_set_back_are_held_by_hand(
    primary: PostgresServer, opened: ExitStack, policy: Policy
) -> None:
    """No line of history shows it: the documentation says so."""
    a_store(opened, at(primary)).close()
    with primary.copy() as backup:
        store = a_store(opened, at(backup))
        assert standing_of(store) is None
        hold_by_hand(store, reason="base backup restored", actor="operator:ann")
        assert standing_of(store) is not None
        let_go(store, policy)
        assert standing_of(store) is None


# What holds nothing


def test_a_restart_a_crash_and_a_new_connection_hold_nothing(
    primary: PostgresServer, opened: ExitStack
) -> None:
    store = a_store(opened, at(primary))
    for immediate in (False, True):
        beat(store)
        primary.stop(immediate=immediate)
        primary.start()
        assert standing_of(store) is None
        assert standing_of(a_store(opened, at(primary))) is None
    primary.execute("VACUUM FULL sendonce.meta", NAME)
    assert standing_of(store) is None


def test_who_wrote_nothing_for_weeks_has_lost_nothing(primary: PostgresServer, opened: ExitStack) -> None:
    """Its row in `writer` was tidied up."""
    store = a_store(opened, at(primary))
    store._writing._written_at -= 20 * 86_400
    primary.execute("DELETE FROM sendonce.writer", NAME)
    assert standing_of(store) is None
    beat(store)
    assert standing_of(store) is None
    primary.execute("DELETE FROM sendonce.writer", NAME)
    beat(store)
    is_held(store, LOST_COMMITS)


# What it takes


def test_it_costs_no_round_trip(
    primary: PostgresServer, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = a_store(opened, at(primary))
    beat(store)
    trips: list[str] = []
    simple = _Writing._simple

    def counted(self: _Writing, text: str) -> tuple[Any, ...]:
        trips.append(text.split(maxsplit=1)[0])
        return simple(self, text)

    monkeypatch.setattr(_Writing, "_simple", counted)
    for _ in range(3):
        store.write(lambda tx: tx.set_meta("x", "y")).result()
    assert trips == ["BEGIN", "WITH"] * 3
    hold_by_hand(store, reason="x", actor="operator:ann")
    trips.clear()
    store.write(lambda tx: tx.set_meta("x", "z")).result()
    assert trips == ["BEGIN", "WITH"]  # held, it costs no more


@pytest.mark.parametrize("function", ["pg_control_system()", "pg_walfile_name(pg_lsn)"])
def test_a_server_that_does_not_tell_its_line_is_not_used(primary: PostgresServer, function: str) -> None:
    open_store(at(primary), SystemClock()).close()
    for statement in (
        "CREATE ROLE app LOGIN",
        "GRANT USAGE ON SCHEMA sendonce TO app",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA sendonce TO app",
        f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC",
    ):
        primary.execute(statement, NAME)
    url = at(primary).replace("postgres@", "app@")
    with pytest.raises(StoreMismatch, match=r"permission denied for function .* GRANT EXECUTE ON FUNCTION"):
        open_store(url, SystemClock())
    primary.execute(f"GRANT EXECUTE ON FUNCTION {function} TO app", NAME)
    open_store(url, SystemClock()).close()
