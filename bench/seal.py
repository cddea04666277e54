"""seal: what closing the ledger into signed blocks costs, against what sending the same deliveries took.

One worker drains what is due, as in `drain`; then all entries that this and the intake made are sealed at
once, by the code that a scheduler runs, and the seals are proven. CPU is that of the process and of the
database server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from bench.door import cheap_door
from bench.drain import timed
from bench.measurement import Figure, Measurement, Scale
from bench.subject import Account, sendonce
from sendonce.pipeline.sealed import check_seals
from sendonce.pipeline.sealer import Sealer
from sendonce.signing import make_key

COUNT: Final = 20_000
THOUSANDS: Final = COUNT / 1_000
PATIENCE_S: Final = 5.0

FIGURES: Final = (
    Figure("cpu", "ms", "CPU of sealing, per 1,000 deliveries", digits=2),
    Figure("server_cpu", "ms", "of it, the database server", digits=2),
    Figure("drain_cpu", "ms", "CPU of sending the same, per 1,000", digits=1),
    Figure("share", "%", "sealing to sending", digits=2, at_most=5.0),
    Figure("rate", "/s", "entries sealed a second"),
    Figure("prove_rate", "/s", "entries proven a second"),
    Figure("faults", "", "found by the proof", at_most=0, worst=True),
)


def run(scale: Scale) -> Mapping[str, float]:
    with cheap_door() as door, sendonce(Account(door.url), scale.store) as subject:
        subject.fill(COUNT)
        with subject.workers(1) as (worker,):
            sending = timed(door, worker, COUNT, subject.server_cpu_s)
        with subject.open() as app:
            _, signer = make_key()
            sealer = Sealer(app.store, signer, every_s=10.0)
            before, cpu_s, begun = subject.server_cpu_s(), time.process_time(), time.perf_counter()
            _seal_all(sealer)
            took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
            server_s = subject.server_cpu_s() - before
            begun = time.perf_counter()
            proof = check_seals(app.store, None)
            proving_s = time.perf_counter() - begun
    share = (cpu_s + server_s) / (sending["cpu"] * THOUSANDS) * 100
    return {
        "cpu": (cpu_s + server_s) / THOUSANDS * 1_000,
        "server_cpu": server_s / THOUSANDS * 1_000,
        "drain_cpu": sending["cpu"] * 1_000,
        "share": share,
        "rate": proof.entries / took_s,
        "prove_rate": proof.entries / proving_s,
        "faults": proof.faulty + (proof.entries < 4 * COUNT) + proof.unsealed,
    }


def _seal_all(sealer: Sealer) -> None:
    """Until nothing is left; a worker that has just ended may still hold its transaction for a moment."""
    until = time.monotonic() + PATIENCE_S
    while sealer.seal_one() is not None or (sealer.waits and time.monotonic() < until):
        pass


MEASUREMENT: Final = Measurement(
    "seal", f"the entries of {COUNT:,} deliveries that one worker has sent, in signed blocks", FIGURES, run
)
