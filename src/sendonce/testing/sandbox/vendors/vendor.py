"""What every vendor's API has: a subclass says how it reads, what it calls things, and what it finds.

Refusals and failures stand in tables: status, code and words, as the vendor documents them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from sendonce.testing.sandbox.callbacks import Told
from sendonce.testing.sandbox.channel import Request, Verdict
from sendonce.testing.sandbox.door import Answer, Door, Effect
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import ChannelRules, Refusal
from sendonce.testing.sandbox.shapes import Malformed

Said = tuple[int, str | int, str]
"""Status, code, words."""


class Vendor(ABC):
    """One API. `token` is the credential it wants, "" for any; `now` in microseconds UTC."""

    name: ClassVar[str]
    channel: ClassVar[str]
    refusals: ClassVar[Mapping[Refusal, Said]]
    failures: ClassVar[Mapping[Answer, Said]]
    sender_refused: ClassVar[Said]

    def __init__(self, token: str, now: Callable[[], int]) -> None:
        self.token = token
        self.now = now

    @abstractmethod
    def sends(self, path: str) -> bool:
        """Whether a POST to the path sends."""

    @abstractmethod
    def read(self, exchange: Exchange) -> Request:
        """The request to send. Raises `Malformed`."""

    @abstractmethod
    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        """The answer to a message that was taken."""

    @abstractmethod
    def error(self, status: int, code: str | int, message: str) -> bytes:
        """The body of any error."""

    @abstractmethod
    def account(self, path: str) -> tuple[int, bytes] | None:
        """The answer to a GET that proves the login; None for another path."""

    def authorized(self, exchange: Exchange) -> bool:
        scheme, _, credentials = exchange.headers.get(b"authorization", b"").partition(b" ")
        return not self.token or (scheme.lower() == b"bearer" and credentials == self.token.encode())

    def look_up(self, path: str, query: Mapping[str, str], door: Door) -> list[Effect] | None:
        """The messages that a GET asks for, oldest first; None where the path is no look-up."""
        return None

    def found(self, effects: list[Effect]) -> bytes:
        """The answer to a look-up."""
        return b"{}"

    def asked(self, path: str) -> tuple[str, int]:
        """The receipt, or else the number of an event, that a GET asks about; ("", 0) where it asks
        nothing of the kind."""
        return "", 0

    def told(self, effect: Effect, said: Sequence[Told], number: int) -> bytes:
        """The answer: what has been said of the message until now, or of the event with that number."""
        return b"{}"

    def headers(self, answer: Answer, receipt: str) -> tuple[tuple[bytes, bytes], ...]:
        return ()

    def answer(self, request: Request, verdict: Verdict, rules: ChannelRules, at: int) -> tuple[int, bytes]:
        if verdict.answer is Answer.REFUSED:
            if verdict.rule is None:
                return self._said(self.sender_refused)
            return self._said(self.refusals[verdict.rule.refusal])
        if verdict.answer in self.failures:
            status, code, words = self.failures[verdict.answer]
            match verdict.answer:
                case Answer.ERROR_BEFORE:
                    status = rules.error_status
                case Answer.ERROR_AFTER:
                    status = rules.error_after_status
                case _:
                    pass
            return self._said((status, code, words))
        return self.accepted(request, verdict.receipt, at)

    def turned_away(self, answer: Answer) -> tuple[int, bytes]:
        return self._said(self.failures[answer])

    def _said(self, said: Said) -> tuple[int, bytes]:
        status, code, words = said
        return status, self.error(status, code, words)


def json_in(exchange: Exchange, status: int, code: str | int) -> dict[str, Any]:
    """The JSON object of a request. Raises `Malformed` with the vendor's status and code."""
    try:
        data = json.loads(exchange.body.decode())
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise Malformed(status, code, "the body is not a JSON object")
    return data


def text_in(data: Mapping[str, Any], name: str) -> str:
    """A field that is text; "" for anything else."""
    value = data.get(name)
    return value if isinstance(value, str) else ""
