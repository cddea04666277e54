"""What people ask about transports: what carries hints, how much lies where, and a change to another one.

A switch is one row in the store. Running processes see it within a second: they give back what they hold of
the old transport, claim over the new one, and the process that relays hints anew what is ready. What was
being sent is settled as ever. Nothing waits for the old transport, and nothing in it is needed any more.

So `drain` is for the broker's sake only: it takes out what is left in one that is not in force, so that it
can be taken away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError, Refused
from sendonce.pipeline.carrier import STORE, in_force, put_in_force
from sendonce.ports.queue import Depth, QueueUnavailable, Transport
from sendonce.ports.store import Store, Tx
from sendonce.withdrawal import check_reason

PULL: Final = 200
PULL_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Lying:
    """One account's queue at a broker; `depth` None: it does not answer."""

    account: str
    depth: Depth | None


@dataclass(frozen=True, slots=True)
class TransportView:
    """A transport that the configuration knows."""

    kind: str
    in_force: bool
    queues: tuple[Lying, ...]


def now_in_force(store: Store, configured: str) -> str:
    """The kind that carries hints now; `STORE`: none does."""
    return store.read(lambda tx: in_force(tx, configured))


async def look(
    transports: Mapping[str, Transport], accounts: Mapping[str, Channel], current: str
) -> list[TransportView]:
    """How much lies in each queue."""
    views = []
    for kind, transport in transports.items():
        lying = []
        for name, channel in accounts.items():
            depth: Depth | None
            try:
                depth = await transport.queue(name, channel).depth()
            except QueueUnavailable:
                depth = None
            lying.append(Lying(name, depth))
        views.append(TransportView(kind, kind == current, tuple(lying)))
    return views


def switch(
    store: Store, kind: str, *, configured: str, known: Mapping[str, Transport], actor: str, reason: str
) -> str:
    """Let another transport carry hints from now on; what did until now. One unit, with its audit entry.

    Raises `ConfigError` for a kind that the configuration does not know, `Refused` where it does already.
    """
    check_known(kind, known)
    why = check_reason(reason)

    def unit(tx: Tx) -> str:
        before = in_force(tx, configured)
        if before == kind:
            raise Refused(f"{kind} carries hints already: nothing to switch", code="in_force")
        put_in_force(tx, configured, kind)
        tx.runs.audit(actor, "transport_switch", kind, why, {"before": before})
        return before

    return store.write(unit).result()


async def drain(transport: Transport, accounts: Mapping[str, Channel]) -> dict[str, int]:
    """Take out what lies in the queues of a transport that is not in force: how many hints, by account.

    Raises `QueueUnavailable`; what was taken out until then stays out.
    """
    taken = {}
    for name, channel in accounts.items():
        queue, count = transport.queue(name, channel), 0
        while hints := await queue.pull(PULL, PULL_WAIT_S):
            await queue.ack(hints)
            count += len(hints)
        taken[name] = count
    return taken


def check_drainable(kind: str, current: str, known: Mapping[str, Transport]) -> None:
    """Raises `ConfigError` for a kind that is not in the configuration, `Refused` for the one in force."""
    if kind == STORE:
        raise Refused(
            "the store's own queue holds deliveries and no hints: nothing to drain", code="in_force"
        )
    check_known(kind, known)
    if kind == current:
        raise Refused(
            f"{kind} carries hints now: `sendonce transport switch {STORE}` first, or to another one",
            code="in_force",
        )


def check_known(kind: str, known: Mapping[str, Transport]) -> None:
    if kind != STORE and kind not in known:
        names = ", ".join((STORE, *known))
        raise ConfigError(
            f"transport {kind!r} is not in the configuration: known are {names}; another one goes under "
            "[transport] or [transport.standby]"
        )
