"""What stands in the store, as metrics: what waits and how long, the gates, what must be decided, the passes.

One read, which costs the same with millions of deliveries in the past or the future: everything goes by the
partial indexes of the agenda. Whoever asks gets the same, so any process may show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from sendonce import metrics
from sendonce.core import pacing
from sendonce.core.pacing import SECOND, Gate
from sendonce.core.policy import Policy
from sendonce.metrics import Sample
from sendonce.pipeline.handed_in import outbox
from sendonce.pipeline.reach import active_pauses
from sendonce.pipeline.sealed import how_far
from sendonce.ports.store import Tx

GATE_STATES: Final = ("open", "closed", "paused", "probing")
SCOPES: Final = ("scheduler", "channel", "group")
IN_DOUBT: Final = frozenset({"UNCERTAIN", "RECONCILING"})
STATES: Final = ("dead", "rejected", "uncertain", "reconciling")


def gauges(tx: Tx, policy: Policy) -> list[Sample]:
    """All gauges but the forecast's. What is zero is there too, so that an alert can tell it from silence."""
    return [
        *_backlog(tx, policy),
        *_accounts(tx, policy),
        *_unresolved(tx, policy),
        *_passes(tx),
        *_seals(tx),
        *_processes(tx),
    ]


def _backlog(tx: Tx, policy: Policy) -> Iterator[Sample]:
    counts = {
        (account.channel.value, name, stage): 0
        for name, account in policy.accounts.items()
        for stage in ("ready", "waiting")
    }
    counts |= {(channel.value, "", "due"): 0 for channel in policy.channels}
    oldest = {channel.value: 0.0 for channel in policy.channels}
    for row in tx.rows("backlog_pending", now=tx.now):
        counts[str(row["channel"]), "", "due"] = int(row["n"])
        _age(oldest, str(row["channel"]), tx.now - int(row["due_at"]))
    for row in tx.rows("backlog_queued"):
        _age(oldest, str(row["channel"]), tx.now - int(row["due_at"]))
    for view, stage in (("view_ready", "ready"), ("view_waiting", "waiting")):
        given = {"now": tx.now} if stage == "waiting" else {}
        for row in tx.rows(view, **given):
            name = str(row["account"])
            counts[_channel(policy, name), name, stage] = int(row["count"])
    for labels, count in counts.items():
        yield Sample(metrics.BACKLOG, labels, count)
    for channel, age_s in oldest.items():
        yield Sample(metrics.OLDEST, (channel,), age_s)


def _age(oldest: dict[str, float], channel: str, age_us: int) -> None:
    oldest[channel] = max(oldest.get(channel, 0.0), age_us / SECOND)


def _accounts(tx: Tx, policy: Policy) -> Iterator[Sample]:
    calls = {str(row["account"]): int(row["count"]) for row in tx.rows("view_calls")}
    for gate in tx.gates.all():
        labels = (_channel(policy, gate.account), gate.account)
        yield Sample(metrics.OPEN_CALLS, labels, calls.get(gate.account, 0))
        yield Sample(metrics.LANES, labels, 1 if gate.probing else pacing.lanes_now(gate, tx.steady))
        rate = pacing.rate_now(gate, tx.steady)
        if math.isfinite(rate):
            yield Sample(metrics.RATE, labels, rate)
        now = _state(gate, tx.steady)
        for state in GATE_STATES:
            yield Sample(metrics.GATE, (*labels, state), int(state == now))


def _state(gate: Gate, steady: int) -> str:
    if gate.paused_until > steady:
        return "paused"
    if gate.closed_until > steady:
        return "closed"
    return "probing" if gate.probing else "open"


def _unresolved(tx: Tx, policy: Policy) -> Iterator[Sample]:
    found: dict[tuple[str, str, str], tuple[int, float]] = {
        (account.channel.value, name, state): (0, 0.0)
        for name, account in policy.accounts.items()
        for state in STATES
    }
    for row in tx.rows("view_metrics_unresolved"):
        state = str(row["state"])
        since, now = (
            (int(row["tried_at"]), tx.steady) if state in IN_DOUBT else (int(row["ended_at"]), tx.now)
        )
        age_s = max(0, now - since) / SECOND if since else 0.0
        found[str(row["channel"]), str(row["account"]), state.lower()] = int(row["count"]), age_s
    for labels, (count, age_s) in found.items():
        yield Sample(metrics.UNRESOLVED, labels, count)
        yield Sample(metrics.UNRESOLVED_AGE, labels, age_s)


def _passes(tx: Tx) -> Iterator[Sample]:
    mark = int(tx.meta("mark") or 0)
    if mark:
        yield Sample(metrics.PUBLISHED_UNTIL, (), mark / SECOND)
    for row in tx.rows("view_passes", limit=1):
        yield Sample(metrics.LAST_PASS, (), int(row["started_at"]) / SECOND)
    scopes = [scope for scope, _ in active_pauses(tx)]
    for scope in SCOPES:
        yield Sample(metrics.PAUSES, (scope,), scopes.count(scope))
    yield Sample(metrics.HELD, (), int(tx.held))
    handed_in = outbox(tx)
    yield Sample(metrics.OUTBOX_AGE, (), handed_in.waits_s)
    yield Sample(metrics.OUTBOX_PARKED, (), handed_in.parked)


def _seals(tx: Tx) -> Iterator[Sample]:
    far = how_far(tx)
    if far.block is not None:
        yield Sample(metrics.SEAL_AGE, (), max(0, tx.now - far.block.at) / SECOND)
    yield Sample(metrics.UNSEALED, (), far.unsealed)
    yield Sample(metrics.UNSEALED_ACTS, (), far.unsealed_acts)


def _processes(tx: Tx) -> Iterator[Sample]:
    roles: dict[str, int] = {}
    for row in tx.rows("view_processes", since=tx.now, steady=tx.steady, limit=1_000):
        if row["stopped"] == 0 and int(row["lease_until"]) > tx.steady:
            roles[str(row["role"])] = roles.get(str(row["role"]), 0) + 1
    for role in sorted({*roles, "worker", "scheduler", "up"}):
        yield Sample(metrics.PROCESSES, (role,), roles.get(role, 0))


def _channel(policy: Policy, account: str) -> str:
    """Nothing for an account that the configuration lost."""
    known = policy.accounts.get(account)
    return known.channel.value if known is not None else ""
