"""News on its way to the loop: at once when it is the first, together when there is much, never forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from sendonce.runtime.waker import Waker
from tests.unit.test_poller import Loop, run


def test_the_first_news_comes_at_once_and_a_burst_comes_as_one() -> None:
    async def steps(loop: Loop) -> None:
        at: list[float] = []
        waker = Waker({"due": lambda: at.append(loop.time())}, apart_s=1.0)
        waker.hear("due")
        await asyncio.sleep(0.1)
        for _ in range(1_000):
            waker.hear("due")
        await asyncio.sleep(0.5)
        waker.hear("due")
        await asyncio.sleep(10.0)
        waker.hear("due")
        await asyncio.sleep(0.1)
        assert at == pytest.approx([0.0, 1.0, 10.6])

    run(steps)


def test_news_that_comes_while_it_is_passed_on_is_news_again() -> None:
    async def steps(loop: Loop) -> None:
        at: list[float] = []

        def passed_on() -> None:
            at.append(loop.time())
            if len(at) < 3:
                waker.hear("due")

        waker = Waker({"due": passed_on}, apart_s=0.5)
        waker.hear("due")
        await asyncio.sleep(10.0)
        assert at == pytest.approx([0.0, 0.5, 1.0])

    run(steps)


def test_topics_wait_for_themselves_only_and_others_go_nowhere() -> None:
    async def steps(loop: Loop) -> None:
        heard: list[str] = []
        calls: dict[str, Callable[[], None]] = {name: partial(heard.append, name) for name in ("a", "b")}
        waker = Waker(calls, apart_s=1.0)
        for topic in ("a", "a", "other", "b"):
            waker.hear(topic)
        await asyncio.sleep(0.5)
        assert heard == ["a", "b"]

    run(steps)


def test_it_crosses_from_another_thread_and_minds_no_closed_loop() -> None:
    passed: list[int] = []

    async def cross() -> Waker:
        woken = asyncio.Event()

        def pass_on() -> None:
            passed.append(threading.get_ident())
            woken.set()

        waker = Waker({"due": pass_on})
        threading.Thread(target=waker.hear, args=("due",)).start()
        async with asyncio.timeout(30):
            await woken.wait()
        return waker

    waker = asyncio.run(cross())
    assert passed == [threading.get_ident()]
    waker.hear("due")
    waker.hear("due")
    assert len(passed) == 1
