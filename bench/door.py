"""The provider's side: takes every message after a fixed latency and knows what arrived, and when.

Two of them. `cheap_door` is a C program, built when it is needed, for measurements in which a provider
written in Python would itself be the limit; where there is no C compiler the sandbox takes its place
and the figures say so. `sandbox_door` is the sandbox that users have, with its limits and its 429s.
"""

from __future__ import annotations

import http.client
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from sendonce.testing.sandbox import ChannelRules, SandboxClient, SandboxSettings, sandbox_in_process

LATENCY_S: Final = 0.02
SECOND_US: Final = 1_000_000


class Call(NamedTuple):
    """One request at the door. Microseconds of a clock that does not step; `answered_at` 0: not yet.

    replayed  its idempotency key was known, so nothing new was taken
    marker    equal for calls that say the same; 0 where the door does not tell
    """

    arrived_at: int
    answered_at: int
    throttled: bool
    replayed: bool = False
    marker: int = 0


class Door(Protocol):
    """What a measurement asks of a provider."""

    url: str
    process: int | None
    """Whose CPU time is the provider's; None where it is not known."""

    def count(self) -> int:
        """Requests so far; cheap enough to ask fifty times a second."""
        ...

    def calls(self) -> list[Call]:
        """Every request, in order of arrival."""
        ...

    def messages(self) -> int:
        """Different messages, told apart by what they say."""
        ...


def no_cheap_door() -> str:
    """Why the C program cannot be built here; "" where it can."""
    if not sys.platform.startswith("linux"):
        return f"the cheap door is a program for Linux, and this is {sys.platform}"
    return "" if shutil.which("cc") else "there is no C compiler (cc) to build the cheap door with"


@contextmanager
def cheap_door() -> Iterator[Door]:
    """A door that costs about 20 us a request, or the sandbox where it cannot be built."""
    why = no_cheap_door()
    if why:
        print(f"{why}: the sandbox is the provider, and its CPU time limits what is measured")
        with sandbox_door() as sandbox:
            yield sandbox
        return
    with counting_door() as door:
        yield door


@contextmanager
def counting_door(*, limit: int = 0, honours_keys: bool = False) -> Iterator[CountingDoor]:
    """The C program. `limit`: of messages in any sliding second, the rest get 429. `honours_keys`: a known
    idempotency key takes nothing new.
    """
    with tempfile.TemporaryDirectory(prefix="sendonce-bench-") as folder:
        program = Path(folder) / "door"
        source = Path(__file__).with_name("door.c")
        subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
        with subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                door = CountingDoor(int(process.stdout.readline()), process.pid)
                door.reset(LATENCY_S, limit=limit, honours_keys=honours_keys)
                yield door
            finally:
                process.stdin.close()  # it ends with its standard input


class CountingDoor:
    """The C program as a `Door`."""

    def __init__(self, port: int, process: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/messages"
        self.process: int | None = process
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def reset(self, latency_s: float = LATENCY_S, *, limit: int = 0, honours_keys: bool = False) -> None:
        latency_us = round(latency_s * SECOND_US)
        self._ask("POST", f"/reset?latency_us={latency_us}&limit={limit}&keys={int(honours_keys)}")

    def count(self) -> int:
        return int(self._ask("GET", "/count").split()[0])

    def taken(self) -> int:
        """How many different messages were taken; as cheap to ask as `count`."""
        return int(self._ask("GET", "/count").split()[1])

    def calls(self) -> list[Call]:
        return [
            Call(arrived // 1000, answered // 1000, status == 429, status == 200, marker)
            for arrived, answered, marker, status in struct.iter_unpack("<4Q", self._ask("GET", "/calls"))
        ]

    def messages(self) -> int:
        return self.taken()

    def _ask(self, method: str, target: str) -> bytes:
        self._connection.request(method, target)
        return self._connection.getresponse().read()


@contextmanager
def sandbox_door(**rules: Any) -> Iterator[SandboxDoor]:
    """The sandbox in a process of its own; `rules` of its text message channel."""
    channel = ChannelRules(latency_s=(LATENCY_S, LATENCY_S), **rules)
    with sandbox_in_process(SandboxSettings(sms=channel)) as client:
        yield SandboxDoor(client)


class SandboxDoor:
    """The sandbox as a `Door`."""

    process: int | None = None

    def __init__(self, client: SandboxClient) -> None:
        self.url = f"{client.http_url}/v1/messages"
        self._client = client

    def count(self) -> int:
        return int(self.report()["calls"])

    def calls(self) -> list[Call]:
        return [
            Call(row["at"], row["ended_at"] or 0, str(row["answer"]).startswith("throttled"))
            for row in self._client.arrivals()
            if row["channel"] == "sms"
        ]

    def messages(self) -> int:
        return int(self.report()["markers"])

    def report(self) -> Mapping[str, Any]:
        channel: Mapping[str, Any] = self._client.report()["channels"]["sms"]
        return channel

    def throttle_next(self) -> None:
        """Answer 429 to the next request, for no reason of its own."""
        self._client.change(sms={"throttle": {"next": 1}})


def clock_us() -> int:
    """Now, on the clock of the calls."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def rate_per_s(arrivals: Sequence[int]) -> float:
    """From the first to the last, in microseconds."""
    return (len(arrivals) - 1) / max(1, arrivals[-1] - arrivals[0]) * SECOND_US


def middle(arrivals: Sequence[int], share: float = 0.8) -> Sequence[int]:
    """Without the slow start and the thin end."""
    cut = int(len(arrivals) * (1 - share) / 2)
    return arrivals[cut : len(arrivals) - cut]
