"""What the configuration decided, as the stages read it: frozen values, no defaults for what matters.

One `Policy` is built at start and handed to every stage. Limits are not in it once the store runs:
they are seeded from `AccountPolicy.limits` into the gate, and the gate's own values win until the
configuration changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from sendonce.core.consent import NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.due import QuietHours
from sendonce.core.errors import ConfigError
from sendonce.core.objective import USUAL, Objectives
from sendonce.core.pacing import GateLimits
from sendonce.core.plan import Plan
from sendonce.core.promise import Promise
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Choice, Route, choose, route_for


class UncertainPolicy(StrEnum):
    """What happens to a delivery of which nobody can tell whether it was sent."""

    HOLD = "hold"  # an operator decides; never resent by itself
    RESEND = "resend"  # one more attempt, which may make a duplicate
    ASSUME_SENT = "assume_sent"


class OnQuiet(StrEnum):
    """What quiet hours do to a delivery that falls into them."""

    DEFER = "defer"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class AccountPolicy:
    """One provider account. `sender` and `reply_to` stand where a row names none.

    senders  what it may send as besides `sender`
    """

    name: str
    channel: Channel
    promise: Promise
    limits: GateLimits
    retry: RetryPolicy
    sender: str
    reply_to: str = ""
    senders: tuple[str, ...] = ()

    def may_send_as(self, sender: str) -> bool:
        """Whether this account declares the sender. One that is "" is filled in by the account itself."""
        return not sender or sender == self.sender or sender in self.senders


@dataclass(frozen=True, slots=True)
class ChannelPolicy:
    """One channel. `expiry_s` counts from the due time; `alert_after_s` is the age that alarms.

    catch_up_us  the span between two overdue ones that are published after a pause or an outage; 0: none
    objectives   what it is to keep
    move_after_s how long an account must be held before what waits for it goes to another that shares with it
    """

    channel: Channel
    expiry_s: float
    alert_after_s: float
    uncertain: UncertainPolicy
    catch_up_us: int = 0
    objectives: Objectives = USUAL
    move_after_s: float = 600.0


@dataclass(frozen=True, slots=True)
class CategoryPolicy:
    """One category of reminders ("payment", "shipment"). None: the channel's word stands.

    unsubscribe  its email says where one click ends it
    """

    name: str
    no_record: NoRecord
    quiet: tuple[QuietHours, ...] = ()
    on_quiet: OnQuiet = OnQuiet.DEFER
    expiry_s: float | None = None
    uncertain: UncertainPolicy | None = None
    unsubscribe: bool = False


@dataclass(frozen=True, slots=True)
class Recipients:
    """Who may be written to at all, so that a copy of the data mails nobody.

    allow     shell patterns over addresses as compared; empty: everybody
    redirect  channel -> the one address that gets everything instead
    """

    allow: tuple[str, ...] = ()
    redirect: Mapping[Channel, str] = field(default_factory=dict)

    def allows(self, comparison_form: str) -> bool:
        return not self.allow or any(fnmatchcase(comparison_form, pattern) for pattern in self.allow)


@dataclass(frozen=True, slots=True)
class Policy:
    """All of it. `default_category` is what a row without a category gets.

    lease_s          how long a process that stops answering keeps what it claimed
    pass_rows_max    rows that one pass examines at most
    pass_time_max_s  and the time it takes at most
    grace_s          how late a publication may be before it counts as a late arrival
    late_ok_s        how far in the past a due time may lie at intake
    public_url       where customers reach the API; "": nowhere
    """

    accounts: Mapping[str, AccountPolicy]
    channels: Mapping[Channel, ChannelPolicy]
    categories: Mapping[str, CategoryPolicy]
    default_category: str
    zones: Mapping[str, str]
    routes: tuple[Route, ...]
    recipients: Recipients = Recipients()
    plans: Mapping[str, Plan] = field(default_factory=dict)
    phone_region: str | None = None
    lease_s: float = 30.0
    pass_rows_max: int = 50_000
    pass_time_max_s: float = 60.0
    grace_s: float = 60.0
    late_ok_s: float = 86_400.0
    public_url: str = ""
    hints: bool = False

    def category(self, name: str) -> CategoryPolicy:
        try:
            return self.categories[name]
        except KeyError:
            raise ConfigError(
                f"category {name!r} is not configured: add [category.{name}] or use one of "
                + ", ".join(sorted(self.categories))
            ) from None

    def channel(self, channel: Channel) -> ChannelPolicy:
        try:
            return self.channels[channel]
        except KeyError:
            raise ConfigError(f"channel {channel} is not configured: add [channel.{channel}]") from None

    def is_shared(self, channel: Channel, tenant: str, category: str) -> bool:
        """Whether several accounts may carry it."""
        try:
            return len(route_for(self.routes, channel, tenant, category).accounts) > 1
        except ConfigError:
            return False

    def choose(
        self,
        channel: Channel,
        tenant: str,
        category: str,
        key: str,
        *,
        before: str,
        sender: str,
        wellness: Callable[[Sequence[str]], Mapping[str, float]],
    ) -> Choice:
        """Who carries a delivery from its publication on. Raises `ConfigError` where no rule fits.

        before    the account that it was published for earlier, "" for none: while that still shares in it,
                  it keeps it, whatever the weights are now
        sender    what it says of its sender, which the account must declare
        wellness  how well these accounts are now; asked only where several share
        """
        route = route_for(self.routes, channel, tenant, category)
        if not route.shares or before in route.accounts:
            name = before if before in route.accounts else route.account
            return Choice(name, name)
        return choose(
            route,
            tenant,
            key,
            wellness=wellness(route.accounts),
            may_carry=lambda name: self.accounts[name].may_send_as(sender),
        )

    def zone(self, tenant: str) -> str:
        return self.zones.get(tenant, self.zones.get("default", "UTC"))

    def uncertain(self, channel: Channel, category: str) -> UncertainPolicy:
        own = self.categories[category].uncertain if category in self.categories else None
        return own if own is not None else self.channel(channel).uncertain

    def expiry_s(self, channel: Channel, category: str) -> float:
        own = self.category(category).expiry_s
        return own if own is not None else self.channel(channel).expiry_s
