"""The queue suite on the transport that tests use: on a good day, and repeating and reordering."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sendonce.testing.conformance.queue import Opened, Place, QueueSuite
from sendonce.testing.transport import Faults, UnreliableQueue

DAYS = {
    "good": Faults(),
    "reordering": Faults(reorder=True),
    "repeating": Faults(repeat=0.5, reorder=True),
}


class TestUnreliableQueue(QueueSuite):
    @pytest.fixture(params=DAYS)
    def opened(self, request: pytest.FixtureRequest) -> Opened:
        @asynccontextmanager
        async def place() -> AsyncIterator[Place]:
            queue = UnreliableQueue(DAYS[request.param], seed=7)

            async def pass_time(seconds: float) -> None:
                queue.tick(seconds)

            yield Place(queue, pass_time, redeliver_s=30.0)
            await queue.close()

        return place


@pytest.mark.parametrize(
    ("faults", "broken"),
    [
        (Faults(lose=1.0), QueueSuite.test_a_hint_comes_as_it_was_published),
        (Faults(lose_ack=1.0), QueueSuite.test_what_is_acknowledged_is_gone),
        (
            Faults(redeliver_s=1e9),
            QueueSuite.test_what_is_not_acknowledged_comes_again_and_not_before_its_time,
        ),
        (Faults(redeliver_s=0.0), QueueSuite.test_a_pull_takes_at_most_what_it_asks_for_and_leaves_the_rest),
    ],
)
def test_the_suite_finds_a_transport_that_breaks_its_promise(faults: Faults, broken: object) -> None:
    """Else its silence would mean nothing."""

    @asynccontextmanager
    async def place() -> AsyncIterator[Place]:
        queue = UnreliableQueue(faults, seed=7)

        async def pass_time(seconds: float) -> None:
            queue.tick(seconds)

        yield Place(queue, pass_time, redeliver_s=30.0)

    with pytest.raises(AssertionError):
        broken(QueueSuite(), place)  # type: ignore[operator]
