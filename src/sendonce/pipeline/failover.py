"""Failover: what waits for an account that is held goes to another that shares with it, and never twice.

Only what nobody can have got may go: it is queued, no attempt of it was ever uncertain or doubted (not even
one that was cleared up since), and no call of it is open. Its key, its text and its send key stay; its epoch
is raised, so that a hint of before leads nowhere. Everything else waits where it is: whether a key holds, and
what a look-up finds, only the account that may have it can say.

The gate of the account that it leaves is locked all the while, as for a claim: nobody claims there meanwhile.
The text was frozen for the account that it leaves, so the other one must declare its sender.

By itself it happens once to a delivery, after the account was held for `move_after`, or earlier where its
time would be over by then; and no faster than the other account sends at half its rate, since the first may
be well again soon. A person may ask for it at any time, under the same guards.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from sendonce import telemetry
from sendonce.core import news, pacing
from sendonce.core.errors import ConfigError, InvalidInput, NotFound, Refused
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import Event
from sendonce.core.pacing import SECOND
from sendonce.core.policy import AccountPolicy, Policy
from sendonce.core.routing import WELL, Route, first_of, route_for
from sendonce.moves import move_on
from sendonce.pipeline.fair_order import Tags
from sendonce.ports.store import Content, Delivery, Move, Outgoing, Store, Tx
from sendonce.telemetry import tell
from sendonce.withdrawal import check_reason

ACTOR: Final = "failover"
PAGE: Final = 100
"""Rows looked at in one unit."""
EVERY_US: Final = 5 * SECOND
"""How often one account is looked at, by whichever process."""
SHARE_OF_RATE: Final = 0.5
"""What of its rate the other account is given of what waited elsewhere."""
SPENT: Final = frozenset({Event.UNKNOWN.value, Event.DOUBTED.value})
BEGINNING: Final = (-(2**63), 0)


@dataclass(frozen=True, slots=True)
class _Cursor:
    """How far a line was looked through: fresh ones first, then retries. `at`: when (steady)."""

    at: int = 0
    retries: bool = False
    after: tuple[int, int] = BEGINNING


@dataclass(slots=True)
class Rerouted:
    """What was moved, or would be, and what stays where it is, by why."""

    source: str
    target: str
    preview: bool
    moved: int = 0
    left: Counter[str] = field(default_factory=Counter)

    @property
    def looked(self) -> int:
        return self.moved + self.left.total()


LEFT: Final = {
    "uncertain": "may be sent already, or may once have been: only this account can know",
    "sender": "sent as somebody that the other account does not declare",
    "route": "the accounts do not share it",
    "size": "larger than a quota of the other account",
    "content": "its stored text is gone or damaged",
    "expired": "its time is over",
    "moved": "moved before",
    "filter": "not asked for",
}
"""Why something stays, in words."""


def relieve(tx: Tx, policy: Policy, source: str) -> int:
    """One unit: move what may leave an account that is held, as far as its time has come; how many.

    Nothing where another process has just done it.
    """
    if tx.held or not partners(policy, source):
        return 0
    gate = tx.gates.lock(source)
    cursor = _cursor(tx.meta(_name(source)))
    if gate is None or not gate.ill_since or tx.steady - cursor.at < EVERY_US:
        return 0
    tags = Tags(tx)
    wellness = tags.wellness(tuple(policy.accounts))
    room = {
        other.account: _a_turn(pacing.rate_now(other, tx.steady))
        for other in tx.gates.all()
        if wellness.get(other.account, 0.0) >= WELL
        and max(other.closed_until, other.paused_until) <= tx.steady
    }
    held_us = tx.steady - gate.ill_since

    def target_of(row: Delivery, route: Route) -> str:
        move_after_us = int(policy.channel(row.channel).move_after_s * SECOND)
        if held_us < move_after_us and row.course.expires_at - tx.now > move_after_us:
            return ""
        weights = {
            share.account: float(share.weight)
            for share in route.shares
            if share.account != source and room.get(share.account, 0) > 0
        }
        return first_of(weights, row.tenant, row.key) if weights else ""

    tx.deliveries.wake(source, tx.now)
    rows: list[Delivery] = []
    size = min(PAGE, sum(room.values()))
    for _ in range(2):  # both lines, where the first one ends
        page, cursor = _page(tx, source, cursor, size - len(rows))
        rows += page
        if cursor == _Cursor():
            break
    tx.set_meta(_name(source), _spell(replace(cursor, at=tx.steady)))
    moves: list[Move] = []
    contents = tx.contents.get([(row.id, row.standing.version) for row in rows])
    past = tx.deliveries.doubts([row.id for row in rows])
    for row in rows:
        route = _route(policy, row)
        target = target_of(row, route) if route is not None else ""
        if not target:
            continue
        judged = _judge(
            tx, row, policy, policy.accounts[target], contents, past[row.id], tags, by_itself=True
        )
        if not judged:
            room[target] -= 1
            why = f"held:{gate.closed_why or 'probing'}"
            moves.append(_move(tx, row, policy, target, tags, ACTOR, why))
    _do(tx, moves, policy, tags)
    for target, count in Counter(move.course.account for move in moves).items():
        tell(telemetry.REROUTED, account=source, target=target, count=count, why="held")
    return len(moves)


def reroute(
    store: Store,
    policy: Policy,
    source: str,
    target: str,
    *,
    reason: str,
    actor: str,
    group: str = "",
    category: str = "",
    preview: bool = False,
    progress: Callable[[Rerouted], None] = lambda done: None,
) -> Rerouted:
    """Move what waits for one account to another, by a person's word. Durable when it returns.

    In units of `PAGE`; safe to repeat, and while everything runs. What waits for the moment of its next
    attempt is left until that has come.

    Raises `InvalidInput` for an empty reason or accounts that share nothing, `NotFound` for an account that
    is not configured, `Refused` while the store is held.
    """
    reason = check_reason(reason)
    check_partners(policy, source, target)
    done = Rerouted(source, target, preview)
    cursor = _Cursor()
    unit = partial(_reroute_page, policy, done.source, target, reason, actor, group, category, preview)
    while True:
        step = partial(unit, cursor)
        moved, left, cursor, ended = store.read(step) if preview else store.write(step).result()
        done.moved += moved
        done.left.update(left)
        progress(done)
        if ended:
            break
    if not preview and done.looked:
        body: dict[str, Value] = {"to": target, "moved": done.moved, "left": done.left.total()}
        store.write(lambda tx: tx.runs.audit(actor, "move", source, reason, body)).result()
        tell(telemetry.REROUTED, account=source, target=target, count=done.moved, why="by hand")
    return done


def check_partners(policy: Policy, source: str, target: str) -> None:
    """Raise `NotFound` for an account that is not configured, `InvalidInput` for two that share nothing."""
    for name in (source, target):
        if name not in policy.accounts:
            known = ", ".join(sorted(policy.accounts))
            raise NotFound(f"account {name!r:.80} is not known: use one of {known}")
    if target not in partners(policy, source):
        raise InvalidInput(
            f"{source} and {target} share nothing: list both under `accounts` of one [channel.NAME] or one "
            "[[route]]",
            field="to",
        )


def _reroute_page(
    policy: Policy,
    source: str,
    target: str,
    reason: str,
    actor: str,
    group: str,
    category: str,
    preview: bool,
    cursor: _Cursor,
    tx: Tx,
) -> tuple[int, Counter[str], _Cursor, bool]:
    if tx.held:
        raise Refused("the store is held: release it first, then move what waits", code="held")
    if not preview:
        if tx.gates.lock(source) is None:
            raise NotFound(f"account {source!r:.80} has no gate yet: it has never sent anything")
        tx.deliveries.wake(source, tx.now)
    tags, left = Tags(tx), Counter[str]()
    rows, after = _page(tx, source, cursor, PAGE)
    contents = tx.contents.get([(row.id, row.standing.version) for row in rows])
    past = tx.deliveries.doubts([row.id for row in rows])
    moves: list[Move] = []
    for row in rows:
        if (group and row.group != group) or (category and row.category != category):
            left["filter"] += 1
            continue
        why = _judge(tx, row, policy, policy.accounts[target], contents, past[row.id], tags, by_itself=False)
        if why:
            left[why] += 1
        else:
            moves.append(_move(tx, row, policy, target, tags, actor, reason))
    if not preview:
        _do(tx, moves, policy, tags)
    return len(moves), left, after, after == _Cursor()


def _judge(
    tx: Tx,
    row: Delivery,
    policy: Policy,
    target: AccountPolicy,
    contents: Mapping[int, Content],
    past: frozenset[str],
    tags: Tags,
    *,
    by_itself: bool,
) -> str:
    """Why it stays, one of `LEFT`; "" where it may go. `past`: what its ledger says that decides, see
    `Deliveries.doubts`."""
    route = _route(policy, row)
    if route is None or target.name not in route.accounts or row.channel is not target.channel:
        return "route"
    if row.standing.maybe or not SPENT.isdisjoint(past):
        return "uncertain"
    if by_itself and Event.REROUTED.value in past:
        return "moved"
    if row.course.expires_at <= tx.now:
        return "expired"
    try:
        sender = json.loads(contents[row.id].payload)["sender"]
    except (LookupError, TypeError, ValueError):
        return "content"
    if not sender or not target.may_send_as(sender):
        return "sender"
    return "" if pacing.fits_ever(tags.limits(target), row.course.cost) else "size"


def _move(tx: Tx, row: Delivery, policy: Policy, target: str, tags: Tags, actor: str, reason: str) -> Move:
    course = replace(
        row.course,
        account=target,
        tag=tags.next(target, row),
        next_at=tx.now,
        first_try=0,  # the other account counts the life of a key from its own first call
        reason="",
    )
    details: dict[str, Value] = {"from": row.course.account, "account": target, "reason": reason}
    move = move_on(row, Event.REROUTED, policy, tx, actor=actor, course=course, details=details)
    assert isinstance(move, Move), f"the table lets go what nobody can have got: {move}"
    return move


def _do(tx: Tx, moves: Sequence[Move], policy: Policy, tags: Tags) -> None:
    done = tx.deliveries.move(moves)
    assert all(done), "rows locked in this unit cannot have moved"
    tags.save()
    for account in sorted({move.course.account for move in moves}):
        tx.announce(news.queued(account))
    if policy.hints:
        tx.hint(
            [
                Outgoing(move.before.id, move.standing.epoch, move.course.account, move.course.tag)
                for move in moves
            ]
        )


def _page(tx: Tx, source: str, cursor: _Cursor, size: int) -> tuple[list[Delivery], _Cursor]:
    """The next rows of the line; after the last of all of them the cursor is at its beginning again."""
    if size <= 0:
        return [], cursor
    rows = tx.deliveries.line(source, retries=cursor.retries, after=cursor.after, limit=size)
    if len(rows) == size:
        return rows, replace(cursor, after=(rows[-1].course.tag, rows[-1].id))
    return rows, _Cursor() if cursor.retries else _Cursor(retries=True)


def partners(policy: Policy, source: str) -> frozenset[str]:
    """Who shares something with this account."""
    sharing: Iterable[Route] = (route for route in policy.routes if source in route.accounts)
    return frozenset(name for route in sharing for name in route.accounts) - {source}


def _route(policy: Policy, row: Delivery) -> Route | None:
    try:
        return route_for(policy.routes, row.channel, row.tenant, row.category)
    except ConfigError:
        return None


def _a_turn(rate: float) -> int:
    """How many an account takes over in one turn."""
    return math.ceil(SHARE_OF_RATE * min(rate, pacing.RATE_MAX) * EVERY_US / SECOND)


def _name(source: str) -> str:
    return f"failover {source}"


def _spell(cursor: _Cursor) -> str:
    return json.dumps([cursor.at, cursor.retries, *cursor.after])


def _cursor(text: str | None) -> _Cursor:
    if not text:
        return _Cursor()
    at, retries, place, id_ = json.loads(text)
    return _Cursor(at, retries, (place, id_))
