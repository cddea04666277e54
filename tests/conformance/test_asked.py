"""The contract of who can be asked, on every adapter that can be, in the shapes of the sandbox."""

from __future__ import annotations

from typing import Any

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import Asked
from sendonce.ports.secret import Secret
from sendonce.providers.http import HttpSettings
from sendonce.providers.http_asked import http_asked
from sendonce.providers.http_question import HttpQuestion
from sendonce.providers.notify import NotifySettings
from sendonce.providers.notify_asked import NotifyAsked
from sendonce.providers.postmark import PostmarkSettings
from sendonce.providers.postmark_asked import PostmarkAsked
from sendonce.providers.sinch import SinchSettings
from sendonce.providers.sinch_asked import SinchAsked
from sendonce.testing.conformance.asked import AskedContract

KEY = "5e" * 32
AT = "2026-12-01T09:00:01.500000Z"
AT_US = 1_796_115_601_500_000
TOKEN = "3d844edf-8d35-48ac-975b-e847b4f122b0"
SERVICE = "26785a09-ab16-4eb0-8407-a37497a57506"
PLAIN: dict[str, Any] = {"allow_plain_http": True, "timeout_s": 0.3, "connect_timeout_s": 0.3}


class TestNotify(AskedContract):
    receipt = "740e5834-3a29-46b4-9a6f-16142fde533a"
    credential = TOKEN
    ended = ProviderEvent(
        "",
        EventKind.BOUNCED_HARD,
        receipt=receipt,
        send_key=KEY,
        address="ann@example.com",
        occurred_at=AT_US,
        code="permanent-failure",
    )

    def asked(self, port: int) -> Asked:
        key = Secret(f"live-{SERVICE}-{TOKEN}")
        base_url = f"http://127.0.0.1:{port}"
        return NotifyAsked(NotifySettings(api_key=key, template_id=SERVICE, base_url=base_url, **PLAIN))

    def answers(self, kind: str) -> dict[str, Any]:
        ended = kind == "ended"
        row = {
            "id": self.receipt,
            "reference": KEY,
            "email_address": "ann@example.com",
            "phone_number": None,
            "type": "email",
            "status": "permanent-failure" if ended else "sending",
            "created_at": "2026-12-01T09:00:00.000000Z",
            "sent_at": "2026-12-01T09:00:01.000000Z",
            "completed_at": AT if ended else None,
        }
        return {f"/v2/notifications/{self.receipt}": row}


class TestSinch(AskedContract):
    receipt = "01FC66621XXXXX119Z8PMV1QPQ"
    credential = TOKEN
    ended = ProviderEvent(
        "",
        EventKind.UNDELIVERED,
        receipt=receipt,
        send_key=KEY,
        address="+447700900123",
        code="Failed/403",
    )

    def asked(self, port: int) -> Asked:
        return SinchAsked(
            SinchSettings(
                region="eu",
                service_plan_id="plan1",
                api_token=Secret(TOKEN),
                base_url=f"http://127.0.0.1:{port}",
                **PLAIN,
            )
        )

    def answers(self, kind: str) -> dict[str, Any]:
        word, code = ("Failed", 403) if kind == "ended" else ("Dispatched", 401)
        report = {
            "type": "delivery_report_sms",
            "batch_id": self.receipt,
            "total_message_count": 1,
            "statuses": [{"code": code, "status": word, "count": 1, "recipients": ["447700900123"]}],
            "client_reference": KEY,
        }
        return {f"/xms/v1/plan1/batches/{self.receipt}/delivery_report": report}


class TestHttp(AskedContract):
    """By configuration: rows within an answer, which name the message and say when."""

    receipt = "m-1"
    credential = TOKEN
    ended = ProviderEvent(
        "",
        EventKind.UNDELIVERED,
        receipt=receipt,
        address="+447700900123",
        occurred_at=AT_US,
        code="failed/30003",
    )

    def asked(self, port: int) -> Asked:
        base_url = f"http://127.0.0.1:{port}"
        question = HttpQuestion(
            url=f"{base_url}/v1/messages/{{{{ receipt }}}}/state?full=1",
            rows_path="data.rows",
            kind_path="state",
            kinds={"sent": EventKind.SENT, "failed": EventKind.UNDELIVERED},
            receipt_path="id",
            address_path="to",
            time_path="at",
            code_path="error",
        )
        asked = http_asked(
            HttpSettings(
                url=f"{base_url}/v1/messages",
                body_json='{"to": "{{ to }}"}',
                receipt_path="id",
                bearer=Secret(TOKEN),
                question=question,
                **PLAIN,
            )
        )
        assert asked is not None
        return asked

    def answers(self, kind: str) -> dict[str, Any]:
        other = {"id": "m-2", "state": "failed", "to": "+447700900124", "at": AT}
        row: dict[str, Any] = {
            "id": self.receipt,
            "state": "sent",
            "to": "+447700900123",
            "at": AT,
            "error": None,
        }
        if kind == "ended":
            row |= {"state": "failed", "error": 30003}
        return {f"/v1/messages/{self.receipt}/state": {"data": {"rows": [other, row]}}}


class TestPostmarkBounce(AskedContract):
    receipt = "07311c54-0687-4ab9-b034-b54b5bad88ba"
    credential = TOKEN
    calls = 2
    ended = ProviderEvent(
        "",
        EventKind.BOUNCED_HARD,
        receipt=receipt,
        send_key=KEY,
        address="ann@example.com",
        occurred_at=AT_US,
        code="Bounce/HardBounce",
    )

    def asked(self, port: int) -> Asked:
        base_url = f"http://127.0.0.1:{port}"
        return PostmarkAsked(PostmarkSettings(server_token=Secret(TOKEN), base_url=base_url, **PLAIN))

    def answers(self, kind: str) -> dict[str, Any]:
        told = {"Recipient": "ann@example.com", "ReceivedAt": AT}
        events = [{**told, "Type": "Transient", "Details": {"DestinationServer": "mx.example.com"}}]
        if kind == "ended":
            events.append({**told, "Type": "Bounced", "Details": {"Summary": "550", "BounceID": "374814878"}})
        message = {"MessageID": self.receipt, "Metadata": {"sendonce": KEY}, "MessageEvents": events}
        bounce = {
            "ID": 374814878,
            "Type": "HardBounce",
            "TypeCode": 1,
            "MessageID": self.receipt,
            "Email": "ann@example.com",
            "BouncedAt": AT,
        }
        return {f"/messages/outbound/{self.receipt}/details": message, "/bounces/374814878": bounce}


class TestPostmarkDelivery(TestPostmarkBounce):
    calls = 1
    ended = ProviderEvent(
        "",
        EventKind.DELIVERED,
        receipt=TestPostmarkBounce.receipt,
        send_key=KEY,
        address="ann@example.com",
        occurred_at=AT_US,
        code="Delivery",
    )

    def answers(self, kind: str) -> dict[str, Any]:
        told = {"Recipient": "ann@example.com", "ReceivedAt": AT}
        events: list[dict[str, Any]] = []
        if kind == "ended":
            events = [{**told, "Type": "Delivered", "Details": {"DeliveryMessage": "smtp;250 OK"}}]
            events.append({**told, "Type": "Opened", "Details": {"Summary": "Email opened"}})
        message = {"MessageID": self.receipt, "Metadata": {"sendonce": KEY}, "MessageEvents": events}
        return {f"/messages/outbound/{self.receipt}/details": message}
