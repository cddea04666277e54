"""Holding back and letting go: `pause`, `resume`, and the accounts with their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce.cli.screen import CARE, GOOD, QUIET, Screen, counted, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.cli.values import moment
from sendonce.cli.views import account_table
from sendonce.core.duration import Rate, parse_duration, parse_rate, write_rate
from sendonce.core.errors import NotFound
from sendonce.core.pacing import SECOND, GateLimits, Limit

if TYPE_CHECKING:
    from sendonce.pipeline.pause import Paused, Resumed, Target

Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept.")]
Until = Annotated[
    str, typer.Option("--until", metavar="WHEN", help='"in 2h", or a time; otherwise until it is resumed.')
]
ScopeArgument = Annotated[str, typer.Argument(metavar="WHAT", help="scheduler, channel, group or account.")]
NameArgument = Annotated[str, typer.Argument(metavar="[NAME]", help="Which; none for the scheduler.")]
AccountArgument = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Its name.")]
Reopen = Annotated[
    bool, typer.Option("--reopen", help="Open its gate too, even where the provider asked us to wait.")
]
Over = Annotated[
    str,
    typer.Option("--over", metavar="TIME", help='Spread what was held over so long, such as "30m".'),
]


def add_to(app: typer.Typer) -> None:
    panel = {"rich_help_panel": "Operate"}
    command(app, **panel)(pause)
    command(app, **panel)(resume)
    group = typer.Typer(
        help="The provider accounts: list, pause, resume, limits, move.", no_args_is_help=True
    )
    command(group, "list")(accounts_list)
    command(group, "pause")(accounts_pause)
    command(group, "resume")(accounts_resume)
    command(group, "limits")(accounts_limits)
    command(group, "move")(accounts_move)
    app.add_typer(group, name="accounts", rich_help_panel="Operate")


def pause(
    shell: Shell,
    scope: ScopeArgument,
    reason: Reason,
    name: NameArgument = "",
    until: Until = "",
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """Hold back what has not started: all publication, a channel, a group or an account."""
    _pause(shell, _target(scope, name, tenant), reason, until)


def resume(
    shell: Shell,
    scope: ScopeArgument,
    reason: Reason,
    name: NameArgument = "",
    reopen: Reopen = False,
    over: Over = "",
    tenant: TenantOption = DEFAULT_TENANT,
) -> None:
    """End a pause; what it held goes on at once, paced, or spread over a time."""
    over_s = parse_duration(over, field="--over") if over else 0.0
    _resume(shell, _target(scope, name, tenant), reason, reopen=reopen, over_s=over_s)


def accounts_list(shell: Shell) -> None:
    """Each account: what waits, its gate, its limits, and why nothing leaves where nothing does."""
    from sendonce.pipeline.overview import overview

    seen = shell.read(lambda tx: overview(tx, shell.policy))
    shell.screen.document({"accounts": seen.accounts})
    account_table(shell.screen, seen.accounts)
    for each in seen.accounts:
        if each.gate.limits is not None:
            note = "; changed here, not as configured" if each.gate.changed else ""
            shell.screen.say(f"{each.name}: {_spell(each.gate.limits)}{note}", style=QUIET)


def accounts_pause(shell: Shell, account: AccountArgument, reason: Reason, until: Until = "") -> None:
    """Send nothing through an account until then."""
    _pause(shell, _target("account", account, DEFAULT_TENANT), reason, until)


def accounts_resume(shell: Shell, account: AccountArgument, reason: Reason, reopen: Reopen = False) -> None:
    """Let an account send again; also after its credentials were mended."""
    _resume(shell, _target("account", account, DEFAULT_TENANT), reason, reopen=reopen)


def accounts_limits(
    shell: Shell,
    account: AccountArgument,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="RATE", help='14/s, 50000/d, "10 parts/s"; all of them.'),
    ] = None,
    lanes: Annotated[int, typer.Option("--lanes", help="Calls that may be open at once.", min=0)] = 0,
    headroom: Annotated[
        float, typer.Option("--headroom", help="The share left to other traffic; -1 keeps it.")
    ] = -1.0,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")] = "",
) -> None:
    """Show an account's limits, or change them while everything runs, until the configuration changes."""
    from sendonce.pipeline.pause import change_limits

    now = _limits_of(shell, account)
    wanted = replace(
        now,
        limits=tuple(_limit(text) for text in limit) if limit else now.limits,
        lanes=lanes or now.lanes,
        headroom=now.headroom if headroom < 0 else headroom,
    )
    if wanted == now:
        shell.screen.document({"account": account, "limits": now, "before": None})
        shell.screen.say(f"{account}: {_spell(now)}")
        return
    before, after = change_limits(shell.store, account, wanted, reason=reason, actor=shell.actor)
    shell.screen.document({"account": account, "limits": after, "before": before})
    shell.screen.say(f"{account}: {_spell(after)}", style=GOOD)
    shell.screen.say(f"before: {_spell(before)}", style=QUIET)


