"""The gate of a provider account: how many calls may start now, and when.

Both limits of an account are global, whatever the number of processes and machines: request starts
per interval, and requests in flight. One `Gate` per account lives in the store and is read, decided
on and written back under its lock, in the transaction that claims the deliveries. This module is the
arithmetic; it never waits and never looks at a clock.

*Rate.* GCRA with a burst of one: each limit keeps `tat`, the instant from which its next start is
free, and a start moves it by the spacing `(interval + 3 x jitter) / count`. A worker fires a slot at
most 2 x jitter after its time, else it gives the slot up; one more jitter is for the way, on which one
call may take longer than another. So N + 1 starts do not fall into one interval as the provider sees it.
Unused time is not saved up: there is never a bunch.

*Parts.* A message of several parts starts all of them at once, so spacing alone would let a window hold
one message too much. Where a limit counts parts, the starts of the last interval are kept and each
message waits until it fits beside them.

*Quotas.* A limit over more than a minute (50,000 a day) would be absurd as a spacing, so it counts
starts in buckets and sums the interval plus one bucket: never more than the quota in any sliding
interval, at the price of one bucket of caution.

*Lanes.* One per open call. The number of open calls is counted from the call rows, never kept here.

*Health.* Starts are counted at the claim and failures when they are settled, where the gate is written in any
case; both fade. Of their share, and of being held, follows how much an account that shares deliveries with
others is still given (`wellness`). A 429 is no failure here: it says slower, not elsewhere.

*Closing.* A 429 closes the gate for everybody until an instant that passes by itself: nobody has to
remember to open it. Account errors and a row of failures close it the same way and then let a single
probe through. The pace steps down on a 429, once per cooldown, and recovers with time.

All instants are microseconds of the store's steady clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sendonce.core.outcome import ThrottleScope
from sendonce.core.value import value

SECOND: Final = 1_000_000
AHEAD_US: Final = 50_000
"""How far ahead slots are given out: what is claimed starts within about 50 ms, or is not claimed."""
QUOTA_FROM_US: Final = 60 * SECOND
QUOTA_BUCKETS: Final = 48
PARTS_MAX: Final = 10
"""The most parts that a text message may have (`sendonce.render`)."""
EXACT_PARTS_MAX: Final = 300
"""Up to so many parts an interval, each recent start is kept; above it, a margin of one message is."""
HORIZON_US: Final = 3_600 * SECOND
"""A `tat` further ahead than this comes from a stepped clock, not from traffic."""
FOREVER: Final = 2**62
LEAD_MIN_US: Final = 2_000
LEAD_FIRST_US: Final = 8_000
LEAD_MAX_US: Final = 250_000

PACE_DOWN: Final = 0.7
PACE_MIN: Final = 0.05
PACE_UP_PER_S: Final = 0.02
COOLDOWN_US: Final = 2 * SECOND
THROTTLE_BASE_S: Final = 1.0
THROTTLE_CAP_S: Final = 120.0
QUOTA_WAIT_S: Final = 3_600.0
PROBE_AFTER_S: Final = 60.0
BREAKER_AFTER: Final = 10
BREAKER_BASE_S: Final = 1.0
BREAKER_CAP_S: Final = 120.0
RETRY_SHARE: Final = 0.2
RETRY_FLOOR_PER_S: Final = 5.0
RETRY_CREDIT_MAX: Final = 100.0
HEALTH_HALF_US: Final = 60 * SECOND
"""After which time a start or a failure counts half in the health of its account."""
HEALTH_STARTS: Final = 20.0
"""So many starts at least stand below the failures, so that one of one says little."""
HEALTH_STEPS: Final = ((0.1, 1.0), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25))
"""(share of failures, part of the weight that is kept below it)."""
PROBE_PART: Final = 0.05
"""What an account keeps that is held or fails nearly always: enough to see that it is well again."""
RATE_MAX: Final = 1_000.0
"""Where only quotas limit, retries are held to a share of this many starts a second."""


@value
class Limit:
    """At most `count` starts (or SMS parts) in any `interval_us`."""

    count: int
    interval_us: int
    parts: bool = False

    @property
    def is_quota(self) -> bool:
        return self.interval_us > QUOTA_FROM_US


@value
class GateLimits:
    """What the provider allows, as configured or changed since.

    headroom   share of every limit that is left to other traffic of the same account, 0 to below 1
    jitter_us  how far from its planned moment a call may start, and how much longer one may be under way
               than another; see the module text
    """

    limits: tuple[Limit, ...]
    lanes: int
    headroom: float = 0.0
    jitter_us: int = 10_000

    def __str__(self) -> str:
        rates = ", ".join(
            f"{limit.count}{' parts' if limit.parts else ''}/{limit.interval_us / SECOND:g}s"
            for limit in self.limits
        )
        return f"{rates}; {self.lanes} lanes; headroom {self.headroom:g}"

    @property
    def late_us(self) -> int:
        """How late after its slot a call may still start."""
        return 2 * self.jitter_us

    @property
    def margin_us(self) -> int:
        """By how much starts may draw nearer to each other until the provider counts them."""
        return self.late_us + self.jitter_us


@value
class Gate:
    """The account's state. Everything here is shared by all processes.

    tats           one instant per limit that is not a quota, in the order of `limits`
    recent         (slot, parts) of the starts that limits in parts still count, oldest first
    usage          per quota, in order: pairs of (bucket start, used)
    closed_until   no start before it; `closed_why` is a coded reason
    paused_until   an operator's pause, `FOREVER` without an end, 0 for none
    probing        one call at a time until one succeeds
    pace, lane_pace        what step-downs have left of rate and lanes, 1.0 at best, as of `paced_at`
    streak         failures or account errors in a row, for the breaker
    throttles      answers of 429 in a row, for our own backoff where the provider names no time
    retry_credit   how many retries may be claimed now, as of `credited_at`
    vtime          virtual time of the fair order: the tag of the last delivery claimed
    starts, failures       calls claimed and calls failed, faded by half each minute, as of `counted_at`
    ill_since      when an account error or the breaker held it; 0: it is not held, or was well since
    calls_from     no call that is open was claimed before it
    line_from      no fresh delivery had a lower place when all of them were last looked at, at `looked_at`
    """

    account: str
    limits: GateLimits
    tats: tuple[int, ...] = ()
    recent: tuple[tuple[int, int], ...] = ()
    usage: tuple[tuple[tuple[int, int], ...], ...] = ()
    closed_until: int = 0
    closed_why: str = ""
    paused_until: int = 0
    probing: bool = False
    pace: float = 1.0
    lane_pace: float = 1.0
    paced_at: int = 0
    stepped_at: int = 0
    streak: int = 0
    throttles: int = 0
    retry_credit: float = RETRY_FLOOR_PER_S
    credited_at: int = 0
    vtime: int = 0
    starts: float = 0.0
    failures: float = 0.0
    counted_at: int = 0
    ill_since: int = 0
    calls_from: int = 0
    line_from: int = 0
    looked_at: int = 0
    version: int = 0


@value
class Room:
    """What a claim may take now. `lanes` 0: nothing, because of `why`; look again at `again_at`."""

    lanes: int
    why: str = ""
    again_at: int = 0


def room(gate: Gate, *, now: int, open_calls: int) -> Room:
    """How many calls may start, before any slot is spent."""
    if gate.paused_until > now:
        return Room(0, "paused", gate.paused_until)
    if gate.closed_until > now:
        return Room(0, gate.closed_why, gate.closed_until)
    lanes = 1 if gate.probing else lanes_now(gate, now)
    if open_calls >= lanes:
        return Room(0, "probing" if gate.probing else "lanes", now)
    return Room(lanes - open_calls)


def lanes_now(gate: Gate, now: int) -> int:
    """The lanes that step-downs and headroom leave, at least one."""
    usable = gate.limits.lanes * (1.0 - gate.limits.headroom)
    return max(1, math.floor(usable * _recovered(gate.lane_pace, gate, now) + 1e-9))


def rate_now(gate: Gate, now: int) -> float:
    """Starts per second that the tightest rate limit allows at this moment; `inf` where only quotas are."""
    pace = _recovered(gate.pace, gate, now)
    spacings = [_spacing_us(limit, gate.limits, pace) for limit in gate.limits.limits if not limit.is_quota]
    return SECOND / max(spacings) if spacings else math.inf


@value
class Grant:
    """Slots for the first deliveries of the line, and the gate after spending them.

    `why` and `again_at` tell, where fewer were granted than asked for, which limit said so and when
    the next slot may be asked for.
    """

    slots: tuple[int, ...]
    gate: Gate
    why: str = ""
    again_at: int = 0


def lead_of(commits_us: Sequence[int], limits: GateLimits) -> int:
    """How far ahead of a claim its first slot lies. `commits_us`: what the last claims took to commit.

    The slow end of them, so that a slot is not late when it is handed over; less a quarter of what a start
    may be late, since a lane that waits for its slot is of no use to anybody. The rest of it is for what
    comes between the commit and the start.
    """
    if not commits_us:
        return LEAD_FIRST_US
    slow = sorted(commits_us)[min(len(commits_us) - 1, int(len(commits_us) * 0.99))]
    return max(LEAD_MIN_US, min(LEAD_MAX_US, slow) - limits.late_us // 4)


def grant(gate: Gate, costs: Sequence[int], *, now: int, lead_us: int) -> Grant:
    """Spend slots for deliveries of the given costs (SMS parts; 1 for an email), in their order.

    Slots begin at max(tat, now + lead): the lead is what a claim's commit takes at worst, so that a
    slot is never late before it is handed over. Stops at the first that does not fit within
    `AHEAD_US` or a quota; an empty `costs` spends nothing.
    """
    limits = gate.limits.limits
    earliest = now + lead_us
    latest = earliest + AHEAD_US
    pace = _recovered(gate.pace, gate, now)
    tats = [min(tat, now + HORIZON_US) for tat in _aligned(gate.tats, limits, quota=False)]
    usage = [_trimmed(spent, limit, now) for limit, spent in zip(_quotas(limits), _usages(gate), strict=True)]
    rates = [limit for limit in limits if not limit.is_quota]
    spacings = [_spacing_us(limit, gate.limits, pace) for limit in rates]
    slots: list[int] = []
    why, again_at = "", 0
    exact = [limit for limit in rates if _is_exact(limit)]
    recent = list(_recent(gate, exact, now))
    for cost in costs:
        slot = max([earliest, *tats])
        for limit in exact:
            slot = _room_from(recent, cost, limit, gate.limits, slot)
        if slot > latest:
            why, again_at = "rate", slot - lead_us - AHEAD_US
            break
        full = _full_quota(_quotas(limits), usage, cost, gate.limits.headroom, now)
        if full is not None:
            why, again_at = "quota", full
            break
        for i, limit in enumerate(rates):
            tats[i] = slot + math.ceil(spacings[i] * (cost if limit.parts else 1))
        for i, limit in enumerate(_quotas(limits)):
            # Booked when the call starts, at the latest: not at the claim, which may be a bucket earlier.
            starts_by = slot + gate.limits.late_us
            usage[i] = _spent(usage[i], limit, cost if limit.parts else 1, starts_by)
        if exact:
            recent.append((slot, cost))
        slots.append(slot)
    if not slots:
        return Grant((), gate, why, again_at)
    after = replace(gate, tats=tuple(tats), usage=tuple(usage), recent=tuple(recent))
    return Grant(tuple(slots), after, why, again_at)


def fits_ever(limits: GateLimits, cost: int) -> bool:
    """Whether a delivery of this cost can go at all: no quota is smaller than the message itself.

    One that cannot must leave the line, or everything behind it would wait until it expires.
    """
    return all(
        (cost if limit.parts else 1) <= _usable(limit, limits.headroom) for limit in _quotas(limits.limits)
    )


def slots_ahead(gate: Gate, most: int, *, now: int, lead_us: int) -> Grant:
    """How far a grant for `most` deliveries of cost 1 would come, so that no more rows are read than
    can be granted. Its gate is thrown away: this peeks, and spends nothing."""
    return grant(gate, [1] * most, now=now, lead_us=lead_us)


def retries_allowed(gate: Gate, now: int) -> int:
    """How many retries may be claimed now: a floor per second, plus a share of fresh traffic."""
    return math.floor(_credit(gate, now))


def claimed(gate: Gate, *, fresh: int, retries: int, tag: int, now: int) -> Gate:
    """The gate after a claim: the retry credit moved, virtual time advanced to the last fresh tag."""
    credit = _credit(gate, now) + RETRY_SHARE * fresh - retries
    return replace(
        gate,
        retry_credit=credit,
        credited_at=now,
        vtime=max(gate.vtime, tag),
        starts=_faded(gate.starts, gate, now) + fresh + retries,
        failures=_faded(gate.failures, gate, now),
        counted_at=now,
    )


def throttled(gate: Gate, scope: ThrottleScope, wait_s: float | None, *, chance: float, now: int) -> Gate:
    """The gate after a 429. `wait_s`: what the provider asked for, capped; None where it did not.

    Without a time the gate's own backoff applies, growing with each 429 in a row, with jitter by
    `chance` in [0, 1). Calls that were already open when it closed are the same news, not more of it.
    A recipient's own throttle leaves the gate as it is: only that delivery waits.
    """
    # A concurrency 429 may leave the gate open: the others of the same moment are the same news too.
    same_moment = bool(gate.stepped_at) and now - gate.stepped_at < COOLDOWN_US
    is_news = gate.closed_until <= now and not (scope is ThrottleScope.CONCURRENCY and same_moment)
    if scope is not ThrottleScope.RECIPIENT and is_news:
        gate = replace(gate, throttles=gate.throttles + 1)
    span = min(THROTTLE_CAP_S, THROTTLE_BASE_S * 2.0 ** min(max(gate.throttles, 1) - 1, 10))
    backoff_s = span * (0.5 + 0.5 * chance)
    match scope:
        case ThrottleScope.RECIPIENT:
            return gate
        case ThrottleScope.RATE:
            return _closed(_slower(gate, now, rate=True), now, wait_s or backoff_s, "throttled")
        case ThrottleScope.CONCURRENCY:
            # Fewer lanes, same rate. Closed where the provider named a time, and where there are no fewer
            # lanes to go to: else a whole backlog would be refused, one call each.
            stepped = _slower(gate, now, rate=False)
            wait = wait_s or (backoff_s if lanes_now(stepped, now) == 1 else None)
            return stepped if wait is None else _closed(stepped, now, wait, "throttled")
        case ThrottleScope.QUOTA:
            return replace(_closed(gate, now, wait_s or QUOTA_WAIT_S, "quota"), probing=True)
        case ThrottleScope.UNDECLARED:
            stepped = _slower(gate, now, rate=True)
            return replace(_closed(stepped, now, wait_s or backoff_s, "throttled"), probing=True)


def account_failed(gate: Gate, code: str, *, now: int) -> Gate:
    """The gate after an account error: held, then probed with one, ever more rarely up to an hour."""
    if gate.closed_until > now and gate.closed_why.startswith("account:"):
        return gate  # calls that were open when the first error came back are the same news, not more of it
    wait = min(PROBE_AFTER_S * 2.0 ** min(gate.streak, 6), 3_600.0)
    streak = gate.streak if gate.closed_until > now else gate.streak + 1
    held = replace(_closed(gate, now, wait, f"account:{code}"), probing=True, streak=streak)
    return replace(_one_more_failure(held, now), ill_since=gate.ill_since or now)


def call_failed(gate: Gate, *, now: int) -> Gate:
    """The gate after a failure of the provider itself (5xx, timeout, refused): the breaker's side."""
    if gate.closed_until > now and gate.closed_why == "breaker":
        return gate  # the same news: it was open when the breaker opened
    streak = gate.streak + 1
    gate = _one_more_failure(gate, now)
    if streak < BREAKER_AFTER and not gate.probing:
        return replace(gate, streak=streak)
    wait = min(BREAKER_CAP_S, BREAKER_BASE_S * 2.0 ** min(max(0, streak - BREAKER_AFTER), 7))
    closed = replace(_closed(gate, now, wait, "breaker"), probing=True, streak=streak)
    return replace(closed, ill_since=gate.ill_since or now)


