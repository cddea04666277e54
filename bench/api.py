"""api: how fast reminders come in over HTTP, durably, and how long one alone takes.

`sendonce api` serves from a process of its own; this one asks it, on the same machine. What came in is
counted in the store, and must be all. The single posts come as fast as the connections allow; then, at half
the rate that the target is stated for, each at its own time whether or not those before it are answered, so
that a wait is not hidden by asking later.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from bench import machine
from bench.measurement import Figure, Measurement, Scale
from bench.subject import STOP_S, Account, Subject, environment, sendonce
from sendonce.core.access import Scope
from sendonce.core.lifecycle import State
from sendonce.pipeline.api_keys import add

NOWHERE: Final = "http://127.0.0.1:9/v1/messages"
IN_CALL: Final = 1_000
CALLS: Final = 40
BULK_CONNECTIONS: Final = 2
SINGLES: Final = 4_000
CONNECTIONS: Final = 16
HALF_RATE: Final = 200
HALF_S: Final = 15.0

FIGURES: Final = (
    Figure("bulk", "/s", f"reminders a second, {IN_CALL:,} in a call", at_least=5_000),
    Figure("bulk_cpu", "s", "CPU per 1,000 of them, the service with its hands", digits=3),
    Figure("bulk_server_cpu", "s", "CPU per 1,000 of them, the database server", digits=3),
    Figure("single", "/s", f"single posts a second, over {CONNECTIONS} connections", at_least=400),
    Figure("single_cpu", "ms", "CPU of one, the service", digits=2),
    Figure("single_p50", "ms", f"a single post at {HALF_RATE}/s, the median", digits=1),
    Figure("single_p99", "ms", f"a single post at {HALF_RATE}/s, 99 of 100", digits=1, at_most=50),
)


def run(scale: Scale) -> Mapping[str, float]:
    with sendonce(Account(NOWHERE), scale.store) as subject, served(subject) as (service, port, token):
        ask(
            port, token, [bodies(IN_CALL, "warm", 1)[0]] * 2, 1
        )  # the second meets what the first has started
        before, own, server = scheduled(subject), machine.tree_cpu_s(service), subject.server_cpu_s()
        took = ask(port, token, bodies(IN_CALL, "bulk", CALLS), BULK_CONNECTIONS)[0]
        own, server = machine.tree_cpu_s(service) - own, subject.server_cpu_s() - server
        count = scheduled(subject) - before
        assert count == CALLS * IN_CALL, count
        before, cpu = scheduled(subject), machine.tree_cpu_s(service)
        single_took = ask(port, token, bodies(1, "single", SINGLES), CONNECTIONS)[0]
        cpu = machine.tree_cpu_s(service) - cpu
        assert scheduled(subject) - before == SINGLES
        times = at_pace(port, token, bodies(1, "pace", round(HALF_RATE * HALF_S)))
    return {
        "bulk": count / took,
        "bulk_cpu": own / count * 1_000,
        **({"bulk_server_cpu": server / count * 1_000} if subject.server else {}),
        "single": SINGLES / single_took,
        "single_cpu": cpu / SINGLES * 1_000,
        "single_p50": statistics.median(times) * 1_000,
        "single_p99": statistics.quantiles(times, n=100)[98] * 1_000,
    }


def scheduled(subject: Subject) -> int:
    return subject.count_in(State.SCHEDULED)


@contextmanager
def served(subject: Subject, scopes: Sequence[Scope] = (Scope.SCHEDULE,)) -> Iterator[tuple[int, int, str]]:
    """`sendonce api`: its process, its port, and a key with these scopes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with subject.open() as app:
        token = add(app.store, "bench", scopes, actor="bench", rate=10_000).token
    command = [*subject.command("api"), "--listen", str(port)]
    with (
        (subject.folder / "api.log").open("wb") as log,
        subprocess.Popen(command, cwd=subject.folder, stdout=log, stderr=log, env=environment()) as process,
    ):
        try:
            wait_until_ready(port)
            yield process.pid, port, token
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(port: int, within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise AssertionError("the service was not ready in time: see its log")


def bodies(count: int, name: str, calls: int) -> list[bytes]:
    """Calls of `count` reminders each, every one to its own customer."""
    made = []
    for call in range(calls):
        reminders = [
            {
                "reminder": f"{name}-{call}-{n}",
                "customer": f"{name}-customer-{call}-{n}",
                "due": "2030-12-01T09:00+01:00",
                "template": "parcel",
                "phone": f"+1202{2_000_000 + (call * count + n) % 7_000_000}",
                "data": {"name": "Ada Example", "parcel": f"{n:08}"},
            }
            for n in range(count)
        ]
        made.append(json.dumps({"reminders": reminders}).encode())
    return made


def ask(port: int, token: str, calls: list[bytes], connections: int) -> tuple[float, list[float]]:
    """All of them over so many connections, each as soon as it can: how long all took, and each."""
    waiting = iter(calls)
    lock = threading.Lock()
    times: list[float] = []

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while True:
            with lock:
                body = next(waiting, None)
            if body is None:
                break
            times.append(post(connection, token, body))
        connection.close()

    begun = time.perf_counter()
    together([work] * connections)
    return time.perf_counter() - begun, times


def at_pace(port: int, token: str, calls: list[bytes]) -> list[float]:
    """Each at its own time, `HALF_RATE` a second; from that time to the answer."""
    begun = time.perf_counter() + 0.1
    waiting = iter(enumerate(calls))
    lock = threading.Lock()
    times: list[float] = []

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while True:
            with lock:
                number, body = next(waiting, (0, b""))
            if not body:
                break
            due = begun + number / HALF_RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            post(connection, token, body)
            times.append(time.perf_counter() - due)
        connection.close()

    together([work] * CONNECTIONS)
    return times


def together(work: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def post(connection: http.client.HTTPConnection, token: str, body: bytes) -> float:
    """One call; how long it took. Everything in it must be in."""
    begun = time.perf_counter()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/reminders", body, headers)
    response = connection.getresponse()
    answer = response.read()
    took = time.perf_counter() - begun
    assert response.status == 200, answer[:300]
    counts = json.loads(answer)["counts"]
    assert counts.keys() <= {"accepted", "unchanged"}, counts
    return took


MEASUREMENT: Final = Measurement("api", "reminders over HTTP, in bulk and one by one", FIGURES, run)
