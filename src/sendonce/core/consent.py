"""Whether an address may be written to, on a channel, in a category.

A suppression (bounce, complaint, operator) always holds. An opt-out holds until a later opt-in of the same
or a narrower scope: who said no to one category has not said yes to it by a START for everything. A record
for all categories ("*") covers each of them. Where nothing is recorded, the configuration says what
"no consent record" means; there is no default.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sendonce.core.value import value

ANY_CATEGORY: Final = "*"


class Kind(StrEnum):
    """What a record says."""

    OPT_IN = "opt_in"
    OPT_OUT = "opt_out"
    SUPPRESSED = "suppressed"


class NoRecord(StrEnum):
    """What it means when nothing is recorded."""

    ALLOW = "allow"
    REFUSE = "refuse"


@value
class Preference:
    """One record about an address on a channel. `at` in microseconds UTC; `category` may be "*"."""

    kind: Kind
    category: str
    at: int
    source: str


def refusal(records: Iterable[Preference], category: str, no_record: NoRecord) -> str | None:
    """Why the address must not be written to: a coded reason, or None where it may be.

    Reasons: "suppressed:SOURCE", "opted_out:SOURCE", "no_consent".
    """
    general: Preference | None = None
    special: Preference | None = None
    for record in records:
        if record.category not in (ANY_CATEGORY, category):
            continue
        if record.kind is Kind.SUPPRESSED:
            return f"suppressed:{record.source}"
        if record.category == ANY_CATEGORY:
            general = _newer(record, general)
        else:
            special = _newer(record, special)
    decides = special if special is not None and special.kind is Kind.OPT_OUT else None
    if decides is None:
        decides = _newer(general, special) if general is not None else special
    if decides is None:
        return "no_consent" if no_record is NoRecord.REFUSE else None
    return f"opted_out:{decides.source}" if decides.kind is Kind.OPT_OUT else None


def _newer(one: Preference, other: Preference | None) -> Preference:
    """At the same instant the opt-out wins: the person's "no" is never lost to a tie."""
    if other is None or (one.at, one.kind is Kind.OPT_OUT) > (other.at, other.kind is Kind.OPT_OUT):
        return one
    return other
