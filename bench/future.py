"""future: what a pass and a claim of 1,000 due deliveries cost beside a crowd, finished or not due yet.

The crowd is made of copies of two real deliveries, one due in a month and one accepted. Building it is not
measured. Then, in turns of 1,000: a pass publishes them, claims take them, and their outcomes are settled,
through the same code that a worker and a scheduler run. Compared is the median turn with a small crowd and
with the large one, in the same store.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from bench.crowd import beside, make_crowd
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, Subject, publish, sendonce
from sendonce.app import App
from sendonce.core.outcome import Accepted, Outcome
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.pipeline.claimer import claim
from sendonce.pipeline.settler import settle

SMALL: Final = 1_000
LARGE: Final = 500_000
FULL: Final = 2_000_000
MONTH_S: Final = 2_592_000
DUE: Final = 1_000
TURNS: Final = 7
SETTLED_AT_ONCE: Final = 64
STAGES: Final = ("pass", "claim", "settle")

FIGURES: Final = tuple(
    figure
    for stage in STAGES
    for figure in (
        Figure(f"{stage}_small", "ms", f"{stage} of 1,000, CPU, beside few", digits=1),
        Figure(f"{stage}_large", "ms", f"{stage} of 1,000, CPU, beside the crowd", digits=1),
        Figure(f"{stage}_cpu_ratio", "x", f"{stage}: CPU, crowd to few", digits=2, at_most=1.5),
        Figure(f"{stage}_time_ratio", "x", f"{stage}: time, crowd to few", digits=2, at_most=1.5),
    )
)


def run(scale: Scale) -> Mapping[str, float]:
    count = FULL if scale.full else LARGE
    with sendonce(Account("http://127.0.0.1:9/v1/messages", lanes=DUE), scale.store) as subject:
        patterns = _patterns(subject)
        _crowd(subject, patterns, SMALL, first=10_000_000)
        small = _turns(subject, "small")
        _crowd(subject, patterns, count - SMALL, first=20_000_000)
        large = _turns(subject, "large")
    figures: dict[str, float] = {}
    for stage in STAGES:
        (small_cpu, small_s), (large_cpu, large_s) = small[stage], large[stage]
        figures[f"{stage}_small"] = small_cpu * 1_000
        figures[f"{stage}_large"] = large_cpu * 1_000
        figures[f"{stage}_cpu_ratio"] = large_cpu / small_cpu
        figures[f"{stage}_time_ratio"] = large_s / small_s
    return figures


# The crowd


def _patterns(subject: Subject) -> tuple[int, int]:
    """The ids of a real delivery that is due in a month, and of one that was accepted."""
    with subject.open() as app:
        for name, due in (("future", "+720h"), ("finished", "now")):
            path = subject.rows_file(1, due=due)
            path.write_text(path.read_text("utf-8").replace("parcel-0", name), "utf-8")
            report = subject.take_in(app, path)
            assert report.deliveries == 1, report.problems
        publish(app)
        claims: list[Claim] = []
        claim_all(app, claims)
        settle_all(app, claims)
        (finished,) = claims
        (future,) = app.store.read(
            lambda tx: tx.deliveries.matching("reminder", {"tenant": "default", "reminder": "future"}, 1, 0)
        )
        return future.id, finished.delivery_id


def _crowd(subject: Subject, patterns: tuple[int, int], count: int, *, first: int) -> None:
    """`count` of each, with ids from `first` on, far above those that rows get by themselves."""
    database = beside(subject)
    future, finished = patterns
    make_crowd(database, future, count, first=first, spread_s=MONTH_S)
    make_crowd(database, finished, count, first=first + count)
    database.done()
    database.close()


# The turns


def _turns(subject: Subject, name: str) -> dict[str, tuple[float, float]]:
    """Median CPU and time of each stage, in seconds."""
    taken: dict[str, list[tuple[float, float]]] = {stage: [] for stage in STAGES}
    for turn in range(TURNS):
        path = subject.rows_file(DUE)
        path.write_text(path.read_text("utf-8").replace("parcel-", f"{name}-{turn}-"), "utf-8")
        with subject.open() as app:
            report = subject.take_in(app, path)
            assert report.deliveries == DUE, report.problems[:3]
            taken["pass"].append(_timed(partial(publish, app)))
            claims: list[Claim] = []
            taken["claim"].append(_timed(partial(claim_all, app, claims)))
            assert len(claims) == DUE, f"{len(claims)} of {DUE} claimed"
            taken["settle"].append(_timed(partial(settle_all, app, claims)))
    return {
        stage: (statistics.median(cpu for cpu, _ in turns), statistics.median(took for _, took in turns))
        for stage, turns in taken.items()
    }


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    cpu, begun = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - begun


def claim_all(app: App, claims: list[Claim]) -> None:
    account = app.policy.accounts["text"]
    while made := app.store.write(
        lambda tx: (
            claim(tx, account, app.policy, process=app.process, secret=app.store.secret, lead_us=2_000).claims
        )
    ).result():
        claims += made


def settle_all(app: App, claims: list[Claim], outcome: Outcome | None = None) -> None:
    """Accepted, where no other outcome is given."""
    outcomes = [
        Attempted(one, outcome or Accepted(f"m{one.delivery_id}", "http_202"), 1, 1) for one in claims
    ]
    for start in range(0, len(outcomes), SETTLED_AT_ONCE):
        group = outcomes[start : start + SETTLED_AT_ONCE]
        unit = partial(settle, attempts=group, policy=app.policy, process=app.process, chance=lambda: 0.5)
        app.store.write(unit).result()


MEASUREMENT: Final = Measurement(
    "future",
    f"{LARGE:,} future and as many finished reminders in the store (with --full {FULL:,}), against {SMALL:,}",
    FIGURES,
    run,
)
