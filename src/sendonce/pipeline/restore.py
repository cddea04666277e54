"""Holding a store that may have lost what was written last, and letting it go again.

Whoever restores a backup, or goes on with a standby that took over, brings back a past in which deliveries
still wait that were sent since. So such a store is held (`sendonce.held`), and sends nothing. A copy is made
held; a server that changed is noticed by each process; for what no process can see there is `hold_by_hand`.

A release doubts every delivery that may have been tried in the lost span, page by page, and lets go in the
last unit, with the person and the reason. Stopped halfway, the store stays held and the next one goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from sendonce import telemetry
from sendonce.core import news
from sendonce.core.duration import say_duration
from sendonce.core.errors import ConfigError, InvalidInput, Refused
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import State
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.core.promise import Promise
from sendonce.core.routing import account_for
from sendonce.held import (
    BY_HAND,
    MARGIN_US,
    RESTORED,
    Hold,
    doubt,
    hold,
    hold_of,
    in_doubt,
    judge,
    keep,
    release,
)
from sendonce.ports.store import Delivery, Store, Tx
from sendonce.telemetry import tell
from sendonce.withdrawal import check_reason

ACTOR: Final = "backup"
CHUNK: Final = 50
"""Deliveries in one unit: about 5 ms of the write lock."""
PREVIEW_CHUNK: Final = 500
CLOSED_WHY: Final = "released"
DEADLINE_SLACK_S: Final = 5.0
"""What a call may take beyond the adapter's own time-out, as the claimer counts it."""
FATES: Final = {
    "key": "goes once more, under a key that the provider recognises",
    "text": "gets its text first, and then one of the other ways",
    "asked": "the provider is asked",
    "uncertain": "a person decides: it is not sent by itself",
    "called": "is being called, or was: settles by what that brings",
}
"""What becomes of a delivery that is doubted, in words."""


@dataclass(slots=True)
class Reconciled:
    """What a release found and did, or in a `preview` would do.

    counts    (state before, class of its account, one of `FATES`) -> how many; class "-": not routed
    epoch     the store epoch after it; 0 in a preview
    waits     account -> until when (calendar) it sends nothing yet, since calls of before may still be open
    """

    standing: Hold
    until: int
    preview: bool
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    epoch: int = 0
    waits: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def uncertain(self) -> int:
        return sum(count for (_, _, fate), count in self.counts.items() if fate == "uncertain")


def hold_everything(tx: Tx) -> None:
    """One unit, in the copy: hold it, and raise the store epoch."""
    hold(tx, RESTORED, reason="a backup: see docs/operate/backup.md", actor=ACTOR)
    tx.set_meta("epoch", str(int(tx.meta("epoch") or 0) + 1))


def hold_by_hand(store: Store, *, reason: str, actor: str) -> Hold:
    """Hold the store of a server whose files were set back, before anything runs on it. A store that is held
    already stays as it is. Raises `InvalidInput` for an empty reason."""
    reason = check_reason(reason)

    def unit(tx: Tx) -> Hold:
        return hold_of(tx) or hold(tx, BY_HAND, until=tx.now, reason=reason, actor=actor)

    return store.write(unit).result()


def released(
    store: Store,
    policy: Policy,
    *,
    reason: str,
    actor: str,
    until: int | None = None,
    nothing_lost: bool = False,
    keys: bool = True,
    preview: bool = False,
    progress: Callable[[Reconciled], None] = lambda done: None,
) -> Reconciled:
    """Reconcile a held store and let it go; durable when it returns. A preview counts, and changes nothing.

    until         when the store before stopped sending (microseconds UTC), where that is known better
    nothing_lost  this server has every commit that was answered: nothing is doubted
    keys          False: class K gets no second call either, since texts may have changed in the span

    Raises `InvalidInput` for an empty reason or an end that cannot be, `Refused` for a store that is not
    held.
    """
    reason = check_reason(reason)
    begun = store.read(partial(_begun, until)) if preview else store.write(partial(_begin, until)).result()
    done = Reconciled(begun, store.read(lambda tx: begun.until(tx.now)), preview)
    if not nothing_lost:
        size = PREVIEW_CHUNK if preview else CHUNK
        for ids in _pages(store, done, size):
            unit = partial(_reconcile, ids, begun, policy, actor, keys, preview)
            done.counts.update(store.read(unit) if preview else store.write(unit).result())
            progress(done)
    if not preview:
        let_go = partial(_let_go, policy, done, reason, actor, nothing_lost)
        done.epoch, done.waits = store.write(let_go).result()
        tell(
            telemetry.STORE_RELEASED,
            why=begun.why,
            store_epoch=done.epoch,
            count=done.total,
            uncertain=done.uncertain,
        )
    return done


def _begun(until: int | None, tx: Tx) -> Hold:
    """The hold, with an end: from here on nobody thinks of another one."""
    standing = hold_of(tx)
    if standing is None:
        raise Refused("the store is not held, so there is nothing to release", code="not_held")
    if until is not None:
        _check_until(until, standing, tx)
    return replace(standing, lost_until=until or standing.lost_until or tx.now)


