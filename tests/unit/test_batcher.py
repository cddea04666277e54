"""The batcher: groups grow while one is being written, nothing is lost or reordered, and a slow writer pushes
back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sendonce.runtime.batcher import Batcher


class Writer:
    """A flush that ends when it is told to."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.written: list[int] = []
        self.go = asyncio.Semaphore(0)
        self.at_once = 0

    async def flush(self, group: list[int]) -> None:
        self.groups.append(list(group))
        self.at_once += 1
        assert self.at_once == 1, "one group at a time"
        await self.go.acquire()
        self.at_once -= 1
        self.written += group


def run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(steps(), 10))


async def turns(count: int = 5) -> None:
    """Let everything run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_first_goes_at_once_and_the_next_wait_together() -> None:
    async def steps() -> None:
        writer = Writer()
        batcher = Batcher(writer.flush, size_max=10, pending_max=100)
        await batcher.add(1)
        await turns()
        assert writer.groups == [[1]]
        for item in (2, 3, 4):
            await batcher.add(item)
        await turns()
        assert writer.groups == [[1]]
        writer.go.release()
        await turns()
        assert writer.groups == [[1], [2, 3, 4]]

    run(steps)


def test_groups_are_bounded() -> None:
    async def steps() -> None:
        writer = Writer()
        batcher = Batcher(writer.flush, size_max=3, pending_max=100)
        for item in range(8):
            await batcher.add(item)
        for _ in range(8):
            writer.go.release()
        await batcher.drain()
        assert max(map(len, writer.groups)) == 3
        assert writer.written == list(range(8))

    run(steps)


def test_what_is_unwritten_is_bounded_and_pushes_back() -> None:
    async def steps() -> None:
        writer = Writer()
        batcher = Batcher(writer.flush, size_max=2, pending_max=3)
        for item in range(3):
            await batcher.add(item)
        fourth = asyncio.create_task(batcher.add(3))
        await turns()
        assert not fourth.done(), "there is no room until a group is written"
        writer.go.release()
        await turns()
        assert fourth.done()
        for _ in range(5):
            writer.go.release()
        await batcher.drain()
        assert writer.written == [0, 1, 2, 3]

    run(steps)


def test_drain_waits_for_all_of_it_and_for_what_comes_meanwhile() -> None:
    async def steps() -> None:
        writer = Writer()
        batcher = Batcher(writer.flush, size_max=1, pending_max=10)
        await batcher.drain()
        await batcher.add(1)
        draining = asyncio.create_task(batcher.drain())
        await turns()
        await batcher.add(2)
        writer.go.release()
        await turns()
        assert not draining.done()
        writer.go.release()
        await draining
        assert writer.written == [1, 2]

    run(steps)


def test_a_drain_that_is_given_up_does_not_stop_the_writing() -> None:
    async def steps() -> None:
        writer = Writer()
        batcher = Batcher(writer.flush, size_max=1, pending_max=10)
        await batcher.add(1)
        draining = asyncio.create_task(batcher.drain())
        await turns()
        draining.cancel()
        await turns()
        writer.go.release()
        await batcher.drain()
        assert writer.written == [1]

    run(steps)


def test_it_starts_again_after_it_was_idle() -> None:
    async def steps() -> None:
        writer = Writer()
        batcher = Batcher(writer.flush, size_max=5, pending_max=1)
        for item in range(4):
            writer.go.release()
            await batcher.add(item)
            await batcher.drain()
        assert writer.groups == [[0], [1], [2], [3]], "and each gave its room back"

    run(steps)


@given(
    size_max=st.integers(1, 7),
    pending_max=st.integers(1, 20),
    adders=st.lists(st.integers(0, 15), min_size=1, max_size=6),
    pauses=st.lists(st.integers(0, 3), min_size=1, max_size=20),
)
def test_everything_is_written_once_in_order(
    size_max: int, pending_max: int, adders: list[int], pauses: list[int]
) -> None:
    async def steps() -> None:
        written: list[tuple[int, int]] = []
        added = 0
        most = 0

        async def flush(group: list[tuple[int, int]]) -> None:
            nonlocal most
            assert 0 < len(group) <= size_max
            most = max(most, added - len(written))
            await turns(pauses[len(written) % len(pauses)])
            written.extend(group)

        batcher = Batcher(flush, size_max=size_max, pending_max=pending_max)

        async def add(adder: int, count: int) -> None:
            nonlocal added
            for number in range(count):
                await batcher.add((adder, number))
                added += 1
                await turns(pauses[(adder + number) % len(pauses)])

        await asyncio.gather(*(add(adder, count) for adder, count in enumerate(adders)))
        await batcher.drain()
        assert most <= pending_max
        assert sorted(written) == [(a, n) for a, count in enumerate(adders) for n in range(count)]
        for adder in range(len(adders)):
            own = [number for who, number in written if who == adder]
            assert own == sorted(own)

    run(steps)