def call_succeeded(gate: Gate) -> Gate:
    """The gate after the provider took one: healthy again. Equal to `gate` where it was already."""
    if not is_watched(gate):
        return gate
    return replace(gate, probing=False, streak=0, throttles=0, ill_since=0)


def wellness(gate: Gate, now: int) -> float:
    """The part of its weight that an account keeps among those it shares deliveries with: 1.0 at best, less
    by steps as its share of failures grows, and `PROBE_PART` while it is held.

    It comes back as failures fade, not with the first success. A pause is a person's word and a 429 is
    pressure: neither is a failure.
    """
    if gate.ill_since:
        return PROBE_PART
    share = _faded(gate.failures, gate, now) / max(HEALTH_STARTS, _faded(gate.starts, gate, now))
    return next((kept for below, kept in HEALTH_STEPS if share < below), PROBE_PART)


def is_watched(gate: Gate) -> bool:
    """Whether the next success changes the gate; while it does not, settling one need not lock it."""
    return gate.probing or gate.streak > 0 or gate.throttles > 0


def resumed(gate: Gate) -> Gate:
    """The gate after an operator opened it by hand: no pause, no closure, one probe first if it was held."""
    return replace(gate, paused_until=0, closed_until=0, closed_why="", streak=0, throttles=0, ill_since=0)


