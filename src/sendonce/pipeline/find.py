"""One box to find by: a reminder, a customer, a delivery key, an address, a receipt.

People paste what they have; nobody should have to say what it is. Each reading of the text that could
be meant is looked up through its own index, and what is found says by which reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sendonce.address import comparison_form, normalise_email, normalise_phone
from sendonce.core.delivery import Channel, address_tag, parse_key
from sendonce.core.errors import InvalidInput
from sendonce.core.policy import Policy
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.pipeline.record import delivery_of
from sendonce.ports.store import Delivery, Tx

LIMIT_MAX: Final = 200
TEXT_LENGTH_MAX: Final = 1_000
NEWEST: Final = 2**62


@dataclass(frozen=True, slots=True)
class Found:
    """A delivery, and the readings of the text that found it: "key", "reminder", "customer", "address",
    "receipt"."""

    delivery: Delivery
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. `before` is what to ask the next page with; None: this is the last one."""

    found: tuple[Found, ...]
    before: int | None


def find(
    tx: Tx,
    text: str,
    policy: Policy,
    *,
    secret: bytes,
    tenant: str = DEFAULT_TENANT,
    limit: int = 50,
    before: int = NEWEST,
) -> Page:
    """Deliveries that `text` may mean. `limit` is cut to `LIMIT_MAX`, and at least 1.

    Raises `InvalidInput` for a text that is empty or far too long.
    """
    text = text.strip()
    if not text or len(text) > TEXT_LENGTH_MAX:
        raise InvalidInput(
            f"{text[:40]!r} cannot be looked for: give a reminder, a customer, a delivery key, an address "
            "or a receipt",
            field="text",
        )
    limit = max(1, min(limit, LIMIT_MAX))
    rows: dict[int, Delivery] = {}
    by: dict[int, list[str]] = {}
    for reading, value in _readings(text, policy, secret, tenant):
        parameters: dict[str, int | str] = {"tenant": tenant, "value": value, "before": before}
        for row in tx.rows(f"view_find_{reading}", **parameters, limit=limit + 1):
            delivery = delivery_of(row)
            rows[delivery.id] = delivery
            found_by = by.setdefault(delivery.id, [])
            if reading not in found_by:
                found_by.append(reading)
    ids = sorted(rows, reverse=True)
    return Page(
        tuple(Found(rows[id_], tuple(by[id_])) for id_ in ids[:limit]),
        ids[limit - 1] if len(ids) > limit else None,
    )


def _readings(text: str, policy: Policy, secret: bytes, tenant: str) -> Iterator[tuple[str, str]]:
    """What the text may be, as (statement, value)."""
    with suppress(InvalidInput):
        yield "key", parse_key(text).key
    yield "reminder", text
    yield "customer", text
    yield "receipt", text
    for channel, address in _addresses(text, policy):
        yield "address", address_tag(secret, tenant, channel.value, comparison_form(channel.value, address))


def _addresses(text: str, policy: Policy) -> Iterator[tuple[Channel, str]]:
    with suppress(InvalidInput):
        yield Channel.EMAIL, normalise_email(text)
    with suppress(InvalidInput):
        yield Channel.SMS, normalise_phone(text, region=policy.phone_region)
