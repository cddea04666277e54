"""The claim: as many as the gate, the lanes and the slots allow, in fair order, of what may still go."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from sendonce.core import pacing
from sendonce.core.consent import Kind, NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.due import parse_quiet
from sendonce.core.lifecycle import Ending, State
from sendonce.core.outcome import Accepted, Failed, NotStarted, Outcome, Reason, Unknown
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.policy import Recipients
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.retry import RetryPolicy
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.claimer import LINE_LOOK_US
from sendonce.pipeline.claimer import claim as claim_for
from sendonce.pipeline.pause import change_limits
from sendonce.pipeline.scheduler import TIMER, Scheduler
from sendonce.ports.store import Pause, Tx
from tests.integration.world import HOUR, SECOND, World, account_of, policy_of


def _world(
    *, rate: int = 1_000, per_s: float = 1.0, lanes: int = 50, jitter_us: int = 10_000, kind: str = "K"
) -> World:
    limit = Limit(rate, int(per_s * SECOND))
    return World(kind, limits=GateLimits((limit,), lanes=lanes, jitter_us=jitter_us))


def _publish(world: World, count: int, first: int = 0, **given: object) -> list[str]:
    keys = [world.schedule(f"r-{number}", **given) for number in range(first, first + count)]  # type: ignore[arg-type]
    world.pass_()
    return keys


def _gate(world: World) -> pacing.Gate:
    gate = world.write(lambda tx: tx.gates.lock(world.accounts[0]))
    assert gate is not None
    return gate


def _change(world: World, **changes: object) -> None:
    world.write(lambda tx: tx.gates.save(replace(_locked(tx, world), **changes)))  # type: ignore[arg-type]


def _locked(tx: Tx, world: World) -> pacing.Gate:
    gate = tx.gates.lock(world.accounts[0])
    assert gate is not None
    return gate


# The durable intent


def test_a_claim_is_the_durable_intent_to_send() -> None:
    world = _world()
    (key,) = _publish(world, 1)
    (claim,) = world.claim()
    row = world.row(key)
    assert row.standing.state is State.SENDING
    assert row.standing.epoch == claim.epoch == 1
    assert row.course.attempts == 1
    assert row.course.first_try == row.course.last_try == world.store.steady()
    assert world.read(lambda tx: tx.calls.count("sms-K")) == 1
    assert claim.slot_at < claim.send_deadline == claim.slot_at + 15 * SECOND
    line = world.lines(key)[-1]
    assert (line.event, line.actor, line.word("decision")) == ("claimed", "worker:w-1", "first")
    assert claim.message.send_key.startswith(line.word("send_key"))


def test_a_claim_is_one_unit_all_or_nothing() -> None:
    world = _world(lanes=3)
    keys = _publish(world, 3)
    before = _gate(world)

    class Broken(Exception):
        pass

    def interrupted(tx: Tx) -> None:
        account = world.policy.accounts["sms-K"]
        made = claim_for(tx, account, world.policy, process="w-1", secret=world.store.secret, lead_us=2_000)
        assert len(made.claims) == 3
        raise Broken

    with pytest.raises(Broken):
        world.write(interrupted)
    assert [world.state(key) for key in keys] == [State.QUEUED] * 3
    assert replace(_gate(world), version=0) == replace(before, version=0), "no slot was spent"
    assert world.read(lambda tx: tx.calls.count("sms-K")) == 0


def test_every_attempt_sends_the_same_bytes_under_the_same_key() -> None:
    world = _world()
    _publish(world, 1)
    (first,) = world.claim()
    world.settle([(first, Unknown("reset"))])
    world.template("t", Channel.SMS, "Something else", version=2)
    world.advance(3)
    (second,) = world.claim()
    assert replace(second.message, valid_s=0) == replace(first.message, valid_s=0)
    assert second.epoch > first.epoch
    assert world.lines(first.key)[-1].word("decision") == "same_key"


# Passing over what is gone


def test_who_comes_in_below_the_head_of_the_line_waits_for_the_next_look() -> None:
    """Between two looks at the whole line only its head is asked for; nobody is lost by it."""
    world = _world()
    _publish(world, 1)
    (first,) = world.claim()
    _publish(world, 2, first=1)
    assert len(world.claim(most=1)) == 1
    world.advance(1.0)
    _publish(world, 1, first=3)
    assert len(world.claim(most=1)) == 1, "the line was looked at, and begins behind the first one now"
    assert world.settle([(first, NotStarted("stopping"))]) == [State.QUEUED]
    rest = [claim.key for claim in world.claim()]
    assert rest == [world.key("r-3", Channel.SMS)], "those at the head go on"
    world.advance(LINE_LOOK_US / SECOND)
    assert [claim.key for claim in world.claim()] == [first.key]


def test_what_is_published_goes_at_once_between_two_looks() -> None:
    world = _world()
    for number in range(3):
        for group in ("a", "b", f"c-{number}"):
            (key,) = _publish_as(world, f"r-{number}-{group}", group)
            assert [claim.key for claim in world.claim()] == [key]
            world.advance(0.1)


def _publish_as(world: World, reminder: str, group: str) -> list[str]:
    key = world.schedule(reminder, group=group)
    world.pass_()
    return [key]


def test_open_calls_are_all_counted_from_the_first_of_them_on() -> None:
    """Whoever claims remembers when the first open call was claimed; a call that is older is none."""
    world = _world(lanes=3)
    _publish(world, 9)
    (oldest,) = world.claim(most=1)
    world.advance(1)
    (second,) = world.claim(most=1)
    assert _gate(world).calls_from == oldest.claimed_at
    world.settle([(oldest, Accepted("r"))])
    world.advance(1)
    assert len(world.claim()) == 2
    assert _gate(world).calls_from == second.claimed_at
    assert world.claimed().why == "lanes"


def test_a_claim_that_began_before_another_one_counts_all_calls() -> None:
    """Its unit began first and had the gate later; or the clock of another server is behind."""
    world = _world(lanes=3)
    _publish(world, 9)
    assert len(world.claim(most=1)) == 1
    _change(world, calls_from=world.store.steady() + 5 * SECOND)
    assert len(world.claim()) == 2
    assert _gate(world).calls_from == world.store.steady()
    assert world.claimed().why == "lanes"


def test_a_gate_that_knows_no_bounds_passes_over_nothing() -> None:
    """As one is that a program of the version before has written."""
    world = _world(lanes=3)
    _publish(world, 9)
    assert len(world.claim(most=2)) == 2
    world.advance(1)
    _change(world, calls_from=0, line_from=0, looked_at=0)
    assert len(world.claim()) == 1
    assert world.claimed().why == "lanes"


# Lanes


def test_lanes_are_calls_over_all_processes() -> None:
    world = _world(lanes=3)
    _publish(world, 5)
    first = world.claim(most=2)
    world.process = "w-2"
    world.beat()
    second = world.claim()
    assert (len(first), len(second)) == (2, 1)
    assert world.claimed().why == "lanes"
    world.settle([(first[0], Failed(Reason.UNAVAILABLE, "503"))])
    assert len(world.claim()) == 1


def test_dup_05_a_lane_is_given_back_by_its_own_call_only() -> None:
    """The delivery was reaped and claimed again: the old call still holds its lane, the new one another."""
    world = _world(lanes=2)
    _publish(world, 3)
    (first,) = world.claim(most=1)
    world.clock.advance(15.1)  # past its deadline; its process lives
    world.beat()
    assert world.reap() == 1
    assert world.read(lambda tx: tx.calls.count("sms-K")) == 1
    world.advance(3)
    (again,) = world.claim()
    assert again.key == first.key
    assert world.claimed().why == "lanes"
    world.settle([(again, Accepted("b"))])
    assert len(world.claim()) == 1, "one lane is free, and not two"
    world.settle([(first, Accepted("a"))])
    assert len(world.claim()) == 1


def test_headroom_leaves_lanes_and_pace_to_others() -> None:
    """Half of ten a second and of ten lanes; a call takes 1.5 s, so that both limits are met."""
    limits = GateLimits((Limit(10, SECOND),), lanes=10, headroom=0.5, jitter_us=0)
    world = World("K", limits=limits)
    _publish(world, 40)
    starts = _run(world, seconds=9.0, takes_s=1.5, lanes=5)
    assert most_within(starts, 1.0) <= 5
    assert len(starts) >= 28, "five lanes for 1.5 s each: 3.3 a second"


def most_within(times: list[int], seconds: float) -> int:
    """The most of these instants in any half-open window."""
    width = int(seconds * SECOND)
    return max((sum(at <= other < at + width for other in times) for at in times), default=0)


def _run(world: World, *, seconds: float, takes_s: float, lanes: int = 50) -> list[int]:
    """Claim and settle as workers would; the instants at which calls start, each in its slot."""
    starts: list[int] = []
    open_: list[tuple[int, Claim]] = []
    until = world.store.steady() + int(seconds * SECOND)
    while world.store.steady() < until:
        now = world.store.steady()
        done = [claim for ends, claim in open_ if ends <= now]
        open_ = [(ends, claim) for ends, claim in open_ if ends > now]
        if done:
            world.settle([(claim, Accepted("r")) for claim in done])
        for claim in world.claim():
            starts.append(claim.slot_at)
            open_.append((claim.slot_at + int(takes_s * SECOND), claim))
        assert len(open_) <= lanes
        world.advance(0.01)
    return starts


# Slots


@pytest.mark.parametrize(("rate", "per_s"), [(1, 1.0), (5, 1.0), (14, 1.0), (10, 60.0)])
def test_slots_are_exact_and_never_in_a_bunch(rate: int, per_s: float) -> None:
    world = _world(rate=rate, per_s=per_s, jitter_us=10_000)
    count = 3 * rate
    _publish(world, count)
    starts: list[int] = []
    while len(starts) < count:
        claimed = world.claimed()
        starts += [claim.slot_at for claim in claimed.claims]
        if claimed.claims:
            world.settle([(claim, Accepted("r")) for claim in claimed.claims])
        wait_us = max(claimed.again_at - world.store.steady(), 1_000)
        world.advance(wait_us / SECOND)
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    spacing = (per_s * SECOND + 30_000) / rate
    assert min(gaps) >= spacing - 1
    # Each call may reach the provider up to three times the jitter late, and still no window holds more.
    chance = random.Random(4)
    for _ in range(20):
        late = sorted(at + chance.randrange(0, 30_001) for at in starts)
        assert most_within(late, per_s) <= rate
    # None is wasted: they are as close as the limit allows.
    assert starts[-1] - starts[0] <= spacing * (count - 1) * 1.05 + count * 1_000


def test_rate_09_a_restart_gives_no_new_allowance() -> None:
    """Four processes at 10 per 60 s, one of them restarted: the account is one."""
    world = _world(rate=10, per_s=60.0, jitter_us=0)
    _publish(world, 40)
    starts: list[int] = []
    began = world.store.steady()
    for turn in range(1_200):
        world.process = f"w-{turn % 4}" if turn < 100 else f"again-{turn % 4}"
        world.beat()
        for claim in world.claim():
            starts.append(claim.slot_at)
            world.settle([(claim, Accepted("r"))])
        if len(starts) == 40:
            break
        world.clock.advance(0.31)
    assert len(starts) == 40
    assert most_within(starts, 60.0) <= 10
    assert starts[-1] - began >= 180 * SECOND


def test_rate_11_no_double_allowance_across_a_boundary() -> None:
    world = _world(rate=5, per_s=60.0, jitter_us=0)
    _publish(world, 1)
    (first,) = world.claim()
    world.settle([(first, Accepted("r"))])
    _publish(world, 9, first=1, due_in_s=59.0)
    world.advance(59.0)
    world.pass_()
    starts = [first.slot_at]
    while len(starts) < 10:
        claimed = world.claimed()
        starts += [claim.slot_at for claim in claimed.claims]
        world.settle([(claim, Accepted("r")) for claim in claimed.claims])
        world.advance(max(claimed.again_at - world.store.steady(), SECOND // 10) / SECOND)
    assert most_within(starts, 60.0) <= 5
    assert sum(at < first.slot_at + 60 * SECOND for at in starts) <= 5


def test_only_what_starts_soon_is_taken() -> None:
    world = _world(rate=10)
    _publish(world, 10)
    (claim,) = world.claim()
    assert 0 <= claim.slot_at - world.store.steady() <= 52_000
    refused = world.claimed()
    assert (refused.claims, refused.why) == ((), "rate")
    # The next slot is 102 ms after the first; it is given out 50 ms ahead.
    assert refused.again_at == claim.slot_at + 103_000 - 2_000 - 50_000
    world.advance((refused.again_at - world.store.steady() - 1) / SECOND)
    assert world.claim() == []
    world.advance(1 / SECOND)
    assert len(world.claim()) == 1


def test_an_empty_queue_burns_no_slots() -> None:
    world = _world(rate=1)
    for _ in range(10):
        assert world.claimed().why == "empty"
    _publish(world, 1)
    assert world.claim()[0].slot_at == world.store.steady() + 2_000


def test_several_limits_hold_together_and_parts_are_counted() -> None:
    """Ten calls a second, and 20 parts of a text message in 2 s; each message has two parts."""
    limits = GateLimits((Limit(10, SECOND), Limit(20, 2 * SECOND, parts=True)), lanes=50, jitter_us=0)
    world = World("K", limits=limits)
    long = "x" * 200
    world.template("long", Channel.SMS, long)
    keys = _publish(world, 15, template="long")
    assert world.row(keys[0]).course.cost == 2
    starts = _run(world, seconds=4.0, takes_s=0.0)
    assert len(starts) == 15
    assert most_within(starts, 2.0) <= 10


def test_a_quota_parks_what_does_not_fit() -> None:
    limits = GateLimits((Limit(1_000, SECOND), Limit(5, 86_400 * SECOND)), lanes=50)
    world = World("K", limits=limits)
    _publish(world, 8, valid_s=5 * 86_400.0)
    claims = world.claim()
    assert len(claims) == 5
    world.settle([(claim, Accepted("r")) for claim in claims])
    refused = world.claimed()
    assert (refused.claims, refused.why) == ((), "quota")
    world.advance(86_400)
    assert world.claim() == []
    world.advance((refused.again_at - world.store.steady()) / SECOND)
    assert len(world.claim()) == 3


# The gate


def test_how_late_a_call_may_start_is_the_gates_word() -> None:
    """Not that of the process that claims: its configuration may be another one, and the slots of all are
    spaced by the gate's."""
    world = _world()
    _publish(world, 1)
    account = world.policy.accounts["sms-K"]
    patient = replace(account, limits=replace(account.limits, jitter_us=5 * SECOND))
    world.policy = replace(world.policy, accounts={"sms-K": patient})
    (made,) = world.claim()
    assert made.starts_by == made.slot_at + account.limits.late_us


