"""SQL as named statements, read from `sql/*.sql` once.

A statement begins at its `-- name:` line and ends at the semicolon; comments above the name say why
it is so. Parameters are `:name` on every database. A few tokens in braces differ: the locking
clauses, and the column lists, which are spelled once beside the code that reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Final, TypeVar

T = TypeVar("T")

_NAMED: Final = re.compile(r"^-- name: (\w+)\n(.*?);\s*$", re.MULTILINE | re.DOTALL)
_PARAMETER: Final = re.compile(r"(?<![\w:']):([a-z]\w*)")


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


def by_place(text: str, mark: str) -> tuple[str, Callable[[Mapping[str, T]], tuple[T, ...]]]:
    """A statement with parameters numbered behind `mark`, and what puts named ones into that order.

    Written by name, bound by place: with the 27 parameters of a move that is 5 us instead of 14.
    """
    names = parameters_of(text)
    numbered = with_parameters(text, lambda name: f"{mark}{names.index(name) + 1}")
    match names:
        case []:
            return numbered, lambda parameters: ()
        case [name]:
            return numbered, lambda parameters: (parameters[name],)
        case _:
            return numbered, itemgetter(*names)


def parameters_of(text: str) -> list[str]:
    """The names of a statement's parameters, each once, in the order in which they come."""
    return list(dict.fromkeys(_PARAMETER.findall(text)))


def with_parameters(text: str, spelled: Callable[[str], str]) -> str:
    """A statement with each parameter as `spelled` gives its name."""
    return _PARAMETER.sub(lambda match: spelled(match[1]), text)


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    for token, value in tokens.items():
        text = text.replace("{" + token + "}", value)
    return text.strip()
