"""Events of Amazon SES through an emulated SNS: its topic signs, and its certificate verifies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

import boto3  # type: ignore[import-untyped]
import pytest
from moto import mock_aws
from moto.sns.models import sns_backends

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, Forged, NotNow
from sendonce.providers.ses_events import SesEvents
from sendonce.providers.sns import AmazonClient, host_of
from sendonce.runtime.clock import SystemClock
from tests.conformance.test_event_sources import CERTIFICATE_URL, certificate, signed_by_sns, topic_of
from tests.integration.test_sandbox import Receiver

KEY = "5e" * 32
REGION = "us-east-1"
ACCOUNT = "123456789012"
BOUNCE = {
    "eventType": "Bounce",
    "bounce": {
        "feedbackId": "010001-1",
        "bounceType": "Permanent",
        "bounceSubType": "General",
        "bouncedRecipients": [{"emailAddress": "bounce@simulator.amazonses.com", "action": "failed"}],
        "timestamp": "2026-11-22T12:16:00.000Z",
    },
    "mail": {
        "timestamp": "2026-11-22T12:15:30.000Z",
        "messageId": "0102018e5d2f1a2b-1",
        "destination": ["bounce@simulator.amazonses.com"],
        "tags": {"ses:configuration-set": ["reminders"], "sendonce": [KEY]},
    },
}


@dataclass
class Topic:
    """A topic of the emulator with a subscription of ours, and what came to it."""

    arn: str
    receiver: Receiver
    fetched: list[str] = field(default_factory=list)

    def publish(self, message: str) -> EventRequest:
        boto3.client("sns", region_name=REGION).publish(TopicArn=self.arn, Message=message)
        headers, body = self.receiver.get()
        small = {name.lower(): value for name, value in headers.items()}
        return EventRequest("POST", self.receiver.url, small, body)

    async def fetch(self, url: str) -> bytes:
        """The certificate as the emulator serves it to a client inside its process."""
        self.fetched.append(url)
        name = url.rpartition("/")[2]
        pem = sns_backends[ACCOUNT][REGION]._message_public_keys.get(name)
        if pem is None:
            raise NotNow("no_such_certificate")
        return pem if isinstance(pem, bytes) else pem.encode()

    def read(self, *requests: EventRequest, topics: tuple[str, ...] = ()) -> list[EventBatch]:
        async def reading() -> list[EventBatch]:
            source = SesEvents(topics or (self.arn,), fetch=self.fetch)
            try:
                return [await source.read(request, now=SystemClock().now()) for request in requests]
            finally:
                await source.close()

        return asyncio.run(reading())


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    ours = "http://127.0.0.1.*"  # the endpoint is real
    emulator = mock_aws(config={"core": {"passthrough": {"urls": [ours]}}})
    with emulator, closing(Receiver()) as receiver:
        sns = boto3.client("sns", region_name=REGION)
        arn = sns.create_topic(Name="ses")["TopicArn"]
        sns.subscribe(TopicArn=arn, Protocol="http", Endpoint=receiver.url)
        yield Topic(arn, receiver)


def test_a_bounce_that_sns_signed_is_read(topic: Topic) -> None:
    (batch,) = topic.read(topic.publish(json.dumps(BOUNCE)))
    (event,) = batch.events
    assert event == ProviderEvent(
        event.identity,
        EventKind.BOUNCED_HARD,
        "0102018e5d2f1a2b-1",
        KEY,
        "bounce@simulator.amazonses.com",
        event.occurred_at,
        "Bounce/Permanent/General",
    )


def test_nothing_in_it_can_be_changed(topic: Topic) -> None:
    request = topic.publish(json.dumps(BOUNCE))
    whole = json.loads(request.body)
    for name in ("Message", "MessageId", "Timestamp", "Signature"):
        changed = {**whole, name: whole[name].replace(whole[name][5], "x", 1)}
        with pytest.raises(Forged):
            topic.read(replace(request, body=json.dumps(changed).encode()))


def test_another_topic_is_nobodys_and_its_certificate_is_not_asked_for(topic: Topic) -> None:
    request = topic.publish(json.dumps(BOUNCE))
    with pytest.raises(Forged, match="source"):
        topic.read(request, topics=(f"{topic.arn}2",))
    assert topic.fetched == []


def test_a_certificate_is_asked_for_once_and_only_at_amazon(topic: Topic) -> None:
    request = topic.publish(json.dumps(BOUNCE))
    assert len(topic.read(request, request, request)) == 3
    assert len(topic.fetched) == 1
    for url in (
        "https://sns.us-east-1.amazonaws.com.example.org/SimpleNotificationService-" + "0" * 32 + ".pem",
        "http://sns.us-east-1.amazonaws.com/SimpleNotificationService-" + "0" * 32 + ".pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-" + "0" * 32 + ".pem",
        "https://sns.us-east-1.amazonaws.com/other.pem",
        "https://sns.us-east-1.amazonaws.com@example.org/SimpleNotificationService-" + "0" * 32 + ".pem",
    ):
        changed = {**json.loads(request.body), "SigningCertURL": url}
        with pytest.raises(Forged, match="certificate"):
            topic.read(replace(request, body=json.dumps(changed).encode()))
    assert len(topic.fetched) == 1


def test_a_certificate_that_cannot_be_fetched_now_is_no_forgery(topic: Topic) -> None:
    request = topic.publish(json.dumps(BOUNCE))
    url = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-" + "0" * 32 + ".pem"
    changed = {**json.loads(request.body), "SigningCertURL": url}
    with pytest.raises(NotNow):
        topic.read(replace(request, body=json.dumps(changed).encode()))


def test_the_greeting_of_ses_is_no_event(topic: Topic) -> None:
    greeting = "Successfully validated SNS topic for Amazon SES event publishing."
    assert topic.read(topic.publish(greeting)) == [EventBatch()]


# Subscriptions, which the emulator confirms by itself: signed as Amazon signs


EXPECTED = topic_of("expected")
SUBSCRIBE = f"https://{host_of(EXPECTED)}/?" + urlencode(
    {"Action": "ConfirmSubscription", "TopicArn": EXPECTED, "Token": "t-1"}
)


def confirmation(url: str, *, at: str, arn: str = EXPECTED) -> EventRequest:
    fields = {
        "Type": "SubscriptionConfirmation",
        "MessageId": "m-1",
        "Token": "t-1",
        "TopicArn": arn,
        "Message": "You have chosen to subscribe.",
        "SubscribeURL": url,
        "Timestamp": at,
        "SignatureVersion": "2",
        "SigningCertURL": CERTIFICATE_URL,
    }
    return EventRequest("POST", "https://us.example.com/", {}, json.dumps(signed_by_sns(fields)).encode())


AT = "2026-12-01T00:00:00.000Z"
AT_MICROS = 1_796_083_200_000_000


def confirm(request: EventRequest) -> list[str]:
    """The URLs that were called beside the certificate's."""
    called: list[str] = []

    async def fetch(url: str) -> bytes:
        if url.endswith(".pem"):
            return await certificate(url)
        called.append(url)
        return b"<ConfirmSubscriptionResponse/>"

    async def reading() -> EventBatch:
        return await SesEvents((EXPECTED,), fetch=fetch).read(request, now=AT_MICROS)

    assert asyncio.run(reading()) == EventBatch()
    return called


