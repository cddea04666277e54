"""What the provider says later: delivered, bounced, complained, posted to the customer's URL.

A vendor's message is followed by what that vendor calls back with, signed as it signs (`callbacks`); any
other by a JSON event, signed as in the Standard Webhooks specification where a secret is set. There are no
retries: an event that could not be posted is noted and lost, which is what a receiver must expect anyway. For
who asks instead it is remembered besides, also where nobody is called or the call is lost.

Only loopback URLs are posted to, so that a sandbox fed with real data cannot call anybody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from sendonce.testing.sandbox.callbacks import VENDORS, Told, standard_signature, write
from sendonce.testing.sandbox.channel import Channel, Later
from sendonce.testing.sandbox.door import Effect
from sendonce.testing.sandbox.settings import SandboxSettings

POST_TIMEOUT_S = 5.0
POSTS_AT_ONCE_MAX = 64
ASKED = frozenset({"postmark", "sinch", "notify", "notify-email"})
"""Vendors whose API tells what became of a message."""
FORGERS_SECRET = "whsec_Zm9yZ2Vk"  # noqa: S105 (of nobody)

# What vendors keep for tests: resend.com/docs/dashboard/emails/send-test-emails, docs.aws.amazon.com/ses
# send-an-email-from-console (the mailbox simulator), postmarkapp.com generate-fake-bounces.
BOUNCING = re.compile(
    r"bounced(\+[^@]*)?@resend\.dev|(bounce|suppressionlist)(\+[^@]*)?@simulator\.amazonses\.com"
    r"|hard_?bounce@bounce-testing\.postmarkapp\.com",
    re.IGNORECASE,
)
SUPPRESSING = re.compile(r"suppressed(\+[^@]*)?@resend\.dev", re.IGNORECASE)
COMPLAINING = re.compile(
    r"complained(\+[^@]*)?@resend\.dev|complaint(\+[^@]*)?@simulator\.amazonses\.com", re.IGNORECASE
)


@dataclass(slots=True)
class Posted:
    """One event. `result`: the receiver's HTTP status, or why there was none."""

    at: int
    number: int
    kind: str
    url: str
    channel: str
    receipt: str
    marker: str
    happened_at: int
    forged: bool = False
    faulty: bool = False
    result: int | str = "waiting"


