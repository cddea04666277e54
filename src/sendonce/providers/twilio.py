"""SMS through Twilio's Programmable Messaging. Class N: Twilio has no idempotency key.

    POST {base_url}/2010-04-01/Accounts/{sid}/Messages.json    form, Basic auth    ->  201 {"sid": ...}

What Twilio offers instead, and how it is used:

- no field for a reference of ours, so the send key travels signed in the StatusCallback URL: the first
  status callback proves that the message was accepted (trait *echo*, where `callback_url` is set);
- a list of messages that can be asked by recipient and day only. The same text may be another
  reminder's, so a row that looks like ours is no proof, and a missing one is none either: `look_up`
  helps a person, and settles nothing;
- ValidityPeriod, 1 to 36,000 seconds, after which Twilio drops what still stands in its queue.

429 "is not processed and safe to retry" and counts concurrent requests (error 20429). No such word
exists for 5xx, so those are unknown. What the error codes mean: the table at the end.

Sources: twilio.com/docs: messaging/api/message-resource; api/errors/{20003, 20429, 21211, 21408, 21606,
21608, 21610, 21611, 21612, 21614, 21617, 21660, 63038, 90007}; usage/requests-to-twilio.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Absent,
    Accepted,
    Finding,
    NoAnswer,
    Outcome,
    Reason,
    Rejected,
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
    object_in,
    outcome_of,
    reject,
    sms_of,
    throttle,
)
from sendonce.providers.echo import callback_url
from sendonce.providers.events import check_secrets
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response, parse_url

VALIDITY_MAX_S = 36_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TwilioSettings(ApiSettings):
    """One Twilio account or subaccount. Times in seconds."""

    account_sid: str = field(metadata={"meaning": "`AC` and 32 hexadecimal digits."})
    auth_token: Secret = field(metadata={"meaning": "The auth token, or the secret of `api_key`."})
    api_key: str = field(
        default="", metadata={"meaning": "An API key (`SK...`) to log in with; empty: the account itself."}
    )
    messaging_service_sid: str = field(
        default="", metadata={"meaning": "Send through this service (`MG...`), whatever the sender says."}
    )
    callback_url: str = field(
        default="", metadata={"meaning": "Where Twilio reports what became of each message."}
    )
    callback_secret: Secret = field(
        default_factory=lambda: Secret(""), metadata={"meaning": "Signs our id in `callback_url`."}
    )
    event_secrets: tuple[Secret, ...] = field(
        default=(),
        metadata={
            "meaning": "More auth tokens that may sign its callbacks, while they rotate or with `api_key`."
        },
    )
    base_url: str = field(
        default="https://api.twilio.com", metadata={"meaning": "Another region's address, or a sandbox."}
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"AC[0-9a-fA-F]{32}", self.account_sid):
            raise InvalidInput("must be AC and 32 hexadecimal digits, from the console", field="account_sid")
        if not self.auth_token:
            raise InvalidInput("must not be empty: take it from the console", field="auth_token")
        if self.callback_url and not self.callback_secret:
            raise InvalidInput("must be written: it signs our id in callback_url", field="callback_secret")
        if self.callback_url:
            parse_url(self.callback_url)
        check_secrets(self.event_secrets)
        ApiSettings.__post_init__(self)


class TwilioProvider:
    """`ports.provider.Provider` for one Twilio account. `now`: microseconds UTC, to read Retry-After."""

    def __init__(self, settings: TwilioSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)
        self._account = f"/2010-04-01/Accounts/{settings.account_sid}"
        login = f"{settings.api_key or settings.account_sid}:{settings.auth_token.reveal()}"
        self._authorization = Secret("Basic " + base64.b64encode(login.encode()).decode())

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
        body = body_of(lambda: urlencode(self._form(message, content)).encode("ascii"))
        if not isinstance(body, bytes):
            return body
        headers = [*self._login(), ("Content-Type", "application/x-www-form-urlencoded")]
        answer = await self._api.send(f"{self._account}/Messages.json", headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        """Whether Twilio lists a message like this one; never proof, so never `Found`."""
        day = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=message.frozen_at)
        query = urlencode({"To": message.to, "DateSent>": f"{day:%Y-%m-%d}", "PageSize": "200"})
        answer = await self._api.get(f"{self._account}/Messages.json?{query}", self._login())
        if not isinstance(answer, Response):
            return NoAnswer(answer)
        page = object_in(answer.body)
        rows = page.get("messages")
        if answer.status != 200 or not isinstance(rows, list):
            return NoAnswer(f"http_{answer.status}")
        alike = any(isinstance(row, dict) and row.get("body") == message.content.text for row in rows)
        if alike or page.get("next_page_uri"):
            return NoAnswer("alike" if alike else "more_pages")
        return Absent(believable=False)

    async def check(self) -> str:
        answer = await self._api.checked(f"{self._account}.json", self._login(), "account_sid and auth_token")
        if answer.status != 200:
            raise ConfigError(
                f"Twilio does not know the account ({answer.status}): mend account_sid or base_url"
            )
        account = object_in(answer.body)
        return f"account {account.get('status', 'found')}, type {account.get('type', 'unknown')}"

    async def close(self) -> None:
        await self._api.close()

    def _login(self) -> list[tuple[str, str]]:
        return [("Authorization", self._authorization.reveal())]

    def _form(self, message: Message, content: SmsContent) -> list[tuple[str, str]]:
        settings = self._settings
        service = settings.messaging_service_sid or (
            content.sender if _SERVICE.fullmatch(content.sender) else ""
        )
        form = [
            ("To", message.to),
            ("MessagingServiceSid", service) if service else ("From", content.sender),
            ("Body", content.text),
        ]
        if settings.callback_url:
            url = callback_url(settings.callback_url, message.send_key, settings.callback_secret)
            form.append(("StatusCallback", url))
        if message.valid_s is not None:
            form.append(("ValidityPeriod", str(min(max(message.valid_s, 1), VALIDITY_MAX_S))))
        return form


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = object_in(answer.body)
    if answer.status in (200, 201):
        sid = body.get("sid")
        if not isinstance(sid, str) or not _MESSAGE.fullmatch(sid):
            # It may have been taken, by whom we cannot tell.
            return Unknown("truncated", f"http_{answer.status}")
        if body.get("status") == "failed":
            code = _code(body.get("error_code"))
            return CODES[code](code) if code in CODES else Rejected(Reason.OTHER, "failed")
        return Accepted(sid, str(answer.status))
    return outcome_of(answer, _code(body.get("code")), CODES, now, pace=ThrottleScope.CONCURRENCY)


def _code(value: object) -> str:
    """An error code is a number of five or six digits; anything else is not repeated in the ledger."""
    return str(value) if isinstance(value, int) and 0 < value < 1_000_000 else ""


CODES: Codes = {
    # the recipient
    "21211": reject(Reason.INVALID_ADDRESS, suppress=True),  # not a valid number
    "21214": reject(Reason.INVALID_ADDRESS, suppress=True),  # cannot be reached
    "21217": reject(Reason.INVALID_ADDRESS, suppress=True),  # does not appear to be valid
    "21265": reject(Reason.NOT_CAPABLE, suppress=True),  # a short code
    "21614": reject(Reason.NOT_CAPABLE, suppress=True),  # not a mobile number
    "21635": reject(Reason.NOT_CAPABLE, suppress=True),  # a landline
    "30006": reject(Reason.NOT_CAPABLE, suppress=True),  # landline or unreachable carrier
    "21610": reject(Reason.OPTED_OUT, suppress=True),  # replied STOP
    "21408": reject(Reason.BLOCKED),  # the region is not enabled for this account
    "21612": reject(Reason.NOT_CAPABLE),  # no route from this sender to this number
    "21608": reject(Reason.BLOCKED),  # trial account, number not verified: the others still go
    "30003": reject(Reason.UNAVAILABLE),  # handset unreachable
    "30004": reject(Reason.BLOCKED),
    "30005": reject(Reason.INVALID_ADDRESS),  # unknown destination
    "30007": reject(Reason.BLOCKED),  # filtered by the carrier
    # the content
    "21602": reject(Reason.BAD_CONTENT),  # no body
    "21604": reject(Reason.INVALID_ADDRESS),  # no recipient
    "21605": reject(Reason.TOO_LARGE),  # more than 160 characters where that is the limit
    "21617": reject(Reason.TOO_LARGE),  # more than 1,600 characters
    "21619": reject(Reason.BAD_CONTENT),  # neither text nor media
    "30036": reject(Reason.EXPIRED),  # the validity period is over
    # our account, sender, credit
    "20003": blame(Reason.AUTHENTICATION),
    "20005": blame(Reason.AUTHENTICATION),  # not active
    "20008": blame(Reason.AUTHENTICATION),  # test credentials
    "30002": blame(Reason.CREDIT),  # suspended
    "20404": blame(Reason.CONFIGURATION),  # no such account
    "21212": blame(Reason.SENDER),  # not a valid From
    "21603": blame(Reason.SENDER),  # no From
    "21606": blame(Reason.SENDER),  # not a number of ours that can send
    "21607": blame(Reason.SENDER),  # trial: only the trial number
    "21659": blame(Reason.SENDER),  # not a Twilio number
    "21660": blame(Reason.SENDER),  # belongs to another account
    "21703": blame(Reason.SENDER),  # the messaging service has no numbers
    "21705": blame(Reason.SENDER),  # the messaging service does not exist
    "21609": blame(Reason.CONFIGURATION),  # StatusCallback is not a URL
    "21624": blame(Reason.CONFIGURATION),  # ValidityPeriod
    "90007": blame(Reason.CONFIGURATION),  # ValidityPeriod
    # pace
    "20429": throttle(ThrottleScope.CONCURRENCY),
    "14107": throttle(ThrottleScope.RATE),  # sends faster than allowed
    "21611": throttle(ThrottleScope.RATE),  # the sender's queue holds hours of messages already
    "63017": throttle(ThrottleScope.RATE),
    "63038": throttle(ThrottleScope.QUOTA),  # the account's daily messages
}
_SERVICE = re.compile(r"MG[0-9a-fA-F]{32}")
_MESSAGE = re.compile(r"[SM]M[0-9a-zA-Z]{8,64}")
