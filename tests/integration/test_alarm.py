"""What is due and does not leave is said, with its age, per channel and account."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted, Failed, Reason, Unknown
from sendonce.pipeline import alarm
from sendonce.pipeline.alarm import Overdue, Stranded, overdue, sound, stranded
from sendonce.pipeline.handed_in import OutboxView
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


def test_what_hangs_on_a_lost_account_is_said_at_once_with_the_fix() -> None:
    """Each of the four: queued, called, to be asked about, uncertain. Who has ended hangs on nothing."""
    world = World("L", "N")
    world.accepted("done")
    for number in range(2):
        world.schedule(f"doubt-{number}")
    world.pass_()
    world.send(Unknown("timeout"))
    world.schedule("calling")
    world.pass_()
    assert len(world.claim()) == 1
    world.schedule("queued")
    world.pass_()
    uncertain = world.uncertain("u", account="email-N")
    assert world.read(lambda tx: stranded(tx, world.policy)) == []
    world.policy = replace(world.policy, accounts={})
    mail, text = world.read(lambda tx: stranded(tx, world.policy))
    assert text == Stranded("sms-L", 1, 1, 2, 0)
    assert str(text) == (
        "not configured any more, and deliveries hang on it (1 queued, 1 being sent, 2 to be asked about): "
        "put [account.sms-L] back until they have ended"
    )
    assert mail == Stranded("email-N", 0, 0, 0, 1)
    assert "`sendonce uncertain --account email-N`" in str(mail)
    assert world.state(uncertain) is State.UNCERTAIN


def test_a_worker_whose_limits_do_not_hold_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(alarm, "tell", lambda event, **fields: told.append((event.name, fields)))
    sound([], [], OutboxView(0, 0.0, 0), ["text"])
    assert told == [("limits_differ", {"account": "text"})]
