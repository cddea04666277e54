"""Dead letters: what failed for good, and how it gets another chance.

A dead letter is DEAD (every attempt failed) or REJECTED (the provider refused it, or its text could not
be made). Nothing of it was sent. A redrive queues it again under the same delivery key, with its
failures forgotten and its settings kept, at a pace: so many a second, so that a mended provider is not
flooded by everything that waited for it.

What was true when it died is not taken for granted: the expiry, the customer's word and the configuration
are read again for each, and what may not go is refused with a reason. One that was cancelled since is no
dead letter any more. A preview gives the same answers and changes nothing.

`fresh` makes the content anew: the delivery goes back to SCHEDULED with the next content version, and
the next pass renders it with the template as it is then. Without it the same bytes go out again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sendonce import telemetry
from sendonce.core.consent import refusal
from sendonce.core.delivery import parse_key
from sendonce.core.duration import say_duration
from sendonce.core.errors import InvalidInput, NotFound
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import DEAD_LETTERS, Event, Moved, State, step
from sendonce.core.pacing import SECOND
from sendonce.core.policy import Policy
from sendonce.core.reminder import DEFAULT_TENANT
from sendonce.moves import facts_of
from sendonce.pipeline.chosen import NO_DELIVERY, START, Filter, Part, checked, page, walk
from sendonce.pipeline.reach import may_reach
from sendonce.pipeline.record import Line, delivery_by_key, lines_of
from sendonce.pipeline.sentences import reason_words
from sendonce.ports.store import Content, Course, Delivery, Move, Store, Tx
from sendonce.telemetry import tell
from sendonce.withdrawal import check_reason

LIMIT_MAX: Final = 500
GROUPS_MAX: Final = 500
EXAMPLES_MAX: Final = 200
PER_S_MAX: Final = 1_000.0
EXPIRY_MAX_S: Final = 90 * 86_400.0

_STATES: Final = (State.DEAD, State.REJECTED)


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters with one reason, on one account."""

    state: str
    reason: str
    words: str
    channel: str
    account: str
    count: int
    first_due: int
    last_due: int


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Dead letters as rows. `after` asks for the next page; None: this is the last one."""

    found: tuple[Delivery, ...]
    after: tuple[str, int, int] | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call to the provider, as the ledger has it. `outcome` "" while none is known."""

    number: int
    at: int
    account: str
    worker: str
    outcome: str
    reason: str
    code: str
    took_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter, whole.

    attempts  every one, over all rounds
    rounds    how often it was redriven
    changed   what is different from when its text was fixed, in sentences
    refused   why it may not be redriven now, "" where it may; `fresh_refused` the same with content made anew
    """

    delivery: Delivery
    words: str
    attempts: tuple[Attempt, ...]
    rounds: int
    changed: tuple[str, ...]
    refused: str
    fresh_refused: str


@dataclass(slots=True)
class Redrive:
    """What a redrive did, or in a `preview` would do.

    redriven  how many go again; `last_at` the instant at which the last of them may
    refused   why not -> how many
    examples  the first `EXAMPLES_MAX` refused: (key, why)
    """

    chosen: Filter
    preview: bool
    per_s: float
    redriven: int = 0
    last_at: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str]] = field(default_factory=list)

    @property
    def seen(self) -> int:
        return self.redriven + self.refused.total()

    def refuse(self, key: str, why: str) -> None:
        self.refused[why] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append((key, why))

    def __str__(self) -> str:
        verb = "will be sent" if self.preview else "are queued"
        whys = "; ".join(f"{count} because {why}" for why, count in self.refused.most_common())
        return f"{self.redriven} {verb}, {self.refused.total()} refused{f': {whys}' if whys else ''}"


def groups(tx: Tx, *, tenant: str = "") -> list[Group]:
    """Dead letters grouped by what killed them, the largest group first."""
    rows = tx.rows(
        "view_desk_groups",
        state=State.DEAD.value,
        other=State.REJECTED.value,
        tenant=tenant,
        limit=GROUPS_MAX,
    )
    return [
        Group(
            state=str(row["state"]),
            reason=str(row["reason"]),
            words=reason_words(str(row["reason"])),
            channel=str(row["channel"]),
            account=str(row["account"]),
            count=int(row["count"]),
            first_due=int(row["first_due"]),
            last_due=int(row["last_due"]),
        )
        for row in rows
    ]


def dead_letters(
    tx: Tx, chosen: Filter, *, limit: int = 100, after: tuple[str, int, int] | None = None
) -> DeadPage:
    """A page of them. `limit` is cut to `LIMIT_MAX`. Raises `InvalidInput` for an unknown channel."""
    chosen = checked(chosen)
    limit = max(1, min(limit, LIMIT_MAX))
    state, at, id_ = after or (State.DEAD.value, *START)
    found: list[Delivery] = []
    for each in _STATES[_STATES.index(State(state)) :]:
        place = (at, id_) if each == state else START
        found += page(tx, chosen, each, place, limit + 1 - len(found))
        if len(found) > limit:
            last = found[limit - 1]
            return DeadPage(tuple(found[:limit]), (last.standing.state.value, last.course.next_at, last.id))
    return DeadPage(tuple(found), None)


def show(tx: Tx, key: str, policy: Policy, *, tenant: str = DEFAULT_TENANT) -> DeadLetter:
    """One dead letter with all its attempts, and what has changed since. Raises `NotFound`."""
    row = delivery_by_key(tx, tenant, parse_key(key).key)
    if row is None:
        raise NotFound(f"no delivery has the key {key!r:.200}: look for it with `sendonce find`")
    lines, desk = lines_of(tx, row.id), _Desk(tx, policy, [row])
    return DeadLetter(
        delivery=row,
        words=reason_words(row.course.reason),
        attempts=tuple(_attempts(lines)),
        rounds=sum(line.event in (Event.REDRIVEN, Event.RESTORED) for line in lines),
        changed=tuple(_changed(tx, row, policy)),
        refused=desk.refusal(row, fresh=False),
        fresh_refused=desk.refusal(row, fresh=True),
    )


def redrive(
    store: Store,
    chosen: Filter,
    policy: Policy,
    *,
    reason: str,
    actor: str,
    per_s: float = 5.0,
    extend_s: float = 0.0,
    fresh: bool = False,
    preview: bool = False,
    progress: Callable[[Redrive], None] = lambda done: None,
) -> Redrive:
    """Queue the chosen dead letters again; durable when it returns.

    per_s     how many a second; the account's own limits hold besides
    extend_s  valid for at least so long from now on, for those that would end sooner
    actor     the person, as "operator:NAME"

    In short units: stopped halfway, what was queued is queued, and the same call goes on with the rest.
    Raises `InvalidInput` for an empty reason, a pace or an extension that makes no sense, an unknown
    channel or what is no delivery key.
    """
    reason = check_reason(reason)
    chosen = checked(chosen)
    _check_pace(per_s, extend_s)
    done = Redrive(chosen, preview, per_s)
    plan = _Plan(store.read(lambda tx: tx.now), reason, actor, per_s, extend_s, fresh, preview)

    def unit(tx: Tx, part: Part) -> list[_Answer]:
        return _unit(tx, part, plan, policy, done.redriven)

    for answers in walk(store, chosen, _STATES, unit, preview=preview):
        for key, why, at in answers:
            if why:
                done.refuse(key, why)
            else:
                done.redriven += 1
                done.last_at = max(done.last_at, at)
        progress(done)
    if not preview and done.seen:
        _audit(store, done, reason, actor, fresh=fresh, extend_s=extend_s)
        tell(telemetry.REDRIVEN, count=done.redriven, refused=done.refused.total())
    return done


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one redrive asks for, the same for each of its deliveries."""

    started_at: int
    reason: str
    actor: str
    per_s: float
    extend_s: float
    fresh: bool
    preview: bool


