"""What the tests of the simulator share: a table of the life cycle that a test may spoil."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sendonce.pipeline import verify
from sendonce.testing.simulator.coverage import legal


@pytest.fixture
def forget_the_table() -> Iterator[Callable[[], None]]:
    """What the checkers remember of the table belongs to the table as it was: call it when that changes."""

    def forget() -> None:
        legal.cache_clear()
        verify._steps.cache_clear()

    forget()
    yield forget
    forget()
