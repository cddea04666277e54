"""What people ask: `overview`, `find`, `status`, `ledger`, `report`, `verify`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from sendonce.cli import audit
from sendonce.cli.exits import Exit
from sendonce.cli.screen import BAD, CARE, GOOD, NEVER, QUIET, Cell, Screen, counted, instant, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.core.duration import say_duration, say_number
from sendonce.core.lifecycle import State

if TYPE_CHECKING:
    from sendonce.pipeline.find import Found
    from sendonce.pipeline.overview import AccountView, ChannelView, Overview, ProcessView
    from sendonce.pipeline.record import Line
    from sendonce.pipeline.report import Report, ReportLine
    from sendonce.pipeline.story import Record, Story
    from sendonce.pipeline.verify import Verified
    from sendonce.ports.store import Delivery

ENDED_SHOWN: Final = 5
STYLES: Final = {
    State.ACCEPTED: GOOD,
    State.REJECTED: BAD,
    State.DEAD: BAD,
    State.UNCERTAIN: CARE,
    State.RECONCILING: CARE,
}


def add_to(app: typer.Typer) -> None:
    panel = {"rich_help_panel": "Ask"}
    command(app, **panel)(overview)
    command(app, **panel)(find)
    command(app, **panel)(status)
    command(app, **panel)(ledger)
    command(app, **panel)(report)
    command(app, **panel)(verify)


# overview


def overview(shell: Shell) -> Exit:
    """What waits, what holds it, and who is at work. Exit code 1 where something waits too long."""
    from sendonce.pipeline.overview import overview as look

    seen = shell.read(lambda tx: look(tx, shell.policy))
    shell.screen.document(_overview_document(seen))
    _show_overview(shell.screen, seen)
    return Exit.PARTLY if seen.alerts else Exit.OK


def _overview_document(seen: Overview) -> dict[str, object]:
    processes = [
        {
            **{name: getattr(each.process, name) for name in _PROCESS},
            "silent_s": each.silent_s,
            "alive": each.alive,
            "leads": each.leads,
        }
        for each in seen.processes
    ]
    return {**dataclasses.asdict(seen), "processes": processes, "alerts": seen.alerts}


_PROCESS: Final = ("id", "role", "channel", "host", "pid", "started_at", "beat_at", "stopped")


def _show_overview(screen: Screen, seen: Overview) -> None:
    screen.table(
        ("channel", "#scheduled", *(f"#{name}" for name in _NUMBERS), "oldest"),
        [_channel_row(each) for each in seen.channels],
    )
    account_table(screen, seen.accounts)
    _show_processes(screen, seen.processes)
    for each in seen.channels:
        if each.catch_up_until:
            screen.say(
                f"catching up: what was overdue on {each.channel} takes its turns until "
                f"{when(each.catch_up_until)}; {each.catching_up:,} not published yet",
                style=QUIET,
            )
    outbox = seen.outbox
    if outbox.waiting:
        screen.say(
            f"outbox: {counted(outbox.waiting, 'reminder')} to be taken in, the first for "
            f"{say_duration(outbox.waits_s)}",
            style=CARE if outbox.alert else QUIET,
        )
    if outbox.parked:
        screen.say(f"outbox: {counted(outbox.parked, 'reminder')} parked: `sendonce outbox list`", style=CARE)
    left = {state: count for state, count in seen.events.items() if count and state != "waits"}
    if left:
        said = ", ".join(f"{count:,} {state}" for state, count in left.items())
        screen.say(f"what providers said is left to people: {said}; `sendonce events list`", style=CARE)
    if seen.held:
        screen.say(f"the store is held: {seen.held}; `sendonce db released --preview` says more", style=BAD)
    for pause in seen.pauses:
        end = f"until {when(pause.until)}" if pause.until < NEVER else "until somebody resumes it"
        screen.say(f"paused: {pause.scope} {pause.name} {end}: {pause.reason} [{pause.actor}]", style=CARE)
    if seen.mark:
        screen.say(
            f"the last pass that had something to do published all due by {when(seen.mark)}", style=QUIET
        )
    else:
        screen.say("no pass has run yet: `sendonce up` starts them", style=QUIET)


def _show_processes(screen: Screen, processes: Sequence[ProcessView]) -> None:
    """Who is at work and who has gone; of those that ended well, as a cron's every minute, the last few."""
    ended = [each for each in processes if each.process.stopped]
    left_out = ended[ENDED_SHOWN:]
    shown = [each for each in processes if each not in left_out]
    if not shown:
        return
    screen.table(
        ("process", "role", "channels", "last heard of", "state"),
        [
            (
                each.process.id,
                each.process.role,
                each.process.channel,
                f"{say_duration(each.silent_s)} ago",
                _process_state(each),
            )
            for each in shown
        ],
    )
    if left_out:
        screen.say(f"{len(left_out)} more ended within the last hour", style=QUIET)


