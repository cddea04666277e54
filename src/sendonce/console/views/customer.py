"""One customer: every reminder past and coming, consent with its evidence, and what may be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.forms import Done, Notice
from sendonce.console.page import Page, link
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import OPEN, UNSENT
from sendonce.pipeline import cancel as stage
from sendonce.pipeline.cancel import By, Cancellation, selected
from sendonce.pipeline.hand_in import edit
from sendonce.pipeline.intake import Verdict
from sendonce.pipeline.listing import Chosen, deliveries
from sendonce.ports.store import Delivery, Row, Tx
from sendonce.withdrawal import check_reason

LIMIT: Final = 100
ADDRESSES_MAX: Final = 10
ANSWERS_SHOWN: Final = 10


def show(asked: Asked) -> Page:
    customer = asked.query.get("id", "")
    before = asked.whole("before")

    def look(tx: Tx) -> tuple[tuple[Delivery, ...], tuple[int, ...] | None, list[Row]]:
        chosen = Chosen(asked.tenant, customer=customer)
        page = deliveries(tx, chosen, limit=LIMIT, after=(before,) if before else None)
        return page.found, page.after, _consent(tx, asked.tenant, page.found)

    found, after, consent = asked.read(look) if customer else ((), None, [])
    if not found and not before:
        raise NotFound(
            f"nothing is known of customer {customer!r:.200}: look for a key or an address instead"
        )
    coming = sorted(
        (each for each in found if each.standing.state in OPEN), key=lambda each: each.course.due_at
    )
    past = [each for each in found if each.standing.state not in OPEN]
    return Page(
        "customer.html",
        {
            "customer": customer,
            "coming": coming,
            "past": past,
            "unsent": UNSENT,
            "before": after[0] if after else None,
            "consent": consent,
        },
    )


def _consent(tx: Tx, tenant: str, found: tuple[Delivery, ...]) -> list[Row]:
    """What is recorded of the addresses that these deliveries go to."""
    addresses = list(dict.fromkeys((each.channel.value, each.address_tag) for each in found))
    rows: list[Row] = []
    for channel, tag in addresses[:ADDRESSES_MAX]:
        place: Mapping[str, str] = {"channel": channel, "address_tag": tag, "category": "", "kind": ""}
        page = tx.rows("preference_list", tenant=tenant, limit=50, **place)
        rows += [row for row in page if (row["channel"], row["address_tag"]) == (channel, tag)]
    return rows


def cancel(asked: Asked) -> Done:
    """Take back a delivery, a reminder, a group or all of a customer."""
    by, name = asked.given("by"), asked.given("name")
    names = {By(each): name if each == by else "" for each in By}
    done = stage.cancel(
        asked.store,
        selected(names, asked.tenant),
        policy=asked.policy,
        reason=asked.given("reason"),
        actor=asked.who.actor,
    )
    where = {
        By.CUSTOMER: link("customer", id=name),
        By.GROUP: link("group", name=name),
        By.IMPORT: link("find"),
    }.get(By(by), link("story", of=name))
    return Done(where, cancelled(done))


def cancelled(done: Cancellation) -> Notice:
    """A cancellation in words: what will not be sent, and what was too late."""
    counts = done.counts
    stopped = counts["cancelled"] + counts["suppressed"]
    doubtful = counts["cancel_pending"]
    parts = [f"{stopped} will not be sent"]
    if doubtful:
        parts.append(f"{doubtful} may already be on the way and will not be tried again")
    if counts["already_sent"]:
        parts.append(f"{counts['already_sent']} had been sent before")
    if counts["already_ended"]:
        parts.append(f"{counts['already_ended']} had ended before")
    details = tuple(str(each) for each in done.answers if each.changed)[:ANSWERS_SHOWN]
    return Notice(f"{'; '.join(parts)}.", details, good=not doubtful)


def correct(asked: Asked) -> Done:
    """Put a right address in the place of a wrong one, for a reminder that is still to come."""
    channel, address = asked.given("channel"), asked.given("address")
    field = {"email": "email", "sms": "phone"}.get(channel)
    if field is None or not address:
        raise InvalidInput("give the new address: an email address, or a phone number", field="address")
    reminder, customer, key = asked.given("reminder"), asked.given("customer"), asked.given("key")
    reason, target = check_reason(asked.given("reason")), f"{asked.tenant}/{key}"

    def audit(tx: Tx, verdict: Verdict) -> None:
        body: dict[str, Value] = {"channel": channel, "verdict": verdict.value}
        tx.runs.audit(asked.who.actor, "correct_address", target, reason, body)

    result = edit(
        asked.store,
        asked.console.app.book,
        asked.policy,
        reminder,
        {field: address},
        tenant=asked.tenant,
        actor=asked.who.actor,
        customer=customer,
        beside=audit,
    )
    where = link("story", of=key)
    if not result.ok:
        return Done(where, Notice(result.why or "It was not changed.", good=False))
    if not result.fields:
        return Done(where, Notice("It has that address already."))
    return Done(where, Notice("The address is corrected; nothing had been sent to the old one."))
