"""`python -m sendonce.testing.sandbox`: run a sandbox; prints one line of JSON when it listens."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sendonce.core.errors import SendonceError
from sendonce.testing.sandbox.server import Sandbox, ready_line, serve, serve_until_eof
from sendonce.testing.sandbox.settings import SandboxSettings, read_settings


def main(arguments: list[str] | None = None) -> int:
    """Run until interrupted. Exit code 2 where the settings are wrong or a port is taken."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options)
        run = serve_until_eof if options.until_eof else serve
        with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
            runner.run(run(settings, on_ready=_print_ready))
    except (SendonceError, OSError, ValueError) as error:
        sys.stderr.write(f"sandbox: {error}\n")
        return 2
    return 0


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed (the extra `fast`): about half the time for each request."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sendonce.testing.sandbox", description=__doc__)
    parser.add_argument("--smtp-port", type=int, help="0 lets the system choose")
    parser.add_argument("--http-port", type=int, help="0 lets the system choose")
    parser.add_argument(
        "--config", default="{}", help="settings: JSON, a file of JSON, or - for one line of standard input"
    )
    parser.add_argument("--until-eof", action="store_true", help="end when standard input ends")
    return parser


def _settings(options: argparse.Namespace) -> SandboxSettings:
    settings = read_settings(json.loads(_config(options.config)))
    ports = {"smtp_port": options.smtp_port, "http_port": options.http_port}
    return replace(settings, **{name: port for name, port in ports.items() if port is not None})


def _config(source: str) -> str:
    if source == "-":
        return sys.stdin.buffer.readline().decode()
    return source if source.lstrip().startswith("{") else Path(source).read_text(encoding="utf-8")


def _print_ready(sandbox: Sandbox) -> None:
    sys.stdout.write(ready_line(sandbox) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
