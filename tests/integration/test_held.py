"""A store that may have lost what was written last: what waits, what is doubted, what a release leaves."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sendonce import telemetry
from sendonce.core.catch_up import REASON as CATCH_UP
from sendonce.core.consent import Kind
from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, Refused
from sendonce.core.lifecycle import Ending, Event, Standing, State
from sendonce.core.outcome import Absent, Accepted, Failed, Outcome, Reason, Rejected, Unknown
from sendonce.core.policy import Policy, UncertainPolicy
from sendonce.core.promise import settles_at
from sendonce.held import BY_HAND, FAILOVER, MARGIN_US, Hold, hold, hold_of, in_doubt
from sendonce.moves import DYING_FIRST, FIRST_LOOK_US
from sendonce.pipeline import reconciler, restore
from sendonce.pipeline.attempt import Claim
from sendonce.pipeline.chosen import Filter
from sendonce.pipeline.pause import Scope, Target, pause, resume
from sendonce.pipeline.resolve import Resolved, Word, resolve
from sendonce.pipeline.restore import Reconciled, hold_by_hand, released
from sendonce.pipeline.scheduler import Scheduler
from sendonce.pipeline.verify import verify
from sendonce.pipeline.zone_change import follow_zone_rules
from sendonce.ports.store import Delivery
from sendonce.store.backup import back_up
from tests.integration.world import HOUR, SECOND, World, account_of, policy_of

ANN = "operator:ann"


def take_over(world: World, *, lost_s: float = 1.0) -> Hold:
    """Another server takes over, `lost_s` after the last thing that it has."""
    world.clock.advance(lost_s)
    return world.write(lambda tx: hold(tx, FAILOVER, until=tx.now))


def let_go(world: World, **given: Any) -> Reconciled:
    done = released(world.store, world.policy, reason="compared", actor=ANN, **given)
    world.beat()
    return done


def epoch_of(world: World) -> int:
    return world.read(lambda tx: tx.epoch)


def queued(world: World, name: str, **given: Any) -> str:
    key = world.schedule(name, **given)
    world.pass_()
    assert world.state(key) is State.QUEUED
    return key


def uncertain(word: UncertainPolicy, *classes: str) -> Policy:
    policy = policy_of(*map(account_of, classes))
    channels = {name: replace(channel, uncertain=word) for name, channel in policy.channels.items()}
    return replace(policy, channels=channels)


def decide(world: World, key: str, word: Word, receipt: str = "") -> Resolved:
    chosen = Filter(keys=(key,))
    done = resolve(world.store, chosen, word, world.policy, reason="x", actor=ANN, receipt=receipt)
    (answer,) = done.answers
    return answer


def on_file(folder: Path, *classes: str) -> World:
    return World(*classes, path=str(folder / "store.db"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


# While it is held


def test_nothing_begins_ends_or_is_found_absent_while_it_is_held() -> None:
    world = World(policy=uncertain(UncertainPolicy.RESEND, "K", "L", "N"))
    waiting = queued(world, "waiting", account="sms-K", valid_s=60.0)
    asked = queued(world, "asked", account="sms-L")
    world.send(Unknown("timeout"), "sms-L")
    unsure = queued(world, "unsure", account="email-N")
    world.send(Unknown("timeout"), "email-N")
    due = world.schedule("due", account="sms-K")
    take_over(world)
    assert world.claimed("sms-K").why == "held"
    assert Scheduler(world.store, world.policy, world.book, process="s").run(trigger="test") is None
    world.advance(300.0)
    assert world.expire() == 0
    assert world.apply_policy() == 0
    (doubt,) = world.write(
        lambda tx: reconciler.doubts(tx, world.policy, accounts={"sms-L": 0}, secret=world.store.secret)
    )
    absent = world.write(lambda tx: reconciler.resolve(tx, [(doubt, Absent(believable=True))], world.policy))
    assert absent == [State.RECONCILING]
    states = {key: world.state(key) for key in (waiting, asked, unsure, due)}
    assert list(states.values()) == [State.QUEUED, State.RECONCILING, State.UNCERTAIN, State.SCHEDULED]
    assert decide(world, unsure, Word.RESEND).why == (
        "the store is held: release it first, with `sendonce db released`"
    )
    assert verify(world.store).ok


def test_what_is_taken_back_meanwhile_is_told_the_truth() -> None:
    world = World("K", "N")
    doubtful = queued(world, "doubtful", account="email-N")
    due = world.schedule("due", account="sms-K")
    later = world.schedule("later", account="sms-K", due_in_s=60.0)
    take_over(world)
    assert world.withdraw(doubtful) == "cancel_pending"
    assert world.withdraw(due) == "cancel_pending"
    assert world.withdraw(later) == "cancelled"
    assert world.row(doubtful).standing == Standing(State.UNCERTAIN, 1, maybe=True, ending=Ending.CANCEL)
    assert world.row(due).standing == Standing(State.UNCERTAIN, 2, maybe=True, ending=Ending.CANCEL)
    assert world.events(doubtful)[-2:] == [Event.DOUBTED, Event.CANCELLED]
    assert let_go(world).counts == {}
    assert verify(world.store).ok


def test_new_zone_rules_move_nothing_that_is_in_doubt() -> None:
    world = World("K")
    doubtful = world.schedule("doubtful", zone="America/Mexico_City")
    world.write(lambda tx: tx.set_meta("zone_rules", "older"))
    take_over(world)
    before = world.row(doubtful).course.due_at
    follow_zone_rules(world.store, world.policy, "newer")
    assert world.row(doubtful).standing.maybe
    assert world.row(doubtful).course.due_at == before


def test_a_resume_gives_no_turns_while_it_is_held() -> None:
    world = World("K")
    channel = Target(Scope.CHANNEL, "sms")
    pause(world.store, channel, world.policy, reason="x", actor=ANN)
    take_over(world)
    with pytest.raises(Refused, match="the store is held: release it first"):
        resume(world.store, channel, world.policy, reason="x", actor=ANN, over_s=600.0)
    resume(world.store, channel, world.policy, reason="x", actor=ANN)


# Who is in doubt


def test_who_is_in_doubt() -> None:
    world = World("K")
    row = world.row(queued(world, "r"))
    at = row.course.due_at
    standing = Hold(FAILOVER, "", "", at, world.store.steady(), "", at - SECOND, 1, at)
    until = standing.until(0)
    assert until == at + MARGIN_US

    def like(state: State, **course: Any) -> Delivery:
        changed = replace(row.course, **course)
        return replace(row, standing=replace(row.standing, state=state), course=changed)

    doubtful = [
        like(State.QUEUED),
        like(State.QUEUED, due_at=until + 1),  # published by a calendar that was set back since
        like(State.SCHEDULED),
        like(State.SCHEDULED, due_at=until),
        like(State.SCHEDULED, due_at=until + 1, reason="paused:channel"),  # as that one, and put off
        like(State.QUEUED, next_at=until + HOUR, reason="failed:connection"),
        like(State.SCHEDULED, next_at=until + HOUR, reason="paused:channel"),
        like(State.SCHEDULED, next_at=until, reason="quiet_hours"),
        like(State.SENDING, due_at=until + 1),
        like(State.RECONCILING),
    ]
    certain = [
        like(State.SCHEDULED, due_at=until + 1),
        like(State.SCHEDULED, next_at=until + 1, reason="quiet_hours"),
        like(State.SCHEDULED, next_at=until + 1, reason=CATCH_UP),
        like(State.UNCERTAIN),
        like(State.ACCEPTED),
        like(State.DEAD),
        like(State.CANCELLED),
        like(State.QUEUED, last_try=standing.steady_until(0)),  # doubted already
    ]
    assert [in_doubt(each, standing, 0) for each in doubtful] == [True] * len(doubtful)
    assert [in_doubt(each, standing, 0) for each in certain] == [False] * len(certain)
    unknown = replace(standing, lost_until=0)
    assert in_doubt(like(State.SCHEDULED, due_at=at + HOUR), unknown, at + HOUR)
    assert not in_doubt(like(State.SCHEDULED, due_at=at + HOUR), unknown, at)
    # Where a person knows that the span ended before: what fell due after it was not published in it.
    earlier = replace(standing, lost_until=at - HOUR)
    assert not in_doubt(like(State.QUEUED, due_at=at), earlier, at)


def test_what_was_queued_by_a_calendar_that_was_set_back_is_doubted() -> None:
    """The simulator found it: published, the calendar set back, sent in the lost span, and sent again after
    the release, since it was not due by then."""
    world = World("N")
    key = queued(world, "r")
    world.clock.step(-HOUR / SECOND)
    take_over(world)
    assert let_go(world).counts == {("QUEUED", "N", "uncertain"): 1}
    assert world.state(key) is State.UNCERTAIN


def test_the_span_ends_by_the_calendar_of_before_where_that_was_ahead() -> None:
    """The clock of the server that takes over is a minute behind: what was due by the one before was sent."""
    world = World("N")
    world.write(lambda tx: tx.set_meta("steady_seen", str(tx.steady)))  # as a heartbeat does
    key = world.schedule("r", due_in_s=10.0)
    world.clock.advance(11.0)
    world.clock.step(-60.0)
    standing = take_over(world, lost_s=0.0)
    assert standing.lost_until == standing.lost_from + 11 * SECOND
    world.advance(120.0)
    assert let_go(world).counts == {("SCHEDULED", "N", "text"): 1}
    assert world.row(key).standing.maybe


# What becomes of it


def test_each_class_goes_its_own_way() -> None:
    world = World("K", "L", "N")
    key = queued(world, "k", account="sms-K")
    asked = queued(world, "l", account="sms-L")
    unsure = queued(world, "n", account="email-N")
    later = world.schedule("later", account="email-N", due_in_s=HOUR / SECOND)
    standing = take_over(world)
    epoch = epoch_of(world)
    preview = let_go(world, preview=True)
    assert [world.row(each).standing.maybe for each in (key, asked, unsure)] == [False] * 3
    assert world.claimed("sms-K").why == "held"
    done = let_go(world)
    assert (
        preview.counts
        == done.counts
        == {
            ("QUEUED", "K", "key"): 1,
            ("QUEUED", "L", "asked"): 1,
            ("QUEUED", "N", "uncertain"): 1,
        }
    )
    assert (preview.epoch, done.epoch, done.total, done.uncertain) == (0, epoch + 1, 3, 1)
    assert world.row(key).standing == Standing(State.QUEUED, 1, maybe=True)
    assert world.row(key).course.tag == DYING_FIRST + standing.steady_from
    assert world.row(key).course.first_try == standing.lost_steady - MARGIN_US
    assert world.row(asked).standing == Standing(State.RECONCILING, 1, maybe=True)
    assert world.row(unsure).standing == Standing(State.UNCERTAIN, 1, maybe=True)
    assert world.row(later).standing == Standing(State.SCHEDULED)
    # L: absence is not believed before a call at the end of the span has settled.
    settles = standing.steady_until(world.now) + int((30.0 + 10.0 + 60.0 + 5.0) * SECOND)
    course, promise = world.row(asked).course, world.policy.accounts["sms-L"].promise
    assert settles_at(promise, course.last_try, world.policy.lease_s) == settles
    assert course.next_at == world.now + FIRST_LOOK_US
    assert verify(world.store).ok


def test_under_its_key_it_goes_once_more_with_the_same_bytes() -> None:
    world = World("K")
    key = queued(world, "r")
    (lost,) = world.claim()
    world.settle([(lost, Failed(Reason.CONNECTION, ""))])
    world.advance(10.0)
    take_over(world)
    let_go(world)
    world.advance(60.0)
    (claim,) = world.claim()
    assert claim.key == key
    assert (claim.message.send_key, claim.message.content) == (lost.message.send_key, lost.message.content)
    assert claim.key_dies_at is not None
    assert world.lines(key)[-1].word("decision") == "same_key"
    assert world.settle([(claim, Accepted("r"))]) == [State.ACCEPTED]
    assert verify(world.store).ok


def test_a_key_is_as_old_as_the_last_that_is_known() -> None:
    """It may have been used first right after it."""
    world = World("K", "N")
    queued(world, "young", account="sms-K")
    window_s = 86_400.0 - 60.0 - 10.0
    take_over(world, lost_s=window_s - MARGIN_US / SECOND - 1.0)
    assert let_go(world, preview=True).counts == {("QUEUED", "K", "key"): 1}
    world.clock.advance(1.0)
    assert let_go(world, preview=True).counts == {("QUEUED", "K", "uncertain"): 1}


def test_without_trust_in_keys_they_help_nobody() -> None:
    world = World("K", "N")
    key = queued(world, "r", account="sms-K")
    later = world.schedule("without a text", account="sms-K")
    take_over(world)
    assert let_go(world, keys=False).counts == {
        ("QUEUED", "K", "uncertain"): 1,
        ("SCHEDULED", "K", "text"): 1,
    }
    world.advance(60.0)
    world.pass_()
    assert world.claim("sms-K") == []
    assert [world.state(each) for each in (key, later)] == [State.UNCERTAIN] * 2


def test_one_without_a_text_gets_it_first() -> None:
    world = World("K", "N")
    key = world.schedule("k", account="sms-K")
    unsure = world.schedule("n", account="email-N")
    take_over(world)
    assert let_go(world).counts == {("SCHEDULED", "K", "text"): 1, ("SCHEDULED", "N", "text"): 1}
    world.advance(60.0)
    world.pass_()
    assert world.row(key).standing == Standing(State.QUEUED, 1, maybe=True)
    assert [claim.key for claim in world.claim("sms-K")] == [key]
    assert world.claim("email-N") == []
    assert world.row(unsure).standing == Standing(State.UNCERTAIN, 2, maybe=True)
    assert world.events(unsure)[-3:] == [Event.DOUBTED, Event.PUBLISHED, Event.KEY_DIED]
    assert verify(world.store).ok


@pytest.mark.parametrize("word", [UncertainPolicy.RESEND, UncertainPolicy.ASSUME_SENT])
def test_no_policy_decides_about_it(word: UncertainPolicy) -> None:
    world = World(policy=uncertain(word, "N"))
    before = queued(world, "before")
    take_over(world)
    let_go(world)
    world.advance(60.0)
    after = queued(world, "after")
    world.send(Unknown("timeout"))
    world.apply_policy()
    assert world.state(before) is State.UNCERTAIN
    assert world.state(after) is not State.UNCERTAIN


def test_what_was_only_doubted_takes_nothing_from_the_share_of_retries() -> None:
    """Else a backlog of a hundred thousand would leave at a fifth of the rate."""
    world = World("K")
    for number in range(40):
        world.schedule(f"r-{number}")
    world.pass_()
    take_over(world)
    let_go(world)
    world.advance(60.0)
    assert len(world.claim(most=30)) == 30


def test_evidence_wins_over_a_doubt() -> None:
    world = World("N")
    key = queued(world, "r")
    take_over(world)
    let_go(world)
    answer = decide(world, key, Word.SENT, receipt="m-1")
    assert (answer.why, answer.state) == ("", "ACCEPTED")
    assert verify(world.store).ok


def test_an_opt_out_before_the_release_stops_what_is_in_doubt() -> None:
    world = World("K")
    key = queued(world, "r")
    take_over(world)
    let_go(world)
    world.opt_out(Channel.SMS, kind=Kind.OPT_OUT)
    world.advance(60.0)
    assert world.claim() == []
    assert world.row(key).standing == Standing(State.UNCERTAIN, 2, maybe=True, ending=Ending.OPT_OUT)


def test_past_its_expiry_it_is_not_called_expired() -> None:
    world = World("K")
    key = world.schedule("r", valid_s=30.0)
    take_over(world)
    let_go(world)
    world.advance(60.0)
    world.expire()
    assert world.row(key).standing == Standing(State.UNCERTAIN, 2, maybe=True)
    answer = decide(world, key, Word.RESEND)
    assert "its text was never made" in answer.why
    assert verify(world.store).ok


# The release


def test_a_scheduler_that_runs_on_learns_the_templates_anew(folder: Path) -> None:
    """The version that it knows is lost with its number, which another text has by now."""
    world = on_file(folder, "K")
    scheduler = Scheduler(world.store, world.policy, world.book, process="s")
    before = world.schedule("before")
    scheduler.run(trigger="test")
    take_over(world)
    world.tamper("DELETE FROM template")
    world.template("t", Channel.SMS, "Another text, {{ reminder }}")
    let_go(world)
    after = world.schedule("after")
    scheduler.run(trigger="test")
    assert [text_of(world, key) for key in (before, after)] == [
        "Dear Ann, this is before",
        "Another text, after",
    ]


def text_of(world: World, key: str) -> str:
    row = world.row(key)
    contents = world.read(lambda tx: tx.contents.get([(row.id, row.standing.version)]))
    return str(json.loads(contents[row.id].payload)["text"])


def test_a_release_that_was_stopped_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "CHUNK", 2)
    world = World("N")
    keys = [world.schedule(f"r-{number}") for number in range(7)]
    world.pass_()
    take_over(world)

    def stop(done: Reconciled) -> None:
        if done.total >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        released(world.store, world.policy, reason="x", actor=ANN, progress=stop)
    assert world.claimed().why == "held"
    assert let_go(world).total == 3
    assert [world.events(key).count(Event.DOUBTED) for key in keys] == [1] * 7


def test_what_is_taken_in_while_it_is_held_is_in_doubt_too() -> None:
    """Handed in again by somebody whose reminders were lost, they may have been sent."""
    world = World("N")
    take_over(world)
    world.schedule("due in the span", due_in_s=-2.0)
    world.advance(60.0)
    world.schedule("due after it")
    assert let_go(world).total == 1


def test_it_is_recorded_with_name_and_reason() -> None:
    world = World("N")
    queued(world, "r")
    epoch = epoch_of(world)
    take_over(world)
    let_go(world)
    (release, held_) = world.read(lambda tx: tx.rows("view_audit", before=2**62, limit=2))
    assert (release["actor"], release["action"], release["reason"]) == (ANN, "release", "compared")
    body = json.loads(str(release["body"]))
    assert (body["why"], body["line"], body["epoch"]) == (FAILOVER, "", epoch + 1)
    assert (body["doubted"], body["uncertain"], body["nothing_lost"]) == (1, 1, False)
    assert (held_["actor"], held_["action"]) == ("store", "hold")
    assert world.read(lambda tx: (tx.epoch, tx.held, hold_of(tx))) == (epoch + 1, False, None)


def test_where_nothing_was_lost_nothing_is_doubted() -> None:
    world = World("N")
    key = queued(world, "r")
    take_over(world)
    assert let_go(world, nothing_lost=True).counts == {}
    assert [claim.key for claim in world.claim()] == [key]


def test_calls_of_before_keep_their_lanes_for_as_long_as_they_may_last() -> None:
    world = World("K")
    queued(world, "r")
    take_over(world)
    waits = let_go(world).waits
    assert waits == {"sms-K": world.now + int((5.0 + 10.0 + 5.0) * SECOND)}
    assert world.claimed().why == "released"
    world.advance(MARGIN_US / SECOND + 10.0 + 5.0)
    assert len(world.claim()) == 1


def test_the_end_of_the_span_may_be_known_better() -> None:
    world = World("N")
    queued(world, "early")
    world.advance(20.0)
    queued(world, "late")
    standing = take_over(world, lost_s=60.0)
    assert let_go(world, preview=True).total == 2
    assert let_go(world, until=standing.lost_from, preview=True).total == 2  # the margin
    with pytest.raises(InvalidInput, match="lies before its beginning"):
        let_go(world, until=standing.lost_from - 1)
    with pytest.raises(InvalidInput, match="1 h ahead"):
        let_go(world, until=world.now + HOUR)
    with pytest.raises(InvalidInput, match="reason is empty"):
        released(world.store, world.policy, reason=" ", actor=ANN)
    assert world.read(hold_of) == standing


def test_a_store_that_is_not_held_is_refused() -> None:
    world = World("K")
    for preview in (True, False):
        with pytest.raises(Refused, match="not held, so there is nothing to release"):
            let_go(world, preview=preview)


def test_a_hold_that_grew_meanwhile_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("N")
    queued(world, "r")
    take_over(world)

    def another(done: Reconciled) -> None:
        world.write(lambda tx: hold(tx, FAILOVER, until=tx.now + SECOND))

    with pytest.raises(Refused, match="the store was held anew meanwhile"):
        released(world.store, world.policy, reason="x", actor=ANN, progress=another)
    assert world.claimed().why == "held"
    let_go(world)


def test_somebody_may_hold_it() -> None:
    world = World("N")
    key = queued(world, "r")
    with pytest.raises(InvalidInput, match="reason is empty"):
        hold_by_hand(world.store, reason="", actor=ANN)
    standing = hold_by_hand(world.store, reason="files set back", actor=ANN)
    assert (standing.why, str(standing)) == (BY_HAND, f"files set back [{ANN}]")
    assert hold_by_hand(world.store, reason="again", actor="operator:bob") == standing
    assert world.claimed().why == "held"
    let_go(world)
    assert world.state(key) is State.UNCERTAIN


def test_a_store_that_nobody_ever_sent_from_trusts_no_key() -> None:
    world = World("K")
    key = queued(world, "r")
    world.write(lambda tx: tx.processes.forget(2**62, 100))
    world.clock.advance(3_600.0)
    world.write(lambda tx: tx.processes.forget(2**62, 100))
    standing = world.write(lambda tx: hold(tx, FAILOVER, until=tx.now))
    assert (standing.lost_from, standing.lost_steady) == (0, 0)
    let_go(world)
    assert world.state(key) is State.UNCERTAIN


# What calls of before return


class Behind:
    """A server that got as far as `world` is now, and takes over when it is asked for."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._path = folder / "behind.db"
        back_up(world.path, self._path)

    def take_over(self) -> World:
        """On the clock of the world, which has gone on."""
        world = World(policy=self._world.policy, path=str(self._path))
        world.clock.advance((self._world.now - world.now) / SECOND)
        world.write(lambda tx: hold(tx, FAILOVER, until=tx.now))
        world.beat()
        return world


