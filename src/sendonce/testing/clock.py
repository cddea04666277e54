"""A clock that a test sets."""

from __future__ import annotations

SECOND = 1_000_000


class VirtualClock:
    """`ports.clock.Clock` that stands still until it is moved. Microseconds, like the real one."""

    def __init__(self, now: int = 1_767_225_600 * SECOND, *, boot_id: str = "virtual-1") -> None:
        self._now = now
        self._boot = 1_000 * SECOND
        self._boot_id = boot_id

    def now(self) -> int:
        return self._now

    def boot(self) -> int:
        return self._boot

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        passed = round(seconds * SECOND)
        if passed < 0:
            raise ValueError("time passes forward; use step() for a calendar that is set back")
        self._now += passed
        self._boot += passed

    def step(self, seconds: float) -> None:
        """Set the calendar forward or back, as an administrator or NTP would."""
        self._now += round(seconds * SECOND)

    def restart_machine(self, boot_id: str) -> None:
        """The boot clock begins anew."""
        self._boot = 1 * SECOND
        self._boot_id = boot_id
