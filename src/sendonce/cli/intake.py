"""Reminders in and back out: `import`, `schedule`, `cancel`, `undo`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from sendonce.cli.exits import Exit
from sendonce.cli.screen import BAD, CARE, GOOD, QUIET, Cell, Screen, counted, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.cli.values import STDIN, object_of, opened, pairs_of, size_of
from sendonce.core.errors import InvalidInput, StoreError
from sendonce.core.reminder import COLUMNS, Asked

if TYPE_CHECKING:
    from sendonce.client import Result
    from sendonce.pipeline.cancel import Cancellation
    from sendonce.pipeline.importer import Problem, Report, Undone

SHOWN_MAX: Final = 20

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it stands in the ledger.")]
UpdateOption = Annotated[
    bool, typer.Option("--update", help="Revise known reminders whose content changed, unless attempted.")
]


def add_to(app: typer.Typer) -> None:
    command(app, "import", rich_help_panel="Reminders")(import_)
    for handler in (schedule, cancel, undo):
        command(app, rich_help_panel="Reminders")(handler)


def import_(
    shell: Shell,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="CSV or JSON lines; - for standard input.")
    ] = "",
    template: Annotated[str, typer.Option("--template", help="For rows that name none.")] = "",
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="COLUMN=VALUE", help="For rows that leave it empty; variables as data.NAME."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, report the same.")] = False,
    update: UpdateOption = False,
    source: Annotated[str, typer.Option("--source", help="The named list that this file is.")] = "",
    cancel_missing: Annotated[
        bool, typer.Option("--cancel-missing", help="Cancel what --source listed before and lists no more.")
    ] = False,
    max_missing: Annotated[
        float,
        typer.Option(
            "--max-missing", metavar="SHARE", min=0.0, max=1.0, help="Cancel nothing where more is missing."
        ),
    ] = 0.2,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write every problem there: .csv or .jsonl.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List earlier imports instead.")] = False,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Take in a file of reminders. A bad row never stops the others; the same file again changes nothing."""
    from sendonce.pipeline.importer import import_rows
    from sendonce.pipeline.intake import Mode
    from sendonce.runtime.crew import idle_cores
    from sendonce.table_file import TableFile

    if listed:
        return _list(shell, tenant)
    if not file:
        raise InvalidInput("no file is named: give one, or - for standard input", field="file")
    defaults = {**({"template": template} if template else {}), **pairs_of(given, "--set")}
    with opened(file) as stream, _problems_to(report) as on_problem:
        table = TableFile(stream, COLUMNS, defaults=defaults)
        with (
            shell.screen.progress("importing", size_of(file)) as bar,
            _saying_how_far(shell.screen) as how_far,
        ):

            def show(so_far: Report) -> None:
                how_far(so_far)
                bar.to(table.bytes_read, note=counted(so_far.rows, "row"))

            done = import_rows(
                shell.store,
                shell.policy,
                table,
                actor=shell.actor,
                tenant=tenant,
                source=source,
                file="" if file == STDIN else Path(file).name,
                mode=Mode.UPDATE if update else Mode.NEW,
                dry_run=dry_run,
                cancel_missing=cancel_missing,
                shrink_max_share=max_missing,
                book=shell.app.book,
                hands=idle_cores(),
                progress=show,
                on_problem=on_problem,
            )
    _show_report(shell.screen, done, report)
    return Exit.OK if done.clean else Exit.PARTLY


