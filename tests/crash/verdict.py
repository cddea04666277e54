"""Whether every promise held, counted at the providers' doors against the ledger and the answers given."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sendonce.core.lifecycle import State
from sendonce.pipeline.sealed import check_seals
from sendonce.pipeline.verify import verify
from sendonce.testing.tally import Tally, tally
from sendonce.withdrawal import Word
from tests.crash.faults import Act
from tests.crash.intake import Answers, answers
from tests.crash.processes import count_told
from tests.crash.recovery import Recovery
from tests.crash.run import ACCOUNTS, Course, Options, World

SLACK_S: Final = 5.0
"""What a recovery may take beyond lease and send timeout."""
EXPECTED: Final = frozenset({State.ACCEPTED, State.CANCELLED, State.UNCERTAIN})


@dataclass(frozen=True, slots=True)
class Verdict:
    """figures   for the last line
    recovery  a line for each kind of fault
    problems  a sentence for each promise that did not hold"""

    figures: Mapping[str, object]
    recovery: Sequence[str]
    problems: Sequence[str]

    def line(self) -> str:
        return "crash: " + " ".join(f"{name}={value}" for name, value in self.figures.items())


def judge(options: Options, world: World, course: Course) -> Verdict:
    """After everything has ended. Reads all of the store once."""
    effects = [effect for door in set(world.doors.values()) for effect in door.effects()]
    counted = world.app.store.read(lambda tx: tally(tx.rows("view_demo_states"), effects))
    lanes = world.app.store.read(lambda tx: {name: tx.calls.count(name) for name in ACCOUNTS})
    told = answers(options.journal)
    proof = verify(world.app.store)
    seals = check_seals(world.app.store, None)
    forgotten = sorted(told.scheduled - counted.states.keys())
    cancelled_yet_sent = sorted(_sent_after_cancel(counted, told))
    uncertain = [key for key, state in counted.states.items() if state is State.UNCERTAIN]
    uncertain_at_most = _open_or_lost(world, course)
    over_limit = list(_over_limit(world))
    deadlocks = _deadlocks(options.folder, world)
    again = count_told(options.folder, "run_again", by="reason")
    problems = [
        *course.problems,
        *counted.problems(),
        *(f"{key}: taken in, said the answer; the store has not got it" for key in forgotten),
        *(f"{key}: will not be sent, said the answer; the provider took it" for key in cancelled_yet_sent),
        *told.wrong,
        *_wrongly_uncertain(uncertain, told, uncertain_at_most),
        *(f"{key} is {state}" for key, state in counted.states.items() if state not in EXPECTED),
        *over_limit,
        *(f"{count} lanes of {name} are still taken" for name, count in lanes.items() if count),
        *(f"{count} deadlocks, counted by {who}" for who, count in deadlocks.items() if count),
        *(f"{fault.key}, entry {fault.seq}: {fault.what}" for fault in (*proof.faults, *seals.faults)),
        *_slow(world, course.recovered),
    ]
    return Verdict(
        {
            "store": options.store,
            "seed": options.seed,
            "minutes": f"{course.minutes:.1f}",
            "kills": course.struck[Act.KILL],
            "pauses": course.struck[Act.PAUSE],
            "long_pauses": course.long_pauses,
            "restarts": course.struck[Act.RESTART],
            "deliveries": len(counted.states),
            "accepted": counted.counts[State.ACCEPTED],
            "cancelled": counted.counts[State.CANCELLED],
            "uncertain": len(uncertain),
            "uncertain_at_most": uncertain_at_most,
            "lost": counted.lost + len(forgotten),
            "duplicates": counted.duplicates,
            "cancelled_yet_sent": len(cancelled_yet_sent),
            "over_limit": len(over_limit),
            "deadlocks": max(deadlocks.values()),
            "run_again": again.total(),
            "recovered_s": f"{max((one.took_s for one in course.recovered), default=0.0):.1f}",
            "blocks": seals.blocks,
            "verify": "ok" if proof.ok and seals.ok else "faulty",
        },
        [*_recovery(course.recovered), *(f"run again for {why}: {n} times" for why, n in again.items())],
        problems,
    )


def _account(key: str) -> str:
    return key.partition("-")[0]


def _sent_after_cancel(counted: Tally, told: Answers) -> set[str]:
    answered = {key for key, word in told.cancelled.items() if word == Word.CANCELLED}
    return {key for key in answered if key in counted.taken} | set(counted.contradicted)


def _open_or_lost(world: World, course: Course) -> int:
    """How many mails nobody can know of: what a killed or stopped worker had open, and lost replies. Where
    the server was away for longer than a lease, all that was open."""
    report = world.doors["plain"].report()["channels"]["email"]
    held = sum(held.by_account["plain"] for held in course.held)
    away = course.struck[Act.RESTART] * ACCOUNTS["plain"].lanes
    return held + away + int(report["lost_responses"]) + int(report["lost_requests"])


def _wrongly_uncertain(uncertain: Sequence[str], told: Answers, mails_at_most: int) -> Iterator[str]:
    """Class K and L end in doubt only where somebody took back what was under way."""
    by_account = defaultdict(list)
    for key in uncertain:
        by_account[_account(key)].append(key)
    mails = len(by_account.pop("plain", ()))
    if mails > mails_at_most:
        yield f"{mails} uncertain mails: at most {mails_at_most} calls were open or lost"
    for account, keys in by_account.items():
        for key in keys:
            if told.cancelled.get(key) != Word.PENDING:
                yield f"{key} is uncertain, though the provider of {account} can tell"


def _over_limit(world: World) -> Iterator[str]:
    for account, allows in ACCOUNTS.items():
        seen = world.doors[account].report()["channels"][allows.channel]
        if (starts := int(seen["worst_window"]["calls"])) > allows.rate:
            yield f"{account}: {starts} calls within a second, {allows.rate} are allowed"
        if (most := int(seen["most_in_flight"])) > allows.lanes:
            yield f"{account}: {most} calls open at once, {allows.lanes} are allowed"


def _deadlocks(folder: Path, world: World) -> dict[str, int]:
    counted, logged = world.database.deadlocks()
    ours = count_told(folder, "run_again", by="reason")["store_deadlock"]
    return {"the server's statistics": counted, "its log": logged, "the processes": ours}


def _slow(world: World, recovered: Sequence[Recovery]) -> Iterator[str]:
    policy = world.app.policy
    timeout_s = max(account.promise.timeout_s for account in policy.accounts.values())
    allowed_s = policy.lease_s + timeout_s + SLACK_S
    for one in recovered:
        if one.took_s - one.nobody_s > allowed_s:
            yield (
                f"{one.label} ({one.pid}): over after {one.took_s:.1f} s; {allowed_s:.0f} s are allowed, "
                f"and the {one.nobody_s:.1f} s in which the server was down or no {one.role} up"
            )


def _recovery(recovered: Sequence[Recovery]) -> Iterator[str]:
    times: dict[str, list[float]] = defaultdict(list)
    for one in recovered:
        times[one.label].append(one.took_s)
    for label, took in sorted(times.items()):
        yield (
            f"{label}: {len(took)} times, over after {statistics.median(took):.1f} s (median), "
            f"{max(took):.1f} s (longest)"
        )
