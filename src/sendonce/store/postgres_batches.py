"""A statement for many sets of parameters, made from the statement for one.

    UPDATE delivery SET state = :state WHERE id = :id

becomes, with one array for each parameter,

    UPDATE delivery SET state = given._state
    FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS given (_state, _id, _nth)
    WHERE id = given._id RETURNING given._nth

so that the statements are still written once, for one row and for both databases. Sixty-four of them sent one
by one, even in one round trip, cost a worker more than everything else that it does for a delivery.

A batch means what the statements one after the other would mean only while no two sets are about one row.
Whoever runs it asks `repeats` first, and runs one by one where the answer is yes. What has no such form (a
LIMIT by parameter, a RETURNING beside the count) is `None`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from sendonce.core.value import value
from sendonce.store.session import Parameters
from sendonce.store.statements import parameters_of, with_parameters

_INSERT: Final = re.compile(
    r"(INSERT INTO \w+ \([^)]*\))\s+VALUES \((.*?)\)"
    r"(?:\s+(ON CONFLICT \(([^)]*)\).*?))?(?:\s+(RETURNING id))?",
    re.DOTALL,
)
_UPDATE: Final = re.compile(r"(UPDATE \w+ SET\s.*?)\sWHERE (.*)", re.DOTALL)
_DELETE: Final = re.compile(r"(DELETE FROM \w+) WHERE (.*)", re.DOTALL)
_NTH: Final = "_nth"


class Gives(Enum):
    """What the rows of a batch say; sets are numbered from 1."""

    NOTHING = "nothing"  # it has none
    FOUND = "found"  # the number of the set, and what was found for it
    CHANGED = "changed"  # the number of a set that changed its row
    MADE = "made"  # one for each set, in their order: what its insertion returned


@value
class Batch:
    """text        with numbered parameters, one array each, in the order of `names`
    about       the parameters that say which row a set is about; none: every set makes a row of its own
    gives       what its rows say
    """

    text: str
    names: tuple[str, ...]
    gives: Gives
    about: tuple[str, ...] = ()

    def repeats(self, parameters: Sequence[Parameters]) -> bool:
        """Whether two sets are about one row, so that one must see what the other wrote."""
        if not self.about:
            return False
        return len({tuple([one[name] for name in self.about]) for one in parameters}) < len(parameters)

    def arrays(self, parameters: Sequence[Parameters]) -> list[str]:
        """The parameters as array literals."""
        return [_array([one[name] for one in parameters]) for name in self.names]

    def typed(self, parameters: Parameters) -> str:
        """The text for parameters of these types, which a statement's never change."""
        types = ["bigint[]" if isinstance(parameters[name], int) else "text[]" for name in self.names]
        # Sent as text and read by the server: an array in one parameter is one string to make here.
        arrays = ", ".join(f"${n}::text::{type_}" for n, type_ in enumerate(types, start=1))
        columns = ", ".join([*(f"_{name}" for name in self.names), _NTH])
        return self.text.replace("{unnest}", f"unnest({arrays}) WITH ORDINALITY AS given ({columns})")


def batch_of(text: str) -> Batch | None:
    """The batch form of a statement with named parameters; None where there is none."""
    names = tuple(parameters_of(text))
    verb = text.split(maxsplit=1)[0]
    make = _FORMS.get(verb)
    if make is None or not names or re.search(r"\bLIMIT :", text):
        return None
    return make(text, names)


def _select(text: str, names: tuple[str, ...]) -> Batch:
    inner = _given(text)
    source = f"SELECT given.{_NTH}, found.* FROM {{unnest}} CROSS JOIN LATERAL ({inner}) AS found"
    return Batch(source + f" ORDER BY given.{_NTH}", names, Gives.FOUND)


def _insert(text: str, names: tuple[str, ...]) -> Batch | None:
    parts = _INSERT.fullmatch(text)
    if parts is None:
        return None
    head, values, conflict, target, returning = parts.groups()
    about = tuple(column.strip() for column in target.split(",")) if target else ()
    if not set(about) <= set(names):
        return None
    batch = f"{head} SELECT {_given(values)} FROM {{unnest}} WHERE true ORDER BY given.{_NTH}"
    if conflict:
        batch += f" {_given(conflict)}"
    if returning:
        return None if conflict else Batch(f"{batch} {returning}", names, Gives.MADE)
    return Batch(batch, names, Gives.NOTHING, about)


def _update(text: str, names: tuple[str, ...]) -> Batch | None:
    return _change(_UPDATE.fullmatch(text), "FROM", names)


def _delete(text: str, names: tuple[str, ...]) -> Batch | None:
    return _change(_DELETE.fullmatch(text), "USING", names)


def _change(parts: re.Match[str] | None, joined: str, names: tuple[str, ...]) -> Batch | None:
    if parts is None or "SELECT" in parts[0] or "RETURNING" in parts[0]:
        return None
    head, which = parts.groups()
    about = tuple(match[2] for match in _EQUAL.finditer(which) if match[1] == match[2])
    if not about:
        return None
    return Batch(
        f"{_given(head)} {joined} {{unnest}} WHERE {_given(which)} RETURNING given.{_NTH}",
        names,
        Gives.CHANGED,
        ("id",) if "id" in about else about,
    )


_EQUAL: Final = re.compile(r"\b(\w+) = :(\w+)")
_FORMS: Final[Mapping[str, Callable[[str, tuple[str, ...]], Batch | None]]] = {
    "SELECT": _select,
    "INSERT": _insert,
    "UPDATE": _update,
    "DELETE": _delete,
}


def _given(text: str) -> str:
    return with_parameters(text, lambda name: f"given._{name}")


def _array(values: list[Any]) -> str:
    """An array literal (PostgreSQL manual, 8.15.6) of whole numbers or of texts."""
    if isinstance(values[0], int):
        return "{" + ",".join(map(int.__repr__, values)) + "}"
    inner = '","'.join(values)
    if "\\" in inner or inner.count('"') != 2 * (len(values) - 1):
        inner = '","'.join([text.replace("\\", "\\\\").replace('"', '\\"') for text in values])
    return '{"' + inner + '"}'
