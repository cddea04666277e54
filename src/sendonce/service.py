"""What one process does, side by side, until it is asked to stop: it works, it schedules, or both.

Each duty is a loop of its own: a step, and how long until the next (`runtime.poller`). What one process of
all shall do has a leader and is done by whoever leads; the rest is shared, or is each process's own. Blocking
steps run on threads, so that a long one never holds up the senders. Nothing begins before everything could be
made, and when one duty ends by itself, all end: half a process would look alive.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Final

from sendonce.app import App
from sendonce.core import news
from sendonce.core.delivery import Channel
from sendonce.core.pacing import SECOND
from sendonce.held import Hold, hold_of
from sendonce.pipeline.alarm import (
    FORECAST_S,
    LOOK_S,
    Overdue,
    Stranded,
    overdue,
    overruled,
    sound,
    stranded,
)
from sendonce.pipeline.handed_in import OutboxView, outbox
from sendonce.pipeline.heartbeat import BEAT_AGAIN_S, Heartbeat, Name
from sendonce.pipeline.leader import Leader
from sendonce.pipeline.pruner import LOOK_S as PRUNE_LOOK_S
from sendonce.pipeline.pruner import PAGE as PRUNE_PAGE
from sendonce.pipeline.pruner import prune
from sendonce.pipeline.scheduler import TIMER, Scheduler
from sendonce.ports.store import Tx
from sendonce.runtime.poller import OnError, Poller, Step, rest_after
from sendonce.runtime.waker import Waker

RETENTION_LOOK_S: Final = 60.0
RETENTION_LEASE_S: Final = 3 * RETENTION_LOOK_S

SHOW_S: Final = 10.0
"""How often a process that shows metrics looks at what stands in the store."""
DUE_APART_S: Final = 0.2
"""How often news of what is due may start a pass, each of which is kept in the run history."""
APPLY_APART_S: Final = 0.1
"""How often news of provider events may start a look: more of them come together."""


async def serve(
    app: App,
    *,
    work: bool,
    schedule: bool,
    stopping: asyncio.Event,
    role: str,
    channels: Collection[Channel] = tuple(Channel),
    stop_s: float = 20.0,
    stand_by: bool = True,
    on_error: OnError,
) -> None:
    """Be a worker, a scheduler or both, until `stopping` is set; then end gracefully: open calls may take
    `stop_s` more, and what became of them is kept.

    `stand_by`: schedule only while no other process leads. Without it two at once are harmless too.
    `on_error(duty, error)` hears of each step that failed; it is tried again. Raises `ConfigError` before
    anything has begun, and what ended a duty once all have ended.
    """
    app.pulse.works, app.pulse.schedules = work, schedule
    duties = _Duties(app, stopping, on_error)
    if schedule:
        _seal(app, duties)
        # It may have to put every reminder right for other zone rules: the loop answers meanwhile.
        leads = _schedule(app, duties, await asyncio.to_thread(app.scheduler), stand_by)
        _collect(app, duties)
        _apply_events(app, duties)
        _return_mail(app, duties)
        _poll(app, duties)
        _keep(app, duties)
        _foresee(app, duties, leads)
    if work:
        worker = app.worker(role=role, channels=channels, stop_s=stop_s)
        app.pulse.heart, app.pulse.open_calls = worker.heart, worker.open_calls
        duties.add("worker", worker.run, worker.stop)
    else:  # a worker beats for itself
        name = Name(app.process, role, socket.gethostname(), os.getpid())
        app.pulse.heart = heart = Heartbeat(app.store, name, lease_s=app.policy.lease_s)
        duties.loop("heartbeat", heart.beat, again_max_s=BEAT_AGAIN_S)
        duties.at_the_end(heart.sign_off)
    _alarm(app, duties, channels if work else ())
    _forget(app, duties)
    _show(app, duties)
    await duties.run()
    await app.close_providers()


class _Duties:
    """What runs side by side, who leads in what, and what is heard."""

    def __init__(self, app: App, stopping: asyncio.Event, on_error: OnError) -> None:
        self.stopping: Final = stopping
        self._app = app
        self._on_error = on_error
        self._duties: list[tuple[str, Callable[[], Coroutine[None, None, None]], Callable[[], None]]] = []
        self._heard: list[tuple[str, Callable[[], None], float]] = []
        self._leaders: list[Leader] = []
        self._last: list[Callable[[], Coroutine[None, None, None]]] = []

    def add(
        self, name: str, run: Callable[[], Coroutine[None, None, None]], stop: Callable[[], None]
    ) -> None:
        """`run` until `stop` was called."""
        self._duties.append((name, run, stop))

    def loop(
        self,
        name: str,
        step: Step,
        *,
        again_max_s: float | None = None,
        give_up: Callable[[], None] = lambda: None,
    ) -> Poller:
        """`give_up` ends what a step waits for, where it may wait for long."""
        poller = Poller(name, step, on_error=self._on_error, again_max_s=again_max_s)

        def stop() -> None:
            poller.stop()
            give_up()

        self.add(name, poller.run, stop)
        return poller

    def blocking(self, name: str, step: Callable[[], float], *, again_max_s: float | None = None) -> Poller:
        """A step that waits for the store, on a thread."""
        return self.loop(name, lambda: asyncio.to_thread(step), again_max_s=again_max_s)

    def led(
        self,
        name: str,
        step: Callable[[], float],
        *,
        stand_by_s: float,
        lease_s: float,
        again_max_s: float | None = None,
    ) -> None:
        """A blocking step that one process of all does; the others ask again each `stand_by_s`."""
        lead = self.leader(name, lease_s)
        self.blocking(name, lambda: step() if lead.leads() else stand_by_s, again_max_s=again_max_s)

    def leader(self, role: str, lease_s: float) -> Leader:
        """This process's part in what one of all does; given up at the end."""
        leader = Leader(self._app.store, role, self._app.process, lease_s=lease_s)
        self._leaders.append(leader)
        return leader

    def hear(self, topic: str, call: Callable[[], None], *, apart_s: float) -> None:
        """Call on news of the topic, on this loop, `apart_s` from each other at least."""
        self._heard.append((topic, call, apart_s))

    def at_the_end(self, last: Callable[[], Coroutine[None, None, None]]) -> None:
        self._last.append(last)

    async def run(self) -> None:
        """Everything, until `stopping` is set or one has ended by itself; raises what that one raised."""
        store = self._app.store
        listening = [store.listen(Waker({topic: call}, apart_s=s).hear) for topic, call, s in self._heard]
        tasks = [asyncio.create_task(run(), name=name) for name, run, _ in self._duties]
        stopper = asyncio.create_task(self.stopping.wait(), name="stopping")
        await asyncio.wait({stopper, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        self._app.pulse.stopping = True
        for heard in listening:
            heard.close()
        for _, _, stop in self._duties:
            stop()
        stopper.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for leader in self._leaders:
            await asyncio.to_thread(leader.resign)
        for last in self._last:
            await last()
        for each in ended:
            if each is not None:
                raise each


def _schedule(app: App, duties: _Duties, scheduler: Scheduler, stand_by: bool) -> Callable[[], bool]:
    """Passes: on the timer, and on news of what is due. Returns what says whether they are this process's."""
    every_s = app.settings.pass_every_s
    lead = duties.leader("scheduler", app.policy.lease_s)

    async def one_pass() -> float:
        if stand_by and not await asyncio.to_thread(lead.leads):
            return min(every_s, app.policy.lease_s / 3)
        report = await asyncio.to_thread(scheduler.run, trigger=TIMER, stopping=duties.stopping.is_set)
        more = report is not None and not report.complete
        return 0.0 if more else every_s

    def leads() -> bool:
        return lead.led or not stand_by

    def due() -> None:
        if leads():
            timer.wake()

    looks = app.pulse.looking(one_pass, leads=lambda: lead.led)
    timer = duties.loop("scheduler", looks, again_max_s=BEAT_AGAIN_S)
    duties.hear(news.DUE, due, apart_s=DUE_APART_S)
    return leads


def _collect(app: App, duties: _Duties) -> None:
    """Take in what applications handed in; by those that stand by too, who share the work."""
    collector = app.collector()

    def collect() -> float:
        done = collector.run(stopping=duties.stopping.is_set)
        return app.settings.pass_every_s if done.complete else 0.0

    duties.blocking("collector", collect, again_max_s=BEAT_AGAIN_S)


def _apply_events(app: App, duties: _Duties) -> None:
    """What providers told; by all that schedule, who share the work."""
    applying = duties.blocking("events", app.event_applier().step, again_max_s=BEAT_AGAIN_S)
    duties.hear(news.EVENTS, applying.wake, apart_s=APPLY_APART_S)


def _seal(app: App, duties: _Duties) -> None:
    audit = app.settings.audit
    if audit.seal:
        lease_s = app.policy.lease_s + audit.every_s
        duties.led("sealer", app.sealer().step, stand_by_s=audit.every_s, lease_s=lease_s)


def _return_mail(app: App, duties: _Duties) -> None:
    """Bounces that come as mail."""
    returned = app.returned_mail()
    if returned is not None:
        every_s = app.settings.bounces.every_s
        lease_s = max(RETENTION_LEASE_S, 3 * every_s)
        duties.led("bounces", returned.step, stand_by_s=every_s, lease_s=lease_s, again_max_s=every_s)


def _poll(app: App, duties: _Duties) -> None:
    """What became of messages, asked of the providers that call nobody: one process for each account."""
    for account, poll in app.polls().items():
        duties.loop(f"poll:{account}", poll.step, again_max_s=BEAT_AGAIN_S, give_up=poll.stop)
        duties.at_the_end(poll.close)


def _keep(app: App, duties: _Duties) -> None:
    retention = app.retention()
    duties.led("retention", retention.step, stand_by_s=RETENTION_LOOK_S, lease_s=RETENTION_LEASE_S)


def _foresee(app: App, duties: _Duties, leads: Callable[[], bool]) -> None:
    def foresee() -> float:
        if leads():
            app.foresee()
        return FORECAST_S

    duties.blocking("forecast", foresee)


def _alarm(app: App, duties: _Duties, works_for: Collection[Channel]) -> None:
    """Say what is late, stranded or held; and, of what it works for, whose limits are not those in force."""

    def look(tx: Tx) -> tuple[list[Overdue], list[Stranded], OutboxView, list[str], Hold | None]:
        differ = overruled(tx, app.policy, works_for)
        return overdue(tx, app.policy), stranded(tx, app.policy), outbox(tx), differ, hold_of(tx)

    def alarm() -> float:
        begun = time.monotonic()
        seen = app.store.read(look)
        took_s = time.monotonic() - begun
        sound(*seen)
        return rest_after(took_s, LOOK_S)

    duties.blocking("alarm", alarm)


def _forget(app: App, duties: _Duties) -> None:
    """Run history and applied events that were kept long enough."""
    keep_us = round(app.settings.keep.passes_s * SECOND)
    events_us = round(app.settings.events_keep_s * SECOND)

    async def forget() -> float:
        forgotten = await asyncio.wrap_future(app.store.write(lambda tx: prune(tx, keep_us, events_us)))
        return 1.0 if forgotten == PRUNE_PAGE else PRUNE_LOOK_S

    duties.loop("pruner", forget)


def _show(app: App, duties: _Duties) -> None:
    def show() -> float:
        if app.shows and app.exposition is not None:
            app.exposition.look()
        return SHOW_S

    duties.blocking("metrics", show)
