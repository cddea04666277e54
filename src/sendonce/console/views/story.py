"""The story of a reminder for whoever answers the telephone, and its acceptance ledger beside it.

The address is masked for everybody. Whoever may take a message back may have it shown, once, with a reason.
"""

from __future__ import annotations

from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.forms import Done, Notice
from sendonce.console.page import Page, link
from sendonce.core.lifecycle import OPEN, State
from sendonce.pipeline import hand_in
from sendonce.pipeline import unmask as stage
from sendonce.pipeline.redrive import DeadLetter
from sendonce.pipeline.redrive import show as dead_letter
from sendonce.pipeline.story import Record, Story, record
from sendonce.pipeline.story import story as stories_of
from sendonce.ports.store import Tx

EVERY_S: Final = 10
DEAD: Final = (State.DEAD, State.REJECTED)
AGAIN: Final = (State.ACCEPTED, State.ASSUMED_SENT, State.CANCELLED, State.EXPIRED, State.NOT_SENT)


def show(asked: Asked) -> Page:
    name = asked.query.get("of", "").strip()

    def look(tx: Tx) -> list[tuple[Story, Record, DeadLetter | None]]:
        return [_one(asked, tx, each) for each in stories_of(tx, name, asked.policy, tenant=asked.tenant)]

    found = asked.read(look)
    is_open = any(each.delivery.standing.state in OPEN for each, _, _ in found)
    return Page(
        "story.html",
        {"name": name, "found": found, "again": AGAIN, "open": OPEN},
        every_s=EVERY_S if is_open else 0,
        reloads=False,
    )


def _one(asked: Asked, tx: Tx, each: Story) -> tuple[Story, Record, DeadLetter | None]:
    key = each.delivery.key
    letter = None
    if each.delivery.standing.state in DEAD:
        letter = dead_letter(tx, key, asked.policy, tenant=asked.tenant)
    return each, record(tx, key, tenant=asked.tenant), letter


def unmask(asked: Asked) -> Done:
    key = asked.given("key")
    shown = stage.unmask(
        asked.store, key, tenant=asked.tenant, reason=asked.given("reason"), actor=asked.who.actor
    )
    return Done(
        link("story", of=shown.key),
        Notice("The address was shown to you, and the audit says so. It is not kept here."),
        secret=shown.address or "It was erased: nobody has it any more.",
    )


def again(asked: Asked) -> Done:
    """Send what has ended once more, as a new reminder that is linked to it."""
    result = hand_in.send_again(
        asked.store,
        asked.policy,
        asked.given("key"),
        tenant=asked.tenant,
        reason=asked.given("reason"),
        actor=asked.who.actor,
    )
    said = "It goes out again, as a new reminder." if result.ok and not result.why else result.why
    return Done(link("story", of=result.keys[0]), Notice(said, good=result.ok))
