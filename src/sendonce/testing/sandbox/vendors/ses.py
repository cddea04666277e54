"""Amazon SES v2: `POST /v2/email/outbound-emails`, `GET /v2/email/account`, signed with SigV4.

The signature is verified over what was received, by a way of its own: from the names that the request says it
has signed. `token` is the secret access key. Source: docs.aws.amazon.com/IAM, create-signed-request.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import ClassVar
from urllib.parse import quote

from sendonce.testing.sandbox.channel import Request
from sendonce.testing.sandbox.door import Answer
from sendonce.testing.sandbox.http_server import Exchange
from sendonce.testing.sandbox.settings import Refusal
from sendonce.testing.sandbox.shapes import Malformed
from sendonce.testing.sandbox.vendors.vendor import Said, Vendor, json_in

CLOCK_S = 300
TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")
MUST_BE_SIGNED = {"host", "x-amz-date"}


class Ses(Vendor):
    name = "ses"
    channel = "email"
    sender_refused = (
        400,
        "MessageRejected",
        "Email address is not verified. The following identities failed the check in region EU-WEST-1: x",
    )
    # SES judges recipients later; a suppressed one is accepted, and an event tells.
    refusals: ClassVar[Mapping[Refusal, Said]] = {
        **dict.fromkeys(Refusal, (400, "MessageRejected", "Message rejected.")),
        Refusal.INVALID: (400, "BadRequestException", "Invalid domain name in the address."),
        Refusal.BUSY: (503, "ServiceUnavailable", "Service Unavailable"),
    }
    failures: ClassVar[Mapping[Answer, Said]] = {
        Answer.UNAUTHORIZED: (403, "SignatureDoesNotMatch", "The request signature does not match."),
        Answer.THROTTLED_RATE: (429, "TooManyRequestsException", "Maximum sending rate exceeded."),
        Answer.THROTTLED_QUOTA: (400, "ThrottlingException", "Daily message quota exceeded."),
        Answer.THROTTLED_CONCURRENCY: (429, "TooManyRequestsException", "Maximum sending rate exceeded."),
        Answer.THROTTLED_SCRIPT: (400, "ThrottlingException", "Maximum sending rate exceeded."),
        Answer.ERROR_BEFORE: (500, "InternalFailure", "The request processing has failed."),
        Answer.ERROR_AFTER: (500, "InternalFailure", "The request processing has failed."),
    }

    def authorized(self, exchange: Exchange) -> bool:
        """Of a POST the body, which is signed too, has yet to come: `read` verifies it."""
        return exchange.method == b"POST" or self._verified(exchange)

    def sends(self, path: str) -> bool:
        return path == "/v2/email/outbound-emails"

    def read(self, exchange: Exchange) -> Request:
        if not self._verified(exchange):
            status, code, words = self.failures[Answer.UNAUTHORIZED]
            raise Malformed(status, code, words, Answer.UNAUTHORIZED)
        data = json_in(exchange, 400, "BadRequestException")
        try:
            to = data["Destination"]["ToAddresses"]
            raw = base64.b64decode(data["Content"]["Raw"]["Data"], validate=True)
            tags = {tag["Name"]: tag["Value"] for tag in data.get("EmailTags", [])}
        except (KeyError, TypeError, binascii.Error):
            raise Malformed(400, "BadRequestException", "Destination and Content.Raw are required") from None
        if not all(TAG.fullmatch(part) for pair in tags.items() for part in pair):
            raise Malformed(400, "BadRequestException", "a tag holds a character that tags may not hold")
        if len(to) != 1 or not to[0].isascii() or "@" not in to[0][1:-1]:
            raise Malformed(400, "BadRequestException", "Illegal address", Answer.REFUSED)
        mail = message_from_bytes(raw, policy=policy.default)
        return Request(
            recipients=(to[0],),
            sender=str(mail["From"]),
            contents=(_part(mail, "plain"), _part(mail, "html"), str(mail["Subject"])),
            receipt="0102018e5d2f1a2b-{:08x}-0000-4000-8000-000000000000-000000".format,
            reference=tags.get("sendonce", ""),
        )

    def accepted(self, request: Request, receipt: str, at: int) -> tuple[int, bytes]:
        return 200, json.dumps({"MessageId": receipt}).encode()

    def error(self, status: int, code: str | int, message: str) -> bytes:
        return json.dumps({"__type": code, "message": message}).encode()

    def account(self, path: str) -> tuple[int, bytes] | None:
        quota = {"Max24HourSend": 50000.0, "MaxSendRate": 14.0, "SentLast24Hours": 0.0}
        answer = {"ProductionAccessEnabled": True, "SendingEnabled": True, "SendQuota": quota}
        return (200, json.dumps(answer).encode()) if path == "/v2/email/account" else None

    def _verified(self, exchange: Exchange) -> bool:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.headers.items()
        }
        claim = _CLAIM.fullmatch(headers.get("authorization", ""))
        if claim is None:
            return False
        names = claim["names"].split(";")
        if names != sorted(names) or not set(names) >= MUST_BE_SIGNED or not set(names) <= set(headers):
            return False
        date = headers["x-amz-date"]
        if not self._is_now(date) or date[:8] != claim["day"] or claim["service"] != "ses":
            return False
        lines = [exchange.method.decode(), quote(exchange.target.decode("latin-1"), safe="/~"), ""]
        lines += [f"{name}:{headers[name].strip()}" for name in names]
        lines += ["", claim["names"], hashlib.sha256(exchange.body).hexdigest()]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        scope = f"{claim['day']}/{claim['region']}/ses/aws4_request"
        key = b"AWS4" + self.token.encode()
        for part in (claim["day"], claim["region"], "ses", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        wanted = hmac.new(key, f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}".encode(), hashlib.sha256)
        return not self.token or hmac.compare_digest(wanted.hexdigest(), claim["signature"])

    def _is_now(self, date: str) -> bool:
        try:
            at = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            return False
        return abs(at.timestamp() - self.now() / 1_000_000) <= CLOCK_S


def _part(mail: EmailMessage, kind: str) -> str:
    part = mail.get_body((kind,))
    return "" if part is None else str(part.get_content())


_CLAIM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=\w+/(?P<day>\d{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z]+)/aws4_request"
    r", SignedHeaders=(?P<names>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})",
    re.ASCII,
)
