"""What stands behind the API, and who asks: every handler gets a `Caller`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Request

from sendonce.api.problems import Problem
from sendonce.app import App
from sendonce.core.access import ApiKey, Scope
from sendonce.core.policy import Policy
from sendonce.pipeline.scheduler import Scheduler
from sendonce.ports.secret import Secret
from sendonce.ports.store import Store, Tx

T = TypeVar("T")

CALLER: Final = "sendonce.key"
"""Where in a request's scope the door leaves the key that opened it."""
BODY: Final = "sendonce.body"


@dataclass(frozen=True)
class Program:
    """One program, as it is served."""

    app: App
    pass_secret: Secret | None = None
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _made: list[Scheduler] = field(default_factory=list, repr=False)

    def scheduler(self) -> Scheduler:
        """Made when a pass is first asked for: it may have to follow new zone rules."""
        with self._making:
            if not self._made:
                self._made.append(self.app.scheduler())
            return self._made[0]


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever asks: a valid key with the scope that was needed."""

    program: Program
    key: ApiKey

    @property
    def tenant(self) -> str:
        return self.key.tenant

    @property
    def actor(self) -> str:
        return self.key.actor

    @property
    def store(self) -> Store:
        return self.program.app.store

    @property
    def policy(self) -> Policy:
        return self.program.app.policy

    @property
    def now(self) -> int:
        """The store's time, not this machine's."""
        return self.read(lambda tx: tx.now)

    def needs(self, scope: Scope) -> None:
        """Raise `Problem` where the key has not this scope."""
        if scope not in self.key.scopes:
            raise Problem("forbidden", f"this takes a key with the scope {scope}", scope=scope.value)

    def read(self, query: Callable[[Tx], T]) -> T:
        return self.store.read(query)

    def write(self, unit: Callable[[Tx], T]) -> T:
        """Run a unit and wait until it is durable."""
        return self.store.write(unit).result()


def _who_may(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    async def caller(request: Request) -> Caller:
        asking = Caller(request.app.state.program, request.scope[CALLER])
        asking.needs(scope)
        return asking

    return caller


MaySchedule = Annotated[Caller, Depends(_who_may(Scope.SCHEDULE))]
MayRead = Annotated[Caller, Depends(_who_may(Scope.READ))]
MayCancel = Annotated[Caller, Depends(_who_may(Scope.CANCEL))]
MayOperate = Annotated[Caller, Depends(_who_may(Scope.OPERATE))]
MayAdmin = Annotated[Caller, Depends(_who_may(Scope.ADMIN))]
