"""The console as its tests use it: a program whose store holds something of everything, served on loopback.

Deliveries come to where they are through the real stages, with outcomes that a test gives them; nobody works
on them otherwise, so what a page shows stands still.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from sendonce.app import App
from sendonce.client import Client
from sendonce.config import parse
from sendonce.console.users import hash_password
from sendonce.core.access import Scope
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Accepted, Failed, NotStarted, Outcome, Reason, Rejected, Unknown
from sendonce.pipeline import claimer, consent, settler
from sendonce.pipeline.api_keys import add
from sendonce.pipeline.attempt import Attempted
from sendonce.pipeline.templates import add_sources
from sendonce.ports.store import Delivery, Process, Tx
from sendonce.render import TemplateSource
from tests.integration.api_world import serving_of

SECOND: Final = 1_000_000
PASSWORD: Final = "four random words it is"
SCRIPT: Final = "<script>alert(1)</script>"
EVIL: Final = f'{SCRIPT}"><img src=x onerror=alert(2)>'

CONFIG: Final = """
[tenant.default]
zone = "Europe/Berlin"

[console]
users = "users.toml"

[intake]
category = "shipment"

[channel.email]
account = "mail"
expiry = "24h"
alert_after = "15m"
uncertain = "hold"

[channel.sms]
accounts = { text = 999, spare = 1 }
expiry = "12h"
alert_after = "5m"
uncertain = "hold"

[account.mail]
provider = "file"
path = "sent.jsonl"
channel = "email"
limits = ["500/s", "50000/d"]
lanes = 40
from = "Northwind <hello@northwind.example>"

[account.mail.retry]
attempts_max = 1

[account.text]
provider = "console"
channel = "sms"
limits = ["200/s"]
lanes = 20
from = "Northwind"

[account.text.retry]
attempts_max = 1

[account.spare]
provider = "console"
channel = "sms"
limits = ["50/s"]
lanes = 5
from = "Northwind"

[category.shipment]
no_consent = "allow"

[category.payment]
no_consent = "allow"
"""

_hashes: dict[str, str] = {}


@dataclass
class Shown:
    """A page as it came."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def location(self) -> str:
        return self.headers.get("location", "")

    def token(self, action: str) -> str:
        """The token of the form that is sent to this path."""
        found = _Forms()
        found.feed(self.text)
        tokens = [fields["token"] for to, fields in found.forms if to == action and "token" in fields]
        assert tokens, f"no form for {action}"
        return tokens[0]


class _Forms(HTMLParser):
    """The forms of a page with their hidden fields."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append((given.get("action", ""), {}))
        elif tag == "input" and self.forms and given.get("type") == "hidden":
            self.forms[-1][1][given["name"]] = given.get("value", "")


@dataclass
class Browser:
    """Somebody who looks, without a script: it keeps cookies, and follows nothing by itself."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Shown:
        return self._ask("GET", path, None, headers)

    def post(
        self, path: str, fields: Mapping[str, object] | Sequence[tuple[str, str]], **headers: str
    ) -> Shown:
        sent = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return self._ask("POST", path, urlencode(fields, doseq=True).encode(), sent)

    def follow(self, shown: Shown) -> Shown:
        assert shown.status == 303, (shown.status, shown.text)
        return self.get(shown.location)

    def send(self, page: str, action: str, **fields: object) -> Shown:
        """Open a page and send one of its forms."""
        token = self.get(page).token(action)
        return self.post(action, {"token": token, **fields})

    def sign_in(self, **fields: str) -> Shown:
        return self.send("/console/sign-in", "/console/sign-in", **fields)

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Shown:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {**self.headers, **headers}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                own, _, rest = value.partition("=")
                self.cookies[own] = rest.partition(";")[0]
                if "Max-Age=0" in value:
                    del self.cookies[own]
        return Shown(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)


@dataclass
class ConsoleWorld:
    """A served program. `keys`: a delivery in each state that a page has to do with, by a word."""

    app: App
    port: int
    folder: Path
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def browser(self) -> Browser:
        return Browser(self.port)

    def signed_in(self, name: str) -> Browser:
        """A user of the file, by its role."""
        made = self.browser()
        shown = made.sign_in(name=name, password=PASSWORD)
        assert shown.status == 303, shown.text
        return made

    def key(self, *scopes: Scope, tenant: str = "default") -> str:
        return add(self.app.store, "test", scopes, actor="test", tenant=tenant).token

    def schedule(self, reminder: str, **given: object) -> str:
        """A reminder; its first delivery key."""
        asked: dict[str, object] = {
            "reminder": reminder,
            "customer": "customer-73",
            "due": "now",
            "template": "shipped",
            "email": "ann.archer@example.com",
            "data": {"name": "Ann", "parcel": "A-17"},
            **given,
        }
        tenant = str(asked.pop("tenant", "default"))
        (result,) = Client.of(self.app, tenant=tenant).schedule([asked])
        assert result.ok, result
        return result.keys[0]

    def pass_(self) -> None:
        report = self.app.scheduler().run(trigger="timer")
        assert report is not None

    def send(self, key: str, outcome: Outcome) -> str:
        """Publish and claim what is due, and settle this one with an outcome; all others are let go."""
        self.pass_()
        row = self.row(key)
        policy = self.app.policy
        account = policy.accounts[row.course.account]
        store = self.app.store
        claimed = store.write(
            lambda tx: claimer.claim(
                tx, account, policy, process="w-1", secret=store.secret, lead_us=2_000, most=50
            )
        ).result()
        steady = store.steady()
        attempts = [
            Attempted(
                claim,
                outcome if claim.key == key else NotStarted("stopping"),
                claim.slot_at,
                max(steady, claim.slot_at),
            )
            for claim in claimed.claims
        ]
        assert any(claim.key == key for claim in claimed.claims), (key, row)
        store.write(
            lambda tx: settler.settle(tx, attempts, policy, process="w-1", chance=lambda: 0.5)
        ).result()
        return key

    def row(self, key: str, tenant: str = "default") -> Delivery:
        (found,) = self.app.store.read(lambda tx: tx.deliveries.by_keys([(tenant, key)]))
        return found

    def state(self, key: str) -> State:
        return self.row(key).standing.state

    def audit(self) -> list[Mapping[str, int | str]]:
        return list(self.app.store.read(lambda tx: tx.rows("view_audit", before=2**62, limit=200)))


