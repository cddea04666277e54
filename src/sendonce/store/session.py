"""What the shared half of the store needs of a database: run a named statement.

Everything above this protocol is written once for all databases; everything below it is an adapter
of a few dozen lines (`sqlite.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

Parameters = Mapping[str, int | str]
Tuple = Sequence[Any]  # one row; the reader beside the column list knows the types


class Session(Protocol):
    """One connection inside a transaction."""

    def rows(self, name: str, parameters: Parameters) -> list[Tuple]:
        """All rows of a statement."""
        ...

    def rows_each(self, name: str, parameters: Sequence[Parameters]) -> list[list[Tuple]]:
        """The rows of a statement for each set of parameters, in one round trip where that counts."""
        ...

    def run(self, name: str, parameters: Parameters) -> int:
        """Run a statement; how many rows it changed."""
        ...

    def run_each(self, name: str, parameters: Sequence[Parameters]) -> list[int]:
        """How many rows a statement changed for each set of parameters, one after the other."""
        ...

    def many(self, name: str, parameters: Iterable[Parameters]) -> None:
        """Run a statement once per set of parameters."""
        ...

    def mappings(self, name: str, parameters: Parameters) -> list[Mapping[str, int | str]]:
        """All rows of a statement, by column name."""
        ...
