"""Email through Twilio SendGrid's v3 API. Class N with echo: no idempotency key, and no search for everybody.

    POST {base_url}/v3/mail/send    JSON, Bearer    ->  202, empty, X-Message-Id: ...

- The receipt is in a header; a 202 without it is unknown: a gateway may have spoken.
- Echo: the send key is the custom argument `sendonce` (10,000 bytes are allowed), which the event webhook
  repeats in every event. The Email Activity search is a paid add-on of six requests a minute, and neither it
  nor the logs promise when an accepted message shows up: `look_up` is not offered.
- Pace: a 429 is about the requests of the endpoint, and X-RateLimit-Reset says until when (epoch seconds);
  it is read where no Retry-After stands.
- There are no codes, only words and the field they are about. A suppressed address is accepted, and an event
  `dropped` follows.
- A 5xx is documented as "an error occurred when SendGrid attempted to process it": unknown.

Sources: twilio.com/docs/sendgrid: api-reference/mail-send/mail-send,
api-reference/how-to-use-the-sendgrid-v3-api/{errors, rate-limits, responses},
for-developers/tracking-events/event; github.com/twilio/sendgrid-oai (tsg_mail_v3, tsg_scopes_v3,
tsg_email_activity_v3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sendonce.address import parse_sender
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Finding,
    NoAnswer,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import EmailContent, Message, Promise, ProviderClass, Start
from sendonce.ports.secret import Secret
from sendonce.providers.api import (
    Api,
    ApiSettings,
    body_of,
    email_of,
    json_body,
    object_in,
    outcome_of,
    receipt_in,
    rows_in,
)
from sendonce.providers.mime import one_line
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response

ARGUMENT = "sendonce"
RESET_MAX_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendgridSettings(ApiSettings):
    """One SendGrid account or subuser. Times in seconds."""

    api_key: Secret = field(metadata={"meaning": "An API key (`SG....`) with the scope `mail.send`."})
    event_public_keys: tuple[str, ...] = field(
        default=(),
        metadata={"meaning": "Verification keys of its signed event webhook; one, or two while they rotate."},
    )
    base_url: str = field(
        default="https://api.sendgrid.com",
        metadata={"meaning": "Where the API is: `https://api.eu.sendgrid.com`, or a sandbox."},
    )

    def __post_init__(self) -> None:
        if not self.api_key:
            raise InvalidInput("must not be empty: make one under Settings, API Keys", field="api_key")
        ApiSettings.__post_init__(self)


class SendgridProvider:
    """`ports.provider.Provider` for one SendGrid account. `now`: microseconds UTC, for waits."""

    def __init__(self, settings: SendgridSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)

    @property
    def promise(self) -> Promise:
        return Promise(ProviderClass.NEITHER, timeout_s=self._settings.timeout_s, echo=True)

    async def send(self, message: Message, *, start: Start) -> Outcome:
        content = email_of(message)
        if not isinstance(content, EmailContent):
            return content
        body = body_of(lambda: json_body(_fields(message, content)))
        if not isinstance(body, bytes):
            return body
        headers = [*self._login(), ("Content-Type", "application/json")]
        answer = await self._api.send("/v3/mail/send", headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        return NoAnswer("unsupported")

    async def check(self) -> str:
        answer = await self._api.checked("/v3/scopes", self._login(), "api_key")
        if answer.status != 200:
            raise ConfigError(f"{self._settings.base_url} answered {answer.status}: mend base_url")
        scopes = object_in(answer.body).get("scopes")
        if isinstance(scopes, list) and "mail.send" not in scopes:
            raise ConfigError("the key may not send: give api_key the scope mail.send (Mail Send)")
        return "API key accepted"

    async def close(self) -> None:
        await self._api.close()

    def _login(self) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self._settings.api_key.reveal()}")]


def _fields(message: Message, content: EmailContent) -> dict[str, object]:
    parts = [("text/plain", content.text), ("text/html", content.html)]  # in this order
    fields: dict[str, object] = {
        "personalizations": [{"to": [{"email": message.to}], "custom_args": {ARGUMENT: message.send_key}}],
        "from": _mailbox(content.sender),
        "subject": content.subject,
        "content": [{"type": kind, "value": value} for kind, value in parts if value],
    }
    if content.reply_to:
        fields["reply_to"] = _mailbox(content.reply_to)
    if content.headers:
        fields["headers"] = dict(content.headers)
    return fields


def _mailbox(sender: str) -> dict[str, str]:
    name, address = parse_sender(sender)
    return {"email": address, "name": one_line(name)} if name else {"email": address}


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for the wait after a 429."""
    if answer.status == 202:
        receipt = receipt_in(answer.header("x-message-id"))
        return Accepted(receipt, "202") if receipt else Unknown("truncated", "no_receipt")
    if answer.status in (400, 401, 403):
        for about, words in _errors(answer):
            if "maximum credits exceeded" in words:
                return AccountError(Reason.CREDIT, f"http_{answer.status}/credits")
            if about.startswith("from"):
                return AccountError(Reason.SENDER, f"http_{answer.status}/from")
            if answer.status == 400 and about.startswith("personalizations") and ".to" in about:
                return Rejected(Reason.INVALID_ADDRESS, "http_400/to")
    outcome = outcome_of(answer, "", {}, now, pace=ThrottleScope.RATE, suspect=Reason.BAD_CONTENT)
    if isinstance(outcome, Throttled) and outcome.retry_after_s is None:
        return replace(outcome, retry_after_s=_until_reset(answer, now))
    return outcome


def _errors(answer: Response) -> list[tuple[str, str]]:
    """Field and words of each error."""
    rows = rows_in(object_in(answer.body).get("errors")) or []
    return [(str(row.get("field") or ""), str(row.get("message") or "").lower()) for row in rows]


def _until_reset(answer: Response, now: int) -> float | None:
    """Seconds until X-RateLimit-Reset; None where it is past, or too far to be one."""
    reset = answer.header("x-ratelimit-reset") or ""
    wait_s = int(reset) - now / 1_000_000 if reset.isascii() and reset.isdecimal() else 0.0
    return wait_s if 0 < wait_s <= RESET_MAX_S else None
