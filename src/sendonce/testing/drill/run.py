"""Runs a drill: each scenario in a world of its own, several side by side, since most of it is waiting."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sendonce.config import AccountSettings, Settings, did_you_mean
from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, Refused, SendonceError
from sendonce.testing.drill.report import MISSING, Drilled, Report
from sendonce.testing.drill.scenario import Result, Scenario, Step, Totals, Verdict
from sendonce.testing.drill.scenarios import SCENARIOS
from sendonce.testing.drill.stage import (
    AUTH_TOKEN,
    SECRET,
    Door,
    Stage,
    Way,
    calls_back,
    changes_of,
    check,
    promise_of,
    read,
    ways_of,
)
from sendonce.testing.drill.world import Stuck, World
from sendonce.testing.sandbox import ChannelRules, SandboxClient, SandboxSettings, sandbox_in_thread

ORDERLY: Final = ChannelRules()
JOBS: Final = 3
"""Scenarios at a time. More would crowd two cores, and what is counted in seconds would be the machine's."""


@dataclass(frozen=True, slots=True)
class Drill:
    """What is drilled.

    settings   the configuration as it was read (`stage.read`)
    ways       how each account is reached
    folder     an empty one; everything that is written is in it
    real       the name of the one account that is used as it is; "": sandboxes stand for all of them
    addresses  whom that account may write to
    rules      how the sandboxes behave from the start: for whoever tests the drill itself
    """

    settings: Settings
    ways: Mapping[str, Way]
    folder: Path
    real: str = ""
    addresses: tuple[str, ...] = ()
    rules: ChannelRules = ORDERLY

    def scenarios(self) -> list[Scenario]:
        return [scenario for scenario in SCENARIOS if not (self.real and scenario.sandbox)]


def prepared(
    config: Path,
    folder: Path,
    *,
    environ: Mapping[str, str],
    sandbox_account: str = "",
    rules: ChannelRules = ORDERLY,
) -> Drill:
    """A drill on a configuration. Nothing is opened or sent yet.

    sandbox_account  the real account to send through, instead of sandboxes

    Raises `ConfigErrors` for what is wrong in the file, `InvalidInput` where no account can be drilled, and
    `Refused` for an account that is not marked `sandbox = true`, or that may write to anybody.
    """
    settings = read(config, environ)
    check(settings)
    now = time.time_ns() // 1000
    ways = ways_of(settings, now)
    if not ways:
        raise InvalidInput("no account can be drilled: give a channel its account, or write a [[route]]")
    if not sandbox_account:
        return Drill(settings, ways, folder, rules=rules)
    account = _real(settings, sandbox_account)
    way = replace(next(iter(ways.values())), account=account.name, channel=account.channel)
    way = ways.get(account.name, way)
    return Drill(settings, {account.name: way}, folder, account.name, _addresses(settings, account))


def report_of(drill: Drill, results: Sequence[Result], *, at: int, took_s: float) -> Report:
    """What is told of a drill that has been run."""
    accounts = [account for name, account in drill.settings.accounts.items() if name in drill.ways]
    return Report(
        configuration=str(drill.settings.path),
        at=at,
        took_s=took_s,
        real=drill.real,
        accounts=[
            Drilled(
                account.name,
                account.channel.value,
                account.provider,
                promise_of(account).provider_class.value,
                "the account itself" if drill.real else "a sandbox",
            )
            for account in accounts
        ],
        unreached=[] if drill.real else sorted(drill.settings.accounts.keys() - drill.ways.keys()),
        changes=[] if drill.real else list(changes_of(drill.settings, drill.ways, at)),
        missing=MISSING,
        totals=Totals(list(results)),
    )


def _real(settings: Settings, name: str) -> AccountSettings:
    account = settings.accounts.get(name)
    if account is None:
        raise InvalidInput(
            f"account {name!r} is not configured: {did_you_mean(name, settings.accounts)}",
            field="--sandbox-account",
        )
    if account.channel not in settings.channels:
        raise InvalidInput(f"account {name} carries {account.channel}: write [channel.{account.channel}]")
    if not account.sandbox:
        raise Refused(
            f"account {name} is not marked as one for tests, so nothing was sent: where the provider gave it "
            f"for tests, write sandbox = true under [account.{name}]",
            code="account_not_sandbox",
        )
    return account


