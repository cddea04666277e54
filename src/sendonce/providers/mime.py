"""An email as bytes: the same message gives the same bytes, on each attempt and each machine.

Nothing in here depends on a clock, on chance, on the host or on the version of Python: Date is the
moment of publication, Message-ID and the boundary come from the send key, and the encoders below
are our own. They are, since the standard library folds some long headers into something else: a
decoded subject must be the subject that went in.

All output is 7-bit, with CRLF, and no line is longer than 80 characters (long addresses of mail and of the
web excepted), well below the 998 of RFC 5322 2.1.1. Line breaks and other control characters in a subject
or a name become one blank, so that no text can add a header. Sources: RFC 5322, 2045 to 2047, 3834.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from sendonce.address import parse_sender
from sendonce.ports.provider import EmailContent, Message


def build_email(message: Message, content: EmailContent) -> bytes:
    """The message as it goes on the wire, without dot-stuffing.

    Raises `InvalidInput` for a sender or Reply-To that cannot be read, and ValueError for text that
    has no UTF-8 form (a lone surrogate).
    """
    _, sender = parse_sender(content.sender)
    headers = [
        ("Date", _date(message.frozen_at)),
        ("From", _mailbox(content.sender)),
        ("To", message.to),
        *([("Reply-To", _mailbox(content.reply_to))] if content.reply_to else []),
        ("Subject", content.subject),
        ("Message-ID", f"<{message.send_key[:40]}@{sender.rpartition('@')[2]}>"),
        ("X-Sendonce-Key", message.send_key),
        *([(RETURN_HEADER, message.return_token)] if message.return_token else []),
        ("Auto-Submitted", "auto-generated"),  # RFC 3834: asks robots not to answer
        *content.headers,
        ("MIME-Version", "1.0"),
    ]
    lines = [_subject(value) if name == "Subject" else f"{name}: {value}" for name, value in headers]
    parts = [
        _part(kind, text) for kind, text in (("plain", content.text), ("html", content.html)) if text
    ] or [_part("plain", "")]
    if len(parts) == 1:
        body = parts[0]
    else:
        # "=_" cannot occur in quoted-printable or base64, so the boundary never meets the content.
        boundary = f"=_sendonce_{message.send_key[:32]}"
        lines.append(f'Content-Type: multipart/alternative;\r\n boundary="{boundary}"')
        pieces = [f"--{boundary}\r\n".encode() + part + b"\r\n" for part in parts]
        body = b"\r\n" + b"".join(pieces) + f"--{boundary}--\r\n".encode()
    return "\r\n".join(lines).encode("ascii") + b"\r\n" + body


# Headers


def one_line(text: str) -> str:
    """Line breaks and control characters as one blank, none at the ends; all else as it was."""
    return _BREAKS.sub(lambda found: " " if found.start() > 0 and found.end() < len(text) else "", text)


def _subject(text: str) -> str:
    text = one_line(text)
    if _needs_no_encoding(text):
        folded = _fold("Subject:", text)
        if folded is not None:
            return folded
    return "Subject: " + "\r\n ".join(_encoded_words(text, len("Subject: ")))


def _needs_no_encoding(text: str) -> bool:
    """Printable ASCII that survives folding and unfolding as it is."""
    return text.isascii() and text.isprintable() and text == text.strip() and "=?" not in text


def _fold(start: str, text: str) -> str | None:
    """Folded at blanks, each line at most 78 characters; None where a word is too long for that."""
    lines = [start]  # the first word stays on it: some readers lose a header that begins empty
    for piece in re.findall(r" *[^ ]+", f" {text}" if text else ""):
        if len(lines[-1]) + len(piece) <= _LINE_MAX:
            lines[-1] += piece
        elif len(piece) <= _LINE_MAX and lines != [start]:
            lines.append(piece)
        else:
            return None
    return "\r\n".join(lines)


def _mailbox(text: str) -> str:
    name, address = parse_sender(text)
    name = one_line(name)
    if not name:
        return address
    if not _needs_no_encoding(name):
        phrase = _FOLD.join(_encoded_words(name, len("Reply-To: ")))
    elif _ATOMS.fullmatch(name) and len(name) <= _PLAIN_NAME_MAX:
        phrase = name
    else:
        phrase = _quoted(name)
    last_line = phrase.rpartition("\n")[2]
    fits = len("Reply-To: ") + len(last_line) + len(address) + 3 <= _LINE_MAX
    return f"{phrase}{' ' if fits else _FOLD}<{address}>"


def _quoted(name: str) -> str:
    """A quoted string, folded at blanks; these come back when it is unfolded."""
    lines = [""]
    for piece in re.findall(r" *[^ ]+", re.sub(r'(["\\])', r"\\\1", name)):
        if lines[-1] and len(lines[-1]) + len(piece) > _PLAIN_NAME_MAX:
            lines.append("")
        lines[-1] += piece
    return '"' + "\r\n".join(lines) + '"'


def _encoded_words(text: str, first_column: int) -> list[str]:
    """RFC 2047 words of at most 75 characters, cut between characters, never inside one.

    Q or B, whichever is shorter for the whole text. Both use only what is allowed in a display name.
    """
    encode = min((_q, _b), key=lambda candidate: len(candidate(text)))
    words, piece, room = [], "", _LINE_MAX - first_column
    for character in text:
        if piece and len(encode(piece + character)) > min(room, _ENCODED_WORD_MAX):
            words.append(encode(piece))
            piece, room = "", _LINE_MAX - 1
        piece += character
    return [*words, encode(piece)]


def _q(text: str) -> str:
    encoded = "".join(
        "_" if byte == 0x20 else chr(byte) if byte in _Q_SAFE else f"={byte:02X}" for byte in text.encode()
    )
    return f"=?utf-8?q?{encoded}?="


def _b(text: str) -> str:
    return f"=?utf-8?b?{base64.b64encode(text.encode()).decode()}?="


def _date(micros: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    day, month = _DAYS[at.weekday()], _MONTHS[at.month - 1]
    return f"{day}, {at.day:02} {month} {at.year:04} {at:%H:%M:%S} +0000"


# Bodies


def _part(kind: str, text: str) -> bytes:
    """Headers of the part, an empty line, and the encoded text, which ends with CRLF."""
    lines = _LINE_BREAK.split(text.removesuffix("\n").removesuffix("\r"))
    data = "\r\n".join(lines).encode() + b"\r\n"
    quoted = b"".join(
        piece + b"\r\n" for line in data[:-2].split(b"\r\n") for piece in _quoted_printable(line)
    )
    encoding, body = "quoted-printable", quoted
    encoded = base64.b64encode(data)
    if len(quoted) > len(encoded) + len(encoded) // 38:  # line breaks counted; text in other scripts
        encoding = "base64"
        body = b"".join(encoded[at : at + 76] + b"\r\n" for at in range(0, len(encoded), 76))
    head = f"Content-Type: text/{kind}; charset=utf-8\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n"
    return head.encode() + body


def _quoted_printable(line: bytes) -> Iterator[bytes]:
    """One line of text as lines of at most 76 characters (RFC 2045 6.7)."""
    line = _NOT_QP.sub(lambda found: b"=%02X" % ord(found[0]), line)
    if line.endswith((b" ", b"\t")):
        line = line[:-1] + b"=%02X" % line[-1]
    if line.startswith(b"From "):  # mailboxes of the old kind would turn it into ">From "
        line = b"=46" + line[1:]
    while len(line) > 76:
        cut = 75
        if line[cut - 1 : cut] == b"=":
            cut -= 1
        elif line[cut - 2 : cut - 1] == b"=":
            cut -= 2
        yield line[:cut] + b"="
        line = line[cut:]
    yield line


RETURN_HEADER = "X-Sendonce-Return"
"""Repeats the token of the return path: complaints quote headers, and no envelope."""

_LINE_MAX = 78
_ENCODED_WORD_MAX = 75
_PLAIN_NAME_MAX = 60
_FOLD = "\r\n "
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~ -]+")
_NOT_QP = re.compile(rb"[^\t -<>-~]")
_Q_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
