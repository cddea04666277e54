"""Of several schedulers one leads; when it ends or falls silent, the next one does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sendonce import config, telemetry
from sendonce.app import App
from sendonce.pipeline import leader
from sendonce.pipeline.leader import Leader
from sendonce.pipeline.scheduler import Scheduler
from sendonce.service import serve
from tests.integration.world import World
from tests.unit.test_app import BASE

LEASE_S = 30.0
ACCOUNT = 'lanes = 5\nkey_window = "24h"'


def told(monkeypatch: pytest.MonkeyPatch) -> list[telemetry.Event]:
    events: list[telemetry.Event] = []
    monkeypatch.setattr(leader, "tell", lambda event, **fields: events.append(event))
    return events


def test_one_leads_and_the_other_follows_when_it_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    events = told(monkeypatch)
    world = World("K")
    first = Leader(world.store, "scheduler", "p-1", lease_s=LEASE_S)
    second = Leader(world.store, "scheduler", "p-2", lease_s=LEASE_S)
    assert first.leads()
    assert not second.leads()
    world.clock.advance(LEASE_S - 1)
    assert first.leads()  # renewed
    world.clock.advance(LEASE_S - 1)
    assert not second.leads()
    world.clock.advance(1)
    assert second.leads()
    assert not first.leads()
    assert events == [
        telemetry.LEADS,
        telemetry.STANDS_BY,
        telemetry.LEADS,
        telemetry.STANDS_BY,
    ]


def test_one_that_ends_hands_over_at_once() -> None:
    world = World("K")
    first = Leader(world.store, "scheduler", "p-1", lease_s=LEASE_S)
    second = Leader(world.store, "scheduler", "p-2", lease_s=LEASE_S)
    assert first.leads()
    second.resign()  # what it does not have
    assert not second.leads()
    first.resign()
    assert second.leads()


@pytest.mark.sqlite_only
@pytest.mark.parametrize("stand_by", [True, False])
def test_a_scheduler_beside_the_leader_publishes_only_when_it_does_not_stand_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stand_by: bool
) -> None:
    app = App(config.parse(BASE.format(account=ACCOUNT), tmp_path / "sendonce.toml", {}))
    other = Leader(app.store, "scheduler", "other", lease_s=LEASE_S)
    assert other.leads()
    turns: list[str] = []

    async def run() -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()

        def turn(what: str) -> None:
            turns.append(what)
            loop.call_soon_threadsafe(stopping.set)

        ask = Leader.leads

        def asked(self: Leader) -> bool:
            if self.role == "scheduler":  # the sealer and retention have leads of their own
                turn("asked")
            return ask(self)

        monkeypatch.setattr(Leader, "leads", asked)
        monkeypatch.setattr(Scheduler, "run", lambda self, **_: turn("published"))
        await serve(
            app,
            work=False,
            schedule=True,
            stopping=stopping,
            role="scheduler",
            stand_by=stand_by,
            on_error=lambda stage, error: pytest.fail(f"{stage}: {error}"),
        )

    asyncio.run(run())
    assert set(turns) == ({"asked"} if stand_by else {"published"})
    monkeypatch.undo()
    assert other.leads()  # what it did not have it did not give back
    app.close()
