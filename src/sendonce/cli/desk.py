"""The operator's desk: what failed, what nobody can be sure of, and what is sent once more.

`dead`, `redrive`, `uncertain`, `resolve`, `again`. Each change needs a reason, and is recorded with who
made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from sendonce.cli.exits import Exit
from sendonce.cli.screen import BAD, CARE, GOOD, QUIET, Screen, counted, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.cli.values import moment
from sendonce.cli.views import delivery_document, state_text
from sendonce.core.duration import parse_duration, say_duration
from sendonce.core.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from collections import Counter

    from sendonce.pipeline.chosen import Filter
    from sendonce.pipeline.redrive import DeadLetter, Redrive
    from sendonce.pipeline.resolve import Resolution, Resolved, Uncertain, Word

SHOWN_MAX: Final = 50

Key = Annotated[str, typer.Argument(metavar="KEY", help="A delivery key.")]
Keys = Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Delivery keys.")]
Channel = Annotated[str, typer.Option("--channel", help="Only this channel.")]
Account = Annotated[str, typer.Option("--account", help="Only this account.")]
Cause = Annotated[
    str,
    typer.Option("--cause", help='What it died of, such as "failed:connection", or "failed" for all such.'),
]
Doubt = Annotated[
    str,
    typer.Option("--cause", help='What left it so, such as "unknown:timeout", or "unknown" for all such.'),
]
Template = Annotated[str, typer.Option("--template", help="Only with this template.")]
Group = Annotated[str, typer.Option("--group", help="Only of this group.")]
Since = Annotated[str, typer.Option("--since", metavar="WHEN", help="Only what was due from then on.")]
Until = Annotated[str, typer.Option("--until", metavar="WHEN", help="Only what was due before.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the ledger.")]
Preview = Annotated[
    bool, typer.Option("--preview", "--dry-run", help="Say what would happen, change nothing.")
]


def add_to(app: typer.Typer) -> None:
    panel = {"rich_help_panel": "Operate"}
    group = typer.Typer(help="What failed for good: list, show.", no_args_is_help=True)
    command(group, "list")(dead_list)
    command(group, "show")(dead_show)
    app.add_typer(group, name="dead", rich_help_panel="Operate")
    command(app, **panel)(redrive)
    command(app, **panel)(uncertain)
    command(app, **panel)(resolve)
    command(app, **panel)(again)


# Dead letters


def dead_list(
    shell: Shell,
    channel: Channel = "",
    account: Account = "",
    cause: Cause = "",
    template: Template = "",
    group: Group = "",
    since: Since = "",
    until: Until = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many at most.")] = SHOWN_MAX,
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """What failed for good, by what it died of, and one by one."""
    from sendonce.pipeline.redrive import dead_letters, groups

    chosen = _filter(shell, tenant, channel, account, cause, template, group, since, until)
    found = shell.read(lambda tx: groups(tx, tenant=tenant))
    page = shell.read(lambda tx: dead_letters(tx, chosen, limit=limit))
    shell.screen.document(
        {
            "groups": found,
            "deliveries": [delivery_document(each) for each in page.found],
            "more": page.after is not None,
        }
    )
    if not found:
        shell.screen.say("no dead letters", style=GOOD)
        return
    shell.screen.table(
        ("state", "cause", "meaning", "channel", "account", "#number"),
        [
            (each.state, each.reason, each.words, each.channel, each.account or "-", f"{each.count:,}")
            for each in found
        ],
    )
    shell.screen.table(
        ("delivery", "state", "cause", "due", "#attempts"),
        [
            (
                each.key,
                state_text(each.standing.state),
                each.course.reason,
                when(each.course.due_at),
                each.course.attempts,
            )
            for each in page.found
        ],
    )
    if page.after is not None:
        shell.screen.say(f"more than {limit}: --limit shows more, the options narrow it down", style=QUIET)


def dead_show(shell: Shell, key: Key, tenant: TenantOption = DEFAULT_TENANT) -> None:
    """A dead letter: each attempt, what has changed since, and whether it may be redriven."""
    from sendonce.pipeline.redrive import show

    letter = shell.read(lambda tx: show(tx, key, shell.policy, tenant=tenant))
    shell.screen.document(
        {
            **delivery_document(letter.delivery),
            "words": letter.words,
            "attempts_made": letter.attempts,
            "rounds": letter.rounds,
            "changed": letter.changed,
            "refused": letter.refused,
            "fresh_refused": letter.fresh_refused,
        }
    )
    _show_letter(shell.screen, letter)


def _show_letter(screen: Screen, letter: DeadLetter) -> None:
    one = letter.delivery
    screen.say(Text.assemble((one.key, "bold"), "  ", state_text(one.standing.state), f"  {letter.words}"))
    screen.table(
        ("#attempt", "at", "account", "outcome", "reason", "code", "took"),
        [
            (
                each.number,
                when(each.at),
                each.account,
                each.outcome or "unknown",
                each.reason,
                each.code,
                say_duration(each.took_s),
            )
            for each in letter.attempts
        ],
    )
    if letter.rounds:
        screen.say(f"redriven {letter.rounds} times before")
    for text in letter.changed:
        screen.say(f"since then: {text}")
    if not letter.refused:
        screen.say(f"may go again: sendonce redrive {one.key} --reason ...", style=GOOD)
    elif not letter.fresh_refused:
        screen.say(
            f"may go again with new content: sendonce redrive {one.key} --fresh --reason ...", style=GOOD
        )
    else:
        screen.say(f"may not go again: {letter.refused}", style=CARE)


def redrive(
    shell: Shell,
    reason: Reason,
    keys: Keys = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter of the tenant.")] = False,
    channel: Channel = "",
    account: Account = "",
    cause: Cause = "",
    template: Template = "",
    group: Group = "",
    since: Since = "",
    until: Until = "",
    per_second: Annotated[float, typer.Option("--per-second", help="How many may go a second.")] = 5.0,
    extend: Annotated[
        str, typer.Option("--extend", metavar="TIME", help="Valid for at least so long from now.")
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make the content anew, from the template as it is now.")
    ] = False,
    preview: Preview = False,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Queue dead letters again, under the same keys, at a pace. Consent and expiry are read again."""
    from sendonce.pipeline.chosen import meant
    from sendonce.pipeline.redrive import redrive as again_to_queue

    chosen = meant(
        _filter(
            shell, tenant, channel, account, cause, template, group, since, until, keys=tuple(keys or ())
        ),
        everything=everything,
        how="--all",
    )
    with shell.screen.progress("redriving") as bar:
        done = again_to_queue(
            shell.store,
            chosen,
            shell.policy,
            reason=reason,
            actor=shell.actor,
            per_s=per_second,
            extend_s=parse_duration(extend, field="--extend") if extend else 0.0,
            fresh=fresh,
            preview=preview,
            progress=lambda so_far: bar.to(so_far.seen),
        )
    _show_redrive(shell.screen, done)
    return Exit.PARTLY if done.refused else Exit.OK


