"""sendonce as a contender: reminders come in by an import, a pass publishes them, `sendonce worker` sends.

Where some are due later, `sendonce up` both publishes and sends, so that its one process does what one
process of a peer does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from bench.door import no_cheap_door
from bench.peers.contender import HOLD, Enqueued, Sizes, Work, Worker
from bench.peers.program import ROUNDS
from bench.peers.service import TIDY, postgresql_version
from bench.subject import Account, Subject, environment, publish, sendonce
from sendonce.core.lifecycle import State

TIMEOUT: Final = "5s"
SIZES: Final = Sizes(drain=8_000, kill=5_000, due=3_000)
LANES_PACED: Final = 32
AT_ONCE: Final = 50_000
"""Rows of one import; a longer one is made of several, so that it can stop in time."""
_OPEN: Final = (State.SCHEDULED, State.QUEUED, State.SENDING, State.RECONCILING)


@dataclass(frozen=True, slots=True)
class Own:
    """sendonce on a store. `keyed`: the provider honours idempotency keys."""

    store: str
    called: str
    keyed: bool = True
    sizes: Sizes = SIZES
    limiter: str = "its gate, all processes together"
    is_ours: bool = True

    @property
    def name(self) -> str:
        return f"sendonce-{self.store}" + ("" if self.keyed else HOLD)

    @property
    def title(self) -> str:
        return f"sendonce on {self.called}" + ("" if self.keyed else ", provider without keys, `hold`")

    @property
    def rounds(self) -> tuple[str, ...]:
        return ROUNDS if self.keyed else ("kill",)

    def why_not(self, work: Work) -> str:
        return no_cheap_door()

    @contextmanager
    def field(self, work: Work) -> Iterator[OwnField]:
        account = Account(work.url, keyed=self.keyed)
        if work.limit:
            account = Account(
                work.url, limit=f"{work.limit}/s", lanes=LANES_PACED, jitter="10ms", keyed=self.keyed
            )
        if work.lease_s:
            account = Account(work.url, keyed=self.keyed, timeout=TIMEOUT, lease=f"{work.lease_s}s")
        with sendonce(account, self.store) as subject:
            field = OwnField(subject, work, self.called)
            try:
                yield field
            finally:
                field.end()


class OwnField:
    """A fresh store of sendonce."""

    def __init__(self, subject: Subject, work: Work, called: str) -> None:
        self.servers = {} if subject.server is None else {called: postgresql_version(subject.server)}
        self._subject = subject
        self._work = work
        self._workers: dict[int, Worker] = {}

    def enqueue(self, count: int, *, first: int = 0, due_at: float = 0.0, seconds: float = 600.0) -> Enqueued:
        """Every row is validated and rendered."""
        due = datetime.fromtimestamp(due_at, UTC).isoformat() if due_at else "now"
        made, took_s = 0, 0.0
        with self._subject.open() as app:
            while made < count and took_s < seconds:
                part = min(AT_ONCE, count - made)
                path = self._subject.rows_file(part, due=due, first=first + made)
                begun = time.perf_counter()
                report = self._subject.take_in(app, path)
                took_s += time.perf_counter() - begun
                if report.deliveries != part:
                    raise RuntimeError(f"{report.deliveries} of {part} rows taken in: {report.problems[:1]}")
                made += part
            publish_rate = 0.0
            if not due_at:
                begun = time.perf_counter()
                publish(app)
                publish_rate = made / (time.perf_counter() - begun)
        self._subject.analyze()
        return Enqueued(made, made / took_s, publish_rate)

    def start(self, number: int) -> Worker:
        folder = self._subject.folder
        self._workers[number] = Worker(
            self._subject.command("up" if self._work.timed else "worker"),
            environment=environment(),
            folder=folder,
            log=folder / f"worker-{number}.log",
        )
        return self._workers[number]

    def server_cpu_s(self) -> float:
        return self._subject.server_cpu_s()

    def tidy(self) -> None:
        if self._subject.server is not None:
            self._subject.server.execute(TIDY)

    def left(self) -> int:
        return self._subject.count_in(*_OPEN)

    def remarks(self) -> Sequence[str]:
        held = self._subject.count_in(State.UNCERTAIN)
        return [f"{held:,} held for a person, who is shown them"] if held else []

    def end(self) -> None:
        for worker in self._workers.values():
            worker.kill()


def contenders(stores: Sequence[str]) -> list[Own]:
    """sendonce on these stores, with a provider that honours keys and with one that does not."""
    called = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
    return [Own(store, called[store], keyed=keyed) for keyed in (True, False) for store in stores]
