"""Which provider account carries a delivery.

Rules are read from the top; the first that fits wins. A rule may ask for a tenant, a category, both
or neither, and names an account of its channel. The choice is made at publication and frozen there:
an account is the unit of pacing and of idempotency keys, so a delivery never changes it by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Route:
    """One rule. `tenant` and `category` None: any."""

    channel: Channel
    account: str
    tenant: str | None = None
    category: str | None = None


def account_for(routes: Sequence[Route], channel: Channel, tenant: str, category: str) -> str:
    """The account's name. Raises `ConfigError` where no rule fits."""
    for route in routes:
        if route.channel is channel and route.tenant in (None, tenant) and route.category in (None, category):
            return route.account
    raise ConfigError(f'no account for channel {channel}: add `account = "NAME"` under [channel.{channel}]')
