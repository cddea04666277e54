"""Each vendor's simulator calls back, and its adapter's source reads it.

The simulator signs by a way of its own. What an event says of a message is what the send said: the receipt,
and our send key.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final, NamedTuple

import pytest

from sendonce.core.outcome import Accepted
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, EventSource, Forged
from sendonce.ports.provider import Message, Provider
from sendonce.ports.secret import Secret
from sendonce.providers.mailgun import MailgunProvider, MailgunSettings
from sendonce.providers.mailgun_events import mailgun_events
from sendonce.providers.notify import NotifyProvider, NotifySettings
from sendonce.providers.notify_events import notify_events
from sendonce.providers.postmark import PostmarkProvider, PostmarkSettings
from sendonce.providers.postmark_events import postmark_events
from sendonce.providers.resend import ResendProvider, ResendSettings
from sendonce.providers.resend_events import resend_events
from sendonce.providers.sendgrid import SendgridProvider, SendgridSettings
from sendonce.providers.sendgrid_events import sendgrid_events
from sendonce.providers.sinch import SinchProvider, SinchSettings
from sendonce.providers.sinch_events import sinch_events
from sendonce.providers.twilio import TwilioProvider, TwilioSettings
from sendonce.providers.twilio_events import twilio_events
from sendonce.providers.vonage import VonageProvider, VonageSettings
from sendonce.providers.vonage_events import vonage_events
from sendonce.runtime.clock import SystemClock
from sendonce.testing.sandbox import SandboxClient, SandboxSettings, sandbox_in_thread
from sendonce.testing.sandbox.callbacks import sendgrid_public_key
from tests.integration.test_vendors import ANOTHER_TOKEN, KEY, PLAIN, TOKEN, email, sms

SECRET: Final = "whsec_c2VjcmV0IG9uZQ=="
TIMEOUT_S: Final = 30.0


class Caller(NamedTuple):
    """An adapter and its source, for one account."""

    provider: Provider
    source: EventSource | None


class Endpoint:
    """Our side: an HTTP server in a thread that keeps every request as it came."""

    def __init__(self) -> None:
        self.got: queue.Queue[EventRequest] = queue.Queue()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                endpoint.got.put(EventRequest("POST", endpoint.origin + self.path, headers, body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def get(self) -> EventRequest:
        return self.got.get(timeout=TIMEOUT_S)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def resend(url: str, called: str) -> Caller:
    settings = ResendSettings(
        api_key=Secret(TOKEN),
        base_url=f"{url}/resend",
        event_secrets=(Secret(SECRET),),
        **PLAIN,  # type: ignore[arg-type]
    )
    return Caller(ResendProvider(settings), resend_events(settings))


def postmark(url: str, called: str) -> Caller:
    settings = PostmarkSettings(
        server_token=Secret(TOKEN),
        base_url=f"{url}/postmark",
        event_secrets=(Secret(SECRET),),
        **PLAIN,  # type: ignore[arg-type]
    )
    return Caller(PostmarkProvider(settings), postmark_events(settings))


def sendgrid(url: str, called: str) -> Caller:
    settings = SendgridSettings(
        api_key=Secret(TOKEN),
        base_url=f"{url}/sendgrid",
        event_public_keys=(sendgrid_public_key(SECRET),),
        **PLAIN,  # type: ignore[arg-type]
    )
    return Caller(SendgridProvider(settings), sendgrid_events(settings))


def mailgun(url: str, called: str) -> Caller:
    settings = MailgunSettings(
        domain="mg.example.org",
        api_key=Secret(TOKEN),
        base_url=f"{url}/mailgun",
        event_secrets=(Secret(SECRET),),
        **PLAIN,  # type: ignore[arg-type]
    )
    return Caller(MailgunProvider(settings), mailgun_events(settings))


def sinch(url: str, called: str) -> Caller:
    settings = SinchSettings(
        region="eu",
        service_plan_id="plan1",
        api_token=Secret(TOKEN),
        callback_url=f"{called}/v1/events/sinch",
        base_url=f"{url}/sinch",
        event_secrets=(Secret(SECRET),),
        **PLAIN,  # type: ignore[arg-type]
    )
    return Caller(SinchProvider(settings), sinch_events(settings))


def vonage(url: str, called: str) -> Caller:
    settings = VonageSettings(
        api_key="abcd1234",
        api_secret=Secret(TOKEN),
        callback_url=f"{called}/v1/events/vonage",
        base_url=f"{url}/vonage",
        event_secrets=(Secret(SECRET),),
        **PLAIN,  # type: ignore[arg-type]
    )
    return Caller(VonageProvider(settings), vonage_events(settings))


def notify(url: str, called: str, path: str = "notify") -> Caller:
    settings = NotifySettings(
        api_key=Secret(f"live-{ANOTHER_TOKEN}-{TOKEN}"),
        template_id=TOKEN,
        base_url=f"{url}/{path}",
        event_secrets=(Secret(SECRET),),
        **PLAIN,  # type: ignore[arg-type]
    )
    return Caller(NotifyProvider(settings), notify_events(settings))


def notify_email(url: str, called: str) -> Caller:
    return notify(url, called, "notify-email")


def twilio(url: str, called: str) -> Caller:
    settings = TwilioSettings(
        account_sid="AC" + "0" * 32,
        auth_token=Secret(TOKEN),
        callback_url=f"{called}/v1/events/twilio",
        callback_secret=Secret("our own"),
        base_url=url,
        **PLAIN,  # type: ignore[arg-type]
    )
    return Caller(TwilioProvider(settings), twilio_events(settings))


MAIL: Final = (resend, postmark, sendgrid, mailgun, notify_email)
TEXTS: Final = (sinch, vonage, notify, twilio)
VENDORS: Final = (*MAIL, *TEXTS)


@dataclass
class World:
    """A sandbox that calls an endpoint of ours."""

    sandbox: SandboxClient
    endpoint: Endpoint

    def change(self, **rules: Any) -> None:
        for channel in ("sms", "email"):
            self.sandbox.change(**{channel: {"events": {"delay_s": 0, **rules}}})

    def send(self, vendor: Any, to: str = "") -> tuple[Caller, str]:
        """One message through the adapter; its receipt."""
        caller: Caller = vendor(self.sandbox.http_url, self.endpoint.origin)
        message: Message = email(to or "ann@example.com") if vendor in MAIL else sms(to or "+447700900123")

        async def sending() -> Any:
            async def start() -> None:
                return None

            try:
                return await caller.provider.send(message, start=start)
            finally:
                await caller.provider.close()

        outcome = asyncio.run(sending())
        assert isinstance(outcome, Accepted), outcome
        return caller, outcome.receipt

    def read(self, caller: Caller) -> EventBatch:
        source = caller.source
        assert source is not None
        return asyncio.run(source.read(self.endpoint.get(), now=SystemClock().now()))


@pytest.fixture
def world() -> Iterator[World]:
    with closing(Endpoint()) as endpoint:
        settings = SandboxSettings(
            api_token=TOKEN,
            twilio_account_sid="AC" + "0" * 32,
            twilio_auth_token=TOKEN,
            events_url=f"{endpoint.origin}/v1/events/{{vendor}}",
            events_secret=SECRET,
        )
        with sandbox_in_thread(settings) as sandbox:
            world = World(sandbox, endpoint)
            world.change()
            yield world


def only(batch: EventBatch) -> ProviderEvent:
    (event,) = batch.events
    return event


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.__name__)
def test_an_event_names_the_message_as_the_send_did(world: World, vendor: Any) -> None:
    caller, receipt = world.send(vendor)
    event = only(world.read(caller))
    assert (event.kind, event.receipt, event.send_key) == (EventKind.DELIVERED, receipt, KEY)
    assert event.address == ("ann@example.com" if vendor in MAIL else "+447700900123")


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.__name__)
def test_what_did_not_arrive_is_told(world: World, vendor: Any) -> None:
    world.change(bounced={"next": 1})
    caller, receipt = world.send(vendor)
    event = only(world.read(caller))
    assert event.kind is (EventKind.BOUNCED_HARD if vendor in MAIL else EventKind.UNDELIVERED)
    assert (event.receipt, event.send_key) == (receipt, KEY)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.__name__)
def test_told_twice_it_is_the_same_event(world: World, vendor: Any) -> None:
    world.change(repeated={"next": 1})
    caller, _ = world.send(vendor)
    assert only(world.read(caller)).identity == only(world.read(caller)).identity


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.__name__)
def test_what_somebody_else_signed_is_refused(world: World, vendor: Any) -> None:
    world.change(forged={"next": 1})
    caller, _ = world.send(vendor)
    with pytest.raises(Forged):
        world.read(caller)


@pytest.mark.parametrize("vendor", TEXTS, ids=lambda vendor: vendor.__name__)
def test_a_customer_answers_stop(world: World, vendor: Any) -> None:
    world.change(stopped={"next": 1})
    caller, receipt = world.send(vendor)
    events = [only(world.read(caller)) for _ in range(2)]
    (answer,) = [event for event in events if event.receipt != receipt]
    assert answer.kind in (EventKind.REPLIED, EventKind.OPTED_OUT)
    assert (answer.address, answer.text, answer.send_key) == ("+447700900123", "STOP", "")


def test_one_bad_item_of_a_list_costs_nothing(world: World) -> None:
    world.change(faulty={"next": 1})
    caller, receipt = world.send(sendgrid)
    batch = world.read(caller)
    assert only(batch).receipt == receipt
    assert batch.faulty == ("no_id",)


@pytest.mark.parametrize(
    ("to", "kinds"),
    [
        ("delivered@resend.dev", {EventKind.DELIVERED}),
        ("bounced+one@resend.dev", {EventKind.BOUNCED_HARD}),
        ("complained@resend.dev", {EventKind.DELIVERED, EventKind.COMPLAINED}),
        ("suppressed@resend.dev", {EventKind.SUPPRESSED}),
    ],
)
def test_the_addresses_that_resend_keeps_for_tests(world: World, to: str, kinds: set[EventKind]) -> None:
    caller, _ = world.send(resend, to)
    assert {only(world.read(caller)).kind for _ in kinds} == kinds


def test_the_address_that_bounces_at_postmark(world: World) -> None:
    caller, _ = world.send(postmark, "hardbounce@bounce-testing.postmarkapp.com")
    assert only(world.read(caller)).kind is EventKind.BOUNCED_HARD
