"""Mailgun: `POST /v3/{domain}/messages`, `GET /v3/{domain}/events`. Source: documentation.mailgun.com."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import parse_qsl

from sendonce.testing.sandbox.channel import Request
from sendonce.testing.sandbox.door import Answer, Door, Effect
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import Refusal
from sendonce.testing.sandbox.shapes import Malformed, basic_credentials
from sendonce.testing.sandbox.vendors.vendor import Said, Vendor

MESSAGES = re.compile(r"/v3/[a-z0-9.-]+/messages")
EVENTS = re.compile(r"/v3/[a-z0-9.-]+/events")
NO_ADDRESS = "'to' parameter is not a valid address. please check documentation"


class Mailgun(Vendor):
    name = "mailgun"
    channel = "email"
    sender_refused = (400, "", "'from' parameter is not a valid address. please check documentation")
    # Suppressed recipients are accepted and dropped, which an event tells.
    refusals: ClassVar[Mapping[Refusal, Said]] = {
        **dict.fromkeys(Refusal, (400, "", NO_ADDRESS)),
        Refusal.BUSY: (503, "", "Service Unavailable"),
    }
    failures: ClassVar[Mapping[Answer, Said]] = {
        Answer.UNAUTHORIZED: (401, "", "Invalid private key"),
        Answer.THROTTLED_RATE: (429, "", "Too Many Requests"),
        Answer.THROTTLED_QUOTA: (429, "", "Too Many Requests"),
        Answer.THROTTLED_CONCURRENCY: (429, "", "Too Many Requests"),
        Answer.THROTTLED_SCRIPT: (429, "", "Too Many Requests"),
        Answer.ERROR_BEFORE: (500, "", "Internal Server Error"),
        Answer.ERROR_AFTER: (500, "", "Internal Server Error"),
    }

    def authorized(self, exchange: Exchange) -> bool:
        return not self.token or basic_credentials(exchange) == ("api", self.token)

    def sends(self, path: str) -> bool:
        return MESSAGES.fullmatch(path) is not None

    def read(self, exchange: Exchange) -> Request:
        try:
            form = dict(parse_qsl(exchange.body.decode(), keep_blank_values=True, errors="strict"))
        except ValueError:
            raise Malformed(400, "", "the body is no form") from None
        to, text, html = form.get("to", ""), form.get("text", ""), form.get("html", "")
        if not form.get("from") or not (text or html):
            raise Malformed(400, "", "Need at least one of 'text' or 'html' parameters specified")
        if "@" not in to[1:-1] or "," in to:
            raise Malformed(400, "", NO_ADDRESS, Answer.REFUSED)
        return Request(
            recipients=(to,),
            sender=form["from"],
            contents=(text, html, form.get("subject", "")),
            receipt="<20260101000000.{:06d}@mg.example.org>".format,
            reference=form.get("v:sendonce", ""),
        )

    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        return 200, json.dumps({"id": receipt, "message": "Queued. Thank you."}).encode()

    def error(self, status: int, code: str | int, message: str) -> bytes:
        return json.dumps({"message": message}).encode()

    def account(self, path: str) -> tuple[int, bytes] | None:
        return None  # the list of events proves the login

    def look_up(self, path: str, query: Mapping[str, str], door: Door) -> list[Effect] | None:
        if not EVENTS.fullmatch(path):
            return None
        if query.get("event") != "accepted" or query.get("ascending") != "yes":
            return []
        begin = int(query.get("begin", "0")) * 1_000_000
        return [effect for effect in door.with_recipient(query.get("recipient", "")) if effect.at >= begin]

    def found(self, effects: list[Effect]) -> bytes:
        items = [
            {
                "event": "accepted",
                "timestamp": effect.at / 1_000_000,
                "recipient": effect.to,
                "message": {"headers": {"message-id": effect.receipt.strip("<>"), "to": effect.to}},
                "user-variables": {"sendonce": effect.reference} if effect.reference else {},
            }
            for effect in effects
        ]
        return json.dumps({"items": items, "paging": {}}).encode()