def spacing_us(gate: Gate, now: int) -> int:
    """The distance of slots at this moment, for a person to read; 0 where only quotas limit."""
    rate = rate_now(gate, now)
    return 0 if math.isinf(rate) else round(SECOND / rate)


def _one_more_failure(gate: Gate, now: int) -> Gate:
    return replace(
        gate,
        starts=_faded(gate.starts, gate, now),
        failures=_faded(gate.failures, gate, now) + 1.0,
        counted_at=now,
    )


def _faded(count: float, gate: Gate, now: int) -> float:
    return count * 0.5 ** (max(0, now - gate.counted_at) / HEALTH_HALF_US) if count else 0.0


def _closed(gate: Gate, now: int, wait_s: float, why: str) -> Gate:
    until = now + math.ceil(wait_s * SECOND)
    if until <= gate.closed_until:
        return gate
    return replace(gate, closed_until=until, closed_why=why)


def _slower(gate: Gate, now: int, *, rate: bool) -> Gate:
    if now - gate.stepped_at < COOLDOWN_US and gate.stepped_at:
        return gate
    pace = _recovered(gate.pace, gate, now)
    lane_pace = _recovered(gate.lane_pace, gate, now)
    if rate:
        pace = max(PACE_MIN, pace * PACE_DOWN)
    else:
        lane_pace = max(PACE_MIN, lane_pace * PACE_DOWN)
    return replace(gate, pace=pace, lane_pace=lane_pace, paced_at=now, stepped_at=now)


