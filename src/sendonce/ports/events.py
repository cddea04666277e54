"""The event port: how an adapter takes in what its provider calls back with, or is asked for.

One source serves one account in one process. It verifies and reads, and decides nothing: whose delivery it is
and what follows are the pipeline's. The contract, held by the conformance suite of providers:

1. Verification is over the raw bytes (or exactly what the provider documents as signed), with every active
   secret, in constant time, within the provider's age window. No secret, no events: an account without one
   has no source.
2. What cannot be verified raises `Forged`; verified bytes that cannot be read at all raise `Unreadable`; what
   cannot be verified now, but may be soon, raises `NotNow`. All name a reason without any of the content.
3. One bad item in a batch is told as `faulty` beside the good ones, and never costs them.
4. Nothing of an event is guessed: an unknown word is `EventKind.UNKNOWN` with the provider's code.

Where a provider cannot call, or nobody can be called, it is *asked* instead (`Asked`): what became of one
message that it accepted. That changes nothing at the provider, has no policy (when, how often and how fast
are the pipeline's), and never raises for anything that the network or the provider does. What it tells is
events as above, each with the same identity whenever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sendonce.core.outcome import AccountError, NoAnswer, Throttled
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


@value
class Heard:
    """What the provider knows of a message by now: no events where nothing has become of it yet.

    calls  how many requests it took to learn it, at most two
    """

    batch: EventBatch
    calls: int = 1


@value
class NotTold:
    """The provider answers, but not about this message: it knows none of it (yet, or any more), or what it
    says cannot be read. Of no other message that means anything."""

    code: str


Answered = Heard | NotTold | Throttled | AccountError | NoAnswer
"""`NoAnswer`: the provider is away, or fails; `AccountError`: it refuses the login."""


class Asked(Protocol):
    """One account's provider, as one that can be asked what became of a message."""

    async def ask(self, receipt: str) -> Answered:
        """By the provider's own message id, as `Accepted.receipt` was. A call ends within the account's
        time-out. See the contract above."""
        ...

    async def close(self) -> None:
        """Close its connections; what is open is given up. Idempotent."""
        ...
