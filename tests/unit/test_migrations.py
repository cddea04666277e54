"""Migrations: the schema is their sum, applied once, and never over something unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw
import pytest

from sendonce.core.errors import StoreMismatch
from sendonce.store import migrate as module
from sendonce.store.migrate import migrate, migrations, version_of
from sendonce.store.sqlite import TOKENS
from sendonce.store.statements import expand, raw_statements


@pytest.fixture
def database() -> Iterator[apsw.Connection]:
    connection = apsw.Connection(":memory:")
    yield connection
    connection.close()


def schema(database: apsw.Connection) -> list[tuple[str, str]]:
    rows = database.execute("SELECT type, name FROM sqlite_master ORDER BY type, name").fetchall()
    return [(str(row[0]), str(row[1])) for row in rows]


def test_numbers_begin_at_one_and_leave_no_gap() -> None:
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_an_empty_database_gets_all_and_a_second_time_nothing(database: apsw.Connection) -> None:
    assert version_of(database) == 0
    migrate(database, TOKENS)
    assert version_of(database) == migrations()[-1][0]
    before, changes = schema(database), database.total_changes()
    migrate(database, TOKENS)
    assert schema(database) == before
    assert database.total_changes() == changes
    assert not database.in_transaction


def test_a_next_migration_is_applied_to_what_is_there(
    database: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations()
    migrate(database, TOKENS)
    database.execute("INSERT INTO meta VALUES ('kept', 'yes')")
    following = (len(known) + 1, "CREATE TABLE later (id {id}); INSERT INTO later VALUES (7);")
    monkeypatch.setattr(module, "migrations", lambda: [*known, following])
    migrate(database, TOKENS)
    assert version_of(database) == len(known) + 1
    assert database.execute("SELECT id FROM later").fetchall() == [(7,)]
    assert database.execute("SELECT value FROM meta WHERE name = 'kept'").fetchall() == [("yes",)]


def test_a_migration_that_fails_leaves_nothing_behind(
    database: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations()
    migrate(database, TOKENS)
    before = schema(database)
    broken = (len(known) + 1, "CREATE TABLE half (id {id}); INSERT INTO nowhere VALUES (1);")
    monkeypatch.setattr(module, "migrations", lambda: [*known, broken])
    with pytest.raises(apsw.SQLError, match="nowhere"):
        migrate(database, TOKENS)
    assert schema(database) == before
    assert version_of(database) == len(known)
    assert not database.in_transaction


def test_a_newer_database_is_refused(database: apsw.Connection) -> None:
    migrate(database, TOKENS)
    database.execute("UPDATE meta SET value = '9999' WHERE name = 'schema_version'")
    before = schema(database)
    with pytest.raises(StoreMismatch, match=r"schema version 9999.*nothing was changed"):
        migrate(database, TOKENS)
    assert schema(database) == before
    assert not database.in_transaction


def test_a_database_of_something_else_is_refused(database: apsw.Connection) -> None:
    database.execute("CREATE TABLE invoices (id)")
    with pytest.raises(StoreMismatch, match=r"table invoices.*name another file"):
        migrate(database, TOKENS)
    assert schema(database) == [("table", "invoices")]


CONTRACTED: dict[int, str] = {}
"""Migrations that take something away, and why no process of the version before can miss it."""

TAKES_AWAY = {
    r"\bDROP (TABLE|COLUMN|VIEW|FUNCTION|TRIGGER|SCHEMA)\b": "it drops what the version before may use",
    r"\bRENAME\b": "it renames what the version before knows by its old name",
    r"\bALTER COLUMN\b.*\b(TYPE|SET NOT NULL|DROP DEFAULT)\b": "what the version before writes may not fit",
    r"\bADD (CONSTRAINT|CHECK|UNIQUE|FOREIGN KEY)\b": "what the version before writes may not fit",
    r"\bADD COLUMN\b(?=.*\bNOT NULL\b)(?!.*\bDEFAULT\b)": "the version before writes rows without it",
    r"\bCREATE UNIQUE INDEX\b": "what the version before writes may not fit",
    r"\bDELETE FROM\b": "it deletes what the version before may read",
}


def taken_away(text: str) -> list[str]:
    """What keeps the version before from going on beside a migration (docs/operate/upgrade.md)."""
    statements = [" ".join(each.split()) for each in re.sub(r"--.*", "", text).split(";")]
    made = set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", text))
    return [
        f"{statement[:80]}: {why}"
        for statement in statements
        for pattern, why in TAKES_AWAY.items()
        if re.search(pattern, statement, re.IGNORECASE)
        and not re.search(rf"\b(?:ON|TABLE) ({'|'.join(made) or '-'})\b", statement)  # its own
    ]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_migration_takes_nothing_away_that_the_version_before_uses(database: str) -> None:
    later = dict(migrations(database)[1:])  # before the first one there was nothing
    found = {number: taken_away(text) for number, text in later.items() if number not in CONTRACTED}
    assert {number: problems for number, problems in found.items() if problems} == {}
    assert set(CONTRACTED) <= set(later)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("CREATE TABLE batch (id {id}, name TEXT NOT NULL); CREATE INDEX batch_name ON batch (name);", 0),
        ("CREATE TABLE batch (id {id}); CREATE UNIQUE INDEX batch_id ON batch (id);", 0),
        ("ALTER TABLE delivery ADD COLUMN more TEXT NOT NULL DEFAULT '';", 0),
        ("-- DROP TABLE in a comment\nCREATE INDEX delivery_x ON delivery (x);", 0),
        ("ALTER TABLE delivery ADD COLUMN more TEXT NOT NULL;", 1),
        ("ALTER TABLE delivery\n  DROP COLUMN more;", 1),
        ("ALTER TABLE delivery RENAME COLUMN a TO b;", 1),
        ("CREATE UNIQUE INDEX delivery_x ON delivery (x);", 1),
        ("ALTER TABLE delivery ALTER COLUMN a TYPE BIGINT; DROP TABLE agenda;", 2),
    ],
)
def test_the_rule_for_migrations_finds_what_breaks_it(text: str, problems: int) -> None:
    assert len(taken_away(text)) == problems, taken_away(text)


def test_every_row_carries_its_partition(database: apsw.Connection) -> None:
    """By it the rows can be spread over servers; it is there from the first migration."""
    migrate(database, TOKENS)
    for table in ("reminder", "delivery"):
        columns = {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}
        assert "part" in columns


def test_every_statement_is_whole_and_in_one_text_for_all_databases() -> None:
    """No token is left over, and nothing stands in the files that one database alone understands."""
    assert len(raw_statements()) > 50
    tokens = dict.fromkeys(TOKENS, "")
    for name, text in expand(tokens).items():
        assert "{" not in text.replace("'{}'", ""), name
        assert "rowid" not in text.lower(), name
        assert "insert or " not in text.lower(), name


def test_only_one_statement_writes_a_state() -> None:
    writing = {
        name
        for name, text in raw_statements().items()
        if text.lstrip()
        .upper()
        .startswith(("UPDATE DELIVERY", "INSERT INTO DELIVERY", "DELETE FROM DELIVERY"))
        and "state" in text.split("WHERE")[0]
    }
    assert writing == {"delivery_insert", "delivery_move"}