def accounts_move(
    shell: Shell,
    source: Annotated[str, typer.Option("--from", metavar="ACCOUNT", help="For which it waits now.")],
    target: Annotated[str, typer.Option("--to", metavar="ACCOUNT", help="Which is to carry it.")],
    reason: Reason,
    group: Annotated[str, typer.Option("--group", help="Only this group.")] = "",
    category: Annotated[str, typer.Option("--category", help="Only this category.")] = "",
    preview: Annotated[bool, typer.Option("--preview", help="Count, and change nothing.")] = False,
) -> None:
    """Give what waits for one account to another that shares with it; never what may be sent already."""
    from sendonce.pipeline.failover import LEFT, reroute

    with shell.screen.progress("moving") as bar:
        done = reroute(
            shell.store,
            shell.policy,
            source,
            target,
            reason=reason,
            actor=shell.actor,
            group=group,
            category=category,
            preview=preview,
            progress=lambda done: bar.to(done.moved),
        )
    shell.screen.document(
        {"from": source, "to": target, "preview": preview, "moved": done.moved, "left": dict(done.left)}
    )
    what = counted(done.moved, "delivery", "deliveries")
    said = "would go" if preview else "moved"
    shell.screen.say(f"{what} {said} from {source} to {target}", style=QUIET if preview else GOOD)
    for why, count in done.left.most_common():
        shell.screen.say(f"{count} {'stays' if count == 1 else 'stay'}: {LEFT[why]}", style=CARE)


# What these share


def _target(scope: str, name: str, tenant: str) -> Target:
    from sendonce.pipeline.pause import target_of

    return target_of(scope, name, tenant)


def _pause(shell: Shell, target: Target, reason: str, until: str) -> None:
    from sendonce.pipeline.pause import pause as hold

    zone = shell.policy.zone(target.tenant)
    at = moment(until, zone, shell.now, "--until") if until else None
    _show_paused(
        shell.screen,
        hold(shell.store, target, shell.policy, reason=reason, actor=shell.actor, until=at),
    )


def _resume(shell: Shell, target: Target, reason: str, *, reopen: bool, over_s: float = 0.0) -> None:
    from sendonce.pipeline.pause import resume as let_go

    with shell.screen.progress("waking") as bar:
        done = let_go(
            shell.store,
            target,
            shell.policy,
            reason=reason,
            actor=shell.actor,
            reopen=reopen,
            over_s=over_s,
            progress=bar.to,
        )
    _show_resumed(shell.screen, done)


def _show_paused(screen: Screen, done: Paused) -> None:
    screen.document(
        {
            "what": done.target.scope,
            "name": done.target.name,
            "until": done.until or 0,
            "held": done.held,
        }
    )
    end = f"until {when(done.until)}" if done.until else "until it is resumed"
    screen.say(f"{done.target} is paused {end}", style=CARE)
    if done.held is not None:
        held = counted(done.held, "open delivery", "open deliveries")
        screen.say(
            f"{held} held" if done.held else "it holds no open delivery: is the name right?", style=QUIET
        )


def _show_resumed(screen: Screen, done: Resumed) -> None:
    screen.document(
        {
            "what": done.target.scope,
            "name": done.target.name,
            "was_paused": done.was_paused,
            "woken": done.woken,
            "spread": done.spread,
            "opened": done.opened,
        }
    )
    screen.say(f"{done.target} goes on" if done.was_paused else f"{done.target} was not paused", style=GOOD)
    if done.opened:
        from sendonce.pipeline.standstill import closed_words

        screen.say(f"its gate is open again; it was closed, since {closed_words(done.opened)}")
    if done.spread:
        held = counted(done.spread, "delivery", "deliveries")
        screen.say(f"{held} spread: `sendonce overview` shows until when", style=QUIET)
    elif done.woken:
        screen.say(f"{counted(done.woken, 'delivery', 'deliveries')} looked at again now", style=QUIET)


def _limits_of(shell: Shell, account: str) -> GateLimits:
    for gate in shell.read(lambda tx: tx.gates.all()):
        if gate.account == account:
            return gate.limits
    known = ", ".join(sorted(shell.policy.accounts))
    raise NotFound(f"account {account!r:.80} is not known: use one of {known}")


def _limit(text: str) -> Limit:
    rate = parse_rate(text, field="--limit")
    return Limit(rate.count, round(rate.interval_s * SECOND), rate.unit == "parts")


def _spell(limits: GateLimits) -> str:
    rates = ", ".join(
        write_rate(Rate(limit.count, limit.interval_us / SECOND, "parts" if limit.parts else "requests"))
        for limit in limits.limits
    )
    headroom = f", headroom {limits.headroom:g}" if limits.headroom else ""
    return f"{rates}, {limits.lanes} at once{headroom}"
