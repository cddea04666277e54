"""The address of the store: a file of SQLite, or a PostgreSQL database."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from sendonce.core.errors import InvalidInput
from sendonce.ports.secret import Secret

MEMORY: Final = ":memory:"


class StoreKind(StrEnum):
    """Which database."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where the store is.

    path  of SQLite: absolute, or `MEMORY`
    dsn   of PostgreSQL: the whole URL, a Secret since it may hold a password
    """

    kind: StoreKind
    path: str = ""
    dsn: Secret = field(default_factory=lambda: Secret(""))

    def __str__(self) -> str:
        """For people: a password or user is not shown."""
        match self.kind:
            case StoreKind.SQLITE:
                return f"sqlite:///{self.path}"
            case StoreKind.POSTGRESQL:
                return _without_credentials(self.dsn.reveal())


def parse_store_url(text: str, folder: Path) -> StoreUrl:
    """Read "sqlite:///sendonce.db" (relative to `folder`), "sqlite:////abs/path.db" or "postgresql://host/db".

    Raises `InvalidInput`, whose message shows no password.
    """
    text = text.strip()
    shown = repr(_without_credentials(text))
    scheme, _, rest = text.partition("://")
    match scheme:
        case "sqlite" if rest.startswith("/") and rest != "/" and "?" not in rest and rest.isprintable():
            path = rest[1:]
            return StoreUrl(StoreKind.SQLITE, path if path == MEMORY else str((folder / path).absolute()))
        case "sqlite":
            raise InvalidInput(
                f"{shown} must be sqlite:///NAME.db for a file beside the configuration, or "
                "sqlite:////PATH.db for an absolute path, without parameters"
            )
        case "postgresql" | "postgres" if rest.strip("/"):
            return StoreUrl(StoreKind.POSTGRESQL, dsn=Secret(f"postgresql://{rest}"))
        case _:
            raise InvalidInput(
                f"{shown} is no store URL: write sqlite:///sendonce.db, or postgresql://user@host/database"
            )


def holds_password(url: str) -> bool:
    """Whether a credential stands in the URL, so that it must not stand in a file."""
    return _PASSWORD.search(url) is not None


def _without_credentials(url: str) -> str:
    return _PARAMETER.sub(r"\1=****", _USER_INFO.sub("://****@", url, count=1))


# Up to the last "@": a password may hold one that was not encoded, and then a "/" too.
_USER_INFO = re.compile(r"://.*@")
_PARAMETER = re.compile(r"(password)=[^&]*", re.IGNORECASE)
_PASSWORD = re.compile(r"://[^@]*:[^@]*@|password=", re.IGNORECASE)
