"""The only place that names concrete classes: settings in, a running program out.

An `App` is one process's view of one configuration: the store, the policy, the adapters. The command
line, the API and the tests put their work together from it, and nothing else knows which store or
which provider there is.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

from sendonce import telemetry
from sendonce.checkpoints import exporter
from sendonce.config import (
    AccountSettings,
    BrokerSettings,
    Settings,
    StoreKind,
    StoreUrl,
    bind,
    did_you_mean,
    parse_store_url,
)
from sendonce.config.store_url import MEMORY
from sendonce.core import news
from sendonce.core.delivery import Channel
from sendonce.core.duration import write_duration
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.provider_event import ProviderEvent
from sendonce.metrics import FORECAST_MISSES, Sample
from sendonce.pipeline.alarm import (
    Coming,
    warn,
)
from sendonce.pipeline.carrier import Carrier
from sendonce.pipeline.collector import Collector
from sendonce.pipeline.events import RETURNED_MAIL, EventApplier, take_in
from sendonce.pipeline.feed import Feed
from sendonce.pipeline.forecast import forecast
from sendonce.pipeline.gauges import gauges
from sendonce.pipeline.given import Hands
from sendonce.pipeline.hand_in import Together
from sendonce.pipeline.polls import Poll
from sendonce.pipeline.pulse import Pulse
from sendonce.pipeline.restore import hold_everything
from sendonce.pipeline.retention import Retention, bury_nowhere
from sendonce.pipeline.returned_mail import ReturnedMail
from sendonce.pipeline.scheduler import Scheduler
from sendonce.pipeline.sealer import Sealer, refuse_unsealed
from sendonce.pipeline.tally import start_at_zero
from sendonce.pipeline.worker import Worker, WorkerSettings
from sendonce.pipeline.zone_change import follow_zone_rules
from sendonce.ports.clock import Clock
from sendonce.ports.events import Asked, EventSource
from sendonce.ports.provider import Provider
from sendonce.ports.queue import Queue, Transport
from sendonce.ports.returned_mail import Reading
from sendonce.ports.sink import Sink
from sendonce.ports.store import Store, Tx
from sendonce.providers.console import ConsoleProvider, ConsoleSettings
from sendonce.providers.file import FileProvider, FileSettings
from sendonce.providers.http import HttpProvider, HttpSettings, http_events
from sendonce.providers.http_asked import http_asked
from sendonce.providers.imap import ImapMailbox, ImapSecurity, ImapSettings
from sendonce.providers.mail_report import read_mail
from sendonce.providers.mailgun import MailgunProvider, MailgunSettings
from sendonce.providers.mailgun_events import mailgun_events
from sendonce.providers.notify import NotifyProvider, NotifySettings
from sendonce.providers.notify_asked import NotifyAsked
from sendonce.providers.notify_events import notify_events
from sendonce.providers.postmark import PostmarkProvider, PostmarkSettings
from sendonce.providers.postmark_asked import PostmarkAsked
from sendonce.providers.postmark_events import postmark_events
from sendonce.providers.resend import ResendProvider, ResendSettings
from sendonce.providers.resend_events import resend_events
from sendonce.providers.sendgrid import SendgridProvider, SendgridSettings
from sendonce.providers.sendgrid_events import sendgrid_events
from sendonce.providers.ses import SesProvider, SesSettings
from sendonce.providers.ses_events import ses_events
from sendonce.providers.sinch import SinchProvider, SinchSettings
from sendonce.providers.sinch_asked import SinchAsked
from sendonce.providers.sinch_events import sinch_events
from sendonce.providers.smtp import SmtpProvider, SmtpSettings
from sendonce.providers.twilio import TwilioProvider, TwilioSettings
from sendonce.providers.twilio_events import twilio_events
from sendonce.providers.vonage import VonageProvider, VonageSettings
from sendonce.providers.vonage_events import vonage_events
from sendonce.runtime.clock import SystemClock
from sendonce.runtime.crew import idle_cores
from sendonce.runtime.zone_rules import zone_rules
from sendonce.signing import Ed25519Signer, Ed25519Verifier, signer_of
from sendonce.store import moving, sqlite
from sendonce.store.backup import back_up
from sendonce.store.moving import Moved, Progress, Side
from sendonce.store.moving_sqlite import SqliteSide
from sendonce.store.overwrite import empty_log
from sendonce.telemetry import tell
from sendonce.template_book import TemplateBook, from_store
from sendonce.withdrawal import check_reason

if TYPE_CHECKING:  # they need an extra
    from sendonce.exposition import Exposition
    from sendonce.store.moving_postgres import PostgresSide


@dataclass(frozen=True, slots=True)
class Adapter:
    """A provider, and the settings that it is made from.

    channel   the only one that it carries; None: whichever its account names
    connects  it keeps connections, and settings say how many (`connections_max`)
    events    who reads what it calls back with; None from it: these settings hold no secret to verify with
    asked     who asks it what became of a message; None, also from it: nobody can
    """

    settings: type[Any]
    make: Callable[[Any], Provider]
    channel: Channel | None = None
    connects: bool = True
    events: Callable[[Any], EventSource | None] | None = None
    asked: Callable[[Any], Asked | None] | None = None


PROVIDERS: Final = {
    "smtp": Adapter(SmtpSettings, SmtpProvider, Channel.EMAIL),
    "twilio": Adapter(TwilioSettings, TwilioProvider, Channel.SMS, events=twilio_events),
    "resend": Adapter(ResendSettings, ResendProvider, Channel.EMAIL, events=resend_events),
    "postmark": Adapter(
        PostmarkSettings, PostmarkProvider, Channel.EMAIL, events=postmark_events, asked=PostmarkAsked
    ),
    "ses": Adapter(SesSettings, SesProvider, Channel.EMAIL, events=ses_events),
    "sinch": Adapter(SinchSettings, SinchProvider, Channel.SMS, events=sinch_events, asked=SinchAsked),
    "sendgrid": Adapter(SendgridSettings, SendgridProvider, Channel.EMAIL, events=sendgrid_events),
    "mailgun": Adapter(MailgunSettings, MailgunProvider, Channel.EMAIL, events=mailgun_events),
    "vonage": Adapter(VonageSettings, VonageProvider, Channel.SMS, events=vonage_events),
    "notify": Adapter(NotifySettings, NotifyProvider, events=notify_events, asked=NotifyAsked),
    "http": Adapter(HttpSettings, HttpProvider, events=http_events, asked=http_asked),
    "console": Adapter(ConsoleSettings, ConsoleProvider, connects=False),
    "file": Adapter(FileSettings, FileProvider, connects=False),
}
"""Every provider by the word that `provider =` takes."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A transport: the module that has it, its settings and its class there, and the extra that it needs."""

    module: str
    settings: str
    transport: str
    extra: str = ""


