"""Who must not be written to, who said no, who said yes. What is recorded here is in force at once."""

from __future__ import annotations

from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.forms import Done, Notice
from sendonce.console.page import Page, link
from sendonce.core.consent import ANY_CATEGORY, Kind
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.pipeline import consent
from sendonce.ports.store import Row

LIMIT: Final = 100
_PLACE: Final = ("channel", "address_tag", "category", "kind")


def show(asked: Asked) -> Page:
    address, problem = asked.query.get("address", "").strip(), ""
    rows: list[Row] = []
    more: dict[str, str] = {}
    if address:
        try:
            known = consent.record_of({"address": address}, asked.policy, now=asked.now, tenant=asked.tenant)
            rows = consent.records_of(
                asked.store, tenant=asked.tenant, channel=known.channel, address=known.address
            )
        except InvalidInput as error:
            problem = str(error)
    else:
        place = {name: asked.query.get(name, "") for name in _PLACE}
        rows = asked.read(lambda tx: consent.page_of(tx, asked.tenant, place, LIMIT + 1))
        if len(rows) > LIMIT:
            more = {name: str(rows[LIMIT - 1][name]) for name in _PLACE}
            rows = rows[:LIMIT]
    categories = [ANY_CATEGORY, *sorted(asked.policy.categories)]
    return Page(
        "preferences.html",
        {
            "rows": rows,
            "more": more,
            "address": address,
            "problem": problem,
            "categories": categories,
            "kinds": [kind.value for kind in Kind],
        },
    )


def record(asked: Asked) -> Done:
    one = consent.record_of(
        {
            "address": asked.given("address"),
            "kind": asked.given("kind"),
            "category": asked.given("category"),
            "source": "console",
            "evidence": asked.given("reason"),
        },
        asked.policy,
        now=asked.now,
        tenant=asked.tenant,
    )
    if not one.evidence:
        raise InvalidInput("say how you know: a call, a ticket, a letter", field="reason")
    done = consent.record(asked.store, [one], policy=asked.policy, actor=asked.who.actor)
    taken = sum(done.counts.values())
    said = "It is recorded and in force." if done.new else "It was known already."
    if taken:
        said += f" {taken} open {'delivery was' if taken == 1 else 'deliveries were'} looked at for it."
    return Done(link("preferences"), Notice(said, tuple(map(str, done.answers[:10]))))


def remove(asked: Asked) -> Done:
    known = consent.record_of(
        {"address": asked.given("address"), "kind": asked.given("kind"), "category": asked.given("category")},
        asked.policy,
        now=asked.now,
        tenant=asked.tenant,
    )
    removed = consent.remove(
        asked.store,
        tenant=asked.tenant,
        channel=known.channel,
        address=known.address,
        category=known.category,
        kind=known.kind,
        reason=asked.given("reason"),
        actor=asked.who.actor,
    )
    if not removed:
        raise NotFound(f"no {known.kind} record of this address for category {known.category}")
    return Done(link("preferences"), Notice("The record is taken away. What it stopped stays stopped."))
