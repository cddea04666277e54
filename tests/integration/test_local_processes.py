"""Five processes on one store, against a provider in a sixth that counts for itself.

One worker is killed in the middle of its calls, one is stopped past its lease and continued. With an account
of class K nothing is lost, nothing comes twice, and both limits hold at the provider's door.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from sendonce.app import App
from sendonce.config import load
from sendonce.core.lifecycle import State
from sendonce.pipeline.record import Line, lines_of
from sendonce.testing.sandbox import ChannelRules, SandboxSettings, Trigger, sandbox_in_process
from tests.integration.processes import pid_of, process
from tests.integration.service import WITHIN_S, configure, schedule, states, wait_for

DELIVERIES = 180
RATE = 40
LANES = 10


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/sendonce.db"
    return str(request.getfixturevalue("postgres_url"))


def test_three_workers_two_schedulers_one_killed_one_stopped(url: str, tmp_path: Path) -> None:
    """DUP-07, RATE-13."""
    rules = ChannelRules(latency_s=(0.15, 0.25), lost_after=Trigger(every=23), error_before=Trigger(every=31))
    with ExitStack() as opened:
        sandbox = opened.enter_context(sandbox_in_process(SandboxSettings(sms=rules)))
        config = configure(tmp_path / "sendonce.toml", url, sandbox.http_port, rate=RATE, lanes=LANES)
        app = opened.enter_context(App(load(config, environ={})))
        schedule(app, DELIVERIES)

        for _ in range(2):
            opened.enter_context(process(config, "scheduler"))
        killed, stopped, steady = (opened.enter_context(process(config, "worker")) for _ in range(3))

        wait_for(lambda: sandbox.report()["channels"]["sms"]["effects"] >= 30)
        wait_for(lambda: _open_calls(app, killed) >= 2)
        killed.kill()
        wait_for(lambda: _open_calls(app, stopped) >= 2)
        os.kill(pid_of(stopped), signal.SIGSTOP)
        wait_for(lambda: _lease_is_over(app, stopped))
        time.sleep(1.5)  # whatever it holds is given to the others; unless it froze with the file's lock
        # or with rows of PostgreSQL locked, which that ends after a while
        os.kill(pid_of(stopped), signal.SIGCONT)

        wait_for(lambda: states(app) == {State.ACCEPTED: DELIVERIES})
        for each in (steady, stopped):
            each.terminate()
            each.join(WITHIN_S)
            assert each.exitcode == 0, "a stop is graceful, also of one that was frozen"

        report = sandbox.report()["channels"]["sms"]
        assert (report["effects"], report["markers"], report["duplicates"]) == (DELIVERIES, DELIVERIES, 0)
        assert report["worst_window"]["calls"] <= RATE, report["worst_window"]
        assert report["most_in_flight"] <= LANES
        assert report["lost_responses"] > 0
        ledgers = _ledgers(app)
        assert all(_count(lines, "published") == 1 for lines in ledgers), "two schedulers, once each"
        lost = Counter(
            line.word("process").split("-")[-2]
            for lines in ledgers
            for line in lines
            if line.word("evidence") == "lease_lost"
        )
        assert lost[str(pid_of(killed))] >= 1, "it died in the middle of something"
        assert {pid for line in _claims(ledgers) for pid in [line.actor.split("-")[-2]]} == {
            str(pid_of(each)) for each in (killed, stopped, steady)
        }, "all three took part"
        assert app.store.read(lambda tx: tx.calls.count("text")) == 0


def _open_calls(app: App, one: BaseProcess) -> int:
    """The calls that a process has open, by the store."""
    calls = app.store.read(lambda tx: tx.calls.overdue(2**62, 1_000))
    return sum(f"-{pid_of(one)}-" in lost.call.process for lost in calls)


def _lease_is_over(app: App, one: BaseProcess) -> bool:
    dead = app.store.read(lambda tx: tx.processes.dead(tx.steady))
    return any(gone.pid == pid_of(one) for gone in dead)


def _ledgers(app: App) -> list[list[Line]]:
    return app.store.read(lambda tx: [lines_of(tx, id_) for id_ in range(1, DELIVERIES + 1)])


def _count(lines: list[Line], event: str) -> int:
    return sum(line.event == event for line in lines)


def _claims(ledgers: list[list[Line]]) -> list[Line]:
    return [line for lines in ledgers for line in lines if line.event == "claimed"]
