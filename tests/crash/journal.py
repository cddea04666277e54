"""What the process that schedules was told, written down beside the store: a line before each request and
one after its answer.

A line is one write, so that a process that is killed leaves whole lines; the last one may lack its end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Journal:
    """Appends. One process at a time; the next one goes on in the same file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, **fields: Any) -> None:
        # Begun with a line end: what a killed process left unfinished spoils no line but its own.
        os.write(self._descriptor, b"\n" + json.dumps(fields).encode() + b"\n")


def lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Every whole line, in order."""
    if not path.exists():
        return
    for text in path.read_text("utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        yield line
