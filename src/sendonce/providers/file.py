"""One JSON line per message, appended to a file: for development, and for whoever picks it up from there.

Class N: nothing is de-duplicated, so that a second send is seen as a second line. A line is written with
one call and synced to disk before the message counts as accepted.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sendonce.core.errors import ConfigError
from sendonce.core.outcome import (
    Accepted,
    Failed,
    Finding,
    NoAnswer,
    NotStarted,
    Outcome,
    Reason,
    Rejected,
    Unknown,
)
from sendonce.ports.provider import Message, Promise, ProviderClass, Start, TooLate


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Where the lines go."""

    path: Path = field(metadata={"meaning": "The file to append to; it is made where it is missing."})


class FileProvider:
    """`ports.provider.Provider` that writes to a file. Its receipt is where the line ends, in bytes."""

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._closed = False

    @property
    def promise(self) -> Promise:
        return Promise(ProviderClass.NEITHER, timeout_s=10.0, arrival_max_s=0.0)

    async def send(self, message: Message, *, start: Start) -> Outcome:
        if self._closed:
            return NotStarted("stopping")
        try:
            line = as_line(message)
        except ValueError:
            return Rejected(Reason.BAD_CONTENT, "encoding")
        try:
            file = os.open(self._settings.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            return Failed(Reason.UNAVAILABLE, os.strerror(error.errno or 0).replace(" ", "_").lower())
        try:
            await start()
            return _append(file, line)
        except TooLate as late:
            return NotStarted(late.why)
        finally:
            os.close(file)

    async def look_up(self, message: Message) -> Finding:
        return NoAnswer("unsupported")

    async def check(self) -> str:
        folder = self._settings.path.parent
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"path: {folder} cannot be written: make the folder, or name another path")
        return f"appends to {self._settings.path}"

    async def close(self) -> None:
        self._closed = True


def as_line(message: Message) -> bytes:
    """The message as one line of JSON. Raises ValueError for text that has no UTF-8 form."""
    fields = asdict(message)
    del fields["valid_s"]  # shrinks from attempt to attempt
    del fields["return_token"]  # nothing travels back
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _append(file: int, line: bytes) -> Outcome:
    try:
        written = os.write(file, line)
    except OSError:
        return Failed(Reason.UNAVAILABLE, "write")  # nothing of it is there
    try:
        os.fsync(file)
    except OSError:
        return Unknown("truncated", "fsync")
    if written < len(line):
        return Unknown("truncated", "short_write")
    return Accepted(str(os.lseek(file, 0, os.SEEK_CUR)))
