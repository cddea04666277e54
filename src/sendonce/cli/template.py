"""`template`: what reminders say. Versions are added from files, and never change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import QUIET, counted, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.cli.values import object_of, pairs_of

Name = Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")]
Version = Annotated[int, typer.Option("--version", help="0 is the newest.", min=0)]

DIRECTORY: Final = Path("templates")


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="What reminders say: add, list, show, preview.", no_args_is_help=True)
    command(group)(add)
    command(group, "list")(list_)
    command(group)(show)
    command(group)(preview)
    app.add_typer(group, name="template", rich_help_panel="Reminders")


def add(
    shell: Shell,
    name: Name,
    directory: Annotated[
        Path, typer.Option("--from", help="Where NAME.subject.txt, NAME.txt, NAME.html, NAME.sms.txt are.")
    ] = DIRECTORY,
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """Add a version from files. The same content again adds none."""
    from sendonce.pipeline import templates

    added = templates.add(shell.store, directory, name, actor=shell.actor, tenant=tenant)
    shell.screen.document(added)
    channels = " and ".join(added.channels)
    verb = "added as" if added.new else "unchanged:"
    shell.screen.say(f"template {added.name} {verb} version {added.version}, for {channels}")


def list_(shell: Shell, tenant: TenantOption = DEFAULT_TENANT) -> None:
    """Every version of every template."""
    from sendonce.pipeline import templates

    rows = list(templates.list_templates(shell.store, tenant=tenant))
    shell.screen.document({"templates": rows})
    if not rows:
        shell.screen.say("no template yet: `sendonce template add NAME --from DIRECTORY`")
        return
    shell.screen.table(
        ("name", "#version", "channel", "added"),
        [(row["name"], row["version"], row["channel"], when(int(row["added_at"]))) for row in rows],
    )


def show(shell: Shell, name: Name, version: Version = 0, tenant: TenantOption = DEFAULT_TENANT) -> None:
    """A version as it was written."""
    from sendonce.pipeline import templates

    parts = templates.show(shell.store, name, version, tenant=tenant)
    shell.screen.document({"name": name, "version": parts[0].version, "parts": parts})
    for part in parts:
        shell.screen.say(f"--- {name} version {part.version}, {part.channel}", style=QUIET)
        _say_parts(shell, part.subject, part.text, part.html)


def preview(
    shell: Shell,
    name: Name,
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable; again for more.")
    ] = None,
    data: Annotated[str, typer.Option("--data", help="Variables as a JSON object, or a file of it.")] = "",
    version: Version = 0,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit | None:
    """A version with data filled in, and what a text message of it costs."""
    from sendonce.pipeline import templates

    values = {**object_of(data, "--data"), **pairs_of(given, "--set")}
    previews = templates.preview(shell.store, name, values, version=version, tenant=tenant)
    shell.screen.document({"name": name, "previews": previews})
    for one in previews:
        shell.screen.say(f"--- {name} version {one.version}, {one.channel}", style=QUIET)
        _say_parts(shell, one.rendered.subject, one.rendered.text, one.rendered.html)
        if one.segments is not None:
            size = f"{counted(one.segments.units, 'unit')} of {one.segments.encoding}"
            shell.screen.say(f"{counted(one.segments.parts, 'part')} ({size})", style=QUIET)
    return None


def _say_parts(shell: Shell, subject: str, text: str, html: str) -> None:
    if subject:
        shell.screen.say(f"Subject: {subject}\n")
    if text:
        shell.screen.say(text)
    if html:
        shell.screen.say("HTML:", style=QUIET)
        shell.screen.say(html)