def test_without_a_gate_nothing_goes() -> None:
    world = _world()
    _publish(world, 1)
    other = replace(world.policy.accounts["sms-K"], name="other")
    world.policy = replace(world.policy, accounts={**world.policy.accounts, "other": other})
    assert world.claimed("other").why == "no gate"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"closed_until": 5, "closed_why": "throttled"}, "throttled"),
        ({"closed_until": 5, "closed_why": "account:401", "probing": True}, "account:401"),
        ({"paused_until": 5}, "paused"),
    ],
)
def test_a_closed_gate_lets_nothing_through_and_opens_by_itself(changes: dict[str, object], why: str) -> None:
    world = _world()
    (key,) = _publish(world, 1)
    opens = world.store.steady() + 5 * SECOND
    _change(world, **{name: opens if value == 5 else value for name, value in changes.items()})
    claimed = world.claimed()
    assert (claimed.claims, claimed.why, claimed.again_at) == ((), why, opens)
    assert world.state(key) is State.QUEUED
    world.advance(4.999)
    assert world.claim() == []
    world.advance(0.001)
    assert len(world.claim()) == 1


def test_probing_lets_one_through_at_a_time() -> None:
    world = _world()
    _publish(world, 4)
    _change(world, probing=True)
    (probe,) = world.claim()
    assert probe.watched
    assert world.claimed().why == "probing"
    world.settle([(probe, NotStarted("slot_missed"))])
    (probe,) = world.claim()
    world.settle([(probe, Accepted("r"))])
    assert len(world.claim()) == 3


