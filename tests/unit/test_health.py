"""What makes a process ready, as a table: vital signs in, what it lacks and what it is about out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sendonce.core.health import Lack, Phase, Scheduling, Vitals, lacks_of, phase_of

WORKER = Vitals(
    works=True,
    stopping=False,
    beat_age_s=9.9,
    beat_failed=False,
    lease_s=30.0,
    open_calls=3,
    scheduling=None,
)
LEADING = Scheduling(leads=True, look_age_s=0.5, look_max_s=91.0)
LEADER = replace(WORKER, works=False, scheduling=LEADING)
WAITING = replace(LEADER, scheduling=replace(LEADING, leads=False))

CASES = {
    "a worker": (WORKER, Phase.WORKING, []),
    "a scheduler that leads": (LEADER, Phase.WORKING, []),
    "a scheduler that stands by": (WAITING, Phase.STANDING_BY, []),
    "both, and another one leads": (replace(WAITING, works=True), Phase.WORKING, []),
    "no beat yet": (replace(WORKER, beat_age_s=None), Phase.STARTING, [Lack.STARTING]),
    "no beat yet, and no store": (
        replace(WORKER, beat_age_s=None, beat_failed=True),
        Phase.STARTING,
        [Lack.STARTING, Lack.STORE_AWAY],
    ),
    "no look yet": (
        replace(LEADER, scheduling=replace(LEADING, look_age_s=None)),
        Phase.STARTING,
        [Lack.STARTING],
    ),
    "a worker that has not looked yet": (
        replace(LEADER, works=True, scheduling=replace(LEADING, look_age_s=None)),
        Phase.STARTING,
        [Lack.STARTING],
    ),
    "asked to stop": (replace(WORKER, stopping=True), Phase.DRAINING, [Lack.STOPPING]),
    "asked to stop at once": (
        replace(WORKER, stopping=True, beat_age_s=None),
        Phase.DRAINING,
        [Lack.STOPPING, Lack.STARTING],
    ),
    "a beat that failed": (replace(WORKER, beat_failed=True), Phase.WORKING, [Lack.STORE_AWAY]),
    "a lease with a moment left": (replace(WORKER, beat_age_s=29.9), Phase.WORKING, []),
    "a lease that is over": (replace(WORKER, beat_age_s=30.0), Phase.WORKING, [Lack.LEASE_OVER]),
    "a look just in time": (replace(LEADER, scheduling=replace(LEADING, look_age_s=91.0)), Phase.WORKING, []),
    "a look too long ago": (
        replace(LEADER, scheduling=replace(LEADING, look_age_s=91.1)),
        Phase.WORKING,
        [Lack.NO_LOOK],
    ),
    "all at once": (
        replace(WAITING, stopping=True, beat_failed=True, beat_age_s=31.0),
        Phase.DRAINING,
        [Lack.STOPPING, Lack.STORE_AWAY, Lack.LEASE_OVER],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_process_is_about_and_lacks(case: str) -> None:
    vitals, phase, lacks = CASES[case]
    assert (phase_of(vitals), list(lacks_of(vitals))) == (phase, lacks)


def test_what_is_left_of_a_lease_is_never_below_nothing() -> None:
    ages = (None, 0.0, 10.0, 30.0, 40.0)
    assert [replace(WORKER, beat_age_s=age).lease_left_s for age in ages] == [0.0, 30.0, 20.0, 0.0, 0.0]
