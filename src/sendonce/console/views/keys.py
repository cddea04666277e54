"""Keys of the API: who has one, what it is for, and ending it. A new one is shown once."""

from __future__ import annotations

from sendonce.console.asked import Asked
from sendonce.console.forms import Done, Notice
from sendonce.console.page import Page, link
from sendonce.core.access import RATE_DEFAULT, ApiKey, Scope
from sendonce.core.duration import parse_duration
from sendonce.pipeline import api_keys


def show(asked: Asked) -> Page:
    found = api_keys.list_keys(asked.store, tenant=asked.tenant)
    found.sort(key=lambda key: (not key.is_valid(asked.now), -key.created_at))
    return Page(
        "keys.html",
        {"keys": [(key, _state(key, asked.now)) for key in found], "scopes": list(Scope)},
    )


def add(asked: Asked) -> Done:
    expires = asked.given("expires")
    made = api_keys.add(
        asked.store,
        asked.given("name"),
        asked.given_all("scope"),
        actor=asked.who.actor,
        tenant=asked.tenant,
        rate=RATE_DEFAULT,
        life_s=parse_duration(expires, field="expires") if expires else 0.0,
    )
    return Done(
        link("keys"),
        Notice(f"Key {made.key.prefix} is made. It was shown once and is kept nowhere."),
        secret=made.token,
    )


def revoke(asked: Asked) -> Done:
    key = api_keys.revoke(
        asked.store,
        asked.given("prefix"),
        reason=asked.given("reason"),
        actor=asked.who.actor,
        tenant=asked.tenant,
    )
    return Done(link("keys"), Notice(f"Key {key.prefix} ({key.name}) is ended, within a second everywhere."))


def _state(key: ApiKey, now: int) -> str:
    return "revoked" if key.revoked_at else "valid" if key.is_valid(now) else "expired"
