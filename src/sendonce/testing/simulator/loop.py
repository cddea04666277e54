"""An event loop whose time passes only when nothing is left to do, and in no real time at all.

It knows callbacks and timers, and nothing else: no sockets, no signals, no threads. Where no callback is
left it sets its clock to the next timer. Without a timer nothing would ever happen again, and that is an
error; so is running on and on at one instant.

Each callback belongs to the simulated process in whose context it was made. A frozen process's
callbacks are held, in order, until it thaws: a pause stops all of a process, timers included, while the
world around it goes on.

It is a loop of its own, and not asyncio's with another selector, since a third of a run's time went into
that one: a round of it costs more than what a callback does here.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STILL_MAX: Final = 200_000
"""Callbacks at one instant, after which it is taken for one that never ends."""
_ROUNDING_US: Final = 1e-3
"""A timer is never early by a whole microsecond, nor late for what floating point adds."""


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


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module text. `now_us` is the time, in whole microseconds from 0."""

    def __init__(self) -> None:
        self.now_us = 0
        self.errors: list[str] = []
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[int, int, _Handle]] = []
        self._numbered = 0
        self._still = 0
        self._runs = False
        self._closed = False

    def time(self) -> float:
        return self.now_us / 1e6

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon
    """There is one thread at a time."""

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Handle(callback, args, contextvars.copy_context() if context is None else context)
        handle.at_us = self.now_us + max(0, math.ceil(delay * 1e6 - _ROUNDING_US))
        self._numbered += 1
        heapq.heappush(self._timers, (handle.at_us, self._numbered, handle))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.now_us / 1e6, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        raise RuntimeError(
            "a thread would bring real time and real chance in: run it as a side of its process"
        )

    # Tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **given: Any
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, **given)
        context = given.get("context")
        owner = OWNER.get() if context is None else context.get(OWNER)
        if owner is not None:
            owner.own(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    # Running

    def run_until_complete(self, future: Awaitable[T] | Generator[Any, None, T]) -> T:
        awaited = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        asyncio._set_running_loop(self)
        self._runs = True
        try:
            while not awaited.done():
                self._turn()
        finally:
            self._runs = False
            asyncio._set_running_loop(None)
        result: T = awaited.result()
        return result

    def is_running(self) -> bool:
        return self._runs

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def _turn(self) -> None:
        """Do what comes next, of all that is to be done at this instant; else go on to the next one."""
        ready = self._ready
        if not ready:
            self._pass_time()
        handle = ready.popleft()
        if handle.dead:
            return
        self._still += 1
        if self._still > STILL_MAX:
            raise Stuck(f"it goes on and on at {self.time():.6f} s")
        context = handle.context
        owner = context.get(OWNER)
        if owner is not None and owner.frozen:
            owner.hold(lambda: ready.append(handle))
            return
        try:
            context.run(handle.callback, *handle.args)
        except Exception as error:
            self.call_exception_handler({"message": f"in {handle.callback!r}", "exception": error})

    def _pass_time(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and timers[0][2].dead:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("everybody waits and no timer runs")
        now_us = timers[0][0]
        if now_us > self.now_us:
            self.now_us = now_us
            self._still = 0
        while timers and timers[0][0] <= now_us:
            ready.append(heapq.heappop(timers)[2])


class _Handle(asyncio.TimerHandle):
    """A callback, and how to take it back."""

    __slots__ = ("args", "at_us", "callback", "context", "dead")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.dead = False
        self.at_us = 0

    def cancel(self) -> None:
        self.dead = True

    def cancelled(self) -> bool:
        return self.dead

    def when(self) -> float:
        return self.at_us / 1e6

    def get_context(self) -> contextvars.Context:
        return self.context