def _recovered(pace: float, gate: Gate, now: int) -> float:
    return min(1.0, pace + PACE_UP_PER_S * max(0, now - gate.paced_at) / SECOND)


def _credit(gate: Gate, now: int) -> float:
    # After an outage everything is a retry: the floor follows the account's own rate, so that the
    # tail is drained at a fifth of it even where nothing fresh comes.
    floor = max(RETRY_FLOOR_PER_S, RETRY_SHARE * min(rate_now(gate, now), RATE_MAX))
    gained = floor * max(0, now - gate.credited_at) / SECOND
    return min(max(RETRY_CREDIT_MAX, floor), gate.retry_credit + gained)


def _spacing_us(limit: Limit, limits: GateLimits, pace: float) -> float:
    usable = limit.count * (1.0 - limits.headroom) * pace
    if limit.parts and not _is_exact(limit):
        # Room for one message of the largest size on top of what was started just before it.
        usable = max(1.0, usable - (PARTS_MAX - 1))
    return _window_us(limit, limits) / usable


def _window_us(limit: Limit, limits: GateLimits) -> int:
    """The interval in which slots are counted, so that starts, which may be late, keep to the limit."""
    return limit.interval_us + limits.margin_us


def _is_exact(limit: Limit) -> bool:
    """Whether recent starts are kept for this limit: spacing alone is right on average only where one
    message may cost several parts."""
    return limit.parts and not limit.is_quota and limit.count <= EXACT_PARTS_MAX


