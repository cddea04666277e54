"""What is due and does not leave is said, with its age, per channel and account."""

from __future__ import annotations

from sendonce.core.delivery import Channel
from sendonce.core.outcome import Accepted, Failed, Reason
from sendonce.pipeline.alarm import Overdue, overdue
from tests.integration.world import World


def test_only_what_waits_too_long() -> None:
    world = World("K", "N")  # both channels alarm after ten minutes
    world.schedule("late", account="sms-K")
    world.schedule("future", account="sms-K", due_in_s=3_600.0)
    world.advance(599)
    assert world.read(lambda tx: overdue(tx, world.policy)) == []
    world.advance(2)
    (unpublished,) = world.read(lambda tx: overdue(tx, world.policy))
    assert unpublished == Overdue(Channel.SMS, "", 601.0, 1)
    world.pass_()
    (queued,) = world.read(lambda tx: overdue(tx, world.policy))
    assert queued == Overdue(Channel.SMS, "sms-K", 601.0, 1)
    world.settle([(claim, Accepted("r")) for claim in world.claim("sms-K")])
    assert world.read(lambda tx: overdue(tx, world.policy)) == []


def test_a_retry_that_waits_counts_from_its_due_time() -> None:
    world = World("N")
    world.schedule("r", account="email-N")
    world.pass_()
    world.advance(601)
    world.settle([(claim, Failed(Reason.UNAVAILABLE, "451")) for claim in world.claim("email-N")])
    (waiting,) = world.read(lambda tx: overdue(tx, world.policy))
    assert (waiting.account, waiting.age_s, waiting.count) == ("email-N", 601.0, 1)
