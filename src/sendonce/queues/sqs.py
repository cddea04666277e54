"""Hints over Amazon SQS: a standard queue for each account, in batches of ten, with long polling.

    sendonce-email-mail      standard queue of the account "mail"
    sendonce-parked          what is no hint, with the reason

- A standard queue drops no second message (a FIFO queue does for five minutes, and so what the sweep hints
  again): each publication is another one, and costs a look.
- What was received is hidden for `redeliver`, and longer where a worker says so; giving back makes it visible
  after a delay of up to twelve hours.
- `ApproximateNumberOfMessages` is approximate and up to a minute late; nothing here believes it to the unit.
- Each request costs: a pull waits up to `WAIT_S` for the first hint.
- SQS's own redrive gives messages new ids; nothing here uses it, nor a redrive policy.

Requests go through the project's own HTTP client, signed by `sendonce.aws`: eight actions of the JSON
protocol are less to carry than aiobotocore, botocore and aiohttp, and need no extra.

Sources: docs.aws.amazon.com: AWSSimpleQueueService/latest/APIReference/{API_SendMessageBatch,
API_ReceiveMessage, API_DeleteMessageBatch, API_ChangeMessageVisibilityBatch, API_GetQueueAttributes,
API_CreateQueue, CommonErrors}; SQSDeveloperGuide/{sqs-json-faqs, quotas-messages}.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sendonce import telemetry
from sendonce.aws import sign
from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.ports.queue import Depth, Features, Hint, QueueUnavailable
from sendonce.ports.secret import Secret
from sendonce.queues.wire import Foreign, decode, encode
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import HttpClient, Limits, NotSent, Response, encode_request, parse_url
from sendonce.telemetry import tell

BATCH: Final = 10
"""Entries of one request: SQS takes no more."""
BATCHES_AT_ONCE: Final = 16
REDELIVER_S: Final = 60
WAIT_S: Final = 2
CALL_S: Final = 10.0
STALE_MAX: Final = 4
DELAY_MAX_S: Final = 43_200
NAME_LENGTH_MAX: Final = 80
GONE: Final = ("QueueDoesNotExist", "NonExistentQueue", "AWS.SimpleQueueService.NonExistentQueue")
REFUSED: Final = ("AccessDenied", "AccessDeniedException")
LOGIN: Final = (
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "ExpiredToken",
    "ExpiredTokenException",
    "MissingAuthenticationToken",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsSettings:
    """Amazon SQS in one region, for one access key."""

    region: str = field(metadata={"meaning": "The AWS region, such as `eu-west-1`."})
    access_key_id: str = field(metadata={"meaning": "An access key with the rights of docs/transports.md."})
    secret_access_key: Secret = field(metadata={"meaning": "Its secret."})
    session_token: Secret = field(
        default_factory=lambda: Secret(""), metadata={"meaning": "The session's token, for a temporary key."}
    )
    url: str = field(
        default="", metadata={"meaning": "Where the API is; empty: the region's. Or one on this machine."}
    )
    prefix: str = field(default="sendonce", metadata={"meaning": "What the names of queues begin with."})
    allow_plain_http: bool = field(
        default=False, metadata={"meaning": "Allow an `http://` url; for one on this machine."}
    )
    ca_file: Path | None = field(
        default=None, metadata={"meaning": "PEM file of a private authority to trust besides."}
    )
    redeliver_s: float = field(
        default=float(REDELIVER_S),
        metadata={
            "meaning": "After so long a hint that nobody acknowledged is handed out again.",
            "min": 1.0,
        },
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)+-[0-9]+", self.region):
            raise InvalidInput(f"{self.region!r} must be a region such as eu-west-1", field="region")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", self.prefix):
            raise InvalidInput(f"{self.prefix!r} must be letters, digits, '-' and '_'", field="prefix")
        if not self.url:
            object.__setattr__(self, "url", f"https://sqs.{self.region}.amazonaws.com")
        if parse_url(self.url)[0].scheme == "http" and not self.allow_plain_http:
            raise InvalidInput("must be https:// (on this machine: allow_plain_http = true)", field="url")


class SqsError(Exception):
    """What SQS answered, or why it did not. `code` is its name for it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class SqsTransport:
    """`ports.queue.Transport` over the JSON protocol of SQS. `now`: microseconds UTC, for the signature."""

    kind = "sqs"

    def __init__(self, settings: SqsSettings, *, now: Callable[[], int] | None = None) -> None:
        self.settings = settings
        self.features = Features(
            float(round(settings.redeliver_s)), extends=True, delays=True, wait_s=float(WAIT_S)
        )
        self._now = now or SystemClock().now
        self._origin, self._path = parse_url(settings.url)
        self._queues: dict[str, SqsQueue] = {}
        self._client: HttpClient | None = None
        self._urls: dict[str, str] = {}
        self._opening = asyncio.Lock()

    def queue(self, account: str, channel: Channel) -> SqsQueue:
        if account not in self._queues:
            # A dot must not stand in a name; two underscores are in no channel, and in few accounts.
            name = f"{self.settings.prefix}-{channel.value}-{account.replace('.', '__')}"
            if len(name) > NAME_LENGTH_MAX:
                raise ConfigError(
                    f"{name} has {len(name)} letters, and SQS takes {NAME_LENGTH_MAX}: set a shorter prefix"
                )
            self._queues[account] = SqsQueue(self, name, channel.value)
        return self._queues[account]

    @property
    def parked(self) -> str:
        return f"{self.settings.prefix}-parked"

    async def url_of(self, name: str) -> str:
        """The queue's URL; it is created where it is not there. Raises `SqsError`."""
        async with self._opening:
            if name not in self._urls:
                try:
                    found = await self.call("GetQueueUrl", {"QueueName": name})
                except SqsError as error:
                    if error.code not in GONE:
                        raise
                    found = await self.call(
                        "CreateQueue",
                        {"QueueName": name, "Attributes": {"MessageRetentionPeriod": "1209600"}},
                    )
                self._urls[name] = str(found["QueueUrl"])
            return self._urls[name]

    def forget(self, name: str) -> None:
        self._urls.pop(name, None)

    async def call(self, action: str, fields: dict[str, Any], *, wait_s: float = 0.0) -> dict[str, Any]:
        """One action. Raises `SqsError`."""
        body = json.dumps(fields).encode()
        headers = [
            ("Content-Type", "application/x-amz-json-1.0"),
            ("X-Amz-Target", f"AmazonSQS.{action}"),
        ]
        data = encode_request(self._origin, "POST", self._path, self._signed(headers, body), body)
        for _ in range(STALE_MAX):
            connection = await self._http().acquire(self._origin)
            if isinstance(connection, NotSent):
                raise SqsError(connection.why)
            answer = await connection.request(data, timeout_s=CALL_S + wait_s)
            if not isinstance(answer, NotSent):
                break  # else it was closed while it was idle, and no byte has left
        if not isinstance(answer, Response):
            raise SqsError(answer.why)
        try:
            told = json.loads(answer.body) if answer.body else {}
        except ValueError:
            told = None
        if answer.status != 200 or not isinstance(told, dict):
            raise SqsError(_code(told) or str(answer.status))
        return told

    def _http(self) -> HttpClient:
        if self._client is None or self._client.closed:
            self._client = HttpClient(
                limits=Limits(connections_max=256, connect_timeout_s=CALL_S),
                ca_file=str(self.settings.ca_file) if self.settings.ca_file else None,
                allow_plain=self.settings.allow_plain_http,
            )
        return self._client

    def _signed(self, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
        settings = self.settings
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._now())
        headers = [*headers, ("X-Amz-Date", f"{moment:%Y%m%dT%H%M%SZ}")]
        if settings.session_token:
            headers.append(("X-Amz-Security-Token", settings.session_token.reveal()))
        signature = sign(
            "POST",
            self._path,
            [*headers, ("Host", self._origin.authority)],
            body,
            access_key_id=settings.access_key_id,
            secret=settings.secret_access_key,
            region=settings.region,
            service="sqs",
        )
        return [*headers, ("Authorization", signature)]

    async def check(self) -> str:
        where = self.settings.url
        for name in (*(queue.name for queue in self._queues.values()), self.parked):
            try:
                url = await self.url_of(name)
                told = await self.call("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]})
            except SqsError as error:
                raise ConfigError(_fix(where, name, error.code)) from None
            if told.get("Attributes", {}).get("FifoQueue") == "true":
                raise ConfigError(f"queue {name} is a FIFO queue: delete it or set another prefix")
        return f"SQS in {self.settings.region}, {len(self._queues)} standard queue(s)"

    async def close(self) -> None:
        for queue in self._queues.values():
            await queue.close()
        if self._client is not None:
            await self._client.close()


class SqsQueue:
    """`ports.queue.Queue`."""

    def __init__(self, transport: SqsTransport, name: str, channel: str) -> None:
        self.name = name
        self._transport = transport
        self._channel = channel
        self._held: set[str] = set()

    async def publish(self, hints: Sequence[Hint]) -> None:
        entries = [{"MessageBody": encode(hint).decode()} for hint in hints]
        await self._in_batches("SendMessageBatch", entries)

    async def pull(self, limit: int, wait_s: float) -> list[Hint]:
        """The first request waits; while there is more than one request brings, others follow."""
        pulled: list[Hint] = []
        wait = min(20, round(wait_s))
        while len(pulled) < limit:
            fields = {
                "MaxNumberOfMessages": min(BATCH, limit - len(pulled)),
                "VisibilityTimeout": round(self._transport.features.redeliver_s),
                "WaitTimeSeconds": 0 if pulled else wait,
            }
            try:
                told = await self._asked("ReceiveMessage", fields, wait_s=wait_s)
            except QueueUnavailable:
                if not pulled:
                    raise
                break
            messages = told.get("Messages") or []
            for message in messages:
                hint = await self._read(message)
                if hint is not None:
                    pulled.append(hint)
            if len(messages) < fields["MaxNumberOfMessages"]:
                break
        return pulled

    async def _read(self, message: dict[str, Any]) -> Hint | None:
        receipt, id_ = str(message["ReceiptHandle"]), str(message["MessageId"])
        try:
            hint = decode(str(message.get("Body", "")).encode(), self._channel)
        except Foreign as why:
            await self._park(message, receipt, str(why))
            return None
        self._held.add(receipt)
        return replace(hint, message_id=id_, receipt=receipt)

    async def _park(self, message: dict[str, Any], receipt: str, why: str) -> None:
        """Lay it beside the queue with the reason, then let it go: killed in between, it is parked twice."""
        try:
            parked = await self._transport.url_of(self._transport.parked)
            text = {"DataType": "String"}
            await self._transport.call(
                "SendMessage",
                {
                    "QueueUrl": parked,
                    "MessageBody": str(message.get("Body", ""))[:100_000] or " ",
                    "MessageAttributes": {
                        "sendonce-reason": {**text, "StringValue": why},
                        "sendonce-queue": {**text, "StringValue": self.name},
                    },
                },
            )
        except SqsError as error:
            raise QueueUnavailable(f"SQS: {error.code}") from error
        await self._asked("DeleteMessage", {"ReceiptHandle": receipt})
        id_ = str(message["MessageId"])
        tell(telemetry.HINT_PARKED, transport="sqs", queue=self.name, message=id_, why=why)

    async def ack(self, hints: Sequence[Hint]) -> None:
        receipts = self._let_go(hints)
        await self._in_batches("DeleteMessageBatch", [{"ReceiptHandle": each} for each in receipts])

    async def nack(self, hints: Sequence[Hint], delay_s: float) -> None:
        await self._hide(self._let_go(hints), min(DELAY_MAX_S, round(delay_s)))

    async def extend(self, hints: Sequence[Hint]) -> None:
        held = [hint.receipt for hint in hints if hint.receipt in self._held]
        await self._hide(held, round(self._transport.features.redeliver_s))

    async def _hide(self, receipts: Sequence[str], seconds: int) -> None:
        entries = [{"ReceiptHandle": each, "VisibilityTimeout": seconds} for each in receipts]
        await self._in_batches("ChangeMessageVisibilityBatch", entries)

    def _let_go(self, hints: Sequence[Hint]) -> list[str]:
        found = [hint.receipt for hint in hints if hint.receipt in self._held]
        self._held.difference_update(found)
        return found

    async def depth(self) -> Depth:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = await self._asked("GetQueueAttributes", {"AttributeNames": names})
        counts = told.get("Attributes", {})
        return Depth(*(int(counts.get(name, 0)) for name in names))

    async def close(self) -> None:
        """What is held goes back. The next call opens it anew."""
        held = list(self._held)
        self._held.clear()
        with suppress(QueueUnavailable):  # then it comes again when its time is over
            await self._hide(held, 0)

    async def _in_batches(self, action: str, entries: Sequence[dict[str, Any]]) -> None:
        """Of receipts that SQS does not know any more nothing is said: somebody else has them."""
        batches = [entries[at : at + BATCH] for at in range(0, len(entries), BATCH)]
        for at in range(0, len(batches), BATCHES_AT_ONCE):
            some = batches[at : at + BATCHES_AT_ONCE]
            told = await asyncio.gather(
                *(self._batch(action, batch) for batch in some),
                return_exceptions=True,  # so that none is still under way when this returns
            )
            for one in told:
                if isinstance(one, BaseException):
                    raise one

    async def _batch(self, action: str, entries: Sequence[dict[str, Any]]) -> None:
        numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
        told = await self._asked(action, {"Entries": numbered})
        failed = told.get("Failed") or []
        if action == "SendMessageBatch" and failed:
            raise QueueUnavailable(f"SQS did not take {len(failed)} of {len(entries)} hints")

    async def _asked(self, action: str, fields: dict[str, Any], *, wait_s: float = 0.0) -> dict[str, Any]:
        try:
            url = await self._transport.url_of(self.name)
            return await self._transport.call(action, {"QueueUrl": url, **fields}, wait_s=wait_s)
        except SqsError as error:
            if error.code in GONE:
                self._transport.forget(self.name)  # made anew by the next call
            raise QueueUnavailable(f"SQS: {error.code}") from error


def _code(told: object) -> str:
    """The error's name, without its namespace."""
    named = told.get("__type") or told.get("code") if isinstance(told, dict) else ""
    found = re.search(r"[A-Za-z.]+$", named) if isinstance(named, str) else None
    return found[0] if found else ""


def _fix(where: str, name: str, code: str) -> str:
    if code in LOGIN:
        return f"{where} refused the access key ({code}): mend it and its secret, or this machine's clock"
    if code in REFUSED:
        return f"the access key may not use queue {name}: grant the rights of docs/transports.md"
    return f"queue {name} at {where} cannot be used ({code}): mend region or url"
