"""What Resend calls back with: one event a request, signed as in Standard Webhooks (by Svix).

    {"type": "email.delivered", "created_at": ..., "data": {"email_id": ..., "to": [...], "tags": {...}}}

The identity is `svix-id`, the same on each try. Our send key is the tag `sendonce`. "email.sent" says that
the API took the request, not that a mail server has it: accepted. "email.bounced" is told when the receiving
server "permanently rejected" it; where a `bounce.type` says otherwise, that counts.

Sources: resend.com/docs/webhooks (event types, retries, verify); github.com/resend/resend-openapi
(WebhookEventBounce, WebhookEventSuppressed); github.com/anymail/django-anymail (webhooks/resend).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest
from sendonce.ports.secret import Secret
from sendonce.providers import signatures
from sendonce.providers.api import code_in, receipt_in
from sendonce.providers.events import (
    VendorEvents,
    address_in,
    collect,
    identity_of,
    json_object,
    kind_of,
    moment_in,
    part,
    send_key_in,
)
from sendonce.providers.resend import TAG, ResendSettings


def resend_events(settings: ResendSettings) -> ResendEvents | None:
    return ResendEvents(settings.event_secrets) if settings.event_secrets else None


class ResendEvents(VendorEvents):
    """`ports.events.EventSource` for one Resend team."""

    def __init__(self, secrets: tuple[Secret, ...]) -> None:
        self._secrets = secrets

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        signatures.standard_webhook(request.headers, request.body, self._secrets, now=now)
        return collect([json_object(request)], partial(_event, identity=request.headers["svix-id"]))


def _event(item: Mapping[str, Any], *, identity: str) -> ProviderEvent:
    word, data = code_in(item.get("type")), part(item, "data")
    kind = kind_of(word, KINDS)
    bounce = code_in(part(data, "bounce").get("type"))
    if kind is EventKind.BOUNCED_HARD and bounce:
        kind = kind_of(bounce, BOUNCES)
    details = [part(data, "bounce").get("subType"), part(data, "suppressed").get("type")]
    details.append(part(data, "failed").get("reason"))
    detail = next((code for code in map(code_in, details) if code), "")
    to = data.get("to")
    return ProviderEvent(
        identity=identity_of(identity),
        kind=kind,
        receipt=receipt_in(data.get("email_id")),
        send_key=send_key_in(part(data, "tags").get(TAG)),
        address=address_in(to[0]) if isinstance(to, list) and len(to) == 1 else "",
        occurred_at=moment_in(item.get("created_at")),
        code="/".join(each for each in (word, bounce, detail) if each),
    )


KINDS = {
    "email.scheduled": EventKind.ACCEPTED,
    "email.sent": EventKind.ACCEPTED,
    "email.delivered": EventKind.DELIVERED,
    "email.delivery_delayed": EventKind.DEFERRED,
    "email.bounced": EventKind.BOUNCED_HARD,
    "email.complained": EventKind.COMPLAINED,
    "email.failed": EventKind.REJECTED,
    "email.suppressed": EventKind.SUPPRESSED,
}
BOUNCES = {
    "Permanent": EventKind.BOUNCED_HARD,
    "Transient": EventKind.BOUNCED_SOFT,
    "Undetermined": EventKind.BOUNCED_SOFT,
}
