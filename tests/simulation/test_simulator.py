"""The simulator's own parts: dice, coverage, shrinking, and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

import pytest

from sendonce.cli.exits import Exit
from sendonce.cli.main import main
from sendonce.core.lifecycle import GUARDS, TABLE, Effect, Event, Guard, State
from sendonce.testing.simulator import PROFILES, Coverage, Fault, Outcome, Profile, run_seed, shrink
from sendonce.testing.simulator.checks import Broken, Counts
from sendonce.testing.simulator.coverage import CLASSES, items, name_of
from sendonce.testing.simulator.faults import Dice, Struck

# Dice


def dice(without: Set[str] = frozenset(), *, seed: int = 1) -> Dice:
    return Dice(seed, Profile("p", {Fault.CRASH: 0.5, Fault.PAUSE: 0.3}, share=1.0), without, lambda: 1.0)


def test_a_draw_depends_on_its_place_and_not_on_what_was_drawn_elsewhere() -> None:
    one, other = dice(), dice()
    for _ in range(7):
        other.chance("elsewhere")
    assert [one.chance("here") for _ in range(5)] == [other.chance("here") for _ in range(5)]
    assert dice(seed=2).chance("here") != dice().chance("here")
    drawn = [one.chance("many") for _ in range(2_000)]
    assert 0.0 <= min(drawn) < 0.01
    assert 0.99 < max(drawn) < 1.0


def test_a_fault_left_out_leaves_the_others_where_they_were() -> None:
    whole = dice()
    struck = [whole.strikes(Fault.CRASH, "here") for _ in range(20)]
    left_out = whole.struck[3].id
    rest = dice({left_out})
    again = [rest.strikes(Fault.CRASH, "here") for _ in range(20)]
    assert sum(struck) - sum(again) == 1
    assert [each.id for each in rest.struck] == [each.id for each in whole.struck if each.id != left_out]


def test_faults_that_exclude_each_other_strike_by_their_share() -> None:
    many = dice()
    struck = [many.which((Fault.CRASH, Fault.PAUSE), "here") for _ in range(2_000)]
    assert 900 < struck.count(Fault.CRASH) < 1_100
    assert 500 < struck.count(Fault.PAUSE) < 700
    many.striking = False
    assert many.which((Fault.CRASH, Fault.PAUSE), "here") is None
    assert not many.strikes(Fault.CRASH, "here", weight=100.0)


def test_the_standard_profile_has_every_fault_and_calm_has_none() -> None:
    assert set(PROFILES["standard"].chances) == set(Fault)
    assert set(PROFILES["storm"].chances) == set(Fault)
    assert not PROFILES["calm"].chances


# Coverage

IN_DOUBT = frozenset(
    {
        State.SCHEDULED,  # where the store may have lost that it was published and tried
        State.QUEUED,
        State.SENDING,
        State.RECONCILING,
        State.UNCERTAIN,
        State.ASSUMED_SENT,
        State.NOT_SENT,
    }
)


def test_every_rule_of_the_table_is_an_item_but_for_proofs_of_a_broken_promise() -> None:
    every = set(items())
    for rule in TABLE:
        found = {
            source
            for source in rule.sources
            for class_ in ("-", *CLASSES)
            if name_of(rule, source, class_) in every
        }
        missing = rule.sources - found
        if rule.event is Event.PROVEN:
            # Only where something may have been sent can a proof of it arrive.
            assert missing == rule.sources - IN_DOUBT
            assert Effect.ALARM not in rule.effects or found == {State.NOT_SENT}
        else:
            assert not missing, name_of(rule, next(iter(missing)), "K")


def test_a_percentage_counts_what_there_is_to_hit() -> None:
    coverage = Coverage()
    every = list(items())
    assert (coverage.percent(), coverage.missing()) == (0, every)
    coverage.add(dict.fromkeys(every, 1))
    assert (coverage.percent(), coverage.missing()) == (100, [])
    coverage.hit[every[0]] = 0
    assert (coverage.percent(), coverage.missing()) == (99, [every[0]])


def test_a_handful_of_seeds_goes_to_many_places_and_to_none_that_is_not_known() -> None:
    total = Coverage()
    profile = replace(PROFILES["storm"], deliveries=60, active_s=20.0)
    for seed in range(1, 5):
        total.add(run_seed(seed, profile).hit)
    assert total.percent() >= 33
    assert set(total.hit) <= set(items()), "what was hit must be among what there is to hit"


# Shrinking


def outcome(struck: list[str], kinds: list[str], deliveries: int) -> Outcome:
    return Outcome(
        seed=1,
        asked=30,
        profile="p",
        counts=Counts(deliveries),
        crashes=0,
        pauses=0,
        virtual_s=1.0,
        broken=tuple(Broken(kind, "it", 2.0) for kind in kinds),
        struck=tuple(Struck(id_, Fault.CRASH, 1.0, id_) for id_ in struck),
        story=(),
        hit={},
        digest="",
    )


def test_shrinking_leaves_what_is_needed_and_nothing_else() -> None:
    """It breaks by fault 13 together with fault 40 on delivery 17; whatever else there is."""
    faults = [f"fault {number}" for number in range(64)]

    def run(seed: int, profile: Profile, without: Set[str]) -> Outcome:
        struck = [each for each in faults if each not in without]
        left = [number for number in range(30) if f"delivery {number}" not in without]
        breaks = {"fault 13", "fault 40"} <= set(struck) and 17 in left
        return outcome(struck, ["duplicate"] if breaks else [], len(left))

    profile = Profile("p", deliveries=30)
    trials: list[int] = []
    found = shrink(run(1, profile, frozenset()), profile, run=run, progress=trials.append, trials_max=400)
    assert [struck.id for struck in found.outcome.struck] == ["fault 13", "fault 40"]
    assert found.outcome.counts.deliveries == 1
    assert trials == list(range(1, found.trials + 1))
    text = "\n".join(found.lines())
    assert "fault 13" in text
    assert "duplicate: it" in text


def test_shrinking_stops_when_its_trials_are_used_up_and_never_takes_another_failure() -> None:
    def run(seed: int, profile: Profile, without: Set[str]) -> Outcome:
        return outcome([f"fault {n}" for n in range(9)], ["lost"] if without else ["duplicate"], 5)

    found = shrink(
        run(1, Profile("p", deliveries=5), frozenset()), Profile("p", deliveries=5), run=run, trials_max=7
    )
    assert found.trials == 7
    assert found.without == frozenset()
    assert found.outcome.broken[0].kind == "duplicate"


# The command


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["simulate", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


LINE = re.compile(
    r"simulate: seeds=2 deliveries=20 crashes=\d+ pauses=\d+ uncertain=\d+ lost=0 duplicates=0 "
    r"cancelled_yet_sent=0 over_limit=0 coverage=\d+%"
)


def test_the_command_ends_with_the_line_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "--seeds", "1-2", "--deliveries", "10", "--jobs", "1", "--store", "file")
    assert code == Exit.OK
    assert LINE.fullmatch(out.splitlines()[-1])


def test_for_programs_it_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(
        capsys, "--seeds", "3", "--deliveries", "10", "--jobs", "1", "--faults", "calm", "--json"
    )
    answer: dict[str, Any] = json.loads(out)
    assert code == Exit.OK
    assert (answer["seeds"], answer["deliveries"], answer["failed"]) == (1, 10, [])
    assert sum(answer["states"].values()) == 10


def test_a_seed_that_fails_says_how_to_run_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, forget_the_table: Callable[[], None]
) -> None:
    """As it does where the mark `maybe` is not heeded: what was cancelled may be sent."""
    faults = {Fault.CANCEL: 0.3, Fault.LOST_RESPONSE: 0.5}
    monkeypatch.setitem(PROFILES, "these", Profile("these", faults, share=1.0, deliveries=40, active_s=15.0))
    monkeypatch.setitem(GUARDS, Guard.NOT_MAYBE, lambda standing, facts: True)
    forget_the_table()
    arguments = ("--seeds", "1", "--faults", "these", "--jobs", "1", "--no-shrink")
    code, out, _ = ran(capsys, *arguments)
    assert code == Exit.PARTLY
    assert "again: sendonce simulate --seeds 1 --faults these" in out
    assert re.search(r"cancelled_yet_sent=[1-9]", out)
    assert "seeds that fail: 1" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "9-1"], "from the lower number to the higher"),
        (["--seeds", "x"], "two numbers"),
        (["--seeds", "1-"], "two numbers"),
        (["--faults", "mild"], "calm, standard, storm, beyond"),
        (["--store", "disk"], "memory or file"),
    ],
)
def test_what_it_cannot_do_it_says(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, out, err = ran(capsys, *arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert said in err
