"""What Mailgun calls back with: one event a request, with a signed token in it.

    {"signature": {"timestamp": ..., "token": ..., "signature": ...},
     "event-data": {"event": "failed", "severity": "permanent", "message": {...}, "user-variables": {...}}}

Only the token and the time are signed, *not* the event: that it is Mailgun's rests on the token, which comes
once, and on HTTPS. So the token is the identity, and a token that is used for something else is a repeat of
the first. (An event's own id is "unique within a day" only.) Our send key is the variable `sendonce`. The
receipt of a send has angle brackets, which events leave out.

"failed" is temporary while Mailgun tries on, and permanent when it has given up: a hard bounce, unless it
says "soft" or that the address stood on its own list (`reason` suppress-...).

Sources: documentation.mailgun.com/docs/mailgun/user-manual: webhooks/{webhook-payloads, securing-webhooks},
events/event-structure; github.com/mailgun/mailgun-python (security); github.com/anymail/django-anymail
(webhooks/mailgun).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, Forged, Unreadable
from sendonce.ports.secret import Secret
from sendonce.providers import signatures
from sendonce.providers.api import code_in, receipt_in
from sendonce.providers.events import (
    Faulty,
    VendorEvents,
    address_in,
    collect,
    identity_of,
    json_object,
    kind_of,
    moment_in,
    part,
    send_key_in,
    text_in,
)
from sendonce.providers.mailgun import VARIABLE, MailgunSettings


def mailgun_events(settings: MailgunSettings) -> MailgunEvents | None:
    return MailgunEvents(settings.event_secrets) if settings.event_secrets else None


class MailgunEvents(VendorEvents):
    """`ports.events.EventSource` for one Mailgun domain."""

    def __init__(self, secrets: tuple[Secret, ...]) -> None:
        self._secrets = secrets

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        try:
            body = json_object(request)
        except Unreadable:
            raise Forged("signature") from None  # it stands inside
        signed = part(body, "signature")
        token = text_in(signed.get("token"))
        if not isinstance(signed.get("signature"), str):
            raise Forged("signature")
        signatures.mailgun(
            text_in(signed.get("timestamp")), token, signed["signature"], self._secrets, now=now
        )
        return collect([body], partial(_event, token=token))


def _event(item: Mapping[str, Any], *, token: str) -> ProviderEvent:
    data = part(item, "event-data")
    if not data:
        raise Faulty("no_event")
    word, severity = code_in(data.get("event")), code_in(data.get("severity"))
    reason = code_in(data.get("reason"))
    kind = kind_of(word, KINDS)
    if word == "failed":
        kind = _failure(severity, reason, part(data, "delivery-status").get("bounce-type"))
    bare = receipt_in(part(part(data, "message"), "headers").get("message-id")).strip("<>")
    return ProviderEvent(
        identity=identity_of(token),
        kind=kind,
        receipt=f"<{bare}>" if bare else "",
        send_key=send_key_in(part(data, "user-variables").get(VARIABLE)),
        address=address_in(data.get("recipient")),
        occurred_at=moment_in(data.get("timestamp")),
        code="/".join(each for each in (word, severity, reason) if each),
    )


def _failure(severity: str, reason: str, bounce: object) -> EventKind:
    if severity == "temporary":
        return EventKind.DEFERRED
    if severity != "permanent":
        return EventKind.UNKNOWN
    if reason.startswith("suppress-"):
        return EventKind.SUPPRESSED
    return EventKind.BOUNCED_SOFT if bounce == "soft" else EventKind.BOUNCED_HARD


KINDS = {
    "accepted": EventKind.ACCEPTED,
    "delivered": EventKind.DELIVERED,
    "rejected": EventKind.REJECTED,
    "complained": EventKind.COMPLAINED,
    "unsubscribed": EventKind.OPTED_OUT,
}
