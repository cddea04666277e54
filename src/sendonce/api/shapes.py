"""How things look in answers, wherever they stand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.ports.store import Delivery

NEVER: Final = 253_402_300_800_000_000
"""The end of the calendar: the year 10000."""

Instant = Annotated[
    str | None,
    Field(description="ISO 8601 in UTC, with microseconds.", examples=["2026-12-01T08:00:00.000000Z"]),
]
Reason = Annotated[
    str, Field(description="Why; it stands in the record, so without personal data.", examples=["paid"])
]


class Asked(BaseModel):
    """What is asked for: names that are not known are refused, and nothing is guessed from another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Said(BaseModel):
    """What is answered."""

    model_config = ConfigDict(extra="forbid")


def instant(at: int | None) -> str | None:
    """Microseconds UTC as text; None for 0, none, and what lies beyond the calendar."""
    if not at or not 0 < at < NEVER:
        return None
    seconds, micros = divmod(at, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"


class DeliverySaid(Said):
    """A delivery: one reminder to one customer on one channel."""

    key: str = Field(examples=["shipment-4821:customer-73:sms"])
    tenant: str
    customer: str
    channel: Channel
    state: State
    maybe_sent: bool = Field(description="An earlier attempt may have reached the provider.")
    pending: str = Field(
        description="What was asked for and waits for the truth: cancelled, suppressed or empty."
    )
    category: str
    group: str
    priority: int
    account: str
    receipt: str
    reason: str = Field(description="A coded reason for where it stands.")
    attempts: int
    version: int = Field(description="Of its content.")
    due_at: Instant
    next_at: Instant
    expires_at: Instant
    ended_at: Instant


def delivery_said(one: Delivery) -> dict[str, Any]:
    """What `DeliverySaid` says of a delivery."""
    standing, course = one.standing, one.course
    return {
        "key": one.key,
        "tenant": one.tenant,
        "customer": one.customer,
        "channel": one.channel,
        "state": standing.state,
        "maybe_sent": standing.maybe,
        "pending": standing.ending.value,
        "category": one.category,
        "group": one.group,
        "priority": one.priority,
        "account": course.account,
        "receipt": course.receipt,
        "reason": course.reason,
        "attempts": course.attempts,
        "version": standing.version,
        "due_at": instant(course.due_at),
        "next_at": instant(course.next_at) if one.ended_at == 0 else None,
        "expires_at": instant(course.expires_at),
        "ended_at": instant(one.ended_at),
    }
