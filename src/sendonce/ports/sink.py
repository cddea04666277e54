"""The sink port: a log of others that the feed is handed on to, so that several may read it, and again.

A sink takes records of one delivery in the order in which they were given, and says that it has them when
they are durable there. It may get the same record more than once, after a crash or a lost answer: whoever
reads there tells a repetition by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sendonce.core.errors import StoreUnavailable
from sendonce.core.value import value


class SinkUnavailable(StoreUnavailable):
    """It is away, or did not say that it has everything. Some of it may be there: give it again."""

    code = "sink_unavailable"


@value
class Record:
    """One event of the feed.

    key   the delivery key: records of one key keep their order
    id    the event's own, the same whenever it is given
    body  JSON
    """

    key: str
    id: str
    body: bytes


class Sink(Protocol):
    """One log, with a place for each tenant. Blocking; used by one thread."""

    name: str

    def check(self, tenant: str) -> str:
        """What is there, in a line. Raises `ConfigError` with what is wrong and how to mend it, and
        `SinkUnavailable` where nobody answers."""
        ...

    def publish(self, tenant: str, records: Sequence[Record]) -> None:
        """Returns when all are durable there. Raises `SinkUnavailable`."""
        ...

    def close(self) -> None:
        """Give up the connections. Idempotent."""
        ...
