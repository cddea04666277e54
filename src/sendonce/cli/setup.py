"""The first quarter of an hour: `init`, `check`, `send-test`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.text import Text

from sendonce.cli.exits import Exit
from sendonce.cli.screen import BAD, CARE, GOOD, Screen
from sendonce.cli.shell import DEFAULT_TENANT, Shell, command
from sendonce.cli.views import show_story
from sendonce.core.consent import NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.due import allowed_from
from sendonce.core.duration import parse_duration, say_duration
from sendonce.core.errors import ConfigError, InvalidInput, Refused
from sendonce.core.lifecycle import State
from sendonce.core.pacing import SECOND, Limit
from sendonce.core.routing import Route, account_for
from sendonce.ports.returned_mail import MailboxUnavailable
from sendonce.ports.sink import SinkUnavailable
from sendonce.runtime.health import parse_address, why_not

if TYPE_CHECKING:
    from sendonce.app import App
    from sendonce.config import AccountSettings, Settings
    from sendonce.core.policy import CategoryPolicy, Policy
    from sendonce.ports.queue import Transport
    from sendonce.ports.store import Delivery

CHECK_S: Final = 60.0
TEST: Final = "send-test"
SUBJECT: Final = "A test of sendonce"
TEXT: Final = (
    "This is a test. It went the way of every reminder: through the store, the gate of the account and the "
    "ledger.\n\nReference: [ref:{{ delivery_key }}]\n"
)
SMS: Final = "A test of sendonce. [ref:{{ delivery_key }}]"


def add_to(app: typer.Typer) -> None:
    panel = {"rich_help_panel": "Begin"}
    command(app, **panel)(init)
    command(app, **panel)(check)
    command(app, "send-test", **panel)(send_test)


# init


def init(
    shell: Shell,
    for_sandbox: Annotated[
        bool, typer.Option("--sandbox", help="For `sendonce sandbox` on this machine: works as it is.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> None:
    """Write a commented sendonce.toml."""
    from sendonce.config import template_text

    path = shell.given.config or Path("sendonce.toml")
    texts = {path: template_text()}
    if for_sandbox:
        text = files("sendonce.cli").joinpath("sandbox.toml").read_text(encoding="utf-8")
        texts = {path: text, path.with_name("sandbox-token"): "any-token-will-do\n"}
    for target, text in texts.items():
        _write(target, text, force=force)
    shell.screen.document({"written": list(texts)})
    shell.screen.say(f"wrote {' and '.join(map(str, texts))}")
    if for_sandbox:
        shell.screen.say("next: `sendonce sandbox` in another terminal, then `sendonce check`")
    else:
        shell.screen.say("next: change what is marked CHANGE, then `sendonce check`")


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already and stays as it is: --force overwrites it, --config names another file",
            code="config_exists",
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", code="config_unwritable") from None


# check


@dataclass(frozen=True, slots=True)
class Finding:
    """What one part of the set-up turned out to be."""

    part: str
    verdict: Literal["ok", "note", "bad"]
    text: str


def check(shell: Shell) -> Exit:
    """Check the configuration, open the store, and log in to every account. Sends nothing."""
    from sendonce.app import make_provider
    from sendonce.config import load
    from sendonce.held import words_of
    from sendonce.pipeline.alarm import stranded

    settings = load(shell.given.config, environ=os.environ, each_account=make_provider)
    findings = [Finding("configuration", "ok", str(settings.path))]
    version = shell.read(lambda tx: tx.meta("epoch"))
    findings.append(Finding("store", "ok", f"{settings.store_url}, epoch {version}"))
    if held := shell.read(words_of):
        findings.append(Finding("store", "bad", f"held: {held}; see `sendonce db released --preview`"))
    findings.append(_seals(shell.app))
    findings += _api(settings)
    findings += asyncio.run(_accounts(shell.app))
    findings += _events(shell.app)
    findings += asyncio.run(_transports(shell.app))
    findings += _bounces(shell.app)
    findings += _kafka(shell.app)
    findings += _objectives(settings)
    lost = shell.read(lambda tx: stranded(tx, shell.policy))
    findings += [Finding(f"account {each.account}", "bad", str(each)) for each in lost]
    findings += [Finding(part, "note", text) for part, text in _odd(settings)]
    shell.screen.document({"ok": _sound(findings), "findings": findings})
    for finding in findings:
        _show_finding(shell.screen, finding)
    if _sound(findings):
        shell.screen.say(
            "\nready: `sendonce send-test ADDRESS` sends one message, `sendonce up` begins", style=GOOD
        )
    return Exit.OK if _sound(findings) else Exit.PARTLY


def _sound(findings: list[Finding]) -> bool:
    return all(finding.verdict != "bad" for finding in findings)


def _objectives(settings: Settings) -> Iterator[Finding]:
    """What each channel is to keep: a promise that nobody has read is none."""
    for channel, policy in settings.channels.items():
        kept = policy.objectives
        received = f", received {say_duration(kept.received_s)} later" if kept.received_s else ""
        yield Finding(
            f"channel {channel}",
            "ok",
            f"{100 * kept.kept:g} % published within {say_duration(kept.published_s)}, accepted within "
            f"{say_duration(kept.accepted_s)}{received}; none due for {say_duration(kept.oldest_s)}; at most "
            f"{kept.duplicates} duplicates a month; dead letters decided within "
            f"{say_duration(kept.recovered_s)}",
        )


def _seals(app: App) -> Finding:
    """Whether blocks of the ledger will be signed."""
    try:
        signer = app.signer
    except ConfigError as error:
        return Finding("audit", "bad", str(error))
    if signer is None:
        return Finding("audit", "note", "nobody signs the ledger's blocks: see [audit] in docs/audit.md")
    return Finding("audit", "ok", f"blocks are signed with key {signer.key}")


def _api(settings: Settings) -> Iterator[Finding]:
    """Whether `up` will be able to serve the HTTP API, where that is configured."""
    if not settings.api_listen:
        return
    part = "api"
    try:
        address = parse_address(settings.api_listen, field="[api] listen")
    except InvalidInput as error:
        yield Finding(part, "bad", str(error))
        return
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        yield Finding(part, "bad", "the HTTP API needs the extra `api`: pip install 'sendonce[api]'")
        return
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((address.host, address.port))
        except (OSError, UnicodeError) as error:
            if getattr(error, "errno", 0) == errno.EADDRINUSE:
                yield Finding(part, "note", f"{address} is in use: by this service, if it runs already")
            else:
                yield Finding(part, "bad", f"[api] listen {address} {why_not(error, address)}")
            return
    yield Finding(part, "ok", f"`up` serves it on http://{address}/v1")


async def _accounts(app: App) -> list[Finding]:
    return list(await asyncio.gather(*(_account(app, name) for name in app.settings.accounts)))


async def _account(app: App, name: str) -> Finding:
    provider, part = app.provider(name), f"account {name}"
    promise = f"class {provider.promise.provider_class.value}"
    try:
        async with asyncio.timeout(CHECK_S):
            said = await provider.check()
        events = f"; events at /v1/events/{name}" if app.event_source(name) else ""
        if app.settings.accounts[name].poll_spacing_s is not None:
            events += "; asked what became of its messages"
    except ConfigError as error:
        return Finding(part, "bad", str(error))
    except TimeoutError:
        return Finding(part, "bad", f"no answer within {CHECK_S:.0f} s: check host, port and firewall")
    finally:
        await provider.close()
    return Finding(part, "ok", f"{said}; {promise}{events}")


def _events(app: App) -> Iterator[Finding]:
    """Whose events nobody can verify, though they would settle what is unknown. Who is asked instead need
    not call."""
    for name in app.settings.accounts:
        with contextlib.suppress(ConfigError):  # told of the account
            polled = app.settings.accounts[name].poll_spacing_s is not None
            if app.event_source(name) is None and app.provider(name).promise.echo and not polled:
                said = (
                    "what its provider calls back with is refused, so unknown sends do not settle by it: "
                    "write a secret, see Events in docs/providers.md"
                )
                yield Finding(f"account {name}", "note", said)


async def _transports(app: App) -> list[Finding]:
    """Each broker that is configured: reached, allowed, of the right kind."""
    return list(await asyncio.gather(*(_transport(one) for one in app.transports().values())))


async def _transport(transport: Transport) -> Finding:
    part = f"transport {transport.kind}"
    try:
        async with asyncio.timeout(CHECK_S):
            return Finding(part, "ok", await transport.check())
    except ConfigError as error:
        return Finding(part, "bad", str(error))
    except TimeoutError:
        return Finding(part, "bad", f"no answer within {CHECK_S:.0f} s: check url and firewall")
    finally:
        await transport.close()


def _kafka(app: App) -> Iterator[Finding]:
    """Whether the feed can be handed on where it is to go: for the tenants that have a table."""
    try:
        sink = app.kafka()
    except ConfigError as error:
        yield Finding("kafka", "bad", str(error))
        return
    if sink is None:
        return
    try:
        for tenant in app.settings.zones:
            yield Finding("kafka", "ok", sink.check(tenant))
    except (ConfigError, SinkUnavailable) as error:
        yield Finding("kafka", "bad", str(error))
    finally:
        sink.close()


def _bounces(app: App) -> list[Finding]:
    """Whether the mailbox that bounces come to can be read, and whether there is one where it is needed."""
    try:
        mailbox = app.mailbox()
        if mailbox is not None:
            return [Finding("bounces", "ok", mailbox.check())]
    except ConfigError as error:
        return [Finding("bounces", "bad", str(error))]
    except MailboxUnavailable as error:
        return [Finding("bounces", "bad", _MAILBOX.get(error.why, f"cannot be read ({error.why})"))]
    told = [name for name, account in app.settings.accounts.items() if account.options.get("return_path")]
    if not told:
        return []
    said = (
        f"{', '.join(told)} has a return_path, and nothing reads what comes there: write [bounces], or run "
        "`sendonce events import-mail`"
    )
    return [Finding("bounces", "note", said)]


_MAILBOX: Final = {
    "login": "the server refused the login: mend username and password of [bounces]",
    "folder": "the folder is not there: mend folder of [bounces]",
    "connect": "the server cannot be reached: mend imap and port of [bounces], or let the firewall pass it",
    "timeout": "the server does not answer: mend imap, port and security of [bounces]",
    "certificate": "the certificate does not hold for this server: mend imap, or name its ca_file",
    "tls": 'the server offers no TLS here: write security = "starttls" or "tls", or another port',
}


def _odd(settings: Settings) -> Iterator[tuple[str, str]]:
    """What is allowed and looks like a slip."""
    if not settings.recipients.allow and not settings.recipients.redirect:
        yield (
            "recipients",
            "anybody may be written to: right for production; on a copy of real data set allow = [...]",
        )
    for channel, address in settings.recipients.redirect.items():
        yield (
            "recipients",
            f"every {channel} goes to one address instead of the customer's ({_hint(address)})",
        )
    for account in settings.accounts.values():
        for text in _odd_limits(account):
            yield f"account {account.name}", text
    used = {name for route in settings.routes for name in route.accounts}
    for name in sorted(settings.accounts.keys() - used):
        yield f"account {name}", "no channel and no route uses it"


def _odd_limits(account: AccountSettings) -> Iterator[str]:
    limits = account.limits
    rates = [limit for limit in limits.limits if not limit.is_quota]
    fastest = min((_per_second(limit) for limit in rates), default=None)
    if fastest is None:
        yield "only a quota and no limit per second: a backlog would leave at once"
    elif fastest > 1_000:
        yield f"{fastest:,.0f} a second is more than most providers allow: is it per minute?"
    elif fastest / limits.lanes > 50:
        yield (
            f"{limits.lanes} lane(s) for {fastest:g} a second: each call would have to be answered within "
            f"{1000 * limits.lanes / fastest:.0f} ms, so lanes will be the limit"
        )
    if limits.headroom >= 0.5:
        yield f"headroom = {limits.headroom} leaves more than half of the limits unused"
    for limit in limits.limits:
        if fastest is not None and limit.is_quota and limit.count < fastest * 60:
            yield f"{limit.count} in {limit.interval_us // SECOND:,} s is spent within a minute at this rate"


def _per_second(limit: Limit) -> float:
    return limit.count * SECOND / limit.interval_us


def _hint(address: str) -> str:
    from sendonce.address import masked

    return masked("email" if "@" in address else "sms", address)


def _show_finding(screen: Screen, finding: Finding) -> None:
    mark, style = {"ok": ("✓", GOOD), "note": ("!", CARE), "bad": ("✗", BAD)}[finding.verdict]
    if not screen.out.is_terminal:
        mark = finding.verdict
    line = Text.assemble((f"{mark:<4}" if len(mark) > 1 else mark, style), f" {finding.part}: ", finding.text)
    screen.say(line)


# send-test


def send_test(
    shell: Shell,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="An email address or phone number.")],
    account: Annotated[
        str, typer.Option("--account", help="Through this account; otherwise as reminders go.")
    ] = "",
    category: Annotated[
        str, typer.Option("--category", help="Under its rules; otherwise one that may go out now.")
    ] = "",
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="How long to wait for the outcome.")
    ] = "60s",
) -> Exit:
    """Send one message to an address that is allowed, the way every reminder goes, and tell its story."""
    wait_s = parse_duration(wait, field="--wait")
    app = shell.app
    channel, to = _recipient(address, app.policy)
    name = _account_for(app, channel, account)
    # Decided for this process alone: the test takes this account, whatever the routes say.
    app.policy = replace(app.policy, routes=(Route(channel, name), *app.policy.routes))
    rules = _category_for(app.policy, category, shell.now)
    shell.screen.note(f"sending to {_hint(to)} through account {name}, under category {rules.name}")
    key = _admit(shell, channel, to, rules.name)
    delivery = _run_one(app, key, wait_s)
    return _show_test(shell, delivery)


def _recipient(text: str, policy: Policy) -> tuple[Channel, str]:
    from sendonce.address import normalise_email, normalise_phone
    from sendonce.pipeline.reach import may_reach

    channel = Channel.EMAIL if "@" in text else Channel.SMS
    policy.channel(channel)
    to = (
        normalise_email(text)
        if channel is Channel.EMAIL
        else normalise_phone(text, region=policy.phone_region)
    )
    if not may_reach(policy, channel, to):
        raise Refused(
            f"{text} may not be written to: add it to allow under [recipients], or name one that is there",
            code="recipient_not_allowed",
        )
    return channel, to


def _account_for(app: App, channel: Channel, name: str) -> str:
    if not name:
        return account_for(app.policy.routes, channel, DEFAULT_TENANT, app.policy.default_category)
    app.provider(name)
    carries = app.policy.accounts[name].channel
    if carries is not channel:
        raise InvalidInput(
            f"account {name} carries {carries}, and the address is for {channel}", field="--account"
        )
    return name


def _category_for(policy: Policy, name: str, now: int) -> CategoryPolicy:
    """As asked, else the first that needs no consent and has no quiet hours now, else the default."""
    if name:
        return policy.category(name)
    default = policy.category(policy.default_category)
    zone = policy.zone(DEFAULT_TENANT)
    for rules in (default, *policy.categories.values()):
        if rules.no_record is NoRecord.ALLOW and allowed_from(rules.quiet, zone, now) == now:
            return rules
    return default


def _show_why_not(shell: Shell, delivery: Delivery) -> None:
    """It waits: what for, what to do about it, and how to take it back."""
    from sendonce.pipeline.overview import overview
    from sendonce.pipeline.standstill import Word, closed_words

    account = delivery.course.account
    seen = shell.read(lambda tx: overview(tx, shell.policy))
    (view,) = [each for each in seen.accounts if each.name == account]
    resume = f"`sendonce accounts resume {account} --reason ...`"
    if view.gate.word is Word.PAUSED:
        why = f"account {account} is paused: {resume} lets it send"
    elif view.gate.why.startswith("account:"):
        why = f"{closed_words(view.gate.why)}: mend it, then {resume}"
    else:
        why = closed_words(view.gate.why) if view.gate.why else "it is tried again"
    shell.screen.say(
        f"not sent yet: {why}. It goes out while it is valid, where `sendonce up` runs; to take it back: "
        f"`sendonce cancel --delivery {delivery.key} --reason ...`",
        style=CARE,
    )


def _admit(shell: Shell, channel: Channel, to: str, category: str) -> str:
    from sendonce.client import Client
    from sendonce.core.reminder import Asked
    from sendonce.pipeline.templates import add_sources
    from sendonce.render import TemplateSource

    sources: Mapping[str, TemplateSource] = {
        "email": TemplateSource("email", subject=SUBJECT, text=TEXT),
        "sms": TemplateSource("sms", text=SMS),
    }
    add_sources(shell.store, TEST, sources, actor=shell.actor)
    now = datetime.fromtimestamp(shell.now / SECOND, UTC)
    asked = Asked(
        reminder=f"{TEST}/{now:%Y%m%dT%H%M%S.%fZ}",
        customer=TEST,
        due="now",
        template=TEST,
        email=to if channel is Channel.EMAIL else "",
        phone=to if channel is Channel.SMS else "",
        category=category,
        group=TEST,
        expires="15m",  # a test that comes tomorrow confuses
    )
    (result,) = Client.of(shell.app, actor=shell.actor).schedule([asked])
    if not result.ok:
        raise InvalidInput(result.why, field=result.field)
    return result.keys[0]


def _run_one(app: App, key: str, wait_s: float) -> Delivery:
    from sendonce.cli.single import send_one

    return asyncio.run(send_one(app, DEFAULT_TENANT, key, wait_s=wait_s))


def _show_test(shell: Shell, delivery: Delivery) -> Exit:
    from sendonce.pipeline.story import story as story_of

    standing, course = delivery.standing, delivery.course
    sent = standing.state is State.ACCEPTED
    shell.screen.document(
        {
            "key": delivery.key,
            "state": standing.state,
            "account": course.account,
            "receipt": course.receipt,
            "reason": course.reason,
            "attempts": course.attempts,
        }
    )
    (story,) = shell.read(lambda tx: story_of(tx, delivery.key, shell.policy))
    show_story(shell.screen, story)
    if standing.state is State.QUEUED:
        _show_why_not(shell, delivery)
    return Exit.OK if sent else Exit.PARTLY
