"""The reaper: calls that nobody will settle, lanes that may be given back, and what its time has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sendonce.core.lifecycle import Ending, State
from sendonce.core.outcome import Accepted, Failed, Reason, Unknown
from sendonce.core.pacing import FOREVER, GateLimits, Limit
from sendonce.core.policy import Policy
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.retry import RetryPolicy
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.reaper import PAGE
from sendonce.ports.store import Pause, Process, Tx
from tests.integration.world import SECOND, World, account_of, policy_of

LEASE_S = 30.0


def _claimed(world: World, count: int = 1) -> list[Claim]:
    for number in range(count):
        world.schedule(f"r-{number}")
    world.pass_()
    claims = world.claim()
    while len(claims) < count:
        world.advance(0.1)
        claims += world.claim()
    return claims


def _open(world: World) -> int:
    return world.read(lambda tx: tx.calls.count(world.accounts[0]))


def _die(world: World, seconds: float) -> None:
    """Time passes, and the process says nothing; another one takes over."""
    world.clock.advance(seconds)
    world.process = "w-2"
    world.beat()


# Who is lost


@pytest.mark.parametrize(("kind", "state"), [("K", "QUEUED"), ("L", "RECONCILING"), ("N", "UNCERTAIN")])
def test_a_dead_process_leaves_doubt_and_its_class_decides(kind: str, state: str) -> None:
    world = World(kind)
    (claim,) = _claimed(world)
    promised = world.policy.accounts[world.accounts[0]].promise
    world.policy = policy_of(
        replace(world.policy.accounts[world.accounts[0]], promise=replace(promised, timeout_s=100.0))
    )
    world.clock.advance(LEASE_S - 0.001)
    assert world.reap() == 0 or claim.send_deadline <= world.store.steady()
    _die(world, 0.001)
    world.reap()
    row = world.row(claim.key)
    assert (row.standing.state, row.standing.maybe) == (State(state), True)


def test_a_lease_is_waited_for_to_the_microsecond() -> None:
    # A call may take 100 s, so that its own deadline says nothing.
    account = account_of("K")
    slow = replace(account, promise=replace(account.promise, timeout_s=100.0))
    world = World(policy=policy_of(slow))
    (claim,) = _claimed(world)
    world.clock.advance(LEASE_S - 0.000001)
    assert world.reap() == 0
    _die(world, 0.000001)
    assert world.reap() == 1
    assert world.row(claim.key).course.reason == "unknown:lease_lost"
    line = world.lines(claim.key)[-1]
    assert (line.actor, line.word("process"), line.word("evidence")) == ("reaper", "w-1", "lease_lost")


def test_a_living_process_may_lose_a_call_too() -> None:
    world = World("K")
    (claim,) = _claimed(world)
    world.clock.advance((claim.send_deadline - world.store.steady() - 1) / SECOND)
    world.beat()
    assert world.reap() == 0
    world.clock.advance(0.000001)
    assert world.reap() == 1
    assert world.row(claim.key).course.reason == "unknown:send_deadline"


def test_a_stopped_process_is_alive_until_its_lease_is_over() -> None:
    """Frozen, then continued: its outcome comes late and still counts as evidence."""
    world = World("K")
    (claim,) = _claimed(world)
    _die(world, LEASE_S)
    assert world.reap() == 1
    world.process = "w-1"  # it wakes up and goes on
    world.beat()
    assert world.settle([(claim, Accepted("r"))]) == [State.ACCEPTED]
    assert _open(world) == 0


def test_a_process_that_signed_off_left_nothing_open() -> None:
    world = World("K")
    (claim,) = _claimed(world)
    steady = world.store.steady()
    gone = Process("w-1", "worker", "sms", "host", 1, 0, 0, steady, stopped=True)
    world.write(lambda tx: tx.processes.beat(gone))
    assert world.reap() == 1
    assert world.state(claim.key) is State.QUEUED


def test_reaping_again_changes_nothing() -> None:
    world = World("K")
    (claim,) = _claimed(world)
    _die(world, LEASE_S)
    assert [world.reap(), world.reap()] == [1, 0]
    assert world.events(claim.key).count("unknown") == 1


def test_what_was_settled_is_not_lost() -> None:
    world = World("K")
    (claim,) = _claimed(world)
    world.settle([(claim, Accepted("r"))])
    _die(world, 3_600)
    assert world.reap() == 0
    assert world.state(claim.key) is State.ACCEPTED


def test_a_newer_attempt_is_not_taken_for_the_old_one() -> None:
    world = World("K")
    _claimed(world)
    _die(world, LEASE_S)
    world.reap()
    world.advance(3)
    (again,) = world.claim()
    assert _open(world) == 2
    assert world.reap() == 0
    assert world.row(again.key).standing.epoch == again.epoch


def test_a_page_of_lost_calls_hides_no_other() -> None:
    """The lanes of a dead process are held for a while after its calls were given up."""
    limits = GateLimits((Limit(10_000, SECOND),), lanes=PAGE + 50)
    world = World("K", limits=limits)
    claims = _claimed(world, PAGE + 50)
    _die(world, LEASE_S)
    assert [world.reap(), world.reap(), world.reap()] == [PAGE, 50, 0]
    assert {world.state(claim.key) for claim in claims} == {State.QUEUED}
    assert _open(world) == PAGE + 50, "and the lanes wait for their time"


def test_calls_of_an_account_that_this_process_lacks_are_left_to_others() -> None:
    world = World("K", "N")
    whole = world.policy
    (claim,) = _claimed(world)
    world.schedule("mail", account="email-N")
    world.pass_()
    (other,) = world.claim("email-N")
    _die(world, LEASE_S + 20)
    world.policy = replace(whole, accounts={"email-N": whole.accounts["email-N"]})
    assert world.reap() == 1
    assert (world.state(claim.key), world.state(other.key)) == (State.SENDING, State.UNCERTAIN)
    assert _open(world) == 1
    world.policy = whole
    assert world.reap() == 1


# RATE-13: lanes


def test_rate_13_lanes_of_a_killed_process_come_back_after_lease_and_call_time() -> None:
    world = World("K", limits=GateLimits((Limit(1_000, SECOND),), lanes=3))
    _claimed(world, 3)
    for number in range(10, 40):
        world.schedule(f"r-{number}")
    world.pass_()
    _die(world, LEASE_S)
    assert world.reap() == 3
    assert world.claimed().why == "lanes", "the provider may still be working on them"
    world.advance(10.0 - 0.001)
    world.reap()
    assert world.claim() == []
    world.advance(0.001)
    world.reap()
    assert _open(world) == 0
    assert len(world.claim()) == 3, "three are free, and not more"
    assert world.claimed().why == "lanes"


def test_rate_13_an_adapter_that_closes_with_its_process_says_less() -> None:
    account = account_of("K", limits=GateLimits((Limit(1_000, SECOND),), lanes=3))
    promise = Promise(ProviderClass.KEY, timeout_s=10.0, key_window_s=86_400.0, held_s=0.0)
    world = World(policy=policy_of(replace(account, promise=promise)))
    _claimed(world, 3)
    _die(world, LEASE_S)
    world.reap()
    assert _open(world) == 0


def test_rate_13_a_living_process_keeps_the_lane_of_a_call_that_is_still_open() -> None:
    world = World("K", limits=GateLimits((Limit(1_000, SECOND),), lanes=1))
    (claim,) = _claimed(world)
    for _ in range(10):
        world.advance(20)
        world.reap()
    assert world.state(claim.key) is State.QUEUED
    assert world.claimed().why == "lanes", "its own open call counts, however long it takes"
    world.settle([(claim, Unknown("timeout"))])
    assert len(world.claim()) == 1


def test_rate_13_a_process_that_was_stopped_and_continued_gives_nothing_back_twice() -> None:
    world = World("K", limits=GateLimits((Limit(1_000, SECOND),), lanes=2))
    (first,) = _claimed(world)
    _die(world, LEASE_S + 11)
    world.reap()
    assert _open(world) == 0
    world.advance(3)
    (second,) = world.claim()
    assert second.epoch > first.epoch
    world.process = "w-1"
    world.settle([(first, Unknown("timeout"))])
    assert _open(world) == 1


# Budgets


def test_dlq_09_a_crash_in_the_last_attempt_ends_in_doubt_not_for_ever() -> None:
    world = World("N", retry=RetryPolicy(attempts_max=1))
    (claim,) = _claimed(world)
    behind = world.schedule("behind")
    world.pass_()
    _die(world, LEASE_S)
    world.reap()
    row = world.row(claim.key)
    assert (row.standing.state, row.course.reason) == (State.UNCERTAIN, "unknown:lease_lost")
    assert [other.key for other in world.claim()] == [behind]
    world.permit(claim.key)
    assert [other.key for other in world.claim()] == [claim.key]


def test_lost_calls_spend_the_budget_and_wait() -> None:
    """A delivery that kills its worker each time does so only as often as the budget allows."""
    world = World("K", retry=RetryPolicy(attempts_max=3, base_s=2.0))
    key = world.schedule()
    world.pass_()
    for failures in (1, 2):
        (claim,) = world.claim()
        _die(world, LEASE_S)
        world.process = f"w-{failures + 2}"
        world.reap()
        row = world.row(key)
        assert (row.standing.state, row.course.failures) == (State.QUEUED, failures)
        assert row.course.next_at > world.now, "not at once"
        assert world.claim() == []
        world.advance(5)
    assert claim.epoch == world.row(key).standing.epoch
    assert len(world.claim()) == 1
    _die(world, LEASE_S)
    world.reap()
    assert world.state(key) is State.UNCERTAIN


@pytest.mark.parametrize(("kind", "state"), [("K", State.UNCERTAIN), ("L", State.RECONCILING)])
def test_a_cancelled_call_that_is_lost_stays_in_doubt(kind: str, state: State) -> None:
    world = World(kind)
    (claim,) = _claimed(world)
    world.withdraw(claim.key)
    _die(world, LEASE_S)
    world.reap()
    standing = world.row(claim.key).standing
    assert (standing.state, standing.ending) == (state, Ending.CANCEL)


# DUP-09: what waits is not stuck


def test_dup_09_a_row_in_backoff_is_left_alone() -> None:
    world = World("K", retry=RetryPolicy(attempts_max=3, base_s=86_400.0, cap_s=86_400.0), chance=0.999)
    key = world.schedule(valid_s=3 * 86_400.0)
    world.pass_()
    world.send(Failed(Reason.UNAVAILABLE, "503"))
    before = world.row(key)
    for _ in range(95):
        world.advance(900)
        world.pass_()
        assert world.reap() == world.expire() == 0
        assert world.claim() == []
    assert world.row(key) == before
    world.advance(900)
    assert len(world.claim()) == 1


# Time


def _held(world: World, how: str) -> None:
    def unit(tx: Tx) -> None:
        gate = tx.gates.lock(world.accounts[0])
        assert gate is not None
        if how == "closed":
            tx.gates.save(replace(gate, closed_until=tx.steady + 86_400 * SECOND, closed_why="quota"))
        elif how == "account paused":
            tx.gates.save(replace(gate, paused_until=FOREVER))
        else:
            tx.runs.pause(Pause("channel", "sms", FOREVER, "why", "api:test", tx.now))

    world.write(unit)


@pytest.mark.parametrize("how", ["closed", "account paused", "channel paused", "scheduler stopped"])
def test_what_is_past_its_expiry_ends_whatever_holds_it(how: str) -> None:
    """RATE-05."""
    world = World("K")
    key = world.schedule(valid_s=600.0)
    if how != "scheduler stopped":
        world.pass_()
        _held(world, how)
        world.claim()
    world.advance(600 - 0.000001)
    assert world.expire() == 0
    world.advance(0.000001)
    assert world.expire() == 1
    assert (world.state(key), world.row(key).course.reason) == (State.EXPIRED, "past_expiry")
    assert world.expire() == 0


@pytest.mark.parametrize(("lookup", "state"), [(True, State.RECONCILING), (False, State.UNCERTAIN)])
def test_what_may_be_sent_does_not_expire_into_unsent(lookup: bool, state: State) -> None:
    account = account_of("K")
    world = World(policy=policy_of(replace(account, promise=replace(account.promise, lookup=lookup))))
    key = world.schedule(valid_s=600.0)
    world.pass_()
    world.send(Unknown("timeout"))
    assert world.state(key) is State.QUEUED
    world.advance(600)
    assert world.expire() == 1
    assert (world.state(key), world.row(key).standing.maybe) == (state, True)


def test_more_than_a_page_expires_in_pages() -> None:
    world = World("K")
    for number in range(PAGE + 5):
        world.schedule(f"r-{number}", valid_s=60.0)
    world.advance(60)
    assert [world.expire(), world.expire(), world.expire()] == [PAGE, 5, 0]


def test_expiry_needs_no_account_where_nothing_was_sent() -> None:
    """Rows of an account that the configuration lost still end, and hide nobody behind them."""
    world = World("K", "N")
    for number in range(PAGE):
        world.schedule(f"r-{number}", valid_s=60.0)
    world.pass_()
    behind = world.schedule("behind", account="email-N", valid_s=61.0)
    whole = world.policy
    world.policy = _without(whole, "sms-K")
    world.advance(61)
    assert [world.expire(), world.expire()] == [PAGE, 1]
    assert world.state(behind) is State.EXPIRED


def test_doubt_is_not_decided_without_its_account() -> None:
    world = World("K", "N")
    key = world.schedule(valid_s=60.0)
    world.pass_()
    world.send(Unknown("timeout"))
    whole = world.policy
    world.policy = _without(whole, "sms-K")
    world.advance(60)
    assert world.expire() == 0
    world.policy = whole
    assert world.expire() == 1
    assert world.state(key) is State.UNCERTAIN


def _without(policy: Policy, account: str) -> Policy:
    return replace(policy, accounts={n: a for n, a in policy.accounts.items() if n != account})
