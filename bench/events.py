"""events: how fast what providers say later is taken in over HTTP, durably, and whether a burst loses any.

`sendonce api` serves from a process of its own; this one calls it as a provider does, signed, on the same
machine, each event with a receipt of its own. What was taken in is counted in the store, and must be all. A
burst comes over more connections than a process serves at once, so some calls are told to come again, as
providers do; then too all must be there, once.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench import machine
from bench.api import NOWHERE, served, together
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, Subject, sendonce
from sendonce.pipeline.record import counts_of_events
from sendonce.ports.store import EventLook

PATH: Final = "/v1/events/text"
SECRET: Final = "of the bench"
IN_CALL: Final = 50
CALLS: Final = 200
SINGLES: Final = 4_000
CONNECTIONS: Final = 16
BURST: Final = 20_000
BURST_IN_CALL: Final = 5
BURST_CONNECTIONS: Final = 450
AGAIN_S: Final = 0.5
TRIES: Final = 100

FIGURES: Final = (
    Figure("single", "/s", f"events a second, one in a call, over {CONNECTIONS} connections"),
    Figure("single_cpu", "ms", "CPU of one, the service", digits=2),
    Figure("batch", "/s", f"events a second, {IN_CALL} in a call", at_least=2_000),
    Figure("batch_cpu", "ms", "CPU of one of them, the service", digits=2),
    Figure("burst", "/s", f"a burst of {BURST:,}, {BURST_IN_CALL} in a call, all at once"),
    Figure("burst_lost", "", "of the burst, answered or not, not in the store", at_most=0),
    Figure("burst_again", "", "calls of the burst that were told to come again"),
)


@dataclass
class Told:
    """What became of calls. `again`: answers that said to tell it again."""

    took_s: float
    again: int


def run(scale: Scale) -> Mapping[str, float]:
    account = Account(NOWHERE, event_secret=SECRET)
    with sendonce(account, scale.store) as subject, served(subject) as (service, port, _):
        tell(port, bodies("warm", IN_CALL, 2), 1)
        single, single_cpu = timed(subject, service, port, bodies("single", 1, SINGLES))
        batch, batch_cpu = timed(subject, service, port, bodies("batch", IN_CALL, CALLS))
        before = kept(subject)
        calls = bodies("burst", BURST_IN_CALL, BURST // BURST_IN_CALL)
        burst = tell(port, calls, BURST_CONNECTIONS)
        lost = BURST - (kept(subject) - before)
    return {
        "single": SINGLES / single.took_s,
        "single_cpu": single_cpu / SINGLES * 1_000,
        "batch": CALLS * IN_CALL / batch.took_s,
        "batch_cpu": batch_cpu / (CALLS * IN_CALL) * 1_000,
        "burst": BURST / burst.took_s,
        "burst_lost": lost,
        "burst_again": burst.again,
    }


def timed(subject: Subject, service: int, port: int, calls: Sequence[bytes]) -> tuple[Told, float]:
    """What became of the calls, whose events must all be kept, and the service's CPU."""
    before, cpu = kept(subject), machine.tree_cpu_s(service)
    told = tell(port, calls, CONNECTIONS)
    cpu = machine.tree_cpu_s(service) - cpu
    wanted = sum(len(json.loads(body)) for body in calls)
    assert kept(subject) - before == wanted, (kept(subject), before, wanted)
    return told, cpu


def kept(subject: Subject) -> int:
    """Events that are in the store; nobody applies them here."""
    with subject.open() as app:
        return app.store.read(counts_of_events)[EventLook.WAITS]


def bodies(name: str, in_call: int, calls: int) -> list[bytes]:
    return [
        json.dumps(
            [
                {"event": "delivered", "id": f"{name}-{call}-{n}", "to": f"+1202{2_000_000 + call:07}"}
                for n in range(in_call)
            ]
        ).encode()
        for call in range(calls)
    ]


def tell(port: int, calls: Sequence[bytes], connections: int) -> Told:
    """All of them over so many connections, each as soon as it can, and again where it was asked to."""
    waiting = iter(calls)
    lock = threading.Lock()
    again = [0]

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while True:
            with lock:
                body = next(waiting, None)
            if body is None:
                break
            tries = _until_taken(connection, body)
            with lock:
                again[0] += tries - 1
        connection.close()

    begun = time.perf_counter()
    together([work] * connections)
    return Told(time.perf_counter() - begun, again[0])


def _until_taken(connection: http.client.HTTPConnection, body: bytes) -> int:
    for tries in range(1, TRIES + 1):
        at = str(int(time.time()))
        signature = hmac.new(SECRET.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers = {"X-Signature": signature, "X-Timestamp": at, "Content-Type": "application/json"}
        connection.request("POST", PATH, body, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status == 200:
            return tries
        assert response.status == 503, answer[:300]
        time.sleep(AGAIN_S)
    raise AssertionError(f"a call was told {TRIES} times to come again")


MEASUREMENT: Final = Measurement("events", "what providers say later, over HTTP", FIGURES, run)
