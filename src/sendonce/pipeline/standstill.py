"""Why nothing is leaving through an account: one sentence, the first thing to mend first.

Pure: the situation in, words out. The order of the cases is the order in which a person would have to
mend them: without a gate or a worker, no closed gate matters yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sendonce.core.duration import say_duration
from sendonce.pipeline.sentences import reason_words

PASS_LATE_S: Final = 300.0
"""Without a pass for so long, while something is due, nobody seems to run the scheduler."""


class Word(StrEnum):
    """A gate in one word."""

    OPEN = "open"
    CLOSED = "closed"
    PAUSED = "paused"
    PROBING = "probing"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides whether anything can leave through an account; see `why_nothing_leaves`.

    ready, waiting   queued deliveries that may go, and those that wait for an instant, the first one
                     `wakes_in_s` ahead
    due              due but unpublished deliveries of the account's channel
    doubtful         may have been sent: asked about, or uncertain
    sending          open calls, `lanes_of` may be open; `started` of them within the last minute
    held             the store is, until somebody releases it
    workers          living processes that serve the channel
    pass_age_s       since the last pass began; None: there was none
    left_s           how long the gate stays closed or paused; None: without an end
    """

    ready: int = 0
    waiting: int = 0
    wakes_in_s: float | None = None
    due: int = 0
    sending: int = 0
    doubtful: int = 0
    started: int = 0
    configured: bool = True
    held: bool = False
    workers: int = 1
    scheduler_paused: bool = False
    pass_age_s: float | None = 0.0
    channel_paused: bool = False
    gate: Word = Word.OPEN
    gate_why: str = ""
    left_s: float | None = 0.0
    lanes_of: int = 1


def why_nothing_leaves(at: Situation) -> str:
    """One sentence: what holds an account, the first thing to mend first; or that it flows."""
    left = at.ready + at.waiting + at.sending + at.doubtful
    if not at.configured and left:
        doubt = f", {at.doubtful} of which may have been sent" if at.doubtful else ""
        return f"the account is not configured any more, and {_count(left)} for it{doubt}: put it back"
    if not at.configured or not (at.ready or at.waiting or at.due or at.sending):
        return "nothing is due"
    if at.held:
        return "the store is held, since it may have lost what was written last: see `sendonce db released`"
    if at.gate is Word.MISSING:
        return "the account has no gate yet, and nothing is sent without one: start a process that knows it"
    if at.ready + at.waiting == 0 and at.sending == 0:
        return _why_unpublished(at)
    if not at.workers:
        return "no worker for this channel is alive: start `sendonce worker` or `sendonce up`"
    if at.gate is Word.PAUSED:
        return f"the account is paused{_end(at.left_s)}"
    if at.channel_paused:
        return "its channel is paused"
    if at.gate is Word.CLOSED:
        return f"{closed_words(at.gate_why)}{_end(at.left_s)}"
    if at.started and (at.ready or at.sending):
        return "it is leaving" if at.gate is Word.OPEN else "one call at a time is tried, until one succeeds"
    if at.sending >= at.lanes_of:
        lanes = "the one call that is tried" if at.gate is Word.PROBING else f"all {at.lanes_of} lanes"
        return f"{lanes} {'is' if at.lanes_of == 1 else 'are'} taken by open calls; the provider is slow"
    if not at.ready:
        if at.sending:
            return "everything that may go now is being sent"
        wakes = f", the first in {say_duration(at.wakes_in_s)}" if at.wakes_in_s else ""
        return f"{_count(at.waiting)} for a retry, quiet hours or a pause{wakes}"
    return "it may leave now: a worker takes it at its next look"


def _why_unpublished(at: Situation) -> str:
    if at.scheduler_paused:
        return f"the scheduler is paused, and {_count(at.due)} to be published"
    if at.pass_age_s is None:
        return (
            "the scheduler has never run: start `sendonce scheduler` or `sendonce up`, or run `sendonce pass`"
        )
    if at.pass_age_s > PASS_LATE_S:
        ago = say_duration(at.pass_age_s)
        return f"the scheduler passed last {ago} ago: start `sendonce scheduler`, or run `sendonce pass`"
    return f"{_count(at.due)} for the next pass of the scheduler"


def closed_words(why: str) -> str:
    """Why a gate is closed, in words."""
    kind, _, code = why.partition(":")
    match kind:
        case "throttled":
            return "the provider asked us to slow down"
        case "quota":
            return "the provider's quota is used up"
        case "breaker":
            return "the provider fails call after call and is left alone for a while"
        case "released":
            return "calls of before the release may still be open; resuming the account opens it at once"
        case "account":
            return f"the provider refuses our account ({reason_words(code)})"
        case _:
            return f"the gate is closed ({why})"


def _end(left_s: float | None) -> str:
    return "" if not left_s else f" for another {say_duration(left_s)}"


def _count(count: int) -> str:
    return f"{count} {'delivery waits' if count == 1 else 'deliveries wait'}"
