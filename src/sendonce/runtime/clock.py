"""The real clocks."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# CLOCK_MONOTONIC stands still while a Linux machine sleeps; elsewhere it is the best there is.
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """`ports.clock.Clock` of this machine."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def boot(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1000

    def boot_id(self) -> str:
        return _boot_id()


@cache
def _boot_id() -> str:
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text("ascii").strip()
    # Without one, the start of the machine to the nearest minute is as good a name.
    started = time.time_ns() // 1000 - time.clock_gettime_ns(_BOOT_CLOCK) // 1000
    return f"started-{round(started / 60_000_000)}"
