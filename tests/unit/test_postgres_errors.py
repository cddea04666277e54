"""What PostgreSQL refuses is told with the fix, and with a code that the log can count."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from sendonce.core.errors import StoreError, StoreMismatch, StoreUnavailable
from sendonce.store.postgres_errors import ours

CASES: list[tuple[psycopg.Error, type[StoreError], str, str]] = [
    (errors.LockNotAvailable("canceling"), StoreUnavailable, "store_locked", "end the long transaction"),
    (errors.QueryCanceled("timeout"), StoreUnavailable, "store_slow", "look at the load"),
    (errors.DeadlockDetected("deadlock"), StoreUnavailable, "store_deadlock", "waited for each other"),
    (errors.SerializationFailure("no"), StoreUnavailable, "store_locked", "stood in each other's way"),
    (errors.DiskFull("no space"), StoreUnavailable, "store_full", "free space"),
    (errors.TooManyConnections("sorry"), StoreUnavailable, "store_crowded", "raise max_connections"),
    (errors.ReadOnlySqlTransaction("read-only"), StoreUnavailable, "store_read_only", "name the primary"),
    (errors.InsufficientPrivilege("denied"), StoreUnavailable, "store_refused", "docs/postgresql.md"),
    (errors.InvalidCatalogName("no database"), StoreUnavailable, "store_unreachable", "createdb"),
    (errors.InvalidPassword("failed"), StoreUnavailable, "store_refused", "check user and password"),
    (
        psycopg.OperationalError("refused"),
        StoreUnavailable,
        "store_unreachable",
        "check that the server runs",
    ),
    (errors.DataCorrupted("bad page"), StoreMismatch, StoreMismatch.code, "restore the last backup"),
    (errors.UndefinedTable("no table"), StoreMismatch, StoreMismatch.code, "somebody changed or dropped"),
    (errors.DivisionByZero("division"), StoreError, StoreError.code, "division"),
]


AT_CONNECTING = [
    ("FATAL:  sorry, too many clients already", "store_crowded"),
    (
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "store_crowded",
    ),
    ('FATAL:  too many connections for role "app"', "store_crowded"),
    ("session is read-only", "store_read_only"),
    ("server is in hot standby mode", "store_read_only"),
    ('FATAL:  password authentication failed for user "app"', "store_refused"),
    ("fe_sendauth: no password supplied", "store_refused"),
    ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "app"', "store_refused"),
    ('FATAL:  database "remindres" does not exist', "store_unreachable"),
    ("Connection refused", "store_unreachable"),
]


@pytest.mark.parametrize(("said", "code"), AT_CONNECTING)
def test_a_refused_connection_is_told_by_its_words(said: str, code: str) -> None:
    """It has no code of its own."""
    told = ours(psycopg.OperationalError(f"connection failed: {said}"), "PostgreSQL database x at db")
    assert told.code == code
    assert said in str(told)
    assert ("createdb" in str(told)) is ("does not exist" in said)


@pytest.mark.parametrize(("error", "kind", "code", "fix"), CASES, ids=[type(c[0]).__name__ for c in CASES])
def test_each_error_is_told_with_its_fix(
    error: psycopg.Error, kind: type[StoreError], code: str, fix: str
) -> None:
    told = ours(error, "PostgreSQL database x at db")
    assert type(told) is kind
    assert told.code == code
    assert str(told).startswith("PostgreSQL database x at db")
    assert fix in str(told)
