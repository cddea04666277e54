"""The processes of a crash run: started as an operator would, killed and stopped as nobody wants it, and
started again as a service manager does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
AGAIN_S: Final = 0.3
"""How long after its end a process is started again."""
LEASED: Final = frozenset({"worker", "scheduler"})
UP_S: Final = 3.0
"""What one of another role takes to start."""
STOP_S: Final = 30.0
STORE_AWAY: Final = 3
"""What a process answers that cannot open its store when it starts."""


@dataclass(slots=True)
class Member:
    """One of the processes, through all its lives.

    born_at       (monotonic, as all of these) when its current life began
    paused_until  0 where it is not stopped
    start_at      0 where it has not ended
    """

    role: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    born_at: float = 0.0
    paused_until: float = 0.0
    start_at: float = 0.0

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and not self.paused_until and self.process.poll() is None

    def is_up(self, leased: Set[int]) -> bool:
        if self.role in LEASED:
            return self.pid in leased
        return time.monotonic() - self.born_at > UP_S

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.born_at = time.monotonic()
        self.paused_until = self.start_at = 0.0

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, limit_s: float) -> int:
        assert self.process is not None
        return self.process.wait(limit_s)


class Processes:
    """`commands` of each role. `store_away_since(at)`: whether the store was out of reach at some time since,
    so that a process that started then may have ended for it."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[Sequence[str]]],
        folder: Path,
        *,
        store_away_since: Callable[[float], bool],
    ) -> None:
        self._members = [
            Member(role, command, folder / f"{role}-{number}.log")
            for role, several in commands.items()
            for number, command in enumerate(several)
        ]
        self._store_away_since = store_away_since
        self.problems: list[str] = []

    def start(self) -> None:
        for member in self._members:
            member.start()

    def pick(self, role: str, which: float) -> Member | None:
        """One that runs, by a number in [0, 1)."""
        able = [member for member in self._members if member.role == role and member.runs]
        return able[int(which * len(able))] if able else None

    def kill(self, member: Member) -> None:
        member.signal(signal.SIGKILL)
        member.wait(STOP_S)
        member.start_at = time.monotonic() + AGAIN_S

    def pause(self, member: Member, lasts_s: float) -> None:
        member.signal(signal.SIGSTOP)
        member.paused_until = time.monotonic() + lasts_s

    def look(self) -> list[Member]:
        """Start and continue what it is time for, and see who ended by itself. Returns who was continued."""
        now = time.monotonic()
        continued = []
        for member in self._members:
            if member.start_at:
                if now >= member.start_at:
                    member.start()
            elif member.paused_until:
                if now >= member.paused_until:
                    member.signal(signal.SIGCONT)
                    member.paused_until = 0.0
                    continued.append(member)
            elif not member.runs:
                self._ended_by_itself(member)
        return continued

    def pids(self) -> set[int]:
        """Of those that have not ended."""
        return {member.pid for member in self._members if not member.start_at}

    def roles_up(self, leased: Set[int]) -> set[str]:
        """The roles that somebody fills: one that runs, and has a lease where its role has one."""
        return {member.role for member in self._members if member.runs and member.is_up(leased)}

    def all_run(self) -> bool:
        return all(member.runs for member in self._members)

    def stop(self, *roles: str) -> None:
        """Ask for a graceful end, and see that it is one."""
        asked = [member for member in self._members if member.role in roles]
        for member in asked:
            member.signal(signal.SIGTERM)
        for member in asked:
            try:
                code = member.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.problems.append(f"{member.role} did not end within {STOP_S:.0f} s when it was asked to")
            else:
                self._members.remove(member)
                if code:
                    self.problems.append(f"{member.role} ended with exit code {code} when it was asked to")

    def close(self) -> None:
        """None of them outlives the run."""
        for member in self._members:
            if member.process is not None and member.process.poll() is None:
                member.signal(signal.SIGKILL)  # ends a stopped one too
                member.wait(STOP_S)

    def _ended_by_itself(self, member: Member) -> None:
        code = member.wait(STOP_S)
        if code != STORE_AWAY or not self._store_away_since(member.born_at):
            self.problems.append(f"{member.role} ended by itself with exit code {code}")
        member.start_at = time.monotonic() + AGAIN_S


def count_told(folder: Path, event: str, by: str) -> Counter[str]:
    """How often an event is in the logs of all processes, by one of its fields."""
    return Counter(str(line.get(by, "")) for line in _told(folder) if line.get("event") == event)


def _told(folder: Path) -> Iterator[Mapping[str, Any]]:
    for log in sorted(folder.glob("*.log")):
        for line in log.read_text("utf-8", "replace").splitlines():
            if line.startswith("{"):
                with suppress(ValueError):  # a process was killed while it wrote
                    yield json.loads(line)


def sendonce(config: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "sendonce", "--config", str(config), *words]


def _environment() -> dict[str, str]:
    """Nothing of the caller's settings reaches the processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_")}
