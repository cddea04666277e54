"""The provider contract on the adapters of vendors' HTTP APIs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from sendonce.ports.provider import Message, Provider
from sendonce.ports.secret import Secret
from sendonce.providers.mailgun import MailgunProvider, MailgunSettings
from sendonce.providers.notify import NotifyProvider, NotifySettings
from sendonce.providers.postmark import PostmarkProvider, PostmarkSettings
from sendonce.providers.resend import ResendProvider, ResendSettings
from sendonce.providers.sendgrid import SendgridProvider, SendgridSettings
from sendonce.providers.ses import SesProvider, SesSettings
from sendonce.providers.sinch import SinchProvider, SinchSettings
from sendonce.providers.vonage import VonageProvider, VonageSettings
from sendonce.testing.conformance.provider import (
    HttpContract,
    KeyContract,
    LookupContract,
    SmtpContract,
    http_answer,
    json_answer,
)

PASSWORD: Final = "correct-horse-battery"
SERVICE: Final = "26785a09-ab16-4eb0-8407-a37497a57506"
SECRET: Final = "3d844edf-8d35-48ac-975b-e847b4f122b0"
EMAIL: Final[Message] = SmtpContract.message


class TestResend(KeyContract):
    credential = PASSWORD
    message = EMAIL

    def provider(self, port: int) -> Provider:
        return ResendProvider(
            ResendSettings(
                api_key=Secret(PASSWORD),
                base_url=f"http://127.0.0.1:{port}",
                allow_plain_http=True,
                timeout_s=0.3,
            )
        )

    def accepted(self) -> bytes:
        return json_answer(200, {"id": "49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"})

    def rejected(self) -> bytes:
        words = f"Invalid `to` field: {self.message.to}"
        return json_answer(422, {"statusCode": 422, "name": "validation_error", "message": words})


class TestPostmark(LookupContract):
    credential = PASSWORD
    message = EMAIL

    def provider(self, port: int) -> Provider:
        return PostmarkProvider(
            PostmarkSettings(
                server_token=Secret(PASSWORD),
                base_url=f"http://127.0.0.1:{port}",
                allow_plain_http=True,
                timeout_s=0.3,
            )
        )

    def accepted(self) -> bytes:
        return json_answer(200, {"MessageID": "m-1", "ErrorCode": 0, "Message": "OK"})

    def rejected(self) -> bytes:
        words = f"Found inactive addresses: {self.message.to}."
        return json_answer(422, {"ErrorCode": 406, "Message": words})

    def present(self) -> bytes:
        mine = {"MessageID": "m-1", "Metadata": {"sendonce": self.message.send_key}}
        return json_answer(200, {"TotalCount": 2, "Messages": [{"MessageID": "m-0", "Metadata": {}}, mine]})

    def absent(self) -> bytes:
        return json_answer(200, {"TotalCount": 0, "Messages": []})

    def others(self) -> bytes:
        other = {"MessageID": "m-2", "Metadata": {"sendonce": "other"}}
        return json_answer(200, {"TotalCount": 1, "Messages": [other]})


class TestSes(HttpContract):
    credential = PASSWORD
    message = EMAIL

    def provider(self, port: int) -> Provider:
        settings = SesSettings(
            region="eu-west-1",
            access_key_id="AKIDEXAMPLE",
            secret_access_key=Secret(PASSWORD),
            base_url=f"http://127.0.0.1:{port}",
            allow_plain_http=True,
            timeout_s=0.3,
        )
        return SesProvider(settings)

    def unsigned(self, request: bytes) -> bytes:
        return re.sub(rb"(?m)^(Authorization|X-Amz-Date): .*$", b"", request)

    def accepted(self) -> bytes:
        return json_answer(200, {"MessageId": "0102018e5d2f1a2b-1"})

    def rejected(self) -> bytes:
        return json_answer(400, {"__type": "BadRequestException", "message": f"{self.message.to} is illegal"})


class TestSinch(LookupContract):
    credential = PASSWORD
    message = replace(LookupContract.message, valid_s=None)  # `expire_at` is an instant, and moves

    def provider(self, port: int) -> Provider:
        return SinchProvider(
            SinchSettings(
                region="eu",
                service_plan_id="plan1",
                api_token=Secret(PASSWORD),
                base_url=f"http://127.0.0.1:{port}",
                allow_plain_http=True,
                timeout_s=0.3,
            )
        )

    def accepted(self) -> bytes:
        return json_answer(201, {"id": "01FC66621", "client_reference": self.message.send_key})

    def rejected(self) -> bytes:
        body = {"code": "syntax_invalid_parameter_format", "text": f"{self.message.to} is not valid"}
        return json_answer(400, body)

    def found(self, target: str) -> bytes:
        return self.absent()

    def present(self) -> bytes:
        mine = {"id": "01FC66621", "client_reference": self.message.send_key}
        return json_answer(200, {"count": 2, "batches": [{"id": "01FC66620"}, mine]})

    def absent(self) -> bytes:
        return json_answer(200, {"count": 0, "batches": []})

    def others(self) -> bytes:
        return json_answer(200, {"count": 1, "batches": [{"id": "1", "client_reference": "other"}]})


class TestSendgrid(HttpContract):
    credential = PASSWORD
    message = EMAIL

    def provider(self, port: int) -> Provider:
        return SendgridProvider(
            SendgridSettings(
                api_key=Secret(PASSWORD),
                base_url=f"http://127.0.0.1:{port}",
                allow_plain_http=True,
                timeout_s=0.3,
            )
        )

    def accepted(self) -> bytes:
        return http_answer(202, b"", "X-Message-Id: 14c5d75ce93.dfd.64b469")

    def rejected(self) -> bytes:
        error = {"message": f"{self.message.to} is not valid", "field": "personalizations.0.to.0.email"}
        return json_answer(400, {"errors": [error]})


class TestMailgun(LookupContract):
    credential = PASSWORD
    message = EMAIL

    def provider(self, port: int) -> Provider:
        return MailgunProvider(
            MailgunSettings(
                domain="mg.example.org",
                api_key=Secret(PASSWORD),
                base_url=f"http://127.0.0.1:{port}",
                allow_plain_http=True,
                timeout_s=0.3,
            )
        )

    def accepted(self) -> bytes:
        return json_answer(200, {"id": "<1@mg.example.org>", "message": "Queued. Thank you."})

    def rejected(self) -> bytes:
        return json_answer(400, {"message": f"'to' parameter is not a valid address: {self.message.to}"})

    def found(self, target: str) -> bytes:
        return self.absent()

    def present(self) -> bytes:
        mine = {"event": "accepted", "user-variables": {"sendonce": self.message.send_key}}
        return json_answer(200, {"items": [{"event": "accepted", "user-variables": {}}, mine]})

    def absent(self) -> bytes:
        return json_answer(200, {"items": []})

    def others(self) -> bytes:
        return json_answer(200, {"items": [{"event": "delivered", "user-variables": {"sendonce": "other"}}]})


class TestVonage(HttpContract):
    credential = PASSWORD

    def provider(self, port: int) -> Provider:
        return VonageProvider(
            VonageSettings(
                api_key="abcd1234",
                api_secret=Secret(PASSWORD),
                base_url=f"http://127.0.0.1:{port}",
                allow_plain_http=True,
                timeout_s=0.3,
            )
        )

    def accepted(self) -> bytes:
        return json_answer(202, {"message_uuid": "aaaaaaaa-bbbb-cccc-dddd-0123456789ab"})

    def rejected(self) -> bytes:
        kind = "https://developer.vonage.com/api-errors/messages#1170"
        return json_answer(422, {"type": kind, "title": "Invalid", "detail": self.message.to})


class TestNotify(LookupContract):
    credential = SECRET

    def provider(self, port: int) -> Provider:
        return NotifyProvider(
            NotifySettings(
                api_key=Secret(f"live-{SERVICE}-{SECRET}"),
                template_id=SERVICE,
                base_url=f"http://127.0.0.1:{port}",
                allow_plain_http=True,
                timeout_s=0.3,
            )
        )

    def unsigned(self, request: bytes) -> bytes:
        return re.sub(rb"(?m)^Authorization: .*$", b"", request)

    def accepted(self) -> bytes:
        return json_answer(201, {"id": "740e5834-3a29-46b4-9a6f-16142fde533a"})

    def rejected(self) -> bytes:
        error = {"error": "ValidationError", "message": f"phone_number {self.message.to} is not valid"}
        return json_answer(400, {"status_code": 400, "errors": [error]})

    def present(self) -> bytes:
        mine = {"id": "740e5834-3a29-46b4-9a6f-16142fde533a", "reference": self.message.send_key}
        return json_answer(200, {"notifications": [{"id": "x", "reference": None}, mine]})

    def absent(self) -> bytes:
        return json_answer(200, {"notifications": []})

    def others(self) -> bytes:
        return json_answer(200, {"notifications": [{"id": "x", "reference": "other"}]})


class TestNotifyEmail(TestNotify):
    message = EMAIL