def schedule(
    shell: Shell,
    reminder: Annotated[str, typer.Argument(metavar="REMINDER", help="Its id.")],
    due: Annotated[
        str,
        typer.Option("--due", help='"2026-12-01T09:00+01:00", local time with --timezone, "in 2h", "now".'),
    ] = "",
    plan: Annotated[str, typer.Option("--plan", help="A plan instead of a due time.")] = "",
    date: Annotated[str, typer.Option("--date", help="The date that the plan counts from.")] = "",
    template: Annotated[str, typer.Option("--template", help="What it says.")] = "",
    template_version: Annotated[int, typer.Option("--template-version", min=0, help="0 is the newest.")] = 0,
    customer: Annotated[str, typer.Option("--customer", help="Otherwise a name made from the address.")] = "",
    email: Annotated[str, typer.Option("--email", help="Where the email goes.")] = "",
    phone: Annotated[str, typer.Option("--phone", help="Where the text message goes.")] = "",
    channels: Annotated[
        str, typer.Option("--channels", help="Otherwise each that an address is given for.")
    ] = "",
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable; again for more.")
    ] = None,
    data: Annotated[str, typer.Option("--data", help="Variables as a JSON object, or a file of it.")] = "",
    timezone: Annotated[str, typer.Option("--timezone", help="The customer's zone.")] = "",
    sender: Annotated[str, typer.Option("--sender", help="From of the email.")] = "",
    reply_to: Annotated[str, typer.Option("--reply-to", help="Reply-To of the email.")] = "",
    sms_sender: Annotated[str, typer.Option("--sms-sender", help="Sender of the text message.")] = "",
    category: Annotated[
        str, typer.Option("--category", help="Whose rules hold; otherwise the default.")
    ] = "",
    group: Annotated[str, typer.Option("--group", help="A label, to find and cancel several together.")] = "",
    priority: Annotated[int, typer.Option("--priority", min=0, max=9, help="9 goes first.")] = 0,
    expires: Annotated[str, typer.Option("--expires", help='"2h" after the due time, or a time.')] = "",
    update: UpdateOption = False,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Take in one reminder. The same again changes nothing."""
    from sendonce.client import Client

    asked = Asked(
        reminder=reminder,
        customer=customer,
        due=due,
        plan=plan,
        date=date,
        timezone=timezone,
        template=template,
        template_version=template_version,
        data={**object_of(data, "--data"), **pairs_of(given, "--set")},
        email=email,
        phone=phone,
        channels=tuple(channels.replace(",", " ").split()),
        sender=sender,
        reply_to=reply_to,
        sms_sender=sms_sender,
        category=category,
        group=group,
        priority=priority,
        expires=expires,
        tenant=tenant,
    )
    results = Client.of(shell.app, actor=shell.actor).schedule([asked], update=update)
    shell.screen.document({"results": results})
    for result in results:
        _show_result(shell.screen, result)
    return Exit.OK if all(result.ok for result in results) else Exit.PARTLY


def cancel(
    shell: Shell,
    reason: ReasonOption,
    delivery: Annotated[str, typer.Option("--delivery", help="A delivery key.")] = "",
    reminder: Annotated[str, typer.Option("--reminder", help="A reminder's id, on all its channels.")] = "",
    customer: Annotated[str, typer.Option("--customer", help="All of a customer.")] = "",
    group: Annotated[str, typer.Option("--group", help="All of a group, such as a plan's.")] = "",
    import_: Annotated[str, typer.Option("--import", help="All that an import created.")] = "",
    preview: Annotated[
        bool, typer.Option("--preview", "--dry-run", help="Say what would happen, change nothing.")
    ] = False,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Take back what has not been sent. The answer is true for each delivery."""
    from sendonce.pipeline.cancel import By, selected
    from sendonce.pipeline.cancel import cancel as take_back

    names = {
        By.DELIVERY: delivery,
        By.REMINDER: reminder,
        By.CUSTOMER: customer,
        By.GROUP: group,
        By.IMPORT: import_,
    }
    with shell.screen.progress("cancelling") as bar:
        done = take_back(
            shell.store,
            selected(names, tenant),
            policy=shell.policy,
            reason=reason,
            actor=shell.actor,
            preview=preview,
            progress=lambda so_far: bar.to(so_far.found),
        )
    return _show_cancellation(shell.screen, done)


