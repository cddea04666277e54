"""A short crash run on PostgreSQL: everything is killed, stopped or restarted once or more, and no promise
is broken. `make crash` does the same for as long as one likes, on either store."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from tests.crash.faults import WEIGHTS, Act, Fault, faults, is_long
from tests.crash.run import Counts, Options, run, world
from tests.crash.verdict import judge

SEED = 23
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
    assert course.long_pauses >= 1
    assert course.struck[Act.RESTART] >= 1
    assert {one.label for one in course.recovered} >= {"worker killed", "worker stopped", "server restarted"}


def first(seed: int, *, restarts: bool = True) -> list[Fault]:
    return list(islice(faults(seed, every_s=2.0, lease_s=5.0, restarts=restarts), 300))


def test_the_same_seed_gives_the_same_faults() -> None:
    assert first(7) == first(7)
    assert first(7) != first(8)
    assert {(fault.act, fault.role) for fault in first(7)} == set(WEIGHTS), "every kind comes"
    assert Act.RESTART not in {fault.act for fault in first(7, restarts=False)}
    pauses = [fault for fault in first(7) if fault.act is Act.PAUSE]
    assert min(fault.lasts_s for fault in pauses) > 5.0
    assert len(pauses) / 2 < sum(is_long(fault, 5.0) for fault in pauses) < len(pauses)


def test_a_run_by_counts_lasts_until_there_are_as_many() -> None:
    wanted = Counts(kills=500, long_pauses=200)
    assert Counts().lacks(wanted) == "500 kills, 200 long pauses"
    assert Counts(500, 199, 7).lacks(wanted) == "1 long pauses"
    assert Counts(501, 200).lacks(wanted) == ""
    assert (Counts().asked, wanted.asked) == (False, True)