TRANSPORTS: Final = {
    "rabbitmq": Broker("sendonce.queues.rabbitmq", "RabbitmqSettings", "RabbitmqTransport", "rabbitmq"),
    "nats": Broker("sendonce.queues.nats", "NatsSettings", "NatsTransport", "nats"),
    "sqs": Broker("sendonce.queues.sqs", "SqsSettings", "SqsTransport"),
}
"""Every transport by the word that `kind =` takes. Imported when it is named: who names none needs none."""


class App:
    """One configuration, opened. Close it; or use it as a context manager.

    Raises, when made: `ConfigError` for a provider's own keys, `StoreError` when the store is first
    used.
    """

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.process: Final = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._providers = {name: make_provider(account) for name, account in settings.accounts.items()}
        self._event_sources: dict[str, EventSource | None] = {}
        self._foreseen: list[Sample] = []
        self.shows = False  # whether somebody may ask this process for its metrics
        self.policy: Policy = settings.policy(
            {name: provider.promise for name, provider in self._providers.items()}
        )
        for account in settings.accounts.values():
            _check_key(account, self.policy.accounts[account.name].promise)
        self.pulse: Final = Pulse(self.policy, pass_every_s=settings.pass_every_s, boot=self.clock.boot)

    @cached_property
    def store(self) -> Store:
        """The store, opened, migrated, with a gate for each account."""
        store = _open_store(self.settings.store_url, self.clock)
        accounts = sorted(self.policy.accounts.items())

        def create(tx: Tx) -> None:
            for name, account in accounts:
                tx.gates.create(name, account.limits)

        store.write(create).result()
        return store

    def back_up(self, target: Path, progress: Callable[[int, int], None]) -> int:
        """Copy the store to a file, held so that it sends nothing where it is restored; its size in bytes.

        Raises as `store.backup.back_up`, and `ConfigError` for a store that has tools of its own for it.
        """
        url = self.settings.store_url
        if url.kind is not StoreKind.SQLITE:
            raise ConfigError(f"{url} is backed up with the tools of its database, such as pg_dump")

        def hold(copy: Path) -> None:
            held = sqlite.open_store(f"sqlite:///{copy.absolute()}", self.clock)
            try:
                held.write(hold_everything).result()
            finally:
                held.close()

        return back_up(sqlite.path_of(str(url)), target, finish=hold, progress=progress)

    @cached_property
    def book(self) -> TemplateBook:
        return TemplateBook(from_store(self.store))

    def provider(self, account: str) -> Provider:
        """The adapter of an account. Raises `ConfigError` for a name that is not configured."""
        if account not in self._providers:
            raise ConfigError(
                f"account {account!r} is not configured: {did_you_mean(account, self._providers)}; "
                f"see [account.*] in {self.settings.path}"
            )
        return self._providers[account]

    def event_source(self, account: str) -> EventSource | None:
        """Who verifies and reads what the account's provider calls back with; None: it has no secret, or its
        provider calls nobody. Made once; who reads with it closes it. Raises `ConfigError` as `provider`."""
        self.provider(account)
        if account not in self._event_sources:
            self._event_sources[account] = make_event_source(self.settings.accounts[account])
        return self._event_sources[account]

    async def close_event_sources(self) -> None:
        """Give up what they hold open. Idempotent; one that is used again opens again."""
        for source in self._event_sources.values():
            if source is not None:
                await source.close()

    def polls(self) -> dict[str, Poll]:
        """Who asks what became of accepted messages, by account, made anew: they belong to the loop that
        first uses them."""
        polls = {}
        for account in self.settings.accounts.values():
            if account.poll_spacing_s is None:
                continue
            polls[account.name] = Poll(
                self.store,
                self.policy,
                account.name,
                make_asked(account),
                spacing_s=account.poll_spacing_s,
                within_s=account.poll_for_s,
                process=self.process,
                chance=random.random,
            )
        return polls

    def event_applier(self) -> EventApplier:
        return EventApplier(self.store, self.policy, wait_s=self.settings.events_wait_s)

    def scheduler(self) -> Scheduler:
        """Made anew, after the scheduled reminders were put right for the zone rules of today."""
        follow_zone_rules(self.store, self.policy, zone_rules())
        return Scheduler(self.store, self.policy, self.book, process=self.process)

    @cached_property
    def signer(self) -> Ed25519Signer | None:
        """Who signs the ledger's blocks; None: nobody. Raises `ConfigError` for a key that is none."""
        key = self.settings.audit.key
        return signer_of(key.reveal()) if key else None

    def verifier(self) -> Ed25519Verifier | None:
        """Who knows the keys that blocks are signed with; None: no key is named."""
        keys = [*self.settings.audit.public_keys, *([self.signer.public] if self.signer else [])]
        return Ed25519Verifier(keys) if keys else None

    def sealer(self) -> Sealer:
        audit = self.settings.audit
        return Sealer(
            self.store,
            self.signer,
            every_s=audit.every_s,
            export=exporter(audit.checkpoint_file, audit.checkpoint_command),
            export_every_s=audit.checkpoint_every_s,
        )

    @cached_property
    def together(self) -> Together:
        """How small calls of many callers come in."""
        return Together(self.store, self.policy, self.book)

    @cached_property
    def hands(self) -> Hands:
        """Who helps to prepare the long calls of programs; started with the first, ended with this."""
        return Hands(self.policy, self.store.secret, hands=idle_cores())

    @cached_property
    def feed(self) -> Feed:
        """What applications are told of their deliveries."""
        return Feed(self.store)

    def kafka(self) -> Sink | None:
        """The cluster that the feed is handed on to; None: there is none. Nothing is opened yet. Raises
        `ConfigError` where the extra `kafka` is missing."""
        if not self.settings.kafka.servers:
            return None
        try:
            from sendonce.sinks.kafka import KafkaSink
        except ImportError as error:
            raise ConfigError(
                f"[kafka] needs the extra `kafka` ({error}): pip install 'sendonce[kafka]'"
            ) from None
        return KafkaSink(self.settings.kafka)

    def mailbox(self) -> ImapMailbox | None:
        """Where bounces come to as mail; None: nowhere. Raises `ConfigError` for a `ca_file` that is none."""
        bounces = self.settings.bounces
        if not bounces.imap:
            return None
        return ImapMailbox(
            ImapSettings(
                host=bounces.imap,
                username=bounces.username,
                password=bounces.password,
                security=ImapSecurity(bounces.security),
                port=bounces.port,
                ca_file=bounces.ca_file,
                folder=bounces.folder,
                done_folder=bounces.done_folder,
                timeout_s=bounces.timeout_s,
            )
        )

    def read_mail(self, raw: bytes) -> Reading:
        """What one returned mail says; see `providers.mail_report`."""
        return read_mail(raw, secret=self.store.secret, now=self.clock.now())

    def take_in_mail(self, events: Sequence[ProviderEvent]) -> None:
        """Keep what returned mail says, durable on return. Raises `StoreUnavailable`: nothing is kept."""
        take_in(self.store, self.policy, RETURNED_MAIL, events).result()

    def returned_mail(self) -> ReturnedMail | None:
        """Who looks into the mailbox of bounces; None: there is none."""
        mailbox = self.mailbox()
        if mailbox is None:
            return None
        every_s = self.settings.bounces.every_s
        return ReturnedMail(mailbox, self.read_mail, self.take_in_mail, every_s=every_s)

    def collector(self) -> Collector:
        return Collector(self.store, self.policy, self.book)

    def worker(
        self,
        *,
        role: str = "worker",
        channels: Collection[Channel] = tuple(Channel),
        stop_s: float = 20.0,
        queues: Mapping[str, Queue] | None = None,
    ) -> Worker:
        """A worker for the accounts of these channels. Call it on the loop that will run it.

        From now on their limits are those of its configuration: who only looks, or schedules, changes none.
        """
        names = [name for name, account in self.policy.accounts.items() if account.channel in channels]
        if not names:
            wanted = ", ".join(sorted(channel.value for channel in channels))
            raise ConfigError(f"no account for {wanted}: add an [account.NAME] with that channel")
        self._seed(names)
        return Worker(
            self.store,
            self.policy,
            {name: self.provider(name) for name in names},
            WorkerSettings(self.process, role, socket.gethostname(), os.getpid(), stop_s),
            carrier=self.carrier() if queues is None else None,
            queues=queues,
        )

    def carrier(self) -> Carrier | None:
        """What carries hints, made anew: it belongs to the loop that first uses it. None: the store's own
        queue does. Raises `ConfigError` for a broker's own keys, or an extra that is missing."""
        known = self.settings.transport
        if not known.brokers:
            return None
        return Carrier(
            self.transports(),
            {name: account.channel for name, account in self.policy.accounts.items()},
            configured=known.brokers[0].kind,
            take_over_s=known.take_over_s,
            chance=random.random,
        )

    def transports(self) -> dict[str, Transport]:
        """The brokers of the configuration by kind, made anew, each with the queues of all accounts."""
        made = {broker.kind: make_transport(broker) for broker in self.settings.transport.brokers}
        for transport in made.values():
            for name, account in self.policy.accounts.items():
                transport.queue(name, account.channel)
        return made

    def _seed(self, names: Sequence[str]) -> None:
        limits = {name: self.policy.accounts[name].limits for name in sorted(names)}

        def seed(tx: Tx) -> list[str]:
            seeded = [name for name, each in limits.items() if tx.gates.seed(name, each)]
            for name in seeded:
                tx.announce(news.gate(name))
            return seeded

        for name in self.store.write(seed).result():
            tell(
                telemetry.LIMITS_CHANGED,
                account=name,
                limits=str(limits[name]),
                lanes=limits[name].lanes,
                source="configuration",
            )

    def retention(self) -> Retention:
        """Who moves and removes what was kept long enough."""
        return Retention(
            self.store,
            self.policy,
            self.settings.keep,
            bury=refuse_unsealed if self.settings.audit.seal else bury_nowhere,
            overwrite=lambda: self.empty_log(wait_s=1.0),  # a stop waits for it
        )

    async def close_providers(self) -> None:
        """Give up their connections, on the loop that used them. Idempotent."""
        for provider in self._providers.values():
            await provider.close()

    @cached_property
    def exposition(self) -> Exposition | None:
        """What this process shows to Prometheus; None where the extra `metrics` is missing."""
        try:
            from sendonce.exposition import Exposition
        except ImportError:
            return None
        start_at_zero(self.policy)
        return Exposition(self._gauges)

    def _gauges(self) -> list[Sample]:
        return [*self.store.read(lambda tx: gauges(tx, self.policy)), *self._foreseen]

    def foresee(self) -> None:
        """Compute the next day, and warn of what will be late. Blocks for one read."""
        seen = self.store.read(lambda tx: forecast(tx, self.policy))
        self._foreseen = [
            Sample(FORECAST_MISSES, (each.channel, each.account), each.missed) for each in seen.accounts
        ]
        warn(
            [
                Coming(
                    each.channel,
                    each.account,
                    each.missed,
                    max(0, each.first_miss_at - seen.now) / SECOND,
                    each.needed_per_s or 0.0,
                )
                for each in seen.accounts
                if each.missed
            ]
        )

    def empty_log(self, *, wait_s: float = 10.0) -> bool:
        """See that what was erased is in no file of the store's own: whether it is. On PostgreSQL that is for
        its vacuum (docs/privacy.md)."""
        url = self.settings.store_url
        if url.kind is not StoreKind.SQLITE:
            return False
        return empty_log(sqlite.path_of(str(url)), wait_s=wait_s)

    def close(self) -> None:
        """Close the store. Idempotent."""
        if "hands" in self.__dict__:
            self.hands.close()
        if "store" in self.__dict__:
            self.store.close()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def move_house(source: str, target: str, *, reason: str, actor: str, progress: Progress) -> Moved:
    """Move the store behind one URL to another; a file is meant from where one stands. The new one is opened
    once, so that it remembers its server's line of history. Raises as `store.moving.move`."""
    reason = check_reason(reason)
    old, new = (parse_store_url(url, Path.cwd()) for url in (source, target))
    with _side(old) as one, _side(new, target=True) as other:
        moved = moving.move(one, other, reason=reason, actor=actor, progress=progress)
    _open_store(new, SystemClock()).close()
    return moved


