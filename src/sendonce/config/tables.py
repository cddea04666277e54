"""Every setting of `sendonce.toml`, each declared once: the reader and the documentation read this page.

What must be written has no default and a `missing` text: what to write and where the number comes from.
"""

# ruff: noqa: RUF009  `setting` returns a dataclass field; ruff cannot see that.

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sendonce.config import kinds
from sendonce.config.binding import REQUIRED, Key, keys_of, setting
from sendonce.config.store_url import StoreUrl
from sendonce.core.consent import NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.due import QuietHours
from sendonce.core.duration import write_duration
from sendonce.core.errors import InvalidInput
from sendonce.core.pacing import Limit
from sendonce.core.policy import OnQuiet, UncertainPolicy
from sendonce.core.retry import RetryPolicy
from sendonce.ports.secret import Secret

PASS_TIME_MAX_S: Final = 900.0
"""No pass is longer, whatever is configured: outside crons kill long calls."""

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

_RETRY: Final = RetryPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTable:
    """Where everything is kept."""

    url: StoreUrl | None = setting(
        "`sqlite:///NAME.db` is a file beside the configuration, `sqlite:////PATH.db` an absolute path, "
        "`postgresql://USER@HOST/NAME` a database ([PostgreSQL](postgresql.md)). "
        "Not set: `sqlite:///sendonce.db`. A URL with a password must be `env:NAME` or `file:PATH`.",
        kind=kinds.STORE_URL,
        default=None,
        variable="SENDONCE_STORE_URL",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTable:
    """A tenant: whose data it is. `default` must be there; it is what a row without a tenant gets."""

    zone: str = setting(
        "The zone of customers whose row names none. An import reports where it was used.",
        kind=kinds.ZONE,
        missing='write the zone your customers live in, such as zone = "Europe/Berlin"',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTable:
    """A channel: `channel.email`, `channel.sms`. Each has its own queue, workers and limits."""

    account: str | None = setting(
        "The account that carries what no `[[route]]` sends elsewhere. Not set: a `[[route]]` must take it.",
        kind=kinds.NAME,
        default=None,
    )
    accounts: Mapping[str, int] | None = setting(
        "Instead of `account`: several that share what no `[[route]]` sends elsewhere, each with its weight, "
        "as in `{ ses = 9, resend = 1 }` ([several accounts](operating.md#several-accounts-for-a-channel)).",
        kind=kinds.table_of(kinds.whole(1, 1_000_000)),
        default=None,
    )
    move_after_s: float | None = setting(
        "How long one of `accounts` must be held until what waits for it, and cannot have been sent, goes to "
        "another. Not set: half of `alert_after`.",
        kind=kinds.duration(1.0),
        default=None,
    )
    expiry_s: float = setting(
        "How long after its due time a reminder may still go out. Later it ends as expired.",
        kind=kinds.duration(1.0),
        missing="write how long after its due time a reminder is still worth sending, such as "
        'expiry = "24h"; ask whoever wrote the text',
    )
    alert_after_s: float = setting(
        "How old the oldest due delivery may get before it raises the alarm. Shorter than `expiry`.",
        kind=kinds.duration(1.0),
        missing="write how late a due reminder may be before somebody should look, such as "
        'alert_after = "15m"; well below the expiry, so that there is time to act',
    )
    uncertain: UncertainPolicy = setting(
        "What happens when nobody can tell whether a send happened: `hold` it for a person, `resend` and "
        "risk a duplicate, or `assume_sent` and risk a gap.",
        missing='write uncertain = "hold" (a person decides), "resend" (may send twice) or "assume_sent" '
        "(may send nothing); it is for a send that can neither be proven nor ruled out",
    )
    catch_up: Limit | None = setting(
        "How fast what is overdue after a pause or an outage is published, such as `600/min`; what falls due "
        "on time never waits for it. Overdue is what comes later than `grace` under `[scheduler]`. Not set: "
        "at once, and the account's limits pace it.",
        kind=kinds.LIMIT,
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivesTable:
    """What a channel is to keep ([objectives](objectives.md)): alerts and reports are made from it."""

    published_within_s: float | None = setting(
        "How long after its due time a reminder is queued at the latest. Not set: a minute, or `alert_after` "
        "where that is shorter.",
        kind=kinds.duration(1.0),
        default=None,
    )
    accepted_within_s: float | None = setting(
        "The window: how long after its due time the provider has taken it. Not set: `alert_after`.",
        kind=kinds.duration(1.0),
        default=None,
    )
    received_within_s: float | None = setting(
        "How long after that the provider reports that it reached the customer. Not set: not judged; set it "
        "only where the provider tells.",
        kind=kinds.duration(1.0),
        default=None,
    )
    kept: float = setting(
        "The share of deliveries that must keep each of these.",
        kind=kinds.SHARE,
        default=0.99,
    )
    oldest_s: float | None = setting(
        "How old the oldest due delivery may get. Not set: `alert_after`.",
        kind=kinds.duration(1.0),
        default=None,
    )
    duplicates: int = setting(
        "How many duplicates a month may bring.", kind=kinds.whole(0, 1_000_000_000), default=0
    )
    recovered_within_s: float = setting(
        "How long a dead letter, or an uncertain delivery, may wait until somebody decides it.",
        kind=kinds.duration(60.0),
        default=86_400.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTable:
    """A provider account, the unit of pacing. The provider's own keys (host, user, ...) stand here too."""

    provider: str = setting(
        "Which adapter speaks to it, such as `smtp`, `twilio` or `http`.",
        kind=kinds.NAME,
        missing='write which adapter speaks to it, such as provider = "smtp" or "twilio"',
    )
    channel: Channel = setting(
        "What the account carries.",
        missing='write channel = "email" or channel = "sms"',
    )
    limits: tuple[Limit, ...] = setting(
        "What the provider allows, all of it: `14/s`, `3000/min`, `50000/d`, `10 parts/s` (SMS parts). "
        "Each holds at once, over all processes and machines.",
        kind=kinds.list_of(kinds.LIMIT),
        missing='write what the provider allows, such as limits = ["14/s", "50000/d"]; the numbers stand on '
        "the provider's account page or in its documents (for a mail relay of your own, ask who runs it). "
        "There is no default: a wrong guess is throttled or slow",
    )
    lanes: int = setting(
        "How many calls may be open at once, over all processes and machines.",
        kind=kinds.whole(1, 10_000),
        missing="write how many calls may be open at once, such as lanes = 10; the provider's documents call "
        "it concurrency or connections. There is no default: a wrong guess is throttled or slow",
    )
    headroom: float = setting(
        "The share of every limit that is left to other traffic of the same account; 0.1 leaves a tenth.",
        kind=kinds.SHARE,
        default=0.0,
    )
    jitter_s: float = setting(
        "How far from its planned moment a call may start. Three times this is added to each interval: "
        "more is safer and slower.",
        kind=kinds.duration(0.0, 1.0),
        default=0.01,
    )
    from_: str = setting(
        "The sender where a row names none: `Name <address>`, or a number, short code, name or service id. "
        "An email account must have one.",
        kind=kinds.LINE,
        default="",
    )
    senders: tuple[str, ...] = setting(
        "What the account may send as besides `from`, each as it is written there or in a row. It matters "
        "where accounts share a channel: who does not list a sender is not given its messages.",
        kind=kinds.list_of(kinds.LINE),
        default=(),
    )
    reply_to: str = setting(
        "The Reply-To of an email where a row names none.",
        kind=kinds.LINE,
        default="",
    )
    sandbox: bool = setting(
        "Whether the provider gave this account for tests. `sendonce drill --sandbox-account` sends through "
        "such an account and through no other.",
        default=False,
    )
    poll: Limit | None = setting(
        "How often the provider may be asked what became of messages that it accepted, such as `60/min`; for "
        "an account that is not called back ([polling](events.md#asking-instead)). Not set: it is not asked.",
        kind=kinds.LIMIT,
        default=None,
    )
    poll_for_s: float = setting(
        "How long after its acceptance a message is asked about, while nobody knows how it ended.",
        kind=kinds.duration(300.0, 7 * 86_400.0),
        default=5 * 86_400.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryTable:
    """How often and how soon a failed call of the account is tried again."""

    attempts_max: int = setting(
        "Failures after which a delivery is dead. Waiting for pace or after a 429 is no failure.",
        kind=kinds.whole(1, 1_000),
        default=_RETRY.attempts_max,
    )
    throttles_max: int = setting(
        "Answers of 429 after which a delivery is dead.",
        kind=kinds.whole(1, 1_000_000),
        default=_RETRY.throttles_max,
    )
    base_s: float = setting(
        "The span from which the first wait is drawn; it doubles with each failure.",
        kind=kinds.duration(0.001, 86_400.0),
        default=_RETRY.base_s,
    )
    cap_s: float = setting(
        "The longest span from which a wait is drawn.",
        kind=kinds.duration(0.001, 86_400.0),
        default=_RETRY.cap_s,
    )
    floor_s: float = setting(
        "The shortest wait.",
        kind=kinds.duration(0.001, 86_400.0),
        default=_RETRY.floor_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryTable:
    """A kind of reminder with its own rules: `category.payment`."""

    no_consent: NoRecord = setting(
        "What it means when no consent is recorded for an address.",
        missing='write no_consent = "allow" (for what the customer has a contract for) or "refuse" (for what '
        "needs an opt-in first); ask whoever answers for consent",
    )
    quiet_hours: tuple[QuietHours, ...] = setting(
        "When nothing goes out, on the customer's clock: `21:00-08:00`, `00:00-24:00 sun`.",
        kind=kinds.list_of(kinds.QUIET),
        default=(),
    )
    on_quiet: OnQuiet = setting(
        "What quiet hours do to a delivery: `defer` it to their end, or `expire` it.",
        default=OnQuiet.DEFER,
    )
    uncertain: UncertainPolicy | None = setting("Instead of the channel's.", default=None)
    expiry_s: float | None = setting("Instead of the channel's.", kind=kinds.duration(1.0), default=None)
    unsubscribe: bool = setting(
        "Whether its email says where one click ends it (RFC 8058): for what people subscribe to, not for "
        "what they have a contract for. It needs `public_url` under `[api]` "
        "([unsubscription](opt-out.md#one-click-unsubscription)).",
        kind=kinds.SWITCH,
        default=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """A rule that sends some deliveries to another account. Read from the top; the first that fits wins."""

    channel: Channel = setting("The channel it is for.", missing='write channel = "email" or channel = "sms"')
    account: str | None = setting(
        "The account that carries what fits.",
        kind=kinds.NAME,
        default=None,
    )
    accounts: Mapping[str, int] | None = setting(
        "Instead of `account`: several that share what fits, each with its weight, as under a channel.",
        kind=kinds.table_of(kinds.whole(1, 1_000_000)),
        default=None,
    )
    tenant: str | None = setting("Only this tenant. Not set: any.", kind=kinds.LINE, default=None)
    category: str | None = setting("Only this category. Not set: any.", kind=kinds.NAME, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientsTable:
    """Who may be written to at all, enforced before every send."""

    allow: tuple[str, ...] | None = setting(
        "Only these addresses and numbers; `*` stands for anything, as in `*@example.com`. Not set: "
        "everybody. Set it wherever real data is copied to.",
        kind=kinds.list_of(kinds.PATTERN),
        default=None,
    )
    redirect: Mapping[str, str] | None = setting(
        'One address per channel that gets everything instead: `redirect.email = "me@example.com"`.',
        kind=kinds.table_of(kinds.LINE),
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """A plan: the reminders that one date becomes, as in `plan.loan`."""

    steps: tuple[str, ...] = setting(
        "Days before or after the date, the customer's time, the channels: `D-3 09:00 sms,email`.",
        kind=kinds.list_of(kinds.LINE),
        missing='write its reminders, such as steps = ["D-3 09:00 sms,email", "D+2 10:00 sms"]',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeTable:
    """What rows get that leave something out, and which are refused."""

    category: str = setting(
        "The category of rows that name none.",
        kind=kinds.NAME,
        missing="write the category of rows that name none; it has a table of its own, [category.NAME]",
    )
    phone_region: str | None = setting(
        "The country of numbers without a country code, such as `US`. Not set: they are refused.",
        kind=kinds.REGION,
        default=None,
    )
    late_ok_s: float = setting(
        "How far in the past a due time may lie, so that an old file does not go out today.",
        kind=kinds.duration(0.0),
        default=86_400.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTable:
    """The processes that send."""

    lease_s: float = setting(
        "How long a process that stops answering keeps what it claimed.",
        kind=kinds.duration(5.0, 3_600.0),
        default=30.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerTable:
    """The passes that publish what is due."""

    interval_s: float = setting(
        "How often the built-in timer starts a pass. Outside crons keep their own time.",
        kind=kinds.duration(0.1, 3_600.0),
        default=1.0,
    )
    pass_rows_max: int = setting(
        "How many rows one pass examines at most; the next goes on from there.",
        kind=kinds.whole(1, 10_000_000),
        default=50_000,
    )
    pass_time_max_s: float = setting(
        "How long one pass takes at most; never above 15 minutes.",
        kind=kinds.duration(1.0, PASS_TIME_MAX_S),
        default=60.0,
    )
    grace_s: float = setting(
        "How late a publication may be before it counts as a late arrival. Longer than the interval of an "
        "outside cron.",
        kind=kinds.duration(0.0, 86_400.0),
        default=60.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTable:
    """The HTTP API. It needs the extra `sendonce[api]`."""

    listen: str = setting(
        "Where `up` serves it, and `sendonce api` where `--listen` says nothing: a port, which is on "
        "127.0.0.1, or `HOST:PORT`. Not set: `up` serves none.",
        kind=kinds.LINE,
        default="",
    )
    public_url: str = setting(
        "Where customers and mail providers reach it from outside, through your proxy, such as "
        "`https://reminders.example.com`: what unsubscription links begin with.",
        kind=kinds.LINE,
        default="",
    )
    pass_secret: Secret | None = setting(
        "Where it is set, whoever asks for a pass must sign the request with it besides having a key.",
        kind=kinds.SECRET,
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleTable:
    """The [console](console.md), which is served with the HTTP API. Whoever has a key may sign in with it."""

    users: Path | None = setting(
        "A file with the people who sign in by name and password; `sendonce console password` makes what "
        "stands in it. It needs the extra `sendonce[console]`. Not set: only keys open the console.",
        kind=kinds.PATH,
        default=None,
    )
    session_s: float = setting(
        "How long somebody stays signed in.", kind=kinds.duration(60.0, 30 * 86_400.0), default=8 * 3_600.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsTable:
    """What providers call back with ([events](events.md))."""

    wait_s: float = setting(
        "How long an event may wait for its delivery, whose outcome may be written later. Then it is left to "
        "people.",
        kind=kinds.duration(60.0, 30 * 86_400.0),
        default=86_400.0,
    )
    keep_s: float = setting(
        "How long an event is kept that belongs to no delivery. Others go with theirs.",
        kind=kinds.duration(86_400.0, 3_650 * 86_400.0),
        default=90 * 86_400.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BouncesTable:
    """The mailbox that bounces and complaints come to ([bounces](opt-out.md#bounces-that-come-as-mail))."""

    imap: str = setting(
        "The IMAP server that has it; a process that schedules reads it. Not set: none is read.",
        kind=kinds.LINE,
        default="",
    )
    security: str = setting(
        "`tls` from the first byte, `starttls`, or `none` for a server on this machine.",
        kind=kinds.words(("tls", "starttls", "none")),
        default="tls",
    )
    port: int = setting("0: 993 for `tls`, else 143.", kind=kinds.whole(0, 65_535), default=0)
    username: str = setting("Name to log in with.", kind=kinds.LINE, default="")
    password: Secret | None = setting("Its password.", kind=kinds.SECRET, default=None)
    ca_file: Path | None = setting(
        "PEM file of a private authority to trust besides.", kind=kinds.PATH, default=None
    )
    folder: str = setting("The folder to read.", kind=kinds.LINE, default="INBOX")
    done_folder: str = setting(
        "Where mail goes that was read. Not set: it stays, and gets a keyword, or the flag of mail that was "
        "seen where the server takes no keywords.",
        kind=kinds.LINE,
        default="",
    )
    every_s: float = setting("How often it is looked into.", kind=kinds.duration(1.0, 600.0), default=60.0)
    timeout_s: float = setting(
        "How long the server may take for each step.", kind=kinds.duration(1.0, 600.0), default=20.0
    )

    def __post_init__(self) -> None:
        written = (self.username, self.password, self.done_folder, self.ca_file)
        if not self.imap and any(written):
            raise InvalidInput(
                'is missing: write the server, such as imap = "imap.example.com"', field="imap"
            )
        if self.imap and not (self.username and self.password):
            missing = "password" if self.username else "username"
            raise InvalidInput("must be written: a login needs a username and a password", field=missing)
        if self.security == "none" and self.imap not in ("", "localhost", "127.0.0.1", "::1"):
            raise InvalidInput(
                f'must be "tls" or "starttls": a password must not travel in clear to {self.imap}',
                field="security",
            )
        for field, text in (("imap", self.imap), ("folder", self.folder), ("done_folder", self.done_folder)):
            if not text.isascii():
                raise InvalidInput(f"= {text!r} must be in ASCII", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionTable:
    """How long what is over is kept ([privacy](privacy.md)). What is open, in doubt or dead always is."""

    content_s: float | None = setting(
        "What a reminder said, to whom, and said before: destroyed so long after its last delivery ended. "
        "Not set: as long as its deliveries.",
        kind=kinds.duration(86_400.0),
        default=None,
    )
    deliveries_s: float | None = setting(
        "Deliveries and their ledgers: removed so long after they ended. A tombstone, their outcome and a "
        "keyed tag stay, so that nothing is sent again. Not shorter than `content`. Not set: for ever.",
        kind=kinds.duration(7 * 86_400.0),
        default=None,
    )
    imports_s: float | None = setting(
        "What is known of an import, once nothing that it made is left. Not set: for ever.",
        kind=kinds.duration(7 * 86_400.0),
        default=None,
    )
    passes_s: float = setting(
        "The history of scheduler passes and of processes.",
        kind=kinds.duration(86_400.0),
        default=14 * 86_400.0,
    )

    def __post_init__(self) -> None:
        if self.content_s and self.deliveries_s and self.deliveries_s < self.content_s:
            raise InvalidInput(
                f"= {write_duration(self.deliveries_s)} is shorter than content = "
                f"{write_duration(self.content_s)}: nothing that a delivery said is kept longer than it is",
                field="deliveries_s",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTable:
    """The seals of the ledger: who signs them, and where checkpoints go ([audit](audit.md))."""

    seal: bool = setting(
        "Whether a process that schedules closes the ledger's entries into chained blocks.",
        kind=kinds.SWITCH,
        default=True,
    )
    every_s: float = setting(
        "How often. What is newer than the last block is not sealed yet.",
        kind=kinds.duration(1.0, 3_600.0),
        default=10.0,
    )
    key: Secret | None = setting(
        "The Ed25519 private key that signs blocks, as `sendonce audit key` makes one. Not set: nobody signs "
        "them. It needs the extra `sendonce[audit]`.",
        kind=kinds.SECRET,
        default=None,
    )
    public_keys: tuple[bytes, ...] = setting(
        "Further keys whose signatures `sendonce verify` trusts: those of before, or, where the private key "
        "is not at hand, this store's.",
        kind=kinds.list_of(kinds.PUBLIC_KEY),
        default=(),
    )
    checkpoint_file: Path | None = setting(
        "A file that gets a line for the newest block. It is only ever added to.",
        kind=kinds.PATH,
        default=None,
    )
    checkpoint_command: tuple[str, ...] = setting(
        "A program, with its arguments, that gets the same line on its standard input. No shell is between.",
        kind=kinds.list_of(kinds.LINE),
        default=(),
    )
    checkpoint_every_s: float = setting(
        "How often a checkpoint is made, where there is a newer block.",
        kind=kinds.duration(1.0, 7 * 86_400.0),
        default=300.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportTable:
    """A broker that carries hints ([transports](transports.md)), with its own keys. Few need one."""

    kind: str = setting(
        "Which adapter speaks to it: `rabbitmq`, `nats` or `sqs`.",
        kind=kinds.NAME,
        missing='write which broker it is: kind = "rabbitmq", "nats" or "sqs"; or remove the table',
    )
    take_over_s: float = setting(
        "How long the broker may be away before workers claim from the store's own queue.",
        kind=kinds.duration(0.0, 3_600.0),
        default=10.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyTable:
    """Another broker that processes know, for `sendonce transport switch`; with its own keys."""

    kind: str = setting(
        "Which adapter speaks to it; another kind than the first.",
        kind=kinds.NAME,
        missing='write which broker it is: kind = "rabbitmq", "nats" or "sqs"',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTable:
    """A Kafka cluster that `sendonce kafka` hands the feed on to ([Kafka](neighbours.md#kafka))."""

    servers: str = setting(
        "Where it is: `HOST:PORT`, several with commas between. Not set: there is none.",
        kind=kinds.LINE,
        default="",
    )
    topic: str = setting(
        "What topics begin with: a tenant's is `TOPIC.TENANT`.", kind=kinds.LINE, default="sendonce.events"
    )
    security: str = setting(
        "`tls`, or `none`: without TLS; with a password only on this machine.",
        kind=kinds.words(("tls", "none")),
        default="tls",
    )
    username: str = setting("Name to log in with. Not set: no login.", kind=kinds.LINE, default="")
    password: Secret | None = setting("Its password.", kind=kinds.SECRET, default=None)
    mechanism: str = setting(
        "How the password is shown.",
        kind=kinds.words(("scram-sha-512", "scram-sha-256", "plain")),
        default="scram-sha-512",
    )
    ca_file: Path | None = setting(
        "PEM file of a private authority to trust instead of the machine's.", kind=kinds.PATH, default=None
    )
    timeout_s: float = setting(
        "How long the cluster may take to confirm a record.", kind=kinds.duration(1.0, 30.0), default=20.0
    )

    def __post_init__(self) -> None:
        if not self.servers and any((self.username, self.password, self.ca_file)):
            raise InvalidInput(
                'is missing: write where the cluster is, such as servers = "kafka-1:9093"', field="servers"
            )
        hosts = []
        for each in self.servers.split(",") if self.servers else ():
            host, colon, port = each.strip().rpartition(":")
            if (
                not colon
                or not host
                or not port.isascii()
                or not port.isdigit()
                or not 0 < int(port) < 65_536
            ):
                raise InvalidInput(f"= {self.servers!r:.80} must be HOST:PORT, with commas", field="servers")
            hosts.append(host)
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", self.topic):
            raise InvalidInput(
                f"= {self.topic!r:.80} must be letters, digits, '.', '_' and '-'", field="topic"
            )
        if bool(self.username) != bool(self.password):
            missing = "password" if self.username else "username"
            raise InvalidInput("must be written: a login needs a username and a password", field=missing)
        if self.username and self.security == "none" and not {*hosts} <= {"localhost", "127.0.0.1", "[::1]"}:
            raise InvalidInput('must be "tls": a login must not travel in clear', field="security")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """What is told on stderr, without personal data."""

    level: str = setting(
        "The least that is told. `debug` tells each delivery.",
        kind=kinds.words(LOG_LEVELS),
        default="info",
        variable="SENDONCE_LOG_LEVEL",
    )
    format: str = setting(
        "`text` for people, `json` for machines.",
        kind=kinds.words(LOG_FORMATS),
        default="text",
    )


TABLES: Final[Mapping[str, type]] = {
    "store": StoreTable,
    "tenant.*": TenantTable,
    "channel.*": ChannelTable,
    "channel.*.objectives": ObjectivesTable,
    "account.*": AccountTable,
    "account.*.retry": RetryTable,
    "category.*": CategoryTable,
    "route": RouteTable,
    "recipients": RecipientsTable,
    "plan.*": PlanTable,
    "intake": IntakeTable,
    "worker": WorkerTable,
    "scheduler": SchedulerTable,
    "api": ApiTable,
    "console": ConsoleTable,
    "events": EventsTable,
    "bounces": BouncesTable,
    "retention": RetentionTable,
    "audit": AuditTable,
    "transport": TransportTable,
    "transport.standby": StandbyTable,
    "kafka": KafkaTable,
    "log": LogTable,
}
"""By heading; "*" is a name of the writer's own."""


@dataclass(frozen=True, slots=True)
class Documented:
    """A setting as the documentation shows it; `default` "required" where it must be written."""

    table: str
    key: str
    type: str
    default: str
    meaning: str


def documented_keys() -> list[Documented]:
    """Every setting, in the order of the documentation."""
    return [documented for heading, cls in TABLES.items() for documented in document(cls, heading)]


def document(cls: type, heading: str) -> list[Documented]:
    """The settings of any dataclass that `bind` reads, such as an adapter's."""
    return [Documented(heading, key.name, key.kind.label, _default(key), key.meaning) for key in keys_of(cls)]


def documented_variables() -> dict[str, str]:
    """Each environment variable that overrides a setting, with the setting."""
    return {
        key.variable: f"[{heading}] {key.name}"
        for heading, cls in TABLES.items()
        for key in keys_of(cls)
        if key.variable
    }


def _default(key: Key) -> str:
    value = key.default
    if value is REQUIRED:
        return "required"
    if value is None or value in ((), "", {}, Secret("")):
        return "not set"
    if key.kind.is_duration and isinstance(value, float):
        return write_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