def test_a_subscription_to_an_expected_topic_is_confirmed() -> None:
    assert confirm(confirmation(SUBSCRIBE, at=AT)) == [SUBSCRIBE]


@pytest.mark.parametrize(
    "url",
    [
        SUBSCRIBE.replace("https", "http"),
        SUBSCRIBE.replace("amazonaws.com", "amazonaws.com.example.org"),
        SUBSCRIBE.replace("https://", "https://sns.eu-west-1.amazonaws.com@"),
        SUBSCRIBE.replace("ConfirmSubscription", "Unsubscribe"),
        SUBSCRIBE.replace(EXPECTED.rpartition(":")[2], "another"),
        "https://[",
        "",
    ],
)
def test_a_subscription_elsewhere_is_not(url: str) -> None:
    with pytest.raises(Forged, match="confirmation"):
        confirm(confirmation(url, at=AT))


def test_a_subscription_to_another_topic_is_not() -> None:
    with pytest.raises(Forged, match="source"):
        confirm(confirmation(SUBSCRIBE, at=AT, arn=topic_of("another")))


def test_amazon_that_cannot_be_reached_is_asked_again_later() -> None:
    async def asking() -> None:
        client = AmazonClient()
        for _ in range(2):  # closed, it opens again
            with pytest.raises(NotNow, match="amazon_unreachable"):
                await client.fetch("https://127.0.0.1:1/certificate.pem?x=1")
            await client.close()
            await client.close()

    asyncio.run(asking())
