"""The database under a crash run: a file, or a server that can be stopped under everybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psycopg

from sendonce.testing.postgres_server import PostgresServer


class Database(Protocol):
    """`has_server`: whether it can be stopped and started."""

    url: str
    has_server: bool

    def stop(self) -> None:
        """As `pg_ctl stop -m immediate`: every connection breaks, and the next start recovers as after a
        crash."""
        ...

    def start(self) -> None: ...

    def deadlocks(self) -> tuple[int, int]:
        """Since the beginning, as the server's statistics count them and as its log has them."""
        ...


class File:
    has_server = False

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/sendonce.db"

    def stop(self) -> None:
        raise NotImplementedError("a file has no server to stop")

    def start(self) -> None:
        raise NotImplementedError("a file has no server to start")

    def deadlocks(self) -> tuple[int, int]:
        return 0, 0


class Server:
    has_server = True

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.url = server.create_database("crash")
        self._deadlocks_before = 0

    def stop(self) -> None:
        # Statistics do not survive the recovery after a crash.
        self._deadlocks_before += self._deadlocks_now()
        self._server.stop(immediate=True)

    def start(self) -> None:
        self._server.start()

    def deadlocks(self) -> tuple[int, int]:
        log = (self._server.folder / "log").read_text("utf-8", "replace")
        return self._deadlocks_before + self._deadlocks_now(), log.count("deadlock detected")

    def _deadlocks_now(self) -> int:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            rows = connection.execute(
                "SELECT deadlocks FROM pg_stat_database WHERE datname = 'crash'"
            ).fetchall()
        return int(rows[0][0])


@contextmanager
def database(store: str, folder: Path) -> Iterator[Database]:
    """`store`: sqlite or postgresql."""
    if store == "sqlite":
        yield File(folder)
        return
    with PostgresServer(durable=True) as server:
        yield Server(server)
