"""A small IMAP server for tests: one account, a few folders, and what goes wrong with such servers.

It speaks what RFC 3501 (and 6851, 4315) says of the commands that a reader of mail needs: CAPABILITY, LOGIN,
AUTHENTICATE PLAIN, SELECT, UID SEARCH, FETCH, STORE, COPY, MOVE and EXPUNGE, NOOP, LOGOUT; literals and
partial fetches as they are written there. It refuses any other command.
"""

from __future__ import annotations

import base64
import re
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

USER, PASSWORD = "bounces@example.org", 'pass "w\u00f6rd"'
PLAIN_PASSWORD = 'pass "word"'


@dataclass
class Mail:
    uid: int
    raw: bytes
    flags: set[str] = field(default_factory=set)


@dataclass
class Box:
    """What the server holds and how it behaves. `break_at` closes the connection at that command (with its
    first argument, such as "STORE"), `hang_at` never answers it."""

    folders: dict[str, list[Mail]] = field(default_factory=lambda: {"INBOX": []})
    capabilities: tuple[str, ...] = ("IMAP4rev1", "AUTH=PLAIN", "UIDPLUS", "MOVE")
    keywords: bool = True
    password: str = PASSWORD
    break_at: str = ""
    hang_at: str = ""
    commands: list[str] = field(default_factory=list)
    sessions: int = 0
    fetched: int = 0
    next_uid: int = 1
    port: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def put(self, *mails: bytes, folder: str = "INBOX") -> None:
        for raw in mails:
            self.folders[folder].append(Mail(self.next_uid, raw))
            self.next_uid += 1

    def flags(self, folder: str = "INBOX") -> list[set[str]]:
        return [mail.flags for mail in self.folders[folder]]


@contextmanager
def imap_server(given: Box | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Box]:
    box = given or Box()

    class Handler(socketserver.StreamRequestHandler):
        def setup(self) -> None:
            if tls is not None:
                self.request = tls.wrap_socket(self.request, server_side=True)
            super().setup()

        def handle(self) -> None:
            box.sessions += 1
            with suppress(_Gone, OSError):
                _Session(box, self.rfile, self.wfile).run()

        def finish(self) -> None:
            super().finish()
            self.request.close()  # over TLS it is not the one that the server knows

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that trusts no certificate of ours

    with Server(("127.0.0.1", 0), Handler) as server:
        box.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield box
        finally:
            box.stopping.set()
            server.shutdown()
            thread.join()


class _Gone(Exception):
    pass


class _Session:
    def __init__(self, box: Box, reader: Any, writer: Any) -> None:
        self._box, self._reader, self._writer = box, reader, writer
        self._folder = ""

    def run(self) -> None:
        self._say("* OK ready")
        while line := self._reader.readline():
            tag, _, rest = line.decode().strip().partition(" ")
            name, _, arguments = rest.partition(" ")
            if name.upper() == "UID":
                name, _, arguments = arguments.partition(" ")
            name = name.upper()
            self._box.commands.append(f"{name} {arguments}".strip())
            if name == self._box.break_at:
                raise _Gone
            if name == self._box.hang_at:
                self._box.stopping.wait(30)
                raise _Gone
            if name == "LOGOUT":
                self._say("* BYE see you", f"{tag} OK done")
                return
            handler = getattr(self, f"_{name.lower()}", None)
            answer = handler(arguments) if handler else "BAD unknown command"
            self._say(f"{tag} {answer}" if " " in answer else f"{tag} {answer} done")

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._writer.write(line.encode() + b"\r\n")
        self._writer.flush()

    def _capability(self, _: str) -> str:
        self._say("* CAPABILITY " + " ".join(self._box.capabilities))
        return "OK"

    def _login(self, arguments: str) -> str:
        user, password = (text.replace('\\"', '"') for text in re.findall(r'"((?:[^"\\]|\\.)*)"', arguments))
        return "OK" if (user, password) == (USER, self._box.password) else "NO [AUTHENTICATIONFAILED] no"

    def _authenticate(self, arguments: str) -> str:
        assert arguments == "PLAIN"
        self._say("+ ")
        given = base64.b64decode(self._reader.readline()).decode().split("\0")
        return "OK" if given == ["", USER, self._box.password] else "NO [AUTHENTICATIONFAILED] no"

    def _noop(self, _: str) -> str:
        return "OK"

    def _select(self, arguments: str) -> str:
        name = arguments.strip('"')
        if name not in self._box.folders:
            return "NO no such folder"
        self._folder = name
        star = " \\*" if self._box.keywords else ""
        self._say(
            f"* {len(self._mails)} EXISTS",
            "* OK [UIDVALIDITY 1] valid",
            f"* OK [PERMANENTFLAGS (\\Seen \\Deleted{star})] limited",
        )
        return "OK [READ-WRITE] done"

    @property
    def _mails(self) -> list[Mail]:
        return self._box.folders[self._folder]

    def _search(self, arguments: str) -> str:
        words = arguments.split()
        found = self._mails
        while words:
            match words.pop(0).upper():
                case "UNSEEN":
                    found = [mail for mail in found if "\\Seen" not in mail.flags]
                case "UNDELETED":
                    found = [mail for mail in found if "\\Deleted" not in mail.flags]
                case "UNKEYWORD":
                    keyword = words.pop(0)
                    found = [mail for mail in found if keyword not in mail.flags]
                case other:
                    return f"BAD {other}"
        self._say("* SEARCH" + "".join(f" {mail.uid}" for mail in found))
        return "OK"

    def _fetch(self, arguments: str) -> str:
        found = re.fullmatch(r"(\d+) \(BODY\.PEEK\[\]<(\d+)\.(\d+)>\)", arguments)
        assert found, arguments
        uid, start, length = map(int, found.groups())
        for number, mail in enumerate(self._mails, start=1):
            if mail.uid == uid:
                part = mail.raw[start : start + length]
                self._box.fetched += len(part)
                self._say(f"* {number} FETCH (FLAGS (\\Recent))")  # servers may say such things at any time
                self._writer.write(
                    f"* {number} FETCH (UID {uid} BODY[]<{start}> {{{len(part)}}}\r\n".encode()
                )
                self._writer.write(part + b")\r\n")
        return "OK"

    def _chosen(self, uids: str) -> list[Mail]:
        wanted = {int(uid) for uid in uids.split(",")}
        return [mail for mail in self._mails if mail.uid in wanted]

    def _store(self, arguments: str) -> str:
        found = re.fullmatch(r"([\d,]+) \+FLAGS\.SILENT \((\S+)\)", arguments)
        assert found, arguments
        if not self._box.keywords and not found[2].startswith("\\"):
            return "NO no keywords here"
        for mail in self._chosen(found[1]):
            mail.flags.add(found[2])
        return "OK"

    def _copy(self, arguments: str) -> str:
        uids, _, folder = arguments.partition(" ")
        name = folder.strip('"')
        if name not in self._box.folders:
            return "NO [TRYCREATE] no such folder"
        self._box.put(*(mail.raw for mail in self._chosen(uids)), folder=name)
        return "OK"

    def _move(self, arguments: str) -> str:
        answer = self._copy(arguments)
        if answer == "OK":
            gone = self._chosen(arguments.partition(" ")[0])
            self._box.folders[self._folder] = [mail for mail in self._mails if mail not in gone]
        return answer

    def _expunge(self, uids: str) -> str:
        gone = [mail for mail in self._chosen(uids) if "\\Deleted" in mail.flags]
        self._box.folders[self._folder] = [mail for mail in self._mails if mail not in gone]
        return "OK"
