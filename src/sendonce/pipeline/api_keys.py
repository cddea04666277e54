"""Keys of the HTTP API: made, listed, taken back, replaced, recognised.

A key is shown once, when it is made; afterwards nobody can read it, only recognise it. It is replaced without
a gap: the new one holds at once, and the old one goes on for as long as its owner needs to change over.
Whoever makes or ends a key is audited.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from sendonce.core.access import (
    NOBODY,
    RATE_DEFAULT,
    SECOND,
    ApiKey,
    check_name,
    check_rate,
    fits,
    hash_of,
    parse_scopes,
    parts_of,
    token_of,
    write_scopes,
)
from sendonce.core.delivery import check_id
from sendonce.core.duration import say_duration
from sendonce.core.errors import InvalidInput, NotFound, Refused
from sendonce.core.ledger import Value
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.ports.store import Store, Tx
from sendonce.withdrawal import check_reason

LIFE_MAX_S: Final = 10 * 366 * 86_400.0
OVERLAP_MAX_S: Final = 30 * 86_400.0
NOTED_US: Final = 60 * SECOND
"""That a key was used is written at most so often."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True, slots=True)
class Made:
    """A new key. `token` is what its owner gets, once and never again."""

    key: ApiKey
    token: str


def add(
    store: Store,
    name: str,
    scopes: Iterable[str],
    *,
    actor: str,
    tenant: str = DEFAULT_TENANT,
    rate: int = RATE_DEFAULT,
    life_s: float = 0.0,
) -> Made:
    """Make a key. `life_s` 0: it does not end by itself. Raises `InvalidInput`."""
    wanted, name, tenant = parse_scopes(scopes), check_name(name), check_id(tenant, "tenant")
    check_rate(rate)
    if not 0 <= life_s <= LIFE_MAX_S:
        raise InvalidInput(
            f"a life of {say_duration(life_s)}: use at most {say_duration(LIFE_MAX_S)}", field="expires"
        )

    def unit(tx: Tx) -> Made:
        expires_at = tx.now + int(life_s * SECOND) if life_s else 0
        made = _made(ApiKey("", tenant, name, "", wanted, rate, tx.now, actor, expires_at, 0, 0))
        tx.api_keys.put([made.key])
        body: dict[str, Value] = {
            "prefix": made.key.prefix,
            "scopes": write_scopes(wanted),
            "expires": expires_at,
        }
        tx.runs.audit(actor, "key_add", f"{tenant}/{name}", "", body)
        return made

    return store.write(unit).result()


def list_keys(store: Store, *, tenant: str = "") -> list[ApiKey]:
    """All keys, also those that hold no more; of one tenant where it is named."""
    return store.read(lambda tx: tx.api_keys.all(tenant))


def revoke(store: Store, prefix: str, *, reason: str, actor: str, tenant: str = "") -> ApiKey:
    """End a key at once. Raises `NotFound`, also for a key of another tenant than the one that is named."""
    reason = check_reason(reason)

    def unit(tx: Tx) -> ApiKey:
        key = _known(tx, prefix, tenant)
        if tx.api_keys.revoke(prefix, tx.now):
            tx.runs.audit(actor, "key_revoke", f"{key.tenant}/{key.name}", reason, {"prefix": prefix})
        return _known(tx, prefix, tenant)

    return store.write(unit).result()


def rotate(
    store: Store, prefix: str, *, reason: str, actor: str, overlap_s: float = 86_400.0, tenant: str = ""
) -> Made:
    """A new key in the place of one that goes on for `overlap_s`, and no longer than it would have.

    The new one has the same name, scopes and rate, and as long a life as the old one had been given. Raises
    `NotFound`, `Refused` for a key that holds no more, `InvalidInput`.
    """
    reason = check_reason(reason)
    if not 0 <= overlap_s <= OVERLAP_MAX_S:
        raise InvalidInput(
            f"an overlap of {say_duration(overlap_s)}: use at most {say_duration(OVERLAP_MAX_S)}",
            field="overlap",
        )

    def unit(tx: Tx) -> Made:
        old = _known(tx, prefix, tenant)
        if not old.is_valid(tx.now):
            raise Refused(f"key {prefix} holds no more, so nothing can replace it: add a new one")
        life = old.expires_at - old.created_at if old.expires_at else 0
        expires_at = tx.now + life if life else 0
        made = _made(
            ApiKey("", old.tenant, old.name, "", old.scopes, old.rate, tx.now, actor, expires_at, 0, 0)
        )
        tx.api_keys.put([made.key])
        tx.api_keys.expire(prefix, tx.now + int(overlap_s * SECOND))
        body: dict[str, Value] = {"prefix": prefix, "new": made.key.prefix, "overlap_s": int(overlap_s)}
        tx.runs.audit(actor, "key_rotate", f"{old.tenant}/{old.name}", reason, body)
        return made

    return store.write(unit).result()


def known(find: Callable[[str], ApiKey | None], token: str, *, now: int) -> ApiKey | None:
    """The valid key behind a token; None for everything else, and nobody learns which.

    `find` looks one up by its prefix. Raises what it raises: where the store is away, nobody is known.
    """
    parts = parts_of(token)
    if parts is None:
        return None
    prefix, secret = parts
    key = find(prefix)
    # Compared also where there is nothing to compare with: the time that it takes is the same.
    matches = fits(secret, key.hash if key is not None else NOBODY)
    return key if key is not None and matches and key.is_valid(now) else None


def note_use(prefix: str, tx: Tx) -> None:
    tx.api_keys.touch(prefix, tx.now, tx.now - NOTED_US)


def _made(key: ApiKey) -> Made:
    """With a prefix and a secret of its own."""
    prefix = "".join(secrets.choice(_LETTERS) for _ in range(12))
    secret = secrets.token_urlsafe(32)
    return Made(replace(key, prefix=prefix, hash=hash_of(secret)), token_of(prefix, secret))


def _known(tx: Tx, prefix: str, tenant: str) -> ApiKey:
    key = tx.api_keys.get(prefix)
    if key is None or tenant not in ("", key.tenant):
        raise NotFound(f"no key has the prefix {prefix!r:.80}: see `sendonce key list`")
    return key