@contextmanager
def console(folder: Path, store_url: str = "") -> Iterator[ConsoleWorld]:
    """Serve a program that holds something of everything."""
    url = store_url or f"sqlite:///{folder / 'store.db'}"
    (folder / "users.toml").write_text(users_file(), "utf-8")
    settings = parse(CONFIG, folder / "sendonce.toml", {"SENDONCE_STORE_URL": url})
    with App(settings) as app:
        _add_templates(app)
        with serving_of(app) as port:
            world = ConsoleWorld(app, port, folder)
            _fill(world)
            yield world


def _beat(process: Process, tx: Tx) -> None:
    tx.processes.beat(process)


def users_file(**roles: str) -> str:
    """One user for each role, and others beside; all have the same password."""
    users = {role: role for role in ("viewer", "support", "operator", "admin")} | roles
    hash_ = _hashes.setdefault(PASSWORD, "") or hash_password(PASSWORD)
    _hashes[PASSWORD] = hash_
    return "".join(f'[user.{name}]\nrole = "{role}"\npassword = "{hash_}"\n' for name, role in users.items())


def _add_templates(app: App) -> None:
    letter = "Hello {{ name }},\n\nyour parcel {{ parcel }} has left our warehouse and arrives tomorrow."
    texts = {
        "shipped": (
            "Your parcel {{ parcel }} is on its way",
            f"{letter}\n\nNorthwind",
            "Hello {{ name }}, your parcel {{ parcel }} is on its way and arrives tomorrow.",
        ),
        "payment": (
            "Your instalment is due",
            "Hello {{ name }},\n\nyour instalment of {{ amount }} is due on Friday.\n\nNorthwind",
            "Your instalment of {{ amount }} is due on Friday.",
        ),
    }
    for name, (subject, text, sms) in texts.items():
        sources = {
            "email": TemplateSource("email", subject=subject, text=text),
            "sms": TemplateSource("sms", text=sms),
        }
        add_sources(app.store, name, sources, actor="operator:ann")
    evil = {
        "email": TemplateSource("email", subject=f"{SCRIPT} {{{{ name }}}}", text=f"{EVIL} {{{{ name }}}}")
    }
    add_sources(app.store, "evil", evil, actor="operator:ann")


def _fill(world: ConsoleWorld) -> None:
    """Something of everything: see `ConsoleWorld.keys`."""
    app, keys = world.app, world.keys
    lease = app.store.steady() + 86_400 * SECOND
    beat = app.store.read(lambda tx: tx.now)
    for id_, role in (("w-1", "worker"), ("s-1", "scheduler")):
        channels = "email,sms" if role == "worker" else ""
        process = Process(id_, role, channels, "node-3", 4711, beat, beat, lease, stopped=False)
        app.store.write(partial(_beat, process)).result()
    for number in range(1, 13):
        customer = f"customer-{70 + number}"
        key = world.schedule(f"shipment-{4820 + number}", customer=customer, group="autumn-sale")
        world.send(key, Accepted(f"pm-{9000 + number}"))
        keys.setdefault("accepted", key)
    keys["text"] = world.schedule(
        "loan-77/2026-12",
        template="payment",
        category="payment",
        email="",
        phone="+4915123456789",
        group="loan-77",
        data={"name": "Ann", "amount": "120.00 EUR"},
    )
    world.send(keys["text"], Accepted("SM-55"))
    for number in range(1, 5):
        key = world.schedule(f"shipment-dead-{number}", customer=f"customer-{90 + number}")
        keys[f"dead-{number}"] = world.send(key, Failed(Reason.UNAVAILABLE, "451 4.7.1 try later"))
    keys["rejected"] = world.send(
        world.schedule("shipment-rejected", customer="customer-95", email="nobody@example.com"),
        Rejected(Reason.INVALID_ADDRESS, "550 5.1.1"),
    )
    for number in range(1, 4):
        key = world.schedule(f"shipment-uncertain-{number}", customer=f"customer-{96 + number}")
        keys[f"uncertain-{number}"] = world.send(key, Unknown("timeout"))
    keys["evil"] = world.send(
        world.schedule(
            "evil-1", customer=f"{SCRIPT}", template="evil", data={"name": EVIL}, email="evil@example.com"
        ),
        Rejected(Reason.OTHER, f"{SCRIPT}"[:40]),
    )
    for number in range(1, 4):
        keys[f"scheduled-{number}"] = world.schedule(
            f"loan-77/2027-0{number}",
            due=f"2027-0{number}-05 09:00",
            template="payment",
            category="payment",
            phone="+4915123456789",
            data={"name": "Ann", "amount": "120.00 EUR"},
            group="loan-77",
        )
    said = {"address": "bea@example.com", "kind": "opt_out", "source": "crm", "evidence": "ticket 4711"}
    one = consent.record_of(said, app.policy, now=beat)
    consent.record(app.store, [one], policy=app.policy, actor="operator:ann")
    said = {"address": "ann.archer@example.com", "kind": "opt_in", "source": "shop", "evidence": "order form"}
    one = consent.record_of(said, app.policy, now=beat)
    consent.record(app.store, [one], policy=app.policy, actor="operator:ann")
