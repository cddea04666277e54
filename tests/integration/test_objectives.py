"""What was kept of the objectives, judged by the ledgers of what fell due; on both databases."""

from __future__ import annotations

from dataclasses import replace

from sendonce.core.delivery import Channel
from sendonce.core.due import parse_quiet
from sendonce.core.objective import Kept, Objective, Objectives
from sendonce.core.outcome import Accepted, Failed, Reason, Unknown
from sendonce.pipeline.chosen import Filter
from sendonce.pipeline.objectives import ObjectivesReport, kept
from sendonce.pipeline.redrive import redrive
from tests.integration.world import World

DAY_S = 86_400.0


def judged(world: World, span_s: float = DAY_S) -> ObjectivesReport:
    world.advance(1.0)
    return kept(world.store, world.policy, span_s=span_s)


def of(report: ObjectivesReport, channel: Channel, objective: Objective) -> Kept:
    found = next(each for each in report.channels if each.channel == channel.value)
    return next(each for each in found.kept if each.objective is objective)


def with_objectives(world: World, objectives: Objectives) -> None:
    world.policy = replace(
        world.policy,
        channels={
            name: replace(channel, objectives=objectives) for name, channel in world.policy.channels.items()
        },
    )


def test_what_was_sent_in_time_is_kept_and_what_came_late_is_named() -> None:
    world = World("K", "N")
    with_objectives(world, Objectives(published_s=30.0, accepted_s=60.0, kept=0.6))
    world.accepted("in-time")
    late = world.schedule("late")
    world.advance(40)
    world.pass_()
    world.advance(50)
    world.send(Accepted("r-2"))
    report = judged(world)
    published, accepted = (
        of(report, Channel.SMS, each) for each in (Objective.PUBLISHED, Objective.ACCEPTED)
    )
    assert (published.count, published.within) == (2, 1)
    assert (accepted.count, accepted.within, accepted.share, accepted.ok) == (2, 1, 0.5, False)
    sms = next(each for each in report.channels if each.channel == "sms")
    (worst,) = sms.worst
    assert (worst.key, worst.late_s) == (late, 30.0)
    assert not report.ok
    assert of(report, Channel.EMAIL, Objective.ACCEPTED).ok  # of nothing, everything is kept


def test_what_waits_counts_once_its_time_is_over_and_what_expired_counts_as_missed() -> None:
    world = World("K")
    with_objectives(world, Objectives(accepted_s=60.0))
    world.schedule("waits")
    world.pass_()
    world.schedule("expires", valid_s=30.0)
    world.advance(31)
    world.pass_()
    assert of(judged(world), Channel.SMS, Objective.ACCEPTED).count == 1
    world.advance(60)
    accepted = of(judged(world), Channel.SMS, Objective.ACCEPTED)
    assert (accepted.count, accepted.within) == (2, 0)


def test_the_night_is_no_breach() -> None:
    world = World("K")
    (name,) = world.policy.categories
    quiet = (parse_quiet("21:00-08:00"),)
    world.policy = replace(
        world.policy, categories={name: replace(world.policy.categories[name], quiet=quiet)}
    )
    world.schedule("r")
    world.pass_()
    world.advance(7 * 3_600)
    world.pass_()
    world.send(Accepted("r-1"))
    report = judged(world)
    assert (report.channels[-1].due, of(report, Channel.SMS, Objective.ACCEPTED).count) == (1, 0)


def test_a_second_acceptance_is_a_duplicate_where_no_key_absorbs_it() -> None:
    for class_, duplicates in (("N", 1), ("K", 0)):
        world = World(class_)
        key = world.schedule("r")
        world.pass_()
        (first,) = world.claim()
        world.settle([(first, Unknown("timeout"))])
        if class_ == "N":
            world.permit(key)
        world.advance(10)
        world.send(Accepted("r-2"))
        world.settle([(first, Accepted("r-1"))])
        (channel,) = (each for each in judged(world).channels if each.due)
        (found,) = (each for each in channel.kept if each.objective is Objective.DUPLICATES)
        assert (found.missed, found.ok) == (duplicates, not duplicates)


def test_dead_letters_are_to_be_decided_in_time() -> None:
    world = World("K")
    with_objectives(world, Objectives(recovered_s=3_600.0))
    world.dead("left")
    assert of(judged(world), Channel.SMS, Objective.RECOVERED).count == 0
    world.advance(3_600)
    left = of(judged(world), Channel.SMS, Objective.RECOVERED)
    assert (left.count, left.within) == (1, 0)
    redrive(world.store, Filter(), world.policy, reason="mended", actor="operator:x")
    again = of(judged(world), Channel.SMS, Objective.RECOVERED)
    assert (again.count, again.within) == (1, 1)


def test_received_is_judged_only_where_events_tell() -> None:
    world = World("K")
    with_objectives(world, Objectives(received_s=60.0))
    world.accepted("r")
    assert Objective.RECEIVED not in {each.objective for each in judged(world).channels[-1].kept}


def test_a_month_is_read_in_days_and_nothing_is_counted_twice() -> None:
    world = World("K")
    for number in range(5):
        world.accepted(f"r-{number}")
        world.advance(2 * DAY_S)
    steps: list[tuple[int, int]] = []
    world.advance(1.0)
    report = kept(
        world.store, world.policy, span_s=30 * DAY_S, progress=lambda done, total: steps.append((done, total))
    )
    assert report.channels[-1].due == 5
    assert steps[-1] == (60, 60)
    assert judged(world, DAY_S).channels[-1].due == 0


def test_failures_that_are_not_over_yet_are_not_judged() -> None:
    world = World("K")
    world.schedule("r")
    world.pass_()
    world.send(Failed(Reason.UNAVAILABLE, "503"))
    assert of(judged(world), Channel.SMS, Objective.ACCEPTED).count == 0
