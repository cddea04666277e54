"""What ended calls add to this process's counts, once their outcomes are durable.

Counted here and not where they are settled: a unit of the store may run twice, and it happened once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, get_args

from sendonce import metrics
from sendonce.core.lifecycle import ENDED, State
from sendonce.core.outcome import Accepted, NotStarted, Outcome, Throttled, ThrottleScope
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.pipeline.attempt import Attempted, Settled
from sendonce.telemetry import EVENTS

_STAYS: Final = ENDED | {State.UNCERTAIN}


def start_at_zero(policy: Policy) -> None:
    """Show every count before there is one to count. Prometheus sees no increase in the first value of a
    series, so that the first of its kind, which is when somebody must act, would alarm nobody."""
    accounts = [(account.channel.value, account.name) for account in policy.accounts.values()]
    for account in accounts:
        for outcome in get_args(Outcome):
            metrics.ATTEMPTS.add((*account, outcome.__name__.lower()), 0)
        for scope in ThrottleScope:
            metrics.THROTTLES.add((*account, scope.value), 0)
        metrics.RETRIES.add(account, 0)
        metrics.KNOWN.add(account, 0)
    channels = [channel.value for channel in policy.channels]
    for channel in channels:
        for kept in ("yes", "no"):
            metrics.WINDOW.add((channel, kept), 0)
    for channel in (*channels, "any"):
        for state in _STAYS:
            metrics.DISPOSITIONS.add((channel, state.lower()), 0)
    for end in ("complete", "bound"):
        metrics.PASSES.add((end,), 0)
    metrics.STORE_UNITS.add((), 0)
    metrics.STORE_FAILURES.add((), 0)
    for event in EVENTS:
        metrics.TOLD.add((event,), 0)


def tally(attempts: Sequence[Attempted], settled: Sequence[Settled], policy: Policy) -> None:
    """Count a group of calls, and what they brought: each delivery once, by the outcome that moved it."""
    ended: Counter[metrics.Labels] = Counter()
    outcomes: Counter[metrics.Labels] = Counter()
    for attempt in attempts:
        claim, outcome = attempt.claim, attempt.outcome
        account = (claim.channel.value, claim.account)
        outcomes[*account, type(outcome).__name__.lower()] += 1
        if isinstance(outcome, NotStarted):
            continue
        if claim.row.course.attempts > 1:
            metrics.RETRIES.add(account)
        if isinstance(outcome, Throttled):
            metrics.THROTTLES.add((*account, outcome.scope.value))
        if isinstance(outcome, Accepted) and outcome.duplicate:
            metrics.KNOWN.add(account)
        if isinstance(outcome, Accepted):
            _accepted(attempt, policy)
        metrics.PACING_WAIT.observe(account, max(0, claim.slot_at - claim.claimed_at) / SECOND)
        if attempt.started_at:
            metrics.START_LATENESS.observe(account, max(0, attempt.started_at - claim.slot_at) / SECOND)
            metrics.CALL.observe(account, max(0, attempt.ended_at - attempt.started_at) / SECOND)
    for each in settled:
        if each.moved and each.state in _STAYS:
            ended[each.attempt.claim.channel.value, each.state.lower()] += 1
    for labels, count in outcomes.items():
        metrics.ATTEMPTS.add(labels, count)
    for labels, count in ended.items():
        metrics.DISPOSITIONS.add(labels, count)


def _accepted(attempt: Attempted, policy: Policy) -> None:
    """How late it was taken. A claim knows the calendar by what was left until the expiry."""
    course, valid_s = attempt.claim.row.course, attempt.claim.message.valid_s
    channel = policy.channels.get(attempt.claim.channel)
    if valid_s is None or channel is None:
        return
    claimed_late_s = (course.expires_at - course.due_at) / SECOND - valid_s
    late_s = max(0.0, claimed_late_s + (attempt.ended_at - attempt.claim.claimed_at) / SECOND)
    metrics.ACCEPT_LATENESS.observe((channel.channel.value,), late_s)
    kept = "yes" if late_s <= channel.objectives.accepted_s else "no"
    metrics.WINDOW.add((channel.channel.value, kept))
