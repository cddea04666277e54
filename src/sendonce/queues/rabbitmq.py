"""Hints over RabbitMQ: a quorum queue for each account, publisher confirms, one dead-letter exchange.

    sendonce.email.mail      quorum queue of the account "mail"
    sendonce.parked          exchange and quorum queue: what is no hint, and what was handed out too often

- A publication counts when the broker has confirmed it; one that no queue took comes back and is refused.
- Hints are pushed to each worker, up to `PREFETCH`; unacknowledged ones come again when it is gone.
- AMQP knows no delay for what is given back: it waits here, and comes again at once if this process dies.
- From 4.0 on the broker dead-letters what came back 20 times; the sweep then hints again. Workers keep in
  hand what has to wait, so it comes back only when one stops or dies.
- The client's own way to reconnect was seen to hang (mosquito/aio-pika#231, #632). So a connection
  is used until it fails, and made anew by the next call.

Sources: rabbitmq.com/docs/{quorum-queues, confirms, dlx, access-control}; AMQP 0-9-1 reference.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq import exceptions
from pamqp.common import FieldTable, FieldValue

from sendonce import telemetry
from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.ports.queue import Depth, Features, Hint, QueueUnavailable
from sendonce.ports.secret import Secret
from sendonce.queues.versions import check_version
from sendonce.queues.wire import Foreign, decode, encode
from sendonce.telemetry import tell

T = TypeVar("T")

OLDEST: Final = (3, 10)
"""What Debian 12 has, and the oldest that this was tested with."""
PREFETCH: Final = 2_000
PARKED_MAX: Final = 10_000
CALLBACK_TURNS: Final = 20
CONNECT_S: Final = 10.0
FAILURES: Final = (exceptions.AMQPError, OSError, asyncio.InvalidStateError, RuntimeError)
"""What the client raises when the broker, or the way to it, fails; RuntimeError where a writer was closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitmqSettings:
    """A RabbitMQ broker."""

    url: Secret = field(metadata={"meaning": "`amqps://USER:PASSWORD@HOST/VHOST`; `amqp://` without TLS."})
    prefix: str = field(default="sendonce", metadata={"meaning": "What the names of queues begin with."})

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", self.prefix):
            raise InvalidInput(f"{self.prefix!r:.80} must be letters, digits, '-' and '_'", field="prefix")
        parts = urlsplit(self.url.reveal())
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise InvalidInput("must begin with amqps:// or amqp:// and name a host", field="url")


class RabbitmqTransport:
    """`ports.queue.Transport` over AMQP 0-9-1."""

    kind = "rabbitmq"
    features = Features(redeliver_s=0.0)

    def __init__(self, settings: RabbitmqSettings) -> None:
        self.settings = settings
        self._queues: dict[str, RabbitmqQueue] = {}
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._connecting = asyncio.Lock()

    def queue(self, account: str, channel: Channel) -> RabbitmqQueue:
        if account not in self._queues:
            name = f"{self.settings.prefix}.{channel.value}.{account}"
            self._queues[account] = RabbitmqQueue(self, name, channel.value)
        return self._queues[account]

    @property
    def parked(self) -> str:
        return f"{self.settings.prefix}.parked"

    async def connection(self) -> aio_pika.abc.AbstractConnection:
        """The one connection, made anew where it has ended. Raises what the client raises."""
        async with self._connecting:
            if self._connection is None or self._connection.is_closed or _ended(self._connection):
                self._connection = None
                self._connection = await aio_pika.connect(
                    self.settings.url.reveal(), timeout=CONNECT_S, client_properties=_CLIENT
                )
            return self._connection

    async def check(self) -> str:
        where = _shown(self.settings.url)
        try:
            connection = await self.connection()
        except (exceptions.AuthenticationError, exceptions.ProbableAuthenticationError):
            raise ConfigError(f"{where} refused the login: mend user and password in the url") from None
        except FAILURES as error:
            # What the broker says to that comes where the client expects a greeting.
            if isinstance(error, exceptions.InvalidFrameError | exceptions.ConnectionNotAllowed):
                raise ConfigError(
                    f"{where}: the vhost is not there, or the user may not use it: {_RIGHTS}"
                ) from None
            raise ConfigError(
                f"{where} cannot be reached ({_words(error)}): mend the url, or start it"
            ) from None
        assert connection.transport is not None
        told = connection.transport.connection.server_properties
        product, version = _text(told.get("product")), _text(told.get("version"))
        if product != "RabbitMQ":
            raise ConfigError(f"{where} is {product or 'something'!r:.40} and not RabbitMQ: mend the url")
        check_version("RabbitMQ", version, OLDEST)
        for queue in self._queues.values():
            await self._checked(queue)
        return f"RabbitMQ {version}, {len(self._queues)} quorum queue(s)"

    async def _checked(self, queue: RabbitmqQueue) -> None:
        """Raises `ConfigError`."""
        try:
            await queue.depth()
        except QueueUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, exceptions.ChannelPreconditionFailed):
                raise ConfigError(
                    f"queue {queue.name} is there and of another type or with other arguments: delete it "
                    f"(`rabbitmqctl delete_queue {queue.name}`; no delivery is lost) or set another prefix"
                ) from None
            if isinstance(cause, exceptions.ChannelAccessRefused):
                raise ConfigError(f"the user may not use queue {queue.name}: {_RIGHTS}") from None
            raise ConfigError(f"queue {queue.name} cannot be used: {error}") from None

    async def close(self) -> None:
        for queue in self._queues.values():
            await queue.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            await _quietly(connection.close())
            for _ in range(CALLBACK_TURNS):  # the client's own last words are tasks that it waits for nowhere
                await asyncio.sleep(0)


