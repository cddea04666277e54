"""A process that may open no more files: it says so, blames no provider, spends no attempt, and goes on."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from sendonce.app import App
from sendonce.client import Client
from sendonce.config import load
from sendonce.core.errors import StoreUnavailable
from sendonce.core.lifecycle import State
from sendonce.pipeline.verify import verify
from sendonce.runtime import handles
from sendonce.runtime.clock import SystemClock
from sendonce.store import sqlite
from sendonce.testing.sandbox import ChannelRules, SandboxSettings, sandbox_in_thread
from tests.integration.service import WITHIN_S, add_template, configure, reminders, states, wait_for

pytestmark = pytest.mark.sqlite_only
DELIVERIES = 20


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux' own")
def test_a_real_process_without_file_handles_loses_nothing_and_goes_on(tmp_path: Path) -> None:
    """It takes some seconds, since a process has to start."""
    rules = ChannelRules(latency_s=(0.02, 0.05))
    with ExitStack() as opened:
        sandbox = opened.enter_context(sandbox_in_thread(SandboxSettings(sms=rules)))
        config = configure(tmp_path / "s.toml", f"sqlite:///{tmp_path}/s.db", sandbox.http_port, rate=100)
        app = opened.enter_context(App(load(config, environ={})))
        add_template(app)
        log = tmp_path / "up.log"
        command = [sys.executable, "-m", "sendonce", "--config", str(config), "up"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out
            )
        try:
            application = Client.of(app)
            application.schedule(reminders(1))
            wait_for(lambda: states(app) == {State.ACCEPTED: 1})
            _, most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, most))
            application.schedule(reminders(DELIVERIES, first=1))
            wait_for(lambda: '"no_handles"' in log.read_text("utf-8"))
            assert process.poll() is None
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
            wait_for(lambda: states(app) == {State.ACCEPTED: DELIVERIES + 1})
            process.terminate()
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()
            process.wait()
        report = sandbox.report()["channels"]["sms"]
        assert (report["effects"], report["duplicates"]) == (DELIVERIES + 1, 0)
        rows = app.store.read(lambda tx: tx.deliveries.by_ids([*range(1, DELIVERIES + 2)]))
        assert [row.course.failures for row in rows] == [0] * (DELIVERIES + 1), (
            "the provider was not at fault"
        )
        assert verify(app.store).ok
    told = [json.loads(line) for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
    assert {line["account"] for line in told if line["event"] == "no_handles"} == {"text"}


def test_a_store_that_cannot_be_opened_for_want_of_handles_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "none_left", lambda: True)
    with pytest.raises(StoreUnavailable, match="may open no more files; raise its limit"):
        sqlite.open_store(f"sqlite:///{tmp_path}/no/folder.db", SystemClock())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_what_says_so_itself_and_what_was_caused_by_it(number: int) -> None:
    cause = OSError(number, os.strerror(number))
    assert handles.is_none_left(cause)
    failure = ConnectionError("no connection")
    failure.__cause__ = cause
    assert handles.is_none_left(failure)
    assert not handles.is_none_left(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
    assert not handles.none_left()


def test_a_look_up_of_names_that_hides_it_is_seen_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", none)
    assert handles.is_none_left(OSError(-3, "Temporary failure in name resolution"))
