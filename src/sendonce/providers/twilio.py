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
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Absent,
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
from sendonce.core.retry_after import parse_retry_after
from sendonce.ports.provider import Message, Promise, ProviderClass, SmsContent, Start
from sendonce.ports.secret import Secret
from sendonce.providers.call import ask, call
from sendonce.providers.echo import callback_url
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import HttpClient, Limits, Response, encode_request, parse_url

VALIDITY_MAX_S = 36_000


@dataclass(frozen=True, slots=True)
class TwilioSettings:
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
    base_url: str = field(
        default="https://api.twilio.com", metadata={"meaning": "Another region's address, or a sandbox."}
    )
    allow_plain_http: bool = field(
        default=False, metadata={"meaning": "Allow an `http://` base_url; for a sandbox on this machine."}
    )
    ca_file: Path | None = field(
        default=None, metadata={"meaning": "PEM file of a private authority to trust besides."}
    )
    connect_timeout_s: float = field(
        default=10.0, metadata={"meaning": "A free connection, TCP and TLS together.", "min": 0.01}
    )
    timeout_s: float = field(
        default=30.0, metadata={"meaning": "From the request to its whole answer.", "min": 0.01}
    )
    connections_max: int = field(
        default=512,
        metadata={"meaning": "Open at once, in each process; at least the account's `lanes`.", "min": 1},
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"AC[0-9a-fA-F]{32}", self.account_sid):
            raise InvalidInput("must be AC and 32 hexadecimal digits, from the console", field="account_sid")
        if not self.auth_token:
            raise InvalidInput("must not be empty: take it from the console", field="auth_token")
        if self.callback_url and not self.callback_secret:
            raise InvalidInput("must be written: it signs our id in callback_url", field="callback_secret")
        origin, _ = parse_url(self.base_url)
        if origin.scheme == "http" and not self.allow_plain_http:
            raise InvalidInput(
                "must be https://, else the token travels in clear (for a sandbox: allow_plain_http = true)",
                field="base_url",
            )
        if self.callback_url:
            parse_url(self.callback_url)


class TwilioProvider:
    """`ports.provider.Provider` for one Twilio account. `now`: microseconds UTC, to read Retry-After."""

    def __init__(self, settings: TwilioSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._origin, base = parse_url(settings.base_url)
        self._account = f"{base.rstrip('/')}/2010-04-01/Accounts/{settings.account_sid}"
        login = f"{settings.api_key or settings.account_sid}:{settings.auth_token.reveal()}"
        self._authorization = Secret("Basic " + base64.b64encode(login.encode()).decode())
        self._client = HttpClient(
            limits=Limits(
                connections_max=settings.connections_max, connect_timeout_s=settings.connect_timeout_s
            ),
            ca_file=str(settings.ca_file) if settings.ca_file else None,
            allow_plain=settings.allow_plain_http,
        )

    @property
    def promise(self) -> Promise:
        return Promise(
            ProviderClass.NEITHER,
            timeout_s=self._settings.timeout_s,
            echo=bool(self._settings.callback_url),
        )

    async def send(self, message: Message, *, start: Start) -> Outcome:
        content = message.content
        if not isinstance(content, SmsContent):
            return AccountError(Reason.CONFIGURATION, "not_sms")
        try:
            body = urlencode(self._form(message, content)).encode("ascii")
        except UnicodeEncodeError:
            return Rejected(Reason.BAD_CONTENT, "encoding")
        data = self._request("POST", "/Messages.json", body)
        answer = await call(self._client, self._origin, data, start=start, timeout_s=self._settings.timeout_s)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        """Whether Twilio lists a message like this one; never proof, so never `Found`."""
        day = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=message.frozen_at)
        query = urlencode({"To": message.to, "DateSent>": f"{day:%Y-%m-%d}", "PageSize": "200"})
        data = self._request("GET", f"/Messages.json?{query}")
        answer = await ask(self._client, self._origin, data, timeout_s=self._settings.timeout_s)
        if not isinstance(answer, Response):
            return NoAnswer(answer)
        page = _object(answer.body)
        rows = page.get("messages")
        if answer.status != 200 or not isinstance(rows, list):
            return NoAnswer(f"http_{answer.status}")
        alike = any(isinstance(row, dict) and row.get("body") == message.content.text for row in rows)
        if alike or page.get("next_page_uri"):
            return NoAnswer("alike" if alike else "more_pages")
        return Absent(believable=False)

    async def check(self) -> str:
        answer = await ask(
            self._client, self._origin, self._request("GET", ".json"), timeout_s=self._settings.timeout_s
        )
        if not isinstance(answer, Response):
            raise ConfigError(f"{self._settings.base_url} cannot be reached ({answer}): mend base_url")
        account = _object(answer.body)
        match answer.status:
            case 200:
                return f"account {account.get('status', 'found')}, type {account.get('type', 'unknown')}"
            case 401 | 403:
                raise ConfigError(
                    f"Twilio refused the login ({answer.status}): mend account_sid and auth_token"
                )
            case status:
                raise ConfigError(
                    f"Twilio does not know the account ({status}): mend account_sid or base_url"
                )

    async def close(self) -> None:
        await self._client.close()

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

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        headers = [("Authorization", self._authorization.reveal()), ("Accept", "application/json")]
        if body:
            headers.append(("Content-Type", "application/x-www-form-urlencoded"))
        return encode_request(self._origin, method, quote(self._account, safe="/") + path, headers, body)


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = _object(answer.body)
    if answer.status in (200, 201):
        sid = body.get("sid")
        if not isinstance(sid, str) or not _MESSAGE.fullmatch(sid):
            return Unknown(
                "truncated", f"http_{answer.status}"
            )  # it may have been taken, by whom we cannot tell
        if body.get("status") == "failed":
            return _by_code(_code(body.get("error_code"))) or Rejected(Reason.OTHER, "failed")
        return Accepted(sid, str(answer.status))
    code = _code(body.get("code"))
    wait_s = parse_retry_after(answer.header("retry-after"), now, said_at=answer.header("date"))
    if answer.status >= 500:
        return Unknown("bad_gateway" if answer.status in (502, 504) else "server_error", _said(answer, code))
    match _by_code(code):
        case Throttled(scope, known):
            return Throttled(scope, known, wait_s)
        case None:
            return _by_status(answer, code, wait_s)
        case outcome:
            return outcome


