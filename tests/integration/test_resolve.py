"""Uncertain deliveries: a person decides, with a reason, and late evidence still wins."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput
from sendonce.core.lifecycle import Event, State
from sendonce.core.outcome import Accepted, Failed, Reason, Unknown
from sendonce.core.policy import UncertainPolicy
from sendonce.pipeline.chosen import CHUNK, Filter
from sendonce.pipeline.resolve import DUPLICATE_RISK, Resolution, Resolved, Word, resolve, uncertain
from sendonce.pipeline.verify import verify
from tests.integration.world import World


def decide(world: World, keys: list[str] | str, word: Word, **given: Any) -> list[Resolved]:
    options = {"reason": "asked the customer", "actor": "operator:ann", **given}
    named = (keys,) if isinstance(keys, str) else tuple(keys)
    return resolve(world.store, Filter(keys=named), word, world.policy, **options).answers


@pytest.mark.parametrize(
    ("word", "given", "state", "event"),
    [
        (Word.SENT, {}, State.ASSUMED_SENT, Event.ASSUMED_SENT),
        (Word.SENT, {"receipt": "SM123"}, State.ACCEPTED, Event.PROVEN),
        (Word.NOT_SENT, {}, State.NOT_SENT, Event.NOT_SENT),
        (Word.RESEND, {}, State.QUEUED, Event.PERMITTED),
    ],
)
@pytest.mark.parametrize("put_aside", [False, True])
def test_a_decision_moves_it_and_stands_in_the_ledger(
    word: Word, given: dict[str, Any], state: State, event: Event, put_aside: bool
) -> None:
    world = World("N")
    key = world.uncertain()
    if put_aside:
        world.apply_policy()
    assert decide(world, key, word, **given) == [Resolved(key, True, state.value)]
    assert world.state(key) is state
    line = world.lines(key)[-1]
    assert (line.event, line.actor, line.details["reason"]) == (event, "operator:ann", "asked the customer")
    assert world.row(key).course.receipt == given.get("receipt", "")
    assert verify(world.store).ok


def test_a_resend_makes_exactly_one_more_attempt() -> None:
    world = World("N")
    key = world.uncertain()
    world.apply_policy()
    decide(world, key, Word.RESEND)
    assert world.send(Unknown("timeout")) == [key]
    assert world.state(key) is State.UNCERTAIN  # the permit is spent
    decide(world, key, Word.RESEND)
    assert world.send(Accepted("r-2")) == [key]
    assert world.state(key) is State.ACCEPTED
    assert [line.word("decision") for line in world.lines(key) if line.event == Event.CLAIMED] == [
        "first",
        "permit",
        "permit",
    ]


def test_a_resend_that_fails_proves_nothing_about_the_attempt_before() -> None:
    world = World("N")
    key = world.uncertain()
    decide(world, key, Word.RESEND)
    world.send(Failed(Reason.CONNECTION, "x"))
    assert world.state(key) is State.UNCERTAIN


def test_late_evidence_wins_over_a_decision() -> None:
    world = World("N")
    key = world.schedule()
    world.pass_()
    (claim,) = world.claim()
    world.settle([(claim, Unknown("timeout"))])
    decide(world, key, Word.NOT_SENT)
    world.settle([(claim, Accepted("late"))])
    assert world.state(key) is State.ACCEPTED
    assert verify(world.store).ok


REFUSALS = [
    ("accepted", Word.RESEND, {}, "only UNCERTAIN deliveries are resolved; this one is ACCEPTED"),
    ("accepted", Word.SENT, {"receipt": "x"}, "it is accepted already with the receipt receipt-a"),
    ("dead", Word.NOT_SENT, {}, "only UNCERTAIN deliveries are resolved; this one is DEAD"),
    ("scheduled", Word.SENT, {}, "only UNCERTAIN deliveries are resolved; this one is SCHEDULED"),
    ("scheduled", Word.SENT, {"receipt": "x"}, "it was never tried, so the receipt must belong to another"),
    ("cancelled", Word.RESEND, {}, "it was cancelled or opted out meanwhile: it must not be sent again"),
    ("expired", Word.RESEND, {}, "its expiry has passed: it must not be sent again"),
    ("opted out", Word.RESEND, {}, "it must not be sent again: the customer opted out (test)"),
    ("no account", Word.RESEND, {}, "its account 'email-N' is not configured any more"),
    ("no account", Word.SENT, {}, "its account 'email-N' is not configured any more"),
    ("no category", Word.RESEND, {}, "its category 'email-N' is not configured any more"),
    ("unknown", Word.SENT, {}, "no delivery has this key"),
]


def situation(name: str) -> tuple[World, str]:
    world = World("N")
    match name:
        case "accepted":
            return world, world.accepted("a")
        case "dead":
            return world, world.dead("a")
        case "scheduled":
            return world, world.schedule("a", due_in_s=60)
        case "unknown":
            return world, "a:b:email"
    key = world.uncertain("a")
    match name:
        case "cancelled":
            world.withdraw(key)
        case "expired":
            world.advance(100_000)
        case "opted out":
            world.opt_out(Channel.EMAIL)
        case "no account":
            world.policy = replace(world.policy, accounts={})
        case "no category":
            world.policy = replace(world.policy, categories={})
    return world, key


@pytest.mark.parametrize(("name", "word", "given", "why"), REFUSALS)
def test_refusals_say_why(name: str, word: Word, given: dict[str, Any], why: str) -> None:
    world, key = situation(name)
    (answer,) = decide(world, key, word, **given)
    assert not answer.done
    assert answer.why.startswith(why)
    if name != "unknown":
        assert answer.state == world.state(key).value
        assert world.events(key)[-1] not in (Event.PERMITTED, Event.ASSUMED_SENT, Event.PROVEN)


def test_one_refused_does_not_stop_the_others_and_order_is_kept() -> None:
    world = World("N")
    keys = [world.uncertain(f"u-{number}") for number in range(3)]
    accepted = world.accepted("a")
    asked = [keys[2], accepted, keys[0], keys[2], "x:y:sms", keys[1]]
    answers = decide(world, asked, Word.NOT_SENT)
    assert [answer.key for answer in answers] == asked
    assert [answer.done for answer in answers] == [True, False, True, True, False, True]


def test_what_was_cancelled_meanwhile_can_still_be_settled() -> None:
    world = World("N")
    key = world.uncertain()
    world.withdraw(key)
    (answer,) = decide(world, key, Word.NOT_SENT)
    assert answer.done
    assert world.state(key) is State.NOT_SENT


def test_a_receipt_settles_what_is_being_asked_about() -> None:
    """Proof counts at any time, not only once nobody knows any more."""
    world = World("L")
    key = world.schedule()
    world.pass_()
    world.send(Unknown("timeout"))
    assert world.state(key) is State.RECONCILING
    assert decide(world, key, Word.SENT)[0].done is False
    assert decide(world, key, Word.SENT, receipt="SM9")[0].done is True
    assert world.row(key).course.receipt == "SM9"


def test_a_receipt_of_something_called_dead_is_believed() -> None:
    world = World("N")
    key = world.dead()
    (answer,) = decide(world, key, Word.SENT, receipt="SM9")
    assert answer.done
    assert world.state(key) is State.ACCEPTED
    assert verify(world.store).ok


@pytest.mark.parametrize(
    ("word", "given", "field"),
    [
        (Word.SENT, {"reason": ""}, "reason"),
        (Word.SENT, {"reason": "two\nlines"}, "reason"),
        (Word.RESEND, {"receipt": "x"}, "receipt"),
        (Word.SENT, {"receipt": "x" * 300}, "receipt"),
        (Word.SENT, {"receipt": "a\nb"}, "receipt"),
    ],
)
def test_requests_that_make_no_sense_are_refused(word: Word, given: dict[str, Any], field: str) -> None:
    world = World("N")
    key = world.uncertain()
    with pytest.raises(InvalidInput) as error:
        decide(world, key, word, **given)
    assert error.value.field == field
    assert world.state(key) is State.UNCERTAIN


def test_a_receipt_belongs_to_one_delivery() -> None:
    world = World("N")
    keys = [world.uncertain("a"), world.uncertain("b")]
    with pytest.raises(InvalidInput, match="one delivery"):
        decide(world, keys, Word.SENT, receipt="x")
    with pytest.raises(InvalidInput, match="not a delivery key"):
        decide(world, "nonsense", Word.SENT)


# By filter


def decide_all(world: World, chosen: Filter, word: Word, **given: Any) -> Resolution:
    options = {"reason": "asked the provider", "actor": "operator:ann", **given}
    return resolve(world.store, chosen, word, world.policy, **options)


def test_a_filter_decides_all_that_fit_and_a_preview_says_the_same_before() -> None:
    world = World("N", "N:sms")
    world.template("other", Channel.EMAIL, "Hello {{ name }}", subject="Hi")
    keys = [world.uncertain(f"u-{number}", group="loan-7") for number in range(3)]
    other = world.uncertain("other", template="other")
    texts = world.uncertain("text", account="sms-N")
    dead = world.dead("d-1", group="loan-7")
    world.apply_policy()
    world.withdraw(keys[1])
    cancelled = "it was cancelled or opted out meanwhile: it must not be sent again"
    before = {key: world.row(key) for key in (*keys, other, texts, dead)}

    for chosen, count in (
        (Filter(), 5),
        (Filter(channel="sms"), 1),
        (Filter(account="email-N"), 4),
        (Filter(template="other"), 1),
        (Filter(reason="unknown"), 4),
        (Filter(reason="unknown:timeout"), 4),
        (Filter(reason="failed"), 0),
        (Filter(until=before[keys[0]].course.due_at), 0),
        (Filter(tenant="nobody"), 0),
    ):
        assert decide_all(world, chosen, Word.NOT_SENT, preview=True).resolved == count, chosen
    planned = decide_all(world, Filter(group="loan-7"), Word.RESEND, preview=True)
    assert {key: world.row(key) for key in before} == before
    assert world.read(lambda tx: tx.rows("view_audit", before=2**62, limit=9)) == []

    done = decide_all(world, Filter(group="loan-7"), Word.RESEND)
    for each in (planned, done):
        assert (each.resolved, each.refused, each.answers) == (2, {cancelled: 1}, [])
        assert each.examples == [(keys[1], cancelled)]
    assert [world.state(key) for key in keys] == [State.QUEUED, State.UNCERTAIN, State.QUEUED]
    assert world.state(dead) is State.DEAD
    (act,) = world.read(lambda tx: tx.rows("view_audit", before=2**62, limit=9))
    assert (act["actor"], act["action"], act["target"]) == (
        "operator:ann",
        "resolve",
        "tenant=default group=loan-7",
    )
    assert json.loads(str(act["body"])) == {"decision": "resend", "resolved": 2, "refused": 1}

    assert decide_all(world, Filter(channel="email"), Word.SENT).resolved == 2
    assert [world.state(key) for key in (keys[1], other, texts)] == [
        State.ASSUMED_SENT,
        State.ASSUMED_SENT,
        State.UNCERTAIN,
    ]
    assert verify(world.store).ok


def lost(world: World, count: int) -> list[str]:
    """So many that are uncertain."""
    keys = [world.schedule(f"u-{number}") for number in range(count)]
    world.pass_()
    while world.state(keys[-1]) is not State.UNCERTAIN:
        world.send(Unknown("timeout"))
        world.advance(60)  # the breaker rests
    return keys


def test_who_stops_it_halfway_may_go_on() -> None:
    world = World("N")
    keys = lost(world, CHUNK + 5)
    seen: list[int] = []

    class Stopped(Exception):
        pass

    def stop(done: Resolution) -> None:
        seen.append(done.seen)
        raise Stopped

    with pytest.raises(Stopped):
        decide_all(world, Filter(), Word.NOT_SENT, progress=stop)
    assert seen == [CHUNK]
    assert decide_all(world, Filter(), Word.NOT_SENT).resolved == 5
    assert {world.state(key) for key in keys} == {State.NOT_SENT}


def test_what_is_attempted_meanwhile_is_left_for_the_next_time() -> None:
    """Whoever decides has asked about the attempts that were. Else one resend would send it a third time."""
    world = World("N")
    keys = lost(world, CHUNK + 5)
    late = world.schedule("late", due_in_s=1.0)

    def meanwhile(_: Resolution) -> None:
        while world.state(late) is not State.UNCERTAIN:
            world.advance(60)
            world.pass_()
            world.send(Unknown("timeout"))

    done = decide_all(world, Filter(), Word.RESEND, progress=meanwhile)
    assert (done.resolved, done.refused) == (len(keys), {})
    assert [world.events(key).count(Event.PERMITTED) for key in (*keys, late)] == [1] * len(keys) + [0]
    assert (world.state(keys[0]), world.state(late)) == (State.UNCERTAIN, State.UNCERTAIN)
    decide_all(world, Filter(), Word.NOT_SENT)
    assert (world.state(keys[0]), world.state(late)) == (State.NOT_SENT, State.NOT_SENT)


@pytest.mark.parametrize(
    ("chosen", "word", "given", "field"),
    [
        (Filter(channel="fax"), Word.SENT, {}, "channel"),
        (Filter(keys=("u-1:c-1:email",), channel="email"), Word.SENT, {}, "keys"),
        (Filter(channel="email"), Word.SENT, {"receipt": "SM1"}, "receipt"),
        (Filter(), Word.SENT, {"receipt": "SM1"}, "receipt"),
    ],
)
def test_a_choice_that_makes_no_sense_decides_nothing(
    chosen: Filter, word: Word, given: dict[str, Any], field: str
) -> None:
    world = World("N")
    key = world.uncertain("u-1")
    with pytest.raises(InvalidInput) as error:
        decide_all(world, chosen, word, **given)
    assert error.value.field == field
    assert world.state(key) is State.UNCERTAIN


# The list


def test_the_list_says_since_when_why_and_what_may_be_done() -> None:
    world = World("N", "L")
    first = world.uncertain("a")
    sent_at = world.now
    world.advance(30)
    cancelled = world.uncertain("b")
    world.withdraw(cancelled)
    page = world.read(lambda tx: uncertain(tx, world.policy, Filter()))
    assert [each.delivery.key for each in page.found] == [first, cancelled]
    assert page.after is None
    assert page.found[0].since == sent_at
    assert page.found[0].evidence == "the outcome is unknown (no answer came in time)"
    assert page.found[0].policy == UncertainPolicy.HOLD.value
    assert page.found[0].resend == ""
    assert page.found[1].resend == "it was cancelled or opted out meanwhile: it must not be sent again"
    assert "twice" in DUPLICATE_RISK


def test_the_list_goes_in_pages_and_by_account() -> None:
    world = World("N", "N:sms")
    keys = [world.uncertain(f"u-{number}") for number in range(5)]
    other = world.uncertain("other", account="sms-N")
    world.apply_policy()
    seen: list[str] = []
    after = (-1, 0)
    while True:
        page = world.read(partial(uncertain, policy=world.policy, chosen=Filter(), limit=2, after=after))
        seen += [each.delivery.key for each in page.found]
        if page.after is None:
            break
        after = page.after
    assert sorted(seen) == sorted([*keys, other])
    found = world.read(lambda tx: uncertain(tx, world.policy, Filter(account="sms-N"))).found
    assert [each.delivery.key for each in found] == [other]
    found = world.read(lambda tx: uncertain(tx, world.policy, Filter(channel="email"))).found
    assert len(found) == 5


def test_a_lost_account_is_told_in_the_list() -> None:
    world, _ = situation("no account")
    (each,) = world.read(lambda tx: uncertain(tx, world.policy, Filter())).found
    assert each.resend == "its account 'email-N' is not configured any more"
