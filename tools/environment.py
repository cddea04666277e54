"""Make a virtual environment that holds what a lock file says, checked by hash.

    python3 tools/environment.py .venv requirements/dev.lock --editable .
    python3 tools/environment.py --fresh build/check requirements/runtime.lock --wheel dist/x.whl

This is the first thing a newcomer's machine runs, so it needs the standard library only, says in one line
what takes long, and shows pip's own words only when pip failed. Only wheels are taken: a source package would
run a build whose own tools no hash has checked. The project itself is added without its dependencies (the
lock has them all) and without build isolation (the lock has the build backend too).

Must also be readable by an older Python, to be able to say that it is too old.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

OLDEST_PYTHON = (3, 11)


def main() -> None:
    refuse_old_python()
    arguments = parse_arguments()
    started = time.monotonic()
    python = make_environment(arguments.path, fresh=arguments.fresh)
    install_lock(python, arguments.lock)
    if arguments.editable:
        pip(python, ["--no-deps", "--no-build-isolation", "--editable", arguments.editable])
    if arguments.wheel:
        pip(python, ["--no-deps", arguments.wheel])
    say(f"{arguments.path} is ready ({time.monotonic() - started:.0f} s)")


def refuse_old_python() -> None:
    if sys.version_info < OLDEST_PYTHON:
        running, oldest = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST_PYTHON))
        sys.exit(
            f"set-up: {sys.executable} is Python {running}, but sendonce needs {oldest} or later; "
            "name another one, for example: make PYTHON=python3.12"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make a virtual environment from a lock file.")
    parser.add_argument("path", type=Path, help="the environment's folder")
    parser.add_argument("lock", type=Path, help="pinned requirements with hashes")
    parser.add_argument("--fresh", action="store_true", help="empty the folder first")
    parser.add_argument("--editable", metavar="FOLDER", help="then add the project of this folder")
    parser.add_argument("--wheel", metavar="FILE", help="then add this wheel")
    return parser.parse_args()


def make_environment(path: Path, *, fresh: bool) -> str:
    """Create the environment, or keep one that this very Python made before; return its interpreter."""
    python = str(path / "bin" / "python")
    if fresh or not is_sound(python):
        run([sys.executable, "-m", "venv", "--clear", str(path)], failure=f"could not make {path}")
    return python


def is_sound(python: str) -> bool:
    """Whether an environment's interpreter is there, has pip, and is of the same make as the one running.

    After an upgrade of Python, or half a set-up, pip would work on a mixture of two and fail oddly.
    """
    script = "import pip, sys; print(sys.version, sys.base_prefix)"
    try:
        answer = subprocess.run([python, "-c", script], capture_output=True, text=True)
    except OSError:
        return False
    return answer.stdout == f"{sys.version} {sys.base_prefix}\n"


def install_lock(python: str, lock: Path) -> None:
    count = len(re.findall(r"^[a-z0-9][^=\n]*==", lock.read_text(encoding="utf-8"), re.MULTILINE))
    say(f"installing what {lock} pins ({count}); the first time this may take a minute or two")
    pip(python, ["--require-hashes", "--only-binary", ":all:", "--requirement", str(lock)], packages=count)


def pip(python: str, arguments: list[str], *, packages: int = 0) -> None:
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    run(
        [python, "-m", "pip", "install", *quiet, *arguments],
        failure=f"pip could not install {arguments[-1]}",
        packages=packages,
    )


def run(command: list[str], *, failure: str, packages: int = 0) -> None:
    """Run to the end, silent but for a count of packages; on failure print everything it said and stop."""
    said: list[str] = []
    seen = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if packages and line.startswith(("Collecting ", "Requirement already satisfied: ")):
                seen += 1
                show_progress(seen, packages)
    show_progress(0, 0)
    if process.returncode != 0:
        sys.stderr.writelines(said)
        sys.exit(f"set-up: {failure}: its own words are above")


def show_progress(done: int, total: int) -> None:
    """Redraw the one line of progress on a terminal; a total of 0 wipes it. Silent where nobody looks."""
    if sys.stderr.isatty():
        line = f"set-up: {min(done, total)} of {total} packages" if total else ""
        sys.stderr.write(f"\r\033[K{line}")
        sys.stderr.flush()


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
