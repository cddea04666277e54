"""The overview: what waits, what holds it, and who is at work.

An operator's first question is "why is nothing leaving", so each account answers it in one sentence.
Everything is read through partial indexes in a few milliseconds, also with a million future rows; where
a count would not be, it stops at `COUNT_MAX` and says so. What happened lately comes from the last
entries of the ledger, so that no index burdens the hot path for the sake of a view.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sendonce.core import pacing
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import Event, State
from sendonce.core.pacing import FOREVER, SECOND, Gate, GateLimits
from sendonce.core.policy import Policy
from sendonce.held import words_of
from sendonce.pipeline.catch_up import CatchUp
from sendonce.pipeline.handed_in import OutboxView, outbox
from sendonce.pipeline.record import counts_of_events
from sendonce.pipeline.standstill import Situation, Word, why_nothing_leaves
from sendonce.ports.store import Pause, Process, Row, Tx

COUNT_MAX: Final = 10_000
"""Future rows that are looked at one by one; the total is exact."""
FLOW_ENTRIES: Final = 10_000
FLOW_S: Final = 60.0
PROCESSES_MAX: Final = 100
PROCESS_SEEN_US: Final = 3_600 * SECOND
"""How long a process that ended is still shown."""


@dataclass(frozen=True, slots=True)
class GateView:
    """The gate of an account.

    left_s                 how long it stays closed or paused; None without an end, 0 while open
    lanes_used, lanes_of   open calls, and how many there may be at this moment
    rate                   starts per second at this moment, None where only quotas limit
    limits                 in force; `changed` where they are no longer those of the configuration
    """

    word: Word
    why: str
    left_s: float | None
    lanes_used: int
    lanes_of: int
    rate: float | None
    limits: GateLimits | None
    changed: bool


@dataclass(frozen=True, slots=True)
class Flow:
    """What happened within the last `window_s` seconds: at most a minute, less where more happened than
    is looked at."""

    window_s: float
    started: int = 0
    retried: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    unknown: int = 0
    throttled: int = 0

    def per_s(self, count: int) -> float:
        return count / self.window_s if self.window_s else 0.0


@dataclass(frozen=True, slots=True)
class ChannelView:
    """What is known of a channel before and after its accounts.

    scheduled   not published yet; `due` of them are. `more`: at least so many, see `COUNT_MAX`
    oldest_s    how long the first one due waits, over publication and queue; 0 where nothing is due
    catching_up  overdue ones that wait for their turn, the last one at `catch_up_until` (0: none)
    alert       it waits longer than `alert_after_s`
    """

    channel: str
    scheduled: int
    due: int
    more: bool
    queued: int
    sending: int
    uncertain: int
    reconciling: int
    dead: int
    rejected: int
    oldest_s: float
    alert_after_s: float
    alert: bool
    catching_up: int = 0
    catch_up_until: int = 0


@dataclass(frozen=True, slots=True)
class AccountView:
    """One provider account. `why`: why nothing is leaving, or that it is.

    ready     may be claimed now; `waiting`: for a retry, quiet hours or a pause, next at `wakes_in_s`
    oldest_s  how long the first ready one waits
    keeps     the part of its weight that it keeps among those it shares with; None: it shares nothing
    """

    name: str
    channel: str
    configured: bool
    ready: int
    waiting: int
    wakes_in_s: float | None
    sending: int
    uncertain: int
    reconciling: int
    dead: int
    rejected: int
    oldest_s: float
    gate: GateView
    flow: Flow
    why: str
    keeps: float | None = None

    @property
    def stranded(self) -> bool:
        """Deliveries hang on it, and the configuration does not know it."""
        left = self.ready + self.waiting + self.sending + self.reconciling + self.uncertain
        return not self.configured and left > 0


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process. `alive`: its lease stands; `silent_s`: how long ago it was last heard of; `leads`: it is the
    one that schedules."""

    process: Process
    silent_s: float
    alive: bool
    leads: bool = False


