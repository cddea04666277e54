"""Email through Postmark. Class L: messages can be searched by metadata; there is no idempotency key.

    POST {base_url}/email    JSON, X-Postmark-Server-Token    ->  200 {"ErrorCode": 0, "MessageID": ...}
    GET  {base_url}/messages/outbound?count=&offset=&messagestream=&metadata_sendonce={send key}

- The send key travels as the metadata field `sendonce` (names up to 20 characters, values up to 80). The
  search takes one metadata field, its rows show the metadata whole, and every webhook repeats it (echo).
- Presence is proven by a row whose metadata is our key. *Absence*: Postmark documents no time within which an
  accepted message is searchable, so a missing one proves nothing, unless the account's `index_lag` says from
  when on it does. Messages are forgotten after 45 days, or after 7 where an account chose so: an older
  message is never called absent.
- The body's `ErrorCode` decides, not the HTTP status: a 200 with another code than 0 is a refusal. A 500
  says that the message was lost "in most cases": unknown. 429 is about the rate of requests; no numbers
  and no Retry-After are documented.

Sources: postmarkapp.com/developer: api/overview (response and error codes), api/email-api,
api/messages-api (search, retention), api/server-api, user-guide/sending-email/custom-metadata-faq;
github.com/ActiveCampaign/postmark-python (models/outbound: rows and filters).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    Finding,
    Found,
    NoAnswer,
    Outcome,
    Reason,
    Rejected,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import EmailContent, Message, Promise, ProviderClass, Start
from sendonce.ports.secret import Secret
from sendonce.providers.api import (
    Api,
    ApiSettings,
    Codes,
    about_absence,
    absent,
    blame,
    body_of,
    code_in,
    email_of,
    json_body,
    mailbox,
    object_in,
    outcome_of,
    receipt_in,
    reject,
    rows_in,
    throttle,
)
from sendonce.providers.events import check_secrets
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response

FIELD = "sendonce"
RETENTION_S = 7 * 86_400
ROWS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PostmarkSettings(ApiSettings):
    """One Postmark server and message stream. Times in seconds."""

    server_token: Secret = field(metadata={"meaning": "The server's API token."})
    message_stream: str = field(default="outbound", metadata={"meaning": "The stream to send through."})
    index_lag_s: float | None = field(
        default=None,
        metadata={
            "meaning": "From when on a message that the search does not show was not accepted; empty: never.",
            "min": 1,
        },
    )
    event_secrets: tuple[Secret, ...] = field(
        default=(),
        metadata={
            "meaning": "Passwords or tokens that its webhooks come with; one, or two while they rotate."
        },
    )
    base_url: str = field(
        default="https://api.postmarkapp.com",
        metadata={"meaning": "Where the API is: Postmark, or a sandbox."},
    )

    def __post_init__(self) -> None:
        if not self.server_token:
            raise InvalidInput("must not be empty: it stands on the server's page", field="server_token")
        if not self.message_stream:
            raise InvalidInput("must not be empty: the default is outbound", field="message_stream")
        check_secrets(self.event_secrets)
        ApiSettings.__post_init__(self)


class PostmarkProvider:
    """`ports.provider.Provider` for one Postmark server. `now`: microseconds UTC."""

    def __init__(self, settings: PostmarkSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)

    @property
    def promise(self) -> Promise:
        return Promise(
            ProviderClass.LOOKUP,
            timeout_s=self._settings.timeout_s,
            index_lag_s=self._settings.index_lag_s or 0.0,
            lookup=True,
            echo=True,
        )

    async def send(self, message: Message, *, start: Start) -> Outcome:
        content = email_of(message)
        if not isinstance(content, EmailContent):
            return content
        body = body_of(lambda: json_body(_fields(message, content, self._settings.message_stream)))
        if not isinstance(body, bytes):
            return body
        headers = [*self._login(), ("Content-Type", "application/json")]
        answer = await self._api.send("/email", headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        query = {
            "count": str(ROWS_MAX),
            "offset": "0",
            "messagestream": self._settings.message_stream,  # without it, only one stream is searched
            f"metadata_{FIELD}": message.send_key,
        }
        answer = await self._api.get(f"/messages/outbound?{urlencode(query)}", self._login())
        if not isinstance(answer, Response):
            return NoAnswer(answer)
        finding = find(answer, message.send_key)
        if finding is not None:
            return finding
        return absent(message, self._now(), lag_s=self._settings.index_lag_s, retention_s=RETENTION_S)

    async def check(self) -> str:
        answer = await self._api.checked("/server", self._login(), "server_token")
        if answer.status != 200:
            raise ConfigError(f"{self._settings.base_url} answered {answer.status}: mend base_url")
        kind = code_in(object_in(answer.body).get("DeliveryType"))
        absence = about_absence(self._settings.index_lag_s)
        return f"server token accepted, delivery type {kind or 'unknown'}; {absence}"

    async def close(self) -> None:
        await self._api.close()

    def _login(self) -> list[tuple[str, str]]:
        return [("X-Postmark-Server-Token", self._settings.server_token.reveal())]


def _fields(message: Message, content: EmailContent, stream: str) -> dict[str, object]:
    fields: dict[str, object] = {
        "From": mailbox(content.sender),
        "To": message.to,
        "Subject": content.subject,
        "MessageStream": stream,
        "Metadata": {FIELD: message.send_key},
    }
    if content.text:
        fields["TextBody"] = content.text
    if content.html:
        fields["HtmlBody"] = content.html
    if content.reply_to:
        fields["ReplyTo"] = mailbox(content.reply_to)
    if content.headers:
        fields["Headers"] = [{"Name": name, "Value": value} for name, value in content.headers]
    return fields


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = object_in(answer.body)
    code = code_in(body.get("ErrorCode"))
    if answer.status == 200 and code in ("", "0"):
        receipt = receipt_in(body.get("MessageID"))
        return Accepted(receipt, "200") if receipt and code else Unknown("truncated", "no_receipt")
    if code == "300" and answer.status < 500:
        return _invalid(body.get("Message"))
    if answer.status == 200 and code not in CODES:
        return Rejected(Reason.OTHER, code)  # a refusal that hides behind a 200
    return outcome_of(answer, "" if code == "0" else code, CODES, now, pace=ThrottleScope.RATE)


def _invalid(said: object) -> Outcome:
    """300 is about one of the request's fields; its words say which."""
    words = said if isinstance(said, str) else ""
    if "'From'" in words:
        return AccountError(Reason.SENDER, "300")
    return Rejected(Reason.INVALID_ADDRESS if "'To'" in words else Reason.BAD_CONTENT, "300")


