"""Hints over NATS JetStream: one work-queue stream, a durable pull consumer for each account.

    stream    sendonce                  subjects sendonce.hints.>, work queue, on disk
    consumer  email-mail                of sendonce.hints.email.mail
    stream    sendonce-parked           subject sendonce.parked: what is no hint, with the reason

- A publication counts when the stream has stored it. Its `Nats-Msg-Id` is `delivery:epoch`; the window in
  which the stream drops a second one is shorter than the time after which the sweep hints again, which must
  arrive.
- What was pulled comes again after `redeliver` unless it is acknowledged, given back (with a delay that the
  server keeps) or extended. At most `PENDING_MAX` are with workers at once.
- A late acknowledgement of who held it before is taken by the server (nats-io/nats-server#4786): no harm,
  since the row in the store decides.
- A dot in an account's name would be a level of the subject; it is written `=`.

Nothing newer than NATS 2.9 is used. Sources: docs.nats.io/nats-concepts/jetstream/{streams, consumers}.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from sendonce import telemetry
from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.ports.queue import Depth, Features, Hint, QueueUnavailable
from sendonce.ports.secret import Secret
from sendonce.queues.versions import check_version
from sendonce.queues.wire import Foreign, decode, encode
from sendonce.telemetry import tell

T = TypeVar("T")

OLDEST: Final = (2, 9)
"""What Debian 12 has, and the oldest that this was tested with."""
REDELIVER_S: Final = 60.0
DEDUPE_S: Final = 10.0
PENDING_MAX: Final = 4_000
PARKED_MAX: Final = 10_000
CALL_S: Final = 5.0
FAILURES: Final = (Error, OSError, TimeoutError, asyncio.InvalidStateError)
"""What the client raises when the server, or the way to it, fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """A NATS server, or several of a cluster."""

    url: Secret = field(
        metadata={"meaning": "`tls://HOST:4222` or `nats://HOST:4222`; several with commas between."}
    )
    prefix: str = field(default="sendonce", metadata={"meaning": "What streams and subjects begin with."})
    credentials: Path | None = field(
        default=None,
        metadata={"meaning": "The file with the user's JWT and key, where the server wants one."},
    )
    redeliver_s: float = field(
        default=REDELIVER_S,
        metadata={
            "meaning": "After so long a hint that nobody acknowledged is handed out again.",
            "min": 1.0,
        },
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", self.prefix):
            raise InvalidInput(f"{self.prefix!r:.80} must be letters, digits, '-' and '_'", field="prefix")
        for each in self.url.reveal().split(","):
            parts = urlsplit(each.strip())
            if parts.scheme not in ("nats", "tls") or not parts.hostname:
                raise InvalidInput("must begin with tls:// or nats:// and name a host", field="url")


class NatsTransport:
    """`ports.queue.Transport` over JetStream."""

    kind = "nats"

    def __init__(self, settings: NatsSettings) -> None:
        self.settings = settings
        self.features = Features(settings.redeliver_s, extends=True, delays=True, dedupes=True)
        self._queues: dict[str, NatsQueue] = {}
        self.client: Client | None = None
        self._connecting = asyncio.Lock()
        self._last_error = ""

    def queue(self, account: str, channel: Channel) -> NatsQueue:
        if account not in self._queues:
            self._queues[account] = NatsQueue(self, account.replace(".", "="), channel.value)
        return self._queues[account]

    async def context(self) -> JetStreamContext:
        """The way to JetStream, over a connection made anew where it has ended. The streams are there."""
        async with self._connecting:
            if self.client is None or not self.client.is_connected:
                await self.drop()
                self._last_error = ""
                client = Client()
                try:
                    await client.connect(
                        [each.strip() for each in self.settings.url.reveal().split(",")],
                        name="sendonce",
                        allow_reconnect=False,
                        max_reconnect_attempts=1,
                        connect_timeout=int(CALL_S),
                        user_credentials=(
                            str(self.settings.credentials) if self.settings.credentials else None
                        ),
                        error_cb=self._heard,
                    )
                except BaseException:
                    await _quietly(client.close())  # it leaves its socket open
                    raise
                self.client = client
                try:
                    await self._make_streams(client.jetstream(timeout=CALL_S))
                except BaseException:
                    await self.drop()
                    raise
            return self.client.jetstream(timeout=CALL_S)

    async def _make_streams(self, context: JetStreamContext) -> None:
        for wanted in (self.stream(), self.parked()):
            assert wanted.name is not None
            try:
                await context.stream_info(wanted.name)
            except NotFoundError:
                await context.add_stream(wanted)

    def stream(self) -> StreamConfig:
        prefix = self.settings.prefix
        return StreamConfig(
            name=prefix,
            subjects=[f"{prefix}.hints.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            duplicate_window=DEDUPE_S,
        )

    def parked(self) -> StreamConfig:
        prefix = self.settings.prefix
        return StreamConfig(
            name=f"{prefix}-parked",
            subjects=[f"{prefix}.parked"],
            storage=StorageType.FILE,
            max_msgs=PARKED_MAX,
        )

    async def _heard(self, error: Exception) -> None:
        """Violations of rights come beside the answers, which never come."""
        self._last_error = str(error)[:200]

    async def check(self) -> str:
        where = _shown(self.settings.url)
        try:
            context = await self.context()
            assert self.client is not None
            told = self.client.connected_server_version
            version = f"{told.major}.{told.minor}.{told.patch}"
            check_version("NATS", version, OLDEST)
            await self._check_stream(context)
            for queue in self._queues.values():
                await queue.checked(context)
        except ServiceUnavailableError:
            raise ConfigError(f"{where} has no JetStream: start it with -js") from None
        except APIError as error:
            if error.err_code in (10039, 10076):  # not enabled for the account, or at all
                raise ConfigError(
                    f"{where} has no JetStream: start it with -js, or enable it for the account"
                ) from None
            raise ConfigError(
                f"{where} refuses ({error.description}): mend that, or set another prefix"
            ) from None
        except FAILURES as error:
            if "ermission" in self._last_error:
                raise ConfigError(
                    f"{where}: {self._last_error}: the user must publish to and subscribe on "
                    f"{self.settings.prefix}.>, $JS.API.>, $JS.ACK.> and _INBOX.>"
                ) from None
            if "uthorization" in str(error) + self._last_error:
                raise ConfigError(f"{where} refused the login: mend the url or the credentials") from None
            raise ConfigError(
                f"{where} cannot be reached ({type(error).__name__}): mend the url, or start it"
            ) from None
        return f"NATS {version} with JetStream, {len(self._queues)} consumer(s)"

    async def _check_stream(self, context: JetStreamContext) -> None:
        wanted = self.stream()
        assert wanted.name is not None
        there = (await context.stream_info(wanted.name)).config
        if there.retention != wanted.retention or list(there.subjects or []) != wanted.subjects:
            raise ConfigError(
                f"stream {wanted.name} is there and no work queue of {wanted.subjects}: delete it "
                f"(`nats stream rm {wanted.name}`; no delivery is lost) or set another prefix"
            )

    async def drop(self) -> None:
        """End the connection; the next call makes another."""
        client, self.client = self.client, None
        if client is not None:
            await _quietly(client.close())

    async def close(self) -> None:
        for queue in self._queues.values():
            await queue.close()
        await self.drop()


class NatsQueue:
    """`ports.queue.Queue`: a subject and its consumer."""

    def __init__(self, transport: NatsTransport, account: str, channel: str) -> None:
        self._transport = transport
        self._channel = channel
        self._durable = f"{channel}-{account}"
        self._subject = f"{transport.settings.prefix}.hints.{channel}.{account}"
        self._stream = transport.settings.prefix
        self._client: Client | None = None
        self._consumer: JetStreamContext.PullSubscription | None = None
        self._held: dict[str, Msg] = {}
        self._numbers = itertools.count(1)
        self._opening = asyncio.Lock()

    async def publish(self, hints: Sequence[Hint]) -> None:
        if hints:
            await self._tried(lambda: self._publish(hints))

    async def _publish(self, hints: Sequence[Hint]) -> None:
        context = await self._transport.context()
        sent = await asyncio.gather(
            *(
                context.publish(
                    self._subject, encode(hint), stream=self._stream, headers={"Nats-Msg-Id": hint.name}
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
        consumer = await self._take()
        try:
            messages = await consumer.fetch(limit, timeout=max(0.01, wait_s))
        except TimeoutError:
            return []
        pulled: list[Hint] = []
        for message in messages:
            try:
                hint = decode(message.data, self._channel)
            except Foreign as why:
                await self._park(message, str(why))
                continue
            receipt = f"{self._durable}#{next(self._numbers)}"
            self._held[receipt] = message
            pulled.append(replace(hint, message_id=self._message_id(message), receipt=receipt))
        return pulled

    async def ack(self, hints: Sequence[Hint]) -> None:
        found = [message for hint in hints if (message := self._held.pop(hint.receipt, None)) is not None]
        if found:
            await self._tried(lambda: _each(found, lambda message: message.ack()))

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        found = [message for hint in hints if (message := self._held.pop(hint.receipt, None)) is not None]
        if found:
            await self._tried(lambda: _each(found, lambda message: message.nak(delay_s or None)))

    async def extend(self, hints: Sequence[Hint]) -> None:
        found = [message for hint in hints if (message := self._held.get(hint.receipt)) is not None]
        if found:
            await self._tried(lambda: _each(found, lambda message: message.in_progress()))

    async def depth(self) -> Depth:
        return await self._tried(self._depth)

    async def _depth(self) -> Depth:
        await self._take()
        context = await self._transport.context()
        info = await context.consumer_info(self._stream, self._durable)
        return Depth(info.num_pending or 0, info.num_ack_pending or 0)

    async def close(self) -> None:
        """What is held goes back. The next call opens it anew."""
        held, self._consumer = list(self._held.values()), None
        self._held.clear()
        await _quietly(_each(held, lambda message: message.nak()))

    async def checked(self, context: JetStreamContext) -> None:
        """Raises `ConfigError`, and what the client raises."""
        await self._take()
        config = (await context.consumer_info(self._stream, self._durable)).config
        if config.filter_subject != self._subject or config.ack_policy != AckPolicy.EXPLICIT:
            raise ConfigError(
                f"consumer {self._durable} of stream {self._stream} is there and of another "
                f"kind: delete it (`nats consumer rm {self._stream} {self._durable}`; no delivery is lost), "
                "or set another prefix"
            )

    async def _take(self) -> JetStreamContext.PullSubscription:
        async with self._opening:
            context = await self._transport.context()
            if self._consumer is None or self._client is not self._transport.client:
                self._held.clear()  # of a connection that has ended
                await self._make_consumer(context)
                self._consumer = await context.pull_subscribe_bind(self._durable, self._stream)
                self._client = self._transport.client
            return self._consumer

    async def _make_consumer(self, context: JetStreamContext) -> None:
        try:
            await context.consumer_info(self._stream, self._durable)
        except NotFoundError:
            await context.add_consumer(
                self._stream,
                ConsumerConfig(
                    durable_name=self._durable,
                    filter_subject=self._subject,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=self._transport.settings.redeliver_s,
                    max_ack_pending=PENDING_MAX,
                    max_deliver=-1,
                ),
            )

    async def _park(self, message: Msg, why: str) -> None:
        """Lay it beside the queue with the reason, then let it go: killed in between, it is parked twice."""
        context = await self._transport.context()
        headers = {"Sendonce-Reason": why, "Sendonce-Queue": self._durable}
        await context.publish(f"{self._stream}.parked", message.data, headers=headers)
        await message.term()
        tell(
            telemetry.HINT_PARKED,
            transport="nats",
            queue=self._durable,
            message=self._message_id(message),
            why=why,
        )

    def _message_id(self, message: Msg) -> str:
        return f"{self._stream}:{message.metadata.sequence.stream}"

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except FAILURES as error:
            self._consumer = None
            await self._transport.drop()
            raise QueueUnavailable(f"NATS: {type(error).__name__}") from error


async def _each(messages: Sequence[Msg], say: Callable[[Msg], Awaitable[None]]) -> None:
    for message in messages:
        await say(message)


async def _quietly(call: Awaitable[None]) -> None:
    with suppress(*FAILURES):  # it has ended already
        await call


def _shown(url: Secret) -> str:
    parts = urlsplit(url.reveal().split(",")[0].strip())
    return f"{parts.scheme}://{parts.hostname}:{parts.port or 4222}"
