"""One seed: a world is drawn, run until the bad days are over, then until everything has ended, and judged.

Schedulers, workers, desks and, where hints travel, a relay run the product's own stages, each with ports
of its own. Faults strike for `active_s`; then nothing goes wrong any more, and every delivery must end by
itself.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sendonce.core.consent import NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import Event
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.policy import AccountPolicy, CategoryPolicy, ChannelPolicy, Policy, UncertainPolicy
from sendonce.core.promise import Promise, ProviderClass
from sendonce.core.retry import RetryPolicy
from sendonce.core.routing import Route, Share
from sendonce.held import FAILOVER, hold
from sendonce.pipeline.claimer import DEADLINE_SLACK_S
from sendonce.pipeline.relay import relay, sweep
from sendonce.pipeline.scheduler import TIMER, Scheduler
from sendonce.pipeline.worker import Worker, WorkerSettings
from sendonce.ports.store import Tx
from sendonce.store.image import Image
from sendonce.store.sqlite import open_store
from sendonce.template_book import TemplateBook, from_store
from sendonce.testing.simulator.checks import Broken, Checker, Counts, Remembered, Seen
from sendonce.testing.simulator.faults import Dice, Fault, Profile, Struck
from sendonce.testing.simulator.keeper import Keeper
from sendonce.testing.simulator.later import Later
from sendonce.testing.simulator.loop import Stuck, VirtualLoop
from sendonce.testing.simulator.people import Deed, People
from sendonce.testing.simulator.ports import SECOND, Ground, QueuePort, SimulatedClock, StorePort, Transport
from sendonce.testing.simulator.process import WORLD, Process
from sendonce.testing.simulator.provider import THROTTLES, ProviderPort, SimulatedAccount, classes_of
from sendonce.testing.transport import Faults, UnreliableQueue

START_AT: Final = 1_767_225_600 * SECOND  # 2026-01-01T00:00:00Z
QUIET_MAX_S: Final = 2_000.0
"""After the last fault, everything must have ended within this."""
LOOK_S: Final = 1.0
LOOK_AROUND_S: Final = 6.0
URGENT_S: Final = 0.2
"""What is done this soon after something was seen is done before what people queue for."""
TRIES: Final = 5

Main = Callable[[Process], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a world has to do: few at a time, so that each meets everything alone, or crowds."""

    counts: tuple[int, ...]
    lanes: tuple[int, ...]
    deliveries: int


