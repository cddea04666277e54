"""Exit codes: what a script may rely on. `docs/cli.md` shows the same table; a test holds them together.

Codes 1 to 5 are about what was asked, 70 is a bug of ours, 130 is the person at the keyboard.
"""

from __future__ import annotations

from enum import IntEnum

from sendonce.core.errors import (
    ConfigError,
    InvalidInput,
    NotFound,
    Refused,
    SendonceError,
    StoreError,
)


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    PARTLY = 1  # done, but something in it was refused, failed or found faulty
    USAGE = 2  # the command line, a value in it, or the configuration is wrong; nothing was changed
    STORE = 3  # the store is locked, full, away or not sound; nothing was half done
    NOT_FOUND = 4
    REFUSED = 5  # the life cycle says no; the message says why, and what would work
    BUG = 70
    INTERRUPTED = 130


def exit_of(error: SendonceError) -> Exit:
    """The code of an error that was raised on purpose."""
    match error:
        case InvalidInput() | ConfigError():
            return Exit.USAGE
        case StoreError():
            return Exit.STORE
        case NotFound():
            return Exit.NOT_FOUND
        case Refused():
            return Exit.REFUSED
        case _:
            return Exit.BUG
