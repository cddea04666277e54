"""`suppress`: who must not be written to, who said no, who said yes. Each record is in force at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import CARE, Screen, counted, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.cli.values import opened, size_of
from sendonce.core.consent import ANY_CATEGORY, Kind
from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from sendonce.pipeline.consent import Record, Recorded

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="An email address or a phone number.")]
ChannelOption = Annotated[
    Channel | None, typer.Option("--channel", help="Otherwise email where there is an @, else sms.")
]
KindOption = Annotated[
    Kind, typer.Option("--kind", help="suppressed: never; opt_out: the person said no; opt_in: yes.")
]
Category = Annotated[str, typer.Option("--category", help="Only this category; * is all.")]

SHOWN_MAX = 20


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Who must not be written to, and who agreed to be: add, import, list, remove.",
        no_args_is_help=True,
    )
    command(group)(add)
    command(group, "import")(import_)
    command(group, "list")(list_)
    command(group)(remove)
    app.add_typer(group, name="suppress", rich_help_panel="Reminders")


def add(
    shell: Shell,
    address: Address,
    kind: KindOption = Kind.SUPPRESSED,
    category: Category = ANY_CATEGORY,
    channel: ChannelOption = None,
    evidence: Annotated[str, typer.Option("--evidence", help="How you know: a ticket, a form, a call.")] = "",
    at: Annotated[str, typer.Option("--at", help="When it was said; otherwise now.")] = "",
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """Record that an address must not be written to, or with --kind opt_in that it may.

    When this returns, nothing open goes to the address any more that the record forbids.
    """
    from sendonce.pipeline import consent

    values = {
        "address": address,
        "kind": kind.value,
        "category": category,
        "channel": channel.value if channel else "",
        "evidence": evidence,
        "at": at,
    }
    record = consent.record_of(values, shell.policy, now=shell.now, tenant=tenant)
    done = consent.record(shell.store, [record], policy=shell.policy, actor=shell.actor)
    _show(shell.screen, done)


def import_(
    shell: Shell,
    file: Annotated[str, typer.Argument(metavar="FILE", help="CSV or JSON lines; - for standard input.")],
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Record a whole list. One row that cannot be read never stops the others."""
    from sendonce.pipeline import consent

    problems: list[tuple[int, str, str]] = []
    with opened(file) as stream, shell.screen.progress("recording", size_of(file)) as bar:
        records = _records(shell, stream, tenant, problems)
        done = consent.record(
            shell.store,
            records,
            policy=shell.policy,
            actor=shell.actor,
            progress=lambda recorded: bar.to(stream.tell() if stream.seekable() else recorded.records),
        )
    _show(shell.screen, done, problems)
    return Exit.PARTLY if problems else Exit.OK


def _records(
    shell: Shell, stream: object, tenant: str, problems: list[tuple[int, str, str]]
) -> Iterator[Record]:
    from sendonce.pipeline import consent
    from sendonce.table_file import BadRow, TableFile

    now = shell.now
    for row in TableFile(stream, consent.COLUMNS, lists=()):  # type: ignore[arg-type]
        if isinstance(row, BadRow):
            problems.append((row.number, row.field, row.message))
            continue
        try:
            yield consent.record_of(row.values, shell.policy, now=now, tenant=tenant)
        except InvalidInput as error:
            problems.append((row.number, error.field, str(error)))


def list_(
    shell: Shell,
    address: Annotated[str, typer.Argument(metavar="[ADDRESS]", help="Only what is known of it.")] = "",
    channel: ChannelOption = None,
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """What is recorded. Addresses are kept masked: the list cannot give them back."""
    from sendonce.pipeline import consent

    if address:
        asked = _asked(shell, address, channel, tenant)
        rows = consent.records_of(shell.store, tenant=tenant, channel=asked.channel, address=asked.address)
    else:
        rows = list(consent.list_records(shell.store, tenant=tenant))
    columns = ("channel", "masked", "kind", "category", "at", "source", "evidence", "actor")
    shell.screen.document({"records": [{name: row[name] for name in columns} for row in rows]})
    if not rows:
        shell.screen.say("nothing is recorded" + (" of this address" if address else ""))
        return
    shell.screen.table(
        ("channel", "address", "kind", "category", "since", "source", "evidence", "by"),
        [[when(int(row[name])) if name == "at" else row[name] for name in columns] for row in rows],
    )


def remove(
    shell: Shell,
    address: Address,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    kind: KindOption = Kind.SUPPRESSED,
    category: Category = ANY_CATEGORY,
    channel: ChannelOption = None,
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """Take a record away. What it stopped stays stopped."""
    from sendonce.pipeline import consent

    asked = _asked(shell, address, channel, tenant)
    removed = consent.remove(
        shell.store,
        tenant=tenant,
        channel=asked.channel,
        address=asked.address,
        category=category,
        kind=kind,
        reason=reason,
        actor=shell.actor,
    )
    if not removed:
        raise NotFound(
            f"no {kind} record of this address for category {category}: see `sendonce suppress list ADDRESS`"
        )
    shell.screen.document({"removed": 1})
    shell.screen.say("removed; what it stopped stays stopped, new reminders may go out")


def _asked(shell: Shell, address: str, channel: Channel | None, tenant: str) -> Record:
    """The address, normalised, by the rules that records are read by."""
    from sendonce.pipeline import consent

    values = {"address": address, "channel": channel.value if channel else ""}
    return consent.record_of(values, shell.policy, now=shell.now, tenant=tenant)


def _show(screen: Screen, done: Recorded, problems: list[tuple[int, str, str]] | None = None) -> None:
    found = problems or []
    screen.document(
        {
            "records": done.records,
            "new": done.new,
            "invalid": len(found),
            "deliveries": dict(done.counts),
            "answers": [
                {"key": answer.key, "word": answer.word, "state": answer.state} for answer in done.answers
            ],
            "problems": [{"row": row, "field": field, "message": why} for row, field, why in found],
        }
    )
    screen.say(f"{counted(done.records, 'record')} in force, {done.new:,} of them new")
    for answer in done.answers[:SHOWN_MAX]:
        screen.say(f"  {answer}")
    if len(done.answers) > SHOWN_MAX:
        screen.say(f"  and {len(done.answers) - SHOWN_MAX:,} more")
    if found:
        screen.say(f"{counted(len(found), 'row')} left out:", style=CARE)
        screen.table(("#row", "field", "why"), found[:SHOWN_MAX])
