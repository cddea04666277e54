"""Command lines of `sendonce` as files and pages hold them, read as the program itself would read them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import typer.main

from sendonce.cli.main import app


def parsed(words: Sequence[str]) -> Mapping[str, Any]:
    """What a command line behind `sendonce` comes to: each parameter of its command with its value.

    Raises `AssertionError` where the program would refuse it.
    """
    command: Any = _program()
    context: Any = None
    rest = list(words)
    try:
        while hasattr(command, "get_command"):
            context = command.make_context("sendonce", rest, parent=context)
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            assert command is not None, words
        return dict(command.make_context(name, rest, parent=context).params)
    except Exception as error:
        raise AssertionError(f"sendonce {' '.join(words)}: {error}") from error


@functools.cache
def _program() -> Any:
    return typer.main.get_command(app)
