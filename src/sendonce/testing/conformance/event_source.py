"""The event port's contract as tests: what is verified, what is read, and that nothing else gets in.

    class TestAcme(SignedBodyContract, TimedContract):
        age_max_s = 300
        wanted = ProviderEvent("evt-1", EventKind.DELIVERED, receipt="m-1", send_key=..., address=...)

        def source(self, *secrets: str) -> EventSource | None: ...
        def example(self) -> bytes: ...
        def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest: ...

    EventContract          every rule that holds for all sources
    ├── SignedBodyContract the provider signs what it sends: nothing of it can be changed
    ├── TimedContract      ... and when: a recorded request is refused later
    └── BatchContract      it calls with several events: one bad one costs nothing

Sign in the test by a way of its own, not by the code that verifies. Needs nothing but pytest to find the
tests; the checks are plain assertions, and chance has a seed.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Final

from sendonce.core.provider_event import ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, EventSource, Forged, NotNow, Unreadable

NOW: Final = 1_798_000_000_000_000  # microseconds UTC, in December 2026
SECRET: Final = "whsec_c2VjcmV0IG9uZQ=="  # noqa: S105
ANOTHER: Final = "whsec_c2VjcmV0IHR3bw=="
FORGER: Final = "whsec_bm90aGluZw=="

NONSENSE: Final = (
    b"",
    b"null",
    b"7",
    b'"text"',
    b"[]",
    b"[[]]",
    b"[null, 7, {}]",
    b"{}",
    b'{"event": {}, "type": [], "data": 7, "status": null}',
    b"\xff\xfe",
    b"[" * 100_000,
    b"9" * 10_000,
    b'{"a": 1e999}',
    b"%",
    b"&&&=&=",
    "\ufeff{}".encode(),
)
"""Bodies that a provider might sign and nobody can read."""

SPOILT: Final[tuple[object, ...]] = (
    None,
    7,
    -1,
    10**30,
    10**400,
    1.5e300,
    True,
    "",
    "\0",
    "\ud800",
    "x" * 10_000,
    [],
    [None],
    {},
    {"a": {}},
    "2026-13-45T99:99:99Z",
    "9999-12-31T23:59:59Z",
)
"""Values that a field might have and should not."""


class EventContract(ABC):
    """Rules 1 to 4 of the port."""

    wanted: ClassVar[ProviderEvent]
    """What `example` says; an identity of "" stands for one that the source makes itself."""

    @abstractmethod
    def source(self, *secrets: str) -> EventSource | None:
        """The source of an account with these secrets."""

    @abstractmethod
    def example(self) -> bytes:
        """A body as the provider documents it, with one event, told at `NOW`."""

    @abstractmethod
    def signed(self, body: bytes, secret: str, *, at: int) -> EventRequest:
        """The provider's request with this body, signed at `at`, microseconds UTC. Always the same event."""

    def read(self, request: EventRequest, *secrets: str) -> EventBatch | str:
        """The batch, or why there is none. Whatever else is raised is a fault of the source."""

        async def reading() -> EventBatch | str:
            source = self.source(*(secrets or (SECRET,)))
            assert source is not None
            try:
                return await source.read(request, now=NOW)
            except (Forged, Unreadable, NotNow) as refused:
                return f"{type(refused).__name__} {refused.why}"
            finally:
                await source.close()
                await source.close()

        return asyncio.run(reading())

    def good(self, secret: str = SECRET, *, at: int = NOW) -> EventRequest:
        return self.signed(self.example(), secret, at=at)

    def refused(self, request: EventRequest, *secrets: str) -> bool:
        """Whether it is not taken for the provider's: forged, or nothing that could be said of it now."""
        return str(self.read(request, *secrets)).startswith(("Forged ", "NotNow "))

    def test_what_is_the_providers_is_read(self) -> None:
        batch = self.read(self.good())
        assert isinstance(batch, EventBatch)
        self.check(batch)
        assert batch.faulty == ()

    def check(self, batch: EventBatch) -> None:
        (event,) = batch.events
        assert event == (
            self.wanted if self.wanted.identity else replace(self.wanted, identity=event.identity)
        )
        assert event.identity

    def test_the_same_event_told_again_has_the_same_identity(self) -> None:
        first, again = self.read(self.good()), self.read(self.good(at=NOW + 60_000_000))
        assert isinstance(first, EventBatch)
        assert isinstance(again, EventBatch)
        assert first.events == again.events

    def test_no_secret_no_source(self) -> None:
        assert self.source() is None

    def test_each_active_secret_holds_and_a_removed_one_does_not(self) -> None:
        for secret in (SECRET, ANOTHER):
            assert isinstance(self.read(self.good(secret), SECRET, ANOTHER), EventBatch)
        assert self.refused(self.good(SECRET), ANOTHER)
        assert self.refused(self.good(FORGER), SECRET, ANOTHER)

    def test_without_the_headers_it_is_nobodys(self) -> None:
        request = self.good()
        bare = replace(request, headers={})
        assert self.refused(bare) or self.signs_inside(bare)

    def signs_inside(self, request: EventRequest) -> bool:
        """Whether the signature stands in the body, so that a request without headers is still good."""
        return False

    def test_nonsense_that_is_signed_is_told_as_such(self) -> None:
        for body in NONSENSE:
            result = self.read(self.signed(body, SECRET, at=NOW))
            if isinstance(result, EventBatch):
                check_storable(result)

    def test_a_spoilt_field_never_costs_more_than_its_event(self) -> None:
        for body in self.spoilt():
            result = self.read(self.signed(body, SECRET, at=NOW))
            if isinstance(result, EventBatch):
                check_storable(result)

    def spoilt(self) -> Iterator[bytes]:
        """The example with one field after the other spoilt, or gone; for JSON."""
        whole = json.loads(self.example())
        for path in paths_in(whole):
            for value in SPOILT:
                yield json.dumps(with_value(whole, path, value)).encode()
            yield json.dumps(without(whole, path)).encode()

    def test_what_is_made_up_never_gets_in(self) -> None:
        chance = random.Random(23)  # noqa: S311
        forged = self.signed(self.example(), FORGER, at=NOW)
        assert self.refused(forged)
        for _ in range(300):
            headers = {name: _mixed(value, chance) for name, value in forged.headers.items()}
            assert self.refused(replace(forged, headers=headers))


