"""Accounts with their limits; pausing and resuming what can be paused."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sendonce.console.asked import Asked
from sendonce.console.batch import Kind, Progress, Tell
from sendonce.console.forms import Done, Notice
from sendonce.console.glance import glance
from sendonce.console.page import Page, endless, link
from sendonce.console.views import overview
from sendonce.console.views.work import started
from sendonce.core.access import Scope
from sendonce.core.duration import parse_duration, parse_rate
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.pacing import SECOND, Limit
from sendonce.pipeline import pause as stage
from sendonce.pipeline.failover import LEFT, Rerouted, check_partners, partners, reroute
from sendonce.pipeline.pause import Scope as What
from sendonce.pipeline.pause import Target, target_of
from sendonce.preparation import due_of
from sendonce.withdrawal import check_reason

_CHOSEN: Final = ("group", "category")


def show(asked: Asked) -> Page:
    seen = overview.fresh(asked)
    pauses = [each for each in seen.pauses if each.scope != What.GROUP]
    return Page(
        "accounts.html",
        {"seen": seen, "pauses": pauses, "endless": endless},
        every_s=overview.EVERY_S,
    )


def one(asked: Asked) -> Page:
    name = asked.query.get("name", "")
    seen = overview.fresh(asked)
    for each in seen.accounts:
        if each.name == name:
            paused = [p for p in seen.pauses if p.scope == What.ACCOUNT and p.name == name]
            return Page(
                "account.html",
                {
                    "account": each,
                    "pause": paused[0] if paused else None,
                    "endless": endless,
                    "partners": sorted(partners(asked.policy, name)),
                },
            )
    raise NotFound(f"no account {name!r:.80} is known")


def pause(asked: Asked) -> Done:
    target = _target(asked)
    until = asked.given("until")
    ends = due_of(until, "", asked.zone, asked.now)[0].at if until else None
    done = stage.pause(
        asked.store, target, asked.policy, reason=asked.given("reason"), actor=asked.who.actor, until=ends
    )
    overview.forget(asked)
    held = f" It holds {done.held} open deliveries." if done.held is not None else ""
    end = "until its end" if done.until else "until somebody resumes it"
    return Done(_where(target), Notice(f"{_said(target)} is paused {end}.{held}"))


def resume(asked: Asked) -> Done:
    target = _target(asked)
    over = asked.given("over")
    done = stage.resume(
        asked.store,
        target,
        asked.policy,
        reason=asked.given("reason"),
        actor=asked.who.actor,
        reopen=asked.given("reopen") == "yes",
        over_s=parse_duration(over, field="over") if over else 0.0,
    )
    overview.forget(asked)
    if not done.was_paused and not done.opened:
        return Done(_where(target), Notice(f"{_said(target)} was not paused."))
    details = []
    if done.woken:
        details.append(f"{done.woken} are looked at again now")
    if done.spread:
        details.append(f"{done.spread} go over the span that was asked for")
    if done.opened:
        details.append(f"its gate had been closed ({done.opened}) and is open now")
    return Done(_where(target), Notice(f"{_said(target)} goes on.", details))


def limits(asked: Asked) -> Done:
    name = asked.given("name")
    gates = asked.read(lambda tx: {gate.account: gate.limits for gate in tx.gates.all()})
    if name not in gates:
        raise NotFound(f"no account {name!r:.80} is known")
    now = gates[name]
    rates = [text.strip() for text in asked.given("limits").split(",") if text.strip()]
    lanes, headroom = asked.given("lanes"), asked.given("headroom")
    wanted = replace(
        now,
        limits=tuple(_limit(text) for text in rates) or now.limits,
        lanes=_whole(lanes) if lanes else now.lanes,
        headroom=_fraction(headroom) if headroom else now.headroom,
    )
    stage.change_limits(asked.store, name, wanted, reason=asked.given("reason"), actor=asked.who.actor)
    overview.forget(asked)
    said = f"The limits of {name} are changed for all processes, until its configuration changes."
    return Done(link("account", name=name), Notice(said))


def preview(asked: Asked) -> Page:
    """What would go to another account, what stays and why. It changes nothing."""
    source, target = asked.query.get("name", ""), asked.query.get("to", "")
    chosen = {name: asked.query.get(name, "").strip() for name in _CHOSEN}
    done, more = glance(
        lambda look: reroute(
            asked.store,
            asked.policy,
            source,
            target,
            reason="preview",
            actor=asked.who.actor,
            preview=True,
            progress=look,
            group=chosen["group"],
            category=chosen["category"],
        ),
        lambda seen: seen.looked,
    )
    values = {"done": done, "more": more, "chosen": chosen, "whys": _whys(done)}
    return Page("move.html", values)


def move(asked: Asked) -> Done:
    """Start it. What is not allowed is said before."""
    source, target, reason = asked.given("name"), asked.given("to"), check_reason(asked.given("reason"))
    chosen = {name: asked.given(name) for name in _CHOSEN}
    store, policy, actor = asked.store, asked.policy, asked.who.actor
    check_partners(policy, source, target)

    def work(progress: Progress, note: Tell) -> None:
        def heard(done: Rerouted) -> None:
            progress.done, progress.left, progress.whys = done.moved, done.left.total(), _whys(done)
            note(progress)

        done = reroute(
            store,
            policy,
            source,
            target,
            reason=reason,
            actor=actor,
            progress=heard,
            group=chosen["group"],
            category=chosen["category"],
        )
        heard(done)

    overview.forget(asked)
    return started(asked, Kind.MOVE, work)


def _whys(done: Rerouted) -> list[tuple[str, int]]:
    return [(LEFT[code], count) for code, count in done.left.most_common()]


def _target(asked: Asked) -> Target:
    """What is meant. A group is its tenant's; everything else is the whole installation's."""
    target = target_of(asked.given("what"), asked.given("name"), asked.tenant)
    if target.scope is not What.GROUP:
        asked.needs(Scope.ADMIN)
    return target


def _where(target: Target) -> str:
    match target.scope:
        case What.GROUP:
            return link("group", name=target.name)
        case What.ACCOUNT:
            return link("account", name=target.name)
        case _:
            return link("accounts")


def _said(target: Target) -> str:
    text = str(target)
    return text[:1].upper() + text[1:]


def _limit(text: str) -> Limit:
    rate = parse_rate(text, field="limits")
    return Limit(rate.count, round(rate.interval_s * SECOND), rate.unit == "parts")


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise InvalidInput(f"{text!r:.40} lanes: write a whole number", field="lanes")
    return int(text)


def _fraction(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise InvalidInput(
            f"headroom {text!r:.40} is no number: 0.2 leaves a fifth", field="headroom"
        ) from None
