"""The scheduler: run twice, by two, late, killed anywhere, behind what cannot go; everything due is published
once and nothing starves."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sendonce.core.consent import Kind, NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.due import parse_quiet
from sendonce.core.errors import InvalidInput
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted
from sendonce.core.pacing import FOREVER, GateLimits, Limit
from sendonce.core.policy import OnQuiet, Policy, Recipients
from sendonce.moves import move_on
from sendonce.pipeline import scheduler, zone_change
from sendonce.pipeline.pause import change_limits
from sendonce.pipeline.scheduler import CHUNK, TIMER, PassReport, Scheduler
from sendonce.pipeline.story import story
from sendonce.pipeline.zone_change import follow_zone_rules
from sendonce.ports.store import FIRST, Move, NewDelivery, Pause, Reminder, Tx
from sendonce.render import content_hash
from sendonce.store.gates import SqlGates
from sendonce.template_book import TemplateBook, from_store
from tests.integration.world import HOUR, SECOND, World


@pytest.fixture(autouse=True)
def _one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of one size on every store, so that one number of rows shows what several units do."""
    monkeypatch.setattr(scheduler, "CHUNK_BESIDE", CHUNK)


def _schedule(world: World, count: int, first: int = 0, **given: object) -> list[str]:
    return [world.schedule(f"r-{number}", **given) for number in range(first, first + count)]  # type: ignore[arg-type]


def _scheduler(world: World, process: str = "s-1", **changes: object) -> Scheduler:
    policy: Policy = replace(world.policy, **changes)  # type: ignore[arg-type]
    return Scheduler(world.store, policy, world.book, process=process)


def _run(scheduler: Scheduler, trigger: str = "test") -> PassReport:
    report = scheduler.run(trigger=trigger)
    assert report is not None
    return report


def _published(world: World, keys: list[str]) -> Counter[int]:
    """How many deliveries were published how many times."""
    return Counter(world.events(key).count("published") for key in keys)


def _category(world: World, **changes: object) -> None:
    name = world.accounts[0]
    category = replace(world.policy.categories[name], **changes)  # type: ignore[arg-type]
    world.policy = replace(world.policy, categories={**world.policy.categories, name: category})


