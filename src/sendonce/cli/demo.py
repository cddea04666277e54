"""`sendonce demo`: everything that goes wrong, once, on this machine, and a count at the provider's door.

A sandbox stands in for two providers: real SMTP and a real HTTP API, with limits, 429s and lost
responses. Two files of reminders come in, a scheduler and two workers send them as processes of their
own, and one worker is killed on the way. At the end what the sandbox took is held against the ledger:
by a marker inside each message, never by our own key.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.live import Live

from sendonce import config
from sendonce.app import App
from sendonce.cli.exits import Exit
from sendonce.cli.progress import Look, Watch, lines_of, live_table
from sendonce.cli.shell import Shell, command
from sendonce.core.errors import InvalidInput
from sendonce.core.lifecycle import State
from sendonce.core.reminder import COLUMNS
from sendonce.pipeline import cancel, consent, importer, templates
from sendonce.pipeline.intake import Verdict
from sendonce.table_file import Row, TableFile
from sendonce.testing.sandbox import (
    ChannelRules,
    RecipientRule,
    Refusal,
    RetryAfter,
    SandboxClient,
    SandboxSettings,
    Trigger,
    sandbox_in_process,
)
from sendonce.testing.tally import Tally, tally

BOUND_S: Final = 85.0
KILL_AT: Final = 0.3
"""The share of accepted deliveries at which one of the two workers is killed."""
LOOK_S: Final = 0.25
ACTOR: Final = "demo"
PAID: Final = "paid-meanwhile"


def add_to(app: typer.Typer) -> None:
    command(app, rich_help_panel="Try it")(demo)


def demo(
    shell: Shell,
    examples: Annotated[Path, typer.Option(help="The folder with the example files.")] = Path("examples"),
    folder: Annotated[Path, typer.Option(help="Where the demo keeps its store; made anew.")] = Path(".demo"),
) -> Exit:
    """Send about 1,000 reminders to a sandbox through limits, 429s, lost responses and a killed worker."""
    if not (examples / "shipments.csv").exists():
        raise InvalidInput(
            f"{examples} holds no shipments.csv: run the demo in a clone of the project, or name the folder "
            "with --examples",
            field="--examples",
        )
    with sandbox_in_process(_sandbox()) as sandbox:
        path = _fresh(folder, sandbox)
        settings = config.load(path, environ=os.environ)
        with App(settings) as app:
            run = _Run(shell, app, sandbox, path, examples)
            return run.all()


def _sandbox() -> SandboxSettings:
    """The providers' limits, a little above our pace, and what goes wrong at them."""
    return SandboxSettings(
        seed=1,
        sms=ChannelRules(
            rate_limit=25,
            concurrency_limit=6,
            latency_s=(0.02, 0.06),
            throttle=Trigger(every=140),
            retry_after=RetryAfter.SECONDS,
            retry_after_s=1,
            lost_after=Trigger(every=60),
            recipients=(
                RecipientRule(pattern="555010[12]$", refusal=Refusal.OPTED_OUT),
                RecipientRule(pattern="555017[5]$", refusal=Refusal.BLOCKED),
            ),
        ),
        email=ChannelRules(
            rate_limit=40,
            concurrency_limit=8,
            latency_s=(0.02, 0.06),
            throttle=Trigger(every=180),
            lost_after=Trigger(every=120),
            recipients=(
                RecipientRule(pattern="^zo", refusal=Refusal.INVALID),
                RecipientRule(pattern="^grace", refusal=Refusal.MAILBOX_FULL),
            ),
        ),
    )


