"""The HTTP APIs of the simulated provider: how a request is read and how a verdict is written.

    GenericShape  JSON with our own reference and idempotency key, as many vendors and in-house gateways
    TwilioShape   the Messages resource of Twilio's 2010-04-01 API: form, Basic auth, no reference, no key
    vendors.*     other vendors' APIs, one a file, each below a path of its own

A shape has no state and no opinion: what becomes of a call is decided in `channel`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from email.utils import format_datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qsl

from sendonce.testing.sandbox.channel import Request, Verdict
from sendonce.testing.sandbox.door import Answer, Effect
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import ChannelRules, Refusal

E164 = re.compile(r"\+[1-9]\d{6,14}")
GENERIC_RECEIPT = "sbx-{:06d}"
TWILIO_RECEIPT = "SM{:032x}"
TWILIO_BODY_MAX = 1600
TWILIO_MORE_INFO = "https://www.twilio.com/docs/errors/"
PAGE_SIZE = 50
PAGE_SIZE_MAX = 1000

# Refusal: (generic code, Twilio code, Twilio's words). Twilio's error and warning dictionary.
REFUSALS: Mapping[Refusal, tuple[str, int, str]] = {
    Refusal.INVALID: ("invalid_recipient", 21211, "The 'To' number {to} is not a valid phone number."),
    Refusal.NOT_MOBILE: ("not_mobile", 21614, "'To' number: {to}, is not a valid mobile number"),
    Refusal.OPTED_OUT: ("opted_out", 21610, "Attempt to send to unsubscribed recipient"),
    Refusal.BLOCKED: ("blocked", 21408, "Permission to send an SMS has not been enabled for the region"),
    Refusal.UNROUTABLE: ("unroutable", 21612, "The 'To' phone number cannot be reached"),
    Refusal.MAILBOX_FULL: ("mailbox_full", 30003, "Unreachable destination handset"),
    Refusal.BUSY: ("busy", 21611, "This 'From' number has exceeded the maximum number of queued messages"),
}
BUSY_STATUS = 503
REPLAYED = ((b"idempotent-replayed", b"true"),)
BUSY_TWILIO_STATUS = 429

# Answer: (HTTP status, generic code, Twilio code, words). The rest of the answers have no body.
ERRORS: Mapping[Answer, tuple[int, str, int, str]] = {
    Answer.UNAUTHORIZED: (401, "unauthorized", 20003, "Authenticate"),
    Answer.THROTTLED_RATE: (429, "rate_limited", 20429, "Too Many Requests"),
    Answer.THROTTLED_QUOTA: (429, "quota_exceeded", 63038, "Account exceeded the daily messages limit"),
    Answer.THROTTLED_CONCURRENCY: (429, "concurrency_limited", 20429, "Too Many Requests"),
    Answer.THROTTLED_SCRIPT: (429, "rate_limited", 20429, "Too Many Requests"),
    Answer.KEY_IN_FLIGHT: (409, "idempotency_in_flight", 20409, "A request with this key is under way"),
    Answer.KEY_MISMATCH: (422, "idempotency_mismatch", 20422, "This key was used for another request"),
    Answer.ERROR_BEFORE: (503, "unavailable", 20503, "Service Unavailable"),
    Answer.ERROR_AFTER: (500, "internal", 20500, "Internal Server Error"),
}


class Malformed(Exception):
    """The request cannot be read, or lacks what the API demands. `answer` is how the door counts it."""

    def __init__(self, status: int, code: str | int, message: str, answer: Answer = Answer.MALFORMED) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.answer = answer


class Shape(Protocol):
    """One API: reads requests, writes answers. Bodies are JSON."""

    @property
    def channel(self) -> str: ...

    def authorized(self, exchange: Exchange) -> bool:
        """Whether the credentials are right; all are where none are set."""

    def read(self, exchange: Exchange) -> Request:
        """The request to send. Raises `Malformed`."""

    def error(self, status: int, code: str | int, message: str) -> bytes:
        """The body of any error."""

    def answer(self, request: Request, verdict: Verdict, rules: ChannelRules, at: int) -> tuple[int, bytes]:
        """Status and body for what was decided; for a fault, what would have been said without it."""

    def turned_away(self, answer: Answer) -> tuple[int, bytes]:
        """Status and body for a call that was refused at its start."""

    def headers(self, answer: Answer, receipt: str) -> tuple[tuple[bytes, bytes], ...]:
        """What the API says of a whole answer in headers."""


@dataclass(frozen=True, slots=True)
class GenericShape:
    """`POST /v1/messages` (SMS) and `POST /v1/emails`: to, from, text, subject, html, reference,
    idempotency_key, callback_url. Answers 202 `{"id", "status", "reference"}`."""

    channel: str
    token: str

    def authorized(self, exchange: Exchange) -> bool:
        if not self.token:
            return True
        scheme, _, credentials = exchange.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            return credentials == self.token.encode()
        return basic_credentials(exchange)[1] == self.token

    def read(self, exchange: Exchange) -> Request:
        try:
            data = json.loads(exchange.body.decode())
            values = [data.get(name) or "" for name in _GENERIC_FIELDS]
        except (ValueError, AttributeError):
            raise Malformed(400, "malformed", "the body is not a JSON object") from None
        for name, value in zip(_GENERIC_FIELDS, values, strict=True):
            if type(value) is not str:
                raise Malformed(400, "malformed", f"{name} must be text")
        to, sender, text, html, subject, reference, key, callback = values
        if not to or not (text or html):
            raise Malformed(400, "missing", "to and text are required")
        if not self._can_be_reached(to):
            raise Malformed(400, "invalid_recipient", "to is not valid for the channel", Answer.REFUSED)
        return Request(
            recipients=(to,),
            sender=sender,
            contents=(text, html, subject),
            receipt=GENERIC_RECEIPT.format,
            reference=reference,
            key=exchange.headers.get(b"idempotency-key", b"").decode("latin-1") or key,
            fingerprint=hash(exchange.body),
            callback=callback,
        )

    def error(self, status: int, code: str | int, message: str) -> bytes:
        return json.dumps({"error": {"code": code, "message": message}}).encode()

    def answer(self, request: Request, verdict: Verdict, rules: ChannelRules, at: int) -> tuple[int, bytes]:
        if verdict.answer is Answer.REFUSED:
            if verdict.rule is None:
                return 403, self.error(403, "sender_not_allowed", "from is not yours to use")
            code = REFUSALS[verdict.rule.refusal][0]
            status = BUSY_STATUS if verdict.rule.refusal is Refusal.BUSY else 400
            return status, self.error(status, code, f"the recipient is refused: {code}")
        if verdict.answer in ERRORS:
            return self._error(verdict.answer, _server_error(verdict.answer, rules))
        reference = encode_basestring_ascii(request.reference)
        return 202, f'{{"id": "{verdict.receipt}", "status": "accepted", "reference": {reference}}}'.encode()

    def turned_away(self, answer: Answer) -> tuple[int, bytes]:
        return self._error(answer)

    def headers(self, answer: Answer, receipt: str) -> tuple[tuple[bytes, bytes], ...]:
        return REPLAYED if answer is Answer.REPLAYED else ()

    def found(self, effects: list[Effect]) -> bytes:
        """The answer to a look-up."""
        return json.dumps({"messages": [self.message(effect) for effect in effects]}).encode()

    def message(self, effect: Effect) -> dict[str, Any]:
        created_at = datetime.fromtimestamp(effect.at / 1_000_000, UTC).isoformat()
        return {
            "id": effect.receipt,
            "status": "accepted",
            "to": effect.to,
            "from": effect.sender,
            "reference": effect.reference,
            "created_at": created_at,
        }

    def _can_be_reached(self, to: str) -> bool:
        return E164.fullmatch(to) is not None if self.channel == "sms" else "@" in to[1:-1]

    def _error(self, answer: Answer, server_error: int = 0) -> tuple[int, bytes]:
        status, code, _, words = ERRORS[answer]
        status = server_error or status
        return status, self.error(status, code, words)


_GENERIC_FIELDS = (
    "to",
    "from",
    "text",
    "html",
    "subject",
    "reference",
    "idempotency_key",
    "callback_url",
)


@dataclass(frozen=True, slots=True)
class TwilioShape:
    """`POST /2010-04-01/Accounts/{Sid}/Messages.json`: To, From or MessagingServiceSid, Body,
    StatusCallback. Answers 201 with the Message resource, errors with code, message, more_info, status."""

    channel: ClassVar[str] = "sms"
    account_sid: str
    auth_token: str

    def authorized(self, exchange: Exchange) -> bool:
        sid, token = basic_credentials(exchange)
        if self.account_sid and self.account_sid not in (sid, account_in(exchange.target)):
            return False
        return not self.auth_token or token == self.auth_token

    def read(self, exchange: Exchange) -> Request:
        try:
            form = dict(parse_qsl(exchange.body.decode(), keep_blank_values=True, errors="strict"))
        except ValueError:
            raise Malformed(400, 21602, "The body is not a UTF-8 form.") from None
        to, text = form.get("To", ""), form.get("Body", "")
        sender = form.get("From", "") or form.get("MessagingServiceSid", "")
        if not to:
            raise Malformed(400, 21604, "A 'To' phone number is required.")
        if not sender:
            raise Malformed(400, 21603, "A 'From' phone number is required.")
        if not text:
            raise Malformed(400, 21602, "Message body is required.")
        if len(text) > TWILIO_BODY_MAX:
            raise Malformed(400, 21617, "The concatenated message body exceeds the 1600 character limit.")
        if not E164.fullmatch(to):
            raise Malformed(400, 21211, REFUSALS[Refusal.INVALID][2].format(to=to), Answer.REFUSED)
        return Request(
            recipients=(to,),
            sender=sender,
            contents=(text,),
            receipt=TWILIO_RECEIPT.format,
            account=account_in(exchange.target),
            callback=form.get("StatusCallback", ""),
        )

    def error(self, status: int, code: str | int, message: str) -> bytes:
        body = {"code": code, "message": message, "more_info": f"{TWILIO_MORE_INFO}{code}", "status": status}
        return json.dumps(body).encode()

    def answer(self, request: Request, verdict: Verdict, rules: ChannelRules, at: int) -> tuple[int, bytes]:
        to = request.recipients[0]
        if verdict.answer is Answer.REFUSED:
            if verdict.rule is None:
                words = f"The 'From' phone number {request.sender} is not a valid phone number for you."
                return 400, self.error(400, 21606, words)
            _, code, words = REFUSALS[verdict.rule.refusal]
            status = BUSY_TWILIO_STATUS if verdict.rule.refusal is Refusal.BUSY else 400
            return status, self.error(status, code, words.format(to=to))
        if verdict.answer in ERRORS:
            return self._error(verdict.answer, _server_error(verdict.answer, rules))
        message = _twilio_message(
            account=request.account,
            sid=verdict.receipt,
            to=to,
            sender=request.sender,
            text=request.contents[0],
            at=at,
            sent=False,
        )
        return 201, json.dumps(message).encode()

    def turned_away(self, answer: Answer) -> tuple[int, bytes]:
        return self._error(answer)

    def headers(self, answer: Answer, receipt: str) -> tuple[tuple[bytes, bytes], ...]:
        return ()

    def message(self, effect: Effect) -> dict[str, Any]:
        """The Message resource of a message that was taken."""
        return _twilio_message(
            account=effect.account,
            sid=effect.receipt,
            to=effect.to,
            sender=effect.sender,
            text=effect.text,
            at=effect.at,
            sent=True,
        )

    def page(self, target: str, effects: list[Effect], query: Mapping[str, str]) -> bytes:
        """One page of the Message list, newest first. `effects` are all that match."""
        size = min(max(_whole(query.get("PageSize"), PAGE_SIZE), 1), PAGE_SIZE_MAX)
        page = max(_whole(query.get("Page"), 0), 0)
        start = page * size
        newest_first = effects[::-1]
        rows = newest_first[start : start + size]
        more = start + size < len(newest_first)
        answer = {
            "messages": [self.message(effect) for effect in rows],
            "page": page,
            "page_size": size,
            "start": start,
            "end": start + len(rows) - 1 if rows else start,
            "uri": target,
            "first_page_uri": _with_page(target, 0, size),
            "previous_page_uri": _with_page(target, page - 1, size) if page else None,
            "next_page_uri": _with_page(target, page + 1, size) if more else None,
        }
        return json.dumps(answer).encode()

    def _error(self, answer: Answer, server_error: int = 0) -> tuple[int, bytes]:
        status, _, code, words = ERRORS[answer]
        status = server_error or status
        return status, self.error(status, code, words)


def _server_error(answer: Answer, rules: ChannelRules) -> int:
    """The configured status of a 5xx fault; 0 for any other answer."""
    match answer:
        case Answer.ERROR_BEFORE:
            return rules.error_status
        case Answer.ERROR_AFTER:
            return rules.error_after_status
        case _:
            return 0


def basic_credentials(exchange: Exchange) -> tuple[str, str]:
    """User and password of Basic authentication (RFC 7617); two empty strings without it."""
    scheme, _, credentials = exchange.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return "", ""
    return _decoded(credentials)


@lru_cache(maxsize=64)
def _decoded(credentials: bytes) -> tuple[str, str]:
    try:
        user, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


def account_in(target: bytes) -> str:
    """The account of `/2010-04-01/Accounts/{Sid}/...`, "" elsewhere."""
    parts = target.split(b"/", 4)
    return parts[3].decode("latin-1").removesuffix(".json") if len(parts) > 3 else ""


def sent_between(query: Mapping[str, str]) -> tuple[int, int]:
    """Twilio's DateSent, DateSent> and DateSent< as microseconds UTC, first inclusive, last exclusive.

    A date means the whole day in GMT. Raises ValueError for anything but ISO 8601.
    """
    first, last = 0, 2**62
    for name, value in query.items():
        match name:
            case "DateSent":
                first, last = _moment(value), _moment(value, end=True)
            case "DateSent>":
                first = _moment(value)
            case "DateSent<":
                last = _moment(value, end=True)
            case _:
                pass
    return first, last


def _moment(value: str, *, end: bool = False) -> int:
    if len(value) == len("2026-01-31"):
        day = date.fromisoformat(value)
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return round((start.timestamp() + (86_400 if end else 0)) * 1_000_000)
    moment = datetime.fromisoformat(value)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000) + end


def _twilio_message(
    *, account: str, sid: str, to: str, sender: str, text: str, at: int, sent: bool
) -> dict[str, Any]:
    created = _twilio_date(at // 1_000_000)
    service = sender.startswith("MG")
    uri = f"/2010-04-01/Accounts/{account}/Messages/{sid}"
    return {
        "account_sid": account,
        "api_version": "2010-04-01",
        "body": text,
        "date_created": created,
        "date_sent": created if sent else None,
        "date_updated": created,
        "direction": "outbound-api",
        "error_code": None,
        "error_message": None,
        "from": None if service else sender,
        "messaging_service_sid": sender if service else None,
        "num_media": "0",
        "num_segments": "1",
        "price": None,
        "price_unit": "USD",
        "sid": sid,
        "status": "sent" if sent else ("accepted" if service else "queued"),
        "subresource_uris": {"media": f"{uri}/Media.json"},
        "to": to,
        "uri": f"{uri}.json",
    }


@lru_cache(maxsize=16)
def _twilio_date(seconds: int) -> str:
    return format_datetime(datetime.fromtimestamp(seconds, UTC))


def _with_page(target: str, page: int, size: int) -> str:
    path, _, query = target.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith(("Page=", "PageSize="))]
    return f"{path}?{'&'.join([*kept, f'PageSize={size}', f'Page={page}'])}"


def _whole(value: str | None, default: int) -> int:
    return int(value) if value is not None and value.isascii() and value.isdigit() else default
