"""What one process does side by side begins together, and ends together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sendonce.app import App
from sendonce.pipeline.leader import Leader
from sendonce.pipeline.pruner import prune
from sendonce.pipeline.worker import Worker
from sendonce.ports.store import Process, Tx
from sendonce.service import serve
from tests.unit.test_app import opened

ACCOUNT = 'lanes = 5\nkey_window = "24h"'


def test_a_process_that_stays_forgets_what_ended_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    async def work_until_pruned(app: App) -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()

        def prune_once(tx: Tx, keep_us: int, events_us: int) -> int:
            loop.call_soon_threadsafe(stopping.set)
            return prune(tx, keep_us, events_us)

        monkeypatch.setattr("sendonce.service.prune", prune_once)
        async with asyncio.timeout(10.0):
            await serve(
                app,
                work=False,
                schedule=True,
                stopping=stopping,
                role="scheduler",
                on_error=lambda stage, error: failed.append(stage),
            )

    with opened(tmp_path, ACCOUNT) as app:
        old = Process("old", "drain", "sms", "host", 1, 1, 1, 0, stopped=True)
        app.store.write(lambda tx: tx.processes.beat(old)).result()
        asyncio.run(work_until_pruned(app))
        left = [
            row["id"]
            for row in app.store.read(lambda tx: tx.rows("view_processes", since=0, steady=0, limit=9))
        ]
    assert (left, failed) == ([app.process], [])


@pytest.mark.sqlite_only
def test_where_one_duty_ends_by_itself_all_end_and_nothing_stays_led(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a process would look alive; and the next one need not wait for a lease."""

    async def leads_and_breaks(app: App) -> None:
        led, loop, ask = asyncio.Event(), asyncio.get_running_loop(), Leader.leads

        def asked(self: Leader) -> bool:
            answer = ask(self)
            if self.role == "scheduler":
                loop.call_soon_threadsafe(led.set)
            return answer

        async def breaks(self: Worker) -> None:
            await led.wait()
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(Leader, "leads", asked)
        monkeypatch.setattr(Worker, "run", breaks)
        async with asyncio.timeout(10.0):
            await serve(
                app,
                work=True,
                schedule=True,
                stopping=asyncio.Event(),
                role="up",
                on_error=lambda duty, error: pytest.fail(f"{duty}: {error}"),
            )

    with opened(tmp_path, ACCOUNT) as app:
        with pytest.raises(RuntimeError, match="a fault of ours"):
            asyncio.run(leads_and_breaks(app))
        monkeypatch.undo()
        assert Leader(app.store, "scheduler", "the next", lease_s=60.0).leads()
