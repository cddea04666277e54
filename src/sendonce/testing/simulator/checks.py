"""What must hold: asked after every transaction, at every first byte, and of everything at the end.

The checker follows the ledger beside the product, entry by entry, and believes nothing else: a delivery's
shadow is what its entries say. What reached a customer it hears from the providers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sendonce.core.consent import ANY_CATEGORY, NoRecord, refusal
from sendonce.core.delivery import parse_key
from sendonce.core.ledger import GENESIS, link, standing_of
from sendonce.core.lifecycle import ENDED, Effect, Ending, Event, Standing, State
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.pipeline.verify import verify
from sendonce.ports.store import Row, Tx
from sendonce.store.sqlite import SqliteStore
from sendonce.testing.simulator.coverage import NOTES, UNROUTED, Coverage, legal

WORDS_OF_PEOPLE: Final = frozenset({State.NOT_SENT, State.ASSUMED_SENT})
UNSENT_ENDS: Final = frozenset({State.CANCELLED, State.SUPPRESSED, State.EXPIRED, State.DEAD, State.REJECTED})
AT_REST: Final = ENDED | {State.UNCERTAIN}
PAGE: Final = 500
FIRST: Final = Standing(State.SCHEDULED)


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that must never be, and was. `kind` is the invariant in a word, `key` whose it is."""

    kind: str
    what: str
    at_s: float
    key: str = ""

    def __str__(self) -> str:
        return f"{self.at_s:10.4f} s  {self.kind}: {self.what}"


