"""The outbox in processes and commands, as operators have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sendonce
from sendonce.app import App
from sendonce.config import load
from sendonce.service import serve
from tests.e2e.command_line import Folder, wait_for
from tests.integration.outbox_world import OutboxWorld, reminder
from tests.integration.test_client import CONFIG


@pytest.fixture
def shop(postgres_url: str) -> Iterator[OutboxWorld]:
    made = OutboxWorld(postgres_url)
    yield made
    made.close()


@pytest.fixture
def folder(
    shop: OutboxWorld,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Folder:
    made = Folder(tmp_path, monkeypatch, capfd)
    made.write("sendonce.toml", CONFIG)
    monkeypatch.setenv("SENDONCE_STORE_URL", postgres_url)
    return made


def hand_in(shop: OutboxWorld, *reminders: Any, **options: Any) -> None:
    with shop.connect() as connection:
        sendonce.schedule(connection, reminders, schema=shop.schema, **options)


@pytest.mark.parametrize("stand_by", [True, False])
def test_every_scheduler_takes_in_while_it_runs(shop: OutboxWorld, folder: Folder, stand_by: bool) -> None:
    hand_in(shop, reminder("before"))

    async def run(app: App) -> None:
        stopping = asyncio.Event()
        running = asyncio.create_task(
            serve(
                app,
                work=False,
                schedule=True,
                stopping=stopping,
                role="scheduler",
                stand_by=stand_by,
                on_error=lambda stage, error: pytest.fail(f"{stage}: {error}"),
            )
        )
        await asyncio.to_thread(wait_for, lambda: shop.waiting() == 0)
        hand_in(shop, reminder("meanwhile"))
        await asyncio.to_thread(wait_for, lambda: shop.waiting() == 0)
        stopping.set()
        await running

    with App(load(folder.path / "sendonce.toml", environ={"SENDONCE_STORE_URL": shop.url})) as app:
        asyncio.run(run(app))
    assert set(shop.taken()) == {"before:c-1:email", "meanwhile:c-1:email"}


def test_a_pass_takes_in_and_publishes_what_is_due(shop: OutboxWorld, folder: Folder) -> None:
    hand_in(shop, reminder("due", due="now"), reminder("later"), reminder("wrong", template="none"))
    report = folder.json("pass")
    assert (report["taken_in"], report["parked"], report["published"]) == (2, 1, 1)
    report = folder.json("pass")
    assert (report["taken_in"], report["parked"], report["published"]) == (0, 0, 0)


def test_a_pass_takes_in_while_the_scheduler_is_paused(shop: OutboxWorld, folder: Folder) -> None:
    folder.run("pause", "scheduler", "--reason", "test")
    hand_in(shop, reminder())
    report = folder.json("pass")
    assert (report["paused"], report["taken_in"]) == (True, 1)


def test_a_drain_sends_what_waited_in_the_outbox(shop: OutboxWorld, folder: Folder) -> None:
    hand_in(shop, *(reminder(f"r-{n}", due="now") for n in range(5)))
    drained = folder.run("drain", "--max-time", "30s")
    assert "nothing that is due is left" in drained.out
    assert folder.states("r-4") == {"r-4:c-1:email": "ACCEPTED"}


def test_a_drain_takes_in_all_before_it_looks_at_what_is_left(
    shop: OutboxWorld, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could end while the scheduler is still at it."""
    folder.write("sendonce.toml", CONFIG + "[scheduler]\npass_rows_max = 50\n")
    hand_in(shop, *(reminder(f"r-{n}") for n in range(120)))
    left: list[int] = []

    async def at_work(app: App, **_: Any) -> None:
        left.append(shop.waiting())

    monkeypatch.setattr("sendonce.cli.run.serve", at_work)
    folder.run("drain")
    assert left == [0]


def test_what_is_parked_is_seen_mended_and_dropped(shop: OutboxWorld, folder: Folder) -> None:
    hand_in(shop, reminder("r-1", template="later"), reminder("r-2", template="never"))
    hand_in(shop, {"reminder": "r-3", "mail": "ann@example.com"}, on_error="park")
    hand_in(shop, reminder("r-4"))
    assert "1 reminder parked" in folder.run("overview").out
    folder.run("pass")
    hand_in(shop, reminder("r-5"))
    listed = folder.json("outbox", "list")
    assert listed["waiting"] == 1
    shown = [(one["reminder"], one["field"]) for one in listed["parked"]]
    assert shown == [("r-1", "template"), ("r-2", "template"), ("r-3", "template")]
    assert listed["parked"][0]["asked"]["reminder"] == shown[0][0]
    text = folder.run("outbox", "list").out
    assert "r-2" in text
    assert "1 reminder to be taken in" in text
    shop.add_template("later")
    ids = {one["reminder"]: str(one["id"]) for one in listed["parked"]}
    assert folder.json("outbox", "retry", ids["r-1"], ids["r-1"]) == {"retried": 1}
    folder.run("outbox", "drop", ids["r-1"], "--reason", "test", code=4)  # it waits now
    assert folder.json("outbox", "retry") == {"retried": 2}
    assert folder.json("outbox", "retry") == {"retried": 0}
    assert folder.json("pass")["parked"] == 2  # wrong still
    dropped = folder.json("outbox", "drop", ids["r-2"], ids["r-3"], "--reason", "test orders")
    assert dropped == {"dropped": 2}
    assert folder.json("outbox", "list") == {"waiting": 0, "parked": []}
    assert set(shop.taken()) == {"r-1:c-1:email", "r-4:c-1:email", "r-5:c-1:email"}


def test_to_drop_takes_a_reason_and_a_number(shop: OutboxWorld, folder: Folder) -> None:
    hand_in(shop, {"reminder": "r-3"}, on_error="park")
    folder.run("outbox", "drop", "1", code=2)
    folder.run("outbox", "drop", "1", "--reason", " ", code=2)
    folder.run("outbox", "drop", "--reason", "test", code=2)
    folder.run("outbox", "drop", "one", "--reason", "test", code=2)
    assert len(folder.json("outbox", "list")["parked"]) == 1
