"""What may have been sent and may not: a person decides, with a reason, and with open eyes for a resend."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.forms import Done, Notice
from sendonce.console.page import Page, link
from sendonce.core.errors import InvalidInput, Refused
from sendonce.pipeline import resolve as stage
from sendonce.pipeline.chosen import Filter
from sendonce.pipeline.resolve import DUPLICATE_RISK, Uncertain, Word, uncertain

LIMIT: Final = 50
ANSWERS_SHOWN: Final = 20


def show(asked: Asked) -> Page:
    channel, account = asked.query.get("channel", ""), asked.query.get("account", "")
    after = (asked.whole("at"), asked.whole("id")) if asked.query.get("id") else (-1, 0)
    page = asked.read(
        lambda tx: uncertain(
            tx,
            asked.policy,
            Filter(tenant=asked.tenant, channel=channel, account=account),
            limit=LIMIT,
            after=after,
        )
    )
    groups: dict[tuple[str, str, str], list[Uncertain]] = {}
    for each in page.found:
        course = each.delivery.course
        groups.setdefault((each.delivery.channel.value, course.account, each.evidence), []).append(each)
    return Page(
        "uncertain.html",
        {
            "groups": groups,
            "count": len(page.found),
            "after": page.after,
            "channel": channel,
            "account": account,
            "risk": DUPLICATE_RISK,
            "first": after == (-1, 0),
        },
    )


def resolve(asked: Asked) -> Done:
    """Decide the chosen ones."""
    keys = asked.given_all("key")
    if not keys:
        raise InvalidInput("nothing is chosen: tick at least one", field="key")
    try:
        word = Word(asked.given("decision"))
    except ValueError:
        raise InvalidInput("say what is true: sent, not sent, or send it again", field="decision") from None
    if word is Word.RESEND and asked.given("twice") != "yes":
        raise Refused(f"{DUPLICATE_RISK} Tick that you know this; nothing was done.", code="duplicate_risk")
    decided = stage.resolve(
        asked.store,
        Filter(tenant=asked.tenant, keys=tuple(keys)),
        word,
        asked.policy,
        reason=asked.given("reason"),
        actor=asked.who.actor,
        receipt=asked.given("receipt"),
    )
    done = Counter(answer.state for answer in decided.answers if answer.done)
    refused = [f"{key}: {why}" for key, why in decided.examples]
    said = ", ".join(f"{count} now {state}" for state, count in done.items()) or "None was decided"
    if refused:
        said += f"; {decided.refused.total()} refused"
    return Done(link("uncertain"), Notice(f"{said}.", refused[:ANSWERS_SHOWN], good=not refused))
