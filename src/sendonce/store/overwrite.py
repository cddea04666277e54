"""What was deleted from the embedded store leaves its files.

SQLite overwrites what it deletes (`secure_delete`), in the pages; older copies of those pages still lie in
the write-ahead log until it is copied into the file and emptied. A reader that began before may hold it up.
"""

from __future__ import annotations

import time
from typing import Final

import apsw

from sendonce.store.sqlite import translated

_LOOK_S: Final = 0.05


def empty_log(path: str, *, wait_s: float) -> bool:
    """Copy the write-ahead log into the file and cut it off; whether that could be done in this time.

    Beside writers: each try holds them up for milliseconds, and none waits in front of them.
    """
    with translated(path):
        raw = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            until = time.monotonic() + wait_s
            while True:
                try:
                    busy = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
                except apsw.BusyError:
                    busy = 1
                if not busy or time.monotonic() > until:
                    return not busy
                time.sleep(_LOOK_S)
        finally:
            raw.close()
