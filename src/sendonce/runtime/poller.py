"""The one way to loop: a step says how long until the next one.

`step() -> seconds`; 0 means at once. The poller owns sleeping, stopping and what an error means: a
step that raises is told and tried again with growing waits, since a store that is away for a minute
is no reason for a process to end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

Step = Callable[[], Awaitable[float]]
OnError = Callable[[str, Exception], None]

ERROR_WAIT_S: Final = 0.25
ERROR_WAIT_MAX_S: Final = 15.0

LOOK_SHARE: Final = 50
REST_MAX_S: Final = 30.0


def rest_after(took_s: float, at_least_s: float) -> float:
    """How long to leave alone what took `took_s` to look up: looking takes a fiftieth of a core at most, also
    where hundreds of thousands wait; but what is shown is half a minute old at most."""
    return min(max(at_least_s, LOOK_SHARE * took_s), max(at_least_s, REST_MAX_S))


class Poller:
    """Runs one step over and over until stopped. `on_error(name, error)` hears of each failure; `chance`
    draws from [0, 1) for the spread of waits after it, which grow to `again_max_s`
    (None: `ERROR_WAIT_MAX_S`)."""

    def __init__(
        self,
        name: str,
        step: Step,
        *,
        on_error: OnError,
        chance: Callable[[], float] = random.random,
        again_max_s: float | None = None,
    ) -> None:
        self._name = name
        self._step = step
        self._on_error = on_error
        self._chance = chance
        self._again_max_s = ERROR_WAIT_MAX_S if again_max_s is None else again_max_s
        self._woken = asyncio.Event()
        self._stopping = False

    async def run(self) -> None:
        """Returns after `stop`, when the step in progress has ended."""
        failures = 0
        while not self._stopping:
            self._woken.clear()
            try:
                wait_s = await self._step()
                failures = 0
            except Exception as error:
                self._on_error(self._name, error)
                failures += 1
                spread = 0.5 + self._chance() / 2
                wait_s = min(self._again_max_s, ERROR_WAIT_S * 2.0 ** min(failures, 10)) * spread
            if wait_s > 0 and not self._stopping:
                await self._sleep(wait_s)
            else:
                await asyncio.sleep(0)

    def wake(self) -> None:
        """Step again now rather than at the end of the wait."""
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
