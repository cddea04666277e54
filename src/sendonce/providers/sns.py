"""Messages of Amazon SNS: whose they are, and the answer to a new subscription.

    body -> expected topic? -> not too old? -> the certificate at its pinned host -> signature -> Message

A message names the certificate that it is signed for. Only `https://sns.<region>.amazonaws.com` is asked for
it, in the topic's own region, once per certificate; that this is Amazon's rests on TLS. Since anybody may
have a topic, and Amazon signs for all of them, only messages of the account's own topics are taken, and only
their subscriptions are confirmed. Signatures are of version 2 (SHA-256): a topic has version 1 (SHA-1) until
it is told otherwise.

SNS gives up after an hour, within which a message keeps its time. It does not try again after most 4xx, so a
certificate that cannot be fetched at the moment is `NotNow`, never a forgery.

Sources: docs.aws.amazon.com/sns/latest/dg: sns-verify-signature-of-message,
sns-message-and-json-formats (fields), sns-message-delivery-retries (tries), http-subscription-confirmation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from sendonce.core.value import value
from sendonce.ports.events import EventRequest, Forged, NotNow, Unreadable
from sendonce.providers import signatures
from sendonce.providers.call import ask
from sendonce.providers.events import json_object, moment_in
from sendonce.runtime.http_client import HttpClient, Limits, Response, encode_request, parse_url

if TYPE_CHECKING:
    from sendonce.providers.signatures import RSAPublicKey

Fetch = Callable[[str], Awaitable[bytes]]
"""The body of a GET. Raises `NotNow`. Only pinned URLs are asked for."""

AGE_MAX_S: Final = 2 * 3_600
FETCH_TIMEOUT_S: Final = 10.0
KEYS_MAX: Final = 16

NOTIFICATION: Final = "Notification"
CONFIRMATION: Final = "SubscriptionConfirmation"
UNSUBSCRIBED: Final = "UnsubscribeConfirmation"


@value
class SnsMessage:
    """A verified message. `kind`: one of the three above; `text`: what was published."""

    kind: str
    identity: str
    topic: str
    text: str
    published_at: int


class SnsInbox:
    """Takes in messages of these topics, whole ARNs. `fetch` is for tests."""

    def __init__(self, topics: tuple[str, ...], fetch: Fetch | None = None) -> None:
        self._topics = frozenset(topics)
        self._client = AmazonClient()
        self._fetch = fetch or self._client.fetch
        self._keys: dict[str, RSAPublicKey] = {}
        self._one_at_a_time = asyncio.Lock()

    async def take(self, request: EventRequest, *, now: int) -> SnsMessage:
        """The message, verified; a new subscription to an expected topic is confirmed. Raises as the port."""
        try:
            fields = json_object(request)
        except Unreadable:
            raise Forged("signature") from None
        topic = fields.get("TopicArn")
        if not isinstance(topic, str) or topic not in self._topics:
            raise Forged("source")
        published_at = moment_in(fields.get("Timestamp"))
        if (
            published_at is None
            or not -signatures.AGE_MAX_S <= (now - published_at) // 1_000_000 <= AGE_MAX_S
        ):
            raise Forged("age")
        if fields.get("SignatureVersion") != "2":
            raise Forged("signature_version")
        signed = signed_text(fields)
        key = await self._key(str(fields.get("SigningCertURL", "")), topic)
        signatures.sns(signed, str(fields.get("Signature", "")), key)
        message = SnsMessage(fields["Type"], fields["MessageId"], topic, fields["Message"], published_at)
        if message.kind == CONFIRMATION:
            await self._confirm(str(fields["SubscribeURL"]), topic)
        return message

    async def close(self) -> None:
        await self._client.close()

    async def _key(self, url: str, topic: str) -> RSAPublicKey:
        if not _CERTIFICATE.fullmatch(url) or urlsplit(url).hostname != host_of(topic):
            raise Forged("certificate")
        if url in self._keys:
            return self._keys[url]  # at once, whatever else is being fetched
        async with self._one_at_a_time:
            if url not in self._keys:
                pem = await self._fetch(url)
                try:
                    key = signatures.certificate_key(pem)
                except ValueError:
                    raise NotNow("certificate") from None  # a page of an error, say
                if len(self._keys) >= KEYS_MAX:
                    del self._keys[next(iter(self._keys))]
                self._keys[url] = key
            return self._keys[url]

    async def _confirm(self, url: str, topic: str) -> None:
        """Call the URL of a subscription, where it is Amazon's and for this topic."""
        try:
            parts = urlsplit(url)
            query = parse_qs(parts.query)
        except ValueError:
            raise Forged("confirmation") from None
        asked = query.get("Action") == ["ConfirmSubscription"] and query.get("TopicArn") == [topic]
        if parts.scheme != "https" or parts.netloc != host_of(topic) or not asked:
            raise Forged("confirmation")
        await self._fetch(url)


def host_of(topic: str) -> str:
    """Where the region of a topic is served. Raises `Forged` for what is no topic."""
    found = TOPIC.fullmatch(topic)
    if found is None:
        raise Forged("source")
    return f"sns.{found['region']}.amazonaws.com" + (".cn" if found["partition"] == "aws-cn" else "")


def signed_text(fields: Mapping[str, Any]) -> bytes:
    """What is signed: names and values of certain fields, a line each, by their order. Raises `Forged`."""
    kind = fields.get("Type")
    if kind == NOTIFICATION:
        names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
        if fields.get("Subject") is None:
            names.remove("Subject")
    elif kind in (CONFIRMATION, UNSUBSCRIBED):
        names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    else:
        raise Forged("source")
    values = [fields.get(name) for name in names]
    if not all(isinstance(each, str) for each in values):
        raise Forged("signature")
    lines = [f"{name}\n{each}\n" for name, each in zip(names, values, strict=True)]
    return "".join(lines).encode(errors="surrogatepass")


class AmazonClient:
    """Fetches from Amazon over TLS. It makes its client on the loop that first uses it."""

    def __init__(self) -> None:
        self._client: HttpClient | None = None

    async def fetch(self, url: str) -> bytes:
        """Raises `NotNow`."""
        client = self._client or HttpClient(limits=Limits(connections_max=2))
        self._client = client
        origin, path = parse_url(url)
        query = urlsplit(url).query
        data = encode_request(origin, "GET", path + (f"?{query}" if query else ""), _HEADERS, b"")
        answer = await ask(client, origin, data, timeout_s=FETCH_TIMEOUT_S)
        if not isinstance(answer, Response) or answer.status != 200:
            raise NotNow("amazon_unreachable")
        return answer.body

    async def close(self) -> None:
        """Idempotent; who fetches again opens again."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


TOPIC: Final = re.compile(
    r"arn:(?P<partition>aws|aws-cn|aws-us-gov):sns:(?P<region>[a-z]{2,}(-[a-z]+)+-[0-9]+):[0-9]{12}"
    r":[A-Za-z0-9_-]{1,256}",
    re.ASCII,
)
_CERTIFICATE = re.compile(
    r"https://sns\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/SimpleNotificationService-[0-9a-f]{32}\.pem", re.ASCII
)
_HEADERS = [("User-Agent", "sendonce"), ("Accept", "*/*")]
