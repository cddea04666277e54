"""Each vendor's adapter against its simulator, over real HTTP: what is promised is what happens.

The simulators answer in the shapes that the vendors document; effects are counted at the sandbox's door.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from sendonce.core.outcome import (
    Absent,
    Accepted,
    AccountError,
    Finding,
    Found,
    NoAnswer,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import EmailContent, Message, Provider, ProviderClass, SmsContent
from sendonce.ports.secret import Secret
from sendonce.providers.mailgun import MailgunProvider, MailgunSettings
from sendonce.providers.notify import NotifyProvider, NotifySettings
from sendonce.providers.postmark import PostmarkProvider, PostmarkSettings
from sendonce.providers.resend import ResendProvider, ResendSettings
from sendonce.providers.sendgrid import SendgridProvider, SendgridSettings
from sendonce.providers.ses import SesProvider, SesSettings
from sendonce.providers.sinch import SinchProvider, SinchSettings
from sendonce.providers.vonage import VonageProvider, VonageSettings
from sendonce.runtime.clock import SystemClock
from sendonce.testing.sandbox import SandboxClient, SandboxSettings, sandbox_in_thread

T = TypeVar("T")
TOKEN: Final = "3d844edf-8d35-48ac-975b-e847b4f122b0"  # a UUID, since the secrets of Notify are
ANOTHER_TOKEN: Final = "26785a09-ab16-4eb0-8407-a37497a57506"
KEY: Final = "5e" * 32
NOW: Final = SystemClock().now()


def email(to: str = "ann@example.com") -> Message:
    content = EmailContent(
        "Your parcel", "It's due. [ref:one]", "<p>It's due.</p>", "Shop, Ltd <shop@example.org>"
    )
    return Message("r:c:email", KEY, to, content, NOW, 3600)


def sms(to: str = "+447700900123") -> Message:
    return Message("r:c:sms", KEY, to, SmsContent("It's due. [ref:one]", "+447700900100"), NOW, 3600)


def resend(url: str, token: str) -> Provider:
    return ResendProvider(
        ResendSettings(api_key=Secret(token), base_url=f"{url}/resend", **PLAIN)  # type: ignore[arg-type]
    )


def postmark(url: str, token: str) -> Provider:
    return PostmarkProvider(
        PostmarkSettings(
            server_token=Secret(token),
            base_url=f"{url}/postmark",
            index_lag_s=1.0,
            **PLAIN,  # type: ignore[arg-type]
        )
    )


def ses(url: str, token: str) -> Provider:
    return SesProvider(
        SesSettings(
            region="eu-west-1",
            access_key_id="AKIDEXAMPLE",
            secret_access_key=Secret(token),
            configuration_set="reminders",
            base_url=f"{url}/ses",
            **PLAIN,  # type: ignore[arg-type]
        )
    )


def sinch(url: str, token: str) -> Provider:
    return SinchProvider(
        SinchSettings(
            region="eu",
            service_plan_id="plan1",
            api_token=Secret(token),
            index_lag_s=1.0,
            base_url=f"{url}/sinch",
            **PLAIN,  # type: ignore[arg-type]
        )
    )


def sendgrid(url: str, token: str) -> Provider:
    settings = SendgridSettings(
        api_key=Secret(token),
        base_url=f"{url}/sendgrid",
        **PLAIN,  # type: ignore[arg-type]
    )
    return SendgridProvider(settings)


def mailgun(url: str, token: str) -> Provider:
    return MailgunProvider(
        MailgunSettings(
            domain="mg.example.org",
            api_key=Secret(token),
            index_lag_s=1.0,
            base_url=f"{url}/mailgun",
            **PLAIN,  # type: ignore[arg-type]
        )
    )


def vonage(url: str, token: str) -> Provider:
    return VonageProvider(
        VonageSettings(
            api_key="abcd1234",
            api_secret=Secret(token),
            callback_url="https://us.example.com/events",
            base_url=f"{url}/vonage",
            **PLAIN,  # type: ignore[arg-type]
        )
    )


def notify(url: str, token: str, path: str = "notify") -> Provider:
    return NotifyProvider(
        NotifySettings(
            api_key=Secret(f"live-{ANOTHER_TOKEN}-{token}"),
            template_id=ANOTHER_TOKEN,
            index_lag_s=1.0,
            base_url=f"{url}/{path}",
            **PLAIN,  # type: ignore[arg-type]
        )
    )


def notify_email(url: str, token: str) -> Provider:
    return notify(url, token, "notify-email")


PLAIN: Final[dict[str, object]] = {"allow_plain_http": True, "timeout_s": 2.0}


class Vendor(NamedTuple):
    """`quota`: what a spent allowance is taken for: a quota, the account's credit, or another 429."""

    name: str
    channel: str
    message: Callable[..., Message]
    build: Callable[[str, str], Provider]
    pace: ThrottleScope
    quota: Throttled | AccountError = Throttled(ThrottleScope.QUOTA, "")


