"""Email and SMS through GOV.UK Notify. Class L: messages can be listed by our reference; no idempotency key.

    POST {base_url}/v2/notifications/sms, /email    JSON, Bearer JWT    ->  201 {"id": ..., "reference": ...}
    GET  {base_url}/v2/notifications?reference=

- Notify sends templates of its own only. The account's `template_id` is one that shows what we rendered:
  `((text))`, and for email `((subject))` as its subject. An email's HTML is not sent, and Notify formats
  lines of the text that look like its Markdown.
- The send key travels as `reference`, which the list is asked by and each callback repeats (echo).
- Presence is proven by a message with our reference. *Absence*: nothing says when a message shows up, so a
  missing one proves nothing, unless the account's `index_lag` says from when on it does. Messages are kept
  for seven days, or fewer where the service says so: those of more than three days are never called absent.
- Pace: RateLimitError is about the 3,000 messages a minute of one kind of API key; TooManyRequestsError about
  the day's messages, a quota that is reset at midnight UTC.
- What kind of error it is decides, never its words: Notify reserves itself to change them. A 500 says "resend
  your notification", yet not that the first was not taken: unknown, and looked up.
- 07700900000, 07700900111, 07700900222 and simulate-delivered@notifications.service.gov.uk are for smoke
  tests: accepted, never sent, never listed.

The token is a JWT with the time of the call, good for 30 seconds: `connect_timeout` must stay below that.

Sources: docs.notifications.service.gov.uk/rest-api.html (headers, send a message, get message data, errors,
limits, testing); github.com/alphagov/notifications-tech-docs (error_tables, openapi).
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Accepted,
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
from sendonce.ports.provider import EmailContent, Message, Promise, ProviderClass, SmsContent, Start
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
    object_in,
    outcome_of,
    receipt_in,
    reject,
    rows_in,
    sms_of,
    throttle,
)
from sendonce.providers.events import check_secrets
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response

RETENTION_S = 3 * 86_400
DAY_S = 86_400
TOKEN_S = 30
CONNECT_MAX_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings(ApiSettings):
    """One GOV.UK Notify service, for one channel. Times in seconds."""

    api_key: Secret = field(metadata={"meaning": "An API key: name, service id and secret in one."})
    template_id: str = field(
        metadata={"meaning": "A template that shows `((text))`, and for email `((subject))`."}
    )
    sender_id: str = field(
        default="",
        metadata={"meaning": "`sms_sender_id` or `email_reply_to_id`; empty: the service's default."},
    )
    index_lag_s: float | None = field(
        default=None,
        metadata={
            "meaning": "From when on a message that the list does not show was not accepted; empty: never.",
            "min": 1,
        },
    )
    event_secrets: tuple[Secret, ...] = field(
        default=(),
        metadata={"meaning": "Bearer tokens of its callbacks; one, or two while they rotate."},
    )
    base_url: str = field(
        default="https://api.notifications.service.gov.uk",
        metadata={"meaning": "Where the API is: GOV.UK Notify, or a sandbox."},
    )

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.api_key.reveal()):
            raise InvalidInput("must end with two UUIDs: copy the whole key", field="api_key")
        for name in ("template_id", "sender_id"):
            value = getattr(self, name)
            if not re.fullmatch(_UUID, value) and (value or name == "template_id"):
                raise InvalidInput(f"{value!r} must be a UUID, copied from Notify", field=name)
        if self.connect_timeout_s > CONNECT_MAX_S:
            raise InvalidInput(
                f"must be at most {CONNECT_MAX_S:g} s: a token holds for {TOKEN_S} s",
                field="connect_timeout_s",
            )
        check_secrets(self.event_secrets)
        ApiSettings.__post_init__(self)


class NotifyProvider:
    """`ports.provider.Provider` for one Notify service. `now`: microseconds UTC, for tokens and waits."""

    def __init__(self, settings: NotifySettings, *, now: Callable[[], int] | None = None) -> None:
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
        kind = "sms" if isinstance(message.content, SmsContent) else "email"
        content = sms_of(message) if kind == "sms" else email_of(message)
        if not isinstance(content, SmsContent | EmailContent):
            return content
        if not content.text:
            return Rejected(Reason.BAD_CONTENT, "no_text")  # an email of HTML only
        body = body_of(lambda: json_body(self._fields(message, content)))
        if not isinstance(body, bytes):
            return body
        headers = [*self._login(), ("Content-Type", "application/json")]
        answer = await self._api.send(f"/v2/notifications/{kind}", headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        query = urlencode({"reference": message.send_key})
        answer = await self._api.get(f"/v2/notifications?{query}", self._login())
        if not isinstance(answer, Response):
            return NoAnswer(answer)
        finding = find(answer, message.send_key)
        if finding is not None:
            return finding
        return absent(message, self._now(), lag_s=self._settings.index_lag_s, retention_s=RETENTION_S)

    async def check(self) -> str:
        answer = await self._api.checked(
            f"/v2/template/{self._settings.template_id}", self._login(), "api_key, or this machine's clock"
        )
        if answer.status == 404:
            raise ConfigError("the service has no such template: mend template_id")
        if answer.status != 200:
            raise ConfigError(f"{self._settings.base_url} answered {answer.status}: mend base_url")
        shown = object_in(answer.body).get("body")
        if isinstance(shown, str) and "((text))" not in shown:
            raise ConfigError("the template does not show ((text)): write it there, or mend template_id")
        return f"API key accepted, template found; {about_absence(self._settings.index_lag_s)}"

    async def close(self) -> None:
        await self._api.close()

    def _login(self) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {token(self._settings.api_key, self._now() // 1_000_000)}")]

    def _fields(self, message: Message, content: SmsContent | EmailContent) -> dict[str, object]:
        fields: dict[str, object] = {
            "template_id": self._settings.template_id,
            "reference": message.send_key,
        }
        if isinstance(content, SmsContent):
            fields["phone_number"] = message.to
            fields["personalisation"] = {"text": content.text}
            sender = "sms_sender_id"
        else:
            fields["email_address"] = message.to
            fields["personalisation"] = {"subject": content.subject, "text": content.text}
            sender = "email_reply_to_id"
            if content.unsubscribe:
                fields["one_click_unsubscribe_url"] = content.unsubscribe
        if self._settings.sender_id:
            fields[sender] = self._settings.sender_id
        return fields


def token(api_key: Secret, issued_at: int) -> str:
    """The JSON Web Token (RFC 7519, HS256) of a call at `issued_at`, in seconds UTC. Pure."""
    parts = _KEY.fullmatch(api_key.reveal())
    assert parts is not None, "the settings have checked the key"
    head = {"typ": "JWT", "alg": "HS256"}
    claims = {"iss": parts["service"], "iat": issued_at}
    signed = b".".join(
        _base64url(json.dumps(part, separators=(",", ":")).encode()) for part in (head, claims)
    )
    signature = hmac.digest(parts["secret"].encode(), signed, "sha256")
    return b".".join((signed, _base64url(signature))).decode("ascii")


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for waits."""
    body = object_in(answer.body)
    if answer.status == 201:
        receipt = receipt_in(body.get("id"))
        return Accepted(receipt, "201") if receipt else Unknown("truncated", "no_receipt")
    errors = rows_in(body.get("errors")) or [{}]
    code = code_in(errors[0].get("error"))
    # One name for what is wrong with a request and, as a 403, with a key.
    codes = CODES if answer.status != 403 else {}
    outcome = outcome_of(answer, code, codes, now, pace=ThrottleScope.RATE)
    if outcome == Throttled(ThrottleScope.QUOTA, code):
        return replace(outcome, retry_after_s=float(DAY_S - now // 1_000_000 % DAY_S))  # midnight UTC
    return outcome


def find(answer: Response, send_key: str) -> Finding | None:
    """What a complete answer to a list proves; None where it found nothing. Pure."""
    rows = rows_in(object_in(answer.body).get("notifications"))
    if answer.status != 200 or rows is None:
        return NoAnswer(f"http_{answer.status}")
    for row in rows:
        if row.get("reference") == send_key:
            return Found(receipt_in(row.get("id")))
    return NoAnswer("no_match") if rows else None  # others' rows: it did not filter by what was asked


_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_KEY = re.compile(rf".*?(?P<service>{_UUID})-(?P<secret>{_UUID})")

# docs.notifications.service.gov.uk/rest-api.html#errors
CODES: Codes = {
    "BadRequestError": reject(Reason.OTHER),
    "ValidationError": reject(Reason.OTHER),  # the recipient, or another argument: only words say
    "AuthError": blame(Reason.AUTHENTICATION),
    "RateLimitError": throttle(ThrottleScope.RATE),
    "TooManyRequestsError": throttle(ThrottleScope.QUOTA),
}
