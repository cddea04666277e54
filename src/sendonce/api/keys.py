"""`/keys`: who may use the API. A key makes, replaces and ends keys of its own tenant only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import ConfigDict, Field

from sendonce.api.pages import LIMIT, Cursor, Limit, Pages
from sendonce.api.program import Caller, MayAdmin
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, Instant, Reason, Said, instant
from sendonce.core.access import RATE_DEFAULT, ApiKey, Scope, write_scopes
from sendonce.core.duration import parse_duration
from sendonce.pipeline import api_keys
from sendonce.pipeline.api_keys import Made

resource = Resource("keys", "Keys: who may use this API.")
Prefix = Annotated[str, Path(description="Of the key.", max_length=80, examples=["k2m4n6p7q3r5"])]


class KeyAsked(Asked):
    """A key to be, of the tenant of whoever asks."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "shop-backend", "scopes": ["schedule", "read"]}]}
    )

    name: str = Field(description="Who uses it.", examples=["shop-backend"])
    scopes: list[str] = Field(
        description="What it is for; none implies another.", examples=[["schedule", "read"]]
    )
    rate: int = Field(RATE_DEFAULT, description="Requests a second.", examples=[100])
    expires: str = Field("", description="How long it holds; else for ever.", examples=["90d"])


class KeyReplaced(Asked):
    """A key is replaced by a new one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prefix": "k2m4n6p7q3r5", "reason": "the yearly change"}]}
    )

    prefix: str = Field(description="Of the key that is replaced.", examples=["k2m4n6p7q3r5"])
    reason: Reason
    overlap: str = Field("24h", description="How long the old one goes on.", examples=["24h"])


class KeySaid(Said):
    """A key, without its secret."""

    prefix: str
    name: str
    tenant: str
    scopes: list[Scope]
    rate: int
    state: Literal["valid", "expired", "revoked"]
    created_at: Instant
    created_by: str
    expires_at: Instant
    used_at: Instant
    revoked_at: Instant


class KeyMade(KeySaid):
    """A new key. `token` is shown this once."""

    token: str


class Keys(Said):
    """In the order in which they were made. `next` asks for the page after it."""

    keys: list[KeySaid]
    next: str | None


@resource.get("/keys", Scope.ADMIN)
def list_keys(caller: MayAdmin, limit: Limit = LIMIT, cursor: Cursor = "") -> Keys:
    """All keys of the tenant, also those that hold no more."""
    now = caller.now
    found, beyond = Pages(caller, "keys", {}).cut(
        api_keys.list_keys(caller.store, tenant=caller.tenant),
        lambda key: (key.created_at, key.prefix),
        limit=limit,
        cursor=cursor,
    )
    return Keys(keys=[KeySaid(**_said(key, now)) for key in found], next=beyond)


@resource.post("/keys", Scope.ADMIN, status=201)
def add_key(asked: KeyAsked, caller: MayAdmin) -> KeyMade:
    """Make a key. It is shown this once: only a hash of it is kept."""
    life_s = parse_duration(asked.expires, field="expires") if asked.expires else 0.0
    made = api_keys.add(
        caller.store,
        asked.name,
        asked.scopes,
        actor=caller.actor,
        tenant=caller.tenant,
        rate=asked.rate,
        life_s=life_s,
    )
    return _made(made, caller)


@resource.post("/key-rotations", Scope.ADMIN, status=201)
def rotate_key(asked: KeyReplaced, caller: MayAdmin) -> KeyMade:
    """Make a new key in the place of one, which goes on for a while."""
    made = api_keys.rotate(
        caller.store,
        asked.prefix,
        reason=asked.reason,
        actor=caller.actor,
        overlap_s=parse_duration(asked.overlap, field="overlap"),
        tenant=caller.tenant,
    )
    return _made(made, caller)


@resource.delete("/keys/{prefix}", Scope.ADMIN)
def revoke_key(prefix: Prefix, reason: Reason, caller: MayAdmin) -> KeySaid:
    """End a key, within a second everywhere."""
    key = api_keys.revoke(caller.store, prefix, reason=reason, actor=caller.actor, tenant=caller.tenant)
    return KeySaid(**_said(key, caller.now))


def _made(made: Made, caller: Caller) -> KeyMade:
    return KeyMade(token=made.token, **_said(made.key, caller.now))


def _said(key: ApiKey, now: int) -> dict[str, Any]:
    state = "revoked" if key.revoked_at else "valid" if key.is_valid(now) else "expired"
    return {
        "prefix": key.prefix,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": write_scopes(key.scopes).split(","),
        "rate": key.rate,
        "state": state,
        "created_at": instant(key.created_at),
        "created_by": key.created_by,
        "expires_at": instant(key.expires_at),
        "used_at": instant(key.used_at),
        "revoked_at": instant(key.revoked_at),
    }