def _show_redrive(screen: Screen, done: Redrive) -> None:
    screen.document(
        {
            "preview": done.preview,
            "redriven": done.redriven,
            "last_at": done.last_at,
            "per_second": done.per_s,
            **_refused_document(done.refused, done.examples),
        }
    )
    verb = "would go again" if done.preview else "queued again"
    screen.say(
        f"{counted(done.redriven, 'delivery', 'deliveries')} {verb}", style=GOOD if done.redriven else ""
    )
    if done.redriven:
        screen.say(f"the last of them may go at {when(done.last_at)}", style=QUIET)
    _show_refused(screen, done.refused, done.examples)


def _refused_document(refused: Counter[str], examples: list[tuple[str, str]]) -> dict[str, object]:
    return {
        "refused": [{"why": why, "count": count} for why, count in refused.most_common()],
        "examples": [{"key": key, "why": why} for key, why in examples],
    }


def _show_refused(screen: Screen, refused: Counter[str], examples: list[tuple[str, str]]) -> None:
    if refused:
        screen.say(f"{refused.total():,} refused:", style=CARE)
        screen.table(("#number", "why"), [(count, why) for why, count in refused.most_common()])
        screen.table(("delivery", "why"), examples[:10])


def _filter(
    shell: Shell,
    tenant: str,
    channel: str,
    account: str,
    cause: str,
    template: str,
    group: str,
    since: str,
    until: str,
    keys: tuple[str, ...] = (),
) -> Filter:
    from sendonce.pipeline.chosen import Filter

    now, zone = shell.now, shell.policy.zone(tenant)
    return Filter(
        tenant=tenant,
        channel=channel,
        account=account,
        reason=cause,
        template=template,
        group=group,
        since=moment(since, zone, now, "--since") if since else 0,
        until=moment(until, zone, now, "--until") if until else 0,
        keys=keys,
    )


# Uncertain


