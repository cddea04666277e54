"""A mail goes out over SMTP, its bounce comes back as mail, and the address is written to no more."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP

from sendonce.app import App
from sendonce.config import load
from sendonce.core.mail_token import tokens_in
from sendonce.pipeline.events import EventApplier
from sendonce.testing.mail_reports import feedback_report, old_bounce, status_report, vacation
from tests.e2e.command_line import Folder, wait_for
from tests.imap_server import PASSWORD, USER, Box, imap_server

CONFIG = """
[tenant.default]
zone = "Europe/Berlin"

[intake]
category = "shipment"

[category.shipment]
no_consent = "allow"

[channel.email]
account = "mail"
expiry = "24h"
alert_after = "15m"
uncertain = "hold"

[account.mail]
provider = "smtp"
channel = "email"
limits = ["100/s"]
lanes = 5
from = "Shop <shop@example.org>"
host = "127.0.0.1"
port = {port}
security = "none"
return_path = "bounces@example.org"
"""


class Relay:
    """A mail server that takes everything and keeps it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, bytes]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.sent.append((envelope.mail_from, envelope.rcpt_tos[0], envelope.content))
        return "250 2.0.0 Ok: queued as Q1"


@pytest.fixture
def relay() -> Iterator[tuple[Relay, int]]:
    relay = Relay()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> asyncio.Server:
        return await loop.create_server(lambda: SMTP(relay, loop=loop), "127.0.0.1", 0)

    async def end(server: asyncio.Server) -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    try:
        yield relay, server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def sent(folder: Folder, relay: tuple[Relay, int]) -> tuple[Relay, Folder]:
    """One mail to Ann has gone out."""
    server, port = relay
    folder.write("sendonce.toml", CONFIG.format(port=port))
    folder.write("templates/shipped.subject.txt", "Parcel\n")
    folder.write("templates/shipped.txt", "Hello {{ name }}\n")
    folder.run("template", "add", "shipped")
    schedule(folder, "r-1", "ann@example.com")
    folder.run("drain")
    assert len(server.sent) == 1
    return server, folder


def schedule(folder: Folder, reminder: str, email: str) -> None:
    rows = f"id,customer,due,template,email,name\n{reminder},c-1,now,shipped,{email},Ann\n"
    folder.run("import", str(folder.write("rows.csv", rows)))


def apply(folder: Folder) -> None:
    """What a running process does with events."""
    with App(load(folder.path / "sendonce.toml", environ={})) as app:
        EventApplier(app.store, app.policy).step()


def state_of_next(folder: Folder, reminder: str = "r-2", email: str = "Ann@example.com") -> tuple[str, str]:
    """What becomes of the next reminder, to Ann where nobody else is named, and why."""
    schedule(folder, reminder, email)
    folder.run("pass")
    (delivery,) = folder.json("status", reminder)["deliveries"]
    return delivery["state"], delivery["reason"]


def test_a_bounce_that_comes_as_mail_suppresses_the_address(sent: tuple[Relay, Folder]) -> None:
    relay, folder = sent
    path, _, raw = relay.sent[0]
    assert path.startswith("bounces+")
    assert path.endswith("@example.org")
    assert len(tokens_in(path)) == 1
    (folder.path / "bounce.eml").write_bytes(status_report(raw, to=path, recipient="victim@example.net"))
    told = folder.json("events", "import-mail", "bounce.eml")
    assert told == {"mails": 1, "found": {"report": 1}, "events": {"bounced_hard": 1}}
    apply(folder)
    assert state_of_next(folder) == ("SUPPRESSED", "suppressed:bounce")
    (delivery,) = folder.json("status", "r-1")["deliveries"]
    assert delivery["state"] == "ACCEPTED", "a bounce stands beside it"
    (record,) = folder.json("suppress", "list")["records"]
    assert record["masked"].endswith("@example.com")
    assert state_of_next(folder, "r-3", "victim@example.net")[0] == "QUEUED", (
        "whom a report names is not read"
    )


def test_what_comes_again_changes_nothing(sent: tuple[Relay, Folder]) -> None:
    relay, folder = sent
    path, _, raw = relay.sent[0]
    (folder.path / "bounce.eml").write_bytes(status_report(raw, to=path))
    for _ in range(2):
        folder.run("events", "import-mail", "bounce.eml")
        apply(folder)
    assert len(folder.json("suppress", "list")["records"]) == 1


def test_hook_09_an_automatic_answer_changes_nothing(sent: tuple[Relay, Folder]) -> None:
    relay, folder = sent
    path, _, raw = relay.sent[0]
    (folder.path / "box").mkdir()
    (folder.path / "box" / "1.eml").write_bytes(vacation(raw, to=path))
    (folder.path / "box" / "2.eml").write_bytes(old_bounce(raw, to=path))
    (folder.path / "box" / "3.eml").write_bytes(b"To: bounces@example.org\r\n\r\nBuy now\r\n")
    shown = folder.run("events", "import-mail", "box").out
    assert "3 mails read" in shown
    assert "1  automatic answers: nothing follows" in shown
    assert "they say: 1 unknown" in shown
    apply(folder)
    assert folder.json("suppress", "list")["records"] == []
    assert state_of_next(folder)[0] == "QUEUED"


def test_a_complaint_on_standard_input_suppresses_too(
    sent: tuple[Relay, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, folder = sent
    raw = feedback_report(relay.sent[0][2], to="fbl@example.org")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert folder.json("events", "import-mail", "-")["events"] == {"complained": 1}
    apply(folder)
    assert state_of_next(folder) == ("SUPPRESSED", "suppressed:complaint")


def test_no_mail_is_told(sent: tuple[Relay, Folder]) -> None:
    _, folder = sent
    (folder.path / "empty").mkdir()
    assert "no mail there" in folder.run("events", "import-mail", "empty", code=4).out
    assert "cannot be read" in folder.run("events", "import-mail", "nowhere", code=2).err


BOUNCES = """
[bounces]
imap = "127.0.0.1"
port = {port}
security = "none"
username = "{user}"
password = "file:imap-password"
every = "1s"
"""


@pytest.fixture
def box(folder: Folder) -> Iterator[Box]:
    folder.write("imap-password", PASSWORD)
    with imap_server() as box:
        yield box


def test_a_running_process_reads_the_mailbox(sent: tuple[Relay, Folder], box: Box) -> None:
    relay, folder = sent
    path, _, raw = relay.sent[0]
    text = (folder.path / "sendonce.toml").read_text()
    folder.write("sendonce.toml", text + BOUNCES.format(port=box.port, user=USER))
    box.put(status_report(raw, to=path), b"Subject: lottery\r\n\r\n")
    assert "2 mails wait in INBOX" in folder.run("check").out
    with folder.process("scheduler") as scheduler:
        try:
            wait_for(lambda: all(box.flags()))
        finally:
            scheduler.terminate()
            scheduler.communicate(timeout=30)
    apply(folder)
    assert state_of_next(folder) == ("SUPPRESSED", "suppressed:bounce")


def test_a_mailbox_that_cannot_be_read_is_found_by_check(sent: tuple[Relay, Folder], box: Box) -> None:
    _, folder = sent
    assert "nothing reads what comes there" in folder.run("check").out
    folder.write("imap-password", "wrong")
    text = (folder.path / "sendonce.toml").read_text()
    folder.write("sendonce.toml", text + BOUNCES.format(port=box.port, user=USER))
    shown = folder.run("check", code=1).out
    assert "the server refused the login: mend username and password of [bounces]" in shown
    assert "wrong" not in shown
