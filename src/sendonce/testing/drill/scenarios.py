"""The scenarios, each declared with what is done and what must hold.

They run on whatever accounts the configuration has, so what a step expects follows from the accounts' classes
and policies. Each ends with a count of what arrived (`World.counted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Final

from sendonce.core.lifecycle import State
from sendonce.core.pacing import SECOND
from sendonce.core.promise import ProviderClass
from sendonce.core.provider_event import EventKind
from sendonce.held import hold_of
from sendonce.pipeline import pause, redrive, restore
from sendonce.pipeline.cancel import By, Selection, cancel
from sendonce.pipeline.chosen import Filter
from sendonce.pipeline.intake import Verdict
from sendonce.testing.drill.processes import HINTED
from sendonce.testing.drill.scenario import Scenario, Step
from sendonce.testing.drill.stage import LEASE_S
from sendonce.testing.drill.world import ACTOR, Stuck, World, said
from sendonce.testing.sandbox import RetryAfter
from sendonce.withdrawal import Word

SLOW_S: Final = 2.5
"""How long a call stays open that something is to happen in; below every time-out."""
RETRY_AFTER_S: Final = 3
QUIET_S: Final = 1.5
"""How long somebody looks on where nothing may happen."""
LATER_S: Final = [0.3, 0.6]
"""How long after it took a message a provider says what became of it."""
FOR_GOOD: Final = frozenset({EventKind.BOUNCED_HARD, EventKind.COMPLAINED, EventKind.SUPPRESSED})
CROWD: Final = 60
REASON: Final = "a drill"


# Publication


def _publish_twice(world: World) -> Iterator[Step]:
    asked = world.reminders()
    world.ask(asked)
    again = [result.verdict for result in world.ask(asked)]
    unchanged = again.count(Verdict.UNCHANGED)
    yield Step(
        "the same reminders are handed in a second time",
        "every one is known already: nothing new is made",
        f"{len(again)} handed in again, {unchanged} unchanged; {len(world.rows())} deliveries",
        unchanged == len(asked) == len(world.rows()),
    )
    first, second = world.publish(), world.publish()
    published = [0 if report is None else report.counts.get("published", 0) for report in (first, second)]
    yield Step(
        "the pass that publishes them is run twice",
        "the first publishes all of them, the second changes nothing",
        f"published {published[0]}, then {published[1]}",
        published == [len(asked), 0],
    )
    world.worker()
    world.until_rest()
    yield _all_accepted(world, "a worker sends what is queued")


def _two_schedulers(world: World) -> Iterator[Step]:
    kept = world.schedule(each=1)
    accounts = list(world.ways)
    crowd = world.schedule(each=max(1, CROWD // len(accounts)), group="crowd")
    world.scheduler()
    world.scheduler()
    world.wait_for(lambda: world.states().get(State.SCHEDULED, 0) == 0, "everything that is due is published")
    times = world.count("published")
    more = sum(n > 1 for n in times.values())
    yield Step(
        f"two schedulers publish {len(times)} due reminders at once, neither standing by for the other",
        "each is published once",
        f"published once: {sum(n == 1 for n in times.values())}, more often: {more}",
        all(n == 1 for n in times.values()),
    )
    taken_back = _cancel(world, By.GROUP, "crowd")
    yield Step(
        f"{len(crowd)} of them are taken back before a worker runs",
        "all of them are cancelled",
        f"cancelled: {taken_back.get(Word.CANCELLED, 0)} of {len(crowd)}",
        taken_back.get(Word.CANCELLED, 0) == len(crowd),
    )
    world.worker()
    world.until_rest()
    yield _all_accepted(world, "a worker sends the others", kept)


def _paused_schedule(world: World) -> Iterator[Step]:
    target = pause.Target(pause.Scope.SCHEDULER)
    store, policy = world.app.store, world.app.policy
    pause.pause(store, target, policy, reason=REASON, actor=ACTOR)
    paused_at = store.read(lambda tx: tx.now)
    keys = world.schedule()
    world.scheduler()
    world.worker()
    world.watch(QUIET_S)
    calls = world.calls()
    yield Step(
        "the schedule is paused; reminders fall due while scheduler and worker run",
        "nothing is published, nothing is called",
        f"{world.said(keys)}; {calls} calls",
        world.states(keys) == {State.SCHEDULED: len(keys)} and calls == 0,
    )
    pause.resume(store, target, policy, reason=REASON, actor=ACTOR)
    resumed_at = store.read(lambda tx: tx.now)
    world.until_rest()
    published = [line.at for key in keys for line in world.ledger(key) if line.event == "published"]
    gap_s = (resumed_at - paused_at) / SECOND
    yield Step(
        f"the schedule is resumed after a gap of {gap_s:.1f} s",
        "all that fell due in the gap is published after it, once, and sent",
        f"{len(published)} published after the gap; {world.said(keys)}",
        len(published) == len(keys)
        and min(published, default=0) >= resumed_at
        and world.states(keys) == {State.ACCEPTED: len(keys)},
    )


def _cancel_after_publication(world: World) -> Iterator[Step]:
    keys = world.schedule(each=1, group="taken back")
    world.publish()
    queued = world.said(keys)
    words = _cancel(world, By.GROUP, "taken back")
    world.worker()
    world.watch(QUIET_S)
    yield Step(
        f"published reminders ({queued}) are cancelled before their call; then a worker runs",
        "the answer is cancelled, and no provider is called",
        f"answered {said(words)}; {world.said(keys)}; {world.calls()} calls",
        words == {Word.CANCELLED: len(keys)}
        and world.states(keys) == {State.CANCELLED: len(keys)}
        and world.calls() == 0,
    )


def _cancel_in_a_call(world: World) -> Iterator[Step]:
    world.change(latency_s=[SLOW_S, SLOW_S])
    keys = world.schedule(each=1, group="too late")
    world.publish()
    world.worker()
    world.wait_for(lambda: all(world.open_calls().values()), "a call is open on each account")
    words = _cancel(world, By.GROUP, "too late")
    yield Step(
        "reminders are cancelled in the middle of their call",
        "the answer is cancel_pending: neither done nor refused",
        f"answered {said(words)}",
        words == {Word.PENDING: len(keys)},
    )
    world.until_rest()
    yield _all_accepted(world, "the calls end: the provider has taken them", keys)


# A worker in the middle of its calls


def _frozen_worker(world: World) -> Iterator[Step]:
    keys = world.schedule()
    world.publish()
    world.change(latency_s=[SLOW_S, SLOW_S])
    first = world.worker()
    _in_calls(world)
    world.freeze(first)
    calls = _cut_off(world)
    world.worker()
    world.change(latency_s=[0, 0])
    world.wait_for(lambda: _given_up(world), "another worker gives up its calls", within_s=LEASE_S * 6)
    lost = _lost_leases(world)
    yield Step(
        f"a worker is frozen (SIGSTOP) in {calls} calls that its providers take; its lease ends",
        "another worker gives its calls up as unknown, and not as unsent",
        f"{lost} calls given up after {LEASE_S:g} s: lease lost",
        lost >= calls,
    )
    world.watch(QUIET_S)
    first.thaw()
    world.until_rest()
    yield world.fates(keys, "the frozen worker goes on and tells what its calls returned")


def _killed_worker(world: World) -> Iterator[Step]:
    keys = world.schedule()
    world.publish()
    world.change(latency_s=[SLOW_S, SLOW_S])
    first = world.worker()
    _in_calls(world)
    first.kill()
    calls = _cut_off(world)
    world.change(latency_s=[0, 0])
    world.worker()
    world.wait_for(lambda: _given_up(world), "another worker gives up its calls", within_s=LEASE_S * 6)
    lost = _lost_leases(world)
    yield Step(
        f"a worker is killed (SIGKILL) in {calls} calls that its providers take; another one is there",
        "its calls are given up as unknown, and not as unsent",
        f"{lost} calls given up after its lease of {LEASE_S:g} s",
        lost >= calls,
    )
    world.until_rest()
    yield world.fates(keys, "the other worker goes on with what it left")


def _store_restart(world: World) -> Iterator[Step]:
    keys = world.schedule()
    world.change(latency_s=[SLOW_S, SLOW_S])
    members = [world.scheduler(), world.worker()]
    calls = _in_calls(world)
    before = len(world.rows())
    for one in members:
        one.kill()
    world.move_to()
    world.change(latency_s=[0, 0])
    after = len(world.rows())
    yield Step(
        f"every process that has the store open is killed, in {calls} open calls; the store opens again",
        "every delivery is there as it was answered",
        f"{before} deliveries before, {after} after: {world.said()}",
        before == after == len(keys),
    )
    world.scheduler()
    world.worker()
    world.until_rest()
    yield world.fates(keys, "new processes go on from the store")


def _lost_acknowledgements(world: World) -> Iterator[Step]:
    world.hints()
    keys = world.schedule()
    world.publish()
    world.worker(HINTED)
    world.until_rest()
    world.wait_for(
        lambda: all(world.count("duplicate_observed")[key] for key in keys), "hints come again after the end"
    )
    seen = world.count("duplicate_observed").total()
    calls = world.calls()
    yield Step(
        "a queue transport carries each hint twice and loses every acknowledgement, so all come again",
        "a hint for what has ended is written down and answered without a call",
        f"{seen} repeated hints written down; {calls} calls for {len(keys)} deliveries",
        seen >= len(keys) and calls == len(keys),
    )
    yield _all_accepted(world, "nothing but the row decides", keys)


# What providers answer


def _throttled_with(world: World) -> Iterator[Step]:
    yield from _throttled(world, RetryAfter.SECONDS)


def _throttled_without(world: World) -> Iterator[Step]:
    yield from _throttled(world, RetryAfter.ABSENT)


def _throttled(world: World, says: RetryAfter) -> Iterator[Step]:
    world.change(throttle={"next": 1}, retry_after=says.value, retry_after_s=RETRY_AFTER_S)
    keys = world.schedule(each=1)
    world.publish()
    world.worker()
    world.until_rest()
    waits = {name: _wait_s(world, name) for name in world.doors}
    asked_s = {name: _asked_to_wait(world, name, says) for name in world.doors}
    spent = {row.course.account: row.course.failures for row in world.rows(keys)}
    named = "with a Retry-After of 3 s" if says is RetryAfter.SECONDS else "without a Retry-After"
    musts = "the retry comes after it" if says is RetryAfter.SECONDS else "the retry waits by itself"
    yield Step(
        f"the first call of each account is answered 429 {named} (SMTP, which has none: 450)",
        f"{musts}; no attempt of the budget is spent, and each is accepted",
        "; ".join(
            f"{name}: again after {waits[name]:.1f} s, {spent.get(name, 0)} failures counted"
            for name in waits
        ),
        all(waits[name] >= asked_s[name] for name in waits)
        and not any(spent.values())
        and world.states(keys) == {State.ACCEPTED: len(keys)},
    )


def _asked_to_wait(world: World, name: str, says: RetryAfter) -> float:
    speaks_http = world.app.settings.accounts[name].provider != "smtp"
    if speaks_http and says is RetryAfter.SECONDS:
        return RETRY_AFTER_S - 0.05
    return world.account(name).retry.floor_s / 2


def _wait_s(world: World, name: str) -> float:
    """Between the 429 and the next call, at the door."""
    arrivals = [row for row in world.arrivals(name) if row["channel"] == world.ways[name].channel.value]
    if len(arrivals) < 2:
        raise Stuck(f"{name}: a 429 and no second call")
    return float(arrivals[1]["at"] - arrivals[0]["ended_at"]) / SECOND


def _response_lost(world: World) -> Iterator[Step]:
    world.change(lost_after={"next": 1})
    keys = world.schedule()
    world.publish()
    world.worker()
    world.until_rest()
    for name in world.doors:
        report = world.report(name)
        rows = [row for row in world.rows(keys) if row.course.account == name]
        yield Step(
            f"{name}: the provider takes a message, and its answer never arrives",
            _how_it_is_settled(world, name),
            f"answers lost: {report['lost_responses']}, repeats recognised: {report['replays']}, "
            f"look-ups: {report['lookups']}; {said(world.states(row.key for row in rows))}",
            report["lost_responses"] == 1 and _settled(world, name),
        )
    yield world.fates(keys, "what became of them")


def _how_it_is_settled(world: World, name: str) -> str:
    match world.class_of(name):
        case ProviderClass.KEY:
            return "sent again under the same key, which the provider recognises: one message"
        case ProviderClass.LOOKUP:
            return "the provider is asked by our reference, and has it: nothing is sent again"
        case ProviderClass.NEITHER:
            way = world.ways[name]
            policy = world.app.policy.uncertain(way.channel, way.category)
            return f'nobody can tell: what uncertain = "{policy}" says, and nothing else'


def _settled(world: World, name: str) -> bool:
    report = world.report(name)
    match world.class_of(name):
        case ProviderClass.KEY:
            return bool(report["replays"] == 1)
        case ProviderClass.LOOKUP:
            return bool(report["lookups"] >= 1)
        case ProviderClass.NEITHER:
            return bool(report["replays"] == 0)


def _bounced_later(world: World) -> Iterator[Step]:
    world.change(
        events={"delay_s": LATER_S, "bounced": {"next": 1}, "repeated": {"probability": 1}},
    )
    asked = world.reminders()
    people = {key: one for one, result in zip(asked, world.ask(asked), strict=True) for key in result.keys}
    world.scheduler()
    world.worker()
    world.until_rest()
    yield _all_accepted(world, "providers take the messages", [*people])
    world.wait_for(
        lambda: all(world.told(key) for key in people), "what providers say later stands by its delivery"
    )
    came_back = world.came_back()
    told = {key: world.told(key) for key in people}
    yield Step(
        "then each provider says, twice, that one message never came, and of the others that they did",
        "each stays accepted, with what was said beside it; nothing is sent again",
        f"{len(came_back)} came back: {_kinds(told, came_back)}; {len(told.keys() - came_back)} arrived: "
        f"{_kinds(told, told.keys() - came_back)}; {world.said(people)}; {world.calls()} calls",
        len(came_back) == len(world.doors)
        and all((EventKind.DELIVERED in kinds) == (key not in came_back) for key, kinds in told.items())
        and world.states(people) == {State.ACCEPTED: len(people)}
        and world.calls() == len(people),
    )
    again = [replace(people[key], reminder=f"{people[key].reminder}-again") for key in sorted(came_back)]
    results = world.ask(again)
    world.until_rest()
    found = {old: world.states(result.keys) for old, result in zip(sorted(came_back), results, strict=True)}
    yield Step(
        "the same people are due another reminder",
        "an address that bounced for good is written to no more; a phone that did not answer is",
        "; ".join(f"after {', '.join(told[old])}: {said(states)}" for old, states in found.items()),
        all(
            states == {State.SUPPRESSED if told[old] & FOR_GOOD else State.ACCEPTED: 1}
            for old, states in found.items()
        ),
    )


def _kinds(told: Mapping[str, Set[EventKind]], keys: Set[str]) -> str:
    return ", ".join(sorted({kind.value for key in keys for kind in told[key]})) or "nothing told"


def _dead_letters(world: World) -> Iterator[Step]:
    world.change(recipients=[{"pattern": "", "refusal": "blocked"}])
    keys = world.schedule(each=1)
    world.publish()
    world.worker()
    world.until_rest()
    dead = world.states(keys)
    yield Step(
        "every provider refuses every message for good",
        "each is a dead letter, and nothing was sent",
        world.said(keys),
        set(dead) <= {State.REJECTED, State.DEAD} and not world.tally().taken,
    )
    world.change(recipients=[])
    store, policy = world.app.store, world.app.policy
    done = []
    for tenant in sorted({way.tenant for way in world.ways.values()}):
        chosen = Filter(tenant=tenant)
        planned = redrive.redrive(store, chosen, policy, reason=REASON, actor=ACTOR, preview=True)
        moved = redrive.redrive(store, chosen, policy, reason=REASON, actor=ACTOR, per_s=50.0)
        done.append((planned.redriven, moved.redriven))
    world.until_rest()
    yield Step(
        "the providers are mended, and the dead letters are redriven: a preview, then in earnest",
        "the preview tells what happens; the same delivery keys are accepted",
        f"preview {sum(planned for planned, _ in done)}, redriven {sum(moved for _, moved in done)}; "
        f"{world.said(keys)}",
        all(planned == moved for planned, moved in done)
        and world.states(keys) == {State.ACCEPTED: len(keys)},
    )


# The store


def _restored_backup(world: World) -> Iterator[Step]:
    sent = world.schedule(each=1, group="before")
    world.publish()
    world.worker()
    world.until_rest()
    world.stop()
    waiting = world.schedule(each=1, group="after")
    world.publish()
    copy = world.back_up("backup.db")
    world.worker()
    world.until_rest()
    world.stop()
    calls = world.calls()
    world.move_to(copy)
    yield Step(
        "a backup is taken; then everything that waits is sent; then the backup is put in the store's place",
        "in the backup deliveries wait that were sent since: it is held",
        f"{world.said(sent)} sent before, {world.said(waiting)} in the backup; "
        f"held: {world.app.store.read(hold_of) or 'no'}",
        world.app.store.read(hold_of) is not None,
    )
    world.scheduler()
    world.worker()
    world.watch(QUIET_S)
    yield Step(
        "scheduler and worker run on the restored store",
        "no provider is called while it is held",
        f"{world.calls() - calls} calls",
        world.calls() == calls,
    )
    store, policy = world.app.store, world.app.policy
    planned = restore.released(store, policy, reason=REASON, actor=ACTOR, preview=True)
    done = restore.released(store, policy, reason=REASON, actor=ACTOR)
    yield Step(
        "an operator looks at the preview and releases the store",
        "the preview counts what is doubted then: all that may have been sent since the backup",
        f"preview {planned.total} doubted, release {done.total}, of them {done.uncertain} for a person",
        planned.counts == done.counts and done.total >= len(waiting),
    )
    world.until_rest()
    yield world.fates([*sent, *waiting], "the released store goes on")


# What scenarios share


def _all_accepted(world: World, does: str, keys: list[str] | None = None) -> Step:
    states = world.states(keys)
    return Step(does, "each is accepted", said(states), set(states) == {State.ACCEPTED})


def _in_calls(world: World) -> int:
    """Wait until a call is open on each account; how many there are."""
    world.wait_for(lambda: all(world.open_calls().values()), "a call is open on each account")
    return sum(world.open_calls().values())


def _cut_off(world: World) -> int:
    """How many calls its worker will write nothing of any more. Some may have ended before it was stopped."""
    calls = world.states()[State.SENDING]
    if not calls:
        raise Stuck("every call had ended before the worker was stopped: the machine is too busy to show it")
    return calls


def _given_up(world: World) -> bool:
    """Whether no call is in the hands of a process that is gone."""
    overdue = world.app.store.read(lambda tx: tx.calls.overdue(tx.steady, 1_000))
    orphans = {lost.call.delivery_id for lost in overdue if lost.gone}
    sending = {row.id for row in world.rows() if row.standing.state is State.SENDING}
    return _lost_leases(world) > 0 and not orphans & sending


def _lost_leases(world: World) -> int:
    return sum(
        line.word("evidence") == "lease_lost" for row in world.rows() for line in world.ledger(row.key)
    )


def _cancel(world: World, by: By, name: str) -> dict[Word, int]:
    """Take deliveries back; how often each word was the answer."""
    words: dict[Word, int] = {}
    for tenant in sorted({way.tenant for way in world.ways.values()}):
        done = cancel(
            world.app.store,
            Selection(by, name, tenant),
            policy=world.app.policy,
            reason=REASON,
            actor=ACTOR,
        )
        for answer in done.answers:
            words[answer.word] = words.get(answer.word, 0) + 1
    return words


SCENARIOS: Final = (
    Scenario(
        "duplicate publication",
        "the same reminders are handed in twice, and the pass that publishes them is run twice",
        "each is published once and sent once",
        _publish_twice,
        sandbox=False,
    ),
    Scenario(
        "two schedulers at once",
        "two schedulers publish the same due reminders, neither standing by",
        "each is published once",
        _two_schedulers,
    ),
    Scenario(
        "paused schedule and its gap",
        "the schedule is paused while reminders fall due, and resumed",
        "nothing goes out in the gap; all of it goes out after it, once",
        _paused_schedule,
    ),
    Scenario(
        "cancellation after publication",
        "published reminders are cancelled before a worker calls the provider",
        "cancelled means not sent",
        _cancel_after_publication,
        sandbox=False,
    ),
    Scenario(
        "cancellation in the middle of a call",
        "reminders are cancelled while the provider has them",
        "the answer is true: pending, then accepted",
        _cancel_in_a_call,
    ),
    Scenario(
        "acceptance followed by a later bounce",
        "a provider takes messages, and says later, twice, that one of them never came",
        "the acceptance stands, the bounce beside it; nothing is sent again",
        _bounced_later,
        events=True,
    ),
    Scenario(
        "worker lease ends in the middle of calls",
        "a worker is frozen past its lease and goes on later",
        "another worker takes over; a late answer counts as evidence and sends nothing again",
        _frozen_worker,
    ),
    Scenario(
        "worker killed in the middle of calls",
        "a worker is killed while its providers have its calls",
        "another worker settles them as the class of each account allows",
        _killed_worker,
    ),
    Scenario(
        "lost acknowledgement",
        "a queue transport repeats every hint and loses every acknowledgement",
        "no hint causes a second call",
        _lost_acknowledgements,
    ),
    Scenario(
        "429 with Retry-After",
        "the provider is too busy, and says for how long",
        "nothing is called before that; no attempt is spent",
        _throttled_with,
    ),
    Scenario(
        "429 without Retry-After",
        "the provider is too busy, and does not say for how long",
        "the retry waits by itself; no attempt is spent",
        _throttled_without,
    ),
    *(
        Scenario(
            f"response lost after acceptance, class {class_.value}",
            "the provider takes a message, and its answer is lost",
            must,
            _response_lost,
            class_=class_,
        )
        for class_, must in (
            (ProviderClass.KEY, "one message: the retry goes under the same key"),
            (ProviderClass.LOOKUP, "one message: the provider is asked before anything is sent again"),
            (ProviderClass.NEITHER, "nothing is guessed: what the configuration says of the uncertain"),
        )
    ),
    Scenario(
        "redrive of dead letters",
        "what a provider refused for good is redriven once the provider is mended",
        "sent once, under the same delivery key",
        _dead_letters,
    ),
    Scenario(
        "store restart",
        "every process that has the store open is killed, and new ones open it",
        "what was answered is there; everything comes to its end",
        _store_restart,
    ),
    Scenario(
        "restored backup, held and released",
        "a backup in which sent deliveries still wait is put in the store's place, and released",
        "nothing is sent while it is held, and nothing twice after it",
        _restored_backup,
    ),
)
"""In the order in which they are told."""
