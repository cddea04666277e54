"""What this process counts and times for Prometheus, and the catalogue of every metric there is.

    ATTEMPTS.add(("sms", "texts", "accepted"))
    CALL.observe(("sms", "texts"), 0.12)

`METRICS` is the catalogue, and the only place where a metric can come from; docs/metrics.md is checked by it.
Counting costs a microsecond and asks nobody, so it is always on; what was counted is shown only by a process
that serves `/metrics` (`sendonce.exposition`), each its own. What is the same for all processes, such as what
waits, is no count of any of them: it is read from the store (`pipeline.gauges`).

Labels have few values: a channel, an account of the configuration, a word of ours. Never a tenant, a
customer, a reminder, an address, or what a provider wrote.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

Labels = tuple[str, ...]

FAST_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CALL_S: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LATE_S: Final = (0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0)
LAG_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)


class Of(StrEnum):
    """Whose a metric is: the process's that shows it, or the store's, the same wherever it is asked."""

    PROCESS = "process"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name with its unit, what it means, its labels. Counted by nobody by itself."""

    name: str
    meaning: str
    labels: Labels = ()

    kind = ""
    of = Of.PROCESS


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """What stands in the store. `pipeline.gauges` says how much."""

    kind = "gauge"
    of = Of.STORE


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """Counts up from the start of the process. Safe from any thread."""

    kind = "counter"

    _counts: dict[Labels, float] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, labels: Labels = (), count: float = 1) -> None:
        with self._lock:
            self._counts[labels] = self._counts.get(labels, 0) + count

    def counts(self) -> Mapping[Labels, float]:
        with self._lock:
            return dict(self._counts)


