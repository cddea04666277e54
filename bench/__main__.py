"""Tables, and JSON to keep.

    python -m bench [NAME ...] [--store NAME] [--full] [--runs N] [--json FILE]
    python -m bench peers [--round NAME] [--peer NAME] ...

Tables go to stdout; what is under way, where that takes long, to stderr.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from bench import (
    api,
    console,
    drain,
    events,
    future,
    import_file,
    machine,
    memory,
    pacing,
    peers,
    reaction,
    seal,
    steady,
)
from bench.measurement import Measurement, Result, Scale

MEASUREMENTS: dict[str, Measurement] = {
    measurement.name: measurement
    for measurement in (
        api.MEASUREMENT,
        console.MEASUREMENT,
        drain.MEASUREMENT,
        events.MEASUREMENT,
        import_file.MEASUREMENT,
        future.MEASUREMENT,
        memory.MEASUREMENT,
        pacing.MEASUREMENT,
        reaction.MEASUREMENT,
        seal.MEASUREMENT,
        steady.MEASUREMENT,
    )
}
PEERS: Final = "peers"
NAMES: Final = (*MEASUREMENTS, PEERS)
STORES: Final = ("sqlite", "postgresql")


class Shown(Protocol):
    """What a measurement found."""

    @property
    def title(self) -> str: ...
    @property
    def missed(self) -> Sequence[str]: ...
    def markdown(self) -> str: ...
    def json(self) -> dict[str, Any]: ...


def main() -> None:
    asked = parse()
    stores = [asked.store] if asked.store else list(STORES)
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine.description()}\n", flush=True)
    results = []
    for name in asked.names or NAMES:
        for result in compared(asked, stores) if name == PEERS else taken(MEASUREMENTS[name], asked, stores):
            print(result.markdown(), flush=True)
            results.append(result)
    if asked.json:
        whole = {"machine": machine.description(), "full": asked.full, "results": [r.json() for r in results]}
        asked.json.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    missed = [f"{result.title} {name}" for result in results for name in result.missed]
    print(f"missed: {', '.join(missed)}" if missed else "every target was met")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What is asked for. Ends the program on a name that is not known."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what sendonce costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    parser.add_argument("--store", choices=STORES, help="only on this one; without it, on each")
    parser.add_argument("--full", action="store_true", help="the sizes that the targets are stated for")
    parser.add_argument("--runs", type=int, default=1, help="runs of each; their median is shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every run as JSON")
    parser.add_argument(
        "--round",
        action="append",
        choices=tuple(peers.ROUNDS),
        help="of peers, only this one; may be repeated",
    )
    parser.add_argument(
        "--peer", action="append", choices=peers.NAMES, help="only this peer beside us; may be repeated"
    )
    asked = parser.parse_args(arguments)
    for name in asked.names:
        if name not in NAMES:
            parser.error(f"{name!r} is not measured: choose from {', '.join(NAMES)}")
    if asked.runs < 1:
        parser.error("--runs must be at least 1")
    if (asked.round or asked.peer) and PEERS not in (asked.names or NAMES):
        parser.error("--round and --peer belong to `peers`: name it, as in `peers --round kill`")
    return asked


def compared(asked: argparse.Namespace, stores: Sequence[str]) -> Iterator[Shown]:
    """Each round of `peers`."""
    scale = Scale(full=asked.full, runs=asked.runs)
    return peers.compare(
        scale, stores, rounds=asked.round or tuple(peers.ROUNDS), names=asked.peer or peers.NAMES
    )


def taken(measurement: Measurement, asked: argparse.Namespace, stores: Sequence[str]) -> Iterator[Shown]:
    """A measurement on each store that it can be taken on."""
    for store in stores:
        if store in measurement.stores:
            yield measured(measurement, Scale(full=asked.full, runs=asked.runs, store=store))


def measured(measurement: Measurement, scale: Scale) -> Result:
    """All runs of one measurement."""
    runs = []
    for _ in range(scale.runs):
        machine.wait_until_quiet()
        runs.append(measurement.run(scale))
    return Result(measurement, scale.store, runs)


if __name__ == "__main__":
    main()
