"""What a round found, as one table and as JSON: a row each, those that could not be measured with the reason.

A figure that is not there is an empty cell, never a zero. With several runs a cell shows the median, or the
worst, and the span; the JSON holds each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measurement import Figure
from bench.peers.rounds import Aim, Round, Taken


@dataclass(frozen=True, slots=True)
class Line:
    """One contender in a round. `why_not`: why it was not measured, or no further time; "" where it was."""

    name: str
    title: str
    is_ours: bool
    runs: Sequence[Taken] = ()
    why_not: str = ""

    def values(self, figures: Sequence[Figure]) -> dict[str, float]:
        """Over all runs that have them."""
        return {
            figure.name: figure.over(runs)
            for figure in figures
            if (runs := [taken.figures[figure.name] for taken in self.runs if figure.name in taken.figures])
        }

    @property
    def remarks(self) -> list[str]:
        """Of all runs, each once."""
        return list(dict.fromkeys(remark for taken in self.runs for remark in taken.remarks))


@dataclass(frozen=True, slots=True)
class Judged:
    """An aim, and what one of ours came to."""

    aim: Figure
    line: Line
    value: float

    @property
    def met(self) -> bool:
        return self.aim.met(self.value) is True

    def markdown(self) -> str:
        said = "met" if self.met else "**missed**"
        shown = f"{self.aim.show(self.value)} {self.aim.unit}".strip()
        return f"- {self.line.title}: {self.aim.what} {shown}, {self.aim.target}: {said}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All contenders in one round."""

    round: Round
    lines: Sequence[Line]

    @property
    def title(self) -> str:
        return f"peers, {self.round.name}"

    @property
    def judged(self) -> list[Judged]:
        figures = self.round.figures
        peers = [line.values(figures) for line in self.lines if not line.is_ours]
        return [
            Judged(aim.figure, line, value)
            for line in self.lines
            if line.is_ours
            for aim in self.round.aims
            if (value := _value(aim, line, figures, peers)) is not None
        ]

    @property
    def missed(self) -> list[str]:
        """What sendonce missed; that one of ours could not be measured is among it."""
        unmeasured = [f"{line.title} not measured" for line in self.lines if line.is_ours and line.why_not]
        return unmeasured + [f"{each.line.title}: {each.aim.what}" for each in self.judged if not each.met]

    @property
    def servers(self) -> dict[str, str]:
        """What all of them stood on, with versions."""
        return {
            name: version
            for line in self.lines
            for taken in line.runs
            for name, version in taken.servers.items()
        }

    def markdown(self) -> str:
        columns = [
            figure
            for figure in self.round.figures
            if any(figure.name in taken.figures for line in self.lines for taken in line.runs)
        ]
        head = "".join(f" {_headed(figure)} |" for figure in columns)
        rows = [f"| |{head} remarks |", "| --- |" + " ---: |" * len(columns) + " --- |"]
        rows += [self._row(line, columns) for line in self.lines]
        servers = ", ".join(f"{name} {version}" for name, version in sorted(self.servers.items()))
        below = [f"Servers: {servers}.", ""] if servers else []
        judged = [each.markdown() for each in self.judged]
        return "\n".join([f"### {self.title}: {self.round.what}", "", *rows, "", *below, *judged, ""])

    def json(self) -> dict[str, Any]:
        return {
            "name": "peers",
            "round": self.round.name,
            "what": self.round.what,
            "servers": self.servers,
            "contenders": [self._contender(line) for line in self.lines],
            "targets": [
                {
                    "name": each.aim.name,
                    "of": each.line.name,
                    "value": each.value,
                    "at_least": each.aim.at_least,
                    "at_most": each.aim.at_most,
                    "met": each.met,
                }
                for each in self.judged
            ],
        }

    def _row(self, line: Line, columns: Sequence[Figure]) -> str:
        values = line.values(columns)
        cells = "".join(f" {_cell(figure, line, values)} |" for figure in columns)
        failed = "a further run failed" if line.runs else "not measured"
        remarks = [*line.remarks, *([f"{failed}: {line.why_not}"] if line.why_not else [])]
        return f"| {line.title} |{cells} {_plain('; '.join(remarks))} |"

    def _contender(self, line: Line) -> dict[str, Any]:
        values = line.values(self.round.figures)
        return {
            "name": line.name,
            "title": line.title,
            "not_measured": line.why_not or None,
            "remarks": line.remarks,
            "figures": {
                figure.name: {
                    "value": values[figure.name],
                    "unit": figure.unit,
                    "what": figure.what,
                    "runs": [taken.figures.get(figure.name) for taken in line.runs],
                }
                for figure in self.round.figures
                if figure.name in values
            },
        }


def _value(
    aim: Aim, line: Line, figures: Sequence[Figure], peers: Sequence[Mapping[str, float]]
) -> float | None:
    return aim.value(line.values(figures), peers) if aim.on(line.name) else None


def _headed(figure: Figure) -> str:
    return f"{figure.what}, {figure.unit}" if figure.unit else figure.what


def _cell(figure: Figure, line: Line, values: Mapping[str, float]) -> str:
    if figure.name not in values:
        return ""
    runs = [taken.figures[figure.name] for taken in line.runs if figure.name in taken.figures]
    if len(runs) == 1:
        return figure.show(values[figure.name])
    return f"{figure.show(values[figure.name])} ({figure.show(min(runs))} to {figure.show(max(runs))})"


def _plain(text: str) -> str:
    """Fit for a cell."""
    return " ".join(text.replace("|", "/").split())
