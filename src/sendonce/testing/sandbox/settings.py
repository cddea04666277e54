"""Everything that can be set in the sandbox, at start and at run time, in one frozen tree.

    SandboxSettings
    ├── ports, credentials, TLS, seed, marker      fixed when the sandbox starts
    ├── sms: ChannelRules                          limits, faults, recipients, keys, look-up, events;
    └── email: ChannelRules                        each can be changed while running (`POST /control`)

The JSON form has the same names. `merge_rules` is JSON merge patch (RFC 7396): what a patch names
changes, `null` means "back to the default", the rest stays. An unknown key or a value that breaks a
rule raises `sendonce.core.errors.InvalidInput`, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any

from sendonce.testing.sandbox import reading
from sendonce.testing.sandbox.reading import Span, Wrong, by


class RetryAfter(StrEnum):
    """What stands in the `Retry-After` header of a 429 (RFC 9110, 10.2.3)."""

    SECONDS = "seconds"
    DATE = "date"  # an HTTP-date, `retry_after_s` from now
    ABSENT = "absent"
    GARBAGE = "garbage"  # `retry_after_text`, word for word
    ZERO = "zero"


class Idempotency(StrEnum):
    """What the provider does with an idempotency key."""

    HONOURED = "honoured"  # same answer again; 409 while in flight; 422 when the body differs
    IGNORED = "ignored"


class Refusal(StrEnum):
    """Why a recipient is refused; `shapes` and `smtp_server` give it their protocol's code."""

    INVALID = "invalid"
    NOT_MOBILE = "not_mobile"
    OPTED_OUT = "opted_out"
    BLOCKED = "blocked"
    UNROUTABLE = "unroutable"
    MAILBOX_FULL = "mailbox_full"
    BUSY = "busy"  # for now: worth another try


class Tls(StrEnum):
    """How SMTP is secured."""

    NONE = "none"
    STARTTLS = "starttls"  # offered
    STARTTLS_REQUIRED = "starttls_required"  # nothing but EHLO before it
    IMPLICIT = "implicit"  # from the first byte, as on port 465


