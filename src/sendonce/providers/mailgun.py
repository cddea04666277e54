"""Email through Mailgun. Class L, slowly: events can be searched by recipient; there is no idempotency key.

    POST {base_url}/v3/{domain}/messages    form, Basic auth    ->  200 {"id": "<...@domain>", ...}
    GET  {base_url}/v3/{domain}/events?event=accepted&recipient=&begin=&ascending=yes&limit=300

- The send key travels as the variable `v:sendonce`, which every event repeats in its `user-variables` (echo).
  A search cannot ask for a variable, so it asks for the recipient's accepted messages since publication, and
  looks for ours among them.
- Presence is proven by an event with our variable. *Absence*: Mailgun's guide to polling calls a page of
  events trustworthy only when it is half an hour old, and the reference promises nothing; so a missing
  event proves nothing, unless the account's `index_lag` says from when on it does. Events are kept for three
  days, and for one in free accounts; older messages are never called absent. The events API is deprecated (in
  favour of logs): should it go, look-ups get no answer, and what is open stays uncertain.
- 429 is about the account's rate. A 500 asks for retries and does not say that nothing was sent; users have
  reported 5xx answers to messages that went out: unknown.
- There are no codes, only words.

Sources: documentation.mailgun.com/docs/mailgun: api-reference/send/mailgun/messages, .../events,
quickstart-guide/responses, user-manual/events (event polling, event structure), user-manual/sending-messages
(attaching data, test mode); feedback.mailgun.com ("Show custom headers in the events api").
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Accepted,
    AccountError,
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
    about_absence,
    absent,
    body_of,
    email_of,
    mailbox,
    object_in,
    outcome_of,
    receipt_in,
    rows_in,
)
from sendonce.providers.events import check_secrets
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response

VARIABLE = "sendonce"
RETENTION_S = 86_400
ROWS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class MailgunSettings(ApiSettings):
    """One Mailgun sending domain. Times in seconds."""

    domain: str = field(metadata={"meaning": "The sending domain, such as `mg.example.org`."})
    api_key: Secret = field(metadata={"meaning": "An API key, of the account or of the domain."})
    index_lag_s: float | None = field(
        default=None,
        metadata={
            "meaning": "From when on a message that the events do not show was not accepted; empty: never.",
            "min": 1800,
        },
    )
    event_secrets: tuple[Secret, ...] = field(
        default=(),
        metadata={"meaning": "HTTP webhook signing keys; one, or two while they rotate."},
    )
    base_url: str = field(
        default="https://api.mailgun.net",
        metadata={"meaning": "Where the API is: `https://api.eu.mailgun.net`, or a sandbox."},
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", self.domain):
            raise InvalidInput(
                f"{self.domain!r} must be a domain in lower case, such as mg.example.org", field="domain"
            )
        if not self.api_key:
            raise InvalidInput("must not be empty: it stands under API Security", field="api_key")
        check_secrets(self.event_secrets)
        ApiSettings.__post_init__(self)


class MailgunProvider:
    """`ports.provider.Provider` for one Mailgun domain. `now`: microseconds UTC."""

    def __init__(self, settings: MailgunSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)
        login = f"api:{settings.api_key.reveal()}".encode()
        self._authorization = Secret("Basic " + base64.b64encode(login).decode())

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
        body = body_of(lambda: urlencode(_form(message, content)).encode("ascii"))
        if not isinstance(body, bytes):
            return body
        headers = [*self._login(), ("Content-Type", "application/x-www-form-urlencoded")]
        path = f"/v3/{self._settings.domain}/messages"
        answer = await self._api.send(path, headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        query = {
            "event": "accepted",
            "recipient": message.to,
            "begin": str(message.frozen_at // 1_000_000 - 3_600),  # an hour for clocks that differ
            "ascending": "yes",
            "limit": str(ROWS_MAX),
        }
        path = f"/v3/{self._settings.domain}/events?{urlencode(query, quote_via=quote)}"
        answer = await self._api.get(path, self._login())
        if not isinstance(answer, Response):
            return NoAnswer(answer)
        finding = find(answer, message.send_key)
        if finding is not None:
            return finding
        return absent(message, self._now(), lag_s=self._settings.index_lag_s, retention_s=RETENTION_S)

    async def check(self) -> str:
        path = f"/v3/{self._settings.domain}/events?limit=1&ascending=no"
        answer = await self._api.checked(path, self._login(), "api_key")
        if answer.status == 404:
            raise ConfigError("Mailgun does not know the domain: mend domain, or base_url for another region")
        if answer.status != 200:
            raise ConfigError(f"{self._settings.base_url} answered {answer.status}: mend base_url")
        return f"domain found, API key accepted; {about_absence(self._settings.index_lag_s)}"

    async def close(self) -> None:
        await self._api.close()

    def _login(self) -> list[tuple[str, str]]:
        return [("Authorization", self._authorization.reveal())]


def _form(message: Message, content: EmailContent) -> list[tuple[str, str]]:
    form = [
        ("from", mailbox(content.sender)),
        ("to", message.to),
        ("subject", content.subject),
        (f"v:{VARIABLE}", message.send_key),
    ]
    if content.text:
        form.append(("text", content.text))
    if content.html:
        form.append(("html", content.html))
    if content.reply_to:
        form.append(("h:Reply-To", mailbox(content.reply_to)))
    form += [(f"h:{name}", value) for name, value in content.headers]
    return form


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = object_in(answer.body)
    if answer.status == 200:
        receipt = receipt_in(body.get("id"))
        return Accepted(receipt, "200") if receipt else Unknown("truncated", "no_receipt")
    said = body.get("message")
    words = said.lower() if isinstance(said, str) else ""
    if answer.status == 400 and "'from' parameter" in words:
        return AccountError(Reason.SENDER, "http_400/from")
    if answer.status == 400 and ("'to' parameter" in words or "to parameter" in words):
        return Rejected(Reason.INVALID_ADDRESS, "http_400/to")
    return outcome_of(answer, "", {}, now, pace=ThrottleScope.RATE, suspect=Reason.BAD_CONTENT)


def find(answer: Response, send_key: str) -> Finding | None:
    """What a complete page of events proves; None where ours is not among them. Pure."""
    rows = rows_in(object_in(answer.body).get("items"))
    if answer.status != 200 or rows is None:
        return NoAnswer(f"http_{answer.status}")
    for row in rows:
        variables = row.get("user-variables")
        if isinstance(variables, dict) and variables.get(VARIABLE) == send_key:
            return Found(_message_id(row))
    if len(rows) >= ROWS_MAX:
        return NoAnswer("more_pages")
    # Other accepted messages to the same recipient are to be expected. Anything else was not asked for.
    return None if all(row.get("event") == "accepted" for row in rows) else NoAnswer("no_match")


def _message_id(row: dict[str, object]) -> str:
    """The id as the send gives it, in angle brackets; events show it bare."""
    message = row.get("message")
    headers = message.get("headers") if isinstance(message, dict) else None
    bare = receipt_in(headers.get("message-id")) if isinstance(headers, dict) else ""
    return f"<{bare.strip('<>')}>" if bare else ""
