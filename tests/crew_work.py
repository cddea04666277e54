"""What the hands of a crew do in tests: functions of a module, so that a hand finds them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def doubling(offset: int) -> Callable[[int], tuple[int, int]]:
    """Who did it, and the answer."""
    return lambda number: (os.getpid(), 2 * number + offset)


def dying(at: int) -> Callable[[int], tuple[int, int]]:
    """As `doubling`, but the process is killed at one of them."""

    def work(number: int) -> tuple[int, int]:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid(), 2 * number

    return work


def raising(at: int) -> Callable[[int], tuple[int, int]]:
    def work(number: int) -> tuple[int, int]:
        if number == at:
            raise ValueError("not for other eyes")
        return os.getpid(), 2 * number

    return work


def printing(_: None) -> Callable[[int], int]:
    sys.stdout.write("from the start")

    def work(number: int) -> int:
        sys.stdout.write("from the work")
        return number

    return work


def refusing(_: None) -> Callable[[int], int]:
    sys.exit(3)


def looking(_: str) -> Callable[[str], dict[str, Any]]:
    return lambda what: {"arguments": sys.argv, "environment": dict(os.environ), "group": os.getpgrp()}


def echoing(_: None) -> Callable[[bytes], bytes]:
    return lambda text: text
