"""Sinch: `POST` and `GET /xms/v1/{plan}/batches`, `GET .../batches/{id}/delivery_report`.

Source: developers.sinch.com/docs/sms/api-reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from sendonce.testing.sandbox.callbacks import Told, sinch
from sendonce.testing.sandbox.channel import Request
from sendonce.testing.sandbox.door import Answer, Door, Effect
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import Refusal
from sendonce.testing.sandbox.shapes import Malformed
from sendonce.testing.sandbox.vendors.vendor import Said, Vendor, json_in, text_in

BATCHES = re.compile(r"/xms/v1/[\w-]+/batches")
REPORT = re.compile(r"/xms/v1/[\w-]+/batches/(\w+)/delivery_report")
MSISDN = re.compile(r"\+?[1-9]\d{6,14}")
BODY_MAX = 2000


class Sinch(Vendor):
    name = "sinch"
    channel = "sms"
    sender_refused = (403, "blocked_account", "The account may not send.")
    refusals: ClassVar[Mapping[Refusal, Said]] = {
        **dict.fromkeys(Refusal, (400, "syntax_invalid_parameter_format", "An MSISDN is not valid.")),
        Refusal.NOT_MOBILE: (403, "illegal_number_type", "Illegal phone number type."),
        Refusal.BUSY: (503, "unavailable", "Service Unavailable"),
    }
    failures: ClassVar[Mapping[Answer, Said]] = {
        Answer.UNAUTHORIZED: (401, "unauthorized", "Unauthorized"),
        Answer.THROTTLED_RATE: (429, "too_many_requests", "Too Many Requests"),
        Answer.THROTTLED_QUOTA: (429, "too_many_requests", "Too Many Requests"),
        Answer.THROTTLED_CONCURRENCY: (429, "too_many_requests", "Too Many Requests"),
        Answer.THROTTLED_SCRIPT: (429, "too_many_requests", "Too Many Requests"),
        Answer.ERROR_BEFORE: (500, "internal", "Internal Server Error"),
        Answer.ERROR_AFTER: (500, "internal", "Internal Server Error"),
    }

    def sends(self, path: str) -> bool:
        return BATCHES.fullmatch(path) is not None

    def read(self, exchange: Exchange) -> Request:
        data = json_in(exchange, 400, "syntax_invalid_json")
        to, text = data.get("to"), text_in(data, "body")
        if not isinstance(to, list) or len(to) != 1 or not text or len(text) > BODY_MAX:
            raise Malformed(400, "syntax_constraint_violation", "to and body are required")
        if not isinstance(to[0], str) or not MSISDN.fullmatch(to[0]):
            words = "An MSISDN is not valid."
            raise Malformed(400, "syntax_invalid_parameter_format", words, Answer.REFUSED)
        return Request(
            recipients=(f"+{to[0].lstrip('+')}",),
            sender=text_in(data, "from"),
            contents=(text,),
            receipt="01FC66621{:017d}".format,
            reference=text_in(data, "client_reference"),
            callback=text_in(data, "callback_url"),
        )

    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        return 201, json.dumps(
            _batch(receipt, request.recipients[0], request.sender, request.reference, at)
        ).encode()

    def error(self, status: int, code: str | int, message: str) -> bytes:
        return json.dumps({"code": code, "text": message}).encode()

    def account(self, path: str) -> tuple[int, bytes] | None:
        return None  # the list of batches proves the login

    def look_up(self, path: str, query: Mapping[str, str], door: Door) -> list[Effect] | None:
        if not BATCHES.fullmatch(path):
            return None
        reference = query.get("client_reference")
        return door.with_reference(reference) if reference else []

    def asked(self, path: str) -> tuple[str, int]:
        found = REPORT.fullmatch(path)
        return (found[1], 0) if found else ("", 0)

    def told(self, effect: Effect, said: Sequence[Told], number: int) -> bytes:
        """A full report: one row for each status that recipients have; here there is one."""
        reports = [sinch(each) for each in said if each.kind != "stopped"]
        last = reports[-1] if reports else {"code": 400, "status": "Queued"}
        row = {"code": last["code"], "status": last["status"], "count": 1}
        report = {
            "type": "delivery_report_sms",
            "batch_id": effect.receipt,
            "total_message_count": 1,
            "statuses": [{**row, "recipients": [effect.to.removeprefix("+")]}],
            "client_reference": effect.reference,
        }
        return json.dumps(report).encode()

    def found(self, effects: list[Effect]) -> bytes:
        rows = [
            _batch(effect.receipt, effect.to, effect.sender, effect.reference, effect.at)
            for effect in effects
        ]
        return json.dumps({"count": len(rows), "page": 0, "page_size": len(rows), "batches": rows}).encode()


def _batch(receipt: str, to: str, sender: str, reference: str, at: int) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(at / 1_000_000, UTC).isoformat()
    return {
        "id": receipt,
        "to": [to.removeprefix("+")],
        "from": sender,
        "canceled": False,
        "type": "mt_text",
        "client_reference": reference,
        "created_at": created_at,
        "modified_at": created_at,
    }
