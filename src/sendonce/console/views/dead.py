"""Dead letters by what killed them; what was tried, what changed since; and a redrive at a pace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sendonce.console import batch
from sendonce.console.asked import Asked
from sendonce.console.batch import Kind, Progress, Tell
from sendonce.console.forms import Done
from sendonce.console.glance import glance
from sendonce.console.page import Page
from sendonce.console.views import work as work_page
from sendonce.core.duration import parse_duration
from sendonce.core.errors import InvalidInput
from sendonce.pipeline import redrive as stage
from sendonce.pipeline.chosen import Filter, meant
from sendonce.pipeline.redrive import Redrive, dead_letters, groups
from sendonce.pipeline.redrive import show as show_one
from sendonce.withdrawal import check_reason

LIMIT: Final = 50
KEYS_MAX: Final = 500
PER_S: Final = 5.0
_FILTERS: Final = ("channel", "account", "cause", "template", "group")


def show(asked: Asked) -> Page:
    """The groups; with a filter, the dead letters of it one by one."""
    chosen = {name: asked.query.get(name, "") for name in _FILTERS}
    if not any(chosen.values()):
        found = asked.read(lambda tx: groups(tx, tenant=asked.tenant))
        return Page("dead.html", {"groups": found, "total": sum(each.count for each in found)})
    state = asked.query.get("state", "")
    after = (state, asked.whole("at"), asked.whole("id")) if state in ("DEAD", "REJECTED") else None
    page = asked.read(lambda tx: dead_letters(tx, _filter(asked), limit=LIMIT, after=after))
    return Page("dead_list.html", {"chosen": chosen, "page": page, "per_s": PER_S})


def one(asked: Asked) -> Page:
    """One dead letter: each attempt, what has changed since, whether it may go again."""
    key = asked.query.get("key", "")
    letter = asked.read(lambda tx: show_one(tx, key, asked.policy, tenant=asked.tenant))
    return Page("dead_letter.html", {"letter": letter, "key": letter.delivery.key, "per_s": PER_S})


def preview(asked: Asked) -> Page:
    """What a redrive would do: how many go, how many do not, and why not. It changes nothing."""
    chosen = _checked(asked)
    per_s, extend, fresh = _options(asked.query)
    extend_s = parse_duration(extend, field="extend") if extend else 0.0
    done, more = glance(
        lambda look: stage.redrive(
            asked.store,
            chosen,
            asked.policy,
            reason="preview",
            actor=asked.who.actor,
            per_s=per_s,
            extend_s=extend_s,
            fresh=fresh,
            preview=True,
            progress=look,
        ),
        lambda seen: seen.seen,
    )
    return Page(
        "redrive.html",
        {
            "done": done,
            "more": more,
            "chosen": {name: asked.query.get(name, "") for name in _FILTERS},
            "keys": chosen.keys,
            "every": asked.query.get("all") == "yes",
            "per_s": per_s,
            "extend": extend,
            "fresh": fresh,
            "examples": done.examples[:10],
        },
    )


def redrive(asked: Asked) -> Done:
    """Start it. Where one is running already, that one is the answer."""
    given = {name: values[-1] for name, values in asked.form.items()}
    chosen = _checked(asked, form=True)
    per_s, extend, fresh = _options(given)
    reason = check_reason(asked.given("reason"))
    extend_s = parse_duration(extend, field="extend") if extend else 0.0
    store, policy, actor = asked.store, asked.policy, asked.who.actor

    def work(progress: Progress, note: Tell) -> None:
        def heard(done: Redrive) -> None:
            progress.done, progress.left = done.redriven, done.refused.total()
            progress.last_at = done.last_at
            progress.whys = done.refused.most_common(batch.WHYS_SHOWN)
            note(progress)

        done = stage.redrive(
            store,
            chosen,
            policy,
            reason=reason,
            actor=actor,
            per_s=per_s,
            extend_s=extend_s,
            fresh=fresh,
            progress=heard,
        )
        heard(done)

    return work_page.started(asked, Kind.REDRIVE, work)


def _filter(asked: Asked, *, form: bool = False) -> Filter:
    def given(name: str) -> str:
        return asked.given(name) if form else asked.query.get(name, "").strip()

    keys = asked.form.get("key", []) if form else asked.lists.get("key", [])
    if len(keys) > KEYS_MAX:
        raise InvalidInput(f"{len(keys)} chosen: choose at most {KEYS_MAX}, or the whole group", field="key")
    return Filter(
        tenant=asked.tenant,
        channel=given("channel"),
        account=given("account"),
        reason=given("cause"),
        template=given("template"),
        group=given("group"),
        keys=tuple(key for key in keys if key),
    )


def _checked(asked: Asked, *, form: bool = False) -> Filter:
    chosen = _filter(asked, form=form)
    every = (asked.given("all") if form else asked.query.get("all", "")) == "yes"
    return meant(chosen, everything=every, how="that all are meant")


def _options(given: Mapping[str, str]) -> tuple[float, str, bool]:
    """Pace, extension, and whether the content is made anew."""
    text = given.get("per_s", "").strip().replace(",", ".")
    try:
        per_s = float(text) if text else PER_S
    except ValueError:
        raise InvalidInput(
            f"pace {text!r:.40} is no number: so many a second, such as 5", field="per_s"
        ) from None
    return per_s, given.get("extend", "").strip(), given.get("fresh") == "yes"
