"""A crash run: seven real processes, a store and two providers, and something that goes wrong all the time.

Two schedulers, three workers, the HTTP API and an application that hands reminders in (and takes some back),
through the API and past it in turns, work on one store. They are
killed, stopped for longer than their lease and continued; the database server is stopped as by a crash and
started. Each comes back as a service manager would bring it. Then everything may finish, and is judged
(`verdict`).
"""

from __future__ import annotations

import math
import socket
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sendonce import config
from sendonce.app import App
from sendonce.cli.progress import Watch
from sendonce.core.errors import StoreError
from sendonce.pipeline.api_keys import add
from sendonce.pipeline.templates import add_sources
from sendonce.render import TemplateSource
from sendonce.testing.sandbox import ChannelRules, SandboxClient, SandboxSettings, Trigger, sandbox_in_process
from tests.crash.database import Database, database
from tests.crash.faults import Act, Fault, faults, is_long
from tests.crash.processes import LEASED, Member, Processes, sendonce
from tests.crash.recovery import Beats, Held, Moves, Over, Passes, Recovery, leased

CONFIG: Final = Path(__file__).with_name("sendonce.toml")
TEMPLATE: Final = "Your parcel is on its way. [ref:{{ delivery_key }}]"
SCHEDULERS: Final = 2
WORKERS: Final = 3
LOOK_S: Final = 0.1
TELL_S: Final = 15.0
BEGIN_S: Final = 90.0
WELL_S: Final = 120.0
DRAIN_S: Final = 120.0
"""How long nothing may end before it counts as stuck."""
IDLE_LOOKS: Final = 5


@dataclass(frozen=True, slots=True)
class Allows:
    """What the provider of an account allows: calls a second, and open calls."""

    channel: str
    rate: int
    lanes: int


ACCOUNTS: Final = {
    "keyed": Allows("sms", 40, 12),  # class K
    "plain": Allows("email", 20, 8),  # class N
    "asked": Allows("sms", 20, 8),  # class L, at a provider of its own
}
"""As in `sendonce.toml`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """So many faults at the least: kills, pauses of two leases or more, immediate stops of the server."""

    kills: int = 0
    long_pauses: int = 0
    restarts: int = 0

    @property
    def asked(self) -> bool:
        return self != Counts()

    def lacks(self, wanted: Counts) -> str:
        """What is left until there are as many as wanted; "" where nothing is."""
        left = {
            "kills": wanted.kills - self.kills,
            "long pauses": wanted.long_pauses - self.long_pauses,
            "restarts": wanted.restarts - self.restarts,
        }
        return ", ".join(f"{number} {name}" for name, number in left.items() if number > 0)


@dataclass(frozen=True, slots=True)
class Options:
    """minutes  how long things go wrong; to start and to finish comes on top
    until    how much goes wrong instead, however long it takes
    every_s  the mean time between two faults
    folder   an empty one; what is left in it is for whoever looks into a failure"""

    minutes: float
    store: str
    seed: int
    every_s: float
    folder: Path
    until: Counts = Counts()

    @property
    def journal(self) -> Path:
        return self.folder / "journal"


@dataclass(frozen=True, slots=True)
class World:
    """What the processes work on.

    doors  the provider of each account
    api    the address of the HTTP API
    key    the file with the application's key for it"""

    database: Database
    doors: Mapping[str, SandboxClient]
    app: App
    config: Path
    api: str
    key: Path

    def taken(self) -> int:
        """How many messages the providers have taken so far."""
        reports = {account: door.report()["channels"] for account, door in self.doors.items()}
        return sum(int(reports[name][ACCOUNTS[name].channel]["effects"]) for name in reports)


@dataclass(frozen=True, slots=True)
class Course:
    """What happened.

    struck    faults by kind
    long_pauses  those of two leases or more
    minutes   for which things went wrong
    recovered how long each took to be over
    held      calls that were open in killed and stopped workers
    problems  what went wrong on the way, a sentence each
    """

    struck: Mapping[Act, int]
    long_pauses: int
    minutes: float
    recovered: list[Recovery]
    held: list[Held]
    problems: list[str]


