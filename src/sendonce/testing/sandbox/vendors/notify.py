"""GOV.UK Notify: `POST /v2/notifications/sms` and `/email`, `GET /v2/notifications`, `/v2/notifications/{id}`
and `/v2/template/{id}`.

Two vendors, since each stands in one channel. Tokens are verified: HS256 with `token` as the secret, and no
older than 30 seconds. Source: docs.notifications.service.gov.uk/rest-api.html.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from sendonce.testing.sandbox.callbacks import Told, notify
from sendonce.testing.sandbox.channel import Request
from sendonce.testing.sandbox.door import Answer, Door, Effect
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import Refusal
from sendonce.testing.sandbox.shapes import E164, Malformed
from sendonce.testing.sandbox.vendors.vendor import Said, Vendor, json_in, text_in

TOKEN_S = 30
# "will not send a real message ... or persist the notification": docs, Smoke testing
SMOKE = re.compile(r"\+447700900(000|111|222)|simulate-delivered(-[23])?@notifications\.service\.gov\.uk")
MESSAGE = re.compile(r"/v2/notifications/([0-9a-f-]{36})")
TEMPLATE = re.compile(r"/v2/template/[0-9a-f-]{36}")


class Notify(Vendor):
    name = "notify"
    channel = "sms"
    kind: ClassVar[str] = "sms"
    recipient: ClassVar[str] = "phone_number"
    sender_refused = (403, "AuthError", "Forbidden")  # a service is its own sender
    refusals: ClassVar[Mapping[Refusal, Said]] = {
        **dict.fromkeys(Refusal, (400, "ValidationError", "Not a valid recipient")),
        Refusal.BLOCKED: (400, "BadRequestError", "Cannot send to international mobile numbers"),
        Refusal.BUSY: (500, "Exception", "Internal server error"),
    }
    failures: ClassVar[Mapping[Answer, Said]] = {
        Answer.UNAUTHORIZED: (403, "AuthError", "Invalid token: signature, api token not found"),
        Answer.THROTTLED_RATE: (429, "RateLimitError", "Exceeded rate limit for key type live"),
        Answer.THROTTLED_QUOTA: (429, "TooManyRequestsError", "Exceeded send limits for today"),
        Answer.THROTTLED_CONCURRENCY: (429, "RateLimitError", "Exceeded rate limit for key type live"),
        Answer.THROTTLED_SCRIPT: (429, "RateLimitError", "Exceeded rate limit for key type live"),
        Answer.ERROR_BEFORE: (500, "Exception", "Internal server error"),
        Answer.ERROR_AFTER: (500, "Exception", "Internal server error"),
    }

    def authorized(self, exchange: Exchange) -> bool:
        return not self.token or self._verified(exchange.headers.get(b"authorization", b""))

    def sends(self, path: str) -> bool:
        return path == f"/v2/notifications/{self.kind}"

    def read(self, exchange: Exchange) -> Request:
        data = json_in(exchange, 400, "ValidationError")
        to, shown = text_in(data, self.recipient), data.get("personalisation")
        if not text_in(data, "template_id") or not isinstance(shown, dict) or not shown.get("text"):
            raise Malformed(400, "BadRequestError", "Missing personalisation: text")
        if not self._can_be_reached(to):
            raise Malformed(400, "ValidationError", f"{self.recipient} is not valid", Answer.REFUSED)
        return Request(
            recipients=(to,),
            sender="GOVUK",
            contents=(shown["text"], "", shown.get("subject", "")),
            receipt="740e5834-3a29-46b4-9a6f-{:012x}".format,
            reference=text_in(data, "reference"),
            simulated=SMOKE.fullmatch(to) is not None,
        )

    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        content = {"body": request.contents[0], "from_number": request.sender}
        answer = {"id": receipt, "reference": request.reference, "content": content}
        return 201, json.dumps(answer).encode()

    def error(self, status: int, code: str | int, message: str) -> bytes:
        return json.dumps({"status_code": status, "errors": [{"error": code, "message": message}]}).encode()

    def account(self, path: str) -> tuple[int, bytes] | None:
        answer = {"type": self.kind, "body": "((text))", "subject": "((subject))"}
        return (200, json.dumps(answer).encode()) if TEMPLATE.fullmatch(path) else None

    def look_up(self, path: str, query: Mapping[str, str], door: Door) -> list[Effect] | None:
        if path != "/v2/notifications":
            return None
        reference = query.get("reference")
        return door.with_reference(reference) if reference else []

    def found(self, effects: list[Effect]) -> bytes:
        rows = [
            {"id": effect.receipt, "reference": effect.reference, "status": "sending", "type": self.kind}
            for effect in effects
        ]
        return json.dumps({"notifications": rows, "links": {}}).encode()

    def asked(self, path: str) -> tuple[str, int]:
        found = MESSAGE.fullmatch(path)
        return (found[1], 0) if found else ("", 0)

    def told(self, effect: Effect, said: Sequence[Told], number: int) -> bytes:
        """One status, the last: `created` and `sending` have no time of completion."""
        ended = [notify(each, self.kind) for each in said if each.kind not in ("complained", "stopped")]
        told = {"status": "sending", "sent_at": None, "completed_at": None, **(ended[-1] if ended else {})}
        addresses = {"email_address": None, "phone_number": None, self.recipient: effect.to}
        row = {name: told[name] for name in ("status", "sent_at", "completed_at")}
        answer = {"id": effect.receipt, "reference": effect.reference, "type": self.kind, **addresses, **row}
        return json.dumps(answer).encode()

    def _can_be_reached(self, to: str) -> bool:
        return E164.fullmatch(to) is not None

    def _verified(self, authorization: bytes) -> bool:
        try:
            signed, _, signature = authorization.removeprefix(b"Bearer ").rpartition(b".")
            head, claims = (json.loads(_decoded(part)) for part in signed.split(b"."))
            given = _decoded(signature)
            age_s = self.now() / 1_000_000 - claims["iat"]
        except (ValueError, KeyError, TypeError, binascii.Error):
            return False
        wanted = hmac.new(self.token.encode(), signed, hashlib.sha256).digest()
        known = head.get("alg") == "HS256" and bool(claims.get("iss"))
        return known and abs(age_s) <= TOKEN_S and hmac.compare_digest(wanted, given)


class NotifyEmail(Notify):
    name = "notify-email"
    channel = "email"
    kind = "email"
    recipient = "email_address"

    def _can_be_reached(self, to: str) -> bool:
        return "@" in to[1:-1]


def _decoded(part: bytes) -> bytes:
    return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