@dataclass(slots=True)
class Spread:
    """What a histogram saw under one set of labels: how many in each bucket, the last without a bound."""

    buckets: list[int]
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """Spreads of seconds. Safe from any thread."""

    bounds: tuple[float, ...] = FAST_S

    kind = "histogram"

    _spreads: dict[Labels, Spread] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def observe(self, labels: Labels, seconds: float) -> None:
        with self._lock:
            spread = self._spreads.get(labels)
            if spread is None:
                spread = self._spreads[labels] = Spread([0] * (len(self.bounds) + 1))
            spread.buckets[bisect_left(self.bounds, seconds)] += 1
            spread.total += seconds

    def spreads(self) -> Mapping[Labels, Spread]:
        with self._lock:
            return {
                labels: Spread(list(spread.buckets), spread.total) for labels, spread in self._spreads.items()
            }


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a gauge."""

    gauge: Gauge
    labels: Labels
    value: float


_ACCOUNT: Final = ("channel", "account")

# The whole installation

BACKLOG: Final = Gauge(
    "sendonce_backlog_deliveries",
    "Deliveries that are due and not sent: `due` and not published, `ready` for a worker, `waiting` for a "
    "time of their own.",
    (*_ACCOUNT, "stage"),
)
OLDEST: Final = Gauge(
    "sendonce_oldest_age_seconds", "How long the oldest due delivery of a channel has been due.", ("channel",)
)
OPEN_CALLS: Final = Gauge("sendonce_open_calls", "Calls that are open.", _ACCOUNT)
LANES: Final = Gauge("sendonce_lanes", "Calls that may be open at once just now.", _ACCOUNT)
RATE: Final = Gauge(
    "sendonce_rate_limit_starts_per_second",
    "Starts a second that the gate allows just now; not there where only quotas limit.",
    _ACCOUNT,
)
GATE: Final = Gauge(
    "sendonce_gate_state",
    "1 for the state of the account's gate (`open`, `closed`, `paused`, `probing`), 0 for the others.",
    (*_ACCOUNT, "state"),
)
UNRESOLVED: Final = Gauge(
    "sendonce_unresolved_deliveries",
    "Deliveries that somebody or something must decide: `dead`, `rejected`, `uncertain`, `reconciling`.",
    (*_ACCOUNT, "state"),
)
UNRESOLVED_AGE: Final = Gauge(
    "sendonce_unresolved_oldest_age_seconds",
    "How long the first of them has been so; for those in doubt, since their last call.",
    (*_ACCOUNT, "state"),
)
PUBLISHED_UNTIL: Final = Gauge(
    "sendonce_published_until_timestamp_seconds",
    "Everything that was due by this moment is published or decided: the mark of the passes.",
)
LAST_PASS: Final = Gauge(
    "sendonce_last_pass_timestamp_seconds", "When the last pass that is in the run history began."
)
PAUSES: Final = Gauge("sendonce_pauses", "Pauses in force.", ("scope",))
HELD: Final = Gauge(
    "sendonce_store_held", "1 while the store may have lost what was written last, and sends nothing."
)
OUTBOX_AGE: Final = Gauge(
    "sendonce_outbox_oldest_age_seconds", "How long what applications handed in waits to be taken in."
)
OUTBOX_PARKED: Final = Gauge("sendonce_outbox_parked", "What they handed in and nobody can take in as it is.")
UNSEALED: Final = Gauge("sendonce_unsealed_entries", "Ledger entries that are in no sealed block yet.")
UNSEALED_ACTS: Final = Gauge(
    "sendonce_unsealed_acts", "What people did outside of any delivery that is in no sealed block yet."
)
SEAL_AGE: Final = Gauge("sendonce_seal_age_seconds", "How long ago the last block was sealed.")
PROCESSES: Final = Gauge("sendonce_processes", "Processes whose lease stands.", ("role",))
FORECAST_MISSES: Final = Gauge(
    "sendonce_forecast_missed_deliveries",
    "Deliveries of the next day that will miss their window, or expire, by the forecast.",
    _ACCOUNT,
)

# This process

ATTEMPTS: Final = Counter(
    "sendonce_attempts_total",
    "Calls that ended, by outcome: `accepted`, `rejected`, `throttled`, `failed`, `accounterror`, `unknown`, "
    "`notstarted`.",
    (*_ACCOUNT, "outcome"),
)
THROTTLES: Final = Counter(
    "sendonce_throttles_total",
    "Answers of 429, by what they are about: `rate`, `concurrency`, `quota`, `recipient`, `undeclared`.",
    (*_ACCOUNT, "scope"),
)
RETRIES: Final = Counter(
    "sendonce_retries_total", "Calls that were not the first of their delivery.", _ACCOUNT
)
KNOWN: Final = Counter(
    "sendonce_absorbed_repeats_total",
    "Calls that the provider knew by their key, and did not send again.",
    _ACCOUNT,
)
DISPOSITIONS: Final = Counter(
    "sendonce_dispositions_total",
    "Deliveries that this process brought to a state in which they stay, by itself, in lower case.",
    ("channel", "state"),
)
WINDOW: Final = Counter(
    "sendonce_window_total",
    "Deliveries that a provider accepted, `kept` `yes` or `no`: within `accepted_within` of their due time.",
    ("channel", "kept"),
)
ACCEPT_LATENESS: Final = Histogram(
    "sendonce_accept_lateness_seconds",
    "How long after its due time a provider accepted a delivery, to the second.",
    ("channel",),
    bounds=LATE_S,
)
CALL: Final = Histogram(
    "sendonce_call_seconds", "How long calls took, from their start.", _ACCOUNT, bounds=CALL_S
)
START_LATENESS: Final = Histogram(
    "sendonce_start_lateness_seconds", "How long after their slot calls started.", _ACCOUNT
)
PACING_WAIT: Final = Histogram(
    "sendonce_pacing_wait_seconds", "How far ahead of a claim its slot lay.", _ACCOUNT
)
PUBLISH_LATENESS: Final = Histogram(
    "sendonce_publish_lateness_seconds",
    "How long after the moment that they were to be looked at deliveries were published.",
    ("channel",),
    bounds=LATE_S,
)
EVENT_LAG: Final = Histogram(
    "sendonce_provider_event_lag_seconds",
    "How long after it happened a provider's event was written down.",
    ("account",),
    bounds=LAG_S,
)
PASSES: Final = Counter(
    "sendonce_passes_total",
    "Passes that this process ran, by how they ended: `complete`, or at their `bound` with more left.",
    ("end",),
)
PASS: Final = Histogram("sendonce_pass_seconds", "How long passes took that found something.", bounds=LATE_S)
STORE_COMMIT: Final = Histogram(
    "sendonce_store_commit_seconds", "How long groups of writes took, from their begin to durable."
)
STORE_UNITS: Final = Counter("sendonce_store_units_total", "Writes in those groups.")
STORE_FAILURES: Final = Counter("sendonce_store_failures_total", "Groups of writes that were undone.")
TOLD: Final = Counter(
    "sendonce_events_total",
    "What this process told, by the event's name in the catalogue of logs, logged or not.",
    ("event",),
)
BUILD: Final = Counter("sendonce_build_info", "1, with the version of sendonce.", ("version",))

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric for metric in list(globals().values()) if isinstance(metric, Metric)
}
