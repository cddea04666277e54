"""`feed`: what became of deliveries, in order, for a script that hands it on."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sendonce.cli.exits import Exit
from sendonce.cli.screen import QUIET, instant, when
from sendonce.cli.shell import DEFAULT_TENANT, Shell, TenantOption, command
from sendonce.core.due import parse_due
from sendonce.core.errors import InvalidInput

if TYPE_CHECKING:
    from sendonce.pipeline.feed import Page, Told

LOOK_S: Final = 0.5
PATIENCE_S: Final = 2.0
"""For so long a stretch is asked about in which somebody is writing just now."""
PAGE: Final = 1_000


def add_to(app: typer.Typer) -> None:
    command(app, rich_help_panel="Ask")(feed)


def feed(
    shell: Shell,
    after: Annotated[str, typer.Option("--after", help="The cursor to go on from.")] = "",
    since: Annotated[str, typer.Option("--since", help="Without one: from about this time on.")] = "",
    limit: Annotated[int, typer.Option("--limit", help="How many at most.", min=1)] = PAGE,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as they come, until stopped.")] = False,
    tenant: TenantOption = DEFAULT_TENANT,
) -> Exit:
    """What became of deliveries, in order and at least once: for a script that hands it on."""
    if after and since:
        raise InvalidInput("--since begins without a cursor: leave one of them out", field="since")
    begin = parse_due(since, zone=shell.policy.zone(tenant), field="--since").at if since else 0
    source = shell.app.feed

    def page(cursor: str, most: int) -> Page:
        return source.page(tenant=tenant, after=cursor, since=0 if cursor else begin, limit=min(most, PAGE))

    found: list[Told] = []
    cursor, until = after, time.monotonic() + PATIENCE_S
    while follow or len(found) < limit:
        part = page(cursor, PAGE if follow else limit - len(found))
        if follow:
            _stream(shell, part)
        else:
            found += part.told
        if part.told:
            until = time.monotonic() + PATIENCE_S
        elif follow:
            time.sleep(LOOK_S)
        elif not part.more or (part.cursor == cursor and time.monotonic() >= until):
            cursor = part.cursor
            break
        cursor = part.cursor
        if not part.more and not follow:
            break
    _show(shell, found, cursor)
    return Exit.OK


def _show(shell: Shell, found: list[Told], cursor: str) -> None:
    screen = shell.screen
    screen.document({"events": [_document(each) for each in found], "cursor": cursor})
    if found:
        screen.table(
            ("at", "delivery", "event", "state", "reason", "receipt"),
            [
                (
                    when(each.at),
                    each.delivery,
                    each.event,
                    each.state,
                    each.reason or "-",
                    each.receipt or "-",
                )
                for each in found
            ],
        )
    else:
        screen.say("nothing has ended behind that")
    screen.say(f"go on with: sendonce feed --after {cursor}", style=QUIET)


def _stream(shell: Shell, page: Page) -> None:
    for each in page.told:
        shell.screen.line({**_document(each), "cursor": page.cursor})
        shell.screen.say(f"{when(each.at)} {each.delivery} {each.event}: {each.state} {each.reason}".rstrip())


def _document(each: Told) -> dict[str, object]:
    return {**dataclasses.asdict(each), "at": instant(each.at)}