VENDORS: Final = [
    Vendor("resend", "email", email, resend, ThrottleScope.RATE),
    Vendor("postmark", "email", email, postmark, ThrottleScope.RATE, AccountError(Reason.CREDIT, "")),
    Vendor("ses", "email", email, ses, ThrottleScope.RATE),
    Vendor("sendgrid", "email", email, sendgrid, ThrottleScope.RATE, AccountError(Reason.CREDIT, "")),
    Vendor("mailgun", "email", email, mailgun, ThrottleScope.RATE, Throttled(ThrottleScope.RATE, "")),
    Vendor("vonage", "sms", sms, vonage, ThrottleScope.RATE, AccountError(Reason.CREDIT, "")),
    Vendor("notify", "sms", sms, notify, ThrottleScope.RATE),
    Vendor("notify-email", "email", email, notify_email, ThrottleScope.RATE),
    Vendor("sinch", "sms", sms, sinch, ThrottleScope.UNDECLARED, Throttled(ThrottleScope.UNDECLARED, "")),
]
BY_CLASS: Final = {
    name: vendor
    for vendor in VENDORS
    for name in [f"{vendor.name}-{vendor.build('http://127.0.0.1:1', TOKEN).promise.provider_class}"]
}


@pytest.fixture(scope="module")
def running() -> Iterator[SandboxClient]:
    settings = SandboxSettings(api_token=TOKEN, events_url="http://127.0.0.1:9/events")
    with sandbox_in_thread(settings) as client:
        yield client


@pytest.fixture
def sandbox(running: SandboxClient) -> SandboxClient:
    running.reset(rules=True)
    return running


every = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)


def of_class(wanted: ProviderClass) -> pytest.MarkDecorator:
    chosen = [vendor for name, vendor in BY_CLASS.items() if name.endswith(f"-{wanted}")]
    return pytest.mark.parametrize("vendor", chosen, ids=lambda vendor: vendor.name)


@every
def test_a_message_takes_effect_once_and_its_key_is_at_the_door(
    vendor: Vendor, sandbox: SandboxClient
) -> None:
    outcome = send(vendor, sandbox)
    assert isinstance(outcome, Accepted), outcome
    (effect,) = sandbox.effects()
    message = vendor.message()
    assert effect["receipt"] == outcome.receipt
    assert effect["to"].lstrip("+") == message.to.lstrip("+")
    assert effect["marker"] == "one"
    promise = vendor.build(sandbox.http_url, TOKEN).promise
    if promise.provider_class is ProviderClass.KEY:
        assert effect["key"] == KEY
    elif promise.lookup or promise.echo:
        assert KEY in effect["reference"] or effect["reference"] in KEY


@every
def test_the_login_is_checked_and_a_wrong_one_is_the_accounts_fault(
    vendor: Vendor, sandbox: SandboxClient
) -> None:
    said = run(vendor, sandbox, lambda provider: provider.check())
    assert "accepted" in said
    promise = vendor.build(sandbox.http_url, TOKEN).promise
    assert ("called absent" in said) == (promise.provider_class is ProviderClass.LOOKUP)
    outcome = send(vendor, sandbox, token=ANOTHER_TOKEN)
    assert isinstance(outcome, AccountError), outcome
    assert sandbox.effects() == []


