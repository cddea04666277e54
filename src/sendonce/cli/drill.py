"""`drill`: the user's own configuration against everything that goes wrong, with sandboxes for its providers.

Before a release, and after every change of a configuration: in a minute or two it shows what becomes of
killed workers, lost answers, pauses, cancels and restored backups under these accounts, limits and policies.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.padding import Padding
from rich.text import Text

from sendonce.cli.exits import Exit
from sendonce.cli.screen import BAD, CARE, GOOD, QUIET, Bar, Screen
from sendonce.cli.shell import Shell, command
from sendonce.core.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from sendonce.testing.drill import Drill, Report, Result, Scenario, Step


TICK_S: Final = 0.5


def add_to(app: typer.Typer) -> None:
    command(app, rich_help_panel="Try it")(drill)


def drill(
    shell: Shell,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as a page, too.")
    ] = None,
    sandbox_account: Annotated[
        str,
        typer.Option(
            "--sandbox-account",
            metavar="NAME",
            help="Send through this real account, which the configuration must mark `sandbox = true`.",
        ),
    ] = "",
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario",
            metavar="WORDS",
            help="Only those with these words in their name; may be given again.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", help="Scenarios at a time.", min=1, max=16)] = 3,
) -> Exit:
    """Try your configuration against everything that goes wrong, with sandboxes in the providers' place.

    The store is a file of its own in a temporary folder; yours is not opened. No configured provider is
    called, unless --sandbox-account names one.
    """
    from sendonce.config import find
    from sendonce.testing.drill import page, prepared, report_of

    config = find(shell.given.config, os.environ, Path.cwd())
    if html is not None and not html.parent.is_dir():
        raise InvalidInput(f"--html {html}: there is no folder {html.parent}: make it first", field="--html")
    with _folder() as folder:
        prepared_drill = prepared(config, folder.path, environ=os.environ, sandbox_account=sandbox_account)
        chosen = _chosen(prepared_drill, scenario or [])
        at, begun = time.time_ns() // 1000, time.monotonic()
        _tell_about(shell.screen, report_of(prepared_drill, [], at=at, took_s=0.0))
        results = _run(shell.screen, prepared_drill, chosen, jobs)
        report = report_of(prepared_drill, results, at=at, took_s=time.monotonic() - begun)
        folder.keep = not report.totals.ok
    if html is not None:
        _write(html, page(report))
    _tell(shell.screen, report, folder, html)
    return Exit.OK if report.totals.ok else Exit.PARTLY


class _Folder:
    """Where the stores and logs of a drill are. `keep`: for whoever looks into what failed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keep = False


@contextmanager
def _folder() -> Iterator[_Folder]:
    folder = _Folder(Path(tempfile.mkdtemp(prefix="sendonce-drill-")))
    try:
        yield folder
    finally:
        if not folder.keep:
            shutil.rmtree(folder.path, ignore_errors=True)


def _chosen(prepared_drill: Drill, words: list[str]) -> list[Scenario]:
    known = prepared_drill.scenarios()
    for word in words:
        if not any(word.casefold() in one.name.casefold() for one in known):
            names = ", ".join(f"{one.name!r}" for one in known)
            raise InvalidInput(f"--scenario {word!r:.60} is in no name: {names}", field="--scenario")
    return [
        one for one in known if not words or any(word.casefold() in one.name.casefold() for word in words)
    ]


def _run(screen: Screen, prepared_drill: Drill, chosen: list[Scenario], jobs: int) -> list[Result]:
    from sendonce.testing.drill import run

    results: list[Result] = []
    with screen.progress("drilling", len(chosen)) as bar:
        stopped = threading.Event()
        ticking = threading.Thread(target=_tick, args=(bar, results, len(chosen), stopped), daemon=True)
        ticking.start()
        try:
            for result in run(prepared_drill, chosen, jobs=jobs):
                results.append(result)
                _tell_result(screen, result)
        finally:
            stopped.set()
            ticking.join()
    return results


def _tick(bar: Bar, results: list[Result], total: int, stopped: threading.Event) -> None:
    """A scenario may take a while: the bar shows that something is going on."""
    while not stopped.wait(TICK_S):
        bar.to(len(results), total, note=f"{len(results)} of {total}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--html {path} cannot be written: {error.strerror}", code="html_unwritable"
        ) from None


# What is told


def _tell_about(screen: Screen, report: Report) -> None:
    by = "with this real account" if report.real else "with a sandbox in each provider's place"
    named = ", ".join(f"{each.name} ({each.provider}, class {each.class_})" for each in report.accounts)
    screen.say(f"{report.configuration}: {named}; {by}")
    for text in report.changes:
        screen.say(f"  not as configured: {text}", style=QUIET)
    for name in report.unreached:
        screen.say(f"  account {name}: no channel and no route leads to it, so it is not drilled", style=CARE)
    sys.stdout.flush()


def _tell_result(screen: Screen, result: Result) -> None:
    from sendonce.testing.drill import Verdict

    match result.verdict:
        case Verdict.PASSED:
            mark, style, after = "✓", GOOD, f"{result.took_s:.1f} s"
        case Verdict.FAILED:
            mark, style, after = "✗", BAD, f"{result.took_s:.1f} s"
        case Verdict.NOT_CONFIGURED:
            mark, style, after = "–", QUIET, f"not configured: {result.why}"
    screen.say(Text.assemble((mark, style), " ", (result.scenario.name, "bold"), ("  " + after, QUIET)))
    for step in result.steps:
        _tell_step(screen, step)
    sys.stdout.flush()


def _tell_step(screen: Screen, step: Step) -> None:
    mark, style = ("✓", GOOD) if step.held else ("✗", BAD)
    _indented(screen, 4, Text.assemble((mark, style), f" {step.does}"))
    _indented(screen, 6, Text(f"must: {step.must}", style=QUIET))
    _indented(screen, 6, Text(f"seen: {step.saw}", style="" if step.held else BAD))


def _indented(screen: Screen, by: int, text: Text) -> None:
    """With its further lines below its first one, on a terminal."""
    if screen.out.is_terminal and not screen.as_json:
        screen.out.print(Padding(text, (0, 0, 0, by)))
    else:
        screen.say(Text(" " * by) + text)


def _tell(screen: Screen, report: Report, folder: _Folder, html: Path | None) -> None:
    screen.document(report.document())
    for text in report.missing:
        screen.say(f"not shown by a drill: {text}", style=QUIET)
    if html is not None:
        screen.say(f"report: {html}")
    if folder.keep:
        screen.say(f"kept for a look: stores and logs of each scenario in {folder.path}", style=CARE)
    screen.say(str(report.totals))
