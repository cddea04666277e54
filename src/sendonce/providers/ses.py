"""Email through Amazon SES, API version 2. Class N with echo: no idempotency key, and no search.

    POST {base_url}/v2/email/outbound-emails    JSON, SigV4    ->  200 {"MessageId": ...}

- The message goes as raw MIME (`mime`), so that both ways to SES, this and SMTP, send the same text. SES puts
  its own Message-ID and Date in place of ours; `X-Sendonce-Key` stays.
- Echo: the send key is the message tag `sendonce`. With a `configuration_set` that publishes events, each
  event repeats it, the first one (`Send`) says "accepted", and so settles what a lost response left open.
- Pace: SES drops what comes above the account's rate or daily quota and says so, as TooManyRequestsException
  (429) or ThrottlingException (400); the words tell the quota from the rate. There is no Retry-After.
- An answer that names an error means "does not send the email"; a 5xx does not name one: unknown.
- success@, bounce@, complaint@, ooto@ and suppressionlist@simulator.amazonses.com are for tests.

Requests are signed by `sendonce.aws`. Credentials are an access key, or a session's with its token; a role of
the machine is not asked for.

Sources: docs.aws.amazon.com: ses/latest/APIReference-V2/API_SendEmail, API_GetAccount, CommonErrors;
ses/latest/dg/{manage-sending-quotas-errors, troubleshoot-error-messages, header-fields,
send-an-email-from-console, event-publishing-retrieving-sns-contents}; IAM/latest/UserGuide/
create-signed-request; github.com/awslabs/aws-c-auth tests/aws-signing-test-suite (test vectors).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sendonce.aws import sign
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
    email_of,
    json_body,
    object_in,
    outcome_of,
    receipt_in,
    reject,
    throttle,
)
from sendonce.providers.mime import build_email
from sendonce.providers.sns import TOPIC
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import Response

TAG = "sendonce"


@dataclass(frozen=True, slots=True, kw_only=True)
class SesSettings(ApiSettings):
    """Amazon SES in one region, for one access key. Times in seconds."""

    region: str = field(metadata={"meaning": "The AWS region, such as `eu-west-1`."})
    access_key_id: str = field(metadata={"meaning": "An access key that may `ses:SendEmail`."})
    secret_access_key: Secret = field(metadata={"meaning": "Its secret."})
    session_token: Secret = field(
        default_factory=lambda: Secret(""), metadata={"meaning": "The session's token, for a temporary key."}
    )
    configuration_set: str = field(
        default="", metadata={"meaning": "The configuration set to send with; one that publishes events."}
    )
    event_topics: tuple[str, ...] = field(
        default=(),
        metadata={"meaning": "ARNs of the SNS topics that its events are published to."},
    )
    base_url: str = field(
        default="", metadata={"meaning": "Where the API is; empty: the region's. Or a sandbox."}
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)+-[0-9]+", self.region):
            raise InvalidInput(f"{self.region!r} must be a region such as eu-west-1", field="region")
        if not re.fullmatch(r"[A-Za-z0-9]{8,128}", self.access_key_id):
            raise InvalidInput("must be letters and digits, such as AKIA...", field="access_key_id")
        if not self.secret_access_key:
            raise InvalidInput("must not be empty: it was shown once", field="secret_access_key")
        for topic in self.event_topics:
            if not TOPIC.fullmatch(topic):
                raise InvalidInput(
                    f"{topic!r} must be a topic such as arn:aws:sns:eu-west-1:123456789012:ses",
                    field="event_topics",
                )
        if not self.base_url:
            object.__setattr__(self, "base_url", f"https://email.{self.region}.amazonaws.com")
        ApiSettings.__post_init__(self)


class SesProvider:
    """`ports.provider.Provider` for SES in one region. `now`: microseconds UTC, for the signature."""

    def __init__(self, settings: SesSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._api = Api(settings)

    @property
    def promise(self) -> Promise:
        return Promise(
            ProviderClass.NEITHER,
            timeout_s=self._settings.timeout_s,
            echo=bool(self._settings.configuration_set),
        )

    async def send(self, message: Message, *, start: Start) -> Outcome:
        content = email_of(message)
        if not isinstance(content, EmailContent):
            return content
        if not message.to.isascii():
            return Rejected(Reason.NOT_CAPABLE, "smtputf8")  # SES takes no address outside ASCII
        body = body_of(lambda: json_body(_fields(message, content, self._settings.configuration_set)))
        if not isinstance(body, bytes):
            return body
        path = "/v2/email/outbound-emails"
        headers = self._signed("POST", path, [("Content-Type", "application/json")], body)
        answer = await self._api.send(path, headers, body, start=start)
        return classify(answer, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        return NoAnswer("unsupported")  # messages can be asked for by SES's own id only

    async def check(self) -> str:
        path = "/v2/email/account"
        answer = await self._api.checked(
            path,
            self._signed("GET", path, [], b""),
            "access_key_id and secret_access_key (may it ses:GetAccount?), or this machine's clock",
        )
        if answer.status != 200:
            raise ConfigError(f"{self._settings.base_url} answered {answer.status}: mend region or base_url")
        return _account_line(object_in(answer.body))

    async def close(self) -> None:
        await self._api.close()

    def _signed(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> list[tuple[str, str]]:
        """The headers with the date, the session and the signature."""
        settings = self._settings
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._now())
        headers = [*headers, ("X-Amz-Date", f"{moment:%Y%m%dT%H%M%SZ}")]
        if settings.session_token:
            headers.append(("X-Amz-Security-Token", settings.session_token.reveal()))
        signature = sign(
            method,
            self._api.base + path,
            [*headers, ("Host", self._api.origin.authority)],
            body,
            access_key_id=settings.access_key_id,
            secret=settings.secret_access_key,
            region=settings.region,
            service="ses",
        )
        return [*headers, ("Authorization", signature)]


def _fields(message: Message, content: EmailContent, configuration_set: str) -> dict[str, object]:
    raw = base64.b64encode(build_email(message, content)).decode()
    fields: dict[str, object] = {
        "Destination": {"ToAddresses": [message.to]},  # in place of the message's own headers
        "Content": {"Raw": {"Data": raw}},
        "EmailTags": [{"Name": TAG, "Value": message.send_key}],
    }
    if configuration_set:
        fields["ConfigurationSetName"] = configuration_set
    return fields


def _account_line(account: dict[str, object]) -> str:
    quota = account.get("SendQuota")
    rate, daily = (
        (quota.get("MaxSendRate"), quota.get("Max24HourSend")) if isinstance(quota, dict) else (None, None)
    )
    allowed = (
        f"allowed are {rate:g}/s and {daily:g}/d"
        if isinstance(rate, int | float) and isinstance(daily, int | float)
        else "its quota was not told"
    )
    if account.get("SendingEnabled") is False:
        return f"access key accepted; {allowed}; sending is switched off for this account"
    if account.get("ProductionAccessEnabled") is False:
        return (
            f"access key accepted; {allowed}; in SES's own sandbox, so only verified recipients are reached"
        )
    return f"access key accepted; {allowed}"


# The answer


def classify(answer: Response, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = object_in(answer.body)
    if answer.status == 200:
        receipt = receipt_in(body.get("MessageId"))
        return Accepted(receipt, "200") if receipt else Unknown("truncated", "no_receipt")
    said = body.get("message", body.get("Message"))
    words = said.lower() if isinstance(said, str) else ""
    code = _error(answer, body)
    if answer.status < 500:
        if code in THROTTLES and "daily message quota" in words:
            return outcome_of(answer, code, {code: throttle(ThrottleScope.QUOTA)}, now)
        if code == "MessageRejected" and "not verified" in words:
            return AccountError(Reason.SENDER, code)
        if code == "BadRequestException" and "from address" in words:
            return AccountError(Reason.SENDER, code)
    return outcome_of(answer, code, CODES, now, pace=ThrottleScope.RATE, suspect=Reason.BAD_CONTENT)


def _error(answer: Response, body: dict[str, object]) -> str:
    """The error's name: of a header (at times `Name:http://...`) or the body (at times `namespace#Name`)."""
    named = answer.header("x-amzn-errortype") or body.get("__type") or body.get("code")
    return code_in(named.split(":")[0].rpartition("#")[2]) if isinstance(named, str) else ""


