"""What is shown to many is looked up for all of them, and less often where that is dear."""

from __future__ import annotations

import pytest

from sendonce.console.kept import Kept
from sendonce.runtime.poller import rest_after


class Key:
    """Something that a look belongs to."""


@pytest.mark.parametrize(
    ("took_s", "at_least_s", "rest_s"),
    [
        (0.0, 2.0, 2.0),
        (0.04, 2.0, 2.0),
        (0.1, 2.0, 5.0),  # a fiftieth
        (3.0, 2.0, 30.0),  # no older than that
        (3.0, 60.0, 60.0),  # what is asked for rarely anyway
    ],
)
def test_looking_takes_a_fiftieth_of_the_time_at_most(
    took_s: float, at_least_s: float, rest_s: float
) -> None:
    assert rest_after(took_s, at_least_s) == pytest.approx(rest_s)


def test_a_look_is_kept_for_as_long_as_it_was_dear() -> None:
    now, looks, key = [100.0], iter(range(9)), Key()
    kept = Kept[Key, int](2.0, clock=lambda: now[0])

    def look() -> int:
        now[0] += 0.1  # as long as it takes
        return next(looks)

    assert [kept.of(key, look), kept.of(key, look)] == [0, 0]
    now[0] += 4.9
    assert kept.of(key, look) == 0
    now[0] += 0.2
    assert kept.of(key, look) == 1
    kept.forget(key)
    assert kept.of(key, look) == 2
    assert kept.of(Key(), look) == 3


def test_a_look_that_failed_is_made_again() -> None:
    kept, key = Kept[Key, int](2.0), Key()

    def fails() -> int:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        kept.of(key, fails)
    assert kept.of(key, lambda: 1) == 1
