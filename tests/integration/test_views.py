"""What people ask: find, story, ledger, report, overview; on the real stages and a real store."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput, NotFound, StoreMismatch
from sendonce.core.ledger import Entry, spell
from sendonce.core.lifecycle import TABLE, Event, Standing, State
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Failed,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.core.pacing import GateLimits, Limit
from sendonce.pipeline import overview as overview_module
from sendonce.pipeline.chosen import Filter
from sendonce.pipeline.find import NEWEST, find
from sendonce.pipeline.overview import AccountView, ChannelView, Overview, overview
from sendonce.pipeline.pause import Scope, Target, pause, resume
from sendonce.pipeline.record import Line, body_of, lines_of
from sendonce.pipeline.redrive import redrive
from sendonce.pipeline.report import report
from sendonce.pipeline.sentences import reason_words, sentence, tell_customer
from sendonce.pipeline.standstill import Situation, Word, why_nothing_leaves
from sendonce.pipeline.story import local_time, record, story
from sendonce.store.sqlite import TOKENS
from sendonce.store.statements import expand
from tests.integration.world import ADDRESSES, SECOND, World

# find


def found(world: World, text: str, **given: Any) -> list[tuple[str, tuple[str, ...]]]:
    page = world.read(partial(find, text=text, policy=world.policy, secret=world.store.secret, **given))
    return [(each.delivery.key, each.by) for each in page.found]


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("shipment-4821", "reminder"),
        (" shipment-4821\n", "reminder"),
        ("customer-73", "customer"),
        ("shipment-4821:customer-73:sms", "key"),
        ("+12025550147", "address"),
        (" tel:+1-202-555-0147 ", "address"),
        ("receipt-9", "receipt"),
    ],
)
def test_one_box_finds_by_whatever_people_have(text: str, by: str) -> None:
    world = World("K", "N")
    key = world.accepted("shipment-4821", customer="customer-73", to="+12025550147", receipt="receipt-9")
    world.accepted("other", customer="c-9")
    assert found(world, text) == [(key, (by,))]


def test_an_email_address_is_found_in_any_spelling() -> None:
    world = World("N")
    key = world.schedule("r-1", to="Ann.May@Example.com")
    for text in ("ann.may@example.com", "ANN.MAY@EXAMPLE.COM", " Ann.May@Example.com "):
        assert found(world, text) == [(key, ("address",))]
    assert found(world, "ann.may+x@example.com") == []


def test_an_id_that_means_several_things_is_found_as_all_of_them() -> None:
    world = World("K")
    first = world.schedule("42", customer="c-1")
    second = world.schedule("x", customer="42")
    both = world.schedule("42", customer="42")
    assert found(world, "42") == [
        (both, ("reminder", "customer")),
        (second, ("customer",)),
        (first, ("reminder",)),
    ]


def test_pages_meet_each_delivery_once_newest_first() -> None:
    world = World("K")
    keys = [world.schedule(f"r-{number}") for number in range(7)]
    seen: list[str] = []
    before = NEWEST
    while True:
        page = world.read(
            partial(
                find,
                text="c-1",
                policy=world.policy,
                secret=world.store.secret,
                limit=3,
                before=before,
            )
        )
        seen += [each.delivery.key for each in page.found]
        if page.before is None:
            break
        before = page.before
        world.schedule(f"new-{len(seen)}")  # what comes meanwhile moves nothing
    assert seen == keys[::-1]


@pytest.mark.parametrize("limit", [0, -1, 10**9])
def test_a_limit_is_kept_within_bounds(limit: int) -> None:
    world = World("K")
    world.schedule("r-1")
    assert len(found(world, "c-1", limit=limit)) == 1


def test_tenants_do_not_see_each_other() -> None:
    world = World("K")
    world.schedule("r-1", tenant="acme")
    assert found(world, "r-1") == []
    assert len(found(world, "r-1", tenant="acme")) == 1
    assert found(world, ADDRESSES[Channel.SMS]) == []


@pytest.mark.parametrize("text", ["", "  \n", "x" * 2_000])
def test_a_text_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be looked for"):
        found(World("K"), text)


@pytest.mark.parametrize("text", ["%", "' OR 1=1 --", "\u202e", "a:b:fax", "@", "+", "é" * 50])
def test_strange_texts_find_nothing(text: str) -> None:
    world = World("K")
    world.schedule("r-1")
    assert found(world, text) == []


# story


def test_a_story_of_a_delivery_that_had_a_hard_way() -> None:
    world = World("K")
    key = world.schedule("shipment-4821", zone="America/New_York")
    world.pass_()
    world.send(Failed(Reason.CONNECTION, "111"))
    world.advance(5)
    world.send(Unknown("timeout"))
    world.advance(10)
    world.send(Accepted("SM1", duplicate=True))
    (told,) = world.read(partial(story, name=key, policy=world.policy))
    assert [moment.text for moment in told.moments] == [
        "Taken in: due 2025-12-31 19:00:00 EST, valid until 2026-01-01 19:00:00 EST.",
        "Came due: its text was fixed, and it was queued for the account sms-K.",
        "Attempt 1 began at the account sms-K.",
        (
            "The attempt failed, and nothing was sent by it: "
            "the provider could not be reached (code 111); it is tried again."
        ),
        "Attempt 2 began at the account sms-K, since the one before provably sent nothing.",
        "It may have been sent, nobody knows: no answer came in time; it is tried again.",
        (
            "Attempt 3 began at the account sms-K, "
            "under the same key, so that the provider recognises a repetition."
        ),
        "The provider took it (its number there: SM1); it had it already from an earlier attempt.",
    ]
    assert told.headline == (
        "It was sent at 2025-12-31 19:00:15 EST: the provider took it, its number there is SM1."
    )
    assert told.zone == "America/New_York"
    assert told.moments[0].local == "2025-12-31 19:00:00 EST"
    assert told.moments[2].actor == "worker:w-1"


def test_a_story_shows_the_text_and_masks_the_address_wherever_it_stands() -> None:
    world = World("N")
    world.template(
        "mail", Channel.EMAIL, "We write to {{ mail }}.", subject="For {{ mail }}", html="<b>{{ mail }}</b>"
    )
    key = world.schedule("r-1", template="mail", data={"mail": "ANN@example.com"}, to="ann@example.com")
    (before,) = world.read(partial(story, name=key, policy=world.policy))
    assert before.said is None
    assert before.address == "a***@example.com"
    world.pass_()
    (told,) = world.read(partial(story, name=key, policy=world.policy))
    assert told.said is not None
    assert told.said.parts["subject"] == "For a***@example.com"
    assert told.said.parts["text"] == "We write to a***@example.com."
    assert told.said.parts["html"] == "<b>a***@example.com</b>"
    assert (told.said.template, told.said.template_version) == ("mail", 1)
    assert "ann@example.com" not in json.dumps(told.said.parts).lower()


def test_a_reminder_tells_all_its_channels_and_customers() -> None:
    world = World("K", "N")
    world.schedule("r-1", also=[Channel.EMAIL])
    world.schedule("r-1", customer="c-2")
    told = world.read(partial(story, name="r-1", policy=world.policy))
    assert [each.delivery.key for each in told] == ["r-1:c-1:sms", "r-1:c-1:email", "r-1:c-2:sms"]
    assert {each.reminder for each in told} == {"r-1"}
    assert {each.zone for each in told} == {"Europe/Berlin"}  # the tenant's own


def test_an_unknown_name_is_told() -> None:
    world = World("K")
    for name in ("nobody", "a:b:sms", "a:b:fax"):
        with pytest.raises(NotFound, match="nothing is known of"):
            world.read(partial(story, name=name, policy=world.policy))
    with pytest.raises(NotFound, match="no delivery has the key"):
        world.read(partial(record, key="a:b:sms"))
    with pytest.raises(InvalidInput, match="not a delivery key"):
        world.read(partial(record, key="nonsense"))


def test_the_acceptance_ledger_holds_codes_and_no_person() -> None:
    world = World("K")
    key = world.accepted("r-1", receipt="SM1")
    kept = world.read(partial(record, key=key))
    assert [line.event for line in kept.lines] == ["scheduled", "published", "claimed", "accepted"]
    assert kept.lines[-1].details["receipt"] == "SM1"
    assert kept.lines[-1].hash == kept.delivery.head
    assert kept.lines[2].details["decision"] == "first"
    everything = " ".join(line.text for line in kept.lines)
    for private in (ADDRESSES[Channel.SMS], "Ann", "Dear"):
        assert private not in everything


# Sentences: every event, every reason, every state


def entry(event: Event, standing: Standing, **details: Any) -> Line:
    text = spell("k", "t", Entry(1, 0, event, "operator:ann", standing, details))
    return Line(1, 0, event, body_of(text), text, "")


@pytest.mark.parametrize("event", list(Event))
def test_every_event_has_its_sentence_from_wherever_it_leads(event: Event) -> None:
    rich = {
        "reason": "failed:connection",
        "code": "503",
        "receipt": "SM1",
        "evidence": "timeout",
        "attempt": 2,
        "account": "sms",
        "until": SECOND,
        "due_at": SECOND,
        "due": SECOND,
        "expires_at": SECOND,
        "expires": SECOND,
        "retry_after_s": 3,
        "changed": "due,template",
        "decision": "permit",
        "outcome": "accepted",
    }
    ends = {rule.to for rule in TABLE if rule.event is event and rule.to} or set(State)
    for state in ends:
        for details in ({}, rich):
            said = sentence(entry(event, Standing(state), **details), lambda at: f"<{at}>")
            assert said.endswith(".")
            assert said[0].isupper() or said.startswith("ann")
            assert "_" not in said
            assert "  " not in said
            assert "None" not in said
            assert len(said) > 8


def test_sentences_say_different_things_where_the_end_differs() -> None:
    def said(event: Event, state: State) -> str:
        return sentence(entry(event, Standing(state), reason="paid"), str)

    assert said(Event.CANCELLED, State.CANCELLED) == "Cancelled before it was sent: paid."
    assert "may already have been sent" in said(Event.CANCELLED, State.SENDING)
    assert "that was the last try" in said(Event.FAILED, State.DEAD)
    assert "tried again" in said(Event.FAILED, State.QUEUED)
    assert "will be asked" in said(Event.UNKNOWN, State.RECONCILING)
    assert "nobody can tell" in said(Event.UNKNOWN, State.UNCERTAIN)


def test_what_is_unknown_or_unreadable_is_told_as_that() -> None:
    assert sentence(Line(1, 0, "improved", {}, "", ""), str) == (
        "Something this version does not know: improved."
    )
    assert "cannot be read" in sentence(Line(1, 0, "accepted", {}, "[", ""), str)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_a_provider_has_words(reason: Reason) -> None:
    assert " " in reason_words(reason)
    for family in ("failed", "account"):
        said = reason_words(f"{family}:{reason}")
        assert reason_words(reason) in said
        assert "_" not in said


def test_what_a_person_wrote_stays_as_written() -> None:
    assert reason_words("Paid at the counter: 20 EUR") == "Paid at the counter: 20 EUR"
    assert reason_words("") == ""
    assert reason_words("opted_out:sms_stop") == "the customer opted out (sms stop)"


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("reason", ["", "failed:connection", "invalid_address", "quiet_hours"])
def test_every_state_says_what_to_tell_the_customer(state: State, reason: str) -> None:
    world = World("K")
    row = world.row(world.schedule("r-1"))
    for course in (row.course, replace(row.course, next_at=world.now + SECOND)):
        for maybe, permit in ((False, False), (True, False), (True, True)):
            standing = replace(row.standing, state=state, maybe=maybe, permit=permit)
            given = replace(row, standing=standing, course=replace(course, reason=reason))
            said = tell_customer(given, world.now, lambda at: "THEN")
            assert said.endswith(".")
            assert said.startswith("It ")
            assert "_" not in said


def test_the_customer_is_never_told_more_than_is_known() -> None:
    world = World("N")
    row = world.row(world.uncertain())
    for state in State:
        said = tell_customer(replace(row, standing=replace(row.standing, state=state)), world.now, str)
        sure = said.startswith("It was sent")
        unsure = "may" in said or "no proof" in said or "without proof" in said
        if state is State.ACCEPTED:
            assert sure
        elif state in (State.RECONCILING, State.UNCERTAIN, State.ASSUMED_SENT, State.NOT_SENT):
            assert unsure
            assert not sure


def test_a_pause_is_told_without_the_time_of_the_next_look() -> None:
    """Nobody knows how long it lasts, and the next look is nothing to promise to a customer."""
    world = World("K")
    sms = Target(Scope.CHANNEL, "sms")
    queued = world.schedule("queued")
    world.pass_()
    pause(world.store, sms, world.policy, reason="wrong prices", actor="operator:ann")
    world.claim()
    waiting = world.schedule("waiting")
    world.pass_()
    for key in (queued, waiting):
        said = tell_customer(world.row(key), world.now, str)
        assert said == "It has not been sent yet and waits: its channel is paused."
        assert sentence(world.lines(key)[-1], str) == "Put off: its channel is paused."
    resume(world.store, sms, world.policy, reason="corrected", actor="operator:ann")
    assert "paused" not in tell_customer(world.row(queued), world.now, str)
    assert "paused" not in tell_customer(world.row(waiting), world.now, str)


def test_local_time_is_the_customers() -> None:
    at = 1_774_746_000 * SECOND  # 2026-03-29T01:00:00Z, the clocks go forward in Berlin
    assert local_time(at - SECOND, "Europe/Berlin") == "2026-03-29 01:59:59 CET"
    assert local_time(at, "Europe/Berlin") == "2026-03-29 03:00:00 CEST"
    assert local_time(2**62, "UTC") == "a time beyond the calendar"


# report


def test_a_days_dispositions_add_up_to_what_was_due() -> None:
    world = World("K", "N")
    world.accepted("a")
    world.dead("d")
    world.rejected("x")
    world.uncertain("u", account="email-N")
    world.schedule("s", due_in_s=3_600)
    world.schedule("gone", due_in_s=3_700)
    world.withdraw("gone:c-1:sms")
    world.schedule("tomorrow", due_in_s=90_000)
    day = world.read(partial(report, day="2026-01-01", zone="Europe/Berlin"))
    assert day.adds_up
    assert day.due == 6
    assert day.counts == {
        "ACCEPTED": 1,
        "DEAD": 1,
        "REJECTED": 1,
        "UNCERTAIN": 1,
        "SCHEDULED": 1,
        "CANCELLED": 1,
    }
    assert (day.ended, day.still_open) == (4, 2)
    assert [row.key for row in day.open] == ["u:c-1:email", "s:c-1:sms"]
    assert sum(line.due for line in day.lines) == day.due
    assert {(line.channel, line.category, line.account) for line in day.lines} == {
        ("sms", "sms-K", "sms-K"),
        ("sms", "sms-K", ""),
        ("email", "email-N", "email-N"),
    }
    assert world.read(partial(report, day="2026-01-02", zone="Europe/Berlin")).due == 1


def test_a_day_is_one_on_the_wall_clock() -> None:
    world = World("K")  # 2026-01-01T00:00Z, which is 01:00 in Berlin and the evening before in New York
    world.schedule("a")
    assert world.read(partial(report, day="2026-01-01", zone="Europe/Berlin")).due == 1
    assert world.read(partial(report, day="2026-01-01", zone="America/New_York")).due == 0
    assert world.read(partial(report, day="2025-12-31", zone="america/new_york")).due == 1
    long = world.read(partial(report, day="2026-10-25", zone="Europe/Berlin"))
    assert long.end - long.start == 25 * 3_600 * SECOND
    short = world.read(partial(report, day="2026-03-29", zone="Europe/Berlin"))
    assert short.end - short.start == 23 * 3_600 * SECOND


def test_a_report_is_of_one_tenant_or_all() -> None:
    world = World("K")
    world.schedule("a", tenant="acme")
    world.schedule("b")
    day = partial(report, day="2026-01-01", zone="UTC")
    assert world.read(day).due == 2
    assert world.read(partial(day, tenant="acme")).due == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE delivery SET state = 'ACCEPTED' WHERE key = 'd:c-1:sms'",
        "UPDATE delivery SET state = 'SENT' WHERE key = 'd:c-1:sms'",
        "UPDATE delivery SET head = 'x' WHERE key = 'd:c-1:sms'",
        "DELETE FROM ledger WHERE delivery_id = (SELECT id FROM delivery WHERE key = 'd:c-1:sms')",
    ],
)
def test_a_disposition_that_the_ledger_does_not_back_is_missing_from_the_sum(
    tmp_path: Path, statement: str
) -> None:
    path = str(tmp_path / "store.db")
    world = World("K", path=path)
    world.accepted("a")
    world.schedule("d", due_in_s=60)
    world.tamper(statement)
    day = world.read(partial(report, day="2026-01-01", zone="UTC"))
    assert not day.adds_up
    assert day.due == 2
    assert sum(day.counts.values()) == 1
    assert any("1 due, but the ledger backs 0 dispositions" in fault for fault in day.faults)
    assert any("d:c-1:sms" in fault for fault in day.faults)


@pytest.mark.parametrize(("day", "zone"), [("today", "UTC"), ("2026-02-30", "UTC"), ("2026-01-01", "Mars")])
def test_a_day_that_is_none_is_refused(day: str, zone: str) -> None:
    with pytest.raises(InvalidInput):
        World("K").read(partial(report, day=day, zone=zone))


def test_a_row_that_another_program_wrote_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    world = World("K", path=path)
    key = world.schedule("a")
    world.tamper("UPDATE delivery SET state = 'SENT'")
    with pytest.raises(StoreMismatch, match="sendonce verify"):
        world.read(partial(story, name=key, policy=world.policy))


# overview


def look(world: World) -> Overview:
    return world.read(lambda tx: overview(tx, world.policy))


def account(seen: Overview, name: str) -> AccountView:
    return next(each for each in seen.accounts if each.name == name)


def channel(seen: Overview, name: str) -> ChannelView:
    return next(each for each in seen.channels if each.channel == name)


def test_an_empty_store_has_an_overview() -> None:
    seen = look(World("K", "N"))
    assert [each.name for each in seen.accounts] == ["sms-K", "email-N"]
    assert {each.why for each in seen.accounts} == {"nothing is due"}
    assert (seen.scheduled, seen.mark, seen.lag_s, seen.last_pass) == (0, 0, 0.0, None)
    assert seen.alerts == ()


def test_the_overview_counts_where_everything_stands() -> None:
    world = World("K", "N")
    world.dead("d")
    world.rejected("x-1", "x-2")
    world.uncertain("u", account="email-N")
    world.schedule("late", account="email-N")
    world.advance(45)
    world.schedule("retry")
    world.schedule("open")
    world.pass_()
    world.send(Failed(Reason.UNAVAILABLE, "503", 60.0))
    world.schedule("open-2")
    world.pass_()
    world.claim()
    world.schedule("later", due_in_s=100)
    world.schedule("due")
    seen = look(world)
    sms, email = channel(seen, "sms"), channel(seen, "email")
    assert (sms.scheduled, sms.due, sms.queued, sms.sending, sms.dead, sms.rejected) == (2, 1, 2, 1, 1, 2)
    assert (email.queued, email.uncertain) == (1, 1)
    assert email.oldest_s == pytest.approx(0.0)  # published just now
    assert seen.scheduled == 2
    of = account(seen, "sms-K")
    assert (of.ready, of.waiting, of.sending) == (0, 2, 1)
    assert of.wakes_in_s == pytest.approx(62.5)
    assert (of.gate.lanes_used, of.gate.lanes_of, of.gate.word) == (1, 50, Word.OPEN)
    assert of.gate.rate is not None
    assert 900 < of.gate.rate < 1_000  # a little below the limit, for the jitter of starts
    assert not of.gate.changed


def test_age_is_counted_until_it_is_sent_and_alarms() -> None:
    world = World("K")
    world.schedule("r-1")
    world.advance(500)
    assert channel(look(world), "sms").oldest_s == 500.0
    world.advance(200)
    seen = look(world)
    assert channel(seen, "sms").alert
    assert seen.alerts == ("sms",)
    world.pass_()
    world.advance(601)
    assert look(world).alerts == ("sms",)
    world.send(Accepted("r"))
    assert look(world).alerts == ()


def test_quiet_waiting_alarms_nobody() -> None:
    world = World("K")
    world.schedule("r-1", due_in_s=5_000)
    world.advance(1_000)
    assert channel(look(world), "sms").oldest_s == 0.0


def test_the_last_minute_is_counted() -> None:
    world = World("K")
    world.accepted("a")
    world.advance(100)
    world.accepted("b")
    world.schedule("c")
    world.pass_()
    world.send(Failed(Reason.UNAVAILABLE, "503"))
    world.advance(5)
    world.send(Unknown("timeout"))
    world.advance(9)
    world.send(Throttled(ThrottleScope.RECIPIENT, "429", 1.0))
    world.advance(5)
    world.send(Rejected(Reason.BLOCKED, "550"))
    flow = account(look(world), "sms-K").flow
    assert (flow.window_s, flow.started, flow.retried) == (60.0, 5, 3)
    assert (flow.accepted, flow.failed, flow.unknown, flow.throttled, flow.refused) == (1, 1, 1, 1, 1)
    assert flow.per_s(flow.started) == pytest.approx(5 / 60)


def test_a_busy_minute_is_measured_over_less_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_module, "FLOW_ENTRIES", 8)
    world = World("K")
    for number in range(10):
        world.accepted(f"r-{number}")
        world.advance(2)
    flow = account(look(world), "sms-K").flow
    assert (flow.window_s, flow.accepted) == (4.0, 2)  # four entries each: the last two
    assert flow.per_s(flow.accepted) == pytest.approx(0.5)


def test_processes_and_passes_are_shown() -> None:
    world = World("K")
    world.beat("w-2")
    world.advance(20)
    world.pass_()
    world.advance(15)
    seen = look(world)
    by_id = {view.process.id: view for view in seen.processes}
    assert (by_id["w-1"].alive, by_id["w-1"].silent_s) == (True, 0.0)
    assert (by_id["w-2"].alive, by_id["w-2"].silent_s) == (False, 35.0)
    assert seen.last_pass is not None
    assert (seen.last_pass.trigger, seen.last_pass.complete) == ("test", True)
    assert seen.lag_s == 15.0


def test_an_account_that_the_configuration_lost_is_still_seen() -> None:
    world = World("K", "N")
    world.schedule("r-1")
    world.pass_()
    kept = {name: each for name, each in world.policy.accounts.items() if name != "sms-K"}
    world.policy = replace(world.policy, accounts=kept)
    lost = account(look(world), "sms-K")
    assert (lost.configured, lost.channel, lost.ready) == (False, "sms", 1)
    assert lost.why == "the account is not configured any more, and 1 delivery waits for it: put it back"


def test_what_is_in_doubt_at_a_lost_account_is_an_alert() -> None:
    world = World("N")
    world.uncertain("u")
    assert look(world).alerts == ()
    world.policy = replace(world.policy, accounts={})
    seen = look(world)
    assert seen.alerts == ("email-N",)
    assert account(seen, "email-N").why == (
        "the account is not configured any more, and 1 delivery waits for it, 1 of which may have been sent: "
        "put it back"
    )


def test_why_nothing_leaves_is_read_off_the_real_store() -> None:
    """Each sentence as the stages bring it about; the table below has all cases."""
    world = World("K")
    key = world.schedule("r-1")

    def why() -> str:
        return account(look(world), "sms-K").why

    assert why().startswith("the scheduler has never run")
    world.pass_()
    assert why() == "it may leave now: a worker takes it at its next look"
    (claim,) = world.claim()
    assert why() == "it is leaving"
    world.settle([(claim, AccountError(Reason.AUTHENTICATION, "535"))])
    assert why() == "the provider refuses our account (535) for another 1 min"
    pause(world.store, Target(Scope.ACCOUNT, "sms-K"), world.policy, reason="x", actor="operator:a")
    assert why() == "the account is paused"
    world.clock.advance(120)
    assert why() == "no worker for this channel is alive: start `sendonce worker` or `sendonce up`"
    assert world.state(key) is State.QUEUED


NEVER_RAN = "the scheduler has never run: start `sendonce scheduler` or `sendonce up`, or run `sendonce pass`"
WHY: Mapping[str, Situation] = {
    "nothing is due": Situation(),
    "the account is not configured any more, and 3 deliveries wait for it: put it back": Situation(
        ready=2, waiting=1, configured=False, workers=0
    ),
    "the account has no gate yet, and nothing is sent without one: start a process that knows it": Situation(
        ready=1, gate=Word.MISSING
    ),
    "the scheduler is paused, and 2 deliveries wait to be published": Situation(
        due=2, scheduler_paused=True, workers=0
    ),
    NEVER_RAN: Situation(due=2, pass_age_s=None),
    "the scheduler passed last 6 min 40 s ago: start `sendonce scheduler`, or run `sendonce pass`": Situation(
        due=2, pass_age_s=400.0
    ),
    "1 delivery waits for the next pass of the scheduler": Situation(due=1, pass_age_s=5.0),
    "no worker for this channel is alive: start `sendonce worker` or `sendonce up`": Situation(
        ready=1, workers=0, gate=Word.CLOSED
    ),
    "the account is paused": Situation(ready=1, gate=Word.PAUSED, left_s=None),
    "the account is paused for another 2 min": Situation(ready=1, gate=Word.PAUSED, left_s=120.0),
    "its channel is paused": Situation(ready=1, channel_paused=True),
    "the provider asked us to slow down for another 30 s": Situation(
        ready=1, gate=Word.CLOSED, gate_why="throttled", left_s=30.0, started=5
    ),
    "the provider's quota is used up for another 1 h": Situation(
        ready=1, gate=Word.CLOSED, gate_why="quota", left_s=3_600.0
    ),
    "the provider fails call after call and is left alone for a while": Situation(
        ready=1, gate=Word.CLOSED, gate_why="breaker"
    ),
    "the provider refuses our account (our credit is used up) for another 1 min": Situation(
        ready=1, gate=Word.CLOSED, gate_why="account:credit", left_s=60.0
    ),
    "the gate is closed (else)": Situation(ready=1, gate=Word.CLOSED, gate_why="else"),
    "it is leaving": Situation(ready=1, started=1),
    "one call at a time is tried, until one succeeds": Situation(ready=1, started=1, gate=Word.PROBING),
    "all 4 lanes are taken by open calls; the provider is slow": Situation(ready=1, sending=4, lanes_of=4),
    "the one call that is tried is taken by open calls; the provider is slow": Situation(
        ready=1, sending=1, lanes_of=1, gate=Word.PROBING
    ),
    "everything that may go now is being sent": Situation(waiting=1, sending=1, lanes_of=4),
    "2 deliveries wait for a retry, quiet hours or a pause, the first in 5 min": Situation(
        waiting=2, wakes_in_s=300.0
    ),
    "it may leave now: a worker takes it at its next look": Situation(ready=1),
}


@pytest.mark.parametrize("expected", WHY)
def test_why_nothing_leaves(expected: str) -> None:
    assert why_nothing_leaves(WHY[expected]) == expected


# Cost

STATEMENTS = expand(TOKENS)
PLANS = {
    "view_scheduled_total": "INDEX agenda_pass",
    "view_scheduled": "INDEX agenda_pass",
    "view_held": "INDEX agenda_pass (at<?)",
    "view_progress_put_off": "INDEX agenda_pass (at>? AND at<?)",
    "backlog_open": "INDEX agenda_attention (look>? AND look<?)",
    "delivery_matching_held_queued": "INDEX agenda_waiting",
    "view_ready": "INDEX agenda_ready",
    "view_waiting": "INDEX agenda_waiting",
    "view_attention": "INDEX agenda_attention",
    "view_calls": "SCAN open_call",
    "view_flow": "USING INTEGER PRIMARY KEY (rowid>?)",
    "view_passes": "SCAN pass_run",
    "view_desk": "INDEX agenda_attention (look=? AND at>?)",
    "view_desk_groups": "INDEX agenda_attention",
    "view_report": "INDEX delivery_due (due_at>? AND due_at<?)",
    "view_report_due": "INDEX delivery_due (due_at>? AND due_at<?)",
    "view_report_open": "INDEX delivery_due (due_at>? AND due_at<?)",
    "view_report_unbacked": "INDEX delivery_due (due_at>? AND due_at<?)",
    "view_find_reminder": "INDEX delivery_reminder",
    "view_find_customer": "INDEX delivery_customer",
    "view_find_address": "INDEX delivery_address",
    "view_find_receipt": "INDEX ledger_receipt",
    "view_ledger": "(delivery_id=?)",
    "view_poll": "ledger USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "view_poll_young": "ledger USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "view_verify_rows": "USING INTEGER PRIMARY KEY",
    "view_verify_lines": "(delivery_id>? AND delivery_id<?)",
}


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> apsw.Connection:
    """A file with a little of everything."""
    path = str(tmp_path_factory.mktemp("plans") / "store.db")
    world = World("K", path=path)
    world.accepted("a")
    world.schedule_many(50)
    world.store.close()
    return apsw.Connection(path)


@pytest.mark.parametrize("name", PLANS)
def test_views_stand_on_their_indexes(schema: apsw.Connection, name: str) -> None:
    parameters = dict.fromkeys(_parameters(STATEMENTS[name]), 0)
    plan = [str(row[3]) for row in schema.execute(f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", parameters)]
    assert any(PLANS[name] in line for line in plan), plan
    assert not any(line.startswith("SCAN delivery") and "INDEX" not in line for line in plan), plan
    assert "SCAN ledger" not in plan
    assert "SCAN l" not in plan


def _parameters(statement: str) -> set[str]:
    return set(re.findall(r":(\w+)", statement))


def test_every_view_is_pasteable_and_read_only(schema: apsw.Connection) -> None:
    views = {name: text for name, text in STATEMENTS.items() if name.startswith("view_")}
    assert len(views) >= len(PLANS)
    schema.execute("PRAGMA query_only = ON").fetchall()
    for text in views.values():
        schema.execute(text, dict.fromkeys(_parameters(text), 0)).fetchall()
    schema.execute("PRAGMA query_only = OFF").fetchall()


def test_where_the_count_stops_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_module, "COUNT_MAX", 100)
    world = World("K")
    world.schedule_many(300)
    seen = look(world)
    assert (seen.scheduled, channel(seen, "sms").scheduled, channel(seen, "sms").more) == (300, 100, True)


def test_quotas_alone_have_no_rate() -> None:
    world = World("K", limits=GateLimits((Limit(1_000, 86_400 * SECOND),), 5))
    assert account(look(world), "sms-K").gate.rate is None


def test_a_redriven_story_tells_who_and_why() -> None:
    world = World("K")
    key = world.dead("d")
    redrive(
        world.store, Filter(), world.policy, reason="provider mended", actor="operator:ann", extend_s=100_000
    )
    (told,) = world.read(partial(story, name=key, policy=world.policy))
    assert told.moments[-1].text.startswith(
        "ann put it back into the queue: provider mended; it is now valid"
    )
    lines = world.read(lambda tx: lines_of(tx, told.delivery.id))
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
