"""Postmark: `POST /email`, `GET /messages/outbound` and the details of a message, `/bounces/{id}`, `/server`.

Source: postmarkapp.com/developer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from sendonce.testing.sandbox.callbacks import Told, postmark
from sendonce.testing.sandbox.channel import Request
from sendonce.testing.sandbox.door import Answer, Door, Effect
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import Refusal
from sendonce.testing.sandbox.shapes import Malformed
from sendonce.testing.sandbox.vendors.vendor import Said, Vendor, json_in, text_in

METADATA_NAME = "metadata_"
DETAILS = re.compile(r"/messages/outbound/([0-9a-f-]{36})/details")
BOUNCE = re.compile(r"/bounces/(\d{1,18})")
NAME_MAX, VALUE_MAX = 20, 80
TEST_TOKEN = b"POSTMARK_API_TEST"  # validates and never sends: developer/api/overview


class Postmark(Vendor):
    name = "postmark"
    channel = "email"
    sender_refused = (422, 400, "The 'From' address you supplied is not a Sender Signature.")
    refusals: ClassVar[Mapping[Refusal, Said]] = {
        **dict.fromkeys(Refusal, (422, 406, "You tried to send to a recipient that was marked as inactive.")),
        Refusal.INVALID: (422, 300, "Error parsing 'To': Illegal email address."),
        Refusal.BUSY: (503, 100, "The Postmark API is offline for maintenance."),
    }
    failures: ClassVar[Mapping[Answer, Said]] = {
        Answer.UNAUTHORIZED: (401, 10, "Request does not contain a valid Server token."),
        Answer.THROTTLED_RATE: (429, 429, "Rate limit exceeded."),
        Answer.THROTTLED_QUOTA: (422, 405, "Not allowed to send: you ran out of credits."),
        Answer.THROTTLED_CONCURRENCY: (429, 429, "Rate limit exceeded."),
        Answer.THROTTLED_SCRIPT: (429, 429, "Rate limit exceeded."),
        Answer.ERROR_BEFORE: (500, 0, "Internal Server Error"),
        Answer.ERROR_AFTER: (500, 0, "Internal Server Error"),
    }

    def authorized(self, exchange: Exchange) -> bool:
        token = exchange.headers.get(b"x-postmark-server-token", b"")
        return not self.token or token in (self.token.encode(), TEST_TOKEN)

    def sends(self, path: str) -> bool:
        return path == "/email"

    def read(self, exchange: Exchange) -> Request:
        data = json_in(exchange, 422, 402)
        to, text, html = text_in(data, "To"), text_in(data, "TextBody"), text_in(data, "HtmlBody")
        if not text_in(data, "From") or not (text or html):
            raise Malformed(422, 300, "Zero recipients or no body specified.")
        if "@" not in to[1:-1] or "," in to:
            raise Malformed(422, 300, "Error parsing 'To': Illegal email address.", Answer.REFUSED)
        metadata = data.get("Metadata") or {}
        for name, value in metadata.items():
            if len(name) > NAME_MAX or len(value) > VALUE_MAX:
                raise Malformed(422, 300, "Metadata names and values must be short.")
        # What a search finds: one field and its value, as the query names them.
        reference = "".join(f"{METADATA_NAME}{name}={value}" for name, value in metadata.items())
        return Request(
            recipients=(to,),
            sender=text_in(data, "From"),
            contents=(text, html, text_in(data, "Subject")),
            receipt="0a129aee-e1cd-480d-b08d-{:012x}".format,
            reference=reference,
            simulated=exchange.headers.get(b"x-postmark-server-token") == TEST_TOKEN,
        )

    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        answer = {
            "To": request.recipients[0],
            "SubmittedAt": _iso(at),
            "MessageID": receipt,
            "ErrorCode": 0,
            "Message": "OK",
        }
        return 200, json.dumps(answer).encode()

    def error(self, status: int, code: str | int, message: str) -> bytes:
        return json.dumps({"ErrorCode": code, "Message": message}).encode()

    def account(self, path: str) -> tuple[int, bytes] | None:
        return (200, b'{"Name": "Sandbox", "DeliveryType": "Live"}') if path == "/server" else None

    def look_up(self, path: str, query: Mapping[str, str], door: Door) -> list[Effect] | None:
        if path != "/messages/outbound":
            return None
        fields = [f"{name}={value}" for name, value in query.items() if name.startswith(METADATA_NAME)]
        asked = len(fields) == 1 and query.get("count") and "offset" in query
        return door.with_reference(fields[0]) if asked else []

    def asked(self, path: str) -> tuple[str, int]:
        if (found := BOUNCE.fullmatch(path)) is not None:
            return "", int(found[1])
        found = DETAILS.fullmatch(path)
        return (found[1], 0) if found else ("", 0)

    def told(self, effect: Effect, said: Sequence[Told], number: int) -> bytes:
        """The events of a message, which name a bounce by its number only; or one bounce."""
        if number:
            (bounce,) = [postmark(each) for each in said if each.number == number]
            kept = {name: value for name, value in bounce.items() if name not in ("RecordType", "Metadata")}
            return json.dumps({**kept, "Inactive": True, "CanActivate": True}).encode()
        metadata = effect.reference.removeprefix(METADATA_NAME).partition("=")
        answer = {
            "MessageID": effect.receipt,
            "MessageStream": "outbound",
            "Recipients": [effect.to],
            "Status": "Sent",
            "Metadata": {metadata[0]: metadata[2]},
            "MessageEvents": [_message_event(each) for each in said],
        }
        return json.dumps(answer).encode()

    def found(self, effects: list[Effect]) -> bytes:
        rows = [
            {
                "MessageID": effect.receipt,
                "MessageStream": "outbound",
                "Recipients": [effect.to],
                "ReceivedAt": _iso(effect.at),
                "From": effect.sender,
                "Status": "Sent",
                "Metadata": dict([effect.reference.removeprefix(METADATA_NAME).split("=", 1)]),
                "Sandboxed": False,
            }
            for effect in effects
        ]
        return json.dumps({"TotalCount": len(rows), "Messages": rows}).encode()


def _message_event(told: Told) -> dict[str, Any]:
    common = {"Recipient": told.to, "ReceivedAt": told.iso}
    if told.kind == "delivered":
        details: dict[str, Any] = {
            "DeliveryMessage": "smtp;250 2.0.0 OK",
            "DestinationServer": "mx.example.com",
        }
        return {**common, "Type": "Delivered", "Details": details}
    return {**common, "Type": "Bounced", "Details": {"Summary": "550 5.1.1", "BounceID": str(told.number)}}


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000_000, UTC).isoformat()
