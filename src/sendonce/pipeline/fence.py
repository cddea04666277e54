"""The fence: up to which number the ledger, or whatever has such numbers, is as it will be for ever.

On SQLite that is all that is there, since one process writes at a time. On PostgreSQL an entry gets its
number before its transaction commits, so a number may appear late, below others. So whoever reads in the
order of numbers asks for the highest one given, then who is writing the ledger, and waits until every one
of them has ended: what then stands up to that number stands for ever, and nothing comes below it.
"""

from __future__ import annotations

from collections.abc import Callable

from sendonce.ports.store import Numbered, Tx


class Fence:
    """Up to which number every entry is committed, or will never be; of the ledger, or of what `numbered`
    names.

    waits  somebody was writing when it was last asked
    """

    def __init__(self, numbered: Callable[[Tx], Numbered] = lambda tx: tx.seals) -> None:
        self._numbered = numbered
        self._epoch = 0
        self._asked = self._passed = 0
        self._writers: frozenset[str] = frozenset()

    @property
    def waits(self) -> bool:
        return self._asked > self._passed

    def look(self, tx: Tx) -> int:
        """Ask once more; the number."""
        if tx.held or tx.epoch != self._epoch:
            # Another server may have taken over: what was asked of the one before says nothing about it.
            self._epoch, self._asked, self._passed, self._writers = tx.epoch, 0, 0, frozenset()
        given = self._numbered(tx).given()  # first, see `ports.store.Numbered.writers`
        writers = self._numbered(tx).writers()
        if not self._writers & writers:
            self._passed = self._asked
            self._asked, self._writers = given, writers
            if not writers:
                self._passed = given
        return 0 if tx.held else self._passed
