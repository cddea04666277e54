"""Where a drill takes place: the user's own configuration, with a store and providers that are made for it.

What is theirs stays: accounts with their limits, lanes, classes and time-outs, routes, categories with their
quiet hours, consent, expiry, what happens to the uncertain. What is exchanged:

- the store: a file in a temporary folder. The configured URL is not even read;
- each account's provider: a sandbox on this machine. Its options are made here from nothing, so no host and
  no credential of the configuration is left in what sends;
- what would make a drill long or its counts vague: `changes_of` tells it, in sentences.

An account is reached as reminders reach it, by tenant, category and route (`ways_of`). The made-up customers
live where nobody sleeps at the moment, so quiet hours stay in force.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sendonce.app import App, make_event_source, make_provider
from sendonce.config import AccountSettings, Problems, Settings, load
from sendonce.core.delivery import Channel
from sendonce.core.due import QuietHours, allowed_from
from sendonce.core.duration import write_duration
from sendonce.core.errors import ConfigError
from sendonce.core.pacing import SECOND, GateLimits, Limit
from sendonce.core.policy import CategoryPolicy, Recipients
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.provider_event import EventKind
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Route, account_for
from sendonce.testing.sandbox.vendors import VENDORS

LEASE_S: Final = 5.0
"""As short as a configuration may have it: a drill waits for the end of several."""
PASS_EVERY_S: Final = 0.3
TIMEOUT_S: Final = 5.0
ARRIVAL_MAX_S: Final = 1.0
SLOWEST_S: Final = 1.0
"""An account that starts calls further apart is drilled at one a second."""
QUOTA_MIN: Final = 20
JITTER_US: Final = 60_000
"""One busy machine is everything in a drill: a call may start a little late without a limit being broken."""
SOON_US: Final = 20 * 60 * SECOND
"""Nobody's quiet hours may begin before a drill is over."""

RESERVED: Final = Recipients(allow=("drill-*@example.com", "+120255501*"))
"""Made-up people only: example.com (RFC 2606) and the numbers 555-0100 to 555-0199 belong to nobody."""
_UNSET: Final = "SENDONCE_DRILL_UNSET"
_MADE_UP: Final = "AC" + "0" * 32
"""Stands for a credential: it is one for Twilio, and none of the others minds its form."""
AUTH_TOKEN: Final = _MADE_UP
SECRET: Final = "whsec_" + "c2VuZG9uY2UgZHJpbGw="
"""What the sandboxes sign with when they call back; what configured secrets of events are exchanged for."""
_SIGNING: Final = "SENDONCE_DRILL_SIGNING"
_NO_SECRET: Final = frozenset({"sendgrid", "ses"})
"""Their events are signed with a private key that is theirs alone, so no sandbox can stand in for them."""
_NOT_KEPT: Final = frozenset(
    {"base_url", "ca_file", "timeout", "connect_timeout", "connections_max", "callback_url"}
)
_VENDORS: Final = frozenset(vendor.name for vendor in VENDORS)
_BODY: Final = (
    '{"to": "{{ to }}", "from": "{{ sender }}", "subject": "{{ subject }}", "text": "{{ text }}", '
    '"html": "{{ html }}", "reference": "{{ send_key }}"}'
)


@dataclass(frozen=True, slots=True)
class Door:
    """Where the sandbox of an account listens."""

    host: str
    http_port: int
    smtp_port: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What every process of a scenario is given; small and plain, since it goes from process to process.

    config     the user's file
    store      the drill's own file of SQLite
    doors      the sandbox of each account
    real       the account that is used as it is configured, and alone; "" in a drill on sandboxes
    called_at  where the API listens for what providers say later; "": nobody calls
    """

    config: Path
    store: Path
    doors: Mapping[str, Door]
    real: str = ""
    called_at: str = ""

    def settings(self) -> Settings:
        """The configuration as this stage has it. Raises `ConfigErrors` as the file itself would."""
        settings = load(
            self.config, environ={**os.environ, "SENDONCE_STORE_URL": f"sqlite:///{self.store.absolute()}"}
        )
        if self.real:
            return _alone(settings, settings.accounts[self.real])
        redirected = _redirected(settings, self.doors)
        # Some providers sign the address that they call.
        return replace(redirected, public_url=f"http://{self.called_at}") if self.called_at else redirected


@dataclass(frozen=True, slots=True)
class Way:
    """How a reminder comes to an account: whose it is, of which kind, and the zone of its customer."""

    account: str
    channel: Channel
    tenant: str
    category: str
    zone: str


def read(config: Path, environ: Mapping[str, str]) -> Settings:
    """The configuration as written, but for its store, which is nobody's business here."""
    return load(config, environ={**environ, "SENDONCE_STORE_URL": "sqlite:///:memory:"})


