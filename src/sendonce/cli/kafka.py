"""`kafka`: hand the feed of a tenant on to a Kafka cluster, as a process of its own or from a cron."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from typing import Annotated, Final

import typer

from sendonce import telemetry
from sendonce.cli.exits import Exit
from sendonce.cli.run import tell_of
from sendonce.cli.screen import CARE, GOOD, counted
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.core.due import parse_due
from sendonce.core.errors import ConfigError, Refused, StoreError
from sendonce.pipeline.hand_on import HandOn
from sendonce.ports.sink import SinkUnavailable
from sendonce.runtime.poller import Poller

PATIENCE_S: Final = 2.0
"""For so long a stretch is asked about in which somebody is writing just now."""


def add_to(app: typer.Typer) -> None:
    command(app, rich_help_panel="Work")(kafka)


def kafka(
    shell: Shell,
    once: Annotated[bool, typer.Option("--once", help="End when all that is there was handed on.")] = False,
    since: Annotated[
        str, typer.Option("--since", help="Begin anew at about this time, wherever the place is.")
    ] = "",
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """Hand the feed on to Kafka, in order and at least once, until Ctrl-C. More than one may run."""
    begin = parse_due(since, zone=shell.policy.zone(tenant), field="--since").at if since else 0
    sink = shell.app.kafka()
    if sink is None:
        raise ConfigError(f"no cluster is configured: write [kafka] with servers in {shell.settings.path}")
    shell.store.steady()  # opened here, so that what is wrong with it is one line and no log
    passing = HandOn(shell.store, shell.app.feed, sink, tenant=tenant, process=shell.app.process, since=begin)
    try:
        try:
            shell.screen.note(f"kafka: {sink.check(tenant)}", style="")
        except SinkUnavailable as error:
            if once:
                raise
            shell.screen.note(f"{error}: it is tried again", style=CARE)
        gone = _once(passing) if once else asyncio.run(_follow(shell, passing))
    finally:
        sink.close()
        with suppress(StoreError):  # else its lease ends
            passing.resign()
    shell.screen.document({"handed_on": passing.handed_on, "gone": gone is not None})
    if gone is not None:
        raise Refused(f"{gone}; here: sendonce kafka --since TIME", code=gone.code)
    shell.screen.say(f"{counted(passing.handed_on, 'event')} handed on", style=GOOD)
    return Exit.OK


def _once(passing: HandOn) -> Refused | None:
    until = time.monotonic() + PATIENCE_S
    try:
        while True:
            before = passing.handed_on
            wait_s = passing.step()
            if passing.handed_on > before:
                until = time.monotonic() + PATIENCE_S
            elif not passing.leads or not passing.more or time.monotonic() >= until:
                return None
            if wait_s:
                time.sleep(wait_s)
    except Refused as error:
        return error


async def _follow(shell: Shell, passing: HandOn) -> Refused | None:
    gone: list[Refused] = []

    async def step() -> float:
        try:
            return await asyncio.to_thread(passing.step)
        except Refused as error:
            gone.append(error)
            poller.stop()
            return 0.0

    poller = Poller("kafka", step, on_error=_told)
    settings = shell.settings
    telemetry.configure(settings.log_level, settings.log_format, process=f"kafka-{os.getpid()}")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, poller.stop)
    await poller.run()
    return gone[0] if gone else None


def _told(stage: str, error: Exception) -> None:
    if not isinstance(error, SinkUnavailable):  # told by who met it
        tell_of(stage, error)
