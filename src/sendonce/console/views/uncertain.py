"""What may have been sent and may not: a person decides, with a reason, and with open eyes for a resend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.batch import WHYS_SHOWN, Kind, Progress, Tell
from sendonce.console.forms import Done, Notice
from sendonce.console.glance import glance
from sendonce.console.page import Page, link
from sendonce.console.views.work import started
from sendonce.core.errors import InvalidInput, Refused
from sendonce.pipeline import resolve as stage
from sendonce.pipeline.chosen import Filter, meant
from sendonce.pipeline.resolve import DUPLICATE_RISK, Resolution, Uncertain, Word, uncertain
from sendonce.withdrawal import check_reason

LIMIT: Final = 50
ANSWERS_SHOWN: Final = 20
EXAMPLES_SHOWN: Final = 10
_FILTERS: Final = ("channel", "account", "cause", "template", "group")


def show(asked: Asked) -> Page:
    chosen = _chosen(asked.query)
    after = (asked.whole("at"), asked.whole("id")) if asked.query.get("id") else (-1, 0)
    page = asked.read(
        lambda tx: uncertain(
            tx,
            asked.policy,
            _filter(asked.tenant, chosen),
            limit=LIMIT,
            after=after,
        )
    )
    groups: dict[tuple[str, str, str], list[Uncertain]] = {}
    for each in page.found:
        course = each.delivery.course
        groups.setdefault((each.delivery.channel.value, course.account, course.reason), []).append(each)
    return Page(
        "uncertain.html",
        {
            "groups": groups,
            "count": len(page.found),
            "after": page.after,
            "chosen": chosen,
            "risk": DUPLICATE_RISK,
            "first": after == (-1, 0),
        },
    )


def resolve(asked: Asked) -> Done:
    """Decide the chosen ones."""
    keys = asked.given_all("key")
    if not keys:
        raise InvalidInput("nothing is chosen: tick at least one", field="key")
    word = _decided(asked)
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


def preview(asked: Asked) -> Page:
    """What a decision about all that fit would do. Before one is named there is only the choice."""
    chosen, every = _chosen(asked.query), asked.query.get("all", "") == "yes"
    fit = meant(_filter(asked.tenant, chosen), everything=every, how="that all are meant")
    given = asked.query.get("decision", "")
    done, more = _glance(asked, fit, _word(given)) if given else (None, False)
    return Page(
        "resolution.html",
        {
            "done": done,
            "more": more,
            "chosen": chosen,
            "every": every,
            "risk": DUPLICATE_RISK,
            "examples": done.examples[:EXAMPLES_SHOWN] if done is not None else [],
        },
    )


def _glance(asked: Asked, fit: Filter, word: Word) -> tuple[Resolution, bool]:
    return glance(
        lambda look: stage.resolve(
            asked.store,
            fit,
            word,
            asked.policy,
            reason="preview",
            actor=asked.who.actor,
            preview=True,
            progress=look,
        ),
        lambda seen: seen.seen,
    )


def resolve_all(asked: Asked) -> Done:
    """Decide all that fit. It goes on by itself; where something is running already, that is the answer."""
    given = {name: values[-1] for name, values in asked.form.items()}
    every = asked.given("all") == "yes"
    chosen = meant(_filter(asked.tenant, _chosen(given)), everything=every, how="that all are meant")
    word, reason = _decided(asked), check_reason(asked.given("reason"))
    store, policy, actor = asked.store, asked.policy, asked.who.actor

    def work(progress: Progress, note: Tell) -> None:
        def heard(done: Resolution) -> None:
            progress.done, progress.left = done.resolved, done.refused.total()
            progress.whys = done.refused.most_common(WHYS_SHOWN)
            note(progress)

        heard(stage.resolve(store, chosen, word, policy, reason=reason, actor=actor, progress=heard))

    return started(asked, Kind.RESOLVE, work)


def _chosen(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given.get(name, "").strip() for name in _FILTERS}


def _filter(tenant: str, chosen: Mapping[str, str]) -> Filter:
    return Filter(
        tenant=tenant,
        channel=chosen["channel"],
        account=chosen["account"],
        reason=chosen["cause"],
        template=chosen["template"],
        group=chosen["group"],
    )


def _decided(asked: Asked) -> Word:
    """What the form says; sending again only with open eyes."""
    word = _word(asked.given("decision"))
    if word is Word.RESEND and asked.given("twice") != "yes":
        raise Refused(f"{DUPLICATE_RISK} Tick that you know this; nothing was done.", code="duplicate_risk")
    return word


def _word(text: str) -> Word:
    try:
        return Word(text)
    except ValueError:
        raise InvalidInput("say what is true: sent, not sent, or send it again", field="decision") from None
