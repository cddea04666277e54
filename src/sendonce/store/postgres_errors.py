"""PostgreSQL's errors as ours, with the fix. No message holds a password."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

import psycopg
from psycopg import errors

from sendonce.core.errors import StoreError, StoreMismatch, StoreUnavailable

AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)
"""The database gave up the transaction, and another try may well succeed."""

FORGOTTEN = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
"""A pooler in between gave us another connection than the one that holds our prepared statements."""


_AT_CONNECTING: tuple[tuple[str, type[psycopg.Error]], ...] = (
    ("too many clients", errors.TooManyConnections),
    ("remaining connection slots are reserved", errors.TooManyConnections),
    ("too many connections for", errors.TooManyConnections),
    ("session is read-only", errors.ReadOnlySqlTransaction),
    ("hot standby mode", errors.ReadOnlySqlTransaction),
    ("authentication failed", errors.InvalidPassword),
    ("no password supplied", errors.InvalidPassword),
    ("is not permitted to log in", errors.InvalidAuthorizationSpecification),
    ("no pg_hba.conf entry", errors.InvalidAuthorizationSpecification),
)
"""A connection that is refused comes without a code: only the text says why. Where a server speaks another
language, the general answer has to do."""


CLOSED: Final = "SO001"
"""What the tables of a store answer that has moved (`moving_postgres`): no code of PostgreSQL's own."""

_FATAL: Final = ("FATAL", "PANIC")


def is_lost(connection: psycopg.Connection[Any], error: psycopg.Error) -> bool:
    """Whether the connection is of no use after this error; where it is not, it is closed.

    `Connection.closed` alone is not enough. The server's last word, or an error that it never sent, may leave
    the client between two messages (in pipeline mode, seen with psycopg 3.3), where each further statement
    fails and nothing ever closes.
    """
    of_the_way = error.sqlstate is None and isinstance(
        error, (psycopg.OperationalError, psycopg.InterfaceError)
    )
    if of_the_way or error.diag.severity_nonlocalized in _FATAL:
        connection.close()
    return connection.closed


class translated:  # noqa: N801 (reads as a clause)
    """Turn what PostgreSQL raises into ours. `where`: the database, for people."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, psycopg.Error):
            raise ours(error, self._where) from error


def ours(error: psycopg.Error, where: str) -> StoreError:
    said = _first_line(error)
    if error.sqlstate == CLOSED:
        return StoreMismatch(f"{where}: {said}", code="store_moved")
    match _told_apart(error, said):
        case errors.LockNotAvailable():
            return StoreUnavailable(
                f"{where}: another transaction holds a lock for longer than allowed ({said}): "
                "end the long transaction (see pg_stat_activity) and try again",
                code="store_locked",
            )
        case errors.QueryCanceled():
            return StoreUnavailable(
                f"{where}: a statement took longer than allowed and was given up ({said}): look at the load "
                "of the server, and whether its tables are analysed",
                code="store_slow",
            )
        case errors.DeadlockDetected():
            return StoreUnavailable(
                f"{where}: transactions waited for each other again and again ({said}): "
                "report it, with the server's log of that moment",
                code="store_deadlock",
            )
        case errors.SerializationFailure():
            return StoreUnavailable(
                f"{where}: transactions stood in each other's way again and again ({said})",
                code="store_locked",
            )
        case errors.DiskFull():
            return StoreUnavailable(
                f"{where}: its disk is full: free space; nothing was half written", code="store_full"
            )
        case errors.TooManyConnections():
            return StoreUnavailable(
                f"{where} takes no more connections ({said}): raise max_connections, or use PgBouncer",
                code="store_crowded",
            )
        case errors.ReadOnlySqlTransaction():
            return StoreUnavailable(
                f"{where} can only be read ({said}): name the primary in the URL; with several hosts in it, "
                "the one that can be written is found by itself",
                code="store_read_only",
            )
        case errors.InsufficientPrivilege():
            return StoreUnavailable(
                f"{where}: the user of the URL may not do this ({said}): grant it as docs/postgresql.md says",
                code="store_refused",
            )
        case errors.InvalidCatalogName():
            return StoreUnavailable(
                f"{where}: {said}: create the database, for example with createdb", code="store_unreachable"
            )
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
            return StoreUnavailable(
                f"{where}: {said}: check user and password of the URL", code="store_refused"
            )
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return StoreMismatch(f"{where} is damaged ({said}): restore the last backup")
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.InvalidSchemaName():
            return StoreMismatch(
                f"{where} has not the tables that this program made ({said}): somebody changed or dropped "
                "them; restore the last backup"
            )
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return StoreUnavailable(
                f"{where} cannot be reached ({said}): check that the server runs, and host, port, user and "
                "password of the URL; nothing was half done",
                code="store_unreachable",
            )
        case _:
            return StoreError(f"{where}: {said}")


def _told_apart(error: psycopg.Error, said: str) -> psycopg.Error:
    """The error, or for a refused connection what it would be with a code."""
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        for words, kind in _AT_CONNECTING:
            if words in said:
                return kind(said)
        if 'database "' in said and "does not exist" in said:
            return errors.InvalidCatalogName(said)
    return error


def _first_line(error: psycopg.Error) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
