"""What the adapters of HTTP APIs have in common: the way there, and how an answer is read.

    ApiSettings    where the API is and how long to wait: the keys that every such account has
    Api            one account's client: `send` under the rules of `call`, `get` for what changes nothing
    outcome_of     an answer that is no success, by the provider's own code first, then by its status

An adapter adds what only it knows: the request, the table of codes, the class and its times. The line
that none of them crosses: a 5xx is unknown whatever its body says, unless the adapter's documents say
"not processed"; and no text of an answer goes into the ledger, only codes of a known form.

Sources: RFC 9110 section 15 (status codes), RFC 6585 section 4 (429).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sendonce.address import parse_sender
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Absent,
    AccountError,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.retry_after import parse_retry_after
from sendonce.ports.provider import EmailContent, Message, SmsContent, Start
from sendonce.providers.call import ask, call
from sendonce.providers.mime import one_line
from sendonce.runtime.http_client import HttpClient, Limits, Response, encode_request, parse_url

Codes = Mapping[str, Callable[[str], Outcome]]
"""A provider's code, and the outcome that it makes of itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """The way to an API. Times in seconds."""

    base_url: str = field(metadata={"meaning": "Where the API is: another region, or a sandbox."})
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
        origin, _ = parse_url(self.base_url)
        if origin.scheme == "http" and not self.allow_plain_http:
            raise InvalidInput(
                "must be https://, else credentials travel in clear (for a sandbox: allow_plain_http = true)",
                field="base_url",
            )


class Api:
    """One account's connections to one API."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self.origin, base = parse_url(settings.base_url)
        self.base = base.rstrip("/")
        self._client = HttpClient(
            limits=Limits(
                connections_max=settings.connections_max, connect_timeout_s=settings.connect_timeout_s
            ),
            ca_file=str(settings.ca_file) if settings.ca_file else None,
            allow_plain=settings.allow_plain_http,
        )

    async def send(
        self, path: str, headers: list[tuple[str, str]], body: bytes, *, start: Start
    ) -> Response | Outcome:
        """POST once; see `call`."""
        data = encode_request(self.origin, "POST", self.base + path, [*_COMMON, *headers], body)
        return await call(self._client, self.origin, data, start=start, timeout_s=self._settings.timeout_s)

    async def get(self, path: str, headers: list[tuple[str, str]]) -> Response | str:
        """The answer to a GET, or why there is none."""
        data = encode_request(self.origin, "GET", self.base + path, [*_COMMON, *headers], b"")
        return await ask(self._client, self.origin, data, timeout_s=self._settings.timeout_s)

    async def checked(self, path: str, headers: list[tuple[str, str]], credentials: str) -> Response:
        """The answer to a GET that proves the login. Raises `ConfigError` that names what to mend."""
        answer = await self.get(path, headers)
        if not isinstance(answer, Response):
            raise ConfigError(f"{self._settings.base_url} cannot be reached ({answer}): mend base_url")
        if answer.status in (401, 403):
            raise ConfigError(f"the login was refused ({answer.status}): mend {credentials}")
        return answer

    async def close(self) -> None:
        await self._client.close()


# The request


def email_of(message: Message) -> EmailContent | Outcome:
    """The email, for one recipient: what an API could take for several, or for a header, is refused."""
    if not isinstance(message.content, EmailContent):
        return AccountError(Reason.CONFIGURATION, "not_email")
    return message.content if _ADDRESS.fullmatch(message.to) else Rejected(Reason.INVALID_ADDRESS, "syntax")


def sms_of(message: Message) -> SmsContent | Outcome:
    """The text message, for one number."""
    if not isinstance(message.content, SmsContent):
        return AccountError(Reason.CONFIGURATION, "not_sms")
    return message.content if _NUMBER.fullmatch(message.to) else Rejected(Reason.INVALID_ADDRESS, "syntax")


def body_of(write: Callable[[], bytes]) -> bytes | Outcome:
    """The body that `write` makes, or what it means that there is none: no other try would make one."""
    try:
        return write()
    except InvalidInput:
        return Rejected(Reason.SENDER, "sender_syntax")
    except ValueError:
        return Rejected(Reason.BAD_CONTENT, "encoding")


def json_body(value: object) -> bytes:
    """Compact JSON in ASCII, the same bytes each time. Raises ValueError for text with no UTF-8 form."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text.encode()  # a lone surrogate ends here; escaped, it would reach the provider
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def mailbox(sender: str) -> str:
    """`Name <address>` as an API in Unicode takes it, quoted where it must be. Raises `InvalidInput`."""
    name, address = parse_sender(sender)
    name = one_line(name)
    if not name:
        return address
    return f"{_quoted(name)} <{address}>"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'


