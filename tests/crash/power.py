"""Power cuts: the shipped program works on a disk that remembers, and what cuts could have left is opened and
held against what had been answered.

Two instances of the program, which publish, claim, send and settle, share a store file beside an application
that hands reminders in and takes some back, and a sandbox stands in for the provider. In the middle all of
them end and begin again. What is answered, and must be found:

    commit     the store said that a transaction is in; they are numbered, so a missing one shows
    scheduled  the application was told that these are taken in
    called     a message is at the provider's door: the intent to send it was durable before
    told       somebody was told in which state a delivery is, and it is one that is not left again
    cancelled  the application was told that these will not be sent
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final
from unittest import mock

from sendonce.app import App
from sendonce.client import Client
from sendonce.config import load
from sendonce.core.errors import SendonceError
from sendonce.core.lifecycle import ENDED, Event, State
from sendonce.pipeline.record import lines_of
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Tx
from sendonce.runtime.clock import SystemClock
from sendonce.service import serve
from sendonce.store import sqlite
from sendonce.testing.sandbox import ChannelRules, SandboxSettings, sandbox_in_thread
from sendonce.testing.sandbox.door import Door
from tests.crash.disk import Answer, Disk, Step, cuts, recorded
from tests.integration import service

DELIVERIES: Final = 400
RATE: Final = 400
LANES: Final = 30
BATCH: Final = 10
CHECKPOINT_PAGES: Final = 300
"""How long the journal of the store gets: short, so that it is often carried over and begun anew."""
COUNT: Final = """
INSERT INTO meta (name, value) VALUES ('commits', '1')
ON CONFLICT (name) DO UPDATE SET value = CAST(meta.value AS INTEGER) + 1 RETURNING value
"""
STORE: Final = "sendonce.db"


def work(folder: Path, *, synchronous: str = "", deliveries: int) -> Disk:
    """Send so many reminders from a new store in the folder, and note all that is written and answered.

    `synchronous`: how careful SQLite is to be; "": as shipped.
    """
    place = folder / "store"
    place.mkdir()
    with ExitStack() as opened:
        disk = opened.enter_context(recorded(place))
        opened.enter_context(_as_noted(disk, synchronous))
        rules = ChannelRules(latency_s=(0.0, 0.02))
        sandbox = opened.enter_context(sandbox_in_thread(SandboxSettings(sms=rules)))
        path = folder / "sendonce.toml"
        url = f"sqlite:///{disk.folder / STORE}"
        config = service.configure(path, url, sandbox.http_port, rate=RATE, lanes=LANES)
        half = deliveries // 2
        _send(config, disk, first=0, count=half)
        _send(config, disk, first=half, count=deliveries - half)
    return disk


def _send(config: Path, disk: Disk, *, first: int, count: int) -> None:
    with App(load(config, environ={})) as one, App(load(config, environ={})) as other, _run(one, other):
        service.add_template(one)
        application = Client.of(other)
        for begin in range(first, first + count, BATCH):
            reminders = service.reminders(min(BATCH, first + count - begin), first=begin)
            reminders[0]["due"] = datetime.now(UTC) + timedelta(hours=1)
            results = application.schedule(reminders)
            assert all(result.ok for result in results), results
            disk.answered("scheduled", [key for result in results for key in result.keys])
            application.cancel(reminder=str(reminders[0]["reminder"]), reason="returned")
            disk.answered("cancelled", results[0].keys)
        service.wait_for(lambda: _told(one, disk) == first + count)


def _told(app: App, disk: Disk) -> int:
    rows = app.store.read(lambda tx: tx.rows("view_demo_states"))
    ended = {str(row["key"]): str(row["state"]) for row in rows if row["state"] in ENDED}
    disk.answered("told", ended)
    return len(ended)


@contextmanager
def _run(*apps: App) -> Iterator[None]:
    """Schedule and send with each of them, on a loop of a thread."""
    stopping = asyncio.Event()
    errors: list[str] = []

    async def all_of_them() -> None:
        await asyncio.gather(
            *(
                serve(
                    app,
                    work=True,
                    schedule=True,
                    stopping=stopping,
                    role="up",
                    on_error=lambda stage, error: errors.append(f"{stage}: {error}"),
                )
                for app in apps
            )
        )

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(all_of_them()))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()
    assert not errors, errors


@contextmanager
def _as_noted(disk: Disk, synchronous: str) -> Iterator[None]:
    """Note each commit and each call where it is answered."""
    connect, commit = sqlite.SqliteStore._connect_writer, sqlite._Connection.commit
    marker_in = Door.marker_in

    def connected(store: sqlite.SqliteStore) -> sqlite._Connection:
        made = connect(store)
        if synchronous:
            made._raw.execute(f"PRAGMA synchronous = {synchronous}")
        made._raw.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        return made

    def committed(connection: sqlite._Connection) -> None:
        number = str(connection._raw.execute(COUNT).get)
        commit(connection)
        disk.answered("commit", int(number))

    def called(door: Door, contents: Sequence[str]) -> str:
        marker = marker_in(door, contents)
        disk.answered("called", marker)
        return marker

    with (
        mock.patch.object(sqlite.SqliteStore, "_connect_writer", connected),
        mock.patch.object(sqlite._Connection, "commit", committed),
        mock.patch.object(Door, "marker_in", called),
    ):
        yield


@dataclass(slots=True)
class Answered:
    """All that was answered before a cut."""

    commits: int = 0
    scheduled: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    called: Counter[str] = field(default_factory=Counter)
    told: dict[str, str] = field(default_factory=dict)

    def add(self, answer: Answer) -> None:
        match answer.what:
            case "commit":
                self.commits = max(self.commits, answer.value)
            case "scheduled":
                self.scheduled.update(answer.value)
            case "cancelled":
                self.cancelled.update(answer.value)
            case "called":
                self.called[answer.value] += 1
            case "told":
                self.told.update(answer.value)
            case _:
                raise AssertionError(answer.what)

    @property
    def total(self) -> int:
        return self.commits + len(self.scheduled) + len(self.cancelled) + len(self.told) + self.called.total()


@dataclass(frozen=True, slots=True)
class Cut:
    """One power cut.

    at        how many steps had been done
    answered  how much had been answered
    missing   what of it is not there, by what was answered; "store": it cannot be opened or is not sound
    """

    at: int
    answered: int
    missing: Mapping[str, Sequence[str]]


def judged(steps: Sequence[Step], number: int, seed: int) -> Iterator[Cut]:
    """Cut the power so many times, and open with the product what is left."""
    chance = Random(seed)
    answered, done = Answered(), 0
    for left in cuts(steps, _places(steps, number, chance), chance):
        for step in steps[done : left.at]:
            if isinstance(step, Answer):
                answered.add(step)
        done = left.at
        with TemporaryDirectory(prefix="sendonce-power-") as folder:
            left.put(Path(folder))
            missing = _missing(Path(folder) / STORE, answered)
        yield Cut(left.at, answered.total, {what: names for what, names in missing.items() if names})


def _places(steps: Sequence[Step], number: int, chance: Random) -> Iterator[int]:
    """Half of them anywhere, half at the worst moment: a message has just come to the provider."""
    calls = [at for at, step in enumerate(steps, 1) if isinstance(step, Answer) and step.what == "called"]
    for _ in range(number):
        yield chance.choice(calls) if chance.random() < 0.5 else chance.randint(1, len(steps))


def _missing(path: Path, answered: Answered) -> dict[str, list[str]]:
    try:
        with closing(sqlite.open_store(f"sqlite:///{path}", SystemClock(), inline=True)) as store:
            faults = [f"{fault.key}: {fault.what}" for fault in verify(store).faults]
            return {"store": faults, **store.read(partial(_missing_in, answered))}
    except SendonceError as error:
        return {"store": [str(error)]}


def _missing_in(answered: Answered, tx: Tx) -> dict[str, list[str]]:
    commits = int(tx.meta("commits") or 0)
    rows = tx.rows("view_demo_states")
    states = {str(row["key"]): str(row["state"]) for row in rows}
    numbers = {str(row["key"]): number for number, row in enumerate(rows, start=1)}
    claims = {
        key: sum(line.event == Event.CLAIMED for line in lines_of(tx, numbers[key])) if key in numbers else 0
        for key in answered.called
    }
    return {
        "commit": [f"number {number}" for number in range(commits + 1, answered.commits + 1)],
        "scheduled": sorted(answered.scheduled - states.keys()),
        "cancelled": sorted(key for key in answered.cancelled if states.get(key) != State.CANCELLED),
        "called": sorted(key for key, times in answered.called.items() if claims[key] < times),
        "told": sorted(key for key, state in answered.told.items() if states.get(key) != state),
    }


@dataclass(slots=True)
class Losses:
    """What the cuts of one run came to. `lost`: in how many of them something was missing, by what it was."""

    steps: int
    cuts_lost: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        by_kind = ", ".join(f"{what}: {number}" for what, number in sorted(self.lost.items()))
        return f"something was lost in {self.cuts_lost} cuts" + (f" ({by_kind})" if by_kind else "")


def cut(folder: Path, number: int, seed: int, *, synchronous: str = "") -> Losses:
    """Work in a new folder, cut the power so many times, and count."""
    folder.mkdir()
    steps = work(folder, synchronous=synchronous, deliveries=DELIVERIES).steps
    losses = Losses(len(steps))
    for one in judged(steps, number, seed):
        losses.cuts_lost += bool(one.missing)
        losses.lost.update(one.missing.keys())
        losses.problems += [
            f"cut after step {one.at}: {what}: {', '.join(names)}" for what, names in one.missing.items()
        ]
    return losses
