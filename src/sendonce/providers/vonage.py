"""SMS through Vonage's Messages API. Class N with echo: no idempotency key, and no search that ends in time.

    POST {base_url}/v1/messages    JSON, Basic auth    ->  202 {"message_uuid": ...}

- Echo: the send key is `client_ref` (up to 100 characters), which every status webhook repeats, where
  `callback_url` is set. The Reports API can be asked by client_ref too, as a report that is made in the
  background within minutes or hours, for references of exactly 40 characters: `look_up` is not offered.
- `ttl` gives up on a text that is late, within 20 seconds and 7 days.
- Errors are problem documents; the code is the fragment of their `type`. 1000 is about the account's rate of
  submission. 1100 says "was not submitted": provable. 1030 and a 5xx are an error "processing your request",
  which does not say that: unknown.
- An opted-out number may be accepted, and a later status tells.

Sources: developer.vonage.com: api/messages, api-errors/messages, messages/concepts, api/application.v2
(the list of applications, for `check`); github.com/Nexmo/api-specification (sms.yml: bounds of ttl).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Accepted,
    Failed,
    Finding,
    NoAnswer,
    Outcome,
    Reason,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import Message, Promise, ProviderClass, SmsContent, Start
from sendonce.ports.secret import Secret
from sendonce.providers.api import (
    Api,
    ApiSettings,
    Codes,
    blame,
    body_of,
    code_in,
    doubt,
    json_body,
    object_in,
    outcome_of,
    receipt_in,
    reject,
    sms_of,
    throttle,
)
from sendonce.providers.events import check_secrets
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response, parse_url

TTL_MIN_S, TTL_MAX_S = 20, 604_800


@dataclass(frozen=True, slots=True, kw_only=True)
class VonageSettings(ApiSettings):
    """One Vonage account. Times in seconds."""

    api_key: str = field(metadata={"meaning": "The account's API key: eight letters and digits."})
    api_secret: Secret = field(metadata={"meaning": "Its secret."})
    callback_url: str = field(
        default="", metadata={"meaning": "Where Vonage reports what became of each message."}
    )
    event_secrets: tuple[Secret, ...] = field(
        default=(),
        metadata={"meaning": "Signature secrets of its webhooks; one, or two while they rotate."},
    )
    base_url: str = field(
        default="https://api.nexmo.com",
        metadata={"meaning": "Where the API is: `https://api-eu.vonage.com`, or a sandbox."},
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9]{4,32}", self.api_key):
            raise InvalidInput("must be letters and digits, from the dashboard", field="api_key")
        if not self.api_secret:
            raise InvalidInput("must not be empty: it stands beside the key", field="api_secret")
        if self.callback_url:
            parse_url(self.callback_url)
        check_secrets(self.event_secrets)
        ApiSettings.__post_init__(self)


class VonageProvider:
    """`ports.provider.Provider` for one Vonage account. `now`: microseconds UTC, to read Retry-After."""

    def __init__(self, settings: VonageSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)
        login = f"{settings.api_key}:{settings.api_secret.reveal()}".encode()
        self._authorization = Secret("Basic " + base64.b64encode(login).decode())

    @property
    def promise(self) -> Promise:
        return Promise(
            ProviderClass.NEITHER,
            timeout_s=self._settings.timeout_s,
            echo=bool(self._settings.callback_url),
        )

    async def send(self, message: Message, *, start: Start) -> Outcome:
        content = sms_of(message)
        if not isinstance(content, SmsContent):
            return content
        body = body_of(lambda: json_body(self._fields(message, content)))
        if not isinstance(body, bytes):
            return body
        headers = [*self._login(), ("Content-Type", "application/json")]
        answer = await self._api.send("/v1/messages", headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        return NoAnswer("unsupported")

    async def check(self) -> str:
        answer = await self._api.checked(
            "/v2/applications?page_size=1", self._login(), "api_key and api_secret"
        )
        if answer.status != 200:
            raise ConfigError(f"{self._settings.base_url} answered {answer.status}: mend base_url")
        return "API key and secret accepted"

    async def close(self) -> None:
        await self._api.close()

    def _login(self) -> list[tuple[str, str]]:
        return [("Authorization", self._authorization.reveal())]

    def _fields(self, message: Message, content: SmsContent) -> dict[str, object]:
        fields: dict[str, object] = {
            "message_type": "text",
            "channel": "sms",
            "to": message.to.removeprefix("+"),  # "don't use a leading +"
            "from": content.sender.removeprefix("+"),
            "text": content.text,
            "client_ref": message.send_key,
        }
        if self._settings.callback_url:
            fields["webhook_url"] = self._settings.callback_url
        if message.valid_s is not None:
            fields["ttl"] = min(max(message.valid_s, TTL_MIN_S), TTL_MAX_S)
        return fields


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = object_in(answer.body)
    if answer.status in (200, 202):
        receipt = receipt_in(body.get("message_uuid"))
        return Accepted(receipt, str(answer.status)) if receipt else Unknown("truncated", "no_receipt")
    kind = body.get("type")
    code = code_in(kind.rpartition("#")[2]) if isinstance(kind, str) and "#" in kind else ""
    return outcome_of(answer, code, CODES, now, pace=ThrottleScope.RATE)


# developer.vonage.com/api-errors/messages
CODES: Codes = {
    "1000": throttle(ThrottleScope.RATE),  # the submission capacity of the account
    "1010": reject(Reason.BAD_CONTENT),  # missing parameters
    "1020": reject(Reason.BAD_CONTENT),  # invalid parameters
    "1030": doubt,  # internal error
    "1040": reject(Reason.INVALID_ADDRESS),  # for example an unrecognised prefix
    "1050": reject(Reason.BLOCKED),  # number barred
    "1060": blame(Reason.AUTHENTICATION),  # the account is barred
    "1070": blame(Reason.CREDIT),
    "1080": blame(Reason.CONFIGURATION),  # not enabled for this API
    "1090": reject(Reason.TOO_LARGE),
    "1100": lambda code: Failed(Reason.UNAVAILABLE, code),  # "was not submitted"
    "1110": blame(Reason.AUTHENTICATION),  # signature
    "1120": blame(Reason.SENDER),
    "1130": blame(Reason.CONFIGURATION),  # ttl
    "1140": blame(Reason.CONFIGURATION),  # facility not allowed
    "1160": reject(Reason.BLOCKED),  # not among the numbers that this account may write to
    "1170": reject(Reason.INVALID_ADDRESS),
    "1190": reject(Reason.INVALID_ADDRESS, suppress=True),  # no longer active: "remove this phone number"
    "1210": reject(Reason.BLOCKED),  # anti-spam
    "1240": reject(Reason.OPTED_OUT, suppress=True),  # replied STOP
    "1241": throttle(ThrottleScope.RECIPIENT),
    "1250": reject(Reason.NOT_CAPABLE),  # no route
    "1260": reject(Reason.NOT_CAPABLE),  # unreachable
    "1270": reject(Reason.BLOCKED),  # age restriction
    "1280": reject(Reason.BLOCKED),  # by the carrier
    "1320": doubt,  # "the message was already sent"
}
