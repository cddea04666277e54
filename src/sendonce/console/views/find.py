"""One box: a reminder, a delivery key, a customer, an address or a receipt."""

from __future__ import annotations

from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.page import Page
from sendonce.pipeline.find import NEWEST, TEXT_LENGTH_MAX, find

LIMIT: Final = 50


def show(asked: Asked) -> Page:
    text = asked.query.get("q", "").strip()[:TEXT_LENGTH_MAX]
    if not text:
        return Page("find.html", {"text": "", "page": None, "customers": []})
    before = asked.whole("before", NEWEST)
    page = asked.read(
        lambda tx: find(
            tx,
            text,
            asked.policy,
            secret=asked.store.secret,
            tenant=asked.tenant,
            limit=LIMIT,
            before=before,
        )
    )
    customers = list(dict.fromkeys(each.delivery.customer for each in page.found))
    return Page("find.html", {"text": text, "page": page, "customers": customers[:5]})
