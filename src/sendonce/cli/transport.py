"""`transport`: the brokers that may carry hints: what lies there, and a change from one to another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from sendonce.cli.screen import BAD, CARE, GOOD, QUIET, counted
from sendonce.cli.shell import Shell, command

if TYPE_CHECKING:
    from sendonce.app import App
    from sendonce.pipeline.transports import TransportView

Kind = Annotated[str, typer.Argument(metavar="KIND", help="`store`, `rabbitmq`, `nats` or `sqs`.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="What carries hints to the workers: list, switch, drain.", no_args_is_help=True)
    command(group, "list")(list_)
    command(group)(switch)
    command(group)(drain)
    app.add_typer(group, name="transport", rich_help_panel="Operate")


def list_(shell: Shell) -> None:
    """Which transport is in force, and how many hints lie in each queue of each that is configured."""
    current, views = asyncio.run(_look(shell.app))
    screen = shell.screen
    screen.document(
        {
            "in_force": current,
            "transports": [
                {
                    "kind": view.kind,
                    "in_force": view.in_force,
                    "queues": [
                        {
                            "account": lying.account,
                            "waiting": lying.depth.waiting if lying.depth else None,
                            "held": lying.depth.held if lying.depth else None,
                        }
                        for lying in view.queues
                    ],
                }
                for view in views
            ],
        }
    )
    screen.say(_in_force(current))
    if views:
        screen.table(
            ("transport", "account", "#waiting", "#held by workers"),
            [
                (
                    view.kind,
                    lying.account,
                    lying.depth.waiting if lying.depth else "no answer",
                    "" if lying.depth is None or lying.depth.held is None else lying.depth.held,
                )
                for view in views
                for lying in view.queues
            ],
        )
    if any(lying.depth is None for view in views for lying in view.queues):
        screen.say("a broker does not answer: `sendonce check` says why", style=BAD)


def switch(
    shell: Shell, kind: Kind, reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")]
) -> None:
    """Let another transport carry hints from now on. Running processes change over within seconds."""
    from sendonce.pipeline import transports
    from sendonce.pipeline.carrier import STORE

    app = shell.app
    before = transports.switch(
        shell.store,
        kind,
        configured=_configured(app),
        known=app.transports(),
        actor=shell.actor,
        reason=reason,
    )
    shell.screen.document({"before": before, "in_force": kind})
    shell.screen.say(_in_force(kind), style=GOOD)
    if before != STORE:
        shell.screen.say(
            f"what lies in {before} is not needed any more; `sendonce transport drain {before}` takes it out",
            style=QUIET,
        )


def drain(shell: Shell, kind: Kind) -> None:
    """Take out the hints that lie in a broker which carries none any more. No delivery is touched."""
    taken = asyncio.run(_drain(shell, kind))
    shell.screen.document({"taken": taken})
    total = sum(taken.values())
    shell.screen.say(
        f"{counted(total, 'hint')} taken out of {kind}" if total else f"nothing lies in {kind}", style=GOOD
    )
    shell.screen.say("their deliveries are in the store, and sent from there", style=CARE if total else QUIET)


async def _look(app: App) -> tuple[str, list[TransportView]]:
    from sendonce.pipeline import transports

    known = app.transports()
    current = transports.now_in_force(app.store, _configured(app))
    accounts = {name: account.channel for name, account in app.policy.accounts.items()}
    try:
        return current, await transports.look(known, accounts, current)
    finally:
        for transport in known.values():
            await transport.close()


async def _drain(shell: Shell, kind: str) -> dict[str, int]:
    from sendonce.pipeline import transports

    app = shell.app
    known = app.transports()
    transports.check_drainable(kind, transports.now_in_force(app.store, _configured(app)), known)
    accounts = {name: account.channel for name, account in app.policy.accounts.items()}
    try:
        return await transports.drain(known[kind], accounts)
    finally:
        for transport in known.values():
            await transport.close()


def _configured(app: App) -> str:
    from sendonce.pipeline.carrier import STORE

    brokers = app.settings.transport.brokers
    return brokers[0].kind if brokers else STORE


def _in_force(kind: str) -> str:
    return "the store's own queue is in force" if kind == "store" else f"{kind} carries hints"
