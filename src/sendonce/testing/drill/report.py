"""What a drill tells: one value, and a page made from it that needs nothing from anywhere.

The page is a single file without scripts: it loads nothing, so it can be mailed, kept with a release and
opened years later. Its content policy forbids it to ask anybody for anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any, Final

from sendonce.testing.drill.scenario import Result, Step, Totals, Verdict

MISSING: Final = (
    "bounces that come as mail, and the signatures of SendGrid and Amazon SES, which nobody else can make",
    "your request templates, answer paths and rules of http accounts: the sandbox has an API of its own",
    "your own store, where that is PostgreSQL: a drill has an embedded one",
)
"""What no drill shows; said in each report, so that nobody reads more into it than there is."""


@dataclass(frozen=True, slots=True)
class Drilled:
    """An account that took part. `by`: what stood in its place."""

    name: str
    channel: str
    provider: str
    class_: str
    by: str


@dataclass(frozen=True, slots=True)
class Report:
    """A whole drill. `at` in microseconds UTC; `changes` what was not as configured, `missing` what it cannot
    show, `unreached` the accounts that no route leads to."""

    configuration: str
    at: int
    took_s: float
    real: str
    accounts: Sequence[Drilled]
    unreached: Sequence[str]
    changes: Sequence[str]
    missing: Sequence[str]
    totals: Totals

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        totals = self.totals
        return {
            "ok": totals.ok,
            "configuration": self.configuration,
            "at": self.at,
            "took_s": round(self.took_s, 1),
            "real": self.real,
            "accounts": [
                {
                    "name": each.name,
                    "channel": each.channel,
                    "provider": each.provider,
                    "class": each.class_,
                    "by": each.by,
                }
                for each in self.accounts
            ],
            "unreached": list(self.unreached),
            "changes": list(self.changes),
            "missing": list(self.missing),
            "results": [_result(result) for result in totals.results],
            "scenarios": totals.scenarios,
            "passed": totals.passed,
            "failed": totals.failed,
            "duplicates": totals.duplicates,
            "lost": totals.lost,
        }


def _result(result: Result) -> Mapping[str, Any]:
    return {
        "name": result.scenario.name,
        "does": result.scenario.does,
        "must": result.scenario.must,
        "verdict": result.verdict.value,
        "why": result.why,
        "took_s": round(result.took_s, 1),
        "duplicates": result.duplicates,
        "lost": result.lost,
        "steps": [
            {"does": step.does, "must": step.must, "saw": step.saw, "held": step.held}
            for step in result.steps
        ],
    }


def page(report: Report) -> str:
    """The report as one file of HTML."""
    text = files("sendonce.testing.drill").joinpath("page.html").read_text("utf-8")
    for name, value in _parts(report):
        text = text.replace(f"<!-- {name} -->", value)
    return text


def _parts(report: Report) -> Iterator[tuple[str, str]]:
    totals = report.totals
    moment = f"{datetime.fromtimestamp(report.at // 1_000_000, UTC):%Y-%m-%d %H:%M} UTC"
    verdict = "Every promise held" if totals.ok else "Not as promised"
    where = f"the real account {report.real}" if report.real else "sandboxes in the providers' place"
    yield "title", f"{escape(verdict)}: drill of {escape(moment)}"
    yield "verdict", f'<h1 class="{"good" if totals.ok else "bad"}">{escape(verdict)}</h1>'
    yield (
        "about",
        (
            f"<p><code>{escape(report.configuration)}</code><br>"
            f"{escape(moment)}, {report.took_s:.0f} seconds, with {escape(where)}</p>"
        ),
    )
    yield (
        "totals",
        "".join(
            _tile(name, number, wrong)
            for name, number, wrong in (
                ("scenarios", totals.scenarios, False),
                ("passed", totals.passed, False),
                ("failed", totals.failed, totals.failed > 0),
                ("duplicates", totals.duplicates, totals.duplicates > 0),
                ("lost", totals.lost, totals.lost > 0),
            )
        ),
    )
    yield "scenarios", "".join(map(_scenario, totals.results))
    yield "accounts", "".join(map(_account, report.accounts))
    yield "changes", _list("As configured, but for", [*report.changes, *_unreached(report)])
    yield "missing", _list("What this drill does not show", report.missing)
    yield "line", escape(str(totals))


def _tile(name: str, number: int, wrong: bool) -> str:
    return f'<div class="tile{" wrong" if wrong else ""}"><b>{number}</b><span>{name}</span></div>'


def _scenario(result: Result) -> str:
    scenario, verdict = result.scenario, result.verdict
    head = (
        f'<summary><span class="mark {_class(verdict)}">{_MARKS[verdict]}</span>'
        f'<span class="name">{escape(scenario.name)}<span>{escape(_sentence(scenario.must))}</span></span>'
        f'<span class="took">{_took(result)}</span></summary>'
    )
    about = f"<p>{escape(_sentence(scenario.does))}</p>"
    steps = "".join(map(_step, result.steps))
    unfolded = " open" if verdict is Verdict.FAILED else ""
    return f'<details class="{_class(verdict)}"{unfolded}>{head}{about}<ol>{steps}</ol></details>'


def _step(step: Step) -> str:
    mark = "✓" if step.held else "✗"
    return (
        f'<li class="{"good" if step.held else "bad"}"><span class="mark">{mark}</span><dl>'
        f"<dt>Done</dt><dd>{escape(step.does)}</dd>"
        f"<dt>Must hold</dt><dd>{escape(step.must)}</dd>"
        f"<dt>Seen</dt><dd>{escape(step.saw)}</dd></dl></li>"
    )


def _account(each: Drilled) -> str:
    cells = (each.name, each.channel, each.provider, each.class_, each.by)
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _unreached(report: Report) -> Iterator[str]:
    for name in report.unreached:
        yield f"account {name} was not drilled: no channel and no route leads to it"


def _list(title: str, items: Iterable[str]) -> str:
    inner = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<h2>{escape(title)}</h2><ul>{inner}</ul>" if inner else ""


_MARKS: Final = {Verdict.PASSED: "✓", Verdict.FAILED: "✗", Verdict.NOT_CONFIGURED: "–"}


def _class(verdict: Verdict) -> str:
    return {Verdict.PASSED: "good", Verdict.FAILED: "bad", Verdict.NOT_CONFIGURED: "none"}[verdict]


def _took(result: Result) -> str:
    if result.verdict is Verdict.NOT_CONFIGURED:
        return f"not configured: {escape(result.why)}"
    return f"{result.took_s:.1f} s"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
