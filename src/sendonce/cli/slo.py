"""What is promised and what is coming: `forecast`, `slo rules`, `slo report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from sendonce.cli.exits import Exit
from sendonce.cli.screen import BAD, CARE, GOOD, QUIET, Cell, Screen, clock, counted, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, command
from sendonce.core.duration import say_duration, say_number
from sendonce.core.errors import InvalidInput
from sendonce.core.objective import Kept, Objective

if TYPE_CHECKING:
    from sendonce.core.forecast import Minute
    from sendonce.pipeline.forecast import AccountForecast, Forecast
    from sendonce.pipeline.objectives import ChannelKept, ObjectivesReport

RUNBOOK: Final = "docs/operate/alerts/{page}.md"
BURSTS_SHOWN: Final = 5


def add_to(app: typer.Typer) -> None:
    command(app, rich_help_panel="Ask")(forecast)
    group = typer.Typer(
        help="Service level objectives: alert rules from them, and what was kept.", no_args_is_help=True
    )
    command(group, "report")(report)
    command(group, "rules")(rules)
    app.add_typer(group, name="slo", rich_help_panel="Ask")


# forecast


def forecast(
    shell: Shell,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="WHEN",
            help='Until an hour after it: "tomorrow 09:00", "in 6h"; otherwise the next day.',
        ),
    ] = "",
    minutes: Annotated[bool, typer.Option("--minutes", help="Show each minute, too.")] = False,
) -> Exit:
    """When each channel will have drained, and what will come too late. Exit code 1 where something will."""
    from sendonce.pipeline.forecast import forecast as foresee
    from sendonce.pipeline.forecast import moment_of

    moment = moment_of(at, shell.policy.zone(DEFAULT_TENANT), shell.now, field="--at") if at else 0
    seen = shell.read(lambda tx: foresee(tx, shell.policy, at=moment))
    shell.screen.document(forecast_document(seen))
    _show_forecast(shell.screen, seen, minutes=minutes)
    return Exit.PARTLY if seen.missed else Exit.OK


def forecast_document(seen: Forecast) -> dict[str, object]:
    """For programs."""
    accounts = [
        {
            "account": each.account,
            "channel": each.channel,
            "waiting": each.waiting,
            "due": each.due,
            "per_s": each.per_s,
            "bound": each.bound,
            "opens_at": each.opens_at,
            "hold_s": each.hold_s,
            "calls": round(each.calls, 3),
            "drained_at": each.drained_at,
            "late": each.late,
            "expired": each.expired,
            "first_late": each.first_late,
            "needed_per_s": each.needed_per_s,
            "needed_lanes": each.needed_lanes,
            "bursts": each.bursts,
            "minutes": each.minutes,
        }
        for each in seen.accounts
    ]
    return {
        "now": seen.now,
        "at": seen.at,
        "start_at": seen.start,
        "until": seen.until,
        "channels": seen.channels,
        "accounts": accounts,
        "sampled": seen.sampled,
        "unroutable": seen.unroutable,
        "night": seen.night,
        "held": seen.held,
        "missed": seen.missed,
    }


def _show_forecast(screen: Screen, seen: Forecast, *, minutes: bool) -> None:
    screen.say(
        f"what falls due from {when(seen.start)} to {when(seen.until)}, as things are now", style=QUIET
    )
    screen.table(
        ("account", "#waiting", "#due", "#per second", "set by", "drained", "#late", "#expired"),
        [_account_row(each) for each in seen.accounts],
    )
    for each in seen.accounts:
        _say_account(screen, each)
        if minutes:
            screen.table(
                ("minute", "#due", "#leave", "#expire", "#wait at its end"),
                [_minute_row(minute) for minute in each.minutes],
                title=each.account,
            )
    if seen.held:
        screen.say(f"{seen.held}: nothing leaves until `sendonce db released`", style=BAD)
    if seen.unroutable:
        screen.say(f"{seen.unroutable:,} fall due that no account carries: `sendonce check`", style=CARE)
    if seen.night:
        screen.say(f"{seen.night:,} are put off by quiet hours", style=QUIET)
    if seen.sampled:
        screen.say("more than is looked at one by one: shares of accounts are of a sample", style=QUIET)
    if not seen.missed:
        screen.say("everything will be in time", style=GOOD)


def _account_row(each: AccountForecast) -> tuple[Cell, ...]:
    drained = "never, until it is opened" if each.drained_at is None else when(each.drained_at)
    return (
        each.account,
        f"{each.waiting:,}",
        f"{each.due:,}",
        say_number(each.per_s),
        each.bound,
        "-" if not each.waiting + each.due else Text(drained, style=BAD if each.drained_at is None else ""),
        Text(f"{each.late:,}", style=CARE if each.late else QUIET),
        Text(f"{each.expired:,}", style=BAD if each.expired else QUIET),
    )


def _say_account(screen: Screen, each: AccountForecast) -> None:
    for burst in each.bursts[:BURSTS_SHOWN]:
        took = say_duration((burst.drained_at - burst.begins_at) / 1e6)
        missed = ", ".join(
            f"{number:,} {word}"
            for word, number in (("late", burst.late), ("expired", burst.expired))
            if number
        )
        screen.say(
            f"{each.account}: {counted(burst.count, 'delivery', 'deliveries')} from {when(burst.begins_at)}, "
            f"drained {clock(burst.drained_at)} after {took}" + (f"; {missed}" if missed else ""),
            style=CARE if missed else "",
        )
    if len(each.bursts) > BURSTS_SHOWN:
        screen.say(f"{each.account}: {len(each.bursts) - BURSTS_SHOWN} more bursts", style=QUIET)
    if each.first_late:
        screen.say(f"{each.account}: too late first, about: {', '.join(each.first_late)}", style=CARE)
    if each.needed_per_s is not None:
        lanes = "" if each.needed_lanes is None else f", with {each.needed_lanes} lanes"
        screen.say(
            f"{each.account}: {say_number(each.needed_per_s)} calls a second would suffice{lanes}; it has "
            f"{say_number(each.per_s * each.calls)}",
            style=CARE,
        )
    elif each.missed and each.bound != "closed":
        screen.say(f"{each.account}: no rate would make these be in time", style=CARE)


def _minute_row(minute: Minute) -> tuple[Cell, ...]:
    return (
        when(minute.at),
        f"{minute.due:,}",
        f"{minute.started:,}",
        f"{minute.expired:,}",
        f"{minute.waiting:,}",
    )


# slo


def rules(
    shell: Shell,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Into this file; otherwise to stdout.")
    ] = None,
    runbook: Annotated[
        str,
        typer.Option(
            "--runbook", metavar="URL", help="Where your people read what an alert means; {page} is its page."
        ),
    ] = RUNBOOK,
) -> None:
    """Write alert rules for Prometheus, made from the objectives of each channel."""
    from sendonce.core.alert import rules as made
    from sendonce.core.alert import rules_text

    policy = shell.app.policy
    text = rules_text(policy, runbook=runbook, field="--runbook")
    named = [{"alert": rule.alert, "expr": rule.expression, "page": rule.page} for rule in made(policy)]
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidInput(
                f"--output {str(output)!r:.200} cannot be written ({error.strerror}): name another file",
                field="--output",
            ) from None
        shell.screen.note(f"{output}: {counted(len(named), 'rule')}; `promtool check rules {output}`")
    elif not shell.screen.as_json:
        sys.stdout.write(text)
    shell.screen.document({"rules": named, "written": str(output) if output is not None else None})


def report(
    shell: Shell,
    day: Annotated[
        bool, typer.Option("--day", help="The last 24 hours; this is what it does anyway.")
    ] = False,
    week: Annotated[bool, typer.Option("--week", help="The last seven days.")] = False,
    month: Annotated[bool, typer.Option("--month", help="The last thirty days.")] = False,
) -> Exit:
    """What was kept of the objectives, and the worst cases. Exit code 1 where one was not kept."""
    from sendonce.pipeline.objectives import SPANS_S, kept

    asked = [name for name, given in (("day", day), ("week", week), ("month", month)) if given] or ["day"]
    if len(asked) > 1:
        raise InvalidInput(f"--{asked[0]} and --{asked[1]} exclude each other: give one", field="--day")
    with shell.screen.progress("judging") as bar:
        made = kept(shell.store, shell.policy, span_s=SPANS_S[asked[0]], progress=bar.to)
    shell.screen.document(report_document(made))
    _show_report(shell.screen, made)
    return Exit.OK if made.ok else Exit.PARTLY


def report_document(made: ObjectivesReport) -> dict[str, object]:
    """For programs."""
    return {
        "start_at": made.start,
        "end_at": made.end,
        "ok": made.ok,
        "channels": [
            {
                "channel": each.channel,
                "due": each.due,
                "ok": each.ok,
                "objectives": each.objectives,
                "kept": [
                    {
                        "objective": one.objective,
                        "count": one.count,
                        "within": one.within,
                        "missed": one.missed,
                        "share": one.share,
                        "target": one.target,
                        "ok": one.ok,
                    }
                    for one in each.kept
                ],
                "worst": each.worst,
            }
            for each in made.channels
        ],
    }


def _show_report(screen: Screen, made: ObjectivesReport) -> None:
    screen.say(f"what fell due from {when(made.start)} to {when(made.end)}", style=QUIET)
    screen.table(
        ("channel", "objective", "#judged", "#kept", "share", "asked for", ""),
        [_kept_row(each, one) for each in made.channels for one in each.kept],
    )
    for each in made.channels:
        for worst in each.worst[:5]:
            late = (
                "never accepted" if worst.late_s is None else f"{say_duration(worst.late_s)} past its window"
            )
            screen.say(f"  {worst.key}: {late}, {worst.state}; due {when(worst.due_at)}", style=CARE)
        if len(each.worst) > 5:
            screen.say("  more with --json; `sendonce status KEY` tells the story of one", style=QUIET)


def _kept_row(channel: ChannelKept, one: Kept) -> tuple[Cell, ...]:
    budget = one.objective is Objective.DUPLICATES
    return (
        channel.channel,
        _WORDS[one.objective].format(
            published=say_duration(channel.objectives.published_s),
            accepted=say_duration(channel.objectives.accepted_s),
            received=say_duration(channel.objectives.received_s or 0.0),
            recovered=say_duration(channel.objectives.recovered_s),
        ),
        f"{one.count:,}",
        f"{one.within:,}",
        f"{one.missed:,}" if budget else f"{one.share:.3%}",
        f"at most {one.target:,.0f}" if budget else f"{one.target:.3%}",
        Text("kept", style=GOOD) if one.ok else Text("not kept", style=BAD),
    )


_WORDS: Final = {
    Objective.PUBLISHED: "published within {published}",
    Objective.ACCEPTED: "accepted within {accepted}",
    Objective.RECEIVED: "received within {received}",
    Objective.DUPLICATES: "no duplicates",
    Objective.RECOVERED: "dead letters decided within {recovered}",
}
