"""The commands that work: `up`, `worker`, `scheduler`, `pass`, `drain`.

The first Ctrl-C or SIGTERM asks for a graceful stop: nothing new is claimed, what has not started is given
back, open calls may finish, everything is settled, and the process has ended when `--stop-after` is over. A
second one ends it at once; what was open is then found by the next worker, when the lease is over.

With `--health`, probes are answered from before the work begins until after it has ended.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.live import Live

from sendonce import telemetry
from sendonce.cli.exits import Exit
from sendonce.cli.progress import Look, Watch, lines_of, live_table
from sendonce.cli.screen import CARE, Screen, counted, when
from sendonce.cli.shell import Shell, command
from sendonce.core.delivery import Channel
from sendonce.core.duration import parse_duration, say_duration
from sendonce.core.errors import ConfigError, InvalidInput, StoreError
from sendonce.core.health import Vitals, lacks_of, phase_of
from sendonce.ports.store import Tx
from sendonce.runtime.health import Address, HealthServer, Report, parse_address
from sendonce.service import serve
from sendonce.telemetry import fault, tell

if TYPE_CHECKING:
    from sendonce.pipeline.collector import Collector

LOOK_S: Final = 1.0
PUT_OFF_US: Final = 86_400_000_000
"""How far ahead what was put off is looked for: no night is longer, and no pause is looked at later."""
API_STOP_S: Final = 2.0
"""Of the time to stop in, what is left for open requests once the work has ended."""
SETTLE_SHARE_S: Final = 3.0
"""Of the time to stop in, what is kept for settling once open calls were given up."""

StopAfter = Annotated[
    str, typer.Option("--stop-after", metavar="TIME", help="A stop takes at most this long.")
]
Channels = Annotated[
    list[Channel] | None, typer.Option("--channel", help="Only this channel; may be given again.")
]

LISTEN: Final = "--listen"
API_LISTEN: Final = "127.0.0.1:8080"
HEALTH: Final = "--health"
Health = Annotated[
    str,
    typer.Option(
        HEALTH,
        metavar="[HOST:]PORT",
        envvar="SENDONCE_HEALTH",
        help="Answer probes over HTTP here; a port alone is on 127.0.0.1.",
    ),
]


def add_to(app: typer.Typer) -> None:
    panel = {"rich_help_panel": "Work"}
    command(app, **panel)(up)
    command(app, **panel)(api)
    command(app, **panel)(worker)
    command(app, **panel)(scheduler)
    command(app, "pass", **panel)(pass_)
    command(app, **panel)(drain)


def up(shell: Shell, stop_after: StopAfter = "20s", health: Health = "") -> Exit:
    """Schedule and send, everything in one process, until Ctrl-C."""
    return _serve(shell, _Work("up", tuple(Channel), work=True, schedule=True), stop_after, health)


def api(
    shell: Shell,
    listen: Annotated[
        str, typer.Option(LISTEN, metavar="[HOST:]PORT", help="Here; a port alone is on 127.0.0.1.")
    ] = "",
    stop_after: StopAfter = "20s",
) -> Exit:
    """Serve the HTTP API until Ctrl-C, and nothing else. Any number may run."""
    stop_s = _stop_s(stop_after)
    where = listen or shell.settings.api_listen or API_LISTEN
    address = parse_address(where, field=LISTEN)
    shell.store.steady()  # opened here, so that what is wrong with it is one line and no log
    _collect_rarely()
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        runner.run(_only_api(shell, address, stop_s))
    return Exit.OK


def worker(
    shell: Shell, channel: Channels = None, stop_after: StopAfter = "20s", health: Health = ""
) -> Exit:
    """Send what is queued, until Ctrl-C. Any number may run, for all channels or for one."""
    work = _Work("worker", tuple(channel or Channel), work=True, schedule=False)
    return _serve(shell, work, stop_after, health)


def scheduler(shell: Shell, stop_after: StopAfter = "20s", health: Health = "") -> Exit:
    """Publish what falls due, until Ctrl-C. More than one may run; nothing is published twice."""
    return _serve(shell, _Work("scheduler", (), work=False, schedule=True), stop_after, health)


def drain(
    shell: Shell,
    channel: Channels = None,
    max_time: Annotated[
        str, typer.Option("--max-time", metavar="TIME", help='Give up after this long, such as "10m".')
    ] = "",
    stop_after: StopAfter = "20s",
) -> Exit:
    """Work until nothing that is due is left, then end: for crons and batch machines."""
    limit_s = parse_duration(max_time, field="--max-time") if max_time else None
    return _serve(
        shell,
        _Work("drain", tuple(channel or Channel), work=True, schedule=True, until_done=True, max_s=limit_s),
        stop_after,
    )


def pass_(
    shell: Shell,
    trigger: Annotated[str, typer.Option("--trigger", help="Who asks, for the run history.")] = "command",
) -> Exit:
    """Publish what is due in one bounded pass, then end: for an outside cron.

    It may run late, twice or by two at once; the second time changes nothing. It sends nothing by itself.
    """
    if not trigger.isprintable() or not 0 < len(trigger) <= 40:
        raise InvalidInput(f"--trigger {trigger!r:.80} must be one printable word of at most 40 characters")
    with _asked_to_stop() as stopping, shell.screen.progress("publishing") as bar:
        collected = shell.app.collector().run(stopping=stopping.is_set)
        report = shell.app.scheduler().run(trigger=trigger, stopping=stopping.is_set, progress=bar.to)
    screen = shell.screen
    handed_in = {"taken_in": collected.taken, "parked": collected.parked}
    if collected.taken or collected.parked:
        screen.say(f"outbox: {collected.taken:,} taken in, {collected.parked:,} parked")
    if report is None:
        held = shell.read(lambda tx: tx.held)
        screen.document({"run": None, "paused": True, "held": held, **handed_in})
        why = "the store is held" if held else "the scheduler is paused"
        ends = "db released" if held else "resume scheduler"
        screen.say(f"{why}: nothing was published; `sendonce {ends} --reason ...` ends it")
        return Exit.PARTLY if held else Exit.OK
    took_s = (report.finished_at - report.started_at) / 1e6
    counts = {name: report.counts.get(name, 0) for name in _COUNTS} | dict(report.counts)
    screen.document(
        {
            "run": report.id,
            "paused": False,
            "held": False,
            "trigger": report.trigger,
            "complete": report.complete,
            "examined": report.examined,
            **counts,
            **handed_in,
            "mark": report.mark,
            "mark_before": report.mark_before,
            "started_at": report.started_at,
            "finished_at": report.finished_at,
            "took_s": round(took_s, 3),
        }
    )
    done = ", ".join(
        f"{number:,} {_WORDS.get(name, name)}" for name, number in report.counts.items() if number
    )
    screen.say(f"pass {report.id}: {done or 'nothing was due'} ({took_s:.1f} s)")
    if report.complete:
        screen.say(f"everything due by {when(report.mark)} is published or decided")
    else:
        screen.say("it stopped at its bound and more is due: the next pass goes on", style=CARE)
    return Exit.OK


_COUNTS: Final = ("published", "deferred", "expired", "suppressed", "rejected", "late", "catch_up")


_WORDS: Final = {"catch_up": "of them with a later turn to catch up"}


# Processes that stay


@dataclass(frozen=True, slots=True)
class _Work:
    role: str
    channels: Collection[Channel]
    work: bool
    schedule: bool
    until_done: bool = False
    max_s: float | None = None


def _serve(shell: Shell, work: _Work, stop_after: str, health: str = "") -> Exit:
    stop_s = _stop_s(stop_after)
    probed_at = parse_address(health, field=HEALTH) if health else None
    # Opened here, so that what is wrong with it is one line and no log.
    watch = Watch(shell.store, shell.policy)
    _collect_rarely()
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        return runner.run(_run(shell, work, watch, stop_s, probed_at))


def _stop_s(stop_after: str) -> float:
    stop_s = parse_duration(stop_after, field="--stop-after")
    if not 1.0 <= stop_s <= 3600.0:
        raise InvalidInput(f"--stop-after {stop_after} must be between 1s and 1h", field="--stop-after")
    return stop_s


async def _run(shell: Shell, work: _Work, watch: Watch, stop_s: float, probed_at: Address | None) -> Exit:
    async with AsyncExitStack() as beside:
        if probed_at is not None:
            await beside.enter_async_context(_probed(shell, work, probed_at))
        if work.role == "up" and shell.settings.api_listen:
            address = parse_address(shell.settings.api_listen, field="[api] listen")
            await beside.enter_async_context(_api(shell, address, "[api] listen", API_STOP_S))
        return await _work(shell, work, watch, stop_s)


@asynccontextmanager
async def _api(shell: Shell, address: Address, field: str, stop_s: float) -> AsyncIterator[None]:
    """Serve the API meanwhile. Raises `ConfigError` where the address, or the extra, cannot be had."""
    try:
        from sendonce.api.program import Program
        from sendonce.api.server import serving
    except ImportError as error:
        raise ConfigError(
            f"the HTTP API needs the extra `api` ({error}): pip install 'sendonce[api]'"
        ) from None
    program = Program(shell.app, shell.settings.api_pass_secret)
    async with serving(
        program, address, field=field, stop_s=stop_s, leaving=lambda: shell.app.pulse.stopping
    ):
        shell.screen.note(f"api: http://{address}/v1; console: http://{address}/console", style="")
        yield


async def _only_api(shell: Shell, address: Address, stop_s: float) -> None:
    settings = shell.settings
    stopping = asyncio.Event()
    stop = _Stop(shell, stopping, stop_s)
    with stop.on_signals():
        async with _api(shell, address, LISTEN, stop_s / 2):
            telemetry.configure(settings.log_level, settings.log_format, process=f"api-{os.getpid()}")
            tell(telemetry.PROCESS_STARTED, role="api", version=version("sendonce"), pid=os.getpid())
            await stopping.wait()
            shell.app.pulse.stopping = True
    shell.screen.note("stopped: what was asked is answered")


@asynccontextmanager
async def _probed(shell: Shell, work: _Work, address: Address) -> AsyncIterator[None]:
    """Answer probes meanwhile. Raises `ConfigError` where that address cannot be had."""
    build = version("sendonce")
    shown = shell.app.exposition
    shell.app.shows = shown is not None
    server = HealthServer(
        lambda: _report(shell, work, build),
        on_error=tell_of,
        metrics=None if shown is None else shown.text,
    )
    await server.start(address, field=HEALTH)
    shell.screen.note(f"health: http://{address}/health", style="")
    try:
        yield
    finally:
        await server.close()


def _report(shell: Shell, work: _Work, build: str) -> Report:
    vitals = shell.app.pulse.vitals()
    lacks = lacks_of(vitals)
    return Report(
        lacks,
        {
            "role": work.role,
            "process": shell.app.process,
            "version": build,
            "state": phase_of(vitals),
            "ready": not lacks,
            "lacks": lacks,
            **_signs(vitals),
        },
    )


def _signs(vitals: Vitals) -> dict[str, float | int | bool | None]:
    scheduling = vitals.scheduling
    return {
        "beat_age_s": _rounded(vitals.beat_age_s),
        "lease_left_s": _rounded(vitals.lease_left_s),
        "open_calls": vitals.open_calls,
        "leads": None if scheduling is None else scheduling.leads,
        "look_age_s": None if scheduling is None else _rounded(scheduling.look_age_s),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


async def _work(shell: Shell, work: _Work, watch: Watch, stop_s: float) -> Exit:
    settings, screen = shell.settings, shell.screen
    stopping = asyncio.Event()
    stop = _Stop(shell, stopping, stop_s)
    telemetry.configure(settings.log_level, settings.log_format, process=f"{work.role}-{os.getpid()}")
    tell(telemetry.PROCESS_STARTED, role=work.role, version=version("sendonce"), pid=os.getpid())
    with stop.on_signals():
        if work.until_done:  # what is not taken in yet is in no count of what is left
            await asyncio.to_thread(_take_in, shell.app.collector(), stopping.is_set)
        watching = asyncio.create_task(_watch(screen, watch, work, stopping), name="watch")
        try:
            await serve(
                shell.app,
                work=work.work,
                schedule=work.schedule,
                stopping=stopping,
                role=work.role,
                channels=work.channels,
                stop_s=max(stop_s - SETTLE_SHARE_S, stop_s / 2),
                # One that ends by itself must not wait out the lease of one that was killed.
                stand_by=not work.until_done,
                on_error=tell_of,
            )
        finally:
            stopping.set()
            left = await watching
    if work.until_done:
        return _drained(screen, left, shell.read(_put_off), stop.asked)
    screen.note("stopped: what was open is settled")
    return Exit.OK


def _take_in(collector: Collector, stopping: Callable[[], bool]) -> None:
    while not collector.run(stopping=stopping).complete and not stopping():
        pass


def _put_off(tx: Tx) -> int:
    """What was due, and has a later look than now."""
    return int(tx.rows("view_progress_put_off", now=tx.now, until=tx.now + PUT_OFF_US)[0]["n"])


def _drained(screen: Screen, left: Look | None, put_off: int, asked: bool) -> Exit:
    count = 0 if left is None else left.left
    held = put_off + (0 if left is None else sum(channel.held for channel in left.channels))
    if left is not None and screen.as_json:
        screen.document({"left": count, "held": held, "stopped": asked, "channels": left.channels})
    if held:
        waits = counted(held, "delivery waits", "deliveries wait")
        screen.say(f"{waits} for a pause, the night, a catch-up or the configuration", style=CARE)
    if count == 0:
        screen.say("nothing that is due is left" if not held else "nothing else that is due is left")
        return Exit.OK
    screen.say(
        f"{counted(count, 'delivery', 'deliveries')} left; `sendonce overview` says what they wait for"
    )
    return Exit.INTERRUPTED if asked else Exit.PARTLY


async def _watch(screen: Screen, watch: Watch, work: _Work, stopping: asyncio.Event) -> Look | None:
    """Show what happens; end the work when it is done, where it has an end. Returns the last look."""
    before: Look | None = None
    until = None if work.max_s is None else time.monotonic() + work.max_s
    with _display(screen, stream=not work.until_done) as show:
        idle = 0
        while True:
            with suppress(StoreError):  # told by who needs the store; the screen can wait
                now = await asyncio.to_thread(watch.look)
                show(now, before)
                before = now
                idle = idle + 1 if now.left == 0 else 0
            # Twice, a look apart: what is between two states in one look is in the next.
            if work.until_done and (idle >= 2 or (until is not None and time.monotonic() > until)):
                stopping.set()
            if stopping.is_set():
                return before
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S / 4 if work.until_done else LOOK_S):
                    await stopping.wait()


@contextmanager
def _display(screen: Screen, *, stream: bool) -> Iterator[Callable[[Look, Look | None], None]]:
    """A live table on a terminal; else a line for each change."""
    if not screen.live:

        def lines(now: Look, before: Look | None) -> None:
            changed = lines_of(now, before)
            for text in changed:
                screen.say(text)
            if changed and stream:
                screen.line(now)
            sys.stdout.flush()

        yield lines
        return
    hint = "Ctrl-C stops gracefully"
    with Live(console=screen.err, refresh_per_second=4, transient=not stream) as live:
        # What is logged meanwhile goes above the table.
        telemetry.configure("warning", "text", stream=sys.stderr)
        yield lambda now, before: live.update(live_table(now, hint=hint))


class _Stop:
    """Signals: the first asks, the second ends."""

    def __init__(self, shell: Shell, stopping: asyncio.Event, stop_s: float) -> None:
        self._shell = shell
        self._stopping = stopping
        self._stop_s = stop_s
        self.asked = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._asked)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _asked(self) -> None:
        if self.asked:
            self._end(Exit.INTERRUPTED, "ended at once")
        self.asked = True
        self._stopping.set()
        self._shell.screen.note(
            f"stopping: nothing new is claimed, open calls may finish; at most {say_duration(self._stop_s)} "
            "(Ctrl-C again ends at once)",
            style="",
        )
        # A thread, not the loop: whatever holds up the loop must not hold up the end.
        bound = threading.Timer(self._stop_s, self._end, (Exit.PARTLY, "the time to stop in is over"))
        bound.daemon = True
        bound.start()

    def _end(self, exit_: Exit, why: str) -> None:
        lease = say_duration(self._shell.settings.lease_s)
        sys.stderr.write(
            f"{why}: nothing is lost. Calls that were open are found by the next worker, {lease} from now; "
            "where a provider offers neither key nor look-up, they wait for a decision (sendonce uncertain)\n"
        )
        sys.stderr.flush()
        os._exit(exit_)


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """For commands without a loop: the first signal sets the event, a second Ctrl-C interrupts."""
    stopping = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def asked(number: int, frame: object) -> None:
        stopping.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in before:
        signal.signal(number, asked)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_of(stage: str, error: Exception) -> None:
    event = telemetry.STORE_UNAVAILABLE if isinstance(error, StoreError) else telemetry.STAGE_FAILED
    tell(event, stage=stage, **fault(error))


def _collect_rarely() -> None:
    """Looking for cycles after each 700 new objects, all the modules' own included, took a twentieth of a
    worker's time (`make bench ARGS=drain`); what a delivery makes has none."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed (the extra `fast`)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