_Answer = tuple[str, str, int]
"""(key, why it is refused or "", the instant at which it may go)."""


def _unit(tx: Tx, part: Part, plan: _Plan, policy: Policy, redriven: int) -> list[_Answer]:
    """One unit: judge its deliveries, move what may go."""
    desk = _Desk(tx, policy, part.rows)
    answers: list[_Answer] = []
    moves: list[Move] = []
    for row in sorted(part.rows, key=lambda row: (row.course.due_at, row.id)):
        turn = plan.started_at + int((redriven + len(moves)) / plan.per_s * SECOND)
        course = _course(row, plan, max(tx.now, turn), tx.now)
        moved = desk.judge(row, course, fresh=plan.fresh)
        if isinstance(moved, str):
            answers.append((row.key, moved, 0))
            continue
        answers.append((row.key, "", course.next_at))
        moves.append(_move(row, moved, course, plan))
    if not plan.preview:
        done = tx.deliveries.move(moves)
        assert all(done), "rows locked in this unit cannot have moved"
    return answers + [(key, NO_DELIVERY, 0) for key in part.unknown]


def _course(row: Delivery, plan: _Plan, at: int, now: int) -> Course:
    """Where it goes from here: budgets anew, the count of attempts and all settings kept.

    `first_try` stays, so that the provider's key is never taken for younger than it is.
    """
    expires_at = max(row.course.expires_at, now + int(plan.extend_s * SECOND) if plan.extend_s else 0)
    course = replace(
        row.course, next_at=at, expires_at=expires_at, failures=0, throttles=0, receipt="", reason=""
    )
    if plan.fresh:
        return replace(course, account="", tag=0, first_try=0, last_try=0)
    return course


