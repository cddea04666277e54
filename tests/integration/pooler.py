"""A pooler like PgBouncer in transaction mode, for tests: few connections to the server, many clients.

A client has a connection of the server for one transaction, and next time perhaps another one, with whatever
the others left in it. Prepared statements are passed on as they are, as PgBouncer did before 1.21, which is
the harder case. A client gets a key of the pooler's own to cancel with, not that of a server's process.
"""

from __future__ import annotations

import queue
import secrets
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_NO_ENCRYPTION = (80_877_103, 80_877_104)  # asked for TLS or GSSAPI


class Pooler:
    """Listens on loopback, at `port`. `server`: the server's Unix socket."""

    def __init__(self, server: Path, *, size: int) -> None:
        self._server = str(server)
        self._size = size
        self._free: queue.Queue[socket.socket] = queue.Queue()
        self._made: list[socket.socket] = []
        self._making = threading.Lock()
        self._startup = self._greeting = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the waiting for another client
        self._listener.close()
        for server in self._made:
            server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        try:
            self._greet(client)
            status = b""
            asked, answered = _Frames(), _Frames()
            open_questions, within = 0, False
            while True:
                for side in select.select([client, server] if server else [client], [], [])[0]:
                    data = side.recv(65_536)
                    if not data:
                        return
                    if side is client:
                        for kind, frame in asked.of(data):
                            if kind == b"X":
                                return
                            server = server or self._free.get()
                            server.sendall(frame)
                            within = kind not in b"QS"
                            open_questions += not within
                        continue
                    client.sendall(data)
                    for kind, frame in answered.of(data):
                        if kind == b"Z":
                            open_questions -= 1
                            status = frame[5:6]
                    if open_questions == 0 and not within and status == b"I" and server is not None:
                        self._free.put(server)
                        server = None
        except OSError:
            pass
        finally:
            client.close()
            if server is not None:  # in the middle of something: nobody else may have it
                server.close()
                with self._making:
                    self._connect()

    def _greet(self, client: socket.socket) -> None:
        """Let a client in, with what the server said to the first one."""
        while True:
            length = struct.unpack("!i", _exactly(client, 4))[0]
            rest = _exactly(client, length - 4)
            if struct.unpack("!i", rest[:4])[0] not in _NO_ENCRYPTION:
                break
            client.sendall(b"N")
        with self._making:
            self._startup = struct.pack("!i", length) + rest
            while len(self._made) < self._size:
                self._connect()
        client.sendall(self._greeting)

    def _connect(self) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        server.sendall(self._startup)
        greeting, frames, done = b"", _Frames(), False
        while not done:
            data = server.recv(65_536)
            greeting += data
            done = any(kind == b"Z" for kind, _ in frames.of(data))
        self._greeting = b"".join(
            frame[:5] + secrets.token_bytes(len(frame) - 5) if kind == b"K" else frame
            for kind, frame in _Frames().of(greeting)
        )
        self._made.append(server)
        self._free.put(server)


class _Frames:
    """Messages of the protocol out of a stream: a kind, a length, a body."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._rest += data
        while len(self._rest) >= 5:
            end = 1 + struct.unpack("!i", self._rest[1:5])[0]
            if len(self._rest) < end:
                return
            frame, self._rest = self._rest[:end], self._rest[end:]
            yield frame[:1], frame


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data
