"""The forecast: when what falls due will have left, and what will come too late. Pure.

Deliveries of one account stand in one line and leave in the order in which they fall due. What lets them
leave is the smaller of two rates: what the limits allow, and what the lanes allow, which by Little's law is
lanes divided by how long a call holds one. Each delivery costs so many calls as the last ones did, since
some are tried again. A gate that is closed or paused lets nothing leave until it opens, and a quota that is
used up nothing until some of it comes back.

It is a fluid: parts of deliveries leave in parts of seconds, ten seconds at a time, so a day is computed in
milliseconds. It knows nothing of priorities and groups, which change who comes late but not how many, and it
takes tomorrow's provider to be today's.

Instants are microseconds on the calendar; rates are calls a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
STEP_S: Final = 10.0
"""How much leaves at once in the arithmetic: what lies below is as good as even."""
BURST_S: Final = 60.0
"""A line that stood for longer than this is told as a burst."""
GONE_STEPS: Final = 200
"""What expires one by one, just before its turn, is told off in so many steps at most."""
RATE_MAX: Final = 100_000.0
RATE_MIN: Final = 1e-3
"""Where the look for a rate that suffices begins: from an account that can do nothing there is no way up."""
CALLS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Volume:
    """Deliveries that may leave from some time on, evenly between `first_at` and `last_at`.

    first_window, last_window  until when the first and the last of them are in time
    first_until, last_until    and when they expire
    """

    first_at: int
    last_at: int
    count: int
    first_window: int
    last_window: int
    first_until: int
    last_until: int


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `count` calls in any `interval_us`; `used`: pairs of (when it comes back, how much)."""

    count: float
    interval_us: int
    used: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Supply:
    """What an account can do.

    rate      starts a second that its limits allow; `inf` where only quotas limit
    lanes     calls that may be open at once
    hold_s    how long a call holds its lane; None: not known yet, and then lanes limit nothing
    opens_at  nothing leaves before; None: not until somebody lets it
    calls     calls that a delivery costs, 1 or more
    """

    rate: float
    lanes: int
    hold_s: float | None = None
    opens_at: int | None = 0
    calls: float = 1.0
    quotas: tuple[Quota, ...] = ()

    @property
    def lane_rate(self) -> float:
        """What the lanes allow."""
        return self.lanes / self.hold_s if self.hold_s else math.inf

    @property
    def call_rate(self) -> float:
        return min(self.rate, self.lane_rate, RATE_MAX)

    @property
    def per_s(self) -> float:
        """Deliveries a second."""
        return self.call_rate / max(1.0, self.calls)

    @property
    def bound(self) -> str:
        """What sets the pace: "rate" or "lanes"."""
        return "lanes" if self.lane_rate < self.rate else "rate"


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute: what falls due in it, leaves in it, expires in it, and what waits at its end."""

    at: int
    due: int
    started: int
    expired: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Burst:
    """A time in which deliveries stood in line without a break. `drained_at` is its end."""

    begins_at: int
    drained_at: int
    count: int
    late: int
    expired: int


@dataclass(frozen=True, slots=True)
class Course:
    """What becomes of the line.

    drained_at  when the last one has left; None: it never does
    late        leave after their window; `expired` never leave at all
    first_late  the first of both: which volume, and which place in it
    minutes     from the first on, only those in which something happens
    """

    drained_at: int | None
    started: int
    late: int
    expired: int
    first_late: tuple[int, int] | None
    bursts: tuple[Burst, ...]
    minutes: tuple[Minute, ...]

    @property
    def missed(self) -> int:
        return self.late + self.expired


def forecast(volumes: Sequence[Volume], supply: Supply, *, now: int) -> Course:
    """Let the volumes, in order of `first_at`, leave through the supply."""
    line = _Line(supply, now)
    for number, volume in enumerate(volumes):
        line.take(number, volume)
    return line.course()


def rate_needed(volumes: Sequence[Volume], supply: Supply, *, now: int) -> float | None:
    """The smallest rate of calls at which nothing misses that could still be in time; lanes as many as it
    takes. None where no rate helps: nothing would be late, or only what is late already."""
    course = forecast(volumes, supply, now=now)
    free = replace(supply, rate=RATE_MAX, hold_s=None)
    target = forecast(volumes, free, now=now).missed
    if course.missed <= target:
        return None
    low, high = max(supply.call_rate, RATE_MIN), RATE_MAX
    while high - low > max(0.01, low * 0.005):
        middle = math.sqrt(low * high)
        if forecast(volumes, replace(free, rate=middle), now=now).missed > target:
            low = middle
        else:
            high = middle
    return high


@dataclass(slots=True)
class _Tally:
    due: float = 0.0
    started: float = 0.0
    expired: float = 0.0


@dataclass(slots=True)
class _Open:
    """The burst that stands now."""

    begins_at: float
    count: float = 0.0
    late: float = 0.0
    expired: float = 0.0


@dataclass(slots=True)
class _Quota:
    left: float
    interval_us: int
    returns: deque[tuple[float, float]] = field(default_factory=deque)

    def room(self, at: float) -> float:
        while self.returns and self.returns[0][0] <= at:
            self.left += self.returns.popleft()[1]
        return self.left

    def spend(self, at: float, calls: float) -> None:
        self.left -= calls
        self.returns.append((at + self.interval_us, calls))


class _Line:
    """The line while it is computed. `free_at`: when everything before has left."""

    def __init__(self, supply: Supply, now: int) -> None:
        self._supply = supply
        self._calls = min(max(1.0, supply.calls), CALLS_MAX)
        self._per_us = supply.call_rate / self._calls / SECOND
        self._free_at = float(max(now, supply.opens_at or 0))
        self._quotas = [_quota(each) for each in supply.quotas]
        self._minutes: dict[int, _Tally] = {}
        self._bursts: list[Burst] = []
        self._open: _Open | None = None
        self._started = self._late = self._expired = 0.0
        self._first_late: tuple[int, int] | None = None
        self._never = (
            supply.opens_at is None
            or self._per_us <= 0
            or any(quota.count < self._calls for quota in supply.quotas)
        )

    def take(self, number: int, volume: Volume) -> None:
        if volume.count <= 0:
            return
        self._minute(volume.first_at).due += volume.count
        if self._never:
            self._miss(number, 0.0)
            self._expire(volume.first_until, volume.count)
            return
        done = 0.0
        while volume.count - done > 1e-9:
            done += self._part(number, volume, done)

    def _part(self, number: int, volume: Volume, done: float) -> float:
        """Let the next part leave, or expire; how much it is."""
        arrives = _between(volume.first_at, volume.last_at, done / volume.count)
        begins = max(self._free_at, arrives)
        until = _between(volume.first_until, volume.last_until, done / volume.count)
        left = volume.count - done
        if until <= begins:
            gone = _gone(volume, done, begins)
            self._miss(number, done)
            self._expire(until, gone)
            return gone
        room = min((quota.room(begins) / self._calls for quota in self._quotas), default=math.inf)
        if room < min(1.0, left):
            self._free_at = min(quota.returns[0][0] for quota in self._quotas if quota.returns)
            return 0.0
        if self._open is None or begins > self._free_at:
            self._close()
            self._open = _Open(begins)
        part = min(left, room, max(1.0, self._per_us * STEP_S * SECOND))
        ends = max(
            begins + part / self._per_us,
            _between(volume.first_at, volume.last_at, (done + part) / volume.count),
        )
        expires = _between(volume.first_until, volume.last_until, (done + part) / volume.count)
        if ends > expires:  # its end would come too late: as much as still goes
            part = max(min(part, 1e-3), part * _share_before(begins - until, ends - expires))
            ends = min(ends, begins + part / self._per_us)
        late = self._late_of(number, volume, done, part, begins, ends)
        self._late += late
        self._open.late += late
        self._open.count += part
        self._started += part
        for minute, share in _over_minutes(begins, ends):
            self._minute(minute).started += part * share
        for quota in self._quotas:
            quota.spend(begins, part * self._calls)
        self._free_at = ends
        return part

    def _late_of(
        self, number: int, volume: Volume, done: float, part: float, begins: float, ends: float
    ) -> float:
        first = _between(volume.first_window, volume.last_window, done / volume.count)
        last = _between(volume.first_window, volume.last_window, (done + part) / volume.count)
        in_time = _share_before(begins - first, ends - last)
        if in_time < 1.0:
            self._miss(number, done + part * in_time if begins <= first else done)
        return part * (1.0 - in_time)

    def _expire(self, at: float, count: float) -> None:
        self._expired += count
        self._minute(at).expired += count
        if self._open is not None:
            self._open.expired += count

    def _miss(self, number: int, place: float) -> None:
        if self._first_late is None:
            self._first_late = (number, int(place))

    def _minute(self, at: float) -> _Tally:
        return self._minutes.setdefault(int(at // MINUTE) * MINUTE, _Tally())

    def _close(self) -> None:
        burst, self._open = self._open, None
        if burst is not None and (self._free_at - burst.begins_at >= BURST_S * SECOND or burst.late >= 0.5):
            self._bursts.append(
                Burst(
                    int(burst.begins_at),
                    int(self._free_at),
                    round(burst.count),
                    round(burst.late),
                    round(burst.expired),
                )
            )

    def course(self) -> Course:
        self._close()
        waiting = 0.0
        minutes = []
        for at in sorted(self._minutes):
            tally = self._minutes[at]
            waiting = max(0.0, waiting + tally.due - tally.started - tally.expired)
            counts = (round(each) for each in (tally.due, tally.started, tally.expired, waiting))
            minutes.append(Minute(at, *counts))
        late, expired = round(self._late), round(self._expired)
        return Course(
            drained_at=None if self._never and self._minutes else int(self._free_at),
            started=round(self._started),
            late=late,
            expired=expired,
            first_late=self._first_late if late + expired else None,
            bursts=tuple(self._bursts),
            minutes=tuple(minutes),
        )


def _quota(quota: Quota) -> _Quota:
    used = sum(amount for _, amount in quota.used)
    returns = deque((float(at), amount) for at, amount in sorted(quota.used))
    return _Quota(max(0.0, quota.count - used), quota.interval_us, returns)


def _between(first: float, last: float, share: float) -> float:
    return first + (last - first) * share


def _share_before(at_first: float, at_last: float) -> float:
    """How much of a straight line from `at_first` to `at_last` is not above zero."""
    if at_first <= 0 and at_last <= 0:
        return 1.0
    if at_first > 0 and at_last > 0:
        return 0.0
    share = abs(at_first) / (abs(at_first) + abs(at_last))
    return share if at_first <= 0 else 1.0 - share


def _gone(volume: Volume, done: float, now: float) -> float:
    """How many from `done` on have expired by now."""
    left = volume.count - done
    if volume.last_until <= now or volume.last_until == volume.first_until:
        return left
    share = (now - volume.first_until) / (volume.last_until - volume.first_until)
    return min(left, max(1.0, volume.count / GONE_STEPS, share * volume.count - done))


def _over_minutes(begins: float, ends: float) -> Iterator[tuple[float, float]]:
    """The minutes from one instant to the other, and the share that falls into each."""
    if ends <= begins:
        yield begins, 1.0
        return
    at = begins
    while at < ends:
        upto = min(ends, (at // MINUTE + 1) * MINUTE)
        yield at, (upto - at) / (ends - begins)
        at = upto
