"""The alarm: says so when something due is not leaving, or nobody can look after it any more.

Once a while, by whatever process runs; it reads and writes nothing. The age that alarms is the
channel's `alert_after`, counted from the due time, over everything that is due and not yet claimed.
What hangs on an account that the configuration lost alarms at once: it has no age, and waits for ever.
What applications handed in and nobody takes in is in no delivery yet, so it alarms by itself, and so does a
store that is held.
A worker whose limits are not the ones that hold says so too: it runs with another configuration than the one
that was started last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sendonce import telemetry
from sendonce.core import pacing
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.policy import Policy
from sendonce.held import Hold
from sendonce.pipeline.handed_in import OutboxView
from sendonce.ports.store import Tx
from sendonce.telemetry import tell

LOOK_S: Final = 15.0
FORECAST_S: Final = 300.0
"""How often it is computed what will be late."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """What waits too long on one channel. `account` "": not even published. `age_s` of the oldest."""

    channel: Channel
    account: str
    age_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Stranded:
    """What hangs on an account that the configuration no longer has. `sending`: open calls."""

    account: str
    queued: int
    sending: int
    reconciling: int
    uncertain: int

    @property
    def count(self) -> int:
        return self.queued + self.sending + self.reconciling + self.uncertain

    def __str__(self) -> str:
        """What it is, and the fix."""
        parts = {
            "queued": self.queued,
            "being sent": self.sending,
            "to be asked about": self.reconciling,
            "uncertain": self.uncertain,
        }
        what = ", ".join(f"{count:,} {word}" for word, count in parts.items() if count)
        decide = f"; or decide the uncertain ones: `sendonce uncertain --account {self.account}`"
        return (
            f"not configured any more, and deliveries hang on it ({what}): put [account.{self.account}] back "
            f"until they have ended{decide if self.uncertain else ''}"
        )


def stranded(tx: Tx, policy: Policy) -> list[Stranded]:
    """What hangs on accounts that this configuration does not know, by account."""
    found: dict[str, Counter[str]] = {}
    for row in tx.rows("backlog_open"):
        name = str(row["account"])
        if name not in policy.accounts:
            found.setdefault(name, Counter())[str(row["how"])] += int(row["n"])
    return [
        Stranded(name, of["queued"], of["sending"], of[State.RECONCILING], of[State.UNCERTAIN])
        for name, of in sorted(found.items())
    ]


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


def overruled(tx: Tx, policy: Policy, channels: Collection[Channel]) -> list[str]:
    """Accounts of these channels for which a worker with other limits in its configuration started later."""
    seeded = tx.gates.configured()
    return [
        name
        for name, account in sorted(policy.accounts.items())
        if account.channel in channels and seeded.get(name) not in (None, account.limits)
    ]


@dataclass(frozen=True, slots=True)
class Coming:
    """What an account will not send in time, by the forecast: how many, from how soon on, and the rate of
    calls that would suffice (0: none would)."""

    channel: str
    account: str
    count: int
    in_s: float
    needed_per_s: float


def warn(coming: Sequence[Coming]) -> None:
    """Say so before it happens."""
    for each in coming:
        tell(
            telemetry.FORECAST_LATE,
            channel=each.channel,
            account=each.account,
            count=each.count,
            in_s=round(each.in_s),
            needed_per_s=float(f"{each.needed_per_s:.3g}"),  # a slow account's is no 0, which means none
        )


def sound(
    waiting: list[Overdue],
    lost: list[Stranded],
    handed_in: OutboxView,
    differ: Sequence[str] = (),
    held: Hold | None = None,
) -> None:
    if held is not None:
        tell(telemetry.STORE_HELD, why=held.why, line=held.line)
    for name in differ:
        tell(telemetry.LIMITS_DIFFER, account=name)
    if handed_in.alert:
        tell(telemetry.OUTBOX_OLD, waiting=handed_in.waiting, waits_s=round(handed_in.waits_s))
    for account in lost:
        tell(telemetry.ACCOUNT_LOST, account=account.account, count=account.count)
    for each in waiting:
        tell(
            telemetry.BACKLOG_OLD,
            channel=each.channel.value,
            account=each.account,
            age_s=round(each.age_s),
            due=each.count,
        )