# Order


def test_two_groups_share_the_account_whatever_their_sizes() -> None:
    world = _world()
    flood = _publish(world, 100, group="campaign")
    few = _publish(world, 5, first=1_000, group="loan")
    order = [claim.key for claim in world.claim(most=10)]
    assert set(few) <= set(order), "the small group is not behind the flood"
    assert set(order) & set(flood)


def test_priority_is_a_weight_not_a_wall() -> None:
    world = _world()
    _publish(world, 60, group="g", priority=0)
    _publish(world, 60, first=100, group="g", priority=2)
    claims = world.claim(most=40)
    shares = Counter(int(claim.key.split(":")[0][2:]) >= 100 for claim in claims)
    assert shares[True] == 30
    assert shares[False] == 10


def test_what_was_idle_saves_nothing_up() -> None:
    """A group that comes back after a day of silence does not take the account for itself."""
    world = _world()
    _publish(world, 200, group="busy")
    for _ in range(3):
        world.settle([(claim, Accepted("r")) for claim in world.claim()])
        world.advance(1)
    _publish(world, 50, first=500, group="idle")
    claims = world.claim(most=40)
    idle = sum(int(claim.key.split(":")[0][2:]) >= 500 for claim in claims)
    assert 15 <= idle <= 25


def test_retries_have_a_share_and_fresh_ones_too() -> None:
    world = World("K", retry=RetryPolicy(attempts_max=9, base_s=1.0))
    _publish(world, 40)
    failing = world.claim(most=8)
    world.settle([(claim, Failed(Reason.UNAVAILABLE, "503")) for claim in failing])
    world.settle([(world.claim(most=1)[0], Accepted("r"))])
    world.advance(20)
    claims = world.claim(most=12)
    retries = {claim.key for claim in claims} & {claim.key for claim in failing}
    assert len(retries) == 3, "a quarter, while fresh ones wait"
    # With nothing fresh, they have it all.
    world.settle([(claim, Accepted("r")) for claim in claims])
    while fresh := world.claim(most=4):
        world.settle([(claim, Accepted("r")) for claim in fresh])
        world.advance(0.1)
    assert {world.state(claim.key) for claim in failing} == {State.ACCEPTED}


