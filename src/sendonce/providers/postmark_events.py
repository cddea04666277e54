"""What Postmark calls back with: one event a request, unsigned. A password or a token of its own vouches.

    {"RecordType": "Bounce", "Type": "HardBounce", "MessageID": ..., "Email": ..., "Metadata": {...}}

Postmark signs nothing. Its webhook takes a user and a password (Basic) or headers of one's own, such as
`Authorization: Bearer ...`; either must hold one of the account's `event_secrets`. Our send key is the
metadata field `sendonce`. Only bounces have an id, so an identity is made of what is constant in an event.

What a bounce means stands in its `Type`. A "Transient" one is still tried; a "SoftBounce" is not; "Blocked"
and the like are about content or reputation, and say nothing of the address. An inbound webhook on the same
URL is read as well: a customer's reply.

Sources: postmarkapp.com/developer: webhooks/{webhooks-overview, bounce-webhook, delivery-webhook,
spam-complaint-webhook, subscription-change-webhook, inbound-webhook}, api/bounce-api (bounce types);
github.com/anymail/django-anymail (webhooks/postmark).
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
    json_object,
    kind_of,
    moment_in,
    part,
    send_key_in,
    text_in,
)
from sendonce.providers.postmark import FIELD, PostmarkSettings


def postmark_events(settings: PostmarkSettings) -> PostmarkEvents | None:
    return PostmarkEvents(settings.event_secrets) if settings.event_secrets else None


class PostmarkEvents(VendorEvents):
    """`ports.events.EventSource` for one Postmark server."""

    def __init__(self, secrets: tuple[Secret, ...]) -> None:
        self._secrets = secrets

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        signatures.shared_secret(request.headers.get("authorization", ""), self._secrets)
        return collect([json_object(request)], event_in)


def event_in(item: Mapping[str, Any]) -> ProviderEvent:
    """One item, in the shape of a call."""
    if "RecordType" not in item and "FromFull" in item:
        return _reply(item)
    record, detail = code_in(item.get("RecordType")), code_in(item.get("Type"))
    kind = kind_of(record, RECORDS)
    if record == "Bounce":
        kind = kind_of(detail, BOUNCES)
    elif record == "SubscriptionChange":
        kind, detail = _subscription(item)
    at = next((item[name] for name in TIMES if item.get(name)), None)
    to = item.get("Email") or item.get("Recipient")
    return ProviderEvent(
        identity=identity_from(record, item.get("ID"), item.get("MessageID"), at, detail, to),
        kind=kind,
        receipt=receipt_in(item.get("MessageID")),
        send_key=send_key_in(part(item, "Metadata").get(FIELD)),
        address=address_in(to),
        occurred_at=moment_in(at),
        code="/".join(each for each in (record, detail) if each),
    )


def _subscription(item: Mapping[str, Any]) -> tuple[EventKind, str]:
    """A change of Postmark's own list. What the recipient did is a word of theirs; the rest is the list's."""
    reason, by_recipient = code_in(item.get("SuppressionReason")), item.get("Origin") == "Recipient"
    if item.get("SuppressSending") is False:
        return (EventKind.OPTED_IN if by_recipient else EventKind.UNKNOWN), "reactivated"
    if reason == "SpamComplaint":
        return EventKind.COMPLAINED, reason
    if reason == "ManualSuppression" and by_recipient:
        return EventKind.OPTED_OUT, reason
    return EventKind.SUPPRESSED, reason


def _reply(item: Mapping[str, Any]) -> ProviderEvent:
    return ProviderEvent(
        identity=identity_from("Inbound", item.get("MessageID")),
        kind=EventKind.REPLIED,
        address=address_in(part(item, "FromFull").get("Email")),
        code="Inbound",
        text=text_in(item.get("StrippedTextReply")) or text_in(item.get("TextBody")),
    )


TIMES = ("DeliveredAt", "BouncedAt", "ChangedAt", "ReceivedAt")
RECORDS = {
    "Delivery": EventKind.DELIVERED,
    "SpamComplaint": EventKind.COMPLAINED,
}
# postmarkapp.com/developer/api/bounce-api#bounce-types
BOUNCES = {
    "HardBounce": EventKind.BOUNCED_HARD,
    "Transient": EventKind.DEFERRED,
    "DnsError": EventKind.DEFERRED,
    "SoftBounce": EventKind.BOUNCED_SOFT,
    "Blocked": EventKind.BOUNCED_SOFT,
    "SpamNotification": EventKind.BOUNCED_SOFT,  # a filter's word, not the recipient's
    "VirusNotification": EventKind.BOUNCED_SOFT,
    "DMARCPolicy": EventKind.BOUNCED_SOFT,
    "BadEmailAddress": EventKind.REJECTED,  # by Postmark: nobody was asked
    "SMTPApiError": EventKind.REJECTED,
    "TemplateRenderingFailed": EventKind.REJECTED,
    "ManuallyDeactivated": EventKind.SUPPRESSED,
    "Unsubscribe": EventKind.OPTED_OUT,
    "Subscribe": EventKind.OPTED_IN,
    "SpamComplaint": EventKind.COMPLAINED,
}