@pytest.mark.sqlite_only
def test_an_acceptance_settles_what_the_record_lost(folder: Path) -> None:
    world = on_file(folder, "N")
    queued(world, "accepted")
    queued(world, "failed")
    behind = Behind(world, folder)
    accepted, failed = world.claim()
    copy = behind.take_over()
    outcomes: list[tuple[Claim, Outcome]] = [
        (accepted, Accepted("m-1")),
        (failed, Failed(Reason.CONNECTION, "")),
    ]
    assert copy.settle(outcomes) == [State.ACCEPTED, State.QUEUED]
    assert copy.events(failed.key)[-1] == Event.LATE_OUTCOME
    assert let_go(copy).counts == {("QUEUED", "N", "uncertain"): 1}
    assert verify(copy.store).ok


@pytest.mark.sqlite_only
@pytest.mark.parametrize(("class_", "after"), [("K", State.QUEUED), ("N", State.UNCERTAIN)])
def test_a_failure_says_nothing_about_attempts_that_were_lost(
    folder: Path, class_: str, after: State
) -> None:
    """The claim is there, and its failure; but a second attempt may have come after it."""
    world = on_file(folder, class_)
    key = queued(world, "r")
    (claim,) = world.claim()
    behind = Behind(world, folder)
    world.settle([(claim, Failed(Reason.CONNECTION, ""))])
    world.advance(10.0)
    (again,) = world.claim()
    world.settle([(again, Accepted("m-1"))])
    copy = behind.take_over()
    assert copy.settle([(claim, Failed(Reason.CONNECTION, ""))]) == [State.SENDING]
    assert let_go(copy).counts == {("SENDING", class_, "called"): 1}
    copy.advance(60.0)
    copy.reap()
    assert copy.row(key).standing.state is after
    assert copy.row(key).standing.maybe
    assert verify(copy.store).ok


