"""Whatever is called at the address for events: never a bug, and nothing that its provider did not sign.

Each source of the conformance suite stands behind the whole application, as a server would call it. What is
asked is made up, with a seed: bodies that were signed and nobody can read, and requests that were good and
were changed afterwards.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendonce.api.application import application
from sendonce.api.problems import TITLES
from sendonce.api.program import Program
from sendonce.app import App
from sendonce.config import parse
from sendonce.pipeline.record import counts_of_events
from sendonce.ports.events import EventRequest, EventSource
from sendonce.testing.conformance.event_source import (
    ANOTHER,
    FORGER,
    SECRET,
    EventContract,
    SignedBodyContract,
    TimedContract,
)
from tests.conformance.test_event_sources import CONTRACTS
from tests.integration.api_world import CONFIG

SECOND: Final = 1_000_000
FIRST, SECOND_ACCOUNT = "mail", "text"
FUZZ: Final = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
UNSIGNED: Final = {"TestPostmark", "TestNotify", "TestHttpByToken"}
"""They vouch for nothing but that they know the secret; the body is as good as HTTPS."""


@dataclass
class Endpoint:
    """The application with an account behind each of two secrets, called in this thread."""

    app: App
    runner: asyncio.Runner
    sources: dict[str, EventSource | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.app.event_source = lambda account: self.sources.get(account)  # type: ignore[method-assign]
        self.asgi = application(Program(self.app))

    def post(self, request: EventRequest, account: str = FIRST) -> tuple[int, Any]:
        """The status, and the problem document where it is one, which must be clear."""
        status, headers, body = self.runner.run(self._call(request, account))
        if status < 400:
            return status, None
        assert headers[b"content-type"] == b"application/problem+json", (status, body)
        problem = json.loads(body)
        assert (problem["status"], TITLES[problem["code"]][0]) == (status, status)
        assert problem["detail"]
        assert status != 500, problem
        return status, problem

    async def _call(self, request: EventRequest, account: str) -> tuple[int, dict[bytes, bytes], bytes]:
        path = f"/v1/events/{account}"
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "https",
            "path": path,
            "raw_path": path.encode(),
            # Those that sign the address sign the one that they know: its query, and `public_url`.
            "query_string": request.url.partition("?")[2].encode("utf-8", "surrogatepass"),
            "headers": [
                (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
                for name, value in request.headers.items()
            ],
        }
        sent: list[Any] = []
        parts = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.asgi(scope, receive, send)
        body = b"".join(part.get("body", b"") for part in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), body

    @property
    def kept(self) -> Mapping[Any, int]:
        return self.app.store.read(counts_of_events)

    @property
    def now(self) -> int:
        return self.app.clock.now()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("events")
    text = f'[api]\npublic_url = "https://us.example.com"\n{CONFIG}'
    parsed = parse(text, folder / "sendonce.toml", {"SENDONCE_STORE_URL": f"sqlite:///{folder}/store.db"})
    with App(parsed) as app, asyncio.Runner() as runner:
        yield Endpoint(app, runner)


@pytest.fixture(params=CONTRACTS, ids=lambda contract: contract.__name__)
def told(request: pytest.FixtureRequest, endpoint: Endpoint) -> Iterator[EventContract]:
    contract = request.param()
    contract.url = f"https://us.example.com/v1/events/{FIRST}"
    if request.param.__name__ == "TestTwilio":
        contract.url += "?" + request.param.url.partition("?")[2]
    endpoint.sources = {FIRST: contract.source(SECRET), SECOND_ACCOUNT: contract.source(ANOTHER)}
    yield contract
    for source in endpoint.sources.values():
        assert source is not None
        endpoint.runner.run(source.close())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
BODIES = (
    st.binary(max_size=200)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | VALUES.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass"))
    | st.integers(1, 20_000).map(lambda depth: b'{"a":' * depth)
    | st.integers(1, 20_000).map(lambda depth: b"[" * depth + b"]" * depth)
    | st.integers(1, 20_000).map(lambda length: b"[" + b"9" * length + b"]")
    | st.text(max_size=100).map(lambda text: text.encode("latin-1", "replace"))
)


@given(body=BODIES)
@FUZZ
def test_whatever_is_signed_is_kept_or_answered_with_a_problem(
    told: EventContract, endpoint: Endpoint, body: bytes
) -> None:
    status, problem = endpoint.post(told.signed(body, SECRET, at=endpoint.now))
    assert status in (200, 400, 403), problem


@given(chance=st.randoms(use_true_random=False), data=st.data())
@FUZZ
def test_what_was_changed_after_signing_never_gets_in(
    told: EventContract, endpoint: Endpoint, chance: Any, data: st.DataObject
) -> None:
    """It is refused, or says what was said: then it is the same event again."""
    good = told.signed(told.example(), SECRET, at=endpoint.now)
    assert endpoint.post(good)[0] == 200
    before = endpoint.kept
    signs_body = type(told).__name__ not in UNSIGNED
    for _ in range(4):
        ways = ["header", *(["body", "body"] if signs_body else [])]
        way = data.draw(st.sampled_from(ways))
        changed = replace(good, body=spoilt(good.body, chance)) if way == "body" else mixed(good, chance)
        status, problem = endpoint.post(changed)
        assert status in (200, 400, 403, 503), problem
        assert endpoint.kept == before, changed


def test_who_has_another_secret_or_another_account_is_not_believed(
    told: EventContract, endpoint: Endpoint
) -> None:
    before = endpoint.kept
    body = told.example()
    for secret, account in ((FORGER, FIRST), (ANOTHER, FIRST), (SECRET, SECOND_ACCOUNT)):
        status, problem = endpoint.post(told.signed(body, secret, at=endpoint.now), account)
        assert status == 403, (secret, account)
        assert problem["code"] == "bad_signature"
    assert endpoint.kept == before


@given(late_s=st.integers(1, 10**9))
@FUZZ
def test_what_is_too_old_is_not_believed(told: EventContract, endpoint: Endpoint, late_s: int) -> None:
    if not isinstance(told, TimedContract):
        return  # it signs no time
    before = endpoint.kept
    age_s = min(told.age_max_s + 1 + late_s, endpoint.now // SECOND - 1)
    status, problem = endpoint.post(told.signed(told.example(), SECRET, at=endpoint.now - age_s * SECOND))
    assert (status, problem["reason"]) == (403, "age")
    assert endpoint.kept == before


def test_every_source_that_signs_its_body_is_changed_there() -> None:
    """What is left out above is what the contract of sources does not hold to it either."""
    assert {each.__name__ for each in CONTRACTS if not issubclass(each, SignedBodyContract)} - {
        "TestMailgun"
    } == UNSIGNED


def spoilt(body: bytes, chance: Any) -> bytes:
    """With a byte or two changed, doubled, lost; or cut off, or with something behind."""
    changed = bytearray(body)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(changed)) if changed else 0
        match chance.randrange(5):
            case 0 if changed:
                changed[place] ^= 1 << chance.randrange(8)
            case 1:
                changed.insert(place, chance.randrange(256))
            case 2 if changed:
                del changed[place]
            case 3:
                del changed[place:]
            case _:
                changed += bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
    return bytes(changed)


def mixed(request: EventRequest, chance: Any) -> EventRequest:
    """With a header changed, lost, or given the value of another."""
    headers = dict(request.headers)
    if not headers:
        return replace(request, headers={"x-more": "x"})
    name = chance.choice(sorted(headers))
    match chance.randrange(3):
        case 0:
            del headers[name]
        case 1:
            headers[name] = headers[chance.choice(sorted(headers))]
        case _:
            headers[name] = spoilt(headers[name].encode("latin-1"), chance).decode("latin-1")
    return replace(request, headers=headers)