def find(answer: Response, send_key: str) -> Finding | None:
    """What a complete answer to a search proves; None where it found nothing. Pure."""
    rows = rows_in(object_in(answer.body).get("Messages"))
    if answer.status != 200 or rows is None:
        return NoAnswer(f"http_{answer.status}")
    for row in rows:
        metadata = row.get("Metadata")
        if isinstance(metadata, dict) and metadata.get(FIELD) == send_key:
            return Found(receipt_in(row.get("MessageID")))
    return NoAnswer("no_match") if rows else None  # others' rows: it did not search for what was asked


# postmarkapp.com/developer/api/overview#error-codes
CODES: Codes = {
    "10": blame(Reason.AUTHENTICATION),  # bad or missing token
    "100": lambda code: Failed(Reason.UNAVAILABLE, code),  # the API is offline for maintenance
    "400": blame(Reason.SENDER),  # sender signature not found
    "401": blame(Reason.SENDER),  # sender signature not confirmed
    "402": reject(Reason.BAD_CONTENT),  # invalid JSON
    "403": reject(Reason.BAD_CONTENT),  # incompatible JSON
    "405": blame(Reason.CREDIT),  # not allowed to send: out of credits
    "406": reject(Reason.SUPPRESSED, suppress=True),  # inactive: it bounced hard, or complained
    "409": blame(Reason.CONFIGURATION),  # JSON required
    "411": reject(Reason.BAD_CONTENT),  # forbidden attachment type
    "412": blame(Reason.AUTHENTICATION),  # the account is pending approval
    "413": blame(Reason.AUTHENTICATION),  # the account may not send
    "429": throttle(ThrottleScope.RATE),
    "1235": blame(Reason.CONFIGURATION),  # no such message stream
}
