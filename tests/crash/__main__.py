"""`python -m tests.crash [--minutes N] [--store NAME] [--seed N] [--every SECONDS] [--folder DIRECTORY]`"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.crash.run import Options, run, world
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
    folder = (asked.folder or Path(tempfile.mkdtemp(prefix="sendonce-crash-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"--folder {folder} must be empty: name another one")
    seed = asked.seed if asked.seed is not None else secrets.randbelow(100_000)
    options = Options(asked.minutes, asked.store, seed, asked.every, folder)
    _say(f"crash run on {asked.store} with seed {seed}, for {asked.minutes:g} minutes, in {folder}")
    with ExitStack() as stack:
        place = world(stack, options)
        verdict = judge(options, place, run(options, place, _say))
    for line in verdict.recovery:
        _say(line)
    for problem in verdict.problems[:TOLD_MAX]:
        _say(f"not as promised: {problem}")
    if verdict.problems:
        _say(f"{len(verdict.problems)} problems; logs, journal and configuration are in {folder}")
    elif asked.folder is None:
        shutil.rmtree(folder)
    _say(verdict.line())
    return 1 if verdict.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash", description="Kill and stop real processes at random."
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long things go wrong (10)")
    parser.add_argument("--store", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--seed", type=int, help="of the faults; without it, another one each time")
    parser.add_argument("--every", type=float, default=3.0, metavar="SECONDS", help="between two faults (3)")
    parser.add_argument("--folder", type=Path, help="an empty one, kept; else a temporary one")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
