"""A mailbox over IMAP, read as a queue: what waits, and what is done with.

    with mailbox.session() as session:
        for uid, raw in session.waiting(50):  ...          # nothing is marked by reading
        session.done(uids)                                 # after what they say is durable

A session is short: connect, log in, take some, mark them, leave. So there is no connection to lose, and a
server that closes idle ones is none to mind. Each step has a time-out; a session that was cut off before
`done` leaves its mail waiting, and the next one reads the same mail again, which harms nobody (an event has
an identity).

What is done with gets a keyword of ours where the folder takes one, else the flag of a mail that was read;
or it is moved, where `done_folder` says to where. Mail that a person opens meanwhile is read all the same,
where keywords or moves are used. Nothing is ever deleted that was not copied first.

Of one mail at most `BYTES_MAX` and a byte are fetched. It blocks: call it on a thread.

Sources: RFC 3501 and 9051 (IMAP), RFC 6851 (MOVE), RFC 4315 (UIDPLUS), RFC 8314 (TLS on 993).
"""

from __future__ import annotations

import imaplib
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from sendonce.ports.returned_mail import MailboxUnavailable
from sendonce.ports.secret import Secret
from sendonce.providers.mail_report import BYTES_MAX
from sendonce.runtime.sockets import tls_context

KEYWORD: Final = "$SendonceRead"


class ImapSecurity(StrEnum):
    """How the connection is protected. `none` is for a server on this machine."""

    TLS = "tls"
    STARTTLS = "starttls"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ImapSettings:
    """One folder of one mailbox. `port` 0: 993 for `tls`, else 143. Times in seconds."""

    host: str
    username: str
    password: Secret
    security: ImapSecurity = ImapSecurity.TLS
    port: int = 0
    ca_file: Path | None = None
    folder: str = "INBOX"
    done_folder: str = ""
    timeout_s: float = 20.0

    @property
    def port_used(self) -> int:
        return self.port or (993 if self.security is ImapSecurity.TLS else 143)


class ImapMailbox:
    """One folder, opened anew for each session."""

    def __init__(self, settings: ImapSettings) -> None:
        self._settings = settings
        self._tls = (
            None
            if settings.security is ImapSecurity.NONE
            else tls_context(str(settings.ca_file) if settings.ca_file else None)
        )

    @contextmanager
    def session(self) -> Iterator[ImapSession]:
        """Logged in, with the folder selected. Raises `MailboxUnavailable`, also for what happens in it."""
        connection: imaplib.IMAP4 | None = None
        try:
            connection = self._connect()
            yield self._enter(connection)
        except MailboxUnavailable:
            raise
        except (OSError, imaplib.IMAP4.error, EOFError, ValueError) as error:
            raise MailboxUnavailable(_why(error)) from None
        finally:
            if connection is not None:
                with suppress(OSError, imaplib.IMAP4.error, EOFError, ValueError):
                    connection.logout()
                with suppress(OSError):
                    connection.shutdown()

    def check(self) -> str:
        """One line for the operator: that it can be read, and how it will be marked."""
        with self.session() as session:
            return f"{len(session.numbers())} mails wait in {self._settings.folder}; {session.manner}"

    def _connect(self) -> imaplib.IMAP4:
        settings, tls = self._settings, self._tls
        if settings.security is ImapSecurity.TLS:
            assert tls is not None
            return imaplib.IMAP4_SSL(
                settings.host, settings.port_used, ssl_context=tls, timeout=settings.timeout_s
            )
        connection = imaplib.IMAP4(settings.host, settings.port_used, timeout=settings.timeout_s)
        if tls is not None:
            try:
                connection.starttls(ssl_context=tls)
            except imaplib.IMAP4.error:
                connection.shutdown()
                raise MailboxUnavailable("tls") from None
            except BaseException:
                connection.shutdown()
                raise
        return connection

    def _enter(self, connection: imaplib.IMAP4) -> ImapSession:
        settings = self._settings
        password = settings.password.reveal()
        try:
            if "AUTH=PLAIN" in connection.capabilities:
                told = f"\0{settings.username}\0{password}".encode()
                connection.authenticate("PLAIN", lambda _: told)
            else:
                connection.login(_quoted(settings.username), password)
        except (imaplib.IMAP4.abort, OSError):
            raise
        except imaplib.IMAP4.error:
            raise MailboxUnavailable("login") from None
        kind, _ = connection.select(_quoted(settings.folder))
        if kind != "OK":
            raise MailboxUnavailable("folder")
        return ImapSession(connection, settings.done_folder)


class ImapSession:
    """A folder that is open. Whatever goes wrong ends the session."""

    def __init__(self, connection: imaplib.IMAP4, done_folder: str) -> None:
        self._connection = connection
        self._done_folder = done_folder
        _, flags = connection.response("PERMANENTFLAGS")
        self._takes_keywords = any(b"\\*" in each for each in flags if isinstance(each, bytes))

    @property
    def manner(self) -> str:
        """How mail that is done with is marked, for people."""
        if self._done_folder:
            return f"what is done with is moved to {self._done_folder}"
        return f"what is done with is marked {KEYWORD if self._takes_keywords else 'as seen'}"

    def numbers(self) -> list[int]:
        """The UIDs of what waits, oldest first."""
        wanted = "UNSEEN UNDELETED"
        if self._done_folder:
            wanted = "UNDELETED"
        elif self._takes_keywords:
            wanted = f"UNKEYWORD {KEYWORD} UNDELETED"
        data = self._ask("SEARCH", *wanted.split())
        found = b" ".join(each for each in data if isinstance(each, bytes))
        return sorted(int(number) for number in found.split() if number.isdigit())

    def waiting(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Up to `limit` mails, as they are fetched: UID and raw text, cut above `BYTES_MAX`."""
        for uid in self.numbers()[:limit]:
            data = self._ask("FETCH", str(uid), f"(BODY.PEEK[]<0.{BYTES_MAX + 1}>)")
            for item in data:
                if isinstance(item, tuple) and _BODY.search(item[0]):
                    yield uid, item[1]
                    break

    def done(self, uids: Sequence[int]) -> None:
        """Mark or move them, so that they wait no more."""
        if not uids:
            return
        some = ",".join(map(str, uids))
        if not self._done_folder:
            self._ask("STORE", some, "+FLAGS.SILENT", f"({KEYWORD if self._takes_keywords else _SEEN})")
            return
        folder = _quoted(self._done_folder)
        moves = "MOVE" in self._connection.capabilities
        try:
            self._ask("MOVE" if moves else "COPY", some, folder)
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error:
            raise MailboxUnavailable("done_folder") from None
        if not moves:
            self._ask("STORE", some, "+FLAGS.SILENT", "(\\Deleted)")
            if "UIDPLUS" in self._connection.capabilities:  # else it would take what others marked, too
                self._ask("EXPUNGE", some)

    def _ask(self, command: str, *arguments: str) -> list[bytes | tuple[bytes, bytes]]:
        kind, data = self._connection.uid(command, *arguments)
        if kind != "OK":
            raise imaplib.IMAP4.error(command)
        return [item for item in data if item is not None]


def _why(error: BaseException) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return "certificate"
        case ssl.SSLError():
            return "tls"
        case TimeoutError():
            return "timeout"
        case OSError():
            return "connect"
        case imaplib.IMAP4.abort() if isinstance(error.__context__, TimeoutError):
            return "timeout"
        case _:
            return "protocol"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_BODY = re.compile(rb"BODY\[\]", re.IGNORECASE)
_SEEN = "\\Seen"
