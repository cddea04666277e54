"""What Vonage's Messages API calls back with: a message's status, or a customer's text, with a signed token.

    {"message_uuid": ..., "to": ..., "timestamp": ..., "status": "delivered", "client_ref": ...}
    {"message_uuid": ..., "from": ..., "timestamp": ..., "message_type": "text", "text": ...}

The `Authorization` header is a JWT (HS256, by the account's signature secret) with the hash of the body.
Vonage calls it optional to compare the hash; here a body without it is not believed. In an internal error
Vonage may call unsigned, and asks for a 5xx then, after which it calls again, signed: `NotNow`. Our send key
is `client_ref`.

"submitted" tells no more than that Vonage has it. A message to somebody who had replied STOP is taken and
then reported with error 1240: it stands on their list.

Sources: developer.vonage.com: api/messages (message status, inbound message), api-errors/messages,
messages/concepts/signed-webhooks; the Vonage blog, "Validating inbound messages from the Vonage Messages
API"; github.com/Vonage/vonage-python-sdk (vonage_jwt: verify).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, NotNow
from sendonce.ports.secret import Secret
from sendonce.providers import signatures
from sendonce.providers.api import code_in, receipt_in
from sendonce.providers.events import (
    Faulty,
    VendorEvents,
    collect,
    identity_from,
    json_object,
    kind_of,
    moment_in,
    number_in,
    part,
    send_key_in,
    text_in,
)
from sendonce.providers.vonage import VonageSettings


def vonage_events(settings: VonageSettings) -> VonageEvents | None:
    return VonageEvents(settings.event_secrets) if settings.event_secrets else None


class VonageEvents(VendorEvents):
    """`ports.events.EventSource` for one Vonage account."""

    def __init__(self, secrets: tuple[Secret, ...]) -> None:
        self._secrets = secrets

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        authorization = request.headers.get("authorization", "")
        if not authorization:
            raise NotNow("unsigned")
        signatures.vonage(authorization, request.body, self._secrets, now=now)
        return collect([json_object(request)], _event)


def _event(item: Mapping[str, Any]) -> ProviderEvent:
    message, at = receipt_in(item.get("message_uuid")), item.get("timestamp")
    if not message:
        raise Faulty("no_id")
    if "status" not in item:
        return _reply(item, message)
    word, error = code_in(item.get("status")), _error(part(item, "error"))
    return ProviderEvent(
        identity=identity_from(message, word, error, at),
        kind=EventKind.SUPPRESSED if error == OPTED_OUT else kind_of(word, KINDS),
        receipt=message,
        send_key=send_key_in(item.get("client_ref")),
        address=number_in(item.get("to")),
        occurred_at=moment_in(at),
        code="/".join(each for each in (word, error) if each),
    )


def _reply(item: Mapping[str, Any], message: str) -> ProviderEvent:
    told = code_in(item.get("message_type"))
    return ProviderEvent(
        identity=identity_from(message, "inbound"),
        kind=EventKind.REPLIED if told == "text" else EventKind.UNKNOWN,
        address=number_in(item.get("from")),
        occurred_at=moment_in(item.get("timestamp")),
        code=f"inbound/{told}" if told else "inbound",
        text=text_in(item.get("text")) if told == "text" else "",
    )


def _error(error: Mapping[str, Any]) -> str:
    """The number of an error: the fragment of its `type`, which also is its title."""
    kind = error.get("type")
    return code_in(kind.rpartition("#")[2]) if isinstance(kind, str) else ""


OPTED_OUT = "1240"
KINDS = {
    "submitted": EventKind.ACCEPTED,
    "delivered": EventKind.DELIVERED,
    "rejected": EventKind.REJECTED,
    "undeliverable": EventKind.UNDELIVERED,
}
