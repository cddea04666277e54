"""The API held to its own document, by calls that nobody would think of.

    make contract                          # half a minute, as CI does it
    make contract ARGS="--examples 200"    # the long run
    make contract ARGS="--store postgresql --seed 7"

Schemathesis reads `/v1/openapi.json` of a served program that has some of everything, and asks whatever the
document allows, and much that it does not. Every answer must be one that the document tells of, in the shape
that it tells, and none may be a fault of ours. It runs in an environment of its own
(`requirements/contract.lock`), so that nothing of it is near the other tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sendonce.api.program import Program
from sendonce.api.server import serving
from sendonce.app import App
from sendonce.config import parse
from sendonce.core.access import Scope
from sendonce.pipeline.api_keys import add
from sendonce.pipeline.cancel import By, Selection, cancel
from sendonce.pipeline.hand_in import hand_in
from sendonce.runtime.health import Address
from sendonce.testing.postgres_server import PostgresServer
from tests.integration.api_world import CONFIG, add_templates, reminder

TOOL: Final = Path("build/contract/bin/schemathesis")
CONFIGURATION: Final = Path(__file__).absolute().with_name("schemathesis.toml")
"""Which checks are left out, and why."""
CALLED: Final = """
[account.called]
provider = "http"
url = "https://api.example.com/send"
channel = "email"
body_json = "{}"
limits = ["100/s"]
lanes = 1
from = "us@example.com"

[account.called.events]
secrets = ["env:KEY"]
signed = "token"
kind_path = "event"
receipt_path = "id"
kinds = { delivered = "delivered" }
"""
"""An account whose provider knows the very key that everything is asked with, so that it is believed."""
ENDS_KEYS: Final = ("revoke_key", "rotate_key")
"""Not asked: it could end the key that asks."""


def main() -> None:
    asked = _asked()
    with _store(asked.store) as url, tempfile.TemporaryDirectory() as folder:
        given = {"SENDONCE_STORE_URL": url}
        with App(parse(CONFIG, Path(folder) / "sendonce.toml", given)) as app:
            token = _fill(app)
        given["KEY"] = token
        with App(parse(CONFIG + CALLED, Path(folder) / "sendonce.toml", given)) as app:
            code = asyncio.run(_run(app, token, asked, Path(folder)))
    sys.exit(code)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.contract", description="Ask the API anything.")
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--examples", type=int, default=4, help="calls of each kind for each operation")
    parser.add_argument("--seed", type=int, default=20261201)
    return parser.parse_args()


@contextmanager
def _store(kind: str) -> Iterator[str]:
    if kind == "postgresql":
        with PostgresServer() as server:
            yield server.url()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/store.db"


def _fill(app: App) -> str:
    """Some of everything that can be asked for, and a key for all of it."""
    for tenant in ("default", "acme"):
        add_templates(app, tenant)
        given = [reminder(f"r-{number}", group="g", customer=f"c-{number}") for number in range(20)]
        due = [{**each, "due": "now", "reminder": f"{each['reminder']}-due"} for each in given]
        taken = hand_in(app.store, app.book, app.policy, [*given, *due], tenant=tenant, actor="test").results
        assert all(each.ok for each in taken), taken
        cancel(app.store, Selection(By.REMINDER, "r-1", tenant), policy=app.policy, reason="x", actor="test")
    app.scheduler().run(trigger="test")
    return add(app.store, "contract", list(Scope), actor="test", rate=10_000).token


async def _run(app: App, token: str, asked: argparse.Namespace, folder: Path) -> int:
    report = folder / "report.ndjson"
    # Whoever would wait for events is answered at once, as by a process that takes its leave.
    async with serving(
        Program(app), Address("127.0.0.1", 0), field="test", stop_s=5, leaving=lambda: True
    ) as port:
        running = await asyncio.create_subprocess_exec(
            str(TOOL.absolute()),
            f"--config-file={CONFIGURATION}",
            "run",
            f"http://127.0.0.1:{port}/v1/openapi.json",
            f"--header=Authorization: Bearer {token}",
            f"--max-examples={asked.examples}",
            f"--seed={asked.seed}",
            "--continue-on-failure",
            "--warnings=off",
            "--report=ndjson",
            f"--report-ndjson-path={report}",
            *(f"--exclude-operation-id={each}" for each in ENDS_KEYS),
            cwd=folder,  # it leaves a folder of its own
        )
        code = await running.wait()
    sys.stdout.write(f"{_calls(report):,} calls\n")
    return code


def _calls(report: Path) -> int:
    """How many calls were made."""
    with report.open(encoding="utf-8") as lines:
        return sum(map(_calls_of, map(json.loads, lines)))


def _calls_of(event: dict[str, Any]) -> int:
    """Of one line of the report: those of one scenario, or none."""
    (body,) = event.values()
    return len(body.get("recorder", {}).get("interactions", ()))


if __name__ == "__main__":
    main()