class RabbitmqQueue:
    """`ports.queue.Queue`: one channel to publish and to ask, one that hints are pushed to."""

    def __init__(self, transport: RabbitmqTransport, name: str, channel: str) -> None:
        self.name = name
        self._transport = transport
        self._channel = channel
        self._asking: AbstractChannel | None = None
        self._taking: AbstractChannel | None = None
        self._arrived: deque[AbstractIncomingMessage] = deque()
        self._arrival = asyncio.Event()
        self._held: dict[str, AbstractIncomingMessage] = {}
        self._numbers = itertools.count(1)
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._giving_back: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()

    async def publish(self, hints: Sequence[Hint]) -> None:
        if hints:
            await self._tried(lambda: self._publish(hints))

    async def _publish(self, hints: Sequence[Hint]) -> None:
        channel = await self._ask()
        sent = await asyncio.gather(
            *(
                channel.default_exchange.publish(
                    aio_pika.Message(
                        encode(hint),
                        message_id=hint.name,
                        content_type="application/json",
                        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    ),
                    self.name,
                    mandatory=True,
                )
                for hint in hints
            ),
            return_exceptions=True,  # so that none is still under way when this returns
        )
        for one in sent:
            if isinstance(one, BaseException):
                raise one

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        return await self._tried(lambda: self._pull(limit, wait_s))

    async def _pull(self, limit: int, wait_s: float) -> list[Hint]:
        await self._take()
        if not self._arrived:
            self._arrival.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrival.wait()
            except TimeoutError:
                return []
        await self._take()  # it may have ended meanwhile, which wakes us too
        pulled: list[Hint] = []
        while self._arrived and len(pulled) < limit:
            message = self._arrived.popleft()
            try:
                hint = decode(message.body, self._channel)
            except Foreign as why:
                await self._park(message, str(why))
                continue
            receipt = f"{self.name}#{next(self._numbers)}"
            self._held[receipt] = message
            pulled.append(replace(hint, message_id=_message_id(message), receipt=receipt))
        return pulled

    async def ack(self, hints: Sequence[Hint]) -> None:
        found = [message for hint in hints if (message := self._let_go(hint.receipt)) is not None]
        if found:
            await self._tried(lambda: self._acknowledge(found))

    async def _acknowledge(self, messages: Sequence[AbstractIncomingMessage]) -> None:
        for message in messages:
            await message.ack()

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        if delay_s > 0:
            loop = asyncio.get_running_loop()
            for hint in hints:
                if hint.receipt in self._held:
                    self._later[hint.receipt] = loop.call_later(delay_s, self._give_back_later, hint.receipt)
            return
        found = [message for hint in hints if (message := self._let_go(hint.receipt)) is not None]
        if found:
            await self._tried(lambda: self._give_back(found))

    async def _give_back(self, messages: Sequence[AbstractIncomingMessage]) -> None:
        for message in messages:
            await message.reject(requeue=True)

    def _give_back_later(self, receipt: str) -> None:
        message = self._let_go(receipt)
        if message is not None:
            task = asyncio.get_running_loop().create_task(_quietly(message.reject(requeue=True)))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    def _let_go(self, receipt: str) -> AbstractIncomingMessage | None:
        timer = self._later.pop(receipt, None)
        if timer is not None:
            timer.cancel()
        return self._held.pop(receipt, None)

    async def extend(self, hints: Sequence[Hint]) -> None:
        """Not needed: they are ours while the connection lives (half an hour; then the channel is closed)."""

    async def depth(self) -> Depth:
        return await self._tried(self._depth)

    async def _depth(self) -> Depth:
        channel = await self._ask()
        declared = await channel.declare_queue(self.name, passive=True)
        return Depth(declared.declaration_result.message_count or 0, None)

    async def close(self) -> None:
        """What is held goes back. The next call opens it anew."""
        taking, asking = self._taking, self._asking
        self._forget()
        for task in list(self._giving_back):
            await task
        for channel in (taking, asking):
            if channel is not None and not channel.is_closed:
                await _quietly(channel.close())

    # Channels

    async def _ask(self) -> AbstractChannel:
        async with self._opening:
            if self._asking is None or self._asking.is_closed:
                connection = await self._transport.connection()
                channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                await self._declare(channel)
                self._asking = channel
            return self._asking

    async def _take(self) -> None:
        async with self._opening:
            if (
                self._taking is not None
                and not self._taking.is_closed
                and not _ended(self._transport._connection)
            ):
                return
            self._forget_taken()
            connection = await self._transport.connection()
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=PREFETCH)
            queue = await self._declare(channel)
            channel.close_callbacks.add(self._wake)
            await queue.consume(self._arrives)
            self._taking = channel

    async def _declare(self, channel: AbstractChannel) -> aio_pika.abc.AbstractQueue:
        parked = self._transport.parked
        exchange = await channel.declare_exchange(parked, aio_pika.ExchangeType.DIRECT, durable=True)
        beside = await channel.declare_queue(
            parked, durable=True, arguments={"x-queue-type": "quorum", "x-max-length": PARKED_MAX}
        )
        await beside.bind(exchange, routing_key=parked)
        return await channel.declare_queue(
            self.name,
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": parked,
                "x-dead-letter-routing-key": parked,
            },
        )

    async def _arrives(self, message: AbstractIncomingMessage) -> None:
        self._arrived.append(message)
        self._arrival.set()

    def _wake(self, *_: object) -> None:
        self._arrival.set()

    async def _park(self, message: AbstractIncomingMessage, why: str) -> None:
        """Lay it beside the queue with the reason, then let it go: killed in between, it is parked twice."""
        channel = await self._ask()
        exchange = await channel.get_exchange(self._transport.parked, ensure=False)
        headers: dict[str, FieldValue] = {"x-sendonce-reason": why, "x-sendonce-queue": self.name}
        await exchange.publish(
            aio_pika.Message(message.body, headers=headers, delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
            self._transport.parked,
        )
        await message.ack()
        tell(
            telemetry.HINT_PARKED,
            transport="rabbitmq",
            queue=self.name,
            message=_message_id(message),
            why=why,
        )

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except FAILURES as error:
            self._forget()
            raise QueueUnavailable(f"RabbitMQ: {_words(error)}") from error

    def _forget(self) -> None:
        self._asking = None
        self._forget_taken()

    def _forget_taken(self) -> None:
        """What came over a connection that has ended comes again over the next one."""
        self._taking = None
        self._arrived.clear()
        self._held.clear()
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()


_CLIENT: Final[FieldTable] = {"connection_name": "sendonce"}
_GRANTS: Final = r"'^sendonce' '^(sendonce|amq\.default)' '^sendonce'"
_RIGHTS: Final = f"`rabbitmqctl set_permissions -p VHOST USER {_GRANTS}` grants it"


def _ended(connection: aio_pika.abc.AbstractConnection | None) -> bool:
    transport = getattr(connection, "transport", None)
    return transport is None or bool(transport.connection.is_closed)


def _message_id(message: AbstractIncomingMessage) -> str:
    return str(message.message_id or "")[:80]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _words(error: BaseException) -> str:
    """The kind of failure, and the broker's own words where there are some; nothing of ours, which may be
    secret."""
    code = getattr(error, "reply_text", None) or getattr(error, "reason", None)
    return f"{type(error).__name__}{f': {code}' if isinstance(code, str) else ''}"[:200]


def _shown(url: Secret) -> str:
    parts = urlsplit(url.reveal())
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


async def _quietly(call: Coroutine[Any, Any, Any] | Awaitable[Any]) -> None:
    with suppress(*FAILURES):  # it has ended already, which gives back what it held
        await call