def test_retries_of_a_failing_provider_are_bounded_but_not_starved() -> None:
    world = World("K", retry=RetryPolicy(attempts_max=999, base_s=0.1, floor_s=0.1, cap_s=0.1))
    _publish(world, 50)
    tries = 0
    for _ in range(25):
        claims = world.claim()
        tries += len(claims)
        world.settle([(claim, Failed(Reason.MAILBOX_FULL, "452")) for claim in claims])
        _change(world, streak=0, probing=False, closed_until=0)
        world.advance(0.2)
    # A fifth of the account's rate, over 5 s, and what was credited before; never less than the floor.
    assert 50 + 5 * 5 < tries <= 50 + 5 * 200 + 100


def test_dying_keys_go_first_the_oldest_before_the_others() -> None:
    """By the first attempt under the key, whoever gave up the last one: its worker or the reaper."""
    world = _world()
    _publish(world, 2)
    (old,) = world.claim(most=1)
    world.settle([(old, Unknown("timeout"))])
    world.advance(0.5)
    (young,) = world.claim()
    world.settle([(young, Unknown("timeout"))])
    world.advance(5)
    again = {claim.key: claim for claim in world.claim()}
    assert set(again) == {old.key, young.key}
    world.settle([(again[young.key], Unknown("timeout"))])
    world.clock.advance(15.1)
    world.beat()
    assert world.reap() == 1
    fresh = _publish(world, 8, first=10)
    world.advance(5)
    order = [claim.key for claim in world.claim()]
    assert order[:2] == [old.key, young.key]
    assert set(order[2:]) == set(fresh)


