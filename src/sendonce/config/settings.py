"""What the configuration decided: frozen, complete, checked against itself."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sendonce.config.problems import Place
from sendonce.config.store_url import StoreUrl
from sendonce.core.delivery import Channel
from sendonce.core.pacing import GateLimits
from sendonce.core.plan import Plan
from sendonce.core.policy import AccountPolicy, CategoryPolicy, ChannelPolicy, Policy, Recipients
from sendonce.core.promise import Promise
from sendonce.core.retention import Keep
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Route
from sendonce.ports.secret import Secret


@dataclass(frozen=True, slots=True)
class AccountSettings:
    """One provider account.

    sandbox         for tests: a drill may send through it
    poll_spacing_s  what lies between two questions of what became of a message; None: nobody asks
    poll_for_s      how long after its acceptance one is asked about
    options         the provider's own keys, unread: `bind(cls, account.options, account.place)` reads them
    """

    name: str
    channel: Channel
    provider: str
    limits: GateLimits
    retry: RetryPolicy
    sender: str
    reply_to: str
    senders: tuple[str, ...]
    sandbox: bool
    poll_spacing_s: float | None
    poll_for_s: float
    options: Mapping[str, object] = field(repr=False)  # a password in the wrong place is not shown either
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Who seals the ledger, how often, with which key; and where checkpoints go."""

    seal: bool
    every_s: float
    key: Secret | None
    public_keys: tuple[bytes, ...]
    checkpoint_file: Path | None
    checkpoint_command: tuple[str, ...]
    checkpoint_every_s: float


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A broker that may carry hints. `options`: its own keys, unread, as an account's are."""

    kind: str
    options: Mapping[str, object] = field(repr=False)  # a password in the wrong place is not shown either
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Which brokers a process knows, the first being the one that is configured; none: the store's own queue.

    take_over_s  how long it may be away before workers claim from the store's own queue
    """

    brokers: tuple[BrokerSettings, ...] = ()
    take_over_s: float = 10.0


@dataclass(frozen=True, slots=True)
class BounceSettings:
    """The mailbox that bounces come to. `imap` is its server; "": there is none."""

    imap: str
    security: str
    port: int
    username: str
    password: Secret
    ca_file: Path | None
    folder: str
    done_folder: str
    every_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The cluster that the feed is handed on to. `servers` "": there is none; `username` "": no login."""

    servers: str
    topic: str
    security: str
    username: str
    password: Secret
    mechanism: str
    ca_file: Path | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that `sendonce.toml` and the environment decided.

    path           the file, absolute
    zones          tenant -> IANA zone for rows that name none; holds "default"
    routes         in order; the accounts named under [channel.*] come last
    pass_every_s   how often the built-in timer starts a pass
    api_listen     where `up` serves the HTTP API, as written; "": nowhere
    console_users  the file of those who sign in by name and password; None: only keys open the console
    public_url     where it is reached from outside, without a "/" at its end; "": not said

    The other fields mean what they mean in `core.policy.Policy`.
    """

    path: Path
    store_url: StoreUrl
    zones: Mapping[str, str]
    channels: Mapping[Channel, ChannelPolicy]
    accounts: Mapping[str, AccountSettings]
    categories: Mapping[str, CategoryPolicy]
    default_category: str
    routes: tuple[Route, ...]
    recipients: Recipients
    plans: Mapping[str, Plan]
    phone_region: str | None
    late_ok_s: float
    lease_s: float
    pass_every_s: float
    pass_rows_max: int
    pass_time_max_s: float
    grace_s: float
    api_listen: str
    public_url: str
    api_pass_secret: Secret | None
    console_users: Path | None
    console_session_s: float
    keep: Keep
    audit: AuditSettings
    events_wait_s: float
    events_keep_s: float
    bounces: BounceSettings
    transport: TransportSettings
    kafka: KafkaSettings
    log_level: str
    log_format: str

    def policy(self, promises: Mapping[str, Promise]) -> Policy:
        """What the stages read. `promises`: for each account by name, what its adapter promises."""
        return Policy(
            accounts=types.MappingProxyType(
                {name: _account_policy(account, promises[name]) for name, account in self.accounts.items()}
            ),
            channels=self.channels,
            categories=self.categories,
            default_category=self.default_category,
            zones=self.zones,
            routes=self.routes,
            recipients=self.recipients,
            plans=self.plans,
            phone_region=self.phone_region,
            lease_s=self.lease_s,
            pass_rows_max=self.pass_rows_max,
            pass_time_max_s=self.pass_time_max_s,
            grace_s=self.grace_s,
            late_ok_s=self.late_ok_s,
            public_url=self.public_url,
            hints=bool(self.transport.brokers),
        )


def _account_policy(account: AccountSettings, promise: Promise) -> AccountPolicy:
    return AccountPolicy(
        name=account.name,
        channel=account.channel,
        promise=promise,
        limits=account.limits,
        retry=account.retry,
        sender=account.sender,
        reply_to=account.reply_to,
        senders=account.senders,
    )
