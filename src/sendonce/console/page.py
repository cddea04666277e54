"""Pages: our own Jinja environment, which escapes everything, and what templates may call.

Templates of reminders are rendered elsewhere (`sendonce.render`), in a sandbox; nothing of theirs comes in
here except as text. Times are written in the zone of whose data it is, with UTC beside them for whoever
points at one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from sendonce.console import charts
from sendonce.core.duration import Rate, say_duration, say_number, write_rate
from sendonce.core.pacing import FOREVER, SECOND, GateLimits
from sendonce.pipeline.sentences import reason_words

ROOT: Final = "/console"
STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
NEVER: Final = 253_402_300_800 * SECOND
"""The end of the calendar: the year 10000."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a view answers: a template and its values.

    every_s  it refreshes itself so often, 0: never; without a script too, where `reloads`: a page with
             forms must not be taken from under somebody who writes in them
    """

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    every_s: int = 0
    reloads: bool = True


@dataclass(frozen=True, slots=True)
class Static:
    """A static file, as it is served. Its name holds its hash, so that a browser may keep it for ever."""

    path: str
    content: bytes
    media_type: str
    integrity: str


@cache
def statics() -> Mapping[str, Static]:
    """Static files by plain name."""
    found = {}
    for name, media_type in STATIC.items():
        content = files("sendonce.console").joinpath("static", name).read_bytes()
        digest = hashlib.sha384(content).digest()
        stem, _, ending = name.rpartition(".")
        path = f"{ROOT}/static/{stem}.{digest.hex()[:12]}.{ending}"
        found[name] = Static(path, content, media_type, f"sha384-{base64.b64encode(digest).decode()}")
    return found


def link(*parts: str, **query: object) -> str:
    """The path of a page of the console; parts are escaped, and so is what is asked."""
    path = "/".join([ROOT, *(quote(part, safe="") for part in parts)])
    asked = {name.rstrip("_"): value for name, value in query.items() if value not in ("", None, 0, False)}
    return f"{path}?{urlencode(asked)}" if asked else path


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("sendonce.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(link=link, charts=charts, root=ROOT, static=statics(), words=reason_words)
    made.filters.update(
        at=_at, day=_day, lasting=say_duration, number=_number, limits=_limits, share=_share, tone=tone
    )
    return made


def render(page: Page, **shared: Any) -> str:
    return environment().get_template(page.template).render({**shared, **page.values})


TONES: Final[Mapping[str, str]] = {
    "ACCEPTED": "good",
    "ASSUMED_SENT": "care",
    "UNCERTAIN": "care",
    "RECONCILING": "care",
    "DEAD": "bad",
    "REJECTED": "bad",
    "QUEUED": "busy",
    "SENDING": "busy",
    "open": "good",
    "closed": "bad",
    "paused": "care",
    "probing": "care",
    "missing": "bad",
    "valid": "good",
    "revoked": "quiet",
    "expired": "quiet",
    "suppressed": "bad",
    "opt_out": "bad",
    "opt_in": "good",
}
"""How a state looks. Its word always stands beside the colour."""


def tone(state: str) -> str:
    return TONES.get(str(state), "quiet")


@pass_context
def _at(context: Context, at: int, zone: str = "") -> Markup | str:
    """An instant (microseconds UTC) in the reader's zone; a dash for none."""
    if not at or not 0 < at < NEVER:
        return Markup('<span class="quiet">–</span>')
    utc = datetime.fromtimestamp(at // SECOND, UTC)
    local = utc.astimezone(ZoneInfo(zone or context["zone"]))
    said = f"{local:%-d %b %H:%M:%S}"
    if abs(context["now"] - at) > 300 * 86_400 * SECOND:
        said = f"{local:%-d %b %Y %H:%M}"
    title = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(f"{utc:%Y-%m-%dT%H:%M:%SZ}", title, said)


@pass_context
def _day(context: Context, at: int) -> str:
    local = datetime.fromtimestamp(at // SECOND, UTC).astimezone(ZoneInfo(context["zone"]))
    return f"{local:%Y-%m-%d}"


def _number(number: float | None) -> Markup:
    """A number for a column of numbers; a nought stands back."""
    if number is None:
        return Markup('<span class="quiet">–</span>')
    text = f"{number:,}" if isinstance(number, int) else say_number(number)
    return Markup('<span class="nought">{}</span>').format(text) if not number else escape(text)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def _limits(limits: GateLimits | None) -> str:
    if limits is None:
        return "none"
    rates = [
        write_rate(Rate(each.count, each.interval_us / SECOND, "parts" if each.parts else "requests"))
        for each in limits.limits
    ]
    return ", ".join(rates)


def endless(until: int) -> bool:
    return until >= FOREVER
