"""A group: one loan, a campaign or an import; how far it is, and holding it back as a whole."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.page import Page
from sendonce.core.errors import NotFound
from sendonce.pipeline.listing import Chosen, deliveries
from sendonce.pipeline.listing import Page as Listed
from sendonce.ports.store import Pause, Row, Tx

LIMIT: Final = 100
OPEN_COUNT_MAX: Final = 10_000
COUNTED: Final = 500
EVERY_S: Final = 10


def show(asked: Asked) -> Page:
    name = asked.query.get("name", "").strip()
    before = asked.whole("before")
    if not name:
        return Page("group.html", {"name": "", "pauses": _paused(asked)})

    def look(tx: Tx) -> tuple[Listed, Listed, list[Row], list[Pause]]:
        chosen = Chosen(asked.tenant, group=name)
        head = deliveries(tx, chosen, limit=COUNTED)
        page = deliveries(tx, chosen, limit=LIMIT, after=(before,) if before else None)
        still = tx.rows("view_group_open", tenant=asked.tenant, group=name, limit=OPEN_COUNT_MAX)
        return head, page, still, tx.runs.pauses()

    head, page, still, pauses = asked.read(look)
    if not head.found:
        raise NotFound(f"nothing is known of a group {name!r:.200}: check its name")
    own = [
        each
        for each in pauses
        if each.scope == "group" and each.name == f"{asked.tenant}/{name}" and each.until > asked.now
    ]
    states = Counter(each.standing.state.value for each in head.found)
    return Page(
        "group.html",
        {
            "name": name,
            "states": states.most_common(),
            "counted": len(head.found),
            "more": head.after is not None,
            "still": int(still[0]["count"]),
            "most": OPEN_COUNT_MAX,
            "found": page.found,
            "before": page.after[0] if page.after else None,
            "pause": own[0] if own else None,
            "pauses": [],
        },
        every_s=EVERY_S if still and int(still[0]["count"]) else 0,
        reloads=False,
    )


def _paused(asked: Asked) -> list[Pause]:
    own = f"{asked.tenant}/"
    pauses = asked.read(lambda tx: tx.runs.pauses())
    return [
        each
        for each in pauses
        if each.scope == "group" and each.name.startswith(own) and each.until > asked.now
    ]
