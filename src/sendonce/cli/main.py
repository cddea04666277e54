"""The command line `sendonce`: its commands put together, and how errors look.

One module a noun; each handler takes a `Shell`, calls a stage and renders what it answered. What goes
wrong becomes one clear line on stderr and an exit code (`exits`): an error that was raised on purpose says
value, rule and fix; an unexpected one says where to report it, and nothing of what it choked on, since
that may be an address or a secret.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from sendonce.cli import (
    audit,
    consent,
    console,
    desk,
    drill,
    erase,
    events,
    feed,
    intake,
    kafka,
    key,
    operate,
    outbox,
    sandbox,
    setup,
    simulate,
    slo,
    store,
    template,
    transport,
    views,
)
from sendonce.cli import run as running
from sendonce.cli.exits import Exit, exit_of
from sendonce.cli.screen import BAD, Screen
from sendonce.cli.shell import (
    ActorOption,
    ConfigOption,
    DebugOption,
    Given,
    Interrupted,
    JsonOption,
    NobodyReads,
)
from sendonce.core.errors import InvalidInput, SendonceError
from sendonce.telemetry import fault

REPORT_TO: Final = "SECURITY.md for what is dangerous, otherwise the project's issues"


class Commands(TyperGroup):
    """`demo` brings the whole program along and is imported when it is asked for: others start in half
    the time."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), "demo"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "demo":
            return super().get_command(ctx, cmd_name)
        from sendonce.cli import demo

        alone = typer.Typer(add_completion=False)
        demo.add_to(alone)
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    name="sendonce",
    help="Due reminders by email and SMS, each delivered once, at the pace each provider allows.",
    epilog="Exit codes, JSON and every option: docs/cli.md.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"sendonce {version_of('sendonce')}\n")
        raise typer.Exit


@app.callback()
def everywhere(
    ctx: typer.Context,
    config: ConfigOption = None,
    json: JsonOption = False,
    actor: ActorOption = None,
    debug: DebugOption = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    ctx.obj = Given(config, json, actor, debug)


for part in (
    setup,
    running,
    intake,
    template,
    consent,
    erase,
    views,
    slo,
    feed,
    kafka,
    desk,
    operate,
    key,
    console,
    outbox,
    transport,
    events,
    audit,
    store,
    sandbox,
    drill,
    simulate,
):
    part.add_to(app)


def run(arguments: list[str] | None = None) -> None:
    """The entry point: never returns, never shows a traceback unless asked to."""
    sys.exit(main(sys.argv[1:] if arguments is None else arguments))


def main(arguments: list[str]) -> int:
    """Run one command; returns its exit code."""
    shown = Screen(as_json="--json" in arguments)
    try:
        return int(app(arguments, prog_name="sendonce", standalone_mode=False) or 0)
    except SendonceError as error:
        return _told(shown, error)
    except typer.TyperException as error:
        return _usage(shown, error)
    except (Interrupted, KeyboardInterrupt, typer.Abort):
        shown.note("stopped; what was reported as done is done", style="")
        return Exit.INTERRUPTED
    except (NobodyReads, BrokenPipeError):
        # Whoever read us has enough. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Exception as error:
        return _unexpected(shown, error, debug="--debug" in arguments)


def _told(screen: Screen, error: SendonceError) -> int:
    exit_ = exit_of(error)
    _line(screen, str(error))
    field = {"field": error.field} if isinstance(error, InvalidInput) and error.field else {}
    screen.document({"error": {"code": error.code, "message": str(error), **field}, "exit": exit_})
    return exit_


def _usage(screen: Screen, error: typer.TyperException) -> int:
    message = error.format_message()
    if not message:  # no command was named: its help stands there already
        return Exit.USAGE
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "sendonce"
    _line(screen, f"{message.rstrip('.')}; see {where} --help")
    screen.document({"error": {"code": "usage", "message": message}, "exit": Exit.USAGE})
    return Exit.USAGE


def _unexpected(screen: Screen, error: Exception, *, debug: bool) -> int:
    place = fault(error)
    _line(
        screen,
        f"{place['error']} at {place['at']}: this is a bug in sendonce {version_of('sendonce')}. What was "
        f"reported as done is done. Please report it ({REPORT_TO})"
        + ("" if debug else "; --debug shows more"),
    )
    if debug:
        for frame in traceback.extract_tb(error.__traceback__):
            screen.note(f"  {Path(frame.filename).name}:{frame.lineno} in {frame.name}: {frame.line}")
        screen.note(f"  {type(error).__name__}: {_masked(str(error))}")
    screen.document(
        {"error": {"code": "bug", "message": f"{place['error']} at {place['at']}"}, "exit": Exit.BUG}
    )
    return Exit.BUG


def _line(screen: Screen, message: str) -> None:
    for number, text in enumerate(message.splitlines() or [""]):
        screen.note(text if number else f"error: {text}", style=BAD if number == 0 else "")


def _masked(text: str) -> str:
    """What an exception quotes may be an address or a number."""
    return re.sub(r"[^\s:;,<>\"'()=]+@[^\s:;,<>\"'()=]+|\+?\d[\d ()./-]{5,}\d", "<masked>", text[:500])
