"""Alert rules: one whole file; queries name metrics that exist, and never how much waits.

What Prometheus makes of them is tried in tests/rules."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from sendonce.cli import slo as cli
from sendonce.core.alert import Rule, rules, rules_text
from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput
from sendonce.core.objective import Kept, Objective, Objectives
from sendonce.metrics import METRICS, Histogram
from tests.integration.world import account_of, policy_of

OPERATE = Path(__file__).parents[2] / "docs" / "operate"
PAGES = {file.stem: file.read_text("utf-8") for file in sorted((OPERATE / "alerts").glob("*.md"))}
RUNBOOK = "https://runbook.example.com/{page}"
POLICY = policy_of(account_of("K"), account_of("N"))
RULES = rules(POLICY)


def named(alert: str, channel: str = "") -> Rule:
    return next(rule for rule in RULES if (rule.alert, rule.channel) == (alert, channel))


def test_the_file_is_whole() -> None:
    document: Any = yaml.safe_load(rules_text(POLICY, runbook=RUNBOOK))
    (group,) = document["groups"]
    assert set(document) == {"groups"}
    assert group["name"] == "sendonce"
    assert len(group["rules"]) == len(RULES)
    for made, rule in zip(group["rules"], RULES, strict=True):
        assert set(made) <= {"alert", "expr", "for", "labels", "annotations"}
        assert (made["alert"], made["expr"]) == (rule.alert, rule.expression)
        assert re.fullmatch(r"\d+s", made.get("for", "1s"))
        assert made["labels"]["severity"] in ("page", "ticket")
        assert made["annotations"]["runbook_url"] == f"https://runbook.example.com/{rule.page}"
        assert made["annotations"]["summary"] == rule.summary
    told_apart = [(rule.alert, rule.channel) for rule in RULES]
    assert len(set(told_apart)) == len(told_apart)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.alert}-{rule.channel}")
def test_each_query_is_one_and_names_metrics_with_labels_that_exist(rule: Rule) -> None:
    promql_parser.parse(rule.expression)
    found = re.findall(r"(sendonce_\w+)(?:\{([^}]*)\})?", rule.expression)
    assert found
    for name, labels in found:
        metric = METRICS[name]
        assert not isinstance(metric, Histogram)
        assert set(re.findall(r"(\w+)=", labels)) <= set(metric.labels)
        assert name not in ("sendonce_backlog_deliveries", "sendonce_unresolved_deliveries"), (
            "never raw depth"
        )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.alert}-{rule.channel}")
def test_each_alert_has_its_page_which_says_what_to_look_at_and_to_do(rule: Rule) -> None:
    page = PAGES[rule.page]
    title, kind, *_ = (line for line in page.splitlines() if line)
    assert title == f"# {rule.alert}"
    assert kind.startswith(f"**{rule.severity}**, ")
    assert ("for each channel" in kind) is bool(rule.channel)
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [
        "What it means", "Look", "Do", "Do not", "It ends",
    ]  # fmt: skip
    parts = re.split(r"^## .+\n", page, flags=re.MULTILINE)[1:]
    assert all(part.strip() for part in parts)


def test_every_alert_has_a_page_and_a_line_in_their_list_and_every_page_an_alert() -> None:
    alerts = {(rule.alert, rule.page, rule.severity) for rule in RULES}
    assert set(PAGES) == {page for _, page, _ in alerts}
    listed = (OPERATE / "alerts.md").read_text("utf-8")
    assert set(re.findall(r"^\| \[(\w+)\]\(alerts/(\S+)\.md\) \| (\w+) \|", listed, re.MULTILINE)) == alerts


def test_without_another_address_an_alert_names_its_page_in_this_repository() -> None:
    document: Any = yaml.safe_load(rules_text(POLICY, runbook=cli.RUNBOOK))
    named = {rule["annotations"]["runbook_url"] for rule in document["groups"][0]["rules"]}
    assert named == {f"docs/operate/alerts/{page}.md" for page in PAGES}


@pytest.mark.parametrize("runbook", ["", "https://wiki.example.com/alerts", "{page}\n- alert: x"])
def test_an_address_that_names_no_page_is_refused(runbook: str) -> None:
    with pytest.raises(InvalidInput, match=r"must be one line that holds \{page\}"):
        rules_text(POLICY, runbook=runbook)


def test_bounds_are_the_objectives_own() -> None:
    own = Objectives(oldest_s=120.0, recovered_s=7_200.0, kept=0.9)
    channels = {name: replace(each, objectives=own) for name, each in POLICY.channels.items()}
    made = {(rule.alert, rule.channel): rule for rule in rules(replace(POLICY, channels=channels))}
    assert made["SendonceOldestTooOld", "sms"].expression.endswith("> 120")
    assert made["SendonceUncertainWaits", "sms"].expression.endswith("> 7200")
    assert made["SendonceWindowMissed", "sms"].expression.endswith("> 0.1")
    assert 'channel="sms"' in named("SendonceOldestTooOld", "sms").expression
    assert {rule.channel for rule in RULES} == {"", *(channel.value for channel in Channel)}


def test_a_budget_is_a_count_and_a_share_is_a_share() -> None:
    assert Kept(Objective.ACCEPTED, 0, 0, 0.99).ok
    assert Kept(Objective.ACCEPTED, 100, 99, 0.99).ok
    assert not Kept(Objective.ACCEPTED, 100, 98, 0.99).ok
    assert Kept(Objective.DUPLICATES, 100, 99, 1).ok
    assert not Kept(Objective.DUPLICATES, 100, 98, 1).ok
