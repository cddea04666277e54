"""The poller: when it steps, what wakes it, what an error costs, and that it stops. On a loop whose time
passes at once."""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sendonce.runtime.poller import ERROR_WAIT_MAX_S, Poller


class _Selector(selectors.SelectSelector):
    """Never waits: the loop's own time is put forward instead."""

    loop: Loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class Loop(asyncio.SelectorEventLoop):
    """An event loop on which nobody waits for anything but each other."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(steps: Callable[[Loop], Coroutine[Any, Any, None]]) -> None:
    loop = Loop()
    try:
        loop.run_until_complete(steps(loop))
    finally:
        loop.close()


def fails(name: str, error: Exception) -> None:
    raise AssertionError(f"{name} failed: {error}")


def test_it_waits_as_long_as_the_step_says() -> None:
    async def steps(loop: Loop) -> None:
        at: list[float] = []
        waits = iter([1.0, 0.0, 0.0, 0.25, 60.0])

        async def step() -> float:
            at.append(loop.time())
            wait = next(waits, None)
            if wait is None:
                poller.stop()
                return 0.0
            return wait

        poller = Poller("p", step, on_error=fails)
        await poller.run()
        assert at == pytest.approx([0.0, 1.0, 1.0, 1.0, 1.25, 61.25])

    run(steps)


def test_others_run_between_steps_that_follow_at_once() -> None:
    async def steps(loop: Loop) -> None:
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        async def step() -> float:
            if others >= 10:
                poller.stop()
            return 0.0

        poller = Poller("p", step, on_error=fails)
        beside = asyncio.create_task(other())
        await poller.run()
        beside.cancel()
        assert others >= 10

    run(steps)


def test_a_wake_ends_the_wait_and_is_not_forgotten_during_a_step() -> None:
    async def steps(loop: Loop) -> None:
        at: list[float] = []

        async def step() -> float:
            at.append(loop.time())
            if len(at) == 1:
                loop.call_later(2.0, poller.wake)
            if len(at) == 2:
                poller.wake()  # something came while this step was at work
            if len(at) == 4:
                poller.stop()
            return 100.0

        poller = Poller("p", step, on_error=fails)
        await poller.run()
        assert at == pytest.approx([0.0, 2.0, 2.0, 102.0]), "and once it is followed, it is over"

    run(steps)


def test_a_stop_ends_the_wait_at_once_but_not_the_step() -> None:
    async def steps(loop: Loop) -> None:
        done: list[str] = []

        async def step() -> float:
            loop.call_later(1.0, poller.stop)
            await asyncio.sleep(3.0)
            done.append("step")
            return 100.0

        poller = Poller("p", step, on_error=fails)
        await poller.run()
        assert done == ["step"]
        assert loop.time() == pytest.approx(3.0)

        async def rest() -> float:
            loop.call_later(1.0, waiting.stop)
            return 100.0

        waiting = Poller("p", rest, on_error=fails)
        await waiting.run()
        assert loop.time() == pytest.approx(4.0)

    run(steps)


def test_stopped_before_it_ran_it_does_not_step() -> None:
    async def steps(loop: Loop) -> None:
        async def step() -> float:
            raise AssertionError

        poller = Poller("p", step, on_error=fails)
        poller.stop()
        await poller.run()
        assert loop.time() == 0.0

    run(steps)


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_errors_are_told_and_tried_again_ever_more_rarely(chance: float) -> None:
    async def steps(loop: Loop) -> None:
        at: list[float] = []
        told: list[tuple[str, str]] = []

        async def step() -> float:
            at.append(loop.time())
            if len(at) > 12:
                poller.stop()
            raise ValueError(str(len(at)))

        def on_error(name: str, error: Exception) -> None:
            told.append((name, str(error)))

        poller = Poller("p", step, on_error=on_error, chance=lambda: chance)
        await poller.run()
        gaps = [round(after - before, 6) for before, after in itertools.pairwise(at)]
        assert gaps == sorted(gaps)
        assert 0.25 <= gaps[0] <= 0.5
        assert 0.5 * ERROR_WAIT_MAX_S <= gaps[-1] <= ERROR_WAIT_MAX_S
        assert told == [("p", str(number)) for number in range(1, 14)]

    run(steps)


def test_waits_after_errors_may_have_another_bound() -> None:
    async def steps(loop: Loop) -> None:
        at: list[float] = []

        async def step() -> float:
            at.append(loop.time())
            if len(at) > 8:
                poller.stop()
            raise ValueError

        poller = Poller("p", step, on_error=lambda name, error: None, chance=lambda: 1.0, again_max_s=2.0)
        await poller.run()
        assert [after - before for before, after in itertools.pairwise(at)][-4:] == pytest.approx([2.0] * 4)

    run(steps)


def test_one_good_step_forgives() -> None:
    async def steps(loop: Loop) -> None:
        gaps: list[float] = []
        last = 0.0
        number = 0

        async def step() -> float:
            nonlocal last, number
            gaps.append(loop.time() - last)
            last = loop.time()
            number += 1
            if number == 10:
                poller.stop()
            if number == 6:
                return 1.0
            raise ValueError

        poller = Poller("p", step, on_error=lambda name, error: None, chance=lambda: 1.0)
        await poller.run()
        assert gaps[1] == gaps[7], "after the good one it begins anew"
        assert gaps[5] > gaps[7]

    run(steps)


def test_an_error_while_stopping_does_not_keep_it() -> None:
    async def steps(loop: Loop) -> None:
        async def step() -> float:
            poller.stop()
            raise ValueError

        poller = Poller("p", step, on_error=lambda name, error: None)
        await poller.run()
        assert loop.time() == 0.0

    run(steps)


def test_a_cancelled_one_is_cancelled() -> None:
    async def steps(loop: Loop) -> None:
        async def step() -> float:
            await asyncio.sleep(10)
            return 0.0

        task = asyncio.create_task(Poller("p", step, on_error=fails).run())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(steps)
