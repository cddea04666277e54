"""`simulate`: prove the product against everything that goes wrong, seed by seed, in virtual time.

Each seed is a world of its own and runs in no real time; several run side by side, one on each core. A seed
that fails prints the command that runs it again and the shortest history that still fails.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import BAD, CARE, QUIET, Screen
from sendonce.cli.shell import Shell, command
from sendonce.core.errors import InvalidInput

if TYPE_CHECKING:
    from sendonce.testing.simulator import Outcome, Profile

SEEDS_MAX: Final = 1_000_000
SHOWN_MAX: Final = 3
"""So many failing seeds are shrunk and shown; the others are named."""
MISSING_MAX: Final = 40


def add_to(app: typer.Typer) -> None:
    command(app, rich_help_panel="Try it")(simulate)


def simulate(
    shell: Shell,
    seeds: Annotated[str, typer.Option(metavar="A-B", help="Which seeds; one number is one seed.")] = "1-30",
    faults: Annotated[
        str, typer.Option(metavar="PROFILE", help="What goes wrong: calm, standard, storm or beyond.")
    ] = "standard",
    store: Annotated[str, typer.Option(help="memory, or file: a real file of SQLite.")] = "memory",
    deliveries: Annotated[
        int, typer.Option(help="In each seed; 0: as many as its world has the pace for.", min=0, max=5_000)
    ] = 0,
    jobs: Annotated[int, typer.Option(help="Seeds at a time; 0: one for each core.", min=0, max=256)] = 0,
    shrink: Annotated[bool, typer.Option(help="Look for the shortest history of a seed that fails.")] = True,
) -> Exit:
    """Run this program's own stages in a simulated world of crashes, lost answers and bad moments.

    It needs no configuration and touches nothing but, with --store file, a temporary folder. The last line
    counts what went wrong on the way and what must never be; anything but zeros there is a failure.
    """
    first, last = _range(seeds)
    profile = _profile(faults, deliveries)
    if store not in ("memory", "file"):
        raise InvalidInput(f"--store {store!r:.40}: use memory or file", field="--store")
    jobs = min(jobs or os.cpu_count() or 1, last - first + 1)
    total, screen = _Total(), shell.screen
    with screen.progress("simulating", last - first + 1) as bar:
        for outcome in _outcomes(range(first, last + 1), profile, jobs, in_file=store == "file"):
            total.add(outcome)
            bar.to(total.seeds, last - first + 1)
            if not outcome.ok:
                again = f"sendonce simulate --seeds {outcome.seed} --faults {profile.name}"
                again += f" --deliveries {deliveries}" if deliveries else ""
                again += f" --store {store}" if store != "memory" else ""
                shown = shrink and len(total.failed) <= SHOWN_MAX
                _tell_failure(screen, outcome, profile, again, shrink=shown)
    return _tell(screen, total, profile)


def _range(seeds: str) -> tuple[int, int]:
    first, dash, last = seeds.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise InvalidInput(f"--seeds {seeds!r:.40}: write two numbers, such as 1-30, or one", field="--seeds")
    begin, end = int(first), int(last) if dash else int(first)
    if not begin <= end < begin + SEEDS_MAX:
        raise InvalidInput(
            f"--seeds {seeds!r:.40}: from the lower number to the higher, at most {SEEDS_MAX:,} at once",
            field="--seeds",
        )
    return begin, end


def _profile(name: str, deliveries: int) -> Profile:
    from sendonce.testing.simulator import PROFILES

    if name not in PROFILES:
        raise InvalidInput(f"--faults {name!r:.40}: use one of {', '.join(PROFILES)}", field="--faults")
    profile = PROFILES[name]
    return replace(profile, deliveries=deliveries) if deliveries else profile


@dataclass(slots=True)
class _Total:
    """What all seeds came to."""

    seeds: int = 0
    deliveries: int = 0
    crashes: int = 0
    pauses: int = 0
    uncertain: int = 0
    lost: int = 0
    duplicates: int = 0
    cancelled_yet_sent: int = 0
    over_limit: int = 0
    virtual_s: float = 0.0
    failed: list[int] = field(default_factory=list)
    hit: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    def add(self, outcome: Outcome) -> None:
        counts = outcome.counts
        self.seeds += 1
        self.deliveries += counts.deliveries
        self.crashes += outcome.crashes
        self.pauses += outcome.pauses
        self.uncertain += counts.uncertain
        self.lost += counts.lost
        self.duplicates += counts.duplicates
        self.cancelled_yet_sent += counts.cancelled_yet_sent
        self.over_limit += counts.over_limit
        self.virtual_s += outcome.virtual_s
        self.hit.update(outcome.hit)
        self.states.update(counts.states)
        if not outcome.ok:
            self.failed.append(outcome.seed)


def _outcomes(seeds: range, profile: Profile, jobs: int, *, in_file: bool) -> Iterator[Outcome]:
    work = [(seed, profile, in_file) for seed in seeds]
    if jobs == 1:
        yield from map(_one, work)
        return
    with _pool(jobs) as pool:
        yield from pool.imap(_one, work)


@contextmanager
def _pool(jobs: int) -> Iterator[multiprocessing.pool.Pool]:
    """Processes that leave Ctrl-C to us, and are gone when we are."""
    context = multiprocessing.get_context("spawn")
    pool = context.Pool(jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    try:
        yield pool
    finally:
        pool.terminate()
        pool.join()


def _one(work: tuple[int, Profile, bool]) -> Outcome:
    from sendonce.testing.simulator import run_seed

    seed, profile, in_file = work
    if not in_file:
        return run_seed(seed, profile)
    with tempfile.TemporaryDirectory(prefix="sendonce-simulate-") as folder:
        return run_seed(seed, profile, path=Path(folder) / "simulated.db")


def _tell_failure(screen: Screen, outcome: Outcome, profile: Profile, again: str, *, shrink: bool) -> None:
    screen.say(f"seed {outcome.seed} fails: {outcome.broken[0]}", style=BAD)
    screen.say(f"  again: {again}")
    if shrink:
        from sendonce.testing.simulator import shrink as shorten

        with screen.progress("looking for a shorter history") as bar:
            found = shorten(outcome, profile, progress=bar.to)
        for line in found.lines():
            screen.say(f"  {line}")


def _tell(screen: Screen, total: _Total, profile: Profile) -> Exit:
    from sendonce.testing.simulator import Coverage, Fault

    coverage = Coverage(total.hit)
    faults = [fault for fault in Fault if fault in profile.chances]
    missing = coverage.missing(faults)
    took_s = max(0.001, time.monotonic() - total.began)
    ends = ", ".join(f"{number:,} {state}" for state, number in total.states.most_common())
    pace = total.deliveries / took_s * 60
    screen.say(f"{total.virtual_s / 3600:.1f} hours of virtual time, {pace:,.0f} deliveries a minute")
    screen.say(f"they ended: {ends}")
    if missing:
        screen.say(f"{len(missing)} places were never reached; more seeds reach more:", style=CARE)
        for item in missing[:MISSING_MAX]:
            screen.say(f"  {item}", style=QUIET)
    if total.failed:
        screen.say(f"seeds that fail: {', '.join(map(str, total.failed))}", style=BAD)
    screen.document(
        {
            name: getattr(total, name)
            for name in (
                "seeds", "deliveries", "crashes", "pauses", "uncertain", "lost", "duplicates",
                "cancelled_yet_sent", "over_limit", "virtual_s", "failed", "states",
            )
        }
        | {"coverage": coverage.percent(faults), "missing": missing, "hit": dict(sorted(total.hit.items()))}
    )  # fmt: skip
    screen.say(
        f"simulate: seeds={total.seeds} deliveries={total.deliveries} crashes={total.crashes} "
        f"pauses={total.pauses} uncertain={total.uncertain} lost={total.lost} "
        f"duplicates={total.duplicates} cancelled_yet_sent={total.cancelled_yet_sent} "
        f"over_limit={total.over_limit} coverage={coverage.percent(faults)}%"
    )
    return Exit.PARTLY if total.failed else Exit.OK
