"""Counting at the provider's own door: what arrived, what took effect, what was answered.

A *call* is one request to send, from its first byte to its answer or to the client's leaving. An
*effect* is a message that the provider really took. Effects are told apart by a **marker inside the
message's content**, never by a key, a header or a receipt, so that a sender which believes its own
book-keeping cannot hide a duplicate from its test.

Times are whole microseconds UTC, taken from a clock that never steps. All is kept in memory.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

NAMED_DUPLICATES_MAX = 50


class Answer(StrEnum):
    """How a call ended, seen from the door."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"  # a known key: the first receipt again, no new effect
    THROTTLED_RATE = "throttled_rate"
    THROTTLED_QUOTA = "throttled_quota"
    THROTTLED_CONCURRENCY = "throttled_concurrency"
    THROTTLED_SCRIPT = "throttled_script"
    UNAUTHORIZED = "unauthorized"
    MALFORMED = "malformed"  # not a request that the API can read
    REFUSED = "refused"  # a recipient or a sender
    KEY_IN_FLIGHT = "key_in_flight"
    KEY_MISMATCH = "key_mismatch"
    CUT_EARLY = "cut_early"
    LOST_BEFORE = "lost_before"
    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"
    LOST_AFTER = "lost_after"
    TRUNCATED = "truncated"
    HUNG = "hung"
    GONE = "gone"  # the client left before the answer
    ABANDONED = "abandoned"  # SMTP: a transaction that was reset or never reached its final dot


THROTTLED = (
    Answer.THROTTLED_RATE,
    Answer.THROTTLED_QUOTA,
    Answer.THROTTLED_CONCURRENCY,
    Answer.THROTTLED_SCRIPT,
)
LOST_RESPONSES = (Answer.LOST_AFTER, Answer.TRUNCATED, Answer.HUNG)
LOST_REQUESTS = (Answer.CUT_EARLY, Answer.LOST_BEFORE)


class Effect(NamedTuple):
    """One message that the provider took. `marker` is "" where the content has none."""

    at: int
    channel: str
    marker: str
    to: str
    sender: str
    text: str
    reference: str
    key: str
    receipt: str
    callback: str
    account: str = ""
    vendor: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "channel": self.channel,
            "marker": self.marker,
            "to": self.to,
            "from": self.sender,
            "reference": self.reference,
            "key": self.key,
            "receipt": self.receipt,
        }


