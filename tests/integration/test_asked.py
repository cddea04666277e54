"""Providers that are asked instead of calling back: each adapter against its simulator over real HTTP, and a
whole service that nobody calls. No address for callbacks is configured anywhere here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sendonce import config
from sendonce.app import App
from sendonce.cli.main import main
from sendonce.client import Client
from sendonce.core.outcome import Accepted, AccountError, NoAnswer, Throttled
from sendonce.core.provider_event import AT_THE_END, EventKind, ProviderEvent
from sendonce.pipeline import polls
from sendonce.pipeline.templates import add_sources
from sendonce.ports.events import Answered, Asked, Heard, NotTold
from sendonce.ports.secret import Secret
from sendonce.providers.http import HttpProvider, HttpSettings
from sendonce.providers.http_asked import http_asked
from sendonce.providers.http_question import HttpQuestion
from sendonce.providers.notify import NotifyProvider, NotifySettings
from sendonce.providers.notify_asked import NotifyAsked
from sendonce.providers.postmark import PostmarkProvider, PostmarkSettings
from sendonce.providers.postmark_asked import PostmarkAsked
from sendonce.providers.sinch import SinchProvider, SinchSettings
from sendonce.providers.sinch_asked import SinchAsked
from sendonce.render import TemplateSource
from sendonce.service import serve
from sendonce.testing.sandbox import SandboxClient, SandboxSettings, sandbox_in_thread
from tests.integration.service import WITHIN_S
from tests.integration.test_vendors import ANOTHER_TOKEN, KEY, TOKEN, email, sms
from tests.unit.test_provider_docs import AROUND

BASE = """
[store]
url = "sqlite:///sendonce.db"
[scheduler]
interval = "200ms"
[account.mail]
channel = "email"
from = "Shop <shop@example.org>"
limits = ["50/s"]
lanes = 4
poll = "50/s"
allow_plain_http = true
provider = "postmark"
server_token = "env:TOKEN"
base_url = "{url}/postmark"
"""


PLAIN: dict[str, Any] = {"allow_plain_http": True, "timeout_s": 5.0}


class Case(NamedTuple):
    name: str
    channel: str
    settings: Callable[[str, str], Any]
    provider: Callable[[Any], Any]
    asked: Callable[[Any], Asked]
    bounced: EventKind
    to: str
    key: str = KEY


def notify(path: str) -> Callable[[str, str], NotifySettings]:
    def settings(url: str, token: str) -> NotifySettings:
        key = Secret(f"live-{ANOTHER_TOKEN}-{token}")
        return NotifySettings(api_key=key, template_id=ANOTHER_TOKEN, base_url=f"{url}/{path}", **PLAIN)

    return settings


def postmark(url: str, token: str) -> PostmarkSettings:
    return PostmarkSettings(server_token=Secret(token), base_url=f"{url}/postmark", **PLAIN)


def sinch(url: str, token: str) -> SinchSettings:
    return SinchSettings(
        region="eu", service_plan_id="plan1", api_token=Secret(token), base_url=f"{url}/sinch", **PLAIN
    )


def http(url: str, token: str) -> HttpSettings:
    question = HttpQuestion(
        url=f"{url}/v1/messages/{{{{ receipt }}}}",
        kind_path="status",
        kinds={
            "accepted": EventKind.ACCEPTED,
            "delivered": EventKind.DELIVERED,
            "bounced": EventKind.UNDELIVERED,
        },
        receipt_path="id",
        address_path="to",
    )
    return HttpSettings(
        url=f"{url}/v1/messages",
        body_json='{"to": "{{ to }}", "from": "{{ sender }}", "text": "{{ text }}"}',
        receipt_path="id",
        bearer=Secret(token),
        question=question,
        **PLAIN,
    )


def asks_by_http(settings: HttpSettings) -> Asked:
    asked = http_asked(settings)
    assert asked is not None
    return asked


MAIL, TEXT = "ann@example.com", "+447700900123"
CASES = [
    Case("http", "sms", http, HttpProvider, asks_by_http, EventKind.UNDELIVERED, TEXT, key=""),
    Case("postmark", "email", postmark, PostmarkProvider, PostmarkAsked, EventKind.BOUNCED_HARD, MAIL),
    Case("sinch", "sms", sinch, SinchProvider, SinchAsked, EventKind.UNDELIVERED, TEXT),
    Case("notify", "sms", notify("notify"), NotifyProvider, NotifyAsked, EventKind.UNDELIVERED, TEXT),
    Case(
        "notify-email",
        "email",
        notify("notify-email"),
        NotifyProvider,
        NotifyAsked,
        EventKind.BOUNCED_HARD,
        MAIL,
    ),
]
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def running() -> Iterator[SandboxClient]:
    with sandbox_in_thread(SandboxSettings(api_token=TOKEN)) as client:
        yield client


@pytest.fixture
def sandbox(running: SandboxClient) -> SandboxClient:
    running.reset(rules=True)
    at_once = {"events": {"delay_s": [0.0, 0.0]}}
    running.change(email=at_once, sms=at_once)
    return running


def sent(case: Case, sandbox: SandboxClient) -> str:
    """The receipt of a message that the vendor took."""

    async def sending() -> str:
        provider = case.provider(case.settings(sandbox.http_url, TOKEN))
        try:
            outcome = await provider.send(email() if case.channel == "email" else sms(), start=at_once)
        finally:
            await provider.close()
        assert isinstance(outcome, Accepted), outcome
        return outcome.receipt

    return asyncio.run(sending())


async def at_once() -> None:
    return None


def ask(case: Case, sandbox: SandboxClient, receipt: str, *, token: str = TOKEN) -> Answered:
    async def asking() -> Answered:
        asked = case.asked(case.settings(sandbox.http_url, token))
        try:
            return await asked.ask(receipt)
        finally:
            await asked.close()

    return asyncio.run(asking())


def change(case: Case, sandbox: SandboxClient, **rules: Any) -> None:
    sandbox.change(**{case.channel: rules})


def ended(told: Answered) -> list[ProviderEvent]:
    assert isinstance(told, Heard), told
    assert told.batch.faulty == ()
    return [event for event in told.batch.events if event.kind in AT_THE_END]


@every
def test_what_was_delivered_or_bounced_is_told_of_the_message_that_was_asked_about(
    case: Case, sandbox: SandboxClient
) -> None:
    for every_nth, kind in ((0, EventKind.DELIVERED), (1, case.bounced)):
        change(case, sandbox, events={"delay_s": [0.0, 0.0], "bounced": {"every": every_nth}})
        receipt = sent(case, sandbox)
        told = ask(case, sandbox, receipt)
        (event,) = ended(told)
        assert (event.kind, event.receipt, event.send_key) == (kind, receipt, case.key)
        assert event.address == case.to
        assert ended(ask(case, sandbox, receipt)) == [event], "the same whenever it is asked"


@every
def test_what_is_under_way_has_not_ended(case: Case, sandbox: SandboxClient) -> None:
    change(case, sandbox, events={"delay_s": [3600.0, 3600.0]})
    assert ended(ask(case, sandbox, sent(case, sandbox))) == []


@every
def test_a_call_that_is_lost_is_told_to_who_asks(case: Case, sandbox: SandboxClient) -> None:
    change(case, sandbox, events={"delay_s": [0.0, 0.0], "lost": {"every": 1}})
    (event,) = ended(ask(case, sandbox, sent(case, sandbox)))
    assert event.kind is EventKind.DELIVERED


@every
def test_what_is_not_told_has_its_reason(case: Case, sandbox: SandboxClient) -> None:
    receipt = sent(case, sandbox)
    unknown = ask(case, sandbox, receipt[:-1] + ("0" if receipt[-1] != "0" else "1"))
    assert unknown == NotTold("http_404")
    assert isinstance(ask(case, sandbox, receipt, token=SERVICE), AccountError)
    change(case, sandbox, throttle={"next": 1}, retry_after="seconds", retry_after_s=3)
    throttled = ask(case, sandbox, receipt)
    assert isinstance(throttled, Throttled), throttled
    assert throttled.retry_after_s == 3.0
    change(case, sandbox, lookup_error={"next": 1})
    assert isinstance(ask(case, sandbox, receipt), NoAnswer)
    assert len(ended(ask(case, sandbox, receipt))) == 1


SERVICE = "740e5834-3a29-46b4-9a6f-16142fde533a"


def test_a_service_that_nobody_calls_learns_what_became_of_its_messages(
    sandbox: SandboxClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "AGES_S", (0,))
    monkeypatch.setattr(polls, "LOOK_S", 0.05)
    sandbox.change(email={"events": {"delay_s": [0.0, 0.0], "bounce_pattern": "ann1@"}})
    text = BASE.format(url=sandbox.http_url) + AROUND.format(channel="email", account="mail")
    with App(config.parse(text, tmp_path / "sendonce.toml", {"TOKEN": TOKEN})) as app:
        source = TemplateSource("email", "Your parcel", "It is due. [ref:{{ delivery_key }}]", "")
        add_sources(app.store, "shipment", {"email": source}, actor="test")
        results = Client.of(app).schedule([reminder(number) for number in range(3)])
        assert all(result.ok for result in results), results[0]
        asyncio.run(until_told(app, 3))
        assert told_of(app) == ["bounced_hard", "delivered", "delivered"]
    assert sandbox.events() == [], "somebody was called"
    report = sandbox.report()["channels"]["email"]
    assert (report["markers"], report["duplicates"]) == (3, 0)


@pytest.mark.parametrize("polled", [True, False])
def test_check_says_who_is_asked_and_misses_no_secret_there(
    polled: bool,
    sandbox: SandboxClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = BASE.format(url=sandbox.http_url) + AROUND.format(channel="email", account="mail")
    file = tmp_path / "sendonce.toml"
    file.write_text(text if polled else text.replace("poll = ", "# "), encoding="utf-8")
    monkeypatch.setenv("TOKEN", TOKEN)
    assert main(["--config", str(file), "check", "--json"]) == 0
    found = [
        each for each in json.loads(capsys.readouterr().out)["findings"] if each["part"] == "account mail"
    ]
    assert ("asked what became of its messages" in str(found)) is polled
    assert any("write a secret" in str(each) for each in found) is not polled


def told_of(app: App) -> list[str]:
    rows = app.store.read(
        lambda tx: [
            fact["kind"]
            for id_ in range(1, 4)
            for fact in tx.rows("view_facets", delivery_id=id_)
            if fact["kind"] in AT_THE_END
        ]
    )
    return sorted(str(row) for row in rows)


async def until_told(app: App, count: int) -> None:
    stopping, failed = asyncio.Event(), list[str]()
    running = asyncio.create_task(
        serve(
            app,
            work=True,
            schedule=True,
            stopping=stopping,
            role="up",
            on_error=lambda stage, error: failed.append(f"{stage}: {error}"),
        )
    )
    async with asyncio.timeout(WITHIN_S):
        while not running.done() and len(await asyncio.to_thread(told_of, app)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    stopping.set()
    await running
    assert failed == []


def reminder(number: int) -> dict[str, Any]:
    return {
        "reminder": f"shipment-{number}",
        "customer": f"customer-{number}",
        "due": datetime.now(UTC),
        "template": "shipment",
        "email": f"ann{number}@example.com",
    }
