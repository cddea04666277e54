"""The provider port: what an adapter for a provider account promises.

One adapter instance serves one account in one process. It is asynchronous (it runs on the worker's
event loop) and has *no policy*: no retries, no pacing, no waiting for a better moment. The pipeline
decides all that; an adapter turns one message into one call and one honest `Outcome`.

The contract, held by `sendonce.testing.conformance.provider`:

1. `send` never raises for anything that the network, the provider or the message does. Exceptions
   are bugs. `asyncio.CancelledError` is let through after the connection was closed.
2. `send` gets its connection ready first (connect, TLS, SMTP greeting and AUTH), then awaits
   `start()`, and writes the first byte that can cause a send directly after, with no other await in
   between. `start()` returns when the slot has come, or raises `TooLate`; then the adapter puts the
   connection back unused and returns `NotStarted`. One call of `start()` for one call of `send`.
3. Whatever fails before `start()` returned is `Failed(CONNECTION)`, `AccountError` or `NotStarted`:
   provably not accepted. Whatever fails after it, before a complete answer, is `Unknown`, except
   where the protocol itself proves otherwise (SMTP before the final dot).
4. An answer is read in full before it is believed; a truncated one is `Unknown`. A generic 5xx is
   `Unknown` unless the provider documents it as not processed. 429 is `Throttled`.
5. The same `Message` gives the same bytes on the wire, on each attempt, on each machine. A provider that
   wants the time of the call signed (AWS's SigV4, a JSON Web Token) is the exception, for that header only.
6. No personal data in any `code`. No credential in any repr, log or exception.
7. A call ends within `Promise.timeout_s` of `start()`; on `close()` open calls are given up at once
   and return `Unknown`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sendonce.core.outcome import Finding, Outcome
from sendonce.core.promise import Promise as Promise
from sendonce.core.promise import ProviderClass as ProviderClass
from sendonce.core.value import value


@value
class EmailContent:
    """A rendered email, as frozen at publication. `text` and `html`: at least one is not empty."""

    subject: str
    text: str
    html: str
    sender: str  # "Name <addr>" or a bare address
    reply_to: str = ""
    unsubscribe: str = ""  # the https address for one click (RFC 8058); "": mail that has none

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of its own, as an adapter adds them to those that every message has: name, value."""
        if not self.unsubscribe:
            return ()
        return (
            ("List-Unsubscribe", f"<{self.unsubscribe}>"),
            ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
        )


@value
class SmsContent:
    """A rendered SMS, as frozen at publication."""

    text: str
    sender: str  # an E.164 number, a short code, an alphanumeric sender id or a service id


@value
class Message:
    """All that a provider call needs; equal messages give equal bytes on the wire.

    delivery_key  `reminder:customer:channel`, for our own look-ups; never shown to the customer
    send_key      what the provider sees as idempotency key or reference: 64 hex digits
    to            the address (RFC 5321 addr-spec) or the number (E.164), after any redirect
    frozen_at     microseconds UTC of publication: the Date of an email on every attempt
    valid_s       whole seconds until the delivery expires, for providers that can drop stale ones;
                  excluded from "equal bytes", since it shrinks
    return_token  stands for the message in its return path (`core.mail_token`), so that a bounce leads
                  back to it; "" where none is wanted
    """

    delivery_key: str
    send_key: str
    to: str
    content: EmailContent | SmsContent
    frozen_at: int
    valid_s: int | None = None
    return_token: str = ""


class TooLate(Exception):
    """Raised by `start()`: slot missed, deadline passed, key dying, or shutdown. `why` says which."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


Start = Callable[[], Awaitable[None]]
"""Awaited once, right before the first byte that can cause a send. See rule 2 of the port."""


class Provider(Protocol):
    """One provider account, as its worker processes use it."""

    @property
    def promise(self) -> Promise: ...

    async def send(self, message: Message, *, start: Start) -> Outcome:
        """Make one call. See the contract above."""
        ...

    async def look_up(self, message: Message) -> Finding:
        """Ask the provider by our reference. `NoAnswer("unsupported")` where it cannot be asked."""
        ...

    async def check(self) -> str:
        """Prove that the account can be reached and authenticated, sending nothing.

        Returns one line for the operator, such as "TLS 1.3, AUTH PLAIN accepted".
        Raises `sendonce.core.errors.ConfigError` that names the setting to mend.
        """
        ...

    async def close(self) -> None:
        """Give up open calls (they return `Unknown`) and close all connections. Idempotent."""
        ...