def _move(row: Delivery, moved: Moved, course: Course, plan: _Plan) -> Move:
    details: dict[str, Value] = {
        "reason": plan.reason,
        "was": row.course.reason,
        "next": course.next_at,
        "expires": course.expires_at if course.expires_at != row.course.expires_at else None,
    }
    return Move(row, moved.rule.event, moved.standing, course, plan.actor, details)


class _Desk:
    """What a redrive must know of the world, read once for a page of rows."""

    def __init__(self, tx: Tx, policy: Policy, rows: Sequence[Delivery]) -> None:
        self._tx = tx
        self._policy = policy
        self._preferences = tx.preferences.of(
            [(row.tenant, row.channel.value, row.address_tag) for row in rows]
        )
        self._contents = tx.contents.get([(row.id, row.standing.version) for row in rows])
        self._reminders = tx.reminders.by_ids([row.reminder_id for row in rows])

    def refusal(self, row: Delivery, *, fresh: bool) -> str:
        """Why it may not be redriven at once, "" where it may."""
        course = replace(row.course, next_at=self._tx.now, account="" if fresh else row.course.account)
        judged = self.judge(row, course, fresh=fresh)
        return judged if isinstance(judged, str) else ""

    def judge(self, row: Delivery, course: Course, *, fresh: bool) -> Moved | str:
        """The move that the table allows, or why it must not go."""
        state = row.standing.state
        if state is State.ACCEPTED:
            return "it was sent: to send it again, schedule a new reminder that names it, with a reason"
        if state is State.UNCERTAIN:
            return "it may have been sent: decide it with `sendonce resolve`"
        if state not in DEAD_LETTERS:
            return f"only dead letters (DEAD, REJECTED) are redriven; this one is {state}"
        content = self._contents.get(row.id)
        damaged = row.course.reason == "bad_content:unreadable"
        if not fresh and damaged:
            return "its stored text is damaged: redrive it with its content made anew"
        if not fresh and (content is None or not row.course.account):
            return "it has no text: mend the template or the data, then redrive it with its content made anew"
        why = self._why_not(row, course, content)
        if why:
            return why
        # Asked with the course as it will be: an extended expiry counts.
        facts = facts_of(replace(row, course=course), self._policy, now=self._tx.now, steady=self._tx.steady)
        answer = step(row.standing, Event.RESTORED if fresh else Event.REDRIVEN, facts)
        return answer if isinstance(answer, Moved) else answer.why

    def _why_not(self, row: Delivery, course: Course, content: Content | None) -> str:
        policy, tx = self._policy, self._tx
        if course.account and course.account not in policy.accounts:
            return f"its account {course.account!r} is not configured any more"
        category = policy.categories.get(row.category)
        if category is None:
            return f"its category {row.category!r} is not configured any more"
        key = (row.tenant, row.channel.value, row.address_tag)
        refused = refusal(self._preferences.get(key, ()), row.category, category.no_record)
        if refused is not None:
            mend = "; mended: `sendonce suppress remove` first"
            return f"{reason_words(refused)}{mend if refused.startswith('suppressed') else ''}"
        address = content.address if content is not None else self._address(row)
        if address and not may_reach(policy, row.channel, address):
            return reason_words("recipient_not_allowed")
        if tx.now >= course.expires_at:
            return "its expiry has passed: extend it, or send it again as a new reminder"
        if course.next_at >= course.expires_at:
            return "at this pace its turn comes after its expiry: use a higher pace, or extend it"
        return ""

    def _address(self, row: Delivery) -> str:
        reminder = self._reminders.get(row.reminder_id)
        return reminder.recipients.get(row.channel.value, {}).get("to", "") if reminder is not None else ""


