"""A simulated provider: its own memory, its door where everything is counted, and the way to it.

An account is of one class. *K* absorbs a known key until its window is over, then forgets it. *L* can be
asked by our reference, and shows what it took only after its index has caught up. *N* offers neither.
What reached a customer is counted by the marker in the text, never by our own key.

The door stands where the first byte leaves: there starts and open calls are counted. A call whose process
froze between its last check and its first byte is not held against the pace: nothing could have
stopped it, and the promise says so.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sendonce.core.outcome import (
    Absent,
    Accepted,
    AccountError,
    Failed,
    Finding,
    Found,
    NoAnswer,
    NotStarted,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.policy import AccountPolicy
from sendonce.core.promise import Promise, ProviderClass
from sendonce.ports.provider import Message, Start, TooLate
from sendonce.testing.simulator.faults import Fault
from sendonce.testing.simulator.ports import SECOND, Ground
from sendonce.testing.simulator.process import WORLD, Process

MARKER: Final = re.compile(r"\[ref:(\S+)\]")

THROTTLES: Final = {
    Fault.RATE: ThrottleScope.RATE,
    Fault.RATE_TIMED: ThrottleScope.RATE,
    Fault.CONCURRENCY: ThrottleScope.CONCURRENCY,
    Fault.CONCURRENCY_TIMED: ThrottleScope.CONCURRENCY,
    Fault.QUOTA: ThrottleScope.QUOTA,
    Fault.QUOTA_TIMED: ThrottleScope.QUOTA,
    Fault.RECIPIENT: ThrottleScope.RECIPIENT,
    Fault.RECIPIENT_TIMED: ThrottleScope.RECIPIENT,
    Fault.UNDECLARED: ThrottleScope.UNDECLARED,
    Fault.UNDECLARED_TIMED: ThrottleScope.UNDECLARED,
}
TIMED: Final = frozenset(fault for fault in THROTTLES if fault.name.endswith("_TIMED"))
REFUSALS: Final = (
    *THROTTLES, Fault.ACCOUNT_ERROR, Fault.REJECTED, Fault.SUPPRESSED_THERE, Fault.UNAVAILABLE,
    Fault.UNAVAILABLE_TIMED, Fault.ERROR_NOT_TAKEN,
)  # fmt: skip
FATES: Final = (Fault.LOST_REQUEST, Fault.LATE_ARRIVAL, Fault.LOST_RESPONSE, Fault.SLOW, Fault.ADAPTER_BUG)


STALE_US: Final = SECOND
"""A slot is given out for at most a twentieth of this ahead: what starts later has a claim of after."""
THINK_MAX_S: Final = 0.25
"""What thinks longer has decided before: a request that is there so late must have arrived in time."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One effect: a message that would have reached its customer."""

    marker: str
    key: str
    receipt: str
    at_us: int
    visible_us: int


@dataclass(slots=True, eq=False)
class Call:
    """One open call, seen from the provider's door."""

    process: Process
    message: Message
    answer: asyncio.Future[Outcome]
    began_us: int = 0

    def __str__(self) -> str:
        return f"{self.message.delivery_key} of {self.process.id} since {self.began_us / SECOND:.4f} s"


