"""What was kept of the objectives, over a day, a week or a month: shares, counts, and the worst cases.

Judged are deliveries that fell due in the span, by their own ledgers, a day in one read. A delivery counts
once its objective can be judged: sent, or given up, or past the span that it has. What the night put off is
left out of the first two, since its category wants it so; what was cancelled or refused for good is judged by
nothing.

A duplicate is a delivery that a provider accepted twice, as a late answer tells; where the provider knows
repeats by their key (class K) it is none. "Received" counts accounts only whose provider told of any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from sendonce.core.delivery import Channel
from sendonce.core.objective import Kept, Objective, Objectives
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.core.promise import ProviderClass
from sendonce.ports.store import Row, Store, Tx

DAY_US: Final = 86_400 * SECOND
SPANS_S: Final = {"day": 86_400.0, "week": 7 * 86_400.0, "month": 30 * 86_400.0}
WORST_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Worst:
    """A delivery that missed its window. `late_s`: by how much; None: it was never taken."""

    key: str
    tenant: str
    state: str
    due_at: int
    late_s: float | None


@dataclass(frozen=True, slots=True)
class ChannelKept:
    """One channel. `due`: deliveries that fell due; `kept` by objective, those that could be judged."""

    channel: str
    objectives: Objectives
    due: int
    kept: tuple[Kept, ...]
    worst: tuple[Worst, ...]

    @property
    def ok(self) -> bool:
        return all(each.ok for each in self.kept)


@dataclass(frozen=True, slots=True)
class ObjectivesReport:
    """`start` up to but not including `end`, microseconds UTC."""

    start: int
    end: int
    channels: tuple[ChannelKept, ...]

    @property
    def ok(self) -> bool:
        return all(channel.ok for channel in self.channels)


def kept(
    store: Store,
    policy: Policy,
    *,
    span_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ObjectivesReport:
    """What was kept in the last `span_s` seconds; a read for each day and channel. `progress`: done, of."""
    end = store.read(lambda tx: tx.now)
    start = end - int(span_s * SECOND)
    days = list(_days(start, end))
    total, done = len(days) * len(policy.channels), 0
    channels = []
    for channel in (each for each in Channel if each in policy.channels):
        counts: dict[str, Counter[str]] = {}
        worst: list[Worst] = []
        for first, last in days:
            for row in store.read(partial(_judged, policy, channel, first, last, end)):
                of = counts.setdefault(str(row["account"]), Counter())
                of.update({name: int(row[name] or 0) for name in _COUNTS})
            worst += store.read(partial(_worst, policy, channel, first, last, end))
            done += 1
            progress(done, total)
        channels.append(_channel(policy, channel, counts, worst))
    return ObjectivesReport(start, end, tuple(channels))


_COUNTS: Final = (
    "due", "publish", "published", "accept", "accepted", "sent", "told", "received", "again", "recover",
    "recovered",
)  # fmt: skip


def _days(start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    while at < end:
        yield at, min(end, at + DAY_US)
        at += DAY_US


def _judged(policy: Policy, channel: Channel, start: int, end: int, now: int, tx: Tx) -> list[Row]:
    objectives = policy.channels[channel].objectives
    return tx.rows(
        "view_slo",
        channel=channel.value,
        start=start,
        end=end,
        now=now,
        published_us=_us(objectives.published_s),
        accepted_us=_us(objectives.accepted_s),
        received_us=_us(objectives.received_s or 0.0),
        recovered_us=_us(objectives.recovered_s),
    )


def _worst(policy: Policy, channel: Channel, start: int, end: int, now: int, tx: Tx) -> list[Worst]:
    accepted_us = _us(policy.channels[channel].objectives.accepted_s)
    rows = tx.rows(
        "view_slo_worst",
        channel=channel.value,
        start=start,
        end=end,
        now=now,
        accepted_us=accepted_us,
        limit=WORST_MAX,
    )
    return [
        Worst(
            str(row["key"]),
            str(row["tenant"]),
            str(row["state"]),
            int(row["due_at"]),
            (int(row["ended_at"]) - int(row["due_at"]) - accepted_us) / SECOND
            if row["state"] == "ACCEPTED"
            else None,
        )
        for row in rows
    ]


def _channel(
    policy: Policy, channel: Channel, counts: dict[str, Counter[str]], worst: list[Worst]
) -> ChannelKept:
    objectives = policy.channels[channel].objectives
    whole = sum(counts.values(), Counter[str]())
    telling = sum((of for of in counts.values() if of["told"]), Counter[str]())
    again = sum(of["again"] for name, of in counts.items() if not _absorbs(policy, name))
    found = [
        Kept(Objective.PUBLISHED, whole["publish"], whole["published"], objectives.kept),
        Kept(Objective.ACCEPTED, whole["accept"], whole["accepted"], objectives.kept),
        Kept(Objective.DUPLICATES, whole["sent"], whole["sent"] - again, objectives.duplicates),
        Kept(Objective.RECOVERED, whole["recover"], whole["recovered"], objectives.kept),
    ]
    if objectives.received_s is not None and telling:
        found.insert(2, Kept(Objective.RECEIVED, telling["sent"], telling["received"], objectives.kept))
    worst.sort(key=lambda one: (one.late_s is not None, -(one.late_s or 0.0), one.due_at))
    return ChannelKept(channel.value, objectives, whole["due"], tuple(found), tuple(worst[:WORST_MAX]))


def _absorbs(policy: Policy, account: str) -> bool:
    known = policy.accounts.get(account)
    return known is not None and known.promise.provider_class is ProviderClass.KEY


def _us(seconds: float) -> int:
    return int(seconds * SECOND)
