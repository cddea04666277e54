"""A peer: a program in `bench/programs`, run in an environment of its own, as its documentation recommends.

A program speaks three verbs: `setup`, `enqueue COUNT FIRST DUE_AT SECONDS`, which says how many and how fast
as JSON, and `work`. What it must know comes in variables `BENCH_*`. Its environment is made in `.bench/`,
from the network, when it is first measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import machine
from bench.peers.contender import Enqueued, Sizes, Work, Worker
from bench.peers.service import Service, service
from bench.peers.service import why_not as service_missing

PROGRAMS: Final = Path(__file__).parent.with_name("programs")
ENVIRONMENTS: Final = Path(".bench").absolute()
INSTALL_S: Final = 600.0
SETUP_S: Final = 120.0
ROUNDS: Final = ("drain", "pace", "kill", "future")


@dataclass(frozen=True, slots=True)
class Peer:
    """A system to compare with.

    program        its file in `programs/`, without the ending, and its environment's name
    packages       what the environment holds, pinned, the peer itself first
    server         what it stands on, and `limiter_server` what its limiter needs besides
    left           questions to the server whose numbers add up to what is open
    concurrency    calls at once in a process, as was found best for it
    limiter        how it holds a limit
    """

    name: str
    called: str
    program: str
    packages: tuple[str, ...]
    server: str
    left: tuple[str, ...]
    concurrency: int
    sizes: Sizes
    limiter: str
    limiter_server: str = ""
    is_ours: bool = False
    rounds: tuple[str, ...] = ROUNDS

    @property
    def title(self) -> str:
        version = self.packages[0].replace("==", "@").rpartition("@")[2]
        return f"{self.called} {version} on {self.server}"

    @property
    def is_node(self) -> bool:
        return (PROGRAMS / f"{self.program}_program.mjs").exists()

    def why_not(self, work: Work) -> str:
        for kind in self._servers(work):
            if why := service_missing(kind):
                return why
        if self.is_node and (shutil.which("node") is None or shutil.which("npm") is None):
            return "there is no Node"
        try:
            self._install()
        except (subprocess.SubprocessError, OSError) as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            return f"its packages cannot be had: {said[-1] if said else type(error).__name__}"
        return ""

    @contextmanager
    def field(self, work: Work) -> Iterator[PeerField]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sendonce-bench-")))
            services = {kind: stack.enter_context(service(kind)) for kind in self._servers(work)}
            field = PeerField(self, work, services, folder)
            stack.callback(field.end)
            field.run("setup")
            yield field

    def command(self, *verb: str) -> list[str]:
        if self.is_node:
            return ["node", str(PROGRAMS / f"{self.program}_program.mjs"), *verb]
        return [str(self._folder / "bin" / "python"), str(PROGRAMS / f"{self.program}_program.py"), *verb]

    @property
    def _folder(self) -> Path:
        return ENVIRONMENTS / self.program

    def environment(self, work: Work, services: Mapping[str, Service]) -> dict[str, str]:
        facts = {
            "BENCH_URL": work.url,
            "BENCH_CONCURRENCY": str(self.concurrency),
            "BENCH_WORKERS": str(work.workers),
            "BENCH_LIMIT": str(work.limit),
            "BENCH_LEASE_S": str(work.lease_s),
            "BENCH_TIMED": str(int(work.timed)),
            "BENCH_MODULES": str(self._folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(PROGRAMS),
        }
        for running in services.values():
            facts |= running.environment
        return {**os.environ, **facts}

    def _servers(self, work: Work) -> tuple[str, ...]:
        needs_more = work.limit and self.limiter_server
        return (self.server, self.limiter_server) if needs_more else (self.server,)

    def _install(self) -> None:
        """Make its environment, once for each list of packages."""
        folder, wanted = self._folder, " ".join(self.packages)
        done = folder / ".packages"
        if done.exists() and done.read_text("utf-8") == wanted:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if self.is_node:
            _quietly("npm", "init", "-y", cwd=folder)
            _quietly("npm", "install", "--no-audit", "--no-fund", *self.packages, cwd=folder)
        else:
            _quietly(sys.executable, "-m", "venv", str(folder), cwd=folder)
            _quietly(str(folder / "bin" / "pip"), "install", "--quiet", *self.packages, cwd=folder)
        done.write_text(wanted, "utf-8")


class PeerField:
    """A peer with fresh servers."""

    def __init__(self, peer: Peer, work: Work, services: Mapping[str, Service], folder: Path) -> None:
        self.servers = {kind: running.version for kind, running in services.items()}
        self._peer = peer
        self._services = services
        self._folder = folder
        self._environment = peer.environment(work, services)
        self._workers: dict[int, Worker] = {}

    def enqueue(self, count: int, *, first: int = 0, due_at: float = 0.0, seconds: float = 600.0) -> Enqueued:
        said = self.run(
            "enqueue", str(count), str(first), f"{due_at:.3f}", str(seconds), timeout_s=seconds + SETUP_S
        )
        for running in self._services.values():
            running.settle()
        told = json.loads(said.splitlines()[-1])
        return Enqueued(told["count"], told["rate"])

    def start(self, number: int) -> Worker:
        self._workers[number] = Worker(
            self._peer.command("work"),
            environment={**self._environment, "BENCH_WORKER": str(number)},
            folder=self._folder,
            log=self._folder / f"worker-{number}.log",
        )
        return self._workers[number]

    def server_cpu_s(self) -> float:
        processes = [process for running in self._services.values() for process in running.processes]
        return sum(machine.tree_cpu_s(process) for process in processes)

    def tidy(self) -> None:
        for running in self._services.values():
            running.tidy()

    def left(self) -> int:
        count = self._services[self._peer.server].count
        return sum(count(question) for question in self._peer.left)

    def remarks(self) -> Sequence[str]:
        return []

    def run(self, *verb: str, timeout_s: float = SETUP_S) -> str:
        """What the program says to a verb that ends by itself. Raises `RuntimeError` with its last line."""
        done = subprocess.run(
            self._peer.command(*verb),
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if done.returncode:
            raise RuntimeError(f"{verb[0]}: {(done.stderr.strip() or 'it wrote nothing').splitlines()[-1]}")
        return done.stdout

    def end(self) -> None:
        for worker in self._workers.values():
            worker.kill()


def _quietly(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=INSTALL_S)


_ASYNC: Final = ("aiohttp==3.14.5", "uvloop==0.23.0")
_REDIS_LIST: Final = "LLEN bull:reminders:{}"
_DRAMATIQ: Final = ("dramatiq[rabbitmq,redis]==2.2.1", "urllib3==2.8.0")

PEERS: Final = (
    Peer(
        "pgqueuer",
        "PgQueuer",
        "pgqueuer",
        ("pgqueuer[asyncpg]==1.6.0", *_ASYNC),
        "PostgreSQL",
        ("SELECT count(*) FROM pgqueuer",),
        400,
        Sizes(drain=8_000, kill=6_000, due=3_000),
        "none; a 429 puts a job off by a second",
    ),
    Peer(
        "procrastinate",
        "Procrastinate",
        "procrastinate",
        ("procrastinate==3.10.0", "psycopg[binary]==3.3.9", *_ASYNC),
        "PostgreSQL",
        ("SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'send' AND status IN ('todo', 'doing')",),
        100,
        Sizes(drain=1_000, kill=800, due=400),
        "none; a 429 puts a job off by a second",
    ),
    Peer(
        "celery",
        "Celery",
        "celery",
        ("celery[redis]==5.7.0", "urllib3==2.8.0"),
        "Redis",
        ("LLEN celery", "HLEN unacked"),
        32,
        Sizes(drain=1_500, kill=1_200, due=500),
        "`rate_limit` of a process: half the limit each; a 429 puts a task off by a second",
    ),
    Peer(
        "dramatiq",
        "Dramatiq",
        "dramatiq",
        _DRAMATIQ,
        "RabbitMQ",
        ("reminders reminders.DQ",),
        64,
        Sizes(drain=3_000, kill=2_500, due=800),
        "`WindowRateLimiter` in Redis; what it refuses is put off by 0.5 to 2 s",
        limiter_server="Redis",
    ),
    Peer(
        "dramatiq-redis",
        "Dramatiq",
        "dramatiq",
        _DRAMATIQ,
        "Redis",
        ("HLEN dramatiq:reminders.msgs", "HLEN dramatiq:reminders.DQ.msgs"),
        64,
        Sizes(drain=3_000, kill=2_500, due=800),
        "`WindowRateLimiter` in Redis; what it refuses is put off by 0.5 to 2 s",
    ),
    Peer(
        "bullmq",
        "BullMQ",
        "bullmq",
        ("bullmq@6.7.0", "ioredis@6.0.0", "undici@6.21.3"),
        "Redis",
        (
            _REDIS_LIST.format("wait"),
            _REDIS_LIST.format("active"),
            "ZCARD bull:reminders:delayed",
        ),
        200,
        Sizes(drain=10_000, kill=7_000, due=3_000),
        "`limiter` of the queue, all processes together; a 429 stops it for a second",
    ),
    Peer(
        "dbos",
        "DBOS",
        "dbos",
        ("dbos==3.4.0", "psycopg[binary]==3.3.9", "aiohttp==3.14.5"),
        "PostgreSQL",
        ("SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED')",),
        100,
        Sizes(drain=400, kill=400, due=150),
        "`limiter` of the queue, all processes together; a 429 puts a step off by a second",
    ),
)