class EventPoster:
    """Posts later events; `took` is told of each effect."""

    def __init__(self, settings: SandboxSettings, *, now: Callable[[], int], later: Later) -> None:
        self._settings = settings
        self._now = now
        self._later = later
        self._posted: list[Posted] = []
        self._number = 0
        self._said: dict[str, list[tuple[int, Told]]] = {}  # by receipt: from when on it is said
        self._told_of: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._room = asyncio.Semaphore(POSTS_AT_ONCE_MAX)

    @property
    def posted_count(self) -> int:
        """Events that a receiver answered since the last reset."""
        return sum(isinstance(event.result, int) for event in self._posted)

    def posted_json(self) -> Iterator[dict[str, Any]]:
        for event in self._posted:
            yield {name: getattr(event, name) for name in Posted.__slots__}

    def forget(self) -> None:
        """Forget what was posted; events under way still are."""
        self._posted = []
        self._said, self._told_of = {}, {}

    def said_of(self, channel: Channel, effect: Effect) -> list[Told]:
        """What has been said of a message until now. Of one of the generic APIs that nobody is called about,
        it is decided when somebody asks first: a bench sends a million and asks about none."""
        if effect.receipt not in self._said and not effect.vendor:
            for kind in self._story(channel, effect):
                event = self._event(kind, "", effect)
                event.happened_at = effect.at
                self._remember(channel, event, effect)
        return [told for at, told in self._said.get(effect.receipt, ()) if at <= self._now()]

    def told_of(self, number: int) -> str:
        """The receipt that the event with this number is about; "" for no such event."""
        return self._told_of.get(number, "")

    def took(self, channel: Channel, effect: Effect) -> None:
        """A message took effect: plan what will be said of it."""
        url = effect.callback or self._settings.events_url.replace("{vendor}", effect.vendor or "generic")
        if not url and effect.vendor not in ASKED:
            return
        for kind in self._story(channel, effect):
            event = self._event(kind, url, effect)
            if effect.vendor in ASKED or not effect.vendor:
                self._remember(channel, event, effect)
            if not url or channel.strikes("events.lost"):
                continue
            times = 2 if channel.strikes("events.repeated") else 1
            event.forged = channel.strikes("events.forged")
            event.faulty = channel.strikes("events.faulty")
            for _ in range(times):
                self._later(channel.event_delay_s(), partial(self._start, event, effect))

    def _remember(self, channel: Channel, event: Posted, effect: Effect) -> None:
        at = event.happened_at + round(channel.event_delay_s() * 1_000_000)
        self._said.setdefault(effect.receipt, []).append((at, _told(event, effect)))
        self._told_of[event.number] = effect.receipt

    async def stop(self) -> None:
        """Give up what is under way, and post nothing more."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _story(self, channel: Channel, effect: Effect) -> list[str]:
        if channel.bounces(effect.to) or BOUNCING.fullmatch(effect.to):
            return ["bounced"]
        if SUPPRESSING.fullmatch(effect.to):
            return ["suppressed"]
        if COMPLAINING.fullmatch(effect.to):
            return ["delivered", "complained"]
        if channel.name == "sms" and channel.strikes("events.stopped"):
            return ["delivered", "stopped"]
        if channel.name == "email" and channel.strikes("events.complained"):
            return ["delivered", "complained"]
        return ["delivered"]

    def _event(self, kind: str, url: str, effect: Effect) -> Posted:
        self._number += 1
        now, about = self._now(), (effect.channel, effect.receipt, effect.marker)
        return Posted(now, self._number, kind, url, *about, happened_at=now)

    def _start(self, event: Posted, effect: Effect) -> None:
        if self._stopped:
            return
        posted = Posted(self._now(), *[getattr(event, name) for name in Posted.__slots__[1:]])
        self._posted.append(posted)
        task = asyncio.get_running_loop().create_task(self._post(posted, effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, event: Posted, effect: Effect) -> None:
        if not _is_loopback(event.url):
            event.result = "not posted: only http:// URLs on loopback are"
            return
        try:
            async with self._room, asyncio.timeout(POST_TIMEOUT_S):
                vendor = "twilio" if effect.account else effect.vendor
                if vendor in VENDORS:
                    event.result = await _post(event.url, *self._vendor(vendor, event, effect))
                else:
                    event.result = await _post(event.url, *self._generic(event, effect))
        except (OSError, EOFError, ValueError) as error:
            event.result = type(error).__name__

    def _vendor(self, vendor: str, event: Posted, effect: Effect) -> tuple[bytes, dict[str, str]]:
        settings = self._settings
        secret = settings.twilio_auth_token if vendor == "twilio" else settings.events_secret
        return write(vendor, _told(event, effect), FORGERS_SECRET if event.forged else secret, event.url)

    def _generic(self, event: Posted, effect: Effect) -> tuple[bytes, dict[str, str]]:
        identity = f"evt-{event.number:06d}"
        body = json.dumps(
            {
                "id": identity,
                "type": event.kind,
                "channel": event.channel,
                "message_id": effect.receipt,
                "reference": effect.reference,
                "to": effect.to,
                "at": datetime.fromtimestamp(event.at / 1_000_000, UTC).isoformat(),
            }
        ).encode()
        headers = {"Content-Type": "application/json"}
        if self._settings.events_secret:
            timestamp = str(event.at // 1_000_000)
            secret = FORGERS_SECRET if event.forged else self._settings.events_secret
            signature = standard_signature(secret, identity, timestamp, body)
            headers |= {
                "webhook-id": identity,
                "webhook-timestamp": timestamp,
                "webhook-signature": signature,
            }
        return body, headers


def _told(event: Posted, effect: Effect) -> Told:
    return Told(
        event.kind,
        event.number,
        event.happened_at,
        effect.receipt,
        effect.reference,
        effect.to,
        effect.sender,
        effect.account,
        faulty=event.faulty,
        signed_at=event.at,
    )


def _is_loopback(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.scheme != "http":
            return False
        return parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


async def _post(url: str, body: bytes, headers: dict[str, str]) -> int:
    """One POST on a connection of its own; returns the status of the answer."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    lines += [f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        status_line = await reader.readline()
        return int(status_line.split(b" ", 2)[1])
    except IndexError:
        raise EOFError from None
    finally:
        writer.close()
