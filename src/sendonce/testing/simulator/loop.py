"""An event loop whose time passes only when nothing is left to do, and in no real time at all.

It is asyncio's own loop over a selector that never waits: asked to wait until the next timer, it sets
the clock there. Asked to wait without a timer, nothing would ever happen again, and that is an error.
So is running on and on at one instant.

Each callback belongs to the simulated process in whose context it was made. A frozen process's
callbacks are held, in order, until it thaws: a pause stops all of a process, timers included, while the
world around it goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STILL_MAX: Final = 200_000
"""Rounds of the loop at one instant, after which it is taken for one that never ends."""


class Stuck(Exception):
    """Nothing can ever happen again (all wait and no timer runs), or it never ends at one instant."""


class Owner(Protocol):
    """To whom callbacks belong. `hold` takes one while it is frozen."""

    @property
    def frozen(self) -> bool: ...

    def hold(self, again: Callable[[], object]) -> None: ...

    def own(self, task: asyncio.Task[Any]) -> None:
        """Hear of a task that was made in its context."""
        ...


OWNER: Final[contextvars.ContextVar[Owner | None]] = contextvars.ContextVar("owner", default=None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module text. `now_us` is the time, in whole microseconds from 0."""

    def __init__(self) -> None:
        self.now_us = 0
        self.errors: list[str] = []
        super().__init__(_NeverWaits(self))
        self._clock_resolution = 1e-9
        self.set_task_factory(_owned_task)  # type: ignore[arg-type]  # the protocol wants any coroutine
        self.set_exception_handler(_remember)

    def time(self) -> float:
        return self.now_us / 1e6

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        cell: list[asyncio.Handle] = []
        handle = super().call_soon(self._step, cell, callback, args, context=context)
        cell.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        # There is one thread at a time; waking a selector that never sleeps would be wasted.
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        cell: list[asyncio.Handle] = []
        handle = super().call_at(when, self._step, cell, callback, args, context=context)
        cell.append(handle)
        return handle

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        raise RuntimeError(
            "a thread would bring real time and real chance in: run it as a side of its process"
        )

    def _step(
        self, cell: list[asyncio.Handle], callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if cell[0].cancelled():
            return
        owner = OWNER.get()
        if owner is not None and owner.frozen:
            context = contextvars.copy_context()
            owner.hold(
                lambda: super(VirtualLoop, self).call_soon(self._step, cell, callback, args, context=context)
            )
        else:
            callback(*args)


class _NeverWaits(selectors.BaseSelector):
    """Sets the loop's clock forward instead of waiting. Knows no event but time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self._still = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("everybody waits and no timer runs")
        if timeout > 0:
            self._loop.now_us += math.ceil(timeout * 1e6)
            self._still = 0
        else:
            self._still += 1
            if self._still > STILL_MAX:
                raise Stuck(f"it goes on and on at {self._loop.time():.6f} s")
        return []

    # The loop registers a pipe to wake itself up; that is all that ever comes here.

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(
            fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data
        )
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


def _owned_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **given: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **given)
    context = given.get("context")
    owner = context.get(OWNER) if context is not None else OWNER.get()
    if owner is not None:
        owner.own(task)
    return task


def _remember(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    assert isinstance(loop, VirtualLoop)
    loop.errors.append(f"{context.get('message')}: {type(error).__name__}: {error}")
