"""What a mail that came back says: a delivery status notification, a complaint, or nothing that we know.

    raw mail -> bounded -> parsed -> whose is it (our token) -> what kind of mail -> one `Reading`

Mail is not signed, and anybody may write to a return path. So:

- Only what carries a token of ours is believed (`core.mail_token`): in the address it came to, in the
  Original-Envelope-Id, or in the headers of the message inside. It leads to one message, and all that a
  report can do is about that message. The address in a report is not even read: a forger could name anybody.
- A delivery status counts only as the report of RFC 3464: a multipart/report with its part of status, sent
  with the empty return path that every report has. A mail in words that looks like a bounce, an older
  format, a report that contradicts itself: `UNKNOWN`, for a person to see; never a bounce by guess.
- An automatic answer ("out of office"), a receipt of reading and a challenge are no report. They say that
  the mail arrived, if anything, and nothing follows from them (RFC 3834).
- A hard bounce is one whose status speaks of the address (RFC 3463: no such mailbox or domain, disabled). A
  full mailbox, a policy, a size, a route are the end of this message and say nothing about the next.

    action      status              kind
    failed      of the address      BOUNCED_HARD
    failed      4.x.x, 5.4.7        EXPIRED        (tried for days, given up)
    failed      any other           UNDELIVERED
    delayed                         DEFERRED
    relayed                         SENT           (to a server that sends no reports)
    delivered, expanded             DELIVERED
    feedback: abuse, fraud, virus   COMPLAINED     (RFC 5965)

What is read is bounded before it is parsed: bytes, parts, depth, recipients. The standard library parses;
what it cannot make sense of is `UNKNOWN` where our token is on it, and refused where it is not.

Sources: RFC 3461, 3463, 3464, 3834, 5965, 6533, 6650; IANA's registry of enhanced status codes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import policy
from email.message import Message
from email.parser import BytesParser, Parser
from email.utils import parsedate_to_datetime
from typing import Final

from sendonce.core.mail_token import read_mail_token, tokens_in
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.ports.returned_mail import Found, Reading
from sendonce.providers.mime import RETURN_HEADER
from sendonce.providers.smtp import speaks_of_the_address

BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one mail. A report with the whole of a message of ours is well below it."""
PARTS_MAX: Final = 100
DEPTH_MAX: Final = 8
RECIPIENTS_MAX: Final = 20
"""We write to one; a list that it was may report for several."""


def read_mail(raw: bytes, *, secret: bytes, now: int) -> Reading:
    """Read one mail as a mailbox holds it. Never raises for what the mail is.

    `secret`: the store's, for tokens. `now`: calendar microseconds UTC; a report of tomorrow has no time.
    """
    why = _too_much(raw)
    if why:
        return Reading(Found.OVERSIZED, why=why)
    try:
        mail = BytesParser(policy=policy.compat32).parsebytes(raw)
        parts = list(_parts(mail))
    except (RecursionError, ValueError, LookupError, AttributeError, TypeError, IndexError):
        return Reading(Found.OVERSIZED, why="unparsable")
    reader = _Mail(mail, parts, raw, secret, now)
    if not reader.key:
        return Reading(Found.FOREIGN)
    return reader.reading()


def _too_much(raw: bytes) -> str:
    if len(raw) > BYTES_MAX:
        return "bytes"
    types = _CONTENT_TYPE.findall(raw)
    if len(types) > PARTS_MAX:
        return "parts"
    return "depth" if sum(kind.lower() in (b"multipart", b"message") for kind in types) > DEPTH_MAX else ""


def _parts(mail: Message) -> Iterator[Message]:
    """The mail, and what is in it, in its order; not what a returned message holds itself."""
    yield mail
    if mail.is_multipart() and mail.get_content_maintype() == "multipart":
        for part in mail.get_payload():
            if isinstance(part, Message):
                yield from _parts(part)


