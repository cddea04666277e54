"""A whole worker and scheduler on accounts of vendors that lose answers: each class keeps its promise.

Counted at the vendor's door, by a marker inside the message: what was accepted took effect, and once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sendonce import config
from sendonce.app import App
from sendonce.client import Client
from sendonce.core.lifecycle import State
from sendonce.pipeline.templates import add_sources
from sendonce.providers.postmark import PostmarkProvider
from sendonce.render import TemplateSource
from sendonce.service import serve
from sendonce.testing.sandbox import SandboxClient, SandboxSettings, sandbox_in_thread
from tests.integration.service import WITHIN_S, states

COUNT = 12
TOKEN = "3d844edf-8d35-48ac-975b-e847b4f122b0"

BASE = """
[store]
url = "sqlite:///sendonce.db"
[tenant.default]
zone = "Etc/UTC"
[channel.email]
account = "mail"
expiry = "2h"
alert_after = "15m"
uncertain = "hold"
[intake]
category = "shipment"
[category.shipment]
no_consent = "allow"
[scheduler]
interval = "200ms"
[worker]
lease = "5s"
[account.mail]
channel = "email"
from = "Shop <shop@example.org>"
limits = ["50/s"]
lanes = 4
allow_plain_http = true
timeout = "1s"
retry = {{ base = "50ms", floor = "50ms" }}
{account}
"""
RESEND = 'provider = "resend"\napi_key = "env:TOKEN"\nbase_url = "{url}/resend"'
POSTMARK = """provider = "postmark"
server_token = "env:TOKEN"
base_url = "{url}/postmark"
index_lag = "1s"
"""
SES = """provider = "ses"
region = "eu-west-1"
access_key_id = "AKIDEXAMPLE"
secret_access_key = "env:TOKEN"
base_url = "{url}/ses"
"""


@pytest.fixture(scope="module")
def running() -> Iterator[SandboxClient]:
    with sandbox_in_thread(SandboxSettings(api_token=TOKEN)) as client:
        yield client


@pytest.fixture
def sandbox(running: SandboxClient) -> SandboxClient:
    running.reset(rules=True)
    return running


def test_a_key_absorbs_what_was_lost(sandbox: SandboxClient, tmp_path: Path) -> None:
    sandbox.change(
        email={"lost_after": {"every": 4}, "lost_before": {"every": 5}, "error_after": {"every": 7}}
    )
    assert deliver(RESEND, sandbox, tmp_path) == {State.ACCEPTED: COUNT}
    report = sandbox.report()["channels"]["email"]
    assert (report["markers"], report["duplicates"]) == (COUNT, 0)
    assert report["replays"] > 0, "nothing was repeated, so nothing was shown"


def test_a_look_up_finds_what_was_lost_and_only_what_is_absent_is_sent_again(
    sandbox: SandboxClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked only after the settle time, of which the minute for late requests is taken out here."""
    whole = PostmarkProvider.__dict__["promise"]
    hasty = property(lambda provider: replace(whole.__get__(provider), arrival_max_s=0.0))
    monkeypatch.setattr(PostmarkProvider, "promise", hasty)
    lost = {"lost_before": {"next": 2}, "lost_after": {"next": 3}}
    sandbox.change(email={**lost, "lookup_lag_s": 0.9})
    assert deliver(POSTMARK, sandbox, tmp_path) == {State.ACCEPTED: COUNT}
    report = sandbox.report()["channels"]["email"]
    assert (report["markers"], report["duplicates"]) == (COUNT, 0)
    assert report["lost_responses"] > 0, "nothing was taken and lost, so nothing was shown"
    assert report["lost_requests"] > 0, "nothing was absent, so nothing was shown"
    assert report["lookups"] >= report["lost_responses"] + report["lost_requests"]


def test_with_neither_what_was_lost_waits_for_a_person(sandbox: SandboxClient, tmp_path: Path) -> None:
    sandbox.change(email={"lost_after": {"every": 3}})
    assert deliver(SES, sandbox, tmp_path) == {
        State.ACCEPTED: COUNT - COUNT // 3,
        State.UNCERTAIN: COUNT // 3,
    }
    report = sandbox.report()["channels"]["email"]
    assert (report["markers"], report["duplicates"]) == (COUNT, 0)


def deliver(account: str, sandbox: SandboxClient, tmp_path: Path) -> Counter[State]:
    """The states once nothing is on its way any more."""
    text = BASE.format(account=account.format(url=sandbox.http_url))
    settings = config.parse(text, tmp_path / "sendonce.toml", {"TOKEN": TOKEN})
    with App(settings) as app:
        source = TemplateSource("email", "Your parcel", "It is due. [ref:{{ delivery_key }}]", "")
        add_sources(app.store, "shipment", {"email": source}, actor="test")
        results = Client.of(app).schedule([reminder(number) for number in range(COUNT)])
        assert all(result.ok for result in results), results[0]
        asyncio.run(work(app))
        return states(app)


async def work(app: App) -> None:
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
        while not running.done() and ON_THEIR_WAY & set(await asyncio.to_thread(states, app)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    stopping.set()
    await running
    assert failed == []


ON_THEIR_WAY = {State.SCHEDULED, State.QUEUED, State.SENDING, State.RECONCILING}


def reminder(number: int) -> dict[str, Any]:
    return {
        "reminder": f"shipment-{number}",
        "customer": f"customer-{number}",
        "due": datetime.now(UTC),
        "template": "shipment",
        "email": f"ann{number}@example.com",
    }
