"""A crew: processes that take a part of the work where there is much of it and cores are idle.

    with Crew(make, material, hands=2) as crew:
        for answer in crew.each(chunks, here=..., pack=..., unpack=...): ...

Each hand calls `make(material)` once, and what that returns for each chunk. Answers come in the order of
the chunks, and a hand has `AHEAD` of them at most, so that memory stays flat however much there is.

**What no hand does is done here:** while they start, where one has died, cannot be started, or raises.
So the answers are the same with any number of hands, none is ever missing, and an exception is raised
where somebody reads it.

A hand is a program of its own and not a fork, since locks that threads hold here would stay locked in
it for ever. It is started with the interpreter alone, not by `multiprocessing`: that runs the caller's
main module again, and a script without a guard against it would import its file twice. Its process
group is its own: Ctrl-C is for this process, which then ends its hands. They end by themselves when it
is gone. All they are given comes through a pipe, nothing by arguments or environment.
"""

from __future__ import annotations

import copyreg
import gc
import io
import os
import pickle
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from types import MappingProxyType
from typing import IO, Any, Final, Self, TypeVar

C = TypeVar("C")
A = TypeVar("A")
M = TypeVar("M")

AHEAD: Final = 2
"""Chunks that a hand has at most: one that it works at, and one that waits for it."""

HANDS_MAX: Final = 3


def idle_cores() -> int:
    """How many hands are worth having: the cores that this process may use but for its own."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    return min(cores - 1, HANDS_MAX)


class Crew:
    """The hands, and this process. Leaving it ends them.

    make      a function of a module, called in each hand with `material`
    material  whatever `pickle` takes
    """

    def __init__(self, make: Callable[[M], Callable[[Any], object]], material: M, *, hands: int) -> None:
        self._hands: list[_Hand] = []
        order = pickle.dumps(sys.path) + _pickled((make, material))
        for _ in range(hands):
            with suppress(OSError):  # no process to be had: done here
                self._hands.append(_Hand(order))

    def each(
        self,
        chunks: Iterable[C],
        *,
        here: Callable[[C], A],
        pack: Callable[[C], object],
        unpack: Callable[[C, Any], A],
    ) -> Iterator[A]:
        """The answer for each chunk, in their order.

        here    the answer, made in this process
        pack    what a hand gets for a chunk; `unpack` makes the answer of what it returns
        """

        def finished(chunk: C, hand: _Hand) -> A:
            done, answer = hand.take()
            return unpack(chunk, answer) if done else here(chunk)

        given: deque[tuple[C, _Hand]] = deque()
        for chunk in chunks:
            hand = self._free()
            while hand is None and given:
                yield finished(*given.popleft())
                hand = self._free()
            if hand is None:
                yield here(chunk)
            else:
                hand.give(pack(chunk))
                given.append((chunk, hand))
        while given:
            yield finished(*given.popleft())

    def close(self) -> None:
        """End the hands. They hold nothing that would be missed."""
        for hand in self._hands:
            hand.end()
        self._hands.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _free(self) -> _Hand | None:
        """The hand with the least to do, None where all that are there have enough."""
        free = [hand for hand in self._hands if hand.has < AHEAD and hand.ready()]
        return min(free, key=lambda hand: hand.has, default=None)


def _pickled(material: object) -> bytes:
    """As `pickle.dumps`; the read-only views of a configuration, which it refuses, arrive as dictionaries."""
    text = io.BytesIO()
    pickler = pickle.Pickler(text)
    pickler.dispatch_table = {**copyreg.dispatch_table, MappingProxyType: lambda view: (dict, (dict(view),))}
    pickler.dump(material)
    return text.getvalue()


_BOOT: Final = (
    "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from sendonce.runtime.crew import serve; serve()"
)


class _Hand:
    """One process, seen from here. `has` counts chunks that it was given and that were not taken yet."""

    def __init__(self, order: bytes) -> None:
        # Isolated: nothing of the working directory is imported before the path is ours.
        self._process = subprocess.Popen(  # noqa: S603 (this interpreter, and a text of ours)
            [sys.executable, "-I", "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        self._started = False
        self._lost = False
        self.has = 0
        self._send(order)

    def ready(self) -> bool:
        """It is there and has started. Does not wait."""
        if not self._started and not self._lost:
            with selectors.DefaultSelector() as selector:
                selector.register(self._from, selectors.EVENT_READ)
                if selector.select(0):
                    self._started = self._receive()[0]
        return self._started and not self._lost

    def give(self, packed: object) -> None:
        """It answers with `take`, in the order of giving."""
        self.has += 1
        try:
            text = pickle.dumps(packed, pickle.HIGHEST_PROTOCOL)
        except Exception:  # it cannot be sent, so it is done here, when its turn has come
            text = _NOTHING
        self._send(text)

    def take(self) -> tuple[bool, Any]:
        """(True, what it returned) for the oldest chunk; (False, None) where it did not do it. Waits."""
        self.has -= 1
        return self._receive()

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._to, self._from):
            with suppress(OSError):  # what was not flushed to a hand that is gone
                pipe.close()
        self._process.wait()

    def _send(self, text: bytes) -> None:
        if not self._lost:
            try:
                self._to.write(text)
                self._to.flush()
            except OSError:
                self._lost = True

    def _receive(self) -> tuple[bool, Any]:
        if not self._lost:
            try:
                done, answer = pickle.load(self._from)  # noqa: S301 (from our own process)
                return bool(done), answer
            except (EOFError, OSError, pickle.UnpicklingError):
                self._lost = True
        return False, None


# Inside a hand.

_NOTHING: Final = pickle.dumps(None)


def serve() -> None:
    """What a hand runs: answer chunks until there are no more, or nobody who would read the answers."""
    given, told = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # whoever prints does not print into the answers
    make, material = pickle.load(given)  # noqa: S301 (from our own process)
    work = make(material)
    gc.freeze()  # a million small objects of the libraries: looked at once is enough
    inbox: SimpleQueue[tuple[object] | None] = SimpleQueue()
    Thread(target=_read, args=(given, inbox), daemon=True).start()
    with suppress(OSError):
        _tell(told, (True, None))
        while (chunk := inbox.get()) is not None:
            _tell(told, _answer(work, chunk[0]))
    os._exit(0)  # not the long way out: the thread may stand in the middle of a read


def _read(given: IO[bytes], inbox: SimpleQueue[tuple[object] | None]) -> None:
    """Take chunks as soon as they come: who gives one is never kept waiting by a hand that tells."""
    with suppress(Exception):  # the end of the pipe is the end of the work
        while True:
            inbox.put((pickle.load(given),))  # noqa: S301 (from our own process)
    inbox.put(None)


def _answer(work: Callable[[Any], object], chunk: object) -> bytes:
    if chunk is not None:
        with suppress(Exception):  # it is done again where it was given, and raised there
            return pickle.dumps((True, work(chunk)), pickle.HIGHEST_PROTOCOL)
    return pickle.dumps((False, None))


def _tell(told: IO[bytes], answer: bytes | tuple[bool, object]) -> None:
    told.write(answer if isinstance(answer, bytes) else pickle.dumps(answer))
    told.flush()