PACES: Final = (Pace((3, 10), (1, 3), 200), Pace((10, 30), (3, 8), 500), Pace((100, 200), (32, 64), 2_500))
USUAL: Final = 250
"""The chances of a profile are for so many deliveries, where one fault hits all of an account."""
OF_ALL: Final = frozenset(
    {fault for fault in THROTTLES if "RECIPIENT" not in fault.name} | {Fault.ACCOUNT_ERROR}
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to. `asked`: for how many deliveries. `story` is the ledger of the delivery that
    broke first, if any."""

    seed: int
    asked: int
    profile: str
    counts: Counts
    crashes: int
    pauses: int
    virtual_s: float
    broken: tuple[Broken, ...]
    struck: tuple[Struck, ...]
    story: tuple[str, ...]
    hit: Mapping[str, int]
    digest: str

    @property
    def ok(self) -> bool:
        return not self.broken


def run_seed(
    seed: int,
    profile: Profile,
    *,
    without: Set[str] = frozenset(),
    path: Path | None = None,
    to_the_end: bool = True,
) -> Outcome:
    """Run one seed to its end. The same arguments give the same outcome, to the byte.

    `without`: ids of faults (`Struck.id`) and deliveries ("delivery 7") that are left out. `path`: keep
    the store in this file, which must not exist; None: in memory. `to_the_end` False: stop at the first
    thing that does not hold.
    """
    loop = VirtualLoop()  # type: ignore[abstract]  # what it has not got, nobody here asks for
    collecting = gc.isenabled()
    gc.disable()  # a cycle that is collected may run a `finally`: at moments that are no seed's
    try:
        return _World(loop, seed, profile, without, path).run(to_the_end=to_the_end)
    finally:
        loop.close()
        if collecting:
            gc.enable()


class _World:
    def __init__(
        self, loop: VirtualLoop, seed: int, profile: Profile, without: Set[str], path: Path | None
    ) -> None:
        self._loop = loop
        self._seed = seed
        self._profile = profile
        self._dice = Dice(seed, profile, without, loop.time)
        self._clock = SimulatedClock(loop, START_AT)
        pace = self._dice.pick("pace", PACES)
        self._asked = profile.deliveries or pace.deliveries
        self._dice.scale(OF_ALL, min(1.0, USUAL / self._asked))
        self._policy = _draw_policy(self._dice, pace)
        shares = self._dice.chance("shared") < profile.shared
        if shares:
            self._policy = _shared(self._policy)
        self._store = open_store(
            f"sqlite:///{path}" if path else "sqlite://:memory:", self._clock, inline=True
        )
        self._store.secret = f"simulated {seed}".encode()
        accounts = list(self._policy.accounts.values())
        self._checker = Checker(self._store, classes_of(accounts), loop.time, shares=shares)
        self._ground = Ground(
            loop, self._clock, self._dice, self._store, self._checker, self._policy.lease_s, self._crash
        )
        self._later = Later(self._ground, self._policy)
        self._keeper = Keeper(self._ground, self._policy)
        self._accounts = {
            account.name: SimulatedAccount(account, self._ground, self._later.took) for account in accounts
        }
        self._transports = self._make_transports()
        self._people = People(
            self._dice,
            self._policy,
            self._clock.now,
            loop.time,
            self._do_later,
            self._receipt_of,
            self._clock.step,
            self._keeper,
        )
        self._checker.listener = self._hear
        self._mains: dict[str, Main] = {
            "desk-1": self._desk,
            "desk-2": self._desk,
            "scheduler-1": self._scheduler,
            "scheduler-2": self._scheduler,
            "worker-1": self._worker,
            "worker-2": self._worker,
            "worker-3": self._worker,
            "keeper-1": self._keeper.main,
        }
        if self._dice.takes(Fault.REMOVAL):
            self._mains["keeper-2"] = self._keeper.main
        if self._dice.takes(Fault.EVENT):
            self._mains |= {"door-1": self._later.door, "events-1": self._later.applier}
            self._mains["events-2"] = self._later.applier
        if self._policy.hints:
            self._mains["relay-1"] = self._relay
        self._running: dict[str, Process] = {}
        self._numbers: Counter[str] = Counter()
        self._ended: list[asyncio.Task[None]] = []
        self._workers: dict[str, Worker] = {}
        self._behind: tuple[Image, Remembered] | None = None
        self._falling = False
        self._deeds: deque[tuple[Deed, int]] = deque()
        self._deeds_open = 0
        self._news = asyncio.Event()
        self._over = False
        self._cut = False

    def run(self, *, to_the_end: bool) -> Outcome:
        main = self._loop.create_task(self._main(to_the_end=to_the_end), context=WORLD)
        try:
            self._loop.run_until_complete(main)
        except Stuck as error:
            self._checker.broke(str(error), kind="stuck")
        for process in self._running.values():
            process.kill()
        for failed in self._loop.errors:
            self._checker.broke(failed, kind="task failed")
        if not self._cut:
            self._later.check(self._store, self._checker)
            self._keeper.check(self._store, self._checker)
        counts = self._checker.finish(whole=not self._cut)
        coverage = self._checker.coverage
        for struck in self._dice.struck:
            coverage.fault(struck.fault)
        kinds = Counter(struck.fault for struck in self._dice.struck)
        outcome = Outcome(
            seed=self._seed,
            asked=self._asked,
            profile=self._profile.name,
            counts=counts,
            crashes=kinds[Fault.CRASH],
            pauses=kinds[Fault.PAUSE] + kinds[Fault.PAUSE_BEFORE_BYTE],
            virtual_s=self._loop.time(),
            broken=tuple(self._checker.broken),
            struck=tuple(self._dice.struck),
            story=self._story(),
            hit=dict(coverage.hit),
            digest=self._checker.digest(),
        )
        self._store.close()
        return outcome

    # The course of a run

    async def _main(self, *, to_the_end: bool) -> None:
        live = asyncio.create_task(self._live())
        broken = asyncio.create_task(self._checker.news_is_bad.wait())
        await asyncio.wait([live] if to_the_end else [live, broken], return_when=asyncio.FIRST_COMPLETED)
        broken.cancel()
        if not live.done():
            self._cut = True
            live.cancel()
            self._mains.clear()
            for process in self._running.values():
                process.kill()
            await self._all_gone()
        await asyncio.gather(live, broken, return_exceptions=True)

    async def _live(self) -> None:
        self._store.write(lambda tx: _seed_gates(tx, self._policy)).result()
        self._people.add_template("{{ name }}")(self._store, TemplateBook(from_store(self._store)))
        self._people.take_in(self._asked, self._profile.active_s)
        for role in self._mains:
            self._start(role)
        until = self._profile.active_s + self._dice.theme.longer_s
        while self._loop.time() < until:
            await asyncio.sleep(LOOK_AROUND_S)
            self._people.look_around()
            self._step_clock()
            self._make_ill()
            self._stop_some()
            self._fall_behind()
        self._dice.striking = False
        self._people.resume_all()
        timeout_s = max(account.promise.timeout_s for account in self._policy.accounts.values())
        held_s = 2 * self._policy.lease_s + timeout_s
        await asyncio.sleep(held_s + timeout_s + DEADLINE_SLACK_S + LOOK_S)
        self._checker.lanes(held_s)
        self._retire("worker-2", "worker-3", "scheduler-2", "events-2", "keeper-2")
        until = self._loop.time() + QUIET_MAX_S
        while self._is_open and self._loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        # What is still on its way to a provider arrives now, and may yet prove us wrong.
        arrival_s = max(account.promise.arrival_max_s for account in self._policy.accounts.values())
        await asyncio.sleep(arrival_s + timeout_s + LOOK_S)
        self._checker.lanes(held_s)
        await self._end()

    @property
    def _is_open(self) -> bool:
        return bool(self._deeds_open or self._checker.open or self._later.open or self._keeper.open)

    async def _end(self) -> None:
        """The workers end gracefully, the others are killed, and nothing is left running."""
        self._over = True
        for worker in self._workers.values():
            worker.stop()
        for role, process in list(self._running.items()):
            if role not in self._workers:
                process.kill()
        await self._all_gone()

    async def _all_gone(self) -> None:
        while self._running:  # noqa: ASYNC110 (virtual time costs nothing)
            await asyncio.sleep(LOOK_S)
        await asyncio.gather(*self._ended)

    def _retire(self, *roles: str) -> None:
        """For the quiet time one of each will do. They end as they may: at a bad moment."""
        for role in roles:
            self._mains.pop(role, None)
            process = self._running.get(role)
            if process is not None:
                process.kill()

    def _make_ill(self) -> None:
        for name, account in self._accounts.items():
            if account.spell is None and self._dice.strikes(Fault.OUTAGE, name, name):
                account.fall_ill()

    def _step_clock(self) -> None:
        for fault, sign in ((Fault.CLOCK_FORWARD, 1), (Fault.CLOCK_BACK, -1)):
            if self._dice.strikes(fault, "clock"):
                self._clock.step(sign * self._dice.pick("clock step", (0.5, 5.0, 30.0, 90.0)))

    def _fall_behind(self) -> None:
        """Another server has what is there now, and takes over a little later."""
        if self._behind is None and not self._store.read(lambda tx: tx.held):
            self._falling = self._falling or self._dice.strikes(Fault.FAILOVER, "failover")

    def _hear(self, seen: Seen) -> None:
        if self._falling and seen.event is Event.CLAIMED:
            # The worst moment: it knows of a call, and not how that came out.
            self._falling = False
            self._behind = Image(self._store), self._checker.now()
            lag_s = self._dice.between("failover lag", 0.05, LOOK_AROUND_S)
            self._loop.call_later(lag_s, self._take_over, context=WORLD)
        self._people.hear(seen)

    def _take_over(self) -> None:
        behind, self._behind = self._behind, None
        if behind is None or not self._dice.striking:
            return
        if self._loop.time() - self._clock.forward_s < 2 * LOOK_AROUND_S:
            return  # what fell due by a calendar that nobody has written down, nobody can know
        image, remembered = behind
        image.set_back()
        self._later.set_back()
        self._keeper.set_back()
        self._checker.set_back(remembered)
        for account in self._accounts.values():
            account.set_back()
        self._store.write(lambda tx: hold(tx, FAILOVER, until=tx.now)).result()
        self._people.fail_over(self._store)

    def _stop_some(self) -> None:
        for role, worker in self._workers.items():
            process = self._running.get(role)
            if process is not None and not process.frozen and self._dice.strikes(Fault.STOP, role, role):
                process.spawn(_stop(worker))

    # Processes

    def _start(self, role: str) -> None:
        if self._over or role not in self._mains:
            return
        self._numbers[role] += 1
        process = self._running[role] = Process(self._loop, role, self._numbers[role])
        process.spawn(self._fill(process))

    async def _fill(self, process: Process) -> None:
        """A role's life: until it ends by itself, or is ended."""
        try:
            await self._mains[process.name](process)
        except StoreUnavailable:
            pass  # it could not begin, or not sign off: whoever watches over it starts it again
        except Exception as error:
            self._checker.broke(f"{process.id} ended with {type(error).__name__}: {error}")
        finally:
            self._loop.call_soon(self._bury, process, context=WORLD)

    def _bury(self, process: Process) -> None:
        if self._running.get(process.name) is not process:
            return
        del self._running[process.name]
        self._workers.pop(process.name, None)
        if process.alive:
            process.kill()
        self._ended.append(self._loop.create_task(process.gone(), context=WORLD))
        wait_s = self._dice.between(f"{process.name} restart", 0.05, 1.5 * self._policy.lease_s)
        self._loop.call_later(wait_s, self._start, process.name, context=WORLD)

    def _crash(self, process: Process) -> None:
        process.kill()

    async def _scheduler(self, process: Process) -> None:
        port = StorePort(process, self._ground)
        book = TemplateBook(from_store(port))
        scheduler = Scheduler(port, self._policy, book, process=process.id, salt=lambda: "the same for all")
        while True:
            with suppress(StoreUnavailable):
                await process.side.run(partial(scheduler.run, trigger=TIMER))
            await asyncio.sleep(self._dice.between(process.name, 0.5, 1.5))

    async def _worker(self, process: Process) -> None:
        port = StorePort(process, self._ground)
        channels = [Channel.SMS] if process.name == "worker-3" else list(Channel)
        names = [name for name, account in self._policy.accounts.items() if account.channel in channels]
        names = names or list(self._policy.accounts)
        freeze_max_s = (10.0 if self._profile.beyond else 0.7) * self._policy.lease_s
        worker = Worker(
            port,
            self._policy,
            {
                name: ProviderPort(process, self._accounts[name], self._ground, freeze_max_s=freeze_max_s)
                for name in names
            },
            WorkerSettings(
                process.id,
                "worker",
                "simulated",
                1,
                stop_s=self._dice.pick("stop", (0.1, 1.0, 20.0)),
                idle_s=self._dice.pick("idle", (0.25, 1.0, 2.0)),
            ),
            queues=self._queues(process),
            chance=lambda: self._dice.chance(f"{process.name} chance"),
            on_error=self._heard,
        )
        self._workers[process.name] = worker
        await worker.run()

    async def _relay(self, process: Process) -> None:
        port, queues = StorePort(process, self._ground), self._queues(process) or {}

        rounds = 0
        while True:
            with suppress(StoreUnavailable):
                await relay(port, queues)
                for name in self._policy.accounts if rounds % 10 == 0 else ():
                    await asyncio.wrap_future(port.write(partial(_sweep, name)))
            rounds += 1
            await asyncio.sleep(self._dice.between(process.name, 0.2, 0.6))

    async def _desk(self, process: Process) -> None:
        port = StorePort(process, self._ground)
        book = TemplateBook(from_store(port))
        while True:
            while not self._deeds:
                self._news.clear()
                await self._news.wait()
            deed, tries = self._deeds.popleft()
            done = False
            try:
                await process.side.run(partial(deed, port, book))
                done = True
            except StoreUnavailable:
                pass
            finally:
                # No answer, or a bad one: they ask again, a few times.
                if done or tries + 1 >= TRIES:
                    self._deeds_open -= 1
                else:
                    wait_s = self._dice.between("ask again", 0.1, 2.0)
                    self._loop.call_later(wait_s, self._add_deed, deed, tries + 1, context=WORLD)

    def _heard(self, stage: str, error: Exception) -> None:
        """What a worker's pollers tell: a store that is away is told and survived, a bug is not."""
        if not isinstance(error, StoreUnavailable):
            self._checker.broke(f"{stage} raised {type(error).__name__}: {error}")

    # People

    def _do_later(self, seconds: float, deed: Deed, *, urgent: bool = False) -> None:
        self._deeds_open += 1
        add = self._add_urgent if urgent or seconds < URGENT_S else self._add_deed
        self._loop.call_later(max(0.0, seconds), add, deed, 0, context=WORLD)

    def _add_deed(self, deed: Deed, tries: int) -> None:
        self._deeds.append((deed, tries))
        self._news.set()

    def _add_urgent(self, deed: Deed, tries: int) -> None:
        self._deeds.appendleft((deed, tries))
        self._news.set()

    def _receipt_of(self, key: str) -> str:
        return next((found for a in self._accounts.values() if (found := a.receipt_of(key))), "")

    # Hints

    def _make_transports(self) -> dict[str, Transport]:
        chances = {
            fault: chance for fault, chance in self._profile.chances.items() if self._dice.takes(fault)
        }
        faults = Faults(
            repeat=chances.get(Fault.HINT_REPEATED, 0.0),
            lose=chances.get(Fault.HINT_LOST, 0.0),
            lose_ack=chances.get(Fault.HINT_ACK_LOST, 0.0),
            reorder=Fault.HINTS_REORDERED in chances,
            redeliver_s=5.0,
        )
        if self._policy.hints:
            for fault in (Fault.HINT_REPEATED, Fault.HINT_LOST, Fault.HINT_ACK_LOST, Fault.HINTS_REORDERED):
                if fault in chances:
                    self._checker.coverage.fault(fault)
        return {
            account: Transport(UnreliableQueue(faults, seed=self._seed), self._loop)
            for account in sorted(self._policy.accounts)
        }

    def _queues(self, process: Process) -> dict[str, QueuePort] | None:
        if not self._policy.hints:
            return None
        return {
            account: QueuePort(process, self._ground, transport)
            for account, transport in self._transports.items()
        }

    def _story(self) -> tuple[str, ...]:
        key = next((broken.key for broken in self._checker.broken if broken.key), "")
        if not key:
            return ()
        rows = self._store.read(lambda tx: tx.rows("view_simulator_story", key=key))
        return tuple(f"{(int(row['at']) - START_AT) / SECOND:10.4f} s  {row['body']}" for row in rows)


def _sweep(account: str, tx: Tx) -> int:
    return sweep(tx, account)


async def _stop(worker: Worker) -> None:
    worker.stop()


def _seed_gates(tx: Tx, policy: Policy) -> None:
    for name in sorted(policy.accounts):
        tx.gates.seed(name, policy.accounts[name].limits)


# What the world is like


def _draw_policy(dice: Dice, pace: Pace) -> Policy:
    """Two or three accounts of different classes, with short times: a run is minutes, not days."""
    place = "policy"
    lease_s = dice.between(place, 6.0, 10.0)
    timeout_s = dice.between(place, 2.0, 4.0)
    arrival_max_s = dice.between(place, 2.0, 8.0)
    freeze_max_s = 0.7 * lease_s
    key = Promise(
        ProviderClass.KEY,
        timeout_s=timeout_s,
        key_window_s=dice.pick(place, (20.0, 40.0, 150.0)) + arrival_max_s + freeze_max_s,
        # A request that left in time must also arrive in time, however late it is.
        key_margin_s=arrival_max_s + freeze_max_s + 1.0,
        arrival_max_s=arrival_max_s,
        index_lag_s=3.0,
        echo=False,
    )
    lookup = Promise(
        ProviderClass.LOOKUP, timeout_s=timeout_s, arrival_max_s=arrival_max_s, index_lag_s=3.0, lookup=True
    )
    neither = Promise(ProviderClass.NEITHER, timeout_s=timeout_s, arrival_max_s=arrival_max_s)
    known = [
        ("key", Channel.SMS, key),
        ("both", Channel.EMAIL, replace(key, lookup=True)),
        ("search", Channel.SMS, lookup),
        ("plain", Channel.EMAIL, neither),
    ]
    first = int(dice.chance(place) * len(known))
    chosen = [known[(first + step) % len(known)] for step in range(2 + (dice.chance(place) < 0.5))]
    accounts = [_draw_account(dice, pace, *each) for each in chosen]
    uncertain = {"": None, "-resend": UncertainPolicy.RESEND, "-assume": UncertainPolicy.ASSUME_SENT}
    categories = [
        CategoryPolicy(f"{account.name}{suffix}", NoRecord.ALLOW, uncertain=policy)
        for account in accounts
        for suffix, policy in uncertain.items()
    ]
    return Policy(
        accounts={account.name: account for account in accounts},
        channels={
            channel: ChannelPolicy(channel, 120.0, 600.0, UncertainPolicy.HOLD)
            for channel in sorted({account.channel for account in accounts})
        },
        categories={category.name: category for category in categories},
        default_category=categories[0].name,
        zones={"default": "UTC"},
        routes=tuple(
            Route(account.channel, account.name, category=f"{account.name}{suffix}")
            for account in accounts
            for suffix in uncertain
        ),
        lease_s=lease_s,
        pass_rows_max=dice.pick(place, (30, 50_000)),
        grace_s=5.0,
        hints=dice.chance(place) < 0.3,
    )


def _shared(policy: Policy) -> Policy:
    """The same world, where its first account has a twin, and both share all that there is."""
    first = next(iter(policy.accounts.values()))
    twin = replace(first, name=f"{first.name}-2")
    shares = (Share(first.name, 3), Share(twin.name, 1))
    channels = {first.channel: replace(policy.channels[first.channel], move_after_s=3.0)}
    return replace(
        policy,
        accounts={first.name: first, twin.name: twin},
        channels=channels,
        routes=(Route(first.channel, first.name, shares=shares),),
    )


def _draw_account(dice: Dice, pace: Pace, name: str, channel: Channel, promise: Promise) -> AccountPolicy:
    place = f"account {name}"
    limits: Sequence[Limit] = [Limit(dice.pick(place, pace.counts), SECOND)]
    if dice.chance(place) < 0.25:
        limits = [*limits, Limit(4 * pace.counts[-1], 70 * SECOND)]
    return AccountPolicy(
        name=name,
        channel=channel,
        promise=promise,
        limits=GateLimits(tuple(limits), lanes=dice.pick(place, pace.lanes)),
        retry=RetryPolicy(
            attempts_max=dice.pick(place, (1, 2, 3, 12)),
            throttles_max=dice.pick(place, (1, 3, 500)),
            base_s=0.5,
            cap_s=8.0,
            floor_s=0.2,
        ),
        sender="Us <us@example.com>" if channel is Channel.EMAIL else "+12025550100",
    )