# Asked once more at the claim


@pytest.mark.parametrize(
    ("kind", "state"), [(Kind.OPT_OUT, State.SUPPRESSED), (Kind.SUPPRESSED, State.SUPPRESSED)]
)
def test_consent_that_changed_after_publication(kind: Kind, state: State) -> None:
    world = _world()
    (key,) = _publish(world, 1)
    world.opt_out(Channel.SMS, kind=kind)
    claimed = world.claimed()
    assert (claimed.claims, claimed.ended) == ((), 1)
    row = world.row(key)
    assert row.standing.state is state
    assert row.course.reason == f"{'opted_out' if kind is Kind.OPT_OUT else 'suppressed'}:test"
    assert row.course.attempts == 0


def test_no_record_is_refused_where_the_configuration_says_so() -> None:
    world = _world()
    (key,) = _publish(world, 1)
    category = replace(world.policy.categories["sms-K"], no_record=NoRecord.REFUSE)
    world.policy = replace(world.policy, categories={"sms-K": category})
    assert world.claim() == []
    assert world.row(key).course.reason == "no_consent"


def test_expiry_at_the_claim_is_exact() -> None:
    world = _world()
    (a,) = _publish(world, 1, valid_s=60.0)
    (b,) = _publish(world, 1, first=1, valid_s=61.0)
    world.advance(60.0)
    assert [claim.key for claim in world.claim()] == [b]
    assert world.state(a) is State.EXPIRED


def test_night_at_the_claim_puts_off_in_the_customers_zone() -> None:
    """Published by day, the account was held until night fell: 21:00 in Tokyo is noon in London."""
    world = _world()
    category = replace(world.policy.categories["sms-K"], quiet=(parse_quiet("21:00-08:00"),))
    world.policy = replace(world.policy, categories={"sms-K": category})
    world.clock.advance(9 * 3_600)  # 09:00 UTC: 18:00 in Tokyo
    world.beat()
    tokyo = world.schedule("r-1", zone="Asia/Tokyo")
    london = world.schedule("r-2", zone="Europe/London")
    world.pass_()
    world.advance(3 * 3_600)
    assert [claim.key for claim in world.claim()] == [london]
    row = world.row(tokyo)
    assert (row.standing.state, row.course.reason) == (State.QUEUED, "quiet_hours")
    # Asked at least once an hour; it goes at 08:00 in Tokyo, 23:00 UTC, and not before.
    for _ in range(10):
        world.advance(3_600)
        assert world.claim() == []
    world.advance(3_600)
    assert [claim.key for claim in world.claim()] == [tokyo]


@pytest.mark.parametrize(("scope", "name"), [("channel", "sms"), ("group", "default/g")])
def test_a_pause_after_publication(scope: str, name: str) -> None:
    world = _world()
    (key,) = _publish(world, 1, group="g")
    (free,) = _publish(world, 1, first=1, group="other")
    pause = Pause(scope, name, world.now + 3 * HOUR, "why", "api:test", world.now)
    world.write(lambda tx: tx.runs.pause(pause))
    claimed = world.claimed()
    assert [claim.key for claim in claimed.claims] == ([free] if scope == "group" else [])
    assert (world.state(key), world.row(key).course.reason) == (State.QUEUED, f"paused:{scope}")
    for _ in range(2):
        world.advance(3_600)
        assert world.claim() == []
    world.write(lambda tx: tx.runs.resume(scope, name))
    world.write(lambda tx: tx.deliveries.unpause(scope, name, ["sms-K"], world.now + HOUR + SECOND, 100))
    assert key in [claim.key for claim in world.claim()]


