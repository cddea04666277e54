"""Work that goes on by itself: starting it, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sendonce.console import batch
from sendonce.console.asked import Asked
from sendonce.console.batch import Kind, Progress, Tell
from sendonce.console.forms import Done, Notice
from sendonce.console.page import Page, link

EVERY_S: Final = 2


def started(asked: Asked, kind: Kind, work: Callable[[Progress, Tell], None]) -> Done:
    """Start it, and lead to it. Where one is running already, that one is the answer."""
    running = batch.start(asked.store, asked.tenant, asked.nonce, kind, asked.who.actor, work)
    where = link("work", id=running)
    if running != asked.nonce:
        said = "Somebody has begun already, so yours was not started: this is what is under way."
        return Done(where, Notice(said, good=False))
    return Done(where, Notice("It is under way."))


def show(asked: Asked) -> Page:
    id_ = asked.query.get("id", "")
    found = asked.read(lambda tx: batch.seen(tx, asked.tenant, id_)) if id_ else None
    running = found is not None and not found.ended
    return Page("work.html", {"work": found}, every_s=EVERY_S if running else 0)
