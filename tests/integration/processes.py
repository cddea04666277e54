"""Workers and schedulers as processes of their own, for tests of what becomes of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from sendonce.app import App
from sendonce.config import load
from sendonce.service import serve

LEASE_S = 2.0


@contextmanager
def process(config: Path, role: str) -> Iterator[BaseProcess]:
    """A process of its own; from a server that has imported everything, since five would take a while."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["sendonce.app"])
    made = context.Process(target=_run, args=(config, role))
    made.start()
    try:
        yield made
    finally:
        if made.is_alive():
            os.kill(pid_of(made), signal.SIGCONT)
            made.kill()
        made.join()


def _run(config: Path, role: str) -> None:
    """What `sendonce worker` and `sendonce scheduler` do, with a lease as short as the test."""

    async def until_terminated() -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        await serve(
            app,
            work=role == "worker",
            schedule=role == "scheduler",
            stopping=stopping,
            role=role,
            on_error=lambda stage, error: None,
        )

    with App(load(config, environ={})) as app:
        app.policy = replace(app.policy, lease_s=LEASE_S)
        asyncio.run(until_terminated())


def pid_of(one: BaseProcess) -> int:
    assert one.pid is not None
    return one.pid
