"""SendGrid: `POST /v3/mail/send`, `GET /v3/scopes`. Source: twilio.com/docs/sendgrid/api-reference."""

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

ARGUMENTS_MAX = 10_000
TO = "personalizations.0.to.0.email"


class Sendgrid(Vendor):
    """A code of this API is the field that an error is about."""

    name = "sendgrid"
    channel = "email"
    sender_refused = (403, "from", "The from address does not match a verified Sender Identity.")
    # SendGrid takes suppressed recipients and drops them; at once it refuses only what is no address.
    refusals: ClassVar[Mapping[Refusal, Said]] = {
        **dict.fromkeys(Refusal, (400, TO, "Does not contain a valid address.")),
        Refusal.BUSY: (503, "", "service not available"),
    }
    failures: ClassVar[Mapping[Answer, Said]] = {
        Answer.UNAUTHORIZED: (401, "", "The provided authorization grant is invalid, expired, or revoked"),
        Answer.THROTTLED_RATE: (429, "", "too many requests"),
        Answer.THROTTLED_QUOTA: (401, "", "Maximum credits exceeded"),
        Answer.THROTTLED_CONCURRENCY: (429, "", "too many requests"),
        Answer.THROTTLED_SCRIPT: (429, "", "too many requests"),
        Answer.ERROR_BEFORE: (500, "", "internal server error"),
        Answer.ERROR_AFTER: (500, "", "internal server error"),
    }

    def sends(self, path: str) -> bool:
        return path == "/v3/mail/send"

    def read(self, exchange: Exchange) -> Request:
        data = json_in(exchange, 400, "")
        try:
            (person,) = data["personalizations"]
            (to,) = person["to"]
            parts = {part["type"]: part["value"] for part in data["content"]}
            sender, arguments = data["from"]["email"], person.get("custom_args", {})
        except (KeyError, TypeError, ValueError):
            raise Malformed(400, "personalizations", "required") from None
        if not parts or not all(parts.values()):
            raise Malformed(400, "content.0.value", "The content value must not be empty.")
        if "@" not in str(to.get("email"))[1:-1]:
            raise Malformed(400, TO, "Does not contain a valid address.", Answer.REFUSED)
        if len(json.dumps(arguments)) > ARGUMENTS_MAX:
            raise Malformed(400, "custom_args", "custom_args may not exceed 10,000 bytes")
        return Request(
            recipients=(to["email"],),
            sender=sender,
            contents=(parts.get("text/plain", ""), parts.get("text/html", ""), text_in(data, "subject")),
            receipt="14c5d75ce93.dfd.{:06d}".format,
            reference=str(arguments.get("sendonce", "")),
        )

    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        return 202, b""

    def headers(self, answer: Answer, receipt: str) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"x-message-id", receipt.encode()),) if answer is Answer.ACCEPTED else ()

    def error(self, status: int, code: str | int, message: str) -> bytes:
        return json.dumps({"errors": [{"message": message, "field": code or None, "help": None}]}).encode()

    def account(self, path: str) -> tuple[int, bytes] | None:
        return (200, b'{"scopes": ["mail.send"]}') if path == "/v3/scopes" else None
