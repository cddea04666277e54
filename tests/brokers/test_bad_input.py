"""What may lie in a queue, and what may be wrong with a broker: parked or named, with what to do about it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aio_pika
import nats
import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError
from sendonce.ports.queue import Hint, Queue, QueueUnavailable, Transport
from sendonce.ports.secret import Secret
from sendonce.queues.nats import NatsSettings, NatsTransport
from sendonce.queues.rabbitmq import RabbitmqSettings, RabbitmqTransport
from sendonce.queues.sqs import SqsTransport
from sendonce.testing.conformance.queue import hint
from tests.brokers.places import KINDS, open_transport
from tests.brokers.servers import Nats, Rabbitmq, Server

FOREIGN = {
    b"": "not JSON",
    b"\xff\xfe": "not JSON",
    b"[1]": "not a JSON object",
    b'{"task":"celery"}': "no version",
    b'{"v":9,"id":1,"epoch":1,"version":1,"channel":"email"}': "of a version that this program does not know",
    b'{"v":1,"id":-1,"epoch":1,"version":1,"channel":"email"}': "id is no number that it can be",
    b'{"v":1,"id":1,"epoch":1,"version":1,"channel":"sms"}': "for another channel",
    b'{"v":1,"id":true,"epoch":1,"version":1,"channel":"email"}': "id is no number that it can be",
    b"x" * 2_000: "longer than 1024 bytes",
}


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with KINDS[request.param]() as running:
        yield running


def on(transport: Transport, body: Callable[[Queue], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await body(transport.queue("mail", Channel.EMAIL))
        finally:
            await transport.close()

    asyncio.run(run())


def test_what_is_no_hint_is_parked_with_a_reason_and_what_is_one_still_comes(server: Server) -> None:
    prefix = f"t{secrets.token_hex(4)}"
    transport = open_transport(server, prefix=prefix)
    # SQS itself takes no empty text and nothing that is not Unicode.
    foreign = {
        body: why for body, why in FOREIGN.items() if transport.kind != "sqs" or (body and body.isascii())
    }

    async def body(queue: Queue) -> None:
        await queue.depth()  # declares it
        for message in foreign:
            await _put(server, transport, message)
        await queue.publish([hint(1)])
        pulled: list[Hint] = []
        async with asyncio.timeout(30):
            while not pulled:
                pulled += await queue.pull(20, 0.5)
        assert [one.delivery_id for one in pulled] == [1]
        await queue.ack(pulled)
        assert await queue.pull(20, 0.2) == []
        assert (await queue.depth()).waiting == 0
        async with asyncio.timeout(30):
            reasons: list[str] = []
            while len(reasons) < len(foreign):
                reasons += await _parked(server, transport)
        assert sorted(reasons) == sorted(foreign.values())

    on(transport, body)


async def _put(server: Server, transport: Transport, body: bytes) -> None:
    match transport:
        case RabbitmqTransport():
            async with await aio_pika.connect(server.url) as connection:
                channel = await connection.channel()
                name = f"{transport.settings.prefix}.email.mail"
                await channel.default_exchange.publish(aio_pika.Message(body), name)
        case NatsTransport():
            client = await nats.connect(server.url)
            await client.jetstream().publish(f"{transport.settings.prefix}.hints.email.mail", body)
            await client.close()
        case SqsTransport():
            url = await transport.url_of(f"{transport.settings.prefix}-email-mail")
            await transport.call("SendMessage", {"QueueUrl": url, "MessageBody": body.decode()})


async def _parked(server: Server, transport: Transport) -> list[str]:
    """The reasons, as whoever looks into it finds them."""
    match transport:
        case RabbitmqTransport():
            async with await aio_pika.connect(server.url) as connection:
                channel = await connection.channel()
                queue = await channel.get_queue(transport.parked, ensure=False)
                found = []
                while (message := await queue.get(fail=False)) is not None:
                    found.append(str(message.headers["x-sendonce-reason"]))
                    await message.ack()
                return found
        case NatsTransport():
            client = await nats.connect(server.url)
            context = client.jetstream()
            stream = f"{transport.settings.prefix}-parked"
            last = (await context.stream_info(stream)).state.last_seq
            messages = [await context.get_msg(stream, number) for number in range(1, last + 1)]
            await client.close()
            return [str((message.headers or {})["Sendonce-Reason"]) for message in messages]
        case SqsTransport():
            url = await transport.url_of(transport.parked)
            told: dict[str, Any] = await transport.call(
                "ReceiveMessage",
                {"QueueUrl": url, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]},
            )
            return [
                str(message["MessageAttributes"]["sendonce-reason"]["StringValue"])
                for message in told.get("Messages", [])
            ]
    raise AssertionError(transport)


def check(transport: Transport) -> str:
    """What `sendonce check` says of it."""

    async def run() -> str:
        transport.queue("mail", Channel.EMAIL)
        try:
            with pytest.raises(ConfigError) as refused:
                await transport.check()
            return str(refused.value)
        finally:
            await transport.close()

    return asyncio.run(run())


def test_the_rights_that_the_documentation_names_are_enough(rabbitmq: Rabbitmq) -> None:
    transport = rabbit(rabbitmq, "usual:secret")

    async def body(queue: Queue) -> None:
        assert "1 quorum queue" in await transport.check()
        await queue.publish([hint(1)])
        await _put(rabbitmq, transport, b"foreign")
        pulled: list[Hint] = []
        async with asyncio.timeout(30):
            while not pulled or (await queue.depth()).waiting:
                pulled += await queue.pull(20, 0.2)
        await queue.ack(pulled)

    on(transport, body)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_answers(kind: str) -> None:
    nobody = KINDS[kind]()  # never started
    transport = open_transport(nobody)
    said = check(transport)
    assert f"127.0.0.1:{nobody.port}" in said
    assert "mend" in said
    nobody.close()

    async def body(queue: Queue) -> None:
        for call in (queue.publish([hint(1)]), queue.pull(1, 0.1), queue.depth()):
            with pytest.raises(QueueUnavailable):
                await call

    on(transport, body)


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[Rabbitmq]:
    with Rabbitmq() as running:
        running.control("add_user", "weak", "secret")
        running.control("set_permissions", "weak", "^nothing$", "^nothing$", "^nothing$")
        running.control("add_user", "stranger", "secret")
        running.control("add_user", "usual", "secret")
        rights = ("^sendonce", r"^(sendonce|amq\.default)", "^sendonce")
        running.control("set_permissions", "usual", *rights)
        yield running


def rabbit(server: Rabbitmq, user: str = "guest:guest", prefix: str = "sendonce") -> RabbitmqTransport:
    url = server.url.replace("guest:guest", user)
    return RabbitmqTransport(RabbitmqSettings(url=Secret(url), prefix=prefix))


def test_rabbitmq_says_what_is_wrong(rabbitmq: Rabbitmq) -> None:
    assert "refused the login: mend user and password" in check(rabbit(rabbitmq, "guest:wrong"))
    assert "or the user may not use it: `rabbitmqctl set_permissions" in check(
        rabbit(rabbitmq, "stranger:secret")
    )
    assert "may not use queue sendonce.email.mail: `rabbitmqctl" in check(rabbit(rabbitmq, "weak:secret"))

    async def classic() -> None:
        async with await aio_pika.connect(rabbitmq.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue("classic.email.mail", durable=True)

    asyncio.run(classic())
    said = check(rabbit(rabbitmq, prefix="classic"))
    assert "queue classic.email.mail is there and of another type" in said
    assert "rabbitmqctl delete_queue classic.email.mail" in said
    assert "wrong" not in said


def test_nats_says_what_is_wrong() -> None:
    weak = '{user: weak, password: secret, permissions: {publish: "nothing", subscribe: "_INBOX.>"}}'
    strong = f"A: {{ jetstream: enabled, users: [ {{user: a, password: secret}}, {weak} ] }}"
    users = f"accounts: {{ {strong}, B: {{ users: [ {{user: b, password: secret}} ] }} }}"
    with Nats(users=users) as server:

        def as_user(user: str, prefix: str = "sendonce") -> NatsTransport:
            url = server.url.replace("//", f"//{user}@")
            return NatsTransport(NatsSettings(url=Secret(url), prefix=prefix))

        assert "refused the login" in check(as_user("a:wrong"))
        assert "has no JetStream" in check(as_user("b:secret"))
        assert "must publish to and subscribe on sendonce.>" in check(as_user("weak:secret"))

        async def other() -> None:
            client = await nats.connect(server.url.replace("//", "//a:secret@"))
            await client.jetstream().add_stream(name="limits", subjects=["limits.hints.>"])
            await client.close()

        asyncio.run(other())
        assert "no work queue" in check(as_user("a:secret", "limits"))
    with Nats(jetstream=False) as server:
        assert "has no JetStream: start it with -js" in check(
            NatsTransport(NatsSettings(url=Secret(server.url)))
        )


def test_a_hint_says_what_it_says_and_is_small() -> None:
    from sendonce.queues.wire import BYTES_MAX, decode, encode

    one = hint(7, key="ü" * 200, epoch=2)
    assert decode(encode(one), "email") == one
    assert set(json.loads(encode(one))) == {"v", "id", "epoch", "version", "channel", "key"}
    long = hint(2**63 - 1, key="ü" * 2_000)
    assert len(encode(long)) <= BYTES_MAX
    assert decode(encode(long), "email").key == ""
