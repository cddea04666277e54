"""`python -m bench [NAME ...] [--store NAME] [--full] [--runs N] [--json FILE]`: tables, and JSON to keep."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from bench import drain, future, import_file, machine, memory, pacing, peers, reaction
from bench.measurement import Measurement, Result, Scale

MEASUREMENTS: dict[str, Measurement] = {
    measurement.name: measurement
    for measurement in (
        drain.MEASUREMENT,
        import_file.MEASUREMENT,
        future.MEASUREMENT,
        memory.MEASUREMENT,
        pacing.MEASUREMENT,
        reaction.MEASUREMENT,
        peers.MEASUREMENT,
    )
}
STORES = ("sqlite", "postgresql")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what sendonce costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; none: all")
    parser.add_argument("--store", choices=STORES, help="only on this one; without it, on each")
    parser.add_argument("--full", action="store_true", help="the sizes that the targets are stated for")
    parser.add_argument("--runs", type=int, default=1, help="runs of each; their median is shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every run as JSON")
    asked = parser.parse_args()
    for name in asked.names:
        if name not in MEASUREMENTS:
            parser.error(f"{name!r} is not measured: choose from {', '.join(MEASUREMENTS)}")
    if asked.runs < 1:
        parser.error("--runs must be at least 1")
    scales = [
        Scale(full=asked.full, runs=asked.runs, store=store)
        for store in ([asked.store] if asked.store else STORES)
    ]
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine.description()}\n", flush=True)
    results = [
        measured(MEASUREMENTS[name], scale)
        for name in asked.names or MEASUREMENTS
        for scale in scales
        if scale.store in MEASUREMENTS[name].stores
    ]
    if asked.json:
        whole = {"machine": machine.description(), "full": asked.full, "results": [r.json() for r in results]}
        asked.json.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    missed = [f"{result.title} {name}" for result in results for name in result.missed]
    print(f"missed: {', '.join(missed)}" if missed else "every target was met")


def measured(measurement: Measurement, scale: Scale) -> Result:
    """All runs of one measurement, shown as soon as they are over."""
    runs = []
    for _ in range(scale.runs):
        machine.wait_until_quiet()
        runs.append(measurement.run(scale))
    result = Result(measurement, scale.store, runs)
    print(result.markdown(), flush=True)
    return result


if __name__ == "__main__":
    main()
