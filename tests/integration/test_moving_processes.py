"""House is moved in the middle of a day's work, with real processes and a provider that counts.

Takes some seconds: the old worker is killed with calls open, and its lease has to end before anything moves.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sendonce.app import App
from sendonce.cli.exits import Exit
from sendonce.cli.main import main
from sendonce.config import load
from sendonce.core.lifecycle import State
from sendonce.pipeline.verify import verify
from sendonce.testing.sandbox import ChannelRules, SandboxSettings, Trigger, sandbox_in_process
from tests.integration.processes import process
from tests.integration.service import configure, schedule, states, wait_for

DELIVERIES = 50


def test_what_was_left_is_sent_once_from_the_new_place_and_never_from_the_old(
    tmp_path: Path, postgres_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rules = ChannelRules(latency_s=(0.6, 0.8), lost_after=Trigger(every=17))
    old_url = f"sqlite:///{tmp_path}/sendonce.db"
    with ExitStack() as opened:
        sandbox = opened.enter_context(sandbox_in_process(SandboxSettings(sms=rules)))
        old, new = (
            configure(tmp_path / f"{name}.toml", url, sandbox.http_port, rate=12, lanes=10)
            for name, url in (("old", old_url), ("new", postgres_url))
        )

        def effects() -> int:
            return int(sandbox.report()["channels"]["sms"]["effects"])

        with App(load(old, environ={})) as app:
            schedule(app, DELIVERIES)
            secret = app.store.secret
        with process(old, "scheduler"), process(old, "worker"):
            wait_for(lambda: effects() >= 10)  # and both are killed

        command = ["db", "copy", old_url, postgres_url, "--reason", "a larger house", "--json"]
        assert main(command) == Exit.REFUSED
        assert json.loads(capfd.readouterr().out)["error"]["code"] == "processes_alive"
        told: dict[str, Any] = {}

        def moves() -> bool:
            code = main(command)
            told.update(json.loads(capfd.readouterr().out))
            return code == Exit.OK

        wait_for(moves)
        counts = {one["table"]: one["rows"] for one in told["copied"]}
        assert (counts["delivery"], told["epoch"]) == (DELIVERIES, 2)
        assert counts["open_call"] > 0, "it was killed in the middle of something"

        sent = effects()
        assert sent < DELIVERIES
        for words in (["worker"], ["scheduler"], ["overview"]):
            assert main(["--config", str(old), *words]) == Exit.STORE
            assert "has moved to PostgreSQL database tests" in capfd.readouterr().err
        assert effects() == sent

        app = opened.enter_context(App(load(new, environ={})))
        assert app.store.secret == secret
        assert verify(app.store).ok
        opened.enter_context(process(new, "scheduler"))
        opened.enter_context(process(new, "worker"))
        wait_for(lambda: states(app) == {State.ACCEPTED: DELIVERIES})
        report = sandbox.report()["channels"]["sms"]
        assert (report["effects"], report["markers"], report["duplicates"]) == (DELIVERIES, DELIVERIES, 0)
        assert verify(app.store).ok
