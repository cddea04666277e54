"""Asks a provider what became of messages that it accepted, for accounts that are not called back.

    the ledger ---- a place for each age ----> a line of receipts --one question each--> taken in as events
       1 min ---------------------------------o                                          (pipeline.events)
       5 min ----------------------o
      30 min --------------o
      ...

A message is asked about when it is a minute old, five minutes, half an hour, two hours, six, a day, and then
each day (`AGES_S`), until it is known how it ended or it is too old. Nothing of that is written down with
the message: each age has a place in the ledger, up to which all that has reached it was asked about, and the
places stand in the store. What has reached the next age already is passed over, since that one asks. So an
account that fell behind, or was away, asks about each message once, and not once for each age that it
missed.

The places move when there was an answer. A provider that is away costs time alone; a process that dies, or a
second one at once, costs a question twice. An answer is taken in as what is called back is, by the same
identities, so it does not matter who tells a thing first, nor how often.

Questions have an allowance of their own (`poll`), and so take no slot of the gate: its quotas count
messages, and a question is none. A provider that counts both together is left room by `headroom`. A 429 is
for the whole account, whatever it was said to: it closes the gate, and nothing is asked while that is
closed.

One message at which the provider fails hides nobody: where the next one is answered, it waits for its next
age. Where that fails too, the provider is away.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from sendonce import telemetry
from sendonce.core import pacing
from sendonce.core.outcome import AccountError, NoAnswer, Throttled
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.core.provider_event import AT_THE_END, RANKS
from sendonce.core.retry import WAIT_MAX_S
from sendonce.pipeline.events import take_in
from sendonce.pipeline.feed import EARLIER_US, number_at
from sendonce.pipeline.fence import Fence
from sendonce.pipeline.leader import Leader
from sendonce.ports.events import Answered, Asked, Heard, NotTold
from sendonce.ports.store import Store, Tx
from sendonce.telemetry import tell

DAY_S: Final = 86_400
AGES_S: Final = (60, 300, 1_800, 7_200, 21_600, *range(DAY_S, 7 * DAY_S, DAY_S))
"""How old a message is when it is asked about."""

LOOK_S: Final = 10.0
LEASE_S: Final = 90.0
LINE_MAX: Final = 50
"""Questions of one age before another has its turn; fewer where they would take longer than `LOOK_S`."""
SPAN: Final = 4_096
"""Numbers of the ledger that are looked at in one reading."""
SPANS_MAX: Final = 8
KEEP_S: Final = 60.0
"""So often places are kept while there is nothing to ask."""
AWAY_S: Final = 10.0
AWAY_MAX_S: Final = 600.0

_ENDED: Final = RANKS[AT_THE_END[0]]


@dataclass(frozen=True, slots=True)
class _Line:
    """Receipts to ask for now, with their numbers in the ledger, all of one age; and up to which number there
    is no other."""

    age_s: int
    entries: tuple[tuple[int, str], ...]
    reached: int


class Poll:
    """One process's part in asking one account's provider. Step it on a loop; the store is asked on threads.

    spacing_s  between two questions
    within_s   how long after its acceptance a message is asked about
    chance     draws from [0, 1)
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        account: str,
        asked: Asked,
        *,
        spacing_s: float,
        within_s: float,
        process: str,
        chance: Callable[[], float],
    ) -> None:
        self._store = store
        self._policy = policy
        self._account = account
        self._asked = asked
        self._spacing_s = spacing_s
        self._ages = tuple(age for age in AGES_S if age < within_s)
        self._within_s = within_s
        self._chance = chance
        self._leader = Leader(store, f"poll:{account}", process, lease_s=LEASE_S)
        self._fence = Fence()
        self._line: _Line | None = None
        self._at = 0  # in the line
        self._turn = 0
        self._epoch = 0
        self._places: dict[int, int] | None = None  # by age; None: as the store has them
        self._kept: dict[int, int] = {}
        self._keep_at = 0
        self._suspect = ""  # why there was no answer about the message before this one
        self._away = 0
        self._closing: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()

    async def step(self) -> float:
        """One question, or a look for what to ask; how many seconds until the next. Raises `StoreError`."""
        line = self._line
        if line is None:
            return await asyncio.to_thread(self._look)
        number, receipt = line.entries[self._at]
        answer = await self._asked.ask(receipt)
        return await asyncio.to_thread(self._take, line, number, receipt, answer)

    def stop(self) -> None:
        """Give up the question that is open: it was never asked. On the loop; then `close`."""
        self._closing = asyncio.get_running_loop().create_task(self._asked.close())

    async def close(self) -> None:
        """Let the next process have it at once, and close what is open. Idempotent."""
        try:
            await asyncio.to_thread(self._leader.resign)
        finally:
            await (self._closing or self._asked.close())

    # What to ask

    def _look(self) -> float:
        if not self._leader.leads():
            self._places = None
            return LOOK_S
        closed_s, bound, epoch, now = self._store.read(self._state)
        if closed_s > 0:
            return min(closed_s, LOOK_S)
        if bound == 0:
            return LOOK_S  # nothing was written, or the store is held
        if self._places is None or epoch != self._epoch:
            self._find_places(epoch, bound, now)
        more = False
        for _ in self._ages:
            line, behind = self._line_of(self._ages[self._turn], bound, now)
            self._turn = (self._turn + 1) % len(self._ages)
            more = more or behind
            if line.entries:
                self._line, self._at = line, 0
                return 0.0
            self._move(line.age_s, line.reached)
        self._keep(self._store.steady() >= self._keep_at)
        return 0.0 if more else LOOK_S

    def _state(self, tx: Tx) -> tuple[float, int, int, int]:
        """How long the gate is closed, up to which number the ledger stands, and of which epoch; the time."""
        gates = [gate for gate in tx.gates.all() if gate.account == self._account]
        until = max((gate.closed_until for gate in gates), default=0)
        return (until - tx.steady) / SECOND, self._fence.look(tx), tx.epoch, tx.now

    def _line_of(self, age_s: int, bound: int, now: int) -> tuple[_Line, bool]:
        """What has reached an age and not the next; and whether there is more to look at."""
        since = now - self._until_s(age_s) * SECOND
        most = max(1, min(LINE_MAX, int(LOOK_S / self._spacing_s)))
        place = self._place(age_s)
        for _ in range(SPANS_MAX):
            upto = min(bound, place + SPAN)
            if upto <= place:
                return _Line(age_s, (), place), False
            young, rows = self._store.read(self._reading(place, upto, now - age_s * SECOND, since, most))
            reached = upto if young is None else young - 1
            if rows:
                last = rows[-1][0] if len(rows) == most else reached
                return _Line(age_s, tuple(rows), last), True
            place = reached
            if young is not None:
                return _Line(age_s, (), place), False
        return _Line(age_s, (), place), True

    def _reading(
        self, after: int, upto: int, before: int, since: int, limit: int
    ) -> Callable[[Tx], tuple[int | None, list[tuple[int, str]]]]:
        def read(tx: Tx) -> tuple[int | None, list[tuple[int, str]]]:
            young = tx.rows("view_poll_young", after=after, upto=upto, before=before, now=tx.now)
            last = int(young[0]["id"]) - 1 if young else upto
            rows = tx.rows(
                "view_poll",
                after=after,
                upto=last,
                since=since,
                account=self._account,
                ended=_ENDED,
                limit=limit,
            )
            return last + 1 if young else None, [(int(row["id"]), str(row["receipt"])) for row in rows]

        return read

    def _until_s(self, age_s: int) -> int:
        """From which age on the next one asks, or nobody."""
        return next((age for age in self._ages if age > age_s), int(self._within_s))

    # What came of it

    def _take(self, line: _Line, number: int, receipt: str, answer: Answered) -> float:
        calls = 1
        match answer:
            case NoAnswer() if self._closing is not None:
                self._leave()
                return 0.0
            case Heard(batch, calls):
                if batch.events or batch.faulty:
                    take_in(
                        self._store,
                        self._policy,
                        self._account,
                        batch.events,
                        faulty=batch.faulty,
                        source=receipt.encode(),
                    ).result()
                self._counts["events"] += len(batch.events)
                self._counts["silent"] += not batch.events
            case NotTold(code):
                self._counts["silent"] += 1
                tell(telemetry.POLL_SILENT, account=self._account, code=code)
            case Throttled():
                self._leave()
                self._close_gate(answer)
                return AWAY_S
            case NoAnswer(code) if not self._suspect and self._at + 1 < len(line.entries):
                self._suspect = code
                self._at += 1
                return self._spacing_s
            case NoAnswer(code) | AccountError(_, code):
                self._leave()
                return self._wait(code)
            case _:
                assert_never(answer)
        if self._suspect:
            tell(telemetry.POLL_SILENT, account=self._account, code=self._suspect)
            self._suspect = ""
        if self._away:
            self._away = 0
            tell(telemetry.POLL_BACK, account=self._account)
        self._done(line, number)
        return self._spacing_s * calls

    def _done(self, line: _Line, number: int) -> None:
        self._counts["asked"] += 1
        self._move(line.age_s, number)
        self._at += 1
        if self._at == len(line.entries):
            self._move(line.age_s, line.reached)
            self._leave()

    def _wait(self, code: str) -> float:
        """The provider is away, or refuses to be asked."""
        wait_s = min(AWAY_MAX_S, AWAY_S * 2.0 ** min(self._away, 10)) * (0.5 + 0.5 * self._chance())
        self._away += 1
        if self._away == 1:
            tell(telemetry.POLL_AWAY, account=self._account, code=code, wait_s=wait_s)
        return wait_s

    def _leave(self) -> None:
        """Go on with another age; what is left of the line is found again."""
        self._line, self._suspect = None, ""
        counts, self._counts = self._counts, Counter()
        if counts["asked"]:
            tell(
                telemetry.POLLED,
                account=self._account,
                asked=counts["asked"],
                events=counts["events"],
                silent=counts["silent"],
            )
            self._keep(True)

    def _close_gate(self, answer: Throttled) -> None:
        asked_s = answer.retry_after_s
        wait_s = None if asked_s is None else min(asked_s, WAIT_MAX_S)

        def unit(tx: Tx) -> float:
            gate = tx.gates.lock(self._account)
            if gate is None:
                return 0.0
            after = pacing.throttled(gate, answer.scope, wait_s, chance=self._chance(), now=tx.steady)
            if after != gate:
                tx.gates.save(after)
            return max(0, after.closed_until - max(tx.steady, gate.closed_until)) / SECOND

        closed_s = self._store.write(unit).result()
        if closed_s:
            tell(
                telemetry.GATE_CLOSED,
                account=self._account,
                scope=answer.scope.value,
                why="throttled",
                code=answer.code,
                wait_s=closed_s,
            )

    # Places

    def _find_places(self, epoch: int, bound: int, now: int) -> None:
        """As they are kept. Where they are not, or numbers may have been given anew since, where the first
        stands that an age could still ask about."""
        text = self._store.read(lambda tx: tx.meta(self._name)) or "{}"
        kept = json.loads(text)
        known = kept.get("places", {}) if kept.get("epoch") == epoch else {}
        self._places = {}
        for age in self._ages:
            place = known.get(str(age))
            if place is None:
                first = now - self._until_s(age) * SECOND - EARLIER_US
                place = number_at(self._store, first, bound)
            self._places[age] = int(place)
        self._epoch, self._kept = epoch, {}

    @property
    def _name(self) -> str:
        return f"poll:{self._account}"

    def _place(self, age_s: int) -> int:
        assert self._places is not None, "places are found before anything is asked"
        return self._places[age_s]

    def _move(self, age_s: int, number: int) -> None:
        assert self._places is not None, "places are found before anything is asked"
        self._places[age_s] = max(self._places[age_s], number)

    def _keep(self, due: bool) -> None:
        if not due or self._places is None or self._places == self._kept:
            return
        places = dict(self._places)
        text = json.dumps({"epoch": self._epoch, "places": places}, separators=(",", ":"))
        self._store.write(lambda tx: tx.set_meta(self._name, text)).result()
        self._kept, self._keep_at = places, self._store.steady() + int(KEEP_S * SECOND)