def account_table(screen: Screen, accounts: Sequence[AccountView]) -> None:
    """What waits at each account, and why."""
    screen.table(
        ("account", "#ready", "#waiting", "#lanes", "#per second", "#sent a minute", "gate", "why"),
        [_account_row(each) for each in accounts],
    )


def _channel_row(each: ChannelView) -> tuple[Cell, ...]:
    oldest = say_duration(each.oldest_s) if each.oldest_s else "-"
    alert = f"{oldest}: alarm after {say_duration(each.alert_after_s)}"
    return (
        each.channel,
        f"{'over ' if each.more else ''}{each.scheduled:,}",
        *(_number(getattr(each, field), style) for field, style in _NUMBERS.values()),
        Text(alert, style=BAD) if each.alert else oldest,
    )


_NUMBERS: Final = {
    "due": ("due", ""),
    "queued": ("queued", ""),
    "sending": ("sending", ""),
    "in doubt": ("reconciling", CARE),
    "uncertain": ("uncertain", CARE),
    "dead": ("dead", BAD),
    "rejected": ("rejected", CARE),
}
"""Column -> field, and how it looks where it is not 0."""


def _number(number: int, style: str) -> Text:
    return Text(f"{number:,}", style=style if number else QUIET)


def _account_row(each: AccountView) -> tuple[Cell, ...]:
    gate = each.gate
    left = "" if not gate.left_s else f", {say_duration(gate.left_s)} left"
    rate = "-" if gate.rate is None else say_number(gate.rate)
    return (
        each.name,
        f"{each.ready:,}",
        f"{each.waiting:,}",
        f"{gate.lanes_used}/{gate.lanes_of}",
        f"{rate}{'*' if gate.changed else ''}",
        f"{each.flow.accepted:,}",
        Text(f"{gate.word}{left}", style=GOOD if gate.word.value == "open" else CARE),
        each.why,
    )


def _process_state(each: ProcessView) -> Text:
    if each.process.stopped:
        return Text("stopped", style=QUIET)
    if not each.alive:
        return Text("gone: its lease is over", style=BAD)
    return Text("alive, schedules" if each.leads else "alive", style=GOOD)


# find


