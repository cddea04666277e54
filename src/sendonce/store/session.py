"""What the shared half of the store needs of a database: run a named statement.

Everything above this protocol is written once for all databases; everything below it is an adapter
of a few dozen lines (`sqlite.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from sendonce.core.errors import InvalidInput

Parameters = Mapping[str, int | str]
Tuple = Sequence[Any]  # one row; the reader beside the column list knows the types


def check_text(*texts: int | str) -> None:
    """For text that comes from people unchecked. Raises `InvalidInput` where not every store could hold it.

    PostgreSQL knows no U+0000, which SQLite takes, and neither a lone surrogate; what is asked with one must
    have the same answer on both.
    """
    for text in texts:
        if type(text) is str and not text.isprintable() and (found := _UNSTORABLE.search(text)):
            raise InvalidInput(
                f"{text!r:.80} holds U+{ord(found[0]):04X}, a character that no name can hold: remove it"
            )


_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


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
