"""A run over brokers: a scheduler and two workers as real processes, a sandbox that counts, and whatever is
done to the brokers meanwhile.

    with town(tmp_path, [nats], rate=100) as it:
        it.schedule(1_000)
        it.work_until(300)            # so many taken by the provider
        nats.kill()
        ...
        it.finish()                   # everything has ended; nothing lost, nothing twice

The long form (SENDONCE_BROKER_RUNS=long, `make brokers-long`) is the one of the numbers that are promised.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from sendonce.app import App
from sendonce.client import Client
from sendonce.config import load
from sendonce.core.lifecycle import State
from sendonce.pipeline.verify import verify
from sendonce.testing.sandbox import ChannelRules, SandboxClient, SandboxSettings, sandbox_in_process
from sendonce.testing.tally import tally
from tests.brokers.servers import Nats, Rabbitmq, Server, Sqs
from tests.integration.service import add_template, configure

LONG: Final = os.environ.get("SENDONCE_BROKER_RUNS") == "long"
WITHIN_S: Final = 1_800.0 if LONG else 300.0
LOOK_S: Final = 0.1
LANES: Final = 40


@dataclass
class Town:
    """What runs, and what was asked for."""

    folder: Path
    config: Path
    app: App
    sandbox: SandboxClient
    environment: dict[str, str]
    scheduled: int = 0

    def schedule(self, count: int) -> None:
        """Due now."""
        numbers = range(self.scheduled, self.scheduled + count)
        results = Client.of(self.app).schedule(
            {
                "reminder": f"shipment-{number}",
                "customer": f"customer-{number}",
                "due": "now",
                "template": "shipment",
                "phone": f"+1202555{number % 10_000:04}",
            }
            for number in numbers
        )
        assert all(result.ok for result in results), results[0]
        self.scheduled += count

    @property
    def taken(self) -> int:
        report: dict[str, Any] = self.sandbox.report()
        return int(report["channels"]["sms"]["effects"])

    def work_until(self, taken: int) -> None:
        self.wait(lambda: self.taken >= taken, f"{taken} are taken")

    def wait(self, true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + WITHIN_S
        while not true():
            assert time.monotonic() < until, f"it takes too long until {what}: {self.story()}"
            time.sleep(LOOK_S)

    def story(self) -> str:
        logs = "".join(
            f"\n{log.name}: {log.read_text('utf-8', 'replace')[-1_500:]}" for log in self.folder.glob("*.log")
        )
        return f"{self.taken} of {self.scheduled} taken, {dict(self.states())}{logs}"

    def states(self) -> Counter[State]:
        rows = self.app.store.read(lambda tx: tx.rows("view_demo_states"))
        return Counter(State(str(row["state"])) for row in rows)

    def command(self, *words: str) -> str:
        """A command of ours, as an operator gives it."""
        done = subprocess.run(
            [sys.executable, "-m", "sendonce", "--config", str(self.config), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def finish(self) -> None:
        """Wait until everything has ended, and count at the provider's door."""
        self.wait(lambda: self.states()[State.ACCEPTED] == self.scheduled, "everything has ended")
        effects = self.sandbox.effects()
        counted = self.app.store.read(lambda tx: tally(tx.rows("view_demo_states"), effects))
        assert list(counted.problems()) == []
        assert (counted.lost, counted.duplicates) == (0, 0)
        assert len(counted.taken) == self.scheduled
        assert not verify(self.app.store).faults
        # No call failed and no worker died, so each delivery was called for once.
        assert len(self.sandbox.arrivals()) == self.scheduled

    def claims(self) -> Counter[str]:
        """What claims were made by: "hint" or "store"."""
        with closing(apsw.Connection(str(self.folder / "s.db"), apsw.SQLITE_OPEN_READONLY)) as reader:
            bodies = reader.execute("SELECT body FROM ledger WHERE event = 'claimed'").fetchall()
        return Counter("hint" if "hint" in json.loads(str(body)) else "store" for (body,) in bodies)

    def told(self, event: str) -> int:
        """How often the processes told of it."""
        return sum(log.read_text("utf-8", "replace").count(f'"{event}"') for log in self.folder.glob("*.log"))


@contextmanager
def town(folder: Path, servers: Sequence[Server], *, rate: int, take_over: str = "1h") -> Iterator[Town]:
    """The first of the servers carries hints; a second one is the standby. `rate`: a second."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_")}
    with ExitStack() as stack:
        rules = ChannelRules(rate_limit=0, concurrency_limit=0)
        sandbox = stack.enter_context(sandbox_in_process(SandboxSettings(seed=1, sms=rules)))
        config = configure(
            folder / "sendonce.toml",
            f"sqlite:///{folder}/s.db",
            sandbox.http_port,
            rate=rate,
            lanes=LANES,
        )
        with config.open("a", encoding="utf-8") as out:
            for number, server in enumerate(servers):
                out.write(_table(server, number, take_over))
                environment[f"BROKER_{number}"] = server.url
        app = stack.enter_context(App(load(config, environ=environment)))
        add_template(app)
        it = Town(folder, config, app, sandbox, environment)
        stack.enter_context(_processes(it))
        yield it


@contextmanager
def _processes(it: Town) -> Iterator[None]:
    with ExitStack() as stack:
        for role, name in (("scheduler", "scheduler"), ("worker", "worker-1"), ("worker", "worker-2")):
            log = stack.enter_context((it.folder / f"{name}.log").open("wb"))
            started = subprocess.Popen(
                [sys.executable, "-m", "sendonce", "--config", str(it.config), role],
                env=it.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            stack.callback(_end, started)
        yield


def _end(started: subprocess.Popen[bytes]) -> None:
    """Gracefully, which is part of what is tried."""
    started.terminate()
    try:
        code = started.wait(60)
    finally:
        started.kill()
    assert code == 0, f"a process ended with {code}"


def _table(server: Server, number: int, take_over: str) -> str:
    heading = "[transport.standby]" if number else f'[transport]\ntake_over = "{take_over}"'
    match server:
        case Rabbitmq():
            return f'\n{heading}\nkind = "rabbitmq"\nurl = "env:BROKER_{number}"\n'
        case Nats():
            own = f'kind = "nats"\nurl = "env:BROKER_{number}"\nredeliver = "5s"\n'
            return f"\n{heading}\n{own}"
        case Sqs():
            return (
                f'\n{heading}\nkind = "sqs"\nurl = "env:BROKER_{number}"\nregion = "eu-west-1"\n'
                'access_key_id = "testing0"\nsecret_access_key = "env:HOME"\nallow_plain_http = true\n'
                'redeliver = "5s"\n'
            )
        case _:
            raise AssertionError(server)
