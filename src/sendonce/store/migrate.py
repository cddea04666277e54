"""Numbered migrations: the schema is their sum.

`migrations/NNNN_name.sql` are applied in order, all in one transaction that also raises
`schema_version`. A database that is newer than this program is refused untouched: an older program
cannot know what it would break. `NNNN_name.DATABASE.sql` follows the text that all databases share, on that
database only.

Here is how it is done on SQLite; on PostgreSQL see `postgres_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

import apsw

from sendonce.core.errors import StoreMismatch


def migrations(database: str = "sqlite") -> list[tuple[int, str]]:
    """(number, text) of every migration, in order, with what only this database needs behind it."""
    folder = files("sendonce.store").joinpath("migrations")
    texts: dict[int, str] = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name.removesuffix(".sql")):
        match file.name.split("."):
            case [name, "sql"]:
                texts[_number(name)] = file.read_text("utf-8")
            case [name, kind, "sql"] if kind == database:
                texts[_number(name)] += file.read_text("utf-8")
    return sorted(texts.items())


def above(have: int, tokens: Mapping[str, str], known: Sequence[tuple[int, str]], where: str) -> list[str]:
    """The texts that bring version `have` up to date. Raises `StoreMismatch` where it is newer."""
    if have > known[-1][0]:
        raise StoreMismatch(
            f"{where} has schema version {have}, this program knows {known[-1][0]}: "
            "install the newer sendonce that wrote it; nothing was changed"
        )
    return [_expand(text, tokens) for number, text in known if number > have]


def _number(name: str) -> int:
    return int(name.split("_", 1)[0])


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    for token, value in tokens.items():
        text = text.replace("{" + token + "}", value)
    return text


def migrate(connection: apsw.Connection, tokens: Mapping[str, str]) -> None:
    """Bring a database up to this program's schema. Raises `StoreMismatch` where it is newer."""
    known = migrations()
    if version_of(connection) == known[-1][0]:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        have = version_of(connection)  # again, under the lock: another process may have been first
        for text in above(have, tokens, known, connection.filename):
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
