"""The forecast of every account, from what stands in the store: what is due when, and what may leave when.

The arithmetic is `core.forecast`. Here is where its numbers come from:

    volume     what waits, by minute: scheduled, queued, waiting for a retry; put off where quiet hours will
    limits     the gate's, as in force now, headroom taken off; quotas with what is left of them
    closed     the gate, a pause of the account or the channel, a held store
    repeats    of the last calls of the account: how many calls a delivery costs, how long each holds a lane

It is one read and bounded. Counts are exact and come from the index. Which account a scheduled delivery will
take, and whether the night holds it up, lies in its row: where more than `SAMPLE` rows fall due, so many of
them are looked at and stand for all; then the forecast is `sampled`.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from sendonce.core import catch_up, pacing
from sendonce.core.delivery import Channel
from sendonce.core.due import Defer, Expire, check_zone, decide_time, due_at_local, known_zone
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.forecast import MINUTE, Burst, Course, Minute, Quota, Supply, Volume, rate_needed
from sendonce.core.forecast import forecast as course_of
from sendonce.core.pacing import FOREVER, SECOND, Gate
from sendonce.core.policy import Policy
from sendonce.pipeline.catch_up import CatchUp
from sendonce.pipeline.fair_order import Tags
from sendonce.pipeline.reach import active_pauses
from sendonce.ports.store import Row, Tx
from sendonce.preparation import due_of

AHEAD_S: Final = 86_400.0
"""How far is looked ahead of now."""
BEFORE_S: Final = 3_600.0
"""How far before an asked instant it begins, where that lies beyond `AHEAD_S`: what came before has left."""
AFTER_S: Final = 3_600.0
"""How far behind it what falls due counts."""
SAMPLE: Final = 20_000
CALLS_ENTRIES: Final = 4_000
CALLS_MIN: Final = 20
"""Fewer calls than that say nothing of the next ones."""
BETWEEN_US: Final = 100_000
"""A lane is claimed for again within so long where lanes are what lacks."""
REPEATS_MAX: Final = 0.9
NAMED_MAX: Final = 5
LOOKED_AT: Final = 200
OFFSET_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class AccountForecast:
    """What becomes of one account's line.

    waiting      stands in line now; `due`: falls due besides, until the end of the forecast
    per_s        deliveries a second that will leave; `bound`: "rate" or "lanes" sets it, "closed" where
                 nothing leaves until somebody opens it
    opens_at     nothing leaves before; 0: it is open; None: until somebody opens it
    hold_s       how long a call holds its lane; None: too few calls to tell
    calls        calls a delivery costs, by the last ones
    drained_at   when the last one has left; None: it never does
    late         leave after their window; `expired`: never leave
    first_late   the keys of the first of both, about; at most `NAMED_MAX`
    needed_per_s calls a second at which nothing would be missed that can still be in time; None: none
    needed_lanes lanes that this takes; None where `hold_s` is
    bursts       the times in which deliveries stand in line for a minute or more
    minutes      from `start` on, those in which something happens
    """

    account: str
    channel: str
    waiting: int
    due: int
    per_s: float
    bound: str
    opens_at: int | None
    hold_s: float | None
    calls: float
    drained_at: int | None
    started: int
    late: int
    expired: int
    first_late: tuple[str, ...]
    needed_per_s: float | None
    needed_lanes: int | None
    bursts: tuple[Burst, ...]
    minutes: tuple[Minute, ...]

    @property
    def missed(self) -> int:
        return self.late + self.expired

    @property
    def first_miss_at(self) -> int:
        """When the burst begins in which something is missed; 0: none is."""
        return next((burst.begins_at for burst in self.bursts if burst.late or burst.expired), 0)


@dataclass(frozen=True, slots=True)
class ChannelForecast:
    """The accounts of a channel together. `drained_at` None: one of them never is."""

    channel: str
    due: int
    drained_at: int | None
    late: int
    expired: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """From `start` to `until`, as of `now`; microseconds UTC. `at`: the instant that was asked for.

    sampled     shares of accounts are of a sample
    unroutable  fall due and belong to no account of this configuration
    night       will be put off by quiet hours, or expire by them
    held        why nothing leaves at all; "" where something does
    """

    now: int
    at: int
    start: int
    until: int
    accounts: tuple[AccountForecast, ...]
    channels: tuple[ChannelForecast, ...]
    sampled: bool
    unroutable: int
    night: int
    held: str

    @property
    def missed(self) -> int:
        return sum(account.missed for account in self.accounts)


def moment_of(text: str, zone: str, now: int, *, field: str = "at") -> int:
    """An instant to ask for: "tomorrow 09:00", "today 17:30", "09:00" (the next one), or as a due time is
    written. Microseconds UTC. Raises `InvalidInput`."""
    found = _DAY.fullmatch(text.strip())
    if found is None:
        return due_of(text, "", zone, now)[0].at
    where = ZoneInfo(check_zone(zone))
    here = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now)).astimezone(where)
    hour, minute = int(found[2]), int(found[3])
    if hour > 23 or minute > 59:
        raise InvalidInput(f"{text!r:.80} is no time of a day: write it as tomorrow 09:00", field=field)
    wall = here.replace(hour=hour, minute=minute, second=0, microsecond=0, tzinfo=None)
    day = (found[1] or "").lower()
    if day == "tomorrow" or (not day and due_at_local(wall, zone, field=field).at < now):
        wall += timedelta(days=1)
    return due_at_local(wall, zone, field=field).at


_DAY: Final = re.compile(r"(?:(today|tomorrow)\s+)?(\d{1,2}):(\d{2})", re.IGNORECASE)


def forecast(tx: Tx, policy: Policy, *, at: int = 0) -> Forecast:
    """What will leave when. `at` 0: the next day; else until an hour after that instant.

    Raises `InvalidInput` for an instant that has passed.
    """
    now = tx.now
    if at and at < now:
        raise InvalidInput("at has passed: a forecast looks ahead", field="at")
    ahead = int(AHEAD_S * SECOND)
    until = at + int(AFTER_S * SECOND) if at else now + ahead
    start = max(now, at - int(BEFORE_S * SECOND)) if at > now + ahead else now
    seen = _Seen(tx, policy, start, until)
    accounts = tuple(seen.account(name) for name in policy.accounts)
    return Forecast(
        now=now,
        at=at,
        start=start,
        until=until,
        accounts=accounts,
        channels=tuple(_channel(each.value, accounts) for each in Channel if each in policy.channels),
        sampled=seen.sampled,
        unroutable=round(seen.unroutable),
        night=round(seen.night),
        held="the store is held" if tx.held else "",
    )


def _channel(name: str, accounts: Sequence[AccountForecast]) -> ChannelForecast:
    own = [each for each in accounts if each.channel == name]
    ends = [each.drained_at for each in own]
    return ChannelForecast(
        channel=name,
        due=sum(each.waiting + each.due for each in own),
        drained_at=None if None in ends else max((end for end in ends if end is not None), default=0),
        late=sum(each.late for each in own),
        expired=sum(each.expired for each in own),
    )


@dataclass(slots=True)
class _Pile:
    """Deliveries that may leave in the same minute. `since`, `upto`: where their rows stand on the agenda;
    `upto` 0: in the queue."""

    weight: float = 0.0
    at: tuple[int, int] = (FOREVER, 0)
    window: tuple[int, int] = (FOREVER, 0)
    until: tuple[int, int] = (FOREVER, 0)
    rows: tuple[int, int] = (FOREVER, 0)

    def add(self, weight: float, at: int, window: int, until: int, row_at: int) -> None:
        self.weight += weight
        self.at = _wider(self.at, at)
        self.window = _wider(self.window, window)
        self.until = _wider(self.until, until)
        self.rows = _wider(self.rows, row_at)

    def volume(self) -> Volume:
        return Volume(*self.at, max(1, round(self.weight)), *self.window, *self.until)


def _wider(span: tuple[int, int], at: int) -> tuple[int, int]:
    return min(span[0], at), max(span[1], at)


@dataclass(frozen=True, slots=True)
class _Calls:
    hold_s: float | None = None
    calls: float = 1.0


class _Seen:
    """What the statements brought, by account."""

    def __init__(self, tx: Tx, policy: Policy, start: int, until: int) -> None:
        self._tx = tx
        self._policy = policy
        self._start = start
        self._until = until
        self._gates = {gate.account: gate for gate in tx.gates.all()}
        self._well = Tags(tx).wellness(tuple(policy.accounts))
        self._pauses = active_pauses(tx)
        self._calls = _calls(tx)
        self._piles: dict[str, dict[tuple[int, int], _Pile]] = defaultdict(lambda: defaultdict(_Pile))
        self._waiting: dict[str, float] = defaultdict(float)
        self._costs: dict[str, list[int]] = defaultdict(list)
        self._nights: dict[tuple[str, str, int], int | None] = {}
        self.sampled = False
        self.unroutable = 0.0
        self.night = 0.0
        if start <= tx.now:
            self._take_queue()
        self._take_scheduled()

    def account(self, name: str) -> AccountForecast:
        channel = self._policy.accounts[name].channel.value
        piles = [pile for _, pile in sorted(self._piles[name].items())]
        piles.sort(key=lambda pile: pile.at)
        volumes = [pile.volume() for pile in piles]
        supply = self._supply(name, channel)
        now = self._start
        course = course_of(volumes, supply, now=now)
        open_supply = supply if supply.opens_at is not None else replace(supply, opens_at=0)
        needed = rate_needed(volumes, open_supply, now=now) if course.missed else None
        waiting = round(self._waiting[name])
        return AccountForecast(
            account=name,
            channel=channel,
            waiting=waiting,
            due=max(0, sum(volume.count for volume in volumes) - waiting),
            per_s=0.0 if supply.opens_at is None else supply.per_s,
            bound="closed" if supply.opens_at is None else supply.bound,
            opens_at=supply.opens_at,
            hold_s=supply.hold_s,
            calls=supply.calls,
            drained_at=course.drained_at if volumes else now,
            started=course.started,
            late=course.late,
            expired=course.expired,
            first_late=self._keys(name, piles, course),
            needed_per_s=needed,
            needed_lanes=None
            if needed is None or supply.hold_s is None
            else math.ceil(needed * supply.hold_s),
            bursts=course.bursts,
            minutes=course.minutes,
        )

    # What falls due

    def _take_queue(self) -> None:
        """What is published and waits: for its turn, or until a time of its own."""
        totals: dict[str, int] = defaultdict(int)
        for row in self._tx.rows("view_forecast_queue"):
            totals[str(row["via"])] += int(row["count"])
        step = self._step(sum(totals.values()))
        rows = self._tx.rows("view_forecast_queued", step=step)
        looked_at: dict[str, int] = defaultdict(int)
        for row in rows:
            looked_at[str(row["via"])] += 1
        for row in rows:
            name = str(row["via"])
            account = self._policy.accounts.get(name)
            if account is None:
                continue
            weight = totals[name] / looked_at[name]
            self._costs[name].append(int(row["cost"]))
            at = max(int(row["at"]), self._tx.now)
            if at >= self._until:
                continue
            window = int(row["due_at"]) + self._window_us(account.channel)
            self._waiting[name] += weight
            # What waits already goes in the order of its due time; by minute, as what is to come.
            place = (at // MINUTE, int(row["due_at"]) // MINUTE)
            self._piles[name][place].add(weight, at, window, int(row["until"]), 0)

    def _take_scheduled(self) -> None:
        since = self._start if self._start > self._tx.now else 0
        span = {"since": since, "until": self._until}
        total = sum(int(row["count"]) for row in self._tx.rows("view_forecast_minutes", **span))
        step = self._step(total)
        rows = self._tx.rows("view_forecast_scheduled", step=step, **span)
        if not rows:
            return
        weight = total / len(rows)
        overdue: dict[str, list[tuple[Row, str]]] = defaultdict(list)
        for row in rows:
            name = self._account_of(row)
            if name is None:
                self.unroutable += weight
            elif self._takes_turns(row):
                overdue[str(row["channel"])].append((row, name))
            else:
                self._take(row, name, max(int(row["at"]), self._tx.now), weight)
        turns = CatchUp(self._tx, self._policy)
        for channel, held in overdue.items():
            at = max(self._tx.now, turns.until(Channel(channel)))
            for row, name in held:
                self._take(row, name, at, weight)
                at += round(self._policy.channels[Channel(channel)].catch_up_us * weight)

    def _take(self, row: Row, name: str, at: int, weight: float) -> None:
        paused = self._pauses.get(("scheduler", ""))
        if paused is not None:
            at = max(at, paused.until)
        allowed = self._allowed_from(row, at)
        if allowed != at:
            self.night += weight
        if allowed is None or allowed >= self._until:
            return  # it expires by the night's own rule, or leaves after what is asked for
        channel = self._policy.accounts[name].channel
        # What the night put off is in time when it comes soon after that.
        begins = allowed if allowed != at else int(row["due_at"])
        window = begins + self._window_us(channel)
        pile = self._piles[name][allowed // MINUTE, 0]
        pile.add(weight, allowed, window, int(row["until"]), int(row["at"]))

    def _allowed_from(self, row: Row, at: int) -> int | None:
        """When the night lets it go; None: it expires by it. By the minute, since many share one."""
        category = self._policy.categories.get(str(row["category"]))
        if category is None or not category.quiet:
            return at
        zone = known_zone(str(row["zone"]), self._policy.zone(str(row["tenant"])))
        key = (category.name, zone, at // MINUTE)
        if key not in self._nights:
            verdict = decide_time(
                now=at,
                next_at=at,
                expires_at=FOREVER,
                quiet=category.quiet,
                zone=zone,
                on_quiet=category.on_quiet.value,
            )
            self._nights[key] = (
                verdict.until if isinstance(verdict, Defer) else None if isinstance(verdict, Expire) else at
            )
        until = self._nights[key]
        return until if until is None or until > at else at

    def _takes_turns(self, row: Row) -> bool:
        channel = self._policy.channels.get(Channel(str(row["channel"])))
        return (
            channel is not None
            and channel.catch_up_us > 0
            and int(row["at"]) <= self._tx.now
            and catch_up.is_overdue(
                now=self._tx.now,
                next_at=int(row["at"]),
                reason=str(row["reason"]),
                grace_us=int(self._policy.grace_s * SECOND),
            )
        )

    def _account_of(self, row: Row) -> str | None:
        """Who would carry it, if it were published now; None: nobody."""
        try:
            channel = Channel(str(row["channel"]))
            choice = self._policy.choose(
                channel,
                str(row["tenant"]),
                str(row["category"]),
                str(row["key"]),
                before=str(row["account"]),
                sender=_sender_of(str(row["recipients"]), channel),
                wellness=self._wellness,
            )
        except (ConfigError, LookupError, ValueError):
            return None
        return choice.account if choice.account in self._policy.accounts else None

    def _wellness(self, accounts: Sequence[str]) -> Mapping[str, float]:
        return {name: self._well[name] for name in accounts}

    def _window_us(self, channel: Channel) -> int:
        return int(self._policy.channels[channel].objectives.accepted_s * SECOND)

    def _step(self, total: int) -> int:
        step = max(1, math.ceil(total / SAMPLE))
        self.sampled = self.sampled or step > 1
        return step

    # What may leave

    def _supply(self, name: str, channel: str) -> Supply:
        calls = self._calls.get(name, _Calls())
        gate = self._gates.get(name)
        if gate is None or self._tx.held:
            return Supply(0.0, 1, opens_at=None)
        costs = self._costs[name]
        cost = sum(costs) / len(costs) if costs else 1.0
        return Supply(
            rate=_rate(gate, cost),
            lanes=pacing.lanes_now(replace(gate, lane_pace=1.0), self._tx.steady),
            hold_s=calls.hold_s,
            opens_at=self._opens_at(gate, channel),
            calls=calls.calls,
            quotas=tuple(self._quotas(gate, cost)),
        )

    def _opens_at(self, gate: Gate, channel: str) -> int | None:
        steady, ends = self._tx.steady, [0]
        for until in (gate.paused_until, gate.closed_until):
            if until >= FOREVER:
                return None
            if until > steady:
                ends.append(self._tx.now + until - steady)
        pause = self._pauses.get(("channel", channel))
        if pause is not None:
            if pause.until >= FOREVER:
                return None
            ends.append(pause.until)
        return max(ends)

    def _quotas(self, gate: Gate, cost: float) -> Iterable[Quota]:
        limits = [limit for limit in gate.limits.limits if limit.is_quota]
        ahead = self._tx.now - self._tx.steady
        for number, limit in enumerate(limits):
            bucket_us = limit.interval_us // pacing.QUOTA_BUCKETS
            span_us = limit.interval_us + bucket_us
            each = cost if limit.parts else 1.0
            usage = gate.usage[number] if number < len(gate.usage) else ()
            used = [(start + span_us + ahead, used / each) for start, used in usage]
            yield Quota(
                count=math.floor(limit.count * (1.0 - gate.limits.headroom)) / each,
                interval_us=span_us,
                used=tuple((at, amount) for at, amount in used if at > self._tx.now),
            )

    def _keys(self, name: str, piles: Sequence[_Pile], course: Course) -> tuple[str, ...]:
        """The first that come too late, about: the line's order is that of the due times."""
        if course.first_late is None:
            return ()
        number, place = course.first_late
        since, upto = piles[number].rows
        if not upto:
            before = sum(round(pile.weight) for pile in piles[:number])
            rows = self._tx.rows(
                "view_forecast_queued_keys",
                account=name,
                limit=NAMED_MAX,
                offset=min(OFFSET_MAX, before + place),
            )
            return tuple(str(row["key"]) for row in rows)
        rows = self._tx.rows(
            "view_forecast_keys", since=since, until=upto, limit=LOOKED_AT, offset=min(OFFSET_MAX, place)
        )
        return tuple(str(row["key"]) for row in rows if self._account_of(row) == name)[:NAMED_MAX]


