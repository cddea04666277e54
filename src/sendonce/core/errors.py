"""What can go wrong, as one tree.

Expected failures of a provider are values (`core.outcome`), never exceptions. The exceptions here
are for people: a caller, an operator, a configuration. Each message names the value, the rule and
the fix, and each carries a stable `code` for programs.

    SendonceError
    ├── InvalidInput          a value from outside breaks a rule; nothing was changed
    ├── ConfigError           the configuration is incomplete or contradicts itself
    │   └── ConfigErrors      all that is wrong with it at once (`sendonce.config`)
    ├── Refused               the request is well-formed, but the life cycle says no
    ├── NotFound              nothing has that id
    └── StoreError
        ├── StoreUnavailable  locked, full, unreachable: try again, nothing was half done
        │   └── CommitUnknown     lost while committing: done as a whole, or not at all
        └── StoreMismatch     corrupt, newer than this program, or built on an unsafe library
"""

from __future__ import annotations


class SendonceError(Exception):
    """Base of every error that `sendonce` raises on purpose.

    `code` is a stable word for programs; `str(error)` is the sentence for people.
    """

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InvalidInput(SendonceError):
    """A value from outside breaks a rule. `field` names it; nothing was changed."""

    code = "invalid_input"

    def __init__(self, message: str, *, field: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class ConfigError(SendonceError):
    """The configuration is incomplete or contradicts itself; the message says what to write."""

    code = "config"


class Refused(SendonceError):
    """The life cycle does not allow the request; the message says why and what would work."""

    code = "refused"


class NotFound(SendonceError):
    """Nothing has that id."""

    code = "not_found"


class StoreError(SendonceError):
    """The store could not do what was asked."""

    code = "store"


class StoreUnavailable(StoreError):
    """Locked, full or unreachable. The transaction did not happen; it may be tried again."""

    code = "store_unavailable"


class CommitUnknown(StoreUnavailable):
    """The connection was lost under a commit and nobody could be asked about it. What was handed in
    happened as a whole or not at all; a unit that looks at what it finds may be handed in again."""

    code = "commit_unknown"


class StoreMismatch(StoreError):
    """Corrupt, newer than this program, or opened by a library that is unsafe for it."""

    code = "store_mismatch"