def _recent(gate: Gate, exact: Sequence[Limit], now: int) -> tuple[tuple[int, int], ...]:
    """The starts that a limit in parts may still have to count."""
    if not exact:
        return ()
    oldest = now - max(_window_us(limit, gate.limits) for limit in exact)
    return tuple((slot, cost) for slot, cost in gate.recent if slot > oldest)


def _room_from(
    recent: Sequence[tuple[int, int]], cost: int, limit: Limit, limits: GateLimits, at: int
) -> int:
    """The first instant from `at` on at which `cost` parts fit beside the starts of the window before it.

    A message with more parts than the whole limit goes alone.
    """
    window = _window_us(limit, limits)
    counted = [(slot, parts) for slot, parts in recent if slot > at - window]
    used = sum(parts for _, parts in counted)
    for slot, parts in counted:
        if used + cost <= _usable(limit, limits.headroom):
            break
        at = slot + window
        used -= parts
    return at


def _quotas(limits: Sequence[Limit]) -> list[Limit]:
    return [limit for limit in limits if limit.is_quota]


def _aligned(tats: tuple[int, ...], limits: Sequence[Limit], *, quota: bool) -> list[int]:
    """The stored instants, one per rate limit; limits that came later start free."""
    wanted = sum(limit.is_quota is quota for limit in limits)
    return [*tats[:wanted], *([0] * (wanted - len(tats)))]


