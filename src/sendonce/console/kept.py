"""What was looked up for one page serves the next ones too, for a while: however many people look.

kept = Kept(2.0)
kept.of(console, lambda: ...)    # looked up, or what was looked up a moment ago
kept.forget(console)             # something was changed: look anew at the next request
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from sendonce.runtime.poller import rest_after

K = TypeVar("K")
T = TypeVar("T")


class Kept(Generic[K, T]):
    """One thing for each `key`, which lives as long as that does. One look at a time; who comes meanwhile
    waits for it. It is good for `fresh_s`, longer where looking took long (`runtime.poller.rest_after`)."""

    def __init__(self, fresh_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh_s = fresh_s
        self._clock = clock
        self._looking = threading.Lock()
        self._kept: WeakKeyDictionary[K, tuple[float, T]] = WeakKeyDictionary()

    def of(self, key: K, look: Callable[[], T]) -> T:
        """Raises what `look` raises, and keeps nothing then."""
        with self._looking:
            begun = self._clock()
            known = self._kept.get(key)
            if known is not None and begun < known[0]:
                return known[1]
            found = look()
            now = self._clock()
            self._kept[key] = (now + rest_after(now - begun, self._fresh_s), found)
            return found

    def forget(self, key: K) -> None:
        self._kept.pop(key, None)
