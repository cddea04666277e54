"""Vonage: `POST /v1/messages`, `GET /v2/applications`. Source: developer.vonage.com/api/messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from sendonce.testing.sandbox.channel import Request
from sendonce.testing.sandbox.door import Answer
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import Refusal
from sendonce.testing.sandbox.shapes import Malformed, basic_credentials
from sendonce.testing.sandbox.vendors.vendor import Said, Vendor, json_in, text_in

NUMBER = re.compile(r"[1-9]\d{6,14}")
TEXT_MAX, REF_MAX = 1000, 100
ERRORS = "https://developer.vonage.com/api-errors/messages#"


class Vonage(Vendor):
    name = "vonage"
    channel = "sms"
    sender_refused = (422, "1120", "Illegal Sender Address - rejected")
    refusals: ClassVar[Mapping[Refusal, Said]] = {
        Refusal.INVALID: (422, "1170", "Invalid or Missing Msisdn Param"),
        Refusal.NOT_MOBILE: (422, "1260", "Destination unreachable"),
        Refusal.OPTED_OUT: (422, "1240", "Illegal Number"),
        Refusal.BLOCKED: (422, "1050", "Number barred"),
        Refusal.UNROUTABLE: (422, "1250", "Unroutable"),
        Refusal.MAILBOX_FULL: (422, "1260", "Destination unreachable"),
        Refusal.BUSY: (422, "1100", "Communication Failed"),
    }
    failures: ClassVar[Mapping[Answer, Said]] = {
        Answer.UNAUTHORIZED: (401, "unauthorized", "You did not provide correct credentials."),
        Answer.THROTTLED_RATE: (429, "1000", "Throttled"),
        Answer.THROTTLED_QUOTA: (402, "1070", "Partner quota exceeded"),
        Answer.THROTTLED_CONCURRENCY: (429, "1000", "Throttled"),
        Answer.THROTTLED_SCRIPT: (429, "1000", "Throttled"),
        Answer.ERROR_BEFORE: (500, "1030", "Internal error"),
        Answer.ERROR_AFTER: (500, "1030", "Internal error"),
    }

    def authorized(self, exchange: Exchange) -> bool:
        return not self.token or basic_credentials(exchange)[1] == self.token

    def sends(self, path: str) -> bool:
        return path == "/v1/messages"

    def read(self, exchange: Exchange) -> Request:
        data = json_in(exchange, 422, "1020")
        if data.get("message_type") != "text" or data.get("channel") != "sms":
            raise Malformed(422, "1020", "Invalid params")
        to, text, reference = text_in(data, "to"), text_in(data, "text"), text_in(data, "client_ref")
        if not text or not text_in(data, "from"):
            raise Malformed(422, "1010", "Missing params")
        if len(text) > TEXT_MAX or len(reference) > REF_MAX:
            raise Malformed(422, "1020", "Invalid params")
        if not NUMBER.fullmatch(to):
            raise Malformed(422, "1170", "Invalid or Missing Msisdn Param", Answer.REFUSED)
        return Request(
            recipients=(f"+{to}",),
            sender=text_in(data, "from"),
            contents=(text,),
            receipt="aaaaaaaa-bbbb-cccc-dddd-{:012x}".format,
            reference=reference,
            callback=text_in(data, "webhook_url"),
        )

    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        return 202, json.dumps({"message_uuid": receipt}).encode()

    def error(self, status: int, code: str | int, message: str) -> bytes:
        problem = {"type": f"{ERRORS}{code}", "title": message, "detail": message, "instance": "bf0ca0bf"}
        return json.dumps(problem).encode()

    def account(self, path: str) -> tuple[int, bytes] | None:
        return (200, b'{"page_size": 1, "_embedded": {}}') if path == "/v2/applications" else None
