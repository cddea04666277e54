"""Pauses hold what has not started, resumes wake it at once, limits change while everything runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted, AccountError, Failed, Reason, Throttled, ThrottleScope, Unknown
from sendonce.core.pacing import FOREVER, Gate, GateLimits, Limit
from sendonce.pipeline.alarm import overruled
from sendonce.pipeline.overview import overview
from sendonce.pipeline.pause import Paused, Resumed, Scope, Target, change_limits, pause, resume
from sendonce.pipeline.scheduler import Scheduler
from tests.integration.world import SECOND, World

SMS = Target(Scope.CHANNEL, "sms")
LOAN = Target(Scope.GROUP, "loan-7")
ACCOUNT = Target(Scope.ACCOUNT, "sms-K")
SCHEDULER = Target(Scope.SCHEDULER)


def stop(world: World, target: Target, **given: Any) -> Paused:
    options = {"reason": "incident 7", "actor": "operator:ann", **given}
    return pause(world.store, target, world.policy, **options)


def go(world: World, target: Target, **given: Any) -> Resumed:
    options = {"reason": "incident over", "actor": "operator:bob", **given}
    return resume(world.store, target, world.policy, **options)


def gate(world: World, account: str = "sms-K") -> Gate:
    found = world.read(lambda tx: tx.gates.lock(account))
    assert found is not None
    return found


@pytest.mark.parametrize("target", [SMS, LOAN])
def test_what_is_due_during_a_pause_waits_and_goes_at_once_after_it(target: Target) -> None:
    world = World("K", "N")
    held = world.schedule("a", group="loan-7")
    other = world.schedule("b", account="email-N")
    stop(world, target)
    report = world.pass_()
    assert (report.counts["deferred"], report.counts["published"]) == (1, 1)
    assert (world.state(held), world.state(other)) == (State.SCHEDULED, State.QUEUED)
    world.advance(30)
    assert world.pass_().examined == 0  # it left the head of the line
    assert go(world, target) == Resumed(target, True, woken=1)
    assert world.pass_().counts["published"] == 1
    assert world.send(Accepted("r")) == [held]


@pytest.mark.parametrize("target", [SMS, LOAN])
def test_what_is_queued_during_a_pause_waits_and_goes_at_once_after_it(target: Target) -> None:
    world = World("K")
    held = world.schedule("a", group="loan-7")
    world.pass_()
    stop(world, target)
    assert world.claim() == []
    assert world.events(held)[-1] == Event.DEFERRED
    world.advance(10)
    assert world.claim() == []
    assert go(world, target).woken == 1
    assert world.send(Accepted("r")) == [held]


def test_a_pause_lets_open_calls_finish() -> None:
    world = World("K")
    key = world.schedule("a")
    world.pass_()
    claims = world.claim()
    for target in (SMS, ACCOUNT, SCHEDULER):
        stop(world, target)
    world.settle([(claim, Accepted("r")) for claim in claims])
    assert world.state(key) is State.ACCEPTED


def test_a_group_is_of_one_tenant_and_one_name() -> None:
    world = World("K")
    world.template("t", Channel.SMS, "Dear {{ name }}", tenant="acme")
    world.schedule("a", group="loan-7", tenant="acme")
    world.schedule("b", group="loan-77")
    stop(world, LOAN)
    assert world.pass_().counts["published"] == 2
    assert stop(world, LOAN).held == 0  # nobody of that name: a typing mistake shows
    acme = Target(Scope.GROUP, " loan-7 ", tenant="acme")
    assert stop(world, acme).held == 1


def test_a_resume_wakes_only_what_its_own_pause_held() -> None:
    world = World("K", "N")
    world.schedule("a", group="loan-7")
    world.schedule("b")
    world.schedule("c", account="email-N")
    failed = world.schedule("d", account="email-N")
    for target in (SMS, LOAN, Target(Scope.CHANNEL, "email")):
        stop(world, target)
    world.pass_()
    # All three of the channels' rows are put off by the channel; the group's pause comes second.
    assert go(world, LOAN) == Resumed(LOAN, True, woken=0)
    assert go(world, SMS).woken == 2
    assert world.pass_().counts["published"] == 2
    assert world.state(failed) is State.SCHEDULED


def test_a_resume_leaves_retries_and_other_future_rows_alone() -> None:
    world = World("K")
    retry = world.schedule("a")
    world.pass_()
    world.send(Failed(Reason.UNAVAILABLE, "503", 600.0))
    later = world.schedule("b", due_in_s=60)
    next_at = world.row(retry).course.next_at
    stop(world, SMS)
    world.schedule("c")
    world.pass_()
    assert go(world, SMS).woken == 1
    assert world.row(retry).course.next_at == next_at
    assert world.row(later).course.next_at == world.now + 60 * SECOND


def test_a_large_resume_goes_in_short_units() -> None:
    world = World("K")
    world.schedule_many(450, due_in_s=0)
    stop(world, SMS)
    world.pass_()
    told: list[int] = []
    assert go(world, SMS, progress=told.append).woken == 450
    assert told == [200, 400, 450]
    assert world.pass_().counts["published"] == 450


def test_a_resume_that_was_killed_halfway_goes_on() -> None:
    world = World("K")
    world.schedule_many(250, due_in_s=0)
    stop(world, SMS)
    world.pass_()

    class KilledError(Exception):
        pass

    def kill(_: int) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        go(world, SMS, progress=kill)
    assert go(world, SMS) == Resumed(SMS, False, woken=50)


@pytest.mark.parametrize("target", [SMS, LOAN, ACCOUNT, SCHEDULER])
def test_a_pause_with_an_end_ends_by_itself(target: Target) -> None:
    world = World("K")
    key = world.schedule("a", group="loan-7")
    done = stop(world, target, until=world.now + 600 * SECOND)
    assert done.until == world.now + 600 * SECOND
    scheduler = Scheduler(world.store, world.policy, world.book, process="s")
    scheduler.run(trigger="test")
    assert world.claim() == []
    world.advance(599)
    scheduler.run(trigger="test")
    assert world.claim() == []
    world.advance(1)
    scheduler.run(trigger="test")
    assert world.send(Accepted("r")) == [key]


def test_an_accounts_pause_does_not_end_with_a_stepped_calendar() -> None:
    world = World("K")
    world.schedule("a", valid_s=1e6)
    world.pass_()
    stop(world, ACCOUNT, until=world.now + 600 * SECOND)
    world.clock.step(3_600)
    assert world.claimed().why == "paused"
    world.advance(601)
    assert len(world.claim()) == 1


def test_the_scheduler_pauses_and_catches_up() -> None:
    world = World("K")
    world.schedule("a")
    assert stop(world, SCHEDULER) == Paused(SCHEDULER, None)
    assert Scheduler(world.store, world.policy, world.book, process="s").run(trigger="test") is None
    world.advance(500)
    assert go(world, SCHEDULER) == Resumed(SCHEDULER, True)
    assert world.pass_().counts["published"] == 1
    assert go(world, SCHEDULER) == Resumed(SCHEDULER, False)


def test_an_account_is_paused_in_its_gate() -> None:
    world = World("K")
    key = world.schedule("a")
    world.pass_()
    stop(world, ACCOUNT)
    assert gate(world).paused_until == FOREVER
    assert world.claimed().why == "paused"
    assert world.state(key) is State.QUEUED
    (row,) = world.read(lambda tx: tx.runs.pauses())
    assert (row.scope, row.name, row.reason, row.actor) == ("account", "sms-K", "incident 7", "operator:ann")
    assert go(world, ACCOUNT) == Resumed(ACCOUNT, True)
    assert world.send(Accepted("r")) == [key]
    assert world.read(lambda tx: tx.runs.pauses()) == []


def close(world: World, outcome: AccountError | Throttled) -> None:
    world.schedule("a")
    world.schedule("b")
    world.pass_()
    (claim,) = world.claim(most=1)
    world.settle([(claim, outcome)])
    world.advance(0.01)
    assert world.claim() == []


def test_resuming_an_account_opens_what_was_held_for_a_fault_of_ours() -> None:
    world = World("K")
    close(world, AccountError(Reason.AUTHENTICATION, "535"))
    assert go(world, ACCOUNT) == Resumed(ACCOUNT, False, opened="account:535")
    assert len(world.claim()) == 1  # one probe first


def test_resuming_an_account_keeps_the_wait_that_the_provider_asked_for() -> None:
    world = World("K")
    close(world, Throttled(ThrottleScope.RATE, "429", 600.0))
    stop(world, ACCOUNT)
    assert go(world, ACCOUNT) == Resumed(ACCOUNT, True)
    assert world.claimed().why == "throttled"
    assert go(world, ACCOUNT, reopen=True) == Resumed(ACCOUNT, False, opened="throttled")
    assert len(world.claim()) == 2


def test_everything_is_audited() -> None:
    world = World("K")
    for target in (SMS, LOAN, ACCOUNT, SCHEDULER):
        stop(world, target)
        go(world, target)
        go(world, target)  # nothing to resume: nothing to tell
    rows = world.read(lambda tx: tx.rows("view_audit", before=2**62, limit=50))
    assert [(row["action"], row["target"], row["actor"], row["reason"]) for row in reversed(rows)] == [
        entry
        for name in ("channel sms", "group loan-7", "account sms-K", "scheduler")
        for entry in (
            ("pause", name, "operator:ann", "incident 7"),
            ("resume", name, "operator:bob", "incident over"),
        )
    ]


@pytest.mark.parametrize(
    ("target", "given", "field"),
    [
        (SMS, {"reason": " "}, "reason"),
        (Target(Scope.CHANNEL, "fax"), {}, "channel"),
        (Target(Scope.GROUP, "  "), {}, "group"),
        (Target(Scope.ACCOUNT, "nobody"), {}, "account"),
        (SMS, {"until": 5}, "until"),
        (ACCOUNT, {"until": 5}, "until"),
    ],
)
def test_requests_that_make_no_sense_are_refused(target: Target, given: dict[str, Any], field: str) -> None:
    world = World("K")
    with pytest.raises(InvalidInput) as error:
        stop(world, target, **given)
    assert error.value.field == field
    assert world.read(lambda tx: tx.runs.pauses()) == []


def test_the_later_word_counts() -> None:
    world = World("K")
    stop(world, SMS, until=world.now + 600 * SECOND)
    stop(world, SMS, reason="longer")
    (row,) = world.read(lambda tx: tx.runs.pauses())
    assert (row.until, row.reason) == (FOREVER, "longer")


# Limits


def limits(count: int, lanes: int = 50) -> GateLimits:
    return GateLimits((Limit(count, SECOND),), lanes)


def seed(world: World, configured: GateLimits) -> None:
    world.write(partial(_seed, configured=configured))


def _seed(tx: Any, configured: GateLimits) -> None:
    tx.gates.seed("sms-K", configured)


def change(world: World, new: GateLimits, account: str = "sms-K") -> tuple[GateLimits, GateLimits]:
    return change_limits(world.store, account, new, reason="new contract", actor="operator:ann")


def test_new_limits_hold_from_the_next_claim_on() -> None:
    world = World("K", limits=limits(1_000))
    world.schedule_many(300, due_in_s=0)
    world.pass_()
    assert len(world.send(Accepted("r"))) > 20
    before, after = change(world, limits(10))
    assert (before.limits[0].count, after.limits[0].count) == (1_000, 10)
    world.advance(1)
    assert len(world.claim()) == 1
    change(world, limits(1_000, lanes=3))
    world.advance(1)
    assert len(world.claim()) == 2  # one is open still
    assert world.claimed().why == "lanes"
    (row, *_) = world.read(lambda tx: tx.rows("view_audit", before=2**62, limit=1))
    assert (row["action"], row["target"], row["reason"]) == ("limits", "sms-K", "new contract")


def test_a_change_survives_a_restart_until_the_configuration_changes() -> None:
    world = World("K", limits=limits(100))
    change(world, limits(20))
    seed(world, limits(100))
    assert gate(world).limits == limits(20)
    seed(world, limits(50))
    assert gate(world).limits == limits(50)


def test_whose_configuration_was_overruled_is_said() -> None:
    """Two workers with different files: the limits of the one that started last hold for both."""
    world = World("K", "N", limits=limits(100))
    assert world.read(lambda tx: overruled(tx, world.policy, list(Channel))) == []
    change(world, limits(20))  # by an operator, for all: no configuration differs
    assert world.read(lambda tx: overruled(tx, world.policy, list(Channel))) == []
    seed(world, limits(50))
    assert world.read(lambda tx: overruled(tx, world.policy, list(Channel))) == ["sms-K"]
    assert world.read(lambda tx: overruled(tx, world.policy, [Channel.EMAIL])) == []


def test_what_was_used_of_a_quota_stays_used() -> None:
    day = 86_400 * SECOND
    quota = GateLimits((Limit(100, SECOND), Limit(5, day)), 50)
    world = World("K", limits=quota)
    world.schedule_many(20, due_in_s=0)
    world.pass_()
    for _ in range(10):
        world.send(Accepted("r"))
        world.advance(1)
    assert world.claimed().why == "quota"
    # Another order, another limit beside it, a larger quota: five are still used.
    change(world, GateLimits((Limit(1_000, 3_600 * SECOND), Limit(8, day), Limit(100, SECOND)), 50))
    sent = 0
    for _ in range(10):
        sent += len(world.send(Accepted("r")))
        world.advance(1)
    assert sent == 3


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (GateLimits((), 1), "limits"),
        (GateLimits((Limit(0, SECOND),), 1), "limits"),
        (GateLimits((Limit(1, 0),), 1), "limits"),
        (limits(1, lanes=0), "lanes"),
        (limits(1, lanes=10**6), "lanes"),
        (replace(limits(1), headroom=1.0), "headroom"),
        (GateLimits((Limit(1, 86_400 * SECOND),), lanes=1, headroom=0.5), "headroom"),
        (replace(limits(1), headroom=-0.1), "headroom"),
        (replace(limits(1), headroom=float("nan")), "headroom"),
    ],
)
def test_limits_that_cannot_be_are_refused(wrong: GateLimits, field: str) -> None:
    world = World("K")
    before = gate(world)
    with pytest.raises(InvalidInput) as error:
        change(world, wrong)
    assert error.value.field == field
    assert gate(world) == before


def test_an_account_without_a_gate_is_told() -> None:
    world = World("K")
    with pytest.raises(NotFound, match="has no gate; there are: sms-K"):
        change(world, limits(5), account="nobody")


def test_a_channel_of_another_case_is_the_same_channel() -> None:
    world = World("K")
    assert stop(world, Target(Scope.CHANNEL, " SMS ")).target.name == Channel.SMS


# Catching up


def test_a_resume_spreads_what_it_held_over_a_time() -> None:
    """Published or not, each has its turn within the span; what falls due meanwhile does not wait."""
    world = World("K")
    queued = [world.schedule(f"q-{number}") for number in range(30)]
    world.pass_()
    stop(world, SMS)
    world.claim()
    waiting = [world.schedule(f"w-{number}") for number in range(30)]
    world.pass_()
    world.advance(1_200)
    done = go(world, SMS, over_s=600.0)
    assert (done.was_paused, done.spread, done.woken) == (True, 60, 60)
    fresh = world.schedule("fresh")
    world.pass_()
    assert world.state(fresh) is State.QUEUED
    rows = [world.row(key) for key in (*queued, *waiting)]
    turns = sorted(row.course.next_at for row in rows)
    assert turns == [world.now + 10 * SECOND * number for number in range(60)]
    assert {row.course.reason for row in rows if row.course.next_at > world.now} == {"catch_up"}
    seen = world.read(lambda tx: overview(tx, world.policy))
    (sms,) = [channel for channel in seen.channels if channel.channel == "sms"]
    assert (sms.catching_up, sms.catch_up_until) == (30, world.now + 600 * SECOND)
    sent: list[str] = []
    for _ in range(60):
        world.pass_()
        sent += world.send(Accepted("r"))
        world.advance(10)
    assert sorted(sent) == sorted([*queued, *waiting, fresh])


def test_a_resumed_scheduler_spreads_all_that_is_overdue() -> None:
    world = World("K", "N")
    stop(world, SCHEDULER)
    texts = [world.schedule(f"t-{number}") for number in range(10)]
    mails = [world.schedule(f"m-{number}", account="email-N") for number in range(5)]
    world.advance(600)
    assert go(world, SCHEDULER, over_s=100.0).spread == 15
    world.pass_()
    for keys, step in ((texts, 10), (mails, 20)):
        turns = [world.row(key).course.next_at for key in keys]
        assert turns == [world.now + number * step * SECOND for number in range(len(keys))]
    # The word of the operator ends with the span: what comes later goes at once again.
    world.advance(200)
    assert world.pass_().counts["published"] == 13
    stop(world, SMS)
    world.schedule("next")
    world.pass_()
    go(world, SMS)
    assert world.pass_().counts["published"] == 1


def test_a_plain_resume_keeps_to_the_configured_catch_up() -> None:
    world = World("K")
    channels = {name: replace(own, catch_up_us=SECOND) for name, own in world.policy.channels.items()}
    world.policy = replace(world.policy, channels=channels)
    stop(world, SMS)
    keys = [world.schedule(f"r-{number}") for number in range(10)]
    world.pass_()
    world.advance(30)
    assert go(world, SMS).woken == 10
    assert world.pass_().counts["catch_up"] == 8
    assert world.row(keys[-1]).course.next_at == world.now + 9 * SECOND


def test_a_dying_key_does_not_take_its_turn() -> None:
    world = World("K")
    key = world.schedule()
    world.pass_()
    world.send(Unknown("timeout"))
    world.advance(60)
    stop(world, SMS)
    assert world.claim() == []
    assert go(world, SMS, over_s=3_600.0).spread == 1
    assert [claim.key for claim in world.claim()] == [key]


@pytest.mark.parametrize(
    ("target", "over_s", "says"),
    [(ACCOUNT, 60.0, "accounts limits"), (SMS, 0.5, "use 1 s to 7 d"), (SMS, 1e6, "use 1 s to 7 d")],
)
def test_a_span_that_makes_no_sense_is_refused(target: Target, over_s: float, says: str) -> None:
    world = World("K")
    stop(world, target)
    with pytest.raises(InvalidInput, match=says):
        go(world, target, over_s=over_s)
    if target is not ACCOUNT:
        assert go(world, target).was_paused
