"""What the processes tell about themselves: each decision once, as an event with a name and fields.

    tell(REAPED, delivery=key, epoch=4, state="QUEUED")

`EVENTS` is the catalogue, and the only place where an event or a field can come from. Logs render it, to
stderr, as text for people or JSON for machines; the ledger, not the log, is the record.

No personal data gets into a log. Three fences, since one would be a habit and not a promise:

1. a field passes only if its event lists it; what was dropped is named (`dropped`), never shown;
2. what passes is a number, a switch or a short line; anything else is shown as the name of its type;
3. what looks like an address or a telephone number inside a line is masked.

Exceptions are told by type and place (`fault`), never by message: those quote what they choked on. What
other libraries log is told the same way. Telling never raises and is nearly free below the level; until
`configure` is called nothing is told at all, so a program that uses sendonce as a library stays quiet.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, TextIO

import structlog

from sendonce.core.errors import SendonceError
from sendonce.metrics import TOLD

DEBUG: Final = logging.DEBUG
INFO: Final = logging.INFO
WARNING: Final = logging.WARNING
ERROR: Final = logging.ERROR
LEVELS: Final[Mapping[str, int]] = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}
FORMATS: Final = ("text", "json")
TEXT_LENGTH_MAX: Final = 200

_OFF: Final = 1_000


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of thing that can be told: its name, what it means, how grave it is, which fields it has."""

    name: str
    meaning: str
    level: int
    fields: tuple[str, ...]


def configure(level: str, format: str, *, process: str = "", stream: TextIO | None = None) -> None:  # noqa: A002
    """Begin to tell, from `level` on. `process` ("worker-2") stands in every line; `stream` is stderr.

    Raises `ValueError` for an unknown level or format.
    """
    if level not in LEVELS or format not in FORMATS:
        raise ValueError(
            f"{level!r}, {format!r} must be one of {', '.join(LEVELS)} and of {', '.join(FORMATS)}"
        )
    out = stream if stream is not None else sys.stderr
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=20, sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            only_known,
            _Process(process),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    _told.threshold = LEVELS[level]
    logging.basicConfig(handlers=[_Libraries()], level=max(WARNING, LEVELS[level]), force=True)


def silence() -> None:
    """Tell nothing any more, as before `configure`."""
    _told.threshold = _OFF


def tells(event: Event) -> bool:
    """Whether `event` would be told: ask before working out fields that cost something."""
    return event.level >= _told.threshold


def tell(event: Event, **fields: object) -> None:
    """Tell one event. Never raises: a full disk under the log must not stop a send."""
    TOLD.add((event.name,))
    if event.level < _told.threshold:
        return
    with suppress(Exception):
        structlog.get_logger().log(event.level, event.name, **fields)


def fault(error: BaseException) -> dict[str, str]:
    """The fields `error` and `at` of an exception: its type, with its code where it is one of ours, and where
    in the code it was raised.

    Its message is left out on purpose: it may quote an address, a body, a row.
    """
    trace, at = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        at = f"{PurePath(code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    name = type(error).__name__
    return {"error": f"{name}:{error.code}" if isinstance(error, SendonceError) else name, "at": at}