class Door:
    """The counts of one channel since the last reset."""

    def __init__(self, channel: str, marker: str, *, in_flight: int = 0) -> None:
        self.channel = channel
        self.effects: list[Effect] = []
        self.lookups = 0
        self.replays = 0
        self._marker = re.compile(marker)
        self._started = array("q")
        self._ended = array("q")  # 0 while open
        self._admitted = bytearray()
        self._answers: list[Answer | None] = []
        self._index = _Index()
        self._open = in_flight
        self._most_open = in_flight

    @property
    def in_flight(self) -> int:
        """Calls that are open now."""
        return self._open

    def call_started(self, at: int) -> int:
        """A call begins; returns its number. `at` never goes back."""
        self._started.append(at)
        self._ended.append(0)
        self._admitted.append(0)
        self._answers.append(None)
        self._open += 1
        if self._open > self._most_open:
            self._most_open = self._open
        return len(self._answers) - 1

    def call_admitted(self, number: int) -> None:
        """The call passed the limits."""
        self._admitted[number] = 1

    def call_ended(self, number: int, answer: Answer, at: int) -> None:
        self._ended[number] = at
        self._answers[number] = answer
        self._open -= 1

    def older_call_ended(self) -> None:
        """A call ends that began before the last reset: it only makes room."""
        self._open -= 1

    def marker_in(self, contents: Sequence[str]) -> str:
        """The first marker in the contents, in their order; "" where there is none."""
        for content in contents:
            found = self._marker.search(content)
            if found is not None:
                return found.group(1 if self._marker.groups else 0) or ""
        return ""

    def take(self, effect: Effect) -> None:
        """The message took effect."""
        self.effects.append(effect)

    def with_marker(self, marker: str) -> list[Effect]:
        return self._indexed().by_marker.get(marker, [])

    def with_reference(self, reference: str) -> list[Effect]:
        return self._indexed().by_reference.get(reference, [])

    def with_recipient(self, to: str) -> list[Effect]:
        return self._indexed().by_recipient.get(to, [])

    def with_receipt(self, receipt: str) -> Effect | None:
        return self._indexed().by_receipt.get(receipt)

    def _indexed(self) -> _Index:
        # Only when somebody asks: a bench sends a million and asks once.
        self._index.catch_up(self.effects)
        return self._index

    def arrivals(self) -> Iterator[dict[str, Any]]:
        """Each call in order of its start; `ended_at` and `answer` are null while it is open."""
        rows = zip(self._started, self._ended, self._admitted, self._answers, strict=True)
        for at, ended_at, admitted, answer in rows:
            yield {
                "channel": self.channel,
                "at": at,
                "ended_at": ended_at or None,
                "admitted": bool(admitted),
                "answer": answer,
            }

    def report(self, interval_s: float) -> dict[str, Any]:
        """All counts of the channel, as JSON. `interval_s`: width of the sliding window, in seconds."""
        answers = dict.fromkeys(Answer, 0)
        for answer in self._answers:
            if answer is not None:
                answers[answer] += 1
        by_marker = self._indexed().by_marker
        marked = sum(map(len, by_marker.values()))
        twice = [marker for marker, effects in by_marker.items() if len(effects) > 1]
        admitted = array("q", (at for at, yes in zip(self._started, self._admitted, strict=True) if yes))
        width = round(interval_s * 1_000_000)
        return {
            "calls": len(self._answers),
            "effects": len(self.effects),
            "markers": len(by_marker),
            "unmarked": len(self.effects) - marked,
            "duplicates": marked - len(by_marker),
            "duplicate_markers": twice[:NAMED_DUPLICATES_MAX],
            "throttled": sum(answers[answer] for answer in THROTTLED),
            "lost_responses": sum(answers[answer] for answer in LOST_RESPONSES),
            "lost_requests": sum(answers[answer] for answer in LOST_REQUESTS),
            "refused": answers[Answer.REFUSED],
            "replays": self.replays,
            "lookups": self.lookups,
            "answers": {str(answer): count for answer, count in answers.items() if count},
            "in_flight": self._open,
            "most_in_flight": self._most_open,
            "worst_window": {
                "interval_s": interval_s,
                "calls": most_in_window(self._started, width),
                "admitted": most_in_window(admitted, width),
            },
            "first_at": self._started[0] if self._started else None,
            "last_at": self._started[-1] if self._started else None,
        }


class _Index:
    """The effects by what they are asked for; follows the list when it is told to."""

    def __init__(self) -> None:
        self.by_marker: dict[str, list[Effect]] = {}
        self.by_reference: dict[str, list[Effect]] = {}
        self.by_recipient: dict[str, list[Effect]] = {}
        self.by_receipt: dict[str, Effect] = {}
        self._seen = 0

    def catch_up(self, effects: list[Effect]) -> None:
        for number in range(self._seen, len(effects)):
            effect = effects[number]
            self.by_receipt[effect.receipt] = effect
            self.by_recipient.setdefault(effect.to, []).append(effect)
            if effect.marker:
                self.by_marker.setdefault(effect.marker, []).append(effect)
            if effect.reference:
                self.by_reference.setdefault(effect.reference, []).append(effect)
        self._seen = len(effects)


def most_in_window(times: Sequence[int], width: int) -> int:
    """The most of the ascending `times` that any half-open window of `width` holds.

    Two starts exactly `width` apart are in different windows.
    """
    most = first = 0
    for last, time in enumerate(times):
        while time - times[first] >= width:
            first += 1
        most = max(most, last - first + 1)
    return most