def _sender_of(recipients: str, channel: Channel) -> str:
    """As whom a delivery is sent; "": as whom its account says. Text that is no JSON is a `ValueError`."""
    found = json.loads(recipients).get(channel.value, {}) if '"sender"' in recipients else {}
    return str(found.get("sender", ""))


def _rate(gate: Gate, cost: float) -> float:
    """Starts a second at full pace: what a step-down took away comes back within a minute."""
    rates = [math.inf]
    for limit in gate.limits.limits:
        if not limit.is_quota:
            alone = replace(gate, limits=replace(gate.limits, limits=(limit,)), pace=1.0)
            rates.append(pacing.rate_now(alone, gate.paced_at) / (cost if limit.parts else 1.0))
    return min(rates)


def _calls(tx: Tx) -> Mapping[str, _Calls]:
    last = int(tx.rows("view_progress_last_entry")[0]["id"])
    seen: dict[str, _Lanes] = defaultdict(_Lanes)
    for row in tx.rows("view_forecast_calls", after=last - CALLS_ENTRIES):
        lanes, id_, at = seen[str(row["account"])], int(row["delivery_id"]), int(row["at"])
        if row["event"] == "claimed":
            lanes.claimed(id_, at, again=row["again"] == 1)
        else:
            lanes.freed(id_, at)
    return {name: lanes.calls() for name, lanes in seen.items() if len(lanes.held_us) >= CALLS_MIN}


class _Lanes:
    """An account's last calls, as the ledger tells them in order."""

    def __init__(self) -> None:
        self.held_us: list[int] = []
        self._began: dict[int, int] = {}
        self._again = 0
        self._free_since: deque[int] = deque()
        self._between_us: list[int] = []

    def claimed(self, id_: int, at: int, *, again: bool) -> None:
        self._began[id_] = at
        self._again += again
        if self._free_since:
            between_us = at - self._free_since.popleft()
            if between_us <= BETWEEN_US:  # else there was nothing to claim, or the rate did not let it
                self._between_us.append(between_us)

    def freed(self, id_: int, at: int) -> None:
        if id_ in self._began:
            self.held_us.append(max(0, at - self._began.pop(id_)))
            self._free_since.append(at)

    def calls(self) -> _Calls:
        """A lane that is free is of no use until the next claim: that counts as held."""
        between_us = sum(self._between_us) / len(self._between_us) if self._between_us else 0.0
        hold_s = (sum(self.held_us) / len(self.held_us) + between_us) / SECOND
        repeats = min(REPEATS_MAX, self._again / len(self.held_us))
        return _Calls(hold_s or None, 1.0 / (1.0 - repeats))
