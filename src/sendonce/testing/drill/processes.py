"""The processes of a scenario: what `sendonce worker` and `sendonce scheduler` run, each on its own, so that
one can be killed, frozen and continued."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from sendonce import telemetry
from sendonce.app import App
from sendonce.pipeline.worker import tell_of
from sendonce.runtime.health import parse_address
from sendonce.service import serve
from sendonce.testing.drill.stage import Stage
from sendonce.testing.transport import Faults, UnreliableQueue

WORKER: Final = "worker"
SCHEDULER: Final = "scheduler"
CALLED: Final = "called scheduler"
"""A scheduler beside the HTTP API, where providers tell what happened later."""
HINTED: Final = "hinted worker"
"""A worker behind a queue transport that hands out everything twice and loses every acknowledgement."""
STOP_S: Final = 10.0
AGAIN_S: Final = 0.5


class Member:
    """One process of a scenario."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid: Final = process.pid
        self._process = process

    @property
    def runs(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """As the kernel does when memory runs out: nothing can be tidied up."""
        self._process.kill()
        self._process.join()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end, as a service manager does, and see that it does."""
        with suppress(ProcessLookupError):
            self.thaw()
            self._process.terminate()
        self._process.join(STOP_S)
        if self._process.is_alive():
            self.kill()


@contextmanager
def member(stage: Stage, role: str, log: Path) -> Iterator[Member]:
    """A process in this role, gone with the block.

    From a server that has imported everything: a drill starts some thirty, and each would take a while.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", "sendonce.testing.drill.processes"])
    process = context.Process(target=_run, args=(stage, role, log), daemon=True)
    process.start()
    one = Member(process)
    try:
        yield one
    finally:
        one.stop()


def _run(stage: Stage, role: str, log: Path) -> None:
    # Ctrl-C is the drill's to act on: it ends its processes. Where the drill itself was killed, they go too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_drill, name="drill", daemon=True).start()
    with log.open("a", encoding="utf-8", buffering=1) as stream:
        telemetry.configure("info", "json", process=f"{role}-{os.getpid()}", stream=stream)
        with App(stage.settings()) as app:
            asyncio.run(_until_asked_to_stop(app, role, stage.called_at))


def _end_with_the_drill() -> None:
    drill = parent_process()
    assert drill is not None, "started by the drill"
    wait([drill.sentinel])
    os._exit(1)


async def _until_asked_to_stop(app: App, role: str, called_at: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    if role == HINTED:
        await _hinted(app, stopping)
        return
    async with AsyncExitStack() as beside:
        if role == CALLED:
            await beside.enter_async_context(_called(app, called_at))
        await serve(
            app,
            work=role == WORKER,
            schedule=role in (SCHEDULER, CALLED),
            stopping=stopping,
            role=role,
            stop_s=STOP_S / 2,
            stand_by=False,  # two that lead at once are the harder case
            on_error=tell_of,
        )


def _called(app: App, at: str) -> AbstractAsyncContextManager[int]:
    """The API, which is an extra: only a drill that has it comes here."""
    from sendonce.api.program import Program
    from sendonce.api.server import serving

    return serving(Program(app), parse_address(at, field="drill"), field="drill", stop_s=STOP_S / 2)


async def _hinted(app: App, stopping: asyncio.Event) -> None:
    app.policy = replace(app.policy, hints=True)
    faults = Faults(repeat=1.0, lose_ack=1.0, reorder=True, redeliver_s=AGAIN_S)
    queues = {account: UnreliableQueue(faults, seed=1) for account in app.policy.accounts}
    worker = app.worker(role=WORKER, stop_s=STOP_S / 2, queues=queues)

    async def time_passes() -> None:
        while True:
            await asyncio.sleep(AGAIN_S / 5)
            for queue in queues.values():
                queue.tick(AGAIN_S / 5)

    working = asyncio.create_task(worker.run())
    ticking = asyncio.create_task(time_passes())
    await asyncio.wait({working, asyncio.create_task(stopping.wait())}, return_when=asyncio.FIRST_COMPLETED)
    worker.stop()
    await working
    ticking.cancel()
