"""What every queue transport must do: the promises of `ports.queue`, each as a test.

    class TestMyQueue(QueueSuite):
        pass

with one fixture, `opened`: a function whose answer is entered to get a `Place`, an empty queue for emails on
the running event loop with a way to let time pass.

A queue carries hints at least once. So each test is true of a transport that repeats and reorders as well: it
asks what must come and what must not, never how often or in which order. Nothing here names a transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Final

from sendonce.ports.queue import Hint, Queue

PULLS_MAX: Final = 50
"""A queue that has still something after so many pulls never becomes empty."""


@dataclass(frozen=True, slots=True)
class Place:
    """One empty queue. `pass_time` lets seconds pass for the transport; what was pulled and not acknowledged
    is handed out again after `redeliver_s` of them."""

    queue: Queue
    pass_time: Callable[[float], Awaitable[None]]
    redeliver_s: float


Opened = Callable[[], AbstractAsyncContextManager[Place]]


class QueueSuite:
    """The tests. They find `opened` by name; no test library is imported here."""

    def test_a_hint_comes_as_it_was_published(self, opened: Opened) -> None:
        """All of it: the longest key with every kind of letter, and large numbers."""
        given = [
            hint(1),
            hint(2**53 - 1, key=f"{'é€😎%3A' * 40}:customer-73:sms", epoch=2**31, version=7),
        ]

        async def body(place: Place) -> None:
            await place.queue.publish(given)
            pulled = await everything(place)
            assert {as_given(one) for one in pulled} == {as_given(one) for one in given}

        run(opened, body)

    def test_the_transport_names_what_it_hands_out(self, opened: Opened) -> None:
        """Its message id stands in the ledger, and without a receipt nothing can be acknowledged."""

        async def body(place: Place) -> None:
            await place.queue.publish([hint(1), hint(2)])
            pulled = await everything(place)
            assert all(one.message_id and one.receipt for one in pulled)
            names = {one.delivery_id: one.message_id for one in pulled}
            assert len(set(names.values())) == 2

        run(opened, body)

    def test_an_empty_queue_gives_nothing_and_keeps_nobody_waiting(self, opened: Opened) -> None:
        async def body(place: Place) -> None:
            async with asyncio.timeout(5.0):
                assert await place.queue.pull(10, 0.05) == []
            await place.queue.publish([])
            assert await place.queue.pull(10, 0.05) == []

        run(opened, body)

    def test_a_pull_takes_at_most_what_it_asks_for_and_leaves_the_rest(self, opened: Opened) -> None:
        async def body(place: Place) -> None:
            await place.queue.publish([hint(number) for number in range(1, 8)])
            first = await place.queue.pull(3, 0.5)
            assert 0 < len(first) <= 3
            rest = await everything(place)
            assert {one.delivery_id for one in (*first, *rest)} == set(range(1, 8))

        run(opened, body)

    def test_what_is_acknowledged_is_gone(self, opened: Opened) -> None:
        async def body(place: Place) -> None:
            await place.queue.publish([hint(1), hint(2)])
            await place.queue.ack(await everything(place))
            await place.pass_time(2 * place.redeliver_s)
            assert await everything(place) == []

        run(opened, body)

    def test_what_is_not_acknowledged_comes_again_and_not_before_its_time(self, opened: Opened) -> None:
        """The death of a worker: nobody says a word, and the hint is there for the next one."""

        async def body(place: Place) -> None:
            await place.queue.publish([hint(1), hint(2)])
            pulled = await everything(place)
            await place.queue.ack([one for one in pulled if one.delivery_id == 1])
            await place.pass_time(place.redeliver_s / 2)
            assert await everything(place) == []
            await place.pass_time(place.redeliver_s)
            assert {one.delivery_id for one in await everything(place)} == {2}

        run(opened, body)

    def test_what_is_given_back_comes_again_at_once(self, opened: Opened) -> None:
        async def body(place: Place) -> None:
            await place.queue.publish([hint(1)])
            await place.queue.nack(await everything(place), 0.0)
            again = await everything(place)
            assert {one.delivery_id for one in again} == {1}
            await place.queue.ack(again)
            await place.pass_time(2 * place.redeliver_s)
            assert await everything(place) == []

        run(opened, body)

    def test_a_redrive_is_no_duplicate_to_the_transport(self, opened: Opened) -> None:
        """The same delivery under another epoch is another hint, however soon it follows."""

        async def body(place: Place) -> None:
            await place.queue.publish([hint(1, epoch=1)])
            await place.queue.ack(await everything(place))
            await place.queue.publish([hint(1, epoch=2)])
            assert {one.epoch for one in await everything(place)} == {2}

        run(opened, body)

    def test_what_it_does_not_hold_any_more_may_be_acknowledged_again(self, opened: Opened) -> None:
        """A receipt may be old: the hint was handed to another worker meanwhile, or is gone."""

        async def body(place: Place) -> None:
            await place.queue.publish([hint(1)])
            pulled = await everything(place)
            await place.queue.ack(pulled)
            await place.queue.ack(pulled)
            await place.queue.nack(pulled, 0.0)
            await place.queue.ack([replace(pulled[0], receipt="nobody's")])
            await place.queue.ack([])
            await place.queue.nack([], 1.0)
            assert await everything(place) == []

        run(opened, body)

    def test_two_who_pull_get_everything_between_them(self, opened: Opened) -> None:
        async def body(place: Place) -> None:
            await place.queue.publish([hint(number) for number in range(1, 31)])
            pulled = await asyncio.gather(everything(place, 4), everything(place, 5))
            assert {one.delivery_id for one in (*pulled[0], *pulled[1])} == set(range(1, 31))

        run(opened, body)

    def test_closing_twice_is_closing_once(self, opened: Opened) -> None:
        async def body(place: Place) -> None:
            await place.queue.close()
            await place.queue.close()

        run(opened, body)


def hint(
    delivery_id: int, *, key: str = "", epoch: int = 1, version: int = 1, channel: str = "email"
) -> Hint:
    return Hint(delivery_id, key or f"r-{delivery_id}:c:email", epoch, version, channel)


def as_given(one: Hint) -> tuple[object, ...]:
    """A hint without what the transport adds."""
    return one.delivery_id, one.key, one.epoch, one.version, one.channel


async def everything(place: Place, limit: int = 10) -> Sequence[Hint]:
    """All that can be pulled now."""
    pulled: list[Hint] = []
    for _ in range(PULLS_MAX):
        some = await place.queue.pull(limit, 0.05)
        if not some:
            return pulled
        pulled += some
    raise AssertionError(f"still not empty after {PULLS_MAX} pulls: {len(pulled)} hints")


def run(opened: Opened, body: Callable[[Place], Awaitable[None]]) -> None:
    async def in_place() -> None:
        async with opened() as place:
            await body(place)

    asyncio.run(in_place())
