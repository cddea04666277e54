"""A measurement: a name, the figures it gives, and a function that takes them once.

The runner repeats it and keeps what a figure asks for: the median of the runs, or the worst. A figure
may carry a target; whether it was met is part of the table and of the JSON, met or not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    at_least, at_most  the target; None: shown for its own sake
    worst              keep the worst run rather than the median one
    """

    name: str
    unit: str
    what: str
    digits: int = 0
    at_least: float | None = None
    at_most: float | None = None
    worst: bool = False

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"at least {self.show(self.at_least)}"
        if self.at_most is not None:
            return f"at most {self.show(self.at_most)}"
        return ""

    def over(self, runs: Sequence[float]) -> float:
        if self.worst:
            return min(runs) if self.at_least is not None else max(runs)
        return statistics.median(runs)

    def met(self, value: float) -> bool | None:
        if self.at_least is not None:
            return value >= self.at_least
        if self.at_most is not None:
            return value <= self.at_most
        return None

    def show(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. `full`: the sizes that the targets are stated for. `store`: on which store."""

    full: bool = False
    runs: int = 1
    store: str = "sqlite"


@dataclass(frozen=True, slots=True)
class Measurement:
    """`run` takes the figures once, by name. Figures that a run leaves out are left out of the table.

    stores  what it can be taken on
    """

    name: str
    what: str
    figures: tuple[Figure, ...]
    run: Callable[[Scale], Mapping[str, float]]
    stores: tuple[str, ...] = ("sqlite", "postgresql")


@dataclass(frozen=True, slots=True)
class Result:
    """All runs of one measurement."""

    measurement: Measurement
    store: str
    runs: Sequence[Mapping[str, float]]
    missed: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        missed = (figure.name for figure, value in self._values() if figure.met(value) is False)
        object.__setattr__(self, "missed", tuple(missed))

    @property
    def title(self) -> str:
        return f"{self.measurement.name} on {self.store}"

    def markdown(self) -> str:
        rows = [
            f"| {figure.what} | {figure.show(value)} {figure.unit} | {self._spread(figure)} | "
            f"{figure.target} | {_said(figure.met(value))} |"
            for figure, value in self._values()
        ]
        head = ["| figure | value | runs | target | |", "| --- | ---: | ---: | ---: | --- |"]
        return "\n".join([f"### {self.title}: {self.measurement.what}", "", *head, *rows, ""])

    def json(self) -> dict[str, Any]:
        return {
            "name": self.measurement.name,
            "store": self.store,
            "what": self.measurement.what,
            "figures": {
                figure.name: {
                    "value": value,
                    "unit": figure.unit,
                    "runs": [run[figure.name] for run in self.runs],
                    "at_least": figure.at_least,
                    "at_most": figure.at_most,
                    "met": figure.met(value),
                }
                for figure, value in self._values()
            },
        }

    def _values(self) -> list[tuple[Figure, float]]:
        return [
            (figure, figure.over([run[figure.name] for run in self.runs]))
            for figure in self.measurement.figures
            if all(figure.name in run for run in self.runs)
        ]

    def _spread(self, figure: Figure) -> str:
        values = [run[figure.name] for run in self.runs]
        if len(values) == 1:
            return "1"
        return f"{figure.show(min(values))} to {figure.show(max(values))}"


def _said(met: bool | None) -> str:
    return "" if met is None else "met" if met else "**missed**"