def stay(source: str, *, reason: str, actor: str) -> str:
    """Take back that the store behind a URL was closed to be moved; where it is, for people. Raises as
    `store.moving.reopen`."""
    with _side(parse_store_url(source, Path.cwd())) as one:
        moving.reopen(one, reason=check_reason(reason), actor=actor)
        return one.where


@contextmanager
def _side(url: StoreUrl, *, target: bool = False) -> Iterator[Side]:
    """A place as one end of a move."""
    match url.kind:
        case StoreKind.SQLITE if url.path == MEMORY:
            raise ConfigError(f"{url} ends with its process: name a file")
        case StoreKind.SQLITE:
            side: SqliteSide | PostgresSide = SqliteSide(url.path, SystemClock(), target=target)
        case StoreKind.POSTGRESQL:
            try:
                from sendonce.store.moving_postgres import PostgresSide
            except ImportError as error:
                raise _without_postgres(url, error) from None
            side = PostgresSide(url.dsn.reveal())
        case never:
            assert_never(never)
    with closing(side):
        yield side


def make_provider(account: AccountSettings) -> Provider:
    """The adapter that an account names, from its own keys.

    Nothing is opened yet; it belongs to the event loop that first uses it. Raises `ConfigError`.
    """
    adapter = PROVIDERS.get(account.provider)
    if adapter is None:
        known = did_you_mean(account.provider, PROVIDERS)
        raise ConfigError(f"[account.{account.name}] provider = {account.provider!r} is not known: {known}")
    if adapter.channel is not None:
        _check_channel(account, adapter.channel)
    settings = bind(adapter.settings, account.options, account.place)
    if account.poll_spacing_s is not None:
        make_asked(account)
    if adapter.connects:
        _check_connections(account, settings.connections_max)
    return adapter.make(settings)