def promise_of(account: AccountSettings) -> Promise:
    """What the configured adapter promises. It is made for this question alone, opens nothing, and needs no
    credential: where one is not at hand, a made-up word stands for it. Raises `ConfigError`."""
    return make_provider(_without_credentials(account)).promise


def calls_back(account: AccountSettings) -> bool:
    """Whether the account's stand-in tells later what became of a message, in a way that can be verified."""
    if account.provider in _NO_SECRET:
        return False
    return make_event_source(_at(account, Door("127.0.0.1", 1, 1))) is not None


def check(settings: Settings) -> None:
    """Refuse what the program itself would refuse to run. Raises `ConfigErrors` with all that is wrong."""
    problems = Problems()
    for account in settings.accounts.values():
        with problems.noted():
            promise_of(account)
    problems.check()
    App(
        replace(
            settings,
            accounts=MappingProxyType(
                {name: _without_credentials(account) for name, account in settings.accounts.items()}
            ),
        )
    ).close()


def ways_of(settings: Settings, now: int) -> dict[str, Way]:
    """The first way that leads to each account; an account that no route leads to has none."""
    found: dict[str, Way] = {}
    for tenant, home in settings.zones.items():
        for category in (settings.default_category, *settings.categories):
            for channel in settings.channels:
                try:
                    account = account_for(settings.routes, channel, tenant, category)
                except ConfigError:
                    continue
                zone = _awake(settings.categories[category], home, now)
                found.setdefault(account, Way(account, channel, tenant, category, zone or home))
    return found


def changes_of(settings: Settings, ways: Mapping[str, Way], now: int) -> Iterator[str]:
    """What is not as configured, besides the store and the providers; a sentence each."""
    if settings.lease_s > LEASE_S:
        yield f"lease {write_duration(LEASE_S)} instead of {write_duration(settings.lease_s)}"
    if settings.pass_every_s > PASS_EVERY_S:
        every = write_duration(settings.pass_every_s)
        yield f"a pass every {write_duration(PASS_EVERY_S)} instead of {every}"
    yield f"waits before a retry of at most {write_duration(_quick(RetryPolicy()).cap_s)}"
    yield f"time-outs of at most {write_duration(TIMEOUT_S)}, start jitter of at least 60ms"
    if settings.recipients.allow or settings.recipients.redirect:
        yield "recipients: made-up ones instead of those under [recipients]"
    for account in settings.accounts.values():
        stand_in, _ = _stand_in(account, promise_of(account), Door("127.0.0.1", 1, 1))
        if account.provider == "http" or stand_in != account.provider:
            yield f"account {account.name}: the sandbox's request and answers instead of its API's own"
        if _in_time(account.limits).limits != account.limits.limits:
            yield f"account {account.name}: faster limits than configured, so that the drill ends today"
    for way in ways.values():
        if not _awake(settings.categories[way.category], way.zone, now):
            yield f"category {way.category}: without quiet hours, which hold all over the world right now"


# The sandbox in the provider's place


def _redirected(settings: Settings, doors: Mapping[str, Door]) -> Settings:
    return replace(
        settings,
        accounts=MappingProxyType(
            {name: _at(account, doors[name]) for name, account in settings.accounts.items()}
        ),
        categories=MappingProxyType(dict(_open_now(settings))),
        recipients=RESERVED,
        lease_s=min(settings.lease_s, LEASE_S),
        pass_every_s=min(settings.pass_every_s, PASS_EVERY_S),
    )


