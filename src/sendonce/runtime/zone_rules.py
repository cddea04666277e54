"""Which version of the world's time zone rules this machine goes by.

Countries change their rules at short notice. `zoneinfo` reads the system's data first and the
`tzdata` package where the system has none, so either may be what counts; a name for both changes
whenever one of them does, which costs a needless look and misses nothing.
"""

from __future__ import annotations

import hashlib
import zoneinfo
from importlib import metadata
from pathlib import Path


def zone_rules() -> str:
    """A name that changes when the rules may have changed."""
    seen = [f"tzdata {_package()}"]
    for folder in zoneinfo.TZPATH:
        for name in ("+VERSION", "tzdata.zi", "version"):
            file = Path(folder) / name
            if file.is_file():
                seen.append(
                    f"{file.name} {file.read_bytes()[:64].splitlines()[0].decode('utf-8', 'replace')}"
                )
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def _package() -> str:
    try:
        return metadata.version("tzdata")
    except metadata.PackageNotFoundError:
        return "none"
