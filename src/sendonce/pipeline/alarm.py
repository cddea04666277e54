"""The alarm: says so when something due is not leaving.

Once a while, by whatever process runs; it reads and writes nothing. The age that alarms is the
channel's `alert_after`, counted from the due time, over everything that is due and not yet claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sendonce import telemetry
from sendonce.core import pacing
from sendonce.core.delivery import Channel
from sendonce.core.policy import Policy
from sendonce.ports.store import Tx
from sendonce.telemetry import tell

LOOK_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Overdue:
    """What waits too long on one channel. `account` "": not even published. `age_s` of the oldest."""

    channel: Channel
    account: str
    age_s: float
    count: int


def overdue(tx: Tx, policy: Policy) -> list[Overdue]:
    """Everything that waits for longer than its channel allows."""
    rows = [*tx.rows("backlog_pending", now=tx.now), *tx.rows("backlog_queued")]
    found = []
    for row in rows:
        channel = Channel(str(row["channel"]))
        age_s = (tx.now - int(row["due_at"])) / pacing.SECOND
        if channel in policy.channels and age_s > policy.channels[channel].alert_after_s:
            found.append(Overdue(channel, str(row["account"]), age_s, int(row["n"])))
    return found


def sound(waiting: list[Overdue]) -> None:
    for each in waiting:
        tell(
            telemetry.BACKLOG_OLD,
            channel=each.channel.value,
            account=each.account,
            age_s=round(each.age_s),
            due=each.count,
        )
