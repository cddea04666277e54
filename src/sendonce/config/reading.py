"""From the text of `sendonce.toml` to `Settings`: find it, read each table, check them against each other.

Each part of the file is read by itself and notes what is wrong with it; none stops the others, and the
checks between parts go by the names as written, so that one broken account does not make its routes look
broken too.
"""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final, TypeVar

from sendonce.config import kinds
from sendonce.config.binding import bind, bind_some, keys_of
from sendonce.config.kinds import check_name
from sendonce.config.problems import ConfigErrors, Place, Problems, did_you_mean
from sendonce.config.settings import (
    AccountSettings,
    AuditSettings,
    BounceSettings,
    BrokerSettings,
    KafkaSettings,
    Settings,
    TransportSettings,
)
from sendonce.config.store_url import parse_store_url
from sendonce.config.tables import (
    TABLES,
    AccountTable,
    ApiTable,
    AuditTable,
    BouncesTable,
    CategoryTable,
    ChannelTable,
    ConsoleTable,
    EventsTable,
    IntakeTable,
    KafkaTable,
    LogTable,
    ObjectivesTable,
    PlanTable,
    RecipientsTable,
    RetentionTable,
    RetryTable,
    RouteTable,
    SchedulerTable,
    StandbyTable,
    StoreTable,
    TenantTable,
    TransportTable,
    WorkerTable,
)
from sendonce.core.delivery import Channel, check_id
from sendonce.core.due import check_quiet
from sendonce.core.duration import write_duration
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.objective import PUBLISHED_S, Objectives
from sendonce.core.pacing import SECOND, GateLimits, Limit
from sendonce.core.plan import Plan, parse_plan, parse_step
from sendonce.core.policy import CategoryPolicy, ChannelPolicy, Recipients
from sendonce.core.retention import Keep
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Route, Share
from sendonce.ports.secret import Secret

FILE_NAME: Final = "sendonce.toml"
CONFIG_VARIABLE: Final = "SENDONCE_CONFIG"
STORE_URL_DEFAULT: Final = "sqlite:///sendonce.db"
BROKERS: Final = ("nats", "rabbitmq", "sqs")
_CHANNELS: Final = tuple(str(channel) for channel in Channel)

T = TypeVar("T")
EachAccount = Callable[[AccountSettings], object]


def find(given: str | Path | None, environ: Mapping[str, str], folder: Path) -> Path:
    """The file to read: as given (`--config`), else $SENDONCE_CONFIG, else ./sendonce.toml; absolute.

    Raises `ConfigError` (code "config_missing") where it does not exist.
    """
    if given is not None:
        path, origin = Path(given), "--config names it"
    elif environ.get(CONFIG_VARIABLE):
        path, origin = Path(environ[CONFIG_VARIABLE]), f"{CONFIG_VARIABLE} names it"
    else:
        path, origin = Path(FILE_NAME), "the place without --config"
    path = (folder / path.expanduser()).absolute()
    if not path.is_file():
        raise ConfigError(
            f"{path}: there is no configuration here ({origin}): run `sendonce init` to write a commented "
            f"one, or name yours with --config or {CONFIG_VARIABLE}",
            code="config_missing",
        )
    return path