def test_a_recipient_who_is_not_allowed_any_more() -> None:
    world = _world()
    (key,) = _publish(world, 1)
    world.policy = replace(world.policy, recipients=Recipients(allow=("+1555*",)))
    assert world.claim() == []
    assert world.row(key).course.reason == "recipient_not_allowed"
    assert world.state(key) is State.SUPPRESSED


def test_a_redirect_replaces_the_address_at_the_last_moment() -> None:
    world = _world()
    _publish(world, 1)
    guarded = Recipients(allow=("+1555*",), redirect={Channel.SMS: "+15550100"})
    world.policy = replace(world.policy, recipients=guarded)
    (claim,) = world.claim()
    assert claim.message.to == "+15550100"


def test_a_category_that_the_configuration_lost_waits_for_it() -> None:
    world = _world()
    (key,) = _publish(world, 1)
    whole = world.policy
    world.policy = replace(world.policy, categories={})
    assert world.claim() == []
    row = world.row(key)
    assert (row.standing.state, row.course.reason) == (State.QUEUED, "configuration")
    world.policy = whole
    world.advance(61)
    assert [claim.key for claim in world.claim()] == [key]


def test_what_may_not_go_uses_no_slot_and_hides_nobody() -> None:
    """Forty who opted out at the head of the line, one who may be sent to behind them."""
    world = _world(rate=1)
    _publish(world, 40)
    world.opt_out(Channel.SMS)
    behind = world.schedule("behind", to="+12025550199")
    world.pass_()
    found: list[str] = []
    for _ in range(45):
        claimed = world.claimed()
        found += [claim.key for claim in claimed.claims]
        if found:
            break
        assert claimed.ended, "each look ends what it looked at"
    assert found == [behind]
    assert _gate(world).tats[0] <= world.store.steady() + 2 * SECOND


def _spoil(world: World, key: str) -> None:
    def unit(tx: Tx) -> None:
        (row,) = tx.deliveries.by_keys([("default", key)])
        (content,) = tx.contents.get([(row.id, row.standing.version)]).values()
        tx.contents.put([replace(content, payload="{")])

    world.write(unit)


def _first_claims(world: World) -> list[str]:
    for _ in range(3):
        if claims := world.claim():
            return [claim.key for claim in claims]
    return []


def test_a_row_whose_content_is_damaged_ends_with_a_reason_and_hides_nobody() -> None:
    """DLQ-01 at the claim: what cannot be built is a dead letter, not a row that waits until it expires."""
    world = _world(rate=1)
    keys = _publish(world, 2)
    _spoil(world, keys[0])
    assert _first_claims(world) == [keys[1]]
    row = world.row(keys[0])
    assert (row.standing.state, row.course.reason) == (State.REJECTED, "bad_content:unreadable")
    assert world.events(keys[0])[-1] == "unrenderable"


@pytest.mark.parametrize(("lookup", "state"), [(False, State.UNCERTAIN), (True, State.RECONCILING)])
def test_a_damaged_row_that_may_be_sent_is_never_called_rejected(lookup: bool, state: State) -> None:
    world = _world(rate=1)
    (key,) = _publish(world, 1)
    promise = replace(world.policy.accounts["sms-K"].promise, lookup=lookup)
    world.policy = policy_of(replace(world.policy.accounts["sms-K"], promise=promise))
    world.send(Unknown("timeout"))
    _spoil(world, key)
    world.advance(60)
    assert _first_claims(world) == []
    row = world.row(key)
    assert (row.standing.state, row.standing.maybe) == (state, True)
    assert row.course.reason == "bad_content:unreadable"


def test_a_row_larger_than_a_quota_that_was_lowered_since_does_not_block_its_account() -> None:
    """Its parts fit when it was published; one a day can never send two parts, today or any day."""
    world = _world()
    large = world.schedule("large", data={"name": "A" * 200})
    small = world.schedule("small", to="+12025550199")
    world.pass_()
    lowered = GateLimits((Limit(1, 86_400 * SECOND, parts=True),), lanes=50)
    change_limits(world.store, "sms-K", lowered, reason="new contract", actor="operator:ann")
    assert world.row(large).course.cost == 2
    assert _first_claims(world) == [small]
    row = world.row(large)
    assert (row.standing.state, row.course.reason) == (State.REJECTED, "bad_content:larger_than_quota")


# Doubt


def _short_keys(world: World, *, lookup: bool) -> None:
    """Keys of which 40 s may be used."""
    promise = Promise(ProviderClass.KEY, timeout_s=10.0, key_window_s=110.0, lookup=lookup)
    account = replace(world.policy.accounts["sms-K"], promise=promise)
    world.policy = policy_of(account)