def find(
    shell: Shell,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="A reminder, customer, delivery key, address or receipt.")
    ],
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="How many at most.")] = 50,
    before: Annotated[int, typer.Option("--before", help="Go on where the last page ended.", min=0)] = 0,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Find deliveries by whatever you have."""
    from sendonce.pipeline.find import NEWEST
    from sendonce.pipeline.find import find as look

    page = shell.read(
        lambda tx: look(
            tx,
            text,
            shell.policy,
            secret=shell.store.secret,
            tenant=tenant,
            limit=limit,
            before=before or NEWEST,
        )
    )
    shell.screen.document(
        {
            "found": [{"by": each.by, **delivery_document(each.delivery)} for each in page.found],
            "before": page.before,
        }
    )
    if not page.found:
        shell.screen.say(f"nothing found for {text!r}")
        return Exit.NOT_FOUND
    shell.screen.table(
        ("delivery", "state", "due", "account", "receipt", "found by"),
        [_found_row(each) for each in page.found],
    )
    if page.before is not None:
        shell.screen.say(f"more: --before {page.before}", style=QUIET)
    return Exit.OK


def _found_row(found: Found) -> tuple[str | Text, ...]:
    one = found.delivery
    return (
        one.key,
        state_text(one.standing.state),
        when(one.course.due_at),
        one.course.account or "-",
        one.course.receipt or "-",
        ", ".join(found.by),
    )


def state_text(state: State) -> Text:
    return Text(state.value, style=STYLES.get(state, ""))


def delivery_document(one: Delivery) -> dict[str, object]:
    """A delivery for programs: the same keys wherever one is shown."""
    standing, course = one.standing, one.course
    return {
        "key": one.key,
        "tenant": one.tenant,
        "customer": one.customer,
        "channel": one.channel,
        "state": standing.state,
        "maybe_sent": standing.maybe,
        "pending": standing.ending,
        "category": one.category,
        "group": one.group,
        "priority": one.priority,
        "account": course.account,
        "receipt": course.receipt,
        "reason": course.reason,
        "attempts": course.attempts,
        "failures": course.failures,
        "throttles": course.throttles,
        "version": standing.version,
        "epoch": standing.epoch,
        "due_at": course.due_at,
        "next_at": course.next_at if one.ended_at == 0 else 0,
        "expires_at": course.expires_at,
        "ended_at": one.ended_at,
        "entries": one.seq,
    }


# status


def status(
    shell: Shell,
    name: Annotated[str, typer.Argument(metavar="KEY", help="A delivery key, or the id of a reminder.")],
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """The story of a delivery, for a support agent: what happened, and what to tell the customer."""
    from sendonce.pipeline.story import story

    stories = shell.read(lambda tx: story(tx, name, shell.policy, tenant=tenant))
    shell.screen.document({"deliveries": [story_document(each) for each in stories]})
    for number, each in enumerate(stories):
        if number:
            shell.screen.say()
        show_story(shell.screen, each)


def story_document(one: Story) -> dict[str, object]:
    return {
        **delivery_document(one.delivery),
        "reminder": one.reminder,
        "headline": one.headline,
        "address": one.address,
        "due_local": one.due_local,
        "zone": one.zone,
        "linked": one.linked,
        "moments": one.moments,
        "later": one.later,
        "said": one.said,
    }


def show_story(screen: Screen, one: Story) -> None:
    """The story for people."""
    standing = one.delivery.standing
    screen.say(Text.assemble((one.delivery.key, "bold"), "  ", state_text(standing.state)))
    screen.say(one.headline)
    due = re.sub(r"\.\d+", "", one.due_local).replace("T", " ")
    screen.say(f"due {due} ({one.zone}), to {one.address or 'an address that was erased'}", style=QUIET)
    if one.linked:
        screen.say(f"sent again, after {one.linked}", style=QUIET)
    screen.say()
    for moment in one.moments:
        screen.say(Text.assemble((f"{moment.local}  ", QUIET), moment.text, (f"  [{moment.actor}]", QUIET)))
    if one.later:
        screen.say()
        screen.say("what was said later:", style=QUIET)
        for each in one.later:
            screen.say(Text.assemble((f"{each.local}  ", QUIET), each.text))
    if one.said is None:
        return
    parts = one.said.parts
    screen.say()
    screen.say(f"text, from template {one.said.template} version {one.said.template_version}:", style=QUIET)
    for name, label in (("sender", "From"), ("reply_to", "Reply-To"), ("subject", "Subject")):
        if parts.get(name):
            screen.say(f"  {label}: {parts[name]}")
    for name in ("text", "html"):
        if parts.get(name):
            screen.say()
            for text in parts[name].splitlines():
                screen.say(f"  {text}")


# ledger


def ledger(
    shell: Shell,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A delivery key.")],
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """The acceptance ledger of a delivery, for an auditor: each entry as it was written."""
    from sendonce.pipeline.story import record

    found = shell.read(lambda tx: record(tx, key, tenant=tenant))
    shell.screen.document(
        {
            **delivery_document(found.delivery),
            "head": found.delivery.head,
            "entries": [_entry(line) for line in found.lines],
        }
    )
    _show_ledger(shell.screen, found)


def _entry(line: Line) -> dict[str, object]:
    return {
        "seq": line.seq,
        "at": line.at,
        "event": line.event,
        "actor": line.actor,
        "state": line.state,
        "epoch": line.number("epoch"),
        "details": dict(line.details),
        "hash": line.hash,
        "text": line.text,
    }


def _show_ledger(screen: Screen, found: Record) -> None:
    """An entry in one line for grep, in two for eyes."""
    if screen.out.is_terminal:
        for line in found.lines:
            screen.say(
                Text.assemble(
                    (f"{line.seq:>3}  {instant(line.at)}  ", QUIET),
                    (line.event, "bold"),
                    f"  {line.state}  epoch {line.number('epoch')}  ",
                    (line.actor, QUIET),
                )
            )
            screen.say(f"     {_details(line)}  {line.hash[:12]}", style=QUIET)
    else:
        screen.table(
            ("#seq", "at", "event", "state", "#epoch", "actor", "details", "hash"),
            [
                (
                    line.seq,
                    instant(line.at) or "-",
                    line.event,
                    line.state,
                    line.number("epoch"),
                    line.actor,
                    _details(line),
                    line.hash[:12],
                )
                for line in found.lines
            ],
        )
    screen.say(f"{counted(len(found.lines), 'entry', 'entries')}; `sendonce verify` proves them", style=QUIET)


def _details(line: Line) -> str:
    return " ".join(f"{name}={value}" for name, value in line.details.items() if value not in ("", None))


# report


def report(
    shell: Shell,
    day: Annotated[str, typer.Option("--day", metavar="DATE", help="Such as 2026-12-01.")],
    zone: Annotated[str, typer.Option("--zone", help="Whose day; otherwise that of the tenant.")] = "",
    tenant: Annotated[str, typer.Option("--tenant", help="Whose data; otherwise everybody's.")] = "",
) -> Exit:
    """What fell due on a day, and what became of it; both must add up."""
    from sendonce.pipeline.report import report as make

    where = zone or shell.policy.zone(tenant or DEFAULT_TENANT)
    made = shell.read(lambda tx: make(tx, day, where, tenant=tenant))
    shell.screen.document(
        {
            "day": str(made.day),
            "zone": made.zone,
            "start_at": made.start,
            "end_at": made.end,
            "due": made.due,
            "ended": made.ended,
            "open": made.still_open,
            "counts": _in_order(made),
            "removed": made.removed,
            "later": made.later,
            "left": made.left,
            "adds_up": made.adds_up,
            "lines": made.lines,
            "open_deliveries": [delivery_document(each) for each in made.open],
            "faults": made.faults,
        }
    )
    _show_day(shell.screen, made)
    return Exit.OK if made.adds_up else Exit.PARTLY


def _in_order(made: Report) -> dict[str, int]:
    return {state.value: made.counts[state] for state in State if made.counts.get(state)}


def _show_day(screen: Screen, made: Report) -> None:
    screen.say(f"{made.day} in {made.zone}: {counted(made.due, 'delivery', 'deliveries')} due")
    states = list(_in_order(made))
    if made.lines:
        screen.table(
            ("channel", "category", "account", "#due", *(f"#{state.lower()}" for state in states)),
            [_day_row(line, states) for line in made.lines],
        )
    for one in made.open[:20]:
        why = f" ({one.course.reason})" if one.course.reason else ""
        screen.say(f"  open: {one.key} {one.standing.state}{why}", style=CARE)
    if made.still_open > 20:
        screen.say(f"  {made.still_open:,} are open in all", style=CARE)
    if made.removed:
        screen.say(
            f"  {made.removed:,} of them were removed by policy since; their outcomes were kept", style=QUIET
        )
    if made.later:
        said = ", ".join(f"{count:,} {kind}" for kind, count in made.later.items())
        screen.say(f"  said later by providers: {said}", style=QUIET)
    if made.left:
        said = ", ".join(f"{count:,} {state}" for state, count in made.left.items())
        screen.say(f"  said on that day and left to people: {said}; `sendonce events list`", style=CARE)
    for fault in made.faults:
        screen.say(fault, style=BAD)
    if made.adds_up:
        screen.say(f"adds up: {made.ended:,} ended, {made.still_open:,} open, {made.due:,} due", style=GOOD)


def _day_row(line: ReportLine, states: list[str]) -> tuple[str, ...]:
    return (
        line.channel,
        line.category,
        line.account or "-",
        f"{line.due:,}",
        *(f"{line.counts.get(state, 0):,}" for state in states),
    )


# verify


def verify(
    shell: Shell,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", metavar="FILE", help="Checkpoints of the seals, kept elsewhere."),
    ] = None,
) -> Exit:
    """Prove the ledger: every chain is whole and gives the store as it stands, and every seal holds."""
    from sendonce.pipeline.verify import verify as prove

    with shell.screen.progress("verifying") as bar:
        proof = prove(shell.store, progress=lambda so_far, total: bar.to(so_far.deliveries, total))
    sealed = audit.prove(shell, checkpoints)
    shell.screen.document(
        {
            "ok": proof.ok and sealed.ok,
            "deliveries": proof.deliveries,
            "entries": proof.entries,
            "removed": proof.removed,
            "faulty": proof.faulty,
            "faults": proof.faults,
            "seals": audit.document_of(sealed),
        }
    )
    _show_proof(shell, proof)
    audit.show(shell.screen, sealed, keys=shell.app.verifier() is not None)
    return Exit.OK if proof.ok and sealed.ok else Exit.PARTLY


def _show_proof(shell: Shell, proof: Verified) -> None:
    checked = (
        f"{counted(proof.deliveries, 'delivery', 'deliveries')}, {counted(proof.entries, 'entry', 'entries')}"
    )
    if proof.removed:
        shell.screen.say(
            f"{counted(proof.removed, 'delivery', 'deliveries')} removed by policy, each under its tombstone",
            style=QUIET,
        )
    if proof.ok:
        shell.screen.say(f"{checked}: every chain is whole and gives the store as it stands", style=GOOD)
        return
    shell.screen.say(f"{checked}: {counted(proof.faulty, 'fault')}", style=BAD)
    shell.screen.table(
        ("delivery", "#entry", "fault"), [(each.key, each.seq, each.what) for each in proof.faults[:50]]
    )
    if proof.faulty > 50:
        shell.screen.say(f"{proof.faulty - 50:,} more: --json has the first 1,000", style=CARE)