# The answer


def outcome_of(
    answer: Response,
    code: str,
    codes: Codes,
    now: int,
    *,
    pace: ThrottleScope = ThrottleScope.UNDECLARED,
    suspect: Reason = Reason.OTHER,
) -> Outcome:
    """What an answer without a receipt means; pure.

    code     the provider's own word, "" where it gave none; `now` is for a date in Retry-After
    pace     whom a 429 is about where no code says
    suspect  why a refusal that nobody explains is one
    """
    said = code or f"http_{answer.status}"
    if answer.status >= 500:
        return Unknown("bad_gateway" if answer.status in (502, 504) else "server_error", said)
    wait_s = parse_retry_after(answer.header("retry-after"), now, said_at=answer.header("date"))
    make = codes.get(code)
    if make is not None:
        outcome = make(code)
        return Throttled(outcome.scope, outcome.code, wait_s) if isinstance(outcome, Throttled) else outcome
    match answer.status:
        case 429:
            return Throttled(pace, said, wait_s)
        case 401 | 403:
            return AccountError(Reason.AUTHENTICATION, said)
        case 402:
            return AccountError(Reason.CREDIT, said)
        # A redirect is not followed: this is not the address, the method or the type of the API.
        case 301 | 307 | 308 | 404 | 405 | 406 | 411 | 415:
            return AccountError(Reason.CONFIGURATION, said)
        case 413 | 414 | 431:
            return Rejected(Reason.TOO_LARGE, said)
        # 408 may be said after the request went on; 409 speaks of another call that is under way.
        case status if 400 <= status < 500 and status not in (408, 409):
            return Rejected(suspect, said)
        case _:
            return Unknown("server_error", said)


def absent(message: Message, now: int, *, lag_s: float | None, retention_s: float) -> Absent:
    """What a search without a result says. Believable only where somebody has stated the search's lag, and
    not for a message so old that the provider may have forgotten it. The core waits the lag out."""
    kept = now - message.frozen_at < retention_s * 1_000_000
    return Absent(believable=lag_s is not None and kept)


def about_absence(lag_s: float | None) -> str:
    """What the operator of a class L account should know when it is checked."""
    if lag_s is not None:
        return f"a missing message is called absent {lag_s:g} s after the rest of the settle time"
    return "without index_lag a missing message is never called absent, and stays uncertain"


def reject(reason: Reason, *, suppress: bool = False) -> Callable[[str], Outcome]:
    return lambda code: Rejected(reason, code, suppress)


def blame(reason: Reason) -> Callable[[str], Outcome]:
    """Our account, sender, credit or configuration."""
    return lambda code: AccountError(reason, code)


def throttle(scope: ThrottleScope) -> Callable[[str], Outcome]:
    return lambda code: Throttled(scope, code)


def doubt(code: str) -> Outcome:
    return Unknown("server_error", code)


def object_in(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; empty where there is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def rows_in(value: object) -> list[dict[str, Any]] | None:
    """A list of objects; None where it is anything else."""
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return value
    return None


def receipt_in(value: object) -> str:
    """A message id; "" for what cannot be one."""
    return value if isinstance(value, str) and _RECEIPT.fullmatch(value) else ""


def code_in(value: object) -> str:
    """A code for the ledger: a short word, or a number too short for a telephone's; else ""."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return text if isinstance(text, str) and _CODE.fullmatch(text) else ""


# Resend and others refuse a request without a User-Agent (resend.com/docs/api-reference/introduction).
_COMMON = (("User-Agent", "sendonce"), ("Accept", "application/json"))
_ADDRESS = re.compile(r"""[^\s,;:<>()\[\]"\\@\x00-\x1f\x7f]+@[^\s,;:<>()"\\@\x00-\x1f\x7f]+""")
_NUMBER = re.compile(r"\+[1-9][0-9]{5,17}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~ -]+")
_RECEIPT = re.compile(r"[!-~]{1,200}")
_CODE = re.compile(r"(?!\d{7})[A-Za-z0-9_.-]{1,64}")
