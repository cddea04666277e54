"""The crew: answers in order and complete, whatever becomes of the hands; nobody is left behind."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest

from sendonce.runtime import crew as module
from sendonce.runtime.crew import AHEAD, HANDS_MAX, Crew, idle_cores
from tests import crew_work


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a hand that starts, so that tests know who does the work."""
    ready = module._Hand.ready

    def waiting(hand: module._Hand) -> bool:
        if not hand._started and not hand._lost:
            select.select([hand._from], [], [])
        return ready(hand)

    monkeypatch.setattr(module._Hand, "ready", waiting)


def all_of(crew: Crew, chunks: Any, here: Callable[[Any], Any], pack: Any = lambda chunk: chunk) -> list[Any]:
    return list(crew.each(chunks, here=here, pack=pack, unpack=lambda chunk, answer: answer))


@pytest.mark.parametrize("hands", [1, 2])
def test_answers_come_in_order_and_from_the_hands(hands: int) -> None:
    with Crew(crew_work.doubling, 5, hands=hands) as crew:
        answers = all_of(crew, range(40), lambda number: pytest.fail("it was not done by a hand"))
    assert [answer for _, answer in answers] == [2 * number + 5 for number in range(40)]
    workers = {pid for pid, _ in answers}
    assert len(workers) == hands
    assert os.getpid() not in workers


def test_without_hands_all_is_done_here() -> None:
    with Crew(crew_work.doubling, 5, hands=0) as crew:
        assert all_of(crew, range(3), lambda number: number) == [0, 1, 2]


@pytest.mark.parametrize("hands", [1, 2])
@pytest.mark.parametrize("at", [0, 1, 7, 19])
def test_what_a_killed_hand_had_is_done_here(hands: int, at: int) -> None:
    with Crew(crew_work.dying, at, hands=hands) as crew:
        answers = all_of(crew, range(20), lambda number: (os.getpid(), 2 * number))
    assert [answer for _, answer in answers] == [2 * number for number in range(20)]
    assert answers[at][0] == os.getpid()


def test_a_hand_that_does_not_start_is_done_without() -> None:
    with Crew(crew_work.refusing, None, hands=2) as crew:
        assert all_of(crew, range(5), lambda number: number) == [0, 1, 2, 3, 4]


def test_no_process_to_be_had_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **options: object) -> None:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(subprocess, "Popen", refused)
    with Crew(crew_work.doubling, 5, hands=2) as crew:
        assert all_of(crew, range(3), lambda number: number) == [0, 1, 2]


def test_what_raises_in_a_hand_raises_here(capfd: pytest.CaptureFixture[str]) -> None:
    """In its place, after the answers before it; and says nothing over there, where data might show."""

    def here(number: int) -> tuple[int, int]:
        raise LookupError(number)

    with Crew(crew_work.raising, 6, hands=1) as crew:
        answers = crew.each(
            range(20), here=here, pack=lambda chunk: chunk, unpack=lambda chunk, answer: answer
        )
        assert [next(answers)[1] for _ in range(6)] == [0, 2, 4, 6, 8, 10]
        with pytest.raises(LookupError, match="6"):
            next(answers)
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_sent_is_done_here_in_its_place() -> None:
    with Crew(crew_work.doubling, 0, hands=1) as crew:
        answers = all_of(
            crew,
            range(6),
            lambda number: (0, "here"),
            pack=lambda number: (lambda: 0) if number == 3 else number,
        )
    assert [answer for _, answer in answers] == [0, 2, 4, "here", 8, 10]


def test_few_chunks_are_on_their_way() -> None:
    taken = 0

    def chunks() -> Iterator[int]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    with Crew(crew_work.doubling, 0, hands=2) as crew:
        answers = crew.each(chunks(), here=lambda _: (0, 0), pack=lambda one: one, unpack=lambda _, one: one)
        for done, _ in enumerate(answers, 1):
            assert taken - done <= 2 * AHEAD


def test_chunks_and_answers_larger_than_a_pipe_do_not_lock() -> None:
    texts = [bytes([n]) * 3_000_000 for n in range(6)]
    with Crew(crew_work.echoing, None, hands=1) as crew:
        assert all_of(crew, texts, lambda text: b"here") == texts


def test_who_prints_in_a_hand_does_not_print_into_the_answers(capfd: pytest.CaptureFixture[str]) -> None:
    with Crew(crew_work.printing, None, hands=1) as crew:
        assert all_of(crew, range(3), lambda number: -1) == [0, 1, 2]
    assert capfd.readouterr().out == ""


def test_material_travels_by_the_pipe_alone() -> None:
    secret = "a-secret-that-nobody-else-sees"
    with Crew(crew_work.looking, secret, hands=1) as crew:
        (seen,) = all_of(crew, [secret], lambda text: {})
        (hand,) = crew._hands
        assert seen["group"] != os.getpgrp()  # Ctrl-C in the terminal is not for it
        assert secret not in repr(hand._process.args) + repr(seen)


def test_views_of_a_configuration_travel() -> None:
    given = {"zones": MappingProxyType({"default": MappingProxyType({"a": 1})})}
    assert pickle.loads(module._pickled(given)) == {"zones": {"default": {"a": 1}}}


def test_leaving_ends_the_hands_in_the_middle_of_the_work() -> None:
    with Crew(crew_work.doubling, 0, hands=2) as crew:
        processes = [hand._process for hand in crew._hands]
        answers = crew.each(range(100), here=lambda _: 0, pack=lambda one: one, unpack=lambda _, one: 0)
        next(answers)
    assert len(processes) == 2
    assert {process.returncode for process in processes} == {-signal.SIGKILL}


def test_hands_end_with_the_process_that_started_them() -> None:
    """Killed, it ends nobody; they see the end of the pipe. All of them hold the pipe that is read here."""
    program = (
        "import sys, time; from sendonce.runtime.crew import Crew; from tests import crew_work\n"
        "with Crew(crew_work.doubling, 0, hands=2) as crew:\n"
        "    while not all([hand.ready() for hand in crew._hands]): time.sleep(0.01)\n"
        "    print('started', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"started\n"
        process.kill()
        assert process.stderr.read() == b""  # returns when the last of them has gone


def test_hands_are_the_cores_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, hands in ((1, 0), (2, 1), (3, 2), (64, HANDS_MAX)):
        monkeypatch.setattr(
            os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)), raising=False
        )
        assert idle_cores() == hands
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert idle_cores() == 2
