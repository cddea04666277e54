"""Numbered migrations: the schema is their sum.

`migrations/NNNN_name.sql` are applied in order, all in one transaction that also raises
`schema_version`. A database that is newer than this program is refused untouched: an older program
cannot know what it would break.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

import apsw

from sendonce.core.errors import StoreMismatch


def migrations() -> list[tuple[int, str]]:
    """(number, text) of every migration, in order."""
    folder = files("sendonce.store").joinpath("migrations")
    named = sorted((f.name, f) for f in folder.iterdir() if f.name.endswith(".sql"))
    return [(int(name.split("_", 1)[0]), file.read_text("utf-8")) for name, file in named]


def migrate(connection: apsw.Connection, tokens: Mapping[str, str]) -> None:
    """Bring a database up to this program's schema. Raises `StoreMismatch` where it is newer."""
    known = migrations()
    if version_of(connection) == known[-1][0]:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        have = version_of(connection)  # again, under the lock: another process may have been first
        if have > known[-1][0]:
            raise StoreMismatch(
                f"{connection.filename} has schema version {have}, this program knows {known[-1][0]}: "
                "install the newer sendonce that wrote it; nothing was changed"
            )
        for number, text in known:
            if number > have:
                for token, value in tokens.items():
                    text = text.replace("{" + token + "}", value)
                connection.execute(text).fetchall()
        connection.execute(
            "INSERT INTO meta (name, value) VALUES ('schema_version', ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (str(known[-1][0]),),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def version_of(connection: apsw.Connection) -> int:
    """The schema version of a database; 0 for an empty one. Raises `StoreMismatch` for a foreign one."""
    tables = {
        str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    if not tables:
        return 0
    if "meta" not in tables:
        raise StoreMismatch(
            f"{connection.filename} is a database of something else (it has a table {min(tables)}): "
            "name another file; nothing was changed"
        )
    rows = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchall()
    return int(str(rows[0][0])) if rows else 0
