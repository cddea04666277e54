"""The clock port: two clocks, for two kinds of question.

*Calendar*: when is it due, is it expired, is it night there. Follows the world, so it may be stepped.
*Boot*: how long ago. Counts on through suspend, is never stepped, and starts anew with the machine;
the store anchors it, so that leases, slots and key ages survive a restart of everything.

Nothing else in the program asks for the time.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """The calendar, in microseconds since 1970 UTC."""
        ...

    def boot(self) -> int:
        """Microseconds since the machine started, suspend included; never goes back."""
        ...

    def boot_id(self) -> str:
        """Names this start of the machine; another value means that `boot` began anew."""
        ...
