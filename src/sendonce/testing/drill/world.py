"""The world of one scenario: a store of its own, a sandbox for each account, processes, made-up reminders.

Scenarios drive it (`scenarios`) and yield what they saw. What was sent is counted at the sandboxes' doors, by
a marker inside each message; a real account has no such door, and the ledger is all there is.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sendonce.app import App
from sendonce.client import Client, Result
from sendonce.core.consent import Kind, NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.core.pacing import SECOND
from sendonce.core.policy import AccountPolicy, UncertainPolicy
from sendonce.core.promise import ProviderClass
from sendonce.core.provider_event import EventKind
from sendonce.core.reminder import Asked
from sendonce.pipeline import consent
from sendonce.pipeline.record import Line, facets_of, lines_of
from sendonce.pipeline.scheduler import PassReport
from sendonce.pipeline.templates import add_sources
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Delivery, Tx
from sendonce.render import TemplateSource
from sendonce.testing.drill.processes import CALLED, SCHEDULER, WORKER, Member, member
from sendonce.testing.drill.scenario import Step
from sendonce.testing.drill.stage import Stage, Way
from sendonce.testing.sandbox import SandboxClient
from sendonce.testing.tally import AT_REST, Tally, tally
from sendonce.withdrawal import Word

ACTOR: Final = "drill"
TEMPLATE: Final = "drill"
SUBJECT: Final = "A drill of sendonce"
TEXT: Final = "A drill of sendonce: there is nothing to do. [ref:{{ delivery_key }}]"
WITHIN_S: Final = 90.0
"""Far more than anything here takes, also on a busy machine."""
LOOK_S: Final = 0.05
FREE_S: Final = 2.0
"""In this time a store is free that nobody holds up."""
FREEZES_MAX: Final = 5
PROCESSES_MAX: Final = 100
EACH: Final = 2
"""Reminders for each account, where a scenario says nothing else."""
BY_POLICY: Final = {
    UncertainPolicy.HOLD: State.UNCERTAIN,
    UncertainPolicy.ASSUME_SENT: State.ASSUMED_SENT,
    UncertainPolicy.RESEND: State.ACCEPTED,
}
"""What becomes of a delivery of class N that nobody can tell of."""


class Stuck(Exception):
    """The scenario cannot go on: something did not happen in time, or was refused. Says what."""


class World:
    """`ways`: the accounts that take part. `addresses`: for a real account, whom it may write to. `stopping`:
    set where the drill is to end early."""

    def __init__(
        self,
        stage: Stage,
        ways: Mapping[str, Way],
        doors: Mapping[str, SandboxClient],
        folder: Path,
        *,
        addresses: Sequence[str] = (),
        stopping: threading.Event | None = None,
    ) -> None:
        self.ways = ways
        self.doors = doors
        self._stage = stage
        self._folder = folder
        self._addresses = addresses
        self._stopping = stopping or threading.Event()
        self._members = ExitStack()
        self._number = 0
        self.app = App(stage.settings())

    def close(self) -> None:
        """End every process, then let go of the store."""
        self._members.close()
        self.app.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What people do

    def schedule(self, *, each: int = EACH, group: str = "drill", accounts: Iterable[str] = ()) -> list[str]:
        """Reminders that are due now, so many for each account; the keys of their deliveries."""
        return [
            key
            for result in self.ask(self.reminders(each=each, group=group, accounts=accounts))
            for key in result.keys
        ]

    def reminders(
        self, *, each: int = EACH, group: str = "drill", accounts: Iterable[str] = ()
    ) -> list[Asked]:
        """As an application would ask for them."""
        return [self._one(self.ways[name], group) for name in (accounts or self.ways) for _ in range(each)]

    def ask(self, asked: Sequence[Asked]) -> list[Result]:
        """Take reminders in. Raises `Stuck` where one is refused: made-up ones have nothing to refuse."""
        self._add_templates()
        results = [
            result
            for one in asked
            for result in Client.of(self.app, tenant=one.tenant, actor=ACTOR).schedule([one])
        ]
        wrong = [result.why for result in results if not result.ok]
        if wrong:
            raise Stuck(f"a reminder of the drill was refused: {wrong[0]}")
        return results

    def publish(self) -> PassReport | None:
        """One pass by hand."""
        return self.app.scheduler().run(trigger="drill")

    def worker(self, role: str = WORKER) -> Member:
        return self._start(role)

    def scheduler(self) -> Member:
        return self._start(CALLED if self._stage.called_at else SCHEDULER)

    def freeze(self, one: Member) -> None:
        """Stop a process where it stands, but not with the file's lock in its hands: then everybody waits for
        it, nothing is sent, and there is nothing to see."""
        for _ in range(FREEZES_MAX):
            one.freeze()
            try:
                self.app.store.write(lambda tx: None).result(FREE_S)
            except (TimeoutError, StoreUnavailable):
                one.thaw()
                self.watch(LOOK_S)
            else:
                return
        raise Stuck("the worker had the store's lock whenever it was to be frozen")

    def stop(self) -> None:
        """End every process of the scenario in good order."""
        self._members.close()

    def hints(self) -> None:
        """Publish hints for a queue transport from now on."""
        self.app.policy = replace(self.app.policy, hints=True)

    def back_up(self, name: str) -> Path:
        path = self._folder / name
        self.app.back_up(path, lambda pages, of: None)
        return path

    def move_to(self, store: Path | None = None) -> None:
        """Open a store anew: the same file, or another one in its place. Nobody may have it open."""
        self.app.close()
        self._stage = replace(self._stage, store=store or self._stage.store)
        self.app = App(self._stage.settings())

    # What providers do

    def change(self, **rules: Any) -> None:
        """How the sandboxes behave from now on."""
        for name, door in self.doors.items():
            door.change(**{self.ways[name].channel.value: rules})

    def report(self, account: str, **query: Any) -> dict[str, Any]:
        report: dict[str, Any] = self.doors[account].report(**query)["channels"][
            self.ways[account].channel.value
        ]
        return report

    def calls(self) -> int:
        """Calls that arrived so far, answered or not; of a real account, those that were made."""
        if not self.doors:
            return self.count("claimed").total()
        return sum(int(self.report(name)["calls"]) for name in self.doors)

    def open_calls(self) -> dict[str, int]:
        """Calls that are open now, by account."""
        return {name: int(self.report(name)["in_flight"]) for name in self.doors}

    def arrivals(self, account: str) -> list[dict[str, Any]]:
        return self.doors[account].arrivals()

    # What is seen

    def rows(self, keys: Iterable[str] | None = None) -> list[Delivery]:
        """Deliveries by their keys; None: all."""
        wanted = None if keys is None else set(keys)
        found = self.app.store.read(_all)
        return [row for row in found if wanted is None or row.key in wanted]

    def states(self, keys: Iterable[str] | None = None) -> Counter[State]:
        return Counter(row.standing.state for row in self.rows(keys))

    def said(self, keys: Iterable[str] | None = None) -> str:
        """How deliveries stand, for people: "2 ACCEPTED, 1 UNCERTAIN"."""
        return said(self.states(keys))

    def ledger(self, key: str) -> list[Line]:
        (row,) = self.rows([key])
        return self.app.store.read(lambda tx: lines_of(tx, row.id))

    def told(self, key: str) -> set[EventKind]:
        """What stands beside a delivery of what its provider said later."""
        (row,) = self.rows([key])
        return {fact.kind for fact in self.app.store.read(lambda tx: facets_of(tx, row.id))}

    def came_back(self) -> set[str]:
        """The deliveries of which a sandbox said later that they never came, by their markers."""
        return {
            str(event["marker"])
            for door in self.doors.values()
            for event in door.events()
            if event["kind"] == "bounced"
        }

    def count(self, event: str) -> Counter[str]:
        """How often an event stands in the ledger of each delivery."""
        return Counter(
            {row.key: sum(line.event == event for line in self.ledger(row.key)) for row in self.rows()}
        )

    def account(self, name: str) -> AccountPolicy:
        return self.app.policy.accounts[name]

    def class_of(self, name: str) -> ProviderClass:
        return self.account(name).promise.provider_class

    def wait_for(self, condition: Callable[[], object], what: str, *, within_s: float = WITHIN_S) -> None:
        """Raises `Stuck`."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise Stuck(f"{what}: not within {within_s:.0f} s; they stand at {self.said()}")
            self.watch(LOOK_S)

    def watch(self, seconds: float) -> None:
        """Look on for a while. Raises `Stuck` where the drill is to end."""
        if self._stopping.wait(seconds):
            raise Stuck("the drill was stopped")

    def until_rest(self, keys: Iterable[str] | None = None) -> None:
        """Wait until everything has ended, or waits for a person."""
        wanted = None if keys is None else list(keys)
        self.wait_for(
            lambda: all(self._rests(row) for row in self.rows(wanted)), "everything comes to its end"
        )

    # What every scenario ends with

    def fates(self, keys: Sequence[str], does: str) -> Step:
        """What became of deliveries whose calls were cut off, against what their class promises."""
        held, seen, musts = True, [], set()
        for name in self.ways:
            rows = [row for row in self.rows(keys) if row.course.account == name]
            musts.add(self._promised(name))
            allowed = {State.ACCEPTED}
            if self.class_of(name) is ProviderClass.NEITHER:
                allowed |= {BY_POLICY[self._policy(row)] for row in rows}
                allowed |= {State.UNCERTAIN for row in rows if self._was_doubted(row)}
            held &= bool(rows) and all(row.standing.state in allowed for row in rows)
            seen.append(f"{name} ({self.class_of(name)}): {said(Counter(r.standing.state for r in rows))}")
        return Step(does, "; ".join(sorted(musts)), "; ".join(seen), held)

    def counted(self) -> tuple[Step, int, int]:
        """Everything that arrived, held against the record; and how many came twice, and were lost."""
        if not self.doors:
            return self._counted_by_ledger()
        result = self.tally()
        permitted = {key for key in self._permitted() if result.taken.get(key, 0) == 2}
        duplicates = result.duplicates - len(permitted)
        problems = [text for text in result.problems() if text.partition(" was taken ")[0] not in permitted]
        problems += self._over_limits()
        proof = verify(self.app.store)
        problems += [f"verify: {fault}" for fault in proof.faults]
        taken = sum(result.taken.values())
        saw = (
            f"{len(result.states)} deliveries, {taken} taken, {duplicates} twice, {result.lost} lost; "
            f"{proof.entries} ledger entries proven"
        )
        if permitted:
            saw += f'; {len(permitted)} sent once more, as uncertain = "resend" allows'
        step = Step(
            "count at the provider's door, by a marker in each message",
            "each at most once, none lost, nothing sent that the record calls unsent; limits held; every "
            "ledger whole",
            saw if not problems else f"{saw}. {'; '.join(problems[:5])}",
            not problems and proof.ok,
        )
        return step, duplicates, result.lost

    def tally(self) -> Tally:
        effects = [effect for door in self.doors.values() for effect in door.effects()]
        return self.app.store.read(lambda tx: tally(tx.rows("view_demo_states"), effects))

    def _counted_by_ledger(self) -> tuple[Step, int, int]:
        """A real provider keeps its own count: ours is of the calls that were made."""
        accepted = self.count("accepted")
        claims = self.count("claimed")
        duplicates = sum(max(0, times - 1) for times in accepted.values())
        lost = sum(row.standing.state not in AT_REST for row in self.rows())
        proof = verify(self.app.store)
        step = Step(
            "count the calls in the ledger (what arrived, the provider's own list shows)",
            "each accepted at most once, none lost; every ledger whole",
            f"{len(accepted)} deliveries, {sum(claims.values())} calls, {self.said()}; "
            f"{proof.entries} ledger entries proven",
            proof.ok and not duplicates and not lost,
        )
        return step, duplicates, lost

    def _over_limits(self) -> Iterator[str]:
        """Both limits, as each sandbox counted them at its door."""
        for name in self.doors:
            limits = self.account(name).limits
            for limit in limits.limits:
                if limit.is_quota:
                    continue
                interval_s = limit.interval_us / SECOND
                worst = self.report(name, interval_s=interval_s)["worst_window"]["calls"]
                if worst > limit.count:  # each message of a drill is one part
                    yield f"{name}: {worst} calls within {interval_s:g} s, {limit.count} allowed"
            if (most := self.report(name)["most_in_flight"]) > limits.lanes:
                yield f"{name}: {most} calls open at once, {limits.lanes} allowed"

    def _permitted(self) -> Iterator[str]:
        """What may be sent once more, by the policy of its category."""
        for row in self.rows():
            doubted = (
                row.course.account in self.ways and self.class_of(row.course.account) is ProviderClass.NEITHER
            )
            if doubted and self._policy(row) is UncertainPolicy.RESEND:
                yield row.key

    def _policy(self, row: Delivery) -> UncertainPolicy:
        return self.app.policy.uncertain(row.channel, row.category)

    def _rests(self, row: Delivery) -> bool:
        if row.standing.state is State.UNCERTAIN:  # unless a policy may still act
            return self._policy(row) is UncertainPolicy.HOLD or self._was_doubted(row)
        return row.standing.state in AT_REST

    def _was_doubted(self, row: Delivery) -> bool:
        """Whether the store may have lost its attempt: of those no policy decides, but a person."""
        return any(line.event == "doubted" for line in self.ledger(row.key))

    def _promised(self, name: str) -> str:
        match self.class_of(name):
            case ProviderClass.KEY:
                return "class K: accepted, under the same key"
            case ProviderClass.LOOKUP:
                return "class L: asked about, and accepted"
            case ProviderClass.NEITHER:
                way = self.ways[name]
                policy = self.app.policy.uncertain(way.channel, way.category)
                return f'class N: accepted, or as uncertain = "{policy}" says'

    # Making things

    def _one(self, way: Way, group: str) -> Asked:
        self._number += 1
        to = self._address(way.channel)
        self._consent(way, to)
        return Asked(
            reminder=f"{way.account}-{self._number}",
            customer=f"drill-{self._number}",
            due="now",
            template=TEMPLATE,
            timezone=way.zone,
            email=to if way.channel is Channel.EMAIL else "",
            phone=to if way.channel is Channel.SMS else "",
            category=way.category,
            group=group,
            tenant=way.tenant,
        )

    def _address(self, channel: Channel) -> str:
        if self._addresses:
            return self._addresses[self._number % len(self._addresses)]
        if channel is Channel.EMAIL:
            return f"drill-{self._number}@example.com"
        return f"+120255501{self._number % 100:02d}"

    def _consent(self, way: Way, to: str) -> None:
        """Whoever a drill writes to says yes where a category asks for it: in the drill's own store."""
        if self.app.policy.category(way.category).no_record is NoRecord.ALLOW:
            return
        values = {"address": to, "category": way.category, "kind": Kind.OPT_IN.value, "source": "drill"}
        now = self.app.store.read(lambda tx: tx.now)
        record = consent.record_of(values, self.app.policy, now=now, tenant=way.tenant)
        consent.record(self.app.store, [record], policy=self.app.policy, actor=ACTOR)

    def _add_templates(self) -> None:
        sources = {
            "email": TemplateSource("email", SUBJECT, TEXT, ""),
            "sms": TemplateSource("sms", "", TEXT, ""),
        }
        for tenant in {way.tenant for way in self.ways.values()}:
            add_sources(self.app.store, TEMPLATE, sources, actor=ACTOR, tenant=tenant)

    def _start(self, role: str) -> Member:
        log = self._folder / f"{role.replace(' ', '-')}.log"
        one = self._members.enter_context(member(self._stage, role, log))
        # Else "nothing was called" might only mean that nobody was there yet.
        self.wait_for(lambda: self._has_beaten(one), f"the {role} is up")
        return one

    def _has_beaten(self, one: Member) -> bool:
        rows = self.app.store.read(
            lambda tx: tx.rows("view_processes", since=tx.now, steady=tx.steady, limit=PROCESSES_MAX)
        )
        return any(row["pid"] == one.pid for row in rows)


def _all(tx: Tx) -> list[Delivery]:
    return tx.deliveries.by_ids([*range(1, len(tx.rows("view_demo_states")) + 1)])


def said(states: Mapping[State, int] | Mapping[Word, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "none"
