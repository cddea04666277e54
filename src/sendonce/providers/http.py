"""Any HTTP API by configuration: an in-house service, or a vendor without an adapter of its own.

    url, method, login         where the request goes
    body_json or body_form     what it says: a template with {{ to }}, {{ text }}, {{ subject }}, {{ html }},
                               {{ sender }}, {{ reply_to }}, {{ unsubscribe }}, {{ send_key }},
                               {{ delivery_key }}
    key_*                      where the API takes an idempotency key, and how long it honours it
    receipt_*, code_*, rules   how to read the answer
    lookup_*                   how to ask for a message by our key
    events, question           how it tells what became of one: calling back, or asked (`http_question`)

What is configured is what can be promised: with a key the account is class K, else with a look-up class
L, else N. Values are put into the parsed structure, never into its text, so no message can change the
shape of a request; in a URL they are percent-encoded.

What a status means where no rule says otherwise, and why: `_STATUSES` at the end. A rule that an API
documents ("503 is not processed") belongs into `rules`; a guess does not. With a receipt configured, a
2xx without one is unknown: it may be a gateway that speaks, not the API.

Sources: RFC 9110 section 15 (status codes), RFC 6585 (429), RFC 8470 (425), the httpapi working group's
draft on Idempotency-Key (409 in progress, 422 other payload).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, assert_never
from urllib.parse import quote, urlencode

import jinja2
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import SandboxedEnvironment

from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.outcome import (
    Absent,
    Accepted,
    AccountError,
    Failed,
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
from sendonce.core.retry_after import parse_retry_after
from sendonce.ports.provider import EmailContent, Message, Promise, ProviderClass, Start
from sendonce.ports.secret import Secret
from sendonce.providers.call import ask, call
from sendonce.providers.http_events import HttpEvents, HttpEventSource, dig
from sendonce.providers.http_question import HttpQuestion
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.http_client import HttpClient, Limits, Origin, Response, encode_request, parse_url


class Meaning(StrEnum):
    """What a rule makes of an answer; one word per outcome. `duplicate`: accepted, and known already."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    THROTTLED = "throttled"
    ACCOUNT_ERROR = "account_error"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Rule:
    """The first rule that fits an answer decides. `failed` only where the API documents "not processed"."""

    outcome: Meaning = field(metadata={"meaning": "What the answer means."})
    status: str = field(default="*", metadata={"meaning": "`429`, `5xx` or `*`."})
    code: str = field(default="", metadata={"meaning": "The code at `code_path`; empty: any or none."})
    reason: Reason = field(default=Reason.OTHER, metadata={"meaning": "Why, for everything but throttling."})
    scope: ThrottleScope = field(
        default=ThrottleScope.UNDECLARED, metadata={"meaning": "Whom a throttling is about."}
    )
    suppress: bool = field(default=False, metadata={"meaning": "Never send to this address again."})

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-5](?:xx|[0-9]{2})|\*", self.status):
            raise InvalidInput(
                f"{self.status!r} must be a status such as 429, or 4xx, 5xx, *", field="status"
            )

    def fits(self, status: int, code: str) -> bool:
        statuses = (str(status), f"{status // 100}xx", "*")
        return self.status in statuses and self.code in ("", code)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """One account at one HTTP API. Paths are dotted (`data.0.id`); times in seconds."""

    url: str = field(metadata={"meaning": "Where to send; after the host it may hold `{{ send_key }}`."})
    method: Literal["POST", "PUT", "PATCH"] = field(default="POST", metadata={"meaning": "HTTP method."})
    headers: Mapping[str, str] = field(default_factory=dict, metadata={"meaning": "More headers."})
    secret_headers: Mapping[str, Secret] = field(
        default_factory=dict, metadata={"meaning": "Headers that hold credentials."}
    )
    bearer: Secret = field(
        default_factory=lambda: Secret(""), metadata={"meaning": "Token for `Authorization: Bearer`."}
    )
    basic_username: str = field(default="", metadata={"meaning": "Name for Basic authentication."})
    basic_password: Secret = field(
        default_factory=lambda: Secret(""), metadata={"meaning": "Password for Basic authentication."}
    )
    body_json: str = field(
        default="", metadata={"meaning": 'JSON template: `{"to": "{{ to }}", "text": "{{ text }}"}`.'}
    )
    body_form: Mapping[str, str] = field(
        default_factory=dict, metadata={"meaning": "Form fields and their templates."}
    )
    key_header: str = field(default="", metadata={"meaning": "Header of the idempotency key."})
    key_field: str = field(default="", metadata={"meaning": "Path or form field of the idempotency key."})
    key_template: str = field(default="{{ send_key }}", metadata={"meaning": "The key itself."})
    key_window_s: float = field(
        default=0.0, metadata={"meaning": "How long the API honours a key, by its documents.", "min": 0}
    )
    receipt_path: str = field(default="", metadata={"meaning": "Where the message id is in a JSON answer."})
    receipt_header: str = field(default="", metadata={"meaning": "Or the header that holds it."})
    code_path: str = field(default="", metadata={"meaning": "Where the error code is in a JSON answer."})
    rules: tuple[Rule, ...] = field(default=(), metadata={"meaning": "What answers mean, first match wins."})
    throttle_scope: ThrottleScope = field(
        default=ThrottleScope.UNDECLARED, metadata={"meaning": "Whom a 429 is about, where no rule says."}
    )
    lookup_url: str = field(default="", metadata={"meaning": "GET URL that finds a message by our key."})
    lookup_rows_path: str = field(
        default="", metadata={"meaning": "Where the rows are; empty: the answer is one row, or a list."}
    )
    lookup_match_path: str = field(
        default="",
        metadata={"meaning": "Where a row holds our key; empty: the URL alone names the message."},
    )
    lookup_match: str = field(default="{{ send_key }}", metadata={"meaning": "What stands there."})
    lookup_receipt_path: str = field(default="", metadata={"meaning": "Where a row holds the message id."})
    lookup_absent_statuses: tuple[int, ...] = field(
        default=(404,), metadata={"meaning": "Statuses that mean: no such message."}
    )
    lookup_believable: bool = field(
        default=False,
        metadata={"meaning": "Whether a missing message was not accepted, once the index lag is over."},
    )
    index_lag_s: float = field(
        default=0.0,
        metadata={"meaning": "How long an accepted message may be missing from the look-up.", "min": 0},
    )
    arrival_max_s: float = field(
        default=60.0,
        metadata={"meaning": "How long after a call its request may still take effect.", "min": 0},
    )
    events: HttpEvents | None = field(
        default=None,
        metadata={"meaning": "How to verify and read its callbacks: see *Events by configuration*."},
    )
    question: HttpQuestion | None = field(
        default=None,
        metadata={"meaning": "How to ask what became of a message: see *Asking by configuration*."},
    )
    check_url: str = field(default="", metadata={"meaning": "GET URL that answers 2xx to a good login."})
    allow_plain_http: bool = field(default=False, metadata={"meaning": "Allow `http://` URLs."})
    ca_file: Path | None = field(
        default=None, metadata={"meaning": "PEM file of a private authority to trust besides."}
    )
    connect_timeout_s: float = field(
        default=10.0, metadata={"meaning": "A free connection, TCP and TLS together.", "min": 0.01}
    )
    timeout_s: float = field(
        default=30.0, metadata={"meaning": "From the request to its whole answer.", "min": 0.01}
    )
    idle_s: float = field(
        default=4.0,
        metadata={"meaning": "An unused connection is closed after this; below the API's own.", "min": 0},
    )
    connections_max: int = field(
        default=512,
        metadata={"meaning": "Open at once, in each process; at least the account's `lanes`.", "min": 1},
    )

    def __post_init__(self) -> None:
        if bool(self.body_json) == bool(self.body_form):
            raise InvalidInput(
                "must stand alone: write body_json or body_form, one of the two", field="body_json"
            )
        if self.bearer and self.basic_username:
            raise InvalidInput("must stand alone: write bearer or basic_username, not both", field="bearer")
        if bool(self.basic_username) != bool(self.basic_password):
            missing = "basic_password" if self.basic_username else "basic_username"
            raise InvalidInput(
                "must be written: Basic authentication needs a name and a password", field=missing
            )
        if self.key_header and self.key_field:
            raise InvalidInput(
                "must stand alone: write key_header or key_field, not both", field="key_header"
            )
        if bool(self.key_header or self.key_field) != (self.key_window_s > 0):
            raise InvalidInput(
                "must be written with key_header or key_field, and only then: how long the API honours "
                "a key, by its documents",
                field="key_window_s",
            )
        if self.question and not (self.receipt_path or self.receipt_header):
            raise InvalidInput("must go with question: it asks by the message id", field="receipt_path")
        if self.lookup_believable and not self.lookup_url:
            raise InvalidInput("must go with a lookup_url", field="lookup_believable")