def undo(
    shell: Shell,
    number: Annotated[int, typer.Argument(metavar="IMPORT", help="Its number, as the import said.", min=1)],
    reason: ReasonOption,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Take back an import as far as it has not been sent; what it revised says again what it said before."""
    from sendonce.pipeline.importer import undo as take_back

    with shell.screen.progress("undoing") as bar:
        done = take_back(
            shell.store,
            number,
            policy=shell.policy,
            actor=shell.actor,
            reason=reason,
            tenant=tenant,
            progress=lambda so_far: bar.to(so_far.counts.total() + so_far.restored),
        )
    _show_undone(shell.screen, done)
    return Exit.PARTLY if done.kept or _late(done.counts) else Exit.OK


# Reports


@contextmanager
def _saying_how_far(screen: Screen) -> Iterator[Callable[[Report], None]]:
    """Say what is in where the store or a Ctrl-C ends it: it stays, and the same file goes on from there."""
    heard: list[Report] = []

    def hear(so_far: Report) -> None:
        heard[:] = [so_far]

    try:
        yield hear
    except (StoreError, KeyboardInterrupt):
        taken = sum(so_far.counts[name] for so_far in heard for name in ("accepted", "revised"))
        screen.note(
            f"at least {counted(taken, 'reminder')} taken in before it stopped: import the same file again, "
            "and it goes on from there",
            style=CARE,
        )
        raise


@contextmanager
def _problems_to(path: Path | None) -> Iterator[Callable[[Problem], None]]:
    """Where every problem goes; without a file nowhere, since the report holds the first ones."""
    if path is None:
        yield lambda problem: None
        return
    if path.suffix not in (".csv", ".jsonl"):
        raise InvalidInput(f"--report {path} must end in .csv or .jsonl", field="--report")
    try:
        stream = path.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise InvalidInput(f"--report {path} cannot be written: {error.strerror}", field="--report") from None
    with stream:
        if path.suffix == ".jsonl":
            yield lambda problem: print_line(stream.write, _problem(problem))
            return
        writer = csv.writer(stream)
        writer.writerow(PROBLEM)
        yield lambda problem: writer.writerow(_problem(problem).values())


PROBLEM: Final = ("row", "reminder", "field", "verdict", "message")


def print_line(write: Callable[[str], object], value: dict[str, object]) -> None:
    write(json.dumps(value, ensure_ascii=False) + "\n")


def _problem(problem: Problem) -> dict[str, object]:
    return {
        "row": problem.row,
        "reminder": problem.reminder,
        "field": problem.field,
        "verdict": problem.verdict.value,
        "message": problem.message,
    }


def _show_report(screen: Screen, done: Report, path: Path | None) -> None:
    total = len(done.problems) + done.more_problems
    counts = {verdict: done.counts.get(verdict, 0) for verdict in _VERDICTS}
    screen.document(
        {
            "import": done.import_id or None,
            "dry_run": done.dry_run,
            "rows": done.rows,
            **counts,
            "deliveries": done.deliveries,
            "missing": dict(done.missing),
            "missing_refused": done.missing_refused,
            "notes": dict(done.notes),
            "problems": [_problem(problem) for problem in done.problems],
            "more_problems": done.more_problems,
        }
    )
    head = "dry run, nothing was written" if done.dry_run else f"import {done.import_id}"
    screen.say(f"{head}: {counted(done.rows, 'row')}, {counted(done.deliveries, 'delivery', 'deliveries')}")
    screen.table(
        ("reminders", "#number", "meaning"),
        [
            (Text(verdict, style=_STYLES.get(verdict, "")), f"{number:,}", _VERDICTS[verdict])
            for verdict, number in counts.items()
            if number
        ],
    )
    for word, number in done.missing.items():
        screen.say(f"no longer listed: {counted(number, 'delivery', 'deliveries')} {word}")
    if done.missing_refused:
        screen.say(f"{done.missing_refused} (see --max-missing)", style=CARE)
    for note, number in done.notes.most_common(5):
        screen.say(f"note: {note} ({counted(number, 'row')})", style=QUIET)
    if not total:
        return
    first = f", the first {SHOWN_MAX}" if total > SHOWN_MAX else ""
    screen.say(f"\n{counted(total, 'problem')}{first}:")
    screen.table(
        ("#row", "reminder", "field", "what is wrong, and what to do"),
        [(each.row, each.reminder, each.field, each.message) for each in done.problems[:SHOWN_MAX]],
    )
    if path is not None:
        screen.say(f"all of them: {path}")
    elif total > SHOWN_MAX:
        screen.say(f"{total - SHOWN_MAX:,} more: --report problems.csv writes all of them", style=CARE)


_VERDICTS: Final = {
    "accepted": "new",
    "unchanged": "known already, with the same content",
    "revised": "known, and now with this content",
    "conflicting": "known with other content; nothing was changed, --update would revise",
    "refused": "too late to revise: it may have been sent",
    "invalid": "the row breaks a rule",
}
_STYLES: Final = {
    "accepted": GOOD,
    "revised": GOOD,
    "conflicting": CARE,
    "refused": CARE,
    "invalid": BAD,
}


def _show_result(screen: Screen, result: Result) -> None:
    style = _STYLES.get(result.verdict.value, "")
    screen.say(f"{result.reminder}: {result.verdict}", style=style)
    for key in result.keys if result.ok else ():
        screen.say(f"  {key}")
    if result.why:
        screen.say(f"  {result.why}")
    for note in result.notes:
        screen.say(f"  note: {note}", style=QUIET)


def _show_cancellation(screen: Screen, done: Cancellation) -> Exit:
    screen.document(
        {
            "selection": {"by": done.selection.by, "name": done.selection.name},
            "preview": done.preview,
            "found": done.found,
            "changed": done.changed,
            "counts": dict(done.counts),
            "answers": [
                {"key": answer.key, "word": answer.word, "state": answer.state, "changed": answer.changed}
                for answer in done.answers
            ],
            "more": done.more,
        }
    )
    if done.preview:
        screen.say("preview, nothing was changed:", style=CARE)
    for answer in done.answers[:SHOWN_MAX]:
        screen.say(f"  {answer}")
    more = done.more + max(0, len(done.answers) - SHOWN_MAX)
    if more:
        screen.say(f"  and {more:,} more")
    summary = ", ".join(f"{number:,} {word.replace('_', ' ')}" for word, number in done.counts.items())
    screen.say(f"{counted(done.found, 'delivery', 'deliveries')}: {summary}")
    return Exit.PARTLY if _late(done.counts) else Exit.OK


def _show_undone(screen: Screen, done: Undone) -> None:
    screen.document(
        {
            "import": done.import_id,
            "deliveries": dict(done.counts),
            "restored": done.restored,
            "kept": [{"reminder": reminder, "why": why} for reminder, why in done.kept],
            "more_kept": done.more_kept,
        }
    )
    screen.say(f"import {done.import_id} is taken back, as far as it had not been sent")
    for word, number in done.counts.items():
        screen.say(f"  {counted(number, 'delivery', 'deliveries')} {word.replace('_', ' ')}")
    if done.restored:
        screen.say(f"  {counted(done.restored, 'reminder')} as before the import")
    if done.kept:
        screen.say(f"{len(done.kept) + done.more_kept:,} stay as they are:", style=CARE)
        screen.table(("reminder", "why"), done.kept[:SHOWN_MAX])


def _late(counts: dict[str, int]) -> bool:
    """Whether something was sent, or may have been, before it could be taken back."""
    return bool(counts.get("cancel_pending") or counts.get("already_sent"))


def _list(shell: Shell, tenant: str) -> Exit:
    rows = shell.read(lambda tx: tx.rows("import_list", tenant=tenant, before=2**62, limit=200))
    imports = [{**row, "counts": json.loads(str(row["counts"]))} for row in rows]
    shell.screen.document({"imports": imports})
    if not rows:
        shell.screen.say("nothing was imported yet")
        return Exit.OK
    shell.screen.table(
        ("#import", "started", "file", "source", "by", "#rows", "#accepted", "#invalid", "note"),
        [_import_row(each) for each in imports],
    )
    return Exit.OK


def _import_row(each: dict[str, object]) -> list[Cell]:
    counts = each["counts"]
    assert isinstance(counts, dict)
    note = "undone" if each["undone_at"] else "" if each["finished_at"] else "did not finish: run it again"
    return [
        str(each["id"]),
        when(int(str(each["started_at"]))),
        str(each["file"] or "-"),
        str(each["source"] or "-"),
        str(each["actor"]),
        *(f"{counts.get(name, 0):,}" for name in ("rows", "accepted", "invalid")),
        note,
    ]
