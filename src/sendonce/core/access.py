"""Who may ask for what over HTTP: keys, their scopes, and how often.

A key is `so_PREFIX_SECRET`. The prefix names it, in lists and in the ledger, and may be shown; of the secret
only a hash is kept. It has 256 bits of chance, so nobody guesses it, and a plain hash is enough. A key
belongs to one tenant, sees nothing of any other, and may do what its scopes say: none implies another.

Each key may ask so many times a second, with as many at once as fall into two seconds. The arithmetic is
GCRA, as for accounts, but each process counts by itself: this is to be fair, not to be exact.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sendonce.core.errors import InvalidInput
from sendonce.core.value import value

SECOND: Final = 1_000_000
RATE_MAX: Final = 10_000
RATE_DEFAULT: Final = 100
BURST_S: Final = 2
NAME_LENGTH_MAX: Final = 80
TOKEN_LENGTH_MAX: Final = 200
NOBODY: Final = "0" * 64
"""The hash of no secret: compared with where no key has the prefix, so that the time tells nothing."""

_TOKEN: Final = re.compile(r"so_([a-z2-7]{12})_([A-Za-z0-9_-]{43})", re.ASCII)


class Scope(StrEnum):
    """What a key may be for."""

    SCHEDULE = "schedule"  # reminders and templates in, and changed
    READ = "read"  # look at everything of the tenant
    CANCEL = "cancel"  # take back: cancellations, opt-outs
    OPERATE = "operate"  # passes; dead letters, uncertain deliveries and groups of the tenant
    ADMIN = "admin"  # what holds for all tenants (accounts, channels), and keys


@value
class ApiKey:
    """A key as it is kept. Instants in microseconds UTC, 0 for never; `rate` in requests a second."""

    prefix: str
    tenant: str
    name: str
    hash: str
    scopes: frozenset[Scope]
    rate: int
    created_at: int
    created_by: str
    expires_at: int
    used_at: int
    revoked_at: int

    def is_valid(self, now: int) -> bool:
        return not self.revoked_at and not 0 < self.expires_at <= now

    @property
    def actor(self) -> str:
        """Who this is, for the ledger."""
        return f"api:{self.prefix}"


def token_of(prefix: str, secret: str) -> str:
    """The key as its owner has it."""
    return f"so_{prefix}_{secret}"


def parts_of(token: str) -> tuple[str, str] | None:
    """(prefix, secret); None for what is no key of ours."""
    found = _TOKEN.fullmatch(token) if len(token) <= TOKEN_LENGTH_MAX else None
    return (found[1], found[2]) if found else None


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def fits(secret: str, hash_: str) -> bool:
    """Whether a secret is the one behind a hash, in constant time."""
    return hmac.compare_digest(hash_of(secret), hash_)


def parse_scopes(names: Iterable[str]) -> frozenset[Scope]:
    """Scopes by name. Raises `InvalidInput` for an unknown one, and for none at all."""
    found = set[Scope]()
    for name in names:
        try:
            found.add(Scope(name.strip().lower()))
        except ValueError:
            raise InvalidInput(
                f"scope {name!r:.80} is unknown: use one of {', '.join(Scope)}", field="scopes"
            ) from None
    if not found:
        raise InvalidInput(f"a key needs a scope: name one of {', '.join(Scope)}", field="scopes")
    return frozenset(found)


def write_scopes(scopes: Iterable[Scope]) -> str:
    return ",".join(scope for scope in Scope if scope in scopes)


def check_rate(rate: int) -> int:
    if not 1 <= rate <= RATE_MAX:
        raise InvalidInput(f"a rate of {rate} requests a second: use 1 to {RATE_MAX}", field="rate")
    return rate


def check_name(text: str) -> str:
    """What a key is for, trimmed. Raises `InvalidInput`."""
    name = text.strip()
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidInput(
            f"name {name!r:.80} must be one line of 1 to {NAME_LENGTH_MAX} characters: say who uses the key",
            field="name",
        )
    return name


def turn_of(free_at: int, now: int, rate: int) -> tuple[int, int]:
    """One more request at `now`: (the next `free_at`, how long it comes too early; 0: it may go).

    `free_at` is 0 at first. One that comes too early changes nothing.
    """
    spacing = SECOND // rate
    earliest = max(free_at, now)
    early = earliest - now - (BURST_S * SECOND - spacing)
    return (free_at, early) if early > 0 else (earliest + spacing, 0)
