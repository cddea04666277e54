"""How things look in answers, wherever they stand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

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


def example(value: Any) -> dict[str, Any]:
    """The configuration of a model with an example."""
    return {"json_schema_extra": {"examples": [value]}}