def _at(account: AccountSettings, door: Door) -> AccountSettings:
    """The account with the sandbox behind it, of the same class, under the same limits. Nobody asks it what
    became of messages: a drill is over before the first is old enough."""
    promise = promise_of(account)
    provider, options = _stand_in(account, promise, door)
    return replace(
        account,
        provider=provider,
        options=MappingProxyType({**options, "connections_max": max(account.limits.lanes, 1)}),
        place=replace(account.place, environ=_Environ({})),
        limits=_in_time(account.limits),
        retry=_quick(account.retry),
        poll_spacing_s=None,
    )


def _stand_in(account: AccountSettings, promise: Promise, door: Door) -> tuple[str, dict[str, object]]:
    """Its adapter and the adapter's options: its own protocol where the sandbox speaks it, else one of its
    class."""
    api = f"http://{door.host}:{door.http_port}"
    times: dict[str, object] = {
        "timeout_s": min(promise.timeout_s, TIMEOUT_S),
        "connect_timeout_s": TIMEOUT_S,
    }
    match account.provider:
        case "smtp":
            return "smtp", _at_smtp(account, promise, door)
        case "twilio":
            return "twilio", {
                "account_sid": _MADE_UP,
                "auth_token": f"env:{_UNSET}",
                "base_url": api,
                "allow_plain_http": True,
                **times,
            }
        case name if name in _VENDORS and (own := _at_vendor(account, promise, f"{api}/{name}", times)):
            return name, own
        case _:
            resource = "messages" if account.channel is Channel.SMS else "emails"
            return "http", {
                "url": f"{api}/v1/{resource}",
                "allow_plain_http": True,
                "body_json": _BODY,
                "receipt_path": "id",
                "code_path": "error.code",
                "throttle_scope": account.options.get("throttle_scope", "undeclared"),
                "events": _events(account.channel),
                **_offers(promise, f"{api}/v1/{resource}"),
                **times,
            }


def _at_smtp(account: AccountSettings, promise: Promise, door: Door) -> dict[str, object]:
    timeout_s = min(promise.timeout_s, TIMEOUT_S)
    kept = {key: value for key, value in account.options.items() if key == "messages_per_connection"}
    return {
        "host": door.host,
        "port": door.smtp_port,
        "security": "none",
        "transaction_timeout_s": timeout_s,
        "reply_timeout_s": timeout_s,
        "connect_timeout_s": TIMEOUT_S,
        **kept,
    }


def _at_vendor(
    account: AccountSettings, promise: Promise, base_url: str, times: Mapping[str, object]
) -> dict[str, object] | None:
    """The vendor's own adapter at the sandbox; None where it cannot be made for it, or waits for too long."""
    kept = {
        key: _made_up(value)
        for key, value in account.options.items()
        if key.removesuffix("_s") not in _NOT_KEPT
    }
    if kept.get("event_secrets"):
        kept["event_secrets"] = [f"env:{_SIGNING}"]
    options = {**kept, "base_url": base_url, "allow_plain_http": True, **times}
    place = replace(account.place, environ=_Environ({}))
    try:
        made = make_provider(
            replace(
                account,
                options=MappingProxyType(options),
                place=place,
                limits=replace(account.limits, lanes=1),
            )
        ).promise
    except ConfigError:
        return None
    waits = made.provider_class is ProviderClass.LOOKUP and made.arrival_max_s + made.index_lag_s > 5.0
    return None if waits or made.provider_class is not promise.provider_class else options


def _offers(promise: Promise, url: str) -> dict[str, object]:
    """What makes the sandbox's API one of the account's class."""
    offers: dict[str, object] = {}
    if promise.provider_class is ProviderClass.KEY:
        offers |= {"key_header": "Idempotency-Key", "key_window_s": promise.key_window_s}
    if promise.lookup:
        offers |= {
            "lookup_url": f"{url}?reference={{{{ send_key }}}}",
            "lookup_rows_path": "messages",
            "lookup_match_path": "reference",
            "lookup_receipt_path": "id",
            "lookup_believable": True,
            "index_lag_s": min(promise.index_lag_s, ARRIVAL_MAX_S),
            "arrival_max_s": min(promise.arrival_max_s, ARRIVAL_MAX_S),
        }
    return offers


