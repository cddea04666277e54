"""The gate: what it promises the provider, whatever several claimers ask of it and whenever.

The properties play a stage: claimers come at any moments, calls arrive up to their whole margin late,
operators change limits and pause, the provider answers 429. What counts is what the provider sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sendonce.core import pacing
from sendonce.core.outcome import Accepted, ThrottleScope
from sendonce.core.pacing import (
    AHEAD_US,
    BREAKER_AFTER,
    COOLDOWN_US,
    EXACT_PARTS_MAX,
    FOREVER,
    HORIZON_US,
    PACE_MIN,
    RETRY_CREDIT_MAX,
    SECOND,
    Gate,
    GateLimits,
    Limit,
    account_failed,
    call_failed,
    call_succeeded,
    claimed,
    fits_ever,
    grant,
    is_watched,
    lanes_now,
    lead_of,
    rate_now,
    resumed,
    retries_allowed,
    room,
    slots_ahead,
    spacing_us,
    throttled,
)
from sendonce.core.retry_after import parse_retry_after
from tests.integration.world import World

ACCEPTED = Accepted("r")
START = 1_767_225_600 * SECOND
LEAD = 2_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND


def gate(*limits: Limit, lanes: int = 1_000, headroom: float = 0.0, jitter_us: int = 5_000) -> Gate:
    return Gate("acc", GateLimits(limits, lanes, headroom, jitter_us))


# What the provider sees.


@dataclass(slots=True)
class Stage:
    """An account under several claimers; `starts` are (instant, cost) as the provider sees them."""

    gate: Gate
    now: int = START
    starts: list[tuple[int, int]] = field(default_factory=list)

    def claim(self, costs: Sequence[int], late: float = 0.0, lead_us: int = LEAD) -> int:
        if room(self.gate, now=self.now, open_calls=0).lanes == 0:
            return 0
        got = grant(self.gate, costs, now=self.now, lead_us=lead_us)
        self.gate = got.gate
        late_us = round(late * self.gate.limits.margin_us)
        self.starts += [
            (slot + (late_us if i % 2 else 0), cost)
            for i, (slot, cost) in enumerate(zip(got.slots, costs, strict=False))
        ]
        return len(got.slots)


def most_in_a_window(starts: Iterable[tuple[int, int]], interval_us: int, *, parts: bool) -> int:
    """The largest sum over any half-open window of the interval."""
    ordered = sorted(starts)
    most = total = first = 0
    for at, cost in ordered:
        total += cost if parts else 1
        while ordered[first][0] <= at - interval_us:
            total -= ordered[first][1] if parts else 1
            first += 1
        most = max(most, total)
    return most


waits = st.one_of(st.integers(0, 5_000), st.integers(0, 200_000), st.integers(0, 3 * SECOND))
lateness = st.sampled_from([0.0, 0.5, 1.0])
leads = st.integers(0, 30_000)


@st.composite
def rate_limits(draw: st.DrawFn) -> Limit:
    interval_us = draw(st.sampled_from([SECOND // 10, SECOND, 10 * SECOND, MINUTE]))
    return Limit(draw(st.integers(1, 60)), interval_us)


@given(
    limits=st.lists(rate_limits(), min_size=1, max_size=3),
    headroom=st.sampled_from([0.0, 0.1, 0.5]),
    jitter_us=st.integers(0, 20_000),
    claims=st.lists(st.tuples(waits, st.integers(0, 80), lateness, leads), max_size=30),
)
def test_never_more_starts_than_the_limit_in_any_sliding_interval(
    limits: list[Limit], headroom: float, jitter_us: int, claims: list[tuple[int, int, float, int]]
) -> None:
    stage = Stage(gate(*limits, headroom=headroom, jitter_us=jitter_us))
    for wait_us, wanted, late, lead_us in claims:
        stage.now += wait_us
        stage.claim([1] * wanted, late, lead_us)
    for limit in limits:
        # Headroom is a share of the rate: 1.8 in an interval are spaced so that two meet in it at times.
        usable = math.ceil(limit.count * (1 - headroom) - 1e-9)
        assert most_in_a_window(stage.starts, limit.interval_us, parts=False) <= usable


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    claims=st.lists(st.tuples(waits, st.integers(0, 40), lateness), min_size=2, max_size=30),
    data=st.data(),
)
def test_changed_limits_and_pauses_never_make_room_for_a_bunch(
    counts: list[int], claims: list[tuple[int, int, float]], data: st.DataObject
) -> None:
    """In any second there are at most as many starts as the largest limit of that run allowed."""
    stage = Stage(gate(Limit(counts[0], SECOND)))
    for wait_us, wanted, late in claims:
        stage.now += wait_us
        match data.draw(st.sampled_from(["claim", "claim", "change", "pause", "resume", "throttle"])):
            case "change":
                limits = replace(
                    stage.gate.limits, limits=(Limit(data.draw(st.sampled_from(counts)), SECOND),)
                )
                stage.gate = replace(stage.gate, limits=limits)
            case "pause":
                stage.gate = replace(stage.gate, paused_until=stage.now + SECOND)
            case "resume":
                stage.gate = resumed(stage.gate)
            case "throttle":
                stage.gate = throttled(stage.gate, ThrottleScope.RATE, 0.2, chance=0.5, now=stage.now)
        stage.claim([1] * wanted, late)
    assert most_in_a_window(stage.starts, SECOND, parts=False) <= max(counts)


@given(
    count=st.integers(1, 30),
    interval_us=st.sampled_from([61 * SECOND, 120 * SECOND, DAY]),
    parts=st.booleans(),
    headroom=st.sampled_from([0.0, 0.25]),
    claims=st.lists(
        st.tuples(
            st.one_of(
                st.integers(0, 30_000), st.integers(0, 3_000), st.integers(0, 1_000).map(lambda n: n * 97)
            ),
            st.lists(st.integers(1, 6), max_size=8),
            lateness,
        ),
        max_size=40,
    ),
)
def test_a_quota_is_never_exceeded_in_any_sliding_interval(
    count: int,
    interval_us: int,
    parts: bool,
    headroom: float,
    claims: list[tuple[int, list[int], float]],
) -> None:
    limit = Limit(count, interval_us, parts)
    stage = Stage(gate(limit, headroom=headroom))
    for wait, costs, late in claims:
        stage.now += wait * interval_us // 20_000
        stage.claim(costs, late)
    usable = math.floor(count * (1 - headroom))
    assert most_in_a_window(stage.starts, interval_us, parts=parts) <= usable


def test_a_quota_counts_when_calls_start_not_when_they_are_claimed() -> None:
    """Claimed in the last moment of a bucket, started in the next: an interval later it still counts."""
    limit = Limit(1, 48 * 60 * SECOND)  # buckets of a minute
    stage = Stage(gate(limit), now=START - START % MINUTE + MINUTE - 1)
    assert stage.claim([1], 1.0, lead_us=40_000) == 1
    stage.now += limit.interval_us + 1
    stage.claim([1], 0.0, lead_us=0)
    assert most_in_a_window(stage.starts, limit.interval_us, parts=False) == 1


@given(
    count=st.integers(6, 40),
    claims=st.lists(st.tuples(waits, st.lists(st.integers(1, 6), max_size=12), lateness), max_size=30),
)
@example(count=10, claims=[(100_000, [1], 0.0)] * 9 + [(100_000, [5], 0.0)])
def test_parts_are_counted_not_messages(count: int, claims: list[tuple[int, list[int], float]]) -> None:
    limit = Limit(count, SECOND, parts=True)
    stage = Stage(gate(limit))
    for wait_us, costs, late in claims:
        stage.now += wait_us
        stage.claim(costs, late)
    assert most_in_a_window(stage.starts, SECOND, parts=True) <= count


@given(
    count=st.integers(1, 1_000),
    interval_us=st.sampled_from([SECOND // 10, SECOND, MINUTE]),
    claims=st.integers(1, 50),
)
def test_slots_do_not_drift_away_from_the_limit(count: int, interval_us: int, claims: int) -> None:
    """With always enough to do, the limit is used but for the jitter: nothing is lost to rounding."""
    stage = Stage(gate(Limit(count, interval_us)))
    for _ in range(claims):
        stage.claim([1] * 20)
        stage.now = max(stage.now, stage.starts[-1][0] - LEAD)
    starts = [at for at, _ in stage.starts]
    spacing = (interval_us + stage.gate.limits.margin_us) / count
    assert starts[-1] - starts[0] <= (len(starts) - 1) * (spacing + 1)
    assert spacing_us(stage.gate, stage.now) == pytest.approx(spacing, abs=1)


# The lead.


def test_the_first_slot_waits_for_a_slow_commit_less_a_quarter_of_what_may_be_late() -> None:
    limits = gate(Limit(100, SECOND), jitter_us=10_000).limits
    assert lead_of([], limits) == 8_000
    assert lead_of([30_000], limits) == 25_000
    assert lead_of([30_000] * 99 + [400_000], limits) == 250_000 - 5_000
    assert lead_of([30_000] * 198 + [60_000, 400_000], limits) == 55_000
    assert lead_of([1_000], limits) == 2_000
    assert lead_of([30_000], replace(limits, jitter_us=200_000)) == 2_000


# Grants.


def test_slots_begin_after_the_lead_and_reach_fifty_milliseconds_ahead() -> None:
    got = grant(gate(Limit(100, SECOND), jitter_us=0), [1] * 50, now=START, lead_us=LEAD)
    assert got.slots == tuple(START + LEAD + n * 10_000 for n in range(6))
    assert got.why == "rate"
    later = grant(got.gate, [1], now=got.again_at, lead_us=LEAD)
    assert later.slots == (START + LEAD + 60_000,)
    assert grant(got.gate, [1], now=got.again_at - 1, lead_us=LEAD).slots == ()


def test_unused_time_is_not_saved_up() -> None:
    got = grant(gate(Limit(10, SECOND), jitter_us=0), [1], now=START, lead_us=0)
    got = grant(got.gate, [1] * 9, now=START + 60 * SECOND, lead_us=0)
    assert got.slots == (START + 60 * SECOND,)


@pytest.mark.parametrize("costs", [[], [1, 1, 1]])
def test_what_is_not_granted_spends_nothing(costs: list[int]) -> None:
    busy = replace(gate(Limit(1, SECOND)), tats=(START + SECOND,))
    got = grant(busy if costs else gate(Limit(1, SECOND)), costs, now=START, lead_us=0)
    assert got.slots == ()
    assert got.gate == (busy if costs else gate(Limit(1, SECOND)))


def test_a_peek_says_what_a_grant_would_give() -> None:
    one = gate(Limit(200, SECOND), Limit(5, DAY))
    assert (
        slots_ahead(one, 99, now=START, lead_us=LEAD).slots
        == grant(one, [1] * 99, now=START, lead_us=LEAD).slots
    )


def test_all_limits_hold_at_once_and_the_tightest_decides() -> None:
    both = gate(Limit(100, SECOND), Limit(60, MINUTE), Limit(3, DAY), jitter_us=0)
    starts: list[int] = []
    now = START
    for _ in range(6):
        got = grant(both, [1] * 9, now=now, lead_us=0)
        both, starts = got.gate, [*starts, *got.slots]
        now += SECOND
    assert starts == [START, START + SECOND, START + 2 * SECOND]
    assert got.why == "quota"
    assert START + DAY <= got.again_at <= START + DAY + DAY // 24
    assert grant(both, [1], now=got.again_at, lead_us=0).slots != ()


def test_without_any_limit_only_lanes_decide() -> None:
    got = grant(gate(), [1] * 50, now=START, lead_us=LEAD)
    assert got.slots == (START + LEAD,) * 50
    assert rate_now(gate(), START) == math.inf
    assert spacing_us(gate(), START) == 0


def test_a_slot_far_ahead_comes_from_a_stepped_clock_and_is_cut() -> None:
    stepped = replace(gate(Limit(1, SECOND)), tats=(START + 10 * 365 * DAY,))
    assert grant(stepped, [1], now=START, lead_us=0).again_at <= START + HORIZON_US
    assert grant(stepped, [1], now=START + 10 * 365 * DAY - HORIZON_US // 2, lead_us=0).slots == ()
    got = grant(
        replace(stepped, tats=(START + HORIZON_US + AHEAD_US,)), [1], now=START + HORIZON_US, lead_us=0
    )
    assert got.slots == (START + HORIZON_US + AHEAD_US,)


def test_limits_that_come_later_start_free() -> None:
    one = replace(gate(Limit(1, MINUTE)), tats=(START + 5,))
    two = replace(
        one, limits=replace(one.limits, limits=(Limit(1, MINUTE), Limit(10, SECOND), Limit(9, DAY)))
    )
    assert grant(two, [1], now=START, lead_us=0).slots == (START + 5,)


# Lanes, pauses, closing.


def test_lanes_are_counted_over_all_processes_and_headroom_leaves_some() -> None:
    four = gate(lanes=4)
    assert room(four, now=START, open_calls=1).lanes == 3
    full = room(four, now=START, open_calls=4)
    assert (full.lanes, full.why) == (0, "lanes")
    assert room(four, now=START, open_calls=9).lanes == 0  # limits were lowered meanwhile
    assert [lanes_now(gate(lanes=n, headroom=0.25), START) for n in (1, 2, 4, 10)] == [1, 1, 3, 7]
    assert lanes_now(gate(lanes=10, headroom=0.3), START) == 7  # not 6 by a rounding error


def test_a_pause_holds_until_its_end_or_for_ever() -> None:
    paused = replace(gate(), paused_until=START + 5)
    assert room(paused, now=START + 4, open_calls=0) == pacing.Room(0, "paused", START + 5)
    assert room(paused, now=START + 5, open_calls=0).lanes > 0
    for_ever = replace(gate(), paused_until=FOREVER)
    assert room(for_ever, now=START + 100 * 365 * DAY, open_calls=0).why == "paused"
    assert room(resumed(for_ever), now=START, open_calls=0).lanes > 0


SCOPES = [
    # scope, wait asked for, closed for (s), probing, pace, lane_pace
    (ThrottleScope.RATE, 30.0, 30.0, False, 0.7, 1.0),
    (ThrottleScope.RATE, None, 0.75, False, 0.7, 1.0),
    (ThrottleScope.CONCURRENCY, 30.0, 30.0, False, 1.0, 0.7),
    (ThrottleScope.CONCURRENCY, None, 0.0, False, 1.0, 0.7),
    (ThrottleScope.QUOTA, 7_200.0, 7_200.0, True, 1.0, 1.0),
    (ThrottleScope.QUOTA, None, 3_600.0, True, 1.0, 1.0),
    (ThrottleScope.UNDECLARED, 30.0, 30.0, True, 0.7, 1.0),
    (ThrottleScope.UNDECLARED, None, 0.75, True, 0.7, 1.0),
]


@pytest.mark.parametrize(("scope", "asked", "closed_s", "probing", "pace", "lane_pace"), SCOPES)
def test_a_429_closes_what_it_is_about(
    scope: ThrottleScope,
    asked: float | None,
    closed_s: float,
    probing: bool,
    pace: float,
    lane_pace: float,
) -> None:
    after = throttled(gate(lanes=10), scope, asked, chance=0.5, now=START)
    assert max(0, after.closed_until - START) == round(closed_s * SECOND)
    assert (after.probing, after.pace, after.lane_pace) == (probing, pace, lane_pace)
    assert room(after, now=START, open_calls=0).lanes == (0 if closed_s else 7)
    assert room(after, now=START + round(closed_s * SECOND), open_calls=0).lanes > 0


def test_a_recipients_429_is_nobody_elses() -> None:
    before = gate()
    assert throttled(before, ThrottleScope.RECIPIENT, 600.0, chance=0.5, now=START) == before


def test_a_gate_is_never_closed_for_less_than_it_was() -> None:
    closed = throttled(gate(), ThrottleScope.RATE, 60.0, chance=0.5, now=START)
    again = throttled(closed, ThrottleScope.RATE, 1.0, chance=0.5, now=START + SECOND)
    assert again.closed_until == START + 60 * SECOND


def test_the_rate_steps_down_once_per_cooldown_and_comes_back_slowly() -> None:
    one = gate(Limit(100, SECOND), lanes=10, jitter_us=0)
    for n in range(5):  # calls that were open at once: one piece of news
        one = throttled(one, ThrottleScope.RATE, 0.001, chance=0.0, now=START + n)
    assert rate_now(one, START) == pytest.approx(70.0)
    one = throttled(one, ThrottleScope.RATE, 0.001, chance=0.0, now=START + COOLDOWN_US)
    assert rate_now(one, START + COOLDOWN_US) == pytest.approx(74.0 * 0.7)
    assert rate_now(one, START + COOLDOWN_US + 10 * SECOND) == pytest.approx(51.8 + 20.0)
    assert rate_now(one, START + COOLDOWN_US + 600 * SECOND) == pytest.approx(100.0)
    for n in range(1, 40):
        one = throttled(one, ThrottleScope.CONCURRENCY, None, chance=0.0, now=START + n * COOLDOWN_US)
    assert one.pace >= PACE_MIN
    assert lanes_now(one, one.paced_at) == 1


def test_an_account_error_holds_the_account_and_probes_ever_more_rarely() -> None:
    one, now, holds = gate(lanes=9), START, []
    for _ in range(8):
        one = account_failed(one, "auth", now=now)
        assert one.closed_why == "account:auth"
        assert account_failed(one, "auth", now=now + 1).streak == one.streak  # open calls: the same news
        holds.append((one.closed_until - now) // SECOND)
        now = one.closed_until
        assert room(one, now=now, open_calls=0).lanes == 1
        assert room(one, now=now, open_calls=1) == pacing.Room(0, "probing", now)
    assert holds == [60, 120, 240, 480, 960, 1_920, 3_600, 3_600]
    well = call_succeeded(one)
    assert room(well, now=now, open_calls=1).lanes == 8
    assert not is_watched(well)
    assert call_succeeded(well) is well


def test_the_breaker_opens_after_failures_in_a_row_and_a_failed_probe_opens_it_longer() -> None:
    one = gate(lanes=9)
    for _ in range(BREAKER_AFTER - 1):
        one = call_failed(one, now=START)
        assert room(one, now=START, open_calls=0).lanes == 9
    assert is_watched(one)
    assert call_failed(call_succeeded(one), now=START).streak == 1
    now, waits_s = START, []
    for _ in range(9):
        one = call_failed(one, now=now)
        assert one.closed_why == "breaker"
        waits_s.append((one.closed_until - now) // SECOND)
        now = one.closed_until
        assert room(one, now=now, open_calls=0).lanes == 1
    assert waits_s == [1, 2, 4, 8, 16, 32, 64, 120, 120]


def test_an_operator_opens_a_gate_by_hand() -> None:
    held = replace(account_failed(gate(), "credit", now=START), paused_until=FOREVER)
    opened = resumed(held)
    assert room(opened, now=START, open_calls=0).lanes == 1  # one probe first
    assert opened.closed_why == ""
    assert account_failed(opened, "credit", now=START).closed_until == START + 60 * SECOND


# Retries beside fresh traffic.


def test_retries_are_a_share_of_fresh_traffic_with_a_floor() -> None:
    one = replace(gate(Limit(10, SECOND)), credited_at=START, retry_credit=0.0)
    assert retries_allowed(one, START) == 0
    assert retries_allowed(one, START + SECOND) == 5  # the floor
    busy = claimed(one, fresh=100, retries=0, tag=1, now=START)
    assert retries_allowed(busy, START) == 20  # a fifth
    assert retries_allowed(claimed(busy, fresh=0, retries=15, tag=1, now=START), START) == 5
    assert retries_allowed(one, START + 3_600 * SECOND) == RETRY_CREDIT_MAX


def test_after_an_outage_the_tail_drains_at_a_share_of_the_accounts_own_rate() -> None:
    one = replace(gate(Limit(1_000, SECOND), jitter_us=0), credited_at=START, retry_credit=0.0)
    assert retries_allowed(one, START + SECOND // 2) == 100
    unlimited = replace(gate(), credited_at=START, retry_credit=0.0)
    assert retries_allowed(unlimited, START + SECOND) == 200


def test_virtual_time_never_goes_back() -> None:
    one = claimed(gate(), fresh=1, retries=0, tag=50, now=START)
    assert claimed(one, fresh=0, retries=1, tag=-(2**62), now=START).vtime == 50


# The cases of others.


def test_rate_03_a_useless_retry_after_never_makes_a_hot_loop() -> None:
    for value in ("0", "Wed, 21 Oct 2015 07:28:00 GMT"):
        asked = parse_retry_after(value, START)
        assert asked is None
        one, now, calls = gate(Limit(1_000, SECOND)), START, []
        while now < START + 10 * SECOND:
            calls.append(now)
            one = throttled(one, ThrottleScope.RATE, asked, chance=0.0, now=now)
            now = one.closed_until
        gaps = [later - earlier for earlier, later in pairwise(calls)]
        assert len(calls) <= 10
        assert gaps == sorted(gaps)
        assert gaps[0] >= SECOND // 2
        assert gaps[-1] >= 4 * gaps[0]


@pytest.mark.parametrize(
    ("value", "at_least_s"),
    [
        ("300", 300.0),
        ("86400", 86_400.0),
        ("9999999999", 86_400.0),
        ("9223372036854775808", 86_400.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
    ],
)
def test_rate_05_a_long_wait_is_kept_in_the_gate(value: str, at_least_s: float) -> None:
    asked = parse_retry_after(value, START)
    assert asked is not None
    one = throttled(gate(), ThrottleScope.RATE, asked, chance=0.0, now=START)
    assert one.closed_until >= START + at_least_s * SECOND
    assert one.closed_until < FOREVER
    assert room(one, now=START + 299 * SECOND, open_calls=0).lanes == 0


@pytest.mark.parametrize("asked", [60.0, None])
def test_rate_07_two_hours_of_429_cost_few_calls(asked: float | None) -> None:
    one, now, calls = gate(Limit(1_000, SECOND)), START, 0
    while now < START + 7_200 * SECOND:
        calls += 1
        one = throttled(one, ThrottleScope.RATE, asked, chance=0.5, now=now)
        now = one.closed_until
    assert calls <= 120


def test_rate_09_processes_share_one_limit() -> None:
    """10 in 60 s, four processes that come at different seconds, one of them anew in the middle."""
    stage = Stage(gate(Limit(10, MINUTE)))
    turns = sorted(
        start + n * period
        for start, period in ((0, 1_000_003), (400_000, 700_001), (900_000, 1_300_007), (90 * SECOND, 10_007))
        for n in range(400)
    )
    left = 40
    for turn in turns:
        stage.now = START + turn
        left -= stage.claim([1] * min(left, 9), 1.0)
    assert left == 0
    assert most_in_a_window(stage.starts, MINUTE, parts=False) <= 10
    assert stage.starts[39][0] - START >= 180 * SECOND


def test_rate_11_no_double_allowance_across_a_boundary() -> None:
    stage = Stage(gate(Limit(5, MINUTE)))
    assert stage.claim([1]) == 1
    left = 9
    for tick in range(59 * 20, 200 * 20):
        stage.now = START + tick * 50_000
        left -= stage.claim([1] * left)
    assert left == 0
    second = [at - START for at, _ in stage.starts[1:]]
    assert sum(at < 60 * SECOND for at in second) <= 4
    assert sum(at < 119 * SECOND for at in second) <= 5
    assert most_in_a_window(stage.starts, MINUTE, parts=False) <= 5


def test_a_flood_of_one_flow_does_not_delay_another() -> None:
    """200 of a campaign are lined up; then three of a loan come. They go among the next few, and a flow
    that was idle for long does not catch up on the time it was away."""
    world = World("N", limits=GateLimits((Limit(1_000, SECOND),), lanes=50))
    for number in range(200):
        world.schedule(f"flood-{number}", group="campaign")
    world.pass_()
    order: list[str] = []

    def send(count: int) -> None:
        for _ in range(count):
            claims = world.claim(most=1)
            order.extend(claim.key.split(":")[0] for claim in claims)
            world.settle([(claim, ACCEPTED) for claim in claims])
            world.advance(0.05)

    send(20)
    for number in range(3):
        world.schedule(f"loan-{number}", group="loan")
    world.pass_()
    send(8)
    assert [key for key in order if key.startswith("loan")] == ["loan-0", "loan-1", "loan-2"]
    assert len([key for key in order[20:] if key.startswith("flood")]) == 5
    send(20)
    for number in range(3, 60):
        world.schedule(f"loan-{number}", group="loan")
    world.pass_()
    before = len(order)
    send(20)
    floods = sum(key.startswith("flood") for key in order[before:])
    assert 9 <= floods <= 11  # side by side, not all of the loan first


def test_a_message_larger_than_a_quota_never_fits() -> None:
    day = 86_400 * SECOND
    limits = GateLimits((Limit(10, SECOND, parts=True), Limit(8, day, parts=True)), lanes=10, headroom=0.25)
    assert fits_ever(limits, 6)
    assert not fits_ever(limits, 7)
    assert fits_ever(GateLimits((Limit(3, day),), lanes=1), 9)  # counted in requests: one is one
    assert grant(Gate("a", limits), [7, 1], now=day, lead_us=0).slots == ()


@pytest.mark.parametrize(
    ("count", "cost", "expected"),
    [(10, 3, 3.0), (10, 2, 5.0), (1, 1, 1.0), (3, 3, 1.0), (2, 3, 2 / 3), (1, 4, 0.25), (400, 3, 391 / 3)],
)
def test_limits_in_parts_are_used(count: int, cost: int, expected: float) -> None:
    """Messages a second: as many as fit, and one larger than the limit at the limit's average."""
    stage = Stage(gate(Limit(count, SECOND, parts=True)))
    for _ in range(1_000):
        stage.claim([cost] * 10)
        stage.now += 20_000
    starts = [at for at, _ in stage.starts]
    a_second = (len(starts) - 1) / ((starts[-1] - starts[0]) / SECOND)
    assert expected * 0.95 <= a_second <= expected