def world(stack: ExitStack, options: Options) -> World:
    """Made anew in the folder, gone with the stack."""
    place = stack.enter_context(database(options.store, options.folder))
    usual, asked = (
        stack.enter_context(sandbox_in_process(settings))
        for settings in (
            SandboxSettings(seed=options.seed, sms=_rules("keyed"), email=_rules("plain")),
            SandboxSettings(seed=options.seed, sms=_rules("asked")),
        )
    )
    text, port = CONFIG.read_text("utf-8"), _free_port()
    for name, value in (
        ("api_port", port),
        ("store", place.url),
        ("http_port", usual.http_port),
        ("smtp_port", usual.smtp_port),
        ("asked_port", asked.http_port),
    ):
        text = text.replace(f"{{{name}}}", str(value))
    path = options.folder / "sendonce.toml"
    path.write_text(text, "utf-8")
    app = stack.enter_context(App(config.load(path, environ={})))
    sources = [TemplateSource("sms", "", TEMPLATE, ""), TemplateSource("email", "Your parcel", TEMPLATE, "")]
    add_sources(app.store, "parcel", {source.channel: source for source in sources}, actor="crash")
    key = options.folder / "api.key"
    key.write_text(add(app.store, "crash", ["schedule", "cancel"], actor="crash").token, "utf-8")
    doors = {"keyed": usual, "plain": usual, "asked": asked}
    return World(place, doors, app, path, f"http://127.0.0.1:{port}", key)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _rules(account: str) -> ChannelRules:
    """The account's limits, and what goes wrong at the provider besides; slow enough to be met in a call."""
    allows = ACCOUNTS[account]
    return ChannelRules(
        rate_limit=allows.rate,
        concurrency_limit=allows.lanes,
        latency_s=(0.1, 0.6),
        throttle=Trigger(probability=0.002),
        error_before=Trigger(probability=0.01),
        lost_before=Trigger(probability=0.005),
        lost_after=Trigger(probability=0.01),
    )


def run(options: Options, world: World, say: Callable[[str], None]) -> Course:
    """Let everything go wrong for a while; then let everything finish."""
    with _Run(options, world, say) as running:
        return running.all()


