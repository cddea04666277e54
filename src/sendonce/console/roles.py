"""Who may do what in the console: the only place that says it.

A user of the user file has a role; a key has its scopes, as it has them in the API. Both end as scopes, and
nothing else is asked for anywhere. One thing is apart: what concerns the whole installation (the overview,
accounts, passes) shows figures over all tenants. People whom the user file names may see it; a key may where
it has `operate`, as in the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sendonce.core.access import Scope


class Role(StrEnum):
    """What somebody is here for. Each may do what those before it may."""

    VIEWER = "viewer"  # look, with every address masked
    SUPPORT = "support"  # show an address, cancel, correct an address, send again
    OPERATOR = "operator"  # dead letters, uncertain deliveries, groups, passes
    ADMIN = "admin"  # accounts and channels, limits, keys, the audit


SCOPES: Final[Mapping[Role, frozenset[Scope]]] = {
    Role.VIEWER: frozenset({Scope.READ}),
    Role.SUPPORT: frozenset({Scope.READ, Scope.CANCEL, Scope.SCHEDULE}),
    Role.OPERATOR: frozenset({Scope.READ, Scope.CANCEL, Scope.SCHEDULE, Scope.OPERATE}),
    Role.ADMIN: frozenset(Scope),
}

UNMASK: Final = Scope.CANCEL
"""Who may take messages back may see whom they go to; each time it is recorded."""


def role_of(scopes: frozenset[Scope]) -> str:
    """The highest role that these scopes cover, for people to read; "" for none of them."""
    covered = [role for role in Role if SCOPES[role] <= scopes]
    return covered[-1].value if covered else ""


def roles_with(scope: Scope) -> str:
    """Who has a scope, in words."""
    return " or ".join(role.value for role in Role if scope in SCOPES[role])
