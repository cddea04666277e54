"""Long calls of programs, prepared by a further process or here: the same answers, and none is missing.
Small calls, in shared units."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from sendonce.app import App
from sendonce.config import parse
from sendonce.core.errors import StoreUnavailable
from sendonce.pipeline.given import CHUNK, LONG, Hands
from sendonce.pipeline.hand_in import HandedIn, Together, hand_in
from sendonce.ports.store import Store, Tx
from tests.integration.api_world import CONFIG, add_templates, reminder


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with App(parse(CONFIG, tmp_path / "sendonce.toml", {"SENDONCE_STORE_URL": url})) as made:
        add_templates(made, "default")
        yield made


def given(count: int, prefix: str = "r") -> list[object]:
    """Some of them wrong in every way that is found at another place."""
    found: list[object] = [reminder(f"{prefix}-{n}", customer=f"c-{n}") for n in range(count)]
    found[3] = "no object"
    found[5] = reminder(f"{prefix}-5", email="nobody")
    found[7] = reminder(f"{prefix}-7", template="nowhere")
    found[11] = reminder(f"{prefix}-11", data={})
    found[13] = reminder(f"{prefix}-13", due="2020-01-01T09:00Z")
    found[17] = reminder(f"{prefix}-17", tenant="acme")
    found[19] = {
        **reminder(f"{prefix}-19", due=""),
        "plan": "loan",
        "date": "2027-12-01",
        "phone": "+12025550123",
    }
    found[23] = {name: v for name, v in reminder(f"{prefix}-23").items() if name != "template"}
    return found


def taken_in(app: App, reminders: list[object], hands: Hands | None, store: Store | None = None) -> HandedIn:
    return hand_in(
        store or app.store, app.book, app.policy, reminders,
        tenant="default", actor="test", bound=True, hands=hands,
    )  # fmt: skip


def ready(hands: Hands, app: App) -> Any:
    """A first call starts the hand; this waits until it takes part."""
    taken_in(app, given(LONG, "warm"), hands)
    crew = hands._crew
    assert crew is not None
    (hand,) = crew._hands
    hand._started = hand._receive()[0] if not hand._started else True
    return hand


def test_the_answers_are_those_of_this_process(app: App) -> None:
    alone = taken_in(app, given(LONG + 30, "x"), None)
    hands = Hands(app.policy, app.store.secret, hands=1)
    try:
        hand = ready(hands, app)
        asked: list[int] = []
        give = hand.give

        def counted(packed: Any) -> None:
            asked.append(len(packed[1]))
            give(packed)

        hand.give = counted
        helped = taken_in(app, given(LONG + 30, "y"), hands)
    finally:
        hands.close()
    assert sum(asked) >= LONG - 2 * CHUNK

    def said(done: HandedIn) -> list[object]:
        return [
            (each.index, each.verdict, each.field, each.why.replace("y-", "x-"), each.notes)
            for each in done.results
        ]

    assert said(helped) == said(alone)


def test_what_a_hand_that_was_killed_did_not_do_is_done_here(app: App) -> None:
    hands = Hands(app.policy, app.store.secret, hands=1)
    try:
        hand = ready(hands, app)
        os.kill(hand._process.pid, signal.SIGKILL)
        hand._process.wait()
        done = taken_in(app, given(LONG, "k"), hands)
    finally:
        hands.close()
    assert len({each.index for each in done.results}) == LONG


def test_after_a_call_that_failed_the_next_one_gets_its_own_answers(app: App) -> None:
    class Broken:
        """A store that is away once the hand has its first chunks."""

        secret, read = app.store.secret, app.store.read

        def write(self, unit: Callable[[Tx], Any]) -> Future[Any]:
            gone: Future[Any] = Future()
            gone.set_exception(StoreUnavailable("away"))
            return gone

    hands = Hands(app.policy, app.store.secret, hands=1)
    try:
        ready(hands, app)
        with pytest.raises(StoreUnavailable):
            taken_in(app, given(LONG * 3, "f"), hands, Broken())  # type: ignore[arg-type]
        done = taken_in(app, given(LONG, "g"), hands)
    finally:
        hands.close()
    assert {each.reminder for each in done.results if each.ok} <= {
        *(f"g-{n}" for n in range(LONG)), "g-19/D-3", "g-19/D+2",
    }  # fmt: skip
    assert sum(each.ok for each in done.results) >= LONG - 8


# Small calls


def test_small_calls_share_a_unit_and_each_gets_its_own_answers(app: App) -> None:
    """Three callers while the store is busy: one unit for what they ask."""
    together = Together(app.store, app.policy, app.book)
    units: list[Callable[[Tx], Any]] = []
    futures: list[Future[Any]] = []

    class Waiting:
        secret, read, steady = app.store.secret, app.store.read, app.store.steady

        def write(self, unit: Callable[[Tx], Any]) -> Future[Any]:
            units.append(unit)
            futures.append(Future())
            return futures[-1]

    together._store = Waiting()  # type: ignore[assignment]
    calls = [[reminder(f"s-{n}"), reminder("same")] for n in range(3)]
    taking = [together.take(call, tenant="default", actor=f"api:{n % 2}") for n, call in enumerate(calls)]
    for each in taking:
        assert each is not None
        each.hand_over()
    assert len(units) == 1
    futures[0].set_result(app.store.write(units[0]).result())
    verdicts = [[result.verdict.value for result in each.finish().results] for each in taking if each]
    assert verdicts == [["accepted", "accepted"], ["accepted", "unchanged"], ["accepted", "unchanged"]]
    late = together.take([reminder("late")], tenant="default", actor="x")
    assert late is not None
    late.hand_over()
    assert len(units) == 2  # the first one had begun


def test_a_unit_that_fails_is_tried_call_by_call(app: App) -> None:
    together = Together(app.store, app.policy, app.book)
    real, first = app.store, True

    class Failing:
        secret, read, steady = real.secret, real.read, real.steady

        def write(self, unit: Callable[[Tx], Any]) -> Future[Any]:
            nonlocal first
            if not first:
                return real.write(unit)
            first = False
            held: Future[Any] = Future()
            waiting.append(held)
            return held

    waiting: list[Future[Any]] = []
    together._store = Failing()  # type: ignore[assignment]
    taking = [together.take([reminder(f"t-{n}")], tenant="default", actor="x") for n in range(3)]
    for each in taking:
        assert each is not None
        each.hand_over()
    waiting[0].set_exception(StoreUnavailable("one of them could not be"))
    assert [each.finish().results[0].ok for each in taking if each] == [True, True, True]