def make_event_source(account: AccountSettings) -> EventSource | None:
    """As `App.event_source`, for an account whose adapter could be made. Raises `ConfigError`."""
    adapter = PROVIDERS[account.provider]
    if adapter.events is None:
        return None
    try:
        return adapter.events(bind(adapter.settings, account.options, account.place))
    except InvalidInput as error:
        raise ConfigError(account.place.say(error.field, str(error))) from None


def make_asked(account: AccountSettings) -> Asked:
    """Who asks the account's provider what became of a message. Nothing is opened yet. Raises `ConfigError`
    where nobody can."""
    adapter = PROVIDERS[account.provider]
    made = adapter.asked and adapter.asked(bind(adapter.settings, account.options, account.place))
    if made is not None:
        return made
    if adapter.asked is not None:
        rule = f"is set, and nothing says how to ask: write [{account.place.table}.question], or remove it"
    else:
        able = ", ".join(sorted(name for name, each in PROVIDERS.items() if each.asked is not None))
        rule = (
            f"is set, and provider = {account.provider!r} cannot be asked what became of a message "
            f"(those that can: {able}): remove it, and let the provider call back"
        )
    raise ConfigError(account.place.say("poll", rule))


def make_transport(broker: BrokerSettings) -> Transport:
    """The adapter that a broker names, from its own keys. Nothing is opened yet. Raises `ConfigError`."""
    named = TRANSPORTS[broker.kind]
    try:
        module = import_module(named.module)
    except ImportError as error:
        raise ConfigError(
            f"[{broker.place.table}] kind = {broker.kind!r} needs the extra `{named.extra}` ({error}): "
            f"pip install 'sendonce[{named.extra}]'"
        ) from None
    settings = bind(getattr(module, named.settings), broker.options, broker.place)
    transport: Transport = getattr(module, named.transport)(settings)
    return transport


