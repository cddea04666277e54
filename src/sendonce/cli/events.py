"""`events`: what came back from providers and mail servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import CARE, Screen, counted
from sendonce.cli.shell import Shell, command
from sendonce.cli.values import STDIN

if TYPE_CHECKING:
    from sendonce.pipeline.returned_mail import Returned

MEANINGS: Final = {
    "report": "reports and complaints about messages of ours",
    "unreadable": "about messages of ours and no report: kept as unknown",
    "automatic": "automatic answers: nothing follows",
    "foreign": "without a token of ours: not believed",
    "oversized": "too large, or in too many parts: not read",
}


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="What came back from providers and mail servers: bounces, complaints, answers.",
        no_args_is_help=True,
    )
    command(group, "import-mail")(import_mail)
    app.add_typer(group, name="events", rich_help_panel="Operate")


def import_mail(
    shell: Shell,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A mail, an mbox, a Maildir or a folder of mails; - for standard input."
        ),
    ],
) -> Exit:
    """Take in bounces and complaints that came as mail. Nothing is changed there, and again does no harm."""
    from sendonce.pipeline.returned_mail import take

    done = take(_mails(path), shell.app.read_mail, shell.app.take_in_mail)
    shell.screen.document(
        {"mails": done.mails, "found": dict(done.found), "events": dict(sorted(done.events.items()))}
    )
    _show(shell.screen, done)
    return Exit.OK if done.mails else Exit.NOT_FOUND


def _mails(path: str) -> Iterator[bytes]:
    from sendonce.providers.mail_files import mails_in, mails_of

    if path == STDIN:
        yield from mails_of(sys.stdin.buffer)
        return
    for _, raw in mails_in(Path(path)):
        yield raw


def _show(screen: Screen, done: Returned) -> None:
    if not done.mails:
        screen.say("no mail there", style=CARE)
        return
    screen.say(f"{counted(done.mails, 'mail')} read")
    for found, meaning in MEANINGS.items():
        if count := done.found[found]:
            screen.say(f"  {count:>6}  {meaning}", style=CARE if found in ("unreadable", "oversized") else "")
    if done.events:
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(done.events.items()))
        screen.say(f"they say: {said}")