@given(claims=st.lists(st.tuples(waits, st.lists(st.integers(1, 10), max_size=12), lateness), max_size=40))
def test_large_limits_in_parts_hold_with_a_margin(claims: list[tuple[int, list[int], float]]) -> None:
    count = EXACT_PARTS_MAX + 1
    stage = Stage(gate(Limit(count, SECOND, parts=True)))
    for wait_us, costs, late in claims:
        stage.now += wait_us
        stage.claim(costs, late)
    assert most_in_a_window(stage.starts, SECOND, parts=True) <= count
    assert stage.gate.recent == ()


def test_a_saturated_account_at_one_lane_is_left_alone_for_a_while() -> None:
    """429s about concurrency step the lanes down; where one is left, the gate closes by its own backoff,
    and the answers of one moment count as one."""
    now = 1_000 * SECOND
    at = Gate("a", GateLimits((Limit(10, SECOND),), lanes=2))
    for _ in range(6):
        at = throttled(at, ThrottleScope.CONCURRENCY, None, chance=1.0, now=now)
    assert lanes_now(at, now) == 1
    assert at.throttles == 1
    assert at.closed_until == now + SECOND
    wide = throttled(
        Gate("b", GateLimits((Limit(10, SECOND),), lanes=20)),
        ThrottleScope.CONCURRENCY,
        None,
        chance=1.0,
        now=now,
    )
    assert (lanes_now(wide, now), wide.closed_until) == (14, 0)
