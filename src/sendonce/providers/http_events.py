"""What any API calls back with, by configuration: where each thing stands, and what its words mean.

    [account.texts.events]
    secrets = ["env:TEXTS_WEBHOOK_SECRET"]
    signed = "hmac"
    signature_header = "X-Signature"
    kind_path = "event"
    receipt_path = "id"
    kinds = { delivered = "delivered", bounce = "bounced_hard" }

`signed` says how it is known to be theirs:

    standard   Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`
    hmac       HMAC-SHA-256 of the body in `signature_header`, in hexadecimal or base64, perhaps after
               `sha256=`; with a `timestamp_header`, of the time, a dot and the body
    token      nothing is signed: a bearer token, or a password by Basic authentication

An event without an id of its own is known by all that stands in it. A word that `kinds` does not have is
unknown, with that word as its code: nothing is guessed from how it sounds.

Sources: github.com/standard-webhooks/standard-webhooks; how several vendors sign (GitHub's `sha256=`,
Stripe's and Slack's time before the body) is what `hmac` can be set to, no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import assert_never

from sendonce.core.errors import InvalidInput
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.events import EventBatch, EventRequest, Unreadable
from sendonce.ports.secret import Secret
from sendonce.providers import signatures
from sendonce.providers.api import code_in, receipt_in
from sendonce.providers.events import (
    Faulty,
    VendorEvents,
    address_in,
    check_secrets,
    collect,
    identity_from,
    identity_of,
    json_in,
    kind_of,
    moment_in,
    object_of,
    send_key_in,
    text_in,
)


class Signed(StrEnum):
    """How a callback is known to be the API's: see the module text."""

    STANDARD = "standard"
    HMAC = "hmac"
    TOKEN = "token"  # noqa: S105


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEvents:
    """How to verify and read callbacks. Paths are dotted (`data.0.id`), within one event."""

    secrets: tuple[Secret, ...] = field(
        metadata={
            "meaning": "What its callbacks are signed with, or its tokens; one, or two while they rotate."
        }
    )
    signed: Signed = field(metadata={"meaning": "How they are signed."})
    signature_header: str = field(default="", metadata={"meaning": "The header of an `hmac`."})
    timestamp_header: str = field(
        default="",
        metadata={"meaning": "The header of the time that an `hmac` covers; empty: it covers none."},
    )
    rows_path: str = field(
        default="", metadata={"meaning": "Where the events are; empty: the body is one, or a list."}
    )
    kind_path: str = field(metadata={"meaning": "Where an event says what happened."})
    kinds: Mapping[str, EventKind] = field(metadata={"meaning": "Its words, and what each means."})
    id_path: str = field(default="", metadata={"meaning": "Where an event has an id of its own."})
    receipt_path: str = field(
        default="", metadata={"meaning": "Where it names the message, as the send did."}
    )
    reference_path: str = field(default="", metadata={"meaning": "Where it repeats our `send_key`."})
    address_path: str = field(default="", metadata={"meaning": "Where it says whom it is about."})
    time_path: str = field(
        default="", metadata={"meaning": "Where it says when: ISO 8601, or seconds since 1970."}
    )
    code_path: str = field(default="", metadata={"meaning": "Where it has a code beside its word."})
    text_path: str = field(default="", metadata={"meaning": "Where a customer's words are."})

    def __post_init__(self) -> None:
        if not self.secrets:
            raise InvalidInput("must not be empty: without one nobody could be believed", field="secrets")
        check_secrets(self.secrets, "secrets")
        if (self.signed is Signed.HMAC) != bool(self.signature_header):
            raise InvalidInput(
                'must be written with signed = "hmac", and only then', field="signature_header"
            )
        if self.timestamp_header and self.signed is not Signed.HMAC:
            raise InvalidInput('must go with signed = "hmac"', field="timestamp_header")
        if not (self.receipt_path or self.reference_path or self.address_path):
            raise InvalidInput(
                "must be written, or reference_path or address_path: an event must be about something",
                field="receipt_path",
            )


class HttpEventSource(VendorEvents):
    """`ports.events.EventSource` for one account of the `http` adapter."""

    def __init__(self, settings: HttpEvents) -> None:
        self._settings = settings

    async def read(self, request: EventRequest, *, now: int) -> EventBatch:
        self._verify(request, now)
        body = json_in(request)
        rows = dig(body, self._settings.rows_path) if self._settings.rows_path else body
        rows = [rows] if isinstance(rows, dict) else rows
        if not isinstance(rows, list):
            raise Unreadable("no_events")
        return collect(rows, partial(_event, settings=self._settings))

    def _verify(self, request: EventRequest, now: int) -> None:
        settings, headers = self._settings, request.headers
        match settings.signed:
            case Signed.STANDARD:
                signatures.standard_webhook(
                    headers, request.body, settings.secrets, now=now, prefix="webhook"
                )
            case Signed.HMAC:
                at = settings.timestamp_header.lower()
                signatures.hmac_of_body(
                    headers.get(settings.signature_header.lower(), ""),
                    request.body,
                    settings.secrets,
                    timestamp=headers.get(at, "") if at else None,
                    now=now,
                )
            case Signed.TOKEN:
                signatures.shared_secret(headers.get("authorization", ""), settings.secrets)
            case _:
                assert_never(settings.signed)


def _event(given: object, *, settings: HttpEvents) -> ProviderEvent:
    item = object_of(given)

    def at(path: str) -> object:
        return dig(item, path) if path else None

    told = at(settings.kind_path)
    if not isinstance(told, str) or not told:
        raise Faulty("no_kind")
    receipt, address = receipt_in(_text(at(settings.receipt_path))), address_in(at(settings.address_path))
    send_key = send_key_in(at(settings.reference_path))
    if not (receipt or address or send_key):
        raise Faulty("no_message")
    code = code_in(at(settings.code_path))
    return ProviderEvent(
        identity=identity_of(at(settings.id_path)) if settings.id_path else _all_of(item),
        kind=kind_of(told, settings.kinds),
        receipt=receipt,
        send_key=send_key,
        address=address,
        occurred_at=moment_in(at(settings.time_path)),
        code="/".join(each for each in (code_in(told), code) if each),
        text=text_in(at(settings.text_path)),
    )


def dig(value: object, path: str) -> object:
    """What stands at a dotted path; None where nothing does."""
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isascii() and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _text(value: object) -> object:
    """A number that is an id, as text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _all_of(item: Mapping[str, object]) -> str:
    """The same for the same event, however its fields are ordered."""
    try:
        return identity_from(json.dumps(item, sort_keys=True))
    except (ValueError, RecursionError):
        raise Faulty("no_id") from None
