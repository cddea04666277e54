"""One channel of the simulated provider: decides what becomes of a call. No sockets here.

    begin   a request starts: counted, then credentials, then limits      -> Call (refused or admitted)
    judge   the request is complete: faults, refusals, keys, the effect   -> Verdict
    end     the answer is out, or the client has left                     -> counted

HTTP and SMTP only translate: bytes into a `Request`, a `Verdict` into bytes (or into silence).
Given the same seed, the same rules and the same order of calls, the same things happen.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from sendonce.testing.sandbox.door import Answer, Door, Effect
from sendonce.testing.sandbox.reading import Span
from sendonce.testing.sandbox.settings import (
    ChannelRules,
    Idempotency,
    RecipientRule,
    Trigger,
    merge_rules,
    to_json,
)

Later = Callable[[float, Callable[[], None]], object]
"""Runs something after so many seconds, as `loop.call_later` does."""

BEFORE = (
    ("lost_before", Answer.LOST_BEFORE),
    ("error_before", Answer.ERROR_BEFORE),
)
AFTER = (
    ("error_after", Answer.ERROR_AFTER),
    ("lost_after", Answer.LOST_AFTER),
    ("truncated", Answer.TRUNCATED),
    ("hung", Answer.HUNG),
)
TRIGGERS = (
    "throttle",
    "cut_early",
    *(name for name, _ in BEFORE + AFTER),
    "lookup_error",
    "events.bounced",
    "events.complained",
    "events.repeated",
    "events.lost",
    "events.stopped",
    "events.forged",
    "events.faulty",
)


class Request(NamedTuple):
    """A complete request to send one text, to one or (SMTP) several recipients.

    account      whose message it is, where the API says so
    vendor       whose API it came by, "" for the generic ones and Twilio's
    contents     where the marker is looked for, in this order
    fingerprint  equal for equal requests; tells a key that is used for another body
    receipt      makes the provider's message id from its running number
    screened     the recipients were judged already (SMTP does so at RCPT)
    simulated    accepted and never sent: an address or a credential that a vendor keeps for tests
    """

    recipients: tuple[str, ...]
    sender: str
    contents: tuple[str, ...]
    receipt: Callable[[int], str]
    reference: str = ""
    key: str = ""
    fingerprint: int = 0
    callback: str = ""
    account: str = ""
    screened: bool = False
    simulated: bool = False
    vendor: str = ""


class Verdict(NamedTuple):
    """What to answer, and how many seconds from now."""

    answer: Answer
    delay_s: float = 0.0
    receipt: str = ""
    rule: RecipientRule | None = None


class Call:
    """One counted request. `refusal` is set where it was turned away at its start."""

    __slots__ = ("_channel", "_door", "_number", "at", "ended", "refusal")

    def __init__(self, channel: Channel, at: int) -> None:
        self.at = at
        self.refusal: Answer | None = None
        self.ended = False
        self._channel = channel
        self._door = channel.door
        self._number = channel.door.call_started(at)

    @property
    def admitted(self) -> bool:
        return self.refusal is None

    def admit(self) -> None:
        self._door.call_admitted(self._number)

    def end(self, answer: Answer) -> None:
        """The call is over; only the first word counts."""
        if self.ended:
            return
        self.ended = True
        if self.admitted:
            self._channel.admitted_open -= 1
        self._door.call_ended(self._number, answer, self._channel.now())
        if self._door is not self._channel.door:
            self._channel.door.older_call_ended()


class Channel:
    """The rules of one channel at work, with all that they need to remember."""

    def __init__(
        self,
        name: str,
        rules: ChannelRules,
        *,
        seed: int,
        marker: str,
        now: Callable[[], int],
        later: Later,
        next_number: Callable[[], int],
        took: Callable[[Effect], None],
    ) -> None:
        self.name = name
        self.rules = rules
        self.now = now
        self.admitted_open = 0
        self.door = Door(name, marker)
        self._first_rules = rules
        self._seed = seed
        self._marker = marker
        self._later = later
        self._next_number = next_number
        self._took = took
        self._keys: dict[str, _Key] = {}
        self._forget()

    def begin(self, at: int, *, authorized: bool) -> Call:
        """A request to send starts. Its `refusal` says whether it was turned away at the door."""
        call = Call(self, at)
        call.refusal = self._turned_away(at, authorized)
        if call.refusal is None:
            call.admit()
            self.admitted_open += 1
            if self.rules.rate_limit:
                self._rate.append(at)
            if self.rules.quota_limit:
                self._quota.append(at)
        return call

    def judge(self, request: Request) -> Verdict:
        """What becomes of an admitted, complete request. Its effect, if any, is taken or on its way."""
        latency_s = self._pick(self.rules.latency_s)
        for state, answer in self._before:
            if state.strikes():
                return Verdict(answer, latency_s)
        if not request.screened:
            for to in request.recipients:
                rule = self.refusal_of(to)
                if rule is not None:
                    return Verdict(Answer.REFUSED, latency_s, rule=rule)
        if self.refuses_sender(request.sender):
            return Verdict(Answer.REFUSED, latency_s)
        if not request.key or self.rules.idempotency is Idempotency.IGNORED:
            return self._accept(request, latency_s, self._pick(self.rules.effect_delay_s))
        return self._accept_once(request, latency_s)

    def strikes(self, fault: str) -> bool:
        """Whether the fault of that name hits the present call, which it then has used up."""
        state = self._triggers[fault]
        return state.armed and state.strikes()

    def refusal_of(self, to: str) -> RecipientRule | None:
        """The first rule that refuses the recipient."""
        for rule in self.rules.recipients:
            if _compiled(rule.pattern).search(to):
                return rule
        return None

    def refuses_sender(self, sender: str) -> bool:
        pattern = self.rules.refused_senders
        return bool(pattern) and _compiled(pattern).search(sender) is not None

    def bounces(self, to: str) -> bool:
        pattern = self.rules.events.bounce_pattern
        return (bool(pattern) and _compiled(pattern).search(to) is not None) or self.strikes("events.bounced")

    def event_delay_s(self) -> float:
        return self._pick(self.rules.events.delay_s)

    def visible(self, effects: list[Effect]) -> list[Effect]:
        """Those of the effects that the look-up's index has reached by now, oldest first."""
        newest = self.now() - round(self.rules.lookup_lag_s * 1_000_000)
        return [effect for effect in effects if effect.at <= newest]

    def check(self, patch: Mapping[str, Any]) -> ChannelRules:
        """The rules as a merge patch would make them. Raises `InvalidInput`."""
        return merge_rules(self.current_rules(), patch, channel=self.name)

    def change(self, patch: Mapping[str, Any]) -> None:
        """Apply a merge patch to the rules. A fault that it names starts to count anew.

        Raises `InvalidInput`; then nothing has changed.
        """
        self.rules = self.check(patch)
        events = patch.get("events")
        named = {*patch, *(f"events.{key}" for key in (events if isinstance(events, Mapping) else ()))}
        for name in TRIGGERS:
            if name in named or (name.startswith("events.") and "events" in patch and events is None):
                self._triggers[name] = _TriggerState(_trigger_of(self.rules, name), self._chance(name))
        self._arm()

    def current_rules(self) -> ChannelRules:
        """The rules with `next` of each fault counted down to what is left of it."""
        left: dict[str, Any] = {
            name: replace(_trigger_of(self.rules, name), next=state.next_left)
            for name, state in self._triggers.items()
        }
        events = {name.removeprefix("events."): left.pop(name) for name in TRIGGERS if "." in name}
        return replace(self.rules, events=replace(self.rules.events, **events), **left)

    def rules_json(self) -> Any:
        return to_json(self.current_rules())

    def reset(self, *, rules: bool) -> None:
        """Forget counts, effects, keys and windows; with `rules`, also what was changed since the start.

        Open calls stay open, and an effect still on its way counts when it comes. Chance starts from its
        seed again; receipts go on and never repeat.
        """
        self.rules = self._first_rules if rules else self.current_rules()
        self.door = Door(self.name, self._marker, in_flight=self.door.in_flight)
        self._forget()

    def _forget(self) -> None:
        self._rate: deque[int] = deque()
        self._quota: deque[int] = deque()
        self._keys.clear()
        self._latency_chance = self._chance("latency")
        self._triggers = {
            name: _TriggerState(_trigger_of(self.rules, name), self._chance(name)) for name in TRIGGERS
        }
        self._arm()

    def _arm(self) -> None:
        # Most faults never strike; a call looks only at those that can.
        self._before, self._after = (
            [(self._triggers[name], answer) for name, answer in faults if self._triggers[name].armed]
            for faults in (BEFORE, AFTER)
        )

    def _chance(self, purpose: str) -> random.Random:
        # One stream per purpose, so that turning one fault on does not move where the others strike.
        return random.Random(f"{self._seed}:{self.name}:{purpose}")  # noqa: S311

    def _turned_away(self, at: int, authorized: bool) -> Answer | None:
        rules = self.rules
        if not authorized or rules.refuse_credentials:
            return Answer.UNAUTHORIZED
        if rules.rate_limit and _full(self._rate, rules.rate_limit, rules.rate_interval_s, at):
            return Answer.THROTTLED_RATE
        if rules.quota_limit and _full(self._quota, rules.quota_limit, rules.quota_interval_s, at):
            return Answer.THROTTLED_QUOTA
        if 0 < rules.concurrency_limit <= self.admitted_open:
            return Answer.THROTTLED_CONCURRENCY
        if self.strikes("throttle"):
            return Answer.THROTTLED_SCRIPT
        return None

    def _accept_once(self, request: Request, latency_s: float) -> Verdict:
        now = self.now()
        self._drop_old_keys(now)
        known = self._keys.get(request.key)
        if known is not None:
            if known.fingerprint != request.fingerprint:
                return Verdict(Answer.KEY_MISMATCH, latency_s)
            if now < known.busy_until:
                return Verdict(Answer.KEY_IN_FLIGHT)
            self.door.replays += 1
            return self._answered(Answer.REPLAYED, known.receipt, latency_s)
        delay_s = self._pick(self.rules.effect_delay_s)
        verdict = self._accept(request, latency_s, delay_s)
        busy_until = now + round(max(latency_s, delay_s) * 1_000_000)
        self._keys[request.key] = _Key(request.fingerprint, now, busy_until, verdict.receipt)
        return verdict

    def _accept(self, request: Request, latency_s: float, delay_s: float) -> Verdict:
        receipts = [request.receipt(self._next_number()) for _ in request.recipients]
        if request.simulated:
            pass
        elif delay_s > 0:
            self._later(delay_s, lambda: self._take(request, receipts))
        else:
            self._take(request, receipts)
        return self._answered(Answer.ACCEPTED, receipts[0], latency_s)

    def _answered(self, answer: Answer, receipt: str, latency_s: float) -> Verdict:
        for state, fault in self._after:
            if state.strikes():
                return Verdict(fault, latency_s, receipt)
        return Verdict(answer, latency_s, receipt)

    def _take(self, request: Request, receipts: list[str]) -> None:
        now, marker = self.now(), self.door.marker_in(request.contents)
        for to, receipt in zip(request.recipients, receipts, strict=True):
            effect = Effect(
                at=now,
                channel=self.name,
                marker=marker,
                to=to,
                sender=request.sender,
                text=request.contents[0] if request.account else "",
                reference=request.reference,
                key=request.key,
                receipt=receipt,
                callback=request.callback,
                account=request.account,
                vendor=request.vendor,
            )
            self.door.take(effect)
            self._took(effect)

    def _pick(self, span: Span) -> float:
        lowest, highest = span
        return lowest if lowest == highest else self._latency_chance.uniform(lowest, highest)

    def _drop_old_keys(self, now: int) -> None:
        oldest = now - round(self.rules.idempotency_window_s * 1_000_000)
        while self._keys:
            name, key = next(iter(self._keys.items()))  # a dict keeps the order of first use
            if key.first_used_at > oldest:
                return
            del self._keys[name]


