"""A service for tests of what goes wrong around it: real processes between a store and a sandbox, on one
account of class K."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sendonce.app import App
from sendonce.client import Client
from sendonce.core.lifecycle import State
from sendonce.pipeline.templates import add_sources
from sendonce.render import TemplateSource

WITHIN_S = 90.0
"""Far more than any of these tests needs, also on a busy machine."""

_CONFIG = """
[store]
url = "{url}"

[tenant.default]
zone = "Europe/London"

[channel.sms]
account = "text"
expiry = "2h"
alert_after = "2m"
uncertain = "hold"

[account.text]
provider = "http"
channel = "sms"
from = "+447700900001"
url = "http://127.0.0.1:{port}/v1/messages"
allow_plain_http = true
body_json = '{{"to": "{{{{ to }}}}", "from": "{{{{ sender }}}}", "text": "{{{{ text }}}}"}}'
key_header = "Idempotency-Key"
key_window = "24h"
receipt_path = "id"
code_path = "error.code"
throttle_scope = "rate"
limits = ["{rate}/s"]
lanes = {lanes}
jitter = "60ms"
timeout = "2s"

[account.text.retry]
base = "500ms"

[intake]
category = "shipment"

[category.shipment]
no_consent = "allow"

[worker]
lease = "5s"

[scheduler]
interval = "200ms"

[log]
format = "json"
"""


def configure(path: Path, url: str, port: int, *, rate: int = 40, lanes: int = 10) -> Path:
    path.write_text(_CONFIG.format(url=url, port=port, rate=rate, lanes=lanes), encoding="utf-8")
    return path


def add_template(app: App) -> None:
    source = TemplateSource("sms", "", "Your parcel is on its way. [ref:{{ delivery_key }}]", "")
    add_sources(app.store, "shipment", {"sms": source}, actor="test")


def reminders(count: int, *, first: int = 0) -> list[dict[str, object]]:
    """Due now, to a customer each."""
    return [
        {
            "reminder": f"shipment-{number}",
            "customer": f"customer-{number}",
            "due": datetime.now(UTC),
            "template": "shipment",
            "phone": f"+1202555{1000 + number}",
        }
        for number in range(first, first + count)
    ]


def schedule(app: App, count: int) -> None:
    add_template(app)
    results = Client.of(app).schedule(reminders(count))
    assert all(result.ok for result in results), results[0]


def states(app: App) -> Counter[State]:
    rows = app.store.read(lambda tx: tx.rows("view_demo_states"))
    return Counter(State(str(row["state"])) for row in rows)


@contextmanager
def process(config: Path, *words: str) -> Iterator[Path]:
    """`sendonce WORDS` as a process, ended gracefully in the end; yields its log."""
    log = config.parent / f"{config.stem}-{words[0]}.log"
    command = [sys.executable, "-m", "sendonce", "--config", str(config), *words]
    with log.open("wb") as out:
        running = subprocess.Popen(
            command, cwd=config.parent, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out
        )
    try:
        yield log
        running.terminate()
        assert running.wait(WITHIN_S) == 0, log.read_text("utf-8")
    finally:
        running.kill()
        running.wait()


def told(log: Path, event: str, field: str) -> Counter[str]:
    """How often a process told an event, by one of its fields."""
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
    return Counter(str(line[field]) for line in lines if line["event"] == event)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)
