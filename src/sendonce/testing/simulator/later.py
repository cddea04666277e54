"""What simulated providers say later of what they took, and the door at which it is taken in.

An account tells of each message by its receipt, or by our own reference where it echoes that; a customer may
answer STOP. What is told may come twice, before the answer to the call itself, out of order, or about
somebody else's message. A provider that gets no answer at the door tells it again, as real ones do.

What was acknowledged must be found again at the end: by its own delivery and by no other, where our reference
came back or our ledger knew the receipt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sendonce.core.errors import StoreUnavailable
from sendonce.core.policy import Policy
from sendonce.core.provider_event import EventKind, ProviderEvent
from sendonce.pipeline.events import EventApplier, take_in
from sendonce.ports.provider import Message
from sendonce.store.sqlite import SqliteStore
from sendonce.testing.simulator.checks import Checker
from sendonce.testing.simulator.faults import Fault
from sendonce.testing.simulator.ports import Ground, StorePort
from sendonce.testing.simulator.process import WORLD, Process

WAIT_S: Final = 40.0
"""How long an event may wait for its delivery."""
AGAIN_S: Final = 3.0
"""After so long a provider that got no answer tells it once more."""
ENDS: Final = (EventKind.DELIVERED, EventKind.DELIVERED, EventKind.DEFERRED, EventKind.COMPLAINED)


@dataclass(frozen=True, slots=True)
class Told:
    """An event on its way to us. `about`: the delivery key it is about; "": nobody's that we know."""

    account: str
    event: ProviderEvent
    about: str


@dataclass(slots=True)
class Later:
    """What is told, and what was acknowledged."""

    ground: Ground
    policy: Policy
    _waiting: deque[Told] = field(default_factory=deque)
    _on_the_way: int = 0
    _known: dict[tuple[str, str], str] = field(default_factory=dict)
    _lost: bool = False

    @property
    def open(self) -> bool:
        """Whether something is on its way, or waits in the store."""
        if self._on_the_way or self._waiting:
            return True
        waiting = self.ground.store.read(lambda tx: tx.rows("view_events_waiting"))
        return any(int(row["waiting"]) for row in waiting)

    def set_back(self) -> None:
        """The store has lost what was taken in since, and nobody tells it again."""
        self._lost = True

    # The providers

    def took(self, account: str, message: Message, marker: str, receipt: str) -> None:
        """An account has accepted a message: what will it say of it?"""
        dice, place = self.ground.dice, f"{account} later"
        what = f"{account} of {marker}"
        if not dice.strikes(Fault.EVENT, place, what):
            return
        echoes = dice.chance(f"{place} echo") < 0.5
        event = ProviderEvent(
            identity=f"{receipt}-sent",
            kind=EventKind.SENT,
            receipt=receipt,
            send_key=message.send_key if echoes else "",
            address=message.to,
            occurred_at=self.ground.clock.now(),
        )
        early = dice.strikes(Fault.EVENT_EARLY, place, what)
        self._tell(Told(account, event, marker), 0.0 if early else dice.between(place, 0.0, 5.0))
        bounced = dice.strikes(Fault.EVENT_BOUNCE, place, what)
        end = EventKind.BOUNCED_HARD if bounced else dice.pick(f"{place} end", ENDS)
        ended = replace(event, identity=f"{receipt}-end", kind=end)
        self._tell(Told(account, ended, marker), dice.between(f"{place} end", 0.0, 15.0))
        if dice.strikes(Fault.EVENT_STOP, place, what):
            words = ProviderEvent(f"{receipt}-reply", EventKind.REPLIED, address=message.to, text="Stop.")
            self._tell(Told(account, words, ""), dice.between(f"{place} reply", 0.0, 15.0))
        if dice.strikes(Fault.EVENT_FOREIGN, place, what):
            other = dice.pick(f"{place} foreign", sorted(self.policy.accounts))
            foreign = replace(event, identity=f"{receipt}-foreign", send_key="")
            about = marker if other == account else ""
            self._tell(Told(other, foreign, about), dice.between(f"{place} foreign", 0.0, 15.0))

    def _tell(self, told: Told, wait_s: float) -> None:
        self._on_the_way += 1
        self.ground.loop.call_later(wait_s, self._arrive, told, context=WORLD)
        if self.ground.dice.strikes(Fault.EVENT_REPEATED, f"{told.account} repeats", told.event.identity):
            again_s = wait_s + self.ground.dice.between(f"{told.account} repeats", 0.0, 30.0)
            self._on_the_way += 1
            self.ground.loop.call_later(again_s, self._arrive, told, context=WORLD)

    def _arrive(self, told: Told) -> None:
        self._on_the_way -= 1
        self._waiting.append(told)

    # Our processes

    async def door(self, process: Process) -> None:
        """Takes in what arrives, a few at a time; an answer goes out only when it is durable."""
        port, dice = StorePort(process, self.ground), self.ground.dice
        while True:
            await asyncio.sleep(dice.between(process.name, 0.01, 0.5))
            if not self._waiting:
                continue
            account = self._waiting[0].account
            batch = [told for told in self._waiting if told.account == account][:20]
            for told in batch:
                self._waiting.remove(told)
            self._on_the_way += len(batch)
            again = self.ground.loop.call_later(AGAIN_S, self._again, batch, context=WORLD)
            try:
                events = [told.event for told in batch]
                await asyncio.wrap_future(take_in(port, self.policy, account, events))
            except StoreUnavailable:
                continue
            again.cancel()
            self._on_the_way -= len(batch)
            for told in batch:
                self._known[(account, told.event.identity)] = told.about

    def _again(self, batch: list[Told]) -> None:
        self._on_the_way -= len(batch)
        self._waiting.extend(batch)

    async def applier(self, process: Process) -> None:
        """Applies what waits, as `sendonce scheduler` does."""
        applier = EventApplier(StorePort(process, self.ground), self.policy, wait_s=WAIT_S)
        while True:
            wait_s = 1.0
            with suppress(StoreUnavailable):
                wait_s = await process.side.run(applier.step)
            await asyncio.sleep(wait_s + self.ground.dice.between(process.name, 0.01, 0.5))

    # At the end

    def check(self, store: SqliteStore, checker: Checker) -> None:
        """Each event stands by its own delivery, and all that was acknowledged is there."""
        kept: set[tuple[str, str]] = set()
        texts = {
            str(row["key"]): int(row["texts"])
            for row in store.read(lambda tx: tx.rows("view_simulator_kept"))
        }
        gone = checker.shadows.keys() - texts.keys()  # removed, with what was told of it
        clear = not (self.ground.dice.takes(Fault.CLOCK_FORWARD) or self.ground.dice.takes(Fault.CLOCK_BACK))
        for row in store.read(lambda tx: tx.rows("view_simulator_events")):
            name, key = (str(row["account"]), str(row["identity"])), str(row["key"])
            about = self._known.get(name, key)
            kept.add(name)
            if key and key != about:
                checker.broke(
                    f"event {name} about {about or 'nobody'} stands by {key}", kind="event", key=key
                )
            knew = clear and 0 < int(row["known_at"]) < int(row["received_at"])
            # Our reference is kept with the text: where that was destroyed, only a receipt tells whose it is.
            ours = row["send_key"] and texts.get(about)
            if about and about not in gone and not key and (ours or knew) and not self._lost:
                checker.broke(f"event {name} is not matched to {about}", kind="event lost", key=about)
        for name, about in () if self._lost else self._known.items():
            if name not in kept and about not in gone:
                checker.broke(f"event {name} was acknowledged and is not there", kind="event lost", key=about)
