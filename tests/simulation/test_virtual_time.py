"""The loop and the processes that a simulation stands on: time, freezes, deaths, threads that take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sendonce.testing.simulator.loop import STILL_MAX, Stuck, VirtualLoop
from sendonce.testing.simulator.process import Process


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> VirtualLoop:
    loop = VirtualLoop()  # type: ignore[abstract]  # what it has not got, nobody here asks for
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.close()
    return loop


def test_an_hour_takes_no_time_and_is_exact() -> None:
    began = time.monotonic()

    async def main(loop: VirtualLoop) -> None:
        await asyncio.sleep(3_600)
        assert loop.now_us == 3_600_000_000

    run(main)
    assert time.monotonic() - began < 5.0


def test_waiting_without_a_timer_is_an_error_and_not_a_hang() -> None:
    async def main(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="everybody waits"):
        run(main)


def test_running_on_at_one_instant_is_an_error_and_not_a_hang() -> None:
    async def main(loop: VirtualLoop) -> None:
        while True:  # noqa: ASYNC110 (that is the fault)
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="on and on"):
        run(main)
    assert STILL_MAX < 1_000_000


def test_a_frozen_process_does_nothing_and_catches_up_in_order() -> None:
    told: list[tuple[str, float]] = []

    async def main(loop: VirtualLoop) -> None:
        process, other = Process(loop, "p", 1), Process(loop, "q", 1)

        async def ticks(name: str) -> None:
            for _ in range(3):
                await asyncio.sleep(1)
                told.append((name, loop.time()))

        tasks = [process.spawn(ticks("frozen")), other.spawn(ticks("alive"))]
        await asyncio.sleep(0.5)
        process.freeze(10.0)
        await asyncio.gather(*tasks)

    run(main)
    assert [at for name, at in told if name == "alive"] == [1.0, 2.0, 3.0]
    assert [at for name, at in told if name == "frozen"] == [10.5, 11.5, 12.5]


def test_a_timer_that_was_cancelled_meanwhile_does_not_fire_at_the_thaw() -> None:
    fired: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        process = Process(loop, "p", 1)

        async def both() -> None:
            second = loop.call_later(2, fired.append, "second")

            def first() -> None:
                fired.append("first")
                second.cancel()

            loop.call_later(1, first)
            await asyncio.sleep(20)

        task = process.spawn(both())
        await asyncio.sleep(0.5)
        process.freeze(5.0)
        await task

    run(main)
    assert fired == ["first"]


def test_a_killed_process_runs_its_finally_and_nothing_else() -> None:
    told: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        process = Process(loop, "p", 1)

        async def child() -> None:
            try:
                await asyncio.sleep(100)
                told.append("never")
            finally:
                told.append("finally")
                process.spawn(late())

        async def late() -> None:
            told.append("never")

        async def parent() -> None:
            await asyncio.gather(child(), child())

        process.spawn(parent())
        await asyncio.sleep(1)
        process.freeze(50)
        process.kill()
        await process.gone()
        assert loop.time() < 2.0
        with pytest.raises(asyncio.CancelledError):
            process.check()

    run(main)
    assert told == ["finally", "finally"]


def test_a_side_thread_and_the_loop_take_turns() -> None:
    told: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        process = Process(loop, "p", 1)

        async def answer(value: int) -> int:
            await asyncio.sleep(1)
            told.append(f"loop {value}")
            return value + 1

        def stage() -> int:
            assert process.side.here
            told.append("side begins")
            value = process.side.ask(answer(1))
            told.append(f"side {value}")
            return process.side.ask(answer(value))

        assert not process.side.here
        assert await process.spawn(process.side.run(stage)) == 3
        assert loop.time() == 2.0
        process.kill()
        await process.gone()

    run(main)
    assert told == ["side begins", "loop 1", "side 2", "loop 2"]


def test_a_side_thread_dies_with_its_process() -> None:
    told: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        process = Process(loop, "p", 1)

        def stage() -> None:
            try:
                process.side.ask(asyncio.sleep(100))
                told.append("never")
            finally:
                told.append("unwound")

        process.spawn(process.side.run(stage))
        await asyncio.sleep(1)
        process.kill()
        await process.gone()

    run(main)
    assert told == ["unwound"]
