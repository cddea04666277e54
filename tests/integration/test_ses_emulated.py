"""Amazon SES as `moto` emulates it: another's reading of the API, beside the simulator of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from email import message_from_string, policy

import pytest
from moto.server import ThreadedMotoServer
from moto.ses.models import SESBackend, ses_backends

from sendonce.core.outcome import Accepted, Outcome, Reason, Rejected
from sendonce.ports.provider import EmailContent, Message
from sendonce.ports.secret import Secret
from sendonce.providers.ses import SesProvider, SesSettings
from tests.integration.test_vendors import email

REGION = "eu-west-1"
ACCOUNT = "123456789012"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def backend(url: str) -> Iterator[SESBackend]:
    made = ses_backends[ACCOUNT][REGION]
    made.reset()
    yield made
    made.reset()


def sent(url: str, message: Message) -> Outcome:
    settings = SesSettings(
        region=REGION,
        access_key_id="AKIAIOSFODNN7EXAMPLE",
        secret_access_key=Secret("secret"),
        base_url=url,
        allow_plain_http=True,
    )

    async def started() -> None:
        pass

    async def send() -> Outcome:
        provider = SesProvider(settings)
        try:
            return await provider.send(message, start=started)
        finally:
            await provider.close()

    return asyncio.run(send())


def test_a_message_arrives_whole_and_for_its_one_recipient(url: str, backend: SESBackend) -> None:
    message = email("ann@example.com")
    assert isinstance(message.content, EmailContent)
    backend.verify_domain(message.content.sender.rpartition("@")[2].rstrip(">"))
    outcome = sent(url, message)
    (kept,) = backend.sent_messages
    assert outcome == Accepted(kept.id, "200")
    assert set(kept.destinations) == {"ann@example.com"}  # moto adds the message's own `To`
    mail = message_from_string(kept.raw_data, policy=policy.default)
    assert mail["Subject"] == message.content.subject
    body = mail.get_body(("plain",))
    assert body is not None
    assert body.get_content().rstrip() == message.content.text.rstrip()


def test_a_sender_that_nobody_verified_is_refused_and_nothing_is_sent(url: str, backend: SESBackend) -> None:
    # The name of the error is read; AWS's words for this one, which hold the account, are not those of moto.
    assert sent(url, email("ann@example.com")) == Rejected(Reason.BAD_CONTENT, "MessageRejected")
    assert backend.sent_messages == []
