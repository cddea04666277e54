"""Check that a wheel carries the package whole: each file of it that git knows, and nothing else.

    python tools/check_wheel.py dist/sendonce-1.0.0-py3-none-any.whl

SQL, templates and type markers are easy to lose between a source tree and a wheel, and tests that run from
the tree never notice.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

SOURCE = "src"


def main(wheel: Path) -> None:
    expected, packed = tracked_files(), packed_files(wheel)
    problems = [f"missing from {wheel.name}: {name}" for name in sorted(expected - packed)]
    problems += [f"in {wheel.name}, but not in git: {name}" for name in sorted(packed - expected)]
    sys.exit("\n".join(problems) or 0)


def tracked_files() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z", SOURCE], check=True, capture_output=True, text=True)
    return {name.removeprefix(f"{SOURCE}/") for name in listed.stdout.split("\0") if name}


def packed_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
