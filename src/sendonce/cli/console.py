"""`console`: what the console's user file is made with."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sendonce.cli.shell import Shell, command
from sendonce.core.errors import ConfigError, InvalidInput

ROLES = ("viewer", "support", "operator", "admin")


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="The console: users who sign in by name.", no_args_is_help=True)
    group.callback()(_group)
    command(group)(password)
    app.add_typer(group, name="console", rich_help_panel="Operate")


def _group() -> None:
    """The console: users who sign in by name."""


def password(
    shell: Shell,
    name: Annotated[str, typer.Option("--name", help="Whose; as it is typed at the sign-in.")] = "NAME",
    role: Annotated[str, typer.Option("--role", help=f"One of {', '.join(ROLES)}.")] = "viewer",
) -> None:
    """Print what a user's part of the user file looks like, with a hash of a password.

    The password is asked for, or read as one line from stdin; it is kept nowhere.
    """
    if role not in ROLES:
        raise InvalidInput(f"role {role!r:.40} must be one of {', '.join(ROLES)}", field="--role")
    try:
        from sendonce.console.users import hash_password
    except ImportError as error:
        raise ConfigError(
            f"the console needs the extras `api` and `console` ({error}): pip install 'sendonce[api,console]'"
        ) from None
    hash_ = hash_password(_asked())
    shell.screen.document({"name": name, "role": role, "password": hash_})
    shell.screen.say(f'[user.{name}]\nrole = "{role}"\npassword = "{hash_}"')


def _asked() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")
