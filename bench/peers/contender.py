"""What a round asks of whoever is measured: sendonce and each peer speak this, and a round knows no other.

A `Contender` opens a `Field` for a `Work`: a fresh store, nothing in it. In a field deliveries are enqueued,
workers are started, killed and watched, and its own books are asked whether anything is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bench import machine

END_S: Final = 20.0
HOLD: Final = "-hold"
"""How the name of ours ends where the provider honours no keys, and what may have been sent is held."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done, and under which settings.

    url      the provider
    workers  how many processes will share it
    limit    calls a second that the provider allows, all processes together; 0: no limit
    lease_s  after which a silent worker counts as dead; 0: as the contender comes
    timed    some of it is due later, and is to be looked for every second
    """

    url: str
    workers: int = 1
    limit: int = 0
    lease_s: int = 0
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many deliveries: enough for some seconds each, few enough for the slow ones.

    drain  sent without a limit
    kill   sent by two workers of which one is killed; what is left at 30 % takes a few seconds
    due    fall due at one moment, beside those that do not
    """

    drain: int
    kill: int
    due: int


@dataclass(frozen=True, slots=True)
class Enqueued:
    """How many, how many a second, and how many of them a pass then published a second; 0: no such pass."""

    count: int
    rate: float
    publish_rate: float = 0.0


class Field(Protocol):
    """A fresh store of one contender."""

    @property
    def servers(self) -> Mapping[str, str]:
        """The servers that it stands on, and their versions."""
        ...

    def enqueue(self, count: int, *, first: int = 0, due_at: float = 0.0, seconds: float = 600.0) -> Enqueued:
        """Hand in deliveries, numbered from `first`, due now or at a time of the wall clock.

        It may stop early once it took `seconds`.
        """
        ...

    def start(self, number: int) -> Worker:
        """Start the worker process of this number, or start it again. All of them end with the field."""
        ...

    def server_cpu_s(self) -> float:
        """What the servers have used so far."""
        ...

    def tidy(self) -> None:
        """Have the servers do now what very many new rows make them do minutes later."""
        ...

    def left(self) -> int:
        """How many deliveries are open, by the contender's own books."""
        ...

    def remarks(self) -> Sequence[str]:
        """What else its books say once all is over."""
        ...


class Contender(Protocol):
    """sendonce on a store, or a peer."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def is_ours(self) -> bool: ...
    @property
    def rounds(self) -> tuple[str, ...]:
        """The rounds that it goes through."""
        ...

    @property
    def sizes(self) -> Sizes: ...
    @property
    def limiter(self) -> str:
        """How it holds a limit, in words."""
        ...

    def why_not(self, work: Work) -> str:
        """Why it cannot be measured here; "" where it can. What it needs is installed by this."""
        ...

    def field(self, work: Work) -> AbstractContextManager[Field]: ...


class Worker:
    """A worker process, with all that it starts itself."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def cpu_s(self) -> float:
        return machine.tree_cpu_s(self._process.pid)

    def peak_mb(self) -> float:
        return machine.tree_peak_mb(self._process.pid)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ask it to end, and see to it after a while."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of it. Idempotent."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(END_S)

    def last_words(self) -> str:
        """The last line that it wrote."""
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else "it wrote nothing"
