"""Who changed what, and why; and how far the ledger is sealed."""

from __future__ import annotations

import json
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.page import Page
from sendonce.pipeline.sealed import HowFar, how_far
from sendonce.ports.store import Row, Tx

LIMIT: Final = 100
NEWEST: Final = 2**62


def show(asked: Asked) -> Page:
    before = asked.whole("before", NEWEST)

    def look(tx: Tx) -> tuple[list[Row], HowFar]:
        return tx.rows("view_audit", before=before, limit=LIMIT + 1), how_far(tx)

    rows, far = asked.read(look)
    shown = rows[:LIMIT]
    return Page(
        "audit.html",
        {
            "rows": [(row, _details(str(row["body"]))) for row in shown],
            "before": int(shown[-1]["id"]) if len(rows) > LIMIT else None,
            "block": far.block,
            "signed": far.last is not None and bool(far.last.signature),
            "unsealed": far.unsealed,
            "unsealed_acts": far.unsealed_acts,
        },
    )


def _details(body: str) -> list[tuple[str, object]]:
    try:
        fields = json.loads(body)
    except ValueError:
        return []
    if not isinstance(fields, dict):
        return []
    return [(str(name), value) for name, value in fields.items() if value not in ("", None)]