def _catching_up(world: World, per_minute: int) -> None:
    channels = {
        channel: replace(own, catch_up_us=60 * SECOND // per_minute)
        for channel, own in world.policy.channels.items()
    }
    world.policy = replace(world.policy, channels=channels)


# Run as often as you like


def test_a_second_pass_changes_nothing() -> None:
    world = World("K", "N")
    keys = [*_schedule(world, 70), *_schedule(world, 60, 100, account="email-N")]
    assert world.pass_().counts["published"] == 130
    rows = [world.row(key) for key in keys]
    again = world.pass_()
    assert (again.counts, again.complete) == ({}, True)
    assert [world.row(key) for key in keys] == rows
    assert _published(world, keys) == {1: 130}


@pytest.mark.parametrize("stop_after", [0, 1, 2, 3])
def test_lost_03_killed_between_units_and_run_again(stop_after: int) -> None:
    world = World("K")
    keys = _schedule(world, 170)
    units = itertools.count()
    report = _scheduler(world).run(trigger="test", stopping=lambda: next(units) >= stop_after)
    assert report is not None
    assert not report.complete, "nothing is reported finished while any is unpublished"
    assert report.counts.get("published", 0) == stop_after * CHUNK
    assert report.mark < world.row(keys[-1]).course.due_at + 1
    assert (
        _published(world, keys) == Counter({0: 170 - stop_after * CHUNK, 1: stop_after * CHUNK}) - Counter()
    )
    assert world.pass_().complete
    assert _published(world, keys) == {1: 170}


def test_killed_inside_a_unit_publishes_none_of_it() -> None:
    world = World("K")
    keys = _schedule(world, 60)

    class Killed(BaseException):
        pass

    def kill(published: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        _scheduler(world).run(trigger="test", progress=kill)
    assert _published(world, keys) == {1: CHUNK, 0: 60 - CHUNK}
    # A unit that dies before its commit leaves nothing: neither a state, nor content, nor an entry.
    scheduler = _scheduler(world)

    def dies(tx: Tx) -> None:
        assert scheduler._next(0, CHUNK, FIRST, tx)[0]["published"] == 60 - CHUNK
        raise Killed

    with pytest.raises(Killed):
        world.write(dies)
    assert _published(world, keys) == {1: CHUNK, 0: 60 - CHUNK}
    assert world.pass_().counts["published"] == 60 - CHUNK


def test_two_at_once_publish_each_once(tmp_path: Path) -> None:
    world = World("K", path=str(tmp_path / "s.db"))
    keys = _schedule(world, 160)
    reports: list[PassReport] = []

    def other(name: str) -> None:
        store = world.another_store()
        try:
            book = TemplateBook(from_store(store))
            reports.append(_run(Scheduler(store, world.policy, book, process=name)))
        finally:
            store.close()

    threads = [threading.Thread(target=other, args=(f"s-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.counts.get("published", 0) for report in reports) == 160
    assert len(reports) == 3
    assert _published(world, keys) == {1: 160}


def test_lost_05_a_pass_that_comes_late_publishes_late() -> None:
    world = World("K")
    key = world.schedule(due_in_s=60.0)
    world.pass_()
    world.advance(60 + 16)  # stopped just before, started 16 s after
    assert world.pass_().counts["published"] == 1
    assert world.pass_().examined == 0
    world.send(Accepted("r"))
    (claimed,) = [line for line in world.lines(key) if line.event == "published"]
    assert claimed.at - claimed.number("due") == 16 * SECOND


@pytest.mark.parametrize(
    ("late_s", "state"),
    [(1.8, State.QUEUED), (600.0, State.QUEUED), (2 * 86_400.0, State.EXPIRED)],
)
def test_time_13_lateness_alone_drops_nothing(late_s: float, state: State) -> None:
    world = World("K")
    key = world.schedule()
    world.advance(late_s)
    world.pass_()
    assert world.state(key) is state
    line = world.lines(key)[-1]
    assert line.event == ("published" if state is State.QUEUED else "expired")


@pytest.mark.parametrize("due_in_s", [54_524.0, 90 * 86_400.0, 74 * 365.25 * 86_400.0])
def test_time_11_far_futures_are_kept_and_met(due_in_s: float, tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    world = World("K", path=path)
    key = world.schedule(due_in_s=due_in_s)
    due_at = world.row(key).course.due_at
    world.pass_()
    for _ in range(2):
        world.store.close()
        clock = world.clock
        world = World("K", path=path)
        world.clock._now = clock.now()
        world.advance(due_in_s / 2 - 1)
        world.pass_()
        assert world.state(key) is State.SCHEDULED
    world.advance((due_at - world.now - 1) / SECOND)
    assert world.pass_().examined == 0
    world.advance(1 / SECOND)
    assert world.pass_().counts["published"] == 1


# Late rows, the mark, the history


def test_lost_01_rows_that_commit_below_the_mark_are_seen() -> None:
    """Two rows of one instant, committed around a pass, one at a time."""
    world = World("K")
    first = world.schedule("r-1", due_in_s=-60.0)
    mark = world.pass_().mark
    late = world.schedule("r-2", due_in_s=-60.0)
    assert world.row(late).course.due_at == world.row(first).course.due_at < mark
    report = world.pass_()
    assert report.counts["published"] == 1
    assert report.mark >= mark
    assert _published(world, [first, late]) == {1: 2}


def test_rows_of_one_instant_are_all_published_over_many_units() -> None:
    world = World("K")
    keys = _schedule(world, 3 * CHUNK + 1)
    assert world.pass_().counts["published"] == len(keys)


@pytest.mark.parametrize("fails", ["rolled back", "open"])
def test_lost_09_what_is_not_committed_is_neither_sent_nor_lost(fails: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    world = World("K", path=path)
    other = World("K", path=path)
    key = world.key("r-1", Channel.SMS)
    seen: list[int] = []

    class Refused(Exception):
        pass

    def slow(tx: Tx) -> None:
        ids = tx.reminders.insert([made[0]])
        tx.deliveries.insert([replace(made[1], reminder_id=ids[0])])
        # Seen from another connection in the middle of it:
        seen.append(len(other.read(lambda reader: reader.deliveries.due(reader.now, 10))))
        if fails == "rolled back":
            raise Refused

    donor = World("K")
    donor.schedule()
    made = donor.read(_as_new)
    if fails == "rolled back":
        with pytest.raises(Refused):
            world.write(slow)
        assert world.pass_().examined == 0
        assert world.read(lambda tx: tx.deliveries.by_keys([("default", key)])) == []
        assert world.read(lambda tx: tx.reminders.find([("default", "r-1", "c-1")])) == [None]
    else:
        world.write(slow)
        assert other.pass_().counts["published"] == 1
        assert other.send(Accepted("r")) == [key]
    assert seen == [0]


def _as_new(tx: Tx) -> tuple[Reminder, NewDelivery]:
    (row,) = tx.deliveries.by_keys([("default", "r-1:c-1:sms")])
    reminder = tx.reminders.by_ids([row.reminder_id])[row.reminder_id]
    new = NewDelivery(
        tenant=row.tenant,
        key=row.key,
        reminder_id=0,
        customer=row.customer,
        channel=row.channel,
        address_tag=row.address_tag,
        category=row.category,
        group=row.group,
        priority=row.priority,
        due_at=row.course.due_at,
        expires_at=row.course.expires_at,
        actor="test",
        details={},
    )
    return reminder, new


def test_late_arrivals_are_counted_and_only_they() -> None:
    world = World("K")
    world.pass_()
    _schedule(world, 2, due_in_s=-30.0)  # within the grace
    _schedule(world, 3, 10, due_in_s=-90.0)
    report = world.pass_()
    assert (report.counts["published"], report.counts["late"]) == (5, 3)
    assert report.examined == 5


def test_what_a_pass_put_off_is_no_late_arrival() -> None:
    world = World("K")
    _category(world, quiet=(parse_quiet("00:00-08:00"),))
    world.schedule(zone="Europe/London")
    assert world.pass_().counts == {"deferred": 1}
    for _ in range(8):
        world.advance(3_600)
        report = world.pass_()
    assert report.counts["published"] == 1
    assert report.counts["late"] == 0


def test_the_mark_says_until_when_all_is_decided_and_never_goes_back() -> None:
    world = World("K")
    _schedule(world, CHUNK + 1)
    first = world.pass_()
    assert first.mark == world.now
    world.clock.step(-3_600)
    assert world.pass_().mark == first.mark
    world.clock.step(3_600)
    world.advance(10)
    _schedule(world, 2 * CHUNK, 100, due_in_s=-5.0)
    stopped = _run(_scheduler(world, pass_rows_max=CHUNK))
    assert not stopped.complete
    assert stopped.mark == world.now - 5 * SECOND, "up to the oldest that was left"
    assert world.pass_().mark == world.now


@pytest.mark.parametrize("late", [False, True])
def test_a_pass_is_bounded_in_rows(late: bool) -> None:
    world = World("K")
    world.pass_()
    _schedule(world, 200, due_in_s=-300.0 if late else 0.0)
    report = _run(_scheduler(world, pass_rows_max=75))
    assert (report.examined, report.complete) == (75, False)
    assert _run(_scheduler(world, pass_rows_max=75)).examined == 75
    assert _run(_scheduler(world, pass_rows_max=75)).complete


def test_a_pass_is_bounded_in_time() -> None:
    world = World("K")
    _schedule(world, 4 * CHUNK)
    scheduler = _scheduler(world, pass_time_max_s=1.0)

    def slow(published: int) -> None:
        world.advance(0.6)

    report = scheduler.run(trigger="test", progress=slow)
    assert report is not None
    assert (report.counts["published"], report.complete) == (2 * CHUNK, False)


def test_passes_are_kept_but_not_the_timers_empty_ones() -> None:
    world = World("K")

    def runs() -> int:
        return world.read(lambda tx: len(tx.rows("view_passes", limit=100)))

    assert _run(_scheduler(world), TIMER).complete
    assert runs() == 0
    world.pass_()
    assert runs() == 1, "whoever asks for a pass finds it in the history"
    world.schedule()
    _run(_scheduler(world), TIMER)
    assert runs() == 2


def test_a_paused_scheduler_publishes_nothing_and_catches_up() -> None:
    world = World("K")
    world.write(lambda tx: tx.runs.pause(Pause("scheduler", "", FOREVER, "why", "api:test", tx.now)))
    _schedule(world, 3)
    assert _scheduler(world).run(trigger="test") is None
    world.advance(3_600)
    world.write(lambda tx: tx.runs.resume("scheduler", ""))
    assert world.pass_().counts["published"] == 3


def test_a_pause_with_an_end_ends() -> None:
    world = World("K")
    until = world.now + 60 * SECOND
    world.write(lambda tx: tx.runs.pause(Pause("scheduler", "", until, "why", "api:test", tx.now)))
    world.schedule()
    assert _scheduler(world).run(trigger="test") is None
    world.advance(60)
    assert world.pass_().counts["published"] == 1


# Nothing starves


def test_a_full_page_of_rows_that_may_not_go_hides_nobody() -> None:
    """Three units of quiet-hours rows at the head, then one that may go; in one pass."""
    world = World("K", "N")
    _category(world, quiet=(parse_quiet("00:00-08:00"),))
    night = _schedule(world, 3 * CHUNK, due_in_s=-600.0, zone="Europe/London")
    (day,) = _schedule(world, 1, 1_000, account="email-N")
    report = world.pass_()
    assert report.counts == {"deferred": 3 * CHUNK, "published": 1, "late": 0}
    assert world.state(day) is State.QUEUED
    assert {world.state(key) for key in night} == {State.SCHEDULED}
    assert world.pass_().examined == 0, "put off is put off: they are not looked at again at once"
    world.advance(8 * 3_600)
    assert world.pass_().counts["published"] == 3 * CHUNK


def test_being_put_off_again_for_the_same_reason_is_told_once() -> None:
    world = World("K")
    pause = Pause("channel", "sms", FOREVER, "why", "api:test", world.now)
    world.write(lambda tx: tx.runs.pause(pause))
    key = world.schedule()
    for _ in range(5):
        assert world.pass_().counts == {"deferred": 1}
        world.advance(3_600)
    assert world.events(key) == ["scheduled", "deferred"]


def test_dlq_01_poison_at_the_head_ends_and_hides_nobody() -> None:
    """As many rows as a unit holds that raise while they are built, then twenty good ones."""
    world = World("N")
    world.template("subject", Channel.EMAIL, "Hi", subject="Hi {{ name }}")
    bad = _schedule(
        world, CHUNK, due_in_s=-1.0, template="subject", data={"name": "Ann\r\nBcc: x@example.net\ud800"}
    )
    good = _schedule(world, 20, 100)
    world.pass_()
    assert {world.state(key) for key in good} == {State.QUEUED}
    for key in bad:
        row = world.row(key)
        assert row.standing.state is State.REJECTED
        assert row.course.reason.startswith("bad_content:")
        assert len(world.events(key)) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        "data is no JSON",
        "data is a list",
        "template unknown",
        "no such part",
        "variable missing",
        "no recipient",
        "address is no text",
    ],
)
def test_dlq_01_whatever_is_wrong_with_a_row_is_its_own_end(spoil: str) -> None:
    world = World("K")
    world.template("email-only", Channel.EMAIL, "Hi", subject="Hi")
    template = {"template unknown": "nobody", "no such part": "email-only"}.get(spoil, "t")
    bad = world.schedule(
        "bad", due_in_s=-1.0, template=template, data={} if spoil == "variable missing" else None
    )

    def damage(tx: Tx) -> None:
        (row,) = tx.deliveries.by_keys([("default", bad)])
        reminder = tx.reminders.by_ids([row.reminder_id])[row.reminder_id]
        match spoil:
            case "data is no JSON":
                tx.reminders.revise([replace(reminder, data="{")])
            case "data is a list":
                tx.reminders.revise([replace(reminder, data="[1]")])
            case "no recipient":
                tx.reminders.revise([replace(reminder, recipients={})])
            case "address is no text":
                tx.reminders.revise([replace(reminder, recipients={"sms": {"to": "+1\ud800"}})])

    world.write(damage)
    good = world.schedule("good")
    report = world.pass_()
    assert world.state(good) is State.QUEUED
    row = world.row(bad)
    assert (row.standing.state, report.counts["rejected"]) == (State.REJECTED, 1)
    assert row.course.reason.startswith("bad_content:")


# The world is asked at publication


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("opt-out", "opted_out:test"),
        ("suppression", "suppressed:test"),
        ("no record", "no_consent"),
        ("not allowed", "recipient_not_allowed"),
    ],
)
def test_who_may_not_be_written_to_is_suppressed(name: str, reason: str) -> None:
    world = World("K")
    key = world.schedule()
    match name:
        case "opt-out":
            world.opt_out(Channel.SMS)
        case "suppression":
            world.opt_out(Channel.SMS, kind=Kind.SUPPRESSED)
        case "no record":
            _category(world, no_record=NoRecord.REFUSE)
        case _:
            world.policy = replace(world.policy, recipients=Recipients(allow=("+1555*",)))
    assert world.pass_().counts["suppressed"] == 1
    row = world.row(key)
    assert (row.standing.state, row.course.reason) == (State.SUPPRESSED, reason)
    assert world.claim() == []


def test_an_opt_out_of_another_channel_or_person_is_none_of_its_business() -> None:
    world = World("K")
    world.opt_out(Channel.EMAIL)
    world.opt_out(Channel.SMS, "+12025550199")
    key = world.schedule()
    world.pass_()
    assert world.state(key) is State.QUEUED


def test_allowed_recipients_are_compared_as_people_write_them() -> None:
    world = World("N")
    world.policy = replace(world.policy, recipients=Recipients(allow=("*@example.com",)))
    inside = world.schedule("r-1", to="Ann@EXAMPLE.com")
    outside = world.schedule("r-2", to="ann@example.com.evil.example")
    world.pass_()
    assert world.state(inside) is State.QUEUED
    assert world.state(outside) is State.SUPPRESSED


def test_a_redirect_lets_everything_through_to_one_address() -> None:
    world = World("N")
    guard = Recipients(allow=("me@example.com",), redirect={Channel.EMAIL: "me@example.com"})
    world.policy = replace(world.policy, recipients=guard)
    world.schedule()
    world.pass_()
    (claim,) = world.claim()
    assert claim.message.to == "me@example.com"


@pytest.mark.parametrize("valid_s", [0.0, 60.0])
def test_expiry_at_publication_is_exact(valid_s: float) -> None:
    world = World("K")
    gone = world.schedule("r-1", valid_s=valid_s)
    alive = world.schedule("r-2", valid_s=valid_s + 0.000001)
    world.advance(valid_s)
    world.pass_()
    assert world.state(gone) is State.EXPIRED
    assert world.row(gone).course.reason == "past_expiry"
    assert world.state(alive) is State.QUEUED


# Quiet hours, pauses


def test_quiet_hours_are_the_customers() -> None:
    """At midnight UTC it is 09:00 in Tokyo, 19:00 in New York and night in Berlin."""
    world = World("K")
    _category(world, quiet=(parse_quiet("21:00-08:00"),))
    tokyo = world.schedule("r-1", zone="Asia/Tokyo")
    york = world.schedule("r-2", zone="America/New_York")
    berlin = world.schedule("r-3", zone="Europe/Berlin")
    unknown = world.schedule("r-4", zone="")  # the tenant's zone: Berlin
    world.pass_()
    assert [world.state(key) for key in (tokyo, york)] == [State.QUEUED] * 2
    for key in (berlin, unknown):
        row = world.row(key)
        assert (row.standing.state, row.course.reason) == (State.SCHEDULED, "quiet_hours")
        assert row.course.next_at == world.now + 7 * HOUR, "08:00 in Berlin"
    world.advance(7 * 3_600 - 1)
    assert world.pass_().examined == 0
    world.advance(1)
    assert world.pass_().counts["published"] == 2


@pytest.mark.parametrize(
    ("on_quiet", "valid_s", "reason"),
    [
        (OnQuiet.EXPIRE, 86_400.0, "quiet_hours"),
        (OnQuiet.DEFER, 3_600.0, "quiet_past_expiry"),
    ],
)
def test_quiet_hours_may_be_the_end(on_quiet: OnQuiet, valid_s: float, reason: str) -> None:
    world = World("K")
    _category(world, quiet=(parse_quiet("00:00-08:00"),), on_quiet=on_quiet)
    key = world.schedule(zone="Europe/London", valid_s=valid_s)
    world.pass_()
    row = world.row(key)
    assert (row.standing.state, row.course.reason) == (State.EXPIRED, reason)


@pytest.mark.parametrize(("scope", "name"), [("channel", "sms"), ("group", "default/loan")])
def test_a_pause_holds_its_own_and_a_resume_wakes_them(scope: str, name: str) -> None:
    world = World("K", "N")
    held = _schedule(world, CHUNK + 1, group="loan")
    other = world.schedule("other", account="email-N", group="ship")
    pause = Pause(scope, name, FOREVER, "why", "api:test", world.now)
    world.write(lambda tx: tx.runs.pause(pause))
    assert world.pass_().counts == {"deferred": CHUNK + 1, "published": 1, "late": 0}
    assert world.state(other) is State.QUEUED
    world.advance(600)
    world.write(lambda tx: tx.runs.resume(scope, name))
    until = world.now + HOUR
    assert world.write(lambda tx: tx.deliveries.unpause(scope, name, [], until, 100)) == CHUNK + 1
    assert world.pass_().counts["published"] == len(held)


def test_a_pause_does_not_stop_the_clock() -> None:
    world = World("K")
    key = world.schedule(valid_s=1_800.0)
    world.write(lambda tx: tx.runs.pause(Pause("channel", "sms", FOREVER, "why", "api:test", tx.now)))
    world.pass_()
    world.advance(1_800)
    world.pass_()
    assert world.state(key) is State.EXPIRED


# A configuration that lost a name


@pytest.mark.parametrize("lost", ["category", "account", "route"])
def test_a_lost_name_loses_no_reminder(lost: str) -> None:
    world = World("K", "N")
    key = world.schedule(valid_s=300.0)
    fine = world.schedule("fine", account="email-N")
    whole = world.policy
    accounts = {name: account for name, account in whole.accounts.items() if name != "sms-K"}
    categories = {name: category for name, category in whole.categories.items() if name != "sms-K"}
    match lost:
        case "category":
            world.policy = replace(whole, categories=categories)
        case "account":
            world.policy = replace(whole, accounts=accounts)
        case _:
            world.policy = replace(whole, routes=tuple(r for r in whole.routes if r.account != "sms-K"))
    assert world.pass_().counts == {"deferred": 1, "published": 1, "late": 0}
    assert world.state(fine) is State.QUEUED
    row = world.row(key)
    assert (row.standing.state, row.course.reason) == (State.SCHEDULED, "configuration")
    mended = world.now + 61 * SECOND
    world.advance(61)
    world.policy = whole
    assert world.now == mended
    assert world.pass_().counts["published"] == 1


def test_a_lost_name_that_never_comes_back_ends_at_the_expiry() -> None:
    world = World("K")
    key = world.schedule(valid_s=90.0)
    world.policy = replace(world.policy, categories={})
    for _ in range(3):
        world.pass_()
        world.advance(45)
    assert (world.state(key), world.row(key).course.reason) == (State.EXPIRED, "past_expiry")


def test_a_row_that_was_routed_to_a_lost_account_before_its_revision() -> None:
    """A mended dead letter is scheduled anew and remembers its old account, which is gone by now."""
    world = World("K", "N")
    key = world.dead()
    fine = world.schedule("fine", account="email-N")

    def mend(tx: Tx) -> None:
        (row,) = tx.deliveries.by_keys([("default", key)])
        course = replace(row.course, next_at=tx.now)
        move = move_on(row, Event.RESTORED, world.policy, tx, actor="operator", course=course)
        assert isinstance(move, Move), move
        tx.deliveries.move([move])

    world.write(mend)
    whole = world.policy
    world.policy = replace(whole, accounts={"email-N": whole.accounts["email-N"]})
    world.pass_()
    assert world.state(fine) is State.QUEUED
    assert (world.state(key), world.row(key).course.reason) == (State.SCHEDULED, "configuration")
    world.policy = whole
    world.advance(61)
    world.pass_()
    assert world.state(key) is State.QUEUED


# What is frozen


def test_content_is_frozen_at_publication() -> None:
    world = World("N")
    key = world.schedule()
    world.template("t", Channel.EMAIL, "Version two", subject="Two", version=2)
    world.pass_()
    row = world.row(key)
    content = world.read(lambda tx: tx.contents.get([(row.id, 1)]))[row.id]
    assert (content.template_version, content.address) == (2, "ann@example.com")
    assert '"text":"Version two"' in content.payload
    published = world.lines(key)[-1]
    assert published.word("payload") == content.hash
    assert published.word("template") == "t/2"
    assert "ann@" not in published.text, "the ledger holds no address"
    world.template("t", Channel.EMAIL, "Version three", subject="Three", version=3)
    (claim,) = world.claim()
    assert "Version two" in str(claim.message.content)
    assert claim.message.frozen_at == content.frozen_at


def test_the_ledger_names_account_and_due_time() -> None:
    world = World("K")
    key = world.schedule(valid_s=60.0)
    world.pass_()
    line = world.lines(key)[-1]
    row = world.row(key)
    assert (line.word("account"), line.number("due"), line.number("expires")) == (
        "sms-K",
        row.course.due_at,
        row.course.expires_at,
    )


# Zones whose rules change


def test_zone_rules_killed_halfway_start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("K")
    keys = _schedule(world, 120, zone="America/Mexico_City", due_in_s=600.0)
    follow_zone_rules(world.store, world.policy, "a")
    pages = itertools.count()

    page = zone_change._page

    def dying(policy: Policy, after: int, tx: Tx) -> tuple[int | None, int]:
        if next(pages) == 1:
            raise InvalidInput("killed")
        return page(policy, after, tx)

    monkeypatch.setattr(zone_change, "_page", dying)
    with pytest.raises(InvalidInput):
        follow_zone_rules(world.store, world.policy, "b")
    monkeypatch.setattr(zone_change, "_page", page)
    assert follow_zone_rules(world.store, world.policy, "b") == 20
    assert len({world.row(key).course.due_at for key in keys}) == 1


# Catching up


def test_what_an_outage_left_comes_in_turns_and_what_is_on_time_does_not_wait_for_it() -> None:
    world = World("K")
    _catching_up(world, per_minute=60)
    overdue = _schedule(world, 120)
    world.advance(600)  # no pass in ten minutes
    fresh = world.schedule("fresh")
    report = world.pass_()
    assert (report.counts["published"], report.counts["deferred"], report.counts["catch_up"]) == (3, 118, 118)
    assert world.state(fresh) is State.QUEUED
    assert world.row(overdue[-1]).course.reason == "catch_up"
    assert world.row(overdue[-1]).course.next_at == world.now + 119 * SECOND
    world.advance(60)
    another = world.schedule("another")
    assert world.pass_().counts["published"] == 60 - 1 + 1  # a minute's turns, of which two came before
    assert world.state(another) is State.QUEUED
    world.advance(60)
    world.pass_()
    assert _published(world, overdue) == {1: 120}
    assert [world.events(key).count("deferred") for key in overdue[2:]] == [1] * 118


def test_nobody_who_missed_its_turn_waits_for_another() -> None:
    """However late the pass that sees it: put off once and no more."""
    world = World("K")
    _catching_up(world, per_minute=60)
    overdue = _schedule(world, 50)
    world.advance(600)
    world.pass_()
    world.advance(7_200)
    assert world.pass_().counts["published"] == 48
    assert _published(world, overdue) == {1: 50}


def test_no_turn_comes_near_the_expiry() -> None:
    world = World("K")
    _catching_up(world, per_minute=1)
    keys = [world.schedule(f"r-{number}", valid_s=1_000.0) for number in range(30)]
    world.advance(200)
    world.pass_()
    turns = [world.row(key).course.next_at - world.now for key in keys]
    assert turns[1:7] == [60 * SECOND * number for number in range(1, 7)]
    assert set(turns[7:]) == {400 * SECOND}  # half of the 800 s that are left
    world.advance(400)
    world.pass_()
    assert _published(world, keys) == {1: 30}


def test_two_processes_take_turns_from_one_line_and_channels_have_a_line_each() -> None:
    world = World("K", "N")
    _catching_up(world, per_minute=60)
    first = _schedule(world, 10)
    mail = _schedule(world, 10, 10, account="email-N")
    world.advance(600)
    small = {"pass_rows_max": 10}
    _run(_scheduler(world, "s-1", **small))
    _run(_scheduler(world, "s-2", **small))
    for keys in (first, mail):
        turns = sorted(world.row(key).course.next_at for key in keys)
        assert turns[2:] == [world.now + number * SECOND for number in range(2, 10)]


def test_a_lost_configuration_is_an_outage_and_quiet_time_is_none() -> None:
    world = World("K")
    whole = world.policy
    _catching_up(world, per_minute=60)
    catching_up = world.policy
    world.policy = replace(whole, categories={})
    _schedule(world, 5)
    world.pass_()
    world.advance(60)
    world.policy = catching_up
    assert world.pass_().counts["catch_up"] == 3
    world = World("K")
    _catching_up(world, per_minute=60)
    _category(world, quiet=(parse_quiet("00:00-06:00"),))
    _schedule(world, 5)
    world.pass_()
    world.advance(5 * 3_600)
    assert world.pass_().counts["published"] == 5


# One alone, and locks


def test_one_delivery_is_published_alone() -> None:
    world = World("K")
    mine, other, later = world.schedule("mine"), world.schedule("other"), world.schedule("later", due_in_s=60)
    scheduler = _scheduler(world)
    for key in (mine, later, mine):
        scheduler.publish(world.row(key).id)
    assert [world.state(key) for key in (mine, other, later)] == [
        State.QUEUED,
        State.SCHEDULED,
        State.SCHEDULED,
    ]
    assert _published(world, [mine]) == {1: 1}
    world.write(lambda tx: tx.runs.pause(Pause("scheduler", "", FOREVER, "", "", 0)))
    scheduler.publish(world.row(other).id)
    assert world.state(other) is State.SCHEDULED


def test_a_pass_locks_no_gate_after_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are taken in one order, gates before rows; a pass needs no gate for itself."""
    world = World("K", "N")
    keys = _schedule(world, 3) + _schedule(world, 3, 3, account="email-N")

    def refuse(gates: SqlGates, account: str) -> None:
        raise AssertionError(f"gate {account} is locked behind rows")

    monkeypatch.setattr(SqlGates, "lock", refuse)
    world.pass_()
    assert _published(world, keys) == {1: 6}


def test_a_message_is_measured_by_the_limits_in_force() -> None:
    """An operator who raised a quota has raised it, whatever the configuration still says."""
    world = World("K", limits=GateLimits((Limit(1, 86_400 * SECOND, parts=True),), lanes=5))
    raised = GateLimits((Limit(100, 86_400 * SECOND, parts=True),), lanes=5)
    large = world.schedule("large", data={"name": "A" * 200})
    change_limits(world.store, "sms-K", raised, reason="new contract", actor="operator:ann")
    world.pass_()
    assert world.state(large) is State.QUEUED


# What the ledger tells of a text


def test_who_guesses_a_text_cannot_confirm_it_by_the_ledger() -> None:
    """Two equal texts have two hashes, neither of them the text's own; the salt goes with the content."""
    world = World("K")
    keys = [world.schedule("r", customer=customer) for customer in ("c-1", "c-2")]
    world.pass_()
    rows = [world.row(key) for key in keys]
    found = world.read(lambda tx: tx.contents.get([(row.id, row.standing.version) for row in rows]))
    contents = list(found.values())
    payloads = [json.loads(content.payload) for content in contents]
    salts = {payload.pop("salt") for payload in payloads}
    assert payloads[0] == payloads[1]
    assert len(salts) == 2
    assert len({content.hash for content in contents} | {content_hash(payloads[0])}) == 3
    for key in keys:
        (told,) = world.read(partial(story, name=key, policy=world.policy))
        assert told.said is not None
        assert told.said.parts.keys() == payloads[0].keys()