def _attempts(lines: Sequence[Line]) -> list[Attempt]:
    """Each claim with the outcome that was settled for it, if any."""
    attempts: list[Attempt] = []
    for line in lines:
        if line.event == Event.CLAIMED:
            worker = line.actor.removeprefix("worker:")
            attempts.append(
                Attempt(line.number("attempt"), line.at, line.word("account"), worker, "", "", "", 0.0)
            )
        elif line.event == Event.RELEASED and attempts and not attempts[-1].outcome:
            attempts.pop()  # it never started
        elif line.event in _OUTCOMES and attempts and not attempts[-1].outcome:
            attempts[-1] = replace(
                attempts[-1],
                outcome=line.event,
                reason=reason_words(line.word("reason") or line.word("evidence")),
                code=line.word("code"),
                took_s=line.number("took_us") / SECOND,
            )
    return attempts


_OUTCOMES: Final = frozenset(
    {Event.ACCEPTED, Event.FAILED, Event.THROTTLED, Event.HELD, Event.REJECTED, Event.UNKNOWN}
)


def _changed(tx: Tx, row: Delivery, policy: Policy) -> Iterator[str]:
    content = tx.contents.get([(row.id, row.standing.version)]).get(row.id)
    reminder = tx.reminders.by_ids([row.reminder_id]).get(row.reminder_id)
    name = content.template if content is not None else reminder.template if reminder is not None else ""
    newest = tx.templates.newest(row.tenant, name) if name else []
    if not newest:
        yield f"its template {name!r} is gone"
    elif content is None:
        yield f"its text was never made; template {name!r} is at version {newest[0].version}"
    elif newest[0].version != content.template_version:
        made = content.template_version
        yield f"template {name!r} is at version {newest[0].version}, its text was made from {made}"
    if reminder is not None and reminder.version > 1:
        yield f"the reminder was revised {reminder.version - 1} times in its life"
    account = row.course.account
    if account and account not in policy.accounts:
        yield f"its account {account!r} is not configured any more"
    category = policy.categories.get(row.category)
    if category is None:
        yield f"its category {row.category!r} is not configured any more"
    else:
        key = (row.tenant, row.channel.value, row.address_tag)
        refused = refusal(tx.preferences.of([key]).get(key, ()), row.category, category.no_record)
        if refused is not None:
            yield reason_words(refused)
    left = row.course.expires_at - tx.now
    passed = "its expiry passed {} ago" if left <= 0 else "it is valid for another {}"
    yield passed.format(say_duration(left / SECOND))


def _check_pace(per_s: float, extend_s: float) -> None:
    if not 0.0 < per_s <= PER_S_MAX:
        raise InvalidInput(
            f"a pace of {per_s:g} a second: use more than 0 and at most {PER_S_MAX:g}", field="per_s"
        )
    if not 0.0 <= extend_s <= EXPIRY_MAX_S:
        raise InvalidInput(
            f"an extension of {extend_s:g} s: use at most {say_duration(EXPIRY_MAX_S)}", field="extend_s"
        )


def _audit(store: Store, done: Redrive, reason: str, actor: str, *, fresh: bool, extend_s: float) -> None:
    body: Mapping[str, Value] = {
        "redriven": done.redriven,
        "refused": done.refused.total(),
        "fresh": fresh,
        "extend_s": int(extend_s),
    }
    store.write(lambda tx: tx.runs.audit(actor, "redrive", str(done.chosen), reason, body)).result()