@dataclass(slots=True)
class Shadow:
    """One delivery as its ledger tells it, and what the providers saw of it.

    claims   the send keys of its claims; `starts` how many first bytes left; `tried_s` when it was claimed
             first, or first since it was known that nothing had been sent
    stopped  a cancel or an opt-out was answered, or it expired: no claim from here on
    elsewhere  the store may have lost that it went to another account: it counts as in class N
    erased   its customer was told that all is gone: no claim from here on, whatever anybody does
    beyond   what was done with it is lost in a way that nobody can know of: its effects are not judged
    """

    key: str
    tag: str
    standing: Standing = FIRST
    seq: int = 0
    head: str = GENESIS
    account: str = ""
    claims: list[str] = field(default_factory=list)
    starts: int = 0
    tried_s: float = 0.0
    effects: int = 0
    permits: int = 0
    stopped: bool = False
    was_uncertain: bool = False
    beyond: bool = False
    doubted: bool = False
    elsewhere: bool = False
    erased: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One entry, as those hear it who wait for the worst moment."""

    shadow: Shadow
    event: Event


@dataclass(frozen=True, slots=True)
class Remembered:
    """The checker at one moment."""

    last: int
    shadows: dict[str, Shadow]


@dataclass(slots=True)
class Counts:
    """What came out of a run."""

    deliveries: int = 0
    uncertain: int = 0
    lost: int = 0
    duplicates: int = 0
    cancelled_yet_sent: int = 0
    over_limit: int = 0
    states: Counter[str] = field(default_factory=Counter)


def _remember_outside(shadow: Shadow, lost: Shadow) -> None:
    """What happened outside stays, though the store has lost it: calls, effects, and words that were given.

    Nobody can know again what a person put on its way under another text, or sent once more after it had
    ended, nor what was new and is handed in again after the release.
    """
    shadow.claims = lost.claims
    shadow.starts = lost.starts
    shadow.effects = lost.effects
    shadow.permits = lost.permits
    ended = shadow.standing.state in ENDED and shadow.standing != lost.standing
    new = shadow.seq == 0 and lost.starts > 0
    shadow.beyond = lost.beyond or ended or new or shadow.standing.version != lost.standing.version


def _counted_from(before: Standing, standing: Standing) -> Standing:
    """With its epoch and version counted from those of `before`."""
    return Standing(
        standing.state,
        standing.epoch - before.epoch,
        standing.version - before.version,
        standing.maybe,
        standing.permit,
        standing.ending,
    )


class Checker:
    """`classes`: account -> provider class. `now_s`: virtual time. `shares`: accounts take over from each
    other."""

    def __init__(
        self,
        store: SqliteStore,
        classes: Mapping[str, str],
        now_s: Callable[[], float],
        *,
        shares: bool = False,
    ) -> None:
        self.coverage = Coverage()
        self.broken: list[Broken] = []
        self.news_is_bad = asyncio.Event()
        self.shadows: dict[str, Shadow] = {}
        self.listener: Callable[[Seen], None] = lambda seen: None
        self._lost: dict[str, Shadow] = {}
        self._store = store
        self._classes = classes
        self._shares = shares
        self._now_s = now_s
        self._last = 0
        self._over_limit = 0
        self._open: dict[str, None] = {}

    def broke(self, what: str, *, kind: str = "stage failed", key: str = "") -> None:
        self.broken.append(Broken(kind, what, self._now_s(), key))
        self.news_is_bad.set()

    # After a transaction

    def news(self, tx: Tx) -> list[Row]:
        """Asked at the end of a unit: what it added to the ledger."""
        (newest,) = tx.rows("view_simulator_last")  # most units add nothing, and this is cheap to ask
        if newest["id"] is None or newest["id"] == self._last:
            return []
        rows = page = tx.rows("view_simulator_since", after=self._last, limit=PAGE)
        while len(page) == PAGE:
            page = tx.rows("view_simulator_since", after=int(page[-1]["id"]), limit=PAGE)
            rows = [*rows, *page]
        return rows

    def committed(self, rows: Sequence[Row]) -> None:
        """Told once that is durable: follow the ledger to its end."""
        told = [self._follow(row) for row in rows]
        for row in rows:
            shadow = self.shadows[str(row["key"])]
            if (shadow.seq, shadow.head) == (row["row_seq"], row["row_head"]):
                self._row(shadow, row)
            self._last = int(row["id"])
        for seen in told:
            self.listener(seen)

    def _follow(self, row: Mapping[str, Any]) -> Seen:
        key, text, event = str(row["key"]), str(row["body"]), Event(str(row["event"]))
        shadow = self.shadows.get(key)
        if shadow is None:
            shadow = self.shadows[key] = Shadow(key, str(row["address_tag"]))
            if key in self._lost:
                _remember_outside(shadow, self._lost.pop(key))
        body = json.loads(text)
        if row["seq"] != shadow.seq + 1 or link(shadow.head, text) != row["hash"]:
            self.broke(
                f"{key}: entry {row['seq']} does not follow entry {shadow.seq}", kind="ledger", key=key
            )
        after = standing_of(body)
        if shadow.seq == 0:
            if (event, after) != (Event.SCHEDULED, FIRST):
                self.broke(f"{key} begins with {event}", kind="table", key=key)
        else:
            shadow.elsewhere |= self._shares and event is Event.DOUBTED
            self._step(shadow, event, after)
        if event is Event.CLAIMED:
            self._claimed(shadow, body, row)
        if event is Event.PERMITTED:
            shadow.permits += 1
        shadow.doubted |= event in (Event.UNKNOWN, Event.DOUBTED)
        if event is Event.REROUTED and shadow.doubted:
            self.broke(
                f"{key} went to another account after an attempt in doubt", kind="moved in doubt", key=key
            )
        if after.ending is not Ending.NONE or after.state in (
            State.CANCELLED,
            State.SUPPRESSED,
            State.EXPIRED,
        ):
            shadow.stopped = True
        elif event in (Event.RESTORED, Event.REDRIVEN):
            shadow.stopped = False
        shadow.was_uncertain |= after.state is State.UNCERTAIN
        shadow.standing, shadow.seq, shadow.head = after, int(row["seq"]), str(row["hash"])
        shadow.account, shadow.tag = str(row["account"]), str(row["address_tag"])
        if after.state in AT_REST:
            self._open.pop(key, None)
        else:
            self._open[key] = None
        return Seen(shadow, event)

    def _step(self, shadow: Shadow, event: Event, after: Standing) -> None:
        before, class_ = shadow.standing, self._classes.get(shadow.account, UNROUTED)
        if event in NOTES:
            self.coverage.note(event)
            if after != before:
                self.broke(f"{shadow.key}: {event} moved {before} to {after}", kind="table", key=shadow.key)
            return
        moved = _counted_from(before, after)
        counted = _counted_from(before, before)
        rule = legal(counted, event, class_).get(moved)
        if rule is None and shadow.elsewhere and class_ != UNROUTED:
            class_ = "N"
            rule = legal(counted, event, class_).get(moved)
        if rule is None:
            self.broke(
                f"{shadow.key}: no {event} leads from {before} to {after} in class {class_}",
                kind="table",
                key=shadow.key,
            )
            return
        self.coverage.rule(rule, before.state, class_)
        if Effect.ALARM in rule.effects and before.state in UNSENT_ENDS and not shadow.beyond:
            self.broke(
                f"{shadow.key} was {before.state}, and it was sent", kind="cancelled yet sent", key=shadow.key
            )

    def _claimed(self, shadow: Shadow, body: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        shadow.claims.append(str(body["send_key"]))
        if not shadow.standing.maybe:
            shadow.tried_s = self._now_s()
        if shadow.stopped:
            self.broke(
                f"{shadow.key} was claimed after it had been stopped",
                kind="claimed after cancel",
                key=shadow.key,
            )
        if shadow.erased:
            self.broke(
                f"{shadow.key} was claimed after it was erased", kind="claimed after erase", key=shadow.key
            )
        if self._says_no(shadow):
            self.broke(f"{shadow.key} was claimed after a no", kind="claimed after opt-out", key=shadow.key)
        if int(row["at"]) >= int(row["expires_at"]):
            self.broke(
                f"{shadow.key} was claimed past its expiry", kind="claimed past expiry", key=shadow.key
            )

    def _says_no(self, shadow: Shadow) -> bool:
        """Whether a record, as it stands right after the claim, forbids it."""
        address = (DEFAULT_TENANT, parse_key(shadow.key).channel.value, shadow.tag)
        records = self._store.read(lambda tx: tx.preferences.of([address])).get(address, [])
        return refusal(records, ANY_CATEGORY, NoRecord.ALLOW) is not None

    def _row(self, shadow: Shadow, row: Mapping[str, Any]) -> None:
        standing = shadow.standing
        if (row["state"], row["row_epoch"]) != (standing.state, standing.epoch):
            self.broke(
                f"{shadow.key}: the row says {row['state']}, its ledger {standing.state}",
                kind="ledger",
                key=shadow.key,
            )

    def erased(self, key: str) -> None:
        """Its customer was answered."""
        if key in self.shadows:  # else the store has lost it meanwhile, and all that was said of it
            self.shadows[key].erased = True

    # When commits are lost

    def now(self) -> Remembered:
        """What the ledger has told until now."""
        shadows = {key: replace(shadow, claims=list(shadow.claims)) for key, shadow in self.shadows.items()}
        return Remembered(self._last, shadows)

    def set_back(self, before: Remembered) -> None:
        """The store is what it was then. What the world outside has seen stays seen."""
        self._last = before.last
        for key, shadow in self.shadows.items():
            if key in before.shadows:
                _remember_outside(before.shadows[key], shadow)
            else:
                self._lost[key] = shadow
        self.shadows = before.shadows
        self._open = {
            key: None for key, shadow in self.shadows.items() if shadow.standing.state not in AT_REST
        }

    def _known(self, key: str) -> Shadow:
        return self.shadows[key] if key in self.shadows else self._lost[key]

    # At the providers

    def delicacy(self, key: str) -> float:
        """How much rather something should go wrong with this one's call: the moment is worse than others
        where it may have been sent before, and where somebody was told that it is being taken back."""
        standing = self._known(key).standing
        taken_back = standing.ending is not Ending.NONE
        return 1.0 + 2.0 * standing.maybe + 5.0 * standing.permit + 5.0 * taken_back

    def is_sending(self, key: str) -> bool:
        """Whether the record knows of a call that is open, or about to be."""
        return self._known(key).standing.state is State.SENDING

    def departed(self, key: str, send_key: str) -> None:
        """A first byte leaves."""
        shadow = self._known(key)
        shadow.starts += 1
        if send_key[:16] not in shadow.claims or shadow.starts > len(shadow.claims):
            self.broke(f"{key} is sent without a claim under that key", kind="no intent", key=key)

    def took(self, key: str) -> None:
        """A message would have reached its customer."""
        shadow = self._known(key)
        shadow.effects += 1
        if shadow.effects > 1 + shadow.permits and not shadow.beyond:
            self.broke(f"{key} reached its customer {shadow.effects} times", kind="duplicate", key=key)

    def over_limit(self, what: str) -> None:
        self._over_limit += 1
        self.broke(what, kind="over limit")

    def lanes(self, held_s: float) -> None:
        """No lane may be taken by a call that ended longer ago than anybody can be in doubt about it."""
        steady = self._store.steady()
        for row in self._store.read(lambda tx: tx.rows("view_simulator_calls")):
            if steady > int(row["send_deadline"]) + int(held_s * 1e6):
                self.broke(
                    f"{row['account']}: delivery {row['delivery_id']} still holds a lane", kind="lane kept"
                )

    # At the end

    @property
    def open(self) -> list[Shadow]:
        """What has not ended. UNCERTAIN waits for a person, and has ended as far as we can end it."""
        return [self.shadows[key] for key in self._open]

    def finish(self, *, whole: bool = True) -> Counts:
        """Everything that can only be asked of the whole; `whole` False: the run was cut short."""
        for fault in verify(self._store).faults:
            self.broke(f"{fault.key} entry {fault.seq}: {fault.what}", kind="verify", key=fault.key)
        counts = Counts(len(self.shadows), over_limit=self._over_limit)
        for shadow in self.shadows.values():
            state = shadow.standing.state
            counts.states[state.value] += 1
            counts.uncertain += state is State.UNCERTAIN
            counts.duplicates += 0 if shadow.beyond else max(0, shadow.effects - 1 - shadow.permits)
            if state is State.ACCEPTED and not shadow.effects:
                counts.lost += 1
                self.broke(f"{shadow.key} is ACCEPTED, and nothing was sent", kind="lost", key=shadow.key)
            if state in UNSENT_ENDS and shadow.effects and not shadow.beyond:
                counts.cancelled_yet_sent += 1
                self.broke(
                    f"{shadow.key} is {state}, and it was sent", kind="cancelled yet sent", key=shadow.key
                )
        for shadow in self.open if whole else ():
            counts.lost += 1
            self.broke(f"{shadow.key} has not ended: {shadow.standing}", kind="lost", key=shadow.key)
        return counts

    def digest(self) -> str:
        """SHA-256 over the ledger and the state, every byte of them."""
        digest = hashlib.sha256()
        for view in (
            "ledger",
            "deliveries",
            "gates",
            "calls",
            "preferences",
            "processes",
            "events",
            "facets",
            "seals",
            "tombstones",
        ):
            for row in self._store.read(lambda tx, view=view: tx.rows(f"view_simulator_{view}")):  # type: ignore[misc]
                digest.update(json.dumps(dict(row), sort_keys=True).encode())
        return digest.hexdigest()
