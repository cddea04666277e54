"""What SendGrid calls back with: a JSON list of events, signed with ECDSA on P-256.

    [{"event": "bounce", "type": "blocked", "sg_event_id": ..., "sg_message_id": ..., "sendonce": ...}, ...]

The identity is `sg_event_id`. The receipt of a send is what `sg_message_id` begins with, before the name of
the machine that took it on (`.filter...`, `.recvd-...`). Our send key is the custom argument `sendonce`,
which stands among the event's own fields. A "dropped" message never left SendGrid: it is on their list, or
not valid.

Sources: twilio.com/docs/sendgrid/for-developers/tracking-events: event,
getting-started-event-webhook-security-features; github.com/anymail/django-anymail (webhooks/sendgrid and its
recorded events); github.com/sendgrid/sendgrid-python (eventwebhook: what is signed).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sendonce.core.errors import InvalidInput
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, Unreadable
from sendonce.providers import signatures
from sendonce.providers.api import code_in, receipt_in
from sendonce.providers.events import (
    VendorEvents,
    address_in,
    collect,
    identity_of,
    json_in,
    kind_of,
    moment_in,
    object_of,
    send_key_in,
)
from sendonce.providers.sendgrid import ARGUMENT, SendgridSettings

if TYPE_CHECKING:
    from sendonce.providers.signatures import EllipticCurvePublicKey


def sendgrid_events(settings: SendgridSettings) -> SendgridEvents | None:
    """Raises `InvalidInput` for a key that is none, and `ConfigError` where the library is missing."""
    if not settings.event_public_keys:
        return None
    try:
        keys = tuple(signatures.p256_key(each) for each in settings.event_public_keys)
    except ValueError:
        raise InvalidInput(
            "must be the verification keys as SendGrid shows them, without BEGIN and END lines",
            field="event_public_keys",
        ) from None
    return SendgridEvents(keys)


class SendgridEvents(VendorEvents):
    """`ports.events.EventSource` for one SendGrid account."""

    def __init__(self, keys: tuple[EllipticCurvePublicKey, ...]) -> None:
        self._keys = keys

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        signatures.sendgrid(request.headers, request.body, self._keys, now=now)
        items = json_in(request)
        if not isinstance(items, list):
            raise Unreadable("not_a_list")
        return collect(items, _event)


def _event(given: object) -> ProviderEvent:
    item = object_of(given)
    word, detail = code_in(item.get("event")), code_in(item.get("type"))
    reason = item.get("reason")
    kind = kind_of(word, KINDS)
    if word == "bounce" and detail:
        kind = kind_of(detail, BOUNCES)
    elif word == "dropped" and isinstance(reason, str) and reason.lower() in SUPPRESSIONS:
        kind, detail = EventKind.SUPPRESSED, reason.lower().replace(" ", "_")
    return ProviderEvent(
        identity=identity_of(item.get("sg_event_id")),
        kind=kind,
        receipt=_receipt(item.get("sg_message_id")),
        send_key=send_key_in(item.get(ARGUMENT)),
        address=address_in(item.get("email")),
        occurred_at=moment_in(item.get("timestamp")),
        code="/".join(each for each in (word, detail) if each),
    )


def _receipt(value: object) -> str:
    """What `X-Message-Id` said. Older ids have dots of their own, so the machine's name ends it."""
    return _MACHINE.split(receipt_in(value), maxsplit=1)[0]


_MACHINE = re.compile(r"(?:^|\.)(?:filter|recvd)")
KINDS = {
    "processed": EventKind.ACCEPTED,
    "deferred": EventKind.DEFERRED,
    "delivered": EventKind.DELIVERED,
    "bounce": EventKind.BOUNCED_HARD,
    "dropped": EventKind.REJECTED,
    "spamreport": EventKind.COMPLAINED,
    "unsubscribe": EventKind.OPTED_OUT,
    "group_unsubscribe": EventKind.OPTED_OUT,
    "group_resubscribe": EventKind.OPTED_IN,
}
BOUNCES = {
    "bounce": EventKind.BOUNCED_HARD,
    "blocked": EventKind.BOUNCED_SOFT,  # "temporarily": the address is not on any list
    "expired": EventKind.EXPIRED,
}
SUPPRESSIONS = frozenset({"bounced address", "unsubscribed address", "spam reporting address"})
