"""What processes tell each other: that there may be something to do now, and where.

News is a hint. It carries no work and proves nothing; whoever hears it looks, and whoever hears nothing finds
the same at its next look. So it may be late, told twice or lost, at the price of a fraction of a second.

It is told where somebody waits who would otherwise look in vain for long: at publication, and when a person
lets something go on. Never by a claim or an outcome, of which there are thousands a second.
"""

from __future__ import annotations

from typing import Final

DUE: Final = "due"
"""A scheduler has something to publish."""

EVENTS: Final = "events"
"""A provider has called back."""


def queued(account: str) -> str:
    """The account's queue is not empty."""
    return f"queued:{account}"


def gate(account: str) -> str:
    """The account's gate was opened by hand, or has other limits."""
    return f"gate:{account}"
