"""The API as tests use it: a program with a store, served by uvicorn on loopback, asked over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sendonce.api.door import Bounds
from sendonce.api.program import Program
from sendonce.api.server import serving
from sendonce.app import App
from sendonce.config import parse
from sendonce.core.access import Scope
from sendonce.pipeline.api_keys import add
from sendonce.pipeline.templates import add_sources
from sendonce.ports.secret import Secret
from sendonce.render import TemplateSource
from sendonce.runtime.health import Address

CONFIG = """
[tenant.default]
zone = "Europe/Berlin"

[tenant.acme]
zone = "America/New_York"

[intake]
category = "shipment"

[tenant.shared]
zone = "Europe/Berlin"

[[route]]
tenant = "shared"
channel = "email"
accounts = { mail = 999, spare = 1 }

[channel.email]
account = "mail"
expiry = "24h"
alert_after = "15m"
uncertain = "hold"

[channel.sms]
account = "text"
expiry = "12h"
alert_after = "15m"
uncertain = "hold"

[account.mail]
provider = "file"
path = "sent.jsonl"
channel = "email"
limits = ["10/s"]
lanes = 1
from = "us@example.com"

[account.spare]
provider = "file"
path = "spare.jsonl"
channel = "email"
limits = ["10/s"]
lanes = 1
from = "us@example.com"

[account.text]
provider = "console"
channel = "sms"
limits = ["10/s"]
lanes = 1

[category.shipment]
no_consent = "allow"

[category.payment]
no_consent = "allow"

[plan.loan]
steps = ["D-3 09:00 email", "D+2 10:00 sms"]
"""

EVERYTHING = tuple(Scope)


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> Any:
        """Its problem document, which must be one."""
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.body)
        document = self.document
        assert document["status"] == self.status
        assert {"type", "title", "status", "detail", "code"} <= document.keys()
        return document

    def ok(self, status: int = 200) -> Any:
        assert self.status == status, (self.status, self.body)
        return self.document if self.body else None


@dataclass
class Api:
    """A served program, and a key for everything in the tenant `default`."""

    app: App
    program: Program
    port: int
    token: str = ""
    tokens: dict[str, str] = field(default_factory=dict)

    def key(self, *scopes: Scope, tenant: str = "default", rate: int = 10_000) -> str:
        return add(self.app.store, "test", scopes or EVERYTHING, actor="test", tenant=tenant, rate=rate).token

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """One request on a connection of its own. `token` "" sends no key."""
        sent: dict[str, str] = {}
        token = self.token if token is None else token
        if token:
            sent["Authorization"] = f"Bearer {token}"
        data = raw
        if body is not None:
            data = json.dumps(body).encode()
        if data is not None:
            sent["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, data, {**sent, **(headers or {})})
            answer = connection.getresponse()
            return Answer(
                answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def get(self, path: str, **given: Any) -> Answer:
        return self.ask("GET", path, **given)

    def post(self, path: str, body: object = None, **given: Any) -> Answer:
        return self.ask("POST", path, {} if body is None and "raw" not in given else body, **given)


@contextmanager
def served(
    folder: Path, store_url: str = "", *, bounds: Bounds | None = None, pass_secret: str = ""
) -> Iterator[Api]:
    """Serve a program with this store, by default a file in the folder, until the block is over."""
    url = store_url or f"sqlite:///{folder / 'store.db'}"
    settings = parse(CONFIG, folder / "sendonce.toml", {"SENDONCE_STORE_URL": url})
    with App(settings) as app:
        program = Program(app, Secret(pass_secret) if pass_secret else None)
        for tenant in ("default", "acme"):
            add_templates(app, tenant)
        with _in_thread(program, bounds) as port:
            api = Api(app, program, port)
            api.token = api.key()
            yield api


def serving_of(app: App) -> AbstractContextManager[int]:
    """Serve this one until the block is over; its port."""
    return _in_thread(Program(app), None)


def add_templates(app: App, tenant: str) -> None:
    sources = {
        "email": TemplateSource("email", subject="Hello", text="Hello {{ name }}"),
        "sms": TemplateSource("sms", text="Hello {{ name }}"),
    }
    add_sources(app.store, "hello", sources, actor="test", tenant=tenant)


@contextmanager
def _in_thread(program: Program, bounds: Bounds | None) -> Iterator[int]:
    """A loop of its own, so that tests ask like anybody else."""
    ready = threading.Event()
    ports: list[int] = []
    stops: list[Callable[[], object]] = []
    errors: list[BaseException] = []

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stops.append(partial(loop.call_soon_threadsafe, stop.set))
        async with serving(program, Address("127.0.0.1", 0), field="test", stop_s=5, bounds=bounds) as port:
            ports.append(port)
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="api")
    thread.start()
    ready.wait()
    try:
        if errors:
            raise errors[0]
        yield ports[0]
    finally:
        if stops:
            stops[0]()
        thread.join()
        if errors:
            raise errors[0]


def reminder(id_: str = "r-1", **fields: object) -> dict[str, object]:
    given: dict[str, object] = {
        "reminder": id_,
        "customer": "c-1",
        "due": "in 2h",
        "template": "hello",
        "email": "ann@example.com",
        "data": {"name": "Ann"},
    }
    return {**given, **fields}