class _Mail:
    """One mail that was parsed."""

    def __init__(self, mail: Message, parts: list[Message], raw: bytes, secret: bytes, now: int) -> None:
        self._mail = mail
        self._raw = raw
        self._now = now
        self._status = _first(parts, "message/delivery-status", "message/global-delivery-status")
        self._feedback = _first(parts, "message/feedback-report")
        self._returned = _returned(parts)
        self.key = self._whose(secret)

    def reading(self) -> Reading:
        kind = str(self._mail.get_param("report-type") or "").lower()
        is_report = self._mail.get_content_type() == "multipart/report"
        if is_report and kind == "disposition-notification":
            return Reading(Found.AUTOMATIC)
        if is_report and kind == "feedback-report" and self._feedback is not None:
            return self._complaint(_fields(self._feedback)[:1])
        if is_report and kind == "delivery-status" and self._status is not None:
            return self._statuses(_fields(self._status))
        if self._is_automatic() and not self._is_from_a_server():
            return Reading(Found.AUTOMATIC)
        return self._unreadable("no_report")

    # Whose it is

    def _whose(self, secret: bytes) -> str:
        """The send key's first half, by the first token that is ours; "" where none is."""
        for text in self._told():
            for token in tokens_in(text):
                if key := read_mail_token(secret, token):
                    return key
        return ""

    def _told(self) -> Iterator[str]:
        """Where a token may stand, the most telling first."""
        for block in _fields(self._status) if self._status is not None else []:
            yield block.get("original-envelope-id", "")
        for name in (
            "Delivered-To",
            "X-Original-To",
            "Envelope-To",
            "X-Envelope-To",
            "To",
            "X-Failed-Recipients",
        ):
            yield from _all(self._mail, name)
        for block in _fields(self._feedback) if self._feedback is not None else []:
            yield block.get("original-mail-from", "")
            yield block.get("original-envelope-id", "")
        if self._returned is not None:
            yield from _all(self._returned, RETURN_HEADER)
            yield from _all(self._returned, "Return-Path")

    # What it says

    def _statuses(self, blocks: list[dict[str, str]]) -> Reading:
        if not self._has_empty_return_path():
            return self._unreadable("return_path")
        about = [block for block in blocks if "final-recipient" in block or "action" in block]
        if not about:
            return self._unreadable("no_recipient")
        events = [self._status_event(block) for block in about[:RECIPIENTS_MAX]]
        return Reading(Found.REPORT, tuple(dict.fromkeys(events)))

    def _status_event(self, block: dict[str, str]) -> ProviderEvent:
        action = _word(block.get("action", ""))
        status = _precise(_code(block.get("status", "")), block.get("diagnostic-code", ""))
        kind = _kind_of(action, status)
        at = self._time(block.get("last-attempt-date", "")) or self._time(str(self._mail.get("Date", "")))
        return self._event(kind, f"{action or 'no_action'} {status}".strip(), at)

    def _complaint(self, blocks: list[dict[str, str]]) -> Reading:
        report = blocks[0] if blocks else {}
        feedback = _word(report.get("feedback-type", ""))
        if not feedback:
            return self._unreadable("no_feedback_type")
        kind = EventKind.COMPLAINED if feedback in _COMPLAINTS else EventKind.UNKNOWN
        at = self._time(report.get("arrival-date", "") or report.get("received-date", ""))
        return Reading(Found.REPORT, (self._event(kind, f"feedback {feedback}", at),))

    def _unreadable(self, why: str) -> Reading:
        return Reading(Found.UNREADABLE, (self._event(EventKind.UNKNOWN, f"mail {why}", None),), why)

    def _event(self, kind: EventKind, code: str, at: int | None) -> ProviderEvent:
        """Nothing of it can be chosen freely by whoever wrote the mail, but which of our codes it is."""
        name = str(self._mail.get("Message-ID", "")).encode("utf-8", "replace") or self._raw
        told = b"\0".join((b"mail", self.key.encode(), code.encode(), name))
        return ProviderEvent(
            identity="mail-" + hashlib.sha256(told).hexdigest()[:40],
            kind=kind,
            send_key=self.key,
            occurred_at=at,
            code=code,
        )

    # What kind of mail it is

    def _has_empty_return_path(self) -> bool:
        """RFC 3464, 2. Where the mailbox wrote no Return-Path down, nothing speaks against it."""
        paths = [path.strip() for path in _all(self._mail, "Return-Path")]
        return not paths or paths[0] in ("<>", "")

    def _is_automatic(self) -> bool:
        """An answer by a machine to what it got (RFC 3834, 3.1.7 and what was used before it)."""
        said = str(self._mail.get("Auto-Submitted", "")).partition(";")[0].strip().lower()
        if said not in ("", "no"):
            return True
        names = ("X-Autoreply", "X-Autorespond", "X-Auto-Response-Suppress", "X-Vacation")
        if any(self._mail.get(name) for name in names):
            return True
        return str(self._mail.get("Precedence", "")).strip().lower() in ("auto_reply", "auto-reply")

    def _is_from_a_server(self) -> bool:
        sender = str(self._mail.get("From", "")).lower()
        return "mailer-daemon" in sender or "postmaster" in sender

    def _time(self, text: str) -> int | None:
        try:
            at = parsedate_to_datetime(text)
            at = at.replace(tzinfo=at.tzinfo or UTC)
            micros = (at - _EPOCH) // timedelta(microseconds=1)
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
        return micros if 0 < micros <= self._now + _AHEAD_US else None


