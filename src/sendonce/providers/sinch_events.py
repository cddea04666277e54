"""What Sinch calls back with: a delivery report or a customer's text, signed, or with a password.

    {"type": "recipient_delivery_report_sms", "batch_id": ..., "status": "Delivered", "client_reference": ...}
    {"type": "mo_text", "id": ..., "from": ..., "body": ...}

Sinch signs where a secret was agreed upon, and calls with Basic auth where an account was set up so: both
take the account's `event_secrets`. A batch of ours has one recipient and asks for reports by recipient, so
the receipt is the batch's id, and our send key its `client_reference`. Reports of a whole batch are read too.

"Aborted" never reached a carrier; "Unknown" is no failure: no report came, or none that Sinch could read.

Sources: developers.sinch.com/docs/sms/api-reference/sms: webhooks (callbacks, tries), delivery-reports
(statuses and codes); github.com/sinch/sinch-sdk-python (sms: delivery_status_type, inbound_message, webhooks;
authentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest
from sendonce.ports.secret import Secret
from sendonce.providers import signatures
from sendonce.providers.api import code_in, receipt_in
from sendonce.providers.events import (
    VendorEvents,
    collect,
    identity_from,
    identity_of,
    json_object,
    kind_of,
    moment_in,
    number_in,
    object_of,
    part,
    send_key_in,
    text_in,
)
from sendonce.providers.sinch import SinchSettings


def sinch_events(settings: SinchSettings) -> SinchEvents | None:
    return SinchEvents(settings.event_secrets) if settings.event_secrets else None


class SinchEvents(VendorEvents):
    """`ports.events.EventSource` for one Sinch service plan."""

    def __init__(self, secrets: tuple[Secret, ...]) -> None:
        self._secrets = secrets

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        if "x-sinch-webhook-signature" in request.headers:
            signatures.sinch(request.headers, request.body, self._secrets, now=now)
        else:
            signatures.shared_secret(request.headers.get("authorization", ""), self._secrets)
        body = json_object(request)
        rows = body.get("statuses")
        if isinstance(rows, list):
            return events_of_batch(body, rows)
        return collect([body], _event)


def _event(item: Mapping[str, Any]) -> ProviderEvent:
    if str(item.get("type", "")).startswith("mo_"):
        return _reply(item)
    return _report(item, item)


def events_of_batch(batch: Mapping[str, Any], rows: list[Any]) -> EventBatch:
    """What the report of a whole batch says."""
    return collect(rows, lambda row: _of_batch(batch, object_of(row)))


def _of_batch(batch: Mapping[str, Any], row: Mapping[str, Any]) -> ProviderEvent:
    """One status of a whole batch; whom it is about is told only where the report is a full one."""
    to = row.get("recipients")
    return _report(batch, {**row, "recipient": to[0] if isinstance(to, list) and len(to) == 1 else ""})


def _report(batch: Mapping[str, Any], row: Mapping[str, Any]) -> ProviderEvent:
    word, detail, at = code_in(row.get("status")), code_in(row.get("code")), row.get("at")
    return ProviderEvent(
        identity=identity_from(batch.get("batch_id"), row.get("recipient"), word, detail, at),
        kind=kind_of(word.upper(), KINDS),
        receipt=receipt_in(batch.get("batch_id")),
        send_key=send_key_in(batch.get("client_reference")),
        address=number_in(row.get("recipient")),
        occurred_at=moment_in(row.get("operator_status_at")) or moment_in(at),
        code="/".join(each for each in (word, detail) if each),
    )


def _reply(item: Mapping[str, Any]) -> ProviderEvent:
    word, body = code_in(item.get("type")), item.get("body")
    text = part(item, "body").get("message") if word == "mo_media" else body
    return ProviderEvent(
        identity=identity_of(item.get("id")),
        kind=EventKind.UNKNOWN if word == "mo_binary" else EventKind.REPLIED,
        address=number_in(item.get("from")),
        occurred_at=moment_in(item.get("received_at")),
        code=word,
        text="" if word == "mo_binary" else text_in(text),
    )


KINDS = {
    "QUEUED": EventKind.ACCEPTED,
    "DISPATCHED": EventKind.SENT,
    "DELIVERED": EventKind.DELIVERED,
    "FAILED": EventKind.UNDELIVERED,
    "DELETED": EventKind.UNDELIVERED,  # by a carrier: invalid, or opted out there
    "REJECTED": EventKind.REJECTED,
    "ABORTED": EventKind.REJECTED,
    "CANCELLED": EventKind.REJECTED,
    "EXPIRED": EventKind.EXPIRED,
    "UNKNOWN": EventKind.UNKNOWN,
}
