"""One attempt, as it passes from claim to send to settle inside one worker process.

Nothing here is durable: the intent was, before the claim was handed out, and the outcome will be,
once it is settled. What is lost with the process in between is what the reaper finds.
"""

from __future__ import annotations

from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Outcome
from sendonce.core.value import value
from sendonce.ports.provider import Message
from sendonce.ports.queue import Hint
from sendonce.ports.store import Delivery


@value
class Claim:
    """One delivery, ours to send until `send_deadline`. Instants on the store's steady clock.

    row          the delivery as the claim left it: settled as that while nobody else has moved it
    starts_by    how late after `slot_at` it may start, by the gate's limits and not by this process's own
                 configuration: what other processes start is spaced by the same
    store_epoch  the store's at the claim: in another one, the outcome is evidence only
    key_dies_at  for class K retries: no byte may leave from then on; None where no key is at stake
    watched      the gate waits for a success; its settling must tell the gate
    """

    delivery_id: int
    key: str
    tenant: str
    channel: Channel
    account: str
    epoch: int
    address_tag: str
    message: Message
    claimed_at: int
    slot_at: int
    starts_by: int
    send_deadline: int
    key_dies_at: int | None
    watched: bool
    row: Delivery
    store_epoch: int
    hint: Hint | None = None


@value
class Attempted:
    """A claim and what became of it. `started_at`: 0 where no byte left; steady, like `ended_at`."""

    claim: Claim
    outcome: Outcome
    started_at: int
    ended_at: int


@value
class Settled:
    """What an outcome brought: the state after it, and whether the delivery came there by it (`moved`) or
    stood there before."""

    attempt: Attempted
    state: State
    moved: bool
