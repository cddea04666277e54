"""The tables of `make bench ARGS=peers`: nobody is left out, and a miss is shown as a miss."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.__main__ import parse
from bench.peers import NAMES
from bench.peers.own import contenders
from bench.peers.program import PEERS, PROGRAMS
from bench.peers.rounds import KILL, PACE, ROUNDS, Taken
from bench.peers.table import Comparison, Line


def ours(name: str = "sendonce-postgresql", **figures: float) -> Line:
    return Line(name, "sendonce on PostgreSQL", is_ours=True, runs=[Taken(figures)])


def peer(*runs: Taken, why_not: str = "") -> Line:
    return Line("celery", "Celery 5.7.0 on Redis", is_ours=False, runs=runs, why_not=why_not)


def row(comparison: Comparison, title: str) -> list[str]:
    line = next(line for line in comparison.markdown().splitlines() if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_what_could_not_be_measured_keeps_its_row_and_says_why() -> None:
    found = Comparison(PACE, [ours(rate=195.0), peer(why_not="there is no redis-server | here")])
    assert row(found, "Celery 5.7.0 on Redis")[1:] == [
        "",
        "not measured: there is no redis-server / here",
    ]
    assert found.json()["contenders"][1]["not_measured"] == "there is no redis-server | here"
    assert found.missed == []


def test_one_of_ours_that_could_not_be_measured_is_a_miss() -> None:
    line = Line("sendonce-sqlite", "sendonce on SQLite", is_ours=True, why_not="it fell over")
    assert Comparison(PACE, [line]).missed == ["sendonce on SQLite not measured"]


def test_a_figure_that_is_not_there_is_an_empty_cell() -> None:
    stuck = Taken({"lost": 1, "repeated": 0}, ["7 still open after 40 s"])
    found = Comparison(KILL, [ours(lost=0, repeated=9, recovered=12.34), peer(stuck)])
    assert row(found, "Celery 5.7.0 on Redis")[1:] == ["1", "0", "", "7 still open after 40 s"]
    assert row(found, "sendonce on PostgreSQL")[1:] == ["0", "9", "12.3", ""]


def test_several_runs_show_the_middle_or_the_worst_and_the_span() -> None:
    runs = [
        Taken({"rate": rate, "throttled": refused}, ["as ever"])
        for rate, refused in ((10.0, 3), (30.0, 0), (20.0, 1))
    ]
    found = Comparison(PACE, [peer(*runs)])
    assert row(found, "Celery 5.7.0 on Redis")[1:] == ["20 (10 to 30)", "3 (0 to 3)", "as ever"]
    figures = found.json()["contenders"][0]["figures"]
    assert figures["rate"]["runs"] == [10.0, 30.0, 20.0]
    assert figures["throttled"]["value"] == 3


def test_a_run_that_failed_after_others_does_not_hide_them() -> None:
    found = Comparison(PACE, [peer(Taken({"rate": 10.0}), why_not="TimeoutError: no call")])
    assert row(found, "Celery 5.7.0 on Redis")[1:] == ["10", "a further run failed: TimeoutError: no call"]


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({"worst_second": 200, "worst_100ms": 25, "used": 97.0, "throttled": 0}, []),
        (
            {"worst_second": 201, "worst_100ms": 25, "used": 97.0, "throttled": 0},
            ["most calls in any second"],
        ),
        (
            {"worst_second": 200, "worst_100ms": 26, "used": 96.9, "throttled": 1},
            ["most calls in any 100 ms", "of the limit used", "answers of 429"],
        ),
    ],
)
def test_what_we_miss_is_said(figures: dict[str, float], missed: list[str]) -> None:
    found = Comparison(PACE, [ours("sendonce-postgresql", **figures), peer(Taken({"worst_second": 400}))])
    assert found.missed == [f"sendonce on PostgreSQL: {what}" for what in missed]
    assert found.markdown().count("**missed**") == len(missed)
    assert [target["met"] for target in found.json()["targets"]].count(False) == len(missed)


def test_rate_and_cpu_are_held_against_the_best_peer() -> None:
    fast = peer(Taken({"rate_1": 2_000.0, "cpu_1": 0.7}))
    frugal = dataclasses.replace(fast, name="other", runs=[Taken({"rate_1": 900.0, "cpu_1": 0.5})])
    found = Comparison(ROUNDS["drain"], [ours(rate_1=5_000.0, cpu_1=0.2), fast, frugal])
    assert {each.aim.name: each.value for each in found.judged} == {"rate_ratio": 2.5, "cpu_ratio": 0.4}


def test_what_is_held_for_a_person_is_not_called_lost_but_must_not_be_repeated() -> None:
    held = ours("sendonce-postgresql-hold", lost=4, repeated=1, duplicates=0, left=0)
    assert Comparison(KILL, [held]).missed == ["sendonce on PostgreSQL: repeated calls"]


def test_without_a_peer_there_is_no_ratio() -> None:
    assert Comparison(ROUNDS["drain"], [ours(rate_1=5_000.0, cpu_1=0.2)]).judged == []


def test_everyone_has_a_name_of_its_own_pins_and_a_program() -> None:
    names = [*NAMES, *(own.name for own in contenders(["sqlite", "postgresql"]))]
    assert len(set(names)) == len(names)
    for each in PEERS:
        assert all("==" in package or "@" in package for package in each.packages), each.name
        assert each.title.split()[1][0].isdigit(), each.title
        programs = [path for path in Path(PROGRAMS).iterdir() if path.stem == f"{each.program}_program"]
        assert len(programs) == 1, each.name


def test_rounds_and_peers_are_chosen_by_name() -> None:
    asked = parse(["peers", "--round", "kill", "--round", "pace", "--peer", "dbos"])
    assert (asked.names, asked.round, asked.peer) == (["peers"], ["kill", "pace"], ["dbos"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["peers", "--round", "sprint"], "sprint"),
        (["peers", "--peer", "cron"], "cron"),
        (["drain", "--round", "kill"], "belong to `peers`"),
        (["races"], "'races' is not measured"),
        (["peers", "--runs", "0"], "--runs must be at least 1"),
    ],
)
def test_what_is_not_known_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
