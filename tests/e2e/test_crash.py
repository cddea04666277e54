"""A short crash run on PostgreSQL: everything is killed, stopped or restarted once or more, and no promise
is broken. `make crash` does the same for as long as one likes, on either store."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from tests.crash.faults import WEIGHTS, Act, Fault, faults
from tests.crash.run import Options, run, world
from tests.crash.verdict import judge

SEED = 194
MINUTES = 0.25
EVERY_S = 1.5


def test_a_short_crash_run_keeps_every_promise(tmp_path: Path) -> None:
    options = Options(MINUTES, "postgresql", SEED, EVERY_S, tmp_path)
    with ExitStack() as stack:
        place = world(stack, options)
        course = run(options, place, lambda text: None)
        verdict = judge(options, place, course)
        assert place.taken() >= 100
    assert verdict.problems == []
    assert isinstance(verdict.figures["blocks"], int)
    assert verdict.figures["blocks"] >= 3, "the ledger was sealed all the while"
    # It is no proof that nothing went wrong when nothing did.
    assert course.struck[Act.KILL] >= 3
    assert course.struck[Act.PAUSE] >= 1
    assert course.struck[Act.RESTART] >= 1
    assert {one.label for one in course.recovered} >= {"worker killed", "worker stopped", "server restarted"}


def first(seed: int, *, restarts: bool = True) -> list[Fault]:
    return list(islice(faults(seed, every_s=2.0, lease_s=5.0, restarts=restarts), 300))


def test_the_same_seed_gives_the_same_faults() -> None:
    assert first(7) == first(7)
    assert first(7) != first(8)
    assert {(fault.act, fault.role) for fault in first(7)} == set(WEIGHTS), "every kind comes"
    assert Act.RESTART not in {fault.act for fault in first(7, restarts=False)}
    assert min(fault.lasts_s for fault in first(7) if fault.act is Act.PAUSE) > 5.0
