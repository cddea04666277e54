"""The user file: people who sign in by name and password.

    [user.ann]
    role = "support"
    password = "$argon2id$v=19$..."    # `sendonce console password` makes it
    tenant = "default"                 # whose data; may be left out

A password is kept as an argon2id hash. The file is read anew when it changes: who is taken out of it, or
whose password or role changes, is signed out by that. A file that cannot be read lets nobody in.
"""

from __future__ import annotations

import hashlib
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sendonce.config import did_you_mean
from sendonce.console.roles import Role
from sendonce.core.delivery import check_id
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.reminder import DEFAULT_TENANT

if TYPE_CHECKING:
    from argon2 import PasswordHasher

PASSWORD_LENGTH_MAX: Final = 200
PASSWORD_LENGTH_MIN: Final = 12
NAME_LENGTH_MAX: Final = 80
CHECKS_MAX: Final = 2
"""Passwords checked at once: each takes 64 MB and some 50 ms on purpose."""
_KEYS: Final = ("role", "password", "tenant")
_checking: Final = threading.BoundedSemaphore(CHECKS_MAX)


@dataclass(frozen=True, slots=True)
class User:
    """One person. `mark` changes with the password, the role or the tenant, and says nothing of them."""

    name: str
    role: Role
    password: str
    tenant: str

    @property
    def mark(self) -> str:
        text = f"{self.name}\0{self.role}\0{self.password}\0{self.tenant}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Users:
    """The people of a file. Raises `ConfigError`, when made, for a file that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._users: Mapping[str, User] = {}
        self._reading = threading.Lock()
        _hasher()
        self._current()

    def find(self, name: str) -> User | None:
        """Raises `ConfigError` where the file has become unreadable."""
        return self._current().get(name)

    def check(self, name: str, password: str) -> User | None:
        """The user whose password this is. An unknown name takes as long as a known one."""
        user = self.find(name) if len(name) <= NAME_LENGTH_MAX else None
        fits = _fits(user.password if user is not None else _nobody(), password)
        return user if fits else None

    def _current(self) -> Mapping[str, User]:
        with self._reading:
            try:
                stat = self._path.stat()
                seen = (stat.st_mtime_ns, stat.st_size)
                if seen != self._seen:
                    self._users = _read(self._path)
                    self._seen = seen
            except OSError as error:
                raise ConfigError(
                    f"the user file {self._path} cannot be read: {error.strerror or error}"
                ) from None
            return self._users


def hash_password(password: str) -> str:
    """The hash that goes into the file. Raises `InvalidInput` for one that is too short or too long."""
    if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise InvalidInput(
            f"the password has {len(password)} characters: use {PASSWORD_LENGTH_MIN} to "
            f"{PASSWORD_LENGTH_MAX}, such as four random words",
            field="password",
        )
    return _hasher().hash(password)


def _fits(hash_: str, password: str) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    with _checking:
        try:
            return _hasher().verify(hash_, password[: PASSWORD_LENGTH_MAX + 1])
        except (VerificationError, InvalidHashError):
            return False


@lru_cache(maxsize=1)
def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
    except ImportError as error:
        raise ConfigError(
            f"a user file needs the extra `console` ({error}): pip install 'sendonce[console]'"
        ) from None
    return PasswordHasher()


@lru_cache(maxsize=1)
def _nobody() -> str:
    return _hasher().hash("nobody's password, to take as long as anybody's")


def _read(path: Path) -> Mapping[str, User]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the user file {path} is no TOML: {error}") from None
    unknown = [name for name in document if name != "user"]
    users = document.get("user", {})
    if unknown or not isinstance(users, dict):
        raise ConfigError(f"the user file {path} may have [user.NAME] only: remove {unknown or 'user'}")
    return {name: _user(path, name, table) for name, table in users.items()}


def _user(path: Path, name: str, table: Any) -> User:
    where = f"{path}: [user.{name}]"
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable() or " " in name:
        raise ConfigError(f"{where} is no name: one word of 1 to {NAME_LENGTH_MAX} characters")
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ConfigError(f"{where} must have texts: role, password, and tenant if need be")
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"{where}.{key} is unknown: {did_you_mean(key, _KEYS)}")
    if not table.get("password", "").startswith("$argon2"):
        raise ConfigError(f"{where}.password must be what `sendonce console password` prints")
    try:
        role = Role(table.get("role", ""))
    except ValueError:
        raise ConfigError(
            f"{where}.role {table.get('role', '')!r:.40} must be one of {', '.join(Role)}"
        ) from None
    try:
        tenant = check_id(table.get("tenant", DEFAULT_TENANT), "tenant")
    except InvalidInput as error:
        raise ConfigError(f"{where}: {error}") from None
    return User(name, role, table["password"], tenant)
