"""Draw `docs/lifecycle.md` from the table that the product runs.

    python tools/draw_lifecycle.py

The page holds a diagram and every rule in words. Nothing of it is typed twice: states and effects come
from `sendonce.core.lifecycle`, and what each state, event and guard means is said here once, by name, so
that a new one without a meaning is an error and not a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sendonce.core.lifecycle import ENDED, OPEN, SAYS_NOT_SENT, TABLE, UNSENT, Event, Guard, Rule, State

PAGE = Path(__file__).parents[1] / "docs/lifecycle.md"

STATES = {
    State.SCHEDULED: "Known, not due yet. Its content may still change.",
    State.QUEUED: "Published: content frozen, waiting for a worker or for its next try.",
    State.SENDING: "A worker holds it. The intent to send is on disk before the first byte leaves.",
    State.RECONCILING: "It may be sent. The provider is being asked.",
    State.UNCERTAIN: "It may be sent, and nobody can tell by itself. Evidence, a policy or a person decides.",
    State.ACCEPTED: "The provider took it. What it says later (delivered, bounced) is kept beside.",
    State.REJECTED: "The provider refused it for good, or it makes no message. Nothing was sent.",
    State.DEAD: "Every attempt failed. Nothing was sent.",
    State.CANCELLED: "Taken back before anything was sent.",
    State.SUPPRESSED: "Stopped by an opt-out or a suppression before anything was sent.",
    State.EXPIRED: "Its time was over before anything was sent.",
    State.ASSUMED_SENT: "A person's or a policy's word, not ours.",
    State.NOT_SENT: "A person's word, not ours.",
}

EVENTS = {
    Event.DEFERRED: "the scheduler or a claim puts it off: night, pause, catch-up",
    Event.REROUTED: "it goes to another account, since its own is held, or by a person's word",
    Event.REVISED: "the caller changes it",
    Event.PUBLISHED: "the scheduler finds it due and allowed",
    Event.UNRENDERABLE: "it makes no message: its data do not fit, its text is damaged, no quota is so large",
    Event.CLAIMED: "a worker claims it",
    Event.RELEASED: "the worker never started the call",
    Event.ACCEPTED: "the provider took it",
    Event.THROTTLED: "the provider asks for a slower pace",
    Event.HELD: "our account is at fault, not the recipient",
    Event.FAILED: "the call provably did not succeed",
    Event.REJECTED: "the provider refuses it for good",
    Event.UNKNOWN: "no complete answer, or the worker is gone",
    Event.KEY_DIED: "the provider may forget the key",
    Event.CANCELLED: "somebody cancels it",
    Event.SUPPRESSED: "an opt-out or a suppression",
    Event.EXPIRED: "its expiry has passed",
    Event.PROVEN: "evidence that it was sent: a look-up, a late answer, an event",
    Event.ABSENT: "the look-up finds nothing",
    Event.UNRESOLVED: "no answer from the look-up until the expiry",
    Event.PERMITTED: "one more attempt, though it may become a duplicate",
    Event.ASSUMED_SENT: "a person or a policy calls it sent",
    Event.NOT_SENT: "a person calls it not sent",
    Event.RESTORED: "an undone import is imported again",
    Event.REDRIVEN: "a person sends a dead letter on its way again",
    Event.DOUBTED: "the store may have lost an attempt: a failover, or a backup that was restored",
}

GUARDS = {
    Guard.NOT_MAYBE: "no earlier attempt may have reached the provider",
    Guard.MAYBE: "an earlier attempt may have reached the provider",
    Guard.RETRIABLE: "not `maybe`; or the key still absorbs a second call; or a permit was given",
    Guard.KEY_ALIVE: "the provider honours the key, with a margin",
    Guard.KEY_DEAD: "`maybe`, the key is past its margin, and there is no permit",
    Guard.LOOKUP: "the provider can be asked by our reference",
    Guard.BUDGET: "fewer failures (or throttles) than allowed",
    Guard.NOT_EXPIRED: "before its expiry",
    Guard.EXPIRED: "at or past its expiry",
    Guard.SETTLED: "asked after the last call can no longer arrive, nor be missing from the look-up",
    Guard.NO_ENDING: "nobody has cancelled or opted out meanwhile",
    Guard.CANCEL: "a cancel came while it was in doubt or under way",
    Guard.OPT_OUT: "an opt-out came while it was in doubt or under way",
}


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page, as it must stand in `docs/`."""
    return "\n".join(
        (
            "<!-- Drawn by tools/draw_lifecycle.py from the table in sendonce/core/lifecycle.py. -->",
            "",
            "# The life of a delivery",
            "",
            "One table moves every delivery; nothing else writes a state. For an event, the first rule whose",
            "state and guards fit wins; where none fits, the request is refused with a reason. Each move and",
            "its ledger entry are one write.",
            "",
            "`maybe` is the mark that carries the promise: an earlier attempt may have reached the provider.",
            'Only a believable "absent" clears it. While it stands, a delivery cannot be called cancelled,',
            "suppressed, expired, rejected or dead.",
            "",
            "`sendonce.testing.model` walks this table through every order of crashes, losses, requests and",
            "clocks that three claims allow; the tests fail on the first order that breaks a promise.",
            "",
            "```mermaid",
            *diagram(),
            "```",
            "",
            "## States",
            "",
            *table(("State", "", "Meaning"), ((f"`{s}`", _kind(s), STATES[s]) for s in State)),
            "",
            "## Rules",
            "",
            "In the order in which they are tried, event by event.",
            "",
            *table(("When", "in", "if", "then", "and"), (_row(rule) for rule in TABLE)),
            "",
            "## Guards",
            "",
            *table(("Guard", "Holds when"), ((str(guard), GUARDS[guard]) for guard in Guard)),
            "",
        )
    )


def diagram() -> list[str]:
    """The moves, one arrow for each pair of states. Evidence leads from everywhere to ACCEPTED: left out."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for rule in TABLE:
        for source in sorted(rule.sources, key=list(State).index):
            if rule.to in (None, source) or (rule.event is Event.PROVEN and source in ENDED):
                continue
            assert rule.to is not None
            events = arrows.setdefault((source, rule.to), [])
            if rule.event.value not in events:
                events.append(rule.event.value)
    return [
        "stateDiagram-v2",
        f"    [*] --> {State.SCHEDULED}",
        *(f"    {source} --> {to}: {', '.join(events)}" for (source, to), events in arrows.items()),
        *(f"    {state} --> [*]" for state in State if state in ENDED),
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]


def _row(rule: Rule) -> tuple[str, str, str, str, str]:
    return (
        f"**{rule.event}**: {EVENTS[rule.event]}",
        _sources(rule.sources),
        ", ".join(rule.guards) or "always",
        f"`{rule.to}`" if rule.to else "stays",
        ", ".join(rule.effects),
    )


def _sources(sources: frozenset[State]) -> str:
    if sources == SAYS_NOT_SENT:
        return "every state that says not sent"
    names = [f"`{state}`" for state in State if state in sources]
    return ", ".join(names)


def _kind(state: State) -> str:
    if state in UNSENT:
        return "open, unsent"
    return "open" if state in OPEN else "ended"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
