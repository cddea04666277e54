"""Brokers of one's own, for tests: RabbitMQ, NATS and an SQS, each on a free port with a folder of its own.

    with Rabbitmq() as server:
        server.url
        server.kill()       # at once, as a machine dies; its folder stays
        server.start()

They are the programs that the machine has (a distribution's packages); none that runs already is touched.
Each ends with the block, and when the process that started it is gone.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Final, Self

START_S: Final = 90.0
LOOK_S: Final = 0.05
# Ends the server when its own input ends, which happens when whoever started it is gone.
_WATCH: Final = '"$@" <&- & server=$!; read -r _; kill -s KILL -- "-$$"; wait "$server"'


class Missing(Exception):
    """A program is not on this machine; the text says what to install."""


class Server:
    """A program in the background. A subclass says what to start, and when it is up."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sendonce-broker-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = (self.folder / "log").open("ab")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def surroundings(self) -> dict[str, str]:
        return {}

    def is_up(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Returns when it answers."""
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", *self.command()],
            env={**os.environ, **self.surroundings()},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        until = time.monotonic() + START_S
        while not self.is_up():
            if self._process.poll() is not None or time.monotonic() > until:
                said = (self.folder / "log").read_text(errors="replace")[-2_000:]
                raise RuntimeError(f"{type(self).__name__} did not start:\n{said}")
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """End it at once, and everything that it started."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def close(self) -> None:
        self.kill()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Rabbitmq(Server):
    """RabbitMQ: one node, with a name service of its own."""

    PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    CONTROL: Final = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")

    def __init__(self) -> None:
        if not self.PROGRAM.exists():
            raise Missing("RabbitMQ: `apt-get install rabbitmq-server`")
        super().__init__()
        self._names_port, self._dist_port = free_port(), free_port()
        self._node = f"sendonce-{secrets.token_hex(4)}@localhost"
        (self.folder / "env.conf").write_text("")
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nloopback_users = none\n"
            # A node that was killed flushed nothing that it had not confirmed; it need not look twice.
            "disk_free_limit.absolute = 1MB\n"
        )

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def command(self) -> list[str]:
        epmd = next(iter(sorted(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))), None)
        names = f"{epmd} -address 127.0.0.1 -port {self._names_port} & " if epmd else ""
        return ["/bin/sh", "-c", f"{names}exec {self.PROGRAM}"]

    def surroundings(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }

    def is_up(self) -> bool:
        return speaks(self.port, b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00")

    def control(self, *arguments: str) -> str:
        """`rabbitmqctl`."""
        done = subprocess.run(
            [str(self.CONTROL), "--node", self._node, *arguments],
            env={**os.environ, **self.surroundings()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class Nats(Server):
    """NATS with JetStream."""

    def __init__(self, *, jetstream: bool = True, users: str = "") -> None:
        program = shutil.which("nats-server")
        if program is None:
            raise Missing("NATS: `apt-get install nats-server`")
        super().__init__()
        self._program = program
        stream = f'jetstream {{ store_dir: "{self.folder}/data" }}\n' if jetstream else ""
        (self.folder / "nats.conf").write_text(f"listen: 127.0.0.1:{self.port}\n{stream}{users}\n")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [self._program, "-c", str(self.folder / "nats.conf")]

    def is_up(self) -> bool:
        return speaks(self.port, b"", b"INFO")


class Sqs(Server):
    """What `moto` makes of SQS. It keeps nothing: killed, it begins anew with no queue."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        program = Path(sys.executable).with_name("moto_server")
        return [str(program), "-H", "127.0.0.1", "-p", str(self.port)]

    def is_up(self) -> bool:
        return speaks(self.port, b"GET /moto-api/ HTTP/1.0\r\n\r\n", b"HTTP/1")


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def speaks(port: int, greeting: bytes, answer: bytes) -> bool:
    """Whether what listens there answers a greeting as it should begin."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as line:
            line.settimeout(2.0)
            line.sendall(greeting)
            return line.recv(len(answer)) == answer
    except OSError:
        return False


def main() -> None:
    """Say what is missing on this machine, and fail where anything is."""
    missing = []
    for make in (Rabbitmq, Nats):
        try:
            make().close()
        except Missing as why:
            missing.append(str(why))
    if missing:
        sys.exit("test-brokers: install " + "; ".join(missing))


if __name__ == "__main__":
    main()