class _Run:
    def __init__(self, options: Options, world: World, say: Callable[[str], None]) -> None:
        self._options = options
        self._world = world
        self._say = say
        program, api = [sys.executable, "-m", "tests.crash.intake"], (world.api, world.key)
        self._processes = Processes(
            {
                "scheduler": [sendonce(world.config, "scheduler")] * SCHEDULERS,
                "worker": [sendonce(world.config, "worker")] * WORKERS,
                "api": [sendonce(world.config, "api")],
                "intake": [[*program, *map(str, (world.config, options.journal, options.seed, *api))]],
            },
            options.folder,
            store_away_since=lambda at: self._away_until >= at,
        )
        self._away_until = 0.0  # until when the store was perhaps out of reach
        self._looked_at = time.monotonic()
        self._was_down = False  # the server, since then
        self._struck: Counter[Act] = Counter()
        self._long_pauses = 0
        self._minutes = 0.0
        self._recovering: list[Recovery] = []
        self._recovered: list[Recovery] = []
        self._held: list[Held] = []
        self._problems: list[str] = []

    def __enter__(self) -> _Run:
        self._processes.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def all(self) -> Course:
        self._wait(lambda: self._world.taken() >= 20, BEGIN_S, "nothing was sent")
        self._go_wrong()
        self._say("no more faults: everything may finish")
        self._wait(self._all_is_well, WELL_S, "not everything was well again")
        self._problems += [f"never over: {one.label}" for one in self._recovering]
        self._processes.stop("intake")
        self._drain()
        self._processes.stop("worker", "scheduler", "api")
        problems = [*self._problems, *self._processes.problems]
        return Course(self._struck, self._long_pauses, self._minutes, self._recovered, self._held, problems)

    def _go_wrong(self) -> None:
        begun = at = told_at = time.monotonic()
        until = self._options.until
        end = math.inf if until.asked else at + 60 * self._options.minutes
        plan = faults(
            self._options.seed,
            every_s=self._options.every_s,
            lease_s=self._world.app.policy.lease_s,
            restarts=self._world.database.has_server,
        )
        for fault in plan:
            at += fault.after_s
            while time.monotonic() < min(at, end):
                self._look()
                if time.monotonic() >= told_at + TELL_S:
                    told_at = time.monotonic()
                    self._tell(f"{end - told_at:4.0f} s" if not until.asked else self._counts().lacks(until))
            if at >= end or (until.asked and not self._counts().lacks(until)):
                self._minutes = (time.monotonic() - begun) / 60
                return
            self._strike(fault)

    def _counts(self) -> Counts:
        return Counts(self._struck[Act.KILL], self._long_pauses, self._struck[Act.RESTART])

    def _strike(self, fault: Fault) -> None:
        if fault.act is Act.RESTART:
            self._restart(fault.lasts_s)
            return
        member = self._processes.pick(fault.role, fault.which)
        if member is None:  # every one of them is down or stopped already
            return
        self._struck[fault.act] += 1
        if fault.act is Act.KILL:
            self._processes.kill(member)
            self._begin("killed", member, self._well_without(member))
            return
        self._long_pauses += is_long(fault, self._world.app.policy.lease_s)
        self._processes.pause(member, fault.lasts_s)
        # Stopped in the middle of a transaction, it holds locks of others, and on SQLite the file.
        self._away_until = max(self._away_until, time.monotonic() + fault.lasts_s)
        if member.role == "worker":
            self._begin("stopped", member, self._well_without(member))

    def _restart(self, down_s: float) -> None:
        """Under everybody; also under those that are stopped, and stay so meanwhile."""
        self._struck[Act.RESTART] += 1
        self._was_down = True
        self._world.database.stop()
        time.sleep(down_s)
        self._world.database.start()
        self._away_until = max(self._away_until, time.monotonic())
        self._recovering.append(Recovery("server restarted", 0, "worker", Moves()))

    def _begin(self, what: str, member: Member, over: Over) -> None:
        self._recovering.append(Recovery(f"{member.role} {what}", member.pid, member.role, over))

    def _well_without(self, member: Member) -> Over:
        match member.role:
            case "worker":
                self._held.append(Held(member.pid))
                return self._held[-1]
            case "scheduler":
                return Passes()
            case "api":
                return lambda tx: self._answers()
            case _:
                size = self._options.journal.stat().st_size
                return lambda tx: self._options.journal.stat().st_size > size

    def _answers(self) -> bool:
        """The API, for who asks whether it is ready."""
        try:
            with urllib.request.urlopen(f"{self._world.api}/readyz", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _look(self) -> None:
        time.sleep(LOOK_S)
        for member in self._processes.look():
            if member.role in LEASED:
                self._begin("continued", member, Beats(member.pid))
        alive = self._processes.pids()
        # Who has ended since will not beat again; what it held stays a question.
        self._recovering = [
            one for one in self._recovering if one.pid in alive or not isinstance(one.over, Beats)
        ]
        before, self._looked_at = self._looked_at, time.monotonic()
        up: set[str] = set()
        over: list[Recovery] = []
        with suppress(StoreError):
            pids, over = self._world.app.store.read(
                lambda tx: (leased(tx), [one for one in self._recovering if one.over(tx)])
            )
            up = set() if self._was_down else self._processes.roles_up(pids)
        self._was_down = False
        for one in self._recovering:
            if one.role not in up:
                one.nobody_s += self._looked_at - before
        for one in over:
            one.took_s = self._looked_at - one.at
            self._recovering.remove(one)
            self._recovered.append(one)

    def _wait(self, until: Callable[[], bool], limit_s: float, otherwise: str) -> None:
        end = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > end:
                self._problems.append(f"{otherwise} within {limit_s:.0f} s")
                return
            self._look()

    def _all_is_well(self) -> bool:
        return self._processes.all_run() and not self._recovering

    def _drain(self) -> None:
        """A busy machine leaves a backlog: all that is asked is that it shrinks."""
        app = self._world.app
        watch = Watch(app.store, app.policy)
        idle, least, until = 0, math.inf, time.monotonic() + DRAIN_S
        while idle < IDLE_LOOKS:
            self._look()
            scheduled = int(app.store.read(lambda tx: tx.rows("view_demo_scheduled"))[0]["n"])
            left = scheduled + watch.look().left
            idle = 0 if left else idle + 1
            if left < least:
                least, until = left, time.monotonic() + DRAIN_S
            if time.monotonic() > until:
                self._problems.append(f"{left} deliveries have not ended, and none did for {DRAIN_S:.0f} s")
                return

    def _tell(self, left: str) -> None:
        struck = ", ".join(f"{self._struck[act]} {act}s" for act in Act)
        self._say(f"{left} left; {struck}; {self._world.taken()} messages taken")
