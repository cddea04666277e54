"""What a provider took, held against the store: each kind of disagreement is seen, and nothing else is."""

from __future__ import annotations

import pytest

from sendonce.core.lifecycle import State
from sendonce.testing.tally import tally

FINE = {
    "sent": (State.ACCEPTED, 1),
    "cancelled": (State.CANCELLED, 0),
    "rejected": (State.REJECTED, 0),
    "doubtful, and sent": (State.UNCERTAIN, 1),
    "doubtful, and not": (State.UNCERTAIN, 0),
    "believed": (State.ASSUMED_SENT, 0),
    "said not to be": (State.NOT_SENT, 1),
}


def counted(*more: tuple[str, State, int], strangers: tuple[str, ...] = ()) -> tuple[int, int, list[str]]:
    """Lost, duplicates and problems of all that is fine and of these besides."""
    cases = {**FINE, **{key: (state, times) for key, state, times in more}}
    rows: list[dict[str, int | str]] = [{"key": key, "state": state} for key, (state, _) in cases.items()]
    markers = [key for key, (_, times) in cases.items() for _ in range(times)]
    made = tally(rows, [{"marker": marker} for marker in (*markers, *strangers)])
    assert sum(made.counts.values()) == len(cases)
    return made.lost, made.duplicates, list(made.problems())


def test_what_is_fine_is_fine() -> None:
    assert counted() == (0, 0, [])


@pytest.mark.parametrize(
    ("state", "times", "lost", "duplicates", "problem"),
    [
        (State.ACCEPTED, 0, 1, 0, "r-1 is ACCEPTED, but the provider never took it"),
        (State.ACCEPTED, 3, 0, 2, "r-1 was taken 3 times"),
        (State.UNCERTAIN, 2, 0, 1, "r-1 was taken 2 times"),
        (State.CANCELLED, 1, 0, 0, "r-1 is CANCELLED, but the provider took it"),
        (State.EXPIRED, 1, 0, 0, "r-1 is EXPIRED, but the provider took it"),
        (State.QUEUED, 0, 1, 0, "r-1 has not ended: QUEUED"),
        (State.SENDING, 1, 1, 0, "r-1 has not ended: SENDING"),
        (State.RECONCILING, 1, 1, 0, "r-1 has not ended: RECONCILING"),
    ],
)
def test_each_disagreement_is_seen(
    state: State, times: int, lost: int, duplicates: int, problem: str
) -> None:
    assert counted(("r-1", state, times)) == (lost, duplicates, [problem])


def test_what_nobody_scheduled_is_seen() -> None:
    assert counted(strangers=("r-9",)) == (0, 0, ["the provider took 'r-9', which nobody scheduled"])
    assert counted(strangers=("", "")) == (0, 0, ["the provider took 2 messages without a marker"])
