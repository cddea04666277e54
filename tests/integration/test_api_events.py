"""What providers call back with, over HTTP: believed by its signature alone, durable when it is answered.

The account is one of the `http` adapter that signs the time and the body; each vendor's own way to sign is
proven in `conformance/test_event_sources.py`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sendonce.app import App
from sendonce.config import parse
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted
from sendonce.core.provider_event import EventKind, stands
from sendonce.pipeline import claimer, events, settler
from sendonce.pipeline.attempt import Attempted
from sendonce.pipeline.record import facets_of
from sendonce.ports.events import EventBatch, EventRequest, NotNow
from sendonce.ports.store import EventLook, StoredEvent, Tx
from tests.integration.api_world import CONFIG, Answer, Api, add_templates, reminder, serving_of

PATH = "/v1/events/hooked"
SECRET = "one secret"
NEXT = "the next one"
HOOKED = """
[account.hooked]
provider = "http"
url = "https://api.example.com/send"
channel = "email"
body_json = "{\\"to\\": \\"{{ to }}\\"}"
limits = ["100/s"]
lanes = 10
from = "us@example.com"

[account.hooked.events]
secrets = ["file:secret", "file:next"]
signed = "hmac"
signature_header = "X-Signature"
timestamp_header = "X-Timestamp"
kind_path = "event"
receipt_path = "id"
reference_path = "reference"
address_path = "to"
code_path = "reason"
kinds = { delivered = "delivered", bounce = "bounced_hard", stop = "opted_out" }
"""


@dataclass
class Hooked:
    """A served program whose account `hooked` is called back, and how its provider calls."""

    app: App
    api: Api

    def post(
        self,
        body: bytes,
        *,
        at: str | None = None,
        secret: str = SECRET,
        path: str = PATH,
        signature: str | None = None,
        sent: bytes | None = None,
    ) -> Answer:
        """A call that is signed over `body`; `sent` instead of it."""
        at = str(self.now_s) if at is None else at
        given = signature
        if given is None:
            given = hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers = {"X-Signature": given, "X-Timestamp": at}
        return self.api.ask("POST", path, raw=body if sent is None else sent, token="", headers=headers)

    @property
    def now_s(self) -> int:
        return self.app.clock.now() // 1_000_000

    def accept(self, *receipts: str) -> list[str]:
        """Reminders that the provider took, one for each receipt; their keys."""
        rows = [reminder(f"r-{each}", due="in 0s", email=f"{each}@example.com") for each in receipts]
        taken = self.api.post("/v1/reminders", {"reminders": rows}).ok()
        assert taken["counts"] == {"accepted": len(rows)}, taken
        self.app.scheduler().run(trigger="test")
        sent = self._send()
        assert sorted(sent) == sorted(receipts)
        return [f"r-{each}:c-1:email" for each in receipts]

    def _send(self) -> list[str]:
        app, store = self.app, self.app.store
        claims = (
            store.write(
                lambda tx: claimer.claim(
                    tx,
                    app.policy.accounts["hooked"],
                    app.policy,
                    process="p",
                    secret=store.secret,
                    lead_us=2_000,
                )
            )
            .result()
            .claims
        )
        named = [(claim, claim.key.split(":")[0].removeprefix("r-")) for claim in claims]
        attempts = [Attempted(claim, Accepted(name), claim.slot_at, claim.slot_at) for claim, name in named]
        store.write(
            lambda tx: settler.settle(tx, attempts, app.policy, process="p", chance=lambda: 0.5)
        ).result()
        return [name for _, name in named]

    def apply(self) -> None:
        applier = self.app.event_applier()
        while applier.step() == 0.0:
            pass

    def kept(self) -> list[StoredEvent]:
        def all_of(tx: Tx) -> list[StoredEvent]:
            found: list[StoredEvent] = []
            while (one := events.event(tx, len(found) + 1)) is not None:
                found.append(one)
            return found

        return self.app.store.read(all_of)

    def final(self, key: str) -> EventKind | None:
        def look(tx: Tx) -> EventKind | None:
            (row,) = tx.deliveries.by_keys([("default", key)])
            assert row.standing.state is State.ACCEPTED
            fact = stands(facets_of(tx, row.id))
            return None if fact is None else fact.kind

        return self.app.store.read(look)


@pytest.fixture(params=["sqlite", "postgres"])
def hooked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hooked]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "next").write_text(NEXT)
    text = CONFIG.replace('account = "mail"', 'account = "hooked"') + HOOKED
    settings = parse(text, tmp_path / "sendonce.toml", {"SENDONCE_STORE_URL": url})
    with App(settings) as app:
        app.worker(channels=[Channel.EMAIL])  # its gates
        add_templates(app, "default")
        with serving_of(app) as port:
            from sendonce.api.program import Program

            api = Api(app, Program(app), port)
            api.token = api.key()
            yield Hooked(app, api)


A = b'[{"event":"delivered","id":"m-1"},\r\n{"event":"bounce","id":"m-2","reason":"caf\\u00e9"}]\r\n'
B = json.dumps(json.loads(A), separators=(",", ":"), ensure_ascii=True).encode()
C = A.removesuffix(b"\r\n")


def test_hook_05_the_signature_is_over_the_very_bytes(hooked: Hooked) -> None:
    assert (len(A), hashlib.sha256(A).hexdigest()[:8]) == (89, "4d384b96")
    first, second = hooked.accept("m-1", "m-2")
    at = str(hooked.now_s)
    good = hmac.new(SECRET.encode(), at.encode() + b"." + A, hashlib.sha256).hexdigest()
    changed = A.replace(b"m-1", b"m-9")
    for wrong in (B, C, changed):
        answer = hooked.post(A, at=at, sent=wrong)
        assert (answer.status, answer.problem["code"]) == (403, "bad_signature")
    for unsigned in ("", "x", good[:-1], good.upper()):
        assert hooked.post(A, at=at, signature=unsigned).status == 403
    assert hooked.api.ask("POST", PATH, raw=A, token="").status == 403
    assert hooked.kept() == [], "nothing of it is stored"
    assert hooked.post(A, at=at).status == 200
    hooked.apply()
    assert [hooked.final(key) for key in (first, second)] == [EventKind.DELIVERED, EventKind.BOUNCED_HARD]
    assert len(hooked.kept()) == 2


def test_each_active_secret_is_believed(hooked: Hooked) -> None:
    assert hooked.post(b'{"event":"delivered","id":"x"}', secret=NEXT).status == 200
    assert hooked.post(b'{"event":"delivered","id":"y"}', secret="the last one").status == 403
    assert len(hooked.kept()) == 1


@pytest.mark.parametrize(
    "middle",
    [
        {"event": 12, "id": None},
        {"event": "delivered"},
        {"event": "levitated", "id": "p1"},
        "not an object",
        {"event": "delivered", "id": None, "reason": "x" * 2 * 1024 * 1024},
    ],
    ids=["bad", "missing id", "unknown name", "not an object", "2 MB"],
)
def test_hook_07_one_bad_event_is_put_aside_and_the_rest_applied_once(hooked: Hooked, middle: object) -> None:
    first, third = hooked.accept("p1", "p3")
    body = json.dumps(
        [{"event": "delivered", "id": "p1"}, middle, {"event": "delivered", "id": "p3"}]
    ).encode()
    assert hooked.post(body).status == 200
    hooked.apply()
    assert [hooked.final(key) for key in (first, third)] == [EventKind.DELIVERED] * 2
    before = hooked.kept()
    assert len(before) == 3
    odd = [one for one in before if one.kind is not EventKind.DELIVERED]
    assert [one.kind for one in odd] == [EventKind.UNKNOWN]
    assert odd[0].look is (EventLook.DONE if odd[0].receipt else EventLook.FAULTY)
    assert hooked.post(body).status == 200
    hooked.apply()
    assert hooked.kept() == before, "told again, nothing changes"


def test_hook_11_a_captured_request_works_once_and_not_for_ever(hooked: Hooked) -> None:
    (key,) = hooked.accept("m-1")
    body = b'{"event":"delivered","id":"m-1"}'
    now = hooked.now_s
    for old in (now - 302, now - 31_536_000, now + 310, "abc", ""):
        assert hooked.post(body, at=str(old)).status == 403
    assert hooked.kept() == []
    at = str(now)
    assert hooked.post(body, at=at).status == 200
    hooked.apply()
    before = hooked.kept()
    assert hooked.post(body, at=at).status == 200
    hooked.apply()
    assert hooked.kept() == before
    assert hooked.final(key) is EventKind.DELIVERED


def test_who_is_not_called_and_what_is_no_call(hooked: Hooked) -> None:
    good = b'{"event":"delivered","id":"x"}'
    for nobody in ("mail", "unknown", "", "hooked/x", "%00", "hooked%2F", "..%2Fhooked"):
        answer = hooked.post(good, path=f"/v1/events/{nobody}")
        assert (answer.status, answer.problem["code"]) == (404, "not_found"), nobody
    for path in (PATH, "/v1/events/unknown"):
        got = hooked.api.ask("GET", path, token="")
        assert (got.status, got.headers["allow"]) == (405, "POST")
    assert hooked.api.ask("GET", "/v1/events", token="").status == 401, "the feed is another door"
    assert hooked.post(b"{").problem["code"] == "bad_request", "signed, and no JSON"
    assert hooked.post(b"x" * (4 * 1024 * 1024 + 1)).status == 413
    assert hooked.kept() == []


def test_the_document_tells_of_it_as_it_is(hooked: Hooked) -> None:
    paths = hooked.api.get("/v1/openapi.json").ok()["paths"]
    (operation,) = paths["/v1/events/{account}"].values()
    assert operation["security"] == [], "no key: it is signed"
    assert "Idempotency-Key" not in {each["name"] for each in operation["parameters"]}
    answer = hooked.post(b'{"event":"delivered","id":"x"}')
    assert answer.status == 200
    assert answer.headers["content-type"].partition(";")[0] in operation["responses"]["200"]["content"]
    assert "default" in operation["responses"], "a problem"


def test_what_cannot_be_verified_now_is_asked_for_again(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away:
        async def read(self, request: EventRequest, *, now: int) -> EventBatch:
            raise NotNow("certificate")

        async def close(self) -> None:
            return None

    monkeypatch.setattr(hooked.app, "event_source", lambda account: Away())
    answer = hooked.post(b"{}")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0


def test_the_provider_reads_the_answer_that_it_wants_and_the_address_is_the_public_one(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[EventRequest] = []

    class Wishes:
        async def read(self, request: EventRequest, *, now: int) -> EventBatch:
            seen.append(request)
            return EventBatch(answer="<Response/>", answer_type="text/xml")

        async def close(self) -> None:
            return None

    monkeypatch.setattr(hooked.app, "event_source", lambda account: Wishes())
    headers = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "X-Twice": "a"}
    answer = hooked.api.ask("POST", PATH + "?k=1&s=a%20b", raw=b"x", token="", headers=headers)
    assert (answer.status, answer.body) == (200, b"<Response/>")
    assert answer.headers["content-type"].startswith("text/xml")
    assert seen[0].url == f"http://127.0.0.1:{hooked.api.port}{PATH}?k=1&s=a%20b", "never a forwarded one"
    assert (seen[0].method, seen[0].body, seen[0].headers["x-twice"]) == ("POST", b"x", "a")
    public = replace(hooked.app.policy, public_url="https://us.example.com/base")
    monkeypatch.setattr(hooked.app, "policy", public)
    hooked.api.ask("POST", PATH, raw=b"x", token="")
    assert seen[1].url == f"https://us.example.com/base{PATH}"


def test_the_story_tells_it_beside_acceptance(hooked: Hooked) -> None:
    (key,) = hooked.accept("m-1")
    body = b'[{"event":"delivered","id":"m-1"},{"event":"bounce","id":"m-1","reason":"5.1.1"}]'
    hooked.post(body)
    hooked.apply()
    told = hooked.api.get(f"/v1/deliveries/{key}/story").ok()
    assert told["state"] == "ACCEPTED"
    assert told["headline"].startswith("It was sent at ")
    assert told["headline"].endswith("It came back: the other side refused it for good (code bounce/5.1.1).")
    assert {each["kind"]: each["stands"] for each in told["later"]} == {
        "delivered": False,
        "bounced_hard": True,
    }
    assert not any("came back" in moment["text"] for moment in told["moments"])
