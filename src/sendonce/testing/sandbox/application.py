"""The HTTP side of the sandbox: two APIs to send by, and one to steer and to count.

POST /v1/messages, /v1/emails                              send (generic)
GET  /v1/messages?reference=   GET /v1/messages/{id}       look up; the same for emails
GET  /v1/account                                           are the credentials right?
POST /2010-04-01/Accounts/{Sid}/Messages.json              send (Twilio)
GET  .../Messages.json?To=&From=&DateSent=  .../Messages/{sid}.json  .../Accounts/{Sid}.json
/resend/..., /postmark/..., ...                            other vendors' APIs, see `vendors`

GET  /control    POST /control      rules of each channel; the body is a JSON merge patch
GET  /report?interval_s=            POST /reset
GET  /effects?marker=               GET /effects.ndjson, /arrivals.ndjson, /events.ndjson
GET  /healthz
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from sendonce.core.errors import InvalidInput
from sendonce.testing.sandbox.channel import Call, Channel, Later, Request, Verdict
from sendonce.testing.sandbox.door import THROTTLED, Answer, Effect
from sendonce.testing.sandbox.events import EventPoster
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import ChannelRules, RetryAfter, SandboxSettings
from sendonce.testing.sandbox.shapes import (
    GenericShape,
    Malformed,
    Shape,
    TwilioShape,
    account_in,
    sent_between,
)
from sendonce.testing.sandbox.vendors import VENDORS, Vendor

LOOKUP_ROWS_MAX = 1_000
_TWILIO = b"/2010-04-01/Accounts/"


@dataclass(slots=True)
class Sending:
    """A call to send that came by HTTP. `parting` is how it counts when the client leaves."""

    shape: Shape
    channel: Channel
    call: Call
    parting: Answer = field(default=Answer.GONE)


class SandboxApplication:
    """Routes; the server calls it, the channels decide."""

    def __init__(
        self,
        settings: SandboxSettings,
        channels: Mapping[str, Channel],
        events: EventPoster,
        *,
        now: Callable[[], int],
        later: Later,
    ) -> None:
        self._settings = settings
        self._channels = channels
        self._events = events
        self._now = now
        self._later = later
        self._started_at = now()
        self._sms = GenericShape("sms", settings.api_token)
        self._email = GenericShape("email", settings.api_token)
        self._twilio = TwilioShape(settings.twilio_account_sid, settings.twilio_auth_token)
        self._vendors: Mapping[str, Vendor] = {
            vendor.name: vendor(settings.api_token, now) for vendor in VENDORS
        }

    # what the server calls

    def headers_done(self, exchange: Exchange) -> None:
        shape = self._sends(exchange)
        if shape is None:
            return
        channel = self._channels[shape.channel]
        call = channel.begin(exchange.at, authorized=shape.authorized(exchange))
        exchange.call = Sending(shape, channel, call)
        if call.admitted and channel.strikes("cut_early"):
            call.end(Answer.CUT_EARLY)
            exchange.reset()

    def complete(self, exchange: Exchange) -> None:
        if exchange.call is None:
            self._other(exchange)
        else:
            self._send(exchange, exchange.call)

    def gone(self, exchange: Exchange) -> None:
        if exchange.call is not None:
            exchange.call.call.end(exchange.call.parting)

    # sending

    def _sends(self, exchange: Exchange) -> Shape | None:
        if exchange.method != b"POST":
            return None
        match exchange.target:
            case b"/v1/messages":
                return self._sms
            case b"/v1/emails":
                return self._email
            case target if target.startswith(_TWILIO) and target.endswith(b"/Messages.json"):
                return self._twilio
            case target:
                name, path = _below(target.decode("latin-1").partition("?")[0])
                vendor = self._vendors.get(name)
                return vendor if vendor is not None and vendor.sends(path) else None

    def _send(self, exchange: Exchange, sending: Sending) -> None:
        shape, channel, call = sending.shape, sending.channel, sending.call
        if call.refusal is not None:
            call.end(call.refusal)
            headers = retry_after(channel.rules, self._now()) if call.refusal in THROTTLED else ()
            status, body = shape.turned_away(call.refusal)
            exchange.reply(status, body, headers=(*headers, *shape.headers(call.refusal, "")))
            return
        try:
            request = shape.read(exchange)
        except Malformed as error:
            call.end(error.answer)
            exchange.reply(error.status, shape.error(error.status, error.code, str(error)))
            return
        if isinstance(shape, Vendor):
            request = request._replace(vendor=shape.name)
        verdict = channel.judge(request)
        if verdict.delay_s > 0:
            self._later(verdict.delay_s, lambda: self._answer(exchange, sending, request, verdict))
        else:
            self._answer(exchange, sending, request, verdict)

    def _answer(self, exchange: Exchange, sending: Sending, request: Request, verdict: Verdict) -> None:
        if exchange.done:  # the client has left; `gone` has ended the call
            return
        if verdict.answer is Answer.HUNG:
            sending.parting = Answer.HUNG
            exchange.hang()
            return
        status, body = sending.shape.answer(request, verdict, sending.channel.rules, sending.call.at)
        sending.call.end(verdict.answer)
        match verdict.answer:
            case Answer.LOST_BEFORE | Answer.LOST_AFTER:
                exchange.reset()
            case Answer.TRUNCATED:
                exchange.truncate(status, body)
            case _:
                headers = sending.shape.headers(verdict.answer, verdict.receipt)
                exchange.reply(status, body, headers=headers)

    # everything else

    def _other(self, exchange: Exchange) -> None:
        path, _, query_text = exchange.target.decode("latin-1").partition("?")
        query = dict(parse_qsl(query_text, keep_blank_values=True))
        match exchange.method.decode(), path:
            case "GET", "/healthz":
                _json(exchange, 200, {"status": "ok"})
            case "GET", "/report":
                self._report(exchange, query)
            case "GET", "/control":
                _json(exchange, 200, self._control())
            case "POST", "/control":
                self._change(exchange)
            case "POST", "/reset":
                self._reset(exchange)
            case "GET", "/effects":
                self._effects(exchange, query)
            case "GET", "/effects.ndjson":
                _lines(exchange, (effect.as_json() for effect in self._all_effects(query)))
            case "GET", "/arrivals.ndjson":
                channels = self._chosen(query)
                _lines(exchange, (row for channel in channels for row in channel.door.arrivals()))
            case "GET", "/events.ndjson":
                _lines(exchange, self._events.posted_json())
            case "GET", _ if path.startswith("/v1/"):
                self._generic(exchange, path, query)
            case "GET", _ if path.startswith(_TWILIO.decode()):
                self._twilio_resource(exchange, path, query)
            case "GET", _ if (vendor := self._vendors.get(_below(path)[0])) is not None:
                self._vendor_resource(exchange, vendor, _below(path)[1], query)
            case _:
                _error(exchange, 404, "not_found", f"nothing answers to {exchange.method.decode()} {path}")

    def _report(self, exchange: Exchange, query: Mapping[str, str]) -> None:
        try:
            interval_s = float(query["interval_s"]) if "interval_s" in query else None
            if interval_s is not None and not 0 < interval_s < math.inf:
                raise ValueError
        except ValueError:
            _error(exchange, 400, "invalid_input", "interval_s must be a number of seconds above 0")
            return
        channels = {
            name: channel.door.report(interval_s or channel.rules.rate_interval_s)
            for name, channel in self._channels.items()
        }
        report = {
            "seed": self._settings.seed,
            "durable": False,
            "started_at": self._started_at,
            "now_at": self._now(),
            "events_posted": self._events.posted_count,
            "channels": channels,
        }
        _json(exchange, 200, report)

    def _control(self) -> dict[str, Any]:
        return {name: channel.rules_json() for name, channel in self._channels.items()}

    def _change(self, exchange: Exchange) -> None:
        try:
            patch = json.loads(exchange.body)
            unknown = [name for name in patch if name not in self._channels]
            if unknown:
                raise InvalidInput(f"{unknown[0]!r} is no channel; there are sms and email")
            for name, rules in patch.items():  # all or nothing
                if not isinstance(rules, dict):
                    raise InvalidInput(f"{name}: must be an object of rules to change")
                self._channels[name].check(rules)
            for name, rules in patch.items():
                self._channels[name].change(rules)
        except (ValueError, TypeError):
            _error(exchange, 400, "malformed", 'the body must be JSON such as {"sms": {"rate_limit": 10}}')
        except InvalidInput as error:
            _error(exchange, 400, error.code, str(error))
        else:
            _json(exchange, 200, self._control())

    def _reset(self, exchange: Exchange) -> None:
        try:
            rules = bool(json.loads(exchange.body or b"{}").get("rules", False))
        except (ValueError, AttributeError):
            _error(exchange, 400, "malformed", 'the body must be empty or {"rules": true}')
            return
        for channel in self._channels.values():
            channel.reset(rules=rules)
        self._events.forget()
        _json(exchange, 200, {"status": "reset"})

    def _effects(self, exchange: Exchange, query: Mapping[str, str]) -> None:
        if "marker" in query:
            found = [
                effect
                for channel in self._chosen(query)
                for effect in channel.door.with_marker(query["marker"])
            ]
        else:
            found = list(self._all_effects(query))
        _json(exchange, 200, {"effects": [effect.as_json() for effect in found]})

    def _all_effects(self, query: Mapping[str, str]) -> Iterable[Effect]:
        return (effect for channel in self._chosen(query) for effect in channel.door.effects)

    def _chosen(self, query: Mapping[str, str]) -> list[Channel]:
        wanted = query.get("channel")
        return [channel for name, channel in self._channels.items() if wanted in (None, name)]

    # look-ups

    def _generic(self, exchange: Exchange, path: str, query: Mapping[str, str]) -> None:
        _, _, kind, *rest = path.split("/")
        shape = self._email if kind == "emails" else self._sms
        channel = self._channels[shape.channel]
        if not shape.authorized(exchange) or channel.rules.refuse_credentials:
            exchange.reply(*shape.turned_away(Answer.UNAUTHORIZED))
        elif kind == "account" and not rest:
            _json(exchange, 200, {"status": "active"})
        elif kind not in ("messages", "emails") or len(rest) > 1 or not channel.rules.lookup:
            exchange.reply(404, shape.error(404, "not_found", "no such resource"))
        elif self._lookup_fails(channel):
            exchange.reply(503, shape.error(503, "unavailable", "the search is down"))
        elif rest and channel.strikes("throttle"):
            headers = retry_after(channel.rules, self._now())
            exchange.reply(*shape.turned_away(Answer.THROTTLED_SCRIPT), headers=headers)
        elif rest:
            effect = channel.door.with_receipt(unquote(rest[0]))
            if effect is None:
                exchange.reply(404, shape.error(404, "not_found", "no such message"))
            else:
                said = [each.kind for each in self._events.said_of(channel, effect)]
                _json(exchange, 200, {**shape.message(effect), "status": (said or ["accepted"])[-1]})
        elif not query.get("reference"):
            exchange.reply(400, shape.error(400, "missing", "reference is required"))
        else:
            found = channel.visible(channel.door.with_reference(query["reference"]))
            exchange.reply(200, shape.found(found[:LOOKUP_ROWS_MAX]))

    def _twilio_resource(self, exchange: Exchange, path: str, query: Mapping[str, str]) -> None:
        shape, channel = self._twilio, self._channels["sms"]
        account = account_in(path.encode())
        resource = path.removeprefix(f"{_TWILIO.decode()}{account}")
        if not shape.authorized(exchange) or channel.rules.refuse_credentials:
            exchange.reply(*shape.turned_away(Answer.UNAUTHORIZED))
        elif resource == ".json":
            answer = {"sid": account, "friendly_name": "Sandbox", "status": "active", "type": "Full"}
            _json(exchange, 200, answer)
        elif not channel.rules.lookup:
            exchange.reply(404, shape.error(404, 20404, "The requested resource was not found"))
        elif self._lookup_fails(channel):
            exchange.reply(503, shape.error(503, 20503, "Service Unavailable"))
        elif resource == "/Messages.json":
            self._twilio_list(exchange, channel, account, query)
        else:
            sid = resource.removeprefix("/Messages/").removesuffix(".json")
            effect = channel.door.with_receipt(sid)
            if effect is None or effect.account != account:
                exchange.reply(404, shape.error(404, 20404, "The requested resource was not found"))
            else:
                _json(exchange, 200, shape.message(effect))

    def _twilio_list(
        self, exchange: Exchange, channel: Channel, account: str, query: Mapping[str, str]
    ) -> None:
        try:
            first, last = sent_between(query)
        except ValueError:
            exchange.reply(400, self._twilio.error(400, 20001, "DateSent must be YYYY-MM-DD"))
            return
        to, sender = query.get("To"), query.get("From")
        door = channel.door
        found = [
            effect
            for effect in channel.visible(door.with_recipient(to) if to else door.effects)
            if effect.account == account
            and (not sender or effect.sender == sender)
            and first <= effect.at < last
        ]
        exchange.reply(200, self._twilio.page(exchange.target.decode("latin-1"), found, query))

    def _vendor_resource(
        self, exchange: Exchange, vendor: Vendor, path: str, query: Mapping[str, str]
    ) -> None:
        channel = self._channels[vendor.channel]
        effects = vendor.look_up(path, query, channel.door)
        if not vendor.authorized(exchange) or channel.rules.refuse_credentials:
            exchange.reply(*vendor.turned_away(Answer.UNAUTHORIZED))
        elif (account := vendor.account(path)) is not None:
            exchange.reply(*account)
        elif any(question := vendor.asked(path)):
            self._vendor_question(exchange, vendor, channel, *question)
        elif effects is None or not channel.rules.lookup:
            exchange.reply(404, vendor.error(404, "not_found", "no such resource"))
        elif self._lookup_fails(channel):
            exchange.reply(*vendor.turned_away(Answer.ERROR_BEFORE))
        else:
            exchange.reply(200, vendor.found(channel.visible(effects)[:LOOKUP_ROWS_MAX]))

    def _vendor_question(
        self, exchange: Exchange, vendor: Vendor, channel: Channel, receipt: str, number: int
    ) -> None:
        """What became of a message, for who is not called back."""
        receipt = receipt or self._events.told_of(number)
        effect = channel.door.with_receipt(receipt)
        if self._lookup_fails(channel):
            exchange.reply(*vendor.turned_away(Answer.ERROR_BEFORE))
        elif channel.strikes("throttle"):
            headers = retry_after(channel.rules, self._now())
            exchange.reply(*vendor.turned_away(Answer.THROTTLED_SCRIPT), headers=headers)
        elif effect is None or effect.vendor != vendor.name:
            exchange.reply(404, vendor.error(404, "not_found", "no such message"))
        else:
            exchange.reply(200, vendor.told(effect, self._events.said_of(channel, effect), number))

    def _lookup_fails(self, channel: Channel) -> bool:
        channel.door.lookups += 1
        return channel.strikes("lookup_error")


def retry_after(rules: ChannelRules, now: int) -> tuple[tuple[bytes, bytes], ...]:
    """The `Retry-After` header of a 429 at `now` (microseconds UTC), or none."""
    match rules.retry_after:
        case RetryAfter.SECONDS:
            value = str(math.ceil(rules.retry_after_s))
        case RetryAfter.DATE:
            moment = datetime.fromtimestamp(math.ceil(now / 1_000_000 + rules.retry_after_s), UTC)
            value = format_datetime(moment, usegmt=True)
        case RetryAfter.GARBAGE:
            value = rules.retry_after_text
        case RetryAfter.ZERO:
            value = "0"
        case RetryAfter.ABSENT:
            return ()
    return ((b"retry-after", value.encode()),)


def _below(path: str) -> tuple[str, str]:
    """A path's first part, and the path below it."""
    _, _, rest = path.partition("/")
    name, _, below = rest.partition("/")
    return name, f"/{below}"


def _json(exchange: Exchange, status: int, value: Any) -> None:
    exchange.reply(status, json.dumps(value).encode())


def _lines(exchange: Exchange, rows: Iterable[Any]) -> None:
    body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    exchange.reply(200, body, content_type=b"application/x-ndjson")


def _error(exchange: Exchange, status: int, code: str, message: str) -> None:
    _json(exchange, status, {"error": {"code": code, "message": message}})
