"""Tables become frozen dataclasses: one field, one key.

The dataclass is the declaration. Its types say what a value may be, its defaults what may be left out, and
`setting` adds what types cannot say. The reader and the documentation both go by `keys_of`, so what is read
is what is documented.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from sendonce.config import kinds
from sendonce.config.kinds import Kind
from sendonce.config.problems import ConfigErrors, Place, Problems, did_you_mean
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.ports.secret import Secret

T = TypeVar("T")


class _Required(Enum):
    TOKEN = 0


REQUIRED: Final = _Required.TOKEN


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    name      as written in the file; `field` is the dataclass field it fills
    default   `REQUIRED` where there is none
    missing   what to write, and where it comes from, when a required key is missing
    variable  the environment variable that overrides it
    """

    name: str
    field: str
    kind: Kind[object]
    meaning: str
    default: object
    missing: str
    variable: str

    @property
    def names(self) -> tuple[str, ...]:
        """The ways to write it; the first is the one to teach."""
        return (self.name, f"{self.name}_s") if self.kind.is_duration else (self.name,)


def setting(
    meaning: str,
    *,
    kind: Kind[object] | None = None,
    default: object = REQUIRED,
    missing: str = "",
    variable: str = "",
) -> Any:
    """A dataclass field with what its type cannot say; `kind` None: found from the type."""
    metadata = {"meaning": meaning, "kind": kind, "missing": missing, "variable": variable}
    return dataclasses.field(default=MISSING if default is REQUIRED else default, metadata=metadata)


def bind(cls: type[T], table: Mapping[str, object], place: Place) -> T:
    """Make `cls`, a dataclass, from a TOML table.

    Types are strict: str, int, float, bool, `Secret`, `Path` (relative to the file), StrEnum, Literal,
    `tuple[X, ...]`, `Mapping[str, X]`, a nested dataclass, and `X | None`. A trailing "_" of a field's
    name is dropped (`from_` is the key `from`). A float that ends in `_s` is a duration: its key is the
    name without `_s` and takes "30s", and the key with `_s` takes a number of seconds.
    A text may be "env:NAME"; a `Secret` must be "env:NAME" or "file:PATH".
    Plain fields may carry metadata: "meaning", "missing" (what to write), "min" and "max".
    What `__post_init__` raises as `InvalidInput`, `ConfigError` or `ValueError` is reported at the table.

    Raises `ConfigErrors` with everything that is wrong.
    """
    problems = Problems()
    values, unknown = _read(cls, table, place, problems)
    names = [key.name for key in keys_of(cls)] + list(place.neighbours)
    for name in unknown:
        problems.note(place.say(name, f"is unknown: {did_you_mean(name, names)}"))
    problems.check()
    return _made(cls, values, place)


def bind_some(cls: type[T], table: Mapping[str, object], place: Place) -> tuple[T, Mapping[str, object]]:
    """As `bind`, but the keys that `cls` does not know pass through unread. Returns both."""
    problems = Problems()
    values, unknown = _read(cls, table, place, problems)
    problems.check()
    return _made(cls, values, place), unknown


def keys_of(cls: type) -> tuple[Key, ...]:
    """The keys that `bind` reads for a dataclass."""
    hints = typing.get_type_hints(cls)
    return tuple(_key(each, hints[each.name]) for each in fields(cls) if each.init)


def _key(field: dataclasses.Field[Any], hint: Any) -> Key:
    kind = field.metadata.get("kind") or _kind_of(hint, field)
    default: object = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    return Key(
        name=field.name.removesuffix("_").removesuffix("_s" if kind.is_duration else ""),
        field=field.name,
        kind=kind,
        meaning=field.metadata.get("meaning", ""),
        default=REQUIRED if default is MISSING else default,
        missing=field.metadata.get("missing", ""),
        variable=field.metadata.get("variable", ""),
    )


