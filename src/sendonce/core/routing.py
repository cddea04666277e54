"""Which provider account carries a delivery.

Rules are read from the top; the first that fits wins. A rule may ask for a tenant, a category, both
or neither, and names an account of its channel, or several that share what fits by weight. The choice is
made at publication and kept with the delivery: an account is the unit of pacing and of idempotency keys.

Among several, each delivery has its own order of them (weighted rendezvous hashing: the account with the
greatest `-weight / ln(u)`, where `u` is a hash of account and delivery, takes it). So the choice is the same
on every machine and in every repetition, the shares follow the weights, and where an account's weight
falls, only deliveries of its own go elsewhere.

An account that is not well keeps only a part of its weight (`core.pacing.wellness`); where none is well, the
weights are as written, since then there is nowhere to go.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError
from sendonce.core.value import value

WELL: Final = 0.5
"""The part of its weight from which on an account counts as well."""
_64_BITS: Final = 1 << 64


@value
class Share:
    """An account that carries a part of what a rule takes. `weight`: of the sum of all of them."""

    account: str
    weight: int


@dataclass(frozen=True, slots=True)
class Route:
    """One rule. `tenant` and `category` None: any.

    account  the one that carries what fits, or the first of those that share it
    shares   who shares it, where several do; none: `account` alone
    """

    channel: Channel
    account: str
    tenant: str | None = None
    category: str | None = None
    shares: tuple[Share, ...] = ()

    @property
    def accounts(self) -> tuple[str, ...]:
        return tuple(share.account for share in self.shares) or (self.account,)


@value
class Choice:
    """Who carries a delivery, and for whom it was meant while all are well."""

    account: str
    meant: str


def route_for(routes: Sequence[Route], channel: Channel, tenant: str, category: str) -> Route:
    """The first rule that fits. Raises `ConfigError` where none does."""
    for route in routes:
        if route.channel is channel and route.tenant in (None, tenant) and route.category in (None, category):
            return route
    raise ConfigError(f'no account for channel {channel}: add `account = "NAME"` under [channel.{channel}]')


def account_for(routes: Sequence[Route], channel: Channel, tenant: str, category: str) -> str:
    """The account's name, of several the first. Raises `ConfigError` where no rule fits."""
    return route_for(routes, channel, tenant, category).account


def choose(
    route: Route,
    tenant: str,
    key: str,
    *,
    wellness: Mapping[str, float],
    may_carry: Callable[[str], bool] = lambda account: True,
) -> Choice:
    """Who carries the delivery with this key.

    wellness   account -> the part of its weight that it keeps; one that is not named is well
    may_carry  whether an account may send what the delivery says (its sender); where none may, the first
               account does, as if it were alone
    """
    able = {share.account: float(share.weight) for share in route.shares if may_carry(share.account)}
    if not able:
        return Choice(route.account, route.account)
    meant = first_of(able, tenant, key)
    parts = {account: wellness.get(account, 1.0) for account in able}
    if max(parts.values()) < WELL:
        return Choice(meant, meant)
    weights = {account: weight * parts[account] for account, weight in able.items()}
    return Choice(first_of(weights, tenant, key), meant)


def first_of(weights: Mapping[str, float], tenant: str, key: str) -> str:
    """Who of these is the first for this delivery. All weights are above 0, and there is one at least."""
    return max(weights, key=lambda account: -weights[account] / math.log(_draw(account, tenant, key)))


def _draw(account: str, tenant: str, key: str) -> float:
    """Above 0 and below 1, the same for ever."""
    digest = hashlib.blake2b(f"{account}\0{tenant}\0{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11 | 1) / (_64_BITS >> 11)