class SignedBodyContract(EventContract):
    """The provider signs what it sends."""

    signed_headers: ClassVar[tuple[str, ...]]
    """In lower case; those of which every byte counts."""

    def tampered(self) -> Iterator[EventRequest]:
        """The good request with one byte after the other changed."""
        request = self.good()
        for index in range(len(request.body)):
            changed = bytearray(request.body)
            changed[index] ^= 1
            yield replace(request, body=bytes(changed))
        for name in self.signed_headers:
            value = request.headers[name].encode("latin-1")
            for index in range(len(value)):
                flipped = bytearray(value)
                flipped[index] ^= 1
                yield replace(request, headers={**request.headers, name: flipped.decode("latin-1")})
            yield replace(request, headers={**request.headers, name: ""})
            left = {key: text for key, text in request.headers.items() if key != name}
            yield replace(request, headers=left)

    def test_nothing_of_it_can_be_changed(self) -> None:
        count = 0
        for request in self.tampered():
            count += 1
            assert self.refused(request), (request.body, request.headers)
        assert count >= 5

    def test_another_body_is_not_vouched_for(self) -> None:
        chance = random.Random(42)  # noqa: S311
        request = self.good()
        for _ in range(300):
            body = _mixed(request.body.decode("latin-1"), chance).encode("latin-1")
            assert body == request.body or self.refused(replace(request, body=body)), body


class TimedContract(EventContract):
    """The provider signs when it calls."""

    age_max_s: ClassVar[int]

    def test_a_recorded_request_is_refused_later(self) -> None:
        second = 1_000_000
        assert isinstance(self.read(self.good(at=NOW - self.age_max_s * second)), EventBatch)
        assert self.read(self.good(at=NOW - (self.age_max_s + 1) * second)) == "Forged age"
        assert self.read(self.good(at=NOW + 301 * second)) == "Forged age"


class BatchContract(EventContract):
    """The provider calls with several events."""

    @abstractmethod
    def with_bad_ones(self) -> bytes:
        """The example's event between items that nobody can read."""

    def test_one_bad_item_costs_nothing(self) -> None:
        batch = self.read(self.signed(self.with_bad_ones(), SECRET, at=NOW))
        assert isinstance(batch, EventBatch)
        self.check(batch)
        assert len(batch.faulty) >= 1
        assert all(why.isascii() and len(why) < 40 for why in batch.faulty)


def check_storable(batch: EventBatch) -> None:
    """Every text can be kept by any store, and a code is a short word."""
    for event in batch.events:
        assert event.identity
        for text in (event.identity, event.receipt, event.send_key, event.address, event.code, event.text):
            text.encode()
            assert "\0" not in text
            assert len(text) <= 5_000
        assert len(event.code) <= 200
        assert "@" not in event.code
        assert event.occurred_at is None or 0 < event.occurred_at < 2**53
    assert all(why for why in batch.faulty)


def paths_in(value: object, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each part of a JSON value, but for the whole."""
    parts: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(value, dict):
        parts = iter(value.items())
    elif isinstance(value, list):
        parts = iter(enumerate(value))
    for name, each in parts:
        yield (*above, name)
        yield from paths_in(each, (*above, name))


def with_value(whole: object, path: tuple[str | int, ...], value: object) -> object:
    """A copy of a JSON value with another part in one place."""
    copy = json.loads(json.dumps(whole))
    *way, last = path
    place = copy
    for name in way:
        place = place[name]
    place[last] = value
    return copy


def without(whole: object, path: tuple[str | int, ...]) -> object:
    copy = json.loads(json.dumps(whole))
    *way, last = path
    place = copy
    for name in way:
        place = place[name]
    del place[last]
    return copy


def _mixed(text: str, chance: random.Random) -> str:
    """A text with some characters of it changed, doubled, lost or swapped."""
    letters = list(text)
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(len(letters) + 1)
        match chance.randrange(4):
            case 0:
                letters.insert(place, chr(chance.randrange(256)))
            case 1 if letters:
                del letters[place % len(letters)]
            case 2 if letters:
                letters[place % len(letters)] = chr(chance.randrange(256))
            case _:
                chance.shuffle(letters)
    return "".join(letters)
