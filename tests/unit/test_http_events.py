"""Callbacks of any API, by configuration; and cases of others about signatures and batches."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from typing import Any, Final

import pytest

from sendonce.core.errors import InvalidInput
from sendonce.core.provider_event import EventKind
from sendonce.ports.events import EventBatch, EventRequest, Forged, Unreadable
from sendonce.ports.secret import Secret
from sendonce.providers.http import HttpProvider, HttpSettings, http_events
from sendonce.providers.http_events import HttpEvents, HttpEventSource, Signed

NOW: Final = 1_798_000_000_000_000
KINDS: Final = {"delivered": EventKind.DELIVERED, "bounce": EventKind.BOUNCED_HARD}


def settings(**changes: Any) -> HttpEvents:
    given: dict[str, Any] = {
        "secrets": (Secret("key"),),
        "signed": Signed.HMAC,
        "signature_header": "X-Signature",
        "kind_path": "event",
        "receipt_path": "id",
        "kinds": KINDS,
    }
    return HttpEvents(**given | changes)


def read(body: bytes, signature: str, **changes: Any) -> EventBatch:
    source = HttpEventSource(settings(**changes))
    request = EventRequest("POST", "https://us.example.com/", {"x-signature": signature}, body)
    return asyncio.run(source.read(request, now=NOW))


def signature_of(body: bytes, key: bytes = b"key") -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


A: Final = bytes.fromhex(
    "5b7b226576656e74223a2264656c697665726564222c226964223a226d2d31227d2c0d0a7b226576656e74223a22626f756e6365"
    "222c226964223a226d2d32222c22726561736f6e223a226361665c7530306539227d5d0d0a"
)


def test_hook_05_the_signature_is_over_the_bytes_as_they_came() -> None:
    assert hashlib.sha256(A).hexdigest().startswith("4d384b96")
    compact = json.dumps(json.loads(A), separators=(",", ":")).encode()
    without_end = A.removesuffix(b"\r\n")
    good = signature_of(A)
    assert [(event.receipt, event.kind) for event in read(A, good).events] == [
        ("m-1", EventKind.DELIVERED),
        ("m-2", EventKind.BOUNCED_HARD),
    ]
    changed = [A[:index] + bytes([A[index] ^ 1]) + A[index + 1 :] for index in range(len(A))]
    for body in (compact, without_end, *changed):
        with pytest.raises(Forged):
            read(body, good)
    for signature in ("", good[:-1], good.upper(), signature_of(A, b"another"), signature_of(A, b"")):
        with pytest.raises(Forged):
            read(A, signature)


@pytest.mark.parametrize(
    "bad",
    [
        {"event": 12, "id": None},
        {"event": "delivered"},
        "not an object",
        None,
        {"event": "", "id": "m-2"},
        {"id": "m-2", "reason": "x" * 2_000_000},
    ],
)
def test_hook_07_one_bad_item_is_told_and_costs_nothing(bad: object) -> None:
    body = json.dumps([{"event": "delivered", "id": "p1"}, bad, {"event": "delivered", "id": "p3"}]).encode()
    first, again = read(body, signature_of(body)), read(body, signature_of(body))
    assert [event.receipt for event in first.events] == ["p1", "p3"]
    assert len(first.faulty) == 1
    assert [event.identity for event in first.events] == [event.identity for event in again.events]


def test_an_unknown_word_is_unknown_and_told() -> None:
    body = b'{"event": "teleported", "id": "p1"}'
    (event,) = read(body, signature_of(body)).events
    assert (event.kind, event.code) == (EventKind.UNKNOWN, "teleported")


def test_without_an_id_an_event_is_known_by_all_of_it_in_any_order() -> None:
    told = [
        b'{"event": "delivered", "id": "p1", "try": 1}',
        b'{"try": 1, "id": "p1",   "event": "delivered"}',
        b'{"event": "delivered", "id": "p1", "try": 2}',
        b'{"event": "delivered", "id": "p1", "try": 1, "note": "%s1"}' % (b"x" * 5_000),
        b'{"event": "delivered", "id": "p1", "try": 1, "note": "%s2"}' % (b"x" * 5_000),
    ]
    identities = [read(body, signature_of(body)).events[0].identity for body in told]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4


def test_a_receipt_may_be_a_number() -> None:
    body = b'{"event": "delivered", "id": 4711}'
    assert read(body, signature_of(body)).events[0].receipt == "4711"


def test_where_nothing_stands_nothing_can_be_read() -> None:
    body = b'{"event": "delivered", "id": "p1"}'
    with pytest.raises(Unreadable, match="no_events"):
        read(body, signature_of(body), rows_path="data.events")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"secrets": ()}, "secrets"),
        ({"secrets": (Secret(""),)}, "secrets"),
        ({"signature_header": ""}, "signature_header"),
        ({"signed": Signed.TOKEN}, "signature_header"),
        ({"signed": Signed.STANDARD, "signature_header": "", "timestamp_header": "X"}, "timestamp_header"),
        ({"receipt_path": ""}, "receipt_path"),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        settings(**changes)
    assert caught.value.field == field


def test_an_api_that_repeats_our_reference_echoes() -> None:
    def account(events: HttpEvents | None) -> HttpSettings:
        return HttpSettings(url="https://api.example.com/", body_json='{"to": "{{ to }}"}', events=events)

    assert http_events(account(None)) is None
    assert not HttpProvider(account(settings())).promise.echo
    assert HttpProvider(account(settings(reference_path="ref"))).promise.echo
