"""What can go wrong, how often, and the dice that say when.

Every decision of a run is drawn for a named place ("w1 store"), from numbers that begin with a hash of the
seed and that name.
So a decision does not depend on how many were drawn before it elsewhere: leave one fault out, and the
others still strike where they did, as far as they are still reached. That is what makes a long failing
history shrink to a short one.

Each seed takes only some of the faults of its profile: a run in which everything goes wrong at once
hides what two faults alone would show.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")

_64_BITS: Final = (1 << 64) - 1


class Fault(StrEnum):
    """One kind of thing that goes wrong, or that a person does at a bad moment."""

    # Processes
    CRASH = "crash"
    PAUSE = "pause"
    PAUSE_BEFORE_BYTE = "pause before the first byte"
    STOP = "graceful stop"
    # The store
    STORE_ERROR = "store error"
    LOST_COMMIT_ACK = "lost commit acknowledgement"
    SLOW_COMMIT = "slow commit"
    DAMAGED_TEXT = "stored text damaged for a while"
    STORE_AWAY = "store away for one process"
    BEATS_LOST = "heartbeats of one process lost"
    FAILOVER = "failover that lost commits"
    # The network
    NO_CONNECTION = "no connection"
    LOST_REQUEST = "lost request"
    LOST_RESPONSE = "lost response"
    SLOW = "slow"
    LATE_ARRIVAL = "late arrival"
    # The provider
    RATE = "429 rate"
    RATE_TIMED = "429 rate with a time"
    CONCURRENCY = "429 concurrency"
    CONCURRENCY_TIMED = "429 concurrency with a time"
    QUOTA = "429 quota"
    QUOTA_TIMED = "429 quota with a time"
    RECIPIENT = "429 recipient"
    RECIPIENT_TIMED = "429 recipient with a time"
    UNDECLARED = "429 undeclared"
    UNDECLARED_TIMED = "429 undeclared with a time"
    ACCOUNT_ERROR = "account error"
    REJECTED = "rejected"
    SUPPRESSED_THERE = "rejected for good"
    UNAVAILABLE = "unavailable"
    UNAVAILABLE_TIMED = "unavailable with a time"
    ERROR_BUT_TAKEN = "error but taken"
    ERROR_NOT_TAKEN = "error, not taken"
    ADAPTER_BUG = "adapter bug"
    LOOKUP_DOWN = "look-up down"
    OUTAGE = "the same answer to everybody for a while"
    # What the provider says later
    EVENT = "event"
    EVENT_EARLY = "event before the answer"
    EVENT_REPEATED = "event repeated"
    EVENT_FOREIGN = "event that names another account's message"
    EVENT_BOUNCE = "event of a bounce"
    EVENT_STOP = "customer's STOP"
    # Time
    CLOCK_FORWARD = "calendar set forward"
    CLOCK_BACK = "calendar set back"
    # Hints
    HINT_REPEATED = "hint repeated"
    HINT_LOST = "hint lost"
    HINTS_REORDERED = "hints reordered"
    HINT_ACK_LOST = "hint acknowledgement lost"
    QUEUE_ERROR = "queue error"
    # People
    CANCEL = "cancel"
    OPT_OUT = "opt-out"
    OPT_IN = "opt-in"
    UPDATE = "update"
    RESCHEDULE = "rescheduled"
    REPEAT = "the same request again"
    UNDO = "cancelled by a file, and back"
    REDRIVE = "redrive"
    REDRIVE_FRESH = "redrive with the text made anew"
    SAY_SENT = "resolved as sent"
    SAY_SENT_PROVEN = "resolved as sent, with a receipt"
    SAY_NOT_SENT = "resolved as not sent"
    SAY_RESEND = "resolved as resend"
    PAUSE_SCHEDULER = "scheduler paused"
    PAUSE_CHANNEL = "channel paused"
    PAUSE_GROUP = "group paused"
    PAUSE_ACCOUNT = "account paused"
    BAD_TEMPLATE = "bad template version"
    ERASE = "erased"
    # What is kept
    REMOVAL = "removed by policy"


_PROCESSES: Final = {Fault.CRASH: 0.012, Fault.PAUSE: 0.008, Fault.PAUSE_BEFORE_BYTE: 0.01, Fault.STOP: 0.25}
_STORE: Final = {
    Fault.STORE_ERROR: 0.005,
    Fault.LOST_COMMIT_ACK: 0.015,
    Fault.SLOW_COMMIT: 0.02,
    Fault.DAMAGED_TEXT: 0.02,
    Fault.STORE_AWAY: 0.02,
    Fault.BEATS_LOST: 0.02,
    Fault.FAILOVER: 0.1,
}
_NETWORK: Final = {
    Fault.NO_CONNECTION: 0.02,
    Fault.LOST_REQUEST: 0.02,
    Fault.LOST_RESPONSE: 0.03,
    Fault.SLOW: 0.03,
    Fault.LATE_ARRIVAL: 0.02,
}
_PROVIDER: Final = {
    **dict.fromkeys(
        (
            Fault.RATE, Fault.RATE_TIMED, Fault.CONCURRENCY, Fault.CONCURRENCY_TIMED, Fault.RECIPIENT,
            Fault.RECIPIENT_TIMED, Fault.UNDECLARED, Fault.UNDECLARED_TIMED,
        ),
        0.01,
    ),
    Fault.QUOTA: 0.002,
    Fault.QUOTA_TIMED: 0.006,
    Fault.ACCOUNT_ERROR: 0.015,
    Fault.REJECTED: 0.02,
    Fault.SUPPRESSED_THERE: 0.01,
    Fault.UNAVAILABLE: 0.04,
    Fault.UNAVAILABLE_TIMED: 0.01,
    Fault.ERROR_BUT_TAKEN: 0.015,
    Fault.ERROR_NOT_TAKEN: 0.01,
    Fault.ADAPTER_BUG: 0.003,
    Fault.LOOKUP_DOWN: 0.5,
    Fault.OUTAGE: 0.15,
}  # fmt: skip
_EVENTS: Final = {
    Fault.EVENT: 0.3,
    Fault.EVENT_EARLY: 0.2,
    Fault.EVENT_REPEATED: 0.15,
    Fault.EVENT_FOREIGN: 0.05,
    Fault.EVENT_BOUNCE: 0.1,
    Fault.EVENT_STOP: 0.05,
}
_TIME: Final = {Fault.CLOCK_FORWARD: 0.15, Fault.CLOCK_BACK: 0.15}
_HINTS: Final = {
    Fault.HINT_REPEATED: 0.1,
    Fault.HINT_LOST: 0.05,
    Fault.HINTS_REORDERED: 0.5,
    Fault.HINT_ACK_LOST: 0.1,
    Fault.QUEUE_ERROR: 0.01,
}
_PEOPLE: Final = {
    Fault.CANCEL: 0.08,
    Fault.OPT_OUT: 0.035,
    Fault.OPT_IN: 0.5,
    Fault.UPDATE: 0.06,
    Fault.RESCHEDULE: 0.05,
    Fault.REPEAT: 0.05,
    Fault.UNDO: 0.03,
    Fault.REDRIVE: 0.4,
    Fault.REDRIVE_FRESH: 0.25,
    Fault.SAY_SENT: 0.2,
    Fault.SAY_SENT_PROVEN: 0.2,
    Fault.SAY_NOT_SENT: 0.2,
    Fault.SAY_RESEND: 0.4,
    Fault.PAUSE_SCHEDULER: 0.1,
    Fault.PAUSE_CHANNEL: 0.1,
    Fault.PAUSE_GROUP: 0.2,
    Fault.PAUSE_ACCOUNT: 0.1,
    Fault.BAD_TEMPLATE: 0.1,
    Fault.ERASE: 0.004,
}
_KEPT: Final = {Fault.REMOVAL: 0.3}
_ALL: Final = {
    **_PROCESSES,
    **_STORE,
    **_NETWORK,
    **_PROVIDER,
    **_EVENTS,
    **_TIME,
    **_HINTS,
    **_PEOPLE,
    **_KEPT,
}


@dataclass(frozen=True, slots=True)
class Theme:
    """What the bad days of a seed are mostly about. Its faults strike so many times as often, and its seed
    takes all of them: some moves need three rare things in a row, which chance alone brings together once in
    a thousand worlds. `longer_s`: for so long the bad days go on after all has fallen due."""

    name: str
    factors: Mapping[Fault, float] = field(default_factory=dict)
    longer_s: float = 0.0


_AS_IT_COMES: Final = Theme("as it comes")
_PERMITS: Final = Theme(
    "tried again under a permit, and that goes wrong too",
    {
        Fault.LOST_RESPONSE: 8.0, Fault.LOST_REQUEST: 5.0, Fault.DAMAGED_TEXT: 5.0, Fault.LOOKUP_DOWN: 1.8,
        Fault.SAY_RESEND: 2.2, Fault.SAY_SENT: 0.1, Fault.SAY_SENT_PROVEN: 0.1, Fault.SAY_NOT_SENT: 0.1,
        Fault.UNAVAILABLE: 1.0, Fault.ACCOUNT_ERROR: 1.0, Fault.REJECTED: 2.0, Fault.RECIPIENT: 1.0,
        Fault.CANCEL: 0.5, Fault.OPT_OUT: 0.5, Fault.CLOCK_BACK: 1.0, Fault.OUTAGE: 0.3, Fault.UPDATE: 0.3,
        Fault.PAUSE_SCHEDULER: 0.3, Fault.PAUSE_CHANNEL: 0.3, Fault.PAUSE_GROUP: 0.3,
        Fault.PAUSE_ACCOUNT: 0.3,
    },
    longer_s=40.0,
)  # fmt: skip
THEMES: Final = (
    _AS_IT_COMES,
    _AS_IT_COMES,
    _PERMITS,
    _PERMITS,
    Theme(
        "taken back in the midst of a call that the account refuses",
        {
            Fault.CANCEL: 2.5, Fault.OPT_OUT: 4.0, Fault.ACCOUNT_ERROR: 4.0, Fault.REJECTED: 2.0,
            Fault.UNAVAILABLE: 2.0, Fault.LOST_RESPONSE: 4.0, Fault.RECIPIENT: 2.0, Fault.SLOW: 2.0,
        },
    ),
    Theme(
        "keys that die",
        {
            Fault.LOST_RESPONSE: 5.0, Fault.ERROR_BUT_TAKEN: 3.0, Fault.PAUSE_ACCOUNT: 1.0, Fault.SLOW: 2.0,
            Fault.CANCEL: 0.5, Fault.BEATS_LOST: 4.0,
        },
    ),
    Theme(
        "dead letters, and what people do with them",
        {
            Fault.REJECTED: 4.0, Fault.UNAVAILABLE: 3.0, Fault.RECIPIENT: 3.0, Fault.REDRIVE: 1.5,
            Fault.REDRIVE_FRESH: 2.0, Fault.CANCEL: 1.5, Fault.DAMAGED_TEXT: 4.0,
        },
    ),
    Theme(
        "words that turn out to be wrong",
        {
            Fault.LOST_RESPONSE: 4.0, Fault.LATE_ARRIVAL: 3.0, Fault.LOOKUP_DOWN: 1.8,
            Fault.SAY_NOT_SENT: 2.5, Fault.SAY_SENT_PROVEN: 2.5, Fault.SAY_SENT: 0.3, Fault.SAY_RESEND: 0.3,
            Fault.PAUSE: 2.0, Fault.DAMAGED_TEXT: 2.0,
        },
    ),
    Theme(
        "servers that take over without the last commits",
        {
            Fault.FAILOVER: 6.0, Fault.BAD_TEMPLATE: 3.0, Fault.SAY_NOT_SENT: 3.0, Fault.SAY_SENT_PROVEN: 1.5,
            Fault.SAY_SENT: 0.5, Fault.CLOCK_FORWARD: 0.1,
        },
    ),
)  # fmt: skip
"""Each seed has one of these. "As it comes": chance alone."""
CHANCE_MAX: Final = 0.9
SHARED: Final = 0.2


@dataclass(frozen=True, slots=True)
class Profile:
    """How often each fault strikes, from 0 to 1 for each time that it could.

    share         the share of the faults that one seed takes
    themes        of which each seed has one
    deliveries    so many in each seed; 0: as many as its world has the pace for
    active_s      for so long deliveries fall due and faults strike; then all must end by itself
    beyond        pauses before the first byte last longer than the promise covers
    shared        the share of seeds whose accounts share all, so that what waits leaves one that is held
    """

    name: str
    chances: Mapping[Fault, float] = field(default_factory=dict)
    share: float = 0.75
    themes: tuple[Theme, ...] = (_AS_IT_COMES,)
    deliveries: int = 0
    active_s: float = 60.0
    beyond: bool = False
    shared: float = 0.0


PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile("calm"),
        Profile("standard", _ALL, themes=THEMES, shared=SHARED),
        Profile(
            "storm",
            {fault: min(0.6, 2.5 * chance) for fault, chance in _ALL.items()},
            share=0.8,
            themes=THEMES,
            shared=SHARED,
        ),
        Profile("beyond", {**_ALL, Fault.PAUSE_BEFORE_BYTE: 0.05, Fault.LATE_ARRIVAL: 0.05}, beyond=True),
    )
}
"""calm: nothing goes wrong; standard: everything does at times; storm: often. beyond: longer freezes than
the promise covers, to show that the simulator finds what they do; it must fail."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that struck. `id` names it for `Dice.without`; `at_s` is virtual time."""

    id: str
    fault: Fault
    at_s: float
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:10.4f} s  {self.fault.value}: {self.what}"


