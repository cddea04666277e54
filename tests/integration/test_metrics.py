"""What a process shows to Prometheus, after work on both databases: it parses, is whole, and is true."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sendonce import metrics
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted, Outcome, Reason, Rejected, Throttled, ThrottleScope
from sendonce.exposition import STALE_S, Exposition
from sendonce.metrics import METRICS, Counter, Gauge, Histogram
from sendonce.pipeline.gauges import gauges
from sendonce.pipeline.tally import start_at_zero, tally
from tests.integration.world import World, account_of, policy_of

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
Values = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def shown(world: World) -> Values:
    exposition = Exposition(lambda: world.read(lambda tx: gauges(tx, world.policy)))
    exposition.look()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition.text().decode())
        for sample in family.samples
    }


def at(values: Values, name: str, **labels: str) -> float:
    return values.get((name, labelled(**labels)), 0.0)


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def settled(world: World, *outcomes: Outcome) -> None:
    """As a worker does: settle, then count."""
    made = world.settled(list(zip(world.claim(), outcomes, strict=True)))
    tally([each.attempt for each in made], made, world.policy)


def test_a_delivery_is_counted_once_whatever_comes_after_it() -> None:
    """A late outcome of an attempt that was given up, in the same group as that of another delivery."""
    world = World("K", "N")
    world.schedule("a")
    world.schedule("b", account="email-N")
    world.pass_()
    (late,), (other,) = world.claim(), world.claim("email-N")
    before = shown(world)
    for _ in range(2):
        made = world.settled([(other, Accepted("r-b")), (late, Accepted("r-a"))])
        tally([each.attempt for each in made], made, world.policy)
    after = shown(world)

    def grown(**labels: str) -> float:
        return at(after, "sendonce_dispositions_total", **labels) - at(
            before, "sendonce_dispositions_total", **labels
        )

    assert (grown(channel="sms", state="accepted"), grown(channel="email", state="accepted")) == (1, 1)
    assert [each.moved for each in made] == [False, False]


def test_what_stands_in_the_store_is_shown_as_it_is() -> None:
    world = World("K", "N")
    world.schedule("future", due_in_s=3_600)
    world.dead("dead")
    world.advance(50)
    world.uncertain("doubt", account="email-N")
    world.schedule("waits")
    world.pass_()
    world.schedule("due")
    world.write(lambda tx: tx.runs.audit("operator:ann", "limits", "sms-K", "slower", {}))
    world.advance(100)
    values = shown(world)
    sms = {"channel": "sms", "account": "sms-K"}
    assert at(values, "sendonce_backlog_deliveries", stage="ready", **sms) == 1
    assert at(values, "sendonce_backlog_deliveries", channel="sms", account="", stage="due") == 1
    assert at(values, "sendonce_oldest_age_seconds", channel="sms") == 100
    assert at(values, "sendonce_unresolved_deliveries", state="dead", **sms) == 1
    assert at(values, "sendonce_unresolved_oldest_age_seconds", state="dead", **sms) >= 150
    mail = {"channel": "email", "account": "email-N"}
    assert at(values, "sendonce_unresolved_oldest_age_seconds", state="uncertain", **mail) >= 100
    assert at(values, "sendonce_gate_state", state="open", **mail) == 1
    assert at(values, "sendonce_lanes", **mail) == 50
    assert at(values, "sendonce_published_until_timestamp_seconds") > 1_767_225_600
    assert at(values, "sendonce_unsealed_entries") > 0
    assert at(values, "sendonce_unsealed_acts") == 1
    assert at(values, "sendonce_store_held") == 0
    assert at(values, "sendonce_processes", role="worker") == 1


def test_a_closed_gate_is_shown_closed() -> None:
    world = World("K")
    world.schedule("r")
    world.pass_()
    settled(world, Throttled(ThrottleScope.RATE, "429", 60.0))
    values = shown(world)
    account = {"channel": "sms", "account": "sms-K"}
    assert at(values, "sendonce_gate_state", state="closed", **account) == 1
    assert at(values, "sendonce_gate_state", state="open", **account) == 0


def test_what_calls_came_to_is_counted_as_it_was() -> None:
    world = World("K")
    account = {"channel": "sms", "account": "sms-K"}
    before = shown(world)
    for number in range(3):
        world.schedule(f"r-{number}")
    world.pass_()
    settled(
        world, Accepted("a"), Rejected(Reason.BLOCKED, "403"), Throttled(ThrottleScope.RECIPIENT, "429", 1.0)
    )
    world.advance(30)
    settled(world, Accepted("b", "200", duplicate=True))
    after = shown(world)

    def grew(name: str, **labels: str) -> float:
        return at(after, name, **labels) - at(before, name, **labels)

    assert grew("sendonce_attempts_total", outcome="accepted", **account) == 2
    assert grew("sendonce_attempts_total", outcome="rejected", **account) == 1
    assert grew("sendonce_throttles_total", scope="recipient", **account) == 1
    assert grew("sendonce_retries_total", **account) == 1
    assert grew("sendonce_absorbed_repeats_total", **account) == 1
    assert grew("sendonce_dispositions_total", channel="sms", state=State.ACCEPTED.lower()) == 2
    assert grew("sendonce_dispositions_total", channel="sms", state="rejected") == 1
    assert grew("sendonce_window_total", channel="sms", kept="yes") == 2
    assert grew("sendonce_accept_lateness_seconds_count", channel="sms") == 2
    assert grew("sendonce_pacing_wait_seconds_count", **account) == 4
    assert grew("sendonce_publish_lateness_seconds_count", channel="sms") == 3
    assert grew("sendonce_passes_total", end="complete") == 1
    assert grew("sendonce_store_commit_seconds_count") > 5


def test_every_count_is_shown_before_there_is_one_to_count() -> None:
    """Else the first dead delivery, or the first duplicate, would be no increase and alarm nobody."""
    world = World(policy=policy_of(account_of("K", name="new")))
    metrics.RETRIES.add(("sms", "old"), 3)
    account = {"channel": "sms", "account": "new"}
    start_at_zero(world.policy)
    after = shown(world)
    assert at(after, "sendonce_retries_total", channel="sms", account="old") >= 3
    for outcome in ("accepted", "notstarted", "accounterror"):
        assert after["sendonce_attempts_total", labelled(**account, outcome=outcome)] == 0
    assert after["sendonce_throttles_total", labelled(**account, scope="quota")] == 0
    for name, labels in (
        ("sendonce_dispositions_total", {"channel": "sms", "state": "dead"}),
        ("sendonce_dispositions_total", {"channel": "any", "state": "expired"}),
        ("sendonce_window_total", {"channel": "email", "kept": "no"}),
        ("sendonce_events_total", {"event": "proven_alarm"}),
    ):
        assert (name, labelled(**labels)) in after
    counters = {metric for metric in METRICS.values() if isinstance(metric, Counter)} - {metrics.BUILD}
    assert all(metric.counts() for metric in counters)


def test_every_metric_is_documented_as_it_is_and_no_other() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \| (\w+) \| (.+?) \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    written = {name: rest for name, *rest in rows}
    for metric in METRICS.values():
        kind = "gauge" if metric is metrics.BUILD else metric.kind
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        row = [kind, labels, metric.of.value, metric.meaning]
        assert written.get(metric.name) == row, f"write: | `{metric.name}` | {' | '.join(row)} |"
    assert set(written) == set(METRICS)


def test_names_keep_the_conventions_and_labels_name_nobody() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"sendonce_[a-z_]+", name)
        assert isinstance(metric, Counter) == (name.endswith("_total") or metric is metrics.BUILD), name
        if isinstance(metric, Histogram):
            assert name.endswith("_seconds")
        if isinstance(metric, Gauge) and re.search("age|until|last", name):
            assert name.endswith("_seconds")
        assert set(metric.labels) <= {
            "channel", "account", "stage", "state", "scope", "role", "outcome", "end", "event", "version",
            "kept",
        }  # fmt: skip


def test_an_old_look_is_not_shown_for_a_new_one() -> None:
    world = World("K")
    clock = [0.0]
    looks: list[int] = []

    def seen() -> list[metrics.Sample]:
        looks.append(1)
        return world.read(lambda tx: gauges(tx, world.policy))

    exposition = Exposition(seen, clock=lambda: clock[0])
    assert b"sendonce_lanes{" not in exposition.text()
    exposition.look()
    exposition.look()
    assert len(looks) == 1
    assert b"sendonce_lanes{" in exposition.text()
    clock[0] += STALE_S + 1
    assert b"sendonce_lanes{" not in exposition.text()


def test_a_histogram_adds_up() -> None:
    histogram = Histogram("h_seconds", "Test.", ("a",), bounds=(0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(("x",), seconds)
    (spread,) = histogram.spreads().values()
    assert spread.buckets == [2, 1, 1]
    assert spread.total == pytest.approx(7.65)
