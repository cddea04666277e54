"""Who may be reached now: pauses and the list of allowed recipients, asked twice with one answer.

Publication and claim both ask; what they ask is here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sendonce.address import comparison_form
from sendonce.core.delivery import Channel
from sendonce.core.policy import Policy
from sendonce.ports.store import Delivery, Pause, Tx

PAUSE_LOOK_US: Final = 3_600_000_000
"""A paused row is looked at again after this at the latest; a resume wakes it at once."""

Pauses = Mapping[tuple[str, str], Pause]


def active_pauses(tx: Tx) -> Pauses:
    """The pauses in force, by (scope, name)."""
    return {(pause.scope, pause.name): pause for pause in tx.runs.pauses() if pause.until > tx.now}


def pause_of(row: Delivery, pauses: Pauses) -> Pause | None:
    """The pause that holds this delivery, if any: its channel's or its group's."""
    if not pauses:
        return None
    by_channel = pauses.get(("channel", row.channel.value))
    if by_channel is not None or not row.group:
        return by_channel
    return pauses.get(("group", f"{row.tenant}/{row.group}"))


def may_reach(policy: Policy, channel: Channel, address: str) -> bool:
    """Whether the configuration lets anything go to this address. A redirect goes elsewhere anyway."""
    if channel in policy.recipients.redirect:
        return True
    return policy.recipients.allows(comparison_form(channel.value, address))