def uncertain(
    shell: Shell,
    channel: Channel = "",
    account: Account = "",
    cause: Doubt = "",
    template: Template = "",
    group: Group = "",
    since: Since = "",
    until: Until = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many at most.")] = SHOWN_MAX,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose data; otherwise everybody's.")] = "",
) -> None:
    """What may have been sent and may not: a person decides, with `resolve`."""
    from sendonce.pipeline.resolve import uncertain as look

    chosen = _filter(shell, tenant, channel, account, cause, template, group, since, until)
    page = shell.read(lambda tx: look(tx, shell.policy, chosen, limit=limit))
    shell.screen.document(
        {"uncertain": [_uncertain(each) for each in page.found], "more": page.after is not None}
    )
    if not page.found:
        shell.screen.say("nothing is uncertain", style=GOOD)
        return
    shell.screen.table(
        ("delivery", "attempt at", "account", "what is known", "configured", "resend"),
        [
            (
                each.delivery.key,
                when(each.since),
                each.delivery.course.account,
                each.evidence,
                each.policy,
                each.resend or "possible",
            )
            for each in page.found
        ],
    )
    shell.screen.say(
        "ask the provider, then: sendonce resolve KEY --as sent|not_sent|resend --reason ...",
        style=QUIET,
    )
    if page.after is not None:
        shell.screen.say(f"more than {limit}: --limit shows more, the options narrow it down", style=QUIET)


def _uncertain(each: Uncertain) -> dict[str, object]:
    return {
        **delivery_document(each.delivery),
        "attempt_at": each.since,
        "evidence": each.evidence,
        "policy": each.policy,
        "resend_refused": each.resend,
    }


def resolve(
    shell: Shell,
    decision: Annotated[str, typer.Option("--as", metavar="WORD", help="sent, not_sent or resend.")],
    reason: Reason,
    keys: Keys = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is uncertain of the tenant.")] = False,
    channel: Channel = "",
    account: Account = "",
    cause: Doubt = "",
    template: Template = "",
    group: Group = "",
    since: Since = "",
    until: Until = "",
    receipt: Annotated[
        str, typer.Option("--receipt", help="The provider's number, as proof that this one was sent.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="For resend: that it may arrive twice is understood.")
    ] = False,
    preview: Preview = False,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Decide uncertain deliveries. A resend may reach the customer twice."""
    from sendonce.pipeline.chosen import meant
    from sendonce.pipeline.resolve import DUPLICATE_RISK, Word
    from sendonce.pipeline.resolve import resolve as decide

    word = _word(decision)
    chosen = meant(
        _filter(
            shell, tenant, channel, account, cause, template, group, since, until, keys=tuple(keys or ())
        ),
        everything=everything,
        how="--all",
    )
    if word is Word.RESEND and not yes and not preview:
        raise Refused(f"{DUPLICATE_RISK} --yes says that this is understood", code="duplicate_risk")
    with shell.screen.progress("resolving") as bar:
        done = decide(
            shell.store,
            chosen,
            word,
            shell.policy,
            reason=reason,
            actor=shell.actor,
            receipt=receipt,
            preview=preview,
            progress=lambda so_far: bar.to(so_far.seen),
        )
    _show_resolution(shell.screen, done)
    if done.answers:
        return _exit_of(done.answers)
    return Exit.PARTLY if done.refused else Exit.OK


def _show_resolution(screen: Screen, done: Resolution) -> None:
    screen.document(
        {
            "decision": done.word,
            "preview": done.preview,
            "resolved": done.resolved,
            **_refused_document(done.refused, done.examples),
            "answers": done.answers,
        }
    )
    for answer in done.answers:
        _show_answer(screen, answer, preview=done.preview)
    if not done.answers:
        verb = "would be" if done.preview else "were"
        number = counted(done.resolved, "delivery", "deliveries")
        screen.say(f"{number} {verb} decided: {done.word}", style=GOOD if done.resolved else "")
        _show_refused(screen, done.refused, done.examples)


def _word(text: str) -> Word:
    from sendonce.pipeline.resolve import Word

    try:
        return Word(text.replace("-", "_"))
    except ValueError:
        raise InvalidInput(f"--as {text!r:.80} must be one of {', '.join(Word)}", field="--as") from None


def _show_answer(screen: Screen, answer: Resolved, *, preview: bool) -> None:
    became = f"would be {answer.state}" if preview else answer.state
    text = f"{answer.key}: {became}" if answer.done else f"{answer.key}: refused, {answer.why}"
    screen.say(text, style=GOOD if answer.done else BAD)


def _exit_of(answers: list[Resolved]) -> Exit:
    if all(answer.done for answer in answers):
        return Exit.OK
    if len(answers) > 1:
        return Exit.PARTLY
    return Exit.REFUSED if answers[0].state else Exit.NOT_FOUND


# Again


def again(shell: Shell, key: Key, reason: Reason, tenant: TenantOption = DEFAULT_TENANT) -> None:
    """Send what has ended once more: a new reminder, linked to it, due now. Never a redrive."""
    from sendonce.pipeline.intake import again as once_more

    result = shell.write(
        lambda tx: once_more(tx, key, tenant=tenant, policy=shell.policy, reason=reason, actor=shell.actor)
    )
    (new,) = result.keys
    shell.screen.document({"verdict": result.verdict, "key": new, "why": result.why})
    shell.screen.say(f"{new}: {result.verdict}{f', {result.why}' if result.why else ', due now'}", style=GOOD)
