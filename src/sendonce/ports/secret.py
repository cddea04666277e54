"""A credential that cannot be printed by accident.

A `Secret` holds a password, a token or a signing key. Its `repr`, `str` and `format` say only that
something is there, so a settings object may be logged, compared and shown whole; the one way to the
value is `reveal()`, which is easy to search for. It is not a vault: the value stays in memory.
"""

from __future__ import annotations

import hmac


class Secret:
    """Wraps a credential; falsy when empty. Equality takes the same time wherever the values differ."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself. Call it where it is handed to a provider, nowhere else."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __repr__(self) -> str:
        return "Secret(****)" if self._value else "Secret()"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled: hand over a reference such as env:NAME instead")