def load(
    given: str | Path | None = None,
    *,
    environ: Mapping[str, str],
    folder: Path | None = None,
    each_account: EachAccount | None = None,
) -> Settings:
    """Find and read the file; `folder` is where to look, by default the current one.

    `each_account` is called with every account that could be read; what it raises as `ConfigError` joins
    the list, so that the provider's own keys are checked in the same run.
    Raises `ConfigError` (no file), or `ConfigErrors` with all that is wrong in it.
    """
    path = find(given, environ, folder or Path.cwd())
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigErrors([f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8"]) from None
    except OSError as error:
        raise ConfigErrors([f"{path}: cannot be read ({error.strerror}): give access to it"]) from None
    return parse(text, path, environ, each_account=each_account)


def parse(
    text: str, path: Path, environ: Mapping[str, str], *, each_account: EachAccount | None = None
) -> Settings:
    """`load` for a text that is here already. Reads no file but those that secrets name."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigErrors([f"{path}: is not TOML: {error}"]) from None
    return _Reading(document, path, environ).settings(each_account)


def template_text() -> str:
    """The commented file that `sendonce init` writes."""
    return files("sendonce").joinpath("config_template.toml").read_text(encoding="utf-8")


class _Reading:
    """One run over a document."""

    def __init__(self, document: Mapping[str, object], path: Path, environ: Mapping[str, str]) -> None:
        self._document = document
        self._top = Place(path, "", environ)
        self._problems = Problems()
        self._names = {part: tuple(self._written(part)) for part in _NAMED_PARTS}

    def settings(self, each_account: EachAccount | None) -> Settings:
        """Everything. Raises `ConfigErrors` with what any part noted."""
        self._check_headings()
        store = self._single("store", StoreTable)
        intake = self._single("intake", IntakeTable)
        worker = self._single("worker", WorkerTable)
        scheduler = self._single("scheduler", SchedulerTable)
        api = self._single("api", ApiTable)
        console = self._single("console", ConsoleTable)
        retention = self._single("retention", RetentionTable)
        events = self._single("events", EventsTable)
        bounces = self._single("bounces", BouncesTable)
        audit = self._single("audit", AuditTable)
        log = self._single("log", LogTable)
        transport = self._transport()
        kafka = self._single("kafka", KafkaTable)
        zones = self._zones()
        channels = self._channels()
        accounts = self._accounts()
        categories = self._categories()
        routes = self._routes()
        recipients = self._recipients()
        plans = self._plans()
        if intake is not None:
            self._check_refers(self._top.at("intake"), "category", intake.category)
        if api is not None:
            self._check_public_url(api.public_url, categories)
        for account in accounts.values():
            if each_account is not None:
                with self._problems.noted():
                    each_account(account)
        self._problems.check()
        # Whatever is None has said why.
        assert store is not None
        assert intake is not None
        assert worker is not None
        assert scheduler is not None
        assert api is not None
        assert console is not None
        assert retention is not None
        assert audit is not None
        assert events is not None
        assert bounces is not None
        assert kafka is not None
        assert log is not None
        return Settings(
            path=self._top.file,
            store_url=store.url or parse_store_url(STORE_URL_DEFAULT, self._top.file.parent),
            zones=types.MappingProxyType(zones),
            channels=types.MappingProxyType(channels),
            accounts=types.MappingProxyType(accounts),
            categories=types.MappingProxyType(categories),
            default_category=intake.category,
            routes=routes,
            recipients=recipients,
            plans=types.MappingProxyType(plans),
            phone_region=intake.phone_region,
            late_ok_s=intake.late_ok_s,
            lease_s=worker.lease_s,
            pass_every_s=scheduler.interval_s,
            pass_rows_max=scheduler.pass_rows_max,
            pass_time_max_s=scheduler.pass_time_max_s,
            grace_s=scheduler.grace_s,
            api_listen=api.listen,
            public_url=api.public_url.rstrip("/"),
            api_pass_secret=api.pass_secret,
            console_users=console.users,
            console_session_s=console.session_s,
            keep=Keep(retention.content_s, retention.deliveries_s, retention.imports_s, retention.passes_s),
            audit=AuditSettings(
                seal=audit.seal,
                every_s=audit.every_s,
                key=audit.key,
                public_keys=audit.public_keys,
                checkpoint_file=audit.checkpoint_file,
                checkpoint_command=audit.checkpoint_command,
                checkpoint_every_s=audit.checkpoint_every_s,
            ),
            events_wait_s=events.wait_s,
            events_keep_s=events.keep_s,
            bounces=BounceSettings(
                imap=bounces.imap,
                security=bounces.security,
                port=bounces.port,
                username=bounces.username,
                password=bounces.password or Secret(""),
                ca_file=bounces.ca_file,
                folder=bounces.folder,
                done_folder=bounces.done_folder,
                every_s=bounces.every_s,
                timeout_s=bounces.timeout_s,
            ),
            transport=transport,
            kafka=KafkaSettings(
                servers=kafka.servers,
                topic=kafka.topic,
                security=kafka.security,
                username=kafka.username,
                password=kafka.password or Secret(""),
                mechanism=kafka.mechanism,
                ca_file=kafka.ca_file,
                timeout_s=kafka.timeout_s,
            ),
            log_level=log.level,
            log_format=log.format,
        )

    # Parts of the file

    def _zones(self) -> dict[str, str]:
        zones = {}
        for name, table, place in self._tables("tenant"):
            with self._problems.noted(place):
                zones[check_id(name, "tenant")] = bind(TenantTable, table, place).zone
        if "default" not in self._names["tenant"]:
            zone = next(key for key in keys_of(TenantTable) if key.name == "zone")
            self._note(self._top.at("tenant.default"), "zone", f"is missing: {zone.missing}")
        return zones

    def _channels(self) -> dict[Channel, ChannelPolicy]:
        channels = {}
        for name, table, place in self._tables("channel"):
            if name not in _CHANNELS:
                self._note(place, "", f"is no channel: {did_you_mean(name, _CHANNELS)}")
                continue
            objectives = self._objectives(table.get("objectives", {}), place.at(f"{place.table}.objectives"))
            with self._problems.noted(place):
                own = {key: value for key, value in table.items() if key != "objectives"}
                policy = _channel_policy(Channel(name), bind(ChannelTable, own, place), objectives, place)
                channels[policy.channel] = policy
        if not self._names["channel"]:
            self._note(
                self._top.at("channel.email"),
                "",
                "is missing, and so is [channel.sms]: write at least one, with account, expiry, alert_after "
                "and uncertain",
            )
        return channels

    def _objectives(self, table: object, place: Place) -> ObjectivesTable:
        if not isinstance(table, Mapping):
            self._note(place, "", "must be a table: write its heading and its keys below")
            return ObjectivesTable()
        with self._problems.noted(place):
            return bind(ObjectivesTable, table, place)
        return ObjectivesTable()

    def _accounts(self) -> dict[str, AccountSettings]:
        accounts = {}
        for name, table, place in self._tables("account"):
            retry = self._retry(table.get("retry", {}), place.at(f"{place.table}.retry"))
            with self._problems.noted(place):
                check_name(name)
                own = {key: value for key, value in table.items() if key != "retry"}
                accounts[name] = _account(name, *bind_some(AccountTable, own, place), retry, place)
        return accounts

    def _retry(self, table: object, place: Place) -> RetryPolicy:
        if not isinstance(table, Mapping):
            self._note(place, "", "must be a table: write its heading and its keys below")
            return RetryPolicy()
        with self._problems.noted(place):
            return _retry_policy(bind(RetryTable, table, place), place)
        return RetryPolicy()

    def _categories(self) -> dict[str, CategoryPolicy]:
        categories = {}
        for name, table, place in self._tables("category"):
            with self._problems.noted(place):
                check_name(name)
                categories[name] = _category_policy(name, bind(CategoryTable, table, place), place)
        return categories

    def _routes(self) -> tuple[Route, ...]:
        """The routes as written, then one for each channel that names its account."""
        placed = [*self._listed_routes()]
        placed += self._channel_routes({route.channel for route, _ in placed if _takes_all(route)})
        for index, (route, place) in enumerate(placed):
            self._check_route(route, place)
            first = next((other for fits, other in placed[:index] if _covers(fits, route)), None)
            if first is not None:
                self._note(
                    place, "account", f"is never reached, since [{first.table}] fits first: remove one"
                )
        return tuple(route for route, _ in placed)

    def _listed_routes(self) -> Iterator[tuple[Route, Place]]:
        listed = self._document.get("route", [])
        if not isinstance(listed, list) or not all(isinstance(table, Mapping) for table in listed):
            self._note(self._top.at("route"), "", "must be written [[route]], once for each, its keys below")
            return
        for number, table in enumerate(listed, start=1):
            place = self._top.at(f"route {number}" if len(listed) > 1 else "route")
            with self._problems.noted(place):
                route = bind(RouteTable, table, place)
                names = _names_of(route.account, route.accounts, place)
                shares = _shares(route.accounts)
                yield Route(route.channel, names[0], route.tenant, route.category, shares), place

    def _channel_routes(self, covered: Collection[Channel]) -> Iterator[tuple[Route, Place]]:
        for name in self._names["channel"]:
            table, place = self._written("channel")[name], self._top.at(f"channel.{name}")
            if name not in _CHANNELS:
                continue
            account, shared = table.get("account"), table.get("accounts")
            if isinstance(shared, Mapping) and all(type(part) is int for part in shared.values()):
                with self._problems.noted(place):
                    names = _names_of(account, shared, place)
                    yield Route(Channel(name), names[0], shares=_shares(shared)), place
            elif isinstance(account, str):
                yield Route(Channel(name), account), place
            elif account is None and shared is None and Channel(name) not in covered:
                self._note(
                    place,
                    "account",
                    "is missing: write the account that carries this channel, the NAME of an [account.NAME]",
                )

    def _check_route(self, route: Route, place: Place) -> None:
        if route.channel not in self._names["channel"]:
            self._note(
                place, "channel", f"= {str(route.channel)!r} has no table: write [channel.{route.channel}]"
            )
        for name in route.accounts:
            self._check_refers(place, "account", name)
            carried = self._written("account").get(name, {}).get("channel")
            if carried in _CHANNELS and carried != route.channel:
                self._note(
                    place,
                    "account",
                    f"= {name!r} carries {carried}: name an account for {route.channel}",
                )
        if route.tenant is not None:
            self._check_refers(place, "tenant", route.tenant)
        if route.category is not None:
            self._check_refers(place, "category", route.category)

    def _recipients(self) -> Recipients:
        place = self._top.at("recipients")
        table = self._single("recipients", RecipientsTable)
        if table is None:
            return Recipients()
        if table.allow == ():
            self._note(
                place,
                "allow",
                "= [] could mean nobody or everybody: name who may be written to, such as "
                'allow = ["you@example.com"], or remove the key for everybody',
            )
        redirect = {}
        for channel, address in (table.redirect or {}).items():
            if channel not in _CHANNELS:
                self._note(place, f"redirect.{channel}", f"is no channel: {did_you_mean(channel, _CHANNELS)}")
            elif ("@" in address) is not (channel == Channel.EMAIL):
                example = "me@example.com" if channel == Channel.EMAIL else "+12025550123"
                self._note(
                    place, f"redirect.{channel}", f'= {address!r} is no {channel} address: write "{example}"'
                )
            else:
                redirect[Channel(channel)] = address
        return Recipients(table.allow or (), types.MappingProxyType(redirect))

    def _plans(self) -> dict[str, Plan]:
        plans = {}
        channels = [channel for channel in _CHANNELS if channel in self._names["channel"]]
        for name, table, place in self._tables("plan"):
            with self._problems.noted(place):
                plans[name] = _plan(name, bind(PlanTable, table, place).steps, channels, place)
        return plans

    def _check_public_url(self, url: str, categories: Mapping[str, CategoryPolicy]) -> None:
        if url and not _PUBLIC_URL.fullmatch(url):
            self._note(
                self._top.at("api"),
                "public_url",
                f"= {url!r} must be https with a host, and without query, such as https://reminders.example.com",
            )
        for name, category in categories.items():
            if category.unsubscribe and not url:
                self._note(
                    self._top.at(f"category.{name}"),
                    "unsubscribe",
                    "= true needs an address that mail providers can call: write public_url = "
                    '"https://reminders.example.com" under [api]',
                )

    def _transport(self) -> TransportSettings:
        """The broker, where there is one, and its standby."""
        table, place = self._document.get("transport"), self._top.at("transport")
        if table is None:
            return TransportSettings()
        if not isinstance(table, Mapping):
            self._note(place, "", "must be a table: write its heading and its keys below")
            return TransportSettings()
        brokers: list[BrokerSettings] = []
        take_over_s = TransportSettings().take_over_s
        with self._problems.noted(place):
            own = {key: value for key, value in table.items() if key != "standby"}
            first, options = bind_some(TransportTable, own, place)
            take_over_s = first.take_over_s
            brokers.append(_broker(first.kind, options, place, (*_keys(TransportTable), "standby")))
        if "standby" in table:
            beside = self._top.at("transport.standby")
            with self._problems.noted(beside):
                standby, options = bind_some(StandbyTable, kinds.check_table(table["standby"]), beside)
                brokers.append(_broker(standby.kind, options, beside, _keys(StandbyTable)))
                if len({broker.kind for broker in brokers}) < len(brokers):
                    self._note(beside, "kind", f"= {standby.kind!r} is that of [transport] too: name another")
        return TransportSettings(tuple(brokers), take_over_s)

    # Tables as written

    def _check_headings(self) -> None:
        known = sorted({heading.partition(".")[0] for heading in TABLES})
        for name, value in self._document.items():
            if name in known:
                continue
            if isinstance(value, Mapping | list):
                self._note(self._top, f"[{name}]", f"is unknown: {did_you_mean(name, known)}")
                continue
            homes = [
                f"[{heading}]"
                for heading, cls in TABLES.items()
                if name in {key.name for key in keys_of(cls)}
            ]
            fix = f"move it under {' or '.join(homes)}" if homes else "remove it, or move it under its table"
            self._note(self._top, name, f"stands outside of any table: {fix}")

    def _single(self, heading: str, cls: type[T]) -> T | None:
        """A table that is there once, such as [log]; None where something is wrong with it."""
        table, place = self._document.get(heading, {}), self._top.at(heading)
        if not isinstance(table, Mapping):
            self._note(place, "", f"must be a table: write [{heading}] once and its keys below")
            return None
        with self._problems.noted():
            return bind(cls, table, place)
        return None

    def _tables(self, part: str) -> Iterator[tuple[str, Mapping[str, object], Place]]:
        """The tables [part.NAME]. Notes what stands beside them and is none."""
        found = self._document.get(part, {})
        if not isinstance(found, Mapping):
            self._note(
                self._top.at(part), "", f"must be written [{part}.NAME], once for each, its keys below"
            )
            return
        for name, table in found.items():
            if isinstance(table, Mapping):
                yield name, table, self._top.at(f"{part}.{name}")
            else:
                self._note(self._top.at(part), name, f"needs a name above it: move it under [{part}.NAME]")

    def _written(self, part: str) -> dict[str, Mapping[str, object]]:
        found = self._document.get(part)
        if not isinstance(found, Mapping):
            return {}
        return {name: table for name, table in found.items() if isinstance(table, Mapping)}

    def _check_refers(self, place: Place, key: str, name: str) -> None:
        """`key` names a table [key.NAME] that must be there."""
        if name not in self._names[key]:
            known = self._names[key]
            fix = f"; {did_you_mean(name, known)}" if known else ""
            self._note(place, key, f"= {name!r} has no table: write [{key}.{name}]{fix}")

    def _note(self, place: Place, key: str, sentence: str) -> None:
        self._problems.note(place.say(key, sentence))


_NAMED_PARTS: Final = ("tenant", "channel", "account", "category")
_PUBLIC_URL: Final = re.compile(r"https://[A-Za-z0-9.-]+(:\d{1,5})?(/[A-Za-z0-9._~/-]{0,120})?", re.ASCII)


def _names_of(account: object, accounts: Mapping[str, int] | None, place: Place) -> tuple[str, ...]:
    """The accounts of a rule, at least one."""
    if account is not None and accounts is not None:
        raise ConfigErrors([place.say("accounts", "stands beside account: keep one of the two")])
    if accounts is not None:
        if not accounts:
            raise ConfigErrors([place.say("accounts", "= {} is empty: write { NAME = weight, ... }")])
        return tuple(accounts)
    if not isinstance(account, str):
        raise ConfigErrors(
            [place.say("account", "is missing: write the name of the account that carries it")]
        )
    return (account,)


def _shares(accounts: Mapping[str, int] | None) -> tuple[Share, ...]:
    if accounts is None or len(accounts) < 2:
        return ()
    return tuple(Share(name, weight) for name, weight in accounts.items())


# Values that depend on each other


def _channel_policy(
    channel: Channel, table: ChannelTable, objectives: ObjectivesTable, place: Place
) -> ChannelPolicy:
    if table.alert_after_s >= table.expiry_s:
        raise ConfigErrors(
            [
                place.say(
                    "alert_after",
                    f"= {write_duration(table.alert_after_s)} must be shorter than "
                    f"expiry = {write_duration(table.expiry_s)}: an alarm after the end helps nobody",
                )
            ]
        )
    return ChannelPolicy(
        channel,
        table.expiry_s,
        table.alert_after_s,
        table.uncertain,
        _catch_up_us(table, place),
        _objectives(table, objectives, place.at(f"{place.table}.objectives")),
        table.alert_after_s / 2 if table.move_after_s is None else table.move_after_s,
    )


def _objectives(table: ChannelTable, asked: ObjectivesTable, place: Place) -> Objectives:
    """What the channel is to keep. No promise lies behind the expiry: what expires is not sent."""
    published_s = asked.published_within_s or min(PUBLISHED_S, table.alert_after_s)
    accepted_s = table.alert_after_s if asked.accepted_within_s is None else asked.accepted_within_s
    oldest_s = table.alert_after_s if asked.oldest_s is None else asked.oldest_s
    spans = {
        "published_within": published_s,
        "accepted_within": accepted_s,
        "oldest": oldest_s,
    }
    problems = [
        place.say(
            name,
            f"= {write_duration(span_s)} must be at most expiry = {write_duration(table.expiry_s)}: "
            "what has expired is not sent any more",
        )
        for name, span_s in spans.items()
        if span_s > table.expiry_s
    ]
    if problems:
        raise ConfigErrors(problems)
    return Objectives(
        published_s=published_s,
        accepted_s=accepted_s,
        oldest_s=oldest_s,
        received_s=asked.received_within_s,
        kept=asked.kept,
        duplicates=asked.duplicates,
        recovered_s=asked.recovered_within_s,
    )


def _catch_up_us(table: ChannelTable, place: Place) -> int:
    rate = table.catch_up
    if rate is None:
        return 0
    if rate.parts:
        rule = "counts parts, and what is not published has none yet: write a rate of deliveries, as 600/min"
        raise ConfigErrors([place.say("catch_up", rule)])
    return max(1, rate.interval_us // rate.count)


def _account(
    name: str, table: AccountTable, options: Mapping[str, object], retry: RetryPolicy, place: Place
) -> AccountSettings:
    problems = Problems()
    for sentence in _wrong_limits(table):
        problems.note(place.say("limits", sentence))
    if table.channel is Channel.EMAIL and "@" not in table.from_:
        stated = f"= {table.from_!r} holds no address" if table.from_ else "is missing"
        problems.note(
            place.say(
                "from", f'{stated}: write from = "Name <you@example.com>", as the provider lets you use'
            )
        )
    if table.poll is not None and table.poll.parts:
        problems.note(place.say("poll", "counts parts, and a question has none: write it as in 60/min"))
    problems.check()
    return AccountSettings(
        name=name,
        channel=table.channel,
        provider=table.provider,
        limits=GateLimits(table.limits, table.lanes, table.headroom, round(table.jitter_s * SECOND)),
        retry=retry,
        sender=table.from_,
        reply_to=table.reply_to,
        senders=table.senders,
        sandbox=table.sandbox,
        poll_spacing_s=None if table.poll is None else table.poll.interval_us / table.poll.count / SECOND,
        poll_for_s=table.poll_for_s,
        options=types.MappingProxyType({key: _frozen(value) for key, value in options.items()}),
        place=Place(place.file, place.table, place.environ, _ACCOUNT_KEYS),
    )


def _broker(kind: str, options: Mapping[str, object], place: Place, known: tuple[str, ...]) -> BrokerSettings:
    if kind not in BROKERS:
        raise ConfigErrors([place.say("kind", f"= {kind!r} is no broker: {did_you_mean(kind, BROKERS)}")])
    frozen = types.MappingProxyType({key: _frozen(value) for key, value in options.items()})
    return BrokerSettings(kind, frozen, Place(place.file, place.table, place.environ, known))


def _keys(table: type) -> tuple[str, ...]:
    return tuple(key.name for key in keys_of(table))


_ACCOUNT_KEYS: Final = (*(key.name for key in keys_of(AccountTable)), "retry")


def _wrong_limits(table: AccountTable) -> Iterator[str]:
    if not table.limits:
        missing = next(key.missing for key in keys_of(AccountTable) if key.name == "limits")
        yield f"= [] is empty: {missing}"
    seen = set()
    for limit in table.limits:
        if limit.parts and table.channel is not Channel.SMS:
            yield f"= {_said(limit)} counts SMS parts, but the account is for {table.channel}: count requests"
        if (limit.interval_us, limit.parts) in seen:
            yield f"= {_said(limit)} is the second limit for that time: keep the smaller"
        seen.add((limit.interval_us, limit.parts))
        if limit.is_quota and limit.count * (1 - table.headroom) < 1:
            yield f"= {_said(limit)} leaves nothing beside headroom = {table.headroom}: lower the headroom"


def _said(limit: Limit) -> str:
    return f"{limit.count}{' parts' if limit.parts else ''} per {write_duration(limit.interval_us / SECOND)}"


def _retry_policy(table: RetryTable, place: Place) -> RetryPolicy:
    if not table.cap_s >= max(table.base_s, table.floor_s):
        raise ConfigErrors(
            [
                place.say(
                    "cap",
                    f"= {write_duration(table.cap_s)} must not be below base "
                    f"({write_duration(table.base_s)}) or floor ({write_duration(table.floor_s)}): raise it",
                )
            ]
        )
    return RetryPolicy(
        attempts_max=table.attempts_max,
        throttles_max=table.throttles_max,
        base_s=table.base_s,
        cap_s=table.cap_s,
        floor_s=table.floor_s,
    )


def _category_policy(name: str, table: CategoryTable, place: Place) -> CategoryPolicy:
    try:
        check_quiet(table.quiet_hours)
    except InvalidInput as error:
        raise ConfigErrors([place.say("quiet_hours", f"= {error}")]) from None
    return CategoryPolicy(
        name=name,
        no_record=table.no_consent,
        quiet=table.quiet_hours,
        on_quiet=table.on_quiet,
        expiry_s=table.expiry_s,
        uncertain=table.uncertain,
        unsubscribe=table.unsubscribe,
    )


def _plan(name: str, steps: Sequence[str], channels: Collection[str], place: Place) -> Plan:
    wrong = []
    for step in steps:
        try:
            parse_step(step, channels=channels)
        except InvalidInput as error:
            wrong.append(place.say("steps", f"= {str(error).removeprefix('step ')}"))
    if wrong:
        raise ConfigErrors(wrong)
    return parse_plan(name, steps, channels=channels)


def _takes_all(route: Route) -> bool:
    return route.tenant is None and route.category is None


def _covers(earlier: Route, later: Route) -> bool:
    return (
        earlier.channel is later.channel
        and earlier.tenant in (None, later.tenant)
        and earlier.category in (None, later.category)
    )


def _frozen(value: object) -> object:
    match value:
        case dict():
            return types.MappingProxyType({key: _frozen(each) for key, each in value.items()})
        case list():
            return tuple(_frozen(each) for each in value)
        case _:
            return value
