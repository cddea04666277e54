"""Probes of real processes: what they see while one works, ends, stands by, or has lost its store."""

from __future__ import annotations

import json
import signal
import socket
from http.client import HTTPConnection
from typing import Any

import pytest

from sendonce.testing.postgres_server import PostgresServer
from sendonce.testing.sandbox import SandboxClient
from tests.e2e.command_line import Folder, ended, wait_for

GIVEN = ["--template", "shipped", "--set", "name=Ann", "--set", "parcel=1", "--customer", "c-1"]


class Probe:
    """Asks one process, on a port that was free a moment ago."""

    def __init__(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])

    def ask(self, path: str) -> tuple[int, str]:
        """Raises `ConnectionRefusedError` where nobody listens."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    @property
    def health(self) -> Any:
        return json.loads(self.ask("/health")[1])

    def listens(self) -> bool:
        try:
            return self.ask("/live")[0] == 200
        except OSError:
            return False

    def ready(self) -> bool:
        return self.listens() and self.ask("/ready") == (200, "ready\n")


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def folder(folder: Folder) -> Folder:
    folder.add_template()
    return folder


def test_a_worker_is_ready_until_it_is_asked_to_stop_and_answers_until_it_has(
    folder: Folder, sandbox: SandboxClient, probe: Probe
) -> None:
    sandbox.change(sms={"hung": {"next": 1}})
    folder.run("schedule", "r-1", "--due", "now", *GIVEN, "--phone", "+12025550101")
    folder.run("pass")
    arguments = ["worker", "--channel", "sms", "--health", str(probe.port), "--stop-after", "8s"]
    with ended(folder.process(*arguments)) as process:
        wait_for(probe.ready)
        wait_for(lambda: sandbox.report()["channels"]["sms"]["in_flight"] == 1)
        working = probe.health
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: probe.ask("/ready") == (503, "not ready: stopping\n"))
        assert probe.ask("/live") == (200, "alive\n")
        draining = probe.health
        _, err = process.communicate(timeout=15)
    assert process.returncode == 0
    assert f"health: http://127.0.0.1:{probe.port}/health" in err
    assert not probe.listens()
    ages = {"beat_age_s", "lease_left_s"}
    assert {name: value for name, value in working.items() if name not in ages | {"process", "version"}} == {
        "role": "worker",
        "state": "working",
        "ready": True,
        "lacks": [],
        "open_calls": 1,
        "leads": None,
        "look_age_s": None,
    }
    assert 0 <= working["beat_age_s"] < 30
    assert working["lease_left_s"] == pytest.approx(30 - working["beat_age_s"], abs=0.01)
    assert str(process.pid) in working["process"].split("-")
    assert (draining["state"], draining["lacks"], draining["open_calls"]) == ("draining", ["stopping"], 1)


def test_one_scheduler_works_and_the_other_stands_by_and_both_are_ready(folder: Folder) -> None:
    first, second = Probe(), Probe()
    with (
        ended(folder.process("scheduler", "--health", f"localhost:{first.port}")),
        ended(folder.process("scheduler", "--health", str(second.port))),
    ):
        wait_for(lambda: first.ready() and second.ready())
        told = [first.health, second.health]
    assert sorted(each["state"] for each in told) == ["standing_by", "working"]
    assert sorted(each["leads"] for each in told) == [False, True]
    assert all(each["look_age_s"] >= 0 for each in told)
    assert {each["open_calls"] for each in told} == {0}


@pytest.mark.parametrize("role", ["up", "worker", "scheduler"])
def test_without_its_store_a_process_lives_and_is_not_ready_until_it_is_back(
    folder: Folder, probe: Probe, role: str, monkeypatch: pytest.MonkeyPatch, store_of_its_own: PostgresServer
) -> None:
    """STOR-05."""
    server = store_of_its_own
    monkeypatch.setenv("SENDONCE_STORE_URL", server.create_database(role))
    monkeypatch.setenv("SENDONCE_HEALTH", f"127.0.0.1:{probe.port}")
    config = folder.path / "sendonce.toml"
    config.write_text(config.read_text("utf-8") + '\n[worker]\nlease = "5s"\n', "utf-8")
    with ended(folder.process(role)) as process:
        wait_for(probe.ready)
        server.stop(immediate=True)
        try:
            wait_for(lambda: probe.ask("/ready") == (503, "not ready: store_away, lease_over\n"), seconds=60)
            assert probe.health["state"] in {"working", "standing_by"}
            assert probe.ask("/live") == (200, "alive\n")
        finally:
            server.start()
        wait_for(probe.ready, seconds=30)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=25)
    assert process.returncode == 0
    assert not probe.listens()


@pytest.fixture(scope="module")
def store_of_its_own() -> Any:
    """A server that a test may stop."""
    with PostgresServer() as server:
        yield server


def test_an_address_that_is_in_use_is_told_before_any_work(folder: Folder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = folder.run("worker", "--health", port, code=2).err
    assert f"--health 127.0.0.1:{port} is in use already: give each process a port of its own" in said
    assert folder.json("overview")["processes"] == []


def test_a_value_that_is_no_address_is_told_with_the_rule(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = folder.json("scheduler", "--health", "all:8081:", code=2)["error"]
    assert error["field"] == "--health"
    assert "'all:8081:' must be PORT or HOST:PORT with a port from 1 to 65535" in error["message"]
    monkeypatch.setenv("SENDONCE_HEALTH", "99999")
    assert "'99999' must be PORT or HOST:PORT" in folder.run("up", code=2).err


def test_each_process_shows_what_it_did_and_all_show_what_stands_in_the_store(
    folder: Folder, sandbox: SandboxClient, probe: Probe
) -> None:
    """A real run: what was sent stands in the worker's counts, the gate in what both processes show."""
    other = Probe()
    for number in range(3):
        folder.run("schedule", f"r-{number}", "--due", "now", *GIVEN, "--phone", f"+1202555010{number}")
    scheduler = folder.process("scheduler", "--health", str(other.port))
    worker = folder.process("worker", "--channel", "sms", "--health", str(probe.port))

    def values(of: Probe) -> dict[str, float]:
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in of.ask("/metrics")[1].splitlines()
            if not line.startswith("#")
        }

    labels = 'account="text",channel="sms"'
    accepted = f'sendonce_attempts_total{{{labels},outcome="accepted"}}'
    published = 'sendonce_publish_lateness_seconds_count{channel="sms"}'
    with ended(scheduler), ended(worker):
        wait_for(lambda: probe.ready() and other.ready())
        wait_for(lambda: values(probe).get(accepted) == 3.0, seconds=60.0)
        assert values(other)[published] == 3.0
        assert values(other)[accepted] == 0.0
        lanes = f"sendonce_lanes{{{labels}}}"
        wait_for(lambda: lanes in values(probe) and lanes in values(other), seconds=60.0)
        assert values(probe)[lanes] == values(other)[lanes]
        assert values(probe)['sendonce_dispositions_total{channel="sms",state="accepted"}'] == 3.0
        assert sandbox.report()["channels"]["sms"]["in_flight"] == 0
