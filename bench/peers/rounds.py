"""The rounds: the same work for everyone, counted at the door.

    drain   enqueue, then send all of it without a limit, with one worker process, then with two
    pace    two processes, and a provider that takes 200 in any sliding second and answers 429 above
    kill    two processes; at 30 % one is killed and, as a supervisor does, started again at once
    future  some fall due at one moment, in an empty store and then beside very many that do not

A round asks a contender for nothing but its `Field`, so that nobody gets a way of his own. What cannot be
said as a figure is a remark, such as what had not come back when the time was over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from bench import machine
from bench.door import CountingDoor, clock_us, counting_door
from bench.measurement import Figure
from bench.peers.contender import HOLD, Contender, Field, Work, Worker
from bench.tally import rate_from, rate_within, recovered_s, tally, worst_window

LOOK_S: Final = 0.02
FIRST_S: Final = 60.0
"""How long the first call may take: a worker starts."""
STILL_S: Final = 30.0
"""How long nothing may arrive before the rest is given up."""
WRITE_S: Final = 0.3
"""For the last outcomes to be written."""

WARM_SHARE: Final = 0.2
"""Of a drain, before CPU and rate are taken: all processes are up by then."""
LIMIT: Final = 200
KILL_SHARE: Final = 0.3
LEASE_S: Final = 10
KEPT_S: Final = 6 * 86_400
"""How far ahead the future lies. Dramatiq on Redis refuses seven days and more."""
LEAD_TIMES: Final = 1.5
IDLE_S: Final = 4.0
"""From handing in what falls due to its moment: so many times what that took before, and so long to be idle,
but for the last `EVE_S`.
"""
EVE_S: Final = 0.5
IDLE_SHARE: Final = 0.2
"""Of a core: a worker that uses less has nothing to do."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of each.

    times          of the contender's sizes
    pace_s         how long a limit is watched
    patience_s     how long after a kill what is open may take to come back
    future         due much later, and at most `future_s` to hand them in
    settle_s       how long workers may take to look through them, before anything is measured
    """

    times: float = 1.0
    pace_s: float = 10.0
    patience_s: float = 40.0
    future: int = 50_000
    future_s: float = 8.0
    settle_s: float = 15.0


BOUNDED: Final = Amount()
FULL: Final = Amount(2.5, pace_s=20.0, patience_s=150.0, future=500_000, future_s=1_200.0, settle_s=120.0)


Row = Mapping[str, float]
Value = Callable[[Row, Sequence[Row]], float | None]


@dataclass(slots=True)
class Taken:
    """What one contender did in one round."""

    figures: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    servers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Aim:
    """What sendonce is held to.

    value  from the figures of its row and those of the peers; None where they do not tell
    on     which of our contenders, by name
    """

    figure: Figure
    value: Value
    on: Callable[[str], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class Round:
    """`take` measures it once; `figures` are its columns."""

    name: str
    what: str
    figures: tuple[Figure, ...]
    take: Callable[[Contender, Amount], Taken]
    aims: tuple[Aim, ...]


def _at(name: str) -> Value:
    return lambda own, _: own.get(name)


def _is_keyed(name: str) -> bool:
    return not name.endswith(HOLD)


def _is_for_many(name: str) -> bool:
    return name.startswith("sendonce-postgresql")


# drain


def _drain(contender: Contender, amount: Amount) -> Taken:
    taken = Taken()
    count = round(contender.sizes.drain * amount.times)
    for workers in (1, 2):
        with counting_door() as door, _field(contender, Work(door.url, workers), taken) as opened:
            enqueued = opened.enqueue(count)
            taken.figures["enqueue"] = enqueued.rate
            if enqueued.publish_rate:
                taken.figures["publish"] = enqueued.publish_rate
            taken.figures |= {
                f"{name}_{workers}": value
                for name, value in _sent(door, opened, workers, count, taken).items()
            }
    for name in ("lost", "duplicates", "others"):
        found = [taken.figures.pop(f"{name}_{workers}") for workers in (1, 2)]
        taken.figures[name] = max(found)
    return taken


def _sent(door: CountingDoor, opened: Field, workers: int, count: int, taken: Taken) -> Mapping[str, float]:
    running = [opened.start(number) for number in range(workers)]
    warm = round(count * WARM_SHARE)
    _await(door, warm, running)
    before, busy, own, begun = _cpu(running, opened), machine.busy_s(), _own_cpu_s(door), time.perf_counter()
    done = _await(door, count, running)
    time.sleep(WRITE_S)
    after, took_s = _cpu(running, opened), time.perf_counter() - begun
    others_s = machine.busy_s() - busy - (sum(after) - sum(before)) - (_own_cpu_s(door) - own)
    calls = door.calls()
    counted = tally(calls)
    if not done:
        taken.remarks.append(f"{count - counted.messages:,} of {count:,} had not come after {STILL_S:g} s")
    thousands = max(1, len(calls) - warm) / 1_000
    return {
        "rate": rate_from(calls, warm),
        "cpu": (sum(after) - sum(before)) / thousands,
        "server_cpu": (after[1] - before[1]) / thousands,
        "peak": max(worker.peak_mb() for worker in running),
        "lost": count - counted.messages,
        "duplicates": counted.duplicates,
        "others": max(0.0, others_s) / took_s,
    }


def _to_best(name: str, pick: Callable[[Iterable[float]], float]) -> Value:
    """Our figure to the best one of a peer."""

    def ratio(own: Row, peers: Sequence[Row]) -> float | None:
        found = [figures[name] for figures in peers if figures.get(name)]
        return own[name] / pick(found) if found and name in own else None

    return ratio


DRAIN: Final = Round(
    "drain",
    "no limit, one worker process and then two",
    (
        Figure("enqueue", "/s", "enqueued"),
        Figure("publish", "/s", "published"),
        Figure("rate_1", "/s", "delivered, 1 process"),
        Figure("rate_2", "/s", "delivered, 2 processes"),
        Figure("cpu_1", "s", "CPU per 1,000, 1 process and servers", digits=2),
        Figure("server_cpu_1", "s", "of it, servers", digits=2),
        Figure("cpu_2", "s", "CPU per 1,000, 2 processes and servers", digits=2),
        Figure("peak_1", "MB", "peak memory, 1 process"),
        Figure("peak_2", "MB", "the larger of 2"),
        Figure("lost", "", "lost", worst=True),
        Figure("duplicates", "", "taken twice", worst=True),
        Figure("others", "cores", "used by others", digits=1, worst=True),
    ),
    _drain,
    (
        Aim(
            Figure("rate_ratio", "x", "rate of 1 process to the best peer's", digits=2, at_least=2.0),
            _to_best("rate_1", max),
            on=_is_for_many,
        ),
        Aim(
            Figure("cpu_ratio", "x", "its CPU to the best peer's", digits=2, at_most=0.5),
            _to_best("cpu_1", min),
            on=_is_for_many,
        ),
        Aim(Figure("peak_1", "MB", "peak memory", at_most=150), _at("peak_1")),
        Aim(Figure("lost", "", "lost", at_most=0), _at("lost")),
        Aim(Figure("duplicates", "", "taken twice", at_most=0), _at("duplicates")),
    ),
)


# pace


def _pace(contender: Contender, amount: Amount) -> Taken:
    taken = Taken(remarks=[f"limiter: {contender.limiter}"])
    with (
        counting_door(limit=LIMIT) as door,
        _field(contender, Work(door.url, 2, limit=LIMIT), taken) as opened,
    ):
        opened.enqueue(round(LIMIT * (amount.pace_s + 3)))
        running = [opened.start(number) for number in range(2)]
        if not _await(door, 1, running):
            raise TimeoutError(f"no call within {FIRST_S:g} s: {running[0].last_words()}")
        time.sleep(max(0.0, amount.pace_s - (clock_us() - door.calls()[0].arrived_at) / 1_000_000))
        calls = door.calls()
    until = calls[0].arrived_at + amount.pace_s * 1_000_000
    calls = [call for call in calls if call.arrived_at < until]
    counted = tally(calls)
    rate = rate_within(calls, amount.pace_s)
    taken.figures |= {
        "rate": rate,
        "used": rate / LIMIT * 100,
        "throttled": counted.throttled,
        "worst_second": worst_window(calls, 1_000_000),
        "worst_100ms": worst_window(calls, 100_000),
        "duplicates": counted.duplicates,
    }
    return taken


PACE: Final = Round(
    "pace",
    f"{LIMIT} a second allowed, two worker processes",
    (
        Figure("rate", "/s", "delivered"),
        Figure("used", "%", "of the limit used", digits=1),
        Figure("throttled", "", "answers of 429", worst=True),
        Figure("worst_second", "", "most calls in any sliding second", worst=True),
        Figure("worst_100ms", "", "in any 100 ms", worst=True),
        Figure("duplicates", "", "taken twice", worst=True),
    ),
    _pace,
    (
        Aim(Figure("worst_second", "", "most calls in any second", at_most=LIMIT), _at("worst_second")),
        Aim(Figure("worst_100ms", "", "most calls in any 100 ms", at_most=25), _at("worst_100ms")),
        Aim(Figure("used", "%", "of the limit used", digits=1, at_least=97), _at("used")),
        Aim(Figure("throttled", "", "answers of 429", at_most=0), _at("throttled")),
    ),
)


# kill


def _kill(contender: Contender, amount: Amount) -> Taken:
    taken = Taken()
    count = round(contender.sizes.kill * amount.times)
    with (
        counting_door(honours_keys=True) as door,
        _field(contender, Work(door.url, 2, lease_s=LEASE_S), taken) as opened,
    ):
        opened.enqueue(count)
        running = [opened.start(number) for number in range(2)]
        if not _await(door, round(count * KILL_SHARE), running, look_s=0.005):
            raise TimeoutError(f"{door.taken():,} of {count:,} had come: {running[0].last_words()}")
        killed_at = clock_us()
        running[0].kill()
        running[0] = opened.start(0)
        left = _await_nothing_left(opened, killed_at, amount.patience_s)
        closed_at = clock_us()
        time.sleep(WRITE_S)
        calls = door.calls()
        counted = tally(calls)
        taken.remarks += opened.remarks()
    taken.figures |= {
        "lost": count - counted.messages,
        "repeated": counted.repeated,
        "duplicates": counted.duplicates,
    }
    taken.figures["left"] = left
    if left:
        taken.remarks.append(f"{left:,} still open after {amount.patience_s:g} s")
    else:
        taken.figures["recovered"] = recovered_s(calls, killed_at)
        taken.figures["closed"] = (closed_at - killed_at) / 1_000_000
    return taken


def _await_nothing_left(opened: Field, killed_at: int, patience_s: float) -> int:
    """How many are open when none is left, or the patience is over. Its own books say when to stop looking,
    the door alone says what came.
    """
    while left := opened.left():
        if (clock_us() - killed_at) / 1_000_000 > patience_s:
            return left
        time.sleep(1.0)
    return 0


KILL: Final = Round(
    "kill",
    f"SIGKILL of 1 of 2 worker processes at 30 %, lease {LEASE_S} s, a provider that honours keys",
    (
        Figure("lost", "", "not at the door", worst=True),
        Figure("left", "", "still open in the end", worst=True),
        Figure("repeated", "", "repeated calls: taken twice where a provider honours no keys", worst=True),
        Figure("duplicates", "", "taken twice by this one", worst=True),
        Figure("recovered", "s", "from the kill to the last call", digits=1, worst=True),
        Figure("closed", "s", "until its books had nothing open, to a second", digits=1, worst=True),
    ),
    _kill,
    (
        Aim(Figure("lost", "", "not at the door", at_most=0), _at("lost"), on=_is_keyed),
        Aim(Figure("duplicates", "", "taken twice", at_most=0), _at("duplicates")),
        Aim(
            Figure("repeated", "", "repeated calls", at_most=0),
            _at("repeated"),
            on=lambda name: not _is_keyed(name),
        ),
        Aim(Figure("recovered", "s", "last call after the kill", digits=1, at_most=20), _at("recovered")),
        Aim(Figure("left", "", "still open", at_most=0), _at("left")),
    ),
)


# future


def _future(contender: Contender, amount: Amount) -> Taken:
    taken = Taken()
    due = round(contender.sizes.due * amount.times)
    with counting_door() as door, _field(contender, Work(door.url, timed=True), taken) as opened:
        worker = opened.start(0)
        empty = _due_at_once(door, opened, worker, due, 0, amount, taken)
        worker.stop()
        kept = opened.enqueue(
            amount.future, first=1_000_000, due_at=time.time() + KEPT_S, seconds=amount.future_s
        )
        opened.tidy()
        worker = opened.start(0)
        beside = _due_at_once(door, opened, worker, due, 2 * due, amount, taken)
    taken.figures |= {f"{name}_empty": value for name, value in empty.items()}
    taken.figures |= {f"{name}_beside": value for name, value in beside.items()}
    taken.figures["kept"] = kept.count
    if empty.get("rate") and "rate" in beside:
        taken.figures["ratio"] = beside["rate"] / empty["rate"]
    return taken


def _due_at_once(
    door: CountingDoor, opened: Field, worker: Worker, due: int, first: int, amount: Amount, taken: Taken
) -> Mapping[str, float]:
    """What an idle worker costs, and how fast it sends what falls due at one moment.

    Some that are due at once go before, so that neither worker nor server does this for the first time.
    """
    _settle(opened, worker, amount.settle_s)
    door.reset()
    begun = time.monotonic()
    opened.enqueue(due, first=first)
    lead_s = LEAD_TIMES * (time.monotonic() - begun) + IDLE_S
    if not _await(door, due, [worker]):
        taken.remarks.append(f"{due - door.taken():,} of {due:,} that were due at once had not come")
    _settle(opened, worker, amount.settle_s)
    door.reset()
    due_at = time.time() + lead_s
    due_at_us = clock_us() + round(lead_s * 1_000_000)
    opened.enqueue(due, first=first + due, due_at=due_at)
    figures = {}
    idle_s = due_at - EVE_S - time.time()
    if idle_s > 1.0:
        before = sum(_cpu([worker], opened))
        time.sleep(idle_s)
        figures["idle"] = (sum(_cpu([worker], opened)) - before) / idle_s * 100
    else:
        taken.remarks.append(f"handing in {due:,} took {lead_s - EVE_S - idle_s:.1f} s, longer than before")
    before = sum(_cpu([worker], opened))
    done = _await(door, due, [worker], first_s=STILL_S)
    time.sleep(WRITE_S)
    used_s = sum(_cpu([worker], opened)) - before
    calls = door.calls()
    came = tally(calls).messages
    if not done:
        taken.remarks.append(f"{due - came:,} of {due:,} had not come {STILL_S:g} s later")
    if came > 1:
        figures["rate"] = rate_from(calls, 0)
        figures["cpu"] = used_s / came * 1_000
        figures["late"] = max(0, calls[-1].arrived_at - due_at_us) / 1_000_000
    return figures


def _settle(opened: Field, worker: Worker, limit_s: float) -> None:
    """Until it is idle, or has had its time: it starts, and some look through all that is stored."""
    until = time.monotonic() + limit_s
    before = sum(_cpu([worker], opened))
    while time.monotonic() < until:
        time.sleep(1.0)
        now = sum(_cpu([worker], opened))
        if now - before < IDLE_SHARE:
            return
        before = now


FUTURE: Final = Round(
    "future",
    "one process; due at one moment in an empty store, then beside many that are due in six days",
    (
        Figure("kept", "", "due in six days"),
        Figure("rate_empty", "/s", "due ones delivered, empty store"),
        Figure("rate_beside", "/s", "beside them"),
        Figure("ratio", "x", "ratio", digits=2),
        Figure("cpu_empty", "s", "CPU per 1,000, empty store", digits=2),
        Figure("cpu_beside", "s", "beside them", digits=2),
        Figure("late_empty", "s", "moment to last call, empty store", digits=1),
        Figure("late_beside", "s", "beside them", digits=1),
        Figure("idle_empty", "%", "idle CPU of a core, empty store", digits=1),
        Figure("idle_beside", "%", "beside them", digits=1),
    ),
    _future,
    (
        Aim(
            Figure("ratio", "x", "rate beside them to an empty store's", digits=2, at_least=0.9), _at("ratio")
        ),
    ),
)

ROUNDS: Final = {one.name: one for one in (DRAIN, PACE, KILL, FUTURE)}


# What they share


@contextmanager
def _field(contender: Contender, work: Work, taken: Taken) -> Iterator[Field]:
    with contender.field(work) as opened:
        taken.servers |= opened.servers
        yield opened


def _await(
    door: CountingDoor,
    count: int,
    running: Sequence[Worker],
    *,
    first_s: float = FIRST_S,
    look_s: float = LOOK_S,
) -> bool:
    """Until so many messages were taken; False where none came for long, or no worker runs any more."""
    seen, until = door.taken(), time.monotonic() + first_s
    while (now := door.taken()) < count:
        if now > seen:
            seen, until = now, time.monotonic() + STILL_S
        if time.monotonic() > until or all(worker.has_ended() for worker in running):
            return False
        time.sleep(look_s)
    return True


def _cpu(running: Sequence[Worker], opened: Field) -> tuple[float, float]:
    """Of the workers, of the servers."""
    return sum(worker.cpu_s() for worker in running), opened.server_cpu_s()


def _own_cpu_s(door: CountingDoor) -> float:
    """Of the provider and of the bench itself."""
    times = os.times()
    provider = machine.cpu_s(door.process) if door.process else 0.0
    return times.user + times.system + provider
