"""What Amazon SES calls back with: an event published to an SNS topic, in a message that SNS signs.

    {"eventType": "Bounce", "bounce": {"bounceType": "Permanent", ...}, "mail": {"messageId", "tags", ...}}

`sns` verifies; the identity is SNS's message id, with the place of the recipient where there are several. Our
send key is the message tag `sendonce`, which only events of a configuration set repeat; the older
notifications of an identity (`notificationType`) are read as well, and name none.

A transient bounce is told when SES has stopped trying, and does not condemn the address. "Suppressed" and
"OnAccountSuppressionList" are lists, not mail servers.

Sources: docs.aws.amazon.com/ses/latest/dg: event-publishing-retrieving-sns-contents (and -examples),
notification-contents, send-an-email-from-console; github.com/anymail/django-anymail (webhooks/amazon_ses).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, Unreadable
from sendonce.providers import signatures
from sendonce.providers.api import code_in, receipt_in
from sendonce.providers.events import address_in, collect, kind_of, moment_in, object_of, part, send_key_in
from sendonce.providers.ses import TAG, SesSettings
from sendonce.providers.sns import NOTIFICATION, Fetch, SnsInbox, SnsMessage


def ses_events(settings: SesSettings) -> SesEvents | None:
    """Raises `ConfigError` where the library is missing."""
    if not settings.event_topics:
        return None
    signatures.need_library()
    return SesEvents(settings.event_topics)


class SesEvents:
    """`ports.events.EventSource` for SES, by these topics. `fetch` is for tests."""

    def __init__(self, topics: tuple[str, ...], fetch: Fetch | None = None) -> None:
        self._inbox = SnsInbox(topics, fetch)

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        message = await self._inbox.take(request, now=now)
        if message.kind != NOTIFICATION or message.text.startswith(GREETING):
            return EventBatch()
        return read_message(message)

    async def close(self) -> None:
        await self._inbox.close()


def read_message(message: SnsMessage) -> EventBatch:
    """The events in a verified message. Raises `Unreadable`."""
    try:
        told = json.loads(message.text)
    except (ValueError, RecursionError):
        raise Unreadable("json") from None
    event = object_of(told, Unreadable("not_an_object"))
    word = event.get("eventType") or event.get("notificationType")
    word = word.replace(" ", "_") if isinstance(word, str) else ""
    detail = part(event, DETAILS.get(word, word.lower()))
    people = _people(event, detail)
    return collect(
        enumerate(people),
        lambda each: _event(message, event, word, detail, f"/{each[0]}" if len(people) > 1 else "", each[1]),
    )


def _event(
    message: SnsMessage,
    event: Mapping[str, Any],
    word: str,
    detail: Mapping[str, Any],
    place: str,
    to: object,
) -> ProviderEvent:
    mail = part(event, "mail")
    kind, said = _kind(word, detail)
    tag = part(mail, "tags").get(TAG)
    return ProviderEvent(
        identity=message.identity + place,
        kind=kind,
        receipt=receipt_in(mail.get("messageId")),
        send_key=send_key_in(tag[0]) if isinstance(tag, list) and len(tag) == 1 else "",
        address=address_in(to),
        occurred_at=moment_in(detail.get("timestamp")) or _sent_at(word, mail) or message.published_at,
        code="/".join(each for each in (code_in(word), *said) if each),
    )


def _kind(word: str, detail: Mapping[str, Any]) -> tuple[EventKind, Sequence[str]]:
    if word == "Bounce":
        kind, sub = code_in(detail.get("bounceType")), code_in(detail.get("bounceSubType"))
        return (EventKind.SUPPRESSED if sub in LISTS else kind_of(kind, BOUNCES)), (kind, sub)
    if word == "Complaint":
        sub = code_in(detail.get("complaintSubType"))
        feedback = code_in(detail.get("complaintFeedbackType"))
        return (EventKind.SUPPRESSED if sub in LISTS else EventKind.COMPLAINED), (feedback, sub)
    if word == "DeliveryDelay":
        return EventKind.DEFERRED, (code_in(detail.get("delayType")),)
    if word == "Subscription":
        leaves = part(detail, "newTopicPreferences").get("unsubscribeAll") is True
        return (EventKind.OPTED_OUT if leaves else EventKind.UNKNOWN), ()
    return kind_of(word, KINDS), ()


def _people(event: Mapping[str, Any], detail: Mapping[str, Any]) -> list[object]:
    """Whom it is about: whom the detail names, else all whom the mail went to. Never nobody."""
    for name in ("bouncedRecipients", "complainedRecipients", "delayedRecipients", "recipients"):
        rows = detail.get(name)
        if isinstance(rows, list) and rows:
            return [row.get("emailAddress") if isinstance(row, dict) else row for row in rows]
    people = part(event, "mail").get("destination")
    return people if isinstance(people, list) and people else [None]


def _sent_at(word: str, mail: Mapping[str, Any]) -> int | None:
    return moment_in(mail.get("timestamp")) if word == "Send" else None


GREETING = "Successfully validated SNS topic"  # for Amazon SES event publishing: no event
DETAILS = {"DeliveryDelay": "deliveryDelay", "Rendering_Failure": "failure"}
"""Where an event has its details, where that is not its own name in small letters."""
KINDS = {
    "Send": EventKind.ACCEPTED,
    "Delivery": EventKind.DELIVERED,
    "Reject": EventKind.REJECTED,
    "Rendering_Failure": EventKind.REJECTED,
}
BOUNCES = {
    "Permanent": EventKind.BOUNCED_HARD,
    "Transient": EventKind.BOUNCED_SOFT,
    "Undetermined": EventKind.BOUNCED_SOFT,
}
LISTS = frozenset({"Suppressed", "OnAccountSuppressionList"})
