"""The cases of others that go through several stages, on both stores. docs/cases.md lists all of them, with
the tests that prove them; most stand beside the part that they are about."""

from __future__ import annotations

import asyncio
import email
import email.policy
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput
from sendonce.core.lifecycle import State
from sendonce.core.outcome import (
    Accepted,
    Failed,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.pacing import GateLimits, Limit
from sendonce.core.reminder import Asked
from sendonce.core.retry import RetryPolicy
from sendonce.pipeline import redrive, resolve
from sendonce.pipeline.cancel import By, Selection, cancel
from sendonce.pipeline.chosen import Filter
from sendonce.pipeline.find import find
from sendonce.pipeline.importer import import_rows
from sendonce.pipeline.pause import Scope, Target, pause, resume
from sendonce.pipeline.story import record, story
from sendonce.pipeline.templates import add_sources, show
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Tx
from sendonce.preparation import prepare
from sendonce.providers.smtp import Security, SmtpProvider, SmtpSettings
from sendonce.render import TemplateSource
from sendonce.testing.conformance.provider import Fault, SmtpPeer
from tests.integration.world import ADDRESSES, SECOND, TENANT, World

DAY_S = 86_400.0
ADDRESS = ADDRESSES[Channel.EMAIL]


# Email, over a real connection


class MailServer(SmtpPeer):
    """Misbehaves in one phase of a mail: see `PHASES`."""

    def __init__(self) -> None:
        super().__init__()
        self.at_rcpt = b""
        self.at_dot = b""
        self.late_s = 0.0

    def _reply(self, verb: str, command: str) -> bytes:
        return self.at_rcpt if verb == "RCPT" and self.at_rcpt else super()._reply(verb, command)

    async def end(self, writer: asyncio.StreamWriter, wire: bytes) -> bool:
        await asyncio.sleep(self.late_s)
        return await super().end(writer, self.at_dot or wire)

    @property
    def recipients(self) -> list[str]:
        return [command for command in self.commands if command.startswith("RCPT")]

    def mail(self, number: int = -1) -> EmailMessage:
        return email.message_from_bytes(self.messages[number], policy=email.policy.default)


@asynccontextmanager
async def mailing() -> AsyncIterator[tuple[MailServer, SmtpProvider]]:
    server = MailServer()
    await server.start()
    settings = SmtpSettings(
        "127.0.0.1",
        port=server.port,
        security=Security.NONE,
        helo="us",
        connect_timeout_s=2.0,
        transaction_timeout_s=2.0,
        reply_timeout_s=2.0,
    )
    provider = SmtpProvider(settings)
    try:
        yield server, provider
    finally:
        await provider.close()
        await server.stop()


async def nothing() -> None:
    pass


async def send(world: World, provider: SmtpProvider) -> list[Outcome]:
    """Claim what may go now and really send it."""
    outcomes: list[Outcome] = []
    for claim in world.claim():
        outcomes.append(await provider.send(claim.message, start=nothing))
        world.settle([(claim, outcomes[-1])])
    return outcomes


@pytest.mark.parametrize(
    "phase", ["refuses", "421 at RCPT", "closes at DATA", "stored, no reply", "stored, late"]
)
def test_dup_03_only_what_is_lost_after_the_final_dot_is_in_doubt(phase: str) -> None:
    """Before the dot a failure is one, and tried again; after it nobody knows, and it is not sent again."""

    async def scenario() -> None:
        world = World("N")
        key = world.schedule(valid_s=2 * DAY_S)
        world.pass_()
        async with mailing() as (server, provider):
            match phase:
                case "refuses":
                    server.fault = Fault.CLOSE_ON_CONNECT
                case "421 at RCPT":
                    server.at_rcpt = b"421 4.3.2 Not now\r\n"
                case "closes at DATA":
                    server.break_at = "DATA"
                case "stored, no reply":
                    server.fault = Fault.CLOSE_AFTER
                case _:
                    server.late_s = 0.3
            (first,) = await send(world, provider)
            server.fault, server.at_rcpt, server.break_at, server.late_s = Fault.NONE, b"", "", 0.0
            for wait_s in [900] * 4 + [3_600] * 23:
                world.advance(wait_s)
                world.pass_()
                world.reap()
                world.expire()
                world.apply_policy()
                await send(world, provider)
            assert len(server.messages) == 1
            assert [line for line in world.events(key) if line == "claimed"] == ["claimed"] * (
                1 if phase.startswith("stored") else 2
            )
        match phase:
            case "stored, no reply":
                assert isinstance(first, Unknown)
                assert world.state(key) is State.UNCERTAIN
            case "stored, late":
                assert isinstance(first, Accepted)
                assert world.state(key) is State.ACCEPTED
            case _:
                assert isinstance(first, Failed)
                assert world.state(key) is State.ACCEPTED

    asyncio.run(scenario())


def test_dlq_03_an_address_that_does_not_exist_is_tried_once_and_never_again() -> None:
    async def scenario() -> None:
        world = World("N")
        first = world.schedule("r-1")
        world.pass_()
        async with mailing() as (server, provider):
            server.fault = Fault.REJECT  # 550-5.1.1 in two lines, with the address in the words
            await send(world, provider)
            server.fault = Fault.NONE
            row = world.row(first)
            assert (row.standing.state, row.course.attempts) == (State.REJECTED, 1)
            refused = world.lines(first)[-1]
            assert (refused.event, refused.word("code")) == ("rejected", "550 5.1.1")
            second = world.schedule("r-2")
            for _ in range(3):
                world.pass_()
                await send(world, provider)
                world.advance(60)
            assert len(server.recipients) == 1
            assert server.messages == []
        again = world.row(second)
        assert (again.standing.state, again.course.reason) == (State.SUPPRESSED, "suppressed:provider")
        assert again.course.attempts == 0

    asyncio.run(scenario())


async def _mail(world: World, key: str) -> tuple[EmailMessage, bytes, list[str]]:
    """Publish and send one; what arrived, decoded and as bytes, and for whom."""
    world.pass_()
    async with mailing() as (server, provider):
        await send(world, provider)
        assert world.state(key) is State.ACCEPTED
        (wire,) = server.messages
        return server.mail(), wire, server.recipients


@pytest.mark.parametrize(
    "name",
    ["Ann\r\nBcc: spy@example.net", "Ann\nX: 1", "Ann\u2028Bcc: x", "Ann\u0085x", "Ann\u000bx"],
)
def test_cont_01_a_line_break_in_a_name_adds_no_header_and_no_recipient(name: str) -> None:
    """Sent with the break as one blank. The template ends with a line break of its own."""
    world = World("N")
    world.template("named", Channel.EMAIL, "Dear {{ name }}\n", subject="Reminder for {{ name }}\n")
    key = world.schedule(template="named", data={"name": name})
    mail, wire, recipients = asyncio.run(_mail(world, key))
    assert recipients == [f"RCPT TO:<{ADDRESS}>"]
    assert (mail["Bcc"], mail["X"]) == (None, None)
    assert mail["Subject"] == "Reminder for " + " ".join(name.split())
    assert mail["To"] == ADDRESS
    assert b"\nBcc:" not in wire.partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize(
    "subject", [("Reminder " * 23)[:200], "A" * 300, "é " * 100], ids=["words", "one", "accents"]
)
def test_cont_03_a_long_subject_is_the_same_after_a_redrive(subject: str) -> None:
    """Queued, stored, loaded, built and refused; then redriven and taken."""

    async def scenario() -> None:
        world = World("N", retry=RetryPolicy(attempts_max=1))
        world.template("long", Channel.EMAIL, "Hello", subject="{{ subject }}")
        key = world.schedule(template="long", data={"subject": subject})
        world.pass_()
        async with mailing() as (server, provider):
            server.at_dot = b"451 4.3.0 Local error\r\n"
            await send(world, provider)
            assert world.state(key) is State.DEAD
            server.at_dot = b""
            done = redrive.redrive(
                world.store, Filter(keys=(key,)), world.policy, reason="mended", actor="operator:ann"
            )
            assert done.redriven == 1
            await send(world, provider)
            assert world.state(key) is State.ACCEPTED
            first, second = server.messages
            assert first == second
            assert server.mail()["Subject"] == subject.strip()
            assert max(map(len, second.split(b"\r\n"))) <= 998

    asyncio.run(scenario())


def test_cont_13_a_name_is_escaped_in_html_once_and_nowhere_else() -> None:
    name = "O'Brien & Søn <VIP>"
    world = World("N", "K")
    world.template(
        "all", Channel.EMAIL, "Dear {{ name }}", subject="For {{ name }}", html="<p>Dear {{ name }}</p>"
    )
    world.template("all", Channel.SMS, "Dear {{ name }}")
    key = world.schedule(template="all", data={"name": name}, also=(Channel.SMS,))
    mail, _, _ = asyncio.run(_mail(world, key))
    assert mail["Subject"] == f"For {name}"
    plain, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert plain.get_content().strip() == f"Dear {name}"
    assert html.get_content().strip() == "<p>Dear O&#39;Brien &amp; Søn &lt;VIP&gt;</p>"
    (text,) = world.claim("sms-K")
    assert text.message.content.text == f"Dear {name}"


@pytest.mark.parametrize(
    ("name", "shown"), [("Ali\u202e", "Ali"), ("\u202eexe.fdp", "exe.fdp"), ("علي", "علي")]
)
def test_cont_17_no_override_of_a_name_turns_the_text_after_it(name: str, shown: str) -> None:
    world = World("N")
    world.template("named", Channel.EMAIL, "Dear {{ name }}, pay", subject="{{ name }}: pay")
    key = world.schedule(template="named", data={"name": name})
    mail, _, _ = asyncio.run(_mail(world, key))
    assert mail["Subject"] == f"{shown}: pay"
    assert mail.get_content().strip() == f"Dear {shown}, pay"


# Text that not every store could hold


FIELDS: dict[str, dict[str, Any]] = {
    "reminder": {"reminder": "r\0"},
    "customer": {"customer": "c\0"},
    "email": {"email": "ann\0@example.com"},
    "phone": {"phone": "+1202\0"},
    "name": {"data": {"name": "Ann\0"}},
    "deep": {"data": {"name": "Ann", "deep": [{"a": "b\0"}]}},
    "key": {"data": {"name": "Ann", "a\0": "b"}},
    "template": {"template": "t\0"},
    "category": {"category": "c\0"},
    "group": {"group": "g\0"},
    "sender": {"sender": "Us\0 <us@example.com>"},
    "reply_to": {"reply_to": "us\0@example.com"},
    "tenant": {"tenant": "t\0"},
    "due": {"due": "now\0"},
    "timezone": {"timezone": "Europe/Berlin\0"},
    "expires": {"expires": "1h\0"},
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_cont_15_at_intake_it_is_refused_whatever_the_store(field: str, character: str) -> None:
    world = World("N")
    usual: dict[str, Any] = {
        "reminder": "r-1",
        "customer": "c-1",
        "due": "now",
        "template": "t",
        "email": ADDRESS,
        "data": {"name": "Ann"},
    }

    def prepared(given: dict[str, Any]) -> int:
        return len(
            prepare(Asked(**given), world.policy, world.book, secret=world.store.secret, now=world.now)
        )

    assert prepared(usual) == 1
    with pytest.raises(InvalidInput):
        prepared({**usual, **_with(FIELDS[field], character)})


def _with(value: Any, character: str) -> Any:
    match value:
        case str():
            return value.replace("\0", character)
        case dict():
            return {_with(key, character): _with(inner, character) for key, inner in value.items()}
        case list():
            return [_with(inner, character) for inner in value]
    return value


def _asks(world: World, text: str) -> dict[str, Callable[[], object]]:
    """Everything that is asked by a name which a person may have written."""
    store, policy = world.store, world.policy
    key = f"{text}:c-1:sms"

    def read(query: Callable[..., object], *given: object, **named: object) -> Callable[[], object]:
        return lambda: world.read(lambda tx: query(tx, *given, **named))

    def taken_back(by: By, name: str) -> Callable[[], object]:
        return lambda: cancel(store, Selection(by, name), policy=policy, reason="paid", actor="api:test")

    why: dict[str, Any] = {"reason": "mended", "actor": "operator:ann"}
    group = Target(Scope.GROUP, text)
    return {
        "find": read(find, text, policy, secret=store.secret),
        "status": read(story, text, policy),
        "status of a key": read(story, key, policy),
        "ledger": read(record, key),
        "cancel a reminder": taken_back(By.REMINDER, text),
        "cancel a customer": taken_back(By.CUSTOMER, text),
        "cancel a group": taken_back(By.GROUP, text),
        "cancel a delivery": taken_back(By.DELIVERY, key),
        "cancel, escaped": taken_back(By.DELIVERY, key.replace("\0", "%00")),
        "dead letters": read(redrive.dead_letters, Filter(group=text)),
        "dead letter": read(redrive.show, key, policy),
        "redrive": lambda: redrive.redrive(store, Filter(keys=(key,)), policy, **why),
        "redrive a group": lambda: redrive.redrive(store, Filter(group=text), policy, **why),
        "uncertain": read(resolve.uncertain, policy, Filter(account=text)),
        "resolve": lambda: resolve.resolve(store, Filter(keys=(key,)), resolve.Word.SENT, policy, **why),
        "pause a group": lambda: pause(store, group, policy, **why),
        "resume a group": lambda: resume(store, group, policy, **why),
        "template": lambda: show(store, text),
        "add a template": lambda: add_sources(
            store, text, {"sms": TemplateSource("sms", text="Hello")}, actor="api:test"
        ),
        "import": lambda: import_rows(store, policy, [], source=text, actor="api:test"),
    }


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_cont_15_where_it_is_asked_for_it_is_nobodys_name_whatever_the_store(character: str) -> None:
    world = World("K")
    world.schedule()
    answers: dict[str, str] = {}
    for name, ask in _asks(world, f"r{character}1").items():
        try:
            answers[name] = f"answered: {ask()}"
        except Exception as error:
            answers[name] = type(error).__name__
    assert {name: said for name, said in answers.items() if said not in ("InvalidInput", "NotFound")} == {}


@pytest.mark.parametrize("said", ["bad\0", "bad\ud800"])
def test_cont_15_what_a_provider_says_is_kept_as_far_as_it_can_be(said: str) -> None:
    """Whatever stands in a code, the outcome counts. (Receipts: `test_worker`.)"""
    world = World("N")
    outcomes: list[Outcome] = [
        Failed(Reason.OTHER, said),
        Throttled(ThrottleScope.RECIPIENT, said),
        Unknown("reset", said),
    ]
    for number, outcome in enumerate([*outcomes, Accepted("r-1", said), Rejected(Reason.OTHER, said)]):
        key = world.schedule(f"r-{number}")
        world.pass_()
        world.send(outcome)
        assert world.lines(key)[-1].word("code").startswith("bad")
    assert verify(world.store).ok


# Crashes and restarts


def _drain(world: World, calls: Counter[str], keys: set[str], until: int) -> None:
    """Work until so many calls were made, each taken by a provider that absorbs repeats."""
    while sum(calls.values()) < until:
        claims = world.claim(most=min(100, until - sum(calls.values())))
        for claim in claims:
            calls[claim.key] += 1
            keys.add(claim.message.send_key)
        world.settle([(claim, Accepted("r")) for claim in claims])
        if not claims:
            world.advance(0.05)


@pytest.mark.parametrize("stop", ["killed", "paused", "cut off"])
def test_lost_03_a_stop_in_the_middle_skips_nothing_and_repeats_only_what_was_open(stop: str) -> None:
    """At 212 of 400 the worker is killed with calls open, or the account is paused, or the provider closes
    the link under the open calls."""
    world = World("K", limits=GateLimits((Limit(10_000, SECOND),), lanes=100))
    world.schedule_many(400, due_in_s=0.0)
    assert world.pass_().complete
    calls: Counter[str] = Counter()
    keys: set[str] = set()
    _drain(world, calls, keys, 212)
    open_calls: list[str] = []
    if stop == "paused":
        target = Target(Scope.ACCOUNT, "sms-K")
        pause(world.store, target, world.policy, reason="looks wrong", actor="operator:ann")
        world.advance(600)
        assert world.claim() == []
        resume(world.store, target, world.policy, reason="is right", actor="operator:ann")
    else:
        while not (claims := world.claim(most=100)):
            world.advance(0.05)
        open_calls = [claim.key for claim in claims]
        calls.update(open_calls)
        keys |= {claim.message.send_key for claim in claims}
        if stop == "killed":
            world.clock.advance(world.policy.lease_s + 20)
            world.process = "w-2"
            world.beat()
            assert world.reap() == len(claims)
        else:
            world.settle([(claim, Unknown("reset")) for claim in claims])
        world.advance(10)
    states = world.read(lambda tx: [row.standing.state for row in tx.deliveries.by_ids(range(1, 401))])
    assert Counter(states)[State.ACCEPTED] == 212, "nothing else is called finished"
    _drain(world, calls, keys, 400 + len(open_calls))
    world.advance(60)
    assert world.claim() == []
    assert len(calls) == len(keys) == 400
    assert {key for key, times in calls.items() if times > 1} == set(open_calls)
    states = world.read(lambda tx: [row.standing.state for row in tx.deliveries.by_ids(range(1, 401))])
    assert set(states) == {State.ACCEPTED}


def test_lost_05_what_is_due_while_everything_restarts_is_sent_once(tmp_path: Path) -> None:
    """A daily reminder at 10:00:00, and a weekly one; each day all is down from 09:59:57 to 10:00:16."""
    path = str(tmp_path / "s.db")
    world = World("K", path=path)
    world.clock.advance(9 * 3_600 + 3_597)  # 09:59:57
    daily = [world.schedule(f"day-{day}", due_in_s=3 + day * DAY_S) for day in range(8)]
    weekly = world.schedule("week", due_in_s=3 + 5 * DAY_S)
    sent: Counter[str] = Counter()
    for day in range(8):
        world.pass_()
        assert world.claim() == []
        world.store.close()
        clock = world.clock
        clock.advance(19)
        world = World("K", path=path)
        world.clock._now, world.clock._boot = clock._now, clock._boot
        world.beat()
        world.pass_()
        for claim in world.claim():
            sent[claim.key] += 1
            world.settle([(claim, Accepted("r"))])
        (published,) = [line for line in world.lines(daily[day]) if line.event == "published"]
        assert published.at - published.number("due") == 16 * SECOND, "how late it was stands in the ledger"
        world.advance(DAY_S - 19)
    assert sent == Counter([*daily, weekly])
    world.store.close()


def test_lost_09_an_intake_that_fails_halfway_leaves_nothing_behind() -> None:
    """The delivery cannot be written: then its reminder is not there either, and can be asked for again."""
    world = World("K")
    taken = world.schedule("r-1")

    def halfway(tx: Tx) -> None:
        (row,) = tx.deliveries.by_keys([(TENANT, taken)])
        old = tx.reminders.by_ids([row.reminder_id])[row.reminder_id]
        world._insert(tx, replace(old, reminder="r-2"))
        tx.reminders.insert([replace(old, reminder="r-3")])
        world._insert(tx, replace(old, customer="c-9", recipients={}))
        raise _Halfway

    with pytest.raises(_Halfway):
        world.write(halfway)
    found = world.read(
        lambda tx: tx.reminders.find([(TENANT, name, "c-1") for name in ("r-1", "r-2", "r-3")])
    )
    assert [one is not None for one in found] == [True, False, False]
    assert world.pass_().counts["published"] == 1
    again = world.schedule("r-2")
    world.pass_()
    assert world.send(Accepted("r")) == [taken, again]


class _Halfway(Exception):
    pass


# Pages


def test_api_09_pages_meet_what_was_there_throughout_once() -> None:
    """25 of one instant, ten a page; after the first page one of it is taken back and three are added."""
    world = World("K")
    keys = [world.schedule(f"r-{number}") for number in range(25)]
    seen: list[str] = []
    before: int | None = 2**62
    while before is not None:
        page = world.read(
            partial(find, text="c-1", policy=world.policy, secret=world.store.secret, limit=10, before=before)
        )
        seen += [each.delivery.key for each in page.found]
        if len(seen) == 10:
            world.withdraw(seen[3])
            for number in range(3):
                world.schedule(f"new-{number}")
        before = page.before
    assert seen == keys[::-1]
