"""Who changed what, and why; and how far the ledger is sealed."""

from __future__ import annotations

import json
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.page import Page
from sendonce.core import seal
from sendonce.core.seal import Block
from sendonce.ports.store import Row, Tx

LIMIT: Final = 100
NEWEST: Final = 2**62


def show(asked: Asked) -> Page:
    before = asked.whole("before", NEWEST)

    def look(tx: Tx) -> tuple[list[Row], Block | None, str, int]:
        last = tx.seals.last()
        block = seal.read(last.header) if last is not None else None
        rows = tx.rows("view_audit", before=before, limit=LIMIT + 1)
        return rows, block, last.signature if last is not None else "", tx.seals.given()

    rows, block, signature, given = asked.read(look)
    shown = rows[:LIMIT]
    return Page(
        "audit.html",
        {
            "rows": [(row, _details(str(row["body"]))) for row in shown],
            "before": int(shown[-1]["id"]) if len(rows) > LIMIT else None,
            "block": block,
            "signed": bool(signature),
            "unsealed": max(0, given - block.upto) if block is not None else given,
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