def _events(channel: Channel) -> dict[str, object]:
    """How the sandbox's API calls back."""
    never_came = EventKind.BOUNCED_HARD if channel is Channel.EMAIL else EventKind.UNDELIVERED
    return {
        "secrets": [f"env:{_SIGNING}"],
        "signed": "standard",
        "kind_path": "type",
        "kinds": {"delivered": EventKind.DELIVERED.value, "bounced": never_came.value},
        "id_path": "id",
        "receipt_path": "message_id",
        "reference_path": "reference",
        "time_path": "at",
    }


def _in_time(limits: GateLimits) -> GateLimits:
    """The same, with what would take hours made quicker."""
    return replace(
        limits,
        limits=tuple(_limit_in_time(limit, limits.headroom) for limit in limits.limits),
        jitter_us=max(limits.jitter_us, JITTER_US),
    )


def _limit_in_time(limit: Limit, headroom: float) -> Limit:
    left = limit.count * (1 - headroom)
    if limit.is_quota:
        return replace(limit, count=round(QUOTA_MIN / (1 - headroom))) if left < QUOTA_MIN else limit
    apart_s = limit.interval_us / SECOND / left
    return replace(limit, count=1, interval_us=int(SLOWEST_S * SECOND)) if apart_s > SLOWEST_S * 2 else limit


def _quick(retry: RetryPolicy) -> RetryPolicy:
    return replace(
        retry, base_s=min(retry.base_s, 0.5), cap_s=min(retry.cap_s, 2.0), floor_s=min(retry.floor_s, 0.2)
    )


# Quiet hours


def _open_now(settings: Settings) -> Iterator[tuple[str, CategoryPolicy]]:
    """The categories; without quiet hours where these hold everywhere on earth at once."""
    now = _now()
    for name, category in settings.categories.items():
        asleep = _awake(category, "Etc/UTC", now) is None
        yield name, replace(category, quiet=()) if asleep else category


def _awake(category: CategoryPolicy, home: str, now: int) -> str | None:
    """A zone in which this category may go out for a while: the customer's own, or another one."""
    zones = (home, *(f"Etc/GMT{hours:+d}" for hours in range(-14, 13)))
    return next((zone for zone in zones if _stays_open(category.quiet, zone, now)), None)


def _stays_open(quiet: tuple[QuietHours, ...], zone: str, now: int) -> bool:
    return all(allowed_from(quiet, zone, at) == at for at in (now, now + SOON_US // 2, now + SOON_US))


def _now() -> int:
    return time.time_ns() // 1000


# A real account


def _alone(settings: Settings, account: AccountSettings) -> Settings:
    """This account as it is configured, and nothing else that could send."""
    return replace(
        settings,
        accounts=MappingProxyType({account.name: account}),
        channels=MappingProxyType({account.channel: settings.channels[account.channel]}),
        routes=(Route(account.channel, account.name),),
        pass_every_s=min(settings.pass_every_s, PASS_EVERY_S),
    )


# Promises without credentials


def _without_credentials(account: AccountSettings) -> AccountSettings:
    options = {name: _made_up(value) for name, value in account.options.items()}
    place = replace(account.place, environ=_Environ(account.place.environ))
    return replace(account, options=MappingProxyType(options), place=place)


class _Environ(Mapping[str, str]):
    """The environment, with a made-up word for every variable that is not set."""

    def __init__(self, real: Mapping[str, str]) -> None:
        self._real = real

    def __getitem__(self, name: str) -> str:
        return SECRET if name == _SIGNING else self._real.get(name) or _MADE_UP

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)


def _made_up(value: object) -> object:
    """An option without the file that it names: credentials stand in files, and are not for a drill."""
    match value:
        case str() if value.startswith("file:"):
            return f"env:{_UNSET}"
        case Mapping():
            return MappingProxyType({key: _made_up(each) for key, each in value.items()})
        case tuple():
            return tuple(_made_up(each) for each in value)
        case _:
            return value