def _fresh(folder: Path, sandbox: SandboxClient) -> Path:
    """An empty folder with the demo's configuration. Only ever a folder that the demo itself made."""
    path = folder / "sendonce.toml"
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "demo.db").exists():
            raise InvalidInput(f"{folder} holds other files than the demo's: name another --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = files("sendonce.cli").joinpath("demo_sendonce.toml").read_text("utf-8")
    text = text.replace("{smtp_port}", str(sandbox.smtp_port)).replace("{http_port}", str(sandbox.http_port))
    path.write_text(text, "utf-8")
    return path


@dataclass(frozen=True, slots=True)
class _Count:
    """What came out, by delivery, and what the sandbox saw."""

    reminders: int
    tally: Tally
    wrong: tuple[str, ...]


class _Run:
    def __init__(self, shell: Shell, app: App, sandbox: SandboxClient, path: Path, examples: Path) -> None:
        self._screen = shell.screen
        self._app = app
        self._sandbox = sandbox
        self._path = path
        self._examples = examples
        self._kills = 0
        self._open_at_kill: Counter[str] = Counter()

    def all(self) -> Exit:
        self._take_in()
        watch = Watch(self._app.store, self._app.policy)
        finished = self._send(watch)
        count = self._count()
        return self._tell(count, finished=finished)

    def _take_in(self) -> None:
        """Templates, opt-outs, the two files, and a customer who paid."""
        app, say = self._app, self._screen.say
        for name in ("shipment", "loan-payment"):
            templates.add(app.store, self._examples / "templates", name, actor=ACTOR)
        with (self._examples / "opt-outs.csv").open("rb") as lines:
            now = app.clock.now()
            records = [
                consent.record_of(row.values, app.policy, now=now)
                for row in TableFile(lines, consent.COLUMNS, lists=())
                if isinstance(row, Row)
            ]
        opted_out = consent.record(app.store, records, policy=app.policy, actor=ACTOR)
        say(f"opt-outs.csv: {opted_out.new} addresses must not be written to")
        for file in ("shipments.csv", "loan-payments.csv"):
            with (self._examples / file).open("rb") as lines:
                report = importer.import_rows(
                    app.store,
                    app.policy,
                    TableFile(lines, COLUMNS),
                    actor=ACTOR,
                    file=file,
                    source=file,
                    book=app.book,
                )
            accepted, invalid = report.count(Verdict.ACCEPTED), report.count(Verdict.INVALID)
            say(f"{file}: {report.rows} rows, {accepted} reminders accepted, {invalid} invalid")
            for problem in report.problems[:3]:
                say(f"  {problem}", style="dim")
        paid = cancel.cancel(
            app.store,
            cancel.Selection(cancel.By.GROUP, PAID),
            policy=app.policy,
            reason="paid",
            actor=ACTOR,
        )
        say(f"cancelled: {paid.changed} deliveries of loans that were paid meanwhile")

    def _send(self, watch: Watch) -> bool:
        """Run the processes until nothing is left to do; whether that was within the bound."""
        until = time.monotonic() + BOUND_S
        before: Look | None = None
        total = max(1, watch.look().left + self._scheduled())
        idle = 0
        with self._processes() as (first, start), self._display() as show:
            while time.monotonic() < until:
                now = watch.look()
                show(now, before)
                before = now
                accepted = sum(channel.happened.get("accepted", 0) for channel in now.channels)
                if not self._kills and accepted >= KILL_AT * total and any(c.sending for c in now.channels):
                    self._open_at_kill.update({c.channel.value: c.sending for c in now.channels})
                    first.kill()
                    self._kills += 1
                    start()
                idle = idle + 1 if now.left == 0 and self._scheduled() == 0 else 0
                if idle >= 3:
                    return True
                time.sleep(LOOK_S)
        return False

    @contextmanager
    def _processes(self) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
        running: list[subprocess.Popen[bytes]] = []

        def start(*words: str) -> subprocess.Popen[bytes]:
            command_ = [
                sys.executable,
                "-m",
                "sendonce",
                "--config",
                str(self._path),
                *(words or ("worker",)),
            ]
            log = (self._path.parent / f"{(words or ('worker',))[0]}-{len(running)}.log").open("wb")
            with log:
                process = subprocess.Popen(command_, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
            running.append(process)
            return process

        try:
            start("scheduler")
            first = start("worker")
            start("worker")
            yield first, start
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(15)
                if process.poll() is None:
                    process.kill()
                    process.wait()

    @contextmanager
    def _display(self) -> Iterator[Any]:
        screen = self._screen
        if not screen.live:
            told = 0.0

            def lines(now: Look, before: Look | None) -> None:
                nonlocal told
                if time.monotonic() - told >= 2.0:
                    told = time.monotonic()
                    for text in lines_of(now, None):
                        screen.say(text)
                    sys.stdout.flush()

            yield lines
            return
        with Live(console=screen.err, refresh_per_second=4) as live:
            yield lambda now, before: live.update(live_table(now, hint=""))

    def _scheduled(self) -> int:
        return int(self._app.store.read(lambda tx: tx.rows("view_demo_scheduled"))[0]["n"])

    def _count(self) -> _Count:
        """Hold what the sandbox took against the ledger."""
        effects = self._sandbox.effects()
        counted = self._app.store.read(lambda tx: tally(tx.rows("view_demo_states"), effects))
        reminders = self._app.store.read(lambda tx: tx.rows("view_demo_reminders"))
        return _Count(int(reminders[0]["n"]), counted, tuple(counted.problems()))

    def _tell(self, count: _Count, *, finished: bool) -> Exit:
        say = self._screen.say
        report = self._sandbox.report()["channels"]
        throttled = {c: int(report[c]["throttled"]) for c in ("sms", "email")}
        lost = {c: int(report[c]["lost_responses"]) for c in ("sms", "email")}
        say(
            f"went wrong on the way: {self._kills} worker killed, "
            f"{sum(throttled.values())} answers of 429, {sum(lost.values())} lost responses"
        )
        for channel in ("sms", "email"):
            say(
                f"{channel} at the sandbox's door: {report[channel]['calls']} calls, at most "
                f"{report[channel]['worst_window']['calls']} starts in a second, "
                f"{report[channel]['most_in_flight']} at once"
            )
        for text in count.wrong[:10]:
            say(text, style="bold red")
        mail_bound = lost["email"] + self._open_at_kill["email"]
        failed = [
            *(["it did not finish in time"] if not finished else []),
            *(["no worker was killed"] if not self._kills else []),
            *([f"no 429 at {c}" for c, n in throttled.items() if not n]),
            *([f"no lost response at {c}" for c, n in lost.items() if not n]),
            *(["the counts differ"] if count.wrong else []),
            *(self._too_uncertain(mail_bound)),
        ]
        for text in failed:
            say(f"not as promised: {text}", style="bold red")
        example = self._app.store.read(lambda tx: tx.rows("view_demo_example"))
        if example:
            say(f"one story: sendonce --config {self._path} status {example[0]['key']}")
        states, counted = count.tally.counts, count.tally
        say(
            f"demo: reminders={count.reminders} deliveries={len(counted.states)} "
            f"accepted={states[State.ACCEPTED]} rejected={states[State.REJECTED]} "
            f"suppressed={states[State.SUPPRESSED]} cancelled={states[State.CANCELLED]} "
            f"expired={states[State.EXPIRED]} dead={states[State.DEAD]} "
            f"uncertain={states[State.UNCERTAIN]} duplicates={counted.duplicates} lost={counted.lost}"
        )
        return Exit.PARTLY if failed else Exit.OK

    def _too_uncertain(self, mail_bound: int) -> list[str]:
        rows = self._app.store.read(lambda tx: tx.rows("view_demo_uncertain"))
        by_channel = {str(row["channel"]): int(row["n"]) for row in rows}
        found = []
        if by_channel.get("sms"):
            found.append(f"{by_channel['sms']} uncertain SMS of an account with keys")
        if by_channel.get("email", 0) > mail_bound:
            found.append(f"{by_channel['email']} uncertain mails, at most {mail_bound} can be")
        return found
