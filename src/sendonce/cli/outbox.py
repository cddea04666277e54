"""`outbox`: what applications scheduled in their own transactions and nobody could take in."""

from __future__ import annotations

from typing import Annotated

import typer

from sendonce.cli.screen import CARE, GOOD, QUIET, counted, when
from sendonce.cli.shell import Shell, command

Ids = Annotated[
    list[int], typer.Argument(metavar="ID...", help="Their numbers, as `outbox list` shows them.")
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="What applications scheduled in their own transactions and is parked: list, retry, drop.",
        no_args_is_help=True,
    )
    command(group, "list")(list_)
    command(group)(retry)
    command(group)(drop)
    app.add_typer(group, name="outbox", rich_help_panel="Operate")


def list_(shell: Shell) -> None:
    """What is parked, with what is wrong, and how much still waits to be taken in."""
    from sendonce.pipeline.parked import parked

    found = list(parked(shell.store))
    (total,) = shell.read(lambda tx: tx.rows("view_intake_waiting"))
    waiting = int(total["waiting"])
    shell.screen.document(
        {
            "waiting": waiting,
            "parked": [
                {
                    "id": one.id,
                    "tenant": one.tenant,
                    "reminder": one.reminder,
                    "asked_at": one.asked_at,
                    "asked_by": one.asked_by,
                    "field": one.field,
                    "why": one.why,
                    "asked": one.asked,
                }
                for one in found
            ],
        }
    )
    if found:
        shell.screen.table(
            ("#id", "since", "by", "reminder", "field", "why"),
            [(one.id, when(one.asked_at), one.asked_by, one.reminder, one.field, one.why) for one in found],
        )
        shell.screen.say(
            f"{counted(len(found), 'reminder')} parked: mend what is wrong, then `sendonce outbox retry`",
            style=CARE,
        )
    else:
        shell.screen.say("nothing is parked")
    if waiting:
        shell.screen.say(f"{counted(waiting, 'reminder')} to be taken in by the scheduler", style=QUIET)


def retry(
    shell: Shell,
    ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID...]", help="Their numbers, as `outbox list` shows them; otherwise all."),
    ] = None,
) -> None:
    """Let parked reminders be taken in again, after what was wrong was mended."""
    from sendonce.pipeline import parked

    chosen = list(dict.fromkeys(ids or [one.id for one in parked.parked(shell.store)]))
    done = parked.retry(shell.store, chosen, actor=shell.actor) if chosen else 0
    shell.screen.document({"retried": done})
    shell.screen.say(
        f"{counted(done, 'reminder')} to be taken in again" if done else "nothing is parked",
        style=GOOD if done else "",
    )


def drop(
    shell: Shell, ids: Ids, reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")]
) -> None:
    """Forget parked reminders for ever: they are never sent."""
    from sendonce.pipeline import parked

    done = parked.drop(shell.store, list(dict.fromkeys(ids)), reason=reason, actor=shell.actor)
    shell.screen.document({"dropped": done})
    shell.screen.say(f"{counted(done, 'reminder')} dropped")
