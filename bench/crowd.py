"""A crowd: many deliveries made by the database from one, in a minute instead of an hour of imports.

They are what a store is full of after a year: finished ones, and ones that are due some day. Each has its
reminder, its text, its entries and its place on the agenda, under every index. Their hashes are the ones of
the delivery that they were made from: `sendonce verify` would not have it, nothing else asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import psycopg

_NUMBER: Final = "{first} + g"
_NAME: Final = f"'crowd-' || ({_NUMBER})"
_MADE: Final[Mapping[str, Mapping[str, str]]] = {
    "reminder": {
        "id": _NUMBER,
        "reminder": _NAME,
        "customer": _NAME,
        "due_at": "due_at + {apart} * g",
        "expires_at": "expires_at + {apart} * g",
    },
    "delivery": {
        "id": _NUMBER,
        "key": f"{_NAME} || ':' || {_NAME} || ':' || channel",
        "reminder_id": _NUMBER,
        "customer": _NAME,
        "address_tag": _NAME,
        "due_at": "due_at + {apart} * g",
        "next_at": "next_at + {apart} * g",
        "expires_at": "expires_at + {apart} * g",
    },
    "agenda": {
        "delivery_id": _NUMBER,
        "at": "at + {apart} * g",
        "until": "until + {apart} * g",
    },
    "content": {"delivery_id": _NUMBER},
    "ledger": {"delivery_id": _NUMBER, "receipt": f"CASE receipt WHEN '' THEN '' ELSE {_NAME} END"},
}
"""What differs from one to the next, by table; every other column is the same."""
_OF: Final = {"reminder": "id = (SELECT reminder_id FROM delivery WHERE id = {of})", "delivery": "id = {of}"}


def make_crowd(connection: psycopg.Connection, of: int, count: int, *, apart_us: int) -> None:
    """`count` more deliveries like the one with id `of`, each `apart_us` later than the one before.

    The connection's search path must be the store's schema, and nobody else may write meanwhile.
    """
    first = _one(
        connection, "SELECT greatest((SELECT max(id) FROM delivery), (SELECT max(id) FROM reminder))"
    )
    words = {"first": str(first), "apart": str(apart_us), "of": str(of)}
    for table, made in _MADE.items():
        columns = [name for name in _columns(connection, table) if (table, name) != ("ledger", "id")]
        values = ", ".join(made.get(name, name) for name in columns)
        rows = _OF.get(table, "delivery_id = {of}")
        text = (
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} "
            f"FROM {table} CROSS JOIN generate_series(1::bigint, {count}) AS g WHERE {rows}"
        )
        connection.execute(text.format_map(words).encode())
    for table in ("reminder", "delivery"):
        connection.execute(f"SELECT setval('{table}_id_seq', {first + count})".encode())


def _columns(connection: psycopg.Connection, table: str) -> list[str]:
    found = connection.execute(
        b"SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
        b"ORDER BY attnum",
        (table,),
    )
    return [str(row[0]) for row in found]


def _one(connection: psycopg.Connection, text: str) -> int:
    row = connection.execute(text.encode()).fetchone()
    assert row is not None
    return int(row[0])
