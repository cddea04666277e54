"""The crash run: `python -m tests.crash [--store NAME] [--seed N] [--every SECONDS] [--folder DIRECTORY]`

with `[--minutes N]`, or `[--kills N] [--pauses N] [--restarts N]` for as long as that many take;
or with `--power N`: so many power cuts, on SQLite
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.crash import power
from tests.crash.run import Counts, Options, run, world
from tests.crash.verdict import judge

TOLD_MAX = 50


def main() -> int:
    parser = _parser()
    asked = parser.parse_args()
    # Whoever ends this run ends all that it started, those that are stopped too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if not 0 < asked.minutes <= 24 * 60:
        parser.error(f"--minutes {asked.minutes:g} must be above 0 and at most {24 * 60}")
    if not 0.5 <= asked.every <= 60:
        parser.error(f"--every {asked.every:g} must be between 0.5 and 60 seconds")
    if asked.restarts and asked.store == "sqlite":
        parser.error(f"--restarts {asked.restarts}: a file has no server to stop; --store postgresql has one")
    for name in ("kills", "pauses", "restarts"):
        if not 0 <= getattr(asked, name) <= 100_000:
            parser.error(f"--{name} {getattr(asked, name)} must be between 0 and 100000")
    if asked.power is not None and not 1 <= asked.power <= 100_000:
        parser.error(f"--power {asked.power} must be between 1 and 100000 cuts")
    folder = (asked.folder or Path(tempfile.mkdtemp(prefix="sendonce-crash-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"--folder {folder} must be empty: name another one")
    seed = asked.seed if asked.seed is not None else secrets.randbelow(100_000)
    if asked.power is not None:
        problems, line = _cut_power(asked.power, seed, folder)
    else:
        until = Counts(asked.kills, asked.pauses, asked.restarts)
        options = Options(asked.minutes, asked.store, seed, asked.every, folder, until)
        problems, line = _crash(options)
    for problem in problems[:TOLD_MAX]:
        _say(f"not as promised: {problem}")
    if problems:
        _say(f"{len(problems)} problems; what was left by the run is in {folder}")
    elif asked.folder is None:
        shutil.rmtree(folder)
    _say(line)
    return 1 if problems else 0


def _crash(options: Options) -> tuple[list[str], str]:
    until = options.until
    lasts = f"until {Counts().lacks(until)}" if until.asked else f"for {options.minutes:g} minutes"
    _say(f"crash run on {options.store} with seed {options.seed}, {lasts}, in {options.folder}")
    with ExitStack() as stack:
        place = world(stack, options)
        verdict = judge(options, place, run(options, place, _say))
    for text in verdict.recovery:
        _say(text)
    return list(verdict.problems), verdict.line()


def _cut_power(number: int, seed: int, folder: Path) -> tuple[list[str], str]:
    """As shipped, and with a store that flushes less: there it must show."""
    _say(f"{number} power cuts on sqlite with seed {seed}, in {folder}")
    shipped = power.cut(folder / "full", number, seed)
    _say(f"as shipped: {shipped}")
    less = power.cut(folder / "normal", number, seed, synchronous="NORMAL")
    _say(f"with synchronous = NORMAL: {less}")
    problems = list(shipped.problems)
    if not less.lost["called"]:
        problems.append("a store that flushes less lost no intent either: so nothing was shown")
    return problems, (
        f"power: cuts={number} seed={seed} deliveries={power.DELIVERIES} steps={shipped.steps} "
        f"lost={shipped.cuts_lost} intents_lost={shipped.lost['called']} "
        f"normal_lost={less.cuts_lost} normal_intents_lost={less.lost['called']}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash", description="Kill and stop real processes at random, or cut the power."
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="how long things go wrong (10), where no counts are"
    )
    parser.add_argument("--store", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--seed", type=int, help="of the faults; without it, another one each time")
    parser.add_argument("--every", type=float, default=3.0, metavar="SECONDS", help="between two faults (3)")
    for name, what in (
        ("kills", "processes killed"),
        ("pauses", "processes stopped for two leases or longer"),
        ("restarts", "immediate stops of the server"),
    ):
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"at least so many {what}")
    parser.add_argument("--power", type=int, metavar="CUTS", help="instead: so many power cuts, on sqlite")
    parser.add_argument("--folder", type=Path, help="an empty one, kept; else a temporary one")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