@dataclass(frozen=True, slots=True)
class PassView:
    """One run of the scheduler. `counts` by disposition; `finished_at` 0: still running, or killed."""

    id: int
    trigger: str
    process: str
    started_at: int
    finished_at: int
    counts: Mapping[str, int]
    complete: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything at one moment. `now`, `mark` and pauses on the calendar.

    mark   all due by it is published, 0 before the first pass; `lag_s` how far it is behind
    events what providers said and still waits to be applied, and what of it is left to people, by state
    held   why the store is held, "" where it is not
    """

    now: int
    scheduled: int
    channels: tuple[ChannelView, ...]
    accounts: tuple[AccountView, ...]
    processes: tuple[ProcessView, ...]
    pauses: tuple[Pause, ...]
    last_pass: PassView | None
    mark: int
    lag_s: float
    outbox: OutboxView
    events: Mapping[str, int]
    held: str

    @property
    def alerts(self) -> tuple[str, ...]:
        """The channels whose oldest delivery waits too long, the accounts that the configuration lost while
        deliveries hang on them, "outbox" where nobody takes in what applications scheduled, and "store" while
        it is held."""
        late = (channel.channel for channel in self.channels if channel.alert)
        lost = (account.name for account in self.accounts if account.stranded)
        return (
            *late,
            *lost,
            *(["outbox"] if self.outbox.alert else []),
            *(["store"] if self.held else []),
        )


def overview(tx: Tx, policy: Policy) -> Overview:
    """Look around. One read, bounded as the module text says."""
    seen = _Seen(tx, policy)
    accounts = tuple(seen.account(name) for name in seen.names())
    mark = int(tx.meta("mark") or 0)
    return Overview(
        now=tx.now,
        scheduled=seen.scheduled_total,
        channels=tuple(seen.channel(channel, accounts) for channel in seen.channels()),
        accounts=accounts,
        processes=seen.processes,
        pauses=seen.pauses,
        last_pass=seen.last_pass,
        mark=mark,
        lag_s=max(0, tx.now - mark) / SECOND if mark else 0.0,
        outbox=outbox(tx),
        events={look.name.lower(): count for look, count in counts_of_events(tx).items()},
        held=words_of(tx),
    )


def passes(tx: Tx, *, limit: int, before: int = 0) -> list[PassView]:
    """The run history, newest first; below this number, where one is given."""
    return [_pass(row) for row in tx.rows("view_passes_before", before=before or 2**62, limit=limit)]


def pass_of(tx: Tx, number: int) -> PassView | None:
    found = passes(tx, limit=1, before=number + 1)
    return found[0] if found and found[0].id == number else None


class _Seen:
    """What the statements brought, by channel and account."""

    def __init__(self, tx: Tx, policy: Policy) -> None:
        self._tx = tx
        self._policy = policy
        self._gates = {gate.account: gate for gate in tx.gates.all()}
        self._ready = _by(tx.rows("view_ready"), "account")
        self._waiting = _by(tx.rows("view_waiting", now=tx.now), "account")
        self._calls = _by(tx.rows("view_calls"), "account")
        self._attention = tx.rows("view_attention")
        self._flows = _flows(tx)
        head = tx.rows("view_scheduled", now=tx.now, limit=COUNT_MAX)
        self._scheduled = _by(head, "channel")
        self.scheduled_total = int(tx.rows("view_scheduled_total")[0]["total"])
        self.pauses = tuple(sorted(_active(tx), key=lambda pause: (pause.scope, pause.name)))
        self.processes = tuple(_processes(tx))
        passes = [_pass(row) for row in tx.rows("view_passes", limit=1)]
        self.last_pass = passes[0] if passes else None

    def names(self) -> list[str]:
        """Configured accounts first, then those that only deliveries still name."""
        known = list(self._policy.accounts)
        left = {*self._ready, *self._waiting, *self._calls}
        left |= {str(row["account"]) for row in self._attention if row["account"]}
        return known + sorted(left - set(known))

    def channels(self) -> list[str]:
        return [channel.value for channel in Channel if channel in self._policy.channels]

    def channel(self, channel: str, accounts: Sequence[AccountView]) -> ChannelView:
        own = [account for account in accounts if account.channel == channel]
        head = self._scheduled.get(channel, {})
        first_at, due = int(head.get("first_at", 0)), int(head.get("due", 0))
        oldest_s = max([0.0 if not due else self._age_s(first_at), *(account.oldest_s for account in own)])
        alert_after_s = self._policy.channel(Channel(channel)).alert_after_s
        states = self._states(lambda row: row["channel"] == channel)
        return ChannelView(
            channel=channel,
            scheduled=int(head.get("scheduled", 0)),
            due=due,
            more=self.scheduled_total > COUNT_MAX,
            queued=sum(account.ready + account.waiting for account in own),
            sending=sum(account.sending for account in own),
            uncertain=states.get(State.UNCERTAIN, 0),
            reconciling=states.get(State.RECONCILING, 0),
            dead=states.get(State.DEAD, 0),
            rejected=states.get(State.REJECTED, 0),
            oldest_s=oldest_s,
            alert_after_s=alert_after_s,
            alert=oldest_s > alert_after_s,
            catching_up=int(head.get("catching_up", 0)),
            catch_up_until=self._catch_up_until(Channel(channel)),
        )

    def _catch_up_until(self, channel: Channel) -> int:
        until = CatchUp(self._tx, self._policy).until(channel)
        return until if until > self._tx.now else 0

    def account(self, name: str) -> AccountView:
        account = self._policy.accounts.get(name)
        channel = account.channel.value if account is not None else self._channel_of(name)
        ready = int(self._ready.get(name, {}).get("count", 0))
        waiting_row = self._waiting.get(name, {})
        # What waits for nothing but a worker's next look is ready.
        overdue = int(waiting_row.get("due", 0))
        first_at = [
            int(row["first_at"])
            for row in (self._ready.get(name, {}), waiting_row if overdue else {})
            if row.get("first_at") is not None
        ]
        waiting = int(waiting_row.get("count", 0)) - overdue
        wakes_in_s = self._wakes_in_s(name) if waiting and not overdue else None
        sending = int(self._calls.get(name, {}).get("count", 0))
        gate = self._gate(name, sending)
        flow = self._flows.get(name, Flow(FLOW_S))
        states = self._states(lambda row: row["account"] == name)
        situation = Situation(
            ready=ready + overdue,
            waiting=waiting,
            wakes_in_s=wakes_in_s,
            due=int(self._scheduled.get(channel, {}).get("due", 0)),
            sending=sending,
            doubtful=states.get(State.UNCERTAIN, 0) + states.get(State.RECONCILING, 0),
            started=flow.started,
            configured=account is not None,
            held=self._tx.held,
            workers=sum(_works_for(process, channel) for process in self.processes),
            scheduler_paused=self._paused("scheduler", ""),
            pass_age_s=self._age_s(self.last_pass.started_at) if self.last_pass is not None else None,
            channel_paused=self._paused("channel", channel),
            gate=gate.word,
            gate_why=gate.why,
            left_s=gate.left_s,
            lanes_of=gate.lanes_of,
        )
        return AccountView(
            name=name,
            channel=channel,
            configured=account is not None,
            ready=ready + overdue,
            waiting=waiting,
            wakes_in_s=wakes_in_s,
            sending=sending,
            uncertain=states.get(State.UNCERTAIN, 0),
            reconciling=states.get(State.RECONCILING, 0),
            dead=states.get(State.DEAD, 0),
            rejected=states.get(State.REJECTED, 0),
            oldest_s=max((self._age_s(at) for at in first_at), default=0.0),
            gate=gate,
            flow=flow,
            why=why_nothing_leaves(situation),
            keeps=self._keeps(name),
        )

    def _keeps(self, name: str) -> float | None:
        if not any(len(route.accounts) > 1 and name in route.accounts for route in self._policy.routes):
            return None
        gate = self._gates.get(name)
        return pacing.PROBE_PART if gate is None else pacing.wellness(gate, self._tx.steady)

    def _gate(self, name: str, sending: int) -> GateView:
        gate, now = self._gates.get(name), self._tx.steady
        if gate is None:
            return GateView(Word.MISSING, "", None, sending, 0, None, None, changed=False)
        account = self._policy.accounts.get(name)
        word, why, until = _word(gate, now)
        rate = pacing.rate_now(gate, now)
        return GateView(
            word=word,
            why=why,
            left_s=None if until >= FOREVER else max(0, until - now) / SECOND,
            lanes_used=sending,
            lanes_of=1 if gate.probing else pacing.lanes_now(gate, now),
            rate=None if math.isinf(rate) else rate,
            limits=gate.limits,
            changed=account is not None and account.limits != gate.limits,
        )

    def _states(self, wanted: Callable[[Row], bool]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in self._attention:
            if wanted(row):
                state = str(row["state"])
                counts[state] = counts.get(state, 0) + int(row["count"])
        return counts

    def _paused(self, scope: str, name: str) -> bool:
        return any((pause.scope, pause.name) == (scope, name) for pause in self.pauses)

    def _channel_of(self, account: str) -> str:
        rows = self._tx.rows("view_channel_of", account=account)
        return str(rows[0]["channel"]) if rows else ""

    def _wakes_in_s(self, account: str) -> float | None:
        at = self._tx.deliveries.next_wake(account)
        return None if at is None else max(0, at - self._tx.now) / SECOND

    def _age_s(self, at: int) -> float:
        return max(0, self._tx.now - at) / SECOND


def _word(gate: Gate, now: int) -> tuple[Word, str, int]:
    """The gate in one word, why, and until when (steady; 0 while open)."""
    if gate.paused_until > now:
        return Word.PAUSED, "paused", gate.paused_until
    if gate.closed_until > now:
        return Word.CLOSED, gate.closed_why, gate.closed_until
    if gate.probing:
        return Word.PROBING, gate.closed_why, 0
    return Word.OPEN, "", 0


def _flows(tx: Tx) -> dict[str, Flow]:
    since = tx.now - int(FLOW_S * SECOND)
    last = int(tx.rows("view_progress_last_entry")[0]["id"])
    rows = tx.rows("view_flow", after=last - FLOW_ENTRIES, since=since)
    entries = sum(int(row["count"]) for row in rows)
    first_at = min((int(row["first_at"]) for row in rows), default=since)
    # Fewer entries than are looked at: they are all there were in the whole minute.
    window_s = FLOW_S if entries < FLOW_ENTRIES else max(0.001, (tx.now - first_at) / SECOND)
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        own = counts.setdefault(str(row["account"]), {})
        for name in _counted(str(row["event"]), row["again"] == 1):
            own[name] = own.get(name, 0) + int(row["count"])
    return {account: Flow(window_s, **own) for account, own in counts.items()}


def _counted(event: str, again: bool) -> tuple[str, ...]:
    match event:
        case Event.CLAIMED:
            return ("started", "retried") if again else ("started",)
        case Event.ACCEPTED | Event.PROVEN:
            return ("accepted",)
        case Event.REJECTED:
            return ("refused",)
        case Event.FAILED | Event.HELD:
            return ("failed",)
        case Event.UNKNOWN:
            return ("unknown",)
        case Event.THROTTLED:
            return ("throttled",)
        case _:
            return ()


def _processes(tx: Tx) -> Iterable[ProcessView]:
    for row in tx.rows(
        "view_processes", since=tx.now - PROCESS_SEEN_US, steady=tx.steady, limit=PROCESSES_MAX
    ):
        process = Process(
            id=str(row["id"]),
            role=str(row["role"]),
            channel=str(row["channel"]),
            host=str(row["host"]),
            pid=int(row["pid"]),
            started_at=int(row["started_at"]),
            beat_at=int(row["beat_at"]),
            lease_until=int(row["lease_until"]),
            stopped=row["stopped"] == 1,
        )
        alive = not process.stopped and process.lease_until > tx.steady
        leads = bool(row["leads"])
        yield ProcessView(process, max(0, tx.now - process.beat_at) / SECOND, alive, leads)


def _works_for(view: ProcessView, channel: str) -> bool:
    return view.alive and channel in view.process.channel.split(",")


def _active(tx: Tx) -> list[Pause]:
    return [pause for pause in tx.runs.pauses() if pause.until > tx.now]


def _pass(row: Row) -> PassView:
    return PassView(
        id=int(row["id"]),
        trigger=str(row["trigger"]),
        process=str(row["process"]),
        started_at=int(row["started_at"]),
        finished_at=int(row["finished_at"]),
        counts=json.loads(str(row["counts"])),
        complete=row["complete"] == 1,
    )


def _by(rows: Sequence[Row], column: str) -> dict[str, Row]:
    return {str(row[column]): row for row in rows}
