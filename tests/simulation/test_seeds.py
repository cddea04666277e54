"""Seeds: what must hold, holds; and the same seed is the same run, to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sendonce.testing.simulator import PROFILES, Fault, Profile, run_seed


def small(name: str) -> Profile:
    return replace(PROFILES[name], deliveries=40, active_s=15.0)


@pytest.mark.parametrize("name", ["standard", "storm"])
@pytest.mark.parametrize("seed", range(1, 9))
def test_what_must_hold_holds(name: str, seed: int) -> None:
    outcome = run_seed(seed, small(name))
    assert outcome.broken == ()
    counts = outcome.counts
    assert (counts.lost, counts.duplicates, counts.cancelled_yet_sent, counts.over_limit) == (0, 0, 0, 0)
    assert sum(counts.states.values()) == counts.deliveries > 0
    assert outcome.struck, "nothing went wrong, so nothing was shown"


@pytest.mark.parametrize("seed", range(1, 7))
def test_where_nothing_goes_wrong_nothing_is_in_doubt(seed: int) -> None:
    outcome = run_seed(seed, small("calm"))
    assert outcome.broken == ()
    assert outcome.struck == ()
    assert set(outcome.counts.states) <= {"ACCEPTED", "EXPIRED"}
    assert outcome.counts.states["ACCEPTED"] >= 30


ONE = """
from dataclasses import replace
from sendonce.testing.simulator import PROFILES, run_seed
print(run_seed(7, replace(PROFILES["storm"], deliveries=40, active_s=15.0)).digest)
"""


def test_the_same_seed_is_the_same_run_to_the_byte(tmp_path: Path) -> None:
    """In other processes, with other hashes of strings; and on a file."""
    digests = {run_seed(7, small("storm")).digest, run_seed(7, small("storm"), path=tmp_path / "a.db").digest}
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        ran = subprocess.run(
            [sys.executable, "-c", ONE], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(ran.stdout.strip())
    assert len(digests) == 1
    assert run_seed(8, small("storm")).digest not in digests


def test_what_is_left_out_does_not_happen_and_the_rest_stays() -> None:
    whole = run_seed(2, small("storm"))
    crash = next(struck for struck in whole.struck if struck.fault is Fault.CRASH)
    without = run_seed(2, small("storm"), without={crash.id, "delivery 3"})
    assert crash.id not in {struck.id for struck in without.struck}
    assert without.counts.deliveries == whole.counts.deliveries - 1
    before = [struck.id for struck in whole.struck if struck.at_s < 1.0 and "r3:" not in struck.what]
    assert set(before) - {crash.id} <= {struck.id for struck in without.struck}
