"""Which tables a store has, as the migrations make them: the one list for whoever handles all of them.

It is read from an empty database with every migration applied, so a table or a column that a migration adds
is on it. What only one database has is no part of the data: on PostgreSQL the writing connections (`writer`).
"""

from __future__ import annotations

from functools import cache
from typing import Final

import apsw

from sendonce.core.value import value
from sendonce.store.migrate import migrate
from sendonce.store.sqlite import TOKENS

META: Final = "meta"
OF_CONNECTIONS: Final = "writer"
"""Of PostgreSQL alone: which connections write there now."""


@value
class Table:
    """One table. `key`: the columns by which its rows are told apart, and stand in order."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def in_order(self) -> str:
        """All its rows, as a statement. The order is the same on each database: text goes by its bytes."""
        return f"SELECT {', '.join(self.columns)} FROM {self.name} ORDER BY {', '.join(self.key)}"  # noqa: S608


@cache
def tables() -> tuple[Table, ...]:
    """Every table that holds data, by name."""
    empty = apsw.Connection(":memory:")
    try:
        migrate(empty, TOKENS)
        names = [
            str(row[0])
            for row in empty.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        ]
        return tuple(_table(empty, name) for name in names if not name.startswith("sqlite_"))
    finally:
        empty.close()


def _table(database: apsw.Connection, name: str) -> Table:
    columns = database.execute("SELECT name, pk FROM pragma_table_info(?)", (name,)).fetchall()
    key = [str(column) for pk, column in sorted((int(str(pk)), column) for column, pk in columns) if pk]
    assert key, f"table {name} has no primary key: its rows have no order"
    return Table(name, tuple(str(column) for column, _ in columns), tuple(key))
