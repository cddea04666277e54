"""An image of an embedded store, and going back to it: how the simulator loses commits.

As a server does that takes over without the last of them, or a file that is put back. Everything that is open
on the store goes on with what it finds then.
"""

from __future__ import annotations

import apsw

from sendonce.store.sqlite import SqliteStore


class Image:
    """Everything that is committed in an inline store when it is made."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._kept = apsw.Connection(":memory:")
        _copy(_connection(store), self._kept)

    def set_back(self) -> None:
        """Let the store be what it was then: what was written since is lost. Once."""
        _copy(self._kept, _connection(self._store))
        self._kept.close()


def _copy(source: apsw.Connection, target: apsw.Connection) -> None:
    with target.backup("main", source, "main") as copying:
        while not copying.done:
            copying.step(1_000)


def _connection(store: SqliteStore) -> apsw.Connection:
    inline = store._inline
    assert inline is not None, "only an inline store has one connection for everything"
    return inline._raw
