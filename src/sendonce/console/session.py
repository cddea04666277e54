"""Sessions: who is signed in, told by a signed cookie and asked again at every request.

    cookie = base64url(JSON) "." base64url(HMAC-SHA256)

The cookie says who signed in, when, and until when; it is signed with the store's own secret, so each
process knows the sessions of all others. It proves nothing by itself: at every request the key must still
hold, or the user still stand in the file with the same password and role, and the session must not have
been signed out. Signing out is written in the store, so that a copied cookie ends too.

The cookie is HttpOnly and SameSite=Lax. It is Secure, under a name that browsers keep from being planted
(`__Host-`), unless the console is asked for on this very machine, where there is no network to be heard on.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sendonce.console.roles import SCOPES, role_of
from sendonce.console.users import User, Users
from sendonce.core.access import ApiKey, Scope
from sendonce.pipeline.api_keys import known
from sendonce.ports.store import Tx

SECOND: Final = 1_000_000
COOKIE: Final = "sendonce_console"
COOKIE_LENGTH_MAX: Final = 1_000
_LABEL: Final = b"console session\0"
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a cookie says. `kind`: "user" or "key"; `mark` what must still be true of the credential;
    instants in microseconds UTC."""

    kind: str
    name: str
    mark: str
    id: str
    begun_at: int
    ends_at: int


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody who is signed in.

    actor    for the ledger and the audit
    watches  may see what concerns the whole installation
    """

    name: str
    actor: str
    tenant: str
    scopes: frozenset[Scope]
    watches: bool
    session: str
    ends_at: int

    @property
    def role(self) -> str:
        return role_of(self.scopes) or "key"

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes


def ticket_for_user(user: User, now: int, life_s: float) -> Ticket:
    return Ticket("user", user.name, user.mark, secrets.token_hex(16), now, now + int(life_s * SECOND))


def ticket_for_key(key: ApiKey, now: int, life_s: float) -> Ticket:
    """A session of a key ends with it."""
    ends_at = now + int(life_s * SECOND)
    if key.expires_at:
        ends_at = min(ends_at, key.expires_at)
    return Ticket("key", key.prefix, key.hash[:32], secrets.token_hex(16), now, ends_at)


def write(ticket: Ticket, secret: bytes) -> str:
    """The cookie of a ticket."""
    text = json.dumps(
        [ticket.kind, ticket.name, ticket.mark, ticket.id, ticket.begun_at, ticket.ends_at],
        separators=(",", ":"),
    ).encode()
    return f"{_encode(text)}.{_encode(_mac(text, secret))}"


def read(cookie: str, secret: bytes, now: int) -> Ticket | None:
    """The ticket of a cookie that we wrote and whose time is not over."""
    if not cookie.isascii() or len(cookie) > COOKIE_LENGTH_MAX:
        return None
    head, _, tail = cookie.partition(".")
    try:
        text = _decode(head)
    except (binascii.Error, ValueError):
        return None
    # Of the ways to write the same bytes, ours alone counts.
    if _encode(text) != head or not hmac.compare_digest(tail, _encode(_mac(text, secret))):
        return None
    ticket = Ticket(*json.loads(text))
    return ticket if ticket.begun_at <= now < ticket.ends_at else None


def who(tx: Tx, ticket: Ticket, users: Users | None) -> Who | None:
    """Who it is now; None where the credential holds no more, or the session was signed out."""
    if ticket.kind == "user":
        user = users.find(ticket.name) if users is not None else None
        if user is None or not hmac.compare_digest(user.mark, ticket.mark):
            return None
        if _is_over(tx, user.tenant, ticket):
            return None
        actor = f"operator:{user.name}"
        return Who(user.name, actor, user.tenant, SCOPES[user.role], True, ticket.id, ticket.ends_at)
    key = tx.api_keys.get(ticket.name)
    if key is None or not key.is_valid(tx.now) or not hmac.compare_digest(key.hash[:32], ticket.mark):
        return None
    if _is_over(tx, key.tenant, ticket):
        return None
    watches = Scope.OPERATE in key.scopes
    return Who(key.name, key.actor, key.tenant, key.scopes, watches, ticket.id, ticket.ends_at)


def end(tx: Tx, one: Who) -> None:
    """Sign out, for all processes."""
    tx.answers.begin(
        one.tenant,
        _over(one.session),
        "signed-out",
        at=tx.now,
        stale=0,
        keep_until=one.ends_at + 3_600 * SECOND,
    )


def recognise(find: Callable[[str], ApiKey | None], token: str, now: int) -> ApiKey | None:
    """The valid key behind what somebody typed; None for everything else."""
    return known(find, token.strip(), now=now)


def cookie_name(name: str, *, secure: bool) -> str:
    return f"__Host-{name}" if secure else name


def is_local(host: str) -> bool:
    """Whether a Host header names this very machine."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.strip("[]").lower() in LOCAL_HOSTS


def _is_over(tx: Tx, tenant: str, ticket: Ticket) -> bool:
    return tx.answers.get(tenant, _over(ticket.id)) is not None


def _over(session: str) -> str:
    return f"console:out:{session}"


def _mac(text: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, _LABEL + text, "sha256")


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
