"""The send: one call for one claim, started in its slot or not at all.

The adapter gets its connection ready, then asks to start. Right there, with nothing between the
answer and the first byte, everything that could have changed since the claim is judged once more: the
slot (a late one is given up, never fired in a bunch), the deadline, the life of the key, this
process's own lease, a stop, a 429 that closed the gate meanwhile. What was never started is released
and costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sendonce import telemetry
from sendonce.core.outcome import Accepted, Outcome, Unknown, as_receipt
from sendonce.core.value import value
from sendonce.pipeline.attempt import Attempted, Claim
from sendonce.ports.provider import Provider, TooLate
from sendonce.telemetry import fault, tell

SECOND: Final = 1_000_000
MOMENT_S: Final = 0.25
"""What a call has left when its deadline has come. A process that was stopped, or whose machine slept, wakes
with all timers due at once: in this time the adapter ends the call itself, by what has come meanwhile."""
NAP_MIN_S: Final = 0.001
"""Event loops count in milliseconds and may wake one early; the rest of one is not worth spinning for."""


@value
class Conditions:
    """What the sender asks right before the first byte. All on the store's steady clock.

    steady       the clock
    lease_until  this process's own lease, as last renewed
    since        when that lease began: what was claimed under one that has lapsed is not ours any more
    stopping     a stop was asked for: start nothing more
    closed_at    when an answer last told this process that the gate is closed: nothing claimed before
                 it starts after it. Other processes hear of it at their next claim
    """

    steady: Callable[[], int]
    lease_until: Callable[[], int]
    stopping: Callable[[], bool]
    closed_at: Callable[[], int] = lambda: 0
    since: Callable[[], int] = lambda: 0


async def send(claim: Claim, provider: Provider, conditions: Conditions) -> Attempted:
    """Make the call. Never raises but on cancellation; a bug in an adapter is an unknown outcome."""
    started_at = 0

    async def start() -> None:
        nonlocal started_at
        now = conditions.steady()
        while now < claim.slot_at and not conditions.stopping():
            # Timers of an event loop may fire a fraction of a millisecond early; a slot never does.
            await asyncio.sleep((claim.slot_at - now) / SECOND)
            now = conditions.steady()
        _check(claim, conditions, now)
        started_at = now

    outcome: Outcome
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(None)
    # An adapter ends its calls itself, well before. One that does not would keep the lane for ever.
    deadline = loop.call_later(
        (claim.send_deadline - conditions.steady()) / SECOND,
        lambda: limit.reschedule(loop.time() + MOMENT_S),
    )
    try:
        async with limit:
            outcome = _readable(await provider.send(claim.message, start=start))
    except Exception as error:
        # The contract says that this cannot be. Where it is, the honest answer is that nobody knows.
        tell(telemetry.ADAPTER_BUG, delivery=claim.key, account=claim.account, **fault(error))
        outcome = Unknown("adapter_bug", type(error).__name__)
    finally:
        deadline.cancel()
    return Attempted(claim, outcome, started_at, conditions.steady())


def _readable(outcome: Outcome) -> Outcome:
    """An adapter of somebody else may hand on whatever a provider said."""
    if not isinstance(outcome, Accepted) or (receipt := as_receipt(outcome.receipt)) == outcome.receipt:
        return outcome
    return replace(outcome, receipt=receipt)


def _check(claim: Claim, conditions: Conditions, now: int) -> None:
    """Raise `TooLate` where the first byte must not leave any more."""
    if conditions.stopping():
        raise TooLate("stopping")
    if claim.claimed_at < conditions.closed_at():
        raise TooLate("gate_closed")
    if now > claim.starts_by:
        late_s = (now - claim.slot_at) / SECOND
        tell(telemetry.SLOT_MISSED, delivery=claim.key, account=claim.account, late_s=late_s)
        raise TooLate("slot_missed")
    if now >= claim.send_deadline:
        raise TooLate("deadline")
    if claim.key_dies_at is not None and now >= claim.key_dies_at:
        raise TooLate("key_dying")
    if now >= conditions.lease_until() or claim.claimed_at < conditions.since():
        raise TooLate("lease_lost")