@every
@pytest.mark.parametrize(
    ("form", "least", "most"),
    [("seconds", 3.0, 3.0), ("date", 1.0, 4.0), ("zero", None, None), ("absent", None, None)],
)
def test_a_429_is_throttled_with_its_wait(
    vendor: Vendor, sandbox: SandboxClient, form: str, least: float | None, most: float | None
) -> None:
    change(vendor, sandbox, throttle={"next": 1}, retry_after=form, retry_after_s=3)
    outcome = send(vendor, sandbox)
    assert isinstance(outcome, Throttled), outcome
    assert outcome.scope is vendor.pace
    if least is None or most is None:
        assert outcome.retry_after_s is None
    else:
        assert outcome.retry_after_s is not None
        assert least <= outcome.retry_after_s <= most
    assert sandbox.effects() == []


@every
def test_a_spent_allowance_is_told_from_a_rate(vendor: Vendor, sandbox: SandboxClient) -> None:
    change(vendor, sandbox, quota_limit=1)
    assert isinstance(send(vendor, sandbox), Accepted)
    outcome = send(vendor, sandbox)
    assert isinstance(outcome, Throttled | AccountError), outcome
    if isinstance(outcome, Throttled):
        outcome = replace(outcome, retry_after_s=None)
    assert replace(outcome, code="") == vendor.quota


@every
@pytest.mark.parametrize("fault", ["error_before", "error_after", "lost_before", "lost_after", "truncated"])
def test_what_may_have_arrived_is_unknown(vendor: Vendor, sandbox: SandboxClient, fault: str) -> None:
    change(vendor, sandbox, **{fault: {"next": 1}})
    outcome = send(vendor, sandbox)
    assert isinstance(outcome, Unknown), outcome
    assert len(sandbox.effects()) == (fault in ("error_after", "lost_after", "truncated"))


@every
def test_a_refused_recipient_and_a_refused_sender(vendor: Vendor, sandbox: SandboxClient) -> None:
    message = vendor.message()
    local = message.to[1:].split("@")[0]
    change(vendor, sandbox, recipients=[{"pattern": local, "refusal": "invalid"}])
    outcome = send(vendor, sandbox)
    assert isinstance(outcome, Rejected), outcome
    assert message.to not in repr(outcome)
    change(vendor, sandbox, recipients=None, refused_senders=".")
    outcome = send(vendor, sandbox)
    assert isinstance(outcome, AccountError), outcome
    assert sandbox.effects() == []


@of_class(ProviderClass.KEY)
def test_a_lost_answer_is_repeated_under_the_key_without_a_second_effect(
    vendor: Vendor, sandbox: SandboxClient
) -> None:
    change(vendor, sandbox, lost_after={"next": 1})
    assert isinstance(send(vendor, sandbox), Unknown)
    again = send(vendor, sandbox)
    assert isinstance(again, Accepted), again
    (effect,) = sandbox.effects()
    assert again.receipt == effect["receipt"]
    other = replace(vendor.message(), content=replace(vendor.message().content, text="Something else"))
    assert isinstance(send(vendor, sandbox, other), Unknown), "a key that was used for another text"


@of_class(ProviderClass.LOOKUP)
def test_a_lost_answer_is_found_by_our_key(vendor: Vendor, sandbox: SandboxClient) -> None:
    change(vendor, sandbox, lost_after={"next": 1}, lookup_error={"next": 1})
    assert isinstance(send(vendor, sandbox), Unknown)
    assert isinstance(look_up(vendor, sandbox), NoAnswer), "a search that is down proves nothing"
    (effect,) = sandbox.effects()
    assert look_up(vendor, sandbox) == Found(effect["receipt"])
    other = replace(vendor.message(), send_key="7a" * 32)
    assert look_up(vendor, sandbox, other) == Absent(believable=True)


@of_class(ProviderClass.LOOKUP)
def test_absence_is_believed_only_where_the_lag_is_stated_and_the_message_is_kept(
    vendor: Vendor, sandbox: SandboxClient
) -> None:
    change(vendor, sandbox, lookup_lag_s=60)
    assert isinstance(send(vendor, sandbox), Accepted)
    # It is missing, and was accepted: the core waits out `index_lag_s` before it believes this answer.
    assert look_up(vendor, sandbox) == Absent(believable=True)
    assert vendor.build(sandbox.http_url, TOKEN).promise.index_lag_s == 1.0
    old = replace(vendor.message(), frozen_at=NOW - 15 * 86_400 * 1_000_000)
    assert look_up(vendor, sandbox, old) == Absent(believable=False)