def _check_key(account: AccountSettings, promise: Promise) -> None:
    """A retry must come while the provider still honours the key: else a lost response ends as uncertain."""
    usable_s = promise.key_window_s - promise.key_margin_s - promise.timeout_s
    if promise.provider_class is ProviderClass.KEY and account.retry.cap_s >= usable_s:
        rule = (
            f"retry.cap = {write_duration(account.retry.cap_s)} waits longer than the key lives: of "
            f"key_window, {write_duration(max(0.0, usable_s))} are usable after the margin and one time-out; "
            "write a shorter retry.cap"
        )
        raise ConfigError(account.place.say("", rule))


def _check_channel(account: AccountSettings, channel: Channel) -> None:
    if account.channel is not channel:
        rule = f"= {account.channel} is not what provider = {account.provider!r} carries: write {channel}"
        raise ConfigError(account.place.say("channel", rule))


def _check_connections(account: AccountSettings, connections_max: int) -> None:
    """A call that must wait for a connection misses its slot, so there must be one for each lane."""
    if connections_max < account.limits.lanes:
        rule = f"= {connections_max} is below lanes = {account.limits.lanes}: raise it, or lower the lanes"
        raise ConfigError(account.place.say("connections_max", rule))


def _open_store(url: StoreUrl, clock: Clock) -> Store:
    match url.kind:
        case StoreKind.SQLITE:
            return sqlite.open_store(str(url), clock)
        case StoreKind.POSTGRESQL:
            try:
                from sendonce.store import postgres
            except ImportError as error:
                raise _without_postgres(url, error) from None
            return postgres.open_store(url.dsn.reveal(), clock)
        case never:
            assert_never(never)


def _without_postgres(url: StoreUrl, error: ImportError) -> ConfigError:
    return ConfigError(f"store {url} needs the extra `postgres` ({error}): pip install 'sendonce[postgres]'")
