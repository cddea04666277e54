"""What a stage does when its commit may have happened (`CommitUnknown`): it hands the same in again, or
leaves it. Neither sends anything twice, and neither makes a record say another thing than the first time."""

from __future__ import annotations

import pytest

from sendonce.core.lifecycle import State
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    NotStarted,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from tests.integration.world import World

OUTCOMES: dict[str, Outcome] = {
    "accepted": Accepted("receipt-1", "201"),
    "rejected": Rejected(Reason.BLOCKED, "30007"),
    "throttled": Throttled(ThrottleScope.RECIPIENT, "429"),
    "account error": AccountError(Reason.CREDIT, "402"),
    "failed": Failed(Reason.UNAVAILABLE, "503"),
    "unknown": Unknown("timeout"),
    "not started": NotStarted("stopping"),
}


@pytest.mark.parametrize("class_", ["K", "L", "N"])
@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_that_is_settled_twice_counts_once(name: str, class_: str) -> None:
    world = World(class_)
    key = world.schedule()
    world.pass_()
    claims = world.claim()
    outcomes = [(claim, OUTCOMES[name]) for claim in claims]
    world.settle(outcomes)
    once = world.row(key)
    world.settle(outcomes)
    twice = world.row(key)
    assert twice.standing == once.standing
    assert twice.course == once.course
    assert world.read(lambda tx: tx.calls.count(world.accounts[0])) == 0
    # At most a note that it came again.
    assert twice.seq - once.seq <= 1


@pytest.mark.parametrize(("class_", "state"), [("K", State.QUEUED), ("N", State.UNCERTAIN)])
def test_a_claim_that_nobody_knows_of_is_in_doubt_and_frees_its_lane(class_: str, state: State) -> None:
    """The worker was told that the claim may not have happened, so it sent nothing; the store cannot know."""
    world = World(class_)
    key = world.schedule()
    world.pass_()
    world.claim()
    world.advance(300.0)
    assert world.reap() == 1
    assert world.state(key) is state
    assert world.row(key).standing.maybe


def test_publishing_twice_publishes_once() -> None:
    world = World("K")
    key = world.schedule()
    world.pass_()
    assert world.pass_().counts.get("published", 0) == 0
    assert world.events(key).count("published") == 1