@pytest.mark.parametrize(
    ("name", "to", "kinds"),
    [
        ("resend", "delivered@resend.dev", ["delivered"]),
        ("resend", "bounced+label@resend.dev", ["bounced"]),
        ("resend", "complained@resend.dev", ["delivered", "complained"]),
        ("ses", "success@simulator.amazonses.com", ["delivered"]),
        ("ses", "bounce@simulator.amazonses.com", ["bounced"]),
        ("ses", "complaint@simulator.amazonses.com", ["delivered", "complained"]),
        ("postmark", "HardBounce@bounce-testing.postmarkapp.com", ["bounced"]),
    ],
)
def test_documented_test_addresses_are_accepted_and_told_of_later(
    name: str, to: str, kinds: list[str], sandbox: SandboxClient
) -> None:
    vendor = next(vendor for vendor in VENDORS if vendor.name == name)
    outcome = send(vendor, sandbox, email(to))
    assert isinstance(outcome, Accepted)
    deadline, told = time.monotonic() + 10, list[str]()
    while len(told) < len(kinds):
        assert time.monotonic() < deadline, told
        told = [event["kind"] for event in sandbox.events() if event["receipt"] == outcome.receipt]
    assert told == kinds


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notify", sms("+447700900111")),
        ("notify-email", email("simulate-delivered-2@notifications.service.gov.uk")),
    ],
)
def test_notifys_smoke_recipients_are_accepted_and_never_sent(
    name: str, message: Message, sandbox: SandboxClient
) -> None:
    vendor = next(vendor for vendor in VENDORS if vendor.name == name)
    assert isinstance(send(vendor, sandbox, message), Accepted)
    assert sandbox.effects() == []
    assert look_up(vendor, sandbox, message) == Absent(believable=True)


def test_postmarks_test_token_validates_and_never_sends(sandbox: SandboxClient) -> None:
    vendor = next(vendor for vendor in VENDORS if vendor.name == "postmark")
    assert isinstance(send(vendor, sandbox, token="POSTMARK_API_TEST"), Accepted)
    assert sandbox.effects() == []


@pytest.mark.parametrize("minutes", [-10, 10])
def test_ses_refuses_a_signature_from_a_wrong_clock(minutes: int, sandbox: SandboxClient) -> None:
    def build(url: str, token: str) -> Provider:
        settings = SesSettings(
            region="eu-west-1",
            access_key_id="AKIDEXAMPLE",
            secret_access_key=Secret(token),
            base_url=f"{url}/ses",
            **PLAIN,  # type: ignore[arg-type]
        )
        return SesProvider(settings, now=lambda: SystemClock().now() + minutes * 60_000_000)

    wrong = Vendor("ses", "email", email, build, ThrottleScope.RATE)
    assert isinstance(send(wrong, sandbox), AccountError)
    assert sandbox.effects() == []


def change(vendor: Vendor, sandbox: SandboxClient, **rules: Any) -> None:
    sandbox.change(**{vendor.channel: rules})


def send(
    vendor: Vendor, sandbox: SandboxClient, message: Message | None = None, *, token: str = TOKEN
) -> Outcome:
    chosen = message or vendor.message()
    return run(vendor, sandbox, lambda provider: provider.send(chosen, start=nothing), token=token)


def look_up(vendor: Vendor, sandbox: SandboxClient, message: Message | None = None) -> Finding:
    chosen = message or vendor.message()
    return run(vendor, sandbox, lambda provider: provider.look_up(chosen))


def run(
    vendor: Vendor, sandbox: SandboxClient, act: Callable[[Provider], Awaitable[T]], *, token: str = TOKEN
) -> T:
    async def bounded() -> T:
        provider = vendor.build(sandbox.http_url, token)
        try:
            async with asyncio.timeout(10):
                return await act(provider)
        finally:
            await provider.close()

    return asyncio.run(bounded())


async def nothing() -> None:
    pass
