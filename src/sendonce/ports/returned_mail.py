"""The port for mail that comes back: where it waits, and what one mail says.

A mailbox is read as a queue. Reading marks nothing; what is done with is marked after everything that it
said is durable. So whatever is cut off in between is read again, and an event that came twice has the same
identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol

from sendonce.core.provider_event import ProviderEvent
from sendonce.core.value import value


class Found(StrEnum):
    """What a mail is."""

    REPORT = "report"  # a delivery status, a complaint: `events` say what
    UNREADABLE = "unreadable"  # ours, and no report that can be read: an UNKNOWN for a person
    AUTOMATIC = "automatic"  # out of office and the like: nothing follows
    FOREIGN = "foreign"  # no token of ours: not believed, whatever it says
    OVERSIZED = "oversized"  # not read


@value
class Reading:
    """What one mail says. `why` is a short code for `UNREADABLE` and `OVERSIZED`, without any content."""

    found: Found
    events: tuple[ProviderEvent, ...] = ()
    why: str = ""


class MailboxUnavailable(Exception):
    """The mailbox cannot be read now. `why`: connect, timeout, certificate, tls, login, folder, done_folder,
    protocol. Nothing of what a server said is in it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class MailSession(Protocol):
    """A mailbox that is open."""

    def waiting(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Up to `limit` mails, the oldest first, one by one: a number and the raw mail."""
        ...

    def done(self, uids: Sequence[int]) -> None:
        """Mark these, so that they wait no more."""
        ...


class Mailbox(Protocol):
    """Where returned mail waits. Its methods block."""

    def session(self) -> AbstractContextManager[MailSession]:
        """Open it. Raises `MailboxUnavailable`, also for what happens while it is open."""
        ...

    def check(self) -> str:
        """Prove that it can be read, marking nothing; one line for the operator. Raises as `session`."""
        ...
