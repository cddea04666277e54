"""SMS through Sinch's SMS REST API. Class L: batches can be listed by our reference; no idempotency key.

    POST {base_url}/xms/v1/{plan}/batches    JSON, Bearer    ->  201 {"id": ..., "client_reference": ...}
    GET  {base_url}/xms/v1/{plan}/batches?client_reference=&start_date=&page=&page_size=

- One batch holds one recipient. The send key travels as `client_reference`, by which the list is filtered,
  and which delivery reports repeat (echo, where `callback_url` is set).
- Presence is proven by a batch with our reference. *Absence*: Sinch says that a resource may not be found
  because it "has not had time to load", and not how long that takes, so a missing batch proves nothing,
  unless the account's `index_lag` says from when on it does. The list goes back 14 days, and one day where
  no `start_date` is asked for; older messages are never called absent.
- `expire_at` drops a text that still waits in the plan's queue: at most three days ahead.
- A plan takes batches at once and sends them at its own rate, first in first out. What a 429 is about is
  not documented: the account closes briefly, then probes.

Sources: developers.sinch.com/docs/sms: api-reference/sms/batches, api-reference/status-codes,
resources/message-info/rate-limits; community.sinch.com "Common SMS HTTP Statuses and Codes Explained";
github.com/sinch/sinch-sdk-python (sms/v1: batches, list filters).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Accepted,
    Finding,
    Found,
    NoAnswer,
    Outcome,
    Reason,
    Unknown,
)
from sendonce.ports.provider import Message, Promise, ProviderClass, SmsContent, Start
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
    json_body,
    object_in,
    outcome_of,
    receipt_in,
    reject,
    rows_in,
    sms_of,
)
from sendonce.providers.events import check_secrets
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response, parse_url

RETENTION_S = 14 * 86_400
VALIDITY_MAX_S = 3 * 86_400
VALIDITY_MIN_S = 60  # `expire_at` must lie ahead on their clock too
ROWS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SinchSettings(ApiSettings):
    """One Sinch service plan. Times in seconds."""

    region: str = field(metadata={"meaning": "The plan's region: `us`, `eu`, `au`, `br` or `ca`."})
    service_plan_id: str = field(metadata={"meaning": "The plan's id, from the dashboard."})
    api_token: Secret = field(metadata={"meaning": "The plan's API token."})
    callback_url: str = field(
        default="", metadata={"meaning": "Where Sinch reports what became of each message."}
    )
    index_lag_s: float | None = field(
        default=None,
        metadata={
            "meaning": "From when on a batch that the list does not show was not accepted; empty: never.",
            "min": 1,
        },
    )
    event_secrets: tuple[Secret, ...] = field(
        default=(),
        metadata={
            "meaning": "Secrets that sign its callbacks, or their password; one, or two while they rotate."
        },
    )
    base_url: str = field(
        default="", metadata={"meaning": "Where the API is; empty: the region's. Or a sandbox."}
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]{2}", self.region):
            raise InvalidInput(f"{self.region!r} must be two letters, such as us or eu", field="region")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.service_plan_id):
            raise InvalidInput("must be letters and digits, from the dashboard", field="service_plan_id")
        if not self.api_token:
            raise InvalidInput("must not be empty: it stands beside the plan", field="api_token")
        if self.callback_url:
            parse_url(self.callback_url)
        if not self.base_url:
            object.__setattr__(self, "base_url", f"https://{self.region}.sms.api.sinch.com")
        check_secrets(self.event_secrets)
        ApiSettings.__post_init__(self)


class SinchProvider:
    """`ports.provider.Provider` for one Sinch service plan. `now`: microseconds UTC."""

    def __init__(self, settings: SinchSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)
        self._path = f"/xms/v1/{settings.service_plan_id}/batches"

    @property
    def promise(self) -> Promise:
        return Promise(
            ProviderClass.LOOKUP,
            timeout_s=self._settings.timeout_s,
            index_lag_s=self._settings.index_lag_s or 0.0,
            lookup=True,
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
        answer = await self._api.send(self._path, headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        query = {
            "client_reference": message.send_key,
            "start_date": _iso(message.frozen_at - 3_600_000_000),  # an hour for clocks that differ
            "page": "0",
            "page_size": str(ROWS_MAX),
        }
        answer = await self._api.get(f"{self._path}?{urlencode(query)}", self._login())
        if not isinstance(answer, Response):
            return NoAnswer(answer)
        finding = find(answer, message.send_key)
        if finding is not None:
            return finding
        return absent(message, self._now(), lag_s=self._settings.index_lag_s, retention_s=RETENTION_S)

    async def check(self) -> str:
        answer = await self._api.checked(f"{self._path}?page_size=1", self._login(), "api_token")
        if answer.status == 404:
            raise ConfigError("Sinch does not know the service plan: mend service_plan_id or region")
        if answer.status != 200:
            raise ConfigError(f"{self._settings.base_url} answered {answer.status}: mend base_url")
        return f"service plan found, API token accepted; {about_absence(self._settings.index_lag_s)}"

    async def close(self) -> None:
        await self._api.close()

    def _login(self) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self._settings.api_token.reveal()}")]

    def _fields(self, message: Message, content: SmsContent) -> dict[str, object]:
        fields: dict[str, object] = {
            "from": content.sender.removeprefix("+"),
            "to": [message.to.removeprefix("+")],
            "body": content.text,
            "type": "mt_text",
            "client_reference": message.send_key,
        }
        if self._settings.callback_url:
            fields["delivery_report"] = "per_recipient"
            fields["callback_url"] = self._settings.callback_url
        if message.valid_s is not None:
            valid_s = min(max(message.valid_s, VALIDITY_MIN_S), VALIDITY_MAX_S)
            fields["expire_at"] = _iso(self._now() + valid_s * 1_000_000)
        return fields


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = object_in(answer.body)
    if answer.status in (200, 201):
        receipt = receipt_in(body.get("id"))
        return Accepted(receipt, str(answer.status)) if receipt else Unknown("truncated", "no_receipt")
    return outcome_of(answer, code_in(body.get("code")), CODES, now)


def find(answer: Response, send_key: str) -> Finding | None:
    """What a complete answer to a list proves; None where it found nothing. Pure."""
    rows = rows_in(object_in(answer.body).get("batches"))
    if answer.status != 200 or rows is None:
        return NoAnswer(f"http_{answer.status}")
    for row in rows:
        if row.get("client_reference") == send_key:
            return Found(receipt_in(row.get("id")))
    return NoAnswer("no_match") if rows else None  # others' rows: it did not filter by what was asked


def _iso(micros: int) -> str:
    """Whole seconds, in the form that the API documents."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=micros // 1_000_000)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.000Z"


# developers.sinch.com/docs/sms/api-reference/status-codes
CODES: Codes = {
    "syntax_invalid_json": reject(Reason.BAD_CONTENT),
    "syntax_invalid_parameter_format": reject(Reason.OTHER),  # a number, or another field: only words say
    "syntax_constraint_violation": reject(Reason.BAD_CONTENT),
    "illegal_number_type": reject(Reason.NOT_CAPABLE),
    "blocked_account": blame(Reason.AUTHENTICATION),
    "missing_callback_url": blame(Reason.CONFIGURATION),
    "unknown_group": blame(Reason.CONFIGURATION),
    "unknown_campaign": blame(Reason.CONFIGURATION),
}