def _nested(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda value: reading.read(kind, value)


def _recipients(value: Any) -> tuple[RecipientRule, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError('must be a list such as [{"pattern": "^\\\\+1555", "refusal": "invalid"}]')
    return tuple(reading.read(RecipientRule, item) for item in value)


def _trigger(value: Any) -> Trigger:
    """A bare number is a probability."""
    return reading.read(Trigger, value if isinstance(value, (Mapping, Trigger)) else {"probability": value})


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a fault strikes. The three ways add up; all at zero is never.

    probability  of each eligible call, from the channel's seeded chance
    every        the k-th, 2k-th, ... eligible call
    next         as many eligible calls as this, from now on
    """

    probability: float = field(default=0.0, metadata=by(reading.number(0, 1)))
    every: int = field(default=0, metadata=by(reading.whole(0)))
    next: int = field(default=0, metadata=by(reading.whole(0)))

    def __post_init__(self) -> None:
        reading.validate(self)


NEVER = Trigger()


@dataclass(frozen=True, slots=True)
class RecipientRule:
    """Recipients that match `pattern` (searched, case ignored; empty: everybody) are refused.

    `reply` replaces the SMTP reply that goes with the refusal, for codes of one's own choice.
    """

    pattern: str = field(default="", metadata=by(reading.pattern))
    refusal: Refusal = field(default=Refusal.INVALID, metadata=by(reading.one_of(Refusal)))
    reply: str = field(default="", metadata=by(reading.reply))

    def __post_init__(self) -> None:
        reading.validate(self)


@dataclass(frozen=True, slots=True)
class EventRules:
    """What the provider says later, to the message's own callback URL or else to `events_url`.

    delay_s         after the effect; 0 may well be before the answer, as with real providers
    bounced         instead of delivered; Twilio's word is "undelivered", error 30003
    bounce_pattern  recipients that always bounce
    complained      besides delivered; email only
    stopped         after the delivery the customer answers STOP; SMS only
    repeated        the same event is posted twice
    lost            the event is never posted
    forged          signed with a secret that is not ours
    faulty          beside an item that cannot be read, where a vendor calls with several (SendGrid)
    """

    delay_s: Span = field(default=(0.1, 0.1), metadata=by(reading.span))
    bounced: Trigger = field(default=NEVER, metadata=by(_trigger))
    bounce_pattern: str = field(default="", metadata=by(reading.pattern))
    complained: Trigger = field(default=NEVER, metadata=by(_trigger))
    repeated: Trigger = field(default=NEVER, metadata=by(_trigger))
    lost: Trigger = field(default=NEVER, metadata=by(_trigger))
    stopped: Trigger = field(default=NEVER, metadata=by(_trigger))
    forged: Trigger = field(default=NEVER, metadata=by(_trigger))
    faulty: Trigger = field(default=NEVER, metadata=by(_trigger))

    def __post_init__(self) -> None:
        reading.validate(self)


@dataclass(frozen=True, slots=True)
class ChannelRules:
    """How one channel of the provider behaves. A limit of 0 means none.

    Limits, judged when a call starts; "admitted" calls are those that pass. A window begins to fill
    when its limit is set:
    rate_limit, rate_interval_s     admitted starts in any sliding window of the interval
    quota_limit, quota_interval_s   the same for a longer interval, with its own answer
    concurrency_limit               admitted calls open at once
    throttle                        429 (or its SMTP reply) for no reason but the script
    retry_after, _s, _text          see `RetryAfter`; seconds are rounded up to whole ones
    throttle_reply                  what SMTP answers; one that begins with 421 also hangs up

    Time:
    latency_s       from the complete request to the answer
    effect_delay_s  from the complete request to the effect; runs on when the client is gone

    Faults without an effect:
    cut_early       reset while the request is still arriving (SMTP: before the final dot)
    lost_before     reset after the complete request
    error_before    answered with `error_status` (SMTP: `error_reply`)
    Faults with an effect (the provider took the message):
    error_after     answered with `error_after_status` (SMTP: `error_reply`)
    lost_after      reset instead of an answer: accept, then drop
    truncated       half an answer, then the connection ends
    hung            no answer at all, until the client gives up

    Refusals:
    refuse_credentials  every call gets 401 (SMTP: 535), as after a rotated password
    refused_senders     pattern of senders that are not ours to use
    recipients          the first matching rule refuses

    Memory:
    idempotency, idempotency_window_s   on the generic API; counted from the first use of the key
    lookup, lookup_lag_s, lookup_error  whether there is a search, how late its index is, when it fails
    """

    rate_limit: int = field(default=0, metadata=by(reading.whole(0)))
    rate_interval_s: float = field(default=1.0, metadata=by(reading.number(0.001, 86_400)))
    quota_limit: int = field(default=0, metadata=by(reading.whole(0)))
    quota_interval_s: float = field(default=86_400.0, metadata=by(reading.number(0.001, 86_400 * 31)))
    concurrency_limit: int = field(default=0, metadata=by(reading.whole(0)))
    throttle: Trigger = field(default=NEVER, metadata=by(_trigger))
    retry_after: RetryAfter = field(default=RetryAfter.SECONDS, metadata=by(reading.one_of(RetryAfter)))
    retry_after_s: float = field(default=1.0, metadata=by(reading.number(0, 1e12)))
    retry_after_text: str = field(default="soon", metadata=by(reading.text))
    throttle_reply: str = field(default="450 4.7.1 Too many messages, slow down", metadata=by(reading.reply))

    latency_s: Span = field(default=(0.0, 0.0), metadata=by(reading.span))
    effect_delay_s: Span = field(default=(0.0, 0.0), metadata=by(reading.span))

    cut_early: Trigger = field(default=NEVER, metadata=by(_trigger))
    lost_before: Trigger = field(default=NEVER, metadata=by(_trigger))
    error_before: Trigger = field(default=NEVER, metadata=by(_trigger))
    error_after: Trigger = field(default=NEVER, metadata=by(_trigger))
    lost_after: Trigger = field(default=NEVER, metadata=by(_trigger))
    truncated: Trigger = field(default=NEVER, metadata=by(_trigger))
    hung: Trigger = field(default=NEVER, metadata=by(_trigger))
    error_status: int = field(default=503, metadata=by(reading.whole(500, 599)))
    error_after_status: int = field(default=500, metadata=by(reading.whole(500, 599)))
    error_reply: str = field(
        default="451 4.3.0 Temporary failure, try again later", metadata=by(reading.reply)
    )

    refuse_credentials: bool = field(default=False, metadata=by(reading.flag))
    refused_senders: str = field(default="", metadata=by(reading.pattern))
    recipients: tuple[RecipientRule, ...] = field(default=(), metadata=by(_recipients))

    idempotency: Idempotency = field(default=Idempotency.HONOURED, metadata=by(reading.one_of(Idempotency)))
    idempotency_window_s: float = field(default=86_400.0, metadata=by(reading.number(0, 86_400 * 31)))
    lookup: bool = field(default=True, metadata=by(reading.flag))
    lookup_lag_s: float = field(default=0.0, metadata=by(reading.number(0, 86_400)))
    lookup_error: Trigger = field(default=NEVER, metadata=by(_trigger))

    events: EventRules = field(default=EventRules(), metadata=by(_nested(EventRules)))

    def __post_init__(self) -> None:
        reading.validate(self)


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How the sandbox starts. Port 0 lets the system choose; only loopback hosts are allowed.

    marker                regular expression for what identifies a message by its content; its first
                          group, or else the whole match, is the marker
    smtp_username, smtp_password        empty: any login, or none, is accepted
    api_token                           of the generic API, as Bearer token or Basic password; empty: any
    twilio_account_sid, _auth_token     empty: any; the token also signs callbacks
    events_url, events_secret           where events go that have no callback of their own, `{vendor}` in
                                        it being the vendor's name; the secret signs them, as each does
    smtp_tls, tls_cert, tls_key         PEM files; without them a self-signed one is made with `openssl`
    """

    host: str = field(default="127.0.0.1", metadata=by(reading.loopback_host))
    smtp_port: int = field(default=0, metadata=by(reading.whole(0, 65_535)))
    http_port: int = field(default=0, metadata=by(reading.whole(0, 65_535)))
    seed: int = field(default=1, metadata=by(reading.whole(0)))
    marker: str = field(default=r"\[ref:([^\]\s]+)\]", metadata=by(reading.pattern))
    size_max: int = field(default=1_048_576, metadata=by(reading.whole(1_024, 64 * 1_048_576)))
    smtp_username: str = field(default="", metadata=by(reading.text))
    smtp_password: str = field(default="", repr=False, metadata=by(reading.text))
    smtp_tls: Tls = field(default=Tls.NONE, metadata=by(reading.one_of(Tls)))
    tls_cert: str = field(default="", metadata=by(reading.text))
    tls_key: str = field(default="", metadata=by(reading.text))
    api_token: str = field(default="", repr=False, metadata=by(reading.text))
    twilio_account_sid: str = field(default="", metadata=by(reading.text))
    twilio_auth_token: str = field(default="", repr=False, metadata=by(reading.text))
    events_url: str = field(default="", metadata=by(reading.text))
    events_secret: str = field(default="", repr=False, metadata=by(reading.text))
    sms: ChannelRules = field(default=ChannelRules(), metadata=by(_nested(ChannelRules)))
    email: ChannelRules = field(default=ChannelRules(), metadata=by(_nested(ChannelRules)))

    def __post_init__(self) -> None:
        reading.validate(self)


def read_settings(data: Mapping[str, Any]) -> SandboxSettings:
    """Settings from their JSON form. Raises `InvalidInput` that names the key, the value and the rule."""
    return reading.read(SandboxSettings, data)


def merge_rules(rules: ChannelRules, patch: Mapping[str, Any], *, channel: str) -> ChannelRules:
    """`rules` with a JSON merge patch applied. Raises `InvalidInput`; `rules` never changes."""
    try:
        return reading.read(ChannelRules, _merged(to_json(rules), patch))
    except Wrong as wrong:
        raise Wrong((channel, *wrong.path), wrong.rule) from None


def to_json(value: Any) -> Any:
    """The JSON form of settings or of any part of them; `read_settings` takes it back."""
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
