"""`sandbox`: a local provider to try things on; nothing leaves this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import BAD, GOOD, Screen
from sendonce.cli.shell import Shell, command
from sendonce.core.errors import InvalidInput

if TYPE_CHECKING:
    from sendonce.testing.sandbox import Sandbox, SandboxSettings


def add_to(app: typer.Typer) -> None:
    command(app, rich_help_panel="Try it")(sandbox)


def sandbox(
    shell: Shell,
    smtp_port: Annotated[int, typer.Option(help="0 lets the system choose.", min=0, max=65535)] = 2525,
    http_port: Annotated[int, typer.Option(help="0 lets the system choose.", min=0, max=65535)] = 8025,
    rules: Annotated[
        str, typer.Option(help="Limits and faults: a JSON object, or a file that holds one.")
    ] = "{}",
) -> Exit:
    """Be a mail server and an SMS provider on this machine, with limits and faults, until Ctrl-C.

    It counts what would have reached people, and what would have reached them twice.
    """
    from sendonce.testing.sandbox import serve

    settings = replace(_settings(rules), smtp_port=smtp_port, http_port=http_port)
    running: list[Sandbox] = []

    def ready(sandbox: Sandbox) -> None:
        running.append(sandbox)
        _greet(shell.screen, sandbox)

    asyncio.run(serve(settings, on_ready=ready))
    _report(shell.screen, running[0])
    return Exit.OK


def _settings(rules: str) -> SandboxSettings:
    from sendonce.testing.sandbox import read_settings

    text = rules
    if not rules.lstrip().startswith("{"):
        try:
            text = Path(rules).read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"--rules {rules!r:.200}: {error.strerror}: name a file of JSON") from None
    try:
        return read_settings(json.loads(text))
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--rules is no JSON object: {error}") from None


def _greet(screen: Screen, sandbox: Sandbox) -> None:
    url, smtp = sandbox.http_url, f"{sandbox.settings.host}:{sandbox.smtp_port}"
    screen.line(
        {"host": sandbox.settings.host, "smtp_port": sandbox.smtp_port, "http_port": sandbox.http_port}
    )
    screen.say("A provider on this machine: nothing leaves it, and all is forgotten at the end.")
    screen.say(f"  mail     SMTP {smtp}")
    screen.say(f"  SMS      {url} as base_url of provider twilio, or {url}/v1/messages")
    screen.say(f"  count    {url}/report")
    screen.say("Ctrl-C ends it.")
    sys.stdout.flush()


def _report(screen: Screen, sandbox: Sandbox) -> None:
    counted = {
        name: channel.door.report(channel.rules.rate_interval_s) for name, channel in sandbox.channels.items()
    }
    screen.line(counted)
    for name, report in counted.items():
        screen.say(_sentence(name, report), style=BAD if report["duplicates"] else GOOD)


def _sentence(name: str, report: dict[str, Any]) -> str:
    return (
        f"{name}: {report['calls']} calls, {report['effects']} messages taken, "
        f"{report['duplicates']} of them twice"
    )
