"""What is open and what has happened since we began to watch, per channel.

    watch = Watch(store, policy)
    now = watch.look()          # reads the store; the same whoever does the work, here or elsewhere

Lines for a pipe, a live table for a terminal, and the question whether anything is left to do all stand on
the same look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from sendonce.cli.screen import BAD, CARE, GOOD, QUIET, clock
from sendonce.core import pacing
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import Event
from sendonce.core.policy import Policy
from sendonce.pipeline.reach import active_pauses
from sendonce.ports.store import Store, Tx

PAUSED: Final = "paused"
HELD: Final = "the store is held"

HAPPENED: Final = (
    Event.PUBLISHED,
    Event.ACCEPTED,
    Event.REJECTED,
    Event.FAILED,
    Event.THROTTLED,
    Event.UNKNOWN,
    Event.DEFERRED,
    Event.EXPIRED,
    Event.SUPPRESSED,
    Event.CANCELLED,
)
"""Which events are counted, in the order shown."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One channel now.

    waiting   queued for a later moment: a retry
    held      kept back by a pause, quiet hours, a later turn, a gap in the configuration, or with the store
    happened  events since the start
    gates     account -> why nothing leaves it, "" where it is open
    """

    channel: Channel
    due: int = 0
    queued: int = 0
    waiting: int = 0
    held: int = 0
    sending: int = 0
    reconciling: int = 0
    happened: Mapping[str, int] = field(default_factory=dict)
    gates: Mapping[str, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """What is due and moves by itself: not what waits for a person, a pause or the end of the night."""
        return self.due + self.queued + self.waiting + self.sending + self.reconciling


@dataclass(frozen=True, slots=True)
class Look:
    """All channels at one moment (microseconds UTC)."""

    at: int
    channels: tuple[Standing, ...]

    @property
    def left(self) -> int:
        return sum(channel.left for channel in self.channels)


class Watch:
    """Looks at the store again and again; events are counted from its making."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self._after = int(store.read(_last_entry))
        self._happened: dict[str, Counter[str]] = {channel.value: Counter() for channel in policy.channels}

    def look(self) -> Look:
        return self._store.read(self._look)

    def _look(self, tx: Tx) -> Look:
        last = _last_entry(tx)
        for row in tx.rows("view_progress_since", after=self._after, last=last):
            self._happened.setdefault(str(row["channel"]), Counter())[str(row["event"])] += int(row["n"])
        self._after = last
        due = _by(tx, "channel", "view_progress_due", now=tx.now)
        reconciling = _by(tx, "channel", "view_progress_reconciling")
        sending = self._sending(tx)
        gates = {gate.account: HELD if tx.held else _why_closed(gate, tx.steady) for gate in tx.gates.all()}
        queued = self._queued(tx, gates)
        waits_for_people = [due] if tx.held or ("scheduler", "") in active_pauses(tx) else []
        for counts in [*waits_for_people, *([reconciling] if tx.held else [])]:
            for channel, number in counts.items():
                queued[channel, "held"] += number
            counts.clear()
        return Look(
            at=tx.now,
            channels=tuple(
                Standing(
                    channel,
                    due=due[channel],
                    queued=queued[channel, "queued"],
                    waiting=queued[channel, "waiting"],
                    held=queued[channel, "held"],
                    sending=sending[channel],
                    reconciling=reconciling[channel],
                    happened=self._counts(channel),
                    gates={
                        name: gates.get(name, "")
                        for name, account in self._policy.accounts.items()
                        if account.channel is channel
                    },
                )
                for channel in sorted(self._policy.channels)
            ),
        )

    def _queued(self, tx: Tx, gates: Mapping[str, str]) -> Counter[tuple[str, str]]:
        """What is queued, by channel and by whether it moves."""
        found: Counter[tuple[str, str]] = Counter()
        for word, view in (("queued", "view_progress_ready"), ("waiting", "view_progress_waiting")):
            for row in tx.rows(view):
                held = row.get("held") == 1 or gates.get(str(row["account"])) in (PAUSED, HELD)
                found[str(row["channel"]), "held" if held else word] += int(row["n"])
        return found

    def _sending(self, tx: Tx) -> Counter[str]:
        found: Counter[str] = Counter()
        for account, number in _by(tx, "account", "view_progress_sending").items():
            known = self._policy.accounts.get(account)
            if known is not None:
                found[known.channel] += number
        return found

    def _counts(self, channel: Channel) -> dict[str, int]:
        counted = self._happened[channel]
        return {event.value: counted[event.value] for event in HAPPENED if counted[event.value]}


def lines_of(now: Look, before: Look | None) -> list[str]:
    """One line for each channel that changed, and for each account that stopped or began to send."""
    known = {} if before is None else {each.channel: each for each in before.channels}
    lines = []
    for each in now.channels:
        last = known.get(each.channel, Standing(each.channel))
        if replace(each, gates={}) != replace(last, gates={}):
            lines.append(f"{clock(now.at)} {each.channel:<6}{_spell(each)}")
        for account, why in each.gates.items():
            if why != last.gates.get(account, ""):
                lines.append(f"{clock(now.at)} {each.channel:<6}{account} {_news(why)}")
    return lines


def _news(why: str) -> str:
    return f"waits: {why}" if why else "sends again"


def live_table(now: Look, *, hint: str) -> Table:
    """The same for a terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=hint, caption_justify="left")
    for name in (
        "channel",
        "due",
        "queued",
        "held",
        "sending",
        "in doubt",
        "sent",
        "rejected",
        "failed",
        "429s",
    ):
        table.add_column(name, justify="left" if name == "channel" else "right")
    table.add_column("account")
    for each in now.channels:
        happened = each.happened
        table.add_row(
            str(each.channel),
            _number(each.due),
            _number(each.queued + each.waiting),
            _number(each.held, CARE),
            _number(each.sending),
            _number(each.reconciling, CARE),
            _number(happened.get("accepted", 0), GOOD),
            _number(happened.get("rejected", 0), CARE),
            _number(happened.get("failed", 0) + happened.get("unknown", 0), CARE),
            _number(happened.get("throttled", 0), CARE),
            _gates(each.gates),
        )
    return table


def _spell(each: Standing) -> str:
    numbers = {
        "due": each.due,
        "queued": each.queued,
        "waiting": each.waiting,
        "held": each.held,
        "sending": each.sending,
        "in doubt": each.reconciling,
    }
    now = ", ".join(f"{number} {name}" for name, number in numbers.items() if number) or "idle"
    so_far = ", ".join(f"{number} {name}" for name, number in each.happened.items())
    return f"{now}; so far {so_far}" if so_far else now


def _number(number: int, style: str = "") -> Text:
    return Text(f"{number:,}", style=style if number else QUIET)


def _gates(gates: Mapping[str, str]) -> Text:
    shown = Text()
    for account, why in gates.items():
        shown.append("" if not shown.plain else ", ")
        shown.append(f"{account}: {why}" if why else account, style=BAD if why else "")
    return shown


def _why_closed(gate: pacing.Gate, steady: int) -> str:
    if gate.paused_until > steady:
        return PAUSED
    if gate.closed_until > steady + 2 * pacing.SECOND:  # shorter waits are pace, and no news
        return gate.closed_why or "closed"
    return ""


def _by(tx: Tx, column: str, view: str, **parameters: int | str) -> Counter[str]:
    return Counter({str(row[column]): int(row["n"]) for row in tx.rows(view, **parameters)})


def _last_entry(tx: Tx) -> int:
    return int(tx.rows("view_progress_last_entry")[0]["id"])
