"""future: what a pass and a claim of 1,000 due deliveries cost beside a million that are not due yet.

The crowd is made of copies of one real reminder, delivery and ledger entry, each with ids, a customer
and an address of its own, due a month ahead. Building it is not measured. Then, in turns of 1,000: a pass
publishes them, claims take them, and their outcomes are settled, through the same code that a worker and
a scheduler run. Compared is the median turn with a small crowd and with the large one, in the same file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import apsw

from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, Subject, publish, sendonce
from sendonce.app import App
from sendonce.core.outcome import Accepted
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.pipeline.claimer import claim
from sendonce.pipeline.settler import settle

SMALL: Final = 1_000
LARGE: Final = 1_000_000
DUE: Final = 1_000
TURNS: Final = 7
SETTLED_AT_ONCE: Final = 128
STAGES: Final = ("pass", "claim", "settle")

FIGURES: Final = tuple(
    figure
    for stage in STAGES
    for figure in (
        Figure(f"{stage}_small", "ms", f"{stage} of 1,000, CPU, beside {SMALL:,}", digits=1),
        Figure(f"{stage}_large", "ms", f"{stage} of 1,000, CPU, beside {LARGE:,}", digits=1),
        Figure(f"{stage}_cpu_ratio", "x", f"{stage}: CPU, large to small", digits=2, at_most=1.5),
        Figure(f"{stage}_time_ratio", "x", f"{stage}: time, large to small", digits=2, at_most=1.5),
    )
)


def run(scale: Scale) -> Mapping[str, float]:
    with sendonce(Account("http://127.0.0.1:9/v1/messages", lanes=DUE)) as subject:
        pattern = _pattern(subject)
        _crowd(subject, pattern, SMALL, first_id=10_000_000)
        small = _turns(subject, "small")
        _crowd(subject, pattern, LARGE - SMALL, first_id=20_000_000)
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


def _pattern(subject: Subject) -> int:
    """The id of a real reminder, and of its one delivery, that the crowd is copied from."""
    with subject.open() as app:
        report = subject.take_in(app, subject.rows_file(1, due="+720h"))
        assert report.deliveries == 1, report.problems
        rows = app.store.read(
            lambda tx: tx.deliveries.matching("reminder", {"tenant": "default", "reminder": "parcel-0"}, 1, 0)
        )
        assert rows[0].id == rows[0].reminder_id, "the first of each"
        return rows[0].id


def _crowd(subject: Subject, pattern: int, count: int, *, first_id: int) -> None:
    """Copies of the pattern with ids from `first_id` on, far above those that rows get by themselves."""
    later = "+ n * 7919 % 2592000 * 1000000"  # all over a month, in no order
    tables = {
        "reminder": {
            "id": "n + :first",
            "reminder": "'crowd-' || (n + :first)",
            "customer": "'crowd-' || (n + :first)",
            "due_at": f"due_at {later}",
            "expires_at": f"expires_at {later}",
        },
        "delivery": {
            "id": "n + :first",
            "reminder_id": "n + :first",
            "key": "'crowd-' || (n + :first) || ':crowd-' || (n + :first) || ':sms'",
            "customer": "'crowd-' || (n + :first)",
            "address_tag": "lower(hex(randomblob(length(address_tag) / 2)))",
            "due_at": f"due_at {later}",
            "next_at": f"next_at {later}",
            "expires_at": f"expires_at {later}",
        },
        "ledger": {"id": "NULL", "delivery_id": "n + :first"},
    }
    connection = apsw.Connection(str(subject.folder / "bench.db"))
    connection.execute("PRAGMA synchronous = OFF")
    for start in range(0, count, 50_000):
        place = {"first": first_id, "pattern": pattern, "after": start, "upto": min(start + 50_000, count)}
        with connection:
            for table, changed in tables.items():
                names = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
                values = ", ".join(changed.get(name, name) for name in names)
                which = "delivery_id" if table == "ledger" else "id"
                connection.execute(
                    "WITH RECURSIVE crowd(n) AS"
                    " (SELECT :after + 1 UNION ALL SELECT n + 1 FROM crowd WHERE n < :upto)"
                    f" INSERT INTO {table} ({', '.join(names)}) SELECT {values}"
                    f" FROM crowd, {table} WHERE {table}.{which} = :pattern",
                    place,
                )
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


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
            taken["claim"].append(_timed(partial(_claim_all, app, claims)))
            assert len(claims) == DUE, f"{len(claims)} of {DUE} claimed"
            taken["settle"].append(_timed(partial(_settle_all, app, claims)))
    return {
        stage: (statistics.median(cpu for cpu, _ in turns), statistics.median(took for _, took in turns))
        for stage, turns in taken.items()
    }


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    cpu, begun = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - begun


def _claim_all(app: App, claims: list[Claim]) -> None:
    account = app.policy.accounts["text"]
    while made := app.store.write(
        lambda tx: (
            claim(tx, account, app.policy, process=app.process, secret=app.store.secret, lead_us=2_000).claims
        )
    ).result():
        claims += made


def _settle_all(app: App, claims: list[Claim]) -> None:
    outcomes = [Attempted(one, Accepted(f"m{one.delivery_id}", "http_202"), 1, 1) for one in claims]
    for start in range(0, len(outcomes), SETTLED_AT_ONCE):
        group = outcomes[start : start + SETTLED_AT_ONCE]
        unit = partial(settle, attempts=group, policy=app.policy, process=app.process, chance=lambda: 0.5)
        app.store.write(unit).result()


MEASUREMENT: Final = Measurement(
    "future",
    f"{LARGE:,} future reminders in the store, against {SMALL:,}",
    FIGURES,
    run,
    stores=("sqlite",),  # it fills its crowd by SQL of its own
)