def _kind_of(hint: Any, field: dataclasses.Field[Any]) -> Kind[object]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    low, high = field.metadata.get("min"), field.metadata.get("max")
    if origin in (types.UnionType, typing.Union) and len(arguments) == 2 and types.NoneType in arguments:
        return _kind_of(next(each for each in arguments if each is not types.NoneType), field)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return kinds.list_of(_kind_of(arguments[0], field))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return kinds.table_of(_kind_of(arguments[1], field))
    if origin is Literal:
        return kinds.words(arguments)
    if hint is float:
        return kinds.duration(low, high) if field.name.endswith("_s") else kinds.number(low, high)
    if hint is int:
        return kinds.whole(low, high)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return kinds.choice(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return Kind("table", lambda value, place: bind(hint, kinds.check_table(value), place))
    raise TypeError(f"the field {field.name} has a type that no setting can have: {hint}")


_SIMPLE: Final[Mapping[object, Kind[object]]] = {
    str: kinds.TEXT,
    bool: kinds.SWITCH,
    Secret: kinds.SECRET,
    Path: kinds.PATH,
}


# Reading a table by its keys


class _Missing(Exception):
    """A required key is not written."""


def _read(
    cls: type, table: Mapping[str, object], place: Place, problems: Problems
) -> tuple[dict[str, object], dict[str, object]]:
    """The values by field, and the unknown keys as written. What is wrong is noted; nothing is raised."""
    keys = keys_of(cls)
    known = {name for key in keys for name in key.names}
    unknown = {name: value for name, value in table.items() if name not in known}
    values: dict[str, object] = {}
    for key in keys:
        try:
            with problems.noted():
                values[key.field] = _value(key, table, place)
        except InvalidInput as error:
            problems.note(place.say(_written(key, table), _sentence(key, error)))
        except _Missing:
            problems.note(place.say(key.name, _missing(key, unknown)))
    return values, unknown


def _value(key: Key, table: Mapping[str, object], place: Place) -> object:
    if key.variable and place.environ.get(key.variable):
        try:
            return key.kind.read(place.environ[key.variable], place.at(""))
        except InvalidInput as error:
            raise ConfigErrors([f"environment: {key.variable} {_continued(str(error))}"]) from None
    written = [name for name in key.names if name in table]
    if len(written) > 1:
        raise InvalidInput(f"is written twice, as {' and '.join(written)}: remove one")
    if written:
        return key.kind.read(table[written[0]], place.at(f"{place.table}.{written[0]}"))
    if key.default is REQUIRED:
        raise _Missing
    return key.default


def _made(cls: type[T], values: Mapping[str, object], place: Place) -> T:
    try:
        return cls(**values)
    except InvalidInput as error:
        name = next((key.name for key in keys_of(cls) if key.field == error.field), error.field)
        message = str(error)
        sentence = message if name and message.startswith(_VERBS) else f"is refused: {message}"
        raise ConfigErrors([place.say(name, sentence)]) from None
    except (ConfigError, ValueError) as error:
        raise ConfigErrors([place.say("", f"is refused: {error}")]) from None


def _missing(key: Key, unknown: dict[str, object]) -> str:
    """What to say of a missing key; a misspelt one is taken out of `unknown`, being explained here."""
    near = get_close_matches(key.name, unknown, n=1, cutoff=0.75)
    if near:
        del unknown[near[0]]
        return f"is missing, but {near[0]} is there: rename it to {key.name}"
    return f"is missing: {key.missing or key.meaning or f'write a {key.kind.label}'}"


def _written(key: Key, table: Mapping[str, object]) -> str:
    return next((name for name in key.names if name in table), key.name)


def _sentence(key: Key, error: InvalidInput) -> str:
    message = str(error)
    if _CREDENTIAL.search(key.name) and not key.kind.is_secret and not message.startswith(_VALUELESS):
        # Whoever wrote a credential into the wrong place must not find it in a terminal or a log.
        return f"does not hold what it should (not shown, it may be a credential): write a {key.kind.label}"
    return _continued(message)


def _continued(sentence: str) -> str:
    """Sentences of the core begin with the value; those of `kinds` with a verb."""
    return sentence if sentence.startswith(_VERBS) else f"= {sentence}"


_VALUELESS = ("is ", "must ", "names ", "holds ")
_VERBS = (*_VALUELESS, "= ", "entry ")
_CREDENTIAL = re.compile("pass(word|phrase|wd)|secret|token|api_?key|credential", re.IGNORECASE)
