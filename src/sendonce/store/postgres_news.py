"""News between processes: NOTIFY after the commit, and one connection that listens.

A NOTIFY takes a lock of the whole server at its commit and holds it until that commit is on disk, so one
inside every publication would let only one of them reach the disk at a time. Here it follows the commit, in
a transaction of its own that waits for no disk: what is lost with the process in between, everybody finds by
looking. And nothing that stands in the way of a NOTIFY (a full queue, a transaction that hangs at its commit)
can touch what it speaks of. See `docs/decisions/0016-news.md`.

The connection that listens is made when somebody first listens, on a thread of its own that sleeps in the
kernel between two news. It comes back by itself. Behind a pooler there is none: the pooler would give the
server's connection, and all that is told on it, to somebody else.
"""

from __future__ import annotations

import hashlib
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Final

import psycopg

from sendonce import telemetry
from sendonce.store.listeners import Listener, Listeners
from sendonce.telemetry import fault, tell

AGAIN_MIN_S: Final = 0.1
AGAIN_MAX_S: Final = 10.0
STEADY_S: Final = 10.0
"""A connection that lasted so long is made again at once when it breaks."""
CLOSE_S: Final = 1.0
"""How long closing waits for the thread; one that is just connecting ends by itself later."""
NAME_BYTES_MAX: Final = 63

TELL: Final = b"""\
SELECT set_config('lock_timeout', '50ms', true), set_config('statement_timeout', '1s', true),
    set_config('synchronous_commit', 'off', true),
    (SELECT count(pg_notify($1, topic)::text) FROM unnest($2::text[]) AS topic)"""
"""Tell all topics on a channel, in one round trip. The limits hold to the end of its own commit, where the
lock is taken."""

Connection = psycopg.Connection[tuple[Any, ...]]


def channel_of(schema: str) -> str:
    """The schema's own channel, among all of its database. A name that is too long for that is cut, and told
    apart by its hash; no schema has a dot in its name."""
    channel = f"{schema}.news"
    if len(channel) <= NAME_BYTES_MAX:
        return channel
    return f"{schema[:40]}.{hashlib.sha256(schema.encode()).hexdigest()[:16]}.news"


def announce(connection: Connection, channel: str, topics: Iterable[str]) -> None:
    """Outside of any transaction. Raises `psycopg.Error`."""
    connection.execute(TELL, (channel, list(topics)), prepare=False)


class News:
    """What this process hears on a channel."""

    def __init__(self, connect: Callable[[], Connection], channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._listeners = Listeners()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def listen(self, hear: Callable[[str], None]) -> Listener:
        listener = self._listeners.add(hear)
        with self._lock:
            if self._thread is None and not self._closed:
                self._bell, self._rung = socket.socketpair()
                self._thread = threading.Thread(target=self._work, name="store-news", daemon=True)
                self._thread.start()
        return listener

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            first, self._closed = not self._closed, True
        self._listeners.close()
        if first and self._thread is not None:
            self._bell.close()  # the other end becomes readable, and stays so
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        with self._rung, selectors.DefaultSelector() as selector:
            selector.register(self._rung, selectors.EVENT_READ)
            wait_s = 0.0
            told = False
            while not selector.select(wait_s):
                since = time.monotonic()
                try:
                    with closing(self._connect()) as connection:
                        if _is_pooled(connection):
                            tell(telemetry.HEARS_NOTHING, why="pooler")
                            return
                        connection.execute(f'LISTEN "{self._channel}"'.encode(), prepare=False)
                        told = False
                        self._hear(connection, selector)
                except Exception as error:
                    if not told:
                        tell(telemetry.HEARS_NOTHING, why="lost", **fault(error))
                    told = True
                lasted = time.monotonic() - since >= STEADY_S
                wait_s = AGAIN_MIN_S if lasted else min(AGAIN_MAX_S, max(AGAIN_MIN_S, 2 * wait_s))
                wait_s *= 0.75 + random.random() / 4  # noqa: S311 (not a secret)

    def _hear(self, connection: Connection, selector: selectors.BaseSelector) -> None:
        """Until the bell rings. Raises when the connection is lost."""
        fileno = connection.fileno()
        selector.register(fileno, selectors.EVENT_READ)
        try:
            while True:
                for news in connection.notifies(timeout=0):
                    self._listeners.hear([news.payload])
                if any(key.fileobj is self._rung for key, _ in selector.select()):
                    return
        finally:
            selector.unregister(fileno)


def _is_pooled(connection: Connection) -> bool:
    """Whether somebody else answers for the server: a pooler has keys of its own for its clients."""
    ((backend,),) = connection.execute(b"SELECT pg_backend_pid()", prepare=False).fetchall()
    return bool(backend != connection.pgconn.backend_pid)