class HttpProvider:
    """`ports.provider.Provider` for one account. `now`: microseconds UTC, to read Retry-After.

    Raises `ConfigError` for a template or URL that cannot work.
    """

    def __init__(self, settings: HttpSettings, *, now: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._now = now or SystemClock().now
        self._url = _Url("url", settings.url)
        self._lookup = _Url("lookup_url", settings.lookup_url) if settings.lookup_url else None
        self._check = _Url("check_url", settings.check_url) if settings.check_url else None
        self._key = _template("key_template", settings.key_template)
        self._match = _template("lookup_match", settings.lookup_match)
        self._body = _body(settings)
        self._headers = headers_of(settings)
        for url in (self._url, self._lookup, self._check):
            if url is not None and url.origin.scheme == "http" and not settings.allow_plain_http:
                raise ConfigError(f"{url.name} is http://: use https://, or write allow_plain_http = true")
        self._client = client_of(settings)
        self._try_out()

    @property
    def promise(self) -> Promise:
        settings = self._settings
        return Promise(
            _class_of(settings),
            timeout_s=settings.timeout_s,
            key_window_s=settings.key_window_s,
            arrival_max_s=settings.arrival_max_s,
            index_lag_s=settings.index_lag_s,
            lookup=bool(settings.lookup_url),
            echo=settings.events is not None and bool(settings.events.reference_path),
        )

    async def send(self, message: Message, *, start: Start) -> Outcome:
        settings = self._settings
        try:
            data = self._encode(_fields(message))
        except (ValueError, jinja2.TemplateError):
            return Rejected(Reason.BAD_CONTENT, "encoding")
        answer = await call(self._client, self._url.origin, data, start=start, timeout_s=settings.timeout_s)
        return classify(answer, settings, self._now()) if isinstance(answer, Response) else answer

    async def look_up(self, message: Message) -> Finding:
        if self._lookup is None:
            return NoAnswer("unsupported")
        fields = _fields(message)
        answer = await self._get(self._lookup, fields)
        if not isinstance(answer, Response):
            return NoAnswer(answer)
        return find(answer, self._settings, self._match(fields))

    async def check(self) -> str:
        if self._check is None:
            return "not checked: write check_url, a GET that answers 2xx to a good login"
        answer = await self._get(self._check, _SAMPLE)
        if not isinstance(answer, Response):
            raise ConfigError(f"check_url cannot be reached ({answer}): mend it, or ca_file")
        if answer.status in (401, 403):
            raise ConfigError(f"check_url refused the login ({answer.status}): mend the credentials")
        if answer.status // 100 != 2:
            raise ConfigError(
                f"check_url answered {answer.status}: name one that answers 2xx to a good login"
            )
        return f"check_url answered {answer.status}"

    async def close(self) -> None:
        await self._client.close()

    def _encode(self, fields: Mapping[str, str]) -> bytes:
        settings = self._settings
        content_type, body = self._body(fields)
        headers = [*((name, value.reveal()) for name, value in self._headers), ("Content-Type", content_type)]
        if settings.key_header:
            headers.append((settings.key_header, self._key(fields)))
        return encode_request(self._url.origin, settings.method, self._url.target(fields), headers, body)

    async def _get(self, url: _Url, fields: Mapping[str, str]) -> Response | str:
        headers = [(name, value.reveal()) for name, value in self._headers]
        data = encode_request(url.origin, "GET", url.target(fields), headers, b"")
        return await ask(self._client, url.origin, data, timeout_s=self._settings.timeout_s)

    def _try_out(self) -> None:
        """What is wrong with a header or a template shows now, not at the first message."""
        try:
            self._encode(_SAMPLE)
        except (ValueError, jinja2.TemplateError):
            raise ConfigError(
                "headers, key_header or a template gives no valid request: see their values"
            ) from None


def client_of(settings: HttpSettings) -> HttpClient:
    """The account's connections. Nothing is opened yet."""
    return HttpClient(
        limits=Limits(
            connections_max=settings.connections_max,
            connect_timeout_s=settings.connect_timeout_s,
            idle_s=settings.idle_s,
        ),
        ca_file=str(settings.ca_file) if settings.ca_file else None,
        allow_plain=settings.allow_plain_http,
    )


def http_events(settings: HttpSettings) -> HttpEventSource | None:
    """Who reads its callbacks; None: the settings do not say how."""
    return HttpEventSource(settings.events) if settings.events else None


# The answer


def classify(answer: Response, settings: HttpSettings, now: int) -> Outcome:
    """What a complete answer to a send means; pure. `now` is for a date in Retry-After."""
    body = _json(answer.body) if settings.code_path or settings.receipt_path else None
    code = _word(dig(body, settings.code_path)) if settings.code_path else ""
    rule = next((rule for rule in settings.rules if rule.fits(answer.status, code)), None)
    rule = rule or _STATUSES.get(answer.status) or _CLASSES.get(answer.status // 100) or Rule(Meaning.UNKNOWN)
    said = "/".join(part for part in (f"http_{answer.status}", _safe(code)) if part)
    match rule.outcome:
        case Meaning.ACCEPTED | Meaning.DUPLICATE:
            receipt = _receipt(answer, body, settings)
            if receipt is None:
                return Unknown("truncated", f"{said}/no_receipt")
            return Accepted(receipt, said, rule.outcome is Meaning.DUPLICATE or _replayed(answer))
        case Meaning.REJECTED:
            return Rejected(rule.reason, said, rule.suppress)
        case Meaning.THROTTLED:
            scope = rule.scope if rule.scope is not ThrottleScope.UNDECLARED else settings.throttle_scope
            return Throttled(
                scope,
                said,
                parse_retry_after(answer.header("retry-after"), now, said_at=answer.header("date")),
            )
        case Meaning.ACCOUNT_ERROR:
            return AccountError(rule.reason, said)
        case Meaning.FAILED:
            return Failed(
                rule.reason,
                said,
                parse_retry_after(answer.header("retry-after"), now, said_at=answer.header("date")),
            )
        case Meaning.UNKNOWN:
            return Unknown("bad_gateway" if answer.status in (502, 504) else "server_error", said)
        case _:
            assert_never(rule.outcome)


def find(answer: Response, settings: HttpSettings, ours: str) -> Finding:
    """What a complete answer to a look-up proves; pure. `ours` is what a row must hold to be ours."""
    if answer.status in settings.lookup_absent_statuses:
        return Absent(settings.lookup_believable)
    if answer.status != 200:
        return NoAnswer(f"http_{answer.status}")
    body = _json(answer.body)
    rows = dig(body, settings.lookup_rows_path) if settings.lookup_rows_path else body
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        return NoAnswer("bad_answer")
    if not rows:
        return Absent(settings.lookup_believable)
    for row in rows:
        if not settings.lookup_match_path or _word(dig(row, settings.lookup_match_path)) == ours:
            return Found(
                _word(dig(row, settings.lookup_receipt_path)) if settings.lookup_receipt_path else ""
            )
    return NoAnswer("no_match")  # rows of others: it did not search for what we asked, so it proves nothing


def _receipt(answer: Response, body: object, settings: HttpSettings) -> str | None:
    """The receipt; "" where none is configured, None where it is missing."""
    if settings.receipt_header:
        return _word(answer.header(settings.receipt_header) or "") or None
    if settings.receipt_path:
        return _word(dig(body, settings.receipt_path)) or None
    return ""


def _replayed(answer: Response) -> bool:
    """The common, if undocumented by any RFC, mark of an answer that was given before."""
    return (answer.header("idempotent-replayed") or "").lower() == "true"


def _json(body: bytes) -> object:
    try:
        return json.loads(body.decode("utf-8-sig"))  # RFC 8259, 8.1: UTF-8, a mark at most ignored
    except (ValueError, RecursionError):
        return None


def _word(value: object) -> str:
    """A short printable word from an answer: an id or a code."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    word = str(value)
    return word if _WORD.fullmatch(word) else ""


def _safe(code: str) -> str:
    """A code for the ledger. What might be an address or a number of a customer is left out."""
    return code if _SAFE.fullmatch(code) else ""


_WORD = re.compile(r"[!-~]{1,200}")
_SAFE = re.compile(r"(?!\d{7})[A-Za-z0-9_.-]{1,48}")


# The request

Fields = Mapping[str, str]
Template = Callable[[Fields], str]


def _fields(message: Message) -> Fields:
    content = message.content
    email = content if isinstance(content, EmailContent) else None
    fields = {
        "to": message.to,
        "text": content.text,
        "sender": content.sender,
        "subject": email.subject if email else "",
        "html": email.html if email else "",
        "reply_to": email.reply_to if email else "",
        "unsubscribe": email.unsubscribe if email else "",
        "send_key": message.send_key,
        "delivery_key": message.delivery_key,
    }
    "".join(fields.values()).encode()  # a lone surrogate ends here
    return fields


class _Url:
    """A URL whose part after the host may be a template; the values in it are percent-encoded."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        where = _URL.fullmatch(url)
        if where is None:
            raise ConfigError(f"{name} = {url!r} must be https://host/path, with templates in the path only")
        self.origin: Origin = parse_url(where[1])[0]
        target = where[2] or "/"
        self._fixed = target if _is_fixed(target) else ""
        self._target = _template(name, target)
        parse_url(where[1] + self.target(_SAMPLE))

    def target(self, fields: Fields) -> str:
        if self._fixed:  # most are, and percent-encoding a text that is not used is a fifth of a send
            return self._fixed
        return self._target({name: quote(value, safe="") for name, value in fields.items()})


def _template(name: str, text: str) -> Template:
    """A function from fields to text. Raises `ConfigError` for a template that cannot work."""
    if only := _ONE_FIELD.fullmatch(text):
        if only[1] in _SAMPLE:
            field_name = only[1]
            return lambda fields: fields[field_name]
    elif _is_fixed(text):
        return lambda fields: text
    try:
        unknown = find_undeclared_variables(_ENVIRONMENT.parse(text)) - set(_SAMPLE)
        template = _ENVIRONMENT.from_string(text)
    except jinja2.TemplateError as error:
        raise ConfigError(f"{name} is no template: {error}") from None
    if unknown:
        raise ConfigError(f"{name} uses {', '.join(sorted(unknown))}; there is {', '.join(sorted(_SAMPLE))}")
    return lambda fields: template.render(fields)


def _is_fixed(text: str) -> bool:
    return not any(mark in text for mark in ("{{", "{%", "{#"))


def _body(settings: HttpSettings) -> Callable[[Fields], tuple[str, bytes]]:
    """A function from fields to content type and body, with the key in it where it belongs there."""
    if settings.body_form:
        form = dict(settings.body_form)
        if settings.key_field:
            form[settings.key_field] = settings.key_template
        templates = {name: _template(f"body_form.{name}", text) for name, text in form.items()}
        return partial(_form_body, templates)
    try:
        shape = json.loads(settings.body_json)
    except ValueError as error:
        raise ConfigError(f"body_json is no JSON: {error}; templates stand inside of quotes") from None
    if settings.key_field:
        _plant(shape, settings.key_field, settings.key_template)
    return partial(_json_body, _tree(shape))


def _form_body(templates: Mapping[str, Template], fields: Fields) -> tuple[str, bytes]:
    form = [(name, template(fields)) for name, template in templates.items()]
    return "application/x-www-form-urlencoded", urlencode(form).encode("ascii")


def _json_body(tree: Callable[[Fields], Any], fields: Fields) -> tuple[str, bytes]:
    return "application/json", _encode_json(tree(fields)).encode("ascii")


_encode_json = json.JSONEncoder(separators=(",", ":")).encode


def _plant(shape: object, path: str, template: str) -> None:
    *parents, last = path.split(".")
    for step in parents:
        shape = shape.setdefault(step, {}) if isinstance(shape, dict) else None
    if not isinstance(shape, dict):
        raise ConfigError(f"key_field = {path!r} leads through something that is no object in body_json")
    shape[last] = template


def _tree(shape: Any) -> Callable[[Fields], Any]:
    """The parsed JSON template as a function that fills in its texts, and nothing but its texts."""
    if isinstance(shape, dict):
        members = {name: _tree(value) for name, value in shape.items()}
        return lambda fields: {name: member(fields) for name, member in members.items()}
    if isinstance(shape, list):
        items = [_tree(value) for value in shape]
        return lambda fields: [item(fields) for item in items]
    if isinstance(shape, str):
        return _template("body_json", shape)
    return lambda fields: shape


def headers_of(settings: HttpSettings) -> tuple[tuple[str, Secret], ...]:
    headers = {name: Secret(value) for name, value in settings.headers.items()}
    headers.update(settings.secret_headers)
    if settings.bearer:
        headers["Authorization"] = Secret(f"Bearer {settings.bearer.reveal()}")
    if settings.basic_username:
        login = f"{settings.basic_username}:{settings.basic_password.reveal()}"
        headers["Authorization"] = Secret("Basic " + base64.b64encode(login.encode()).decode())
    lower = [name.lower() for name in headers]
    taken = {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding"}
    for name in headers:
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or name.lower() in taken:
            raise ConfigError(f"the header {name!r} is not yours to set: it follows from the request")
        if lower.count(name.lower()) > 1:
            raise ConfigError(f"the header {name!r} is set twice: keep one")
    return tuple(headers.items())


def _class_of(settings: HttpSettings) -> ProviderClass:
    if settings.key_header or settings.key_field:
        return ProviderClass.KEY
    return ProviderClass.LOOKUP if settings.lookup_url else ProviderClass.NEITHER


_ENVIRONMENT = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
_ONE_FIELD = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_URL = re.compile(r"(https?://[^/?#{}\s]+)([/?].*)?")
_SAMPLE: Fields = {
    "to": "+12025550123",
    "text": "text",
    "sender": "sender",
    "subject": "subject",
    "html": "html",
    "reply_to": "",
    "unsubscribe": "",
    "send_key": "0" * 64,
    "delivery_key": "reminder:customer:sms",
}

# Statuses that mean something else than their class.
_STATUSES: Mapping[int, Rule] = {
    # A redirect is not followed. These three say that the request belongs elsewhere, so nobody took it;
    # 302 and 303 are how some services answer what they did take.
    **dict.fromkeys((301, 307, 308), Rule(Meaning.ACCOUNT_ERROR, reason=Reason.CONFIGURATION)),
    401: Rule(Meaning.ACCOUNT_ERROR, reason=Reason.AUTHENTICATION),
    402: Rule(Meaning.ACCOUNT_ERROR, reason=Reason.CREDIT),
    403: Rule(Meaning.ACCOUNT_ERROR, reason=Reason.AUTHENTICATION),
    # The address, the method or the type of the body is not what the API has.
    **dict.fromkeys((404, 405, 406, 411, 415, 501), Rule(Meaning.ACCOUNT_ERROR, reason=Reason.CONFIGURATION)),
    408: Rule(Meaning.UNKNOWN),  # a proxy may say it after the request went on
    409: Rule(Meaning.UNKNOWN),  # under a key: the first call is still under way
    413: Rule(Meaning.REJECTED, reason=Reason.TOO_LARGE),
    414: Rule(Meaning.REJECTED, reason=Reason.TOO_LARGE),
    431: Rule(Meaning.REJECTED, reason=Reason.TOO_LARGE),
    425: Rule(Meaning.FAILED, reason=Reason.UNAVAILABLE),  # by definition not processed
    429: Rule(Meaning.THROTTLED),
    400: Rule(Meaning.REJECTED, reason=Reason.BAD_CONTENT),
    422: Rule(Meaning.REJECTED, reason=Reason.BAD_CONTENT),
}
_CLASSES: Mapping[int, Rule] = {
    2: Rule(Meaning.ACCEPTED),
    4: Rule(Meaning.REJECTED),
    # 3: unknown. 5: unknown, since many a 500 was sent after the message had gone out.
}