def _begin(until: int | None, tx: Tx) -> Hold:
    standing = _begun(until, tx)
    keep(tx, standing)
    return standing


def _check_until(until: int, standing: Hold, tx: Tx) -> None:
    if until > tx.now + MARGIN_US:
        ahead = say_duration((until - tx.now) / SECOND)
        raise InvalidInput(
            f"the end of the lost span is {ahead} ahead: give an instant that has passed", field="until"
        )
    if until < standing.lost_from:
        raise InvalidInput(
            "the end of the lost span lies before its beginning: the store knows of a heartbeat after it; "
            "where nothing was lost, say --nothing-lost",
            field="until",
        )


def _pages(store: Store, done: Reconciled, size: int) -> Iterator[Sequence[int]]:
    """The ids of what may be in doubt, those that wait and then those that are being called. What is taken in
    meanwhile has a higher id, and is seen as well."""
    tried = done.standing.steady_until(done.until)
    waiting = {"until": done.until, "held_at": done.standing.at}
    for view, more in (("view_doubtful", waiting), ("view_doubtful_calls", {})):
        after = 0
        while ids := store.read(partial(_ids, view, {**more, "after": after, "tried": tried, "limit": size})):
            yield ids
            after = ids[-1]


def _ids(view: str, parameters: dict[str, int], tx: Tx) -> list[int]:
    return [int(row["id"]) for row in tx.rows(view, **parameters)]


def _reconcile(
    ids: Sequence[int], standing: Hold, policy: Policy, actor: str, keys: bool, preview: bool, tx: Tx
) -> Counter[tuple[str, str, str]]:
    """One unit: doubt what of these is in doubt; by what it was and what became of it."""
    if not preview and not tx.held:
        raise Refused("somebody else has released the store meanwhile", code="not_held")
    rows = [row for row in tx.deliveries.by_ids(ids) if in_doubt(row, standing, tx.now)]
    if preview:
        states = [judge(tx, row, standing, policy, actor=actor, keys=keys).standing.state for row in rows]
    else:
        states = [row.standing.state for row in doubt(tx, rows, standing, policy, actor=actor, keys=keys)]
    return Counter(
        (row.standing.state.value, _class_of(row, policy), _FATE_OF[after])
        for row, after in zip(rows, states, strict=True)
    )


_FATE_OF: Final = {
    State.SCHEDULED: "text",
    State.QUEUED: "key",
    State.SENDING: "called",
    State.RECONCILING: "asked",
    State.UNCERTAIN: "uncertain",
}


def _class_of(row: Delivery, policy: Policy) -> str:
    """The class of its account, or of the one that it will be routed to; "-" where there is none."""
    name = row.course.account
    try:
        name = name or account_for(policy.routes, row.channel, row.tenant, row.category)
        return policy.accounts[name].promise.provider_class.value
    except (ConfigError, KeyError):
        return "-"


def _let_go(
    policy: Policy, done: Reconciled, reason: str, actor: str, nothing_lost: bool, tx: Tx
) -> tuple[int, dict[str, int]]:
    """One unit, the last: the gates know of calls that may still be open, and the hold is gone."""
    standing = hold_of(tx)
    if standing is None:
        raise Refused("somebody else has released the store meanwhile", code="not_held")
    if standing != done.standing:
        raise Refused(
            "the store was held anew meanwhile, another server took over or a process came back from the one "
            "before: release it again",
            code="held_anew",
        )
    waits = {} if nothing_lost else _close_gates(tx, standing, policy)
    body: dict[str, Value] = {
        "why": standing.why,
        "line": standing.line,
        "from": standing.lost_from,
        "until": done.until,
        "nothing_lost": nothing_lost,
        "doubted": done.total,
        "uncertain": done.uncertain,
    }
    epoch = release(tx, standing)
    for topic in (news.DUE, *map(news.gate, sorted(policy.accounts))):
        tx.announce(topic)
    tx.runs.audit(actor, "release", "store", reason, {**body, "epoch": epoch})
    return epoch, waits


def _close_gates(tx: Tx, standing: Hold, policy: Policy) -> dict[str, int]:
    """Calls of the lost span hold lanes that the record does not know of: wait for their end, as the reaper
    does for those of a process that is gone."""
    waits: dict[str, int] = {}
    for gate in sorted(tx.gates.all(), key=lambda gate: gate.account):
        account = policy.accounts.get(gate.account)
        over = standing.steady_until(tx.now) + (0 if account is None else _longest_us(account.promise))
        if over > max(tx.steady, gate.closed_until):
            locked = tx.gates.lock(gate.account)
            assert locked is not None, "a gate that was listed is there"
            tx.gates.save(replace(locked, closed_until=over, closed_why=CLOSED_WHY))
            waits[gate.account] = tx.now + over - tx.steady
    return waits


def _longest_us(promise: Promise) -> int:
    held_s = promise.timeout_s if promise.held_s is None else promise.held_s
    return int((held_s + DEADLINE_SLACK_S) * SECOND)