def _usages(gate: Gate) -> list[tuple[tuple[int, int], ...]]:
    wanted = len(_quotas(gate.limits.limits))
    return [*gate.usage[:wanted], *([()] * (wanted - len(gate.usage)))]


def _usable(limit: Limit, headroom: float) -> int:
    return math.floor(limit.count * (1.0 - headroom))


def _bucket_us(limit: Limit) -> int:
    return limit.interval_us // QUOTA_BUCKETS


def _trimmed(spent: tuple[tuple[int, int], ...], limit: Limit, now: int) -> tuple[tuple[int, int], ...]:
    """Buckets that may still hold a start younger than the interval."""
    oldest = now - limit.interval_us - _bucket_us(limit)
    return tuple((start, used) for start, used in spent if start > oldest)


def _spent(
    spent: tuple[tuple[int, int], ...], limit: Limit, cost: int, at: int
) -> tuple[tuple[int, int], ...]:
    bucket = at - at % _bucket_us(limit)
    if spent and spent[-1][0] >= bucket:  # a later lead may be shorter: never book behind the last
        return (*spent[:-1], (spent[-1][0], spent[-1][1] + cost))
    return (*spent, (bucket, cost))


def _full_quota(
    quotas: Sequence[Limit],
    usage: Sequence[tuple[tuple[int, int], ...]],
    cost: int,
    headroom: float,
    now: int,
) -> int | None:
    """When the first full quota may have room again, or None where all have room."""
    for limit, spent in zip(quotas, usage, strict=True):
        if sum(used for _, used in spent) + (cost if limit.parts else 1) > _usable(limit, headroom):
            oldest = spent[0][0] if spent else now
            return oldest + limit.interval_us + _bucket_us(limit)
    return None
