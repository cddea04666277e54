"""From news to who waits for it: out of whatever thread heard it, onto the event loop, and not too often.

A topic that nobody here waits for goes no further. The first news of a topic is passed on at once; what comes
within `apart_s` of that is passed on together, at the end of it. So a thousand announcements in a second are
as many calls as that second has such spans, and none is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

APART_S: Final = 0.02


class Waker:
    """Made on the loop that it wakes. `calls`: what to do for each topic, on that loop."""

    def __init__(self, calls: Mapping[str, Callable[[], None]], *, apart_s: float = APART_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._apart_s = apart_s
        self._passed_at: dict[str, float] = {}
        self._on_the_way: set[str] = set()

    def hear(self, topic: str) -> None:
        """In any thread."""
        if topic in self._calls and topic not in self._on_the_way:
            self._on_the_way.add(topic)
            with suppress(RuntimeError):  # the loop is closed: nobody waits on it any more
                self._loop.call_soon_threadsafe(self._arrived, topic)

    def _arrived(self, topic: str) -> None:
        early_s = self._passed_at.get(topic, float("-inf")) + self._apart_s - self._loop.time()
        if early_s > 0:
            self._loop.call_later(early_s, self._pass_on, topic)
        else:
            self._pass_on(topic)

    def _pass_on(self, topic: str) -> None:
        self._on_the_way.discard(topic)  # first: what comes from here on is news again
        self._passed_at[topic] = self._loop.time()
        self._calls[topic]()
