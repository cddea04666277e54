"""Resend: `POST /emails` with an Idempotency-Key, `GET /domains`. Source: resend.com/docs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from sendonce.testing.sandbox.channel import Request
from sendonce.testing.sandbox.door import Answer
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import Refusal
from sendonce.testing.sandbox.shapes import Malformed
from sendonce.testing.sandbox.vendors.vendor import Said, Vendor, json_in, text_in

KEY_MAX = 256


class Resend(Vendor):
    name = "resend"
    channel = "email"
    sender_refused = (403, "validation_error", "The example.com domain is not verified.")
    # Recipients are judged after acceptance; what an address can be refused for at once is its form.
    refusals: ClassVar[Mapping[Refusal, Said]] = {
        **dict.fromkeys(Refusal, (422, "validation_error", "Invalid `to` field. It must be an address.")),
        Refusal.BLOCKED: (451, "security_error", "We may have found a security issue with the request."),
        Refusal.BUSY: (503, "application_error", "An unexpected error occurred."),
    }
    failures: ClassVar[Mapping[Answer, Said]] = {
        Answer.UNAUTHORIZED: (401, "validation_error", "API key is invalid"),
        Answer.THROTTLED_RATE: (429, "rate_limit_exceeded", "Too many requests."),
        Answer.THROTTLED_CONCURRENCY: (429, "rate_limit_exceeded", "Too many requests."),
        Answer.THROTTLED_SCRIPT: (429, "rate_limit_exceeded", "Too many requests."),
        Answer.THROTTLED_QUOTA: (429, "daily_quota_exceeded", "You have reached your daily email quota."),
        Answer.KEY_IN_FLIGHT: (
            409,
            "concurrent_idempotent_requests",
            "The original request is in progress.",
        ),
        Answer.KEY_MISMATCH: (409, "invalid_idempotent_request", "This key had a different payload."),
        Answer.ERROR_BEFORE: (500, "application_error", "An unexpected error occurred."),
        Answer.ERROR_AFTER: (500, "internal_server_error", "An unexpected error occurred."),
    }

    def sends(self, path: str) -> bool:
        return path == "/emails"

    def read(self, exchange: Exchange) -> Request:
        data = json_in(exchange, 400, "validation_error")
        if not exchange.headers.get(b"user-agent"):
            raise Malformed(403, "1010", "requests must have a User-Agent")
        to, text, html = data.get("to"), text_in(data, "text"), text_in(data, "html")
        to = to[0] if isinstance(to, list) and len(to) == 1 else to
        if not to or not text_in(data, "from") or not isinstance(data.get("subject"), str):
            raise Malformed(422, "missing_required_field", "from, to and subject are required")
        if not isinstance(to, str) or "@" not in to[1:-1]:
            raise Malformed(422, "validation_error", "Invalid `to` field.", Answer.REFUSED)
        key = exchange.headers.get(b"idempotency-key", b"").decode("latin-1")
        if len(key) > KEY_MAX:
            raise Malformed(400, "invalid_idempotency_key", "The key must be between 1-256 chars.")
        return Request(
            recipients=(to,),
            sender=text_in(data, "from"),
            contents=(text, html, text_in(data, "subject")),
            receipt="49a3999c-0ce1-4ea6-ab68-{:012x}".format,
            reference=_tag(data.get("tags")),
            key=key,
            fingerprint=hash(exchange.body),
        )

    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        return 200, json.dumps({"id": receipt}).encode()

    def error(self, status: int, code: str | int, message: str) -> bytes:
        return json.dumps({"statusCode": status, "name": code, "message": message}).encode()

    def account(self, path: str) -> tuple[int, bytes] | None:
        return (200, b'{"object": "list", "data": []}') if path == "/domains" else None


def _tag(tags: object) -> str:
    """Our own among the tags, which events repeat."""
    pairs = tags if isinstance(tags, list) else []
    return next((str(pair["value"]) for pair in pairs if pair.get("name") == "sendonce"), "")