def only_known(_: object, __: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that keeps personal data out; see the fences in the module text."""
    event = EVENTS.get(str(told.get("event")))
    if event is None:
        return {"event": "unknown_event", "level": told.get("level", "error")}
    kept: dict[str, Any] = {"event": event.name, "level": told.get("level", "info")}
    kept.update({name: _clean(told[name]) for name in event.fields if name in told})
    dropped = sorted(told.keys() - kept.keys())
    if dropped:
        kept["dropped"] = [_clean(name) for name in dropped]
    return kept


# The catalogue. Fields mean the same everywhere; `FIELDS` says what.

PROCESS_STARTED: Final = Event(
    "process_started", "A process is ready for work.", INFO, ("role", "version", "pid")
)
PROCESS_STOPPED: Final = Event(
    "process_stopped", "A process has finished or released what it held.", INFO, ("role", "why", "took_s")
)
STORE_HELD: Final = Event(
    "store_held",
    "The store may have lost what was written last, so nothing is sent until `sendonce db released`.",
    ERROR,
    ("why", "line"),
)
STORE_RELEASED: Final = Event(
    "store_released",
    "A held store was reconciled and let go.",
    WARNING,
    ("why", "store_epoch", "count", "uncertain"),
)
OUTCOME_STRAY: Final = Event(
    "outcome_stray",
    "A call ended whose delivery the store does not have, or has as another: it was lost with the record, or "
    "removed by policy while the process slept.",
    ERROR,
    ("delivery", "account", "outcome"),
)
LEADS: Final = Event(
    "leads", "This process does now what one of its role does; the others stand by.", INFO, ("role",)
)
STANDS_BY: Final = Event("stands_by", "Another process of this role leads.", INFO, ("role",))
STAGE_FAILED: Final = Event(
    "stage_failed",
    "A bug: a stage raised. It goes on after `wait_s`.",
    ERROR,
    ("stage", "error", "at", "wait_s"),
)
MAIL_RETURNED: Final = Event(
    "mail_returned",
    "Mail that came back was read: how much of it says nothing that can be used, and why.",
    INFO,
    ("mails", "events", "unreadable", "automatic", "foreign", "oversized"),
)
MAILBOX_UNAVAILABLE: Final = Event(
    "mailbox_unavailable",
    "The mailbox of [bounces] cannot be read. What waits there waits on; it is tried again.",
    WARNING,
    ("why",),
)
LIBRARY_WARNED: Final = Event(
    "library_warned", "A library logged a warning or an error.", WARNING, ("library", "error", "at")
)

IMPORT_FINISHED: Final = Event(
    "import_finished",
    "A file or a call was taken in.",
    INFO,
    (
        "tenant",
        "import_id",
        "rows",
        "accepted",
        "unchanged",
        "revised",
        "conflicting",
        "invalid",
        "cancelled",
        "took_s",
    ),
)
OUTBOX_PARKED: Final = Event(
    "outbox_parked",
    "What an application scheduled in its own transaction cannot be taken in: see `sendonce outbox list`.",
    WARNING,
    ("tenant", "intake_id", "reason"),
)
OUTBOX_OLD: Final = Event(
    "outbox_old",
    "Nobody takes in what applications scheduled in their own transactions; a scheduler does, if it runs.",
    ERROR,
    ("waiting", "waits_s"),
)

PASS_FINISHED: Final = Event(
    "pass_finished",
    "A scheduler pass is over.",
    INFO,
    ("run", "examined", "published", "deferred", "ended", "late", "lag_s", "why", "took_s"),
)
RETENTION_DONE: Final = Event(
    "retention_done",
    "A round of retention destroyed or removed something.",
    INFO,
    ("emptied", "deliveries", "entries", "imports", "unsealed"),
)
RETENTION_STOPPED: Final = Event(
    "retention_stopped",
    "Retention removes nothing for a day, since the calendar jumped; or never this delivery, since its "
    "record does not hold.",
    ERROR,
    ("delivery", "why"),
)
BACKLOG_OLD: Final = Event(
    "backlog_old",
    "The oldest due delivery passed `alert_after`.",
    ERROR,
    ("channel", "account", "age_s", "due"),
)

FORECAST_LATE: Final = Event(
    "forecast_late",
    "What falls due within a day will miss its window or expire: see `sendonce forecast`.",
    WARNING,
    ("channel", "account", "count", "in_s", "needed_per_s"),
)
ACCOUNT_LOST: Final = Event(
    "account_lost",
    "Deliveries hang on an account that the configuration lost: nobody sends them or asks about them.",
    ERROR,
    ("account", "count"),
)

SLOT_MISSED: Final = Event(
    "slot_missed",
    "A call could not start in its slot and was given back.",
    DEBUG,
    ("delivery", "account", "late_s"),
)
OUTCOME: Final = Event(
    "outcome",
    "A provider call ended.",
    DEBUG,
    ("delivery", "account", "attempt", "epoch", "outcome", "reason", "code", "wait_s", "took_s"),
)
DUPLICATE_OBSERVED: Final = Event(
    "duplicate_observed",
    "A hint came for a delivery that is finished; nothing was sent.",
    INFO,
    ("delivery", "state", "source"),
)
UNCERTAIN: Final = Event(
    "uncertain",
    "Nobody can tell whether a delivery was sent.",
    WARNING,
    ("delivery", "account", "policy", "why"),
)
PROVEN_ALARM: Final = Event(
    "proven_alarm",
    "Evidence shows a send where the state said that nothing was sent.",
    ERROR,
    ("delivery", "account", "state", "source"),
)
REAPED: Final = Event(
    "reaped",
    "A claim ran out: its process is gone or stuck.",
    WARNING,
    ("delivery", "account", "epoch", "state", "why"),
)
RECONCILED: Final = Event(
    "reconciled",
    "A provider was asked whether it has a send.",
    INFO,
    ("delivery", "account", "finding", "state", "took_s"),
)

GATE_CLOSED: Final = Event(
    "gate_closed",
    "An account is to wait, mostly after a 429.",
    WARNING,
    ("account", "scope", "why", "code", "wait_s"),
)
GATE_OPENED: Final = Event("gate_opened", "An account may send again.", INFO, ("account", "why"))
ACCOUNT_HELD: Final = Event(
    "account_held",
    "The account itself is at fault: credentials, sender, credit. Nothing is spent; mend it.",
    ERROR,
    ("account", "reason", "code", "wait_s"),
)
BREAKER_OPENED: Final = Event(
    "breaker_opened",
    "The provider fails call after call and gets a rest.",
    ERROR,
    ("account", "streak", "wait_s"),
)
LIMITS_CHANGED: Final = Event(
    "limits_changed", "An account has new limits.", INFO, ("account", "limits", "lanes", "source")
)
LIMITS_DIFFER: Final = Event(
    "limits_differ",
    "A worker that was started later has other limits for this account in its configuration. Those hold for "
    "all; make the files equal.",
    WARNING,
    ("account",),
)
PAUSED: Final = Event(
    "paused", "Somebody paused an account, a channel or a group.", INFO, ("scope", "target", "wait_s")
)
RESUMED: Final = Event("resumed", "A pause ended.", INFO, ("scope", "target", "why"))
REROUTED: Final = Event(
    "rerouted",
    "What waited for an account goes to another one that shares with it.",
    WARNING,
    ("account", "target", "count", "why"),
)
REDRIVEN: Final = Event(
    "redriven", "Dead or rejected deliveries were queued again.", INFO, ("count", "refused")
)
CONSOLE_MOVE: Final = Event(
    "console_move",
    "Somebody did something in the console; the audit says what, and why.",
    INFO,
    ("action", "by"),
)
CONSOLE_SIGN_IN_FAILED: Final = Event(
    "console_sign_in_failed",
    "Somebody tried to sign in to the console with what opens it to nobody.",
    WARNING,
    ("source",),
)
RESOLVED: Final = Event("resolved", "Somebody decided an uncertain delivery.", INFO, ("delivery", "state"))

SEALED: Final = Event("sealed", "Ledger entries were closed into a block.", DEBUG, ("block", "sealed"))
SEALS_UNSIGNED: Final = Event(
    "seals_unsigned", "There is no key in `[audit]`: blocks are chained, and nobody signs them.", INFO, ()
)
CHECKPOINT_FAILED: Final = Event(
    "checkpoint_failed",
    "A checkpoint of the seals could not be exported; it is tried again.",
    ERROR,
    ("block", "error", "at"),
)

TRANSPORT_AWAY: Final = Event(
    "transport_away",
    "The broker does not answer. It is asked again; after a while the store's own queue takes over.",
    ERROR,
    ("transport", "error", "at"),
)
TRANSPORT_BACK: Final = Event("transport_back", "The broker answers again.", INFO, ("transport", "away_s"))
SINK_AWAY: Final = Event(
    "sink_away",
    "What the feed is handed on to does not confirm. The page is given again; nothing is skipped.",
    ERROR,
    ("sink", "why"),
)
SINK_BACK: Final = Event("sink_back", "It confirms again.", INFO, ("sink",))
TRANSPORT_SWITCHED: Final = Event(
    "transport_switched", "Hints are carried by another transport from now on.", INFO, ("before", "transport")
)
HINT_PARKED: Final = Event(
    "hint_parked",
    "A message in a queue is no hint of ours. It lies beside the queue now.",
    WARNING,
    ("transport", "queue", "message", "why"),
)
EVENT_REFUSED: Final = Event(
    "event_refused",
    "Somebody called at an account's events without being its provider, or with what nobody can read.",
    WARNING,
    ("account", "why"),
)
POLLED: Final = Event(
    "polled",
    "A provider was asked what became of messages. `silent`: those of which it told nothing.",
    DEBUG,
    ("account", "asked", "events", "silent"),
)
POLL_SILENT: Final = Event(
    "poll_silent",
    "A provider that is asked what became of a message does not know it, or says what cannot be read. It is "
    "asked again later.",
    WARNING,
    ("account", "code"),
)
POLL_AWAY: Final = Event(
    "poll_away",
    "A provider cannot be asked what became of its messages. It is asked again; nothing is skipped.",
    WARNING,
    ("account", "code", "wait_s"),
)
POLL_BACK: Final = Event("poll_back", "It answers again.", INFO, ("account",))
EVENT_LEFT: Final = Event(
    "event_left",
    "What a provider told is left to people: `sendonce events list`.",
    WARNING,
    ("account", "kind", "why", "events"),
)
NO_HANDLES: Final = Event(
    "no_handles",
    "This process may open no more files, and connections are files: calls of an account were given back. "
    "Raise its limit (`ulimit -n`, `LimitNOFILE=`).",
    ERROR,
    ("account", "wait_s"),
)
STORE_UNAVAILABLE: Final = Event(
    "store_unavailable",
    "The store is locked, full or unreachable. Nothing was half done; it is tried again.",
    ERROR,
    ("stage", "error", "at", "wait_s"),
)
RUN_AGAIN: Final = Event(
    "run_again",
    "The database gave up a group of writes: a deadlock, a lost connection. Nothing of it happened; it runs "
    "again.",
    WARNING,
    ("reason", "units", "tries"),
)
HEARS_NOTHING: Final = Event(
    "hears_nothing",
    "This process is told of no new work, since a pooler is in between or the connection was lost. It finds "
    "all by looking, a fraction of a second later.",
    INFO,
    ("why", "error", "at"),
)
CONFIGURATION_GAP: Final = Event(
    "configuration_gap",
    "A due delivery needs a category or an account that the configuration lost; it waits.",
    ERROR,
    ("delivery", "why"),
)
BAD_CONTENT: Final = Event(
    "bad_content",
    "A due delivery cannot be rendered and was rejected.",
    WARNING,
    ("delivery", "code"),
)
ADAPTER_BUG: Final = Event(
    "adapter_bug",
    "A bug: an adapter raised. Nobody knows whether the call arrived.",
    ERROR,
    ("delivery", "account", "error", "at"),
)
SETTLE_FAILED: Final = Event(
    "settle_failed",
    "A bug: one outcome cannot be written; the reaper will call it unknown.",
    ERROR,
    ("delivery", "error", "at"),
)

EVENTS: Final[Mapping[str, Event]] = {
    event.name: event for event in list(globals().values()) if isinstance(event, Event)
}

FIELDS: Final[Mapping[str, str]] = {
    "accepted": "rows that made a new reminder",
    "account": "the provider account's name",
    "action": "the form of the console that was sent",
    "age_s": "how long ago it was due",
    "asked": "messages that a provider was asked about",
    "at": "file and line of the code",
    "attempt": "which call of this delivery, from 1",
    "automatic": 'automatic answers, such as "out of office"',
    "away_s": "how long the broker was away",
    "before": "what carried hints until then",
    "block": "the number of the sealed block",
    "by": "who did it, as in the ledger",
    "cancelled": "reminders that the file no longer lists",
    "channel": "`email` or `sms`",
    "code": "the provider's own code",
    "conflicting": "rows whose key is taken by another content",
    "count": "how many deliveries",
    "deferred": "deliveries put off",
    "deliveries": "deliveries removed",
    "delivery": "the delivery key, `reminder:customer:channel`",
    "due": "deliveries that are due and waiting",
    "emptied": "reminders whose text, address and data were destroyed",
    "ended": "deliveries that expired or were cancelled or suppressed",
    "entries": "ledger entries removed",
    "epoch": "which claim of this delivery",
    "error": "the type of the exception, and the code of one of ours, never its message",
    "events": "what was said about messages",
    "examined": "rows looked at",
    "finding": "what the provider said to a look-up",
    "foreign": "mails without a token of ours, which are not believed",
    "import_id": "the import, which is a group",
    "imports": "imports forgotten",
    "in_s": "how long until it begins",
    "intake_id": "its number in `sendonce outbox list`",
    "invalid": "rows that were refused; the import's report says why",
    "kind": "what a provider said, as `core.provider_event` names it",
    "lag_s": "how far the high-water mark is behind the clock",
    "lanes": "calls that may be open at once",
    "late": "publications later than the grace time",
    "late_s": "how much later than planned",
    "library": "the name of the library's logger",
    "limits": "the limits as text",
    "line": "the server's line of history: system, timeline, database and table",
    "mails": "mails read",
    "message": "the broker's id of the message",
    "needed_per_s": "calls a second that would suffice; 0: no rate would",
    "outcome": "what the call returned, as `core.outcome` names it",
    "oversized": "mails too large to be read",
    "pid": "the process id",
    "policy": "the uncertain policy that applies",
    "published": "deliveries queued",
    "queue": "the queue's name at the broker",
    "reason": "why it was refused or given up, in one word",
    "refused": "deliveries that could not be, with a reason in the answer",
    "revised": "rows that changed a reminder",
    "role": "what the process does: worker, scheduler, ...",
    "rows": "rows read",
    "run": "the number of the pass",
    "scope": "whom it is about",
    "sealed": "ledger entries that were closed",
    "silent": "messages of which it told nothing",
    "sink": "what the feed is handed on to: `kafka`",
    "source": "where it came from",
    "stage": "the part of the pipeline",
    "state": "the delivery's state now",
    "store_epoch": "how often the store was released, from 1",
    "streak": "failures in a row",
    "target": "the name of what was paused or resumed",
    "tenant": "whose data it is",
    "took_s": "how long it took",
    "transport": "which broker, or `store`",
    "tries": "how often it has been tried",
    "uncertain": "how many of them wait for a person now",
    "unchanged": "rows that were known already",
    "units": "how many writes were in it",
    "unreadable": "mails about messages of ours that are no report",
    "unsealed": "deliveries that stay until their entries are sealed",
    "version": "the version of sendonce",
    "wait_s": "how long until the next try",
    "waiting": "reminders that wait to be taken in",
    "waits_s": "how long the first of them waits",
    "why": "a coded reason",
}
"""What each field means. Besides, every line has `timestamp`, `level`, `event`, `process`."""


# Keeping lines clean


def _clean(value: object) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            # `str()` first: an enumeration is shown as its word.
            line = _UNPRINTABLE.sub("?", str(value)[:TEXT_LENGTH_MAX])
            if "@" in line:
                line = _ADDRESS.sub("<address>", line)
            return _NUMBER.sub("<number>", line) if "+" in line else line
        case _:
            return f"<{type(value).__name__}>"


# A line end would forge a second line, an escape sequence would write on the operator's terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ADDRESS = re.compile(r"[^\s:<>]+@[^\s:<>]+")
_NUMBER = re.compile(r"\+\d[\d ()./-]{5,}\d")


@dataclass(slots=True)
class _Told:
    threshold: int = _OFF


_told = _Told()


@dataclass(frozen=True, slots=True)
class _Process:
    """Adds who tells it, after the fences: it is ours."""

    name: str

    def __call__(self, _: object, __: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if self.name:
            told["process"] = self.name
        return told


class _Libraries(logging.Handler):
    """What libraries log, told without their text."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        kind = fault(error)["error"] if error is not None else ""
        tell(LIBRARY_WARNED, library=record.name, at=f"{record.filename}:{record.lineno}", error=kind)
