"""peers: the same work, done by what a user would pick instead, measured in the same run.

Each peer has a program of its own in `programs/`, written as its documentation recommends for throughput,
which speaks three verbs: `setup`, `enqueue N` and `work`. It runs in an environment of its own in `.bench/`,
made from the network when it is first measured. What cannot be had on a machine (Redis, Node, the network)
is said and left out; nothing is guessed.

All of them send to the same door, which takes 20 ms, with the databases flushing to disk: PostgreSQL with
`fsync`, Redis with its append-only file each second, as its peers recommend. None of the peers keeps a
ledger, asks for consent, or limits a rate here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import drain, machine
from bench.door import Door, cheap_door, rate_per_s
from bench.measurement import Figure, Measurement, Scale
from bench.subject import SERVER_MB
from sendonce.testing.postgres_server import PostgresServer

PROGRAMS: Final = Path(__file__).with_name("programs")
ENVIRONMENTS: Final = Path(".bench").absolute()


@dataclass(frozen=True, slots=True)
class Peer:
    """A system to compare with.

    packages     what its environment holds, pinned
    store        "postgresql" or "redis"
    count        how many deliveries: enough for seconds, few enough for the slow ones
    concurrency  calls at once, as was found best for it
    """

    name: str
    packages: tuple[str, ...]
    store: str
    count: int
    concurrency: int

    @property
    def is_node(self) -> bool:
        return self.name == "bullmq"


PEERS: Final = (
    Peer("pgqueuer", ("pgqueuer[asyncpg]==1.6.0", "aiohttp==3.14.5", "uvloop"), "postgresql", 10_000, 400),
    Peer(
        "procrastinate",
        ("procrastinate==3.10.0", "psycopg[binary]", "aiohttp==3.14.5", "uvloop"),
        "postgresql",
        2_000,
        100,
    ),
    Peer("celery", ("celery[redis]==5.7.0", "urllib3==2.8.0"), "redis", 3_000, 32),
    Peer("dramatiq", ("dramatiq[redis]==2.2.1", "urllib3==2.8.0"), "redis", 5_000, 64),
    Peer("bullmq", ("bullmq@6.7.0", "ioredis@6.0.0", "undici@6.21.3"), "redis", 20_000, 200),
)

FIGURES: Final = (
    Figure("own_rate", "/s", "sendonce: deliveries a second, one worker"),
    Figure("own_cpu", "s", "sendonce: CPU per 1,000, worker and database", digits=3),
    *(
        figure
        for peer in PEERS
        for figure in (
            Figure(f"{peer.name}_enqueue", "/s", f"{peer.name}: enqueued a second, nothing validated"),
            Figure(f"{peer.name}_rate", "/s", f"{peer.name}: deliveries a second, one worker"),
            Figure(f"{peer.name}_cpu", "s", f"{peer.name}: CPU per 1,000, worker and {peer.store}", digits=3),
        )
    ),
    Figure("rate_ratio", "x", "sendonce's rate to the best peer's", digits=2, at_least=2.0),
    Figure("cpu_ratio", "x", "sendonce's CPU to the best peer's", digits=2, at_most=0.5),
)


def run(scale: Scale) -> Mapping[str, float]:
    own = drain.run(scale)
    figures = {"own_rate": own["rate"], "own_cpu": own["cpu"]}
    measured = []
    for peer in PEERS:
        why = _missing(peer)
        if why:
            print(f"{peer.name} is not measured: {why}", flush=True)
            continue
        machine.wait_until_quiet()
        figures |= {f"{peer.name}_{name}": value for name, value in _drained(peer).items()}
        measured.append(peer.name)
    if measured:
        figures["rate_ratio"] = own["rate"] / max(figures[f"{name}_rate"] for name in measured)
        figures["cpu_ratio"] = own["cpu"] / min(figures[f"{name}_cpu"] for name in measured)
    return figures


def _drained(peer: Peer) -> Mapping[str, float]:
    with ExitStack() as stack:
        door = stack.enter_context(cheap_door())
        service = stack.enter_context(_service(peer))
        environment = {
            **service.environment,
            "BENCH_URL": door.url,
            "BENCH_CONCURRENCY": str(peer.concurrency),
        }
        _run(peer, environment, "setup")
        said = _run(peer, environment, "enqueue", str(peer.count))
        service.settle()
        worker = stack.enter_context(_worker(peer, environment))
        figures = _timed(door, worker, service.process, peer.count)
        return {"enqueue": json.loads(said.splitlines()[-1])["rate"], **figures}


def _timed(door: Door, worker: int, server: int, count: int) -> Mapping[str, float]:
    drain.wait_for(door, 1)
    first, before = door.count(), machine.tree_cpu_s(worker) + machine.tree_cpu_s(server)
    drain.wait_for(door, count)
    time.sleep(0.3)  # the last outcomes are written
    used = machine.tree_cpu_s(worker) + machine.tree_cpu_s(server) - before
    arrivals = [call.arrived_at for call in door.calls()]
    return {"rate": rate_per_s(arrivals), "cpu": used / (len(arrivals) - first) * 1_000}


# Environments and services


def _missing(peer: Peer) -> str:
    """Why it cannot be measured here; "" where it can."""
    if peer.store == "redis" and shutil.which("redis-server") is None:
        return "there is no redis-server"
    if peer.is_node and (shutil.which("node") is None or shutil.which("npm") is None):
        return "there is no Node"
    try:
        _environment(peer)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(_folder(peer), ignore_errors=True)
        return f"its packages cannot be had: {(error.stderr or '').strip().splitlines()[-1:]}"
    return ""


def _folder(peer: Peer) -> Path:
    return ENVIRONMENTS / peer.name


def _environment(peer: Peer) -> None:
    """Make it once."""
    folder = _folder(peer)
    done = folder / ".packages"
    if done.exists() and done.read_text("utf-8") == " ".join(peer.packages):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if peer.is_node:
        _quietly("npm", "init", "-y", cwd=folder)
        _quietly("npm", "install", "--no-audit", "--no-fund", *peer.packages, cwd=folder)
    else:
        _quietly(sys.executable, "-m", "venv", str(folder), cwd=folder)
        _quietly(str(folder / "bin" / "pip"), "install", "--quiet", *peer.packages, cwd=folder)
    done.write_text(" ".join(peer.packages), "utf-8")


def _quietly(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)


@dataclass(frozen=True, slots=True)
class _Service:
    """environment  what its program must know of it
    process      whose CPU it is
    settle       what a server does by itself, but not within the first minute
    """

    environment: Mapping[str, str]
    process: int
    settle: Callable[[], None]


@contextmanager
def _service(peer: Peer) -> Iterator[_Service]:
    """Its store, fresh."""
    if peer.store == "postgresql":
        with PostgresServer(durable=True, memory_mb=SERVER_MB) as server:
            yield _Service({"BENCH_DATABASE": server.url()}, server.pid, lambda: server.execute("ANALYZE"))
        return
    with tempfile.TemporaryDirectory(prefix="sendonce-bench-") as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                _wait_for_port(port)
                yield _Service({"BENCH_REDIS": f"redis://127.0.0.1:{port}/0"}, process.pid, lambda: None)
            finally:
                process.terminate()


def _wait_for_port(port: int) -> None:
    until = time.monotonic() + 10.0
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return


def _command(peer: Peer, *verb: str) -> list[str]:
    if peer.is_node:
        return ["node", str(PROGRAMS / f"{peer.name}_program.mjs"), *verb]
    return [str(_folder(peer) / "bin" / "python"), str(PROGRAMS / f"{peer.name}_program.py"), *verb]


def _surroundings(peer: Peer, environment: Mapping[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        **environment,
        "BENCH_MODULES": str(_folder(peer)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(PROGRAMS),
    }


def _run(peer: Peer, environment: Mapping[str, str], *verb: str) -> str:
    done = subprocess.run(
        _command(peer, *verb),
        env=_surroundings(peer, environment),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    return done.stdout


@contextmanager
def _worker(peer: Peer, environment: Mapping[str, str]) -> Iterator[int]:
    with subprocess.Popen(
        _command(peer, "work"),
        env=_surroundings(peer, environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


MEASUREMENT: Final = Measurement(
    "peers", "one worker process each, provider at 20 ms, no rate limit", FIGURES, run, stores=("postgresql",)
)