def _addresses(settings: Settings, account: AccountSettings) -> tuple[str, ...]:
    """Whom a drill on a real account writes to: who is named in full, and nobody that a pattern lets in."""
    named = [entry for entry in settings.recipients.allow if not set(entry) & set("*?[]")]
    fitting = tuple(entry for entry in named if ("@" in entry) is (account.channel is Channel.EMAIL))
    if not fitting:
        raise Refused(
            f"nobody is named whom a drill may write to by {account.channel}, so nothing was sent: write "
            'test addresses in full under [recipients], such as allow = ["you@example.com"]',
            code="no_test_recipients",
        )
    return fitting


def run(
    drill: Drill,
    scenarios: Sequence[Scenario],
    *,
    jobs: int = JOBS,
) -> Iterator[Result]:
    """The result of each scenario, in order."""
    stopping = threading.Event()
    pool = ThreadPoolExecutor(max_workers=1 if drill.real else jobs, thread_name_prefix="drill")
    try:
        yield from pool.map(partial(_one, drill, stopping), scenarios, range(len(scenarios)))
    finally:  # also where nobody waits for the rest
        stopping.set()
        pool.shutdown(cancel_futures=True)


def _one(
    drill: Drill,
    stopping: threading.Event,
    scenario: Scenario,
    number: int,
) -> Result:
    if scenario.events and not _has_api():
        return Result(scenario, Verdict.NOT_CONFIGURED, why="needs the extra sendonce[api]")
    ways = dict(_taking_part(drill, scenario))
    if not ways:
        what = "whose provider calls back" if scenario.events else f"of class {scenario.class_}"
        return Result(scenario, Verdict.NOT_CONFIGURED, why=f"no account {what}")
    called_at = f"127.0.0.1:{_free_port()}" if scenario.events else ""
    begun = time.monotonic()
    folder = drill.folder / f"{number + 1:02d}"
    folder.mkdir(parents=True)
    steps: list[Step] = []
    duplicates = lost = 0
    with ExitStack() as opened:
        doors = (
            {}
            if drill.real
            else {
                name: _sandbox(opened, drill, _events_url(called_at, name))
                for name in drill.settings.accounts
            }
        )
        stage = Stage(
            drill.settings.path,
            folder / "drill.db",
            {name: Door(door.host, door.http_port, door.smtp_port) for name, door in doors.items()},
            drill.real,
            called_at,
        )
        taking_part = {name: door for name, door in doors.items() if name in ways}
        world = opened.enter_context(
            World(stage, ways, taking_part, folder, addresses=drill.addresses, stopping=stopping)
        )
        try:
            steps += scenario.run(world)
        except (Stuck, SendonceError) as error:
            steps.append(Step("go on", "the scenario comes to its end", str(error), held=False))
        world.stop()
        step, duplicates, lost = world.counted()
        steps.append(step)
    passed = all(step.held for step in steps) and not duplicates and not lost
    return Result(
        scenario,
        Verdict.PASSED if passed else Verdict.FAILED,
        tuple(steps),
        time.monotonic() - begun,
        duplicates,
        lost,
    )


def _taking_part(drill: Drill, scenario: Scenario) -> Iterator[tuple[str, Way]]:
    for name, way in drill.ways.items():
        account = drill.settings.accounts[name]
        if (
            drill.real in ("", name)
            and scenario.class_ in (None, promise_of(account).provider_class)
            and (not scenario.events or calls_back(account))
        ):
            yield name, way


def _has_api() -> bool:
    return all(find_spec(name) for name in ("fastapi", "uvicorn"))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _events_url(called_at: str, account: str) -> str:
    return f"http://{called_at}/v1/events/{quote(account, safe='')}" if called_at else ""


def _sandbox(opened: ExitStack, drill: Drill, events_url: str) -> SandboxClient:
    settings = SandboxSettings(
        sms=drill.rules,
        email=drill.rules,
        events_url=events_url,
        events_secret=SECRET,
        twilio_auth_token=AUTH_TOKEN,
    )
    return opened.enter_context(sandbox_in_thread(settings))
