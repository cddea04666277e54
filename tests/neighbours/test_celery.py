"""The recipe for Celery, run by a real worker over a Redis of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.servers import Missing, Server, speaks
from tests.integration.api_world import Api
from tests.neighbours.door import Door
from tests.neighbours.programs import program, surroundings

ASK = """
import json, sys, celery_reminders
task = celery_reminders.remind_of_parcel.delay(**json.loads(sys.argv[1]))
print(task.get(timeout=120))
"""
PARCEL = {
    "parcel": "A-17",
    "customer": "customer-73",
    "email": "ann@example.com",
    "name": "Ann",
    "due": "2099-12-01T09:00:00+01:00",
}


class Redis(Server):
    def __init__(self) -> None:
        found = shutil.which("redis-server")
        if found is None:
            raise Missing("Redis: `apt-get install redis-server`")
        super().__init__()
        self._program = found

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        return [self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]

    def is_up(self) -> bool:
        return speaks(self.port, b"PING\r\n", b"+PONG")


class Shop:
    """A worker of the recipe, and a program that makes tasks."""

    def __init__(self, door: Door, api: Api, redis: Redis, folder: Path) -> None:
        self.folder = folder
        self.environ = surroundings(
            door.url, api.token, CELERY_BROKER_URL=redis.url, CELERY_RESULT_BACKEND=redis.url
        )
        self.log = folder / "worker.log"
        with self.log.open("wb") as log:
            command = ["-A", "celery_reminders", "worker", "-c", "1", "-l", "info"]
            self.worker = subprocess.Popen(
                [str(program("neighbours", "celery")), *command],
                env=self.environ,
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ask(self, **changes: str) -> subprocess.Popen[str]:
        command = [str(program("neighbours", "python")), "-c", ASK, json.dumps({**PARCEL, **changes})]
        return subprocess.Popen(
            command,
            env=self.environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, **changes: str) -> str:
        return said(self.ask(**changes))

    def kill_child(self) -> None:
        """The process that runs the task, at once; the one above it stays."""
        children = Path(f"/proc/{self.worker.pid}/task/{self.worker.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)

    def close(self) -> None:
        os.killpg(self.worker.pid, signal.SIGKILL)
        self.worker.wait()


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    return out.strip()


@pytest.fixture(scope="module")
def shop(door: Door, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Redis() as redis:
        shop = Shop(door, api, redis, tmp_path_factory.mktemp("shop"))
        try:
            yield shop
        finally:
            shop.close()


def deliveries(api: Api) -> list[Any]:
    found: list[Any] = api.get("/v1/deliveries").ok()["deliveries"]
    return found


def test_a_task_that_runs_again_schedules_once(shop: Shop, door: Door, api: Api) -> None:
    # Four answers are lost: the client gives up after three, Celery tries the task again.
    door.lose = 4
    assert shop.answer() == "unchanged"
    assert door.asked == 5
    assert shop.answer() == "unchanged"  # the same task, made twice
    # The process that runs the task is killed after its request was done, before it was told.
    door.hold = True
    asking = shop.ask(parcel="A-18")
    assert door.held.wait(60)
    shop.kill_child()
    assert said(asking) == "unchanged"
    assert [each["key"] for each in deliveries(api)] == [
        "parcel-A-18:customer-73:email",
        "parcel-A-17:customer-73:email",
    ]


def test_a_wrong_value_is_not_tried_again(shop: Shop, door: Door, api: Api) -> None:
    before = door.asked
    asking = shop.ask(parcel="A-19", email="ann")
    _, err = asking.communicate(timeout=150)
    assert asking.returncode != 0
    assert "invalid: " in err
    assert door.asked == before + 1
    assert api.get("/v1/reminders/parcel-A-19").status == 404