def _kind_of(action: str, status: str) -> EventKind:
    """A report that contradicts itself, as "failed" with a status of success, is none that we know."""
    match action:
        case "failed" if status.startswith("4.") or status == "5.4.7":
            return EventKind.EXPIRED
        case "failed" if status.startswith("5.") or not status:
            return EventKind.BOUNCED_HARD if speaks_of_the_address(status) else EventKind.UNDELIVERED
        case "delayed" if not status.startswith("5."):
            return EventKind.DEFERRED
        case "relayed" if status.startswith("2.") or not status:
            return EventKind.SENT
        case "delivered" | "expanded" if status.startswith("2.") or not status:
            return EventKind.DELIVERED
        case _:
            return EventKind.UNKNOWN


def _precise(status: str, diagnostic: str) -> str:
    """Some servers write 5.0.0 and the better code into the words of the other server."""
    if status[2:] not in ("0.0", ""):
        return status
    if not diagnostic.lower().startswith("smtp"):
        return status
    found = _STATUS.search(diagnostic)
    return found[1] if found and found[1][0] == (status or found[1])[0] else status


def _first(parts: list[Message], *kinds: str) -> Message | None:
    return next((part for part in parts if part.get_content_type() in kinds), None)


def _returned(parts: list[Message]) -> Message | None:
    """The message of ours in it, or its headers."""
    for part in parts[1:]:
        kind = part.get_content_type()
        if kind in ("message/rfc822", "message/global"):
            inner = part.get_payload()
            return inner[0] if isinstance(inner, list) and isinstance(inner[0], Message) else None
        if kind in ("text/rfc822-headers", "message/global-headers", "text/rfc822"):
            return Parser(policy=policy.compat32).parsestr(_text(part), headersonly=True)
    return None


def _fields(part: Message) -> list[dict[str, str]]:
    """The blocks of a report part: names in small letters, values on one line; of a name the first."""
    inner = part.get_payload()
    blocks: list[Message] = []
    if isinstance(inner, list):
        blocks = [block for block in inner if isinstance(block, Message)]
        if len(blocks) == 1:  # only message/delivery-status is split by the library
            rest = blocks[0].get_payload()
            for text in re.split(r"\r?\n\r?\n", rest if isinstance(rest, str) else "")[:_BLOCKS_MAX]:
                blocks.append(Parser(policy=policy.compat32).parsestr(text.lstrip(), headersonly=True))
    found = []
    for block in blocks[:_BLOCKS_MAX]:
        fields: dict[str, str] = {}
        for name, text in block.items():
            fields.setdefault(name.strip().lower(), " ".join(str(text)[:_FIELD_MAX].split()))
        if fields:
            found.append(fields)
    return found


def _text(part: Message) -> str:
    inner = part.get_payload(decode=True)
    return inner.decode("latin-1") if isinstance(inner, bytes) else ""


def _all(mail: Message, name: str) -> list[str]:
    return [str(text)[:_FIELD_MAX] for text in mail.get_all(name, [])[:_HEADERS_MAX]]


def _word(text: str) -> str:
    """One of the words that a field may have; "" for what is none."""
    found = re.fullmatch(r"([a-z][a-z-]{0,30})(?:\s*[(;].*)?", text.strip().lower())
    return found[1] if found else ""


def _code(text: str) -> str:
    found = _STATUS.match(text.strip())
    return found[1] if found else ""


_CONTENT_TYPE = re.compile(rb"^content-type:\s*(\w+)/", re.IGNORECASE | re.MULTILINE)
_STATUS = re.compile(r"(?<![\d.])([245]\.\d{1,3}\.\d{1,3})(?![\d.])", re.ASCII)
_COMPLAINTS: Final = frozenset({"abuse", "fraud", "virus"})
_FIELD_MAX: Final = 2_000
_HEADERS_MAX: Final = 20
_BLOCKS_MAX: Final = 1 + RECIPIENTS_MAX
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AHEAD_US: Final = 86_400 * 1_000_000
