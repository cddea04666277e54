"""What a person or a program sees of a command.

The answer goes to stdout: tables and lines for people, or with `--json` one JSON document (one line
each for a stream), and nothing else ever does. Progress, notes and errors go to stderr. Colours,
boxes and bars are for terminals: a file or a pipe gets plain lines, `NO_COLOR` is honoured.

JSON keys are the field names of the values shown. Instants (`*_at`, `mark`, `until`) are ISO 8601 in UTC, or
null where there is none.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

BAR_AFTER_S: Final = 2.0
"""Nobody needs a bar for less."""

PLAIN_WIDTH: Final = 32_767
"""Lines that are not on a terminal are never wrapped: they are for grep."""

GOOD: Final = "green"
BAD: Final = "bold red"
CARE: Final = "yellow"
QUIET: Final = "dim"

NEVER: Final = 253_402_300_800_000_000
"""The end of the calendar: the year 10000."""

INSTANTS: Final = ("mark", "mark_before", "until", "now", "at")

Cell = str | int | Text


class Screen:
    """One command's output. `as_json`: for programs."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)
        self._after_table = False

    @property
    def live(self) -> bool:
        """Whether something may move on the screen."""
        return self.err.is_terminal and not self.as_json

    # For programs

    def document(self, value: object) -> None:
        """The answer as one JSON document. Does nothing without `--json`."""
        if self.as_json:
            sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")

    def line(self, value: object) -> None:
        """One item of a stream as one line of JSON. Does nothing without `--json`."""
        if self.as_json:
            sys.stdout.write(json.dumps(plain(value), ensure_ascii=False) + "\n")
            sys.stdout.flush()

    # For people

    def say(self, text: str | Text = "", *, style: str = "") -> None:
        """A line of the answer. Does nothing with `--json`."""
        if not self.as_json:
            self.out.print(shown(text, style), soft_wrap=not self.out.is_terminal)
            self._after_table = False

    def note(self, text: str | Text, *, style: str = QUIET) -> None:
        """A line beside the answer, on stderr."""
        self.err.print(shown(text, style), soft_wrap=not self.err.is_terminal)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "") -> None:
        """A table for people; columns whose name begins with "#" hold numbers."""
        if self.as_json:
            return
        if not self.out.is_terminal:
            self._plain_table(columns, rows)
            return
        table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
        for name in columns:
            right = name.startswith("#")
            table.add_column(name.lstrip("#"), justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(clean(str(cell))) for cell in row))
        self.out.print(table)

    def _plain_table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Columns in line, no frames, nothing cut: for pipes and files."""
        if self._after_table:
            sys.stdout.write("\n")
        self._after_table = True
        texts = [[name.lstrip("#") for name in columns]]
        texts += [[clean(str(cell)) for cell in row] for row in rows]
        widths = [max(len(row[at]) for row in texts) for at in range(len(columns))]
        for row in texts:
            cells = [
                cell.rjust(width) if name.startswith("#") else cell.ljust(width)
                for cell, width, name in zip(row, widths, columns, strict=True)
            ]
            sys.stdout.write("  ".join(cells).rstrip() + "\n")

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Bar]:
        """A bar that appears once the work has taken two seconds, on a terminal only."""
        bar = Bar(Progress(*_bar_columns(), console=self.err, transient=True), what, total, live=self.live)
        try:
            yield bar
        finally:
            bar.stop()


class Bar:
    """How far some work is."""

    def __init__(self, progress: Progress, what: str, total: int | None, *, live: bool) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total, note="")
        self._live = live
        self._since = time.monotonic()
        self._shown = False

    def to(self, done: int, total: int | None = None, *, note: str = "") -> None:
        """So much is done; `total` where it is known only now, `note` instead of the number."""
        if self._live and self._is_time():
            self._progress.update(self._task, completed=done, total=total, note=note or f"{done:,}")

    def stop(self) -> None:
        if self._shown:
            self._progress.stop()

    def _is_time(self) -> bool:
        if not self._shown and time.monotonic() - self._since >= BAR_AFTER_S:
            self._progress.start()
            self._shown = True
        return self._shown


def plain(value: object) -> object:
    """A value as JSON knows it: dataclasses by their fields, enumerations by their word, instants as text."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {
            str(plain(name)): instant(item) if _is_instant(name, item) else plain(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def instant(at: int) -> str | None:
    """Microseconds UTC as ISO 8601; None for 0, which stands for "none", and for "without an end"."""
    if not 0 < at < NEVER:
        return None
    seconds, micros = divmod(at, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"


def when(at: int) -> str:
    """Microseconds UTC for people: to the second, with its zone."""
    if not 0 < at < NEVER:
        return "-"
    return f"{datetime.fromtimestamp(at // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}Z"


def clock(at: int) -> str:
    """Only the time of day, UTC."""
    return f"{datetime.fromtimestamp(at // 1_000_000, UTC):%H:%M:%SZ}"


def clean(text: str) -> str:
    """Without control characters: what stands in a file must not steer the operator's terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "�" for char in text)


def shown(text: str | Text, style: str = "") -> Text:
    return text if isinstance(text, Text) else Text(clean(text), style=style)


def counted(number: int, one: str, many: str = "") -> str:
    """ "1 row", "4,000 rows"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _is_instant(name: object, item: object) -> bool:
    if not isinstance(name, str) or isinstance(item, bool) or not isinstance(item, int):
        return False
    return name.endswith("_at") or name in INSTANTS


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty()
    return Console(
        stderr=stderr, highlight=False, emoji=False, markup=False, width=None if terminal else PLAIN_WIDTH
    )


def _bar_columns() -> tuple[TextColumn, BarColumn, TextColumn, TimeElapsedColumn]:
    return (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