@dataclass(slots=True)
class SimulatedAccount:
    """The provider's side of an account."""

    policy: AccountPolicy
    ground: Ground
    hears: Callable[[str, Message, str, str], None]
    """Told of each message that is taken: account, message, marker, receipt."""
    taken: list[Taken] = field(default_factory=list)
    calls: dict[Call, None] = field(default_factory=dict)
    starts: deque[int] = field(default_factory=deque)
    spell: Fault | None = None
    set_back_us: int = -SECOND * 1_000
    """When the store last lost what was used of a quota."""
    _keys: dict[str, Taken] = field(default_factory=dict)
    _unfindable: set[str] = field(default_factory=set)
    """About these it does not answer as long as the bad days last."""

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def promise(self) -> Promise:
        return self.policy.promise

    def begin(self, call: Call, *, disturbed: bool) -> None:
        """The first byte: count the start and the open call against what the account allows."""
        now = self.ground.loop.now_us
        marker = marker_of(call.message)
        self.ground.checker.departed(marker, call.message.send_key)
        if disturbed:
            return
        self.calls[call] = None
        limits = self.policy.limits
        if len(self.calls) > limits.lanes:
            held = ", ".join(map(str, self.calls))
            self.ground.checker.over_limit(
                f"{self.name} has {len(self.calls)} open calls, {limits.lanes} are allowed: {held}"
            )
        if now < self.set_back_us + STALE_US and not self.ground.checker.is_sending(
            call.message.delivery_key
        ):
            return  # its claim was lost with what was used of the quota, and it had its slot before
        self.starts.append(now)
        for limit in limits.limits:
            if len(self.starts) > limit.count and now - self.starts[-limit.count - 1] < limit.interval_us:
                self.ground.checker.over_limit(
                    f"{self.name} started {limit.count + 1} calls within "
                    f"{(now - self.starts[-limit.count - 1]) / SECOND:.6f} s"
                )
        while len(self.starts) > 1 + max(limit.count for limit in limits.limits):
            self.starts.popleft()

    def set_back(self) -> None:
        """What was used of a quota is lost with the store's last commits, and the provider says so."""
        self.starts.clear()
        self.set_back_us = self.ground.loop.now_us

    def end(self, call: Call) -> None:
        self.calls.pop(call, None)

    def arrive(self, call: Call, think_s: float, *, answered: bool) -> None:
        """A request is there: decide at once or at the end of `think_s`, and answer then, if the answer gets
        through."""
        at_once = think_s > THINK_MAX_S or self.ground.dice.chance(f"{self.name} decides") < 0.5
        outcome = self._decide(call.message) if at_once else None

        def reply() -> None:
            self.end(call)
            decided = self._decide(call.message) if outcome is None else outcome
            if answered and not call.answer.done():
                call.answer.set_result(decided)

        self.ground.loop.call_later(think_s, reply, context=WORLD)

    def _decide(self, message: Message) -> Outcome:
        dice, place = self.ground.dice, f"{self.name} answer"
        delicacy = self.ground.checker.delicacy(message.delivery_key)
        what = f"{self.name} to {message.delivery_key}"
        # One closes the account, so that they are rare among the crowd.
        closes = delicacy > 1.0 and dice.strikes(
            Fault.ACCOUNT_ERROR, place, what, weight=delicacy, unscaled=True
        )
        refusal = self.spell or (
            Fault.ACCOUNT_ERROR if closes else dice.which(REFUSALS, place, what, weight=delicacy)
        )
        if refusal is not None:
            return self._refuse(refusal)
        known = self._keys.get(message.send_key) if self._has_key else None
        now = self.ground.loop.now_us
        if known is not None and now < known.at_us + int(self.promise.key_window_s * SECOND):
            return Accepted(known.receipt, "200", duplicate=True)
        receipt = self._take(message)
        if dice.strikes(Fault.ERROR_BUT_TAKEN, self.name, f"{self.name} to {message.delivery_key}"):
            return Unknown("server_error", "500")
        return Accepted(receipt, "202")

    @property
    def _has_key(self) -> bool:
        return self.promise.provider_class is ProviderClass.KEY

    def _take(self, message: Message) -> str:
        now = self.ground.loop.now_us
        lag_s = self.ground.dice.between(f"{self.name} index", 0.0, self.promise.index_lag_s)
        receipt = f"{self.name}-{len(self.taken) + 1}"
        one = Taken(marker_of(message), message.send_key, receipt, now, now + int(lag_s * SECOND))
        self.taken.append(one)
        self._keys[message.send_key] = one
        self.ground.checker.took(one.marker)
        self.hears(self.name, message, one.marker, receipt)
        return receipt

    def _refuse(self, refusal: Fault) -> Outcome:
        dice = self.ground.dice
        wait_s = dice.between(f"{self.name} asked", 0.5, 15.0)
        match refusal:
            case Fault.ACCOUNT_ERROR:
                return AccountError(Reason.CREDIT, "402")
            case Fault.REJECTED:
                return Rejected(Reason.BLOCKED, "403")
            case Fault.SUPPRESSED_THERE:
                return Rejected(Reason.INVALID_ADDRESS, "410", suppress=True)
            case Fault.UNAVAILABLE:
                return Failed(Reason.UNAVAILABLE, "503")
            case Fault.UNAVAILABLE_TIMED:
                return Failed(Reason.UNAVAILABLE, "503", wait_s)
            case Fault.ERROR_NOT_TAKEN:
                return Unknown("bad_gateway", "502")
            case _:
                return Throttled(THROTTLES[refusal], "429", wait_s if refusal in TIMED else None)

    def fall_ill(self) -> None:
        """Give everybody the same answer for some seconds."""
        place = f"{self.name} spell"
        self.spell = self.ground.dice.pick(place, REFUSALS)
        self.ground.loop.call_later(self.ground.dice.between(place, 0.5, 12.0), self.recover, context=WORLD)

    def recover(self) -> None:
        self.spell = None

    def look_up(self, message: Message) -> Finding:
        """What a search by our reference shows now."""
        if not self.promise.lookup:
            return NoAnswer("unsupported")
        dice, place = self.ground.dice, f"{self.name} look-up"
        if message.send_key in self._unfindable and dice.striking:
            return NoAnswer("503")
        if dice.strikes(Fault.LOOKUP_DOWN, place, self.name):
            if dice.chance(f"{place} for long") < 0.3:
                self._unfindable.add(message.send_key)
            return NoAnswer("503")
        now = self.ground.loop.now_us
        for one in self.taken:
            if one.key == message.send_key and one.visible_us <= now:
                return Found(one.receipt)
        return Absent(believable=True)

    def receipt_of(self, marker: str) -> str:
        """What a person finds who asks the provider by telephone; "" where it has nothing."""
        return next((one.receipt for one in self.taken if one.marker == marker), "")


