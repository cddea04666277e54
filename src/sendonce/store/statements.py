"""SQL as named statements, read from `sql/*.sql` once.

A statement begins at its `-- name:` line and ends at the semicolon; comments above the name say why
it is so. Parameters are `:name` on every database. A few tokens in braces differ: the locking
clauses, and the column lists, which are spelled once beside the code that reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

_NAMED: Final = re.compile(r"^-- name: (\w+)\n(.*?);\s*$", re.MULTILINE | re.DOTALL)


@cache
def raw_statements() -> Mapping[str, str]:
    """Every statement by name, tokens unexpanded. Raises `ValueError` on a name given twice."""
    found: dict[str, str] = {}
    for file in sorted(files("sendonce.store").joinpath("sql").iterdir(), key=lambda f: f.name):
        for name, text in _NAMED.findall(file.read_text("utf-8")):
            if name in found:
                raise ValueError(f"statement {name} is defined twice, again in {file.name}")
            found[name] = text
    return found


def expand(tokens: Mapping[str, str]) -> dict[str, str]:
    """Every statement with its tokens replaced, for one database."""
    return {name: _expand(text, tokens) for name, text in raw_statements().items()}


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    for token, value in tokens.items():
        text = text.replace("{" + token + "}", value)
    return text.strip()