@pytest.mark.sqlite_only
def test_an_outcome_of_another_store_epoch_moves_nothing_but_by_evidence(folder: Path) -> None:
    """The lost claim and the first one after the release have the same number."""
    world = on_file(folder, "K")
    key = queued(world, "r")
    behind = Behind(world, folder)
    (lost,) = world.claim()
    copy = behind.take_over()
    let_go(copy)
    copy.tamper(f"UPDATE delivery SET epoch = {lost.epoch - 1}")
    copy.advance(60.0)
    (claim,) = copy.claim()
    assert (claim.epoch, claim.store_epoch, lost.store_epoch) == (lost.epoch, 2, 1)
    assert copy.settle([(lost, Rejected(Reason.BLOCKED, "403"))]) == [State.SENDING]
    assert copy.settle([(claim, Accepted("m-2"))]) == [State.ACCEPTED]
    assert copy.events(key)[-3:] == [Event.CLAIMED, Event.LATE_OUTCOME, Event.ACCEPTED]


@pytest.mark.sqlite_only
def test_an_outcome_whose_delivery_was_lost_is_nobodys(folder: Path) -> None:
    """Its id is another delivery's by now."""
    world = on_file(folder, "N")
    behind = Behind(world, folder)
    queued(world, "lost")
    (claim,) = world.claim()
    copy = behind.take_over()
    other = copy.schedule("other")
    assert copy.row(other).id == claim.delivery_id
    stream = io.StringIO()
    telemetry.configure("warning", "json", stream=stream)
    try:
        assert copy.settle([(claim, Accepted("m-1"))]) == []
    finally:
        telemetry.silence()
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["delivery"]) for line in told] == [("outcome_stray", claim.key)]
    assert copy.row(other).standing == Standing(State.SCHEDULED)


@pytest.mark.sqlite_only
def test_what_a_call_of_before_says_of_its_address_counts(folder: Path) -> None:
    world = on_file(folder, "N")
    queued(world, "refused")
    behind = Behind(world, folder)
    (claim,) = world.claim()
    copy = behind.take_over()
    next_one = copy.schedule("next one", due_in_s=HOUR / SECOND)
    copy.settle([(claim, Rejected(Reason.INVALID_ADDRESS, "550", suppress=True))])
    assert copy.state(next_one) is State.SUPPRESSED
