"""What every command stands on: its options, its screen, and the program behind them, opened when first used.

    @command(group)
    def status(shell: Shell, key: ...) -> Exit | None: ...

`command` gives a handler the options that hold everywhere (`--config`, `--json`, `--actor`, `--debug`),
before or after the command's name, and closes what it opened. A handler parses, calls a stage, renders.
"""

from __future__ import annotations

import functools
import getpass
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import Screen
from sendonce.core.delivery import check_id
from sendonce.core.reminder import DEFAULT_TENANT

if TYPE_CHECKING:  # opening the program takes a third of a second: not for --help
    from sendonce.app import App
    from sendonce.config import Settings
    from sendonce.core.policy import Policy
    from sendonce.ports.store import Store, Tx

T = TypeVar("T")
Handler = Callable[..., Exit | None]

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The configuration; otherwise $SENDONCE_CONFIG, otherwise ./sendonce.toml.",
        rich_help_panel="Everywhere",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel="Everywhere")
]
ActorOption = Annotated[
    str | None,
    typer.Option(
        "--actor",
        metavar="NAME",
        help="Who does this, for the ledger; otherwise the user of this machine.",
        rich_help_panel="Everywhere",
    ),
]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", help="Show where an unexpected error came from.", rich_help_panel="Everywhere"),
]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose data.")]

EVERYWHERE: Final = {
    "config": (ConfigOption, None),
    "json": (JsonOption, False),
    "actor": (ActorOption, None),
    "debug": (DebugOption, False),
}
"""The options that hold everywhere: annotation and default by name."""


@dataclass(frozen=True, slots=True)
class Given:
    """The options that hold everywhere, as given."""

    config: Path | None = None
    json: bool = False
    actor: str | None = None
    debug: bool = False

    def over(self, outer: Given) -> Given:
        """These, and where nothing is said, those before the command's name."""
        return Given(
            self.config or outer.config,
            self.json or outer.json,
            self.actor or outer.actor,
            self.debug or outer.debug,
        )


class Interrupted(Exception):
    """Ctrl-C. Typer would end silently; we say what it means."""


class NobodyReads(Exception):
    """Whoever read our answer has enough: `| head`."""


class Shell:
    """One run of one command."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.screen = Screen(as_json=given.json)
        self._app: App | None = None

    @functools.cached_property
    def settings(self) -> Settings:
        """The configuration, read and checked. Raises `ConfigErrors` with all that is wrong."""
        from sendonce.config import load

        return load(self.given.config, environ=os.environ)

    @property
    def app(self) -> App:
        """The program behind the command. Raises `ConfigError`, and `StoreError` once the store is used."""
        if self._app is None:
            from sendonce.app import App

            self._app = App(self.settings)
        return self._app

    @property
    def store(self) -> Store:
        return self.app.store

    @property
    def policy(self) -> Policy:
        return self.app.policy

    @functools.cached_property
    def actor(self) -> str:
        """Who does this, as the ledger will name them."""
        return f"operator:{check_id(self.given.actor or _user(), 'actor')}"

    def read(self, query: Callable[[Tx], T]) -> T:
        return self.store.read(query)

    @property
    def now(self) -> int:
        """The store's time, not this machine's: on a server all machines have the same."""
        return self.read(lambda tx: tx.now)

    def write(self, unit: Callable[[Tx], T]) -> T:
        """Run a unit and wait until it is durable."""
        return self.store.write(unit).result()

    def close(self) -> None:
        if self._app is not None:
            self._app.close()


def command(group: typer.Typer, name: str = "", **settings: Any) -> Callable[[Handler], Handler]:
    """Register a handler under its own name, or under `name`; see the module text."""

    def register(handler: Handler) -> Handler:
        group.command(name or handler.__name__.replace("_", "-"), **settings)(_wrapped(handler))
        return handler

    return register


def _wrapped(handler: Handler) -> Callable[..., int]:
    own = list(inspect.signature(handler, eval_str=True).parameters.values())[1:]

    @functools.wraps(handler)
    def run(ctx: typer.Context, **values: Any) -> int:
        given = Given(**{name: values.pop(name) for name in EVERYWHERE})
        shell = Shell(given.over(ctx.obj if isinstance(ctx.obj, Given) else Given()))
        try:
            code = int(handler(shell, **values) or Exit.OK)
            sys.stdout.flush()  # here, where it is known what a closed pipe means
            return code
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise NobodyReads from None
        finally:
            shell.close()

    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in EVERYWHERE.items()
    ]
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *extra]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__
    return run


def _user() -> str:
    with suppress(OSError, KeyError):  # a container may know its user by number only
        return getpass.getuser()
    return f"uid-{os.getuid()}"


__all__ = [
    "DEFAULT_TENANT",
    "EVERYWHERE",
    "Given",
    "Interrupted",
    "NobodyReads",
    "Shell",
    "TenantOption",
    "command",
]