@pytest.mark.parametrize(("lookup", "state"), [(False, State.UNCERTAIN), (True, State.RECONCILING)])
def test_a_dead_key_is_never_used_again(lookup: bool, state: State) -> None:
    world = _world()
    (key,) = _publish(world, 1)
    _short_keys(world, lookup=lookup)
    world.send(Unknown("timeout"))
    world.advance(39.9)
    (claim,) = world.claim()
    assert claim.key_dies_at == world.row(key).course.first_try + 40 * SECOND
    world.settle([(claim, NotStarted("key_dying"))])
    assert world.state(key) is State.QUEUED
    world.advance(0.1)
    assert world.claim() == []
    row = world.row(key)
    assert (row.standing.state, row.standing.maybe) == (state, True)
    assert world.events(key)[-1] == "key_died"


def test_the_first_attempt_has_no_key_to_lose() -> None:
    world = _world()
    _publish(world, 1)
    (claim,) = world.claim()
    assert claim.key_dies_at is None
    world.settle([(claim, Failed(Reason.UNAVAILABLE, "503"))])
    world.advance(3)
    (claim,) = world.claim()
    assert claim.key_dies_at is None, "nothing was sent under it yet"


@pytest.mark.parametrize(("kind", "state"), [("K", State.UNCERTAIN), ("K+L", State.RECONCILING)])
@pytest.mark.parametrize("how", ["expiry", "cancel", "opt-out"])
def test_a_doubtful_one_ends_in_doubt(kind: str, state: State, how: str) -> None:
    world = _world()
    if kind == "K+L":
        promise = Promise(ProviderClass.KEY, timeout_s=10.0, key_window_s=86_400.0, lookup=True)
        world.policy = policy_of(replace(world.policy.accounts["sms-K"], promise=promise))
    (key,) = _publish(world, 1, valid_s=60.0)
    world.send(Unknown("timeout"))
    assert world.state(key) is State.QUEUED
    match how:
        case "expiry":
            world.advance(60.0)
        case "cancel":
            world.withdraw(key)
            world.advance(3)
        case _:
            world.opt_out(Channel.SMS)
            world.advance(3)
    assert world.claim() == []
    row = world.row(key)
    assert (row.standing.state, row.standing.maybe) == (state, True)
    ending = {"expiry": Ending.NONE, "cancel": Ending.CANCEL, "opt-out": Ending.OPT_OUT}
    assert row.standing.ending is ending[how]


def test_a_permit_lets_one_attempt_through() -> None:
    world = _world(kind="N")
    key = world.uncertain()
    world.permit(key)
    (claim,) = world.claim()
    assert world.lines(key)[-1].word("decision") == "permit"
    assert claim.key_dies_at is None
    assert world.settle([(claim, Unknown("timeout"))]) == [State.UNCERTAIN]
    assert not world.row(key).standing.permit


# CANC-01: a cancel at each stage, and at any moment


@pytest.mark.parametrize("stage", ["scheduled", "queued", "claimed", "in flight", "accepted"])
def test_canc_01_a_cancel_at_each_stage_is_answered_truly(stage: str) -> None:
    world = _world()
    key = world.schedule()
    claim: Claim | None = None
    if stage != "scheduled":
        world.pass_()
    if stage in ("claimed", "in flight", "accepted"):
        (claim,) = world.claim()
    if stage == "accepted" and claim:
        world.settle([(claim, Accepted("r"))])
    word = world.withdraw(key)
    assert word == world.withdraw(key), "asked again, the same answer"
    match stage:
        case "scheduled" | "queued":
            assert word == "cancelled"
            world.pass_()
            assert world.claim() == []
            assert world.state(key) is State.CANCELLED
        case "claimed":
            assert claim
            assert word == "cancel_pending"
            assert world.settle([(claim, NotStarted("stopping"))]) == [State.CANCELLED]
            assert world.claim() == []
        case "in flight":
            assert claim
            assert word == "cancel_pending"
            assert world.settle([(claim, Accepted("r"))]) == [State.ACCEPTED]
        case _:
            assert word == "already_sent"


class _Provider:
    """What one delivery meets: it takes, refuses, fails, or loses its answer."""

    def __init__(self, chance: random.Random, key_known: bool) -> None:
        self._chance = chance
        self._knows_keys = key_known
        self.calls = 0
        self.effects = 0

    def call(self) -> Outcome:
        self.calls += 1
        match self._chance.randrange(5):
            case 0:
                return Failed(Reason.UNAVAILABLE, "503")
            case 1:
                return Unknown("lost before")
            case 2:
                self._take()
                return Unknown("lost after")
            case _:
                self._take()
                return Accepted("r")

    def _take(self) -> None:
        self.effects = 1 if self._knows_keys else self.effects + 1