def _by_code(code: str) -> Outcome | None:
    make = CODES.get(code)
    return None if make is None else make(code)


def _by_status(answer: Response, code: str, wait_s: float | None) -> Outcome:
    said = _said(answer, code)
    match answer.status:
        case 429:
            return Throttled(ThrottleScope.CONCURRENCY, said, wait_s)
        case 401 | 403:
            return AccountError(Reason.AUTHENTICATION, said)
        case 301 | 307 | 308 | 404 | 405:
            return AccountError(Reason.CONFIGURATION, said)  # not the address of this API
        case status if 400 <= status < 500 and status != 408:
            return Rejected(Reason.OTHER, said)
        case _:
            return Unknown("server_error", said)


def _said(answer: Response, code: str) -> str:
    return code or f"http_{answer.status}"


def _code(value: object) -> str:
    """An error code is a number of five or six digits; anything else is not repeated in the ledger."""
    return str(value) if isinstance(value, int) and 0 < value < 1_000_000 else ""


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _reject(reason: Reason, *, suppress: bool = False) -> Callable[[str], Outcome]:
    return lambda code: Rejected(reason, code, suppress)


def _account(reason: Reason) -> Callable[[str], Outcome]:
    return lambda code: AccountError(reason, code)


def _throttle(scope: ThrottleScope) -> Callable[[str], Outcome]:
    return lambda code: Throttled(scope, code)


CODES: dict[str, Callable[[str], Outcome]] = {
    # the recipient
    "21211": _reject(Reason.INVALID_ADDRESS, suppress=True),  # not a valid number
    "21214": _reject(Reason.INVALID_ADDRESS, suppress=True),  # cannot be reached
    "21217": _reject(Reason.INVALID_ADDRESS, suppress=True),  # does not appear to be valid
    "21265": _reject(Reason.NOT_CAPABLE, suppress=True),  # a short code
    "21614": _reject(Reason.NOT_CAPABLE, suppress=True),  # not a mobile number
    "21635": _reject(Reason.NOT_CAPABLE, suppress=True),  # a landline
    "30006": _reject(Reason.NOT_CAPABLE, suppress=True),  # landline or unreachable carrier
    "21610": _reject(Reason.OPTED_OUT, suppress=True),  # replied STOP
    "21408": _reject(Reason.BLOCKED),  # the region is not enabled for this account
    "21612": _reject(Reason.NOT_CAPABLE),  # no route from this sender to this number
    "21608": _reject(Reason.BLOCKED),  # trial account, number not verified: the others still go
    "30003": _reject(Reason.UNAVAILABLE),  # handset unreachable
    "30004": _reject(Reason.BLOCKED),
    "30005": _reject(Reason.INVALID_ADDRESS),  # unknown destination
    "30007": _reject(Reason.BLOCKED),  # filtered by the carrier
    # the content
    "21602": _reject(Reason.BAD_CONTENT),  # no body
    "21604": _reject(Reason.INVALID_ADDRESS),  # no recipient
    "21605": _reject(Reason.TOO_LARGE),  # more than 160 characters where that is the limit
    "21617": _reject(Reason.TOO_LARGE),  # more than 1,600 characters
    "21619": _reject(Reason.BAD_CONTENT),  # neither text nor media
    "30036": _reject(Reason.EXPIRED),  # the validity period is over
    # our account, sender, credit
    "20003": _account(Reason.AUTHENTICATION),
    "20005": _account(Reason.AUTHENTICATION),  # not active
    "20008": _account(Reason.AUTHENTICATION),  # test credentials
    "30002": _account(Reason.CREDIT),  # suspended
    "20404": _account(Reason.CONFIGURATION),  # no such account
    "21212": _account(Reason.SENDER),  # not a valid From
    "21603": _account(Reason.SENDER),  # no From
    "21606": _account(Reason.SENDER),  # not a number of ours that can send
    "21607": _account(Reason.SENDER),  # trial: only the trial number
    "21659": _account(Reason.SENDER),  # not a Twilio number
    "21660": _account(Reason.SENDER),  # belongs to another account
    "21703": _account(Reason.SENDER),  # the messaging service has no numbers
    "21705": _account(Reason.SENDER),  # the messaging service does not exist
    "21609": _account(Reason.CONFIGURATION),  # StatusCallback is not a URL
    "21624": _account(Reason.CONFIGURATION),  # ValidityPeriod
    "90007": _account(Reason.CONFIGURATION),  # ValidityPeriod
    # pace
    "20429": _throttle(ThrottleScope.CONCURRENCY),
    "14107": _throttle(ThrottleScope.RATE),  # sends faster than allowed
    "21611": _throttle(ThrottleScope.RATE),  # the sender's queue holds hours of messages already
    "63017": _throttle(ThrottleScope.RATE),
    "63038": _throttle(ThrottleScope.QUOTA),  # the account's daily messages
}
_SERVICE = re.compile(r"MG[0-9a-fA-F]{32}")
_MESSAGE = re.compile(r"[SM]M[0-9a-zA-Z]{8,64}")
