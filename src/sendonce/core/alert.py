"""Alert rules for Prometheus, made from the objectives of each channel. Pure.

Each says that somebody must act, and names the page that says how (docs/operate/alerts/). None of them looks
at how much waits: a deep line that will be gone in time is no trouble, and a short one that does not move is.
What comes from the store is the same in every process that shows it, so it is taken once (`max`); what
processes count is added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sendonce.core.duration import say_duration
from sendonce.core.errors import InvalidInput
from sendonce.core.policy import ChannelPolicy, Policy

PAGE_: Final = "page"
TICKET: Final = "ticket"
PAGE_NAME: Final = "{page}"
"""Stands in the address of the runbook for the name of an alert's page."""
PASS_GAP_S: Final = 300.0
GATE_CLOSED_S: Final = 900.0
SEAL_AGE_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert. `for_s`: how long it must hold; `page`: its page of the runbook; `channel`: whose it is,
    "" the installation's."""

    alert: str
    expression: str
    for_s: int
    severity: str
    summary: str
    page: str
    channel: str = ""


def rules(policy: Policy) -> list[Rule]:
    """All alerts of a configuration."""
    found = list(_installation())
    for channel in policy.channels.values():
        found += _channel(channel)
    return found


def _channel(channel: ChannelPolicy) -> Iterator[Rule]:
    name, objectives = channel.channel.value, channel.objectives
    only = f'channel="{name}"'
    yield Rule(
        "SendonceOldestTooOld",
        f"max by (channel) (sendonce_oldest_age_seconds{{{only}}}) > {objectives.oldest_s:g}",
        60,
        PAGE_,
        f"the oldest due delivery on {name} is older than {say_duration(objectives.oldest_s)}",
        "oldest-too-old",
        name,
    )
    missed = f'sum by (channel) (increase(sendonce_window_total{{{only}, kept="no"}}[1h]))'
    every = f"sum by (channel) (increase(sendonce_window_total{{{only}}}[1h]))"
    yield Rule(
        "SendonceWindowMissed",
        f"({missed}) / ({every}) > {1 - objectives.kept:g}",
        300,
        PAGE_,
        f"on {name} more than {1 - objectives.kept:.2%} of the last hour were accepted later than "
        f"{say_duration(objectives.accepted_s)} after they were due",
        "window-missed",
        name,
    )
    yield Rule(
        "SendonceWindowWillBeMissed",
        f"max by (channel, account) (sendonce_forecast_missed_deliveries{{{only}}}) > 0",
        300,
        TICKET,
        f"by the forecast, deliveries on {name} will miss their window within a day",
        "window-will-be-missed",
        name,
    )
    yield Rule(
        "SendonceAttemptsExhausted",
        f'sum by (channel) (increase(sendonce_dispositions_total{{{only}, state="dead"}}[15m])) > 0',
        0,
        TICKET,
        f"deliveries on {name} failed too often and are dead",
        "attempts-exhausted",
        name,
    )
    waits = f'sendonce_unresolved_oldest_age_seconds{{{only}, state=~"dead|rejected"}}'
    yield Rule(
        "SendonceDeadLettersWait",
        f"max by (channel, account) ({waits}) > {objectives.recovered_s:g}",
        0,
        TICKET,
        f"a dead letter on {name} waits for longer than {say_duration(objectives.recovered_s)}",
        "dead-letters-wait",
        name,
    )
    doubt = f'sendonce_unresolved_oldest_age_seconds{{{only}, state="uncertain"}}'
    yield Rule(
        "SendonceUncertainWaits",
        f"max by (channel, account) ({doubt}) > {objectives.recovered_s:g}",
        0,
        PAGE_,
        f"an uncertain delivery on {name} waits for longer than {say_duration(objectives.recovered_s)}",
        "uncertain-waits",
        name,
    )
    yield Rule(
        "SendonceGateClosed",
        f'max by (channel, account) (sendonce_gate_state{{{only}, state="closed"}}) == 1',
        round(GATE_CLOSED_S),
        PAGE_,
        f"the gate of an account on {name} has been closed for {say_duration(GATE_CLOSED_S)}",
        "gate-closed",
        name,
    )


def _installation() -> Iterator[Rule]:
    yield Rule(
        "SendoncePassGap",
        f"time() - max(sendonce_published_until_timestamp_seconds) > {PASS_GAP_S:g}",
        60,
        PAGE_,
        f"nothing was published for {say_duration(PASS_GAP_S)}: no scheduler runs, or it is paused",
        "pass-gap",
    )
    yield Rule(
        "SendonceStoreHeld",
        "max(sendonce_store_held) == 1",
        0,
        PAGE_,
        "the store may have lost what was written last, and sends nothing",
        "store-held",
    )
    yield Rule(
        "SendonceDuplicates",
        'sum(increase(sendonce_events_total{event="proven_alarm"}[1h])) > 0',
        0,
        PAGE_,
        "a provider sent what the record says was not sent",
        "duplicates",
    )
    yield Rule(
        "SendonceNotSealed",
        f"max(sendonce_seal_age_seconds) > {SEAL_AGE_S:g} and "
        "(max(sendonce_unsealed_entries) > 0 or max(sendonce_unsealed_acts) > 0)",
        60,
        TICKET,
        f"ledger entries, or acts of the audit, wait to be sealed for {say_duration(SEAL_AGE_S)}",
        "not-sealed",
    )
    yield Rule(
        "SendonceSilent",
        "absent(sendonce_oldest_age_seconds)",
        120,
        PAGE_,
        "no process shows what waits: they are down, cannot reach the store, or are not scraped",
        "silent",
    )


def rules_text(policy: Policy, *, runbook: str, field: str = "runbook") -> str:
    """A rules file for Prometheus. `runbook`: the address of an alert's page, `{page}` for its name.

    Raises `InvalidInput` where that could not be told apart, or is no line of text.
    """
    if PAGE_NAME not in runbook or not runbook.isprintable():
        raise InvalidInput(
            f"{field} {runbook!r:.200} must be one line that holds {PAGE_NAME}, where each alert's own page "
            f"goes: write https://wiki.example.com/sendonce/{PAGE_NAME}",
            field=field,
        )
    lines = ["# Made by `sendonce slo rules` from the objectives of sendonce.toml.", "groups:"]
    lines += ["  - name: sendonce", "    rules:"]
    for rule in rules(policy):
        lines += [
            f"      - alert: {rule.alert}",
            f"        expr: {json.dumps(rule.expression)}",
            *([f"        for: {rule.for_s}s"] if rule.for_s else []),
            "        labels:",
            f"          severity: {rule.severity}",
            *([f"          channel: {rule.channel}"] if rule.channel else []),
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
            f"          runbook_url: {json.dumps(runbook.replace(PAGE_NAME, rule.page))}",
        ]
    return "\n".join(lines) + "\n"