class Dice:
    """Every decision of one run. `without`: ids of faults and deliveries that are left out."""

    def __init__(self, seed: int, profile: Profile, without: Set[str], now_s: Callable[[], float]) -> None:
        self._key = hashlib.blake2b(f"{profile.name} {seed}".encode(), digest_size=32).digest()
        self._without = without
        self._now_s = now_s
        self._places: dict[str, list[int]] = {}
        self.theme = self.pick("theme", profile.themes)
        factors = self.theme.factors
        self._chances = {
            fault: min(CHANCE_MAX, chance * factors[fault]) if fault in factors else chance
            for fault, chance in profile.chances.items()
            if self.chance(f"takes {fault}") < profile.share or fault in factors
        }
        self._scaled: dict[Fault, float] = {}
        self.struck: list[Struck] = []
        self.striking = True

    def scale(self, faults: Set[Fault], factor: float) -> None:
        """Make these rarer, or more frequent, in this run."""
        for fault in self._chances.keys() & faults:
            self._chances[fault] *= factor
            self._scaled[fault] = factor

    def chance(self, place: str) -> float:
        """A number in [0, 1), the next one of this place.

        By splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), since a run
        draws a hundred times for each delivery.
        """
        drawn = self._places.get(place)
        if drawn is None:
            digest = hashlib.blake2b(place.encode(), digest_size=8, key=self._key).digest()
            drawn = self._places[place] = [int.from_bytes(digest, "big"), 0]
        drawn[0] = state = (drawn[0] + 0x9E3779B97F4A7C15) & _64_BITS
        drawn[1] += 1
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _64_BITS
        return ((state ^ (state >> 31)) >> 11) / 9007199254740992.0

    def between(self, place: str, low: float, high: float) -> float:
        return low + (high - low) * self.chance(place)

    def pick(self, place: str, options: Sequence[T]) -> T:
        return options[int(self.chance(place) * len(options))]

    def keeps(self, id_: str) -> bool:
        """Whether this delivery takes part."""
        return id_ not in self._without

    def takes(self, fault: Fault) -> bool:
        """Whether this run has such faults at all."""
        return fault in self._chances

    def strikes(
        self, fault: Fault, place: str, what: str = "", *, weight: float = 1.0, unscaled: bool = False
    ) -> bool:
        """Whether it goes wrong here and now. `weight` scales the chance for places that are many or few;
        `unscaled`: whatever `scale` made of it."""
        usual = self._chances.get(fault)
        if usual is None or not self.striking:
            return False
        if unscaled:
            usual /= self._scaled.get(fault, 1.0)
        own = f"{place} {fault.value}"
        if self.chance(own) >= usual * weight:
            return False
        id_ = f"{own} {self._places[own][1]}"
        if id_ in self._without:
            return False
        self.struck.append(Struck(id_, fault, self._now_s(), what or place))
        return True

    def which(
        self, faults: Sequence[Fault], place: str, what: str = "", *, weight: float = 1.0
    ) -> Fault | None:
        """The first of these that strikes, by one draw: they exclude each other."""
        if not self.striking:
            return None
        drawn = self.chance(place)
        for fault in faults:
            drawn -= self._chances.get(fault, 0.0) * weight
            if drawn < 0.0:
                id_ = f"{place} {self._places[place][1]}"
                if id_ in self._without:
                    return None
                self.struck.append(Struck(id_, fault, self._now_s(), what or place))
                return fault
        return None
