"""What GOV.UK Notify calls back with: a delivery receipt or a received text, with a bearer token.

    {"id": ..., "reference": ..., "to": ..., "status": "delivered", "notification_type": "sms", ...}
    {"id": ..., "source_number": "447700912345", "message": ..., "date_received": ...}

Notify signs nothing: the token that its settings hold for a callback vouches, one of the account's
`event_secrets`. Our send key is the `reference`. A failure is final, also a "temporary" one, after three days
of trying: of an email it is a bounce, soft or hard; of a text, undelivered. A "technical failure" was not
sent.

Sources: docs.notifications.service.gov.uk/rest-api.html (callbacks, statuses), github.com/alphagov/
notifications-tech-docs (_callbacks, _notification_statuses).
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
    address_in,
    collect,
    identity_from,
    identity_of,
    json_object,
    kind_of,
    moment_in,
    number_in,
    send_key_in,
    text_in,
)
from sendonce.providers.notify import NotifySettings


def notify_events(settings: NotifySettings) -> NotifyEvents | None:
    return NotifyEvents(settings.event_secrets) if settings.event_secrets else None


class NotifyEvents(VendorEvents):
    """`ports.events.EventSource` for one Notify service."""

    def __init__(self, secrets: tuple[Secret, ...]) -> None:
        self._secrets = secrets

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        signatures.shared_secret(request.headers.get("authorization", ""), self._secrets)
        return collect([json_object(request)], event_in)


def event_in(item: Mapping[str, Any]) -> ProviderEvent:
    """One item, in the shape of a call."""
    if "source_number" in item:
        return _reply(item)
    message = identity_of(item.get("id") or item.get("notification_id"))
    word, told = code_in(item.get("status")), code_in(item.get("notification_type"))
    at = item.get("completed_at") or item.get("sent_at")
    return ProviderEvent(
        identity=identity_from(message, word, at),
        kind=kind_of(word, EMAIL if told == "email" else SMS),
        receipt=receipt_in(item.get("id")),
        send_key=send_key_in(item.get("reference")),
        address=address_in(item.get("to")),
        occurred_at=moment_in(at),
        code=word,
    )


def _reply(item: Mapping[str, Any]) -> ProviderEvent:
    return ProviderEvent(
        identity=identity_of(item.get("id")),
        kind=EventKind.REPLIED,
        address=number_in(item.get("source_number")),
        occurred_at=moment_in(item.get("date_received")),
        code="received",
        text=text_in(item.get("message")),
    )


_COMMON = {
    "created": EventKind.ACCEPTED,
    "sending": EventKind.ACCEPTED,
    "pending": EventKind.SENT,  # "received a callback from the provider", not yet from the telephone
    "sent": EventKind.SENT,  # to another country, whose networks say no more
    "delivered": EventKind.DELIVERED,
    "technical-failure": EventKind.REJECTED,
}
EMAIL = {
    **_COMMON,
    "permanent-failure": EventKind.BOUNCED_HARD,
    "temporary-failure": EventKind.BOUNCED_SOFT,
}
SMS = {
    **_COMMON,
    "permanent-failure": EventKind.UNDELIVERED,
    "temporary-failure": EventKind.UNDELIVERED,
}
