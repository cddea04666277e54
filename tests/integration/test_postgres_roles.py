"""What the user of the processes is granted (`docs/postgresql.md`, `deploy/postgresql/rights.sql`) is enough,
and is not too much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel
from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.core.retention import Keep
from sendonce.pipeline import erasure
from sendonce.pipeline.retention import LOOK_S, Retention
from sendonce.pipeline.sealed import check_seals
from sendonce.pipeline.sealer import Sealer
from sendonce.ports.store import Outgoing
from sendonce.runtime.clock import SystemClock
from sendonce.store import migrate, postgres_schema
from sendonce.store.postgres import open_store
from sendonce.testing.clock import VirtualClock
from sendonce.testing.conformance.store import Ear
from sendonce.testing.postgres_server import PostgresServer
from tests.integration import world
from tests.integration.places import OneStorePlace
from tests.integration.world import World

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/postgresql.md"
RIGHTS = ROOT / "deploy/postgresql/rights.sql"
pytestmark = pytest.mark.sqlite_only  # it chooses its own place


@pytest.fixture
def url(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a store whose tables another user owns; everything is done with it as the page says."""
    name = "least_privilege"
    owner = postgres_server.create_database(name)
    open_store(owner, VirtualClock(), inline=True, server_clock=False).close()
    (making,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    postgres_server.execute(making, name)
    for _ in range(2):  # it is run again after each new version
        postgres_server.execute(RIGHTS.read_text("utf-8"), name)
    place = OneStorePlace(postgres_server.url(name, user="sendonce_app"))
    monkeypatch.setattr(world, "place", place)
    yield postgres_server.url(name, user="sendonce_app")
    place.close()
    postgres_server.drop_database(name)
    postgres_server.execute("DROP ROLE sendonce_app")


def test_it_is_enough_for_a_full_life(url: str) -> None:
    it = World("K", "N")
    taken = it.accepted("a")
    doubtful = it.uncertain("b", account="email-N")
    it.opt_out(Channel.EMAIL, kind=Kind.OPT_OUT)
    it.write(lambda tx: tx.hint([Outgoing(1, 1, "text", 0)]))
    it.write(lambda tx: tx.hinted([(1, 1)]))
    it.write(lambda tx: tx.preferences.remove("default", "email", "", "*", "opt_out"))
    it.write(lambda tx: tx.processes.mark_stopped(["w-1"]))
    it.write(lambda tx: tx.intake.lock([1, 2]))
    it.write(lambda tx: tx.intake.park([(1, "", ""), (2, "", "")]))
    it.write(lambda tx: tx.intake.retry([1, 2]) + tx.intake.drop([1, 2]))
    it.write(lambda tx: tx.intake.remove([1, 2]))
    assert (it.state(taken), it.state(doubtful)) == (State.ACCEPTED, State.UNCERTAIN)
    cancelled = it.schedule("c", due_in_s=60.0)
    it.withdraw(cancelled)
    assert it.state(cancelled) is State.CANCELLED


def test_it_is_enough_to_seal_and_to_prove(url: str) -> None:
    it = World("K")
    it.accepted("a")
    sealer = Sealer(it.store, None, every_s=10.0)
    assert sealer.seal_one() is not None
    it.accepted("b")
    assert sealer.seal_one() is not None
    found = check_seals(it.store, None)
    assert (found.faults, found.blocks, found.entries) == ([], 2, 8)


def test_who_adds_to_the_ledger_is_seen_by_another_user(url: str) -> None:
    """The sealer waits for whoever writes, also for the owner, whose session it may not look into."""
    it = World("K")
    it.accepted("a")
    with psycopg.connect(url.replace("sendonce_app", "postgres")) as other:
        other.execute(
            "INSERT INTO sendonce.ledger (delivery_id, seq, at, event, body, hash, receipt) "
            "VALUES (9, 1, 1, 'claimed', '{}', 'h', '')"
        )
        it.accepted("b")
        sealer = Sealer(it.store, None, every_s=10.0)
        assert sealer.seal_one() is None
        assert sealer.waits
        other.commit()
    assert sealer.seal_one() is not None


def test_it_is_enough_to_erase_a_person(url: str) -> None:
    it = World("K")
    taken, future = it.accepted("a"), it.schedule("b", due_in_s=1e6)
    erasure.erase(it.store, "c-1", policy=it.policy, tenant="default", reason="asked", actor="operator:ann")
    assert (it.state(taken), it.state(future)) == (State.ACCEPTED, State.CANCELLED)
    assert not it.read(lambda tx: tx.contents.get([(it.row(taken).id, 1)]))


def test_retention_needs_the_rights_that_its_page_names(url: str, postgres_server: PostgresServer) -> None:
    it = World("K")
    taken = it.accepted("a")
    it.schedule("b", due_in_s=1e9)
    it.advance(100 * 86_400)
    keep = Keep(content_s=86_400.0, deliveries_s=86_400.0, imports_s=86_400.0)
    with pytest.raises(StoreUnavailable, match="permission denied"):
        Retention(it.store, it.policy, keep).step()
    page = (PAGE.parent / "privacy.md").read_text("utf-8")
    (granting,) = (text for text in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if "GRANT" in text)
    postgres_server.execute(granting, "least_privilege")
    retention = Retention(it.store, it.policy, keep)
    while retention.step() < LOOK_S:
        pass
    assert not it.read(lambda tx: tx.deliveries.by_keys([("default", taken)]))
    ending = "DROP OWNED BY sendonce_retention; DROP ROLE sendonce_retention"
    postgres_server.execute(ending, "least_privilege")


def test_it_is_enough_to_tell_and_to_hear(url: str) -> None:
    store = open_store(url, SystemClock())
    ear = Ear(store)
    ear.tune_in(store)
    store.write(lambda tx: tx.announce("due")).result()
    assert ear.until(1) == ["due"]
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sendonce.ledger SET body = ''",
        "DELETE FROM sendonce.ledger",
        "TRUNCATE sendonce.ledger",
        "UPDATE sendonce.seal SET leaves = ''",
        "DELETE FROM sendonce.seal",
        "TRUNCATE sendonce.seal",
        "UPDATE sendonce.audit SET actor = ''",
        "DELETE FROM sendonce.delivery",
        "UPDATE sendonce.tombstone SET body = ''",
        "DELETE FROM sendonce.tombstone",
        "UPDATE sendonce.removed SET head = ''",
        "DELETE FROM sendonce.reminder",
        "DROP TABLE sendonce.ledger",
        "CREATE TABLE sendonce.more ()",
        "DELETE FROM sendonce.meta",
    ],
)
def test_it_rewrites_nothing_that_was_recorded(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(statement.encode())


def test_what_only_the_owner_may_migrate_is_refused_whole_with_the_way_to_do_it(
    url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process of a new version finds it that is started before the owner was asked."""
    known = migrate.migrations("postgresql")
    later = (len(known) + 1, "CREATE TABLE later (id BIGINT);")
    monkeypatch.setattr(postgres_schema, "migrations", lambda database: [*known, later])
    with pytest.raises(StoreUnavailable, match=r"may not make them \(permission denied.*`sendonce db info`"):
        open_store(url, VirtualClock(), inline=True, server_clock=False)
    version = "SELECT value FROM sendonce.meta WHERE name = 'schema_version'"
    assert postgres_server.ask(version, "least_privilege") == str(len(known))
    owner = postgres_server.url("least_privilege")
    open_store(owner, VirtualClock(), inline=True, server_clock=False).close()
    open_store(url, VirtualClock(), inline=True, server_clock=False).close()
    assert postgres_server.ask(version, "least_privilege") == str(len(known) + 1)


def test_without_any_grant_it_is_told_where_to_look(url: str, postgres_server: PostgresServer) -> None:
    postgres_server.execute("REVOKE ALL ON SCHEMA sendonce FROM sendonce_app", "least_privilege")
    with pytest.raises(StoreUnavailable, match=r"permission denied.*docs/postgresql\.md"):
        open_store(url, VirtualClock(), inline=True, server_clock=False)
