"""The contract of who can be asked what became of a message, as tests.

    class TestAcme(AskedContract):
        receipt = "m-1"
        ended = ProviderEvent("", EventKind.DELIVERED, receipt="m-1", send_key=..., ...)

        def asked(self, port: int) -> Asked: ...
        def answers(self, kind: str) -> dict[str, object]: ...

A peer on loopback answers in the shapes that `answers` shows, then in every way that a provider should not.
Needs nothing but pytest to find the tests; the checks are plain assertions.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

from sendonce.core.outcome import AccountError, NoAnswer, Throttled
from sendonce.core.provider_event import AT_THE_END, ProviderEvent
from sendonce.ports.events import Answered, Asked, Heard, NotTold
from sendonce.testing.conformance.event_source import SPOILT, check_storable, paths_in
from sendonce.testing.conformance.provider import AFTER, Fault, HttpPeer, http_answer, json_answer

WITHIN_S: Final = 5.0
ODD: Final = "a/../b?c#d e%é"
"""A receipt that is no plain word: whatever is stored is asked for as it is."""


class AskedContract(ABC):
    """Rules of `ports.events.Asked`."""

    receipt: ClassVar[str]
    credential: ClassVar[str]
    ended: ClassVar[ProviderEvent]
    """What the answers "ended" say; its identity is the source's own."""
    calls: ClassVar[int] = 1
    """How many calls it takes to learn it."""

    @abstractmethod
    def asked(self, port: int) -> Asked:
        """An account whose calls end within 0.3 s."""

    @abstractmethod
    def answers(self, kind: str) -> dict[str, Any]:
        """What a GET of each path is answered, about `receipt`: kind "ended", or "underway"."""

    def ask(
        self, answer: Callable[[str], bytes], *, receipt: str = "", fault: Fault = Fault.NONE
    ) -> Answered:
        """What one question is answered. Whatever it raises is a fault of the adapter."""
        self.targets: list[str] = []

        def noted(target: str) -> bytes:
            self.targets.append(target)
            return answer(target)

        async def asking() -> Answered:
            peer = HttpPeer(b"", b"", noted)
            await peer.start()
            peer.fault = fault
            asked = self.asked(peer.port)
            try:
                async with asyncio.timeout(WITHIN_S):
                    told = await asked.ask(receipt or self.receipt)
                assert peer.sending_bytes == 0, "a question changes nothing"
                return told
            finally:
                await asked.close()
                await asked.close()
                await peer.stop()

        return asyncio.run(asking())

    def shown(self, kind: str) -> Callable[[str], bytes]:
        answers = self.answers(kind)

        def answer(target: str) -> bytes:
            path = target.partition("?")[0]
            return json_answer(200, answers[path]) if path in answers else json_answer(404, {})

        return answer

    def test_what_ended_is_told_and_the_same_whenever_it_is_asked(self) -> None:
        first, again = (self.ask(self.shown("ended")) for _ in range(2))
        assert isinstance(first, Heard)
        assert first == again
        assert first.calls == self.calls == len(self.targets)
        assert first.batch.faulty == ()
        (told,) = [event for event in first.batch.events if event.kind in AT_THE_END]
        for name in ("kind", "receipt", "send_key", "address", "occurred_at", "code"):
            assert getattr(told, name) == getattr(self.ended, name), name
        check_storable(first.batch)

    def test_what_has_not_ended_is_not_said_to_have(self) -> None:
        told = self.ask(self.shown("underway"))
        assert isinstance(told, Heard)
        assert not [event for event in told.batch.events if event.kind in AT_THE_END]

    def test_what_is_wrong_is_told_apart(self) -> None:
        page = http_answer(200, b"<html>", "Content-Type: text/html")
        wrong: list[tuple[bytes, type]] = [
            (json_answer(404, {}), NotTold),
            (json_answer(410, {}), NotTold),
            (page, NotTold),
            (json_answer(200, {}), NotTold),
            (json_answer(401, {}), AccountError),
            (json_answer(429, {}), Throttled),
            (json_answer(500, {}), NoAnswer),
            (json_answer(503, {}), NoAnswer),
        ]
        for answer, kind in wrong:
            told = self.ask(lambda _, answer=answer: answer)  # type: ignore[misc]
            assert isinstance(told, kind), (answer, told)

    def test_a_wait_that_is_asked_for_is_read(self) -> None:
        told = self.ask(lambda _: http_answer(429, b"", "Retry-After: 7"))
        assert isinstance(told, Throttled)
        assert told.retry_after_s == 7.0

    def test_an_answer_about_another_message_says_nothing_of_this_one(self) -> None:
        first, *_ = self.answers("ended").values()
        told = self.ask(lambda _: json_answer(200, first), receipt="another")
        assert isinstance(told, NotTold), told

    def test_an_answer_that_breaks_is_none(self) -> None:
        for fault in (Fault.RESET_ON_CONNECT, Fault.CLOSE_ON_CONNECT, *AFTER):
            told = self.ask(self.shown("ended"), fault=fault)
            assert isinstance(told, NoAnswer), (fault, told)

    def test_the_credential_is_in_no_url_and_a_receipt_is_one_part_of_it(self) -> None:
        self.ask(self.shown("ended"))
        assert not [target for target in self.targets if self.credential in target]
        plain = self.targets[0]
        self.ask(lambda _: json_answer(404, {}), receipt=ODD)
        (odd,) = self.targets
        assert odd.count("/") == plain.count("/")
        assert ".." not in odd.split("/")

    def test_a_spoilt_answer_raises_nothing_and_tells_nothing_that_no_store_takes(self) -> None:
        answers = self.answers("ended")
        for path in answers:
            for spoilt in _spoilt(answers[path]):
                told = self.ask(lambda target, p=path, s=spoilt: self._spoilt_at(target, p, s))  # type: ignore[misc]
                assert isinstance(told, Heard | NotTold), told
                if isinstance(told, Heard):
                    check_storable(told.batch)

    def _spoilt_at(self, target: str, path: str, spoilt: object) -> bytes:
        if target.partition("?")[0] != path:
            return self.shown("ended")(target)
        body = json.dumps(spoilt).encode()
        return http_answer(200, body, "Content-Type: application/json")


def _spoilt(value: Any) -> Iterator[Any]:
    """The value with each part of it replaced by what should not stand there."""
    for place in paths_in(value):
        for wrong in SPOILT:
            copy = json.loads(json.dumps(value))
            inner = copy
            for step in place[:-1]:
                inner = inner[step]
            inner[place[-1]] = wrong
            yield copy
