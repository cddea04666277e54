"""Mail from files: one mail, an mbox, a Maildir, a folder of mails, or what comes on standard input.

It is found by looking: a folder with `cur` or `new` is a Maildir, another one holds a mail a file, a text
that begins with "From " is an mbox (RFC 4155), anything else is one mail. Files are only read. Of one mail
at most `BYTES_MAX` and a byte are kept, however long it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from sendonce.core.errors import InvalidInput
from sendonce.providers.mail_report import BYTES_MAX

_SEPARATOR: Final = b"From "
_ESCAPED = re.compile(rb"^>(>*From )")


def mails_in(path: Path) -> Iterator[tuple[str, bytes]]:
    """The mails of a file or a folder, in order of name, each with where it was. Raises `InvalidInput`."""
    try:
        if not path.is_dir():
            with path.open("rb") as file:
                for number, mail in enumerate(mails_of(file), start=1):
                    yield f"{path.name}:{number}", mail
            return
        for file_path in _files(path):
            with file_path.open("rb") as file:
                yield file_path.name, file.read(BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}): name a file or folder of mail"
        ) from None


def mails_of(stream: IO[bytes]) -> Iterator[bytes]:
    """The mails of a stream, which is an mbox or one mail."""
    first = stream.readline(_LINE_MAX)
    if first.startswith(_SEPARATOR):
        yield from _split(_lines(stream))
    elif mail := first + stream.read(BYTES_MAX + 1 - len(first)):
        yield mail


def _files(folder: Path) -> list[Path]:
    kept = [each for name in ("new", "cur") if (each := folder / name).is_dir()] or [folder]
    return [
        path for each in kept for path in sorted(each.iterdir()) if path.is_file() and path.name[0] != "."
    ]


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(_LINE_MAX):
        yield line


def _split(lines: Iterable[bytes]) -> Iterator[bytes]:
    """What follows each "From " line that comes after an empty one."""
    mail, after_empty = bytearray(), False
    for line in lines:
        if after_empty and line.startswith(_SEPARATOR):
            yield bytes(mail)
            mail, after_empty = bytearray(), False
            continue
        after_empty = not line.strip(b"\r\n")
        if len(mail) <= BYTES_MAX:
            mail += _ESCAPED.sub(rb"\1", line)
    yield bytes(mail[: BYTES_MAX + 1])


_LINE_MAX: Final = 64 * 1024
