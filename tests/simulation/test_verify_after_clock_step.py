"""Found by the simulator (storm, seed 575): what `verify` took for a claim after an end.

A delivery expired while it was in doubt; then the calendar was set back, and the provider turned out not
to have it. It was in time once more, and went again. Nothing of that is a fault.
"""

from __future__ import annotations

from dataclasses import replace

from sendonce.core.lifecycle import State
from sendonce.core.outcome import Absent, Accepted, Unknown
from sendonce.pipeline import reconciler
from sendonce.pipeline.verify import verify
from tests.integration.world import World, account_of, policy_of


def test_what_expired_in_doubt_may_go_again_on_a_calendar_that_was_set_back() -> None:
    account = account_of("K")
    both = replace(account, promise=replace(account.promise, lookup=True, index_lag_s=5.0))
    world = World(policy=policy_of(both))
    key = world.schedule(valid_s=60.0)
    world.pass_()
    world.send(Unknown("timeout"))
    world.advance(70.0)
    assert world.expire() == 1
    assert world.state(key) is State.RECONCILING
    world.advance(200.0)
    (doubt,) = world.write(
        lambda tx: reconciler.doubts(tx, world.policy, accounts={both.name: both}, secret=world.store.secret)
    )
    world.clock.step(-250.0)
    world.write(lambda tx: reconciler.resolve(tx, [(doubt, Absent(believable=True))], world.policy))
    assert world.state(key) is State.QUEUED
    world.send(Accepted("r"))
    assert world.events(key)[-2:] == ["claimed", "accepted"]
    assert verify(world.store).faults == []
