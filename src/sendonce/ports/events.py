"""The event port: how an adapter takes in what its provider calls back with.

One source serves one account in one process. It verifies and reads, and decides nothing: whose delivery it is
and what follows are the pipeline's. The contract, held by the conformance suite of providers:

1. Verification is over the raw bytes (or exactly what the provider documents as signed), with every active
   secret, in constant time, within the provider's age window. No secret, no events: an account without one
   has no source.
2. What cannot be verified raises `Forged`; verified bytes that cannot be read at all raise `Unreadable`; what
   cannot be verified now, but may be soon, raises `NotNow`. All name a reason without any of the content.
3. One bad item in a batch is told as `faulty` beside the good ones, and never costs them.
4. Nothing of an event is guessed: an unknown word is `EventKind.UNKNOWN` with the provider's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sendonce.core.provider_event import ProviderEvent
from sendonce.core.value import value


class Forged(Exception):
    """The request is not the provider's, or too old to be believed. `why`: signature, age, secret, source."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Unreadable(Exception):
    """It is the provider's, and nothing in it can be read. `why` holds none of the content."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NotNow(Exception):
    """Nobody can say at this moment whether it is the provider's: a certificate cannot be fetched. The answer
    must make the provider try again (503); `why` holds none of the content."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@value
class EventRequest:
    """A call at the events endpoint, as it came.

    url      as the provider called it, with scheme, host and query: some sign it
    headers  names in lower case; of a header that came twice, the values joined by ", "
    body     the raw bytes
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


@value
class EventBatch:
    """What a request held.

    events   in the order of the request
    faulty   one short reason for each item that could not be read, without any of its content
    answer   what the provider wants to read in the answer, where it wants something; else empty
    """

    events: tuple[ProviderEvent, ...] = ()
    faulty: tuple[str, ...] = ()
    answer: str = ""
    answer_type: str = "text/plain"


class EventSource(Protocol):
    """What one account's provider tells, verified and read."""

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        """`now`: calendar microseconds UTC. Raises `Forged`, `Unreadable` or `NotNow`, and nothing else."""
        ...

    async def close(self) -> None:
        """Give up what is open, such as a look for a certificate. Idempotent."""
        ...
