"""`db`: the store itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce.cli.screen import BAD, CARE, GOOD, QUIET, Screen, counted, when
from sendonce.cli.shell import Shell, command
from sendonce.cli.values import moment
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.held import words_of
from sendonce.ports.store import Tx

if TYPE_CHECKING:
    from sendonce.pipeline.restore import Reconciled

Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="The store: info, care, backup, hold, released, copy, reopen.", no_args_is_help=True
    )
    command(group)(info)
    command(group)(care)
    command(group)(backup)
    command(group)(hold)
    command(group)(released)
    command(group)(copy)
    command(group)(reopen)
    app.add_typer(group, name="db", rich_help_panel="Operate")


def info(shell: Shell) -> None:
    """Where the store is, how large, by which schema, and whether it is held."""
    url = shell.settings.store_url
    found = {"store": str(url), **shell.read(_look), "bytes": _bytes(Path(url.path)) if url.path else None}
    shell.screen.document(found)
    for name, value in found.items():
        if value is not None:
            shown = f"{value:,}" if isinstance(value, int) else value
            shell.screen.say(f"{name.replace('_', ' '):<12} {shown}", style=BAD if name == "held" else "")


def care(shell: Shell) -> None:
    """Whether the database server keeps up with tidying its tables, and what to do where it does not."""
    from sendonce.pipeline.care import care as look

    found = shell.read(look)
    screen = shell.screen
    screen.document({"tables": [asdict(table) for table in found.tables], "findings": found.findings})
    if not found.tables:
        screen.say("the store is a file: it tidies up by itself", style=QUIET)
        return
    screen.table(
        ("table", "#bytes", "#rows", "#dead", "#changes on their page", "tidied up", "analysed"),
        [
            (
                table.name,
                f"{table.bytes:,}",
                f"{table.rows:,}",
                f"{table.dead:,}",
                "" if table.hot_share is None else f"{table.hot_share:.1%}",
                when(table.tidied_at) if table.tidied_at else "never",
                when(table.analysed_at) if table.analysed_at else "never",
            )
            for table in found.tables
        ],
    )
    for finding in found.findings:
        screen.say(finding, style=CARE)
    if not found.findings:
        screen.say("nothing needs care", style=GOOD)


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
        "restored, it sends nothing until it is released: see docs/operate/backup.md", style=QUIET
    )


def hold(shell: Shell, reason: Reason) -> None:
    """Send nothing until the store is released: for files of a server that were set back by hand."""
    from sendonce.pipeline.restore import hold_by_hand

    standing = hold_by_hand(shell.store, reason=reason, actor=shell.actor)
    shell.screen.document(
        {"held": str(standing), "at": standing.at, "lost_from_at": standing.lost_from or None}
    )
    shell.screen.say(f"the store is held: {standing}", style=CARE)
    shell.screen.say("`sendonce db released --reason WHY --preview` says what it may have lost", style=QUIET)


def released(
    shell: Shell,
    reason: Reason,
    until: Annotated[
        str,
        typer.Option(
            "--until", metavar="WHEN", help="When the store before stopped sending, if known better."
        ),
    ] = "",
    nothing_lost: Annotated[
        bool,
        typer.Option(
            "--nothing-lost", help="It has every commit that was answered: a planned switch, a copy."
        ),
    ] = False,
    no_keys: Annotated[
        bool,
        typer.Option("--no-keys", help="Texts may have changed in the span: trust no idempotency key."),
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", "--dry-run", help="Say what would happen, change nothing.")
    ] = False,
) -> None:
    """Let a held store go, after what it may have lost an attempt of was reconciled.

    A store is held after a failover that may have lost commits, and after a backup was restored. What may
    have been tried in the lost span goes once more where the provider recognises the key, is asked about
    where the provider can be asked, and is left to a person otherwise.
    """
    from sendonce.pipeline.restore import released as let_go

    now, zone = shell.app.clock.now(), shell.policy.zone(DEFAULT_TENANT)
    with shell.screen.progress("reconciling") as bar:
        done = let_go(
            shell.store,
            shell.policy,
            reason=reason,
            actor=shell.actor,
            until=moment(until, zone, now, "--until") if until else None,
            nothing_lost=nothing_lost,
            keys=not no_keys,
            preview=preview,
            progress=lambda so_far: bar.to(so_far.total),
        )
    _show(shell.screen, done)


def copy(
    shell: Shell,
    source: Annotated[str, typer.Argument(metavar="SOURCE_URL", help="The store that moves.")],
    target: Annotated[str, typer.Argument(metavar="TARGET_URL", help="Where to; no store is there yet.")],
    reason: Reason,
) -> None:
    """Move the store: copy all of it to another place, compare, and close the old one for good.

    Stop every process first. The old store is closed before the first row is read, and the new one opens when
    all of it is there and was compared. Stopped halfway, both stay closed, and the same command begins again.
    """
    from sendonce.app import move_house

    with shell.screen.progress("moving") as bar:
        moved = move_house(
            source,
            target,
            actor=shell.actor,
            reason=reason,
            progress=lambda what, table, rows: bar.to(rows, note=f"{what} {table}: {rows:,}"),
        )
    screen = shell.screen
    screen.document(moved)
    if moved.copied:
        screen.table(
            ("table", "#rows", "digest, the same in both"),
            [(one.table, f"{one.rows:,}", one.digest[:16]) for one in moved.copied],
        )
    else:
        screen.say("all was copied and compared before; what was left was to open the new store", style=QUIET)
    screen.say(f"moved to {moved.target}, epoch {moved.epoch}: {moved.source} is closed for good", style=GOOD)
    screen.say(
        "name the new one as `url` under [store] of every configuration, and run `sendonce verify` before "
        "the processes start",
        style=CARE,
    )


def reopen(
    shell: Shell,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE_URL", help="The store that was to move, and is to stay.")
    ],
    reason: Reason,
) -> None:
    """Stay: open a store again whose copy was not brought to its end. One that has moved stays closed."""
    from sendonce.app import stay

    where = stay(source, actor=shell.actor, reason=reason)
    shell.screen.document({"reopened": where})
    shell.screen.say(f"{where} is open again; remove what was copied of it", style=GOOD)


def _show(screen: Screen, done: Reconciled) -> None:
    from sendonce.pipeline.restore import FATES

    standing = done.standing
    screen.document(
        {
            "preview": done.preview,
            "why": standing.why,
            "words": str(standing),
            "line": standing.line,
            "held_at": standing.at,
            "lost_from_at": standing.lost_from or None,
            "lost_until_at": done.until,
            "doubted": done.total,
            "uncertain": done.uncertain,
            "counts": [
                {"state": state, "class": class_, "fate": fate, "count": count}
                for (state, class_, fate), count in sorted(done.counts.items())
            ],
            "epoch": done.epoch or None,
            "waits": [{"account": name, "until": until} for name, until in done.waits.items()],
        }
    )
    since = when(standing.lost_from) if standing.lost_from else "the beginning"
    screen.say(f"held since {when(standing.at)}: {standing}")
    screen.say(f"commits may be lost from {since} until {when(done.until)}, margins included")
    if done.counts:
        screen.table(
            ("state", "class", "#number", "what becomes of it"),
            [
                (state, class_, f"{count:,}", FATES[fate])
                for (state, class_, fate), count in sorted(done.counts.items())
            ],
        )
    else:
        screen.say("no delivery is in doubt")
    if done.preview:
        screen.say("nothing was changed, and the store stays held", style=QUIET)
        return
    screen.say(
        f"released, epoch {done.epoch}: {counted(done.total, 'delivery', 'deliveries')} doubted", style=GOOD
    )
    for name, until in done.waits.items():
        screen.say(
            f"{name} sends again from {when(until)} on, since calls of before may be open until then; "
            f"`sendonce accounts resume {name}` lets it go at once",
            style=QUIET,
        )
    if done.uncertain:
        screen.say("`sendonce uncertain` lists what a person must decide", style=CARE)


def _look(tx: Tx) -> dict[str, object]:
    size = tx.rows("view_verify_size")[0]
    return {
        "schema": int(tx.meta("schema_version") or 0),
        "epoch": int(tx.meta("epoch") or 0),
        "held": words_of(tx) or None,
        "deliveries": int(size["deliveries"]),
        "scheduled": int(tx.rows("view_scheduled_total")[0]["total"]),
        "entries": int(tx.rows("view_progress_last_entry")[0]["id"]),
    }


def _bytes(path: Path) -> int:
    """The file and its write-ahead log."""
    return sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.is_file())
