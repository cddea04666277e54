"""TIME-07: a country changes its rules, and 09:00 stays 09:00."""

from __future__ import annotations

from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted
from sendonce.pipeline.zone_change import follow_zone_rules
from tests.integration.world import HOUR, World


def test_future_reminders_keep_their_wall_time() -> None:
    """TIME-07."""
    world = World("K")
    key = world.schedule("r-1", zone="America/Mexico_City", due_in_s=600.0)
    fixed = world.schedule("r-2", zone="", due_in_s=600.0)
    before = {k: world.row(k) for k in (key, fixed)}
    assert follow_zone_rules(world.store, world.policy, "2026a") == 0  # the first version is only noted
    assert follow_zone_rules(world.store, world.policy, "2026a") == 0
    assert follow_zone_rules(world.store, world.policy, "2026b") == 1
    after = world.row(key)
    start = before[key].course.due_at - 600_000_000
    assert after.course.due_at == start + 7 * HOUR  # 01:00 at UTC-6
    assert after.course.next_at == after.course.due_at
    shift = after.course.due_at - before[key].course.due_at
    assert after.course.expires_at == before[key].course.expires_at + shift
    assert world.row(fixed) == before[fixed]  # an instant was given: it stays
    assert follow_zone_rules(world.store, world.policy, "2026c") == 0  # again: it is where it belongs
    world.advance(601)
    assert world.pass_().counts == {"published": 1, "late": 0}
    world.advance(7 * 3600)
    world.pass_()
    assert world.state(key) is State.QUEUED


def test_what_was_sent_is_left_alone() -> None:
    """TIME-07."""
    world = World("K")
    key = world.schedule("r-1", zone="America/Mexico_City")
    follow_zone_rules(world.store, world.policy, "2026a")
    world.pass_()
    world.settle([(claim, Accepted("r1")) for claim in world.claim()])
    assert follow_zone_rules(world.store, world.policy, "2026b") == 0
    assert world.state(key) is State.ACCEPTED
