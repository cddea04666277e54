"""Values: records that nobody changes after they were made, and that are cheap to make.

Several dozen of them are made on the way of each delivery. `@dataclass(frozen=True)` sets every field
by a call of `object.__setattr__`, which was a sixth of what claim and settle cost. So the type checker
alone keeps these from being changed, as it keeps everything else that is written down in types; where
values come from people's files, in the configuration, the run-time check stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots, equality and a hash, frozen for the type checker; `replace` works on it."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
