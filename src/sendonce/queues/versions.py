"""Versions of servers: what is asked for at least, and what is said of an older one."""

from __future__ import annotations

import re

from sendonce.core.errors import ConfigError


def check_version(server: str, told: str, oldest: tuple[int, int]) -> None:
    """Raises `ConfigError` where `told`, such as "3.10.8", is older than `oldest` or cannot be read."""
    found = re.match(r"(\d+)\.(\d+)", told)
    if found is None:
        raise ConfigError(f"{server} does not tell its version ({told!r:.40}): is it {server}?")
    if (int(found[1]), int(found[2])) < oldest:
        wanted = ".".join(map(str, oldest))
        raise ConfigError(f"{server} {told:.40} is too old: {wanted} or later is needed")
