"""Templates: every version, what it says, how it looks with data, and what a text message of it costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.page import Page
from sendonce.core.errors import InvalidInput
from sendonce.pipeline import templates
from sendonce.pipeline.templates import Preview

LIMIT: Final = 50
DATA_LENGTH_MAX: Final = 4_000


def show(asked: Asked) -> Page:
    after = (asked.query.get("name", ""), asked.whole("version"))
    rows, beyond = asked.read(
        lambda tx: templates.versions(tx, tenant=asked.tenant, limit=LIMIT, after=after)
    )
    versions: dict[tuple[str, int], list[str]] = {}
    added: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (str(row["name"]), int(row["version"]))
        versions.setdefault(key, []).append(str(row["channel"]))
        added[key] = int(row["added_at"])
    return Page("templates.html", {"versions": versions, "added": added, "beyond": beyond})


def one(asked: Asked) -> Page:
    name, version = asked.query.get("name", ""), asked.whole("version")
    text = asked.query.get("data", "")
    parts = templates.show(asked.store, name, version, tenant=asked.tenant)
    problem, made = "", list[Preview]()
    if text.strip():
        try:
            made = templates.preview(
                asked.store,
                name,
                _data(text),
                version=parts[0].version,
                timezone=asked.zone,
                tenant=asked.tenant,
            )
        except InvalidInput as error:
            problem = str(error)
    return Page(
        "template.html",
        {"name": name, "parts": parts, "made": made, "problem": problem, "data": text},
    )


def _data(text: str) -> Mapping[str, object]:
    if len(text) > DATA_LENGTH_MAX:
        raise InvalidInput(f"data has {len(text)} characters: use at most {DATA_LENGTH_MAX}", field="data")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InvalidInput('data must be an object, such as {"name": "Ann"}', field="data")
    return data