@pytest.mark.parametrize("kind", ["K", "N"])
def test_canc_01_never_cancelled_with_a_call_over_1_000_interleavings(kind: str) -> None:
    """Each step of each delivery at a random moment, the cancel among them; the answers stay true."""
    chance = random.Random(20_260)
    account = account_of(f"{kind}:sms", retry=RetryPolicy(attempts_max=4, base_s=1.0))
    world = World(policy=policy_of(account), chance=0.0)
    providers: dict[str, _Provider] = {}
    answers: dict[str, str] = {}
    claims: list[Claim] = []
    returned: list[tuple[Claim, Outcome]] = []
    for batch in range(20):
        waiting = [f"b{batch}-{number}" for number in range(50)]
        born: list[str] = []
        for _ in range(150):
            match chance.randrange(9):
                case 0 | 1 if waiting:
                    for _ in range(min(len(waiting), 10)):
                        key = world.schedule(waiting.pop())
                        born.append(key)
                        providers[key] = _Provider(chance, kind == "K")
                case 2:
                    world.pass_()
                case 3:
                    claims += world.claim(most=chance.randrange(1, 12))
                case 4 | 5 if claims:
                    for _ in range(min(len(claims), 6)):
                        claim = claims.pop(chance.randrange(len(claims)))
                        released = chance.random() < 0.2
                        outcome = NotStarted("slot_missed") if released else providers[claim.key].call()
                        returned.append((claim, outcome))
                case 6 if returned:
                    world.settle([returned.pop(chance.randrange(len(returned)))])
                case 7:
                    _change(world, streak=0, probing=False, closed_until=0)
                    world.advance(chance.choice([0.05, 1.0]))
                case 8 if born:
                    for key in chance.sample(born, min(2, len(born))):
                        answer = world.withdraw(key)
                        _check_answer(world, key, answers.get(key, ""), answer, providers[key])
                        answers[key] = answer
    returned += [(claim, providers[claim.key].call()) for claim in claims]
    world.settle(returned)
    ended: Counter[str] = Counter()
    for key, provider in providers.items():
        row = world.row(key)
        ended[f"{answers.get(key, 'not asked')}: {row.standing.state}"] += 1
        if row.standing.state is State.CANCELLED:
            assert provider.effects == 0, world.events(key)
        if row.standing.state is State.ACCEPTED:
            assert provider.effects == 1, world.events(key)
        assert provider.effects <= 1, world.events(key)
        if answers.get(key) == "cancelled":
            assert row.standing.state is State.CANCELLED
    assert sum(ended.values()) >= 1_000
    for word in ("cancelled: CANCELLED", "pending: CANCELLED", "pending: ACCEPTED", "pending: UNCERTAIN"):
        assert any(word in reached for reached in ended), ended


def _check_answer(world: World, key: str, before: str, answer: str, provider: _Provider) -> None:
    state = world.state(key)
    if answer == "cancelled":
        assert state is State.CANCELLED
        assert provider.effects == 0, world.events(key)
    if answer == "already_sent":
        assert provider.effects == 1
    if before == "cancelled":
        assert answer == "cancelled"


# CANC-03: who cancelled is remembered by the store, not by a worker


def test_canc_03_a_cancel_outlives_every_process(tmp_path: object) -> None:
    path = f"{tmp_path}/s.db"
    world = World("K", path=path)
    key = world.schedule(due_in_s=600.0)
    world.withdraw(key, reason="paid")
    world.store.close()
    again = World("K", path=path)
    again.advance(700)
    again.pass_()
    assert again.claim() == []
    assert again.state(key) is State.CANCELLED
    line = again.lines(key)[-1]
    assert (line.event, line.actor, line.word("reason")) == ("cancelled", "api:test", "paid")


# DUP-01: however often it is asked, what is due later is not claimed, and what is claimed is claimed once


def test_dup_01_nothing_is_claimed_early_and_only_once() -> None:
    world = World("K", policy=replace(policy_of(account_of("K")), lease_s=60.0))
    due = world.store.steady() + 6 * HOUR
    key = world.schedule(due_in_s=6 * 3_600.0)
    claims: list[Claim] = []
    scheduler = Scheduler(world.store, world.policy, world.book, process="s-1")
    for _ in range(370):
        scheduler.run(trigger=TIMER)
        for worker in range(8):
            world.process = f"w-{worker}"
            claims += (made := world.claim())
            world.settle([(claim, Accepted("r")) for claim in made])
        world.advance(60)
    (claim,) = claims
    assert claim.claimed_at >= due
    assert world.events(key) == ["scheduled", "published", "claimed", "accepted"]