THROTTLES = ("TooManyRequestsException", "ThrottlingException", "Throttling")

# API_SendEmail and CommonErrors of the API reference
CODES: Codes = {
    **{name: throttle(ThrottleScope.RATE) for name in THROTTLES},
    "LimitExceededException": throttle(ThrottleScope.UNDECLARED),
    "MessageRejected": reject(Reason.BAD_CONTENT),  # "it contains invalid content"
    "BadRequestException": reject(Reason.BAD_CONTENT),
    "ValidationException": reject(Reason.BAD_CONTENT),
    "RequestEntityTooLargeException": reject(Reason.TOO_LARGE),
    "AccountSuspendedException": blame(Reason.AUTHENTICATION),
    "SendingPausedException": blame(Reason.AUTHENTICATION),  # of the account or the configuration set
    "MailFromDomainNotVerifiedException": blame(Reason.SENDER),
    "NotFoundException": blame(Reason.CONFIGURATION),  # no such configuration set
    "AccessDeniedException": blame(Reason.AUTHENTICATION),
    "ExpiredTokenException": blame(Reason.AUTHENTICATION),
    "IncompleteSignature": blame(Reason.AUTHENTICATION),
    "InvalidClientTokenId": blame(Reason.AUTHENTICATION),
    "InvalidSignatureException": blame(Reason.AUTHENTICATION),  # also a clock that is wrong
    "MissingAuthenticationTokenException": blame(Reason.AUTHENTICATION),
    "NotAuthorized": blame(Reason.AUTHENTICATION),
    "OptInRequired": blame(Reason.AUTHENTICATION),
    "RequestExpired": blame(Reason.AUTHENTICATION),  # a clock that is wrong
    "SignatureDoesNotMatch": blame(Reason.AUTHENTICATION),
    "UnrecognizedClientException": blame(Reason.AUTHENTICATION),
}
