"""What processes cost, and whether the machine had anything else to do.

CPU and memory are read from `/proc`, so measurements need Linux. A figure that was taken while others
used the machine is still shown, beside how many cores they used.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
QUIET_CORES: Final = 0.25
QUIET_LIMIT_S: Final = 20.0


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far, all its threads."""
    after_name = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS_PER_S


def tree(pid: int) -> list[int]:
    """A process and all that came from it and still run."""
    parents = {child: int(fields[1]) for child, fields in _stats().items()}
    found = [pid] if pid in parents else []
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found


def tree_cpu_s(pid: int) -> float:
    """The same for a process and all that came from it, those that have ended among them."""
    stats = _stats()
    family = (stats[member] for member in tree(pid) if member in stats)
    return sum(sum(map(int, fields[11:15])) for fields in family) / _TICKS_PER_S


def tree_peak_mb(pid: int) -> float:
    """The most resident memory that each of them ever had, added up."""
    total = 0.0
    for member in tree(pid):
        try:
            total += rss_mb(member, peak=True)
        except OSError:
            continue  # it has ended
    return total


def _stats() -> dict[int, list[str]]:
    """The fields of /proc/PID/stat after the name, of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = stat.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
    return found


def rss_mb(pid: int, *, peak: bool = False) -> float:
    """Resident memory now, or the most there ever was."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has ended")


def busy_s() -> float:
    """Seconds that all cores together were busy since the machine started."""
    values = [int(value) for value in Path("/proc/stat").read_text("ascii").split(maxsplit=9)[1:9]]
    return (sum(values) - values[3] - values[4]) / _TICKS_PER_S


def wait_until_quiet(limit_s: float = QUIET_LIMIT_S) -> None:
    """Wait, for a bounded time, until others leave the machine alone."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        before = busy_s()
        time.sleep(1.0)
        if busy_s() - before < QUIET_CORES:
            return


class Span:
    """A stretch of time and what these processes, and all others, used in it."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._begun = time.perf_counter()
        self._cpu_s = {pid: cpu_s(pid) for pid in self._pids}
        self._busy_s = busy_s()

    def end(self) -> None:
        self.took_s = time.perf_counter() - self._begun
        used = {pid: cpu_s(pid) - before for pid, before in self._cpu_s.items()}
        self.used_s = used
        self.others_cores = max(0.0, busy_s() - self._busy_s - sum(used.values())) / self.took_s


class MemorySampler:
    """Reads a process's memory ten times a second, beside whatever else is done."""

    def __init__(self, pid: int) -> None:
        self.samples: list[float] = []
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()

    def stop(self) -> list[float]:
        self._stop.set()
        self._thread.join()
        return self.samples

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            try:
                self.samples.append(rss_mb(self._pid))
            except OSError:
                return


def description() -> str:
    """The machine in a line, without its name."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores of {model}, {memory_gb:.0f} GB, {platform.system()} {platform.release()}, "
        f"Python {sys.version.split()[0]} ({_speed_s():.2f} s for 5 million steps of a loop), {_loop()}"
    )


def _speed_s() -> float:
    """What a plain loop takes: one interpreter of a version may be built for half the speed of another."""
    begun, total, kept = time.perf_counter(), 0, {}
    for n in range(5_000_000):
        kept[n & 1023] = (n, total)
        total += len(kept)
    return time.perf_counter() - begun


def _loop() -> str:
    try:
        return f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        return "asyncio"
