"""The servers that peers stand on, each fresh, private to one round, on loopback, flushing to disk.

PostgreSQL runs with `fsync`, Redis with its append-only file flushed each second, as its peers recommend,
RabbitMQ with the durable queues and persistent messages that its peers ask for.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import psycopg

from bench.subject import SERVER_MB
from sendonce.testing.postgres_server import PostgresServer

START_S: Final = 60.0
END_S: Final = 20.0
TIDY: Final = "VACUUM (ANALYZE)"
_DEBIAN_RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin")  # what is on the path there changes the user first


@dataclass(frozen=True, slots=True)
class Service:
    """A running server.

    version      as it calls itself
    environment  what programs must know of it
    processes    whose CPU it is
    settle       does what a server does by itself, but not within the first minute
    tidy         does what very many new rows make it do minutes later
    count        the number that a question in its own language gives
    """

    version: str
    environment: Mapping[str, str]
    processes: tuple[int, ...]
    settle: Callable[[], None]
    tidy: Callable[[], None]
    count: Callable[[str], int]


def why_not(kind: str) -> str:
    """Why there is no such server here; "" where there is. PostgreSQL comes with the bench's environment."""
    if kind == "Redis" and shutil.which("redis-server") is None:
        return "there is no redis-server"
    if kind == "RabbitMQ" and (_rabbitmq("rabbitmq-server") is None or shutil.which("epmd") is None):
        return "there is no rabbitmq-server"
    return ""


@contextmanager
def service(kind: str) -> Iterator[Service]:
    """`PostgreSQL`, `Redis` or `RabbitMQ`."""
    start = {"PostgreSQL": _postgresql, "Redis": _redis, "RabbitMQ": _rabbitmq_node}[kind]
    with start() as running:
        yield running


@contextmanager
def _postgresql() -> Iterator[Service]:
    with PostgresServer(durable=True, memory_mb=SERVER_MB) as server:
        yield Service(
            postgresql_version(server),
            {"BENCH_DATABASE": server.url()},
            (server.pid,),
            partial(server.execute, "ANALYZE"),
            partial(server.execute, TIDY),
            lambda statement: int(_ask(server, statement)),
        )


def postgresql_version(server: PostgresServer) -> str:
    return _ask(server, "SHOW server_version").split()[0]


def _ask(server: PostgresServer, statement: str) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        assert row is not None, statement
        return str(row[0])


@contextmanager
def _redis() -> Iterator[Service]:
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    version = next(word.removeprefix("v=") for word in said.split() if word.startswith("v="))
    with tempfile.TemporaryDirectory(prefix="sendonce-bench-") as folder:
        port = _free_port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        command += ["--maxmemory-policy", "noeviction"]
        with _running(command, dict(os.environ), Path(folder)) as process:
            _wait_for_port(port, process)
            yield Service(
                version,
                {"BENCH_REDIS": f"redis://127.0.0.1:{port}/0"},
                (process.pid,),
                _nothing,
                _nothing,
                partial(_redis_number, port),
            )


def _redis_number(port: int, command: str) -> int:
    """What an inline command answers, as `:5` or `$1 5`."""
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
        connection.sendall(command.encode() + b"\r\n")
        with connection.makefile("rb") as answer:
            line = answer.readline()
            return int((answer.readline() if line.startswith(b"$") else line[1:]) or 0)


@contextmanager
def _rabbitmq_node() -> Iterator[Service]:
    """A node with a folder, a name server and ports of its own, so that it meets no other on the machine."""
    server = _rabbitmq("rabbitmq-server")
    assert server is not None
    with tempfile.TemporaryDirectory(prefix="sendonce-bench-") as folder:
        port, names_port, peers_port = _free_port(), _free_port(), _free_port()
        home = Path(folder)
        (home / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n", "ascii")
        (home / "environment").write_text("", "ascii")
        (home / "plugins").write_text("[].\n", "ascii")
        environment = {
            **os.environ,
            "HOME": folder,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names_port),
            "RABBITMQ_NODENAME": f"bench-{port}@localhost",
            "RABBITMQ_CONF_ENV_FILE": str(home / "environment"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_DIST_PORT": str(peers_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        names = ["epmd", "-port", str(names_port), "-address", "127.0.0.1"]
        with _running(names, environment, home) as epmd:
            _wait_for_port(names_port, epmd)
            with _running([str(server)], environment, home) as node:
                _wait_for_port(port, node)
                yield Service(
                    _rabbitmq_version(),
                    {"BENCH_RABBITMQ": f"amqp://guest:guest@127.0.0.1:{port}/"},
                    (node.pid,),
                    _nothing,
                    _nothing,
                    partial(_rabbitmq_messages, environment),
                )


def _rabbitmq_messages(environment: Mapping[str, str], queues: str) -> int:
    """All that the queues with these names hold, handed out or not."""
    command = [str(_rabbitmq("rabbitmqctl")), "-q", "list_queues", "name", "messages"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    rows = (line.split() for line in said.stdout.splitlines())
    return sum(int(row[1]) for row in rows if len(row) == 2 and row[0] in queues.split())


@cache
def _rabbitmq_version() -> str:
    command = [str(_rabbitmq("rabbitmqctl")), "version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return said.stdout.strip().splitlines()[-1]


def _rabbitmq(program: str) -> Path | None:
    if (_DEBIAN_RABBITMQ / program).exists():
        return _DEBIAN_RABBITMQ / program
    found = shutil.which(program)
    return Path(found) if found else None


@contextmanager
def _running(
    command: list[str], environment: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A program, with all that it starts, for as long as it is needed. Nobody wants what it stored."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(END_S)


def _nothing() -> None:
    """It has no such work."""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return