class _Key(NamedTuple):
    """An idempotency key: what it was first used for, and until when that call is under way."""

    fingerprint: int
    first_used_at: int
    busy_until: int
    receipt: str


class _TriggerState:
    """A trigger and how far it has come."""

    __slots__ = ("_chance", "_seen", "armed", "next_left", "trigger")

    def __init__(self, trigger: Trigger, chance: random.Random) -> None:
        self.trigger = trigger
        self.next_left = trigger.next
        self.armed = bool(trigger.probability or trigger.every or trigger.next)
        self._chance = chance
        self._seen = 0

    def strikes(self) -> bool:
        self._seen += 1
        if self.next_left > 0:
            self.next_left -= 1
            return True
        if self.trigger.every > 0 and self._seen % self.trigger.every == 0:
            return True
        return self.trigger.probability > 0 and self._chance.random() < self.trigger.probability


def _trigger_of(rules: ChannelRules, name: str) -> Trigger:
    part, _, leaf = name.rpartition(".")
    trigger: Trigger = getattr(rules.events if part else rules, leaf)
    return trigger


def _full(starts: deque[int], limit: int, interval_s: float, at: int) -> bool:
    """Whether the half-open window that ends at `at` already holds `limit` admitted starts."""
    oldest = at - round(interval_s * 1_000_000)
    while starts and starts[0] <= oldest:
        starts.popleft()
    return len(starts) >= limit


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
