"""Programs of other environments, as tests of the recipes run them. `make test-neighbours` makes those."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
RECIPES: Final = ROOT / "examples/neighbours"
HERE: Final = Path(__file__).parent


def program(environment: str, name: str) -> Path:
    """A program of an environment under build/. Nothing is skipped: without it the test is red."""
    path = ROOT / "build" / environment / "bin" / name
    assert path.exists(), f"{path.relative_to(ROOT)} is missing: make test-{environment}"
    return path


def surroundings(url: str, key: str, **more: str) -> dict[str, str]:
    paths = os.pathsep.join(map(str, (RECIPES, HERE)))
    return {**os.environ, "PYTHONPATH": paths, "SENDONCE_URL": url, "SENDONCE_KEY": key, **more}


def run(command: Sequence[str | Path], environ: Mapping[str, str], cwd: Path) -> str:
    """What it wrote to stdout."""
    done = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
