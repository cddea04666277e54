"""The scheduler: picks what is due in a bounded window, publishes it durably, and stops.

It never calls a provider. A pass takes due rows in small units until none is left or its bound is
reached; it may run at any moment, late, twice, by two processes at once, and be killed anywhere.
What makes that harmless: a row is found by its state, and leaves that state in the transaction that
publishes it. So there is no mark to lose; the mark only reports.

Each row that a pass looks at leaves the head of the line: published, ended with a reason, or put off
to a later moment. Nothing starves behind rows that cannot go, and what falls due on time does not wait
behind what a pause or an outage left: where a catch-up is set, that comes in turns.

Publication is where the world is asked: cancelled and opted-out rows have left already; consent,
expiry, quiet hours in the customer's zone and the list of allowed recipients are read here, and once
more at the claim. Content is frozen here: from now on, each attempt sends the same bytes.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sendonce import metrics, telemetry
from sendonce.core import catch_up, news, pacing
from sendonce.core.consent import Preference, refusal
from sendonce.core.delivery import Channel, mark_of, send_key
from sendonce.core.due import Defer, Expire, Publish, decide_time, known_zone, window_of
from sendonce.core.errors import ConfigError, InvalidInput
from sendonce.core.ledger import Value
from sendonce.core.lifecycle import Event, NotMoved, State
from sendonce.core.policy import AccountPolicy, Policy
from sendonce.core.routing import Choice
from sendonce.core.segments import count as count_parts
from sendonce.core.unsubscribe import Unsubscription, unsubscribe_url
from sendonce.moves import move_on
from sendonce.pipeline.catch_up import CatchUp
from sendonce.pipeline.fair_order import Tags
from sendonce.pipeline.reach import PAUSE_LOOK_US, Pauses, active_pauses, may_reach, pause_of
from sendonce.ports.store import FIRST, Content, Course, Delivery, Move, Outgoing, Reminder, Store, Tx
from sendonce.render import SALT, Rendered, content_hash
from sendonce.telemetry import tell
from sendonce.template_book import TemplateBook, from_tx, variables

CHUNK: Final = 50
"""Rows in one unit where everybody waits for one writer: about 5 ms of its lock."""
CHUNK_BESIDE: Final = 200
"""Rows in one unit where others write beside it, and only who wants these very rows waits."""
ACTOR: Final = "scheduler"
TIMER: Final = "timer"
"""The trigger of our own timer."""
MARK_STALE_US: Final = 10 * pacing.SECOND
"""How old the mark may grow while nothing falls due."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did. `counts` by disposition: published, deferred, expired, suppressed, rejected; and
    besides, "late": of the published, how many were due before the mark of the pass before and came after
    it; "catch_up": of the deferred, how many are overdue and got a later turn.

    mark     everything due by this instant is published or decided (calendar microseconds)
    complete the pass saw everything that was due; False: it stopped at its bound
    """

    id: int
    trigger: str
    counts: Mapping[str, int]
    mark_before: int
    mark: int
    started_at: int
    finished_at: int
    complete: bool

    @property
    def examined(self) -> int:
        return _examined(self.counts)


class Scheduler:
    """Runs passes. `process` names this process in the run history; `salt` is chance, as text."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        book: TemplateBook,
        *,
        process: str,
        salt: Callable[[], str] = secrets.token_hex,
    ) -> None:
        self._store = store
        self._policy = policy
        self._book = book
        self._process = process
        self._salt = salt
        self._epoch = 0
        self._published: list[tuple[str, int]] = []

    def run(
        self,
        *,
        trigger: str,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda published: None,
    ) -> PassReport | None:
        """One pass; None while the scheduler is paused or the store is held. Blocks for at most
        `pass_time_max_s`.

        Each pass is kept in the run history, except the timer's that found nothing: one a second would
        bury the others.

        `stopping` is asked between units. Raises `StoreError`; whatever was published until then is.
        """
        policy = self._policy
        begun = self._store.read(lambda tx: _begin(tx, quiet=trigger == TIMER))
        if begun is None:
            return None
        if begun.idle:
            if begun.at - begun.mark > MARK_STALE_US:
                self._store.write(lambda tx: _advance(tx, begun.at)).result()
            return PassReport(0, trigger, {}, begun.mark, begun.mark, begun.at, begun.at, complete=True)
        mark_before, started_at = begun.mark, begun.at
        id_ = self._store.write(lambda tx: tx.runs.begin_pass(trigger, self._process, mark_before)).result()
        self._refresh(begun.epoch)
        until = self._store.steady() + int(policy.pass_time_max_s * pacing.SECOND)
        counts: Counter[str] = Counter()
        complete, left, since = False, policy.pass_rows_max, FIRST
        while left > 0 and not stopping():
            size = min(CHUNK if self._store.one_writer else CHUNK_BESIDE, left)
            chunk, since = self._store.write(partial(self._next, mark_before, size, since)).result()
            counts.update(chunk)
            self._count_published()
            progress(counts["published"])
            examined = _examined(chunk)
            if examined < size:
                complete = True
                break
            left -= examined
            if self._store.steady() >= until:
                break
        report = self._store.write(
            lambda tx: _finish(tx, id_, trigger, mark_before, started_at, counts, complete=complete)
        ).result()
        _tell_pass(report)
        _count_pass(report)
        return report

    def _count_published(self) -> None:
        """How late each was that the last unit published, now that it is durable."""
        for channel, late_us in self._published:
            metrics.PUBLISH_LATENESS.observe((channel,), late_us / pacing.SECOND)

    def _refresh(self, epoch: int) -> None:
        """See which templates are the newest; all of them anew where the store was released since."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._book.forget()
        self._book.refresh()

    def publish(self, delivery_id: int) -> None:
        """Decide one delivery that is due, as a pass would, and no other. Not while the scheduler is paused.

        Raises `StoreError`.
        """
        self._refresh(self._store.read(lambda tx: tx.epoch))
        self._store.write(partial(self._only, delivery_id)).result()

    def _next(self, mark_before: int, size: int, since: int, tx: Tx) -> tuple[Counter[str], int]:
        """One unit: decide the next due rows, up to `size`, all of them; from where the next unit goes on.

        Not from the beginning: what was decided leaves an index entry there until the server has tidied
        up. What comes in below is for the next pass.
        """
        self._published = []  # a unit may run again
        rows = [] if tx.held else tx.deliveries.due(tx.now, size, since)
        if not rows:
            return Counter(), since
        return self._decide_all(rows, mark_before, tx), rows[-1].course.next_at

    def _only(self, delivery_id: int, tx: Tx) -> None:
        rows = [
            row
            for row in tx.deliveries.by_ids([delivery_id])
            if row.standing.state is State.SCHEDULED and row.course.next_at <= tx.now
        ]
        if rows and not tx.held and ("scheduler", "") not in active_pauses(tx):
            self._decide_all(rows, 0, tx)

    def _decide_all(self, rows: Sequence[Delivery], mark_before: int, tx: Tx) -> Counter[str]:
        reminders = tx.reminders.by_ids([row.reminder_id for row in rows])
        preferences = tx.preferences.of([(row.tenant, row.channel.value, row.address_tag) for row in rows])
        pauses = active_pauses(tx)
        tags, overdue = Tags(tx), CatchUp(tx, self._policy)
        counts: Counter[str] = Counter()
        moves: list[Move] = []
        contents: list[Content] = []
        put_off: list[tuple[Delivery, int]] = []
        for row in rows:
            decided = self._decide(
                row,
                reminders[row.reminder_id],
                preferences.get((row.tenant, row.channel.value, row.address_tag), []),
                pauses,
                tags,
                overdue,
                tx,
            )
            match decided:
                case _PutOff(until, reason):
                    counts["deferred"] += 1
                    if reason == catch_up.REASON:
                        counts["catch_up"] += 1
                    if row.course.reason == reason:
                        put_off.append((row, until))
                        continue
                    course = replace(row.course, next_at=until, reason=reason)
                    move = move_on(
                        row,
                        Event.DEFERRED,
                        self._policy,
                        tx,
                        actor=ACTOR,
                        course=course,
                        details={"reason": reason, "until": until},
                    )
                case _End(event, reason):
                    counts["rejected" if event is Event.UNRENDERABLE else event.value] += 1
                    course = replace(row.course, reason=reason)
                    move = move_on(
                        row,
                        event,
                        self._policy,
                        tx,
                        actor=ACTOR,
                        course=course,
                        details={"reason": reason},
                    )
                case _Go(course, content, details):
                    counts["published"] += 1
                    # By when it was to be looked at: what an earlier pass put off is no late arrival.
                    counts["late"] += int(row.course.next_at < mark_before - int(self._policy.grace_s * 1e6))
                    self._published.append((row.channel.value, max(0, tx.now - row.course.next_at)))
                    contents.append(content)
                    move = move_on(
                        row, Event.PUBLISHED, self._policy, tx, actor=ACTOR, course=course, details=details
                    )
            assert not isinstance(move, NotMoved), move
            moves.append(move)
        tx.contents.put(contents)
        done = tx.deliveries.move(moves)
        assert all(done), "rows read in this unit cannot have moved"
        tx.deliveries.defer(put_off)
        tags.save()
        overdue.save()
        for account in sorted({move.course.account for move in moves if move.event is Event.PUBLISHED}):
            tx.announce(news.queued(account))
        if self._policy.hints:
            tx.hint(
                [
                    Outgoing(move.before.id, move.standing.epoch, move.course.account, move.course.tag)
                    for move in moves
                    if move.event is Event.PUBLISHED
                ]
            )
        return counts

    def _decide(
        self,
        row: Delivery,
        reminder: Reminder,
        preferences: Sequence[Preference],
        pauses: Pauses,
        tags: Tags,
        overdue: CatchUp,
        tx: Tx,
    ) -> _Decision:
        policy, now = self._policy, tx.now
        try:
            category = policy.category(row.category)
            choice = self._choose(row, reminder, tags)
            account = policy.accounts[choice.account]
        except (ConfigError, KeyError) as error:
            # A configuration that lost a name must lose no reminder: it waits, visibly, until the
            # name is back or its time is over.
            if now >= row.course.expires_at:
                return _End(Event.EXPIRED, "past_expiry")
            tell(telemetry.CONFIGURATION_GAP, delivery=row.key, why=type(error).__name__)
            return _PutOff(min(now + 60 * pacing.SECOND, row.course.expires_at), "configuration")
        verdict = decide_time(
            now=now,
            next_at=row.course.next_at,
            expires_at=row.course.expires_at,
            quiet=category.quiet,
            zone=known_zone(reminder.zone, policy.zone(row.tenant)),
            on_quiet=category.on_quiet.value,
        )
        pause = pause_of(row, pauses)
        match verdict:
            case Expire(reason):
                return _End(Event.EXPIRED, reason.value)
            case _ if pause is not None:
                until = min(pause.until, now + PAUSE_LOOK_US, row.course.expires_at)
                return _PutOff(until, f"paused:{pause.scope}")
            case Defer(until):
                return _PutOff(until, "quiet_hours")
            case Publish():
                pass
        refused = refusal(preferences, row.category, category.no_record)
        if refused is not None:
            return _End(Event.SUPPRESSED, refused)
        try:
            recipient = reminder.recipients[row.channel.value]
            if not may_reach(policy, row.channel, recipient["to"]):
                return _End(Event.SUPPRESSED, "recipient_not_allowed")
            turn = overdue.turn_of(row)
            if turn > now:
                return _PutOff(turn, catch_up.REASON)
            return self._freeze(row, reminder, account, recipient, tags, tx, meant=choice.meant)
        except InvalidInput as error:
            code = error.code
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            # Not what intake lets through: the row was damaged. It ends alone, and hides nobody.
            code = type(error).__name__
        tell(telemetry.BAD_CONTENT, delivery=row.key, code=code)
        return _End(Event.UNRENDERABLE, f"bad_content:{code}")

    def _choose(self, row: Delivery, reminder: Reminder, tags: Tags) -> Choice:
        return self._policy.choose(
            row.channel,
            row.tenant,
            row.category,
            row.key,
            before=row.course.account,
            sender=reminder.recipients.get(row.channel.value, {}).get("sender", ""),
            wellness=tags.wellness,
        )

    def _freeze(
        self,
        row: Delivery,
        reminder: Reminder,
        account: AccountPolicy,
        recipient: Mapping[str, str],
        tags: Tags,
        tx: Tx,
        *,
        meant: str,
    ) -> _Go:
        compiled = self._book.get(row.tenant, reminder.template, reminder.template_version, load=from_tx(tx))
        unsubscribe = self._unsubscribe_url(row)
        rendered = compiled.part(row.channel).render(
            variables(
                json.loads(reminder.data),
                reminder=reminder.reminder,
                customer=reminder.customer,
                channel=row.channel,
                delivery_key=row.key,
                due_local=reminder.due_local,
                timezone=reminder.zone or self._policy.zone(row.tenant),
                unsubscribe=unsubscribe,
            )
        )
        recipient["to"].encode()  # raises for a lone surrogate, which no store can keep
        payload = payload_of(row.channel, rendered, recipient, account) | {SALT: self._salt()}
        if unsubscribe:
            payload["unsubscribe"] = unsubscribe
        digest = content_hash(payload)
        cost = count_parts(rendered.text).parts if row.channel is Channel.SMS else 1
        if not pacing.fits_ever(tags.limits(account), cost):
            raise InvalidInput(
                f"the message has {cost} parts, more than a quota of account {account.name}: shorten the "
                "template, or raise the quota",
                code="larger_than_quota",
            )
        content = Content(
            delivery_id=row.id,
            version=row.standing.version,
            address=recipient["to"],
            payload=json.dumps(payload, sort_keys=True, separators=(",", ":")),
            hash=digest,
            template=reminder.template,
            template_version=compiled.version,
            frozen_at=tx.now,
            mark=mark_of(send_key(self._store.secret, row.tenant, row.key, row.standing.version)),
        )
        tag = tags.next(account.name, row)
        course = replace(row.course, next_at=tx.now, account=account.name, tag=tag, cost=cost, reason="")
        details: dict[str, Value] = {
            "account": account.name,
            "template": f"{reminder.template}/{compiled.version}",
            "payload": digest,
            "address": row.address_tag,
            "due": row.course.due_at,
            "expires": row.course.expires_at,
        }
        if meant != account.name:
            details["meant"] = meant
        return _Go(course, content, details)

    def _unsubscribe_url(self, row: Delivery) -> str:
        """Frozen with the content: a retry sends the same bytes, whatever the configuration says by then."""
        if row.channel is not Channel.EMAIL or not self._policy.category(row.category).unsubscribe:
            return ""
        what = Unsubscription(row.tenant, row.address_tag, row.category)
        return unsubscribe_url(self._policy.public_url, self._store.secret, what)


@dataclass(frozen=True, slots=True)
class _PutOff:
    until: int
    reason: str


@dataclass(frozen=True, slots=True)
class _End:
    event: Event
    reason: str


@dataclass(frozen=True, slots=True)
class _Go:
    course: Course
    content: Content
    details: Mapping[str, Value]


_Decision = _PutOff | _End | _Go


def payload_of(
    channel: Channel, rendered: Rendered, recipient: Mapping[str, str], account: AccountPolicy
) -> dict[str, str]:
    """The parts that are frozen, hashed, and sent."""
    sender = recipient.get("sender") or account.sender
    if channel is Channel.SMS:
        return {"text": rendered.text, "sender": sender}
    return {
        "subject": rendered.subject,
        "text": rendered.text,
        "html": rendered.html,
        "sender": sender,
        "reply_to": recipient.get("reply_to") or account.reply_to,
    }


def _examined(counts: Mapping[str, int]) -> int:
    """Rows looked at; "late" and "catch_up" say something about some of them besides."""
    return sum(count for name, count in counts.items() if name not in ("late", "catch_up"))


def _count_pass(report: PassReport) -> None:
    metrics.PASSES.add(("complete" if report.complete else "bound",))
    metrics.PASS.observe((), (report.finished_at - report.started_at) / pacing.SECOND)
    for disposition in ("expired", "suppressed", "rejected"):
        if report.counts.get(disposition):
            metrics.DISPOSITIONS.add(("any", disposition), report.counts[disposition])


def _tell_pass(report: PassReport) -> None:
    counts = report.counts
    tell(
        telemetry.PASS_FINISHED,
        run=report.id,
        examined=report.examined,
        published=counts.get("published", 0),
        deferred=counts.get("deferred", 0),
        ended=report.examined - counts.get("published", 0) - counts.get("deferred", 0),
        late=counts.get("late", 0),
        lag_s=max(0, report.finished_at - report.mark) / pacing.SECOND,
        why="complete" if report.complete else "bound",
        took_s=(report.finished_at - report.started_at) / pacing.SECOND,
    )


@dataclass(frozen=True, slots=True)
class _Begun:
    """Where a pass starts. `idle`: nothing is due, and nobody needs to hear of it."""

    mark: int
    at: int
    idle: bool
    epoch: int


def _begin(tx: Tx, *, quiet: bool) -> _Begun | None:
    if tx.held or ("scheduler", "") in active_pauses(tx):
        return None
    idle = quiet and tx.deliveries.first_due(tx.now) is None
    return _Begun(int(tx.meta("mark") or 0), tx.now, idle, tx.epoch)


def _finish(
    tx: Tx,
    id_: int,
    trigger: str,
    mark_before: int,
    started_at: int,
    counts: Mapping[str, int],
    *,
    complete: bool,
) -> PassReport:
    mark = _advance(tx, started_at)
    tx.runs.finish_pass(id_, mark, counts, complete=complete)
    return PassReport(id_, trigger, dict(counts), mark_before, mark, started_at, tx.now, complete)


def _advance(tx: Tx, at: int) -> int:
    """Move the mark to where everything due by `at` is decided; it never goes back."""
    # What another pass has in hand is not decided: that pass may yet fail.
    oldest = tx.deliveries.first_due(at)
    before = tx.meta("mark")
    mark = window_of(None if before is None else int(before), at, oldest_pending=oldest).end
    tx.set_meta("mark", str(mark))
    return mark
