"""How often somebody may try to sign in: at most so often for one name, and for all names together.

After some failures in a row a name waits, longer with each, a minute at most, so that nobody is locked out by
another for long. Each process counts by itself. Arithmetic only: the time is given.
"""

from __future__ import annotations

import math
import threading
from typing import Final

FREE: Final = 4
"""Failures in a row that cost no wait."""
WAIT_MAX_S: Final = 60.0
ALL_PER_S: Final = 5.0
ALL_BURST: Final = 20
NAMES_MAX: Final = 10_000
EARLY_S: Final = 0.001
"""So much is no earlier: sums of fractions are not exact."""


class Tries:
    def __init__(self) -> None:
        self._names: dict[str, tuple[int, float]] = {}
        self._free_at = -math.inf
        self._lock = threading.Lock()

    def wait_s(self, name: str, now: float) -> float:
        """Count one more try; how long it must wait, 0.0: it may go on. `now` in seconds, of any origin."""
        with self._lock:
            _, free_at = self._names.get(name, (0, -math.inf))
            if free_at > now:
                return free_at - now
            spacing = 1.0 / ALL_PER_S
            earliest = max(self._free_at, now)
            early = earliest - now - (ALL_BURST - 1) * spacing
            if early > EARLY_S:
                return early
            self._free_at = earliest + spacing
            return 0.0

    def failed(self, name: str, now: float) -> None:
        with self._lock:
            if len(self._names) >= NAMES_MAX:
                self._names = {key: value for key, value in self._names.items() if value[1] > now}
                if len(self._names) >= NAMES_MAX:
                    self._names.clear()
            count = self._names.get(name, (0, 0.0))[0] + 1
            wait = min(WAIT_MAX_S, 2.0 ** (count - FREE)) if count > FREE else 0.0
            self._names[name] = (count, now + wait)

    def succeeded(self, name: str) -> None:
        with self._lock:
            self._names.pop(name, None)
