"""Who listens, in this process, to what units announce."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from sendonce import telemetry
from sendonce.telemetry import fault, tell


class Listeners:
    """Those of one store. `hear` may be called in any thread; it waits for nobody and never raises."""

    def __init__(self) -> None:
        self._all: list[Listener] = []
        self._lock = threading.Lock()

    def add(self, hear: Callable[[str], None]) -> Listener:
        listener = Listener(hear, self._forget)
        with self._lock:
            self._all.append(listener)
        return listener

    def hear(self, topics: Iterable[str]) -> None:
        with self._lock:
            all_ = tuple(self._all)
        for topic in topics:
            for listener in all_:
                listener.hear(topic)

    def close(self) -> None:
        """Nobody hears anything any more."""
        with self._lock:
            all_ = tuple(self._all)
        for listener in all_:
            listener.close()

    def _forget(self, listener: Listener) -> None:
        with self._lock:
            if listener in self._all:
                self._all.remove(listener)


class Listener:
    """`ports.store.Listening`."""

    def __init__(self, hear: Callable[[str], None], closed: Callable[[Listener], None]) -> None:
        self._hear: Callable[[str], None] | None = hear
        self._closed = closed
        self._lock = threading.RLock()  # who hears may close

    def hear(self, topic: str) -> None:
        with self._lock:
            if self._hear is None:
                return
            try:
                self._hear(topic)
            except Exception as error:  # a bug of the listener, and no reason for a store to stop
                tell(telemetry.STAGE_FAILED, stage="hear", **fault(error))

    def close(self) -> None:
        with self._lock:
            self._hear = None
        self._closed(self)
