"""A simulated process: tasks and a side thread that live, freeze and die together.

Its ports (`ports`, `provider`) belong to one incarnation. When it is killed they become inert: whatever
still runs, the `finally` of a cancelled coroutine say, finds that nobody answers any more. A frozen
process does nothing at all, whatever becomes due meanwhile.

Stages that are synchronous (a pass, a cancel, a redrive) run on the process's *side*: a real thread,
but one that runs only while the loop stands still and stands still while the loop runs. Each of their
port calls is handed to the loop, so that time passes, others act and faults strike in between.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from sendonce.testing.simulator.loop import OWNER, VirtualLoop

T = TypeVar("T")

WORLD: contextvars.Context = contextvars.Context()
"""The context of what belongs to no process: providers, networks, the hands of people."""


class Process:
    """One incarnation of a process. `id` is its own for ever, `name` is the role that is filled again."""

    def __init__(self, loop: VirtualLoop, name: str, number: int) -> None:
        self.name = name
        self.id = f"{name}.{number}"
        self.alive = True
        self.frozen = False
        self.side = _Side(self)
        self._loop = loop
        self._held: list[Callable[[], object]] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = contextvars.Context()
        self._context.run(OWNER.set, self)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this process, from wherever it is called."""
        return self._loop.create_task(coroutine, context=self._context)

    def call(self, function: Callable[[T], object], argument: T) -> None:
        """Call as this process, in the midst of what another one does; not when it is dead."""
        if self.alive:
            self._context.copy().run(function, argument)

    def check(self) -> None:
        """Raise `CancelledError` where the process is dead: its ports are inert."""
        if not self.alive:
            raise asyncio.CancelledError

    def freeze(self, seconds: float) -> None:
        """Stop everything for a while. What becomes due is done afterwards, in order."""
        if self.alive and not self.frozen:
            self.frozen = True
            self._loop.call_later(seconds, self.thaw, context=WORLD)

    def thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            held, self._held = self._held, []
            for again in held:
                again()

    def kill(self) -> None:
        """End it now, as SIGKILL does; nothing of it reaches the outside any more."""
        self.alive = False
        self.thaw()
        for task in list(self._tasks):
            task.cancel()

    async def gone(self) -> None:
        """Wait until every task has ended, then let go of the side thread."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))
            await asyncio.sleep(0)
        self.side.close()

    # For the loop

    def hold(self, again: Callable[[], object]) -> None:
        self._held.append(again)

    def own(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._disown, context=WORLD)
        if not self.alive:
            task.cancel()

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)


@dataclass(frozen=True, slots=True)
class _Ask:
    coroutine: Coroutine[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class _Answer:
    value: Any = None
    error: BaseException | None = None

    def open(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class _Side:
    """The thread for synchronous stages. It and the loop take turns, never both."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._to_side: queue.SimpleQueue[Callable[[], Any] | _Answer | None] = queue.SimpleQueue()
        self._to_loop: queue.SimpleQueue[_Ask | _Answer] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def here(self) -> bool:
        """Whether the caller is this very thread."""
        return threading.current_thread() is self._thread

    async def run(self, stage: Callable[[], T]) -> T:
        """Run a synchronous stage to its end; the loop goes on at each of its port calls."""
        self._process.check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._process.id, daemon=True)
            self._thread.start()
        self._to_side.put(stage)
        while isinstance(said := self._to_loop.get(), _Ask):
            try:
                answer = _Answer(await said.coroutine)
            except BaseException as error:
                answer = _Answer(error=error)
            self._to_side.put(answer)
        result: T = said.open()
        return result

    def ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """From the side: have the loop do this, and wait for it."""
        self._to_loop.put(_Ask(coroutine))
        answer = self._to_side.get()
        assert isinstance(answer, _Answer)
        value: T = answer.open()
        return value

    def close(self) -> None:
        if self._thread is not None:
            self._to_side.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (stage := self._to_side.get()) is not None:
            assert not isinstance(stage, _Answer)
            try:
                answer = _Answer(stage())
            except BaseException as error:
                answer = _Answer(error=error)
            self._to_loop.put(answer)
