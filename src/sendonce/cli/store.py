"""`db`: the store itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sendonce.cli.screen import GOOD, QUIET
from sendonce.cli.shell import Shell, command
from sendonce.ports.store import Tx


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="The store: info, backup.", no_args_is_help=True)
    command(group)(info)
    command(group)(backup)
    app.add_typer(group, name="db", rich_help_panel="Operate")


def info(shell: Shell) -> None:
    """Where the store is, how large, and by which schema."""
    url = shell.settings.store_url
    found = {"store": str(url), **shell.read(_look), "bytes": _bytes(Path(url.path)) if url.path else None}
    shell.screen.document(found)
    for name, value in found.items():
        shell.screen.say(f"{name.replace('_', ' '):<12} {f'{value:,}' if isinstance(value, int) else value}")


def backup(
    shell: Shell,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not exist yet.")],
) -> None:
    """Copy the store to a file while everything runs. The copy is checked; restored, it sends nothing."""
    before = shell.read(lambda tx: (tx.now, int(tx.meta("epoch") or 0)))
    with shell.screen.progress("copying") as bar:
        size = shell.app.back_up(file, lambda pages, of: bar.to(pages, of, note=f"{pages:,} of {of:,} pages"))
    taken_at, epoch = before
    shell.screen.document({"backup": str(file), "bytes": size, "taken_at": taken_at, "epoch": epoch + 1})
    shell.screen.say(f"{file}: {size:,} bytes, checked", style=GOOD)
    shell.screen.say(
        "restored, it sends nothing until each account is resumed: see Restore in docs/operating.md",
        style=QUIET,
    )


def _look(tx: Tx) -> dict[str, object]:
    size = tx.rows("view_verify_size")[0]
    return {
        "schema": int(tx.meta("schema_version") or 0),
        "epoch": int(tx.meta("epoch") or 0),
        "deliveries": int(size["deliveries"]),
        "scheduled": int(tx.rows("view_scheduled_total")[0]["total"]),
        "entries": int(tx.rows("view_progress_last_entry")[0]["id"]),
    }


def _bytes(path: Path) -> int:
    """The file and its write-ahead log."""
    return sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.is_file())
