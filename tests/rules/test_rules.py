"""The alert rules, judged by Prometheus' own promtool (`make test-rules`): it takes the file, and each alert
comes when it should, stays away just below, and goes.

Each case is a story in minutes, scraped from two processes: what comes from the store is the same in both,
what a process counts is its own. A counter begins at 0, as it is shown (`pipeline.tally`): Prometheus sees no
increase in the first value there is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from sendonce.core.alert import Rule, rules, rules_text
from sendonce.metrics import METRICS, Of
from tests.integration.world import account_of, policy_of

PATH: Final = "SENDONCE_PROMTOOL"
WITHIN_S: Final = 60
RUNBOOK: Final = "https://runbook.example.com/{page}"
POLICY: Final = policy_of(account_of("K"), account_of("N"))
RULES: Final = rules(POLICY)
PROCESSES: Final = ("a:8081", "b:8081")

OLDEST = 'sendonce_oldest_age_seconds{channel="sms"}'
TEXTS = 'channel="sms",account="sms-K"'
KEPT = 'sendonce_window_total{channel="sms",kept="yes"}'
MISSED = 'sendonce_window_total{channel="sms",kept="no"}'
DEAD = 'sendonce_dispositions_total{channel="sms",state="dead"}'
DEAD_AGE = f'sendonce_unresolved_oldest_age_seconds{{{TEXTS},state="dead"}}'
DOUBT_AGE = f'sendonce_unresolved_oldest_age_seconds{{{TEXTS},state="uncertain"}}'
CLOSED = f'sendonce_gate_state{{{TEXTS},state="closed"}}'
PAUSED = f'sendonce_gate_state{{{TEXTS},state="paused"}}'
MISSES = f"sendonce_forecast_missed_deliveries{{{TEXTS}}}"
PROVEN = 'sendonce_events_total{event="proven_alarm"}'
MARK = "sendonce_published_until_timestamp_seconds"
HELD = "sendonce_store_held"
SEAL_AGE = "sendonce_seal_age_seconds"
UNSEALED = "sendonce_unsealed_entries"
ACTS = "sendonce_unsealed_acts"


@dataclass(frozen=True)
class Case:
    """`series`: what is scraped each minute, as promtool writes it; `fires` and `quiet`: at these minutes."""

    alert: str
    series: Mapping[str, str]
    fires: Sequence[int] = ()
    quiet: Sequence[int] = ()


CASES: Final = (
    # 900 s is still well; older for a minute, it fires, and no more once it moves.
    Case("SendonceOldestTooOld", {OLDEST: "0+60x20 0x10"}, fires=[17, 20], quiet=[15, 16, 21]),
    Case("SendonceOldestTooOld", {OLDEST: "900x30"}, quiet=[5, 30]),
    # One in fifty is more than one in a hundred; with nothing in the last hour there is no share of it.
    Case("SendonceWindowMissed", {KEPT: "0+98x20 1960x90", MISSED: "0+2x20 40x90"}, fires=[9], quiet=[3, 99]),
    Case("SendonceWindowMissed", {KEPT: "0+995x60", MISSED: "0+5x60"}, quiet=[10, 60]),
    Case("SendonceWindowMissed", {KEPT: "0x60", MISSED: "0x60"}, quiet=[10, 60]),
    # The first that is ever late, of few.
    Case("SendonceWindowMissed", {KEPT: "0x10 3x30", MISSED: "0x10 1x30"}, fires=[17], quiet=[9]),
    Case("SendonceWindowWillBeMissed", {MISSES: "0x5 3x20 0x5"}, fires=[12, 25], quiet=[5, 9, 28]),
    # A single one, for a quarter of an hour; a process that starts again died of nothing.
    Case("SendonceAttemptsExhausted", {DEAD: "0x10 1x40"}, fires=[11, 24], quiet=[10, 27]),
    Case("SendonceAttemptsExhausted", {DEAD: "0x40"}, quiet=[20, 40]),
    Case("SendonceAttemptsExhausted", {DEAD: "7x10 0x30"}, quiet=[11, 25]),
    Case("SendonceDeadLettersWait", {DEAD_AGE: "86340+60x10 0x5"}, fires=[2, 10], quiet=[1, 11]),
    Case("SendonceUncertainWaits", {DOUBT_AGE: "86340+60x10 0x5"}, fires=[2, 10], quiet=[1, 11]),
    # Closed for a quarter of an hour without a break; a pause is somebody's own.
    Case("SendonceGateClosed", {CLOSED: "0x5 1x30 0x5"}, fires=[21, 35], quiet=[5, 20, 37]),
    Case("SendonceGateClosed", {CLOSED: "1x10 0 1x10"}, quiet=[10, 21]),
    Case("SendonceGateClosed", {CLOSED: "0x60", PAUSED: "1x60"}, quiet=[30, 60]),
    Case("SendoncePassGap", {MARK: "0+60x10 600x20"}, fires=[17, 30], quiet=[10, 15]),
    Case("SendonceStoreHeld", {HELD: "0x3 1x5 0x3"}, fires=[4, 8], quiet=[3, 10]),
    Case("SendonceDuplicates", {PROVEN: "0x10 1x90"}, fires=[11, 60], quiet=[10, 75]),
    Case("SendonceNotSealed", {SEAL_AGE: "3540+60x20", UNSEALED: "5x10 0x10"}, fires=[3, 10], quiet=[1, 12]),
    Case("SendonceNotSealed", {SEAL_AGE: "7200x20", UNSEALED: "0x20", ACTS: "0x20"}, quiet=[20]),
    Case("SendonceNotSealed", {SEAL_AGE: "7200x20", ACTS: "0x9 1x9"}, fires=[13], quiet=[9]),
    Case("SendonceSilent", {OLDEST: "0x5"}, fires=[13], quiet=[5, 10]),
)  # fmt: skip


@pytest.fixture(scope="session")
def promtool() -> str:
    """Where it is, or how to get it: nothing here is skipped."""
    found = os.environ.get(PATH) or shutil.which("promtool")
    if not found or not os.access(found, os.X_OK):
        pytest.fail(
            f"there is no promtool{f' at {found}' if found else ''}: it comes with Prometheus (Debian and "
            f"Ubuntu: apt-get install prometheus; macOS: brew install prometheus), or name it with {PATH}"
        )
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rules")
    (made / "sendonce.rules.yml").write_text(rules_text(POLICY, runbook=RUNBOOK), encoding="utf-8")
    return made


def judged(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_file(promtool: str, folder: Path) -> None:
    assert f"SUCCESS: {len(RULES)} rules found" in judged(
        promtool, "check", "rules", "sendonce.rules.yml", cwd=folder
    )


@pytest.mark.parametrize("case", CASES, ids=[f"{case.alert}-{number}" for number, case in enumerate(CASES)])
def test_an_alert_comes_when_it_should_and_only_then(promtool: str, folder: Path, case: Case) -> None:
    file = folder / f"{CASES.index(case)}.test.yml"
    file.write_text(json.dumps(_story(case)), encoding="utf-8")  # JSON is YAML
    assert "SUCCESS" in judged(promtool, "test", "rules", file.name, cwd=folder)


def test_each_alert_is_seen_to_come_and_to_stay_away() -> None:
    assert {rule.alert for rule in RULES} == {case.alert for case in CASES if case.fires}
    assert {rule.alert for rule in RULES} == {case.alert for case in CASES if case.quiet}


def test_what_is_scraped_is_what_is_shown() -> None:
    for series in (name for case in CASES for name in case.series):
        name, labels = _parts(series)
        assert set(labels) == set(METRICS[name].labels), series


def _story(case: Case) -> dict[str, Any]:
    return {
        "rule_files": ["sendonce.rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": series, "values": values}
                    for shown, values in case.series.items()
                    for series, values in _scraped(shown, values)
                ],
                "alert_rule_test": [
                    {
                        "eval_time": f"{minute}m",
                        "alertname": case.alert,
                        "exp_alerts": [_alert(case)] if minute in case.fires else [],
                    }
                    for minute in sorted((*case.fires, *case.quiet))
                ],
            }
        ],
    }


def _scraped(shown: str, values: str) -> list[tuple[str, str]]:
    """A series as each process shows it. What one process counts, the other has not seen."""
    name, labels = _parts(shown)
    if METRICS[name].of is Of.STORE:
        return [(_series(name, labels, process), values) for process in PROCESSES]
    counting, idle = PROCESSES
    return [(_series(name, labels, counting), values), (_series(name, labels, idle), "0x120")]


def _parts(series: str) -> tuple[str, dict[str, str]]:
    return series.partition("{")[0], dict(re.findall(r'(\w+)="([^"]*)"', series))


def _series(name: str, labels: Mapping[str, str], process: str) -> str:
    given = {**labels, "instance": process, "job": "sendonce"}
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in given.items())}}}"


def _alert(case: Case) -> dict[str, Any]:
    """As it reaches whoever is on duty: with the labels of its rule, and of the account where it is one's."""
    of_texts = {rule.alert: rule for rule in RULES if rule.channel in ("", "sms")}
    rule: Rule = of_texts[case.alert]
    labels = {"severity": rule.severity}
    if rule.channel:
        labels["channel"] = rule.channel
    if "by (channel, account)" in rule.expression:
        labels["account"] = "sms-K"
    return {
        "exp_labels": labels,
        "exp_annotations": {"summary": rule.summary, "runbook_url": RUNBOOK.replace("{page}", rule.page)},
    }
