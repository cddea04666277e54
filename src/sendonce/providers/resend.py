"""Email through Resend. Class K: Resend honours an idempotency key for 24 hours.

    POST {base_url}/emails    JSON, Bearer, Idempotency-Key    ->  200 {"id": ...}

The key is the send key (up to 256 characters are allowed). A repeat under it "gives the same response,
without actually sending the email again", so an accepted repeat looks like a first one. Under a key whose
first call is still open Resend answers 409 `concurrent_idempotent_requests`, "safe to retry"; under one
that was used with another payload 409 `invalid_idempotent_request`. Both say that something under this key
has arrived and not what became of it: unknown.

- Echo: the send key travels as the tag `sendonce` too, which every event repeats; after the key's 24 hours
  an event still settles a delivery. There is no look-up by key or tag.
- Pace: 429 `rate_limit_exceeded` is about the requests of the whole team and has a Retry-After;
  `daily_quota_exceeded` and `monthly_quota_exceeded` are quotas.
- A 5xx (`application_error`, `internal_server_error`) is documented as "unexpected", not as unprocessed.
- `delivered@`, `bounced@`, `complained@` and `suppressed@resend.dev` are for tests; all are accepted.

Sources: resend.com/docs: api-reference/emails/send-email, api-reference/errors, api-reference/rate-limit,
dashboard/emails/idempotency-keys, dashboard/emails/send-test-emails, webhooks/event-types;
github.com/resend/resend-openapi.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Finding,
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
    blame,
    body_of,
    code_in,
    doubt,
    email_of,
    json_body,
    mailbox,
    object_in,
    outcome_of,
    receipt_in,
    reject,
    throttle,
)
from sendonce.providers.events import check_secrets
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response

KEY_WINDOW_S = 86_400.0
TAG = "sendonce"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendSettings(ApiSettings):
    """One Resend team. Times in seconds."""

    api_key: Secret = field(metadata={"meaning": "An API key (`re_...`); sending access is enough."})
    event_secrets: tuple[Secret, ...] = field(
        default=(),
        metadata={"meaning": "Signing secrets of its webhook (`whsec_...`); one, or two while they rotate."},
    )
    base_url: str = field(
        default="https://api.resend.com", metadata={"meaning": "Where the API is: Resend, or a sandbox."}
    )

    def __post_init__(self) -> None:
        if not self.api_key:
            raise InvalidInput("must not be empty: make one at resend.com/api-keys", field="api_key")
        check_secrets(self.event_secrets)
        ApiSettings.__post_init__(self)


class ResendProvider:
    """`ports.provider.Provider` for one Resend team. `now`: microseconds UTC, to read Retry-After."""

    def __init__(self, settings: ResendSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)

    @property
    def promise(self) -> Promise:
        return Promise(
            ProviderClass.KEY, timeout_s=self._settings.timeout_s, key_window_s=KEY_WINDOW_S, echo=True
        )

    async def send(self, message: Message, *, start: Start) -> Outcome:
        content = email_of(message)
        if not isinstance(content, EmailContent):
            return content
        body = body_of(lambda: json_body(_fields(message, content)))
        if not isinstance(body, bytes):
            return body
        headers = [
            *self._login(),
            ("Content-Type", "application/json"),
            ("Idempotency-Key", message.send_key),
        ]
        answer = await self._api.send("/emails", headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        return NoAnswer("unsupported")

    async def check(self) -> str:
        answer = await self._api.get("/domains", self._login())
        if isinstance(answer, Response):
            # A key with sending access may not list domains, and is told so: it is known, then.
            if object_in(answer.body).get("name") == "restricted_api_key":
                return "API key accepted, for sending only"
            if answer.status == 200:
                return "API key accepted, with full access"
            if answer.status in (400, 401, 403):
                raise ConfigError(f"Resend refused the login ({answer.status}): mend api_key")
            raise ConfigError(f"{self._settings.base_url} answered {answer.status}: mend base_url")
        raise ConfigError(f"{self._settings.base_url} cannot be reached ({answer}): mend base_url")

    async def close(self) -> None:
        await self._api.close()

    def _login(self) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self._settings.api_key.reveal()}")]


def _fields(message: Message, content: EmailContent) -> dict[str, object]:
    fields: dict[str, object] = {
        "from": mailbox(content.sender),
        "to": [message.to],
        "subject": content.subject,
        "tags": [{"name": TAG, "value": message.send_key}],
    }
    if content.text:
        fields["text"] = content.text
    if content.html:
        fields["html"] = content.html
    if content.reply_to:
        fields["reply_to"] = mailbox(content.reply_to)
    if content.headers:
        fields["headers"] = dict(content.headers)
    return fields


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = object_in(answer.body)
    if answer.status in (200, 201):
        receipt = receipt_in(body.get("id"))
        return Accepted(receipt, str(answer.status)) if receipt else Unknown("truncated", "no_receipt")
    name = code_in(body.get("name"))
    if name == "validation_error" and answer.status < 500:
        return _validation(answer.status, body.get("message"))
    return outcome_of(answer, name, CODES, now, pace=ThrottleScope.RATE)


def _validation(status: int, said: object) -> Outcome:
    """One name for four things, told apart by the status and, for 400 and 422, by words."""
    code = f"validation_error/{status}"
    words = said.lower() if isinstance(said, str) else ""
    match status:
        case 401:
            return AccountError(Reason.AUTHENTICATION, code)
        case 403:
            return AccountError(Reason.SENDER, code)  # the domain is not verified, or only for tests
        case 400 if words.startswith("api key is invalid"):
            return AccountError(Reason.AUTHENTICATION, code)
        case _ if "`from` field" in words:
            return AccountError(Reason.SENDER, code)
        case _ if "`to` field" in words:
            return Rejected(Reason.INVALID_ADDRESS, code)
        case _:
            return Rejected(Reason.BAD_CONTENT, code)


# resend.com/docs/api-reference/errors
CODES: Codes = {
    "invalid_idempotency_key": blame(Reason.CONFIGURATION),
    "invalid_idempotent_request": doubt,  # another payload under this key has arrived
    "concurrent_idempotent_requests": doubt,  # its first call is still open
    "missing_api_key": blame(Reason.AUTHENTICATION),
    "invalid_api_key": blame(Reason.AUTHENTICATION),
    "restricted_api_key": blame(Reason.AUTHENTICATION),
    "invalid_access": blame(Reason.AUTHENTICATION),
    "invalid_from_address": blame(Reason.SENDER),
    "invalid_region": blame(Reason.CONFIGURATION),
    "not_found": blame(Reason.CONFIGURATION),
    "method_not_allowed": blame(Reason.CONFIGURATION),
    "missing_required_field": reject(Reason.BAD_CONTENT),
    "invalid_parameter": reject(Reason.BAD_CONTENT),
    "invalid_attachment": reject(Reason.BAD_CONTENT),
    "security_error": reject(Reason.BLOCKED),
    "rate_limit_exceeded": throttle(ThrottleScope.RATE),
    "daily_quota_exceeded": throttle(ThrottleScope.QUOTA),
    "monthly_quota_exceeded": throttle(ThrottleScope.QUOTA),
}
