"""What a view gets: who asks, for what, and the way to the store and the stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sendonce.app import App
from sendonce.console import forms
from sendonce.console.session import Who
from sendonce.console.users import Users
from sendonce.core.access import Scope
from sendonce.core.errors import InvalidInput
from sendonce.core.policy import Policy
from sendonce.pipeline.scheduler import Scheduler
from sendonce.ports.store import Store, Tx

T = TypeVar("T")


class Denied(Exception):
    """Whoever asks has not this scope."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.scope = scope


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Console:
    """What all requests share. `scheduler` makes one when a pass is asked for; `users` None: only keys."""

    app: App
    scheduler: Callable[[], Scheduler]
    users: Users | None
    session_s: float

    @property
    def store(self) -> Store:
        return self.app.store


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of somebody who is signed in.

    now    the store's calendar, when it came
    query  what is asked for in the address, the last of each name; `lists` all of them
    nonce  of the form that was sent, "" for a page
    """

    console: Console
    who: Who
    now: int
    query: Mapping[str, str]
    lists: Mapping[str, list[str]]
    form: Mapping[str, list[str]]
    nonce: str = ""
    partial: bool = False

    @property
    def store(self) -> Store:
        return self.console.store

    @property
    def policy(self) -> Policy:
        return self.console.app.policy

    @property
    def tenant(self) -> str:
        return self.who.tenant

    @property
    def zone(self) -> str:
        return self.policy.zone(self.tenant)

    def read(self, query: Callable[[Tx], T]) -> T:
        return self.store.read(query)

    def write(self, unit: Callable[[Tx], T]) -> T:
        """Run a unit and wait until it is durable."""
        return self.store.write(unit).result()

    def needs(self, scope: Scope) -> None:
        """Raise `Denied` where whoever asks has not this scope."""
        if not self.who.may(scope):
            raise Denied(scope)

    def given(self, name: str) -> str:
        """A field of the form, trimmed; "" where it was not given."""
        return self.form.get(name, [""])[0].strip()

    def given_all(self, name: str) -> tuple[str, ...]:
        return tuple(self.form.get(name, ()))

    def whole(self, name: str, otherwise: int = 0) -> int:
        """A number of the address. Raises `InvalidInput`."""
        text = self.query.get(name, "")
        if not text:
            return otherwise
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise InvalidInput(f"{name} {text!r:.40} is no number", field=name)
        return int(text)

    def token(self, purpose: str) -> str:
        """A form token for the path that the form is sent to."""
        return forms.token(self.who.session, purpose, self.store.secret, self.now)