class ProviderPort:
    """`ports.provider.Provider` of one process, for one account."""

    def __init__(
        self, process: Process, account: SimulatedAccount, ground: Ground, *, freeze_max_s: float
    ) -> None:
        self._process = process
        self._account = account
        self._ground = ground
        self._freeze_max_s = freeze_max_s
        self._open: dict[Call, None] = {}
        self.promise = account.promise

    async def send(self, message: Message, *, start: Start) -> Outcome:
        ground, dice, process = self._ground, self._ground.dice, self._process
        place = f"{process.name} {self._account.name}"
        await ground.gate(process, f"{place} connect")
        connect_s = dice.between(f"{place} connect", 0.0, 0.001)
        if dice.strikes(Fault.NO_CONNECTION, place, f"{process.id} for {message.delivery_key}"):
            await asyncio.sleep(connect_s * 100)
            return Failed(Reason.CONNECTION, "refused")
        if dice.strikes(
            Fault.SLOW,
            f"{place} connect",
            f"{process.id} connects for {message.delivery_key}",
            weight=ground.checker.delicacy(message.delivery_key),
        ):
            connect_s = dice.between(f"{place} connect slow", 0.0, 1.5 * self.promise.timeout_s)
        await asyncio.sleep(connect_s)
        try:
            await start()
        except TooLate as late:
            ground.checker.coverage.check(late.why)
            return NotStarted(late.why)
        disturbed = dice.strikes(Fault.PAUSE_BEFORE_BYTE, place, f"{process.id} for {message.delivery_key}")
        if disturbed:
            process.freeze(dice.between(f"{place} before byte", 0.01, self._freeze_max_s))
            await asyncio.sleep(0)
        process.check()
        outcome = await self._call(message, place, disturbed=disturbed)
        await ground.gate(process, f"{place} answered")
        return outcome

    async def _call(self, message: Message, place: str, *, disturbed: bool) -> Outcome:
        ground, dice, account = self._ground, self._ground.dice, self._account
        call = Call(self._process, message, ground.loop.create_future(), ground.loop.now_us)
        account.begin(call, disturbed=disturbed)
        self._open[call] = None
        timeout_s = self.promise.timeout_s
        trip_s = dice.between(f"{place} trip", 0.001, 0.02)
        think_s = dice.between(f"{place} think", 0.01, THINK_MAX_S)
        fate = dice.which(FATES, f"{place} fate", f"{self._process.id} for {message.delivery_key}")
        match fate:
            case Fault.LOST_REQUEST:
                ground.loop.call_later(timeout_s, account.end, call, context=WORLD)
            case Fault.LATE_ARRIVAL:
                late_s = timeout_s + dice.between(f"{place} late", 0.0, self.promise.arrival_max_s)
                ground.loop.call_later(timeout_s, account.end, call, context=WORLD)
                _later(late_s, account, call, think_s=0.0, answered=False)
            case Fault.LOST_RESPONSE:
                _later(trip_s, account, call, think_s=think_s, answered=False)
            case Fault.SLOW:
                _later(trip_s, account, call, think_s=think_s * 3.5 * timeout_s, answered=True)
            case _:
                _later(trip_s, account, call, think_s=think_s, answered=True)
        try:
            if fate is Fault.ADAPTER_BUG:
                await asyncio.sleep(trip_s)
                raise RuntimeError("simulated: a bug in the adapter")
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(call.answer)
        except TimeoutError:
            return Unknown("timeout")
        finally:
            self._open.pop(call, None)
            if self._process.alive:
                account.end(call)  # its connection is closed, and the provider sees that

    async def look_up(self, message: Message) -> Finding:
        place = f"{self._process.name} {self._account.name} look-up"
        await self._ground.gate(self._process, place)
        await asyncio.sleep(self._ground.dice.between(place, 0.005, 0.2))
        self._process.check()
        finding = self._account.look_up(message)
        await self._ground.gate(self._process, f"{place} answered")
        return finding

    async def check(self) -> str:
        return "simulated"

    async def close(self) -> None:
        for call in list(self._open):
            if not call.answer.done():
                call.answer.set_result(Unknown("shutdown"))


def _later(seconds: float, account: SimulatedAccount, call: Call, *, think_s: float, answered: bool) -> None:
    def arrive() -> None:
        account.arrive(call, think_s, answered=answered)

    account.ground.loop.call_later(seconds, arrive, context=WORLD)


def marker_of(message: Message) -> str:
    """The delivery key that stands inside the text."""
    found = MARKER.search(message.content.text)
    assert found is not None, "every template of a simulation carries the marker"
    return found[1]


def classes_of(accounts: Sequence[AccountPolicy]) -> dict[str, str]:
    """Account -> K, K+L, L or N."""
    return {account.name: class_of(account.promise) for account in accounts}


def class_of(promise: Promise) -> str:
    return (
        f"{promise.provider_class}+L"
        if promise.provider_class is ProviderClass.KEY and promise.lookup
        else (promise.provider_class.value)
    )
